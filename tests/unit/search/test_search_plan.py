from __future__ import annotations

import pytest
from builders import config
from hypothesis import given
from hypothesis import strategies as st

from dlprof.errors import UsageError
from dlprof.records import Config
from dlprof.search.plan import (
    LONGEST_TRIAL_S,
    SHORTEST_TRIAL_S,
    by_importance,
    expected_survivors,
    plan_trials,
)
from dlprof.settings import SweepSettings

WORKERS = (1, 2, 4, 8, 16)
GRID = [config(0)] + [
    config(w, p, persistent_workers=persistent)
    for w in WORKERS
    for p in (2, 4)
    for persistent in (False, True)
]


def test_a_wide_budget_takes_everything_and_longer_trials() -> None:
    short = plan_trials(GRID, SweepSettings(budget_s=40))
    long = plan_trials(GRID, SweepSettings(budget_s=60))
    endless = plan_trials(GRID, SweepSettings(budget_s=6000))
    assert set(short.configs) == set(GRID)
    assert not short.left_out
    assert SHORTEST_TRIAL_S <= short.trial_s < long.trial_s < endless.trial_s == LONGEST_TRIAL_S


def test_three_blocks_are_expected_to_fit() -> None:
    plan = plan_trials(GRID, SweepSettings(budget_s=60), overhead_s=0.5)
    trials = len(GRID) + 2 * expected_survivors(len(GRID))
    assert trials * (plan.trial_s + 0.5) == pytest.approx(60)


def test_a_short_budget_thins_the_grid_and_says_so() -> None:
    plan = plan_trials(GRID, SweepSettings(budget_s=6.9))
    assert set(plan.configs) == {config(0), *(config(w) for w in WORKERS)}
    assert plan.trial_s >= SHORTEST_TRIAL_S
    (left,) = plan.left_out
    assert left.setting == "15 of 21 configurations"
    assert left.reason.startswith("a budget of 6.9")


def test_explicit_trial_time_and_repeats_are_kept() -> None:
    plan = plan_trials(GRID, SweepSettings(budget_s=600, trial_s=5.0, repeats=4))
    assert (plan.trial_s, plan.min_repeats, plan.max_repeats) == (5.0, 4, 4)


def test_a_budget_below_one_trial_is_refused_with_what_would_do() -> None:
    with pytest.raises(UsageError, match="can't hold a single trial") as caught:
        plan_trials(GRID, SweepSettings(budget_s=0.5))
    assert "Give a budget of" in caught.value.hint


def test_overhead_that_can_not_be_shared_counts() -> None:
    plan = plan_trials(GRID, SweepSettings(budget_s=60), overhead_s=5.0)
    assert len(plan.configs) < len(GRID)


def test_what_was_spent_before_counts() -> None:
    late = plan_trials(GRID, SweepSettings(budget_s=60), spent_s=20)
    assert late.trial_s == plan_trials(GRID, SweepSettings(budget_s=40)).trial_s
    with pytest.raises(UsageError, match="budget of 1 min"):
        plan_trials(GRID, SweepSettings(budget_s=60), spent_s=61)


def test_order_of_importance_is_workers_first_and_coarse() -> None:
    order = by_importance(GRID)
    assert [each.num_workers for each in order[:6]] == [0, 4, 16, 1, 8, 2]
    assert {each.key for each in order[:6]} == {"w0", "w4-p2", "w16-p2", "w1-p2", "w2-p2", "w8-p2"}
    assert all(each.persistent_workers != (each.prefetch_factor == 4) for each in order[6:16])
    assert all(each.persistent_workers and each.prefetch_factor == 4 for each in order[16:])


def test_importance_knows_what_the_user_named() -> None:
    order = by_importance([config(4, 8), config(4, 16), config(2, 8), config(2, 16)])
    assert [each.key for each in order[:2]] == ["w2-p8", "w4-p8"]


configs = st.lists(
    st.builds(
        lambda w, p, pin, keep: config(w, p, pin_memory=pin, persistent_workers=keep),
        st.integers(0, 64),
        st.sampled_from([1, 2, 4]),
        st.booleans(),
        st.booleans(),
    ),
    min_size=1,
    max_size=60,
    unique=True,
)


@given(configs, st.floats(1, 600), st.none() | st.integers(1, 10))
def test_any_plan_is_a_part_of_the_grid_that_fits(
    grid: list[Config], budget_s: float, repeats: int | None
) -> None:
    plan = plan_trials(grid, SweepSettings(budget_s=budget_s, repeats=repeats))
    assert set(plan.configs) <= set(grid)
    assert len(plan.configs) >= 1
    assert (len(plan.configs) == len(grid)) == (not plan.left_out)
    assert SHORTEST_TRIAL_S <= plan.trial_s <= LONGEST_TRIAL_S
    assert len(set(by_importance(grid))) == len(grid)
