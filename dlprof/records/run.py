"""A run file as a whole: its header, its end, and everything between."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

from dlprof import late
from dlprof.records.advice import Recommendation
from dlprof.records.calibration import Calibration, SweepPrediction
from dlprof.records.findings import Diagnosis, Finding
from dlprof.records.machine import Machine
from dlprof.records.plan import LeftOut, Plan
from dlprof.records.record import record
from dlprof.records.stages import Explanation
from dlprof.records.target import Target
from dlprof.records.timeline import Timeline
from dlprof.records.trial import Trial
from dlprof.records.watched import SCRIPT_SPEC, WatchedLoader, WatchedScript

SCHEMA_VERSION = 1


@record(frozen=True, slots=True, kw_only=True)
class RunHeader:
    """The first record of a run file: everything that the trials have in common.

    Attributes:
        schema_version: Version of the file's format.
        run_id: Random, unique.
        started_at: ISO 8601, UTC.
        dlprof_version: Of the program that measured.
        torch_version: Of the torch that was measured.
        python_version: Of the interpreter.
        machine: Where it ran.
        target: What was loaded.
        settings: The sweep's options as resolved, JSON values, enough to resume it.
        accelerator: torch's name of the accelerator (``cuda``, ``mps`` …); ``None`` without one.
        left_out: Settings left out before anything ran.
        plan: What the sweep sets out to measure.
    """

    schema_version: int
    run_id: str
    started_at: str
    dlprof_version: str
    torch_version: str
    python_version: str
    machine: Machine
    target: Target
    settings: Mapping[str, Any]
    accelerator: str | None = None
    left_out: tuple[LeftOut, ...] = ()
    plan: Plan | None = None

    @property
    def launched(self) -> int:
        """Ranks that loaded at once in the trials that are compared; 1 for one loader alone."""
        counts = self.settings.get("launch_ranks") or ()
        known = (
            [n for n in counts if isinstance(n, int)] if isinstance(counts, list | tuple) else []
        )
        return max(1, *known, 1)


@record(frozen=True, slots=True, kw_only=True)
class Cost:
    """Where the sweep's time went, in seconds.

    Attributes:
        measured: Inside measured windows.
        overhead: Everything else.
        total: Both.
    """

    measured: float
    overhead: float
    total: float


@record(frozen=True, slots=True, kw_only=True)
class RunEnd:
    """The last record of a run file that was not cut off.

    Attributes:
        ended_at: ISO 8601, UTC.
        reason: Why the measuring stopped.
        cost_s: Where the time went, this session and resumed ones together.
    """

    ended_at: str
    reason: Literal["decided", "budget", "complete", "noise", "interrupted", "failed"]
    cost_s: Cost


@record(frozen=True, slots=True, kw_only=True)
class Run:
    """A whole run file.

    Attributes:
        path: Where it was read from or is being written to.
        header: What the trials have in common.
        trials: In the order of measuring.
        recommendation: The last one that was written.
        explanations: What traced trials showed, in the order of measuring.
        timelines: When batches were where, of instrumented trials.
        calibration: The last one that was written.
        prediction: What the model predicted of a sweep; the last one that was written.
        diagnosis: The last one that was written.
        watched: What was seen of the loaders of a training script, by ``name``, the last of each.
        script: How that script went; the last one that was written.
        end: Set if the sweep came to an end of its own.
        truncated: Whether the file was cut off in the middle of a record.
    """

    path: str
    header: RunHeader
    trials: tuple[Trial, ...] = ()
    recommendation: Recommendation | None = None
    explanations: tuple[Explanation, ...] = ()
    timelines: tuple[Timeline, ...] = ()
    calibration: Calibration | None = None
    prediction: SweepPrediction | None = None
    diagnosis: Diagnosis | None = None
    watched: tuple[WatchedLoader, ...] = ()
    script: WatchedScript | None = None
    end: RunEnd | None = None
    truncated: bool = False

    @property
    def is_script(self) -> bool:
        """Whether it is of a training script, though that may have iterated no loader."""
        # Of one that ended before anything was written only the target says so; a module that is
        # called ``run`` makes one that begins alike, with settings of a sweep.
        named = self.header.target.spec.startswith(SCRIPT_SPEC)
        unlike_sweep = not self.header.settings and not self.trials
        return self.script is not None or bool(self.watched) or (named and unlike_sweep)

    @property
    def findings(self) -> tuple[Finding, ...]:
        """The causes that its profile found; none without one."""
        return () if self.diagnosis is None else self.diagnosis.findings

    @property
    def traced(self) -> Explanation | None:
        """What the last traced trial showed, in a profile of the configuration that it is on."""
        found = self.explanations
        if self.diagnosis is not None and self.script is None:
            found = tuple(each for each in found if each.config == self.diagnosis.config)
        return found[-1] if found else None

    @property
    def completed(self) -> tuple[Trial, ...]:
        """The trials that have figures to compare."""
        return tuple(
            trial
            for trial in self.trials
            if trial.outcome == "completed" and trial.purpose == "measure"
        )

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

    def _repr_html_(self) -> str:
        """What a notebook shows: the page of ``dlprof report RUN -o page.html``."""
        return str(late.call("notebook_html", self))
