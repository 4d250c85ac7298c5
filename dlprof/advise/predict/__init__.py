"""Answers from a saved run without measuring: what other settings and machines would give."""

from __future__ import annotations

from dlprof.advise.choice import FED_WAIT_FRACTION
from dlprof.advise.predict.cells import base_config, configs_of, most_workers, wanted_configs
from dlprof.advise.predict.feed import Feed, feed
from dlprof.advise.predict.forecast import Calibrated, Forecast, Row, forecast
from dlprof.advise.predict.question import Question, as_shared, place_of

__all__ = [
    "FED_WAIT_FRACTION",
    "Calibrated",
    "Feed",
    "Forecast",
    "Question",
    "Row",
    "as_shared",
    "base_config",
    "configs_of",
    "feed",
    "forecast",
    "most_workers",
    "place_of",
    "wanted_configs",
]
