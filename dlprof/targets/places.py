"""Where a target's code stands."""

from __future__ import annotations

import importlib
import inspect
from pathlib import Path

from dlprof.targets.grammar import parse_target
from dlprof.targets.importing import import_object


def place_of(text: str) -> tuple[str, int | None] | None:
    """File and line of what TARGET names, once it has been built; ``None`` for a built-in.

    Only functions and classes have a line of their own.

    Args:
        text: TARGET as the user wrote it.
    """
    spec = parse_target(text)
    if spec.kind == "builtin":
        return None
    found = import_object(spec)
    if inspect.isfunction(found) or inspect.isclass(found):
        try:
            return inspect.getfile(found), inspect.getsourcelines(found)[1]
        except (TypeError, OSError):
            pass  # made by code that stands in no file
    if spec.kind == "file":
        return str(Path(spec.source).resolve()), None
    file = importlib.import_module(spec.source).__file__
    return None if file is None else (file, None)
