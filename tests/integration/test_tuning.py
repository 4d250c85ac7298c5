"""A loader that tunes itself gives what it gives without: batches, random numbers, faults."""

from __future__ import annotations

import contextlib
import dataclasses
import errno
import gc
import itertools
import json
import logging
import multiprocessing
import os
import pickle
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
import warnings
import weakref
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
import torch
from torch.utils.data import (
    DataLoader,
    Dataset,
    DistributedSampler,
    IterableDataset,
    Sampler,
    get_worker_info,
)
from torch.utils.data._utils import signal_handling
from torch.utils.data.datapipes.iter import IterableWrapper
from torch.utils.data.datapipes.map import SequenceWrapper

import dlprof
from dlprof import internals
from dlprof.errors import UsageError
from dlprof.integrations import callbacks, loggers, running
from dlprof.machine import inspect_machine
from dlprof.saved import save_kwargs
from dlprof.tuning import control
from dlprof.tuning import loader as tuned
from dlprof.tuning.budget import Budget, Node
from dlprof.tuning.control import NO_WORKERS, Ask, Control, Setting, Window
from dlprof.tuning.loader import Tuning

LENGTH = 96


class Numbers(Dataset[torch.Tensor]):
    """Each sample is its number and three random ones."""

    def __init__(self, length: int = LENGTH, *, draws: bool = True) -> None:
        self.length, self.draws = length, draws

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: int) -> torch.Tensor:
        if not self.draws:
            return torch.tensor([float(index)])
        drawn = [random.random(), float(torch.rand(())), float(np.random.rand())]  # noqa: NPY002 - as users draw
        return torch.tensor([float(index), *drawn], dtype=torch.float64)


class Streams(IterableDataset[int]):
    """Shares its samples out among workers, unevenly."""

    def __iter__(self) -> Iterator[int]:
        info = get_worker_info()
        number, count = (0, 1) if info is None else (info.id, info.num_workers)
        return iter(range(number, LENGTH - 20 * number, count))


class Scripted(Control):
    """Has another setting in every window, whatever it sees."""

    settings: tuple[Setting, ...] = tuple(
        Setting(*each) for each in [(3, 2), (1, 1), (2, 4), (4, 1), (1, 3), (4, 4), (2, 1)]
    )

    def begin(self) -> Ask:
        self._following = itertools.cycle(self.settings)
        return Ask(self.kept, 0, 2, 0.0)

    def look(self, window: Window) -> Ask:
        self.batches += window.batches
        following = next(self._following)
        if not self._changes_workers:
            following = Setting(self.kept.workers, following.ahead)
        return Ask(following, 1, 2, 0.0)


class Refused(Scripted):
    """Notes why it got no setting, and stays with what it has then."""

    refusals: ClassVar[list[str]]

    def look(self, window: Window) -> Ask:
        self.refusals.extend([window.refused] if window.refused else [])
        return Ask(self.kept, 0, 2, 0.0) if window.refused else super().look(window)


def refusals_of(monkeypatch: pytest.MonkeyPatch, *wanted: Setting) -> list[str]:
    """Have loaders tuned by a control that wants these settings; why it didn't get them."""
    said = list[str]()
    monkeypatch.setattr(Refused, "refusals", said, raising=False)
    monkeypatch.setattr(Refused, "settings", wanted)
    monkeypatch.setattr(tuned, "Control", Refused)
    monkeypatch.setattr(tuned, "_SHORT_EPOCH", 0)
    return said


@pytest.fixture
def scripted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tuned, "Control", Scripted)
    monkeypatch.setattr(tuned, "_SHORT_EPOCH", 0)


@pytest.fixture(autouse=True)
def no_orphan() -> Iterator[None]:
    before = set(multiprocessing.active_children())
    yield
    gc.collect()
    until = time.monotonic() + 20
    while set(multiprocessing.active_children()) - before and time.monotonic() < until:
        time.sleep(0.05)
    assert not set(multiprocessing.active_children()) - before


def loader(dataset: Any = None, **options: Any) -> Any:
    options = {"batch_size": 4, "num_workers": 2, **options}
    if dataset is None:
        options.setdefault("generator", torch.Generator().manual_seed(5))
        options.setdefault("shuffle", True)
    return DataLoader(Numbers() if dataset is None else dataset, **options)


def numbers(batches: Any) -> list[list[float]]:
    return [batch[:, 0].tolist() for batch in batches]


MODES: dict[str, dict[str, Any]] = {
    "plain": {},
    "persistent": {"persistent_workers": True},
    "P=1": {"num_workers": 1, "prefetch_factor": 1},
    "batch_sampler": {"batch_sampler": [[3, 1], [2], [7, 8, 9], [0]] * 9, "batch_size": 1},
}


class Slow(Numbers):
    """Each sample takes much longer than it takes to be received."""

    def __getitem__(self, index: int) -> torch.Tensor:
        time.sleep(0.03)
        return super().__getitem__(index)


def test_a_batch_that_is_sent_and_not_there_yet_is_waited_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A queue counts what it hasn't written yet; what that waits is no cost of receiving."""
    seen: list[Window] = []

    class Watched(Scripted):
        settings = (Setting(1, 2),)

        def look(self, window: Window) -> Ask:
            seen.append(window)
            return super().look(window)

    monkeypatch.setattr(tuned, "Control", Watched)
    monkeypatch.setattr(tuned, "_SHORT_EPOCH", 0)
    monkeypatch.setattr(internals, "sent_batches", lambda _: 1)

    for _ in dlprof.tune(loader(Slow(draws=False), batch_size=1, num_workers=1), max_workers=1):
        pass

    assert len(seen) > 3
    received = [each.receive_s for each in seen if each.receive_s]
    assert received
    assert max(received) < 0.01


@pytest.mark.parametrize("mode", MODES)
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


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("mode", [*MODES, "in_order=False"])
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


def test_each_epoch_has_the_order_that_its_sampler_was_told(scripted: None) -> None:
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


@pytest.mark.parametrize("kind", [Scripted, Shallow])
@pytest.mark.parametrize("batch_size", [4, 5])  # the last one is smaller
def test_without_order_no_sample_is_lost_or_doubled(
    kind: Any, batch_size: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tuned, "Control", kind)
    monkeypatch.setattr(tuned, "_SHORT_EPOCH", 0)
    changing = dlprof.tune(loader(in_order=False, batch_size=batch_size), max_workers=4)
    came = [number for batch in numbers(changing) for number in batch]
    assert sorted(came) == [float(each) for each in range(LENGTH)]


def test_workers_are_started_and_parked_while_an_epoch_goes_on(scripted: None) -> None:
    changing = dlprof.tune(loader(Numbers(400)), max_workers=4)
    batches = iter(changing)
    for _ in range(40):
        next(batches)
    assert internals.started_workers(batches) == 4
    pids = {each.pid for each in internals.workers_of(batches)}
    assert len(pids) == 4
    del batches
    gc.collect()
    assert not pids & {each.pid for each in multiprocessing.active_children()}


@pytest.mark.parametrize("method", ["fork", pytest.param("spawn", marks=pytest.mark.slow)])
def test_each_start_method_starts_more_workers(scripted: None, method: str) -> None:
    options = {"multiprocessing_context": method}
    assert numbers(dlprof.tune(loader(**options), max_workers=4)) == numbers(loader(**options))


@pytest.mark.slow
def test_batches_are_not_held_up_by_workers_that_start_slowly(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(tuned, "Control", Hiring)
    monkeypatch.setattr(tuned, "_SHORT_EPOCH", 0)
    made = loader(Waiting(), shuffle=False, multiprocessing_context="forkserver")
    batches = iter(dlprof.tune(made, max_workers=3))
    came, until = 0, time.monotonic() + 120
    while vars(batches)["_dlprof_live"].workers < 3 and time.monotonic() < until:
        next(batches)
        came += 1
    assert vars(batches)["_dlprof_live"].workers == 3
    assert came > 24  # asked for after 8; held up, no more than the 4 that are ordered would come
    for _ in range(40):
        next(batches)
    internals.shut_down(batches)


def test_the_depth_of_an_iterable_changes_and_its_order_does_not(scripted: None) -> None:
    for count in (1, 2, 3):
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


class Deepening(Scripted):
    """Has deeper queues at once, and more workers from the second epoch on."""

    def look(self, window: Window) -> Ask:
        return Ask(Setting(3, 1), 1, 2, 0.0, Setting(2, 4))


def test_queues_get_deeper_before_workers_of_an_iterable_change(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(tuned, "Control", Deepening)
    plain = DataLoader(Streams(), batch_size=3, num_workers=2)
    changing = dlprof.tune(DataLoader(Streams(), batch_size=3, num_workers=2), max_workers=3)
    batches = iter(changing)
    came = [next(batches).tolist() for _ in range(10)]
    assert internals.started_workers(batches) == 2
    assert internals.ordered_batches(batches) == 8
    came += [batch.tolist() for batch in batches]
    assert came == [batch.tolist() for batch in plain]
    assert internals.started_workers(iter(changing)) == 3


class Sparing(Scripted):
    """Spares all workers, and the second epoch starts none."""

    settings = (NO_WORKERS,)

    def look(self, window: Window) -> Ask:
        self.kept = NO_WORKERS
        return super().look(window)


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


class Returning(Scripted):
    """Has no workers as each epoch begins, soon some, and then none again."""

    settings = (Setting(3, 1), NO_WORKERS, Setting(2, 2))

    def begin(self) -> Ask:
        self.kept = NO_WORKERS
        return super().begin()


@pytest.fixture
def returning(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tuned, "Control", Returning)
    monkeypatch.setattr(tuned, "_SHORT_EPOCH", 0)
    # Each epoch begins with what is kept.
    monkeypatch.setattr(tuned._Tuner, "_allowed", lambda tuner: tuner._control.kept)


@pytest.mark.parametrize("mode", ["plain", "P=1", "batch_sampler", "in_order=False"])
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


class Eager(Sampler[list[int]]):
    """Draws all of an epoch when it is asked for it, and counts how often that is."""

    def __init__(self) -> None:
        self.asked = 0

    def __iter__(self) -> Iterator[list[int]]:
        self.asked += 1
        order: list[int] = torch.randperm(LENGTH).tolist()
        return iter([order[at : at + 4] for at in range(0, LENGTH, 4)])

    def __len__(self) -> int:
        return LENGTH // 4


class Hiring(Scripted):
    """Has some workers from the second epoch on."""

    settings = (Setting(3, 2),)


@pytest.mark.parametrize(("workers", "script"), [(0, Hiring), (1, Sparing)])
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


@pytest.mark.parametrize("method", ["fork", pytest.param("spawn", marks=pytest.mark.slow)])
def test_workers_clock_what_a_batch_takes(monkeypatch: pytest.MonkeyPatch, method: str) -> None:
    seen: list[float] = []

    class Looking(Scripted):
        def look(self, window: Window) -> Ask:
            seen.append(window.fetch_s)
            if window.fetch_s:  # it waits, and computes little
                assert 0 < window.cpu_s < window.fetch_s
            return Ask(Setting(3, 2), 0, 4, 0.0)

    monkeypatch.setattr(tuned, "Control", Looking)
    monkeypatch.setattr(tuned, "_SHORT_EPOCH", 0)
    made = loader(Waiting(), shuffle=False, multiprocessing_context=method)
    batches, until = iter(dlprof.tune(made)), time.monotonic() + 120
    while sum(each > 0 for each in seen) < 3 and time.monotonic() < until:
        next(batches)
    internals.shut_down(batches)
    assert all(each >= 4 * 0.004 for each in seen if each)
    assert sum(each > 0 for each in seen) == 3
    assert made.worker_init_fn is None


def test_what_collating_in_shared_memory_costs_is_known_of_workers_that_may_be_spared(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Over a copy in this process; workers have torch's table of what collates, and clock it."""
    seen: list[float] = []

    class Looking(Scripted):
        settings = (Setting(1, 2),)

        def look(self, window: Window) -> Ask:
            seen.append(window.shared_s)
            return super().look(window)

    table = torch.utils.data._utils.collate.default_collate_fn_map
    collate = table[torch.Tensor]

    def costly(*given: Any, **options: Any) -> Any:
        until_s = time.thread_time() + 0.002
        while time.thread_time() < until_s:
            pass
        return collate(*given, **options)

    monkeypatch.setitem(table, torch.Tensor, costly)
    monkeypatch.setattr(tuned, "Control", Looking)
    monkeypatch.setattr(tuned, "_SHORT_EPOCH", 0)
    options: dict[str, Any] = {"num_workers": 1, "multiprocessing_context": "fork"}
    limits: list[dict[str, Any]] = [{}, {"max_workers": 2}]
    for given in limits:
        seen.clear()
        assert numbers(dlprof.tune(loader(**options), **given)) == numbers(loader(**options))
        assert (max(seen) > 0.001) is bool(given)
    assert table[torch.Tensor] is costly


@pytest.mark.slow
def test_copying_starts_no_threads_that_workers_forked_later_would_wait_for() -> None:
    script = """
import os
from dlprof.tuning.loader import _copying_takes
before = len(os.listdir("/proc/self/task"))
assert _copying_takes(32 << 20) > 0
assert len(os.listdir("/proc/self/task")) == before
"""
    subprocess.run([sys.executable, "-c", script], check=True, timeout=60)


@pytest.mark.parametrize("method", ["fork", "forkserver", "spawn"])
def test_workers_are_spared_only_where_they_are_forked(method: str) -> None:
    """Others are sent the dataset, which may have opened by then what can't be sent."""
    options: dict[str, Any] = {"num_workers": 1, "multiprocessing_context": method}
    made: Any = dlprof.tune(loader(**options), max_workers=4)
    assert made.tuning._control._spares_workers is (method == "fork")


def test_copying_is_not_tried_where_there_is_no_room_for_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def copying_takes(_: int) -> float:
        copied.append(True)
        return 1e-6

    copied: list[bool] = []
    monkeypatch.setattr(tuned, "_copying_takes", copying_takes)
    monkeypatch.setattr(tuned, "Control", Scripted)
    for allowed in ("1MB", "10GB"):
        list(dlprof.tune(loader(), max_workers=2, max_ram=allowed))
        assert copied == [True] * (allowed == "10GB")


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


def test_a_loader_that_a_dataset_runs_itself_is_left_alone(scripted: None) -> None:
    plain = [batch.tolist() for batch in loader(Nested())]
    made = dlprof.tune(loader(Nested()), reseed="batch", max_workers=4)
    assert [batch.tolist() for batch in made] == plain


def test_kept_workers_draw_others_in_each_epoch(scripted: None) -> None:
    first, second = augmented(num_workers=2, persistent_workers=True)
    assert {each[1] for batch in first for each in batch}.isdisjoint(
        each[1] for batch in second for each in batch
    )


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("reseed", [None, "batch"])
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


@pytest.mark.parametrize("workers", [0, 2])
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
    ("length", "options"), [(96, {}), (94, {}), (94, {"drop_last": True}), (24, {"batch_size": 1})]
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


class Failing(Numbers):
    def __getitem__(self, index: int) -> torch.Tensor:
        if index == 41:
            raise KeyError("no such picture")
        return torch.tensor([float(index)])


def test_an_exception_in_a_worker_comes_where_it_comes_without(scripted: None) -> None:
    def taken(made: Any) -> tuple[list[Any], str]:
        batches: list[Any] = []
        iterator = iter(made)
        with pytest.raises(KeyError) as caught:
            batches.extend(batch.tolist() for batch in iterator)
        internals.shut_down(iterator)  # the plain one, as garbage, would take 5 s for each worker
        return batches, str(caught.value)[:60]

    options: dict[str, Any] = {"num_workers": 1, "batch_size": 4}
    plain = taken(DataLoader(Failing(), **options))
    came = taken(dlprof.tune(DataLoader(Failing(), **options), max_workers=4))
    assert came[0] == plain[0]
    assert came[1] == plain[1]
    assert "KeyError" in came[1]


@pytest.mark.parametrize("persistent", [False, True])
def test_workers_that_are_collected_with_an_error_hear_that_they_are_to_end(
    scripted: None, monkeypatch: pytest.MonkeyPatch, *, persistent: bool
) -> None:
    """Torch waits 5 s for each that doesn't, and ends it by force; so the next iter() took 20 s."""
    terminate, terminated = multiprocessing.process.BaseProcess.terminate, []
    before = set(multiprocessing.active_children())

    def noted(worker: Any) -> None:
        terminated.append(worker.pid)
        terminate(worker)

    monkeypatch.setattr(multiprocessing.process.BaseProcess, "terminate", noted)
    gc.disable()  # else what was made here may be collected piece by piece
    try:
        made = DataLoader(Failing(), batch_size=1, num_workers=2, persistent_workers=persistent)
        with pytest.raises(KeyError):  # it and the iterator hold each other
            list(dlprof.tune(made, max_workers=4))
        assert len(set(multiprocessing.active_children()) - before) == 4
        del made
    finally:
        gc.enable()
    gc.collect()
    assert terminated == []
    assert not set(multiprocessing.active_children()) - before


@pytest.fixture
def _interruptible() -> Iterator[None]:
    """What a shell runs in the background ignores Ctrl-C, and so would this process."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.usefixtures("_interruptible")
@pytest.mark.parametrize("raised_by", ["look", "steer"])
def test_a_loop_that_goes_on_after_ctrl_c_misses_no_batch(
    monkeypatch: pytest.MonkeyPatch, raised_by: str
) -> None:
    """It came while a setting was changed: the batch at hand is given by the next call."""
    counts: Iterator[int] = itertools.count()
    steer = internals.steer

    def interrupt(by: str) -> None:
        if by == raised_by and next(counts) == 3:
            signal.raise_signal(signal.SIGINT)

    class Interrupted(Scripted):
        counted: ClassVar[set[int]] = set()

        def look(self, window: Window) -> Ask:
            self.counted.add(window.batches)
            interrupt("look")
            return super().look(window)

    def steered(*given: Any) -> None:
        interrupt("steer")
        steer(*given)

    monkeypatch.setattr(tuned, "Control", Interrupted)
    monkeypatch.setattr(tuned, "_SHORT_EPOCH", 0)
    monkeypatch.setattr(internals, "steer", steered)
    changing = dlprof.tune(loader(Numbers(400, draws=False), shuffle=False), max_workers=4)
    batches, came, interrupts = iter(changing), [], 0
    while True:
        try:
            came.append(next(batches)[0].item())
        except KeyboardInterrupt:
            interrupts += 1
        except StopIteration:
            break
    assert interrupts == 1
    assert came == [float(each) for each in range(0, 400, 4)]
    assert Interrupted.counted == {2}  # no batch is counted twice, or as the next setting's
    assert changing.tuning.off == ""


class Alone(Scripted):
    """Goes from some workers to none, for longer than what is ordered takes, and back."""

    settings = (NO_WORKERS, NO_WORKERS, Setting(3, 1))


class Staying(Scripted):
    """Does without workers soon, for as long as the epoch goes on."""

    settings = (NO_WORKERS,)


class Interrupting(Numbers):
    """Is interrupted by Ctrl-C where the main process reads it, but not twice at one sample."""

    def __init__(self) -> None:
        super().__init__(draws=False)
        self.interrupted = set[int]()

    def __getitem__(self, index: int) -> torch.Tensor:
        if get_worker_info() is None and index % 4 == 2 and index not in self.interrupted:
            self.interrupted.add(index)
            signal.raise_signal(signal.SIGINT)
        return super().__getitem__(index)


@pytest.mark.usefixtures("_interruptible")
@pytest.mark.parametrize("script", [Alone, Returning])
def test_a_batch_that_ctrl_c_keeps_from_being_made_is_the_next(
    monkeypatch: pytest.MonkeyPatch, script: type[Scripted]
) -> None:
    monkeypatch.setattr(tuned, "Control", script)
    monkeypatch.setattr(tuned, "_SHORT_EPOCH", 0)
    dataset = Interrupting()
    batches, came = iter(dlprof.tune(loader(dataset), max_workers=4)), list[float]()
    while True:
        with contextlib.suppress(KeyboardInterrupt):
            if (batch := next(batches, None)) is None:
                break
            came += batch.flatten().tolist()
    assert came == [float(each) for each in range(LENGTH)]
    assert len(dataset.interrupted) > 2


def test_loops_that_stop_where_workers_are_done_without_leave_none_behind(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(tuned, "Control", Staying)
    monkeypatch.setattr(tuned, "_SHORT_EPOCH", 0)
    changing = dlprof.tune(loader(Numbers(400, draws=False), shuffle=False), max_workers=4)
    for stop in (18, 20, 25):  # four were ordered when it went over, at the twelfth
        batches = iter(changing)
        came = numbers(itertools.islice(batches, stop))
        assert came == [[4.0 * n + k for k in range(4)] for n in range(stop)]
        assert internals.ordered_batches(batches) == 0
        assert len(internals.workers_of(batches)) == 2
        del batches


def test_a_parked_worker_that_is_killed_ends_the_epoch_as_others_do(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # Torch sets its handler once in a process, where another test may have replaced it.
    monkeypatch.setattr(signal_handling, "_SIGCHLD_handler_set", False)
    monkeypatch.setattr(tuned, "Control", Staying)
    monkeypatch.setattr(tuned, "_SHORT_EPOCH", 0)
    changing = dlprof.tune(loader(Numbers(4000, draws=False), shuffle=False), max_workers=4)
    batches, came = iter(changing), list[float]()
    for _ in range(18):  # four were ordered when it went over, at the twelfth
        came += next(batches).flatten().tolist()
    assert internals.ordered_batches(batches) == 0

    def load() -> None:
        worker = internals.workers_of(batches)[1]
        worker.kill()
        os.waitid(os.P_PID, worker.pid, os.WEXITED | os.WNOWAIT)  # torch's own handler reaps it
        for batch in batches:
            came.extend(batch.flatten().tolist())

    with pytest.raises(RuntimeError, match="DataLoader worker"):
        load()
    assert came == [float(each) for each in range(len(came))]
    assert len(came) < 4000


@pytest.mark.skipif(sys.platform != "linux", reason="workers are forked, and seen by /proc")
def test_the_main_process_shares_no_file_that_workers_move(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    refusals = refusals_of(monkeypatch, *Alone.settings)
    changing = dlprof.tune(loader(Reading(tmp_path / "a.bin")), max_workers=4)
    assert len(list(changing)) == LENGTH // 4
    assert "moves the position of file (a.bin), which the main process" in refusals[0]


class Asking(Dataset[torch.Tensor]):
    """Samples that say which worker made them."""

    def __len__(self) -> int:
        return LENGTH

    def __getitem__(self, index: int) -> torch.Tensor:
        info: Any = get_worker_info()
        return torch.tensor([index, info.id])  # which there isn't in the main process


class Begun(IterableDataset[torch.Tensor]):
    """Numbers that say which worker made them, and how often the dataset was begun."""

    begun = 0

    def __iter__(self) -> Iterator[torch.Tensor]:
        self.begun += 1
        info: Any = get_worker_info()
        return (torch.tensor([n, info.id]) for n in range(info.id, LENGTH, info.num_workers))


def until_refused(changing: Any, refusals: list[str]) -> Iterator[list[Any]]:
    """The epochs until the first refusal, and two more."""
    until, more = time.monotonic() + 120, 2
    while more and time.monotonic() < until:
        more -= bool(refusals)
        yield list(changing)


@pytest.mark.parametrize("edge", [False, True])
@pytest.mark.parametrize("dataset", [Asking(), Begun()])
def test_workers_that_must_be_asked_who_they_are_stay(
    monkeypatch: pytest.MonkeyPatch, dataset: Any, *, edge: bool
) -> None:
    """What reading without workers does to the dataset, and raises, the training doesn't see."""
    refusals = refusals_of(monkeypatch, *Alone.settings)
    monkeypatch.setattr(tuned, "_SHORT_EPOCH", 10_000 if edge else 0)
    changing = dlprof.tune(loader(dataset), max_workers=4)
    for epoch in until_refused(changing, refusals):
        assert sorted(int(n) for batch in epoch for n in batch[:, 0]) == list(range(LENGTH))
    said = "outside of workers its dataset gives no batch: AttributeError: 'NoneType' object"
    assert refusals[0].startswith(said)
    assert getattr(dataset, "begun", 0) == 0
    assert changing.tuning.off == ""


class Seldom(Asking):
    """Asks for one sample of many only: it would fail in the midst of an epoch."""

    def __getitem__(self, index: int) -> torch.Tensor:
        return super().__getitem__(index) if index % 12 == 11 else torch.tensor([index, 0])


def test_workers_that_are_asked_now_and_then_stay(monkeypatch: pytest.MonkeyPatch) -> None:
    refusals = refusals_of(monkeypatch, *Alone.settings)
    monkeypatch.setattr(tuned, "_SHORT_EPOCH", 10_000)
    changing = dlprof.tune(loader(Seldom()), max_workers=4)
    for epoch in until_refused(changing, refusals):
        assert len(epoch) == LENGTH // 4
    assert refusals[0] == "the dataset asks get_worker_info() for more than None now and then"


class Tolerant(Asking):
    """Does with no answer."""

    def __getitem__(self, index: int) -> torch.Tensor:
        info = get_worker_info()
        return torch.tensor([index, -1 if info is None else info.id])


@pytest.mark.parametrize("edge", [False, True])
def test_workers_that_need_not_be_asked_who_they_are_are_done_without(
    monkeypatch: pytest.MonkeyPatch, *, edge: bool
) -> None:
    refusals = refusals_of(monkeypatch, *Staying.settings)
    monkeypatch.setattr(tuned, "_SHORT_EPOCH", 10_000 if edge else 0)
    changing = dlprof.tune(loader(Tolerant(), shuffle=False), max_workers=4)
    until, makers = time.monotonic() + 120, set[int]()
    while -1 not in makers and time.monotonic() < until:
        epoch = torch.cat(list(changing))
        assert epoch[:, 0].tolist() == list(range(LENGTH))
        makers = {*epoch[:, 1].tolist()}
    assert -1 in makers
    assert not refusals


def test_no_process_sees_what_is_without_workers_where_there_is_no_room_for_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    refusals = refusals_of(monkeypatch, *Staying.settings)
    changing = dlprof.tune(loader(Tolerant(), shuffle=False), max_workers=4, max_ram=1_000_000)
    for epoch in until_refused(changing, refusals):
        assert torch.cat(epoch)[:, 0].tolist() == list(range(LENGTH))
    assert refusals[0].startswith("there is no room to see if its dataset gives a batch without")
    assert refusals[0].endswith("above max_ram")


class Drawing(IterableDataset[list[float]]):
    """Random numbers from its first step on, which the training has none of."""

    def __init__(self) -> None:
        self.begun = list[tuple[int, ...]]()

    def __iter__(self) -> Iterator[list[float]]:
        info = get_worker_info()
        number, count = (0, 1) if info is None else (info.id, info.num_workers)
        self.begun.append((number, count))
        random.shuffle([1, 2, 3])
        order = torch.randperm(3)  # not in a generator: `iter` runs it
        return ([n, random.random(), float(order[0])] for n in range(number, LENGTH, count))


def test_an_iterable_that_shares_its_samples_out_is_read_without_workers(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """From an epoch's edge on, as with ``num_workers=0``; and then with workers again."""

    def drawn(made: Any, epochs: int) -> tuple[list[list[int]], list[float]]:
        torch.manual_seed(3)
        random.seed(3)
        seen, after = [], []
        for _ in range(epochs):
            batches = list(made)
            seen.append([int(n) for batch in batches for n in batch[:, 0]])
            after += [random.random(), float(torch.rand(()))]
        return seen, after

    def made(workers: int) -> Any:
        return DataLoader(Drawing(), batch_size=3, num_workers=workers, collate_fn=torch.tensor)

    class Edge(Refused):
        def look(self, window: Window) -> Ask:
            alone = not window.setting.workers
            return super().look(window)._replace(setting=Setting(2, 2) if alone else NO_WORKERS)

    refusals = refusals_of(monkeypatch, NO_WORKERS)
    monkeypatch.setattr(tuned, "Control", Edge)
    changing, until = dlprof.tune(made(2), max_workers=4), time.monotonic() + 120
    while not changing.dataset.begun and time.monotonic() < until:
        seen, after = drawn(changing, 4)
    (shared, _), alone = drawn(made(2), 4), list(range(LENGTH))
    assert alone in seen
    assert all(each == (alone if each == alone else shared[0]) for each in seen)
    assert {*changing.dataset.begun} == {(0, 1)}
    assert after == drawn(made(2), 4)[1]
    assert not refusals
    assert changing.tuning.off == ""


class Whole(Streams):
    """All samples, in whichever worker."""

    def __iter__(self) -> Iterator[int]:
        return iter(range(LENGTH))


@pytest.mark.parametrize("dataset", [Whole(), Streams()])
def test_the_only_reader_of_an_iterable_is_done_without_from_an_epochs_edge_on(
    monkeypatch: pytest.MonkeyPatch, dataset: Any
) -> None:
    """Nobody shares its samples with it, so that they come in the same order."""

    class Edge(Refused):
        def look(self, window: Window) -> Ask:
            return super().look(window)._replace(setting=NO_WORKERS)

    refusals = refusals_of(monkeypatch, NO_WORKERS)
    monkeypatch.setattr(tuned, "Control", Edge)
    made, beside = (DataLoader(dataset, batch_size=4, num_workers=1) for _ in range(2))
    plain, until, left = [batch.tolist() for batch in beside], time.monotonic() + 120, 2
    changing: Any = dlprof.tune(made, max_workers=4)
    while left and time.monotonic() < until:
        batches = iter(changing)
        left -= not internals.workers_of(batches)
        assert [batch.tolist() for batch in batches] == plain
    assert not left
    assert not refusals
    assert changing.tuning.off == ""


class Counting(Streams):
    """Counts in itself, from where it was, as workers that are forked again needn't notice."""

    place = 0

    def __iter__(self) -> Iterator[int]:
        info = get_worker_info()
        number, count = (0, 1) if info is None else (info.id, info.num_workers)
        while self.place < LENGTH:
            self.place += 1
            if (self.place - 1) % count == number:
                yield self.place - 1


class Closing(Counting):
    """Has something that a copy of it would close."""

    closed = 0

    def __del__(self) -> None:
        type(self).closed += 1


def test_an_iterable_that_counts_in_itself_begins_each_epoch_as_in_workers(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(tuned, "Control", Sparing)
    changing: Any = dlprof.tune(DataLoader(Counting(), batch_size=4, num_workers=2), max_workers=4)
    until = time.monotonic() + 60
    while internals.workers_of(iter(changing)) and time.monotonic() < until:
        list(changing)
    for _ in range(2):
        batches, beside = iter(changing), iter(changing)
        assert not internals.workers_of(batches)
        pairs = [(one.tolist(), other.tolist()) for one, other in zip(batches, beside, strict=True)]
        assert sorted(n for one, _ in pairs for n in one) == list(range(LENGTH))
        assert all(one == other for one, other in pairs)
    assert changing.dataset.place == 0


@pytest.mark.parametrize(
    ("dataset", "times", "why"),
    [
        # Without workers an epoch would have half as many samples.
        (Whole(), 2, "each worker gives all of its iterable dataset"),
        (Closing(), 1, "its iterable dataset can't be copied"),
    ],
    ids=["shares nothing out", "no copy"],
)
def test_an_iterable_that_needs_its_workers_keeps_them(
    monkeypatch: pytest.MonkeyPatch, dataset: Any, times: int, why: str
) -> None:
    refusals = refusals_of(monkeypatch, NO_WORKERS)
    changing = dlprof.tune(DataLoader(dataset, batch_size=4, num_workers=2), max_workers=4)
    for epoch in until_refused(changing, refusals):
        assert sorted(n for batch in epoch for n in batch.tolist()) == sorted(
            times * [*range(LENGTH)]
        )
    assert refusals[0].startswith(why)
    assert Closing.closed == 0


class AskingReader(Numbers):
    """Reads by a position which nobody else may move meanwhile, and asks who it is."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        path.write_bytes(bytes(range(LENGTH)))
        self.file = path.open("rb", buffering=0)

    def __getitem__(self, index: int) -> torch.Tensor:
        info = get_worker_info()
        if info is None or info.id == 0:
            self.file.seek(index)
        time.sleep(0.002)
        return torch.tensor([float(index), self.file.read(1)[0]])


@pytest.mark.skipif(sys.platform != "linux", reason="positions are seen by /proc")
def test_an_attempt_without_workers_moves_no_file_that_a_worker_reads(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    refusals = refusals_of(monkeypatch, *Staying.settings)
    dataset = AskingReader(tmp_path / "a.bin")
    changing = dlprof.tune(loader(dataset, batch_size=1, num_workers=1), max_workers=2)
    for epoch in until_refused(changing, refusals):
        assert all(sample == read for batch in epoch for sample, read in batch.tolist())
    dataset.file.close()
    assert refusals[0].startswith("a worker moves the position of file (a.bin)")


def test_an_attempt_without_workers_leaves_no_descriptor_open() -> None:
    attempt = tuned._Attempt(lambda: None, multiprocessing.get_context("fork"), "")
    held = weakref.ref(attempt._process)
    while attempt.error() is None:
        time.sleep(0.01)
    gc.collect()
    assert attempt.error() == ""
    assert held() is None


def test_a_stream_that_needs_long_outside_of_workers_is_not_waited_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    class Stuck(Streams):
        def __iter__(self) -> Iterator[int]:
            if get_worker_info() is None:
                time.sleep(60)
            return super().__iter__()

    refusals = refusals_of(monkeypatch, *Staying.settings)
    monkeypatch.setattr(tuned, "_ATTEMPT_S", 1)
    changing = dlprof.tune(DataLoader(Stuck(), batch_size=3, num_workers=2), max_workers=4)
    plain = [batch.tolist() for batch in DataLoader(Streams(), batch_size=3, num_workers=2)]
    for epoch in until_refused(changing, refusals):
        assert [batch.tolist() for batch in epoch] == plain
    assert "gives no batch: " in refusals[0]


@pytest.mark.parametrize("asks", [signal.SIGTERM, signal.SIGKILL])
def test_what_an_attempt_without_workers_does_to_its_process_is_no_concern_of_the_training(
    monkeypatch: pytest.MonkeyPatch, asks: int
) -> None:
    class Deadly(Streams):
        def __iter__(self) -> Iterator[int]:
            if get_worker_info() is None:
                os.kill(os.getpid(), asks)
            return super().__iter__()

    handled: list[int] = []
    before = signal.signal(signal.SIGTERM, lambda number, _: handled.append(number))
    try:
        refusals = refusals_of(monkeypatch, *Staying.settings)
        changing = dlprof.tune(DataLoader(Deadly(), batch_size=3, num_workers=2), max_workers=4)
        for epoch in until_refused(changing, refusals):
            assert sum(len(batch) for batch in epoch) > 0
    finally:
        signal.signal(signal.SIGTERM, before)
    assert refusals[0].endswith("gives no batch: the process that tried ended")
    assert not handled


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="workers are forked, and seen by /proc")
def test_workers_that_come_while_an_epoch_goes_on_share_no_file_that_was_opened_without_them(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    places: list[tuple[int, int]] = []

    class Looking(Alone):
        def look(self, window: Window) -> Ask:
            place = dataset.file.tell() if dataset.pid else 0
            places.append((window.setting.workers, place))
            return super().look(window)

    monkeypatch.setattr(tuned, "Control", Looking)
    monkeypatch.setattr(tuned, "_SHORT_EPOCH", 0)
    dataset = Opening(tmp_path / "a.bin")
    changing = dlprof.tune(loader(dataset, shuffle=False), max_workers=4)
    for _ in range(4):
        batches = iter(changing)
        assert len(list(batches)) == LENGTH // 4
        assert internals.started_workers(batches) == 3
    assert dataset.pid == os.getpid()
    stays = [now == before for (_, before), (had, now) in itertools.pairwise(places) if had == 3]
    assert len(stays) > 2
    assert all(stays)
    dataset.file.close()


def test_a_timeout_that_more_workers_may_exceed_is_heeded(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Twice as many that compute take twice as long on the same cores."""
    refused: list[str] = []

    class Growing(Scripted):
        def look(self, window: Window) -> Ask:
            refused.append(window.refused)
            return Ask(self.kept if window.refused else Setting(16, 2), 0, 2, 0.0)

    monkeypatch.setattr(tuned, "Control", Growing)
    monkeypatch.setattr(tuned, "_SHORT_EPOCH", 0)
    monkeypatch.setattr(tuned._Tuner, "fetch_s", fetching_takes(4.0))
    made = dlprof.tune(loader(shuffle=False, timeout=60), max_workers=16)
    assert len(numbers(made)) == LENGTH // 4
    assert "a batch may take longer then than the loader's timeout, 60 s" in refused


@pytest.mark.parametrize(("own", "kept"), [(2, 1), (1, 2)])
def test_a_timeout_keeps_no_workers_away_that_the_loader_had(
    monkeypatch: pytest.MonkeyPatch, own: int, kept: int
) -> None:
    """Those that the user set, or that were kept, come back after fewer were tried or parked."""

    class Returning(Scripted):
        seen: ClassVar[list[tuple[int, str]]] = []

        def begin(self) -> Ask:
            self.kept = Setting(kept, 2)
            return super().begin()

        def look(self, window: Window) -> Ask:
            self.seen.append((window.setting.workers, window.refused))
            return Ask(Setting(3 - window.setting.workers, 2), 0, 2, 0.0)

    monkeypatch.setattr(tuned, "Control", Returning)
    monkeypatch.setattr(tuned, "_SHORT_EPOCH", 0)
    monkeypatch.setattr(tuned._Tuner, "fetch_s", fetching_takes(4.0))
    made = dlprof.tune(loader(shuffle=False, timeout=10, num_workers=own), max_workers=4)
    assert len(numbers(made)) == LENGTH // 4
    assert made.tuning.off == ""
    assert set(Returning.seen) == {(1, ""), (2, "")}


def fetching_takes(seconds: float) -> Any:
    def fetch_s(self: Any) -> tuple[float, float, float]:
        self._fetch_s = seconds
        return seconds, seconds, 0.0

    return fetch_s


class Deadly(Numbers):
    def __getitem__(self, index: int) -> torch.Tensor:
        if index == 61:
            os.kill(os.getpid(), signal.SIGKILL)
        return torch.tensor([float(index)])


def test_a_worker_that_is_killed_ends_the_epoch_as_without(scripted: None) -> None:
    batches = iter(dlprof.tune(DataLoader(Deadly(), batch_size=4, num_workers=1), max_workers=4))
    came: list[float] = []
    with pytest.raises(RuntimeError, match="DataLoader worker"):
        came.extend(number for batch in batches for number in batch[:, 0].tolist())
    assert came == [float(each) for each in range(len(came))]
    assert len(came) <= 60
    del batches


@pytest.mark.parametrize("at", range(4))
def test_ctrl_c_while_workers_are_started_leaves_none_behind(
    scripted: None, monkeypatch: pytest.MonkeyPatch, at: int
) -> None:
    """It is put off until the worker is known to the iterator, which then ends it."""
    queue = torch.multiprocessing.Queue
    started = itertools.count()

    def interrupting(*given: Any, **options: Any) -> Any:
        if next(started) == 1 + at:
            signal.raise_signal(signal.SIGINT)
        return queue(*given, **options)

    changing = dlprof.tune(loader(Numbers(400)), max_workers=4)
    batches = iter(changing)
    monkeypatch.setattr(torch.multiprocessing, "Queue", interrupting)
    with contextlib.suppress(KeyboardInterrupt):
        for _ in range(40):
            next(batches)
    monkeypatch.undo()
    pids = {each.pid for each in multiprocessing.active_children()}
    assert pids == {each.pid for each in internals.workers_of(batches)}
    del batches


@pytest.mark.parametrize("part", ["event", "event, and its holder", "queue"])
def test_the_end_waits_for_no_lock_that_nobody_frees(
    monkeypatch: pytest.MonkeyPatch, part: str
) -> None:
    """As a worker leaves one that is killed, and the training one where Ctrl-C comes as it puts."""
    monkeypatch.setattr(internals, "_HELD_S", 0.2)
    # Lists come through the queue; a tensor's memory would be asked for of a worker that is gone.
    made = loader(Waiting(), shuffle=False, collate_fn=list)
    batches: Any = iter(dlprof.tune(made, max_workers=4))
    next(batches)
    workers = internals.workers_of(batches)
    of_queue = batches._index_queues[0]._notempty
    lock = of_queue if part == "queue" else batches._workers_done_event._cond
    lock.acquire()
    too_late = threading.Timer(60, lock.release)
    too_late.start()

    def kill() -> None:
        workers[0].kill()  # the news may come at once, or later
        for _ in batches:
            pass

    if "holder" in part:
        with pytest.raises(RuntimeError, match="DataLoader worker"):
            kill()
    internals.shut_down(batches)
    assert too_late.is_alive()
    too_late.cancel()
    assert not any(worker.is_alive() for worker in workers)


class Running(Numbers):
    """Runs a program, and says whether Ctrl-C is ignored then."""

    def __getitem__(self, index: int) -> torch.Tensor:
        subprocess.run([sys.executable, "-S", "-c", ""], check=True)
        return torch.tensor([float(signal.getsignal(signal.SIGINT) == signal.SIG_IGN)])


def ignoring(_worker: int) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)


def test_a_worker_keeps_how_it_takes_signals(scripted: None) -> None:
    made = loader(Running(), batch_size=1, shuffle=False, worker_init_fn=ignoring)
    batches = iter(dlprof.tune(made, max_workers=4))
    assert numbers(itertools.islice(batches, 24)) == [[1.0]] * 24
    assert internals.started_workers(batches) == 4
    internals.shut_down(batches)


def test_loops_that_stop_early_nest_and_pair_are_as_without(scripted: None) -> None:
    changing, plain = dlprof.tune(loader(), max_workers=4), loader()
    for made in (changing, plain):  # both draw their shuffles from a generator of their own
        next(iter(made))
    assert numbers(itertools.islice(iter(changing), 7)) == numbers(itertools.islice(iter(plain), 7))
    pairs = list(zip(changing, changing, strict=True))
    expected = list(zip(plain, plain, strict=True))
    for side in (0, 1):
        assert numbers(pair[side] for pair in pairs) == numbers(pair[side] for pair in expected)


def test_iterators_of_one_loader_are_tuned_one_at_a_time(scripted: None) -> None:
    changing = dlprof.tune(loader(Numbers(1 << 20, draws=False), shuffle=False), max_workers=4)
    first = iter(changing)
    for _ in range(40):
        next(first)
    second = iter(changing)
    begun = internals.started_workers(second)
    assert begun <= 2
    for batches in (first, second) * 20:
        next(batches)
    assert internals.started_workers(second) == begun
    del first
    gc.collect()
    until = time.monotonic() + 20
    while internals.started_workers(second) < 4 and time.monotonic() < until:
        next(second)
    assert internals.started_workers(second) == 4


def test_a_tuned_loader_is_still_the_users_and_copies_are_plain() -> None:
    made = loader()
    assert dlprof.tune(made) is made
    assert dlprof.tune(made) is made  # once is enough
    assert issubclass(type(made), DataLoader)
    assert type(made).__qualname__ == "DataLoader"
    assert len(made) == LENGTH // 4
    assert isinstance(made.tuning, Tuning)
    plain, again = (
        pickle.loads(pickle.dumps(each))
        for each in (loader(Numbers()), dlprof.tune(loader(Numbers())))
    )
    assert type(again) is DataLoader
    assert vars(again).keys() == vars(plain).keys()
    remade: Any = type(made)(Numbers(), batch_size=4, num_workers=1)  # as Lightning does
    assert not hasattr(remade, "tuning")
    dlprof.tune(remade)
    assert remade.tuning.off == ""
    assert remade.tuning is not made.tuning
    assert len(numbers(remade)) == LENGTH // 4


class Resumable(DataLoader[Any]):
    def state_dict(self) -> dict[str, int]:
        return {"batches": 3}


def test_a_loader_whose_state_is_saved_is_frozen_before(scripted: None) -> None:
    changing: Any = dlprof.tune(Resumable(Numbers(400), batch_size=4, num_workers=2), max_workers=4)
    batches = iter(changing)
    for _ in range(20):
        next(batches)
    assert changing.state_dict() == {"batches": 3}
    assert changing.tuning.off == "its state was saved"
    started = internals.started_workers(batches)
    rest = numbers(batches)
    assert rest[0] == [80.0, 81.0, 82.0, 83.0]
    assert len(rest) == 80
    assert internals.started_workers(batches) == started


def test_an_epoch_begun_with_fewer_workers_gets_them_back_when_tuning_ends(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    class FewerFirst(Scripted):
        def begin(self) -> Ask:
            return super().begin()._replace(setting=Setting(1, 2))

    monkeypatch.setattr(tuned, "Control", FewerFirst)
    monkeypatch.setattr(tuned, "_SHORT_EPOCH", 0)
    changing: Any = dlprof.tune(Resumable(Numbers(400), batch_size=4, num_workers=2), max_workers=4)
    batches = iter(changing)
    assert internals.started_workers(batches) == 1
    changing.state_dict()
    assert len(numbers(batches)) == 100
    assert internals.started_workers(batches) == 2


def test_workers_for_which_there_is_no_room_any_more_are_not_started(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    class FewerFirst(Scripted):
        def begin(self) -> Ask:
            return super().begin()._replace(setting=Setting(1, 2))

        def look(self, window: Window) -> Ask:
            return Ask(self.kept, 0, 2, 0.0)

    monkeypatch.setattr(tuned, "Control", FewerFirst)
    monkeypatch.setattr(tuned, "_SHORT_EPOCH", 0)
    monkeypatch.setattr(Budget, "refusal", lambda *_, **__: "all memory is taken")
    changing: Any = dlprof.tune(loader(shuffle=False))
    plain = numbers(loader(shuffle=False))
    for _ in range(2):
        batches = iter(changing)
        assert numbers(batches) == plain
        assert internals.started_workers(batches) == 1
    assert changing.tuning.off == "all memory is taken"


class OwnIterators(DataLoader[Any]):
    made = 0

    def _get_iterator(self) -> Any:
        self.made += 1
        return super()._get_iterator()


def test_a_loader_of_a_script_makes_each_of_its_own_iterators_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(DataLoader, "_get_iterator", DataLoader._get_iterator)
    met = running.tune_all(DataLoader, lambda _: "train.py:3")
    own = OwnIterators(Numbers(), batch_size=4)
    for _ in range(2):
        assert len(numbers(own)) == LENGTH // 4
    assert own.made == 2
    ((tuning, name),) = met.items()
    assert "makes iterators of its own" in tuning.off
    assert name == "train.py:3"


class Final(DataLoader[Any]):
    def __init_subclass__(cls) -> None:
        raise RuntimeError("no subclasses")


def _reason(made: Any, caplog: pytest.LogCaptureFixture, **options: Any) -> str:
    caplog.clear()
    with caplog.at_level(logging.INFO, logger="dlprof.tune"):
        assert dlprof.tune(made, **options) is made
    (record,) = caplog.records
    return record.getMessage()


def test_a_loader_that_can_not_be_tuned_says_why_and_loads(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert "a list is no DataLoader" in _reason([1, 2], caplog)
    own = OwnIterators(Numbers(), batch_size=4)
    assert "OwnIterators makes iterators of its own" in _reason(own, caplog)
    assert len(numbers(own)) == LENGTH // 4
    assert "no class can be derived from Final" in _reason(Final(Numbers(), num_workers=1), caplog)
    kept = loader(persistent_workers=True)
    next(iter(kept))
    assert "its workers run already" in _reason(kept, caplog)
    alone: Any = loader(num_workers=0)
    known = "only you know whether its dataset may be read by workers; if so, set num_workers=1, or"
    assert known in _reason(alone, caplog)
    assert str(alone.tuning).startswith(f"dlprof.tune: num_workers=0 stays: {known} call dlprof.")
    few = loader()
    assert "max_workers=1 allows nothing" in _reason(few, caplog, max_workers=1)
    assert len(numbers(few)) == LENGTH // 4
    assert "enabled=False" in _reason(loader(), caplog, enabled=False)
    monkeypatch.setenv("DLPROF_TUNE", "off")
    assert "DLPROF_TUNE=off" in _reason(loader(), caplog)
    monkeypatch.delenv("DLPROF_TUNE")
    monkeypatch.delattr(torch.utils.data._utils.signal_handling, "_set_worker_pids")
    moved = loader()
    assert f"torch {torch.__version__} has no torch.utils" in _reason(moved, caplog)
    assert moved.tuning.off


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"max_workers": 2.5}, "max_workers=2.5 is not a whole number"),
        ({"max_ram": 1.5}, "max_ram=1.5 is not a whole number"),
        ({"max_ram": -1}, "max_ram=-1 is not a whole number"),
        ({"reseed": ["batch"]}, "reseed=\\['batch'\\] is not known"),
        ({"state": 7}, "state=7 is no path"),
    ],
)
def test_what_can_not_be_meant_is_refused_at_once(options: dict[str, Any], said: str) -> None:
    with pytest.raises(UsageError, match=said):
        dlprof.tune(loader(), **options)


def test_limits_that_come_too_late_are_not_ignored_in_silence(
    caplog: pytest.LogCaptureFixture,
) -> None:
    changing = loader()
    assert dlprof.tune(dlprof.tune(changing)) is changing
    assert not caplog.records
    assert "tuned already" in _reason(changing, caplog, max_workers=4)
    assert "tuned already" in _reason(changing, caplog, enabled=False)


class Musical(DataLoader[Any]):
    tuning = "A = 440 Hz"


def test_an_attribute_of_the_users_is_not_hidden(caplog: pytest.LogCaptureFixture) -> None:
    own = Musical(Numbers(), num_workers=1)
    assert "a `tuning` of its own" in _reason(own, caplog)
    assert own.tuning == "A = 440 Hz"


def test_a_fault_of_its_own_turns_it_off_and_the_epoch_goes_on(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    class Broken(Scripted):
        def look(self, window: Window) -> Ask:
            raise ZeroDivisionError("a bug")

    monkeypatch.setattr(tuned, "Control", Broken)
    monkeypatch.setattr(tuned, "_SHORT_EPOCH", 0)
    changing: Any = dlprof.tune(loader())
    assert numbers(changing) == numbers(loader())
    assert changing.tuning.off == "a fault of dlprof's own: ZeroDivisionError: a bug"


def test_batches_that_take_long_to_be_counted_are_counted_rarely(
    scripted: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    counted = []

    def count(batch: Any) -> int:
        counted.append(batch)
        time.sleep(0.2)
        return 1

    monkeypatch.setattr(tuned, "count_bytes", count)
    changing: Any = dlprof.tune(loader(Numbers(200, draws=False)))
    assert len(numbers(changing)) == 50
    assert not changing.tuning.off
    assert len(counted) == 1  # again after 20 s only


def test_ranks_that_are_forked_from_a_tuned_loader_share_nothing_of_it(
    scripted: None, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """What it was when it was tuned, and what it iterates in, are two processes."""
    changing: Any = dlprof.tune(loader())
    assert numbers(changing) == numbers(loader())
    tuner: Any = changing.tuning._control
    assert not tuner.by_wait
    make: Any = internals.iterator_maker(type(changing))
    cells = [each.cell_contents for each in make.__closure__]
    (of_loader,) = [each for each in cells if hasattr(each, "renewed")]
    clock = of_loader._clock
    monkeypatch.setenv("WORLD_SIZE", "2")
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    read, write = os.pipe()
    child = os.fork()
    if not child:  # what fails here must not come back into pytest
        said = b"failed"
        with contextlib.suppress(BaseException):
            alike = numbers(changing)
            ok = tuner.by_wait and of_loader._clock is not clock and len(alike) == LENGTH // 4
            said = b"as its own" if ok else b"shared"
        os.write(write, said)
        os._exit(0)
    os.waitpid(child, 0)
    os.close(write)
    with os.fdopen(read, "rb") as heard:
        assert heard.read() == b"as its own"


def test_the_turn_of_an_iterator_is_not_lost_with_the_one_before(
    scripted: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Node, "of", lambda *_: Node(tmp_path / "ranks.json"))
    changing = dlprof.tune(loader())
    batches = iter(changing)
    node: Any = vars(batches)["_dlprof_tap"]._tuner._budget.node
    for _ in range(2):
        numbers(batches)
        assert node._turn is None
        batches = iter(changing)  # before the one before is gone
        assert node._turn is not None
    del batches
    assert node._turn is None


def test_the_workers_that_a_rank_begins_with_count_before_it_tries_any(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = Node(tmp_path / "ranks.json")
    monkeypatch.setattr(Node, "of", lambda *_: Node(tmp_path / "ranks.json"))
    batches = iter(dlprof.tune(loader(num_workers=3)))
    next(batches)
    assert other.others() == 3


RANKS = """
import json, time
import torch
import torch.distributed as dist
from torch.utils.data import DataLoader
import dlprof
from dlprof import internals
from dlprof.tuning import budget
from dlprof.tuning import loader as tuned
from dlprof.tuning.control import Ask, Control, Setting

MOST = 7
said = []

def say(what, workers=0):
    said.append((time.monotonic(), what, workers))

class Noted(budget.Node):
    def take_turn(self, workers, wait_share):
        had = self._turn is not None
        has = super().take_turn(workers, wait_share)
        if has and not had:
            say("turn")
        return has

    def drop_turn(self):
        if self._turn is not None:
            say("end")
        super().drop_turn()

class Greedy(Control):
    refused = 0

    def begin(self):
        return Ask(self.kept, 0, 2, 0.0)

    def look(self, window):
        if window.refused or window.setting != self.kept:
            self._note(window.setting, "more", kept=not window.refused, refused=window.refused)
            self.refused += bool(window.refused)
            self.resting = True
            return Ask(self.kept, 0, 4, 0.0)
        self.resting, self.wait_share = False, 1 / self.kept.workers
        return Ask(Setting(self.kept.workers + 1, 2), 0, 4, 0.0)

if __name__ == "__main__":
    dist.init_process_group("gloo")
    budget._most_of = lambda cores: MOST
    tuned.Node, tuned.Control = Noted, Greedy
    loader = dlprof.tune(DataLoader(range(1 << 30), num_workers=2))
    batches, until, had = iter(loader), time.monotonic() + 120, 2
    say("has", had)
    for number, batch in enumerate(batches):
        assert batch.tolist() == [number]
        has = internals.started_workers(batches)
        if has != had:
            say("has", has)
            had = has
        time.sleep(0.002)
        over = torch.tensor([loader.tuning._control.refused > 0 or time.monotonic() > until])
        over = over.to(torch.int32)
        dist.all_reduce(over, dist.ReduceOp.MIN)
        if over:
            break
    internals.shut_down(batches)
    with open(f"rank{dist.get_rank()}.json", "w") as file:
        json.dump({"said": said, "off": loader.tuning.off}, file)
    dist.barrier()
    dist.destroy_process_group()
"""


@pytest.mark.slow
def test_ranks_that_train_together_grow_one_after_another_to_what_their_machine_allows(
    tmp_path: Path,
) -> None:
    (tmp_path / "train.py").write_text(RANKS)
    # A socket's path has at most 107 characters, and torch puts some into TMPDIR.
    temporary = Path(tempfile.mkdtemp(prefix="dlprof-"))
    launcher = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2")
    done = subprocess.run(
        [sys.executable, *launcher, "train.py"],
        cwd=tmp_path,
        env={**os.environ, "TMPDIR": str(temporary)},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    told = [json.loads((tmp_path / f"rank{rank}.json").read_text()) for rank in range(2)]
    assert [each["off"] for each in told] == ["", ""]
    moments = sorted(
        (at, rank, what, workers)
        for rank, each in enumerate(told)
        for at, what, workers in each["said"]
    )
    has, tries = [0, 0], None
    for _, rank, what, workers in moments:
        if what == "has":
            has[rank] = workers
            assert sum(has) <= 7
        elif what == "turn":
            assert tries is None
            tries = rank
        else:
            assert tries == rank
            tries = None
    assert sorted(has) == [3, 4]  # the one that has fewer, and waits longer, comes first
    assert not [*temporary.glob("dlprof-tune-*")]
    shutil.rmtree(temporary)


@pytest.mark.parametrize("content", ["", "[1]", '{"x": {}}'])
def test_a_ranks_file_that_can_not_be_used_ends_no_training(
    scripted: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, content: str
) -> None:
    file = tmp_path / "ranks.json"
    file.write_text(content) if content else file.mkdir()
    monkeypatch.setattr(Node, "of", lambda *_: Node(file))
    plain, changing = loader(), dlprof.tune(loader())
    for _ in range(2):
        assert numbers(changing) == numbers(plain)
    assert changing.tuning.off
    dlprof.tune(loader(num_workers=0))  # off at once, which it tells the other ranks


@pytest.mark.slow
def test_a_loader_that_is_gone_starts_workers_by_its_own_method(scripted: None) -> None:
    batches = iter(dlprof.tune(loader(multiprocessing_context="forkserver"), max_workers=4))
    gc.collect()
    for _ in range(16):
        next(batches)
    assert {type(each).__name__ for each in internals.workers_of(batches)} == {"ForkServerProcess"}
    assert internals.started_workers(batches) > 2
    internals.shut_down(batches)


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


def test_a_pipe_that_torch_shards_is_not_loaded_without_workers(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    spared = []

    class Looking(Scripted):
        def begin(self) -> Ask:
            spared.append(self._spares_workers)
            return super().begin()

    monkeypatch.setattr(tuned, "Control", Looking)
    datasets: list[Any] = [SequenceWrapper([*range(8)]), [*range(8)]]
    datasets += [IterableWrapper([*range(8)]), Streams()]
    for dataset in datasets:
        dlprof.tune(DataLoader(dataset, num_workers=2), max_workers=4)
    assert spared == [False, True, False, True]


def test_nothing_is_started_that_the_budget_refuses(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    refusals = refusals_of(monkeypatch, Setting(4, 2))
    changing = dlprof.tune(loader(), max_ram=1_000_000)
    batches = iter(changing)
    assert numbers(batches) == numbers(loader())
    assert internals.started_workers(batches) == 2
    assert "above max_ram" in refusals[0]


class Reading(Numbers):
    """Has a file from where it was made."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        path.write_bytes(bytes(LENGTH))
        self.file = path.open("rb", buffering=0)

    def __getitem__(self, index: int) -> torch.Tensor:
        self.file.seek(index)
        self.file.read(1)
        return super().__getitem__(index)


@pytest.mark.skipif(sys.platform != "linux", reason="workers are forked, and seen by /proc")
def test_no_second_worker_shares_the_file_of_the_first(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    refusals = refusals_of(monkeypatch, Setting(2, 2))
    context = multiprocessing.get_context("fork")
    dataset = Reading(tmp_path / "a.bin")
    changing = loader(dataset, num_workers=1, multiprocessing_context=context)
    batches = iter(dlprof.tune(changing, max_workers=4))
    list(batches)
    assert internals.started_workers(batches) == 1
    assert "moves the position of file (a.bin), which more" in refusals[0]


class Opening(Reading):
    """Opens its file when it is read from, in whichever process that is first."""

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self.file.close()
        self.path, self.pid = path, 0

    def __getitem__(self, index: int) -> torch.Tensor:
        if not self.pid:
            self.file, self.pid = self.path.open("rb", buffering=0), os.getpid()
        return super().__getitem__(index)


@pytest.mark.skipif(sys.platform != "linux", reason="workers are forked, and seen by /proc")
def test_workers_share_no_file_that_was_opened_while_there_were_none(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    class Returning(Scripted):
        def look(self, window: Window) -> Ask:
            self.kept = Setting(3, 2) if window.setting == NO_WORKERS else NO_WORKERS
            return Ask(self.kept, 0, LENGTH // 4, 0.0)  # to the end of the next epoch

    monkeypatch.setattr(tuned, "Control", Returning)
    monkeypatch.setattr(tuned, "_SHORT_EPOCH", 0)
    dataset = Opening(tmp_path / "a.bin")
    context = multiprocessing.get_context("fork")
    changing = dlprof.tune(loader(dataset, multiprocessing_context=context), max_workers=4)
    for workers in (2, 0, 3):
        batches = iter(changing)
        assert len(internals.workers_of(batches)) == workers
        place = dataset.file.tell() if workers == 3 else 0
        assert len(list(batches)) == LENGTH // 4
    assert dataset.pid == os.getpid()
    assert dataset.file.tell() == place
    dataset.file.close()


class Growing(Numbers):
    def __getitem__(self, index: int) -> torch.Tensor:
        return torch.zeros(1 + 1000 * index)


def test_the_largest_batch_counts(scripted: None, monkeypatch: pytest.MonkeyPatch) -> None:
    counted: list[int] = []

    def refusal(*_: Any, batch_bytes: int, **__: Any) -> str:
        counted.append(batch_bytes)
        return ""

    monkeypatch.setattr(Budget, "refusal", refusal)
    list(dlprof.tune(loader(Growing(), batch_size=None), max_workers=4))
    assert counted[-1] > counted[0] > 4
    assert counted == sorted(counted)


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


def test_an_epoch_that_ends_in_its_first_batches_lets_other_ranks_try(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    left: list[Any] = []

    def leave_turn(tuner: Any) -> None:
        left.append(tuner)

    monkeypatch.setattr(tuned._Tuner, "leave_turn", leave_turn)
    changing = dlprof.tune(loader(Numbers(8, draws=False), num_workers=0), max_workers=4)
    assert len(numbers(changing)) == 2
    assert len(left) == 1


@pytest.mark.parametrize(("options", "most"), [({}, 2), ({"max_workers": 4}, 4)])
def test_a_worker_init_fn_meets_no_worker_that_it_may_not_know(
    monkeypatch: pytest.MonkeyPatch, options: dict[str, Any], most: int
) -> None:
    ceilings = []

    class Capped(Scripted):
        def begin(self) -> Ask:
            ceilings.append(self._most)
            return super().begin()

    monkeypatch.setattr(tuned, "Control", Capped)
    dlprof.tune(loader(worker_init_fn=print), **options)
    assert ceilings == [most]


def test_a_worker_init_fn_meets_no_worker_of_an_answer_that_it_may_not_know(
    tmp_path: Path,
) -> None:
    file, name = tmp_path / "dlprof.toml", f"tune:{__name__}.Numbers, 96 samples, batch_size=4"
    saved = {"num_workers": 7, "prefetch_factor": 4}
    save_kwargs(file, inspect_machine(), name, saved, when="2026-11-28")
    allowed: list[tuple[dict[str, Any], int]] = [({}, 2), ({"max_workers": 8}, 7)]
    for limits, workers in allowed:
        made: Any = dlprof.tune(loader(worker_init_fn=print), state=file, **limits)
        assert made.tuning.kwargs == {"num_workers": workers, "prefetch_factor": 4}


def test_the_answer_serves_the_next_job(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Certain(Scripted):
        def look(self, window: Window) -> Ask:
            self.kept, self.resting = Setting(3, 4), True
            return Ask(self.kept, 0, 2, 0.0)

    file = tmp_path / "dlprof.toml"
    with monkeypatch.context() as patched:
        patched.setattr(tuned, "Control", Certain)
        patched.setattr(tuned, "_SHORT_EPOCH", 0)
        first: Any = dlprof.tune(loader(), max_workers=4, state=file)
        list(first)
    assert first.tuning.kwargs == {"num_workers": 3, "prefetch_factor": 4}
    second = dlprof.tune(loader(), max_workers=4, state=file)
    assert internals.started_workers(iter(second)) == 3
    third = dlprof.tune(loader(), max_workers=4, max_ram=1_000_000, state=file)
    assert internals.started_workers(iter(third)) == 2
    name = f"tune:{__name__}.Numbers, 96 samples, batch_size=4"
    assert dlprof.kwargs_for(file, target=name) == {"num_workers": 3, "prefetch_factor": 4}


@pytest.mark.parametrize(
    ("other", "variables", "said"),
    [
        (lambda: loader(Numbers(100)), {}, "none that fit this loader here: {name}, 100 samples"),
        (lambda: loader(batch_size=8), {}, "Numbers, 96 samples, batch_size=8"),
        (lambda: loader(Failing()), {}, "Failing, 96 samples, batch_size=4"),
        (loader, {"LOCAL_WORLD_SIZE": "4"}, "Numbers, 96 samples, batch_size=4, 4 ranks"),
        (loader, None, "batch_size=4 on another, and none"),
    ],
    ids=["length", "batch size", "class", "ranks", "machine"],
)
def test_an_answer_for_another_loader_is_not_taken_and_the_log_says_so(
    other: Any,
    variables: dict[str, str] | None,
    said: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    file, name = tmp_path / "dlprof.toml", f"tune:{__name__}.Numbers"
    machine = inspect_machine()
    if variables is None:
        machine = dataclasses.replace(machine, fingerprint="0" * 12, hostname="another")
    saved = {"num_workers": 7, "prefetch_factor": 4}
    save_kwargs(file, machine, f"{name}, 96 samples, batch_size=4", saved, when="2026-11-28")
    for key, value in (variables or {}).items():
        monkeypatch.setenv(key, value)
    with caplog.at_level(logging.INFO, "dlprof.tune"):
        made = dlprof.tune(other(), max_workers=8, state=file)
    assert made.tuning.kwargs == {"num_workers": 2, "prefetch_factor": 2}
    (message,) = caplog.messages
    assert said.format(name=name) in message
    assert f"{file} has settings for {name}, 96 samples, batch_size=4" in message


def test_ranks_that_torch_knows_by_the_first_epoch_have_an_answer_of_their_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """``tune`` may be called before ``init_process_group``, which no launcher has prepared."""

    class Certain(Scripted):
        def look(self, window: Window) -> Ask:
            self.kept, self.resting = Setting(1, 4), True
            return Ask(self.kept, 0, 2, 0.0)

    monkeypatch.setattr(tuned, "Control", Certain)
    monkeypatch.setattr(tuned, "_SHORT_EPOCH", 0)
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    file, name = tmp_path / "dlprof.toml", f"tune:{__name__}.Numbers, 96 samples, batch_size=4"
    alone = {"num_workers": 3, "prefetch_factor": 4}
    save_kwargs(file, inspect_machine(), name, alone, when="2026-11-28")
    made = [dlprof.tune(loader(), max_workers=8, state=file) for _ in range(2)]
    assert made[0].tuning.kwargs == alone
    monkeypatch.setattr(tuned, "_world", lambda: 2)
    for each, workers in zip(made, (2, 1), strict=True):  # the second has the first one's answer
        tuning, batches = each.tuning, iter(each)
        assert internals.started_workers(batches) == workers
        assert len(numbers(batches)) == LENGTH // 4
        assert each.tuning is tuning
        assert tuning.kwargs == {"num_workers": 1, "prefetch_factor": 4}
    assert dlprof.kwargs_for(file, target=name) == alone
    assert dlprof.kwargs_for(file, target=f"{name}, 2 ranks") == made[0].tuning.kwargs


def test_an_answer_that_can_not_be_read_is_not_taken_and_the_log_says_so(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    file = tmp_path / "dlprof.toml"
    file.write_text("version = [")
    made = dlprof.tune(loader(), state=file)
    assert made.tuning.kwargs == {"num_workers": 2, "prefetch_factor": 2}
    (message,) = caplog.messages
    assert message.startswith("dlprof.tune: no settings are taken from a file: ")
    assert str(file) in message


@pytest.mark.parametrize(("options", "workers"), [({"max_workers": 4}, 0), ({}, 2)])
def test_an_answer_without_workers_serves_the_next_job_that_allows_it(
    options: dict[str, Any], workers: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Spared(Sparing):
        def look(self, window: Window) -> Ask:
            self.kept, self.resting = Setting(0, 0), True
            return super().look(window)

    file = tmp_path / "dlprof.toml"
    with monkeypatch.context() as patched:
        patched.setattr(tuned, "Control", Spared)
        patched.setattr(tuned, "_SHORT_EPOCH", 0)
        first: Any = dlprof.tune(loader(), max_workers=4, state=file)
        list(first)
    assert first.tuning.kwargs == {"num_workers": 0}
    second: Any = dlprof.tune(loader(), state=file, **options)
    assert len(internals.workers_of(iter(second))) == workers
    assert second.tuning.kwargs["num_workers"] == workers
    # Its own batches go on as they would: the training's random numbers are left alone.
    plain, again = loader(), dlprof.tune(loader(), state=file, **options)
    assert numbers(again) == numbers(plain)


class Deleted(Counting):
    """Has something that a copy of it may close."""

    def __del__(self) -> None:
        """Nothing, here."""


@pytest.mark.parametrize(
    ("made", "why"),
    [
        (lambda: loader(Asking()), "its dataset gives no batch: AttributeError: 'NoneType'"),
        (lambda: loader(Begun()), "its dataset gives no batch: AttributeError: 'NoneType'"),
        (lambda: DataLoader(Deleted(), batch_size=4, num_workers=2), "can't be copied"),
        (
            lambda: DataLoader(Numbers(), batch_sampler=Eager(), num_workers=2),
            "only a sampler of its own says which samples there are",
        ),
    ],
    ids=["map", "iterable", "no copy", "sampler"],
)
def test_an_answer_without_workers_is_proven_before_it_is_taken(
    made: Any, why: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The dataset may be another version of that which the last job loaded."""
    file, plain = tmp_path / "dlprof.toml", made()
    name = tuned._name_of(plain)
    save_kwargs(file, inspect_machine(), name, {"num_workers": 0}, when="2026-11-28")
    changing: Any = dlprof.tune(made(), max_workers=4, state=file)
    before = random.getstate()
    with caplog.at_level(logging.INFO, "dlprof.tune"):
        batches = iter(changing)
    assert len(internals.workers_of(batches)) == 2
    assert changing.tuning.kwargs["num_workers"] == 2
    assert why in caplog.messages[-1]
    assert len(list(batches)) == len(list(plain))
    assert getattr(changing.batch_sampler, "asked", 2) == 2
    assert random.getstate() == before
    assert changing.tuning.off == ""


class Stepping(Scripted):
    """Looks at eight batches each time, and changes nothing."""

    def begin(self) -> Ask:
        self.seen: list[Window] = []
        return super().begin()

    def look(self, window: Window) -> Ask:
        self.seen.append(window)
        return Ask(self.kept, 4, 8, 0.0)


class Clock:
    """The module ``time`` with a clock that is set."""

    def __init__(self) -> None:
        self.ns = 1

    def perf_counter_ns(self) -> int:
        return self.ns

    def __getattr__(self, name: str) -> Any:
        return getattr(time, name)


def stepped(
    steps_s: dict[int, float], monkeypatch: pytest.MonkeyPatch, clock: Clock | None = None
) -> list[Window]:
    """What is seen of a hundred steps of 10 ms, or as given; by a clock, or in real time."""
    monkeypatch.setattr(tuned, "Control", Stepping)
    monkeypatch.setattr(tuned, "_SHORT_EPOCH", 0)
    if clock is not None:
        monkeypatch.setattr(tuned, "time", clock)
    made: Any = loader(Waiting(), shuffle=False, num_workers=1, prefetch_factor=16)
    for number, _ in enumerate(itertools.islice(dlprof.tune(made), 100)):
        step_s = steps_s.get(number, 0.01)
        if clock is None:
            time.sleep(step_s)
        else:
            clock.ns += int(1e9 * step_s)
    seen: list[Window] = made.tuning._control.seen
    assert len(seen) > 2
    return seen


def test_a_pause_between_two_steps_is_no_step(monkeypatch: pytest.MonkeyPatch) -> None:
    """A validation is on nobody's account: not on that of the setting that was tried during it."""
    seen = stepped({30: 2.0, 62: 2.0}, monkeypatch, Clock())
    assert max(each.took_s for each in seen) < 1.0


def test_what_is_made_in_a_pause_is_on_nobodys_account(monkeypatch: pytest.MonkeyPatch) -> None:
    seen = stepped({30: 0.5}, monkeypatch)
    # A batch takes the worker 16 ms, and some are on their way.
    assert all(each.made < (each.waited_s + each.stepped_s) / 0.016 + 4 for each in seen)


@pytest.mark.parametrize(("waited_ns", "paused"), [(500, True), (10**9, False)])
def test_beside_the_wait_steps_may_be_uneven(
    scripted: None,
    waited_ns: int,
    paused: bool,
) -> None:
    tap: Any = vars(iter(dlprof.tune(loader())))["_dlprof_tap"]
    seen = {"_count": 8, "_left": 0, "_stepped_ns": 9000, "_longest_ns": 8000}
    vars(tap).update(seen, _waited_ns=waited_ns)
    assert tap._has_pause() is paused


def test_a_long_step_time_and_again_is_no_pause(monkeypatch: pytest.MonkeyPatch) -> None:
    """As of a loop that trains on eight batches at once."""
    seen = stepped(dict.fromkeys(range(0, 100, 8), 0.2), monkeypatch, Clock())
    assert all(each.stepped_s > 0.2 for each in seen[1:])  # the first look is at two batches


def test_a_step_that_waits_for_an_accelerator_is_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """Others only order what it is to do: a loop that it limits gains nothing from workers."""
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    seen = stepped(dict.fromkeys(range(0, 100, 12), 0.2), monkeypatch, Clock())
    assert all(each.took_s > 0.2 for each in seen[1:])


def test_what_was_tried_is_a_table(scripted: None) -> None:
    made: Any = dlprof.tune(loader())
    assert str(made.tuning) == (
        "dlprof.tune: num_workers=2, prefetch_factor=2 stays: it takes more batches to decide"
    )
    assert "<pre>" in made.tuning._repr_html_()
    two, four, eight = (Setting(workers, 2) for workers in (2, 4, 8))
    refused = control.Change(
        at_s=1.0, batch=9, before=two, after=eight, why="more", kept=False, refused="the budget"
    )
    made.tuning._control.changes.append(refused)
    assert made.tuning.summary() == f"dlprof.tune: {two} stays: {eight} not tried: the budget"
    kept = control.Change(at_s=2.0, batch=19, before=two, after=four, why="more", kept=True)
    made.tuning._control.changes.append(kept)
    assert made.tuning.summary() == f"dlprof.tune: 1 change tried, 1 kept; now {two}"


def test_what_it_has_is_logged_beside_the_wait(scripted: None, tmp_path: Path) -> None:
    logged: list[dict[str, float]] = []
    metrics = loggers.prometheus(tmp_path / "dlprof.prom")

    def log(values: dict[str, float]) -> None:
        logged.append(values)
        metrics(values)

    list(dlprof.watch(dlprof.tune(loader()), log=log, every=8))
    assert logged[-1]["dlprof/num_workers"] == 2.0
    assert logged[-1]["dlprof/prefetch_factor"] == 2.0
    assert logged[-1]["dlprof/changes"] == 0.0
    assert 'dlprof_workers{loader="loader",rank="0"} 2.0' in (tmp_path / "dlprof.prom").read_text()
    list(dlprof.watch(loader(), log=log, every=8))
    assert "dlprof/num_workers" not in logged[-1]
    assert "dlprof_workers" not in (tmp_path / "dlprof.prom").read_text()


class Waiting(Dataset[int]):
    def __len__(self) -> int:
        return 1 << 30

    def __getitem__(self, index: int) -> int:
        time.sleep(0.004)
        return index


def test_a_real_loader_that_waits_gets_more_workers() -> None:
    made: Any = dlprof.tune(DataLoader(Waiting(), batch_size=2, num_workers=1), max_workers=8)
    until = time.monotonic() + 120
    for count, batch in enumerate(made):
        assert batch.tolist() == [2 * count, 2 * count + 1]
        time.sleep(0.002)
        if made.tuning.kwargs["num_workers"] > 1 or time.monotonic() > until:
            break
    kept = [each for each in made.tuning.changes if each.kept]
    assert kept[-1].speedup.value > 1  # by the mean, where it stays open for long
    assert "kept" in str(made.tuning)


@pytest.mark.parametrize("workers", [0, 1])
def test_short_epochs_get_workers_between_them(
    monkeypatch: pytest.MonkeyPatch, workers: int
) -> None:
    """Epochs of well under a second, none of which is long enough to try anything in."""
    monkeypatch.setattr(control, "_EDGE_STAY_S", 1.0)

    class Slow(Numbers):
        def __getitem__(self, index: int) -> torch.Tensor:
            time.sleep(0.004)
            return super().__getitem__(index)

    made: Any = dlprof.tune(
        loader(Slow(80, draws=False), num_workers=workers, shuffle=False), max_workers=4
    )
    until = time.monotonic() + 120
    while made.tuning.kwargs["num_workers"] == workers and time.monotonic() < until:
        assert [number for batch in numbers(made) for number in batch] == [*map(float, range(80))]
    assert made.tuning.kwargs["num_workers"] > workers
    assert made.num_workers == workers
    batches = iter(made)
    assert internals.started_workers(batches) > workers


def test_batches_and_workers_of_short_epochs_are_weighed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Between epochs, where more of them are asked for, there are none to be looked at."""
    weighed: list[list[int]] = []

    def weigh(_budget: Budget, pids: list[int]) -> None:
        alive = {each.pid for each in multiprocessing.active_children()}
        weighed.append([pid for pid in pids if pid in alive])

    monkeypatch.setattr(Budget, "weigh", weigh)
    made: Any = dlprof.tune(loader(Numbers(80, draws=False)))
    for _ in range(2):
        assert len(numbers(made)) == 20
    tap: Any = vars(iter(made))["_dlprof_tap"]
    assert tap._tuner.whole_epochs
    assert tap._tuner._batch_bytes == 4 * 4
    assert len(weighed[0]) == 2


def test_callbacks_tune_if_asked() -> None:
    waits = callbacks._DataWait(tune=True)
    made: Any = loader()
    assert waits.watch(made, 10) is made
    assert isinstance(made.tuning, Tuning)
    assert numbers(made) == numbers(loader())
    again = pickle.loads(pickle.dumps(dlprof.tune(waits.watch(loader(Numbers()), 10, 1))))
    assert type(again) is DataLoader
    waits.undo()
    assert isinstance(made.tuning, Tuning)


def test_what_accelerate_prepares_is_tuned(scripted: None) -> None:
    accelerate = pytest.importorskip("accelerate")
    prepared = accelerate.Accelerator(cpu=True).prepare_data_loader(loader(shuffle=False))
    assert dlprof.tune(prepared, max_workers=4) is prepared
    assert numbers(prepared) == numbers(loader(shuffle=False))
    assert prepared.tuning.off == ""


SCRIPT = """
import torch
from torch.utils.data import DataLoader

if __name__ == "__main__":
    for epoch in range(2):
        for batch in DataLoader(torch.arange(64), batch_size=4, num_workers=1):
            print(batch.tolist())
"""


TWO = """
import torch
from torch.utils.data import DataLoader, TensorDataset
data = TensorDataset(torch.arange(64))
train = DataLoader(data, batch_size=8)
valid = DataLoader(data, batch_size=4)
for batch in (*train, *valid):
    pass
"""


@pytest.mark.parametrize(
    ("options", "limits", "said"),
    [
        ({}, {}, "in another order; if they may, call dlprof.tune(loader, max_workers=8)"),
        ({}, {"max_workers": 4}, ""),
        ({"persistent_workers": True}, {"max_workers": 4}, "persistent_workers=True keeps the"),
        ({"num_workers": 1}, {"max_workers": 4}, "may be made for a single reader"),
    ],
)
def test_why_an_iterable_keeps_its_workers_is_said(
    options: dict[str, Any], limits: dict[str, Any], said: str
) -> None:
    made: Any = DataLoader(Streams(), **{"num_workers": 2, **options})
    shown = str(dlprof.tune(made, **limits).tuning)
    assert ("; num_workers stays: " in shown) is bool(said)
    assert said in shown


def test_of_two_tuned_loaders_each_is_named(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(TWO)
    words = [sys.executable, "-m", "dlprof", "run", "--tune", "--json", "seen.json", "train.py"]
    subprocess.run(words, cwd=tmp_path, capture_output=True, timeout=300, check=True)
    document = json.loads((tmp_path / "seen.json").read_text())
    named = [note.partition(": num_workers")[0] for note in document["script"]["notes"]]
    assert named == ["dlprof.tune: train.py:5", "dlprof.tune: train.py:6"]
    assert {each["name"] for each in document["loaders"]} == {"train.py:5", "train.py:6"}


def test_an_unmodified_script_is_tuned(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(SCRIPT)
    plain, tuning = (
        subprocess.run(
            [sys.executable, *words, "train.py"],
            cwd=tmp_path,
            capture_output=True,
            text=True,
            timeout=300,
            check=True,
        )
        for words in ([], ["-m", "dlprof", "run", "--tune", "--json", "seen.json"])
    )
    assert tuning.stdout == plain.stdout
    notes = json.loads((tmp_path / "seen.json").read_text())["script"]["notes"]
    (note,) = [note for note in notes if note.startswith("dlprof.tune: ")]
    assert "off:" not in note
    assert note.endswith("(2 loaders)")  # one that is made again in each epoch
    assert tuning.stderr.count("Tuning") == 1
