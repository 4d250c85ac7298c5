"""One side of a check, seen from outside: the process that loads blocks, started and ended here."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import cast

from dlprof.errors import DlprofError, NothingMeasuredError, TargetError, UsageError
from dlprof.records import Config, Failure
from dlprof.records.codec import from_json
from dlprof.records.gate import Block
from dlprof.records.gate import Side as SideName
from dlprof.trial.failures import as_error, as_failure, died, last_lines
from dlprof.trial.launch import BuilderDiedError, Built, built_by
from dlprof.trial.processes import SharedMemoryWatch
from dlprof.trial.protocol import BlockRequest, BuildRequest, Message
from dlprof.trial.runtime import GRACE_S, Inbox, ModuleProcess, TrialLog, open_log
from dlprof.units import format_duration

_SIGNS = ("ModuleNotFoundError", "ImportError", "Unknown option")
"""What Python writes where it lacks something that the check itself needs."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class SidePlace:
    """Where the code of one side lies, and what runs it."""

    directory: Path  # working directory; first on ``sys.path``
    python: str = sys.executable  # the interpreter
    # Beginnings of ``sys.path`` entries that lie elsewhere for this side, and where.
    moved: tuple[tuple[str, str], ...] = ()


@dataclasses.dataclass(eq=False)
class SideProcess:
    """A process that holds one built target warm and loads blocks of it.

    A process that fails is stood up again for the next block.
    """

    name: SideName  # which side
    request: BuildRequest  # how to build the target
    place: SidePlace  # where its code lies
    _: dataclasses.KW_ONLY
    # A directory that holds ``dlprof`` and nothing else; the code that measures is the same on both
    # sides, whatever the working directory or the environment hold.
    library: Path
    logs: Path  # directory for what its processes write; the caller removes it after ``close``
    limit: str = "--timeout"  # the option that gives it more time for an answer
    pulse: Callable[[], object] = lambda: None  # called now and then while an answer takes its time
    _process: ModuleProcess | None = dataclasses.field(default=None, init=False)
    _ending: contextlib.ExitStack = dataclasses.field(
        default_factory=contextlib.ExitStack, init=False
    )
    """What is done when the process is ended."""
    _config: Config | None = dataclasses.field(default=None, init=False)
    _build_s: float = dataclasses.field(default=20.0, init=False)
    _began_s: float = dataclasses.field(default=0.0, init=False)
    _fault: Failure | None = dataclasses.field(default=None, init=False)
    """Why the last block could not even be ordered."""

    def begin(self) -> None:
        """Start the process, and have it import torch and build the target meanwhile."""
        place, shared, self._began_s = self.place, SharedMemoryWatch(), time.monotonic()
        # The user's environment, dlprof's own code first, and one order of sets for both sides.
        paths = filter(None, (str(self.library), os.environ.get("PYTHONPATH", "")))
        env = {"PYTHONHASHSEED": "0", **os.environ, "PYTHONPATH": os.pathsep.join(paths)}
        with contextlib.ExitStack() as ending:
            ending.callback(shared.clear, self.logs)
            log = ending.enter_context(open_log(self.logs / f"{self.name}.log"))
            self._process = process = ModuleProcess(
                [place.python, "-P", "-m", "dlprof.trial.warm"],
                what=f"the process of the {self.name}",
                inbox=Inbox(self.pulse),
                source=self.name,
                log=log,
                cwd=place.directory,
                env=env,
            )
            ending.callback(process.end, 1.0)
            ending.callback(process.resume)
            self._ending = ending.pop_all()
        process.order(
            "build",
            request=self.request,
            moved=[list(pair) for pair in place.moved],
            temporary=str(self.logs),
        )

    def build(self, patience_s: float) -> Built:
        """Build the target in the process, ``patience_s`` after that began at most.

        It is begun unless it was before.
        """
        self._build_s, python = patience_s, self.place.python
        if self._process is None:
            self.begin()
        left_s = max(1.0, patience_s - (time.monotonic() - self._began_s))
        try:
            return built_by(cast(ModuleProcess, self._process), left_s, self.limit)
        except BuilderDiedError as died_of:
            tail = died_of.traceback
            if python == sys.executable:
                raise TargetError(died_of.message, hint=died_of.hint, traceback=tail) from None
            lines = tail.splitlines() or [died_of.message]
            sign = next((line for line in lines if line.startswith(_SIGNS)), lines[0])
            raise UsageError(
                f"{python} can't run a check: {sign}",
                hint="It has to be Python 3.11 or later with torch and psutil installed.",
                traceback=tail,
            ) from None

    def open(self, config: Config, patience_s: float) -> bool:
        """Make the loader of its blocks with some settings, within ``patience_s``.

        Returns whether its dataset keeps samples in the memory of each process.
        """
        self._config = config
        answer = self._ask("open", patience_s, config=config)
        if isinstance(answer, Failure):
            is_target = answer.kind == "target_error"
            raise as_error(answer, TargetError if is_target else NothingMeasuredError)
        return bool(answer["keeps"])

    def order(self, request: BlockRequest) -> None:
        """Ask for a block; ``collect`` gives it."""
        self._fault = self._stand_up(request)
        if self._process is not None:
            self._process.resume()
            self._process.order("block", request=request)

    def collect(self, patience_s: float) -> tuple[Block, Failure | None]:
        """The block that was ordered, and what went wrong where it has no figures.

        Loading it may take ``patience_s``.
        """
        if self._process is None:
            answer: Message | Failure = self._fault or died(1, "")
        else:
            answer = self._answer(patience_s)
        if isinstance(answer, Failure):
            self.close()
            return Block(side=self.name, failure=answer.message), answer
        if answer["runs_on"]:  # else what it loads ahead in the other side's turn costs it nothing
            cast(ModuleProcess, self._process).pause()
        return from_json(Block, {**answer["block"], "side": self.name}), None

    def close(self) -> None:
        """End the process and all that it has started."""
        self._process = None
        self._ending.close()

    def _stand_up(self, request: BlockRequest) -> Failure | None:
        """Replace a process that has failed by a warm one; why not, where that can't be done."""
        if self._process is not None or self._config is None:
            return None
        try:
            self.build(self._build_s)
            self.open(self._config, self._build_s)
        except DlprofError as error:
            self.close()
            return as_failure(error)
        free = dataclasses.replace(request, cores=())  # it learns of its threads again
        answer = self._ask("block", self._build_s, request=free)
        if not isinstance(answer, Failure):
            return None
        self.close()
        return answer

    def _ask(self, order: str, patience_s: float, **details: object) -> Message | Failure:
        cast(ModuleProcess, self._process).order(order, **details)
        return self._answer(patience_s)

    def _answer(self, patience_s: float) -> Message | Failure:
        """The next answer, or why there is none; one that is there already is taken at any time."""
        process = cast(ModuleProcess, self._process)
        answer = process.answer(max(1.0, patience_s))
        message = None if answer is None else answer.message
        if message is not None and message["event"] != "failed":
            return message
        tail = last_lines(cast(TrialLog, process.log).text())
        if answer is None:
            return Failure(
                kind="timeout",
                message=f"It did not answer within {format_duration(patience_s)}.",
                hint=f"Raise {self.limit} if batches are that slow or the machine is busy; "
                "otherwise the dataset hangs.",
                stderr_tail=tail,
            )
        if message is None:
            return died(process.status(GRACE_S), tail)
        failure = from_json(Failure, message["failure"])
        return dataclasses.replace(failure, stderr_tail=failure.stderr_tail or tail)
