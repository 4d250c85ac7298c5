"""Starting trials: from a fork server where processes can be forked, else each from nothing."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import math
import select
import socket
import subprocess
import sys
import threading
from pathlib import Path
from typing import IO, BinaryIO, Protocol, cast

from dlprof.errors import DlprofError, FileError, TargetError, UsageError
from dlprof.records import Config, LoaderCall, Target
from dlprof.trial import stacks
from dlprof.trial.failures import ended, last_lines, resource_limits
from dlprof.trial.inbox import Inbox, Received
from dlprof.trial.log import TrialLog, open_log
from dlprof.trial.processes import end_group
from dlprof.trial.protocol import BuildRequest, Channel, Message, TrialRequest
from dlprof.units import format_duration

_ERRORS: dict[str, type[DlprofError]] = {
    "target": TargetError,
    "usage": UsageError,
    "file": FileError,
}


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Built:
    """A target as the process that built it describes it.

    Attributes:
        target: For the run header.
        versions: ``torch`` and ``python``.
        fork_hazard: Why trials can't be forked from that process; empty if they can.
    """

    target: Target
    versions: dict[str, str]
    fork_hazard: str = ""


class BuilderDiedError(TargetError):
    """The process that was building the target ended before it had said anything."""

    def __init__(self, status: int, log: TrialLog) -> None:
        super().__init__(
            f"The process that builds the target died: it {ended(status)}.",
            hint="Import the target in a Python of your own to see why; the kernel's "
            "out-of-memory killer may have ended it.",
            traceback=last_lines(log.text()),
        )


def _error_of(message: Message) -> DlprofError:
    """The error that building raised, raised again here."""
    error = message["error"]
    kind = _ERRORS.get(error["kind"], TargetError)
    return kind(error["message"], hint=error["hint"], traceback=error["traceback"])


def built_of(message: Message) -> Built:
    """The target that a process tells of.

    Raises:
        DlprofError: It could not be built.
    """
    if message["event"] == "build_failed":
        raise _error_of(message)
    target = dict(message["target"])
    target["notes"] = tuple(target["notes"])
    if target["own_config"] is not None:
        target["own_config"] = Config(**target["own_config"])
    target["call"] = LoaderCall(**target["call"])
    return Built(
        target=Target(**target),
        versions=message["versions"],
        fork_hazard=message.get("fork_hazard", ""),
    )


def too_slow(patience_s: float, log: TrialLog) -> TargetError:
    """The error of a target whose building takes too long; the log's end shows where it stands."""
    return TargetError(
        f"Building the target did not end within {format_duration(patience_s)}.",
        hint="Raise --timeout if it takes that long; the stack shows what it waits for.",
        traceback=last_lines(log.text()),
    )


LAUNCHER = "launcher"
"""The source of a launcher's own events."""

_QUIT_S = 5.0
_LOOK_S = 0.25  # how often the log of a target that is being built is looked at
_GRACE_S = 1.0


@dataclasses.dataclass(frozen=True, slots=True)
class Handle:
    """A trial that is running; its first message tells its process id.

    Attributes:
        channel: To talk to it.
        source: The name under which its messages come into the inbox.
    """

    channel: Channel
    source: str


class Launcher(Protocol):
    """Starts trials of one target, one at a time.

    The end of a trial's process comes into the inbox as ``{"event": "exited", "status": …}`` from
    ``LAUNCHER``, or ``{"event": "not_started", "errno": …, "error": …}`` instead; ``None`` from
    there means that the launcher itself is gone.
    """

    def build(self, request: BuildRequest, patience_s: float = math.inf) -> Built:
        """Build the target once, to describe it and, where possible, to fork trials from.

        Raises:
            BuilderDiedError: The process died of it; another attempt may do better.
            DlprofError: It can't be built, or not within ``patience_s`` seconds.
        """

    def launch(self, request: TrialRequest, log: IO[bytes]) -> Handle:
        """Start a trial whose output goes to ``log``; ``not_started`` may follow, and why.

        Raises:
            ResourceLimitError: The system starts nothing more.
        """

    def kill(self) -> None:
        """End the running trial and everything that it started; ``exited`` follows."""

    def give_up(self) -> None:
        """Take the launcher for dead, because no ``exited`` followed: the next is a new one."""

    def look(self) -> None:
        """Keep what the launcher's own processes write within bounds; called now and then."""

    def close(self) -> None:
        """End everything."""


def _build_answer(
    message: Message | None, process: subprocess.Popen[bytes], log: TrialLog
) -> Built:
    if message is None:
        _end_process(process, patience_s=_QUIT_S)
        raise BuilderDiedError(process.returncode, log)
    return built_of(message)


class ForkLauncher:
    """Forks trials from a process that has torch imported and the target built.

    Args:
        inbox: Where events go.
        directory: For logs; the caller removes it.
    """

    def __init__(self, inbox: Inbox, directory: Path) -> None:
        self._inbox = inbox
        self._log = TrialLog(open_log(directory / "fork_server.log"))
        self._link, theirs = socket.socketpair()
        words = ["-m", "dlprof.trial.fork_server", str(theirs.fileno()), str(directory)]
        with theirs, resource_limits("the process that builds the target"):
            self._process = subprocess.Popen(
                [sys.executable, *words],
                stdin=subprocess.DEVNULL,
                stdout=self._log.file,
                stderr=self._log.file,
                pass_fds=[theirs.fileno()],
                start_new_session=True,
            )
        self._channel = _socket_channel(self._link)
        self._count = 0
        self._stuck = False

    def build(self, request: BuildRequest, patience_s: float = math.inf) -> Built:
        """Build the target in the fork server, and listen to it from then on."""
        self._channel.send({"build": dataclasses.asdict(request)})
        if not self._answers(patience_s):
            self._stuck = True
            stacks.collect([self._process.pid], self._log)
            raise too_slow(patience_s, self._log)
        built = _build_answer(self._channel.hear(), self._process, self._log)
        self._inbox.listen(LAUNCHER, self._channel.hear)
        return built

    def _answers(self, patience_s: float) -> bool:
        """Whether the fork server has something to say before the time is over.

        Counted in looks and not by a clock, which runs on while this process is stopped.
        """
        left_s = max(0.0, patience_s)
        while not select.select([self._link], [], [], min(left_s, _LOOK_S))[0]:
            self.look()
            left_s -= _LOOK_S
            if left_s <= 0:
                return False
        return True

    def preload(self, request: BuildRequest) -> None:
        """Only import torch: each trial then builds the target for itself."""
        self._channel.send({"preload": dataclasses.asdict(request)})
        self._inbox.listen(LAUNCHER, self._channel.hear)

    def launch(self, request: TrialRequest, log: IO[bytes]) -> Handle:
        """Fork a trial."""
        with resource_limits("a trial"):
            ours, theirs = socket.socketpair()
        with ours:
            channel = _socket_channel(ours)
        self._count += 1
        handle = Handle(channel, f"trial-{self._count}")
        order = json.dumps({"trial": dataclasses.asdict(request)}).encode() + b"\n"
        with theirs:
            # First, because without a listener there must be no trial.
            self._inbox.listen(handle.source, channel.hear)
            with contextlib.suppress(OSError):  # of a dead fork server, the inbox tells
                socket.send_fds(self._link, [order], [theirs.fileno(), log.fileno()])
        return handle

    def kill(self) -> None:
        """Have the fork server end the running trial."""
        self._channel.send({"kill": True})

    def give_up(self) -> None:
        """Take the fork server for dead, because something stopped it; the inbox tells so."""
        self._stuck = True
        self._process.kill()

    def look(self) -> None:
        """Keep the log of what the target's builder started within bounds."""
        self._log.trim()

    def close(self) -> None:
        """End the fork server, which ends its trial, or else end it by force."""
        with contextlib.suppress(OSError):
            self._link.shutdown(socket.SHUT_RDWR)
        self._channel.close()
        self._link.close()
        _end_process(self._process, patience_s=0.0 if self._stuck else _QUIT_S)
        self._log.file.close()


class FreshLauncher:
    """Starts each trial as a new interpreter, where processes can't be forked safely.

    Args:
        inbox: Where events go.
        directory: For logs; the caller removes it.
    """

    def __init__(self, inbox: Inbox, directory: Path) -> None:
        self._inbox = inbox
        self._directory = directory
        self._request: BuildRequest | None = None
        self._process: subprocess.Popen[bytes] | None = None
        self._count = 0

    def build(self, request: BuildRequest, patience_s: float = math.inf) -> Built:
        """Build the target in a process of its own, to describe it."""
        del patience_s  # pipes can't be waited for with a limit everywhere
        self._request = request
        with open_log(self._directory / "build.log") as log:
            process, channel = self._start(log)
            built = _build_answer(channel.hear(), process, TrialLog(log))
            channel.close()
            _end_process(process, patience_s=_QUIT_S)
        return built

    def launch(self, request: TrialRequest, log: IO[bytes]) -> Handle:
        """Start an interpreter, build the target and run the trial."""
        process, channel = self._start(log)
        channel.send(dataclasses.asdict(request))
        self._process = process
        self._count += 1
        handle = Handle(channel, f"trial-{self._count}")
        self._inbox.listen(handle.source, channel.hear)
        threading.Thread(target=self._await_exit, args=[process], daemon=True).start()
        return handle

    def kill(self) -> None:
        """End the running trial's process group."""
        if self._process is not None:
            pid, poll = self._process.pid, self._process.poll
            end_group(pid, linger_s=0.0, grace_s=_GRACE_S, reap=poll)

    def give_up(self) -> None:
        """Nothing: there is no process but the trial's own."""

    def look(self) -> None:
        """Nothing: there is no process but the trial's own."""

    def close(self) -> None:
        """End the running trial, if there is one."""
        self.kill()

    def _start(self, log: IO[bytes]) -> tuple[subprocess.Popen[bytes], Channel]:
        with resource_limits("a process for the trial"):
            process = subprocess.Popen(
                [sys.executable, "-m", "dlprof.trial.child"],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                start_new_session=True,
            )
        if process.stdin is None or process.stdout is None:
            raise AssertionError("both were asked for")
        channel = Channel(cast(BinaryIO, process.stdout), cast(BinaryIO, process.stdin))
        channel.send({"build": dataclasses.asdict(cast(BuildRequest, self._request))})
        return process, channel

    def _await_exit(self, process: subprocess.Popen[bytes]) -> None:
        status = process.wait()
        end_group(process.pid, linger_s=_GRACE_S, grace_s=_GRACE_S)
        self._inbox.put(Received(LAUNCHER, {"event": "exited", "status": status}))


def _socket_channel(link: socket.socket) -> Channel:
    """A channel that keeps the socket's descriptor open by itself."""
    return Channel(link.makefile("rb"), link.makefile("wb"))


def _end_process(process: subprocess.Popen[bytes], *, patience_s: float) -> None:
    """Wait for a process that has been told to end, then force it and what it started."""
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(patience_s)
    if process.returncode is None:
        process.kill()
        process.wait()
    end_group(process.pid, linger_s=0.0, grace_s=_GRACE_S)


def make_launcher(inbox: Inbox, directory: Path) -> ForkLauncher | FreshLauncher:
    """The best launcher for this platform: only Linux can fork a process that has torch loaded.

    On macOS system libraries fail after a fork; Windows has none.
    """
    return (
        ForkLauncher(inbox, directory)
        if sys.platform == "linux"
        else FreshLauncher(inbox, directory)
    )
