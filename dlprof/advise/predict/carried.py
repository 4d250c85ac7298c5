"""What the model predicts, corrected by what a run measured: rates, and candidates with needs."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Collection, Mapping, Sequence

from dlprof.advise.candidates import Candidate, gather
from dlprof.advise.situation import Situation, usable_calibration
from dlprof.advise.speeds import (
    Speeds,
    claims,
    observations,
    predicted_factors,
    speeds_of,
)
from dlprof.advise.thresholds import ELSEWHERE_LOG_SD
from dlprof.errors import UsageError
from dlprof.model import (
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
from dlprof.stats import Carried, Expected, believe


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
    found = (
        _candidate(config, model, seen.get(config), situation, speeds)
        for config, model in models.items()
    )
    return list(found), speeds


def _candidate(
    config: Config,
    model: Prediction,
    seen: Candidate | None,
    situation: Situation,
    speeds: Speeds,
) -> Candidate:
    """A configuration with the rate that is believed of it, and its needs as far as trials tell."""
    turnover_s = None if seen is None else seen.epoch_turnover_s
    trials = () if seen is None else seen.trials
    made = Candidate(
        config=config,
        name=config.text_naming("prefetch_factor"),
        trials=trials,
        failures=() if seen is None else seen.failures,
        epoch_turnover_s=model.turnover_s if turnover_s is None else turnover_s,
        prediction=model,
        measured=bool(trials) and not situation.by_model,
    )
    needed = dataclasses.replace(
        _believed(model, config.key, speeds),
        pss_bytes=made.pss_bytes,
        shm_bytes=made.shm_bytes,
        startup_s=made.startup_s,
        turnover_s=made.epoch_turnover_s,
    )
    return dataclasses.replace(made, prediction=needed)


def _believed(model: Prediction, key: str, speeds: Speeds) -> Prediction:
    """A prediction with the rate that is believed of it."""
    steady = speeds.steady(key)
    claimed = model.samples_per_s or model.batches_per_s
    factor = steady.value / claimed.value
    batches = steady.times(model.batches_per_s.value / claimed.value)
    over = None if model.epoch_batches_per_s is None else math.exp(speeds.epochs[key].log)
    wait = model.wait_fraction
    return dataclasses.replace(
        model,
        batches_per_s=batches,
        samples_per_s=None if model.samples_per_s is None else steady,
        epoch_batches_per_s=None if over is None else batches.value * over,
        wait_fraction=None if wait is None else max(0.0, 1 - (1 - wait) * factor),
        cores=None if model.cores is None else model.cores * factor,
    )


def expectation(
    run: Run,
    situation: Situation,
    measured: Collection[Config],
    models: Mapping[Config, Prediction],
) -> Expected:
    """What was predicted for the conditions of the trials, of them and of what is asked for.

    What a sweep stored of its predictions stays as it is, so that all views have the same.

    Args:
        run: That holds a calibration.
        situation: That of the trials.
        measured: What they measured.
        models: What is predicted of others for the same situation.
    """
    stored = run.prediction
    calibration = usable_calibration(run)
    known = () if stored is None else stored.cells
    mine: Mapping[Config, Prediction] = {}
    if stored is None:
        own = {config for config in measured if config.batch_size == calibration.batch_size}
        mine = predictions(run, situation, own)
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
    asked = _expected(log_sd, models)
    seen = observations(run) if calibration.samples_per_batch is not None else []
    before, prior = models, asked
    if seen:
        here = Situation.of(run)
        ours = {each.config for each in gather(run)}
        ours = {each for each in ours if each.batch_size == calibration.batch_size}
        before = predictions(run, here, {*models, *ours})
        prior = _expected(log_sd, before)
    learned = believe(seen, prior)
    whole = {each.key for each in seen if each.whole_epochs}
    there: dict[str, Carried] = {}
    moved: dict[str, tuple[float, float]] = {}
    for config, model in models.items():
        key = config.key
        was = (
            prior.epoch_log_rates.get(key, prior.log_rates[key])
            if key in whole
            else prior.log_rates[key]
        )
        off, error = learned.log_rates[key] - was, max(learned.log_error(key), 1e-6)
        group = learned.groups[key]  # of one rate, whether or not its workers persist
        if group not in moved:
            middle, low, high = _moved(calibration, config, situation, off, error)
            moved[group] = middle, min(1.0, max(0.0, (high - low) / (2 * error)))
        change, follows = moved[group]
        unlike = log_sd if before[config].bound != model.bound else 0.0
        there[key] = Carried(
            log_rate=asked.log_rates[key] + change,
            follows=follows,
            log_sd=math.hypot(ELSEWHERE_LOG_SD, follows * unlike),
            by_speed=_by_speed(calibration, config, situation),
        )
    speed_sd = math.log(situation.speed.factor) / 2
    claimed = claims(models) if not seen else {}
    return Speeds(
        belief=learned.carried(there, speed_sd),
        epochs=predicted_factors(asked),
        claimed={
            key: _wider(each, 2 * abs(there[key].by_speed) * speed_sd)
            for key, each in claimed.items()
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


def _wider(estimate: Estimate, log: float) -> Estimate:
    """An estimate whose interval is as wide as a further error to either side makes it."""
    value = estimate.value
    if not (log and estimate.low and estimate.high):
        return estimate
    down = math.hypot(math.log(value / estimate.low), log)
    up = math.hypot(math.log(estimate.high / value), log)
    return Estimate(value=value, low=value * math.exp(-down), high=value * math.exp(up))
