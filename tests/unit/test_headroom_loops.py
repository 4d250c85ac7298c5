"""What a perfect loader would bring, measured in loops whose times are known: nothing sleeps."""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
import math
import random
import signal
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch

from dlprof.device.moving import copied
from dlprof.integrations import headroom
from dlprof.integrations.headroom import Headrooms, LoopHeadroom, Rounds
from dlprof.integrations.wait_statistics import WaitStatistics
from dlprof.records import Config, WatchedLoader

MS = 1_000_000


class World:
    """A loader with workers, and the time that passes while it is waited for or trained with.

    Args:
        workers: ``num_workers``, with a prefetch of 2.
        make_ms: From one batch made to the next, while there is anything to make.
        step_ms: Of a step while nothing is made.
        slower: By how much it is slower while something is.
        receive_ms: What taking a batch costs in any case.
        cold_ms: By so much a step is longer after a wait.
    """

    def __init__(
        self,
        *,
        workers: int = 2,
        make_ms: float = 10.0,
        step_ms: float = 5.0,
        slower: float = 0.1,
        receive_ms: float = 0.0,
        cold_ms: float = 0.0,
    ) -> None:
        self.now_ns = MS
        self.workers, self.capacity = workers, 2 * workers
        self.make_ns, self.step_ns = make_ms * MS, step_ms * MS
        self.slower, self.receive_ns = slower, receive_ms * MS
        self.cold_ns, self.waited = cold_ms * MS, False
        self.ready, self.progress_ns = 0, 0.0
        self.left = 0
        self._data_queue = self._worker_result_queue = self
        self.rests = True
        self.numbers = itertools.count()

    def qsize(self) -> int:
        return self.ready if self.rests else 0

    @property
    def _task_info(self) -> dict[int, tuple[int]]:
        return dict.fromkeys(range(min(self.capacity, self.left)), (0,))

    def clock(self) -> int:
        return self.now_ns

    def sleep(self, seconds: float) -> None:
        self.waited = seconds > 0
        self.pass_ns(seconds * 1e9)

    @property
    def busy(self) -> bool:
        return 0 < min(self.capacity, self.left) > self.ready and self.workers > 0

    def pass_ns(self, passed_ns: float) -> None:
        self.now_ns += round(passed_ns)
        if not self.busy:
            return
        self.progress_ns += passed_ns + 1e-3  # so that what is due to the nanosecond is made
        while self.progress_ns >= self.make_ns and self.busy:
            self.progress_ns -= self.make_ns
            self.ready += 1
        if not self.busy:
            self.progress_ns = 0.0

    def epoch(self, batches: int) -> None:
        self.left, self.ready, self.progress_ns = batches, 0, 0.0

    def advance(self, _iterator: Any) -> Any:
        if not self.left:
            raise StopIteration
        if not self.workers:
            self.now_ns += round(self.make_ns)
        else:
            if not self.ready:
                self.waited = True
                self.pass_ns(self.make_ns - self.progress_ns)
            self.ready -= 1
        self.left -= 1
        self.pass_ns(self.receive_ns)
        return {"x": torch.full((2,), float(next(self.numbers))), "n": [1, 2]}

    def step(self, factor: float = 1.0) -> None:
        left_ns = self.step_ns * factor + (self.cold_ns if self.waited else 0.0)
        self.waited = False
        while left_ns > 1:
            slower, until_ns = 1.0, math.inf
            if self.busy:
                slower = 1 + self.slower
                to_make = min(self.capacity, self.left) - self.ready
                until_ns = to_make * self.make_ns - self.progress_ns
            passed_ns = min(left_ns * slower, until_ns)
            self.pass_ns(passed_ns)
            left_ns -= passed_ns / slower


class Training:
    """A script's loop over one loader of a world's."""

    def __init__(self, world: World, ready: Callable[[], bool] = lambda: True) -> None:
        self.world = world
        self.loops = Headrooms(clock=world.clock, sleep=world.sleep)
        config = Config(num_workers=world.workers, prefetch_factor=2 if world.workers else None)
        self.loop = LoopHeadroom(self.loops, config, ready)
        self.statistics = WaitStatistics(
            clock=world.clock, began_ns=world.clock(), inside=self.loops.inside
        )
        self.seen: list[float] = []

    def batches(self, count: int) -> Iterator[Any]:
        self.world.epoch(count)
        self.loops.opening()
        reading, _ = self.statistics.open(lambda: None)
        take = self.loop.replaying(reading.take, reading)
        while True:
            try:
                batch = take(self.world.advance, self.world)
            except StopIteration:
                return
            self.seen.append(float(batch["x"][0]))
            yield batch

    def run(self, epochs: int = 4, count: int = 250) -> LoopHeadroom:
        for _ in range(epochs):
            for _ in self.batches(count):
                self.world.step()
        return self.loop

    @property
    def own(self) -> list[float]:
        """The loader's batches in the order in which they came first."""
        return list(dict.fromkeys(self.seen))


def test_a_loop_that_waits() -> None:
    training = Training(World(make_ms=10.0, step_ms=5.0, slower=0.1))
    shown = training.run().summary()
    assert shown is not None
    assert shown.period_s == pytest.approx(0.010, rel=0.01)
    assert shown.step_s == pytest.approx(0.005, rel=0.011)
    assert shown.speedup.value == pytest.approx(2.0, rel=0.02)
    assert shown.waiting_fraction.value == pytest.approx(0.45, abs=0.012)
    assert shown.slowed_fraction.value == pytest.approx(0.05, abs=0.012)
    assert shown.rounds >= 8
    assert shown.extra_steps == shown.replayed_batches + 2 * shown.rounds
    assert shown.extra_steps == len(training.seen) - 1000


def test_a_loop_that_nearly_keeps_up_is_not_taken_for_fed() -> None:
    """Full queues, left by a pause, hide a wait of 5% for 80 batches."""
    shown = Training(World(make_ms=10.0, step_ms=9.5, slower=0.0)).run().summary()
    assert shown is not None
    assert shown.speedup.value == pytest.approx(10 / 9.5, rel=0.01)
    assert shown.waiting_fraction.value == pytest.approx(0.05, abs=0.01)


def test_a_step_that_is_slowed_while_the_loader_keeps_up() -> None:
    """Workers make a batch in 8 of 10 ms; so the step is slower for that long."""
    shown = Training(World(make_ms=8.0, step_ms=10.0, slower=0.25)).run().summary()
    assert shown is not None
    assert shown.step_s == pytest.approx(0.010, rel=0.01)
    assert shown.waiting_fraction.value == pytest.approx(0.0, abs=0.005)
    assert shown.slowed_fraction.value == pytest.approx(1.6 / 11.6, abs=0.01)
    assert shown.slowed_fraction.low is not None
    assert shown.slowed_fraction.low > 0


def test_what_a_step_takes_longer_after_a_wait_is_no_fault_of_the_workers() -> None:
    shown = Training(World(make_ms=10.0, step_ms=5.0, slower=0.0, cold_ms=1.0)).run().summary()
    assert shown is not None
    assert shown.step_s == pytest.approx(0.005, rel=0.011)
    assert shown.waiting_fraction.value == pytest.approx(0.5, abs=0.012)
    assert shown.slowed_fraction.value == pytest.approx(0.0, abs=0.012)


def test_without_workers_all_of_loading_is_wait() -> None:
    shown = Training(World(workers=0, make_ms=3.0, step_ms=6.0)).run().summary()
    assert shown is not None
    assert shown.waiting_fraction.value == pytest.approx(1 / 3, abs=0.01)
    assert shown.slowed_fraction.value == pytest.approx(0.0, abs=0.01)


@pytest.mark.parametrize("workers", [0, 2, 5])
def test_no_batch_of_the_loaders_is_lost_or_out_of_order(workers: int) -> None:
    training = Training(World(workers=workers))
    training.run(epochs=3, count=150)
    assert training.own == [float(number) for number in range(450)]
    assert max(map(training.seen.count, training.own)) == 2  # each is given again once at most


def test_batches_given_again_are_no_part_of_what_was_seen_of_the_loader() -> None:
    plain, measured = (
        Training(World(slower=0.0), ready) for ready in (lambda: False, lambda: True)
    )
    for each in (plain, measured):
        each.run()
    records = [each.statistics.fill(WatchedLoader(name="a")) for each in (plain, measured)]
    assert measured.loop.summary() is not None
    assert [each.batches for each in records] == [1000, 1000]
    assert records[0].step is not None
    assert records[1].step is not None
    assert records[1].step.mean_s == pytest.approx(records[0].step.mean_s, rel=0.01)
    assert records[1].step.max_s < 0.007
    # Nor are pauses and copies waits; queues that fill in a pause spare some, which are left out.
    assert records[0].wait is not None
    assert records[1].wait is not None
    assert records[1].wait.max_s <= 1.01 * records[0].wait.max_s
    assert records[1].waited_s < 0.97 * records[0].waited_s
    assert records[1].wait.mean_s == pytest.approx(records[0].wait.mean_s, rel=0.02)
    known = dataclasses.replace(records[1], headroom=measured.loop.summary())
    assert known.spared_s is not None
    assert known.waited_s + known.spared_s == pytest.approx(records[0].waited_s, rel=0.02)
    assert known.stepped_s == pytest.approx(records[0].stepped_s, rel=0.01)
    assert records[0].spared_s is None


def test_what_a_step_does_to_its_batch_stays_with_that_batch() -> None:
    training = Training(World())
    for _ in range(4):
        for batch in training.batches(250):
            assert batch["n"] == [1, 2]
            batch["x"].mul_(0).sub_(1)
            batch["n"].clear()
            training.world.step()
    assert training.loop.summary() is not None
    assert training.own == [float(number) for number in range(1000)]


def test_random_numbers_go_on_as_if_no_batch_had_been_given_again() -> None:
    def drawn(*, measured: bool) -> list[float]:
        random.seed(1)
        torch.manual_seed(1)
        training = Training(World(), lambda: measured)
        for _ in range(2):
            for _ in training.batches(250):
                torch.rand(1)
                random.random()
                training.world.step()
        assert (training.loop.summary() is not None) is measured
        return [float(torch.rand(1)), random.random()]

    assert drawn(measured=True) == drawn(measured=False)


def test_a_loop_that_is_left_while_batches_are_given_again() -> None:
    training, state = Training(World()), None
    for batch in training.batches(500):
        if training.loops.replaying is not None:
            state = torch.get_rng_state() if state is None else state
            torch.rand(1)
            if training.seen.count(float(batch["x"][0])) == 2 and len(training.seen) > 50:
                break
        training.world.step()
    left = max(training.seen)
    assert state is not None
    again = training.batches(100)
    next(again)
    assert torch.equal(torch.get_rng_state(), state)
    assert training.seen[-1] == left + 1
    training.world.step()
    assert [next(again)["x"][0] for _ in range(5)]
    assert training.loops.replaying is None


class Passing:
    """One iteration over a world, as loaders without persistent workers make one for each epoch."""

    def __init__(self, world: World) -> None:
        self.world = world

    def __getattr__(self, name: str) -> Any:
        return getattr(self.world, name)


def _left_in_a_replay(training: Training, passing: World | Passing) -> torch.Tensor:
    """The state of torch's random numbers as batches were given again, and the loop was left."""
    training.world.epoch(500)
    training.loops.opening()
    reading, _ = training.statistics.open(lambda: None)
    take = training.loop.replaying(reading.take, reading)
    for _ in range(500):
        state = torch.get_rng_state()
        take(training.world.advance, passing)
        if training.loops.replaying is not None:
            torch.rand(1)
            return state
        torch.rand(1)
        training.world.step()
    raise AssertionError("no batch was given again")


def test_a_loop_that_is_left_gives_the_random_numbers_back_at_once() -> None:
    training = Training(World())
    state = _left_in_a_replay(training, Passing(training.world))
    assert training.loops.replaying is None
    assert torch.equal(torch.get_rng_state(), state)


@pytest.mark.parametrize("seed", [1, 2])
def test_a_seed_that_is_set_after_a_loop_is_left_stays(seed: int) -> None:
    torch.manual_seed(1)
    training = Training(World())
    _left_in_a_replay(training, training.world)
    torch.manual_seed(seed)
    random.seed(seed)
    training.loops.opening()
    drawn = float(torch.rand(1)), random.random()
    torch.manual_seed(seed)
    random.seed(seed)
    assert drawn == (float(torch.rand(1)), random.random())


def test_batches_that_grow_are_kept_within_the_same_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(headroom, "_MOST_BYTES", 20_000)
    world: Any = World()
    training, plain, held = Training(world), world.advance, list[int]()

    def advance(iterator: Any) -> Any:
        batch = plain(iterator)
        held.append(sum(size for size, _ in training.loop._copies))
        wide = 100 if len(held) < 10 or len(held) > 600 else 400
        return {**batch, "wide": torch.zeros(wide)}

    world.advance = advance
    shown = training.run().summary()
    assert max(held) <= 20_000
    assert shown is not None
    assert shown.speedup.value == pytest.approx(2.0, rel=0.03)


def test_steps_that_do_something_else_as_well_are_left_out() -> None:
    training = Training(World(make_ms=6.0, step_ms=10.0, slower=0.0))
    for _ in range(4):
        for number, _ in enumerate(training.batches(250)):
            training.world.step(factor=30.0 if number % 25 == 0 else 1.0)
    shown = training.loop.summary()
    assert shown is not None
    assert shown.speedup.value == pytest.approx(1.0, abs=0.01)


def test_copies_wait_until_batches_are_followed_no_more() -> None:
    training = Training(World(), lambda: len(training.seen) > 200)
    training.run()
    assert training.seen[:200] == [float(number) for number in range(200)]
    assert training.loop.summary() is not None


def test_rounds_get_shorter_until_they_fit_into_an_epoch() -> None:
    world = World(make_ms=2.0, step_ms=1.0)
    shown = Training(world).run(epochs=12, count=60).summary()
    assert shown is not None
    assert shown.speedup.value == pytest.approx(2.0, rel=0.03)
    assert shown.replayed_batches < 40 * shown.rounds


def test_epochs_that_are_too_short() -> None:
    loop = Training(World()).run(epochs=30, count=15)
    assert loop.summary() is None
    assert loop.why_not.startswith("0 of 3 rounds fitted in: each takes some ")
    assert loop.why_not.endswith("(train for more epochs, or longer ones)")


def test_loops_that_train_nothing() -> None:
    training = Training(World())
    with torch.no_grad():
        loop = training.run()
    assert loop.summary() is None
    assert loop.why_not == "its batches are not trained on: gradients are off"
    assert len(training.seen) == 1000
    short = training.run(epochs=1, count=10)  # a loop that does comes later
    assert short.why_not.startswith("0 of 3 rounds fitted in")
    assert training.run().summary() is not None


def test_two_loaders_in_step() -> None:
    one, two = Training(World()), Training(World())
    two.loops = one.loops
    two.loop = LoopHeadroom(one.loops, Config(num_workers=2, prefetch_factor=2), lambda: True)
    pairs = list(zip(one.batches(200), two.batches(200), strict=True))
    assert all(torch.equal(first["x"], second["x"]) for first, second in pairs)
    assert one.loop.why_not == two.loop.why_not
    assert one.loop.why_not == "its steps take batches of another loader as well"


def test_a_validation_in_the_middle_ends_its_round_only() -> None:
    training, other = Training(World()), Training(World())
    other.loops = training.loops
    other.loop = LoopHeadroom(
        training.loops, Config(num_workers=2, prefetch_factor=2), lambda: True
    )
    for number, _ in enumerate(training.batches(1500)):
        training.world.step()
        if number % 70 == 69:
            with torch.no_grad():
                for _ in other.batches(20):
                    pass
    shown = training.loop.summary()
    assert shown is not None
    assert shown.speedup.value == pytest.approx(2.0, rel=0.03)
    assert other.loop.summary() is None
    assert len(other.seen) == 20 * (len(training.seen) // 70)


class Unique:
    """What can't be copied."""

    def __deepcopy__(self, _memo: object) -> Any:
        raise TypeError("there is one of these")


@pytest.mark.parametrize(
    ("batch", "why"),
    [
        (Unique(), "its batches can't be copied (TypeError: there is one of these)"),
        (torch.zeros(1, dtype=torch.int8).expand(2**28), "its batches of 256 MiB are too large"),
    ],
)
def test_batches_that_cannot_be_kept(batch: Any, why: str) -> None:
    world: Any = World()
    training = Training(world)
    plain, came = world.advance, []

    def advance(iterator: Any) -> Any:
        plain(iterator)
        came.append(batch)
        return {"x": torch.zeros(1), "big": batch}

    world.advance = advance
    loop = training.run(epochs=1)
    assert loop.summary() is None
    assert loop.why_not.startswith(why)
    assert len(came) == len(training.seen) == 250


def test_workers_that_never_rest() -> None:
    world = World()
    world.rests = False
    loop = Training(world).run()
    assert loop.summary() is None
    assert loop.why_not == "its workers did not come to rest in 10 s"


def test_a_loader_taken_in_a_thread() -> None:
    training = Training(World())
    thread = threading.Thread(target=training.run)
    thread.start()
    thread.join()
    assert training.loop.why_not == "its batches are taken in a background thread"
    assert len(training.seen) == 1000


def test_an_error_of_the_loaders_is_the_scripts() -> None:
    world: Any = World()
    training = Training(world)

    def fail(_iterator: Any) -> Any:
        raise OSError("no disk")

    batches = training.batches(250)
    for _ in range(30):
        next(batches)
    world.advance = fail
    with pytest.raises(OSError, match="no disk"):
        list(batches)


def test_a_fault_of_its_own_costs_the_script_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise RuntimeError("oh")

    training = Training(World())
    monkeypatch.setattr(Rounds, "add", fail)
    loop = training.run()
    assert loop.why_not == "dlprof has a fault of its own: RuntimeError: oh"
    assert training.own == [float(number) for number in range(1000)]


def test_a_death_while_workers_come_to_rest_is_the_scripts() -> None:
    """Torch's handler of signals says once why a worker died, at whatever line."""

    def died(*_: object) -> None:
        raise RuntimeError("DataLoader worker (pid 7) is killed by signal: Bus error.")

    training = Training(World())
    training.loops.sleep = lambda _: signal.raise_signal(signal.SIGCHLD)
    before = signal.signal(signal.SIGCHLD, died)
    try:
        with pytest.raises(RuntimeError, match="Bus error"):
            training.run()
    finally:
        signal.signal(signal.SIGCHLD, before)
    assert "fault" not in training.loop.why_not


def test_what_overlaps_with_the_device_is_no_exposed_wait() -> None:
    rounds = Rounds()
    for _ in range(4):
        rounds.add([(6 * MS, 5 * MS)] * 8, [9 * MS] * 8, [])
    shown = rounds.summary(extra_steps=40, extra_s=1.0, overlaps=True)
    assert shown.waiting_fraction.value == pytest.approx(2 / 11)
    assert shown.slowed_fraction.value == pytest.approx(0.0)
    plain = rounds.summary(extra_steps=40, extra_s=1.0, overlaps=False)
    assert plain.waiting_fraction.value == pytest.approx(6 / 11)
    assert plain.slowed_fraction.value == pytest.approx(-4 / 11)


def test_what_slows_both_sides_leaves_the_interval_narrow() -> None:
    rounds, numbers = Rounds(), random.Random(0)
    for _ in range(12):
        speed = numbers.uniform(0.5, 1.5)
        rounds.add([(0, round(12 * MS * speed))] * 8, [round(10 * MS * speed)] * 8, [])
    shown = rounds.summary(extra_steps=120, extra_s=1.0, overlaps=False)
    assert shown.speedup.low == pytest.approx(1.2, abs=0.001)
    assert shown.speedup.high == pytest.approx(1.2, abs=0.001)
    assert rounds.sure


def test_a_copy_shares_nothing_and_stays_in_page_locked_memory(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    pinned: set[int] = set()

    def pin(tensor: Any) -> Any:
        moved = tensor.clone()
        pinned.add(moved.data_ptr())
        return moved

    monkeypatch.setattr(torch.Tensor, "is_pinned", lambda self: self.data_ptr() in pinned)
    monkeypatch.setattr(torch.Tensor, "pin_memory", pin)
    batch: dict[str, Any] = {
        "locked": torch.ones(3).pin_memory(),
        "plain": [torch.ones(2), "name"],
        "grown": torch.ones(2, requires_grad=True) * 2,
        "sparse": torch.eye(2).to_sparse(),
    }
    again = copied(batch)
    assert [again["locked"].is_pinned(), again["plain"][0].is_pinned()] == [True, False]
    assert again["grown"].requires_grad
    batch["locked"].zero_()
    batch["plain"][0].zero_()
    batch["plain"].clear()
    assert again["locked"].sum() == 3
    assert again["plain"][0].sum() == 2
    assert again["plain"][1] == "name"
    assert again["sparse"].to_dense().sum() == 2


def test_a_batch_that_another_thread_has_worked_out_is_not_left_out(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    statistics = WaitStatistics(clock=itertools.count().__next__, began_ns=0)
    reading, batches = statistics.open(lambda: iter(range(3)))
    for _ in range(2):
        reading.take(next, batches)
    held = statistics.held

    @contextlib.contextmanager
    def held_after_another() -> Iterator[None]:
        statistics.settle()  # it had the lock first
        with held():
            yield

    monkeypatch.setattr(statistics, "held", held_after_another)
    reading.statistics.note_ready(reading)
    waits = statistics.waits.durations()
    assert waits is not None
    assert (statistics.batches, waits.count) == (2, 1)
