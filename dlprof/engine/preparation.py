"""What happens before the first trial: the target is built, probed and planned for."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import os
import secrets
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, NamedTuple, Protocol, TypeVar

from dlprof.advise import thresholds as at
from dlprof.engine.workplace import work_directory
from dlprof.errors import NothingMeasuredError, TargetError, UsageError
from dlprof.machine.cgroups import read_cgroups, threads_left
from dlprof.machine.launchers import launch_words
from dlprof.records import (
    BY_COPY,
    COPIED_SIGN,
    PARTIAL_SIGN,
    SCHEMA_VERSION,
    Calibration,
    Config,
    DatasetWeight,
    Explanation,
    Failure,
    LeftOut,
    Machine,
    Plan,
    RunHeader,
    SweepPrediction,
    Target,
    Timeline,
    Trial,
    TrialCost,
    Usage,
    shared_position,
)
from dlprof.records.codec import MismatchError, fault_of, from_json
from dlprof.search.led import calibration_configs, final_trial_s, has_room, wants_model
from dlprof.search.space import (
    DEFAULT_OVERHEAD_S,
    SHORTEST_TRIAL_S,
    Space,
    build_cells,
    build_space,
    plan_trials,
    single_config,
)
from dlprof.settings import SweepSettings, settings_to_json
from dlprof.targets.builtin.options import DlioOptions, options_of, prepare
from dlprof.targets.grammar import TargetSpec, parse_target
from dlprof.trial import failures
from dlprof.trial.nodes import Ranks
from dlprof.trial.protocol import BuildRequest, Message, TrialRequest, record_of
from dlprof.trial.runner import TrialRunner
from dlprof.trial.state import TrialLimits
from dlprof.units import counted, format_bytes, parse_step
from dlprof.version import __version__


class ProgressListener(Protocol):
    """Hears what is done."""

    def preparing(self, what: str, done: int, total: int) -> None:
        """Data of a built-in workload is being made; ``total`` is 0 where it can't be counted."""

    def message(self, text: str) -> None:
        """Something that the user should know."""


class RunnerListener(ProgressListener, Protocol):
    """Hears also what the machine does in trials."""

    def pulse(self, usage: Usage) -> None:
        """What the machine did in the last half second."""


class SweepListener(RunnerListener, Protocol):
    """Hears what a sweep does, as it does it."""

    def planned(self, header: RunHeader, configs: Sequence[Config], repeats: int | None) -> None:
        """What will be measured is known."""

    def predicted(self, prediction: SweepPrediction) -> None:
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
    has = accelerator is not None
    if one:
        named = single_config(settings, target, has_accelerator=has)
        space = Space(configs=(named,), left_out=())
        target = dataclasses.replace(target, notes=(*target.notes, *_partial(target, named)))
    else:
        asked, settings = settings, _within_shards(settings, target, probe.get("shards"))
        space = build_space(settings, target, machine, has_accelerator=has)
        if settings.max_workers != asked.max_workers:
            space = _named_shards(space, probe["shards"])
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


def _within_shards(settings: SweepSettings, target: Target, shards: object) -> SweepSettings:
    """The same with no more workers than shards, which would get none; but for named ones.

    As many as the target's own loader has are measured all the same.
    """
    if type(shards) is not int or settings.num_workers is not None:
        return settings
    own = 0 if target.own_config is None else target.own_config.num_workers
    most = max(1, shards, own)
    given = settings.max_workers
    return dataclasses.replace(settings, max_workers=most if given is None else min(most, given))


def _named_shards(space: Space, shards: int) -> Space:
    """The same, saying that it is shards which allow no more workers."""
    reason = f"more workers than the dataset's {counted(shards, 'shard')} get no data"
    left_out = (
        dataclasses.replace(each, reason=reason) if each.reason.startswith("max_workers") else each
        for each in space.left_out
    )
    return dataclasses.replace(space, left_out=tuple(left_out))


def _probed(
    runner: TrialRunner,
    settings: SweepSettings,
    machine: Machine,
    left_s: Callable[[], float],
    *,
    one: bool,
) -> tuple[Target, str | None, Message]:
    """The target as built and probed, torch's name of the device, and all that the probe found."""
    built = runner.build(limits_of(settings, machine))
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
    first_s, kept_s, kept_bytes = (probe["kept"] and runner.kept(left_s=left_s())) or (None,) * 3
    accelerator = _device(settings.device, probe["accelerator"])
    copy_settings(settings, accelerator)  # refuses what needs a device before anything is measured
    method, own = probe["start_method"], built.own_config
    copied = method != "fork" and (own is None or own.start_method is None)
    notes = [*built.notes, *runner.notes, *filter(None, [probe.get("counting")])]
    if copied:
        start = f"Workers start by {method} here {COPIED_SIGN}"
        notes.append(f"{start}, so each of them gets the dataset pickled.")
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
    own, launched = settings.max_ram_bytes, max(settings.launch_ranks or (1,))
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


def _partial(target: Target, config: Config) -> Iterator[str]:
    """That an epoch is a batch which is not full, of which there is a rate of whole epochs."""
    size, samples = config.batch_size or target.batch_size, target.length
    if target.kind != "iterable" and size and samples is not None and samples < size:
        one = f"one batch of {counted(samples, 'sample')}, {PARTIAL_SIGN} of {size}"
        yield f"An epoch is {one}: rates are of whole epochs, with the start of each."


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
        usable_cores=machine.usable_cores / max(settings.launch_ranks or (1,)),
    )


def plan_sweep(
    settings: SweepSettings, machine: Machine, outlook: Outlook, runner: TrialRunner, spent_s: float
) -> tuple[Plan, tuple[LeftOut, ...]]:
    """Plan a sweep of which ``spent_s`` are gone; returns what there is no room for, too."""
    cost = trial_cost(settings, machine, outlook.target, runner)
    present = outlook.target.present_settings(
        has_accelerator=outlook.accelerator is not None,
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
        if has_room(led, cost, left_s):
            return led, ()
    return plan, no_room


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
    return found.with_gil(used.worker_waits if trial.config.num_workers else used.main_waits)


def sensible(found: Calibration) -> Calibration | None:
    """A calibration that can be read again; ``None`` for one by a clock that makes no sense."""
    return None if fault_of(found) else found


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
    listener: RunnerListener,
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
            prepare(spec, listener.preparing, arguments=settings.arguments)
        else:
            path = directory / "target.pickle"
            path.write_bytes(pickled)
            spec = TargetSpec(text=settings.target, kind="object", source=str(path))
        request = BuildRequest(
            target=spec,
            arguments=dict(settings.arguments),
            shuffle=settings.shuffle,
            seed=settings.seed,
        )
        runner = TrialRunner(
            request,
            directory=directory,
            pulse=listener.pulse,
            say=listener.message,
            together=ranks,
        )
        with contextlib.closing(runner):
            listener.message(f"building {settings.target}")
            yield runner


def as_stated(settings: SweepSettings) -> SweepSettings:
    """The settings, with the step of the workload's own file where the user names none."""
    if settings.step_s is not None or settings.step_callable is not None:
        return settings
    if settings.target.partition(":")[0] != "dlio":
        return settings
    options = options_of(parse_target(settings.target), settings.arguments)
    step = options.workload().step if isinstance(options, DlioOptions) else ""
    return dataclasses.replace(settings, step_s=parse_step(step)) if step else settings


class ResourceLimit(NamedTuple):
    """How much a trial may take of something, in bytes, and in words: ``64 MiB is free``."""

    size: float
    text: str


@dataclasses.dataclass(frozen=True)
class Preflight:
    """What the probe and the machine say of what can work: the rest is skipped, with the reason.

    A skipped configuration is never a guess: each sum leaves out whatever may not be needed, so
    that what is skipped would have failed, if not in its short trial then in a training that lets
    the queues fill. All others are tried, and ended when they exceed a limit.
    """

    settings: SweepSettings  # with the limits that all ranks share
    target: Target  # as it was probed
    machine: Machine
    probe: Mapping[str, Any]  # what ``probing.probe`` saw; ``None`` for what isn't known
    threads: int | None = None  # that cgroups let all ranks start
    unstartable: Failure | None = None  # why no worker can be started by spawn or forkserver

    def starts_by_copy(self, config: Config) -> bool:
        """Whether its workers get the dataset pickled."""
        return config.num_workers > 0 and self._method(config) in BY_COPY

    def _method(self, config: Config) -> str:
        """What the workers of a configuration are started by."""
        return config.start_method or self.start_method

    @property
    def start_method(self) -> str:
        """What workers are started by where a configuration doesn't say."""
        own = self.target.own_config or Config()
        found: str = own.start_method or self.probe["start_method"]
        return found

    @functools.cached_property
    def _room(self) -> tuple[ResourceLimit | None, ResourceLimit | None]:
        return resource_limits(self.settings, self.machine)

    def fault(self, config: Config) -> Failure | None:
        """Why a configuration can't work; ``None`` to try it."""
        if config.num_workers == 0:
            return self.target.main_failure
        if self.starts_by_copy(config) and self.unstartable is not None:
            return self.unstartable
        shared = shared_position(self.target.shared_files)
        if shared is not None and config.num_workers > 1 and self._method(config) == "fork":
            return shared
        return (
            record_of(Failure, self.probe["batch_failure"])
            or self._without_shared_memory(config)
            or self._without_memory(config)
            or self._without_descriptors(config)
            or self._without_threads(config)
        )

    def _without_shared_memory(self, config: Config) -> Failure | None:
        """Full queues hold ``num_workers * prefetch_factor + 1`` batches in /dev/shm."""
        batch, limit = self._at_batch_size("shared_bytes", config), self._room[1]
        if batch is None or limit is None or (need := config.queued_batches * batch) <= limit.size:
            return None
        return Failure(
            kind="shared_memory",
            message=f"{_batches(config, batch)} need {format_bytes(need)} of shared memory, and "
            f"{limit.text}.",
            hint=failures.MORE_SHM,
        )

    def _without_memory(self, config: Config) -> Failure | None:
        """The least that workers need, and full queues; the main process counts for nothing."""
        # 11 to 45 MB of a forked worker's own were measured with torch 2.13, and 155 MB where each
        # imports torch again; smaller builds of torch are about.
        each = 11_000_000 if self._method(config) == "fork" else 100_000_000
        batch, limit = self._at_batch_size("least_bytes", config) or 0.0, self._room[0]
        need = config.num_workers * each + config.queued_batches * batch
        if limit is None or need <= limit.size:
            return None
        return Failure(
            kind="out_of_memory",
            message=f"{config.num_workers} workers of at least {format_bytes(each)} and "
            f"{_batches(config, batch)} need {format_bytes(need)} of memory, and {limit.text}.",
            hint=failures.LESS_MEMORY,
        )

    def _without_descriptors(self, config: Config) -> Failure | None:
        """By ``file_descriptor``, main has two of each tensor open while it takes a batch.

        One belongs to the batch that it still holds, one to the next, which it receives then; a
        worker needs as many to send one. Where the target's own code may change how workers share,
        the probe doesn't know that.
        """
        usual, tensors = self.probe["sharing_strategy"], self.probe["descriptors"]
        other_size = config.batch_size not in (None, self.target.batch_size)
        certain = usual is not None and (config.sharing_strategy or usual) == "file_descriptor"
        limit = self.machine.open_files_limit
        if not certain or other_size or tensors is None or limit is None:
            return None
        need = config.open_files(tensors, batches=2)
        if need <= limit:
            return None
        return Failure(
            kind="file_descriptors",
            message=f"2 batches of {tensors:,} tensors and the queues of "
            f"{counted(config.num_workers, 'worker')} need {need:,} file descriptors, and a "
            f"process may have {limit:,}.",
            hint=failures.MORE_FILES,
        )

    def _without_threads(self, config: Config) -> Failure | None:
        """A worker has two at least: its own, and the one that puts batches into the queue."""
        if self.threads is None:
            return None
        need = 2 * config.num_workers
        most = self.threads // max(self.settings.launch_ranks or (1,))
        if need <= most:
            return None
        return Failure(
            kind="start_failed",
            message=f"{counted(config.num_workers, 'worker')} need {need:,} processes and threads, "
            f"and a cgroup lets {most:,} be started.",
            hint=failures.MORE_PROCESSES,
        )

    def _at_batch_size(self, name: str, config: Config) -> float | None:
        """Bytes of a batch at the configuration's batch size, from what the probe has of one."""
        size, probed = self.probe[name], self.target.batch_size
        if size is None or config.batch_size is None:
            return None if size is None else float(size)
        return size * config.batch_size / probed if probed else None


def _batches(config: Config, batch: float) -> str:
    return f"{config.num_workers} x {config.prefetch_factor} + 1 batches of {format_bytes(batch)}"


def resource_limits(
    settings: SweepSettings, machine: Machine
) -> tuple[ResourceLimit | None, ResourceLimit | None]:
    """Of memory and of shared memory, one rank's share: of what is free, or is allowed to all."""
    launched, ranks = max(settings.launch_ranks or (1,)), settings.ranks

    def least(available: int | None, option: str, allowed: int | None) -> ResourceLimit | None:
        found = []
        if available is not None:
            share = "" if launched == 1 else f" for each of {launched} ranks"
            size = available / launched
            found.append(ResourceLimit(size, f"{format_bytes(size)} is free{share}"))
        if allowed is not None:
            share = "" if ranks == 1 else f" to each of {ranks} ranks"
            size = allowed / ranks
            found.append(ResourceLimit(size, f"{option} leaves {format_bytes(size)}{share}"))
        return min(found, key=lambda limit: limit.size, default=None)

    return (
        least(machine.memory_available_bytes, "--max-ram", settings.max_ram_bytes),
        least(machine.shm_available_bytes, "--max-shm", settings.max_shm_bytes),
    )
