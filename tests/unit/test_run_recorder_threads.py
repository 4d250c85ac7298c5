"""Threads that begin to iterate the same loader at once, which is one loader all the same."""

from __future__ import annotations

import itertools
import threading
import types
from typing import Any

from dlprof.integrations.recorder import LoaderRecorder

PATIENCE_S = 0.3


class _Meeting:
    """A setting at which a second thread is waited for, so that both look at the loader at once."""

    def __init__(self) -> None:
        self.inside = threading.Semaphore(0)

    def __bool__(self) -> bool:
        self.inside.release()
        for _ in range(2):
            self.inside.acquire(timeout=PATIENCE_S)
        self.inside.release(2)
        return True


def _torch_like() -> Any:
    module: Any = types.ModuleType("dataloader")

    class _BaseDataLoaderIter:
        def __init__(self, loader: Any) -> None:
            self.source = iter(loader.dataset)

        def __next__(self) -> Any:
            return next(self.source)

    class DataLoader:
        num_workers, batch_size, prefetch_factor = 0, 1, None
        multiprocessing_context = None
        pin_memory = persistent_workers = False

        def __init__(self, dataset: Any) -> None:
            self.dataset, self.in_order = dataset, _Meeting()

        def __iter__(self) -> Any:
            return _BaseDataLoaderIter(self)

    module._BaseDataLoaderIter, module.DataLoader = _BaseDataLoaderIter, DataLoader
    return module


def test_threads_that_begin_at_once_share_one_loader() -> None:
    module, ticks = _torch_like(), itertools.count(1000, 1000)
    recorder = LoaderRecorder(clock=lambda: next(ticks), folder="")
    recorder.attach(module)
    loader = module.DataLoader([1, 2, 3])
    threads = [threading.Thread(target=iter, args=(loader,)) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    (seen,) = recorder.records()
    assert seen.made == 1
    assert not recorder.faults
