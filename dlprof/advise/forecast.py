"""Answers from predictions: a table of configurations, and the fewest workers that feed a step."""

from __future__ import annotations

import bisect
import contextlib
import dataclasses
import math
import statistics
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from dlprof.advise import thresholds as at
from dlprof.advise.candidates import (
    attainable,
    base_config,
    saturating_workers,
    useful,
    wanted_configs,
)
from dlprof.advise.choice import (
    Candidate,
    Speeds,
    breach,
    broken_limit,
    candidates_of,
    choose,
    decide,
    gain_if,
    gather,
    perhaps_faster,
    predictions,
    speeds_of,
)
from dlprof.advise.reasons import Agreement, agreement, certainty_of, certify, cores_limit
from dlprof.advise.recommend import kept_answer
from dlprof.advise.scaling import scales
from dlprof.advise.situation import Situation
from dlprof.advise.wording import percent
from dlprof.errors import DlprofError, NothingMeasuredError, UsageError
from dlprof.late import Shown
from dlprof.model.bounds import Bound, binding, bounds, cell_of, describe, own_cores
from dlprof.model.maxplus import drawn, steady_rate
from dlprof.model.predict import needs
from dlprof.model.work import Cell, Conditions, work_of
from dlprof.records import (
    USELESS,
    BatchCosts,
    Calibration,
    Certificate,
    Confidence,
    Config,
    ConfigRate,
    Estimate,
    Integrity,
    Prediction,
    Run,
    Trial,
    WithoutPart,
)
from dlprof.records.findings import LoaderPart
from dlprof.stats.intervals import typical


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """What plain trials of one configuration gave."""

    samples_per_s: Estimate  # the one rate that the run has for it
    wait_fraction: float | None  # mean over those that report it
    trials: tuple[str, ...]  # their ids


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class ForecastRow:
    """One configuration."""

    config: Config  # which
    prediction: Prediction  # what it would give each rank, corrected by what the run measured
    # Its one rate, over whole epochs where their length is known; ``None`` where the samples of a
    # batch are not.
    samples_per_s: Estimate | None
    # What it gave when it was measured under the same conditions; ``None`` where it was not.
    measured: Measured | None = None
    # Its rate over that of the recommended one; ``None`` where nothing is recommended.
    ratio: Estimate | None = None
    beyond: str = ""  # the limit of the machine that it would not keep; empty if it would
    # What must hold for a gain over fewer workers, as in ``Expected``; empty where nothing must.
    gain_if: str = ""

    @property
    def name(self) -> str:
        """The configuration for people, ``prefetch_factor`` among it."""
        return self.config.text_naming("prefetch_factor")

    @property
    def rate(self) -> float:
        """Predicted batches per second of one rank."""
        return self.prediction.batches_per_s.value

    @property
    def speed(self) -> float:
        """The same over whole epochs, where their length is known."""
        return self.prediction.epoch_batches_per_s or self.rate


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Calibrated:
    """What predictions rest on."""

    hostname: str  # where
    batches: int  # how many
    available_cores: float | None  # cores that were available
    standard_error: float | None  # relative standard error of the mean batch cost
    doubts: tuple[str, ...]  # what makes it unreliable
    # What takes the main process longest beside workers: `drawing indices` or `receiving batches`.
    main_work: str

    @classmethod
    def of(cls, situation: Situation) -> Calibrated:
        """What predictions from its run rest on."""
        calibration = situation.calibration
        known = (calibration.in_main, calibration.in_workers, *calibration.receive.values())
        return cls(
            hostname=situation.run.header.machine.hostname,
            batches=sum(len(costs.cpu_s) for costs in known if costs is not None),
            available_cores=calibration.available_cores,
            standard_error=calibration.standard_error,
            doubts=calibration.doubts,
            main_work=situation.main_work,
        )


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Answer(Shown):
    """What every answer says that rests on predictions."""

    run: Run = dataclasses.field(repr=False)  # what it is drawn from
    hostname: str  # of the machine that it is for
    extrapolated: bool  # whether that is another than the one that was measured
    calibrated: Calibrated  # what it rests on
    confidence: Confidence  # how sure it is
    confidence_reason: str  # why no surer
    notes: tuple[str, ...] = ()  # what was taken for granted
    # Why a figure is ``None``.
    unavailable: Mapping[str, str] = dataclasses.field(default_factory=dict)


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Resource:
    """How many ranks one resource carries, each as fast as it would be alone."""

    # ``storage``, ``cores``, ``memory``, ``shm``, ``bandwidth`` (of memory), or ``main``, the main
    # process.
    name: str
    # What one rank takes: bytes/s, cores, bytes, or a share of the time; of ``bandwidth`` at least.
    each: float
    total: float  # what there is, on all nodes together; of ``main`` all the time of one rank
    # How many ranks that is enough for; ``None`` where each rank has its own.
    ranks: Estimate | None
    used: float  # share that the ranks asked for would take; above 1 it runs out


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Accelerators:
    """How many emulated accelerators one node keeps busy, each a rank with a loader of its own."""

    least_utilization: float  # that each must keep: its step over its period, as asked for
    # The most that do; 0 for none. Where ranks that loaded at once were measured, between those
    # that did and those that didn't.
    count: Estimate
    # The fewest workers of each; of one accelerator where none does. Of a measured number what was
    # measured.
    config: Config
    utilization: float  # what each then has; of one accelerator where none does
    # What holds back one more: a bound as in ``Prediction``, ``memory`` or ``shm``; empty where the
    # count ends at ``most``, that isn't seen, or ``limit`` is another part.
    held_by: str
    most: int  # accelerators that were looked at
    measured: bool = False  # whether ``utilization`` was
    # What each would have if there were one more; ``None`` where the count ends at ``most``, or so
    # many neither loaded at once nor are predicted.
    next_utilization: float | None = None
    # The part of loading that holds back one more: without it at least half of what is missing
    # would be there; ``None`` where none is so by itself.
    limit: LoaderPart | None = None
    # What one more would have without each part over what it would have, the most expensive first;
    # of the model's parts none where it doesn't see what was measured.
    without: tuple[WithoutPart, ...] = ()


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Forecast(Answer):
    """What configurations would give in one place."""

    conditions: Conditions  # cores, ranks, step and the rest
    rows: tuple[ForecastRow, ...]  # in the order of what configurations cost
    named: tuple[str, ...] = ()  # settings of which values were named; empty for all settings
    pick: Config | None  # what is recommended of them; ``None`` where nothing keeps the limits
    bounds: Mapping[str, str]  # what each bound that occurs means
    # One that was not measured and seems faster than what was and is recommended; ``None`` where
    # there is none.
    faster: Config | None = None
    # What ``pick`` is compared with, as far as it has a rate there: ``default`` is PyTorch's own,
    # ``present`` what the target's DataLoader is set to now, and ``recommended`` what the run's
    # trials recommend of all settings, where some were named.
    others: Mapping[str, ConfigRate] = dataclasses.field(default_factory=dict)
    agreement: Agreement | None = None  # predictions against the run's own trials
    # How near the best of what was asked for ``pick`` is, as of a recommendation.
    certificate: Certificate | None = None
    # Rate of ``pick`` over that of PyTorch's default, where both are known: that of ``others``.
    speedup: Estimate | None = None
    ranks: int = 1  # all of them, on all nodes
    nodes: int = 1  # machines like that one
    # What ``pick`` takes on all nodes, or the cheapest where nothing keeps the limits: first what
    # runs out first as ranks are added.
    resources: tuple[Resource, ...] = ()
    # How many one node keeps busy, where that is asked for.
    accelerators: Accelerators | None = None
    method: str = "maxplus"  # ``maxplus``, the only predictor


def forecast(
    situation: Situation,
    configs: Sequence[Config] | None,
    *,
    named: Sequence[str] = (),
    memory_bytes_per_s: float | None = None,
    au: float | None = None,
) -> Forecast:
    """Predict configurations from what the situation's run calibrated and measured.

    What is recommended of them is decided as ``recommend`` does; where none are named, ``None``, it
    is the same; ``named`` are the settings whose values were given. ``memory_bytes_per_s`` is what
    the memory there carries, and ``au`` the utilization that accelerators must keep, where it is
    asked how many do.
    """
    run, asked = situation.run, wanted_configs(situation, {}) if configs is None else configs
    wanted = {*useful(run, asked)}
    # All are compared with PyTorch's default and with what he has, whether or not they are named.
    size = situation.calibration.batch_size
    present, named_some = situation.present, configs is not None and situation.as_measured
    best = _best_of_all(situation) if named_some else None  # elsewhere a question of its own
    own = (each for each in (present, best) if each is not None and situation.is_of_size(each))
    compared = attainable(run, [Config(batch_size=size), *own], {})
    found, speeds = candidates_of(situation, useful(run, {*wanted, *compared}))
    candidates = [each for each in found if each.config in wanted]
    pick, confidence, reason, certificate, faster = _decided(configs, situation, candidates, speeds)
    known = {each.config for each in candidates}
    other = next((e for e in gather(run) if e.config == pick and pick not in known), None)
    if other is not None:  # at a batch size that was not calibrated
        candidates.append(dataclasses.replace(other, prediction=_of_trials(other, speeds)))
    rows = [
        ForecastRow(
            config=each.config,
            prediction=dataclasses.replace(model, bound=_bound_of(each, model, situation)),
            samples_per_s=model.samples_per_s and speeds.rate(each.key),
            measured=Measured(
                samples_per_s=speeds.rate(each.key),
                wait_fraction=speeds.wait_fraction(each),
                trials=tuple(each.trial_ids),
            )
            if each.measured
            else None,
            ratio=None if pick is None else speeds.ratio(each.key, pick.key),
            beyond=broken_limit(each, situation),
            gain_if=gain_if(run, each.config),
        )
        for each in sorted(candidates, key=lambda each: each.config.cost_key)
        if (model := each.prediction) is not None
    ]
    shown = rows[0].config if pick is None else pick
    others, unavailable = dict[str, ConfigRate](), dict[str, str]()
    zero = Config(batch_size=None if pick is None else pick.batch_size)
    # What was measured and gets no data, say, is not predicted for other conditions.
    rates = speeds.belief.log_rates
    rated = {each.config: each for each in gather(run) if each.trials and each.key in rates}
    rated |= {each.config: each for each in found}
    names = {"present": present, "default": zero, "recommended": best}
    if pick is None:
        unavailable["speedup"] = "no configuration keeps the limits"
    else:
        others = {
            name: ConfigRate(
                config=config,
                samples_per_s=speeds.rate(config.key),
                ratio=speeds.ratio(config.key, pick.key),
                measured=rated[config].measured,
                beyond=broken_limit(rated[config], situation),
            )
            for name, config in names.items()
            if config is not None and config in rated
        }
        if "default" not in others:
            unavailable["speedup"] = "num_workers=0 is neither measured nor predicted"
    return Forecast(
        run=run,
        hostname=situation.machine.hostname,
        extrapolated=situation.extrapolated,
        conditions=situation.conditions,
        calibrated=Calibrated.of(situation),
        rows=tuple(rows),
        named=tuple(named),
        pick=pick,
        faster=faster,
        others=others,
        bounds={
            name: describe(name, situation.main_work)
            for name in sorted({row.prediction.bound for row in rows})
            if name
        },
        confidence=confidence,
        confidence_reason=reason,
        notes=situation.notes,
        agreement=agreement(run),
        certificate=certificate,
        speedup=others["default"].ratio.inverse if "default" in others else None,
        ranks=situation.constraints.ranks * situation.constraints.nodes,
        nodes=situation.constraints.nodes,
        resources=tuple(_resources(situation, shown, memory_bytes_per_s)),
        accelerators=None if au is None else _accelerators(situation, au),
        unavailable=unavailable
        | {
            name: reason
            for name, reason in MISSING.items()
            if any(getattr(row.prediction, name) is None for row in rows)
        },
    )


def _bound_of(candidate: Candidate, model: Prediction, situation: Situation) -> str:
    """What limits it by the model, but where its own trials show another; empty if none knows."""
    if candidate.measured and situation.profiled_main and candidate.config.num_workers:
        return "main"
    lacks = (
        model.bound != "cores" or not candidate.measured or cores_limit(situation.run, candidate)
    )
    return model.bound if lacks else ""


def _resources(
    situation: Situation, pick: Config, memory_bytes_per_s: float | None
) -> list[Resource]:
    """What ranks of a configuration take, each as fast as alone on a machine that has enough.

    What is computed of loading is as sure as the rate without a step, what it reads as sure as the
    rate with it. Memory carries a batch at least when it is collated and when it is taken in, and
    twice more when it is pinned.
    """
    calibration, machine, limits = situation.calibration, situation.machine, situation.constraints
    if pick.batch_size not in {None, calibration.batch_size}:
        return []
    alone = situation.supposing(
        constraints=dataclasses.replace(limits, ranks=1, nodes=1),
        cores=max(situation.cores, 3.0 * (pick.num_workers + 2)),
        neighbours=0.0,
        storage_bytes_per_s=None,
    )
    endless = alone.supposing(step_s=0.0, step_cpu_s=0.0)
    loading = candidates_of(endless, [pick])[1].steady(pick.key)
    prediction = candidates_of(alone, [pick])[0][0].prediction
    if prediction is None or not math.isfinite(prediction.batches_per_s.value):
        return []
    rate, there = prediction.batches_per_s, cell_of(calibration, pick, situation.conditions)
    read = rate.value * (calibration.read_bytes_per_batch or 0.0)
    moved = rate.value * (calibration.batch_bytes or 0.0) * (4 if there.work.pinned else 2)
    taken: list[tuple[str, float | None, float | None, Estimate]] = [
        ("storage", read, situation.storage_bytes_per_s, rate),
        ("cores", prediction.cores, own_cores(there), loading),
        ("bandwidth", moved, memory_bytes_per_s, rate),
        ("memory", prediction.pss_bytes, machine.memory_size_bytes, Estimate(value=1.0)),
        ("shm", prediction.shm_bytes, machine.shm_bytes, Estimate(value=1.0)),
    ]
    found, ranks = [], limits.ranks * limits.nodes
    for name, each, has, error in taken:
        if each and has:
            total = has * limits.nodes
            carried = error.inverse.times(error.value * total / each)
            used = ranks * each / total
            found.append(Resource(name=name, each=each, total=total, ranks=carried, used=used))
    cell = cell_of(calibration, pick, alone.conditions)
    means = cell.work.means
    busy = min(1.0, rate.value * (cell.work.main_s if cell.workers else means.cpu + means.io))
    main = Resource(name="main", each=busy, total=1.0, ranks=None, used=busy)
    found.sort(key=lambda each: -each.used)
    # Each rank is held back by its own main process from the first on.
    return [main, *found] if binding(cell)[0] == "main" else [*found, main]


def _decided(
    configs: Sequence[Config] | None,
    situation: Situation,
    candidates: Sequence[Candidate],
    speeds: Speeds,
) -> tuple[Config | None, Confidence, str, Certificate | None, Config | None]:
    """What is recommended, ``None`` where nothing keeps the limits, how sure that is, the faster.

    The last was not measured and only seems so: of all settings it is what ``recommend`` says.
    """
    kept = kept_answer(situation) if configs is None else None
    if kept is not None:
        predicted = (a.config for a in kept.alternatives if a.relation == "predicted")
        sure = kept.confidence, kept.confidence_reason, kept.certificate
        return kept.config, *sure, next(predicted, None)
    among = None if configs is None else [each.config for each in candidates]
    if all(breach(each, situation) is not None for each in candidates):
        choice = choose(candidates, situation, speeds)
        nothing = dataclasses.replace(choice, allowed=())  # that could be near the best
        return None, *certainty_of(nothing, None), None, None
    try:
        choice, _ = decide(situation, among=among)
    except NothingMeasuredError:  # without a trial, the model alone answers
        choice, _ = decide(situation, among=[each.config for each in candidates])
    certificate = certify(choice, among)
    better = perhaps_faster(choice.pick, candidates, speeds, situation)
    faster, named = better.config if better else None, configs is not None
    level, reason = certainty_of(choice, certificate, named=named, faster=faster is not None)
    shown = certificate if choice.pick.measured else None
    return choice.pick.config, level, reason, shown, faster


def _best_of_all(situation: Situation) -> Config | None:
    """What is recommended of all settings; ``None`` where nothing is."""
    if (kept := kept_answer(situation)) is not None:
        return kept.config
    with contextlib.suppress(DlprofError):
        return decide(situation)[0].pick.config
    return None


def _of_trials(seen: Candidate, speeds: Speeds) -> Prediction:
    """What trials alone say of a configuration, in the form of a prediction."""
    each = typical(trial.samples_per_batch or None for trial in seen.trials) or 1.0
    steady = speeds.steady(seen.key)
    batches = steady.times(1 / each)
    return Prediction(
        batches_per_s=batches,
        samples_per_s=steady,
        epoch_batches_per_s=batches.value * math.exp(speeds.epochs[seen.key].value),
        wait_fraction=speeds.wait_fraction(seen),
        cores=seen.own_cpu_cores,
        pss_bytes=seen.pss_bytes,
        shm_bytes=seen.shm_bytes,
        startup_s=seen.startup_s,
        turnover_s=seen.epoch_turnover_s,
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


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Feed(Answer):
    """What it takes to feed a training step."""

    ranks: int  # training processes
    step_s: float  # the step of each
    asked_wait_fraction: float  # share of time that the step may wait, as asked for
    max_wait_fraction: float  # the same as searched with: more where no loader could keep it
    least_wait_fraction: float  # what remains with workers and cores without end
    # What takes that: taking batches in ("main", "step" or "pin"), "storage", a "lock"; or
    # "workers", of which more give no more, by their trials or as an epoch has few batches.
    least_bound: Bound
    config: Config  # the fewest workers on the fewest cores
    dataloader_kwargs: Mapping[str, Any]  # what to pass to DataLoader
    workers: Estimate  # of one rank
    cores: Estimate  # of all ranks, background load included
    busy_cores: float  # cores that all ranks keep busy on average
    # What all ranks read from storage; ``None`` where it isn't known.
    storage_bytes_per_s: float | None
    batch_bytes_per_s: float | None  # tensor data that all ranks take in
    pss_bytes: float | None  # memory of all ranks
    shm_bytes: float | None  # shared memory of all ranks
    prediction: Prediction  # of one rank, in that configuration on those cores
    samples_per_s: Estimate | None  # its rate, as in ``ForecastRow``
    # Whether that keeps the wait, and the step computes for most of the time; if not, nothing
    # within reason does.
    reached: bool
    machine_cores: float  # cores that there are
    enough: bool  # whether they are enough
    machine_wait_fraction: float  # how much the step would wait on those
    # What is recommended on those, as ``dlprof recommend`` says it; ``None`` where nothing is.
    recommended: Config | None
    # Machines like that one, each with as many ranks: all figures are of one of them.
    nodes: int = 1


def feed(
    situation: Situation, *, max_wait: float = at.FED_WAIT_FRACTION, base: Config | None = None
) -> Feed:
    """Find the fewest cores, and on them the fewest workers, that keep a step fed.

    By bisection: waiting falls with workers and with cores. Where taking a batch into the main
    process already makes the step wait for longer than asked, no loader could do better, and the
    rate may be lower than the best possible by what is asked. Each waits as is believed of it by
    what the run measured, as in all views. Other settings are those of ``base``, else those of the
    run.
    """
    run, calibration = situation.run, situation.calibration
    mine = feed_config(situation) if base is None else base
    step_s, found = _step_of(situation), _Search(situation, None, mine)
    least, by_model = found.least_wait(), _Search(situation, 1.0, mine)
    bound: Bound = "workers"
    if situation.profiled_main or by_model.least_wait() >= least / 2:
        bound = "main" if situation.profiled_main else by_model.least_bound()
    enough = least <= 0.75 * max_wait  # the rest is for what workers and cores add
    allowed = max_wait if enough else least + max_wait * (1 - least)
    workers, prefetch, cores = found.fewest(allowed)
    (config,) = useful(run, [found.config(workers, prefetch)])
    endless = situation.supposing(cores=float(cores), step_s=0.0, step_cpu_s=0.0)
    unfed, speeds = candidates_of(endless, [config])
    own_rate = speeds.steady(config.key)
    fed, fed_speeds = found.believed(config, float(cores))
    prediction = fed.prediction
    if prediction is None:
        raise RuntimeError("a configuration that was predicted has no prediction")
    confidence, reason = certainty_of(choose(unfed, endless, speeds), None)
    lower = 1 - (own_rate.low or 0.0) / own_rate.value if own_rate.low is not None else 1.0
    if lower <= USELESS:  # else the reason says it
        reason += f"; loading may be up to {percent(lower)} slower than predicted (95%)"
    machine_wait = found.wait(workers, prefetch, situation.cores)
    wait = found.wait(workers, prefetch, float(cores))
    can_be_fed, ranks = least <= 0.5, situation.constraints.ranks
    rate = ranks * prediction.batches_per_s.value
    of_one = {
        "busy_cores": (prediction.cores, ranks),
        "pss_bytes": (prediction.pss_bytes, ranks),
        "shm_bytes": (prediction.shm_bytes, ranks),
        "storage_bytes_per_s": (calibration.read_bytes_per_batch, rate),
        "batch_bytes_per_s": (calibration.batch_bytes, rate),
    }
    whole: dict[str, Any] = {
        name: None if each is None else times * each for name, (each, times) in of_one.items()
    }
    missing = {name: _MISSING_IN_FEED[name] for name, each in whole.items() if each is None}
    return Feed(
        run=run,
        hostname=situation.machine.hostname,
        extrapolated=situation.extrapolated,
        ranks=ranks,
        nodes=situation.constraints.nodes,
        step_s=step_s,
        asked_wait_fraction=max_wait,
        max_wait_fraction=allowed,
        # That of more workers is predicted, and trials may show that these wait for less.
        least_wait_fraction=min(least, wait),
        least_bound=bound,
        config=config,
        dataloader_kwargs=config.dataloader_kwargs(),
        workers=_around(workers, own_rate),
        cores=_around(cores, own_rate),
        **whole,
        prediction=prediction,
        samples_per_s=prediction.samples_per_s and fed_speeds.rate(config.key),
        machine_cores=situation.cores,
        reached=can_be_fed and wait <= allowed,
        enough=can_be_fed and machine_wait <= allowed,
        machine_wait_fraction=machine_wait,
        recommended=_best_of_all(situation),
        confidence=confidence,
        confidence_reason=reason,
        calibrated=Calibrated.of(situation),
        notes=situation.notes,
        unavailable=missing,
    )


def feed_config(situation: Situation) -> Config:
    """The settings that stay as they are where a step is fed: its workers are kept if they may be.

    Starting them again at every epoch feeds nothing.
    """
    best, one = _best_of_all(situation), base_config(situation.run)
    keeps = best is not None and best.persistent_workers
    return dataclasses.replace(one, persistent_workers=one.persistent_workers or keeps)


def _step_of(situation: Situation) -> float:
    step_s = situation.step_s + situation.step_cpu_s
    if not step_s > 0:
        raise UsageError(
            "There is no training step to feed", hint="Give its length, as with --step-time 12ms."
        )
    return step_s


def accelerators_of(run: Run) -> Accelerators | None:
    """How many accelerators keep what a sweep was asked for; ``None`` where it wasn't asked.

    Without a calibration ranks answer that loaded at once.
    """
    au = run.header.settings.get("au")
    if not isinstance(au, float):
        return None
    situation = Situation.of(run)
    most = situation.constraints.ranks
    seen = {} if situation.is_calibrated else _shown(situation, most)
    if 1 not in seen:
        return _accelerators(situation, au)
    # Of numbers of ranks between those that loaded nothing is known: the count is the least.
    count, low = (float(_between(seen, au, 0, end)) for end in (None, 0))
    high = float(_between(seen, au, most, 1))
    here, after = seen[max(1, int(count))], seen.get(int(count) + 1)
    short = next((each for ranks, each in sorted(seen.items()) if ranks > count), None)
    return Accelerators(
        least_utilization=au,
        count=Estimate(value=count, low=low, high=high),
        config=here.config,
        utilization=here.utilization.value,
        held_by="",
        most=most,
        measured=True,
        next_utilization=after.utilization.value if after else None,
        limit=None if short is None else _LIMITING.get(short.limit.partition(":")[0]),
    )


def _accelerators(situation: Situation, au: float) -> Accelerators:
    """How many ranks of one node keep their step fed, by bisection, and with how few workers.

    As sure as the rate at which one rank loads without a step: where that is twice as high, it is
    as if the step took twice as long.
    """
    _step_of(situation)
    run, limits, allowed = situation.run, situation.constraints, 1 - au
    most = 1024 if limits.ranks == 1 else limits.ranks
    by_costs = _Search(situation, 1.0)
    config = by_costs.feeding(1, allowed)
    alone = dataclasses.replace(limits, ranks=1)
    endless = situation.supposing(constraints=alone, step_s=0.0, step_cpu_s=0.0)
    own = candidates_of(endless, [config])[1].steady(config.key)
    raw = predictions(endless, [config])[config].steady.value
    factors = [rate / raw for rate in (own.value, *own.ends)]
    searches = [_Search(situation, each) for each in factors]
    predicted, *ends = [each.most_fed(most, allowed) for each in searches]
    seen = _shown(situation, most)
    count = _between(seen, au, predicted)
    # By its costs alone twice as many would be: what holds them back the model doesn't see.
    blind = by_costs.most_fed(most, allowed) > 2 * count
    low, high = (_between(seen, au, each, end) for end, each in enumerate(ends))
    host, more = searches[0], count + 1
    next_one: float | None = None
    without, held_by = tuple[WithoutPart, ...](), ""
    limit: LoaderPart | None = None
    if count < most:
        if more in seen:
            next_one = seen[more].utilization.value
        else:
            next_one = 1.0 - host.wait_here(host.feeding(more, allowed), more)
        held_by = "" if blind else host.held_by(more, allowed)
        # Of what was measured and the model doesn't see it can't say what it would be without.
        if not blind and (held_by or more not in seen):
            without = _without(searches, allowed, more)
        waited = [*_without_barrier(run, more, next_one)]  # measured, where it was
        without = (*(each for each in without if not waited or each.part != "barrier"), *waited)
        without = tuple(sorted(without, key=lambda each: -each.gain.value))
        limit = "memory"
        if held_by not in {"memory", "shm"}:
            shown = seen[more].limit if more in seen else ""
            limit, held_by = _limit(without, next_one, au, held_by, shown)
    config = host.feeding(max(1, count), allowed)
    if not count:  # what receiving from workers costs may be more than they load
        config = min(config, host.config(0), key=lambda each: host.wait_here(each, 1))
    utilization = 1.0 - host.wait_here(config, max(1, count))
    here = seen.get(max(1, count))
    if here is not None:
        config, utilization = here.config, here.utilization.value
    return Accelerators(
        least_utilization=au,
        count=Estimate(value=float(count), low=low, high=high),
        config=config,
        utilization=utilization,
        held_by=held_by,
        most=most,
        measured=here is not None,
        next_utilization=next_one,
        limit=limit,
        without=without,
    )


_LIMITING: Mapping[str, LoaderPart] = {
    "cores": "host_cpu",
    "storage": "storage",
    "receiving": "main_process",
    "memory bandwidth, caches or the cores' clock": "host_cpu",
    "barrier": "barrier",
}
"""Parts of loading that ``Scale.limit`` names, and bounds that are one of them whatever loads."""


class _Shown(NamedTuple):
    """What trials show of a number of ranks."""

    config: Config
    utilization: Estimate
    limit: str = ""  # as in ``Scale``


def _shown(situation: Situation, most: int) -> dict[int, _Shown]:
    """What trials show under these conditions, by the number of ranks.

    Of ranks that loaded at once; else of one by itself, by what is recommended for it.
    """
    run, limits = situation.run, situation.constraints
    scaled = scales(run) if situation.as_measured else ()
    tried = [trial.config for trial in run.trials if trial.purpose == "scaling"]
    found = {
        each.ranks: _Shown(
            next(config for config in tried if config.num_workers == each.num_workers),
            each.utilization,
            each.limit,
        )
        for each in scaled
        if each.num_workers == scaled[0].num_workers and each.ranks <= most and each.utilization
    }
    samples = situation.calibration.samples_per_batch if situation.is_calibrated else None
    if found or not samples or not situation.as_measured or limits.ranks > 1:
        return found
    best, step_s = _best_of_all(situation), _step_of(situation)
    if best is not None and any(t.config == best and t.has_rate for t in run.completed):
        rate = speeds_of(situation).steady(best.key)
        found[1] = _Shown(best, rate.through(lambda each: min(1.0, each * step_s / samples)))
    return found


def _limit(
    without: Sequence[WithoutPart], utilization: float, au: float, held_by: str, shown: str = ""
) -> tuple[LoaderPart | None, str]:
    """The part without which at least half of what is missing would be there, and ``held_by``.

    Where several are so, it is the one that ranks are predicted to wait for, if that is among them;
    where none is, what trials have ``shown`` to be used up, as ``Scale.limit`` has it. Ranks wait
    for no other part than that one.
    """
    held, named = _LIMITING.get(held_by), _LIMITING.get(shown.partition(":")[0])
    enough = [
        each.part
        for each in without
        if 2 * (min(1.0, each.gain.value * utilization) - utilization) >= au - utilization
    ]
    limit = held if held in enough else next(iter(enough), named)
    return limit, "" if held and limit and held != limit else held_by


def _between(seen: Mapping[int, _Shown], au: float, predicted: int, end: int | None = None) -> int:
    """A predicted count, held between what was measured: fed, and not fed.

    By the measured utilization, or by an ``end`` of its interval.
    """
    has = {
        ranks: each.utilization.value if end is None else each.utilization.ends[end]
        for ranks, each in seen.items()
    }
    slow = min((ranks for ranks, share in has.items() if share < au), default=None)
    fed = max((n for n in has if slow is None or n < slow), default=0)
    return max(fed, predicted if slow is None else min(predicted, slow - 1))


def _without(searches: Sequence[_Search], allowed: float, ranks: int) -> tuple[WithoutPart, ...]:
    """What so many ranks would have without each part of loading, over what they would have.

    In the same configuration: without host CPU, say, no workers would be needed, nor a main process
    that receives from them.
    """
    configs = [each.feeding(ranks, allowed) for each in searches]

    def busy(some: Iterable[_Search]) -> list[float]:
        pairs = zip(some, configs, strict=True)
        return [max(1e-9, 1 - each.wait_here(config, ranks)) for each, config in pairs]

    now, found = busy(searches), list[WithoutPart]()
    situation = searches[0].situation
    run = situation.run
    # Share of making a batch that was stalled for pages which memory was too small to keep.
    paged = typical(trial.usage.memory_pressure_fraction for trial in run.completed)
    parts = {
        part: dataclasses.replace(situation, run=dataclasses.replace(run, calibration=calibration))
        for part, calibration in _free(situation.calibration, paged or 0.0)
    }
    if situation.barrier:
        parts["barrier"] = dataclasses.replace(situation, barrier=False)
    for part, free in parts.items():
        there = busy(_Search(free, each.factor) for each in searches)
        value, *ends = [a / b for a, b in zip(there, now, strict=True)]
        gain = Estimate(value=value, low=min([value, *ends]), high=max([value, *ends]))
        found.append(WithoutPart(part=part, gain=gain, source="model"))
    return tuple(found)


def _without_barrier(run: Run, ranks: int, utilization: float) -> Iterator[WithoutPart]:
    """The same without the barrier, as trials of as many ranks waited there, or nearly as many."""
    groups = dict[int, list[Trial]]()
    for trial in run.trials:
        free = trial.has_rate and not trial.numa_binding
        if free and any(each.barrier_fraction for each in trial.ranks):
            groups.setdefault(len(trial.ranks), []).append(trial)
    if groups:
        most = 1 / max(1e-9, utilization)
        gains = [
            statistics.fmean(min(most, each.freed) for each in trial.ranks)
            for trial in groups[min(groups, key=lambda count: (abs(count - ranks), count))]
        ]
        bound = Estimate(value=statistics.median(gains), low=min(gains), high=max(gains))
        yield WithoutPart(part="barrier", gain=bound, source="bound")


def _free(calibration: Calibration, paged: float) -> Iterator[tuple[LoaderPart, Calibration]]:
    """The calibration without what each part of loading takes."""

    def changed(change: Callable[[BatchCosts], BatchCosts], **more: Any) -> Calibration:
        own = {
            name: None if costs is None else change(costs)
            for name in ("in_main", "in_workers")
            for costs in [getattr(calibration, name)]
        }
        receive = {name: change(costs) for name, costs in calibration.receive.items()}
        return dataclasses.replace(calibration, **{**own, "receive": receive, **more})

    def none_of(*names: str) -> Callable[[BatchCosts], BatchCosts]:
        return lambda costs: dataclasses.replace(
            costs, **{name: (0.0,) * len(getattr(costs, name)) for name in names}
        )

    def pages(costs: BatchCosts, *, stay: bool) -> BatchCosts:
        pairs = [*zip(costs.io_s, costs.cpu_s, strict=False)]  # empty where nothing waited
        stalls = [min(io_s, paged * (io_s + cpu_s)) for io_s, cpu_s in pairs]
        rest = [io_s - each for (io_s, _), each in zip(pairs, stalls, strict=True)]
        return dataclasses.replace(costs, io_s=tuple(stalls if stay else rest))

    main = ("receive_cpu_s", "receive_io_s", "main_cpu_s", "let_go_cpu_s", "pin_s")
    free = {"read_bytes_per_batch": 0.0, "queueing_s": 0.0}
    yield "storage", changed(lambda costs: pages(costs, stay=True), **free)
    yield "host_cpu", changed(none_of("cpu_s", "put_cpu_s", "between_cpu_s"), helper_cpu_s=0.0)
    yield "main_process", changed(none_of(*main), receive_busy_s={})
    if paged:
        yield "memory", changed(lambda costs: pages(costs, stay=False))


_MISSING_IN_FEED = {
    **MISSING,
    "busy_cores": "the rate has no limit",
    "storage_bytes_per_s": "what a batch reads from storage was not measured",
    "batch_bytes_per_s": MISSING["shm_bytes"],
}


def _around(count: int, rate: Estimate) -> Estimate:
    """A count that grows as a batch's cost does, with the error that this has."""
    if not count or rate.low is None or rate.high is None or not rate.low:
        return Estimate(value=count, low=0.0, high=None) if count else Estimate(value=0.0)
    low = math.floor(count * rate.value / rate.high)
    high = math.ceil(count * rate.value / rate.low)
    return Estimate(value=float(count), low=float(max(1, low)), high=float(high))


class _Search:
    """How long a step waits, by workers, depth of queues, cores and ranks; each computed once.

    Where loading is ``factor`` times as fast as the model says, all that it takes over the same
    step is as it would be over a step so much longer. With ``None`` each configuration is as fast
    as is believed of it.
    """

    def __init__(
        self, situation: Situation, factor: float | None, base: Config | None = None
    ) -> None:
        run, longer = situation.run, 1.0 if factor is None else factor
        steps = {name: longer * getattr(situation, name) for name in ("step_s", "step_cpu_s")}
        self.situation, self.factor = situation, factor
        self._conditions = dataclasses.replace(situation, **steps).conditions
        self._calibration, self._base = situation.calibration, base or base_config(run)
        self._step_s = sum(steps.values())
        # Values of ``prefetch_factor`` to try, where the target can be set to them.
        deepest = at.PREFETCH_OF_BURSTS[-1]
        deep = attainable(run, [self.config(1, deepest)], {})[0].prefetch_factor == deepest
        self._depths = at.PREFETCH_OF_BURSTS if deep else at.PREFETCH_OF_BURSTS[:1]
        self._works = {
            some: drawn(work_of(self._calibration, self.config(int(some), 2), self._conditions))
            for some in (False, True)
        }
        self._known: dict[tuple[int, int, float, int], float] = {}
        # Beyond so many workers nothing more can be gained, nor are more tried.
        tried = 512
        ample = dataclasses.replace(self._conditions.on(float(tried)), ranks=1)
        saturating = saturating_workers(self._calibration, self._base, ample)
        plenty = max(8, math.ceil(3 * saturating))
        most = Integrity.of(run).most_workers(self._base)
        # Nor of more workers than an epoch has batches.
        batches = situation.epoch_batches(self._base) or tried
        self._most = min(tried, plenty, batches, tried if most is None else most)

    def config(self, workers: int, prefetch: int | None = None) -> Config:
        """The configuration of so many workers, with queues as deep as are worth it."""
        depth = self._depths[-1] if prefetch is None else prefetch
        changed = dataclasses.replace(self._base, num_workers=workers, prefetch_factor=depth)
        return changed.canonical()

    def cell(self, config: Config, cores: float, ranks: int) -> Cell:
        where = dataclasses.replace(self._conditions.on(cores), ranks=ranks)
        work = self._works[config.num_workers > 0]
        return cell_of(self._calibration, config, where, work=work)

    def wait(self, workers: int, prefetch: int, cores: float, ranks: int | None = None) -> float:
        key = (workers, prefetch, cores, ranks or self._conditions.ranks)
        if key not in self._known and self.factor is None:
            one, speeds = self.believed(self.config(workers, prefetch), cores)
            self._known[key] = speeds.wait_fraction(one) or 0.0
        elif key not in self._known:
            cell = self.cell(self.config(workers, prefetch), *key[2:])
            rate = steady_rate(cell).batches_per_s
            self._known[key] = max(0.0, 1.0 - rate * cell.whole_step_s)
        return self._known[key]

    def believed(self, config: Config, cores: float) -> tuple[Candidate, Speeds]:
        """A configuration as all views have it, on so many cores."""
        here = cores == self.situation.cores  # which trials may show
        where = self.situation if here else self.situation.supposing(cores=cores)
        (one,), speeds = candidates_of(where, [config])
        return one, speeds

    def least_wait(self) -> float:
        """What remains of the wait with more workers and cores than are of any use.

        Asked as all else is: in the closed form workers are never at rest, and receiving from one
        that computes costs much.
        """
        fed = (self._least(depth)[0] for depth in self._depths)
        return min(*fed, self.wait(0, 0, self._ample(0)))

    def least_bound(self) -> Bound:
        """What that wait is of, by the model."""
        most = self.config(self._most)
        return binding(self.cell(most, self._ample(self._most), self._conditions.ranks))[0]

    def _least(self, depth: int) -> tuple[float, int]:
        """The least wait with queues so deep, and workers that have it: of too many it is more."""
        some = {self._most, *(1 << n for n in range(self._most.bit_length()))}
        return min((self.wait(workers, depth, self._ample(workers)), workers) for workers in some)

    def fewest(self, allowed: float) -> tuple[int, int, int]:
        """The fewest workers, ``prefetch_factor`` and cores that keep a wait over the least."""

        def enough_workers(depth: int) -> tuple[bool, int, int, int]:
            least, most = self._least(depth)
            few = _first(lambda w: self.wait(w, depth, self._ample(w)) <= allowed, 1, most)
            return least > allowed, few, depth, most

        def enough_cores(workers: int, depth: int) -> int:
            ample = math.ceil(self._ample(workers))
            return _first(lambda c: self.wait(workers, depth, float(c)) <= allowed, 1, ample)

        if self.wait(0, 0, self._ample(0)) <= allowed or not self._most:
            return 0, 0, enough_cores(0, 0)
        _, few, depth, most = min(map(enough_workers, self._depths))
        more = min(2 * few, most)  # with them, cores that are short are used better
        cores = min(enough_cores(few, depth), enough_cores(more, depth))
        workers = _first(lambda w: self.wait(w, depth, float(cores)) <= allowed, few, more)
        return workers, depth, cores

    def _ample(self, workers: int) -> float:
        """Cores that are never short, whatever runs at once."""
        where = self._conditions
        helpers = math.ceil(self._works[False].helpers) if not workers else 0
        return where.neighbours + where.ranks * (workers + 2 + helpers)

    def wait_here(self, config: Config, ranks: int) -> float:
        """The wait of the step of each of so many ranks, on the cores that there are."""
        depth = config.prefetch_factor or 0
        return self.wait(config.num_workers, depth, self.situation.cores, ranks)

    def feeding(self, ranks: int, allowed: float) -> Config:
        """The fewest workers that keep so many ranks' wait; the most that help, where none do."""

        def is_fed(workers: int) -> bool:
            return self.wait_here(self.config(workers), ranks) <= allowed

        few = min(1, self._most)  # none may have right data
        return self.config(0 if is_fed(0) else _first(is_fed, few, self._most))

    def held_by(self, ranks: int, allowed: float) -> str:
        """What keeps so many from being fed; empty where nothing does."""
        config, machine = self.feeding(ranks, allowed), self.situation.machine
        needed = needs(self._calibration, config)
        for name, takes, has in (
            ("memory", needed.pss_bytes, machine.memory_size_bytes),
            ("shm", needed.shm_bytes, machine.shm_bytes),
        ):
            if takes and has and ranks * takes > has:
                return name
        if self.wait_here(config, ranks) <= allowed:
            return ""
        cell = self.cell(config, self.situation.cores, ranks)
        if steady_rate(cell).held_by == "barrier":
            return "barrier"
        name, _ = binding(cell)
        return "main" if name == "step" else name  # it waits while a batch is taken in

    def most_fed(self, most: int, allowed: float) -> int:
        """The most ranks that keep a wait, of at most so many."""
        shared = max(
            min(limits["cores"], limits.get("storage", math.inf))
            for some in (0, 1)
            for limits in [bounds(self.cell(self.config(some), self.situation.cores, 1))]
        )
        top = math.ceil(min(most, 1 + shared * self._step_s / (1 - allowed)))
        return _first(lambda ranks: bool(self.held_by(ranks + 1, allowed)), 0, top)


def _first(holds: Callable[[int], bool], low: int, high: int) -> int:
    """The least number from ``low`` to ``high`` for which something holds, else ``high``."""
    return low + bisect.bisect_left(range(low, high), True, key=holds)
