"""Sequences of batches and steps that stand for those that were calibrated."""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Sequence

from dlprof.model.work import Cell, Rows, Work


def drawn(rows: Rows, count: int, rng: random.Random) -> Rows:
    """A sequence of batches that stands for the calibrated ones.

    Each calibrated batch comes equally often, in random order: were they to come in the order
    measured and their number a multiple of W, one worker would get the same batches for ever.
    Of more batches than are wanted, one is drawn from each of ``count`` groups of like cost, and
    the columns are scaled so that their means stay what they were.

    Args:
        rows: Calibrated batches.
        count: How many are wanted; at least as many come, so that none is preferred.
        rng: Decides.
    """
    if len(rows) <= count:
        made: list[tuple[float, ...]] = []
        while len(made) < count:
            made += rng.sample(rows, len(rows))
        return tuple(made)
    by_cost = sorted(rows, key=lambda row: row[0] + row[1])
    edges = [place * len(rows) // count for place in range(count + 1)]
    chosen = [by_cost[rng.randrange(a, b)] for a, b in itertools.pairwise(edges)]
    rng.shuffle(chosen)
    return scaled_to(chosen, rows)


def scaled_to(chosen: Sequence[tuple[float, ...]], rows: Rows) -> Rows:
    """Batches with each column scaled to the mean that it has in others."""
    factors = []
    for mine, theirs in zip(zip(*chosen, strict=True), zip(*rows, strict=True), strict=True):
        have, want = math.fsum(mine) / len(mine), math.fsum(theirs) / len(theirs)
        factors.append(want / have if have > 0 else 0.0)
    return tuple(
        tuple(value * factor for value, factor in zip(row, factors, strict=True)) for row in chosen
    )


class Deck:
    """Sequences of batches and steps, drawn once and dealt to every cell that asks for the same.

    Cells that differ only in their settings see the same batches in the same order, so that
    what tells them apart is not the luck of the draw.
    """

    def __init__(self, seed: int) -> None:
        """Nothing is drawn yet.

        Args:
            seed: Of all draws.
        """
        self._seed = seed
        self._rows: dict[tuple[int, int, int], tuple[Rows, Rows]] = {}
        self._steps: dict[tuple[tuple[float, ...], float, int, int], tuple[float, ...]] = {}

    def rows(self, work: Work, count: int, rank: int = 0) -> Rows:
        """Batches for one rank: ``count`` of them, or a few more."""
        key = (id(work.rows), count, rank)
        if key not in self._rows:
            rng = random.Random(self._seed + rank)
            # What was drawn from is kept with it: while it lives, nothing else has its id.
            self._rows[key] = work.rows, drawn(work.rows, count, rng)
        return self._rows[key][1]

    def steps(self, cell: Cell, count: int, rank: int = 0) -> tuple[float, ...]:
        """Lengths of steps for one rank, as many as wanted, with the mean of ``cell.step_s``."""
        samples = cell.conditions.step_samples
        mean = math.fsum(samples) / len(samples) if samples else 0.0
        if mean <= 0 or cell.step_s <= 0:
            return (cell.step_s,) * count
        key = (samples, cell.step_s, count, rank)
        if key not in self._steps:
            rows = tuple((sample * cell.step_s / mean, 0.0) for sample in samples)
            rng = random.Random(self._seed - 1 - rank)
            chosen = scaled_to(drawn(rows, count, rng)[:count], rows)
            self._steps[key] = tuple(row[0] for row in chosen)
        return self._steps[key]
