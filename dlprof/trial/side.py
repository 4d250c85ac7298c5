"""One side of a check, seen from outside: the process that loads blocks, started and ended here."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, BinaryIO, cast

from dlprof.errors import DlprofError, NothingMeasuredError, TargetError, UsageError
from dlprof.records import Config, Failure, Target
from dlprof.records.gate import Block
from dlprof.records.gate import Side as SideName
from dlprof.trial.failures import died, last_lines
from dlprof.trial.inbox import Inbox
from dlprof.trial.launch import built_of
from dlprof.trial.log import TrialLog, open_log
from dlprof.trial.processes import end_group
from dlprof.trial.protocol import BlockRequest, BuildRequest, Channel, Message
from dlprof.trial.temporary import SharedMemoryWatch
from dlprof.units import format_duration

_GRACE_S = 1.0
_QUIT_S = 1.0
_PATIENCE_S = 20.0
_SOURCE = "side"
_SIGNS = ("ModuleNotFoundError", "ImportError", "Unknown option")
"""What Python writes where it lacks something that the check itself needs."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class SidePlace:
    """Where the code of one side lies, and what runs it.

    Attributes:
        directory: Working directory; first on ``sys.path``.
        python: The interpreter.
        moved: Beginnings of ``sys.path`` entries that lie elsewhere for this side, and where.
        library: A directory that holds ``dlprof`` and nothing else; the code that measures is
            the same on both sides, whatever the working directory or the environment hold.
    """

    directory: Path
    python: str = sys.executable
    moved: tuple[tuple[str, str], ...] = ()
    library: Path


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class BuiltSide:
    """A target as the side that built it describes it.

    Attributes:
        target: The target.
        versions: ``torch`` and ``python``.
        file: Where its code stands; empty for a built-in or a live object.
        line: Its line there.
    """

    target: Target
    versions: Mapping[str, str]
    file: str = ""
    line: int | None = None


class SideProcess:
    """A process that holds one built target warm and loads blocks of it.

    A process that fails is stood up again for the next block.

    Args:
        name: Which side.
        request: How to build the target.
        place: Where its code lies.
        logs: Directory for what its processes write; the caller removes it after ``close``.
        limit: The option that gives it more time for an answer.
    """

    def __init__(
        self,
        name: SideName,
        request: BuildRequest,
        place: SidePlace,
        *,
        logs: Path,
        limit: str = "--timeout",
    ) -> None:
        self.name = name
        self._limit = limit
        self._request = request
        self._place = place
        self._path = logs / f"{name}.log"
        self._running: _Running | None = None
        self._config: Config | None = None
        self._build_s = _PATIENCE_S
        self._fault: Failure | None = None  # why the last block could not even be ordered

    def begin(self) -> None:
        """Start the process, and have it import torch and build the target meanwhile."""
        self._running = _Running(self._place, self._path, self._limit)
        order = {
            "build": dataclasses.asdict(self._request),
            "moved": [list(pair) for pair in self._place.moved],
            "temporary": str(self._path.parent),
        }
        self._running.send(order)

    def build(self, patience_s: float) -> BuiltSide:
        """Build the target in the process, which is started unless ``begin`` did.

        Args:
            patience_s: How long that may take.

        Raises:
            DlprofError: It can't be built, or not in time.
        """
        self._build_s = patience_s
        if self._running is None:
            self.begin()
        answer = cast(_Running, self._running).answer(patience_s)
        if isinstance(answer, Failure):
            raise _unbuilt(answer, self._place.python, self._limit)
        built = built_of(answer)
        file, line = answer["place"] or ("", None)
        return BuiltSide(target=built.target, versions=built.versions, file=file, line=line)

    def open(self, config: Config, patience_s: float) -> None:
        """Make the loader of its blocks.

        Args:
            config: The loader's settings.
            patience_s: How long that may take.

        Raises:
            TargetError: The target doesn't allow it.
            NothingMeasuredError: It can't be made.
        """
        self._config = config
        answer = self._ask({"open": dataclasses.asdict(config)}, patience_s)
        if isinstance(answer, Failure):
            kind = TargetError if answer.kind == "target_error" else NothingMeasuredError
            raise kind(answer.message, hint=answer.hint, traceback=answer.stderr_tail)

    def order(self, request: BlockRequest) -> None:
        """Ask for a block; ``collect`` gives it."""
        self._fault = self._stand_up(request)
        if self._running is not None:
            self._running.send({"block": dataclasses.asdict(request)})

    def collect(self, patience_s: float) -> tuple[Block, Failure | None]:
        """The block that was ordered, and what went wrong where it has no figures.

        Args:
            patience_s: How long loading it may take.
        """
        if self._running is None:
            answer: Message | Failure = self._fault or died(1, "")
        else:
            answer = self._running.answer(patience_s)
        if isinstance(answer, Failure):
            self.close()
            return Block(side=self.name, failure=answer.message), answer
        return _block(self.name, answer["block"]), None

    def close(self) -> None:
        """End the process and all that it has started."""
        running, self._running = self._running, None
        if running is not None:
            running.end()

    def _stand_up(self, request: BlockRequest) -> Failure | None:
        """Replace a process that has failed by a warm one; why not, where that can't be done."""
        if self._running is not None or self._config is None:
            return None
        try:
            self.build(self._build_s)
            self.open(self._config, self._build_s)
        except DlprofError as error:
            self.close()
            return Failure(
                kind="start_failed",
                message=error.message,
                hint=error.hint,
                stderr_tail=error.traceback,
            )
        free = dataclasses.replace(
            request, cores=()
        )  # what it learns of its threads it learns anew
        answer = self._ask({"block": dataclasses.asdict(free)}, self._build_s)
        if not isinstance(answer, Failure):
            return None
        self.close()
        return answer

    def _ask(self, order: Message, patience_s: float) -> Message | Failure:
        if self._running is None:
            raise AssertionError("a side is built first")
        self._running.send(order)
        return self._running.answer(patience_s)


class _Running:
    """The process itself, from its start to its end."""

    def __init__(self, place: SidePlace, log: Path, limit: str) -> None:
        self._limit = limit
        self._shared = SharedMemoryWatch()
        self._log = open_log(log)
        self._trial_log = TrialLog(self._log)
        self._process = subprocess.Popen(
            [place.python, "-P", "-m", "dlprof.trial.warm"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._log,
            cwd=place.directory,
            env=_environment(place),
            start_new_session=True,
        )
        reader, writer = self._process.stdout, self._process.stdin
        self._channel = Channel(cast(BinaryIO, reader), cast(BinaryIO, writer))
        self._inbox = Inbox()
        self._inbox.listen(_SOURCE, self._channel.hear)

    def send(self, message: Message) -> None:
        self._channel.send(message)

    def answer(self, patience_s: float) -> Message | Failure:
        """The next answer, or why there is none."""
        event = self._inbox.get(patience_s)
        self._trial_log.trim()
        if event is not None and event.message is not None and event.message["event"] != "failed":
            return event.message
        tail = last_lines(self._trial_log.text())
        if event is None:
            return Failure(
                kind="timeout",
                message=f"It did not answer within {format_duration(patience_s)}.",
                hint=f"Raise {self._limit} if batches are that slow; otherwise the dataset hangs.",
                stderr_tail=tail,
            )
        if event.message is None:
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(_GRACE_S)
            return died(self._process.returncode or 0, tail)
        failure = Failure(**event.message["failure"])
        return dataclasses.replace(failure, stderr_tail=failure.stderr_tail or tail)

    def end(self) -> None:
        self._channel.close_writing()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(_QUIT_S)
        end_group(self._process.pid, linger_s=0.0, grace_s=_GRACE_S, reap=self._process.poll)
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(_GRACE_S)
        self._log.close()
        self._shared.clear()


def _environment(place: SidePlace) -> dict[str, str]:
    """The user's, with dlprof's own code first, and one order of sets for both sides."""
    before = os.environ.get("PYTHONPATH", "")
    paths = os.pathsep.join(filter(None, (str(place.library), before)))
    return {"PYTHONHASHSEED": "0", **os.environ, "PYTHONPATH": paths}


def _unbuilt(failure: Failure, python: str, limit: str) -> DlprofError:
    """The error of a process that ended before it had said anything, or never said anything."""
    if failure.kind == "timeout":
        return TargetError(
            f"The process that builds the target is not done: {failure.message}",
            hint=f"Raise {limit} if importing and building take that long on this machine; "
            "otherwise the target hangs.",
            traceback=failure.stderr_tail,
        )
    if python != sys.executable:
        lines = failure.stderr_tail.splitlines() or [failure.message]
        sign = next((line for line in lines if line.startswith(_SIGNS)), lines[0])
        return UsageError(
            f"{python} can't run a check: {sign}",
            hint="It has to be Python 3.11 or later with torch and psutil installed.",
            traceback=failure.stderr_tail,
        )
    return TargetError(
        f"The process that builds the target failed: {failure.message}",
        hint="Import the target in a Python of your own to see why.",
        traceback=failure.stderr_tail,
    )


def _block(side: SideName, figures: Mapping[str, Any]) -> Block:
    columns: dict[str, Sequence[Any]] = {
        name: tuple(figures[name]) for name in ("service_s", "samples", "cores") if name in figures
    }
    return Block(side=side, **{**figures, **columns})
