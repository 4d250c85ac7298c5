"""From what batches cost to what every configuration would give, and the few worth measuring."""

from __future__ import annotations

import math
from collections.abc import Sequence

from dlprof.model import Conditions, predict_all, relative_error
from dlprof.records import Calibration, Config, PredictedCell, SweepPrediction
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
    predicted = []
    for config, each, speed in zip(ordered, found, speeds, strict=True):
        steady = each.samples_per_s or each.batches_per_s
        over_epochs = steady.value * speed / each.batches_per_s.value
        predicted.append(
            PredictedCell(
                config=config,
                samples_per_s=steady,
                speed=speed / best,
                bound=each.bound,
                epoch_samples_per_s=None if each.epoch_batches_per_s is None else over_epochs,
            )
        )
    pick = next(cell for cell in predicted if cell.speed >= NEAR)
    return SweepPrediction(
        cells=tuple(predicted),
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

    def fastest(least: int, most: int) -> PredictedCell | None:
        """The cheapest of the fastest with so many workers."""
        some = [cell for cell in cells if least <= cell.config.num_workers <= most]
        best = max((cell.speed for cell in some), default=0.0)
        return next((cell for cell in some if cell.speed >= NEAR * best), None)

    workers = pick.config.num_workers
    counts = sorted({cell.config.num_workers for cell in cells})
    more = next((count for count in counts if count >= max(1, 2 * workers)), counts[-1])
    wanted = [
        pick,
        next((cell for cell in cells if cell.config == present), None),
        next((cell for cell in cells if not cell.config.num_workers), None),
        fastest(1, workers // 2) or fastest(1, workers - 1),
        fastest(more, more),
    ]
    found = {cell.config for cell in wanted if cell is not None}
    return tuple(sorted(found, key=lambda config: config.cost_key))
