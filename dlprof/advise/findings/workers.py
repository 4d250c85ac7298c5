"""What making a batch takes, and whether more workers, or fewer, would do better."""

from __future__ import annotations

import dataclasses
import math

from dlprof.advise.findings.claims import Claim, Place
from dlprof.advise.findings.costs import Costs, Work
from dlprof.advise.findings.device import used_gpu
from dlprof.advise.findings.gains import AS_GOOD, Gain, costs_for, gain_of, predicted_gain
from dlprof.advise.findings.script import competes, script_gain
from dlprof.advise.findings.startup import starting_leads
from dlprof.advise.findings.view import BUSY, View
from dlprof.advise.findings.waiting import lock
from dlprof.advise.thresholds import PAYS, WORTH_TRYING
from dlprof.advise.wording import percent
from dlprof.records import Config
from dlprof.units import counted, format_duration

MORE_PAY = "More workers would pay"
_LARGE_SHARE, _COLLATE_SHARE = 0.3, 0.5
"""Share of making a batch from which its samples, and from which collating, is worth a word."""

LEAST_RECEIVE_S, _LEAST_PUT_S = 0.0003, 0.0001
"""What main takes to receive one tensor from a worker (FIELD section 1), and a worker to put it."""

_HARDLY_BUSY, _HALF_BUSY = 0.35, 0.5
"""Workers that are busy for less hold nobody up, whatever they do: as they are, and beside a step,
which they could then feed at twice its speed. Of many, half are then too many."""

_MOST_WORKERS, _PER_CORE = 16, 4
"""Workers, and workers for each core, beyond which no more are proposed, however much they wait."""

_FEWER, _AS_FAST = 1.15, 0.97
"""Steps in which numbers of workers are tried on a whole script, and the share of the best gain
that fewer are taken for: each of them costs memory and a start."""

_KERNELS = 0.7
"""Share of time with any kernel on the device, below which a step doesn't keep it busy."""

_LIGHT_S = 0.0025
"""Receiving that takes less, of few tensors, is what any batch from a worker takes: 0.3 ms for
one tensor and 0.9 ms for five on a quiet machine (FIELD section 1), 1.1 ms for one seen on a slow
and busy one."""

FEW_TENSORS = 4
_FAR_TOO_MANY, _MANY = 4, 8
"""Times the workers needed, and workers, from which a loader that keeps up is worth a word."""


def consumer(view: View) -> Claim | None:
    """The training step is the limit."""
    if view.limit != "consumer" or view.wait is None:
        return None
    each = f" of {format_duration(1 / view.rate)} a batch" if view.rate else ""
    gpu, idle = used_gpu(view), ""
    active = None if gpu is None else gpu.kernel_active_fraction
    # A step of stated length is none of the user's: what it does says nothing.
    if active is not None and active < _KERNELS and view.evidence.step_s <= 0:
        idle = (
            f" The device ran kernels only {percent(active)} of the time: the step's own "
            "Python, or what blocks it, takes the rest."
        )
    return Claim(
        "The training step is the limit",
        f"The loader keeps up: the step waits {percent(view.wait)} of the time{each}. No setting "
        f"of the loader makes this faster.{idle}",
        0.0,
        "wait_fraction batches_per_s",
        {"kernel_active_fraction": active},
    )


def too_many_workers(view: View) -> Claim | None:
    """Fewer workers would do as well or better."""
    fewer, idle, limit = fewer_workers(view), view.idle_workers, view.limit
    gain = None if fewer is None else gain_of(view, fewer)
    if fewer is None or gain is None or (gain.value < AS_GOOD and not idle):
        return None
    # Others that come and go may bring a gain; that handing over is dear shows in its costs.
    shown = idle > 0 or not view.is_noisy or limit == "main" or gain.sure
    better, keeps_up = gain.value >= PAYS and shown, limit == "consumer"
    if is_dear_to_receive(view) or not (better or idle or keeps_up):
        return None
    why = f"{idle} of {view.workers} workers have nothing to do. " if idle else ""
    if better and limit == "main":
        why = "Sending batches between processes costs more than making them. "
    place = Place.FAULT if better or idle else Place.BEHIND
    if keeps_up:
        place = Place.BROKEN
    elif lock(view) is not None or starting_leads(view):
        place = Place.BEHIND  # fewer are better because they wait for each other, or start sooner
    return Claim(
        "Fewer workers would do" + (" better" if better else " as well"),
        f"{why}num_workers={fewer.num_workers} {gain.words if better else 'does as well'} "
        f"({view.workers} now), and takes less memory and fewer cores.",
        gain.saved if better else 0.0,
        "num_workers idle_workers worker_busy_fraction main_share_of_wait",
        fix=f"Set num_workers={fewer.num_workers}.",
        config=fewer,
        gain=gain,
        place=place,
    )


def is_dear_to_receive(view: View) -> bool:
    """Whether batches are held up by what receiving them takes, not because they are so cheap."""
    costs, limit = view.costs, view.limit
    if costs is None or not view.workers or limit == "consumer":
        return False
    if costs.receive.own_s < max(costs.dispatch.own_s, costs.making.own_s) and limit != "main":
        return False
    tensors = view.evidence.target.batch_tensors or 1
    dear = costs.receive.own_s >= _LIGHT_S or tensors > FEW_TENSORS
    return dear and costs.receive.own_s >= costs.dispatch.own_s


def fewer_workers(view: View) -> Config | None:
    """The fewer workers that are worth a trial."""
    costs, limit, now, busy = view.costs, view.limit, view.workers, view.busy or 0.0
    if costs is None or now < 1:
        return None
    count: int | None = (
        now // 2 if limit == "waiting" and busy < _HALF_BUSY and now >= _MANY else None
    )
    if limit == "consumer":
        needed = max(1, math.ceil(busy * now / BUSY))
        far = now >= max(_MANY, _FAR_TOO_MANY * needed, 2 * view.cores + 1)
        count = needed if far else None
    elif 0 < view.idle_workers < now:
        count = now - view.idle_workers
    elif limit == "main":
        counts = sorted({0, 1, min(2, now - 1)} & set(range(now)))
        count = max(counts, key=lambda n: costs.rate(view.having(num_workers=n), view.cores))
    elif (faster := _faster_calibration(view)) is not None:
        count = faster
    return None if count is None else view.having(num_workers=count)


def _faster_calibration(view: View) -> int | None:
    """Fewer workers that were faster, all of them instrumented alike."""
    told = view.evidence.explanations()
    rates = {
        each.config.num_workers: each.batches / each.window_s for each in told if each.window_s
    }
    now = rates.get(view.workers, 0.0)
    faster = {n: rate for n, rate in rates.items() if n < view.workers and rate >= PAYS * now}
    return max(faster, key=faster.__getitem__, default=None)


def fetch_cpu(view: View) -> Claim | None:
    """``__getitem__`` burns CPU."""
    costs = _making_costs(view)
    if costs is None or costs.fetch.cpu_s < max(costs.fetch.io_s, costs.collate.own_s):
        return None
    share = _share(costs, costs.fetch.cpu_s)
    if share < _LARGE_SHARE:
        return None
    chain = view.explained.transforms if view.explained else ()
    first = max(chain, key=lambda each: each.share, default=None)
    dearest = first if first is not None and first.share >= _LARGE_SHARE else None
    named = f" {dearest.name} takes {percent(dearest.share)} of that." if dearest else ""
    halved = Work(costs.fetch.cpu_s / 2, costs.fetch.io_s)
    return Claim(
        "CPU time in __getitem__",
        f"A batch's samples take {format_duration(costs.fetch.cpu_s)} of CPU time: "
        f"{percent(share)} of the time to make a batch.{named}",
        share * (view.wait or 1.0),
        "fetch_cpu_s fetch_waiting_s",
        {
            "share": share,
            "dearest_transform": dearest.name if dearest else None,
            "dearest_transform_share": dearest.share if dearest else None,
        },
        f"Make {dearest.name if dearest else '__getitem__'} cheaper: resize before decoding in "
        "full, cache what comes out the same each epoch, move arithmetic on whole batches to "
        "the device. The gain assumes half of its CPU time.",
        gain=predicted_gain(view, costs=dataclasses.replace(costs, fetch=halved)),
    )


def fetch_io(view: View) -> Claim | None:
    """``__getitem__`` waits for storage or network."""
    costs = _making_costs(view)
    if costs is None or costs.fetch.io_s < max(costs.fetch.cpu_s, costs.collate.own_s):
        return None
    share = _share(costs, costs.fetch.io_s)
    if share < _LARGE_SHARE or lock(view) is not None:
        return None
    more = more_workers(view)
    gain = None if more is None else gain_of(view, more)
    fix = (
        "Read less often: fetch several samples at once (__getitems__), pack small files into "
        "shards, or keep the data on a local disk or in memory."
    )
    if more is None or gain is None or gain.value < WORTH_TRYING:
        more = gain = None
    else:
        fix = (
            f"Set num_workers={more.num_workers}: blocked workers need no cores, so more "
            "workers than cores pay. Or read faster: pack small files into shards, or read a "
            "local copy."
        )
    return Claim(
        "Blocking I/O in __getitem__",
        f"A batch's samples are blocked for {format_duration(costs.fetch.io_s)} on storage or "
        f"network: {percent(share)} of the time to make a batch.",
        share * (view.wait or 1.0),
        "fetch_waiting_s fetch_cpu_s share read_bytes_per_s cache_hit_fraction",
        {"share": share},
        fix,
        config=more,
        gain=gain,
    )


def collate(view: View) -> Claim | None:
    """Collating costs the most."""
    costs, tensors = _making_costs(view), view.evidence.target.batch_tensors
    if costs is None or costs.collate.own_s <= _COLLATE_SHARE * costs.making.own_s:
        return None
    objects, receive = view.workers > 0 and tensors == 0, costs.receive
    # While a worker collates in Python, main waits for its answer to every descriptor.
    rested_s = min(receive.io_s, LEAST_RECEIVE_S * max(1.0, tensors or 1))
    receive, put_s = Work(receive.cpu_s, rested_s), costs.put_cpu_s
    if objects:  # and handed over as one tensor
        receive, put_s = Work(min(receive.own_s, LEAST_RECEIVE_S)), min(put_s, _LEAST_PUT_S)
    free = dataclasses.replace(costs, collate=Work(), receive=receive, put_cpu_s=put_s)
    handing = " and that one tensor is sent instead of objects" if objects else ""
    return Claim(
        "Collating costs the most",
        f"Collating a batch takes {format_duration(costs.collate.own_s)}, fetching its samples "
        f"{format_duration(costs.fetch.own_s)}.",
        _share(costs, costs.collate.wall_s) * (view.wait or 1.0),
        "collate_s collate_cpu_s fetch_s",
        fix="Stack whole tensors instead of looping in Python, pad once to the longest, and do "
        "per-sample work in __getitem__; where collate_fn is torch's own, give it less, "
        "such as uint8 instead of float32. The gain assumes that collating is "
        f"free{handing}.",
        code="""def collate(samples):
    images, labels = zip(*samples)
    return torch.stack(images), torch.tensor(labels)

loader = DataLoader(dataset, collate_fn=collate, ...)""",
        gain=predicted_gain(view, costs=free),
    )


def too_few_workers(view: View) -> Claim | None:
    """More workers would pay."""
    more, costs = more_workers(view), view.costs
    gain = None if more is None else _gain_of_more(view, more)
    if more is None or costs is None or gain is None or gain.value < PAYS:
        return None
    now = f"with {counted(view.workers, 'worker')}" if view.workers else "without workers"
    effect = gain.words
    if competes(view, more):
        effect = f"is {gain.value:.2f}x as fast while no step computes"
    elif view.evidence.script is not None:
        effect = f"{gain.words} once its workers run"
    waits = costs.fetch.io_s > costs.fetch.cpu_s
    return Claim(
        MORE_PAY,
        f"Making a batch takes {format_duration(costs.making.wall_s)} {now}; "
        f"num_workers={more.num_workers} {effect}.",
        gain.saved,
        "num_workers worker_busy_fraction making_s own_cpu_cores available_cpu_cores",
        fix=f"Set num_workers={more.num_workers}.",
        config=more,
        gain=gain,
        place=Place.BEHIND if waits and view.workers > 1 else Place.SETTING,
    )


def _gain_of_more(view: View, more: Config) -> Gain | None:
    """What more workers bring; reckoned where a trial beside others was too unsteady to tell."""
    gain = gain_of(view, more)
    if gain is None or gain.source != "measured" or gain.value >= PAYS or not view.is_noisy:
        return gain
    untold = (gain.estimate.high or gain.value) >= PAYS
    return (predicted_gain(view, more, now=view.cores) if untold else None) or gain


def more_workers(view: View) -> Config | None:
    """As many workers as would be enough for cores, main and step, where that is more than now."""
    costs = _making_costs(view)
    if costs is None or (view.workers and (view.busy or 0.0) < _HALF_BUSY):
        return None
    if lock(view) is not None:
        return None
    beside = costs_for(view, view.having(num_workers=max(1, view.workers))) or costs
    cpu_s = costs.making.cpu_s + beside.put_cpu_s
    held_s = max(costs.step_s + beside.main_s, cpu_s / view.cores, 1e-6)
    ratio = (cpu_s + costs.making.io_s) / held_s
    most = max(_MOST_WORKERS, round(_PER_CORE * view.cores))
    slots = max(math.ceil(ratio - 0.05), math.floor(1.15 * ratio))  # many vary: a few more
    useful = (most, slots, view.epoch_batches or None, view.evidence.integrity.most_to_advise)
    counts = range(min(each for each in useful if each is not None), view.workers, -1)
    several = (view.having(num_workers=count) for count in counts)
    more = next(filter(view.fits_shared_memory, several), None)
    now = costs.rate(view.config, view.cores)
    if more is None or beside.rate(more, view.cores) < WORTH_TRYING * now:
        return None
    return _best_for_script(view, more)


def _best_for_script(view: View, most: Config) -> Config:
    """The fewest of up to so many workers with which a script is about as fast as it can be."""
    counts = {max(view.workers + 1, round(most.num_workers / _FEWER**n)) for n in range(32)}
    configs = [view.having(num_workers=count) for count in sorted(counts)]
    told = ((each, script_gain(view, each, loop=True)) for each in configs)
    gains = [(each, gain.value) for each, gain in told if gain is not None]
    best = max((value for _, value in gains), default=0.0)
    return next((each for each, value in gains if value >= _AS_FAST * best), most)


def _making_costs(view: View) -> Costs | None:
    """The costs, where making batches is or may be the limit."""
    limit = view.limit
    least = _HALF_BUSY if view.evidence.has_step else _HARDLY_BUSY
    idle = limit == "waiting" and (view.busy or 0.0) < least
    return view.costs if limit in ("workers", "waiting") and not idle else None


def _share(costs: Costs, part_s: float) -> float:
    return min(1.0, part_s / max(1e-12, costs.making.wall_s))
