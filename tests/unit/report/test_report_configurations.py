"""The rows say of each configuration what the recommendation says of it."""

from __future__ import annotations

import dataclasses

import pytest
from builders import blocks, config, failed, plan, run, target, trial
from golden import drawn

from dlprof.advise.recommend import (
    DEFAULT,
    FAILED,
    FASTEST,
    PICK,
    PRESENT,
    ConfigSummary,
    recommend,
    summarize,
)
from dlprof.records import Config, Constraints, Estimate, Run
from dlprof.report.labels import MOST_BARS, Rated, rates_chart
from dlprof.report.sweep import recommendation_report

W0, W2, W4 = (config(w) for w in (0, 2, 4))
KEPT = config(4, persistent_workers=True)


def _advised(measured: Run, constraints: Constraints | None = None) -> Run:
    return dataclasses.replace(measured, recommendation=recommend(measured, constraints))


def _rows(measured: Run) -> dict[Config, ConfigSummary]:
    return {row.config: row for row in summarize(measured)}


def _short_epochs() -> Run:
    """Ten batches an epoch; starting workers takes as long as six, one of each worker included."""
    steady = {W4: [3200.0] * 3, KEPT: [3180.0] * 3}
    trials = [
        dataclasses.replace(each, epoch_turnover_s=0.001 if each.config == KEPT else 0.06)
        for each in blocks(steady)
    ]
    return run(trials, target=target(batches_per_epoch=10, length=320))


def test_the_slower_of_a_pair_is_distinguished_as_in_the_recommendation() -> None:
    measured = _advised(_short_epochs())
    assert measured.recommendation is not None
    assert measured.recommendation.config == KEPT
    rows = _rows(measured)
    assert rows[KEPT].role == PICK
    slower, kept, relative = rows[W4].rate, rows[KEPT].rate, rows[W4].relative
    assert slower is not None
    assert kept is not None
    assert relative is not None
    assert relative.value == pytest.approx(
        0.10 / 0.14, abs=0.01
    )  # within an epoch they are the same
    assert slower.value / kept.value == pytest.approx(relative.value)
    assert [row.config for row in summarize(measured)] == [KEPT, W4]


@pytest.mark.parametrize(
    ("forked", "said"),
    [
        (500.0, "num_workers=2, start_method=spawn (yours) "),
        (
            2000.0,
            "num_workers=2, start_method=fork (yours: num_workers=2, start_method=spawn) ",
        ),
    ],
)
def test_the_start_method_that_the_target_has_is_no_change(forked: float, said: str) -> None:
    fork, spawn = (config(2, start_method=each) for each in ("fork", "spawn"))
    measured = run(
        blocks({fork: [forked] * 3, spawn: [1000.0] * 3}),
        target=target(own_config=spawn),
        settings={"start_method": ["fork", "spawn"]},
    )
    assert measured.header.present == spawn
    text = drawn(recommendation_report(measured, recommend(measured)), 120)
    assert f"Recommended {said}" in f"{' '.join(text.split())} "


def test_without_workers_a_start_method_of_the_target_s_own_is_taken_back() -> None:
    rates = {config(0): [2000.0] * 3, W2: [1000.0] * 3}
    measured = run(
        blocks(rates),
        target=target(own_config=config(2, start_method="spawn")),
        plan=plan(rates, present=W2),
    )
    text = " ".join(drawn(recommendation_report(measured, recommend(measured)), 120).split())
    assert "..., num_workers=0, multiprocessing_context=None)" in text


def test_a_run_that_did_not_name_the_target_s_start_method_still_knows_its_settings() -> None:
    """Runs of versions that left it at ``None`` where start methods are compared, too."""
    fork, spawn = (config(4, start_method=each) for each in ("fork", "spawn"))
    rates = {W2: [1000.0] * 3, fork: [2000.0] * 3, spawn: [1900.0] * 3}
    measured = run(
        blocks(rates),
        target=target(own_config=config(2, start_method="spawn")),
        settings={"start_method": ["fork", "spawn"]},
        plan=plan(rates, present=W2),
    )
    assert _rows(_advised(measured))[W2].role == PRESENT
    text = " ".join(drawn(recommendation_report(measured, recommend(measured)), 120).split())
    assert "2.00x over your settings" in text


@pytest.mark.parametrize(
    "constraints", [None, Constraints(step_s=0.02), Constraints(ranks=2, step_s=0.001)]
)
def test_rows_and_recommendation_show_the_same_figures(constraints: Constraints | None) -> None:
    trials = blocks({W0: [400, 410, 405], W2: [790, 800, 780], W4: [1500, 1490, 1510]})
    measured = _advised(run(trials), constraints)
    advice = measured.recommendation
    assert advice is not None
    rows = _rows(measured)
    shown = [(advice.config, advice.expected, 1.0)]
    shown += [(other.config, other.expected, other.speed) for other in advice.alternatives]
    assert len(shown) > 1
    for chosen, expected, speed in shown:
        row = rows[chosen]
        assert row.rate == expected.samples_per_s
        assert row.relative is not None
        assert row.relative.value == pytest.approx(speed)
        assert row.wait_fraction == expected.wait_fraction
        assert row.seen.pss_bytes == expected.pss_bytes
        assert row.seen.shm_bytes == expected.shm_bytes
        assert row.seen.startup_s == expected.startup_s
        assert row.seen.epoch_turnover_s == expected.epoch_turnover_s


def test_roles_are_the_recommendation_s() -> None:
    trials = [*blocks({W0: [400, 410], W2: [790, 800], W4: [1500, 1490]}), failed(config(8))]
    measured = run(trials, target=target(own_config=W2))
    roles = {chosen: row.role for chosen, row in _rows(_advised(measured)).items()}
    assert roles == {W4: PICK, W2: PRESENT, W0: DEFAULT, config(8): FAILED}
    without = {chosen: row.role for chosen, row in _rows(measured).items()}
    assert without == {W4: FASTEST, W2: PRESENT, W0: "", config(8): FAILED}


def test_what_was_skipped_is_no_row() -> None:
    rows = summarize(run([failed(W4, outcome="skipped"), trial(W0, 100)]))
    assert [row.config for row in rows] == [W0]


def test_what_failed_or_gave_no_rate_stands_last_without_figures() -> None:
    rows = summarize(run([failed(W4), trial(W2, None), trial(W0, 100)]))
    assert [row.config for row in rows] == [W0, W2, W4]
    assert [len(row.seen.trials) for row in rows] == [1, 0, 0]
    assert rows[-1].rate is rows[-1].relative is None
    assert summarize(run([])) == ()


def test_yours_has_a_bar_beside_what_is_recommended_with_as_many_workers() -> None:
    """The speed-up is the quotient of their rates."""
    kept = dataclasses.replace(config(2), persistent_workers=True)
    rates = {config(0): 80.0, config(2): 64.0, kept: 98.0, config(4): 95.0}
    rated = [Rated(each, Estimate(value=rate), "") for each, rate in rates.items()]
    shown = rates_chart(rated, kept, config(2))
    assert shown is not None
    assert [(bar.label, bar.figure) for bar in shown.bars] == [
        ("0 default", "80.0"),
        ("2 yours", "64.0"),
        ("2 ◀", "98.0"),
        ("4 not persistent", "95.0"),
    ]


def test_a_chart_leaves_out_what_was_only_predicted_first() -> None:
    def bars(measured: set[int]) -> dict[str, int]:
        rates = [
            Rated(config(w), Estimate(value=100.0 + w), "", first=w in measured) for w in range(13)
        ]
        shown = rates_chart(rates, config(12))
        assert shown is not None
        assert len(shown.bars) == MOST_BARS
        return {bar.label.split()[0]: bar.spare for bar in shown.bars}

    some = bars({2, 4, 8})
    measured = {"2", "4", "8"}
    assert (some.pop("12"), some.pop("0")) == (0, 1)  # the recommended and the default stay
    assert {label for label, spare in some.items() if spare == 2} == measured
    assert {label for label, spare in some.items() if spare == 3} == some.keys() - measured
    every = bars({*range(13)})
    assert {label for label, spare in every.items() if spare < 2} == {"0", "12"}
    many = bars({1, 2, 3, 4, 5, 6, 7, 8})
    # The best goes before what was measured, where it is only predicted and not recommended.
    rates = [Rated(config(w), Estimate(value=100.0 + w), "", first=w < 3) for w in range(5)]
    shown = rates_chart(rates, config(2))
    assert shown is not None
    assert [bar.spare for bar in shown.bars] == [1, 2, 0, 3, 3]
    assert not {"9", "10", "11"} & many.keys()
