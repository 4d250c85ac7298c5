"""What a sweep does with its budget where trials are expensive."""

from __future__ import annotations

from dataclasses import replace

import pytest
from builders import config, plan, trial
from virtual_sweeps import Loader, Sweep, steady, sweep

from dlprof.records import Config, TrialCost
from dlprof.search.grid import SweepBudget
from dlprof.search.space import by_importance

COMPUTING = Loader(batch_s=0.1, cpu_s=0.1)
WAITING = Loader(batch_s=1.6)
SEEDS = range(3)
BUDGETS = (20.0, *(pytest.param(each, marks=pytest.mark.slow) for each in (60.0, 90.0)))
SLOWNESS = (0.6, 1.0, 1.3)


@pytest.mark.parametrize("budget_s", BUDGETS)
@pytest.mark.parametrize("slowness", SLOWNESS)
@pytest.mark.parametrize("kind", [COMPUTING, WAITING])
def test_a_sweep_of_slow_batches_keeps_to_its_budget(
    kind: Loader, slowness: float, budget_s: float
) -> None:
    for seed in SEEDS:
        done = sweep(replace(kind, slowness=slowness), budget_s, seed=seed)
        assert done.took_s <= 1.1 * budget_s
        dearest_s = max(each.wall_s for each in done.trials)
        unmeasured = set(done.plan.configs) - {each.config for each in done.trials}
        if unmeasured:
            assert done.stop == "budget"
            assert budget_s - done.took_s < 1.3 * dearest_s, "no time left for another trial"


@pytest.mark.parametrize("budget_s", BUDGETS)
@pytest.mark.parametrize("kind", [COMPUTING, WAITING])
def test_what_is_passed_over_for_something_less_important_costs_more(
    kind: Loader, budget_s: float
) -> None:
    """A coarse range of ``num_workers`` comes first, and only what costs too much is missing."""
    for seed in SEEDS:
        done = sweep(kind, budget_s, seed=seed)
        assert not unjustly_passed_over(done)


def test_where_trials_turn_out_expensive_the_important_ones_are_measured() -> None:
    """At three times the cost: at most the first trial goes to anything that shows less."""
    for seed in SEEDS:
        done = sweep(replace(COMPUTING, slowness=3.0), 60.0, seed=seed)
        assert len({each.config for each in done.trials}) < len(done.plan.configs) / 2
        assert not unjustly_passed_over(done, forgiven=1)
        assert done.took_s <= 1.1 * 60


def unjustly_passed_over(done: Sweep, *, forgiven: int = 0) -> list[Config]:
    """What was left out for something less important that does not cost less.

    Args:
        done: The sweep.
        forgiven: So many of its first trials may have been anything.
    """
    measured = [each.config for each in done.trials]
    cost, trial_s = done.plan.cost, done.plan.trial_s
    ranked = by_importance(done.plan.configs)
    found = []
    for place, each in enumerate(ranked):
        later = [c for c in ranked[place:] if c in measured[forgiven:]]
        instead = [c for c in later if cost.of(c, trial_s) >= cost.of(each, trial_s)]
        if each not in measured and instead:
            found.append(each)
    return found


@pytest.mark.parametrize("slowness", SLOWNESS)
@pytest.mark.parametrize("budget_s", BUDGETS)
def test_the_best_few_of_a_computing_target_are_measured_twice(
    budget_s: float, slowness: float
) -> None:
    for seed in SEEDS:
        done = sweep(replace(COMPUTING, slowness=slowness), budget_s, seed=seed)
        repeated = {steady(c) for c in done.plan.configs if len(done.blocks_of(c)) >= 2}
        fast = {each for each in repeated if each.num_workers >= 2}
        assert len(fast) >= 2
        assert len({each.num_workers for each in done.block(0)}) >= 4


@pytest.mark.parametrize("slowness", SLOWNESS)
@pytest.mark.parametrize("budget_s", [60.0, pytest.param(90.0, marks=pytest.mark.slow)])
def test_the_best_of_a_waiting_target_is_measured_twice(budget_s: float, slowness: float) -> None:
    for seed in SEEDS:
        done = sweep(replace(WAITING, slowness=slowness), budget_s, seed=seed)
        assert {0, 3} <= {each.num_workers for each in done.block(0)}
        repeated = [c for c in done.plan.configs if len(done.blocks_of(c)) >= 2]
        assert repeated
        assert all(each.num_workers >= 3 for each in repeated), "the slow ones are not repeated"


def test_time_that_would_be_left_over_goes_to_one_more_configuration() -> None:
    """Four trials fit: two configurations once, the better one again, and one more once."""
    done = sweep(replace(WAITING, noise=0.0), 34.0)
    assert [each.num_workers for each in done.block(0)] == [0, 3]
    assert [each.num_workers for each in done.block(1)] == [3, 8]
    assert done.stop == "budget"


def test_two_configurations_are_compared_before_any_is_repeated() -> None:
    done = sweep(replace(WAITING, slowness=0.6), 20.0)
    assert [each.num_workers for each in done.block(0)] == [0, 3]


def test_room_is_kept_for_as_many_repeats_as_there_are_rivals() -> None:
    grid = [config(w) for w in range(12)]
    whole = SweepBudget.of([], plan(grid))
    tried, untried, left_s = grid[:9], grid[9:], 3.2 * whole.typical_s
    clear = replace(whole, left_s=left_s, due=1)
    assert clear.for_new(untried, tried) == [config(9)]
    close = replace(whole, left_s=left_s, due=9)
    assert close.for_new(untried, tried) == []
    assert replace(whole, due=9).for_new(untried, tried) == untried


def test_a_trial_costs_its_window_and_what_fills_and_empties_the_workers() -> None:
    cost = TrialCost(overhead_s=0.3, batch_s=0.1, batch_cpu_s=0.1, usable_cores=2)
    assert cost.of(config(0), 1.0) == pytest.approx(0.3 + 1.0 + 2 * 0.1)
    assert cost.of(config(2), 1.0) == pytest.approx(0.3 + 1.0 + 4 * 0.1)
    assert cost.of(config(8), 1.0) == pytest.approx(0.3 + 3 * 0.4 + 4 * 0.4)


def test_workers_that_wait_do_not_wait_longer_for_being_many() -> None:
    cost = TrialCost(overhead_s=0.3, batch_s=1.6, usable_cores=2)
    assert cost.of(config(64), 0.3) == pytest.approx(0.3 + 1.6 + 4 * 1.6)  # a window of one round


def test_batches_that_cost_nothing_leave_the_window_and_the_overhead() -> None:
    assert TrialCost(overhead_s=0.3).of(config(16), 1.0) == pytest.approx(1.3)


def test_what_trials_took_corrects_what_all_of_them_are_expected_to_take() -> None:
    grid = plan([config(w) for w in (0, 1, 2)])
    costs = SweepBudget.of([trial(config(0), wall_s=2.8), trial(config(1), wall_s=4.2)], grid)
    assert costs.factor == pytest.approx(2.5)
    assert _rounded(costs, config(0), config(1), config(2)) == [2.8, 4.2, 3.5]
    assert costs.typical_s == pytest.approx(3.5)


def test_what_workers_take_to_start_is_known_from_fewer_of_them() -> None:
    """A tenth of a second for each: what 32 take follows from the few that were measured."""
    grid = plan([config(w) for w in (0, 1, 2, 4, 32)])
    tried = [trial(config(w), wall_s=1.4 + 0.1 * w) for w in (1, 2, 4)]
    costs = SweepBudget.of([trial(config(0), wall_s=3.0), *tried], grid)
    assert _rounded(costs, config(4), config(8), config(32)) == [1.8, 2.2, 4.6]
    even = SweepBudget.of([trial(config(w), wall_s=2.0) for w in (1, 2, 4)], grid)
    assert _rounded(even, config(32)) == [2.0]


def _rounded(costs: SweepBudget, *configs: Config) -> list[float]:
    return [round(costs.expected_s(each), 6) for each in configs]
