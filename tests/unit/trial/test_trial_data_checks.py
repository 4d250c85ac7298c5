"""What a loader shows to be wrong with its data without failing."""

from __future__ import annotations

import math
import random
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.utils.data import DataLoader, IterableDataset, get_worker_info
from torch.utils.data.datapipes.iter import IterableWrapper

from dlprof.records import DUPLICATED_SIGN, VARIED_SIGN, Config, Target
from dlprof.targets.counting import SampleCounter, agreeing, is_resampled
from dlprof.targets.workers import WorkerSetup
from dlprof.trial import data_checks
from dlprof.trial.data_checks import IN_SAMPLES, BatchChecks, check_length, watch_worker_info
from dlprof.trial.measure import Loop, WrongDataError


def looked_at(workers: int, *epochs: list[Any], kind: str = "iterable") -> BatchChecks:
    target = Target(spec="x", kind="map" if kind == "map" else "iterable", dataset="X")
    seen = BatchChecks(target, Config(num_workers=workers), SampleCounter())
    for batches in epochs:
        for position, batch in enumerate(batches):
            seen.inspect(position, batch)
    return seen


def batch(*samples: int) -> torch.Tensor:
    return torch.tensor(samples, dtype=torch.float32).repeat_interleave(3).reshape(-1, 3)


def test_workers_that_give_the_same_batches_are_found() -> None:
    with pytest.raises(WrongDataError, match="num_workers=3 each comes up to 3 times") as found:
        looked_at(3, [*[batch(1, 2, 3)] * 3, *[batch(4, 5, 6)] * 3])
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
        (2, [batch(1, 2, 3)] * 8, "iterable"),  # a benchmark's constant batch
        # Two of three, and two pairs in one epoch, may have drawn the same shard.
        (3, [batch(*n) for n in ((1, 2), (1, 2), (7, 8), (3, 4), (3, 4), (9, 0))], "iterable"),
        (4, [batch(*n) for n in ((1, 2, 3), (4, 5, 6)) * 2 + ((7, 8), (9, 0)) * 2], "iterable"),
        # Images that are all alike beside labels that count along.
        (
            2,
            [[torch.zeros(2, 3, 4, 4), torch.tensor(n)] for n in ([0, 1], [0, 1], [2, 3], [2, 3])],
            "iterable",
        ),
        # Ragged steps, flattened, beside indices that count along in every worker.
        (
            2,
            [
                {"steps": torch.full((7 + n, 4), float(n)), "index": torch.arange(4) + n // 2 * 4}
                for n in range(6)
            ],
            "iterable",
        ),
    ],
)
def test_what_says_nothing_of_duplicates(workers: int, batches: list[Any], kind: str) -> None:
    looked_at(workers, batches, kind=kind)


def test_bytes_follow_the_samples_where_batches_have_changing_sizes() -> None:
    seen = BatchChecks(Target(spec="x", kind="iterable", dataset="X"), Config(), SampleCounter())
    for position, numbers in enumerate([(1, 2, 3), (1, 2, 3)]):
        seen.inspect(position, batch(*numbers))
    seen.weigh(batch(1))  # the last, of one sample
    assert seen.batch_bytes(2.5) == pytest.approx(2.5 * 3 * 4)
    assert seen.batch_bytes(None) == pytest.approx(7 * 3 * 4 / 3)


def test_a_new_epoch_is_no_repetition() -> None:
    target = Target(spec="x", kind="iterable", dataset="X")
    seen = BatchChecks(target, Config(num_workers=2), SampleCounter())
    for _ in range(2):
        for position, numbers in enumerate([(1, 2, 3), (4, 5, 6)]):
            seen.inspect(position, batch(*numbers))


@given(st.lists(st.lists(st.integers(), unique=True, min_size=1), min_size=2, max_size=5))
def test_streams_without_a_common_sample_are_never_duplicates(streams: list[list[int]]) -> None:
    apart = [[hash((number, n)) for n in stream] for number, stream in enumerate(streams)]
    assert not agreeing([[(number, number) for number in stream] for stream in apart])


class Epoch:
    """Batches that come one by one, under a promise of its own."""

    def __init__(self, came: int, promised: int | None) -> None:
        self.came, self.promised = came, promised

    def __iter__(self) -> Iterator[int]:
        return iter(range(self.came))

    def __len__(self) -> int:
        if self.promised is None:
            raise TypeError
        return self.promised


def looped(
    *came: int, promised: int | None, kind: str = "iterable", size: int | None = None
) -> list[str]:
    epoch = Epoch(came[0], promised)
    loop = Loop(
        epoch,
        Config(),
        consume=lambda _batch: None,
        clock=lambda: 0.0,
        beat=lambda _now_s: None,
        count=lambda _batch: size,
    )
    for batches in came:
        epoch.came = batches
        loop.begin_epoch()
        loop.drain()
    return check_length(
        loop, Target(spec="x", kind="map" if kind == "map" else "iterable", dataset="X"), Config()
    )


def test_fewer_batches_than_promised_are_an_error() -> None:
    with pytest.raises(WrongDataError, match="gave 20 batches where __len__ promises 157") as found:
        looped(20, promised=157)
    assert found.value.kind == "truncated"


def test_more_batches_than_promised_are_a_warning() -> None:
    assert "__len__ promises 20" in looped(157, promised=20)[0]


@pytest.mark.parametrize(("came", "promised", "kind"), [(20, 20, "iterable"), (20, 157, "map")])
def test_a_promise_that_is_kept_or_checked_elsewhere(came: int, promised: int, kind: str) -> None:
    assert looped(came, promised=promised, kind=kind) == []


def test_a_length_in_samples_of_a_dataset_that_batches_itself_is_no_fault() -> None:
    assert looped(20, promised=320, size=16) == [IN_SAMPLES]
    with pytest.raises(WrongDataError):
        looped(20, promised=400, size=16)


def test_epochs_that_differ_in_length_are_noted() -> None:
    assert looped(20, 23, promised=None, size=2) == [VARIED_SIGN]
    assert looped(20, 20, promised=None, size=2) == []


class ResampledStage(IterableDataset[int]):
    __module__ = "webdataset.shardlists"

    def __iter__(self) -> Iterator[int]:
        return iter(())


class Chain(IterableDataset[int]):
    def __init__(self, *stages: object) -> None:
        self.pipeline = list(stages)

    def __iter__(self) -> Iterator[int]:
        return iter(())


class ResampledAudio(Chain):
    """Of another sampling rate."""


def test_draws_with_replacement_have_no_epoch() -> None:
    assert is_resampled(Chain(Chain(ResampledStage()), 3))
    assert not is_resampled(Chain(Chain(), [1, 2]))
    assert not is_resampled(ResampledAudio())
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

    looked_at(2, [Odd() for _ in range(6)])  # no tensor at all


def test_samples_that_some_workers_share_are_a_warning() -> None:
    target = Target(spec="x", kind="iterable", dataset="X")
    seen = BatchChecks(target, Config(num_workers=2), SampleCounter())
    for position, numbers in enumerate([(1, 2, 3, 4), (4, 5, 6, 7)]):
        seen.inspect(position, batch(*numbers))
    assert seen.warnings == ["workers gave some of the same samples"]
    assert seen.batches == 8


def test_shared_samples_of_an_epoch_are_remembered_in_the_next() -> None:
    apart = [batch(11, 12, 13, 14), batch(15, 16, 17, 18)]
    seen = looked_at(2, [batch(1, 2, 3, 4), batch(4, 5, 6, 7)], apart)
    assert seen.warnings == ["workers gave some of the same samples"]
    assert looked_at(2, apart, apart).warnings == []


def test_two_workers_of_four_that_give_the_same_are_found() -> None:
    """As where workers share two files by ``id % 2``, in each epoch."""
    first = [batch(1, 2, 3), batch(4, 5, 6), batch(1, 2, 3), batch(4, 5, 6)]
    with pytest.raises(WrongDataError):
        looked_at(4, first, [*first, *[batch(n, n + 2, n + 4) for n in (7, 8, 7, 8)]])


def test_workers_that_agree_in_one_epoch_of_two_drew_the_same_shard() -> None:
    both = [*[batch(1, 2, 3)] * 2, *[batch(4, 5, 6)] * 2]
    looked_at(2, [batch(1, 2, 3), batch(7, 8, 9)], both)
    with pytest.raises(WrongDataError):
        looked_at(2, both[:2], both)


def test_what_is_not_a_number_is_the_same_each_time() -> None:
    rows = [torch.tensor([[math.nan, n + k] for n in (1.0, 2.0, 3.0)]) for k in (0, 0, 3, 3)]
    with pytest.raises(WrongDataError):
        looked_at(2, rows)


class Numbers(IterableDataset[float]):
    """Numbers of which each worker yields its own, or all."""

    def __init__(self, *, asks: bool) -> None:
        self.asks = asks

    def __iter__(self) -> Iterator[float]:
        info = get_worker_info()
        first, step = (info.id, info.num_workers) if self.asks and info is not None else (0, 1)
        yield from map(float, range(first, 64, step))


def shares(_: int) -> None:
    """A ``worker_init_fn`` that may share the samples out."""
    info = get_worker_info()
    assert info is not None
    assert info.dataset is not None


def seeds(_: int) -> None:
    """A ``worker_init_fn`` that seeds its worker."""
    info = get_worker_info()
    assert info is not None
    random.seed(info.seed)


@pytest.mark.parametrize(
    ("asks", "settings", "shown"),
    [
        (True, {}, True),
        (False, {}, False),
        (False, {"worker_init_fn": shares}, True),
        (False, {"worker_init_fn": seeds}, False),
        (False, {"worker_init_fn": WorkerSetup(shares, None, None)}, True),
        (False, {"worker_init_fn": WorkerSetup(None, None, None)}, False),
        pytest.param(
            False,
            {"multiprocessing_context": "spawn", "worker_init_fn": seeds},
            False,
            marks=pytest.mark.slow,
        ),
        pytest.param(True, {"multiprocessing_context": "forkserver"}, True, marks=pytest.mark.slow),
    ],
)
def test_whether_a_worker_asks_which_one_it_is(
    *, asks: bool, settings: dict[str, Any], shown: bool
) -> None:
    workers = 1 if "multiprocessing_context" in settings else 2  # one that imports torch is enough
    loader = DataLoader(Numbers(asks=asks), batch_size=4, num_workers=workers, **settings)
    asked = watch_worker_info(loader)
    assert len(list(loader)) == 16 * (1 if asks else workers)
    assert asked() is shown


class KeepsIterator(DataLoader[float]):
    """A loader that has started its workers before anybody can notice, as timm's does."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self._kept = super().__iter__()

    def __iter__(self) -> Any:
        return self._kept


def test_of_workers_that_nobody_could_watch_nothing_is_said() -> None:
    loader = KeepsIterator(Numbers(asks=True), batch_size=4, num_workers=2)
    asked = watch_worker_info(loader)
    assert len(list(loader)) == 16
    assert asked()


@pytest.mark.parametrize("shards", [True, False])
def test_torch_asks_for_nothing_for_data_pipes_without_a_filter(*, shards: bool) -> None:
    """Where it does, it asks before any ``worker_init_fn`` is called, which notices others."""
    pipe = IterableWrapper(range(16)).shuffle()
    options: Any = {"num_workers": 2, "multiprocessing_context": "fork"}
    loader = DataLoader(pipe.sharding_filter() if shards else pipe, **options)
    asked = watch_worker_info(loader)
    assert len(list(loader)) == (16 if shards else 32)
    assert asked() is shards


def test_workers_that_ask_are_reported_by_their_epochs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Their shares may begin alike: they are looked at for longer, and no error is raised."""
    monkeypatch.setattr(data_checks, "watch_worker_info", lambda _: lambda: True)
    target = Target(spec="x", kind="iterable", dataset="X")
    loader = DataLoader(Numbers(asks=True), num_workers=2)
    alike = [batch(n, n + 1, n + 2) for n in (1, 1, 4, 4, 7, 7)]
    for last, found in (((10, 10), True), ((10, 20), False)):
        seen = BatchChecks(target, Config(num_workers=2), SampleCounter(), loader)
        rest = [batch(n, n + 3, n + 5) for n in last]
        for position, one in enumerate([*alike, *rest]):
            seen.inspect(position, one)
        assert any(DUPLICATED_SIGN in text for text in seen.warnings) is found


def test_idle_workers_are_no_other_workers() -> None:
    """Two of four yield all; the batches of the others are left out."""
    seen = BatchChecks(
        Target(spec="x", kind="iterable", dataset="X"), Config(num_workers=4), SampleCounter()
    )
    seen.inspect(0, batch(1, 2, 3))
    seen.inspect(1, batch(1, 2, 3))
    seen.inspect(4, batch(4, 5, 6))
    with pytest.raises(WrongDataError):
        seen.inspect(5, batch(4, 5, 6))


def test_of_a_loader_of_one_s_own_nobody_knows_the_workers() -> None:
    target = Target(spec="x", kind="iterable", dataset="X")
    seen = BatchChecks(target, Config(num_workers=2), SampleCounter(), Epoch(4, None))
    assert (seen.batches, seen.warnings) == (0, [])


def test_shards_that_are_drawn_with_replacement_are_not_compared() -> None:
    target = Target(spec="x", kind="iterable", dataset="X")
    loader = DataLoader(Chain(ResampledStage()), num_workers=2)
    seen = BatchChecks(target, Config(num_workers=2), SampleCounter(), loader)
    assert (seen.resampled, seen.batches, seen.warnings) == (True, 0, [])


def test_samples_that_nobody_batches_are_compared() -> None:
    target = Target(spec="x", kind="iterable", dataset="X")
    seen = BatchChecks(target, Config(num_workers=2), SampleCounter())
    samples = [[torch.full((3, 4, 4), float(number)), number] for number in (1, 1, 2, 2, 3, 3)]
    for position, sample in enumerate(samples[:5]):
        seen.inspect(position, sample)
    with pytest.raises(WrongDataError):
        seen.inspect(5, samples[5])
