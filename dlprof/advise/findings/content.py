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
from dlprof.records import LENGTH_SIGN, Trial


def duplicated(view: View) -> Claim | None:
    """An iterable data set is not shared out among workers."""
    trials = view.evidence.trials()
    found = failed_by(trials, "duplicated")
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
    short = failed_by(trials, "truncated")
    warned = _promised_less(trials)
    if not short and not warned:
        return None
    return claim(
        view,
        "data.truncated",
        Words(
            title=TRUNCATED_TITLE,
            explanation=_message(short[0]) if short else _warning(warned[0]),
        ),
        place=Place.BROKEN,
        cost=1.0 if short else 0.5,
        figures={"seen_in": [trial.id for trial in short or warned]},
        fix=WHOLE,
    )


def _promised_less(trials: Sequence[Trial]) -> list[Trial]:
    """Those that gave more batches than they promised."""
    going = (trial for trial in trials if trial.failure is None)
    return [trial for trial in going if any(LENGTH_SIGN in text for text in trial.warnings)]


def _message(trial: Trial) -> str:
    return trial.failure.message if trial.failure is not None else ""


def _warning(trial: Trial) -> str:
    text = next(text for text in trial.warnings if LENGTH_SIGN in text)
    return text[:1].upper() + text[1:] + "."
