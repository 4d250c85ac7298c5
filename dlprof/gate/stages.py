"""Where the time went: which stage got slower, and by how much. It explains, it doesn't judge."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Iterator, Sequence

from dlprof.gate.signed_rank import shift_interval
from dlprof.records.gate import Block, Quad, Side, StageShift

_ALPHA = 0.025
"""The intervals of stages are 95 % each."""

_STAGES = ("fetch", "collate", "receive")

PART = ": "
"""Stands between a stage and a part of it, such as one of the transforms that fetching runs."""

_Value = Callable[[Block], float | None]


def stage_shifts(quads: Sequence[Quad]) -> tuple[StageShift, ...]:
    """Each stage's shift over quads whose blocks all tell it, the dearest first.

    Args:
        quads: Cleaned, balanced quads without failed blocks.
    """
    load = [quad for quad in quads if quad.series == "load"]
    start = [quad for quad in quads if quad.series == "start"]
    parts = {name for quad in load for block in quad.blocks for name in block.stages_s}
    names = (*_STAGES, *sorted(name for name in parts if PART in name))
    found = [_shift(name, load, _per_sample(name)) for name in names]
    found.append(_shift("startup", start, lambda block: block.startup_s))
    shifts = [shift for shift in found if shift is not None]
    return tuple(sorted(shifts, key=lambda shift: -_growth(shift)))


def _growth(shift: StageShift) -> float:
    """Seconds of loading or of starting can't be ranked by each other: starts come last."""
    return shift.shift_s if shift.stage != "startup" else -math.inf


def _per_sample(stage: str) -> _Value:
    def value(block: Block) -> float | None:
        seconds, samples = block.stages_s.get(stage), sum(block.samples)
        return seconds / samples if seconds is not None and samples else None

    return value


def _shift(name: str, quads: Sequence[Quad], value: _Value) -> StageShift | None:
    rows = [row for quad in quads if (row := _sides(quad, value)) is not None]
    if not rows:
        return None
    shift = shift_interval([change - base for base, change in rows], _ALPHA)
    known = shift.k >= 0
    return StageShift(
        stage=name,
        base_s=statistics.median(base for base, _ in rows),
        change_s=statistics.median(change for _, change in rows),
        shift_s=shift.estimate,
        low_s=shift.low if known else None,
        high_s=shift.high if known else None,
    )


def _sides(quad: Quad, value: _Value) -> tuple[float, float] | None:
    """The means of both sides of a quad; ``None`` where a block doesn't tell."""
    base, change = (list(_values(quad, side, value)) for side in ("base", "change"))
    if not base or not change or len(base) + len(change) != len(quad.blocks):
        return None
    means = sum(base) / len(base), sum(change) / len(change)
    return means if all(map(math.isfinite, means)) else None


def _values(quad: Quad, side: Side, value: _Value) -> Iterator[float]:
    found = (value(block) for block in quad.blocks if block.side == side)
    return (each for each in found if each is not None)
