"""What was measured of configurations that are predicted, and whether the two agree."""

from __future__ import annotations

import dataclasses

from dlprof.advise.candidates import gather
from dlprof.advise.effective import Situation
from dlprof.advise.predict.question import Place, Question, neighbours_seen, place_of
from dlprof.advise.speeds import compare_speeds
from dlprof.model import predict_all
from dlprof.records import Calibration, Config, Constraints, Estimate, Prediction, Run
from dlprof.stats import believe, observe

_MANY_DISAGREE = 0.5
"""Share of the measured configurations outside of what is predicted from which it is told."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """What plain trials of one configuration gave.

    Attributes:
        samples_per_s: The one rate that the run has for it.
        wait_fraction: Mean over those that tell.
        trials: Their ids.
    """

    samples_per_s: Estimate
    wait_fraction: float | None
    trials: tuple[str, ...]


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Agreement:
    """Predicted against measured rates, predicted for the machine as busy as it was.

    Attributes:
        configs: How many configurations were measured.
        outside: How many of them gave a rate outside of the predicted interval.
        worst: Measured over predicted rate of the one that is furthest off.
        neighbours: Busy cores of others that were reckoned with.
    """

    configs: int
    outside: int
    worst: float
    neighbours: float

    @property
    def is_poor(self) -> bool:
        """Whether predictions and measurements contradict each other too often."""
        return self.outside > _MANY_DISAGREE * self.configs


def measured_beside(run: Run) -> dict[Config, Measured]:
    """What was measured, by configuration, as every view of the run has it.

    Traced trials are none of it.
    """
    candidates = [each for each in gather(run) if each.trials]
    if not candidates:
        return {}
    speeds = compare_speeds(candidates, Situation.of(run, Constraints(), None))
    return {
        each.config: Measured(
            samples_per_s=speeds.rate(each.key),
            wait_fraction=speeds.wait_fraction(each),
            trials=tuple(each.trial_ids),
        )
        for each in candidates
    }


def agreement(run: Run, calibration: Calibration) -> Agreement | None:
    """Hold the model against the run's own trials; ``None`` where there are none."""
    seen = [
        (trial, each)
        for trial in run.completed
        if trial.config.batch_size in {None, calibration.batch_size}
        and (each := observe(trial)) is not None
    ]
    if not seen or calibration.samples_per_batch is None:
        return None
    alone = believe([each for _, each in seen])  # in its own light, not in the model's
    whole = {trial.config for trial, each in seen if each.whole_epochs}
    configs = sorted({trial.config for trial, _ in seen}, key=lambda config: config.cost_key)
    others = min(neighbours_seen(run) or 0.0, run.header.machine.usable_cores)
    there: Place = place_of(run, Question(neighbours=others))
    predicted = predict_all(calibration, configs, there.conditions)
    pairs = [
        (alone.rate(config.key), model)
        for config, each in zip(configs, predicted, strict=True)
        if (model := _comparable(each, whole=config in whole)) is not None and model.value > 0
    ]
    if not pairs:
        return None
    ratios = [mine.value / model.value for mine, model in pairs]
    return Agreement(
        configs=len(pairs),
        outside=sum(not _overlap(mine, model) for mine, model in pairs),
        worst=max(ratios, key=lambda ratio: max(ratio, 1 / ratio)),
        neighbours=others,
    )


def _comparable(prediction: Prediction, *, whole: bool) -> Estimate | None:
    """The predicted rate of what was measured: steady, or over whole epochs."""
    steady, over = prediction.samples_per_s, prediction.epoch_batches_per_s
    if not whole or steady is None or over is None:
        return None if whole else steady
    return steady.times(over / prediction.batches_per_s.value)


def _overlap(one: Estimate, two: Estimate) -> bool:
    return _low(one) <= _high(two) and _low(two) <= _high(one)


def _low(estimate: Estimate) -> float:
    return estimate.value if estimate.low is None else estimate.low


def _high(estimate: Estimate) -> float:
    return estimate.value if estimate.high is None else estimate.high
