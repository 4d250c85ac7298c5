"""What a gate can see on this machine: for ``dlprof check --self-test``."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from dlprof.gate.look import fail_margin, fraction_of
from dlprof.gate.views import Reading, read_quad
from dlprof.records import CheckPlan, Quad


@dataclasses.dataclass(frozen=True, slots=True)
class Sight:
    """The smallest slowdown that a look would have called a failure.

    Attributes:
        quads: At how many quads.
        slowdown: Of the service time, as a fraction.
    """

    quads: int
    slowdown: float


def sights(plan: CheckPlan, quads: Sequence[Quad]) -> tuple[Sight, ...]:
    """What each look of the service time would have caught, had the change been slower.

    Args:
        plan: The rules.
        quads: Of both sides running the same code.

    Returns:
        One entry per look that there are quads for.
    """
    rule = next(rule for rule in plan.rules if rule.name == "service")
    found = (read_quad(quad, rule) for quad in quads if quad.series == rule.series)
    readings = [reading for reading in found if isinstance(reading, Reading)]
    return tuple(
        Sight(look, fraction_of(fail_margin(rule, readings[:look])))
        for look in rule.looks
        if look <= len(readings)
    )
