"""From the evidence of a profile to its diagnosis: findings, and why the consumer waits."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence

from dlprof.advise.findings import Evidence, find
from dlprof.records import Diagnosis, Stalls, Trial

__all__ = ["diagnose", "stalls_of"]


def diagnose(evidence: Evidence, notes: Sequence[str] = ()) -> Diagnosis:
    """What the evidence says of one configuration.

    Args:
        evidence: Everything that was measured.
        notes: What people should know of the way it was measured.
    """
    return Diagnosis(
        config=evidence.config,
        findings=find(evidence),
        stalls=stalls_of(evidence),
        trials=tuple(trial.id for trial in evidence.trials()),
        notes=tuple(notes),
    )


def stalls_of(evidence: Evidence) -> Stalls | None:
    """The consumer's stalls by the differential of DS-Analyzer (Mohan et al., VLDB 2021).

    Returns:
        ``None`` without a step: a consumer that takes no time only waits.
    """
    resident_s, warm_s = _step_s(evidence), _batch_s(evidence.plain("present"))
    if resident_s is None or warm_s is None:
        return None
    cold_s = _batch_s(evidence.plain("cold"))
    longest_s = max(warm_s, cold_s or 0.0)
    return Stalls(
        resident_s=resident_s,
        warm_s=warm_s,
        cold_s=cold_s,
        prep_fraction=max(0.0, warm_s - resident_s) / longest_s,
        fetch_fraction=None if cold_s is None else max(0.0, cold_s - warm_s) / longest_s,
    )


def _step_s(evidence: Evidence) -> float | None:
    """The consumer's step alone; one that is a function is timed where it was explained."""
    if not evidence.has_step:
        return None
    explained = evidence.explained(evidence.config)
    step = None if explained is None else explained.stage("step")
    if step is not None:
        return step.mean_s
    return evidence.step_s or None


def _batch_s(trials: Sequence[Trial]) -> float | None:
    """Seconds a batch, the geometric middle of some trials."""
    rates = [trial.batches_per_s.value for trial in trials if trial.batches_per_s is not None]
    logs = [math.log(rate) for rate in rates if rate > 0]
    return math.exp(-statistics.median(logs)) if logs else None
