"""From the blocks of a quad to one difference, or to the reason why there is none."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Mapping, Sequence

from dlprof.gate.plan import is_balanced
from dlprof.gate.wording import METRICS
from dlprof.records.gate import Block, GateRule, Quad, ReasonCode, Scale, Side

LEAST_BATCHES = 4  # a block with fewer has no lower-quartile batch of its own

MOST_BATCHES = 256
"""Entries of a block; more are grouped, so that the raw blocks of a check stay below a few MB."""


def grouped(
    service_s: Sequence[float], samples: Sequence[int]
) -> tuple[tuple[float, ...], tuple[int, ...]]:
    """The columns of a block with neighbouring batches added up, so that few entries are left.

    Both sides load the same batches and so are grouped alike.
    """
    size = max(1, math.ceil(len(service_s) / MOST_BATCHES))
    starts = range(0, len(service_s), size)
    # Nanoseconds: what the clock gives
    return (
        tuple(round(sum(service_s[at : at + size]), 9) for at in starts),
        tuple(sum(samples[at : at + size]) for at in starts),
    )


def cleaned(quad: Quad) -> Quad:
    """The quad with every block that can't be used as a failed one, which says why.

    A quad is judged alike before and after; after, it holds finite numbers only.
    """
    blocks = (
        Block(side=block.side, failure=fault) if (fault := _fault(block)) else block
        for block in quad.blocks
    )
    return dataclasses.replace(quad, blocks=tuple(blocks))


def _fault(block: Block) -> str:
    """Why no figure of a block can be used; empty where they can."""
    if block.failure:
        return block.failure
    alone = (
        *(block.wall_s, block.run_queue_wait_fraction, block.startup_s, block.epoch_turnover_s),
        *(block.pss_peak_bytes, block.shm_peak_bytes),
    )
    known = (figure for figure in alone if figure is not None)
    figures = [*block.service_s, *block.stages_s.values(), *known]
    # No second and no byte count of a block is larger; sums of such figures stay finite.
    if not all(figure == 0 or 1e-60 <= abs(figure) <= 1e18 for figure in figures):
        return "a figure was not a usable number"
    if len(block.service_s) != len(block.samples):
        return "batches and their samples don't fit each other"
    if block.samples and not 0 < min(block.samples) <= max(block.samples) < (10**12):
        return "a batch held no usable number of samples"
    return ""


def _per_sample(seconds: float | None, block: Block) -> float | None:
    return None if seconds is None else seconds / sum(block.samples)


def _low_quartile(block: Block) -> float:
    """The service time a sample of the batch at the lower quartile, between two of them."""
    costs = sorted(cost / count for cost, count in zip(block.service_s, block.samples, strict=True))
    place = (len(costs) - 1) / 4
    below = math.floor(place)
    above = min(below + 1, len(costs) - 1)
    return costs[below] + (costs[above] - costs[below]) * (place - below)


_VALUES: Mapping[tuple[str, str], Callable[[Block], float | None]] = {
    ("service", "mean"): lambda block: _per_sample(math.fsum(block.service_s), block),
    ("service", "low_quartile"): _low_quartile,
    ("receive", "value"): lambda block: _per_sample(block.stages_s.get("receive"), block),
    ("wall", "value"): lambda block: _per_sample(block.wall_s, block),
    ("startup", "value"): lambda block: block.startup_s,
    ("epoch_turnover", "value"): lambda block: block.epoch_turnover_s,
    ("memory", "value"): lambda block: block.pss_peak_bytes,
    ("shared_memory", "value"): lambda block: block.shm_peak_bytes,
}


def block_value(block: Block, rule: GateRule, view: str) -> float | None:
    """One figure of a block by itself; ``None`` where it has none that can be used."""
    few = METRICS[rule.name].by_sample and len(block.service_s) < LEAST_BATCHES
    value = None if few or _fault(block) else _VALUES[rule.name, view](block)
    return None if value is None or (rule.scale == "ratio" and value <= 0) else value


@dataclasses.dataclass(frozen=True, slots=True)
class QuadReading:
    """One metric's figures in a quad that can be used for it."""

    quad: Quad  # the quad
    values: Mapping[tuple[str, Side], Sequence[float]]  # by view and side, one figure per block

    def shift(self, view: str, scale: Scale) -> float:
        """How much worse the change is than the base: ``mean f(B) - mean f(A)``.

        On the scale ``ratio`` the values' logarithms are taken, so that quads of a busy moment
        and of a quiet one show the same.
        """
        base, change = self.values[view, "base"], self.values[view, "change"]
        if scale == "ratio":
            base, change = list(map(math.log, base)), list(map(math.log, change))
        return sum(change) / len(change) - sum(base) / len(base)

    def change_within(self, side: Side) -> float:
        """How much the machine changed during the quad, as it seems from a side's own blocks.

        The logarithm of a ratio of their mean service times; 0 where they don't show it.
        """
        blocks = (block for block in self.quad.blocks if block.side == side and block.samples)
        logs = [math.log(mean) for mean in map(_VALUES["service", "mean"], blocks) if mean]
        return max(logs) - min(logs) if len(logs) > 1 else 0.0


def readings_of(rule: GateRule, quads: Sequence[Quad]) -> list[QuadReading]:
    """The quads that have figures for a metric: looks are due by their number."""
    found = (read_quad(quad, rule) for quad in quads if quad.series == rule.series)
    return [reading for reading in found if isinstance(reading, QuadReading)]


def read_quad(quad: Quad, rule: GateRule) -> QuadReading | ReasonCode:
    """The figures of a metric in a quad, or why there are none."""
    # Where a loader could not be hooked, what is known is the wait in ``next()``.
    hooked = {"fetch" in block.stages_s for block in quad.blocks}
    is_alike = is_balanced(quad) and (rule.name != "service" or len(hooked) == 1)
    if not is_alike or any(map(_fault, quad.blocks)):
        return "unusable_blocks"
    if METRICS[rule.name].by_sample:
        if any(len(block.service_s) < LEAST_BATCHES for block in quad.blocks):
            return "too_few_batches"
        if len({sum(block.samples) for block in quad.blocks}) > 1:
            return "different_data"
    values: dict[tuple[str, Side], list[float]] = {}
    for view in rule.views:
        for block in quad.blocks:
            value = _VALUES[rule.name, view](block)
            if value is None:
                return "not_measured"
            if rule.scale == "ratio" and value <= 0:
                return "zero_time"
            values.setdefault((view, block.side), []).append(value)
    return QuadReading(quad, values)


def base_service_s(quad: Quad) -> list[float]:
    """The mean service time a sample of the base's blocks, where they loaded any."""
    mean = _VALUES["service", "mean"]
    found = (mean(block) for block in quad.blocks if block.side == "base" and block.samples)
    return [value for value in found if value is not None]
