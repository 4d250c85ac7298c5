"""Where nobody is busy enough: batches, queues and workers that wait for each other."""

from __future__ import annotations

import dataclasses
import math
import statistics

from dlprof.advise.findings.claims import Claim
from dlprof.advise.findings.gains import bound, gain_of, predicted_gain
from dlprof.advise.findings.view import HELPERS, STARVED, View
from dlprof.advise.thresholds import PAYS
from dlprof.advise.wording import percent
from dlprof.records import BatchCosts, Config
from dlprof.units import format_duration

_HELD_UP, _PILE = 0.4, 1.0
"""Batches that lie ready and out of turn, from which order may hold the loader up; and from which
it shows that it does."""

_FAR_SLOWER = 4.0
_FEWEST = 20
_TAIL = 0.05
"""Share of all batches' own time that lies beyond twice the usual, from which some are slow: it is
a quarter where 3 % of them take 15 times as long, and next to nothing where all are alike."""

_NEARLY, _HALF = 0.93, 0.6
"""Share of the gain of deeper queues that giving up the order must reach: without a pile to be
seen, and with one."""

_FULLY_BUSY = 0.92
_DEEP, _DEEPEST = 8, 16
_MORE_WAITING = 0.4
"""Growth of waiting in ``__getitem__`` over that with one worker, as a share of making a batch,
from which workers wait for each other."""

_SHARED = 0.7
"""Speed-up by workers over their number, above which they don't hold each other up."""

_READS = 0.2
"""Bytes read from storage over bytes of batches, from which waiting may be for storage."""


def order(view: View) -> Claim | None:
    """Slow samples hold back finished batches."""
    free, hold_up, fetch = unordered(view), view.stage("hold_up"), view.stage("fetch")
    if free is None or hold_up is None:
        return None
    piles = _piles_up(view)
    gain = gain_of(view, free)
    if piles and gain is not None and not gain.pays and (gain.estimate.high or gain.value) >= PAYS:
        # Slow batches are few: a trial too short to rule out that it pays has its luck.
        gain = predicted_gain(view, free)
    deep = deeper(view)
    other = None if deep is None else gain_of(view, deep)
    # Deeper queues help against order and against bursts.
    least = 0.0 if other is None else (_HALF if piles else _NEARLY) * other.value
    if gain is None or not gain.pays or gain.value < least:
        return None
    slow, samples = "", None if view.explained is None else view.explained.samples
    if fetch is not None:
        times = fetch.max_s / max(fetch.median_s, 1e-9)
        slow = f" The slowest fetch took {times:.0f}x the usual."
    return Claim(
        "Slow samples hold back finished batches",
        "Batches are delivered in order, so a finished one waits "
        f"{format_duration(hold_up.mean_s)} on average for earlier ones. Workers run out of "
        f"work: they are busy {percent(view.busy or 0.0)} of the time.{slow}",
        gain.saved,
        "hold_up_s fetch_median_s fetch_max_s worker_busy_fraction",
        {
            "hold_up_s": hold_up.mean_s,
            "fetch_median_s": fetch.median_s if fetch else None,
            "fetch_max_s": fetch.max_s if fetch else None,
            "slowest_samples": dict([*samples.slowest.items()][:3]) if samples else {},
        },
        "Set in_order=False: batches then come as soon as they are ready, and their order "
        "differs between runs.",
        config=free,
        gain=gain,
    )


def _piles_up(view: View) -> bool:
    """Whether finished batches lie out of turn, and single ones take far longer than most."""
    hold_up, fetch = view.stage("hold_up"), view.stage("fetch")
    if hold_up is None or fetch is None or view.costs is None:
        return False
    lying = hold_up.mean_s / max(1e-12, view.costs.period_s)
    return lying >= _PILE and fetch.max_s >= _FAR_SLOWER * fetch.median_s


def _has_tail(rows: BatchCosts) -> bool:
    """Whether a few batches take far more than most by themselves; of few batches none can tell.

    What they waited for a core is left out: beside a busy neighbour any batch may be the slow one,
    and in any order.
    """
    own_s = [cpu_s + io_s for cpu_s, io_s in zip(rows.cpu_s, rows.io_s, strict=True)]
    if len(own_s) < _FEWEST:
        return True
    usual_s = statistics.median(own_s)
    beyond_s = math.fsum(max(0.0, each - 2 * usual_s) for each in own_s)
    return beyond_s >= _TAIL * math.fsum(own_s)


def _idles(view: View) -> bool:
    """Whether workers idle although the consumer waits for them."""
    return view.limit in ("workers", "waiting") and (view.busy or 0.0) < _FULLY_BUSY


def unordered(view: View) -> Config | None:
    """The same out of order, where batches lie ready out of turn and workers idle."""
    hold_up, costs = view.stage("hold_up"), view.costs
    if view.workers < 2 or not view.config.in_order or hold_up is None or costs is None:
        return None
    if view.explained is not None and not _has_tail(view.explained.costs):
        return None
    held = hold_up.mean_s >= _HELD_UP * costs.period_s
    return view.having(in_order=False) if held and _idles(view) else None


def shallow(view: View) -> Claim | None:
    """Bursts empty the queue; deeper prefetch helps."""
    deep = deeper(view)
    if deep is None or order(view) is not None or lock(view) is not None:
        return None
    if (view.is_noisy or view.starved >= STARVED) and not _comes_in_bursts(view):
        return None  # it is others who come in bursts
    gain, wait = gain_of(view, deep), view.stage("wait")
    if gain is None or not gain.pays or gain.source == "bound":
        return None
    return Claim(
        "Bursts empty the queue",
        f"The workers are busy only {percent(view.busy or 0.0)} of the time, and yet the "
        f"consumer waits {percent(view.wait or 0.0)}: with "
        f"prefetch_factor={view.config.prefetch_factor} too few batches are prefetched to "
        "bridge slow moments.",
        gain.saved,
        "prefetch_factor worker_busy_fraction wait_fraction",
        {
            "wait_median_s": wait.median_s if wait else None,
            "wait_p95_s": wait.p95_s if wait else None,
        },
        f"Set prefetch_factor={deep.prefetch_factor}.",
        config=deep,
        gain=gain,
    )


def _comes_in_bursts(view: View) -> bool:
    """Whether batches, or the consumer's steps, take far longer now and then by themselves."""
    if view.explained is None or _has_tail(view.explained.costs):
        return True
    step = view.stage("step")
    return step is not None and step.mean_s >= 2 * step.median_s > 0


def deeper(view: View) -> Config | None:
    """Four times the prefetch, and 8 at least, where workers idle although the consumer waits."""
    now = view.config.prefetch_factor
    if not view.workers or now is None or now >= _DEEPEST or not _idles(view):
        return None
    config = view.having(prefetch_factor=min(_DEEPEST, max(_DEEP, 4 * now)))
    return config if view.fits_shared_memory(config) else None


def lock(view: View) -> Claim | None:
    """Workers wait for each other: waiting grows with them, speed doesn't, and storage isn't why.

    What waits for a lock waits in most batches; a few slow ones may have come to one trial only.
    """
    costs, alone, read = view.costs, view.costs_at(1), view.usage.read_bytes_per_s or 0.0
    if costs is None or alone is None or view.workers < 2 or view.limit in ("consumer", "main"):
        return None
    making, free = costs.making, alone.making
    grown_s = min(making.io_s - free.io_s, costs.usual_io_s - alone.usual_io_s)
    if making.own_s <= 0:
        return None  # nothing is known of its stages
    faster = free.own_s > _SHARED * making.own_s
    from_storage = view.batch_bytes and read >= _READS * view.batch_bytes * (view.rate or 0.0)
    if faster or from_storage or grown_s < _MORE_WAITING * making.own_s:
        return None
    if view.helpers_share >= HELPERS:
        return None  # they wait for threads of their own
    alike = dataclasses.replace(
        costs, fetch=alone.fetch, collate=alone.collate, put_cpu_s=alone.put_cpu_s
    )
    return Claim(
        "Workers wait for each other",
        f"With {view.workers} workers each batch is blocked for {format_duration(making.io_s)}, "
        f"with one worker for {format_duration(free.io_s)}, and little is read from storage. "
        "The workers share something that only one can use at a time.",
        (making.io_s - free.io_s) / max(1e-12, making.wall_s),
        "waiting_s waiting_with_one_worker_s num_workers read_bytes_per_s",
        {"waiting_with_one_worker_s": free.io_s},
        "Give each worker its own file handle, connection or cache in worker_init_fn, and hold "
        "no lock around slow work; until then num_workers=1 is as fast.",
        """def open_own(worker_id):
    dataset = torch.utils.data.get_worker_info().dataset
    dataset.file = open(dataset.path, "rb")  # a handle, connection and lock for each worker

loader = DataLoader(dataset, worker_init_fn=open_own, ...)""",
        gain=bound(max(1.0, alike.rate(view.config, view.available) * costs.period_s)),
    )
