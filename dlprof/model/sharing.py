"""How much computing slows down where threads share cores, without simulating it.

``N`` threads that compute for ``D`` seconds and wait for ``Z`` in turn, on ``C`` cores that all who
compute share evenly, are the machine-repairman model. Its stationary distribution depends on the
lengths only through their means (Kelly 1979, networks of quasi-reversible queues):

    P(n + 1) / P(n) = (N - n) * (D / Z) / min(n + 1, C)

for ``n`` threads that compute; beside ``B`` threads of others that always do, ``n`` of ours get
``C * n / (n + B)`` of the cores.
"""

from __future__ import annotations

import math

_SURE = 1e-12


def slowdown(
    threads: float, *, compute_s: float, wait_s: float, cores: float, beside: float = 0.0
) -> float:
    """Mean time of computing over that on a core of one's own.

    Args:
        threads: ``N``; between whole numbers the result is interpolated.
        compute_s: ``D``.
        wait_s: ``Z``.
        cores: ``C``; may be a fraction.
        beside: ``B``, threads of others that compute all the time.

    Returns:
        1 or more.
    """
    if compute_s <= 0 or threads <= 0:
        return 1.0
    low = math.floor(threads)
    between = threads - low
    ratio = compute_s / wait_s if wait_s > 0 else math.inf
    value = _slowdown(max(low, 1), ratio, cores, beside)
    if between > 0:
        value += between * (_slowdown(low + 1, ratio, cores, beside) - value)
    return value


def _slowdown(threads: int, ratio: float, cores: float, beside: float) -> float:
    if math.isinf(ratio) or threads + beside <= cores:
        return max(1.0, (threads + beside) / cores)
    weight, present, running = 1.0, 0.0, 0.0
    for count in range(1, threads + 1):
        served = min(count, cores * count / (count + beside))
        weight *= (threads - count + 1) * ratio / served
        present += weight * count
        running += weight * served
        if weight > 1 / _SURE:  # only proportions matter
            present, running, weight = present / weight, running / weight, 1.0
        elif weight < _SURE * present and ratio * (threads - count) < served:
            break
    return max(1.0, present / running)
