"""What a change would bring: measured where it was tried, else by the model, else by its bounds."""

from __future__ import annotations

import dataclasses
import math
from typing import Literal

from dlprof.advise.findings.costs import Costs
from dlprof.advise.findings.view import View
from dlprof.advise.thresholds import PAYS
from dlprof.model import relative_error
from dlprof.records import Config, Estimate, Trial
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

AS_GOOD = 0.95
"""Speed with fewer workers from which they are worth it for the memory that they don't take."""


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

    @property
    def pays(self) -> bool:
        """Whether it pays, and isn't within what chance could have brought.

        On a busy machine intervals are wide; what was better each time it was tried counts too.
        """
        return self.value >= PAYS and not self.is_chance

    @property
    def is_chance(self) -> bool:
        """Whether it may as well be none."""
        return max(self.estimate.low or 0.0, self.worst or 0.0) < _NO_LOSS

    @property
    def sure(self) -> bool:
        """Whether its interval lies above 1; one without an interval counts as sure."""
        return self.estimate.low is None or self.estimate.low >= 1

    @property
    def words(self) -> str:
        """What is said of it."""
        return f"{'is' if self.sure else 'may be'} {self.value:.2f}x as fast"

    @property
    def saved(self) -> float:
        """Share of the run's time that the change would save, 0 to 1."""
        return max(0.0, 1 - 1 / self.value) if self.value > 0 else 0.0


def gain_of(view: View, config: Config) -> Gain | None:
    """What another configuration would bring; ``None`` where nothing is known.

    In a script computing takes longer once more of the cores are busy; the interval keeps what
    would come of cores that don't slow each other down.
    """
    tried = measured_gain(view, config)
    if tried is not None:
        return tried
    gain = predicted_gain(view, config)
    script, costs = view.evidence.script, view.costs
    if gain is None or script is None or costs is None or costs.period_s <= 0:
        return gain
    step_s = costs.step_s * (1.0 if script.step_cores is None else script.step_cores)
    now = (costs.cpu_s + step_s) / costs.period_s / view.cores
    more = max(min(1.0, now * gain.value), _HALF) - max(min(1.0, now), _HALF)
    slower = gain.estimate.times(1 / (1 + _SLOWER * max(0.0, more)))
    return dataclasses.replace(gain, estimate=dataclasses.replace(slower, high=gain.estimate.high))


def measured_gain(view: View, config: Config) -> Gain | None:
    """What it brought when it was tried, compared in interleaved blocks.

    One that failed brought nothing: its gain is 0.
    """
    tried = tuple(t.id for t in view.evidence.trials("variant") if t.config == config)
    plain = [t for t in view.evidence.plain("variant") if t.config == config]
    present = view.evidence.plain("present")
    if tried and not plain:
        return Gain(estimate=Estimate(value=0.0), source="measured", trials=tried)
    if not plain or not present:
        return None
    seen = (observe(t, _rate(t)) for t in view.evidence.plain("present", "variant"))
    fit = believe([each for each in seen if each is not None])
    key, own = config.key, view.config.key
    if not {key, own} <= fit.log_rates.keys():
        return None
    ratio = fit.ratio(key, own)
    if fit.groups[key] == fit.groups[own] and any(t.whole_epochs for t in (*plain, *present)):
        # The same steady rate is told apart where epochs are measured whole.
        ratio = Estimate(value=math.exp(fit.log_rates[key] - fit.log_rates[own]))
    now = {trial.repetition: _rate(trial) for trial in present}
    ratios = [_rate(trial) / now[trial.repetition] for trial in plain if trial.repetition in now]
    return Gain(
        estimate=ratio,
        source="measured",
        trials=tuple(trial.id for trial in plain),
        worst=min(ratios) if len(ratios) > 1 else None,
    )


def _rate(trial: Trial) -> float:
    return trial.batches_per_s.value if trial.batches_per_s is not None else 0.0


def predicted_gain(
    view: View,
    config: Config | None = None,
    *,
    costs: Costs | None = None,
    cores: float | None = None,
    now: float | None = None,
) -> Gain | None:
    """What the model says of a change, or its bounds alone; ``None`` where nothing is known.

    The errors of two predictions that rest on the same trials are alike and cancel, but for what
    one is more sure of than the other.

    Args:
        view: The evidence.
        config: What is changed to; ``None`` for the present one.
        costs: What batches cost then, which only the bounds know; ``None`` for what they cost now.
        cores: That there are then; ``None`` for those of now.
        now: Cores that were available; ``None`` for those that the trials show.
    """
    config, now, predict = config or view.config, now or view.available, view.evidence.predict
    cores = cores or now
    after, before = None, None
    if predict is not None and costs is None:
        after, before = predict(config, cores=cores), predict(view.config, cores=now)
    if predict is None or after is None or before is None or before.batches_per_s.value <= 0:
        costs = costs or costs_for(view, config)
        if costs is None or view.costs is None:
            return None
        return bound(costs.rate(config, cores) / view.costs.rate(view.config, now))
    alike = bool(config.num_workers) is bool(view.workers)
    most = 2 * relative_error(predict.calibration) if alike else math.inf
    one, two = _log_half(after.batches_per_s), _log_half(before.batches_per_s)
    half = max(min(most, math.hypot(one, two)), abs(one - two))
    return _gain("model", after.batches_per_s.value / before.batches_per_s.value, half)


def _log_half(rate: Estimate) -> float:
    if not rate.low or not rate.high or rate.low <= 0:
        return _BOUND_LOG_SD
    return math.log(rate.high / rate.low) / 2


def costs_for(view: View, config: Config) -> Costs | None:
    """The costs of a configuration's batches; ``None`` where its kind was not seen.

    Without workers nothing is known of putting and receiving: that is what the calibration with
    one or two is for.
    """
    if view.workers or not config.num_workers:
        return view.costs
    return view.costs_at(2) or view.costs_at(1)


def bound(ratio: float) -> Gain:
    """A gain by bounds alone."""
    return _gain("bound", ratio, 2 * _BOUND_LOG_SD)


def _gain(source: Literal["model", "bound"], value: float, half: float) -> Gain:
    """A gain, and half the width of its logarithm's interval."""
    low, high = value * math.exp(-half), value * math.exp(half)
    return Gain(estimate=Estimate(value=value, low=low, high=high), source=source)
