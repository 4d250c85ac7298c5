"""Who holds the others up: the pass before the rules, so that no two claim the same time."""

from __future__ import annotations

from typing import Literal

from dlprof.advise.findings.costs import Costs
from dlprof.advise.findings.view import View, stage_of

Limit = Literal["consumer", "main", "pin", "workers", "waiting", "unknown"]
"""``workers``: making batches (in main, without workers); ``waiting``: nobody is busy enough, so
that they wait for each other."""

CONSUMER_WAITS = 0.1
"""A consumer that waits less than this is not held up: receiving a batch takes main itself
several hundredths of a step of 5 ms, whatever the loader's settings."""

_MAIN_SHARE = 0.6
"""Share of the consumer's wait that is main's own work, from which main is the limit."""

_OWN_SHARE = 0.4
_IDLE = 0.35
"""Workers that are busy for less hold nobody up."""

_BUSY = 0.75
"""Share of time in which a resource works, from which it is the limit."""


def limit_of(view: View) -> Limit:
    """The resource that sets the rate."""
    if view.evidence.has_step and view.wait is not None and view.wait <= CONSUMER_WAITS:
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
    if (main >= _MAIN_SHARE and main > busy) or _piles_before_main(view, costs, busy):
        return "main"
    return "workers" if busy >= _BUSY else "waiting"


def main_share(view: View) -> float:
    """Share of the consumer's wait in which main itself works for the loader."""
    costs = view.costs
    if costs is None or costs.wait_s <= 0:
        return 0.0
    return min(1.0, costs.main_s / costs.wait_s)


def _piles_before_main(view: View, costs: Costs, busy: float) -> bool:
    """Whether batches lie made while main is at work, or waits for a core to work on them."""
    queue = stage_of(view, "queue")
    if queue is None or costs.wait_s <= 0 or busy >= _IDLE or view.evidence.has_step:
        return False
    if main_share(view) < _OWN_SHARE:
        return False  # it is short of cores, not of time
    at_work = (costs.receive.wall_s + costs.dispatch.wall_s) / costs.wait_s
    return at_work >= _BUSY and queue.mean_s >= costs.period_s
