"""What would happen: predicted from the costs of batches, pure and without numpy.

A calibration (``fit``) holds what batches cost on one machine; a predictor says what any
configuration would give under any conditions. ``Simulation`` is the reference, ``MaxPlus`` is
fast, ``Closed`` explains.
"""

from __future__ import annotations

from dlprof.model.bounds import bounds, describe
from dlprof.model.calibrate import fit
from dlprof.model.conditions import Conditions
from dlprof.model.interval import relative_error
from dlprof.model.predict import (
    Closed,
    MaxPlus,
    Simulation,
    predict_all,
    predictor_of,
    spread_workers,
)
from dlprof.model.predictor import Predictor, Steady
from dlprof.model.resources import Needs, needs
from dlprof.model.work import Cell, cell_of

__all__ = [
    "Cell",
    "Closed",
    "Conditions",
    "MaxPlus",
    "Needs",
    "Predictor",
    "Simulation",
    "Steady",
    "bounds",
    "cell_of",
    "describe",
    "fit",
    "needs",
    "predict_all",
    "predictor_of",
    "relative_error",
    "spread_workers",
]
