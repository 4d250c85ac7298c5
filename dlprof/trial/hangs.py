"""What a trial that makes no progress is called: from what it wrote, and where it stands."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import re
import sysconfig
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

import psutil

from dlprof.internals import WORKER_LOOPS
from dlprof.records import Failure, FailureKind
from dlprof.trial import failures
from dlprof.trial.processes import STACKS_SIGNAL, STOPPED_S, is_stopped
from dlprof.trial.runtime import TrialLog
from dlprof.trial.state import TrialState

_FRAME = re.compile(r'^  File "(?P<file>.+)", line (?P<line>\d+) in (?P<function>.+)$')
_LOOPS = ("/dlprof/trial/measure.py", "/dlprof/trial/probing.py")
_QUEUES = "multiprocessing/queues.py"
_ORDERS = (_QUEUES, "/queue.py")  # a process gets its orders from the one, a thread from the other
_FOREIGN = ("/torch/", "/multiprocessing/", "/dlprof/trial/", "<frozen ")


@dataclasses.dataclass(frozen=True, slots=True)
class Frame:
    """One line of a stack."""

    file: str
    line: int
    function: str

    def __str__(self) -> str:
        return f"{self.file}:{self.line} in {self.function}"


def parse_stacks(text: str) -> list[list[Frame]]:
    r"""The stacks in what faulthandler wrote, most recent call first.

    >>> text = 'Thread 0x01 (most recent call first):\n  File "a.py", line 3 in f\n'
    >>> parse_stacks(text)
    [[Frame(file='a.py', line=3, function='f')]]
    """
    stacks: list[list[Frame]] = []
    for line in text.splitlines():
        if line.endswith("(most recent call first):"):
            stacks.append([])
        elif stacks and (match := _FRAME.match(line)):
            stacks[-1].append(Frame(match["file"], int(match["line"]), match["function"]))
    return [stack for stack in stacks if stack]


def users_frame(stack: Sequence[Frame]) -> Frame | None:
    """The innermost frame that belongs to the user, not to torch, Python or dlprof.

    Only of a thread that runs the user's code for a loader: called by torch's loading, whether
    for a sample, a batch, an index or to prepare a worker, or by dlprof's loop for a batch or a
    step. What called torch is not it.
    """
    files = [frame.file for frame in stack]
    loads = (
        at for at, file in enumerate(files) if "/torch/utils/data/" in file or file.endswith(_LOOPS)
    )
    loading = next(loads, 0)
    standard = sysconfig.get_paths()["stdlib"]
    for frame in stack[:loading]:
        foreign = any(part in frame.file for part in _FOREIGN)
        if not foreign and (not frame.file.startswith(standard) or "site-packages" in frame.file):
            return frame
    return None


def awaits_work(stacks: Sequence[Sequence[Frame]]) -> bool:
    """Whether a process is a worker of torch's that has sent all it made and waits for indices.

    The stacks are those of all its threads, most recent call first.
    """
    return any(map(_waits_for_indices, stacks)) and not any(map(_is_sending, stacks))


def _waits_for_indices(stack: Sequence[Frame]) -> bool:
    """Whether a thread is torch's loop of a worker, in the queue from which it gets its orders."""
    loop = next((at for at, frame in enumerate(stack) if frame.function in WORKER_LOOPS), 0)
    above = stack[loop - 1] if loop else None
    return above is not None and above.function == "get" and above.file.endswith(_ORDERS)


def _is_sending(stack: Sequence[Frame]) -> bool:
    """Whether a thread is a queue's feeder that does anything but wait for something to send."""
    for at, frame in enumerate(stack):
        if frame.function == "_feed" and frame.file.endswith(_QUEUES):
            return not (at and stack[at - 1].function == "wait")
    return False


def collect(pids: Sequence[int], log: TrialLog) -> dict[int, list[list[Frame]]]:
    """The stacks of processes that have said that they answer; others are left alone.

    One after another, so that they don't write at the same time, and as many as there is time for.
    """
    found: dict[int, list[list[Frame]]] = {}
    # A fault may cost no more than its limit and 3 s.
    ends_s = time.monotonic() + 1.5
    for pid in pids:
        if not _has_signal(f"{pid}/status", "SigCgt"):  # to any other it would be the end
            continue
        before, aside = log.size(), _blocking(pid)
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.kill(pid, STACKS_SIGNAL)
            begins_s = min(ends_s, time.monotonic() + 0.3)
            while time.monotonic() < (begins_s if log.size() == before else ends_s):
                time.sleep(0.005)
                # It writes while the signal is before it, or blocked by a thread that handles it.
                writes = _has_signal(f"{pid}/status", "ShdPnd") or _blocking(pid) - aside
                if log.size() > before and not writes:
                    break
        found[pid] = parse_stacks(log.text(before))
        if time.monotonic() >= ends_s:
            break
    return found


def _blocking(pid: int) -> set[str]:
    with contextlib.suppress(OSError):  # it has ended
        threads = [task.name for task in Path(f"/proc/{pid}/task").iterdir()]
        return {each for each in threads if _has_signal(f"{pid}/task/{each}/status", "SigBlk")}
    return set()


def _has_signal(status: str, mask: str) -> bool:
    """Whether a mask of a process or a thread, such as ``SigCgt``, has the signal in it."""
    with contextlib.suppress(OSError, ValueError, IndexError):  # it may have ended
        text = Path(f"/proc/{status}").read_text().partition(f"{mask}:")[2]
        return bool(int(text.split(maxsplit=1)[0], 16) >> (STACKS_SIGNAL - 1) & 1)
    return False


def without_room(pids: Sequence[int]) -> list[tuple[int, int]]:
    """Of processes that have no room for another hand-over of shared memory, open files and most.

    The most is the soft limit.
    """
    found = []
    for pid in pids:
        with contextlib.suppress(psutil.Error, AttributeError):  # it has ended, or isn't on Linux
            process = psutil.Process(pid)
            count, most = process.num_fds(), process.rlimit(psutil.RLIMIT_NOFILE)[0]
            # That takes a descriptor for the connection over which it is asked for, one for itself,
            # and one for whatever is looked up meanwhile. Below 0 there is no limit.
            if 0 <= most < count + 3:
                found.append((count, most))
    return found


# Where multiprocessing's queue prints why it dropped a batch; the loader then waits for ever.
_FEEDER = re.compile(
    r"^Traceback \(most recent call last\):\n"
    r'(?:  .*\n)*?  File ".*queues\.py", line \d+, in _feed\n'
    r"(?:  .*\n)*(?P<error>\S.*)$",
    re.MULTILINE,
)
_NO_DESCRIPTORS = "[Errno 24]"
"""EMFILE, as Python names it in every language. A worker that can't accept a connection for want of
descriptors tries for ever, and prints this each time."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Standstill:
    """A trial from which no batch has come for too long."""

    waited_s: float  # for how long
    log: str  # the end of what its processes wrote
    stacks: Mapping[int, Sequence[Sequence[Frame]]]  # where they stand, by process
    idle: bool | None  # whether none of them used a core; ``None`` where that isn't known
    stopped: Sequence[int] = ()  # processes of it that a signal has stopped
    full: Sequence[tuple[int, int]] = ()  # of processes of it without room: ``without_room``


def dropped_batch(log: str) -> Failure | None:
    """The fault of a batch that a worker could not send, if the log shows one.

    The main process waits for that batch for ever. A queue of the user's own that drops something
    prints the very same: whether it was the loader's is what ``all_wait`` says.
    """
    found = _FEEDER.search(log)
    if found is None:
        return None
    error = found["error"]
    kind: FailureKind = "batch_not_picklable"
    what, hint = "send a batch to the main process", failures.SENDABLE_BATCH
    # First, because want of descriptors shows as shared memory that can't be opened.
    if "Too many open files" in error:
        kind, what, hint = "file_descriptors", "send a batch", failures.MORE_FILES
    elif "</torch_" in error or "No space left on device" in error:
        kind, what, hint = "shared_memory", "put a batch into /dev/shm", failures.MORE_SHM
    return Failure(
        kind=kind, message=f"A worker could not {what}: {error}", hint=hint, stderr_tail=log
    )


def all_wait(stacks: Mapping[int, Sequence[Sequence[Frame]]], workers: int) -> bool:
    """Whether every worker has done what it was asked and waits for more.

    The main process then waits for a batch that nobody makes any more: it was dropped.
    """
    return 0 < workers <= sum(map(awaits_work, stacks.values()))


def hang_of(standstill: Standstill) -> Failure:
    """Name a hang: by what its processes lack, by where they stand, or by the clock alone."""
    places = sorted(
        {
            str(frame)
            for stacks in standstill.stacks.values()
            for frame in map(users_frame, stacks)
            if frame is not None
        }
    )[:5]
    # While the user's code runs in a worker, what was dropped may have been in a queue of its own.
    if not places and (dropped := dropped_batch(standstill.log)) is not None:
        return dropped
    kind: FailureKind = "deadlock"
    where, hint = f"; it is at {', '.join(places)}." if places else ".", failures.UNLOCKED
    if standstill.stopped:
        where = f": process {standstill.stopped[0]}{failures.STOPPED}"
        hint = (
            "Something stopped it (SIGSTOP, a debugger, a batch system) and did not let it go on."
        )
    elif standstill.full or _NO_DESCRIPTORS in standstill.log:
        kind, hint = "file_descriptors", failures.MORE_FILES
        where = ": a process of the trial had too many open files."
        for count, most in standstill.full[:1]:
            where = f": a process of the trial has {count:,} files open and may have {most:,}."
    elif not standstill.idle:
        kind = "timeout"
        hint = failures.MORE_TIME.format(it="that line" if places else "loading it")
    message = f"No batch came for {standstill.waited_s:.0f} s{where}"
    return Failure(kind=kind, message=message, hint=hint, stderr_tail=standstill.log)


def find_hang(
    state: TrialState, log: TrialLog, now_s: float, *, stall_s: float, alone: bool = True
) -> Failure | None:
    """What a trial hangs for, if it does.

    A dropped batch, or one that is not handed over for want of descriptors, is known at once.
    One that a signal has stopped is known soon: it would go on only by another signal, and of
    several ranks all others wait for it. One that itself waits for others at the barrier of a step
    is not to blame. After ``stall_s`` of silence it hangs, whatever the reason.
    """
    silent_s = now_s - state.heard_s
    if silent_s > stall_s:
        standstill = _standstill(state, silent_s, log)
        if not alone and silent_s <= 2 * stall_s:
            stacks = (stack for each in standstill.stacks.values() for stack in each)
            barrier = "/dlprof/trial/rank_group.py"  # where a process waits for other ranks' step
            if any(frame.file.endswith(barrier) for stack in stacks for frame in stack):
                return None
        return hang_of(standstill)
    if silent_s <= state.asked_s:
        return None
    state.asked_s = silent_s + 1.0
    tree = [] if silent_s <= STOPPED_S or state.pid is None else _tree(state.pid)
    if stopped := [pid for pid in tree if is_stopped(pid)]:
        return hang_of(
            Standstill(waited_s=silent_s, log=log.text(), stacks={}, idle=None, stopped=stopped)
        )
    written = log.text()
    if dropped_batch(written) is None and _NO_DESCRIPTORS not in written:
        return None
    # To be asked where they stand costs them something; not to be asked, the rest of the limit.
    state.asked_s = silent_s + min(silent_s, 10.0)
    standstill = _standstill(state, silent_s, log)
    found = None
    if all_wait(standstill.stacks, state.workers):
        found = dropped_batch(standstill.log)
        # Workers that wait for work close no file, for which another thread of theirs waits.
        if found is None and standstill.full:
            found = hang_of(standstill)
    return found


def _standstill(state: TrialState, silent_s: float, log: TrialLog) -> Standstill:
    written = log.text()
    tree = [] if state.pid is None else _tree(state.pid)
    idle = None if state.busy_cores is None else state.busy_cores < 0.02
    return Standstill(
        waited_s=silent_s,
        log=written,
        stacks=collect(tree, log),
        idle=idle,
        stopped=[pid for pid in tree if is_stopped(pid)],
        full=without_room(tree),
    )


def _tree(pid: int) -> list[int]:
    try:
        return [pid, *(child.pid for child in psutil.Process(pid).children(recursive=True))]
    except psutil.Error:
        return [pid]
