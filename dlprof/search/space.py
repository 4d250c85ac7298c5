"""Which configurations are worth measuring here, why others are not, and what a budget holds.

What would be worth it but can't work here is no matter of this module: that is known only once the
target has been probed, and is kept as a skipped trial (``dlprof/engine/preflight.py``).
"""

from __future__ import annotations

import bisect
import dataclasses
import itertools
import math
from collections.abc import Callable, Iterable, Sequence

from dlprof.errors import UsageError
from dlprof.model.predict import spread_workers
from dlprof.records import Config, Integrity, LeftOut, Machine, Plan, Target, Trial, TrialCost
from dlprof.settings import MAX_CONFIGS, SweepSettings, by_key
from dlprof.settings.model import needs_workers
from dlprof.units import counted, format_bytes, format_duration

SHORTEST_TRIAL_S = 0.3  # shorter windows hold too few batches for an interval of their own

LONGEST_TRIAL_S = 3.0
"""Longer ones don't help: drift between trials is the larger part, which only repeats even out."""

DEFAULT_OVERHEAD_S = 0.3
"""What a trial costs beside its batches: a process forked with torch loaded, workers started twice,
memory read, figures sent back."""

MIN_REPEATS = 2


FEW = 6  # so many configurations are measured as quickly as they are calibrated and verified

LEAST_CONFIGS = 3
"""The few that any sweep sets out to measure: no workers, some and the most. One configuration,
however often it is measured, recommends nothing; and trials may cost less than expected."""

_AXES = (
    "batch_size", "in_order", "start_method", "sharing_strategy", "worker_threads", "pin_memory",
    "persistent_workers", "prefetch_factor",
)  # fmt: skip
"""Settings beside ``num_workers``, those that are swept only on request first."""

OF_WORKERS = frozenset(_AXES) - {"batch_size", "pin_memory"}
"""Settings that mean nothing at ``num_workers=0``."""


def plan_trials(
    configs: Sequence[Config],
    settings: SweepSettings,
    cost: TrialCost,
    *,
    spent_s: float = 0.0,
    present: Config | None = None,
) -> tuple[Plan, tuple[LeftOut, ...]]:
    """Fit the trials into the budget.

    All configurations are measured once, and about a third of them, three at least, again in each
    later block. Trials are as long as that allows for three blocks, between ``SHORTEST_TRIAL_S``
    and ``LONGEST_TRIAL_S``. Where one block of the shortest doesn't fit, or the repeats that the
    user asks for don't, the least important configurations are left out (see ``by_importance``),
    down to ``LEAST_CONFIGS``. Where only the repeats of an automatic search don't, the search
    itself finds out how many configurations there is time for.
    """
    budget_s = settings.budget_s - spent_s
    shortest_s = settings.trial_s or SHORTEST_TRIAL_S
    present = present if present in configs else None
    ordered = by_importance(configs, present)
    single_s = cost.of(ordered[0], shortest_s)
    slow = f", as {format_duration(cost.overhead_s)} pass before a first batch"
    slow = slow if 2 * cost.overhead_s > single_s and cost.overhead_s > shortest_s else ""
    if single_s > budget_s:
        needed_s = spent_s + _total_s(ordered[:3], MIN_REPEATS, cost, shortest_s)
        takes = f"about {format_duration(spent_s + single_s)} with all before it{slow}"
        raise _too_little(settings, takes, needed_s)
    blocks = settings.repeats or 1
    held = bisect.bisect_right(
        range(1, len(ordered) + 1),
        budget_s,
        key=lambda count: _total_s(ordered[:count], blocks, cost, shortest_s),
    )
    chosen = ordered[: max(held, LEAST_CONFIGS)]
    # Blocks that the length of a trial is planned for.
    planned = settings.repeats or 3
    lengths_s = (
        SHORTEST_TRIAL_S + (LONGEST_TRIAL_S - SHORTEST_TRIAL_S) * step / 100
        for step in range(100, 0, -1)
    )
    fitting_s = (s for s in lengths_s if _total_s(chosen, planned, cost, s) <= budget_s)
    # Blocks where the user names no number: two to see drift at all, and eight because the
    # interval then shrinks by less than 7 % with each further one.
    plan = Plan(
        configs=tuple(sorted(chosen, key=lambda config: config.cost_key)),
        trial_s=settings.trial_s or next(fitting_s, SHORTEST_TRIAL_S),
        min_repeats=settings.repeats or MIN_REPEATS,
        max_repeats=settings.repeats or 8,
        planned_repeats=planned,
        take_turns=settings.repeats is None,
        cost=cost,
        present=present,
    )
    if len(chosen) == len(configs):
        return plan, ()
    needed_s = spent_s + _total_s(ordered, settings.repeats or MIN_REPEATS, cost, shortest_s)
    reason = (
        f"a budget of {format_duration(settings.budget_s)} holds {len(chosen)} at most, the most"
        f" informative ones; all need about {format_duration(math.ceil(needed_s))}{slow}"
    )
    setting = f"{len(configs) - len(chosen)} of {len(configs)} configurations"
    return plan, (LeftOut(setting=setting, reason=reason),)


def refuse_budget(settings: SweepSettings, spent_s: float = 0.0) -> None:
    """Refuse a budget that can't hold a trial whatever the target, as soon as that is known."""
    # A step passes as the trial warms up, and one as it measures.
    steps_s = 2 * (settings.step_s or 0.0)
    shortest_s = max(settings.trial_s or SHORTEST_TRIAL_S, steps_s)
    least_s = TrialCost(overhead_s=DEFAULT_OVERHEAD_S).of(Config(), shortest_s)
    if least_s > settings.budget_s - spent_s:
        before = " with all before it" if spent_s else ""
        takes = f"{format_duration(spent_s + least_s)} at least{before}"
        if shortest_s == steps_s:
            takes += f", as two steps pass in it of {format_duration(steps_s / 2)} each"
        raise _too_little(settings, takes, spent_s + 10 * least_s)


def _too_little(settings: SweepSettings, takes: str, enough_s: float) -> UsageError:
    budget, enough = format_duration(settings.budget_s), format_duration(math.ceil(enough_s))
    return UsageError(
        f"A budget of {budget} can't hold a single trial, which takes {takes}",
        hint=f"Give a budget of {enough} or more.",
    )


def _total_s(configs: Sequence[Config], repeats: int, cost: TrialCost, trial_s: float) -> float:
    """Expected cost of a whole sweep, most configurations ruled out after their first trial."""
    first_s, count = math.fsum(cost.of(config, trial_s) for config in configs), len(configs)
    return first_s * (1 + (repeats - 1) * expected_survivors(count) / count)


def by_importance(configs: Sequence[Config], present: Config | None = None) -> list[Config]:
    """Configurations in the order in which a short budget should take them.

    First the present settings, which every gain is over; then every ``num_workers`` with
    everything else at its plainest (``prefetch_factor=2``, not pinned, workers not kept), the
    range halved again and again so that any first few span it; then those that differ from that
    in one setting, then in two, and so on.
    """
    others = [config for config in configs if config != present] or configs
    places = {w: place for place, w in enumerate(_coarse_first({c.num_workers for c in others}))}
    # What stands for "nothing special" of each setting.
    cheapest = min(others, key=lambda config: (not config.num_workers, config.cost_key))
    plainest = {axis: getattr(cheapest, axis) for axis in _AXES}
    if any(config.num_workers and config.prefetch_factor == 2 for config in others):
        plainest["prefetch_factor"] = 2

    def importance(config: Config) -> tuple[object, ...]:
        differs = tuple(
            place
            for place, axis in enumerate(_AXES)
            if config.num_workers or axis not in OF_WORKERS
            if getattr(config, axis) != plainest[axis]
        )
        place = places.get(config.num_workers, 0)
        return config != present, len(differs), differs, place, config.cost_key

    return sorted(configs, key=importance)


def asked_values(
    configs: Sequence[Config], settings: SweepSettings, present: Config | None = None
) -> tuple[Config, ...]:
    """For each value that the user named of a setting, the first of what has it by importance."""
    each = {field.name: getattr(settings, field.name) for field in dataclasses.fields(Config)}
    named = {name: values for name, values in each.items() if values is not None}
    found: dict[tuple[str, object], Config] = {}
    for config in by_importance(configs, present) if configs else ():
        for name, values in named.items():
            if (value := getattr(config, name)) in values:
                found.setdefault((name, value), config)
    return tuple(dict.fromkeys(found.values()))


def _coarse_first(values: set[int]) -> list[int]:
    """The smallest, the middle, the largest, then the middles of what lies between."""
    ordered = sorted(values)
    last = len(ordered) - 1
    places = [0, (last + 1) // 2, last]
    gaps = [(places[0], places[1]), (places[1], places[2])]
    while gaps:
        low, high = gaps.pop(0)
        if high - low > 1:
            middle = (low + high) // 2
            places.append(middle)
            gaps += [(low, middle), (middle, high)]
    return [ordered[place] for place in dict.fromkeys(places)]


def expected_survivors(configs: int) -> int:
    """How many of so many configurations the first block is expected to leave."""
    return max(min(configs, 3), math.ceil(configs / 3))


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Space:
    """What a sweep measures, and what it does not."""

    configs: tuple[Config, ...]  # canonical, distinct, in a stable order (``Config.cost_key``)
    left_out: tuple[LeftOut, ...]  # one entry for each kind of reason


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
    """
    wanted, pin_left_out = _wanted(settings, target, machine, has_accelerator=has_accelerator)
    present = target.present_settings(
        has_accelerator=has_accelerator, compares_starts=settings.start_method is not None
    )
    # What the user leaves out of a range that he names, he does not want measured.
    if present is not None and settings.num_workers is None and settings.batch_size is None:
        wanted.append(present)
    wanted, fixed_left_out = _attainable(wanted, settings, target, has_accelerator=has_accelerator)
    by_reason: dict[str | None, list[Config]] = {}
    for config in sorted({each.canonical() for each in wanted}, key=lambda each: each.cost_key):
        by_reason.setdefault(_excluded(config, settings, target, present), []).append(config)
    kept = by_reason.pop(None, [])
    left_out = [*pin_left_out, *fixed_left_out, *_merged(wanted, settings)]
    left_out += [_left_out(some, str(why), kept) for why, some in by_reason.items()]
    if not kept:
        reasons = "; ".join(f"{each.setting}: {each.reason}" for each in left_out)
        raise UsageError(
            f"No configuration is left to measure ({reasons})",
            hint="Widen the settings that are swept, or the limits.",
        )
    return Space(configs=tuple(kept), left_out=tuple(left_out))


def build_cells(
    settings: SweepSettings,
    target: Target,
    machine: Machine,
    *,
    has_accelerator: bool,
    most_workers: int,
) -> tuple[Config, ...]:
    """Every configuration that a model may predict: a finer net than what is worth measuring.

    It goes on to ``most_workers``: how many of them a loader gains by, its calibration shows. Where
    the user names values, it is those; all that ``build_space`` holds is among them.
    """
    space = build_space(settings, target, machine, has_accelerator=has_accelerator)
    # A fine net of so many at least, on any machine; of more, one that leaves these as they are.
    most = max(32, *(config.num_workers for config in space.configs))
    allowed, _ = _most_workers(settings, target)
    further = spread_workers(min(most_workers, most_workers if allowed is None else allowed))
    workers = {*spread_workers(most), *(count for count in further if count > most)}
    # Depths that cost nothing to predict. Not 1: with a consumer as quick as the one that is
    # measured it often gives as much, but it leaves a training step that varies nothing to live on.
    finer = dataclasses.replace(
        settings,
        num_workers=settings.num_workers or _even(workers, settings, target),
        prefetch_factor=settings.prefetch_factor or (2, 4, 8),
    )
    wanted, _ = _wanted(finer, target, machine, has_accelerator=has_accelerator)
    wanted, _ = _attainable(wanted, settings, target, has_accelerator=has_accelerator)
    cells = {each.canonical() for each in wanted if _excluded(each, settings, target) is None}
    return tuple(sorted(cells.union(space.configs), key=lambda config: config.cost_key))


def single_config(settings: SweepSettings, target: Target, *, has_accelerator: bool) -> Config:
    """The target's present settings with what the options name changed, for a single one.

    A target without settings of its own has PyTorch's defaults.
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
    """The ``num_workers`` to try where the user names none, of a rank that may use so many cores.

    Few, the powers of two up to the number of cores, the cores themselves and half of them for
    loaders that compute; 8 and more workers than cores for loaders that wait on storage, where
    8 workers on 2 cores were measured at 3.4 to 4 times of what 2 gave.
    """
    values = {0, 1, 2, 8}
    values.update(1 << power for power in range(int(math.log2(max(1.0, usable_cores))) + 1))
    values.update(math.floor(usable_cores * part + 0.5) for part in (0.5, 1, 1.5, 2))
    most = math.floor(usable_cores * 4 + 0.5)
    # Four workers per core are tried up to this many; beyond, twice the cores has to show it.
    if most <= 64:
        values.add(most)
    return tuple(sorted(values))


def _most_workers(settings: SweepSettings, target: Target) -> tuple[int | None, str]:
    """The most workers that are measured, and why no more are.

    More than shards would get no data, unless the user named them; as many as the target's own
    loader has are measured all the same.
    """
    most, own = settings.max_workers, target.own_config
    if target.shards is not None and settings.num_workers is None:
        fed = max(1, target.shards, 0 if own is None else own.num_workers)
        if most is None or fed < most:
            shards = counted(target.shards, "shard")
            return fed, f"more workers than the dataset's {shards} get no data"
    return most, f"max_workers is {most}"


def _even(workers: Iterable[int], settings: SweepSettings, target: Target) -> tuple[int, ...]:
    """The same without those of which some have more shards, and load alone in the end."""
    ranks = settings.launched
    return tuple(sorted({target.fewest_workers(each, ranks) for each in workers}))


def _wanted(
    settings: SweepSettings, target: Target, machine: Machine, *, has_accelerator: bool
) -> tuple[list[Config], list[LeftOut]]:
    """All combinations as asked for, illegal and equal ones among them, and what pinning isn't.

    Without an accelerator that torch pins for, only ``pin_memory=False`` means anything; nor is
    ``True`` tried unasked where memory is short: pinned memory can't be swapped out.
    """
    workers, (most, _) = settings.num_workers, _most_workers(settings, target)
    if workers is None:
        workers = auto_workers(machine.usable_cores / settings.launched)
        if most is not None and most < max(workers):
            workers = tuple(sorted({*workers, most}))
        workers = _even(workers, settings, target)
    pins, left_out = settings.pin_memory or (False, True), list[LeftOut]()
    unpinned = None if settings.pin_memory else pin_hazard(machine)
    if not has_accelerator:
        unpinned = "there is no accelerator that torch pins memory for, so it would equal "
        unpinned += "pin_memory=False"
    if unpinned is not None and True in pins:
        pins, left_out = (False,), [LeftOut(setting="pin_memory=True", reason=unpinned)]
    own = target.own_config
    if settings.persistent_workers is None and len(target.persisting) == 1:
        lost = "workers that end lose the samples that the dataset keeps in them"
        why = (target.against_persisting or lost).removesuffix(".")
        reason = f"measured only where it is named, as {why}"
        setting = f"persistent_workers={not target.persisting[0]}"
        left_out.append(LeftOut(setting=setting, reason=reason))
    # Torch's default and twice it; deeper queues help only against bursts.
    unnamed: dict[str, tuple[object, ...]] = {
        "prefetch_factor": (2, 4),
        "persistent_workers": target.persisting,
        "in_order": (own is None or own.in_order,),
    }
    names = [field.name for field in dataclasses.fields(Config)]
    axes = {name: getattr(settings, name) or unnamed.get(name, (None,)) for name in names}
    axes |= {"num_workers": workers, "pin_memory": pins}
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
    """What can be set of what is wanted, and for each reason which settings stay as they are."""
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


def _merged(wanted: Iterable[Config], settings: SweepSettings) -> list[LeftOut]:
    """Says so where the user's own values can't be combined with ``num_workers=0``."""
    given = [(name, getattr(settings, name)) for name in reversed(_AXES)]
    names = [
        f"{name}={values[0]}" if isinstance(values[0], bool) else name
        for name, values in given
        if values is not None and needs_workers(name, values)
    ]
    if not names or all(config.num_workers for config in wanted):
        return []
    reason = "they only mean something with workers, so num_workers=0 is measured without them"
    return [LeftOut(setting=f"num_workers=0 with {', '.join(names)}", reason=reason)]


def _excluded(
    config: Config, settings: SweepSettings, target: Target, present: Config | None = None
) -> str | None:
    """Why a configuration is left out; ``None`` to keep it."""
    workers, (most, why) = config.num_workers, _most_workers(settings, target)
    if most is not None and workers > most:
        return why
    batches = target.epoch_batches(config.batch_size)
    if batches is None:
        return None
    held = "1 batch" if batches == 1 else f"{batches} batches"
    # What the user named is measured, and what he has: every gain is over that.
    if settings.num_workers is None and config != present and workers > max(1, batches):
        return f"an epoch has {held}, and workers beyond that have nothing to load"
    shallower = (config.prefetch_factor or 0) // 2  # each depth that is tried unasked is twice one
    as_it_is = settings.prefetch_factor is not None or "prefetch_factor" in target.fixed
    # Of an iterable dataset one worker may have most of the batches.
    if as_it_is or config == present or shallower < 2 or target.kind != "map":
        return None
    if workers * shallower < batches:
        return None
    return f"an epoch has {held}, which prefetch_factor={shallower} asks for at once"


def _left_out(some: Sequence[Config], reason: str, kept: Sequence[Config]) -> LeftOut:
    """One entry for all configurations left out for one reason.

    Where as many workers are measured otherwise, it is the batch size that has too few batches;
    where they are at that size too, it is the depth.
    """
    measured = {config.num_workers for config in kept}
    sizes = {(config.num_workers, config.batch_size) for config in kept}
    counts: dict[str, set[int]] = {}
    for config in some:
        workers, size, what = config.num_workers, config.batch_size, ""
        if workers in measured:
            what = "" if size is None else f" with batch_size={size}"
        if (workers, size) in sizes:
            what = f" with prefetch_factor={config.prefetch_factor}" + what.replace("with", "and")
        counts.setdefault(what, set()).add(workers)
    names = (
        f"num_workers={', '.join(map(str, sorted(each)))}{what}"
        for what, each in sorted(counts.items())
    )
    return LeftOut(setting="; ".join(names), reason=reason)


def cant_be_set(name: str, values: Sequence[object], reason: str) -> UsageError:
    """The error for values that the user named of a setting which the target fixes."""
    return UsageError(
        f"{name}={', '.join(map(str, values))} can't be measured: {reason}",
        hint=f"Leave {by_key()[name].flag} out, or have the target take {name}.",
    )


def pin_hazard(machine: Machine) -> str | None:
    """Why ``pin_memory=True`` is not tried on a machine as it is now; ``None`` where it can be."""
    size, free = machine.memory_size_bytes, machine.memory_available_bytes
    if size is None or free is None:
        return None
    had = f"{format_bytes(free)} of {format_bytes(size)} memory is available"
    # A machine with less than this share of its memory available has none to lock.
    if free < 0.1 * size:
        return f"only {had}, and pinned memory can't be swapped out"
    swapped = machine.swap_used_bytes or 0
    # Swap in use beyond this share of the memory, while little is available, means that it
    # swaps. With plenty available, it is what was swapped out once and nobody needed again.
    if swapped > 0.02 * size and free < 0.25 * size:
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
    """Whether the target's own code raises, or ends early, without workers and with.

    A few trials that all end so are enough: the rest would only raise the same. Not where batches
    of several sizes are planned, of which some may be too large.
    """
    if len({config.batch_size for config in configs}) > 1:
        return False
    run = [trial for trial in trials if trial.outcome != "skipped"]
    kinds = {"target_error", "worker_exception", "truncated"}
    raised = [t for t in run if t.failure is not None and t.failure.kind in kinds]
    fed = {trial.config.num_workers > 0 for trial in raised}
    return len(fed) > 1 and len(raised) == len(run) >= 3
