"""Both sides in turns: warming up, errors by their side, and the loop until the rules decide."""

from __future__ import annotations

import dataclasses
import os
import random
import types
from pathlib import Path
from typing import Any, cast

import psutil
import pytest
from check_fakes import Listener

from dlprof.engine.check import _needed_s, measure
from dlprof.engine.checking.compared import CheckSettings, SidePlan, for_check, patience
from dlprof.engine.checking.sides import Sides, error_of_side
from dlprof.errors import (
    BaseNotMeasuredError,
    DlprofError,
    NothingMeasuredError,
    TargetError,
    UsageError,
)
from dlprof.gate.plan import SIDES, cores_of
from dlprof.gate.verdict import judge
from dlprof.records import Config, Failure, Target
from dlprof.records.gate import Block, Compared, Side
from dlprof.settings import SweepSettings
from dlprof.settings.resolve import resolve_settings
from dlprof.targets.grammar import parse_target
from dlprof.trial.launch import Built
from dlprof.trial.protocol import BlockRequest, BuildRequest
from dlprof.trial.side import SideProcess

BROKEN = Failure(kind="worker_exception", message="It broke.", hint="Fix it.")
HANGS = Failure(kind="timeout", message="It did not answer within 1 min.", hint="Look.")
THREADS = "its code computes with several threads"


class Clock:
    """A clock that only fakes turn."""

    def __init__(self) -> None:
        self.now_s = 0.0

    def __call__(self) -> float:
        return self.now_s


@dataclasses.dataclass
class FakeProcess:
    """A side whose batches take a known time."""

    side: Side
    clock: Clock
    batch_s: float = 0.01
    start_s: float = 0.02
    length: int = 1000
    stray: str = ""
    config: Config | None = None
    error: DlprofError | None = None
    opening_error: DlprofError | None = None
    broken_from: int = 1000
    fails_at: int = -1
    cold_s: float = 0.0
    failure: Failure = BROKEN
    failing_s: float = 0.0
    ahead_s: float = 0.0
    unpinned: str = ""
    stays_on: tuple[int, ...] = ()
    noise: float = 0.0
    coin: random.Random = dataclasses.field(default_factory=lambda: random.Random(1))
    asked: list[BlockRequest] = dataclasses.field(default_factory=list)
    begun: int = 0
    lucky: int = 0  # of the processes begun, the one that is as fast as it should be
    fast_s: float = 0.01
    build_s: float = 0.0
    keeps: bool = False
    epoch: int | None = None  # batches of one

    def begin(self) -> None:
        self.begun += 1

    def close(self) -> None:
        """Nothing to end."""

    def build(self, patience_s: float) -> Built:
        if self.error is not None:
            raise self.error
        self.clock.now_s += self.build_s
        target = Target(
            spec="data.py:make",
            kind="map",
            dataset="data.D",
            length=self.length,
            batches_per_epoch=self.epoch,
            own_config=self.config,
        )
        return Built(target=target, versions={"torch": "2", "python": "3"}, stray=self.stray)

    def open(self, config: Config, patience_s: float) -> bool:
        if self.opening_error is not None:
            raise self.opening_error
        return self.keeps

    def order(self, request: BlockRequest) -> None:
        self.asked.append(request)

    def collect(self, patience_s: float) -> tuple[Block, Failure | None]:
        request = self.asked[-1]
        if len(self.asked) > self.broken_from or len(self.asked) == self.fails_at:
            self.clock.now_s += self.failing_s
            return Block(side=self.side, failure=self.failure.message), self.failure
        if request.series == "start":
            self.clock.now_s += self.start_s
            return Block(side=self.side, startup_s=self.start_s, epoch_turnover_s=0.01), None
        usual_s = self.fast_s if self.begun == self.lucky else self.batch_s
        batch_s = usual_s * self.coin.lognormvariate(0, self.noise)
        took_s = batch_s * request.batches + self.cold_s * (len(self.asked) == 1)
        self.clock.now_s += max(took_s, self.ahead_s)
        if self.ahead_s:  # loads on while its memory is read
            service_s = (max(0.0, took_s - self.ahead_s) / request.batches,) * request.batches
            return Block(side=self.side, service_s=service_s, samples=(4,) * request.batches), None
        block = Block(
            side=self.side,
            service_s=(batch_s,) * request.batches,
            samples=(4,) * request.batches,
            wall_s=took_s,
            run_queue_wait_fraction=0.01,
            stages_s={"fetch": took_s},
            pss_peak_bytes=1e8,
            shm_peak_bytes=0.0,
            cores=self.stays_on or request.cores,
            pinned=bool(request.cores) and not self.unpinned,
            unpinned=self.unpinned if request.cores else "",
        )
        return block, None


@dataclasses.dataclass
class ReadingProcess(FakeProcess):
    """Goes on in its data from block to block; what nobody has read takes four times as long."""

    read: set[int] = dataclasses.field(default_factory=set)
    place: int = 0

    def begin(self) -> None:
        super().begin()
        self.place = 0

    def collect(self, patience_s: float) -> tuple[Block, Failure | None]:
        batches = range(self.place, self.place + self.asked[-1].batches)
        self.batch_s = 0.01 if self.read.issuperset(batches) else 0.04
        block, failure = super().collect(patience_s)
        if failure is None and self.asked[-1].series == "load":
            self.read.update(batches)
            self.place = batches.stop
        return block, failure


def plan(side: Side, root: str) -> SidePlan:
    commit = "1a2b3c4d" * 5 if side == "base" else ""
    return SidePlan(
        side=side,
        request=BuildRequest(target=parse_target("data.py:make")),
        directory=Path(root),
        root=Path(root),
        compared=Compared(name="main" if side == "base" else "working tree", commit=commit),
    )


@dataclasses.dataclass
class TrialRunner:
    """Two fake sides, built and warm."""

    clock: Clock
    processes: dict[Side, FakeProcess]
    sides: Sides


def bench(
    base: dict[str, Any] | None = None, change: dict[str, Any] | None = None, **settings: Any
) -> TrialRunner:
    clock = Clock()
    processes: dict[Side, FakeProcess] = {
        "base": FakeProcess("base", clock, **(base or {})),
        "change": FakeProcess("change", clock, **(change or {})),
    }
    return warm(processes, clock, **settings)


def warm(processes: dict[Side, FakeProcess], clock: Clock, **settings: Any) -> TrialRunner:
    sweep = SweepSettings(target="data.py:make", budget_s=settings.pop("budget_s", 60.0))
    chosen = CheckSettings(sweep=sweep, **settings)
    plans = [plan("base", "/before"), plan("change", "/after")]
    sides = Sides(plans, cast(dict[Side, SideProcess], processes), chosen, clock=clock)
    sides.build()
    sides.warm_up()
    return TrialRunner(clock=clock, processes=processes, sides=sides)


def measured(made: TrialRunner, listener: Listener | None = None) -> Any:
    plan, quads, unavailable = measure(
        made.sides, listener or Listener(), clock=made.clock, began_s=0.0
    )
    return types.SimpleNamespace(plan=plan, quads=quads, unavailable=unavailable)


def test_blocks_are_as_long_as_asked_for() -> None:
    made = bench(block_s=0.3)
    assert made.sides.batches == 30
    assert made.sides.block_s == pytest.approx(0.3)


def test_blocks_of_slow_batches_are_as_short_as_can_be() -> None:
    made = bench({"batch_s": 1.0}, {"batch_s": 1.0})
    assert made.sides.batches == 4
    assert len(made.processes["base"].asked) == 3  # cold, warm, and a start


def test_blocks_fill_the_queues_and_give_each_worker_the_same() -> None:
    config = Config(num_workers=3, prefetch_factor=2)
    made = bench({"config": config, "batch_s": 1.0}, {"config": config, "batch_s": 1.0})
    assert made.sides.batches == 12  # 6 in flight, two of each worker


@pytest.mark.parametrize("fails_at", [-1, *range(4, 12)])
def test_a_side_that_reads_all_data_first_fails_no_unchanged_loader(fails_at: int) -> None:
    """After a block of the base that failed, the change reads what only then is in the cache."""
    clock, read = Clock(), set[int]()
    processes: dict[Side, FakeProcess] = {
        "base": ReadingProcess("base", clock, read=read, fails_at=fails_at),
        "change": ReadingProcess("change", clock, read=read),
    }
    made = warm(processes, clock, budget_s=15.0)
    found = measured(made)
    assert len(found.quads) > 5
    verdicts = [judge(found.plan, found.quads[:n]).state for n in range(len(found.quads) + 1)]
    assert "fail" not in verdicts


def test_what_a_block_that_grew_reads_is_cached_before_any_is_judged() -> None:
    class Warming(FakeProcess):
        def collect(self, patience_s: float) -> tuple[Block, Failure | None]:
            self.batch_s = 0.04 if len(self.asked) <= 2 else 0.01
            return super().collect(patience_s)

    clock = Clock()
    processes: dict[Side, FakeProcess] = {side: Warming(side, clock) for side in SIDES.values()}
    sides = warm(processes, clock, block_s=0.3).sides
    asked = [each.batches for each in processes["base"].asked if each.series == "load"]
    assert asked[:3] == [4, 4, 8]
    assert asked[3:] == [sides.batches]


def test_both_sides_are_asked_for_the_same_blocks() -> None:
    made = bench()
    measured(made)
    assert made.processes["base"].asked == made.processes["change"].asked


def test_the_same_code_passes_at_the_first_look() -> None:
    made, listener = bench(), Listener()
    found = measured(made, listener)
    assert judge(found.plan, found.quads).state == "pass"
    assert listener.done[-1] == {"load": 10, "start": 10}
    assert {quad.order for quad in found.quads} == {"ABBA", "BAAB", "AB", "BA"}
    assert found.unavailable == {}


@pytest.mark.parametrize(
    ("keeping", "epochs", "said"),
    [
        ((), 1, ""),
        (("base", "change"), 10, "each block loads the same ones in 10 epochs"),
        (("change",), 1, "Only the change keeps samples in memory, and blocks load the same ones"),
    ],
)
def test_blocks_of_what_both_sides_keep_load_it_the_first_time_too(
    keeping: tuple[str, ...], epochs: int, said: str
) -> None:
    """Where only one does its blocks are warm, however slow it is to load, and that is said."""
    config = Config(num_workers=3)
    made = bench(*({"keeps": each in keeping, "config": config} for each in ("base", "change")))
    found = measured(made)
    blocks = [each for process in made.processes.values() for each in process.asked]
    assert {each.epochs for each in blocks} == {epochs}
    assert {each.batches % (3 * epochs) for each in blocks} == {0}
    notes = [each for each in judge(found.plan, found.quads).notes if "keeps samples" in each]
    assert [said in each for each in notes] == [True] * bool(said)


def test_a_block_of_ten_epochs_loads_no_more_than_is_kept_then() -> None:
    both = {"keeps": True, "epoch": 3, "batch_s": 1e-4}
    made = bench(both, both)
    measured(made)
    assert made.sides.batches == 30


def test_a_slower_change_fails_at_the_first_look_in_each_of_two_pairs_of_processes() -> None:
    made = bench(None, {"batch_s": 0.011})
    found = measured(made)
    verdict = judge(found.plan, found.quads)
    assert verdict.state == "fail"
    assert "in fetch" in verdict.explanation
    assert [process.begun for process in made.processes.values()] == [2, 2]
    first, second = (
        sum(quad.series == "load" and quad.processes == pair for quad in found.quads)
        for pair in (0, 1)
    )
    assert first == second == found.plan.rules[0].looks[0]


def test_a_process_that_happens_to_be_slower_fails_nothing() -> None:
    found = measured(bench(None, {"batch_s": 0.011, "lucky": 2}))
    verdict = judge(found.plan, found.quads)
    assert verdict.state == "inconclusive"
    assert "in one pair of processes, but a second pair shows" in verdict.explanation


def test_a_second_pair_that_can_not_be_built_loses_nothing_that_was_measured() -> None:
    made = bench(None, {"batch_s": 0.011})
    made.processes["change"].error = DlprofError("It broke.")
    found = measured(made, listener := Listener())
    assert {quad.processes for quad in found.quads} == {0}
    assert judge(found.plan, found.quads).gates[0].reason == "unconfirmed"
    assert "there is no second pair of processes: " in listener.messages[-1]
    assert "It broke." in listener.messages[-1]


def test_without_time_for_a_second_pair_of_processes_nothing_fails() -> None:
    made = bench(None, {"batch_s": 0.011})
    made.sides.build_s = 1000.0
    found = measured(made)
    assert {quad.processes for quad in found.quads} == {0}
    assert judge(found.plan, found.quads).state == "inconclusive"


@pytest.mark.parametrize(
    ("change", "state"),
    [
        ({"batch_s": 0.078}, "fail"),
        ({"batch_s": 0.05}, "fail"),
        ({"batch_s": 0.078, "lucky": 2}, "inconclusive"),
        ({"batch_s": 0.04}, "pass"),
    ],
)
def test_the_first_pair_of_processes_leaves_the_second_time_to_confirm(
    change: dict[str, Any], state: str
) -> None:
    """Where both take 22 s to build, as beside many processes: ten quads would leave no time."""
    side = {"batch_s": 0.04, "build_s": 11.0, "start_s": 0.1, "noise": 0.01, "fast_s": 0.04}
    made = bench(side, {**side, **change}, budget_s=56.0)
    found = measured(made)
    assert judge(found.plan, found.quads).state == state
    assert made.clock.now_s <= 56.0
    first = sum(quad.series == "load" and not quad.processes for quad in found.quads)
    assert first == (10 if state == "pass" else 5)


def test_a_budget_that_leaves_no_time_for_any_second_pair_is_all_the_first_ones() -> None:
    side = {"batch_s": 0.04, "build_s": 11.0}
    made = bench(side, {**side, "batch_s": 0.078}, budget_s=42.0)
    found = measured(made)
    assert {quad.processes for quad in found.quads} == {0}
    assert sum(quad.series == "load" for quad in found.quads) == 10
    needed_s = _needed_s(found.plan, found.quads, made.sides, made.clock.now_s)
    assert needed_s is not None
    again = bench(side, {**side, "batch_s": 0.078}, budget_s=needed_s)
    found = measured(again)
    assert judge(found.plan, found.quads).state == "fail"


def test_a_budget_that_is_spent_ends_it() -> None:
    made = bench(budget_s=2.2)
    found = measured(made)
    assert made.clock.now_s <= 2.2
    assert 5 <= len(found.quads) < 20
    assert judge(found.plan, found.quads).state == "inconclusive"


def test_a_target_that_is_far_too_slow_is_refused_before_it_is_measured() -> None:
    slow = bench({"batch_s": 2.0}, {"batch_s": 2.0})
    with pytest.raises(UsageError, match=r"too slow for --budget 1 min: a block of 4 batches") as e:
        measured(slow)
    assert "--budget" in e.value.hint


def test_what_only_the_first_block_takes_refuses_nothing() -> None:
    made = bench({"cold_s": 6.0}, {"cold_s": 6.0}, budget_s=20.0)
    assert made.sides.block_s < 0.1
    assert judge((found := measured(made)).plan, found.quads).state == "pass"


def test_a_change_that_alone_is_far_too_slow_is_said_to_be() -> None:
    with pytest.raises(UsageError, match=r"8\.0 s in the change, 200 times as long as in the base"):
        measured(bench({"batch_s": 0.01}, {"batch_s": 2.0}))
    with pytest.raises(UsageError) as caught:  # that may have been a cold cache
        measured(bench({"batch_s": 2.0}, {"batch_s": 0.01}))
    assert "times as long" not in caught.value.message


def test_batches_that_are_too_quick_are_said() -> None:
    listener = Listener()
    measured(bench({"batch_s": 1e-4}, {"batch_s": 1e-4}), listener)
    assert any("larger batches" in message for message in listener.messages)


def test_blocks_of_what_loads_while_its_memory_is_read_are_longer_than_that_takes() -> None:
    made = bench(*[{"batch_s": 0.002, "ahead_s": 0.04}] * 2)
    assert 0.03 < 0.002 * made.sides.batches - 0.04 < 0.08


def test_starts_that_would_take_the_whole_budget_are_left_out() -> None:
    made, listener = bench({"start_s": 4.0}, {"start_s": 4.0}), Listener()
    found = measured(made, listener)
    assert set(found.unavailable) == {"startup", "epoch_turnover"}
    assert all(quad.series == "load" for quad in found.quads)
    assert judge(found.plan, found.quads).state == "pass"
    assert any("a start takes 4.0 s" in message for message in listener.messages)


def test_starts_that_seem_to_take_much_longer_now_are_not_left_out() -> None:
    found = measured(bench({"start_s": 0.1}, {"start_s": 8.0}))
    gates = {gate.name: gate for gate in judge(found.plan, found.quads).gates}
    assert gates["service"].state == "pass"
    assert gates["startup"].state == "inconclusive"
    assert judge(found.plan, found.quads).state == "inconclusive"


def test_a_start_that_takes_a_second_longer_fails() -> None:
    found = measured(bench({"start_s": 0.1}, {"start_s": 1.1}))
    gates = {gate.name: gate for gate in judge(found.plan, found.quads).gates}
    assert gates["startup"].state == "fail"


def test_starts_that_were_seen_to_be_long_are_not_tried() -> None:
    made = bench({"cold_s": 5.0}, {"cold_s": 5.0})
    assert all(request.series == "load" for request in made.processes["base"].asked)
    assert made.sides.starts_s == pytest.approx({"base": 5.0, "change": 5.0}, rel=0.1)


def test_a_hopeless_target_is_not_loaded_again_and_again() -> None:
    made = bench({"batch_s": 10.0}, {"batch_s": 10.0})
    assert len(made.processes["base"].asked) == 1
    with pytest.raises(UsageError, match="too slow"):
        measured(made)


@pytest.mark.skipif(not hasattr(os, "sched_getaffinity"), reason="cores can't be chosen here")
def test_both_sides_of_a_quad_are_held_to_the_same_cores_which_rotate() -> None:
    made = bench()
    found = measured(made)
    load = sum(quad.series == "load" for quad in found.quads)
    usable = sorted(os.sched_getaffinity(0))
    expected = [cores_of(usable, number) for number in range(load) for _ in range(2)]
    for process in made.processes.values():
        assert [request.cores for request in process.asked if request.cores] == expected


def cores_asked(made: TrialRunner, side: Side = "base") -> list[tuple[int, ...]]:
    """The cores that blocks of a side were to be held to, all that were measured."""
    return [request.cores for request in made.processes[side].asked if request.series == "load"]


def test_on_one_core_it_decides(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(psutil.Process, "cpu_affinity", lambda _: [3], raising=False)
    made = bench()
    found = measured(made)
    assert judge(found.plan, found.quads).state == "pass"
    assert cores_asked(made)[-20:] == [(3,)] * 20


@pytest.mark.parametrize("error", [PermissionError, AttributeError])
def test_where_cores_are_not_known_sides_run_free(
    error: type[Exception], monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(_: psutil.Process) -> None:
        raise error

    monkeypatch.setattr(psutil.Process, "cpu_affinity", refuse, raising=False)
    made = bench()
    found = measured(made)
    assert judge(found.plan, found.quads).state == "pass"
    assert not any(cores_asked(made))


def test_cores_that_change_meanwhile_are_followed(monkeypatch: pytest.MonkeyPatch) -> None:
    usable = {0, 1}
    monkeypatch.setattr(psutil.Process, "cpu_affinity", lambda _: [*usable], raising=False)
    made, held = bench(), []
    for number, cores in enumerate(({0, 1}, {1}, {1}, {0, 1})):
        usable.clear()
        usable.update(cores)
        quad = made.sides.quad("ABBA", "load", number)
        held.append(made.processes["base"].asked[-1].cores)
        assert all(block.pinned for block in quad.blocks)
    assert held == [(0, 1), (1,), (1,), (1, 0)]


def test_where_one_side_can_not_be_held_neither_is(monkeypatch: pytest.MonkeyPatch) -> None:
    usable = {0, 1}
    monkeypatch.setattr(psutil.Process, "cpu_affinity", lambda _: [*usable], raising=False)
    stubborn = {"noise": 0.1, "unpinned": THREADS, "stays_on": (1,)}
    made = bench({"noise": 0.1, "stays_on": (0,)}, stubborn)
    found = measured(made)
    for side in made.processes:
        assert sum(map(bool, cores_asked(made, side))) == 2  # the first quad alone
    assert not any(block.pinned for quad in found.quads for block in quad.blocks)
    verdict = judge(found.plan, found.quads)
    expected = (
        "The sides were not held to the same cores, whose speeds may differ "
        f"(change: {THREADS}; the base ran on core 0 and the change on core 1)."
    )
    assert verdict.notes[0] == expected
    assert verdict.state != "inconclusive" or verdict.explanation.endswith(expected)
    usable = {1}  # of other cores that may be otherwise
    made.sides.quad("ABBA", "load", 99)
    assert cores_asked(made)[-4:] == [(1,), (1,), (), ()]  # once more, free


def test_a_side_that_hangs_ends_the_check_at_once() -> None:
    made = bench(None, {"broken_from": 9, "failure": HANGS, "failing_s": 60.0})
    with pytest.raises(NothingMeasuredError, match="failed 1 time while it was measured: It did"):
        measured(made)
    assert made.clock.now_s < 65


def test_a_block_that_fails_ends_its_quad_and_not_the_check() -> None:
    made = bench()
    change = made.processes["change"]
    change.fails_at, change.failing_s = len(change.asked) + 1, 31.0  # stood up again, slowly
    found = measured(made)
    assert found.quads[0].blocks[-1].failure
    assert len(found.quads[0].blocks) < 4
    assert judge(found.plan, found.quads).state == "pass"


def test_a_throttled_machine_is_named_where_it_is_too_slow() -> None:
    made = bench({"batch_s": 2.0}, {"batch_s": 2.0})
    made.sides.machine = dataclasses.replace(made.sides.machine, quota_cores=0.05)
    with pytest.raises(UsageError, match=r"took 32 s; a CPU quota leaves 0\.05 cores"):
        measured(made)


def test_sides_run_free_where_that_is_asked_for() -> None:
    made = bench(pin=False)
    measured(made)
    assert not any(request.cores for request in made.processes["base"].asked)


def test_a_side_that_fails_again_and_again_ends_the_check() -> None:
    made = bench(None, {"broken_from": 9})
    with pytest.raises(NothingMeasuredError) as caught:
        measured(made)
    expected = "The change (working tree) failed 3 times while it was measured: It broke."
    assert (caught.value.message, caught.value.hint) == (expected, "Fix it.")


def test_a_block_that_fails_once_is_forgiven() -> None:
    made = bench()
    change = made.processes["change"]
    change.fails_at = len(change.asked) + 3
    found = measured(made)
    assert any(block.failure for quad in found.quads for block in quad.blocks)
    verdict = judge(found.plan, found.quads)
    assert verdict.state == "pass"
    assert any(note.startswith("1 block of the change failed, ") for note in verdict.notes)


def test_different_settings_of_the_loaders_are_said() -> None:
    made = bench({"config": Config()}, {"config": Config(num_workers=1, prefetch_factor=2)})
    assert measured(made).plan.loader_difference.startswith("num_workers 0 -> 1")


def test_a_side_that_can_not_be_loaded_from_is_named() -> None:
    with pytest.raises(NothingMeasuredError) as caught:
        bench({"broken_from": 0})
    assert caught.value.message == "The base (main, 1a2b3c4) can't be loaded from: It broke."
    assert caught.value.exit_code == 6


def test_what_can_not_be_loaded_from_on_both_sides_is_the_changes_fault() -> None:
    with pytest.raises(BaseNotMeasuredError):
        bench({"broken_from": 0})
    with pytest.raises(NothingMeasuredError, match=r"^The change ") as caught:
        bench({"broken_from": 0}, {"broken_from": 0})
    assert not isinstance(caught.value, BaseNotMeasuredError)


@pytest.mark.parametrize("kind", ["error", "opening_error"])
def test_an_error_of_both_sides_is_the_targets_own(kind: str) -> None:
    error = TargetError("There is no file 'data.py'.", hint="Look.")
    with pytest.raises(TargetError) as caught:
        bench({kind: error}, {kind: error})
    assert caught.value.message == error.message
    with pytest.raises(TargetError, match=r"^The base "):
        bench({kind: error})


@pytest.mark.parametrize("side", ["base", "change"])
def test_an_error_of_one_side_is_that_sides(side: str) -> None:
    error = TargetError("'data.py' has no attribute 'make'.", hint="Look.", traceback="here")
    with pytest.raises(TargetError, match=f"^The {side} ") as caught:
        bench(**{side: {"error": error}})
    assert caught.value.traceback == "here"
    assert ("in the base too" in caught.value.hint) == (side == "base")


@pytest.mark.parametrize(
    ("message", "installs"), [("No module named 'lib.data'", False), ("It has no 'make'", True)]
)
def test_a_base_without_its_submodules_says_that_it_lacks_them(
    message: str, *, installs: bool
) -> None:
    bare = plan("base", "/before")
    bare = dataclasses.replace(
        bare, compared=dataclasses.replace(bare.compared, note="without its submodules")
    )
    error = error_of_side(bare, TargetError(message, hint="Install 'lib'."))
    assert "is checked out without its submodules: check against a directory" in error.hint
    assert ("Install" in error.hint) == installs


def test_different_data_is_refused() -> None:
    with pytest.raises(
        TargetError, match=r"data: the base \(.*\) has 1000 samples, the change "
    ) as caught:
        bench(None, {"length": 900})
    assert caught.value.exit_code == 2


def test_a_base_that_comes_from_the_checkout_is_refused() -> None:
    with pytest.raises(UsageError, match="Both sides load the same code"):
        bench({"stray": "/after/data.py"})


def test_one_side_can_be_measured_alone() -> None:
    clock = Clock()
    alone = FakeProcess("change", clock)
    settings = CheckSettings(sweep=SweepSettings())
    processes = cast(dict[Side, SideProcess], {"change": alone})
    sides = Sides([plan("change", "/after")], processes, settings, clock=clock)
    sides.build()
    sides.warm_up()
    assert [block.side for block in sides.blocks("BB", "load")] == ["change", "change"]


@pytest.mark.parametrize(
    ("budget_s", "timeout_s", "expected"),
    [
        (20.0, 120.0, (30.0, "--budget")),
        (60.0, 120.0, (60.0, "--budget")),
        (60.0, 10.0, (10.0, "--timeout")),
    ],
)
def test_what_ends_the_wait_for_a_side_is_named(
    budget_s: float, timeout_s: float, expected: tuple[float, str]
) -> None:
    sweep = SweepSettings(budget_s=budget_s, timeout_s=timeout_s)
    assert patience(CheckSettings(sweep=sweep)) == expected


def test_a_budget_of_sweeps_is_not_a_checks(tmp_path: Path) -> None:
    (tmp_path / "pyproject.toml").write_text('[tool.dlprof]\nbudget = "9m"\nnum_workers = [0, 2]\n')
    for flag, expected_s in ((None, 60.0), ("20s", 20.0)):
        resolved = resolve_settings({"budget": flag}, environ={}, config_file=None, cwd=tmp_path)
        settings = for_check(*resolved)
        assert settings.sweep.budget_s == expected_s
        assert settings.sweep.num_workers is None
