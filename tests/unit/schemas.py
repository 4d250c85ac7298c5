"""Documents and run files, held against the schemas that the package has of them."""

from __future__ import annotations

import functools
import importlib.resources
import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import jsonschema

from dlprof.store import KIND, RECORD_TYPES

FOLDER = importlib.resources.files("dlprof") / "schema"


def schema(name: str) -> dict[str, Any]:
    """The schema of a document."""
    found: dict[str, Any] = json.loads((FOLDER / f"{name}.json").read_text(encoding="utf-8"))
    return found


def faults(made: Mapping[str, Any], document: object) -> Iterator[str]:
    """What a document has that its schema doesn't allow."""
    return _faults(jsonschema.Draft202012Validator(made), document)


def conforms(name: str, document: object) -> None:
    """Fail unless a document of this version is as its schema says, and holds nothing else."""
    _refuse(*_faults(_validator(name), document), *_faults(_strict(name), document))


def run_file_conforms(path: Path, *, ours: bool = True) -> None:
    """The same for each line of a run file.

    Args:
        path: The file.
        ours: Whether this version wrote it; others may have fields that are no more.
    """
    for text in path.read_text(encoding="utf-8").splitlines():
        line = json.loads(text)
        _refuse(*_faults(_validator("run-file"), line))
        if ours:
            record = RECORD_TYPES[line.pop(KIND)].__name__
            _refuse(*_faults(_strict("run-file", record), line))


def _faults(validator: Any, document: object) -> Iterator[str]:
    for error in validator.iter_errors(document):
        yield f"{error.json_path}: {error.message[:200]}"


@functools.cache
def _validator(name: str) -> Any:
    return jsonschema.Draft202012Validator(schema(name))


@functools.cache
def _strict(name: str, record: str = "") -> Any:
    """That of a schema, or of one record of it, whose objects hold nothing else."""
    made = schema(name)
    if record:
        made = {"$ref": f"#/$defs/{record}", "$defs": made["$defs"]}
    return jsonschema.Draft202012Validator(_closed(made))


def _refuse(*found: str) -> None:
    if found:
        raise AssertionError("\n".join(found))


def _closed(part: Any) -> Any:
    """A schema whose objects may have no keys but those that it names."""
    if isinstance(part, list):
        return [_closed(each) for each in part]
    if not isinstance(part, dict):
        return part
    made = {key: _closed(value) for key, value in part.items()}
    return {**made, "additionalProperties": False} if "properties" in part else made
