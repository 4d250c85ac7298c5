"""What would happen: predicted from the costs of batches, pure and without numpy.

A calibration (``fit``) holds what batches cost on one machine; ``predict_all`` says what any
configurations would give under any conditions, by a recursion over batches (``maxplus``). The
``bounds`` explain it.
"""

from __future__ import annotations

from dlprof.model.bounds import binding, bounds, describe
from dlprof.model.calibrate import fit
from dlprof.model.conditions import SPEED_ERROR, Conditions
from dlprof.model.interval import relative_error
from dlprof.model.maxplus import drawn, steady_rate
from dlprof.model.predict import predict_all, spread_workers
from dlprof.model.resources import Needs, needs
from dlprof.model.work import Cell, cell_of, work_of

__all__ = [
    "SPEED_ERROR",
    "Cell",
    "Conditions",
    "Needs",
    "binding",
    "bounds",
    "cell_of",
    "describe",
    "drawn",
    "fit",
    "needs",
    "predict_all",
    "relative_error",
    "spread_workers",
    "steady_rate",
    "work_of",
]
