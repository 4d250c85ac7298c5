"""What the model predicts, corrected by what a run measured: rates, and candidates with needs.

And whether the two agree.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Collection, Mapping, Sequence

from dlprof.advise.candidates import Candidate, gather, has_rate
from dlprof.advise.situation import Situation, usable_calibration
from dlprof.advise.speeds import Speeds, around, claims, predicted_factors, product, speeds_of
from dlprof.advise.thresholds import MANY_DISAGREE
from dlprof.errors import UsageError
from dlprof.model import (
    EXTRAPOLATED_ERROR,
    bounds,
    cell_of,
    drawn,
    predict_all,
    relative_error,
    steady_rate,
    work_of,
)
from dlprof.records import (
    Calibration,
    Config,
    Estimate,
    PredictedCell,
    Prediction,
    Run,
    SweepPrediction,
)
from dlprof.stats import Carried, Expected, Observation, believe, observe


def predictions(
    run: Run, situation: Situation, configs: Collection[Config]
) -> dict[Config, Prediction]:
    """What the model says of configurations, cheapest first.

    Raises:
        UsageError: The calibration is for another batch size, or of batches that cost nothing, or
            a figure of the situation is out of range.
    """
    ordered = sorted(configs, key=lambda config: config.cost_key)
    try:
        found = predict_all(usable_calibration(run), ordered, situation.conditions)
    except ValueError as error:
        raise UsageError(
            f"Nothing can be predicted: {error}", hint="Calibrate at that size."
        ) from None
    if not all(0 < each.batches_per_s.value < math.inf for each in found):
        raise UsageError(
            "Nothing can be predicted: the calibrated batches cost no time at all",
            hint="Calibrate again with dlprof profile.",
        )
    return dict(zip(ordered, found, strict=True))


def candidates_of(
    run: Run, situation: Situation, configs: Collection[Config]
) -> tuple[list[Candidate], Speeds]:
    """Configurations, cheapest first, with what they would give, and what that rests on.

    Raises:
        UsageError: As ``predictions``.
    """
    models = predictions(run, situation, configs)
    speeds = speeds_of(run, situation, models)
    seen = {each.config: each for each in gather(run)}
    found = []
    for config, model in models.items():
        each = seen.get(config) or Candidate(config=config, name="")
        turnover_s = model.turnover_s if each.epoch_turnover_s is None else each.epoch_turnover_s
        made = dataclasses.replace(
            each,
            name=config.text_naming("prefetch_factor"),
            epoch_turnover_s=turnover_s,
            prediction=model,
            measured=bool(each.trials) and not situation.by_model,
        )
        found.append(dataclasses.replace(made, prediction=_believed(made, model, speeds)))
    return found, speeds


def _believed(made: Candidate, model: Prediction, speeds: Speeds) -> Prediction:
    """A prediction with the rate that is believed of it, and its needs as far as trials tell."""
    steady, claimed = speeds.steady(made.key), model.samples_per_s or model.batches_per_s
    factor, wait = steady.value / claimed.value, model.wait_fraction
    batches = steady.times(model.batches_per_s.value / claimed.value)
    over = batches.value * math.exp(speeds.epochs[made.key].log)
    return dataclasses.replace(
        model,
        batches_per_s=batches,
        samples_per_s=None if model.samples_per_s is None else steady,
        epoch_batches_per_s=None if model.epoch_batches_per_s is None else over,
        wait_fraction=None if wait is None else max(0.0, 1 - (1 - wait) * factor),
        cores=None if model.cores is None else model.cores * factor,
        pss_bytes=made.pss_bytes,
        shm_bytes=made.shm_bytes,
        startup_s=made.startup_s,
        turnover_s=made.epoch_turnover_s,
    )


def expectation(
    run: Run,
    situation: Situation,
    measured: Collection[Config],
    models: Mapping[Config, Prediction],
) -> Expected | None:
    """What was predicted for the conditions of the trials, of them and of what is asked for.

    What a sweep stored of its predictions stays as it is, so that all views have the same.

    Args:
        run: That holds a calibration.
        situation: That of the trials.
        measured: What they measured.
        models: What is predicted of others for the same situation.

    Returns:
        ``None`` where the calibration says nothing of what was measured.
    """
    stored, calibration = run.prediction, usable_calibration(run)
    known = () if stored is None else stored.cells
    mine: Mapping[Config, Prediction] = {}
    if stored is None:
        own = {config for config in measured if config.batch_size == calibration.batch_size}
        try:
            mine = predictions(run, situation, own)
        except UsageError:  # its batches cost nothing
            return None
    have = {cell.config for cell in known} | set(measured)
    rest = {config: each for config, each in models.items() if config not in have}
    log_sd = relative_error(calibration) if stored is None else stored.log_sd
    return _expected(log_sd, {**mine, **rest}, beside=known)


def _expected(
    log_sd: float, models: Mapping[Config, Prediction], beside: Sequence[PredictedCell] = ()
) -> Expected:
    steady = claims(models)
    cells = [
        PredictedCell(
            config=config,
            samples_per_s=steady[config.key],
            speed=1.0,
            epoch_samples_per_s=each.epoch_batches_per_s
            and steady[config.key].value * each.epoch_batches_per_s / each.batches_per_s.value,
        )
        for config, each in models.items()
    ]
    return Expected.of(
        SweepPrediction(cells=(*beside, *cells), race=(), pick=Config(), cores=0.0, log_sd=log_sd)
    )


def carried(run: Run, situation: Situation, models: Mapping[Config, Prediction]) -> Speeds:
    """Rates under conditions that no trial shows: predicted, and as far off as predictions were.

    How far predictions of each ``num_workers`` are off, and how surely, is learned under the
    trials' own conditions. Under the asked ones loading is taken to be as far off; what that makes
    of the rate at a step, the model says. What something else limits there than where
    it was measured is less sure.

    Args:
        run: That holds a calibration.
        situation: Where nothing was measured.
        models: What is predicted there.
    """
    calibration = usable_calibration(run)
    log_sd = relative_error(calibration)
    asked = prior = _expected(log_sd, models)
    before, seen = models, list[Observation]()
    if calibration.samples_per_batch is not None:
        trials = (trial for trial in run.trials if trial.purpose == "measure" and has_rate(trial))
        seen = [each for trial in trials if (each := observe(trial)) is not None]
    if seen:
        ours = {each.config for each in gather(run)}
        ours = {each for each in ours if each.batch_size == calibration.batch_size}
        before = predictions(run, Situation.of(run), {*models, *ours})
        prior = _expected(log_sd, before)
    learned, speed_sd = believe(seen, prior), math.log(situation.speed.factor) / 2
    whole = {each.key for each in seen if each.whole_epochs}
    over = {key: rate for key, rate in prior.epoch_log_rates.items() if key in whole}
    expected = {**prior.log_rates, **over}
    there: dict[str, Carried] = {}
    moved: dict[str, tuple[float, float]] = {}
    for config, model in models.items():
        key = config.key
        group = learned.groups[key]  # of one rate, whether or not its workers persist
        if group not in moved:
            off, error = learned.log_rates[key] - expected[key], max(learned.log_error(key), 1e-6)
            middle, low, high = _moved(calibration, config, situation, off, error)
            moved[group] = middle, min(1.0, max(0.0, (high - low) / (2 * error)))
        change, follows = moved[group]
        unlike = log_sd if before[config].bound != model.bound else 0.0
        there[key] = Carried(
            log_rate=asked.log_rates[key] + change,
            follows=follows,
            log_sd=math.hypot(EXTRAPOLATED_ERROR, follows * unlike),
            by_speed=_by_speed(calibration, config, situation),
        )
    return Speeds(
        belief=learned.carried(there, speed_sd),
        epochs=predicted_factors(asked),
        claimed={
            key: product(each, around(0.0, abs(there[key].by_speed) * speed_sd))
            for key, each in ({} if seen else claims(models)).items()
        },
    )


def _moved(
    calibration: Calibration, config: Config, situation: Situation, off: float, error: float
) -> list[float]:
    """By how much the log rate changes where loading is off by so much, above 0 for faster.

    With all that loading takes ``exp(off)`` times as fast, time passes over the same step as over
    one that is so much longer, and so much faster.

    Returns:
        For ``off``, and for that less and more its error.
    """
    offs = (off, off - error, off + error)
    if not situation.step_s + situation.step_cpu_s:
        return list(offs)
    where = situation.conditions
    work = drawn(work_of(calibration, config, where))

    def rate(factor: float) -> float:
        longer = dataclasses.replace(
            where, step_s=where.step_s * factor, step_cpu_s=where.step_cpu_s * factor
        )
        return steady_rate(cell_of(calibration, config, longer, work=work)).batches_per_s

    as_predicted = rate(1.0)
    return [each + math.log(rate(math.exp(each)) / as_predicted) for each in offs]


def _by_speed(calibration: Calibration, config: Config, situation: Situation) -> float:
    """How far the rate follows the speed of the cores, where that is not known.

    By the closed form, which tells loaders that compute from those that wait.
    """
    factor = situation.speed.factor
    if factor == 1.0:
        return 0.0
    where = situation.conditions
    slow, fast = (
        min(bounds(cell_of(calibration, config, dataclasses.replace(where, speed=speed))).values())
        for speed in (where.speed / factor, where.speed * factor)
    )
    return math.log(fast / slow) / (2 * math.log(factor))


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Agreement:
    """Predicted against measured rates, predicted for the machine as busy as it was.

    Attributes:
        configs: How many configurations were measured.
        outside: How many of them gave a rate outside of the predicted interval.
        worst: Measured over predicted rate of the one that is furthest off.
        neighbours: Busy cores of others that were counted in.
    """

    configs: int
    outside: int
    worst: float
    neighbours: float

    @property
    def is_poor(self) -> bool:
        """Whether predictions and measurements contradict each other too often."""
        return self.outside > MANY_DISAGREE * self.configs


def agreement(run: Run) -> Agreement | None:
    """Hold the model against the run's own trials; ``None`` where there are none."""
    calibration = usable_calibration(run)
    seen = [
        (trial, each)
        for trial in run.completed
        if trial.config.batch_size in {None, calibration.batch_size}
        and (each := observe(trial)) is not None
    ]
    if not seen or calibration.samples_per_batch is None:
        return None
    alone = believe([each for _, each in seen])  # in its own light, not in the model's
    whole = {trial.config for trial, each in seen if each.whole_epochs}
    here, outside, ratios = Situation.of(run), 0, []
    for config, model in predictions(run, here, {trial.config for trial, _ in seen}).items():
        steady, over = model.samples_per_s, model.epoch_batches_per_s
        if config in whole and steady is not None:
            steady = None if over is None else steady.times(over / model.batches_per_s.value)
        if steady is None or steady.value <= 0:
            continue
        mine = alone.rate(config.key)
        ratios.append(mine.value / steady.value)
        lows, highs = zip(*(_ends(each) for each in (mine, steady)), strict=True)
        outside += max(lows) > min(highs)
    if not ratios:
        return None
    return Agreement(
        configs=len(ratios),
        outside=outside,
        worst=max(ratios, key=lambda ratio: max(ratio, 1 / ratio)),
        neighbours=here.neighbours,
    )


def _ends(estimate: Estimate) -> tuple[float, float]:
    low, high, value = estimate.low, estimate.high, estimate.value
    return value if low is None else low, value if high is None else high
