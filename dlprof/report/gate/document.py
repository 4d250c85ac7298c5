"""The JSON document of a check: everything that the verdict follows from, and back."""

from __future__ import annotations

import json
import math
from typing import Any

from dlprof.errors import FileError
from dlprof.records.gate import CHECK_SCHEMA_VERSION, CheckReport
from dlprof.store.codec import MismatchError, from_json, to_json

_HINT = "Give a document that dlprof check --json printed."


def check_document(check: CheckReport) -> str:
    """What ``dlprof check --json`` prints: one key a line, so that blocks don't fill the screen.

    Raises:
        ValueError: For a number that is not finite; checks made by ``dlprof.gate`` have none.
    """
    fields: dict[str, Any] = to_json(check)
    lines = (f"  {json.dumps(key)}: {_value(value)}" for key, value in fields.items())
    return "{\n" + ",\n".join(lines) + "\n}"


def _value(value: Any) -> str:
    return json.dumps(value, allow_nan=False)


def read_check(text: str, name: str) -> CheckReport:
    """The check that a document holds; its verdict is that of whoever wrote it.

    Args:
        text: The document.
        name: The file's, for messages.

    Raises:
        FileError: If it is not a document of a check, or one of a later version.
    """
    try:
        data = json.loads(text, parse_constant=_refuse, parse_float=_finite)
    except (ValueError, RecursionError) as error:
        fault = "nested too deeply" if isinstance(error, RecursionError) else "not JSON"
        raise FileError(f"{name} is {fault}", hint=_HINT) from None
    version = data.get("schema_version") if isinstance(data, dict) else None
    if not isinstance(version, int):
        raise FileError(f"{name} is no document of a check", hint=_HINT)
    if version > CHECK_SCHEMA_VERSION:
        raise FileError(
            f"{name} was written by a newer dlprof "
            f"(version {version}; this one reads {CHECK_SCHEMA_VERSION})",
            hint="Upgrade dlprof: pip install --upgrade dlprof",
        )
    try:
        return from_json(CheckReport, data)
    except MismatchError as error:
        raise FileError(f"{name}: {error}", hint=_HINT) from None


def _refuse(text: str) -> float:
    raise ValueError(text)


def _finite(text: str) -> float:
    value = float(text)
    return value if math.isfinite(value) else _refuse(text)
