"""What the machine does to a loader and a step: cores, memory, the way to the device."""

from __future__ import annotations

import dataclasses
import itertools
import math
import statistics
from collections.abc import Mapping, Sequence

from dlprof.advise import thresholds as at
from dlprof.advise.findings.claims import (
    Claim,
    Gain,
    Place,
    bound,
    gain_of,
    measured_gain,
    most_by_step,
    predicted_gain,
    tried_in_vain,
)
from dlprof.advise.findings.evidence import Evidence, StageTime
from dlprof.advise.wording import accelerate_code, is_trainers, percent
from dlprof.advise.wrong_data import failed_by
from dlprof.records import Config, Failure, FailureKind, GpuUsage, Trial, pins_for
from dlprof.records.stages import CACHE, FREED, KEEPING
from dlprof.stats.intervals import typical
from dlprof.units import format_bytes, format_duration


def threads(view: Evidence) -> Claim | None:
    """Threads beside the one that fetches compete for the cores."""
    if not view.workers:
        return _pool_of_main(view)
    single = single_threaded(view)
    if single is None or view.gil_share >= at.LARGE_SHARE:  # it is the GIL that they hold
        return None
    gain, share = measured_gain(view, single), view.helpers_share / (1 + view.helpers_share)
    fix = (
        "Let each worker compute in one thread: in worker_init_fn, set the pools of the libraries "
        "that its dataset uses (OpenCV, PyArrow, BLAS, OpenMP) to 1. OMP_NUM_THREADS=1 in the "
        "environment does that for BLAS and OpenMP."
    )
    vain, own = tried_in_vain(view, single, gain), ""
    if _have_cores(view) and (vain or gain is None):
        return None
    if gain is not None and 0 < gain.estimate.ends[1] < 1:
        return None  # they are worth what they take
    if vain:  # all that a worker_init_fn can set was set
        own = f" {vain} So they cost little, or the dataset starts them by itself."
        fix, gain = "If the dataset starts threads of its own, start fewer, as by ", None
        fix += "TOKENIZERS_PARALLELISM=false or POLARS_MAX_THREADS=1 in the environment."
    return Claim(
        "Threads inside the workers compete for the cores",
        f"{view.workers} workers have up to {view.most_threads} threads each on {view.cores:g} "
        f"cores; threads other than the fetching one use {percent(share)} of their CPU time.{own}",
        max(share, gain.saved if gain is not None else 0.0),
        "worker_threads num_workers usable_cores other_threads_cpu_fraction starved_fraction",
        {"other_threads_cpu_fraction": share} | ({"tried": vain} if vain else {}),
        fix,
        config=None if vain else single,
        gain=gain,
    )


def _have_cores(view: Evidence) -> bool:
    """Whether the threads of workers are known to have the cores that they want.

    One that fetches may sleep while those of its pool wait for a core.
    """
    queued = view.usage.run_queue_wait_fraction
    if queued is None or _is_throttled(view):
        return False
    return max(queued, view.starved) < at.STARVED


def _pool_of_main(view: Evidence) -> Claim | None:
    """Without workers, a pool of threads by which a batch takes longer than in one thread.

    Its threads spin while they wait for each other, the longer the more others want the cores. A
    worker, in which torch computes in one thread, shows what a batch takes without them.
    """
    explained, costs, one = view.explained, view.costs, view.one_thread
    beside_s = None if explained is None else explained.fetch_threads_cpu_s
    if not beside_s or costs is None or view.gil_share >= at.LARGE_SHARE:
        return None
    now, share = costs.making, beside_s / (costs.making.cpu_s + beside_s)
    if beside_s < at.HELPERS * now.cpu_s or (one is None and not view.pool_s):
        return None
    taken = f"Making a batch takes {format_duration(now.cpu_s)} of CPU time in the main process, "
    taken += f"where other threads use {format_duration(beside_s)} more, and "
    claim = Claim(
        "Threads of the main process compete for the cores",
        f"{taken}run-queue delay is {percent(view.starved)} of the time. Threads that wait for "
        "each other spin, the longer the busier the cores. One thread takes "
        f"{format_duration(max(0.0, now.cpu_s - beside_s))} of CPU time if they only spin, and "
        f"{format_duration(now.cpu_s + beside_s)} if all of it is work.",
        share * (view.wait or 1.0),
        "num_workers usable_cores making_s starved_fraction",
        {"other_threads_cpu_fraction": share},
        _ONE_THREAD,
        _ONE_THREAD_CODE,
    )
    if one is None:
        return dataclasses.replace(claim, fix=f"{claim.fix} A worker computes in one thread, too.")
    # It is blocked until the pool's last thread is done, or while other threads hold the GIL: only
    # where that is known, the rest is the pool's.
    gil_s = view.waits_for_gil_s
    io_s = now.io_s if gil_s is None else min(now.io_s, one.io_s + gil_s)
    single = dataclasses.replace(costs, fetch=StageTime(one.cpu_s, io_s), collate=StageTime())
    gain = predicted_gain(view, costs=single)
    burned_s = now.cpu_s + beside_s - one.cpu_s  # where a pool does a part of it, next to nothing
    if gain is None or gain.value < at.PAYS or burned_s < at.HELPERS * one.cpu_s:
        return None
    return dataclasses.replace(
        claim,
        title="Threads of the main process cost more than they give",
        explanation=f"{taken}{format_duration(one.cpu_s)} in a worker, which computes in one "
        "thread. Threads that wait for each other spin.",
        cost=gain.saved,
        given={**claim.given, "one_thread_cpu_s": one.cpu_s},
        gain=gain,
        place=None if view.starved >= at.LARGE_SHARE else Place.SETTING,
    )


def pool_by_trials(view: Evidence) -> Claim | None:
    """The same of a sweep without workers, by plain trials: those with workers show one thread.

    One thread gets as much of a core as each of the pool's that want one do.
    """
    most, alone = view.config.batch_size, view.plain("present")
    others = [
        trial
        for trial in view.plain("variant")
        if trial.config.num_workers
        and trial.config.batch_size == most
        and trial.config.worker_threads in {None, 1}
    ]
    least = min((trial.config.num_workers for trial in others), default=0)
    fewest = (trial for trial in others if trial.config.num_workers == least)
    runnable = typical(trial.usage.main_runnable for trial in alone)
    cpu_s, one_cpu_s = (typical(map(_cpu_per_batch_s, some)) for some in (alone, fewest))
    if not (least and runnable and cpu_s and one_cpu_s) or runnable < 1 + at.HELPERS:
        return None
    gain = bound(cpu_s / one_cpu_s / runnable)
    if not gain.pays:
        return None
    return Claim(
        "Threads of the main process cost more than they give",
        f"Without workers a batch takes {format_duration(cpu_s)} of CPU time in {runnable:.1f} "
        f"threads that want a core at once, and {format_duration(one_cpu_s)} with "
        f"num_workers={least}, as a worker computes in one thread.",
        gain.saved,
        given={"main_runnable": runnable, "batch_cpu_s": cpu_s, "one_thread_cpu_s": one_cpu_s},
        fix=_ONE_THREAD,
        code=_ONE_THREAD_CODE,
        gain=gain,
    )


def _cpu_per_batch_s(trial: Trial) -> float | None:
    cores, rate = trial.usage.own_cpu_cores, trial.batches_per_s
    return None if cores is None or rate is None or rate.value <= 0 else cores / rate.value


_ONE_THREAD_CODE = "torch.set_num_threads(1)  # before the loader is iterated"
_ONE_THREAD = (
    "Compute in one thread: torch.set_num_threads(1) where the script begins, or, of code that "
    "doesn't call torch, OMP_NUM_THREADS=1 in the environment. If the step needs more, let its "
    "threads sleep while they wait: OMP_WAIT_POLICY=passive."
)


def single_threaded(view: Evidence) -> Config | None:
    """One thread in each worker, where threads use what the workers lack."""
    several = view.workers and view.helpers_share >= at.HELPERS
    return view.having(worker_threads=1) if several else None


def _is_throttled(view: Evidence) -> bool:
    return (view.usage.throttled_fraction or 0.0) >= at.NOTABLE


def quota(view: Evidence) -> Claim | None:
    """A cgroup's quota throttles."""
    throttled, machine = view.usage.throttled_fraction or 0.0, view.machine
    if not _is_throttled(view):
        return None
    allowed = machine.quota_cores or view.cores
    gain = predicted_gain(view, cores=max(allowed, machine.affinity_cpus), now=allowed)
    # Short bursts are throttled, too, of a loader that mostly waits for something else.
    little = throttled < at.STARVED
    return Claim(
        "A CPU quota throttles the loader",
        f"The cgroup allows {allowed:g} of {machine.affinity_cpus} CPUs{view.to_each} and "
        f"throttled the processes {percent(throttled)} of the time.",
        max(throttled, gain.saved if gain is not None else 0.0),
        "throttled_fraction quota_cores affinity_cpus own_cpu_cores",
        fix="Raise the quota (docker run --cpus, Kubernetes limits.cpu), or use one worker per "
        "core that it allows.",
        gain=gain,
        place=place_of(gain) if little else None,
    )


_ALL_CPUS = """def use_all_cpus(worker_id):
    os.sched_setaffinity(0, range(os.cpu_count()))"""


def affinity(view: Evidence) -> Claim | None:
    """Workers are pinned to fewer cores than the job may use."""
    machine, pinned, costs = view.machine, _pinned_cpus(view), view.costs
    if pinned is None or costs is None:
        return None
    whole = pinned == machine.affinity_cpus  # main, too
    wanted = view.demand + whole * costs.main_s / max(1e-12, costs.period_s)
    # Where it is the whole program, more workers would bring nothing: also said of few.
    if wanted <= 1.1 * pinned and not (whole and view.workers < 2):
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
        _ALL_CPUS if view.on_linux else "",
        ("worker_init_fn", "use_all_cpus") if view.on_linux else None,
        gain=predicted_gain(view, cores=max(cores, pinned), now=pinned) if view.workers else None,
    )


def _pinned_cpus(view: Evidence) -> int | None:
    """CPUs of the worker that has fewest, where that is fewer than the job's; else ``None``.

    Workers that together use more than so many have CPUs of their own each, and lack none.
    """
    traced, machine = view.explanations(), view.machine
    masks = (worker.affinity_cpus for explained in traced for worker in explained.workers)
    least = min((cpus for cpus in masks if cpus is not None), default=None)
    if least is not None and least < machine.affinity_cpus:
        own = () if view.explained is None else view.explained.workers
        used = math.fsum(worker.cpu_cores or 0.0 for worker in own)
        return least if used <= 1.1 * least else None
    # One CPU of many for the whole program is more often an accident than an allotment.
    return 1 if machine.affinity_cpus == 1 < machine.logical_cpus else None


def _self_starved(view: Evidence) -> float:
    """Share of making a batch in which it would wait for a core on a machine of its own."""
    demand = view.demand
    if view.costs is None or view.costs.making.wall_s <= 0:
        demand = view.runnable  # no batch was followed: by its threads that ran or could run
    return max(0.0, 1 - view.cores / demand) if demand > 0 else 0.0


def neighbours(view: Evidence) -> Claim | None:
    """Others take the cores."""
    if view.limit == "consumer":
        return _neighbours_of_step(view)
    lost = 1 - (1 - view.starved) / max(0.05, 1 - _self_starved(view))
    costs = view.costs
    followed = costs is not None and costs.making.wall_s > 0  # a batch, to who makes it
    # Where none was, whatever else takes its time can't be seen beside a small part.
    least = at.STARVED if followed else at.LARGE_SHARE
    if view.others < at.OTHERS * view.cores or lost < least:
        return None
    if _pinned_cpus(view) is not None or _is_throttled(view):
        return None  # it waits for cores for another reason
    share = percent(view.starved)
    waited = f"run-queue delay was {share} of the time to make a batch"
    if not followed:
        waited = f"run-queue delay was {share} of the loader's time"
    # Whether others want as good as all cores; so it seems where nobody counted them. Cores that
    # are lost don't show it: the kernel shares them between sessions rather than threads, so that
    # one busy neighbor may take as much of two cores as six. Who else is there has nothing to do
    # with the settings, and a trial's few looks have luck: one neighbor may be 1.6.
    runnable = typical(trial.usage.other_runnable for trial in view.trials())
    crowded = runnable is None or runnable >= 0.75 * view.machine.logical_cpus * view.ranks
    if costs is not None:
        # Fetching or collating may, by itself, take longer than what others take of a batch.
        largest_s = max(costs.fetch.cpu_s, costs.fetch.io_s, costs.collate.own_s)
        crowded = crowded and largest_s <= lost * costs.making.wall_s
    # Whose threads make the batches of a loader that is measured as it is, and which of them take
    # turns, isn't seen.
    gain = None if costs is not None and not followed else _alone(view)
    # What brings nothing to speak of is behind all that does.
    crowded = crowded and (gain is None or gain.value >= at.PAYS)
    if (most := _over_shown(view)) is not None:
        lost = min(lost, 1 - 1 / most)  # a traced trial may have met more of them
    return Claim(
        "Other processes take the cores",
        f"Other processes kept {view.others:.1f} of {view.cores:g} cores busy, and {waited}.",
        lost,
        "other_cpu_cores other_runnable own_cpu_cores available_cpu_cores usable_cores "
        "starved_fraction",
        fix=_QUIETER,
        gain=gain,
        place=Place.CROWD if lost >= 0.4 and crowded else Place.BEHIND,
    )


def _neighbours_of_step(view: Evidence) -> Claim | None:
    """Others take the cores that a step computes on, which the loader keeps fed."""
    usage, costs, taken = view.usage, view.costs, view.others >= at.OTHERS * view.cores
    own, queued = usage.own_cpu_cores, usage.run_queue_wait_fraction
    if not (taken and own and queued and costs and view.wait is not None):
        return None
    # Of a stated length it is none of the user's. All threads that want a core are those that have
    # one and those that wait: on a machine of their own no more of them wait than there are cores.
    wanted = view.runnable
    lost = 1 - (1 - queued) / max(0.05, min(1.0, view.cores / wanted))
    by_loading = (costs.making.run_queue_s + costs.receive.run_queue_s) / max(1e-12, costs.period_s)
    share = min(1 - view.wait, queued * wanted - by_loading)
    stated = view.script is None and view.step_s > 0
    if stated or lost < at.STARVED or share < at.STARVED or _is_throttled(view):
        return None
    return Claim(
        f"Other processes take the cores: {own:.2g} of {view.cores:g} were left",
        f"Other processes kept {view.others:.1f} of {view.cores:g} cores busy, and run-queue delay "
        f"was {percent(queued)} of the time that this job's threads could run. The loader keeps "
        "up, and the step itself takes longer than it would on a quiet machine.",
        share,
        "other_cpu_cores other_runnable own_cpu_cores available_cpu_cores usable_cores",
        {"run_queue_wait_fraction": queued},
        _QUIETER,
        place=Place.CONSUMER,
    )


_QUIETER = "Find them with `dlprof machine`. Run elsewhere, at another time, or on reserved cores."


def _alone(view: Evidence) -> Gain | None:
    """What all cores would bring: no more than all that its threads waited for one.

    Whoever sleeps, as main in a sampler or a step, does so beside nobody, too.
    """
    usage, costs = view.usage, view.costs
    own, queued = usage.own_cpu_cores, usage.run_queue_wait_fraction
    had, gain = usage.available_cpu_cores or own, None
    if had:
        gain = predicted_gain(view, cores=max(view.cores, had), now=had)
    if costs is not None and (gain is None or gain.value < at.PAYS):
        # What it had doesn't show in a short trial, nor in one of a loader that mostly waits: by
        # what a batch took, and would take with a core at hand.
        gain = bound(max(1.0, costs.rate(view.config, view.cores) * costs.period_s))
        gain = gain.at_most(most_by_step(view, quiet=True))
    if gain is None:
        return gain
    gain = dataclasses.replace(gain, is_alone=True)
    if (shown := _over_shown(view)) is not None:
        gain = gain.at_most(shown)
    if not own or queued is None:
        return gain
    most = 1 / max(0.02, 1 - queued * view.runnable)  # of which so many wait, on average
    return gain.at_most(most)


def _over_shown(view: Evidence) -> float | None:
    """What all cores would bring over what is shown, at most; ``None`` if unknown."""
    if view.costs is None or not view.shown_rate:
        return None
    return max(1.0, view.costs.rate(view.config, view.cores) / view.shown_rate)


def oversubscribed(view: Evidence) -> Claim | None:
    """The loader's own processes want more cores than there are."""
    fewer = enough_workers(view)
    gain = gain_of(view, fewer)
    if fewer is None or view.starved < at.STARVED:
        return None
    if gain is not None and gain.value < 1 / at.PAYS:
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


def enough_workers(view: Evidence) -> Config | None:
    """As many workers as keep all cores busy, where there are far more."""
    wanted, cores = view.demand, view.cores
    if _is_throttled(view):
        cores = max(cores, view.machine.affinity_cpus)
    if view.limit in ("main", "unknown") or view.workers < 2 or view.helpers_share >= at.HELPERS:
        return None
    if wanted < 1.6 * cores or _pinned_cpus(view) is not None:
        return None
    active = view.workers - view.idle_workers
    count = max(1, math.ceil(active * view.cores / wanted))
    return view.having(num_workers=count) if count < active else None


def growth(view: Evidence) -> Claim | None:
    """Memory per worker grows."""
    slope, machine = growth_per_batch(view), view.machine
    room = machine.memory_available_bytes or machine.memory_bytes
    if slope is None or slope <= 0 or not view.rate or room is None:
        return None
    # Of an epoch or an hour, whichever is longer.
    ahead, each_s = slope * max(view.epoch_batches or 0, view.rate * 3600), slope * view.rate
    if ahead < 0.1 * room:
        return None
    points, ends = _memory(view), _last_batch(view)
    if len(points) > 1 and points[-1][0] > ends and _grows(view, points):
        ends = math.inf  # it goes on beyond an epoch, and so is in the main process
    held, grown = slope * ends, growing(view)
    named = next((name for name, size in grown.items() if size >= 0.2 * slope), None)
    what = _what_grows(view, named, grown)
    if back := held < 0.1 * room:
        what += f" Workers end with each epoch, after {format_bytes(held)}, and give that back; "
        what += "those of persistent_workers=True keep it."
    if named == FREED and not _is_past_filling(view, slope):
        return None
    fix = "Find what the dataset keeps, such as a list or cache that only grows. Keep its "
    fix += "index in tensors or arrays instead of Python objects."
    code = """# one array: Python objects are copied page by page as workers count references
self.paths = torch.tensor(...)  # or numpy arrays, or one bytes object with offsets"""
    if named == FREED:
        fix = "Set MALLOC_MMAP_THRESHOLD_=1048576 in the environment: freed blocks of 1 MiB and "
        fix += "more then go back to the system at once. If yours are smaller, load jemalloc."
        code = "MALLOC_MMAP_THRESHOLD_=1048576 python train.py"
    elif named:
        fix = f"Keep nothing per sample in {named}, or bound it."
    return Claim(
        "Memory of the workers grows" + (f": {named}" if named else ""),
        f"Memory grows by {format_bytes(slope)} a batch, {format_bytes(each_s)} a second; "
        f"{format_bytes(room)} is available{view.to_each}. {what}",
        min(ahead, held) / room,
        given={
            "growing": grown,
            "growth_bytes_per_batch": slope,
            "growth_bytes_per_s": each_s,
            "memory_available_bytes": room,
            "seconds_to_full": room / each_s if held >= room else None,
        },
        fix=fix,
        code=code,
        place=Place.BEHIND if back else None,
    )


def _last_batch(view: Evidence) -> float:
    """Batches after which workers end with their epoch; infinite where that ends none."""
    epoch = view.epoch_batches
    return epoch if epoch and view.workers and not view.persists else math.inf


_CACHES = ("(dict)", "(set)", "(list)", CACHE)  # as the tracer names what may be a cache


def growing(view: Evidence) -> dict[str, float]:
    """Bytes a batch by which containers of the dataset grow: medians over workers, most first."""
    workers = () if view.explained is None else view.explained.workers
    names = dict.fromkeys(name for worker in workers for name in worker.growing)
    sizes = {n: [each.growing[n] for each in workers if n in each.growing] for n in names}
    middle = {name: statistics.median(found) for name, found in sizes.items()}
    # What malloc keeps is the cause only where no container is.
    order = sorted(middle, key=lambda each: (each == FREED, -middle[each]))
    return {name: middle[name] for name in order}


def _what_grows(view: Evidence, named: str | None, grown: Mapping[str, float]) -> str:
    if named is not None:
        by = f"{named} grows by {format_bytes(grown[named])} a batch"
        freed = f"No container grows so: {by}, in pieces that fit no new batch."
        return freed if named == FREED else f"{by}."
    first = None if view.weight is None else view.weight.heaviest
    if first is not None and first.object_bytes >= at.LEAST_SEEN:
        held = f"{format_bytes(first.object_bytes)} of Python objects, whose pages workers copy"
        return f"No attribute of the dataset grows that much; {first.name} has {held}."
    return "No attribute of the dataset, global of its module or lru_cache grows that much."


def growth_per_batch(view: Evidence) -> float | None:
    """Bytes that a batch leaves behind, all processes together; ``None`` where nothing is sure.

    By what longer trials had in the end more than shorter ones, or else by the slope of the
    workers' private memory, or by what a container of the dataset took of it.
    """
    points, explained = _memory(view), view.explained
    if len(points) > 1:
        return _slope(points) if _grows(view, points) else growth_of_containers(view)
    slopes = [w.pss_growth_bytes_per_batch for w in (explained.workers if explained else ())]
    known = [slope for slope in slopes if slope is not None]
    if not known or explained is None or explained.batches < at.LEAST_BATCHES:
        return growth_of_containers(view)
    slope = statistics.median(known)
    return slope if slope * explained.batches >= at.LEAST_SEEN else None


def growth_of_containers(view: Evidence) -> float | None:
    """Bytes that a batch adds to a container which no cache is, as traced workers showed it.

    That needs fewer batches than memory as a whole, of which much fills up at first. Where epochs
    end the workers, no more than an epoch's batches are there at once.
    """
    explained, ends = view.explained, _last_batch(view)
    caches = (FREED, *_CACHES)
    grown, processes = growing(view), max(1, view.workers)
    filled = {name: size for name, size in grown.items() if name.endswith(caches)}
    slope = max((size for name, size in grown.items() if name not in filled), default=0.0)
    if explained is None or explained.batches < at.LEAST_BATCHES or view.target.keeps_samples:
        return None
    # What caches took of the memory may be all that there was, whatever this one refers to.
    if (slope - sum(filled.values())) * explained.batches < at.LEAST_SEEN * processes:
        return None
    whole = [(batches, held) for batches, held in _memory(view) if batches <= ends]
    # The longest trial had less: it was full by then.
    return None if whole and whole[-1][1] < slope * whole[-1][0] / 2 else slope


def may_grow(view: Evidence, batches: float) -> bool:
    """Whether a trial of so many batches is worth its time.

    The longest so far had most memory, and at that rate this one would show it to be growth.
    """
    points = _memory(view)
    if len(points) < 2 or points[-1][0] - points[0][0] < at.LEAST_BATCHES:
        return False
    grown = points[-1][1] - points[0][1]
    expected = grown / (points[-1][0] - points[0][0]) * (batches - points[0][0])
    # More than the allocator's noise; half of what would show, since a slope has its luck.
    least = at.LEAST_SEEN * max(1, view.workers)
    return grown >= 4 << 20 and 2 * expected >= least


def growth_in_doubt(view: Evidence) -> str:
    """That memory grew by what may be filling up or growth, which no trial was long enough to show.

    Empty where it is known, or grew by too little to say. What malloc keeps is known to fill up.
    """
    points, processes = _memory(view), max(1, view.workers)
    if len(points) < 2 or growth_per_batch(view) is not None or FREED in growing(view):
        return ""
    batches, grown = points[-1][0] - points[0][0], points[-1][1] - points[0][1]
    least, enough = at.LEAST_SEEN * processes, at.ENOUGH_BATCHES * processes
    little = batches < at.LEAST_BATCHES or grown < max(least, 2 * (view.batch_bytes or 0.0))
    if little or points[-1][0] >= enough:
        return ""
    return (
        f"Memory grew by {format_bytes(grown)} within {batches:,} batches. What fills up does so, "
        f"too: trials of {enough:,} batches show whether it goes on. Give a longer --budget."
    )


def _is_past_filling(view: Evidence, slope: float) -> bool:
    """Whether what malloc keeps grew for longer, or by more, than it does until it is full.

    That is more than other memory does: clips of a video, 15 MB a batch, left 173 MB within 70
    batches and never more than 195 MB, most of which went back at the 80th, and so on.
    """
    processes, traced = max(1, view.workers), (each.batches for each in view.explanations())
    batches = max([*traced, *(batches for batches, _ in _memory(view))], default=0)
    if batches >= at.ENOUGH_BATCHES * processes:
        return True
    return slope * batches >= 4 * at.FILLED_UP * processes


def _memory(view: Evidence) -> list[tuple[int, int]]:
    """Batches and memory in the end, of the configuration's own trials, by batches."""
    trials = view.plain("present")
    points = ((trial.window_batches, trial.usage.pss_peak_bytes) for trial in trials)
    return sorted((batches, held) for batches, held in points if held is not None)


def _grows(view: Evidence, points: Sequence[tuple[int, int]]) -> bool:
    """Whether the growth is larger than what queues and allocators make of it, and goes on."""
    processes = max(1, view.workers)
    grown = points[-1][1] - points[0][1]
    # Queues differ by a batch or two.
    if grown < max(at.LEAST_SEEN * processes, 2 * (view.batch_bytes or 0.0)):
        return False
    if points[-1][0] - points[0][0] < at.LEAST_BATCHES:
        return False
    if points[-1][0] < at.ENOUGH_BATCHES * processes:
        return grown >= at.FILLED_UP * processes
    batches, most = points[-1]
    shorter = [point for point in points if point[0] <= 0.75 * batches]
    if statistics.correlation(*zip(*points, strict=True)) < 0.85 or not shorter:
        return False
    # What fills up levels off: growth is as fast in the longest trial's second half.
    late = (most - shorter[-1][1]) / (batches - shorter[-1][0])
    several = shorter[-1][0] > shorter[0][0]
    return late >= 0.6 * _slope(shorter if several else points)


def _slope(points: Sequence[tuple[int, int]]) -> float:
    return statistics.linear_regression(*zip(*points, strict=True)).slope


def limit(view: Evidence) -> Claim | None:
    """The setting does not fit into memory, or only just."""
    failure, machine = _failure(view, "out_of_memory"), view.machine
    size, used = machine.memory_size_bytes, view.usage.pss_peak_bytes
    room = size and size // view.ranks
    if failure is None and (used is None or room is None or used < at.USED_UP * room):
        return None
    fewer = view.having(num_workers=view.workers // 2, prefetch_factor=1)
    less = "smaller batches"
    if fewer != view.config:
        less = f"fewer workers or shallower queues (num_workers={fewer.num_workers})"
    needs = "" if used is None else f"It used {format_bytes(used)}. "
    why = "" if failure is None else f"{failure.message} "
    return Claim(
        "The setting does not fit into memory",
        f"{why}{needs}The limit is {format_bytes(room)}{view.to_each}.",
        1.0 if failure is not None else 0.5,
        "",
        {"memory_bytes": room, "pss_peak_bytes": used, "failure": failure and failure.kind},
        f"Use {less}, or keep the dataset's index in tensors instead of Python objects.",
        config=fewer,
    )


def shared(view: Evidence) -> Claim | None:
    """Shared memory is too small for full queues."""
    failure, room = _failure(view, "shared_memory"), view.machine.shm_available_bytes
    need = view.config.queued_bytes(view.batch_bytes) or None
    if failure is None and (room is None or need is None or need <= room):
        return None
    smaller = view.having(num_workers=view.workers // 2, prefetch_factor=1)
    if room is not None and need:  # the most workers, and the deepest queues, that it has room for
        depths = range(view.config.prefetch_factor or 2, 0, -1)
        sizes = itertools.product(range(view.workers, 0, -1), depths)
        several = (view.having(num_workers=n, prefetch_factor=depth) for n, depth in sizes)
        smaller = next(filter(view.fits_shared_memory, several), view.having(num_workers=0))
    return Claim(
        "Shared memory is too small",
        f"Full queues need {format_bytes(need)} of /dev/shm, and {format_bytes(room)} is "
        f"available{view.to_each}." + ("" if failure is None else f" {failure.message}"),
        1.0,
        "shm_needed_bytes shm_available_bytes batch_bytes",
        {"shm_needed_bytes": need, "failure": failure and failure.kind},
        "Give /dev/shm more room, or let fewer batches wait in it: "
        f"{smaller.text_naming('prefetch_factor')}.",
        "docker run --shm-size=8g ...   # Kubernetes: an emptyDir of medium Memory at /dev/shm",
        config=smaller,
    )


def faults(view: Evidence) -> Claim | None:
    """Without workers, the memory of each batch goes back to the system, and comes as new pages."""
    alone = [each for each in view.explanations() if not each.config.num_workers]
    seen, costs = alone[-1].page_faults if alone else None, view.costs_at(0)
    if seen is None or costs is None or seen.cpu_s <= 0 or growth(view) is not None:
        return None
    # One process does all of it, one after the other: its step, and freeing batches as well.
    kept_s = max(seen.kept_cpu_s, costs.period_s - (seen.cpu_s - seen.kept_cpu_s))
    now_s = 1 / view.rate if view.workers and view.rate else costs.period_s
    gain = bound(now_s / kept_s).at_most(most_by_step(view))
    # What comes of having no workers is no merit of it.
    if not gain.pays or costs.period_s < at.PAYS * kept_s:
        return None
    left = seen.kept_cpu_s / seen.cpu_s
    instead = " and with num_workers=0" if view.workers else ""
    return Claim(
        "Freed memory is faulted in again for each batch",
        f"Without workers {percent(1 - left)} of the CPU time of a batch goes into "
        f"{seen.spared:,.0f} page faults: malloc gives the memory of earlier ones back to the "
        "system. Whether it does may differ from process to process.",
        gain.saved,
        given={"page_faults_per_batch": seen.spared, "page_fault_fraction": 1 - left},
        fix=f"Start it with {KEEPING} in its environment{instead}: malloc then keeps up to 1 GiB "
        "of what is freed. dlprof sweep, started so, measures it.",
        code=f"{KEEPING} python train.py",
        gain=gain,
    )


def _failure(view: Evidence, kind: FailureKind) -> Failure | None:
    """A failure of the configuration itself, or of any trial where it was never run."""
    found = failed_by(view.trials("present") or view.trials(), kind)
    return found[0].failure if found else None


@dataclasses.dataclass(frozen=True, slots=True)
class Copying:
    """Copies of one configuration's batches, as evidence of a finding."""

    copy_s: float  # seconds a batch that the copy takes on the device; the next if not known
    exposed_s: float  # seconds a batch in which the step waits for its copy
    share: float  # share of the time that is exposed copying
    batch_bytes: float | None  # of a batch; ``None`` where it isn't known
    # Share of them in page-locked memory; ``None`` where it isn't known.
    pinned_fraction: float | None = None


def copying_of(view: Evidence) -> Copying | None:
    """The copies as plain trials timed them, else as an explained one did; ``None`` without any."""
    copies, costs, rate = view.copies, view.costs, view.rate
    if copies is not None and copies.exposed_s is not None and rate:
        exposed_s, size = copies.exposed_s, copies.bytes or view.batch_bytes
        copy_s = exposed_s if copies.copy_s is None else copies.copy_s
        share = min(0.99, exposed_s * rate)
        return Copying(copy_s, exposed_s, share, size, copies.pinned_fraction)
    if costs is None or costs.copy_s <= 0 or costs.period_s <= 0:
        return None
    share = min(0.99, costs.copy_s / costs.period_s)
    return Copying(costs.copy_s, costs.copy_s, share, view.batch_bytes)


def _is_pinned(view: Evidence, copying: Copying) -> bool:
    pinned = copying.pinned_fraction
    return view.config.pin_memory if pinned is None else 2 * pinned >= 1


def used_gpu(view: Evidence) -> GpuUsage | None:
    """What the card did that batches were copied to; ``None`` where it isn't known which.

    NVML's order is not CUDA's: the UUID that torch reported joins them, or else the machine's
    ``cuda_index``.
    """
    copies = view.copies
    if copies is None or not (copies.uuid or copies.device.startswith("cuda")):
        return None
    _, _, number = copies.device.partition(":")
    wanted = int(number) if number.isdigit() else 0
    uuids = {gpu.uuid for gpu in view.machine.gpus if gpu.cuda_index == wanted}
    uuids = {copies.uuid} if copies.uuid else uuids
    return next((gpu for gpu in view.usage.gpu if gpu.uuid in uuids), None)


def pageable(view: Evidence) -> Claim | None:
    """Copies to the device are exposed, and come from pageable memory."""
    copying, pinned = _unpinned(view), pinned_copies(view)
    if copying is None:
        return None
    gain, share = None if pinned is None else measured_gain(view, pinned), copying.share
    if gain is not None and gain.value < at.WORTH_TRYING:
        return None
    title, fix = "Copies to the device are unpinned", "Set pin_memory=True and copy with "
    fix += "non_blocking=True."
    text = f"Copying a batch of {format_bytes(copying.batch_bytes)} takes "
    text += f"{format_duration(copying.exposed_s)}, {percent(share)} of the time, and nothing "
    text += "overlaps with it."
    code, call = "batch = batch.to(device, non_blocking=True)", view.target.call.checked()
    if is_trainers(call) or call.text.startswith("accelerator.prepare("):
        code = accelerate_code(call, "non_blocking", value=True)
    elif call.text.startswith("def "):  # a method of Lightning's, which copies so by itself
        code = ""
    if pinned is None:
        title = "pin_memory=True doesn't pin what is copied"
        text = f"Only {percent(copying.pinned_fraction or 0.0)} of a batch's bytes come in pinned "
        text += f"memory, and copying takes {percent(share)} of the time. torch pins tensors, "
        text += "lists, tuples, dicts, and objects with a pin_memory method. A slice of a tensor, "
        text += "or one that the same .to() converts, is copied from pageable memory."
        fix = "Give the batch's class a pin_memory method, or let collate_fn return a dict. Copy "
        fix += "whole tensors; cut and convert them on the device."
        code = """class Batch:
    def pin_memory(self):
        self.images = self.images.pin_memory()
        return self"""
    gain = gain or _copied_in(view, 1 / at.PINNED_SPEED)
    given, place = dataclasses.asdict(copying), place_of(gain)
    return Claim(title, text, share, "", given, fix, code, config=pinned, gain=gain, place=place)


def _unpinned(view: Evidence) -> Copying | None:
    """The copies, where they are exposed and come from pageable memory."""
    found = copying_of(view) if pins_for(view.accelerator) else None
    exposed = found is not None and found.share >= at.NOTABLE and not _is_pinned(view, found)
    return found if exposed else None


def pinned_copies(view: Evidence) -> Config | None:
    """The same with pinning, where copies are exposed."""
    pays = not view.config.pin_memory and _unpinned(view) is not None
    return view.having(pin_memory=True) if pays else None


def link(view: Evidence) -> Claim | None:
    """The link to the device is slower than it should be.

    Only copies that are large, pinned and exposed say something of it.
    """
    copying, seen, gpus = copying_of(view), used_gpu(view), view.machine.gpus
    mine = [gpu for gpu in gpus if seen is not None and gpu.uuid == seen.uuid]
    links = {gpu.uuid: gpu.link_bytes_per_s for gpu in gpus if gpu.link_bytes_per_s is not None}
    known = [links[gpu.uuid] for gpu in mine or gpus if gpu.uuid in links]
    theory = min(known, default=None)  # of the slowest, where it isn't known which is used
    if copying is None or theory is None or not _is_pinned(view, copying):
        return None
    speed = (copying.batch_bytes or 0.0) / max(1e-12, copying.copy_s or copying.exposed_s)
    reached = speed / (at.REACHED * theory)
    # Smaller copies are set by their start.
    if copying.share < at.NOTABLE or (copying.batch_bytes or 0.0) < 4 << 20 or reached >= 0.5:
        return None
    how = ""
    if seen is not None and seen.pcie_generation is not None and seen.pcie_width is not None:
        how = f" It ran at generation {seen.pcie_generation} with {seen.pcie_width} lanes."
    cost, gain = copying.share * (1 - reached), _copied_in(view, reached)
    return Claim(
        "The link to the device is slower than it should be",
        f"Pinned batches are copied at {format_bytes(speed)} a second where the card and its "
        f"slot allow {format_bytes(theory)}.{how}{_beside(view, seen)}",
        cost,
        given={
            "copy_bytes_per_s": speed,
            "link_bytes_per_s": theory,
            **dataclasses.asdict(copying),
            "pcie_generation": None if seen is None else seen.pcie_generation,
            "pcie_width": None if seen is None else seen.pcie_width,
        },
        fix="Run `dlprof transfer` to see the link's generation and width under load. Then "
        "check the slot, and the NUMA node of the process.",
        gain=gain,
        place=place_of(gain),
    )


def _copied_in(view: Evidence, part: float) -> Gain | None:
    """What it would bring if copies took so much of their time: nothing where data comes later."""
    costs = view.costs
    faster = costs and dataclasses.replace(costs, copy_s=part * costs.copy_s)
    return predicted_gain(view, costs=faster) if faster else None


def place_of(gain: Gain | None) -> Place | None:
    """Behind all else where it brings nothing."""
    return Place.BEHIND if gain is not None and gain.value < at.WORTH_TRYING else None


def _beside(view: Evidence, seen: GpuUsage | None) -> str:
    """Other cards that receive much meanwhile, perhaps by the same switch."""
    links = {gpu.uuid: gpu.link_bytes_per_s for gpu in view.machine.gpus}
    rates = {
        gpu.index: gpu.pcie_rx_bytes_per_s
        for gpu in view.usage.gpu
        if gpu.pcie_rx_bytes_per_s is not None and seen is not None and gpu.uuid != seen.uuid
        if gpu.pcie_rx_bytes_per_s >= 0.25 * (links.get(gpu.uuid) or 1e12)
    }
    rate = format_bytes(sum(rates.values()))
    cards = ", ".join(map(str, rates))
    return f" GPU {cards} received {rate} a second at the same time." if rates else ""


def device_neighbours(view: Evidence) -> Claim | None:
    """Other processes use the device."""
    uses_it = view.accelerator is not None and (view.has_step or copying_of(view) is not None)
    gpu = used_gpu(view) if uses_it else max(view.usage.gpu, key=_active, default=None)
    if gpu is None or not (gpu.other_processes if uses_it else _active(gpu) >= 0.3):
        return None  # of a card that the trial doesn't use no kernel can be its own
    kernels = ""
    if gpu.kernel_active_fraction is not None:
        kernels = f", and kernels ran {percent(gpu.kernel_active_fraction)} of the time"
        kernels += ", the trial's own among them" if uses_it else ""
    crowd = f"other processes use {format_bytes(gpu.memory_used_bytes)} of its memory"
    if gpu.other_processes:
        others = "another process" if gpu.other_processes == 1 else f"{gpu.other_processes} others"
        held = gpu.other_memory_bytes
        crowd = f"{others} used it before" + ("" if held is None else f": {format_bytes(held)}")
    return Claim(
        "Other processes use the device",
        f"GPU {gpu.index} ({gpu.name}): {crowd}{kernels}.",
        0.0,
        given={
            "gpu": gpu.index,
            "kernel_active_fraction": gpu.kernel_active_fraction,
            "other_processes": gpu.other_processes,
            "other_memory_bytes": gpu.other_memory_bytes,
            "memory_used_bytes": gpu.memory_used_bytes,
        },
        fix="Find them with nvidia-smi, and choose an idle device.",
    )


def _active(gpu: GpuUsage) -> float:
    return gpu.kernel_active_fraction or 0.0


_APART = """# at the top of the script, before torch computes
cores = sorted(os.sched_getaffinity(0))
os.sched_setaffinity(0, cores[{workers}:])

def keep_apart(worker_id):
    os.sched_setaffinity(0, cores[:{workers}])"""


def slowed(view: Evidence) -> Claim | None:
    """The workers' CPU use, or the pin thread, makes the step slower."""
    script = view.script
    found = None if script is None else script.loader.headroom
    if script is None or found is None or not view.workers:
        return None
    share = found.slowed_fraction
    if share.low is None or share.low <= 0 or share.value < at.FED_WAIT_FRACTION:
        return None
    threads = script.step_threads or 1.0
    wanted = view.demand + threads + view.others
    # From so much of the cores on, workers and step take them from each other.
    contended = wanted > at.USED_UP * view.cores
    pins = view.config.pin_memory and script.loader.copies is not None
    why = "There are cores for both: they share caches and memory bandwidth."
    if contended:
        others = f", other processes {view.others:.1f}" if view.others >= 1 else ""
        why = f"The workers want {view.demand:.1f} cores and the step {threads:.1f}{others}, and "
        why += f"{view.cores:g} are there."
    elif pins:
        why = "There are cores for both: the pin thread takes turns with the step on the GIL."
    fix, code, argument = _fix(view, threads, contended=contended, pins=pins)
    fed = view.limit == "consumer"
    # Of a loop that hardly waits, if its step were as fast as without loading.
    without = share.through(lambda part: 1 / (1 - min(0.95, max(0.0, part))))
    if not fed:
        why += " While the loop waits for data, a faster step only waits longer: data come first."
    longer = format_duration(share.value * found.period_s)
    return Claim(
        "Loading slows the step itself",
        f"Beside the workers the step takes {longer} longer than while they rest, with data from "
        f"memory: {percent(share.value)} of the time. {why}",
        share.value,
        "wanted_cores usable_cores",
        {
            "slowed_fraction": share.value,
            "step_in_memory_s": found.step_s,
            "step_cores": threads,
            "rounds": found.rounds,
        },
        fix,
        code,
        argument,
        gain=Gain(estimate=without, source="bound") if fed else None,
        place=None if fed else Place.BEHIND,
    )


def _fix(
    view: Evidence, threads: float, *, contended: bool, pins: bool
) -> tuple[str, str, tuple[str, str] | None]:
    """What to change, in a sentence, as code, and as the argument that is set with it."""
    workers = max(1, min(round(view.demand), int(view.cores) - 1))
    if contended and view.cores >= 2 and threads >= at.PARALLEL:
        code = f"torch.set_num_threads({max(1, int(view.cores - workers))})"
        text = f"Leave cores to the workers: {code} in the script. Also try fewer workers."
        return text, code, None
    if contended and view.cores >= 2 and view.on_linux:
        text = "Try fewer workers, or keep" if view.workers > 1 else "Keep"
        text += " workers and step on cores of their own. Less work in the workers helps as well."
        return text, _APART.format(workers=workers), ("worker_init_fn", "keep_apart")
    if pins and not contended:
        text = "Try pin_memory=False: copies get slower, and the step gets its GIL back."
        return text, "", ("pin_memory", "False")
    return "Try fewer workers, and less work in each of them.", "", None
