"""What a sweep is to do: flags over environment over files over defaults.

What reads files is in ``dlprof.settings.resolve``.
"""

from __future__ import annotations

from dlprof.settings.model import MAX_CONFIGS as MAX_CONFIGS
from dlprof.settings.model import SweepSettings as SweepSettings
from dlprof.settings.model import settings_from_json as settings_from_json
from dlprof.settings.model import settings_to_json as settings_to_json
from dlprof.settings.model import several_calibrations as several_calibrations
from dlprof.settings.options import OPTIONS as OPTIONS
from dlprof.settings.options import by_key as by_key
from dlprof.settings.options import parse_option as parse_option
