"""Who takes the cores: a quota, an affinity mask, others, the loader's own workers or threads."""

from __future__ import annotations

import math

from dlprof.advise.findings.claims import Claim, Place
from dlprof.advise.findings.gains import gain_of, measured_gain, predicted_gain
from dlprof.advise.findings.view import HELPERS, OTHERS, STARVED, View
from dlprof.advise.thresholds import WORTH_TRYING
from dlprof.advise.wording import percent
from dlprof.records import Config

_THROTTLED = 0.05
"""Share of the time that a quota holds the processes back, from which it counts."""

_TAKES_OVER = 0.4
"""Share of that time from which a crowd comes before what the cores are needed for."""

_CROWD = 0.75
"""Threads of others that want a core, over the machine's CPUs, from which they are a crowd. Cores
that are lost don't tell: the kernel shares them between sessions rather than threads, so that one
busy neighbour may take as much of two cores as six."""

_OVERSUBSCRIBED, _WANTS = 1.6, 1.1
"""Cores that the workers' own computing wants over those there are: of the machine, from which
fewer would do, and of an affinity mask, from which it is too narrow."""


def threads(view: View) -> Claim | None:
    """Threads inside the workers compete for the cores."""
    single = single_threaded(view)
    if single is None:
        return None
    tried = measured_gain(view, single)
    # A worker_init_fn of the user's own may set its threads after dlprof's.
    gain = tried if tried is not None and tried.value >= WORTH_TRYING else None
    share = view.helpers_share / (1 + view.helpers_share)
    return Claim(
        "Threads inside the workers compete for the cores",
        f"{view.workers} workers have up to {view.most_threads} threads each on {view.cores:g} "
        f"cores; threads other than the fetching one use {percent(share)} of their CPU time.",
        max(share, gain.saved if gain is not None else 0.0),
        "worker_threads num_workers usable_cores other_threads_cpu_fraction starved_fraction",
        {"other_threads_cpu_fraction": share},
        "Let each worker compute in one thread: set the pools of torch, OpenCV, BLAS and OpenMP to "
        "1 in worker_init_fn.",
        config=single,
        gain=gain,
    )


def single_threaded(view: View) -> Config | None:
    """One thread in each worker, where threads use what the workers lack."""
    several = view.workers and view.helpers_share >= HELPERS
    return view.having(worker_threads=1) if several else None


def _is_throttled(view: View) -> bool:
    return (view.usage.throttled_fraction or 0.0) >= _THROTTLED


def quota(view: View) -> Claim | None:
    """A cgroup's quota throttles."""
    throttled, machine = view.usage.throttled_fraction or 0.0, view.evidence.machine
    if not _is_throttled(view):
        return None
    allowed = machine.quota_cores or view.cores
    gain = predicted_gain(view, cores=max(allowed, machine.affinity_cpus), now=allowed)
    return Claim(
        "A CPU quota throttles the loader",
        f"The cgroup allows {allowed:g} of {machine.affinity_cpus} CPUs and throttled the "
        f"processes {percent(throttled)} of the time.",
        max(throttled, gain.saved if gain is not None else 0.0),
        "throttled_fraction quota_cores affinity_cpus own_cpu_cores",
        fix="Raise the quota (docker run --cpus, Kubernetes limits.cpu), or use one worker per "
        "core that it allows.",
        gain=gain,
    )


def affinity(view: View) -> Claim | None:
    """Workers are pinned to fewer cores than the job may use."""
    machine, pinned, costs = view.evidence.machine, _pinned_cpus(view), view.costs
    if pinned is None or costs is None:
        return None
    wanted = view.demand + costs.main_s / max(1e-12, costs.period_s)
    if wanted <= _WANTS * pinned and view.workers > 1:
        return None
    allowed = machine.affinity_cpus if pinned < machine.affinity_cpus else machine.logical_cpus
    cores = min(float(allowed), machine.quota_cores or math.inf)
    return Claim(
        "Workers are pinned to too few CPUs",
        f"They may run on {pinned} of {allowed} CPUs, and run-queue delay is "
        f"{percent(view.starved)} of the time. A library, or the program itself, sets the "
        "affinity.",
        max(view.starved, 1 - pinned / min(cores, max(wanted, pinned))),
        "worker_affinity_cpus affinity_cpus starved_fraction",
        {"worker_affinity_cpus": pinned, "affinity_cpus": allowed},
        "Let the workers run on all CPUs, and find what pins them (a library's import, "
        "KMP_AFFINITY, GOMP_CPU_AFFINITY, numactl).",
        """def use_all_cpus(worker_id):
    os.sched_setaffinity(0, range(os.cpu_count()))

loader = DataLoader(dataset, worker_init_fn=use_all_cpus, ...)""",
        gain=predicted_gain(view, cores=max(cores, pinned), now=pinned) if view.workers else None,
    )


def _pinned_cpus(view: View) -> int | None:
    """CPUs of the worker that has fewest, where that is fewer than the job's; else ``None``."""
    told, machine = view.evidence.explanations(), view.evidence.machine
    masks = (worker.affinity_cpus for explained in told for worker in explained.workers)
    least = min((cpus for cpus in masks if cpus is not None), default=None)
    if least is not None and least < machine.affinity_cpus:
        return least
    # One CPU of many for the whole program is more often an accident than an allotment.
    return 1 if machine.affinity_cpus == 1 < machine.logical_cpus else None


def _self_starved(view: View) -> float:
    """Share of making a batch in which it would wait for a core on a machine of its own."""
    return max(0.0, 1 - view.cores / view.demand) if view.demand > 0 else 0.0


def neighbours(view: View) -> Claim | None:
    """Others take the cores."""
    lost = 1 - (1 - view.starved) / max(0.05, 1 - _self_starved(view))
    if view.others < OTHERS * view.cores or lost < STARVED:
        return None
    if _pinned_cpus(view) is not None or _is_throttled(view):
        return None  # it waits for cores for another reason
    share, runnable = percent(view.starved), view.usage.other_runnable
    waited = f"run-queue delay was {share} of the time to make a batch"
    if view.costs is None:  # no batch was followed
        waited = f"run-queue delay was {share} of the time that the loader's processes could run"
    # Whether others want as good as all cores; so it seems where nobody counted them.
    crowded = runnable is None or runnable >= _CROWD * view.evidence.machine.logical_cpus
    had = view.usage.available_cpu_cores or view.usage.own_cpu_cores or view.cores
    return Claim(
        "Other processes take the cores",
        f"Other processes kept {view.others:.1f} of {view.cores:g} cores busy, and {waited}.",
        lost,
        "other_cpu_cores other_runnable own_cpu_cores available_cpu_cores usable_cores "
        "starved_fraction",
        fix="Find them with `dlprof machine`. Run elsewhere, at another time, or on reserved "
        "cores: no setting of the loader helps.",
        gain=predicted_gain(view, cores=max(view.cores, had), now=had),
        place=Place.CROWD if lost >= _TAKES_OVER and crowded else Place.BEHIND,
    )


def oversubscribed(view: View) -> Claim | None:
    """The loader's own processes want more cores than there are."""
    fewer = enough_workers(view)
    gain = None if fewer is None else gain_of(view, fewer)
    if fewer is None or view.starved < STARVED or (gain is not None and gain.value < 0.9):
        return None
    return Claim(
        "The workers want more cores than there are",
        f"{view.workers} workers want {view.demand:.1f} cores and {view.cores:g} are available: "
        f"run-queue delay is {percent(view.starved)} of the time to make a batch.",
        min(view.starved, _self_starved(view)),
        "wanted_cores usable_cores own_cpu_cores starved_fraction",
        fix=f"Set num_workers={fewer.num_workers}: more workers only take turns.",
        config=fewer,
        gain=gain,
    )


def enough_workers(view: View) -> Config | None:
    """As many workers as keep all cores busy, where there are far more."""
    wanted, cores = view.demand, view.cores
    if _is_throttled(view):
        cores = max(cores, view.evidence.machine.affinity_cpus)
    if view.limit in ("main", "unknown") or view.workers < 2 or view.helpers_share >= HELPERS:
        return None
    if wanted < _OVERSUBSCRIBED * cores or _pinned_cpus(view) is not None:
        return None
    active = view.workers - view.idle_workers
    count = max(1, math.ceil(active * view.cores / wanted))
    return view.having(num_workers=count) if count < active else None
