"""A loader that changes with nearly every batch is struck at random: nothing is lost or left."""

from __future__ import annotations

import contextlib
import functools
import itertools
import multiprocessing
import os
import random
import signal
import time
from collections.abc import Iterator
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import psutil
import pytest
import torch
from torch.utils.data import DataLoader, Dataset
from waiting import until

import dlprof
from dlprof.tuning import loader as tuned
from dlprof.tuning.control import NO_WORKERS, Ask, Control, Setting, Window

BATCHES, BATCH, EPOCHS = 40, 4, 3
STRIKES, SHARE = 40, 8  # of each kind: in all, and in one test
PATIENCE_S = 60.0
SHARED_MEMORY = Path("/dev/shm")
UNLINKED_NO_MORE = {0, 4 * BATCH}
"""Bytes of the file that torch's own worker may leave: it opens one for each tensor, gives it its
size, maps it and unlinks it. Killed at ``ftruncate`` it leaves 0 bytes, at ``unlink`` a batch's
(strace, without dlprof); of 300 that were killed at random one left a file, of 0 bytes."""
KINDS = ("exception", "worker killed", "Ctrl-C", "Ctrl-C to all", "training killed")

Epoch = list[list[float]]


class Restless(Control):
    """Has another setting after every batch or two, and where that may be no workers.

    ``pinning`` says whether its loader pins, which it then does now and then.
    """

    chance = random.Random(0)
    pinning = False

    def begin(self) -> Ask:
        return Ask(self.kept, 0, 1, 0.0)

    def look(self, window: Window) -> Ask:
        del window
        some = Setting(self.chance.randint(1, 6), self.chance.randint(1, 3))
        # Only what is still in flight then comes from workers.
        setting = NO_WORKERS if self._spares_workers and self.chance.random() < 0.7 else some
        self.kept = setting  # the next epoch may begin without workers
        if self.pinning:
            setting = setting._replace(pins=self.chance.random() < 0.5)
        return Ask(setting, self.chance.randint(0, 1), 1, 0.0)


class Numbers(Dataset[torch.Tensor]):
    """Each sample is its number; one of them may be one that can't be had."""

    def __init__(self, bad: int | None) -> None:
        self.bad = bad

    def __len__(self) -> int:
        return BATCHES * BATCH

    def __getitem__(self, index: int) -> torch.Tensor:
        time.sleep(0.001)
        if index == self.bad:
            raise KeyError(index)
        return torch.tensor(float(index))


def whole_epoch(bad: int | None = None) -> Epoch:
    starts = range(0, BATCHES * BATCH, BATCH)
    batches = [[float(start + each) for each in range(BATCH)] for start in starts]
    return [batch for batch in batches if bad not in batch]


def train(reports: Connection, bad: int | None, seed: int) -> None:
    """A training that waits for an answer to each batch, so that it is struck on its way."""
    os.setsid()
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background job ignores it
    torch.set_num_threads(1)
    Restless.chance = random.Random(seed)
    vars(tuned).update(Control=Restless, _SHORT_EPOCH=0)  # of this process
    Restless.pinning = seed % 4 > 1
    if Restless.pinning:  # with an accelerator that torch is made to see
        there = {"is_available": True, "current_accelerator": torch.device("meta")}
        there.update(current_device_index=0, set_device_index=None)
        found = {name: functools.partial(_said, value) for name, value in there.items()}
        vars(torch.accelerator).update(found)
        torch.Tensor.pin_memory = torch.Tensor.clone  # type: ignore[method-assign,assignment] # as pinned
    options: dict[str, Any] = {
        "persistent_workers": seed % 2 == 1,
        "pin_memory": Restless.pinning,
    }
    made: Any = DataLoader(Numbers(bad), batch_size=BATCH, num_workers=2, **options)
    dlprof.tune(made, max_workers=6, reseed="batch" if seed % 3 == 0 else None)
    struck = KeyboardInterrupt, RuntimeError, OSError, EOFError
    errors: list[str] = []
    begun = reported = False
    said = "struck again while the first error was noted"
    test: Any = multiprocessing.parent_process()
    # A worker's end may strike once more while the first error is noted or reported.
    while not reported:
        with contextlib.suppress(*struck):
            try:
                if not test.is_alive():
                    return
                if not begun:
                    begun = True
                    load(made, reports)
                    said = "done"
                reports.send((errors[0] if errors else said, made.tuning.off))
                reported = True
            except struck as error:
                errors.append(f"{type(error).__name__}: {error}")


def _said(value: Any, *_given: Any) -> Any:
    return value


def load(loader: Any, reports: Connection) -> None:
    """Report each batch, and wait for an answer to it."""
    for epoch in range(EPOCHS):
        batches = iter(loader)
        while True:
            try:
                batch = next(batches).tolist()
            except KeyError:
                continue  # as a loop may that leaves out what can't be had
            except StopIteration:
                break
            reports.send((epoch, batch))
            reports.recv()


def processes_of(session: int) -> list[psutil.Process]:
    """The living processes of a session."""
    found = []
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error, OSError):
            ended = process.status() == psutil.STATUS_ZOMBIE
            if os.getsid(process.pid) == session and not ended:
                found.append(process)
    return found


def strike(kind: str, training: int, chance: random.Random) -> None:
    time.sleep(chance.uniform(0.0, 0.005))
    if kind == "worker killed":
        workers = [each for each in processes_of(training) if each.pid != training]
        if workers:  # else the epoch is over
            killed.append(chance.choice(workers))
            killed[-1].kill()
    elif kind == "Ctrl-C":
        os.kill(training, signal.SIGINT)
    elif kind == "Ctrl-C to all":
        os.killpg(training, signal.SIGINT)
    elif kind == "training killed":
        os.kill(training, signal.SIGKILL)


killed: list[psutil.Process] = []
"""Workers of this test."""


def leaked() -> set[str]:
    """Files of torch's in shared memory whose processes are gone, less one of a killed worker."""
    own, found = {each.pid for each in killed}, set()
    for path in sorted(SHARED_MEMORY.glob("torch_*")):
        pid = path.name.split("_")[1]
        if not pid.isdecimal() or psutil.pid_exists(int(pid)):
            continue
        with contextlib.suppress(FileNotFoundError):
            if int(pid) in own and path.stat().st_size in UNLINKED_NO_MORE:
                own.remove(int(pid))
            else:
                found.add(path.name)
    return found


@contextlib.contextmanager
def started(bad: int | None, seed: int) -> Iterator[tuple[Any, Connection]]:
    """A training, which with all of its session has ended afterwards, whatever fails here."""
    mine, its = multiprocessing.Pipe()
    training = multiprocessing.get_context("fork").Process(target=train, args=(its, bad, seed))
    training.start()
    its.close()
    assert training.pid is not None
    try:
        yield training, mine
    finally:
        training.kill()
        for process in processes_of(training.pid):
            with contextlib.suppress(psutil.Error):
                process.kill()
        training.join()


def struck(kind: str, seed: int) -> tuple[list[Epoch], tuple[str, str] | None]:
    """The epochs of a training, and what it said at its end if it could."""
    chance = random.Random(f"{kind} {seed}")
    bad = chance.randrange(BATCHES * BATCH) if kind == "exception" else None
    strike_at = chance.randrange(1, BATCHES * EPOCHS - 2)
    epochs: list[Epoch] = [[] for _ in range(EPOCHS)]
    ended = None
    with started(bad, seed) as (training, mine):
        with contextlib.suppress(EOFError, OSError):
            for count in itertools.count():
                assert mine.poll(PATIENCE_S), f"it hangs after {count} batches"
                first, second = mine.recv()
                if isinstance(first, str):
                    ended = first, second
                    break
                epochs[first].append(second)
                # A training that is struck as it waits for this may have ended by now: what it
                # said before is still to be read.
                with contextlib.suppress(OSError):
                    mine.send(None)
                if count == strike_at:
                    strike(kind, training.pid, chance)
                    if kind != "exception" and chance.random() < 0.5:  # then it surely has
                        training.join(1.0)
        training.join(PATIENCE_S)
        assert training.exitcode is not None, "it doesn't end"
        assert until(lambda: not processes_of(training.pid))
    whole = whole_epoch(bad)
    for number, epoch in enumerate(epochs):
        later = any(epochs[number + 1 :])
        assert epoch == (whole if later else whole[: len(epoch)])
    return epochs, ended


@pytest.fixture(autouse=True)
def nothing_in_shared_memory() -> Iterator[None]:
    killed.clear()
    before = leaked()
    yield
    assert until(lambda: not leaked() - before)
    for each in killed:
        for path in SHARED_MEMORY.glob(f"torch_{each.pid}_*"):
            path.unlink(missing_ok=True)


@pytest.mark.parametrize(
    "kind",
    [
        pytest.param(each, marks=() if each in {"worker killed", "Ctrl-C"} else pytest.mark.slow)
        for each in KINDS
    ],
)
@pytest.mark.parametrize(
    "seeds",
    [
        range(1),
        *(
            pytest.param(range(first, first + SHARE), marks=pytest.mark.slow)
            for first in range(0, STRIKES, SHARE)
        ),
    ],
    ids=lambda seeds: f"{seeds.start} to {seeds.stop - 1}",
)
def test_nothing_is_lost_or_left_whatever_happens_while_it_changes(kind: str, seeds: range) -> None:
    """200 strikes in shares, so that ``SLOW_TESTS=0/4`` and so on take some, one after another."""
    interrupts = 0
    for seed in seeds:
        epochs, ended = struck(kind, seed)
        complete = epochs[-1] == whole_epoch()
        if kind == "training killed":
            assert ended is None
            continue
        assert ended is not None
        said, off = ended
        assert off == ""
        if kind == "exception":
            assert said == "done"
            assert [len(epoch) for epoch in epochs] == [BATCHES - 1] * EPOCHS
        elif not complete:
            interrupted = said.startswith("KeyboardInterrupt")
            assert interrupted is (kind == "Ctrl-C") or kind == "Ctrl-C to all"
            interrupts += 1
    assert interrupts or not kind.startswith("Ctrl-C")
