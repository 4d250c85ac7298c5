"""One configuration out of what the options name and what the target is set to."""

from __future__ import annotations

import dataclasses

import pytest

from dlprof.errors import UsageError
from dlprof.records import Config, Target
from dlprof.search.space import single_config
from dlprof.settings import SweepSettings

BARE = Target(spec="data.py:make", kind="map", dataset="data.Numbers")
OWN = dataclasses.replace(
    BARE,
    own_config=Config(
        num_workers=4, prefetch_factor=3, pin_memory=True, in_order=False, start_method="spawn"
    ),
)


def test_a_bare_dataset_is_explained_at_pytorchs_defaults() -> None:
    assert single_config(SweepSettings(), BARE, has_accelerator=True) == Config()


def test_a_loader_is_explained_as_it_is_set() -> None:
    found = single_config(SweepSettings(), OWN, has_accelerator=False)
    assert found == Config(num_workers=4, prefetch_factor=3, in_order=False)
    assert single_config(SweepSettings(), OWN, has_accelerator=True).pin_memory


def test_options_change_single_settings() -> None:
    asked = SweepSettings(num_workers=(2,), sharing_strategy=("file_system",))
    found = single_config(asked, OWN, has_accelerator=False)
    assert (found.num_workers, found.prefetch_factor) == (2, 3)
    assert found.sharing_strategy == "file_system"


def test_without_workers_what_belongs_to_them_goes() -> None:
    asked = SweepSettings(num_workers=(0,))
    assert single_config(asked, OWN, has_accelerator=False) == Config()


def test_several_values_are_refused() -> None:
    with pytest.raises(UsageError, match="--num-workers has 2 values"):
        single_config(SweepSettings(num_workers=(0, 2)), BARE, has_accelerator=False)


def test_what_the_target_does_not_take_is_refused() -> None:
    fixed = dataclasses.replace(OWN, fixed={"prefetch_factor": "make() takes no prefetch_factor"})
    found = single_config(SweepSettings(num_workers=(2,)), fixed, has_accelerator=False)
    assert (found.num_workers, found.prefetch_factor) == (2, 3)
    asked = SweepSettings(prefetch_factor=(4,))
    with pytest.raises(UsageError, match="prefetch_factor=4 can't be measured: make"):
        single_config(asked, fixed, has_accelerator=False)
