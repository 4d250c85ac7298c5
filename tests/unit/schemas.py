"""Documents and run files, held against the schemas that the package has of them."""

from __future__ import annotations

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
    for error in jsonschema.Draft202012Validator(made).iter_errors(document):
        yield f"{error.json_path}: {error.message[:200]}"


def conforms(name: str, document: object) -> None:
    """Fail unless a document of this version is as its schema says, and holds nothing else."""
    _refuse(*faults(schema(name), document), *faults(_closed(schema(name)), document))


def run_file_conforms(path: Path, *, ours: bool = True) -> None:
    """The same for each line of a run file.

    Args:
        path: The file.
        ours: Whether this version wrote it; others may have fields that are no more.
    """
    whole = schema("run-file")
    for text in path.read_text(encoding="utf-8").splitlines():
        line = json.loads(text)
        _refuse(*faults(whole, line))
        if ours:
            record = RECORD_TYPES[line.pop(KIND)].__name__
            alone = {"$ref": f"#/$defs/{record}", "$defs": whole["$defs"]}
            _refuse(*faults(_closed(alone), line))


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
