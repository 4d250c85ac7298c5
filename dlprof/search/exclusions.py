"""Why a configuration is not worth measuring.

What would be worth it but can't work here is no matter of this module: that is known only once the
target has been probed, and is kept as a skipped trial (``dlprof/engine/preflight.py``).
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence

from dlprof.errors import UsageError
from dlprof.records import Config, Integrity, LeftOut, Plan, Target, Trial
from dlprof.settings import SweepSettings, by_key

_TARGETS_OWN = ("target_error", "worker_exception", "truncated")
_ENOUGH = 3


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """What configurations are held against.

    Attributes:
        max_workers: The user's limit.
        length: Samples in an epoch.
        batches_per_epoch: At the target's own batch size; ``None`` where it isn't known, or
            where the user named ``num_workers`` and is to be believed.
    """

    max_workers: int | None
    length: int | None
    batches_per_epoch: int | None

    @classmethod
    def of(cls, settings: SweepSettings, target: Target) -> Limits:
        """The limits of this sweep."""
        auto = settings.num_workers is None
        return cls(
            max_workers=settings.max_workers,
            length=target.length if auto else None,
            batches_per_epoch=target.batches_per_epoch if auto else None,
        )


def excluded(config: Config, limits: Limits) -> tuple[str, str] | None:
    """The kind of reason and the reason to leave a configuration out; ``None`` to keep it."""
    checks = {
        "prefetch": _prefetch(config),
        "max_workers": _max_workers(config, limits),
        "epoch": _epoch(config, limits),
    }
    return next(((kind, reason) for kind, reason in checks.items() if reason), None)


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
        configs=tuple(
            each for each in plan.configs if each == plan.present or not found.is_useless(each)
        ),
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


def _prefetch(config: Config) -> str | None:
    if config.num_workers and config.prefetch_factor == 0:
        return "torch refuses prefetch_factor=0 with workers"
    return None


def _max_workers(config: Config, limits: Limits) -> str | None:
    if limits.max_workers is not None and config.num_workers > limits.max_workers:
        return f"max_workers is {limits.max_workers}"
    return None


def _epoch(config: Config, limits: Limits) -> str | None:
    batches = limits.batches_per_epoch
    if config.batch_size is not None and limits.length is not None:
        batches = math.ceil(limits.length / config.batch_size)
    if batches is None or config.num_workers <= max(1, batches):
        return None
    return f"an epoch has {batches} batches, and workers beyond that have nothing to load"
