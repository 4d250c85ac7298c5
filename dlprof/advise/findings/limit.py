"""Who holds the others up: the pass before the rules, so that no two claim the same time."""

from __future__ import annotations

from typing import Literal

from dlprof.advise.findings.costs import Costs
from dlprof.advise.findings.view import View

Limit = Literal["consumer", "main", "pin", "workers", "waiting", "unknown"]
"""``workers``: making batches (in main, without workers); ``waiting``: nobody is busy enough, so
that they wait for each other."""

CONSUMER_WAITS = 0.1
"""A consumer that waits less than this is not held up: receiving a batch takes main itself
several hundredths of a step of 5 ms, whatever the loader's settings."""

_MAIN_SHARE = 0.6
"""Share of the consumer's wait that is main's own work, from which main is the limit."""

_NOISY_WAITS = 0.15
"""The same on a machine that others disturb."""

_OWN_SHARE = 0.3
_FAR_MORE = 1.3
"""Main's work for a batch over that of the others', from which it is the limit."""

_BUSY = 0.75
"""Share of time in which a resource works, from which it is the limit."""


def limit_of(view: View) -> Limit:
    """The resource that sets the rate."""
    held_up = _NOISY_WAITS if view.is_noisy else CONSUMER_WAITS
    if view.evidence.has_step and view.wait is not None and view.wait <= held_up:
        return "consumer"
    costs = view.costs
    if costs is None:
        return "unknown"
    if not view.workers:
        return "workers"
    pinning = costs.pin_s / max(1e-12, costs.period_s)
    main, busy = main_share(view), view.busy or 0.0
    if pinning >= _BUSY and pinning >= main:
        return "pin"
    if (main >= _MAIN_SHARE and main > busy) or _asks_most_of_main(view, costs):
        return "main"
    return "workers" if busy >= _BUSY else "waiting"


def main_share(view: View) -> float:
    """Share of the consumer's wait in which main itself works for the loader."""
    costs = view.costs
    if costs is None or costs.wait_s <= 0:
        return 0.0
    return min(1.0, costs.main_s / costs.wait_s)


def _asks_most_of_main(view: View, costs: Costs) -> bool:
    """Whether main has more to do for a batch than each worker, and than all cores together.

    As it would be with cores at hand, so that it shows on a crowded machine too.
    """
    beside_s = max(
        (costs.making.own_s + costs.put_cpu_s) / max(1, view.workers),
        costs.cpu_s / view.cores,
    )
    return costs.main_s >= _FAR_MORE * beside_s and main_share(view) >= _OWN_SHARE
