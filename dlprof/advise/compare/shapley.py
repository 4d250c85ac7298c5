"""A difference shared out among its causes, whatever their order.

The Shapley decomposition (Shapley 1953; Shorrocks, *Decomposition procedures for distributional
analysis*, Journal of Economic Inequality 2013): a cause's share is the change that it makes when it
is exchanged, averaged over all orders in which the causes can be exchanged one after another. The
shares add up to the whole difference, and no order is preferred.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Sequence
from typing import TypeVar

_Cause = TypeVar("_Cause", bound=Hashable)

MOST_CAUSES = 12
"""Every subset is looked at once: 4096 at this many."""


def shares(
    causes: Sequence[_Cause], value: Callable[[frozenset[_Cause]], float]
) -> dict[_Cause, float]:
    """What each cause contributes to ``value(all) - value(none)``.

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
    values = [value(_subset(causes, mask)) for mask in range(1 << count)]
    orders = [
        math.factorial(size) * math.factorial(count - size - 1) / math.factorial(count)
        for size in range(count)
    ]
    return {
        cause: math.fsum(
            orders[mask.bit_count()] * (values[mask | 1 << place] - values[mask])
            for mask in range(1 << count)
            if not mask & 1 << place
        )
        for place, cause in enumerate(causes)
    }


def _subset(causes: Sequence[_Cause], mask: int) -> frozenset[_Cause]:
    return frozenset(cause for place, cause in enumerate(causes) if mask & 1 << place)
