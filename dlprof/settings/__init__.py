"""What a sweep is told to do: flags over environment over files over defaults."""

from __future__ import annotations

from dlprof.settings.conflicts import MAX_CONFIGS, several_calibrations
from dlprof.settings.limits import asked_limits, constraints_of
from dlprof.settings.model import SweepSettings
from dlprof.settings.options import OPTIONS, Option, by_key, parse_option
from dlprof.settings.resolve import resolve_settings
from dlprof.settings.written import print_config, settings_from_json, settings_to_json

__all__ = [
    "MAX_CONFIGS",
    "OPTIONS",
    "Option",
    "SweepSettings",
    "asked_limits",
    "by_key",
    "constraints_of",
    "parse_option",
    "print_config",
    "resolve_settings",
    "settings_from_json",
    "settings_to_json",
    "several_calibrations",
]
