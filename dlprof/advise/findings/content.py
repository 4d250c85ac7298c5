"""Data that comes more often, or less often, than it should."""

from __future__ import annotations

from dlprof.advise.findings.claims import Claim, Place, Words, claim
from dlprof.advise.findings.view import View
from dlprof.advise.wrong_data import (
    DUPLICATED_TITLE,
    SHARDED,
    TRUNCATED_TITLE,
    UNSHARED_TITLE,
    WHOLE,
    duplicated_cost,
    failed_by,
    several_times,
    unshared_text,
)


def duplicated(view: View) -> Claim | None:
    """An iterable data set is not shared out among workers."""
    trials = view.evidence.trials()
    found = failed_by(trials, "duplicated")
    if not found:
        return None
    return claim(
        view,
        "data.duplicated",
        Words(title=DUPLICATED_TITLE, explanation=several_times(max(2, view.workers), found)),
        place=Place.BROKEN,
        cost=duplicated_cost(view.workers),
        figures={"num_workers": view.workers, "seen_in": [trial.id for trial in found]},
        fix=SHARDED,
    )


def unshared(view: View) -> Claim | None:
    """An iterable data set may not be shared out among workers: none asked for its share."""
    seen = view.evidence.integrity.unshared
    if not seen:
        return None
    return claim(
        view,
        "data.unshared",
        Words(title=UNSHARED_TITLE, explanation=unshared_text(seen)),
        place=Place.FAULT,
        cost=0.0,
        figures={"num_workers": view.workers, "seen_in": [*seen]},
        fix=SHARDED,
    )


def truncated(view: View) -> Claim | None:
    """An epoch ended early."""
    short = failed_by(view.evidence.trials(), "truncated")
    if not short:
        return None
    failure = short[0].failure
    return claim(
        view,
        "data.truncated",
        Words(title=TRUNCATED_TITLE, explanation="" if failure is None else failure.message),
        place=Place.BROKEN,
        cost=1.0,
        figures={"seen_in": [trial.id for trial in short]},
        fix=WHOLE,
    )
