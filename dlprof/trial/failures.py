"""What a fault in a trial is called, and what to do about it."""

from __future__ import annotations

import dataclasses
import re
import signal
import traceback
from collections.abc import Iterator, Sequence

from dlprof.errors import TargetError
from dlprof.records import Failure, FailureKind, Outcome
from dlprof.trial.measure import EmptyLoaderError, TruncatedEpochError

_CRASH = re.compile(r"ERROR: Unexpected (?P<what>[\w -]+) encountered in worker")
_FORCED = re.compile(r"signal: Killed|SIGKILL")
_IN_WORKER = "in DataLoader worker process"  # torch's words for an exception that it passed on
_GONE = "exited unexpectedly"  # and no more: torch's words where it doesn't know how
_HANDING_OVER = ("multiprocessing/connection.py", "multiprocessing/reduction.py")
_TAIL_LINES = 30
_TAIL_BYTES = 8192


@dataclasses.dataclass(frozen=True, slots=True)
class _Sign:
    """A text by which a fault is known, the kind it shows, and the remedy."""

    text: str
    kind: FailureKind
    hint: str


LESS_MEMORY = (
    "Use fewer workers, a smaller prefetch_factor or batch_size, or keep the data set's index in "
    "tensors or arrays instead of Python objects."
)
MORE_SHM = (
    "Use fewer workers, a smaller prefetch_factor or batch_size, or give /dev/shm more room "
    "(docker run --shm-size)."
)
MORE_FILES = "Raise the limit (ulimit -n), or try --sharing-strategy file_system."
_PICKLE = (
    "Define it at the top level of a module (no lambda, no nested function, no open file), or use "
    "--start-method fork."
)

_RAGGED = (
    "Make the samples of a batch alike (crop, pad or resize them), or give a collate_fn that puts "
    "different ones together."
)
_MORE_PROCESSES = (
    "The system starts no more processes here: use fewer workers, or raise the limit "
    "(ulimit -u, docker run --pids-limit)."
)
_TOO_LONG = " An IndexError may mean that __len__ promises more samples than there are."
_BY_SIGNAL = {
    "SIGKILL": "Something killed the worker, often the kernel for want of memory: use fewer "
    "workers.",
    "SIGBUS": "A file that the data set maps (a memmap) was cut off meanwhile, or /dev/shm is "
    "full.",
    "SIGALRM": "The data set, or a library that it uses, set an alarm and does not catch it.",
}
_ENDED = "The data set, or a library that it uses, ended its own process."
_CRASHED = "Native code under the data set crashed: run it at --num-workers 0 under faulthandler."

# Looked for in this order in the messages of the exception and its causes; the texts are torch's
# and the operating system's own.
_SIGNS = (
    # First, because want of descriptors shows as shared memory that can't be opened.
    _Sign("Too many open files", "file_descriptors", MORE_FILES),
    _Sign("insufficient shared memory", "shared_memory", MORE_SHM),
    _Sign("unable to write to file </torch_", "shared_memory", MORE_SHM),
    _Sign("unable to allocate shared memory", "shared_memory", MORE_SHM),
    _Sign("unable to resize file </torch_", "shared_memory", MORE_SHM),
    _Sign("No space left on device", "shared_memory", MORE_SHM),
    _Sign("received 0 items of ancdata", "file_descriptors", MORE_FILES),
    _Sign(
        "Cannot re-initialize CUDA in forked subprocess",
        "cuda_fork",
        "Keep CUDA out of the data set, or use --start-method spawn.",
    ),
    _Sign("Caught PicklingError in DataLoader worker", "batch_not_picklable", _PICKLE),
    _Sign("Can't pickle", "not_picklable", _PICKLE),
    _Sign("Can't get local object", "not_picklable", _PICKLE),
    _Sign("cannot pickle", "not_picklable", _PICKLE),
    _Sign("Cowardly refusing to serialize", "batch_not_picklable", _PICKLE),
    _Sign("Resource temporarily unavailable", "start_failed", _MORE_PROCESSES),
    _Sign("can't start new thread", "start_failed", _MORE_PROCESSES),
    _Sign("Cannot allocate memory", "start_failed", LESS_MEMORY),
    _Sign(
        "DataLoader timed out after",
        "timeout",
        "The loader's own timeout ran out: raise it, or find what makes a batch so slow.",
    ),
    _Sign("killed by signal: Killed", "worker_signal", _BY_SIGNAL["SIGKILL"]),
    _Sign(
        "killed by signal: Bus error",
        "worker_signal",
        _BY_SIGNAL["SIGBUS"],
    ),
    _Sign(
        "killed by signal: Alarm clock",
        "worker_signal",
        _BY_SIGNAL["SIGALRM"],
    ),
    _Sign("killed by signal", "worker_signal", _CRASHED),
    _Sign("exited unexpectedly", "worker_exit", _ENDED),
    _Sign("stack expects each tensor to be equal size", "inconsistent_batches", _RAGGED),
    _Sign("should be of equal size", "inconsistent_batches", _RAGGED),
    _Sign("Trying to resize storage that is not resizable", "inconsistent_batches", _RAGGED),
)


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
    tail = "".join(traceback.format_exception(error))[-_TAIL_BYTES:]
    own = _of_ours(error)
    if own is not None:
        return own
    texts = [_text(link) for link in chain(error)]
    for sign in _SIGNS:
        found = next((text for text in reversed(texts) if sign.text in text), None)
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
            message=f"The data set called sys.exit({error.code!r}).",
            hint="Let it raise an exception that says what is wrong instead.",
            stderr_tail=tail,
        )
    where = "a worker process" if any(_IN_WORKER in text for text in texts) else "the main process"
    told = _last_line(texts[0]).removeprefix(f"{type(error).__name__}: ")
    return Failure(
        kind="worker_exception",
        message=f"{type(error).__name__} in {where}: {told}",
        hint="The data set or its collate_fn raised this; the traceback shows where."
        + (_TOO_LONG if isinstance(error, IndexError) else ""),
        stderr_tail=tail,
    )


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
            hint="Check the data set's length, the sampler, and drop_last with the batch size.",
        )
    if isinstance(error, TruncatedEpochError):
        return Failure(
            kind="truncated",
            message=f"An epoch ended early without an error: {error}.",
            hint="Look for a StopIteration, such as next() on an empty iterator, in __getitem__ or "
            "collate_fn: torch takes it for the end of the epoch.",
        )
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
        return Failure(kind="worker_exit", message=message, hint=_ENDED)
    if exit_codes[0] < 0:
        name = _signal_name(-exit_codes[0])
        message = f"A worker process was ended by {name}."
        return Failure(kind="worker_signal", message=message, hint=_BY_SIGNAL.get(name, _CRASHED))
    message = f"A worker process ended with exit code {exit_codes[0]}."
    return Failure(kind="worker_exit", message=message, hint=_ENDED)


def _text(error: BaseException) -> str:
    """The message of an exception, whose own ``__str__`` may raise."""
    try:
        return str(error)
    except Exception:  # noqa: BLE001 - as wrong as the user's code can be
        return ""


def _named(text: str, sign: str) -> str:
    """The line of a message that bears a sign."""
    return next(line for line in text.splitlines() if sign in line).strip()[:300]


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def _last_line(text: str) -> str:
    """The line that names the exception in torch's message from a worker."""
    return text.strip().rpartition("\n")[2][:300]


def died(status: int, stderr_tail: str) -> Failure:
    """Name the death of the trial's main process.

    Args:
        status: As ``os.waitstatus_to_exitcode`` gives it: minus the signal, or the exit code.
        stderr_tail: What its processes wrote last.
    """
    if status < 0:
        return Failure(
            kind="worker_signal",
            message=f"The loading process was ended by {_signal_name(-status)}.",
            hint="Native code under the data set crashed, or something killed the process.",
            stderr_tail=stderr_tail,
        )
    return Failure(
        kind="worker_exit",
        message=f"The loading process ended with exit code {status} in the middle of the trial.",
        hint=_ENDED,
        stderr_tail=stderr_tail,
    )


def blame_crash(failure: Failure, log: str) -> Failure:
    """Name a worker's end for the crash that torch's handler wrote down.

    It does so before the process ends, so that the log tells where the exit status was lost.
    """
    found = _CRASH.search(log)
    if failure.kind != "worker_exit" or found is None:
        return failure
    message = f"A worker process crashed by a {found['what']}."
    return dataclasses.replace(failure, kind="worker_signal", message=message, hint=_CRASHED)


def blame_memory(failure: Failure) -> Failure:
    """Name a death by SIGKILL for what it was, where the kernel has killed for memory meanwhile."""
    if failure.kind != "worker_signal" or not _FORCED.search(failure.message):
        return failure
    return dataclasses.replace(
        failure,
        kind="out_of_memory",
        message=f"The kernel ran out of memory and killed a process ({failure.message})",
        hint=LESS_MEMORY,
    )


def outcome_of(failure: Failure) -> Outcome:
    """The one word for a failure."""
    if failure.kind in ("timeout", "deadlock"):
        return "timed_out"
    return "out_of_memory" if failure.kind == "out_of_memory" else "crashed"


def last_lines(text: str) -> str:
    """The end of a log, short enough to keep in a record."""
    return "\n".join(text[-_TAIL_BYTES:].splitlines()[-_TAIL_LINES:])
