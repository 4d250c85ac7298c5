from __future__ import annotations

import math
import random

import pytest
from builders import config, failed, trial
from hypothesis import given
from hypothesis import strategies as st

from dlprof.records import Estimate
from dlprof.stats import Observation, fit_blocks, observe
from dlprof.stats.blocks import NOISY_LOG_SD, PRIOR_DF, QUIET_LOG_SD


def observations(table: dict[str, list[float | None]]) -> list[Observation]:
    """Observations from each configuration's rate in each block; ``None`` is a missing cell."""
    return [
        Observation(key=key, block=block, log_rate=math.log(rate))
        for key, row in table.items()
        for block, rate in enumerate(row)
        if rate is not None
    ]


def ends(estimate: Estimate) -> tuple[float, float]:
    assert estimate.low is not None
    assert estimate.high is not None
    return estimate.low, estimate.high


def test_a_complete_additive_table_is_recovered_exactly() -> None:
    fit = fit_blocks(observations({"a": [100, 50, 80], "b": [200, 100, 160]}))
    assert fit.ratio("b", "a").value == pytest.approx(2.0)
    assert fit.best() == "b"


def test_missing_cells_do_not_bias_the_ratio() -> None:
    """``a`` was only measured while the machine was slow."""
    fit = fit_blocks(
        observations(
            {"a": [None, 50, 50], "b": [200, 100, 100], "c": [100, 50, 50], "d": [400, 200, 200]}
        )
    )
    assert fit.ratio("b", "a").value == pytest.approx(2.0, rel=0.02)
    assert fit.ratio("c", "a").value == pytest.approx(1.0, rel=0.02)


def test_configurations_that_share_no_block_are_compared_very_widely() -> None:
    fit = fit_blocks(observations({"a": [100, None], "b": [None, 200]}))
    low, high = ends(fit.ratio("b", "a"))
    assert low < 0.5
    assert high > 5


@pytest.mark.parametrize(
    ("faster", "blocks", "tells"),
    [
        ([120, 120], 8, True),
        ([104, 104], 8, False),  # too little to gain
        ([150, 90], 8, False),  # too much noise
        ([115, 115], 2, False),  # too few
    ],
)
def test_whether_more_blocks_would_tell(faster: list[float], blocks: int, *, tells: bool) -> None:
    fit = fit_blocks(observations({"a": [100, 100], "b": list(faster)}))
    assert fit.would_tell("a", "b", blocks) is tells
    assert fit.would_tell("b", "a", blocks) is tells


def test_one_block_is_judged_by_the_stated_prior() -> None:
    """Student's t at 4 degrees of freedom is 2.776445; two trials of log-sd 0.10 differ by
    0.10 * sqrt(2).
    """
    low, high = ends(fit_blocks(observations({"a": [100], "b": [200]})).ratio("b", "a"))
    half = 2.776445 * QUIET_LOG_SD * math.sqrt(2)
    assert PRIOR_DF == 4
    assert math.log(high / 2) == pytest.approx(half, abs=1e-6)
    assert math.log(low / 2) == pytest.approx(-half, abs=1e-6)


def test_agreeing_repeats_narrow_the_interval() -> None:
    widths = []
    for repeats in (1, 2, 3, 6):
        low, high = ends(
            fit_blocks(observations({"a": [100] * repeats, "b": [110] * repeats})).ratio("b", "a")
        )
        widths.append(math.log(high / low))
    assert widths == sorted(widths, reverse=True)
    assert widths[-1] < widths[0] / 3


def test_a_noisy_trial_counts_less() -> None:
    table = observations({"a": [100, 100], "b": [100]})
    wild = [*table, Observation(key="b", block=1, log_rate=math.log(200), log_sd=NOISY_LOG_SD)]
    calm = [*table, Observation(key="b", block=1, log_rate=math.log(200))]
    assert fit_blocks(wild).ratio("b", "a").value < 1.2 < fit_blocks(calm).ratio("b", "a").value


def test_a_configuration_equals_itself() -> None:
    fit = fit_blocks(observations({"a": [100], "b": [50]}))
    assert fit.ratio("a", "a") == Estimate(value=1.0, low=1.0, high=1.0)


def test_ratios_are_reciprocal() -> None:
    fit = fit_blocks(observations({"a": [100, 90, None], "b": [120, 125, 130], "c": [70, 80, 60]}))
    there, back = fit.ratio("a", "b"), fit.ratio("b", "a")
    assert there.value == pytest.approx(1 / back.value)
    assert ends(there)[0] == pytest.approx(1 / ends(back)[1])


def test_best_among_some() -> None:
    fit = fit_blocks(observations({"a": [3], "b": [2], "c": [1]}))
    assert fit.best(["b", "c"]) == "b"


def test_no_observation_is_no_fit() -> None:
    with pytest.raises(ValueError, match="no observations"):
        fit_blocks([])


def test_many_blocks_are_merged_and_still_compared() -> None:
    fit = fit_blocks(observations({"a": [100.0] * 1000, "b": [200.0] * 1000}))
    assert len(fit.inverse) <= 64
    assert fit.ratio("b", "a").value == pytest.approx(2.0)


def _coverage(sd: float, *, missing: float = 0.0) -> tuple[float, float]:
    """Share of 600 simulated comparisons whose 95 % interval holds the truth, and mean width."""
    rng = random.Random(7)
    truth = {"a": 0.0, "b": 0.1, "c": 0.3, "d": 0.35, "e": -0.5}
    hits, width = 0, 0.0
    for _ in range(600):
        drift = [rng.gauss(0, 0.3) for _ in range(4)]
        seen = [
            Observation(key=key, block=block, log_rate=level + effect + rng.gauss(0, sd))
            for key, level in truth.items()
            for block, effect in enumerate(drift)
            if block == 0 or rng.random() >= missing
        ]
        low, high = ends(fit_blocks(seen).ratio("c", "b"))
        hits += low <= math.exp(0.2) <= high
        width += math.log(high / low) / 600
    return hits / 600, width


@pytest.mark.parametrize("missing", [0.0, 0.4])
def test_intervals_cover_at_the_assumed_spread(missing: float) -> None:
    share, _ = _coverage(QUIET_LOG_SD, missing=missing)
    assert 0.93 <= share <= 0.985


def test_intervals_cover_and_are_narrower_on_a_steady_machine() -> None:
    share, width = _coverage(0.03)
    assert share >= 0.95
    assert width < _coverage(QUIET_LOG_SD)[1] * 0.7


def test_intervals_cover_on_a_machine_twice_as_wild_as_assumed() -> None:
    assert _coverage(2 * QUIET_LOG_SD)[0] >= 0.90


def test_rate_covers_what_a_configuration_gives_in_an_average_block() -> None:
    fit = fit_blocks(observations({"a": [100, 110, 90], "b": [200, 220, 180]}))
    estimate = fit.rate("a")
    low, high = ends(estimate)
    assert estimate.value == pytest.approx(99.7, abs=0.5)
    assert low < 90
    assert high > 110


def test_observe_takes_the_spread_from_noise_and_interval() -> None:
    quiet = observe(trial(config(2), 1000, spread=0.0))
    noisy = observe(trial(config(2), 1000, spread=0.0, noisy=True))
    wide = observe(trial(config(2), 1000, spread=0.2))
    short = observe(trial(config(2), 1000, samples_per_s=Estimate(value=1000.0)))
    assert quiet is not None
    assert noisy is not None
    assert wide is not None
    assert short is not None
    assert quiet.log_sd == QUIET_LOG_SD
    assert noisy.log_sd == short.log_sd == NOISY_LOG_SD
    assert wide.log_sd == pytest.approx(math.hypot(QUIET_LOG_SD, 0.1))
    assert quiet.log_rate == pytest.approx(math.log(1000))
    assert quiet.weight == 1.0


def test_observe_takes_another_rate_where_told() -> None:
    seen = observe(trial(config(2), 1000), 500.0)
    assert seen is not None
    assert seen.log_rate == pytest.approx(math.log(500))


def test_configurations_of_one_group_have_one_rate_from_all_their_trials() -> None:
    seen = [
        Observation(key=key, block=0, log_rate=math.log(rate), group=group)
        for key, rate, group in (("a", 90, "g"), ("a+", 110, "g"), ("b", 200, ""))
    ]
    fit = fit_blocks(seen)
    assert fit.ratio("a", "a+") == Estimate(value=1.0, low=1.0, high=1.0)
    assert fit.rate("a") == fit.rate("a+")
    assert fit.ratio("b", "a").value == pytest.approx(200 / math.sqrt(90 * 110))
    alone = fit_blocks([seen[0], seen[2]]).ratio("b", "a")
    assert ends(fit.ratio("b", "a"))[1] / fit.ratio("b", "a").value < ends(alone)[1] / alone.value
    assert fit.blocks("a+") == 1


def test_a_configuration_in_two_groups_stands_alone() -> None:
    steady = Observation(key="a", block=0, log_rate=1.0, group="g")
    whole = Observation(key="a", block=1, log_rate=1.0)
    twin = Observation(key="a+", block=0, log_rate=2.0, group="g")
    assert fit_blocks([steady, whole, twin]).ratio("a+", "a").value > 1.5


def test_observe_groups_what_differs_between_epochs_only() -> None:
    plain, kept = config(2), config(2, persistent_workers=True)
    groups = {seen.group for each in (plain, kept) if (seen := observe(trial(each)))}
    assert len(groups) == 1
    whole = observe(trial(plain, whole_epochs=True))
    assert whole is not None
    assert whole.group == ""


def test_a_trial_without_figures_is_no_observation() -> None:
    assert observe(failed(config(2))) is None
    assert observe(trial(config(2), 0.0)) is None


cell = st.floats(-3, 3) | st.none()
row = st.lists(cell, min_size=1, max_size=5)


@given(st.dictionaries(st.sampled_from("abcdef"), row, min_size=1))
def test_any_pattern_of_cells_gives_finite_ordered_intervals(
    table: dict[str, list[float | None]],
) -> None:
    seen = [
        Observation(key=key, block=block, log_rate=value)
        for key, values in table.items()
        for block, value in enumerate(values)
        if value is not None
    ]
    if not seen:
        return
    fit = fit_blocks(seen)
    best = fit.best()
    for key in fit.log_rates:
        ratio = fit.ratio(key, best)
        low, high = ends(ratio)
        assert 0 <= low <= ratio.value <= high
        assert math.isfinite(fit.rate(key).value)
