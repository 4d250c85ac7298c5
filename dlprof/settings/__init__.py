"""What a sweep is told to do: flags over environment over files over defaults.

The table of options, which every command's help needs, is imported here; what reads files and
recommendations is in the modules.
"""

from __future__ import annotations

from dlprof.settings.conflicts import MAX_CONFIGS, several_calibrations
from dlprof.settings.model import SweepSettings
from dlprof.settings.options import OPTIONS, Option, by_key, parse_option

__all__ = [
    "MAX_CONFIGS",
    "OPTIONS",
    "Option",
    "SweepSettings",
    "by_key",
    "parse_option",
    "several_calibrations",
]
