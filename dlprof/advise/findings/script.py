"""What a change of settings would bring to a whole script, whose loops are only a part of it.

A script takes what it does outside of the loader's loop; and in each epoch the start of workers or
the restart of those that persist, the first batch, and then batches at the loop's rate.
"""

from __future__ import annotations

import dataclasses
import math
from typing import Final

from dlprof.advise.findings.evidence import Script
from dlprof.advise.findings.gains import costs_for, gain_of
from dlprof.advise.findings.startup import RESET_S
from dlprof.advise.findings.view import View
from dlprof.records import Config, Estimate, WatchedLoader

_STARTS_CPU_S: Final = {"fork": 0.035, "forkserver": 1.8, "spawn": 1.4}
"""CPU seconds to start a worker and to end it, by start method: a fork as ``os.times`` has it, of a
script that has loaded torch; the others from FIELD section 1, where torch is imported once more."""

_STARTING: Final = {"fork": 2}
_MOST_STARTING = 4
"""Workers that start at once: the main process starts one after the other, and a fork is short."""

_START_FACTOR = 2.0
"""How far off the time of a start may be, to either side."""

_LEAST_LOG = 0.15
"""How far off a promise is at least: two runs of one script differ by as much."""

_LIMITED = 0.9
"""Share of a loop's period that making a batch takes, from which making batches is the limit."""

_PARALLEL = 1.2
"""Cores that a step keeps busy, from which several threads compute in it."""

_MORE = 0.25
"""Share of the cores that workers would take beyond what they take now, from which a step of
several threads on the same cores slows down: each of its parts waits for the last of its threads,
and that one for a worker's turn to end. Measured on 2 cores: a step of 1.6 ms took 10 ms beside
2 workers that compute, and 47 ms where another process ran as well."""

_ASIDE = 0.1
"""Share of a loader's waits in other threads or inside of other loaders' waits, from which they
don't add up to the script's time."""


def script_gain(view: View, config: Config, *, loop: bool = False) -> Estimate | None:
    """Time of the whole script now over that with another configuration.

    Args:
        view: The evidence.
        config: The other configuration.
        loop: Whether only epochs over the loader count, the starts of their workers among them.

    Returns:
        ``None`` where no script was watched, or where the change can't be computed: the step
        competes with the workers for cores, or waits don't add up.
    """
    script = view.evidence.script
    if script is None or not _adds_up(script) or competes(view, config):
        return None
    factors: tuple[float | None, ...] = (None, None, None)
    if not _is_same_loop(view.config, config):
        gain = gain_of(view, config)
        if gain is None or gain.value <= 0:
            return None
        estimate = gain.estimate
        low, high = estimate.low or gain.value, estimate.high or gain.value
        factors = (gain.value, max(1e-3, low), high)
    now_s = script.loop_s if loop else script.wall_s
    value, low, high = (
        now_s / (now_s - script.loop_s + _loop_after_s(view, script, config, factor, starting))
        for factor, starting in zip(factors, (1.0, _START_FACTOR, 1 / _START_FACTOR), strict=True)
    )
    widened = math.exp(_LEAST_LOG)
    return Estimate(value=value, low=min(low, value / widened), high=max(high, value * widened))


def competes(view: View, config: Config) -> bool:
    """Whether a script's step computes in several threads, and workers would take their cores."""
    script, costs = view.evidence.script, view.costs
    if script is None or not config.num_workers or costs is None:
        return False
    threads = script.step_threads
    if threads is not None and threads < _PARALLEL:
        return False
    making = costs.making
    busy = making.cpu_s / making.own_s if making.own_s > 0 else 1.0
    after = min(config.num_workers * busy, view.cores)
    now = min(view.demand, view.cores) if view.workers else 0.0
    return config.num_workers != view.workers and after - now > _MORE * view.cores


def crowds(view: View) -> bool:
    """Whether a script's step computes on more than half of the cores, or nobody knows."""
    script = view.evidence.script
    if script is None:
        return False
    return script.step_cores is None or script.step_cores > max(view.cores / 2, 1) * 1.05


def _adds_up(script: Script) -> bool:
    """Whether the loader's loop is a part of the script's time by itself."""
    loader = script.loader
    aside_s = loader.nested_s + loader.background_s
    alone = loader.consumers <= 1 and aside_s <= _ASIDE * loader.waited_s
    timed = loader.wait is not None and loader.step is not None
    return timed and alone and script.loop_s <= script.wall_s


def _is_same_loop(now: Config, after: Config) -> bool:
    """Whether two differ only in how workers start, so that batches come at the same rate."""
    started = dataclasses.replace(
        after, persistent_workers=now.persistent_workers, start_method=now.start_method
    )
    return started == now


def _loop_after_s(
    view: View, script: Script, config: Config, factor: float | None, starting: float
) -> float:
    """Seconds of all epochs over the loader with another configuration.

    Args:
        view: The evidence.
        script: What was seen.
        config: The other configuration.
        factor: Rate of its loop over that of the present one; ``None`` for the same loop.
        starting: What its workers' starts take over what is expected of them.
    """
    loader, begun_s = script.loader, starts_s(view, script, config, starting)
    epochs = max(1, loader.epochs)
    if factor is not None:
        return begun_s + epochs * _epoch_s(view, loader, config, factor)
    turnover_s = loader.turnover.total_s if loader.turnover else 0.0
    seen_s = (loader.startup_s or 0.0) + turnover_s - epochs * _first_s(view)
    return script.loop_s - max(0.0, seen_s) + begun_s


def starts_s(view: View, script: Script, config: Config, starting: float = 1.0) -> float:
    """Seconds of all starts and restarts of a configuration's workers.

    Args:
        view: The evidence.
        script: What was seen.
        config: Whose workers.
        starting: What a start takes over what is expected of it.
    """
    loader, start_s = script.loader, _start_s(view, script, config)
    epochs = max(1, loader.epochs)
    starts = max(1, loader.made) if config.persistent_workers else epochs
    after, now = (each.start_method or script.start_method for each in (config, view.config))
    if view.workers and after == now and loader.startup_s is not None:  # by what was seen
        seen_s = max(RESET_S, loader.startup_s - _first_s(view))
        start_s *= seen_s / _start_s(view, script, view.config)
    restart_s = RESET_S if config.num_workers else 0.0
    return starts * starting * start_s + max(0, epochs - starts) * restart_s


def _first_s(view: View) -> float:
    return view.costs.making.wall_s if view.costs else 0.0


def _start_s(view: View, script: Script, config: Config) -> float:
    """Seconds to start so many workers, which share the cores with others, each as much as they.

    That others kept the cores busy leaves a process that starts its fair share of them.
    """
    workers, method = config.num_workers, config.start_method or script.start_method
    if not workers:
        return 0.0
    each_s = _STARTS_CPU_S.get(method, _STARTS_CPU_S["spawn"])
    at_once = min(workers, _STARTING.get(method, _MOST_STARTING))
    share = at_once / max(view.cores, at_once + min(view.others, view.cores))
    return workers * each_s / (share * view.cores)


def _epoch_s(view: View, loader: WatchedLoader, config: Config, factor: float) -> float:
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
    if limit_s < _LIMITED * period_s:
        return first_s + batches * period_s - (period_s - step_s)
    rounds = math.ceil(batches / config.num_workers)  # of batches that come at once
    return max(first_s, rounds * config.num_workers * period_s) + step_s
