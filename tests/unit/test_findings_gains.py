"""What a change would bring: measured, else modeled, else estimated."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import pytest
from builders import around, config, failed
from finding_cases import QUIET, Loader, evidence, modeled, with_usage
from hypothesis import given
from hypothesis import strategies as st

from dlprof.advise.findings import claims
from dlprof.advise.findings.claims import (
    Claim,
    Gain,
    best_of_measured,
    gain_of,
    measured_gain,
)
from dlprof.advise.findings.diagnosis import diagnose, find
from dlprof.advise.findings.evidence import (
    Costs,
    Evidence,
    ModelAtStep,
    Observation,
    StageTime,
    costs_of,
)
from dlprof.advise.wording import NO_LIMIT
from dlprof.model.calibrate import fit
from dlprof.model.predict import RELATIVE_ERROR
from dlprof.records import (
    BatchCosts,
    Config,
    Estimate,
    Explanation,
    RankFigures,
    Stage,
    Usage,
)
from dlprof.records.stages import StageName
from dlprof.report.findings import answer, known_gain

WAITING = Loader(fetch_io=0.02, rate=100)
MORE = config(8)


def of_workers(chosen: Config, cores: float) -> Estimate | None:
    """50 batches per second for each worker; no more than 8 workers are known of."""
    if chosen.num_workers > 8:
        return None
    return around(50.0 * chosen.num_workers * min(1.0, cores))


def test_a_measured_gain_comes_first() -> None:
    view = evidence(WAITING, variants={MORE: 3.0}, predict=modeled(of_workers))
    gain = gain_of(view, MORE)
    assert gain is not None
    assert gain.source == "measured"
    assert gain.value == pytest.approx(3.0, rel=1e-4)
    assert gain.trials == ("t0004", "t0005")


def test_the_model_comes_before_the_bound() -> None:
    view = evidence(WAITING, predict=modeled(of_workers))
    gain = gain_of(view, MORE)
    assert gain is not None
    assert (gain.source, gain.value) == ("model", 4.0)
    assert gain.estimate.low is not None
    assert gain.estimate.low < 4.0


def predicted_gain(chosen: Config, *, before: float, after: float) -> Estimate:
    """Of a model whose rates may each be off by such logarithms."""

    def off(asked: Config, _cores: float) -> Estimate:
        half = before if asked == WAITING.config else after
        return Estimate(value=10.0, low=10.0 * math.exp(-half), high=10.0 * math.exp(half))

    gain = gain_of(evidence(WAITING, predict=modeled(off)), chosen)
    assert gain is not None
    return gain.estimate


def test_what_two_predictions_have_wrong_alike_cancels() -> None:
    found = predicted_gain(MORE, before=0.5, after=0.5)
    assert found.low == pytest.approx(math.exp(-2 * RELATIVE_ERROR))
    narrow = predicted_gain(MORE, before=0.03, after=0.04)
    assert narrow.low == pytest.approx(math.exp(-0.05))


def test_what_only_one_of_two_predictions_is_sure_of_does_not_cancel() -> None:
    assert predicted_gain(MORE, before=0.5, after=0.1).low == pytest.approx(math.exp(-0.4))
    alone = predicted_gain(config(0), before=0.3, after=0.4)  # other trials show main
    assert alone.low == pytest.approx(math.exp(-0.5))


def test_what_the_model_does_not_know_is_estimated() -> None:
    view = evidence(WAITING, predict=modeled(of_workers))
    gain = gain_of(view, config(12))
    assert gain is not None
    assert gain.source == "bound"
    assert gain.value == pytest.approx(6.0, rel=0.05)


def test_a_remedy_that_failed_brings_nothing() -> None:
    seen = evidence(WAITING)
    lost = Observation(trial=failed(MORE))
    view = dataclasses.replace(seen, observations=(*seen.observations, lost))
    gain = measured_gain(view, MORE)
    assert gain is not None
    assert gain.value == 0.0
    assert gain.saved == 0.0


@pytest.mark.parametrize(
    ("less", "noisy", "workers"),
    [(1.5, False, 2), (1.4, False, 4), (1.49, True, 4), (1.8, True, 2)],
)
def test_fewer_workers_are_the_fix_where_they_are_likely_as_good(
    less: float, *, noisy: bool, workers: int
) -> None:
    """Three quarters sure, as in every choice: beside others 1.49 may as well be less than 1.45."""
    usage = Usage(own_cpu_cores=1.0, available_cpu_cores=1.0) if noisy else QUIET
    seen = evidence(
        Loader(config=config(1), fetch_io=0.02, rate=50),
        variants={config(2): less, config(4): 1.5},
        noisy=noisy,
        usage=usage,
    )
    claim = Claim(title="", explanation="", cost=0.3, config=config(4))
    found = best_of_measured(
        seen, dataclasses.replace(claim, gain=Gain(estimate=around(1.5), source="model"))
    )
    assert found.config == config(workers)
    assert (found.fix != "") is (workers == 2)


def test_a_fix_that_is_hardly_known_stays_where_fewer_workers_were_slower() -> None:
    """It is the best of all, however little is known of how much it brings."""
    seen = evidence(Loader(config=config(1), fetch_io=0.02, rate=50), variants={config(2): 0.6})
    unsure = Gain(estimate=Estimate(value=3.0, low=0.1, high=90.0), source="model")
    claim = Claim(title="", explanation="", cost=0.3, config=config(8), gain=unsure)
    assert best_of_measured(seen, claim).config == config(8)


def test_fewer_workers_than_now_are_no_fix_of_too_few() -> None:
    """However unsure more are: "More workers would pay" had "Tried num_workers=0" below it."""
    loader = Loader(config=config(1), fetch_io=0.02, rate=50)
    seen = evidence(loader, variants={config(0): 1.3, config(14): 1.2})
    unsure = Gain(estimate=Estimate(value=1.2, low=0.6, high=2.4), source="measured")
    claim = Claim(title="", explanation="", cost=0.3, config=config(14), gain=unsure)
    assert best_of_measured(seen, claim).config == config(14)


def test_without_workers_only_a_calibration_shows_workers() -> None:
    alone = Loader(config=config(0), fetch_cpu=0.02, rate=50)
    assert gain_of(evidence(alone), config(2)) is None
    beside = Loader(config=config(2), fetch_cpu=0.02)
    gain = gain_of(evidence(alone, calibrations=[beside]), config(2))
    assert gain is not None
    assert gain.value == pytest.approx(2.0, rel=0.1)


def _costs(cpu: float, io: float, main: float, step: float) -> Costs:
    return Costs(
        fetch=StageTime(cpu_s=cpu, io_s=io),
        collate=StageTime(),
        put_cpu_s=0.0,
        receive=StageTime(cpu_s=main),
        dispatch=StageTime(),
        pin_s=0.0,
        copy_s=0.0,
        wait_s=0.01,
        step_s=step,
        period_s=0.01,
        usual_io_s=io,
    )


SECONDS = st.floats(0.0, 1.0)


@given(SECONDS, SECONDS, SECONDS, SECONDS, st.integers(1, 64), st.floats(0.5, 128))
def test_more_workers_and_cores_never_reckon_slower(
    cpu: float, io: float, main: float, step: float, workers: int, cores: float
) -> None:
    costs = _costs(cpu, io, main, step)
    now = costs.rate(config(workers), cores)
    assert costs.rate(config(workers + 1), cores) >= now
    assert costs.rate(config(workers), cores + 1) >= now
    assert now > 0


def test_figures_that_are_not_parted_are_shared_out() -> None:
    explained = Explanation(
        trial_id="t1",
        config=config(1),
        window_s=1.0,
        batches=10,
        stages=(_plain("fetch", 0.06), _plain("collate", 0.02)),
        costs=BatchCosts(cpu_s=(0.04,), io_s=(0.04,), run_queue_s=(0.0,)),
    )
    costs = costs_of(explained)
    assert costs.fetch.cpu_s == pytest.approx(0.03)
    assert costs.collate.io_s == pytest.approx(0.01)
    assert costs.period_s == pytest.approx(0.1)


def test_stages_alone_count_as_cpu() -> None:
    explained = Explanation(
        trial_id="t1", config=config(1), window_s=1.0, batches=10, stages=(_plain("fetch", 0.06),)
    )
    assert costs_of(explained).fetch.cpu_s == 0.0
    bare = dataclasses.replace(explained, stages=(*explained.stages, _plain("collate", 0.02)))
    assert costs_of(bare).fetch.cpu_s == pytest.approx(0.06)


@pytest.mark.parametrize(("queued_s", "waited_s"), [(0.0, 0.009), (0.004, 0.005)])
def test_a_sampler_that_waits_takes_no_core(queued_s: float, waited_s: float) -> None:
    """Drawing takes 10 ms, 1 ms of it CPU; main waits for a core as long as in taking batches."""
    rows = BatchCosts(cpu_s=(0.03,), io_s=(0.0,), main_cpu_s=(0.001,), receive_cpu_s=(0.0002,))
    taken = Stage(
        name="rebuild",
        mean_s=0.0002 + queued_s / 5,
        median_s=0.0002,
        p95_s=0.0002,
        max_s=0.0002,
        cpu_s=0.0002,
        run_queue_s=queued_s / 5,
    )
    explained = Explanation(
        trial_id="t1",
        config=config(8),
        window_s=1.0,
        batches=60,
        stages=(_plain("fetch", 0.03), _plain("dispatch", 0.01), taken),
        costs=dataclasses.replace(rows, receive_io_s=(0.0,)),
    )
    costs = costs_of(explained)
    drawn = dataclasses.astuple(costs.dispatch)
    assert drawn == pytest.approx((0.001, waited_s, queued_s))
    # Of two cores workers have what main doesn't take: 31.2 ms of CPU a batch, not 40.2.
    assert costs.rate(config(8), 2.0) == pytest.approx(2 / 0.0312, rel=0.01)
    own, alone = (costs.shaped(rows, workers) for workers in (1, 0))
    assert own.main_cpu_s + alone.main_cpu_s == pytest.approx((0.001, 0.001))
    assert own.receive_io_s + alone.io_s == pytest.approx((waited_s, waited_s))


def _plain(name: StageName, mean_s: float) -> Stage:
    return Stage(name=name, mean_s=mean_s, median_s=mean_s, p95_s=mean_s, max_s=mean_s)


@pytest.mark.parametrize(
    ("loader", "limit"),
    [
        (Loader(fetch_cpu=0.01, rate=50, step=0.0195), "consumer"),
        (Loader(fetch_cpu=0.019, rate=100), "workers"),
        (Loader(config=config(0), fetch_cpu=0.019, rate=50), "workers"),
        (Loader(fetch_cpu=0.004, receive=0.009, busy=0.4, rate=100), "main"),
        (Loader(fetch_io=0.01, busy=0.5, rate=100), "waiting"),
        (Loader(fetch_cpu=0.004, pin=0.009, busy=0.4, rate=100), "pin"),
    ],
)
def test_who_holds_the_others_up(loader: Loader, limit: str) -> None:
    assert evidence(loader).limit == limit


@given(
    st.floats(0, 0.05), st.floats(0, 0.05), st.floats(0, 0.05), st.floats(0, 1),
    st.floats(1, 500), st.integers(0, 16), st.floats(0, 0.02), st.floats(0, 0.02),
)  # fmt: skip
def test_whatever_is_measured_costs_fall_and_are_shares(
    cpu: float, io: float, starved: float, busy: float,
    rate: float, workers: int, receive: float, hold_up: float,
) -> None:  # fmt: skip
    loader = Loader(
        config=config(workers),
        fetch_cpu=cpu,
        fetch_io=io,
        starved=starved,
        busy=busy,
        rate=rate,
        receive=receive,
        hold_up=hold_up,
    )
    alone = [Loader(config=config(count), fetch_cpu=cpu) for count in (0, 1, 2)]
    findings = find(evidence(loader, calibrations=[c for c in alone if c.config != loader.config]))
    costs = [finding.cost for finding in findings]
    assert all(0 <= cost <= 1 for cost in costs)
    paid = [cost for cost in costs if cost > 0]
    assert paid == sorted(paid, reverse=True)
    assert len({finding.code for finding in findings}) == len(findings)


@pytest.mark.parametrize(("tensors", "least", "most"), [(0, 10.0, 30.0), (2, 1.2, 2.0)])
def test_collating_into_objects_costs_their_handing_over_too(
    tensors: int, least: float, most: float
) -> None:
    lists = Loader(
        config=config(1), rate=30, fetch_cpu=0.001, collate_cpu=0.01, put_cpu=0.02, receive=0.008
    )
    first = find(evidence(lists, target_fields={"batch_tensors": tensors}))[0]
    assert first.code == "collate"
    assert first.predicted_gain is not None
    assert least <= first.predicted_gain.value <= most


def test_a_gain_has_the_figure_that_all_views_of_the_run_print() -> None:
    seen = dataclasses.replace(evidence(WAITING), gain=lambda _config: around(1.5))
    gains = [each.predicted_gain for each in find(seen) if each.fix and each.fix.dataloader_kwargs]
    assert gains
    assert all(gain is not None and gain.value == 1.5 for gain in gains)


def test_a_gain_that_is_too_noisy_has_no_figure() -> None:
    sure, wide = (
        Gain(estimate=Estimate(value=3.0, low=low, high=4.0), source="model") for low in (2.5, 1.2)
    )
    assert (sure.words, wide.words) == ("is 3.00x as fast", "is faster")


def test_what_to_do_about_collating_depends_on_whose_function_it_is() -> None:
    lists = Loader(config=config(1), rate=30, fetch_cpu=0.001, collate_cpu=0.01)
    names = (None, "data.pad", "torch.utils.data._utils.collate.default_collate")
    fixes = [
        find(evidence(lists, target_fields={"batch_tensors": 1, "collate_fn": name}))[0].fix
        for name in names
    ]
    assert [fix is not None and "Python" in fix.text for fix in fixes] == [True, True, False]
    assert [fix is not None and bool(fix.code) for fix in fixes] == [True, True, False]


@pytest.mark.parametrize("tried", [False, True])
def test_collating_that_is_blocked_is_done_by_more_workers(*, tried: bool) -> None:
    """As a tokenizer on a server: there is nothing to compute in another way."""
    asks = Loader(config=config(1), rate=24, fetch_cpu=0.0002, collate_io=0.04)
    more = {config(16): 12.0} if tried else {}
    first, *rest = find(evidence(asks, variants=more))
    assert first.code == "collate"
    assert first.fix is not None
    assert first.fix.dataloader_kwargs["num_workers"] == 16
    assert "Python" not in first.fix.text
    assert not first.fix.code
    assert first.predicted_gain is not None
    assert first.predicted_gain.value == pytest.approx(12.0 if tried else 16.0, rel=0.2)
    assert "too_few_workers" not in [each.code for each in rest]


def test_collating_in_python_keeps_main_waiting_for_the_workers_answer() -> None:
    """Of the 6 ms that receiving a tensor takes, all but 0.3 are the worker's collating."""
    lists = Loader(config=config(1), rate=45, fetch_cpu=0.0005, collate_cpu=0.02)
    waits = dataclasses.replace(lists, hand_shake=0.006)
    for loader, least in ((lists, 20.0), (waits, 15.0)):
        first = find(evidence(loader, target_fields={"batch_tensors": 1}))[0]
        assert first.code == "collate"
        assert first.predicted_gain is not None
        assert first.predicted_gain.value >= least


def modelled(loader: Loader, usage: Usage = QUIET, **fields: Any) -> Evidence:
    """Evidence with the model that its own trials are fitted with."""
    view = evidence(loader, usage=usage, **fields)
    calibration = fit(view.explanations(), view.trials("present"))
    return dataclasses.replace(view, predict=ModelAtStep.at_step(calibration, loader.step))


STORED = Loader(fetch_io=0.02, fetch_cpu=0.001, rate=94, step=0.005)
COMPUTED = Loader(fetch_cpu=0.02, fetch_io=0.001, rate=94, step=0.005)
RECEIVED = Loader(fetch_cpu=0.004, receive=0.009, busy=0.4, rate=70, step=0.005)
PAGED = dataclasses.replace(QUIET, memory_pressure_fraction=0.9)


@pytest.mark.parametrize(
    ("loader", "usage", "part", "after_s"),
    [
        # Two workers make a batch each in cpu + io; a step of 5 ms and receiving are in series.
        (STORED, QUIET, "storage", 0.005 + 0.0003 + 0.00005),
        (STORED, PAGED, "memory", 0.005 + 0.0003 + 0.00005),
        (COMPUTED, QUIET, "host_cpu", 0.005 + 0.0003 + 0.00005),
        (RECEIVED, QUIET, "main_process", 0.005),
    ],
)
def test_the_part_that_was_planted_is_what_the_loader_would_gain_most_without(
    loader: Loader, usage: Usage, part: str, after_s: float
) -> None:
    first, *rest = diagnose(modelled(loader, usage)).without
    assert (first.part, first.source) == (part, "model")
    making_s = loader.fetch_cpu + loader.fetch_io + loader.collate_cpu + loader.put_cpu
    now_s = max(making_s / 2, loader.step + loader.receive + loader.dispatch)
    assert first.gain.value == pytest.approx(now_s / after_s, rel=0.05)
    low, high = first.gain.ends
    assert low < now_s / after_s < high
    assert all(each.gain.value < 1.5 for each in rest)


CROWD = Usage(own_cpu_cores=0.1, available_cpu_cores=0.1, other_cpu_cores=1.9, other_runnable=4.0)
WAITS = Loader(config=config(1), fetch_io=0.02, fetch_cpu=0.002, starved=0.002, rate=41)


def test_storage_is_the_limit_of_a_loader_that_waits_beside_a_crowd() -> None:
    """It had no more cores than it used, and would get its share of them if it didn't wait."""
    first = diagnose(modelled(WAITS, CROWD)).without[0]
    assert first.part == "storage"
    assert first.gain.value > 2.0


@pytest.mark.parametrize("fetch_cpu", [0.004, 0.012])
def test_receiving_stays_the_limit_beside_a_crowd(fetch_cpu: float) -> None:
    """Main has its thread's share of the cores, and workers that cost nothing take none of it."""
    crowd = dataclasses.replace(CROWD, other_runnable=8.0, run_queue_wait_fraction=0.75)
    receives = Loader(fetch_cpu=fetch_cpu, receive=0.009, busy=0.4, rate=30)
    first, *rest = diagnose(modelled(receives, crowd)).without
    assert first.part == "main_process"
    assert all(1 <= each.gain.value < 1.2 for each in rest)


def test_more_workers_that_wait_gain_beside_a_crowd() -> None:
    """Each gets its share of the cores: the tenth of one that one used is no limit of four."""
    gain = gain_of(modelled(WAITS, CROWD), config(4))
    assert gain is not None
    assert gain.source == "model"
    assert gain.value > 3.0


def test_more_workers_that_compute_gain_nothing_beside_another_session() -> None:
    """It has a share of its own: the same, however many threads it has."""
    crowd = Usage(
        own_cpu_cores=0.5, available_cpu_cores=0.5, other_cpu_cores=1.5, other_runnable=6.0
    )
    computes = Loader(config=config(1), fetch_cpu=0.02, rate=25)
    by_thread, by_session, *beyond = (
        gain_of(
            modelled(
                computes,
                dataclasses.replace(crowd, fair_cpu_cores=fair),
                machine_fields={"affinity_cpus": 2},
            ),
            config(4),
        )
        for fair in (None, 0.5, 2.0, 16.0)
    )
    assert by_thread is not None
    assert by_thread.value > 1.5
    assert by_session is None or by_session.value < 1.1
    # Of several ranks each has its part of the cores.
    assert beyond[0] == beyond[1]


def test_others_on_cores_that_a_quota_leaves_to_nobody_take_nothing() -> None:
    busy_host = dataclasses.replace(CROWD, other_cpu_cores=40.0, other_runnable=40.0)
    for cpus, taken in ((64, 0.0), (41, 1.0), (2, 40.0)):
        view = modelled(WAITS, busy_host, machine_fields={"affinity_cpus": cpus})
        assert view.beside == pytest.approx(taken)


def test_without_any_part_a_slow_step_stays_slow() -> None:
    found = diagnose(modelled(Loader(fetch_cpu=0.01, rate=50, step=0.0195))).without
    assert {each.part for each in found} == {"storage", "host_cpu", "main_process"}
    assert all(each.gain.value < 1.03 for each in found)


@pytest.mark.parametrize(
    ("loader", "gain"),
    [
        # One in four waits for nobody, the others for half of their time.
        (Loader(fetch_cpu=0.001, rate=100, step=0.004), (1 + 3 * 2) / 4),
        # Where workers are the limit, they load on while their rank waits.
        (Loader(fetch_io=0.0197, rate=100, step=0.004), 1.0),
    ],
)
def test_ranks_that_wait_for_slower_ones_would_gain_their_barrier(
    loader: Loader, gain: float
) -> None:
    ranks = tuple(
        RankFigures(rank=n, host="box", barrier_fraction=0.5 if n else 0.0) for n in range(4)
    )
    found = diagnose(modelled(loader, trial_fields={"ranks": ranks})).without
    (barrier,) = (each for each in found if each.part == "barrier")
    assert barrier.source == "bound"
    assert barrier.gain.value == pytest.approx(gain, rel=0.01)


def test_what_workers_wait_for_each_other_is_no_storage() -> None:
    held = dataclasses.replace(STORED, config=config(2))
    traced = modelled(held)
    looks = {"lock": 0.9, "queue": 0.05}
    view = with_usage(traced, worker_waits=looks)
    (storage,) = (each for each in diagnose(view).without if each.part == "storage")
    assert storage.gain.value < 1.2


def test_a_lock_is_worth_its_part_of_the_blocked_time() -> None:
    """Four workers that sleep under one lock become four times as fast.

    Looks that find them awake, or waiting for a core, take nothing from that: 1.71x was promised.
    """
    loader = Loader(config=config(4), fetch_cpu=0.0005, fetch_io=0.048, starved=0.02, rate=60)
    seen = evidence(loader)
    looks = {"lock": 0.45, "sleep": 0.15, "running": 0.4}
    first = find(with_usage(seen, worker_waits=looks))[0]
    assert first.code == "lock"
    assert first.predicted_gain is not None
    assert first.predicted_gain.value == pytest.approx(4.0, rel=0.1)


def test_no_lock_costs_more_than_all_workers_but_the_one_that_has_it() -> None:
    """Looks that found each of eight waiting promised 333x."""
    loader = Loader(config=config(8), fetch_cpu=0.0001, fetch_io=0.08, collate_cpu=0.0, rate=100)
    seen = evidence(loader, cores=64)
    looks = Usage(worker_waits={"lock": 0.9, "running": 0.1})
    first = find(with_usage(seen, looks))[0]
    assert first.code == "lock"
    assert first.predicted_gain is not None
    assert 6.0 < first.predicted_gain.value < 8.01


def test_nothing_traced_says_nothing_of_parts() -> None:
    bare = modelled(STORED)
    plain = tuple(each for each in bare.observations if each.explanation is None)
    assert diagnose(dataclasses.replace(bare, observations=plain)).without == ()


STREAM = {"kind": "iterable", "length": None, "batches_per_epoch": None}


def test_workers_that_are_advised_have_as_many_shards() -> None:
    """Of 24, some of 16 workers have two, as each of 12: those end an epoch as soon."""
    more = find(evidence(WAITING, target_fields={**STREAM, "shards": 24}))[0]
    assert more.fix is not None
    assert more.fix.dataloader_kwargs == {"num_workers": 12}


@pytest.mark.parametrize(
    ("target", "whole", "needs"),
    [
        (STREAM, False, "its shards feed all workers alike"),
        (STREAM, True, None),  # it was compared by whole epochs
        ({**STREAM, "shards": 32}, False, "its shards feed all workers alike"),
        ({**STREAM, "shards": 46}, False, "its 46 shards are alike"),  # 3 or 2 each
        ({"batches_per_epoch": 20}, False, "all workers get as many batches"),  # 16 and 4
        ({"batches_per_epoch": 1000}, False, None),
    ],
)
def test_a_gain_of_more_workers_says_what_an_epochs_end_may_take_of_it(
    target: dict[str, Any], *, whole: bool, needs: str | None
) -> None:
    """There the last shard's worker loads alone: 1.94x was promised of a loop that became 1.31x."""
    seen = evidence(
        WAITING,
        variants={config(16): 6.0},
        target_fields=target,
        trial_fields={"whole_epochs": whole},
    )
    more = next(each for each in find(seen) if each.fix and each.fix.dataloader_kwargs)
    assert more.fix is not None
    assert more.fix.dataloader_kwargs == {"num_workers": 16}
    assert more.evidence.get("gain_if") == needs
    assert (f", if {needs}, measured" in known_gain(more)) is (needs is not None)
    unknown = dataclasses.replace(more, predicted_gain=None)
    (fix,) = (said for name, said in answer([unknown]) if name == "Fix")
    assert fix == "num_workers=16" + (f", if {needs}" if needs else "")


def _waiting(*fewer: float, cpu_s: float = 0.001, tried: float | None = None) -> Evidence:
    """Two workers whose batches wait for 20 ms; of one worker they waited so long, if traced."""
    loader = Loader(fetch_cpu=cpu_s, fetch_io=0.02, rate=95)
    alone = [Loader(config=config(1), fetch_cpu=cpu_s, fetch_io=io, rate=45) for io in fewer]
    return evidence(loader, calibrations=alone, variants={config(3): tried} if tried else None)


@pytest.mark.parametrize(
    ("seen", "may_share", "far"),
    [
        (_waiting(), True, True),  # nobody saw any other number of workers
        (_waiting(0.02), False, True),  # nor 16 of them
        (_waiting(0.0165), True, True),  # of a server that serves two no longer as fast as one
        (_waiting(0.02, tried=1.02), True, True),
        (_waiting(0.02, tried=1.4), False, True),
        (_waiting(cpu_s=0.03), False, False),  # mostly they compute
    ],
)
def test_a_limit_that_workers_may_share_takes_the_gain_of_more(
    seen: Evidence, *, may_share: bool, far: bool
) -> None:
    """An object store that serves 400 requests a second made 1.05x of the 3.3x promised.

    One that serves 300, of which two workers asked for half, made 1.9x of 7.3x.
    """
    more, crowd = gain_of(seen, MORE), claims.predicted_gain(seen, cores=2.0, now=0.7)
    first = next(each for each in find(seen) if each.fix and each.fix.dataloader_kwargs)
    assert more is not None
    assert crowd is not None
    assert more.may_share is crowd.may_share is may_share
    assert (more.estimate.ends[0] <= 1.0) is may_share
    assert not may_share or crowd.estimate.ends[0] <= 1.0
    needs = first.evidence.get("gain_if")
    said = dict(answer([first], 0.8, workers=2))
    if first.evidence["gain_from"] != "measured":
        assert (needs == NO_LIMIT) is far
        assert str(said["Speed-up"]).startswith("up to ") is far
        assert (f", if {NO_LIMIT}," in str(said["Speed-up"])) is far
        assert "dlprof sweep measures" in str(said["Fix"]) or not far
    text = "" if first.fix is None else first.fix.text
    assert ("predicted" in text) is ("by threads" in text and not may_share)


def test_no_gain_is_more_than_the_step_allows() -> None:
    # The step takes 5 ms of 20, and the sampler 14.
    slow = Loader(dispatch=0.014, fetch_cpu=0.004, step=0.005, rate=50.0, busy=0.1)
    view = evidence(slow)
    waits = {"t0001": 0.78, "t0002": 0.72}  # the mean is what screens have
    seen = (
        dataclasses.replace(
            each, trial=dataclasses.replace(each.trial, wait_fraction=waits.get(each.trial.id))
        )
        for each in view.observations
    )
    view = dataclasses.replace(view, observations=tuple(seen))
    assert view.mean_wait == pytest.approx(0.75)
    # Traced, the step takes less: a crowd comes and goes.
    traced = dataclasses.replace(slow, step=0.001)
    observations = (*view.observations[:2], *evidence(traced).observations[2:])
    found = diagnose(dataclasses.replace(view, observations=observations))
    first = found.findings[0]
    assert first.code == "main.sampler"
    for gain in (first.predicted_gain, *(each.gain for each in found.without)):
        assert gain is not None
        assert gain.ends[0] <= gain.value <= gain.ends[1] <= 4.0 + 1e-9  # no wait at all
    assert first.predicted_gain is not None
    assert first.predicted_gain.value == pytest.approx(4.0)
    assert first.predicted_gain.ends[0] < 3.5  # which isn't sure because of the step
    assert found.stalls is not None  # of the same trials as the wait, as no other has its step
    assert found.stalls.prep_fraction == pytest.approx(0.75)
    assert found.stalls.resident_s == pytest.approx(0.005)


def test_however_noisy_more_workers_bring_no_more_than_they_are_more() -> None:
    """Rates of each that are 15 times apart: the belief goes up to 137x for 8 times the workers."""
    more = config(16)
    seen = evidence(Loader(fetch_io=0.02, rate=100), variants={more: 6.0}, noisy=True)
    apart = []
    for place, each in enumerate(seen.observations):
        rate = each.trial.batches_per_s
        assert rate is not None
        times = rate.times(0.2 if place % 2 else 3.0)
        apart.append(
            dataclasses.replace(each, trial=dataclasses.replace(each.trial, batches_per_s=times))
        )
    seen = dataclasses.replace(seen, observations=tuple(apart))
    measured, gain = measured_gain(seen, more), gain_of(seen, more)
    assert measured is not None
    assert gain is not None
    assert measured.estimate.ends[1] > 100
    assert gain.estimate.ends[1] == 8.0
