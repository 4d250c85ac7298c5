"""How a target's samples were counted, before trials are spent on it."""

from __future__ import annotations

import dataclasses
import gc
import io
import itertools
import math
import multiprocessing
import pickle
import threading
import time
import types
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NoReturn

import pytest
import torch
from torch.utils.data import DataLoader, Dataset, Sampler, get_worker_info

from dlprof.errors import UsageError
from dlprof.records import Config, DatasetWeight
from dlprof.targets import weighing
from dlprof.targets.build import build_from_object
from dlprof.targets.grammar import parse_target
from dlprof.targets.loader import EpochGate
from dlprof.targets.workers import start_method_of
from dlprof.trial import child, probing, starting
from dlprof.trial.probing import try_batch, try_start
from dlprof.trial.protocol import BuildRequest, TrialRequest

CLASSES = torch.arange(5)


def batch(size: int) -> dict[str, torch.Tensor]:
    return {"classes": CLASSES, "x": torch.zeros(size, 5), "y": torch.zeros(size)}


@pytest.mark.parametrize(
    ("sizes", "batch_size", "found"),
    [
        ([4, 8], None, (8.0, "")),  # by the indices handed out
        ([4, 8, 8, 1], None, (8.0, "")),  # to a worker, two batches ahead
        (None, 8, (12.0, "")),
        (None, None, (12.0, "The second batch counts as 12 samples, by the length of batch['x'].")),
    ],
)
def test_only_what_nobody_says_is_reported(
    sizes: list[int] | None, batch_size: int | None, found: tuple[float, str]
) -> None:
    gate: Any = types.SimpleNamespace(sizes=sizes, attached=sizes is not None)
    built: Any = types.SimpleNamespace(target=types.SimpleNamespace(batch_size=batch_size))
    assert probing._samples_per_batch(gate, batch(8), batch(12), built) == found


def test_a_torch_that_is_too_old_is_named_before_anything_is_built(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Installers may put an older one beside dlprof, with no more than a warning."""
    monkeypatch.setattr(torch, "__version__", "2.5.1+cu124")
    with pytest.raises(UsageError, match=r"needs torch 2\.6 or newer, and") as raised:
        child.build(BuildRequest(target=parse_target("images")))
    assert raised.value.hint == "pip install 'torch>=2.6'"


@pytest.mark.parametrize(("limit_s", "evicted"), [(15.0, 5), (None, 1000)])
def test_a_look_has_time_left_when_it_has_made_the_cache_cold(
    monkeypatch: pytest.MonkeyPatch, limit_s: float | None, evicted: int
) -> None:
    """Else many files are more than it has, and the fork is taken for broken."""
    seconds, found, sent = itertools.count(), list[Path](), list[Any]()
    files = itertools.repeat(Path("a file"), 1000)  # each of which takes a second
    monkeypatch.setattr(child, "_clock", lambda: float(next(seconds)))
    monkeypatch.setattr(child, "probe", lambda *_: {})
    monkeypatch.setattr("dlprof.targets.files.dataset_files", lambda _dataset: files)
    monkeypatch.setattr("dlprof.targets.files.evict_from_page_cache", found.extend)
    channel = types.SimpleNamespace(send=sent.append)
    session: Any = types.SimpleNamespace(beat=lambda _now_s: None, channel=channel)
    built: Any = types.SimpleNamespace(parts=types.SimpleNamespace(dataset=None))
    request = TrialRequest(config=Config(), cold_cache=True, probe=True, limit_s=limit_s)
    child._run(request, lambda: built, session)
    assert sent == [{"event": "result", "probe": {}}]
    assert len(found) == evicted


def test_one_sample_at_a_time_is_reported() -> None:
    gate: Any = types.SimpleNamespace(sizes=None, attached=False)
    built: Any = types.SimpleNamespace(target=types.SimpleNamespace(batch_size=None))
    image = torch.zeros(3, 16, 16)
    shown = probing._samples_per_batch(gate, image, image, built)
    assert shown == (1.0, "The second batch counts as 1 sample.")


@pytest.mark.parametrize("sizes", [[8, 8], None])  # of an iterable dataset nobody says them
def test_batches_in_which_nothing_is_are_reported(sizes: list[int] | None) -> None:
    gate: Any = types.SimpleNamespace(sizes=sizes, attached=True)
    built: Any = types.SimpleNamespace(target=types.SimpleNamespace(batch_size=8))
    shown = probing._samples_per_batch(gate, None, None, built)
    assert shown == (sizes and 8.0, "Each batch is None: does collate_fn return it?")


SPAWN = Config(num_workers=1, start_method="spawn").canonical()


class Refuses:
    """Raises what it is given when it is pickled."""

    def __init__(self, error: Exception) -> None:
        self.error = error

    def __reduce__(self) -> NoReturn:
        raise self.error


class Wrapped:
    """A batch of the user's own class, whose tensors no walk over containers finds."""

    def __init__(self, tensor: torch.Tensor) -> None:
        self.hidden = tensor


class Numbers(Dataset[int]):
    """Samples that anybody can send."""

    def __init__(self, held: object = None) -> None:
        self.held = held

    def __len__(self) -> int:
        return 8

    def __getitem__(self, index: int) -> int:
        return index


def test_what_goes_through_shared_memory_is_counted() -> None:
    batch = {"image": torch.zeros(4, 8), "label": [torch.zeros(4), "text", 3]}
    parcel = try_batch(batch)
    assert (parcel.shared_bytes, parcel.descriptors) == (4 * 8 * 4 + 4 * 4, 2)
    assert parcel.failure is None


def test_tensors_of_the_user_s_own_classes_are_counted() -> None:
    assert try_batch(Wrapped(torch.zeros(16))).shared_bytes == 64


def test_views_share_their_storage_and_empty_tensors_have_none() -> None:
    whole = torch.zeros(100)
    parcel = try_batch([whole[:10], whole[10:], torch.zeros(0)])
    assert (parcel.shared_bytes, parcel.descriptors) == (400, 1)


def test_the_batch_stays_where_it_is() -> None:
    batch = torch.zeros(100)
    try_batch(batch)
    assert not batch.untyped_storage().is_shared()


def test_text_and_numbers_need_no_shared_memory() -> None:
    parcel = try_batch(["text", 3, b"bytes"])
    assert (parcel.shared_bytes, parcel.descriptors) == (0, 0)


@pytest.mark.parametrize(
    ("batch", "word"),
    [
        (lambda: (torch.zeros(3), io.StringIO), ""),
        (lambda: (torch.zeros(3), threading.Lock()), "lock"),
        (lambda: (torch.zeros(3), (number for number in range(3))), "generator"),
        (lambda: (torch.zeros(3), lambda: None), "lambda"),
        (lambda: torch.ones(3, requires_grad=True) * 2, "grad"),
        (lambda: Refuses(ValueError("not this one")), "not this one"),
    ],
)
def test_a_batch_that_can_not_be_sent(batch: Callable[[], object], word: str) -> None:
    failure = try_batch(batch()).failure
    if not word:
        assert failure is None
        return
    assert failure is not None
    assert failure.kind == "batch_not_picklable"
    assert word in failure.message
    assert failure.hint


@pytest.mark.parametrize("error", [OSError(24, "Too many open files"), MemoryError()])
def test_what_may_pass_is_no_fault_of_the_batch(error: Exception) -> None:
    parcel = try_batch(Refuses(error))
    assert parcel.failure is None
    assert parcel.shared_bytes is None


def test_a_dataset_that_can_not_be_pickled() -> None:
    """It needs no process to be found out."""
    before = set(multiprocessing.active_children())
    failure = try_start(DataLoader(Numbers(threading.Lock()), num_workers=1), SPAWN)
    assert failure is not None
    assert failure.kind == "not_picklable"
    assert "started by spawn can't be sent the dataset" in failure.message
    assert "--start-method fork" in failure.hint
    assert not set(multiprocessing.active_children()) - before


def test_the_part_that_can_not_be_pickled_is_named() -> None:
    loader = DataLoader(Numbers(), num_workers=1, collate_fn=lambda batch: batch)
    failure = try_start(loader, SPAWN)
    assert failure is not None
    assert "can't be sent collate_fn: " in failure.message


@pytest.mark.skipif(
    "fork" not in multiprocessing.get_all_start_methods(), reason="nothing is forked here"
)
def test_a_fork_needs_no_pickle() -> None:
    loader = DataLoader(Numbers(threading.Lock()), num_workers=1)
    assert try_start(loader, Config(num_workers=1, start_method="fork")) is None


def test_a_loader_of_another_kind_is_not_judged() -> None:
    assert try_start(iter([1, 2]), SPAWN) is None


def test_the_loader_s_own_context_counts_where_none_is_asked_for() -> None:
    loader: Any = DataLoader(Numbers(), num_workers=1, multiprocessing_context="spawn")
    assert start_method_of(loader, Config(num_workers=1)) == "spawn"
    assert start_method_of(loader, Config(num_workers=1, start_method="fork")) == "fork"


class _Raises(Dataset[torch.Tensor]):
    """Raises in the main process, as often as asked; in a worker waits so many seconds."""

    def __init__(self, times: float, worker_s: float = 0.0) -> None:
        self.left, self.worker_s = times, worker_s

    def __len__(self) -> int:
        return 8

    def __getitem__(self, index: int) -> torch.Tensor:
        if get_worker_info() is not None:
            time.sleep(self.worker_s)
        elif self.left > 0:
            self.left -= 1
            raise ConnectionError("no such bucket")
        return torch.zeros(2)


def _probed(dataset: Dataset[torch.Tensor], limit_s: float) -> Any:
    built = build_from_object(DataLoader(dataset, batch_size=2))
    return probing._begun(built, EpochGate(), limit_s)[4]


@pytest.mark.slow
def test_what_raises_once_is_tried_without_workers_again() -> None:
    assert _probed(_Raises(1), 30.0) is None
    assert isinstance(_probed(_Raises(math.inf), 30.0), ConnectionError)


@pytest.mark.parametrize("limit_s", [pytest.param(3.0, marks=pytest.mark.slow), 0.5])
def test_a_worker_that_hangs_does_not_hide_what_was_raised(limit_s: float) -> None:
    began_s = time.monotonic()
    with pytest.raises(ConnectionError, match="no such bucket"):
        _probed(_Raises(math.inf, worker_s=120.0), limit_s)
    assert time.monotonic() - began_s < 90.0
    gc.collect()  # what was raised kept the iterator, with whose end torch ends the worker
    assert not multiprocessing.active_children()


@pytest.mark.parametrize(("size", "limit_s", "asked"), [(2, 30.0, 1), (8, 30.0, 0), (2, 2.0, 0)])
def test_samples_are_asked_for_again_where_that_can_say_something(
    monkeypatch: pytest.MonkeyPatch, size: int, limit_s: float, asked: int
) -> None:
    """Not of an epoch of one batch, nor where there is time for a few samples alone."""
    limits, clock = list[float](), itertools.count(0.0, 0.2)
    monkeypatch.setattr(probing, "_clock", lambda: next(clock))  # each look at it takes 0.2 s
    monkeypatch.setattr(weighing, "by_memory", lambda _, limit_s, **_kw: limits.append(limit_s))
    built = build_from_object(DataLoader(_Raises(0), batch_size=size))
    found = probing.probe(built, TrialRequest(config=Config(), limit_s=limit_s))
    assert found["kept"] is None
    assert len(limits) == asked


class _Opening(Dataset[int]):
    """Opens with its first sample what can't be sent to a worker."""

    file: Any = None

    def __len__(self) -> int:
        return 64

    def __getitem__(self, index: int) -> int:
        self.file = self.file or open(__file__)
        return index


def test_workers_are_started_with_a_dataset_that_was_asked_for_no_sample(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def measure_start(loader: DataLoader[int], method: str) -> None:
        pickle.dumps(loader.dataset)
        tried.append(method)

    tried: list[str] = []
    monkeypatch.setattr(starting, "measure_start", measure_start)
    dataset = _Opening()
    built = build_from_object(DataLoader(dataset, batch_size=2))
    asked = TrialRequest(config=Config(num_workers=2), trial_s=60.0, weigh=True)
    probing.weigh_dataset(built, dataclasses.replace(asked, starts=("spawn", "forkserver")))
    assert tried == ["spawn", "forkserver"]
    weight = probing.weigh_dataset(built, asked)["weight"]
    assert weight.far_sample_s is not None
    dataset.file.close()


def test_a_dataset_that_took_long_to_weigh_is_asked_for_no_sample(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    heavy = DatasetWeight(pickle_s=3.0, took_s=3.0)
    monkeypatch.setattr(weighing, "weigh", lambda *_, **__: heavy)
    built = build_from_object(DataLoader(_Opening(), batch_size=2))
    asked = TrialRequest(config=Config(num_workers=2), trial_s=2.0, weigh=True)
    weight = probing.weigh_dataset(built, asked)["weight"]
    assert (weight.pickle_s, weight.far_sample_s) == (3.0, None)


def test_samples_of_which_too_few_come_in_time_are_not_asked_for() -> None:
    """One that is ended half way may be writing a file."""
    asked = list[int]()

    class Slow(Dataset[int]):
        def __len__(self) -> int:
            return 400

        def __getitem__(self, index: int) -> int:
            asked.append(index)
            time.sleep(0.1)
            return index

    built = build_from_object(DataLoader(Slow(), batch_size=1))
    found = probing.probe(built, TrialRequest(config=Config(), trial_s=1.0, limit_s=1.0))
    assert found["in_order"]
    assert 24 * found["batch_s"] >= 2.0  # then nothing looks along its epoch
    assert asked == [0, 1]


class _Sorted:
    """Batches of texts by their length, which the dataset has in no order."""

    def __init__(self, lengths: Sequence[int], size: int) -> None:
        self.lengths, self.size = lengths, size

    def __len__(self) -> int:
        return len(self.lengths) // self.size

    def __iter__(self) -> Iterator[list[int]]:
        order = sorted(range(len(self.lengths)), key=self.lengths.__getitem__)
        return (order[at : at + self.size] for at in range(0, len(order), self.size))


def test_samples_are_looked_at_along_the_order_of_a_batch_sampler() -> None:
    class Texts(Dataset[int]):
        lengths = tuple(1 + 13 * each % 400 for each in range(400))

        def __len__(self) -> int:
            return 400

        def __getitems__(self, indices: list[int]) -> list[int]:
            time.sleep(2e-5 * sum(self.lengths[each] for each in indices))
            return indices

        def __getitem__(self, index: int) -> int:
            raise NotImplementedError

    loader = DataLoader(Texts(), batch_sampler=_Sorted(Texts.lengths, 4))
    built = build_from_object(loader)
    request = TrialRequest(config=Config(), trial_s=1.0, limit_s=20.0)
    assert probing.probe(built, request)["in_order"]
    first_s, all_over_s, why = probing.look_along(built, request)["along"]
    assert 4 * first_s < all_over_s < 0.1
    assert why is None


@pytest.mark.parametrize(
    ("wait_s", "ranks", "expected"),
    [
        (0.0, 1, None),
        (0.15, 1, "the sampler takes"),
        (0.6, 1, "the sampler yields no epoch in 500 ms"),
        (-1.0, 1, "the sampler raised ValueError: sleep length must be non-negative"),
        (0.0, 2, "the sampler may have to be asked in all ranks at once"),
    ],
)
def test_what_can_t_be_spread_is_said(wait_s: float, ranks: int, expected: str | None) -> None:
    class Own(Sampler[int]):
        def __len__(self) -> int:
            return 400

        def __iter__(self) -> Iterator[int]:
            time.sleep(wait_s)
            yield from range(400)

    class Later(Dataset[int]):
        def __len__(self) -> int:
            return 400

        def __getitem__(self, index: int) -> int:
            time.sleep(0.0005 if index < 100 else 0.005)
            return index

    built = build_from_object(DataLoader(Later(), batch_size=4, sampler=Own()))
    request = TrialRequest(config=Config(), trial_s=1.0, limit_s=20.0, ranks=ranks)
    found = probing.look_along(built, request)["along"]
    why = found[2] if isinstance(found, tuple) else found
    assert why is None if expected is None else why.startswith(expected)
