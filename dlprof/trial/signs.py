"""The texts of torch and of the operating system by which faults are known."""

from __future__ import annotations

import dataclasses

from dlprof.records import FailureKind
from dlprof.trial import remedies


@dataclasses.dataclass(frozen=True, slots=True)
class Sign:
    """A text by which a fault is known, the kind it shows, and the remedy.

    Attributes:
        text: What torch or the operating system says.
        kind: The fault that it shows.
        hint: The remedy.
        common: Whether the user's own code may say the same of something else, such as of a file
            that is locked or of a full disk: it then counts only where loading itself said it.
    """

    text: str
    kind: FailureKind
    hint: str
    common: bool = False


# Looked for in this order in the messages of the exception and its causes; the texts are torch's
# and the operating system's own.
SIGNS = (
    # First, because want of descriptors shows as shared memory that can't be opened.
    Sign("Too many open files", "file_descriptors", remedies.MORE_FILES),
    Sign("insufficient shared memory", "shared_memory", remedies.MORE_SHM),
    Sign("unable to write to file </torch_", "shared_memory", remedies.MORE_SHM),
    Sign("unable to allocate shared memory", "shared_memory", remedies.MORE_SHM),
    Sign("unable to resize file </torch_", "shared_memory", remedies.MORE_SHM),
    Sign("No space left on device", "shared_memory", remedies.MORE_SHM, common=True),
    Sign("received 0 items of ancdata", "file_descriptors", remedies.MORE_FILES),
    Sign(
        "Cannot re-initialize CUDA in forked subprocess",
        "cuda_fork",
        remedies.NO_CUDA,
    ),
    Sign("CUDA out of memory", "worker_exception", remedies.DEVICE_FULL),
    Sign("CUDA error: out of memory", "worker_exception", remedies.DEVICE_FULL),
    Sign("only dense CPU tensors can be pinned", "worker_exception", remedies.NOT_PINNED),
    Sign(
        "Caught PicklingError in DataLoader worker",
        "batch_not_picklable",
        remedies.SENDABLE_BATCH,
    ),
    Sign("Can't pickle", "not_picklable", remedies.PICKLABLE, common=True),
    Sign("Can't get local object", "not_picklable", remedies.PICKLABLE, common=True),
    Sign("cannot pickle", "not_picklable", remedies.PICKLABLE, common=True),
    Sign("Cowardly refusing to serialize", "batch_not_picklable", remedies.SENDABLE_BATCH),
    Sign("Resource temporarily unavailable", "start_failed", remedies.MORE_PROCESSES, common=True),
    Sign("can't start new thread", "start_failed", remedies.MORE_PROCESSES),
    Sign("Cannot allocate memory", "start_failed", remedies.LESS_MEMORY, common=True),
    Sign(
        "DataLoader timed out after",
        "timeout",
        remedies.OWN_TIMEOUT,
    ),
    Sign("killed by signal: Killed", "worker_signal", remedies.BY_SIGNAL["SIGKILL"]),
    Sign(
        "killed by signal: Bus error",
        "worker_signal",
        remedies.BY_SIGNAL["SIGBUS"],
    ),
    Sign(
        "killed by signal: Alarm clock",
        "worker_signal",
        remedies.BY_SIGNAL["SIGALRM"],
    ),
    Sign("killed by signal: Terminated", "worker_signal", remedies.BY_SIGNAL["SIGTERM"]),
    Sign("killed by signal: CPU time limit", "worker_signal", remedies.BY_SIGNAL["SIGXCPU"]),
    Sign("killed by signal", "worker_signal", remedies.CRASHED, common=True),
    Sign("exited unexpectedly", "worker_exit", remedies.ENDED, common=True),
    Sign("stack expects each tensor to be equal size", "inconsistent_batches", remedies.ALIKE),
    Sign("should be of equal size", "inconsistent_batches", remedies.ALIKE),
    Sign("Trying to resize storage that is not resizable", "inconsistent_batches", remedies.ALIKE),
    Sign("expected Tensor as element", "inconsistent_batches", remedies.ALIKE),
    Sign("default_collate: batch must contain", "worker_exception", remedies.COLLATABLE),
)
