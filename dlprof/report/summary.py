"""A run's trials gathered by configuration: the rows of the tables and the bars of the plot."""

from __future__ import annotations

import dataclasses
import statistics
from collections.abc import Callable, Iterable, Sequence

from dlprof.records import Config, Estimate, Recommendation, Run, Trial
from dlprof.stats import turnovers
from dlprof.stats.blocks import BlockFit, fit_blocks, observe

PICK = "pick"
PRESENT = "present"
TIE = "tie"
FASTEST = "fastest"
DEFAULT = "default"
FAILED = "failed"


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One configuration over all its trials.

    Attributes:
        config: Which.
        role: ``pick``, ``present`` (what the target is set to now), ``tie``, ``fastest``,
            ``default`` (PyTorch's own), ``failed`` or empty.
        rate: Samples per second, drift between blocks taken out; ``None`` without figures.
        relative: Rate over that of the pick (of the fastest, where nothing is recommended).
        startup_s: Median of ``iter`` plus first ``next``.
        epoch_turnover_s: From an epoch to the next, with these workers.
        wait_fraction: Median share of time waiting for data at the stated step.
        pss_bytes: Largest peak of the process tree's memory.
        shm_bytes: Largest peak of shared memory.
        own_cores: Median busy cores of the trial's own processes.
        available_cores: Median cores that it could have had.
        trials: Completed trials.
        noisy: How many of those are doubtful.
    """

    config: Config
    role: str
    rate: Estimate | None
    relative: Estimate | None
    startup_s: float | None
    epoch_turnover_s: float | None = None
    wait_fraction: float | None
    pss_bytes: int | None
    shm_bytes: int | None
    own_cores: float | None
    available_cores: float | None
    trials: int
    noisy: int


def summarise(run: Run, recommendation: Recommendation | None = None) -> tuple[Row, ...]:
    """One row per configuration, fastest first, those without figures last.

    Args:
        run: What was measured.
        recommendation: Tells the pick and the ties; the run's own where it is ``None``.
    """
    recommendation = recommendation or run.recommendation
    groups = _by_config(run.trials)
    fit = fit_trials(run.completed)
    reference = _reference(fit, recommendation)
    present = present_settings(run)
    turns = turnovers(run.completed)
    rows = [
        dataclasses.replace(
            _row(config, trials, fit, reference, _role(config, fit, recommendation, present)),
            epoch_turnover_s=turns.get(config.turnover_group),
        )
        for config, trials in groups.items()
    ]
    return tuple(sorted(rows, key=_slowness))


def present_settings(run: Run) -> Config | None:
    """What the target's own DataLoader is set to now; ``None`` where it has none."""
    header = run.header
    return header.target.present_settings(has_accelerator=header.accelerator is not None)


def fit_trials(trials: Iterable[Trial]) -> BlockFit | None:
    """The block model over the trials that have a rate; ``None`` where none has."""
    observations = [seen for trial in trials if (seen := observe(trial)) is not None]
    return fit_blocks(observations) if observations else None


def _by_config(trials: Iterable[Trial]) -> dict[Config, list[Trial]]:
    groups: dict[Config, list[Trial]] = {}
    for trial in trials:
        groups.setdefault(trial.config, []).append(trial)
    return groups


def _reference(fit: BlockFit | None, recommendation: Recommendation | None) -> str | None:
    """The configuration whose rate is 1.00x: the pick, or the fastest."""
    if fit is None:
        return None
    if recommendation is not None and recommendation.config.key in fit.log_rates:
        return recommendation.config.key
    return fit.best()


def _role(
    config: Config,
    fit: BlockFit | None,
    recommendation: Recommendation | None,
    present: Config | None,
) -> str:
    if fit is None or config.key not in fit.log_rates:
        return FAILED
    if recommendation is not None and config == recommendation.config:
        return PICK
    if config == present:
        return PRESENT
    if recommendation is not None:
        relations = {other.config: other.relation for other in recommendation.alternatives}
        if config in relations:
            return "" if relations[config] == "slower" else relations[config]
    return FASTEST if config.key == fit.best() else ""


def _row(
    config: Config, trials: Sequence[Trial], fit: BlockFit | None, reference: str | None, role: str
) -> Row:
    done = [trial for trial in trials if trial.outcome == "completed"]
    measured = fit is not None and config.key in fit.log_rates
    return Row(
        config=config,
        role=role,
        rate=fit.rate(config.key) if fit is not None and measured else None,
        relative=(
            fit.ratio(config.key, reference)
            if fit is not None and reference is not None and measured
            else None
        ),
        startup_s=_median(done, lambda trial: trial.startup_s),
        wait_fraction=_median(done, lambda trial: trial.wait_fraction),
        pss_bytes=_largest(trial.usage.pss_peak_bytes for trial in done),
        shm_bytes=_largest(trial.usage.shm_peak_bytes for trial in done),
        own_cores=_median(done, lambda trial: trial.usage.own_cpu_cores),
        available_cores=_median(done, lambda trial: trial.usage.available_cpu_cores),
        trials=len(done),
        noisy=sum(trial.noisy for trial in done),
    )


def _median(trials: Iterable[Trial], figure: Callable[[Trial], float | None]) -> float | None:
    known = [value for trial in trials if (value := figure(trial)) is not None]
    return statistics.median(known) if known else None


def _largest(values: Iterable[int | None]) -> int | None:
    return max((value for value in values if value is not None), default=None)


def _slowness(row: Row) -> tuple[float, int, str]:
    """Sorts by falling rate, equal rates and missing ones by cost."""
    rate = row.rate.value if row.rate is not None else -1.0
    return (-rate, row.config.num_workers, row.config.key)
