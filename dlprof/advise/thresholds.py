"""The thresholds of recommendations, predictions and findings, each with its meaning and source.

What counts as near the best (``NEAR``), and how sure a certificate is: ``dlprof.stats.belief``.
A rule's plain shape, which nothing was measured for and nothing else asks for, is in the rule.
"""

from __future__ import annotations

from typing import Final

from dlprof.records import Estimate
from dlprof.stats.belief import NEAR

WITHIN = f"within {(1 - NEAR) * 100:.0f}%"  # ``NEAR`` in words

EVEN = 0.5
"""``RISK`` among those that nobody measured: where all are known to 8 %, equals would else be taken
for slower, and the costliest of them be recommended."""

FED_WAIT_FRACTION, PERHAPS_FED_WAIT_FRACTION = 0.02, 0.05
"""A step that waits for data this little counts as fed; a mean above the second is not fed, even
where its interval reaches the first."""

DERIVED_MARGIN = 1.1
"""What a loader must give above the step's need where the two were not measured together and no
model answers: receiving a batch costs more while workers are busy, and adds to the step."""

HIGH, MEDIUM = 0.05, 0.15
"""A recommendation that is surely within so much of the best is called that."""

WORTH_TRYING, PAYS = 1.05, 1.1
"""A change that gains less than the first is not worth a trial, nor a word where it was tried; one
that gains less than the second, or may lose as much, not worth what it costs in memory or order."""


def is_gain(ratio: Estimate) -> bool:
    """Whether a change surely gains, and enough to be worth a word, by its rate over the other."""
    return ratio.value >= WORTH_TRYING and ratio.low is not None and ratio.low > 1


SAME_STEP, SAME_CORES = 0.05, 0.01
"""Steps within 5 % of the measured one, and cores within 0.01 of them, count as measured."""

SHARED, OTHERS = 0.1, 0.15
"""Share of the cores that others keep busy from which a machine counts as shared: background load
that differs by less was measured, and an idle server's own services stay below it. And from which
what is measured at that time is in doubt, as in a trial's noise."""

NOTABLE, STARVED, USED_UP = 0.05, 0.1, 0.9
"""Share of the time that a cause takes from which it is worth a word; of run-queue wait from which
a loader wants more cores than it got; of cores, memory or time from which they are the limit."""

STORAGE_WAITS = 0.2  # share of a batch's time spent waiting from which storage decides

TURNOVER_SPREAD = 0.25
"""Expected relative standard deviation of one epoch turnover: starting the same workers took 32
to 53 ms on a quiet machine, and it is timed once in a trial."""

BUSY = 0.75  # share of time in which a resource works, from which it is the limit

HALF_BUSY = 0.5
"""Workers that are busy for less hold no step up, whatever they do: they could feed it at twice its
speed. Of many, half are then too many."""

OWN_THREADS = 3
"""Threads of a worker that computes in one: itself, its feeder, and the one that hands descriptors
over."""

HELPERS, LEAST_CPU_S, LEAST_PART = 0.25, 0.0015, 0.15
"""CPU of a worker's other threads over that of the one that fetches, from which they count. For one
batch, less is the feeder's: pickling twenty tensors takes half of that. Over what making a batch
takes, its waiting too, less is of threads that are idle for most of the time, and compete for
nothing."""

BOUND_LOG_SD = 0.12
"""How far the closed form is off: 5 to 6 % in the median and 40 % at the 90th percentile, so that a
ratio of two of its figures is given twice this to each side."""

HALF_OF_CORES, SLOWER = 0.5, 0.66
"""Share of the cores from which those that are busy slow each other down, as the CPUs of virtual
machines are mostly halves of cores; and by how much for each further share: with all of them busy
computing takes a third longer than with half. Of three scripts beside their steps, on 2 such CPUs,
loops became 1.46, 1.47 and 1.47 times as fast where 1.98, 1.99 and 1.94 had been predicted."""

STARTS_CPU_S: Final = {"fork": 0.067, "forkserver": 1.8, "spawn": 1.4}
"""CPU seconds to start a worker and to end it, by start method: a fork of a script that has loaded
torch, of which 17 ms are main's (``getrusage``: 0.065 to 0.075 with one, two and six workers that
have nothing to do, on 2 cores free of others); in the others torch is imported once more."""

RESET_S = 0.002  # turn of an epoch with workers that persist: 0.3 to 2 ms

PARALLEL, CROWDS_STEP = 1.2, 0.25
"""Cores that a step keeps busy, from which several threads compute in it. And the share of the
cores that workers would take beyond what they take now, from which such a step on the same cores
slows down: each of its parts waits for the last of its threads, and that one for a worker's turn to
end. Measured on 2 cores: a step of 1.6 ms took 10 ms beside 2 workers that compute, and 47 ms where
another process ran as well."""

LEAST_SEEN, FILLED_UP = 48 << 20, 112 << 20
"""Growth of each worker between trials, from which it is believed where it is steady: pools of
threads were seen to fill up by 46 MB within 540 batches. And from which it is no filling up,
whatever the batches: half as much again as the most that was seen of that."""

ENOUGH_BATCHES, LEAST_BATCHES = 200, 8
"""Batches of each worker after which memory has filled up: seen were 120, in which a worker grew by
73 MB and then no more. And batches that memory is compared over at least."""

PINNED_SPEED = 2.0
"""What pinned memory brings at most where copies overlap nothing: 0.458 against 0.367 ms for
4 MB, and with non_blocking the rest as well."""

REACHED = 0.75  # share of a link's theory that copies of pinned memory reach: 12.4 of 15.75 GB/s

TAIL = 0.05
"""Share of all batches' own time that lies beyond twice the usual, from which some are slow: it is
a quarter where 3 % of them take 15 times as long, and next to nothing where all are alike."""

LARGE_SHARE = 0.3
"""Share of making a batch from which its samples are worth a word. From it, starting workers is so
much of an epoch that it comes before what it explains."""

SENT_S = 0.5  # seconds that sending the dataset to all workers takes, from which it is worth a word

LEAST_RECEIVE_S, LEAST_PUT_S, LIGHT_S = 0.0003, 0.0001, 0.0025
"""What main takes to receive one tensor from a worker, and a worker to put it. Receiving that takes
less than the last, of few tensors, is what any batch from a worker takes: 0.3 ms for one tensor and
0.9 ms for five on a quiet machine, 1.1 ms for one seen on a slow and busy one."""

FEW_TENSORS = 4  # a batch of no more than these is received as quickly as one tensor

MOST_WORKERS = 128
"""Workers that are tried unasked, however long batches wait. So many forked ones take 1.4 to 5.8 GB
(``Preflight``), and 8.6 s of CPU time to start and to end (``STARTS_CPU_S``). Of what waits for
longer than they can fill, threads in ``__getitems__`` fill more for less (``fetch.io``)."""

OTHER_FILES = 64  # open in a training beside what its workers share

MANY = 8  # workers from which a loader that keeps up is worth a word, if they are ``FAR_TOO_MANY``

PREFETCH, PREFETCH_OF_BURSTS, BURSTS = (2, 4), (2, 4, 8), 0.5
"""Torch's own ``prefetch_factor`` and twice it, which are predicted; where batches come in bursts;
and the coefficient of variation of a batch's cost from which they do."""

BY_SPEED, BY_CLOCK, UNKNOWN_SPEED = 1.15, 1.3, 1.5
"""Factors to either side, not measured but assumed: how far kinds of work differ between CPU models
on which the probe's loop is as fast; between those of like clock; and where not even that is
known."""

SAME_RATE = 0.02
"""A difference smaller than this is none, however sure; a part that costs less is no finding."""

SCALES = 0.8  # of what so many more ranks would give, less of which is worth saying why

SLOWER_RANK = 0.15
"""Share of the time that a sample takes on most ranks by which one must take longer for a cause."""

STAYS, IN_STEP = 2 / 3, 0.95
"""Share of what ranks lose by waiting for each other, from which the one that causes it stays the
same; and of steps that no rank ended before the last one had its batch, from which they wait for
each other: some come in between where a step is not synchronized, as in an epoch's last."""
