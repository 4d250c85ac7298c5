"""How near the best a recommendation is for sure, and what that leaves in doubt."""

from __future__ import annotations

import math
from collections.abc import Iterator

from dlprof.advise.candidates import rest_on_one_batch
from dlprof.advise.choice import Choice
from dlprof.advise.wording import times
from dlprof.records import Certificate, Confidence, Config, Integrity, Run
from dlprof.stats import PROBABILITY
from dlprof.units import format_duration

HIGH, MEDIUM = 0.05, 0.15
"""A recommendation that is surely within so much of the best is called that."""


def certify(choice: Choice, run: Run) -> Certificate | None:
    """The certificate of a choice: how far from the best it may be, at most.

    Args:
        choice: What was chosen.
        run: From which.

    Returns:
        ``None`` where it is for another machine or for several ranks, which nobody measured, and
        where there is nothing to compare it with.
    """
    situation = choice.situation
    if situation.extrapolated or situation.constraints.ranks > 1:
        return None
    pick = choice.pick.key
    measured = [each.key for each in choice.allowed if each is not choice.pick]
    predicted = [config.key for config in unmeasured(choice, run)]
    if not measured and not predicted:
        return None
    return Certificate(
        epsilon=_share(choice.speeds.shortfall(pick, [*measured, *predicted])),
        epsilon_measured=_share(choice.speeds.shortfall(pick, measured)),
        probability=PROBABILITY,
        configurations=1 + len(measured) + len(predicted),
        measured=1 + len(measured),
    )


def unmeasured(choice: Choice, run: Run) -> list[Config]:
    """What was only predicted and may be used: nothing like it failed, nor are workers too many."""
    if choice.situation.expected is None or run.prediction is None:
        return []
    found, failed = Integrity.of(run), {t.config for t in run.trials if t.failure is not None}
    asked = choice.situation.constraints.max_workers
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


def judge(choice: Choice, run: Run, certificate: Certificate | None) -> tuple[Confidence, str]:
    """The confidence and one sentence: the gravest doubt, else what is certain."""
    for sentence in _doubts(choice, run):
        return "low", sentence
    if certificate is None:
        return "low", "no other configuration gave a rate that it could be compared with"
    epsilon, derived_s = certificate.shown, choice.situation.derived_step_s
    if epsilon > MEDIUM:
        return "low", certificate.text
    if derived_s is not None:
        step = format_duration(derived_s)
        return "medium", f"a step of {step} was not measured: sweep with --step-time to be sure"
    return "high" if certificate.epsilon <= HIGH else "medium", certificate.text


def _doubts(choice: Choice, run: Run) -> Iterator[str]:
    """What no rate of this run tells."""
    pick, situation = choice.pick, choice.situation
    ranks = situation.constraints.ranks
    if situation.extrapolated:
        yield (
            f"it was measured on {run.header.machine.hostname}, not on "
            f"{situation.machine.hostname}: only the limits are known there"
        )
    if rest_on_one_batch(run, pick.trials):
        yield "its rate rests on the size of one batch"
    if ranks > 1:
        yield f"one loader was measured, not {ranks} at once"
    if pick.failures:
        yield f"{pick.name} also failed {times(len(pick.failures))}"


def _share(log: float) -> float:
    """How much slower the recommended settings may be than the best, as a share."""
    return 1 - math.exp(-log)
