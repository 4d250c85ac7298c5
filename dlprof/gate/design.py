"""In which order the sides are measured: interleaved, and at random, so that drift hits both."""

from __future__ import annotations

import random
from collections.abc import Sequence

from dlprof.records.gate import Quad, Series, Side

SIDES: dict[str, Side] = {"A": "base", "B": "change"}
"""The letters of an order."""

_QUADS = ("ABBA", "BAAB")
_PAIRS = ("AB", "BA")


def order_of(seed: int, series: Series, number: int) -> str:
    """The order of the blocks of one quad, a fair coin's choice.

    Each quad has a coin of its own, so that a check that goes on needs no state. The series
    ``start`` is measured in pairs, since starts are long.

    Args:
        seed: Of the whole check.
        series: What is measured.
        number: Of the quad within its series, from 0.
    """
    choices = _PAIRS if series == "start" else _QUADS
    return random.Random(f"{seed}/{series}/{number}").choice(choices)


def cores_of(cores: Sequence[int], number: int) -> tuple[int, ...]:
    """The cores that all blocks of a quad are held to: the same for both sides.

    They rotate from quad to quad, so that one which is always slower favors nobody.

    Args:
        cores: All that may be used.
        number: Of the quad within its series, from 0.

    >>> cores_of([0, 1, 2], 4)
    (1, 2, 0)
    """
    first = number % len(cores) if cores else 0
    return (*cores[first:], *cores[:first])


def is_balanced(quad: Quad) -> bool:
    """Whether a quad has as many blocks of the one side as of the other, and at most two."""
    return quad.order in (*_QUADS, *_PAIRS)
