"""The trials of a sweep or profile: what precedes them, how each is run, when all have ended."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import secrets
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Protocol, TypeVar

from dlprof.advise import thresholds as at
from dlprof.engine.preflight import Preflight
from dlprof.engine.workplace import work_directory
from dlprof.errors import NothingMeasuredError, TargetError, UsageError
from dlprof.machine.cgroups import read_cgroups, threads_left
from dlprof.machine.launchers import launch_words
from dlprof.model.calibrate import fit
from dlprof.records import (
    BY_COPY,
    COPIED_SIGN,
    PARTIAL_SIGN,
    SCHEMA_VERSION,
    SPREAD_SIGN,
    STORED_SIGN,
    Calibration,
    Config,
    Cost,
    DatasetWeight,
    Estimate,
    Explanation,
    Failure,
    LeftOut,
    Machine,
    Plan,
    Purpose,
    Run,
    RunEnd,
    RunHeader,
    SweepPrediction,
    Target,
    Timeline,
    Trial,
    TrialCost,
    Usage,
    checked,
    pins_for,
)
from dlprof.records.codec import MismatchError, fault_of, from_json
from dlprof.records.run import EndReason
from dlprof.records.trial import NumaMode
from dlprof.search.led import calibration_configs, final_trial_s, needed_s, wants_model
from dlprof.search.space import (
    DEFAULT_OVERHEAD_S,
    SHORTEST_TRIAL_S,
    Space,
    build_cells,
    build_space,
    plan_trials,
    refuse_budget,
    single_config,
)
from dlprof.settings import SweepSettings, settings_to_json
from dlprof.store import RunWriter
from dlprof.targets.builtin.options import DlioOptions, options_of, prepare
from dlprof.targets.grammar import TargetSpec, find_file, parse_target
from dlprof.trial.nodes import Ranks
from dlprof.trial.protocol import BuildRequest, Message, TrialRequest, record_of
from dlprof.trial.runner import TrialRunner
from dlprof.trial.state import TrialLimits
from dlprof.units import counted, duration_option, format_duration, parse_step, spread_of
from dlprof.version import __version__


class ProgressListener(Protocol):
    """Hears what is done, and that time goes on."""

    def preparing(self, what: str, done: int, total: int) -> None:
        """Data of a built-in workload is being made; ``total`` is 0 where it can't be counted."""

    def message(self, text: str) -> None:
        """Something that the user should know."""

    def pulse(self, usage: Usage | None) -> None:
        """What the machine did in the last half second of a trial; ``None`` before there is one."""


class SweepListener(ProgressListener, Protocol):
    """Hears what a sweep does, as it does it."""

    def planned(self, header: RunHeader, configs: Sequence[Config], repeats: int | None) -> None:
        """What will be measured is known."""

    def predicted(self, prediction: SweepPrediction, calibration: Calibration | None) -> None:
        """What a model says of all configurations is known, and which few will be measured."""

    def trial_started(
        self, config: Config, repetition: int, elapsed_s: float, expected_total_s: float
    ) -> None:
        """A trial begins."""

    def trial_ended(self, trial: Trial) -> None:
        """A trial is in the run file."""


def now() -> str:
    """The time as records have it: ISO 8601, UTC."""
    return datetime.now(UTC).isoformat(timespec="milliseconds")


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Outlook:
    """What is known before the first trial."""

    target: Target  # as it was built and probed
    accelerator: str | None  # torch's name of the device that batches go to; ``None`` for the CPU
    space: Space  # what could be measured
    faults: Mapping[Config, Failure]  # why some of that can't work here
    # What can work of all that a model would predict; empty where none is to.
    cells: tuple[Config, ...] = ()

    @property
    def workable(self) -> tuple[Config, ...]:
        """What may work, and so is measured."""
        return tuple(config for config in self.space.configs if config not in self.faults)


def look_at(
    runner: TrialRunner,
    settings: SweepSettings,
    machine: Machine,
    left_s: Callable[[], float],
    *,
    one: bool = False,
) -> Outlook:
    """Build the target, probe it, and see what can work.

    A target that hangs keeps to ``left_s``, too: what is left of the budget as it is called. It may
    refuse to go on.
    ``one`` says that the settings name a single configuration, which may be one that can't work.
    """
    target, accelerator, probe = _probed(runner, settings, machine, left_s, one=one)
    has = pins_for(accelerator)
    if one:
        named = single_config(settings, target, has_accelerator=has)
        space = Space(configs=(named,), left_out=())
        size, samples = named.batch_size or target.batch_size, target.length
        if target.kind != "iterable" and size and samples is not None and samples < size:
            batch = f"one batch of {counted(samples, 'sample')}, {PARTIAL_SIGN} of {size}"
            note = f"An epoch is {batch}: rates are of whole epochs, with the start of each."
            target = dataclasses.replace(target, notes=(*target.notes, note))
    else:
        space = build_space(settings, target, machine, has_accelerator=has)
    preflight = Preflight(settings, target, machine, probe, threads_left(read_cgroups()))
    # As workers start where nothing is set, or else as any that are to be measured do.
    method = None if preflight.start_method == "fork" else "fork"
    forked = method is None or any(each.start_method == method for each in space.configs)
    # Those show what workers share, and stay, so that it can be seen what they have moved.
    two = Config(num_workers=2, persistent_workers=True, start_method=method)
    two = target.attainable(two, has_accelerator=False)
    if probe.get("moved_files") and two.num_workers > 1 and forked:
        shared = runner.shared_files(two, left_s=left_s())
        target = dataclasses.replace(target, shared_files=shared)
        preflight = dataclasses.replace(preflight, target=target)
    copied = next(filter(preflight.starts_by_copy, space.configs), None)
    if copied is not None:  # a process tries once whether workers can be started again
        one_worker = dataclasses.replace(copied, num_workers=1)
        unstartable = runner.try_workers(one_worker, left_s=left_s())
        preflight = dataclasses.replace(preflight, unstartable=unstartable)
    found = ((config, preflight.fault(config)) for config in space.configs)
    faults = {config: fault for config, fault in found if fault is not None}
    outlook = Outlook(target=target, accelerator=accelerator, space=space, faults=faults)
    if one:
        return outlook
    if not outlook.workable:
        first = faults[space.configs[0]]
        raise NothingMeasuredError(
            f"None of the given configurations can work here: {first.message}",
            hint=first.hint,
            traceback=first.stderr_tail,
            failures=[(fault.kind, fault.message) for fault in faults.values()],
        )
    if not wants_model(settings, outlook.workable):
        return outlook
    net = build_cells(settings, target, machine, has_accelerator=has, most_workers=at.MOST_WORKERS)
    cells = tuple(config for config in net if preflight.fault(config) is None)
    return dataclasses.replace(outlook, cells=cells)


def _probed(
    runner: TrialRunner,
    settings: SweepSettings,
    machine: Machine,
    left_s: Callable[[], float],
    *,
    one: bool,
) -> tuple[Target, str | None, Message]:
    """The target as built and probed, torch's name of the device, and all that the probe found."""
    built = runner.build(limits_of(settings, machine), left_s=left_s())
    if not one:
        _refuse_small(built, settings)
    request = TrialRequest(
        config=Config(),
        step_callable=settings.step_callable,
        cold_cache=settings.cold_cache,
        # Only a step of the user's own has to find the batch where it will be.
        device="cpu" if settings.step_callable is None else settings.device,
    )
    probe = runner.probe(request, left_s=left_s())
    again = runner.kept(left_s=left_s()) if probe["kept"] else {}
    first_s, kept_s, kept_bytes = again.get("kept") or (None,) * 3
    # Of what came from storage the page cache has it, and how much of that is seen in each trial.
    fetched = probe["read_bytes"] is None or probe["read_bytes"] > 0
    stored = probe["kept"] if again and first_s is None and not fetched else None
    accelerator = _device(settings.device, probe["accelerator"])
    copy_settings(settings, accelerator)  # refuses what needs a device before anything is measured
    method, own = probe["start_method"], built.own_config
    copied = method in BY_COPY and (own is None or own.start_method is None)
    notes = [*built.notes, *runner.notes, *filter(None, [probe.get("counting")])]
    # Both drew the same batches.
    if stored and 2 * again["batch_s"] <= probe["batch_s"]:
        first_s, kept_s, _ = stored
        notes.append(
            f"A sample takes {format_duration(first_s)} the first time, and "
            f"{format_duration(kept_s)} once any process had it, {STORED_SIGN}. So trials are "
            "the faster the later they come, and their rates uncertain: run it again, and more is "
            "stored from the beginning."
        )
    if copied:
        start = f"Workers start by {method} here {COPIED_SIGN}"
        notes.append(f"{start}, so each of them gets the dataset pickled.")
    if probe["in_order"]:
        each_s = probe["batch_s"] / (probe["samples_per_batch"] or 1)
        if 24 * each_s < 2.0:  # fewer samples say nothing
            along = runner.along_epoch(left_s=left_s())
        else:
            unit = "sample" if probe["samples_per_batch"] else "batch"
            along = f"a {unit} takes {format_duration(each_s)}, too long to try some beforehand"
        notes += [] if along is None else [_along_text(along)]
    target = dataclasses.replace(
        built,
        fork_safe=runner.fork_safe,
        batch_bytes=probe["batch_bytes"],
        batch_tensors=probe["batch_tensors"],
        batch_s=probe["batch_s"],
        batch_cpu_s=probe["batch_cpu_s"],
        first_batch_s=probe["first_batch_s"],
        reads_files=probe["data_files"] > 0,
        sharing_strategy=probe["sharing_strategy"],
        main_failure=record_of(Failure, probe["main_failure"]),
        first_sample_s=first_s,
        kept_sample_s=kept_s,
        kept_sample_bytes=kept_bytes,
        notes=tuple(notes),
    )
    return target, accelerator, probe


def _along_text(along: tuple[float, float, str | None] | str) -> str:
    """That the samples of an epoch differ along it, or why that isn't known; a sentence."""
    if isinstance(along, str):
        return (
            f"Trials load the beginning of an epoch. Whether {SPREAD_SIGN} take as long isn't "
            f"known: {along}."
        )
    begin, all_over, why = format_duration(along[0]), format_duration(along[1]), along[2]
    how = f": trials took {SPREAD_SIGN}, not in its order"
    if why:
        how = f", but trials load its beginning, and not {SPREAD_SIGN}: {why}"
    return (
        f"A sample at the beginning of an epoch takes {begin}, and {all_over} on average over "
        f"all of it{how}."
    )


def _device(asked: str, found: str | None) -> str | None:
    """The accelerator that batches go to, by torch's name; ``None`` for the CPU."""
    if asked == "auto":
        return found
    kind = asked.partition(":")[0]
    if kind == "cpu":
        return None
    if kind != found:
        has = "no accelerator" if found is None else f"an accelerator of kind {found!r}"
        raise UsageError(
            f"--device {asked} is not there: torch finds {has}",
            hint="Leave --device out, or install a torch that supports the device.",
        )
    return found


def limits_of(settings: SweepSettings, machine: Machine) -> TrialLimits:
    """When a trial is ended: before the machine runs out of memory, for one."""
    memory = machine.memory_size_bytes or 0
    own, launched = settings.max_ram_bytes, settings.launched
    return TrialLimits(
        wall_s=settings.timeout_s,
        # Without a batch for this and twenty times what one takes alone, it counts as hanging. More
        # for whoever raises the limit: a first batch may fill a buffer or start a server.
        stall_s=max(min(20.0, settings.timeout_s), settings.timeout_s / 6),
        usable_cores=machine.usable_cores,
        memory_bytes=None if own is None else own * launched // settings.ranks,
        # Left to others: a twentieth of the machine's memory, at most 1 GiB.
        reserve_bytes=min(1 << 30, memory // 20),
    )


def _refuse_small(target: Target, settings: SweepSettings) -> None:
    """Refuse a dataset that doesn't fill one batch of any size that is asked for."""
    if target.kind == "iterable":
        return  # its length need not count samples
    sizes = settings.batch_size or ((target.batch_size,) if target.batch_size else ())
    if target.length is not None and sizes and target.length < min(sizes):
        smaller = " or less" if target.length > 1 else ""
        raise TargetError(
            f"The dataset has {counted(target.length, 'sample')}, too few for a full batch of "
            f"{min(sizes)}: what that size gives can't be measured.",
            hint=f"Give --batch-size {target.length}{smaller}, or more data.",
        )


def trial_cost(
    settings: SweepSettings, machine: Machine, target: Target, runner: TrialRunner
) -> TrialCost:
    """What trials of a target are expected to cost, as it was built and probed.

    Of ranks that load at once, the workers of each have its share of the cores. The probe's batch
    was of the target's own size; of several that are asked for, the largest counts. An iterable may
    fill a buffer before its first batch, in each trial.
    """
    own, begin_s = target.batch_size or 0, 0.0
    if target.kind == "iterable" and target.first_batch_s is not None:
        begin_s = max(0.0, target.first_batch_s - (target.batch_s or 0.0))
    build_s = 0.0 if runner.fork_safe else target.import_s or 0.0
    larger = max(settings.batch_size) / own if settings.batch_size and own else 1.0
    return TrialCost(
        overhead_s=DEFAULT_OVERHEAD_S + build_s + begin_s,
        batch_s=larger * (target.batch_s or 0.0),
        batch_cpu_s=larger * (target.batch_cpu_s or 0.0),
        usable_cores=machine.usable_cores / settings.launched,
    )


def plan_sweep(
    settings: SweepSettings,
    machine: Machine,
    outlook: Outlook,
    runner: TrialRunner,
    deadline: Deadline,
) -> tuple[Plan, tuple[LeftOut, ...]]:
    """Plan a sweep for what its deadline leaves; returns what there is no room for, too.

    By the deadline's budget, which is longer where nobody named one: who names one then has to
    name what came before the trials with it.
    """
    settings = dataclasses.replace(settings, budget_s=deadline.budget_s)
    spent_s = deadline.budget_s - deadline.left_s
    cost = trial_cost(settings, machine, outlook.target, runner)
    present = outlook.target.present_settings(
        has_accelerator=pins_for(outlook.accelerator),
        compares_starts=settings.start_method is not None,
    )
    plan, no_room = plan_trials(outlook.workable, settings, cost, spent_s=spent_s, present=present)
    if not outlook.cells:
        return plan, no_room
    # Where all are predicted and few measured, these are, for longer than all could be.
    left_s = settings.budget_s - spent_s
    looked_at = present if outlook.target.kind == "iterable" else None
    calibration = calibration_configs(outlook.cells, looked_at)
    led = dataclasses.replace(plan, search="model", cells=outlook.cells, calibration=calibration)
    # Where a window holds a batch or two, starting and handing over hardly count, and those of two
    # workers show what a batch costs.
    slow = cost.batch_s > SHORTEST_TRIAL_S
    for some in (calibration, calibration[-1:])[: 2 if slow else 1]:
        led = dataclasses.replace(led, calibration=some)
        led = dataclasses.replace(led, trial_s=settings.trial_s or final_trial_s(led, left_s))
        if needed_s(led, cost) <= left_s:
            return led, ()
    # Windows that verify are at most so long.
    longest = dataclasses.replace(led, trial_s=settings.trial_s or 1.0)
    enough = duration_option(1.5 * (spent_s + needed_s(longest, cost)))
    why = "the budget is too short for the model, so configurations are measured directly"
    return plan, (
        *no_room,
        LeftOut(setting="search=model", reason=f"{why}; --budget {enough} is enough"),
    )


def new_header(
    settings: SweepSettings,
    machine: Machine,
    outlook: Outlook,
    runner: TrialRunner,
    *,
    plan: Plan | None = None,
    left_out: tuple[LeftOut, ...] = (),
) -> RunHeader:
    """The header of a run that begins now; a profile has no plan."""
    return RunHeader(
        schema_version=SCHEMA_VERSION,
        run_id=secrets.token_hex(8),
        started_at=now(),
        dlprof_version=__version__,
        torch_version=runner.versions["torch"],
        python_version=runner.versions["python"],
        machine=machine,
        target=outlook.target,
        settings=settings_to_json(settings),
        accelerator=outlook.accelerator,
        left_out=left_out,
        plan=plan,
        launcher=launch_words(os.environ),
    )


_Sent = TypeVar("_Sent", DatasetWeight, Explanation, Timeline)


def sent(kind: type[_Sent], message: Mapping[str, object], name: str, **more: str) -> _Sent | None:
    """A record that a trial sent; ``None`` if it sent none, or none that makes sense."""
    data = message.get(name)
    if not isinstance(data, dict):
        return None
    try:
        return from_json(kind, {**data, **more})
    except MismatchError:  # by a clock that the dataset replaced, times aren't finite
        return None


def explanation_of(message: Mapping[str, object], trial: Trial) -> Explanation | None:
    """Where a trial's time went; ``None`` as in ``sent``."""
    found = sent(Explanation, message, "explanation", trial_id=trial.id)
    if found is None:
        return None
    used = trial.usage
    return found.with_waits(used.worker_waits if trial.config.num_workers else used.main_waits)


def calibrated(
    explanations: Sequence[Explanation], trials: Sequence[Trial], target: Target
) -> Calibration | None:
    """What traced trials show of batches; ``None`` for nothing, as by a clock without sense."""
    found = fit(explanations, trials, batch_tensors=target.batch_tensors)
    return found if found.is_usable and not fault_of(found) else None


def copy_settings(settings: SweepSettings, accelerator: str | None) -> dict[str, Any]:
    """Where batches go, for every trial of a run: fields of a ``TrialRequest``.

    ``accelerator`` is torch's name of the kind of accelerator that is used; ``None`` for the CPU.
    """
    for asked, option in (
        (settings.copy_ahead, "copy_ahead = on"),
        (settings.step_on == "device", "step_on = device"),
    ):
        if asked and accelerator is None:
            raise UsageError(
                f"{option} needs an accelerator, and batches stay on the CPU here",
                hint="Leave it out, or see with dlprof transfer which devices torch finds.",
            )
    device = settings.device
    if accelerator is None or device == "auto":
        device = accelerator or "cpu"
    return {"device": device, "copy_ahead": settings.copy_ahead, "step_on": settings.step_on}


@contextlib.contextmanager
def opened_runner(
    settings: SweepSettings,
    listener: ProgressListener,
    *,
    pickled: bytes | None = None,
    ranks: Ranks | None = None,
) -> Iterator[TrialRunner]:
    """A runner for the target that the settings name, closed at the end.

    ``pickled`` is a live object to load instead (Python API).
    """
    with work_directory() as directory:
        if pickled is None:
            spec = parse_target(settings.target)
            if spec.kind == "builtin":
                prepare(spec, listener.preparing, arguments=settings.arguments)
            elif spec.kind == "file":
                find_file(spec, Path.cwd())  # before torch is imported, which takes seconds
        else:
            path = directory / "target.pickle"
            path.write_bytes(pickled)
            spec = TargetSpec(text=settings.target, kind="object", source=str(path))
        request = BuildRequest(
            target=spec, arguments=settings.arguments, shuffle=settings.shuffle, seed=settings.seed
        )
        runner = TrialRunner(
            request, directory=directory, pulse=listener.pulse, say=listener.message, together=ranks
        )
        with contextlib.closing(runner):
            listener.message(f"building {settings.target}")
            yield runner


def beside_load(
    runner: TrialRunner, settings: SweepSettings, output: Path, listener: ProgressListener
) -> contextlib.AbstractContextManager[None]:
    """The load that the settings ask for, as long as the block lasts.

    It reads from the storage of the run file, which is to be begun only once there is a load.
    """
    return runner.load(
        settings.make_load,
        folder=Path(os.path.realpath(output)).parent,
        limit_s=settings.budget_s + settings.timeout_s,
        say=listener.message,
    )


def as_stated(settings: SweepSettings) -> SweepSettings:
    """The settings, with the step of the workload's own file where the user names none."""
    if settings.step_s is not None or settings.step_callable is not None:
        return settings
    if settings.target.partition(":")[0] != "dlio":
        return settings
    options = options_of(parse_target(settings.target), settings.arguments)
    step = options.workload().step if isinstance(options, DlioOptions) else ""
    return dataclasses.replace(settings, step_s=parse_step(step)) if step else settings


_PROMISED = 0.10
"""Share of the budget by which the whole may exceed it; the last trial may by half of that."""

_ENDING_S = 0.7
"""What follows the last trial where nobody else is on the machine: it is ended, at worst, what it
sent is worked out, all processes go, and the screen is drawn."""


def _either_way(trial: Trial, share: float) -> Trial:
    """A trial whose samples may be others than another's: of these, more or fewer came before.

    One that came before costs so large a ``share`` of another.
    """

    def wide(rate: Estimate | None) -> Estimate | None:
        if rate is None:
            return None
        low, high = rate.ends
        ends = min(low, share * rate.value), max(high, rate.value / share)
        return Estimate(value=rate.value, low=ends[0], high=ends[1])

    text = "samples that earlier trials had come faster: how many of its own, isn't known"
    return dataclasses.replace(
        trial,
        samples_per_s=wide(trial.samples_per_s),
        batches_per_s=wide(trial.batches_per_s),
        bytes_per_s=wide(trial.bytes_per_s),
        noisy=True,
        warnings=(*trial.warnings, text),
    )


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
        longer_s = 0.0 if self.named else max(0.0, self.elapsed_s - self.budget_s / 3)
        return dataclasses.replace(self, budget_s=self.budget_s + longer_s)

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
        """``cut_s``, of what comes before the first trial; longer if nobody named the budget."""
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
        """Go on from what an earlier session has measured, as its file has it."""
        run = Run(path=str(self.writer.path), header=self.header)
        if before is not None:
            run = dataclasses.replace(
                run,
                trials=before.trials,
                explanations=before.explanations,
                calibration=before.calibration,
                prediction=before.prediction,
            )
        self.raw, self.so_far = run, checked(run)
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
            "spread": self.header.target.is_spread,
            "keeps_freed": settings.max_ram_bytes is None,
            **copy_settings(settings, self.header.accelerator),
            **details,
        }
        return TrialRequest(config=config, trial_s=trial_s, **asked)

    def measure(
        self,
        request: TrialRequest,
        purpose: Purpose,
        *,
        repetition: int,
        wall_s: float,
        total_s: float,
        ranks: int | None = None,
        binding: NumaMode | None = None,
        timed: bool = False,
    ) -> bool:
        """Run one trial and keep it; false if the budget ended it, which says nothing of it.

        ``wall_s`` is when that is, ``total_s`` what the whole run is expected to take, and
        ``ranks`` how many load, all for ``None``; ``binding`` is what they are bound by, and
        ``timed`` whether the times of its batches are kept.
        """
        is_first = all(each.outcome == "skipped" for each in self.raw.trials)
        if wall_s <= 0 and not is_first:  # it would be ended as soon as it is begun
            return False
        self.listener.trial_started(request.config, repetition, self.deadline.elapsed_s, total_s)
        trial, message = self.runner.explain(
            request, trial_id=self._next_id, repetition=repetition, wall_s=wall_s, ranks=ranks
        )
        # The loader's own timeout, or a hang that was seen, ends it sooner and says why itself.
        cut = trial.outcome == "timed_out" and wall_s < self.settings.timeout_s
        if cut and trial.wall_s >= wall_s:
            if not is_first:  # which is kept however it ends
                return False
            trial = dataclasses.replace(trial, failure=self.cut_short(trial))
        trial = dataclasses.replace(trial, purpose=purpose, numa_binding=binding)
        if self.header.target.stores_samples and not trial.whole_epochs:
            trial = _either_way(trial, self.header.target.kept_cost)
        timeline = sent(Timeline, message, "timeline", trial_id=trial.id) if timed else None
        self.keep(trial, explanation_of(message, trial), timeline)
        self.listener.trial_ended(self.so_far.trials[-1])
        return True

    def cut_short(self, trial: Trial) -> Failure | None:
        """Why the budget ended the first trial."""
        return trial.failure

    def keep(
        self, trial: Trial, explanation: Explanation | None = None, timeline: Timeline | None = None
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
