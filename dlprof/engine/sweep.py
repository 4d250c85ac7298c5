"""The order of a sweep: prepare, build, probe, plan, measure trial after trial, recommend."""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Mapping
from pathlib import Path

from dlprof.advise.candidates import stored_limits
from dlprof.advise.recommend import recommend
from dlprof.advise.scaling import numa_binding
from dlprof.advise.thresholds import WORTH_TRYING
from dlprof.engine.predicting import calibrated, levers_of, sweep_prediction
from dlprof.engine.preparation import (
    SweepListener,
    as_stated,
    explanation_of,
    look_at,
    new_header,
    opened_runner,
    plan_sweep,
)
from dlprof.engine.ranks import numa_cpus, resolve_ranks
from dlprof.engine.resume import plan_of, resumed_settings, same_run
from dlprof.engine.trials import Deadline, Measuring
from dlprof.engine.workplace import check_folder
from dlprof.errors import DlprofError, NothingMeasuredError, UsageError
from dlprof.machine import inspect_machine
from dlprof.records import (
    Config,
    Failure,
    Integrity,
    LeftOut,
    NumaBinding,
    Plan,
    Purpose,
    Recommendation,
    Run,
    SweepPrediction,
    Trial,
)
from dlprof.records.run import EndReason
from dlprof.search.grid import GridSearch, Proposal
from dlprof.search.led import final_plan, next_calibration, next_lever
from dlprof.search.space import MIN_REPEATS, fails_everywhere, refuse_budget, still_useful
from dlprof.settings import SweepSettings, settings_from_json
from dlprof.stats import ExpectedRates
from dlprof.store import RunWriter, check_output, read_run
from dlprof.trial.nodes import Ranks
from dlprof.units import counted, with_hint

_NO_MODEL = (
    "The traced trials show too little to predict from, so configurations are measured directly"
)
_RAISES = (
    "The target's own code raises or ends an epoch early, with workers and without, so no other "
    "settings are tried"
)


SCALING_BLOCKS = 2
"""Trials at each number of ranks, interleaved, so that drift hits all of them."""


@dataclasses.dataclass(slots=True, kw_only=True)
class Sweep(Measuring):
    """The measuring part of a sweep.

    ``numa_cpus`` are what ``torchrun --numa-binding`` would bind each rank to, where that is tried.
    """

    plan: Plan
    earlier_s: float
    faults: Mapping[Config, Failure]
    numa_cpus: tuple[tuple[int, ...], ...] = ()
    kept_s: float | None = dataclasses.field(default=None, init=False)
    """What of the budget the search leaves, once that is known."""
    mute: set[str] = dataclasses.field(default_factory=set)
    """Traced trials of this session that showed nothing, and would not if they were run again."""

    def run(self) -> Run:
        """Measure, recommend, and write down both.

        Raises:
            DlprofError: Nothing could be measured.
        """
        try:
            reason: EndReason = self._measure()
            self._try_scaling()
            self._try_binding()
            if self._is_hopeless:
                self.listener.message(_RAISES)
        except KeyboardInterrupt:
            reason = "interrupted"
        except DlprofError as error:
            if not self.so_far.completed:  # nothing that could be recommended from
                raise
            self.listener.message(with_hint(error.message, error.hint))
            reason = "failed"
        end = self.end(reason, self.earlier_s)
        run = dataclasses.replace(self.so_far, end=end)
        found: Recommendation | None = None
        try:
            found = recommend(run, stored_limits(run.header.settings))
        except NothingMeasuredError:
            if reason != "interrupted":
                raise
        finally:  # what was measured is kept, whether or not there is something to recommend
            fault = self.writer.try_append(found, end)
            if fault is not None and reason != "failed":
                self.listener.message(with_hint(fault.message, fault.hint))
        return dataclasses.replace(run, recommendation=found)

    def _skip_faulty(self) -> None:
        """Keep what can't work as skipped trials, so that nobody has to ask where it is.

        A run that goes on keeps to its plan, whatever can't work by now.
        """
        known = {*self.plan.configs, *(trial.config for trial in self.so_far.trials)}
        counts: dict[str, int] = {}
        for config, failure in self.faults.items():
            if config in known:
                continue
            self.skip(config, failure)
            counts[failure.message] = counts.get(failure.message, 0) + 1
        for message, count in counts.items():
            self.listener.message(f"skipped ({counted(count, 'configuration')}): {message}")

    def _measure(self) -> EndReason:
        self._skip_faulty()
        if self.plan.search != "model":
            return self._search(self.plan)
        while True:
            if self.so_far.prediction is None:
                if not self._calibrate():
                    return "budget"
                found = sweep_prediction(self.so_far)
                self.so_far = dataclasses.replace(self.so_far, prediction=found)
                if found is not None:
                    self.writer.append(found)
                    self.listener.predicted(found)
            prediction = self.so_far.prediction
            if prediction is None:
                if not self._is_hopeless:
                    self.listener.message(_NO_MODEL)
                return self._search(self.plan)
            reason = self._search(final_plan(self.plan, prediction.race), prediction)
            if reason == "budget":
                return reason
            if self.so_far.prediction is not None:  # else what it chose, or rests on, is wrong data
                self._try_levers()
                return reason

    def _try_levers(self) -> None:
        """Settings beside the swept ones, interleaved with what would be recommended."""
        pick = self._pick()
        if pick is None:
            return
        found = levers_of(self.so_far, pick)
        while (proposal := next_lever(self.plan, self.so_far.trials, found, pick)) is not None:
            if 2 * proposal.expected_s > self.deadline.left_s or not self._try(proposal, "lever"):
                return

    def _pick(self) -> Config | None:
        """What would be recommended now; ``None`` for nothing, which is said at the end."""
        try:
            return recommend(self.so_far, stored_limits(self.header.settings)).config
        except DlprofError:
            return None

    @property
    def _counts(self) -> tuple[int, ...]:
        """Ranks at which the recommended configuration is measured: alone, and as was asked.

        On several nodes these are of the first, and last those of all.
        """
        counts = {1, *(self.settings.launch_ranks or ()), self.runner.ranks}
        # A target that each trial builds may wait for all ranks there.
        return tuple(sorted(counts)) if len(counts) > 1 and self.runner.fork_safe else ()

    @property
    def _kept_s(self) -> float:
        """What of the budget is kept for trials of the recommended configuration after the search.

        No more than half of what was left when there was a first rate, and nothing before: of what
        is left later, it would be half of ever less.
        """
        took_s = [trial.wall_s for trial in self.so_far.trials if trial.has_rate]
        if not took_s:
            return 0.0
        if self.kept_s is None:
            each_s = max(self.plan.cost.of(Config(), self.plan.trial_s), min(took_s))
            trials = max(0, 2 * len(self._counts) - 1) + (2 if self.numa_cpus else 0)
            self.kept_s = min(SCALING_BLOCKS * trials * each_s, self.deadline.left_s / 2)
        return self.kept_s

    def _try_scaling(self) -> None:
        """The recommended configuration by fewer ranks and by all, interleaved."""
        pick = None if not self._counts or self._is_hopeless else self._pick()
        if pick is None:
            return
        most = max(self.settings.launch_ranks or (1,))
        each = [(count, pick) for count in self._counts]
        if pick.num_workers:  # and as many workers in all as all ranks have
            fewer = [count for count in self._counts if count < most]
            shared = ((count, most * pick.num_workers // count) for count in fewer)
            each += [(count, dataclasses.replace(pick, num_workers=n)) for count, n in shared]
        done = {
            (max(1, len(trial.ranks)), trial.config, trial.repetition)
            for trial in self.so_far.trials
            if trial.purpose == "scaling"
        }
        for block in range(SCALING_BLOCKS):
            for count, config in each if block % 2 == 0 else reversed(each):
                if (count, config, block) in done:
                    continue
                if not self._try(self._again(config, block), "scaling", ranks=count):
                    return

    def _again(self, config: Config, block: int, *, trials: int = 1) -> Proposal:
        """One more trial of a configuration, of so many that are to come."""
        cost_s = self.plan.cost.of(config, self.plan.trial_s)
        return Proposal(
            config=config,
            repetition=block,
            trial_s=self.plan.trial_s,
            expected_s=cost_s,
            expected_rest_s=trials * cost_s,
        )

    def _try_binding(self) -> None:
        """The recommended configuration with ranks bound to NUMA nodes and without, interleaved.

        Until what that brings, if anything, is not worth a word: an end that only a gain would
        bring on would make gains of chance.
        """
        pick = self._pick() if self.numa_cpus and not self._is_hopeless else None
        if pick is None:
            return
        blocks = max(MIN_REPEATS, self.plan.max_repeats)
        tried = [t for t in self.so_far.trials if t.purpose == "binding" and t.config == pick]
        if any(trial.failure is not None for trial in tried):
            return
        for block in range(len(tried) // 2, blocks):
            found = numa_binding(self.so_far, pick)
            gain = None if found is None or block < MIN_REPEATS else found.gain
            over = gain is not None and gain.ends[1] < WORTH_TRYING
            pair = self._again(pick, block, trials=2 * (blocks - block))
            due = max(1, MIN_REPEATS - block)  # one pair alone would show nothing
            if over or 2 * due * pair.expected_s > self.deadline.left_s:
                return
            for bound in (False, True) if block % 2 == 0 else (True, False):
                done = self._try(pair, "binding", cpus=self.numa_cpus if bound else ())
                if not done or self.so_far.trials[-1].failure is not None:
                    return

    def _calibrate(self) -> bool:
        """Traced trials until batches are known; false if the budget ended them."""
        try:
            while True:
                found = calibrated(self.so_far)
                self.so_far = dataclasses.replace(self.so_far, calibration=found)
                proposal = next_calibration(self._useful(self.plan), self._explained(), found)
                if proposal is None:
                    return True
                if proposal.repetition and proposal.expected_rest_s > self.deadline.left_s:
                    return True  # what is known is worth more with a final comparison than without
                if proposal.expected_s > self.deadline.left_s or not self._try(proposal, "explain"):
                    return bool(self._explained())
        finally:  # what an interrupted one has learnt can be predicted from, too
            if self.so_far.calibration is not None:
                self.writer.append(self.so_far.calibration)

    def _explained(self) -> list[Trial]:
        """Traced trials that need not be run again: what showed nothing is, in another session.

        There, the explanation may have been lost between the trial's record and its own.
        """
        known = {*self.mute, *(each.trial_id for each in self.so_far.explanations)}
        explained = (trial for trial in self.so_far.trials if trial.purpose == "explain")
        return [trial for trial in explained if trial.failure is not None or trial.id in known]

    def _search(self, plan: Plan, led: SweepPrediction | None = None) -> EndReason:
        expected = None if led is None else ExpectedRates.of(led)
        while not self._is_hopeless and (useful := self._useful(plan)).configs:
            cells = () if led is None else tuple(cell.config for cell in led.cells)
            found = Integrity.of(self.so_far)
            search = GridSearch(
                plan=useful,
                seed=self.settings.seed,
                expected=expected,
                cells=tuple(each for each in cells if not found.is_useless(each)),
                usable_cores=self.header.machine.usable_cores,
            )
            proposal = search.propose(
                self.so_far.trials, remaining_s=self.deadline.left_s - self._kept_s
            )
            if not isinstance(proposal, Proposal):
                return proposal
            if not self._try(proposal):
                return "budget"
        return "complete"

    def _useful(self, plan: Plan) -> Plan:
        return still_useful(plan, Integrity.of(self.so_far))

    @property
    def _is_hopeless(self) -> bool:
        """Whether all that was tried, some of it in this session, says that the rest would fail.

        A dataset that was fixed since shows in the first trial that works.
        """
        tried = len(self.so_far.trials) > self.earlier_trials
        return tried and fails_everywhere(self.so_far.trials, self.plan.configs)

    def _try(
        self,
        proposal: Proposal,
        purpose: Purpose = "measure",
        ranks: int | None = None,
        cpus: tuple[tuple[int, ...], ...] = (),
    ) -> bool:
        """Run one trial and keep it; false if the budget ended it, which says nothing of it."""
        config = proposal.config
        timed = any(
            trial.epoch_turnover_s is not None
            and trial.config.turnover_group == config.turnover_group
            for trial in self.so_far.trials
        )
        request = self.request(
            config, proposal.trial_s, turnover=not timed, explain=purpose == "explain", cpus=cpus
        )
        found = self.measured(
            request,
            repetition=proposal.repetition,
            wall_s=self.deadline.cut_s,
            total_s=self.deadline.elapsed_s + proposal.expected_rest_s,
            ranks=ranks,
        )
        if found is None:
            return False
        binding = NumaBinding().mode if cpus else None
        trial = dataclasses.replace(found[0], purpose=purpose, numa_binding=binding)
        message = found[1]
        explanation = explanation_of(message, trial)
        self.keep(trial, explanation)
        if explanation is None and purpose == "explain":
            self.mute.add(trial.id)
        self.listener.trial_ended(self.so_far.trials[-1])
        return True


_NO_ROOM = "The budget is too short for the model, so configurations are measured directly"


def run_sweep(  # noqa: PLR0913 - all that says what to measure, and where
    settings: SweepSettings,
    *,
    output: Path,
    listener: SweepListener,
    resume: bool = False,
    force: bool = False,
    given: Collection[str] = (),
    pickled: bytes | None = None,
    began_s: float | None = None,
    ranks: Ranks | None = None,
) -> Run:
    """Measure what the settings ask for and recommend from it.

    Args:
        settings: What to measure.
        output: The run file.
        listener: Hears of the progress.
        resume: Continue the run in ``output`` under the settings that it was begun with.
        force: Replace ``output`` if it exists.
        given: Fields of ``settings`` that the user named; matters for ``resume`` only.
        pickled: A live object to load instead of ``settings.target`` (Python API).
        began_s: When the program began whose budget this is, by ``time.monotonic``; ``None`` for
            now.
        ranks: Those that a launcher has started; ``settings.launch_ranks`` launches others.

    Returns:
        The run as it is in the file. ``end.reason`` is ``interrupted`` after Ctrl-C.

    Raises:
        DlprofError: Nothing could be measured, or an input can't be used.
    """
    deadline = Deadline.since(began_s, settings.budget_s)
    before: Run | None = None
    if resume:
        if force:
            raise UsageError(
                "resume and force exclude each other",
                hint="The one continues the run file, the other replaces it: leave one of them "
                "out.",
            )
        before = read_run(output)
        settings = resumed_settings(settings_from_json(before.header.settings), settings, given)
    else:
        settings = as_stated(settings)
        if settings.au is not None and settings.step_s is None and settings.step_callable is None:
            raise UsageError(
                f"au = {settings.au:.0%} is the share of time in which a step passes, and no step "
                "is given",
                hint="Give its length, as with --step-time 12ms.",
            )
        check_output(output, force=force)
        check_folder(output.parent)
        refuse_budget(settings)
    settings, ranks = resolve_ranks(settings, ranks or Ranks())
    deadline = dataclasses.replace(deadline, budget_s=settings.budget_s)
    with opened_runner(settings, listener, pickled=pickled, ranks=ranks) as runner:
        machine = inspect_machine()
        cpus = numa_cpus(ranks, machine)
        outlook = look_at(runner, settings, machine, lambda: deadline.cut_s)
        if before is None:
            gone_s = settings.budget_s - deadline.left_s
            plan, no_room = plan_sweep(settings, machine, outlook, runner, gone_s)
            unbound = (cpus,) if isinstance(cpus, LeftOut) else ()
            left_out = (*outlook.space.left_out, *no_room, *unbound)
            header = new_header(settings, machine, outlook, runner, plan=plan, left_out=left_out)
            writer = RunWriter.create(output, header, force=force)
        else:
            header = same_run(
                before, settings, machine, outlook.target, runner.versions, runner.ranks
            )
            writer = RunWriter.resume(output)
        with writer:
            plan = plan_of(header)
            wanted = bool(outlook.cells) or settings.search == "model"
            if wanted and plan.search != "model":
                listener.message(_NO_ROOM)
            listener.planned(header, plan.configs, settings.repeats)
            sweep = Sweep(
                header=header,
                settings=settings,
                plan=plan,
                runner=runner,
                writer=writer,
                listener=listener,
                deadline=deadline,
                before=before,
                earlier_s=_spent_s(before),
                faults=outlook.faults,
                numa_cpus=() if isinstance(cpus, LeftOut) else cpus,
            )
            with runner.load(
                settings.make_load,
                folder=output.absolute().parent,
                limit_s=settings.budget_s + settings.timeout_s,
                say=listener.message,
            ):
                return sweep.run()


def _spent_s(before: Run | None) -> float:
    """What earlier sessions of a run have taken, as far as its file says."""
    if before is None:
        return 0.0
    in_trials = sum(trial.wall_s for trial in before.trials)
    return in_trials if before.end is None else max(in_trials, before.end.cost_s.total)
