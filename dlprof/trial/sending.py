"""Tries out, in a disposable process, what torch sends between a loader's processes.

A batch that can't be sent is dropped by the worker, and the main process waits for it for ever; a
dataset that can't be pickled is no dataset for ``spawn`` and ``forkserver``. Both can be known
before a trial is spent on them.
"""

from __future__ import annotations

import dataclasses
import io
import multiprocessing
import pickle
from collections.abc import Mapping
from multiprocessing import connection
from multiprocessing.reduction import ForkingPickler
from typing import Any

from dlprof.records import Config, Failure, FailureKind
from dlprof.targets.faults import one_line, user_traceback
from dlprof.trial import failures, remedies

_BY_COPY = ("spawn", "forkserver")
_ITS_OWN = ("worker_exception", "not_picklable", "batch_not_picklable")
"""Kinds that lie in the object itself; others, such as a full /dev/shm, may not come again."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Parcel:
    """A batch as a worker would send it.

    Attributes:
        shared_bytes: Of tensors that go through shared memory; ``None`` if it can't be sent.
        descriptors: Pieces of shared memory, of which each takes descriptors on its way where
            ``file_descriptor`` is the sharing strategy; ``None`` likewise.
        failure: Why it can't be sent.
    """

    shared_bytes: int | None = None
    descriptors: int | None = None
    failure: Failure | None = None


def try_batch(batch: object) -> Parcel:
    """Pickle a batch as a worker does, but for the tensors' data, which stay where they are."""
    counter = _Counter()
    try:
        counter.dump(batch)
    except Exception as error:  # noqa: BLE001 - whatever the user's __reduce__ raises
        message = f"A worker can't send a batch to the main process: {one_line(error)}"
        return Parcel(
            failure=_failure(error, "batch_not_picklable", message, remedies.SENDABLE_BATCH)
        )
    return Parcel(shared_bytes=sum(counter.sizes.values()), descriptors=counter.descriptors)


class _Counter(ForkingPickler):
    """Pickles by torch's own rules and counts what would be shared instead of sharing it."""

    def __init__(self) -> None:
        import torch.multiprocessing  # noqa: PLC0415 - registers how tensors are pickled

        super().__init__(io.BytesIO(), pickle.HIGHEST_PROTOCOL)
        self.sizes: dict[int, int] = {}
        self.descriptors = 0
        self.dispatch_table[torch.UntypedStorage] = self._count

    def _count(self, storage: Any) -> tuple[type[bytes], tuple[()]]:
        if storage.nbytes() > 0:
            self.sizes[storage._cdata] = storage.nbytes()  # noqa: SLF001 - views share one storage
            self.descriptors += 1
        return bytes, ()


def try_start(loader: Any, config: Config) -> Failure | None:
    """Send what torch sends to a new worker to a process that is started as one.

    Args:
        loader: Made for ``config``, which has workers.
        config: Its start method counts, or else the loader's own, or the platform's.

    Returns:
        Why no worker can be started so; ``None`` if it can, or if that can't be told.
    """
    method = start_method_of(loader, config)
    if method not in _BY_COPY or not hasattr(loader, "dataset"):
        return None
    context: Any = multiprocessing.get_context(method)
    ours, theirs = context.Pipe(duplex=False)
    goods = _Goods(
        {
            "the dataset": loader.dataset,
            "collate_fn": getattr(loader, "collate_fn", None),
            "worker_init_fn": getattr(loader, "worker_init_fn", None),
        }
    )
    process = context.Process(target=_receive, args=(goods, theirs), daemon=True)
    try:
        process.start()
    except _PackingError as packing:
        return _not_picklable(packing, method)
    theirs.close()
    try:
        told: Mapping[str, str] | None = ours.recv()
    except EOFError:  # it ended without a word: that may have any reason
        told = None
    process.join()
    if told is None:
        return None
    return Failure(
        kind="not_picklable",
        message=f"A worker that is started by {method} can't unpickle {told['name']}: "
        f"{told['error']}",
        hint=remedies.PICKLABLE,
        stderr_tail=told["traceback"],
    )


def start_method_of(loader: Any, config: Config) -> str:
    """What a loader's workers are started by."""
    if config.start_method is not None:
        return config.start_method
    own = getattr(loader, "multiprocessing_context", None)
    return str(own.get_start_method() if own is not None else multiprocessing.get_start_method())


class _PackingError(Exception):
    """A part that can't be pickled; the cause says why."""

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.name = name


class _Goods:
    """Named objects that are pickled while a process is started, and unpickled when it asks."""

    def __init__(self, parts: Mapping[str, object]) -> None:
        self._parts = parts

    def __reduce__(self) -> tuple[type[_Packed], tuple[dict[str, bytes]]]:
        """Pickle each by itself, because locks and queues let themselves be sent only now."""
        return _Packed, ({name: _packed(name, part) for name, part in self._parts.items()},)


def _packed(name: str, part: object) -> bytes:
    try:
        return bytes(ForkingPickler.dumps(part))
    except Exception as error:
        raise _PackingError(name) from error


class _Packed:
    """The same in the new process."""

    def __init__(self, parts: Mapping[str, bytes]) -> None:
        self.parts = parts


def _receive(goods: _Packed, answer: connection.Connection) -> None:
    """In the new process: unpickle, and say what can't be; without a fault, say nothing."""
    for name, packed in goods.parts.items():
        try:
            ForkingPickler.loads(packed)
        except Exception as error:  # noqa: BLE001 - whatever the user's __setstate__ raises
            told = {"name": name, "error": one_line(error), "traceback": user_traceback(error)}
            answer.send(told)
            return
    answer.send(None)


def _not_picklable(packing: _PackingError, method: str) -> Failure | None:
    error = packing.__cause__ or packing
    message = (
        f"A worker that is started by {method} can't be sent {packing.name}: {one_line(error)}"
    )
    return _failure(error, "not_picklable", message, remedies.PICKLABLE)


def _failure(error: BaseException, kind: FailureKind, message: str, hint: str) -> Failure | None:
    """The failure, unless its reason lies in the surroundings and not in the object."""
    wanting = isinstance(error, OSError | MemoryError)
    if wanting or failures.classify(error).kind not in _ITS_OWN:
        return None
    return Failure(kind=kind, message=message, hint=hint, stderr_tail=user_traceback(error))
