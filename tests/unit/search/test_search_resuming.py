"""A sweep goes on from its run file alone: the plan in the header and the trials."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest
from builders import header, target, trial
from virtual_sweeps import Loader, Sweep, sweep

from dlprof.records import Plan, Trial
from dlprof.search.grid import GridSearch, Proposal
from dlprof.store import RunWriter, read_run

BUDGET_S = 60.0
SEED = 3


@pytest.fixture(scope="module")
def whole() -> Sweep:
    return sweep(Loader(batch_s=0.1, cpu_s=0.1), BUDGET_S, seed=SEED)


def reread(path: Path, plan: Plan, trials: tuple[Trial, ...]) -> tuple[Plan, tuple[Trial, ...]]:
    """Plan and trials as a run file gives them back."""
    numbered = [dataclasses.replace(each, id=f"t{i:04}") for i, each in enumerate(trials, 1)]
    with RunWriter.create(path, header(plan=plan, target=target())) as writer:
        for each in numbered:
            writer.append(each)
    run = read_run(path)
    assert run.header.plan is not None
    return run.header.plan, run.trials


@pytest.mark.parametrize("cut", [0, 1, 7, 20])
def test_a_resumed_sweep_takes_the_trial_that_would_have_come_next(
    tmp_path: Path, whole: Sweep, cut: int
) -> None:
    plan, trials = reread(tmp_path / "cut.dlprof.jsonl", whole.plan, whole.trials[:cut])
    assert plan == whole.plan
    left_s = BUDGET_S - 0.5 - sum(each.wall_s for each in trials)
    step = GridSearch(plan=plan, seed=SEED).propose(trials, remaining_s=left_s)
    assert isinstance(step, Proposal)
    following = whole.trials[cut]
    assert (step.config, step.repetition) == (following.config, following.repetition)
    assert step.trial_s == whole.plan.trial_s


def test_a_sweep_that_ran_out_of_time_goes_on_with_what_it_left_out(tmp_path: Path) -> None:
    slow = Loader(batch_s=1.6)
    short = sweep(slow, 60.0)
    assert short.stop == "budget"
    plan, trials = reread(tmp_path / "short.dlprof.jsonl", short.plan, short.trials)
    missing = set(plan.configs) - {each.config for each in trials}
    assert missing
    history = [*trials]
    while isinstance(step := GridSearch(plan=plan).propose(history), Proposal):
        history.append(trial(step.config, 32 * slow.rate(step.config), repetition=step.repetition))
    assert step == "decided"
    assert missing <= {each.config for each in history}
