"""Where the loader keeps up, and where fewer workers would."""

from __future__ import annotations

import dataclasses
import math

from dlprof.advise.findings.claims import Claim, Place, settings_fix
from dlprof.advise.findings.device import used_gpu
from dlprof.advise.findings.gains import closed_form, gain_of
from dlprof.advise.findings.startup import starting_leads
from dlprof.advise.findings.view import View
from dlprof.advise.findings.waiting import lock
from dlprof.advise.wording import percent
from dlprof.records import Config
from dlprof.units import format_duration

_PAYS = 1.08
"""Gain from which fewer workers count as better, not only as good."""

_KERNELS = 0.7
"""Share of time with any kernel on the device, below which a step doesn't keep it busy."""

_AS_GOOD = 0.95
_FASTER = 1.1
"""Speed of a calibration with fewer workers over that of the present, from which it is tried."""

_LIGHT_S = 0.0025
"""Receiving that takes less, of few tensors, is what any batch from a worker takes: 0.3 ms for
one tensor and 0.9 ms for five on a quiet machine (FIELD section 1), 1.1 ms for one seen on a slow
and busy one."""

FEW_TENSORS = 4
_IDLE = 0.5
"""Workers that are busy for less have half their number too many."""

_FAR_TOO_MANY = 4
"""Times the workers needed from which a loader that keeps up is worth a word."""

_BUSY = 0.75
"""Share of the time for which the workers that are needed would be busy."""

_MANY = 8


def consumer(view: View) -> Claim | None:
    """The training step is the limit."""
    if view.limit != "consumer" or view.wait is None:
        return None
    rate = view.rate or 0.0
    each = f" of {format_duration(1 / rate)} a batch" if rate > 0 else ""
    return Claim(
        title="The training step is the limit",
        explanation=f"The loader keeps up: the step waits {percent(view.wait)} of the time"
        f"{each}. No setting of the loader makes this faster.{_idle_device(view)}",
        cost=0.0,
        figures={
            "wait_fraction": view.wait,
            "batches_per_s": view.rate,
            "kernel_active_fraction": _kernels(view),
        },
    )


def _kernels(view: View) -> float | None:
    """Share of time in which the device ran any kernel."""
    gpu = used_gpu(view)
    return None if gpu is None else gpu.kernel_active_fraction


def _idle_device(view: View) -> str:
    """Whether it is the step's own Python that takes the time, and not the device.

    A step of stated length is none of the user's: what it does says nothing.
    """
    active = _kernels(view)
    if active is None or active >= _KERNELS or view.evidence.step_s > 0:
        return ""
    return (
        f" The device ran kernels only {percent(active)} of the time: the step's own Python, or "
        "what it waits for, takes the rest."
    )


def too_many_workers(view: View) -> Claim | None:
    """Fewer workers would do as well or better."""
    fewer = fewer_workers(view)
    if fewer is None:
        return None
    gain, idle = gain_of(view, fewer), idle_workers(view)
    if gain is None or (gain.value < _AS_GOOD and not idle) or is_dear_to_receive(view):
        return None
    # Others that come and go may bring a gain; that handing over is dear shows in its costs.
    shown = idle > 0 or not view.is_noisy or view.limit == "main" or gain.sure
    better = gain.value >= _PAYS and shown
    if not better and not idle and view.limit != "consumer":
        return None
    effect = f"{gain.verb} {gain.value:.2f}x" if better else "does as well"
    keeps_up = view.limit == "consumer"
    why = f"{idle} of {view.workers} workers have nothing to do. " if idle else ""
    if better and view.limit == "main":
        why = "Handing batches over costs more than making them. "
    place = Place.BROKEN if keeps_up else Place.FAULT if better or idle else Place.BEHIND
    if not keeps_up and (lock(view) is not None or starting_leads(view)):
        place = Place.BEHIND  # fewer are better because they wait for each other, or start sooner
    return Claim(
        title="Fewer workers would do" + (" better" if better else " as well"),
        explanation=f"{why}num_workers={fewer.num_workers} {effect} "
        f"({view.workers} now), and takes less memory and fewer cores.",
        place=place,
        cost=gain.saved if better else 0.0,
        figures={
            "num_workers": view.workers,
            "idle_workers": idle,
            "worker_busy_fraction": view.busy,
            "main_share_of_wait": view.main_share,
        },
        fix=settings_fix(view, fewer, f"Set num_workers={fewer.num_workers}."),
        gain=gain,
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
    costs, limit = view.costs, view.limit
    if costs is None or view.workers < 1:
        return None
    idle = idle_workers(view)
    if limit == "consumer":
        needed = max(1, math.ceil((view.busy or 0.0) * view.workers / _BUSY))
        far = view.workers >= max(_MANY, _FAR_TOO_MANY * needed, 2 * view.cores + 1)
        return with_workers(view.config, needed) if far else None
    if idle and idle < view.workers:
        return with_workers(view.config, view.workers - idle)
    if limit == "main":
        counts = sorted({0, 1, min(2, view.workers - 1)} & set(range(view.workers)))
        configs = [with_workers(view.config, count) for count in counts]
        return max(configs, key=lambda each: closed_form(costs, each, view.cores))
    faster = _faster_calibration(view)
    if faster is not None:
        return faster
    halves = limit == "waiting" and (view.busy or 0.0) < _IDLE and view.workers >= _MANY
    return with_workers(view.config, view.workers // 2) if halves else None


def _faster_calibration(view: View) -> Config | None:
    """Fewer workers that were faster, all of them instrumented alike."""
    rates = {
        each.config.num_workers: each.batches / each.window_s
        for each in view.evidence.explanations()
        if each.window_s > 0
    }
    now = rates.pop(view.workers, 0.0)
    fewer = {count: rate for count, rate in rates.items() if count < view.workers}
    best = max(fewer, key=fewer.__getitem__, default=None)
    if best is None or fewer[best] < _FASTER * now:
        return None
    return with_workers(view.config, best)


def idle_workers(view: View) -> int:
    """Workers that made no batch while others did."""
    if view.explained is None:
        return 0
    return view.workers - view.explained.fed_workers


def with_workers(config: Config, count: int) -> Config:
    """The same configuration with another number of workers."""
    if count and not config.num_workers:
        return dataclasses.replace(config, num_workers=count, prefetch_factor=2).canonical()
    return dataclasses.replace(config, num_workers=count).canonical()
