"""The limits of a recommendation: those that the sweep was given, and those asked for since."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from dlprof.errors import UsageError
from dlprof.records import Constraints
from dlprof.settings.model import SweepSettings
from dlprof.settings.options import parse_option
from dlprof.settings.written import settings_from_json

_FIELDS = {
    "max_workers": "max_workers",
    "max_ram": "max_ram_bytes",
    "max_shm": "max_shm_bytes",
    "ranks": "ranks",
    "step_time": "step_s",
}


def constraints_of(settings: SweepSettings) -> Constraints:
    """The limits that a sweep's own settings put on its recommendation."""
    return Constraints(**{field: getattr(settings, field) for field in _FIELDS.values()})


def read_constraints(stored: Mapping[str, Any], asked: Mapping[str, object | None]) -> Constraints:
    """The limits that a recommendation must keep.

    Args:
        stored: The settings in a run's header; what nobody asks for anew is taken from them.
        asked: By the names of a sweep's options (``max_workers``, ``max_ram``, ``max_shm``,
            ``ranks``, ``step_time``): texts or values; ``None`` is not asked for, ``"none"`` lifts
            a limit.

    Raises:
        UsageError: For a value that is none, or out of range.
    """
    try:
        limits = constraints_of(settings_from_json(stored))
    except UsageError:  # a header without settings, as other tools may write it
        limits = Constraints()
    changes = {
        _FIELDS[name]: parse_option(name, value)
        for name, value in asked.items()
        if value is not None
    }
    return dataclasses.replace(limits, **changes)
