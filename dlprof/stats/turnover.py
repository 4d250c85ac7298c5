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
