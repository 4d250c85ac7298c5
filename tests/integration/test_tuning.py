"""What tunes itself: what it may, decides by, says, and keeps for the next job."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import itertools
import json
import logging
import multiprocessing
import os
import pickle
import random
import shutil
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from programs import python
from torch.utils.data import DataLoader, Sampler, get_worker_info
from torch.utils.data.datapipes.iter import IterableWrapper
from torch.utils.data.datapipes.map import SequenceWrapper
from tuned_loaders import (
    LENGTH,
    Failing,
    Numbers,
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
from dlprof.errors import UsageError
from dlprof.integrations import callbacks, loggers, running
from dlprof.machine import inspect_machine
from dlprof.saved import save_kwargs
from dlprof.tuning import control
from dlprof.tuning import loader as tuned
from dlprof.tuning.budget import Budget, Node
from dlprof.tuning.control import Ask, Setting, Window
from dlprof.tuning.loader import Tuning

pytestmark = pytest.mark.usefixtures("no_worker_left")


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

    for _ in dlprof.tune(loader(Slow(32, draws=False), batch_size=1, num_workers=1), max_workers=1):
        pass

    assert len(seen) > 3
    received = [each.receive_s for each in seen if each.receive_s]
    assert received
    assert max(received) < 0.01


class Unshared(Numbers):
    """Takes a millisecond of its core for a sample, in a worker two, and nothing once it has it."""

    def __init__(self, *, draws: bool) -> None:
        super().__init__(draws=draws)
        self.cached: set[int] = set()

    def __getitem__(self, index: int) -> torch.Tensor:
        if index in self.cached:
            return super().__getitem__(index)
        self.cached.add(index)
        until_s = time.thread_time() + (0.001 if get_worker_info() is None else 0.002)
        while time.thread_time() < until_s:
            pass
        return super().__getitem__(index)


@pytest.mark.parametrize("limit_s", [1.0, 0.0], ids=["", "after a standstill"])
def test_what_a_batch_costs_without_workers_is_tried_where_they_may_be_spared(
    limit_s: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[Window] = []
    monkeypatch.setattr(tuned, "_ATTEMPTS_S", limit_s)

    class Looking(Scripted):
        settings = (Setting(1, 2),)

        def look(self, window: Window) -> Ask:
            self.wait_share = window.wait_share
            seen.append(window)
            return super().look(window)

    monkeypatch.setattr(tuned, "Control", Looking)
    monkeypatch.setattr(tuned, "_SHORT_EPOCH", 0)
    limits: list[dict[str, Any]] = [{}, {"max_workers": 2}]
    for given in limits:
        seen.clear()
        dataset, until_s = Unshared(draws=False), time.monotonic() + 60
        made = loader(dataset, num_workers=1, multiprocessing_context="fork")
        changing = dlprof.tune(made, **given)
        for epoch in itertools.count():
            assert sum(map(len, numbers(changing))) == LENGTH
            known = max(each.alone_cpu_s for each in seen)
            if known or time.monotonic() > until_s or (epoch and not given):
                break
        # Of a batch of four, none of which is made twice: never less than its loops take.
        assert (known >= 4 * 0.001) is bool(given)


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
    running.tune_all(DataLoader, lambda _: "train.py:3")
    own: Any = OwnIterators(Numbers(), batch_size=4)
    for _ in range(2):
        assert len(numbers(own)) == LENGTH // 4
    assert own.made == 2
    assert "makes iterators of its own" in own.tuning.off


class Nested(Numbers):
    """Has a loader for each sample: how many of them had a tuning."""

    def __getitem__(self, index: int) -> torch.Tensor:
        inner = DataLoader(Numbers(2))
        list(inner)
        return torch.tensor([float(hasattr(inner, "tuning"))])


def test_loaders_that_a_script_makes_for_each_step_are_refused_once(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """And none is tuned in a worker, which has no workers of its own."""
    monkeypatch.setattr(DataLoader, "_get_iterator", DataLoader._get_iterator)
    running.tune_all(DataLoader, lambda loader: f"train.py:{loader.batch_size}")
    for _ in range(3):
        assert len(numbers(DataLoader(Numbers(), batch_size=4))) == LENGTH // 4
    numbers(DataLoader(Numbers(), batch_size=8))
    assert [each.name for each in caplog.records] == ["dlprof.tune"] * 2
    assert numbers(DataLoader(Nested(3), batch_size=3, num_workers=1)) == [[0.0] * 3]


class Final(DataLoader[Any]):
    def __init_subclass__(cls) -> None:
        raise RuntimeError("no subclasses")


class MadeOnce(DataLoader[Any]):
    """Has one iterator for all epochs, as timm's MultiEpochsDataLoader and Ultralytics' loader."""

    def __init__(self, *given: Any, **options: Any) -> None:
        super().__init__(*given, **options)
        self.iterator = super().__iter__()


def _reason(made: Any, caplog: pytest.LogCaptureFixture, **options: Any) -> str:
    caplog.clear()
    with caplog.at_level(logging.INFO, logger="dlprof.tune"):
        assert dlprof.tune(made, **options) is made
    (record,) = caplog.records
    return record.getMessage()


def test_a_loader_that_can_not_be_tuned_says_why_and_loads(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert "list is no DataLoader" in _reason([1, 2], caplog)
    own = OwnIterators(Numbers(), batch_size=4)
    assert "OwnIterators makes iterators of its own" in _reason(own, caplog)
    assert len(numbers(own)) == LENGTH // 4
    assert "no class can be derived from Final" in _reason(Final(Numbers(), num_workers=1), caplog)
    monkeypatch.setattr(DataLoader, "_get_iterator", DataLoader._get_iterator)
    running.tune_all(Final, lambda _: "train.py:3")
    caplog.clear()
    for _ in range(3):
        assert len(numbers(Final(Numbers(), batch_size=4))) == LENGTH // 4
    assert len(caplog.records) == 2  # that it isn't, and why
    kept = loader(persistent_workers=True)
    next(iter(kept))
    assert "its workers run already" in _reason(kept, caplog)
    assert "its workers run already" in _reason(MadeOnce(Numbers(), num_workers=1), caplog)
    internals.shut_down(kept._iterator)
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
from torch.utils.data import DataLoader, get_worker_info
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
    done = python(tmp_path, *launcher, "train.py", timeout_s=300, TMPDIR=str(temporary))
    assert done.returncode == 0, done.stderr[-3000:]
    reports = [json.loads((tmp_path / f"rank{rank}.json").read_text()) for rank in range(2)]
    assert [each["off"] for each in reports] == ["", ""]
    moments = sorted(
        (at, rank, what, workers)
        for rank, each in enumerate(reports)
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


@pytest.mark.parametrize(
    "content", ["", *(pytest.param(each, marks=pytest.mark.slow) for each in ("[1]", '{"x": {}}'))]
)
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
    dlprof.tune(loader(num_workers=0))  # off at once, which the other ranks hear


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


class Growing(Numbers):
    def __getitem__(self, index: int) -> torch.Tensor:
        return torch.zeros(1 + 1000 * index)


def test_the_largest_batch_counts(scripted: None, monkeypatch: pytest.MonkeyPatch) -> None:
    counted: list[int] = []

    def refusal(*_: Any, batch_bytes: int, **__: Any) -> str:
        counted.append(batch_bytes)
        return ""

    monkeypatch.setattr(Budget, "refusal", refusal)
    # Each is weighed: how long the one before took doesn't matter.
    always = property(lambda _: 0.0, lambda *_: None)
    monkeypatch.setattr(tuned._Tuner, "_weighed_until_s", always, raising=False)
    list(dlprof.tune(loader(Growing(), batch_size=None), max_workers=4))
    assert counted[-1] > counted[0] > 4
    assert counted == sorted(counted)


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


def seed_worker(_worker: int) -> None:  # as torch's documentation has it
    worker_seed = torch.initial_seed() % 2**32
    np.random.seed(worker_seed)  # noqa: NPY002 - as there
    random.seed(worker_seed)


def seed_rank(worker: int, num_workers: int, rank: int) -> None:
    random.seed(torch.initial_seed() + num_workers * rank + worker)


SHARES = [range(10), range(10, 20)]


def take_share(worker: int) -> None:
    random.seed(SHARES[worker][0])


def seed_by_table(worker: int) -> None:
    random.seed((3, 4)[worker])


def set_seed(worker: int) -> None:
    set_seed(worker)


def of_lightning(worker: int, rank: int | None = None) -> None:
    random.seed(SHARES[0][worker + (rank or 0)])


of_lightning.__module__ = "lightning.fabric.utilities.seed"


@pytest.mark.parametrize("package", ["lightning.fabric", "lightning_fabric"])
def test_lightning_s_own_worker_init_fn_meets_more_workers(package: str) -> None:
    seed = pytest.importorskip(f"{package}.utilities.seed")
    made: Any = dlprof.tune(loader(worker_init_fn=seed.pl_worker_init_function))
    assert made.tuning._control._most == 16


@pytest.mark.parametrize(
    ("init", "world", "most"),
    [
        (None, "1", 16),
        (seed_worker, "1", 16),
        (seed_worker, "2", 16),
        (functools.partial(seed_rank, num_workers=2, rank=0), "1", 16),  # as Hugging Face's
        (functools.partial(seed_rank, num_workers=2, rank=0), "2", 2),
        pytest.param(functools.partial(of_lightning, rank=1), "2", 16, id="Lightning's"),
        (take_share, "1", 2),
        (seed_by_table, "1", 2),
        (set_seed, "1", 2),
    ],
)
def test_a_worker_init_fn_that_only_seeds_meets_more_workers(
    monkeypatch: pytest.MonkeyPatch, init: Any, world: str, most: int
) -> None:
    monkeypatch.setenv("WORLD_SIZE", world)
    made: Any = dlprof.tune(loader(worker_init_fn=init))
    assert made.tuning._control._most == most
    why = "; no more workers are tried: its worker_init_fn may know no others"
    assert (why in made.tuning.summary()) is (most == 2)


def test_a_worker_init_fn_meets_no_worker_of_an_answer_that_it_may_not_know(
    tmp_path: Path,
) -> None:
    file, name = (
        tmp_path / "dlprof.toml",
        "tune:tuned_loaders.Numbers, 96 samples, batch_size=4",
    )
    saved = {"num_workers": 7, "prefetch_factor": 4}
    save_kwargs(file, inspect_machine(), name, saved, when="2026-11-28")
    allowed: list[tuple[dict[str, Any], int]] = [({}, 2), ({"max_workers": 8}, 7)]
    for limits, workers in allowed:
        made: Any = dlprof.tune(loader(worker_init_fn=print), state=file, **limits)
        assert made.tuning.kwargs == {"num_workers": workers, "prefetch_factor": 4}


@pytest.mark.parametrize("settles", [True, False])
def test_the_answer_serves_the_next_job(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, settles: bool
) -> None:
    """A job that ends before it settles keeps what it has by then."""

    class Certain(Scripted):
        def look(self, window: Window) -> Ask:
            if settles:
                self.kept, self.resting = Setting(3, 4), True
            elif not self.changes:
                self._note(Setting(3, 4), "", kept=True)
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
    name = "tune:tuned_loaders.Numbers, 96 samples, batch_size=4"
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
    file, name = tmp_path / "dlprof.toml", "tune:tuned_loaders.Numbers"
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
    file, name = (
        tmp_path / "dlprof.toml",
        "tune:tuned_loaders.Numbers, 96 samples, batch_size=4",
    )
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
    samples = Numbers(400, draws=False) if clock else Waiting()
    made: Any = loader(samples, shuffle=False, num_workers=1, prefetch_factor=16)
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


@pytest.mark.parametrize("workers", [0, pytest.param(1, marks=pytest.mark.slow)])
def test_short_epochs_get_workers_between_them(
    monkeypatch: pytest.MonkeyPatch, workers: int
) -> None:
    """Epochs of well under a second, none of which is long enough to try anything in.

    Where starting a worker takes as long as what it brings, one is first given back for none.
    """
    monkeypatch.setattr(control, "_EDGE_STAY_S", 1.0)

    class Slow(Numbers):
        def __getitem__(self, index: int) -> torch.Tensor:
            time.sleep(0.008)
            return super().__getitem__(index)

    made: Any = dlprof.tune(
        loader(Slow(80, draws=False), num_workers=workers, shuffle=False), max_workers=4
    )
    until = time.monotonic() + 120
    while made.tuning.kwargs["num_workers"] <= workers and time.monotonic() < until:
        assert [number for batch in numbers(made) for number in batch] == [*map(float, range(80))]
    assert made.tuning.kwargs["num_workers"] > workers
    assert made.num_workers == workers
    batches = iter(made)
    assert internals.started_workers(batches) > workers


class Again(Sampler[list[int]]):
    """Begins again whenever an epoch is over, as that of timm's and of Ultralytics' loaders."""

    def __len__(self) -> int:
        return 3

    def __iter__(self) -> Iterator[list[int]]:
        while True:
            yield from ([0, 1], [2, 3], [4, 5])


def test_an_iterator_that_never_ends_is_not_waited_for() -> None:
    batches = iter(
        dlprof.tune(DataLoader(Numbers(6, draws=False), batch_sampler=Again(), num_workers=1))
    )
    tuner: Any = vars(batches)["_dlprof_tap"]._tuner
    assert tuner.whole_epochs
    # As many as it may take where one of them takes longer than all others, as a pause would.
    for number, batch in enumerate(itertools.islice(batches, 100_000)):
        assert batch[:, 0].tolist() == [2 * (number % 3), 2 * (number % 3) + 1]
        if not tuner.waits_for_epochs:
            break
    assert number >= 6
    assert not tuner.whole_epochs
    assert not tuner.waits_for_epochs
    assert not tuner.tuning.off


def test_a_batch_of_none_ends_no_epoch() -> None:
    """A ``collate_fn`` may give it where all samples of a batch are to be left out."""
    made: Any = dlprof.tune(
        loader(Numbers(80, draws=False), collate_fn=lambda _: None, shuffle=False)
    )
    tap: Any = vars(batches := iter(made))["_dlprof_tap"]
    assert tap._tuner.whole_epochs
    assert list(itertools.islice(batches, 10)) == [None] * 10
    assert made.tuning._control.batches == 0  # it looks at whole epochs
    assert [*batches] == [None] * 10


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
from torch.utils.data import DataLoader, get_worker_info

if __name__ == "__main__":
    for epoch in range(2):
        for batch in DataLoader(torch.arange(64), batch_size=4, num_workers=1):
            print(batch.tolist())
"""


TWO = """
import dlprof, torch
from torch.utils.data import DataLoader, TensorDataset
data = TensorDataset(torch.arange(64))
train = DataLoader(data, batch_size=8)
valid = DataLoader(data, batch_size=4)
TUNES
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


@pytest.mark.slow
@pytest.mark.parametrize(
    ("options", "tunes"),
    [(["--tune"], ""), ([], "dlprof.tune(train), dlprof.tune(valid)")],
    ids=["by the run", "by the script"],
)
def test_of_two_tuned_loaders_each_is_named(tmp_path: Path, options: list[str], tunes: str) -> None:
    (tmp_path / "train.py").write_text(TWO.replace("TUNES", tunes))
    words = ("-m", "dlprof", "run", *options, "--json", "seen.json", "train.py")
    done = python(tmp_path, *words, timeout_s=300)
    assert done.returncode == 0, done.stderr
    document = json.loads((tmp_path / "seen.json").read_text())
    named = [note.partition(": num_workers")[0] for note in document["script"]["notes"]]
    assert named == ["dlprof.tune: train.py:5", "dlprof.tune: train.py:6"]
    assert {each["name"] for each in document["loaders"]} == {"train.py:5", "train.py:6"}


def test_an_unmodified_script_is_tuned(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(SCRIPT)
    plain, tuning = (
        python(tmp_path, *words, "train.py", timeout_s=300)
        for words in ([], ["-m", "dlprof", "run", "--tune", "--json", "seen.json"])
    )
    assert tuning.stdout == plain.stdout
    notes = json.loads((tmp_path / "seen.json").read_text())["script"]["notes"]
    (note,) = [note for note in notes if note.startswith("dlprof.tune: ")]
    assert "off:" not in note
    assert note.endswith("(2 loaders)")  # one that is made again in each epoch
    assert tuning.stderr.count("Tuning") == 1
