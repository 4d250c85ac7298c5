"""How often noise hides what is better by more than 3 %: hardly ever, marked noise or not."""

from __future__ import annotations

import dataclasses
import math
import random
from collections.abc import Sequence

import pytest
from builders import config, failed, plan, trial

from dlprof.records import Config, Trial, Usage
from dlprof.search.grid import GridSearch, Proposal, StopReason
from dlprof.stats.belief import NEAR, believe, observe

GRID = tuple(config(w) for w in (0, 1, 2, 4, 8))
WAITING = Usage(own_cpu_cores=0.1, available_cpu_cores=8.0)
COMPUTING = Usage()
"""Unknown, which counts as all that there is."""

SWEEPS = 20
SPREADS = [0.3, *(pytest.param(each, marks=pytest.mark.slow) for each in (0.05, 1.0))]
DRIFT = 0.05
"""Standard deviation of what a whole block's log rates have in common."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Noise:
    """Of the log rate from trial to trial, as a standard deviation.

    Attributes:
        usage: Of the loader, by which its trials are judged.
        quiet: Of most trials.
        noisy: Of those that are marked noisy.
        share: Of those.
    """

    usage: Usage
    quiet: float
    noisy: float = 0.3
    share: float = 0.0


STEADY = Noise(usage=WAITING, quiet=0.01)
VIRTUAL = Noise(usage=COMPUTING, quiet=0.12)
MIXED = Noise(usage=COMPUTING, quiet=0.05, share=0.3)
CROWDED = Noise(usage=COMPUTING, quiet=0.3, share=1.0)
ALL = (STEADY, VIRTUAL, MIXED, CROWDED)
SOME = [STEADY, *(pytest.param(each, marks=pytest.mark.slow) for each in ALL[1:])]


def carry_out(
    search: GridSearch, rates: dict[Config, float], noise: Noise, rng: random.Random
) -> tuple[list[Trial], StopReason]:
    """A whole sweep of configurations that truly give these rates."""
    drifts = [rng.gauss(0, DRIFT) for _ in range(search.plan.max_repeats)]
    trials: list[Trial] = []
    while isinstance(step := search.propose(trials), Proposal):
        noisy = rng.random() < noise.share
        log = drifts[step.repetition] + rng.gauss(0, noise.noisy if noisy else noise.quiet)
        rate, block = rates[step.config] * math.exp(log), step.repetition
        trials.append(trial(step.config, rate, repetition=block, noisy=noisy, usage=noise.usage))
    return trials, step


def fastest(trials: Sequence[Trial]) -> Config:
    """What is believed to be the fastest after all."""
    rates = believe([seen for each in trials if (seen := observe(each)) is not None]).log_rates
    return max(GRID, key=lambda each: rates[each.key])


@pytest.mark.parametrize("spread", SPREADS)
@pytest.mark.parametrize("noise", SOME)
def test_a_search_that_calls_it_decided_has_found_what_is_best(noise: Noise, spread: float) -> None:
    """Rates lie anywhere within a spread, so that some of them are near the best."""
    wrong = 0
    for seed in range(SWEEPS):
        rng = random.Random(seed)
        rates = {each: 100 * math.exp(rng.uniform(-spread, 0)) for each in GRID}
        trials, end = carry_out(GridSearch(plan=plan(GRID), seed=seed), rates, noise, rng)
        near = rates[fastest(trials)] >= NEAR * max(rates.values())
        wrong += end == "decided" and not near
    assert wrong == 0


@pytest.mark.parametrize("lead", [0.05, 0.3, 1.0])
def test_on_a_quiet_machine_what_is_best_by_far_enough_is_found(lead: float) -> None:
    for seed in range(SWEEPS):
        rng = random.Random(seed)
        rates, best = ahead(lead, rng)
        trials, end = carry_out(GridSearch(plan=plan(GRID), seed=seed), rates, STEADY, rng)
        assert fastest(trials) == best
        assert end == "decided"


@pytest.mark.parametrize("lead", SPREADS)
@pytest.mark.parametrize("noise", SOME)
def test_what_is_best_is_in_every_block_that_is_asked_for(noise: Noise, lead: float) -> None:
    asked, missed = plan(GRID, take_turns=False, min_repeats=4, max_repeats=4), 0
    for seed in range(SWEEPS):
        rng = random.Random(seed)
        rates, best = ahead(lead, rng)
        trials, _ = carry_out(GridSearch(plan=asked, seed=seed), rates, noise, rng)
        missed += sum(each.config == best for each in trials) < 4
    assert missed == 0


def ahead(lead: float, rng: random.Random) -> tuple[dict[Config, float], Config]:
    """Rates of which one leads by more than 3 %, and which one; the rest lie behind it so far."""
    best = rng.choice(GRID)
    rates = {each: 100 * math.exp(-rng.uniform(0.05, max(0.05, lead))) for each in GRID}
    return {**rates, best: 100.0}, best


ASKED = GridSearch(plan=plan(GRID, take_turns=False))


def survivors(trials: Sequence[Trial]) -> set[Config]:
    """What the search goes on measuring after whole blocks: asked for one after the other."""
    history = list(trials)
    block = 1 + max(each.repetition for each in trials)
    found: set[Config] = set()
    while isinstance(step := ASKED.propose(history), Proposal) and step.repetition == block:
        found.add(step.config)
        history.append(failed(step.config, repetition=block))
    return found


def test_one_disturbed_trial_rules_nothing_out() -> None:
    first = [trial(each, 100.0) for each in GRID[1:]]
    slow = 45.0
    assert GRID[0] in survivors([*first, trial(GRID[0], slow, noisy=True)])
    steady = [dataclasses.replace(each, usage=WAITING) for each in first]
    assert GRID[0] not in survivors([*steady, trial(GRID[0], slow, usage=WAITING)])


def test_one_disturbed_trial_that_looks_fast_rules_nothing_out_either() -> None:
    first = [trial(each, 100.0) for each in GRID[1:]]
    assert survivors([*first, trial(GRID[0], 220.0, noisy=True)]) == set(GRID)


def test_a_quiet_repeat_outweighs_a_disturbed_one() -> None:
    quiet = [
        trial(each, 100.0, repetition=block, usage=WAITING) for block in (0, 1) for each in GRID[1:]
    ]
    mixed = [
        trial(GRID[0], 45.0, noisy=True),
        trial(GRID[0], 101.0, repetition=1, usage=WAITING),
    ]
    assert GRID[0] in survivors([*quiet, *mixed])
    belief = believe([seen for each in (*quiet, *mixed) if (seen := observe(each)) is not None])
    assert belief.ratio(GRID[0].key, GRID[1].key).value > 0.9
