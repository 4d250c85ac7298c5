"""A DataLoader whose workers are threads, of the shape and the names that pytorch#161044 brings.

It is no code of torch's: only the names, the attributes and what calls what are as there, so that
what dlprof looks for in an iterator, a stack and an exception is where it will be. Its loops are
compiled under the name of the file that they will be in.
"""

from __future__ import annotations

import ctypes
import itertools
import queue
import threading
import time
from typing import Any

import torch
from torch._utils import ExceptionWrapper
from torch.utils.data import DataLoader, Dataset
from torch.utils.data.dataloader import _BaseDataLoaderIter

_LOOPS = compile(
    """
def _base_worker_loop(fetch, index_queue, data_queue, prefix, worker_id, init_fn):
    if init_fn is not None:
        init_fn(worker_id)
    while True:
        order = index_queue.get(timeout=5.0)
        if order is None:
            return
        number, indices = order
        try:
            batch = fetch(indices)
        except Exception:
            batch = ExceptionWrapper(where=f"in DataLoader {prefix} {worker_id}")
        data_queue.put((number, batch))


def _thread_worker_loop(fetch, index_queue, data_queue, worker_id, init_fn):
    set_thread_name("pt_thread_data_worker")
    _base_worker_loop(fetch, index_queue, data_queue, "worker thread", worker_id, init_fn)
""",
    torch.utils.data._utils.worker.__file__,
    "exec",
)


def _set_thread_name(name: str) -> None:
    ctypes.CDLL(None).prctl(15, name.encode()[:15], 0, 0, 0)  # PR_SET_NAME


_NAMES: dict[str, Any] = {"ExceptionWrapper": ExceptionWrapper, "set_thread_name": _set_thread_name}
exec(_LOOPS, _NAMES)  # as the module says


class _ThreadingDataLoaderIter(_BaseDataLoaderIter):
    def __init__(self, loader: Any) -> None:
        super().__init__(loader)
        self._prefetch_factor = loader.prefetch_factor or 2
        self._data_queue: queue.Queue[Any] = queue.Queue()
        self._index_queues = [queue.Queue[Any]() for _ in range(self._num_workers)]
        self._workers = [
            threading.Thread(
                target=_NAMES["_thread_worker_loop"],
                args=(self._fetch, orders, self._data_queue, number, loader.worker_init_fn),
                daemon=True,
            )
            for number, orders in enumerate(self._index_queues)
        ]
        for worker in self._workers:
            worker.start()
        self._start()

    def _fetch(self, indices: Any) -> Any:
        return self._collate_fn([self._dataset[index] for index in indices])

    def _reset(self, loader: Any, first_iter: bool = False) -> None:
        super()._reset(loader, first_iter)
        if not first_iter:
            self._start()

    def _start(self) -> None:
        self._send_idx = self._rcvd_idx = 0
        self._held: dict[int, Any] = {}
        self._turns = itertools.cycle(self._index_queues)
        for _ in range(self._prefetch_factor * self._num_workers):
            self._try_put_index()

    def _try_put_index(self) -> None:
        indices = next(self._sampler_iter, None)
        if indices is not None:
            next(self._turns).put((self._send_idx, indices))
            self._send_idx += 1

    def _next_data(self) -> Any:
        if self._rcvd_idx >= self._send_idx:
            if not self._persistent_workers:
                self._shutdown_workers()
            raise StopIteration
        while self._rcvd_idx not in self._held:
            number, batch = self._data_queue.get()
            self._held[number] = batch
        batch = self._held.pop(self._rcvd_idx)
        self._rcvd_idx += 1
        self._try_put_index()
        if isinstance(batch, ExceptionWrapper):
            batch.reraise()
        return batch

    def _shutdown_workers(self) -> None:
        for orders in self._index_queues:
            orders.put(None)

    def __del__(self) -> None:
        self._shutdown_workers()


class ThreadLoader(DataLoader[Any]):
    """A DataLoader with ``worker_method``, by default ``thread``."""

    def __init__(self, *args: Any, worker_method: str = "thread", **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.worker_method = worker_method

    def _get_iterator(self) -> Any:
        if self.num_workers and self.worker_method == "thread":
            return _ThreadingDataLoaderIter(self)
        return super()._get_iterator()


class Rows(Dataset[torch.Tensor]):
    """Rows that take a while, one of them for ever or with an error."""

    def __init__(self, length: int = 2000, *, failing: int = -1, hanging: int = -1) -> None:
        self.length, self.failing, self.hanging = length, failing, hanging

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: int) -> torch.Tensor:
        time.sleep(0.002)
        if index == self.failing:
            raise ValueError("this row is broken")
        while index == self.hanging:
            time.sleep(0.05)
        return torch.tensor([index])


def loader() -> Any:
    """Sound."""
    return ThreadLoader(Rows(), batch_size=4, num_workers=2)


def failing() -> Any:
    """One row raises."""
    return ThreadLoader(Rows(failing=37), batch_size=4, num_workers=2)


def hanging() -> Any:
    """One row never comes."""
    return ThreadLoader(Rows(hanging=37), batch_size=4, num_workers=2)
