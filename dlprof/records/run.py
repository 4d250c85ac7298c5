"""A run file as a whole: its header, its end, and everything between."""

from __future__ import annotations

import dataclasses
import re
import shlex
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Literal

from dlprof import late
from dlprof.late import Shown
from dlprof.records.advice import Recommendation
from dlprof.records.calibration import Calibration, SweepPrediction
from dlprof.records.config import Config, pins_for
from dlprof.records.findings import Diagnosis, Finding
from dlprof.records.machine import Machine
from dlprof.records.record import record
from dlprof.records.stages import Explanation
from dlprof.records.target import Target
from dlprof.records.trial import Trial
from dlprof.records.watched import SCRIPT_SPEC, WatchedLoader, WatchedScript

SCHEMA_VERSION = 1

_LAUNCHER = re.compile(
    r"((torchrun|mpirun|horovodrun|srun)( -[\w=.:%\[\]-]*| \d+)*( python -m)?)?", re.ASCII
)
"""A launcher of ranks with its options: nothing else may be pasted before ``dlprof``."""

EndReason = Literal["decided", "budget", "complete", "noise", "interrupted", "failed"]


@record(frozen=True, slots=True, kw_only=True)
class RunHeader:
    """The first record of a run file: everything that the trials have in common."""

    schema_version: int  # version of the file's format
    run_id: str  # random, unique
    started_at: str  # ISO 8601, UTC
    dlprof_version: str  # of the program that measured
    torch_version: str  # of the torch that was measured
    python_version: str  # of the interpreter
    machine: Machine  # where it ran
    target: Target  # what was loaded
    settings: Mapping[str, Any]  # the sweep's options as resolved, JSON values, enough to resume it
    # torch's name of the accelerator (``cuda``, ``mps`` …); ``None`` without one.
    accelerator: str | None = None
    left_out: tuple[LeftOut, ...] = ()  # settings left out before anything ran
    plan: Plan | None = None  # what the sweep sets out to measure
    # The words before ``dlprof`` that launch as many ranks again; empty where dlprof launched them
    # itself, or loads with one.
    launcher: tuple[str, ...] = ()

    @property
    def present(self) -> Config | None:
        """What the target's own DataLoader is set to, as the run measures it."""
        if self.plan is not None and self.plan.present is not None:
            return self.plan.present  # earlier versions never named its start method
        return self.target.present_settings(
            has_accelerator=pins_for(self.accelerator),
            compares_starts=self.settings.get("start_method") is not None,
        )

    @property
    def launched(self) -> int:
        """Ranks that loaded at once in the trials that are compared; 1 for one loader alone."""
        counts = self.settings.get("launch_ranks")
        known = counts if isinstance(counts, list | tuple) else ()
        return max([1, *(count for count in known if isinstance(count, int))])


@record(frozen=True, slots=True, kw_only=True)
class Cost:
    """Where the sweep's time went, in seconds."""

    measured: float  # inside measured windows
    overhead: float  # everything else
    total: float  # both


@record(frozen=True, slots=True, kw_only=True)
class RunEnd:
    """The last record of a run file that was not cut off."""

    ended_at: str  # ISO 8601, UTC
    reason: EndReason  # why the measuring stopped
    cost_s: Cost  # where the time went, this session and resumed ones together


@record(frozen=True, slots=True, kw_only=True)
class Run(Shown):
    """A whole run file."""

    path: str  # where it was read from or is being written to
    header: RunHeader  # what the trials have in common
    trials: tuple[Trial, ...] = ()  # in the order of measuring
    recommendation: Recommendation | None = None  # the last one that was written
    # What traced trials showed, in the order of measuring.
    explanations: tuple[Explanation, ...] = ()
    timelines: tuple[Timeline, ...] = ()  # when batches were where, of instrumented trials
    calibration: Calibration | None = None  # the last one that was written
    # What the model predicted of a sweep; the last one that was written.
    prediction: SweepPrediction | None = None
    diagnosis: Diagnosis | None = None  # the last one that was written
    # What was seen of the loaders of a training script, by ``name``, the last of each.
    watched: tuple[WatchedLoader, ...] = ()
    script: WatchedScript | None = None  # how that script went; the last one that was written
    end: RunEnd | None = None  # set if the sweep came to an end of its own
    truncated: bool = False  # whether the file was cut off in the middle of a record

    @property
    def is_script(self) -> bool:
        """Whether it is of a training script, though that may have iterated no loader."""
        # Of one that ended before anything was written only the target says so; a module that is
        # called ``run`` makes one that begins alike, with settings of a sweep.
        named = self.header.target.spec.startswith(SCRIPT_SPEC)
        unlike_sweep = not self.header.settings and not self.trials
        return self.script is not None or bool(self.watched) or (named and unlike_sweep)

    @property
    def present(self) -> Config | None:
        """What the target's own loader is set to, if anything; of a profile, what it looked at."""
        if self.diagnosis is not None:
            return self.diagnosis.config
        return self.header.present

    @property
    def findings(self) -> tuple[Finding, ...]:
        """The causes that its profile found; none without one."""
        return () if self.diagnosis is None else self.diagnosis.findings

    @property
    def advised(self) -> Config | None:
        """The settings by which its profile fixes what it names first, if they can be predicted."""
        first, known = next(iter(self.findings), None), self.calibration
        if self.diagnosis is None or known is None or first is None or first.fix is None:
            return None
        changes = dict(first.fix.dataloader_kwargs)
        if "multiprocessing_context" in changes:
            changes["start_method"] = changes.pop("multiprocessing_context")
        own = self.diagnosis.config
        if not changes or not changes.keys() <= {field.name for field in dataclasses.fields(own)}:
            return None  # a later version may set more
        made = dataclasses.replace(own, **changes).canonical()
        return made if made.batch_size in {None, known.batch_size} else None

    @property
    def traced(self) -> Explanation | None:
        """What the last traced trial showed, in a profile of the configuration that it is on.

        Of a script, what the loader did that its diagnosis is of, or that was waited for longest.
        """
        found: Sequence[Explanation] = self.explanations
        diagnosed = () if self.diagnosis is None else self.diagnosis.trials
        if self.diagnosis is not None and self.script is None:
            found = [each for each in found if each.config == self.diagnosis.config]
        elif self.script is not None:
            waited_s = {each.name: each.waited_s for each in self.watched}
            found = sorted(
                found, key=lambda e: (e.trial_id in diagnosed, waited_s.get(e.trial_id, 0.0))
            )
        return found[-1] if found else None

    @property
    def completed(self) -> tuple[Trial, ...]:
        """The trials that have figures to compare."""
        return tuple(
            trial
            for trial in self.trials
            if trial.outcome == "completed" and trial.purpose == "measure"
        )

    def crowded(self, trials: Iterable[Trial]) -> int:
        """How many of its trials are doubtful, and were beside others that took the cores."""
        usable = self.header.machine.usable_cores
        return sum(trial.noisy and trial.node_usage.is_crowded(usable) for trial in trials)

    @property
    def resume_command(self) -> str:
        """The command line that continues a sweep, by the launcher that began it.

        It names again what code is run: a run file from elsewhere can't choose that by itself, nor
        a launcher that is none. Of a live object it is a call in Python.
        """
        settings = self.header.settings
        target = str(settings.get("target") or self.header.target.spec)
        if re.fullmatch(r"<[\w.<>\[\], -]+>", target):  # as of a class Kept[int]
            return f"dlprof.sweep({target}, output={self.path!r}, resume=True)"
        launcher = self.header.launcher
        words = [*launcher] if _LAUNCHER.fullmatch(" ".join(launcher)) else []
        words += ["dlprof", "sweep", target]
        if isinstance(arguments := settings.get("arguments"), Mapping):
            for key, value in arguments.items():
                words += ["--arg", f"{key}={value}"]
        if step := settings.get("step_callable"):
            words += ["--step", str(step)]
        return shlex.join([*words, "--resume", "-o", self.path])

    def to_dataframe(self, library: Literal["pandas", "polars"] | None = None) -> Any:
        """The trials as a table: a row for each, every figure in a column with a type of its own.

        Rows and columns are those of ``dlprof report RUN -o trials.csv``. Units are in the columns'
        names, and a figure that is not available is missing.

        Args:
            library: What makes the table: ``pandas``, ``polars``, or ``None`` for pandas where it
                is installed and polars otherwise.

        Returns:
            A ``pandas.DataFrame`` or a ``polars.DataFrame``.

        Raises:
            UsageError: The library is not installed.
        """
        return late.call("to_dataframe", self, library)


@record(frozen=True, slots=True, kw_only=True)
class LeftOut:
    """Settings that the sweep did not measure, and why."""

    setting: str  # which, such as ``pin_memory=True`` or ``num_workers=64``
    reason: str  # why, one sentence


@record(frozen=True, slots=True, kw_only=True)
class TrialCost:
    """What a trial is expected to cost, from what the probe saw of the target."""

    # Whatever the batches cost: the process, its workers, what an iterable does before its first
    # batch, sending figures back.
    overhead_s: float
    batch_s: float = 0.0  # one batch, loaded alone
    batch_cpu_s: float = 0.0  # CPU time of one batch
    usable_cores: float = 1.0  # cores that all workers share

    def of(self, config: Config, trial_s: float) -> float:
        """Seconds for one trial of a configuration with a window of ``trial_s``.

        A round is the time in which each worker loads a batch. The window has three rounds, or
        as many as three times its length allows, one at least. Beside it, a trial spends two
        rounds without workers (start and epoch restart) and four with them (warm-up, and what
        the workers have in hand at the end).
        """
        round_s = max(self.batch_s, self.batch_cpu_s * config.num_workers / self.usable_cores)
        window_s = max(trial_s, min(3 * round_s, max(3 * trial_s, round_s)))
        return self.overhead_s + window_s + (4 if config.num_workers else 2) * round_s


@record(frozen=True, slots=True, kw_only=True)
class Plan:
    """What a sweep sets out to measure; kept in the run file, so that a resumed sweep goes on."""

    configs: tuple[Config, ...]  # to be measured, in their stable order
    trial_s: float  # length of a trial's measured window
    min_repeats: int  # blocks before the search may call itself decided
    max_repeats: int  # blocks after which it is complete
    planned_repeats: int  # blocks that it is likely to take
    # Whether, after the first block, configurations of the same steady rate (those that differ only
    # in ``persistent_workers``) are measured in turn rather than all in each block.
    take_turns: bool
    cost: TrialCost  # what trials are expected to cost
    # Which of them the target's own DataLoader is set to now; the most important one.
    present: Config | None = None
    # ``grid`` measures all of them; ``model`` calibrates, predicts ``cells``, and measures the few
    # that may be the best.
    search: Literal["grid", "model"] = "grid"
    calibration: tuple[Config, ...] = ()  # what ``model`` calibrates by, in its order
    cells: tuple[Config, ...] = ()  # what ``model`` predicts


@record(frozen=True, slots=True, kw_only=True)
class Timeline:
    """When each batch of an instrumented trial was where.

    Columns of equal length, one entry per batch in the order of its indices. Times are seconds
    since ``began_at`` by a clock that all processes share; ``None`` where a batch did not come
    that far or the configuration has no such stage.
    """

    trial_id: str  # the trial that it shows
    began_at: str  # wall-clock time of second 0, ISO 8601, UTC
    batch: tuple[int, ...] = ()  # the batch's number in its epoch, from 0
    epoch: tuple[int, ...] = ()  # the epoch, from 0
    worker: tuple[int, ...] = ()  # the worker that made it; -1 for the main process
    dispatched_s: tuple[float | None, ...] = ()  # main has sent its indices
    picked_s: tuple[float | None, ...] = ()  # the worker has taken them
    fetched_s: tuple[float | None, ...] = ()  # all its samples are there; collating begins
    collated_s: tuple[float | None, ...] = ()  # it is collated, and passed to the feeder thread
    serialising_s: tuple[float | None, ...] = ()  # the feeder thread begins to pickle it
    serialised_s: tuple[float | None, ...] = ()  # it is in the result queue
    received_s: tuple[float | None, ...] = ()  # main (or its pin thread) begins to take it
    rebuilt_s: tuple[float | None, ...] = ()  # its tensors exist in main
    pinned_s: tuple[float | None, ...] = ()  # they are in page-locked memory
    yielded_s: tuple[float | None, ...] = ()  # the consumer has it
    # The consumer had asked for it: ``yielded_s`` - ``asked_s`` is its wait.
    asked_s: tuple[float | None, ...] = ()
    dropped: int = 0  # batches left out of the columns to keep them bounded
