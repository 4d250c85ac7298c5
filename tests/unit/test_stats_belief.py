"""One belief from measurements and predictions: drift, noise, outliers, wrong models, speeds."""

from __future__ import annotations

import dataclasses
import math
import random
import statistics
from collections.abc import Iterable, Sequence
from typing import Any

import pytest
from builders import around, config, failed, trial
from hypothesis import given
from hypothesis import strategies as st

from dlprof.records import Config, Copies, Estimate, PredictedCell, RankFigures, Trial, Usage
from dlprof.stats.belief import (
    _JOINT,
    ADJUSTED_LOG_SD,
    COMPUTING_LOG_SD,
    NEAR,
    NEAR_LOG,
    NOISY_LOG_SD,
    WAITING_LOG_SD,
    Belief,
    Carried,
    ExpectedRates,
    Gap,
    ObservedRate,
    believe,
    log_work,
    near_best,
    observe,
    room_beside,
    room_of,
)
from dlprof.stats.intervals import t_quantile

Table = dict[str, list[float | None]]


@pytest.mark.parametrize(("error", "chosen"), [(0.03, 2), (0.05, 4)])
def test_fewer_workers_are_chosen_unless_it_is_a_quarter_likely_that_they_cost_3_percent(
    error: float, chosen: int
) -> None:
    """Of four workers, which seem 0.5 % faster: to 3 % and to 5 % known, 20 % and 31 % likely."""
    logs = {config(2): 0.0, config(4): 0.005}

    def gap(one: Config, two: Config) -> Gap:
        return Gap(logs[one] - logs[two], error, 1000.0)

    assert near_best(logs, None, gap)[0].num_workers == chosen


@pytest.mark.parametrize(("error", "chosen"), [(0.2, 0), (0.05, 4)])
def test_a_change_that_costs_more_has_to_be_likely_better(error: float, chosen: int) -> None:
    """Of four workers, which seem 8 % faster than none: to 20 % and to 5 % known."""
    logs = {config(0): 0.0, config(2): -0.2, config(4): 0.08}

    def gap(one: Config, two: Config) -> Gap:
        return Gap(logs[one] - logs[two], error, 1000.0)

    assert near_best(logs, config(0), gap)[0].num_workers == chosen
    assert near_best(logs, None, gap)[0].num_workers == 4  # nothing to stay with
    assert near_best(logs, config(4), gap)[0].num_workers == 4
    # That the step waits for what he has, and not for these, is a reason by itself.
    assert near_best(logs, config(0), gap, fed={config(4)})[0].num_workers == 4
    stays = near_best(logs, config(0), gap, fed={config(0), config(4)})[0]
    assert stays.num_workers == chosen


def seen(table: Table, log_sd: float = 0.10) -> list[ObservedRate]:
    """Observations from each configuration's rate in each block; ``None`` is a missing cell."""
    return [
        ObservedRate(key=key, block=block, log_rate=math.log(rate), log_sd=log_sd)
        for key, row in table.items()
        for block, rate in enumerate(row)
        if rate is not None
    ]


def expected(log_sd: float = 0.08, **rates: float) -> ExpectedRates:
    return ExpectedRates(
        log_rates={key: math.log(rate) for key, rate in rates.items()}, log_sd=log_sd
    )


def fastest(belief: Belief) -> str:
    return max(belief.log_rates, key=belief.log_rates.__getitem__)


def ends(estimate: Estimate) -> tuple[float, float]:
    assert estimate.low is not None
    assert estimate.high is not None
    return estimate.low, estimate.high


def width(estimate: Estimate) -> float:
    low, high = ends(estimate)
    return math.log(high / low)


def test_drift_between_blocks_cancels() -> None:
    belief = believe(seen({"a": [100, 50, 80], "b": [200, 100, 160]}))
    assert belief.ratio("b", "a").value == pytest.approx(2.0, rel=1e-3)
    assert fastest(belief) == "b"
    assert belief.blocks == {"a": 3, "b": 3}


def test_missing_cells_hardly_bias_the_ratio() -> None:
    """``a`` was only measured while the machine was slow."""
    table: Table = {"a": [None, 50, 50], "b": [200, 100, 100], "c": [100, 50, 50]}
    belief = believe(seen({**table, "d": [400, 200, 200]}, log_sd=0.02))
    assert belief.ratio("b", "a").value == pytest.approx(2.0, rel=0.03)
    assert belief.ratio("c", "a").value == pytest.approx(1.0, rel=0.03)


def test_what_was_neither_measured_nor_predicted_is_an_error() -> None:
    with pytest.raises(ValueError, match="nothing"):
        believe([])


def test_what_is_asked_once_more_is_not_computed_once_more() -> None:
    table: Table = {"a": [100.0, 99.0], "b": [110.0, 112.0]}
    other = expected(a=100.0, b=120.0)
    first = believe(seen(table), expected(a=100.0, b=110.0))
    assert believe(seen(table), expected(a=100.0, b=110.0)) is first
    assert believe(seen(table), other).log_rates != first.log_rates
    assert believe(seen({**table, "b": [110.0, 113.0]}), other) != believe(seen(table), other)


def test_a_disturbed_trial_is_outvoted_by_its_repeats() -> None:
    rates: list[float | None] = [100.0, 101.0, 99.0, 100.0, 30.0]
    belief = believe(seen({"a": rates, "b": [100, 99, 100, 101, 100]}, log_sd=0.02))
    assert belief.ratio("a", "b").value == pytest.approx(1.0, abs=0.06)


def test_repeats_narrow_the_interval_and_scatter_widens_it() -> None:
    few, many = (believe(seen({"a": [100.0] * n, "b": [110.0] * n})) for n in (2, 8))
    assert width(many.ratio("b", "a")) < width(few.ratio("b", "a"))
    wild = believe(seen({"a": [100, 130, 80, 120], "b": [110, 90, 140, 100]}, log_sd=0.02))
    calm = believe(seen({"a": [100, 101, 99, 100], "b": [110, 111, 109, 110]}, log_sd=0.02))
    assert width(wild.ratio("b", "a")) > 3 * width(calm.ratio("b", "a"))


@pytest.mark.parametrize(
    "log_sd", [0.05, *(pytest.param(each, marks=pytest.mark.slow) for each in (0.01, 0.12))]
)
def test_intervals_hold_as_often_as_they_claim(log_sd: float) -> None:
    held = 0
    for seed in range(300):
        rng = random.Random(seed)
        table: Table = {key: [] for key in "abc"}
        for _ in range(3):
            drift = rng.gauss(0, 0.03)
            for key in table:
                table[key].append(math.exp(5 + drift + rng.gauss(0, log_sd)))
        low, high = ends(believe(seen(table, log_sd)).ratio("a", "b"))
        held += low <= 1 <= high
    assert 0.93 <= held / 300 <= 1.0


@pytest.mark.slow
def test_one_trial_each_says_no_more_than_errors_with_tails_of_an_unknown_spread_allow() -> None:
    """Nothing shows the spread of a single trial, nor outvotes it where it was disturbed."""

    def spread(rng: random.Random) -> float:
        return math.sqrt(4 / rng.gammavariate(2, 2))  # of Student's t with 4 degrees of freedom

    held = 0
    for seed in range(600):
        rng = random.Random(seed)
        sd = 0.1 * spread(rng)
        rates: Table = {key: [math.exp(5 + sd * spread(rng) * rng.gauss(0, 1))] for key in "ab"}
        low, high = ends(believe(seen(rates)).ratio("a", "b"))
        held += low <= 1 <= high
    assert 0.94 <= held / 600 <= 0.98


def test_a_prediction_counts_until_repeats_outweigh_it() -> None:
    once = believe(seen({"a": [100], "b": [130]}), expected(0.02, a=100, b=100))
    assert once.ratio("b", "a").value < 1.1
    table: Table = {"a": [100, 100.5, 100.2, 99.8], "b": [130, 130.4, 130.1, 129.9]}
    often = believe(seen(table, log_sd=0.02), expected(0.02, a=100, b=100))
    assert often.ratio("b", "a").value == pytest.approx(1.3, abs=0.03)


def test_one_wrong_prediction_is_outvoted_and_the_others_stand() -> None:
    table: Table = {"a": [100, 101], "b": [200, 202], "c": [150, 150], "wrong": [200, 199]}
    model = expected(0.05, a=100, b=200, c=150, wrong=400, d=300)
    belief = believe(seen(table, log_sd=0.02), model)
    assert belief.ratio("wrong", "b").value == pytest.approx(1.0, abs=0.05)
    low, high = ends(belief.ratio("d", "b"))
    assert low < 1.5 < high
    assert belief.ratio("d", "b").value == pytest.approx(1.5, abs=0.15)


@pytest.mark.parametrize(
    ("claimed", "apart"), [(0.05, 0.1), pytest.param(0.08, 0.2, marks=pytest.mark.slow)]
)
def test_a_certificate_by_disturbed_trials_holds_where_the_calibration_is_far_off(
    claimed: float, apart: float
) -> None:
    """The model takes five for equal; they differ twice as much as it claims, and give a fifth."""
    held = 0
    for seed in range(100):
        rng = random.Random(seed)
        true = {str(workers): rng.gauss(3.5, apart) for workers in (3, 4, 6, 8, 12)}
        model = dataclasses.replace(
            expected(claimed, **dict.fromkeys(true, math.exp(5))),
            families={key: int(key) for key in true},
        )
        table: Table = {
            key: [math.exp(log + rng.gauss(0, 0.3)) for _ in range(3)] for key, log in true.items()
        }
        belief = believe(seen(table, log_sd=NOISY_LOG_SD), model)
        best = fastest(belief)
        held += max(true.values()) - true[best] <= shortfall_of(belief, best)
    assert held >= 95


def test_a_calibration_that_is_far_off_says_less_of_how_rates_differ() -> None:
    model = expected(0.03, a=100, b=100, c=100)
    near, far = (
        believe(seen({"a": [rate, rate], "b": [rate, rate]}, log_sd=0.05), model)
        for rate in (100.0, 22.0)
    )
    assert far.rate("c").value == pytest.approx(22, rel=0.1)
    assert width(far.ratio("c", "a")) > 2 * width(near.ratio("c", "a"))


def test_an_estimate_by_disturbed_trials_is_within_what_they_gave() -> None:
    """As in ``examples/loader``: all gave less than predicted, and one more than the others."""
    model = dataclasses.replace(
        expected(0.1, w2=848, w3=1262, w4=1262, w14=1261),
        families={"w2": 2, "w3": 3, "w4": 4, "w14": 14},
        calibrated=frozenset({2}),
    )
    rows: Table = {
        "w2": [508],
        "w3": [785, 706, 706, 787, 705, 604],
        "w4": [691, 1152, 785, None, None, 857],
        "w14": [1288, 951, 1017, 1047, 1006, 1114],
    }
    belief = believe(seen(rows, log_sd=NOISY_LOG_SD), model)
    assert 951 <= belief.rate("w14").value <= 1288
    assert 604 <= belief.rate("w3").value <= 787


def test_a_model_that_proves_wrong_claims_less_of_what_nobody_measured() -> None:
    model = expected(0.03, a=100, b=200, c=300, d=400, e=500)
    right: Table = {"a": [100, 100], "b": [200, 200], "c": [300, 300], "d": [400, 400]}
    wrong: Table = {"a": [100, 100], "b": [120, 120], "c": [400, 400], "d": [210, 210]}
    one, two = (believe(seen(table, log_sd=0.01), model) for table in (right, wrong))
    assert width(two.ratio("e", "a")) > 2 * width(one.ratio("e", "a"))


def test_only_how_predictions_differ_matters_and_measured_rates_set_their_level() -> None:
    table: Table = {"a": [100, 101, 99], "b": [80, 81, 79]}
    low = believe(seen(table, 0.02), expected(a=90, b=72, c=45))
    high = believe(seen(table, 0.02), expected(a=110, b=88, c=55))
    for belief in (low, high):
        assert belief.rate("c").value == pytest.approx(50, rel=0.05)
        assert belief.blocks["c"] == 0


def test_loading_without_workers_rests_on_figures_of_its_own() -> None:
    table: Table = {"none": [100, 100], "two": [300, 300]}
    plain = expected(0.03, none=150, two=300, four=600)
    apart = dataclasses.replace(plain, families={"none": 0})
    off = [
        abs(believe(seen(table, 0.02), each).ratio("four", "two").value - 2)
        for each in (plain, apart)
    ]
    assert off[1] <= off[0]
    assert off[1] < 0.05


def test_predictions_of_the_same_workers_are_off_by_much_the_same() -> None:
    table: Table = {"w2": [100, 100], "w4": [240, 241]}
    model = expected(0.1, w2=100, w4=200, deep=200, w8=400)
    alike = dataclasses.replace(model, families={"w2": 2, "w4": 4, "deep": 4, "w8": 8})
    assert believe(seen(table, 0.02), alike).ratio("deep", "w4").value == pytest.approx(1, abs=0.04)
    narrow, wide = (
        width(believe(seen(table, 0.02), m).ratio("deep", "w4")) for m in (alike, model)
    )
    assert narrow < wide


def test_the_speed_of_the_cores_explains_what_it_can() -> None:
    def table(rng: random.Random, *, shown: bool) -> list[ObservedRate]:
        made = []
        for block in range(4):
            for key, rate in {"a": 100.0, "b": 110.0}.items():
                speed = rng.choice([0.0, -0.5])
                log_rate = math.log(rate) + 0.9 * speed + rng.gauss(0, 0.02)
                made.append(
                    ObservedRate(
                        key=key,
                        block=block,
                        log_rate=log_rate,
                        log_sd=ADJUSTED_LOG_SD if shown else COMPUTING_LOG_SD,
                        log_speed=3 + speed if shown else None,
                    )
                )
        return made

    errors = {}
    for shown in (False, True):
        found = [believe(table(random.Random(seed), shown=shown)) for seed in range(60)]
        off = [math.log(each.ratio("b", "a").value / 1.1) for each in found]
        errors[shown] = math.sqrt(sum(e * e for e in off) / len(off))
    assert errors[True] < errors[False] / 3


def test_what_waits_does_not_follow_the_speed_of_the_cores() -> None:
    rows = [
        ObservedRate(
            key="a", block=n, log_rate=5.0, log_sd=0.01, cpu_share=0.02, log_speed=3 - 0.5 * (n % 2)
        )
        for n in range(6)
    ]
    assert believe(rows).rate("a").value == pytest.approx(math.exp(5.0), rel=0.01)


def shortfall_of(belief: Belief, key: str, others: Iterable[str] | None = None) -> float:
    """By how much a configuration may be below the best of others, or of all."""
    some = [other for other in others or belief.log_rates if other != key]
    return belief.shortfall(key, {other: belief.gap(other, key) for other in some})


def sure(count: int = 1) -> Belief:
    """Of ``a`` and so many others, all as fast, whose rates are known to a thousandth."""
    return believe(
        seen({key: [100.0] * 8 for key in "abcdefghijklmnop"[: 1 + count]}, log_sd=0.002)
    )


def stopped(rng: random.Random, noise: float) -> tuple[float, float]:
    """The bound where measuring ends, as soon as it is small enough, and what it should hold."""
    model = expected(0.08, a=100, b=100, c=100)
    true = {key: math.log(100) + rng.gauss(0, 0.08) for key in "abc"}
    table: Table = {key: [] for key in true}
    bound, pick = math.inf, ""
    while bound > NEAR_LOG and len(table["a"]) < 10:
        for key, row in table.items():
            row.append(math.exp(true[key] + rng.gauss(0, noise)))
        belief = believe(seen(table, noise), model)
        pick = fastest(belief)
        bound = shortfall_of(belief, pick)
    return bound, max(true.values()) - true[pick]


@pytest.mark.slow
@pytest.mark.parametrize("noise", [0.02, 0.1])
def test_the_bound_holds_though_measuring_ends_when_it_is_small(noise: float) -> None:
    found = [stopped(random.Random(seed), noise) for seed in range(150)]
    assert sum(true <= bound for bound, true in found) >= 0.95 * len(found)
    assert statistics.median(bound for bound, _ in found) < 2 * noise


def test_more_rivals_ask_for_wider_bounds() -> None:
    table: Table = {key: [100, 101] for key in "abcdefgh"}
    belief = believe(seen(table))
    bounds = [shortfall_of(belief, "a", "bcdefgh"[:count]) for count in range(1, 8)]
    assert bounds == sorted(bounds)
    assert 0 < bounds[0] < bounds[-1]


def test_a_bound_is_as_wide_as_its_errors() -> None:
    def bound(gap: Gap, room: Gap | None = None) -> float:
        return sure().shortfall("a", {"b": gap}, room)

    assert sure().shortfall("a", {}) == 0
    assert bound(Gap(-1.0, 0.01, 4)) == 0  # surely slower
    assert bound(Gap(0.1, 0.0, 4)) == pytest.approx(0.1, abs=2e-3)
    assert bound(Gap(0.0, 0.1, 1e9)) == pytest.approx(0.1645, abs=2e-3)  # normal quantile
    assert bound(Gap(0.0, 0.1, 4)) == pytest.approx(0.2132, abs=2e-3)
    assert bound(Gap(0.0, math.inf, 4), Gap(0.2, 0.0, 4)) == pytest.approx(0.2)


@pytest.mark.parametrize(("count", "quantile"), [(5, 2.326), (15, 2.713)])
def test_those_that_were_measured_add_up(count: int, quantile: float) -> None:
    """The normal quantile of 5 % over their number."""
    belief = sure(count)
    gaps = {key: Gap(0.0, 0.1, 1e9) for key in belief.log_rates if key != "a"}
    assert belief.shortfall("a", gaps) == pytest.approx(0.1 * quantile, rel=0.01)


def test_errors_that_many_share_count_once() -> None:
    """All were only predicted, for far more workers than were measured, and in twos of one rate."""
    counts = [2, *range(10, 40)]
    model = dataclasses.replace(
        expected(0.08, **{f"w{n}{twin}": 100 + n for n in counts for twin in ("", "+")}),
        families={f"w{n}{twin}": n for n in counts for twin in ("", "+")},
        groups={f"w{n}{twin}": f"w{n}" for n in counts for twin in ("", "+")},
        calibrated=frozenset({1, 2}),
    )
    belief = believe(seen({"w2": [80, 81]}, 0.02), model)
    twins = [shortfall_of(belief, "w12", some) for some in (["w14"], ["w14", "w14+"])]
    assert twins[0] == pytest.approx(twins[1], abs=1e-6)
    gaps = {key: belief.gap(key, "w12") for key in belief.log_rates if key != "w12"}
    each, found = (0.05 / len(gaps), shortfall_of(belief, "w12"))
    apart = max(gap.value + t_quantile(1 - each, gap.df) * gap.error for gap in gaps.values())
    assert max(gap.most for gap in gaps.values()) < found < 0.7 * apart


@pytest.mark.slow
def test_of_more_than_are_drawn_from_the_rest_adds_up() -> None:
    model = expected(0.08, measured=300.0, **{f"c{n}": 100.0 for n in range(_JOINT + 50)})
    belief = believe(seen({"measured": [300.0, 301.0]}, 0.02), model)
    gaps = {key: Gap(-1.0, 0.3, 4) for key in belief.log_rates if key != "measured"}
    few = dict([*gaps.items()][:_JOINT])
    found, apart = (belief.shortfall("measured", some) for some in (few, gaps))
    assert 0 <= found < apart < math.inf


def test_none_is_better_by_more_than_there_is_room_for() -> None:
    belief, room = sure(15), Gap(0.02, 0.01, 1e9)
    unknown = {key: Gap(0.3, 0.5, 4) for key in belief.log_rates if key != "a"}
    assert belief.shortfall("a", unknown, room) == pytest.approx(room.most)
    slower = {key: Gap(-1.0, 0.01, 4) for key in unknown}
    assert belief.shortfall("a", slower, room) == 0


def with_room(own: float, wait: float | None, turnover: float = 0.0, **more: Any) -> Gap | None:
    usage = Usage(own_cpu_cores=own, available_cpu_cores=2.0)
    quiet = trial(config(2), 1000.0, usage=dataclasses.replace(usage, **more))
    known = observe(quiet, wait=wait)
    assert known is not None
    seen_ = [(quiet, known, wait), (quiet, known, wait)]
    return room_of(seen_, turnover, least_work=log_work(quiet))


def test_what_the_step_never_waited_for_nothing_can_save() -> None:
    room = with_room(0.4, 0.03, turnover=-0.01)
    assert room is not None
    assert room.value == pytest.approx(0.0405, abs=1e-3)
    assert 0 < room.error < 0.03
    assert room_of([]) is None
    endless = with_room(0.4, 1.0)
    assert endless is not None
    assert math.isfinite(endless.value)
    halved, full = with_room(1.0, 0.03), with_room(1.9, 0.03)
    assert halved is not None
    assert halved.value == pytest.approx(room_beside(0.03))
    assert full is not None
    assert full.value == pytest.approx(math.log(2 / 1.9))  # fewer workers may leave it a core


def test_what_ranks_wait_for_each_other_s_batches_loading_can_save_as_well() -> None:
    """They wait for these in their steps."""
    ranks = tuple(
        RankFigures(rank=n, host="node", batches_per_s=Estimate(value=10.0), barrier_fraction=held)
        for n, held in enumerate((0.25, 0.2))  # the second is the slower by itself
    )
    tried = trial(config(2), ranks=ranks, wait_fraction=0.1)
    known = observe(tried)
    assert known is not None
    room = room_of([(tried, known, tried.wait_fraction)])
    assert room is not None
    assert room.value == pytest.approx(room_beside(0.3))


@pytest.mark.parametrize(("pinned", "saved"), [(False, 0.5), (True, 0.0)])
def test_what_a_step_waits_for_copies_pinning_can_save(*, pinned: bool, saved: float) -> None:
    """At 50 batches a second."""
    copies = Copies(device="cuda:0", batches=50, exposed_s=0.01)
    tried = trial(config(2, pin_memory=pinned), 1600.0, copies=copies, wait_fraction=0.1)
    known = observe(tried)
    assert known is not None
    room = room_of([(tried, known, tried.wait_fraction)])
    assert room is not None
    assert room.value == pytest.approx(room_beside(0.1 + saved))


def test_no_loader_gets_more_of_the_cores_than_there_are() -> None:
    """Of those that others use, too: they may leave."""
    room, waits = with_room(1.6, None), with_room(0.01, None)
    shared = with_room(1.6, None, available_cpu_cores=1.7, other_cpu_cores=0.3)
    assert room is not None
    assert shared is not None
    assert waits is not None
    assert room.value == shared.value == pytest.approx(math.log(2 / 1.6))
    assert room.error >= COMPUTING_LOG_SD
    assert waits.value > 5  # a loader that waits needs none
    held = trial(config(2), usage=Usage(own_cpu_cores=1.6, available_cpu_cores=2.0))
    held = dataclasses.replace(held, usage=dataclasses.replace(held.usage, other_cpu_cores=62.0))
    known = observe(held)
    assert known is not None
    quota = room_of([(held, known, None)], least_work=log_work(held), usable_cores=2.0)
    assert quota is not None
    assert quota.value == room.value  # what others use beyond a quota, none of it can get
    deep = with_room(1.6, 0.6)  # of both, what leaves less
    assert deep is not None
    assert deep.value == room.value


def test_cores_show_nothing_where_a_sample_costs_less_with_fewer_workers() -> None:
    """Eight that share caches keep all cores busy; two, on cores as fast, do more in as much."""

    def at(workers: int, rate: float, speed: float) -> Trial:
        usage = Usage(own_cpu_cores=workers, available_cpu_cores=8.0, core_speed=speed)
        return trial(config(workers), rate, usage=usage)

    def room(rate: float, speed: float) -> float:
        most = at(8, 1000.0, 20.0)
        known = observe(most)
        assert known is not None
        found = room_of([(most, known, None)], least_work=log_work(at(2, rate, speed)))
        assert found is not None
        return found.value

    assert room(250.0, 20.0) == pytest.approx(0.0)  # each does as much
    assert room(375.0, 20.0) == pytest.approx(math.log(1.5))
    assert room(375.0, 32.0) == pytest.approx(math.log(1.5 / 1.6**0.85))  # by the cores' speed


def test_a_step_without_an_idle_core_may_be_faster_with_fewer_workers() -> None:
    """It never waits for data where workers take its cores: fewer of them may be better."""
    room = with_room(1.99, 0.0)
    assert room is not None
    assert room.most > 0.2


def test_what_was_measured_shows_most_of_like_numbers_of_workers() -> None:
    rates = {f"w{n}": 100.0 for n in (1, 2, 4, 8, 16)}
    model = dataclasses.replace(
        expected(0.1, **rates), families={key: int(key[1:]) for key in rates}
    )
    belief = believe(seen({"w2": [100, 100], "w8": [80, 80]}, 0.01), model)
    rate = {key: belief.rate(key).value for key in rates}
    assert rate["w2"] > rate["w4"] > rate["w8"]
    assert rate["w16"] == pytest.approx(rate["w8"], rel=0.1)
    assert width(belief.ratio("w4", "w2")) < width(belief.ratio("w16", "w2"))


def test_workers_that_a_shared_resource_holds_back_say_little_of_fewer() -> None:
    # Found with storage of four lanes: all that was measured lay below what was predicted, and the
    # rate without workers, which its own trial gives, was halved with it.
    counts = {"w0": 0, "w1": 1, "w2": 2, "w4": 4, "w12": 12, "w32": 32}
    predicted = dataclasses.replace(
        expected(w0=180, w1=174, w2=348, w4=700, w12=1770, w32=2000),
        families=counts,
        calibrated=frozenset({1, 2}),
    )
    disturbed = ObservedRate(key="w0", block=0, log_rate=math.log(138), log_sd=0.8)
    rows = [*seen({"w12": [500, 710]}, log_sd=0.3), disturbed]
    rates = {key: believe(rows, predicted).rate(key).value for key in counts}
    assert rates["w0"] == pytest.approx(180, rel=0.2)
    assert rates["w1"] == pytest.approx(174, rel=0.1)
    assert rates["w12"] == pytest.approx(620, rel=0.15)
    assert 300 < rates["w4"] < 700
    # Beyond those that were measured, predictions are off by as much, and not by less.
    assert rates["w32"] / rates["w12"] == pytest.approx(2000 / 1770, rel=0.05)
    # Where cores are none the limit and as many give as much, no more get more.
    rows = [dataclasses.replace(each, cpu_share=0.1) for each in (*rows, *seen({"w4": [640]}))]
    waiting = believe(rows, predicted)
    assert waiting.rate("w32").value == pytest.approx(waiting.rate("w12").value, rel=0.05)
    assert waiting.rate("w0").value == pytest.approx(180, rel=0.2)


def waits(*counts: int) -> ExpectedRates:
    """Predictions of a loader that waits: as many times a worker's rate, by two of them."""
    return dataclasses.replace(
        expected(0.08, **{f"w{n}": 180.0 * n for n in counts}),
        families={f"w{n}": n for n in counts},
        calibrated=frozenset({1, 2}),
    )


@pytest.mark.parametrize("measured", [{"w14": [354, 375, 362]}, {"w7": [360], "w14": [354, 375]}])
def test_a_plateau_that_was_measured_goes_on_beyond_it(measured: Table) -> None:
    """Two slots, which the two workers of a calibration don't wait for: 14 measured, 32 not."""
    rows = [dataclasses.replace(each, cpu_share=0.05) for each in seen(measured, 0.01)]
    belief = believe(rows, waits(1, 2, 4, 7, 14, 20, 32))
    rate = {key: belief.rate(key).value for key in belief.log_rates}
    assert rate["w1"] == pytest.approx(180, rel=0.05)
    for key in ("w2", "w4", "w14", "w20", "w32"):
        assert rate[key] == pytest.approx(362, rel=0.05)
    assert belief.gap("w32", "w14").chance(NEAR_LOG) < 0.5
    assert width(belief.ratio("w32", "w14")) < math.log(2)


def test_workers_that_gained_less_than_half_of_what_was_predicted_have_met_a_limit() -> None:
    """Three are served at once: one worker and seven were measured, fourteen were not."""
    measured: Table = {"w1": [176], "w7": [540]}
    rows = [dataclasses.replace(each, cpu_share=0.1) for each in seen(measured, 0.05)]
    belief = believe(rows, waits(1, 2, 3, 4, 7, 14, 32))
    assert belief.rate("w2").value == pytest.approx(360, rel=0.1)
    for key in ("w4", "w14", "w32"):
        assert belief.ratio(key, "w7").value == pytest.approx(1, abs=0.1)
    assert belief.gap("w14", "w7").chance(NEAR_LOG) < 0.5


def test_whether_a_limit_was_met_is_as_open_as_the_trials_leave_it() -> None:
    """Of noisy ones both are likely: the rate lies between them, and its interval holds both."""
    found = {}
    for noise in (0.02, 0.4):
        rows = [dataclasses.replace(each, cpu_share=0.1) for each in seen({"w12": [640]}, noise)]
        found[noise] = believe(rows, waits(1, 2, 4, 12, 24)).ratio("w24", "w12")
    low, high = ends(found[0.02])
    assert found[0.02].value == pytest.approx(1, abs=0.05)
    assert 0.7 < low < high < 1.4
    low, high = ends(found[0.4])
    assert 1.1 < found[0.4].value < 1.6
    assert low < 1
    assert high > 2


@pytest.mark.parametrize("served", [4, 6, 10, 14])
@pytest.mark.parametrize("sharpness", [2, 20])
def test_numbers_of_workers_below_a_limit_that_was_met_are_as_open_as_how_sharp_it_is(
    served: int, sharpness: int
) -> None:
    """Of those that weren't measured, the intervals hold what they give by either."""

    def rate(workers: int) -> float:
        return 180 * float((workers**-sharpness + served**-sharpness) ** (-1 / sharpness))

    counts = (1, 2, 3, 4, 5, 6, 8, 10, 12, 14, 18, 24, 32)
    measured: Table = {f"w{n}": [rate(n)] * 2 for n in (3, 24, 32)}
    rows = [dataclasses.replace(each, cpu_share=0.05) for each in seen(measured, 0.01)]
    belief = believe(rows, waits(*counts))
    for count in counts[2:]:
        low, high = ends(belief.rate(f"w{count}"))
        assert low <= rate(count) <= high, count


@pytest.mark.parametrize("measured", [{"w8": [6 * 180]}, {"w4": [3 * 180]}, {"w12": [6 * 180]}])
def test_of_a_gain_that_a_limit_explains_as_well_an_interval_holds_that_too(
    measured: Table,
) -> None:
    """Six, three and six are served at once, or 8, 4 and 12 workers are worth less than predicted.

    Nothing sets the one apart from the other, of which a limit is as likely as it was: one in nine.
    """
    rows = [dataclasses.replace(each, cpu_share=0.05) for each in seen(measured, 0.01)]
    belief = believe(rows, waits(1, 2, 4, 8, 12, 16, 32))
    (most,), gained = measured, int(next(iter(measured))[1:])
    for count in (16, 32):
        low, high = ends(belief.ratio(f"w{count}", most))
        assert low < 1.02
        assert count / gained < high < 2 * count / gained
    gap = belief.gap("w32", most)
    assert gap.second == pytest.approx(1 / 9)
    # What lies halfway between is as unlikely as both have it.
    assert gap.chance(math.log(32 / gained) / 2) == pytest.approx(8 / 9, abs=0.03)


def test_of_two_explanations_an_interval_and_chances_are_those_of_the_mixture() -> None:
    rng = random.Random(1)
    apart, second, within = 1.2, 0.2, 0.1
    total = math.sqrt(within**2 + second * (1 - second) * apart**2)
    gap = Gap(0.3, total, math.inf, apart, second)
    drawn = sorted(
        0.3 + apart * ((rng.random() < second) - second) + rng.gauss(0, within)
        for _ in range(20_000)
    )
    for bound in (-0.1, 0.06, 0.5, 1.2):
        above = statistics.fmean(each > bound for each in drawn)
        assert gap.chance(bound) == pytest.approx(above, abs=0.015)
    for part in (0.025, 0.5, 0.95, 0.975):
        assert gap.quantile(part) == pytest.approx(drawn[int(part * len(drawn))], abs=0.03)
    low, high = ends(gap.factor())
    assert math.log(low) == pytest.approx(gap.quantile(0.025), abs=1e-6)
    assert math.log(high) == pytest.approx(gap.quantile(0.975), abs=1e-6)
    assert gap.factor().value == pytest.approx(math.exp(0.3))
    # Of what has nothing to do with it, it keeps that it is one of two.
    less = gap.minus(Gap(0.1, 0.05, 9.0))
    assert tuple(less) == pytest.approx((0.2, math.hypot(total, 0.05), 9.0, 1.2, 0.2))
    # A single explanation has the interval of Student's t.
    assert Gap(0.1, 0.2, 5.0).quantile(0.975) == 0.1 + t_quantile(0.975, 5.0) * 0.2


def test_an_interval_has_its_figure_in_it_where_a_second_explanation_is_unlikely() -> None:
    """The mean of the two lies above what 97.5 % of the mixture are below."""
    apart, second, within = 3.0, 0.02, 0.002
    total = math.sqrt(within**2 + second * (1 - second) * apart**2)
    for side in (1, -1):
        found = Gap(side * second * apart, total, 4.0, side * apart, second).factor()
        low, high = ends(found)
        assert low <= found.value <= high


def test_explanations_that_many_trials_set_apart_are_so_for_sure() -> None:
    """One is likelier by a factor that no number holds."""
    count = 300
    keys = [f"b{n}" for n in range(count)]
    known = dataclasses.replace(
        expected(0.08, w1=180.0, w2=360.0, **{key: 1e4 * 1.1**n for n, key in enumerate(keys)}),
        families={"w1": 1, "w2": 2, **dict.fromkeys(keys, 8)},
        calibrated=frozenset({1, 2}),
    )
    rows = [dataclasses.replace(o, cpu_share=0.05) for o in seen({k: [362] for k in keys}, 0.01)]
    belief = believe(rows, known)
    assert belief.rate("b7").value == pytest.approx(362, rel=0.05)
    assert belief.gap("b7", "w1").second < 1e-100
    # The other costs no search for a quantile, which ends somewhat beyond it.
    for apart in (1.0, -1.0):
        ruled_out = Gap(0.1, 0.2, 5.0, apart, 1e-100)
        assert ruled_out.quantile(0.975) == 0.1 + t_quantile(0.975, 5.0) * 0.2


@pytest.mark.parametrize("noise", [0.02, 0.2, 0.4])
def test_a_certificate_has_the_second_explanation_as_likely_as_it_is(noise: float) -> None:
    rows = [dataclasses.replace(each, cpu_share=0.1) for each in seen({"w12": [640]}, noise)]
    belief = believe(rows, waits(1, 2, 4, 12, 24))
    gap = belief.gap("w24", "w12")
    assert 0 < gap.second < 1
    alone = belief.shortfall("w12", {"w24": gap})
    assert alone == pytest.approx(max(0.0, gap.most), abs=0.1)


def test_an_interval_holds_what_its_own_trial_gave() -> None:
    """A disturbed one, 40 % below what the model and all else say, is outvoted and not hidden."""
    rows = [
        *seen({"a": [100.0] * 3, "b": [200.0] * 3}, 0.05),
        ObservedRate(key="c", block=0, log_rate=math.log(180), log_sd=NOISY_LOG_SD, noisy=True),
    ]
    belief = believe(rows, expected(0.05, a=100.0, b=200.0, c=300.0))
    low, high = ends(belief.rate("c"))
    assert belief.rate("c").value > 220
    assert low < 190
    assert high > 300
    assert width(belief.rate("b")) < 1.3


@pytest.mark.parametrize("level", [0.8, 1.0, 1.2])
def test_a_loader_that_gains_by_workers_is_believed_to_go_on(level: float) -> None:
    """Whether or not the model is off altogether, and one trial by some percent more."""
    measured: Table = {
        f"w{n}": [180 * n * level * off] for n, off in ((1, 1), (4, 1.05), (8, 0.97))
    }
    rows = [dataclasses.replace(each, cpu_share=0.05) for each in seen(measured, 0.02)]
    belief = believe(rows, waits(1, 2, 4, 8, 16))
    assert belief.ratio("w16", "w8").value == pytest.approx(2, rel=0.1)


@pytest.mark.parametrize(
    "measured",
    [
        {"w4": [180 * 4 * 0.75]},
        {"w8": [180 * 8**0.7]},
        {"w2": [180 * 2], "w4": [180 * 4 * 0.75]},
        {f"w{n}": [180 * n**0.7] for n in (2, 4, 8)},
    ],
    ids=["three-quarters", "power", "two-as-predicted", "power-thrice"],
)
def test_a_loader_that_gains_less_than_predicted_is_believed_to_go_on(measured: Table) -> None:
    rows = [dataclasses.replace(each, cpu_share=0.1) for each in seen(measured, 0.02)]
    model = dataclasses.replace(waits(1, 2, 4, 8, 16, 32), log_sd=0.05)
    belief = believe(rows, model)
    assert belief.ratio("w16", "w8").value == pytest.approx(2, rel=0.1)
    assert belief.ratio("w32", "w16").value == pytest.approx(2, rel=0.1)


def test_of_cores_that_give_less_more_workers_are_believed_to_get_as_much() -> None:
    model = dataclasses.replace(
        expected(0.08, w1=100, w2=195, w4=200, w8=200),
        families={"w1": 1, "w2": 2, "w4": 4, "w8": 8},
        calibrated=frozenset({1, 2}),
    )
    belief = believe(seen({"w4": [120, 140]}, 0.12), model)
    rate = {key: belief.rate(key).value for key in belief.log_rates}
    assert rate["w8"] == pytest.approx(130, rel=0.1)
    assert rate["w1"] < 0.65 * rate["w2"]


@pytest.mark.parametrize(("others", "less"), [(1.0, True), (0.1, False)])
def test_a_lone_trial_far_below_all_else_is_known_no_better_than_that(
    others: float, *, less: bool
) -> None:
    """Not where all else is as far from the model: then that is wrong."""
    model = dataclasses.replace(
        expected(0.08, w1=100, w2=200, w4=400, w8=400),
        families={"w1": 1, "w2": 2, "w4": 4, "w8": 8},
        calibrated=frozenset({1, 2}),
    )
    table: Table = {"w2": [200 * others] * 3, "w4": [400 * others] * 3}
    belief = believe(seen({**table, "w8": [40.0]}, 0.03), model)
    found = belief.too_little("w8", believe(seen(table, 0.03), model))
    assert (found > math.log(5)) is less
    if less:
        opened = belief.opened("w8", found)
        assert opened.log_rates == belief.log_rates
        assert ends(opened.rate("w8"))[1] > 350 > 2 * ends(belief.rate("w8"))[1]
        assert opened.ratio("w2", "w4") == belief.ratio("w2", "w4")


def test_trials_without_an_interval_may_lie_twice_apart() -> None:
    """Each is as unsure as 30 %, so that one of ten pairs does."""
    own: Table = {"a": [100, 210], "b": [100, 210]}
    belief = believe(seen(own, NOISY_LOG_SD), expected(a=145, b=290))
    assert width(belief.rate("a")) < math.log(2.5)


def test_chances_follow_the_gap() -> None:
    belief = believe(seen({"a": [100] * 4, "b": [90] * 4, "c": [100] * 4}, log_sd=0.02))

    def faster(key: str, other: str, factor: float = 1.0) -> float:
        return belief.gap(key, other).chance(math.log(factor))

    assert faster("a", "b") > 0.95
    assert faster("b", "a") < 0.05
    assert faster("a", "c") == pytest.approx(0.5)
    assert faster("a", "c", 1 / NEAR) < 0.2
    assert faster("a", "a") == 0.0


def test_configurations_of_one_group_have_one_rate_from_all_their_trials() -> None:
    rows = [
        ObservedRate(key=key, block=0, log_rate=math.log(rate), group=group)
        for key, rate, group in (("a", 90, "g"), ("a+", 110, "g"), ("b", 200, ""))
    ]
    belief = believe(rows)
    assert belief.ratio("a", "a+") == Estimate(value=1.0, low=1.0, high=1.0)
    assert belief.rate("a") == belief.rate("a+")
    assert belief.ratio("b", "a").value == pytest.approx(200 / math.sqrt(90 * 110), rel=0.01)
    alone = believe([rows[0], rows[2]]).ratio("b", "a")
    assert width(belief.ratio("b", "a")) < width(alone)


def test_a_configuration_in_two_groups_stands_alone() -> None:
    steady = ObservedRate(key="a", block=0, log_rate=1.0, group="g")
    whole = ObservedRate(key="a", block=1, log_rate=1.0)
    twin = ObservedRate(key="a+", block=0, log_rate=2.0, group="g")
    assert believe([steady, whole, twin]).ratio("a+", "a").value > 1.5


def with_usage(workers: int, **usage: Any) -> ObservedRate:
    made = observe(trial(config(workers), 1000, spread=0.0, usage=Usage(**usage)))
    assert made is not None
    return made


def test_a_trial_is_as_sure_as_what_it_does() -> None:
    waiting = with_usage(4, own_cpu_cores=0.0, available_cpu_cores=2.0)
    computing = with_usage(4, own_cpu_cores=2.0, available_cpu_cores=2.0)
    adjusted = with_usage(4, own_cpu_cores=2.0, available_cpu_cores=2.0, core_speed=10.0)
    single = with_usage(0, own_cpu_cores=0.5, available_cpu_cores=2.0)
    assert waiting.log_sd == pytest.approx(WAITING_LOG_SD)
    assert computing.log_sd == pytest.approx(COMPUTING_LOG_SD, rel=0.01)
    assert adjusted.log_sd == pytest.approx(ADJUSTED_LOG_SD, rel=0.03)
    assert adjusted.log_speed == pytest.approx(math.log(10))
    assert single.cpu_share == pytest.approx(0.5)
    noisy = observe(trial(config(2), 1000, spread=0.0, noisy=True))
    short = observe(trial(config(2), 1000, samples_per_s=Estimate(value=1000.0)))
    wide = observe(trial(config(2), 1000, spread=0.5))
    assert noisy is not None
    assert short is not None
    assert wide is not None
    assert noisy.log_sd == pytest.approx(NOISY_LOG_SD, rel=0.01)
    assert short.log_sd == NOISY_LOG_SD
    assert wide.log_sd == pytest.approx(math.log(1.5 / 0.5) / (2 * 1.96))


@pytest.mark.parametrize("wait", [None, 0.5, 0.25])
def test_without_workers_the_time_that_a_step_takes_is_left_out_once(wait: float | None) -> None:
    """A loader that computes follows its cores while it loads, and its step does not."""
    loading = 1.0 if wait is None else wait
    usage = Usage(own_cpu_cores=loading, available_cpu_cores=2.0)
    made = trial(config(0), 1000, spread=0.0, usage=usage, wait_fraction=wait)
    seen_, longer = observe(made), observe(made, wait=loading / 2)
    assert seen_ is not None
    assert longer is not None
    assert seen_.cpu_share == pytest.approx(loading)
    assert longer.cpu_share == pytest.approx(loading / 2)
    assert math.exp(seen_.log_wanted) == pytest.approx(0.5)  # one of two cores, while it loads


def beside(left: Sequence[float]) -> list[ObservedRate]:
    """Trials of two workers on two cores beside others, who left them so much of one another."""
    usages = [
        Usage(
            own_cpu_cores=n,
            available_cpu_cores=n,
            other_cpu_cores=2 - n,
        )
        for n in left
    ]
    made = [
        observe(trial(config(2), 300.0 * n, spread=0.05, noisy=True, usage=each, repetition=block))
        for block, (n, each) in enumerate(zip(left, usages, strict=True))
    ]
    return [each for each in made if each is not None]


def test_trials_beside_a_steady_neighbor_outvote_a_prediction_that_is_off() -> None:
    """As seen of workers beside a busy process that the kernel gave one of two cores."""
    model = expected(0.17, **{config(2).key: 540.0})
    steady, coming = (
        beside([1.0, 1.02, 0.98, 1.0, 1.01, 0.99]),
        beside([1.0, 1.9, 0.5, 0.4, 1.7, 1]),
    )
    found = believe(steady, model).rate(config(2).key)
    assert found.value == pytest.approx(300, rel=0.12)
    assert width(found) < width(believe(coming, model).rate(config(2).key)) / 1.5


def test_what_disturbed_a_trial_without_taking_cores_is_no_slowness_of_its_own() -> None:
    """Others use up the same quota: all of it is free in each look, and three were throttled."""
    rates = {2: [60, 100, 100, 100], 4: [60, 60, 60, 100]}
    usage = Usage(own_cpu_cores=2.0, available_cpu_cores=4.0, other_cpu_cores=0.0)
    made = [
        observe(
            trial(config(w), rate, spread=0.02, repetition=n, noisy=rate < 100, usage=usage),
            usable_cores=4.0,
        )
        for w, some in rates.items()
        for n, rate in enumerate(some)
    ]
    found = believe([o for o in made if o is not None]).ratio(config(4).key, config(2).key)
    low, high = ends(found)
    assert low < 0.9
    assert high > 1
    assert found.value == pytest.approx(1, rel=0.15)


def test_a_trial_of_which_nothing_is_known_makes_the_others_no_surer() -> None:
    known = beside([0.5, 1.0, 0.7])
    (first, *rest) = beside([0.5, 1.0, 0.7])
    unknown = [dataclasses.replace(first, log_left=None), *rest]
    key = config(2).key
    wide, narrow = (width(believe(some).rate(key)) for some in (unknown, known))
    assert wide > 0.8 * narrow


def test_a_loader_that_one_core_is_enough_for_is_as_fast_as_it_was() -> None:
    """All trials were beside one neighbor, and only those that want two cores were disturbed."""
    alone = observe(
        trial(
            config(0),
            320.0,
            spread=0.02,
            usage=Usage(
                own_cpu_cores=1.0,
                available_cpu_cores=1.0,
                other_cpu_cores=1.0,
                core_speed=10.0,
            ),
        )
    )
    assert alone is not None
    model = expected(0.17, **{config(0).key: 325.0, config(2).key: 540.0})
    found = believe([alone, *beside([1.0, 1.0, 1.0])], model).rate(config(0).key)
    assert found.value == pytest.approx(320, rel=0.03)
    assert found.low is not None
    assert found.low > 270


def test_cores_that_a_loader_has_no_use_for_are_none_that_others_took_from_it() -> None:
    """On eight cores, four of which others use at times: two workers have theirs all the time."""

    def seen_of(workers: int, rate: float, others: float, block: int) -> ObservedRate | None:
        own = min(float(workers), 8 - others)
        usage = Usage(
            own_cpu_cores=own,
            available_cpu_cores=8 - others,
            other_cpu_cores=others,
            other_runnable=2 * others,
            run_queue_wait_fraction=1 - own / workers,
        )
        made = trial(config(workers), rate, spread=0.02, usage=usage, repetition=block)
        return observe(made, usable_cores=8.0)

    many = [(8, 800.0, 0.0), (8, 400.0, 4.0)] * 3
    few = [(2, 200.0, 4.0)] * 3
    made = [seen_of(*each, block) for block, each in enumerate([*many, *few])]
    found = believe([each for each in made if each is not None]).rate(config(2).key)
    assert found.value == pytest.approx(200, rel=0.05)


def test_what_a_quota_leaves_to_nobody_was_not_taken() -> None:
    """On a host of 64 cores that others keep busy: two are a trial's own, and it had both."""

    def left(available: float, ranks: int = 1) -> float:
        share = available / ranks
        usage = Usage(
            own_cpu_cores=share, available_cpu_cores=share, other_cpu_cores=64 - available
        )
        some = tuple(RankFigures(rank=n, host="node") for n in range(ranks)) if ranks > 1 else ()
        throttled = trial(config(2), 1000, noisy=True, spread=0.0, usage=usage, ranks=some)
        known = observe(throttled, usable_cores=2.0)
        assert known is not None
        assert known.log_left is not None
        return math.exp(known.log_left)

    assert left(2.0) == pytest.approx(1)
    assert left(0.5) == pytest.approx(1 / 4)
    assert left(0.5, ranks=4) == pytest.approx(1 / 4)


def among(*trials: tuple[int, float, float, float | None]) -> list[ObservedRate]:
    """Beside other sessions: ``num_workers``, samples/s, own cores, threads of others."""
    made = [
        observe(
            trial(
                config(workers),
                rate,
                spread=0.05,
                noisy=True,
                repetition=block,
                usage=Usage(
                    own_cpu_cores=own,
                    available_cpu_cores=own,
                    other_cpu_cores=2 - own,
                    fair_cpu_cores=own,
                    other_runnable=others,
                ),
            ),
            usable_cores=2.0,
        )
        for block, (workers, rate, own, others) in enumerate(trials)
    ]
    return [each for each in made if each is not None]


def test_what_more_workers_take_from_other_sessions_is_their_own_doing() -> None:
    """As seen of four workers, which got twice the cores that one thread did beside six others."""
    one, four = ((0, 460.0, 0.42, 6.0), (4, 740.0, 0.9, 6.0))
    gain = believe(among(one, four, one, four, one, four)).ratio(config(4).key, config(0).key)
    assert gain.value == pytest.approx(740 / 460, rel=0.02)
    assert gain.low is not None
    assert gain.low > 1


def test_what_others_take_of_many_workers_alone_is_predicted_badly() -> None:
    """As seen of 16 workers that wait beside 13 others: 7,507 samples/s of 2,958 predicted."""
    one, many = config(1), config(16)
    trials = [(0, one, 740.0), (1, one, 740.0), (2, many, 7507.0), (3, one, 740.0)]
    made = [observe(trial(c, rate, noisy=True, spread=0.3, repetition=n)) for n, c, rate in trials]
    seen = [each for each in made if each is not None]

    def rate(taken_log: float, of_one: float = 0.0) -> float:
        rates = {one: (740.0, of_one), many: (2958.0, taken_log)}
        cells = [
            PredictedCell(config=c, samples_per_s=around(rate), speed=1.0, taken_log=taken)
            for c, (rate, taken) in rates.items()
        ]
        return believe(seen, ExpectedRates.of(cells, 0.08)).rate(many.key).value

    assert rate(0.0) < 5000
    assert rate(2.0) > 1.3 * rate(0.0)
    assert rate(2.0, of_one=2.0) == rate(0.0)  # what they take of all, they take of those fitted


def test_what_others_take_of_some_workers_they_take_at_any_prefetch_factor() -> None:
    """As seen of 6 workers beside 7 others: 1,104 samples/s measured, and 1,572 at another."""
    one, many, deeper = config(1), config(6), config(6, 4)
    trials = [(0, one, 430.0), (1, one, 430.0), (2, many, 1178.0), (3, many, 1207.0)]
    made = [observe(trial(c, rate, noisy=True, spread=0.1, repetition=n)) for n, c, rate in trials]
    seen = [each for each in made if each is not None]
    cells = [
        PredictedCell(config=c, samples_per_s=around(rate), speed=1.0, taken_log=taken)
        for c, rate, taken in ((one, 430.0, 0.0), (many, 1710.0, 0.4), (deeper, 1710.0, 0.4))
    ]
    believed = believe(seen, ExpectedRates.of(cells, 0.08))
    apart = believed.ratio(deeper.key, many.key)
    assert apart.value == pytest.approx(1.0, abs=0.1)
    assert apart.high is not None
    assert apart.high < 1.4


def test_what_others_take_of_workers_that_nobody_measured_is_no_matter_of_more_of_them() -> None:
    """More of them than of any that were measured: that ended in a root of less than 0."""
    taken = {1: 0.0, 2: 0.0, 4: 0.3, 8: 0.0, 16: 1e-9}
    seen = [
        ObservedRate(key=config(n).key, block=block, log_rate=math.log(100.0 * n), log_sd=0.02)
        for block in range(2)
        for n in (2, 8, 16)
    ]

    def believed(*counts: int) -> Belief:
        cells = [
            PredictedCell(
                config=config(n), samples_per_s=around(100.0 * n), speed=1.0, taken_log=taken[n]
            )
            for n in counts
        ]
        return believe(seen, ExpectedRates.of(cells, 0.08))

    asked, only_measured = believed(*taken), believed(1, 2, 8, 16)
    assert asked.rate(config(4).key).value == pytest.approx(400, rel=0.05)
    for key in (config(n).key for n in (2, 8, 16)):
        assert figures(asked.rate(key)) == close(figures(only_measured.rate(key)))


def test_what_others_take_of_some_workers_ties_them_to_no_far_greater_number() -> None:
    """Four, of which they take most, were as far off as sixteen, though eight are as predicted."""
    taken = {1: 0.0, 2: 0.0, 4: 0.3, 8: 0.1, 16: 0.05}
    cells = [
        PredictedCell(config=config(n), samples_per_s=around(100.0 * n), speed=1.0, taken_log=log)
        for n, log in taken.items()
    ]
    gave = {config(2).key: 200.0, config(8).key: 800.0, config(16).key: 4000.0}
    trials = seen({key: [rate, rate] for key, rate in gave.items()})
    found = believe(trials, ExpectedRates.of(cells, 0.08))
    assert found.rate(config(4).key).value == pytest.approx(400, rel=0.15)


def test_a_limit_that_many_workers_meet_beside_others_is_seen() -> None:
    """As of a server of 12 slots that eight threads of each worker ask: 3 to 20 get the same."""
    counts = {1: (0.0, 430.0), 3: (0.1, 1129.0), 6: (0.4, 1190.0), 12: (1.1, 1175.0)}
    counts |= {18: (1.3, 1106.0), 20: (1.3, 1172.0)}
    open_ = config(5)
    made = [
        observe(trial(config(each), rate, noisy=True, spread=0.1, repetition=n))
        for n, (each, (_, rate)) in enumerate(counts.items())
    ]
    cells = [
        PredictedCell(config=c, samples_per_s=around(rate), speed=1.0, taken_log=taken)
        for c, rate, taken in (
            *((config(n), min(430.0 * n, 1710.0), taken) for n, (taken, _) in counts.items()),
            (open_, 1640.0, 0.25),
        )
    ]
    seen = [dataclasses.replace(o, cpu_share=0.15, log_sd=0.1) for o in made if o is not None]
    believed = believe(seen, ExpectedRates.of(cells, 0.08))
    # Before, 1,500, so that a sweep recommended what nobody had measured.
    assert believed.rate(open_.key).value < 1300


def test_what_of_the_cores_is_mains_is_no_share_of_its_workers() -> None:
    """As of tiny batches beside many others: main takes them in, and is the limit at last."""
    waits = {"run_queue_wait_fraction": 0.6, "available_cpu_cores": 2.0}
    few = with_usage(2, own_cpu_cores=0.6, main_runnable=0.5, **waits)
    many = with_usage(12, own_cpu_cores=0.8, main_runnable=0.95, **waits)
    assert few.cpu_share == pytest.approx(0.5)
    assert many.cpu_share == pytest.approx(0.95)
    assert with_usage(2, own_cpu_cores=0.6, **waits).cpu_share == pytest.approx(0.75)
    # One worker and main want more than the one core that others left.
    one = with_usage(1, own_cpu_cores=0.6, other_cpu_cores=1.0, main_runnable=0.5, **waits)
    assert one.log_wanted == pytest.approx(math.log(1.5 / 3.0))


def test_a_gain_up_to_what_main_takes_in_is_as_unsure_as_main_was_disturbed() -> None:
    """As seen of 12 workers beside 13 others: 9.3x (6.8-13), where a later look had 4.6x."""
    crowd: dict[str, Any] = {
        "available_cpu_cores": 0.2,
        "other_cpu_cores": 1.8,
        "fair_cpu_cores": 0.4,
    }
    crowd["other_runnable"] = 13.0
    few = Usage(own_cpu_cores=0.15, run_queue_wait_fraction=0.88, main_runnable=0.4, **crowd)
    many = Usage(own_cpu_cores=0.86, run_queue_wait_fraction=0.56, main_runnable=0.95, **crowd)

    def low(few: Usage, many: Usage) -> float:
        trials = [(2, 460.0, few), (12, 5466.0, many), (2, 590.0, few)]
        made = [
            observe(trial(config(n), rate, noisy=True, spread=0.05, usage=usage, repetition=block))
            for block, (n, rate, usage) in enumerate(trials)
        ]
        seen_ = [each for each in made if each is not None]
        return ends(believe(seen_).ratio(config(12).key, config(2).key))[0]

    blind = [dataclasses.replace(each, main_runnable=None) for each in (few, many)]
    assert low(few, many) < 0.8 * low(*blind)


def test_that_more_others_wanted_cores_is_not() -> None:
    """Three workers were slower only while twice as many threads of others were there."""
    few, many = 6.0, 12.0
    two = [(2, 600.0, 0.6, few), (2, 300.0, 0.3, many)] * 3
    three = [(3, 300.0, 0.3, many)] * 3
    gain = believe(among(*two, *three)).ratio(config(3).key, config(2).key)
    mean = 300 / math.sqrt(600 * 300)
    assert mean < 0.72
    assert gain.value > 0.8


def test_batches_that_no_step_waits_for_make_no_rate_unsure() -> None:
    """The step sets the pace, whatever few batches show of others' cost; as it may elsewhere."""
    fast, slow = config(4), config(0)
    pairs = [(fast, 320.0, 0.0), (slow, 270.0, 0.17)] * 3
    made = [
        observe(trial(each, rate, spread=0.01, window_batches=20), wait=wait)
        for each, rate, wait in pairs
    ]
    seen_ = [each for each in made if each is not None]
    model = expected(0.17, **{fast.key: 320.0, slow.key: 270.0})
    even, uneven = (believe(seen_, dataclasses.replace(model, batch_cv=cv)) for cv in (0.0, 1.1))
    assert width(uneven.rate(fast.key)) == pytest.approx(width(even.rate(fast.key)), rel=0.01)
    of_loading = 0.17 * 1.1 / math.sqrt(20)
    assert uneven.log_rate(slow.key).error == pytest.approx(
        math.hypot(even.log_rate(slow.key).error, of_loading), rel=0.05
    )
    there = {slow.key: Carried(log_rate=5.0, follows=0.0, log_sd=0.01, by_speed=0.0)}
    assert uneven.carried(there, 0.0).log_rate(slow.key).error == pytest.approx(0.01, rel=0.01)


def test_looks_that_found_no_thread_of_others_have_the_scale_of_all() -> None:
    """In a window too short for a look, or in which others slept at each, they took as much."""
    found = [
        believe(among(*[(2, 500.0, 0.8, others), (2, 400.0, 0.8, 1.2)] * 2)).rate(config(2).key)
        for others in (1.2, 0.0, None)
    ]
    assert found[0] == found[1] == found[2]


def test_trials_of_one_run_have_one_scale_of_what_others_left() -> None:
    """Of some windows alone it is known that others were in groups of their own."""
    crowd = Usage(own_cpu_cores=0.2, available_cpu_cores=0.2, other_cpu_cores=1.8)

    def found(*shares: float | None) -> Estimate:
        usages = [dataclasses.replace(crowd, other_runnable=6.0, fair_cpu_cores=f) for f in shares]
        made = [
            observe(trial(config(n), rate, spread=0.02, usage=usages[block], repetition=block))
            for block, rate in enumerate((500.0, 300.0, 510.0, 290.0))
            for n in (2, 4)
        ]
        return believe([each for each in made if each is not None]).rate(config(2).key)

    assert found(0.2, None, 0.2, None).value == pytest.approx(found(0.2, 0.2, 0.2, 0.2).value)


def test_repeats_of_a_short_window_know_its_few_samples_only() -> None:
    """Of samples of which few take a hundred times as long: all trials load them in one order."""
    slow, fast = config(0), config(4)
    windows = [(slow, 36.7, 6), (fast, 146.0, 24), (slow, 35.7, 6), (fast, 140.0, 24)]
    made = [
        observe(trial(each, rate, spread=0.02, repetition=n // 2, window_batches=batches))
        for n, (each, rate, batches) in enumerate(windows)
    ]
    seen_ = [each for each in made if each is not None]
    model = expected(0.17, **{slow.key: 36.0, fast.key: 140.0})
    uneven = dataclasses.replace(model, batch_cv=1.1)
    even, unsure = (believe(seen_, each) for each in (model, uneven))
    truth = 160 / 84
    low, high = ends(unsure.ratio(fast.key, slow.key))
    assert low < truth < high
    assert ends(even.ratio(fast.key, slow.key))[0] > 1.5 * truth
    # Where an epoch has no more batches, the longest window has seen all that there are.
    whole = believe(seen_, dataclasses.replace(uneven, epoch_batches=24.0))
    assert width(whole.rate(fast.key)) < 0.6 * width(unsure.rate(fast.key))
    # What all windows lack says nothing of their ratios, and something of each rate.
    assert width(unsure.rate(fast.key)) > math.sqrt(2) * 1.1 / math.sqrt(24)
    same = believe([dataclasses.replace(each, batches=24) for each in seen_], uneven)
    assert width(same.ratio(fast.key, slow.key)) == pytest.approx(
        width(even.ratio(fast.key, slow.key))
    )


def test_a_starved_window_is_no_sign_of_waiting() -> None:
    """Others left no core, so that the loader's own CPU time says nothing of what it does."""
    starved = with_usage(0, own_cpu_cores=0.0, available_cpu_cores=0.0)
    assert starved.cpu_share == 1.0


def test_what_sleeps_beside_others_does_not_compute() -> None:
    """Others took all that it left, so that what was available is no more than what it used."""
    used = {"own_cpu_cores": 0.3, "available_cpu_cores": 0.3, "other_cpu_cores": 1.7}
    assert with_usage(8, **used).cpu_share == 1.0  # where nobody says what it waited for
    assert with_usage(8, **used, run_queue_wait_fraction=0.2).cpu_share < 0.05
    starved = with_usage(8, **used, run_queue_wait_fraction=0.95)
    assert starved.cpu_share == pytest.approx(0.75)
    assert with_usage(8, **used, run_queue_wait_fraction=0.2, throttled_fraction=0.5).cpu_share == 1


def test_what_trials_gave_is_within_the_interval_where_the_machine_is_crowded() -> None:
    """As seen beside eight others' jobs on two cores, which the model took for two busy cores."""
    seen_: Table = {"w0": [33_656.0, 28_896.0], "w1": [4_134.0, None], "w3": [None, 1_845.0]}
    predicted = dataclasses.replace(
        expected(0.17, w0=117_269, w1=2_213, w3=2_213),
        families={"w0": 0, "w1": 1, "w3": 3},
        calibrated=frozenset({1, 2}),
    )
    belief = believe(seen(seen_, log_sd=NOISY_LOG_SD), predicted)
    assert belief.rate("w0").value < 40_000
    for key, rates in seen_.items():
        low, high = ends(belief.rate(key))
        assert all(low < 1.01 * rate and rate < 1.01 * high for rate in rates if rate is not None)


def test_noisy_trials_that_nobody_repeated_make_nothing_sure() -> None:
    """Each seen once where others left a third of a core, at 2.5 times the other's rate."""
    usage = Usage(own_cpu_cores=0.3, available_cpu_cores=0.3, other_cpu_cores=1.7)
    pair = [
        observe(
            trial(config(workers), 1.0, samples_per_s=Estimate(value=rate), noisy=True, usage=usage)
        )
        for workers, rate in ((1, 462.0), (3, 1179.0))
    ]
    belief = believe([each for each in pair if each is not None])
    one, three = config(1).key, config(3).key
    assert 1 - math.exp(-shortfall_of(belief, three)) > 0.15
    assert one in belief.log_rates
    steady = believe(seen({"one": [462] * 4, "three": [1179] * 4}, log_sd=0.05))
    assert shortfall_of(steady, "three") == 0


def test_what_was_seen_beside_others_is_not_slower_for_that() -> None:
    """Two workers had one quiet trial, three none: what others take is no matter of settings."""
    rates = {2: [1663, 1851, 2211, 1388, 1566, 2746], 3: [1703, 1354, 1346, 1440, 1569, 1424]}
    trials = [
        trial(config(workers), rate, repetition=block, noisy=rate != 2746)
        for workers, some in rates.items()
        for block, rate in enumerate(some)
    ]
    belief = believe([each for one in trials if (each := observe(one)) is not None])
    two, three = config(2).key, config(3).key
    assert belief.ratio(two, three).value < 1.5
    assert shortfall_of(belief, two) > 0


def test_in_doubt_far_fewer_workers_are_chosen_and_a_clear_gain_is_not_left() -> None:
    """Predicted and in truth alike, beside others: the luck of two trials is no reason for 14."""
    counts = [2, 3, 4, 14]
    keys = {workers: config(workers) for workers in counts}
    model = ExpectedRates(
        log_rates={chosen.key: 5.0 for chosen in keys.values()},
        log_sd=0.08,
        families={chosen.key: workers for workers, chosen in keys.items()},
        calibrated=frozenset({1, 2}),
    )

    def chosen(seed: int, gain: float, noise: float) -> int:
        rng = random.Random(seed)
        table: Table = {
            keys[w].key: [math.exp(5 + gain * (w == 14) + rng.gauss(0, noise)) for _ in range(2)]
            for w in counts
        }
        belief = believe(seen(table, log_sd=noise), model)
        logs = {each: belief.log_rates[each.key] for each in keys.values()}
        return near_best(logs, None, lambda one, two: belief.gap(one.key, two.key))[0].num_workers

    assert sum(chosen(seed, 0.0, 0.3) == 14 for seed in range(40)) <= 4  # a third without that
    assert all(chosen(seed, 0.3, 0.05) == 14 for seed in range(20))


def test_a_trial_that_contradicts_the_others_counts_though_its_interval_has_no_end() -> None:
    """Of two trials one says 15 times as much, to within 477 and infinity."""
    rates = [Estimate(value=64.3, low=44.1, high=118.9), Estimate(value=954, low=477, high=1e6)]
    made = [observe(trial(config(0), each.value, samples_per_s=each, noisy=True)) for each in rates]
    both = [dataclasses.replace(each, block=n) for n, each in enumerate(made) if each is not None]
    assert both[1].log_sd < 2 * NOISY_LOG_SD
    assert believe(both).rate(config(0).key).value > 70


def test_of_a_trial_whose_cores_were_not_looked_at_none_were_taken() -> None:
    """It computed, so that it had some: no cores at all say that the observer came too late."""
    usage = Usage(own_cpu_cores=0.0, available_cpu_cores=0.0, other_cpu_cores=2.0)
    made = observe(trial(config(0), 3277, noisy=True, usage=usage), usable_cores=2.0)
    assert made is not None
    assert made.log_left is None
    assert made.log_sd == pytest.approx(NOISY_LOG_SD, rel=0.01)


def test_observe_takes_another_rate_where_asked() -> None:
    made = observe(trial(config(2), 1000), 500.0)
    assert made is not None
    assert made.log_rate == pytest.approx(math.log(500))


def test_observe_groups_what_differs_between_epochs_only() -> None:
    plain, kept = config(2), config(2, persistent_workers=True)
    groups = {each.group for c in (plain, kept) if (each := observe(trial(c)))}
    assert len(groups) == 1
    whole = observe(trial(plain, whole_epochs=True))
    assert whole is not None
    assert whole.group == ""


def test_a_trial_without_figures_is_no_observation() -> None:
    assert observe(failed(config(2))) is None
    assert observe(trial(config(2), 0.0)) is None


def is_sound(belief: Belief) -> bool:
    best = fastest(belief)
    for key in belief.log_rates:
        ratio = belief.ratio(key, best)
        low, high = ends(ratio)
        if not 0 <= low <= ratio.value <= high or not math.isfinite(belief.rate(key).value):
            return False
    return True


cell = st.floats(-3, 3) | st.none()
cells = st.dictionaries(
    st.sampled_from("abcdef"), st.lists(cell, min_size=1, max_size=5), min_size=1
)


@pytest.mark.slow
@given(cells, st.dictionaries(st.sampled_from("abcdefgh"), st.floats(-50, 50)), st.floats(0.002, 3))
def test_any_cells_and_predictions_give_finite_ordered_intervals(
    table: dict[str, list[float | None]], predicted: dict[str, float], log_sd: float
) -> None:
    rows = [
        ObservedRate(key=key, block=block, log_rate=value, log_sd=log_sd)
        for key, values in table.items()
        for block, value in enumerate(values)
        if value is not None
    ]
    if rows:
        assert is_sound(believe(rows, ExpectedRates(log_rates=predicted, log_sd=log_sd)))


def everything(wrong: float = 1.0) -> tuple[list[ObservedRate], ExpectedRates]:
    """Repeats, disturbed trials, speeds, a group, predictions of all kinds."""
    table = (
        # key, block, rate, log_sd, noisy, cpu_share, log_speed, busy
        ("w0", 0, 101, 0.05, False, 1.0, 3.1, 1),
        ("w0", 1, 96, 0.05, False, 1.0, 2.9, 1),
        ("w2", 0, 188, 0.05, False, 0.9, 3.0, 2),
        ("w2", 1, 179, 0.05, False, 0.9, 2.8, 2),
        ("w2", 2, 110, 0.30, True, 0.7, 3.0, 2),
        ("w4", 0, 330, 0.05, False, 0.8, None, 2),
        ("w4+", 2, 351, 0.05, False, 0.8, 3.1, 2),
        ("w8", 1, 420 * wrong, 0.10, False, 0.5, 3.0, 2),
        ("w8", 2, 465 * wrong, 0.10, False, 0.5, 3.1, 2),
        ("odd", 2, 240, 0.12, False, 1.0, None, 0),
    )
    rows = [
        ObservedRate(
            key=key,
            block=block,
            log_rate=math.log(rate),
            log_sd=log_sd,
            noisy=noisy,
            group="four" if key in {"w4", "w4+"} else "",
            cpu_share=share,
            log_speed=speed,
            busy=busy,
        )
        for key, block, rate, log_sd, noisy, share, speed, busy in table
    ]
    rates = {"w0": 105, "w1": 98, "w2": 195, "w3": 270, "w4": 360, "w4+": 360, "w6": 430}
    predicted = {**rates, "w8": 470, "w16": 520}
    counts = {key: int(key[1:].rstrip("+")) for key in predicted}
    return rows, dataclasses.replace(
        expected(0.08, **predicted),
        groups={"w4": "four", "w4+": "four"},
        families=counts,
        calibrated=frozenset({1, 2}),
    )


Figures = dict[str, tuple[float, float, float]]

AS_PREDICTED: Figures = {
    "odd": (234.7155, 176.7586, 311.6759),
    "w0": (96.28088, 87.09673, 106.4335),
    "w1": (93.05917, 80.91819, 107.0218),
    "w16": (479.3725, 396.8975, 578.9857),
    "w2": (186.3322, 170.4019, 203.7518),
    "w3": (252.687, 221.8835, 287.7668),
    "w4": (331.6475, 304.2097, 361.56),
    "w4+": (331.6475, 304.2097, 361.56),
    "w6": (397.2493, 345.2892, 457.0285),
    "w8": (432.5334, 385.3963, 485.4357),
}
FAR_OFF: Figures = {
    "odd": (234.4248, 176.006, 312.2337),
    "w0": (96.32088, 87.01395, 106.6233),
    "w1": (93.53797, 77.67978, 112.6336),
    "w16": (144.665, 107.6449, 194.4167),
    "w2": (187.5951, 170.5235, 206.3759),
    "w3": (252.2076, 210.9557, 301.5261),
    "w4": (329.5204, 300.2138, 361.6878),
    "w4+": (329.5204, 300.2138, 361.6878),
    "w6": (196.592, 161.7432, 238.9491),
    "w8": (129.944, 111.0584, 152.0411),
}
OVER_EPOCHS: Figures = {
    "w0": (92.66045, 80.26568, 106.9692),
    "w2": (175.1785, 153.8561, 199.4559),
    "w4": (333.6722, 282.8229, 393.6639),
    "w8": (446.293, 329.1544, 605.1186),
}
UNPREDICTED: Figures = {
    "odd": (233.726, 175.3158, 311.5968),
    "w0": (96.00845, 86.48123, 106.5852),
    "w2": (188.6769, 170.0561, 209.3365),
    "w4": (327.6341, 297.0501, 361.367),
    "w8": (426.5787, 364.1182, 499.7537),
}
"""As they were computed when this was written: of eight rounds of weights no property shows each
step, so that one case is held to its figures. Who changes the belief on purpose writes them again.
"""


def close(wanted: tuple[float, ...]) -> Any:
    return pytest.approx(wanted, rel=1e-5)


def figures(estimate: Estimate) -> tuple[float, ...]:
    return (estimate.value, *ends(estimate))


def test_one_case_of_everything_keeps_its_figures() -> None:
    rows, model = everything()
    steady = (AS_PREDICTED, believe(rows, model)), (FAR_OFF, believe(*everything(wrong=0.3)))
    over = [dataclasses.replace(row, whole_epochs=True, group="") for row in rows[:6]]
    epochs = {"w2": math.log(150), "w0": math.log(90)}
    whole = believe(over, dataclasses.replace(model, epoch_log_rates=epochs))
    for expected_, belief in (*steady, (OVER_EPOCHS, whole), (UNPREDICTED, believe(rows))):
        for key, each in expected_.items():
            assert figures(belief.rate(key)) == close(each), key
    (_, belief), (_, off) = steady
    assert set(belief.log_rates) == set(AS_PREDICTED)
    assert belief.gap("w16", "w8")[:3] == close((0.1028185, 0.05788723, 4.55656))
    assert (belief.df, belief.predicted_df) == close((7, 4.55656))
    assert shortfall_of(belief, "w2") == pytest.approx(1.09, abs=0.02)
    assert shortfall_of(off, "w8") == pytest.approx(1.10, abs=0.02)


def test_what_is_carried_elsewhere_keeps_its_figures() -> None:
    belief = believe(*everything())
    carried = belief.carried(
        {
            key: Carried(
                log_rate=belief.log_rates[key] - 0.5, follows=0.7, log_sd=0.05, by_speed=0.4
            )
            for key in ("w2", "w8")
        },
        0.2,
    )
    assert figures(carried.rate("w2")) == close((113.0162, 87.19205, 146.4888))
    assert figures(carried.ratio("w8", "w2")) == close((2.321302, 1.883131, 2.861428))
