"""Datasets are weighed attribute by attribute, within limits, and stay as they were."""

from __future__ import annotations

import contextlib
import functools
import importlib
import random
import sys
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader, Dataset, IterableDataset

from dlprof.integrations.loaders import describe
from dlprof.records import DatasetWeight
from dlprof.targets import weighing
from dlprof.targets.build import build_from_object
from dlprof.targets.weighing import repeats_shards, shards_of, split_by, weigh


class Held(Dataset[torch.Tensor]):
    def __init__(self, **held: Any) -> None:
        self.__dict__.update(held)

    def __len__(self) -> int:
        return 10

    def __getitem__(self, index: int) -> torch.Tensor:
        return torch.zeros(1)


class RepeatExamplesIterable(Held):
    """As Hugging Face calls its own."""


def _weighed(limit_s: float = 60.0, **held: Any) -> DatasetWeight:
    return weigh(DataLoader(Held(**held)), limit_s=limit_s)


@pytest.mark.slow
def test_the_heaviest_attribute_of_planted_datasets_is_named() -> None:
    planted = importlib.import_module("heavy_targets").PLANTED
    wrong = {}
    for title, (make, names) in planted.items():
        try:
            first = weigh(DataLoader(make()), limit_s=60.0).heaviest
        except ImportError:  # a library that isn't installed
            continue
        if first is None or first.name not in names:
            wrong[title] = first
    assert not wrong
    assert len(planted) >= 20


def test_bytes_are_those_of_the_pickle() -> None:
    numbers = [(number, str(number)) for number in range(1000)]
    found = _weighed(numbers=numbers)
    first = found.heaviest
    assert first is not None
    assert (first.name, first.type) == ("numbers", "list of 1,000 tuple")
    assert first.pickled_bytes == pytest.approx(len(torch_pickled(numbers)), rel=0.05)
    assert first.objects > 2000


def torch_pickled(value: object) -> bytes:
    from multiprocessing.reduction import ForkingPickler

    return bytes(ForkingPickler.dumps(value))


@pytest.mark.slow
def test_of_many_entries_some_stand_for_all() -> None:
    texts = [f"/data/{number:09d}.jpg" for number in range(600_000)]
    first = _weighed(texts=texts).heaviest
    assert first is not None
    assert first.how == "sampled"
    assert first.pickled_bytes == pytest.approx(len(torch_pickled(texts)), rel=0.05)
    assert first.objects == pytest.approx(600_001, rel=0.01)


def test_a_mapping_that_has_a_length_and_gives_nothing_has_no_entry_to_name() -> None:
    class Promised(dict[str, int]):
        def __len__(self) -> int:
            return 3

    assert weighing._type_of(Promised()) == Promised.__qualname__
    assert weighing._type_of({1: "a"}) == "dict of 1 str"
    found = _weighed(index=Promised(), pairs={(number, str(number)) for number in range(5000)})
    assert found.heaviest is not None
    assert found.heaviest.name == "pairs"


def test_what_is_shared_by_two_attributes_weighs_once() -> None:
    texts = [f"/data/{number}.jpg" for number in range(2000)]
    once, twice = _weighed(one=texts), _weighed(one=texts, two=texts)
    assert twice.pickled_bytes == pytest.approx(once.pickled_bytes, rel=0.01)


def test_tensors_are_shared_and_stay_where_they_are() -> None:
    tensor = torch.zeros(1 << 20)
    found = _weighed(tensor=tensor, few=[1, 2])
    assert not tensor.is_shared()
    assert found.pickled_bytes < 4096
    assert found.flat_bytes >= 4 << 20


def test_nothing_lazy_is_triggered() -> None:
    class Lazy:
        @property
        def index(self) -> object:
            raise AssertionError("a property was read")

        def __getattr__(self, name: str) -> object:
            raise AssertionError(f"{name} was asked for")

    dataset = Held(lazy=Lazy(), few=[1, 2, 3])
    before = dict(vars(dataset))
    weigh(DataLoader(dataset), limit_s=60.0)
    assert vars(dataset) == before


def test_a_list_that_loads_what_it_is_asked_for_weighs_what_it_holds() -> None:
    """As pickle sends it to a worker: paths, and not the pictures behind them."""

    class Loading(list[str]):
        def __getitem__(self, index: Any) -> Any:
            raise AssertionError(index)

        def __len__(self) -> int:
            raise AssertionError

    paths = [f"/data/{n:04d}.jpg" for n in range(1000)]
    found = _weighed(paths=Loading(paths)).heaviest
    assert found is not None
    assert (found.name, found.failure) == ("paths", "")
    assert found.type.endswith(".Loading of 1,000 str")
    assert found.pickled_bytes == pytest.approx(len(torch_pickled(paths)), rel=0.05)


def test_an_array_around_one_object_weighs_that_object() -> None:
    """As ``np.load`` gives a dictionary that was saved."""
    numpy = pytest.importorskip("numpy")
    index = {f"/data/{n:04d}.jpg": n for n in range(1000)}
    found = _weighed(index=numpy.array(index, dtype=object)).heaviest
    assert found is not None
    assert (found.name, found.failure) == ("index", "")
    assert found.pickled_bytes == pytest.approx(len(torch_pickled(index)), rel=0.05)


class Named:
    TABLE = tuple(f"/data/{n:04d}.jpg" for n in range(1000))


def test_a_class_is_sent_by_its_name_and_a_module_not_at_all() -> None:
    class Local:
        TABLE = Named.TABLE

    found = _weighed(kind=Named, local=Local, module=weighing)
    assert found.pickled_bytes < 4096
    failures = {each.name: each.failure for each in found.attributes}
    assert failures.keys() == {"local", "module"}
    assert "local class" in failures["local"]
    assert "module" in failures["module"]


def test_a_lazy_proxy_is_not_asked_for_its_class() -> None:
    class Proxy:
        def __init__(self) -> None:
            self.made = [1, 2, 3]

        @property  # type: ignore[misc] # typing knows no class that a property makes
        def __class__(self) -> type:
            raise AssertionError("the proxy was evaluated")

    found = weigh(DataLoader(Held(proxy=Proxy(), few=[Proxy()])), limit_s=60.0)
    assert not [each.failure for each in found.attributes if each.failure]


class Unreadable:
    """Fails to be unpickled."""

    def __init__(self, text: str) -> None:
        self.text = text

    def __reduce__(self) -> Any:
        return int, (self.text,)


def test_an_attribute_that_is_cut_off_counts_without_those_before(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(weighing, "_SAMPLE_BYTES", 40_000)
    first = [str(number) for number in range(10_000)]
    found = _weighed(first=first, second=dict.fromkeys(["a"], Whole("x" * 400_000)))
    sizes = {each.name: each for each in found.attributes}
    cut = next(each for name, each in sizes.items() if name.startswith("second"))
    assert cut.how == "at_least"
    assert cut.pickled_bytes == pytest.approx(400_000, rel=0.02)


class Whole:
    """Is pickled as a whole."""

    def __init__(self, text: str) -> None:
        self.text = text

    def __reduce__(self) -> Any:
        return Whole, (self.text[:200_000], self.text[200_000:])


def test_bytes_stay_bounded_where_nothing_can_be_unpickled(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(weighing, "_SAMPLE_BYTES", 100_000)
    monkeypatch.setattr(weighing, "_SAMPLE_S", 60.0)
    limits: list[float] = []

    class Noted(weighing._Sink):
        def __init__(self, *given: float) -> None:
            super().__init__(*given)
            limits.append(self.most)

    monkeypatch.setattr(weighing, "_Sink", Noted)
    _weighed(odd=[Unreadable(f"x{number}") for number in range(300)])
    assert len(limits) > 2
    assert all(limit < 8 * 100_000 for limit in limits[2:])


def test_getstate_is_called_once() -> None:
    class Counting:
        calls = 0

        def __getstate__(self) -> dict[str, Any]:
            Counting.calls += 1
            return {"index": list(range(5000))}

    found = _weighed(counting=Counting())
    assert Counting.calls == 1
    assert found.heaviest is not None
    assert found.heaviest.name == "counting.index"


def test_what_takes_for_ever_to_pickle_is_not_waited_for() -> None:
    class Endless:
        def __getstate__(self) -> dict[str, Any]:
            time.sleep(3600)
            return {}

    began_s = time.monotonic()
    found = _weighed(limit_s=0.5, endless=Endless())
    assert time.monotonic() - began_s < 60
    assert found.heaviest is not None
    assert (found.heaviest.name, found.heaviest.how) == ("endless", "at_least")


def test_what_cannot_be_pickled_is_named() -> None:
    found = _weighed(lock=threading.Lock(), transform=lambda sample: sample)
    faults = {each.name: each.failure for each in found.attributes}
    assert "pickle" in faults["lock"]
    assert "local function" in faults["transform"]


def test_shards_are_read_where_a_dataset_has_them() -> None:
    class Shards(IterableDataset[int]):
        def __init__(self) -> None:
            self.num_shards = 3

        def __iter__(self) -> Iterator[int]:
            return iter(range(3))

    assert shards_of(Shards()) == 3
    # Its ranks may share them out, and not its workers.
    assert split_by(Shards()) is None
    Shards.__module__ = "webdataset.compat"
    assert split_by(Shards()) == 3
    assert build_from_object(DataLoader(Shards())).target.shards == 3
    assert describe(DataLoader(Shards()), name="train.py:3").shards == 3
    assert shards_of(Held(num_shards=3)) is None


@pytest.mark.parametrize(
    ("held", "repeats"),
    [
        ({}, False),
        ({"repetitions": 1}, False),
        ({"repetitions": torch.ones(2)}, False),  # of another meaning
        ({"repetitions": sys.maxsize}, True),  # webdataset, with_epoch()
        ({"_ex_iterable": Held(ex_iterable=Held())}, False),
        ({"_ex_iterable": Held(ex_iterable=RepeatExamplesIterable())}, True),
    ],
)
def test_streams_say_whether_their_shards_begin_again(held: dict[str, Any], repeats: bool) -> None:
    assert repeats_shards(Held(**held)) is repeats


class Blocks(Dataset[int]):
    """Blocks of 64 samples, of which the last one that was read is kept; on a clock of its own."""

    def __init__(self, length: int = 1000, *, keeps: bool = True, size: int = 64) -> None:
        self.length, self.keeps, self.size, self.block = length, keeps, size, -1
        self.now_s, self.asked = 0.0, list[int]()

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: int) -> int:
        self.now_s += 0.001 if self.keeps and index // self.size == self.block else 0.1
        self.now_s += 5.0 if not self.asked else 0.0  # files are opened once
        self.asked.append(index)
        self.block = index // self.size
        return index


@pytest.mark.parametrize(
    ("data", "following_s"),
    [
        (Blocks(), 0.001),
        (Blocks(size=189), 0.001),  # the third after 375 is of the next block
        (Blocks(size=2), 0.1),  # a block is too small to gain by its order
        (Blocks(keeps=False), 0.1),
    ],
)
def test_samples_that_follow_each_other_are_compared_with_those_far_apart(
    monkeypatch: pytest.MonkeyPatch, data: Blocks, following_s: float
) -> None:
    monkeypatch.setattr(weighing, "undelayed_s", lambda: data.now_s)
    assert weighing.by_order(data, limit_s=60.0) == pytest.approx((0.1, following_s))
    assert len(data.asked) == 24


def test_what_gives_no_samples_by_numbers_is_not_compared(monkeypatch: pytest.MonkeyPatch) -> None:
    class Named(Blocks):
        def __getitem__(self, index: int) -> int:
            raise KeyError(index)

    class Ending(Blocks):
        def __getitem__(self, index: int) -> int:
            raise SystemExit("no worker")

    class Endless(Blocks):
        def __getitem__(self, index: int) -> int:
            time.sleep(3600)
            return index

    short = Blocks(63)
    assert weighing.by_order(short, limit_s=60.0) is None
    assert not short.asked
    assert weighing.by_order(Named(), limit_s=60.0) is None
    assert weighing.by_order(iter(()), limit_s=60.0) is None
    assert weighing.by_order(Endless(), limit_s=0.2) is None
    assert weighing.by_order(Endless(), limit_s=-1.0) is None  # weighing took all of the time
    assert weighing.by_order(Ending(), limit_s=60.0) is None
    assert along(Blocks(191), 0) is None
    assert along(Blocks(1000), 489) is None  # two batches are all of it
    # What isn't known is no silence.
    assert along(Named(), 0) == "sample 0 raised KeyError: 0"
    assert along(Ending(), 0) == "sample 0 raised SystemExit: no worker"
    assert along(Endless(), 0, limit_s=0.2) == "trying some samples from all over it takes too long"


def along(data: Dataset[int], batch: int, *, limit_s: float = 60.0) -> Any:
    length = len(data)  # type: ignore[arg-type] # it has one
    return weighing.along_epoch(data.__getitem__, range(length), batch, limit_s=limit_s)


class Along(Blocks):
    """Samples take what ``took_s`` says by where in the epoch they are, 0 to 1."""

    def __init__(self, took_s: Callable[[float], float], length: int = 10_000) -> None:
        super().__init__(length)
        self.took_s = took_s

    def __getitem__(self, index: int) -> int:
        self.now_s += self.took_s(index / self.length)
        self.asked.append(index)
        return index


@pytest.mark.parametrize(
    ("took_s", "expected"),
    [
        (lambda _at: 0.01, None),
        (lambda at: 0.01 + 0.002 * at, None),  # 10% in the mean
        (lambda at: 0.001 if at < 0.9 else 0.1, (0.001, 0.00925)),  # 2 of 24 places
        (lambda at: 0.01 + 0.1 * at, (0.0107, 0.0579)),
        (lambda at: 0.1 if at < 0.1 else 0.01, (0.1, 0.02125)),
        (lambda at: 1e-5 if at < 0.1 else 9e-5, None),  # next to no time
        # Every seventh takes long: no two in a row do.
        (lambda at: 1.0 if round(1e4 * at) % 7 == 1 else 0.01, None),
    ],
)
def test_an_epoch_s_beginning_is_compared_with_all_of_it(
    monkeypatch: pytest.MonkeyPatch,
    took_s: Callable[[float], float],
    expected: tuple[float, float] | None,
) -> None:
    data = Along(took_s)
    monkeypatch.setattr(weighing, "undelayed_s", lambda: data.now_s)
    found = along(data, 32)
    assert (found and found[:2]) == (expected and pytest.approx(expected, rel=0.02))
    assert not found or found[2] is None
    assert len(data.asked) == 96


def test_blocks_that_are_read_once_are_no_other_part_of_an_epoch(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Of three samples in a row the first pays for what they lie in."""
    data = Blocks(10_000)
    monkeypatch.setattr(weighing, "undelayed_s", lambda: data.now_s)
    assert along(data, 32) is None


def test_what_each_batch_would_have_to_find_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    """A video, or a block that is kept: reading on takes nothing, and another place 0.1 s."""

    class Video(Along):
        def __getitem__(self, index: int) -> int:
            self.now_s += 0.1 if index - 1 not in self.asked[-1:] else 0.0
            return super().__getitem__(index)

    data = Video(lambda at: 0.003 if at < 0.1 else 0.012)
    monkeypatch.setattr(weighing, "undelayed_s", lambda: data.now_s)
    found = along(data, 8)
    assert found is not None
    assert found[2] == "elsewhere a batch takes 100 ms more for its first sample"
    again = along(data, 200)  # a batch of 200 takes 2 s
    assert again is not None
    assert again[2] is None


def test_an_epoch_of_which_a_sample_is_refused_stays_in_order(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    class Broken(Along):
        def __getitem__(self, index: int) -> int:
            if index > 0.95 * self.length:
                raise ValueError(index)
            return super().__getitem__(index)

    data = Broken(lambda at: 0.003 if at < 0.1 else 0.012)
    monkeypatch.setattr(weighing, "undelayed_s", lambda: data.now_s)
    assert along(data, 8) == "sample 9583 raised ValueError: 9583"


def test_samples_that_vary_alike_everywhere_seldom_differ_along_an_epoch(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """By half of their size, as images do."""
    differ = 0
    for seed in range(200):
        draws = random.Random(seed)
        data = Along(lambda _at, draws=draws: 0.01 * draws.lognormvariate(0, 0.5))  # type: ignore[misc] # bound now
        monkeypatch.setattr(weighing, "undelayed_s", lambda data=data: data.now_s)
        differ += along(data, 32) is not None
    assert differ < 20


def test_a_sample_along_an_epoch_is_not_cut_off_at_the_limit() -> None:
    """It may be writing a file."""
    written = list[int]()

    class Writing(Blocks):
        def __getitem__(self, index: int) -> int:
            time.sleep(0.3)
            written.append(index)
            return index

    assert "too long" in along(Writing(), 32, limit_s=0.2)
    assert written == [64]


def test_an_order_of_the_user_s_own_is_followed(monkeypatch: pytest.MonkeyPatch) -> None:
    """As of texts that are sorted by their length: in the dataset's order nothing differs."""
    data = Along(lambda at: 0.001 + 0.01 * (round(1e4 * at) % 100) / 100)
    monkeypatch.setattr(weighing, "undelayed_s", lambda: data.now_s)
    by_length = sorted(range(len(data)), key=lambda index: index % 100)
    found = weighing.along_epoch(data.__getitem__, by_length, 32, limit_s=60.0)
    assert isinstance(found, tuple)
    assert found[:2] == pytest.approx((0.001, 0.0058), rel=0.05)
    assert found[2] is None


class Keeping(Blocks):
    """Keeps every sample, or as many as ``room``, for whoever asks again."""

    def __init__(self, room: int = 1000, length: int = 1000) -> None:
        super().__init__(length, keeps=False)
        self.room, self.kept = room, dict[int, int]()

    def __getitem__(self, index: int) -> int:
        if index in self.kept:
            self.now_s += 0.001
            return self.kept[index]
        self.kept[index] = super().__getitem__(index)
        self.kept = dict([*self.kept.items()][-self.room :])
        return index


class Shards(Blocks):
    """Keeps what it once opened for all samples of a block."""

    def __getitem__(self, index: int) -> int:
        known = index // self.size in {each // self.size for each in self.asked}
        self.block = index // self.size if known else -1
        return super().__getitem__(index)


class Varying(Blocks):
    """Takes longer by chance: as long again in two of five cases."""

    def __getitem__(self, index: int) -> int:
        self.now_s += 0.001 if index in self.asked and index % 5 < 3 else 0.1
        self.asked.append(index)
        return index


@pytest.mark.parametrize(
    ("data", "kept"),
    [
        (Keeping(), True),
        (Keeping(length=8), True),
        (Keeping(room=30), False),
        (Keeping(room=400), False),
        (Blocks(), False),
        (Shards(), False),
        (Varying(), False),
        (Blocks(keeps=False), False),
    ],
)
def test_samples_are_asked_for_again_when_others_were(
    monkeypatch: pytest.MonkeyPatch, data: Blocks, *, kept: bool
) -> None:
    monkeypatch.setattr(weighing, "undelayed_s", lambda: data.now_s)
    samples = list[int]()

    def collate(batch: list[int]) -> None:
        samples.extend(batch)
        data.now_s += 0.002 * len(batch)

    found = weighing.by_memory(
        data,
        limit_s=60.0,
        collate=collate,
        own_bytes=lambda: 4096 * len(getattr(data, "kept", ())),
    )
    assert (found is not None) is kept
    if found is not None:
        assert found[:2] == pytest.approx((0.102, 0.003))  # each with its part of a batch
        assert found[2] == pytest.approx(4096, rel=0.01)
        assert 0 < len(samples) <= 64


@pytest.mark.parametrize(("came", "kept"), [(16, True), (0, False), (24, False)])
def test_of_few_samples_those_that_came_before_are_left_out(
    monkeypatch: pytest.MonkeyPatch, came: int, kept: bool
) -> None:
    """As two batches of eight did of 24; where all came nothing is known."""
    data = Keeping(length=24)
    monkeypatch.setattr(weighing, "undelayed_s", lambda: data.now_s)
    monkeypatch.setattr(weighing, "_now_s", lambda: data.now_s)
    for index in range(16):
        data[index]
    found = weighing.by_memory(data, limit_s=60.0, came=came)
    assert (found is not None) is kept


def test_what_keeps_nothing_is_asked_for_five_samples(monkeypatch: pytest.MonkeyPatch) -> None:
    data = Blocks(keeps=False)
    monkeypatch.setattr(weighing, "undelayed_s", lambda: data.now_s)
    assert weighing.by_memory(data, limit_s=60.0) is None
    assert data.asked == [0, 998, 998, 967, 967]


def test_no_sample_is_begun_after_the_limit_nor_soon_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    """A dataset may be writing a file for later epochs."""
    data, limits = Keeping(), list[float]()

    def alarm(limit_s: float) -> contextlib.AbstractContextManager[None]:
        limits.append(limit_s)
        return contextlib.nullcontext()

    monkeypatch.setattr(weighing, "_alarm", alarm)
    monkeypatch.setattr(weighing, "undelayed_s", lambda: data.now_s)
    monkeypatch.setattr(weighing, "_now_s", lambda: data.now_s)
    assert weighing.by_memory(data, limit_s=5.25) is None  # 5 s of which open files
    assert data.now_s == pytest.approx(5.3, abs=0.01)
    assert limits == [10.5]


def test_samples_that_take_too_long_are_not_asked_for_again() -> None:
    class Endless(Blocks):
        def __getitem__(self, index: int) -> int:
            time.sleep(3600)
            return index

    assert weighing.by_memory(Endless(), limit_s=0.2) is None
    assert weighing.by_memory(Blocks(2), limit_s=60.0) is None  # two say nothing
    assert weighing.by_memory(iter(()), limit_s=60.0) is None


@pytest.mark.parametrize(("most", "bounded"), [(128, True), (1000, False), (None, False)])
@pytest.mark.parametrize("of_class", [True, False])
def test_a_cache_that_holds_less_than_an_epoch_is_known_by_its_size(
    most: int | None, bounded: bool, of_class: bool
) -> None:
    class Methods(Blocks):
        load = functools.lru_cache(most)(Blocks.__getitem__)

    data = Methods() if of_class else Blocks()
    if not of_class:
        data.load = functools.lru_cache(most)(data.__getitem__)  # type: ignore[attr-defined] # of its own
    assert weighing.is_bounded(data) is bounded
