"""What a profile takes of settings that are made for sweeps."""

from __future__ import annotations

from pathlib import Path

import pytest

from dlprof.engine.deadline import Deadline
from dlprof.engine.profile import DEFAULT_BUDGET_S, for_one, refuse_spent
from dlprof.errors import UsageError
from dlprof.records import Config, TrialCost
from dlprof.settings import SweepSettings, resolve_settings


def resolved(flags: dict[str, str], environ: dict[str, str]) -> SweepSettings:
    return for_one(
        *resolve_settings(flags, environ=environ, config_file=None, cwd=Path("/nowhere"))
    )


def test_several_values_of_a_variable_are_a_sweeps_and_of_a_flag_are_not() -> None:
    several = {"DLPROF_NUM_WORKERS": "0,2", "DLPROF_PREFETCH_FACTOR": "4"}
    found = resolved({}, several)
    assert found.num_workers is None
    assert found.prefetch_factor == (4,)
    assert resolved({"num_workers": "0,2"}, {}).num_workers == (0, 2)


def test_the_budget_is_a_profiles_own_unless_a_flag_names_one() -> None:
    assert resolved({}, {"DLPROF_BUDGET": "5m"}).budget_s == DEFAULT_BUDGET_S
    assert resolved({"budget": "45s"}, {}).budget_s == 45.0


def test_a_budget_that_building_the_target_used_up_is_refused_with_one_that_holds() -> None:
    settings, cost = resolved({"budget": "10s"}, {}), TrialCost(overhead_s=0.4)

    def refuse(spent_s: float) -> None:
        deadline = Deadline(budget_s=10.0, began_s=0.0, clock=lambda: spent_s)
        refuse_spent(settings, Config(), cost, deadline)

    with pytest.raises(UsageError) as told:
        refuse(12.0)
    assert "starting, building and probing the target took 12 s" in str(told.value)
    assert told.value.hint == "Give a budget of 20 s or more."
    refuse(8.8)
    with pytest.raises(UsageError, match="can't hold a single trial"):
        refuse(9.8)  # half a second is left, and the first trial takes 1.4
