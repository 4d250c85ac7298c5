"""What a change would bring: measured where it was tried, else by the model, else by a bound."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from typing import Literal

from dlprof.advise.findings.costs import Costs
from dlprof.advise.findings.view import View
from dlprof.model import relative_error
from dlprof.records import Config, Estimate, Prediction, Trial
from dlprof.stats import believe, observe

_BOUND_LOG_SD = 0.12
"""How far the closed form is off: 5 to 6 % in the median and 40 % at the 90th percentile (FIELD
section 5), so that a ratio of two of its figures is given twice this to each side."""

_HALF, _SLOWER = 0.5, 0.66
"""Share of the cores from which those that are busy slow each other down, as the CPUs of virtual
machines are mostly halves of cores; and by how much for each further share: with all of them busy
computing takes a third longer than with half. Of three scripts beside their steps, on 2 such CPUs,
loops became 1.46, 1.47 and 1.47 times as fast where 1.98, 1.99 and 1.94 had been predicted."""

_NO_LOSS = 0.9
"""Lower end of the interval of a gain, below which it may as well be chance."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Gain:
    """Throughput after a change over throughput now.

    Attributes:
        estimate: The ratio.
        source: How it is known.
        trials: The trials that it was measured by.
        worst: The least that it was in any block of trials.
    """

    estimate: Estimate
    source: Literal["measured", "model", "bound"]
    trials: tuple[str, ...] = ()
    worst: float | None = None

    @property
    def value(self) -> float:
        """The ratio itself."""
        return self.estimate.value

    def pays(self, least: float) -> bool:
        """Whether it is at least so much, and not within what chance could have brought.

        On a busy machine intervals are wide; what was better each time it was tried counts too.
        """
        low = max(self.estimate.low or 0.0, self.worst or 0.0)
        return self.value >= least and low >= _NO_LOSS

    @property
    def sure(self) -> bool:
        """Whether its interval lies above 1; one without an interval counts as sure."""
        return self.estimate.low is None or self.estimate.low >= 1

    @property
    def verb(self) -> str:
        """What is said of it."""
        return "gives" if self.sure else "may give"

    @property
    def saved(self) -> float:
        """Share of the run's time that the change would save, 0 to 1."""
        return max(0.0, 1 - 1 / self.value) if self.value > 0 else 0.0


def gain_of(view: View, config: Config) -> Gain | None:
    """What another configuration would bring; ``None`` where nothing is known."""
    tried = measured_gain(view, config)
    if tried is not None:
        return tried
    gain, costs = modelled_gain(view, config), costs_for(view, config)
    if gain is None and costs is not None and view.costs is not None:
        cores = view.usage.available_cpu_cores or view.cores
        before = closed_form(view.costs, view.config, cores)
        gain = bound(closed_form(costs, config, cores) / before) if before > 0 else None
    return None if gain is None else _beside_step(view, gain)


def _beside_step(view: View, gain: Gain) -> Gain:
    """A gain in a script, where computing takes longer once more of the cores are busy.

    The interval keeps what would come of cores that don't slow each other down.
    """
    script, costs = view.evidence.script, view.costs
    if script is None or costs is None or costs.period_s <= 0:
        return gain
    step_s = costs.step_s * (1.0 if script.step_cores is None else script.step_cores)
    now = (costs.cpu_s + step_s) / costs.period_s / view.cores
    after = min(1.0, now * gain.value)
    more = max(after, _HALF) - max(min(1.0, now), _HALF)
    factor = 1 / (1 + _SLOWER * max(0.0, more))
    low = None if gain.estimate.low is None else gain.estimate.low * factor
    estimate = Estimate(value=gain.value * factor, low=low, high=gain.estimate.high)
    return dataclasses.replace(gain, estimate=estimate)


def measured_gain(view: View, config: Config) -> Gain | None:
    """What it brought when it was tried, compared in interleaved blocks.

    One that failed brought nothing: its gain is 0.
    """
    tried = [t for t in view.evidence.trials("variant") if t.config == config]
    plain = [t for t in view.evidence.plain("variant") if t.config == config]
    present = view.evidence.plain("present")
    if tried and not plain:
        failed = tuple(trial.id for trial in tried)
        return Gain(estimate=Estimate(value=0.0), source="measured", trials=failed)
    if not plain or not present:
        return None
    both = view.evidence.plain("present", "variant")
    seen = (observe(trial, _batches_per_s(trial)) for trial in both)
    fit = believe([each for each in seen if each is not None])
    key, own = config.key, view.config.key
    if key not in fit.log_rates or own not in fit.log_rates:
        return None
    ratio = fit.ratio(key, own)
    if fit.groups[key] == fit.groups[own] and any(t.whole_epochs for t in (*plain, *present)):
        # The same steady rate is told apart where epochs are measured whole.
        ratio = Estimate(value=math.exp(fit.log_rates[key] - fit.log_rates[own]))
    return Gain(
        estimate=ratio,
        source="measured",
        trials=tuple(trial.id for trial in plain),
        worst=_worst(plain, present),
    )


def _worst(variant: Sequence[Trial], present: Sequence[Trial]) -> float | None:
    """The least ratio within a block, of several."""
    now = {trial.repetition: _batches_per_s(trial) for trial in present}
    ratios = [
        _batches_per_s(trial) / now[trial.repetition]
        for trial in variant
        if now.get(trial.repetition)
    ]
    return min(ratios) if len(ratios) > 1 else None


def _batches_per_s(trial: Trial) -> float:
    return trial.batches_per_s.value if trial.batches_per_s is not None else 0.0


def modelled_gain(view: View, config: Config) -> Gain | None:
    """What the model says of it, on the cores that were to be had; ``None`` without a model."""
    cores = view.usage.available_cpu_cores or view.cores
    return model_ratio(view, (config, cores), (view.config, cores))


def model_ratio(
    view: View, changed: tuple[Config, float], now: tuple[Config, float]
) -> Gain | None:
    """What the model says of a configuration on so many cores against another on others."""
    predict = view.evidence.predict
    if predict is None:
        return None
    after, before = predict(changed[0], cores=changed[1]), predict(now[0], cores=now[1])
    if after is None or before is None or before.batches_per_s.value <= 0:
        return None
    known = view.evidence.calibration
    alike = known is not None and bool(changed[0].num_workers) is bool(now[0].num_workers)
    most = 2 * relative_error(known) if known is not None and alike else math.inf
    return Gain(estimate=_quotient(after, before, most), source="model")


def _quotient(after: Prediction, before: Prediction, most: float) -> Estimate:
    """The ratio of two predictions with an interval.

    The errors of two that rest on the same trials are alike and cancel, but for what one is more
    sure of than the other.

    Args:
        after: Above the line.
        before: Below it.
        most: Half the width that the logarithm's interval has at most where the errors are alike.
    """
    value = after.batches_per_s.value / before.batches_per_s.value
    one, two = _log_half(after.batches_per_s), _log_half(before.batches_per_s)
    half = max(min(most, math.hypot(one, two)), abs(one - two))
    return Estimate(value=value, low=value * math.exp(-half), high=value * math.exp(half))


def _log_half(rate: Estimate) -> float:
    if not rate.low or not rate.high or rate.low <= 0:
        return _BOUND_LOG_SD
    return math.log(rate.high / rate.low) / 2


def costs_for(view: View, config: Config) -> Costs | None:
    """The costs to reckon a configuration from; ``None`` where its kind was not seen.

    Without workers nothing is known of putting and receiving: that is what the calibration with
    one or two is for.
    """
    if view.workers or not config.num_workers:
        return view.costs
    return view.costs_at(2) or view.costs_at(1)


def bound(ratio: float) -> Gain:
    """A gain by reckoning alone."""
    half = 2 * _BOUND_LOG_SD
    low, high = ratio * math.exp(-half), ratio * math.exp(half)
    return Gain(estimate=Estimate(value=ratio, low=low, high=high), source="bound")


def closed_form(costs: Costs, config: Config, cores: float) -> float:
    """Batches per second by the bounds of FIELD section 5, the least of which binds.

    ``min(1 / (T + g), W / (cpu + put + io), C / (cpu + put + g_cpu))``; without workers loading
    and step take turns.
    """
    making = costs.making
    cores = max(0.05, cores)
    if not config.num_workers:
        alone_s = making.cpu_s / min(1.0, cores) + making.io_s + costs.dispatch.own_s
        return 1 / max(1e-9, alone_s + costs.step_s)
    bounds_s = (
        costs.step_s + costs.main_s,
        (making.own_s + costs.put_cpu_s) / config.num_workers,
        costs.cpu_s / cores,
    )
    return 1 / max(1e-9, *bounds_s)
