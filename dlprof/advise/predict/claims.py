"""Why the model chose this configuration and no other.

Each function looks for one kind of claim and gives ``None`` where it does not apply; ``CLAIMS``
lists them in the order in which they are told.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

from dlprof.advise.choice import FED_WAIT_FRACTION
from dlprof.advise.predict.choosing import Chosen
from dlprof.advise.predict.forecast import Row
from dlprof.advise.wording import percent
from dlprof.model import describe, predict_all
from dlprof.records import PredictedCase, Reason
from dlprof.stats import NEAR
from dlprof.units import format_duration, format_rate

_UNORDERED_PAYS = 1.1
"""From this factor ``in_order=False`` is worth what it costs in reproducibility to some."""


def claims(chosen: Chosen, cases: Sequence[PredictedCase]) -> list[Reason]:
    """All claims that apply, the most telling first.

    Args:
        chosen: What was chosen.
        cases: The machine with and without its neighbours.
    """
    found = (claim(chosen) for claim in CLAIMS)
    told = [each for each in found if each is not None]
    return [*told, *_cases(chosen, cases), *_assumed(chosen)]


def _evidence(chosen: Chosen, **figures: Any) -> dict[str, Any]:
    return {"predicted_by": chosen.pick.prediction.method, **figures}


def _compare(chosen: Chosen, one: Row, two: Row, claim: str) -> Reason:
    """A claim about two configurations; ``{}`` in it is the ratio of their speeds."""
    ratio = one.speed / two.speed
    figures = {"value": ratio, "low": None, "high": None}
    evidence = _evidence(chosen, configs=[one.key, two.key], ratio=figures)
    return Reason(claim=claim.format(f"{ratio:.2f}x"), evidence=evidence)


def _feeding(chosen: Chosen) -> Reason | None:
    """Whether the training step is kept fed."""
    wait = chosen.pick.prediction.wait_fraction
    step_s = chosen.situation.constraints.step_s
    if wait is None or step_s is None:
        return None
    step, name = format_duration(step_s), chosen.pick.name
    waits = f"with {name} it would wait {percent(wait)} of the time"
    least = min(row.prediction.wait_fraction or 0.0 for row in chosen.rows)
    claim = f"No configuration would keep a step of {step} fed; {waits}"
    if chosen.pick.is_fed:
        claim = f"The cheapest configuration that would keep a step of {step} fed: {waits}"
    elif least <= FED_WAIT_FRACTION:
        claim = f"Keeping a step of {step} fed costs more between epochs than it saves; {waits}"
    elif least < wait:
        claim += f", the least is {percent(least)}"
    return Reason(claim=claim, evidence=_evidence(chosen, wait_fraction=wait))


def _bound(chosen: Chosen) -> Reason:
    """What would limit it."""
    bound = chosen.pick.prediction.bound
    busy = chosen.pick.prediction.cores
    claim = f"With {chosen.pick.name} {describe(bound)}"
    return Reason(claim=claim, evidence=_evidence(chosen, bound=bound, busy_cores=busy))


def _present(chosen: Chosen) -> Reason | None:
    """The gain over what the target's DataLoader is set to now."""
    present = chosen.present
    if present is None or present is chosen.pick:
        return None
    claim = f"{chosen.pick.name} would give {{}} of the present settings, {present.name}"
    return _compare(chosen, chosen.pick, present, claim)


def _default(chosen: Chosen) -> Reason | None:
    """The gain over PyTorch's default, or that it is enough."""
    pick, default = chosen.pick, chosen.default
    if default is None:
        return None
    if pick is not default:
        claim = f"{pick.name} would give {{}} of num_workers=0, PyTorch's default"
        return _compare(chosen, pick, default, claim)
    others = [row for row in chosen.rows if row.config.num_workers]
    if not others:
        return None
    rival = max(others, key=lambda row: row.speed)
    claim = f"num_workers=0 is enough: the best with workers, {rival.name}, would give {{}} of it"
    return _compare(chosen, rival, pick, claim)


def _fewer(chosen: Chosen) -> Reason | None:
    """What saving workers would cost."""
    most = chosen.pick.config.num_workers
    fewer = [row for row in chosen.rows if 0 < row.config.num_workers < most]
    if not fewer:
        return None
    rival = max(fewer, key=lambda row: row.speed)
    claim = f"Fewer workers would be slower: {rival.name} would give {{}} of it"
    if chosen.pick.is_fed and not rival.is_fed:
        claim = f"Fewer workers would not keep the step fed: {rival.name} would give {{}} of it"
    return _compare(chosen, rival, chosen.pick, claim)


def _more(chosen: Chosen) -> Reason | None:
    """That more workers would gain nothing to speak of."""
    pick = chosen.pick
    more = [row for row in chosen.rows if row.config.num_workers > pick.config.num_workers]
    if not more or not pick.config.num_workers:
        return None
    rival = max(more, key=lambda row: row.speed)
    claim = f"More workers would not pay: {rival.name} would give {{}} of it"
    return _compare(chosen, rival, pick, claim)


def _persistent(chosen: Chosen) -> Reason | None:
    """What keeping workers between epochs would earn."""
    anew, batches = chosen.anew, chosen.situation.epoch_batches(chosen.pick.config)
    gain = 1.0 if anew is None else chosen.pick.speed / anew.speed
    if anew is None or batches is None or gain * NEAR <= 1:
        return None
    claim = (
        f"persistent_workers=True would give {gain:.2f}x over epochs of {batches:,} batches, as "
        f"starting workers anew takes {format_duration(anew.prediction.turnover_s)}"
    )
    return Reason(claim=claim, evidence=_evidence(chosen, gain=gain))


def _unordered(chosen: Chosen) -> Reason | None:
    """What yielding batches as they come would earn, and cost."""
    pick = chosen.pick
    if pick.config.num_workers < 2 or not pick.config.in_order:
        return None
    other = dataclasses.replace(pick.config, in_order=False)
    where = chosen.place.conditions
    found = predict_all(chosen.calibration, [other], where)[0]
    gain = found.batches_per_s.value / pick.rate
    if gain < _UNORDERED_PAYS:
        return None
    claim = (
        f"in_order=False would give {gain:.2f}x of that, but batches would come in another order "
        "in every run, so that runs can't be repeated exactly"
    )
    return Reason(claim=claim, evidence=_evidence(chosen, gain=gain))


CLAIMS: tuple[Callable[[Chosen], Reason | None], ...] = (
    _feeding,
    _bound,
    _present,
    _default,
    _fewer,
    _more,
    _persistent,
    _unordered,
)
"""One function for each kind of claim, in the order of telling."""


def _cases(chosen: Chosen, cases: Sequence[PredictedCase]) -> list[Reason]:
    """What the neighbours cost."""
    if len(cases) < 2:
        return []
    shared, alone = (case.expected.samples_per_s.value for case in cases[:2])
    share = shared / alone
    there, others = chosen.place.conditions.cores, cases[0].neighbours
    busy = f"Others keep {others:.3g} of {there:g} cores busy"
    if others > there:
        busy = f"{others:.3g} threads of others want the {there:g} cores"
    claim = f"{busy}: that leaves {percent(share)} of what it would give alone"
    if share > NEAR:
        claim = f"{busy}, which would cost it nothing to speak of"
    figures = {"shared_samples_per_s": shared, "dedicated_samples_per_s": alone}
    return [Reason(claim=claim, evidence=_evidence(chosen, **figures))]


def _assumed(chosen: Chosen) -> list[Reason]:
    """What was taken for granted, and what each rank gets."""
    told = [Reason(claim=f"Assumed: {note}") for note in chosen.place.notes]
    if chosen.situation.constraints.step_s is None and chosen.pick.config.num_workers:
        claim = "No step was given, so this is for the highest rate: with --step-time fewer "
        told.append(Reason(claim=f"{claim}workers may be enough"))
    where = chosen.place.conditions
    if where.ranks > 1:
        rate = chosen.samples(chosen.pick).value
        whole = format_rate(rate * where.ranks)
        claim = f"{where.ranks} ranks share {where.cores:g} cores: {whole} samples/s in all"
        told.insert(0, Reason(claim=claim, evidence=_evidence(chosen, samples_per_s=rate)))
    if chosen.place.speed.doubt:
        told.append(Reason(claim=f"Assumed: {chosen.place.speed.doubt}"))
    return told
