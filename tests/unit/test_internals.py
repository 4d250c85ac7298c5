"""The one place that names torch's private parts: with this torch, and shapes of coming ones."""

from __future__ import annotations

import ast
import sys
import types
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.utils.data._utils.worker as torch_worker
from torch.utils.data import DataLoader

from dlprof import internals
from dlprof.tracing.tracer import Tracer
from dlprof.trial.failures import classify
from dlprof.trial.stacks import awaits_work, parse_stacks

PACKAGE = Path(__file__).parents[2] / "dlprof"
PRIVATE = {
    "_DatasetKind", "_IterableDatasetStopIteration", "_BaseDataLoaderIter", "_worker_loop",
    "_MultiProcessingDataLoaderIter", "_SingleProcessDataLoaderIter", "_get_iterator",
    "_index_sampler", "_IterableDataset_len_called", "_dataset_fetcher", "_data_queue",
    "_rcvd_idx", "_shutdown_workers", "_next_index", "_next_data", "_InfiniteConstantSampler",
    "create_fetcher", "pt_data_pin", "pt_data_worker", "_worker_result_queue", "_index_queues",
    "_send_idx", "_task_info", "_try_put_index", "_sampler_iter", "_workers_status",
}  # fmt: skip


def _names(path: Path) -> Iterator[str]:
    """Attributes, imported names and whole texts of a module."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Attribute):
            yield node.attr
        elif isinstance(node, ast.ImportFrom):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield node.value


def test_no_other_module_names_a_private_part_of_torch() -> None:
    own = {"create_fetcher", "_next_index"}  # functions of ours may be called as theirs are
    for path in PACKAGE.rglob("*.py"):
        if path.name != "internals.py":
            found = PRIVATE.intersection(_names(path)) - own
            assert not found, f"{path.name} names {found}: ask dlprof/internals.py"


def test_this_torch_has_all_that_is_asked_for() -> None:
    loader: Any = DataLoader([*range(8)])  # type: ignore[arg-type] # a list is indexed, too
    assert internals.untraceable(loader) == ""
    assert internals.iterator_class(sys.modules["torch.utils.data.dataloader"])
    assert internals.worker_info_class() is torch_worker.WorkerInfo
    assert internals.index_source(loader) is loader.batch_sampler
    assert len(internals.holders("get_worker_info")) >= 2


@pytest.mark.parametrize(
    ("owner", "name"),
    [
        (torch_worker, "_IterableDatasetStopIteration"),
        (torch._utils, "ExceptionWrapper"),
        (torch.utils.data._DatasetKind, "create_fetcher"),
    ],
)
def test_a_torch_that_has_moved_a_part_is_named_and_waits_are_timed(
    monkeypatch: pytest.MonkeyPatch, owner: Any, name: str
) -> None:
    loader: Any = DataLoader([*range(8)], batch_size=2)  # type: ignore[arg-type] # a list is indexed, too
    renamed = vars(owner)[name]
    monkeypatch.delattr(owner, name)
    tracer = Tracer(loader)
    with tracer:
        monkeypatch.setattr(owner, name, renamed, raising=False)  # torch itself goes on
        assert [batch.tolist() for batch in tracer] == [[0, 1], [2, 3], [4, 5], [6, 7]]
    trace = tracer.trace()
    assert len(trace.rows) == 4
    assert trace.hooked is False
    assert trace.unavailable["hooks"].startswith(f"torch {torch.__version__} has no torch.")
    assert f"{name}, by which stages are traced" in trace.unavailable["hooks"]


@pytest.mark.parametrize("loop", internals.WORKER_LOOPS)
@pytest.mark.parametrize("queues", ["multiprocessing/queues.py", "queue.py"])
def test_a_worker_that_waits_for_indices_is_known_by_any_of_its_names(
    loop: str, queues: str
) -> None:
    text = (
        "Thread 0x01 (most recent call first):\n"
        '  File "/lib/threading.py", line 331 in wait\n'
        f'  File "/lib/{queues}", line 180 in get\n'
        f'  File "/lib/torch/utils/data/_utils/worker.py", line 300 in {loop}\n'
        '  File "/lib/threading.py", line 982 in run\n'
    )
    assert awaits_work(parse_stacks(text))
    assert not awaits_work(parse_stacks(text.replace(" in get", " in fetch")))


@pytest.mark.parametrize("where", internals.IN_WORKER)
def test_an_exception_says_which_kind_of_worker_raised_it(where: str) -> None:
    error = ValueError(f"Caught ValueError {internals.IN_WORKER[where]} 0.\nValueError: broken")
    assert classify(error).message.startswith(f"ValueError in {where}")


def test_workers_that_are_threads_are_no_processes() -> None:
    process = types.SimpleNamespace(sentinel=3)
    iterator = types.SimpleNamespace(_workers=[object(), process])
    assert internals.workers_of(iterator) == [process]
    threaded = types.SimpleNamespace(worker_method="thread", num_workers=2)
    assert internals.works_in_threads(threaded)
    assert "threads" in internals.untraceable(threaded)
    assert not internals.works_in_threads(
        types.SimpleNamespace(worker_method="thread", num_workers=0)
    )
    assert not internals.works_in_threads(types.SimpleNamespace(num_workers=2))
