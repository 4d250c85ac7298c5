"""Where trials are run: the target's process, the observer and the supervisor, set up together."""

from __future__ import annotations

import contextlib
import dataclasses
import math
import time
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import TypeVar

from dlprof.errors import DlprofError, NothingMeasuredError
from dlprof.records import Config, Failure, Target, Trial, Usage
from dlprof.trial.launch import BuilderDiedError, ForkLauncher, Launcher, make_launcher
from dlprof.trial.protocol import BuildRequest, Message, TrialRequest, record_of
from dlprof.trial.runtime import Inbox
from dlprof.trial.state import TrialLimits, failed
from dlprof.trial.supervisor import (
    LauncherDiedError,
    ObserverProcess,
    ProbeTimeoutError,
    Supervisor,
)

_REBUILT = "each trial builds the target for itself, because {reason}"
_SLOWEST_BATCH = 20.0  # batches may take so many times as long as the probe's
_SPAWN_S = 4.0  # one interpreter that imports torch, on a busy core
_LEAST_PROBE_S = 3.0  # for two batches, however little is left of a budget
_JUDGING_S = 1.0
_HANGS = "a process forked after building it hangs, or takes very long to load two batches"

_Outcome = TypeVar("_Outcome")


class TrialRunner:
    """Runs trials of one target.

    Starts importing torch at once, in the background. ``build`` comes first.

    Args:
        request: How to build the target.
        directory: For logs and temporary files; the caller removes it after ``close``.
        pulse: Called with what the machine is doing, a few times a second.
        first_probe_s: How long the first probe may take before a fork is taken for broken.
        clock: Monotonic seconds.

    Attributes:
        fork_safe: Whether trials are forked from the process that built the target.
        notes: What people should know of the way trials are started.
        versions: ``torch`` and ``python``, once built.
    """

    def __init__(
        self,
        request: BuildRequest,
        *,
        directory: Path,
        pulse: Callable[[Usage], object] = lambda _usage: None,
        first_probe_s: float = 15.0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.fork_safe = True
        self.notes: tuple[str, ...] = ()
        self.versions: dict[str, str] = {}
        self._request = request
        self._directory = directory
        self._pulse = pulse
        self._first_probe_s = first_probe_s
        self._clock = clock
        self._fallen = False  # whether the process that starts the trials has died
        self._inbox = Inbox()
        self._launcher: Launcher = make_launcher(self._inbox, directory)
        self._watcher = ObserverProcess(self._inbox)
        self._limits = TrialLimits(wall_s=math.inf, stall_s=math.inf, usable_cores=1.0)
        self._build_s = 0.0
        self._batch_s = 0.0
        self._start_method: str | None = None  # where a configuration names none

    def build(self, limits: TrialLimits) -> Target:
        """Build the target; once more, from a new process, if the first one dies of it.

        Args:
            limits: Of all trials. ``stall_s`` is for trivial batches; slow ones get longer.

        Raises:
            DlprofError: It can't be built; says which part is wrong.
        """
        self._limits = limits
        began_s = self._clock()
        try:
            built = self._launcher.build(self._request, limits.wall_s)
        except BuilderDiedError:
            self._launcher = self._new_launcher()
            left_s = limits.wall_s - (self._clock() - began_s)
            built = self._launcher.build(self._request, left_s)
        self.versions = built.versions
        self._build_s = built.target.import_s or 0.0
        own = built.target.own_config
        self._start_method = None if own is None else own.start_method
        if not isinstance(self._launcher, ForkLauncher):
            self.fork_safe = False
        elif built.fork_hazard:
            self._build_in_each_trial(built.fork_hazard)
        return built.target

    def probe(self, request: TrialRequest, *, left_s: float = math.inf) -> Message:
        """Load two batches in a disposable process; see ``probing.probe``.

        A target whose constructor ran torch operations leaves thread pools that a fork breaks;
        the probe then hangs, and from then on each trial builds the target for itself.

        Args:
            request: How to load them.
            left_s: What is left of the budget, for both probes where the first one hangs.
        """
        until_s = self._clock() + left_s
        probe = self._persist(lambda _left_s: self._probe(request, until_s), self._limits.wall_s)
        self._batch_s = probe["batch_s"]
        self._start_method = self._start_method or probe["start_method"]
        return probe

    def _probe(self, request: TrialRequest, until_s: float) -> Message:
        limits = self._limits
        if self.fork_safe:
            half_s = max(_LEAST_PROBE_S, (until_s - self._clock()) / 2)
            wall_s = min(self._first_probe_s, half_s, limits.wall_s)
            with contextlib.suppress(ProbeTimeoutError):
                return self._supervisor(dataclasses.replace(limits, wall_s=wall_s)).probe(request)
            self._build_in_each_trial(_HANGS)
        # A hang is judged by where it stands, for which its end leaves a moment.
        stall_s = max(_LEAST_PROBE_S, until_s - self._clock() - _JUDGING_S)
        limits = dataclasses.replace(limits, stall_s=min(limits.stall_s, stall_s))
        return self._supervisor(limits).probe(request)

    def try_workers(self, config: Config) -> Failure | None:
        """Try in a disposable process whether workers of a configuration can be started.

        Returns:
            Why they can't; ``None`` if they can, and also where that could not be told.
        """
        limits = dataclasses.replace(self._limits, stall_s=self._stall_s(config))
        request = TrialRequest(config=config)
        try:
            answer = self._persist(
                lambda left_s: self._supervisor(limits, left_s).probe(request), limits.wall_s
            )
        except DlprofError:
            return None
        return record_of(Failure, answer["failure"])

    def weigh(
        self, config: Config, *, limit_s: float, left_s: float, starts: tuple[str, ...] = ()
    ) -> Message:
        """Weigh the dataset in a disposable process; see ``weighing.weigh_dataset``.

        Args:
            config: Of the loader.
            limit_s: For weighing, without starting workers.
            left_s: For all of it; the process is then ended.
            starts: Start methods by which one worker is started.

        Raises:
            DlprofError: It didn't come to an end in time, or the process died.
        """
        one = dataclasses.replace(config, num_workers=1).canonical()
        limits = dataclasses.replace(self._limits, wall_s=left_s, stall_s=left_s)
        request = TrialRequest(config=one, trial_s=limit_s, probe=True, weigh=True, starts=starts)
        return self._persist(
            lambda left: self._supervisor(limits, min(left, left_s)).probe(request), left_s
        )

    def run(
        self,
        request: TrialRequest,
        *,
        trial_id: str,
        repetition: int,
        wall_s: float | None = None,
    ) -> Trial:
        """Measure one configuration once; ``explain`` says what the arguments are."""
        return self.explain(request, trial_id=trial_id, repetition=repetition, wall_s=wall_s)[0]

    def explain(
        self,
        request: TrialRequest,
        *,
        trial_id: str,
        repetition: int,
        wall_s: float | None = None,
    ) -> tuple[Trial, Message]:
        """Measure one configuration once, and hear what it tells beside; see ``Supervisor.run``.

        A trial during which the process that starts the trials dies is tried once more, in what is
        left of its time.

        Args:
            request: What to measure.
            trial_id: Of the record.
            repetition: Of the record.
            wall_s: A tighter wall limit for this trial.
        """
        limits = dataclasses.replace(self._limits, stall_s=self._stall_s(request.config))
        if wall_s is not None:
            limits = dataclasses.replace(limits, wall_s=min(wall_s, limits.wall_s))
        started_at = datetime.now(UTC).isoformat(timespec="milliseconds")
        began_s = self._clock()
        told: Message = {}
        try:
            trial, told = self._persist(
                lambda left_s: self._supervisor(limits, left_s).run(
                    request, trial_id=trial_id, repetition=repetition
                ),
                limits.wall_s,
            )
        except DlprofError as error:
            trial = failed(
                Trial(id=trial_id, config=request.config, repetition=repetition, outcome="crashed"),
                Failure(
                    kind="start_failed",
                    message=error.message,
                    hint=error.hint,
                    stderr_tail=error.traceback,
                ),
            )
        trial = dataclasses.replace(trial, started_at=started_at, wall_s=self._clock() - began_s)
        return trial, told

    def close(self) -> None:
        """End every process."""
        with contextlib.suppress(NothingMeasuredError):
            self._launcher.close()
        self._watcher.close()

    def _stall_s(self, config: Config) -> float:
        """How long a trial of a configuration may show no progress."""
        slow_s = _SLOWEST_BATCH * self._batch_s
        if not self.fork_safe:
            slow_s += self._build_s
        if (config.start_method or self._start_method) in ("spawn", "forkserver"):
            slow_s += _SPAWN_S * config.num_workers
        return self._limits.stall_s + slow_s

    def _supervisor(self, limits: TrialLimits, left_s: float | None = None) -> Supervisor:
        return Supervisor(
            launcher=self._launcher,
            watcher=self._watcher,
            inbox=self._inbox,
            directory=self._directory,
            limits=dataclasses.replace(limits, left_s=left_s),
            pulse=self._pulse,
        )

    def _persist(self, attempt: Callable[[float], _Outcome], limit_s: float) -> _Outcome:
        """Try once more, from a new process, if the one that starts the trials dies.

        Args:
            attempt: Called with the seconds that are left.
            limit_s: For both attempts together.

        Raises:
            DlprofError: It died again, or there was no time for another attempt, or the target
                can't be built any more.
        """
        deadline_s = self._clock() + limit_s
        for last in (False, True):
            self._stand_up(deadline_s - self._clock())
            try:
                return attempt(deadline_s - self._clock())
            except LauncherDiedError:
                self._fallen = True
                if last or self._clock() >= deadline_s:
                    raise
        raise AssertionError("the last attempt returns or raises")

    def _stand_up(self, patience_s: float) -> None:
        """Replace a fork server that has died by one that does the same."""
        if not self._fallen:
            return
        launcher = self._new_fork_launcher()
        if self.fork_safe:
            launcher.build(self._request, patience_s)
        else:
            launcher.preload(self._request)
        self._fallen = False

    def _build_in_each_trial(self, reason: str) -> None:
        self.fork_safe = False
        self.notes = (*self.notes, _REBUILT.format(reason=reason))
        self._new_fork_launcher().preload(self._request)

    def _new_fork_launcher(self) -> ForkLauncher:
        self._clear()
        self._launcher = launcher = ForkLauncher(self._inbox, self._directory)
        return launcher

    def _new_launcher(self) -> Launcher:
        self._clear()
        return make_launcher(self._inbox, self._directory)

    def _clear(self) -> None:
        """End what there is and begin anew; the old inbox still hears how the old one ended."""
        self.close()
        self._inbox = Inbox()
        self._watcher = ObserverProcess(self._inbox)
