"""The model, asked as findings ask it: what would this configuration give, at the same step."""

from __future__ import annotations

import dataclasses

from dlprof.model import Conditions, predict_all
from dlprof.records import Calibration, Config, Prediction, Stage
from dlprof.settings import SweepSettings

_LEAST_CORES = 0.01


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Foresight:
    """Predicts configurations at one calibration and one step.

    Attributes:
        calibration: What batches cost.
        step_s: Seconds of the consumer's step that are not CPU work.
        step_cpu_s: CPU seconds of the step.
        asked: Answers so far, since each costs milliseconds and rules ask alike.
    """

    calibration: Calibration
    step_s: float
    step_cpu_s: float
    asked: dict[tuple[Config, float], Prediction | None] = dataclasses.field(
        default_factory=dict, compare=False, repr=False
    )

    @classmethod
    def of(cls, calibration: Calibration, settings: SweepSettings, step: Stage | None) -> Foresight:
        """The model at the step that the settings state; one that is a function as it was timed.

        Args:
            calibration: What batches cost.
            settings: Whether there is a step.
            step: Of an instrumented trial; ``None`` where it wasn't timed.
        """
        if settings.step_s is None and settings.step_callable is None:
            return cls(calibration=calibration, step_s=0.0, step_cpu_s=0.0)
        if step is None or settings.step_s is not None:
            step_s = settings.step_s or 0.0
            return cls(calibration=calibration, step_s=step_s, step_cpu_s=0.0)
        cpu_s = min(step.cpu_s or 0.0, step.mean_s)
        return cls(calibration=calibration, step_s=step.mean_s - cpu_s, step_cpu_s=cpu_s)

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
            cores=max(cores, _LEAST_CORES), step_s=self.step_s, step_cpu_s=self.step_cpu_s
        )
        try:
            return predict_all(self.calibration, (config,), conditions)[0]
        except ValueError:
            return None
