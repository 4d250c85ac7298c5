"""What a trial that makes no progress is called: from what it wrote, and where it stands."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Mapping, Sequence

from dlprof.records import Failure
from dlprof.trial import remedies
from dlprof.trial.stacks import Frame, users_frame

# Where multiprocessing's queue prints why it dropped a batch; the loader then waits for ever.
_FEEDER = re.compile(
    r"^Traceback \(most recent call last\):\n"
    r'(?:  .*\n)*?  File ".*queues\.py", line \d+, in _feed\n'
    r"(?:  .*\n)*(?P<error>\S.*)$",
    re.MULTILINE,
)
_MOST_PLACES = 5


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Standstill:
    """A trial from which no batch has come for too long.

    Attributes:
        waited_s: For how long.
        log: The end of what its processes wrote.
        stacks: Where they stand, by process.
        idle: Whether none of them used a core; ``None`` where that isn't known.
        stopped: Processes of it that a signal has stopped.
    """

    waited_s: float
    log: str
    stacks: Mapping[int, Sequence[Sequence[Frame]]]
    idle: bool | None
    stopped: Sequence[int] = ()


def dropped_batch(log: str) -> Failure | None:
    """The fault of a batch that a worker could not send, if the log shows one.

    The main process is not told and waits for that batch for ever; this needs no waiting.
    """
    found = _FEEDER.search(log)
    if found is None:
        return None
    error = found["error"]
    # First, because want of descriptors shows as shared memory that can't be opened.
    if "Too many open files" in error:
        return Failure(
            kind="file_descriptors",
            message=f"A worker could not send a batch: {error}",
            hint=remedies.MORE_FILES,
            stderr_tail=log,
        )
    if "</torch_" in error or "No space left on device" in error:
        return Failure(
            kind="shared_memory",
            message=f"A worker could not put a batch into /dev/shm: {error}",
            hint=remedies.MORE_SHM,
            stderr_tail=log,
        )
    return Failure(
        kind="batch_not_picklable",
        message=f"A worker could not send a batch to the main process: {error}",
        hint=remedies.SENDABLE_BATCH,
        stderr_tail=log,
    )


def judge(standstill: Standstill) -> Failure:
    """Name a hang: by a dropped batch, by where the workers stand, or by the clock alone."""
    dropped = dropped_batch(standstill.log)
    if dropped is not None:
        return dropped
    places = sorted(
        {
            str(frame)
            for stacks in standstill.stacks.values()
            for frame in map(users_frame, stacks)
            if frame is not None
        }
    )[:_MOST_PLACES]
    where = f"; it stands at {', '.join(places)}" if places else ""
    message = f"No batch came for {standstill.waited_s:.0f} s{where}."
    if standstill.stopped:
        return Failure(
            kind="deadlock",
            message=f"No batch came for {standstill.waited_s:.0f} s: process "
            f"{standstill.stopped[0]} of it is stopped.",
            hint="Something stopped it (SIGSTOP, a debugger, a batch system) and did not let it "
            "go on.",
            stderr_tail=standstill.log,
        )
    if standstill.idle:
        return Failure(
            kind="deadlock",
            message=message,
            hint="Nothing is being computed: look for a lock held, or a thread pool used, before "
            "the workers were forked (--start-method spawn avoids both), or for storage or a "
            "server that doesn't answer.",
            stderr_tail=standstill.log,
        )
    return Failure(
        kind="timeout",
        message=message,
        hint="Raise --timeout if batches are that slow; otherwise that line doesn't end.",
        stderr_tail=standstill.log,
    )
