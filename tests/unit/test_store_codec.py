"""Records to JSON and back: everything that is right comes back, nothing else passes."""

from __future__ import annotations

import dataclasses
import sys
import types
import typing
from collections.abc import Mapping
from typing import Any, Literal

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from sample_run import (
    HEADER,
    JSON_VALUES,
    PLAIN,
    TRIALS,
)

from dlprof import store as run_format
from dlprof.records import (
    Calibration,
    Config,
    Constraints,
    CoreSpeeds,
    Fix,
    Machine,
    Recommendation,
    RunEnd,
    RunHeader,
    Target,
    Trial,
)
from dlprof.records.advice import ToMeasure
from dlprof.records.codec import MismatchError, from_json, to_json


def test_json_has_the_contracts_shape() -> None:
    trial = to_json(TRIALS[0])
    assert trial["samples_per_s"] == {"value": 310.5, "low": 301.0, "high": 320.0}
    assert trial["config"]["num_workers"] == 0
    assert trial["warnings"] == []
    assert trial["unavailable"] == {"wait_fraction": "no step was stated"}


@pytest.mark.parametrize("value", [object(), {1: 2}, {1, 2}, Trial])
def test_a_value_that_json_does_not_know_is_refused(value: object) -> None:
    with pytest.raises(TypeError):
        to_json(value)


def test_only_records_of_a_run_are_encoded() -> None:
    with pytest.raises(TypeError, match="no record of a run file"):
        run_format.encode_line(PLAIN)


COUNTS = st.none() | st.integers(1, 2**31 - 1)
CONFIGS = st.builds(
    Config,
    num_workers=st.integers(0, 2**31 - 1),
    prefetch_factor=COUNTS,
    pin_memory=st.booleans(),
    persistent_workers=st.booleans(),
    batch_size=COUNTS,
    in_order=st.booleans(),
    start_method=st.sampled_from([None, "fork", "spawn", "forkserver"]),
    sharing_strategy=st.sampled_from([None, "file_descriptor", "file_system"]),
    worker_threads=COUNTS,
)
PLAIN_STRATEGIES: Mapping[Any, st.SearchStrategy[Any]] = {
    int: st.integers(-(2**64), 2**64),
    float: st.just(0.0) | st.floats(1e-60, 1e60) | st.floats(-1e60, -1e-60),
    bool: st.booleans(),
    str: st.text(max_size=5),
    Any: JSON_VALUES,
    Config: CONFIGS,
}
ARGUMENTS = CONFIGS.map(Config.dataloader_kwargs)
WITHIN_BOUNDS: Mapping[Any, Mapping[str, st.SearchStrategy[Any]]] = {
    Machine: {"usable_cores": st.floats(1e-60, 1e60)},
    Constraints: dict.fromkeys(("ranks", "nodes"), st.integers(1, 2**64)),
    CoreSpeeds: dict.fromkeys(("low", "median", "high"), st.floats(1e-60, 1e60)),
    Target: {"sharing_strategy": st.sampled_from([None, "file_descriptor", "file_system"])},
    Fix: {"dataloader_kwargs": ARGUMENTS, "call": st.sampled_from(["", "Loader(..., workers=2)"])},
    Recommendation: {"dataloader_kwargs": ARGUMENTS},
    ToMeasure: {"command": st.just("dlprof machine")},
}


def strategy(hint: Any) -> st.SearchStrategy[Any]:
    """Any value of a record's type."""
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if hint in PLAIN_STRATEGIES:
        return PLAIN_STRATEGIES[hint]
    if dataclasses.is_dataclass(hint):
        hints = typing.get_type_hints(hint)
        fields = {field.name: strategy(hints[field.name]) for field in dataclasses.fields(hint)}
        fields |= WITHIN_BOUNDS.get(hint, {})
        make: Any = hint
        return st.builds(make, **fields)
    if origin in (types.UnionType, typing.Union):  # the latter of None and a Literal
        return st.none() | strategy(arguments[0])
    if origin is Literal:
        return st.sampled_from(arguments)
    if origin is tuple:
        return st.lists(strategy(arguments[0]), max_size=2).map(tuple)
    return st.dictionaries(st.text(max_size=5), strategy(arguments[1]), max_size=2)


@given(strategy(RunHeader) | strategy(Trial) | strategy(Recommendation) | strategy(RunEnd))
@settings(
    max_examples=100,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)
def test_every_record_comes_back(record: RunHeader | Trial | Recommendation | RunEnd) -> None:
    data = run_format.decode_line(run_format.encode_line(record))
    back: object = from_json(type(record), data)
    assert back == record


def test_missing_fields_take_their_default() -> None:
    assert from_json(Config, {"num_workers": 2}) == Config(num_workers=2)


@pytest.mark.parametrize(
    ("data", "fault"),
    [
        ([], "is not an object"),
        ({"num_workers": "2"}, "num_workers is not a whole number"),
        ({"num_workers": 2.5}, "num_workers is not a whole number"),
        ({"num_workers": True}, "num_workers is not a whole number"),
        ({"num_workers": None}, "num_workers is not a whole number"),
        ({"pin_memory": 1}, "pin_memory is neither true nor false"),
        ({"start_method": 1}, "start_method is not a text"),
    ],
)
def test_a_value_of_another_type_is_refused(data: object, fault: str) -> None:
    with pytest.raises(MismatchError, match=f"^{fault}$"):
        from_json(Config, data)


@pytest.mark.parametrize(
    ("change", "fault"),
    [
        ({"samples_per_s": {"value": "x"}}, "samples_per_s.value is not a number"),
        ({"samples_per_s": {"value": 10**400}}, "samples_per_s.value is not a finite number"),
        ({"samples_per_s": {"value": 1e308}}, "samples_per_s.value is too large"),
        ({"samples_per_s": {"value": 5e-324}}, "samples_per_s.value is too close to 0"),
        ({"batch_bytes": 1e308}, "batch_bytes is too large"),
        ({"repetition": 10**400}, "repetition is too large"),
        ({"repetition": 1e308}, "repetition is too large"),
        ({"usage": {"own_cpu_cores": 1e308}}, "usage.own_cpu_cores is too large"),
        ({"samples_per_s": {}}, "samples_per_s.value is missing"),
        ({"outcome": "won"}, "outcome is none of completed, crashed"),
        ({"outcome": ["completed"]}, "outcome is none of completed, crashed"),
        ({"warnings": "x"}, "warnings is not a list"),
        ({"unavailable": []}, "unavailable is not an object"),
        ({"usage": {"gpu": [{"index": 0}]}}, "usage.gpu.name is missing"),
    ],
)
def test_a_fault_is_named_with_the_way_to_it(change: Mapping[str, object], fault: str) -> None:
    with pytest.raises(MismatchError) as caught:
        from_json(Trial, to_json(TRIALS[0]) | change)
    assert str(caught.value).startswith(fault)


def test_whole_numbers_that_others_wrote_as_floats_are_read() -> None:
    config = from_json(Config, {"num_workers": 2.0})
    assert config.num_workers == 2
    assert isinstance(config.num_workers, int)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"num_workers": -1}, "num_workers is not from 0 to 2147483647"),
        ({"prefetch_factor": 0}, "prefetch_factor is not from 1 to 2147483647"),
        ({"batch_size": 2**40}, "batch_size is not from 1 to 2147483647"),
        ({"start_method": "[red]"}, "start_method is none of fork, spawn, forkserver"),
        ({"sharing_strategy": ""}, "sharing_strategy is none of file_descriptor, file_system"),
    ],
)
def test_a_configuration_that_no_loader_takes_is_refused(
    changes: dict[str, object], message: str
) -> None:
    with pytest.raises(MismatchError, match=message.replace(".", r"\.")):
        from_json(Config, {"num_workers": 2, "prefetch_factor": 2, **changes})


@pytest.mark.parametrize("cores", [0, -1.0, 1e-300])
def test_a_machine_without_cores_is_refused(cores: float) -> None:
    machine = to_json(HEADER.machine) | {"usable_cores": cores}
    with pytest.raises(MismatchError, match="usable_cores is"):
        from_json(Machine, machine)


def test_a_core_has_a_speed() -> None:
    machine = {**to_json(HEADER.machine), "core_speed": None}
    assert from_json(Machine, machine).core_speed is None
    machine["core_speed"] = {"median": 2.0, "low": 0.0, "high": 3.0, "unit": "steps/s"}
    with pytest.raises(MismatchError, match=r"core_speed\.low is not above 0"):
        from_json(Machine, machine)


@pytest.mark.parametrize(
    ("data", "fault"),
    [
        ({"samples_per_batch": 0.0}, "samples_per_batch is not above 0"),
        ({"helper_cpu_s": -1e-3}, "helper_cpu_s has a figure below 0"),
        ({"in_workers": {"cpu_s": [1.0, -1.0]}}, "in_workers has a figure below 0"),
        ({"startup_s": {"fork": [0.1, -0.1]}}, "startup_s has a figure below 0"),
    ],
)
def test_costs_that_no_batch_has_are_refused(data: object, fault: str) -> None:
    with pytest.raises(MismatchError, match=f"^{fault}$"):
        from_json(Calibration, data)


def test_limits_for_no_rank_at_all_are_refused() -> None:
    with pytest.raises(MismatchError, match="ranks is not above 0"):
        from_json(Constraints, {"ranks": 0})


@pytest.mark.parametrize("step", [1e308, 10**400, [{"deep": -1e308}]])
def test_numbers_without_a_record_are_held_to_the_same_bounds(step: object) -> None:
    with pytest.raises(MismatchError, match="settings is too large"):
        from_json(RunHeader, to_json(HEADER) | {"settings": {"step_s": step}})


@pytest.mark.parametrize("size", [0, sys.maxsize])
def test_a_loader_may_have_any_batch_size_of_its_own(size: int) -> None:
    """Those of other packages have 0, and of ``sys.maxsize`` torch makes one batch of all."""
    header = to_json(HEADER)
    header["target"]["batch_size"] = size
    assert from_json(RunHeader, header).target.batch_size == size


def test_what_no_program_writes_so_deep_is_refused() -> None:
    deep: object = 1
    for _ in range(200):
        deep = [deep]
    with pytest.raises(MismatchError, match="settings is nested too deeply"):
        from_json(RunHeader, to_json(HEADER) | {"settings": {"step_s": deep}})


@pytest.mark.parametrize(
    ("change", "fault"),
    [
        ({"call": "os.system('rm x')"}, "call is no call"),
        ({"call": "f()\nimport os"}, "call is no call"),
        ({"dataloader_kwargs": {"a=1)\nf(": 1}}, "dataloader_kwargs has a key that is no argument"),
        ({"dataloader_kwargs": {"num_workers": "4"}}, "dataloader_kwargs.num_workers is not a"),
        (
            {"dataloader_kwargs": {"multiprocessing_context": "x"}},
            "dataloader_kwargs.start_method is none of fork",
        ),
    ],
)
def test_a_fix_that_is_pasted_sets_arguments_and_does_nothing_else(
    change: Mapping[str, object], fault: str
) -> None:
    with pytest.raises(MismatchError) as caught:
        from_json(Fix, {"text": "Set it.", **change})
    assert str(caught.value).startswith(fault)


def test_a_fix_of_a_later_version_may_set_more() -> None:
    made = from_json(Fix, {"text": "Set it.", "dataloader_kwargs": {"fetchers": 4}})
    assert made.dataloader_kwargs == {"fetchers": 4}
    call = "DataLoader(dataset, ..., multiprocessing_context='fork', num_workers=2)"
    assert from_json(Fix, {"text": "Set it.", "call": call}).call == call


@pytest.mark.parametrize(
    "command",
    ["curl x.org | sh", "dlprof sweep images; curl x", "dlprof machine $(x)", "dlprof 'a", ""],
)
def test_a_command_to_paste_is_one_of_dlprof_alone(command: str) -> None:
    with pytest.raises(MismatchError, match="command is no command of dlprof"):
        from_json(ToMeasure, {"what": "how fast it is", "command": command})
