"""Runs trials, one after another: starts them, watches their limits, ends what exceeds them.

What they use, a process beside them observes (``dlprof.trial.observer``).
"""

from __future__ import annotations

import contextlib
import dataclasses
import shutil
import sys
import tempfile
import time
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path

from dlprof.errors import DlprofError, NothingMeasuredError, TargetError
from dlprof.machine.cgroups import oom_kills, read_cgroups
from dlprof.records import Failure, Trial, Usage
from dlprof.records.codec import from_json
from dlprof.trial import failures
from dlprof.trial.failures import ResourceLimitError, blame_memory, not_started, resource_limits
from dlprof.trial.hangs import find_hang
from dlprof.trial.launch import LAUNCHER, Handle, Launcher
from dlprof.trial.processes import end_group
from dlprof.trial.protocol import Message, TrialRequest
from dlprof.trial.runtime import Inbox, ModuleProcess, Received, TrialLog, open_log
from dlprof.trial.state import (
    TrialLimits,
    TrialState,
    completed,
    failed,
    failure_in,
    failure_of,
    timed_out,
)
from dlprof.trial.temporary import ManagerWatch, SharedMemoryWatch

_QUIT_S = 2.0


class ObserverProcess:
    """Passes orders to an observer process, starting it anew if it has died.

    Args:
        inbox: Where its answers go, under ``source``.
    """

    def __init__(self, inbox: Inbox) -> None:
        self._inbox = inbox
        self._process: ModuleProcess | None = None
        self._starts = 0
        self._silent = False

    @property
    def source(self) -> str:
        """The name under which the running observer's answers come in."""
        return f"observer-{self._starts}"

    def watch(self, pid: int, *, memory_bytes: int | None, reserve_bytes: int) -> None:
        """Observe the process tree under ``pid`` from now on.

        Args:
            pid: The trial's first process.
            memory_bytes: Most memory of its own before a ``memory`` message comes.
            reserve_bytes: Memory to be left to others before one comes.
        """
        if self._silent or self._process is None or self._process.has_ended():
            self.close()
            self._starts += 1
            with contextlib.suppress(ResourceLimitError):  # the trial goes on unobserved
                self._process = ModuleProcess(
                    [sys.executable, "-m", "dlprof.trial.observer"],
                    what="the observer",
                    inbox=self._inbox,
                    source=self.source,
                )
                self._silent = False
        self.order("watch", pid=pid, memory_bytes=memory_bytes, reserve_bytes=reserve_bytes)

    def order(self, verb: str, **details: int | None) -> None:
        """Send one order; to a dead observer it is lost, and no answer comes."""
        if self._process is not None:
            self._process.order(verb, **details)

    def give_up(self) -> None:
        """Take the observer for dead, because it gives no answer: the next is a new one."""
        self._silent = True

    def close(self) -> None:
        """End the observer."""
        if self._process is not None:
            self._process.end(0.0 if self._silent else _QUIT_S)
            self._process = None


_OBSERVER_PATIENCE_S = 3.0
_END_PATIENCE_S = 2.0
_KILL_PATIENCE_S = 4.0  # a launcher asks, then forces, then looks for what is left: a second each
_LOOK_S = 0.25  # how often a trial is looked at that says nothing
_SHORT_LOOK_S = 0.05  # the same while it writes a lot
_LATE_S = 2.0  # a look that comes so late comes from a process that was stopped
_ATTEMPTS = 3  # at a trial in which this process was not stopped
_TARGETS_OWN = ("worker_exception", "worker_exit", "empty", "truncated", "inconsistent_batches")
_FORCED = -9  # the exit status of a process ended by SIGKILL
_RESULTS = frozenset({"measured", "probe"})
_TOLD = ("explanation", "timeline")


class ProbeTimeoutError(NothingMeasuredError):
    """The probe did not end in time."""


class LauncherDiedError(NothingMeasuredError):
    """The process that starts the trials died, and with it the trial that ran."""


class Supervisor:
    """Runs trials, one at a time.

    Args:
        launcher: Starts them.
        watcher: Observes them.
        inbox: Where both put what they have to say.
        directory: For the trials' logs and temporary files; the caller removes it.
        limits: When a trial is ended.
        pulse: Called with what the machine is doing, a few times a second.
        clock: Monotonic seconds.
    """

    def __init__(
        self,
        *,
        launcher: Launcher,
        watcher: ObserverProcess,
        inbox: Inbox,
        directory: Path,
        limits: TrialLimits,
        pulse: Callable[[Usage], object] = lambda _usage: None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._launcher = launcher
        self._watcher = watcher
        self._inbox = inbox
        self._directory = directory
        self._limits = limits
        self._pulse = pulse
        self._clock = clock

    def probe(self, request: TrialRequest) -> Message:
        """Load two batches in a disposable process and describe them.

        Returns:
            See :func:`dlprof.trial.probing.probe`, and ``try_workers`` there for a configuration
            with workers.

        Raises:
            TargetError: There is no batch, or the target's own code raised.
            ProbeTimeoutError: They did not come in time.
            LauncherDiedError: The process that starts trials has died.
            NothingMeasuredError: The process died.
        """
        state, log = self._undisturbed(dataclasses.replace(request, probe=True))
        if state.result is None:
            raise _no_batch(failure_of(state, self._limits, log))
        probe: Message = state.result["probe"]
        return probe

    def run(
        self, request: TrialRequest, *, trial_id: str, repetition: int
    ) -> tuple[Trial, Message]:
        """Measure one configuration once; whatever the target does, a trial comes back.

        Returns:
            The trial, and what it told as plain values: ``explanation`` and ``timeline`` of one
            that was to explain and completed.

        Raises:
            LauncherDiedError: The process that starts trials has died.
            ResourceLimitError: There is no room to start one.
        """
        started_at = datetime.now(UTC).isoformat(timespec="milliseconds")
        began_s = self._clock()
        kills = oom_kills(read_cgroups())
        state, log = self._undisturbed(request)
        blank = Trial(
            id=trial_id,
            config=request.config,
            repetition=repetition,
            outcome="completed",
            started_at=started_at,
            wall_s=self._clock() - began_s,
            usage_over_time=tuple(state.samples),
        )
        if state.result is not None:
            told = {name: state.result[name] for name in _TOLD if name in state.result}
            return completed(blank, state, request, self._limits), told
        failure = failure_of(state, self._limits, log)
        if kills is not None and (oom_kills(read_cgroups()) or 0) > kills:
            failure = blame_memory(failure)
        return failed(blank, failure), {}

    def _undisturbed(self, request: TrialRequest) -> tuple[TrialState, str]:
        """Run a trial, and again if this process was stopped meanwhile, as by Ctrl-Z.

        The trial may have been stopped with it, so that its clock ran on without it; and what the
        machine did in its window was not asked for in time.
        """
        state, log = self._run(request)
        for _ in range(_ATTEMPTS - 1):
            if not state.stopped_s:
                break
            state, log = self._run(request)
        return state, log

    def _run(self, request: TrialRequest) -> tuple[TrialState, str]:
        """Start a trial, listen to it until it has ended, and clear away what it left."""
        with resource_limits("a trial"):
            # A short name: the paths of multiprocessing's sockets in it are limited to 107 bytes.
            place = Path(tempfile.mkdtemp(prefix="", dir=self._directory))
            file = open_log(place / "output.log")
        watches = SharedMemoryWatch(), ManagerWatch()
        try:
            with file:
                log = TrialLog(file)
                request = dataclasses.replace(request, temporary=str(place))
                handle = self._launcher.launch(request, file)
                state = self._follow(handle, log, request)
                return state, log.text()
        finally:
            for watch in watches:
                watch.clear()
            shutil.rmtree(place, ignore_errors=True)

    def _follow(self, handle: Handle, log: TrialLog, request: TrialRequest) -> TrialState:
        now_s = self._clock()
        state = TrialState(
            heard_s=now_s,
            began_s=now_s,
            deadline_s=now_s + self._limits.left,
            workers=request.config.num_workers,
            traced=request.explain,
        )
        try:
            while state.running():
                self._launcher.look()
                event = self._next_event(state, _SHORT_LOOK_S if log.trim() else _LOOK_S)
                if event is not None:
                    self._take(event, handle, state)
                self._check(handle, state, log)
        finally:
            if state.running():  # it is interrupted
                self._launcher.kill()
                self._await_end(state)
            self._watcher.order("unwatch")
            handle.channel.close_writing()
        return state

    def _next_event(self, state: TrialState, look_s: float) -> Received | None:
        """What is said next, if anything is until the next look."""
        asked_at_s = self._clock()
        patience_s = max(0.0, min(state.deadline_s - asked_at_s, look_s))
        event = self._inbox.get(patience_s)
        late_s = self._clock() - asked_at_s - patience_s
        if late_s > _LATE_S:
            state.stand_still(late_s)
        return event

    def _await_end(self, state: TrialState) -> None:
        """Wait for an end that was ordered, because what still runs can't be cleared up after."""
        deadline_s = self._clock() + _END_PATIENCE_S
        while state.running() and (left_s := deadline_s - self._clock()) > 0:
            event = self._inbox.get(left_s)
            if event is not None and event.source == LAUNCHER:
                state.status = _FORCED

    def _check(self, handle: Handle, state: TrialState, log: TrialLog) -> None:
        """Hold the trial against its limits."""
        now_s = self._clock()
        since = state.awaiting_usage_since
        if since is not None and now_s - since > _OBSERVER_PATIENCE_S:
            self._watcher.give_up()
            self._go_on(handle, state)
        if state.running() and not state.settled():
            state.failure = find_hang(state, log, now_s, stall_s=self._limits.stall_s)
            if state.failure is not None:
                state.deadline_s = now_s
        if state.running() and self._clock() >= state.deadline_s:
            self._end(state)

    def _end(self, state: TrialState) -> None:
        """Have the trial ended; the second time by one's own hand."""
        if not state.killed:
            if not state.settled():
                state.failure = timed_out(self._limits)
            self._launcher.kill()
        else:
            self._launcher.give_up()
            if state.pid is not None:
                end_group(state.pid, linger_s=0.0, grace_s=_END_PATIENCE_S)
            state.status = _FORCED
        state.killed = True
        state.deadline_s = self._clock() + _KILL_PATIENCE_S

    def _take(self, event: Received, handle: Handle, state: TrialState) -> None:
        if event.source == handle.source and event.message is not None:
            state.heard(self._clock())
            self._take_from_child(event.message, handle, state)
        elif event.source == LAUNCHER:
            self._take_from_launcher(event.message, state)
        elif event.source == self._watcher.source:
            self._take_from_observer(event.message, handle, state)

    def _take_from_child(self, message: Message, handle: Handle, state: TrialState) -> None:
        match message["event"]:
            case "born":
                state.pid = message["pid"]
                self._watcher.watch(
                    message["pid"],
                    memory_bytes=self._limits.memory_bytes,
                    reserve_bytes=self._limits.reserve_bytes,
                )
            case "window_start":
                self._watcher.order("start", traced=state.pid if state.traced else None)
            case "window_end":
                self._watcher.order("end")
            case "filled":
                state.awaiting_usage_since = self._clock()
                self._watcher.order("memory")
            # A trial that is being ended may tell of its workers' end, or still of its result; what
            # it is ended for stands.
            case "result" if not state.settled() and not _RESULTS.isdisjoint(message):
                state.result = message
                self._dismiss(handle, state)
            case "failed" | "build_failed" if not state.settled():
                state.failure = failure_in(message)
                self._dismiss(handle, state)

    def _dismiss(self, handle: Handle, state: TrialState) -> None:
        """Let a trial end that has said all: soon, or by force."""
        handle.channel.send({"go": True})
        state.deadline_s = min(state.deadline_s, self._clock() + _END_PATIENCE_S)

    def _take_from_launcher(self, message: Message | None, state: TrialState) -> None:
        if message is None:
            if state.pid is not None:
                end_group(state.pid, linger_s=0.0, grace_s=_END_PATIENCE_S)
            state.status = _FORCED
            raise LauncherDiedError(
                "The process that starts the trials died.",
                hint="Look for what ends processes on this machine, such as an out-of-memory "
                "killer; --resume goes on with a sweep.",
            )
        if message["event"] == "exited":
            state.status = message["status"]
        elif message["event"] == "not_started":
            state.failure = not_started(message["errno"], message["error"])
            state.status = 0

    def _take_from_observer(
        self, message: Message | None, handle: Handle, state: TrialState
    ) -> None:
        if message is None:
            self._go_on(handle, state)
        elif message["event"] == "usage":
            state.usage = message
            self._go_on(handle, state)
        elif message["event"] == "memory" and not state.settled():
            state.failure = Failure(
                kind="out_of_memory",
                message=message["reason"],
                hint=failures.LESS_MEMORY,
            )
            state.deadline_s = self._clock()
        elif message["event"] == "pulse":
            usage = from_json(Usage, message["usage"])
            state.used(usage, self._clock())
            self._pulse(usage)

    def _go_on(self, handle: Handle, state: TrialState) -> None:
        """Let a trial go on that holds still until its memory has been read."""
        if state.awaiting_usage_since is not None:
            state.awaiting_usage_since = None
            handle.channel.send({"go": True})


def _no_batch(failure: Failure) -> DlprofError:
    """What a probe that failed is raised as."""
    message = f"The target gives no batch, even without workers: {failure.message}"
    kind: type[DlprofError] = NothingMeasuredError
    if failure.kind == "target_error":
        kind, message = TargetError, failure.message
    elif failure.kind in ("timeout", "deadlock"):
        kind = ProbeTimeoutError
    elif failure.kind in _TARGETS_OWN:
        kind = TargetError
    return kind(
        message,
        hint=failure.hint,
        traceback=failure.stderr_tail,
        failures=[(failure.kind, failure.message)],
    )
