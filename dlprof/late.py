"""Methods of records that need rooms above theirs: each is found by its name when it is called.

A run becomes a table and a recommendation sets up a loader, for which a record knows too little. So
that records import no room above them, ``dlprof/__init__.py`` says here who does it.
"""

from __future__ import annotations

import importlib
from typing import Any

HOMES: dict[str, str] = {}  # the module of each function


def call(name: str, *arguments: object) -> Any:
    """What the function of that name in ``HOMES`` returns."""
    return getattr(importlib.import_module(HOMES[name]), name)(*arguments)


class Shown:
    """What a notebook shows as a page when it is the last line of a cell."""

    __slots__ = ()

    def _repr_html_(self) -> str:
        return str(call("notebook_html", self))
