"""What each configuration is worth, and the cheapest that is likely within 3 % of the best.

Worth is one rate, that a training run would see. From the rate that a trial measured, or that a
model predicted, three things lie between: the cores that several ranks, or a smaller machine, leave
to one loader; the training step; and the turn from one epoch to the next, or ten epochs of a
dataset that keeps samples, of which trials show the first. Under conditions that no
trial shows, the model's predictions are as far off as they were where trials show it.

The choice is one of those that keep the limits. Never one that is estimated slower than what the
user has, or than loading without workers; with a step, of those that keep it fed.
"""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
import math
import statistics
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence

from dlprof.advise import thresholds as at
from dlprof.advise.candidates import candidate_configs, rule_configs
from dlprof.advise.situation import Situation
from dlprof.advise.wording import NO_LIMIT, TEN_EPOCHS, even_shards, failed_or_skipped
from dlprof.errors import NothingMeasuredError, TargetError, UsageError
from dlprof.records import (
    DATA_FAULTS,
    RAISED,
    Config,
    ConfigRate,
    Estimate,
    Failure,
    Integrity,
    PredictedCell,
    Prediction,
    Reason,
    Run,
    Trial,
    broken_sample,
    undisturbed,
)
from dlprof.records.record import record
from dlprof.stats.belief import (
    CALIBRATED,
    COMPUTING_LOG_SD,
    NEAR,
    RISK,
    Belief,
    Carried,
    ExpectedRates,
    Gap,
    ObservedRate,
    believe,
    log_work,
    near_best,
    observe,
    room_beside,
    room_of,
)
from dlprof.stats.intervals import mean_interval, turnovers, typical
from dlprof.units import counted, format_bytes


@record(frozen=True, slots=True, kw_only=True)
class Candidate:
    """One configuration, and everything that was seen and predicted of it."""

    config: Config  # which
    name: str  # it in words
    trials: tuple[Trial, ...] = ()  # those with a rate, in the order of measuring
    failures: tuple[Trial, ...] = ()  # those that failed
    # From an epoch's last batch to the next one's first, as the run shows it for this configuration
    # or one that shares its turnover, or as it is predicted.
    epoch_turnover_s: float | None = None
    full_caches: int = 0  # bytes that its processes keep of the samples in the end
    # What it would give under the conditions that are asked for, by the same belief as all rates;
    # ``None`` where only trials are asked.
    prediction: Prediction | None = None
    measured: bool = True  # whether its trials show these conditions

    @property
    def key(self) -> str:
        """``Config.key``."""
        return self.config.key

    @property
    def trial_ids(self) -> list[str]:
        """The trials with a rate that show the conditions that are asked for."""
        return [trial.id for trial in self.trials] if self.measured else []

    @property
    def pss_bytes(self) -> int | None:
        """Largest peak of the process tree's memory, with queues and caches as full as they get."""
        seen = []
        for trial in self.trials:
            held, full = trial.usage.shm_peak_bytes, self._queued_bytes(trial)
            if (pss := trial.usage.pss_peak_bytes) is not None:
                # Batches that aren't shared, as those of numpy arrays, wait in the workers' memory.
                seen.append(pss + (max(0, full - held) if full and held else 0))
        found = max(seen) if seen else self._predicted("pss_bytes")
        return None if found is None else found + self.full_caches

    @property
    def shm_bytes(self) -> int | None:
        """Largest peak of shared memory seen, or what full queues hold, whichever is more."""
        peaks = (trial.usage.shm_peak_bytes for trial in self.trials)
        seen = [n for n in (*peaks, *map(self._queued_bytes, self.trials)) if n is not None]
        return max(seen) if seen else self._predicted("shm_bytes")

    def _predicted(self, need: str) -> int | None:
        value = None if self.prediction is None else getattr(self.prediction, need)
        return None if value is None else round(value)

    def _queued_bytes(self, trial: Trial) -> int | None:
        """What full queues hold; ``None`` without workers, or where batches have no known size."""
        held = self.config.queued_bytes(trial.batch_bytes)
        return None if held is None or not self.config.num_workers else round(held)

    @property
    def startup_s(self) -> float | None:
        """Median of ``iter`` plus first ``next``, of undisturbed trials."""
        seen = typical(trial.startup_s for trial in undisturbed(self.trials))
        return self.prediction.startup_s if seen is None and self.prediction else seen

    @property
    def copy_s(self) -> float | None:
        """Median seconds a batch in which the step waited for its copy to the device."""
        return typical(t.copies.exposed_s for t in self.trials if t.copies is not None)

    @property
    def own_cpu_cores(self) -> float | None:
        """Median of busy cores of the trial's own processes."""
        return typical(trial.usage.own_cpu_cores for trial in self.trials)

    @property
    def available_cpu_cores(self) -> float | None:
        """Median of the cores that the trial could have had."""
        return typical(trial.usage.available_cpu_cores for trial in self.trials)

    @property
    def noisy(self) -> int:
        """How many of the trials with a rate are doubtful."""
        return sum(trial.noisy for trial in self.trials)


def _full_caches(run: Run, config: Config) -> int:
    """Bytes that its processes keep of the samples in the end.

    0 where the machine doesn't hold all samples once: the cache ends sooner, or no setting helps.
    """
    target, memory = run.header.target, run.header.machine.memory_size_bytes
    fits = memory is None or target.full_caches(Config()) <= memory
    return target.full_caches(config) if fits else 0


def gather(run: Run) -> list[Candidate]:
    """One candidate for each configuration of the run, cheapest first."""
    groups: dict[Config, list[Trial]] = {}
    for trial in run.trials:
        if trial.purpose == "measure":
            groups.setdefault(trial.config, []).append(trial)
    turns = turnovers(run.completed)
    depths = {config.prefetch_factor for config in groups if config.num_workers}
    return [
        Candidate(
            config=config,
            name=config.text_naming("prefetch_factor") if len(depths) > 1 else config.text,
            trials=tuple(trial for trial in trials if trial.has_rate),
            failures=tuple(
                trial
                for place, trial in enumerate(trials)
                if trial.outcome != "completed" and not _was_fixed(trial, trials[place:])
            ),
            full_caches=_full_caches(run, config),
            epoch_turnover_s=turns.get(config.turnover_group),
        )
        for config, trials in sorted(groups.items(), key=lambda item: item[0].cost_key)
    ]


def _was_fixed(trial: Trial, since: Sequence[Trial]) -> bool:
    """Whether what the target's own code raised in a trial worked when the sweep was gone on with.

    Within one session, a configuration that raised is not tried again.
    """
    raised = trial.failure is not None and trial.failure.kind in RAISED
    return raised and any(each.failure is None for each in since)


@record(frozen=True, slots=True, kw_only=True)
class Rates:
    """One trial's rates in a situation."""

    samples_per_s: float  # steady, at the stated step
    # What is left of it over whole epochs, turnover included; 1 where the epoch's length isn't
    # known, or the rate covers whole epochs already.
    epoch_factor: float
    wait_fraction: float | None  # share of time waiting at the stated step; ``None`` without a step


@record(frozen=True, slots=True, kw_only=True)
class Speeds:
    """Steady rates as they are believed to be, times what epoch turnover leaves of them.

    The two are kept apart because configurations that differ only in ``persistent_workers`` have
    the same steady rate: what separates them is the epoch restart, not the noise of their rates.
    """

    belief: Belief  # the steady rates, from what was measured and what a model predicted
    # What epoch turnover leaves of each one's rate, over epochs of the target's length; where the
    # dataset keeps samples, what ten epochs make of the rate in a first one.
    epochs: Mapping[str, Gap]
    # Each trial's rates in the situation that counts, by trial id; none where trials show another.
    rates: Mapping[str, Rates] = dataclasses.field(default_factory=dict)
    # Steady rates with the model's own intervals, where nothing was measured that they could be
    # held against.
    claimed: Mapping[str, Estimate] = dataclasses.field(default_factory=dict)
    # What the run keeps for this situation: a later version may estimate otherwise, and one run has
    # one figure everywhere.
    kept: Mapping[str, ConfigRate] = dataclasses.field(default_factory=dict)
    pick: str = ""  # what it recommends, which the ratios that it keeps are over
    # By how much the log rate that it keeps of that is above the believed one: the others are shown
    # on the same level.
    level: float = 0.0
    # The steady rate that no loader exceeds, by its step: as trials show that, or as it is stated.
    # By configuration, as copies of batches that are pinned take less of a step; none of others.
    most: Mapping[str, float] = dataclasses.field(default_factory=dict)

    def waits(self, candidate: Candidate) -> list[float]:
        """Share of time that the step waits, of each trial that shows it.

        Of quiet trials, if any; others waited longer than at the rate that is believed.
        """
        quiet = [trial for trial in candidate.trials if not trial.noisy]
        known = [
            (rates.wait_fraction, rates.samples_per_s)
            for trial in quiet or candidate.trials
            if (rates := self.rates.get(trial.id)) and rates.wait_fraction is not None
        ]
        if quiet or not known:
            return [wait for wait, _ in known]
        believed = self.steady(candidate.key).value
        return [max(0.0, 1 - (1 - wait) * believed / seen) for wait, seen in known]

    def wait_fraction(self, candidate: Candidate) -> float | None:
        """Mean share of time that the step waits; ``None`` without a step."""
        if not candidate.measured and candidate.prediction is not None:
            return candidate.prediction.wait_fraction
        waits = self.waits(candidate)
        return statistics.fmean(waits) if waits else None

    def steady(self, key: str) -> Estimate:
        """The rate of a configuration within an epoch."""
        if key in self.kept:
            return self.kept[key].samples_per_s.times(math.exp(-self.epochs[key].value))
        found = self.claimed[key] if key in self.claimed else self.belief.rate(key)
        most = self._most(key)
        return found.through(lambda each: min(most, math.exp(self.level) * each))

    def rate(self, key: str) -> Estimate:
        """The one rate of a configuration, over whole epochs where their length is known."""
        if key in self.kept:
            return self.kept[key].samples_per_s
        return product(self.steady(key), self.epochs[key].factor())

    def ratio(self, key: str, other: str) -> Estimate:
        """The rate of one over that of another, with the interval of their quotient."""
        if key == other:
            return Estimate(value=1.0, low=1.0, high=1.0)
        if key in self.kept and other == self.pick:
            return self.kept[key].ratio
        steady = self.belief.ratio(key, other)
        if self.claimed and self.belief.error(key, other):
            steady = product(self.claimed[key], self.claimed[other].inverse)
        found = product(steady, self.epochs[key].minus(self.epochs[other]).factor())
        if self.kept or self.most:
            one, two = self.rate(key), self.rate(other)
            found = found.times(one.value / two.value / found.value)
            most, rest = (
                self._most(each) * math.exp(self.epochs[each].value) for each in (key, other)
            )
            low, high = one.ends[0] / max(rest, two.value), max(most, one.value) / two.ends[0]
            found = found.through(lambda each: min(max(each, low), high))
        return found

    def chance(self, key: str, other: str, factor: float = 1.0) -> float:
        """Probability that one is more than a factor as fast as another."""
        return self.gap(key, other).chance(math.log(factor))

    def gap(self, key: str, other: str) -> Gap:
        """By how much the log rate of one is above that of another."""
        if key == other:
            return Gap(0.0, 0.0, math.inf)
        found = self.belief.gap(key, other)._replace(value=self._log(key) - self._log(other))
        return found.minus(self.epochs[other].minus(self.epochs[key]))

    def room(
        self, candidate: Candidate, situation: Situation, alike: Collection[Candidate]
    ) -> Gap | None:
        """By how much the log rate of any could be above that of one: by its step, and by cores.

        ``alike`` are those whose samples cost much the same CPU work; cores say it of such alone.
        """
        turnover, model = self.epochs[candidate.key].value, candidate.prediction
        if candidate.measured:
            usable = situation.machine.usable_cores
            seen = [
                (each, observed, own.wait_fraction)
                for each in candidate.trials
                if (own := self.rates.get(each.id)) is not None
                and (observed := _observed(each, own, usable)) is not None
            ]
            works = [[w for t in one.trials if (w := log_work(t)) is not None] for one in alike]
            least = min(map(statistics.fmean, filter(None, works)), default=None)
            return room_of(seen, turnover, least_work=least, usable_cores=usable)
        if model is None:
            return None
        rooms = list[tuple[float, float]]()
        if (wait := model.wait_fraction) is not None:
            if not candidate.config.pin_memory:  # copies of pinned batches take less of the step
                copy_s = situation.copy_scale * situation.calibration.copy_s
                wait += copy_s * model.batches_per_s.value
            rooms.append((room_beside(wait), 0.0))
        if model.cores and candidate in alike:
            each = situation.cores / situation.constraints.ranks
            rooms.append((math.log(max(1.0, each / model.cores)), COMPUTING_LOG_SD))
        rate = self.belief.log_rate(candidate.key)
        gaps = [Gap(r - turnover, math.hypot(rate.error, sd), rate.df) for r, sd in rooms]
        return min(gaps, key=lambda gap: gap.most, default=None)

    def fastest(self, among: Sequence[Candidate]) -> Candidate:
        """The fastest of some, which must not be none; the first of equals."""
        return max(among, key=lambda each: self.log_speed(each.key))

    def log_speed(self, key: str) -> float:
        """Natural logarithm of a configuration's rate."""
        return self._log(key) + self.epochs[key].value

    def _log(self, key: str) -> float:
        return min(self.belief.log_rates[key], math.log(self._most(key)))

    def _most(self, key: str) -> float:
        return self.most.get(key, math.inf)


def speeds_of(situation: Situation, models: Mapping[Config, Prediction] | None = None) -> Speeds:
    """What all configurations are worth, those that were only predicted among them.

    By one belief over what a model predicted and what the trials gave. Where trials show other
    conditions than those that are asked for and the run holds a calibration, they still show how
    far off its predictions are, and the rest is predicted (``carried``).
    """
    run, models = situation.run, dict(models or {})
    if situation.by_model:
        return carried(situation, models)
    trials = [trial for trial in run.completed if trial.has_rate]
    turns = turnovers(trials)
    rates = {
        trial.id: rates_of(trial, situation, turns.get(trial.config.turnover_group))
        for trial in trials
    }
    usable = run.header.machine.usable_cores
    made = (_observed(trial, rates[trial.id], usable) for trial in trials)
    seen = [each for each in made if each is not None]
    expected = None
    if situation.as_measured:
        stored, epoch = run.prediction, situation.target.batches_per_epoch
        late = stored and epoch and not all(cell.epoch_samples_per_s for cell in stored.cells)
        if stored is not None and late and situation.is_calibrated:
            # Only later trials saw how long an epoch is: predicted once more.
            with contextlib.suppress(UsageError):  # its batches cost nothing
                models = predictions(situation, {c.config for c in stored.cells}) | models
                unled = dataclasses.replace(run, prediction=None)
                situation, stored = dataclasses.replace(situation, run=unled), None
        if stored is not None:
            expected = ExpectedRates.of(stored.cells, stored.log_sd, run=run)
        if situation.is_calibrated and (models or stored is None):
            expected = expectation(situation, {trial.config for trial in trials}, models)
    logs: dict[Config, list[float]] = {}
    for trial in trials:
        # Turnovers that would leave less are nonsense, but must not overflow.
        factor = max(1e-20, rates[trial.id].epoch_factor)
        logs.setdefault(trial.config, []).append(math.log(factor))
    epochs = {} if expected is None else _epoch_factors(expected, situation, {*models, *logs})
    ended = {
        config: gap
        for config, gap in _epochs_seen(logs, trials, situation)
        # No trial shows later ones, and the model knows what they cost.
        if config.key not in epochs or situation.epochs_loaded(config) == 10
    }
    # Those that were only predicted end as those that were seen to: what a model has of it would
    # make a difference between two whose epochs end alike.
    whole = {trial.config for trial in trials if trial.whole_epochs}
    timed: dict[Config, list[Gap]] = {}
    for config, gap in ended.items():
        if config not in whole and config.turnover_group in turns:
            timed.setdefault(config.turnover_group, []).append(gap)
    alike = {
        group: Gap(statistics.fmean(g.value for g in some), max(g.error for g in some), math.inf)
        for group, some in timed.items()
    }
    predicted = () if run.prediction is None else (cell.config for cell in run.prediction.cells)
    epochs |= {
        config.key: alike[config.turnover_group]
        for config in (*models, *predicted)
        if config.key in epochs and config.turnover_group in alike
    }
    epochs |= {config.key: gap for config, gap in ended.items()}
    advice, pick, kept = run.recommendation, "", tuple[ConfigRate, ...]()
    if situation.as_measured and advice is not None and not advice.extrapolated:
        with contextlib.suppress(UsageError):  # it was for what this run doesn't show
            if Situation.of(run, advice.constraints).as_measured:
                pick, kept = advice.config.key, advice.rates
    # What a gain is shown over: the user's settings, and PyTorch's default at any batch size.
    plain = [c.key for c in logs if c in {situation.present, Config(batch_size=c.batch_size)}]
    belief = _believed_over(plain, seen, expected)
    # Without those that only the calibration was with: they bound others, and nobody asked.
    asked = {config.key for config in (*models, *logs)}
    all_, stored = belief.log_rates, situation.run.prediction
    cells = () if stored is None else (cell.config for cell in stored.cells)
    some = {key: log for key, log in all_.items() if stored is not None or key in asked}
    speeds = Speeds(
        belief=dataclasses.replace(belief, log_rates=some),
        epochs=epochs,
        rates=rates,
        claimed={} if seen else {c.key: each.steady for c, each in models.items()},
        kept={each.config.key: each for each in kept},
        pick=pick,
        most=_most_of(trials, rates, {*logs, *models, *cells}),
    )
    if speeds.claimed or pick not in speeds.kept or pick not in speeds.belief.log_rates:
        return speeds
    level = math.log(speeds.kept[pick].samples_per_s.value) - speeds.log_speed(pick)
    return dataclasses.replace(speeds, level=level)


def _most_of(
    trials: Collection[Trial], rates: Mapping[str, Rates], configs: Collection[Config]
) -> dict[str, float]:
    """What the fastest step in any of some trials allows, if any that pins alike shows it alone."""
    busy: dict[bool, float] = {}
    for trial in trials:
        own, pins = rates[trial.id], trial.config.pin_memory
        # Ranks also wait for each other's data, in their steps; and turnovers are no step.
        if own.wait_fraction is None or trial.ranks or trial.whole_epochs:
            continue
        if own.samples_per_s > 0 and own.wait_fraction < 1:
            allowed = own.samples_per_s / (1 - own.wait_fraction)
            busy[pins] = max(busy.get(pins, 0.0), allowed)
    return {each.key: busy[each.pin_memory] for each in configs if each.pin_memory in busy}


def _epochs_seen(
    logs: Mapping[Config, Sequence[float]], trials: Iterable[Trial], situation: Situation
) -> Iterator[tuple[Config, Gap]]:
    """What epochs leave of rates by each one's trials, as sure as its turnover was timed often."""
    timed: dict[Config, list[Trial]] = {}
    for trial in trials:
        if trial.epoch_turnover_s is not None:
            timed.setdefault(trial.config.turnover_group, []).append(trial)
    for config, found in logs.items():
        times = len(undisturbed(timed.get(config.turnover_group, []))) or 1
        error = at.TURNOVER_SPREAD / math.sqrt(times)
        yield config, _beside_loading(situation, config, math.fsum(found) / len(found), error)


def _believed_over(
    keys: Sequence[str], seen: Sequence[ObservedRate], expected: ExpectedRates | None
) -> Belief:
    """A belief that is no surer of some than that all else contradicts their only trial.

    Something disturbed that. A sweep measures it again, if its budget has room for it.
    """
    belief = believe(seen, expected)
    if expected is None:
        return belief
    for key in (key for key in keys if belief.blocks[key] == 1):
        rest = [each for each in seen if each.key != key]
        over = {}
        if any(each.whole_epochs for each in seen if each.key == key):
            over = {name: log for name, log in expected.epoch_log_rates.items() if name == key}
        rates = {**expected.log_rates, **over}
        else_ = believe(rest, dataclasses.replace(expected, log_rates=rates))
        belief = belief.opened(key, belief.too_little(key, else_))
    return belief


def _epoch_factors(
    expected: ExpectedRates, situation: Situation, configs: Collection[Config]
) -> dict[str, Gap]:
    """What epochs leave of rates that were predicted, as sure as where a restart is timed once.

    What they bring where samples are kept is as sure as the model.
    """
    stored, over = situation.run.prediction, expected.epoch_log_rates
    cells = () if stored is None else (cell.config for cell in stored.cells)
    known = {config.key: config for config in (*cells, *configs)}
    found = dict[str, Gap]()
    for key, steady in expected.log_rates.items():
        log, config = over.get(key, steady) - steady, known.get(key, Config())
        error = expected.log_sd if situation.epochs_loaded(config) < 10 else at.TURNOVER_SPREAD
        found[key] = _beside_loading(situation, config, log, error)
    return found


def _beside_loading(situation: Situation, config: Config, log: float, error: float) -> Gap:
    """What epochs make of a rate, off by the error of what isn't loading at that rate."""
    loading = situation.epochs_loaded(config) / 10 * math.exp(log)
    return Gap(log, max(0.0, 1 - loading) * error, math.inf)


def rates_of(trial: Trial, situation: Situation, turnover_s: float | None) -> Rates:
    """The rates of a completed trial that has a rate."""
    measured = trial.samples_per_s.value if trial.samples_per_s is not None else 0.0
    share = cores_share(trial, situation)
    wait = trial.wait_fraction if situation.step_measured else None
    if wait is not None and share < 1:  # the step is as long, and fewer of them pass
        wait = 1 - (1 - wait) * share
    if trial.batches_per_s is None or trial.batches_per_s.value <= 0:
        return Rates(samples_per_s=measured * share, epoch_factor=1.0, wait_fraction=wait)
    batches = trial.batches_per_s.value * share
    samples_per_batch = measured / trial.batches_per_s.value
    step_s = situation.derived_step_s
    if step_s is not None:
        # Without workers, loading and step take turns; with them, they overlap. Receiving a batch
        # takes the main process a little on top, which only measuring or a model shows.
        alone = not trial.config.num_workers
        waiting = 1.0 if trial.wait_fraction is None or not alone else trial.wait_fraction
        load_s = waiting / batches
        batches = 1 / (step_s + load_s) if alone else 1 / max(load_s, step_s)
        wait = max(0.0, 1 - batches * step_s)
    count, target = situation.epoch_batches(trial.config), situation.target
    waiting, at_once = 1.0 if wait is None else wait, max(1, trial.config.num_workers)
    idle, factor = 0.0, 1.0  # beside an epoch's batches, as many that idle workers could load
    if not trial.whole_epochs:
        if last := target.last_shards(at_once, situation.constraints.ranks):
            idle = max(0.0, _equally_fed(trial, situation) - last) / (target.shards or 1)
            factor = 1 / (1 + idle * waiting)
        elif count is not None:
            idle = math.ceil(count / at_once) * at_once / count - 1
        if count is not None and turnover_s is not None:
            # All workers load their first batch in the turnover, and the last round leaves some
            # idle.
            loading_s = count / batches
            epoch_s = loading_s + (idle * count - at_once) * waiting / batches + turnover_s
            factor = loading_s / max(loading_s, epoch_s)
    if target.keeps_samples:  # what isn't waited for is no shorter then
        kept = 1 - (1.0 if wait is None else wait) * (1 - target.kept_cost)
        ranks = situation.constraints.ranks
        factor *= 10 / target.ten_epochs(trial.config, ranks, kept)
    return Rates(samples_per_s=batches * samples_per_batch, epoch_factor=factor, wait_fraction=wait)


def _equally_fed(trial: Trial, situation: Situation) -> float:
    """How many workers alone would load as fast as all of a trial.

    Fewer where cores are short, and, by Little's law and what a batch was calibrated to take, where
    workers share another limit or main is one.
    """
    usage, config, known = trial.usage, trial.config, situation.run.calibration
    own, available = usage.own_cpu_cores, usage.available_cpu_cores
    fed: float = config.num_workers
    if own is not None and available is not None and own >= max(0.5, at.USED_UP * available):
        fed = min(fed, own)
    making = None if known is None else known.in_workers
    alike = known is not None and config.batch_size in {None, known.batch_size}
    if alike and making is not None and making.cpu_s and trial.batches_per_s is not None:
        loads_s = (math.fsum(making.cpu_s) + math.fsum(making.io_s)) / len(making.cpu_s)
        fed = min(fed, trial.batches_per_s.value * loads_s)
    return fed


def _observed(trial: Trial, own: Rates, usable_cores: float) -> ObservedRate | None:
    """A trial as the belief sees it, by its rates in the situation that counts."""
    return observe(trial, own.samples_per_s, wait=own.wait_fraction, usable_cores=usable_cores)


def cores_share(trial: Trial, situation: Situation) -> float:
    """Share of its measured rate that cores leave to each of the loaders, at most 1.

    ``cores / (ranks * own)``: the cores of the machine over what all ranks' loaders would use if
    each went as fast as the one that was measured. More cores than were measured promise nothing.
    Where a calibration answers it is 1: predictions know of cores.
    """
    own, ranks = trial.usage.own_cpu_cores, situation.constraints.ranks
    here = not (situation.other_ranks or situation.extrapolated)
    if own is None or own <= 0 or here or situation.by_model:
        return 1.0
    return min(1.0, situation.machine.usable_cores / (ranks * own))


def product(one: Estimate, two: Estimate) -> Estimate:
    """The product of two figures, as if all that they may be off were their own."""
    value = one.value * two.value
    if not (one.low and one.high and two.low and two.high):
        return Estimate(value=value)
    down = math.hypot(math.log(one.value / one.low), math.log(two.value / two.low))
    up = math.hypot(math.log(one.high / one.value), math.log(two.high / two.value))
    return Estimate(value=value, low=value * math.exp(-down), high=value * math.exp(up))


def predictions(situation: Situation, configs: Collection[Config]) -> dict[Config, Prediction]:
    """What the model says of configurations, cheapest first.

    Raises:
        UsageError: The calibration is for another batch size, or of batches that cost nothing, or
            a figure of the situation is out of range.
    """
    from dlprof.model.predict import predict_all

    ordered = sorted(configs, key=lambda config: config.cost_key)
    try:
        found = predict_all(situation.calibration, ordered, situation.conditions)
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
    situation: Situation, configs: Collection[Config]
) -> tuple[list[Candidate], Speeds]:
    """Configurations, cheapest first, with what they would give, and what that rests on."""
    models = predictions(situation, configs)
    speeds = speeds_of(situation, models)
    seen = {each.config: each for each in gather(situation.run)}
    found = []
    for config, model in models.items():
        full = _full_caches(situation.run, config)
        each = seen.get(config) or Candidate(config=config, name="", full_caches=full)
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


def shown_rate(run: Run, config: Config) -> Estimate | None:
    """A configuration's rate within epochs, samples/s, by which all views have it, if known."""
    speeds = _shown(run, config)
    return None if speeds is None else speeds.steady(config.key)


def shown_gain(run: Run, own: Config, config: Config) -> Estimate | None:
    """A configuration's rate over that of another, likewise."""
    speeds = _shown(run, own, config)
    return None if speeds is None else speeds.ratio(config.key, own.key)


def _shown(run: Run, *configs: Config) -> Speeds | None:
    situation, models = Situation.of(run), dict[Config, Prediction]()
    if situation.is_calibrated:
        with contextlib.suppress(UsageError):  # it says nothing of this batch size
            models = predictions(situation, {*configs})
    speeds = speeds_of(situation, models)
    return speeds if {each.key for each in configs} <= speeds.belief.log_rates.keys() else None


def _believed(made: Candidate, model: Prediction, speeds: Speeds) -> Prediction:
    """A prediction with the rate that is believed of it, and its needs as far as trials show."""
    steady, claimed = speeds.steady(made.key), model.steady
    factor, wait = steady.value / claimed.value, model.wait_fraction
    batches = steady.times(model.batches_per_s.value / claimed.value)
    over = batches.value * math.exp(speeds.epochs[made.key].value)
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
    situation: Situation, measured: Collection[Config], models: Mapping[Config, Prediction]
) -> ExpectedRates | None:
    """What was predicted for the conditions of the trials, of them and of what is asked for.

    What a sweep stored of its predictions stays as it is, so that all views have the same.
    ``None`` where the calibration says nothing of what was measured.
    """
    from dlprof.model.predict import relative_error

    stored, calibration = situation.run.prediction, situation.calibration
    known = () if stored is None else stored.cells
    mine: Mapping[Config, Prediction] = {}
    if stored is None:
        own = {config for config in measured if config.batch_size == calibration.batch_size}
        try:
            mine = predictions(situation, own | _calibrating(situation))
        except UsageError:  # its batches cost nothing
            return None
    have = {cell.config for cell in known} | set(measured)
    rest = {config: each for config, each in models.items() if config not in have}
    log_sd = relative_error(calibration) if stored is None else stored.log_sd
    return _expected(situation, log_sd, {**mine, **rest}, beside=known)


def _expected(
    situation: Situation,
    log_sd: float,
    models: Mapping[Config, Prediction],
    beside: Sequence[PredictedCell] = (),
) -> ExpectedRates:
    """What was predicted, as sure as by what the run calibrated, whatever else is asked for."""
    from dlprof.model.predict import cells_of

    calibrated = frozenset(each.num_workers for each in _calibrating(situation))
    cells = (*beside, *cells_of(models))
    return ExpectedRates.of(cells, log_sd, calibrated, run=situation.run)


def _calibrating(situation: Situation) -> set[Config]:
    """What its run's model was fitted with, but for the settings that it says to be alike."""
    run, calibration = situation.run, situation.calibration
    if run.prediction is not None:
        counts = ExpectedRates.of(run.prediction.cells, run.prediction.log_sd).calibrated
    else:
        trials = (trial for trial in run.trials if trial.id in calibration.trials)
        counts = frozenset({trial.config.num_workers for trial in trials} - {0}) or CALIBRATED
    size = calibration.batch_size
    return {Config(num_workers=count, batch_size=size).canonical() for count in counts}


def carried(situation: Situation, models: Mapping[Config, Prediction]) -> Speeds:
    """Rates under conditions that no trial shows: predicted, and as far off as predictions were.

    How far predictions of each ``num_workers`` are off, and how surely, is learned under the
    trials' own conditions. Under the asked ones loading is taken to be as far off; what that makes
    of the rate at a step, the model says. What something else limits there than where
    it was measured is less sure.
    """
    from dlprof.model.predict import EXTRAPOLATED_ERROR, relative_error

    run, calibration = situation.run, situation.calibration
    log_sd = relative_error(calibration)
    own, asked = Situation.of(run), _expected(situation, log_sd, models)
    prior = beside = asked
    before, seen = models, list[ObservedRate]()
    if calibration.samples_per_batch is not None:
        usable = run.header.machine.usable_cores
        made = (observe(trial, usable_cores=usable) for trial in run.completed)
        seen = [each for each in made if each is not None]
    if seen:
        ours = {each.config for each in gather(run)}
        ours = {each for each in ours if each.batch_size == calibration.batch_size}
        before = predictions(own, {*models, *ours, *_calibrating(own)})
        prior = beside = _expected(own, log_sd, before)
        if situation.neighbours < own.neighbours:
            fair = situation.fair_cores  # that of the others who were there is none of these
            fewer = own.supposing(neighbours=situation.neighbours, fair_cores=fair)
            beside = _expected(fewer, log_sd, predictions(fewer, before))
    learned, speed_sd = believe(seen, prior), math.log(situation.speed.factor) / 2
    whole = {each.key for each in seen if each.whole_epochs}
    expected, alone = (
        {**e.log_rates, **{key: e.epoch_log_rates[key] for key in whole & {*e.epoch_log_rates}}}
        for e in (prior, beside)
    )
    # More cores for each rank may be what it lacked. Threads of others may be more than the cores.
    there_free, free = (
        max(0.0, each.cores - each.neighbours) / each.constraints.ranks for each in (situation, own)
    )
    crowded = there_free <= free + at.SAME_CORES
    stated = situation.step_s > 0 and not situation.step_cpu_s  # else tracing made it longer
    samples = calibration.samples_per_batch or 1.0
    level = speeds_of(own).level if seen and own.as_measured else 0.0
    there: dict[str, Carried] = {}
    moved: dict[str, tuple[float, float]] = {}
    for config, model in models.items():
        key, bound = config.key, before[config].bound
        group = learned.groups[key]  # of one rate, whether or not its workers persist
        if group not in moved:
            rate = learned.log_rate(key)
            off, error = rate.value - expected[key] + level, max(rate.error, 1e-6)
            # That others took less than predicted is no figure of where they are gone.
            off -= min(max(off, 0.0), max(0.0, alone[key] - expected[key]))
            offs = (off, off - error, off + error)
            found = _moved(config, situation, offs)
            if seen and crowded and bound == model.bound:
                # What loading leaves unexplained at the trials' step is the main process's, in
                # the same seconds of each batch: the less of a longer one.
                share = model.batches_per_s.value / before[config].batches_per_s.value
                rest = zip(offs, _moved(config, own, offs), strict=True)
                left = [min(1.0, share) * (each - explained) for each, explained in rest]
                found = [each + more for each, more in zip(found, left, strict=True)]
            middle, low, high = found
            moved[group] = middle, min(1.0, max(0.0, (high - low) / (2 * error)))
        change, follows = moved[group]
        unlike = log_sd if bound != model.bound else 0.0
        there[key] = Carried(
            log_rate=asked.log_rates[key] + change,
            follows=follows,
            log_sd=math.hypot(EXTRAPOLATED_ERROR, follows * unlike),
            by_speed=_by_speed(config, situation),
        )
    return Speeds(
        belief=learned.carried(there, speed_sd),
        epochs=_epoch_factors(asked, situation, models),
        claimed={
            c.key: product(
                each.steady, Gap(0.0, abs(there[c.key].by_speed) * speed_sd, math.inf).factor()
            )
            for c, each in ({} if seen else models).items()
        },
        most=dict.fromkeys(there, samples / situation.step_s) if stated else {},
    )


def _moved(config: Config, situation: Situation, offs: Sequence[float]) -> list[float]:
    """By how much the log rate changes where loading is off by so much, above 0 for faster.

    With all that loading takes ``exp(off)`` times as fast, time passes over the same step as over
    one that is so much longer, and so much faster.
    """
    from dlprof.model.bounds import cell_of
    from dlprof.model.maxplus import drawn, steady_rate
    from dlprof.model.work import work_of

    if not situation.step_s + situation.step_cpu_s:
        return list(offs)
    calibration, where = situation.calibration, situation.conditions
    work = drawn(work_of(calibration, config, where))

    def rate(factor: float) -> float:
        longer = dataclasses.replace(
            where, step_s=where.step_s * factor, step_cpu_s=where.step_cpu_s * factor
        )
        return steady_rate(cell_of(calibration, config, longer, work=work)).batches_per_s

    as_predicted = rate(1.0)
    return [each + math.log(rate(math.exp(each)) / as_predicted) for each in offs]


def _by_speed(config: Config, situation: Situation) -> float:
    """How far the rate follows the speed of the cores, where that is not known.

    By the closed form, which separates loaders that compute from those that wait.
    """
    from dlprof.model.bounds import bounds, cell_of

    factor = situation.speed.factor
    if factor == 1.0:
        return 0.0
    calibration, where = situation.calibration, situation.conditions
    slow, fast = (
        min(bounds(cell_of(calibration, config, dataclasses.replace(where, speed=speed))).values())
        for speed in (where.speed / factor, where.speed * factor)
    )
    return math.log(fast / slow) / (2 * math.log(factor))


@record(frozen=True, slots=True, kw_only=True)
class Choice:
    """What was chosen, and from what."""

    situation: Situation  # what the settings are wanted for
    pick: Candidate  # the recommended configuration
    best: Candidate  # the fastest of the pool
    # What the choice was between: those that feed the step, where some do.
    pool: tuple[Candidate, ...]
    allowed: tuple[Candidate, ...]  # all that keep the limits, cheapest first
    fed: bool | None  # whether the pick keeps the step fed; ``None`` without a step
    speeds: Speeds  # what the choice rests on
    # By which share something else is faster at most, by the certificate; ``None`` where that says
    # nothing.
    loss: float | None = None

    @property
    def ties(self) -> tuple[Candidate, ...]:
        """Those of the pool that are more likely near the best than not, and ``pick``."""
        return tuple(each for each in self.pool if each is self.pick or self.far(each) <= at.EVEN)

    @property
    def undecided(self) -> tuple[Candidate, ...]:
        """Cheaper than ``pick``, measured, and neither likely nor surely too slow."""
        cheaper = self.pool[: self.pool.index(self.pick)]
        return tuple(each for each in cheaper if each.measured and self.far(each) < 1 - RISK)

    @property
    def present(self) -> Candidate | None:
        """What the target's own DataLoader is set to now, if it keeps the limits."""
        return self.of(self.situation.present)

    @property
    def default(self) -> Candidate | None:
        """PyTorch's own default, ``num_workers=0``, at the batch size of the pick."""
        return self.of(Config(batch_size=self.pick.config.batch_size))

    @property
    def fewer(self) -> Candidate | None:
        """The fastest of fewer workers that are workers."""
        most = self.pick.config.num_workers
        some = [each for each in self.allowed if 0 < each.config.num_workers < most]
        return self.speeds.fastest(some) if some else None

    def of(self, config: Config | None) -> Candidate | None:
        """The candidate of a configuration, if it keeps the limits."""
        return next((each for each in self.allowed if each.config == config), None)

    def far(self, candidate: Candidate) -> float:
        """Probability that a configuration is slower than ``NEAR`` of the best."""
        return self.speeds.chance(self.best.key, candidate.key, 1 / NEAR)


def breach(candidate: Candidate, situation: Situation) -> tuple[str, str] | None:
    """The first limit that a configuration breaks, with its value, and what it needs instead."""
    config, constraints, machine = candidate.config, situation.constraints, situation.machine
    most, workers = constraints.max_workers, config.num_workers
    name = machine.hostname or "this machine"
    if most is not None and workers > most:
        return f"max_workers={most}", f"has {workers}"
    memory, shared = candidate.pss_bytes, candidate.shm_bytes if workers else None
    if memory is None:  # its caches alone take this
        memory = candidate.full_caches or None
    verb = "needs" if candidate.measured or constraints.ranks > 1 else "would need"
    times = f"{constraints.ranks} x " if constraints.ranks > 1 else ""
    for limit, size, used, what in (
        ("max_ram", constraints.max_ram_bytes, memory, ""),
        (f"the memory of {name}", machine.memory_size_bytes, memory, ""),
        ("max_shm", constraints.max_shm_bytes, shared, " of shared memory"),
        (f"the /dev/shm of {name}", machine.shm_bytes, shared, " of shared memory"),
    ):
        if used is not None and size is not None and used * constraints.ranks > size:
            return f"{limit} ({format_bytes(size)})", f"{verb} {times}{format_bytes(used)}{what}"
    # With ``file_descriptor`` sharing the main process holds a descriptor per queued tensor. Not
    # computed where it was measured: there it worked.
    files = machine.open_files_limit
    worked = candidate.measured and not situation.extrapolated
    by_name = (config.sharing_strategy or situation.target.sharing_strategy) == "file_system"
    if files is None or not workers or by_name or worked:
        return None
    # Images and labels, where the probe could not count tensors; files and sockets beside them.
    tensors = situation.target.batch_tensors
    held = config.open_files(2 if tensors is None else tensors)
    if held + at.OTHER_FILES <= files:
        return None
    return f"{files} open files on {name}", f"needs {held} beside about {at.OTHER_FILES} others"


def broken_limit(candidate: Candidate, situation: Situation) -> str:
    """The same in words, ``max_workers=2: it has 8``; empty where it keeps all of them."""
    found = breach(candidate, situation)
    return "" if found is None else "{}: it {}".format(*found)


def within_limits(
    candidates: Sequence[Candidate], situation: Situation
) -> tuple[list[Candidate], list[Reason]]:
    """The candidates that keep all limits, and one reason for each limit that leaves some out.

    Raises:
        UsageError: If no candidate is left.
    """
    kept: list[Candidate] = []
    broken: dict[str, list[tuple[Candidate, str]]] = {}
    for candidate in candidates:
        found = breach(candidate, situation)
        if found is None:
            kept.append(candidate)
        else:
            broken.setdefault(found[0], []).append((candidate, found[1]))
    if not kept:
        first = ((limit, *rows[0]) for limit, rows in broken.items())
        needs = "; ".join(f"{limit}, and {each.name} {need}" for limit, each, need in first)
        hint = "Raise the limit, or run a sweep with smaller settings."
        empty = (dataclasses.replace(each, full_caches=0) for each in candidates)
        if any(breach(each, situation) is None for each in empty):
            full = min(each.full_caches for each in candidates if each.full_caches)
            alone = situation.target.full_caches(Config())
            fewer = f", {format_bytes(alone)} with num_workers=0" if alone < full else ""
            hint = (
                f"The samples that the dataset keeps take {format_bytes(full)} of it in the end"
                f"{fewer}: have its cache hold fewer, or raise the limit."
            )
        raise UsageError(
            f"No configuration of this run keeps within the limits: {needs}", hint=hint
        )
    reasons = []
    for limit, rows in broken.items():
        cheapest, need = rows[0]
        others = f" and {len(rows) - 1} more" if len(rows) > 1 else ""
        claim = f"{limit} leaves out {cheapest.name}{others}: {cheapest.name} {need}"
        beyond = {each.key: f"{limit}: it {need}" for each, need in rows}
        evidence = {"trials": cheapest.trial_ids, "beyond": beyond}
        reasons.append(Reason(claim=claim, evidence=evidence))
    return kept, reasons


def decide(
    situation: Situation, *, among: Collection[Config] | None = None
) -> tuple[Choice, list[Reason]]:
    """What to choose in a situation, and what limits left out of it.

    ``among`` names what to choose from, which a calibration has to predict.

    Raises:
        NothingMeasuredError: Nothing was measured, and no calibration answers.
        TargetError: Loading fails at one of the samples, whatever the settings.
        UsageError: No configuration keeps within the limits.
    """
    run = situation.run
    if (broken := broken_sample(run)) is not None:
        raise _fails_there(broken)
    known = [each for each in gather(run) if among is None or each.config in among]
    measured = [candidate for candidate in known if candidate.trials]
    others = unmeasured(situation, among)
    if situation.by_model or (among is not None and not measured):
        return _among_all(situation, others or among or ())
    if not measured:
        # No time was left for plain trials; where they were tried in vain, that is the answer.
        tried = any(t.purpose == "measure" and t.outcome != "skipped" for t in run.trials)
        cells = [] if tried or not situation.is_calibrated else others
        if cells and run.diagnosis is not None:  # a profile's, which is over what it looked at
            more = [*filter(None, (run.present,)), Config(batch_size=cells[0].batch_size)]
            useless = Integrity.of(run).is_useless
            cells = [*cells, *(c for c in more if not may_fail(run, c) and not useless(c))]
        if not cells and not situation.constraints.asks_for_cores:
            raise _nothing_measured(situation)
        return _among_all(situation, cells)
    # A configuration that failed once may fail again: only where nothing else is left.
    steady = [candidate for candidate in measured if not candidate.failures] or measured
    # Nor more workers than get data, which change nothing but what they take.
    most = Integrity.of(run).fed or 0
    kept = [c for c in steady if c.config == situation.present or c.config.num_workers <= most]
    if any(0 < candidate.config.num_workers <= most for candidate in kept):
        steady = kept
    try:
        allowed, limit_reasons = within_limits(steady, situation)
    except UsageError:  # what was only predicted may keep them
        if not (situation.as_measured and situation.is_calibrated):
            raise
        swept = () if run.prediction is None else _trusted(run, others)
        return _among_all(situation, among or swept)
    asked = others if among is not None or run.diagnosis is not None else ()
    speeds = candidates_of(situation, asked)[1] if asked else speeds_of(situation)
    choice = choose(allowed, situation, speeds)
    better = _trusted(run, [each for each in others if is_better(choice, each.key)])
    if not better or not situation.is_calibrated:
        return choice, limit_reasons

    found, speeds = candidates_of(situation, {*better, *asked})
    try:
        within, more_reasons = within_limits([c for c in found if c.config in better], situation)
    except UsageError:  # none of them keeps the limits, as what was measured does
        return choice, limit_reasons
    both = sorted([*allowed, *within], key=lambda each: each.config.cost_key)
    claim = f"{choice.pick.name} is the best measured configuration, and likely slower than one "
    claim += "that was not measured"
    left = Reason(claim=claim, evidence={"trials": choice.pick.trial_ids})
    return choose(both, situation, speeds), [left, *limit_reasons, *more_reasons]


def _among_all(situation: Situation, cells: Collection[Config]) -> tuple[Choice, list[Reason]]:
    wanted = {*(cells or _trusted(situation.run, [*candidate_configs(situation)]))}
    by_rules = [each for each in rule_configs(situation).values() if each is not None]
    # At once, so that what they have in common is computed once.
    found, speeds = candidates_of(situation, {*wanted, *by_rules})
    allowed, limit_reasons = within_limits([c for c in found if c.config in wanted], situation)
    return choose(allowed, situation, speeds), limit_reasons


def _fails_there(broken: Failure) -> TargetError:
    where = "in every configuration that was tried"
    if broken.batches is not None:
        where = "at the same place of an epoch in every configuration that reached it"
        where += f", after {counted(broken.batches, 'batch')}"
    return TargetError(
        f"Loading fails {where}: {broken.message}",
        hint=broken.hint,
        traceback=broken.stderr_tail,
        failures=[(broken.kind, broken.message)],
    )


def _nothing_measured(situation: Situation) -> NothingMeasuredError:
    run = situation.run
    failed = [(trial, trial.failure) for trial in run.trials if trial.failure is not None]
    # What was skipped is why there is no rate only where nothing was tried, and not for time.
    tried = [trial for trial in run.trials if trial.outcome != "skipped"]
    blamed = [each for each in failed if not tried or each[0].outcome != "skipped"]
    unbegun = not tried and run.end is not None and run.end.reason == "budget"
    wrong = next((failure for _, failure in failed if failure.kind in DATA_FAULTS), None)
    said, hint = "The run holds no trials", f"Go on with it: {run.resume_command}"
    if run.header.plan is None:  # a profile has no plan, and can't be continued
        hint = "Give it more time with --budget."
    if unbegun:
        said, hint = "The budget ended before the first trial", "Give more: --budget 1m."
    if run.is_script:
        said = "This is a script's run: it shows why loading is slow, and compares no settings"
        hint = "See it with dlprof report, or sweep the script's dataset with dlprof sweep TARGET."
    if wrong is not None and len(failed) == len(run.trials):
        said = f"No settings give the right data, so there are none to recommend: {wrong.message}"
        return NothingMeasuredError(said, hint=wrong.hint)
    if any(trial.batches_per_s is not None for trial in run.completed):
        said = "The samples in this target's batches can't be counted, so no rates can be compared"
        hint = "Have it yield tensors, or lists with one entry for each sample."
    elif not blamed and any(trial.purpose == "explain" for trial in run.trials):
        said = "The run holds only traced trials, whose rates are not compared"
        if situation.is_calibrated:  # the command to go on with stays last, to be copied
            hint = f"Give this run file to dlprof predict, or {hint[0].lower()}{hint[1:]}"
    elif run.trials and not unbegun:
        said, one = "The run's only trial gave no rate", "it"
        if (count := len(tried or run.trials)) > 1:
            said, one = f"None of the run's {count} trials gave a rate", "the first"
        hint = "Give the sweep more time with --budget."
        for first, failure in blamed[:1]:
            why = f"{said}; {one} {failed_or_skipped(first)}: {failure.message}"
            kinds = [(each.kind, each.message) for _, each in failed]
            return NothingMeasuredError(why, hint=failure.hint, failures=kinds)
    return NothingMeasuredError(said, hint=hint)


def choose(allowed: Sequence[Candidate], situation: Situation, speeds: Speeds) -> Choice:
    """Choose among those that keep the limits.

    What was measured is left for what was only predicted where that is likely better by over 3 %
    than all of it; likewise what was seen undisturbed for more workers that others disturbed in
    all of their trials.
    """
    measured = [each for each in allowed if each.measured]
    found = _choose(measured, allowed, situation, speeds, RISK) if measured else None
    clear = [each for each in measured if not all(trial.noisy for trial in each.trials)]
    if found is not None and clear and found.pick not in clear:
        seen = [each for each in measured if each in clear or each.config == situation.present]
        least = _choose(seen, allowed, situation, speeds, RISK)
        cheaper = least.pick.config.cost_key < found.pick.config.cost_key
        found = least if cheaper and not is_better(least, found.pick.key) else found
    others = [each for each in allowed if not each.measured]
    better = [each for each in others if found is None or is_better(found, each.key)]
    if found is None or better:
        return _choose(better, allowed, situation, speeds, at.EVEN)
    return found


def is_better(choice: Choice, key: str) -> bool:
    """Whether one that was only predicted is likely better by over 3 % than what was chosen."""
    return not choice.fed and choice.speeds.chance(key, choice.pick.key, 1 / NEAR) >= 1 - RISK


def _choose(
    some: Sequence[Candidate],
    allowed: Sequence[Candidate],
    situation: Situation,
    speeds: Speeds,
    risk: float,
) -> Choice:
    """The cheapest that is near the best; with a step, that keeps it fed, if any does."""

    def gap(one: Config, two: Config) -> Gap:
        return speeds.gap(one.key, two.key)

    logs = {each.config: speeds.log_speed(each.key) for each in some}
    fed = [each for each in some if _is_fed(each, speeds, situation)]
    near = near_best(logs, situation.present, gap, risk, {each.config for each in fed})
    # Keeping the step fed may cost more between epochs than it saves.
    pool = fed if any(each.config in near for each in fed) else some
    by_model = situation.by_model and situation.step_s + situation.step_cpu_s > 0
    has_step = situation.step_measured or situation.derived_step_s is not None or by_model
    return Choice(
        situation=situation,
        pick=next(each for each in pool if each.config in near),
        best=speeds.fastest(pool),
        pool=tuple(pool),
        allowed=tuple(allowed),
        fed=pool is fed if has_step else None,
        speeds=speeds,
    )


def _is_fed(candidate: Candidate, speeds: Speeds, situation: Situation) -> bool:
    """Whether the step waits so little for this configuration that it counts as fed."""
    mean = speeds.wait_fraction(candidate)
    if mean is None:
        return False
    step_s = situation.derived_step_s
    if step_s is not None and candidate.config.num_workers:
        # Every trial gave batches faster than the step takes them, by its lower end.
        pairs = [(cores_share(trial, situation), trial.batches_per_s) for trial in candidate.trials]
        return all(
            rate is not None
            and share * step_s * (rate.value if rate.low is None else rate.low) >= at.DERIVED_MARGIN
            for share, rate in pairs
        )
    if mean <= at.FED_WAIT_FRACTION:
        return True
    waits = speeds.waits(candidate)
    low = mean_interval(waits).low if waits else None
    return low is not None and low <= at.FED_WAIT_FRACTION and mean <= at.PERHAPS_FED_WAIT_FRACTION


def unmeasured(situation: Situation, among: Collection[Config] | None = None) -> list[Config]:
    """What was only predicted and may be used: nothing like it failed, nor are workers too many.

    ``among`` is what was asked of; ``None`` is for all that the sweep predicted, and for what the
    profile advises.
    """
    run, named = situation.run, among is not None
    if among is None:
        predicted = () if run.prediction is None else run.prediction.cells
        among = [cell.config for cell in predicted] or [*filter(None, (run.advised,))]
    if not situation.as_measured or not among:
        return []
    found = Integrity.of(run)
    limits = situation.constraints
    most = math.inf if limits.max_workers is None else limits.max_workers
    if run.header.target.kind == "iterable" and not named:
        most = min(most, found.worked)  # how many its shards feed only a trial shows
    known = {trial.config for trial in run.completed}
    new = (config for config in among if config not in known and config.num_workers <= most)
    fine = (config for config in new if not found.is_useless(config))
    cells = [config for config in fine if not may_fail(run, config)]
    memory = limits.max_ram_bytes, limits.max_shm_bytes
    if memory == (None, None) or not cells or not situation.is_calibrated:
        return cells
    try:
        needy, _ = candidates_of(situation, cells)
    except UsageError:  # its batches cost nothing
        return cells
    return [each.config for each in needy if breach(each, situation) is None]


def may_fail(run: Run, config: Config) -> bool:
    """Whether a trial of it failed on this machine, or of what asks for no more than it does."""
    faults = (t for t in run.trials if t.failure is not None and t.numa_binding is None)
    return any(config.asks_as_much_as(trial.config) for trial in faults)


def perhaps_faster(
    pick: Candidate, others: Sequence[Candidate], speeds: Speeds, situation: Situation
) -> Candidate | None:
    """What no trial shows, keeps the limits, and itself seems over 3 % faster than the pick.

    Nor has anything like it failed, as of what is ``unmeasured``.
    What the profile advises, if that is; the pick with workers that persist, whose steady rate
    trials show, if that alone is; else the cheapest that is near the best of ``others``, which are
    in that order. ``None`` where the pick keeps the step fed.
    """
    wait, first = speeds.wait_fraction(pick), situation.run.advised
    if not (pick.measured or pick.config == first) or (
        wait is not None and wait <= at.FED_WAIT_FRACTION
    ):
        return None
    rates = {
        each.key: speeds.rate(each.key).value
        for each in others
        if not each.measured
        and breach(each, situation) is None
        and not (situation.as_measured and may_fail(situation.run, each.config))
    }
    now = speeds.rate(pick.key).value
    faster = [each for each in others if NEAR * rates.get(each.key, 0.0) > now]
    kept = dataclasses.replace(pick.config, persistent_workers=True)
    same = (each for config in (first, kept) for each in faster if each.config == config)
    near = (each for each in faster if rates[each.key] >= NEAR * max(rates.values()))
    return next(itertools.chain(same, near), None)


def against_model(run: Run) -> Iterator[tuple[Config, Estimate, Estimate]]:
    """Measured configurations, each rate in the trials' own light, and the predicted one.

    Predicted for the machine as busy as it was.
    """
    here, usable = Situation.of(run), run.header.machine.usable_cores
    calibration = here.calibration
    seen = [
        (trial, each)
        for trial in run.completed
        if trial.config.batch_size in {None, calibration.batch_size}
        and (each := observe(trial, usable_cores=usable)) is not None
    ]
    if not seen or calibration.samples_per_batch is None:
        return
    alone = believe([each for _, each in seen])
    whole = {trial.config for trial, each in seen if each.whole_epochs}
    for config, model in predictions(here, {trial.config for trial, _ in seen}).items():
        steady, over = model.samples_per_s, model.epoch_batches_per_s
        if config in whole and steady is not None:
            steady = None if over is None else steady.times(over / model.batches_per_s.value)
        if steady is not None and steady.value > 0:
            yield config, alone.rate(config.key), steady


def workers_shown(run: Run) -> tuple[int, float]:
    """The most workers measured, and how many of them what they gave takes by the model.

    Less than were measured only where batches mostly wait, and they surely gave less than
    predicted: they may share a limit then that fewer don't meet, as a server that serves a few.
    """
    tried = max((trial.config.num_workers for trial in run.completed), default=0)
    if not mostly_waits(run) or not tried:
        return tried, tried
    most = [(mine, model) for c, mine, model in against_model(run) if c.num_workers == tried]
    if not most or any(mine.ends[1] >= model.ends[0] for mine, model in most):
        return tried, tried
    return tried, tried * max(mine.value / model.value for mine, model in most)


def _trusted(run: Run, configs: Sequence[Config]) -> Sequence[Config]:
    """Without more workers than were measured whose gain rests on a model that these contradict.

    The belief can't have it: that four workers gave what three would is the same rate of a server
    of three slots and of workers that gain less each, and so is the mean time of a fetch, which is
    their number over that rate (Little's law), so that only another number of workers shows. Until
    then a limit is one in nine there, by which more of them are likely faster, and nobody tried.
    """
    if not configs or not Situation.of(run).is_calibrated:
        return configs
    tried, shown = workers_shown(run)
    most = math.inf if shown >= tried else max(tried, 2 * shown)
    return [each for each in configs if each.num_workers <= most]


def mostly_waits(run: Run) -> bool:
    """Whether workers wait for longer than they compute, as far as it was traced."""
    making = run.calibration.in_workers if run.calibration is not None else None
    return making is not None and sum(making.io_s) > sum(making.cpu_s)


def differs_along(run: Run, config: Config) -> float:
    """How many times a process's rate with fewer workers each of its workers gives, at least.

    0 unless that is over twice, which no number of workers brings: as trials of an iterable load
    the beginning of an epoch, and those of more workers more of it, its first samples are slower
    than the rest then.
    """
    target, workers = run.header.target, config.num_workers
    own, fewer = list[float](), list[float]()
    for trial in run.completed:
        rate, count = trial.samples_per_s, trial.config.num_workers
        alike = trial.config.batch_size == config.batch_size
        if not alike or rate is None or rate.low is None or rate.high is None:
            continue
        if count == workers > 1:
            own.append(rate.low / count)
        elif count < workers and (count or (trial.usage.main_runnable or 0.0) < 1 + at.HELPERS):
            fewer.append(rate.high / max(1, count))  # main's threads may get in each other's way
    keeps = target.keeps_samples or target.stores_samples
    if not own or not fewer or keeps or target.kind != "iterable":
        return 0.0
    return min(own) / max(fewer) if min(own) > 2 * max(fewer) else 0.0


def gain_if(run: Run, config: Config) -> str:
    """What must hold for a gain of its workers over fewer; empty where nothing must.

    Of an iterable, whose shards nobody knows, and unless whole epochs of it were measured: neither
    a window in their middle nor a prediction shows a worker that ends before the others. Of a
    dataset that keeps samples, for how many epochs. Of over twice the workers that were
    measured, that what they mostly wait for serves them all.
    """
    own = [trial for trial in run.completed if trial.config == config]
    whole = bool(own) and all(trial.whole_epochs for trial in own)
    shared = run.header.target.kind == "iterable" and config.num_workers > 1
    tried = max((trial.config.num_workers for trial in run.completed), default=0)
    if run.header.target.keeps_samples:
        return TEN_EPOCHS
    if shared and not whole:
        ranks = len(own[0].ranks) if own else 1
        return even_shards(run.header.target, config, ranks, counted=True)
    return NO_LIMIT if 0 < 2 * tried < config.num_workers and mostly_waits(run) else ""
