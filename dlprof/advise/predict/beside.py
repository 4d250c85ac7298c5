"""What was measured of configurations that are predicted, and whether the two agree."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from dlprof.advise.predict.question import Place, Question, neighbours_seen, place_of
from dlprof.model import predict_all
from dlprof.records import Calibration, Config, Estimate, Prediction, Run, Trial
from dlprof.stats import fit_blocks, observe

_MANY_DISAGREE = 0.5
"""Share of the measured configurations outside of what is predicted from which it is told."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """What plain trials of one configuration gave.

    Attributes:
        samples_per_s: Of the trial; of several as a sweep tells it, without the blocks' drift.
        wait_fraction: Mean over those that tell.
        trials: Their ids.
        whole_epochs: Whether that is over whole epochs, their turnovers included.
    """

    samples_per_s: Estimate
    wait_fraction: float | None
    trials: tuple[str, ...]
    whole_epochs: bool = False


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
    """What was measured, by configuration; instrumented trials are none of it."""
    groups: dict[Config, list[Trial]] = {}
    seen = {trial.id: each for trial in run.completed if (each := observe(trial)) is not None}
    for trial in run.completed:
        if trial.id in seen:
            groups.setdefault(trial.config, []).append(trial)
    if not groups:
        return {}
    fit = fit_blocks(list(seen.values()))
    return {config: _measured(fit.rate(config.key), some) for config, some in groups.items()}


def _measured(rate: Estimate, trials: Sequence[Trial]) -> Measured:
    waits = [trial.wait_fraction for trial in trials if trial.wait_fraction is not None]
    return Measured(
        samples_per_s=trials[0].samples_per_s or rate if len(trials) == 1 else rate,
        wait_fraction=sum(waits) / len(waits) if waits else None,
        trials=tuple(trial.id for trial in trials),
        whole_epochs=any(trial.whole_epochs for trial in trials),
    )


def agreement(run: Run, calibration: Calibration) -> Agreement | None:
    """Hold the model against the run's own trials; ``None`` where there are none."""
    measured = {
        config: found
        for config, found in measured_beside(run).items()
        if config.batch_size in {None, calibration.batch_size}
    }
    if not measured or calibration.samples_per_batch is None:
        return None
    others = min(neighbours_seen(run) or 0.0, run.header.machine.usable_cores)
    there: Place = place_of(run, Question(neighbours=others))
    predicted = predict_all(calibration, list(measured), there.conditions)
    pairs = [
        (found.samples_per_s, model)
        for found, each in zip(measured.values(), predicted, strict=True)
        if (model := _comparable(each, found)) is not None and model.value > 0
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


def _comparable(prediction: Prediction, found: Measured) -> Estimate | None:
    """The predicted rate of what was measured: steady, or over whole epochs."""
    steady, over = prediction.samples_per_s, prediction.epoch_batches_per_s
    if not found.whole_epochs or steady is None or over is None:
        return None if found.whole_epochs else steady
    return steady.times(over / prediction.batches_per_s.value)


def _overlap(one: Estimate, two: Estimate) -> bool:
    return _low(one) <= _high(two) and _low(two) <= _high(one)


def _low(estimate: Estimate) -> float:
    return estimate.value if estimate.low is None else estimate.low


def _high(estimate: Estimate) -> float:
    return estimate.value if estimate.high is None else estimate.high
