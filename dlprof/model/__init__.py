"""What would happen: predicted from the costs of batches, pure and without numpy.

A calibration (``fit``) holds what batches cost on one machine; ``predict_all`` says what any
configurations would give under any conditions, by a recursion over batches (``maxplus``). The
``bounds`` explain it.
"""

from dlprof.model.bounds import binding as binding
from dlprof.model.bounds import bounds as bounds
from dlprof.model.bounds import cell_of as cell_of
from dlprof.model.bounds import describe as describe
from dlprof.model.bounds import own_cores as own_cores
from dlprof.model.bounds import rate_allowed as rate_allowed
from dlprof.model.calibrate import cleaned as cleaned
from dlprof.model.calibrate import fit as fit
from dlprof.model.maxplus import drawn as drawn
from dlprof.model.maxplus import steady_rate as steady_rate
from dlprof.model.predict import EXTRAPOLATED_ERROR as EXTRAPOLATED_ERROR
from dlprof.model.predict import MODEL_ERROR as MODEL_ERROR
from dlprof.model.predict import cells_of as cells_of
from dlprof.model.predict import first_batch_s as first_batch_s
from dlprof.model.predict import needs as needs
from dlprof.model.predict import predict_all as predict_all
from dlprof.model.predict import relative_error as relative_error
from dlprof.model.predict import spread_workers as spread_workers
from dlprof.model.work import SPEED_ERROR as SPEED_ERROR
from dlprof.model.work import Cell as Cell
from dlprof.model.work import Conditions as Conditions
from dlprof.model.work import Means as Means
from dlprof.model.work import work_of as work_of
