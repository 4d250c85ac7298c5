"""Other ways of choosing settings, reduced to what they measure and choose: for comparison only.

Those that measure are given trials that were taken before, so that all of them meet the same
machine: each looks only at the trials that it would have run, and pays for those. They are written
from what their makers document.
"""

from __future__ import annotations

import dataclasses
import math
import statistics
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType

from dlprof.records import Config


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Shot:
    """One configuration, measured once.

    Attributes:
        rate: Batches per second; 0 where it failed.
        cost_s: What the trial took from start to end.
        speed: Of the cores in its window, as dlprof's probe saw it; ``None`` where it did not.
    """

    rate: float
    cost_s: float
    speed: float | None = None


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Pick:
    """What a way of choosing chose.

    Attributes:
        config: The settings.
        cost_s: Seconds that it measured for.
        epsilon: What it may lose against the best, as it says itself with 95 %; ``None`` where it
            says nothing.
        epsilon_measured: Against the best of those that it measured.
    """

    config: Config
    cost_s: float
    epsilon: float | None = None
    epsilon_measured: float | None = None


Block = Mapping[Config, Shot]
"""Every configuration of a grid, measured once."""

Rival = Callable[[Sequence[Block], int], Pick]
"""Chooses from blocks, the first of which is the one of that number."""


def whole_grid(blocks: Sequence[Block], first: int) -> Pick:
    """Measure everything once, take the fastest."""
    return _fastest(blocks[first])


def dpt(cores: int) -> Rival:
    """DPT's grid: as many workers as cores at most, and each prefetch factor; the fastest wins.

    Park, Synn, Piao and Kim, "Dataloader Parameter Tuner" (arXiv 2210.05244), on one GPU.

    Args:
        cores: Of the machine, as the operating system counts them.
    """

    def pick(blocks: Sequence[Block], first: int) -> Pick:
        some = {c: shot for c, shot in blocks[first].items() if 1 <= c.num_workers <= cores}
        return _fastest(some)

    return pick


def halving(blocks: Sequence[Block], first: int) -> Pick:
    """Successive halving: measure all, go on with the faster half, until one is left.

    Jamieson and Talwalkar, "Non-stochastic best arm identification" (arXiv 1502.07943). Each round
    measures those that are left once more, and judges by all that was measured of them.
    """
    left = list(blocks[first])
    cost_s, turn = 0.0, 0
    while True:
        taken = [blocks[(first + each) % len(blocks)] for each in range(turn + 1)]
        cost_s += math.fsum(taken[-1][config].cost_s for config in left)
        rates = {c: statistics.fmean(block[c].rate for block in taken) for c in left}
        if len(left) <= 2:
            return Pick(config=max(left, key=rates.__getitem__), cost_s=cost_s)
        left = sorted(left, key=rates.__getitem__, reverse=True)[: math.ceil(len(left) / 2)]
        turn += 1


def _fastest(block: Block) -> Pick:
    config = max(block, key=lambda each: block[each].rate)
    return Pick(config=config, cost_s=math.fsum(shot.cost_s for shot in block.values()))


def measuring(cores: int) -> Mapping[str, Rival]:
    """Those that measure, by name.

    Args:
        cores: As the operating system counts them.
    """
    return MappingProxyType(
        {"exhaustive grid": whole_grid, "DPT's grid": dpt(cores), "successive halving": halving}
    )


def regrets(finals: Sequence[Block], configs: Sequence[Config]) -> dict[Config, float]:
    """What is lost by each configuration against the best one: 0.03 is a rate 3 % below.

    The best of many measured ones looks better than it is. So one half of the blocks says which
    is the best, and the other how much better it is; then the other way round. A regret may come
    out a little below 0.

    Args:
        finals: Blocks, at least two. What is in some of them only is no candidate for the best,
            and judged by those two or more that it is in.
        configs: Whose regret.
    """
    lasting = [config for config in configs if all(config in block for block in finals)]
    found = {}
    for config in configs:
        blocks = [block for block in finals if config in block]
        losses = []
        for choosing, judging in ((blocks[::2], blocks[1::2]), (blocks[1::2], blocks[::2])):
            chosen = _log_rates(choosing, lasting)
            judged = _log_rates(judging, [*lasting, config])
            losses.append(judged[max(chosen, key=chosen.__getitem__)] - judged[config])
        found[config] = 1 - math.exp(-statistics.fmean(losses))
    return found


_FAILED_RATE = 1e-9


def _log_rates(blocks: Sequence[Block], configs: Sequence[Config]) -> dict[Config, float]:
    """Mean logarithms of the rates."""
    return {
        config: statistics.fmean(math.log(block[config].rate or _FAILED_RATE) for block in blocks)
        for config in configs
    }


def noise(blocks: Sequence[Block]) -> float | None:
    """Relative spread of the same configuration measured again: the median over all of them.

    ``None`` where nothing was measured twice.
    """
    spreads = []
    for config in blocks[0]:
        rates = [block[config].rate for block in blocks]
        if len(rates) > 1 and min(rates) > 0:
            spreads.append(statistics.stdev(rates) / statistics.fmean(rates))
    return statistics.median(spreads) if spreads else None
