"""Why a configuration is not worth measuring.

What would be worth it but can't work here is no matter of this module: that is known only once the
target has been probed, and is kept as a skipped trial (``dlprof/engine/preflight.py``).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from dlprof.errors import UsageError
from dlprof.records import Config, Integrity, LeftOut, Machine, Plan, Target, Trial
from dlprof.settings import SweepSettings, by_key
from dlprof.units import format_bytes

_TARGETS_OWN = ("target_error", "worker_exception", "truncated")
_ENOUGH = 3

_SHORT = 0.1
"""A machine with less than this share of its memory to be had has none to lock."""

_TIGHT = 0.25
_SWAPPED = 0.02
"""Swap in use beyond this share of the memory, while little is to be had, means that it swaps. With
plenty to be had, it is what was swapped out once and nobody needed again."""


def excluded(config: Config, settings: SweepSettings, target: Target) -> tuple[str, str] | None:
    """The kind of reason and the reason to leave a configuration out; ``None`` to keep it."""
    workers, most = config.num_workers, settings.max_workers
    if workers and config.prefetch_factor == 0:
        return "prefetch", "torch refuses prefetch_factor=0 with workers"
    if most is not None and workers > most:
        return "max_workers", f"max_workers is {most}"
    batches = target.epoch_batches(config.batch_size)
    named = settings.num_workers is not None  # by the user, who is to be believed
    if named or batches is None or workers <= max(1, batches):
        return None
    why = f"an epoch has {batches} batches, and workers beyond that have nothing to load"
    return "epoch", why


def explain(rows: Sequence[tuple[Config, str]], kept: Sequence[Config]) -> LeftOut:
    """One entry for all configurations left out for one kind of reason.

    Args:
        rows: Configurations and reasons, cheapest first; the first one's reason is given.
        kept: What is measured: values of ``num_workers`` among them are told apart further.
    """
    measured = {config.num_workers for config in kept}
    whole = sorted({config.num_workers for config, _ in rows} - measured)
    partly = sorted(
        {(c.num_workers, c.prefetch_factor or 0) for c, _ in rows if c.num_workers in measured}
    )
    names = [f"num_workers={', '.join(map(str, whole))}"] if whole else []
    names += [f"num_workers={w} with prefetch_factor={p}" for w, p in partly]
    return LeftOut(setting="; ".join(names), reason=rows[0][1])


def cant_be_set(name: str, values: Sequence[object], reason: str) -> UsageError:
    """The error for values that the user named of a setting which the target fixes.

    Args:
        name: The setting.
        values: What he asked for.
        reason: See ``Target.fixed``.
    """
    return UsageError(
        f"{name}={', '.join(map(str, values))} can't be measured: {reason}",
        hint=f"Leave {by_key()[name].flag} out, or have the target take {name}.",
    )


def pin_hazard(machine: Machine) -> str | None:
    """Why ``pin_memory=True`` is not tried on a machine as it is now; ``None`` where it can be.

    Args:
        machine: With its memory, swap and limits of this moment.
    """
    sizes = (machine.memory_limit_bytes, machine.memory_bytes)
    size = min((each for each in sizes if each is not None), default=None)
    free = machine.memory_available_bytes
    if size is None or free is None:
        return None
    had = f"{format_bytes(free)} of {format_bytes(size)} memory is available"
    if free < _SHORT * size:
        return f"only {had}, and pinned memory can't be swapped out"
    swapped = machine.swap_used_bytes or 0
    if swapped > _SWAPPED * size and free < _TIGHT * size:
        used = format_bytes(swapped)
        return f"the machine swaps ({used} swapped out, {had}), and pinned memory can't be"
    return None


def still_useful(plan: Plan, found: Integrity) -> Plan:
    """The plan without what gives wrong data, fails, or has more workers than are fed.

    The present settings are still measured while they work, as every gain is compared with them,
    but no longer predicted: a model knows of no worker that idles.
    """
    if plan.present is not None and found.fault(plan.present) is not None:
        plan = dataclasses.replace(plan, present=None)

    def kept(configs: Sequence[Config]) -> tuple[Config, ...]:
        return tuple(each for each in configs if not found.is_useless(each))

    return dataclasses.replace(
        plan,
        configs=tuple(c for c in plan.configs if c == plan.present or not found.is_useless(c)),
        calibration=kept(plan.calibration),
        cells=kept(plan.cells),
    )


def fails_everywhere(trials: Sequence[Trial], configs: Sequence[Config]) -> bool:
    """Whether the target's own code raises, or ends early, whatever the settings.

    Without workers and with.

    A few trials that all end so are enough: the rest would only raise the same. Not where batches
    of several sizes are planned, of which some may be too large.

    Args:
        trials: All so far.
        configs: What is planned.
    """
    if len({config.batch_size for config in configs}) > 1:
        return False
    run = [trial for trial in trials if trial.outcome != "skipped"]
    raised = [t for t in run if t.failure is not None and t.failure.kind in _TARGETS_OWN]
    fed = {trial.config.num_workers > 0 for trial in raised}
    return len(fed) > 1 and len(raised) == len(run) >= _ENOUGH
