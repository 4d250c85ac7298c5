"""The live part of the benchmark of tuning: its arithmetic, and trainings that are held."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import importlib
import itertools
import json
import math
import multiprocessing
import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from waiting import has_ended, until

from dlprof.tuning.control import NO_WORKERS, Setting


@pytest.fixture
def live() -> Any:
    return importlib.import_module("tuned_live")


@pytest.fixture
def tuning() -> Any:
    return importlib.import_module("tuning")


EVENT = "step halves"


def turns(live: Any, *, tuned: float = 10.0, alone: float = 5.0, noise: float = 0.0) -> list[Any]:
    """Ten turns of each at 10 batches/s but for the tuned one, after 20 s of it alone."""
    found = []
    for phase, place in itertools.product((live.QUIET, EVENT), range(-2, 10)):
        for arm in live.NAMES if place >= 0 else ("tuned",):
            rate = 10.0 if arm != "tuned" else tuned if place >= 0 else alone
            rate *= math.exp(noise * (-1) ** place) if arm == "tuned" else 1.0
            seconds = 1.0 if place >= 0 else 10.0
            found.append(
                live.Turn(
                    phase=phase,
                    arm=arm,
                    round=max(-1, place),
                    batches=rate * seconds,
                    seconds=seconds,
                    restart_batches=0.0,
                    restart_s=0.0,
                    whole_s=seconds,
                    speed=None,
                )
            )
    return found


def lived(live: Any, world: str = "x", **fields: Any) -> Any:
    made = {
        "world": world,
        "event": EVENT,
        "start": "w2-p2",
        "best": "w4-p2",
        "step_s": 0.1,
        "turns": turns(live),
        "rested": [live.QUIET],
        "disordered": 0,
        "most_workers": 4,
        "kept": "w4-p2",
        "changes": [],
    }
    return live.Lived(**made | fields)


def test_half_hours_have_what_settling_cost_and_what_is_lost_all_the_time(
    live: Any, tuning: Any
) -> None:
    quiet, changed = tuning.half_hours([lived(live, turns=turns(live, tuned=9.5))])
    assert (quiet.alone_s, quiet.settling_s) == pytest.approx((20.0, 10.0))
    assert quiet.steady == pytest.approx((0.05, 0.0), abs=1e-5)
    assert quiet.untuned == pytest.approx((0.95, 0.0), abs=1e-5)
    assert quiet.lost == pytest.approx((10 + 0.05 * 1780) / 1800)
    assert changed.lost == pytest.approx((10 + 0.05 * 580 + 10 + 0.05 * 1180) / 1800)
    assert (quiet.settled, changed.settled) == (True, False)


def test_several_runs_of_a_dataset_count_by_how_sure_they_are(live: Any, tuning: Any) -> None:
    noisy = lived(live, turns=turns(live, tuned=9.6, noise=0.1))
    sure = lived(live, turns=turns(live, tuned=9.9, noise=0.01))
    quiet, _ = tuning.half_hours([noisy, sure])
    assert quiet.steady[0] == pytest.approx(0.0103, abs=0.0001)
    assert quiet.error == pytest.approx(0.01 / 3 / math.sqrt(1.01), rel=0.01)
    assert tuning.half_hours([noisy])[0].error == pytest.approx(0.1 / 3)


def test_what_runs_of_a_dataset_differ_by_is_in_its_error(live: Any, tuning: Any) -> None:
    """A process's luck is that of all its turns: they don't show it."""
    lucky = lived(live, turns=turns(live, tuned=11.0, noise=0.01))
    others = lived(live, turns=turns(live, tuned=9.0, noise=0.001))
    quiet, _ = tuning.half_hours([lucky, others])
    assert quiet.error == pytest.approx(math.log(11 / 9) / 2, rel=0.01)
    assert quiet.steady[0] == pytest.approx(1 - math.sqrt(0.99), abs=0.001)
    assert (quiet.runs, tuning.half_hours([lucky])[0].runs) == (2, 1)
    note, *_ = tuning.live_report([lucky, lucky, lived(live, "once")]).notes
    assert "4 are known to a standard error of 1 %, 2 of these by a single run" in note


def test_rates_of_turns_are_those_at_the_usual_speed_of_the_cores(live: Any) -> None:
    slow = [
        dataclasses.replace(turn, speed=1 + number % 2, batches=turn.batches * (1 + number % 2))
        for number, turn in enumerate(turns(live))
    ]
    mean, error = live.against(slow, "best", live.QUIET)
    assert mean == pytest.approx(0.0, abs=1e-9)
    assert error == pytest.approx(0.0, abs=1e-9)


def test_seconds_alone_count_whether_or_not_a_batch_came(live: Any) -> None:
    quiet = [turn for turn in turns(live) if turn.phase == live.QUIET]
    one = next(turn for turn in quiet if turn.round < 0)
    one = dataclasses.replace(one, whole_s=1.0, batches=0.0, seconds=0.0)
    # The first batches of an epoch are batches, too.
    came = dataclasses.replace(one, batches=4.0, seconds=0.5, restart_batches=6.0, restart_s=0.5)
    alone = [*[one] * 8, came, came]
    rounds = [turn for turn in quiet if turn.round >= 0]
    assert live.settling([*alone, *rounds], live.QUIET) == pytest.approx((10.0, 8.0))


@pytest.mark.parametrize("ends", [False, True])
def test_rounds_without_a_tuned_batch_are_lost(live: Any, *, ends: bool) -> None:
    """Nothing for two rounds of ten: where a batch comes after these, it took that time, too."""
    silent = {8, 9} if ends else {3, 4}

    def stalled(turn: Any) -> Any:
        if turn.arm != "tuned" or turn.round < 0:
            return turn
        if turn.round in silent:
            return dataclasses.replace(turn, batches=0.0, seconds=0.0)
        return dataclasses.replace(turn, seconds=3.0) if turn.round - 1 in silent else turn

    found = [stalled(turn) for turn in turns(live)]
    mean, error = live.against(found, "best", live.QUIET)
    assert mean == pytest.approx(0.3 * math.log(1 / 3))
    assert 0.1 < error < 1
    assert live.against(found, "untuned", live.QUIET) == (mean, error)


def test_epoch_restarts_are_apart_and_lost(live: Any, tuning: Any) -> None:
    def restarting(turn: Any) -> Any:
        if turn.arm != "tuned" or turn.round != 5:
            return turn
        return dataclasses.replace(
            turn, batches=4.0, seconds=0.4, restart_batches=2.0, restart_s=0.6
        )

    found = [restarting(turn) for turn in turns(live)]
    assert live.restarts(turns(live), live.QUIET) == 0.0
    assert live.restarts(found, live.QUIET) == pytest.approx(0.04)  # 0.6 s for 0.2 s in 10 s
    (unknown, _) = tuning.half_hours([lived(live, turns=found)])
    assert unknown.restarts == (0.0, 0.0)  # the best came to no edge of an epoch
    quiet, _ = tuning.half_hours([lived(live, turns=found, best="w0")])
    assert (quiet.steady[0], *quiet.restarts) == pytest.approx((0.0, 0.04, 0.0))
    assert quiet.lost == pytest.approx((10 + 0.04 * 1780) / 1800)


def test_what_the_best_takes_to_begin_epochs_is_not_lost(live: Any, tuning: Any) -> None:
    def restarting(turn: Any) -> Any:
        if turn.round != 5:
            return turn
        return dataclasses.replace(
            turn, batches=4.0, seconds=0.4, restart_batches=2.0, restart_s=0.6
        )

    quiet, _ = tuning.half_hours([lived(live, turns=[*map(restarting, turns(live))])])
    assert quiet.restarts == pytest.approx((0.04, 0.04))
    assert quiet.lost == pytest.approx((20 - 10 / 0.96) / 1800)  # alone it had none


def test_turns_without_a_batch_have_no_rate(live: Any) -> None:
    found = turns(live)
    found[-1] = dataclasses.replace(found[-1], batches=0.0, seconds=0.0)
    assert len(live.rates(found)) == len(found) - 1
    assert live.against(found[:5], "best", EVENT) == (0.0, math.inf)


def test_a_step_hides_what_workers_take_and_not_what_the_main_process_does(live: Any) -> None:
    assert live.most_with_step(50.0, 0.1, Setting(2, 2)) == 10.0
    assert live.most_with_step(5.0, 0.1, Setting(2, 2)) == 5.0
    assert live.most_with_step(10.0, 0.1, NO_WORKERS) == pytest.approx(5.0)


def test_what_was_found_is_read_again_and_has_no_verdict_before_all_is_there(
    live: Any, tuning: Any, tmp_path: Path
) -> None:
    path = tmp_path / "tuning_live.json"
    assert tuning.earlier(path) == []
    found = [lived(live, str(number)) for number in range(13)]
    report = tuning.live_report(found)
    path.write_text(json.dumps({"data": report.data}))
    assert tuning.earlier(path) == found
    assert report.name == path.stem
    assert report.passed is True
    assert all(len(row) == len(table.columns) for table in report.tables for row in table.rows)
    assert tuning.live_report(found[1:]).passed is None
    for fault in ({"disordered": 1}, {"most_workers": 17}, {"turns": turns(live, tuned=9.0)}):
        one = [lived(live, "0", **fault), lived(live, "1", **fault), *found[2:]]
        assert tuning.live_report(one).passed is False
    assert tuning.live_report([]).passed is None


def test_what_is_missing_comes_first_and_what_is_known_not_again(
    live: Any, tuning: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    known = [
        lived(live, "sure"),
        lived(live, "noisy", turns=turns(live, noise=0.1)),
        lived(live, "noisier", turns=turns(live, noise=0.2)),
    ]
    names = ["sure", "noisy", "noisier", "new", "broken"]
    asked = []

    def run(world: Any, _design: Any, seconds: float) -> Any:
        asked.append(world.name)
        assert 90 <= seconds <= 180
        if world.name == "broken":
            raise tuning.DlprofError("alas")
        return lived(live, world.name)

    monkeypatch.setattr(live, "worlds", lambda: [SimpleNamespace(name=name) for name in names])
    monkeypatch.setattr(live, "live", run)
    assert [each.world for each in tuning.live_all(known, [], 30.0)] == ["new", "noisier", "noisy"]
    assert asked == ["new", "broken", "noisier", "noisy"]
    assert [each.world for each in tuning.live_all(known, ["noi"], 30.0)] == ["noisier", "noisy"]
    assert list(tuning.live_all(known, [], 1.0)) == []


def test_each_dataset_has_something_that_happens_to_it(live: Any) -> None:
    worlds = live.worlds()
    assert len(worlds) == 13
    events = [live.event_of(each.name) for each in worlds]
    assert set(events) == set(live.EVENTS)
    assert all(e == EVENT for e, each in zip(events, worlds, strict=True) if each.target is None)


class Quick:
    """A dataset of numbers."""

    def __getitem__(self, index: int) -> int:
        return 2 * index


def source(live: Any) -> Any:
    return live.Source(make=Quick, batch_size=2, collate=list)


@contextlib.contextmanager
def ready(live: Any, made: Any, workers: int, batches: int | None = None) -> Iterator[Any]:
    setting = Setting(workers, 2 if workers else 0)
    arm = live.Arm(made, setting, epoch_batches=batches, tuned=batches is not None)
    try:
        arm.start()
        arm.wait_until_ready()
        yield arm
    finally:
        if arm.lives:
            arm.end()


@pytest.mark.parametrize("workers", [0, 2])
def test_a_training_is_held_with_its_workers_and_its_clock(live: Any, workers: int) -> None:
    with ready(live, source(live), workers) as arm:
        gate = arm.gate
        gate.set_step(0.001)
        assert (gate.clock(), gate.counted(1)) == (0.0, (0.0, 0.0))
        for turn in (1, 2):
            gate.open()
            assert until(functools.partial(lambda turn: gate.counted(turn)[0] >= 3, turn))
            assert gate.close() == turn
            clock_s, batches = gate.clock(), gate.counted(turn)[0]
            time.sleep(0.05)
            assert gate.clock() == clock_s
            assert gate.counted(turn)[0] <= batches + 1  # one may have been on its way
        assert gate.counted(1)[1] + gate.counted(2)[1] <= clock_s
        said = arm.end()
        assert (said.disordered, said.most_workers, said.changes) == (0, workers, [])
        assert has_ended(arm.pid)


@pytest.mark.slow
def test_a_tuned_training_has_epochs_and_says_what_it_kept(
    live: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(live, "EPOCH_S", 0.2)  # in which a worker starts, on a busy machine, too
    with ready(live, source(live), 1, batches=300) as arm:
        gate = arm.gate
        gate.open()
        assert until(lambda: gate.counted(1)[0] >= 100 and gate.counted(1, restart=True)[0] >= 10)
        gate.close()
        batches, seconds = arm.gate.counted(1, restart=True)
        assert batches >= 2
        assert 0 < seconds <= arm.gate.clock() - arm.gate.counted(1)[1]
        said = arm.end()
        assert said.disordered == 0
        assert 1 <= said.most_workers <= live.MOST_WORKERS
        assert said.changes[0].startswith("dlprof.tune: ")


def test_each_second_is_some_batch_s(live: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(live, "_MOST_TURNS", 2)
    gate, came_s = live.Gate(), iter([0.5, 0.75, 3.0, 4.0])
    gate.open()
    monkeypatch.setattr(gate, "clock", lambda: next(came_s))
    for restart in (True, False, True):
        gate.count(restart=restart)
    assert (gate.counted(1), gate.counted(1, restart=True)) == ((1.0, 0.25), (2.0, 2.75))
    for _ in range(9):
        gate.open()
    gate.count(restart=False)  # beyond what it has room for
    assert gate.counted(10) == (2.0, 1.25)
    gate.forget()


@pytest.mark.parametrize("began", [False, True])
def test_a_training_is_ended_however_its_start_is_interrupted(
    live: Any, monkeypatch: pytest.MonkeyPatch, *, began: bool
) -> None:
    process = multiprocessing.get_context("fork").Process
    start = process.start

    def interrupted(self: Any) -> None:
        if began:
            start(self)
        raise KeyboardInterrupt

    stage = live._Stage(source(live), live.QUICK)
    monkeypatch.setattr(process, "start", interrupted)
    with pytest.raises(KeyboardInterrupt):
        stage.start(Setting(1, 2))
    (arm,) = stage.arms
    stage.close()
    assert stage.arms == []
    assert not arm.pid or has_ended(arm.pid)


def test_all_trainings_are_ended_where_one_is_interrupted(live: Any) -> None:
    ended = []

    class Interrupted:
        def end(self) -> None:
            ended.append(self)
            raise KeyboardInterrupt

    stage = live._Stage(source(live), live.QUICK)
    stage.arms = [Interrupted(), Interrupted()]
    with pytest.raises(KeyboardInterrupt):
        stage.close()
    assert (len(ended), stage.arms) == (2, [])


class Arm:
    """A training without a process, as fast as its setting says."""

    def __init__(self, setting: Setting) -> None:
        self.setting, self.ended, self.gate = setting, False, self
        self.rate = 10.0 * (1 + setting.workers)

    def wait_until_ready(self) -> None:
        assert not self.ended

    def set_step(self, _seconds: float) -> None:
        assert not self.ended

    def counted(self, _turn: int) -> tuple[float, float]:
        return self.rate, 1.0


class Stage:
    """What lets such trainings go on."""

    def __init__(self, *_: object) -> None:
        self.arms: list[Arm] = []

    def start(self, setting: Setting, *_: object, **__: object) -> Arm:
        self.arms.append(Arm(setting))
        return self.arms[-1]

    def go_on(self, arm: Arm, _seconds: float) -> tuple[int, None]:
        assert not arm.ended
        return 1, None

    def drop(self, arm: Arm) -> Any:
        arm.ended = True
        return SimpleNamespace(disordered=0, most_workers=1, kept="w1-p2", changes=[])

    def turns(self) -> list[Any]:
        return []

    def close(self) -> None:
        pass


def test_the_best_goes_on_in_a_process_as_fresh_as_the_others(
    live: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The fastest of a grid was so by its process's luck, too."""
    seen: dict[str, Any] = {}

    def phase(stage: Stage, _design: Any, arms: dict[str, Any], *_: object, **__: object) -> bool:
        seen.update(arms)
        assert [arm for arm in stage.arms if not arm.ended] == [*arms.values()]
        return False

    monkeypatch.setattr(live, "_Stage", Stage)
    monkeypatch.setattr(live, "_phase", phase)
    monkeypatch.setattr(live.Source, "of", lambda _: None)
    monkeypatch.setattr(live, "event_of", lambda _: EVENT)
    found = live.live(SimpleNamespace(name="any"), live.QUICK, 1.0)
    start = seen["tuned"].setting
    fastest = max(*live.QUICK.grid, start)
    assert (seen["untuned"].setting, seen["best"].setting) == (start, fastest)
    assert found.best == live.key(fastest)
    assert found.step_s == 1 / Arm(fastest).rate


def test_samples_in_another_order_are_noticed(live: Any) -> None:
    class Otherwise(live.Source):  # type: ignore[misc] # found late
        def due(self, *_: object) -> Callable[[], Iterator[list[int]]]:
            return lambda: iter([[0, 1], [3, 2]])

    made = Otherwise(make=Quick, batch_size=2, collate=list)
    with ready(live, made, 1) as arm:
        arm.gate.open()
        assert until(lambda: arm.gate.counted(1)[0] >= 3)
        arm.gate.close()
        assert arm.end().disordered >= 3


@pytest.mark.parametrize("held", [True, pytest.param(False, marks=pytest.mark.slow)])
def test_a_training_whose_owner_is_gone_ends(live: Any, *, held: bool) -> None:
    reader, writer = os.pipe()
    child = os.fork()
    if not child:
        with contextlib.suppress(BaseException):
            arm = live.Arm(source(live), Setting(1, 2))
            arm.start()
            arm.wait_until_ready()
            if not held:
                arm.gate.open()
            os.write(writer, str(arm.pid).encode())
        os._exit(0)
    os.close(writer)
    os.waitpid(child, 0)
    with os.fdopen(reader) as pipe:
        pid = int(pipe.read())
    assert until(lambda: has_ended(pid))
