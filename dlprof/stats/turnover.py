"""The turn from one epoch to the next, and what lies between a rate over whole epochs and within.

In the turnover each worker loads its first batch, and in the last round some workers are idle: an
epoch of ``n`` batches that take ``r`` each, ``k`` workers and a turnover of ``T`` lasts
``n * r * (1 - held) + T``, where ``held`` is the share of the waiting for these ``n`` that falls
into the turnover, less that of the last round: ``(k - idle) / n``.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable
from typing import NamedTuple

from dlprof.records import Config, Trial


class Within(NamedTuple):
    """A trial's rate within its epochs.

    Attributes:
        factor: That rate over the one that was measured: above 1 where it covers whole epochs.
        follows: By how much more than the measured one its logarithm is off.
    """

    factor: float = 1.0
    follows: float = 1.0


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


def epoch_s(config: Config, batches: int, each_s: float, turnover_s: float, wait: float) -> float:
    """Seconds of an epoch, turnover included.

    Args:
        config: What loads it.
        batches: In the epoch.
        each_s: Seconds per batch within it.
        turnover_s: From an epoch's last batch to the first of the next.
        wait: Share of the time that is spent waiting for batches.
    """
    return batches * each_s * (1 - _held(config, batches, wait)) + turnover_s


def _held(config: Config, batches: int, wait: float) -> float:
    at_once = max(1, config.num_workers)
    idle = math.ceil(batches / at_once) * at_once - batches
    return (at_once - idle) * wait / batches


def within_epochs(trial: Trial) -> Within | None:
    """What makes a trial's rate that within its epochs, by the turnover that it timed.

    Returns:
        ``None`` where it covers whole epochs and that can't be told: samples were not counted, or
        the turnover is all that there is of an epoch.
    """
    if not trial.whole_epochs:
        return Within()
    rate, samples = trial.batches_per_s, trial.samples_per_s
    turnover_s = trial.startup_s if trial.epoch_turnover_s is None else trial.epoch_turnover_s
    if rate is None or samples is None or not trial.epoch_samples or turnover_s is None:
        return None
    batches = max(1, round(trial.epoch_samples * rate.value / samples.value))
    whole_s = batches / rate.value
    wait = 1.0 if trial.wait_fraction is None else trial.wait_fraction
    loaded = (whole_s - turnover_s) / whole_s
    left = 1 - _held(trial.config, batches, wait)
    if loaded <= 0 or left <= 0:
        return None
    return Within(factor=max(1.0, left / loaded), follows=1 / loaded)
