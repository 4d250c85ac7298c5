"""What looks at a training mean: its figures for the rules of ``advise/findings``. Pure.

From outside a batch is not followed, but its costs are known all the same: how many were sent to
the workers, what CPU time, run-queue delay and blocked time their main threads took, and for how
much of its time the main process waited for the next one. These make an ``Explanation``, which the
rules read as they read a traced trial's. What only looks show (a lock, order, bursts, restarts) is
added.
"""

from __future__ import annotations

import collections
import dataclasses
import functools
import math
import statistics
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Final

from dlprof.advise.findings.claims import Gain, bound
from dlprof.advise.findings.diagnosis import diagnose
from dlprof.advise.findings.evidence import Evidence
from dlprof.advise.findings.loader import deeper_than
from dlprof.advise.thresholds import (
    ENOUGH_BATCHES,
    FEW_TENSORS,
    FILLED_UP,
    LARGE_SHARE,
    LEAST_SEEN,
    OTHERS,
    PAYS,
    SENT_S,
)
from dlprof.advise.wording import inside, percent
from dlprof.attach.watching import WAITED, Look, Seen
from dlprof.machine.waits import Wait, named_waits
from dlprof.records import (
    EPOCH_SIGN,
    BatchCosts,
    Confidence,
    Config,
    Diagnosis,
    Estimate,
    Explanation,
    Failure,
    Finding,
    FindingCode,
    Fix,
    Machine,
    Stage,
    Target,
    Trial,
    Usage,
    WorkerCosts,
)
from dlprof.records.record import record
from dlprof.records.stages import StageName
from dlprof.units import counted, format_bytes

_ID = "attached"
_BLOCKED: Final = (
    *("sleep", "disk", "network", "lock", "gil", "threads", "handover", "child", "other"),
)
_FEW_LOOKS = 50

_IDLE = 0.25
"""Share of workers that idle, from which they count."""

_HELD = 0.4
"""Finished batches that main keeps while it waits for an earlier one, from which order counts."""

_BEFORE = (
    *("memory.", "cpu.affinity", "cpu.quota", "cpu.threads", "cpu.oversubscribed"),
    "workers.unfed",
)
"""Causes that come before what looks show: these end the training, or hold all of it back."""

_UNSEEN: Final = frozenset({"collate", "data.duplicated", "data.truncated"})
"""Causes that no look can show."""

_HANGS = (
    "The loader hangs: the training waits, workers have nothing to do, and no batch is on its way. "
    "A worker could not send one: its batch can't be pickled, or shared memory is full. Its own "
    "output says which."
)

_BEHIND = "Other processes took the cores: it is what is left once their delays are taken away."

_LONGEST_MESSAGE = 16384
_BLIND: Final[Mapping[FindingCode, str]] = {
    "fetch.cpu": "__getitem__ and collate_fn look alike",
    "fetch.io": "which call in __getitem__ is blocked is not seen, nor a limit that workers share",
    "main.receive": "what receiving takes is estimated",
    "main.sampler": "a step that computes and a sampler look nearly alike",
}
"""What can't be seen of a cause from outside."""


@record(frozen=True, slots=True, kw_only=True)
class Waiting:
    """What a training that was watched from outside waits for, as documents say it, too."""

    config: Config  # settings as far as they show from outside
    confidence: Confidence  # how sure the first finding is
    confidence_reason: str  # why no surer; what can't be seen
    # Share of time that the main process waited for data; ``None`` without workers, where loading
    # and computing look alike.
    wait_fraction: Estimate | None
    batches_per_s: float | None  # batches that it took of that loader; ``None`` likewise
    # Share of time that workers made batches; ``None`` without workers.
    worker_busy_fraction: float | None
    # Finished batches that waited, mean; ``None`` where that can't be seen.
    finished_batches: float | None
    # What the training and others used of the machine.
    usage: Usage


@record(frozen=True, slots=True, kw_only=True)
class Attached(Waiting):
    """That, and what it rests on."""

    seen: Seen  # what was seen
    diagnosis: Diagnosis  # the cause, and the fix

    @property
    def finding(self) -> Finding | None:
        """The cause to bet on."""
        return next(iter(self.diagnosis.findings), None)


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class _Shares:
    """How main's time goes, as shares of it (``_weights``)."""

    wait: float  # it waits for the next batch
    handover: float  # it takes tensors from workers, and waits for these
    sending: float  # it is blocked in sending workers that start what they need
    inside: float  # it computes inside ``next()``, while finished batches are there
    idle: float  # workers that wait for indices, share of all
    idle_meanwhile: float  # the same while main waits
    held: float  # finished batches that main keeps back while it waits, mean
    # Batches in flight at most for each worker; ``None`` where that can't be seen.
    depth: int | None
    finished: float | None  # finished batches that nobody has taken yet, mean; ``None`` likewise


def diagnose_training(seen: Seen, machine: Machine, usage: Usage) -> Attached:
    """Why a training waits, from what was seen and used while it was watched.

    Of several ranks, ``machine`` is the share of one.
    """
    # What it holds there itself is no less room for it.
    shm, ranks = machine.shm_bytes, seen.training.ranks
    machine = dataclasses.replace(machine, shm_available_bytes=shm and shm // ranks)
    used = usage
    if ranks > 1:  # which would take each other for background load
        usage = dataclasses.replace(
            usage, available_cpu_cores=None, other_cpu_cores=None, other_runnable=None
        )
    workers = _workers(seen)
    shares = _shares(seen)
    config = Config(
        num_workers=workers,
        prefetch_factor=(shares.depth or 2) if workers else None,
        pin_memory=seen.pins,
        start_method=seen.start_method if workers and seen.start_method != "fork" else None,
    )
    about = Target(
        spec=seen.training.script,
        kind="iterable" if _without_data(seen) else "map",
        dataset="",
        batch_tensors=_tensors(seen) if workers else None,
    )
    if seen.ended:
        note = f"The training ended after {seen.window_s:.1f} s of watching."
        found = _broken(seen, config, machine, usage, about, note)
    elif workers:
        found = _diagnosed(seen, shares, config, machine, usage, about)
    else:
        found = _without_workers(seen, shares, config, machine)
    waits = _explanation(seen, shares, config).wait_fraction if seen.workers else None
    sure, why = _certainty(found, seen, usage, machine)
    return Attached(
        seen=seen,
        config=config,
        diagnosis=found,
        confidence=sure,
        confidence_reason=why,
        wait_fraction=None if waits is None else _wait_estimate(seen, shares, waits),
        # Where workers were started, a few batches may have passed between two looks: none is no 0.
        batches_per_s=(
            seen.batches / seen.window_s
            if workers and (seen.batches or not seen.started_workers)
            else None
        ),
        worker_busy_fraction=1 - shares.idle if workers and seen.looks else None,
        finished_batches=shares.finished,
        usage=used,
    )


def _workers(seen: Seen) -> int:
    """Workers of the loader: those that have nothing left to do are among them."""
    ended = seen.training.ended_workers if not seen.started_workers else 0
    return max(len(seen.workers), _alive(seen)) + (ended if seen.workers else 0)


def _alive(seen: Seen) -> int:
    """How many workers there are while all of them run.

    Those of two epochs may overlap: Lightning makes an iterator before it lets go of the last one.
    """
    counts = [look.alive for look in seen.looks if look.alive]
    most = statistics.multimode(counts) if seen.started_workers else counts
    return max(most, default=0)


def _without_data(seen: Seen) -> tuple[int, ...]:
    """Workers whose share has come to its end while others still give batches.

    That is what only those of an iterable dataset do: among those of a map-style one indices go
    round until the epoch ends. Of several loaders nobody knows whose an ended worker was.
    """
    if seen.started_workers or seen.other_workers:
        return ()
    done = (e.pid for e in seen.workers if not e.messages and e.share("queue") > 1 - _IDLE)
    return (*done, *seen.ended_before)


def _wait_estimate(seen: Seen, shares: _Shares, wait: float) -> Estimate:
    """The wait with its interval: Wilson's, of the looks that find main blocked.

    For how long it runs is no matter of looks; how much of that is in ``next()`` is an estimate,
    which may be off by half.
    """
    ran, blocked = _running(seen), min(wait, shares.wait + shares.handover)
    looks = sum(seen.main.waits.values()) - seen.main.waits.get("running", 0)
    square = 1.96**2 / max(1, looks)
    one = min(1.0, blocked / (1 - ran)) if ran < 1 else 0.0
    middle = (one + square / 2) / (1 + square)
    half = math.sqrt(square * (one * (1 - one) + square / 4)) / (1 + square)
    ends = ((1 - ran) * (end - one) for end in (middle - half, middle + half))
    low, high = (math.hypot(end, 0.5 * (wait - blocked)) for end in ends)
    return Estimate(value=wait, low=max(0.0, wait - low), high=min(1.0, wait + high))


def _running(seen: Seen) -> float:
    """Share of the time that main runs or wants a core: by the kernel's count, else by looks."""
    counted_s = seen.main.run_s + seen.main.queued_s
    return min(1.0, counted_s / seen.window_s) if counted_s > 0 else seen.main.share("running")


def _weights(seen: Seen) -> list[float]:
    """What part of the time each look stands for.

    Where others keep all cores busy, a look comes late, when somebody lets go of one, as main does
    when it begins to wait. So it is the kernel's count that says for how long main runs, and of
    the rest all looks at main, those at it alone among them, say what it waits for.
    """
    counts, ran = Counter(look.main for look in seen.looks), _running(seen)
    blocked = {state: seen.main.waits.get(state, 0) for state in counts if state != "running"}
    every, shares = max(1, sum(blocked.values())), dict[Wait, float](running=ran)
    shares.update((state, (1 - ran) * count / every) for state, count in blocked.items())
    return [shares[look.main] / counts[look.main] for look in seen.looks]


def _shares(seen: Seen) -> _Shares:
    """How main's time goes."""
    looks, weighed = seen.looks, list(zip(_weights(seen), seen.looks, strict=True))
    waits = functools.partial(_waits, by_thread=_by_thread(seen))
    waiting = [look for look in looks if waits(look)]
    flights = _in_flight(seen)
    depth = _depth(flights, len(seen.workers))
    capacity = None if depth is None else depth * len(seen.workers)
    held = inside = 0.0
    if capacity is not None:
        missing = [capacity - flight for look, flight in flights if waits(look)]
        held = max(0.0, statistics.fmean(missing)) if missing else 0.0
        taken = sum(
            look.main == "running" and round(capacity - flight) >= 1 and look.finished_bytes != 0
            for look, flight in flights
        )
        ran = sum(look.main == "running" for look in looks)
        inside = _running(seen) * taken / max(1, ran) if held < _HELD else 0.0
    most = max((look.alive for look in looks), default=0)
    handed = [(weight, look) for weight, look in weighed if look.main == "handover"]
    sent = math.fsum(weight for weight, look in handed if _starts(seen, look, most))
    handed = [(weight, look) for weight, look in handed if not _starts(seen, look, most)]
    # A worker that makes its next batch hands few tensors over late: that is waiting for it.
    few = (_tensors(seen) or 1) <= FEW_TENSORS
    late = math.fsum(w * (1 - e.idle / max(1, e.alive)) for w, e in handed) if few else 0.0
    size = _message_bytes(seen)
    unread = [look.finished_bytes for look in looks if look.finished_bytes is not None]
    small = size is not None and size <= _LONGEST_MESSAGE
    return _Shares(
        wait=math.fsum(weight for weight, look in weighed if waits(look)) + late,
        handover=max(0.0, math.fsum(weight for weight, _ in handed) - late),
        sending=sent,
        inside=inside,
        idle=_mean_idle(looks),
        idle_meanwhile=_mean_idle(waiting),
        held=held,
        depth=depth,
        finished=statistics.fmean(unread) / size if unread and size and small else None,
    )


def _starts(seen: Seen, look: Look, most: int) -> bool:
    """Whether workers are being started, and sent what they need: indices come once all are."""
    return seen.start_method != "fork" and (not seen.main.messages or look.alive < max(1, most))


def _waits(look: Look, *, by_thread: bool) -> bool:
    """Whether main waits for a batch, by a thread that takes it also for that one."""
    if look.main == "queue":
        return True
    return by_thread and look.main == "threads" and look.alive > look.idle


def _by_thread(seen: Seen) -> bool:
    """Whether another thread than main takes the batches: the pin thread, or one of the script's.

    Main would read each by two calls, or more.
    """
    return seen.pins or seen.main.reads < seen.main.messages


def _mean_idle(looks: Sequence[Look]) -> float:
    shares = [look.idle / look.alive for look in looks if look.alive]
    return statistics.fmean(shares) if shares else 0.0


def _message_bytes(seen: Seen) -> float | None:
    """Mean bytes of a finished batch's message; ``None`` where none was seen."""
    messages = sum(each.messages for each in seen.workers)
    return sum(each.message_bytes for each in seen.workers) / messages if messages else None


def _in_flight(seen: Seen) -> list[tuple[Look, float]]:
    """Batches that were sent out and not taken in yet, look by look, where that can be seen."""
    size, sent = _message_bytes(seen), seen.main.messages
    if not size or size > _LONGEST_MESSAGE or not sent or seen.other_workers:
        return []
    indices = seen.main.message_bytes / sent
    return [
        (look, look.finished_bytes / size + look.sent_bytes / indices + look.alive - look.idle)
        for look in seen.looks
        if look.finished_bytes is not None
    ]


def _depth(flights: Sequence[tuple[Look, float]], workers: int) -> int | None:
    """``prefetch_factor``: so many batches are in flight at most, for each worker."""
    if len(flights) < _FEW_LOOKS or not workers:
        return None
    # A batch shows twice in a look that comes as its worker hands it over: until that has a core
    # again, it is seen at work, and the batch in the queue. Nor is it seen while main takes it in.
    sure = [(e, n) for e, n in flights if not e.finished_bytes or e.idle == e.alive]
    seen = sure if len(sure) >= _FEW_LOOKS / 5 else flights
    ordered = sorted(flight for _, flight in seen)
    most = ordered[int(0.8 * (len(ordered) - 1))]
    depth = math.floor(round(most) / workers + 0.5)
    # Of one worker's two batches one is all that shows where main is always busy inside next().
    return max(depth, 2 if workers == 1 else 1)


def _tensors(seen: Seen) -> int | None:
    """Tensors of a batch, by what main reads for each; ``None`` where that can't be seen."""
    batches = seen.main.messages
    if not batches:
        return None
    # Main takes a batch's message by 2 reads, and the descriptor of each of its tensors by 6.
    return max(0, round((seen.main.reads / batches - 2) / 6)) or None


def _diagnosed(
    seen: Seen, shares: _Shares, config: Config, machine: Machine, usage: Usage, target: Target
) -> Diagnosis:
    """What the rules find, and what the looks show by themselves, the cause to bet on first."""
    # Main waits, no worker has anything to do, and nothing is on its way.
    stuck = shares.wait >= 0.98 and shares.idle >= 0.98 and not seen.main.messages
    if stuck and len(seen.looks) >= _FEW_LOOKS:
        return _broken(seen, config, machine, usage, target, _HANGS)
    explained = _explanation(seen, shares, config)
    found = diagnose(_evidence(seen, explained, machine, usage, target))
    locked = any("locked_fraction" in each.evidence for each in found.findings)
    direct = list(_direct(seen, shares, config, explained, locked=locked))
    hidden: set[FindingCode] = {each.code for each in direct}
    if any(each.code == "cpu.neighbours" for each in found.findings):
        # Workers without a core answer late when main takes a tensor from them.
        hidden |= {"main.receive"} if (_tensors(seen) or 1) <= FEW_TENSORS else set()
    rest = [each for each in found.findings if each.code not in hidden | _UNSEEN]
    # Whether it is other ranks or others who take the cores from one of several isn't seen.
    crowd_alone: list[FindingCode] = ["cpu.neighbours"] if seen.training.ranks == 1 else []
    if [each.code for each in (*direct, *rest)] == crowd_alone:
        # What would be the cause if no other process took the cores: their delays are left out.
        explained = _explanation(seen, shares, config, crowded=False)
        alone = diagnose(_evidence(seen, explained, machine, Usage(), target)).findings
        behind = [each for each in alone if each.code not in {"consumer", *_UNSEEN}][:1]
        rest += [dataclasses.replace(e, doubtful=_BEHIND, predicted_gain=None) for e in behind]
    restarts = any(each.code in {"startup", "dataset.heavy"} for each in direct)
    before = _BEFORE[:3] if restarts else _BEFORE  # of workers that just start little is known
    broken = [each for each in rest if each.code.startswith(before)]
    first = [*broken, *direct]
    crowd = [each for each in rest if each.code == "cpu.neighbours"]
    if direct and crowd and crowd[0].cost > max(each.cost for each in direct):
        first = [*broken, *crowd, *direct]
    every = [*first, *(each for each in rest if each not in first)]
    # Of more, more may be without data, or wait for a lock that they share.
    if locked or any(each.code == "workers.unfed" for each in every):
        every = [each for each in every if _asked(each) <= config.num_workers]
    findings = _by_gain(every, config.num_workers)
    # What then limits it rests on the step, which looks from outside know too roughly for that.
    findings = tuple(
        dataclasses.replace(
            each, evidence={k: v for k, v in each.evidence.items() if k != "gain_limit"}
        )
        for each in findings
    )
    return dataclasses.replace(found, findings=findings, trials=())


def _evidence(
    seen: Seen, explained: Explanation, machine: Machine, usage: Usage, target: Target
) -> Evidence:
    """The training as a trial that was not touched, and as one that was traced."""
    starved = sum(explained.costs.run_queue_s) > 0.05 * sum(
        (*explained.costs.cpu_s, *explained.costs.io_s)
    )
    others = usage.taken_cores(machine.usable_cores) > OTHERS * machine.usable_cores
    rate = seen.batches / seen.window_s
    plain = Trial(
        id=_ID,
        config=explained.config,
        repetition=0,
        outcome="completed",
        batches_per_s=Estimate(value=rate) if rate else None,
        wait_fraction=explained.wait_fraction,
        usage=usage,
        noisy=others and starved,
        measured_s=seen.window_s,
        window_batches=seen.batches,
        batch_bytes=_batch_bytes(seen),
        # Whether those without data never had any isn't seen: they count as at their end.
        fed_workers=explained.config.num_workers if target.kind == "iterable" else None,
    )
    traced = dataclasses.replace(plain, id=explained.trial_id, purpose="explain")
    found = Evidence.of_training(machine, target, explained, plain=plain, traced=traced)
    return dataclasses.replace(found, ranks=seen.training.ranks)


def _batch_bytes(seen: Seen) -> float | None:
    """Shared memory that a batch takes, by the tensors that were seen there."""
    size = seen.shared_tensor_bytes
    return None if size is None else size * (_tensors(seen) or 1)


def _explanation(
    seen: Seen, shares: _Shares, config: Config, *, crowded: bool = True
) -> Explanation:
    """What each batch cost, on average over the window; ``crowded``: run-queue delays too."""
    batches = max(1, seen.batches)
    period_s = seen.window_s / batches
    # What workers of earlier epochs took ended with them: what others took is for what they made.
    whole = sum(each.messages for each in seen.workers)
    made = whole if seen.started_workers and whole else batches
    cpu_s = sum(each.run_s for each in seen.workers) / made
    queue_s = sum(each.queued_s for each in seen.workers) / made if crowded else 0.0
    io_s = sum(each.share(*_BLOCKED) for each in seen.workers) * period_s
    gil_s = sum(each.share("gil") for each in seen.workers) * period_s
    put_s = sum(each.others_cpu_s for each in seen.workers) / made
    # What workers wait for while their child processes compute keeps a core as busy.
    children_s = sum(each.children_cpu_s for each in seen.workers) / made
    waited_s = min(children_s, io_s)
    child_s = sum(each.share("child") for each in seen.workers) * period_s
    late_s = min(io_s - waited_s, max(0.0, child_s - waited_s)) if waited_s and crowded else 0.0
    cpu_s, io_s, put_s = cpu_s + waited_s, io_s - waited_s - late_s, put_s + children_s - waited_s
    queue_s += late_s if crowded else 0.0
    main_s, main_queue_s = seen.main.run_s / batches, seen.main.queued_s / batches
    inside_s = shares.inside * period_s
    computed = main_s / max(1e-12, main_s + main_queue_s)
    # After a wait caches are cold.
    cold = 1.0 + (seen.cold_factor - 1.0) * min(1.0, shares.wait)
    receive_s = min(main_s, cold * _receive_s(seen), inside_s * computed if inside_s else main_s)
    dispatch_s = max(0.0, inside_s * computed - receive_s)
    handover_s = shares.handover * period_s
    taking_s = receive_s + dispatch_s
    # In ``next()`` it waits for cores, too.
    taking_queue_s = seen.main.queued_s / batches * _queued_inside(seen, taking_s / (main_s or 1.0))
    taking_queue_s = max(taking_queue_s, inside_s * (1.0 - computed))
    blocked_s = (shares.wait + shares.handover) * period_s
    wait_s = min(period_s, blocked_s + taking_s + taking_queue_s)
    step_cpu_s = max(0.0, main_s - taking_s)
    rows = min(batches, 1000)
    making_s, step_s = cpu_s + queue_s + io_s, period_s - wait_s
    fetch = _stage("fetch", making_s, cpu_s, queue_s=queue_s, io_s=io_s)
    stages: tuple[Stage, ...] = (
        _stage("dispatch", dispatch_s, dispatch_s),
        dataclasses.replace(fetch, gil_s=gil_s or None),  # else it may not be known where it is
        _stage("rebuild", receive_s + handover_s, receive_s, io_s=handover_s),
        _stage("wait", wait_s, receive_s + dispatch_s),
        _stage("step", step_s, min(step_s, step_cpu_s), io_s=max(0.0, step_s - step_cpu_s)),
    )
    if seen.pins:
        pin_s = _pinning(seen) * period_s
        stages += (_stage("pin", pin_s, pin_s),)
    grown = [each.grown_bytes for each in seen.workers]
    filled = whole >= ENOUGH_BATCHES * max(1, len(seen.workers))
    least = LEAST_SEEN if filled else FILLED_UP  # of each worker
    pids = (each.pid for each in seen.workers)
    # Worker 0 is started first.
    number = {pid: n for n, pid in enumerate(sorted({*seen.ended_before, *pids}))}
    growth = sum(grown) / max(1, whole) if grown and min(grown) >= least else None
    return Explanation(
        trial_id=f"{_ID} (looks)",
        config=config,
        window_s=seen.window_s,
        batches=batches,
        stages=stages,
        workers=tuple(
            WorkerCosts(
                worker=number[each.pid],
                batches=each.messages,
                busy_fraction=1 - each.share("queue"),
                cpu_cores=(each.run_s + each.others_cpu_s) / seen.window_s,
                threads=each.threads,
                affinity_cpus=each.cpus,
                pss_growth_bytes_per_batch=growth,
            )
            for each in seen.workers
        ),
        costs=BatchCosts(
            cpu_s=(cpu_s,) * rows,
            io_s=(io_s,) * rows,
            run_queue_s=(queue_s,) * rows,
            put_cpu_s=(put_s,) * rows,
            between_cpu_s=(0.0,) * rows,
            receive_cpu_s=(receive_s,) * rows,
            receive_io_s=(handover_s,) * rows,
            main_cpu_s=(dispatch_s,) * rows,
        ),
        wait_fraction=wait_s / period_s,
        children_cpu_s=waited_s,
        worker_waits=_mean_waits(seen),
    )


def _mean_waits(seen: Seen) -> dict[str, float]:
    """What workers were seen at, each of them for as much: shares of the looks."""
    each, shares = 1 / max(1, len(seen.workers)), collections.defaultdict[str, float](float)
    for worker in seen.workers:
        looks = sum(worker.waits.values())
        for name, count in named_waits(worker.waits, worker.children).items():
            shares[name] += each * count / looks
    return dict(sorted(shares.items()))


def _stage(
    name: StageName, mean_s: float, cpu_s: float, *, queue_s: float = 0.0, io_s: float = 0.0
) -> Stage:
    """A stage of which no more than the mean is known."""
    same = dict.fromkeys(("mean_s", "median_s", "p95_s", "max_s"), mean_s)
    return Stage(name=name, cpu_s=cpu_s, run_queue_s=queue_s, io_s=io_s, **same)


def _queued_inside(seen: Seen, computed: float) -> float:
    """Share of main's run-queue delay that is in ``next()``, where so much of its CPU time is.

    It wants a core again each time that it let go of one, or was made to. It lets go when it waits
    for a batch, and three times for the descriptor of each of its tensors, if no pin thread does
    that; it is made to the more often the longer it computes.
    """
    main, tensors = seen.main, 0 if seen.pins else _tensors(seen) or 0
    own = min(main.yielded, (1 + 3 * tensors) * main.messages)
    whole = main.yielded + main.preempted
    return (own + main.preempted * min(1.0, computed)) / whole if whole else 0.0


def _receive_s(seen: Seen) -> float:
    """CPU that main takes to receive a batch, estimated.

    By its tensors, or, where it is large, by what pickling it takes.
    """
    # Receiving takes 0.30 ms for a batch of one tensor, and 14.6 for one of a hundred (measured).
    by_tensors = 0.00015 + 0.00015 * (_tensors(seen) or 0)
    if (_message_bytes(seen) or 0.0) <= _LONGEST_MESSAGE:
        return by_tensors
    pickled_s = sum(each.feeding_cpu_s for each in seen.workers)
    each_byte_s = pickled_s / max(1, sum(each.message_bytes for each in seen.workers))
    # From 2 ns of CPU for pickling a byte it is Python objects rather than an array's buffer.
    # Making such objects again takes ten times as long: in a process with torch the garbage
    # collector runs beside it. Measured: 1.3 and 12 ms for 246 KB, 0.12 and 2.1 ms for 48 KB.
    times = 10.0 if each_byte_s >= 2e-9 else 1.0
    return max(by_tensors, times * pickled_s / max(1, seen.batches))


def _direct(
    seen: Seen, shares: _Shares, config: Config, explained: Explanation, *, locked: bool
) -> Iterator[Finding]:
    """Causes that the looks show by themselves, where no batch's own time has to be known.

    ``locked``: workers wait for each other, which holds batches back and makes bursts of them.
    """
    if (heavy := _heavy(seen, shares)) is not None:
        yield heavy
        return
    most = max(_alive(seen), len(seen.workers))
    turning = sum(look.alive < most for look in seen.looks) / max(1, len(seen.looks))
    if seen.started_workers >= max(1, len(seen.workers)) and turning >= 0.3:
        yield _finding(
            "startup",
            "Starting workers takes much of the time",
            f"{seen.started_workers} workers were started within {seen.window_s:.0f} s, and "
            f"{percent(turning)} of the time not all of them ran: epochs are short.",
            turning,
            {"started_workers": seen.started_workers, "starting_fraction": turning},
            # No argument for scripts to take: what the dataset has can't be seen from outside.
            Fix(
                text="Set persistent_workers=True: workers then start once, not at every epoch. "
                "Not where the dataset has a set_epoch of its own: "
                f"{EPOCH_SIGN} what that changes."
            ),
        )
    elif locked:
        return
    elif _is_ordered(seen, shares, explained):
        lost = shares.wait * shares.idle_meanwhile
        held = {} if shares.depth is None else {"held_batches": shares.held}
        some = f"{shares.held:.1f} finished batches" if held else "finished batches"
        yield _finding(
            "order.blocking",
            "Slow samples hold back finished batches",
            f"While the training waits, {percent(shares.idle_meanwhile)} of the workers have "
            f"nothing to do and {some} wait for an earlier one.",
            lost,
            {"idle_while_waiting_fraction": shares.idle_meanwhile} | held,
            Fix(
                text="Set in_order=False: batches then come as soon as they are ready, and their "
                "order differs between runs.",
                dataloader_kwargs={"in_order": False},
            ),
            bound(1 / max(0.02, 1 - lost)),
        )
    elif (deep := deeper_than(config)) is not None and _comes_in_bursts(shares, explained):
        yield _finding(
            "prefetch.shallow",
            "Bursts empty the queue",
            f"Workers are busy only {percent(1 - shares.idle)} of the time, and yet the training "
            f"waits {percent(shares.wait)}: too few batches are prefetched to bridge slow moments.",
            shares.wait * shares.idle,
            {"worker_busy_fraction": 1 - shares.idle, "wait_fraction": shares.wait},
            Fix(
                text=f"Set prefetch_factor={deep}.",
                dataloader_kwargs={"prefetch_factor": deep},
            ),
        )


def _heavy(seen: Seen, shares: _Shares) -> Finding | None:
    """That what workers are sent when they start holds the training back."""
    sent_s, size = shares.sending * seen.window_s, seen.main.written_bytes
    if shares.sending < LARGE_SHARE or sent_s < SENT_S:
        return None
    return _finding(
        "dataset.heavy",
        "The dataset is heavy",
        f"For {percent(shares.sending)} of {seen.window_s:.0f} s the training was blocked in "
        f"sending the dataset to workers that start: {format_bytes(size)}, pickled.",
        shares.sending,
        {"sending_fraction": shares.sending, "sent_bytes": size},
        Fix(
            text="Keep what it lists as torch tensors or numpy arrays instead of Python objects, "
            "or load it in the worker at its first sample. dlprof profile names the attribute."
        ),
    )


def _finding(
    code: FindingCode,
    title: str,
    explanation: str,
    cost: float,
    evidence: Mapping[str, float | int],
    fix: Fix,
    gain: Gain | None = None,
) -> Finding:
    known = {} if gain is None else {"gain_from": gain.source}
    return Finding(
        code=code,
        severity="medium",  # that its fix brings as much is not certain
        title=title,
        explanation=explanation,
        evidence={**evidence, **known},
        fix=fix,
        predicted_gain=None if gain is None else gain.estimate,
        cost=min(1.0, cost),
    )


def _asked(finding: Finding) -> int:
    """Workers that its fix asks for; 0 where it asks for none."""
    fix = finding.fix
    return 0 if fix is None else int(fix.dataloader_kwargs.get("num_workers", 0))


def _by_gain(findings: Sequence[Finding], workers: int) -> tuple[Finding, ...]:
    """More workers before ``in_order=False`` where they surely bring more, by Amdahl's law.

    While a slow sample holds finished batches back, one worker is busy: more of them shorten only
    the rest of the time, which the model doesn't know of batches that are followed by none.
    """
    order = next((each for each in findings if each.code == "order.blocking"), None)
    if order is None or order.predicted_gain is None:
        return tuple(findings)
    held = min(1.0, order.cost * workers / max(1, workers - 1))
    limited, most, first = list[Finding](), PAYS * order.predicted_gain.value, None
    for each in findings:
        gain = each.predicted_gain if _asked(each) > workers else None
        if gain is not None:
            gain = gain.through(lambda ratio: 1 / (held + (1 - held) / max(1e-9, ratio)))
            each = dataclasses.replace(each, predicted_gain=gain)
            if gain.value > most:
                most, first = gain.value, each
        limited.append(each)
    if first is not None and limited.index(first) > (place := limited.index(order)):
        limited.remove(first)
        limited.insert(place, first)
    return tuple(limited)


def _is_ordered(seen: Seen, shares: _Shares, explained: Explanation) -> bool:
    """Whether workers idle while the training waits, as finished batches wait for their turn.

    Where workers wait for a core most of the time, it is others who make some batches slow. Where
    the pin thread copies most of the time, that has what is not seen of them.
    """
    several = len(seen.workers) > 1 and all(each.messages for each in seen.workers)
    return (
        several
        and max(_starved(explained), _pinning(seen)) < 0.5
        and shares.wait >= WAITED
        and shares.idle_meanwhile >= _IDLE
        and (shares.held >= _HELD or shares.depth is None)
    )


def _pinning(seen: Seen) -> float:
    """Share of the looks in which the pin thread copies."""
    return sum(look.pin == "running" for look in seen.looks) / max(1, len(seen.looks))


def _comes_in_bursts(shares: _Shares, explained: Explanation) -> bool:
    """Whether workers idle while the training computes, and are all busy while it waits."""
    costs = explained.costs
    main_s = costs.receive_cpu_s[0] + costs.receive_io_s[0] + costs.main_cpu_s[0]
    period_s = explained.window_s / explained.batches
    return (
        shares.wait >= 0.1
        and shares.idle >= _IDLE
        and shares.idle_meanwhile < shares.idle
        and _starved(explained) < _IDLE
        and main_s < _IDLE * period_s
    )


def _starved(explained: Explanation) -> float:
    """Run-queue delay of workers over what making a batch takes them."""
    costs = explained.costs
    whole_s = costs.cpu_s[0] + costs.io_s[0] + costs.run_queue_s[0]
    return costs.run_queue_s[0] / whole_s if whole_s > 0 else 0.0


def _without_workers(seen: Seen, shares: _Shares, config: Config, machine: Machine) -> Diagnosis:
    """What shows all the same."""
    main = seen.main
    if (heavy := _heavy(seen, shares)) is not None:
        return Diagnosis(config=config, findings=(heavy,))
    notes = (
        "No worker loads data: what the main process does by itself can't be seen from outside.",
    )
    doubt = "How much of that is loading can't be seen from outside."
    busy, blocked = main.share("running", "child"), main.share("disk", "network")
    if (gil := main.share("gil")) >= LARGE_SHARE:
        found = _finding(
            "lock",
            "The main thread waits for the GIL",
            f"No worker loads data, and the main thread waits {percent(gil)} of the time for the "
            "GIL: other Python threads of the training compute at the same time.",
            gil,
            {"num_workers": 0, "gil_fraction": gil},
            Fix(
                text="Set num_workers=1: a worker has a GIL of its own. Or keep other Python "
                "threads from computing in the process that fetches.",
                dataloader_kwargs={"num_workers": 1},
            ),
        )
    elif machine.gpus or max(busy, blocked) < 0.5:
        return Diagnosis(config=config, notes=notes)
    else:
        count = max(1, math.floor(machine.usable_cores))
        doing = "runs" if busy >= blocked else "is blocked on files or network"
        if main.others_cpu_s >= 0.5 * main.run_s:
            doubt += " The step, or the transforms, compute in several threads."
        found = _finding(
            "too_few_workers",
            "More workers would pay",
            f"No worker loads data, and the main thread {doing} {percent(max(busy, blocked))} of "
            "the time: whatever part of that is loading could go on beside the step.",
            max(busy, blocked),
            {"num_workers": 0, "running_fraction": busy, "blocked_fraction": blocked},
            Fix(text=f"Set num_workers={count}.", dataloader_kwargs={"num_workers": count}),
        )
    found = dataclasses.replace(found, severity="low", doubtful=doubt)
    return Diagnosis(config=config, findings=(found,), notes=notes)


def _broken(
    seen: Seen, config: Config, machine: Machine, usage: Usage, target: Target, note: str
) -> Diagnosis:
    """What may have ended it, or made it hang."""
    failure, used = None, seen.shm_used_fraction or 0.0
    free = math.inf if machine.shm_bytes is None else (1 - used) * machine.shm_bytes
    if seen.oom_kills:
        message = "The kernel killed a process of it for memory."
        failure = Failure(kind="out_of_memory", message=message, hint="")
    elif used >= 0.9 or free < (seen.shared_tensor_bytes or 0.0):
        message = f"Shared memory was {percent(used)} full."
        failure = Failure(kind="shared_memory", message=message, hint="")
    trial = Trial(
        id=_ID,
        config=config,
        repetition=0,
        outcome="crashed",
        failure=failure,
        usage=usage,
        batch_bytes=_batch_bytes(seen),
    )
    found = diagnose(Evidence.of_trial(machine, target, trial), (note,))
    ends = tuple(each for each in found.findings if each.code.startswith("memory."))
    return dataclasses.replace(found, findings=ends, trials=())


def _certainty(
    found: Diagnosis, seen: Seen, usage: Usage, machine: Machine
) -> tuple[Confidence, str]:
    """How sure the first finding is, and what keeps it from being surer."""
    first = next(iter(found.findings), None)
    looks = f"sampled {len(seen.looks)} times in {seen.window_s:.0f} s"
    if _HANGS in found.notes or (seen.ended and seen.oom_kills):
        return "high", looks
    if seen.ended:
        return "low", f"{looks}, until it ended"
    if seen.workers and seen.batches < 5:
        return "low", f"{looks}, {counted(seen.batches, 'batch')} seen: watch longer (--seconds 60)"
    unsure = "workers were started, so a few batches may not be counted"
    if thread := _by_thread(seen) and not seen.pins:
        unsure = "another thread takes the batches, and main may wait for others as well"
    if seen.other_batches:
        unsure = "another loader gave batches too: dlprof run distinguishes them"
    if seen.other_batches or seen.started_workers or thread:
        return "low", f"{looks}; {unsure}"
    if first is None or sum(seen.main.waits.values()) < _FEW_LOOKS or first.doubtful:
        reason = inside(first.doubtful).rstrip(".") if first is not None else ""
        return "low", f"{looks}; {reason}" if reason else looks
    blind = _BLIND.get(first.code, "")
    if seen.unreadable:
        blind = "system calls can't be read here (as root they can)"
    if usage.taken_cores(machine.usable_cores) > OTHERS * machine.usable_cores:
        blind = "; ".join(filter(None, ["other processes used cores at the same time", blind]))
    return ("medium", f"{looks}; {blind}") if blind else ("high", looks)
