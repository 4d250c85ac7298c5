"""Settings as text and as JSON, and back."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from dlprof.errors import UsageError
from dlprof.settings.conflicts import check_conflicts
from dlprof.settings.model import SweepSettings
from dlprof.settings.options import OPTIONS
from dlprof.settings.resolve import DEFAULT_ORIGIN
from dlprof.tomlfile import toml_value


def print_config(settings: SweepSettings, origins: Mapping[str, str]) -> str:
    """The settings as TOML that ``--config`` takes and that resolves to the same settings.

    Args:
        settings: What to write.
        origins: Where each option came from, as ``resolve_settings`` gives it.
    """
    lines = ["# Settings of dlprof sweep, as resolved."]
    for option in OPTIONS:
        value = getattr(settings, option.field)
        written = toml_value(option.unset if value is None else value)
        # repr: an origin holds a path of the user's, which may hold anything.
        origin = ascii(origins.get(option.key, DEFAULT_ORIGIN))[1:-1]
        lines += ["", f"# {option.text} From: {origin}", f"{option.key} = {written}"]
    return "\n".join(lines) + "\n"


def settings_to_json(settings: SweepSettings) -> dict[str, Any]:
    """The settings under their field names, as JSON values for the header of a run file."""
    return {option.field: _plain(getattr(settings, option.field)) for option in OPTIONS}


def _plain(value: object) -> object:
    if isinstance(value, Mapping):
        return dict(value)
    return list(value) if isinstance(value, tuple) else value


def settings_from_json(data: Mapping[str, Any]) -> SweepSettings:
    """The settings that ``settings_to_json`` wrote, to resume a run.

    Fields that are missing take their default, and unknown ones are ignored, so that versions
    which differ in options read each other's files.

    Raises:
        UsageError: For values that no sweep can have.
    """
    values: dict[str, Any] = {}
    for option in OPTIONS:
        if option.field not in data:
            continue
        raw = data[option.field]
        if raw is None and option.unset is None:
            raise UsageError(
                f"The run's settings have no value for {option.field}",
                hint="Start a new run: this file was changed after it was written.",
            )
        values[option.field] = (
            None if raw is None else option.read(raw, f"{option.field} in the run's settings")
        )
    settings = SweepSettings(**values)
    check_conflicts(settings)
    return settings
