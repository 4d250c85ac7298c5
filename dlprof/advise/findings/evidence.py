"""What findings are drawn from: a profile's trials, with the part of each, and the model."""

from __future__ import annotations

import dataclasses
from typing import Literal

from dlprof.model import Conditions, predict_all
from dlprof.records import (
    Calibration,
    Config,
    DatasetWeight,
    Explanation,
    Integrity,
    Machine,
    Prediction,
    Stage,
    Target,
    Trial,
    WatchedLoader,
)

_LEAST_CORES = 0.01

Role = Literal["present", "calibration", "cold", "variant"]
"""``present``: the configuration that is explained; ``calibration``: few workers, for the model;
``cold``: the present one with the page cache dropped; ``variant``: one that would mend a cause."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Experiment:
    """One short trial that a profile asks for.

    Attributes:
        name: In words, for the progress shown to people.
        role: What the trial is for.
        config: What to measure, canonical.
        explain: Whether the trial is instrumented; its rate is then compared with no other.
        cold_cache: Whether the dataset's files are dropped from the page cache before it.
        trial_s: Length of the window.
        turnover: Whether the end of an epoch is timed as well.
        repetition: Number of the interleaved block; trials of equal repetition are compared.
    """

    name: str
    role: Role
    config: Config
    explain: bool = False
    cold_cache: bool = False
    trial_s: float = 1.0
    turnover: bool = False
    repetition: int = 0


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Observation:
    """An experiment and what came of it.

    Attributes:
        experiment: What was asked for.
        trial: Its record.
        explanation: What an instrumented trial told; ``None`` for a plain or a failed one.
    """

    experiment: Experiment
    trial: Trial
    explanation: Explanation | None = None


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Foresight:
    """The model, at one calibration and one step.

    Attributes:
        calibration: What batches cost.
        conditions: The consumer's step; the cores are those that are asked for.
        asked: Answers so far, since each costs milliseconds and rules ask alike.
    """

    calibration: Calibration
    conditions: Conditions
    asked: dict[tuple[Config, float], Prediction | None] = dataclasses.field(
        default_factory=dict, compare=False, repr=False
    )

    @classmethod
    def at_step(
        cls, calibration: Calibration, step: Stage | float, *, whole_cpu_s: float | None = None
    ) -> Foresight:
        """The model at a step as it was timed: what of it was CPU work slows down with the rest.

        Args:
            calibration: What batches cost, where a step computed: letting them go is part of it.
            step: The stage ``step`` of an instrumented trial, or seconds of one that only waits.
            whole_cpu_s: CPU seconds of a step in all threads; ``None`` for those of its own.
        """
        if not isinstance(step, Stage):
            return cls(calibration=calibration, conditions=Conditions(cores=1.0, step_s=step))
        cpu_s = min(step.cpu_s or 0.0, step.mean_s)
        conditions = Conditions(
            cores=1.0,
            step_s=step.mean_s - cpu_s,
            step_cpu_s=cpu_s,
            step_threads=max(1.0, whole_cpu_s / cpu_s) if whole_cpu_s and cpu_s > 0 else 1.0,
        )
        return cls(calibration=calibration, conditions=conditions)

    def __call__(self, config: Config, *, cores: float) -> Prediction | None:
        """The rate of a configuration where so many cores are to be had.

        Returns:
            ``None`` where the calibration says nothing of it.
        """
        key = (config, cores)
        if key not in self.asked:
            conditions = dataclasses.replace(self.conditions, cores=max(cores, _LEAST_CORES))
            try:
                self.asked[key] = predict_all(self.calibration, (config,), conditions)[0]
            except ValueError:
                self.asked[key] = None
        return self.asked[key]


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Script:
    """The script that a loader was watched in.

    Attributes:
        wall_s: How long it took.
        loader: What was seen of the loader, by the clock around ``next()``.
        step_cores: Cores that the main process keeps busy in a step; ``None`` if that isn't known.
        step_threads: Threads that compute in a step; ``None`` likewise.
        start_method: How workers start where the loader doesn't say so.
    """

    wall_s: float
    loader: WatchedLoader
    step_cores: float | None = None
    step_threads: float | None = None
    start_method: str = "fork"

    @property
    def loop_s(self) -> float:
        """Seconds of all epochs over the loader."""
        return self.loader.waited_s + self.loader.stepped_s

    @property
    def epochs_per_start(self) -> float:
        """Epochs that are served by workers that persist."""
        return max(1.0, self.loader.epochs / max(1, self.loader.made))


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Evidence:
    """Everything that is known of one configuration of one target.

    Attributes:
        machine: Where it was measured.
        target: What was loaded.
        config: The configuration that is explained, canonical.
        accelerator: torch's name of it; ``None`` without one.
        observations: In the order of measuring.
        predict: The model; ``None`` where there is none.
        step_s: Length of the consumer's step; 0 for none.
        has_step: Whether the consumer does anything (a step that is a function has no stated
            length); without, it only waits, and its share of waiting says nothing.
        reads_files: Whether the dataset reads files; ``None`` where that isn't known.
        script: Where it was watched; ``None`` for a loader that was measured by itself.
        weight: What the dataset weighs; ``None`` where it was not weighed.
    """

    machine: Machine
    target: Target
    config: Config
    accelerator: str | None = None
    observations: tuple[Observation, ...] = ()
    predict: Foresight | None = None
    step_s: float = 0.0
    has_step: bool = False
    reads_files: bool | None = None
    script: Script | None = None
    weight: DatasetWeight | None = None

    @property
    def calibration(self) -> Calibration | None:
        """What the model was fitted to; ``None`` without one."""
        return None if self.predict is None else self.predict.calibration

    def why_fixed(self, config: Config) -> tuple[str, ...]:
        """Why the target can't be set to a configuration, a reason each; empty where it can."""
        own = self.target.attainable(config, has_accelerator=self.accelerator is not None)
        wrong = (name for name in self.target.fixed if getattr(own, name) != getattr(config, name))
        return tuple(dict.fromkeys(self.target.fixed[name] for name in wrong))

    def trials(self, *roles: Role) -> tuple[Trial, ...]:
        """All trials of some roles, failed and instrumented ones too; of none, all."""
        return tuple(o.trial for o in self.observations if not roles or o.experiment.role in roles)

    @property
    def integrity(self) -> Integrity:
        """What its trials say of the data of any configuration."""
        return Integrity.of_trials(self.trials(), self.explanations(), self.target)

    def plain(self, *roles: Role) -> tuple[Trial, ...]:
        """Uninstrumented trials with a rate."""
        return tuple(
            o.trial
            for o in self.observations
            if o.experiment.role in roles and not o.experiment.explain
            if o.trial.outcome == "completed" and o.trial.batches_per_s is not None
            if o.trial.batches_per_s.value > 0
        )

    def explanations(self) -> tuple[Explanation, ...]:
        """Those of the instrumented trials whose hooks could be put in, the page cache as it is."""
        return tuple(
            o.explanation
            for o in self.observations
            if o.explanation is not None and not o.experiment.cold_cache
        )

    def explained(self, config: Config) -> Explanation | None:
        """The last explanation of a configuration."""
        found = [each for each in self.explanations() if each.config == config]
        return found[-1] if found else None
