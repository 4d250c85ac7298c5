"""Write ``dlprof/schema/`` from the records: ``python tools/schema.py [--check]``.

A JSON Schema (draft 2020-12) of a line of a run file, and one of each document that ``--json``
prints. Objects may have more keys than a schema names: later versions add some. ``--check`` writes
nothing and exits with 1 where a file is not as the code has it.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import sys
import types
import typing
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any, Literal

from reference import described, summary

from dlprof.advise.compare import Comparison
from dlprof.advise.forecast import Accelerators, Feed, Forecast
from dlprof.advise.scaling import Scale, ScalingLaw, Straggler
from dlprof.machine.doctor import Check
from dlprof.machine.neighbours import Overview
from dlprof.machine.profiles import MachineProfile
from dlprof.records import (
    SCHEMA_VERSION,
    Diagnosis,
    Finding,
    Recommendation,
    Run,
    RunEnd,
    RunHeader,
    Target,
)
from dlprof.records.gate import BaselineEntry, BaselineKey, CheckReport, SelfTest, TargetCheck
from dlprof.records.transfer import Transfers
from dlprof.report.attach import TrainingFigures
from dlprof.store import KIND, RECORD_TYPES

FOLDER = Path(__file__).parents[1] / "dlprof" / "schema"
_DIALECT = "https://json-schema.org/draft/2020-12/schema"
_NULL = {"type": "null"}
_PLAIN: Mapping[Any, Mapping[str, Any]] = MappingProxyType(
    {
        str: {"type": "string"},
        int: {"type": "integer"},
        float: {"type": "number"},
        bool: {"type": "boolean"},
        Any: {},
    }
)
_Schema = dict[str, Any]


def documents() -> dict[str, _Schema]:
    """Each schema under the name of its file."""
    version, text = _version(SCHEMA_VERSION), {"type": "string"}
    baseline = {**version, "file": text}
    file = _fields(Run, run_file="path")
    header = {**file, **_fields(RunHeader, "run_id", "machine", "target")}
    ended = {**_fields(RunEnd, null=True, ended="reason"), **_fields(RunEnd, "cost_s")}
    found = _fields(Diagnosis, "findings", "notes")
    profiled = _fields(Diagnosis, "config", "stalls", null=True)
    asked = {**version, **file, **_fields(Target, target="spec"), **_fields(Diagnosis, "findings")}
    made = {
        "run-file": ("One line of a run file.", _line()),
        "sweep": (
            "What `dlprof sweep --json` prints.",
            _object(
                {**version, **header, **_fields(Run, "trials", "prediction", "recommendation")},
                _fields(RunHeader, "left_out"),
                {"scaling": _of(tuple[Scale, ...]), "scaling_law": _of(ScalingLaw | None)},
                {"accelerators": _of(Accelerators | None), "unavailable": _of(dict[str, str])},
                ended,
            ),
        ),
        "profile": (
            "What `dlprof profile --json` prints.",
            _object(
                {**version, **header, **profiled, **_fields(Diagnosis, "without"), **found},
                _fields(Run, "explanations", "trials"),
                ended,
                optional={"error": _error()},
            ),
        ),
        "run": (
            "What `dlprof run --json FILE` writes.",
            _object(
                {**version, **_fields(Run, null=True, run_file="path")},
                _fields(RunHeader, "machine", "target"),
                _fields(Run, "script", loaders="watched"),
                {"straggler": _of(Straggler | None)},
                found,
            ),
        ),
        "attach": (
            "What `dlprof attach PID --json` prints.",
            _object(version, _fields(TrainingFigures)),
        ),
        "top": (
            "What `dlprof top --json` prints.",
            _object(version, {"trainings": _of(tuple[TrainingFigures, ...])}),
        ),
        "report": ("What `dlprof report RUN --json` prints.", _object(version, _fields(Run))),
        "recommend": (
            "What `dlprof recommend RUN --json` prints.",
            _object(version, file, _fields(Recommendation)),
        ),
        "predict": (
            "What `dlprof predict RUN --json` prints.",
            _object(asked, _fields(Forecast)),
        ),
        "predict-feed": (
            "What `dlprof predict RUN --feed --json` prints.",
            _object(asked, {"answer": text}, _fields(Feed)),
        ),
        "compare": (
            "What `dlprof compare A B --json` prints.",
            _object(version, _fields(Comparison)),
        ),
        "transfer": ("What `dlprof transfer --json` prints.", _object(version, _fields(Transfers))),
        "machine": ("What `dlprof machine --json` prints.", _object(version, _fields(Overview))),
        "machine-profile": (
            "What `dlprof machine --json` prints of a machine profile.",
            _object(version, {"profile": _of(MachineProfile)}, _fields(RunHeader, "machine")),
        ),
        "machine-list": (
            "What `dlprof machine --list --json` prints.",
            _object(version, {"profiles": _of(tuple[MachineProfile, ...])}),
        ),
        "doctor": (
            "What `dlprof doctor --json` prints.",
            _object(version, {"system": text, "checks": _of(tuple[Check, ...])}),
        ),
        "explain": (
            "What `dlprof explain CODE --json` prints.",
            _object(version, {"code": text, "summary": text, "text": text}),
        ),
        "explain-list": (
            "What `dlprof explain --json` prints.",
            _object(version, {"codes": _list(code=str, summary=str)}),
        ),
        "brief": (
            "What `--json --brief` prints of a sweep, a recommendation, a profile or a check.",
            _brief(version, file),
        ),
        "check": ("What `dlprof check --json` prints.", _object(_fields(CheckReport))),
        "check-self-test": (
            "What `dlprof check --self-test --json` prints.",
            _object(_fields(SelfTest)),
        ),
        "baseline-show": (
            "What `dlprof baseline show FILE --json` prints.",
            _object(baseline, {"keys": _list(key=BaselineKey, runs=tuple[BaselineEntry, ...])}),
        ),
        "baseline-update": (
            "What `dlprof baseline update FILE --json` prints.",
            _object(baseline, {"added": _list(entry=BaselineEntry, comparable_runs=int)}),
        ),
        "error": (
            "What `--json` prints where a command fails.",
            _object(version, {"error": _error()}),
        ),
    }
    return {name: _whole(text, schema) for name, (text, schema) in made.items()}


def _whole(text: str, schema: _Schema) -> _Schema:
    """A schema that stands alone, with the records that it needs."""
    whole: _Schema = {"$schema": _DIALECT, "description": text, **schema}
    needed = dict(sorted(_needed(schema)))
    return {**whole, "$defs": needed} if needed else whole


def _needed(schema: _Schema) -> Iterator[tuple[str, _Schema]]:
    """The records that a schema refers to, however deep."""
    waiting, seen = list(_references(schema)), set()
    while waiting:
        name = waiting.pop()
        if name not in seen:
            seen.add(name)
            found = _object(_fields(_RECORDS[name]), required=_required(_RECORDS[name]))
            yield name, {"description": summary(_RECORDS[name]), **found}
            waiting += _references(found)


_RECORDS: dict[str, type] = {}
"""Every record that a type names, by its name; filled by ``_of``."""


def _references(part: object) -> Iterator[str]:
    if isinstance(part, Mapping):
        for key, value in part.items():
            if key == "$ref":
                yield value.rpartition("/")[2]
            yield from _references(value)
    elif isinstance(part, list):
        for value in part:
            yield from _references(value)


def _object(
    *parts: Mapping[str, _Schema],
    optional: Mapping[str, _Schema] = MappingProxyType({}),
    required: list[str] | None = None,
) -> _Schema:
    """An object of these keys, which all have to be there unless said otherwise."""
    keys: dict[str, _Schema] = {}
    for part in parts:
        keys.update(part)
    needed = list(keys) if required is None else required
    made: _Schema = {"type": "object", "properties": {**keys, **optional}}
    return {**made, "required": needed} if needed else made


def _fields(record: type, *names: str, null: bool = False, **renamed: str) -> dict[str, _Schema]:
    """Fields of a record, with what is said of them there.

    Args:
        record: The record.
        names: Which fields; all where none is named.
        null: Whether they may be ``null`` too, as there may be no such record.
        renamed: Fields under other keys.
    """
    hints = typing.get_type_hints(record)
    texts = described(record)
    picked = {**{name: name for name in names}, **renamed}
    picked = picked or {f.name: f.name for f in dataclasses.fields(record) if f.repr}
    made = {}
    for key, name in picked.items():
        schema = _or_null(_of(hints[name])) if null else _of(hints[name])
        made[key] = {**schema, "description": _sentence(texts[name])}
    return made


def _sentence(text: str) -> str:
    return " ".join(text.split()).replace("``None``", "`null`").replace("``", "`")


def _required(record: type) -> list[str]:
    """The fields without a default: files of earlier versions lack others."""
    missing = dataclasses.MISSING
    fields = dataclasses.fields(record)
    return [f.name for f in fields if f.default is missing and f.default_factory is missing]


def _of(hint: Any) -> _Schema:
    """The schema of a type."""
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if origin in (types.UnionType, typing.Union):
        (known,) = (each for each in arguments if each is not types.NoneType)
        return _or_null(_of(known))
    if origin is Literal:
        return {"enum": list(arguments)}
    if origin is tuple:
        return {"type": "array", "items": _of(arguments[0])}
    if origin is not None:
        return {"type": "object", "additionalProperties": _of(arguments[1])}
    if dataclasses.is_dataclass(hint) and isinstance(hint, type):
        if _RECORDS.setdefault(hint.__name__, hint) is not hint:
            raise TypeError(f"two records have the name {hint.__name__}")
        return {"$ref": f"#/$defs/{hint.__name__}"}
    return dict(_PLAIN[hint])


def _or_null(schema: _Schema) -> _Schema:
    if "anyOf" in schema or not schema:
        return schema  # it takes null as it is
    if "enum" in schema:
        return {"enum": [*schema["enum"], None]}
    return {"anyOf": [schema, _NULL]}


def _version(number: int) -> dict[str, _Schema]:
    return {"schema_version": {"const": number, "description": "Version of this format."}}


def _list(**keys: Any) -> _Schema:
    return {"type": "array", "items": _object({key: _of(hint) for key, hint in keys.items()})}


def _line() -> _Schema:
    """A record by its kind; kinds that later versions add may hold anything."""
    return {
        **_object({KIND: {"type": "string", "description": "Which kind of record this is."}}),
        "allOf": [
            {"if": {"properties": {KIND: {"const": kind}}}, "then": _of(record)}
            for kind, record in RECORD_TYPES.items()
        ],
    }


def _brief(version: Mapping[str, _Schema], file: Mapping[str, _Schema]) -> _Schema:
    """As ``brief_document`` cuts it: every key only where there is something to say."""
    text = {"type": "string"}
    finding = _object(
        _fields(Finding, "code", "severity", "title", "predicted_gain"),
        {"fix": _or_null(text), "dataloader_kwargs": _or_null({"type": "object"})},
    )
    target = _object(
        _fields(TargetCheck, "target"),
        _fields(CheckReport, "state"),
        {"not_passed": _of(tuple[str, ...])},
    )
    kept = ("dataloader_kwargs", "expected", "confidence", "confidence_reason", "certificate")
    return _object(
        version,
        optional={
            "error": _error(),
            **file,
            **_fields(RunEnd, ended="reason"),
            **_fields(CheckReport, "state"),
            **_fields(SelfTest, "trusted"),
            **_fields(CheckReport, "explanation"),
            "targets": {"type": "array", "items": target},
            **_fields(Recommendation, *kept, "numa_binding"),
            "accelerators": _of(Accelerators),
            "unavailable": _of(dict[str, str]),
            "reasons": _of(tuple[str, ...]),
            "findings": {"type": "array", "items": finding},
            **_fields(Diagnosis, "stalls"),
            "cost_s": {"type": "number", "description": "Seconds that it took."},
        },
    )


def _error() -> _Schema:
    """As ``DlprofError.document`` has it."""
    text = {"type": "string"}
    failure = _object({"kind": text, "message": text, "count": {"type": "integer"}})
    failures = {
        "description": "Why trials failed, where that is the reason; most frequent first.",
        "type": "array",
        "items": failure,
    }
    keys = {
        "kind": {**text, "description": "The class of the fault."},
        "message": {**text, "description": "What is wrong, one sentence."},
        "hint": {**text, "description": "What to do about it; empty where that is said already."},
    }
    return _object(keys, optional={"failures": failures})


def main() -> int:
    """Write or check every file; the exit code."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--check", action="store_true", help="write nothing")
    check: bool = parser.parse_args().check
    fresh = {
        f"{name}.json": json.dumps(schema, indent=1, ensure_ascii=False) + "\n"
        for name, schema in documents().items()
    }
    there = {path.name: path.read_text(encoding="utf-8") for path in FOLDER.glob("*.json")}
    stale = sorted(name for name in {*fresh, *there} if fresh.get(name) != there.get(name))
    for name in stale:
        if check:
            print(f"dlprof/schema/{name} is not as the code has it: make docs")
        elif name in fresh:
            (FOLDER / name).write_text(fresh[name], encoding="utf-8")
            print(f"dlprof/schema/{name} written")
        else:
            (FOLDER / name).unlink()
            print(f"dlprof/schema/{name} removed")
    return 1 if check and stale else 0


if __name__ == "__main__":
    sys.exit(main())
