"""Measurements in the light of predictions: noise overturns none, clear figures do."""

from __future__ import annotations

import dataclasses
import math
import random

import pytest

from dlprof.stats import (
    Expected,
    Observation,
    belied,
    fit_blocks,
    fit_expecting,
    is_contradicted,
)


def seen(table: dict[str, list[float]], log_sd: float = 0.10) -> list[Observation]:
    return [
        Observation(key=key, block=block, log_rate=math.log(rate), log_sd=log_sd)
        for key, rates in table.items()
        for block, rate in enumerate(rates)
    ]


def expected(log_sd: float = 0.08, **rates: float) -> Expected:
    return Expected(log_rates={key: math.log(rate) for key, rate in rates.items()}, log_sd=log_sd)


def test_without_a_prediction_it_is_the_block_fit() -> None:
    observations = seen({"a": [100, 101], "b": [120, 119]})
    assert fit_expecting(observations, None) == fit_blocks(observations)
    assert fit_expecting(observations, expected(a=1.0)) == fit_blocks(observations)
    assert fit_expecting(observations, expected(c=1.0, d=2.0)) == fit_blocks(observations)


def test_steady_repeats_outweigh_a_prediction() -> None:
    observations = seen({"a": [100, 100.5, 100.2, 99.8], "b": [110, 110.4, 110.1, 109.9]})
    fit = fit_expecting(observations, expected(a=100, b=100))
    assert fit.best() == "b"
    assert fit.ratio("b", "a").value == pytest.approx(1.1, abs=0.02)


def test_noise_does_not_overturn_a_prediction() -> None:
    """One of two that are 20 % apart, each measured twice beside a neighbour that takes half."""
    right = {False: 0, True: 0}
    for seed in range(300):
        rng = random.Random(seed)
        noisy = {
            key: [rate * math.exp(rng.gauss(0, 0.35)) for _ in range(2)]
            for key, rate in {"a": 100.0, "b": 80.0}.items()
        }
        for informed in right:
            belief = expected(a=100, b=80) if informed else None
            right[informed] += fit_expecting(seen(noisy), belief).best() == "a"
    assert right[True] > 0.9 * 300 > right[False]


def test_how_high_the_prediction_is_as_a_whole_does_not_matter() -> None:
    observations = seen({"a": [100, 130, 80], "b": [90, 140, 70]})
    low = fit_expecting(observations, expected(a=1, b=0.8))
    high = fit_expecting(observations, expected(a=1000, b=800))
    assert low.ratio("a", "b").value == pytest.approx(high.ratio("a", "b").value)
    assert low.log_rates["a"] == pytest.approx(high.log_rates["a"])


def test_twins_of_one_group_are_one_prediction() -> None:
    plain = [
        Observation(key=key, block=block, log_rate=math.log(rate), group=group)
        for block, (key, group, rate) in enumerate(
            [("a", "one", 100.0), ("a2", "one", 102.0), ("b", "two", 90.0), ("b", "two", 92.0)]
        )
    ]
    belief = expected(a=100, a2=100, b=100)
    fit = fit_expecting(plain, belief)
    assert fit.log_rates["a"] == fit.log_rates["a2"]
    assert len(fit.cells["a"]) == len(fit_blocks(plain).cells["a"]) + 1


def test_a_clear_measurement_contradicts_a_prediction() -> None:
    observations = seen({"a": [100, 101, 99, 100], "b": [100, 100, 101, 99]})
    belief = expected(a=100, b=200)
    assert is_contradicted(observations, belief)
    assert fit_expecting(observations, belief) == fit_blocks(observations)


def test_noise_and_small_differences_contradict_nothing() -> None:
    assert not is_contradicted([], expected(a=1, b=2))
    assert not is_contradicted(
        seen({"a": [100, 100, 100], "b": [115, 115, 115]}), expected(a=1, b=1)
    )
    noisy = seen({"a": [100, 40, 160], "b": [70, 150, 60]}, log_sd=0.3)
    assert not is_contradicted(noisy, expected(a=100, b=160))


def test_rates_over_whole_epochs_are_held_against_such_predictions() -> None:
    """Epochs of 40 batches: 8 workers give 8 times the steady rate, and twice that of an epoch."""
    observations = [
        dataclasses.replace(each, whole_epochs=each.key == "w8")
        for each in seen({"w0": [50, 50.2, 49.9], "w8": [125, 124, 126]})
    ]
    steady = expected(w0=50, w8=400)
    assert is_contradicted(observations, steady)
    over_epochs = {key: math.log(rate) for key, rate in {"w0": 50, "w8": 118}.items()}
    belief = dataclasses.replace(steady, epoch_log_rates=over_epochs)
    assert not is_contradicted(observations, belief)
    fit = fit_expecting(observations, belief)
    assert fit.ratio("w8", "w0").value == pytest.approx(2.5, abs=0.1)


def test_a_prediction_that_stands_apart_falls_alone() -> None:
    observations = seen({"none": [50, 50, 51, 50], "a": [100, 101, 99, 100], "b": [97, 98, 96, 97]})
    rates = {key: math.log(rate) for key, rate in {"none": 100, "a": 100, "b": 100}.items()}
    belief = Expected(log_rates=rates, log_sd=0.08, apart=frozenset({"none"}))
    assert not is_contradicted(observations, belief)
    fit = fit_expecting(observations, belief)
    assert fit.ratio("none", "a").value == pytest.approx(0.5, rel=0.02)
    assert fit.cells["a"].keys() > fit.cells["none"].keys()


def test_a_prediction_that_every_block_belies_does_not_count() -> None:
    """Twice as fast foretold, slower in both blocks: too noisy for certainty, and yet it's none."""
    observations = seen({"none": [30, 31], "a": [403, 401], "b": [345, 248]}, log_sd=0.4)
    belief = expected(none=30, a=400, b=860)
    assert not is_contradicted(observations, belief)
    assert belied(observations, belief) == {"b"}
    fit = fit_expecting(observations, belief)
    assert fit.best() == "a"
    assert fit.cells["a"].keys() > fit.cells["b"].keys()


@pytest.mark.parametrize(
    "table",
    [
        {"a": [403], "b": [285]},  # once is luck
        {"a": [403, 401], "b": [285, 420]},  # one block has it the right way round
        {"a": [403, 401], "b": [420, 430]},  # far from twice as fast, but faster
        {"a": [403, 160], "b": [570, 285]},  # slower than another block's, not than its own's
    ],
)
def test_what_some_block_leaves_possible_is_not_belied(table: dict[str, list[float]]) -> None:
    assert not belied(seen(table, log_sd=0.3), expected(a=400, b=860))


def test_nothing_belies_nothing() -> None:
    assert not belied([], expected(a=400, b=860))
