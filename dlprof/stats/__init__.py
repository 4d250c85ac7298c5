"""Small-sample statistics, pure and without numpy: torch does not depend on it."""

from __future__ import annotations

from dlprof.stats.belief import (
    NEAR,
    PROBABILITY,
    Belief,
    Carried,
    Expected,
    Observation,
    believe,
    observe,
)
from dlprof.stats.student import mean_interval, t_quantile, t_tail
from dlprof.stats.turnover import turnovers

__all__ = [
    "NEAR",
    "PROBABILITY",
    "Belief",
    "Carried",
    "Expected",
    "Observation",
    "believe",
    "mean_interval",
    "observe",
    "t_quantile",
    "t_tail",
    "turnovers",
]
