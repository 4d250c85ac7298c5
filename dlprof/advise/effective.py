"""From the rate that a trial measured to the rate that a training run would see.

Three things lie between: the cores that several ranks, or a smaller machine, leave to one loader;
the training step; and the turn from one epoch to the next.
"""

from __future__ import annotations

import dataclasses
import math
import statistics

from dlprof.errors import UsageError
from dlprof.records import Config, Constraints, Machine, Run, Trial
from dlprof.stats import Expected
from dlprof.units import format_duration

SAME_STEP = 0.05
"""Steps within 5 % of the measured one count as measured."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Situation:
    """What the settings are wanted for.

    Attributes:
        constraints: The limits, with the step that was measured filled in where none is asked.
        machine: Whose limits hold.
        extrapolated: Whether that is another machine than the one measured.
        step_measured: Whether the trials ran with the step that is asked for.
        length: Samples in an epoch.
        batches_per_epoch: At the target's own batch size.
        batch_tensors: Tensors in one batch.
        present: What the target's own DataLoader is set to now, as a sweep measures it.
        expected: What the sweep's model foretold, where that is for the same situation.
    """

    constraints: Constraints
    machine: Machine
    extrapolated: bool
    step_measured: bool
    length: int | None
    batches_per_epoch: int | None
    batch_tensors: int | None
    present: Config | None
    expected: Expected | None = None

    @classmethod
    def of(cls, run: Run, constraints: Constraints, machine: Machine | None) -> Situation:
        """The situation that a run and the user's limits make.

        Raises:
            UsageError: A shorter step is asked for than the one that was measured, at which the
                loader was not shown to its limit.
        """
        header = run.header
        measured = _positive(header.settings.get("step_s"))
        asked = _positive(constraints.step_s)
        if asked is not None and measured is not None and asked < measured * (1 - SAME_STEP):
            raise UsageError(
                f"The run was measured with a step of {format_duration(measured)}, which says "
                f"nothing of a shorter one ({format_duration(asked)})",
                hint=f"Sweep again with --step-time {format_duration(asked).replace(' ', '')}.",
            )
        if asked is None:
            as_run = True
            has_step = any(trial.wait_fraction is not None for trial in run.trials)
        else:
            has_step = measured is not None and math.isclose(asked, measured, rel_tol=SAME_STEP)
            as_run = has_step
        other = machine is not None and machine.fingerprint != header.machine.fingerprint
        length, batches = _epoch_of(run)
        foretold = run.prediction if not other and constraints.ranks == 1 else None
        return cls(
            constraints=dataclasses.replace(
                constraints,
                step_s=measured if asked is None else asked,
                machine=machine.hostname if machine is not None else constraints.machine,
            ),
            machine=machine or header.machine,
            extrapolated=other,
            step_measured=has_step,
            length=length,
            batches_per_epoch=batches,
            batch_tensors=header.target.batch_tensors,
            present=header.target.present_settings(has_accelerator=header.accelerator is not None),
            expected=Expected.of(foretold) if foretold is not None and as_run else None,
        )

    @property
    def derived_step_s(self) -> float | None:
        """The step to reckon with where it was not measured."""
        return None if self.step_measured else self.constraints.step_s

    def epoch_batches(self, config: Config) -> int | None:
        """Batches that one rank loads in an epoch."""
        batches = self.batches_per_epoch
        if config.batch_size is not None and self.length is not None:
            batches = math.ceil(self.length / config.batch_size)
        return None if batches is None else max(1, math.ceil(batches / self.constraints.ranks))


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Rates:
    """One trial's rates in a situation.

    Attributes:
        samples_per_s: Steady, at the stated step.
        epoch_factor: What is left of it over whole epochs, turnover included; 1 where the
            epoch's length isn't known, or the rate covers whole epochs already.
        wait_fraction: Share of time waiting at the stated step; ``None`` without a step.
    """

    samples_per_s: float
    epoch_factor: float
    wait_fraction: float | None


def rates_of(trial: Trial, situation: Situation, turnover_s: float | None) -> Rates:
    """The rates of a completed trial that has a rate.

    Args:
        trial: The trial.
        situation: What the settings are wanted for.
        turnover_s: From an epoch to the next with the trial's configuration, where it is known.
    """
    measured = trial.samples_per_s.value if trial.samples_per_s is not None else 0.0
    share = cores_share(trial, situation)
    wait = trial.wait_fraction if situation.step_measured else None
    if trial.batches_per_s is None or trial.batches_per_s.value <= 0:
        return Rates(samples_per_s=measured * share, epoch_factor=1.0, wait_fraction=wait)
    batches = trial.batches_per_s.value * share
    samples_per_batch = measured / trial.batches_per_s.value
    if situation.derived_step_s is not None:
        batches, wait = at_step(trial, batches, situation.derived_step_s)
    return Rates(
        samples_per_s=batches * samples_per_batch,
        epoch_factor=_epoch_factor(
            trial, batches, situation.epoch_batches(trial.config), turnover_s, wait
        ),
        wait_fraction=wait,
    )


def at_step(trial: Trial, batches_per_s: float, step_s: float) -> tuple[float, float]:
    """Batches per second and wait fraction at a step that was not measured.

    Without workers, loading and step take turns: ``1 / (step + load)``. With workers they
    overlap: ``min(rate, 1 / step)``. Receiving a batch takes the main process a little on top,
    which only measuring tells.
    """
    if trial.config.num_workers == 0:
        waiting = 1.0 if trial.wait_fraction is None else trial.wait_fraction
        load_s = waiting / batches_per_s
        rate = 1 / (step_s + load_s)
        return rate, load_s * rate
    rate = min(batches_per_s, 1 / step_s)
    return rate, 1 - rate * step_s


def cores_share(trial: Trial, situation: Situation) -> float:
    """Share of its measured rate that cores leave to each of the loaders, at most 1.

    ``cores / (ranks * own)``: the cores of the machine over what all ranks' loaders would use if
    each went as fast as the one that was measured. More cores than were measured promise nothing.
    """
    own = trial.usage.own_cpu_cores
    ranks = situation.constraints.ranks
    if own is None or own <= 0 or (ranks == 1 and not situation.extrapolated):
        return 1.0
    return min(1.0, situation.machine.usable_cores / (ranks * own))


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


def _epoch_factor(
    trial: Trial,
    batches_per_s: float,
    epoch_batches: int | None,
    turnover_s: float | None,
    wait: float | None,
) -> float:
    """Rate over whole epochs over the steady one; 1 where the trial's own counts turnovers."""
    if epoch_batches is None or turnover_s is None or trial.whole_epochs:
        return 1.0
    # The first batch is loaded in the turnover.
    first_s = (1.0 if wait is None else wait) / batches_per_s
    loading_s = epoch_batches / batches_per_s
    return loading_s / (loading_s + max(0.0, turnover_s - first_s))
