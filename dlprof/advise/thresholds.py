"""The thresholds of recommendations, predictions and findings, each with its meaning and source.

What counts as near the best (``NEAR``), and how sure a certificate is, stand in ``dlprof.stats``.
"""

from __future__ import annotations

from typing import Final

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

OTHERS = 0.15
"""The same for what is measured at that time to be in doubt, as in a trial's noise."""

NOTABLE = 0.05
"""Share of the time that a cause takes from which it is worth a word."""

USED_UP = 0.9
"""Share of what there is, of cores, memory or time, from which it is the limit."""

STARVED = 0.1
"""Share of run-queue wait from which a loader wants more cores than it got."""

LEAST_CORES = 0.5
"""A loader that uses less is not limited by computing."""

TRANSIENT_S = 1.0
"""Seconds that first batches cost a training once, from which that is said."""

STORAGE_WAITS = 0.2
"""Share of a batch's time spent waiting from which storage decides."""

TURNOVER_SPREAD = 0.25
"""Expected relative standard deviation of one epoch turnover: starting the same workers took 32
to 53 ms on a quiet machine, and it is timed once in a trial."""

ASIDE = 0.1
"""Share of a loader's waits in other threads or inside of other loaders' waits, from which they
don't add up to the script's time."""

UNSTEADY = 1.5
"""The fastest of a configuration's trials over the slowest, from which one was disturbed."""

CONSUMER_WAITS = 0.1
"""A consumer that waits less than this is not held up: receiving a batch takes main itself
several hundredths of a step of 5 ms, whatever the loader's settings."""

MAIN_SHARE = 0.6
"""Share of the consumer's wait that is main's own work, from which main is the limit."""

NOISY_WAITS = 0.15
"""The same on a machine that others disturb."""

MAIN_OWN_SHARE = 0.3
"""Share of the consumer's wait that is main's own work at least, where it has far more of it."""

FAR_MORE = 1.3
"""Main's work for a batch over that of the others', from which it is the limit."""

BUSY = 0.75
"""Share of time in which a resource works, from which it is the limit."""

OWN_THREADS = 3
"""Threads of a worker that computes in one: itself, its feeder, and the one that hands descriptors
over."""

LEAST_CPU_S = 0.0015
"""CPU of the other threads for one batch, below which it is the feeder's: pickling a batch of
twenty tensors takes half of that."""

LEAST_PART = 0.15
"""The same over what making a batch takes, its waiting too: threads that are idle for most of a
worker's time compete for nothing."""

SHM_ROOM = 0.8
"""Share of /dev/shm that full queues may take."""

HELPERS = 0.25
"""CPU of a worker's other threads over that of the one that fetches, from which they count."""

BOUND_LOG_SD = 0.12
"""How far the closed form is off: 5 to 6 % in the median and 40 % at the 90th percentile, so that a
ratio of two of its figures is given twice this to each side."""

HALF_OF_CORES, SLOWER = 0.5, 0.66
"""Share of the cores from which those that are busy slow each other down, as the CPUs of virtual
machines are mostly halves of cores; and by how much for each further share: with all of them busy
computing takes a third longer than with half. Of three scripts beside their steps, on 2 such CPUs,
loops became 1.46, 1.47 and 1.47 times as fast where 1.98, 1.99 and 1.94 had been predicted."""

NO_LOSS = 0.9
"""Lower end of the interval of a gain, below which it may as well be chance."""

AS_GOOD = 0.95
"""Speed with fewer workers from which they are worth it for the memory that they don't take."""

STARTS_CPU_S: Final = {"fork": 0.035, "forkserver": 1.8, "spawn": 1.4}
"""CPU seconds to start a worker and to end it, by start method: a fork as ``os.times`` has it, of a
script that has loaded torch; in the others torch is imported once more."""

STARTING: Final = {"fork": 2}
MOST_STARTING = 4
"""Workers that start at once: the main process starts one after the other, and a fork is short."""

RESET_S = 0.002
"""Turn of an epoch with workers that persist: 0.3 to 2 ms."""

START_FACTOR = 2.0
"""How far off the time of a start may be, to either side."""

LEAST_LOG = 0.15
"""How far off a promise is at least: two runs of one script differ by as much."""

PARALLEL = 1.2
"""Cores that a step keeps busy, from which several threads compute in it."""

CROWDS_STEP = 0.25
"""Share of the cores that workers would take beyond what they take now, from which a step of
several threads on the same cores slows down: each of its parts waits for the last of its threads,
and that one for a worker's turn to end. Measured on 2 cores: a step of 1.6 ms took 10 ms beside
2 workers that compute, and 47 ms where another process ran as well."""

TAKES_OVER = 0.4
"""Share of that time from which a crowd comes before what the cores are needed for."""

CROWD = 0.75
"""Threads of others that want a core, over the machine's CPUs, from which they are a crowd. Cores
that are lost don't show it: the kernel shares them between sessions rather than threads, so that
one busy neighbor may take as much of two cores as six."""

OVERSUBSCRIBED, WANTS = 1.6, 1.1
"""Cores that the workers' own computing wants over those there are: of the machine, from which
fewer would do, and of an affinity mask, from which it is too narrow."""

LEAST_SEEN = 48 << 20
"""Growth of each worker between trials, from which it is believed where it is steady: pools of
threads were seen to fill up by 46 MB within 540 batches."""

SUSPECTED = 4 << 20
"""Growth of all processes between short trials that is more than the allocator's noise."""

HINTED = 0.5
"""Share of ``LEAST_SEEN`` that short trials must promise, since their slope has its luck."""

BATCHES_OF_NOISE = 2.0
"""Batches more or less in the queues that trials of one configuration differ by."""

ENOUGH_BATCHES = 200
"""Batches of each worker after which memory has filled up: seen were 120, in which a worker grew by
73 MB and then no more."""

FILLED_UP = 112 << 20
"""Growth of each worker that is no filling up, whatever the batches: half as much again as the most
that was seen of that."""

STEADY = 0.85
"""Correlation of memory with batches, from which it does."""

SHORTER, LATE = 0.75, 0.6
"""Share of the longest trial's batches up to which others are shorter; and of its first slope that
memory which goes on growing has beyond these."""

SOON_SHARE, HOUR_S = 0.1, 3600.0
"""Share of the available memory that an epoch, or an hour, would take."""

NAMED = 0.2
"""Share of the growth of memory that a container must explain to be named."""

LEAST_BATCHES = 8
"""Batches that memory is compared over at least."""

PINNED_SPEED = 2.0
"""What pinned memory brings at most where copies overlap nothing: 0.458 against 0.367 ms for
4 MB, and with non_blocking the rest as well."""

REACHED, SLOW_LINK = 0.75, 0.5
"""Share of a link's theory that copies of pinned memory reach: 12.4 of 15.75 GB/s; and share of
that below which a link is slow."""

LEAST_COPY_BYTES = 4 << 20
"""Smaller copies are set by their start, not by the link."""

OTHERS_BUSY = 0.3
"""Share of time with kernels that can't be the trial's, from which others use a card."""

OTHERS_LINK = 0.25
"""Share of a link's theory that another card receives, from which it is worth a word."""

HELD_UP, PILE = 0.4, 1.0
"""Batches that lie ready and out of turn, from which order may hold the loader up; and from which
it shows that it does."""

FAR_SLOWER = 4.0
"""The slowest fetch over the usual one, from which single ones take far longer."""

FEWEST = 20
"""Batches from which it shows whether some are slow."""

TAIL = 0.05
"""Share of all batches' own time that lies beyond twice the usual, from which some are slow: it is
a quarter where 3 % of them take 15 times as long, and next to nothing where all are alike."""

NEARLY_AS_GOOD, HALF_AS_GOOD = 0.93, 0.6
"""Share of the gain of deeper queues that giving up the order must reach: without a pile to be
seen, and with one."""

FULLY_BUSY = 0.92
"""Share of time from which workers don't idle."""

DEEP, DEEPEST = 8, 16
"""The least and the most that deeper queues are tried with."""

MORE_WAITING = 0.4
"""Growth of waiting in ``__getitem__`` over that with one worker, as a share of making a batch,
from which workers wait for each other."""

SPEEDS_UP = 0.7
"""Speed-up by workers over their number, above which they don't hold each other up."""

READS = 0.2
"""Bytes read from storage over bytes of batches, from which waiting may be for storage."""

START_SHARE, START_LEADS = 0.15, 0.3
"""Share of an epoch's time that goes to starting workers, from which it is worth a word; and from
which it comes before what it explains."""

FORK_S = 0.05
"""Start of a few workers by fork."""

SLOW_START_S = 2.0
"""A start that takes longer is worth a word even where workers persist."""

UNSURE_COST = 0.2
"""The most that a cause counts for that may be another one: its severity is never high."""

LARGE_SHARE, COLLATE_SHARE = 0.3, 0.5
"""Share of making a batch from which its samples, and from which collating, is worth a word."""

LEAST_RECEIVE_S, LEAST_PUT_S = 0.0003, 0.0001
"""What main takes to receive one tensor from a worker, and a worker to put it."""

HARDLY_BUSY, HALF_BUSY = 0.35, 0.5
"""Workers that are busy for less hold nobody up, whatever they do: as they are, and beside a step,
which they could then feed at twice its speed. Of many, half are then too many."""

MOST_PROPOSED, PER_CORE = 16, 4
"""Workers, and workers for each core, beyond which no more are proposed, however much they wait."""

FEWER = 1.15
"""Steps in which numbers of workers are tried on a whole script."""

KERNELS = 0.7
"""Share of time with any kernel on the device, below which a step doesn't keep it busy."""

LIGHT_S = 0.0025
"""Receiving that takes less, of few tensors, is what any batch from a worker takes: 0.3 ms for
one tensor and 0.9 ms for five on a quiet machine, 1.1 ms for one seen on a slow
and busy one."""

FEW_TENSORS = 4
"""A batch of no more than these is received as quickly as one tensor."""

FAR_TOO_MANY, MANY = 4, 8
"""Times the workers needed, and workers, from which a loader that keeps up is worth a word."""

SAMPLER_SHARE = 0.4
"""Share of the wait for data in which indices are drawn, from which the sampler holds main up."""

BEARABLE = 0.25
"""Share of the time that receiving takes beside any step."""

FAR_BETTER = 1.5
"""What sharing by name brings for many small tensors; no workers must beat it."""

TENSORS_PER_BATCH = 2
"""Where the probe could not count them: images and labels."""

OTHER_FILES = 64
"""Files and sockets that a training process has open beside its batches."""

LEAST_PREDICTED = 8
"""Workers predicted at least."""

BEYOND = 1.5
"""More workers than would saturate everything else: batches that vary keep some of them idle."""

PREFETCH, PREFETCH_OF_BURSTS = (2, 4), (2, 4, 8)
"""Torch's own ``prefetch_factor`` and twice it, which are predicted; and where batches come in
bursts."""

BURSTS = 0.5
"""Coefficient of variation of a batch's cost from which deeper queues are worth a look."""

PLENTY = 3.0
"""Times the workers that the closed form asks for: more of them keep nothing better fed."""

WAIT_SLACK = 0.25
"""Part of the wait that is asked for which must be left for what workers and cores add to it."""

HARDLY_FED = 0.5
"""Where the least wait is more than this share of the time, the step is not fed by any loader."""

MORE_WORKERS = 2
"""Times the fewest workers: with so many, cores that are short are used better."""

BY_SPEED = 1.15
"""A factor to either side, not measured but assumed: how far kinds of work differ between CPU
models on which the probe's loop is as fast."""

BY_CLOCK = 1.3
"""The same of cores of like clock, between generations."""

UNKNOWN_SPEED = 1.5
"""The same where not even clocks are known."""

ENOUGH_SPEEDS = 2
"""Degrees of freedom from which the speeds of trials show how far they spread."""

TWICE = 2.0
"""Ratio from which a factor reads better than a percentage."""

SAME_RATE = 0.02
"""A difference smaller than this is none, however sure; a part that costs less is no finding."""

WITH_NEIGHBOURS = 0.2
"""Share of the CPUs that neighbours keep busy from which waiting for a core is put down to them."""

SCALES = 0.8
"""Of what so many more ranks would give, less of which is worth saying why."""

COSTS_MORE = 1.15
"""CPU time of a sample with more ranks over that with fewer, from which cores give less each."""

SLOWER_RANK = 0.15
"""Share of the time that a sample takes on most ranks by which one must take longer for a cause."""

FETCHES = 10.0
"""Times the bytes of a sample that most ranks fetch from storage. One that fetches more than that
has its data not in memory, as they have theirs."""
