"""How near the best a recommendation is for sure, and what that leaves in doubt."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import TYPE_CHECKING

from dlprof.advise.choice import Choice
from dlprof.advise.thresholds import FAR_CORES, HIGH, MEDIUM
from dlprof.advise.wording import percent, times
from dlprof.records import (
    ONE_BATCH_SIGN,
    USELESS,
    Certificate,
    Confidence,
    Config,
    Integrity,
    Run,
)
from dlprof.stats import PROBABILITY
from dlprof.units import format_duration

if TYPE_CHECKING:
    from dlprof.advise.predict.beside import Agreement
    from dlprof.advise.situation import Situation


def certify(choice: Choice, run: Run) -> Certificate | None:
    """The certificate of a choice: how far from the best it may be, at most.

    Args:
        choice: What was chosen.
        run: From which.

    Returns:
        ``None`` where it is for conditions that nobody measured: another machine, several ranks or
        what only a model answers, and where there is nothing to compare it with.
    """
    situation = choice.situation
    if situation.extrapolated or situation.constraints.ranks > 1 or situation.by_model:
        return None
    pick = choice.pick.key
    measured = [each.key for each in choice.allowed if each.measured and each is not choice.pick]
    others = {each.key for each in choice.allowed if not each.measured}
    others |= {each.key for each in unmeasured(choice.situation, run)}
    predicted = sorted(others - {pick})
    if not measured and not predicted:
        return None
    own = int(choice.pick.measured)
    return Certificate(
        epsilon=_share(choice.speeds.shortfall(pick, [*measured, *predicted])),
        epsilon_measured=_share(choice.speeds.shortfall(pick, measured)),
        probability=PROBABILITY,
        configurations=1 + len(measured) + len(predicted),
        measured=own + len(measured),
    )


def unmeasured(situation: Situation, run: Run) -> list[Config]:
    """What was only predicted and may be used: nothing like it failed, nor are workers too many."""
    if not situation.as_measured or run.prediction is None:
        return []
    found, failed = Integrity.of(run), {t.config for t in run.trials if t.failure is not None}
    asked = situation.constraints.max_workers
    most = math.inf if asked is None else asked
    if run.header.target.kind == "iterable":
        most = min(most, found.worked)  # how many its shards feed only a trial shows
    known = {t.config for t in run.completed if t.purpose == "measure"}
    return [
        cell.config
        for cell in run.prediction.cells
        if cell.config not in known
        and cell.config.num_workers <= most
        and not found.is_useless(cell.config)
        and not any(cell.config.asks_as_much_as(each) for each in failed)
    ]


def judge(
    choice: Choice, run: Run, certificate: Certificate | None, agreed: Agreement | None = None
) -> tuple[Confidence, str]:
    """The confidence and one sentence: the gravest doubt, else what is certain.

    Args:
        choice: What was chosen.
        run: From which.
        certificate: How near the best that is.
        agreed: Predictions against the run's own trials, where the choice rests on predictions.
    """
    doubts = [*_doubts(choice, run, agreed)]
    if choice.situation.as_measured and run.prediction is not None and not run.completed:
        doubts.append("no trial has checked what is predicted: go on with dlprof sweep --resume")
    if doubts:
        return "low", doubts[0]
    if not choice.pick.measured:
        return "medium", next(_lesser(choice, run, agreed))
    if certificate is None:
        return "low", "no other configuration gave a rate that it could be compared with"
    epsilon, derived_s = certificate.shown, choice.situation.derived_step_s
    if epsilon > MEDIUM:
        return "low", certificate.text
    if derived_s is not None:
        step = format_duration(derived_s)
        return "medium", f"a step of {step} was not measured: sweep with --step-time to be sure"
    return "high" if certificate.epsilon <= HIGH else "medium", certificate.text


def _doubts(choice: Choice, run: Run, agreed: Agreement | None) -> Iterator[str]:
    """What no rate of this run tells."""
    pick, situation = choice.pick, choice.situation
    ranks, mine = situation.constraints.ranks, run.header.machine.hostname
    if not pick.measured:
        yield from run.calibration.doubts if run.calibration is not None else ()
        if agreed is not None and agreed.is_poor:
            yield f"{_outside(agreed)}: measure before you rely on it"
        if situation.speed.doubt:
            yield situation.speed.doubt
        if situation.extrapolated:
            there = situation.machine.hostname
            yield f"it was calibrated on {mine}, and nothing was measured on {there}"
        rate = choice.speeds.rate(pick.key)
        lower = 1.0 if rate.low is None or rate.value <= 0 else 1 - rate.low / rate.value
        if lower > USELESS:
            yield f"its rate may be {percent(lower)} lower: calibrate for longer"
        return
    if situation.extrapolated:
        yield (
            f"it was measured on {mine}, not on {situation.machine.hostname}: only the limits are "
            "known there"
        )
    if any(ONE_BATCH_SIGN in trial.warnings for trial in pick.trials):
        yield ONE_BATCH_SIGN
    if ranks > 1:
        yield f"one loader was measured, not {ranks} at once"
    if pick.failures:
        yield f"{pick.name} also failed {times(len(pick.failures))}"


def _lesser(choice: Choice, run: Run, agreed: Agreement | None) -> Iterator[str]:
    """Why what was only predicted is no surer, at least one sentence."""
    situation = choice.situation
    ranks = situation.constraints.ranks
    if ranks > 1:
        yield f"one loader was calibrated, not {ranks} at once"
    known = run.calibration.available_cores if run.calibration is not None else None
    if known is not None and situation.cores > FAR_CORES * known:
        yield f"{known:.1f} cores were available when it was calibrated, not {situation.cores:g}"
    if agreed is not None and agreed.outside:
        yield _outside(agreed)
    if situation.by_model or agreed is None:
        yield "nothing of this kind was measured: it rests on the model"
    yield "the model agrees with what was measured, but these settings were not"


def _outside(agreed: Agreement) -> str:
    return (
        f"{agreed.outside} of {agreed.configs} measured configurations gave rates outside of "
        f"what the model predicts for them (up to {agreed.worst:.2g}x)"
    )


def _share(log: float) -> float:
    """How much slower the recommended settings may be than the best, as a share."""
    return 1 - math.exp(-log)
