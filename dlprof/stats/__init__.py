"""Small-sample statistics, pure and without numpy: torch does not depend on it."""

from __future__ import annotations

from dlprof.stats.blocks import BlockFit, Observation, fit_blocks, observe
from dlprof.stats.expected import Expected, belied, fit_expecting, is_contradicted
from dlprof.stats.student import mean_interval, t_quantile
from dlprof.stats.turnover import turnovers

__all__ = [
    "BlockFit",
    "Expected",
    "Observation",
    "belied",
    "fit_blocks",
    "fit_expecting",
    "is_contradicted",
    "mean_interval",
    "observe",
    "t_quantile",
    "turnovers",
]
