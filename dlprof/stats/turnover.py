"""The turn from one epoch to the next, timed once for all configurations that share it."""

from __future__ import annotations

import statistics
from collections.abc import Iterable

from dlprof.records import Config, Trial


def turnovers(trials: Iterable[Trial]) -> dict[Config, float]:
    """Seconds from an epoch to the next, by ``Config.turnover_group``: the median of its trials.

    Workers that don't persist start anew at each epoch: where no turnover was timed, starting
    them stands for it.
    """
    timed: dict[Config, list[float]] = {}
    started: dict[Config, list[float]] = {}
    for trial in trials:
        group = trial.config.turnover_group
        if trial.epoch_turnover_s is not None:
            timed.setdefault(group, []).append(trial.epoch_turnover_s)
        elif trial.startup_s is not None and not trial.config.persistent_workers:
            started.setdefault(group, []).append(trial.startup_s)
    return {group: statistics.median(values) for group, values in (started | timed).items()}


def epoch_rate(
    rate: float, batches: float, turnover_s: float, *, workers: int, wait: float = 1.0
) -> float:
    """Batches per second over whole epochs, each of which begins with a turnover.

    While the first batch is loaded, as it is in the turnover, each other worker loads one, too:
    that much of the turnover is no loss.

    Args:
        rate: Steady batches per second, above 0.
        batches: In an epoch, at least 1.
        turnover_s: From asking for a batch behind an epoch's last to the first of the next.
        workers: That load them; 0 for the main process.
        wait: Share of the steady time that is waiting for batches; 1 without a step.
    """
    first_s = min(max(1, workers), batches) * wait / rate
    return batches / (batches / rate + max(0.0, turnover_s - first_s))
