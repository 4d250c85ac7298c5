"""How much computing slows down where threads share cores, without simulating it.

``N`` threads that compute for ``D`` seconds and wait for ``Z`` in turn, on ``C`` cores that all who
compute share evenly, are the machine-repairman model. Its stationary distribution depends on the
lengths only through their means (Kelly 1979, networks of quasi-reversible queues):

    P(n + 1) / P(n) = (N - n) * (D / Z) / min(n + 1, C)

for ``n`` threads that compute.
"""

from __future__ import annotations

import math

_SURE = 1e-12


def slowdown(threads: float, *, compute_s: float, wait_s: float, cores: float) -> float:
    """Mean time of computing over that on a core of one's own.

    Args:
        threads: ``N``; between whole numbers the result is interpolated.
        compute_s: ``D``.
        wait_s: ``Z``.
        cores: ``C``; may be a fraction.

    Returns:
        1 or more.
    """
    if compute_s <= 0 or threads <= 0:
        return 1.0
    low = math.floor(threads)
    between = threads - low
    value = _slowdown(max(low, 1), compute_s, wait_s, cores)
    if between > 0:
        value += between * (_slowdown(low + 1, compute_s, wait_s, cores) - value)
    return value


def _slowdown(threads: int, compute_s: float, wait_s: float, cores: float) -> float:
    if wait_s <= 0 or threads <= cores:
        return max(1.0, threads / cores)
    ratio = compute_s / wait_s
    weight, present, running = 1.0, 0.0, 0.0
    for count in range(1, threads + 1):
        served = min(count, cores)
        weight *= (threads - count + 1) * ratio / served
        present += weight * count
        running += weight * served
        if weight > 1 / _SURE:  # only proportions matter
            present, running, weight = present / weight, running / weight, 1.0
        elif weight < _SURE * present and ratio * (threads - count) < served:
            break
    return max(1.0, present / running)
