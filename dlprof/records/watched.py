"""What was seen of loaders at work: in a training script, or in a loop of the user's own."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable, Mapping
from typing import Literal

from dlprof.late import Shown
from dlprof.records.config import Config, Estimate
from dlprof.records.record import empty, record
from dlprof.records.target import LoaderCall
from dlprof.records.trial import Copies, RankFigures, Usage

SCRIPT_SPEC = "run:"  # how the target's text of a watched script begins


@record(frozen=True, slots=True, kw_only=True)
class Durations:
    """How long something took, over all the times that it was seen."""

    count: int  # times that it was seen
    total_s: float  # sum
    mean_s: float  # mean
    median_s: float  # median; like the percentiles, within 3.2% of the true one
    p95_s: float  # 95th percentile
    p99_s: float  # 99th percentile
    max_s: float  # longest


@record(frozen=True, slots=True, kw_only=True)
class StepTimes:
    """When the batches of one rank's loader came, by a clock that all ranks of its machine share.

    Columns of equal length, an entry for each batch that is kept; the first of an epoch is left
    out.
    """

    stride: int = 1  # of so many batches one is kept
    got_s: tuple[float, ...] = ()  # when a batch came, in seconds of the machine's monotonic clock
    wait_s: tuple[float, ...] = ()  # how long its consumer had waited for it
    step_s: tuple[float, ...] = ()  # until it asked for the next one


@record(frozen=True, slots=True, kw_only=True)
class Headroom:
    """What a perfect loader would bring to a loop: its own batches against some in memory.

    Measured in rounds of batches as the loader gives them and copies of some given again, while
    its workers rest. The three parts of a period add up to 1: waiting for data, the step being
    slower beside loading, and the step as it is with the batches in memory.
    """

    rounds: int  # how many
    live_batches: int  # of the loader's own, in all rounds
    replayed_batches: int  # given again, in all rounds
    # All steps that the script made with batches given again, those that were left out of the
    # figures included.
    extra_steps: int
    extra_s: float  # seconds that these took, with the copying and the wait for workers to rest
    period_s: float  # mean seconds of a batch of the loader's own: waiting and step
    step_s: float  # mean seconds of the step with a batch in memory while nothing loads
    speedup: Estimate  # ``period_s / step_s``: throughput with a perfect loader over throughput now
    # Share of the period that waiting for data costs: the wait, and what the step then takes longer
    # than it does when it need not wait, also while nothing loads.
    waiting_fraction: Estimate
    # Share of the period by which the step is slower beside loading; below 0 where noise hides it.
    slowed_fraction: Estimate


@record(frozen=True, slots=True, kw_only=True)
class WatchedLoader(Shown):
    """What was seen of one loader, without looking into it: the clock around ``next()``.

    Loaders that were made at the same place, by the same callers, of the same class, with the same
    settings and over the same dataset count as one: a loader made again in every epoch, for one.
    """

    # Identifies it among the others of a run: its place, and a number where one place made several.
    name: str
    # ``file:line`` that made it, the nearest outside of libraries; empty for a loader that was
    # passed to ``dlprof.watch``.
    place: str = ""
    called_from: str = ""  # ``file:line`` that called that place; empty where nothing did
    kind: str = ""  # the loader's class, ``module.QualName``
    dataset: str = ""  # its dataset's class; empty where it has none
    sampler: str = ""  # its sampler's class; empty where it has none
    config: Config | None = None  # its settings; ``None`` where it isn't a DataLoader
    # Where the script sets them: a plain DataLoader by default.
    call: LoaderCall = dataclasses.field(default_factory=LoaderCall)
    made: int = 1  # loaders that count as this one
    epochs: int = 0  # iterations over it that gave a batch at least
    epochs_completed: int = 0  # those that went to their end
    # Iterations that ended without a batch, though some before gave batches: what orders or makes
    # the samples can be iterated only once, as a generator can.
    epochs_empty: int = 0
    batches: int = 0  # batches that it gave
    waited_s: float = 0.0  # seconds that its consumers spent in ``iter()`` and ``next()``
    stepped_s: float = 0.0  # seconds between a batch's arrival and the next ``next()``
    wait_fraction: float | None = None  # ``waited_s / (waited_s + stepped_s)``
    # The part of ``waited_s`` in which another loader was being waited for already.
    nested_s: float = 0.0
    background_s: float = 0.0  # the part of ``waited_s`` in threads other than the main one
    consumers: int = 0  # threads that took batches
    batches_per_s: float | None = None  # batches over ``waited_s + stepped_s``
    # The same in samples, every batch taken as full; ``None`` where samples come several times.
    samples_per_s: float | None = None
    startup_s: float | None = None  # the first ``iter()`` and its first ``next()``
    # Epoch restart: the ``next()`` that ended an epoch, the ``iter()`` after it and its first
    # ``next()``; what the consumer did between is left out.
    turnover: Durations | None = None
    # ``next()`` of all other batches, but for those that lay ready since a pause of ``--headroom``.
    wait: Durations | None = None
    # Between a batch's arrival and the next ``next()`` on the same iterator and thread.
    step: Durations | None = None
    # When its batches came, where the script is one of several ranks and has ended; ``None``
    # elsewhere.
    step_times: StepTimes | None = None
    # What its consumers copied to the device between its first batches, as far as that was
    # followed; ``None`` where they copied nothing, or it was not.
    copies: Copies | None = None
    # What a perfect loader would bring, where that was asked for; ``None`` elsewhere, and where it
    # could not be measured.
    headroom: Headroom | None = None
    # ``len(loader)`` of each epoch that gave a batch, summed, where torch's own samplers or the
    # script had asked for it; ``None`` elsewhere.
    promised_batches: int | None = None
    # Whether all workers of an iterable dataset gave the same first batches; ``None`` where that
    # could not be seen.
    duplicated: bool | None = None
    # Files that were open when workers were forked and whose position these moved, each in words:
    # the data of several workers is wrong, and one worker's is right. Only those that the dataset
    # or ``collate_fn`` holds; not seen with samplers or a ``worker_init_fn`` of the user's own, nor
    # where one asked which worker it runs in.
    shared_files: tuple[str, ...] = ()
    # Whether anything in the run asked which worker it runs in, as an iterable dataset must that
    # splits its samples between workers; ``None`` where that could not be seen.
    asks_worker: bool | None = None
    # Ranks of the job that get its batches: more than 1 where accelerate dispatches them from rank
    # 0, on each of its ranks.
    loads_for: int = 1
    # Why its workers are not to outlive an epoch unasked, as where the dataset has a ``set_epoch``
    # of its own; empty where nothing is known against it.
    against_persisting: str = ""
    # Files or shards that an iterable dataset is split by: more workers than these get none.
    # ``None`` where it doesn't surely say.
    shards: int | None = None
    # ``next()`` or ``iter()`` that raised an error: neither the end of an epoch, nor Ctrl-C or
    # ``sys.exit``.
    failures: int = 0
    failure: str = ""  # the class of the last exception; empty without one
    first_s: float | None = None  # when it was first iterated, seconds after the start of the run
    last_s: float | None = None  # when it last gave a batch
    unavailable: Mapping[str, str] = empty()  # why something is missing, by field

    @property
    def unknown_sign(self) -> str:
        """How a note of a diagnosis begins that says why no cause of its waits is known."""
        return f"Not known why {self.name} is waited for"

    @property
    def spared_s(self) -> float | None:
        """Seconds of waiting that pauses of ``--headroom`` spared it: batches lay ready then.

        ``None`` where there were no pauses, or what they brought could not be measured.
        """
        if self.headroom is None or self.wait is None:
            return None
        return max(0, self.batches - self.epochs - self.wait.count) * self.wait.mean_s

    @property
    def cost_s(self) -> float:
        """Seconds that a perfect loader would save: it has no waits, no copies, slows no step.

        Waits inside of another loader's are that one's.
        """
        copied_s = 0.0 if self.copies is None else self.copies.exposed_s or 0.0
        found = self.headroom
        slowed_s = 0.0 if found is None else found.slowed_fraction.value * found.period_s
        waited_s = self.waited_s + (self.spared_s or 0.0) - self.nested_s
        return waited_s + (copied_s + max(0.0, slowed_s)) * self.batches


@record(frozen=True, slots=True, kw_only=True)
class TriedSetting:
    """What was tried on a loader that tunes itself, as ``dlprof.tune`` has it."""

    dataset: str  # the class of the loader's dataset
    # When it was decided, in seconds of waiting and steps since the loader's first batch.
    at_s: float
    setting: str  # the loader's arguments
    why: str  # what it was tried for
    # Time a batch before, over that with the setting; ``None`` where it wasn't measured.
    speedup: Estimate | None = None
    result: str  # ``kept``, ``taken back``, or why it was not tried

    @property
    def was_faster(self) -> bool:
        """Whether it is kept as faster, as in two turns of 1.8x, though no interval says so."""
        speed = self.speedup
        faster = speed is not None and speed.is_wide and speed.value > 1 and speed.ends[0] <= 1
        return faster and self.result == "kept"

    @property
    def outcome(self) -> str:
        """The result for people: what is kept without being faster takes no more than before."""
        speed = self.speedup
        equal = self.result == "kept" and speed is not None and speed.ends[0] <= 1
        return "kept: no slower" if equal and not self.was_faster else self.result


ScriptEnding = Literal["running", "returned", "exit", "exception", "interrupted", "os._exit"]


@record(frozen=True, slots=True, kw_only=True)
class WatchedScript:
    """How a watched script went as a whole; written now and then, the last one counts."""

    wall_s: float  # seconds since the script was started
    # How it ended: ``returned`` (its last line was reached), ``exit`` (``sys.exit``), ``exception``
    # (nothing caught it), ``interrupted`` (by Ctrl-C), ``os._exit``; ``running`` where the file was
    # cut off before its end, as by a signal.
    ending: ScriptEnding
    # What the process ended with; ``None`` while it runs or where a signal ended it.
    exit_code: int | None = None
    waited_s: float = 0.0  # seconds in which its main thread waited for a loader
    # ``waited_s`` over ``wall_s`` without what ``--headroom`` took of it (``own_s``).
    wait_fraction: float | None = None
    # What dlprof spent in the script's process while it ran, but for the clock.
    overhead_s: float = 0.0
    # Its number among the processes of one job; ``None`` where it is the only one.
    rank: int | None = None
    world_size: int | None = None  # processes of the job; ``None`` likewise
    # What it and others used of the machine from the import of torch to its end, once it has ended.
    # Of one of several ranks, others are the other ranks, too.
    usage: Usage | None = None
    # What its rank did; in the file of a machine's first rank, all ranks there that ended within
    # half a minute of it. Empty where it is the only process.
    ranks: tuple[RankFigures, ...] = ()
    loaders: int = 0  # how many loaders it used
    # What was tried on its loaders, in the order of these, where they tune themselves.
    tried: tuple[TriedSetting, ...] = ()
    notes: tuple[str, ...] = ()  # what to know about how it was watched

    @property
    def is_cut_short(self) -> bool:
        """Whether its loops would have gone on: their share of its time says nothing of it."""
        return self.ending in {"running", "interrupted", "exception"}


def own_s(wall_s: float, loaders: Iterable[WatchedLoader]) -> float:
    """Seconds of a script without those in which it trained on batches given again.

    All of them where loaders in several threads took more than there are.
    """
    extra_s = math.fsum(each.headroom.extra_s for each in loaders if each.headroom is not None)
    return wall_s - extra_s if 0 < extra_s < wall_s else wall_s
