"""Many nodes: what one is predicted with, which resource runs out first, how many are kept fed."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest
from builders import around, blocks, config, failed, machine, target, trial
from golden import drawn
from predicted_runs import asked, calibrated, calibration

from dlprof.advise.forecast import (
    Accelerators,
    Forecast,
    _free,
    _limit,
    accelerators_of,
    feed,
    forecast,
)
from dlprof.advise.recommend import recommend
from dlprof.advise.situation import usable_calibration
from dlprof.cli.entry import run as dlprof
from dlprof.model import maxplus
from dlprof.records import (
    BatchCosts,
    Calibration,
    Constraints,
    Estimate,
    Failure,
    RankFigures,
    Run,
    Usage,
    WithoutPart,
)
from dlprof.records.findings import LoaderPart
from dlprof.report.documents import brief_document, sweep_document
from dlprof.report.predict import feed_report, feed_text, forecast_report, predict_document
from dlprof.report.ranks import accelerators_text
from dlprof.report.sweep import recommendation_report, sweep_report
from dlprof.report.terminal import plain_text
from dlprof.settings import parse_option
from dlprof.store import RunWriter

_READS = 2e6  # bytes a batch of the made-up calibration


def _forecast(workers: int = 8, memory: float | None = None, **question: Any) -> Forecast:
    run = question.pop("run", None) or calibrated()
    situation = asked(run, **question)
    return forecast(situation, [config(workers)], memory_bytes_per_s=memory)


def _carried(found: Forecast) -> dict[str, float]:
    return {each.name: each.ranks.value for each in found.resources if each.ranks is not None}


def test_a_node_is_predicted_with_its_share_of_the_storage() -> None:
    """The storage is the limit of both."""
    one = _forecast(ranks=2, storage_bytes_per_s=1e8)
    many = _forecast(ranks=2, nodes=16, storage_bytes_per_s=16e8)
    assert many.rows[0].rate == pytest.approx(one.rows[0].rate)
    assert many.rows[0].rate == pytest.approx(1e8 / _READS / 2)
    assert (many.ranks, many.nodes, one.ranks, one.nodes) == (32, 16, 2, 1)
    assert "the 16 nodes are alike: one is predicted, with 1/16 of the storage" in many.notes


def test_what_feeds_a_step_is_of_one_of_the_nodes_and_says_so() -> None:
    one, many = (feed(asked(calibrated(), ranks=2, nodes=n, step_s=0.05)) for n in (1, 16))
    assert (one.nodes, many.nodes, many.ranks) == (1, 16, 2)
    text = " ".join(drawn(feed_report(many), 80).split())
    assert "Feeding 2 ranks on each of 16 nodes at a step of 50 ms" in text
    assert "a node" in feed_text(many)
    assert "on average, 2 ranks together on each node" in text
    assert "node" not in feed_text(one)


def test_ranks_with_a_step_begin_it_together_as_under_ddp() -> None:
    run = calibrated()
    together = asked(run, ranks=4, nodes=5, step_s=0.05)
    assert together.conditions.barrier_nodes == 5
    assert "all ranks begin each step together, as under DDP" in together.notes
    assert asked(run, ranks=4, nodes=5).conditions.barrier_nodes == 0
    assert not any("together" in note for note in asked(run, step_s=0.05).notes)


@pytest.mark.parametrize("barrier", [False, True])
def test_other_numbers_of_ranks_meet_without_a_step_where_launched_ones_did(barrier: bool) -> None:
    run = calibrated(settings={"launch_ranks": [4], "step_barrier": barrier})
    assert [asked(run, ranks=ranks).barrier for ranks in (4, 8)] == [barrier] * 2
    assert ("together" in " ".join(asked(run, ranks=8).notes)) is barrier


@pytest.mark.parametrize("barrier", [False, True])
def test_ranks_that_were_launched_begin_steps_together_where_they_did_in_the_trials(
    barrier: bool,
) -> None:
    """And of other numbers of ranks, and of those with a step that none had, all do."""
    settings = {"step_s": 0.05, "launch_ranks": [4], "step_barrier": barrier}
    run = calibrated(settings=settings)
    assert asked(run, ranks=4).barrier is barrier
    assert asked(run, ranks=8).barrier
    stepless = calibrated(settings=settings | {"step_s": 0.0})
    assert asked(stepless, ranks=4).barrier is barrier
    assert asked(stepless, ranks=4, step_s=0.05).barrier


def test_batches_that_differ_cost_ranks_a_step_that_one_alone_does_not_wait_for() -> None:
    """One worker of one batch ahead loads in 6 to 30 ms beside a step of 20."""
    factors = (1.0, 1.0, 1.0, 5.0) * 25
    made = BatchCosts(cpu_s=(0.0,) * 100, io_s=tuple(0.006 * each for each in factors))
    run = calibrated(dataclasses.replace(calibration(), in_main=made, in_workers=made))
    alone, together = (
        _forecast(1, run=run, step_s=0.02, ranks=ranks).rows[0].prediction for ranks in (1, 8)
    )
    assert alone.wait_fraction is not None
    assert together.wait_fraction is not None
    assert together.wait_fraction > alone.wait_fraction + 0.05


def test_a_barrier_that_holds_back_one_more_is_named_with_what_it_costs() -> None:
    """Without workers one rank waits for 30 ms of 180 by the mean, two for the slower of two."""
    made = BatchCosts(cpu_s=(0.0,) * 100, io_s=(*(0.01,) * 4, 0.11) * 20)
    costs = dataclasses.replace(calibration(), in_main=made, in_workers=made)
    raises = Failure(kind="worker_exception", message="A worker raised KeyError.")
    trials = [trial(config(0), 32 / 0.03), failed(config(1), failure=raises)]
    run = calibrated(costs, trials, target=target(kind="iterable"))
    found = forecast(asked(run, step_s=0.15), [config(0)], au=0.8).accelerators
    assert found is not None
    assert (found.count.value, found.held_by) == (1, "barrier")
    (barrier,) = [each for each in found.without if each.part == "barrier"]
    assert barrier.source == "model"
    assert barrier.gain.value == pytest.approx((150 + 46) / (150 + 30), rel=0.01)
    # Without its blocked time it would be fed, too; all views name the one that it waits for.
    assert (found.limit, found.without[0].part) == ("barrier", "storage")
    assert "limited by barrier" in accelerators_text(found)


@pytest.mark.parametrize(
    ("barrier", "storage", "shown", "found"),
    [
        (1.3, 1.5, "", ("barrier", "barrier")),
        (1.1, 1.5, "", ("storage", "")),  # ranks wait at the barrier, but that isn't what is short
        (1.1, 1.1, "", (None, "barrier")),
        (1.1, 1.1, "cores", ("host_cpu", "")),
        (1.1, 1.1, "not seen: neither cores nor storage", (None, "barrier")),
    ],
)
def test_what_limits_ranks_is_what_they_wait_for(
    barrier: float, storage: float, shown: str, found: tuple[str | None, str]
) -> None:
    """They have 60% of 90%; one part or the other gives so many times as much."""
    gains: dict[LoaderPart, float] = {"storage": storage, "barrier": barrier}
    without = [
        WithoutPart(part=part, gain=Estimate(value=gain), source="model")
        for part, gain in gains.items()
    ]
    assert _limit(without, 0.6, 0.9, "barrier", shown) == found


def test_nodes_share_the_epoch() -> None:
    alone, shared = asked(calibrated()).conditions, asked(calibrated(), nodes=5).conditions
    assert (alone.epoch_batches, shared.epoch_batches) == (1000, 200)


@pytest.mark.parametrize(
    ("question", "first"),
    [
        ({"storage_bytes_per_s": 1e9}, "storage"),
        ({"cores": 2.0}, "cores"),
        ({"machine": machine(512, memory_bytes=1 << 30)}, "memory"),
        ({"machine": machine(512, shm_bytes=64 << 20)}, "shm"),
        ({"memory": 1e9}, "bandwidth"),
    ],
)
def test_what_is_short_runs_out_first(question: dict[str, Any], first: str) -> None:
    found = _forecast(ranks=8, nodes=2, **question)
    assert found.resources[0].name == first
    used = [each.used for each in found.resources if each.ranks is not None]
    assert used == sorted(used, reverse=True)
    for each in found.resources:
        if each.ranks is not None:
            assert each.used == pytest.approx(16 / each.ranks.value)


def test_a_main_process_that_is_the_limit_is_so_in_each_rank() -> None:
    run = calibrated(calibration(cpu=0.001, receive=0.05))
    found = _forecast(run=run, ranks=8, storage_bytes_per_s=1e12)
    first = found.resources[0]
    assert (first.name, first.ranks) == ("main", None)
    assert first.used == pytest.approx(1.0, abs=0.1)
    text = drawn(forecast_report(found), 120)
    assert "each is limited by its own main process, busy" in text


def test_how_many_ranks_a_storage_carries_is_as_sure_as_their_rate() -> None:
    """At a step that is the limit each rank reads 2 MB every 50 ms."""
    found = _forecast(ranks=8, nodes=2, step_s=0.05, storage_bytes_per_s=4e9)
    (storage,) = [each for each in found.resources if each.name == "storage"]
    assert storage.each == pytest.approx(_READS / 0.05, rel=0.02)
    ranks = storage.ranks
    assert ranks is not None
    assert ranks.low is not None
    assert ranks.high is not None
    assert ranks.low < ranks.value < ranks.high
    assert ranks.value == pytest.approx(100, rel=0.02)


def test_ranks_that_are_too_many_for_the_storage_are_slower() -> None:
    """The two views agree: what is enough for 100 ranks is too little for 200."""
    question: dict[str, Any] = {"ranks": 8, "step_s": 0.05, "storage_bytes_per_s": 4e9}
    few, many = _forecast(nodes=10, **question), _forecast(nodes=25, **question)
    assert _carried(few)["storage"] == pytest.approx(_carried(many)["storage"])
    assert few.rows[0].rate == pytest.approx(20.0, rel=0.02)
    assert many.rows[0].rate == pytest.approx(4e9 / _READS / 200, rel=0.02)
    assert few.resources[0].used < 1 < many.resources[0].used


def test_a_thousand_ranks_cost_no_more_than_the_ranks_of_a_node(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    counted = []
    real = maxplus._recursion

    def recursion(*given: Any) -> Any:
        counted.append(given)
        return real(*given)

    monkeypatch.setattr(maxplus, "_recursion", recursion)
    maxplus.steady_rate.cache_clear()
    _forecast(ranks=8, storage_bytes_per_s=1e9)
    one, counted[:] = len(counted), []
    assert one
    maxplus.steady_rate.cache_clear()
    _forecast(ranks=8, nodes=125, storage_bytes_per_s=125e9)
    assert len(counted) == one


def test_the_screen_says_what_runs_out_and_json_has_all_of_it() -> None:
    run = calibrated()
    found = _forecast(run=run, ranks=8, nodes=16, storage_bytes_per_s=2e9)
    text = " ".join(drawn(forecast_report(found), 120, verbose=True).split())
    assert "for machine box: 16 nodes of 8 ranks on 8 cores" in text
    assert "Ranks the storage runs out first, beyond " in text
    assert "; the 16 nodes have 128 Certainty" in text
    short = dataclasses.replace(found.resources[0], name="memory", ranks=Estimate(value=0.4))
    less = forecast_report(dataclasses.replace(found, resources=(short,)))
    assert "the memory is not enough for one such rank; the 16" in drawn(less, 120)
    assert "storage of 1.9 GiB/s" in text
    document = json.loads(predict_document(found))
    assert document["ranks"] == 128
    assert document["resources"][0]["name"] == "storage"
    alone = drawn(forecast_report(_forecast(run=run)), 120, verbose=True)
    assert "such ranks" not in alone


def test_a_storage_limit_without_effect_is_named_on_the_screen() -> None:
    cached = calibrated(dataclasses.replace(calibration(cpu=0.05), read_bytes_per_batch=0.0))
    found = _forecast(run=cached, ranks=2, storage_bytes_per_s=20.0)
    text = " ".join(drawn(forecast_report(found), 120).split())
    assert "storage of 20 B/s (no effect: nothing was read from it)" in text
    assert "1 ranks" not in text


def test_settings_for_several_nodes_are_recommended_and_named() -> None:
    answer = recommend(calibrated(), Constraints(ranks=2, nodes=4))
    assert answer.constraints.nodes == 4
    assert answer.basis == "predicted"


@pytest.mark.parametrize("text", ["20GBps", "20GB/s", "20GB", " 20 GBps "])
def test_a_storage_s_rate_is_written_in_several_ways(text: str) -> None:
    assert parse_option("storage_limit", text) == 20e9


def _kept(au: float, *, costs: Calibration | None = None, **question: Any) -> Accelerators:
    run = calibrated(costs or calibration(cpu=0.05, receive=0.0005))
    situation = asked(run, **{"step_s": 0.1, **question})
    found = forecast(situation, [config(2)], au=au).accelerators
    assert found is not None
    return found


@pytest.mark.parametrize(("au", "least", "most"), [(0.9, 14, 17), (0.5, 27, 32)])
def test_as_many_accelerators_are_kept_busy_as_there_are_cores_for(
    au: float, least: int, most: int
) -> None:
    """A batch takes 50 ms of a core and a step 100: two for each of eight cores at full speed."""
    found = _kept(au)
    assert least <= found.count.value <= most
    assert found.held_by == "cores"
    assert found.utilization >= au
    assert found.count.low is not None
    assert found.count.high is not None
    assert found.count.low <= found.count.value <= found.count.high


@pytest.mark.slow
def test_accelerators_that_are_kept_are_those_that_predictions_keep() -> None:
    """One more is fed by no number of workers; with as many, fewer workers feed none."""
    costs = calibration(cpu=0.004, io=0.25, receive=0.0005)
    found, run = _kept(0.9, costs=costs), calibrated(costs)
    few = forecast(asked(run, step_s=0.1, ranks=2), [config(1, 8)])
    wait = few.rows[0].prediction.wait_fraction
    assert wait is not None
    assert wait > 0.1  # one worker is too few
    assert found.config.num_workers in {3, 4}
    ranks = int(found.count.value)
    at_most = forecast(asked(run, step_s=0.1, ranks=ranks), [found.config])
    assert 1 - (at_most.rows[0].prediction.wait_fraction or 0) == pytest.approx(
        found.utilization, abs=0.02
    )


@pytest.mark.parametrize(
    ("costs", "question", "held_by"),
    [
        ({"cpu": 0.03, "receive": 0.05}, {"step_s": 0.02}, "main"),
        ({"cpu": 0.001}, {"storage_bytes_per_s": 1e8}, "storage"),
        ({"cpu": 0.001, "main_bytes": 30e9}, {}, "memory"),
    ],
)
def test_what_holds_back_one_more_is_named(
    costs: dict[str, Any], question: dict[str, Any], held_by: str
) -> None:
    assert _kept(0.9, costs=calibration(**costs), **question).held_by == held_by


@pytest.mark.parametrize(
    ("au", "count", "utilization"),
    [
        # A rank reads 2 MB every 100 ms / au; 100 MB/s are enough for 5.6 of them, or 11.1.
        (0.9, 5, 0.1 / 0.101),  # which need no workers: each loads for 1 ms
        (0.45, 11, 0.1 * 1e8 / 2e6 / 11),
    ],
)
def test_accelerators_that_storage_keeps_busy_are_those_computed_by_hand(
    au: float, count: int, utilization: float
) -> None:
    costs = calibration(cpu=0.001, receive=0.0005)
    found = _kept(au, costs=costs, storage_bytes_per_s=1e8)
    assert (found.count.value, found.held_by) == (count, "storage")
    assert found.utilization == pytest.approx(utilization, abs=0.002)


def test_utilization_is_the_step_over_what_it_and_receiving_take() -> None:
    """Cores without end: a step of 20 ms beside 2 ms in which its batch is taken in."""
    costs = calibration(cpu=0.03, receive=0.002)
    found = _kept(0.8, costs=costs, step_s=0.02, cores=512.0, ranks=2)
    assert found.count.value == 2
    assert found.utilization == pytest.approx(20 / 22, abs=0.005)


def test_a_main_process_that_is_too_slow_keeps_no_accelerator_busy() -> None:
    found = _kept(0.9, costs=calibration(cpu=0.03, receive=0.05), step_s=0.02)
    assert found.count.value == 0
    assert found.utilization < 0.9


@pytest.mark.parametrize(
    ("costs", "question", "limit"),
    [
        ({"cpu": 0.05, "receive": 0.0005}, {}, "host_cpu"),
        ({"cpu": 0.03, "receive": 0.05}, {"step_s": 0.02}, "main_process"),
        ({"cpu": 0.001, "receive": 0.0005}, {"storage_bytes_per_s": 1e8}, "storage"),
    ],
)
def test_the_part_without_which_one_more_would_be_busy_is_named(
    costs: dict[str, Any], question: dict[str, Any], limit: str
) -> None:
    found = _kept(0.9, costs=calibration(**costs), **question)
    assert found.limit == found.without[0].part == limit
    parts = {"storage", "host_cpu", "main_process", "barrier"}
    assert {each.part for each in found.without} == parts
    gains = [each.gain.value for each in found.without]
    assert gains == sorted(gains, reverse=True)
    assert gains[-1] == pytest.approx(1.0, abs=0.05)
    assert found.next_utilization is not None
    assert found.next_utilization < 0.9 <= found.next_utilization * gains[0]


def test_no_workers_are_named_where_they_make_the_step_wait_for_longer() -> None:
    """Receiving takes 3 ms and fetching 0.2: with workers 14% would be left, without them 71%."""
    found = _kept(0.9, costs=calibration(cpu=0.0002, receive=0.003), step_s=0.0005)
    assert (found.count.value, found.config.num_workers) == (0, 0)
    assert found.utilization == pytest.approx(0.5 / 0.7, abs=0.02)


@pytest.mark.slow
def test_storage_for_which_batches_queue_keeps_no_more_busy() -> None:
    """It gives ten batches a second, whatever asks, and a step of 50 ms wants twenty."""
    costs = dataclasses.replace(calibration(cpu=0.001, io=0.1, receive=0.0005), queueing_s=0.1)
    found = _kept(0.9, costs=costs, step_s=0.05)
    assert (found.count.value, found.limit) == (0, "storage")
    assert found.utilization == pytest.approx(0.5, abs=0.02)


def test_what_one_accelerator_has_is_what_the_trials_of_what_is_recommended_gave() -> None:
    costs = dataclasses.replace(calibration(cpu=0.001, io=0.1, receive=0.0005), queueing_s=0.1)
    rates = {config(0): (154.0,) * 3, config(2): (614.0,) * 3, config(4): (616.0,) * 3}
    run = calibrated(costs, blocks(rates), settings={"step_s": 0.05})
    found = forecast(asked(run, step_s=0.05), [config(2)], au=0.9).accelerators
    assert found is not None
    assert (found.count.value, found.measured) == (1, True)
    answer = recommend(run)
    assert found.config == answer.config
    assert found.utilization == pytest.approx(
        answer.expected.samples_per_s.value * 0.05 / 32, rel=0.02
    )


def test_one_accelerator_that_trials_do_not_keep_busy_is_none() -> None:
    """By its costs 16 are: what holds the trials at half of the step's rate isn't in them."""
    costs = calibration(cpu=0.05, receive=0.0005)
    trials = blocks({config(0): (100.0,) * 3, config(2): (160.0,) * 3, config(4): (161.0,) * 3})
    run = calibrated(costs, trials, settings={"step_s": 0.1})
    found = forecast(asked(run, step_s=0.1), [config(2)], au=0.9).accelerators
    assert found is not None
    assert (found.count.value, found.limit, found.held_by, found.without) == (0, None, "", ())
    assert found.utilization == pytest.approx(0.5, abs=0.03)
    assert found.utilization == found.next_utilization


@pytest.mark.parametrize(("share", "text"), [(0.8974, "89.7%"), (0.8999, "89.9%"), (0.61, "61%")])
def test_a_utilization_that_is_short_of_what_is_asked_reads_so(share: float, text: str) -> None:
    none = dataclasses.replace(_kept(0.9), count=Estimate(value=0.0), utilization=share)
    assert accelerators_text(none).startswith(
        f"none is 90% busy: one alone is {text} busy, limited"
    )


def test_memory_that_is_too_small_for_one_more_is_the_limit() -> None:
    assert _kept(0.9, costs=calibration(cpu=0.001, main_bytes=30e9)).limit == "memory"


def _launched(*utilizations: float, **changes: Any) -> Run:
    """A sweep at a step of 100 ms, by as many ranks as there are utilizations of each."""
    trials = blocks({config(0): (30.0,) * 2, config(2): (320 * utilizations[-1],) * 2})
    for count, each in enumerate(utilizations, 1):
        rate = each * 32 / 0.1
        ranks = [
            RankFigures(
                rank=rank,
                host="box",
                samples_per_s=around(rate),
                batches_per_s=around(rate / 32),
                barrier_fraction=changes.get("barrier"),
            )
            for rank in range(count)
        ]
        trials.append(
            trial(
                config(2),
                rate,
                purpose="scaling",
                wait_fraction=1 - each,
                ranks=tuple(ranks) if count > 1 else (),
                usage=changes.get("usage", Usage()),
            )
        )
    most = len(utilizations)
    asked_for = {"step_s": 0.1, "au": 0.9, "launch_ranks": [*range(1, most + 1)], "ranks": most}
    costs = changes.get("costs") or calibration(cpu=0.05, receive=0.0005)
    here = machine(changes.get("cores", 8))
    return calibrated(costs, trials=trials, settings=asked_for, machine=here)


def test_ranks_that_were_measured_go_before_predictions() -> None:
    """By the model alone eight cores feed all four."""
    found = accelerators_of(_launched(0.99, 0.95, 0.7, 0.5))
    assert found is not None
    assert (found.count.value, found.most, found.measured) == (2, 4, True)
    assert found.count.ends[0] <= 2 <= found.count.ends[1]
    assert found.utilization == pytest.approx(0.95, abs=0.005)
    assert found.next_utilization == pytest.approx(0.7, abs=0.005)
    all_of_them = accelerators_of(_launched(0.99, 0.98, 0.97, 0.96))
    assert all_of_them is not None
    assert (all_of_them.count.value, all_of_them.limit, all_of_them.without) == (4, None, ())


def test_what_measured_ranks_ran_out_of_is_the_limit_where_the_model_sees_none() -> None:
    usage = Usage(own_cpu_cores=1.0, available_cpu_cores=1.0)
    found = accelerators_of(_launched(0.99, 0.7, usage=usage))
    assert found is not None
    assert (found.count.value, found.limit) == (1, "host_cpu")


def test_the_barrier_is_what_ranks_waited_there() -> None:
    found = accelerators_of(_launched(0.95, 0.7, barrier=0.25))
    assert found is not None
    (barrier,) = [each for each in found.without if each.part == "barrier"]
    assert barrier.source == "bound"
    assert 1.0 <= barrier.gain.value <= 1 / 0.75 + 1e-9


def test_pages_that_memory_was_too_small_to_keep_are_not_the_storages() -> None:
    costs = calibration(cpu=0.001, io=0.5, receive=0.0005)
    for pressure, parts in ((0.9, "memory storage"), (0.1, "storage memory")):
        run = _launched(0.95, 0.7, costs=costs, usage=Usage(memory_pressure_fraction=pressure))
        free = dict(_free(usable_calibration(run), pressure))
        left = {part: free[part].in_workers for part in ("memory", "storage")}
        stays = {part: sum(each.io_s) for part, each in left.items() if each is not None}
        assert " ".join(sorted(stays, key=lambda part: stays[part])) == parts
        assert sum(stays.values()) == pytest.approx(60 * 0.5)


def test_a_sweep_says_what_one_more_would_have_without_each_part() -> None:
    """A batch takes 0.2 s of one of 2.6 cores, so that two ranks have 6.5 a second each."""
    slow = calibration(cpu=0.2, receive=0.0005)
    run = _launched(0.99, 0.65, costs=slow, cores=2.6)
    text = " ".join(plain_text(sweep_report(run), width=200, verbose=True).split())
    assert "limited by host CPU (100% without it)" in text
    assert "One more accelerator, predicted without busy host CPU 100%" in text


def test_a_sweep_that_was_asked_says_how_many_are_busy_and_what_limits_one_more() -> None:
    run = _launched(0.99, 0.95, 0.7, 0.5, usage=Usage(own_cpu_cores=1.0, available_cpu_cores=1.0))
    text = " ".join(plain_text(sweep_report(run), width=200, verbose=True).split())
    assert "accelerators are at least 90% busy: 95% measured with num_workers=2" in text
    assert "with one more 70%, limited by host CPU Certainty" in text
    assert "One more accelerator, predicted" not in text  # the model feeds all four
    document = json.loads(sweep_document(run))["accelerators"]
    assert (document["count"]["value"], document["limit"]) == (2, "host_cpu")
    brief = json.loads(brief_document(sweep_document(run)))
    assert brief["accelerators"] == document
    plain = dataclasses.replace(run.header, settings={**run.header.settings, "au": None})
    assert (
        json.loads(sweep_document(dataclasses.replace(run, header=plain)))["accelerators"] is None
    )


def test_a_screen_with_details_computes_the_answer_once(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[Run] = []

    def answer(run: Run, _advice: object) -> str:
        asked.append(run)
        return "nobody knows"

    monkeypatch.setattr("dlprof.report.sweep.asked_accelerators", answer)
    text = plain_text(sweep_report(_launched(0.99, 0.95)), width=200, verbose=True)
    assert "not known: nobody knows" in text
    assert len(asked) == 1


def test_utilization_is_said_where_what_is_recommended_was_only_predicted() -> None:
    run = _launched(0.99, 0.95)
    advice = dataclasses.replace(recommend(run), basis="predicted")
    shown = sweep_report(dataclasses.replace(run, recommendation=advice))
    assert "Utilization" in plain_text(shown, width=80)
    elsewhere = recommend(run, Constraints(ranks=4, step_s=0.1))
    assert "Utilization" not in plain_text(recommendation_report(run, elsewhere), width=80)


def test_without_a_calibration_ranks_answer_that_loaded_at_once() -> None:
    run = _launched(0.99, 0.95, 0.7, usage=Usage(own_cpu_cores=1.0, available_cpu_cores=1.0))
    found = accelerators_of(dataclasses.replace(run, calibration=None))
    assert found is not None
    assert (found.count.value, found.measured, found.limit) == (2, True, "host_cpu")
    assert found.next_utilization == pytest.approx(0.7, abs=0.005)


def test_numbers_of_ranks_that_did_not_load_at_once_may_be_fed() -> None:
    run = dataclasses.replace(_launched(0.99, 0.95, 0.7, 0.5), calibration=None)
    trials = tuple(each for each in run.trials if len(each.ranks) not in {2, 3})
    found = accelerators_of(dataclasses.replace(run, trials=trials))
    assert found is not None
    assert (found.count.value, found.count.ends[1]) == (1, 3)


def test_a_sweep_without_calibration_and_ranks_says_why_utilization_is_not_known() -> None:
    run = dataclasses.replace(_launched(0.99), calibration=None)
    trials = tuple(each for each in run.trials if each.purpose == "measure")
    run = dataclasses.replace(run, trials=trials)
    assert "Utilization not known: " in " ".join(plain_text(sweep_report(run), width=200).split())
    document = json.loads(sweep_document(run))
    assert document["accelerators"] is None
    assert "no calibration" in document["unavailable"]["accelerators"]
    brief = json.loads(brief_document(json.dumps(document)))
    assert brief["unavailable"] == document["unavailable"]


@pytest.mark.slow
def test_an_answer_for_other_conditions_has_no_accelerators_of_the_sweeps_own() -> None:
    run = _launched(0.99, 0.65, costs=calibration(cpu=1.0, receive=0.0005))
    section = "One more accelerator, predicted"
    for cores, is_there in ((None, True), (64.0, False)):
        asked_for = recommend(run, Constraints(cores=cores)) if cores else recommend(run)
        report = recommendation_report(run, asked_for)
        text = " ".join(plain_text(report, width=200, verbose=True).split())
        assert (section in text) is is_there


def test_utilization_needs_a_step(capsys: pytest.CaptureFixture[str]) -> None:
    assert dlprof(["sweep", "synthetic", "--au", "90%"], {}) == 2
    assert "au = 90% is the share of time in which a step passes" in " ".join(
        capsys.readouterr().err.split()
    )


def test_accelerators_have_no_workers_where_the_dataset_raises_with_one() -> None:
    raises = Failure(kind="worker_exception", message="A worker raised KeyError.")
    trials = [trial(config(0)), failed(config(1), failure=raises)]
    run = calibrated(calibration(cpu=0.2), trials, target=target(kind="iterable"))
    found = forecast(asked(run, step_s=0.1), [config(0)], au=0.9).accelerators
    assert found is not None
    assert (found.count.value, found.config) == (0, config(0))


def test_no_more_accelerators_are_looked_at_than_ranks_are_asked_for() -> None:
    found = _kept(0.9, ranks=3)
    assert (found.count.value, found.held_by, found.most) == (3, "", 3)


def test_accelerators_are_asked_for_on_the_command_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    made = calibrated(calibration(cpu=0.05, receive=0.0005))
    with RunWriter.create(tmp_path / "run.dlprof.jsonl", made.header) as writer:
        writer.append(made.calibration)
    asked_for = ["predict", str(tmp_path / "run.dlprof.jsonl"), "--au", "90%"]
    assert dlprof([*asked_for, "--step-time", "normal:100ms,10ms"], {}) == 0
    assert "are at least 90% busy: " in " ".join(capsys.readouterr().out.split())
    assert dlprof(asked_for, {}) == 2
    assert "no training step" in capsys.readouterr().err
    assert dlprof([*asked_for, "--feed", "--step-time", "1s"], {}) == 2
    assert "--au and --feed are two questions" in capsys.readouterr().err


def test_what_a_step_gave_less_than_predicted_nodes_of_the_same_step_give_less() -> None:
    """A step of 40 ms takes 800 samples/s; 600 were measured, as faster loading can't explain."""
    pick = config(8, persistent_workers=True)
    trials = blocks({config(0): [120.0] * 4, pick: [600.0] * 4}, wait_fraction=0.2)
    run = calibrated(trials=trials, settings={"step_s": 0.04})
    alone, shared, longer = (
        forecast(asked(run, **question), [pick]).rows[0]
        for question in ({}, {"nodes": 2}, {"step_s": 0.4})
    )
    assert alone.prediction.batches_per_s.value == pytest.approx(600 / 32, rel=0.03)
    assert shared.prediction.batches_per_s.value == pytest.approx(600 / 32, rel=0.05)
    low = shared.prediction.batches_per_s.low
    assert low is not None
    assert low < 600 / 32
    # A step that is ten times as long hides most of it.
    assert longer.prediction.batches_per_s.value == pytest.approx(2.5, rel=0.04)
