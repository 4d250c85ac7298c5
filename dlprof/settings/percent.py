"""Shares: the texts of the command line and the numbers of Python mean the same."""

from __future__ import annotations

import math

from dlprof.errors import UsageError
from dlprof.units import quoted


def fail_above_of(given: object, origin: str) -> float:
    """How much slower loading may get, as a fraction from 0.001 (0.1 %) to 10 (1000 %).

    Args:
        given: A text such as ``5%``, ``5`` or ``0.05``, or a number, which is a fraction below 1.
        origin: The option or argument, for the error.

    Raises:
        UsageError: It is no share, may be meant in two ways, or is out of range.

    >>> fail_above_of("5%", "--fail-above"), fail_above_of(0.05, "fail_above")
    (0.05, 0.05)
    """
    return _share(given, origin, low=0.001, high=10.0)


def confidence_of(given: object, origin: str) -> float:
    """How sure a failing check is, as a fraction from 0.5 to 0.99999.

    Args:
        given: A text such as ``99%``, ``99`` or ``0.99``, or a number, which is a fraction.
        origin: The option or argument, for the error.

    Raises:
        UsageError: It is no share, may be meant in two ways, or is out of range.

    >>> confidence_of("99", "--confidence"), confidence_of(0.99, "confidence")
    (0.99, 0.99)
    """
    return _share(given, origin, low=0.5, high=0.99999)


def _share(given: object, origin: str, *, low: float, high: float) -> float:
    """A share as a fraction; a text's bare number from 1 on is meant in percent."""
    hint = f"Give a share from {100 * low:.3g}% to {100 * high:.6g}%, such as {100 * low:.3g}%."
    text = str(given).strip()
    shown = quoted(given) if isinstance(given, str) else text
    try:
        number = float(text.removesuffix("%"))
    except ValueError:
        raise UsageError(f"{origin}: {shown} is not a share", hint=hint) from None
    if not isinstance(given, str) and 1 <= number < math.inf:
        raise UsageError(
            f"{origin}: {shown} may mean {number:g}% or {100 * number:g}%",
            hint=f"Give a fraction below 1, or a text such as '{number:g}%'.",
        )
    share = number / 100 if text.endswith("%") or number >= 1 else number
    if not low <= share <= high:
        raise UsageError(f"{origin}: {shown} is out of range", hint=hint)
    return share
