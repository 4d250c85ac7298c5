"""Which configurations are worth predicting, and which of those a user names can be."""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from dlprof.advise import thresholds as at
from dlprof.advise.situation import Situation
from dlprof.errors import NothingMeasuredError, UsageError
from dlprof.records import (
    DATA_FAULTS,
    Calibration,
    Config,
    Constraints,
    Integrity,
    Machine,
    Run,
    Target,
    pins_for,
)

if TYPE_CHECKING:
    from dlprof.model.work import Conditions


def stored_limits(settings: Mapping[str, Any]) -> Constraints:
    """The limits that a sweep was given, from its run's header; what is no limit counts as none.

    Read here and not by ``dlprof.settings``, so that a recommendation needs no more than the run.
    """
    known: dict[str, Any] = {
        name: settings[name]
        for name in ("max_workers", "max_ram_bytes", "max_shm_bytes", "ranks", "step_s")
        if isinstance(settings.get(name), int | float) and settings[name] >= 0
    }
    known["ranks"] = max(1, known.get("ranks", 1))
    spread = settings.get("step_spread")
    known["step_spread"] = spread if isinstance(spread, str) else None
    return Constraints(**known)


MOST_CELLS = 10_000  # combinations that one question may name

OWN = ("pin_memory", "in_order", "start_method", "sharing_strategy", "worker_threads")
"""Settings that change what a batch costs, and that stay as they are where none is asked for."""


def base_config(run: Run) -> Config:
    """The settings that stay as they are where none is asked for: recommended, explained or own.

    Workers end with each epoch, but where they would lose the samples that the dataset keeps.
    """
    advice = None if run.recommendation is None else run.recommendation.config
    size = run.calibration.batch_size if run.calibration is not None else None
    kept = dict[str, Any]()
    for each in filter(None, (run.present, advice)):
        # One without workers says nothing of theirs.
        names = OWN if each.num_workers else ("pin_memory",)
        kept |= {name: getattr(each, name) for name in names}
    persist = run.header.target.persisting == (True,)
    one = Config(num_workers=1, batch_size=size, persistent_workers=persist, **kept)
    return one.canonical()


def wanted_configs(
    situation: Situation, axes: Mapping[str, Sequence[object]]
) -> tuple[Config, ...]:
    """The configurations that a user asks for.

    Where none: what the sweep predicted, else what is worth it; what was measured, and what is
    recommended.
    """
    run, calibration = situation.run, situation.calibration
    if not axes:
        kept, known = run.prediction, {trial.config for trial in run.completed}
        worth: Iterable[Config] = ()
        if situation.as_measured and kept is not None:  # of which it says how many they are
            known |= {cell.config for cell in kept.cells}
        else:
            worth = candidate_configs(situation)
            known |= {config for config in (run.advised,) if config is not None}
        sizes = {None, calibration.batch_size} if situation.as_measured else ()
        if run.recommendation is not None:  # which the search may have looked further for
            known.add(run.recommendation.config)
        known = {config for config in known if config.batch_size in sizes}
        return tuple(sorted({*worth, *known}, key=lambda config: config.cost_key))
    base = base_config(run)
    depths = {"prefetch_factor": auto_prefetch(calibration)}
    if "num_workers" in axes:
        return attainable(run, configs_of(base, {**depths, **axes}), axes)
    shallow = configs_of(base, {name: axes[name][:1] for name in axes if name != "prefetch_factor"})
    workers = auto_workers(calibration, shallow[0], situation.conditions)
    return attainable(run, configs_of(base, {"num_workers": workers, **depths, **axes}), axes)


def candidate_configs(situation: Situation) -> tuple[Config, ...]:
    """What is worth predicting of all settings, PyTorch's default and present ones among them."""
    run, calibration, base = situation.run, situation.calibration, base_config(situation.run)
    most = situation.constraints.max_workers
    axes = {
        "num_workers": auto_workers(calibration, base, situation.conditions, most),
        "prefetch_factor": auto_prefetch(calibration),
        "persistent_workers": run.header.target.persisting,
    }
    plain, present = Config(batch_size=calibration.batch_size), situation.present
    configs = {*attainable(run, [*configs_of(base, axes), plain], {})}
    if present is not None and situation.is_of_size(present):
        configs.add(present)
    return useful(run, configs)


def attainable(
    run: Run, configs: Iterable[Config], axes: Mapping[str, Sequence[object]]
) -> tuple[Config, ...]:
    """Configurations with what the target can't be set to as it has it, distinct."""
    header = run.header
    accelerated = pins_for(header.accelerator)
    kept = {header.target.attainable(each, has_accelerator=accelerated) for each in configs}
    for name, reason in header.target.fixed.items():
        named = axes.get(name)
        if named and not any(getattr(each, name) in named for each in kept):
            raise UsageError(
                f"{name}={', '.join(map(str, named))} can't be predicted: {reason}",
                hint=f"Leave {name} out.",
            )
    return tuple(sorted(kept, key=lambda config: config.cost_key))


def configs_of(base: Config, axes: Mapping[str, Sequence[object]]) -> tuple[Config, ...]:
    """All combinations of some settings, the rest as in ``base``; canonical and distinct."""
    count = math.prod(len(values) for values in axes.values())
    if count > MOST_CELLS:
        raise UsageError(
            f"The settings make {count:,} combinations, and the most is {MOST_CELLS:,}",
            hint="Name fewer values.",
        )
    combined = itertools.product(*axes.values())
    each: list[dict[str, Any]] = [dict(zip(axes, values, strict=True)) for values in combined]
    made = {dataclasses.replace(base, **fields).canonical() for fields in each}
    return tuple(sorted(made, key=lambda config: config.cost_key))


def useful(run: Run, configs: Iterable[Config]) -> tuple[Config, ...]:
    """Those of some configurations whose data is right, and that feed all of their workers."""
    found, wanted = Integrity.of(run), tuple(configs)
    kept = tuple(c for c in wanted if not found.is_useless(c) and not found.is_unproven(c))
    if kept or not wanted:
        return kept
    fault = next((each for each in map(found.fault, wanted) if each is not None), None)
    if fault is not None:
        what = "whose data is wrong" if fault.kind in DATA_FAULTS else "that fail"
        claim, hint = f"No rate can be predicted of settings {what}: {fault.message}", fault.hint
    elif found.refused:
        raises = f"the dataset may raise, as it does with {min(found.refused)}"
        claim = f"With more than {found.worked} workers {raises}, so nothing is predicted for them"
        hint = "Measure them: dlprof sweep with --num-workers."
    else:
        claim = f"More than {found.fed} workers get no data, so nothing is predicted for them"
        hint = f"Ask for num_workers={found.fed} or fewer."
    raise NothingMeasuredError(claim, hint=hint)


def auto_prefetch(calibration: Calibration) -> tuple[int, ...]:
    """Torch's default and twice it; deeper still where batches come in bursts."""
    return at.PREFETCH_OF_BURSTS if (calibration.cpu_cv or 0.0) > at.BURSTS else at.PREFETCH


def auto_workers(
    calibration: Calibration, base: Config, conditions: Conditions, most: int | None = None
) -> tuple[int, ...]:
    """Those of ``spread_workers`` to where more workers can't gain, or an epoch has no batches."""
    from dlprof.model.predict import spread_workers

    caps = (at.MOST_WORKERS, most, conditions.epoch_batches)
    last = max(8, most_workers(calibration, base, conditions))
    last = min(last, *(cap for cap in caps if cap is not None))
    share = conditions.cores / conditions.ranks
    per_core = {math.floor(share * part) for part in (0.5, 1, 2)}  # which people ask for
    return tuple(sorted({*spread_workers(last), *(c for c in per_core if 0 < c <= last)}))


def most_workers(calibration: Calibration, base: Config, conditions: Conditions) -> int:
    """Workers beyond which nothing is to be gained: twice the cores, or more where batches wait."""
    by_cores = math.ceil(2 * conditions.cores / conditions.ranks)
    saturating = saturating_workers(calibration, base, conditions)
    return min(at.MOST_WORKERS, max(by_cores, math.ceil(1.5 * saturating)))  # some idle


def saturating_workers(calibration: Calibration, base: Config, conditions: Conditions) -> float:
    """Workers at which, by the closed form, something else than workers becomes the limit."""
    from dlprof.model.bounds import bounds, cell_of

    one = dataclasses.replace(base, num_workers=1, prefetch_factor=2).canonical()
    found = bounds(cell_of(calibration, one, conditions))
    others = min(rate for name, rate in found.items() if name != "workers")
    each = found["workers"]
    if not (math.isfinite(others) and math.isfinite(each) and each > 0):
        return 1.0
    return max(1.0, others / each)


def rule_configs(situation: Situation) -> dict[str, Config | None]:
    """The configuration that each rule names; ``None`` where it says nothing."""
    target, ranks = situation.run.header.target, situation.constraints.ranks
    said = workers_by_rule(situation.machine, target, ranks)
    size = situation.calibration.batch_size if situation.by_model else None
    return {
        name: None if count is None else Config(num_workers=count, batch_size=size).canonical()
        for name, count in said.items()
    }


def workers_by_rule(machine: Machine, target: Target, ranks: int) -> dict[str, int | None]:
    """``num_workers`` by each rule; ``None`` where a rule says nothing."""
    cores, affinity, gpus = machine.logical_cpus, machine.affinity_cpus, len(machine.gpus)
    batch = 8 if target.batch_size is None else target.batch_size if target.batch_size > 1 else 0
    return {
        "PyTorch's default": 0,
        "num_workers = cores": cores,
        "4 x GPUs": 4 * gpus if gpus else None,
        "Lightning: max(1, cores // ranks - 1)": max(1, affinity // ranks - 1),
        "YOLOv5: min(cores // ranks, batch, 8)": min(cores // ranks, batch, 8),
        "torch's suggested maximum": affinity,
    }
