from __future__ import annotations

import dataclasses
import math
import random
from collections.abc import Callable

import pytest
from builders import config, failed, plan, trial
from hypothesis import given
from hypothesis import strategies as st

from dlprof.records import Config, Trial, Usage
from dlprof.search.grid import GridSearch, Proposal, StopReason
from dlprof.search.space import asked_values
from dlprof.settings import SweepSettings

GRID = tuple(config(w) for w in (0, 1, 2, 4, 8, 16))
COMPUTING = Usage()  # unknown, which counts as all that there is
WAITING = Usage(own_cpu_cores=0.1, available_cpu_cores=8.0)
Engine = Callable[[Proposal], Trial]


def search(
    configs: tuple[Config, ...] = GRID, *, seed: int = 0, low: int = 2, high: int = 8
) -> GridSearch:
    return GridSearch(plan=plan(configs, min_repeats=low, max_repeats=high), seed=seed)


def exact(configs: tuple[Config, ...], repeats: int) -> GridSearch:
    """Where the user asks for so many repeats."""
    asked = plan(configs, min_repeats=repeats, max_repeats=repeats, take_turns=False)
    return GridSearch(plan=asked)


def engine(rates: dict[int, float], noise: float = 0.0, usage: Usage = WAITING) -> Engine:
    """A pretended machine: a rate for each ``num_workers``, and noise fixed by the trial."""

    def measure(proposal: Proposal) -> Trial:
        workers = proposal.config.num_workers
        rng = random.Random(f"{proposal.config.key}/{proposal.repetition}")
        rate = rates[workers] * math.exp(rng.gauss(0, noise))
        return trial(
            proposal.config, rate, repetition=proposal.repetition, spread=0.01, usage=usage
        )

    return measure


def carry_out(
    grid: GridSearch, measure: Engine, history: list[Trial] | None = None
) -> tuple[list[Trial], StopReason]:
    trials = list(history or [])
    for _ in range(1000):
        step = grid.propose(trials)
        if isinstance(step, str):
            return trials, step
        trials.append(measure(step))
    raise AssertionError("the search does not end")


CLEAR = {0: 100.0, 1: 90.0, 2: 200.0, 4: 800.0, 8: 300.0, 16: 250.0}
CLOSE = {0: 790.0, 1: 800.0, 2: 805.0, 4: 810.0, 8: 805.0, 16: 800.0}


def block(trials: list[Trial], number: int) -> list[Config]:
    return [each.config for each in trials if each.repetition == number]


def test_each_block_has_an_order_of_its_own() -> None:
    trials, _ = carry_out(exact(GRID, 2), engine(CLOSE))
    first, second = block(trials, 0), block(trials, 1)
    assert set(first) == set(second) == set(GRID)
    assert len(first) == len(second) == len(GRID)
    assert first != second
    assert first != list(GRID)


def test_later_blocks_hold_the_choice_and_the_two_that_could_be_better_by_most() -> None:
    far = {**CLOSE, 0: 400.0, 1: 500.0, 8: 820.0}
    trials, _ = carry_out(search(), engine(far))
    assert set(block(trials, 0)) == set(GRID)
    assert len(block(trials, 0)) == len(GRID)
    later = [block(trials, number) for number in range(1, 1 + trials[-1].repetition)]
    assert later
    assert len(later[0]) == 3
    assert {len(each) for each in later} <= {2, 3}
    assert config(8) in later[0]
    assert not {config(0), config(1)} & {each for row in later for each in row}


def test_the_seed_decides_the_order() -> None:
    orders = {
        tuple(block(carry_out(search(seed=seed), engine(CLOSE))[0], 0)) for seed in (0, 0, 1, 2)
    }
    assert len(orders) == 3


def test_what_is_ruled_out_is_not_measured_again_even_the_reference() -> None:
    trials, stop = carry_out(search(), engine(CLEAR))
    assert set(block(trials, 1)) == {config(4), config(8), config(16)}  # beside it, drift shows
    assert trials[-1].repetition == 1
    assert stop == "decided"


def test_a_difference_that_one_block_can_not_prove_is_repeated() -> None:
    trials, stop = carry_out(search(), engine({**CLEAR, 8: 680.0}, usage=COMPUTING))
    assert set(block(trials, 1)) == {config(4), config(8)}
    assert stop == "decided"


def test_ties_stop_before_all_repeats() -> None:
    trials, stop = carry_out(search((config(2), config(4))), engine(CLOSE))
    assert stop == "decided"
    assert 4 <= len(trials) < 16


@pytest.mark.parametrize(("wait", "goes_on"), [(None, True), (0.2, True), (0.004, False)])
def test_a_loader_that_keeps_the_step_fed_has_no_rivals(
    wait: float | None, *, goes_on: bool
) -> None:
    measure = engine(CLOSE, 0.01)

    def waiting(proposal: Proposal) -> Trial:
        return dataclasses.replace(measure(proposal), wait_fraction=wait)

    trials, stop = carry_out(search(), waiting)
    assert stop == "decided"
    assert bool(block(trials, 3)) is goes_on


def test_undecided_configurations_are_measured_until_the_repeats_are_done() -> None:
    def measure(proposal: Proposal) -> Trial:
        lead = 0.95 if proposal.repetition % 2 else 1.15
        rate = 100 * lead if proposal.config.num_workers == 4 else 100
        return trial(proposal.config, rate, repetition=proposal.repetition)

    trials, stop = carry_out(search((config(2), config(4))), measure)
    assert stop == "complete"
    assert len(trials) == 16


def test_a_lone_configuration_is_measured_the_least_number_of_times() -> None:
    trials, stop = carry_out(search((config(2),)), engine(CLEAR))
    assert (len(trials), stop) == (2, "decided")


def test_failed_configurations_are_not_repeated() -> None:
    def measure(proposal: Proposal) -> Trial:
        if proposal.config.num_workers == 16:
            return failed(proposal.config, repetition=proposal.repetition)
        return engine(CLOSE)(proposal)

    trials, _ = carry_out(search(), measure)
    assert sum(each.config.num_workers == 16 for each in trials) == 1


def test_nothing_but_failures_is_complete_after_one_block() -> None:
    trials, stop = carry_out(search(), lambda p: failed(p.config, repetition=p.repetition))
    assert (len(trials), stop) == (len(GRID), "complete")


def test_explicit_repeats_are_all_done() -> None:
    trials, stop = carry_out(exact(GRID, 4), engine({**CLEAR, 8: 780.0}))
    for number in (1, 2, 3):
        assert config(4) in block(trials, number)
        assert not {config(0), config(1), config(2), config(16)} & {*block(trials, number)}
    assert config(8) in block(trials, 1)
    assert stop == "complete"


def test_one_repeat_is_one_block() -> None:
    trials, stop = carry_out(search(low=1, high=1), engine(CLOSE))
    assert (len(trials), stop) == (len(GRID), "complete")


TWINS = tuple(config(w, persistent_workers=keep) for w in (2, 4) for keep in (False, True))
SAME = {2: 100.0, 4: 101.0}


def test_twins_that_differ_between_epochs_only_take_turns_after_the_first_block() -> None:
    trials, _ = carry_out(search(TWINS), engine(SAME, usage=COMPUTING))
    assert set(block(trials, 0)) == set(TWINS)
    assert {each.key for each in block(trials, 1)} == {"w2-p2-persistent", "w4-p2-persistent"}
    assert {each.key for each in block(trials, 2)} == {"w2-p2", "w4-p2"}


def test_explicit_repeats_hold_for_twins_too() -> None:
    trials, _ = carry_out(exact(TWINS, 2), engine(SAME))
    assert set(block(trials, 1)) == set(TWINS)


def test_a_twin_whose_partner_failed_is_measured_in_every_block() -> None:
    def measure(proposal: Proposal) -> Trial:
        if not proposal.config.persistent_workers:
            return failed(proposal.config, repetition=proposal.repetition)
        return engine(SAME)(proposal)

    trials, _ = carry_out(search(TWINS), measure)
    assert {each.key for each in block(trials, 1)} == {"w2-p2-persistent", "w4-p2-persistent"}


def test_trials_of_configurations_outside_the_plan_are_ignored() -> None:
    foreign = [trial(config(99), 1e6, repetition=5)]
    step = search().propose(foreign)
    assert isinstance(step, Proposal)
    assert step.repetition == 0


def test_the_budget_ends_it_before_a_trial_that_would_not_fit() -> None:
    grid = search()
    assert grid.propose([], remaining_s=1.3) == "budget"
    step = grid.propose([], remaining_s=1.5)
    assert isinstance(step, Proposal)
    assert step.expected_s == pytest.approx(1.4)
    assert step.expected_rest_s == 1.5


def test_costs_are_learned_from_what_trials_took() -> None:
    grid = search((config(2), config(4)))
    first = grid.propose([])
    assert isinstance(first, Proposal)
    slow = trial(first.config, 100, wall_s=9.0)
    step = grid.propose([slow], remaining_s=20.0)
    assert isinstance(step, Proposal)
    assert step.expected_s == 9.0
    assert grid.propose([slow], remaining_s=8.0) == "budget"


def test_expensive_trials_leave_out_the_least_important_rather_than_the_repeats() -> None:
    """Planned for 1.4 s a trial, which takes 3 s: of ten such, the best are measured twice."""
    grid, left_s, trials = search(), 30.0, list[Trial]()
    while isinstance(step := grid.propose(trials, remaining_s=left_s), Proposal):
        trials.append(dataclasses.replace(engine(CLOSE)(step), wall_s=3.0))
        left_s -= 3.0
    assert step == "budget"
    assert len(trials) == 10
    assert len(block(trials, 0)) == len(GRID)
    assert len(block(trials, 1)) == 3
    costly, left_s, trials = search(), 12.0, []
    while isinstance(step := costly.propose(trials, remaining_s=left_s), Proposal):
        measured = engine(CLOSE, usage=COMPUTING)(step)
        trials.append(dataclasses.replace(measured, wall_s=3.0))
        left_s -= 3.0
    assert len(block(trials, 0)) == len(block(trials, 1)) == 2
    assert step == "budget"


def test_what_the_budget_left_out_joins_a_later_block_when_there_is_more() -> None:
    short = [engine(CLOSE)(_proposal(w, 0)) for w in (0, 4)]
    assert grid_todo(short, remaining_s=2.9) <= {config(0), config(4)}
    assert grid_todo(short, remaining_s=100.0) == {config(w) for w in (1, 2, 8, 16)}


def _proposal(workers: int, repetition: int) -> Proposal:
    return Proposal(
        config=config(workers),
        repetition=repetition,
        trial_s=1.0,
        expected_s=1.4,
        expected_rest_s=1.4,
    )


def grid_todo(history: list[Trial], *, remaining_s: float) -> set[Config]:
    """The configurations proposed next, over a handful of seeds."""
    steps = [search(seed=seed).propose(history, remaining_s=remaining_s) for seed in range(40)]
    return {step.config for step in steps if isinstance(step, Proposal)}


def test_the_rest_shrinks_as_trials_are_done() -> None:
    grid = search()
    trials: list[Trial] = []
    rests = []
    for _ in range(6):
        step = grid.propose(trials)
        assert isinstance(step, Proposal)
        rests.append(step.expected_rest_s)
        trials.append(engine(CLOSE)(step))
    assert rests == sorted(rests, reverse=True)


@pytest.mark.slow
@given(
    st.dictionaries(st.sampled_from([0, 1, 2, 4, 8]), st.floats(50, 500), min_size=1),
    st.sampled_from([0.0, 0.02, 0.2]),
    st.integers(0, 3),
    st.integers(0, 90),
)
def test_a_sweep_cut_off_anywhere_goes_on_to_the_same_trials(
    rates: dict[int, float], noise: float, seed: int, cut: int
) -> None:
    configs = (config(w, persistent_workers=keep) for w in rates for keep in (False, True))
    grid = search(tuple(sorted(set(configs), key=lambda c: c.cost_key)), seed=seed)
    whole, stop = carry_out(grid, engine(rates, noise))
    resumed, stop_again = carry_out(grid, engine(rates, noise), whole[:cut])
    assert resumed == whole
    assert stop_again == stop


def test_what_was_asked_is_measured_once_before_anything_is_repeated() -> None:
    """Three values in a budget of three trials that take longer than was planned, one over."""
    few = tuple(config(workers) for workers in (1, 2, 4))
    asked = asked_values(few, SweepSettings(num_workers=(1, 2, 4)))
    assert set(asked) == set(few)
    grid = dataclasses.replace(search(few), asked=asked)
    left_s, trials = 10.0, list[Trial]()
    while isinstance(step := grid.propose(trials, remaining_s=left_s), Proposal):
        measured = engine(CLOSE, usage=COMPUTING)(step)
        trials.append(dataclasses.replace(measured, wall_s=3.0))
        left_s -= 3.0
    assert [each.repetition for each in trials] == [0, 0, 0]
    assert {each.config for each in trials} == set(few)


def test_of_each_value_that_was_asked_the_plainest_has_it() -> None:
    grid = [config(w, prefetch_factor=depth) for w in (1, 2) for depth in (2, 4)]
    assert set(asked_values(grid, SweepSettings(num_workers=(1, 2)))) == {config(1), config(2)}
    both = SweepSettings(num_workers=(1, 2), prefetch_factor=(2, 4))
    assert len(asked_values(grid, both)) == 3
    assert asked_values(grid, SweepSettings()) == ()
