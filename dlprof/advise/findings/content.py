"""Data that comes more often, or less often, than it should."""

from __future__ import annotations

from collections.abc import Sequence

from dlprof.advise.findings.claims import Claim, Place, Words, claim
from dlprof.advise.findings.view import View
from dlprof.advise.wrong_data import (
    DUPLICATED_TITLE,
    SHARDED,
    TRUNCATED_TITLE,
    WHOLE,
    duplicated_cost,
    failed_by,
    several_times,
)
from dlprof.records import DUPLICATED_SIGN, LENGTH_SIGN, Trial


def duplicated(view: View) -> Claim | None:
    """An iterable data set is not shared out among workers."""
    trials = view.evidence.trials()
    found = [*failed_by(trials, "duplicated"), *_warned(trials, DUPLICATED_SIGN)]
    if not found:
        return None
    return claim(
        view,
        "data.duplicated",
        Words(title=DUPLICATED_TITLE, explanation=several_times(max(2, view.workers))),
        place=Place.BROKEN,
        cost=duplicated_cost(view.workers),
        figures={"num_workers": view.workers, "seen_in": [trial.id for trial in found]},
        fix=SHARDED,
    )


def truncated(view: View) -> Claim | None:
    """An epoch ended early."""
    trials = view.evidence.trials()
    failed = failed_by(trials, "truncated")
    warned = _warned(trials, LENGTH_SIGN)
    if not failed and not warned:
        return None
    return claim(
        view,
        "data.truncated",
        Words(
            title=TRUNCATED_TITLE,
            explanation=_message(failed[0]) if failed else _warning(warned[0]),
        ),
        place=Place.BROKEN,
        cost=1.0 if failed else 0.5,
        figures={"seen_in": [trial.id for trial in failed or warned]},
        fix=WHOLE,
    )


def _warned(trials: Sequence[Trial], sign: str) -> list[Trial]:
    """Trials that went on, of a script or an epoch that is too long."""
    going = (trial for trial in trials if trial.failure is None)
    return [trial for trial in going if any(sign in text for text in trial.warnings)]


def _message(trial: Trial) -> str:
    return trial.failure.message if trial.failure is not None else ""


def _warning(trial: Trial) -> str:
    text = next(text for text in trial.warnings if LENGTH_SIGN in text)
    return text[:1].upper() + text[1:] + "."
