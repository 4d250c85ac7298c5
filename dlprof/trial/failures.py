"""What a fault in a trial is called, and what to do about it."""

from __future__ import annotations

import dataclasses
import re
import signal
import traceback
from collections.abc import Iterator, Sequence

from dlprof.errors import TargetError
from dlprof.internals import IN_WORKER
from dlprof.records import Failure, Outcome
from dlprof.targets.faults import user_traceback
from dlprof.trial import remedies
from dlprof.trial.measure import EmptyLoaderError, WrongDataError
from dlprof.trial.room import remedy
from dlprof.trial.signs import SIGNS, Sign

_CRASH = re.compile(r"ERROR: Unexpected (?P<what>[\w -]+) encountered in worker")
_FORCED = re.compile(r"signal: Killed|SIGKILL")
_TRACEBACK = "Traceback (most recent call last)"
_GONE = "exited unexpectedly"  # and no more: torch's words where it doesn't know how
_RAISES_ANEW = "torch/_utils.py"
_COLLATE = "torch/utils/data/_utils/collate.py"
_FILE = re.compile(r'^  File "(?P<file>.+)", line \d+', re.MULTILINE)
_UNPICKLING = re.compile(
    r'multiprocessing/spawn\.py", line \d+, in _main\n.*pickle\.load\(.*\n'
    r"(?:  .*\n)*(?P<error>\S.*)$",
    re.MULTILINE,
)
# Where a worker answers a main process that asks for the descriptors of a batch.
_REFUSED = re.compile(
    r'multiprocessing/resource_sharer\.py", line \d+, in _serve\n'
    r"(?:  .*\n)*(?P<error>\S.*\[Errno 24\].*)$",
    re.MULTILINE,
)
_SENDING = "/multiprocessing/"
_STARTING = re.compile(r"/torch/|/(subprocess|threading)\.py$")
_HANDING_OVER = ("multiprocessing/connection.py", "multiprocessing/reduction.py")
_TAIL_LINES = 30
_TAIL_BYTES = 8192


def chain(error: BaseException) -> Iterator[BaseException]:
    """The exception and what it was raised from, innermost last; loops are cut."""
    seen: set[int] = set()
    current: BaseException | None = error
    while current is not None and id(current) not in seen:
        seen.add(id(current))
        yield current
        current = current.__cause__ or current.__context__


def classify(error: BaseException, exit_codes: Sequence[int] = ()) -> Failure:
    """Name what an exception out of the loader means.

    Args:
        error: As it came out of ``iter(loader)`` or ``next()``; the causes are looked at first,
            since the outer message is mostly "exited unexpectedly".
        exit_codes: Of the workers that have ended: minus the signal, or the code.
    """
    tail = user_traceback(error)
    own = _of_ours(error)
    if own is not None:
        return own
    name, texts = type(error).__name__, [_text(link) for link in chain(error)]
    passed = _passed_on(error)
    if passed is not None and not _from_worker(texts[0]):
        name, texts[0] = passed
        tail = last_lines(texts[0])
    said = list(zip(chain(error), texts, strict=True))
    for sign in SIGNS:
        found = next((text for link, text in reversed(said) if _shows(sign, link, text)), None)
        if found is not None and found.endswith(_GONE) and exit_codes:
            break
        if found is not None:
            return Failure(
                kind=sign.kind, message=_named(found, sign.text), hint=sign.hint, stderr_tail=tail
            )
    if lost_worker(error):
        return dataclasses.replace(_lost(error, exit_codes), stderr_tail=tail)
    if isinstance(error, SystemExit):
        return Failure(
            kind="worker_exit",
            message=f"The dataset called sys.exit({error.code!r}).",
            hint="Let it raise an exception that says what is wrong instead.",
            stderr_tail=tail,
        )
    if _not_alike(error, texts[0]):
        return Failure(
            kind="inconsistent_batches",
            message="torch's default_collate can't put the samples of a batch together: "
            f"{name}: {_told(name, texts[0])}",
            hint=remedies.ALIKE,
            stderr_tail=tail,
        )
    said_by = (name for name, said in IN_WORKER.items() if any(said in text for text in texts))
    where = next(said_by, "the main process")
    told = _told(name, texts[0])
    return Failure(
        kind="worker_exception",
        message=f"{name} in {where}: {told}" if told else f"{name} in {where}.",
        hint="The dataset or its collate_fn raised this; the traceback shows where."
        + (f" {remedies.TOO_LONG}" if isinstance(error, IndexError) else ""),
        stderr_tail=tail,
    )


def _from_worker(text: str) -> bool:
    """Whether it has torch's words for an exception that a worker passed on."""
    return any(said in text for said in IN_WORKER.values())


def _shows(sign: Sign, error: BaseException, text: str) -> bool:
    """Whether a message bears a sign, and did not get it from the user's own code."""
    if sign.text not in text:
        return False
    if not sign.common:
        return True
    files = [frame.filename for frame in traceback.extract_tb(error.__traceback__)]
    if _from_worker(text):
        files = _FILE.findall(text[: text.index(sign.text)])
    paths = [file.replace("\\", "/") for file in files]
    # Below multiprocessing all of it counts, since what it pickles may be the user's code.
    return not paths or any(_SENDING in path for path in paths) or bool(_STARTING.search(paths[-1]))


def _not_alike(error: BaseException, text: str) -> bool:
    """Whether torch's own default_collate stumbled over samples of different keys or types."""
    if not isinstance(error, KeyError | TypeError | IndexError | AttributeError | ValueError):
        return False
    files = [frame.filename for frame in traceback.extract_tb(error.__traceback__)]
    if _from_worker(text):
        files = _FILE.findall(text)
    return bool(files) and files[-1].replace("\\", "/").endswith(_COLLATE)


def _passed_on(error: BaseException) -> tuple[str, str] | None:
    """The name of a worker's exception and torch's message of it, where torch raises it anew.

    Torch fails at some, such as exception groups, and others can't be read: what it was about to
    raise tells more than what came out.
    """
    for frame, _ in traceback.walk_tb(error.__traceback__):
        if frame.f_code.co_name == "reraise" and frame.f_code.co_filename.endswith(_RAISES_ANEW):
            kind = getattr(frame.f_locals.get("self"), "exc_type", None)
            message = frame.f_locals.get("msg")
            if isinstance(kind, type) and isinstance(message, str):
                return kind.__name__, str(message)
    return None


def _told(name: str, text: str) -> str:
    """What an exception says, in one line, from its own message or from a traceback with it."""
    said = re.findall(rf"^[ |]*(?:[\w.]+\.)?{re.escape(name)}: (.*)$", text, re.MULTILINE)
    lines = said or text.strip().splitlines() or [""]
    # Of a message of several lines the first says what is wrong; of a traceback, the last.
    return lines[-1 if said or _TRACEBACK in text else 0].strip()[:300]


def _of_ours(error: BaseException) -> Failure | None:
    """The failure that an exception of dlprof's own stands for."""
    if isinstance(error, TargetError):
        return Failure(
            kind="target_error",
            message=error.message,
            hint=error.hint,
            stderr_tail=error.traceback,
        )
    if isinstance(error, EmptyLoaderError):
        return Failure(
            kind="empty",
            message="The loader yielded no batch.",
            hint="Check the dataset's length, the sampler, and drop_last with the batch size.",
        )
    if isinstance(error, WrongDataError):
        return Failure(kind=error.kind, message=str(error), hint=error.hint)
    return None


def lost_worker(error: BaseException) -> bool:
    """Whether a worker was gone, and the error doesn't tell how it ended."""
    if isinstance(error, RuntimeError):
        return _text(error).endswith(_GONE)
    return isinstance(error, (EOFError, OSError)) and any(
        frame.filename.endswith(_HANDING_OVER)
        for frame in traceback.extract_tb(error.__traceback__)
    )


def _lost(error: BaseException, exit_codes: Sequence[int]) -> Failure:
    """The failure of a worker of which at most its exit status is known."""
    if not exit_codes:
        message = f"The connection to a worker process broke: {type(error).__name__}: {error}"
        return Failure(kind="worker_exit", message=message, hint=remedies.ENDED)
    message = f"A worker process {ended(exit_codes[0])}."
    if exit_codes[0] < 0:
        hint = remedies.BY_SIGNAL.get(_signal_name(-exit_codes[0]), remedies.CRASHED)
        return Failure(kind="worker_signal", message=message, hint=hint)
    return Failure(kind="worker_exit", message=message, hint=remedies.ENDED)


def _text(error: BaseException) -> str:
    """The message of an exception, whose own ``__str__`` may raise."""
    try:
        return str(error)
    except Exception:  # noqa: BLE001 - as wrong as the user's code can be
        return ""


def _named(text: str, sign: str) -> str:
    """The line of a message that bears a sign."""
    return next(line for line in text.splitlines() if sign in line).strip()[:300]


def ended(status: int) -> str:
    """How a process ended, from its exit status: ``was ended by SIGKILL``."""
    return (
        f"was ended by {_signal_name(-status)}" if status < 0 else f"ended with exit code {status}"
    )


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def died(status: int, stderr_tail: str) -> Failure:
    """Name the death of the trial's main process.

    Args:
        status: As ``os.waitstatus_to_exitcode`` gives it: minus the signal, or the exit code.
        stderr_tail: What its processes wrote last.
    """
    if status < 0:
        return Failure(
            kind="worker_signal",
            message=f"The loading process {ended(status)}.",
            hint=remedies.BY_SIGNAL.get(_signal_name(-status), remedies.CRASHED),
            stderr_tail=stderr_tail,
        )
    return Failure(
        kind="worker_exit",
        message=f"The loading process {ended(status)} in the middle of the trial.",
        hint=remedies.ENDED,
        stderr_tail=stderr_tail,
    )


def not_started(number: int, reason: str) -> Failure:
    """Name a trial for which the system has no room: no process more, or no memory for one.

    Args:
        number: The ``errno``.
        reason: What the system says.
    """
    return Failure(
        kind="start_failed",
        message=f"The system does not start a process for the trial: {reason}.",
        hint=remedy(number),
    )


def blame_log(failure: Failure, log: str) -> Failure:
    """Name a worker's end for what was written down before it, where its exit status tells nothing.

    Torch's handler names a crash before the process ends, and Python what it can't unpickle.
    """
    if failure.kind != "worker_exit":
        return failure
    crash, unpickling, refused = (sign.search(log) for sign in (_CRASH, _UNPICKLING, _REFUSED))
    if crash is not None:
        message = f"A worker process crashed by a {crash['what']}."
        return dataclasses.replace(
            failure, kind="worker_signal", message=message, hint=remedies.CRASHED
        )
    if unpickling is not None:
        message = f"A worker could not unpickle what it was given: {unpickling['error'][:300]}"
        return dataclasses.replace(
            failure, kind="not_picklable", message=message, hint=remedies.PICKLABLE
        )
    if refused is not None:
        message = f"A worker could not hand over a batch: {refused['error'][:300]}"
        return dataclasses.replace(
            failure, kind="file_descriptors", message=message, hint=remedies.MORE_FILES
        )
    return failure


def blame_memory(failure: Failure) -> Failure:
    """Name a death by SIGKILL for what it was, where the kernel has killed for memory meanwhile."""
    if failure.kind != "worker_signal" or not _FORCED.search(failure.message):
        return failure
    return dataclasses.replace(
        failure,
        kind="out_of_memory",
        message=f"The kernel ran out of memory and killed a process ({failure.message})",
        hint=remedies.LESS_MEMORY,
    )


def outcome_of(failure: Failure) -> Outcome:
    """The one word for a failure."""
    if failure.kind in ("timeout", "deadlock"):
        return "timed_out"
    return "out_of_memory" if failure.kind == "out_of_memory" else "crashed"


def last_lines(text: str) -> str:
    """The end of a log, short enough to keep in a record."""
    return "\n".join(text[-_TAIL_BYTES:].splitlines()[-_TAIL_LINES:])
