"""Records to JSON values and back, strictly: what is not a record's field or type is refused.

Small and of our own rather than a library's, since ``dlprof recommend`` may not spend its first
moments on importing and compiling models, and since only finite numbers may pass. What a right
type may hold is bounded, too, since a file may come from elsewhere: a recommendation passes names
on into code that people copy; tables of columns are read row by row, so they must be even; and
numbers are such that figures made of a few of them are still finite.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import math
import shlex
import types
import typing
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Literal, TypeVar, cast

from dlprof.records import (
    START_METHODS,
    BatchCosts,
    Calibration,
    Config,
    Constraints,
    CoreSpeeds,
    Estimate,
    Fix,
    Machine,
    PredictedCell,
    Recommendation,
    Target,
    Timeline,
)
from dlprof.records.advice import ToMeasure
from dlprof.records.target import is_call

_Record = TypeVar("_Record")
_Decoder = Callable[[Any], Any]


class MismatchError(ValueError):
    """A JSON value that does not fit its field; the message is one sentence without a dot.

    The fields in ``path`` lead to it, outermost first.
    """

    def __init__(self, fault: str, path: tuple[str, ...] = ()) -> None:
        super().__init__(f"{'.'.join(path)} {fault}".lstrip())
        self.fault = fault
        self.path = path


def to_json(value: Any) -> Any:
    """The value with records as objects and tuples as lists, ready for ``json.dumps``.

    Raises:
        ValueError: For a number that is not finite: JSON has no way to write it.
        TypeError: For a value that is neither a record nor JSON's own.
    """
    if value is None or isinstance(value, str | bool | int):
        return value
    if isinstance(value, float):
        if not math.isfinite(value):
            raise ValueError(f"{value} can't be written as JSON: only finite numbers can")
        return value
    if isinstance(value, Mapping):
        for key in value:
            if not isinstance(key, str):
                raise TypeError(f"{key!r} can't be a key in JSON")
        return {key: to_json(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [to_json(item) for item in value]
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {name: to_json(getattr(value, name)) for name in _field_names(type(value))}
    raise TypeError(f"a {type(value).__name__} can't be written as JSON")


@functools.cache
def _field_names(record_type: type) -> tuple[str, ...]:
    # What ``repr`` leaves out, such as the run of a prediction, is in no document either.
    return tuple(field.name for field in dataclasses.fields(record_type) if field.repr)


def from_json(record_type: type[_Record], data: object) -> _Record:
    """A record from parsed JSON; fields that the record doesn't have are ignored.

    Raises:
        MismatchError: For a missing field, a value of another type, or one out of bounds.
    """
    hint: Any = record_type
    return cast(_Record, _decoder(hint)(data))


@functools.cache
def _decoder(hint: Any) -> _Decoder:
    """The function that reads one type: made once per type, since runs hold thousands of trials."""
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if dataclasses.is_dataclass(hint) and isinstance(hint, type):
        return _record_decoder(hint)
    if origin in (types.UnionType, typing.Union):
        (own,) = (argument for argument in arguments if argument is not types.NoneType)
        decode = _decoder(own)
        return lambda data: None if data is None else decode(data)
    if origin is Literal:
        return _only(str, f"is none of {', '.join(arguments)}", among=arguments)
    if origin is tuple:
        item = _decoder(arguments[0])
        return _only(list, "is not a list", lambda data: tuple(item(each) for each in data))
    if isinstance(origin, type) and issubclass(origin, Mapping):
        value = _decoder(arguments[1])
        return _only(
            dict,
            "is not an object",
            lambda data: {key: value(each) for key, each in data.items()},
        )
    return _PLAIN[hint]


def _record_decoder(record_type: type) -> _Decoder:
    hints = typing.get_type_hints(record_type)
    fields = [
        (field.name, _decoder(hints[field.name])) for field in dataclasses.fields(record_type)
    ]
    required = {
        field.name
        for field in dataclasses.fields(record_type)
        if field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING
    }

    def decode(data: Any) -> Any:
        if not isinstance(data, dict):
            raise MismatchError("is not an object")
        values = {}
        for name, decode_field in fields:
            if name in data:
                try:
                    values[name] = decode_field(data[name])
                except MismatchError as error:
                    raise MismatchError(error.fault, (name, *error.path)) from None
            elif name in required:
                raise MismatchError("is missing", (name,))
        record = record_type(**values)
        if fault := fault_of(record):
            raise MismatchError(fault[1], (fault[0],))
        return record

    return decode


def _decode_float(data: Any) -> float:
    if type(data) is float and _SMALLEST <= data <= _LARGEST:  # as nearly all are
        return data
    if isinstance(data, bool) or not isinstance(data, int | float):
        raise MismatchError("is not a number")
    try:
        value = float(data)
    except OverflowError:
        value = math.inf
    if fault := number_fault(value):
        raise MismatchError(fault)
    return value


def _decode_int(data: Any) -> int:
    # Other programs that rewrite a run file, pandas among them, may write 3 as 3.0.
    if isinstance(data, float) and data.is_integer():
        data = int(data)
    if isinstance(data, bool) or not isinstance(data, int):
        raise MismatchError("is not a whole number")
    if fault := number_fault(data):
        raise MismatchError(fault)
    return data


def _only(
    kind: type, fault: str, read: _Decoder | None = None, among: Sequence[Any] = ()
) -> _Decoder:
    def decode(data: Any) -> Any:
        if not isinstance(data, kind) or (among and data not in among):
            raise MismatchError(fault)
        return data if read is None else read(data)

    return decode


def _decode_any(data: Any, depth: int = 0) -> Any:
    """What may be anything that JSON has, its numbers within bounds all the same."""
    if depth > 100:  # which whoever walks it takes without running out of stack
        raise MismatchError("is nested too deeply")
    if isinstance(data, int | float) and (fault := number_fault(data)):
        raise MismatchError(fault)
    for item in data.values() if isinstance(data, dict) else data if isinstance(data, list) else ():
        _decode_any(item, depth + 1)
    return data


_PLAIN: Mapping[Any, _Decoder] = {
    float: _decode_float,
    int: _decode_int,
    bool: _only(bool, "is neither true nor false"),
    str: _only(str, "is not a text"),
    Any: _decode_any,
}


_CHOICES: Mapping[str, tuple[str, ...]] = {
    "start_method": START_METHODS,
    "sharing_strategy": ("file_descriptor", "file_system"),
}
_LEAST = {"num_workers": 0, "prefetch_factor": 1, "batch_size": 1, "worker_threads": 1}
_POSITIVE: Mapping[type, Sequence[str]] = {
    Machine: ("usable_cores",),
    Constraints: ("ranks", "nodes"),
    CoreSpeeds: ("low", "median", "high"),
    PredictedCell: ("samples_per_s",),
    Calibration: ("samples_per_batch",),
}


def fault_of(record: Any) -> tuple[str, str] | None:
    """The field of a record that is out of bounds, and the end of a sentence about it."""
    for name in _POSITIVE.get(type(record), ()):
        figure = getattr(record, name)
        value = figure.value if isinstance(figure, Estimate) else figure
        if value is not None and value <= 0:
            return name, "is not above 0"
    find = _FINDERS.get(type(record))
    return None if find is None else find(record)


def _figure_below_0(costs: Calibration) -> tuple[str, str] | None:
    """Figures that no batch has."""
    for field in dataclasses.fields(costs):
        if any(number < 0 for number in _numbers(to_json(getattr(costs, field.name)))):
            return field.name, "has a figure below 0"
    return None


def _numbers(value: Any) -> Iterator[float]:
    if isinstance(value, int | float):
        yield value
    several = value.values() if isinstance(value, dict) else value
    for each in several if isinstance(value, dict | list) else ():
        yield from _numbers(each)


# The largest is far above every figure and interval's end, and its fourth power is finite; what
# lies nearer to 0 than the smallest, and is not 0, was not measured.
_SMALLEST, _LARGEST = 1e-60, 1e60


def number_fault(number: float) -> str | None:
    """The end of a sentence about a number, whole or not, that no record may hold."""
    if isinstance(number, int):
        # No count of bytes or of nanoseconds comes near the largest, which fits a float.
        return None if abs(number) <= 1 << 64 else "is too large"
    if not math.isfinite(number):
        return "is not a finite number"
    if number == 0 or _SMALLEST <= abs(number) <= _LARGEST:
        return None
    return "is too large" if abs(number) > 1 else "is too close to 0"


def _faulty_setting(record: Config) -> tuple[str, str] | None:
    most = 2**31 - 1
    for name, least in _LEAST.items():
        number = getattr(record, name)
        if number is not None and not least <= number <= most:
            return name, f"is not from {least} to {most}"
    for name, choices in _CHOICES.items():
        if getattr(record, name) not in {None, *choices}:
            return name, f"is none of {', '.join(choices)}"
    return None


def _faulty_code(record: Fix | Recommendation) -> tuple[str, str] | None:
    """What is pasted as settings and is none; arguments that aren't known are a later version's.

    What else a fix has to paste (``code``) is to be read before, as its explanation is.
    """
    if isinstance(record, Fix) and record.call and not is_call(record.call):
        return "call", "is no call"
    kwargs, names = record.dataloader_kwargs, {"multiprocessing_context": "start_method"}
    if not all(name.isidentifier() for name in kwargs):
        return "dataloader_kwargs", "has a key that is no argument"
    try:
        from_json(Config, {names.get(name, name): value for name, value in kwargs.items()})
    except MismatchError as error:
        return ".".join(("dataloader_kwargs", *error.path)), error.fault
    return None


def _faulty_command(record: ToMeasure) -> tuple[str, str] | None:
    """By what is pasted a shell is to run dlprof, and nothing else."""
    words: list[str] = []
    with contextlib.suppress(ValueError):  # quotes that don't end
        words = shlex.split(record.command)
    alone = words[:1] == ["dlprof"] and shlex.join(words) == record.command
    return None if alone else ("command", "is no command of dlprof")


def _uneven_column(table: BatchCosts | Timeline) -> tuple[str, str] | None:
    """A column that is neither empty nor as long as the longest."""
    columns = {
        field.name: len(column)
        for field in dataclasses.fields(table)
        if isinstance(column := getattr(table, field.name), tuple)
    }
    longest = max(columns.values())
    for name, length in columns.items():
        if length not in {0, longest}:
            return name, f"has {length} entries where others have {longest}"
    return None


_FINDERS: Mapping[type, Callable[[Any], tuple[str, str] | None]] = {
    **dict.fromkeys((BatchCosts, Timeline), _uneven_column),
    Config: _faulty_setting,
    **dict.fromkeys((Fix, Recommendation), _faulty_code),
    Calibration: _figure_below_0,
    # Its batch size may be any: loaders that aren't torch's have 0, or all that there is.
    Target: lambda target: _faulty_setting(Config(sharing_strategy=target.sharing_strategy)),
    ToMeasure: _faulty_command,
}
