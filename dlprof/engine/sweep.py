"""The order of a sweep: prepare, build, probe, plan, measure trial after trial, recommend.

From its traced trials follows its calibration, and from that what the model predicts. A run that
was cut off goes on as it was begun.
"""

from __future__ import annotations

import dataclasses
import functools
import math
import shlex
import statistics
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType

from dlprof.advise.candidates import most_workers, stored_limits
from dlprof.advise.recommend import recommend
from dlprof.advise.scaling import numa_binding
from dlprof.advise.situation import Situation
from dlprof.advise.thresholds import OTHER_FILES, PAYS, STARTS_CPU_S, WORTH_TRYING
from dlprof.engine.preflight import resource_limits
from dlprof.engine.ranks import numa_cpus, resolve_ranks
from dlprof.engine.trials import (
    Deadline,
    Measuring,
    SweepListener,
    as_stated,
    beside_load,
    calibrated,
    look_at,
    new_header,
    opened_runner,
    plan_sweep,
)
from dlprof.errors import DlprofError, NothingMeasuredError, TargetError, UsageError
from dlprof.machine import inspect_machine
from dlprof.model.predict import Needs, needs
from dlprof.model.work import Conditions
from dlprof.records import (
    RAISED,
    Calibration,
    Config,
    Failure,
    Integrity,
    LeftOut,
    Machine,
    NumaBinding,
    Plan,
    Purpose,
    Recommendation,
    Run,
    RunHeader,
    SweepPrediction,
    Target,
    Trial,
    broken_sample,
)
from dlprof.records.run import EndReason
from dlprof.search.grid import GridSearch, Proposal
from dlprof.search.led import final_plan, levers, next_calibration, next_lever, predict_sweep
from dlprof.search.space import (
    FEW,
    MIN_REPEATS,
    asked_values,
    fails_everywhere,
    refuse_budget,
    still_useful,
)
from dlprof.settings import OPTIONS, SweepSettings, settings_from_json
from dlprof.settings.resolve import DEFAULT_ORIGIN
from dlprof.stats.belief import ExpectedRates
from dlprof.store import RunWriter, check_output, read_content
from dlprof.targets.grammar import BUILTINS
from dlprof.trial.nodes import Ranks
from dlprof.units import counted, with_hint

SCALING_BLOCKS = 2  # trials at each number of ranks, interleaved, so that drift hits all of them


@dataclasses.dataclass(slots=True, kw_only=True)
class Sweep(Measuring):
    """The measuring part of a sweep."""

    plan: Plan
    earlier_s: float
    faults: Mapping[Config, Failure]
    # What ``torchrun --numa-binding`` would bind each rank to, where that is tried.
    numa_cpus: tuple[tuple[int, ...], ...] = ()
    kept_s: float | None = dataclasses.field(default=None, init=False)
    """What of the budget the search leaves, once that is known."""
    reopened: bool = dataclasses.field(default=False, init=False)
    """Whether all that was tried raised in earlier sessions: that may have been fixed since."""

    def run(self) -> Run:
        """Measure, recommend, and write down both."""
        try:
            if self.so_far.prediction is not None:  # of the sweep that goes on
                self.listener.predicted(self.so_far.prediction, self.so_far.calibration)
            self.reopened = self._all_raises
            reason: EndReason = self._measure()
            self._try_scaling()
            self._try_binding()
            if self._is_hopeless:
                self.listener.message(
                    "The target's own code raises or ends an epoch early, whatever the settings, "
                    "so no others are tried"
                )
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
        except (NothingMeasuredError, TargetError):
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
                found = sweep_prediction(self._history)
                self.so_far = dataclasses.replace(self.so_far, prediction=found)
                if found is not None:
                    self.writer.append(found)
                    self.listener.predicted(found, self.so_far.calibration)
            prediction = self.so_far.prediction
            if prediction is None:
                if not self._is_hopeless:
                    why = "too little to predict from, so configurations are measured directly"
                    self.listener.message(f"The traced trials show {why}")
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
        most = self.settings.launched
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
            while not self._is_hopeless:
                run, target = self.so_far, self.header.target
                found = calibrated(run.explanations, run.trials, target)
                self.so_far = dataclasses.replace(self.so_far, calibration=found)
                proposal = next_calibration(self._useful(self.plan), self._explained(), found)
                if proposal is None:
                    return True
                if proposal.repetition and proposal.expected_rest_s > self.deadline.left_s:
                    return True  # what is known is worth more with a final comparison than without
                if proposal.expected_s > self.deadline.left_s or not self._try(proposal, "explain"):
                    return bool(self._explained())
            return True
        finally:  # what an interrupted one has learnt can be predicted from, too
            if self.so_far.calibration is not None:
                self.writer.append(self.so_far.calibration)

    def _explained(self) -> list[Trial]:
        """Traced trials that need not be run again: what showed nothing is, in another session.

        There, the explanation may have been lost between the trial's record and its own.
        """
        known = {each.trial_id for each in self.so_far.explanations}
        known |= {trial.id for trial in self.raw.trials[self.earlier_trials :]}
        explained = (trial for trial in self._history.trials if trial.purpose == "explain")
        return [trial for trial in explained if trial.failure is not None or trial.id in known]

    def _search(self, plan: Plan, led: SweepPrediction | None = None) -> EndReason:
        of = functools.partial(ExpectedRates.of, run=self.so_far)
        expected = None if led is None else of(led.cells, led.log_sd)
        while not self._is_hopeless and (useful := self._useful(plan)).configs:
            cells = () if led is None else tuple(cell.config for cell in led.cells)
            found = Integrity.of(self._history)
            search = GridSearch(
                plan=useful,
                seed=self.settings.seed,
                expected=expected,
                cells=tuple(each for each in cells if not found.is_useless(each)),
                usable_cores=self.header.machine.usable_cores,
                asked=asked_values(useful.configs, self.settings, useful.present),
            )
            proposal = search.propose(
                self._history.trials, remaining_s=self.deadline.left_s - self._kept_s
            )
            if not isinstance(proposal, Proposal):
                return proposal
            if not self._try(proposal):
                return "budget"
        return "complete"

    def _useful(self, plan: Plan) -> Plan:
        return still_useful(plan, Integrity.of(self._history))

    @property
    def _history(self) -> Run:
        """The run that what comes next follows from: without what may have been fixed since."""
        if not self.reopened:
            return self.so_far
        trials, count = self.so_far.trials, self.earlier_trials
        earlier, own = trials[:count], trials[count:]
        kept = (each for each in earlier if each.failure is None or each.failure.kind not in RAISED)
        return dataclasses.replace(self.so_far, trials=(*kept, *own))

    @property
    def _all_raises(self) -> bool:
        everywhere = fails_everywhere(self.so_far.trials, self.plan.configs)
        return everywhere or broken_sample(self.so_far) is not None

    @property
    def _is_hopeless(self) -> bool:
        """Whether all that was tried, some of it in this session, says that the rest would fail.

        A dataset that was fixed since shows in the first trial that works.
        """
        own = self.so_far.trials[self.earlier_trials :]
        return any(trial.outcome != "skipped" for trial in own) and self._all_raises

    def _try(
        self,
        proposal: Proposal,
        purpose: Purpose = "measure",
        ranks: int | None = None,
        cpus: tuple[tuple[int, ...], ...] = (),
    ) -> bool:
        """Run one trial and keep it; false if the budget ended it, which says nothing of it."""
        config = proposal.config
        timed = [
            trial
            for trial in self.so_far.trials
            if trial.epoch_turnover_s is not None
            and trial.config.turnover_group == config.turnover_group
        ]
        # A single time that others disturbed may be several times too long: the median of three.
        known = len(timed) >= 3 or not all(trial.noisy for trial in timed)
        # One that takes longer than a window, as an iterable's first batch may, is timed once: each
        # more would cost more than what it says.
        known |= any((trial.epoch_turnover_s or 0.0) > proposal.trial_s for trial in timed)
        # To time it the trial begins twice.
        begin_s = self.header.target.first_batch_s or 0.0
        known |= proposal.expected_s + begin_s > max(self.deadline.left_s, proposal.expected_s)
        request = self.request(
            config, proposal.trial_s, turnover=not known, explain=purpose == "explain", cpus=cpus
        )
        return self.measure(
            request,
            purpose,
            repetition=proposal.repetition,
            wall_s=self.deadline.cut_s,
            total_s=self.deadline.elapsed_s + proposal.expected_rest_s,
            ranks=ranks,
            binding=NumaBinding().mode if cpus else None,
        )


def run_sweep(  # noqa: PLR0913 - all that says what to measure, and where
    settings: SweepSettings,
    *,
    output: Path,
    listener: SweepListener,
    resume: bool = False,
    force: bool = False,
    origins: Mapping[str, str] = MappingProxyType({}),
    pickled: bytes | None = None,
    began_s: float | None = None,
    ranks: Ranks | None = None,
) -> Run:
    """Measure what the settings ask for and recommend from it.

    ``resume`` continues the run in ``output`` under the settings that it was begun with; others are
    refused, where ``origins`` (of ``resolve_settings``) say that they were asked for now.
    ``pickled`` is a live object to load instead of ``settings.target`` (Python API). The budget
    began at ``began_s``, by ``time.monotonic``; ``None`` for now. ``ranks`` are those that a
    launcher has started; ``settings.launch_ranks`` launches others. The run's ``end.reason`` is
    ``interrupted`` after Ctrl-C.
    """
    named = origins.get("budget", DEFAULT_ORIGIN) != DEFAULT_ORIGIN
    deadline = Deadline.since(began_s, settings.budget_s, named=named)
    before: Run | None = None
    if resume:
        if force:
            raise UsageError(
                "resume and force exclude each other",
                hint="The one continues the run file, the other replaces it: leave one of them "
                "out.",
            )
        before = read_content(output).run
        RunWriter.holding(output).close()  # nothing is built beside whoever writes it
        plan_of(before.header)  # nor for a profile, which has none
        given = [each.field for each in OPTIONS if origins.get(each.key) == each.flag]
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
        refuse_budget(settings)
    settings, ranks = resolve_ranks(settings, ranks or Ranks())
    deadline = dataclasses.replace(deadline, budget_s=settings.budget_s)
    with opened_runner(settings, listener, pickled=pickled, ranks=ranks) as runner:
        machine = inspect_machine()
        cpus = numa_cpus(ranks, machine)

        def left_s() -> float:  # a run that goes on has trials
            goes_on = before is not None and named
            return deadline.cut_s if goes_on else deadline.spare_s(settings)

        outlook = look_at(runner, settings, machine, left_s)
        deadline = deadline.for_trials()
        if before is None:
            plan, no_room = plan_sweep(settings, machine, outlook, runner, deadline)
            unbound = (cpus,) if isinstance(cpus, LeftOut) else ()
            left_out = (*outlook.space.left_out, *no_room, *unbound)
            header = new_header(settings, machine, outlook, runner, plan=plan, left_out=left_out)
        else:
            header = same_run(
                before, settings, machine, outlook.target, runner.versions, runner.ranks
            )
        with (
            beside_load(runner, settings, output, listener),
            RunWriter.resume(output)
            if resume
            else RunWriter.create(output, header, force=force) as writer,
        ):
            plan = plan_of(header)
            for each in header.left_out:
                if each.setting == "search=model":
                    listener.message(f"{each.reason[:1].upper()}{each.reason[1:]}")
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
            return sweep.run()


def _spent_s(before: Run | None) -> float:
    """What earlier sessions of a run have taken, as far as its file says."""
    if before is None:
        return 0.0
    in_trials = sum(trial.wall_s for trial in before.trials)
    return in_trials if before.end is None else max(in_trials, before.end.cost_s.total)


_MANY_PER_CORE, _MANY = (8, 16), 32
"""Workers for each core, up to so many, that are looked at beside those that the model sees a gain
in: on two cores that change their speed 16 gave 7 to 10 % more than 3, 32 a fifth more than 7, as
whichever core is fast has something to do then. More have to keep within what they need by the
calibration, as they take enough to harm others; fewer are just tried."""


def sweep_prediction(run: Run) -> SweepPrediction | None:
    """What the model says of all configurations that a run's plan names, if it says anything.

    For the machine as busy as it was during the calibration.
    """
    plan, calibration = run.header.plan, run.calibration
    if plan is None or calibration is None:
        return None
    plan = still_useful(plan, Integrity.of(run))
    try:
        conditions = Situation.of(run).conditions
        cells = _worth_predicting(run, calibration, plan.cells, conditions)
        found = predict_sweep(calibration, cells, conditions, present=plan.present)
    except (UsageError, ValueError):
        return None
    also = set[Config]()
    if plan.present in plan.configs and plan.present not in plan.cells:
        also.add(plan.present)
    settings = settings_from_json(run.header.settings)
    asked = asked_values([cell.config for cell in found.cells], settings, plan.present)
    if len(asked) <= FEW:  # who names a few values wants to see each of them
        also.update(asked)
    finalists = sorted({*found.race, *also}, key=lambda config: config.cost_key)
    return dataclasses.replace(found, race=tuple(finalists))


def levers_of(run: Run, pick: Config) -> tuple[Config, ...]:
    """What beside the swept settings may pay for the pick of a run that holds a calibration."""
    calibration = run.calibration
    if calibration is None:
        return ()
    swept = [name for name, value in run.header.settings.items() if value is not None]
    swept += run.header.target.fixed
    if run.header.target.sharing_strategy == "file_system":  # which is what would be tried
        swept.append("sharing_strategy")
    explained = [trial for trial in run.trials if trial.purpose == "explain"]
    try:
        conditions = Situation.of(run).conditions
        return levers(calibration, pick, conditions, explained, unordered_pays=PAYS, swept=swept)
    except (UsageError, ValueError):
        return ()


def _worth_predicting(
    run: Run, calibration: Calibration, cells: Sequence[Config], conditions: Conditions
) -> list[Config]:
    """The cells without more workers than could gain or be measured, unless the user named them.

    On a machine that others keep busy, ever more workers take ever more of the cores from them.
    That is no gain to recommend: what saturates the machine with nobody else on it is enough. What
    takes too much of the budget to start could not be verified, and what needs more memory, shared
    memory or files than there is fails sooner or later.
    """
    settings, plan = run.header.settings, run.header.plan
    if settings.get("num_workers") is not None or not cells:
        return list(cells)
    alone = dataclasses.replace(conditions, neighbours=0.0)
    most = most_workers(calibration, cells[-1], alone)
    # A few with more are looked at, with shallow queues: deep ones fill slowly.
    share = conditions.cores / conditions.ranks
    each = () if conditions.neighbours else _MANY_PER_CORE
    limits = [min(_MANY, math.ceil(count * share)) for count in each]
    many = {max((c.num_workers for c in cells if c.num_workers <= n), default=0) for n in limits}
    depth = min((c.prefetch_factor or 0 for c in cells if c.num_workers), default=0)
    budget_s = settings.get("budget_s")
    # A trial starts its workers up to three times, and there are several trials; where batches wait
    # what more of them give is worth twice that. Starts of half a second are no reason to leave
    # anything out.
    given_s = budget_s if isinstance(budget_s, int | float) else math.inf
    longest_s, waiting_s = max(0.5, given_s / 30), max(0.5, given_s / 15)
    target = run.header.target
    started = _start_costs(calibration, conditions, target.start_method)
    needed = {
        cell: needs(started, dataclasses.replace(cell, sharing_strategy=strategy))
        for cell in cells
        for strategy in [cell.sharing_strategy or target.sharing_strategy]
    }
    # As long as the first batch takes, all of them start, without workers too.
    starts_s = (each.startup_s for each in needed.values() if each.startup_s is not None)
    least_s, present = min(starts_s, default=0.0), None if plan is None else plan.present
    # The user's own are measured however long they start: others may be that start as quickly.
    own_s = (needed[present].startup_s or 0.0) if present in needed else 0.0
    machine = run.header.machine
    memory, shared = (
        math.inf if limit is None else limit.size
        for limit in resource_limits(settings_from_json(settings), machine)
    )
    files = (machine.open_files_limit or math.inf) - OTHER_FILES

    def fits(need: Needs) -> bool:
        sizes = (need.pss_bytes, memory), (need.shm_bytes, shared), (need.open_files, files)
        return all((size or 0.0) <= limit for size, limit in sizes)

    def worth(cell: Config) -> bool:
        need, workers = needed[cell], cell.num_workers
        looked_at = workers in many and cell.prefetch_factor == depth
        most_s = waiting_s if 2 * share < workers <= most else longest_s
        if not (looked_at or workers <= most):
            return False
        if (need.startup_s or 0.0) > max(least_s + most_s, own_s):
            return False
        return workers <= _MANY or fits(need)

    return [cell for cell in cells if cell == present or worth(cell)]


def _start_costs(calibration: Calibration, conditions: Conditions, usual: str) -> Calibration:
    """The calibration with the middle of what three figures say that starting a worker takes.

    How much longer two workers took than one, one than none, and its CPU time on the cores that
    there are for it: a single start that others disturbed would else decide how many are tried.
    ``usual`` is the start method where a configuration names none.
    """
    starts, others = calibration.startup_s, conditions.neighbours
    alone_s = next(iter(starts.get("main", ())), math.inf)
    shared = max(conditions.cores - others, conditions.cores * 2 / (2 + others))
    fair = conditions.fair_cores if others else None
    cores = (shared if fair is None else fair) / conditions.ranks
    found, usual_cpu_s = dict(starts), STARTS_CPU_S.get(usual, STARTS_CPU_S["fork"])
    for method, costs in starts.items():
        if len(costs) < 2:
            continue
        cpu_s, second_s = STARTS_CPU_S.get(method, usual_cpu_s) / cores, costs[1]
        # Where it takes longer without workers, that is for another reason.
        first_s = costs[0] - alone_s if costs[0] > alone_s + cpu_s else second_s
        found[method] = (costs[0], statistics.median((cpu_s, second_s, first_s)))
    return dataclasses.replace(calibration, startup_s=found)


RESUMABLE = frozenset({"budget_s", "repeats", "timeout_s"})
"""Settings that may be changed when a run is continued: they decide how much is measured."""


def resumed_settings(
    stored: SweepSettings, settings: SweepSettings, given: Collection[str]
) -> SweepSettings:
    """The settings to continue a run with; ``given`` are the fields that the user named."""
    # By these a run file could have code run, which nobody but the user may name.
    options = {"target": "TARGET", "arguments": "--arg", "step_callable": "--step"}
    for name, option in options.items():
        if name not in given and _names_code(stored, name):
            raise UsageError(
                f"The run started with {option}: give it again to continue",
                hint=f"Name the {option} that you trust: the file says "
                f"{shlex.quote(str(getattr(stored, name)))}.",
            )
    for name in sorted(set(given) - RESUMABLE):
        asked, had = getattr(settings, name), getattr(stored, name)
        if asked != had:
            raise UsageError(
                f"The run started with {name}={had!r} and can't continue with {asked!r}",
                hint="Leave the option out, or start a new run in another file.",
            )
    changes = {name: getattr(settings, name) for name in RESUMABLE & set(given)}
    return dataclasses.replace(stored, **changes)


def same_run(
    before: Run,
    settings: SweepSettings,
    machine: Machine,
    target: Target,
    versions: Mapping[str, str],
    ranks: int,
) -> RunHeader:
    """The header of the run that is continued, if what is here now is what it was begun on."""
    stored = before.header
    at_once = max((max(1, len(trial.ranks)) for trial in before.completed), default=ranks)
    for what, had, has in (
        ("machine", stored.machine.fingerprint, machine.fingerprint),
        ("torch version", stored.torch_version, versions["torch"]),
        ("dataset", stored.target.dataset, target.dataset),
        ("dataset's length", stored.target.length, target.length),
        ("loader's batch size", stored.target.batch_size, target.batch_size),
        ("number of ranks", at_once, ranks),
    ):
        if had != has:
            raise UsageError(
                f"The run can't be continued: its {what} was {had}, and is now {has}",
                hint="Start a new run in another file.",
            )
    if settings.repeats is None:
        return stored
    plan = dataclasses.replace(
        plan_of(stored),
        min_repeats=settings.repeats,
        max_repeats=settings.repeats,
        planned_repeats=settings.repeats,
        take_turns=False,
    )
    return dataclasses.replace(stored, plan=plan)


def plan_of(header: RunHeader) -> Plan:
    """What a run set out to measure."""
    if header.plan is None:
        raise UsageError(
            "The run can't be continued: its file holds no plan",
            hint="Start a new run in another file.",
        )
    return header.plan


def _names_code(settings: SweepSettings, name: str) -> bool:
    """Whether a setting makes a sweep run code that is not dlprof's own."""
    if name == "target":
        name = settings.target.partition(":")[0]
        return name not in BUILTINS or name == "dlio"  # which may make files where it says
    if name == "arguments":
        return bool(settings.arguments) and _names_code(settings, "target")
    return settings.step_callable is not None
