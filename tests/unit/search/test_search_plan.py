from __future__ import annotations

from typing import Any

import pytest
from builders import config
from hypothesis import given
from hypothesis import strategies as st

from dlprof.errors import UsageError
from dlprof.records import Config, LeftOut, Plan, TrialCost
from dlprof.search.space import (
    DEFAULT_OVERHEAD_S,
    LEAST_CONFIGS,
    LONGEST_TRIAL_S,
    SHORTEST_TRIAL_S,
    by_importance,
    expected_survivors,
    plan_trials,
    refuse_budget,
)
from dlprof.settings import SweepSettings

WORKERS = (1, 2, 4, 8, 16)
GRID = [config(0)] + [
    config(w, p, persistent_workers=persistent)
    for w in WORKERS
    for p in (2, 4)
    for persistent in (False, True)
]
CHEAP = TrialCost(overhead_s=DEFAULT_OVERHEAD_S)


def planned(
    budget_s: float, *, cost: TrialCost = CHEAP, spent_s: float = 0.0, **settings: Any
) -> tuple[Plan, tuple[LeftOut, ...]]:
    chosen = SweepSettings(budget_s=budget_s, **settings)
    return plan_trials(GRID, chosen, cost, spent_s=spent_s)


def test_a_wide_budget_takes_everything_and_longer_trials() -> None:
    short, left_out = planned(40)
    long, endless = planned(60)[0], planned(6000)[0]
    assert set(short.configs) == set(GRID)
    assert not left_out
    assert SHORTEST_TRIAL_S <= short.trial_s < long.trial_s < endless.trial_s == LONGEST_TRIAL_S


def test_three_blocks_are_expected_to_fit() -> None:
    plan, _ = planned(60, cost=TrialCost(overhead_s=0.5))
    trials = len(GRID) + 2 * expected_survivors(len(GRID))
    assert 58.5 <= trials * (plan.trial_s + 0.5) <= 60
    assert plan.planned_repeats == 3


def test_a_late_first_batch_is_named_where_it_leaves_little_room() -> None:
    slow = TrialCost(overhead_s=25.3)
    _, (left,) = planned(100, cost=slow)
    assert "as 25 s pass before a first batch" in left.reason
    with pytest.raises(UsageError, match=r"about 46 s.*, as 25 s pass before a first batch"):
        planned(45, cost=slow, spent_s=20.0)
    assert "first batch" not in planned(3.7)[1][0].reason


def test_a_short_budget_thins_the_grid_and_says_so() -> None:
    plan, (left,) = planned(3.7)
    assert set(plan.configs) == {config(0), *(config(w) for w in WORKERS)}
    assert plan.trial_s >= SHORTEST_TRIAL_S
    assert left.setting == "15 of 21 configurations"
    assert left.reason.startswith("a budget of 3.7 s holds 6 at most, the most informative ones")


def test_slow_batches_thin_the_grid_by_what_each_configuration_costs() -> None:
    """Sixteen workers on two cores need 1.6 s for a round of batches that take 0.2 s of CPU."""
    waiting, _ = planned(60, cost=TrialCost(overhead_s=0.3, batch_s=0.2))
    computing, _ = planned(
        60, cost=TrialCost(overhead_s=0.3, batch_s=0.2, batch_cpu_s=0.2, usable_cores=2)
    )
    assert len(waiting.configs) == len(GRID)
    assert len(computing.configs) < len(GRID)
    assert {config(w) for w in (0, *WORKERS)} <= set(computing.configs)


def test_any_budget_for_one_trial_plans_a_few_configurations() -> None:
    """One configuration alone recommends nothing, and trials may cost less than expected."""
    plan, (left,) = planned(20, cost=TrialCost(overhead_s=0.3, batch_s=1.6))
    assert [each.num_workers for each in plan.configs] == [0, 4, 16]
    assert left.reason.startswith("a budget of 20 s holds 3 at most")


def test_explicit_trial_time_and_repeats_are_kept() -> None:
    plan, _ = planned(600, trial_s=5.0, repeats=4)
    assert (plan.trial_s, plan.min_repeats, plan.max_repeats) == (5.0, 4, 4)
    assert not plan.take_turns
    assert planned(600)[0].take_turns


def test_a_budget_below_one_trial_is_refused_with_what_would_do() -> None:
    with pytest.raises(UsageError, match="can't hold a single trial") as caught:
        planned(0.5)
    assert "Give a budget of" in caught.value.hint


def test_a_budget_below_any_trial_is_refused_before_the_target_is_built() -> None:
    with pytest.raises(UsageError, match="at least") as caught:
        refuse_budget(SweepSettings(budget_s=2.0, trial_s=5.0))
    assert "5.3 s" in caught.value.message
    assert "budget of 53 s" in caught.value.hint
    refuse_budget(SweepSettings(budget_s=2.0))
    refuse_budget(SweepSettings(budget_s=5.5, trial_s=5.0))


def test_a_budget_below_the_steps_of_a_trial_is_refused_before_the_target_is_built() -> None:
    # As ``--step-time 40`` has it, where 40 ms were meant.
    with pytest.raises(UsageError, match="two steps pass in it of 40 s each") as caught:
        refuse_budget(SweepSettings(budget_s=45.0, step_s=40.0))
    assert "1 min 20 s at least" in caught.value.message
    refuse_budget(SweepSettings(budget_s=45.0, step_s=20.0))
    with pytest.raises(UsageError, match="with all before it"):
        refuse_budget(SweepSettings(budget_s=45.0, step_s=20.0), 10.0)


def test_overhead_that_can_not_be_shared_counts() -> None:
    assert len(planned(60, cost=TrialCost(overhead_s=5.0))[0].configs) < len(GRID)


def test_what_was_spent_before_counts() -> None:
    assert planned(60, spent_s=20)[0].trial_s == planned(40)[0].trial_s
    with pytest.raises(UsageError, match="budget of 1 min"):
        planned(60, spent_s=61)


def test_the_present_settings_are_the_last_to_be_left_out() -> None:
    odd = config(6, 3)
    plan, _ = plan_trials([*GRID, odd], SweepSettings(budget_s=6.9), CHEAP, present=odd)
    assert odd in plan.configs
    assert plan.present == odd
    foreign, _ = plan_trials(GRID, SweepSettings(budget_s=6.9), CHEAP, present=odd)
    assert foreign.present is None
    assert odd not in foreign.configs


def test_the_plan_keeps_what_trials_are_expected_to_cost() -> None:
    cost = TrialCost(overhead_s=0.5, batch_s=0.1, batch_cpu_s=0.05, usable_cores=2)
    assert planned(60, cost=cost)[0].cost == cost


def test_order_of_importance_is_workers_first_and_coarse() -> None:
    order = by_importance(GRID)
    assert [each.num_workers for each in order[:6]] == [0, 4, 16, 1, 8, 2]
    assert {each.key for each in order[:6]} == {"w0", "w4-p2", "w16-p2", "w1-p2", "w2-p2", "w8-p2"}
    assert all(each.persistent_workers != (each.prefetch_factor == 4) for each in order[6:16])
    assert all(each.persistent_workers and each.prefetch_factor == 4 for each in order[16:])


def test_importance_knows_what_the_user_named() -> None:
    order = by_importance([config(4, 8), config(4, 16), config(2, 8), config(2, 16)])
    assert [each.key for each in order[:2]] == ["w2-p8", "w4-p8"]


def test_importance_starts_with_the_present_settings() -> None:
    odd = config(6, 3)
    order = by_importance([*GRID, odd], odd)
    assert order == [odd, *by_importance(GRID)]
    usual = config(4)
    assert by_importance(GRID, usual) == [
        usual,
        *(each for each in by_importance(GRID) if each != usual),
    ]


def test_present_settings_do_not_decide_what_is_plain() -> None:
    """The user swept deep queues only; what he has now has shallow ones."""
    swept = [config(w, p) for w in (2, 4) for p in (8, 16)]
    order = by_importance([*swept, config(3, 2)], config(3, 2))
    assert [each.key for each in order[:3]] == ["w3-p2", "w2-p8", "w4-p8"]


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


costs = st.builds(
    TrialCost,
    overhead_s=st.floats(0, 1),
    batch_s=st.floats(0, 0.08),
    batch_cpu_s=st.floats(0, 0.01),
    usable_cores=st.floats(0.5, 64),
)


@given(configs, st.floats(2.5, 600), st.none() | st.integers(1, 10), costs)
def test_any_plan_is_a_part_of_the_grid_that_fits(
    grid: list[Config], budget_s: float, repeats: int | None, cost: TrialCost
) -> None:
    settings = SweepSettings(budget_s=budget_s, repeats=repeats)
    present = grid[-1]
    try:
        plan, left_out = plan_trials(grid, settings, cost, present=present)
    except UsageError:
        assert cost.of(present, SHORTEST_TRIAL_S) > budget_s
        return
    assert set(plan.configs) <= set(grid)
    assert len(plan.configs) >= min(len(grid), LEAST_CONFIGS)
    assert (len(plan.configs) == len(grid)) == (not left_out)
    assert SHORTEST_TRIAL_S <= plan.trial_s <= LONGEST_TRIAL_S
    assert plan.present in plan.configs
    assert len(set(by_importance(grid, present))) == len(grid)
    if len(plan.configs) > LEAST_CONFIGS:
        once_s = sum(cost.of(each, SHORTEST_TRIAL_S) for each in plan.configs)
        assert once_s <= budget_s * (1 + 1e-9)
