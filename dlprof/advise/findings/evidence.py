"""What findings are drawn from: the trials of one configuration, worked out.

``Evidence`` holds a profile's trials, each with its part, and the model, and has the figures that
rules ask for, each worked out once; ``Costs`` says where the time of a batch goes.
"""

from __future__ import annotations

import dataclasses
import functools
import math
import operator
import statistics
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, Literal

from dlprof.advise import thresholds as at
from dlprof.advise.situation import threads_of_others
from dlprof.model.bounds import rate_allowed
from dlprof.model.calibrate import cleaned, fit
from dlprof.model.predict import predict_all
from dlprof.model.work import Conditions, Means
from dlprof.records import (
    BY_COPY,
    BatchCosts,
    Calibration,
    Config,
    Copies,
    DatasetWeight,
    Estimate,
    Explanation,
    Integrity,
    Machine,
    Prediction,
    Stage,
    StageName,
    Target,
    Trial,
    Usage,
    WatchedLoader,
    pins_for,
)
from dlprof.records.stages import FORKED, blocked_share, child_of
from dlprof.stats.intervals import typical
from dlprof.units import spread_of

Role = Literal["present", "calibration", "cold", "variant"]
"""What a trial is for, by its settings and purpose: ``present``: those that are explained;
``calibration``: others, traced for the model; ``cold``: with the page cache dropped; ``variant``:
others that would fix a cause."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Observation:
    """A trial, and what it showed."""

    trial: Trial
    explanation: Explanation | None = None  # what a traced one showed, if it did not fail


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class ModelAtStep:
    """The model, at one calibration and one step."""

    calibration: Calibration  # what batches cost
    conditions: Conditions  # the consumer's step; the cores are those that are asked for
    # Answers so far, since each costs milliseconds and rules ask alike.
    asked: dict[tuple[object, ...], Prediction | None] = dataclasses.field(
        default_factory=dict, compare=False, repr=False
    )

    @classmethod
    def at_step(
        cls, calibration: Calibration, step: Stage | float, *, whole_cpu_s: float | None = None
    ) -> ModelAtStep:
        """The model at a step as it was timed: what of it was CPU work slows down with the rest.

        ``step`` is that stage of an instrumented trial, or seconds of one that only waits.
        ``whole_cpu_s`` are CPU seconds of a step in all threads, ``None`` for those of its own.
        """
        if not isinstance(step, Stage):
            conditions = Conditions(cores=1.0, step_s=step, step_spread=spread_of(step))
            return cls(calibration=calibration, conditions=conditions)
        cpu_s = min(step.cpu_s or 0.0, step.mean_s)
        conditions = Conditions(
            cores=1.0,
            step_s=step.mean_s - cpu_s,
            step_cpu_s=cpu_s,
            step_threads=max(1.0, whole_cpu_s / cpu_s) if whole_cpu_s and cpu_s > 0 else 1.0,
        )
        return cls(calibration=calibration, conditions=conditions)

    def __call__(
        self,
        config: Config,
        *,
        cores: float,
        beside: float = 0.0,
        costs: Costs | None = None,
        traced: Explanation | None = None,
    ) -> Prediction | None:
        """The rate of a configuration; ``None`` where the calibration says nothing of it.

        ``beside`` are threads of others that want a core all the time. ``costs`` are what batches
        cost, ``None`` for what was calibrated, and ``traced`` the trial whose batches differ alike.
        """
        key = (config, cores, beside, costs, traced and traced.trial_id)
        if key not in self.asked:
            calibration = self.calibration
            if costs is not None and traced is not None:
                rows = cleaned(traced.costs)
                calibration = dataclasses.replace(
                    calibration,
                    batch_size=config.batch_size,
                    queueing_s=0.0,  # the trial's own waits are as long as its workers made them
                    lock_s=0.0,
                    in_main=costs.shaped(rows, 0),
                    in_workers=costs.shaped(rows, 1),
                    receive={},
                    receive_busy_s={},
                    copy_s=costs.copy_s,
                    pinned_copy_s=None,
                )
            conditions = dataclasses.replace(
                self.conditions, cores=max(cores, _LEAST_CORES), neighbours=beside
            )
            try:
                self.asked[key] = predict_all(calibration, (config,), conditions)[0]
            except ValueError:
                self.asked[key] = None
        return self.asked[key]


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Script:
    """The script that a loader was watched in."""

    wall_s: float  # how long it took, as it runs without ``--headroom``
    loader: WatchedLoader  # what was seen of the loader, by the clock around ``next()``
    # Cores that the main process keeps busy in a step; ``None`` if that isn't known.
    step_cores: float | None = None
    step_threads: float | None = None  # threads that compute in a step; ``None`` likewise
    start_method: str = "fork"  # how workers start where the loader doesn't say so

    @property
    def loop_s(self) -> float:
        """Seconds of all epochs over the loader, as they are without ``--headroom``."""
        return self.loader.waited_s + (self.loader.spared_s or 0.0) + self.loader.stepped_s

    @property
    def adds_up(self) -> bool:
        """Whether the loader's loop is a part of the script's time by itself."""
        seen, aside_s = self.loader, self.loader.nested_s + self.loader.background_s
        # Other threads' waits, and those inside of other loaders', don't add up to its time.
        alone = seen.consumers <= 1 and aside_s <= 0.1 * seen.waited_s
        timed = seen.wait is not None and seen.step is not None
        return timed and alone and self.loop_s <= self.wall_s

    @property
    def epochs_per_start(self) -> float:
        """Epochs that are served by workers that persist."""
        return max(1.0, self.loader.epochs / max(1, self.loader.made))


_LEAST_CORES = 0.05


@dataclasses.dataclass(frozen=True, slots=True)
class StageTime:
    """What one part of loading takes, seconds per batch."""

    cpu_s: float = 0.0  # CPU
    io_s: float = 0.0  # true waiting
    run_queue_s: float = 0.0  # waiting for a core

    def plus(self, other: StageTime, times: float = 1.0) -> StageTime:
        """Both together, the other so many times; no less than nothing."""
        mine, more = dataclasses.astuple(self), dataclasses.astuple(other)
        return StageTime(*(max(0.0, a + times * b) for a, b in zip(mine, more, strict=True)))

    @property
    def wall_s(self) -> float:
        """All three."""
        return self.cpu_s + self.io_s + self.run_queue_s

    @property
    def own_s(self) -> float:
        """What it would take with a core at hand."""
        return self.cpu_s + self.io_s

    @property
    def starved(self) -> float:
        """Share of its time that was spent waiting for a core."""
        return self.run_queue_s / self.wall_s if self.wall_s > 0 else 0.0


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Costs:
    """Where one configuration's time goes, seconds per batch."""

    fetch: StageTime  # of the samples
    collate: StageTime  # of the batch
    put_cpu_s: float  # CPU of a worker beside the thread that fetches
    receive: StageTime  # of main, taking and rebuilding the batch
    dispatch: StageTime  # of main, drawing indices and sending them
    pin_s: float  # of the pin thread
    copy_s: float  # to the device, as far as the step waits for it
    wait_s: float  # of the consumer, in ``next()``
    step_s: float  # of the consumer, working
    period_s: float  # from one batch to the next
    # True waiting in making the batch in the middle: a few slow ones don't move it.
    usual_io_s: float

    def without(self, blocked_s: float) -> Costs:
        """The same where fetching is blocked for so much less."""
        return dataclasses.replace(self, fetch=self.fetch.plus(StageTime(0.0, -blocked_s)))

    @property
    def making(self) -> StageTime:
        """Fetch and collate."""
        return self.fetch.plus(self.collate)

    @property
    def main_s(self) -> float:
        """Of main's own work for the loader, waiting for cores left out."""
        return self.receive.own_s + self.dispatch.own_s

    @property
    def cpu_s(self) -> float:
        """CPU of all processes for one batch, the step left out."""
        return self.making.cpu_s + self.put_cpu_s + self.receive.cpu_s + self.dispatch.cpu_s

    def shaped(self, rows: BatchCosts, workers: int) -> BatchCosts:
        """Batches of these mean costs that differ from each other as some do.

        The model knows main to wait only while it takes a batch in, or makes it without workers.
        """
        draws_io_s = self.dispatch.io_s
        taking_s = draws_io_s if workers and not self.pin_s else 0.0  # which a pin thread does
        making_s = 0.0 if workers else draws_io_s
        means = {
            "cpu_s": self.making.cpu_s,
            "io_s": self.making.io_s + making_s,
            "put_cpu_s": self.put_cpu_s,
            "receive_cpu_s": self.receive.cpu_s,
            "receive_io_s": self.receive.io_s + taking_s,
            "main_cpu_s": self.dispatch.own_s - taking_s - making_s,
        }
        count, columns = len(rows.cpu_s), dict[str, tuple[float, ...]]()
        for name, mean in means.items():
            column = getattr(rows, name)
            whole = math.fsum(column)
            scaled = (mean * count * each / whole for each in column)
            columns[name] = tuple(scaled) if whole > 0 else (mean,) * count
        return dataclasses.replace(rows, **columns)

    def rate(self, config: Config, cores: float) -> float:
        """Batches per second that the model's bounds allow a configuration at these costs."""
        making, draws = self.making, self.dispatch
        means = Means(cpu=making.cpu_s + draws.cpu_s, io=making.io_s + draws.io_s)
        if config.num_workers:
            means = Means(
                cpu=making.cpu_s + self.put_cpu_s,
                io=making.io_s,
                receive_cpu=self.receive.cpu_s,
                receive_io=self.receive.io_s + draws.io_s,
                main_cpu=draws.cpu_s,
            )
        rate = rate_allowed(
            means,
            workers=config.num_workers,
            cores=max(_LEAST_CORES, cores),
            step_s=self.step_s + self.copy_s,
        )
        return min(1e9, rate)


def costs_of(explained: Explanation) -> Costs:
    """The mean costs of an explanation."""
    rows = explained.costs
    making = StageTime(*map(_mean, (rows.cpu_s, rows.io_s, rows.run_queue_s)))
    stages = {stage.name: stage for stage in explained.stages}
    seconds = {name: stage.mean_s for name, stage in stages.items()}
    work = {name: _work(stage) for name, stage in stages.items()}
    fetch, collate = _parted(making, stages.get("fetch"), stages.get("collate"))
    receive = work.get("rebuild", StageTime())
    # The worker's part in handing over waits for a core as often as the worker, or its thread that
    # hands over, or main in the same crowd: main sees that as waiting, though it is for a core.
    crowd = StageTime(receive.cpu_s, 0.0, receive.run_queue_s)
    starved = max(making.starved, work.get("serialise", StageTime()).starved, crowd.starved)
    if rows.receive_cpu_s:
        taken = _mean(rows.receive_cpu_s), _mean(rows.receive_io_s)
        receive = StageTime(*taken, receive.run_queue_s)
    return Costs(
        fetch=fetch,
        collate=collate,
        put_cpu_s=_mean(rows.put_cpu_s),
        receive=receive.plus(StageTime(0.0, -starved * receive.io_s, starved * receive.io_s)),
        dispatch=_drawn(stages.get("dispatch"), rows, crowd),
        pin_s=seconds.get("pin") or _mean(rows.pin_s),
        copy_s=seconds.get("copy", 0.0),
        wait_s=seconds.get("wait", 0.0),
        step_s=seconds.get("step", 0.0),
        period_s=explained.window_s / max(1, explained.batches),
        usual_io_s=statistics.median(rows.io_s) if rows.io_s else 0.0,
    )


def _drawn(stage: Stage | None, rows: BatchCosts, taking: StageTime) -> StageTime:
    """What drawing and sending indices takes: no more CPU than all of main's but for batches.

    The rest of it is waiting, as of a sampler that reads, but for as long as main waits for a core
    at each second of CPU in taking batches.
    """
    if stage is None or stage.cpu_s is not None or not rows.main_cpu_s:
        return StageTime(_mean(rows.main_cpu_s)) if stage is None else _work(stage)
    cpu_s = min(stage.mean_s, _mean(rows.main_cpu_s))
    queue_s = cpu_s * taking.run_queue_s / taking.cpu_s if taking.cpu_s > 0 else 0.0
    queue_s = min(stage.mean_s - cpu_s, queue_s)
    return StageTime(cpu_s, stage.mean_s - cpu_s - queue_s, queue_s)


def _mean(values: Sequence[float]) -> float:
    return statistics.fmean(values) if values else 0.0


def _parted(
    making: StageTime, fetch: Stage | None, collate: Stage | None
) -> tuple[StageTime, StageTime]:
    """Fetch and collate, by their own figures or else by their lengths."""
    own = StageTime() if fetch is None else _work(fetch)
    known = fetch is not None and fetch.cpu_s is not None
    if fetch is None or collate is None:
        return (own if known else making), StageTime()
    if making.wall_s <= 0 or (known and collate.cpu_s is not None):
        return own, _work(collate)
    share = collate.mean_s / max(1e-12, fetch.mean_s + collate.mean_s)
    first = own if known else making.plus(making, -share)
    return first, making.plus(first, -1.0)


def _work(stage: Stage) -> StageTime:
    """A stage's parts; where they aren't known, all of it counts as CPU."""
    if stage.cpu_s is None:
        return StageTime(stage.mean_s)
    queue_s = stage.run_queue_s or 0.0
    io_s = max(0.0, stage.mean_s - stage.cpu_s - queue_s) if stage.io_s is None else stage.io_s
    return StageTime(stage.cpu_s, io_s, queue_s)


_USAGE = (
    *("own_cpu_cores", "available_cpu_cores", "fair_cpu_cores", "other_cpu_cores"),
    *("other_runnable", "run_queue_wait_fraction", "throttled_fraction"),
    *("memory_pressure_fraction", "read_bytes_per_s", "cache_hit_fraction", "pss_peak_bytes"),
)
_FIGURES: Final = {
    "batches_per_epoch": "epoch_batches",
    "batches_per_s": "rate",
    "wait_fraction": "wait",
    "main_share_of_wait": "main_share",
    "worker_busy_fraction": "busy",
    "worker_threads": "most_threads",
    "starved_fraction": "starved",
    "usable_cores": "cores",
    "other_cpu_cores": "others",
    "wanted_cores": "demand",
    "idle_workers": "idle_workers",
    "start_method": "start_method",
    "batch_bytes": "batch_bytes",
    "making_s": "costs.making.wall_s",
    "waiting_s": "costs.making.io_s",
    "fetch_s": "costs.fetch.own_s",
    "fetch_cpu_s": "costs.fetch.cpu_s",
    "fetch_waiting_s": "costs.fetch.io_s",
    "collate_s": "costs.collate.own_s",
    "collate_cpu_s": "costs.collate.cpu_s",
    "receive_s": "costs.receive.own_s",
    "receive_cpu_s": "costs.receive.cpu_s",
    "dispatch_s": "costs.dispatch.own_s",
    "pin_s": "costs.pin_s",
}
"""Where a figure of a finding's evidence comes from that bears another name there."""

Limit = Literal["consumer", "main", "pin", "workers", "waiting", "unknown"]
"""``workers``: making batches (in main, without workers); ``waiting``: nobody is busy enough, so
that they wait for each other."""


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)  # itself is what a cache knows it by
class Evidence:
    """Everything that is known of one configuration of one target, and what follows from it."""

    machine: Machine  # where it was measured; of several ranks, what one of them can count on
    target: Target  # what was loaded
    config: Config  # the configuration that is explained, canonical
    accelerator: str | None = None  # torch's name of it; ``None`` without one
    observations: tuple[Observation, ...] = ()  # in the order of measuring
    predict: ModelAtStep | None = None  # the model; ``None`` where there is none
    step_s: float = 0.0  # length of the consumer's step; 0 for none
    # Whether the consumer does anything (a step that is a function has no stated length); without,
    # it only waits, and its share of waiting says nothing.
    has_step: bool = False
    # Whether the dataset reads files; ``None`` where that isn't known.
    reads_files: bool | None = None
    # Where it was watched; ``None`` for a loader that was measured by itself.
    script: Script | None = None
    # What the dataset weighs; ``None`` where it was not weighed.
    weight: DatasetWeight | None = None
    ranks: int = 1  # how many share the machine; what others use of it is seen of the whole machine
    # The rate of a configuration over that of this one, as all views of the run print it; ``None``
    # where trials are compared by themselves, as while it is measured.
    gain: Callable[[Config], Estimate | None] | None = None
    # Batches per second of this one within epochs, likewise: causes count restarts themselves.
    shown_rate: float | None = None

    @classmethod
    def of_trial(cls, machine: Machine, target: Target, trial: Trial) -> Evidence:
        """Of a single trial: what it shows of memory and data."""
        seen = (Observation(trial=trial),)
        return cls(machine=machine, target=target, config=trial.config, observations=seen)

    @classmethod
    def of_training(
        cls,
        machine: Machine,
        target: Target,
        explanation: Explanation,
        *,
        plain: Trial,
        traced: Trial,
        whole_cpu_s: float | None = None,
    ) -> Evidence:
        """Of a training that was watched, with the model fitted to what its batches cost.

        ``plain`` is it as a trial that was not touched, ``traced`` as the one that the explanation
        is of; ``whole_cpu_s`` are a step's CPU seconds in all threads, ``None`` for its own.
        """
        one = cls.of_trial(machine, target, plain)
        seen = Observation(trial=traced, explanation=explanation)
        calibration, step = fit([explanation], [plain, traced]), explanation.stage("step")
        known = calibration.in_main is not None or calibration.in_workers is not None
        predict = None
        if step is not None and known:
            predict = ModelAtStep.at_step(calibration, step, whole_cpu_s=whole_cpu_s)
        both = (*one.observations, seen)
        return dataclasses.replace(one, observations=both, predict=predict, has_step=True)

    @property
    def remade(self) -> bool:
        """Whether each epoch has a loader of its own, with which its workers end."""
        loader = None if self.script is None else self.script.loader
        return loader is not None and loader.made >= max(2, loader.epochs)

    @property
    def persists(self) -> bool:
        """Whether workers outlive their epoch, and with them what they keep."""
        return self.config.persistent_workers and not self.remade

    @property
    def calibration(self) -> Calibration | None:
        """What the model was fitted to; ``None`` without one."""
        return None if self.predict is None else self.predict.calibration

    def why_fixed(self, config: Config) -> tuple[str, ...]:
        """Why the target can't be set to a configuration, a reason each; empty where it can."""
        own = self.target.attainable(config, has_accelerator=pins_for(self.accelerator))
        wrong = (name for name in self.target.fixed if getattr(own, name) != getattr(config, name))
        return tuple(dict.fromkeys(self.target.fixed[name] for name in wrong))

    def role(self, trial: Trial) -> Role:
        """What a trial was for."""
        if trial.purpose == "cold":
            return "cold"
        if trial.config == self.config:
            return "present"
        return "calibration" if trial.purpose == "explain" else "variant"

    def trials(self, *roles: Role) -> tuple[Trial, ...]:
        """All trials of some roles, failed and instrumented ones too; of none, all."""
        trials = (each.trial for each in self.observations)
        return tuple(each for each in trials if not roles or self.role(each) in roles)

    @functools.cached_property
    def integrity(self) -> Integrity:
        """What its trials say of the data of any configuration."""
        return Integrity.of_trials(self.trials(), self.explanations(), self.target)

    def plain(self, *roles: Role) -> tuple[Trial, ...]:
        """Uninstrumented trials with a rate."""
        return tuple(
            trial
            for trial in self.trials(*roles)
            if trial.purpose != "explain" and trial.outcome == "completed"
            if trial.batches_per_s is not None and trial.batches_per_s.value > 0
        )

    def explanations(self) -> tuple[Explanation, ...]:
        """Those of the instrumented trials whose hooks could be put in."""
        return tuple(each.explanation for each in self.observations if each.explanation)

    @functools.cached_property
    def explained(self) -> Explanation | None:
        """The last explanation of the configuration itself."""
        found = [each for each in self.explanations() if each.config == self.config]
        return found[-1] if found else None

    @functools.cached_property
    def costs(self) -> Costs | None:
        """From that, copies as plain trials timed them; ``None`` without it."""
        if self.explained is None:
            return None
        costs, copies = costs_of(self.explained), self.copies
        exposed_s = None if copies is None else copies.exposed_s
        return costs if exposed_s is None else dataclasses.replace(costs, copy_s=exposed_s)

    @functools.cached_property
    def _shown(self) -> tuple[Trial, ...]:
        """Its own trials that show what it uses."""
        own = (each for each in self.trials("present") if each.outcome == "completed")
        return self.plain("present") or tuple(own)

    @functools.cached_property
    def usage(self) -> Usage:
        """Medians over its own trials; of memory, the peak."""
        usages, figures = [trial.usage for trial in self._shown], dict[str, Any]()
        for name in _USAGE:
            known = [each for usage in usages if (each := getattr(usage, name)) is not None]
            if known:
                figures[name] = max(known) if "peak" in name else statistics.median(known)
        return Usage(**figures, gpu=usages[-1].gpu if usages else ())

    @functools.cached_property
    def rate(self) -> float | None:
        """Batches per second, uninstrumented where that was measured."""
        if self.shown_rate is not None:
            return self.shown_rate
        rates = (trial.batches_per_s for trial in self.plain("present"))
        rate = typical(each.value for each in rates if each is not None)
        if rate is None and self.explained is not None and self.explained.window_s > 0:
            return self.explained.batches / self.explained.window_s or None
        return rate

    @functools.cached_property
    def wait(self) -> float | None:
        """Share of time that the consumer waits: 1 for one that does nothing else."""
        if not self.has_step:
            return 1.0
        if waits := self._waits:
            return statistics.median_low(waits)  # of two that disagree, the one less disturbed
        return None if self.explained is None else self.explained.wait_fraction

    @property
    def mean_wait(self) -> float | None:
        """The same over all its trials, as all views of the run print it."""
        return statistics.fmean(self._waits) if self.has_step and self._waits else self.wait

    @property
    def _waits(self) -> list[float]:
        plain = self.plain("present")
        return [trial.wait_fraction for trial in plain if trial.wait_fraction is not None]

    @property
    def trial_ids(self) -> tuple[str, ...]:
        """Of the trials that the figures come from."""
        ids = [trial.id for trial in self.plain("present") or self.trials("present")]
        ids += [] if self.explained is None else [self.explained.trial_id]
        return tuple(dict.fromkeys(ids))

    @functools.cached_property
    def copies(self) -> Copies | None:
        """Copying to the device, in the trial where it held the step up as long as it mostly does.

        ``None`` where nothing was copied.
        """
        copied = [trial.copies for trial in self._shown if trial.copies is not None]
        timed = [each for each in copied if each.exposed_s is not None]
        timed.sort(key=lambda each: each.exposed_s or 0.0)
        return timed[(len(timed) - 1) // 2] if timed else copied[-1] if copied else None

    @property
    def fetched_by(self) -> str:
        """The method of the dataset that gives samples."""
        return "__iter__" if self.target.kind == "iterable" else "__getitem__"

    @property
    def workers(self) -> int:
        """``num_workers``."""
        return self.config.num_workers

    @property
    def start_method(self) -> str:
        """How its workers start, whoever says so."""
        said = (self.config, self.target.own_config, self.script, self.weight)
        methods = (each.start_method for each in said if each is not None)
        return next(filter(None, methods), self.target.start_method)

    @property
    def on_linux(self) -> bool:
        """Whether it was measured on Linux: only there a process chooses its CPUs by ``os``."""
        return self.machine.platform.startswith("Linux")

    @property
    def may_fork(self) -> bool:
        """Whether its workers, which start otherwise, may be forked: macOS's libraries mind."""
        return self.on_linux and self.start_method != "fork" and self.target.fork_safe

    @property
    def cores(self) -> float:
        """Cores that the job may use."""
        return max(0.1, self.machine.usable_cores)

    @property
    def available(self) -> float:
        """Cores that were available beside others."""
        return self.usage.available_cpu_cores or self.cores

    @property
    def busy(self) -> float | None:
        """Mean share of time that workers fetch and collate; ``None`` where that isn't known."""
        if self.explained is None or not self.explained.workers:
            return None
        workers = self.explained.workers  # those that made a batch
        total = math.fsum(worker.busy_fraction for worker in workers)
        return total / max(len(workers), self.explained.config.num_workers)

    @property
    def idle_workers(self) -> int:
        """Workers that made no batch while others did."""
        return 0 if self.explained is None else self.workers - self.explained.fed_workers

    @property
    def batch_bytes(self) -> float | None:
        """Tensor data of a batch: as measured, calibrated or probed."""
        sizes = [trial.batch_bytes for trial in self.trials() if trial.batch_bytes]
        if sizes:
            return statistics.median(sizes)
        calibration = self.calibration
        known = None if calibration is None else calibration.batch_bytes
        return known or self.target.batch_bytes

    def fits_shared_memory(self, config: Config) -> bool:
        """Whether full queues of a configuration find room in /dev/shm, as far as it is known."""
        room, held = self.machine.shm_available_bytes, config.queued_bytes(self.batch_bytes)
        return room is None or held is None or held <= 0.8 * room

    @property
    def others(self) -> float:
        """Cores that others kept busy of those it may use; 0 where that isn't known."""
        share = self.cores - (self.usage.available_cpu_cores or 0.0)  # of a rank, as it lacks it
        return max(0.0, min((self.usage.other_cpu_cores or 0.0) / self.ranks, share))

    @property
    def to_each(self) -> str:
        """What is said behind a part of the machine that each of several ranks has."""
        return " to each rank" if self.ranks > 1 else ""

    @property
    def beside(self) -> float:
        """Threads of others that want a core all the time; 0 on a machine that isn't shared.

        Beside others a loader that mostly waits has hardly more cores than it uses, and would get
        more if it computed more: what it had (``available``) is no limit of one that waits less.
        Also 0 beside launched ranks, from whose use that of others is not kept apart here.
        """
        if self.others < at.SHARED * self.cores or any(t.ranks for t in self.plain("present")):
            return 0.0
        return threads_of_others(self.usage, self.machine) or 0.0

    @property
    def is_noisy(self) -> bool:
        """Whether most of the configuration's own trials were disturbed, or they disagree."""
        plain = self.plain("present")
        return 2 * sum(trial.noisy for trial in plain) > len(plain) or self.disagrees

    @property
    def disagrees(self) -> bool:
        """Whether the configuration's own trials differ by more than they do by themselves."""
        return self.unsteady >= 1.5

    @property
    def unsteady(self) -> float:
        """The fastest of the configuration's own trials over the slowest like it; 1 or more.

        Others that come and go needn't be seen to use a core: a virtual machine may be held. The
        first trial may have found its files cold.
        """
        plain = self.plain("present")[1 if self.reads_files else 0 :]
        spans = [1.0]
        for whole in (False, True):
            alike = [each.batches_per_s for each in plain if each.whole_epochs is whole]
            rates = [rate.value for rate in alike if rate is not None and rate.value > 0]
            spans.append(max(rates) / min(rates) if rates else 1.0)
        return max(spans)

    def costs_at(self, num_workers: int) -> Costs | None:
        """What the calibration with so many workers showed."""
        explained = self.explanations()
        found = [each for each in explained if each.config.num_workers == num_workers]
        return costs_of(found[-1]) if found else None

    @property
    def epoch_batches(self) -> int | None:
        """Batches in an epoch; ``None`` where the target doesn't say."""
        return self.target.epoch_batches(self.config.batch_size)

    @functools.cached_property
    def filling_s(self) -> float:
        """Seconds by which a worker's first fetch of an iterable takes longer than others; else 0.

        So long ``__iter__`` fetches before it yields, as to fill a shuffle buffer: in each epoch,
        though workers persist. What a map-style dataset opens at first, such a worker keeps.
        """
        first_s = None if self.explained is None else self.explained.first_fetch_s
        usual = self.stage("fetch")
        if first_s is None or usual is None or self.target.kind != "iterable":
            return 0.0
        return max(0.0, first_s - usual.mean_s)

    @property
    def limit(self) -> Limit:
        """The resource that sets the rate: settled first, so that no two causes claim one time."""
        # Receiving a batch takes main several hundredths of a step of 5 ms, whatever the settings.
        held_up = 0.15 if self.is_noisy else 0.1
        if self.has_step and self.wait is not None and self.wait <= held_up:
            return "consumer"
        costs = self.costs
        if costs is None:
            return "unknown"
        if not self.workers:
            return "workers"
        pinning = costs.pin_s / max(1e-12, costs.period_s)
        main, busy = self.main_share, self.busy or 0.0
        if pinning >= at.BUSY and pinning >= main:
            return "pin"
        # Main's work against each worker's and that of all cores, as it would be with cores at
        # hand, so that it shows on a crowded machine too. Of the consumer's wait most is main's own
        # work, or it has far more to do than they and that is a notable part.
        each_s = (costs.making.own_s + costs.put_cpu_s) / self.workers
        far_more = costs.main_s >= 1.3 * max(each_s, costs.cpu_s / self.cores)
        if (main >= 0.6 and main > busy) or (far_more and main >= at.LARGE_SHARE):
            return "main"
        return "workers" if busy >= at.BUSY else "waiting"

    @property
    def main_share(self) -> float:
        """Share of the consumer's wait in which main itself works for the loader."""
        if self.costs is None or self.costs.wait_s <= 0:
            return 0.0
        return min(1.0, self.costs.main_s / self.costs.wait_s)

    @property
    def starved(self) -> float:
        """Share of making a batch spent waiting for a core."""
        if self.costs is None or self.costs.making.wall_s <= 0:
            # None was followed. What is blocked neither runs nor waits for a core.
            share = self.usage.run_queue_wait_fraction or 0.0
            return share * min(1.0, self.runnable / max(1, self.workers))
        return self.costs.making.starved

    @property
    def runnable(self) -> float:
        """The loader's threads that run or could, on average."""
        return self.usage.runnable(self.usage.own_cpu_cores)

    @property
    def demand(self) -> float:
        """Cores that making batches would use if there were enough: workers less their waiting."""
        costs = self.costs
        if costs is None or costs.making.own_s <= 0:
            return 0.0
        making, put_s = costs.making, costs.put_cpu_s
        active = max(1, self.workers - self.idle_workers)
        # A feeder pickles in turns with the thread that fetches; a pool of threads runs beside it.
        beside = self.helpers_share >= at.HELPERS
        return active * (making.cpu_s + put_s) / (making.own_s + (0.0 if beside else put_s))

    @property
    def most_threads(self) -> int:
        """Threads of the worker that has most; 0 where none were counted."""
        workers = () if self.explained is None else self.explained.workers
        return max((worker.threads or 0 for worker in workers), default=0)

    @property
    def helpers_share(self) -> float:
        """CPU of workers' other threads over that of the fetching one, where they are many."""
        costs = self.costs
        if costs is None or self.explained is None or costs.making.cpu_s <= 0:
            return 0.0
        beside_s, threads_s = costs.put_cpu_s, self.explained.fetch_threads_cpu_s
        if self.children_s and threads_s is not None:  # child processes are no threads
            beside_s = min(beside_s, threads_s)
        handed = self.stage("serialise")
        beside_s -= (handed and handed.cpu_s) or 0.0  # a feeder that copies a batch is no pool
        if beside_s < max(at.LEAST_CPU_S, at.LEAST_PART * costs.making.own_s):
            return 0.0  # a feeder's pickling, or next to nothing beside what the worker waits for
        watched = self.start_method in BY_COPY  # by a thread of dlprof's
        many = self.most_threads > at.OWN_THREADS + watched
        return beside_s / costs.making.cpu_s if many else 0.0

    @property
    def children_s(self) -> float:
        """CPU time of child processes in making a batch, which waits for them meanwhile."""
        return 0.0 if self.explained is None else self.explained.children_cpu_s or 0.0

    @property
    def child(self) -> str | None:
        """The command of the child process that looks saw compute most; ``None`` without one."""
        seen = {child_of(wait): share for wait, share in self.fetching_waits.items()}
        return max(seen.keys() - {None, FORKED}, key=seen.__getitem__, default=None)

    @property
    def waits_for_gil_s(self) -> float | None:
        """Blocked time in making a batch that is a wait for the GIL; ``None`` if unknown."""
        parts = [self.stage("fetch"), self.stage("collate")]
        known = [stage.gil_s for stage in parts if stage is not None and stage.gil_s is not None]
        return math.fsum(known) if known else None

    @property
    def worker_waits(self) -> Mapping[str, float]:
        """What the workers of the traced trial were seen at: shares of the looks at them."""
        if self.explained is not None and self.explained.worker_waits:
            return self.explained.worker_waits  # of a script
        return {} if self._traced_usage is None else self._traced_usage.worker_waits

    @property
    def fetching_waits(self) -> Mapping[str, float]:
        """The same of what makes batches: of the main process without workers."""
        usage = self._traced_usage
        return self.worker_waits if self.workers or usage is None else usage.main_waits

    @property
    def _traced_usage(self) -> Usage | None:
        traced_id = None if self.explained is None else self.explained.trial_id
        return next((trial.usage for trial in self.trials() if trial.id == traced_id), None)

    def blocked_s(self, wait: str) -> float:
        """Seconds of fetching a batch that are blocked on one thing, as ``worker_waits`` names it.

        Looks share out the blocked time: whoever wakes up, or waits for a core, seems to run.
        """
        waits = self.worker_waits
        blocked = blocked_share(waits)
        if self.costs is None or blocked <= 0:
            return 0.0
        return self.costs.fetch.io_s * min(1.0, waits.get(wait, 0.0) / blocked)

    @property
    def gil_share(self) -> float:
        """Share of making a batch that is known to be a wait for the GIL."""
        if self.costs is None or self.costs.making.wall_s <= 0:
            return 0.0
        return min(1.0, (self.waits_for_gil_s or 0.0) / self.costs.making.wall_s)

    @property
    def gil_s(self) -> float:
        """Blocked time in making a batch that is, or may be, a wait for the GIL, at most.

        Other threads of the process held it for no longer than they computed. A worker's feeder
        and what hands descriptors over release it while they copy.
        """
        explained, costs, seen_s = self.explained, self.costs, self.waits_for_gil_s
        if explained is None or costs is None:
            return 0.0
        if seen_s is not None:
            return min(costs.making.io_s, seen_s)
        watched = self.start_method in BY_COPY
        if self.workers and self.most_threads <= at.OWN_THREADS + watched:
            return 0.0
        return min(costs.making.io_s, explained.fetch_threads_cpu_s or 0.0)

    @property
    def one_thread(self) -> StageTime | None:
        """What making a batch takes in a worker, where torch computes in one thread."""
        made = [each.making for count in (1, 2) if (each := self.costs_at(count)) is not None]
        return max(made, key=lambda each: each.cpu_s, default=None)

    @property
    def pool_s(self) -> float:
        """CPU time of main in making a batch, in which it may spin for other threads of a pool.

        They spin for each other, so that each takes as much: what a worker shows to be needless, or
        else all of it where cores are short, so that one waits long for the next. For threads that
        work by themselves main would be blocked.
        """
        explained, costs, one = self.explained, self.costs, self.one_thread
        if self.workers or explained is None or costs is None:
            return 0.0
        made, beside_s = costs.making, explained.fetch_threads_cpu_s or 0.0
        if one is not None:
            return min(beside_s, max(0.0, made.cpu_s - one.cpu_s))
        spins = self.starved >= at.LARGE_SHARE and made.io_s <= made.cpu_s
        return min(beside_s, made.cpu_s) if spins else 0.0

    def having(self, **changes: Any) -> Config:
        """The configuration with other settings."""
        if changes.get("num_workers") and self.target.persisting == (True,):
            changes = {"persistent_workers": True, **changes}  # else they lose what they keep
        return dataclasses.replace(self.config, **changes).canonical()

    def figures(self, names: str, given: Mapping[str, Any]) -> dict[str, Any]:
        """Figures as evidence of a finding, in the order of their names, the rest behind."""
        found: dict[str, Any] = {**dict.fromkeys(names.split()), **given}
        owners = (self.config, self.machine, self.target, self.usage)
        for name in found.keys() - given.keys():
            if name in _FIGURES:
                found[name] = operator.attrgetter(_FIGURES[name])(self)
            else:
                found[name] = getattr(next(each for each in owners if hasattr(each, name)), name)
        return found

    def stage(self, name: StageName) -> Stage | None:
        """A stage of the configuration that is explained."""
        return None if self.explained is None else self.explained.stage(name)
