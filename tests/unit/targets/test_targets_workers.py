"""What is set inside a worker."""

from __future__ import annotations

import os
import pickle
import sys
import types
from typing import Any

import pytest
import torch
import torch.multiprocessing
from torch.utils.data import BatchSampler, DataLoader, SequentialSampler

from dlprof.records import Config
from dlprof.targets.build import build_from_object
from dlprof.targets.loader import make_loader
from dlprof.targets.workers import WorkerSetup, limit_threads, settings_of, start_method_of

_NUMBERS: Any = [1, 2]


@pytest.fixture(autouse=True)
def environment(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Give threads and variables back as they were."""
    monkeypatch.setattr(os, "environ", dict(os.environ))
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


def test_all_pools_are_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[object] = []
    pools = types.SimpleNamespace(threadpool_limits=lambda limits: asked.append(("pools", limits)))
    opencv = types.SimpleNamespace(setNumThreads=asked.append)
    arrow = types.SimpleNamespace(set_cpu_count=lambda count: asked.append(("arrow", count)))
    monkeypatch.setitem(sys.modules, "cv2", opencv)
    monkeypatch.setitem(sys.modules, "pyarrow", arrow)
    monkeypatch.setitem(sys.modules, "threadpoolctl", pools)
    limit_threads(2)
    assert torch.get_num_threads() == 2
    assert asked == [2, ("arrow", 2), ("pools", 2)]
    assert os.environ["OMP_NUM_THREADS"] == "2"


def test_pools_that_are_not_there_are_passed_over(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "cv2", None)
    monkeypatch.setitem(sys.modules, "threadpoolctl", None)
    limit_threads(1)
    assert torch.get_num_threads() == 1


def test_the_user_s_own_function_is_called_last(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[object] = []
    monkeypatch.setattr(torch.multiprocessing, "set_sharing_strategy", asked.append)
    WorkerSetup(asked.append, "file_system", None)(3)
    assert asked == ["file_system", 3]
    WorkerSetup(None, None, None)(0)
    assert len(asked) == 2


def test_the_threads_that_were_asked_for_outlast_the_user_s_own_function() -> None:
    WorkerSetup(lambda _worker: torch.set_num_threads(4), None, 2)(0)
    assert torch.get_num_threads() == 2


def test_it_is_put_in_only_where_asked_for() -> None:
    built = build_from_object([1, 2, 3], batch_size=2)

    def setup(config: Config) -> Any:
        loader: Any = make_loader(built, config)
        return loader.worker_init_fn

    assert setup(Config(num_workers=1)) is None
    assert setup(Config(worker_threads=2)) is None  # no workers
    found = setup(Config(num_workers=1, worker_threads=2))
    assert pickle.loads(pickle.dumps(found)) == WorkerSetup(None, None, 2)


def _guard() -> None:
    """What is called first in a worker."""


@pytest.mark.parametrize("asked", ["as configured", "by the target's own function"])
def test_a_guard_is_put_in_where_workers_do_not_inherit_it(asked: str) -> None:
    """How workers start, the loader says: a function may start them by copy by itself."""

    def make(num_workers: int, batch_size: int = 1) -> DataLoader[int]:
        batches = BatchSampler(SequentialSampler(_NUMBERS), batch_size, drop_last=False)
        return DataLoader(
            _NUMBERS,
            batch_sampler=batches,
            num_workers=num_workers,
            multiprocessing_context="spawn" if num_workers else None,
        )

    own = asked == "by the target's own function"
    built = build_from_object(make if own else [1, 2, 3], batch_size=2)

    def guarded(method: str | None) -> bool:
        config = Config(num_workers=1, batch_size=2, start_method=method)
        setup: Any = make_loader(built, config, in_worker=_guard)
        return bool(setup.worker_init_fn == WorkerSetup(None, None, None, _guard))

    assert guarded(None if own else "spawn")
    if not own:
        assert not guarded("fork")


def test_how_workers_start_is_asked_of_the_configuration_then_of_the_loader() -> None:
    spawned: DataLoader[int] = DataLoader(_NUMBERS, num_workers=1, multiprocessing_context="spawn")
    assert start_method_of(spawned) == "spawn"
    assert start_method_of(spawned, Config(num_workers=1)) == "spawn"
    assert start_method_of(spawned, Config(num_workers=1, start_method="fork")) == "fork"
    threads = type("Threads", (type(spawned.multiprocessing_context),), {"_name": "threads"})
    spawned.multiprocessing_context = threads()  # as MONAI's, whose workers are threads
    assert settings_of(spawned)["start_method"] is None
    usual = torch.multiprocessing.get_all_start_methods()[0]
    assert start_method_of() == (torch.multiprocessing.get_start_method(allow_none=True) or usual)
