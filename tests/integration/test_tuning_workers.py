"""Workers that tuning starts, asks, parks and ends: errors, signals, locks and open files."""

from __future__ import annotations

import contextlib
import functools
import gc
import itertools
import logging
import multiprocessing
import os
import platform
import random
import signal
import socket
import subprocess
import sys
import threading
import time
import weakref
from collections.abc import Iterator
from pathlib import Path
from typing import Any, ClassVar, cast

import numpy as np
import pytest
import torch
import tuned_loaders
from torch.utils.data import (
    DataLoader,
    Dataset,
    IterableDataset,
    Sampler,
    get_worker_info,
)
from torch.utils.data._utils import signal_handling
from tuned_loaders import (
    LENGTH,
    Changed,
    Eager,
    Failing,
    Hiring,
    Numbers,
    Refused,
    Returning,
    Scripted,
    Sparing,
    Streams,
    Waiting,
    loader,
    numbers,
    refusals_of,
)

import dlprof
from dlprof import internals
from dlprof.machine import inspect_machine
from dlprof.saved import save_kwargs
from dlprof.tuning import loader as tuned
from dlprof.tuning.control import NO_WORKERS, Ask, Setting, Window

pytestmark = pytest.mark.usefixtures("no_worker_left")


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


@pytest.mark.slow
@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_each_start_method_starts_more_workers(scripted: None, method: str) -> None:
    options = {"multiprocessing_context": method}
    assert numbers(dlprof.tune(loader(**options), max_workers=4)) == numbers(loader(**options))


class Gathering(DataLoader[Any]):
    """As PyG's loaders: it collates by a method of its own, with which a worker is sent all of it.

    Its workers outlive an epoch, so it keeps their iterator, which can't be sent.
    """

    def __init__(self, dataset: Any) -> None:
        options: dict[str, Any] = {"num_workers": 1, "multiprocessing_context": "spawn"}
        super().__init__(dataset, 4, persistent_workers=True, collate_fn=self.gather, **options)

    def gather(self, samples: Any) -> list[int | None]:
        return [self.batch_size, *(int(each[0]) for each in samples)]


def test_more_workers_are_started_for_a_loader_that_is_sent_to_them(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    said = refusals_of(monkeypatch, Setting(2, 2))
    made: Any = dlprof.tune(Gathering(Numbers(draws=False)), max_workers=2)
    wanted = [[4, *range(at, at + 4)] for at in range(0, LENGTH, 4)]
    assert [[*made], [*made]] == [wanted, wanted]
    assert (said, made.tuning.off) == ([], "")
    batches = internals.kept_iterator(made)
    assert internals.started_workers(batches) == 2
    internals.shut_down(batches)


@pytest.mark.parametrize(
    ("method", "seen"), [("fork", 1.0), pytest.param("spawn", 0.0, marks=pytest.mark.slow)]
)
def test_a_start_method_decides_what_batches_hold_so_it_stays(
    scripted: None, monkeypatch: pytest.MonkeyPatch, method: str, seen: float
) -> None:
    """Another one would bring others: it isn't the loader's to choose."""
    monkeypatch.setattr(tuned_loaders, "SINCE_IMPORT", 1.0)
    made = loader(Changed(), multiprocessing_context=method)
    batches = iter(dlprof.tune(made, max_workers=4))
    came = [batch.tolist() for batch in batches]
    assert internals.started_workers(batches) > 2
    assert came == [[seen] * 4] * (LENGTH // 4)


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


@pytest.mark.parametrize(
    "method", ["fork", "spawn", pytest.param("forkserver", marks=pytest.mark.slow)]
)
def test_workers_are_spared_only_where_they_are_forked(method: str) -> None:
    """Others are sent the dataset, which may have opened by then what can't be sent."""
    options: dict[str, Any] = {"num_workers": 1, "multiprocessing_context": method}
    made: Any = dlprof.tune(loader(**options), max_workers=4)
    assert made.tuning._control._spares_workers is (method == "fork")


def test_workers_are_spared_only_where_they_are_forked_by_the_first_epoch(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    changing: Any = dlprof.tune(loader(Numbers(draws=False)), max_workers=4)
    assert changing.tuning._control._spares_workers
    monkeypatch.setattr(changing, "multiprocessing_context", "forkserver")
    assert len(internals.workers_of(iter(changing))) == 2
    assert not changing.tuning._control._spares_workers


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


@pytest.mark.parametrize("persistent", [False, pytest.param(True, marks=pytest.mark.slow)])
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
@pytest.mark.parametrize("raised_by", ["look", pytest.param("steer", marks=pytest.mark.slow)])
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

    def steered(*given: Any, **options: Any) -> None:
        interrupt("steer")
        steer(*given, **options)

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


class PreemptedError(Exception):
    """What a training's own handler of a signal raises."""


@pytest.mark.parametrize("at", ["_seen", "_affordable"])
def test_what_the_trainings_own_handler_of_a_signal_raises_ends_its_loop(
    scripted: None, monkeypatch: pytest.MonkeyPatch, at: str
) -> None:
    """As a scheduler's warning, which comes once, at any line."""

    def warned(*_: object) -> None:
        raise PreemptedError

    monkeypatch.setattr(tuned._Tuner, at, lambda *_: signal.raise_signal(signal.SIGUSR1))
    changing = dlprof.tune(loader())
    before = signal.signal(signal.SIGUSR1, warned)
    try:
        with pytest.raises(PreemptedError):
            list(changing)
    finally:
        signal.signal(signal.SIGUSR1, before)
    assert changing.tuning.off == ""


def test_a_time_limit_of_the_trainings_own_ends_its_loop_as_workers_start(
    scripted: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is no want of processes, though both raise an OSError."""

    def over(*_: object) -> None:
        raise TimeoutError

    monkeypatch.setattr(internals, "start_worker", lambda *_: signal.raise_signal(signal.SIGALRM))
    changing = dlprof.tune(loader())
    before = signal.signal(signal.SIGALRM, over)
    try:
        with pytest.raises(TimeoutError):
            list(changing)
    finally:
        signal.signal(signal.SIGALRM, before)
    assert changing.tuning.off == ""


class Resting(Scripted):
    """Has settled from the start."""

    def begin(self) -> Ask:
        self.resting = True
        return super().begin()


@pytest.mark.parametrize("at", ["RawArray", "save_kwargs"])
def test_a_time_limit_that_is_over_while_tuning_does_what_may_fail_ends_the_loop(
    scripted: None, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, at: str
) -> None:
    """It was suppressed, or taken for a file that can't be written."""

    def over(*_: object) -> None:
        raise TimeoutError

    monkeypatch.setattr(tuned, "Control", Resting)
    monkeypatch.setattr(tuned, at, lambda *_, **__: signal.raise_signal(signal.SIGALRM))
    changing = dlprof.tune(loader(), state=tmp_path / "dlprof.toml")
    before = signal.signal(signal.SIGALRM, over)
    try:
        with pytest.raises(TimeoutError):
            list(changing)
    finally:
        signal.signal(signal.SIGALRM, before)
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
@pytest.mark.parametrize("script", [Alone, pytest.param(Returning, marks=pytest.mark.slow)])
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


@pytest.mark.parametrize(
    ("dataset", "edge"),
    [
        (Asking(), False),
        (Begun(), True),
        *(
            pytest.param(*each, marks=pytest.mark.slow)
            for each in ((Asking(), True), (Begun(), False))
        ),
    ],
)
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


@pytest.mark.parametrize("kept", [False, True])
def test_workers_stay_where_a_thread_asks_for_batches(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, *, kept: bool
) -> None:
    """What another thread draws while a batch is made would be the batch's, and go on from it."""
    refusals, makers = refusals_of(monkeypatch, NO_WORKERS), set[int]()
    file, dataset = tmp_path / "dlprof.toml", Tolerant()
    changing = loader(dataset, shuffle=False)
    if kept:
        save_kwargs(file, inspect_machine(), tuned._name_of(changing), {"num_workers": 0}, when="")
    dlprof.tune(changing, max_workers=4, state=file if kept else None)

    def load() -> None:
        for batch in itertools.chain(changing, changing):
            makers.update(batch[:, 1].tolist())

    thread = threading.Thread(target=load)
    thread.start()
    thread.join()
    assert makers
    assert -1 not in makers
    assert {*refusals} == {tuned._THREAD}


class Seldom(Asking):
    """Asks for one sample of many only: it would fail in the midst of an epoch."""

    def __getitem__(self, index: int) -> torch.Tensor:
        return super().__getitem__(index) if index % 12 == 11 else torch.tensor([index, 0])


@pytest.mark.slow
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


@pytest.mark.parametrize("edge", [False, pytest.param(True, marks=pytest.mark.slow)])
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


@pytest.mark.slow
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
    changing, until = dlprof.tune(made(2), max_workers=2), time.monotonic() + 120
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


class Shuffling(Whole):
    """In an order that it draws from a stream of its own."""

    def __init__(self, stream: Any, draw: str) -> None:
        self.stream, self.draw = stream, draw

    def __iter__(self) -> Iterator[int]:
        return iter(sorted(range(LENGTH), key=lambda _: getattr(self.stream, self.draw)()))


class Once(Whole):
    """Goes on from where it was, which a worker that is forked again never notices."""

    def __init__(self) -> None:
        self.rest = iter(range(LENGTH))

    def __iter__(self) -> Iterator[int]:
        return self.rest


class Holding(Whole):
    """Passes on what another gives."""

    def __init__(self, held: Any) -> None:
        self.held = held

    def __iter__(self) -> Iterator[int]:
        return iter(self.held)


@pytest.mark.parametrize(
    "dataset",
    [
        Whole(),
        pytest.param(Streams(), marks=pytest.mark.slow),
        Once(),
        Shuffling(np.random.default_rng(3), "random"),
        pytest.param(Shuffling(np.random.RandomState(3), "rand"), marks=pytest.mark.slow),
        Holding(Shuffling(random.Random(3), "random")),
    ],
    ids=["whole", "shares", "once", "numpy", "state", "held"],
)
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
    assert sorted(itertools.chain(*plain)) == [*range(LENGTH)]
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


@pytest.mark.slow
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


@pytest.mark.slow
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


def test_what_an_attempt_raises_needs_no_words(capfd: pytest.CaptureFixture[str]) -> None:
    class WordlessError(Exception):
        def __str__(self) -> str:
            raise ValueError

    def again() -> None:
        raise WordlessError

    attempt = tuned._Attempt(again, multiprocessing.get_context("fork"), "")
    assert (attempt.error(wait_s=60.0) or "").endswith("its dataset gives no batch: WordlessError")
    assert capfd.readouterr().err == ""


def test_what_an_attempt_s_first_batches_take_says_nothing_of_later_ones() -> None:
    """They are the first to touch the memory of their process; half of all may be so."""
    calls = itertools.count()

    def again() -> None:
        time.sleep(0.05 if next(calls) < internals.LATEST // 2 else 0.0)

    attempt = tuned._Attempt(again, multiprocessing.get_context("fork"), "", seconds=60.0)
    assert attempt.error(wait_s=60.0) == ""
    assert 0 < attempt.fetch_s < 0.05


FAULTS = """
import multiprocessing, multiprocessing.sharedctypes, resource
import torch
from torch.utils.data import DataLoader, Dataset
import dlprof
from dlprof.tuning import loader as tuned

made = multiprocessing.sharedctypes.RawArray("q", 64)


class Growing(Dataset):
    # Each sample takes 1 MB more than the one before, and is larger than any block freed so far.
    def __len__(self):
        return 16

    def __getitem__(self, index):
        sample = torch.ones(8 + index << 18)
        made[index] = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
        return float(sample[-1])


if TRAINS:
    for _ in dlprof.tune(DataLoader(Growing(), num_workers=0), max_workers=1):
        pass
else:
    again = iter(map(Growing().__getitem__, range(16))).__next__
    attempt = tuned._Attempt(again, multiprocessing, "", seconds=60.0)
    assert attempt.error(wait_s=60.0) == ""
print(made[15] - made[7])
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="another malloc has other rules")
@pytest.mark.parametrize("trains", [True, False], ids=["training", "attempt"])
def test_what_a_batch_took_is_kept_for_the_next_without_workers(*, trains: bool) -> None:
    """Malloc maps what is larger than all it freed so far, and gives it back: each page faults."""
    script = FAULTS.replace("TRAINS", str(trains))
    asked = {key: each for key, each in os.environ.items() if "MALLOC" not in key}
    words = [sys.executable, "-c", script]
    said = subprocess.run(words, env=asked, capture_output=True, text=True, check=True).stdout
    assert int(said) < 20_000  # of 39,936 pages


def test_an_attempt_that_nobody_asks_about_leaves_no_process_behind() -> None:
    attempt = tuned._Attempt(lambda: time.sleep(60), multiprocessing.get_context("fork"), "")
    process = attempt._process
    if (copy := os.fork()) == 0:  # a process of the training's own ends none that isn't its
        del attempt
        os._exit(0)
    os.waitpid(copy, 0)
    assert process.is_alive()
    del attempt
    gc.collect()
    assert process.exitcode == -signal.SIGKILL


@pytest.mark.usefixtures("_interruptible")
def test_ctrl_c_leaves_no_half_of_what_an_attempt_said(monkeypatch: pytest.MonkeyPatch) -> None:
    attempt = tuned._Attempt(lambda: None, multiprocessing.get_context("fork"), "")
    kill = attempt._process.kill

    def interrupted() -> None:
        signal.raise_signal(signal.SIGINT)
        kill()

    monkeypatch.setattr(attempt._process, "kill", interrupted)
    with pytest.raises(KeyboardInterrupt):
        attempt.error(wait_s=60.0)
    assert attempt.error() == ""
    assert attempt.cpu_s > 0


@pytest.mark.skipif(sys.platform != "linux", reason="descriptors are seen by /proc")
def test_an_attempt_without_workers_takes_nothing_that_others_would_miss() -> None:
    context = multiprocessing.get_context("fork")
    queue, (here, there) = context.SimpleQueue(), socket.socketpair()
    here.settimeout(10)
    for number in range(internals.LATEST + 1):
        queue.put(number)
        there.sendall(bytes([number]))
    takes: list[Any] = [queue.get, functools.partial(here.recv, 1)]
    for take in takes:
        said = tuned._Attempt(take, context, "").error(wait_s=60.0)
        assert said is not None
        assert "its dataset gives no batch: " in said
    assert queue.get() == 0
    assert here.recv(1) == bytes([0])
    for each in (queue, here, there):
        each.close()


@pytest.mark.slow
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
    changing = dlprof.tune(DataLoader(Stuck(), batch_size=3, num_workers=2), max_workers=2)
    plain = [batch.tolist() for batch in DataLoader(Streams(), batch_size=3, num_workers=2)]
    for epoch in until_refused(changing, refusals):
        assert [batch.tolist() for batch in epoch] == plain
    assert "gives no batch: " in refusals[0]


@pytest.mark.parametrize(
    "asks", [signal.SIGTERM, pytest.param(signal.SIGKILL, marks=pytest.mark.slow)]
)
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


@pytest.mark.parametrize("slow_s", [0.0, 1.2])
def test_workers_that_stop_the_training_to_be_started_are_not_started(
    monkeypatch: pytest.MonkeyPatch, slow_s: float
) -> None:
    """Each is sent the dataset, and has to have imported all before it reads that."""
    refusals = refusals_of(monkeypatch, Setting(4, 2))
    make = internals.tapped_iterator

    def slow(*given: Any) -> Any:
        time.sleep(slow_s)
        return make(*given)

    monkeypatch.setattr(internals, "tapped_iterator", slow)
    options: dict[str, Any] = {"num_workers": 1, "multiprocessing_context": "spawn"}
    batches = iter(dlprof.tune(loader(Numbers(draws=False), **options)))
    assert len(list(itertools.islice(batches, 12))) == 12
    assert internals.started_workers(batches) == (1 if slow_s else 4)
    assert any("would stop the training for" in each for each in refusals) is bool(slow_s)


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


def _floats(samples: list[torch.Tensor]) -> list[float]:
    """No tensors, whose memory main asks the worker for: who is killed just then resets that."""
    return [float(each) for each in samples]


def test_a_worker_that_is_killed_ends_the_epoch_as_without(scripted: None) -> None:
    loader = DataLoader(Deadly(), batch_size=4, num_workers=1, collate_fn=_floats)
    batches = iter(dlprof.tune(loader, max_workers=4))
    came: list[float] = []
    with pytest.raises(RuntimeError, match="DataLoader worker"):
        came.extend(number for batch in batches for number in batch)
    assert came == [float(each) for each in range(len(came))]
    assert len(came) <= 60
    del batches


@pytest.mark.parametrize(
    "at", [1, *(pytest.param(each, marks=pytest.mark.slow) for each in (0, 2, 3))]
)
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


@pytest.mark.parametrize(
    "part",
    [
        "event, and its holder",
        *(pytest.param(each, marks=pytest.mark.slow) for each in ("event", "queue")),
    ],
)
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


def test_as_python_exits_nobody_looks_at_locks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Python empties modules by then, and torch leaves workers to those that end with it."""
    batches: Any = iter(dlprof.tune(loader(Waiting(), shuffle=False), max_workers=4))
    next(batches)
    with monkeypatch.context() as exiting:
        exiting.setattr("torch.utils.data._utils.python_exit_status", True)
        exiting.setattr(internals, "contextlib", None)
        internals.shut_down(batches)
    assert all(worker.is_alive() for worker in internals.workers_of(batches))
    internals.shut_down(batches)
    assert not any(worker.is_alive() for worker in internals.workers_of(batches))


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


@pytest.mark.slow
def test_a_loader_that_is_gone_starts_workers_by_its_own_method(scripted: None) -> None:
    batches = iter(dlprof.tune(loader(multiprocessing_context="forkserver"), max_workers=4))
    gc.collect()
    for _ in range(16):
        next(batches)
    assert {type(each).__name__ for each in internals.workers_of(batches)} == {"ForkServerProcess"}
    assert internals.started_workers(batches) > 2
    internals.shut_down(batches)


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
    # No step counts as a pause: one that another process holds up would leave an epoch unseen.
    monkeypatch.setattr(tuned, "_orders_steps", lambda: True)
    dataset = Opening(tmp_path / "a.bin")
    context = multiprocessing.get_context("fork")
    changing = dlprof.tune(loader(dataset, multiprocessing_context=context), max_workers=4)
    for workers in (2, 0, 3):
        batches = iter(changing)
        assert len(internals.workers_of(batches)) == workers
        place = dataset.file.tell() if workers == 3 else 0
        next(batches)
        time.sleep(0.05)
        assert len(list(batches)) == LENGTH // 4 - 1
    assert dataset.pid == os.getpid()
    assert dataset.file.tell() == place
    dataset.file.close()


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


@pytest.mark.parametrize("struck", [KeyboardInterrupt, ValueError])
def test_an_answer_without_workers_isnt_taken_where_its_proof_was_cut_off(
    struck: type[BaseException], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def error(*_given: Any, **_options: Any) -> None:
        raise struck

    file, plain = tmp_path / "dlprof.toml", loader(Asking())
    name = tuned._name_of(plain)
    save_kwargs(file, inspect_machine(), name, {"num_workers": 0}, when="2026-11-28")
    changing: Any = dlprof.tune(loader(Asking()), max_workers=4, state=file)
    with monkeypatch.context() as patched, contextlib.suppress(KeyboardInterrupt):
        patched.setattr(tuned._Attempt, "error", error)
        batches = iter(changing)
        assert len(internals.workers_of(batches)) == 2
    batches = iter(changing)  # as a cell that is run again
    assert len(internals.workers_of(batches)) == 2
    assert len(list(batches)) == len(plain)
    assert bool(changing.tuning.off) is (struck is ValueError)


class Patient(Numbers):
    """Without workers its first sample takes long, and Ctrl-C comes meanwhile."""

    interrupts = True

    def __getitem__(self, index: int) -> torch.Tensor:
        if get_worker_info() is None:
            if self.interrupts:
                os.kill(os.getppid(), signal.SIGINT)
            time.sleep(60)
        return super().__getitem__(index)


@pytest.mark.usefixtures("_interruptible")
def test_a_proof_that_ctrl_c_ended_is_begun_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file, plain = tmp_path / "dlprof.toml", loader(Patient())
    name = tuned._name_of(plain)
    save_kwargs(file, inspect_machine(), name, {"num_workers": 0}, when="2026-11-28")
    changing: Any = dlprof.tune(plain, max_workers=4, state=file)
    with pytest.raises(KeyboardInterrupt):
        iter(changing)
    monkeypatch.setattr(Patient, "interrupts", False)
    monkeypatch.setattr(tuned, "_ATTEMPT_S", 1)
    assert len(internals.workers_of(iter(changing))) == 2


def test_threads_that_begin_a_loader_at_once_leave_it_as_it_was() -> None:
    """The second took what tuning sets while an iterator is made for the loader's own."""
    began, ended, others = threading.Event(), threading.Event(), list[threading.Thread]()

    class Meeting(Sampler[int]):
        def __iter__(self) -> Iterator[int]:
            if threading.current_thread() in others:
                began.set()
                ended.wait(5)
            elif not others:
                others.append(threading.Thread(target=lambda: next(iter(tunes))))
                others[0].start()
                began.wait(0.5)  # it has to wait until this one is made
            return iter(range(8))

    made: Any = DataLoader(cast(Any, range(8)), 2, sampler=Meeting(), num_workers=1)
    tunes: Any = dlprof.tune(made)
    iterator = iter(tunes)
    ended.set()
    others[0].join()
    assert tunes.worker_init_fn is None
    assert sum(len(batch) for batch in iterator) == 8
