"""The linear algebra of the block model, small and plain."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

Row = Mapping[int, tuple[float, float]]
"""Per block, total weight and weighted mean of what was measured there."""

_BLOCK_PENALTY = 0.01
"""Residual variance over block variance: blocks may differ by ten times the residual spread. All
but fixed effects, yet configurations that share no block can still be compared, very widely."""


def weighted_mean(row: Row) -> float:
    """The weighted mean of one configuration's cells."""
    return sum(w * y for w, y in row.values()) / sum(w for w, _ in row.values())


def block_equations(cells: Mapping[str, Row], size: int) -> tuple[list[list[float]], list[float]]:
    """The normal equations of the block effects, levels of groups eliminated."""
    matrix = [[_BLOCK_PENALTY if i == j else 0.0 for j in range(size)] for i in range(size)]
    right = [0.0] * size
    for row in cells.values():
        level, total = weighted_mean(row), sum(w for w, _ in row.values())
        for block, (weight, rate) in row.items():
            matrix[block][block] += weight
            right[block] += weight * (rate - level)
            for other, (other_weight, _) in row.items():
                matrix[block][other] -= weight * other_weight / total
    return matrix, right


def inverted(matrix: Sequence[Sequence[float]]) -> list[list[float]]:
    """Inverse of a positive definite matrix by Gauss-Jordan elimination (needs no pivoting)."""
    size = len(matrix)
    rows = [[*row, *(float(i == j) for j in range(size))] for i, row in enumerate(matrix)]
    for i, pivot_row in enumerate(rows):
        pivot = pivot_row[i]
        rows[i] = [value / pivot for value in pivot_row]
        for k, row in enumerate(rows):
            if k != i and row[i]:
                rows[k] = [a - row[i] * b for a, b in zip(row, rows[i], strict=True)]
    return [row[size:] for row in rows]


def paired_squares(one: Row, two: Row) -> tuple[float, int]:
    """Squares of a pair's differences about their mean, per observation, and their df."""
    pairs = [
        (1 / (1 / one[block][0] + 1 / two[block][0]), one[block][1] - two[block][1])
        for block in sorted(one.keys() & two.keys())
    ]
    if len(pairs) < 2:
        return 0.0, 0
    middle = sum(w * d for w, d in pairs) / sum(w for w, _ in pairs)
    return sum(w * (d - middle) ** 2 for w, d in pairs), len(pairs) - 1
