"""Threads inside the workers."""

from __future__ import annotations

import dataclasses

from dlprof.advise.findings.claims import Claim, settings_fix
from dlprof.advise.findings.gains import measured_gain
from dlprof.advise.findings.limit import limit_of
from dlprof.advise.findings.view import View, starved
from dlprof.advise.wording import percent
from dlprof.records import Config

_OWN_THREADS = 3
"""Threads of a worker that computes in one: itself, its feeder, and the one that hands descriptors
over."""

_LEAST_CPU_S = 0.0015
"""CPU of the other threads for one batch, below which it is the feeder's: pickling a batch of
twenty tensors takes half of that."""

_LEAST_PART = 0.15
"""The same over what making a batch takes, its waiting too: threads that are idle for most of a
worker's time compete for nothing."""

HELPERS = 0.25
"""CPU of a worker's other threads over that of the one that fetches, from which they count."""


def threads(view: View) -> Claim | None:
    """Threads inside the workers compete for the cores."""
    single = single_threaded(view)
    if single is None or view.explained is None or limit_of(view) == "consumer":
        return None
    tried = measured_gain(view, single)
    # A worker_init_fn of the user's own may set its threads after dlprof's.
    gain = tried if tried is not None and tried.value >= 1.05 else None
    most = max((worker.threads or 0 for worker in view.explained.workers), default=0)
    share = helpers_share(view)
    return Claim(
        explanation=f"{view.workers} workers have up to {most} threads each on "
        f"{view.cores:g} cores; threads beside the one that fetches use "
        f"{percent(share / (1 + share))} of their CPU time.",
        cost=max(share / (1 + share), gain.saved if gain is not None else 0.0),
        figures={
            "worker_threads": most,
            "num_workers": view.workers,
            "usable_cores": view.cores,
            "other_threads_cpu_fraction": share / (1 + share),
            "starved_fraction": starved(view),
        },
        fix=settings_fix(
            view,
            single,
            "Let each worker compute in one thread: set the pools of torch, OpenCV, BLAS and "
            "OpenMP to 1 in worker_init_fn.",
        ),
        gain=gain,
    )


def helpers_share(view: View) -> float:
    """CPU of workers' other threads over that of the fetching one, where they are many."""
    costs = view.costs
    if costs is None or view.explained is None or costs.making.cpu_s <= 0:
        return 0.0
    most = max((worker.threads or 0 for worker in view.explained.workers), default=0)
    watched = view.config.start_method in ("spawn", "forkserver")  # by a thread of dlprof's
    if costs.put_cpu_s < max(_LEAST_CPU_S, _LEAST_PART * costs.making.own_s):
        return 0.0  # a feeder's pickling, or next to nothing beside what the worker waits for
    return costs.put_cpu_s / costs.making.cpu_s if most > _OWN_THREADS + watched else 0.0


def single_threaded(view: View) -> Config | None:
    """One thread in each worker, where threads use what the workers lack."""
    if not view.workers or helpers_share(view) < HELPERS or limit_of(view) == "consumer":
        return None
    return dataclasses.replace(view.config, worker_threads=1)
