"""The difference of two runs, split into parts with their intervals."""

from __future__ import annotations

import dataclasses
import itertools
import math
import statistics
from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import TypeVar

from dlprof.advise.compare.pairing import Chosen, bridges
from dlprof.advise.compare.parts import KINDS, PartCode
from dlprof.advise.compare.sides import Costs, Side, side_of
from dlprof.records import Estimate
from dlprof.stats import t_quantile

_Cause = TypeVar("_Cause", bound=Hashable)


def split(a: Chosen, b: Chosen) -> tuple[Estimate, dict[PartCode, Estimate]]:
    """Split the difference of two, ``ln(rate of B / rate of A)``: it, and what adds up to it.

    Only parts that can differ are among them, and the remainder.

    The intervals are jackknife ones: each trial of what was compared is left out once, and the
    spread of what then comes out, with Student's t, gives 95 % (Miller, *The jackknife: a review*,
    Biometrika 1974). They hold what varies between trials of a run, not what its closed form gets
    wrong: that is in the remainder.
    """
    whole = _parts(a, b)
    without = [[_parts(each, b) for each in a.leaving_out()]]
    without.append([_parts(a, each) for each in b.leaving_out()])
    degrees = sum(len(group) - 1 for group in without)

    def interval(read: Callable[[Mapping[PartCode, float]], float]) -> Estimate:
        value = read(whole)
        if not all(without):
            return Estimate(value=value)
        variance = sum((len(some) - 1) * statistics.pvariance(map(read, some)) for some in without)
        half = t_quantile(0.975, degrees) * math.sqrt(variance)
        return Estimate(value=value, low=value - half, high=value + half)

    def part(code: PartCode) -> Estimate:
        return interval(lambda parts: parts.get(code, 0.0))

    total = interval(lambda parts: math.fsum(parts.values()))
    return total, {code: part(code) for code in whole}


def _parts(a: Chosen, b: Chosen) -> dict[PartCode, float]:
    """The parts of two that are compared.

    With different settings, by way of what one of the runs measured of both; of two ways the mean.
    """
    near, far = side_of(a), side_of(b)
    ways = []
    for one, two in bridges(a, b):
        side_a, side_b = side_of(one), side_of(two)
        settings = (side_a.log_rate - near.log_rate) + (far.log_rate - side_b.log_rate)
        ways.append({**_shared_out(side_a, side_b), "settings": settings})
    ways = ways or [_shared_out(near, far)]
    codes = dict.fromkeys(code for way in ways for code in way)
    return {code: statistics.fmean(way.get(code, 0.0) for way in ways) for code in codes}


def _shared_out(a: Side, b: Side) -> dict[PartCode, float]:
    """The difference of two sides, shared out by the closed form; the remainder is its misfit."""
    total = b.log_rate - a.log_rate
    known = comparable(a, b)
    if known is None:
        return {"remainder": total}
    one, two = known
    differing = [
        code
        for code, kind in KINDS.items()
        if any(getattr(one, field) != getattr(two, field) for field in kind.costs)
    ]
    parts = shares(differing, exchanging(one, two))
    return {**parts, "remainder": total - math.fsum(parts.values())}


def comparable(a: Side, b: Side) -> tuple[Costs, Costs] | None:
    """The costs of both sides, what one of them doesn't show left out of both."""
    if a.costs is None or b.costs is None:
        return None
    hidden = [field for code in (*a.unknown, *b.unknown) for field in KINDS[code].costs]
    neutral = {field: getattr(Costs(cpu_s=1.0), field) for field in hidden}
    one, two = (dataclasses.replace(side, **neutral) for side in (a.costs, b.costs))
    if one.affinity == two.affinity:
        # Where CPUs are as many, more waiting for them is no matter of how many there are.
        one, two = (
            dataclasses.replace(
                side, neighbour_stretch=side.neighbour_stretch * side.own_stretch, own_stretch=1.0
            )
            for side in (one, two)
        )
    return one, two


def exchanging(a: Costs, b: Costs) -> Callable[[frozenset[PartCode]], float]:
    """The log rate of A with some parts as in B."""

    def value(codes: frozenset[PartCode]) -> float:
        changed = {field: getattr(b, field) for code in codes for field in KINDS[code].costs}
        return dataclasses.replace(a, **changed).log_rate

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
        causes: All different; each more doubles the work.
        value: The quantity where the given causes are exchanged and the others are not; called
            once for each subset.
    """
    count = len(causes)
    sizes = (itertools.combinations(causes, size) for size in range(count + 1))
    values = {some: value(some) for some in map(frozenset, itertools.chain.from_iterable(sizes))}
    return {
        cause: math.fsum(
            # In so large a share of all orders exactly these come before it.
            (values[some | {cause}] - values[some]) / count / math.comb(count - 1, len(some))
            for some in values
            if cause not in some
        )
        for cause in causes
    }
