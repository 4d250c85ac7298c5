"""How often the true best is dropped because of noise: hardly ever, marked noise or not."""

from __future__ import annotations

import math
import random
from collections.abc import Sequence

import pytest
from builders import config, failed, plan, trial

from dlprof.records import Config, Trial
from dlprof.search.grid import GridSearch, Proposal

GRID = tuple(config(w) for w in (0, 1, 2, 4, 8))
SEARCH = GridSearch(plan=plan(GRID, take_turns=False))
RUNS = 200
BLOCKS = 4


def log_sd(cv: float) -> float:
    """The standard deviation of the logarithm at a coefficient of variation."""
    return math.sqrt(math.log(1 + cv * cv))


def survivors(trials: Sequence[Trial]) -> set[Config]:
    """What the search goes on measuring after whole blocks: asked for one after the other."""
    history = list(trials)
    block = 1 + max(each.repetition for each in trials)
    found: set[Config] = set()
    while isinstance(step := SEARCH.propose(history), Proposal) and step.repetition == block:
        found.add(step.config)
        history.append(failed(step.config, repetition=block))
    return found


def dropped(spread: float, *, cv: float, noisy_cv: float, noisy_share: float) -> float:
    """Share of simulated sweeps that drop the true best at some time.

    Args:
        spread: The slowest configuration's log rate lies at most so far below the best one's.
        cv: Coefficient of variation of quiet trials.
        noisy_cv: Of those that are marked noisy.
        noisy_share: Share of those.
    """
    losses = 0
    for seed in range(RUNS):
        rng = random.Random(seed)
        rates = {each: 100 * math.exp(rng.uniform(-spread, 0)) for each in GRID}
        best = max(GRID, key=rates.__getitem__)
        alive, trials = set(GRID), list[Trial]()
        for block in range(BLOCKS):
            drift = rng.gauss(0, 0.2)
            for each in GRID:
                noisy = rng.random() < noisy_share
                sd = log_sd(noisy_cv if noisy else cv)
                rate = rates[each] * math.exp(drift + rng.gauss(0, sd))
                if each in alive:
                    trials.append(trial(each, rate, repetition=block, noisy=noisy))
            _, members = SEARCH._possible(trials)
            alive = set(members)
            if best not in alive:
                losses += 1
                break
    return losses / RUNS


@pytest.mark.parametrize("spread", [0.05, 0.3, 1.0])
def test_on_a_quiet_machine_the_best_is_dropped_less_than_once_in_a_hundred(spread: float) -> None:
    assert dropped(spread, cv=0.05, noisy_cv=0.05, noisy_share=0.0) < 0.01


@pytest.mark.parametrize("spread", [0.05, 0.3, 1.0])
def test_beside_neighbours_the_best_is_dropped_less_than_once_in_twenty(spread: float) -> None:
    assert dropped(spread, cv=0.35, noisy_cv=0.35, noisy_share=1.0) < 0.05


@pytest.mark.parametrize("noisy_share", [0.05, 0.3])
def test_a_few_disturbed_trials_among_quiet_ones_drop_the_best_hardly_ever(
    noisy_share: float,
) -> None:
    """Quiet trials make the pooled spread small; the disturbed ones must not be judged by it."""
    assert dropped(0.3, cv=0.03, noisy_cv=0.35, noisy_share=noisy_share) < 0.01


def test_one_disturbed_trial_rules_nothing_out() -> None:
    first = [trial(each, 100.0) for each in GRID[1:]]
    slow = 45.0
    assert GRID[0] in survivors([*first, trial(GRID[0], slow, noisy=True)])
    assert GRID[0] not in survivors([*first, trial(GRID[0], slow)])


def test_one_disturbed_trial_that_looks_fast_rules_nothing_out_either() -> None:
    first = [trial(each, 100.0) for each in GRID[1:]]
    assert survivors([*first, trial(GRID[0], 220.0, noisy=True)]) == set(GRID)


def test_a_quiet_repeat_outweighs_a_disturbed_one() -> None:
    quiet = [trial(each, 100.0, repetition=b) for b in (0, 1) for each in GRID[1:]]
    mixed = [trial(GRID[0], 45.0, noisy=True), trial(GRID[0], 101.0, repetition=1)]
    assert GRID[0] in survivors([*quiet, *mixed])
    fit, _ = SEARCH._possible([*quiet, *mixed])
    assert fit is not None
    assert fit.ratio(GRID[0].key, GRID[1].key).value > 0.9
