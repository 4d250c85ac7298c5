"""A loader that tunes itself gives the batches and random numbers that it gives without."""

from __future__ import annotations

import contextlib
import errno
import itertools
import multiprocessing
import os
import random
import socket
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import (
    DataLoader,
    DistributedSampler,
    IterableDataset,
    Sampler,
    get_worker_info,
)
from tuned_loaders import (
    LENGTH,
    Eager,
    Hiring,
    Numbers,
    Returning,
    Scripted,
    Sparing,
    Streams,
    loader,
    numbers,
)

import dlprof
from dlprof import internals
from dlprof.tuning import loader as tuned
from dlprof.tuning.control import NO_WORKERS, Ask, Setting, Window

pytestmark = pytest.mark.usefixtures("no_worker_left")

MODES: dict[str, dict[str, Any]] = {
    "plain": {},
    "persistent": {"persistent_workers": True},
    "P=1": {"num_workers": 1, "prefetch_factor": 1},
    "batch_sampler": {"batch_sampler": [[3, 1], [2], [7, 8, 9], [0]] * 9, "batch_size": 1},
}


def modes(*always: str, others: str) -> list[Any]:
    """Some for every run of the tests, and others that take their turn."""
    return [*always, *(pytest.param(each, marks=pytest.mark.slow) for each in others.split())]


@pytest.mark.parametrize("mode", modes("plain", "persistent", others="P=1 batch_sampler"))
def test_the_samples_come_in_the_same_order(scripted: None, mode: str) -> None:
    options = MODES[mode]
    if "batch_sampler" in options:
        options = {**options, "shuffle": False}
    plain, changing = loader(**options), dlprof.tune(loader(**options), max_workers=4)
    for _ in range(3 if options.get("persistent_workers") else 2):
        assert numbers(changing) == numbers(plain)
    assert changing.num_workers == plain.num_workers


class Restless(Scripted):
    """Has any setting after every batch or two, most of the time no workers."""

    chance = random.Random(0)

    def look(self, window: Window) -> Ask:
        super().look(window)
        some = Setting(self.chance.randint(1, 4), self.chance.randint(1, 2))
        following = NO_WORKERS if self._spares_workers and self.chance.random() < 0.8 else some
        return Ask(following, self.chance.randint(0, 1), 1, 0.0)


class Counted(Numbers):
    """Counts the samples that are read in this process."""

    alone = 0

    def __getitem__(self, index: int) -> torch.Tensor:
        self.alone += get_worker_info() is None
        return super().__getitem__(index)


@pytest.fixture
def restless(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tuned, "Control", Restless)
    monkeypatch.setattr(tuned, "_SHORT_EPOCH", 0)
    monkeypatch.setattr(Restless, "chance", random.Random(7))


@pytest.mark.parametrize(
    "seed", [0, *(pytest.param(each, marks=pytest.mark.slow) for each in range(1, 4))]
)
@pytest.mark.parametrize(
    "mode", modes("plain", "persistent", others="P=1 batch_sampler in_order=False")
)
def test_whatever_the_settings_samples_and_random_numbers_are_as_without(
    restless: None, monkeypatch: pytest.MonkeyPatch, mode: str, seed: int
) -> None:
    """Without workers in the midst of an epoch, too: the main process makes batches then."""
    monkeypatch.setattr(Restless, "chance", random.Random(seed))
    options = {**MODES.get(mode, {"in_order": False}), "generator": None}
    options["shuffle"] = "batch_sampler" not in options

    def drawn(made: Any) -> tuple[list[Any], float, float, float]:
        torch.manual_seed(seed)
        random.seed(seed)
        np.random.seed(seed)  # noqa: NPY002 - as users draw
        epochs = [numbers(made) for _ in range(2)]
        came = epochs if options.get("in_order", True) else [sorted(each) for each in epochs]
        return came, random.random(), float(torch.rand(())), np.random.rand()  # noqa: NPY002 - the same

    dataset = Counted()
    changing = dlprof.tune(loader(dataset, **options), max_workers=4)
    assert drawn(changing) == drawn(loader(Numbers(), **options))
    assert bool(dataset.alone) is not options.get("persistent_workers", False)
    assert changing.tuning.off == ""


def test_each_epoch_has_the_order_that_its_sampler_was_given(scripted: None) -> None:
    def drawn(made: Any) -> list[Any]:
        came = []
        for epoch in (3, 1, 3):
            made.sampler.set_epoch(epoch)
            came.append(numbers(made))
        return came

    sampler: Any = DistributedSampler(Numbers(), num_replicas=2, rank=1, shuffle=True)
    plain, changing = (loader(sampler=sampler, shuffle=False) for _ in range(2))
    came = drawn(dlprof.tune(changing, max_workers=4))
    assert came == drawn(plain)
    assert came[0] == came[2] != came[1]


class Shallow(Scripted):
    """Has one batch in flight, soon."""

    settings = (Setting(1, 1),)


@pytest.mark.parametrize("kind", [Scripted, pytest.param(Shallow, marks=pytest.mark.slow)])
@pytest.mark.parametrize(
    "batch_size",
    [pytest.param(4, marks=pytest.mark.slow), 5],  # the last one is smaller
)
def test_without_order_no_sample_is_lost_or_doubled(
    kind: Any, batch_size: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tuned, "Control", kind)
    monkeypatch.setattr(tuned, "_SHORT_EPOCH", 0)
    changing = dlprof.tune(loader(in_order=False, batch_size=batch_size), max_workers=4)
    came = [number for batch in numbers(changing) for number in batch]
    assert sorted(came) == [float(each) for each in range(LENGTH)]


@pytest.mark.parametrize(
    "count", [2, *(pytest.param(each, marks=pytest.mark.slow) for each in (1, 3))]
)
def test_the_depth_of_an_iterable_changes_and_its_order_does_not(
    scripted: None, count: int
) -> None:
    options: dict[str, Any] = {"batch_size": 3, "num_workers": count}
    options["persistent_workers"] = count > 1
    plain = DataLoader(Streams(), **options)
    changing = dlprof.tune(DataLoader(Streams(), **options))
    for _ in range(2):
        came = [batch.tolist() for batch in changing]
        assert came == [batch.tolist() for batch in plain]


class Endless(IterableDataset[int]):
    """Has no length, and no end."""

    def __iter__(self) -> Iterator[int]:
        info = get_worker_info()
        return itertools.count(0 if info is None else 1_000_000 * info.id)


def test_an_endless_set_whose_samples_are_batches_loads_as_without(scripted: None) -> None:
    options: dict[str, Any] = {"batch_size": None, "num_workers": 2}
    plain, changing = (DataLoader(Endless(), **options) for _ in range(2))
    dlprof.tune(changing)
    assert [*itertools.islice(changing, 60)] == [*itertools.islice(plain, 60)]


class Uneven(IterableDataset[int]):
    """Has nearly all of its samples in the first worker."""

    def __iter__(self) -> Iterator[int]:
        info = get_worker_info()
        assert info is not None
        return iter(range(1000 * info.id, 1000 * info.id + (8 if info.id else 400)))


class Ebbing(Scripted):
    """Has deep queues at first, and then shallow ones."""

    settings = (*[Setting(3, 16)] * 6, *[Setting(3, 1)] * 1000)


@pytest.mark.slow
@pytest.mark.parametrize("persistent", [False, True])
def test_queues_become_shallow_after_workers_of_an_iterable_have_ended(
    monkeypatch: pytest.MonkeyPatch,
    persistent: bool,
) -> None:
    """Torch counts as on its way what they were sent beyond their end, and orders no more then."""
    monkeypatch.setattr(tuned, "Control", Ebbing)
    monkeypatch.setattr(tuned, "_SHORT_EPOCH", 0)
    options: dict[str, Any] = {"batch_size": 1, "num_workers": 3, "persistent_workers": persistent}
    plain, changing = (DataLoader(Uneven(), **options) for _ in range(2))
    dlprof.tune(changing)
    for _ in range(2):
        assert [*map(int, changing)] == [*map(int, plain)]
    assert changing.tuning.off == ""  # type: ignore[attr-defined] # it has one now


def test_the_workers_of_an_iterable_change_between_epochs_if_asked(scripted: None) -> None:
    changing = dlprof.tune(DataLoader(Streams(), batch_size=3, num_workers=2), max_workers=3)
    seen = []
    for _ in range(3):
        batches = iter(changing)
        seen.append(internals.started_workers(batches))
        assert sum(len(batch) for batch in batches) > 0
        assert internals.started_workers(batches) == seen[-1]
    assert len(set(seen)) > 1


class Slowly(Streams):
    """Waits for each sample, as for storage."""

    def __iter__(self) -> Iterator[int]:
        for each in super().__iter__():
            time.sleep(0.001)
            yield each


class OfAll(Slowly):
    """Each worker gives all of its samples."""

    def __iter__(self) -> Iterator[int]:
        time.sleep(0.001)
        return iter(range(LENGTH))


class Shared(Slowly):
    """Its processes share a count of what is taken."""

    def __init__(self) -> None:
        self.taken = torch.zeros(1, dtype=torch.long).share_memory_()


class Valued(Slowly):
    def __init__(self) -> None:
        self.taken = multiprocessing.Value("l", 0)


class Claiming(Slowly):
    """Its processes take what no other then finds."""

    def __init__(self, take: Callable[[], object]) -> None:
        self.take = take

    def __iter__(self) -> Iterator[int]:
        with contextlib.suppress(Exception):
            self.take()
        return super().__iter__()


class Heavy(Slowly):
    """Takes memory once it is read."""

    def __iter__(self) -> Iterator[int]:
        self.held = bytearray(b"1" * 300_000_000)
        return super().__iter__()


@pytest.mark.parametrize(
    ("dataset", "most", "workers"),
    [
        pytest.param(Slowly(), {"max_workers": 4}, 4, id="it waits"),
        pytest.param(Slowly(), {}, 2, id="other workers were not asked for"),
        pytest.param(OfAll(), {"max_workers": 4}, 2, id="each worker gives all of it"),
        pytest.param(Shared(), {"max_workers": 4}, 2, id="shared tensor"),
        pytest.param(Valued(), {"max_workers": 4}, 2, id="shared value"),
        pytest.param(
            Claiming(lambda: Path("job").rename("taken")), {"max_workers": 4}, 2, id="file claimed"
        ),
        pytest.param(
            Claiming(lambda: socket.create_connection(("127.0.0.1", 9), 1.0)),
            {"max_workers": 4},
            2,
            id="server asked",
        ),
        pytest.param(
            Claiming(lambda: Path(os.devnull).write_text("")), {"max_workers": 4}, 2, id="written"
        ),
        pytest.param(
            Claiming(lambda: Path(os.devnull).read_text()), {"max_workers": 4}, 4, id="file read"
        ),
        pytest.param(Heavy(), {"max_workers": 4, "max_ram": "600MB"}, 2, id="memory"),
    ],
)
def test_an_iterable_begins_with_the_workers_that_its_batches_need(
    dataset: Any, most: dict[str, Any], workers: int
) -> None:
    """Within its first epoch, maybe the only one, their number can't change."""
    random.seed(3)
    before = random.getstate(), torch.get_rng_state().tolist()
    changing: Any = dlprof.tune(DataLoader(dataset, batch_size=3, num_workers=2), **most)
    batches = iter(changing)
    assert internals.started_workers(batches) == workers
    plain = iter(DataLoader(dataset, batch_size=3, num_workers=workers))
    assert [each.tolist() for each in batches] == [each.tolist() for each in plain]
    assert (len(changing.tuning.changes) == 1) is (workers > 2)
    assert changing.tuning.off == ""
    assert random.getstate() == before[0]
    assert not vars(dataset).keys() - {"taken", "take"}  # nothing of it was read here


class Deepening(Scripted):
    """Has deeper queues at once, and more workers from the second epoch on."""

    def look(self, window: Window) -> Ask:
        return Ask(Setting(3, 1), 1, 2, 0.0, Setting(2, 4))


@pytest.mark.slow
def test_queues_get_deeper_before_workers_of_an_iterable_change(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(tuned, "Control", Deepening)
    monkeypatch.setattr(tuned._Tuner, "_open", lambda *_: None)  # it begins with its own workers
    plain = DataLoader(Streams(), batch_size=3, num_workers=2)
    changing = dlprof.tune(DataLoader(Streams(), batch_size=3, num_workers=2), max_workers=3)
    batches = iter(changing)
    came = [next(batches).tolist() for _ in range(10)]
    assert internals.started_workers(batches) == 2
    assert internals.ordered_batches(batches) == 8
    came += [batch.tolist() for batch in batches]
    assert came == [batch.tolist() for batch in plain]
    assert internals.started_workers(iter(changing)) == 3


def test_without_workers_samples_and_the_trainings_random_numbers_are_as_with(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def drawn(made: Any) -> tuple[list[Any], float, float]:
        torch.manual_seed(3)
        random.seed(3)
        return [numbers(made) for _ in range(3)], random.random(), float(torch.rand(()))

    options: dict[str, Any] = {"shuffle": True, "generator": None}
    plain = drawn(loader(Numbers(), **options))
    monkeypatch.setattr(tuned, "Control", Sparing)
    monkeypatch.setattr(tuned, "_SHORT_EPOCH", 0)
    changing: Any = dlprof.tune(loader(Numbers(), **options), max_workers=4)
    assert drawn(changing) == plain
    batches = iter(changing)
    assert not internals.workers_of(batches)
    first, second = (next(batches)[:, 1:].flatten().tolist() for _ in range(2))
    assert not set(first) & set(second)
    assert changing.tuning.off == ""


@pytest.fixture
def returning(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tuned, "Control", Returning)
    monkeypatch.setattr(tuned, "_SHORT_EPOCH", 0)
    # Each epoch begins with what is kept.
    monkeypatch.setattr(tuned._Tuner, "_allowed", lambda tuner: tuner._control.kept)


@pytest.mark.parametrize("mode", modes("plain", others="P=1 batch_sampler in_order=False"))
def test_an_epoch_that_began_without_workers_gets_some(
    returning: None, monkeypatch: pytest.MonkeyPatch, mode: str
) -> None:
    """The order, the sampler and the training's random numbers are as with the user's own."""
    options = {**MODES.get(mode, {"in_order": False}), "generator": None}
    options["shuffle"] = "batch_sampler" not in options

    def drawn(made: Any) -> tuple[list[Any], float, float]:
        torch.manual_seed(3)
        random.seed(3)
        epochs = [numbers(made) for _ in range(3)]
        came = epochs if options.get("in_order", True) else [sorted(each) for each in epochs]
        return came, random.random(), float(torch.rand(()))

    dataset = Counted()
    changing: Any = dlprof.tune(loader(dataset, **options), max_workers=4)
    assert drawn(changing) == drawn(loader(Numbers(), **options))
    assert 0 < dataset.alone < 3 * LENGTH
    batches = iter(changing)
    assert not internals.started_workers(batches)
    assert len([next(batches) for _ in range(16)]) == 16
    assert len(internals.workers_of(batches)) == 3
    assert changing.tuning.off == ""


@pytest.mark.slow
def test_reseeded_batches_are_the_same_in_an_epoch_that_began_without_workers(
    returning: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    once = augmented(num_workers=2)
    monkeypatch.setenv("DLPROF_TUNE", "off")
    assert once == augmented(num_workers=3)


def test_workers_that_can_not_be_started_leave_an_epoch_that_began_without_as_it_is(
    returning: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    refusals: list[str] = []

    class Noting(Returning):
        def look(self, window: Window) -> Ask:
            refusals.extend([window.refused] if window.refused else [])
            return super().look(window)

    monkeypatch.setattr(tuned, "Control", Noting)
    queue, made = torch.multiprocessing.Queue, itertools.count(1)

    def failing(*given: Any, **named: Any) -> Any:
        if next(made) <= 3:  # the results' queue, then the first worker's, the results' again
            raise OSError(errno.EMFILE, "too many files")
        return queue(*given, **named)

    monkeypatch.setattr(torch.multiprocessing, "Queue", failing)
    changing: Any = dlprof.tune(loader(Numbers(200, draws=False), shuffle=False), max_workers=4)
    batches = iter(changing)
    came = numbers(batches)
    assert came == [[4.0 * n + k for k in range(4)] for n in range(50)]
    assert refusals == 3 * ["no more workers could be started: too many files"]
    assert internals.started_workers(batches) == 3  # later they could
    assert changing.tuning.off == ""


@pytest.mark.parametrize(
    ("workers", "script"), [pytest.param(0, Hiring, marks=pytest.mark.slow), (1, Sparing)]
)
def test_a_sampler_is_asked_as_often_with_workers_as_without(
    monkeypatch: pytest.MonkeyPatch, workers: int, script: type[Scripted]
) -> None:
    """Torch asks twice where it has workers: what it draws then moves the next epoch's order."""
    monkeypatch.setattr(tuned, "Control", script)
    monkeypatch.setattr(tuned, "_SHORT_EPOCH", 0)

    def drawn(made: Any) -> tuple[list[Any], float, int]:
        torch.manual_seed(3)
        return [numbers(made) for _ in range(3)], float(torch.rand(())), made.batch_sampler.asked

    def made() -> DataLoader[Any]:
        numbered = Numbers(draws=False)
        return DataLoader(numbered, batch_sampler=Eager(), num_workers=workers)

    changing: Any = dlprof.tune(made(), max_workers=4)
    assert drawn(changing) == drawn(made())
    assert len(internals.workers_of(iter(changing))) == script.settings[0].workers
    assert not changing.tuning.off


@pytest.mark.parametrize(("workers", "script"), [(0, Hiring), (1, Sparing)])
def test_loaders_that_are_begun_before_one_is_asked_draw_in_turn_as_without(
    monkeypatch: pytest.MonkeyPatch, workers: int, script: type[Scripted]
) -> None:
    """Workers have a shuffle draw as it begins, and without them it draws with the first batch."""
    monkeypatch.setattr(tuned, "Control", script)
    monkeypatch.setattr(tuned, "_SHORT_EPOCH", 0)

    def drawn(*made: Any) -> tuple[list[Any], float]:
        torch.manual_seed(3)
        epochs = [list(zip(*made, strict=True)) for _ in range(3)]
        shown = [[numbers(pair) for pair in epoch] for epoch in epochs]
        return shown, float(torch.rand(()))

    options: dict[str, Any] = {"num_workers": workers, "shuffle": True, "generator": None}
    plain, other, changing = (loader(Numbers(draws=False), **options) for _ in range(3))
    dlprof.tune(changing, max_workers=4)
    assert drawn(changing, other) == drawn(plain, other)
    assert len(internals.workers_of(iter(changing))) == script.settings[0].workers


def augmented(**options: Any) -> list[list[list[list[float]]]]:
    torch.manual_seed(11)
    made = loader(**{k: v for k, v in options.items() if k != "max_workers"})
    kept = dlprof.tune(made, reseed="batch", max_workers=options.get("max_workers", 4))
    return [[batch.tolist() for batch in kept] for _ in range(2)]


def test_reseeded_batches_are_the_same_at_any_number_of_workers(
    scripted: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    once = augmented(num_workers=1, max_workers=4)
    assert once == augmented(num_workers=3, max_workers=4)
    monkeypatch.setenv("DLPROF_TUNE", "off")
    assert once == augmented(num_workers=2)
    assert once == augmented(num_workers=0)
    first, second = once
    assert [batch[0][1:] for batch in first] != [batch[0][1:] for batch in second]
    drawn = [number for batch in first for sample in batch for number in sample[1:]]
    assert len(set(drawn)) == len(drawn)


class Gaps(Numbers):
    """One of its samples can't be had, or several."""

    failing: Sequence[int] = (41,)

    def __getitem__(self, index: int) -> torch.Tensor:
        if index in self.failing:
            raise KeyError(index)
        return super().__getitem__(index)


@pytest.mark.slow
def test_reseeded_batches_are_the_same_where_workers_come_and_go(
    restless: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    once, again = (augmented(num_workers=2) for _ in range(2))
    assert once == again
    monkeypatch.setenv("DLPROF_TUNE", "off")
    assert once == augmented(num_workers=3)


def test_a_batch_that_fails_without_workers_is_left_out_as_with_them(restless: None) -> None:
    def taken(made: Any) -> list[Any]:
        came: list[Any] = []
        batches = iter(made)
        while True:
            try:
                came.append(next(batches).tolist())
            except KeyError:
                came.append("failed")
            except StopIteration:
                return came

    dataset = Gaps(draws=False)
    dataset.failing = range(0, LENGTH, 9)
    options: dict[str, Any] = {"batch_size": 4, "num_workers": 2}
    changing = dlprof.tune(DataLoader(dataset, **options), max_workers=4)
    for _ in range(2):
        assert taken(changing) == taken(DataLoader(dataset, **options))


def test_reseeded_batches_are_the_same_after_one_that_failed(scripted: None) -> None:
    def taken(workers: int) -> list[Any]:
        torch.manual_seed(11)
        made: Any = DataLoader(Gaps(), batch_size=4, num_workers=workers)
        dlprof.tune(made, reseed="batch", max_workers=4)
        came: list[Any] = []
        batches = iter(made)
        while len(came) < LENGTH // 4 - 1:
            with contextlib.suppress(KeyError):
                came.append(next(batches).tolist())
        return came

    assert taken(0) == taken(2)


class Nested(Numbers):
    """Runs a loader of its own for each sample."""

    def __getitem__(self, index: int) -> torch.Tensor:
        own: Any = DataLoader([index, 2 * index], batch_size=2)  # type: ignore[arg-type] # a list is indexed, too
        return torch.cat([*own]).double()


@pytest.mark.slow
def test_a_loader_that_a_dataset_runs_itself_is_left_alone(scripted: None) -> None:
    plain = [batch.tolist() for batch in loader(Nested())]
    made = dlprof.tune(loader(Nested()), reseed="batch", max_workers=4)
    assert [batch.tolist() for batch in made] == plain


@pytest.mark.slow
def test_kept_workers_draw_others_in_each_epoch(scripted: None) -> None:
    first, second = augmented(num_workers=2, persistent_workers=True)
    assert {each[1] for batch in first for each in batch}.isdisjoint(
        each[1] for batch in second for each in batch
    )


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("reseed", [None, pytest.param("batch", marks=pytest.mark.slow)])
def test_the_trainings_random_numbers_are_left_alone(
    scripted: None, workers: int, reseed: Any
) -> None:
    def drawn(made: Any) -> tuple[float, float]:
        torch.manual_seed(3)
        random.seed(3)
        for _ in made:
            pass
        return random.random(), float(torch.rand(()))

    options: dict[str, Any] = {"num_workers": workers, "shuffle": True}
    plain = drawn(loader(Numbers(draws=False), **options))
    changing: Any = dlprof.tune(loader(Numbers(), **options), reseed=reseed, max_workers=4)
    if workers or reseed:  # else the dataset draws from them, as it does without
        assert drawn(changing) == plain
    else:
        assert drawn(changing) == drawn(loader(Numbers(), **options))
        assert "draws from the training's own random numbers" in changing.tuning.off


@pytest.mark.slow
def test_a_torch_without_numpy_is_tuned_too(
    scripted: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    def numpy(*_: Any) -> None:
        raise RuntimeError("Numpy is not available")  # as torch says it

    monkeypatch.setattr(torch.Tensor, "numpy", numpy)
    monkeypatch.setattr("dlprof.tuning.seeding._numpy", lambda: None)
    changing: Any = dlprof.tune(loader(Numbers(draws=False), shuffle=False), max_workers=4)
    assert numbers(changing) == [[4.0 * each + n for n in range(4)] for each in range(LENGTH // 4)]
    assert not changing.tuning.off


class AsItGoes(Sampler[int]):
    """Draws each index when it is asked for it."""

    def __iter__(self) -> Iterator[int]:
        for _ in range(LENGTH):
            yield int(torch.randint(LENGTH, ()))

    def __len__(self) -> int:
        return LENGTH


@pytest.mark.slow
@pytest.mark.parametrize("workers", [0, 2])
def test_a_sampler_that_draws_beside_the_training_has_it_as_far_ahead_as_ever(
    scripted: None, workers: int
) -> None:
    def drawn(made: Any) -> list[tuple[list[float], float]]:
        torch.manual_seed(3)
        return [(batch[:, 0].tolist(), float(torch.rand(()))) for _ in range(2) for batch in made]

    options: dict[str, Any] = {"sampler": AsItGoes(), "shuffle": False, "num_workers": workers}
    plain, changing = (loader(Numbers(draws=False), **options) for _ in range(2))
    dlprof.tune(changing, reseed="batch", max_workers=4)
    assert drawn(changing) == drawn(plain)
    assert "its sampler draws" in changing.tuning.off


@pytest.mark.parametrize("workers", [pytest.param(0, marks=pytest.mark.slow), 2])
def test_a_shuffle_that_seeds_itself_is_no_such_sampler(scripted: None, workers: int) -> None:
    def drawn(made: Any) -> list[Any]:
        torch.manual_seed(3)
        return [(numbers(made), float(torch.rand(()))) for _ in range(3)]

    options: dict[str, Any] = {"shuffle": True, "num_workers": workers, "generator": None}
    plain, changing = (loader(Numbers(draws=False), **options) for _ in range(2))
    dlprof.tune(changing, max_workers=4)
    assert drawn(changing) == drawn(plain)
    assert changing.tuning.off == ""


class Deep(Scripted):
    """Has many batches in flight, soon."""

    settings = (Setting(4, 4),)


@pytest.mark.parametrize(
    ("length", "options"),
    [
        (94, {"drop_last": True}),
        *(
            pytest.param(*each, marks=pytest.mark.slow)
            for each in ((96, {}), (94, {}), (24, {"batch_size": 1}))
        ),
    ],
)
def test_a_shuffle_draws_from_its_generator_when_it_does_without(
    monkeypatch: pytest.MonkeyPatch, length: int, options: dict[str, Any]
) -> None:
    """It draws once more as it ends, and a loop that stops early may not get there."""
    monkeypatch.setattr(tuned, "Control", Deep)
    monkeypatch.setattr(tuned, "_SHORT_EPOCH", 0)

    def drawn(made: Any) -> list[Any]:
        stopped = numbers(itertools.islice(iter(made), 14))
        shared = [
            (batch[:, 0].tolist(), float(torch.rand((), generator=generator))) for batch in made
        ]
        return [stopped, shared, numbers(made)]

    came = []
    for tune in (False, True):
        generator = torch.Generator().manual_seed(7)
        made: Any = loader(
            Numbers(length, draws=False), shuffle=True, generator=generator, **options
        )
        came.append(drawn(dlprof.tune(made, max_workers=4) if tune else made))
    assert came[0] == came[1]


def test_loops_that_stop_early_nest_and_pair_are_as_without(scripted: None) -> None:
    changing, plain = dlprof.tune(loader(), max_workers=4), loader()
    for made in (changing, plain):  # both draw their shuffles from a generator of their own
        next(iter(made))
    assert numbers(itertools.islice(iter(changing), 7)) == numbers(itertools.islice(iter(plain), 7))
    pairs = list(zip(changing, changing, strict=True))
    expected = list(zip(plain, plain, strict=True))
    for side in (0, 1):
        assert numbers(pair[side] for pair in pairs) == numbers(pair[side] for pair in expected)


class Unsized(Sampler[int]):
    def __iter__(self) -> Iterator[int]:
        return iter(range(8))

    def __len__(self) -> int:
        raise NotImplementedError


@pytest.mark.parametrize("error", [NotImplementedError, ValueError])
def test_a_sampler_that_refuses_its_length_is_no_fault(
    monkeypatch: pytest.MonkeyPatch, error: type[Exception]
) -> None:
    def refuse(_: object) -> int:
        raise error

    monkeypatch.setattr(Unsized, "__len__", refuse)
    made: Any = dlprof.tune(loader(Numbers(), sampler=Unsized()))
    assert not made.tuning.off


class Sized(Streams):
    def __len__(self) -> int:
        return 1 + int(torch.randint(3, ()))


def test_a_length_that_is_asked_for_holds_nobody_to_it_and_draws_nothing() -> None:
    """Torch warns of each sample above what it was given when a loader was asked for its length."""
    torch.manual_seed(3)
    expected = float(torch.rand(()))
    torch.manual_seed(3)
    made = dlprof.tune(DataLoader(Sized(), batch_size=None, num_workers=2))
    assert float(torch.rand(())) == expected
    with warnings.catch_warnings():
        warnings.simplefilter("error", UserWarning)
        assert len(list(made)) == LENGTH - 10


class Early(Scripted):
    """Begins with other settings than the loader's."""

    def begin(self) -> Ask:
        return super().begin()._replace(setting=Setting(3, 4))


class Stubborn(DataLoader[Any]):
    """Lets nobody change how many batches it prefetches."""

    def __setattr__(self, name: str, value: object) -> None:
        if name == "prefetch_factor" and name in vars(self):
            raise AttributeError(name)
        super().__setattr__(name, value)


def test_a_loader_that_refuses_a_setting_loads_as_before(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tuned, "Control", Early)
    changing: Any = dlprof.tune(Stubborn(Numbers(), batch_size=4, num_workers=2))
    assert numbers(changing) == numbers(loader(Numbers()))
    assert "could not be started" in changing.tuning.off


def test_what_is_started_again_draws_what_is_drawn_without(monkeypatch: pytest.MonkeyPatch) -> None:
    """The third worker can't be started: the loader goes on with its own two."""

    def drawn(made: Any) -> tuple[Any, float]:
        torch.manual_seed(11)
        return [batch.tolist() for batch in made], float(torch.rand(()))

    options: dict[str, Any] = {"shuffle": True, "generator": None}
    plain = drawn(loader(Numbers(), **options))
    monkeypatch.setattr(tuned, "Control", Early)
    queue, made = torch.multiprocessing.Queue, itertools.count(1)

    def failing(*given: Any, **named: Any) -> Any:
        if next(made) == 4:
            raise OSError(errno.ENOMEM, "no memory")
        return queue(*given, **named)

    monkeypatch.setattr(torch.multiprocessing, "Queue", failing)
    changing: Any = dlprof.tune(loader(Numbers(), **options))
    assert drawn(changing) == plain
    assert "no memory" in changing.tuning.off
    assert next(made) > 6


class Refusing(Sampler[int]):
    def __init__(self) -> None:
        self.asked = 0

    def __iter__(self) -> Iterator[int]:
        self.asked += 1
        raise LookupError("no order")
        yield 0

    def __len__(self) -> int:
        return LENGTH


def test_a_sampler_that_fails_is_not_asked_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tuned, "Control", Early)
    plain, changing = (loader(Numbers(), sampler=Refusing(), shuffle=False) for _ in range(2))
    dlprof.tune(changing)
    for made in (plain, changing):
        with pytest.raises(LookupError):
            iter(made)
    assert changing.sampler.asked == plain.sampler.asked
    assert not changing.tuning.off
