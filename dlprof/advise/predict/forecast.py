"""A table of predictions: each configuration, and what was measured of it beside."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence

from dlprof.advise.choice import certify, choose, judge
from dlprof.advise.limits import breach
from dlprof.advise.predict.carried import Agreement, agreement, candidates_of
from dlprof.advise.predict.cells import useful
from dlprof.advise.situation import Situation, usable_calibration
from dlprof.model import Conditions, describe
from dlprof.records import Confidence, Config, Estimate, Prediction, Run


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """What plain trials of one configuration gave.

    Attributes:
        samples_per_s: The one rate that the run has for it.
        wait_fraction: Mean over those that report it.
        trials: Their ids.
    """

    samples_per_s: Estimate
    wait_fraction: float | None
    trials: tuple[str, ...]


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One configuration.

    Attributes:
        config: Which.
        prediction: What it would give each rank, corrected by what the run measured.
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
    def speed(self) -> float:
        """The same over whole epochs, where their length is known."""
        return self.prediction.epoch_batches_per_s or self.rate

    @property
    def name(self) -> str:
        """The configuration in words."""
        return self.config.text_naming("prefetch_factor")


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Calibrated:
    """What predictions rest on.

    Attributes:
        hostname: Where.
        batches: How many.
        available_cores: Cores that were available.
        standard_error: Relative standard error of the mean batch cost.
        doubts: What makes it unreliable.
    """

    hostname: str
    batches: int
    available_cores: float | None
    standard_error: float | None
    doubts: tuple[str, ...]

    @classmethod
    def of(cls, run: Run) -> Calibrated:
        """What a run's predictions rest on."""
        calibration = usable_calibration(run)
        known = (calibration.in_main, calibration.in_workers, *calibration.receive.values())
        return cls(
            hostname=run.header.machine.hostname,
            batches=sum(len(costs.cpu_s) for costs in known if costs is not None),
            available_cores=calibration.available_cores,
            standard_error=calibration.standard_error,
            doubts=calibration.doubts,
        )


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """What every answer says that rests on predictions.

    Attributes:
        hostname: Of the machine that it is for.
        extrapolated: Whether that is another than the one that was measured.
        calibrated: What it rests on.
        confidence: How sure it is.
        confidence_reason: Why no surer.
        notes: What was taken for granted.
        unavailable: Why a figure is ``None``.
    """

    hostname: str
    extrapolated: bool
    calibrated: Calibrated
    confidence: Confidence
    confidence_reason: str
    notes: tuple[str, ...] = ()
    unavailable: Mapping[str, str] = dataclasses.field(default_factory=dict)


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Forecast(Answer):
    """What configurations would give in one place.

    Attributes:
        conditions: Cores, ranks, step and the rest.
        method: ``maxplus``, the only predictor.
        rows: In the order of what configurations cost.
        pick: The cheapest within 3% of the best that keeps the machine's limits; ``None`` where
            none does.
        bounds: What each bound that occurs means.
        agreement: Predictions against the run's own trials.
    """

    conditions: Conditions
    rows: tuple[Row, ...]
    pick: Config | None
    bounds: Mapping[str, str]
    agreement: Agreement | None = None
    method: str = "maxplus"


def forecast(run: Run, configs: Sequence[Config], situation: Situation) -> Forecast:
    """Predict configurations from what a run calibrated and measured.

    Args:
        run: That holds a calibration.
        configs: Canonical ones, at least one.
        situation: Where they are to run.

    Raises:
        NothingMeasuredError: The data of all of them is wrong.
        UsageError: There is no calibration to predict from, a figure is out of range, or the
            calibration is for another batch size.
    """
    candidates, speeds = candidates_of(run, situation, useful(run, configs))
    rows, allowed, kept = [], [], run.kept_rates
    for each in candidates:
        found, measured = breach(each, situation), None
        if found is None:
            allowed.append(each)
        if each.measured:
            measured = Measured(
                samples_per_s=kept[each.config].samples_per_s
                if each.config in kept
                else speeds.rate(each.key),
                wait_fraction=speeds.wait_fraction(each),
                trials=tuple(each.trial_ids),
            )
        if each.prediction is not None:
            beyond = "" if found is None else f"{found.limit}: it {found.need}"
            rows.append(
                Row(
                    config=each.config, prediction=each.prediction, measured=measured, beyond=beyond
                )
            )
    choice = choose(allowed or candidates, situation, speeds)
    confidence, reason = judge(choice, run, certify(choice, run))
    return Forecast(
        hostname=situation.machine.hostname,
        extrapolated=situation.extrapolated,
        conditions=situation.conditions,
        calibrated=Calibrated.of(run),
        rows=tuple(rows),
        pick=choice.pick.config if allowed else None,
        bounds={name: describe(name) for name in sorted({r.prediction.bound for r in rows})},
        confidence=confidence,
        confidence_reason=reason,
        notes=situation.notes,
        agreement=agreement(run),
        unavailable={
            name: reason
            for name, reason in MISSING.items()
            if any(getattr(row.prediction, name) is None for row in rows)
        },
    )


MISSING = {
    "samples_per_s": "the run doesn't record how many samples a batch has",
    "epoch_batches_per_s": "how many batches an epoch has isn't known",
    "wait_fraction": "there is no step to wait: give --step-time",
    "pss_bytes": "memory was not measured with two values of num_workers",
    "shm_bytes": "the size of a batch is not known",
    "open_files": "the number of tensors in a batch is not known",
    "startup_s": "starting was not measured with this start method and two values of num_workers",
    "turnover_s": "no epoch restart was measured with these workers",
}
"""Why a figure of a prediction is ``None``."""
