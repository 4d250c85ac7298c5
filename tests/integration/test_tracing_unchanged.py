"""A traced loader gives, draws and leaves behind exactly what it does without a tracer."""

from __future__ import annotations

import gc
import random
import threading
from pathlib import Path
from typing import Any

import pytest
import torch
import tracing_kinds
from torch.utils.data import DataLoader
from tracing_kinds import KINDS, LENGTH
from waiting import until

from dlprof.records import Config
from dlprof.records.stages import AGE_STAGES
from dlprof.tracing.explain import explain
from dlprof.tracing.trace import Trace
from dlprof.tracing.tracer import Tracer

pytestmark = pytest.mark.filterwarnings("ignore")

FORK = pytest.mark.skipif(
    "fork" not in torch.multiprocessing.get_all_start_methods(), reason="no fork here"
)
MODES: dict[str, dict[str, Any]] = {
    "W=0": {},
    "W=0, pin_memory": {"pin_memory": True},
    "W=2": {"num_workers": 2},
    "W=2, worker_init_fn": {"num_workers": 2, "worker_init_fn": tracing_kinds.mark},
    "W=3, P=1": {"num_workers": 3, "prefetch_factor": 1, "timeout": 30},
    "persistent": {"num_workers": 2, "persistent_workers": True},
    "not in_order": {"num_workers": 1, "in_order": False},
    "fork": {"num_workers": 2, "multiprocessing_context": "fork"},
}
SLOW_MODES: dict[str, dict[str, Any]] = {
    "spawn": {
        "num_workers": 1,
        "multiprocessing_context": "spawn",
        "persistent_workers": True,
        "worker_init_fn": tracing_kinds.mark,
    },
    "forkserver": {
        "num_workers": 1,
        "multiprocessing_context": "forkserver",
        "persistent_workers": True,
    },
}


def epochs_of(mode: dict[str, Any]) -> int:
    """Two where they share an iterator, or cost nothing to start."""
    return 1 if mode.get("num_workers") and not mode.get("persistent_workers") else 2


def plain(value: Any) -> Any:
    """A batch as values that compare bit for bit."""
    if isinstance(value, torch.Tensor):
        return value.dtype, value.shape, value.tolist()
    if isinstance(value, dict):
        return {key: plain(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return type(value), [plain(each) for each in value]
    return value


def consumed(loader: Any, epochs: int) -> list[Any]:
    """All batches of some epochs, and the state of every generator after each."""
    seen = []
    for _ in range(epochs):
        seen.append([plain(batch) for batch in loader])
        seen.append([torch.get_rng_state().tolist(), random.getstate()])
    generator = loader.generator
    return [*seen, None if generator is None else generator.get_state().tolist()]


def observed(kind: str, mode: dict[str, Any], *, traced: bool) -> tuple[list[Any], Trace | None]:
    torch.manual_seed(7)
    random.seed(7)
    loader = KINDS[kind](**mode)
    if not traced:
        return consumed(loader, epochs_of(mode)), None
    before = dict(vars(loader))
    with Tracer(loader) as tracer:
        seen = consumed(loader, epochs_of(mode))
    after = dict(vars(loader))
    before.pop("_iterator")
    after.pop("_iterator")
    assert list(after) == list(before)
    assert all(after[name] is before[name] for name in before)
    return seen, tracer.trace()


def open_files() -> int:
    files = Path("/proc/self/fd")
    return len(list(files.iterdir())) if files.exists() else 0


def check(kind: str, mode: dict[str, Any]) -> None:
    expected, _ = observed(kind, mode, traced=False)
    gc.collect()
    threads, files = set(threading.enumerate()), open_files()
    seen, trace = observed(kind, mode, traced=True)
    gc.collect()
    assert seen == expected
    assert until(lambda: set(threading.enumerate()) <= threads, 20.0)
    assert open_files() <= files
    assert trace is not None
    check_trace(trace, [len(seen[2 * epoch]) for epoch in range(epochs_of(mode))])


def check_trace(trace: Trace, lengths: list[int]) -> None:
    assert trace.hooked
    assert not trace.unavailable
    assert [
        sum(row.epoch == epoch for row in trace.rows) for epoch in range(len(lengths))
    ] == lengths
    found = explain(trace, trial_id="t", config=Config())
    assert found.age_s is not None
    parts = [stage.mean_s for name in AGE_STAGES if (stage := found.stage(name)) is not None]
    assert sum(parts) == pytest.approx(found.age_s, rel=0.02)
    for row in trace.rows:
        made = row.made
        assert made is not None
        assert made.picked <= made.fetched <= made.collated <= row.yielded
        if made.worker >= 0:
            assert made.collated <= row.serialising <= row.serialised <= row.received
            assert row.received <= row.rebuilt <= row.yielded


@FORK
@pytest.mark.slow
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("kind", KINDS)
def test_nothing_changes(kind: str, mode: str) -> None:
    check(kind, MODES[mode])


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "mode"), [("iterable", "spawn"), ("chain", "forkserver"), ("own collate", "spawn")]
)
def test_nothing_changes_with_fresh_interpreters(kind: str, mode: str) -> None:
    check(kind, SLOW_MODES[mode])


@FORK
@pytest.mark.parametrize("kind", ["map", "iterable", "batch_size=None"])
@pytest.mark.parametrize("workers", [0, 2])
def test_each_sample_is_timed(kind: str, workers: int) -> None:
    _, trace = observed(kind, {"num_workers": workers}, traced=True)
    assert trace is not None
    samples = explain(trace, trial_id="t", config=Config()).samples
    assert samples is not None
    # The first batch of each worker, of four samples or one, is no usual one.
    first = workers * (1 if kind == "batch_size=None" else 4)
    assert samples.count == epochs_of({"num_workers": workers}) * LENGTH - first
    assert samples.median_s <= samples.p95_s <= samples.p99_s <= samples.max_s
    assert max(samples.slowest.values()) == samples.max_s
    assert all(0 <= int(index) < LENGTH for index in samples.slowest)


@FORK
@pytest.mark.parametrize("kind", ["__getitems__", "Subset of __getitems__"])
def test_whole_batches_have_no_single_samples(kind: str) -> None:
    _, trace = observed(kind, {"num_workers": 1}, traced=True)
    assert trace is not None
    found = explain(trace, trial_id="t", config=Config())
    assert found.samples is None
    assert "samples" in found.unavailable
    assert found.stage("fetch") is not None


@FORK
@pytest.mark.parametrize(
    ("kind", "names"),
    [("chain", ["0 double", "1 Jitter"]), ("sliced chain", ["0 Jitter", "1 double"])],
)
@pytest.mark.parametrize("workers", [0, 2])
def test_each_transform_is_timed(kind: str, names: list[str], workers: int) -> None:
    _, trace = observed(kind, {"num_workers": workers}, traced=True)
    assert trace is not None
    found = explain(trace, trial_id="t", config=Config()).transforms
    assert [each.name for each in found] == names
    assert all(each.mean_s > 0 for each in found)
    assert 0 < sum(each.share for each in found) <= 1


def test_a_chain_without_workers_is_given_back() -> None:
    loader = KINDS["sliced chain"]()
    transform: Any = loader.dataset
    steps = transform.transform.transforms
    with Tracer(loader):
        list(loader)
    assert transform.transform.transforms is steps


@FORK
def test_workers_end_as_soon_as_an_iterator_is_dropped() -> None:
    loader: DataLoader[Any] = KINDS["map"](num_workers=2)
    gc.collect()
    gc.disable()
    try:
        with Tracer(loader):
            iterator: Any = iter(loader)
            next(iterator)
            workers = iterator._workers
            del iterator
            assert not any(worker.is_alive() for worker in workers)
    finally:
        gc.enable()
