"""Clocks, chains of transforms, fetchers, stamps and the queues' pickles, each alone."""

from __future__ import annotations

import copy
import functools
import os
import pickle
import runpy
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.data import Subset, get_worker_info

from dlprof.tracing import clocks
from dlprof.tracing import stamper as stamper_module
from dlprof.tracing.chains import Chains, find_chains
from dlprof.tracing.clocks import MISSING, Reading, ThreadClock, waited_between
from dlprof.tracing.queues import DataQueue, Hook, IndexQueue, StampedBatch
from dlprof.tracing.recorder import Recorder
from dlprof.tracing.stamper import Stamper, asked_one_by_one, look_up
from dlprof.tracing.trace import Facts, Made, Ring


def test_a_clock_reads_the_kernels_account(tmp_path: Path) -> None:
    account = tmp_path / "schedstat"
    account.write_text("500 1234 7\n")
    clock = ThreadClock(account)
    first = clock.read()
    account.write_text("500 2234 8\n")
    assert waited_between(first, clock.read()) == 1000
    assert first.run_queue == 1234
    clock.close()
    assert clock.read().run_queue == MISSING


@pytest.mark.parametrize("text", [None, "", "what\n", "0 0 0\n"])
def test_a_kernel_that_shows_nothing(tmp_path: Path, text: str | None) -> None:
    account = tmp_path / "schedstat"
    if text is not None:
        account.write_text(text)
    reading = ThreadClock(account).read()
    assert reading.run_queue == MISSING
    assert reading.wall > 0
    assert waited_between(reading, Reading(0, 0, 5)) == MISSING


def test_clocks_go_on_windows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without them no loader of a script is watched there."""
    monkeypatch.setattr(sys, "platform", "win32")
    monkeypatch.setitem(sys.modules, "resource", None)
    for missing in ("pread", "sysconf", "O_CLOEXEC"):
        monkeypatch.delattr(os, missing)
    there = runpy.run_path(str(clocks.__file__))
    reading = there["ThreadClock"](tmp_path / "schedstat").read()
    assert reading.wall > 0
    assert reading.run_queue == MISSING
    children = there["ChildrenClock"]()
    assert children.read() == 0
    children.close()


def unpickled(text: bytes) -> Any:
    return pickle.loads(text)


def through_pickle(given: Any) -> Any:
    return unpickled(pickle.dumps(given))


class Chain:
    def __init__(self, transforms: Any) -> None:
        self.transforms = transforms

    def __call__(self, sample: Any) -> Any:
        for transform in self.transforms:
            sample = transform(sample)
        return sample


class Sliced(Chain):
    def __call__(self, sample: Any) -> Any:
        for transform in self.transforms[1:]:
            sample = transform(sample)
        return sample


class Holder:
    """Anything that has attributes."""

    def __init__(self, **attributes: Any) -> None:
        self.__dict__.update(attributes)

    @property
    def never(self) -> Any:
        raise AssertionError("a property of the user's was run")


def double(value: int) -> int:
    return 2 * value


class AddOne:
    def __call__(self, value: int) -> int:
        return value + 1


def test_a_chains_steps_are_timed_and_nothing_changes() -> None:
    chain = Chain([double, AddOne()])
    steps = chain.transforms
    chains = Chains(Holder(transform=chain))
    assert chains.names == ("0 double", "1 AddOne")
    assert chains.take() == ()
    assert chain(5) == 11
    assert chain(1) == 3
    assert chain.transforms == steps
    assert isinstance(chain.transforms, list)
    calls_and_ns = chains.take()
    assert calls_and_ns[::2] == (2, 2)
    assert all(ns >= 0 for ns in calls_and_ns[1::2])
    assert chains.take() == ()
    chains.let_go()
    assert chain.transforms is steps


@pytest.mark.parametrize("steps", [[double, AddOne()], (double, AddOne())])
@pytest.mark.parametrize("order", [(0, 1), (1, 0)])
def test_the_next_epoch_takes_a_chain_over(steps: Any, order: tuple[int, int]) -> None:
    """Without workers, its iterator is made while the last one's still lives."""
    chain = Chain(steps)
    epochs = [Chains(Holder(transform=chain)) for _ in range(2)]
    assert chain(5) == 11
    assert [each.take()[::2] for each in epochs] == [(), (1, 1)]
    assert [each.names for each in epochs] == [("0 double", "1 AddOne")] * 2
    for place in order:
        epochs[place].let_go()
    assert chain.transforms is steps


def test_a_chain_that_runs_a_slice_is_timed_by_its_steps() -> None:
    chain = Sliced((double, double, AddOne()))
    chains = Chains(Holder(transform=chain))
    assert chain(5) == 11
    assert chains.take()[::2] == (0, 1, 1)
    assert chain.transforms[0] is double
    chains.let_go()
    assert type(chain.transforms) is tuple


@pytest.mark.parametrize("steps", [[double, double], (double, double)])
def test_a_timed_chain_copies_and_pickles_as_a_plain_one(steps: Any) -> None:
    chain = Chain(steps)
    Chains(Holder(transform=chain))
    for twin in (copy.deepcopy(chain), through_pickle(chain)):
        assert type(twin.transforms) is type(steps)
        assert twin.transforms == steps


def test_a_chain_that_is_changed_meanwhile_still_runs() -> None:
    chain = Chain([double])
    steps = chain.transforms
    chains = Chains(Holder(transform=chain))
    chain.transforms.append(AddOne())
    assert chain(5) == 11
    chains.let_go()
    assert chain.transforms is steps
    assert len(steps) == 2


def test_a_chain_that_fails_counts_no_failed_step() -> None:
    chain = Chain([double, lambda _value: 1 / 0])
    chains = Chains(Holder(transform=chain))
    with pytest.raises(ZeroDivisionError):
        chain(1)
    assert chains.take()[::2] == (1, 0)


class Slotted:
    __slots__ = ("chain",)

    def __init__(self, chain: Chain) -> None:
        self.chain = chain


def test_chains_are_found_in_slots_and_not_in_classes() -> None:
    chain = Chain([str.upper])
    assert find_chains(Slotted(chain)) == [chain]
    assert find_chains(type("Named", (), {"chain": chain})) == []


def test_chains_are_found_behind_wrappers() -> None:
    chain, other = Chain([double]), Chain([AddOne()])
    inner: Any = Holder(transforms=Holder(transform=chain), itself=None)
    inner.itself = inner
    wrapped: Any = Holder(datasets=[inner, Holder(target_transform=other)])
    dataset: Any = Subset(wrapped, [0])
    assert find_chains(dataset) == [other, chain]


@pytest.mark.parametrize("steps", [[], [1, 2], "text", [double, 3], {"a": double}, None])
def test_what_is_no_chain(steps: Any) -> None:
    assert find_chains(Holder(transform=Chain(steps))) == []


def test_chains_within_a_chain_belong_to_its_step() -> None:
    inner = Chain([double])
    outer = Chain([inner, double])
    assert find_chains(Holder(transform=outer)) == [outer]


class Refuses(Chain):
    def __setattr__(self, name: str, value: Any) -> None:
        if name in vars(self):
            raise AttributeError(name)
        super().__setattr__(name, value)


def test_a_chain_that_refuses_is_left_alone() -> None:
    chain = Refuses([double])
    chains = Chains(Holder(transform=chain))
    assert chains.names == ()
    assert chain(2) == 4


class Single:
    def __getitem__(self, index: int) -> int:
        return index


class Whole(Single):
    def __getitems__(self, indices: list[int]) -> list[int]:
        return indices


def test_who_is_asked_for_single_samples() -> None:
    single: Any = Single()
    whole: Any = Whole()
    assert asked_one_by_one(single)
    assert not asked_one_by_one(whole)
    assert asked_one_by_one(Subset(single, [0]))
    assert asked_one_by_one(Subset(Subset(single, [0]), [0]))
    assert not asked_one_by_one(Subset(whole, [0]))
    assert not asked_one_by_one(Subset(Subset(whole, [0]), [0]))


def stamped(count: int, index: Any, *, slow: int | None = None) -> Any:
    """What a stamper says of samples of 1 µs each; one may take 1 s."""
    stamper = Stamper(0, None)
    stamper.picked(index)
    at = stamper.ends[0]
    for number in range(count):
        at += 1.0 if number == slow else 1e-6
        stamper.ends.append(at)
    made = stamper.handed()
    stamper.let_go()
    return made


def test_a_batchs_samples() -> None:
    made = stamped(10, list(range(100, 110)), slow=3)
    # Seconds on the machine's clock hold some nanoseconds after months, and no less.
    assert made.samples == 10
    assert made.samples_ns == pytest.approx(10**9 + 9000, abs=100)
    assert made.worst_ns == pytest.approx(10**9, abs=100)
    assert made.slowest[0] == ("103", made.worst_ns)
    assert len(made.slowest) == 4
    assert len(made.kept) == 80


def test_of_a_large_batch_some_samples_are_kept() -> None:
    made = stamped(1000, list(range(1000)))
    assert made.samples == 1000
    assert len(made.kept) // 8 <= 64
    assert len(made.slowest) == 1


class Rude:
    def __str__(self) -> str:
        raise AssertionError("a key's own text was asked for")

    __repr__ = __str__


@pytest.mark.parametrize(
    ("index", "name"),
    [
        ([3], "3"),
        (("key",), "key"),
        ([("clip", 4)], "('clip', 4)"),
        (torch.tensor([5]), "0"),
        ([torch.tensor(6)], "6"),
        ([Rude()], "Rude"),
        ([1, 2, 3], "0"),
    ],
)
def test_the_slowest_sample_has_a_name(index: Any, name: str) -> None:
    assert stamped(1, index).slowest[0][0] == name


def test_a_batch_whose_beginning_was_not_seen_has_no_stamps() -> None:
    stamper = Stamper(0, None)
    assert stamper.handed() is None
    stamper.let_go()


def test_a_failed_batch_ends_where_it_was_handed_over() -> None:
    stamper = Stamper(0, None)
    stamper.picked([1])
    made = stamper.handed(failed=True)
    assert made is not None
    assert made.failed
    assert made.picked <= made.fetched == made.collated
    stamper.let_go()


def test_facts_of_a_process(tmp_path: Path) -> None:
    (tmp_path / "task" / "1").mkdir(parents=True)
    (tmp_path / "task" / "2").mkdir()
    (tmp_path / "smaps_rollup").write_text(
        "7f00-7fff ---p 00000000 00:00 0 [rollup]\nRss: 90 kB\nPrivate_Clean: 3 kB\n"
        "Private_Dirty:        4 kB\nPrivate_Hugetlb: 0 kB\n"
    )
    facts = look_up(tmp_path)
    assert (facts.private_bytes, facts.threads) == (7168, 2)


def test_facts_that_could_not_be_had(tmp_path: Path) -> None:
    facts = look_up(tmp_path / "none")
    assert (facts.private_bytes, facts.threads) == (MISSING, MISSING)


class Pipe:
    """A queue within one process that pickles what passes, as torch's do."""

    def __init__(self) -> None:
        self.items: list[bytes] = []
        self.depth = 3

    def put(self, item: Any, timeout: float | None = None) -> None:
        self.items.append(pickle.dumps(item))

    def get(self, timeout: float | None = None) -> Any:
        return unpickled(self.items.pop(0))


class Seen(Recorder):
    """Keeps what it is called with."""

    def __init__(self) -> None:
        self.heard: list[Any] = []

    def dispatching(self, batch: int) -> None:
        self.heard.append(("dispatching", batch))

    def dispatched(self, batch: int) -> None:
        self.heard.append(("dispatched", batch))

    def read(self) -> Reading:
        return Reading(1, 2, 3)

    def taken(self, began: Reading, batch: int, stamped: StampedBatch | None) -> None:
        self.heard.append(("taken", batch, stamped))


def test_what_a_worker_gets_shares_one_hook() -> None:
    """Under spawn they are pickled together, and main's side stays at home."""
    hook = Hook(Seen())
    set_up = functools.partial(hook.begin_in_worker, double)
    sent = DataQueue(Pipe(), hook), IndexQueue(Pipe(), hook), set_up
    data, index, init = through_pickle(sent)
    assert data._hook is index._hook is init.func.__self__
    assert data._hook.listener is None
    assert data.depth == 3


def test_a_batch_travels_between_its_stamps() -> None:
    seen = Seen()
    worker, main = Hook(None), Hook(seen)
    pipe = Pipe()
    stamper = worker.stamper = Stamper(1, None)
    stamper.picked([4, 5])
    DataQueue(pipe, worker).put((3, "batch"))
    assert DataQueue(pipe, main).get(timeout=1) == (3, "batch")
    ((_, batch, stamped),) = seen.heard
    assert batch == 3
    assert stamped.made.worker == 1
    assert stamped.made.collated <= stamped.began.wall <= stamped.ended.wall
    assert worker.feeder is not None
    worker.feeder.close()
    stamper.let_go()


def test_other_messages_pass_as_they_are() -> None:
    seen, pipe = Seen(), Pipe()
    hook = Hook(seen)
    hook.stamper = Stamper(0, None)
    queue = DataQueue(pipe, hook)
    for message in ((None, None), ("resumed", None), None, (0, "unstamped")):
        queue.put(message)
        assert queue.get() == message
    assert seen.heard == [("taken", 0, None)]
    hook.stamper.let_go()


def test_parcels_that_come_after_the_end_are_unpacked() -> None:
    pipe, worker = Pipe(), Hook(None)
    stamper = worker.stamper = Stamper(0, None)
    stamper.picked([1])
    DataQueue(pipe, worker).put((1, "late"))
    assert DataQueue(pipe, Hook(None)).get() == (1, "late")
    stamper.let_go()


def test_workers_hear_of_the_end_once_with_their_next_indices() -> None:
    seen, pipe = Seen(), Pipe()
    main, worker = Hook(seen), Hook(None)
    sender, taker = IndexQueue(pipe, main), IndexQueue(pipe, worker)
    sender.put((0, [1]))
    assert seen.heard == [("dispatching", 0), ("dispatched", 0)]
    main.listener = None
    for message in (None, (1, [2]), (2, [3])):
        sender.put(message)
    assert unpickled(pipe.items[3]) == (2, [3])
    assert [taker.get() for _ in range(4)] == [(0, [1]), None, (1, [2]), (2, [3])]


def test_a_hook_ends_where_no_worker_runs() -> None:
    assert get_worker_info() is None
    Hook(None).end_in_worker()


def test_facts_travel_with_the_next_batch() -> None:
    stamper = Stamper(0, None)
    stamper.look()
    stamper.look()
    stamper.picked([1])
    made = stamper.handed()
    assert made is not None
    assert isinstance(made.facts, Facts)
    stamper.let_go()


def test_containers_are_looked_at_more_often_than_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """An epoch of a second has its end looked at, whatever the kernel takes to count pages."""
    now = {"s": 0.0, "cpu": 0.0}

    def look_up() -> Facts:
        now["cpu"] += 0.004
        return Facts(1, 1, 1)

    monkeypatch.setattr(stamper_module, "now_ns", lambda: round(now["s"] * 1e9))
    monkeypatch.setattr(stamper_module, "cpu_ns", lambda: round(now["cpu"] * 1e9))
    monkeypatch.setattr(stamper_module, "look_up", look_up)
    stamper, seen = Stamper(0, Keyed()), list[Any]()
    for step in range(1, 100):
        now["s"] = 0.01 * step
        stamper._facts = None
        stamper.look()
        seen.append(stamper._facts)
    assert sum(each is not None for each in seen) == 50
    assert sum(each is not None and each.private_bytes == 1 for each in seen) == 2


class Unnamed:
    def __repr__(self) -> str:
        raise ValueError("no name")


class Keyed:
    def __init__(self) -> None:
        self.cache = {Unnamed(): [1]}


def test_keys_of_the_users_that_have_no_name_end_no_worker() -> None:
    stamper = Stamper(0, Keyed())
    stamper.look()
    stamper.picked([1])
    made = stamper.handed()
    assert made is not None
    assert made.facts is not None
    assert made.facts.kept == ()
    stamper.let_go()


def test_out_of_order_what_failed_is_the_batch_that_came_first() -> None:
    ring = Ring(8)
    recorder = Recorder(ring, in_order=False)
    for number in (0, 1):
        recorder.dispatching(number)
    for number in (1, 0):
        made = Made(number, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, failed=number == 1)
        recorder.taken(recorder.read(), number, StampedBatch((number, None), made, None))
    recorder.failed()
    recorder.asked()
    recorder.yielded()
    assert [row.batch for row in ring.rows()] == [0]
    recorder.let_go()


_PATCHED = """
import time
import dlprof.trial.warm
for name in ("perf_counter_ns", "thread_time_ns", "process_time_ns"):
    setattr(time, name, lambda: 5)
from dlprof.tracing import clocks, recorder, stamper, tracer
assert tracer.now_ns() > 5
for module in (clocks, recorder, stamper):
    assert module.now_ns() > 5 and module.cpu_ns() > 5 and module.process_cpu_ns() > 5, module
"""


@pytest.mark.slow
def test_a_target_that_patches_time_does_not_change_the_clocks_of_a_check() -> None:
    subprocess.run([sys.executable, "-c", _PATCHED], check=True)
