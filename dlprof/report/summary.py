"""A run's trials gathered by configuration: the rows of the tables and the bars of the plot.

The figures are those that the recommendation rests on, so that one screen never tells two.
"""

from __future__ import annotations

import dataclasses

from dlprof.advise.candidates import Candidate, gather
from dlprof.advise.situation import Situation
from dlprof.advise.speeds import Speeds, speeds_of
from dlprof.records import Config, ConfigRate, Estimate, Recommendation, Run

PICK = "recommended"
PRESENT = "yours"
TIE = "tie"
FASTEST = "fastest"
DEFAULT = "default"
FAILED = "failed"


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One configuration over all its trials.

    Attributes:
        config: Which.
        role: ``recommended``, ``yours`` (what the target is set to now), ``tie``, ``fastest``,
            ``default`` (PyTorch's own), ``failed`` or empty.
        rate: The one rate that the run has for it, over whole epochs where their length is known;
            ``None`` without figures.
        predicted: The same as a model predicted it before anything was measured.
        relative: That rate over that of the pick (of the fastest, where nothing is recommended).
        startup_s: Median of ``iter`` plus first ``next``.
        epoch_turnover_s: From an epoch to the next, with these workers.
        wait_fraction: Mean share of time waiting for data at the stated step.
        copy_s: Median seconds a batch in which the step waited for its copy to the device.
        pss_bytes: Largest peak of the process tree's memory.
        shm_bytes: Shared memory with full queues.
        own_cores: Median busy cores of the trial's own processes.
        available_cores: Median cores that it could have had.
        trials: Trials with a rate.
        noisy: How many of those are doubtful.
    """

    config: Config
    role: str
    rate: Estimate | None = None
    predicted: Estimate | None = None
    relative: Estimate | None = None
    startup_s: float | None = None
    epoch_turnover_s: float | None = None
    wait_fraction: float | None = None
    copy_s: float | None = None
    pss_bytes: int | None = None
    shm_bytes: int | None = None
    own_cores: float | None = None
    available_cores: float | None = None
    trials: int = 0
    noisy: int = 0


def summarize(run: Run) -> tuple[Row, ...]:
    """One row per configuration, fastest first, those without figures last.

    Args:
        run: What was measured, and its recommendation, which tells the pick and the ties.
    """
    candidates = gather(run)
    failed = tuple(
        Row(config=each.config, role=FAILED) for each in candidates if _was_tried_in_vain(each)
    )
    measured = [each for each in candidates if each.trials]
    if not measured:
        return failed
    advice = run.recommendation
    situation = Situation.of(run, advice.constraints if advice else None)
    # What the trials gave, where the recommendation is for what a model predicts from them.
    situation = Situation.of(run) if situation.by_model else situation
    speeds = speeds_of(run, situation)
    fastest = speeds.fastest(measured)
    pick = next((each for each in measured if advice and each.config == advice.config), None)
    roles = _roles(advice, situation.present, fastest.config)
    measured.sort(key=lambda each: speeds.log_speed(each.key), reverse=True)
    rows = [_row(each, speeds, pick or fastest, roles.get(each.config, "")) for each in measured]
    predicted = _predicted(run)
    whole = (dataclasses.replace(row, predicted=predicted.get(row.config)) for row in rows)
    kept = run.kept_rates if pick else {}
    return (*(_as_kept(row, kept.get(row.config)) for row in whole), *failed)


def _as_kept(row: Row, kept: ConfigRate | None) -> Row:
    """A row with the rate that was kept when the run ended, whatever would be estimated by now."""
    if kept is None:
        return row
    return dataclasses.replace(row, rate=kept.samples_per_s, relative=kept.ratio)


def _predicted(run: Run) -> dict[Config, Estimate]:
    cells = run.prediction.cells if run.prediction is not None else ()
    return {
        cell.config: cell.samples_per_s
        if cell.epoch_samples_per_s is None
        else cell.samples_per_s.times(cell.epoch_samples_per_s / cell.samples_per_s.value)
        for cell in cells
    }


def _was_tried_in_vain(candidate: Candidate) -> bool:
    """Whether there are no figures, although it was not skipped."""
    skipped = any(trial.outcome == "skipped" for trial in candidate.failures)
    return not candidate.trials and not skipped


def _roles(
    advice: Recommendation | None, present: Config | None, fastest: Config
) -> dict[Config, str]:
    """What the recommendation calls configurations; the pick counts most, then the present."""
    now = {} if present is None else {present: PRESENT}
    if advice is None:
        return {fastest: FASTEST} | now
    related = {other.config: other.relation for other in advice.alternatives}
    known = {config: role for config, role in related.items() if role != "slower"}
    return known | now | {advice.config: PICK}


def _row(candidate: Candidate, speeds: Speeds, reference: Candidate, role: str) -> Row:
    return Row(
        config=candidate.config,
        role=role,
        rate=speeds.rate(candidate.key),
        relative=speeds.ratio(candidate.key, reference.key),
        startup_s=candidate.startup_s,
        epoch_turnover_s=candidate.epoch_turnover_s,
        wait_fraction=speeds.wait_fraction(candidate),
        copy_s=candidate.copy_s,
        pss_bytes=candidate.pss_bytes,
        shm_bytes=candidate.shm_bytes,
        own_cores=candidate.own_cpu_cores,
        available_cores=candidate.available_cpu_cores,
        trials=len(candidate.trials),
        noisy=candidate.noisy,
    )
