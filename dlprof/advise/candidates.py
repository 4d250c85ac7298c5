"""A run's configurations, each with what was measured and predicted of it."""

from __future__ import annotations

import dataclasses
import statistics
from collections.abc import Iterable

from dlprof.records import Config, Prediction, Run, Trial
from dlprof.stats import turnovers


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Candidate:
    """One configuration, and everything that was seen and predicted of it.

    Attributes:
        config: Which.
        name: It in words.
        trials: Those with a rate, in the order of measuring.
        failures: Those that failed.
        epoch_turnover_s: From an epoch's last batch to the next one's first, as the run shows it
            for this configuration or one that shares its turnover, or as it is predicted.
        prediction: What it would give under the conditions that are asked for, by the same belief
            as all rates; ``None`` where only trials are asked.
        measured: Whether its trials show these conditions.
    """

    config: Config
    name: str
    trials: tuple[Trial, ...] = ()
    failures: tuple[Trial, ...] = ()
    epoch_turnover_s: float | None = None
    prediction: Prediction | None = None
    measured: bool = True

    @property
    def key(self) -> str:
        """``Config.key``."""
        return self.config.key

    @property
    def trial_ids(self) -> list[str]:
        """The trials with a rate that show the conditions that are asked for."""
        return [trial.id for trial in self.trials] if self.measured else []

    @property
    def pss_bytes(self) -> int | None:
        """Largest peak of the process tree's memory, with queues as full as they get."""
        peaks = ((trial, trial.usage.pss_peak_bytes) for trial in self.trials)
        seen = [pss + self._unfilled_bytes(trial) for trial, pss in peaks if pss is not None]
        return max(seen) if seen else self._predicted("pss_bytes")

    @property
    def shm_bytes(self) -> int | None:
        """Largest peak of shared memory seen, or what full queues hold, whichever is more."""
        seen = [
            *(t.usage.shm_peak_bytes for t in self.trials),
            *map(self._queued_bytes, self.trials),
        ]
        return max((n for n in seen if n is not None), default=self._predicted("shm_bytes"))

    def _predicted(self, need: str) -> int | None:
        value = None if self.prediction is None else getattr(self.prediction, need)
        return None if value is None else round(value)

    def _queued_bytes(self, trial: Trial) -> int | None:
        """What full queues hold; ``None`` without workers, or where batches have no known size."""
        if trial.batch_bytes is None or not self.config.num_workers:
            return None
        return round(self.config.queued_batches * trial.batch_bytes)

    def _unfilled_bytes(self, trial: Trial) -> int:
        """What queues could have held beyond what they did when memory was read."""
        full, seen = self._queued_bytes(trial), trial.usage.shm_peak_bytes
        # Batches that aren't shared, as those of numpy arrays, wait in the workers' own memory.
        return max(0, full - seen) if full and seen else 0

    @property
    def startup_s(self) -> float | None:
        """Median of ``iter`` plus first ``next``."""
        seen = typical(trial.startup_s for trial in self.trials)
        return self.prediction.startup_s if seen is None and self.prediction else seen

    @property
    def copy_s(self) -> float | None:
        """Median seconds a batch in which the step waited for its copy to the device."""
        return typical(t.copies.exposed_s for t in self.trials if t.copies is not None)

    @property
    def own_cpu_cores(self) -> float | None:
        """Median of busy cores of the trial's own processes."""
        return typical(trial.usage.own_cpu_cores for trial in self.trials)

    @property
    def available_cpu_cores(self) -> float | None:
        """Median of the cores that the trial could have had."""
        return typical(trial.usage.available_cpu_cores for trial in self.trials)

    @property
    def noisy(self) -> int:
        """How many of the trials with a rate are doubtful."""
        return sum(trial.noisy for trial in self.trials)


def gather(run: Run) -> list[Candidate]:
    """One candidate for each configuration of the run, cheapest first."""
    groups: dict[Config, list[Trial]] = {}
    for trial in run.trials:
        if trial.purpose == "measure":
            groups.setdefault(trial.config, []).append(trial)
    turns = turnovers(run.completed)
    depths = {config.prefetch_factor for config in groups if config.num_workers}
    return [
        Candidate(
            config=config,
            name=config.text_naming("prefetch_factor") if len(depths) > 1 else config.text,
            trials=tuple(trial for trial in trials if has_rate(trial)),
            failures=tuple(trial for trial in trials if trial.outcome != "completed"),
            epoch_turnover_s=turns.get(config.turnover_group),
        )
        for config, trials in sorted(groups.items(), key=lambda item: item[0].cost_key)
    ]


def has_rate(trial: Trial) -> bool:
    """Whether a trial can be compared."""
    rate = trial.samples_per_s
    return trial.outcome == "completed" and rate is not None and rate.value > 0


def typical(values: Iterable[float | None]) -> float | None:
    """The median of those that are known; ``None`` where none is."""
    known = [value for value in values if value is not None]
    return statistics.median(known) if known else None
