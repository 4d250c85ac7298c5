"""Where nobody is busy enough: batches, queues and workers that wait for each other."""

from __future__ import annotations

import dataclasses
import math
import statistics

from dlprof.advise.findings.claims import Claim, settings_fix
from dlprof.advise.findings.costs import Costs
from dlprof.advise.findings.gains import Gain, bound, gain_of, modelled_gain
from dlprof.advise.findings.view import HELPERS, STARVED, View
from dlprof.advise.wording import percent
from dlprof.records import BatchCosts, Config, Fix
from dlprof.units import format_duration

_PAYS = 1.1
_HELD_UP = 0.4
"""Batches that lie ready and out of turn, from which order may hold the loader up."""

_PILE = 1.0
"""Batches that lie there, from which it shows that it does."""

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

_LOCK_CODE = """def open_own(worker_id):
    dataset = torch.utils.data.get_worker_info().dataset
    dataset.file = open(dataset.path, "rb")  # a handle, connection and lock for each worker

loader = DataLoader(dataset, worker_init_fn=open_own, ...)"""


def order(view: View) -> Claim | None:
    """Slow samples hold back finished batches."""
    free = unordered(view)
    if free is None:
        return None
    gain = _order_gain(view, free)
    if gain is None or not _is_order(view, gain):
        return None
    hold_up, fetch = view.stage("hold_up"), view.stage("fetch")
    held_s = hold_up.mean_s if hold_up else 0.0
    slow, slowest = "", dict[str, float]()
    if fetch is not None:
        times = fetch.max_s / max(fetch.median_s, 1e-9)
        slow = f" The slowest fetch took {times:.0f}x the usual."
    if view.explained is not None and view.explained.samples is not None:
        slowest = dict([*view.explained.samples.slowest.items()][:3])
    return Claim(
        title="Slow samples hold back finished batches",
        explanation=f"Batches are yielded in order, so a finished one waits "
        f"{format_duration(held_s)} on average for those before it, and workers run out of "
        f"work: they are busy {percent(view.busy or 0.0)} of the time.{slow}",
        cost=gain.saved,
        figures={
            "hold_up_s": held_s,
            "fetch_median_s": fetch.median_s if fetch else None,
            "fetch_max_s": fetch.max_s if fetch else None,
            "worker_busy_fraction": view.busy,
            "slowest_samples": slowest,
        },
        fix=settings_fix(
            view,
            free,
            "Set in_order=False: batches then come as they are ready, so that their order is no "
            "longer the same in each run.",
        ),
        gain=gain,
    )


def _order_gain(view: View, free: Config) -> Gain | None:
    """What giving up the order brings.

    Where batches are seen to pile up out of turn behind far slower ones, and a trial was too short
    to rule out that it pays, the model is asked: slow batches are few, and a trial has its luck.
    """
    gain = gain_of(view, free)
    if gain is None or gain.pays(_PAYS) or not _piles_up(view):
        return gain
    modelled = modelled_gain(view, free)
    undecided = (gain.estimate.high or gain.value) >= _PAYS
    return modelled if undecided and modelled is not None else gain


def _is_order(view: View, gain: Gain) -> bool:
    """Whether it is order that holds the loader up, and not that its queues are shallow.

    Deeper queues help against both.
    """
    if not gain.pays(_PAYS):
        return False
    deep = deeper(view)
    other = None if deep is None else gain_of(view, deep)
    share = _HALF if _piles_up(view) else _NEARLY
    return other is None or gain.value >= share * other.value


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


def unordered(view: View) -> Config | None:
    """The same out of order, where batches lie ready out of turn and workers idle."""
    hold_up = view.stage("hold_up")
    if view.workers < 2 or not view.config.in_order or hold_up is None or view.costs is None:
        return None
    if view.explained is not None and not _has_tail(view.explained.costs):
        return None
    if view.limit in ("consumer", "main", "pin") or (view.busy or 0.0) >= _FULLY_BUSY:
        return None
    if hold_up.mean_s < _HELD_UP * view.costs.period_s:
        return None
    return dataclasses.replace(view.config, in_order=False)


def shallow(view: View) -> Claim | None:
    """Bursts empty the queue; deeper prefetch helps."""
    deep = deeper(view)
    if deep is None or order(view) is not None or lock(view) is not None:
        return None
    if (view.is_noisy or view.starved >= STARVED) and not _comes_in_bursts(view):
        return None  # it is others who come in bursts
    gain = gain_of(view, deep)
    if gain is None or not gain.pays(_PAYS) or gain.source == "bound":
        return None
    wait = view.stage("wait")
    return Claim(
        title="Bursts empty the queue",
        explanation=f"The workers are busy only {percent(view.busy or 0.0)} of the time, and "
        f"yet the consumer waits {percent(view.wait or 0.0)}: with "
        f"prefetch_factor={view.config.prefetch_factor} too few batches are under way to "
        "bridge the slow moments.",
        cost=gain.saved,
        figures={
            "prefetch_factor": view.config.prefetch_factor,
            "worker_busy_fraction": view.busy,
            "wait_fraction": view.wait,
            "wait_median_s": wait.median_s if wait else None,
            "wait_p95_s": wait.p95_s if wait else None,
        },
        fix=settings_fix(view, deep, f"Set prefetch_factor={deep.prefetch_factor}."),
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
    if not view.workers or now is None or now >= _DEEPEST or view.costs is None:
        return None
    if view.limit in ("consumer", "main", "pin") or (view.busy or 0.0) >= _FULLY_BUSY:
        return None
    depth = min(_DEEPEST, max(_DEEP, 4 * now))
    config = dataclasses.replace(view.config, prefetch_factor=depth)
    return config if fits_shared_memory(view, config) else None


def fits_shared_memory(view: View, config: Config) -> bool:
    """Whether full queues of a configuration find room in /dev/shm."""
    room = view.evidence.machine.shm_available_bytes
    batch = view.evidence.target.batch_bytes
    return room is None or batch is None or config.queued_batches * batch <= 0.8 * room


def lock(view: View) -> Claim | None:
    """Workers wait for each other."""
    costs, alone = view.costs, view.costs_at(1)
    if costs is None or alone is None or not _wait_for_others(view, costs, alone):
        return None
    more_s = costs.making.io_s - alone.making.io_s
    free_s = max(1e-9, alone.making.own_s + alone.put_cpu_s)
    rate = min(
        view.workers / free_s,
        (view.usage.available_cpu_cores or view.cores) / max(1e-9, costs.cpu_s),
        1 / max(1e-9, costs.step_s + costs.main_s),
    )
    gain = bound(max(1.0, rate * costs.period_s))
    return Claim(
        title="Workers wait for each other",
        explanation=f"With {view.workers} workers each batch waits "
        f"{format_duration(costs.making.io_s)}, with one worker "
        f"{format_duration(alone.making.io_s)}, and little is read from storage: the workers "
        "share something that only one can use at a time.",
        cost=min(1.0, more_s / max(1e-12, costs.making.wall_s)),
        figures={
            "waiting_s": costs.making.io_s,
            "waiting_with_one_worker_s": alone.making.io_s,
            "num_workers": view.workers,
            "read_bytes_per_s": view.usage.read_bytes_per_s,
        },
        fix=Fix(
            text="Give each worker its own file handle, connection or cache in worker_init_fn, "
            "and hold locks around nothing slow; until then num_workers=1 is as fast.",
            code=_LOCK_CODE,
        ),
        gain=gain,
    )


def _wait_for_others(view: View, costs: Costs, alone: Costs) -> bool:
    """Whether waiting grows with workers, speed doesn't, and storage isn't why.

    What waits for a lock waits in most batches; a few slow ones may have come to one trial only.
    """
    if view.workers < 2 or view.limit in ("consumer", "main"):
        return False
    if view.helpers_share >= HELPERS:
        return False  # they wait for threads of their own
    grown_s = min(costs.making.io_s - alone.making.io_s, costs.usual_io_s - alone.usual_io_s)
    if grown_s < _MORE_WAITING * costs.making.own_s:
        return False
    speed_up = alone.making.own_s / max(1e-12, costs.making.own_s)
    if speed_up > _SHARED:
        return False
    read, made = view.usage.read_bytes_per_s or 0.0, view.evidence.target.batch_bytes or 0
    return not made or read < _READS * made * (view.rate or 0.0)
