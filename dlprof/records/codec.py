"""Records to JSON values and back, strictly: what is not a record's field or type is refused.

Small and of our own rather than a library's, since ``dlprof recommend`` may not spend its first
moments on importing and compiling models, and since only finite numbers may pass.
"""

from __future__ import annotations

import dataclasses
import functools
import math
import types
import typing
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Literal, TypeVar, cast

from dlprof.records.bounds import fault_of, number_fault

_Record = TypeVar("_Record")
_Decoder = Callable[[Any], Any]


class MismatchError(ValueError):
    """A JSON value that does not fit its field; the message is one sentence without a dot.

    Args:
        fault: What is wrong with the value.
        path: The fields that lead to it, outermost first.
    """

    def __init__(self, fault: str, path: tuple[str, ...] = ()) -> None:
        super().__init__(f"{'.'.join(path)} {fault}".lstrip())
        self.fault = fault
        self.path = path

    def inside(self, name: str) -> MismatchError:
        """The same, seen from the record or list around it."""
        return MismatchError(self.fault, (name, *self.path))


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
        return {_text_key(key): to_json(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [to_json(item) for item in value]
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {name: to_json(getattr(value, name)) for name in _field_names(type(value))}
    raise TypeError(f"a {type(value).__name__} can't be written as JSON")


@functools.cache
def _field_names(record_type: type) -> tuple[str, ...]:
    return tuple(field.name for field in dataclasses.fields(record_type))


def _text_key(key: object) -> str:
    if not isinstance(key, str):
        raise TypeError(f"{key!r} can't be a key in JSON")
    return key


def from_json(record_type: type[_Record], data: object) -> _Record:
    """A record from parsed JSON; fields that the record doesn't have are ignored.

    Args:
        record_type: A frozen dataclass out of ``dlprof.records``.
        data: What ``json.loads`` gave.

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
        return _optional_decoder(arguments)
    if origin is Literal:
        return _literal_decoder(arguments)
    if origin is tuple:
        return _tuple_decoder(arguments[0])
    if isinstance(origin, type) and issubclass(origin, Mapping):
        return _mapping_decoder(arguments[1])
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
                    raise error.inside(name) from None
            elif name in required:
                raise MismatchError("is missing", (name,))
        record = record_type(**values)
        if fault := fault_of(record):
            raise MismatchError(fault[1], (fault[0],))
        return record

    return decode


def _optional_decoder(arguments: tuple[Any, ...]) -> _Decoder:
    (hint,) = (argument for argument in arguments if argument is not types.NoneType)
    decode = _decoder(hint)
    return lambda data: None if data is None else decode(data)


def _literal_decoder(choices: tuple[Any, ...]) -> _Decoder:
    def decode(data: Any) -> Any:
        if not isinstance(data, str) or data not in choices:
            raise MismatchError(f"is none of {', '.join(choices)}")
        return data

    return decode


def _tuple_decoder(hint: Any) -> _Decoder:
    decode_item = _decoder(hint)

    def decode(data: Any) -> tuple[Any, ...]:
        if not isinstance(data, list):
            raise MismatchError("is not a list")
        return tuple(decode_item(item) for item in data)

    return decode


def _mapping_decoder(hint: Any) -> _Decoder:
    decode_item = _decoder(hint)

    def decode(data: Any) -> dict[str, Any]:
        if not isinstance(data, dict):
            raise MismatchError("is not an object")
        return {key: decode_item(item) for key, item in data.items()}

    return decode


def _decode_float(data: Any) -> float:
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


def _decode_bool(data: Any) -> bool:
    if not isinstance(data, bool):
        raise MismatchError("is neither true nor false")
    return data


def _decode_str(data: Any) -> str:
    if not isinstance(data, str):
        raise MismatchError("is not a text")
    return data


def _decode_any(data: Any) -> Any:
    """What may be anything that JSON has, its numbers within bounds all the same."""
    if isinstance(data, int | float) and (fault := number_fault(data)):
        raise MismatchError(fault)
    for item in _items(data):
        _decode_any(item)
    return data


def _items(data: Any) -> Iterable[Any]:
    if isinstance(data, dict):
        return data.values()
    return data if isinstance(data, list) else ()


_PLAIN: Mapping[Any, _Decoder] = {
    float: _decode_float,
    int: _decode_int,
    bool: _decode_bool,
    str: _decode_str,
    Any: _decode_any,
}
