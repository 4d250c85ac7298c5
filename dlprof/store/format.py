"""The run file's format: which records there are, how a line is written, how versions differ."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any

from dlprof.records import (
    Calibration,
    Diagnosis,
    Explanation,
    Recommendation,
    RunEnd,
    RunHeader,
    SweepPrediction,
    Timeline,
    Trial,
    WatchedLoader,
    WatchedScript,
)
from dlprof.records.codec import to_json

KIND = "record"
"""The key that says which kind of record a line holds."""

RECORD_TYPES: Mapping[str, type] = MappingProxyType(
    {
        "run": RunHeader,
        "trial": Trial,
        "explanation": Explanation,
        "timeline": Timeline,
        "calibration": Calibration,
        "prediction": SweepPrediction,
        "diagnosis": Diagnosis,
        "watched": WatchedLoader,
        "script": WatchedScript,
        "recommendation": Recommendation,
        "end": RunEnd,
    }
)
"""Kinds that this version understands; others are additions of later versions and are skipped."""

_KINDS = {record_type: kind for kind, record_type in RECORD_TYPES.items()}

Migration = Callable[[dict[str, Any]], dict[str, Any]]

MIGRATIONS: Mapping[int, Migration] = MappingProxyType({})
"""From an older schema version to the function that brings one line, as parsed, to the next
version. A change that only adds records or fields needs neither an entry nor a new version."""


def encode_line(record: object) -> bytes:
    """One line of a run file: ASCII, so that a file may be cut anywhere without harm to text.

    Raises:
        TypeError: For an object that is no record of a run file.
        ValueError: For a number that is not finite.
    """
    if type(record) not in _KINDS:
        raise TypeError(f"a {type(record).__name__} is no record of a run file")
    line = {KIND: _KINDS[type(record)], **to_json(record)}
    return json.dumps(line, allow_nan=False).encode("ascii") + b"\n"


def decode_line(raw: bytes) -> Any:
    """What a line holds, numbers checked.

    Raises:
        ValueError: If it is not JSON in UTF-8, or holds a number that is not finite.
    """
    try:
        return json.loads(raw.decode(), parse_float=_finite, parse_constant=_finite)
    except RecursionError:
        raise ValueError("nested too deeply") from None


def _finite(text: str) -> float:
    value = float(text)
    if not math.isfinite(value):
        raise ValueError(f"{text} is not a finite number")
    return value
