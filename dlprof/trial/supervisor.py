"""Runs trials, one after another: starts them, watches their limits, ends what exceeds them.

What they use, a process beside them observes (``dlprof.trial.observer``).
"""

from __future__ import annotations

import contextlib
import dataclasses
import math
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from dlprof.errors import DlprofError, NothingMeasuredError, TargetError
from dlprof.machine.cgroups import oom_kills, read_cgroups
from dlprof.records import Failure, Trial, Usage
from dlprof.records.codec import from_json
from dlprof.trial import failures, state
from dlprof.trial.failures import ResourceLimitError, blame_memory, not_started, resource_limits
from dlprof.trial.hangs import find_hang
from dlprof.trial.launch import Launcher
from dlprof.trial.nodes import RELAY_S, Ranks
from dlprof.trial.processes import STOPPED_S, ManagerWatch, SharedMemoryWatch, end_group
from dlprof.trial.protocol import Channel, Message, TrialRequest
from dlprof.trial.rank_group import RankGroup
from dlprof.trial.runtime import GRACE_S, Inbox, ModuleProcess, Received, TrialLog, open_log
from dlprof.units import format_duration


class ObserverProcess:
    """Passes orders to an observer process, starting it again if it has died."""

    def __init__(self, inbox: Inbox) -> None:
        self._inbox = inbox
        self._process: ModuleProcess | None = None
        self._starts = 0
        self._silent = False

    @property
    def source(self) -> str:
        """The name under which the running observer's answers come in."""
        return f"observer-{self._starts}"

    def watch(self, pid: int, *beside: int, memory_bytes: int | None, reserve_bytes: int) -> None:
        """Observe the process trees under ``pid`` and those beside it, as one, from now on.

        A ``memory`` message comes once they hold more than the one or leave less than the other.
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
        self.order(
            "watch",
            pid=pid,
            memory_bytes=memory_bytes,
            reserve_bytes=reserve_bytes,
            **({"beside": beside} if beside else {}),
        )

    def order(self, verb: str, **details: int | tuple[int, ...] | None) -> None:
        """Send one order; to a dead observer it is lost, and no answer comes."""
        if self._process is not None:
            self._process.order(verb, **details)

    def give_up(self) -> None:
        """Take the observer for dead, because it gives no answer: the next is a new one."""
        self._silent = True

    def close(self) -> None:
        """End the observer."""
        if self._process is not None:
            self._process.end(0.0 if self._silent else 2.0)
            self._process = None


_END_PATIENCE_S = 2 * GRACE_S
_TARGETS_OWN = ("worker_exception", "worker_exit", "empty", "truncated", "inconsistent_batches")
_FORCED = -9  # the exit status of a process ended by SIGKILL


_BESIDE = Failure(kind="worker_exit", message="Another rank of the trial failed")


class ProbeTimeoutError(NothingMeasuredError):
    """The probe did not end in time."""


class LauncherDiedError(NothingMeasuredError):
    """The process that starts the trials died, and with it the trial that ran."""


class ProbeKilledError(NothingMeasuredError):
    """A signal from elsewhere ended or stopped the probe: another attempt may do better."""


@dataclasses.dataclass(slots=True, kw_only=True)
class _Rank(state.TrialState):
    """A loader of the running trial: the only one, or one of those that load at once.

    It is numbered from 0 over all nodes. What was kept of its log is in ``printed`` once it has
    ended.
    """

    number: int
    launcher: Launcher
    channel: Channel
    source: str
    log: TrialLog
    printed: str = ""


@dataclasses.dataclass(kw_only=True, eq=False)
class Supervisor:
    """Runs trials, one at a time."""

    # Start them: one for each rank of this node, the first of them also alone.
    launchers: Sequence[Launcher]
    watcher: ObserverProcess  # observes them
    inbox: Inbox  # where both put what they have to say
    directory: Path  # for the trials' logs and temporary files; the caller removes it
    limits: state.TrialLimits  # when a trial is ended
    left_s: float = math.inf  # what is left of that where a first attempt has spent some
    # Called with what the machine is doing, a few times a second.
    pulse: Callable[[Usage], object] = lambda _usage: None
    clock: Callable[[], float] = time.monotonic  # monotonic seconds
    # All that load at once, also on other nodes.
    together: Ranks = dataclasses.field(default_factory=Ranks)
    _left_s: float = dataclasses.field(default=0.0, init=False)
    _elsewhere: Failure | None = dataclasses.field(default=None, init=False)
    """Of another node, for which the trial ends here too."""

    @property
    def _numbers(self) -> Sequence[int]:
        """Of this node's ranks over all nodes."""
        return [rank.rank for rank in self.together.local] or range(len(self.launchers))

    def probe(self, request: TrialRequest) -> Message:
        """Load two batches in a disposable process and describe them.

        Returns:
            See :func:`dlprof.trial.probing.probe`, and ``try_workers`` there for a configuration
            with workers.

        Raises:
            TargetError: There is no batch, or the target's own code raised.
            ProbeTimeoutError: They did not come in time.
            ProbeKilledError: A signal from elsewhere came first.
            LauncherDiedError: The process that starts trials has died.
            NothingMeasuredError: The process died.
        """
        ranks, lost = self._undisturbed(dataclasses.replace(request, probe=True))
        result = ranks[0].result
        if lost is not None or result is None:
            raise _no_batch(self._failure_of(lost or ranks[0], request))
        probe: Message = result["probe"]
        return probe

    def run(self, request: TrialRequest, blank: Trial) -> tuple[Trial, Message]:
        """Measure one configuration once; whatever the target does, a trial comes back.

        Returns:
            The blank trial filled in, and what it sent as plain values: ``explanation`` and
            ``timeline`` of one that was to explain and completed.

        Raises:
            LauncherDiedError: The process that starts trials has died.
        """
        kills = oom_kills(read_cgroups())
        ranks, lost = self._undisturbed(request)
        blank = dataclasses.replace(blank, usage_over_time=tuple(ranks[0].samples))
        if lost is None:
            each = [state.completed(blank, rank, request, self.limits) for rank in ranks]
            sent = [rank.result or {} for rank in ranks]
            if request.ranks > 1:
                each = [
                    state.of_one(trial, rank, rank.number, place, len(ranks))
                    for place, (trial, rank) in enumerate(zip(each, ranks, strict=True))
                ]
            trial, slowest = state.together(each)
            result = sent[slowest]
            return trial, {
                name: result[name] for name in ("explanation", "timeline") if name in result
            }
        failure = self._failure_of(lost, request)
        if kills is not None and (oom_kills(read_cgroups()) or 0) > kills:
            failure = blame_memory(failure)
        return state.failed(blank, failure), {}

    def _failure_of(self, lost: _Rank, request: TrialRequest) -> Failure:
        if self._elsewhere is not None:
            return self._elsewhere
        failure, ranks = state.failure_of(lost, self.limits, lost.printed), request.ranks
        if failure.kind == "timeout" and 10 * request.step_s > self.limits.wall_s:
            step = f"Each step takes {format_duration(request.step_s)}, as --step-time has it"
            why = f"{step}; a number without a unit is seconds. {failure.hint}"
            failure = dataclasses.replace(failure, hint=why)
        # The memory that the observer saw is that of all of them.
        whole = ranks == 1 or (failure.kind == "out_of_memory" and not self.together.nodes.links)
        return failure if whole else state.of_rank(failure, lost.number, ranks)

    def _undisturbed(self, request: TrialRequest) -> tuple[list[_Rank], _Rank | None]:
        """Run a trial, and again if this process was stopped during it, as by Ctrl-Z.

        The trial may have been stopped with it, so that its clock ran on without it; and what the
        machine did in its window was not asked for in time. It is run once with other nodes, or
        where too little of its time is left. Returns all its ranks, and the one that it failed for.
        """
        self._left_s = min(self.limits.wall_s, self.left_s)
        # At a trial in which this process was not stopped.
        for _ in range(1 if self.together.nodes.links else 3):
            began_s = self.clock()
            ranks, lost = self._run(request)
            spent_s = self.clock() - began_s - ranks[0].stopped_s
            self._left_s -= spent_s
            if not ranks[0].stopped_s or self._left_s < spent_s:
                break
        return ranks, lost

    def _run(self, request: TrialRequest) -> tuple[list[_Rank], _Rank | None]:
        """Start a trial, listen to it until it has ended, and clear away what it left."""
        count, self._elsewhere = request.ranks, None
        here = max(1, sum(number < count for number in self._numbers))
        with contextlib.ExitStack() as files:
            with resource_limits("a trial"):
                # A short name: the paths of multiprocessing's sockets in it are limited to 107
                # bytes.
                place = Path(tempfile.mkdtemp(prefix="", dir=self.directory))
                names = ["output.log", *(f"output{rank}.log" for rank in range(1, here))]
                logs = [TrialLog(files.enter_context(open_log(place / name))) for name in names]
            group = RankGroup.create(place, count, here) if count > 1 else None
            shared, managers = SharedMemoryWatch(), ManagerWatch()
            try:
                request = dataclasses.replace(request, temporary=str(place))
                ranks: list[_Rank] = []
                lost = self._follow(ranks, logs, request, group)
                for rank in ranks:
                    rank.printed = rank.log.text()
                return ranks, lost
            finally:
                shared.clear(place)
                managers.clear()
                shutil.rmtree(place, ignore_errors=True)

    def _launch(self, ranks: list[_Rank], logs: Sequence[TrialLog], request: TrialRequest) -> None:
        for number, launcher, log in zip(self._numbers, self.launchers, logs, strict=False):
            now_s = self.clock()
            channel, source = launcher.launch(dataclasses.replace(request, rank=number), log.file)
            rank = _Rank(
                number=number,
                launcher=launcher,
                channel=channel,
                source=source,
                log=log,
                heard_s=now_s,
                began_s=now_s,
                deadline_s=now_s + self._left_s,
                workers=request.config.num_workers,
                traced=request.explain,
            )
            ranks.append(rank)

    def _follow(
        self,
        ranks: list[_Rank],
        logs: Sequence[TrialLog],
        request: TrialRequest,
        group: RankGroup | None,
    ) -> _Rank | None:
        """Start all ranks and listen until the last has ended; one that fails ends all others.

        Those of other nodes, too: what becomes of them is heard meanwhile.
        """
        with_others = bool(self.together.nodes.links) and not request.probe
        lost: _Rank | None = None
        try:
            self._launch(ranks, logs, request)
            while any(rank.running() for rank in ranks):
                for rank in ranks:
                    rank.launcher.look()
                writes = sum(rank.log.trim() for rank in ranks)  # each of them is looked at
                # It is looked at more often while it writes a lot.
                look_s = RELAY_S if with_others else 0.05 if writes else 0.25
                event = self._next_event(ranks, look_s)
                if event is not None:
                    self._take(event, ranks)
                # The others may wait for who came least far.
                order = sorted(ranks, key=lambda each: group.passed(each.number) if group else 0)
                for rank in order:
                    self._check(rank, ranks, alone=group is None)
                if lost is None and self._elsewhere is None:
                    lost = next((rank for rank in order if rank.lost()), None)
                    if with_others:
                        self._exchange(lost, group, request)
                if lost is None and self._elsewhere is None:
                    continue
                for rank in ranks:
                    if rank is not lost and rank.running() and not rank.killed:
                        rank.failure = rank.failure or _BESIDE
                        self._end(rank)
        finally:
            self._leave(ranks)
        return lost if self._elsewhere is None else ranks[0]

    def _leave(self, ranks: Sequence[_Rank]) -> None:
        """End what still runs, as where this process is interrupted, and wait for that.

        What still runs can't be cleared up after, and the next trial must not hear of its end.
        """
        for rank in ranks:
            if rank.running() and not rank.killed:
                self._end(rank)
        while running := [rank for rank in ranks if rank.running()]:
            left_s = max(rank.deadline_s for rank in running) - self.clock()
            event = self.inbox.get(left_s) if left_s > 0 else None
            for rank in running:
                if left_s <= 0:
                    self._end(rank)
                elif event is not None and event.source == rank.launcher.source:
                    rank.status = _FORCED
        self.watcher.order("unwatch")
        for rank in ranks:
            rank.channel.close_writing()

    def _exchange(self, lost: _Rank | None, group: RankGroup | None, request: TrialRequest) -> None:
        """Report to other nodes how it goes here, and hear how it goes there."""
        if lost is None:
            self._elsewhere = self.together.nodes.exchange(group)
        else:
            lost.printed = lost.log.text()
            self.together.nodes.lose(self._failure_of(lost, request))

    def _next_event(self, ranks: Sequence[_Rank], look_s: float) -> Received | None:
        """What is said next, if anything is until the next look."""
        asked_at_s = self.clock()
        deadline_s = min(rank.deadline_s for rank in ranks if rank.running())
        patience_s = max(0.0, min(deadline_s - asked_at_s, look_s))
        event = self.inbox.get(patience_s)
        self._stand_still(ranks, asked_at_s + patience_s)
        return event

    def _stand_still(self, ranks: Sequence[_Rank], expected_s: float) -> None:
        """Let time not count by which this process is late: it was stopped, or its terminal."""
        late_s = self.clock() - expected_s
        if late_s > 2.0:
            for rank in ranks:
                rank.stand_still(late_s)

    def _check(self, rank: _Rank, ranks: Sequence[_Rank], *, alone: bool) -> None:
        """Hold a rank against the limits of the trial; ``alone`` where it is the only one."""
        now_s = self.clock()
        since = _all_filled_since(ranks)
        if since is not None:
            # To read what each worker holds takes the kernel 50 ms a GiB: half a second where a
            # dataset of 10 GiB is in memory. The trial has to end in time all the same.
            reading_s = STOPPED_S + sum(each.workers for each in ranks) / 2
            left_s = min(each.deadline_s for each in ranks) - since - STOPPED_S
            if now_s - since > max(STOPPED_S, min(reading_s, left_s)):
                self.watcher.give_up()
                self._go_on(ranks)
        if rank.pid is None and now_s - rank.heard_s > STOPPED_S and rank.launcher.is_stopped():
            rank.launcher.give_up()  # which the inbox reports, and another one starts the trial
        # For the observer, or for other ranks to do so.
        holds = rank.awaiting_usage_since is not None
        if rank.running() and not rank.settled() and not holds:
            rank.failure = find_hang(
                rank, rank.log, now_s, stall_s=self.limits.stall_s, alone=alone
            )
            if rank.failure is not None:
                rank.deadline_s = now_s
        if rank.running() and self.clock() >= rank.deadline_s:
            if not (rank.settled() or holds):  # where it stands, if it has for most of the time
                within_s = self.limits.wall_s / 2
                rank.failure = find_hang(rank, rank.log, now_s, stall_s=within_s, alone=alone)
            self._end(rank)

    def _end(self, rank: _Rank) -> None:
        """Have a rank ended; the second time by one's own hand, as where nobody hears it."""
        if not rank.settled():
            rank.failure = state.timed_out(self.limits)
        if not rank.killed and not rank.launcher.is_stopped():
            rank.launcher.kill()
        else:
            rank.launcher.give_up()
            if rank.pid is not None:
                end_group(rank.pid, linger_s=0.0, grace_s=_END_PATIENCE_S)
            rank.status = _FORCED
        rank.killed = True
        # A launcher asks, then forces, then looks for what is left: a second each
        rank.deadline_s = self.clock() + 4.0

    def _take(self, event: Received, ranks: Sequence[_Rank]) -> None:
        for rank in ranks:
            if event.source == rank.source and event.message is not None:
                rank.heard(self.clock())
                self._take_from_child(event.message, rank, ranks)
            elif event.source == rank.launcher.source:
                self._take_from_launcher(event.message, rank)
        if event.source == self.watcher.source:
            self._take_from_observer(event.message, ranks)

    def _take_from_child(self, message: Message, rank: _Rank, ranks: Sequence[_Rank]) -> None:
        match message["event"]:
            case "born":
                rank.pid = message["pid"]
                pids = [each.pid for each in ranks if each.pid is not None]
                if len(pids) == len(ranks):
                    self.watcher.watch(
                        *pids,
                        memory_bytes=self.limits.memory_bytes,
                        reserve_bytes=self.limits.reserve_bytes,
                    )
            # All ranks have the same window, to within a batch.
            case "window_start" if rank is ranks[0]:
                self.watcher.order("start", traced=rank.pid if rank.traced else None)
            case "window_end" if rank is ranks[0]:
                self.watcher.order("end")
            case "filled":
                rank.awaiting_usage_since = self.clock()
                if _all_filled_since(ranks) is not None:
                    self.watcher.order("memory")
            # A trial that is being ended may report its workers' end, or still of its result; what
            # it is ended for stands.
            case "result" if not rank.settled() and {"measured", "probe"} & message.keys():
                rank.result = message
                self._dismiss(rank)
            case "failed" | "build_failed" if not rank.settled():
                rank.failure = state.failure_in(message)
                self._dismiss(rank)

    def _dismiss(self, rank: _Rank) -> None:
        """Let a trial end that has said all: soon, or by force."""
        rank.channel.send({"go": True})
        rank.deadline_s = min(rank.deadline_s, self.clock() + _END_PATIENCE_S)

    def _take_from_launcher(self, message: Message | None, rank: _Rank) -> None:
        if message is None:
            if rank.pid is not None:
                end_group(rank.pid, linger_s=0.0, grace_s=_END_PATIENCE_S)
            rank.status = _FORCED
            died = Failure(kind="worker_exit", message="The process that starts the trials died.")
            ranks = self.together.nodes.ranks or len(self.launchers)
            if ranks > 1:
                died = state.of_rank(died, rank.number, ranks)
            raise LauncherDiedError(
                died.message,
                hint="Look for what ends processes on this machine, such as an out-of-memory "
                "killer; --resume goes on with a sweep.",
            )
        if message["event"] == "exited":
            rank.status = message["status"]
        elif message["event"] == "not_started":
            rank.failure = not_started(message["errno"], message["error"])
            rank.status = 0

    def _take_from_observer(self, message: Message | None, ranks: Sequence[_Rank]) -> None:
        if message is None:
            self._go_on(ranks)
            return
        if message["pid"] != ranks[0].pid:  # said of the trial before, when that had just ended
            return
        match message["event"]:
            case "usage":
                for rank in ranks:
                    rank.usage = message
                self._go_on(ranks)
            case "memory" if not ranks[0].settled():
                ranks[0].failure = Failure(
                    kind="out_of_memory", message=message["reason"], hint=failures.LESS_MEMORY
                )
                ranks[0].deadline_s = self.clock()
            case "pulse":
                usage = from_json(Usage, message["usage"])
                for rank in ranks:
                    rank.used(usage, self.clock())
                began_s = self.clock()
                self.pulse(usage)
                self._stand_still(ranks, began_s)

    def _go_on(self, ranks: Sequence[_Rank]) -> None:
        """Let a trial go on that holds still until its memory has been read."""
        for rank in ranks:
            if rank.awaiting_usage_since is not None:
                rank.awaiting_usage_since = None
                rank.channel.send({"go": True})


def _all_filled_since(ranks: Sequence[_Rank]) -> float | None:
    """Since when all ranks hold still for the observer; ``None`` while one doesn't."""
    since = [rank.awaiting_usage_since for rank in ranks]
    known = [each for each in since if each is not None]
    return max(known) if len(known) == len(since) else None


def _no_batch(failure: Failure) -> DlprofError:
    message = f"Loading fails, even without workers: {failure.message}"
    kind: type[DlprofError] = NothingMeasuredError
    if failure.kind == "target_error":
        kind, message = TargetError, failure.message
    elif failures.was_hit(failure):
        kind = ProbeKilledError
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
