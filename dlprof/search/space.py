"""Which configurations are worth measuring here, and the one that a command explains."""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Callable, Iterable, Sequence

from dlprof.errors import UsageError
from dlprof.model import spread_workers
from dlprof.records import Config, LeftOut, Machine, Target
from dlprof.search.exclusions import cant_be_set, excluded, explain, pin_hazard
from dlprof.search.plan import OF_WORKERS
from dlprof.settings import MAX_CONFIGS, SweepSettings, by_key

AUTO_PREFETCH_FACTORS = (2, 4)
"""Torch's default and twice it; deeper queues help only against bursts."""

PREDICTED_PREFETCH_FACTORS = (2, 4, 8)
"""What costs nothing to predict. Not 1: with a consumer as quick as the one that is measured it
often gives as much, but it leaves a training step that varies nothing to live on."""

_PREDICTED_WORKERS = 32
"""So many at least are predicted on any machine: loaders that wait on storage gain by them."""

_OVERSUBSCRIBED_WORKERS = 64
"""Four workers per core are tried up to this many; beyond, twice the cores has to show it."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Space:
    """What a sweep measures, and what it does not.

    Attributes:
        configs: Canonical, distinct, in a stable order (``Config.cost_key``).
        left_out: One entry for each kind of reason.
    """

    configs: tuple[Config, ...]
    left_out: tuple[LeftOut, ...]


def build_space(
    settings: SweepSettings,
    target: Target,
    machine: Machine,
    *,
    has_accelerator: bool,
) -> Space:
    """Every configuration that the settings allow and that can differ on this machine.

    PyTorch's own default, ``num_workers=0``, is always among them as the reference, unless the
    user named ``num_workers`` without it; so are the target's present settings, unless the user
    named ``num_workers`` or ``batch_size``, or they don't keep within the limits.

    Args:
        settings: What the user asked for; ``None`` for an axis lets this function choose.
        target: What is loaded.
        machine: Where.
        has_accelerator: Whether there is a device that host memory can be pinned for.

    Raises:
        UsageError: If nothing is left, or there are more than ``MAX_CONFIGS``.
    """
    wanted, pin_left_out = _wanted(settings, target, machine, has_accelerator=has_accelerator)
    present = target.present_settings(has_accelerator=has_accelerator)
    # What the user leaves out of a range that he names, he does not want measured.
    if present is not None and settings.num_workers is None and settings.batch_size is None:
        wanted.append(present)
    wanted, fixed_left_out = _attainable(wanted, settings, target, has_accelerator=has_accelerator)
    given = {_canonical(config) for config in wanted}
    left: dict[str, list[tuple[Config, str]]] = {}
    kept = []
    for config in sorted(given, key=lambda config: config.cost_key):
        if (found := excluded(config, settings, target)) is None:
            kept.append(config)
        else:
            left.setdefault(found[0], []).append((config, found[1]))
    left_out = [*pin_left_out, *fixed_left_out, *_merged(wanted, settings)]
    left_out += [explain(rows, kept) for rows in left.values()]
    if not kept:
        reasons = "; ".join(f"{each.setting}: {each.reason}" for each in left_out)
        raise UsageError(
            f"No configuration is left to measure ({reasons})",
            hint="Widen the settings that are swept, or the limits.",
        )
    return Space(configs=tuple(kept), left_out=tuple(left_out))


def build_cells(
    settings: SweepSettings, target: Target, machine: Machine, *, has_accelerator: bool
) -> tuple[Config, ...]:
    """Every configuration that a model is to predict: a finer net than what is worth measuring.

    Where the user names values, it is those; all that ``build_space`` holds is among them.

    Args:
        settings: What the user asked for.
        target: What is loaded.
        machine: Where.
        has_accelerator: Whether there is a device that host memory can be pinned for.

    Raises:
        UsageError: As ``build_space`` does.
    """
    space = build_space(settings, target, machine, has_accelerator=has_accelerator)
    most = max(_PREDICTED_WORKERS, *(config.num_workers for config in space.configs))
    finer = dataclasses.replace(
        settings,
        num_workers=settings.num_workers or spread_workers(most),
        prefetch_factor=settings.prefetch_factor or PREDICTED_PREFETCH_FACTORS,
    )
    wanted, _ = _wanted(finer, target, machine, has_accelerator=has_accelerator)
    wanted, _ = _attainable(wanted, settings, target, has_accelerator=has_accelerator)
    cells = {_canonical(config) for config in wanted if excluded(config, settings, target) is None}
    return tuple(sorted(cells.union(space.configs), key=lambda config: config.cost_key))


def single_config(settings: SweepSettings, target: Target, *, has_accelerator: bool) -> Config:
    """The target's present settings with what the options name changed, for a single one.

    A target without settings of its own has PyTorch's defaults.

    Args:
        settings: What the user asked for; each swept setting at one value, or ``None``.
        target: What is loaded.
        has_accelerator: Whether there is a device that host memory can be pinned for.

    Returns:
        The configuration, canonical.

    Raises:
        UsageError: A setting is given several values.
    """
    config = target.present_settings(has_accelerator=has_accelerator) or Config()
    changes = {}
    for field in dataclasses.fields(Config):
        values = getattr(settings, field.name)
        if values is None:
            continue
        if len(values) > 1:
            flag = by_key()[field.name].flag
            raise UsageError(
                f"{flag} has {len(values)} values, and this command loads one configuration",
                hint="Give one value, or use dlprof sweep to compare several.",
            )
        changes[field.name] = values[0]
    config = dataclasses.replace(config, **changes).canonical()
    kept = target.attainable(config, has_accelerator=has_accelerator)
    for name, value in changes.items():
        if getattr(kept, name) != getattr(config, name):
            raise cant_be_set(name, [value], target.fixed[name])
    return kept


def auto_workers(usable_cores: float) -> tuple[int, ...]:
    """The ``num_workers`` to try where the user names none.

    Few, the powers of two up to the number of cores, the cores themselves and half of them for
    loaders that compute; 8 and more workers than cores for loaders that wait on storage, where
    8 workers on 2 cores were measured at 3.4 to 4 times of what 2 gave.
    """
    values = {0, 1, 2, 8}
    values.update(1 << power for power in range(int(math.log2(max(1.0, usable_cores))) + 1))
    values.update(math.floor(usable_cores * part + 0.5) for part in (0.5, 1, 1.5, 2))
    most = math.floor(usable_cores * 4 + 0.5)
    if most <= _OVERSUBSCRIBED_WORKERS:
        values.add(most)
    return tuple(sorted(values))


def _pins(
    settings: SweepSettings, machine: Machine, *, has_accelerator: bool
) -> tuple[tuple[bool, ...], list[LeftOut]]:
    """The values of ``pin_memory``; without an accelerator only ``False`` means anything.

    Nor is it tried unasked where memory is short: pinned memory can't be swapped out.
    """
    asked = settings.pin_memory or (False, True)
    reason = None if settings.pin_memory else pin_hazard(machine)
    if not has_accelerator:
        reason = (
            "there is no accelerator, so torch pins nothing and it would equal pin_memory=False"
        )
    if reason is None or True not in asked:
        return asked, []
    return (False,), [LeftOut(setting="pin_memory=True", reason=reason)]


def _wanted(
    settings: SweepSettings, target: Target, machine: Machine, *, has_accelerator: bool
) -> tuple[list[Config], list[LeftOut]]:
    """All combinations as asked for, illegal and equal ones among them, and what pinning isn't."""
    workers, most = settings.num_workers, settings.max_workers
    if workers is None:
        workers = auto_workers(machine.usable_cores)
        if most is not None and most < max(workers):
            workers = tuple(sorted({*workers, most}))
    pins, left_out = _pins(settings, machine, has_accelerator=has_accelerator)
    own = target.own_config
    axes: dict[str, tuple[object, ...]] = {
        "num_workers": workers,
        "prefetch_factor": settings.prefetch_factor or AUTO_PREFETCH_FACTORS,
        "pin_memory": pins,
        "persistent_workers": settings.persistent_workers or (False, True),
        "batch_size": settings.batch_size or (None,),
        "in_order": settings.in_order or (own is None or own.in_order,),
        "start_method": settings.start_method or (None,),
        "sharing_strategy": settings.sharing_strategy or (None,),
        "worker_threads": settings.worker_threads or (None,),
    }
    count = math.prod(len(values) for values in axes.values())
    if count > MAX_CONFIGS:
        raise UsageError(
            f"The settings make {count:,} combinations, and the most is {MAX_CONFIGS:,}",
            hint="Name fewer values of num_workers or of the other swept settings.",
        )
    make: Callable[..., Config] = Config
    combined = itertools.product(*axes.values())
    return [make(**dict(zip(axes, each, strict=True))) for each in combined], left_out


def _attainable(
    wanted: Sequence[Config], settings: SweepSettings, target: Target, *, has_accelerator: bool
) -> tuple[list[Config], list[LeftOut]]:
    """What can be set of what is wanted, and for each reason which settings stay as they are.

    Raises:
        UsageError: The user named values of a setting, none of which the target can have.
    """
    kept = [target.attainable(each, has_accelerator=has_accelerator) for each in wanted]
    names: dict[str, list[str]] = {}
    for name, reason in target.fixed.items():
        pairs = [
            (getattr(asked.canonical(), name), getattr(own, name))
            for asked, own in zip(wanted, kept, strict=True)
            if own.num_workers or name not in OF_WORKERS
        ]
        if all(asked == own for asked, own in pairs):
            continue
        named = getattr(settings, name)
        if named is not None and not {own for _, own in pairs}.intersection(named):
            raise cant_be_set(name, named, reason)
        names.setdefault(reason, []).append(name)
    return kept, [LeftOut(setting=", ".join(each), reason=reason) for reason, each in names.items()]


def _canonical(config: Config) -> Config:
    """Canonical, but for a ``prefetch_factor`` of 0 with workers, which is to be left out."""
    if config.num_workers and config.prefetch_factor == 0:
        return config
    return config.canonical()


def _merged(wanted: Iterable[Config], settings: SweepSettings) -> list[LeftOut]:
    """Says so where the user's own values can't be combined with ``num_workers=0``."""
    named = {
        "prefetch_factor": settings.prefetch_factor is not None,
        "persistent_workers=True": settings.persistent_workers == (True,),
        "in_order=False": settings.in_order == (False,),
        "start_method": settings.start_method is not None,
        "sharing_strategy": settings.sharing_strategy is not None,
        "worker_threads": settings.worker_threads is not None,
    }
    names = [name for name, is_named in named.items() if is_named]
    if not names or all(config.num_workers for config in wanted):
        return []
    reason = "they only mean something with workers, so num_workers=0 is measured without them"
    return [LeftOut(setting=f"num_workers=0 with {', '.join(names)}", reason=reason)]
