"""The run file's format: its name, its records, how a line is written, how versions differ."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Mapping
from datetime import datetime
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
        # Editors may have put a byte order mark in front.
        return json.loads(raw.decode("utf-8-sig"), parse_float=_finite, parse_constant=_finite)
    except RecursionError:
        raise ValueError("nested too deeply") from None


def _finite(text: str) -> float:
    value = float(text)
    if not math.isfinite(value):
        raise ValueError(f"{text} is not a finite number")
    return value


SUFFIX = ".dlprof.jsonl"


def run_file_name(target: str, now: datetime) -> str:
    """A name that has the target and the time: ``images-20260131-142501-7k2q.dlprof.jsonl``.

    The last four characters stand for the microseconds, so that sweeps which are started in the
    same second, as the ranks of a job are, don't take each other's file.

    >>> run_file_name("data/set.py:make", datetime(2026, 1, 31, 14, 25, 1, 123456))
    'set-make-20260131-142501-2n9c.dlprof.jsonl'
    """
    place, _, attribute = target.replace("\\", "/").rpartition("/")[2].partition(":")
    words = [place.removesuffix(".py")]
    if "=" not in attribute:
        words.append(attribute)
    stem = re.sub(r"[^A-Za-z0-9_.]+", "-", "-".join(words)).strip("-.")[:60]
    alphabet, number = "0123456789abcdefghijklmnopqrstuvwxyz", now.microsecond
    digits = "".join(alphabet[number // 36**place % 36] for place in (3, 2, 1, 0))
    return f"{stem or 'run'}-{now:%Y%m%d-%H%M%S}-{digits}{SUFFIX}"
