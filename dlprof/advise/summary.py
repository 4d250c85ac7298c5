"""What a run says of each configuration: one figure for all its trials, and its role.

The figures are those that the recommendation rests on, so that no view of a run shows others.
"""

from __future__ import annotations

import contextlib

from dlprof.advise.choice import Candidate, gather, speeds_of
from dlprof.advise.situation import Situation
from dlprof.errors import UsageError
from dlprof.records import Config, Estimate, Recommendation, Run
from dlprof.records.record import record

PICK = "recommended"
PRESENT = "yours"
TIE = "tie"
FASTEST = "fastest"
DEFAULT = "default"
FAILED = "failed"


@record(frozen=True, slots=True, kw_only=True)
class ConfigSummary:
    """One configuration over all its trials."""

    seen: Candidate  # what was seen of it
    # ``recommended``, ``yours`` (what the target is set to now), ``tie``, ``fastest``, ``default``
    # (PyTorch's own), ``failed`` or empty.
    role: str
    # The one rate that the run has for it, over whole epochs where their length is known; ``None``
    # without figures.
    rate: Estimate | None = None
    # The same as a model predicted it before anything was measured.
    predicted: Estimate | None = None
    # That rate over that of the pick (of the fastest, where nothing is recommended).
    relative: Estimate | None = None
    wait_fraction: float | None = None  # mean share of time waiting for data at the stated step

    @property
    def config(self) -> Config:
        """Which."""
        return self.seen.config


def summarize(run: Run, advice: Recommendation | None = None) -> tuple[ConfigSummary, ...]:
    """One for each configuration, fastest first, those without figures last."""
    advice = advice or run.recommendation
    candidates = gather(run)
    failed = tuple(
        ConfigSummary(seen=Candidate(config=each.config, name=each.name), role=FAILED)
        for each in candidates
        if not (each.trials or any(trial.outcome == "skipped" for trial in each.failures))
    )
    measured = [each for each in candidates if each.trials]
    if not measured:
        return failed
    situation = Situation.of(run)
    # What the trials gave, where the recommendation is for what they don't show.
    with contextlib.suppress(UsageError):
        asked = Situation.of(run, advice.constraints if advice else None)
        situation = situation if asked.by_model else asked
    speeds = speeds_of(situation)
    fastest = speeds.fastest(measured)
    pick = next((each for each in measured if advice and each.config == advice.config), None)
    roles = {} if situation.present is None else {situation.present: PRESENT}
    if advice is None:
        roles = {fastest.config: FASTEST} | roles
    else:
        related = {other.config: other.relation for other in advice.alternatives}
        known = {config: role for config, role in related.items() if role != "slower"}
        roles = known | roles | {advice.config: PICK}
    predicted = {
        cell.config: cell.samples_per_s
        if cell.epoch_samples_per_s is None
        else cell.samples_per_s.times(cell.epoch_samples_per_s / cell.samples_per_s.value)
        for cell in (run.prediction.cells if run.prediction is not None else ())
    }
    rows = (
        ConfigSummary(
            seen=each,
            role=roles.get(each.config, ""),
            rate=speeds.rate(each.key),
            predicted=predicted.get(each.config),
            relative=speeds.ratio(each.key, (pick or fastest).key),
            wait_fraction=speeds.wait_fraction(each),
        )
        for each in sorted(measured, key=lambda each: speeds.log_speed(each.key), reverse=True)
    )
    return (*rows, *failed)
