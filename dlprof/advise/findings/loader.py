"""What a loader does to itself: what making and receiving a batch takes, and who waits for whom."""

from __future__ import annotations

import dataclasses
import functools
import itertools
import math
import statistics
from collections.abc import Sequence
from typing import Any, NamedTuple

from dlprof.advise import thresholds as at
from dlprof.advise.findings.claims import (
    Claim,
    Gain,
    Place,
    at_shared_limit,
    bound,
    competes,
    costs_for,
    enough_for_limit,
    gain_of,
    may_share_limit,
    measured_gain,
    most_by_step,
    predicted_gain,
    script_gain,
)
from dlprof.advise.findings.evidence import Costs, Evidence, StageTime
from dlprof.advise.findings.machine import growing, place_of, used_gpu
from dlprof.advise.wording import as_fast, inside, percent
from dlprof.records import BatchCosts, Config, Estimate, Trial
from dlprof.records.stages import CACHE, FREED, blocked_share
from dlprof.records.target import loaded_of
from dlprof.stats.belief import FAR_TOO_MANY, NEAR
from dlprof.stats.intervals import typical
from dlprof.units import counted, format_bytes, format_duration


def order(view: Evidence) -> Claim | None:
    """Slow samples hold back finished batches."""
    free, hold_up, fetch = unordered(view), view.stage("hold_up"), view.stage("fetch")
    if free is None or hold_up is None or fetch is None or view.costs is None:
        return None
    # Whether finished batches lie out of turn, and single ones take far longer than most.
    piles = hold_up.mean_s >= view.costs.period_s and fetch.max_s >= 4 * fetch.median_s
    gain = gain_of(view, free)
    high = 0.0 if gain is None or gain.pays else gain.estimate.high or gain.value
    if piles and high >= at.PAYS:
        # Slow batches are few: a trial too short to rule out that it pays has its luck.
        gain = predicted_gain(view, free)
    deep = deeper(view)
    other = None if deep is None else gain_of(view, deep)
    # Deeper queues help against order and against bursts: it must bring most of what they do.
    least = 0.0 if other is None else (0.6 if piles else 0.93) * other.value
    if gain is None or not gain.pays or gain.value < least:
        return None
    samples = None if view.explained is None else view.explained.samples
    times = fetch.max_s / max(fetch.median_s, 1e-9)
    return Claim(
        "Slow samples hold back finished batches",
        "Batches are delivered in order, so a finished one waits "
        f"{format_duration(hold_up.mean_s)} on average for earlier ones. Workers run out of "
        f"work: they are busy {percent(view.busy or 0.0)} of the time. The slowest fetch took "
        f"{times:.0f}x the usual.",
        gain.saved,
        "hold_up_s fetch_median_s fetch_max_s worker_busy_fraction",
        {
            "hold_up_s": hold_up.mean_s,
            "fetch_median_s": fetch.median_s,
            "fetch_max_s": fetch.max_s,
            "slowest_samples": dict([*samples.slowest.items()][:3]) if samples else {},
        },
        "Set in_order=False: batches then come as soon as they are ready, and their order "
        "differs between runs.",
        config=free,
        gain=gain,
    )


def _has_tail(rows: BatchCosts, *, few: bool = True) -> bool:
    """Whether a few batches take far more than most by themselves; ``few`` where too few came.

    What they waited for a core is left out: beside a busy neighbour any batch may be the slow one,
    and in any order. So are those that came first, as where a cache fills up: no later ones do.
    """
    own_s = [cpu_s + io_s for cpu_s, io_s in zip(rows.cpu_s, rows.io_s, strict=True)]
    if len(own_s) < 20:
        return few
    usual_s = statistics.median(own_s)
    beyond_s = [max(0.0, each - 2 * usual_s) for each in own_s]
    heavy = math.fsum(beyond_s) >= at.TAIL * math.fsum(own_s)
    return heavy and not _come_first(beyond_s, 0.5 * max(beyond_s))


def _come_first(beyond_s: Sequence[float], slow_s: float) -> bool:
    """Whether the first batches, as many as are so slow, have most of that, and few come later."""
    count = sum(each_s >= slow_s for each_s in beyond_s)
    late = sum(each_s >= slow_s for each_s in beyond_s[count:])
    return 2 * math.fsum(beyond_s[:count]) > math.fsum(beyond_s) and 4 * late <= count


def _idles(view: Evidence) -> bool:
    return view.limit in ("workers", "waiting") and (view.busy or 0.0) < 0.92


def unordered(view: Evidence) -> Config | None:
    """The same out of order, where batches lie ready out of turn and workers idle."""
    hold_up, costs = view.stage("hold_up"), view.costs
    if view.workers < 2 or not view.config.in_order or hold_up is None or costs is None:
        return None
    if view.explained is not None and not _has_tail(view.explained.costs):
        return None
    held = hold_up.mean_s >= 0.4 * costs.period_s  # so many batches lie ready and out of turn
    return view.having(in_order=False) if held and _idles(view) else None


def starved_workers(view: Evidence) -> tuple[int, ...]:
    """Workers that made no batch, or almost none, while each other one made several."""
    explained = view.explained
    if explained is None or view.target.kind != "iterable" or view.workers < 2:
        return ()
    made = made_by_worker(view)
    # In order, workers are asked in turns: one that gives little has ended. Out of order, it may
    # be slow.
    most = max(made)
    # Batches of a worker over those of the one that gave most, up to which it counts as starved.
    limit = 0.1 * most if view.config.in_order else 0
    starved = tuple(each for each, batches in enumerate(made) if batches <= limit)
    rest = [batches for batches in made if batches > limit]
    # So many of each worker that is fed, before others count as starved; or torch went past those
    # that give none, which needs no long window.
    own = (trial.fed_workers for trial in view.trials() if trial.config == view.config)
    passed = view.workers - max(filter(None, own), default=view.workers)
    clear = bool(rest) and (min(rest) >= 3 or passed == made.count(0) == len(starved) > 0)
    return starved if clear else ()


def made_by_worker(view: Evidence) -> list[int]:
    """Batches of the traced window, of each worker."""
    workers = () if view.explained is None else view.explained.workers
    made = {each.worker: each.batches for each in reversed(workers)}
    return [made.get(worker, 0) for worker in range(view.workers)]


def shallow(view: Evidence) -> Claim | None:
    """Bursts empty the queue; deeper prefetch helps."""
    deep = deeper(view)
    if deep is None or order(view) is not None or lock(view) is not None or starved_workers(view):
        return None  # workers without data idle at any depth
    step, explained = view.stage("step"), view.explained
    uneven = step is not None and step.mean_s >= 2 * step.median_s > 0
    bursts = uneven or explained is None or _has_tail(explained.costs)
    if (view.is_noisy or view.starved >= at.STARVED) and not bursts:
        return None  # it is others who come in bursts
    gain, wait = gain_of(view, deep), view.stage("wait")
    if gain is None or not gain.pays or gain.source == "bound":
        return None
    seen = uneven or (explained is not None and _has_tail(explained.costs, few=False))
    if gain.source == "measured" and not (seen or gain.sure):
        return None  # two trials may differ by so much
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


def deeper(view: Evidence) -> Config | None:
    """A deeper queue, where workers idle although the consumer waits."""
    depth = deeper_than(view.config)
    if depth is None or not _idles(view):
        return None
    config = view.having(prefetch_factor=depth)
    return config if view.fits_shared_memory(config) else None


def deeper_than(config: Config) -> int | None:
    """Four times the prefetch, 8 at least and 16 at most; ``None`` where it is as deep, or none."""
    now, deepest = config.prefetch_factor, 16
    return None if now is None or now >= deepest else min(deepest, max(8, 4 * now))


def lock(view: Evidence) -> Claim | None:
    """A lock: one that workers share, or the GIL of a process."""
    return _gil(view) or _shared(view)


def _shared(view: Evidence) -> Claim | None:
    """Workers wait for each other: they are seen to, or waiting grows with them."""
    costs, alone = view.costs, view.costs_at(1)
    if costs is None or view.workers < 2 or view.limit in ("consumer", "main"):
        return None
    making, waits, target = costs.making, view.worker_waits, view.target
    # Those that have shards of their own read no others' samples.
    all_, blocks = target.kind == "iterable" and target.shards is None, _block(view, costs)
    # A batch that comes to another worker than the one before it begins in the middle of a block,
    # and may end in one: two more are read for it at most.
    more_s = math.inf if alone is None else making.own_s - alone.making.own_s
    blocks = None if blocks is None or blocks.scattered or more_s > 2 * blocks.far_s else blocks
    may = all_ or blocks is not None
    all_read = functools.partial(_all_read, view, may=may)
    # Of their busy time, in which workers were seen in a lock that processes share.
    share = waits.get("lock", 0.0) / max(1e-3, 1 - waits.get("queue", 0.0))
    if share >= at.LARGE_SHARE:
        # One of them has it: the others, at most, wait for it at once.
        most_s = (1 - 1 / view.workers) * making.own_s
        alike = costs.without(min(view.blocked_s("lock"), most_s))
        given = {"locked_fraction": share}
        text = f"{view.workers} workers spend {percent(share)} of their busy time in a lock that "
        text += "processes share: only one can use what it guards at a time."
    elif alone and (
        all_read(costs, alone) or (_grows(view, costs, alone) and (may or _at_limit(view) is None))
    ):
        alike = dataclasses.replace(
            costs, fetch=alone.fetch, collate=alone.collate, put_cpu_s=alone.put_cpu_s
        )
        waits_s = alone.making.io_s
        given = {"waiting_with_one_worker_s": waits_s}
        text = f"With {view.workers} workers each batch "
        if all_read(costs, alone):
            share = 1 - alone.making.cpu_s / making.cpu_s
            text += f"takes {format_duration(making.cpu_s)} of CPU time, with one worker "
            text += f"{format_duration(alone.making.cpu_s)}: each of them reads all samples"
        else:
            share = (making.io_s - waits_s) / max(1e-12, making.wall_s)
            text += f"is blocked for {format_duration(making.io_s)}, with one worker for "
            text += f"{format_duration(waits_s)}, and little is read from storage"
            if blocks is None:
                text += ". Each of them reads all samples, or they " if all_ else ". The workers "
                text += "share something that only one can use at a time"
        text += "."
        if blocks is not None:
            given |= {"far_sample_s": blocks.far_s, "next_sample_s": blocks.next_s}
            text += f" {blocks.read} Batches of a block come to several workers, and each of them "
            text += "reads it."
    else:
        return None
    traced = {each.config.num_workers: each for each in view.explanations() if each.window_s}
    one, now, does = traced.get(1), traced.get(view.workers), ""
    outside = view.workers * (1 - waits.get("queue", 0.0) - waits.get("lock", 0.0))
    if one is None and waits and outside < 1.5:  # a worker does all that is done outside of it
        does = "; until then num_workers=1 is as fast"
    elif one and now and one.batches and now.batches:
        # Windows are short: batches that come by chance differ by the root of their number.
        chance = math.exp(1.96 * math.sqrt(1 / one.batches + 1 / now.batches))
        nearly = one.batches / one.window_s * now.window_s / now.batches / NEAR
        if nearly * chance >= 1:
            does = f"; until then num_workers=1 {'is' if nearly >= 1 else 'may be'} as fast"
    fix = "Give each worker its own file handle, connection or cache in worker_init_fn, and hold "
    fix += "no lock around slow work"
    title, code = "Workers wait for each other", _OWN_HANDLE
    argument: tuple[str, str] | None = ("worker_init_fn", "open_own")
    if blocks is not None and "locked_fraction" not in given:
        title, code, argument = "Each worker reads the same blocks", *_in_blocks(view)
        fix = "Have all batches of a block come to one worker, by a sampler"
        fix += code and (
            ". InBlocks also shuffles the blocks, and the samples within each: put torch.arange "
            "in place of both torch.randperm where they are to come as they are stored"
        )
    elif all_ and "locked_fraction" not in given:
        fix = "Let each worker read its part only, as of files or ranges, rather than read all and "
        fix += "leave out the rest"
        title, code, argument = "Each worker may read all samples", STRIDED, None
    return Claim(
        title,
        text,
        share,
        "waiting_s num_workers read_bytes_per_s",
        given,
        f"{fix}{does}.",
        code,
        argument,
        gain=predicted_gain(view, costs=alike),
    )


STRIDED = """# worker w of n takes shards w, w + n, w + 2n, …: no division that leaves some without
info = torch.utils.data.get_worker_info()
shards = self.shards if info is None else self.shards[info.id :: info.num_workers]"""

_OWN_HANDLE = """def open_own(worker_id):
    dataset = torch.utils.data.get_worker_info().dataset  # of a Subset: its .dataset
    dataset.file = open(dataset.path, "rb")  # a handle, connection and lock for each worker"""


def _at_limit(view: Evidence) -> Costs | None:
    """What a batch costs with one worker, where it waits far longer with all, and for no lock.

    They are seen to wait for storage, a server or another process, whose rate they share.
    """
    costs, alone, waits = view.costs, view.costs_at(1), view.worker_waits
    if costs is None or alone is None or view.workers < 2:
        return None
    elsewhere = math.fsum(waits.get(each, 0.0) for each in ("disk", "network", "handover"))
    seen = 2 * elsewhere > blocked_share(waits)
    return alone if seen and _grows(view, costs, alone) else None


def _all_read(view: Evidence, costs: Costs, alone: Costs, *, may: bool) -> bool:
    """Whether a batch takes CPU time for the samples of all workers, where they may read them.

    Of two workers that may be what cores that compute at once take from each other.
    """
    now, one, times = costs.making, alone.making, 0.75 * view.workers
    return may and view.workers > 2 and now.cpu_s > times * one.own_s


def _grows(view: Evidence, costs: Costs, alone: Costs) -> bool:
    """Whether waiting grows with workers, speed doesn't, and storage isn't why.

    What waits for a lock waits in most batches; a few slow ones may have come to one trial only.
    """
    now_s, free_s, read = costs.making.own_s, alone.making.own_s, view.usage.read_bytes_per_s or 0.0
    grown_s = min(costs.making.io_s - alone.making.io_s, costs.usual_io_s - alone.usual_io_s)
    from_storage = view.batch_bytes and read >= 0.2 * view.batch_bytes * (view.rate or 0.0)
    if now_s <= 0 or free_s > 0.7 * now_s or from_storage:
        return False  # nothing is known of its stages, it speeds up with workers, or it is storage
    # Nor where they wait for threads of their own.
    return grown_s >= 0.4 * now_s and view.helpers_share < at.HELPERS


def _gil(view: Evidence) -> Claim | None:
    """Other Python threads of the process that makes the batches hold its GIL."""
    costs, gil_s, share = _making_costs(view), view.waits_for_gil_s or 0.0, view.gil_share
    if costs is None or share < at.LARGE_SHARE:
        return None
    if gil_s < max(costs.making.io_s - gil_s, at.LARGE_SHARE * costs.making.cpu_s):
        return None
    fix, more, gain = _or_more_workers(view, _FEWER_THREADS, _OWN_GIL)
    return Claim(
        "Making batches waits for the GIL",
        f"Making a batch waits for the GIL for {format_duration(gil_s)}, "
        f"{percent(share)} of its time: other Python threads of that process "
        "compute at the same time.",
        share * (view.wait or 1.0),
        "fetch_waiting_s fetch_cpu_s",
        {"gil_s": gil_s, "share": share},
        fix,
        config=more,
        gain=gain or predicted_gain(view, costs=costs.without(gil_s)),
    )


def _more_that_pay(view: Evidence) -> tuple[Config | None, Gain | None]:
    """More workers and what they bring, where that is worth a trial."""
    more = more_workers(view)
    gain = gain_of(view, more)
    return (more, gain) if gain is not None and gain.value >= at.WORTH_TRYING else (None, None)


_FEWER_THREADS = "Keep other Python threads from computing in the process that fetches."
_OWN_GIL = "each worker has a GIL of its own"
_WAITING_PAYS = "blocked workers need no cores, so more workers than cores pay"
_NO_CORES = f"{_WAITING_PAYS}, as long as they share no limit"
_ONE_RATE = "share a limit of what they wait for, such as the rate of a server."


def _or_more_workers(view: Evidence, fix: str, why: str) -> tuple[str, Config | None, Gain | None]:
    """What to do about a cause: more workers, where these pay, and why they do; or the fix."""
    more, gain = _more_that_pay(view)
    if more is not None:
        fix = f"Set num_workers={more.num_workers}: {why}. Or {inside(fix)}"
    return fix, more, gain


_SHARED_CACHE = "Keep samples where all workers find them, as in files or in shared memory."


def _made_once(view: Evidence) -> str:
    code = view.target.call.checked().given("persistent_workers", "True")
    return f"{code}  # made once, before the first epoch"


def _losing(view: Evidence) -> Claim | None:
    """Workers end with each epoch, and with them the samples that the dataset keeps in them."""
    target, kept = view.target, view.having(persistent_workers=True)
    if not view.workers or view.persists:
        return None
    if not target.keeps_samples:
        return _losing_in_script(view, kept)
    loaded, alone = (target.epochs_loaded(each, view.ranks) for each in (kept, Config()))
    text = (
        "The dataset keeps samples in the memory of the process that asks for them: one takes "
        f"{format_duration(target.first_sample_s)} the first time, "
        f"{format_duration(target.kept_sample_s)} again. Workers that end with each epoch lose "
        "them, so that each epoch loads all of them."
    )
    if target.against_persisting is not None:
        return Claim("Workers lose the samples that they keep", text, 0.0, "", {}, _SHARED_CACHE)
    gain, full = bound(10 / target.ten_epochs(kept, view.ranks)), target.full_caches(kept)
    if view.gain is not None and (printed := view.gain(kept)) is not None:
        gain = dataclasses.replace(gain, estimate=printed)
    takes = f" Full caches take {format_bytes(full)}." if full else ""
    return Claim(
        "Workers lose the samples that they keep",
        text,
        gain.saved,
        "first_sample_s kept_sample_s epochs_loaded",
        {"epochs_loaded": loaded} | ({"full_caches_bytes": full} if full else {}),
        f"Set persistent_workers=True: of 10 epochs {view.workers} workers then load as much as "
        f"{loaded:.1f}, each into a cache of its own, as far as that holds them.{takes} "
        f"num_workers=0 loads as much as {alone:.1f}; a cache that is filled before workers are "
        "forked is all workers' from the first epoch on.",
        config=kept,
        gain=gain,
        place=Place.FAULT,
    )


def _losing_in_script(view: Evidence, kept: Config) -> Claim | None:
    """The same of a script, whose dataset nobody asks for samples: caches grow in each epoch.

    They have an entry for each sample, of 1 KiB at least, unless it is an ``lru_cache``: a note of
    each sample that came is no cache.
    """
    script, size = view.script, view.config.batch_size or 1
    if script is None or script.loader.epochs < 2:
        return None
    each = {name: grown / size for name, grown in growing(view).items() if name != FREED}
    caches = [name for name, grown in each.items() if grown >= (32 if CACHE in name else 1024)]
    if not caches:
        return None
    epochs, costs, gain = script.loader.epochs, view.costs, None
    if costs is not None and costs.making.wall_s > 0:  # of kept samples what is left is collating
        left = 1 - costs.fetch.wall_s / costs.making.wall_s
        loaded = loaded_of(epochs, kept, script.loader.sampler, view.ranks)
        gain = bound(epochs / (loaded + (epochs - loaded) * max(0.0, left)))
        gain = gain.at_most(most_by_step(view))
    fix, code, config = _SHARED_CACHE, "", None
    if view.target.against_persisting is None:
        config = None if view.remade else kept  # of a loader that is made again it changes nothing
        once = "Make the loader once, before the first epoch, with" if view.remade else "Set"
        fix = f"{once} persistent_workers=True: each worker then keeps its cache, in memory of its "
        fix += "own."
        # It is worth more than its starts, which alone are computed of settings.
        code = _made_once(view)
    return Claim(
        "Workers lose the samples that they keep",
        f"{' and '.join(caches[:3])} of the dataset {'grow' if caches[1:] else 'grows'} with each "
        f"sample that a worker loads, and {epochs} epochs began with new workers, which have "
        "nothing of that.",
        (view.wait or 0.0) * (1 - 1 / epochs),
        "",
        {
            "gain_if": "its caches hold all samples",
            "growing": {name: each[name] * size for name in caches},
            "epochs": epochs,
        },
        fix,
        code,
        config=config,
        gain=gain if code else None,
        place=Place.FAULT,
    )


def startup(view: Evidence) -> Claim | None:
    """Starting workers takes much of the time, or what they keep ends with them."""
    if (losing := _losing(view)) is not None:
        return losing
    kept, (turn_s, share) = kept_workers(view), turn(view)
    if kept is None:
        return None
    if is_filling(view, turn_s) and 2 * _left_s(view, kept) >= turn_s:
        return _filling(view, turn_s, share)
    persist, script = view.config.persistent_workers, view.script
    as_now = kept == view.config  # no setting makes it sooner
    epochs = 1.0 if script is None else script.epochs_per_start
    several = f"{epochs:.0f} epochs" if persist and epochs > 1 else "an epoch"
    how_often = "once" if view.persists else "at every epoch"
    advice = "Set persistent_workers=True: workers then start once, not at every epoch."
    remade = view.remade and kept.persistent_workers
    if script is not None and remade:
        advice = "Make the loader once, before the first epoch, with persistent_workers=True: its "
        advice += f"workers end with it, and it was made {script.loader.made} times."
    elif as_now and (view.start_method == "fork" or view.machine.platform.startswith("Windows")):
        advice = "Do less in worker_init_fn and in what the dataset opens for its first sample."
    elif kept.persistent_workers == persist:
        by_fork = "" if as_now else "by fork, or "
        advice = (
            f'Start workers {by_fork}by forkserver with set_forkserver_preload(["torch"]), '
            "and keep what the dataset pickles small."
        )
    if not kept.persistent_workers:
        why = (view.target.against_persisting or "").removesuffix(".")
        advice += f" persistent_workers=True is not advised, as {why}."
    if script is not None and view.weight is None and view.start_method != "fork":
        advice += f" By {view.start_method} each is sent the dataset: dlprof profile weighs it."
    # In an only epoch it hides no larger wait: workers that are kept start once as well.
    once = script is not None and script.loader.epochs == 1
    leads = starting_leads(view) and (not once or share >= (1 - share) * (view.mean_wait or 0.0))
    return Claim(
        "Starting workers takes much of the time",
        f"Starting {counted(view.workers, 'worker')} takes {format_duration(turn_s)} "
        f"{how_often}, {percent(share)} of the time of {several} of "
        f"{view.epoch_batches or 0:,} batches.",
        share,
        "epoch_turnover_s share_of_epoch batches_per_epoch start_method",
        {"epoch_turnover_s": turn_s, "share_of_epoch": share},
        advice,
        _made_once(view) if remade else "",
        config=None if remade else kept,  # of a loader that is made again they change nothing
        gain=None if as_now and not remade else _gain(view, kept, share, turn_s),
        place=Place.FAULT if leads and not sending_leads(view) else Place.BEHIND,
    )


def turn(view: Evidence) -> tuple[float, float]:
    """Seconds from an epoch to the next, and their share of the time; 0 where that isn't known.

    Of workers that persist it is the start itself where that is slow: once for all epochs that a
    script ran, else for the first. What an iterable fetches before it yields comes in each epoch.
    """
    trials, script = view.plain("present"), view.script
    if not view.epoch_batches or not view.rate:
        return 0.0, 0.0
    turn_s, epoch_s = _median_turn(trials), view.epoch_batches / view.rate
    if view.persists and not is_filling(view, turn_s or 0.0):
        turn_s = typical(trial.startup_s for trial in trials)
        turn_s = turn_s if (turn_s or 0.0) >= 2.0 else None  # a slow one is worth a word even so
        epoch_s *= 1.0 if script is None else script.epochs_per_start
    if turn_s is None:
        return 0.0, 0.0
    if any(trial.whole_epochs for trial in trials):
        return turn_s, min(1.0, turn_s / epoch_s)
    return turn_s, turn_s / (epoch_s + turn_s)


def _median_turn(trials: tuple[Trial, ...]) -> float | None:
    turn_s = typical(trial.epoch_turnover_s for trial in trials)
    return typical(trial.startup_s for trial in trials) if turn_s is None else turn_s


def is_filling(view: Evidence, turn_s: float) -> bool:
    """Whether most of that time is what an iterable fetches before it yields."""
    return view.filling_s >= max(0.5 * turn_s, at.RESET_S)


def _filling(view: Evidence, turn_s: float, share: float) -> Claim:
    """It is the dataset that begins late.

    What fills a buffer is no less to fetch later. Without it the epoch takes as long as the workers
    then work, or as the rest took, whichever is more. Where it is lost altogether, as for a
    connection that opens, the gain is larger.
    """
    filled_s = min(view.filling_s, turn_s)
    rest_s = turn_s / share - turn_s
    busy_s = filled_s + (1.0 if view.busy is None else view.busy) * rest_s
    buffered, most = (
        (turn_s + rest_s) / (turn_s - filled_s + max(1e-9, each))
        for each in (max(rest_s, busy_s), rest_s)
    )
    # It never costs anything, and it brings no more than that.
    low, high = max(1.0, bound(buffered).estimate.ends[0]), max(buffered, most)
    gain = Gain(estimate=Estimate(value=buffered, low=low, high=high), source="bound")
    leads = share >= at.LARGE_SHARE and gain.value >= at.PAYS
    kept = kept_workers(view)
    # Whether workers that persist would keep it shows only where they were tried.
    tried = view.config.persistent_workers or kept is None or not kept.persistent_workers
    tried = tried or any(trial.config == kept for trial in view.plain("variant"))
    does = "__iter__ fetches before it yields, as to fill a shuffle buffer"
    fix = "Let __iter__ yield sooner: from a smaller shuffle buffer, from one that yields while it "
    fix += "fills, or from one in each worker that is its share of the whole."
    if tried:
        fix += " persistent_workers=True doesn't help with a buffer, which each epoch fills again."
    else:
        does += ", or imports and opens what it needs once"
        keeps = "Try persistent_workers=True, which keeps what a worker imports or opens once."
        fix = f"{keeps} A buffer is filled again in each epoch: then {inside(fix)}"
    return Claim(
        "Epochs begin with a wait for the dataset",
        f"The first batch of an epoch takes {format_duration(turn_s)}, {percent(share)} of the "
        f"time of an epoch of {view.epoch_batches or 0:,} batches. For {format_duration(filled_s)} "
        f"of it {does}. Starting {counted(view.workers, 'worker')} takes no more than the other "
        f"{format_duration(turn_s - filled_s)}.",
        gain.saved,
        "epoch_turnover_s share_of_epoch batches_per_epoch first_fetch_s",
        {
            "epoch_turnover_s": turn_s,
            "share_of_epoch": share,
            "first_fetch_s": view.explained and view.explained.first_fetch_s,
        },
        fix,
        gain=gain,
        place=Place.FAULT if leads else Place.BEHIND,
    )


def starting_leads(view: Evidence) -> bool:
    """Whether starting workers takes so much of an epoch that it comes before what it explains."""
    turn_s, share = turn(view)
    if kept := kept_workers(view):  # a first batch is made by running ones, too
        share *= 1 - min(1.0, _left_s(view, kept) / max(1e-12, turn_s))
    return bool(view.workers) and share >= at.LARGE_SHARE


def sending_leads(view: Evidence) -> bool:
    """Whether that is mostly sending them the dataset, which comes before the rest of it."""
    weight = view.weight
    if weight is None or view.start_method == "fork" or not starting_leads(view):
        return False
    return weight.sent_s * view.workers >= max(at.SENT_S, 0.4 * turn(view)[0])


def kept_workers(view: Evidence) -> Config | None:
    """Workers that persist, or start by fork if they do or are not to; if starting costs enough.

    As they are where nothing of that helps, or what the target starts as it is built would not
    survive a fork.
    """
    if not view.workers or turn(view)[1] < 0.15:
        return None
    if not view.persists and view.target.against_persisting is None:
        return view.having(persistent_workers=True)
    return view.having(start_method="fork") if view.may_fork else view.config


def _gain(view: Evidence, kept: Config, share: float, turn_s: float) -> Gain:
    """Whole epochs are compared as measured; else the turn is left out of the epoch's time.

    What is left of it is the start of forked workers, or a batch of running ones. Where an epoch
    has no more batches than workers, all its batches come from workers that have just started, one
    after the other: running ones make them at once, and only what main does with each is left.
    """
    both = (t for t in view.plain("present", "variant") if t.config in (view.config, kept))
    whole = all(trial.whole_epochs for trial in both)
    tried = measured_gain(view, kept) if whole else None
    if tried is not None:
        return tried
    forked, script = view.config.persistent_workers == kept.persistent_workers, view.script
    forked = forked and not view.remade
    left = share * min(1.0, _left_s(view, kept) / max(1e-12, turn_s))
    if script is not None and not forked:
        left += (share - left) / max(1, script.loader.epochs)  # the first start is left
    rest, costs, batches = 1 - share, view.costs, view.epoch_batches or 0
    if costs is not None and not forked and 1 <= batches <= view.workers:
        crowded_s = max(0.0, batches * costs.making.cpu_s / view.cores - costs.making.own_s)
        each_s = costs.main_s + costs.copy_s + costs.step_s
        rest = min(rest, share / max(1e-12, turn_s) * (crowded_s + (batches - 1) * each_s))
    return bound(1 / max(0.02, rest + left))


def _left_s(view: Evidence, kept: Config) -> float:
    """Seconds that are left of an epoch's turn with such workers, as measured or by what it has."""
    if view.config.persistent_workers == kept.persistent_workers:
        return 0.05 + view.filling_s
    left_s = _median_turn(tuple(t for t in view.plain("variant") if t.config == kept))
    if left_s is None:
        left_s = at.RESET_S + (view.costs.making.own_s if view.costs else 0.0) + view.filling_s
    return left_s


MORE_PAY = "More workers would pay"


def consumer(view: Evidence) -> Claim | None:
    """The training step is the limit."""
    if view.limit != "consumer" or view.wait is None:
        return None
    each = f" of {format_duration(1 / view.rate)} a batch" if view.rate else ""
    gpu, idle = used_gpu(view), ""
    active = None if gpu is None else gpu.kernel_active_fraction
    # A step of stated length is none of the user's: what it does says nothing.
    if active is not None and active < 0.7 and view.step_s <= 0:
        idle = f" The device ran kernels only {percent(active)} of the time: the step's own "
        idle += "Python, or what blocks it, takes the rest."
    return Claim(
        "The training step is the limit",
        f"The loader keeps up: the step waits {percent(view.wait)} of the time{each}. No setting "
        f"of the loader makes this faster.{idle}",
        0.0,
        "wait_fraction batches_per_s",
        {"kernel_active_fraction": active},
    )


def too_many_workers(view: Evidence) -> Claim | None:
    """Fewer workers would do as well or better."""
    fewer, idle, limit = fewer_workers(view), view.idle_workers, view.limit
    gain = gain_of(view, fewer)
    if view.costs is None or fewer is None or gain is None or (gain.value < NEAR and not idle):
        return None
    # Of main's own time a slow sampler may be most, which fewer workers don't change.
    sent = limit == "main" and view.costs.receive.own_s >= view.costs.dispatch.own_s
    # Others that come and go may bring a gain; that handing over is expensive shows in its costs.
    shown = idle > 0 or not view.is_noisy or sent or gain.sure
    better, keeps_up = gain.value >= at.PAYS and shown, limit == "consumer"
    if is_expensive_to_receive(view) or not (better or idle or keeps_up):
        return None
    why = f"{idle} of {view.workers} workers have nothing to do. " if idle else ""
    if better and sent:
        why = "Sending batches between processes costs more than making them. "
    # What the workers compute explains a rate that fewer may, but need not, beat.
    certain = better and (gain.sure or sent)
    place = Place.FAULT if certain or idle else Place.BEHIND
    if keeps_up:
        place = Place.BROKEN
    elif lock(view) is not None or starting_leads(view):
        place = Place.BEHIND  # fewer are better because they wait for each other, or start sooner
    title = "Fewer workers would do" + (" better" if better else " as well")
    text = (
        f"{why}num_workers={fewer.num_workers} {gain.words if better else 'does as well'} "
        f"({view.workers} now), and takes less memory and fewer cores."
    )
    if gain.value < NEAR:  # those that idle are no use, and yet fewer are slower
        title, text = "Some workers have nothing to do", why.strip()
    return Claim(
        title,
        text,
        gain.saved if better else 0.0,
        "num_workers idle_workers worker_busy_fraction main_share_of_wait",
        fix=f"Set num_workers={fewer.num_workers}.",
        config=fewer,
        gain=gain,
        place=place,
    )


def is_expensive_to_receive(view: Evidence) -> bool:
    """Whether batches are held up by what receiving them takes, not because they are so cheap."""
    costs, limit = view.costs, view.limit
    if costs is None or not view.workers or limit == "consumer":
        return False
    if costs.receive.own_s < max(costs.dispatch.own_s, costs.making.own_s) and limit != "main":
        return False
    tensors = view.target.batch_tensors or 1
    expensive = costs.receive.own_s >= at.LIGHT_S or tensors > at.FEW_TENSORS
    return expensive and costs.receive.own_s >= costs.dispatch.own_s


def fewer_workers(view: Evidence) -> Config | None:
    """The fewer workers that are worth a trial."""
    costs, limit, now, busy = view.costs, view.limit, view.workers, view.busy or 0.0
    if costs is None or now < 1:
        return None
    count: int | None
    if limit == "consumer":
        needed = max(1, math.ceil(busy * now / at.BUSY))
        far = now >= max(at.MANY, FAR_TOO_MANY * needed, 2 * view.cores + 1)
        count = needed if far else None
    elif 0 < view.idle_workers < now:
        count = now - view.idle_workers
    elif limit == "main":
        counts = sorted({0, 1, min(2, now - 1)} & set(range(now)))
        count = max(counts, key=lambda n: costs.rate(view.having(num_workers=n), view.cores))
    else:  # those that were faster, all of them instrumented alike
        explained = [each for each in view.explanations() if each.window_s]
        rates = {each.config.num_workers: each.batches / each.window_s for each in explained}
        started = 1 - turn(view)[1]  # share of an epoch that is left where workers start
        rates = {n: rate * (started if n else 1.0) for n, rate in rates.items()}
        least = at.PAYS * rates.get(now, 0.0)
        faster = [n for n, rate in rates.items() if n < now and rate >= least]
        idle = limit == "waiting" and busy < at.HALF_BUSY and now >= at.MANY
        count = max(faster, key=rates.__getitem__, default=now // 2 if idle else None)
    return None if count is None else view.having(num_workers=count)


def fetch_cpu(view: Evidence) -> Claim | None:
    """``__getitem__`` burns CPU."""
    costs = _making_costs(view)
    if costs is None or costs.fetch.cpu_s < max(costs.fetch.io_s, costs.collate.own_s):
        return None
    if (scattered := _scattered(view, costs)) is not None:
        return scattered
    share = _share(costs, costs.fetch.cpu_s)
    if share < at.LARGE_SHARE:
        return None
    chain = view.explained.transforms if view.explained else ()
    first = max(chain, key=lambda each: each.share, default=None)
    slowest = first if first is not None and first.share >= at.LARGE_SHARE else None
    named = f" {slowest.name} takes {percent(slowest.share)} of that." if slowest else ""
    halved = StageTime(costs.fetch.cpu_s / 2, costs.fetch.io_s)
    title = f"CPU time in {view.fetched_by}"
    cheaper = f"{slowest.name} cheaper: " if slowest else ""
    if not cheaper:
        cheaper = f"{view.fetched_by} cheaper (cProfile shows its calls): open files and "
        cheaper += "connections once in each process, not for each sample, "
    fix = f"Make {cheaper}decode at the size that is needed, cache what comes out the same each "
    fix += "epoch, move arithmetic on whole batches to the device."
    if view.children_s >= 0.5 * costs.fetch.cpu_s:
        child = f" ({view.child})" if view.child else ""
        title = f"Child processes{child} compute in {view.fetched_by}"
        waits = "the worker waits" if view.workers else "the main process waits"
        named += f" {format_duration(view.children_s)} of it is of child processes{child}, for "
        named += f"which {waits}. They keep a core as busy, so that more workers than cores don't "
        named += "help."
        fix = "Do in the process itself what the child does, by a library (PyAV or torchcodec for "
        fix += "ffmpeg, torchaudio for sox, zlib for gzip), as each start of a process costs "
        fix += "milliseconds; have one child serve many samples; or keep what it gives, once for "
        fix += "all epochs."
    return Claim(
        title,
        f"A batch's samples take {format_duration(costs.fetch.cpu_s)} of CPU time: "
        f"{percent(share)} of the time to make a batch{_with_a_core(costs)}.{named}",
        _cost(view, costs, share),
        "fetch_cpu_s fetch_waiting_s",
        {
            "share": share,
            "dearest_transform": slowest.name if slowest else None,
            "dearest_transform_share": slowest.share if slowest else None,
            **({"children_cpu_s": view.children_s, "child": view.child} if view.children_s else {}),
        },
        f"{fix} The gain assumes half of its CPU time.",
        gain=predicted_gain(view, costs=dataclasses.replace(costs, fetch=halved)),
    )


_BLOCKS = """class InBlocks(torch.utils.data.Sampler):
    def __init__(self, count, size, batch, workers):  # size: samples of a row group or chunk
        self.count, self.size, self.batch, self.workers = count, size, batch, workers

    def __len__(self):
        return self.count

    def _shuffled(self, block):
        first = block * self.size
        return (first + torch.randperm(min(self.size, self.count - first))).tolist()

    def __iter__(self):
        order = torch.randperm(-(-self.count // self.size)).tolist()
        order.sort(key=(self.count // self.size).__eq__)  # one that is shorter comes last
        shares = [order[worker :: self.workers] for worker in range(self.workers)]
        own = [[each for block in blocks for each in self._shuffled(block)] for blocks in shares]
        whole = min(map(len, own)) // self.batch * self.batch
        for at in range(0, whole, self.batch):  # the next batch is the next worker's
            for each in own:
                yield from each[at : at + self.batch]
        for each in own:
            yield from each[whole:]"""


class _Block(NamedTuple):
    """Samples are read in blocks: one that follows another is several times cheaper."""

    far_s: float  # a sample far from the one before
    next_s: float  # one that follows it
    scattered: bool  # whether samples cost in trials what one does that is far
    read: str  # the same in words


def _block(view: Evidence, costs: Costs) -> _Block | None:
    samples, weight = None if view.explained is None else view.explained.samples, view.weight
    far_s, next_s = (weight.far_sample_s, weight.next_sample_s) if weight else (None, None)
    if samples is None or not far_s or next_s is None:
        return None
    if next_s / far_s > 0.25:
        return None
    read = f"A sample takes {format_duration(far_s)}, and {format_duration(next_s)} where it "
    read += f"follows the one before: {view.fetched_by} reads or decodes a block of samples at "
    read += "once, as a row group or a chunk."
    own_s = samples.mean_s * (1 - costs.fetch.starved)
    return _Block(far_s, next_s, own_s >= 0.5 * far_s, read)


def _in_blocks(view: Evidence) -> tuple[str, tuple[str, str] | None]:
    """A sampler by which a worker has whole blocks, and the argument that it is for DataLoader."""
    if view.ranks > 1:  # each of several has its share of the samples by a sampler
        return "", None
    batch = view.config.batch_size or view.target.batch_size or "batch_size"
    given = f"len(dataset), size, {batch}, {max(1, view.workers)}"
    return _BLOCKS, ("sampler", f"InBlocks({given})")


def _scattered(view: Evidence, costs: Costs) -> Claim | None:
    """Samples are read in blocks, of which a random order uses one sample each."""
    block = _block(view, costs)
    if block is None or not block.scattered:
        return None
    part = block.next_s / block.far_s
    fetch = StageTime(part * costs.fetch.cpu_s, part * costs.fetch.io_s)
    gain = predicted_gain(view, costs=dataclasses.replace(costs, fetch=fetch))
    if gain is None or not gain.pays:
        return None
    apart = once = ""
    if view.workers > 1:  # each has its own copy of what it reads
        apart = ", so that all batches of a block come to one worker"
        once = ", and by one worker: a block that several share is read by each of them"
    return Claim(
        "Random order reads a block for each sample",
        f"{block.read} In random order the next index is of another block.",
        gain.saved,
        "fetch_cpu_s fetch_waiting_s",
        {"far_sample_s": block.far_s, "next_sample_s": block.next_s},
        "Shuffle in blocks, by a sampler instead of shuffle=True: the blocks in random order, and "
        f"the samples within each{apart}. Or store the samples so that each can be read by itself, "
        "or in smaller blocks. The gain assumes that all samples of a block are used once it is "
        f"read{once}.",
        *_in_blocks(view),
        gain=gain,
        place=Place.FAULT,
    )


def _few_slow(view: Evidence) -> Claim | None:
    """A few samples wait so long that they take a large part of the time.

    By what batches were blocked: what a sample waits for a core, others bring, and any may have it.
    Where settings bridge such waits, workers wait for each other, or each epoch begins with one,
    that is found by itself. Where samples are stored for all, these are only the first to ask.
    """
    explained, costs = view.explained, view.costs
    samples = None if explained is None else explained.samples
    if explained is None or costs is None or samples is None or not explained.costs.io_s:
        return None
    if view.target.stores_samples:
        return None
    blocked, slow_s = explained.costs.io_s, 0.5 * samples.max_s
    beyond_s = [max(0.0, each - 2 * costs.usual_io_s) for each in blocked]
    share = math.fsum(beyond_s) / max(1e-12, costs.making.own_s * len(blocked))
    slow = {name: took_s for name, took_s in samples.slowest.items() if took_s >= slow_s}
    # The slowest has to be far from the usual, and its batch blocked for as long.
    heavy = share >= at.LARGE_SHARE and slow_s >= 10 * samples.median_s and max(beyond_s) >= slow_s
    if not (heavy and slow and view.limit in ("workers", "waiting")) or view.filling_s >= slow_s:
        return None
    if any(rule(view) is not None for rule in (lock, order, shallow)):
        return None
    named = [f"{name} ({format_duration(each_s)})" for name, each_s in slow.items()]
    which = "position" if view.target.kind == "iterable" else "index"
    waits_s = math.fsum(beyond_s) / len(blocked)
    title = f"A few samples wait far longer than the rest: {which} {named[0]}"
    fix = f"See what {view.fetched_by} waits for there: a larger file, slower storage, a request "
    fix += "that is tried again. Have such samples read ahead, cached or left out."
    why, in_blocks = "", _begin_blocks(view, costs)
    first = not in_blocks and _come_first(beyond_s, slow_s)
    if in_blocks:  # a thread that reads one block ahead hides no more than the rest takes
        waits_s = min(waits_s, max(0.0, costs.making.own_s - waits_s))
        title = f"The first sample of each block waits for all of it: {which} {named[0]}"
        why = " Samples are read in blocks: without such a sample the next one would wait as long."
        fix = "Read the next blocks ahead, by threads of the dataset, or read smaller blocks. More "
        fix += "workers pay as far as each reads blocks of its own."
    if first:
        # Of those of a script that nobody followed any more, none waits so.
        later = 0 if view.script is None else max(0, view.script.loader.batches - len(blocked))
        rest_s = later * max(0.0, costs.making.own_s - waits_s)
        share = min(1.0, waits_s / (costs.making.own_s + rest_s / len(blocked)))
        title = "The first batches wait far longer than the rest"
        why = " They came first, and hardly any later ones wait so: as where a cache fills up, or "
        why += "files are opened or read for the first time."
        fix = f"See what {view.fetched_by} waits for then. Fill a cache before the loop, once for "
        fix += "all runs, or read ahead. The longer it runs, the less of its time that takes."
    gain = predicted_gain(view, costs=costs.without(waits_s))
    more, brings = _more_that_pay(view)
    if in_blocks:  # several that read the same blocks bring nothing, nor does one block ahead alone
        gain = gain if gain is not None and gain.pays else None
        more = more if brings is not None and brings.pays else None
    if first:
        gain, more = gain and gain.at_most(1 / max(0.02, 1 - share)), None
    if more is not None and brings is not None and (gain is None or brings.value > gain.value):
        gain = brings
        fix = f"Set num_workers={more.num_workers}: others go on while one waits. And {inside(fix)}"
    else:
        more = None
    return Claim(
        title,
        f"The usual sample takes {format_duration(samples.median_s)}, and some of "
        f"{samples.count:,} up to {format_duration(samples.max_s)}: what their batches are blocked "
        f"beyond others is {percent(share)} of the time to make all. The slowest: {which} "
        f"{', '.join(named)}.{why}",
        share * (view.wait or 1.0),
        "fetch_waiting_s fetch_cpu_s share",
        {"share": share, "slowest_samples": slow},
        fix,
        config=more,
        gain=gain,
        place=Place.FAULT if share >= at.LARGE_SHARE else Place.BEHIND,
    )


def _begin_blocks(view: Evidence, costs: Costs) -> bool:
    """Whether the slow samples are the first of blocks: any that came first would be as slow.

    By samples that were asked for in two orders, if they were; else as they come at even distances
    in the order in which they are stored, as far as few workers share it.
    """
    explained = min(view.explanations(), key=lambda each: each.config.num_workers)
    samples, weight = explained.samples, view.weight
    if samples is None:
        return False
    if weight is not None and weight.far_sample_s is not None:
        block = _block(view, costs)
        return block is not None and 2 * block.far_s >= samples.max_s
    if view.target.kind != "iterable" and view.target.sampler != "SequentialSampler":
        return False
    slow = [name for name, took_s in samples.slowest.items() if 2 * took_s >= samples.max_s]
    if not all(map(str.isdecimal, slow)):
        return False
    places = sorted(map(int, slow))
    if sum(place > 0 for place in places) < 2:  # any one other is at a multiple of its distance
        return False
    apart = min(after - before for before, after in itertools.pairwise(places))
    return apart > 1 and all(place % apart == 0 for place in places)


def fetch_io(view: Evidence) -> Claim | None:
    """``__getitem__`` waits for storage or network."""
    costs, found = _making_costs(view), _few_slow(view)
    if costs is not None and found is None:
        waits = costs.fetch.io_s > costs.fetch.cpu_s
        found = (_scattered(view, costs) if waits else None) or _blocked(view, costs)
    if costs is None or found is not None:
        return found
    costs = costs.without(view.waits_for_gil_s or 0.0)
    # Run-queue delay is no part of it: what is waited for may itself keep the cores busy.
    least = max(costs.fetch.cpu_s, costs.collate.own_s, at.LARGE_SHARE * costs.making.own_s)
    if not costs.fetch.io_s or costs.fetch.io_s < least or lock(view) is not None:
        return None
    share = _share(costs, costs.fetch.io_s)
    served_s = view.blocked_s("handover")  # by what another process sends by a Unix socket
    served = served_s >= 0.5 * costs.fetch.io_s
    at_once = "" if view.target.kind == "iterable" else " (__getitems__)"
    blocked = (
        f"A batch's samples are blocked for {format_duration(costs.fetch.io_s)} on "
        f"{'another process of this machine' if served else 'storage or network'}: "
        f"{percent(share)} of the time to make a batch{_with_a_core(costs)}."
    )
    if served:
        return Claim(
            f"{view.fetched_by} waits for another process",
            f"{blocked} It answers over a Unix socket, as a multiprocessing.Manager, a database or "
            "a cache does, and all workers ask it.",
            _cost(view, costs, share),
            "fetch_waiting_s fetch_cpu_s share num_workers",
            {"share": share, "served_s": served_s},
            "Let each worker have what it asks for: in a tensor, whose memory all of them share, "
            "in a file that each maps, or in a copy of its own. Or ask for a whole batch at once"
            f"{at_once}.",
            gain=predicted_gain(view, costs=costs.without(served_s)),
        )
    reads, limit = view.usage.read_bytes_per_s or 0.0, view.machine.read_limit_bytes_per_s
    if limit is not None and reads >= at.USED_UP * limit:
        return Claim(
            "A cgroup throttles reads from storage",
            f"{blocked} It reads {format_bytes(reads)}/s of the {format_bytes(limit)}/s that a "
            "cgroup allows.",
            _cost(view, costs, share),
            "fetch_waiting_s share read_bytes_per_s read_limit_bytes_per_s cache_hit_fraction",
            {"share": share},
            "Raise the cgroup's limit (io.max, docker run --device-read-bps), or read fewer bytes: "
            "compress the data, or keep it in memory. More workers read no more.",
        )
    more, gain = _more_that_pay(view)
    fix = f"Read less often: fetch several samples at once{at_once}, keep connections open, pack "
    fix += "small files into shards, or keep the data on a local disk or in memory."
    limited, enough, one = at_shared_limit(view), enough_for_limit(view), _at_limit(view)
    if limited is not None:
        tried, brought, alone = limited
        blocked += f" num_workers={tried.num_workers} {brought.words}, not {alone:.1f}x: its "
        blocked += f"workers {_ONE_RATE}"
    elif one is not None:
        blocked += f" With one worker that is {format_duration(one.fetch.io_s)}: workers seem to "
        blocked += _ONE_RATE
    if more is not None:
        further = " (dlprof sweep tries more)" * (more.num_workers == _most_advised(view))
        own = f"Set num_workers={more.num_workers}"
        fix = f"{own}{further}: {_NO_CORES} such as the rate of a server."
        if limited is not None:
            fix = f"{own}: {_WAITING_PAYS}, up to the limit that they share."
            if enough is not None:
                fix += f" num_workers={enough.num_workers} should reach it as well (dlprof sweep)."
        fix += " Or read faster: pack small files into shards, or read a local copy."
    gains, threads = fetched_in_threads(view, costs), None
    most = max((each.value for each in gains.values()), default=0.0)
    # Threads would share either, too.
    if most >= at.PAYS and not view.integrity.shared_files and limited is None and one is None:
        threads = next(count for count, each in gains.items() if each.value >= 0.95 * most)
        fix += f" Or fetch {threads} samples at once in each worker, by threads in __getitems__"
        fix += ", if __getitem__ may run in several"
        unknown = may_share_limit(view)
        fix += "." if unknown else f": predicted {as_fast(gains[threads].estimate)}."
    # Where something else, as the cores, keeps it from being faster, all of it costs nothing.
    without = None if more else predicted_gain(view, costs=costs.without(costs.fetch.io_s))
    most = 1.0 if without is None else 1 - 1 / max(1.0, without.value)
    return Claim(
        f"Blocking I/O in {view.fetched_by}" + ", at a limit of all workers" * bool(limited),
        blocked,
        min(most, _cost(view, costs, share)),
        "fetch_waiting_s fetch_cpu_s share read_bytes_per_s cache_hit_fraction",
        {"share": share, "threads_gain": {str(count): gain.value for count, gain in gains.items()}},
        fix,
        code="" if threads is None or more is not None else _THREADED.format(threads=threads),
        config=more,
        gain=gain,
        place=Place.BEHIND if without is not None and without.value < at.PAYS else None,
    )


_THREADED = """from concurrent.futures import ThreadPoolExecutor

pool = None  # of the class

def __getitems__(self, indices):  # torch calls it with all indices of a batch
    if self.pool is None:
        self.pool = ThreadPoolExecutor({threads})  # made in the worker
    # each thread needs a file handle and a connection of its own: threading.local
    return list(self.pool.map(self.__getitem__, indices))"""


def fetched_in_threads(view: Evidence, costs: Costs) -> dict[int, Gain]:
    """Gains by the number of threads that fetch samples in each worker.

    Threads take turns on the interpreter, so that CPU time stays as it is, and only what is blocked
    passes side by side: a batch takes ``max(cpu, (cpu + blocked) / threads)``. Code that computes
    without the interpreter's lock does better than that.
    Empty where samples can't be fetched at once: those of an iterable, or where the dataset is
    asked for whole batches already.
    """
    samples = None if view.explained is None else view.explained.samples
    if view.target.kind == "iterable" or samples is None or view.explained is None:
        return {}
    each, gains = samples.count / max(1, view.explained.batches), dict[int, Gain]()
    for count in (count for count in (2, 4, 8, 16, 32) if count <= each):
        blocked_s = max(0.0, costs.fetch.own_s / count - costs.fetch.cpu_s)
        fetch = StageTime(costs.fetch.cpu_s, blocked_s)
        gain = predicted_gain(view, costs=dataclasses.replace(costs, fetch=fetch))
        if gain is not None:
            gains[count] = gain
    return gains


def _blocked(view: Evidence, costs: Costs) -> Claim | None:
    """Making a batch is blocked, and it can't be said on what: other threads may hold the GIL."""
    making, gil_s = costs.making, view.gil_s
    if view.waits_for_gil_s is not None:  # it is known
        return None
    share, least = _share(costs, making.io_s), max(making.cpu_s, at.LARGE_SHARE * making.io_s)
    if share < at.LARGE_SHARE or making.io_s < least or making.io_s - gil_s >= least:
        return None
    fix, more, gain = _or_more_workers(view, _FEWER_THREADS, _OWN_GIL)
    return Claim(
        f"{view.fetched_by} is blocked (I/O, lock or GIL)",
        f"Making a batch is blocked for {format_duration(making.io_s)}. Other threads of that "
        f"process compute for {format_duration(gil_s)} of it, so it may be a wait for the GIL and "
        "no I/O.",
        min(_cost(view, costs, share), 0.2),
        "fetch_waiting_s fetch_cpu_s share read_bytes_per_s",
        {"share": share, "gil_at_most_s": gil_s},
        fix,
        config=more,
        gain=gain,
    )


_COLLATE = ("collate_fn", "collate")
_STACKING = """def collate(samples):
    images, labels = zip(*samples)
    # of unequal lengths: torch.nn.utils.rnn.pad_sequence(images, batch_first=True)
    return torch.stack(images), torch.tensor(labels)"""

_OF_COLUMNS = """def collate(samples):
    names = ("pixel_values", "labels")  # what the model takes, and no more
    return {name: torch.stack([torch.as_tensor(s[name]) for s in samples]) for name in names}"""


def _collating(view: Evidence, code: str) -> str:
    """A collate function in the user's framework: where a trainer takes it, samples are dicts."""
    return _OF_COLUMNS if "collate_fn" in view.target.call.checked().elsewhere else code


def collate(view: Evidence) -> Claim | None:
    """Collating costs the most."""
    costs, tensors = _making_costs(view), view.target.batch_tensors
    if costs is None:
        return None
    # Threads that wait for each other while it collates are a cause of their own.
    own_s = costs.collate.own_s - min(view.gil_s, costs.collate.io_s)
    own_s -= min(view.pool_s, costs.collate.cpu_s)
    if own_s <= 0.5 * costs.making.own_s:
        return None
    objects, receive = view.workers > 0 and tensors == 0, costs.receive
    # What isn't stacked in shared memory, as torch's own does, is copied there.
    copied = view.workers > 0 and not objects and costs.put_cpu_s > own_s
    # While a worker collates in Python, main waits for its answer to every descriptor.
    rested_s = min(receive.io_s, at.LEAST_RECEIVE_S * max(1.0, tensors or 1))
    receive, put_s = StageTime(receive.cpu_s, rested_s), costs.put_cpu_s
    if objects:  # and handed over as one tensor
        receive = StageTime(min(receive.own_s, at.LEAST_RECEIVE_S))
        put_s = min(put_s, at.LEAST_PUT_S)
    title, also = "Collating costs the most", ""
    assumes = f"collating is free{' and that one tensor is sent instead of objects' * objects}"
    free = dataclasses.replace(costs, collate=StageTime(), receive=receive, put_cpu_s=put_s)
    if copied:
        size, own = format_bytes(view.batch_bytes or 0), costs.collate
        title = f"Collating batches of {size} and sending them costs the most"
        also = f" To send it, torch copies it to shared memory: {format_duration(costs.put_cpu_s)}."
        assumes = "a batch has half as many"
        half = StageTime(own.cpu_s / 2, own.io_s / 2)
        free = dataclasses.replace(costs, collate=half, put_cpu_s=costs.put_cpu_s / 2)
    elif costs.collate.io_s - min(view.gil_s, costs.collate.io_s) > costs.collate.cpu_s:
        return _collate_blocked(view, costs, free)
    name = view.target.collate_fn or ""
    is_torchs = name.startswith("torch.utils.data.")
    advice = "Give torch's own collate_fn less to stack, such as uint8 instead of float32."
    if not is_torchs:
        advice = "Stack whole tensors instead of looping in Python, pad once to the longest, and "
        advice += "do in advance what is the same in each epoch, such as tokenizing"
        advice += "." if name else "; where collate_fn is torch's own, give it less to stack."
    call = view.target.call.checked()
    if call.collates:
        advice = f"{call.fixed['collate_fn']}. Have that do less, or do once what is the same in "
        advice += "each epoch."
    if copied:
        advice = "Have fewer bytes in a batch: pad to its longest sample, and send uint8 or "
        advice += "float16. What torch's default_collate stacks is in shared memory at once."
    return Claim(
        title,
        f"Collating a batch takes {format_duration(costs.collate.own_s)}, fetching its samples "
        f"{format_duration(costs.fetch.own_s)}.{also}",
        _cost(view, costs, _share(costs, costs.collate.own_s)),
        "collate_s collate_cpu_s fetch_s",
        fix=f"{advice} The gain assumes that {assumes}.",
        code="" if is_torchs or copied or call.collates else _collating(view, _STACKING),
        argument=None if is_torchs or copied or call.collates else _COLLATE,
        gain=predicted_gain(view, costs=free),
    )


def _collate_blocked(view: Evidence, costs: Costs, free: Costs) -> Claim:
    """Collating waits, as for a server, which more workers do side by side."""
    blocked = format_duration(costs.collate.io_s)
    fix = "Ask for what collate_fn waits for once for many batches, or keep it in memory."
    fix, more, gain = _or_more_workers(view, fix, _NO_CORES)
    return Claim(
        "Collating is blocked",
        f"Collating a batch takes {format_duration(costs.collate.own_s)}, for {blocked} of it "
        "blocked, as on storage, network or a lock; fetching its samples takes "
        f"{format_duration(costs.fetch.own_s)}.",
        _cost(view, costs, _share(costs, costs.collate.own_s)),
        "collate_s collate_cpu_s fetch_s",
        fix=fix if more else f"{fix} The gain assumes that collating is free.",
        config=more,
        gain=gain if more else predicted_gain(view, costs=free),
    )


def too_few_workers(view: Evidence) -> Claim | None:
    """More workers would pay."""
    more, costs = more_workers(view), view.costs
    gain = gain_of(view, more)
    if gain is not None and gain.source == "measured" and gain.value < at.PAYS and view.is_noisy:
        # A trial beside others was too unsteady to say.
        may_pay = (gain.estimate.high or gain.value) >= at.PAYS
        alone = predicted_gain(view, more, now=view.cores) if may_pay else None
        if alone is not None and more is not None:  # the model's is of a first epoch
            own, then = (view.target.ten_epochs(each, view.ranks) for each in (view.config, more))
            ten = alone.estimate.times(own / then)
            alone = dataclasses.replace(alone, estimate=ten, is_alone=True)
            gain = alone.at_most(most_by_step(view, quiet=True))
    if more is None or costs is None or gain is None or gain.value < at.PAYS:
        return None
    now = f"with {counted(view.workers, 'worker')}" if view.workers else "without workers"
    running = " once its workers run" if view.script is not None else ""
    effect = gain.words + (" while no step computes" if competes(view, more) else running)
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


def more_workers(view: Evidence) -> Config | None:
    """As many workers as would be enough for cores, main and step, where that is more than now."""
    costs = _making_costs(view)
    if costs is None or (view.workers and (view.busy or 0.0) < at.HALF_BUSY):
        return None
    if _shared(view) is not None or _at_limit(view) is not None:
        return None
    beside = costs_for(view, view.having(num_workers=max(1, view.workers))) or costs
    cpu_s = costs.making.cpu_s + beside.put_cpu_s
    held_s = max(costs.step_s + costs.copy_s + beside.main_s, cpu_s / view.cores, 1e-6)
    ratio = (cpu_s + costs.making.io_s) / held_s
    most = _most_advised(view)
    slots = max(math.ceil(ratio - 0.05), math.floor(1.15 * ratio))  # many vary: a few more
    fed = view.target.shards, view.integrity.most_to_advise(view.config)
    useful = (most, slots, view.epoch_batches or None, *fed)
    counts = range(min(each for each in useful if each is not None), view.workers, -1)
    even = functools.partial(view.target.fewest_workers, ranks=view.ranks)
    counted_once = dict.fromkeys(count for count in map(even, counts) if count > view.workers)
    several = (view.having(num_workers=count) for count in counted_once)
    more = next(filter(view.fits_shared_memory, several), None)
    now = costs.rate(view.config, view.cores)
    if more is None or beside.rate(more, view.cores) < at.WORTH_TRYING * now:
        return None
    # The fewest with which a script is about as fast as it can be.
    sizes = {max(view.workers + 1, round(more.num_workers / 1.15**n)) for n in range(32)}
    sizes = {even(count) for count in sizes} - {*range(view.workers + 1)}
    configs = [view.having(num_workers=count) for count in sorted(sizes)]
    found = ((each, script_gain(view, each, loop=True)) for each in configs)
    gains = [(each, gain.value) for each, gain in found if gain is not None]
    best = max((value for _, value in gains), default=0.0)
    return next((each for each, value in gains if value >= NEAR * best), more)


def _most_advised(view: Evidence) -> int:
    """Workers that a finding advises at most, however long they wait: a sweep tries more."""
    return max(16, round(4 * view.cores))


def _making_costs(view: Evidence) -> Costs | None:
    limit = view.limit
    least = at.HALF_BUSY if view.has_step else 0.35
    idle = limit == "waiting" and (view.busy or 0.0) < least
    return view.costs if limit in ("workers", "waiting") and not idle else None


def _share(costs: Costs, part_s: float) -> float:
    """Share of making a batch with a core at hand: that others make it wait is no part of it."""
    return min(1.0, part_s / max(1e-12, costs.making.own_s))


def _with_a_core(costs: Costs) -> str:
    return " with a core at hand" if costs.making.starved >= at.LARGE_SHARE else ""


def _cost(view: Evidence, costs: Costs, share: float) -> float:
    """Share of the loop's time that such a share of making a batch is."""
    return share * (1 - costs.making.starved) * (view.wait or 1.0)


_ONE_TENSOR = """def collate(samples):
    batch = torch.utils.data.default_collate(samples)
    fields = batch.values() if isinstance(batch, dict) else batch
    # one tensor, split after loading
    return torch.cat([each.reshape(len(samples), -1) for each in fields], dim=1)"""


def receive(view: Evidence) -> Claim | None:
    """Main spends its time rebuilding batches."""
    costs, remedies = view.costs, _receive_remedies(view)
    if costs is None or remedies is None:
        return None
    if not is_expensive_to_receive(view) and too_many_workers(view) is not None:
        return None  # nothing is wrong with the batches: they are just too cheap to hand over
    waited_s, taking = max(costs.wait_s, 1e-12), (costs.receive.own_s, costs.receive.wall_s)
    share, whole = (min(1.0, each_s / waited_s) for each_s in taking)
    cost = min(whole * (view.wait or 1.0), costs.receive.wall_s / max(costs.period_s, 1e-12))
    tried = ((each, gain_of(view, each)) for each in remedies)
    paying = [
        (each, gain)
        for each, gain in tried
        if gain is not None and gain.value >= at.WORTH_TRYING and (gain.sure or not view.is_noisy)
        if gain.source != "measured" or not gain.is_chance
    ]
    remedy, gain = max(paying, key=lambda pair: pair[1].value, default=(None, None))
    if remedy is None:  # the bound of lighter batches
        light = StageTime(min(costs.receive.own_s, at.LEAST_RECEIVE_S))
        gain = predicted_gain(view, costs=dataclasses.replace(costs, receive=light))
    if view.has_step and remedy is None and cost < 0.25:
        return None  # what any step waits for a batch from a worker, and nothing fixes it
    tensors = view.target.batch_tensors
    what, waits = f" of {counted(tensors, 'tensor')}" if tensors else "", ""
    if costs.receive.io_s > costs.receive.cpu_s:
        waits = " Most of that is blocked time: the worker, busy with its next batch, sends the "
        waits += "descriptors of the tensors late."
    fix = "Send fewer and larger tensors: let collate_fn join what belongs together, and return "
    fix += "tensors rather than lists, dicts of objects or ndarrays."
    if remedy is not None and remedy.num_workers:
        fix = "Share tensors by name instead of by file descriptor: one handshake less per tensor."
    elif remedy is not None:
        fix = "Set num_workers=0: sending batches between processes costs more than making them."
    return Claim(
        "The main process spends its time deserializing batches",
        f"Receiving a batch{what} from a worker takes the main process "
        f"{format_duration(costs.receive.own_s)}, {percent(share)} of the time that the "
        f"consumer waits.{waits}",
        cost,
        "receive_s receive_cpu_s batch_tensors main_share_of_wait",
        fix=fix,
        code="" if remedy else _collating(view, _ONE_TENSOR),
        argument=None if remedy else _COLLATE,
        config=remedy,
        gain=gain,
    )


def lighter(view: Evidence) -> Config | None:
    """The remedy to try."""
    return next(iter(_receive_remedies(view) or ()), None)


def _receive_remedies(view: Evidence) -> list[Config] | None:
    """Sharing by name for many tensors, and no workers at all where the batches are cheap.

    The latter comes first where it should be far better. ``None`` where receiving is not what main
    does, or neither main nor what it receives is the limit.
    """
    costs = view.costs
    if costs is None or costs.receive.own_s < costs.dispatch.own_s:
        return None
    if view.limit != "main" and not is_expensive_to_receive(view):
        return None
    alone, by_name = view.having(num_workers=0), view.having(sharing_strategy="file_system")
    many = (view.target.batch_tensors or 1) > at.FEW_TENSORS
    many = many or costs.receive.io_s > costs.receive.cpu_s
    # By name they are where a script says so, and on macOS.
    by_file = view.target.sharing_strategy != "file_system"
    named = many and by_file and view.config.sharing_strategy is None
    # Workers take turns on the cores, and a batch may cost more CPU time in them than without.
    there = costs_for(view, alone) or costs
    faster = there.rate(alone, view.cores) / costs.rate(view.config, view.cores)
    remedies = [by_name] if named else []
    if faster > at.WORTH_TRYING:  # sharing by name brings half as much again for small tensors
        remedies.insert(0 if faster >= 1.5 else 1, alone)
    return remedies


_DRAWN = """class Drawn(torch.utils.data.Sampler):
    def __len__(self):
        return len(dataset)

    def __iter__(self):  # all indices of an epoch; by weights: torch.multinomial
        yield from torch.randperm(len(dataset)).tolist()"""

_DRAWN_BATCHES = """class Drawn(torch.utils.data.Sampler):
    def __len__(self):
        return -(-len(dataset) // batch_size)

    def __iter__(self):  # all indices of an epoch
        for batch in torch.randperm(len(dataset)).split(batch_size):
            yield batch.tolist()"""


def _drawn(view: Evidence) -> tuple[str, tuple[str, str] | None]:
    """A sampler that draws all indices at once, and the argument that it is for DataLoader."""
    if view.ranks > 1:  # each of several has its share of the samples by a sampler
        return "", None
    samples = None if view.explained is None else view.explained.samples
    batches = 0 if view.explained is None else view.explained.batches
    several = samples is None or samples.count > batches  # of which a batch sampler draws batches
    takes_none = "sampler" in view.target.call.checked().fixed
    if view.target.batch_size is None and several and not takes_none:
        return _DRAWN_BATCHES, ("batch_sampler", "Drawn()")
    return _DRAWN, ("sampler", "Drawn()")


def sampler(view: Evidence) -> Claim | None:
    """The sampler holds main up."""
    costs = view.costs
    if costs is None:
        return None
    draw_s = costs.dispatch.own_s
    share = min(1.0, draw_s / max(1e-12, costs.wait_s))
    if share < 0.4 or draw_s < costs.receive.own_s:
        return None
    gain = predicted_gain(view, costs=dataclasses.replace(costs, dispatch=StageTime()))
    return Claim(
        "The sampler blocks the main process",
        f"{view.target.sampler or 'The sampler'} takes {format_duration(draw_s)} to "
        f"draw a batch's indices in the main process: {percent(share)} of the wait for data. "
        "Workers can't help with that.",
        share * (view.wait or 1.0),
        "dispatch_s",
        {"share_of_wait": share},
        "Draw all indices of an epoch at once, as a list or tensor, instead of one by one in "
        "Python.",
        *_drawn(view),
        gain=gain,
        place=place_of(gain),  # what workers take may be as long
    )


def pin(view: Evidence) -> Claim | None:
    """The pin thread is the limit."""
    costs, plain = view.costs, unpinned(view)
    gain = None if plain is None else measured_gain(view, plain)
    if costs is None or plain is None or (gain is not None and gain.value < at.WORTH_TRYING):
        return None
    share, starved = min(1.0, costs.pin_s / max(1e-12, costs.period_s)), ""
    figures: dict[str, Any] = {"pin_busy_fraction": share}
    if view.copies is not None and (took := view.copies.pin) is not None:
        cpu_s, queued_s = took.thread_cpu_s, took.thread_run_queue_s
        figures |= {"pin_thread_cpu_s": cpu_s, "pin_thread_run_queue_s": queued_s}
        figures |= {"pinned_bytes": took.pinned_bytes, "pin_alloc_s": took.alloc_s}
        if cpu_s is not None and queued_s is not None and queued_s > cpu_s:
            queued = format_duration(queued_s)
            starved = f" Its run-queue delay is {queued} a batch, as workers keep the cores busy."
    return Claim(
        "The pin thread is the limit",
        f"One thread copies every batch to page-locked memory, {format_duration(costs.pin_s)} "
        f"each, and is busy {percent(share)} of the time.{starved}",
        gain.saved if gain is not None else share * (view.wait or 1.0),
        "pin_s",
        figures,
        "Set pin_memory=False, or make batches smaller (uint8).",
        config=plain,
        gain=gain,
    )


def unpinned(view: Evidence) -> Config | None:
    """The same without pinning, where the pin thread is the limit."""
    limits = view.config.pin_memory and view.limit == "pin"
    return view.having(pin_memory=False) if limits else None
