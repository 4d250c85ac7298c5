"""A whole sweep: prepare, build, probe, plan, measure trial after trial, recommend, keep it."""

from __future__ import annotations

import contextlib
import dataclasses
import secrets
import shutil
import tempfile
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Literal, Protocol

from dlprof.advise.recommend import recommend
from dlprof.errors import NothingMeasuredError, TargetError, UsageError
from dlprof.machine import inspect_machine
from dlprof.records import (
    SCHEMA_VERSION,
    Config,
    Constraints,
    Cost,
    Machine,
    Plan,
    Recommendation,
    Run,
    RunEnd,
    RunHeader,
    Target,
    Trial,
    TrialCost,
    Usage,
)
from dlprof.search.grid import GridSearch, Proposal
from dlprof.search.plan import DEFAULT_OVERHEAD_S, plan_trials
from dlprof.search.space import build_space
from dlprof.settings import SweepSettings, settings_from_json, settings_to_json
from dlprof.store import RunWriter, check_output, read_run
from dlprof.targets.builtin import prepare
from dlprof.targets.grammar import parse_target
from dlprof.trial.bench import Bench
from dlprof.trial.protocol import BuildRequest, TrialRequest
from dlprof.version import __version__

EndReason = Literal["decided", "budget", "complete", "interrupted", "failed"]

RESUMABLE = frozenset({"budget_s", "repeats", "timeout_s"})
"""Settings that may be changed when a run is continued: they decide how much is measured."""


class SweepListener(Protocol):
    """Told what a sweep does, as it does it."""

    def preparing(self, what: str, done: int, total: int) -> None:
        """Data of a built-in workload is being made; ``total`` is 0 where it can't be counted."""

    def planned(self, header: RunHeader, configs: Sequence[Config], repeats: int | None) -> None:
        """What will be measured is known."""

    def trial_started(
        self, config: Config, repetition: int, elapsed_s: float, expected_total_s: float
    ) -> None:
        """A trial begins."""

    def trial_ended(self, trial: Trial) -> None:
        """A trial is in the run file."""

    def pulse(self, usage: Usage) -> None:
        """What the machine did in the last half second."""

    def message(self, text: str) -> None:
        """Something that the user should know."""

    def ended(self, run: Run) -> None:
        """The sweep is over."""


def run_sweep(
    settings: SweepSettings,
    *,
    output: Path,
    listener: SweepListener,
    resume: bool = False,
    force: bool = False,
    given: Collection[str] = (),
    pickled: bytes | None = None,
    clock: Callable[[], float] = time.monotonic,
) -> Run:
    """Measure what the settings ask for and recommend from it.

    Args:
        settings: What to measure.
        output: The run file.
        listener: Told of the progress.
        resume: Continue the run in ``output`` under the settings that it was begun with.
        force: Replace ``output`` if it exists.
        given: Fields of ``settings`` that the user named; matters for ``resume`` only.
        pickled: A live object to load instead of ``settings.target`` (Python API).
        clock: Monotonic seconds.

    Returns:
        The run as it stands in the file. ``end.reason`` is ``interrupted`` after Ctrl-C.

    Raises:
        DlprofError: Nothing could be measured, or an input can't be used.
    """
    began_s = clock()
    before: Run | None = None
    if resume:
        before = read_run(output)
        settings = resumed_settings(settings_from_json(before.header.settings), settings, given)
    else:
        check_output(output, force=force)
    if pickled is None:
        spec = parse_target(settings.target)
        prepare(spec, listener.preparing, arguments=settings.arguments)
    with _work_directory() as directory:
        request = _build_request(settings, pickled, directory)
        bench = Bench(request, directory=directory, pulse=listener.pulse)
        with contextlib.closing(bench):
            machine = inspect_machine()
            listener.message(f"building {settings.target}")
            target, accelerator = _look_at(bench, settings, machine)
            if before is None:
                spent_s = clock() - began_s
                header = _header(settings, machine, target, accelerator, bench, spent_s)
                writer = RunWriter.create(output, header, force=force)
            else:
                header = _same_run(before.header, settings, machine, target, bench.versions)
                writer = RunWriter.resume(output)
            with writer:
                plan = _plan_of(header)
                listener.planned(header, plan.configs, settings.repeats)
                sweep = _Sweep(
                    header=header,
                    settings=settings,
                    plan=plan,
                    bench=bench,
                    writer=writer,
                    listener=listener,
                    clock=clock,
                    began_s=began_s,
                    trials=list(before.trials) if before is not None else [],
                )
                run = sweep.run()
    listener.ended(run)
    return run


@contextlib.contextmanager
def _work_directory() -> Iterator[Path]:
    directory = Path(tempfile.mkdtemp(prefix="dlprof-"))
    try:
        yield directory
    finally:
        shutil.rmtree(directory, ignore_errors=True)


def _build_request(settings: SweepSettings, pickled: bytes | None, directory: Path) -> BuildRequest:
    path = None
    if pickled is not None:
        path = directory / "target.pickle"
        path.write_bytes(pickled)
    return BuildRequest(
        target=settings.target,
        arguments=dict(settings.arguments),
        shuffle=settings.shuffle,
        seed=settings.seed,
        pickled=None if path is None else str(path),
    )


def resumed_settings(
    stored: SweepSettings, settings: SweepSettings, given: Collection[str]
) -> SweepSettings:
    """The settings to continue a run with.

    Args:
        stored: What it was begun with.
        settings: What the user asks for now.
        given: Fields of ``settings`` that the user named.

    Raises:
        UsageError: The user named another value for a field that a run can't change.
    """
    for name in sorted(set(given) - RESUMABLE):
        asked, had = getattr(settings, name), getattr(stored, name)
        if asked != had:
            raise UsageError(
                f"The run was begun with {name}={had!r} and can't go on with {asked!r}",
                hint="Leave the option out, or begin a new run in another file.",
            )
    changes = {name: getattr(settings, name) for name in RESUMABLE & set(given)}
    return dataclasses.replace(stored, **changes)


def _same_run(
    stored: RunHeader,
    settings: SweepSettings,
    machine: Machine,
    target: Target,
    versions: Mapping[str, str],
) -> RunHeader:
    """The header of the run that is continued, if what is here now is what it was begun on."""
    for what, had, has in (
        ("machine", stored.machine.fingerprint, machine.fingerprint),
        ("torch version", stored.torch_version, versions["torch"]),
        ("data set", stored.target.dataset, target.dataset),
        ("data set's length", stored.target.length, target.length),
    ):
        if had != has:
            raise UsageError(
                f"The run can't be continued: its {what} was {had}, and is now {has}",
                hint="Begin a new run in another file.",
            )
    if settings.repeats is None:
        return stored
    plan = dataclasses.replace(
        _plan_of(stored),
        min_repeats=settings.repeats,
        max_repeats=settings.repeats,
        planned_repeats=settings.repeats,
        take_turns=False,
    )
    return dataclasses.replace(stored, plan=plan)


def _plan_of(header: RunHeader) -> Plan:
    if header.plan is None:
        raise UsageError(
            "The run can't be continued: its file holds no plan",
            hint="Begin a new run in another file.",
        )
    return header.plan


def _look_at(bench: Bench, settings: SweepSettings, machine: Machine) -> tuple[Target, str | None]:
    """Build the target and probe it; returns what it is, and torch's name of the accelerator."""
    built = bench.build(timeout_s=settings.timeout_s, usable_cores=machine.usable_cores)
    _refuse_small(built, settings)
    probe = bench.probe(
        TrialRequest(
            config=Config(), step_callable=settings.step_callable, cold_cache=settings.cold_cache
        )
    )
    target = dataclasses.replace(
        built,
        fork_safe=bench.fork_safe,
        batch_bytes=probe["batch_bytes"],
        batch_tensors=probe["batch_tensors"],
        batch_s=probe["batch_s"],
        batch_cpu_s=probe["batch_cpu_s"],
        notes=(*built.notes, *bench.notes),
    )
    return target, probe["accelerator"]


def _refuse_small(target: Target, settings: SweepSettings) -> None:
    """Refuse a data set that doesn't fill one batch of any size that is asked for."""
    sizes = settings.batch_size or ((target.batch_size,) if target.batch_size else ())
    if target.length is not None and sizes and target.length < min(sizes):
        raise TargetError(
            f"The data set has {target.length} samples, fewer than one batch of {min(sizes)}.",
            hint=f"Give --batch-size {max(1, target.length // 2)} or less, or more data.",
        )


def _header(
    settings: SweepSettings,
    machine: Machine,
    target: Target,
    accelerator: str | None,
    bench: Bench,
    spent_s: float,
) -> RunHeader:
    """Plan a new run; ``spent_s`` of its budget are gone."""
    space = build_space(settings, target, machine, has_accelerator=accelerator is not None)
    cost = TrialCost(
        overhead_s=DEFAULT_OVERHEAD_S + (0.0 if bench.fork_safe else target.import_s or 0.0),
        batch_s=target.batch_s or 0.0,
        batch_cpu_s=target.batch_cpu_s or 0.0,
        usable_cores=machine.usable_cores,
    )
    plan, no_room = plan_trials(space.configs, settings, cost, spent_s=spent_s)
    return RunHeader(
        schema_version=SCHEMA_VERSION,
        run_id=secrets.token_hex(8),
        started_at=_now(),
        dlprof_version=__version__,
        torch_version=bench.versions["torch"],
        python_version=bench.versions["python"],
        machine=machine,
        target=target,
        settings=settings_to_json(settings),
        accelerator=accelerator,
        left_out=(*space.left_out, *no_room),
        plan=plan,
    )


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="milliseconds")


@dataclasses.dataclass(slots=True, kw_only=True)
class _Sweep:
    """The measuring part of a sweep."""

    header: RunHeader
    settings: SweepSettings
    plan: Plan
    bench: Bench
    writer: RunWriter
    listener: SweepListener
    clock: Callable[[], float]
    began_s: float
    trials: list[Trial]

    def run(self) -> Run:
        earlier_s = sum(trial.wall_s for trial in self.trials)
        try:
            reason: EndReason = self._measure()
        except KeyboardInterrupt:
            reason = "interrupted"
        total = earlier_s + self.clock() - self.began_s
        measured = sum(trial.measured_s for trial in self.trials)
        cost = Cost(measured=measured, overhead=max(0.0, total - measured), total=total)
        end = RunEnd(ended_at=_now(), reason=reason, cost_s=cost)
        run = Run(
            path=str(self.writer.path),
            header=self.header,
            trials=tuple(self.trials),
            end=end,
        )
        try:
            return dataclasses.replace(run, recommendation=self._recommend(run, reason))
        finally:  # what was measured is kept, whether or not there is something to recommend
            self.writer.append(end)

    def _measure(self) -> EndReason:
        search = GridSearch(plan=self.plan, seed=self.settings.seed)
        while True:
            remaining_s = self.settings.budget_s - (self.clock() - self.began_s)
            proposal = search.propose(self.trials, remaining_s=remaining_s)
            if not isinstance(proposal, Proposal):
                return proposal.reason
            self._try(proposal)

    def _try(self, proposal: Proposal) -> None:
        elapsed_s = self.clock() - self.began_s
        self.listener.trial_started(
            proposal.config, proposal.repetition, elapsed_s, elapsed_s + proposal.expected_rest_s
        )
        trial = self.bench.run(
            TrialRequest(
                config=proposal.config,
                trial_s=proposal.trial_s,
                step_s=self.settings.step_s or 0.0,
                step_callable=self.settings.step_callable,
                cold_cache=self.settings.cold_cache,
            ),
            trial_id=f"t{len(self.trials) + 1:04d}",
            repetition=proposal.repetition,
        )
        self.writer.append(trial)
        self.trials.append(trial)
        self.listener.trial_ended(trial)

    def _recommend(self, run: Run, reason: EndReason) -> Recommendation | None:
        """What the trials so far recommend; an interrupted sweep may have too few of them."""
        try:
            recommendation = recommend(run, constraints_of(self.settings))
        except NothingMeasuredError:
            if reason == "interrupted":
                return None
            raise
        self.writer.append(recommendation)
        return recommendation


def constraints_of(settings: SweepSettings) -> Constraints:
    """The limits that a sweep's own settings put on its recommendation."""
    return Constraints(
        max_workers=settings.max_workers,
        max_ram_bytes=settings.max_ram_bytes,
        max_shm_bytes=settings.max_shm_bytes,
        ranks=settings.ranks,
        step_s=settings.step_s,
    )
