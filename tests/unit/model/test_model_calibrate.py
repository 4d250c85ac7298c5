"""Fitting: what instrumented trials are merged into, and what is said of bad ones."""

from __future__ import annotations

import dataclasses
import math
import random
import statistics
from collections.abc import Mapping, Sequence
from typing import Any

import builders
import pytest
from model_calibrations import constant

from dlprof.model.bounds import at_lock_s, describe
from dlprof.model.calibrate import fit
from dlprof.model.predict import predict_all
from dlprof.model.work import Conditions, work_of
from dlprof.records import (
    BatchCosts,
    Calibration,
    Config,
    Estimate,
    Explanation,
    Prediction,
    RankFigures,
    Trial,
    Usage,
    WorkerCosts,
)
from dlprof.records.codec import from_json
from dlprof.records.stages import Stage

MS = 0.001


def explained(
    workers: int,
    *,
    cpu: Sequence[float] = (0.01,) * 50,
    io: Sequence[float] = (),
    receive_io: Sequence[float] = (),
    busy: float | None = None,
    name: str = "",
    strategy: str | None = None,
    **rest: Any,
) -> Explanation:
    """An instrumented trial's explanation."""
    config = Config(num_workers=workers, sharing_strategy=strategy).canonical()
    columns: dict[str, Any] = {"cpu_s": tuple(cpu), "io_s": tuple(io), "run_queue_s": ()}
    return Explanation(
        trial_id=name or f"t{workers}",
        config=config,
        window_s=1.0 if busy is None else sum(cpu) / workers / busy,
        batches=len(cpu),
        costs=BatchCosts(**(columns | {"receive_io_s": tuple(receive_io)} | rest)),
        workers=()
        if busy is None
        else tuple(
            WorkerCosts(worker=w, batches=len(cpu) // workers, busy_fraction=busy)
            for w in range(workers)
        ),
    )


def test_trials_are_merged_by_whether_they_have_workers() -> None:
    made = fit([explained(w, cpu=(w + 1.0,) * 20) for w in (0, 1, 2)], [])
    assert made.in_main is not None
    assert made.in_workers is not None
    assert made.in_main.cpu_s == (1.0,) * 20
    assert made.in_workers.cpu_s == (2.0,) * 20 + (3.0,) * 20
    assert made.trials == ("t0", "t1", "t2")


def stolen(cores: float | None) -> Trial:
    """A trial whose two cores a hypervisor took some of."""
    usage = Usage(own_cpu_cores=1.2, other_cpu_cores=0.3 + (cores or 0.0), stolen_cpu_cores=cores)
    return builders.trial(Config(num_workers=1).canonical(), id="t1", usage=usage)


def test_stolen_time_that_the_kernel_counts_as_cpu_is_no_waiting_either_way() -> None:
    usage = Usage(own_cpu_cores=1.9, other_cpu_cores=0.0, stolen_cpu_cores=0.4)
    trial = builders.trial(Config(num_workers=1).canonical(), trial_id="t1", usage=usage)
    made = fit([explained(1, io=(4 * MS,) * 50)], [trial])
    assert made.in_workers is not None
    assert made.in_workers.io_s == (4 * MS,) * 50


@pytest.mark.parametrize(("cores", "left"), [(None, 4), (0.0, 4), (0.3, 2), (1.5, 0)])
def test_what_a_hypervisor_took_is_no_waiting(cores: float | None, left: float) -> None:
    """A fifth of a second is lost for each second of computing, where 0.3 of 1.5 cores are."""
    io = [3 * MS, 5 * MS] * 25
    made = fit([explained(1, cpu=[10 * MS] * 50, io=io, receive_io=io)], [stolen(cores)])
    assert made.in_workers is not None
    assert made.in_workers.cpu_s == (10 * MS,) * 50
    assert made.in_workers.io_s == pytest.approx([0.75 * left * MS, 1.25 * left * MS] * 25)
    assert made.in_workers.receive_io_s == tuple(io)  # main computed nothing


@pytest.mark.parametrize("hosts", ["aaaa", "aabb"])
def test_what_was_taken_from_all_ranks_of_a_machine_is_no_loss_of_one(hosts: str) -> None:
    """Each rank's record has its share of the cores, beside what was taken from all of them."""
    whole, here = stolen(0.3), hosts.count("a")
    shares: dict[str, Any] = {"own_cpu_cores": 1.2 / here, "available_cpu_cores": 1.5 / here}
    ranks = tuple(RankFigures(rank=n, host=host) for n, host in enumerate(hosts))
    usage = dataclasses.replace(whole.usage, **shares)
    shared = dataclasses.replace(whole, ranks=ranks, usage=usage)
    wakes = Stage(
        name="rebuild",
        mean_s=9 * MS,
        median_s=9 * MS,
        p95_s=9 * MS,
        max_s=9 * MS,
        cpu_s=2 * MS,
        run_queue_s=3 * MS,
    )
    seen = explained(1, io=(4 * MS,) * 50, receive_io=(1 * MS,) * 50)
    one, several = (
        fit([dataclasses.replace(seen, stages=(wakes,))], [each]) for each in (whole, shared)
    )
    assert several.in_workers == one.in_workers
    assert several.available_cores == pytest.approx(1.5)


def test_a_trial_that_did_not_pin_borrows_the_cost_of_pinning() -> None:
    some = [explained(1, pin_s=(2 * MS,) * 50), explained(2)]
    made = fit(some, [])
    assert made.in_workers is not None
    assert made.in_workers.pin_s == (2 * MS,) * 100


def test_waiting_for_a_core_is_no_cost_of_a_batch() -> None:
    quiet = fit([explained(0)], [])
    busy = fit([explained(0, run_queue_s=(0.004,) * 50)], [])
    assert busy.run_queue_fraction == pytest.approx(4 / 14)
    where = Conditions(cores=2.0)
    rates = [predict_all(each, [Config()], where)[0].batches_per_s.value for each in (quiet, busy)]
    assert rates[0] == pytest.approx(rates[1])


@pytest.mark.parametrize("main_ms", [0, 2, 10, 200])
def test_main_that_fetches_at_another_price_is_no_spread(main_ms: float) -> None:
    trials = [explained(0, cpu=(main_ms * MS,) * 60)]
    trials += [explained(w, cpu=(20 * MS,) * 60) for w in (1, 2)]
    made = fit(trials, [])
    assert made.standard_error == pytest.approx(0, abs=1e-9)
    assert made.cpu_cv == pytest.approx(0, abs=1e-9)
    assert made.doubts == ()


def test_each_kind_of_loading_is_as_sure_as_its_own_batches() -> None:
    """Not as those of all trials: three that vary alike would claim a root of three too much."""
    rng = random.Random(3)
    trials = [explained(w, cpu=[rng.uniform(5, 15) * MS for _ in range(40)]) for w in (0, 1, 2)]
    made = fit(trials, [])
    alone, fed = fit(trials[:1], []), fit(trials[1:], [])
    assert made.main_standard_error == alone.standard_error == alone.main_standard_error
    assert made.standard_error == fed.standard_error
    assert fed.main_standard_error is None
    assert made.main_standard_error is not None
    assert made.standard_error is not None
    assert 1.2 < made.main_standard_error / made.standard_error < 1.7
    short = fit([explained(0, cpu=[10 * MS]), *trials[1:]], [])  # one batch shows no spread
    assert short.main_standard_error is not None
    assert 0.2 < short.main_standard_error < 0.4


def test_loading_without_workers_has_the_interval_of_its_own_error() -> None:
    known = dataclasses.replace(constant(cpu=0.01), standard_error=0.01, main_standard_error=0.2)
    where = Conditions(cores=2.0, speed_error=0.0)
    rates = [
        each.batches_per_s for each in predict_all(known, [Config(), builders.config(1)], where)
    ]
    alone, fed = (each.log_sd or 0.0 for each in rates)
    assert alone > 2 * fed
    earlier = dataclasses.replace(known, main_standard_error=None)
    (same,) = predict_all(earlier, [Config()], where)
    assert (same.batches_per_s.log_sd or 0.0) < alone / 2


def test_doubts_of_a_calibration_add_as_errors_do() -> None:
    def half(count: int) -> float:
        known = dataclasses.replace(constant(cpu=0.01), doubts=("unsure",) * count)
        (found,) = predict_all(known, [Config()], Conditions(cores=2.0, speed_error=0.0))
        return found.batches_per_s.log_sd or 0.0

    none, one, four = map(half, (0, 1, 4))
    assert four**2 - none**2 == pytest.approx(4 * (one**2 - none**2), rel=0.01)


def test_a_calibration_of_an_earlier_version_loads() -> None:
    earlier = {"step_s": 0.01, "step_cores": 1.0, "core_speed": 1.0}
    known = from_json(Calibration, earlier | {"standard_error": 0.1})
    assert known.standard_error == 0.1


def test_batches_with_impossible_figures_are_dropped_with_a_doubt() -> None:
    cpu = [0.01] * 50
    cpu[3], cpu[7], cpu[9] = math.nan, -1.0, math.inf
    made = fit([explained(0, cpu=cpu)], [])
    assert made.in_main is not None
    assert made.in_main.cpu_s == (0.01,) * 47
    assert any("3 of 50 batches" in doubt for doubt in made.doubts)


def test_a_clock_that_is_a_little_off_is_no_fault() -> None:
    made = fit([explained(0, io=(-1e-5,) * 50)], [])
    assert made.in_main is not None
    assert set(made.in_main.io_s) == {0.0}
    assert made.doubts == ()


def test_nothing_at_all_gives_a_calibration_that_can_not_be_used() -> None:
    made = fit([], [])
    assert not made.is_usable
    assert made.doubts
    assert not fit([explained(0, cpu=(math.nan,) * 50)], []).is_usable


def test_too_few_batches_are_a_doubt() -> None:
    made = fit([explained(0, cpu=(0.01,) * 4)], [])
    assert any("only 4 batches" in doubt for doubt in made.doubts)


def test_a_mean_that_is_hardly_known_is_a_doubt() -> None:
    rng = random.Random(1)
    cpu = [0.001 if rng.random() < 0.95 else 0.1 for _ in range(100)]
    made = fit([explained(0, cpu=cpu)], [])
    assert made.standard_error is not None
    assert made.standard_error > 0.1
    assert any("measure for longer" in doubt for doubt in made.doubts)


def test_workers_in_each_others_way_are_a_doubt_and_the_luck_of_slow_batches_is_none() -> None:
    def doubts(one: Sequence[float], two: Sequence[float]) -> tuple[str, ...]:
        return fit([explained(1, cpu=one), explained(2, cpu=two)], []).doubts

    (shown,) = doubts((0.01,) * 50, (0.014,) * 50)
    assert shown.startswith("a batch costs 1.4 times the CPU with num_workers=2 as with 1")
    few, many = ([0.08 if n % 100 < slow else 0.01 for n in range(100)] for slow in (2, 7))
    assert statistics.fmean(many) > 1.3 * statistics.fmean(few)
    assert not any("times the CPU" in each for each in doubts(few, many))


def test_a_busy_machine_is_a_doubt() -> None:
    made = fit([explained(0, run_queue_s=(0.03,) * 50)], [])
    assert any("too busy" in doubt for doubt in made.doubts)


def test_batches_that_grow_costlier_with_workers_are_a_doubt() -> None:
    made = fit([explained(1), explained(2, cpu=(0.02,) * 50)], [])
    assert any("in each other's way" in doubt for doubt in made.doubts)
    assert fit([explained(1), explained(2)], []).doubts == ()


def drifting(*costs: tuple[int, float]) -> Calibration:
    """Fitted to trials of (workers, CPU of a batch)."""
    return fit(
        [explained(w, cpu=(cpu,) * 50, name=f"t{place}") for place, (w, cpu) in enumerate(costs)],
        [],
    )


def test_trials_that_should_cost_the_same_show_how_the_machine_drifts() -> None:
    assert drifting((0, 0.01), (1, 0.02)).drift is None  # workers may well cost more than main
    assert drifting((0, 0.01), (1, 0.02), (2, 0.02)).drift == 0.0
    apart = drifting((0, 0.01), (0, 0.012), (1, 0.02), (2, 0.02)).drift
    assert apart == pytest.approx(math.log(1.2) / 2)  # a variance of log(1.2)^2 / 2, and one of 0


def test_what_luck_explains_is_no_drift() -> None:
    rng = random.Random(3)
    tails = [[0.1 if rng.random() < 0.05 else 0.001 for _ in range(200)] for _ in range(3)]
    some = [explained(1, cpu=costs, name=f"t{place}") for place, costs in enumerate(tails)]
    scatter = statistics.stdev(math.log(statistics.fmean(costs)) for costs in tails)
    drift = fit(some, []).drift
    assert drift is not None
    assert drift < scatter / 2


def locked(fraction: float, *, cpu_s: float, io_s: float, workers: int = 2) -> Calibration:
    """Fitted to trials whose batches are made under one lock for a part of their time."""
    own_s = cpu_s + io_s
    held_s = fraction * own_s
    wait_s = at_lock_s(held_s, own_s - held_s, workers) - held_s
    some, trials = [], []
    for count, waited_s in ((1, 0.0), (workers, wait_s)):
        config = Config(num_workers=count).canonical()
        some.append(explained(count, cpu=(cpu_s,) * 30, io=(io_s + waited_s,) * 30))
        seen = {"running": cpu_s, "sleep": io_s, "lock": waited_s}
        whole_s = sum(seen.values())
        looks = {what: each_s / whole_s for what, each_s in seen.items() if each_s}
        rate = Estimate(value=count / whole_s)
        usage = Usage(worker_waits=looks)
        trials.append(builders.trial(config, id=f"t{count}", batches_per_s=rate, usage=usage))
    return fit(some, trials)


@pytest.mark.parametrize(("cpu_s", "io_s"), [(0.1, 0.0), (0.001, 0.099), (0.05, 0.05)])
def test_a_lock_bounds_all_workers_together_whatever_they_do_while_they_have_it(
    cpu_s: float, io_s: float
) -> None:
    known = locked(0.7, cpu_s=cpu_s, io_s=io_s)

    assert known.lock_s == pytest.approx(0.07, rel=0.02)
    assert known.queueing_s == 0.0
    one, two, sixteen = rates(known, 1, 2, 16)
    assert one.batches_per_s.value == pytest.approx(10, rel=0.02)
    assert two.batches_per_s.value == pytest.approx(2 / 0.149, rel=0.02)  # 0.7 of 0.07 more
    assert 0.95 / 0.07 < sixteen.batches_per_s.value < 1 / 0.07
    assert sixteen.bound == "lock"
    (beside,) = rates(known, 2, ranks=4)  # each of which has a lock of its own
    assert beside.batches_per_s.value == pytest.approx(2 / 0.149, rel=0.02)
    slow = Conditions(cores=64.0, speed=0.5)
    (there,) = predict_all(known, [Config(num_workers=16).canonical()], slow)
    more = (2 * cpu_s + io_s) / 0.1  # computing takes twice as long, under the lock as elsewhere
    assert there.batches_per_s.value == pytest.approx(sixteen.batches_per_s.value / more, rel=0.02)


def test_a_lock_that_most_of_making_a_batch_is_outside_of_is_found_by_more_workers() -> None:
    assert locked(0.2, cpu_s=0.1, io_s=0.0).lock_s == 0.0  # looks at two say too little of it
    assert locked(0.2, cpu_s=0.1, io_s=0.0, workers=8).lock_s == pytest.approx(0.02, rel=0.02)


def test_a_lock_that_is_waited_for_on_a_crowded_machine_is_not_held_for_longer() -> None:
    """As long again as they compute, workers wait for a core: half of that beside the lock."""
    quiet = locked(0.5, cpu_s=0.2, io_s=0.0)
    some, trials = [], []
    for count, waited_s in ((1, 0.0), (2, quiet.lock_s**2 / 0.2)):
        computed, waited = (0.1,) * 30, (waited_s,) * 30
        some.append(explained(count, cpu=computed, io=waited, run_queue_s=computed))
        rate = Estimate(value=count / (0.2 + waited_s))
        usage = Usage(worker_waits={"running": 0.8, "lock": 0.2} if count > 1 else {})
        config = Config(num_workers=count).canonical()
        trials.append(builders.trial(config, id=f"t{count}", batches_per_s=rate, usage=usage))
    assert fit(some, trials).lock_s == pytest.approx(quiet.lock_s / 2, rel=0.02)


def test_a_queue_between_processes_gives_no_more_to_more_workers() -> None:
    """50 batches a second come: one worker waits for the next, the others for the lock of that."""
    some, trials = [], []
    for count in (1, 4):
        config = Config(num_workers=count).canonical()
        some.append(explained(count, cpu=(0.001,) * 30, io=(count / 50 - 0.001,) * 30))
        looks = {"running": 0.05 / count, "queue": 0.95 / count}
        usage = Usage(worker_waits=looks | ({"lock": 0.75} if count > 1 else {}))
        rate = Estimate(value=50.0)
        trials.append(builders.trial(config, id=f"t{count}", batches_per_s=rate, usage=usage))
    known = fit(some, trials)
    assert known.lock_s == pytest.approx(1 / 50, rel=0.02)
    for each in rates(known, 1, 4, 16):
        assert each.batches_per_s.value == pytest.approx(50, rel=0.03)


def test_waiting_that_changes_with_workers_is_no_drift() -> None:
    made = fit([explained(w, io=(w * 0.01,) * 50) for w in (1, 2, 4)], [])
    assert made.drift == 0.0


def queued(waits: Mapping[int, float], *, cpu_s: float = 0.001) -> Calibration:
    """Fitted to trials in which a batch of so many workers waits for so long, more or less."""
    some, trials = [], []
    for workers, io_s in waits.items():
        io = [io_s * (0.9, 1.0, 1.1)[place % 3] for place in range(30)]
        some.append(explained(workers, cpu=(cpu_s,) * 30, io=io))
        rate = Estimate(value=workers / (cpu_s + io_s))
        config = Config(num_workers=workers).canonical()
        trials.append(builders.trial(config, id=f"t{workers}", batches_per_s=rate))
    return fit(some, trials)


def rates(known: Calibration, *workers: int, ranks: int = 1) -> list[Prediction]:
    """Of each of so many ranks, on cores that are never short."""
    where = Conditions(cores=64.0, ranks=ranks)
    return predict_all(known, [Config(num_workers=w).canonical() for w in workers], where)


def test_storage_that_gives_no_more_is_the_limit_of_any_number_of_workers() -> None:
    """Ten batches a second: two workers wait twice as long as one does."""
    known = queued({1: 0.1, 2: 0.2})

    one, two, eight = rates(known, 1, 2, 8)

    assert 1 / known.queueing_s == pytest.approx(10, rel=0.05)
    assert [each.batches_per_s.value for each in (one, two, eight)] == pytest.approx(
        [9.9, 10, 10], rel=0.05
    )
    assert eight.bound == "storage"
    assert "delivers no more" in describe("storage", "")
    (shared,) = rates(known, 2, ranks=4)
    assert shared.batches_per_s.value == pytest.approx(10 / 4, rel=0.05)


def test_storage_that_gives_a_little_more_is_predicted_as_it_was_measured() -> None:
    """Waits that rise by 60% for the second worker, and by as much for each one after it."""
    known = queued({1: 0.1, 2: 0.16})
    assert [each.batches_per_s.value for each in rates(known, 1, 2, 4)] == pytest.approx(
        [1 / 0.101, 2 / 0.161, 4 / 0.281], rel=0.02
    )


def test_without_workers_nothing_is_waited_for_beside() -> None:
    """A lock that each batch holds for 100 ms: workers wait for each other, and none for itself."""
    known = queued({1: 0.1, 2: 0.2}, cpu_s=0.005)
    where = Conditions(cores=64.0, step_s=0.2)
    (alone,) = predict_all(known, [Config()], where)
    assert alone.batches_per_s.value == pytest.approx(1 / 0.305, rel=0.02)


def test_more_workers_are_never_predicted_slower_for_waits_that_rose_by_chance_by_more() -> None:
    known = queued({1: 0.1, 2: 0.25})
    found = [each.batches_per_s.value for each in rates(known, 1, 2, 4, 8)]
    assert found == pytest.approx([2 / 0.25] * 4, rel=0.03)


def test_a_step_that_asks_for_little_waits_for_little() -> None:
    """Where the step is the limit few batches are waited for at once, and none queues."""
    known = queued({1: 0.1, 2: 0.2})
    where = Conditions(cores=64.0, step_s=0.2)
    (fed,) = predict_all(known, [Config(num_workers=4).canonical()], where)
    assert fed.batches_per_s.value == pytest.approx(5, rel=0.02)
    assert fed.bound == "step"


@pytest.mark.parametrize(
    ("waits", "cpu_s"),
    [
        ({1: 0.1, 2: 0.13}, 0.001),  # as trials differ by chance, too
        ({1: 0.1}, 0.001),
        ({1: 0.0001, 2: 0.0003}, 0.01),  # of what computes waits grow, too
    ],
)
def test_waits_that_do_not_surely_rise_are_the_same_for_any_number(
    waits: Mapping[int, float], cpu_s: float
) -> None:
    assert queued(waits, cpu_s=cpu_s).queueing_s == 0.0


def test_a_machine_that_drifts_widens_the_interval_where_loading_is_the_limit() -> None:
    steady, drifts = drifting((1, 0.01), (2, 0.01)), drifting((1, 0.01), (2, 0.0121))
    assert width(drifts) > width(steady) + 0.3
    assert width(drifts, step_s=1.0) == pytest.approx(width(steady, step_s=1.0), abs=0.02)


def test_speeds_that_may_change_widen_the_interval_of_loaders_that_compute() -> None:
    computes = drifting((1, 0.01), (2, 0.01))
    waits = fit([explained(w, cpu=(0.0,) * 50, io=(0.01,) * 50) for w in (1, 2)], [])
    assert width(computes, speed_error=0.1) > width(computes) + 0.2
    assert width(waits, speed_error=0.1) == pytest.approx(width(waits), abs=0.02)
    drifts = drifting((1, 0.01), (2, 0.0121))  # by more than that, so that it's part of it
    assert width(drifts, speed_error=0.1) == width(drifts)


def width(known: Calibration, *, step_s: float = 0.0, speed_error: float = 0.0) -> float:
    """Of the interval of two workers' rate, as a logarithm."""
    where = Conditions(cores=2.0, step_s=step_s, speed_error=speed_error)
    found = predict_all(known, [Config(num_workers=2).canonical()], where)[0].batches_per_s
    assert found.low is not None
    assert found.high is not None
    return math.log(found.high / found.low)


def test_doubts_widen_the_interval() -> None:
    where, config = Conditions(cores=2.0), Config()

    def width(trial: Explanation) -> float:
        found = predict_all(fit([trial], []), [config], where)[0].batches_per_s
        assert found.low is not None
        assert found.high is not None
        return found.high / found.low

    assert width(explained(0, cpu=(0.01,) * 4)) > 1.3 * width(explained(0))


def test_the_handshake_is_distinguished_from_receiving_at_rest() -> None:
    busy = explained(1, receive_io=(4 * MS,) * 50, busy=1.0, name="busy")
    rested = explained(2, receive_io=(2.2 * MS,) * 50, busy=0.4, name="rested")
    made = fit([busy, rested], [])
    assert made.receive_busy_s["default"] == pytest.approx(3 * MS)
    assert made.in_workers is not None
    assert made.in_workers.receive_io_s == pytest.approx((1 * MS,) * 100)


def test_trials_that_were_all_as_busy_show_no_handshake() -> None:
    some = [explained(w, receive_io=(w * MS,) * 50, busy=0.9) for w in (1, 2)]
    made = fit(some, [])
    assert made.receive_busy_s == {}
    assert made.in_workers is not None
    assert made.in_workers.receive_io_s == (1 * MS,) * 50 + (2 * MS,) * 50


def test_batches_taken_from_resting_workers_show_the_handshake() -> None:
    busy = explained(1, receive_io=(4 * MS,) * 50, busy=1.0)
    made = fit([dataclasses.replace(busy, rested_receive_s=1 * MS)], [])
    assert made.receive_busy_s["default"] == pytest.approx(3 * MS)
    assert made.in_workers is not None
    assert made.in_workers.receive_io_s == pytest.approx((1 * MS,) * 50)


def test_how_far_handshakes_differ_by_chance_is_no_matter_of_resting_workers() -> None:
    quick, slow = (explained(w, receive_io=(4 * w * MS,) * 50, busy=1.0) for w in (1, 2))
    made = fit([dataclasses.replace(each, rested_receive_s=1 * MS) for each in (quick, slow)], [])
    assert made.receive_busy_s["default"] == pytest.approx(5 * MS)
    assert made.in_workers is not None
    assert made.in_workers.receive_io_s == pytest.approx((1 * MS,) * 100)


@pytest.mark.parametrize("asked", [None, "file_descriptor"])
@pytest.mark.parametrize("calibrated", [None, "file_descriptor"])
def test_the_handshake_is_reckoned_with_however_it_is_named(
    asked: str | None, calibrated: str | None
) -> None:
    """On Linux ``file_descriptor`` is torch's default: a rested cost is never taken alone."""
    busy = explained(1, receive_io=(4 * MS,) * 50, busy=1.0, strategy=calibrated)
    made = fit([dataclasses.replace(busy, rested_receive_s=1 * MS)], [])
    config = Config(num_workers=2, prefetch_factor=2, sharing_strategy=asked)
    assert work_of(made, config, Conditions(cores=2.0)).busy_s == pytest.approx(3 * MS)


def test_sharing_by_name_has_no_handshake_that_others_have() -> None:
    busy = explained(1, receive_io=(4 * MS,) * 50, busy=1.0)
    made = fit([dataclasses.replace(busy, rested_receive_s=1 * MS)], [])
    config = Config(num_workers=2, prefetch_factor=2, sharing_strategy="file_system")
    assert work_of(made, config, Conditions(cores=2.0)).busy_s == 0


@pytest.mark.parametrize(
    ("queued", "waits"), [((0.0,) * 50, 3 * MS), ((0.02,) * 50, 1 * MS)], ids=["idle", "crowded"]
)
def test_waiting_for_a_core_when_woken_belongs_to_receiving(
    queued: tuple[float, ...], waits: float
) -> None:
    waking = Stage(
        name="rebuild",
        mean_s=4 * MS,
        median_s=4 * MS,
        p95_s=4 * MS,
        max_s=4 * MS,
        cpu_s=1 * MS,
        run_queue_s=2 * MS,
    )
    plain = explained(1, receive_io=(1 * MS,) * 50, run_queue_s=queued)
    made = fit([dataclasses.replace(plain, stages=(waking,))], [])
    assert made.in_workers is not None
    assert made.in_workers.receive_io_s == pytest.approx((waits,) * 50)
    # Beside others who keep as many cores busy, half of it is theirs.
    usage = Usage(own_cpu_cores=1.0, other_cpu_cores=1.0)
    crowd = builders.trial(plain.config, id=plain.trial_id, usage=usage)
    made = fit([dataclasses.replace(plain, stages=(waking,))], [crowd])
    assert made.in_workers is not None
    assert made.in_workers.receive_io_s == pytest.approx(((waits + 1 * MS) / 2,) * 50)


def test_sharing_strategies_are_kept_apart() -> None:
    made = fit(
        [
            explained(2, receive_cpu_s=(3 * MS,) * 50),
            explained(2, receive_cpu_s=(1 * MS,) * 50, strategy="file_system", name="fs"),
        ],
        [],
    )
    assert made.receive["file_system"].receive_cpu_s == (1 * MS,) * 50
    where = Conditions(cores=64.0)
    configs = [
        Config(num_workers=32, sharing_strategy=each).canonical() for each in (None, "file_system")
    ]
    slow, fast = predict_all(made, configs, where)
    assert fast.batches_per_s.value > 2.5 * slow.batches_per_s.value


def test_memory_is_a_line_over_workers_without_the_queues() -> None:
    trials = [
        builders.trial(
            Config(num_workers=w, prefetch_factor=p).canonical(),
            batch_bytes=1e6,
            usage=Usage(pss_peak_bytes=int(200e6 + w * 50e6 + ((w * p + 1) * 1e6 if w else 0))),
        )
        for w, p in ((0, 2), (1, 2), (2, 2), (2, 4))
    ]
    made = fit([explained(0)], trials)
    assert made.main_bytes == pytest.approx(200e6)
    assert made.worker_bytes == pytest.approx(50e6)


def test_start_up_is_a_line_over_workers_for_each_start_method() -> None:
    trials = [
        builders.trial(
            Config(num_workers=w, start_method=method if w else None).canonical(),
            startup_s=first + each * (w - 1) if w else 0.01,
            epoch_turnover_s=0.3,
        )
        for method, first, each in (("fork", 0.03, 0.007), ("spawn", 1.1, 0.75))
        for w in (0, 1, 4)
    ]
    made = fit([explained(0)], trials)
    assert made.startup_s["fork"] == pytest.approx((0.03, 0.007))
    assert made.startup_s["spawn"] == pytest.approx((1.1, 0.75))
    assert made.startup_s["main"] == pytest.approx((0.01,))
    assert made.turnover_s["spawn"] == pytest.approx(0.3)


def test_what_trials_say_of_batches_is_taken_over() -> None:
    trial = dataclasses.replace(
        builders.trial(Config(), 320.0, trial_id="t0"),
        usage=Usage(read_bytes_per_s=5e6, available_cpu_cores=1.5),
    )
    made = fit([explained(0)], [trial], batch_tensors=3.0)
    assert made.samples_per_batch == 32
    assert made.read_bytes_per_batch == pytest.approx(5e5)
    assert made.available_cores == 1.5
    # Of busy cores what sleeps could have had its share, which it doesn't use.
    usage = Usage(available_cpu_cores=0.1, fair_cpu_cores=1.0)
    sleeping = dataclasses.replace(trial, usage=usage)
    assert fit([explained(0)], [sleeping], batch_tensors=3.0).available_cores == 1.0
    assert made.batch_tensors == 3


def idle(workers: int, *, own: float, waited: float, main: float | None, cores: float = 2) -> float:
    """The share of idle cores, of a trial whose threads wait for a core for ``waited``."""
    usage = Usage(
        own_cpu_cores=own,
        available_cpu_cores=cores,
        run_queue_wait_fraction=waited,
        main_runnable=main,
    )
    trial = builders.trial(Config(num_workers=workers).canonical(), 320.0, trial_id=f"t{workers}")
    return fit([explained(workers)], [dataclasses.replace(trial, usage=usage)]).idle_fraction


def test_cores_that_are_idle_while_threads_wait_for_one_are_seen() -> None:
    # Three threads that want a core all the time, and 1.5 of 2 cores are busy.
    assert idle(2, own=1.5, waited=0.5, main=1.0) == pytest.approx(0.25)
    # Main wants one for half of the time, the workers always: none need be idle.
    assert idle(2, own=1.5, waited=0.4, main=0.5) == pytest.approx(0.25)
    # Each thread wants one for half of the time: by chance none does (1/8), or one (3/8).
    assert idle(2, own=1.375, waited=0.125 / 1.5, main=0.5) == pytest.approx(0, abs=1e-9)


@pytest.mark.parametrize(
    ("workers", "main"),
    [(1, 1.0), (2, None), (0, 1.0)],
    ids=["a core for each", "main was not looked at", "no workers"],
)
def test_idle_cores_say_nothing_where_no_thread_has_to_wait(
    workers: int, main: float | None
) -> None:
    assert idle(workers, own=1.0, waited=0.1, main=main) == 0


def test_threads_of_main_are_its_helpers() -> None:
    reported = dataclasses.replace(explained(0), main_threads_cpu_cores=0.5)
    assert fit([reported], []).helper_cpu_s == pytest.approx(0.5 * 1.0 / 50)


def test_threads_that_spin_are_no_helpers() -> None:
    """A batch takes 12 ms in a worker; main's thread does 10 of them, and others use 20."""
    reported = dataclasses.replace(explained(0, cpu=(0.010,) * 50), main_threads_cpu_cores=1.0)
    made = fit([reported, explained(1, cpu=(0.012,) * 50)], [])
    assert made.helper_cpu_s == pytest.approx(0.002)
    assert fit([reported, explained(1, cpu=(0.009,) * 50)], []).helper_cpu_s == 0


def test_threads_of_a_step_help_with_no_loading() -> None:
    """Half a second in a second of 50 batches, 2 ms of each in the step."""
    reported = dataclasses.replace(explained(0), main_threads_cpu_cores=0.5, step_cpu_s=0.003)
    step = Stage(name="step", mean_s=0.002, median_s=0.002, p95_s=0.002, max_s=0.002, cpu_s=0.001)
    stepped = dataclasses.replace(reported, stages=(*reported.stages, step))
    assert fit([stepped], []).helper_cpu_s == pytest.approx(0.5 * 1.0 / 50 - 0.002)


def test_long_calibrations_are_thinned() -> None:
    made = fit([explained(0, cpu=(0.01,) * 9000)], [])
    assert made.in_main is not None
    assert 2000 <= len(made.in_main.cpu_s) <= 4000
