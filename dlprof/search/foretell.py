"""From what batches cost to what every configuration would give, and the few worth measuring."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Collection, Iterator, Sequence

from dlprof.model import Conditions, predict_all, relative_error
from dlprof.records import (
    Calibration,
    Config,
    Estimate,
    PredictedCell,
    Prediction,
    SweepPrediction,
    Trial,
)
from dlprof.search.grid import TIE
from dlprof.stats import Expected, fit_blocks, observe

_OUTRAN = math.log(1.1)
"""Mostly more than model and luck account for; where it isn't, it costs a few trials."""

_MOST_SIMULATED = 600
"""More configurations are predicted by the recursion, which takes a fraction of the time."""


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
    method = "simulation" if len(ordered) <= _MOST_SIMULATED else "maxplus"
    found = predict_all(calibration, ordered, conditions, method=method)
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
    pick = next(cell for cell in predicted if cell.speed >= TIE)
    return SweepPrediction(
        cells=predicted,
        race=race(predicted, pick, present),
        pick=pick.config,
        cores=conditions.cores,
        neighbours=conditions.neighbours,
        log_sd=relative_error(calibration),
        method=method,
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


def race_without(
    prediction: SweepPrediction, failed: Collection[Config], present: Config | None
) -> frozenset[Config]:
    """What to measure where some of the race failed; nothing new where the choice did not.

    What asks for as many workers and batches in flight as one that failed is taken to fail, too.

    Args:
        prediction: That chose the race.
        failed: Configurations that were measured in vain.
        present: As for ``race``.
    """
    left = [
        cell
        for cell in prediction.cells
        if not any(cell.config.asks_as_much_as(each) for each in failed)
    ]
    if not left:
        return frozenset()
    best = max(cell.speed for cell in left)
    pick = next(cell for cell in left if cell.speed >= TIE * best)
    return frozenset(() if pick.config == prediction.pick else race(left, pick, present))


def workers_beyond(
    prediction: SweepPrediction, cells: Sequence[Config], trials: Sequence[Trial]
) -> int | None:
    """How many workers more to look at, where the most that raced outran all and their forecast.

    A model that is calibrated with two workers may take the main process, or the cores, for a
    limit that batches in a hurry don't meet. Not beside neighbours, from whom ever more workers
    take ever more of the cores.

    Args:
        prediction: That chose the race.
        cells: All that could be predicted.
        trials: Completed ones; those of the race count.

    Returns:
        ``None`` where the race looked far enough, or there is nothing beyond.
    """
    fed = {config.key: config for config in prediction.race if config.num_workers}
    seen = [each for t in trials if t.config.key in fed and (each := observe(t)) is not None]
    if not seen or prediction.neighbours:
        return None
    rates, foretold = fit_blocks(seen).log_rates, Expected.of(prediction).of_observed(seen)
    most = max(rates, key=lambda key: (fed[key].num_workers, rates[key]))
    fewer = [key for key in rates if fed[key].num_workers < fed[most].num_workers]
    if not fewer or not foretold.keys() >= rates.keys():
        return None
    rival = max(fewer, key=rates.__getitem__)
    gain = rates[most] - rates[rival]
    beyond = sorted({c.num_workers for c in cells if c.num_workers > fed[most].num_workers})
    if not beyond or gain < _OUTRAN or gain - (foretold[most] - foretold[rival]) < _OUTRAN:
        return None
    return next((count for count in beyond if count >= 2 * fed[most].num_workers), beyond[-1])


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


def with_workers(
    prediction: SweepPrediction, workers: int, before: SweepPrediction
) -> SweepPrediction | None:
    """A prediction whose race is that of an earlier one, and what so many workers give best.

    Returns:
        ``None`` where it holds no such configuration, or that one has raced already: it may have
        failed.
    """
    new = _fastest(prediction.cells, workers, workers)
    if new is None or new.config in before.race:
        return None
    race = {*before.race, new.config}
    ordered = tuple(sorted(race, key=lambda config: config.cost_key))
    return dataclasses.replace(prediction, race=ordered)


def _fastest(cells: Sequence[PredictedCell], least: int, most: int) -> PredictedCell | None:
    """The cheapest of the fastest with so many workers."""
    some = [cell for cell in cells if least <= cell.config.num_workers <= most]
    best = max((cell.speed for cell in some), default=0.0)
    return next((cell for cell in some if cell.speed >= TIE * best), None)


def _more(cells: Sequence[PredictedCell], least: int) -> PredictedCell | None:
    """The fastest with the fewest workers that are so many; with most, where none has so many."""
    counts = sorted({cell.config.num_workers for cell in cells})
    count = next((count for count in counts if count >= least), counts[-1])
    return _fastest(cells, count, count)


def _samples(prediction: Prediction) -> Estimate:
    return prediction.samples_per_s or prediction.batches_per_s
