"""Whether the model agrees with what a run measured."""

from __future__ import annotations

import dataclasses

from dlprof.advise.predict.carried import predictions
from dlprof.advise.situation import Situation, usable_calibration
from dlprof.advise.thresholds import MANY_DISAGREE
from dlprof.records import Estimate, Prediction, Run
from dlprof.stats import believe, observe


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Agreement:
    """Predicted against measured rates, predicted for the machine as busy as it was.

    Attributes:
        configs: How many configurations were measured.
        outside: How many of them gave a rate outside of the predicted interval.
        worst: Measured over predicted rate of the one that is furthest off.
        neighbours: Busy cores of others that were counted in.
    """

    configs: int
    outside: int
    worst: float
    neighbours: float

    @property
    def is_poor(self) -> bool:
        """Whether predictions and measurements contradict each other too often."""
        return self.outside > MANY_DISAGREE * self.configs


def agreement(run: Run) -> Agreement | None:
    """Hold the model against the run's own trials; ``None`` where there are none."""
    calibration = usable_calibration(run)
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
    configs = {trial.config for trial, _ in seen}
    here = Situation.of(run)
    predicted = predictions(run, here, configs).items()
    pairs = [
        (alone.rate(config.key), model)
        for config, each in predicted
        if (model := _comparable(each, whole=config in whole)) is not None and model.value > 0
    ]
    if not pairs:
        return None
    ratios = [mine.value / model.value for mine, model in pairs]
    return Agreement(
        configs=len(pairs),
        outside=sum(not _overlap(mine, model) for mine, model in pairs),
        worst=max(ratios, key=lambda ratio: max(ratio, 1 / ratio)),
        neighbours=here.neighbours,
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
