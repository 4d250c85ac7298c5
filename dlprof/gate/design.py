"""In which order the sides are measured: interleaved, and at random, so that drift hits both."""

from __future__ import annotations

import random

from dlprof.records.gate import Design, Quad, Series, Side

SIDES: dict[str, Side] = {"A": "base", "B": "change"}
"""The letters of an order."""

_QUADS = ("ABBA", "BAAB")
_PAIRS = ("AB", "BA")


def order_of(seed: int, series: Series, number: int, design: Design = "abba") -> str:
    """The order of the blocks of one quad, a fair coin's choice.

    Each quad has a coin of its own, so that a check that goes on needs no state. The series
    ``start`` is measured in pairs, since starts are long; in the design ``duet`` both sides of a
    pair run at the same time, and the order is that in which they are started.

    Args:
        seed: Of the whole check.
        series: What is measured.
        number: Of the quad within its series, from 0.
        design: The check's design.
    """
    choices = _PAIRS if series == "start" or design == "duet" else _QUADS
    return random.Random(f"{seed}/{series}/{number}").choice(choices)


def is_balanced(quad: Quad) -> bool:
    """Whether a quad has as many blocks of the one side as of the other, and at most two."""
    return quad.order in (*_QUADS, *_PAIRS)
