"""What is known of a running trial, and the record that is made of it when it has ended."""

from __future__ import annotations

import dataclasses
import math
import socket
from collections.abc import Mapping, Sequence
from typing import Any

from dlprof.records import UNEVEN_SIGN, Copies, Failure, RankFigures, Trial, Usage, UsageSample
from dlprof.records.codec import from_json
from dlprof.trial import failures
from dlprof.trial.measure import Throughput
from dlprof.trial.protocol import Message, TrialRequest, error_of, record_of
from dlprof.units import format_duration


def disturbances(usage: Usage, spread: float | None, *, usable_cores: float) -> tuple[str, ...]:
    """What disturbed a window, one sentence each; empty for a quiet one.

    The ``spread`` is how uncertain the rate is, as a share of it; ``None`` where it was too short
    to say.
    """
    found = []
    if usage.is_crowded(usable_cores):
        other = usage.taken_cores(usable_cores)
        found.append(f"other processes kept {other:.1f} of the usable cores busy")
    throttled, own = usage.throttled_fraction, usage.own_cpu_cores
    # One that uses all that it may is held back by its own work, in each window alike.
    is_full = own is not None and own > 0.9 * usable_cores
    if throttled is not None and throttled > 0.05 and not is_full:
        found.append(f"a CPU quota throttled the trial for {throttled:.0%} of the window")
    if spread is not None and spread > 0.25:
        found.append(f"the rate is uncertain by ±{spread:.0%}: batches came unevenly")
    return tuple(found)


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class TrialLimits:
    """When a trial is ended by force."""

    wall_s: float  # seconds from its start to its end
    stall_s: float  # seconds without a batch, or any other sign of progress
    usable_cores: float  # cores that it may use, to judge how disturbed it was
    memory_bytes: int | None = None  # most memory of its own; ``None`` for no limit
    reserve_bytes: int = 0  # memory that it must leave to others


@dataclasses.dataclass(slots=True)
class TrialState:
    """What is known of the running trial so far. Times are the supervisor's clock, in seconds."""

    heard_s: float  # when it last showed progress
    began_s: float  # when it was started
    deadline_s: float  # when it is ended, whatever it does
    workers: int = 0  # how many it has
    traced: bool = False  # whether its batches are
    pid: int | None = None  # its first process, once it is known
    result: Message | None = None  # what it measured
    failure: Failure | None = None  # what went wrong
    usage: Message | None = None  # what the observer saw of it
    # What it used over time; the last is of the last half second.
    samples: list[UsageSample] = dataclasses.field(default_factory=list)
    status: int | None = None  # exit status of its first process; ``None`` while it runs
    # Since when it holds still for the observer; ``None`` if it doesn't.
    awaiting_usage_since: float | None = None
    killed: bool = False  # whether it was ordered to end
    asked_s: float = 1.0  # silence after which it is asked next where its workers stand
    stopped_s: float = 0.0  # for how long the supervisor itself was stopped during it

    def heard(self, now_s: float) -> None:
        """It has shown progress."""
        self.heard_s = now_s
        self.asked_s = 1.0

    @property
    def busy_cores(self) -> float | None:
        """What it used in the last half second, as far as the observer reports it."""
        return self.samples[-1].own_cpu_cores if self.samples else None

    def used(self, usage: Usage, now_s: float) -> None:
        """Keep what it used; every other sample where they become too many."""
        active = [gpu.kernel_active_fraction for gpu in usage.gpu]
        known = [each for each in active if each is not None]
        self.samples.append(
            UsageSample(
                at_s=round(now_s - self.began_s, 3),
                own_cpu_cores=usage.own_cpu_cores,
                other_cpu_cores=usage.other_cpu_cores,
                gpu_active_fraction=sum(known) / len(known) if known else None,
            )
        )
        # Enough for a chart of a trial, however long it takes.
        if len(self.samples) > 60:
            del self.samples[-2::-2]

    def stand_still(self, stopped_s: float) -> None:
        """Let none of the time count in which the supervisor itself was stopped."""
        self.stopped_s += stopped_s
        self.heard_s += stopped_s
        self.deadline_s += stopped_s
        if self.awaiting_usage_since is not None:
            self.awaiting_usage_since += stopped_s

    def running(self) -> bool:
        """Whether the trial's process has not been reported as ended."""
        return self.status is None

    def lost(self) -> bool:
        """Whether no result will come of it."""
        return self.failure is not None or (self.result is None and not self.running())

    def settled(self) -> bool:
        """Whether it is known what becomes of the trial."""
        return self.result is not None or self.failure is not None


def timed_out(limits: TrialLimits) -> Failure:
    """The failure of a trial that took too long."""
    return Failure(
        kind="timeout",
        message=f"The trial did not end within {format_duration(limits.wall_s)}.",
        hint="Raise --timeout, or --budget where that left no more, if batches are that slow; "
        "otherwise the dataset hangs.",
    )


def failure_of(state: TrialState, limits: TrialLimits, log: str) -> Failure:
    """Why a trial has no result."""
    if state.failure is not None:
        failure = state.failure
    elif state.killed:
        failure = timed_out(limits)
    else:
        failure = failures.died(state.status or 0, "")
    failure = failures.blame_log(failure, log)
    if failure.stderr_tail:
        return failure
    return dataclasses.replace(failure, stderr_tail=failures.last_lines(log))


def failure_in(message: Message) -> Failure:
    """The failure that a child reports."""
    if message["event"] == "failed":
        return from_json(Failure, message["failure"])
    return failures.as_failure(error_of(message["error"]), "target_error")


def failed(blank: Trial, failure: Failure) -> Trial:
    """The record of a trial without figures."""
    return dataclasses.replace(blank, outcome=failures.outcome_of(failure), failure=failure)


_OF_RATE = (
    *("samples_per_s", "batches_per_s", "measured_s", "whole_epochs"),
    *("window_batches", "window_samples", "samples_per_batch"),
)


def completed(blank: Trial, state: TrialState, request: TrialRequest, limits: TrialLimits) -> Trial:
    """The record of a trial that has a result."""
    result = state.result or {}
    measured: Mapping[str, Any] = result["measured"]
    rate = record_of(Throughput, measured["rate"])
    usage = from_json(Usage, state.usage["usage"]) if state.usage else Usage()
    disturbed = disturbances(
        usage, None if rate is None else rate.spread, usable_cores=limits.usable_cores
    )
    if state.stopped_s:
        stopped = f"dlprof itself was stopped for {format_duration(state.stopped_s)} during this"
        disturbed += (f"{stopped} trial: what the machine did then is not known",)
    size = result["batch_bytes"]
    kept = ("startup_s", "epoch_turnover_s", "epoch_samples", "fed_workers", "transient_s")
    figures: dict[str, Any] = {name: measured[name] for name in kept}
    if rate is not None:
        figures |= {name: getattr(rate, name) for name in _OF_RATE}
        figures["bytes_per_s"] = None if size is None else rate.batches_per_s.times(size)
    return dataclasses.replace(
        blank,
        wait_fraction=measured["wait_fraction"] if _has_step(request) else None,
        usage=usage,
        noisy=bool(disturbed),
        warnings=(*result["warnings"], *measured["warnings"], *disturbed),
        unavailable=_unavailable(state, request, result),
        batch_bytes=size,
        copies=record_of(Copies, result.get("copies")),
        **figures,
    )


_UNEVEN = (
    f"an epoch has {{most}} batches on one rank and {{least}} on another: {UNEVEN_SIGN} (share the "
    "data evenly, or use torch's Join)"
)


_USED = ("own_cpu_cores", "other_cpu_cores", "run_queue_wait_fraction", "read_bytes_per_s")


def of_one(trial: Trial, state: TrialState, rank: int, place: int, here: int) -> Trial:
    """The record of one of several ranks, the one at ``place`` of those ``here``, on this node."""
    result = state.result or {}
    alone = {name: getattr(trial.usage, name) for name in _USED}  # on its node
    used = (state.usage or {}).get("ranks") or [alone] * here
    figures = RankFigures(
        rank=rank,
        host=socket.gethostname(),
        samples_per_s=trial.samples_per_s,
        batches_per_s=trial.batches_per_s,
        startup_s=trial.startup_s,
        wait_fraction=trial.wait_fraction,
        barrier_fraction=result["measured"].get("barrier_fraction"),
        epoch_batches=result.get("epoch_batches"),
        **used[place],
    )
    return dataclasses.replace(trial, ranks=(figures,), usage=_share(trial.usage, here))


def together(trials: Sequence[Trial]) -> tuple[Trial, int]:
    """One record of several ranks or nodes, and the index of the slowest, whose rate it has."""
    if len(trials) == 1:
        return trials[0], 0
    paces = [min(rank.pace for rank in trial.ranks) for trial in trials]
    slow = paces.index(min(paces))
    ranks = tuple(sorted((r for trial in trials for r in trial.ranks), key=lambda r: r.rank))
    turnovers = [trial.epoch_turnover_s for trial in trials]
    epochs, apart = _epochs(trials, ranks)
    uneven = [_UNEVEN.format(most=max(epochs), least=min(epochs))] if apart else []
    said = [warning for trial in trials for warning in trial.warnings]
    sign = _UNEVEN.rpartition("}")[2]  # of one node's ranks, where it is said of all
    warnings = [warning for warning in said if not (uneven and warning.endswith(sign))]
    return dataclasses.replace(
        trials[slow],
        startup_s=max((t.startup_s for t in trials if t.startup_s is not None), default=None),
        epoch_turnover_s=max((each for each in turnovers if each is not None), default=None),
        noisy=any(trial.noisy for trial in trials),
        # Workers that have nothing on one rank may be needed on another.
        fed_workers=max((t.fed_workers for t in trials if t.fed_workers is not None), default=None),
        warnings=tuple(dict.fromkeys([*warnings, *uneven])),
        ranks=ranks,
    ), slow


def _epochs(trials: Sequence[Trial], ranks: Sequence[RankFigures]) -> tuple[list[int], bool]:
    """Batches of an epoch of each rank, and whether they surely differ.

    As a length promises them, else as whole epochs had them: there each worker may have ended with
    a batch that was not full.
    """
    known = [each.epoch_batches for each in ranks if each.epoch_batches is not None]
    if known:
        return known, len({*known}) > 1
    seen = [
        math.ceil(trial.epoch_samples / trial.samples_per_batch)
        for trial in trials
        if trial.epoch_samples and trial.samples_per_batch
    ]
    sure = len(seen) == len(trials)
    return seen, sure and max(seen) - min(seen) > max(1, trials[0].config.num_workers)


def _share(usage: Usage, ranks: int) -> Usage:
    """What each rank had of what all of them used together."""
    shares: dict[str, Any] = {}
    for name in ("own_cpu_cores", "available_cpu_cores", "main_runnable", "read_bytes_per_s"):
        if (value := getattr(usage, name)) is not None:
            shares[name] = value / ranks
    for name in ("pss_peak_bytes", "shm_peak_bytes"):
        if (size := getattr(usage, name)) is not None:
            shares[name] = round(size / ranks)
    return dataclasses.replace(usage, **shares)


def of_rank(failure: Failure, rank: int, ranks: int) -> Failure:
    """A failure that says whose of several ranks it is."""
    whose = f"Rank {rank} of {ranks} on {socket.gethostname()}"
    return dataclasses.replace(failure, message=f"{whose}: {failure.message}")


def _has_step(request: TrialRequest) -> bool:
    return request.step_s > 0 or request.step_callable is not None


def _unavailable(state: TrialState, request: TrialRequest, result: Message) -> dict[str, str]:
    names = (field.name for field in dataclasses.fields(Usage) if field.name != "gpu")
    silent = dict.fromkeys(names, "the observer gave no answer")
    missing = silent if state.usage is None else state.usage["unavailable"]
    reasons: dict[str, str] = {f"usage.{name}": reason for name, reason in missing.items()}
    if not _has_step(request):
        reasons["wait_fraction"] = "no step was stated: a consumer that does nothing only waits"
    if result["measured"]["epoch_turnover_s"] is None:
        reasons["epoch_turnover_s"] = (
            result["no_turnover"] or "no epoch ended within the trial"
            if request.turnover
            else "timed in an earlier trial with these workers"
        )
    if result["measured"]["rate"] is None:
        for name in ("batches_per_s", "samples_per_s", "bytes_per_s"):
            reasons[name] = "too few batches came within the trial"
    elif result["measured"]["rate"]["samples_per_s"] is None:
        reasons["samples_per_s"] = "the samples in a batch can't be counted"
    return reasons
