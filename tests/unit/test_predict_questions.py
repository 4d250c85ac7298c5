"""Where a prediction is asked for: cores, speed, step, and which configurations."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import pytest
from builders import config, header, machine, target, trial
from hypothesis import given
from hypothesis import strategies as st
from predicted_runs import asked, calibrated, calibration, elsewhere

from dlprof.advise.candidates import (
    auto_prefetch,
    auto_workers,
    base_config,
    configs_of,
    wanted_configs,
)
from dlprof.advise.choice import predictions, speeds_of
from dlprof.advise.recommend import recommend
from dlprof.advise.situation import (
    Situation,
    clock_of,
    core_speed,
    measured_step,
    neighbours_seen,
    speed_error,
    usual_speed,
)
from dlprof.errors import UsageError
from dlprof.model.work import SPEED_ERROR, Conditions
from dlprof.records import Config, Constraints, CoreSpeeds, Explanation, Run, Stage, Trial, Usage
from dlprof.records.target import EPOCH_SIGN

_UNIT = CoreSpeeds.unit_of(header().python_version)


def cores_at(median: float, *, range_: float = 1.0, unit: str = _UNIT) -> CoreSpeeds:
    """Cores of a median speed, from the slowest to the fastest by a factor."""
    side = range_**0.5
    return CoreSpeeds(median=median, low=median / side, high=median * side, unit=unit)


def seen(workers: int, speed: float | None, busy: float = 1.0) -> Trial:
    """A trial that kept so many cores busy, and found them so fast."""
    return trial(config(workers), usage=Usage(own_cpu_cores=busy, core_speed=speed))


def run_of(*trials: Trial, calibrating: int = 0) -> Run:
    """A run that was calibrated by the first few of its trials."""
    run = calibrated(trials=trials)
    ids = tuple(each.id for each in run.trials[:calibrating])
    assert run.calibration is not None
    return dataclasses.replace(run, calibration=dataclasses.replace(run.calibration, trials=ids))


@pytest.mark.parametrize(
    ("name", "clock"),
    [
        ("Intel(R) Xeon(R) Platinum 8168 CPU @ 2.70GHz", 2.7),
        ("Intel(R) Core(TM) i9-9900K CPU @ 3.60 GHz", 3.6),
        ("AMD EPYC 7742 64-Core Processor", None),
        ("@ 0.00GHz", None),
        ("", None),
    ],
)
def test_the_clock_stands_in_the_name(name: str, clock: float | None) -> None:
    assert clock_of(name) == clock


@given(st.text())
def test_any_name_of_a_cpu_is_read(name: str) -> None:
    clock = clock_of(name)
    assert clock is None or clock > 0


def test_a_speed_that_is_given_is_believed() -> None:
    found = core_speed(machine(), elsewhere(base_ghz=2.0), given=0.8)
    assert (found.value, found.factor, found.doubt) == (0.8, 1.0, "")


def test_the_same_model_is_as_fast() -> None:
    found = core_speed(machine(), elsewhere(cpu_model="Example CPU"))
    assert (found.value, found.factor, found.doubt) == (1.0, 1.0, "")


def test_clocks_show_something() -> None:
    here = machine(cpu_model="A @ 3.00GHz")
    by_profile = core_speed(here, elsewhere(base_ghz=2.4))
    assert by_profile.value == pytest.approx(0.8)
    assert by_profile.factor > 1
    assert "--speed" in by_profile.doubt
    by_name = core_speed(here, elsewhere(cpu_model="B @ 1.50GHz"))
    assert by_name.value == pytest.approx(0.5)
    by_system = core_speed(machine(cpu_model="A", base_ghz=2.0), elsewhere(cpu_model="B @ 1.50GHz"))
    assert by_system.value == pytest.approx(0.75)


def test_a_speed_that_nobody_knows_is_a_graver_doubt() -> None:
    found = core_speed(machine(), elsewhere())
    by_clock = core_speed(machine(cpu_model="A @ 2GHz"), elsewhere(base_ghz=2.0))
    assert found.value == 1.0
    assert found.factor > by_clock.factor
    assert "--speed" in found.doubt


def test_speeds_that_were_measured_come_before_clocks() -> None:
    here = machine(cpu_model="A @ 3.00GHz", core_speed=cores_at(20000))
    found = core_speed(here, elsewhere(core_speed=cores_at(10000), base_ghz=3.0))
    assert found.value == pytest.approx(0.5**0.85)
    assert "by the speeds measured on both (10,000 and 20,000" in found.doubt
    assert core_speed(here, elsewhere(core_speed=cores_at(10000)), given=2.0).value == 2.0


def test_speeds_of_two_versions_of_python_do_not_compare() -> None:
    here = machine(cpu_model="A @ 3.00GHz", core_speed=cores_at(20000))
    other = cores_at(10000, unit=CoreSpeeds.unit_of("3.99.1"))
    found = core_speed(here, elsewhere(core_speed=other, base_ghz=1.5))
    assert "by clock rates alone" in found.doubt
    assert found.value == 0.5


def test_the_farther_speeds_lie_apart_and_scatter_the_less_is_sure() -> None:
    here = machine(core_speed=cores_at(20000))
    far = core_speed(here, elsewhere(core_speed=cores_at(10000))).factor
    scattered = core_speed(here, elsewhere(core_speed=cores_at(20000, range_=1.8))).factor
    near = core_speed(here, elsewhere(core_speed=cores_at(20000))).factor
    alike = elsewhere(cpu_model=here.cpu_model, core_speed=cores_at(20000))
    assert far > near
    assert scattered > near
    assert near > core_speed(here, alike).factor == 1.0


def test_the_usual_speed_is_that_of_trials_that_keep_few_cores_busy() -> None:
    alone = (seen(0, 20000), seen(1, 22000), seen(1, 18000), seen(0, None), seen(0, -1.0))
    many = [seen(8, 9000, busy=8.0)] * 9
    found = usual_speed(run_of(*many, *alone))
    assert found is not None
    assert (found.median, found.low, found.high) == pytest.approx((20000, 18000, 22000))
    assert found.unit == _UNIT
    crowded = usual_speed(run_of(*many))
    assert crowded is not None
    assert crowded.median == pytest.approx(9000)
    assert usual_speed(run_of(seen(0, None))) is None


def test_the_speeds_that_were_seen_set_the_interval() -> None:
    steady = [seen(1, 20000)] * 3 + [seen(8, 10000, busy=8.0)] * 3
    assert speed_error(run_of(*steady).trials) == pytest.approx(0.0)
    changing = [seen(1, 20000), seen(1, 10000)] * 4
    assert (speed_error(run_of(*changing).trials) or 0) > 2 * SPEED_ERROR
    assert Situation.of(run_of(*changing)).conditions.speed_error > 2 * SPEED_ERROR
    assert speed_error(run_of(seen(1, 20000), seen(1, 10000)).trials) is None


@given(st.lists(st.floats(1e-60, 1e60), min_size=1, max_size=6))
def test_whatever_speeds_a_file_holds_errors_stay_finite(speeds: list[float]) -> None:
    run = run_of(*(seen(0, speed) for speed in speeds), calibrating=1)
    assert math.isfinite(Situation.of(run).conditions.speed_error)


def test_unless_asked_otherwise_it_is_as_it_was() -> None:
    run = calibrated(settings={"step_s": 0.02})
    place = asked(run)
    expected = Conditions(cores=8.0, step_s=0.02, epoch_batches=1000, barrier_nodes=1)
    assert place.conditions == expected
    assert place.as_measured
    assert not place.extrapolated


@pytest.mark.parametrize(
    "question",
    [
        {"cores": 4.0},
        {"ranks": 2},
        {"step_s": 0.03},
        {"step_s": 0.0},
        {"storage_bytes_per_s": 1e9},
        {"speed": 0.5},
        {"neighbours": 500.0},
        {"machine": elsewhere()},
    ],
)
def test_other_conditions_were_not_measured(question: dict[str, Any]) -> None:
    run = calibrated(settings={"step_s": 0.02})
    assert not asked(run, **question).as_measured


def test_what_was_measured_beside_the_same_neighbours_stands() -> None:
    run = calibrated(trials=[trial(config(2), usage=Usage(other_cpu_cores=3.0))])
    assert asked(run, neighbours=3.5).as_measured
    assert not asked(run, neighbours=0.0).as_measured
    assert asked(run).as_measured


def test_more_ranks_beside_a_crowd_lack_what_one_lacked() -> None:
    """Two cores less three threads are no cores, of which half would be more than all of them."""
    crowd = Usage(other_cpu_cores=1.5, other_runnable=3.0, run_queue_wait_fraction=0.7)
    slower = [trial(config(2), 1056.0, repetition=n, usage=crowd) for n in range(3)]
    known = calibration(cpu=0.002, io=0.02, receive=0.0002)
    run = calibrated(known, slower, machine=machine(2), settings={"step_s": 0.02})
    one, two = asked(run), asked(run, ranks=2)
    assert one.neighbours == pytest.approx(3.0)
    found = speeds_of(two, predictions(two, {config(2)})).rate(config(2).key)
    assert found.value < 1.1 * speeds_of(one).rate(config(2).key).value


def test_beside_few_others_it_is_no_faster_than_beside_none() -> None:
    """Where it got twice what sessions that want six of eight cores should have left it."""
    crowd = Usage(other_cpu_cores=6.0, fair_cpu_cores=1.5)
    seen = [trial(config(8), 4800.0, repetition=n, usage=crowd) for n in range(3)]
    run = calibrated(calibration(cpu=0.02), seen)
    few, none = (asked(run, neighbours=each) for each in (1.0, 0.0))
    rates = [speeds_of(s, predictions(s, {config(8)})).rate(config(8).key) for s in (few, none)]
    assert rates[0].value <= rates[1].value


def test_a_share_of_the_cores_is_that_beside_the_others_who_were_there() -> None:
    crowd = Usage(other_cpu_cores=3.0, fair_cpu_cores=1.25)
    run = calibrated(trials=[trial(config(2), usage=crowd)])
    assert asked(run).conditions.fair_cores == 1.25
    for other in ({"cores": 16.0}, {"neighbours": 1.0}, {"machine": elsewhere()}):
        assert asked(run, **other).conditions.fair_cores is None


def test_nobody_is_assumed_on_other_cores_and_that_is_said() -> None:
    run = calibrated(trials=[trial(config(2), usage=Usage(other_cpu_cores=3.0))])
    there = asked(run, cores=1.0)
    assert there.neighbours == 0.0
    assert any("no other process is assumed" in note for note in there.notes)
    assert not any("no other process" in note for note in asked(run).notes)
    for little in (None, 0.3):  # of 8 cores
        some = trial(config(2), usage=Usage(other_cpu_cores=little))
        quiet = asked(calibrated(trials=[some]), cores=1.0)
        assert not any("no other process" in note for note in quiet.notes)


def test_starts_beside_others_are_said_to_be_those_elsewhere() -> None:
    """How much of one is waiting for a core nobody knows, so they are carried as they are."""
    run = calibrated(trials=[trial(config(2), usage=Usage(other_cpu_cores=3.0))])
    said = "starting workers takes as long as while others kept 3.0 cores busy"
    there = [
        asked(run, neighbours=0.0),
        asked(run, neighbours=7.0),
        asked(run, machine=elsewhere()),
    ]
    alike = [asked(run, step_s=0.01), asked(run, neighbours=3.0, step_s=0.01)]
    assert [said in each.notes for each in (*there, *alike)] == [True] * 3 + [False] * 2


def test_what_was_measured_without_a_step_is_not_said_to_lack_one() -> None:
    on_more, with_step = (
        recommend(calibrated(), wanted).confidence_reason
        for wanted in (Constraints(cores=16.0), Constraints(step_s=0.02))
    )
    assert "without a step" not in on_more
    assert "with a step of 20 ms" in with_step


def test_what_no_machine_has_is_refused() -> None:
    with pytest.raises(UsageError, match="cores must be above 0"):
        _ = asked(calibrated(), cores=0.0).conditions


def test_a_step_that_is_a_function_is_taken_as_it_was_measured() -> None:
    step = Stage(name="step", mean_s=0.03, median_s=0.03, p95_s=0.03, max_s=0.03, cpu_s=0.01)
    shown = Explanation(
        trial_id="t0001", config=config(2), window_s=1.0, batches=30, stages=(step,)
    )
    run = calibrated(settings={"step_callable": "steps:run"})
    assert measured_step(run) == (0.0, 0.0)
    run = dataclasses.replace(run, explanations=(shown,))
    assert sum(measured_step(run)) == pytest.approx(0.03)
    assert measured_step(run)[1] == pytest.approx(0.01)


def test_neighbours_that_were_seen_are_reported() -> None:
    busy = trial(config(2), usage=Usage(other_cpu_cores=3.0))
    run = calibrated(trials=[busy])
    assert neighbours_seen(run) == 3.0
    assert asked(run).neighbours == 3.0  # as it was, unless asked for otherwise
    assert asked(run, neighbours=1.0).neighbours == 1.0
    assert asked(run, machine=elsewhere()).neighbours == 0.0
    assert neighbours_seen(calibrated()) is None


def test_before_plain_trials_the_traced_ones_show_the_neighbours() -> None:
    """A sweep predicts from these, for the machine as busy as it was."""
    traced = trial(config(2), purpose="explain", usage=Usage(other_cpu_cores=3.0))
    assert asked(calibrated(trials=[traced])).neighbours == 3.0


@pytest.mark.parametrize(
    ("runnable", "threads"), [(None, 3.0), (2.0, 3.0), (9.0, 9.0), (40.0, 15.0)]
)
def test_neighbours_that_wait_for_cores_are_more_than_they_keep_busy(
    runnable: float | None, threads: float
) -> None:
    """They wait as often as the loader's threads do, and are no more than were seen to."""
    crowd = Usage(other_cpu_cores=3.0, other_runnable=runnable, run_queue_wait_fraction=0.8)
    run = calibrated(trials=[trial(config(2), usage=crowd)])
    assert asked(run).neighbours == pytest.approx(threads)
    assert neighbours_seen(run) == 3.0


def test_neighbours_on_cores_that_a_quota_forbids_take_nothing() -> None:
    """A container with eight of 64 cores, on a host that others keep half busy, and busy."""
    host = machine(8.0, affinity_cpus=64, logical_cpus=64)
    for busy, left in ((30.0, 0.0), (62.0, 6.0)):
        usage = Usage(other_cpu_cores=busy, other_runnable=90.0, run_queue_wait_fraction=0.5)
        run = calibrated(trials=[trial(config(2), usage=usage)], machine=host)
        assert asked(run).neighbours == left
        assert asked(run, neighbours=left).as_measured


def test_hyper_threads_are_distinguished() -> None:
    there = elsewhere(96, physical_cores=48)
    notes = asked(calibrated(), machine=there, neighbours=0.0).notes
    assert any("hyper-threads of 48 cores" in note for note in notes)


def test_a_storage_limit_means_nothing_where_batches_came_from_the_cache() -> None:
    cached = calibration(cpu=0.001, read_bytes_per_batch=0.0)
    notes = asked(calibrated(cached), storage_bytes_per_s=1e9).notes
    assert any("--cold-cache" in note for note in notes)
    assert not asked(calibrated(), storage_bytes_per_s=1e9).notes


def test_settings_that_are_not_asked_for_stay_as_they_are() -> None:
    own = config(3, in_order=False, pin_memory=True, start_method="spawn")
    run = calibrated(calibration(cpu=0.001, batch_size=16), target=target(own_config=own))
    base = base_config(run)
    assert not base.in_order
    assert not base.pin_memory  # there is no accelerator
    assert base.batch_size == 16
    run = calibrated(target=target(own_config=own), accelerator="cuda")
    assert base_config(run).pin_memory
    # What is recommended without workers says of these nothing but that nobody pins.
    advice = dataclasses.replace(recommend(calibrated(), Constraints(cores=4.0)), config=config(0))
    base = base_config(dataclasses.replace(run, recommendation=advice))
    assert (base.in_order, base.pin_memory) == (False, False)


def test_workers_that_would_lose_kept_samples_are_asked_for_as_persisting() -> None:
    """No flag of predict says so, and sweep measures no others: 113 samples/s for 8, not 226."""
    about = {"first_sample_s": 0.01, "kept_sample_s": 1e-9, "sampler": "RandomSampler"}
    keeping = calibrated(target=target(**about))
    found = wanted_configs(asked(keeping), {"num_workers": (0, 2)})
    assert {(each.num_workers, each.persistent_workers) for each in found} == {
        (0, False),
        (2, True),
    }
    unsafe = calibrated(target=target(notes=(EPOCH_SIGN,), **about))
    assert not base_config(unsafe).persistent_workers
    assert not base_config(calibrated()).persistent_workers


def test_configurations_are_canonical_and_distinct() -> None:
    made = configs_of(Config(num_workers=1), {"num_workers": (0, 2), "prefetch_factor": (2, 4)})
    assert made == (config(0), config(2, 2), config(2, 4))


def test_too_many_configurations_are_refused() -> None:
    axes = {"num_workers": range(1000), "prefetch_factor": range(1, 100)}
    with pytest.raises(UsageError, match="99,000 combinations"):
        configs_of(Config(), axes)


@given(
    cores=st.floats(0.1, 1000),
    ranks=st.integers(1, 64),
    cpu=st.floats(1e-6, 1),
    io=st.floats(0, 1),
    most=st.none() | st.integers(0, 300),
)
def test_workers_worth_a_look(
    cores: float, ranks: int, cpu: float, io: float, most: int | None
) -> None:
    where = Conditions(cores=cores, ranks=ranks)
    found = auto_workers(calibration(cpu=cpu, io=io), config(1), where, most)
    assert found == tuple(sorted(set(found)))
    assert found[0] == 0
    assert len(found) < 40
    assert most is None or found[-1] <= most
    assert found[-1] <= 128


def test_loaders_that_wait_get_more_workers_than_cores() -> None:
    where = Conditions(cores=2.0)
    waiting = auto_workers(calibration(cpu=0.001, io=0.1), config(1), where)
    computing = auto_workers(calibration(cpu=0.1), config(1), where)
    assert max(computing) <= 8
    assert max(waiting) > 100


def test_bursts_get_deeper_queues() -> None:
    assert max(auto_prefetch(calibration(cpu=0.1, cpu_cv=2.0))) == 8
    assert max(auto_prefetch(calibration(cpu=0.1))) == 4


def test_what_was_measured_is_predicted_too() -> None:
    odd = config(7, 5)
    run = calibrated(trials=[trial(odd)])
    assert odd in wanted_configs(asked(run), {})
    assert odd not in wanted_configs(asked(run, ranks=2), {})
    assert odd not in wanted_configs(asked(run), {"num_workers": (1, 2)})
    assert {each.num_workers for each in wanted_configs(asked(run), {"num_workers": (1, 2)})}


def test_only_what_the_target_can_be_set_to_is_predicted() -> None:
    run = calibrated()
    fixed = {"prefetch_factor": "make() takes no prefetch_factor"}
    target = dataclasses.replace(run.header.target, fixed=fixed)
    run = dataclasses.replace(run, header=dataclasses.replace(run.header, target=target))
    assert {each.prefetch_factor for each in wanted_configs(asked(run), {})} <= {None, 2}
    with pytest.raises(UsageError, match="prefetch_factor=4, 8 can't be predicted: make"):
        wanted_configs(asked(run), {"num_workers": (2,), "prefetch_factor": (4, 8)})
