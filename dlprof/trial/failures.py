"""What a fault in a trial is called, and what to do about it."""

from __future__ import annotations

import contextlib
import dataclasses
import errno
import re
import signal
import traceback
from collections.abc import Iterator, Sequence

from dlprof.errors import DlprofError, NothingMeasuredError, TargetError
from dlprof.internals import IN_WORKER
from dlprof.records import ONCE, Failure, FailureKind
from dlprof.records.trial import Outcome
from dlprof.targets.faults import user_traceback
from dlprof.trial.measure import EmptyLoaderError, WrongDataError

LESS_MEMORY = (
    "Use fewer workers, a smaller prefetch_factor or batch_size, or keep the dataset's index in "
    "tensors or arrays instead of Python objects."
)
FREE_MEMORY = (
    "Free memory on this machine, or raise what this session may use (ulimit -v, docker run "
    "--memory)."
)
MORE_SHM = (
    "Use fewer workers, a smaller prefetch_factor or batch_size, or give /dev/shm more room "
    "(docker run --shm-size)."
)
MORE_FILES = "Raise the limit (ulimit -n), or try --sharing-strategy file_system."
MORE_FILES_HERE = "Raise the limit of open files (ulimit -n), or end what holds so many."
FREE_DISK = "Free room where temporary files are, or name another place for them (TMPDIR)."
PICKLABLE = (
    "Define it at the top level of a module (no lambda, no nested function, no open file), or use "
    "--start-method fork."
)
SENT_SOONER = "Use --start-method fork, keep less in the dataset"
SENDABLE_BATCH = (
    "Return tensors without a gradient, numbers, text, containers of them and objects of "
    "classes at the top level of a module; no open file, lock, generator or lambda."
)
ALIKE = (
    "Make the samples of a batch alike in keys, shapes and lengths. Or give a collate_fn that "
    "pads them or keeps them in a list."
)
NOT_NONE = (
    "A sample, or a part of one, is None. Leave it out of the dataset, or give a collate_fn that "
    "drops it."
)
COLLATABLE = "Return tensors, arrays, numbers, text or containers of them, or give a collate_fn."
MORE_PROCESSES = (
    "The system starts no more processes here: use fewer workers, or raise the limit "
    "(ulimit -u, docker run --pids-limit)."
)
UNLOCKED = (
    "Nothing is being computed. Look for a lock held, or a thread pool used, before the workers "
    "were forked: --start-method spawn avoids both. Or storage or a server doesn't answer; raise "
    "--timeout (a sixth of it may pass without a batch) or --budget if it only answers late."
)
MORE_TIME = (
    "Raise --timeout (a sixth of it may pass without a batch) or --budget if batches are that "
    "slow; otherwise {it} doesn't end."
)
NO_CUDA = "Keep CUDA out of the dataset, or use --start-method spawn."
DEVICE_FULL = "The device's memory is full: dlprof machine shows who is on it; or use --device cpu."
NOT_PINNED = "Only memory of the CPU can be pinned: use --pin-memory off, or yield CPU tensors."
OWN_TIMEOUT = "The loader's own timeout ran out: raise it, or find what makes a batch so slow."
TOO_LONG = "An IndexError may mean that __len__ promises more samples than there are."
ENDED = (
    "The dataset, or a library that it uses, ended its own process: look for sys.exit and os._exit."
)
CRASHED = "Native code under the dataset crashed: run it at --num-workers 0 under faulthandler."
BY_SIGNAL = {
    "SIGKILL": "Something killed it, often the kernel's out-of-memory killer: use fewer workers, "
    "or a smaller batch.",
    "SIGBUS": "Either /dev/shm is full: use fewer workers, or give it more room (docker run "
    "--shm-size). Or a file that is mapped (memmap) was cut off: write it again.",
    "SIGTERM": "Another program ended it, such as a batch system whose time is over: give it more "
    "time, or measure less.",
    "SIGXCPU": "A limit of CPU time ended it (ulimit -t): raise it, or measure less.",
    "SIGALRM": "The dataset, or a library that it uses, set an alarm and does not catch it: handle "
    "SIGALRM there.",
}
"""By the name of the signal that ended a worker, or the process that loads."""


@dataclasses.dataclass(frozen=True, slots=True)
class Sign:
    """A text by which a fault is known, the kind it shows, and the remedy."""

    text: str  # what torch or the operating system says
    kind: FailureKind  # the fault that it shows
    hint: str  # the remedy
    # Whether the user's own code may say the same of something else, such as of a file that is
    # locked or of a full disk: it then counts only where loading itself said it.
    common: bool = False


# Looked for in this order in the messages of the exception and its causes; the texts are torch's
# and the operating system's own.
SIGNS = (
    # First, because want of descriptors shows as shared memory that can't be opened.
    Sign("Too many open files", "file_descriptors", MORE_FILES),
    Sign("insufficient shared memory", "shared_memory", MORE_SHM),
    Sign("unable to write to file </torch_", "shared_memory", MORE_SHM),
    Sign("unable to allocate shared memory", "shared_memory", MORE_SHM),
    Sign("unable to resize file </torch_", "shared_memory", MORE_SHM),
    Sign("No space left on device", "shared_memory", MORE_SHM, common=True),
    Sign("received 0 items of ancdata", "file_descriptors", MORE_FILES),
    Sign("Cannot re-initialize CUDA in forked subprocess", "cuda_fork", NO_CUDA),
    Sign("CUDA out of memory", "worker_exception", DEVICE_FULL),
    Sign("CUDA error: out of memory", "worker_exception", DEVICE_FULL),
    Sign("only dense CPU tensors can be pinned", "worker_exception", NOT_PINNED),
    Sign("Caught PicklingError in DataLoader worker", "batch_not_picklable", SENDABLE_BATCH),
    Sign("Can't pickle", "not_picklable", PICKLABLE, common=True),
    Sign("Can't get local object", "not_picklable", PICKLABLE, common=True),
    Sign("cannot pickle", "not_picklable", PICKLABLE, common=True),
    Sign("Cowardly refusing to serialize", "batch_not_picklable", SENDABLE_BATCH),
    Sign("Resource temporarily unavailable", "start_failed", MORE_PROCESSES, common=True),
    Sign("can't start new thread", "start_failed", MORE_PROCESSES),
    Sign("Cannot allocate memory", "start_failed", LESS_MEMORY, common=True),
    Sign("DataLoader timed out after", "timeout", OWN_TIMEOUT),
    Sign("killed by signal: Killed", "worker_signal", BY_SIGNAL["SIGKILL"]),
    Sign("killed by signal: Bus error", "worker_signal", BY_SIGNAL["SIGBUS"]),
    Sign("killed by signal: Alarm clock", "worker_signal", BY_SIGNAL["SIGALRM"]),
    Sign("killed by signal: Terminated", "worker_signal", BY_SIGNAL["SIGTERM"]),
    Sign("killed by signal: CPU time limit", "worker_signal", BY_SIGNAL["SIGXCPU"]),
    Sign("killed by signal", "worker_signal", CRASHED, common=True),
    Sign("exited unexpectedly", "worker_exit", ENDED, common=True),
    Sign("stack expects each tensor to be equal size", "inconsistent_batches", ALIKE),
    Sign("should be of equal size", "inconsistent_batches", ALIKE),
    Sign("Trying to resize storage that is not resizable", "inconsistent_batches", ALIKE),
    Sign("expected Tensor as element", "inconsistent_batches", ALIKE),
    Sign("default_collate: batch must contain", "worker_exception", COLLATABLE),
)

_CRASH = re.compile(r"ERROR: Unexpected (?P<what>[\w -]+) encountered in worker")
_FORCED = re.compile(r"signal: Killed|SIGKILL")
STOPPED = " of it is stopped."  # how the message of a hang ends whose process a signal has stopped
_TRACEBACK = "Traceback (most recent call last)"
_GONE = "exited unexpectedly"  # and no more: torch's words where it doesn't know how
_RAISES_AGAIN = "torch/_utils.py"
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


def as_failure(error: DlprofError, kind: FailureKind = "start_failed") -> Failure:
    """A trial's failure that an error of dlprof's own is."""
    return Failure(kind=kind, message=error.message, hint=error.hint, stderr_tail=error.traceback)


def as_error(
    failure: Failure, kind: type[DlprofError] = NothingMeasuredError, message: str = ""
) -> DlprofError:
    """The error that a failure is where there is no trial to have it; with other words, if any."""
    return kind(message or failure.message, hint=failure.hint, traceback=failure.stderr_tail)


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

    Its causes are looked at first, since the outer message is mostly "exited unexpectedly". The
    exit codes are those of the workers that have ended: minus the signal, or the code.
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
            is_none = sign.hint in (ALIKE, COLLATABLE) and "NoneType" in found
            hint = NOT_NONE if is_none else sign.hint
            return Failure(
                kind=sign.kind, message=_named(found, sign.text), hint=hint, stderr_tail=tail
            )
    if lost_worker(error):
        broke = f"The connection to a worker process broke: {type(error).__name__}: {error}"
        lost = Failure(kind="worker_exit", message=broke, hint=ENDED)
        if exit_codes:
            lost = _by_status(f"A worker process {ended(exit_codes[0])}.", exit_codes[0])
        return dataclasses.replace(lost, stderr_tail=tail)
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
            f"{name}: {_summary(name, texts[0])}",
            hint=NOT_NONE if "NoneType" in texts[0] else ALIKE,
            stderr_tail=tail,
        )
    said_by = (name for name, said in IN_WORKER.items() if any(said in text for text in texts))
    where = next(said_by, "the main process")
    summary = _summary(name, texts[0])
    return Failure(
        kind="worker_exception",
        message=f"{name} in {where}: {summary}" if summary else f"{name} in {where}.",
        hint="The dataset or its collate_fn raised this; the traceback shows where."
        + (f" {TOO_LONG}" if isinstance(error, IndexError) else ""),
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
    paths = _files(error, text, text[: text.index(sign.text)])
    # Below multiprocessing all of it counts, since what it pickles may be the user's code.
    return not paths or any(_SENDING in path for path in paths) or bool(_STARTING.search(paths[-1]))


def _not_alike(error: BaseException, text: str) -> bool:
    """Whether torch's own default_collate stumbled over samples of different keys or types."""
    if not isinstance(error, KeyError | TypeError | IndexError | AttributeError | ValueError):
        return False
    files = _files(error, text, text)
    return bool(files) and files[-1].endswith(_COLLATE)


def _files(error: BaseException, text: str, of_worker: str) -> list[str]:
    """The files that an exception came through: of a worker's, as its traceback names them."""
    files = [frame.filename for frame in traceback.extract_tb(error.__traceback__)]
    if _from_worker(text):
        files = _FILE.findall(of_worker)
    return [file.replace("\\", "/") for file in files]


def _passed_on(error: BaseException) -> tuple[str, str] | None:
    """The name of a worker's exception and torch's message of it, where torch raises it again.

    Torch fails at some, such as exception groups, and others can't be read: what it was about to
    raise says more than what came out.
    """
    for frame, _ in traceback.walk_tb(error.__traceback__):
        if frame.f_code.co_name == "reraise" and frame.f_code.co_filename.endswith(_RAISES_AGAIN):
            kind = getattr(frame.f_locals.get("self"), "exc_type", None)
            message = frame.f_locals.get("msg")
            if isinstance(kind, type) and isinstance(message, str):
                return kind.__name__, str(message)
    return None


def _summary(name: str, text: str) -> str:
    """What an exception says, in one line, from its own message or from a traceback with it."""
    said = re.findall(rf"^[ |]*(?:[\w.]+\.)?{re.escape(name)}: (.*)$", text, re.MULTILINE)
    lines = said or text.strip().splitlines() or [""]
    # Of a message of several lines the first says what is wrong; of a traceback, the last.
    return lines[-1 if said or _TRACEBACK in text else 0].strip()[:300]


def _of_ours(error: BaseException) -> Failure | None:
    """The failure that an exception of dlprof's own stands for."""
    if isinstance(error, TargetError):
        return as_failure(error, "target_error")
    if isinstance(error, EmptyLoaderError) and error.epochs:
        once = f"{ONCE[0].upper()}{ONCE[1:]}"
        return Failure(kind="empty", message="An epoch after the first gave no batch.", hint=once)
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
    """Whether a worker was gone, and the error doesn't say how it ended."""
    if isinstance(error, RuntimeError):
        return _text(error).endswith(_GONE)
    return isinstance(error, (EOFError, OSError)) and any(
        frame.filename.endswith(_HANDING_OVER)
        for frame in traceback.extract_tb(error.__traceback__)
    )


def _by_status(message: str, status: int) -> Failure:
    if status < 0:
        hint = BY_SIGNAL.get(_signal_name(-status), CRASHED)
        return Failure(kind="worker_signal", message=message, hint=hint)
    return Failure(kind="worker_exit", message=message, hint=ENDED)


def _text(error: BaseException) -> str:
    """The message of an exception, whose own ``__str__`` may raise."""
    try:
        return str(error)
    except Exception:  # as wrong as the user's code can be
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
    """Name the death of a trial's process by its exit status: minus the signal, or the code."""
    when = "" if status < 0 else " in the middle of the trial"
    failure = _by_status(f"The loading process {ended(status)}{when}.", status)
    return dataclasses.replace(failure, stderr_tail=stderr_tail)


def not_started(number: int, reason: str) -> Failure:
    """Name a trial for which the system has no room, by the ``errno`` and what the system says."""
    return Failure(
        kind="start_failed",
        message=f"The system does not start a process for the trial: {reason}.",
        hint=_REMEDIES.get(number, MORE_PROCESSES),
    )


def blame_log(failure: Failure, log: str) -> Failure:
    """Name a worker's end for what was written down before it, where its exit status says nothing.

    Torch's handler names a crash before the process ends, and Python what it can't unpickle.
    """
    if failure.kind != "worker_exit":
        return failure
    crash, unpickling, refused = (sign.search(log) for sign in (_CRASH, _UNPICKLING, _REFUSED))
    if crash is not None:
        message = f"A worker process crashed by a {crash['what']}."
        return dataclasses.replace(failure, kind="worker_signal", message=message, hint=CRASHED)
    if unpickling is not None:
        message = f"A worker could not unpickle what it was given: {unpickling['error'][:300]}"
        return dataclasses.replace(failure, kind="not_picklable", message=message, hint=PICKLABLE)
    if refused is not None:
        message = f"A worker could not hand over a batch: {refused['error'][:300]}"
        return dataclasses.replace(
            failure, kind="file_descriptors", message=message, hint=MORE_FILES
        )
    return failure


def blame_memory(failure: Failure) -> Failure:
    """Name a death by SIGKILL for what it was, where the kernel has killed for memory during it."""
    if failure.kind != "worker_signal" or not _FORCED.search(failure.message):
        return failure
    return dataclasses.replace(
        failure,
        kind="out_of_memory",
        message=f"The kernel ran out of memory and killed a process ({failure.message})",
        hint=LESS_MEMORY,
    )


def was_hit(failure: Failure) -> bool:
    """Whether a signal that no target sends itself ended or stopped the process that loads."""
    ended_so = failure.kind == "worker_signal" and bool(_FORCED.search(failure.message))
    return ended_so or (failure.kind == "deadlock" and failure.message.endswith(STOPPED))


def outcome_of(failure: Failure) -> Outcome:
    """The one word for a failure."""
    if failure.kind in ("timeout", "deadlock"):
        return "timed_out"
    return "out_of_memory" if failure.kind == "out_of_memory" else "crashed"


def last_lines(text: str) -> str:
    """The end of a log, short enough to keep in a record."""
    return "\n".join(text[-8192:].splitlines()[-30:])


_REMEDIES = {
    errno.EAGAIN: MORE_PROCESSES,
    errno.ENOMEM: FREE_MEMORY,
    errno.ENOSPC: FREE_DISK,
    errno.EDQUOT: FREE_DISK,
    errno.EMFILE: MORE_FILES_HERE,
    errno.ENFILE: MORE_FILES_HERE,
}


class ResourceLimitError(NothingMeasuredError):
    """The system has no room for what is to be started."""


@contextlib.contextmanager
def resource_limits(what: str) -> Iterator[None]:
    """Say plainly that there is no room for what is started within, named for people."""
    try:
        yield
    except OSError as error:
        if error.errno not in _REMEDIES:
            raise
        reason = error.strerror or str(error)
        raise ResourceLimitError(
            f"The system does not start {what}: {reason}.", hint=_REMEDIES[error.errno]
        ) from error
    except RuntimeError as error:  # threading's own words
        if "can't start new thread" not in str(error):
            raise
        raise ResourceLimitError(
            f"The system does not start {what}: {error}.", hint=MORE_PROCESSES
        ) from error
