"""The model, asked as findings ask it: what would this configuration give, at the same step."""

from __future__ import annotations

import dataclasses

from dlprof.model import Conditions, predict_all
from dlprof.records import Calibration, Config, Prediction, Stage

_LEAST_CORES = 0.01


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Foresight:
    """Predicts configurations at one calibration and one step.

    Attributes:
        calibration: What batches cost.
        step_s: Seconds of the consumer's step that are not CPU work.
        step_cpu_s: CPU seconds of the step in the consumer's thread.
        step_threads: Threads that compute in it at once, that one among them.
        asked: Answers so far, since each costs milliseconds and rules ask alike.
    """

    calibration: Calibration
    step_s: float = 0.0
    step_cpu_s: float = 0.0
    step_threads: float = 1.0
    asked: dict[tuple[Config, float], Prediction | None] = dataclasses.field(
        default_factory=dict, compare=False, repr=False
    )

    @classmethod
    def at_step(
        cls, calibration: Calibration, step: Stage, *, whole_cpu_s: float | None = None
    ) -> Foresight:
        """The model at a step as it was timed: what of it was CPU work slows down with the rest.

        Args:
            calibration: What batches cost, where a step computed: letting them go is part of it.
            step: The stage ``step`` of an instrumented trial.
            whole_cpu_s: CPU seconds of a step in all threads; ``None`` for those of its own.
        """
        cpu_s = min(step.cpu_s or 0.0, step.mean_s)
        threads = max(1.0, whole_cpu_s / cpu_s) if whole_cpu_s and cpu_s > 0 else 1.0
        return cls(
            calibration=calibration,
            step_s=step.mean_s - cpu_s,
            step_cpu_s=cpu_s,
            step_threads=threads,
        )

    def __call__(self, config: Config, *, cores: float) -> Prediction | None:
        """The rate of a configuration where so many cores are to be had.

        Returns:
            ``None`` where the calibration says nothing of it.
        """
        key = (config, cores)
        if key not in self.asked:
            self.asked[key] = self._predicted(config, cores)
        return self.asked[key]

    def _predicted(self, config: Config, cores: float) -> Prediction | None:
        conditions = Conditions(
            cores=max(cores, _LEAST_CORES),
            step_s=self.step_s,
            step_cpu_s=self.step_cpu_s,
            step_threads=self.step_threads,
        )
        try:
            return predict_all(self.calibration, (config,), conditions)[0]
        except ValueError:
            return None
