"""Which configurations are predicted."""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Iterable, Mapping, Sequence

from dlprof.advise.situation import Situation, usable_calibration
from dlprof.advise.wrong_data import present_of
from dlprof.errors import NothingMeasuredError, UsageError
from dlprof.model import Conditions, bounds, cell_of, spread_workers
from dlprof.records import DATA_FAULTS, Calibration, Config, Integrity, Run

MOST_CELLS = 10_000
_MOST_WORKERS = 128
_LEAST = 8
"""Workers predicted at least."""

_BEYOND = 1.5
"""More workers than would saturate everything else: batches that vary keep some of them idle."""

_PREFETCH = (2, 4)
_PREFETCH_OF_BURSTS = (2, 4, 8)
_BURSTS = 0.5
"""Coefficient of variation of a batch's cost from which deeper queues are worth a look."""

_OWN = ("pin_memory", "in_order", "start_method", "sharing_strategy", "worker_threads")


def base_config(run: Run) -> Config:
    """The settings that stay as they are where none is asked for: recommended, explained or own."""
    found = run.recommendation.config if run.recommendation is not None else present_of(run)
    size = run.calibration.batch_size if run.calibration is not None else None
    kept = {} if found is None else {name: getattr(found, name) for name in _OWN}
    return Config(num_workers=1, batch_size=size, **kept).canonical()


def wanted_configs(
    run: Run, situation: Situation, axes: Mapping[str, Sequence[object]]
) -> tuple[Config, ...]:
    """The configurations that a user asks for, sensible values where he names none.

    Args:
        run: That holds a calibration.
        situation: Where they are to run.
        axes: Values by setting, as far as he named them.

    Raises:
        UsageError: There is no calibration, there are more than ``MOST_CELLS``, or he names what
            the target can't be set to.
    """
    calibration = usable_calibration(run)
    base = base_config(run)
    depths = {"prefetch_factor": auto_prefetch(calibration)}
    if "num_workers" in axes:
        return attainable(run, configs_of(base, {**depths, **axes}), axes)
    shallow = configs_of(base, {name: axes[name][:1] for name in axes if name != "prefetch_factor"})
    workers = auto_workers(calibration, shallow[0], situation.conditions)
    made = attainable(run, configs_of(base, {"num_workers": workers, **depths, **axes}), axes)
    if axes or not situation.as_measured:
        return made
    sizes = {None, calibration.batch_size}
    measured = {trial.config for trial in run.completed if trial.config.batch_size in sizes}
    return tuple(sorted({*made, *measured}, key=lambda config: config.cost_key))


def candidate_configs(run: Run, situation: Situation) -> tuple[Config, ...]:
    """What is worth predicting of all settings, PyTorch's default and the present ones among them.

    Raises:
        NothingMeasuredError: The data of all of them is wrong.
        UsageError: There is no calibration.
    """
    calibration, base = usable_calibration(run), base_config(run)
    most = situation.constraints.max_workers
    axes = {
        "num_workers": auto_workers(calibration, base, situation.conditions, most),
        "prefetch_factor": auto_prefetch(calibration),
        "persistent_workers": (False, True),
    }
    plain, present = Config(batch_size=calibration.batch_size), situation.present
    configs = {*attainable(run, [*configs_of(base, axes), plain], {})}
    if present is not None and present.batch_size in {None, calibration.batch_size}:
        configs.add(present)
    return useful(run, configs)


def attainable(
    run: Run, configs: Iterable[Config], axes: Mapping[str, Sequence[object]]
) -> tuple[Config, ...]:
    """Configurations with what the target can't be set to as it has it, distinct.

    Args:
        run: Whose target it is.
        configs: What is wanted.
        axes: Values by setting, as far as the user named them.

    Raises:
        UsageError: The target can have none of the values that he named of a setting.
    """
    header = run.header
    accelerated = header.accelerator is not None
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
    """All combinations of some settings, the rest as in ``base``; canonical and distinct.

    Raises:
        UsageError: There are more than ``MOST_CELLS``.
    """
    count = math.prod(len(values) for values in axes.values())
    if count > MOST_CELLS:
        raise UsageError(
            f"The settings make {count:,} combinations, and the most is {MOST_CELLS:,}",
            hint="Name fewer values.",
        )
    made = (
        dataclasses.replace(base, **dict(zip(axes, values, strict=True))).canonical()  # type: ignore[arg-type] # fields by name
        for values in itertools.product(*axes.values())
    )
    return tuple(sorted(set(made), key=lambda config: config.cost_key))


def useful(run: Run, configs: Iterable[Config]) -> tuple[Config, ...]:
    """Those of some configurations whose data is right, and that feed all of their workers.

    Raises:
        NothingMeasuredError: There are none.
    """
    found, wanted = Integrity.of(run), tuple(configs)
    kept = tuple(c for c in wanted if not found.is_useless(c) and not found.is_unproven(c))
    if kept or not wanted:
        return kept
    fault = next((each for each in map(found.fault, wanted) if each is not None), None)
    if fault is not None:
        what = "whose data is wrong" if fault.kind in DATA_FAULTS else "that fail"
        claim, hint = f"No rate can be predicted of settings {what}: {fault.message}", fault.hint
    elif found.refused:
        claim = (
            f"With more than {found.worked} workers the dataset may raise, as it does with "
            f"{min(found.refused)}, so nothing is predicted for them"
        )
        hint = "Measure them: dlprof sweep with --num-workers."
    else:
        claim = f"More than {found.fed} workers get no data, so nothing is predicted for them"
        hint = f"Ask for num_workers={found.fed} or fewer."
    raise NothingMeasuredError(claim, hint=hint)


def auto_prefetch(calibration: Calibration) -> tuple[int, ...]:
    """Torch's default and twice it; deeper still where batches come in bursts."""
    return _PREFETCH_OF_BURSTS if (calibration.cpu_cv or 0.0) > _BURSTS else _PREFETCH


def auto_workers(
    calibration: Calibration, base: Config, conditions: Conditions, most: int | None = None
) -> tuple[int, ...]:
    """Those of ``spread_workers`` to where more workers can't gain.

    That is twice the cores of a rank, or more where batches wait; no more than an epoch's batches.

    Args:
        calibration: What batches cost.
        base: The other settings.
        conditions: Where they run.
        most: At most so many.
    """
    # Workers beyond an epoch's batches have nothing to load.
    caps = (_MOST_WORKERS, most, conditions.epoch_batches)
    last = max(_LEAST, most_workers(calibration, base, conditions))
    last = min(last, *(cap for cap in caps if cap is not None))
    share = conditions.cores / conditions.ranks
    per_core = {math.floor(share * part) for part in (0.5, 1, 2)}  # which people ask for
    return tuple(sorted({*spread_workers(last), *(c for c in per_core if 0 < c <= last)}))


def most_workers(calibration: Calibration, base: Config, conditions: Conditions) -> int:
    """Workers beyond which nothing is to be gained: twice the cores, or more where batches wait."""
    by_cores = math.ceil(2 * conditions.cores / conditions.ranks)
    saturating = saturating_workers(calibration, base, conditions)
    return min(_MOST_WORKERS, max(by_cores, math.ceil(_BEYOND * saturating)))


def saturating_workers(calibration: Calibration, base: Config, conditions: Conditions) -> float:
    """Workers at which, by the closed form, something else than workers becomes the limit."""
    one = dataclasses.replace(base, num_workers=1, prefetch_factor=2).canonical()
    found = bounds(cell_of(calibration, one, conditions))
    others = min(rate for name, rate in found.items() if name != "workers")
    each = found["workers"]
    if not (math.isfinite(others) and math.isfinite(each) and each > 0):
        return 1.0
    return max(1.0, others / each)
