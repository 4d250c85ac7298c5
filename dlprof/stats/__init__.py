"""Small-sample statistics, pure and without numpy: torch does not depend on it."""

from __future__ import annotations

from dlprof.stats.belief import (
    CALIBRATED,
    NEAR,
    NEAR_LOG,
    PROBABILITY,
    RISK,
    SPEED_EXPONENT,
    SPEED_EXPONENT_SD,
    Belief,
    Carried,
    ExpectedRates,
    Gap,
    ObservedRate,
    believe,
    near_best,
    observe,
    room_of,
    shortfall,
)
from dlprof.stats.intervals import (
    mean_interval,
    median_interval,
    ratio_interval,
    t_quantile,
    t_tail,
    turnovers,
    typical,
)

__all__ = [
    "CALIBRATED",
    "NEAR",
    "NEAR_LOG",
    "PROBABILITY",
    "RISK",
    "SPEED_EXPONENT",
    "SPEED_EXPONENT_SD",
    "Belief",
    "Carried",
    "ExpectedRates",
    "Gap",
    "ObservedRate",
    "believe",
    "mean_interval",
    "median_interval",
    "near_best",
    "observe",
    "ratio_interval",
    "room_of",
    "shortfall",
    "t_quantile",
    "t_tail",
    "turnovers",
    "typical",
]
