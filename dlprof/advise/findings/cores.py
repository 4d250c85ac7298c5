"""Who takes the cores: a quota, an affinity mask, others, the loader's own workers or threads."""

from __future__ import annotations

import dataclasses
import math

from dlprof.advise.findings.claims import Claim, Place, settings_fix
from dlprof.advise.findings.consumer import idle_workers, with_workers
from dlprof.advise.findings.gains import (
    Gain,
    bound,
    closed_form,
    gain_of,
    measured_gain,
    model_ratio,
)
from dlprof.advise.findings.view import HELPERS, STARVED, View
from dlprof.advise.wording import percent
from dlprof.records import Config, Fix

_THROTTLED = 0.05
_OTHERS = 0.15
"""Share of the usable cores that others may keep busy before they count."""

_TAKES_OVER = 0.4
"""Share of that time from which a crowd comes before what the cores are needed for."""

_CROWD = 0.75
"""Threads of others that want a core, over the machine's CPUs, from which they are a crowd. Cores
that are lost don't tell: the kernel shares them between sessions rather than threads, so that one
busy neighbour may take as much of two cores as six."""

_OVERSUBSCRIBED = 1.6
"""Cores that the workers' own computing wants over those there are."""

_WANTS = 1.1
_AFFINITY_CODE = """def use_all_cpus(worker_id):
    os.sched_setaffinity(0, range(os.cpu_count()))

loader = DataLoader(dataset, worker_init_fn=use_all_cpus, ...)"""


def demand(view: View) -> float:
    """Cores that making batches would use if there were enough: workers less their waiting."""
    costs = view.costs
    if costs is None or costs.making.own_s <= 0:
        return 0.0
    making, put_s = costs.making, costs.put_cpu_s
    active = max(1, view.workers - idle_workers(view))
    # A feeder pickles in turns with the thread that fetches; a pool of threads runs beside it.
    beside = view.helpers_share >= HELPERS
    return active * (making.cpu_s + put_s) / (making.own_s + (0.0 if beside else put_s))


def self_starved(view: View) -> float:
    """What of that the loader would do to itself on a machine of its own."""
    wanted = demand(view)
    return max(0.0, 1 - view.cores / wanted) if wanted > 0 else 0.0


def threads(view: View) -> Claim | None:
    """Threads inside the workers compete for the cores."""
    single = single_threaded(view)
    if single is None or view.limit == "consumer":
        return None
    tried = measured_gain(view, single)
    # A worker_init_fn of the user's own may set its threads after dlprof's.
    gain = tried if tried is not None and tried.value >= 1.05 else None
    share = view.helpers_share / (1 + view.helpers_share)
    return Claim(
        title="Threads inside the workers compete for the cores",
        explanation=f"{view.workers} workers have up to {view.most_threads} threads each on "
        f"{view.cores:g} cores; threads beside the one that fetches use "
        f"{percent(share)} of their CPU time.",
        cost=max(share, gain.saved if gain is not None else 0.0),
        figures={
            "worker_threads": view.most_threads,
            "num_workers": view.workers,
            "usable_cores": view.cores,
            "other_threads_cpu_fraction": share,
            "starved_fraction": view.starved,
        },
        fix=settings_fix(
            view,
            single,
            "Let each worker compute in one thread: set the pools of torch, OpenCV, BLAS and "
            "OpenMP to 1 in worker_init_fn.",
        ),
        gain=gain,
    )


def single_threaded(view: View) -> Config | None:
    """One thread in each worker, where threads use what the workers lack."""
    if not view.workers or view.helpers_share < HELPERS or view.limit == "consumer":
        return None
    return dataclasses.replace(view.config, worker_threads=1)


def quota(view: View) -> Claim | None:
    """A cgroup's quota throttles."""
    throttled = view.usage.throttled_fraction
    if throttled is None or throttled < _THROTTLED or view.limit == "consumer":
        return None
    machine = view.evidence.machine
    allowed = machine.quota_cores or view.cores
    gain = _with_cores(view, float(machine.affinity_cpus), allowed)
    cost = max(throttled, gain.saved if gain is not None else 0.0)
    return Claim(
        title="A CPU quota throttles the loader",
        explanation=f"The cgroup allows {allowed:g} of {machine.affinity_cpus} CPUs and held "
        f"the processes back for {percent(throttled)} of the time.",
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
    machine, pinned = view.evidence.machine, pinned_cpus(view)
    if pinned is None or view.costs is None or view.limit == "consumer":
        return None
    wanted = demand(view) + view.costs.main_s / max(1e-12, view.costs.period_s)
    if wanted <= _WANTS * pinned and view.workers > 1:
        return None
    allowed = machine.affinity_cpus if pinned < machine.affinity_cpus else machine.logical_cpus
    cores = min(float(allowed), machine.quota_cores or float(allowed))
    gain = _with_cores(view, cores, pinned) if view.workers else None
    return Claim(
        title="Workers are pinned to too few CPUs",
        explanation=f"They may run on {pinned} of the {allowed} CPUs that there are, and "
        f"wait for a core {percent(view.starved)} of the time. A library, or the program "
        "itself, has set the affinity.",
        cost=max(view.starved, 1 - pinned / min(cores, max(wanted, pinned))),
        figures={
            "worker_affinity_cpus": pinned,
            "affinity_cpus": allowed,
            "starved_fraction": view.starved,
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
    least, machine = min(found, default=None), view.evidence.machine
    if least is not None and least < machine.affinity_cpus:
        return least
    # One CPU of many for the whole program is more often an accident than an allotment.
    return 1 if machine.affinity_cpus == 1 < machine.logical_cpus else None


def neighbours(view: View) -> Claim | None:
    """Others take the cores."""
    lost = 1 - (1 - view.starved) / max(0.05, 1 - self_starved(view))
    busy_others = view.others >= _OTHERS * view.cores
    if not busy_others or lost < STARVED or view.limit == "consumer":
        return None
    if pinned_cpus(view) is not None or (view.usage.throttled_fraction or 0) >= _THROTTLED:
        return None  # it waits for cores for another reason
    own, runnable = view.usage.own_cpu_cores, view.usage.other_runnable
    # Whether others want as good as all cores; so it seems where nobody counted them.
    crowded = runnable is None or runnable >= _CROWD * view.evidence.machine.logical_cpus
    had = view.usage.available_cpu_cores or own or view.cores
    return Claim(
        title="Other processes take the cores",
        explanation=f"Others kept {view.others:.1f} of {view.cores:g} cores busy, and "
        f"{_who_waited(view)}.",
        place=Place.CROWD if lost >= _TAKES_OVER and crowded else Place.BEHIND,
        cost=lost,
        figures={
            "other_cpu_cores": view.others,
            "other_runnable": runnable,
            "own_cpu_cores": own,
            "available_cpu_cores": view.usage.available_cpu_cores,
            "usable_cores": view.cores,
            "starved_fraction": view.starved,
        },
        fix=Fix(
            text="Find who they are with `dlprof machine`, and run elsewhere or at another time, "
            "or ask for cores of your own; no setting of the loader gives them back.",
        ),
        gain=_with_cores(view, view.cores, had),
    )


def _who_waited(view: View) -> str:
    """For a core: where no batch was followed only the share of the time able to run is known."""
    share = percent(view.starved)
    if view.costs is None:
        return f"the loader's processes waited for a core {share} of the time that they could run"
    return f"making a batch waited for a core {share} of its time"


def oversubscribed(view: View) -> Claim | None:
    """The loader's own processes want more cores than there are."""
    fewer = enough_workers(view)
    wanted = demand(view)
    if fewer is None or view.starved < STARVED:
        return None
    gain = gain_of(view, fewer)
    if gain is not None and gain.value < 0.9:
        return None
    return Claim(
        title="The workers want more cores than there are",
        explanation=f"{view.workers} workers would keep {wanted:.1f} cores busy and {view.cores:g} "
        f"can be had: a batch waits for a core {percent(view.starved)} of its time.",
        cost=min(view.starved, self_starved(view)),
        figures={
            "wanted_cores": wanted,
            "usable_cores": view.cores,
            "own_cpu_cores": view.usage.own_cpu_cores,
            "starved_fraction": view.starved,
        },
        fix=settings_fix(
            view, fewer, f"Set num_workers={fewer.num_workers}: more workers only take turns."
        ),
        gain=gain,
    )


def enough_workers(view: View) -> Config | None:
    """As many workers as keep all cores busy, where there are far more."""
    wanted = demand(view)
    if view.limit in ("consumer", "main", "unknown") or view.workers < 2:
        return None
    if wanted < _OVERSUBSCRIBED * view.cores or view.helpers_share >= HELPERS:
        return None
    if pinned_cpus(view) is not None:
        return None
    throttled = (view.usage.throttled_fraction or 0) >= _THROTTLED
    if throttled and wanted < _OVERSUBSCRIBED * view.evidence.machine.affinity_cpus:
        return None
    active = view.workers - idle_workers(view)
    count = max(1, math.ceil(active * view.cores / wanted))
    return with_workers(view.config, count) if count < active else None


def _with_cores(view: View, cores: float, now: float) -> Gain | None:
    """What more cores would bring."""
    modelled = model_ratio(view, (view.config, cores), (view.config, now))
    if modelled is not None or view.costs is None:
        return modelled
    before = closed_form(view.costs, view.config, now)
    return bound(max(1.0, closed_form(view.costs, view.config, cores) / before))
