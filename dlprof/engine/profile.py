"""The order of a profile: build, probe, trial after trial as the evidence asks, then say why."""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Iterable, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

from dlprof.advise.choice import shown_gain, shown_rate
from dlprof.advise.experiments import Allowance, Experiment, left_out, propose
from dlprof.advise.findings.diagnosis import diagnose
from dlprof.advise.findings.evidence import Evidence, ModelAtStep, Observation
from dlprof.advise.findings.machine import growth_in_doubt
from dlprof.advise.wrong_data import beginning_alone
from dlprof.engine.ranks import resolve_ranks
from dlprof.engine.trials import (
    Deadline,
    Measuring,
    Outlook,
    SweepListener,
    as_stated,
    beside_load,
    calibrated,
    look_at,
    new_header,
    opened_runner,
    sent,
    trial_cost,
)
from dlprof.errors import DlprofError, UsageError
from dlprof.machine import inspect_machine
from dlprof.records import (
    BY_COPY,
    Calibration,
    Config,
    DatasetWeight,
    Diagnosis,
    Failure,
    Run,
    Trial,
    TrialCost,
)
from dlprof.records.run import EndReason
from dlprof.search.space import refuse_budget
from dlprof.settings import OPTIONS, SweepSettings, by_key
from dlprof.store import RunWriter, check_output
from dlprof.trial.failures import SENT_SOONER
from dlprof.trial.nodes import Ranks
from dlprof.units import counted, format_duration, with_hint

_TRIAL_S = 1.0


def for_one(settings: SweepSettings, origins: Mapping[str, str]) -> SweepSettings:
    """The settings as a profile takes them, which shares files and variables with sweeps.

    Several values that a file or a variable gives are what sweeps compare, and the budget there is
    theirs; flags are meant for this command.
    """
    refuse_named(origins, ("repeats", "search"), "A profile", "it tries what shows the cause")
    changes: dict[str, Any] = {}
    for option in OPTIONS:
        if origins[option.key] == option.flag:
            continue
        value = getattr(settings, option.field)
        if isinstance(value, tuple) and len(value) > 1:
            changes[option.field] = None
    if origins["budget"] != by_key()["budget"].flag:
        changes["budget_s"] = 30.0
    return dataclasses.replace(settings, **changes)


def refuse_named(origins: Mapping[str, str], keys: Iterable[str], what: str, why: str) -> None:
    """Refuse options that a command doesn't go by where they are asked for by themselves.

    As Python may; files and variables may have them for sweeps.
    """
    for key in keys:
        if origins[key] == by_key()[key].flag:
            raise UsageError(f"{what} takes no {key}", hint=f"Leave it out: {why}.")


def refuse_spent(
    settings: SweepSettings, config: Config, cost: TrialCost, deadline: Deadline
) -> None:
    """Refuse a budget that lasts for no trial with its workers' start, once these are known."""
    trial_s = settings.trial_s or _TRIAL_S
    if deadline.cut_s >= cost.of(config, trial_s):
        return
    spent_s = deadline.elapsed_s
    enough_s = _enough_s(settings, config, cost, spent_s + deadline.ending_s)
    raise UsageError(
        f"A budget of {format_duration(settings.budget_s)} can't hold a single trial: starting, "
        f"building and probing the target took {format_duration(spent_s)}",
        hint=f"Give a budget of {format_duration(enough_s)} or more.",
    )


def _enough_s(
    settings: SweepSettings,
    config: Config,
    cost: TrialCost,
    beside_s: float,
    took_s: float = 0.0,
) -> int:
    """A budget that holds the trials that a profile begins with, and what comes beside them.

    ``took_s`` is the longest that one took.
    """
    each_s = max(took_s, cost.of(config, settings.trial_s or _TRIAL_S))
    return math.ceil(beside_s + 5 * each_s)


def run_profile(
    settings: SweepSettings,
    *,
    output: Path,
    listener: SweepListener,
    force: bool = False,
    pickled: bytes | None = None,
    began_s: float | None = None,
    origins: Mapping[str, str] = MappingProxyType({}),
    ranks: Ranks | None = None,
) -> Run:
    """Explain the one configuration that the settings name.

    The arguments are those of ``run_sweep``; each swept setting has one value. Of several ranks the
    slowest is explained.

    Returns:
        The run as it is in the file; ``diagnosis`` holds what was found.
    """
    named = origins.get("budget") == by_key()["budget"].flag
    deadline = Deadline.since(began_s, settings.budget_s, named=named)
    settings = as_stated(settings)
    check_output(output, force=force)
    refuse_budget(settings)
    settings, ranks = resolve_ranks(settings, ranks or Ranks())
    with opened_runner(settings, listener, pickled=pickled, ranks=ranks) as runner:
        machine = inspect_machine()
        outlook = look_at(runner, settings, machine, lambda: deadline.spare_s(settings), one=True)
        deadline = deadline.for_trials()
        config = outlook.space.configs[0]
        cost = trial_cost(settings, machine, outlook.target, runner)
        if config not in outlook.faults:
            refuse_spent(settings, config, cost, deadline)
        header = new_header(settings, machine, outlook, runner)
        with (
            beside_load(runner, settings, output, listener),
            RunWriter.create(output, header, force=force) as writer,
        ):
            listener.planned(header, (config,), None)
            profile = _Profile(
                header=header,
                settings=settings,
                config=config,
                cost=cost,
                runner=runner,
                writer=writer,
                listener=listener,
                deadline=deadline,
            )
            return profile.run(outlook)


@dataclasses.dataclass(slots=True, kw_only=True)
class _Profile(Measuring):
    """The measuring part of a profile."""

    config: Config
    cost: TrialCost
    weight: DatasetWeight | None = None

    def run(self, outlook: Outlook) -> Run:
        """Measure, diagnose, and write down both."""
        notes = list(self.header.target.notes)
        try:
            reason: EndReason = self._observe(outlook)
        except KeyboardInterrupt:
            reason = "interrupted"
        except DlprofError as error:
            if not self.raw.trials:  # nothing that could be diagnosed
                raise
            reason = "failed"
            notes.append(with_hint(f"Nothing more was measured: {error.message}", error.hint))
        if reason in {"complete", "budget"}:
            self._weigh_starts()
        evidence = self._evidence()
        if reason == "budget" and evidence.explained is None:
            notes.append(
                "The budget ended before a batch was traced through its stages, so most causes are "
                f"not known. Give --budget {self._enough_s()}s."
            )
        ended = reason in {"complete", "budget"}
        if ended and (untried := left_out(evidence, self._allowance())):
            notes.append(f"Not tried within the budget: {'; '.join(untried)}.")
        if ended:
            of_iterable = beginning_alone(evidence.target, evidence.trials())
            notes += filter(None, [growth_in_doubt(evidence), of_iterable])
        run = dataclasses.replace(self.so_far, calibration=evidence.calibration)
        if present := evidence.plain("present"):
            rate, samples = shown_rate(run, self.config), present[0].samples_per_batch
            evidence = dataclasses.replace(
                evidence,
                gain=functools.partial(shown_gain, run, self.config),
                shown_rate=rate.value / samples if rate is not None and samples else None,
            )
        diagnosis = diagnose(self._with_rate(evidence), notes)
        if evidence.explained is not None and not evidence.plain("present"):
            diagnosis = self._uncertain(diagnosis, evidence.explained.batches)
        end = self.end(reason)
        fault = self.writer.try_append(evidence.calibration, diagnosis, end)
        if fault is not None and reason != "failed":
            self.listener.message(with_hint(fault.message, fault.hint))
        return dataclasses.replace(run, diagnosis=diagnosis, end=end)

    def _observe(self, outlook: Outlook) -> EndReason:
        fault = outlook.faults.get(self.config)
        if fault is not None:
            self.skip(self.config, fault)
            return "complete"
        self._weigh(limit_s=self.deadline.left_s / 10)
        while block := propose(self._evidence(), self._allowance()):
            for experiment in block:
                if not self._try(experiment):
                    return "budget"
                if self.so_far.trials[0].failure is not None:
                    return "complete"  # how it failed is all that there is to say
        return "complete"

    def _allowance(self) -> Allowance:
        """What is left, as the experiments count it: without what came before the trials."""
        tried_s = sum(trial.wall_s for trial in self.raw.trials)
        return Allowance(
            budget_s=self.deadline.left_s + tried_s,
            trial_s=self.settings.trial_s or _TRIAL_S,
            cost=self.cost,
            workers=self.settings.max_workers,
        )

    def _try(self, experiment: Experiment) -> bool:
        """Run one trial and keep it; false if the budget ended it, which says nothing of it."""
        cut_s, least_s = self.deadline.cut_s, self.cost.overhead_s
        if self.raw.trials and cut_s < least_s:
            return False
        request = self.request(
            experiment.config,
            experiment.trial_s,
            cold_cache=experiment.purpose == "cold" or self.settings.cold_cache,
            turnover=experiment.turnover and self._restarts_in_time(experiment),
            explain=experiment.purpose == "explain",
            any_size=True,  # what an epoch takes is explained, and compared with no other size
        )
        return self.measure(
            request,
            experiment.purpose,
            repetition=experiment.repetition,
            wall_s=max(cut_s, least_s),
            total_s=max(self.deadline.budget_s, self.deadline.elapsed_s),
            timed=experiment.config == self.config,
        )

    def _restarts_in_time(self, experiment: Experiment) -> bool:
        """Whether there is room to time an epoch's end, for which an iterable begins once more.

        A batch that is traced says more. What takes longer than a window is timed once.
        """
        target, own = self.header.target, experiment.config
        if target.kind != "iterable":
            return True
        known = (t.epoch_turnover_s or 0.0 for t in self.raw.trials if t.config == own)
        trials = 1 if self.raw.trials else 2  # as it is, and traced
        needed_s = trials * self.cost.of(own, experiment.trial_s) + (target.first_batch_s or 0.0)
        return needed_s <= self.deadline.left_s and max(known, default=0.0) <= experiment.trial_s

    def _with_rate(self, evidence: Evidence) -> Evidence:
        """With the rate of the traced trial where the budget held no other of slow batches."""
        if evidence.explained is None or evidence.plain("present"):
            return evidence
        traced = (o for o in evidence.observations if o.explanation is evidence.explained)
        plain = [
            Observation(trial=dataclasses.replace(each.trial, purpose="measure")) for each in traced
        ]
        return dataclasses.replace(evidence, observations=(*evidence.observations, *plain))

    def _uncertain(self, diagnosis: Diagnosis, batches: int) -> Diagnosis:
        """The same, with why it is uncertain: a few batches of one trial, and none untraced."""
        doubt = (
            f"Certainty is low: it rests on {counted(batches, 'traced batch')}, as the budget held "
            f"no more. Give --budget {self._enough_s()}s."
        )
        findings = (
            dataclasses.replace(each, doubtful=f"{each.doubtful} {doubt}".lstrip())
            for each in diagnosis.findings
        )
        return dataclasses.replace(diagnosis, findings=tuple(findings))

    def _enough_s(self) -> int:
        """A budget that holds what a profile begins with, by what it took beside its trials."""
        tried_s = [trial.wall_s for trial in self.raw.trials]
        beside_s = self.deadline.elapsed_s - sum(tried_s) + self.deadline.ending_s
        longest_s = max(tried_s, default=0.0)
        return _enough_s(self.settings, self.config, self.cost, beside_s, longest_s)

    def cut_short(self, trial: Trial) -> Failure:
        """Why the budget ended the first trial, and which is enough if it takes twice as long.

        Another trial follows its batches.
        """
        took_s = trial.wall_s
        spent_s = max(0.0, self.deadline.elapsed_s - took_s)
        enough_s = math.ceil(spent_s + 2 * 2 * took_s + self.deadline.ending_s)
        method, hint = self._evidence().start_method, f"Give --budget {enough_s}s: twice as long"
        hint += " for each of the two trials that it takes."
        if self.config.num_workers and method in BY_COPY:
            hint += f" Workers that are started by {method} import torch first, and are sent the "
            hint += f"dataset. {SENT_SOONER}."
        return Failure(
            kind="timeout",
            message=f"The first trial did not end within {format_duration(took_s)}, which is all "
            f"that a budget of {format_duration(self.settings.budget_s)} left to it.",
            hint=f"{hint} If batches are not that slow, the dataset hangs.",
        )

    def _weigh(self, *, limit_s: float, starts: tuple[str, ...] = ()) -> None:
        """Weigh the dataset, as far as there is time; that it can't be weighed ends nothing."""
        built_s = 0.0 if self.runner.fork_safe else self.header.target.import_s or 0.0
        if limit_s <= built_s:
            return
        weighing_s = min(2.0, limit_s - built_s)
        try:
            message = self.runner.weigh(
                self.config, limit_s=weighing_s, left_s=limit_s + 1.0, starts=starts
            )
        except DlprofError as error:
            if self.weight is None:
                self.weight = DatasetWeight(unavailable={"attributes": error.message})
            return
        weight, before = sent(DatasetWeight, message, "weight"), self.weight
        if starts and weight is not None and before is not None:  # its samples were asked for then
            far_s, next_s = before.far_sample_s, before.next_sample_s
            weight = dataclasses.replace(weight, far_sample_s=far_s, next_sample_s=next_s)
        self.weight = weight

    def _weigh_starts(self) -> None:
        """Start one worker by each method, where the dataset's weight or the method matters."""
        weight, target = self.weight, self.header.target
        if weight is None or not self.raw.trials or self.raw.trials[0].failure:
            return
        by_copy = weight.start_method in BY_COPY
        heavy = weight.sent_s >= 0.05
        # Each start waits for a first batch.
        if not (by_copy or heavy) or (target.batch_s or 0.0) > _TRIAL_S:
            return
        if self.deadline.left_s >= 8.0:  # spawn and forkserver import torch
            self._weigh(limit_s=self.deadline.left_s, starts=("own", "fork", "forkserver", "spawn"))

    def _evidence(self) -> Evidence:
        """All that is known so far, and the model that it makes."""
        settings, target, machine = self.settings, self.header.target, self.header.machine
        ranks = self.header.launched  # of one of which the trials' figures are
        explained = {each.trial_id: each for each in self.so_far.explanations}
        observations = tuple(
            Observation(trial=each, explanation=explained.get(each.id))
            for each in self.so_far.trials
        )
        evidence = Evidence(
            machine=machine.shared_by(ranks),
            target=target,
            config=self.config,
            accelerator=self.header.accelerator,
            observations=observations,
            step_s=settings.step_s or 0.0,
            has_step=settings.step_s is not None or settings.step_callable is not None,
            reads_files=target.reads_files and not settings.cold_cache,
            weight=self.weight,
            ranks=ranks,
        )
        calibration = self._calibration(evidence)
        predict, traced = None, evidence.explained
        if calibration is not None:
            timed = None
            if settings.step_callable is not None and traced is not None:
                timed = traced.stage("step")
            predict = ModelAtStep.at_step(calibration, timed or evidence.step_s)
        return dataclasses.replace(evidence, predict=predict)

    def _calibration(self, evidence: Evidence) -> Calibration | None:
        """What batches cost; ``None`` where no trial shows it."""
        tried = evidence.trials("present", "calibration", "variant")  # whose starts show more
        return calibrated(evidence.explanations(), tried, self.header.target)
