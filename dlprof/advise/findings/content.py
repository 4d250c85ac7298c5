"""Data that comes more often, or less often, than it should."""

from __future__ import annotations

from dlprof.advise import wrong_data
from dlprof.advise.findings.claims import Claim
from dlprof.advise.findings.view import View


def duplicated(view: View) -> Claim | None:
    """An iterable data set is not shared out among workers."""
    trials = view.evidence.trials()
    found = wrong_data.failed_by(trials, "duplicated")
    if not found:
        return None
    return Claim(
        title=wrong_data.DUPLICATED_TITLE,
        explanation=wrong_data.several_times(max(2, view.workers), found),
        cost=wrong_data.duplicated_cost(view.workers),
        figures={"num_workers": view.workers, "seen_in": [trial.id for trial in found]},
        fix=wrong_data.SHARDED,
    )


def unshared(view: View) -> Claim | None:
    """An iterable data set may not be shared out among workers: none asked for its share."""
    seen = view.evidence.integrity.unshared
    if not seen:
        return None
    return Claim(
        title=wrong_data.UNSHARED_TITLE,
        explanation=wrong_data.unshared_text(seen),
        cost=0.0,
        figures={"num_workers": view.workers, "seen_in": [*seen]},
        fix=wrong_data.SHARDED,
    )


def truncated(view: View) -> Claim | None:
    """An epoch ended early."""
    short = wrong_data.failed_by(view.evidence.trials(), "truncated")
    if not short:
        return None
    failure = short[0].failure
    return Claim(
        title=wrong_data.TRUNCATED_TITLE,
        explanation="" if failure is None else failure.message,
        cost=1.0,
        figures={"seen_in": [trial.id for trial in short]},
        fix=wrong_data.WHOLE,
    )
