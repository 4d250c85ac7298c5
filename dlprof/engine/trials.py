"""The trials of a sweep or profile: how each is run, and when they must have ended."""

from __future__ import annotations

import dataclasses
import math
import time
from collections.abc import Callable
from typing import Any

from dlprof.engine.preparation import SweepListener, copy_settings, now
from dlprof.records import (
    Config,
    Cost,
    Explanation,
    Failure,
    Run,
    RunEnd,
    RunHeader,
    Timeline,
    Trial,
    checked,
)
from dlprof.records.run import EndReason
from dlprof.search.space import refuse_budget
from dlprof.settings import SweepSettings
from dlprof.store import RunWriter
from dlprof.trial.protocol import Message, TrialRequest
from dlprof.trial.runner import TrialRunner
from dlprof.units import spread_of

_PROMISED = 0.10
"""Share of the budget by which the whole may exceed it; the last trial may by half of that."""

_ENDING_S = 0.7
"""What follows the last trial where nobody else is on the machine: it is ended, at worst, what it
sent is worked out, all processes go, and the screen is drawn."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Deadline:
    """What is left of a budget for trials."""

    budget_s: float  # seconds in all, the program's start and end included
    began_s: float  # when the program began, by ``clock``
    ending_s: float = _ENDING_S  # what follows the last trial
    named: bool = True  # whether the user gave the budget
    clock: Callable[[], float] = time.monotonic  # monotonic seconds

    @classmethod
    def since(cls, began_s: float | None, budget_s: float, *, named: bool = True) -> Deadline:
        """The deadline of a program that has just read its settings.

        ``began_s`` is by ``time.monotonic``; ``None`` for now.
        """
        now_s = time.monotonic()
        began_s = now_s if began_s is None else began_s
        # A machine on which starting is slow ends slowly too.
        ending_s = max(_ENDING_S, (now_s - began_s) / 2)
        return cls(budget_s=budget_s, began_s=began_s, ending_s=ending_s, named=named)

    def for_trials(self) -> Deadline:
        """The deadline now that the target is known.

        Of a budget that nobody named, importing and building it took a third at most: these are
        slow on a busy machine and from a network's disk.
        """
        most_s = math.inf if self.named else self.budget_s / 3
        return dataclasses.replace(self, began_s=max(self.began_s, self.clock() - most_s))

    @property
    def elapsed_s(self) -> float:
        """Seconds since the program began."""
        return self.clock() - self.began_s

    @property
    def left_s(self) -> float:
        """Seconds that trials may be planned for."""
        return self._until_s(overrun=0.0)

    @property
    def cut_s(self) -> float:
        """Seconds after which the trial that runs is ended."""
        return self._until_s(overrun=_PROMISED / 2)

    def spare_s(self, settings: SweepSettings) -> float:
        """``cut_s``, of what comes before the first trial; longer if nobody named the budget.

        Raises:
            UsageError: Nothing is left for a trial, whatever comes yet.
        """
        if not self.named:
            return self.cut_s + settings.timeout_s
        refuse_budget(settings, self.budget_s - self.cut_s)
        return self.cut_s

    def _until_s(self, *, overrun: float) -> float:
        promised_s = (1 + _PROMISED) * self.budget_s - self.ending_s
        return min((1 + overrun) * self.budget_s, promised_s) - self.elapsed_s


@dataclasses.dataclass(slots=True, kw_only=True)
class Measuring:
    """What a sweep and a profile have in common: trials that are run within a budget, and kept."""

    header: RunHeader
    settings: SweepSettings
    runner: TrialRunner
    writer: RunWriter
    listener: SweepListener
    deadline: Deadline
    before: dataclasses.InitVar[Run | None] = None
    earlier_trials: int = dataclasses.field(init=False)
    raw: Run = dataclasses.field(init=False)
    """What was measured as it was: later trials may show that the data was right after all."""
    so_far: Run = dataclasses.field(init=False)  # the same with trials of wrong data as failed ones

    def __post_init__(self, before: Run | None) -> None:
        """Go on from what an earlier session has measured."""
        run = Run(path=str(self.writer.path), header=self.header)
        if before is not None:
            run = dataclasses.replace(
                run,
                trials=before.trials,
                explanations=before.explanations,
                calibration=before.calibration,
                prediction=before.prediction,
            )
        self.raw = self.so_far = run
        self.earlier_trials = len(run.trials)

    def request(self, config: Config, trial_s: float, **details: Any) -> TrialRequest:
        """A trial as the settings have all of this run's; ``details`` are the other fields."""
        settings = self.settings
        asked: dict[str, Any] = {
            "step_s": settings.step_s or 0.0,
            "step_spread": spread_of(settings.step_s),
            "step_callable": settings.step_callable,
            "cold_cache": settings.cold_cache,
            "step_barrier": settings.step_barrier,
            "one_epoch": self.header.target.keeps_samples,
            **copy_settings(settings, self.header.accelerator),
            **details,
        }
        return TrialRequest(config=config, trial_s=trial_s, **asked)

    def measured(
        self,
        request: TrialRequest,
        *,
        repetition: int,
        wall_s: float,
        total_s: float,
        ranks: int | None = None,
    ) -> tuple[Trial, Message] | None:
        """Run one trial; ``None`` if the budget ended it, which says nothing of it.

        ``wall_s`` is when that is, ``total_s`` what the whole run is expected to take, and
        ``ranks`` how many load, all for ``None``.
        """
        self.listener.trial_started(request.config, repetition, self.deadline.elapsed_s, total_s)
        found = self.runner.explain(
            request,
            trial_id=self._next_id,
            repetition=repetition,
            wall_s=wall_s,
            ranks=ranks,
        )
        trial, _ = found
        cut = wall_s < self.settings.timeout_s and trial.wall_s >= wall_s
        # The first one is kept however it ends.
        return None if cut and self.raw.trials and trial.outcome == "timed_out" else found

    def keep(
        self,
        trial: Trial,
        explanation: Explanation | None = None,
        timeline: Timeline | None = None,
    ) -> None:
        """Append a trial and what it sent to the file, and remember them, even if that is full.

        What it shows of all others' data is known from then on.
        """
        fault = self.writer.try_append(trial, explanation, timeline)
        self.raw = dataclasses.replace(
            self.raw,
            trials=(*self.raw.trials, trial),
            explanations=(*self.raw.explanations, *filter(None, [explanation])),
            timelines=(*self.raw.timelines, *filter(None, [timeline])),
            calibration=self.so_far.calibration,
            prediction=self.so_far.prediction,
        )
        self.so_far = checked(self.raw)
        if fault is not None:
            raise fault

    def skip(self, config: Config, failure: Failure) -> None:
        """Keep a trial that is not run, since it can't work."""
        trial = Trial(
            id=self._next_id,
            config=config,
            repetition=0,
            outcome="skipped",
            failure=failure,
            started_at=now(),
        )
        self.keep(trial)

    @property
    def _next_id(self) -> str:
        return f"t{len(self.raw.trials) + 1:04d}"

    def end(self, reason: EndReason, earlier_s: float = 0.0) -> RunEnd:
        """How it ended, and where the time went, that of earlier sessions included."""
        total = earlier_s + self.deadline.elapsed_s
        measured = sum(trial.measured_s for trial in self.raw.trials)
        cost = Cost(measured=measured, overhead=max(0.0, total - measured), total=total)
        return RunEnd(ended_at=now(), reason=reason, cost_s=cost)
