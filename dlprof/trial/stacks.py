"""Where the processes of a trial that hangs stand: the lines of the user's code."""

from __future__ import annotations

import contextlib
import dataclasses
import faulthandler
import os
import re
import signal
import sysconfig
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dlprof.internals import WORKER_LOOPS

if TYPE_CHECKING:
    from dlprof.trial.runtime import TrialLog

_OWN: Any = getattr(signal, "SIGRTMAX", None)
STACKS_SIGNAL: Any = getattr(signal, "SIGUSR1", None) if _OWN is None else _OWN - 3
"""Asks a process of a trial to write down the stacks of its threads; ``None`` on Windows. A
real-time signal where there are some: trainings have handlers for SIGUSR1, which batch systems send
before they end a job, and to ask a trial of such a one would put the job into the queue again."""

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


def answer_with_stacks() -> None:
    """Have this process, and those forked from it, write their stacks when they are asked."""
    if STACKS_SIGNAL is not None:
        faulthandler.register(STACKS_SIGNAL, file=2, all_threads=True)  # stderr


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
