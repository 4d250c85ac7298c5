"""Who takes the cores: a quota, an affinity mask, others, or the loader's own processes."""

from __future__ import annotations

import dataclasses
import math

from dlprof.advise.findings.claims import Claim, Place, Words, claim, settings_fix
from dlprof.advise.findings.consumer import with_workers
from dlprof.advise.findings.gains import (
    Gain,
    bound,
    closed_form,
    gain_of,
    measured_gain,
    model_ratio,
)
from dlprof.advise.findings.limit import limit_of
from dlprof.advise.findings.view import View
from dlprof.advise.wording import percent
from dlprof.records import Config, Fix

_THROTTLED = 0.05
_OTHERS = 0.15
"""Share of the usable cores that others may keep busy before they count."""

_STARVED = 0.1
"""Share of making a batch spent waiting for a core, from which cores are short."""

_TAKES_OVER = 0.45
"""Share of that time from which who takes the cores comes before what they are needed for."""

_OVERSUBSCRIBED = 1.6
"""Cores that the workers' own computing wants over those there are."""

_OWN_THREADS = 3
"""Threads of a worker that computes in one: itself, its feeder, and torch's watch."""

HELPERS = 0.25
"""CPU of a worker's other threads over that of the one that fetches, from which they count."""

_AFFINITY_CODE = """def use_all_cpus(worker_id):
    os.sched_setaffinity(0, range(os.cpu_count()))

loader = DataLoader(dataset, worker_init_fn=use_all_cpus, ...)"""


def demand(view: View) -> float:
    """Cores that making batches would use if there were enough: workers less their waiting."""
    costs = view.costs
    if costs is None or costs.making.own_s <= 0:
        return 0.0
    making = costs.making
    helpers = costs.put_cpu_s / making.own_s
    return max(1, view.workers) * (making.cpu_s / making.own_s + helpers)


def starved(view: View) -> float:
    """Share of making a batch spent waiting for a core."""
    costs = view.costs
    if costs is None or costs.making.wall_s <= 0:
        return view.usage.run_queue_wait_fraction or 0.0
    return costs.making.run_queue_s / costs.making.wall_s


def self_starved(view: View) -> float:
    """What of that the loader would do to itself on a machine of its own."""
    wanted = demand(view)
    return max(0.0, 1 - view.cores / wanted) if wanted > 0 else 0.0


def quota(view: View) -> Claim | None:
    """A cgroup's quota throttles."""
    throttled = view.usage.throttled_fraction
    if throttled is None or throttled < _THROTTLED or limit_of(view) == "consumer":
        return None
    machine = view.evidence.machine
    allowed = machine.quota_cores or view.cores
    gain = _with_cores(view, float(machine.affinity_cpus), allowed)
    cost = max(throttled, gain.saved if gain is not None else 0.0)
    return claim(
        view,
        "cpu.quota",
        Words(
            title="A CPU quota throttles the loader",
            explanation=f"The cgroup allows {allowed:g} of {machine.affinity_cpus} CPUs and held "
            f"the processes back for {percent(throttled)} of the time.",
        ),
        place=Place.FAULT,
        cost=cost,
        figures={
            "throttled_fraction": throttled,
            "quota_cores": machine.quota_cores,
            "affinity_cpus": machine.affinity_cpus,
            "own_cpu_cores": view.usage.own_cpu_cores,
        },
        fix=Fix(
            text="Raise the quota (docker run --cpus, Kubernetes limits.cpu), or make "
            "do with a worker for each core of it.",
        ),
        gain=gain,
    )


def affinity(view: View) -> Claim | None:
    """Workers are pinned to fewer cores than the job may use."""
    allowed, pinned = view.evidence.machine.affinity_cpus, pinned_cpus(view)
    costs = view.costs
    if pinned is None or costs is None or limit_of(view) == "consumer":
        return None
    gain = _with_cores(view, min(view.cores, allowed), pinned)
    if not view.workers:
        gain = None
    if demand(view) <= 1.1 * pinned and view.workers > 1:
        return None
    return claim(
        view,
        "cpu.affinity",
        Words(
            title="Workers are pinned to too few CPUs",
            explanation=f"They may run on {pinned} of the {allowed} CPUs that this job has, and "
            f"wait for a core {percent(starved(view))} of the time. A library, or the program "
            "itself, has set the affinity.",
        ),
        place=Place.FAULT,
        cost=max(starved(view), 1 - pinned / min(view.cores, max(demand(view), pinned))),
        figures={
            "worker_affinity_cpus": pinned,
            "affinity_cpus": allowed,
            "starved_fraction": starved(view),
        },
        fix=Fix(
            text="Give the workers back all CPUs, and look for what pins them (a library's "
            "import, KMP_AFFINITY, GOMP_CPU_AFFINITY, numactl).",
            code=_AFFINITY_CODE,
        ),
        gain=gain,
    )


def pinned_cpus(view: View) -> int | None:
    """CPUs of the worker that has fewest, where that is fewer than the job's; else ``None``."""
    found = [
        worker.affinity_cpus
        for explained in view.evidence.explanations()
        for worker in explained.workers
        if worker.affinity_cpus is not None
    ]
    least = min(found, default=None)
    return least if least is not None and least < view.evidence.machine.affinity_cpus else None


def neighbours(view: View) -> Claim | None:
    """Others take the cores."""
    lost = 1 - (1 - starved(view)) / max(0.05, 1 - self_starved(view))
    busy_others = view.others >= _OTHERS * view.cores
    if not busy_others or lost < _STARVED or limit_of(view) == "consumer":
        return None
    if pinned_cpus(view) is not None or (view.usage.throttled_fraction or 0) >= _THROTTLED:
        return None  # it waits for cores for another reason
    own = view.usage.own_cpu_cores
    had = view.usage.available_cpu_cores or own or view.cores
    gain = _with_cores(view, view.cores, had) or bound(1 / max(0.05, 1 - lost))
    return claim(
        view,
        "cpu.neighbours",
        Words(
            title="Other processes take the cores",
            explanation=f"Others kept {view.others:.1f} of {view.cores:g} cores busy, and making "
            f"a batch waited for a core {percent(starved(view))} of its time.",
        ),
        place=Place.CROWD if lost >= _TAKES_OVER else Place.BEHIND,
        cost=lost,
        figures={
            "other_cpu_cores": view.others,
            "own_cpu_cores": own,
            "available_cpu_cores": view.usage.available_cpu_cores,
            "usable_cores": view.cores,
            "starved_fraction": starved(view),
        },
        fix=Fix(
            text="Find who they are with `dlprof machine`, and run elsewhere or at another time, "
            "or ask for cores of your own; no setting of the loader gives them back.",
        ),
        gain=gain,
    )


def oversubscribed(view: View) -> Claim | None:
    """The loader's own processes want more cores than there are."""
    fewer = enough_workers(view)
    wanted = demand(view)
    if fewer is None or starved(view) < _STARVED:
        return None
    gain = gain_of(view, fewer)
    if gain is not None and gain.value < 0.9:
        return None
    return claim(
        view,
        "cpu.oversubscribed",
        Words(
            title="The workers want more cores than there are",
            explanation=f"{view.workers} workers would keep {wanted:.1f} cores busy and "
            f"{view.cores:g} can be had: a batch waits for a core "
            f"{percent(starved(view))} of its time.",
        ),
        place=Place.FAULT,
        cost=min(starved(view), self_starved(view)),
        figures={
            "wanted_cores": wanted,
            "usable_cores": view.cores,
            "own_cpu_cores": view.usage.own_cpu_cores,
            "starved_fraction": starved(view),
        },
        fix=settings_fix(
            view, fewer, f"Set num_workers={fewer.num_workers}: more workers only take turns."
        ),
        gain=gain,
    )


def enough_workers(view: View) -> Config | None:
    """As many workers as keep all cores busy, where there are far more."""
    wanted = demand(view)
    if limit_of(view) in ("consumer", "main", "unknown") or view.workers < 2:
        return None
    if wanted < _OVERSUBSCRIBED * view.cores or helpers_share(view) >= HELPERS:
        return None
    if pinned_cpus(view) is not None:
        return None
    throttled = (view.usage.throttled_fraction or 0) >= _THROTTLED
    if throttled and wanted < _OVERSUBSCRIBED * view.evidence.machine.affinity_cpus:
        return None
    count = max(1, math.ceil(view.workers * view.cores / wanted))
    return with_workers(view.config, count) if count < view.workers else None


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
    return claim(
        view,
        "cpu.threads",
        Words(
            title="Threads inside the workers compete for the cores",
            explanation=f"{view.workers} workers have up to {most} threads each on "
            f"{view.cores:g} cores; threads beside the one that fetches use "
            f"{percent(share / (1 + share))} of their CPU time.",
        ),
        place=Place.FAULT,
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
    return costs.put_cpu_s / costs.making.cpu_s if most > _OWN_THREADS else 0.0


def single_threaded(view: View) -> Config | None:
    """One thread in each worker, where threads use what the workers lack."""
    if not view.workers or helpers_share(view) < HELPERS or limit_of(view) == "consumer":
        return None
    return dataclasses.replace(view.config, worker_threads=1)


def _with_cores(view: View, cores: float, now: float) -> Gain | None:
    """What more cores would bring."""
    modelled = model_ratio(view, (view.config, cores), (view.config, now))
    if modelled is not None or view.costs is None:
        return modelled
    before = closed_form(view.costs, view.config, now)
    return bound(max(1.0, closed_form(view.costs, view.config, cores) / before))
