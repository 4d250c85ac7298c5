"""The difference of two runs, split into parts with their intervals."""

from __future__ import annotations

import dataclasses
import math
import statistics
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import TypeVar

from dlprof.advise.compare.costs import Costs, log_rate
from dlprof.advise.compare.pairing import Pair
from dlprof.advise.compare.parts import PartCode
from dlprof.advise.compare.sides import Side, side_of
from dlprof.records import Config, Estimate, Trial
from dlprof.stats import t_quantile

FIELDS: Mapping[PartCode, tuple[str, ...]] = MappingProxyType(
    {
        # Threads of the main process that spin while they wait take CPU time and are more threads:
        # told apart, the two would seem to cancel.
        "cpu": ("cpu_s", "worker_share", "threads"),
        "cores": ("affinity", "own_stretch"),
        "quota": ("quota_stretch",),
        "neighbours": ("neighbour_stretch",),
        "storage": ("io_s",),
        "receive": ("receive_s", "pin_s"),
        "copy": ("copy_s",),
        "step": ("step_s",),
        "settings": ("workers", "pin_thread"),
    }
)
"""Which costs belong to a part."""

_MOST_GROUPS = 20
"""Trials of one configuration are left out in at most so many groups, however many there are."""

_LARGEST_HALF = 50.0

MOST_CAUSES = 12
"""Every subset is looked at once: 4096 at this many."""

Parts = Mapping[PartCode, float]
_Cause = TypeVar("_Cause", bound=Hashable)


def split(pair: Pair) -> tuple[Estimate, dict[PartCode, Estimate]]:
    """Split the difference of a pair, ``ln(rate of B / rate of A)``: it, and what adds up to it.

    Only parts that can differ are among them, and the remainder.

    The intervals are jackknife ones: each trial of what was compared is left out once, and the
    spread of what then comes out, with Student's t, gives 95 % (Miller, *The jackknife: a review*,
    Biometrika 1974). They hold what varies between trials of a run, not what its closed form gets
    wrong: that is in the remainder.
    """
    whole = _parts(pair)
    total = math.fsum(whole.values())
    groups = list(_leaving_out(pair))
    degrees = sum(len(group) - 1 for group in groups)
    if len(groups) < 2 or min(map(len, groups)) < 2:
        return Estimate(value=total), {c: Estimate(value=value) for c, value in whole.items()}
    without = [[_parts(each) for each in group] for group in groups]
    factor = t_quantile(0.975, degrees)

    def interval(value: float, read: Callable[[Parts], float]) -> Estimate:
        error = math.sqrt(sum(_jackknife_variance([read(p) for p in group]) for group in without))
        half = min(_LARGEST_HALF, factor * error)
        return Estimate(value=value, low=value - half, high=value + half)

    return interval(total, lambda parts: math.fsum(parts.values())), {
        code: interval(value, lambda parts, code=code: parts.get(code, 0.0))  # type: ignore[misc]  # mypy can't type a default
        for code, value in whole.items()
    }


def _jackknife_variance(values: Sequence[float]) -> float:
    middle = statistics.fmean(values)
    return (len(values) - 1) / len(values) * math.fsum((value - middle) ** 2 for value in values)


def _leaving_out(pair: Pair) -> Iterator[list[Pair]]:
    """Per run and configuration that is compared, the pair without each of its trials in turn."""
    yield [
        dataclasses.replace(pair, trials_a=rest)
        for rest in _without_one(pair.trials_a, pair.config_a)
    ]
    yield [
        dataclasses.replace(pair, trials_b=rest)
        for rest in _without_one(pair.trials_b, pair.config_b)
    ]


def _without_one(trials: tuple[Trial, ...], config: Config) -> Iterator[tuple[Trial, ...]]:
    """The trials without each one, or each group, of a configuration; nothing if it is alone."""
    mine = [trial for trial in trials if trial.config == config]
    count = min(_MOST_GROUPS, len(mine))
    if count < 2:
        return
    for place in range(count):
        left_out = {id(trial) for trial in mine[place::count]}
        yield tuple(trial for trial in trials if id(trial) not in left_out)


def _parts(pair: Pair) -> dict[PartCode, float]:
    """The parts of one pair.

    With different settings, by way of what one of the runs measured of both; of two ways the mean.
    """
    if pair.same:
        return shared_out(*sides(pair))
    ways = []
    for config_a, config_b in pair.bridges:
        a, b = sides(dataclasses.replace(pair, config_a=config_a, config_b=config_b))
        near, far = sides(pair)
        settings = (a.log_rate - near.log_rate) + (far.log_rate - b.log_rate)
        ways.append({**shared_out(a, b), "settings": settings})
    if not ways:
        return shared_out(*sides(pair))
    codes = dict.fromkeys(code for way in ways for code in way)
    return {code: statistics.fmean(way.get(code, 0.0) for way in ways) for code in codes}


def sides(pair: Pair) -> tuple[Side, Side]:
    """Both sides of a pair."""
    a = side_of(pair.run_a, pair.config_a, pair.trials_a)
    return a, side_of(pair.run_b, pair.config_b, pair.trials_b)


def shared_out(a: Side, b: Side) -> dict[PartCode, float]:
    """The difference of two sides, shared out by the closed form; the remainder is its misfit."""
    total = b.log_rate - a.log_rate
    known = comparable(a, b)
    if known is None:
        return {"remainder": total}
    parts = shares(differing(*known), exchanging(*known))
    return {**parts, "remainder": total - math.fsum(parts.values())}


def comparable(a: Side, b: Side) -> tuple[Costs, Costs] | None:
    """The costs of both sides, what one of them doesn't tell left out of both."""
    if a.costs is None or b.costs is None:
        return None
    plain = Costs(cpu_s=1.0)
    neutral = {
        field: getattr(plain, field)
        for code in dict.fromkeys((*a.unknown, *b.unknown))
        for field in FIELDS[code]
    }
    one, two = (dataclasses.replace(side, **neutral) for side in (a.costs, b.costs))
    if one.affinity == two.affinity:
        # Where CPUs are as many, more waiting for them is no matter of how many there are.
        return _waiting_as_one(one), _waiting_as_one(two)
    return one, two


def _waiting_as_one(costs: Costs) -> Costs:
    both = costs.neighbour_stretch * costs.own_stretch
    return dataclasses.replace(costs, neighbour_stretch=both, own_stretch=1.0)


def differing(a: Costs, b: Costs) -> list[PartCode]:
    """The parts whose costs differ."""
    return [
        code
        for code, fields in FIELDS.items()
        if any(getattr(a, field) != getattr(b, field) for field in fields)
    ]


def exchanging(a: Costs, b: Costs) -> Callable[[frozenset[PartCode]], float]:
    """The log rate of A with some parts as in B."""

    def value(codes: frozenset[PartCode]) -> float:
        changed = {field: getattr(b, field) for code in codes for field in FIELDS[code]}
        return log_rate(dataclasses.replace(a, **changed))

    return value


def shares(
    causes: Sequence[_Cause], value: Callable[[frozenset[_Cause]], float]
) -> dict[_Cause, float]:
    """What each cause contributes to ``value(all) - value(none)``, whatever their order.

    The Shapley decomposition (Shapley 1953; Shorrocks, *Decomposition procedures for distributional
    analysis*, Journal of Economic Inequality 2013): a cause's share is the change that it makes
    when it is exchanged, averaged over all orders in which the causes can be exchanged one after
    another. The shares add up to the whole difference, and no order is preferred.

    Args:
        causes: All different, at most ``MOST_CAUSES``.
        value: The quantity where the given causes are exchanged and the others are not; called
            once for each subset.

    Raises:
        ValueError: If there are too many causes.
    """
    count = len(causes)
    if count > MOST_CAUSES:
        raise ValueError(f"{count} causes are too many to look at every subset")
    subsets = range(1 << count)
    values = [
        value(frozenset(cause for place, cause in enumerate(causes) if mask & 1 << place))
        for mask in subsets
    ]
    orders = [
        math.factorial(size) * math.factorial(count - size - 1) / math.factorial(count)
        for size in range(count)
    ]
    return {
        cause: math.fsum(
            orders[mask.bit_count()] * (values[mask | 1 << place] - values[mask])
            for mask in subsets
            if not mask & 1 << place
        )
        for place, cause in enumerate(causes)
    }
