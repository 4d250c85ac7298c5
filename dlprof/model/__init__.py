"""What would happen: predicted from the costs of batches, pure and without numpy.

A calibration (``fit``) holds what batches cost on one machine; ``predict_all`` says what any
configurations would give under any conditions, by a recursion over batches (``maxplus``). The
``bounds`` explain it.
"""

from __future__ import annotations

from dlprof.model.bounds import (
    Bound,
    binding,
    bounds,
    cell_of,
    describe,
    own_cores,
    rate_allowed,
)
from dlprof.model.calibrate import cleaned, fit
from dlprof.model.maxplus import drawn, steady_rate
from dlprof.model.predict import (
    EXTRAPOLATED_ERROR,
    MODEL_ERROR,
    cells_of,
    needs,
    predict_all,
    relative_error,
    spread_workers,
)
from dlprof.model.starting import first_batch_s
from dlprof.model.work import SPEED_ERROR, Cell, Conditions, Means, Work, work_of

__all__ = [
    "EXTRAPOLATED_ERROR",
    "MODEL_ERROR",
    "SPEED_ERROR",
    "Bound",
    "Cell",
    "Conditions",
    "Means",
    "Work",
    "binding",
    "bounds",
    "cell_of",
    "cells_of",
    "cleaned",
    "describe",
    "drawn",
    "first_batch_s",
    "fit",
    "needs",
    "own_cores",
    "predict_all",
    "rate_allowed",
    "relative_error",
    "spread_workers",
    "steady_rate",
    "work_of",
]
