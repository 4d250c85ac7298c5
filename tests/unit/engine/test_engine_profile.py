"""What a profile takes of settings that are made for sweeps."""

from __future__ import annotations

from pathlib import Path

from dlprof.engine.profile import DEFAULT_BUDGET_S, for_one
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
