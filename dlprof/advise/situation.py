"""What settings are wanted for: what the user asks, as a run resolves it."""

from __future__ import annotations

import dataclasses
import math
import re
import statistics
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from dlprof.advise import thresholds as at
from dlprof.errors import UsageError
from dlprof.records import (
    DATA_FAULTS,
    DRAWING,
    RECEIVING,
    Calibration,
    Config,
    Constraints,
    CoreSpeeds,
    Machine,
    Run,
    Target,
    Trial,
    Usage,
)
from dlprof.records.record import record
from dlprof.stats.belief import SPEED_EXPONENT, SPEED_EXPONENT_SD
from dlprof.stats.intervals import typical
from dlprof.units import format_duration, parse_step, spread_of

if TYPE_CHECKING:
    from dlprof.model.work import Conditions


_CLOCK = re.compile(r"([0-9]{1,2}(?:\.[0-9]{1,3})?)\s*GHz\b", re.IGNORECASE)


_BETTER = "give --speed, or --machine with what dlprof machine --save writes there"


@record(frozen=True, slots=True, kw_only=True)
class CoreSpeed:
    """Speed of a core relative to that where the calibration was taken."""

    value: float  # 0.8 for a core that takes 1.25 times as long
    # The true one may be this many times smaller or larger; 1 where it is known.
    factor: float = 1.0
    doubt: str = ""  # where the value comes from, if that is not what was given; empty otherwise


@record(frozen=True, slots=True, kw_only=True)
class Situation:
    """What the settings are wanted for."""

    run: Run  # what the answer is drawn from
    # The limits and the ranks, with the step that was measured filled in where none is asked.
    constraints: Constraints
    machine: Machine  # whose limits hold
    extrapolated: bool  # whether that is another machine than the one measured
    # Whether trials of the run show the same: its machine, cores, step and background load.
    as_measured: bool
    by_model: bool  # whether they don't, and a calibration answers
    step_measured: bool  # whether the trials ran with the step that is asked for
    # These, and ``copy_scale``, are as ``conditions`` has them; its ``step_spread`` is that of the
    # constraints.
    step_s: float
    step_cpu_s: float
    cores: float
    neighbours: float
    fair_cores: float | None
    storage_bytes_per_s: float | None
    speed: CoreSpeed  # of its cores
    speed_error: float | None  # how far that spreads; ``None`` where trials don't show it
    copy_scale: float
    target: Target  # what is loaded; how long its epochs are as trials saw it, where it doesn't say
    present: Config | None  # what the target's own DataLoader is set to now, as a sweep measures it
    # Whether ranks begin each step together: where they did in the trials; under DDP all that have
    # a step do, and did not only where these ran just so.
    barrier: bool = False
    notes: tuple[str, ...] = ()  # what was assumed, one sentence each

    @classmethod
    def of(
        cls,
        run: Run,
        constraints: Constraints | None = None,
        machine: Machine | None = None,
        *,
        storage_bytes_per_s: float | None = None,
    ) -> Situation:
        """What a run makes of a question; what is not asked for is as it was in the run.

        A step of 0 is none. ``storage_bytes_per_s`` is what the storage gives to all ranks of all
        nodes together.
        """
        header, launched = run.header, run.header.launched
        asked = constraints or Constraints(ranks=launched)
        there, calibrated = machine or header.machine, not _want_of_calibration(run)
        other = there.fingerprint != header.machine.fingerprint
        steps, whole_s = measured_step(run), _positive(header.settings.get("step_s"))
        seen_s = whole_s or _step_seen(run)
        step_s = asked.step_s if calibrated or seen_s else _positive(asked.step_s)
        had, spread = header.settings.get("step_spread"), asked.step_spread
        spread = had if step_s is None else spread
        if spread is not None:
            spread = spread_of(parse_step(str(spread)))  # a file may come from elsewhere
        same_step = step_s is None or (
            not header.settings.get("step_callable")
            and (spread or None) == (had or None)
            and math.isclose(step_s, whole_s or 0.0, rel_tol=at.SAME_STEP)
        )
        cores = there.usable_cores if asked.cores is None else asked.cores
        # Who else will be on other cores, nobody has seen.
        same_cores = not other and abs(cores - there.usable_cores) <= at.SAME_CORES
        mine = dataclasses.replace(header.machine, core_speed=usual_speed(run))
        speed = core_speed(mine, there, given=asked.speed)
        seen = max(0.0, (neighbours_seen(run) or 0.0) - header.machine.spare_cpus)
        others = seen if asked.neighbours is None else asked.neighbours
        same_ranks = asked.ranks == launched and asked.nodes == 1
        as_measured = (
            same_step
            and same_cores
            and same_ranks
            and storage_bytes_per_s is None
            and speed.value == 1.0
            and abs(others - seen) <= at.SHARED * there.usable_cores
        )
        if not as_measured and not calibrated:
            if asked.asks_for_cores or storage_bytes_per_s is not None:
                usable_calibration(run)
            if step_s is not None and step_s < seen_s * (1 - at.SAME_STEP):
                short = format_duration(step_s)
                given = spread or f"{step_s * 1000:g}ms"
                again = f"with --step-time {given}" if step_s else "without a step"
                raise UsageError(
                    f"The run was measured with a step of {format_duration(seen_s)}, which "
                    f"predicts nothing for a shorter one ({short})",
                    hint=f"Sweep again {again}.",
                )
        neighbours, fair = asked.neighbours, None
        if neighbours is None:
            shared = same_cores and seen >= at.SHARED * there.usable_cores
            shares = (each.usage.fair_cpu_cores for each in _looked_at(run))
            fair = typical(shares) if shared else None
            threads = (threads_of_others(each.usage, there) for each in _looked_at(run))
            neighbours = (typical(threads) or 0.0) if shared else 0.0
        by_model = calibrated and not as_measured
        steps = steps if step_s is None else (step_s, 0.0)
        known_s = (sum(steps) if by_model else whole_s) if step_s is None else step_s
        mine_link, link = (
            min((gpu.link_bytes_per_s for gpu in each.gpus if gpu.link_bytes_per_s), default=0.0)
            for each in (header.machine, there)
        )
        as_launched = launched > 1 and same_ranks and same_step
        met = launched > 1 and bool(header.settings.get("step_barrier"))
        found = cls(
            run=run,
            constraints=dataclasses.replace(
                asked,
                step_s=known_s or None,
                step_spread=(known_s and spread) or None,
                machine=there.hostname if other else asked.machine,
            ),
            machine=there,
            extrapolated=other,
            as_measured=as_measured,
            by_model=by_model,
            step_measured=same_step
            and (bool(step_s) or any(trial.wait_fraction is not None for trial in run.trials)),
            step_s=steps[0],
            step_cpu_s=steps[1],
            cores=cores,
            neighbours=neighbours,
            fair_cores=fair,
            # Nodes are alike, so one with its share of the storage stands for all of them.
            storage_bytes_per_s=storage_bytes_per_s and storage_bytes_per_s / asked.nodes,
            speed=speed,
            speed_error=speed_error(run.trials),
            copy_scale=mine_link / link if mine_link and link else 1.0,
            target=_with_epochs(run),
            present=header.present,
            barrier=met or bool(known_s and not as_launched),
        )
        return dataclasses.replace(found, notes=tuple(_notes(asked, found)))

    @property
    def is_calibrated(self) -> bool:
        """Whether its run holds a calibration that can be predicted from."""
        return not _want_of_calibration(self.run)

    @property
    def calibration(self) -> Calibration:
        """That calibration; raises as ``usable_calibration`` does."""
        return usable_calibration(self.run)

    def is_of_size(self, config: Config) -> bool:
        """Whether a configuration's batches are as large as those of the calibration."""
        size, own = self.calibration.batch_size, self.target.batch_size
        return config.batch_size == size or (config.batch_size is None and own == size)

    @property
    def profiled_main(self) -> str:
        """What keeps the main process busy, where a profile found that first; else empty.

        Its trials show what the model can't: a sampler that waits, and on a crowded machine how
        long main waits for a core.
        """
        diagnosis = self.run.diagnosis if self.as_measured else None
        first = diagnosis.findings[0].code if diagnosis and diagnosis.findings else ""
        return {"main.sampler": DRAWING, "main.receive": RECEIVING}.get(first, "")

    @property
    def main_work(self) -> str:
        """The same, by what batches cost where no profile says it."""
        from dlprof.model.bounds import main_work

        return self.profiled_main or main_work(self.calibration)

    @property
    def conditions(self) -> Conditions:
        """The same as the model takes it."""
        from dlprof.model.work import SPEED_ERROR, Conditions

        calibration = self.run.calibration
        size = None if calibration is None else calibration.batch_size
        alone = self.constraints.ranks == 1 and not self.target.repeats_shards
        try:
            return Conditions(
                cores=self.cores,
                ranks=self.constraints.ranks,
                step_s=self.step_s,
                step_spread=self.constraints.step_spread or "",
                step_cpu_s=self.step_cpu_s,
                storage_bytes_per_s=self.storage_bytes_per_s,
                speed=self.speed.value,
                speed_error=SPEED_ERROR if self.speed_error is None else self.speed_error,
                copy_scale=self.copy_scale,
                neighbours=self.neighbours,
                fair_cores=self.fair_cores,
                epoch_batches=self.epoch_batches(Config(batch_size=size)),
                shards=self.target.shards if alone else None,
                barrier_nodes=self.constraints.nodes if self.barrier else 0,
                keeping=self.target if self.target.keeps_samples else None,
            )
        except ValueError as error:
            raise UsageError(f"Nothing can be predicted: {error}") from None

    def supposing(self, **changes: Any) -> Situation:
        """The same with other figures, which no trial shows: the calibration answers."""
        if "cores" in changes:
            changes["fair_cores"] = self.conditions.on(changes["cores"]).fair_cores
        return dataclasses.replace(self, as_measured=False, by_model=True, **changes)

    @property
    def launched(self) -> int:
        """Ranks that loaded at once in the trials."""
        return self.run.header.launched

    @property
    def other_ranks(self) -> bool:
        """Whether it is for another number of ranks than those."""
        return self.constraints.ranks != self.launched

    @property
    def derived_step_s(self) -> float | None:
        """The step to compute with where it was not measured and no model answers."""
        return None if self.step_measured or self.by_model else self.constraints.step_s

    def epochs_loaded(self, config: Config) -> float:
        """``Target.epochs_loaded``, of as many ranks."""
        return self.target.epochs_loaded(config, self.constraints.ranks)

    def epoch_batches(self, config: Config) -> int | None:
        """Batches that one rank loads in an epoch."""
        batches = self.target.epoch_batches(config.batch_size)
        # Those who loaded had their shares.
        share = self.launched / (self.constraints.ranks * self.constraints.nodes)
        return None if batches is None else max(1, math.ceil(batches * share))


def usable_calibration(run: Run) -> Calibration:
    """The calibration that a run holds, with the samples of a batch as its trials counted them."""
    found, want = run.calibration, _want_of_calibration(run)
    if run.is_script and found is None:
        raise UsageError(
            "This is a script's run: it shows why loading is slow, and nothing can be predicted "
            "from it",
            hint="See it with dlprof report, or sweep the script's dataset with dlprof sweep "
            "TARGET --search model.",
        )
    if found is None or want:
        raise UsageError(
            f"The run holds {want}, so nothing can be predicted from it",
            hint="Run dlprof profile TARGET, or dlprof sweep TARGET --search model with a "
            "larger budget. Then name the new run file.",
        )
    counted = typical(trial.samples_per_batch or None for trial in run.completed)
    if found.samples_per_batch is None and counted is not None:
        return dataclasses.replace(found, samples_per_batch=counted)
    return found


def _want_of_calibration(run: Run) -> str:
    """What a run holds instead of a calibration to predict from; empty if it holds one."""
    found = run.calibration
    if found is None:
        wrong = (t.failure is not None and t.failure.kind in DATA_FAULTS for t in run.trials)
        return "no calibration with correct data" if any(wrong) else "no calibration"
    calibrating = (trial for trial in run.trials if trial.id in found.trials)
    if found.is_usable and any(each.config.batch_size != found.batch_size for each in calibrating):
        return "a calibration of another batch size than that of its trials"
    return "" if found.is_usable else "a calibration without a single batch"


def measured_step(run: Run) -> tuple[float, float]:
    """The step that the run's trials had: seconds that are no CPU work, and CPU seconds."""
    steps = [stage for each in run.explanations if (stage := each.stage("step")) is not None]
    named = _positive(run.header.settings.get("step_s"))
    if named is not None or not run.header.settings.get("step_callable") or not steps:
        return named or 0.0, 0.0
    whole = statistics.fmean(step.mean_s for step in steps)
    cpu = min(whole, statistics.fmean(step.cpu_s or 0.0 for step in steps))
    return whole - cpu, cpu


def _step_seen(run: Run) -> float:
    """Seconds that the step took by the clock, as the median trial has it; 0 without one."""
    seen = ((trial.batches_per_s, trial.wait_fraction) for trial in run.completed)
    known = (
        (1 - wait) / rate.value
        for rate, wait in seen
        if rate is not None and rate.value > 0 and wait is not None
    )
    return typical(known) or 0.0


def neighbours_seen(run: Run) -> float | None:
    """Cores that others kept busy while the run was measured: the median over its trials."""
    return typical(trial.usage.other_cpu_cores for trial in _looked_at(run))


def threads_of_others(usage: Usage, machine: Machine) -> float | None:
    """Threads of others that want one of these cores all the time; ``None`` where nobody counted.

    They wait for a core as the loader's own do, so that cores that they keep busy are the share of
    the time in which they run. No more than were seen to run or wait; and cores that a quota leaves
    to nobody here they have first.
    """
    busy, most = usage.other_cpu_cores, usage.other_runnable
    if busy is None:
        return None
    threads = busy if most is None else max(busy, min(usage.runnable(busy), most))
    spare = machine.spare_cpus
    return min(threads, max(0.0, busy - spare)) if spare else threads


def _looked_at(run: Run) -> Sequence[Trial]:
    """The trials that show how busy the machine was: traced ones until others have been run."""
    traced = (trial for trial in run.trials if trial.purpose == "explain")
    return run.completed or [trial for trial in traced if trial.outcome == "completed"]


def _with_epochs(run: Run) -> Target:
    """The target with the length of an epoch: as it says, else as trials saw whole ones."""
    target = run.header.target
    if target.length is None and target.batches_per_epoch and target.batch_size:
        samples = target.batches_per_epoch * target.batch_size  # of other batch sizes, too
        return dataclasses.replace(target, length=samples)
    worked = (trial for trial in run.trials if trial.outcome == "completed")
    seen = [trial for trial in worked if trial.epoch_samples and trial.samples_per_batch]
    if target.length is not None or target.batches_per_epoch is not None or not seen:
        return target
    length = statistics.median_low([trial.epoch_samples or 0 for trial in seen])
    each = statistics.median([trial.samples_per_batch or 1.0 for trial in seen])
    batches = max(1, math.ceil(length / each - 0.01))  # the last need not be full
    return dataclasses.replace(target, length=length, batches_per_epoch=batches)


def _positive(value: object) -> float | None:
    """A length of time; 0 is no step at all."""
    return float(value) if isinstance(value, int | float) and value > 0 else None


def _notes(asked: Constraints, there: Situation) -> Iterator[str]:
    known = there.run.calibration
    machine = there.run.header.machine
    seen = (neighbours_seen(there.run) or 0.0) - machine.spare_cpus
    unseen = not there.neighbours and seen >= at.SHARED * machine.usable_cores
    # Of a start nobody knows how much of it is waiting for a core. It is less than of a batch: of
    # 1,268 starts in kept runs those with the same workers differ by 27 %, and by 33 to 43 % where
    # each is divided by what its window's waiting would make of it.
    others = asked.neighbours if asked.neighbours is not None else seen if there.neighbours else 0.0
    moved = abs(others - seen) >= at.SHARED * machine.usable_cores
    if there.by_model and moved and known and known.startup_s:
        yield f"starting workers takes as long as while others kept {max(0.0, seen):.1f} cores busy"
    if asked.neighbours is None and (there.extrapolated or unseen):
        yield "no other process is assumed to use the machine: set --assume-background if some do"
    logical, physical = there.machine.logical_cpus, there.machine.physical_cores or math.inf
    if physical < logical and there.cores > physical:
        threads = f"{logical} CPUs are the hyper-threads of {physical} cores"
        yield f"{threads}: where more than {physical} are busy, each gives less than predicted"
    if there.storage_bytes_per_s is not None and not (known and known.read_bytes_per_batch):
        cached = "the calibrated batches came from the page cache, so the storage limit has no "
        yield f"{cached}effect: calibrate with dlprof profile --cold-cache"
    if asked.nodes > 1:
        limited = there.storage_bytes_per_s is not None
        share = f", with 1/{asked.nodes} of the storage" if limited else ""
        yield f"the {asked.nodes:,} nodes are alike: one is predicted{share}"
    if there.barrier and not there.as_measured and asked.ranks * asked.nodes > 1:
        yield "all ranks begin each step together, as under DDP"
    if there.step_s and not there.step_cpu_s:
        yield f"the step takes {format_duration(there.step_s)} and no CPU time"
    if there.copy_scale != 1.0 and known is not None and known.copy_s:
        longer = f"{there.copy_scale:.2g} times as long there"
        yield f"copies to the device take {longer}, by what the links allow"


def core_speed(here: Machine, there: Machine, *, given: float | None = None) -> CoreSpeed:
    """The speed ``there`` as given, else as measured on both, else by CPU models, clocks, or 1.

    ``here`` is where the calibration was taken, with its cores' usual speed.
    """
    if given is not None:
        return CoreSpeed(value=given)
    mine, theirs, alike = here.core_speed, there.core_speed, there.cpu_model == here.cpu_model
    seen = mine is not None and theirs is not None and mine.unit == theirs.unit
    if there.fingerprint == here.fingerprint or (alike and not seen):
        return CoreSpeed(value=1.0)
    value, factor, as_fast = 1.0, at.UNKNOWN_SPEED, "as fast"
    how = f"as nothing better is known: {_BETTER}"
    clock_here, clock_there = (each.base_ghz or clock_of(each.cpu_model) for each in (here, there))
    if seen and mine is not None and theirs is not None:
        log = math.log(theirs.median / mine.median)
        spread = math.log(theirs.high / theirs.low) / 2
        kinds = 0.0 if alike else math.log(at.BY_SPEED)
        value = math.exp(SPEED_EXPONENT * log)
        factor = math.exp(math.hypot(2 * SPEED_EXPONENT_SD * log, spread, kinds))
        speeds = f"{theirs.median:,.0f} and {mine.median:,.0f} {mine.unit}"
        as_fast, how = f"{value:.2f} times as fast", f"by the speeds measured on both ({speeds})"
    elif clock_here and clock_there:
        value, factor = clock_there / clock_here, at.BY_CLOCK
        clocks = f"{clock_there:g} and {clock_here:g} GHz"
        as_fast, how = f"{value:.2f} times as fast", f"by clock rates alone ({clocks}): {_BETTER}"
    whose = f"as one of {here.hostname}, {how}"
    doubt = f"a core of {there.hostname} is assumed to be {as_fast} {whose}"
    return CoreSpeed(value=value, factor=factor, doubt=doubt)


def clock_of(cpu_model: str) -> float | None:
    """GHz in the name of a CPU model.

    >>> clock_of("Intel(R) Xeon(R) Platinum 8168 CPU @ 2.70GHz")
    2.7
    """
    found = _CLOCK.search(cpu_model)
    clock = float(found[1]) if found else 0.0
    return clock if clock > 0 and math.isfinite(clock) else None


def usual_speed(run: Run) -> CoreSpeeds | None:
    """The usual speed of a machine's cores: that of the median trial of a run, and its extremes.

    Of trials that kept at most one core busy, where there are any: a machine that is measured by
    itself is idle, too, and cores that are busy together slow each other down.
    """
    groups = _log_speeds(run.trials)
    few = [log for busy, logs in groups.items() if busy <= 1 for log in logs]
    known = few or [log for logs in groups.values() for log in logs]
    if not known:
        return None
    middle, low, high = map(math.exp, (statistics.median(known), min(known), max(known)))
    unit = CoreSpeeds.unit_of(run.header.python_version)
    return CoreSpeeds(median=middle, low=low, high=high, unit=unit)


def speed_error(trials: Iterable[Trial]) -> float | None:
    """How far the speed of a loader's computing spreads by that of the cores, as its log's SD.

    Between windows of trials with as many busy cores; ``None`` where too few know the speed.
    """
    groups = _log_speeds(trials).values()
    free = sum(len(logs) - 1 for logs in groups)
    if free < 2:
        return None
    squares = math.fsum(statistics.pvariance(logs) * len(logs) for logs in groups)
    return SPEED_EXPONENT * math.sqrt(squares / free)


def _log_speeds(trials: Iterable[Trial]) -> dict[int, list[float]]:
    """Logarithms of the cores' speed in the windows of trials, by how many cores these kept busy.

    Cores that are busy together slow each other down, and that is the loader's own doing.
    """
    groups: dict[int, list[float]] = {}
    for trial in trials:
        speed, own = trial.usage.core_speed, trial.usage.own_cpu_cores
        if trial.outcome == "completed" and speed is not None and speed > 0:
            groups.setdefault(round(own or 0.0), []).append(math.log(speed))
    return groups
