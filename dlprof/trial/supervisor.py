"""Runs trials, one after another: starts them, watches their time, judges what came of them."""

from __future__ import annotations

import dataclasses
import shutil
import tempfile
import time
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from dlprof.errors import DlprofError, NothingMeasuredError, TargetError
from dlprof.records import Estimate, Failure, Trial, Usage
from dlprof.trial import failures
from dlprof.trial.inbox import Event, Inbox
from dlprof.trial.launch import LAUNCHER, Handle, Launcher, read_log
from dlprof.trial.noise import disturbances
from dlprof.trial.processes import end_group
from dlprof.trial.protocol import Message, TrialRequest
from dlprof.trial.watch import Watcher, usage_of

_OBSERVER_PATIENCE_S = 3.0
_END_PATIENCE_S = 2.0
_KILL_PATIENCE_S = 10.0
_FORCED = -9  # the exit status of a process ended by SIGKILL
_NO_OBSERVER = "the observer gave no answer"


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """When a trial is ended by force.

    Attributes:
        wall_s: Seconds from its start to its end.
        usable_cores: Cores that it may use, to judge how disturbed it was.
    """

    wall_s: float
    usable_cores: float


@dataclasses.dataclass(slots=True)
class _Story:
    """What is known of the running trial so far."""

    pid: int | None = None
    result: Message | None = None
    failure: Failure | None = None
    usage: Message | None = None
    status: int | None = None
    awaiting_usage_since: float | None = None
    killed: bool = False
    deadline_s: float = 0.0

    def running(self) -> bool:
        """Whether the trial's process has not been reported as ended."""
        return self.status is None


class ProbeTimeoutError(NothingMeasuredError):
    """The probe did not end in time."""


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
        watcher: Watcher,
        inbox: Inbox,
        directory: Path,
        limits: Limits,
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
            See :func:`dlprof.trial.child.probe`.

        Raises:
            TargetError: There is no batch, or the target's own code raised.
            ProbeTimeoutError: They did not come in time.
            NothingMeasuredError: The process died.
        """
        story, tail = self._run(dataclasses.replace(request, probe=True))
        if story.result is None:
            raise _no_batch(_failure_of(story, self._limits), tail)
        probe: Message = story.result["probe"]
        return probe

    def run(self, request: TrialRequest, *, trial_id: str, repetition: int) -> Trial:
        """Measure one configuration once; whatever the target does, a trial comes back."""
        started_at = datetime.now(UTC).isoformat(timespec="milliseconds")
        began_s = self._clock()
        story, tail = self._run(request)
        blank = Trial(
            id=trial_id,
            config=request.config,
            repetition=repetition,
            outcome="completed",
            started_at=started_at,
            wall_s=self._clock() - began_s,
        )
        if story.result is None:
            failure = _failure_of(story, self._limits)
            if not failure.stderr_tail:
                failure = dataclasses.replace(failure, stderr_tail=tail)
            return dataclasses.replace(blank, outcome=failures.outcome_of(failure), failure=failure)
        return self._completed(blank, story, request)

    def _run(self, request: TrialRequest) -> tuple[_Story, str]:
        """Start a trial and listen to it until it has ended."""
        # A short name: the paths of multiprocessing's sockets in it are limited to 107 bytes.
        place = Path(tempfile.mkdtemp(prefix="", dir=self._directory))
        try:
            with (place / "output.log").open("w+b") as log:
                request = dataclasses.replace(request, temporary=str(place))
                story = self._follow(self._launcher.launch(request, log))
                return story, read_log(log)
        finally:
            shutil.rmtree(place, ignore_errors=True)

    def _follow(self, handle: Handle) -> _Story:
        story = _Story(deadline_s=self._clock() + self._limits.wall_s)
        try:
            while story.running():
                left_s = story.deadline_s - self._clock()
                event = self._inbox.get(min(left_s, _OBSERVER_PATIENCE_S))
                if event is not None:
                    self._take(event, handle, story)
                if self._observer_is_late(story):
                    self._go_on(handle, story)
                if story.running() and self._clock() >= story.deadline_s:
                    self._end(story)
        finally:
            if story.running():
                self._launcher.kill()
            self._watcher.order("unwatch")
            handle.channel.close_writing()
        return story

    def _end(self, story: _Story) -> None:
        """Have the trial ended; the second time by one's own hand."""
        if not story.killed:
            if story.result is None and story.failure is None:
                story.failure = _timed_out(self._limits)
            self._launcher.kill()
        else:
            if story.pid is not None:
                end_group(story.pid, linger_s=0.0, grace_s=_END_PATIENCE_S)
            story.status = _FORCED
        story.killed = True
        story.deadline_s = self._clock() + _KILL_PATIENCE_S

    def _take(self, event: Event, handle: Handle, story: _Story) -> None:
        if event.source == handle.source and event.message is not None:
            self._take_from_child(event.message, handle, story)
        elif event.source == LAUNCHER:
            self._take_from_launcher(event.message, story)
        elif event.source == self._watcher.source:
            self._take_from_observer(event.message, handle, story)

    def _take_from_child(self, message: Message, handle: Handle, story: _Story) -> None:
        match message["event"]:
            case "born":
                story.pid = message["pid"]
                self._watcher.watch(message["pid"])
            case "window_start":
                self._watcher.order("start")
            case "window_end":
                self._watcher.order("end")
            case "filled":
                story.awaiting_usage_since = self._clock()
                self._watcher.order("memory")
            case "result":
                story.result = message
                self._dismiss(handle, story)
            case "failed" | "build_failed":
                story.failure = _failure_in(message)
                self._dismiss(handle, story)

    def _dismiss(self, handle: Handle, story: _Story) -> None:
        """Let a trial end that has said all: soon, or by force."""
        handle.channel.send({"go": True})
        story.deadline_s = min(story.deadline_s, self._clock() + _END_PATIENCE_S)

    def _take_from_launcher(self, message: Message | None, story: _Story) -> None:
        if message is None:
            if story.pid is not None:
                end_group(story.pid, linger_s=0.0, grace_s=_END_PATIENCE_S)
            raise NothingMeasuredError("The process that starts the trials died.")
        if message["event"] == "exited":
            story.status = message["status"]

    def _take_from_observer(self, message: Message | None, handle: Handle, story: _Story) -> None:
        if message is None:
            self._go_on(handle, story)
        elif message["event"] == "usage":
            story.usage = message
            self._go_on(handle, story)
        else:
            self._pulse(usage_of(message))

    def _observer_is_late(self, story: _Story) -> bool:
        since = story.awaiting_usage_since
        return since is not None and self._clock() - since > _OBSERVER_PATIENCE_S

    def _go_on(self, handle: Handle, story: _Story) -> None:
        """Let a trial go on that holds still until its memory has been read."""
        if story.awaiting_usage_since is not None:
            story.awaiting_usage_since = None
            handle.channel.send({"go": True})

    def _completed(self, blank: Trial, story: _Story, request: TrialRequest) -> Trial:
        result = story.result or {}
        measured: Mapping[str, Any] = result["measured"]
        unavailable = _unavailable(story, request, result)
        rate = _estimate(measured["batches_per_s"])
        usage = usage_of(story.usage) if story.usage else Usage()
        disturbed = disturbances(usage, rate, usable_cores=self._limits.usable_cores)
        waited = request.step_s > 0 or request.step_callable is not None
        return dataclasses.replace(
            blank,
            samples_per_s=_scaled(rate, result["samples_per_batch"]),
            batches_per_s=rate,
            bytes_per_s=_scaled(rate, result["batch_bytes"]),
            startup_s=measured["startup_s"],
            epoch_turnover_s=measured["epoch_turnover_s"],
            wait_fraction=measured["wait_fraction"] if waited else None,
            usage=usage,
            noisy=bool(disturbed),
            warnings=(*measured["warnings"], *disturbed),
            unavailable=unavailable,
            measured_s=measured["measured_s"],
            window_batches=measured["batches"],
            batch_bytes=result["batch_bytes"],
            samples_per_batch=result["samples_per_batch"],
            whole_epochs=measured["whole_epochs"],
        )


def _no_batch(failure: Failure, log: str) -> DlprofError:
    """What a probe that failed is raised as."""
    if failure.kind == "target_error":
        return TargetError(failure.message, hint=failure.hint, traceback=failure.stderr_tail)
    message = f"The target gives no batch, even without workers: {failure.message}"
    if failure.kind in ("timeout", "deadlock"):
        return ProbeTimeoutError(message, hint=failure.hint)
    if failure.kind in ("worker_exception", "empty"):
        return TargetError(message, hint=failure.hint, traceback=failure.stderr_tail)
    return NothingMeasuredError(message, hint="\n".join(filter(None, (failure.hint, log))))


def _estimate(fields: Mapping[str, Any] | None) -> Estimate | None:
    return None if fields is None else Estimate(**fields)


def _scaled(rate: Estimate | None, factor: float | None) -> Estimate | None:
    if rate is None or factor is None:
        return None
    return Estimate(
        value=rate.value * factor,
        low=None if rate.low is None else rate.low * factor,
        high=None if rate.high is None else rate.high * factor,
    )


def _unavailable(story: _Story, request: TrialRequest, result: Message) -> dict[str, str]:
    """Reasons for every figure of the trial that is missing."""
    reasons: dict[str, str] = {}
    if story.usage is None:
        for field in dataclasses.fields(Usage):
            if field.name != "gpu":
                reasons[f"usage.{field.name}"] = _NO_OBSERVER
    else:
        for name, reason in story.usage["unavailable"].items():
            reasons[f"usage.{name}"] = reason
    if request.step_s == 0 and request.step_callable is None:
        reasons["wait_fraction"] = "no step was stated: a consumer that does nothing only waits"
    if result["measured"]["epoch_turnover_s"] is None:
        reasons["epoch_turnover_s"] = (
            result["no_turnover"] or "no epoch ended within the trial"
            if request.turnover
            else "timed in an earlier trial with these workers"
        )
    if result["measured"]["batches_per_s"] is None:
        reasons["batches_per_s"] = "too few batches came within the trial"
    if result["samples_per_batch"] is None:
        reasons["samples_per_s"] = "the samples in a batch can't be counted"
    return reasons


def _timed_out(limits: Limits) -> Failure:
    return Failure(
        kind="timeout",
        message=f"The trial did not end within {limits.wall_s:g} s.",
        hint="Raise --timeout if batches are that slow; otherwise the data set hangs.",
    )


def _failure_in(message: Message) -> Failure:
    """The failure that a child tells of."""
    if message["event"] == "failed":
        return Failure(**message["failure"])
    error = message["error"]
    return Failure(
        kind="target_error",
        message=error["message"],
        hint=error["hint"],
        stderr_tail=error["traceback"],
    )


def _failure_of(story: _Story, limits: Limits) -> Failure:
    if story.failure is not None:
        return story.failure
    if story.killed:
        return _timed_out(limits)
    return failures.died(story.status or 0, "")
