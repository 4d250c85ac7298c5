"""A table of predictions: each configuration, and what was measured of it beside."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence

from dlprof.advise.choice import FED_WAIT_FRACTION
from dlprof.advise.effective import Situation
from dlprof.advise.limits import breach
from dlprof.advise.predict.beside import Agreement, Measured, agreement, measured_beside
from dlprof.advise.predict.cells import useful
from dlprof.advise.predict.question import (
    Place,
    Question,
    place_of,
    situation_of,
    usable_calibration,
)
from dlprof.advise.predict.trust import judge
from dlprof.errors import UsageError
from dlprof.model import Conditions, binding, cell_of, describe, predict_all
from dlprof.records import Calibration, Confidence, Config, Constraints, Estimate, Prediction, Run
from dlprof.stats import NEAR


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One configuration.

    Attributes:
        config: Which.
        prediction: What it would give each rank.
        measured: What it gave when it was measured under the same conditions; ``None`` where it
            was not.
        beyond: The limit of the machine that it would not keep; empty if it would.
    """

    config: Config
    prediction: Prediction
    measured: Measured | None = None
    beyond: str = ""

    @property
    def rate(self) -> float:
        """Predicted batches per second of one rank."""
        return self.prediction.batches_per_s.value

    @property
    def is_fed(self) -> bool:
        """Whether the step waits as little as one that is kept fed does."""
        wait = self.prediction.wait_fraction
        return wait is not None and wait <= FED_WAIT_FRACTION

    @property
    def speed(self) -> float:
        """The same over whole epochs, where their length is known."""
        return self.prediction.epoch_batches_per_s or self.rate

    @property
    def key(self) -> str:
        """``Config.key``."""
        return self.config.key

    @property
    def name(self) -> str:
        """The configuration in words."""
        return self.config.text_naming("prefetch_factor")

    @property
    def trial_ids(self) -> list[str]:
        """The trials that measured it under the same conditions; its needs are predicted."""
        return [] if self.measured is None else list(self.measured.trials)

    @property
    def pss_bytes(self) -> int | None:
        """Memory of one rank's process tree."""
        return _whole(self.prediction.pss_bytes)

    @property
    def shm_bytes(self) -> int | None:
        """Shared memory of one rank."""
        return _whole(self.prediction.shm_bytes)


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Calibrated:
    """What predictions rest on.

    Attributes:
        hostname: Where.
        batches: How many.
        available_cores: Cores that were to be had.
        standard_error: Relative standard error of the mean batch cost.
        doubts: What makes it unreliable.
    """

    hostname: str
    batches: int
    available_cores: float | None
    standard_error: float | None
    doubts: tuple[str, ...]

    @classmethod
    def of(cls, run: Run, calibration: Calibration) -> Calibrated:
        """What a run's predictions rest on."""
        known = (calibration.in_main, calibration.in_workers, *calibration.receive.values())
        return cls(
            hostname=run.header.machine.hostname,
            batches=sum(len(costs.cpu_s) for costs in known if costs is not None),
            available_cores=calibration.available_cores,
            standard_error=calibration.standard_error,
            doubts=calibration.doubts,
        )


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Forecast:
    """What configurations would give in one place.

    Attributes:
        hostname: Of the machine.
        extrapolated: Whether it is another than the one that was measured.
        conditions: Cores, ranks, step and the rest.
        calibrated: What it rests on.
        method: ``maxplus``, the only predictor.
        rows: In the order of what configurations cost.
        pick: The cheapest within 3 % of the best that keeps the machine's limits; ``None`` where
            none does.
        bounds: What each bound that occurs means.
        confidence: How sure the pick's rate is.
        confidence_reason: Why no surer.
        notes: What was taken for granted.
        agreement: Predictions against the run's own trials.
        unavailable: Why figures of the rows are ``None``.
    """

    hostname: str
    extrapolated: bool
    conditions: Conditions
    calibrated: Calibrated
    rows: tuple[Row, ...]
    pick: Config | None
    bounds: Mapping[str, str]
    confidence: Confidence
    confidence_reason: str
    notes: tuple[str, ...] = ()
    agreement: Agreement | None = None
    method: str = "maxplus"
    unavailable: Mapping[str, str] = dataclasses.field(default_factory=dict)


def forecast(run: Run, configs: Sequence[Config], question: Question) -> Forecast:
    """Predict configurations from what a run calibrated.

    Args:
        run: That holds a calibration.
        configs: Canonical ones, at least one.
        question: Where they are to run.

    Raises:
        NothingMeasuredError: The data of all of them is wrong.
        UsageError: There is no calibration to predict from, a figure is out of range, or the
            calibration is for another batch size.
    """
    calibration = usable_calibration(run)
    place = place_of(run, question)
    kept = useful(run, configs)
    rows = predicted_rows(run, calibration, kept, place)
    pick = cheapest([row for row in rows if not row.beyond])
    agreed = agreement(run, calibration)
    shown = pick or rows[0]
    confidence, reason = judge(run, calibration, place, shown.prediction.batches_per_s, agreed)
    return Forecast(
        hostname=place.machine.hostname,
        extrapolated=place.extrapolated,
        conditions=place.conditions,
        calibrated=Calibrated.of(run, calibration),
        rows=tuple(rows),
        pick=pick.config if pick is not None else None,
        bounds={name: describe(name) for name in sorted({r.prediction.bound for r in rows})},
        confidence=confidence,
        confidence_reason=reason,
        notes=place.notes,
        agreement=agreed,
        unavailable=_unavailable(rows),
    )


def predicted_rows(
    run: Run, calibration: Calibration, configs: Sequence[Config], place: Place
) -> list[Row]:
    """Predictions with what was measured beside and with the machine's limits, cheapest first.

    Raises:
        UsageError: The calibration is for another batch size, or of batches that cost nothing.
    """
    ordered = sorted(configs, key=lambda config: config.cost_key)
    try:
        predictions = predict_all(calibration, ordered, place.conditions)
    except ValueError as error:
        raise UsageError(
            f"Nothing can be predicted: {error}", hint="Calibrate at that size."
        ) from None
    if not all(0 < each.batches_per_s.value < math.inf for each in predictions):
        raise UsageError(
            "Nothing can be predicted: the calibrated batches cost no time at all",
            hint="Calibrate again with dlprof profile.",
        )
    measured = measured_beside(run) if place.as_measured else {}
    doubts = _speed_doubts(calibration, ordered, place)
    situation = situation_of(run, Constraints(ranks=place.conditions.ranks), place)
    rows = (
        Row(config=config, prediction=_widened(each, *doubt), measured=measured.get(config))
        for config, each, doubt in zip(ordered, predictions, doubts, strict=True)
    )
    return [dataclasses.replace(row, beyond=_beyond(row, situation)) for row in rows]


def _beyond(row: Row, situation: Situation) -> str:
    found = breach(row, situation)
    return "" if found is None else f"{found.limit}: it {found.need}"


def cheapest(rows: Sequence[Row], *, within: float = NEAR) -> Row | None:
    """The cheapest within 3 % of the best; with a step, of those that keep it fed, if any does.

    Never one that is slower than something cheaper within the 3 %.

    Args:
        rows: Cheapest first; those that are allowed.
        within: Share of the best rate that is enough.
    """
    speeds = [row.speed for row in rows]
    best = max(speeds, default=0.0)
    near = [(row, s) for row, s in zip(rows, speeds, strict=True) if s >= within * best]
    fed = (row for row, s in near if row.is_fed and s >= near[0][1])
    return next(fed, near[0][0] if near else None)


def _speed_doubts(
    calibration: Calibration, configs: Sequence[Config], place: Place
) -> list[tuple[float, float]]:
    """By what factors each rate changes if cores are as slow or as fast as they may be.

    By the lowest bound, which tells loaders that compute from those that wait.
    """
    factor = place.speed.factor
    if factor == 1.0:
        return [(1.0, 1.0)] * len(configs)
    speeds = (place.speed.value / factor, place.speed.value, place.speed.value * factor)
    there = [dataclasses.replace(place.conditions, speed=speed) for speed in speeds]
    rates = (
        [binding(cell_of(calibration, config, where))[1] for where in there] for config in configs
    )
    return [(low / middle, high / middle) for low, middle, high in rates]


def _widened(prediction: Prediction, low: float, high: float) -> Prediction:
    """The prediction with an interval as wide as two factors, its own included, make it."""
    if low == high:
        return prediction
    samples = prediction.samples_per_s
    return dataclasses.replace(
        prediction,
        batches_per_s=_wider(prediction.batches_per_s, low, high),
        samples_per_s=None if samples is None else _wider(samples, low, high),
    )


def _wider(estimate: Estimate, low: float, high: float) -> Estimate:
    value = estimate.value
    if not (estimate.low and estimate.high and math.isfinite(value)):
        return estimate
    down = math.hypot(math.log(value / estimate.low), math.log(low))
    up = math.hypot(math.log(estimate.high / value), math.log(high))
    return Estimate(value=value, low=value * math.exp(-down), high=value * math.exp(up))


def _whole(value: float | None) -> int | None:
    return None if value is None else round(value)


_REASONS = {
    "samples_per_s": "the run doesn't tell how many samples a batch has",
    "epoch_batches_per_s": "how many batches an epoch has isn't known",
    "wait_fraction": "there is no step to wait: give --step-time",
    "pss_bytes": "memory was not measured with two values of num_workers",
    "shm_bytes": "the size of a batch is not known",
    "open_files": "the number of tensors in a batch is not known",
    "startup_s": "starting was not measured with this start method and two values of num_workers",
    "turnover_s": "no epoch's end was measured with these workers",
}


def _unavailable(rows: Sequence[Row]) -> dict[str, str]:
    return {
        name: reason
        for name, reason in _REASONS.items()
        if any(getattr(row.prediction, name) is None for row in rows)
    }
