"""What a sweep is to do: flags over environment over files over defaults.

What reads files is in ``dlprof.settings.resolve``.
"""

from __future__ import annotations

from dlprof.settings.model import (
    MAX_CONFIGS,
    SweepSettings,
    settings_from_json,
    settings_to_json,
    several_calibrations,
)
from dlprof.settings.options import OPTIONS, Option, by_key, parse_option

__all__ = [
    "MAX_CONFIGS",
    "OPTIONS",
    "Option",
    "SweepSettings",
    "by_key",
    "parse_option",
    "settings_from_json",
    "settings_to_json",
    "several_calibrations",
]
