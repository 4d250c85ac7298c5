from __future__ import annotations

import dataclasses
from typing import Any

import pytest
from builders import config, machine, target
from hypothesis import given
from hypothesis import strategies as st

from dlprof.advise.thresholds import MOST_WORKERS
from dlprof.errors import UsageError
from dlprof.records import EPOCH_SIGN, LeftOut, Machine, Target
from dlprof.search.space import Space, auto_workers, build_cells, build_space
from dlprof.settings import SweepSettings


def space(
    *,
    on: Machine | None = None,
    of: Target | None = None,
    has_accelerator: bool = False,
    **settings: Any,
) -> Space:
    return build_space(
        SweepSettings(**settings),
        of or target(),
        on or machine(),
        has_accelerator=has_accelerator,
    )


def workers(found: Space) -> list[int]:
    return sorted({each.num_workers for each in found.configs})


def reason(found: Space, setting: str) -> LeftOut:
    return next(each for each in found.left_out if setting in each.setting)


@pytest.mark.parametrize(
    ("cores", "expected"),
    [
        (1, (0, 1, 2, 4, 8)),
        (2, (0, 1, 2, 3, 4, 8)),
        (1.5, (0, 1, 2, 3, 6, 8)),
        (0.25, (0, 1, 2, 8)),
        (8, (0, 1, 2, 4, 8, 12, 16, 32)),
        (16, (0, 1, 2, 4, 8, 16, 24, 32, 64)),
        (96, (0, 1, 2, 4, 8, 16, 32, 48, 64, 96, 144, 192)),
    ],
)
def test_auto_workers(cores: float, expected: tuple[int, ...]) -> None:
    assert auto_workers(cores) == expected


def test_of_ranks_that_load_at_once_each_is_tried_with_workers_for_its_share_of_cores() -> None:
    found = space(on=machine(64), launch_ranks=(1, 8))
    assert tuple(workers(found)) == auto_workers(8)
    assert tuple(workers(space(on=machine(64), ranks=8))) == auto_workers(64)  # one alone


def test_auto_space_has_the_reference_and_no_pin_arm_without_an_accelerator() -> None:
    found = space()
    assert found.configs[0] == config(0)
    assert not any(each.pin_memory for each in found.configs)
    assert "no accelerator" in reason(found, "pin_memory=True").reason
    assert len(found.configs) == 1 + 7 * 2 * 2


def test_auto_space_pins_with_an_accelerator() -> None:
    found = space(has_accelerator=True)
    assert {each.pin_memory for each in found.configs} == {False, True}
    assert config(0, pin_memory=True) in found.configs
    assert not found.left_out


def test_workers_outlive_epochs_that_change_the_dataset_only_where_that_is_named() -> None:
    note = f"Mixed has set_epoch: {EPOCH_SIGN} what that changes."
    changing = dataclasses.replace(target(), notes=("Another.", note))
    found = space(of=changing)
    assert not any(each.persistent_workers for each in found.configs)
    assert "as Mixed has set_epoch" in reason(found, "persistent_workers=True").reason
    cells = build_cells(
        SweepSettings(), changing, machine(), has_accelerator=False, most_workers=MOST_WORKERS
    )
    assert not any(each.persistent_workers for each in cells)
    named = space(of=changing, persistent_workers=(False, True))
    assert {each.persistent_workers for each in named.configs} == {False, True}
    chosen = config(2, persistent_workers=True)
    own = space(of=dataclasses.replace(changing, own_config=chosen))
    assert chosen in own.configs


def test_pinning_asked_for_without_an_accelerator_is_explained() -> None:
    found = space(pin_memory=(True,), num_workers=(0, 2))
    assert not any(each.pin_memory for each in found.configs)
    assert reason(found, "pin_memory=True").setting == "pin_memory=True"


def test_no_pinning_asked_for_needs_no_explanation() -> None:
    assert not space(pin_memory=(False,)).left_out


def test_explicit_workers_are_taken_as_they_are() -> None:
    found = space(num_workers=(4, 2), prefetch_factor=(3,), persistent_workers=(False,))
    assert found.configs == (config(2, 3), config(4, 3))


def test_equal_configurations_are_merged_and_the_user_informed() -> None:
    found = space(num_workers=(0, 2), prefetch_factor=(2, 4), persistent_workers=(True,))
    assert found.configs == (
        config(0),
        config(2, 2, persistent_workers=True),
        config(2, 4, persistent_workers=True),
    )
    left = reason(found, "num_workers=0 with")
    assert left.setting == "num_workers=0 with prefetch_factor, persistent_workers=True"


def test_max_workers_caps_the_range_and_is_tried_itself() -> None:
    found = space(max_workers=6)
    assert workers(found) == [0, 1, 2, 4, 6]
    left = reason(found, "num_workers=8, 12, 16, 32")
    assert left.reason == "max_workers is 6"


def test_of_a_few_shards_all_workers_get_as_many() -> None:
    """Of 10, some of 8 workers have two, as each of 5 has: an epoch lasts as long."""
    stream = target(kind="iterable", length=None, batches_per_epoch=None, shards=10)
    tried = workers(space(of=stream, max_workers=10))
    assert tried == [0, 1, 2, 4, 5, 10]
    settings = SweepSettings(max_workers=10)
    cells = build_cells(settings, stream, machine(), has_accelerator=False, most_workers=64)
    assert {each.num_workers for each in cells} == {0, 1, 2, 3, 4, 5, 10}
    assert workers(space(of=stream, num_workers=(0, 8))) == [0, 8]
    kept = dataclasses.replace(stream, own_config=config(7))
    assert workers(space(of=kept, max_workers=10)) == [0, 1, 2, 4, 5, 7, 10]
    assert 8 in workers(space(of=stream, launch_ranks=(2,), max_workers=10))


@pytest.mark.parametrize(
    ("shards", "own", "named", "limit", "most"),
    [
        (3, None, None, None, 3),
        (3, None, None, 2, 2),
        (3, 4, None, None, 4),  # as it is now is measured
        (3, None, (8,), None, 8),
        (None, None, None, None, 32),
    ],
)
def test_no_more_workers_are_tried_than_there_are_shards(
    shards: int | None,
    own: int | None,
    named: tuple[int, ...] | None,
    limit: int | None,
    most: int,
) -> None:
    has = None if own is None else config(own)
    stream = target(
        kind="iterable", length=None, batches_per_epoch=None, own_config=has, shards=shards
    )
    assert max(workers(space(of=stream, num_workers=named, max_workers=limit))) == most


def test_that_shards_allow_no_more_workers_is_said() -> None:
    stream = target(kind="iterable", length=None, batches_per_epoch=None, shards=3)
    left = reason(space(of=stream), "num_workers=4, 8, 12, 16, 32")
    assert left.reason == "more workers than the dataset's 3 shards get no data"
    assert "torch pins memory" in reason(space(of=stream), "pin_memory").reason


def test_few_batches_cap_the_automatic_range_only() -> None:
    short = target(length=96, batches_per_epoch=3)
    assert workers(space(of=short)) == [0, 1, 2]
    assert "3 batches" in reason(space(of=short), "num_workers=4, 8").reason
    assert workers(space(of=short, num_workers=(0, 8))) == [0, 8]
    own = target(length=96, batches_per_epoch=3, own_config=config(4))  # every gain is over that
    assert workers(space(of=own)) == [0, 1, 2, 4]


def test_batches_are_counted_at_the_batch_size_that_is_swept() -> None:
    found = space(of=target(length=64, batches_per_epoch=2, batch_size=32), batch_size=(8, 64))
    assert {c.num_workers for c in found.configs if c.batch_size == 8} == {0, 1, 2, 4, 8}
    assert {c.num_workers for c in found.configs if c.batch_size == 64} == {0, 1}
    left = reason(found, "num_workers=2, 4, 8 with batch_size=64")
    assert left.reason.startswith("an epoch has 1 batch, ")


def test_queues_that_hold_more_than_an_epoch_are_not_tried_unasked() -> None:
    short, own = target(length=320, batches_per_epoch=10), config(8, 4)

    def depths(found: Space) -> dict[int, set[int | None]]:
        return {n: {c.prefetch_factor for c in found.configs if c.num_workers == n} for n in (4, 8)}

    found = space(of=short)
    assert depths(found) == {4: {2, 4}, 8: {2}}  # two for each of four are only 8 of 10
    left = reason(found, "num_workers=8 with prefetch_factor=4")
    assert left.reason == "an epoch has 10 batches, which prefetch_factor=2 asks for at once"
    cells = build_cells(
        SweepSettings(), short, machine(), has_accelerator=False, most_workers=MOST_WORKERS
    )
    assert {(c.num_workers, c.prefetch_factor) for c in cells if c.num_workers in (2, 5)} == {
        *((2, depth) for depth in (2, 4, 8)),
        (5, 2),
    }
    assert depths(space(of=short, prefetch_factor=(2, 4)))[8] == {2, 4}  # what is named is tried
    assert own in space(of=target(length=320, batches_per_epoch=10, own_config=own)).configs
    fixed = target(
        length=320, batches_per_epoch=10, own_config=own, fixed={"prefetch_factor": "it is so"}
    )
    assert depths(space(of=fixed)) == {4: {4}, 8: {4}}
    sharded = target(length=320, batches_per_epoch=10, kind="iterable")
    assert depths(space(of=sharded))[8] == {2, 4}  # a worker may have most of the batches


def test_the_batch_size_is_named_where_the_depth_is_too_much_for_one_of_them() -> None:
    found = space(of=target(length=640, batches_per_epoch=20), batch_size=(32, 64))
    left = reason(found, "num_workers=8 with prefetch_factor=4 and batch_size=64")
    assert left.reason.startswith("an epoch has 10 batches, ")


def test_what_does_not_fit_the_machine_is_no_matter_of_the_space() -> None:
    """It is skipped with its sum instead: see ``test_engine_preflight``."""
    small = machine(memory_available_bytes=1 << 20, shm_available_bytes=1 << 20)
    assert space(on=small, of=target(batch_bytes=1 << 20)) == space()


OWN = config(6, 3, persistent_workers=True)


def test_the_target_s_present_settings_are_among_them() -> None:
    plain, found = space(), space(of=target(own_config=OWN))
    assert set(found.configs) == {*plain.configs, OWN}
    assert found.left_out == plain.left_out


def test_present_settings_are_among_them_whatever_else_is_named() -> None:
    found = space(of=target(own_config=OWN), prefetch_factor=(2,), persistent_workers=(False,))
    assert OWN in found.configs


@pytest.mark.parametrize("named", [{"num_workers": (0, 2)}, {"batch_size": (16, 32)}])
def test_a_range_that_the_user_named_is_all_that_is_measured(named: dict[str, Any]) -> None:
    assert OWN not in space(of=target(own_config=OWN), **named).configs


def test_present_settings_are_measured_as_they_act_here() -> None:
    own = config(6, 3, pin_memory=True, start_method="fork")
    without, device = target(own_config=own), space(of=target(own_config=own), has_accelerator=True)
    assert config(6, 3) in space(of=without).configs
    assert config(6, 3, pin_memory=True) in device.configs
    assert config(6, 3) not in device.configs
    assert own not in device.configs


def test_where_start_methods_are_compared_the_target_s_own_is_named() -> None:
    """Else the one that it has would be measured twice, and shown as a change."""
    own = target(own_config=config(6, 3, start_method="spawn"))
    found = space(of=own, start_method=("fork", "spawn"))
    assert own.own_config in found.configs
    assert {each.start_method for each in found.configs if each.num_workers} == {"fork", "spawn"}
    assert {each.start_method for each in space(of=own).configs} == {None}


def test_present_settings_beyond_a_limit_are_left_out_with_the_reason() -> None:
    found = space(of=target(own_config=OWN), max_workers=4)
    assert OWN not in found.configs
    assert reason(found, "num_workers=6").reason == "max_workers is 4"


def test_the_order_of_batches_stays_the_target_s_own() -> None:
    loose = target(own_config=config(4, in_order=False))
    found = space(of=loose)
    assert {each.in_order for each in found.configs if each.num_workers} == {False}
    assert config(0) in found.configs
    named = space(of=loose, in_order=(True,))
    assert {each.in_order for each in named.configs} == {True, False}, "the present ones stay"
    assert [each for each in named.configs if not each.in_order] == [config(4, in_order=False)]
    assert {each.in_order for each in space(of=target()).configs} == {True}


def test_an_empty_space_is_one_sentence_with_the_reasons() -> None:
    with pytest.raises(UsageError, match="No configuration is left to measure") as caught:
        space(max_workers=4, num_workers=(8,))
    assert "max_workers is 4" in caught.value.message
    assert caught.value.hint


def test_too_many_combinations_are_refused_before_they_are_built() -> None:
    with pytest.raises(UsageError, match="2,000,000 combinations"):
        space(num_workers=tuple(range(1000)), prefetch_factor=tuple(range(1, 1001)))


@given(
    cores=st.floats(0.1, 300),
    most=st.none() | st.integers(0, 400),
    batches=st.none() | st.integers(1, 500),
    has_accelerator=st.booleans(),
)
def test_every_space_is_canonical_distinct_ordered_and_has_the_reference(
    cores: float, most: int | None, batches: int | None, *, has_accelerator: bool
) -> None:
    found = space(
        on=machine(cores),
        of=target(batches_per_epoch=batches),
        max_workers=most,
        has_accelerator=has_accelerator,
    )
    assert config(0) in found.configs
    assert len(set(found.configs)) == len(found.configs)
    assert list(found.configs) == sorted(found.configs, key=lambda each: each.cost_key)
    assert all(each == each.canonical() for each in found.configs)
    if most is not None:
        assert max(workers(found)) <= most


FIXED = {
    "prefetch_factor": "make() takes no prefetch_factor",
    "in_order": "make() takes no in_order",
}


def test_what_the_target_does_not_take_is_not_tried() -> None:
    found = space(of=target(fixed=FIXED))
    assert {each.prefetch_factor for each in found.configs} == {None, 2}
    assert {each.persistent_workers for each in found.configs} == {False, True}
    assert reason(found, "prefetch_factor").reason == "make() takes no prefetch_factor"
    assert not any("in_order" in each.setting for each in found.left_out)  # nobody would vary it


def test_what_the_target_does_not_take_is_as_it_is_there() -> None:
    own = config(4, 6, in_order=False)
    found = space(of=target(fixed=FIXED, own_config=own))
    assert {(c.prefetch_factor, c.in_order) for c in found.configs if c.num_workers} == {(6, False)}
    assert own in found.configs


def test_values_that_the_target_cannot_have_are_refused_where_they_are_named() -> None:
    with pytest.raises(UsageError, match="prefetch_factor=4, 8 can't be measured: make"):
        space(of=target(fixed=FIXED), prefetch_factor=(4, 8))
    found = space(of=target(fixed=FIXED), prefetch_factor=(2, 4), num_workers=(1,))
    assert {each.prefetch_factor for each in found.configs} == {2}
    assert reason(found, "prefetch_factor").reason == "make() takes no prefetch_factor"


def test_a_target_that_is_taken_as_it_is_has_one_configuration() -> None:
    own = config(4, 6, start_method="spawn")
    fixed = dict.fromkeys(type(own).__dataclass_fields__, "it can't be built again")
    found = space(of=target(fixed=fixed, own_config=own))
    assert found.configs == (config(4, 6),)
    assert [each.reason for each in found.left_out].count("it can't be built again") == 1
    with pytest.raises(UsageError, match="num_workers=0, 2 can't be measured"):
        space(of=target(fixed=fixed, own_config=own), num_workers=(0, 2))


@pytest.mark.parametrize("fixed", [{}, FIXED])
def test_only_what_can_be_set_is_predicted(fixed: dict[str, str]) -> None:
    cells = build_cells(
        SweepSettings(),
        target(fixed=fixed),
        machine(),
        has_accelerator=False,
        most_workers=MOST_WORKERS,
    )
    depths = {each.prefetch_factor for each in cells if each.num_workers}
    assert depths == ({2} if fixed else {2, 4, 8})


def test_workers_that_keep_samples_outlive_epochs_unless_named() -> None:
    keeping = dataclasses.replace(target(), first_sample_s=0.01, kept_sample_s=1e-5)
    found = space(of=keeping)
    assert {each.persistent_workers for each in found.configs if each.num_workers} == {True}
    assert "lose the samples" in reason(found, "persistent_workers=False").reason
    named = space(of=keeping, persistent_workers=(False,))
    assert not any(each.persistent_workers for each in named.configs)
    note = f"Mixed has set_epoch: {EPOCH_SIGN} what that changes."
    both = space(of=dataclasses.replace(keeping, notes=(note,)))
    assert not any(each.persistent_workers for each in both.configs)
