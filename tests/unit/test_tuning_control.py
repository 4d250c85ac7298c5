"""What is tried on a loader, and kept: by trainings that happen in a recursion."""

from __future__ import annotations

import dataclasses
import importlib
import math
import random
import statistics
from typing import Any

import pytest

from dlprof.tuning.control import NO_WORKERS, Control, Setting, Window, judged, opening

START = Setting(2, 2)


@pytest.fixture
def worlds() -> Any:
    return importlib.import_module("tuned_world")


def test_a_loader_that_waits_for_storage_gets_the_workers_that_it_needs(worlds: Any) -> None:
    training = worlds.Training(world=worlds.World(cpu_s=0.0, io_s=0.08, step_s=0.02), whole_s=300)
    control = Control(START, 16, cores=4)
    ran = training.run(START, control)
    assert 4 <= control.kept.workers <= 6
    assert control.settled_s is not None
    assert control.settled_s < 60
    assert ran.batches > 0.97 * max(training.run(each).batches for each in worlds.statics(16))
    first = control.changes[0]
    assert first.kept
    assert first.before == START
    assert first.speedup is not None
    assert (first.speedup.low or 0) > 1
    assert "of the time waits for data" in first.why


@pytest.mark.parametrize(("cpu_s", "io_s", "more"), [(0.001, 0.015, True), (0.015, 0.001, False)])
def test_with_a_worker_a_core_queues_get_deeper_first_only_where_workers_compute(
    worlds: Any, cpu_s: float, io_s: float, *, more: bool
) -> None:
    """What waits for storage needs no core: 2 of 5 workers are there, and 2 cores."""
    world = worlds.World(cpu_s=cpu_s, io_s=io_s, step_s=0.004, cores=2)
    control = Control(START, 16, cores=2)
    worlds.Training(world=world, whole_s=20).run(START, control)
    assert (control.changes[0].after.workers > START.workers) is more
    assert (control.kept.workers > START.workers) is more


def test_where_the_step_is_the_limit_workers_are_only_given_back(worlds: Any) -> None:
    training = worlds.Training(world=worlds.World(cpu_s=0.0, io_s=0.02, step_s=0.05), whole_s=200)
    control = Control(Setting(4, 2), 16)
    ran = training.run(Setting(4, 2), control)
    assert control.changes
    assert all(each.after.workers < each.before.workers for each in control.changes)
    assert control.kept.workers == 1
    assert ran.most_workers == 4
    assert ran.batches > 0.99 * training.run(Setting(4, 2)).batches


def test_workers_that_are_missed_come_back(worlds: Any) -> None:
    """Three do for a step of 50 ms, two nearly: what queues hide at first shows later."""
    training = worlds.Training(world=worlds.World(cpu_s=0.0, io_s=0.11, step_s=0.05), whole_s=600)
    control = Control(Setting(4, 4), 8)
    ran = training.run(Setting(4, 4), control)
    assert control.kept.workers >= 3
    assert ran.batches > 0.98 * training.run(Setting(4, 4)).batches


def test_parked_workers_come_back_at_once_when_storage_slows_down(worlds: Any) -> None:
    """One does for a step of 66 ms, until a batch takes 130; trying others would cost seconds."""
    world = worlds.World(cpu_s=0.002, io_s=0.044, step_s=0.066, spread=0.05)
    training = worlds.Training(world=world, phase="storage slows", at_s=120, whole_s=300)
    control = Control(Setting(8, 4), 16, cores=4)
    ran = training.run(Setting(8, 4), control)
    twin = training.run(Setting(8, 4), beside=ran)
    missed = next(each for each in control.changes if each.at_s > training.at_s)
    assert missed.before.workers == 1
    assert missed.after == Setting(8, 4)
    assert missed.at_s < training.at_s + 3
    minutes = zip(ran.by_minute[:-1], twin.by_minute, strict=False)
    assert min(mine / its for mine, its in minutes) > 0.98


@pytest.mark.parametrize("seed", range(3))
def test_it_settles_within_a_minute_where_batches_are_slow_and_unlike(
    worlds: Any, seed: int
) -> None:
    """One comparison took longer; what is left open when time is up is decided by the mean."""
    world = worlds.World(cpu_s=0.06, io_s=0.001, step_s=0.01, cores=4, spread=0.6)
    training = worlds.Training(world=world, whole_s=300, seed=seed)
    control = Control(START, 16, cores=4)
    training.run(START, control)
    assert control.settled_s is not None
    assert control.settled_s < 60


@pytest.mark.parametrize("phase", ["step halves", "storage slows"])
def test_it_looks_again_when_something_changes(worlds: Any, phase: str) -> None:
    world = worlds.World(cpu_s=0.0, io_s=0.08, step_s=0.04)
    training = worlds.Training(world=world, phase=phase, at_s=200, whole_s=600)
    control = Control(START, 16)
    training.run(START, control)
    kept = [each for each in control.changes if each.kept]
    assert kept[-1].at_s > training.at_s
    assert kept[-1].after.workers > max(each.before.workers for each in kept[:1])
    assert control.wait_share < 0.1


def test_no_minute_is_slower_than_without_tuning(worlds: Any) -> None:
    """Cores change their speed: little can be gained, and little is lost by trying."""
    world = worlds.World(cpu_s=0.05, io_s=0.0, step_s=0.01, cores=4)
    training = worlds.Training(world=world, whole_s=900)
    control = Control(Setting(6, 2), 16, cores=4)
    ran = training.run(Setting(6, 2), control)
    twin = training.run(Setting(6, 2), beside=ran)
    assert len(control.changes) > 2
    minutes = zip(ran.by_minute[:-1], twin.by_minute, strict=False)
    assert min(mine / its for mine, its in minutes) > 0.98


def test_twins_differ_by_their_settings_alone(worlds: Any) -> None:
    """Batches cost the same whoever loads them, and cores are as fast at the same time."""
    world = worlds.World(cpu_s=0.05, io_s=0.0, step_s=0.01, cores=4, spread=0.6, slow=0.03)
    training = worlds.Training(world=world, whole_s=300)
    ran = training.run(START)
    assert training.run(START, beside=ran).by_minute == ran.by_minute
    other = training.run(Setting(6, 2), beside=ran)
    assert other.batches > ran.batches
    epochs = worlds.Training(world=world, whole_s=300, epoch_s=60).run(START)
    assert 0.9 * ran.batches < epochs.batches < ran.batches


def test_handing_over_costs_workers_their_time_and_nothing_without_them(worlds: Any) -> None:
    world = worlds.World(
        cpu_s=0.001, io_s=0.0, send_s=0.009, step_s=0.001, receive_s=0.0, spread=0.0, cores=1
    )
    rates = []
    for setting in (NO_WORKERS, Setting(1, 2), Setting(2, 2)):
        training = worlds.Training(world=world, whole_s=60)
        rates.append(training.run(setting).batches / 60)
    assert rates == pytest.approx([500, 100, 100], rel=0.1)


def test_a_queue_that_fills_up_is_worth_what_is_in_it(worlds: Any) -> None:
    """What workers make is judged, not what is taken: a deeper queue is filled first."""
    made = Window(Setting(2, 8), 8, 0.4, 0.04, stocked=8)
    assert made.made == 16
    assert Control(START, 16)._cost_s(made, 0.0) == pytest.approx(0.44 / 16)
    limited = made._replace(waited_s=0.0)  # the step is the limit
    assert Control(START, 16)._cost_s(limited, 0.0) == pytest.approx(0.04 / 8)


def test_where_settings_change_with_the_epoch_only_it_still_finds_them(worlds: Any) -> None:
    world = worlds.World(cpu_s=0.0, io_s=0.08, step_s=0.02)
    training = worlds.Training(world=world, whole_s=900, epoch_s=60)
    control = Control(START, 16, live=False)
    ran = training.run(START, control)
    assert control.kept.workers >= 4
    assert ran.batches > 0.9 * training.run(Setting(5, 2)).batches


def fed(
    control: Control, waited_s: Any, windows: int, refuses: Any = None, **figures: Any
) -> set[Setting]:
    """Answer a control by a rule; the settings that it asked for."""
    ask, asked = control.begin(), set()
    for _ in range(windows):
        asked.add(ask.setting)
        count = max(1, ask.batches)
        why = refuses(ask.setting) if refuses is not None and ask.setting != control.kept else ""
        count = 0 if why else count
        waited = count * waited_s(ask.setting)
        ask = control.look(Window(ask.setting, count, waited, count * 0.01, refused=why, **figures))
    return asked


def test_more_workers_are_not_kept_where_they_bring_nothing() -> None:
    control = Control(START, 16)
    asked = fed(control, lambda _: 0.02, 200)
    assert max(each.workers for each in asked) > 2
    assert control.kept.in_flight <= START.in_flight


@pytest.mark.parametrize(
    ("cpu_s", "delay_s", "tried", "first"),
    [
        pytest.param(0.1, 0.7, True, True, id="two cores, all of them its own"),
        pytest.param(0.094, 0.706, True, True, id="one other"),
        pytest.param(0.08, 0.72, True, False, id="four others"),
        pytest.param(0.01, 0.0, False, False, id="storage"),
        pytest.param(0.8, 0.0, False, False, id="a core each"),
    ],
)
def test_fewer_workers_are_tried_where_cores_lose_little_by_it_however_slow_batches_are(
    cpu_s: float, delay_s: float, *, tried: bool, first: bool
) -> None:
    """A turn of 12 of 16 workers is 68 batches, 5 s: a quarter, if all waited for storage."""
    control = Control(Setting(16, 2), 16, cores=2 if delay_s else 32)
    waited_s = {True: 0.07, False: 0.05}  # of 16, and of fewer
    asked = fed(
        control,
        lambda setting: waited_s[setting.workers == 16],
        200,
        fetch_s=0.8,
        cpu_s=cpu_s,
        delay_s=delay_s,
    )
    assert (min(each.workers for each in asked) < 16) is tried
    assert (control.kept.workers < 16) is tried
    # And before deeper queues, but where others would take some of the cores' time.
    assert (control.changes[0].after.workers < 16) is first


def epochs(
    control: Control, waited_s: Any, count: int, windows: int = 12, **figures: Any
) -> list[Setting]:
    """The settings of so many epochs; a batch waits as a rule says."""
    ask, had, live = control.begin(), [], control.live
    for epoch in range(count):
        setting = ask.setting if ask.setting.workers or not control.live else control.kept
        had.append(setting)
        for _ in range(windows):
            wanted = ask.within or ask.setting
            if live or wanted.workers == setting.workers:  # a depth comes at once
                setting = wanted
            waited = waited_s(setting, epoch)
            batches = max(ask.batches, round(ask.seconds / (waited + 0.01)))
            seen = Window(setting, batches, batches * waited, batches * 0.01)
            ask = control.look(seen._replace(**figures) if setting.workers else seen)
    return had


def test_the_next_epoch_has_the_workers_that_the_wait_calls_for() -> None:
    control = Control(START, 16, live=False)
    had = epochs(control, lambda setting, _: max(0.0, 0.08 / setting.workers - 0.01), 4)
    assert had[0] == START
    assert set(had[1:]) == {Setting(9, 16)}
    assert [each.after for each in control.changes if each.after.workers > 2] == [Setting(9, 16)]
    assert control.changes[-1].kept
    assert control.resting


@pytest.mark.parametrize(("epoch", "most"), [(6, Setting(2, 3)), (math.inf, Setting(2, 16))])
def test_no_queue_is_tried_that_is_deeper_than_an_epoch(epoch: float, most: Setting) -> None:
    control = Control(START, 16, live=False, changes_workers=False, epoch=epoch)
    epochs(control, lambda setting, _: 0.08 / setting.workers, 20, windows=6)
    assert max(each.after for each in control.changes) == most


def test_no_more_workers_are_tried_than_an_epoch_has_batches() -> None:
    control = Control(START, 16, live=False, epoch=6)
    had = epochs(control, lambda setting, _: 0.08 / setting.workers, 8, windows=6)
    assert max(had).workers == 6
    assert {each.ahead for each in had} == {2}


@pytest.mark.parametrize("cached_s", [0.01, 0.08])
def test_what_a_cache_brings_from_the_second_epoch_on_is_no_merit_of_more_workers(
    worlds: Any, cached_s: float
) -> None:
    """For a step of 20 ms two workers do where batches of 160 ms come to take 10, and not 80."""

    class Cached(worlds.World):  # type: ignore[misc] # a module that is found late
        def changed(self, phase: str) -> Any:
            return dataclasses.replace(self, io_s=cached_s)

    world = Cached(cpu_s=0.002, io_s=0.16, step_s=0.02)
    training = worlds.Training(world=world, phase="cache", at_s=60, whole_s=300, epoch_s=60)
    control = Control(START, 16, live=False, cores=4)
    training.run(START, control)
    more = [each for each in control.changes if each.after.workers > START.workers]
    assert [each.kept for each in more] == [cached_s == 0.08]
    assert (control.kept.workers > START.workers) is (cached_s == 0.08)
    assert control.resting


def test_queues_get_deeper_while_more_workers_wait_for_the_next_epoch() -> None:
    control = Control(START, 16, live=False)
    had = epochs(control, lambda setting, _: 0.08 / setting.workers + 0.08 / setting.ahead, 2)
    assert [each.after for each in control.changes[:2]] == [Setting(2, 8), Setting(2, 16)]
    assert all(each.kept for each in control.changes)
    assert had[0] == START
    assert had[1].workers > 2
    assert had[1].ahead == 16


def test_queues_that_are_slower_when_deeper_hold_up_no_workers() -> None:
    control = Control(START, 16, live=False)
    had = epochs(control, lambda setting, _: 0.08 / setting.workers * (setting.ahead / 2), 2)
    deeper = control.changes[0]
    assert deeper.after == Setting(2, 8)
    assert not deeper.kept
    assert had[1].workers > 2
    assert had[1].ahead == 2


@pytest.mark.slow
def test_queues_that_are_a_little_slower_when_deeper_do_not_stay_so_by_chance() -> None:
    """They cost 15 and 23% where windows differ by 10%."""
    kept = []
    for seed in range(20):
        rng = random.Random(seed)
        control = Control(START, 2, live=False)

        def waited_s(setting: Setting, _: int, rng: random.Random = rng) -> float:
            slower = {2: 1.0, 8: 1.15, 16: 1.23}[setting.ahead]
            return 0.05 * slower * rng.lognormvariate(0.0, 0.1) - 0.01

        epochs(control, waited_s, 12, windows=16)
        kept.append(control.kept)
    assert kept.count(START) >= 18


def test_workers_that_bring_less_than_in_proportion_are_jumped_over() -> None:
    """A batch comes by the root of the workers: to be twice as fast takes four times as many."""
    control = Control(START, 64, live=False)
    had = epochs(control, lambda setting, _: 0.08 / setting.workers**0.5 - 0.01, 4)
    assert had[1] == Setting(13, 16)
    assert had[2].workers >= 64


def test_between_settings_that_bring_nothing_no_epoch_goes_back() -> None:
    control = Control(START, 16, live=False)
    had = epochs(control, lambda *_: 0.02, 4)
    assert had[1].workers > 2
    assert had[2] == had[3] == Setting(2, 16)
    assert not any(each.kept for each in control.changes if each.after.workers > 2)
    assert control.settled_s is not None


def test_what_came_with_other_processes_is_not_held_against_a_setting() -> None:
    """They come with the epoch that tries more workers: these look slower than they are."""
    control = Control(START, 16, live=False)
    had = epochs(
        control, lambda setting, epoch: (0.06 / setting.workers + 0.005) * (4 if epoch else 1), 7
    )
    assert had[1].workers > 2
    assert not next(each.kept for each in control.changes if each.after.workers > 2)
    assert control.kept.workers > 2


@pytest.mark.parametrize(("epoch_s", "reacts"), [(2.7, 2), (0.5, 3)])
def test_storage_that_slows_down_gets_workers_within_two_short_epochs(
    epoch_s: float, reacts: int
) -> None:
    """One that is slow may be so by chance. What workers bring is judged by what is slow since."""
    control = Control(START, 16, live=False)
    ask, had = control.begin(), list[Setting]()
    batches = round(epoch_s / 0.01)
    for epoch in range(30):
        had.append(ask.setting)
        by_one_s = 0.014 if epoch < 12 else 0.058
        waited_s = max(0.0, by_one_s / ask.setting.workers - 0.01)
        ask = control.look(Window(ask.setting, batches, batches * waited_s, batches * 0.01))
    slow = 12 + reacts
    assert had[:slow] == slow * [START]
    assert {*had[slow:]} == {Setting(7, 2)}
    assert [each.kept for each in control.changes] == [True]


def test_more_workers_are_judged_by_what_was_seen_since_storage_slowed_down(worlds: Any) -> None:
    """Beside windows from before they looked slower, and it took three epochs of 10 s to see it."""
    world = worlds.World(cpu_s=0.001, io_s=0.018, step_s=0.01, cores=4)
    training = worlds.Training(
        world=world, phase="storage slows", at_s=120, whole_s=240, epoch_s=10
    )
    control = Control(START, 16, live=False, cores=4)
    ran = training.run(START, control)
    assert control.kept.workers == 6
    assert ran.batches > 0.95 * training.run(Setting(8, 4)).batches


def test_workers_are_not_given_back_where_they_would_be_missed_for_an_epoch() -> None:
    control = Control(Setting(12, 2), 16, live=False)
    assert epochs(control, lambda *_: 0.0, 3, fetch_s=0.03) == 3 * [Setting(12, 2)]
    assert control.resting


@pytest.mark.parametrize(
    ("own", "fetch_s", "cpu_s", "workers"),
    [
        pytest.param(2, 0.1, 0.1, 6, id="it computes"),
        pytest.param(2, 0.1, 0.05, 12, id="half of it waits"),
        pytest.param(2, 0.1, 0.0, 16, id="it waits"),
        pytest.param(4, 0.1, 0.1, 4, id="its own keep all cores busy"),
        pytest.param(20, 0.1, 0.0, 20, id="its own are more than others may be"),
    ],
)
def test_a_first_epoch_begins_with_what_keeps_all_cores_busy(
    own: int, fetch_s: float, cpu_s: float, workers: int
) -> None:
    begins = opening(Setting(own, 3), fetch_s, cpu_s, most_workers=16, cores=4)
    assert begins == Setting(workers, 3)


def test_workers_with_which_it_began_are_given_back_once_half_of_them_do_twice_over() -> None:
    for least, left in (2, 6), (7, 12):
        control = Control(Setting(12, 2), 16, live=False, least=least)
        had = epochs(control, lambda *_: 0.0, 4, fetch_s=0.03)
        assert had == [Setting(12, 2), *3 * [Setting(left, 2)]]
        assert control.settled_s is not None
        assert control.settled_s < 60  # nothing faster is tried: an epoch is not waited for
    missed = Control(Setting(12, 2), 16, live=False, least=2)
    had = epochs(missed, lambda each, _: 0.05 if each.workers < 12 else 0.0, 5, fetch_s=0.03)
    assert had[1:] == [Setting(6, 2), *3 * [Setting(12, 2)]]


@pytest.mark.parametrize(
    ("cpu_s", "workers"),
    [
        pytest.param(0.03, {2}, id="all cores compute for it"),
        pytest.param(0.015, {2, 7}, id="as many of others have half of them"),
        pytest.param(0.0, {2, 4}, id="it waits"),
    ],
)
def test_more_workers_come_with_the_next_epoch_only_where_cores_are_left(
    cpu_s: float, workers: set[int]
) -> None:
    """A batch is due every 10 ms, and comes every 15: 6 beside 2 of others have 1.5 cores of 2."""
    control = Control(START, 16, live=False, cores=2)
    figures: dict[str, Any] = {
        "fetch_s": 0.03,
        "cpu_s": cpu_s,
        "delay_s": 0.03 - cpu_s if cpu_s else 0.0,
    }
    had = epochs(control, lambda *_: 0.005, 2, **figures)
    assert {each.workers for each in had} == workers


@pytest.mark.parametrize(("cpu_s", "again"), [(0.04, False), (0.01, True)])
def test_where_all_cores_compute_for_it_more_workers_are_tried_once(
    cpu_s: float, *, again: bool
) -> None:
    """They bring what more batches in flight do: a minute fell to 0.96 as others were tried."""
    control = Control(Setting(2, 16), 16, cores=2)
    seen = Window(control.kept, 100, 1.0, 1.0, fetch_s=0.04, cpu_s=cpu_s)
    assert control._may_try(Setting(5, 16), seen)
    control._of(Setting(8, 16)).extend([0.1, -0.1])
    assert control._may_try(Setting(5, 16), seen) is again
    assert control._may_try(Setting(1, 16), seen)


@pytest.mark.parametrize("live", [True, False])
@pytest.mark.parametrize(("alone_s", "kept"), [(0.001, True), (0.02, False)])
def test_without_workers_where_fetching_takes_less_than_receiving(
    *,
    live: bool,
    alone_s: float,
    kept: bool,
) -> None:
    control = Control(START, 16, live=live, changes_workers=not live, spares_workers=True)

    def waited_s(setting: Setting, _epoch: int) -> float:
        return 0.002 if setting.workers else alone_s

    had = epochs(control, waited_s, 5, windows=40, fetch_s=0.0005, receive_s=0.002)
    assert had[0] == START
    back = live and not kept  # within an epoch it is taken back
    assert had[1] == (START if back else NO_WORKERS)
    assert had[2:] == 3 * [NO_WORKERS if kept else START]
    assert control.kept == had[-1]
    assert control.changes[0].kept is kept
    assert len(control.changes) == 1


def test_the_only_reader_of_an_iterable_is_spared_and_comes_back_when_it_is_missed() -> None:
    only = Setting(1, 2)
    control = Control(only, 1, live=False, changes_workers=False, spares_workers=True)

    def waited_s(setting: Setting, epoch: int) -> float:
        return 0.002 if setting.workers else 0.001 if epoch < 6 else 0.1

    had = epochs(control, waited_s, 12, windows=40, fetch_s=0.0005, receive_s=0.002)
    assert had[:2] == [only, NO_WORKERS]
    assert {each.workers for each in had} == {0, 1}
    assert had[-1].workers == 1
    assert [each.kept for each in control.changes if each.after == NO_WORKERS] == [True]


HANDED = {
    "tiny": {"cpu_s": 0.0004, "send_s": 0.004, "receive_s": 0.0003, "step_s": 0.0001},
    "huge": {"cpu_s": 0.003, "send_s": 0.025, "receive_s": 0.002, "step_s": 0.001},
}
"""Loaders whose workers hand batches over for longer than they fetch them."""


@pytest.mark.parametrize("live", [True, False])
@pytest.mark.parametrize("workers", [1, 2, pytest.param(8, marks=pytest.mark.slow)])
@pytest.mark.parametrize("costs", HANDED)
def test_without_workers_where_they_hand_over_for_longer_than_they_fetch(
    worlds: Any, costs: str, workers: int, *, live: bool
) -> None:
    """Eight on two cores take four times as long to fetch: most of that they wait for a core."""
    world = worlds.World(io_s=0.0, cores=2, **HANDED[costs])
    training = worlds.Training(world=world, whole_s=120, epoch_s=15)
    start = Setting(workers, 2)
    control = Control(start, 16, live=live, cores=2, spares_workers=True)
    ran = training.run(start, control)
    twin = training.run(start, beside=ran)
    assert control.kept == NO_WORKERS
    spared, *others = control.changes
    assert spared.after == NO_WORKERS  # which is known to be faster, before others may be
    assert not any(each.kept for each in others)
    assert control.changes[-1].at_s < 70
    minutes = zip(ran.by_minute[:-1], twin.by_minute, strict=False)
    assert min(mine / its for mine, its in minutes) > 0.98


@pytest.mark.parametrize("costs", HANDED)
def test_what_starts_without_workers_tries_them_once_where_handing_over_takes_longer(
    worlds: Any, costs: str
) -> None:
    world = worlds.World(io_s=0.0, cores=2, **HANDED[costs])
    training = worlds.Training(world=world, whole_s=200, epoch_s=15)
    control = Control(NO_WORKERS, 16, live=False, cores=2, spares_workers=True)
    training.run(NO_WORKERS, control)
    assert [each.kept for each in control.changes] == [False]


def test_workers_that_were_done_without_are_tried_again_as_many_as_they_were(worlds: Any) -> None:
    """One at a time would be the slowest of all settings for an epoch, beside other processes."""
    costs = {"cpu_s": 0.0004, "send_s": 0.0008, "receive_s": 0.0003, "step_s": 0.00005}
    world = worlds.World(io_s=0.0, cores=2, **costs)
    training = worlds.Training(
        world=world, phase="load comes", at_s=120, whole_s=240, epoch_s=20, seed=2
    )
    start = Setting(8, 2)
    control = Control(start, 16, cores=2, spares_workers=True)
    ran = training.run(start, control)
    twin = training.run(start, beside=ran)
    spared, missed = control.changes[-2:]
    assert spared.after == missed.before == NO_WORKERS
    assert missed.at_s > training.at_s
    assert missed.after.workers == spared.before.workers > 1
    minutes = zip(ran.by_minute[:-1], twin.by_minute, strict=False)
    assert min(mine / its for mine, its in minutes) > 0.98


def test_workers_that_were_done_without_come_back_within_the_epoch_when_storage_slows_down(
    worlds: Any,
) -> None:
    """An epoch may last an hour. Workers wait for storage beside each other, a loop can not."""

    class Slowing(worlds.World):  # type: ignore[misc] # a module that is found late
        def changed(self, phase: str) -> Any:
            return dataclasses.replace(self, io_s=0.2)

    training = worlds.Training(
        world=Slowing(io_s=0.0, cores=2, **HANDED["tiny"]), phase="slower", at_s=100, whole_s=200
    )
    control = Control(START, 16, cores=2, spares_workers=True)
    ran = training.run(START, control)
    spared, missed, *_ = control.changes
    assert spared.after == missed.before == NO_WORKERS
    assert missed.after == START
    assert training.at_s < missed.at_s < training.at_s + 4
    assert control.kept.workers > START.workers
    twin = training.run(START, beside=ran)
    minutes = zip(ran.by_minute[:-1], twin.by_minute, strict=False)
    assert min(mine / its for mine, its in minutes) > 0.98


def test_a_batch_that_is_slow_by_chance_brings_no_workers_back() -> None:
    """Two in a row are: they are compared for some seconds, and the loop goes on without."""
    slow = {100, 101}

    def waited_s(setting: Setting) -> float:
        if setting.workers:
            return 0.02
        return 0.2 if len(seen) in slow else 0.001

    seen: list[Setting] = []
    control = Control(START, 16, cores=2, spares_workers=True)
    ask = control.begin()
    for _ in range(200):
        seen.append(ask.setting)
        count = max(ask.batches, round(ask.seconds / (waited_s(ask.setting) + 0.01)))
        window = Window(ask.setting, count, count * waited_s(ask.setting), count * 0.01)
        if ask.setting.workers:
            window = window._replace(fetch_s=0.0005, cpu_s=0.0005, receive_s=0.002)
        ask = control.look(window)
    assert control.kept == NO_WORKERS
    assert START in seen[100:]
    assert len(seen[100:]) - seen[100:].count(NO_WORKERS) < 16


def test_windows_that_are_slow_now_and_then_bring_no_workers_back() -> None:
    """For a second of every twenty, as where a disk writes: workers would be no faster then."""
    control = Control(START, 16, cores=2, spares_workers=True)
    ask, now_s = control.begin(), 0.0
    while now_s < 200:
        slow = now_s > 30 and now_s % 20 < 1
        waited_s = 0.02 if ask.setting.workers else 0.06 if slow else 0.001
        count = max(ask.batches, round(ask.seconds / (waited_s + 0.01)))
        window = Window(ask.setting, count, count * waited_s, count * 0.01)
        if ask.setting.workers:
            window = window._replace(fetch_s=0.0005, cpu_s=0.0005, receive_s=0.002)
        now_s += window.took_s
        ask = control.look(window)
    assert [each.after for each in control.changes] == [NO_WORKERS]


def test_workers_that_come_back_in_vain_are_a_loss_that_counts() -> None:
    """For three seconds of ten all is slow, and with workers it is slower still."""
    control = Control(START, 16, cores=2, spares_workers=True)
    ask, now_s, lost_s = control.begin(), 0.0, list[tuple[float, float]]()
    while now_s < 300:
        slow = now_s > 30 and now_s % 10 < 3
        alone_s = 0.2 if slow else 0.001
        waited_s = alone_s + 0.02 if ask.setting.workers and not slow else alone_s
        waited_s *= 2 if ask.setting.workers and slow else 1
        count = max(ask.batches, round(ask.seconds / (waited_s + 0.01)))
        window = Window(ask.setting, count, count * waited_s, count * 0.01)
        if ask.setting.workers:
            window = window._replace(fetch_s=0.0005, cpu_s=0.0005, receive_s=0.002)
            lost_s.append((now_s, window.took_s - count * (alone_s + 0.01)))
        now_s += window.took_s
        ask = control.look(window)
    assert control.kept == NO_WORKERS
    minutes = [sum(lost for at_s, lost in lost_s if 0 <= at_s - 60 * n < 60) for n in range(1, 5)]
    assert 0 < max(minutes) < 2


@pytest.mark.parametrize("beside", [2, 10])
@pytest.mark.parametrize("workers", [1, 2, 8])
def test_without_workers_within_a_minute_beside_other_processes(
    worlds: Any, workers: int, beside: int
) -> None:
    """These keep fetching waiting for a core, in workers and without: that is no cost of it."""
    world = worlds.World(io_s=0.0, cores=2, beside=beside, **HANDED["tiny"])
    training = worlds.Training(world=world, whole_s=60)
    start = Setting(workers, 2)
    control = Control(start, 16, cores=2, spares_workers=True)
    training.run(start, control)
    assert control.kept == NO_WORKERS
    assert control.changes[-1].at_s < 50


@pytest.mark.parametrize("live", [True, False])
def test_workers_share_handing_over_while_there_are_cores(worlds: Any, *, live: bool) -> None:
    """Without them a batch would take 1 ms, from the first two 2.5, and from sixteen 0.3."""
    world = worlds.World(
        cpu_s=0.001, io_s=0.0, send_s=0.004, receive_s=0.0001, step_s=0.0001, cores=16
    )
    training = worlds.Training(world=world, whole_s=200, epoch_s=20)
    control = Control(START, 32, live=live, cores=16, spares_workers=True)
    training.run(START, control)
    assert control.kept.workers >= 12
    spared, shared, *_ = control.changes  # the first is sure to be faster, the second may be
    assert (spared.after, spared.kept) == (NO_WORKERS, True)
    assert shared.after.workers > 4
    assert shared.at_s < 60


@pytest.mark.parametrize("live", [True, False])
@pytest.mark.parametrize("cores", [1, 2, 8])
@pytest.mark.parametrize(("cpu_s", "io_s"), [(0.02, 0.0), (0.002, 0.02), (0.01, 0.01)])
def test_workers_that_only_fetch_are_not_done_without(
    worlds: Any, cpu_s: float, io_s: float, cores: int, *, live: bool
) -> None:
    world = worlds.World(cpu_s=cpu_s, io_s=io_s, step_s=0.002, cores=cores, slow=0.03)
    world = dataclasses.replace(world, slow_factor=8.0, spread=0.6)
    training = worlds.Training(world=world, whole_s=150, epoch_s=15)
    control = Control(START, 16, live=live, cores=cores, spares_workers=True)
    training.run(START, control)
    assert all(each.after.workers for each in control.changes)


@pytest.mark.parametrize("live", [True, False])
@pytest.mark.parametrize(("alone_cpu_s", "spared"), [(0.0, False), (0.012, True)])
def test_without_workers_where_collating_in_shared_memory_is_most_of_fetching(
    alone_cpu_s: float, *, spared: bool, live: bool
) -> None:
    """The main process fetches in 12 ms what takes a worker 30, and one of two 20."""
    control = Control(START, 2, live=live, spares_workers=True)
    had = epochs(
        control,
        lambda setting, _: 0.04 / setting.workers if setting.workers else 0.012,
        8,
        windows=40,
        fetch_s=0.03,
        cpu_s=0.03,
        alone_cpu_s=alone_cpu_s,
        receive_s=0.001,
    )
    assert (NO_WORKERS in had) is spared
    assert (control.kept == NO_WORKERS) is spared


@pytest.mark.parametrize(("others_s", "alone_s"), [(0.0, 0.002), (0.006, 0.004)])
def test_other_processes_delay_what_is_spared_no_less(others_s: float, alone_s: float) -> None:
    """Two workers on two cores: half of what one computes, the other waits, and no longer alone."""
    seen = Window(START, 10, 0.1, 0.1, fetch_s=0.009 + others_s, cpu_s=0.006, alone_cpu_s=0.002)
    seen = seen._replace(delay_s=0.003 + others_s)
    assert Control(START, 16, cores=2)._alone_s(seen) == pytest.approx(alone_s)


def test_what_is_slower_without_workers_is_not_tried_again() -> None:
    control = Control(START, 2, live=False, spares_workers=True)
    had = epochs(
        control,
        lambda setting, _: 0.01 if setting.workers else 0.02,
        30,
        fetch_s=0.0005,
        cpu_s=0.0005,
        receive_s=0.002,
    )
    assert had.count(NO_WORKERS) == 1
    assert control.kept.workers == 2


@pytest.mark.parametrize("live", [False, True])
def test_workers_are_not_spared_where_nothing_was_clocked(*, live: bool) -> None:
    control = Control(START, 2, live=live, spares_workers=True)
    had = epochs(control, lambda setting, _: 0.01 if setting.workers else 0.02, 10, receive_s=0.002)
    assert NO_WORKERS not in had
    assert NO_WORKERS not in {each.after for each in control.changes}


@pytest.mark.parametrize("changes", [False, True])
def test_within_epochs_what_is_slower_without_workers_is_tried_again_when_something_changes(
    *, changes: bool
) -> None:
    def waited_s(setting: Setting, epoch: int) -> float:
        return 0.02 if not setting.workers else 0.03 if changes and epoch >= 15 else 0.01

    control = Control(START, 2, spares_workers=True)
    epochs(control, waited_s, 30, windows=40, fetch_s=0.0005, cpu_s=0.0005, receive_s=0.002)
    tried = [each for each in control.changes if each.after == NO_WORKERS]
    assert [each.kept for each in tried] == [False, True][: 1 + changes]
    assert (control.kept == NO_WORKERS) is changes


def test_no_workers_where_that_is_refused_are_not_asked_for_again() -> None:
    control = Control(START, 2, spares_workers=True)
    figures = {"fetch_s": 0.0005, "cpu_s": 0.0005, "receive_s": 0.002}

    def refuses(setting: Setting) -> str:
        return "" if setting.workers else "it would be"

    fed(control, lambda _: 0.01, 500, refuses, **figures)
    assert [each.refused for each in control.changes if not each.after.workers] == ["it would be"]


def test_an_epoch_without_workers_is_judged_if_the_last_one_ended_before_any_was_seen() -> None:
    control = Control(START, 16, live=False, changes_workers=False, spares_workers=True)
    had = epochs(
        control,
        lambda setting, _: 0.002 if setting.workers else 0.02,
        6,
        windows=3,  # all of the first epoch calibrates
        fetch_s=0.0005,
        receive_s=0.002,
    )
    assert Setting(0, 0) in had
    assert had[-1] == START
    assert [each.kept for each in control.changes] == [False]


def test_what_is_refused_is_noted_and_not_tried() -> None:
    control = Control(START, 16)
    fed(control, lambda setting: 0.05 / setting.workers, 200, lambda _: "the budget")
    assert control.kept == START
    assert {each.refused for each in control.changes} == {"the budget"}


def test_where_more_are_refused_those_are_had_that_there_is_room_for() -> None:
    """Eight and four don't fit: three do."""
    control = Control(START, 16)

    def refuses(setting: Setting) -> str:
        return "the budget" if setting.in_flight > 6 else ""

    fed(control, lambda setting: 0.05 / setting.workers, 200, refuses)
    assert control.kept == Setting(3, 2)


def test_fewer_workers_that_are_refused_are_no_fault() -> None:
    """An epoch beside another begins with the user's few: half of what is kept are more."""
    control = Control(Setting(8, 2), 16)
    fed(control, lambda _: 0.0, 40, lambda _: "the budget")
    assert control.kept == Setting(8, 2)
    assert {each.refused for each in control.changes} == {"the budget"}
    assert control.resting


def test_there_are_never_more_workers_than_allowed() -> None:
    control = Control(START, 5)
    asked = fed(control, lambda setting: 0.05 / setting.workers, 400)
    assert max(each.workers for each in asked) == 5
    assert control.kept.workers == 5


def test_depth_alone_changes_where_workers_may_not() -> None:
    control = Control(START, 16, changes_workers=False)
    asked = fed(control, lambda setting: 0.02 / setting.ahead, 400)
    assert {each.workers for each in asked} == {2}
    assert control.kept.ahead > 2


@pytest.mark.parametrize(
    ("waited_s", "live", "why"),
    [
        (0.0, True, "0% of the time waits for data, nothing to gain"),
        (0.02, True, "67% of the time waits for data, nothing larger may be tried"),
        (0.02, False, "67% of the time waits for data, nothing larger may be tried"),
    ],
)
def test_where_nothing_is_tried_it_says_why(waited_s: float, live: bool, why: str) -> None:
    control = Control(Setting(1, 16), 1, live=live)
    assert control.idle == ""
    fed(control, lambda _: waited_s, 20)
    assert control.changes == []
    assert control.idle == why


def test_beside_other_ranks_the_wait_is_judged() -> None:
    """What a rank gains is spent in its step, in waiting for the others."""

    def run(*, by_wait: bool) -> Control:
        control = Control(START, 8)
        control.by_wait = by_wait
        ask = control.begin()
        for _ in range(300):
            waited_s = 0.02 / ask.setting.workers
            seen = (ask.batches, ask.batches * waited_s, ask.batches * (0.03 - waited_s))
            ask = control.look(Window(ask.setting, *seen))
        return control

    assert run(by_wait=True).kept.workers > 2
    assert run(by_wait=False).kept.workers <= 2


@pytest.mark.parametrize("live", [True, False])
@pytest.mark.parametrize(("pinned_s", "kept"), [(0.025, True), (0.0299, False), (0.032, False)])
@pytest.mark.parametrize("pins", [True, False])
def test_pinning_is_judged_by_the_step_that_has_the_copies(
    pinned_s: float, *, live: bool, kept: bool, pins: bool
) -> None:
    """The other way round, ``pinned_s`` is the step without."""
    control = Control(START, 2, live=live, changes_workers=False)
    asks = [control.begin()]
    for _ in range(400):
        setting, count = asks[-1].setting, asks[-1].batches
        control.repins = pins  # as may be offered with every window
        now = control.pins if setting.pins is None else setting.pins
        step_s = pinned_s if now is pins else 0.03
        asks.append(control.look(Window(setting, count, 0.0, count * step_s)))
        if control.pins is not None or (control.changes and control.resting):
            break
    (change,) = control.changes
    assert change.after == Setting(2, 2, pins)
    assert str(change.after) == f"num_workers=2, prefetch_factor=2, pin_memory={pins}"
    assert change.kept is kept
    assert control.pins is (pins if kept else None)
    assert control.kept == asks[-1].setting == START


def test_pinning_is_not_judged_beside_other_ranks() -> None:
    """What it takes off a step goes to waiting for them, in the same step."""
    control = Control(START, 2, changes_workers=False)
    control.by_wait = True
    ask = control.begin()
    for _ in range(400):
        control.repins = True
        ask = control.look(Window(ask.setting, ask.batches, 0.0, ask.batches * 0.03))
    assert not control.changes


@pytest.mark.parametrize(
    ("gains", "cheaper", "verdict"),
    [
        ([0.5], False, None),
        ([0.5, 0.5], False, True),
        ([0.5, -0.3], False, None),
        ([-0.1, -0.2], False, None),
        ([-0.1, -0.1, -0.11], False, False),
        ([0.3, -0.4, 0.1, -0.2], False, None),
        ([0.001, 0.001, 0.001], False, False),
        ([0.0, 0.0], True, True),
        ([-0.2, -0.21], True, False),
        ([0.02, -0.02], True, None),
    ],
)
def test_a_gain_is_distinguished_from_noise(
    gains: list[float],
    cheaper: bool,
    verdict: bool | None,
) -> None:
    assert judged(gains, cheaper=cheaper) is verdict
    # In the end the mean decides: what can't be known for sure is lost by either choice as often.
    # What is cheaper is given up instead: a little lost each time would add up.
    likely = len(gains) > 1 and not cheaper and statistics.fmean(gains) > 0.01
    assert judged(gains, cheaper=cheaper, last=True) is (likely if verdict is None else verdict)
