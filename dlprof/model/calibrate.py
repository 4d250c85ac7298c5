"""From instrumented trials to what batches cost."""

from __future__ import annotations

import dataclasses
import itertools
import math
import statistics
from collections.abc import Iterable, Mapping, Sequence

from dlprof.model.handshake import cleaned, split_receive, unstolen
from dlprof.model.resources import growth_of, memory_of, startups_of, turnovers_of
from dlprof.model.spread import MIN_BATCHES, Fetching, drift_of
from dlprof.model.work import DEFAULT
from dlprof.records import BatchCosts, Calibration, Explanation, Trial

MAX_ERROR = 0.10
"""Relative standard error of the mean cost from which a calibration is called too short."""

MAX_RUN_QUEUE = 0.5
"""Share of fetching spent waiting for a core from which the machine was too busy to tell: own CPU
time itself grows then, by caches and hyper-threads that others use."""

MAX_BATCHES = 4000
"""Kept of each kind; beyond, every n-th."""

_DISAGREE = 1.25


def fit(
    explanations: Sequence[Explanation],
    trials: Sequence[Trial],
    *,
    batch_tensors: float | None = None,
) -> Calibration:
    """Merge what instrumented trials tell into one calibration.

    Waiting for a core is left out of the costs: it belongs to the moment, and the predictors
    find what there will be of it.

    Args:
        explanations: Of instrumented trials of one target at one batch size, of one run or
            several: ``num_workers`` 0, 1 and 2 are enough.
        trials: All trials of those runs, the instrumented ones among them: start-up, turnover and
            memory come from these.
        batch_tensors: Tensors in a batch, where the target's probe told.

    Returns:
        The calibration. Whatever makes it unreliable is among its ``doubts``; with no usable
        batch at all, both of its costs are ``None``.
    """
    told = [each for each in explanations if each.hooked and each.costs.cpu_s]
    by_id = {trial.id: trial for trial in trials}
    clean = {
        each.trial_id: unstolen(cleaned(each.costs), by_id.get(each.trial_id)) for each in told
    }
    doubts = _dropped(told, clean)
    usable = [each for each in told if clean[each.trial_id].cpu_s]
    in_main = _merged(clean, [e for e in usable if not e.config.num_workers])
    fed = (each for each in usable if each.config.num_workers)
    by_strategy: dict[str, list[Explanation]] = {}
    for each in fed:
        by_strategy.setdefault(each.config.sharing_strategy or DEFAULT, []).append(each)
    split = {name: split_receive(some, clean) for name, some in by_strategy.items()}
    merged = {name: _merged(split[name][1], some) for name, some in by_strategy.items()}
    usual = DEFAULT if merged.get(DEFAULT) else next(iter(merged), DEFAULT)
    busy_s = {name: longer_s for name, (longer_s, _) in split.items() if longer_s > 0}
    if usual in busy_s:
        busy_s[DEFAULT] = busy_s[usual]  # which goes with ``in_workers``
    fit_of = Fetching.of(usable, clean)
    mine = [by_id[each.trial_id] for each in usable if each.trial_id in by_id]
    main_bytes, worker_bytes = memory_of(trials)
    copied = _copied(usable, pinned=False), _copied(usable, pinned=True)
    return Calibration(
        batch_size=next((each.config.batch_size for each in usable), None),
        samples_per_batch=_mean(t.samples_per_batch for t in (mine or trials)),
        batch_bytes=_mean(t.batch_bytes for t in (mine or trials)),
        batch_tensors=batch_tensors,
        read_bytes_per_batch=_mean(map(_read_bytes, mine)),
        in_main=in_main,
        in_workers=merged.get(usual),
        receive={name: costs for name, costs in merged.items() if name != DEFAULT and costs},
        receive_busy_s=busy_s,
        helper_cpu_s=_helpers(usable),
        startup_s=startups_of(trials),
        turnover_s=turnovers_of(trials),
        copy_s=next((each for each in copied if each is not None), 0.0),
        pinned_copy_s=copied[1],
        main_bytes=main_bytes,
        worker_bytes=worker_bytes,
        worker_growth_bytes_per_batch=growth_of(usable),
        cpu_cv=fit_of.cv,
        standard_error=fit_of.error,
        drift=drift_of(usable, clean),
        run_queue_fraction=fit_of.run_queue,
        available_cores=_mean(t.usage.available_cpu_cores for t in mine),
        trials=tuple(each.trial_id for each in usable),
        doubts=(*doubts, *_doubts(fit_of, usable, clean)),
    )


def _dropped(told: Sequence[Explanation], clean: Mapping[str, BatchCosts]) -> list[str]:
    all_of_them = sum(len(each.costs.cpu_s) for each in told)
    kept = sum(len(clean[each.trial_id].cpu_s) for each in told)
    if kept == all_of_them:
        return []
    lost = all_of_them - kept
    return [f"{lost} of {all_of_them} batches had figures below 0 or none, and were left out"]


def _merged(clean: Mapping[str, BatchCosts], some: Sequence[Explanation]) -> BatchCosts | None:
    """The batches of several trials, one trial after the other."""
    parts = [clean[each.trial_id] for each in some]
    count = sum(len(part.cpu_s) for part in parts)
    if not count:
        return None
    stride = math.ceil(count / MAX_BATCHES)
    columns: dict[str, tuple[float, ...]] = {}
    for field in dataclasses.fields(BatchCosts):
        known = list(itertools.chain.from_iterable(getattr(part, field.name) for part in parts))
        if known:
            column = itertools.chain.from_iterable(_filled(p, field.name, known) for p in parts)
            columns[field.name] = tuple(column)[::stride]
    return BatchCosts(**columns)


def _filled(part: BatchCosts, name: str, known: Sequence[float]) -> Iterable[float]:
    """A column at full length; a trial that lacks it (it didn't pin, say) borrows from others."""
    column: tuple[float, ...] = getattr(part, name)
    return column or itertools.islice(itertools.cycle(known), len(part.cpu_s))


def _doubts(
    found: Fetching, some: Sequence[Explanation], clean: Mapping[str, BatchCosts]
) -> Iterable[str]:
    if found.count < MIN_BATCHES:
        yield f"only {found.count} batches were measured: calibrate for longer"
    elif found.error is not None and found.error > MAX_ERROR:
        yield (
            f"the mean cost of a batch is known to ±{found.error:.0%} only: calibrate for longer"
        )
    if found.run_queue is not None and found.run_queue > MAX_RUN_QUEUE:
        yield (
            f"fetching waited for a core {found.run_queue:.0%} of its time: the machine was too "
            "busy to tell what batches cost; calibrate when it is quiet"
        )
    yield from _disagreement(some, clean)


def _disagreement(some: Sequence[Explanation], clean: Mapping[str, BatchCosts]) -> Iterable[str]:
    """Whether a batch costs more CPU where more workers run: then more of them cost more still."""
    means: dict[int, list[float]] = {}
    for each in some:
        means.setdefault(each.config.num_workers, []).extend(clean[each.trial_id].cpu_s)
    fed = {w: statistics.fmean(v) for w, v in means.items() if w and len(v) >= MIN_BATCHES}
    if len(fed) > 1 and fed[max(fed)] > _DISAGREE * fed[min(fed)] > 0:
        yield (
            f"a batch costs {fed[max(fed)] / fed[min(fed)]:.2g} times the CPU with "
            f"num_workers={max(fed)} as with {min(fed)}: workers get in each other's way, and "
            "more of them may gain less than predicted"
        )


def _helpers(some: Sequence[Explanation]) -> float:
    """CPU seconds a batch of main's other threads, without workers; those of a step left out."""
    alone = [
        max(0.0, each.main_threads_cpu_cores * each.window_s / each.batches - _beside_step(each))
        for each in some
        if not each.config.num_workers and each.main_threads_cpu_cores and each.batches
    ]
    return statistics.fmean(alone) if alone else 0.0


def _beside_step(explanation: Explanation) -> float:
    """CPU seconds a batch of main's other threads in the consumer's step."""
    step = explanation.stage("step")
    if step is None or explanation.step_cpu_s is None:
        return 0.0
    return max(0.0, explanation.step_cpu_s - (step.cpu_s or 0.0))


def _copied(some: Sequence[Explanation], *, pinned: bool) -> float | None:
    """What the step waits for a batch to be copied; ``None`` where nothing was copied so."""
    stages = (each.stage("copy") for each in some if each.config.pin_memory is pinned)
    return _mean(stage.mean_s for stage in stages if stage is not None)


def _read_bytes(trial: Trial) -> float | None:
    read, rate = trial.usage.read_bytes_per_s, trial.batches_per_s
    return None if read is None or rate is None or rate.value <= 0 else read / rate.value


def _mean(values: Iterable[float | None]) -> float | None:
    known = [value for value in values if value is not None and math.isfinite(value)]
    return statistics.fmean(known) if known else None
