"""What a rule answers with: a cause, its fix, and what that would bring.

Measured where it was tried, else by the model, else by its bounds. To a whole script too, whose
loops are only a part of it: a script takes what it does outside of the loader's loop; and in each
epoch the start of workers or the restart of those that persist, the first batch, and then batches
at the loop's rate.
"""

from __future__ import annotations

import dataclasses
import enum
import functools
import math
from collections.abc import Mapping
from typing import Any, Literal

from dlprof.advise import thresholds as at
from dlprof.advise.findings.evidence import Costs, Evidence, Script, costs_of
from dlprof.advise.wording import as_fast, between, worker_threads_code
from dlprof.model.predict import relative_error
from dlprof.records import Config, Estimate, Fix, LoaderCall, Trial, WatchedLoader
from dlprof.stats.belief import NEAR, Belief, Gap, believe, near_best, observe


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Gain:
    """Throughput after a change over throughput now."""

    estimate: Estimate  # the ratio
    source: Literal["measured", "model", "bound"]  # how it is known
    trials: tuple[str, ...] = ()  # the trials that it was measured by
    worst: float | None = None  # the least that it was in any block of trials
    is_alone: bool = False  # whether it is for cores that nobody else uses, though others did
    limit: str = ""  # what the model says limits it then (``Prediction.bound``); empty without it
    # Whether it is none where all workers share a limit of what they wait for, which may be so: its
    # lower end is no more than 1 then.
    may_share: bool = False

    @property
    def value(self) -> float:
        """The ratio itself."""
        return self.estimate.value

    @property
    def pays(self) -> bool:
        """Whether it pays, and isn't within what chance could have brought.

        On a busy machine intervals are wide; what was better each time it was tried counts too.
        """
        return self.value >= at.PAYS and not self.is_chance

    @property
    def is_chance(self) -> bool:
        """Whether it may as well be none: it may lose as much as what pays gains."""
        return max(self.estimate.low or 0.0, self.worst or 0.0) < 1 / at.PAYS

    @property
    def sure(self) -> bool:
        """Whether its interval lies above 1."""
        return self.estimate.ends[0] > 1

    @property
    def words(self) -> str:
        """What is said of it: no figure where it is too noisy for one."""
        unknown = self.estimate.is_wide or self.may_share
        much = "faster" if unknown else f"{self.value:.2f}x as fast"
        return f"{'is' if self.sure else 'may be'} {much}"

    def at_most(self, most: float) -> Gain:
        """The same as far as something else allows it, which by itself has no interval."""
        capped = self.estimate.through(lambda each: min(each, most))
        if self.value > most:
            low, _ = bound(most).estimate.ends
            capped = dataclasses.replace(capped, low=min(capped.ends[0], low))
        return dataclasses.replace(self, estimate=capped)

    @property
    def saved(self) -> float:
        """Share of the run's time that the change would save, 0 to 1."""
        return max(0.0, 1 - 1 / self.value) if self.value > 0 else 0.0


def gain_of(view: Evidence, config: Config | None) -> Gain | None:
    """What another configuration would bring; ``None`` where nothing is known.

    In a script computing takes longer once more of the cores are busy; the interval keeps what
    would come of cores that don't slow each other down.
    """
    if config is None:
        return None
    gain, script, costs = measured_gain(view, config), view.script, view.costs
    tried, gain = gain is not None, gain or predicted_gain(view, config)
    if gain is None:
        return None
    # The figure that all views of the run have for it.
    printed = view.gain(config) if view.gain is not None and gain.value > 0 else None
    gain = gain if printed is None else dataclasses.replace(gain, estimate=printed)
    gain = _perhaps_none(gain) if gain.may_share else gain
    if gain.estimate.is_wide and 0 < view.workers < config.num_workers:
        gain = gain.at_most(config.num_workers / view.workers)  # each as good as those of now
    if tried or script is None or costs is None or costs.period_s <= 0:
        return gain
    step_s = costs.step_s * (1.0 if script.step_cores is None else script.step_cores)
    now = (costs.cpu_s + step_s) / costs.period_s / view.cores
    more = max(min(1.0, now * gain.value), at.HALF_OF_CORES) - max(min(1.0, now), at.HALF_OF_CORES)
    slower = gain.estimate.times(1 / (1 + at.SLOWER * max(0.0, more)))
    return dataclasses.replace(gain, estimate=dataclasses.replace(slower, high=gain.estimate.high))


def measured_gain(view: Evidence, config: Config) -> Gain | None:
    """What it brought when it was tried, compared in interleaved blocks.

    One that failed brought nothing: its gain is 0.
    """
    tried = tuple(t.id for t in view.trials("variant") if t.config == config)
    plain = [t for t in view.plain("variant") if t.config == config]
    present = view.plain("present")
    if tried and not plain:
        return Gain(estimate=Estimate(value=0.0), source="measured", trials=tried)
    if not plain or not present:
        return None
    fit, key, own = _measured(view), config.key, view.config.key
    if fit is None or not {key, own} <= fit.log_rates.keys():
        return None
    now = {trial.repetition: _rate(trial) for trial in present}
    ratios = [_rate(trial) / now[trial.repetition] for trial in plain if trial.repetition in now]
    return Gain(
        estimate=fit.ratio(key, own),
        source="measured",
        trials=tuple(trial.id for trial in plain),
        worst=min(ratios) if len(ratios) > 1 else None,
    )


def _measured(view: Evidence) -> Belief | None:
    """What is believed of all that was tried, and of the present settings."""
    trials = view.plain("present", "variant")
    cores = view.cores * view.ranks  # of the machine, as what others use is seen
    seen = [observe(trial, _rate(trial), usable_cores=cores) for trial in trials]
    known = [each for each in seen if each is not None]
    return believe(known) if known else None


def _rate(trial: Trial) -> float:
    return trial.batches_per_s.value if trial.batches_per_s is not None else 0.0


def predicted_gain(
    view: Evidence,
    config: Config | None = None,
    *,
    costs: Costs | None = None,
    cores: float | None = None,
    now: float | None = None,
) -> Gain | None:
    """What the model says of a change, or its bounds alone; ``None`` where nothing is known.

    The errors of two predictions that rest on the same trials are alike and cancel, but for what
    one is more sure of than the other.

    ``config``, ``costs`` of a batch and ``cores`` for the loader alone are what they are then, each
    as now where it is ``None``; ``now`` are the cores that were available, likewise, ``None`` for
    those that the trials show, which others share.
    """
    config, predict, after, before = config or view.config, view.predict, None, None
    asked, quiet = costs, cores is not None
    # What a batch costs stays: more of them are to be made in the same time.
    more = costs is None and (config.num_workers > view.workers or cores is not None)
    shares = more and may_share_limit(view)
    beside = view.beside if cores is None and now is None else 0.0
    now = now or view.available
    cores = cores or now
    there, here = (view.cores, view.cores) if beside else (cores, now)
    if beside and (fair := view.usage.fair_cpu_cores) is not None:  # which no thread more changes
        there, here, beside = min(there, fair), min(here, fair), 0.0
    if predict is not None and (costs is None or (view.costs and view.explained)):
        ask = functools.partial(predict, beside=beside, traced=view.explained)
        after = ask(config, cores=there, costs=costs)
        before = ask(view.config, cores=here, costs=costs and view.costs)
    if predict is None or after is None or before is None or before.batches_per_s.value <= 0:
        costs = costs or costs_for(view, config)
        if costs is None or view.costs is None:
            return None
        found = bound(costs.rate(config, cores) / view.costs.rate(view.config, now))
    else:
        alike = bool(config.num_workers) is bool(view.workers)
        most = 2 * relative_error(predict.calibration) if alike else math.inf
        one, two = (
            1.96 * (at.BOUND_LOG_SD if rate.log_sd is None else rate.log_sd)
            for rate in (after.batches_per_s, before.batches_per_s)
        )
        # What a part would cost after a change is an estimate by itself.
        least = 2 * at.BOUND_LOG_SD if costs else 0.0
        half = max(least, min(most, math.hypot(one, two)), abs(one - two))
        # What costs nothing has no limit.
        fast, slow = (min(1e9, rate.batches_per_s.value) for rate in (after, before))
        found = dataclasses.replace(bound(fast / slow, half, "model"), limit=after.bound)
    found = found.at_most(most_by_step(view, costs=asked, quiet=quiet))
    return _perhaps_none(found) if shares else found


def most_by_step(view: Evidence, *, costs: Costs | None = None, quiet: bool = False) -> float:
    """The most that any loader brings: no wait for data, nor batches faster than steps; else inf.

    ``costs`` are those of a batch after a change: copies that the step waits for are a part of it.
    On cores that nobody else uses (``quiet``) a step that computes takes less as well: only one of
    stated length is known then.
    """
    most, rate, wait = math.inf, view.rate, view.mean_wait
    if not view.has_step or (costs and view.costs and costs.copy_s < view.costs.copy_s):
        return most
    if view.script is None and view.step_s > 0 and rate:
        most = max(1.0, 1 / (view.step_s * rate))
    several = view.ranks > 1 or any(trial.ranks for trial in view.plain("present"))
    if quiet or several or wait is None:  # ranks also wait for each other's data, in their steps
        return most
    return min(most, 1 / max(1e-9, 1 - wait))


def _perhaps_none(gain: Gain) -> Gain:
    """The gain where workers may share a limit, by which it would be none."""
    ends = gain.estimate.ends
    shared = dataclasses.replace(gain.estimate, low=min(1.0, ends[0]), high=ends[1])
    return dataclasses.replace(gain, estimate=shared, may_share=True)


def mostly_waits(view: Evidence) -> bool:
    """Whether batches wait for longer than they compute, and for no threads of their own."""
    costs, gil_s = view.costs, view.waits_for_gil_s or 0.0
    if costs is None or view.helpers_share >= at.HELPERS:
        return False
    return costs.making.io_s - gil_s > costs.making.cpu_s


def may_share_limit(view: Evidence) -> bool:
    """Whether what batches mostly wait for may have a limit that all workers share.

    A server's rate is one. A single number of workers doesn't show it. Of several that were traced,
    a batch waits longer with most of them than with the fewest where they reach it; and more that
    were tried brought nothing, or less than so many should.
    """
    if not mostly_waits(view):
        return False
    traced = {each.config.num_workers: costs_of(each) for each in view.explanations()}
    fewest, most = min(traced), max(traced)
    grown = traced[most].usual_io_s > at.PAYS * traced[fewest].usual_io_s
    tried = {t.config for t in view.plain("variant") if t.config.num_workers > view.workers}
    gains = (measured_gain(view, each) for each in tried)
    vain = any(each and each.value < at.PAYS for each in gains)
    return fewest == most or grown or vain or at_shared_limit(view) is not None


@functools.lru_cache(maxsize=1)  # each gain that more workers may bring asks for it
def at_shared_limit(view: Evidence) -> tuple[Config, Gain, float] | None:
    """The most workers that were tried, what they brought, and what so many bring without a limit.

    ``None`` but where batches mostly wait, and these workers surely brought less than that: as
    of a server that serves 400 samples a second, of which two workers ask for 270. Trials of whole
    epochs show none: in these, workers start, and the last ones wait for each other.
    """
    variants = (t for t in view.plain("variant") if not t.whole_epochs)
    tried = [t.config for t in variants if t.config.num_workers > view.workers]
    if not tried or not mostly_waits(view):
        return None
    most = max(tried, key=lambda each: each.num_workers)
    gain, alone = measured_gain(view, most), _free_gain(view, most)
    if gain is None or not gain.value or alone is None:
        return None
    return (most, gain, alone) if at.PAYS * gain.estimate.ends[1] < alone else None


def enough_for_limit(view: Evidence) -> Config | None:
    """The fewest workers that should reach the limit which more of them were seen to share."""
    if (limited := at_shared_limit(view)) is None:
        return None
    most, gain, _ = limited
    for count in range(view.workers + 1, most.num_workers):
        fewer = view.having(num_workers=count)
        if (_free_gain(view, fewer) or 0.0) >= at.PAYS * gain.value:
            return fewer if view.integrity.fault(fewer) is None else None
    return None


def _free_gain(view: Evidence, config: Config) -> float | None:
    """What other workers bring if none waits longer for the others; ``None`` if unknown."""
    then, now = costs_for(view, config), view.costs
    if then is None or now is None:
        return None
    return then.rate(config, view.cores) / now.rate(view.config, view.cores)


def costs_for(view: Evidence, config: Config) -> Costs | None:
    """The costs of a configuration's batches; ``None`` where its kind was not seen.

    Without workers nothing is known of putting and receiving: that is what the calibration with
    one or two is for.
    """
    if not config.num_workers:
        return view.costs_at(0) or view.costs
    if view.workers:
        return view.costs
    return view.costs_at(2) or view.costs_at(1)


def bound(
    ratio: float, half: float = 2 * at.BOUND_LOG_SD, source: Literal["model", "bound"] = "bound"
) -> Gain:
    """A gain by bounds alone, or by the model; ``half`` is half of its logarithm's interval."""
    low, high = ratio * math.exp(-half), ratio * math.exp(half)
    return Gain(estimate=Estimate(value=ratio, low=low, high=high), source=source)


class Place(enum.IntEnum):
    """Which findings come first, whatever they cost: what hides others, or ends the run."""

    BROKEN = 0  # the run ends, or its data is wrong
    CONSUMER = 1  # nothing of the loader's matters
    FAULT = 2  # something is wrong that needn't be
    CROWD = 3  # others take so much that little can be said of the rest
    SETTING = 4  # the dataset is as it is, and the loader's settings don't suit it
    NATURE = 5  # what loading this dataset takes
    BEHIND = 6  # true as well, and hidden by another


@dataclasses.dataclass(frozen=True, slots=True)
class Claim:
    """What a rule says where it finds its cause."""

    title: str  # the cause in a few words
    explanation: str  # how it slows this loader down, with figures
    cost: float  # share of the run's time that the cause takes
    figures: str = ""  # names of those that show it, as ``Evidence.figures`` knows them
    # Figures that only the rule knows.
    given: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    fix: str = ""  # what to change, in a sentence; empty where nothing should be
    code: str = ""  # what to paste
    # An argument of DataLoader that is set with it, and its value as source.
    argument: tuple[str, str] | None = None
    config: Config | None = None  # settings that are the fix, or a part of it
    gain: Gain | None = None  # what the fix would bring
    place: Place | None = None  # where it belongs, where that is not where the table puts it


def fix_of(view: Evidence, claim: Claim) -> Fix | None:
    """What to change: of settings, the arguments that differ from the present ones.

    Where the target can't be set so from outside, the fix says why and names no arguments.
    """
    now, config, code = view.config, claim.config, claim.code
    call = view.target.call.checked()
    if config is None and not claim.fix:
        return None
    if claim.argument is not None:
        name, value = claim.argument
        none = call.fixed.get(name, "")
        if none and name == "worker_init_fn":
            text = f"{claim.fix} But {none}: do it in the dataset, at a worker's first sample."
            return Fix(text=text)
        if none:
            return Fix(text=f"{claim.fix} But {none}.", code="" if call.collates else code)
        code = "\n\n".join(filter(None, (code, call.given(name, value))))
    if config is None:
        return Fix(text=claim.fix, code=code)
    settings = _changes(now, config)
    needed = [*settings, *(["worker_init_fn"] * (config.worker_threads != now.worker_threads))]
    by_call = dict.fromkeys(call.fixed[name] for name in needed if name in call.fixed)
    if reasons := view.why_fixed(config) or by_call:
        text = f"{claim.fix} The target's code prevents it: {'; '.join(reasons)}."
        return Fix(text=text, code=code)
    text = claim.fix + _left_out(view, config)
    strategy, threads = config.sharing_strategy, config.worker_threads
    if strategy is not None and strategy != now.sharing_strategy:
        code = f'torch.multiprocessing.set_sharing_strategy("{strategy}")'
    if threads is not None and threads != now.worker_threads:
        given = call.given("worker_init_fn", "set_worker_threads")
        code = f"{worker_threads_code(threads)}\n\n{given}"
    other = call.written(settings) if settings and call != LoaderCall() else ""
    return Fix(text=text, dataloader_kwargs=settings, code=code, call=other)


def _left_out(view: Evidence, config: Config) -> str:
    """Which of the present arguments torch refuses without workers."""
    now, own = view.config, view.target.own_config or view.config
    if config.num_workers or not now.num_workers:
        return ""
    present = {
        "prefetch_factor": now.prefetch_factor not in (None, 2),
        "persistent_workers": now.persistent_workers,
        "multiprocessing_context": now.start_method or own.start_method,
    }
    names = [name for name, is_given in present.items() if is_given]
    return f" Leave out {', '.join(names)}: torch refuses that without workers." if names else ""


def best_of_measured(view: Evidence, claim: Claim) -> Claim:
    """The claim, with fewer workers as its fix where these were measured to be as good as its own.

    It is the cheapest that is likely within 3% of the best, as everywhere. Where more workers pay,
    it has more than now as well, however little is known of what they bring.
    """
    own, config = claim.gain, claim.config
    if own is None or config is None:
        return claim
    tried = {config: own, **{trial.config: None for trial in view.plain("variant")}}
    found = {each: gain_of(view, each) or gain for each, gain in tried.items()}
    gains = {each: gain for each, gain in found.items() if gain is not None and gain.value > 0}
    least = view.workers + 1 if config.num_workers > view.workers else 0
    less = [
        each
        for each in gains
        if least <= each.num_workers < config.num_workers
        if each == view.having(num_workers=each.num_workers)
    ]
    fit = _measured(view)
    if not less or fit is None:
        return claim

    def gap(one: Config, two: Config) -> Gap:
        value = math.log(gains[one].value / gains[two].value)
        if {one.key, two.key} <= fit.log_rates.keys():
            return fit.gap(one.key, two.key)._replace(value=value)
        errors = (gains[each].estimate.log_sd or 0.0 for each in (one, two))
        return Gap(value, math.hypot(*errors), math.inf)

    some = sorted({config, *less} & gains.keys(), key=lambda each: each.cost_key)
    chosen = near_best({each: math.log(gains[each].value) for each in some}, None, gap)[0]
    if chosen not in less:
        return claim
    new, old = changed(view.config, chosen), changed(view.config, config)
    fix = f"Set {new}: it costs less than {old}, and is likely {at.WITHIN} of its rate, or faster."
    settings = dataclasses.replace(claim, config=chosen, gain=gains[chosen], fix=fix)
    return dataclasses.replace(settings, code="", argument=None)


def tried_in_vain(view: Evidence, config: Config | None, gain: Gain | None = None) -> str:
    """What a change brought, where it was tried and is not worth a word; else empty.

    ``gain`` is what a rule believes of it; ``None`` for what its trials show.
    """
    if config is None or all(trial.config != config for trial in view.trials("variant")):
        return ""
    gain = gain or gain_of(view, config)
    least = NEAR if config.num_workers < view.workers else at.WORTH_TRYING
    if gain is None or gain.value >= least:
        return ""
    others = (f"{name}={getattr(config, name)!r}" for name in view.config.differing(config))
    name = changed(view.config, config) or ", ".join(others)
    brought = (
        f": {as_fast(gain.estimate)}{between(gain.estimate)}" if gain.value else ", and failed"
    )
    known = "" if gain.source == "measured" else ", as estimated of whole epochs"
    return f"{name} was tried{brought}{known}."


def changed(now: Config, config: Config) -> str:
    """The arguments of DataLoader in which a configuration differs from the present one."""
    return ", ".join(f"{name}={value!r}" for name, value in _changes(now, config).items())


def _changes(now: Config, config: Config) -> dict[str, Any]:
    after = config.dataloader_kwargs()
    # Without workers their arguments are at torch's defaults.
    before = Config(num_workers=1).dataloader_kwargs() | now.dataloader_kwargs()
    return {name: value for name, value in after.items() if before.get(name) != value}


def script_gain(view: Evidence, config: Config, *, loop: bool = False) -> Estimate | None:
    """Time of the whole script now over that with another configuration.

    With ``loop`` only epochs over the loader count, the starts of their workers among them.
    ``None`` where no script was watched, or where the change can't be computed: the step competes
    with the workers for cores, or waits don't add up.
    """
    script, now = view.script, view.config
    if script is None or not script.adds_up or competes(view, config):
        return None
    factors: tuple[float | None, ...] = (None, None, None)
    started = dataclasses.replace(
        config, persistent_workers=now.persistent_workers, start_method=now.start_method
    )
    if started != now:  # else batches come at the same rate
        gain = gain_of(view, config)
        if gain is None or gain.value <= 0:
            return None
        low, high = gain.estimate.ends
        factors = (gain.value, max(1e-3, low), high)
    now_s, seen = script.loop_s, script.loader
    ends, epochs = [], max(1, seen.epochs)
    # The time of a start may be off by a factor of two.
    for factor, starting in zip(factors, (1.0, 2.0, 0.5), strict=True):
        begun_s = starts_s(view, script, config, starting)
        if factor is not None:
            loop_s = begun_s + epochs * _epoch_s(view, seen, config, factor)
        else:
            turnover_s = seen.turnover.total_s if seen.turnover else 0.0
            started_s = (seen.startup_s or 0.0) + turnover_s - epochs * _first_s(view)
            started_s += _last_end_s(seen)
            loop_s = now_s - max(0.0, started_s) + begun_s
        ends.append(now_s / loop_s)
    value, low, high = ends
    widened = math.exp(0.15)  # two runs of one script differ by as much
    low, high = min(low, value / widened), max(high, value * widened)
    if config.num_workers >= now.num_workers:  # fewer may leave cores to the step
        # No settings bring more than a perfect loader, whatever two runs differ by.
        most = now_s / max(1e-9, now_s - seen.cost_s)
        high = max(value, min(high, most))
    if loop:
        return Estimate(value=value, low=low, high=high)
    # What a script does outside of the loop brings it no gain, and may hide one.
    rest_s = script.wall_s - now_s
    value, low, high = (script.wall_s / (rest_s + now_s / each) for each in (value, low, high))
    return Estimate(value=value, low=min(low, value / widened), high=high)


def competes(view: Evidence, config: Config) -> bool:
    """Whether a script's step computes in several threads, and workers would take their cores."""
    script, costs = view.script, view.costs
    if script is None or not config.num_workers or costs is None:
        return False
    threads = script.step_threads
    if threads is not None and threads < at.PARALLEL:
        return False
    making = costs.making
    busy = making.cpu_s / making.own_s if making.own_s > 0 else 1.0
    after = min(config.num_workers * busy, view.cores)
    now = min(view.demand, view.cores) if view.workers else 0.0
    return config.num_workers != view.workers and after - now > at.CROWDS_STEP * view.cores


def starts_s(view: Evidence, script: Script, config: Config, starting: float = 1.0) -> float:
    """Seconds of all starts and restarts of a configuration's workers.

    What the first batch took beyond a usual one, each worker takes at its own first: modules that
    the dataset imports and files that it opens when first asked. What an iterable fetches before it
    yields it fetches in each epoch. Workers are also ended, which the ``next()`` after the last
    batch waits for.
    """
    loader, start_s = script.loader, _start_s(view, script, config)
    epochs, filled_s = max(1, loader.epochs), view.filling_s
    starts = max(1, loader.made) if config.persistent_workers else epochs
    after, now = (each.start_method or script.start_method for each in (config, view.config))
    if loader.startup_s is not None:
        own_s = loader.startup_s - _first_s(view) - filled_s
        seen_s = max(at.RESET_S, own_s + _last_end_s(loader))
        if view.workers and after == now:
            start_s *= seen_s / _start_s(view, script, view.config)
        elif config.num_workers and not view.workers:
            start_s += seen_s * max(1.0, config.num_workers / view.cores)
    restart_s = at.RESET_S if config.num_workers else 0.0
    return starts * starting * start_s + max(0, epochs - starts) * restart_s + epochs * filled_s


def _first_s(view: Evidence) -> float:
    return view.costs.making.wall_s if view.costs else 0.0


def _last_end_s(loader: WatchedLoader) -> float:
    """Seconds of the ``next()`` that ended the last epoch, and its workers: the rest of all waits.

    0 where nobody asked for the end, where workers persist, and where ``--headroom`` left out some.
    """
    persists = loader.config is not None and loader.config.persistent_workers
    if persists or loader.headroom is not None or not 0 < loader.epochs_completed == loader.epochs:
        return 0.0
    parts = [each.total_s for each in (loader.turnover, loader.wait) if each is not None]
    return max(0.0, loader.waited_s - (loader.startup_s or 0.0) - sum(parts))


def _start_s(view: Evidence, script: Script, config: Config) -> float:
    """Seconds to start so many workers, which share the cores with others, each as much as they.

    That others kept the cores busy leaves a process that starts its fair share of them: the less,
    the more of them wait for a core as well.
    """
    workers, method = config.num_workers, config.start_method or script.start_method
    if not workers:
        return 0.0
    each_s = at.STARTS_CPU_S.get(method, at.STARTS_CPU_S["spawn"])
    at_once = min(workers, 2 if method == "fork" else 4)  # one after the other, a fork is short
    # Cores that they keep busy are the share of the time in which they run; where those that want
    # one were counted, they are no more: what else workers waited for was each other. Without
    # workers they may be more: what mostly sleeps gets a core sooner than what starts, and the load
    # average has also whoever waits for a disk: the middle of both.
    usage = view.usage
    threads = usage.runnable(view.others)
    if usage.other_runnable is not None:
        counted = usage.other_runnable / view.ranks
        more = threads if view.workers else max(threads, math.sqrt(threads * counted))
        threads = max(view.others, min(more, counted))
    share = at_once / max(view.cores, at_once + threads)
    return workers * each_s / (share * view.cores)


def _epoch_s(view: Evidence, loader: WatchedLoader, config: Config, factor: float) -> float:
    """Seconds of an epoch, workers' start left out."""
    batches = max(1.0, loader.batches / max(1, loader.epochs))
    step_s = loader.step.mean_s if loader.step else 0.0
    wait_s = loader.wait.mean_s if loader.wait else 0.0
    period_s = (wait_s + step_s) / factor
    costs = costs_for(view, config) or view.costs
    if not config.num_workers or costs is None:
        return batches * period_s
    period_s = max(period_s, step_s)
    own_s, cpu_s = costs.making.own_s, costs.making.cpu_s
    at_once = cpu_s * config.num_workers / max(1e-12, own_s) / view.cores
    first_s = costs.making.io_s + cpu_s * max(1.0, at_once)
    limit_s = max(own_s / config.num_workers, cpu_s / view.cores)
    if limit_s < at.USED_UP * period_s:
        return first_s + batches * period_s - (period_s - step_s)
    rounds = math.ceil(batches / config.num_workers)  # of batches that come at once
    return max(first_s, rounds * config.num_workers * period_s) + step_s
