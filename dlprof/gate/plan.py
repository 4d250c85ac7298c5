"""The rules of a check: limits, looks, and how the probability of error is shared out.

Each metric is judged at a few looks, as soon as so many quads are there. Every view of a metric
spends the same ``alpha`` at each of its looks, so that the sum over views and looks bounds the
probability of a false alarm whatever the quads have to do with each other (Bonferroni). The service
time has two views and five looks and with a confidence of 99 % spends
``0.01 / (2 * 5) = 0.001`` on each; every other metric spends as much on each look of its own. To
pass, all views have to be below the limit, so that each may spend the share of all of them
(intersection-union; Berger 1982).
"""

from __future__ import annotations

import dataclasses
import math
import random
from collections.abc import Collection, Sequence
from typing import get_args

from dlprof.gate.signed_rank import least_differences
from dlprof.records import Config
from dlprof.records.gate import CheckPlan, GateName, GateRule, Quad, Series, Side

LOOKS = (10, 15, 25, 45, 90)
"""Numbers of quads at which the load metrics are judged. On a quiet machine a check ends at the
first. The later ones are for machines whose cores change their speed from one moment to the next,
by a factor of two where others use the same hyper-threads: each quad shows little there."""

THRESHOLD = 0.05  # ``--fail-above`` where it isn't given

CONFIDENCE = 0.99  # ``--confidence`` where it isn't given

_MIB = float(1 << 20)
_SERVICE_VIEWS = ("mean", "low_quartile")


ALL_GATES: tuple[GateName, ...] = get_args(GateName)
"""Every metric that can be judged, in the order of a report."""


def make_plan(
    *,
    fail_above: float = THRESHOLD,
    gates: Collection[str] = ALL_GATES,
    confidence: float = CONFIDENCE,
    seed: int = 0,
    loader_difference: str = "",
    in_main: bool = False,
    keeping: Collection[Side] = (),
    epochs: int = 1,
) -> CheckPlan:
    """The rules of one target's check.

    ``fail_above`` is what service time, receiving and wall time may be slower by, as a fraction,
    and ``confidence`` that code which is not slower than that does not fail, by its service time.
    That one is always judged, the other ``gates`` of ``ALL_GATES`` if they are measured. Where both
    sides load ``in_main``, wall time is service time and little else, so that nothing waits for it.
    Sides that are ``keeping`` samples load those of a block in so many ``epochs``.
    """
    if unknown := set(gates) - set(ALL_GATES):
        raise ValueError(f"there is no gate {min(unknown)!r}")
    if not (0.5 <= confidence < 1 and fail_above > 0):
        raise ValueError("a plan needs a confidence from 0.5 to below 1, and a limit")
    alpha = (1 - confidence) / (len(_SERVICE_VIEWS) * len(LOOKS))
    alpha = round(alpha, 15)  # 1 - 0.99 is not 0.01
    wanted = {"service", *gates}
    rules = tuple(
        dataclasses.replace(rule, holds_up=not (in_main and rule.name == "wall"))
        for rule in _rules(fail_above, alpha)
        if rule.name in wanted
    )
    return CheckPlan(
        rules=rules,
        confidence=confidence,
        seed=seed,
        loader_difference=loader_difference,
        keeping=tuple(side for side in SIDES.values() if side in keeping),
        epochs=epochs,
        error_bound=math.fsum(rule.alpha * len(rule.views) * len(rule.looks) for rule in rules),
    )


def _rules(fail_above: float, alpha: float) -> tuple[GateRule, ...]:
    # Quads in which a side's own two blocks differ by more (as a logarithm) are left out: the
    # cores changed their speed. The bound looks at no difference between the sides,
    # and a fair coin decides which blocks are whose, so that what is left is as symmetric as
    # all of it.
    service = GateRule(
        name="service",
        series="load",
        views=_SERVICE_VIEWS,
        scale="ratio",
        threshold=fail_above,
        alpha=alpha,
        alpha_pass=len(_SERVICE_VIEWS) * alpha,
        looks=looks_for(alpha, LOOKS),
        most_change=0.1,
        # Where its memory happens to lie makes a process up to twice as slow for as long as it
        # lives: the same code in two processes differs by 2 to 3 % where Python computes.
        confirmed=True,
    )
    wall = dataclasses.replace(service, name="wall", views=("value",), alpha_pass=None)
    # Receiving may always take 2 % of the service time more: below that nobody waits for it.
    receive = dataclasses.replace(wall, name="receive", scale="difference", service_floor=0.02)
    # Starts may always take a quarter of a second more, whatever share of them that is. They take
    # long and vary little, so that fewer looks do.
    startup = dataclasses.replace(
        wall,
        name="startup",
        series="start",
        scale="difference",
        threshold=0.20,
        floor=0.25,
        looks=looks_for(alpha, (10, 14, 20)),
        most_change=None,
        confirmed=False,
    )
    memory = dataclasses.replace(
        wall,
        name="memory",
        scale="difference",
        threshold=0.10,
        floor=64 * _MIB,
        most_change=None,
        confirmed=False,
    )
    return (
        service,
        receive,
        wall,
        startup,
        dataclasses.replace(startup, name="epoch_turnover"),
        memory,
        dataclasses.replace(memory, name="shared_memory", floor=16 * _MIB),
    )


def looks_for(alpha: float, looks: tuple[int, ...]) -> tuple[int, ...]:
    """The looks that can decide anything at ``alpha``, none before so many quads are there.

    With a high confidence ten quads can't decide; the first look then waits for as many as can.
    """
    least = least_differences(alpha)
    later = tuple(look for look in looks if look > least)
    return (max(least, looks[0]), *later[-(len(looks) - 1) :])


def loader_difference(base: Config | None, change: Config | None) -> str:
    """How two loaders' settings differ, in words; empty where they do the same.

    >>> loader_difference(Config(num_workers=4), Config(num_workers=2))
    'num_workers 4 -> 2'
    """
    if base is None or change is None:
        return ""
    one, two = base.canonical(), change.canonical()
    pairs = (
        (field.name, getattr(one, field.name), getattr(two, field.name))
        for field in dataclasses.fields(Config)
    )
    return ", ".join(f"{name} {old} -> {new}" for name, old, new in pairs if old != new)


SIDES: dict[str, Side] = {"A": "base", "B": "change"}  # the letters of an order

_QUADS = ("ABBA", "BAAB")
_PAIRS = ("AB", "BA")


def order_of(seed: int, series: Series, number: int) -> str:
    """The order of the blocks of one quad, a fair coin's choice.

    Each quad has a coin of its own, so that a check that goes on needs no state. The series
    ``start`` is measured in pairs, since starts are long.
    """
    choices = _PAIRS if series == "start" else _QUADS
    return random.Random(f"{seed}/{series}/{number}").choice(choices)


def cores_of(cores: Sequence[int], number: int) -> tuple[int, ...]:
    """The cores that all blocks of a quad are held to: the same for both sides.

    They rotate from quad to quad, so that one which is always slower favors nobody.

    >>> cores_of([0, 1, 2], 4)
    (1, 2, 0)
    """
    first = number % len(cores) if cores else 0
    return (*cores[first:], *cores[:first])


def is_balanced(quad: Quad) -> bool:
    """Whether a quad has as many blocks of the one side as of the other, and at most two."""
    return quad.order in (*_QUADS, *_PAIRS)
