"""How far a prediction can be trusted, and why no further."""

from __future__ import annotations

from collections.abc import Iterator

from dlprof.advise.predict.beside import Agreement
from dlprof.advise.predict.question import Place
from dlprof.advise.wording import percent
from dlprof.records import Calibration, Confidence, Estimate, Run

_FAR_WIDE = 0.30
"""Half-width of a rate's interval, as a share of it, from which it says little."""

_WIDE = 0.22
"""Likewise, more than changing speeds of cores alone make of it (``SPEED_ERROR``)."""

_FAR_CORES = 2.0
"""Times the cores of the calibration from which a prediction rests on the model alone; also where
others had most of them."""


def judge(
    run: Run,
    calibration: Calibration,
    place: Place,
    rate: Estimate,
    agreed: Agreement | None,
    *,
    seen: bool = True,
) -> tuple[Confidence, str]:
    """The confidence and one sentence: the gravest doubt, or what makes it sure.

    Args:
        run: That holds the calibration.
        calibration: What is predicted from.
        place: Where.
        rate: The rate that matters most.
        agreed: Predictions against the run's own trials.
        seen: Whether the settings themselves were among these.
    """
    for sentence in _grave(run, calibration, place, rate, agreed):
        return "low", sentence
    for sentence in _lesser(calibration, place, rate, agreed):
        return "medium", sentence
    if not seen:
        return "medium", "the model agrees with what was measured, but these settings were not"
    return "high", "the model agrees with what this run measured on this machine"


def _grave(
    run: Run, calibration: Calibration, place: Place, rate: Estimate, agreed: Agreement | None
) -> Iterator[str]:
    yield from calibration.doubts
    if agreed is not None and agreed.is_poor:
        yield (
            f"{agreed.outside} of {agreed.configs} measured configurations gave rates outside of "
            f"what the model predicts for them (up to {agreed.worst:.2g}x): measure before you "
            "rely on it"
        )
    if place.speed.doubt:
        yield place.speed.doubt
    if place.extrapolated:
        mine = run.header.machine.hostname
        yield f"it was calibrated on {mine}, and nothing was measured on {place.machine.hostname}"
    if _half(rate) > _FAR_WIDE:
        yield f"its rate may be {percent(_half(rate))} lower: calibrate for longer"


def _lesser(
    calibration: Calibration, place: Place, rate: Estimate, agreed: Agreement | None
) -> Iterator[str]:
    where = place.conditions
    if where.ranks > 1:
        yield f"one loader was calibrated, not {where.ranks} at once"
    known = calibration.available_cores
    if known is not None and where.cores > _FAR_CORES * known:
        yield f"{known:.1f} cores were to be had when it was calibrated, not {where.cores:g}"
    if agreed is not None and agreed.outside:
        yield (
            f"{agreed.outside} of {agreed.configs} measured configurations gave rates outside of "
            f"what the model predicts for them (up to {agreed.worst:.2g}x)"
        )
    if not place.as_measured or agreed is None:
        yield "nothing of this kind was measured: it rests on the model"
    if _half(rate) > _WIDE:
        yield f"its rate may be {percent(_half(rate))} lower: calibrate for longer"


def _half(rate: Estimate) -> float:
    """How much lower the rate may be, as a share of it."""
    return 1.0 if rate.low is None or rate.value <= 0 else 1 - rate.low / rate.value
