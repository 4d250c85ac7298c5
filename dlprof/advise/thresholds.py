"""The thresholds of recommendations and predictions, each with its meaning and source.

What counts as near the best (``NEAR``), and how sure a certificate is, stand in ``dlprof.stats``.
"""

from __future__ import annotations

from dlprof.stats import NEAR

WITHIN = f"within {(1 - NEAR) * 100:.0f}%"
"""``NEAR`` in words."""

EVEN = 0.5
"""The same among those that nobody measured: where all are known to 8 %, equals would else be taken
for slower, and the costliest of them be recommended."""

FED_WAIT_FRACTION = 0.02
"""A step that waits for data this little counts as fed."""

PERHAPS_FED_WAIT_FRACTION = 0.05
"""A mean above this is not fed, even where its interval reaches ``FED_WAIT_FRACTION``."""

DERIVED_MARGIN = 1.1
"""What a loader must give above the step's need where the two were not measured together and no
model answers: receiving a batch costs more while workers are busy, and adds to the step."""

HIGH, MEDIUM = 0.05, 0.15
"""A recommendation that is surely within so much of the best is called that."""

MANY_DISAGREE = 0.5
"""Share of the measured configurations outside of what is predicted from which it is said."""

FAR_CORES = 2.0
"""Times the cores of the calibration from which a prediction rests on the model alone; also where
others had most of them."""

SURELY = 0.975
"""Probability from which one is called slower than another: one end of a 95 % interval."""

WORTH_TRYING, PAYS = 1.05, 1.1
"""A change that gains less than the first is not worth a trial, nor a word where it was tried; one
that gains less than the second, not worth what it costs in memory or order."""

SAME_STEP = 0.05
"""Steps within 5 % of the measured one count as measured."""

SAME_CORES = 0.01
"""Cores that are asked for, to within this, are those that were measured."""

SHARED = 0.1
"""Share of the cores that others keep busy from which a machine counts as shared; background load
that differs by less was measured. An idle server's own services stay below it."""

CORES_ARE_THE_LIMIT = 0.9
"""Own cores over available ones from which a loader counts as bound by the CPU."""

WANTS_CORES = 0.1
"""Share of run-queue wait from which a loader counts as wanting more cores than it got."""

LEAST_CORES = 0.5
"""A loader that uses less is not limited by computing."""

TRANSIENT_S = 1.0
"""Seconds that first batches cost a training once, from which that is said."""

STORAGE_WAITS = 0.2
"""Share of a batch's time spent waiting from which storage decides."""

TURNOVER_SPREAD = 0.25
"""Expected relative standard deviation of one epoch turnover: starting the same workers took 32
to 53 ms on a quiet machine, and it is timed once in a trial."""
