"""The text of TARGET: what it names, without importing anything."""

from __future__ import annotations

import dataclasses
import os
import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import Literal

from dlprof.errors import TargetError, UsageError, did_you_mean

BUILTINS = ("images", "voc", "shards", "text", "synthetic", "dlio")
"""Names of the built-in workloads; a module of the same name is reached through its file."""

_FORMS = "Use package.module:name, path/to/file.py:name, or one of " + ", ".join(BUILTINS) + "."


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class TargetSpec:
    """What a TARGET names."""

    text: str
    # Which of the three forms it has; ``object`` for a live one (Python API only).
    kind: Literal["builtin", "module", "file", "object"]
    # The built-in's name, the dotted module, the path of the file, or of the pickle that holds the
    # live object.
    source: str
    attr: str = ""  # the attribute of the module, dots allowed; empty for a built-in and an object
    # What stands after a built-in's colon; empty for the other forms.
    parameters: Mapping[str, str] = dataclasses.field(default_factory=dict)


def parse_target(text: str) -> TargetSpec:
    r"""Read a TARGET.

    Args:
        text: ``images``, ``synthetic:cpu_ms=2``, ``package.module:attr``, ``dir/file.py:attr`` or
            ``C:\dir\file.py:attr``.
    """
    text = text.strip()
    if not text:
        raise UsageError("The target is empty.", hint=_FORMS)
    if "\0" in text:
        raise UsageError(f"The target {text!r} holds a null character.", hint=_FORMS)
    name, _, rest = text.partition(":")
    if name in BUILTINS:
        if name == "dlio" and rest and "=" not in rest.partition(",")[0]:
            rest = f"file={rest}"
        return TargetSpec(
            text=text, kind="builtin", source=name, parameters=_parse_parameters(text, name, rest)
        )
    if text.lower().endswith(".jsonl"):
        is_one = "is" if text.lower().endswith(".dlprof.jsonl") else "looks like"
        raise UsageError(
            f"{text!r} {is_one} a run file, not a target.",
            hint=f"Use dlprof recommend {shlex.quote(text)}, or dlprof report with it.",
        )
    source, attr = _split_attribute(text)
    if source.lower().endswith(".py"):
        return TargetSpec(text=text, kind="file", source=source, attr=attr)
    if "/" in source or "\\" in source:
        raise UsageError(f"The file of the target {text!r} does not end with .py.", hint=_FORMS)
    if not _is_dotted_name(source):
        raise UsageError(
            f"{source!r} in the target {text!r} is neither a module nor a .py file.", hint=_FORMS
        )
    return TargetSpec(text=text, kind="module", source=source, attr=attr)


def find_file(spec: TargetSpec, directory: Path) -> Path:
    """The file that a target names.

    Raises:
        TargetError: There is none.
    """
    path = Path(os.path.realpath(directory / spec.source))  # neither raises, however long it is
    if not os.path.exists(path):
        raise TargetError(
            f"There is no file {spec.source!r}.",
            hint="Give a path that exists, relative to the working directory.",
        )
    if not path.is_file():
        raise TargetError(f"{spec.source!r} is not a file.", hint="Name a .py file.")
    return path


def _split_attribute(text: str) -> tuple[str, str]:
    """Split at the last colon; a colon that belongs to a drive letter splits nothing."""
    source, colon, attr = text.rpartition(":")
    if colon and source and _is_dotted_name(attr):
        return source, attr
    file = text.rstrip(":")
    if file.lower().endswith(".py"):
        raise UsageError(
            f"The target {text!r} does not say what to take from the file.",
            hint=f"Add the name of a Dataset, a DataLoader or a function: {file}:make_dataset. "
            f"A training script is profiled by dlprof run {shlex.quote(file)}.",
        )
    hint = did_you_mean(text, BUILTINS) or _FORMS
    if "/" in (attr or text) or "\\" in (attr or text):  # the data's folder, or s3://bucket
        hint = "Name the code that loads it, a Dataset or a function that returns one: "
        hint += "path/to/file.py:name."
    elif colon and source and attr:
        raise UsageError(
            f"{attr!r} in the target {text!r} is not the name of an attribute.", hint=_FORMS
        )
    raise UsageError(
        f"{file!r} is not a built-in target, and names no attribute of a module.",
        hint=hint,
    )


def _parse_parameters(text: str, name: str, rest: str) -> dict[str, str]:
    parameters: dict[str, str] = {}
    for part in filter(None, (part.strip() for part in rest.split(","))):
        key, equals, value = (piece.strip() for piece in part.partition("="))
        if not equals or not key.isidentifier():
            raise UsageError(
                f"{part!r} in the target {text!r} is not of the form key=value.",
                hint=f"Write {name}:key=value,key=value; for a file named {name}.py, "
                f"write {name}.py:name.",
            )
        if key in parameters:
            raise UsageError(
                f"{key!r} is given twice in the target {text!r}.", hint="Give it once."
            )
        parameters[key] = value
    return parameters


def _is_dotted_name(text: str) -> bool:
    return all(part.isidentifier() for part in text.split("."))
