"""How fast cores are: those of another machine, and of this one while it was calibrated."""

from __future__ import annotations

import dataclasses
import math
import re
import statistics
from collections.abc import Iterable

from dlprof.records import CoreSpeeds, Machine, Run, Trial
from dlprof.stats import SPEED_EXPONENT, SPEED_EXPONENT_SD

_CLOCK = re.compile(r"([0-9]{1,2}(?:\.[0-9]{1,3})?)\s*GHz\b", re.IGNORECASE)

_BY_SPEED = 1.15
"""A factor to either side, not measured but assumed: how far kinds of work differ between CPU
models on which the probe's loop is as fast."""

_BY_CLOCK = 1.3
"""The same of cores of like clock, between generations."""

_UNKNOWN = 1.5
"""The same where not even clocks are known."""

_BETTER = "give --speed, or --machine with what dlprof machine --save writes there"

_ENOUGH = 2
"""Degrees of freedom from which the speeds of trials show how far they spread."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class CoreSpeed:
    """Speed of a core relative to that where the calibration was taken.

    Attributes:
        value: 0.8 for a core that takes 1.25 times as long.
        factor: The true one may be this many times smaller or larger; 1 where it is known.
        doubt: Where the value comes from, if that is not what was given; empty otherwise.
    """

    value: float
    factor: float = 1.0
    doubt: str = ""


def core_speed(
    here: Machine, there: Machine, *, ghz: float | None = None, given: float | None = None
) -> CoreSpeed:
    """The speed as given, else as measured on both, else by CPU models, clocks, or 1.

    Args:
        here: Where the calibration was taken, with the usual speed of its cores.
        there: Where it is to be applied.
        ghz: Clock of ``there``, where its profile says.
        given: As the user says.
    """
    if given is not None:
        return CoreSpeed(value=given)
    if there.fingerprint == here.fingerprint:
        return CoreSpeed(value=1.0)
    mine, theirs = here.core_speed, there.core_speed
    if mine is not None and theirs is not None and mine.unit == theirs.unit:
        log = math.log(theirs.median / mine.median)
        alike = there.cpu_model == here.cpu_model
        far = (
            2 * SPEED_EXPONENT_SD * log,
            math.log(theirs.high / theirs.low) / 2,
            0.0 if alike else math.log(_BY_SPEED),
        )
        value = math.exp(SPEED_EXPONENT * log)
        return CoreSpeed(
            value=value,
            factor=math.exp(math.hypot(*far)),
            doubt=(
                f"a core of {there.hostname} is taken to be {value:.2f} times as fast as one of "
                f"{here.hostname}, by the speeds measured on both ({theirs.median:,.0f} and "
                f"{mine.median:,.0f} {mine.unit})"
            ),
        )
    if there.cpu_model == here.cpu_model:
        return CoreSpeed(value=1.0)
    clock_here, clock_there = clock_of(here.cpu_model), ghz or clock_of(there.cpu_model)
    if clock_here and clock_there:
        value = clock_there / clock_here
        return CoreSpeed(
            value=value,
            factor=_BY_CLOCK,
            doubt=(
                f"a core of {there.hostname} is taken to be {value:.2f} times as fast as one of "
                f"{here.hostname}, by clock rates alone ({clock_there:g} and {clock_here:g} GHz): "
                f"{_BETTER}"
            ),
        )
    return CoreSpeed(
        value=1.0,
        factor=_UNKNOWN,
        doubt=(
            f"a core of {there.hostname} is taken to be as fast as one of {here.hostname}, for "
            f"lack of anything better: {_BETTER}"
        ),
    )


def clock_of(cpu_model: str) -> float | None:
    """GHz in the name of a CPU model.

    >>> clock_of("Intel(R) Xeon(R) Platinum 8168 CPU @ 2.70GHz")
    2.7
    """
    found = _CLOCK.search(cpu_model)
    clock = float(found[1]) if found else 0.0
    return clock if clock > 0 and math.isfinite(clock) else None


def usual_speed(run: Run) -> CoreSpeeds | None:
    """The usual speed of a machine's cores: that of the median trial of a run, and its extremes.

    Of trials that kept at most one core busy, where there are any: a machine that is measured by
    itself is idle, too, and cores that are busy together slow each other down.
    """
    groups = _log_speeds(run.trials)
    few = [log for busy, logs in groups.items() if busy <= 1 for log in logs]
    known = few or [log for logs in groups.values() for log in logs]
    if not known:
        return None
    middle, low, high = map(math.exp, (statistics.median(known), min(known), max(known)))
    unit = CoreSpeeds.unit_of(run.header.python_version)
    return CoreSpeeds(median=middle, low=low, high=high, unit=unit)


def speed_error(trials: Iterable[Trial]) -> float | None:
    """How far the speed of a loader's computing spreads by that of the cores.

    Returns:
        Standard deviation of its logarithm between windows of trials with as many busy cores;
        ``None`` where too few of them know the speed.
    """
    groups = _log_speeds(trials).values()
    free = sum(len(logs) - 1 for logs in groups)
    if free < _ENOUGH:
        return None
    squares = math.fsum((x - statistics.fmean(logs)) ** 2 for logs in groups for x in logs)
    return SPEED_EXPONENT * math.sqrt(squares / free)


def _log_speeds(trials: Iterable[Trial]) -> dict[int, list[float]]:
    """Logarithms of the cores' speed in the windows of trials, by how many cores these kept busy.

    Cores that are busy together slow each other down, and that is the loader's own doing.
    """
    groups: dict[int, list[float]] = {}
    for trial in trials:
        speed, own = trial.usage.core_speed, trial.usage.own_cpu_cores
        if trial.outcome == "completed" and speed is not None and speed > 0:
            groups.setdefault(round(own or 0.0), []).append(math.log(speed))
    return groups
