"""From rows of stamps to an explanation and a timeline."""

from __future__ import annotations

import dataclasses
import itertools
from array import array
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dlprof.model.calibrate import fit
from dlprof.model.predict import predict_all
from dlprof.model.work import Conditions
from dlprof.records import Config
from dlprof.records.stages import AGE_STAGES, UNSEEN, Explanation
from dlprof.tracing.clocks import MISSING
from dlprof.tracing.explain import explain, quantile, timeline, with_copies
from dlprof.tracing.trace import Facts, Made, Ring, Row, Trace

MS = 1_000_000


def made(worker: int = 0, start: int = 0, **given: Any) -> Made:
    """A batch that took 4 ms to fetch (1 of CPU, 1 in the run queue) and 1 to collate."""
    plain = Made(
        worker=worker,
        ordinal=0,
        picked=start + 2 * MS,
        fetched=start + 6 * MS,
        collated=start + 7 * MS,
        fetch_cpu=MS,
        fetch_run_queue=MS,
        collate_cpu=MS,
        collate_run_queue=0,
        others_cpu=MS // 2,
        between_cpu=MS // 8,
        process_cpu=start,
    )
    return plain._replace(**given)


def row(batch: int, *, start: int = 0, **given: Any) -> Row:
    """A batch whose way takes 16 ms from ``start``."""
    plain = Row(
        epoch=0,
        batch=batch,
        made=made(start=start, ordinal=batch),
        drawing=start,
        dispatched=start + MS,
        serialising=start + 8 * MS,
        serialised=start + 9 * MS,
        serialise_cpu=MS // 2,
        serialise_run_queue=0,
        received=start + 11 * MS,
        rebuilt=start + 12 * MS,
        receive_cpu=MS // 4,
        receive_run_queue=MS // 4,
        asked=start + 10 * MS,
        asked_cpu=start // 2,
        yielded=start + 16 * MS,
        left=start + 16 * MS,
        next_cpu=MS,
        other_cpu=MS // 4,
        thread_cpu=start // 2 + MS,
        process_cpu=start,
    )
    return dataclasses.replace(plain, **given)


def trace(*rows: Row, **given: Any) -> Trace:
    plain = Trace(rows=rows, dropped=0, began_ns=0, began_at=1e9)
    return dataclasses.replace(plain, **given)


def explained(
    *rows: Row, window: tuple[int, int] | None = None, computes: bool = True, **given: Any
) -> Explanation:
    config = Config(num_workers=1).canonical()
    return explain(
        trace(*rows, **given), trial_id="t7", config=config, window=window, computes=computes
    )


def test_each_stage_has_its_length() -> None:
    found = explained(row(0), row(1, start=20 * MS))
    lengths = {stage.name: stage.mean_s for stage in found.stages}
    assert lengths == pytest.approx(
        {
            "dispatch": 0.001,
            "pick_up": 0.001,
            "fetch": 0.004,
            "collate": 0.001,
            "serialise": 0.002,
            "queue": 0.002,
            "rebuild": 0.001,
            "hold_up": 0.004,
            "wait": 0.006,
            "step": 0.014,
        }
    )
    assert found.age_s == pytest.approx(sum(lengths.get(name, 0.0) for name in AGE_STAGES))
    assert found.trial_id == "t7"
    assert set(found.unavailable) == {"samples"}


def test_cpu_waiting_for_a_core_and_true_waiting_are_distinguished() -> None:
    fetch = explained(row(0)).stage("fetch")
    assert fetch is not None
    assert (fetch.cpu_s, fetch.run_queue_s, fetch.io_s) == pytest.approx((0.001, 0.001, 0.002))


@pytest.mark.parametrize(
    ("children_ms", "fetch_ms", "beside_ms", "blocked_ms"),
    [
        (1.5, (2.5, 1, 0.5), 0, 1.5),  # a part of the 2 ms for which fetching is blocked
        (2.5, (3.5, 0.5, 0), 0, 2),  # and has taken the core from who fetches
        (40, (4, 0, 0), 37, 2),  # in threads of its own
        (MISSING / MS, (1, 1, 2), 0, None),  # where the system doesn't say
    ],
)
def test_what_a_child_process_computes_is_no_waiting(
    children_ms: float,
    fetch_ms: tuple[float, float, float],
    beside_ms: float,
    blocked_ms: float | None,
) -> None:
    found = explained(row(0, made=made(children_cpu=round(children_ms * MS))))
    fetch, costs = found.stage("fetch"), found.costs
    assert fetch is not None
    assert fetch.mean_s == pytest.approx(0.004)
    cpu_s, queue_s, io_s = (1e-3 * each for each in fetch_ms)
    assert fetch.cpu_s == pytest.approx(cpu_s)
    assert fetch.run_queue_s == pytest.approx(queue_s)
    assert fetch.io_s == pytest.approx(io_s)
    assert costs.cpu_s == pytest.approx([cpu_s + 0.001])  # collating computes for all of its 1 ms
    assert costs.run_queue_s == pytest.approx([queue_s])
    assert costs.io_s == pytest.approx([io_s])
    assert costs.put_cpu_s == pytest.approx([1e-3 * (0.5 + beside_ms)])  # the feeder has a half
    known = found.children_cpu_s
    assert known == (None if blocked_ms is None else pytest.approx(1e-3 * blocked_ms))


@pytest.mark.parametrize(("children_ms", "least", "most"), [(18, 1.0, 1.2), (0, 4.0, 5.0)])
def test_more_workers_than_cores_bring_nothing_where_children_compute(
    children_ms: int, least: float, most: float
) -> None:
    rows = []
    for number in range(12):
        start = 40 * MS * number
        slow = made(start=start, ordinal=number + 1, children_cpu=children_ms * MS)
        slow = slow._replace(
            fetched=start + 22 * MS, collated=start + 23 * MS, fetch_run_queue=0, others_cpu=0
        )
        rows.append(row(number, start=start, made=slow))
    calibration = fit([explained(*rows)], [])
    configs = [Config(num_workers=count).canonical() for count in (2, 10)]
    few, many = predict_all(calibration, configs, Conditions(cores=2.0))
    assert least <= many.batches_per_s.value / few.batches_per_s.value <= most


def test_a_collate_fn_may_wait_for_a_child_too() -> None:
    busy = made(fetch_cpu=4 * MS, fetch_run_queue=0, collate_cpu=0, children_cpu=MS // 2)
    costs = explained(row(0, made=busy)).costs
    assert costs.cpu_s == pytest.approx([0.0045])
    assert costs.io_s == pytest.approx([0.0005])


def test_a_child_that_wants_a_core_is_no_io_either() -> None:
    """Of 4 ms of fetching it is blocked for 2: 0.5 a child computes, and for 1 it could."""
    found = explained(row(0, made=made(children_cpu=MS // 2)), window=(0, 20 * MS))
    waits = {"running": 0.05, "queue": 0.8, "child gzip": 0.075, "disk": 0.025}
    named = found.with_waits(waits)
    fetch = named.stage("fetch")
    assert fetch is not None
    assert (fetch.cpu_s, fetch.run_queue_s, fetch.io_s) == pytest.approx((0.0015, 0.002, 0.0005))
    assert named.costs.run_queue_s == pytest.approx((0.002,))
    assert named.costs.io_s == pytest.approx((0.0005,))
    assert fetch.gil_s == 0
    hidden = found.with_waits({"child gzip": 0.075, UNSEEN: 0.925}).stage("fetch")
    assert hidden is not None
    assert hidden.io_s == pytest.approx(0.0005)
    assert hidden.gil_s is None
    # Nothing is moved where the system doesn't say what children compute.
    blind = explained(row(0), window=(0, 20 * MS)).with_waits(waits)
    assert blind.costs.io_s == pytest.approx((0.002,))
    # Nor where it shows none of a child that computes.
    none = explained(row(0, made=made(children_cpu=0)), window=(0, 20 * MS)).with_waits(waits)
    assert none.costs.io_s == pytest.approx((0.002,))


def test_without_the_kernels_word_waiting_is_io_and_said_to_be() -> None:
    blind = made(fetch_run_queue=MISSING, collate_run_queue=MISSING)
    found = explained(row(0, made=blind))
    fetch = found.stage("fetch")
    assert fetch is not None
    assert fetch.run_queue_s is None
    assert fetch.io_s is None
    assert "run_queue_s" in found.unavailable
    assert found.costs.io_s == pytest.approx((0.003,))
    assert found.costs.run_queue_s == (0.0,)


def test_a_pinned_batch_is_pinned_before_it_is_held_up() -> None:
    found = explained(row(0, pinned=15 * MS, pin_cpu=2 * MS))
    pin, hold_up = found.stage("pin"), found.stage("hold_up")
    assert pin is not None
    assert hold_up is not None
    assert (pin.mean_s, pin.cpu_s, hold_up.mean_s) == pytest.approx((0.003, 0.002, 0.001))
    assert found.costs.pin_s == pytest.approx((0.003,))


def test_costs_come_in_the_order_of_indices() -> None:
    late, early = row(3), row(2, start=20 * MS, receive_cpu=3 * MS)
    costs = explained(late, early).costs
    assert costs.receive_cpu_s == pytest.approx((0.003, 0.00025))
    assert costs.cpu_s == pytest.approx((0.002, 0.002))
    assert costs.io_s == pytest.approx((0.002, 0.002))
    assert costs.put_cpu_s == pytest.approx((0.0005, 0.0005))
    assert costs.between_cpu_s == pytest.approx((0.000125, 0.000125))
    assert costs.receive_io_s == pytest.approx((0.0, 0.0005))
    assert costs.main_cpu_s == pytest.approx((0.00075, 0.00075))
    assert costs.pin_s == ()


def test_what_a_workers_first_batch_takes_is_part_of_starting_it() -> None:
    """The dataset imports and opens in each worker what it needs, when first asked."""
    slow = made(fetch_cpu=1500 * MS)
    rows = [row(number, start=20 * MS * number) for number in range(1, 5)]
    found, usual = explained(row(0, made=slow), *rows), explained(*rows)
    assert found.costs.cpu_s == pytest.approx((0.002,) * 4)
    # Stages are of the same batches, but for what the consumer waited for.
    own = [each for each in found.stages if each.name not in {"wait", "step"}]
    assert own == [each for each in usual.stages if each.name not in {"wait", "step"}]
    samples = [
        each.made._replace(
            samples=8, samples_ns=8 * MS, worst_ns=MS, kept=array("d", [0.001]).tobytes()
        )
        for each in rows
        if each.made
    ]
    first = samples[0]._replace(ordinal=0, samples_ns=800 * MS, worst_ns=700 * MS)
    weighed = explained(row(0, made=first), *(row(n + 1, made=m) for n, m in enumerate(samples)))
    assert weighed.samples is not None
    assert (weighed.samples.count, weighed.samples.max_s) == (32, 0.001)
    # What it fetches then is kept apart, before the window and at each epoch's start alike.
    again = row(5, start=100 * MS, epoch=1, made=made(fetched=15 * MS))
    late = explained(row(0), *rows, again, window=(50 * MS, 90 * MS))
    assert late.first_fetch_s == pytest.approx((0.004 + 0.013) / 2)
    assert usual.first_fetch_s is None
    assert explained(row(0, made=made(worker=-1))).first_fetch_s is None
    # In main nobody starts, and where no worker made another one these are all that there is.
    assert len(explained(row(0, made=made(worker=-1)), row(1)).costs.cpu_s) == 2
    both = [row(number, made=made(worker=number)) for number in range(2)]
    assert len(explained(*both).costs.cpu_s) == 2


def test_letting_go_is_the_cpu_between_batches_where_no_step_computes() -> None:
    rows = [
        row(number, start=start * MS, epoch=epoch, made=made(ordinal=4 * epoch + number + 1))
        for number, start, epoch in ((0, 0, 0), (1, 20, 0), (2, 44, 0), (0, 90, 1))
    ]
    # 10 ms of CPU between two yields, 1 of them in next(), then 12; an epoch's first has no other.
    assert explained(*rows, computes=False).costs.let_go_cpu_s == pytest.approx(
        (0.010, 0.009, 0.011, 0.010)
    )
    assert explained(*rows).costs.let_go_cpu_s == ()


def test_without_workers_nothing_is_put_or_received() -> None:
    own = made(worker=-1, others_cpu=MISSING, process_cpu=MISSING)
    missing = dict.fromkeys(
        ("serialising", "serialised", "received", "rebuilt", "receive_cpu"), MISSING
    )
    found = explained(row(0, made=own, **missing))
    assert {stage.name for stage in found.stages} >= {"fetch", "collate", "hold_up"}
    assert not {stage.name for stage in found.stages} & {"pick_up", "serialise", "queue", "rebuild"}
    assert found.costs.put_cpu_s == found.costs.receive_cpu_s == found.costs.receive_io_s == (0.0,)
    assert found.workers == ()
    assert found.age_s == pytest.approx(0.014)


def test_only_the_windows_batches_count() -> None:
    rows = [row(number, start=20 * MS * number) for number in range(10)]
    found = explained(*rows, window=(100 * MS, 200 * MS))
    assert found.batches == 5
    assert found.window_s == pytest.approx(0.1)
    assert found.wait_fraction == pytest.approx(0.3)
    assert found.waiting_batches["fetch"] == pytest.approx(50 * 0.004)


def test_an_empty_window_says_so() -> None:
    found = explained(row(0), window=(100 * MS, 200 * MS))
    assert found.batches == 0
    assert found.stages == ()
    assert "stages" in found.unavailable


def test_batches_without_stamps_are_said_to_be() -> None:
    found = explained(row(0, made=None))
    assert "fetch" in found.unavailable
    assert found.stage("wait") is not None
    assert found.age_s is None


def test_reasons_of_the_tracer_are_kept() -> None:
    found = explained(row(0, made=None), hooked=False, unavailable={"hooks": "why"})
    assert not found.hooked
    assert found.unavailable == {"hooks": "why"}


def test_percentiles_of_copies_are_those_of_all_stages() -> None:
    """Of the same times, the same figures: linear between the two about it."""
    times = [3 * MS, 5 * MS, 4 * MS, 9 * MS]
    rows = [row(i, made=made(fetched=2 * MS + each)) for i, each in enumerate(times)]
    found = with_copies(explained(*rows), 0.0, [each * 1e-9 for each in times])
    fetch, copy = (found.stage(name) for name in ("fetch", "copy"))
    assert fetch is not None
    assert copy is not None
    assert copy.p95_s == pytest.approx(fetch.p95_s)
    assert copy.p95_s == pytest.approx(0.0084)


def samples(*ns: int, **given: Any) -> Made:
    timed = {"samples": len(ns), "samples_ns": sum(ns), "worst_ns": max(ns)}
    return made(**{**timed, "kept": array("d", [each * 1e-9 for each in ns]).tobytes(), **given})


def test_samples_of_all_batches_count() -> None:
    rows = [
        row(0, made=samples(MS, 2 * MS, slowest=(("7", 2 * MS),))),
        row(1, made=samples(MS, 9 * MS, slowest=(("3", 9 * MS),))),
    ]
    found = explained(*rows).samples
    assert found is not None
    assert found.count == 4
    assert (found.mean_s, found.median_s) == pytest.approx((0.00325, 0.001))
    assert (found.p99_s, found.max_s) == pytest.approx((0.009, 0.009))
    assert found.slowest == pytest.approx({"3": 0.009, "7": 0.002})
    assert list(found.slowest) == ["3", "7"]


def test_a_kept_sample_stands_for_those_that_were_not() -> None:
    large = samples(MS, MS, samples=200, samples_ns=200 * MS)
    small = samples(5 * MS, 5 * MS)
    found = explained(row(0, made=large), row(1, made=small)).samples
    assert found is not None
    assert found.count == 202
    assert found.p95_s == pytest.approx(0.001)


def test_transforms_have_their_share_of_fetching() -> None:
    rows = [row(0, made=made(chain=(2, MS, 2, 2 * MS))), row(1, made=made(chain=(2, MS, 0, 0)))]
    first, second = explained(*rows, names=("0 Decode", "1 Crop")).transforms
    assert (first.name, first.mean_s, first.share) == ("0 Decode", 0.0005, 0.25)
    assert (second.name, second.mean_s, second.share) == ("1 Crop", 0.001, 0.25)


def worker_rows(**given: Any) -> list[Row]:
    """Batches of worker 0, one each 10 ms, that grow by 1000 bytes a batch."""
    rows = []
    for number in range(20):
        facts = Facts(5000 + 1000 * number, 3, 2)
        start = 10 * MS * number
        own = made(start=start, ordinal=number, process_cpu=start // 2, facts=facts, **given)
        rows.append(row(number, start=start, made=own))
    return rows


def test_a_step_has_the_cpu_of_all_threads_of_its_process() -> None:
    """3 ms between a batch and the next that is asked for; between epochs there is no step."""
    rows = [
        row(number, start=number * 20 * MS, epoch=number // 3, process_cpu=number * 10 * MS)
        for number in range(6)
    ]
    for before, after in itertools.pairwise(rows):
        after.asked_process_cpu = before.process_cpu + (
            3 * MS if before.epoch == after.epoch else MS
        )
    assert explained(*rows).step_cpu_s == pytest.approx(0.003)
    assert explained(row(0), row(1, start=20 * MS)).step_cpu_s is None


def test_what_a_worker_does() -> None:
    (worker,) = explained(*worker_rows(), window=(0, 400 * MS)).workers
    assert (worker.worker, worker.batches) == (0, 20)
    assert worker.busy_fraction == pytest.approx(0.25)
    assert worker.cpu_cores == pytest.approx(0.5)
    assert (worker.threads, worker.affinity_cpus) == (3, 2)
    assert worker.pss_growth_bytes_per_batch == pytest.approx(1000)


def test_a_worker_that_was_started_again_did_not_shrink() -> None:
    rows = worker_rows()
    assert rows[12].made is not None
    for number, each in enumerate(rows[12:]):
        assert each.made is not None
        each.made = each.made._replace(ordinal=number, process_cpu=number)
    (worker,) = explained(*rows).workers
    assert worker.pss_growth_bytes_per_batch == pytest.approx(1000)
    assert worker.cpu_cores is not None
    assert worker.cpu_cores > 0


def test_too_few_readings_are_no_slope() -> None:
    (worker,) = explained(*worker_rows()[:3]).workers
    assert worker.pss_growth_bytes_per_batch is None


def test_a_timeline_starts_with_its_window() -> None:
    rows = [row(1, start=20 * MS), row(0)]
    found = timeline(trace(*rows), trial_id="t7", window=(10 * MS, 100 * MS))
    assert found.began_at.startswith("2001-09-09T01:46:40.01")
    assert found.batch == (0, 1)
    assert found.worker == (0, 0)
    assert found.picked_s == pytest.approx((-0.008, 0.012))
    assert found.yielded_s == pytest.approx((0.006, 0.026))
    assert found.pinned_s == (None, None)
    assert found.dropped == 0
    assert timeline(trace(*rows), trial_id="t7", most=1).dropped == 1


stamps = st.integers(MISSING, 2**62)


@given(st.lists(st.tuples(stamps, stamps, st.booleans()), max_size=12), st.integers(1, 6))
def test_a_ring_gives_back_its_latest_rows(values: list[Any], capacity: int) -> None:
    ring = Ring(capacity)
    rows = [
        Row(
            epoch=0,
            batch=number,
            asked=first,
            yielded=second,
            made=made(picked=first, facts=Facts(1, 2, 3), kept=b"12345678") if own else None,
        )
        for number, (first, second, own) in enumerate(values)
    ]
    for each in rows:
        ring.add(each)
    assert list(ring.rows()) == rows[-capacity:]
    assert ring.added == len(rows)
    ring.clear()
    for each in rows[:1]:
        ring.add(each)
    assert list(ring.rows()) == rows[:1]


@given(st.lists(st.floats(0, 1e6), min_size=1), st.floats(0, 1))
def test_a_quantile_lies_between_its_neighbours(values: list[float], share: float) -> None:
    ordered = sorted(values)
    assert ordered[0] <= quantile(ordered, share) * (1 + 1e-12)
    assert quantile(ordered, share) <= ordered[-1] * (1 + 1e-12)


@given(gaps=st.lists(st.integers(0, 10**9), min_size=9, max_size=9), pins=st.booleans())
def test_stages_tile_a_batchs_age(gaps: list[int], *, pins: bool) -> None:
    at = [sum(gaps[: number + 1]) for number in range(len(gaps))]
    way = row(
        0,
        made=made(picked=at[0], fetched=at[1], collated=at[2]),
        serialising=at[3],
        serialised=at[4],
        received=at[5],
        rebuilt=at[6],
        pinned=at[7] if pins else MISSING,
        yielded=at[8],
    )
    found = explained(way)
    assert found.age_s is not None
    total = sum(stage.mean_s for stage in found.stages if stage.name in AGE_STAGES)
    assert total == pytest.approx(found.age_s, abs=1e-12)
