"""How fast a core of another machine is, relative to the calibrated one."""

from __future__ import annotations

import dataclasses
import math
import re

from dlprof.records import Machine

_CLOCK = re.compile(r"([0-9]{1,2}(?:\.[0-9]{1,3})?)\s*GHz\b", re.IGNORECASE)

_BY_CLOCK = 1.3
"""A factor to either side: cores of like clock differ by about this between generations."""

_UNKNOWN = 1.5
"""The same where not even clocks are known."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class CoreSpeed:
    """Speed of a core relative to that where the calibration was taken.

    Attributes:
        value: 0.8 for a core that takes 1.25 times as long.
        factor: The true one may be this many times smaller or larger; 1 where it is known.
        doubt: Where the value comes from, if that is a guess; empty otherwise.
    """

    value: float
    factor: float = 1.0
    doubt: str = ""


def core_speed(
    here: Machine, there: Machine, *, ghz: float | None = None, given: float | None = None
) -> CoreSpeed:
    """The speed as given, else by the CPU models, else by their clocks, else 1.

    Args:
        here: Where the calibration was taken.
        there: Where it is to be applied.
        ghz: Clock of ``there``, where its profile says.
        given: As the user says.
    """
    if given is not None:
        return CoreSpeed(value=given)
    if there.fingerprint == here.fingerprint or there.cpu_model == here.cpu_model:
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
                "give --speed where you know better"
            ),
        )
    return CoreSpeed(
        value=1.0,
        factor=_UNKNOWN,
        doubt=(
            f"a core of {there.hostname} is taken to be as fast as one of {here.hostname}, for "
            "lack of anything better: give --speed"
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
