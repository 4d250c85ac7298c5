"""The parts of torch's DataLoader that have no public name: asked for, and never assumed.

No other module names one. Where a torch has moved what tracing needs, :func:`untraceable` says so
in a sentence, and loaders are measured by the clock around ``next()`` alone. torch is imported by
no name here: whoever asks has loaded it.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Sequence
from types import ModuleType
from typing import Any

LOADING_MODULES = ("torch.utils.data._utils", "torch.utils.data.dataloader")
"""Modules that ask in which worker they run whatever the dataset does."""

WORKER_LOOPS = (
    "_worker_loop",
    # pytorch#161044 splits it, for workers that are threads:
    "_base_worker_loop",
    "_process_worker_loop",
    "_thread_worker_loop",
)
"""Functions in which a worker waits for indices, as a stack names them."""

WORKER = "pt_data_worker"
"""A worker's first thread, and with it the process, as the kernel shows it."""

PIN_THREAD = "pt_data_pin"
"""The thread that pins, as the kernel shows it. Workers that are threads pin by themselves."""

IN_WORKER = {
    "a worker process": "in DataLoader worker process",
    "a worker thread": "in DataLoader worker thread",
}
"""How an exception says that a worker raised it."""

OF_ITERABLES = "_InfiniteConstantSampler"
"""The class that torch puts in a sampler's place for an iterable dataset."""

_MAKER = "_get_iterator"

STEPS = {"index": "_next_index", "data": "_next_data"}
"""Methods of an iterator: draw the next indices; wait for the next batch."""

_TRACED = (
    ("torch.utils.data", "_DatasetKind.create_fetcher"),
    ("torch.utils.data._utils.worker", "_IterableDatasetStopIteration"),
    ("torch._utils", "ExceptionWrapper"),
    ("torch.utils.data.dataloader", "DataLoader._get_iterator"),
    ("torch.utils.data.dataloader", "_BaseDataLoaderIter._next_index"),
    ("torch.utils.data.dataloader", "_BaseDataLoaderIter._next_data"),
)
"""What tracing needs: modules, and names in them."""

_NO_TRACING = (
    "torch {version} has no {name}, by which stages are traced, so only the wait in next() is timed"
)
_IN_THREADS = (
    "its workers are threads, whose stages can't be traced, so only the wait in next() is timed"
)


def untraceable(loader: Any = None) -> str:
    """Why the stages of a loader can't be traced; empty where they can.

    Args:
        loader: A DataLoader; ``None`` to ask of this torch alone.
    """
    for module, name in _TRACED:
        if _find(module, name) is None:
            version = getattr(sys.modules.get("torch"), "__version__", "")
            return _NO_TRACING.format(version=version, name=f"{module}.{name}")
    return _IN_THREADS if works_in_threads(loader) else ""


def _find(module: str, name: str) -> Any:
    """What a dotted name in a module stands for; ``None`` where it is not there."""
    try:
        found: Any = importlib.import_module(module)
        for part in name.split("."):
            found = getattr(found, part)
    except (ImportError, AttributeError):
        return None
    return found


def works_in_threads(loader: Any) -> bool:
    """Whether the workers of a loader are threads of this process."""
    method = getattr(loader, "worker_method", None)
    return method == "thread" and bool(getattr(loader, "num_workers", 0))


def set_create_fetcher(create: Callable[..., Any]) -> Callable[..., Any]:
    """Have this process make the fetchers of its workers otherwise.

    Returns:
        What made them before.
    """
    kinds: Any = _find("torch.utils.data", "_DatasetKind")
    before: Callable[..., Any] = kinds.create_fetcher
    kinds.create_fetcher = staticmethod(create)
    return before


def words_of_workers() -> tuple[Any, Any]:
    """The classes of what a worker sends instead of a batch: of an exception, of its data's end."""
    return (
        _find("torch._utils", "ExceptionWrapper"),
        _find("torch.utils.data._utils.worker", "_IterableDatasetStopIteration"),
    )


def holders(name: str) -> list[ModuleType]:
    """The modules of torch's loading that have this name, such as ``get_worker_info``."""
    modules = map(
        sys.modules.get,
        ("torch.utils.data", "torch.utils.data.dataloader", "torch.utils.data._utils.worker"),
    )
    return [module for module in modules if module is not None and hasattr(module, name)]


def worker_info_class() -> Any:
    """The class of what ``get_worker_info()`` gives; ``None`` where there is none."""
    return _find("torch.utils.data._utils.worker", "WorkerInfo")


def iterator_class(module: ModuleType) -> type[Any]:
    """The class that all of torch's own iterators are derived from.

    Args:
        module: ``torch.utils.data.dataloader``, which may just be loading.
    """
    found: type[Any] = module._BaseDataLoaderIter  # noqa: SLF001 - all iterators share no public name
    return found


def iterator_maker(kind: Any) -> Callable[[Any], Any] | None:
    """The method by which loaders of a class make an iterator; ``None`` where there is none."""
    return getattr(kind, _MAKER, None)


def set_iterator_maker(owner: Any, make: Callable[..., Any] | None) -> None:
    """Have one loader, or all of a class, make their iterators otherwise.

    Args:
        owner: A loader or a class.
        make: The method; ``None`` gives a loader its class's again.
    """
    if make is not None:
        setattr(owner, _MAKER, make)
    elif _MAKER in getattr(owner, "__dict__", {}):
        delattr(owner, _MAKER)


def kept_iterator(loader: Any) -> Any:
    """The iterator whose workers outlive an epoch; ``None`` before there is one."""
    return getattr(loader, "_iterator", None)


def index_source(loader: Any) -> Any:
    """Where a loader takes its indices from; ``None`` where that isn't told."""
    return getattr(loader, "_index_sampler", None)


def told_length(loader: Any) -> int | None:
    """The samples that an iterable dataset promised when it was asked; ``None`` if it was not."""
    told = getattr(loader, "_IterableDataset_len_called", None)
    return told if isinstance(told, int) else None


def fetcher_of(iterator: Any) -> Any:
    """What fetches in the main process; ``None`` where workers do."""
    return getattr(iterator, "_dataset_fetcher", None)


def ready_queue(iterator: Any) -> Any:
    """The queue from which batches are yielded; ``None`` without workers."""
    return getattr(iterator, "_data_queue", None)


def workers_of(iterator: Any) -> Sequence[Any]:
    """The running workers that are processes, as far as an iterator has any."""
    workers: Sequence[Any] = getattr(iterator, "_workers", ())
    return [each for each in workers if hasattr(each, "sentinel")]


def passed_batches(iterator: Any) -> int:
    """Batches that an iterator has asked for and gone past; -1 where it won't say."""
    passed: int = getattr(iterator, "_rcvd_idx", -1)
    return passed


def ordered_batches(iterator: Any) -> int | None:
    """Batches that workers have made or are to make; ``None`` where that isn't known."""
    tasks = getattr(iterator, "_task_info", None)
    return len(tasks) if isinstance(tasks, dict) else None


def sent_batches(iterator: Any) -> int | None:
    """Of those the ones that workers have sent; ``None`` where that isn't known, as on macOS."""
    try:
        tasks = list(iterator._task_info.values())  # noqa: SLF001 - this module's subject
        queues = (iterator._worker_result_queue, iterator._data_queue)  # noqa: SLF001 - the same
        found = {id(each): each.qsize() for each in queues}  # without a pin thread they are one
    except (AttributeError, TypeError, NotImplementedError, OSError):
        return None
    return int(sum(found.values())) + sum(len(task) > 1 for task in tasks)


def shut_down(iterator: Any) -> None:
    """End the workers of an iterator, as torch does when it is collected."""
    end = getattr(iterator, "_shutdown_workers", None)
    if end is not None:
        end()
