"""Starting trials: from a fork server where processes can be forked, else each from nothing."""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
import math
import os
import re
import socket
import sys
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import IO, cast

from dlprof.errors import TargetError
from dlprof.records import Failure, Target
from dlprof.records.codec import MismatchError, from_json
from dlprof.targets.faults import GUARD, NOT_A_SCRIPT, OWN, without_own_lines
from dlprof.trial import hangs
from dlprof.trial.failures import as_error, ended, last_lines, resource_limits
from dlprof.trial.processes import STOPPED_S, is_stopped
from dlprof.trial.protocol import BuildRequest, Channel, Message, TrialRequest, error_of, line_of
from dlprof.trial.runtime import GRACE_S, Inbox, ModuleProcess, Received, TrialLog, open_log
from dlprof.units import format_duration


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Built:
    """A target as the process that built it describes it."""

    target: Target  # the target
    versions: dict[str, str]  # ``torch`` and ``python``
    fork_hazard: str = ""  # why trials can't be forked from that process; empty if they can
    file: str = ""  # where its code is, of a check; empty for a built-in or a live object
    line: int | None = None  # its line there
    # A file of the check's other side that was imported in spite of all; empty for none.
    stray: str = ""


class BuilderDiedError(TargetError):
    """The process that was building the target ended before it had said anything."""

    def __init__(self, status: int, log: TrialLog) -> None:
        super().__init__(
            f"The process that builds the target died: it {ended(status)}.",
            hint="Import the target in a Python of your own to see why; the kernel's "
            "out-of-memory killer may have ended it.",
            traceback=last_lines(log.text()),
        )


def built_of(message: Message) -> Built:
    """The target that a process reports."""
    if message["event"] == "build_failed":
        raise error_of(message["error"])
    if message["event"] == "failed":  # before it came to the target
        raise as_error(from_json(Failure, message["failure"]), TargetError)
    try:
        return from_json(Built, message)
    except MismatchError as error:
        its = MismatchError(error.fault, error.path[1:])  # within the target
        raise TargetError(
            f"The target can't be described: its {its}.",
            hint="Give the loader a setting that DataLoader takes.",
        ) from None


LAUNCHER = "launcher"  # the source of a launcher's own events; a rank's has its number behind


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class LocalRank:
    """Where one of several ranks runs.

    Its environment says so to the user's code. The CPUs are those that it may use, where that is
    known.
    """

    rank: int
    environ: Mapping[str, str]
    cpus: frozenset[int] = frozenset()


_QUIT_S = 5 * GRACE_S


class Launcher:
    """Starts trials of one target, one at a time; of several ranks each has its own.

    Each is a new interpreter, where processes can't be forked safely: on macOS system libraries
    fail after a fork of one that has torch loaded, and Windows has none.

    The end of a trial's process comes into the inbox as ``{"event": "exited", "status": …}`` from
    ``source``, or ``{"event": "not_started", "errno": …, "error": …}`` instead; ``None`` from there
    means that the launcher itself is gone.
    """

    source = LAUNCHER  # the name under which its own events come into the inbox

    def __init__(self, inbox: Inbox, directory: Path, local_rank: LocalRank | None = None) -> None:
        # Its logs are in the directory, which the caller removes; without a rank it is for a loader
        # by itself.
        self._inbox, self._directory = inbox, directory
        self._environ = None if local_rank is None else local_rank.environ
        self._count = 0  # of trials
        self._request: BuildRequest | None = None
        self._trial: ModuleProcess | None = None

    def build(self, request: BuildRequest) -> None:
        """Begin to build the target, to describe it and, where possible, to fork trials from."""
        self._request = request

    def built(self, patience_s: float = math.inf, limit: str = "--timeout") -> Built:
        """What was built, as ``built_by`` has it: here in a process of its own."""
        with open_log(self._directory / "build.log") as log:
            process = self._start(Inbox(), LAUNCHER, log)
            ended_by_itself_s = 0.0
            try:
                built = built_by(process, patience_s, limit)
                ended_by_itself_s = _QUIT_S
            finally:
                process.end(ended_by_itself_s)
        return built

    def launch(self, request: TrialRequest, log: IO[bytes]) -> tuple[Channel, str]:
        """Start a trial whose output goes to ``log``; ``not_started`` may follow, and why.

        It returns how to talk to it, and whose its messages are in the inbox.
        """
        self._count += 1
        process = self._trial = self._start(self._inbox, f"trial-{self._count}", log)
        with resource_limits("a thread that waits for a trial"):
            threading.Thread(target=self._await_exit, args=[process], daemon=True).start()
        process.order("trial", request=request)
        return process.channel, process.source

    def _start(self, inbox: Inbox, source: str, log: IO[bytes]) -> ModuleProcess:
        process = ModuleProcess(
            [sys.executable, "-m", "dlprof.trial.child"],
            what="a process for the trial",
            inbox=inbox,
            source=source,
            log=log,
            env=self._environ,
        )
        process.order("build", request=self._request)
        return process

    def _await_exit(self, process: ModuleProcess) -> None:
        status = process.status()
        process.kill(linger_s=GRACE_S)
        self._inbox.put(Received(LAUNCHER, {"event": "exited", "status": status}))

    def kill(self) -> None:
        """End the running trial and everything that it started; ``exited`` follows."""
        if self._trial is not None:
            self._trial.kill()

    def give_up(self) -> None:
        """Take its own process for dead, because no ``exited`` followed: the next is a new one."""

    def look(self) -> None:
        """Keep what its own process writes within bounds; called now and then."""

    def is_stopped(self) -> bool:
        """Whether a signal has stopped its own process, which starts and ends nothing then."""
        return False

    def close(self) -> None:
        """End everything."""
        self.kill()


_OF_STACK = re.compile(r'.*\(most recent call first\):$|  File "(.*/)?(runpy\.py|<frozen runpy>)"')


def built_by(process: ModuleProcess, patience_s: float, limit: str = "--timeout") -> Built:
    """What a process answers to the order to build; ``limit`` is the option that gives it longer.

    One that a signal has stopped never would: it is ended as soon, and counts as dead.

    Raises:
        BuilderDiedError: It died of it.
        DlprofError: The target can't be built, or not in time.
    """
    answer, left_s = None, patience_s
    while answer is None and left_s > 0:
        answer = process.answer(min(left_s, STOPPED_S))
        left_s -= STOPPED_S
        if answer is None and is_stopped(process.pid):
            process.kill()
            answer = Received(process.source, None)
    log = cast(TrialLog, process.log)
    if answer is None:
        stacks = itertools.chain(*hangs.collect([process.pid], log).values())
        frames = [
            frame
            for stack in stacks
            for frame in stack
            if not frame.file.startswith(OWN)
            and Path(frame.file).name not in {"runpy.py", "<frozen runpy>"}
        ]
        shown = without_own_lines(log.text())
        hint = f"Raise {limit} if it takes that long; the stack shows what it waits for."
        if not frames:  # it is within dlprof, and what is left of its stack is how that began
            hint = f"Raise {limit} if it takes that long."
            shown = "\n".join(line for line in shown.split("\n") if not _OF_STACK.match(line))
        loads = ("/torch/utils/data/dataloader.py", "/torch/utils/data/_utils/")
        if any(
            any(name in each.file for name in (*loads, "/torch/optim/optimizer.py"))
            and each.function != "<module>"  # which only imports it
            for each in frames
        ):
            # A script's main function does, or the script itself as it is imported.
            imports = "importlib" in frames[-1].file
            fix = f"{GUARD}, or profile it: dlprof run SCRIPT." if imports else NOT_A_SCRIPT
            hint = f"It loads batches or trains. {fix} Otherwise raise {limit}."
        raise TargetError(
            f"Building the target did not end within {format_duration(patience_s)}.",
            hint=hint,
            traceback=last_lines(shown),
        )
    if answer.message is None:
        raise BuilderDiedError(process.status(_QUIT_S), log)
    try:
        return built_of(answer.message)
    except TargetError as error:
        # Whoever calls sys.exit has printed why, as argparse does; the exception holds a number.
        if error.traceback.rstrip().rpartition("\n")[2].startswith("SystemExit"):
            error.traceback = f"{last_lines(log.text())}\n{error.traceback}".lstrip()
        raise


class ForkLauncher(Launcher):
    """Forks trials from a process that has torch imported and the target built."""

    def __init__(self, inbox: Inbox, directory: Path, local_rank: LocalRank | None = None) -> None:
        super().__init__(inbox, directory, local_rank)
        number = "" if local_rank is None else str(local_rank.rank)
        self.source = LAUNCHER + number
        self._file = open_log(directory / f"fork_server{number}.log")
        self._process = ModuleProcess(
            [sys.executable, "-m", "dlprof.trial.fork_server", str(directory)],
            what="the process that builds the target",
            inbox=inbox,
            source=self.source,
            log=self._file,
            env=self._environ,
            over_socket=True,
        )
        self._stuck = False
        if local_rank is not None and local_rank.cpus:
            with contextlib.suppress(OSError):  # it has died, which the inbox reports
                os.sched_setaffinity(self._process.pid, local_rank.cpus)

    def build(self, request: BuildRequest) -> None:
        """Order it of the fork server, so that several do it at once."""
        self._process.order("build", request=request)
        self._stuck = True

    def built(self, patience_s: float = math.inf, limit: str = "--timeout") -> Built:
        """What the fork server has built."""
        built = built_by(self._process, patience_s, limit)
        self._stuck = False
        return built

    def preload(self, request: BuildRequest) -> None:
        """Only import torch: each trial then builds the target for itself."""
        self._process.order("preload", request=request)

    def launch(self, request: TrialRequest, log: IO[bytes]) -> tuple[Channel, str]:
        """Fork a trial."""
        with resource_limits("a trial"):
            ours, theirs = socket.socketpair()
        with ours:
            channel = Channel.of_socket(ours)
        self._count += 1
        source = f"{self.source}-trial-{self._count}"
        line = line_of({"order": "trial", "request": request})
        link = cast(socket.socket, self._process.link)
        with theirs:
            # First, because without a listener there must be no trial.
            self._inbox.listen(source, channel.hear)
            with contextlib.suppress(OSError):  # the inbox reports a dead fork server
                socket.send_fds(link, [line], [theirs.fileno(), log.fileno()])
        return channel, source

    def kill(self) -> None:
        """Have the fork server end the running trial."""
        self._process.order("kill")

    def give_up(self) -> None:
        """Take the fork server for dead, because something stopped it; the inbox says so."""
        self._stuck = True
        self._process.kill()

    def look(self) -> None:
        """Keep the log of what the target's builder started within bounds."""
        cast(TrialLog, self._process.log).trim()

    def is_stopped(self) -> bool:
        """Whether a signal has stopped the fork server."""
        return is_stopped(self._process.pid)

    def close(self) -> None:
        """End the fork server, which ends its trial, or else end it by force."""
        self._process.end(0.0 if self._stuck else _QUIT_S)
        self._file.close()
