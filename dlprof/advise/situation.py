"""What settings are wanted for: what the user asks, as a run resolves it."""

from __future__ import annotations

import dataclasses
import math
import statistics
from typing import TYPE_CHECKING

from dlprof.advise.predict.speed import CoreSpeed, core_speed, speed_error, usual_speed
from dlprof.advise.thresholds import SAME_CORES, SAME_STEP, SHARED
from dlprof.errors import UsageError
from dlprof.records import DATA_FAULTS, Calibration, Config, Constraints, Machine, Run
from dlprof.units import format_duration

if TYPE_CHECKING:
    from dlprof.model import Conditions


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Situation:
    """What the settings are wanted for.

    Attributes:
        constraints: The limits and the ranks, with the step that was measured filled in where none
            is asked.
        machine: Whose limits hold.
        extrapolated: Whether that is another machine than the one measured.
        as_measured: Whether trials of the run show the same: its machine, cores, step and
            background load.
        by_model: Whether they don't, and a calibration answers.
        step_measured: Whether the trials ran with the step that is asked for.
        step_s: Seconds of the step that are no CPU work of its own.
        step_cpu_s: CPU seconds of it.
        cores: Cores that all ranks may use together.
        neighbours: Of these, what others keep busy.
        storage_bytes_per_s: What the storage gives to all ranks together; ``None`` for no limit.
        speed: Of its cores.
        speed_error: How far that spreads, as the standard deviation of its logarithm; ``None``
            where trials don't show it.
        copy_scale: How much longer a copy to the device takes than where it was measured.
        length: Samples in an epoch.
        batches_per_epoch: At the target's own batch size.
        batch_size: Of the calibration.
        batch_tensors: Tensors in one batch.
        present: What the target's own DataLoader is set to now, as a sweep measures it.
        notes: What was assumed, one sentence each.
    """

    constraints: Constraints
    machine: Machine
    extrapolated: bool
    as_measured: bool
    by_model: bool
    step_measured: bool
    step_s: float
    step_cpu_s: float
    cores: float
    neighbours: float
    storage_bytes_per_s: float | None
    speed: CoreSpeed
    speed_error: float | None
    copy_scale: float
    length: int | None
    batches_per_epoch: int | None
    batch_size: int | None
    batch_tensors: int | None
    present: Config | None
    notes: tuple[str, ...] = ()

    @classmethod
    def of(
        cls,
        run: Run,
        constraints: Constraints | None = None,
        machine: Machine | None = None,
        *,
        ghz: float | None = None,
        storage_bytes_per_s: float | None = None,
    ) -> Situation:
        """What a run makes of a question; what is not asked for is as it was in the run.

        Args:
            run: What was measured.
            constraints: Limits, ranks, step, and the share of the machine; a step of 0 is none.
            machine: Another machine.
            ghz: The clock of its cores, where its profile says.
            storage_bytes_per_s: What the storage gives to all ranks together.

        Raises:
            UsageError: Only a calibration could answer and there is none, or a shorter step is
                asked for than the one that was measured, at which the loader was not shown to its
                limit.
        """
        asked, header = constraints or Constraints(), run.header
        there, calibrated = machine or header.machine, is_calibrated(run)
        other = there.fingerprint != header.machine.fingerprint
        steps, whole_s = measured_step(run), _positive(header.settings.get("step_s"))
        step_s = asked.step_s if calibrated else _positive(asked.step_s)
        same_step = step_s is None or (
            not header.settings.get("step_callable")
            and math.isclose(step_s, whole_s or 0.0, rel_tol=SAME_STEP)
        )
        cores = there.usable_cores if asked.cores is None else asked.cores
        mine = dataclasses.replace(header.machine, core_speed=usual_speed(run))
        speed = core_speed(mine, there, ghz=ghz, given=asked.speed)
        seen = neighbours_seen(run) or 0.0
        as_measured = (
            same_step
            and not other
            and asked.ranks == 1
            and storage_bytes_per_s is None
            and speed.value == 1.0
            and abs(cores - there.usable_cores) <= SAME_CORES
            and abs((seen if asked.neighbours is None else asked.neighbours) - seen)
            <= SHARED * there.usable_cores
        )
        if not as_measured and not calibrated:
            if asked.asks_for_cores or storage_bytes_per_s is not None:
                usable_calibration(run)
            if step_s is not None and step_s < (whole_s or 0.0) * (1 - SAME_STEP):
                raise _too_short(step_s, whole_s or 0.0)
        neighbours = asked.neighbours
        if neighbours is None:
            shared = not other and seen >= SHARED * there.usable_cores
            neighbours = min(seen, there.usable_cores) if shared else 0.0
        by_model = calibrated and not as_measured
        steps = steps if step_s is None else (step_s, 0.0)
        known_s = (sum(steps) if by_model else whole_s) if step_s is None else step_s
        length, batches = _epoch_of(run)
        found = cls(
            constraints=dataclasses.replace(
                asked, step_s=known_s or None, machine=there.hostname if other else asked.machine
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
            storage_bytes_per_s=storage_bytes_per_s,
            speed=speed,
            speed_error=speed_error(run.trials),
            copy_scale=_copy_scale(header.machine, there),
            length=length,
            batches_per_epoch=batches,
            batch_size=None if run.calibration is None else run.calibration.batch_size,
            batch_tensors=header.target.batch_tensors,
            present=header.target.present_settings(has_accelerator=header.accelerator is not None),
        )
        return dataclasses.replace(found, notes=tuple(_notes(run, asked, found)))

    @property
    def conditions(self) -> Conditions:
        """The same as the model takes it.

        Raises:
            UsageError: A figure is out of range.
        """
        from dlprof.model import SPEED_ERROR, Conditions  # noqa: PLC0415 - as long as the rest

        try:
            return Conditions(
                cores=self.cores,
                ranks=self.constraints.ranks,
                step_s=self.step_s,
                step_cpu_s=self.step_cpu_s,
                storage_bytes_per_s=self.storage_bytes_per_s,
                speed=self.speed.value,
                speed_error=SPEED_ERROR if self.speed_error is None else self.speed_error,
                copy_scale=self.copy_scale,
                neighbours=self.neighbours,
                epoch_batches=self.epoch_batches(Config(batch_size=self.batch_size)),
            )
        except ValueError as error:
            raise UsageError(f"Nothing can be predicted: {error}") from None

    @property
    def derived_step_s(self) -> float | None:
        """The step to compute with where it was not measured and no model answers."""
        return None if self.step_measured or self.by_model else self.constraints.step_s

    def epoch_batches(self, config: Config) -> int | None:
        """Batches that one rank loads in an epoch."""
        batches = self.batches_per_epoch
        if config.batch_size is not None and self.length is not None:
            batches = math.ceil(self.length / config.batch_size)
        return None if batches is None else max(1, math.ceil(batches / self.constraints.ranks))


def is_calibrated(run: Run) -> bool:
    """Whether a run holds a calibration that can be predicted from."""
    return _want_of_calibration(run) is None


def usable_calibration(run: Run) -> Calibration:
    """The calibration that a run holds, with the samples of a batch as its trials counted them.

    Raises:
        UsageError: It holds none, none with a batch in it, or that of another run.
    """
    found, want = run.calibration, _want_of_calibration(run)
    if found is not None and want is None:
        counted = [t.samples_per_batch for t in run.completed if t.samples_per_batch]
        if found.samples_per_batch is None and counted:
            return dataclasses.replace(found, samples_per_batch=statistics.median(counted))
        return found
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
    if not found.is_usable:
        return "a calibration without a single batch"
    calibrating = (trial for trial in run.trials if trial.id in found.trials)
    if any(trial.config.batch_size != found.batch_size for trial in calibrating):
        return "a calibration of another batch size than that of its trials"
    return None


def measured_step(run: Run) -> tuple[float, float]:
    """The step that the run's trials had: seconds that are no CPU work, and CPU seconds."""
    named = _positive(run.header.settings.get("step_s"))
    if named is not None:
        return named, 0.0
    if not run.header.settings.get("step_callable"):
        return 0.0, 0.0
    steps = [stage for each in run.explanations if (stage := each.stage("step")) is not None]
    if not steps:
        return 0.0, 0.0
    whole = statistics.fmean(step.mean_s for step in steps)
    cpu = min(whole, statistics.fmean(step.cpu_s or 0.0 for step in steps))
    return whole - cpu, cpu


def neighbours_seen(run: Run) -> float | None:
    """Cores that others kept busy while the run was measured: the median over its trials."""
    others = [trial.usage.other_cpu_cores for trial in run.completed]
    known = [cores for cores in others if cores is not None]
    return statistics.median(known) if known else None


def _too_short(asked_s: float, measured_s: float) -> UsageError:
    asked = format_duration(asked_s)
    return UsageError(
        f"The run was measured with a step of {format_duration(measured_s)}, which says "
        f"nothing of a shorter one ({asked})",
        hint=f"Sweep again with --step-time {asked.replace(' ', '')}.",
    )


def _epoch_of(run: Run) -> tuple[int | None, int | None]:
    """Samples and batches of an epoch: as the target says, else as trials saw whole ones."""
    target = run.header.target
    seen = [trial for trial in run.completed if trial.epoch_samples and trial.samples_per_batch]
    if target.length is not None or target.batches_per_epoch is not None or not seen:
        return target.length, target.batches_per_epoch
    length = statistics.median_low([trial.epoch_samples or 0 for trial in seen])
    each = statistics.median([trial.samples_per_batch or 1.0 for trial in seen])
    return length, max(1, round(length / each))


def _positive(value: object) -> float | None:
    """A length of time; 0 is no step at all."""
    return float(value) if isinstance(value, int | float) and value > 0 else None


def _copy_scale(here: Machine, there: Machine) -> float:
    """How much longer a copy takes there, by the links' theory; 1 where one isn't known."""

    def link(machine: Machine) -> float | None:
        speeds = [gpu.link_bytes_per_s for gpu in machine.gpus]
        return min((speed for speed in speeds if speed is not None), default=None)

    mine, theirs = link(here), link(there)
    return mine / theirs if mine and theirs else 1.0


def _notes(run: Run, asked: Constraints, there: Situation) -> list[str]:
    """What was taken for granted."""
    notes, machine = [], there.machine
    if asked.neighbours is None and there.extrapolated:
        notes.append("nobody else is taken to be on the machine: --neighbours says otherwise")
    physical = machine.physical_cores
    if physical is not None and physical < machine.logical_cpus and there.cores > physical:
        notes.append(
            f"{machine.logical_cpus} CPUs are the hyper-threads of {physical} cores: where more "
            f"than {physical} are busy, each gives less than predicted"
        )
    read = run.calibration.read_bytes_per_batch if run.calibration is not None else None
    if there.storage_bytes_per_s is not None and not read:
        notes.append(
            "the calibrated batches came from the page cache, so the storage limit holds nothing "
            "back: calibrate with dlprof profile --cold-cache"
        )
    if there.step_s and not there.step_cpu_s:
        notes.append(f"the step takes {format_duration(there.step_s)} and no CPU time")
    if there.copy_scale != 1.0 and run.calibration is not None and run.calibration.copy_s:
        notes.append(
            f"copies to the device take {there.copy_scale:.2g} times as long there, by what the "
            "links allow"
        )
    return notes
