"""What a prediction is asked for, and where that is."""

from __future__ import annotations

import dataclasses
import math
import statistics

from dlprof.advise.effective import Situation
from dlprof.advise.predict.speed import (
    CoreSpeed,
    at_usual_speed,
    core_speed,
    speed_error,
    usual_speed,
)
from dlprof.errors import UsageError
from dlprof.model import Conditions, is_usable
from dlprof.records import DATA_FAULTS, Calibration, Constraints, Machine, Run
from dlprof.units import format_duration

_SAME_CORES = 0.01
_SAME_STEP = 0.05
_SHARED = 0.1
"""Share of the cores that others keep busy from which a machine counts as shared."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """What a user asks for. ``None`` is as it was in the run.

    Attributes:
        machine: Another machine.
        ghz: The clock of its cores, where its profile says.
        cores: Cores that all ranks may use together.
        ranks: Training processes there, each with a loader of its own.
        step_s: Length of the training step; 0 for none.
        storage_bytes_per_s: What the storage gives to all ranks together.
        neighbours: Busy cores of others.
        speed: Of a core relative to the calibrated one.
    """

    machine: Machine | None = None
    ghz: float | None = None
    cores: float | None = None
    ranks: int = 1
    step_s: float | None = None
    storage_bytes_per_s: float | None = None
    neighbours: float | None = None
    speed: float | None = None


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """Where configurations are predicted.

    Attributes:
        machine: Which.
        conditions: The share of it, and the consumer.
        extrapolated: Whether it is another machine than the one that was measured.
        as_measured: Whether trials of the run show the same: its machine, cores, step
            and neighbours; where no neighbours are asked for, whatever there were.
        speed: Of its cores.
        notes: What was assumed, one sentence each.
    """

    machine: Machine
    conditions: Conditions
    extrapolated: bool
    as_measured: bool
    speed: CoreSpeed
    notes: tuple[str, ...] = ()


def is_calibrated(run: Run) -> bool:
    """Whether a run holds a calibration that can be predicted from."""
    return _want_of_calibration(run) is None


def usable_calibration(run: Run) -> Calibration:
    """The calibration that a run holds, at the usual speed of its machine's cores.

    Raises:
        UsageError: It holds none, none with a batch in it, or that of another run.
    """
    found, want = run.calibration, _want_of_calibration(run)
    if found is not None and want is None:
        return at_usual_speed(found, run.trials)
    raise UsageError(
        f"The run holds {want}, so nothing can be predicted from it",
        hint="Run dlprof profile TARGET, or dlprof sweep TARGET --search model with a budget that "
        "has room for it, and name the new run file.",
    )


def _want_of_calibration(run: Run) -> str | None:
    """What a run holds instead of a calibration to predict from; ``None`` if it holds one."""
    found = run.calibration
    if found is None:
        wrong = (t.failure is not None and t.failure.kind in DATA_FAULTS for t in run.trials)
        return "no calibration by right data" if any(wrong) else "no calibration"
    if not is_usable(found):
        return "a calibration without a single batch"
    calibrating = (trial for trial in run.trials if trial.id in found.trials)
    if any(trial.config.batch_size != found.batch_size for trial in calibrating):
        return "a calibration of another batch size than that of its trials"
    return None


def place_of(run: Run, question: Question) -> Place:
    """Where a question is to be answered.

    Raises:
        UsageError: A figure is out of range.
    """
    header = run.header
    there = question.machine or header.machine
    extrapolated = there.fingerprint != header.machine.fingerprint
    here = dataclasses.replace(header.machine, core_speed=usual_speed(run))
    speed = core_speed(here, there, ghz=question.ghz, given=question.speed)
    cores = there.usable_cores if question.cores is None else question.cores
    step_s, step_cpu_s = measured_step(run)
    if question.step_s is not None:
        step_s, step_cpu_s = question.step_s, 0.0
    try:
        conditions = Conditions(
            cores=cores,
            ranks=question.ranks,
            step_s=step_s,
            step_cpu_s=step_cpu_s,
            storage_bytes_per_s=question.storage_bytes_per_s,
            speed=speed.value,
            speed_error=speed_error(run.trials),
            copy_scale=_copy_scale(header.machine, there),
            neighbours=question.neighbours or 0.0,
            epoch_batches=_epoch_batches(run, question.ranks),
        )
    except ValueError as error:
        raise UsageError(f"Nothing can be predicted: {error}") from None
    return Place(
        machine=there,
        conditions=conditions,
        extrapolated=extrapolated,
        as_measured=not extrapolated
        and _is_as_measured(run, conditions)
        and _are_as_measured(run, question.neighbours),
        speed=speed,
        notes=tuple(_notes(run, question, there, conditions)),
    )


def _epoch_batches(run: Run, ranks: int) -> int | None:
    """Batches of one rank's epoch; ``None`` where the target doesn't tell."""
    size = run.calibration.batch_size if run.calibration is not None else None
    batches = run.header.target.epoch_batches(size)
    return None if batches is None else max(1, math.ceil(batches / max(1, ranks)))


def _copy_scale(here: Machine, there: Machine) -> float:
    """How much longer a copy takes there, by the links' theory; 1 where one isn't known."""
    mine, theirs = _link(here), _link(there)
    return mine / theirs if mine and theirs else 1.0


def _link(machine: Machine) -> float | None:
    speeds = [gpu.link_bytes_per_s for gpu in machine.gpus]
    return min((speed for speed in speeds if speed is not None), default=None)


def situation_of(run: Run, constraints: Constraints, place: Place) -> Situation:
    """The same question in the terms of a recommendation from trials."""
    target = run.header.target
    return Situation(
        constraints=constraints,
        machine=place.machine,
        extrapolated=place.extrapolated,
        step_measured=False,
        length=target.length,
        batches_per_epoch=target.batches_per_epoch,
        batch_tensors=target.batch_tensors,
        present=target.present_settings(has_accelerator=run.header.accelerator is not None),
    )


def measured_step(run: Run) -> tuple[float, float]:
    """The step that the run's trials had: seconds that are no CPU work, and CPU seconds."""
    named = run.header.settings.get("step_s")
    if isinstance(named, int | float) and named > 0:
        return float(named), 0.0
    if not run.header.settings.get("step_callable"):
        return 0.0, 0.0
    steps = [stage for each in run.explanations if (stage := each.stage("step")) is not None]
    if not steps:
        return 0.0, 0.0
    whole = statistics.fmean(step.mean_s for step in steps)
    cpu = min(whole, statistics.fmean(step.cpu_s or 0.0 for step in steps))
    return whole - cpu, cpu


def as_shared(run: Run, question: Question) -> Question:
    """The question, on the machine that was measured with the neighbours that were seen there."""
    mine = run.header.machine
    there = question.machine or mine
    seen = neighbours_seen(run) or 0.0
    other = there.fingerprint != mine.fingerprint
    if other or question.neighbours is not None or seen < _SHARED * mine.usable_cores:
        return question
    return dataclasses.replace(question, neighbours=min(seen, mine.usable_cores))


def neighbours_seen(run: Run) -> float | None:
    """Cores that others kept busy while the run was measured: the median over its trials."""
    completed = (trial for trial in run.trials if trial.outcome == "completed")
    others = [trial.usage.other_cpu_cores for trial in completed]
    known = [cores for cores in others if cores is not None]
    return statistics.median(known) if known else None


def _is_as_measured(run: Run, where: Conditions) -> bool:
    step_s, step_cpu_s = measured_step(run)
    pairs = ((where.step_s, step_s), (where.step_cpu_s, step_cpu_s))
    same_step = all(abs(one - two) <= _SAME_STEP * max(one, two) for one, two in pairs)
    same_cores = abs(where.cores - run.header.machine.usable_cores) <= _SAME_CORES
    alone = where.ranks == 1 and where.storage_bytes_per_s is None and where.speed == 1.0
    return same_step and same_cores and alone


def _are_as_measured(run: Run, neighbours: float | None) -> bool:
    """Whether neighbours that are asked for were there, to within what makes a machine shared."""
    seen = neighbours_seen(run) or 0.0
    close = _SHARED * run.header.machine.usable_cores
    return neighbours is None or abs(neighbours - seen) <= close


def _notes(run: Run, question: Question, there: Machine, where: Conditions) -> list[str]:
    """What was taken for granted."""
    notes = []
    others = neighbours_seen(run)
    mine = run.header.machine
    if question.neighbours is None and there.fingerprint != mine.fingerprint:
        notes.append("nobody else is taken to be on the machine: --neighbours says otherwise")
    elif question.neighbours is None and others is not None and others >= 0.1 * mine.usable_cores:
        notes.append(
            f"nobody else is taken to be on the machine, where others kept {others:.1f} of "
            f"{mine.usable_cores:g} cores busy when it was measured: --neighbours {others:.1f} "
            "predicts it as it was then"
        )
    physical = there.physical_cores
    if physical is not None and physical < there.logical_cpus and where.cores > physical:
        notes.append(
            f"{there.logical_cpus} CPUs are the hyper-threads of {physical} cores: where more "
            f"than {physical} are busy, each gives less than predicted"
        )
    read = run.calibration.read_bytes_per_batch if run.calibration is not None else None
    if where.storage_bytes_per_s is not None and not read:
        notes.append(
            "the calibrated batches came from the page cache, so the storage limit holds nothing "
            "back: calibrate with dlprof profile --cold-cache"
        )
    if where.step_s and not where.step_cpu_s:
        notes.append(f"the step takes {format_duration(where.step_s)} and no CPU time")
    if where.copy_scale != 1.0 and run.calibration is not None and run.calibration.copy_s:
        notes.append(
            f"copies to the device take {where.copy_scale:.2g} times as long there, by what the "
            "links allow"
        )
    return notes
