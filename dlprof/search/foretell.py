"""From what batches cost to what every configuration would give, and the few worth measuring."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

from dlprof.model import Conditions, predict_all, relative_error
from dlprof.records import (
    Calibration,
    Config,
    Estimate,
    PredictedCell,
    Prediction,
    SweepPrediction,
)
from dlprof.stats import NEAR


def foretell(
    calibration: Calibration,
    cells: Sequence[Config],
    conditions: Conditions,
    *,
    present: Config | None = None,
) -> SweepPrediction:
    """Predict all configurations, and choose which to measure.

    Args:
        calibration: What batches cost.
        cells: Canonical configurations, at least one.
        conditions: Where they run, and how long an epoch is, where that is known.
        present: What the target's own DataLoader is set to now, if it is among the cells.

    Raises:
        ValueError: The calibration tells nothing of such batches.
    """
    ordered = sorted(cells, key=lambda config: config.cost_key)
    found = predict_all(calibration, ordered, conditions)
    if not all(0 < each.batches_per_s.value < math.inf for each in found):
        raise ValueError("the calibrated batches cost no time at all")
    speeds = [each.epoch_batches_per_s or each.batches_per_s.value for each in found]
    best = max(speeds)
    predicted = tuple(
        PredictedCell(
            config=config,
            samples_per_s=_samples(each),
            speed=speed / best,
            bound=each.bound,
            epoch_samples_per_s=(
                None
                if each.epoch_batches_per_s is None
                else _samples(each).value * speed / each.batches_per_s.value
            ),
        )
        for config, each, speed in zip(ordered, found, speeds, strict=True)
    )
    pick = next(cell for cell in predicted if cell.speed >= NEAR)
    return SweepPrediction(
        cells=predicted,
        race=race(predicted, pick, present),
        pick=pick.config,
        cores=conditions.cores,
        neighbours=conditions.neighbours,
        log_sd=relative_error(calibration),
        method=found[0].method,
    )


def race(
    cells: Sequence[PredictedCell], pick: PredictedCell, present: Config | None
) -> tuple[Config, ...]:
    """The configurations whose measuring tells most: what is chosen, and what would prove it wrong.

    Args:
        cells: Cheapest first.
        pick: The predicted choice.
        present: The settings as they are, against which a gain is told.
    """
    wanted = {cell.config for cell in _rivals(cells, pick, present) if cell}
    return tuple(sorted(wanted, key=lambda config: config.cost_key))


def _rivals(
    cells: Sequence[PredictedCell], pick: PredictedCell, present: Config | None
) -> Iterator[PredictedCell | None]:
    """The pick, what a gain is told against, and what fewer and more workers give."""
    workers = pick.config.num_workers
    yield pick
    yield next((cell for cell in cells if cell.config == present), None)
    yield next((cell for cell in cells if not cell.config.num_workers), None)
    yield _fastest(cells, 1, workers // 2) or _fastest(cells, 1, workers - 1)
    yield _more(cells, max(1, 2 * workers))


def _fastest(cells: Sequence[PredictedCell], least: int, most: int) -> PredictedCell | None:
    """The cheapest of the fastest with so many workers."""
    some = [cell for cell in cells if least <= cell.config.num_workers <= most]
    best = max((cell.speed for cell in some), default=0.0)
    return next((cell for cell in some if cell.speed >= NEAR * best), None)


def _more(cells: Sequence[PredictedCell], least: int) -> PredictedCell | None:
    """The fastest with the fewest workers that are so many; with most, where none has so many."""
    counts = sorted({cell.config.num_workers for cell in cells})
    count = next((count for count in counts if count >= least), counts[-1])
    return _fastest(cells, count, count)


def _samples(prediction: Prediction) -> Estimate:
    return prediction.samples_per_s or prediction.batches_per_s
