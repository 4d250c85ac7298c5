"""The limits of a recommendation: those that the sweep was given, and those asked for since."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from dlprof.records import Constraints
from dlprof.settings.model import SweepSettings
from dlprof.settings.options import parse_option

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


def asked_limits(asked: Mapping[str, object | None]) -> dict[str, Any]:
    """Limits asked for by the names of a sweep's options, as fields of ``Constraints``.

    Args:
        asked: ``max_workers``, ``max_ram``, ``max_shm``, ``ranks`` and ``step_time``, as texts or
            values; ``None`` is not asked for, ``"none"`` lifts a limit.

    Raises:
        UsageError: For a value that is none, or out of range.
    """
    return {
        _FIELDS[name]: parse_option(name, value)
        for name, value in asked.items()
        if value is not None
    }
