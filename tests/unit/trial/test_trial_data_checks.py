"""What a loader shows to be wrong with its data without failing."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.utils.data import DataLoader, IterableDataset, get_worker_info
from torch.utils.data._utils import worker

from dlprof.records import Config, Target
from dlprof.targets.counting import SampleCounter, are_duplicates
from dlprof.targets.workers import WorkerSetup
from dlprof.trial.data_checks import Seen, check_length, is_resampled, watch_worker_info
from dlprof.trial.measure import Loop, WrongDataError


def looked_at(workers: int, batches: list[torch.Tensor], *, kind: str = "iterable") -> None:
    target = Target(spec="x", kind="map" if kind == "map" else "iterable", dataset="X")
    seen = Seen(target, Config(num_workers=workers), SampleCounter())
    for position, batch in enumerate(batches):
        seen.inspect(position, batch)


def batch(*samples: int) -> torch.Tensor:
    return torch.tensor(samples, dtype=torch.float32).repeat_interleave(3).reshape(-1, 3)


def test_workers_that_give_the_same_batches_are_found() -> None:
    with pytest.raises(WrongDataError, match="num_workers=3 each comes up to 3 times") as found:
        looked_at(3, [batch(1, 2, 3)] * 3)
    assert found.value.kind == "duplicated"


def test_samples_one_by_one_are_compared_over_several_rounds() -> None:
    with pytest.raises(WrongDataError):
        looked_at(2, [batch(n) for n in (1, 1, 2, 2, 3, 3)])


@pytest.mark.parametrize(
    ("workers", "batches", "kind"),
    [
        (2, [batch(1, 2, 3), batch(4, 5, 6)], "iterable"),
        (2, [batch(1, 2, 3), batch(1, 2, 3)], "map"),
        (1, [batch(1, 2, 3), batch(1, 2, 3)], "iterable"),
        (2, [batch(0, 0, 0), batch(0, 0, 0)], "iterable"),  # all samples are alike
        (2, [batch(1, 2, 1), batch(1, 2, 2)], "iterable"),  # drawn with replacement
    ],
)
def test_what_says_nothing_of_duplicates(
    workers: int, batches: list[torch.Tensor], kind: str
) -> None:
    looked_at(workers, batches, kind=kind)


def test_bytes_follow_the_samples_where_batches_have_changing_sizes() -> None:
    seen = Seen(Target(spec="x", kind="iterable", dataset="X"), Config(), SampleCounter())
    for position, numbers in enumerate([(1, 2, 3), (1, 2, 3)]):
        seen.inspect(position, batch(*numbers))
    seen.weigh(batch(1))  # the last, of one sample
    assert seen.batch_bytes(2.5) == pytest.approx(2.5 * 3 * 4)
    assert seen.batch_bytes(None) == pytest.approx(7 * 3 * 4 / 3)


def test_a_new_epoch_is_no_repetition() -> None:
    target = Target(spec="x", kind="iterable", dataset="X")
    seen = Seen(target, Config(num_workers=2), SampleCounter())
    for _ in range(2):
        for position, numbers in enumerate([(1, 2, 3), (4, 5, 6)]):
            seen.inspect(position, batch(*numbers))


@given(st.lists(st.lists(st.integers(), unique=True, min_size=1), min_size=2, max_size=5))
def test_streams_without_a_common_sample_are_never_duplicates(streams: list[list[int]]) -> None:
    apart = [[hash((number, n)) for n in stream] for number, stream in enumerate(streams)]
    assert not are_duplicates(apart)


class Epoch:
    """Batches that come one by one, under a promise of its own."""

    def __init__(self, came: int, promised: int) -> None:
        self.came, self.promised = came, promised

    def __iter__(self) -> Iterator[int]:
        return iter(range(self.came))

    def __len__(self) -> int:
        return self.promised


def checked(came: int, promised: int, kind: str = "iterable") -> list[str]:
    loop = Loop(
        Epoch(came, promised),
        Config(),
        consume=lambda _batch: None,
        clock=lambda: 0.0,
        beat=lambda _now_s: None,
    )
    loop.begin_epoch()
    loop.drain()
    return check_length(
        loop, Target(spec="x", kind="map" if kind == "map" else "iterable", dataset="X"), Config()
    )


def test_fewer_batches_than_promised_are_an_error() -> None:
    with pytest.raises(WrongDataError, match="gave 20 batches where __len__ promises 157") as found:
        checked(20, 157)
    assert found.value.kind == "truncated"


def test_more_batches_than_promised_are_a_warning() -> None:
    assert "__len__ promises 20" in checked(157, 20)[0]


@pytest.mark.parametrize(("came", "promised", "kind"), [(20, 20, "iterable"), (20, 157, "map")])
def test_a_promise_that_is_kept_or_checked_elsewhere(came: int, promised: int, kind: str) -> None:
    assert checked(came, promised, kind) == []


class ResampledStage(IterableDataset[int]):
    def __iter__(self) -> Iterator[int]:
        return iter(())


class Chain(IterableDataset[int]):
    def __init__(self, *stages: object) -> None:
        self.pipeline = list(stages)

    def __iter__(self) -> Iterator[int]:
        return iter(())


def test_draws_with_replacement_have_no_epoch() -> None:
    assert is_resampled(Chain(Chain(ResampledStage()), 3))
    assert not is_resampled(Chain(Chain(), [1, 2]))
    holder = Chain()
    holder.pipeline.append(holder)
    assert not is_resampled(holder)


def test_webdataset_s_resampled_shards_are_known() -> None:
    webdataset = pytest.importorskip("webdataset")
    assert is_resampled(webdataset.WebDataset("x.tar", resampled=True).batched(4))
    assert not is_resampled(webdataset.WebDataset("x.tar", shardshuffle=False).batched(4))


def test_batches_that_won_t_be_looked_at_are_let_be() -> None:
    class Odd:
        shape, nbytes = (4,), 4

    looked_at(2, [Odd() for _ in range(6)])  # type: ignore[misc] # no tensor at all


def test_samples_that_some_workers_share_are_a_warning() -> None:
    target = Target(spec="x", kind="iterable", dataset="X")
    seen = Seen(target, Config(num_workers=2), SampleCounter())
    for position, numbers in enumerate([(1, 2, 3, 4), (4, 5, 6, 7)]):
        seen.inspect(position, batch(*numbers))
    assert seen.warnings == ["workers gave some of the same samples"]
    assert seen.batches == 8


def test_two_workers_of_four_that_give_the_same_are_found() -> None:
    """As where workers share two files by ``id % 2``."""
    with pytest.raises(WrongDataError):
        looked_at(4, [batch(1, 2, 3), batch(4, 5, 6), batch(1, 2, 3), batch(4, 5, 6)])


def test_what_is_not_a_number_is_the_same_each_time() -> None:
    with pytest.raises(WrongDataError):
        looked_at(2, [torch.tensor([[math.nan, n] for n in (1.0, 2.0, 3.0)]) for _ in range(2)])


class Numbers(IterableDataset[float]):
    """Numbers of which each worker yields its own, or all."""

    def __init__(self, *, asks: bool) -> None:
        self.asks = asks

    def __iter__(self) -> Iterator[float]:
        info = get_worker_info()
        first, step = (info.id, info.num_workers) if self.asks and info is not None else (0, 1)
        yield from map(float, range(first, 64, step))


def init(_: int) -> None:
    """A ``worker_init_fn``, which is told the worker's number."""


@pytest.mark.parametrize(
    ("asks", "settings", "told"),
    [
        (True, {}, True),
        (False, {}, False),
        (False, {"worker_init_fn": init}, True),  # it may have shared the samples out
        (False, {"worker_init_fn": WorkerSetup(None, None, None)}, False),
        (False, {"multiprocessing_context": "spawn"}, True),  # not seen from here
    ],
)
def test_whether_a_worker_asks_which_one_it_is(
    monkeypatch: pytest.MonkeyPatch, *, asks: bool, settings: dict[str, Any], told: bool
) -> None:
    monkeypatch.setattr(worker, "WorkerInfo", worker.WorkerInfo)  # given back afterwards
    loader = DataLoader(Numbers(asks=asks), batch_size=4, num_workers=2, **settings)
    asked = watch_worker_info(loader)
    if settings.get("multiprocessing_context") is None:
        assert len(list(loader)) == (16 if asks else 32)
    assert asked() is told


def test_samples_that_nobody_batches_are_compared() -> None:
    target = Target(spec="x", kind="iterable", dataset="X")
    seen = Seen(target, Config(num_workers=2), SampleCounter())
    samples = [[torch.full((3, 4, 4), float(number)), number] for number in (1, 1, 2, 2, 3, 3)]
    for position, sample in enumerate(samples[:5]):
        seen.inspect(position, sample)
    with pytest.raises(WrongDataError):
        seen.inspect(5, samples[5])
