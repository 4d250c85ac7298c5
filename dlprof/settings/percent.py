"""Options that take a share: ``5%``, ``0.05`` or ``5``."""

from __future__ import annotations

from dlprof.errors import UsageError
from dlprof.units import quoted


def check_fraction(value: object, name: str, *, low: float, high: float) -> float:
    """A share that a caller gave as a number.

    Args:
        value: What was given.
        name: Of the argument, for the error.
        low: Least fraction.
        high: Greatest fraction.

    Raises:
        UsageError: It is no number, or out of range.
    """
    if isinstance(value, bool) or not isinstance(value, int | float) or not low <= value <= high:
        raise UsageError(
            f"{name}={value!r} is no fraction from {low:g} to {high:g}",
            hint=f"Give a number such as {low:g}: 0.05 is 5 %.",
        )
    return float(value)


def parse_share(raw: str, origin: str, *, low: float, high: float) -> float:
    """A share as a fraction; a bare number from 1 on is meant in percent.

    Args:
        raw: As the user wrote it.
        origin: Where it was given, for the error.
        low: Least fraction.
        high: Greatest fraction.

    Raises:
        UsageError: It is no number, or out of range.

    >>> parse_share("5%", "--fail-above", low=0, high=1)
    0.05
    >>> parse_share("99", "--confidence", low=0.5, high=1), parse_share("0.99", "", low=0, high=1)
    (0.99, 0.99)
    """
    hint = f"Give a share from {100 * low:.3g}% to {100 * high:.6g}%, such as {100 * low:.3g}%."
    text = raw.strip()
    try:
        number = float(text.removesuffix("%"))
    except ValueError:
        raise UsageError(f"{origin}: {quoted(raw)} is no share", hint=hint) from None
    share = number / 100 if text.endswith("%") or number >= 1 else number
    if not low <= share <= high:
        raise UsageError(f"{origin}: {quoted(raw)} is out of range", hint=hint)
    return share
