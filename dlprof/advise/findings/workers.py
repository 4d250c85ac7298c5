"""What making a batch takes, and whether more workers would take their share of it."""

from __future__ import annotations

import dataclasses
import math

from dlprof.advise.findings.claims import Claim, Place, settings_fix
from dlprof.advise.findings.consumer import with_workers
from dlprof.advise.findings.costs import Costs, Work
from dlprof.advise.findings.gains import Gain, bound, closed_form, costs_for, gain_of
from dlprof.advise.findings.view import View
from dlprof.advise.findings.waiting import fits_shared_memory, lock
from dlprof.advise.findings.whole import competes, loop_gain
from dlprof.advise.wording import percent
from dlprof.records import Config, Fix, TransformCost
from dlprof.units import format_duration

MORE_PAY = "More workers would pay"
_PAYS = 1.1
_WORTH_TRYING = 1.05
_LARGE_SHARE = 0.3
_COLLATE_SHARE = 0.5
_HARDLY_BUSY, _HALF_BUSY = 0.35, 0.5
"""Workers that are busy for less hold nobody up, whatever they do: as they are, and beside a step,
which they could then feed at twice its speed."""

_MOST_WORKERS = 16
_PER_CORE = 4
"""Workers for each core beyond which no more are proposed, however much they wait."""

_FEWER, _AS_FAST = 1.15, 0.97
"""Steps in which numbers of workers are tried on a whole script, and the share of the best gain
that fewer are taken for: each of them costs memory and a start."""

_COLLATE_CODE = """def collate(samples):
    images, labels = zip(*samples)
    return torch.stack(images), torch.tensor(labels)

loader = DataLoader(dataset, collate_fn=collate, ...)"""


def fetch_cpu(view: View) -> Claim | None:
    """``__getitem__`` burns CPU."""
    costs = _making_costs(view)
    if costs is None or _share(costs.fetch.cpu_s, costs) < _LARGE_SHARE:
        return None
    if costs.fetch.cpu_s < max(costs.fetch.io_s, costs.collate.own_s):
        return None
    dearest = _dearest(view)
    name = dearest.name if dearest else "__getitem__"
    named = f" {dearest.name} takes {percent(dearest.share)} of that." if dearest else ""
    halved = dataclasses.replace(costs.fetch, cpu_s=costs.fetch.cpu_s / 2)
    return Claim(
        title="__getitem__ burns CPU",
        explanation=f"A batch's samples take {format_duration(costs.fetch.cpu_s)} of CPU, "
        f"{percent(_share(costs.fetch.cpu_s, costs))} of the time that making it takes.{named}",
        cost=_share(costs.fetch.cpu_s, costs) * (view.wait or 1.0),
        figures={
            "fetch_cpu_s": costs.fetch.cpu_s,
            "fetch_waiting_s": costs.fetch.io_s,
            "share": _share(costs.fetch.cpu_s, costs),
            "dearest_transform": dearest.name if dearest else None,
            "dearest_transform_share": dearest.share if dearest else None,
        },
        fix=Fix(
            text=f"Make {name} cheaper: resize before decoding in full, cache what comes out the "
            "same each epoch, move arithmetic on whole batches to the device. The gain stated is "
            "that of halving its CPU time."
        ),
        gain=_reckoned(view, costs, dataclasses.replace(costs, fetch=halved)),
    )


def fetch_io(view: View) -> Claim | None:
    """``__getitem__`` waits for storage or network."""
    costs = _making_costs(view)
    if costs is None or _share(costs.fetch.io_s, costs) < _LARGE_SHARE:
        return None
    if costs.fetch.io_s < max(costs.fetch.cpu_s, costs.collate.own_s):
        return None
    if lock(view) is not None:
        return None
    more = more_workers(view)
    gain = gain_of(view, more) if more is not None else None
    pays = more is not None and gain is not None and gain.value >= _WORTH_TRYING
    return Claim(
        title="__getitem__ waits for storage or network",
        explanation=f"A batch's samples wait {format_duration(costs.fetch.io_s)} without "
        f"using a core, {percent(_share(costs.fetch.io_s, costs))} of the time that making "
        "the batch takes.",
        cost=_share(costs.fetch.io_s, costs) * (view.wait or 1.0),
        figures={
            "fetch_waiting_s": costs.fetch.io_s,
            "fetch_cpu_s": costs.fetch.cpu_s,
            "share": _share(costs.fetch.io_s, costs),
            "read_bytes_per_s": view.usage.read_bytes_per_s,
            "cache_hit_fraction": view.usage.cache_hit_fraction,
        },
        fix=_waiting_fix(view, more if pays else None),
        gain=gain if pays else None,
    )


def _waiting_fix(view: View, more: Config | None) -> Fix:
    if more is None:
        return Fix(
            text="Wait less: ask for several samples at once (__getitems__), pack small files "
            "into shards, or keep the data on a local disk or in memory."
        )
    text = (
        f"Set num_workers={more.num_workers}: workers that wait need no cores, so more of them "
        "than cores pay. Or wait less: pack small files into shards, read from a local copy."
    )
    return settings_fix(view, more, text)


def collate(view: View) -> Claim | None:
    """Collating costs the most."""
    costs = _making_costs(view)
    if costs is None or costs.collate.own_s < _COLLATE_SHARE * costs.making.own_s:
        return None
    tensors = view.evidence.target.batch_tensors
    objects = view.workers > 0 and tensors == 0
    # While a worker collates in Python, main waits for its answer to every descriptor.
    free = dataclasses.replace(costs, collate=Work()).received_at_rest(tensors or 1)
    return Claim(
        title="Collating costs the most",
        explanation=f"Putting a batch together takes {format_duration(costs.collate.own_s)}, "
        f"fetching its samples {format_duration(costs.fetch.own_s)}.",
        cost=_share(costs.collate.wall_s, costs) * (view.wait or 1.0),
        figures={
            "collate_s": costs.collate.own_s,
            "collate_cpu_s": costs.collate.cpu_s,
            "fetch_s": costs.fetch.own_s,
        },
        fix=_collate_fix(objects=objects),
        gain=_reckoned(view, costs, free.handed_over_light() if objects else free),
    )


def _collate_fix(*, objects: bool) -> Fix:
    """What a collate function should do; with batches of objects, what they cost to hand over."""
    handing = ", and of handing over one tensor instead of objects" if objects else ""
    return Fix(
        text="Stack whole tensors instead of looping in Python, pad once to the longest, and "
        "do per-sample work in __getitem__; where collate_fn is torch's own, hand it less, as "
        f"uint8 instead of float32. The gain stated is that of collating for free{handing}.",
        code=_COLLATE_CODE,
    )


def too_few_workers(view: View) -> Claim | None:
    """More workers would pay."""
    more, costs = more_workers(view), _making_costs(view)
    if more is None or costs is None:
        return None
    gain = _gain_of_more(view, more, costs)
    if gain is None or gain.value < _PAYS:
        return None
    now = "without workers" if not view.workers else f"with {view.workers} of them"
    waits = costs.fetch.io_s > costs.fetch.cpu_s
    effect = f"{gain.verb} {gain.value:.2f}x"
    if view.evidence.script is not None:
        effect = f"{gain.verb} {gain.value:.2f}x as many batches a second, once they run"
    if competes(view, more):
        effect = f"loads {gain.value:.2f}x as fast while no step computes"
    return Claim(
        title=MORE_PAY,
        explanation=f"Making a batch takes {format_duration(costs.making.wall_s)} {now}; "
        f"num_workers={more.num_workers} {effect}.",
        place=Place.BEHIND if waits and view.workers > 1 else Place.SETTING,
        cost=gain.saved,
        figures={
            "num_workers": view.workers,
            "worker_busy_fraction": view.busy,
            "making_s": costs.making.wall_s,
            "own_cpu_cores": view.usage.own_cpu_cores,
            "available_cpu_cores": view.usage.available_cpu_cores,
        },
        fix=settings_fix(view, more, f"Set num_workers={more.num_workers}."),
        gain=gain,
    )


def _gain_of_more(view: View, more: Config, costs: Costs) -> Gain | None:
    """What more workers bring; reckoned where a trial beside others was too unsteady to tell."""
    gain = gain_of(view, more)
    if gain is None or gain.source != "measured" or gain.value >= _PAYS or not view.is_noisy:
        return gain
    after = costs_for(view, more)
    if after is None or (gain.estimate.high or gain.value) < _PAYS:
        return gain
    now = closed_form(costs, view.config, view.cores)
    return bound(closed_form(after, more, view.cores) / now)


def more_workers(view: View) -> Config | None:
    """As many workers as would be enough for cores, main and step, where that is more than now."""
    costs = _making_costs(view)
    if costs is None or (view.workers and (view.busy or 0.0) < 0.5):
        return None
    if lock(view) is not None:
        return None
    with_one = with_workers(view.config, max(1, view.workers))
    beside = costs_for(view, with_one) or costs
    own_s = costs.making.own_s + beside.put_cpu_s
    held_s = max(
        costs.step_s + beside.main_s, (costs.making.cpu_s + beside.put_cpu_s) / view.cores, 1e-6
    )
    most = max(_MOST_WORKERS, round(_PER_CORE * view.cores))
    ratio = own_s / held_s
    slots = max(math.ceil(ratio - 0.05), math.floor(1.15 * ratio))  # many vary: a few more
    useful = (most, slots, view.epoch_batches or None, view.evidence.integrity.most_workers)
    count = min(each for each in useful if each is not None)
    more = with_workers(view.config, count)
    while count > max(1, view.workers) and not fits_shared_memory(view, more):
        count -= 1
        more = with_workers(view.config, count)
    if count <= view.workers:
        return None
    now = closed_form(costs, view.config, view.cores)
    if closed_form(beside, more, view.cores) < _WORTH_TRYING * now:
        return None
    return _best_for_script(view, more)


def _best_for_script(view: View, most: Config) -> Config:
    """The fewest of up to so many workers with which a script is about as fast as it can be."""
    counts = {max(view.workers + 1, round(most.num_workers / _FEWER**n)) for n in range(32)}
    configs = [with_workers(view.config, count) for count in sorted(counts)]
    gains = [(each, gain.value) for each in configs if (gain := loop_gain(view, each))]
    best = max((value for _, value in gains), default=0.0)
    return next((each for each, value in gains if value >= _AS_FAST * best), most)


def _making_costs(view: View) -> Costs | None:
    """The costs, where making batches is or may be the limit."""
    limit = view.limit
    least = _HALF_BUSY if view.evidence.has_step else _HARDLY_BUSY
    idle = limit == "waiting" and (view.busy or 0.0) < least
    return view.costs if limit in ("workers", "waiting") and not idle else None


def _share(part_s: float, costs: Costs) -> float:
    return min(1.0, part_s / max(1e-12, costs.making.wall_s))


def _dearest(view: View) -> TransformCost | None:
    chain = view.explained.transforms if view.explained else ()
    found = max(chain, key=lambda each: each.share, default=None)
    return found if found is not None and found.share >= _LARGE_SHARE else None


def _reckoned(view: View, before: Costs, after: Costs) -> Gain:
    cores = view.usage.available_cpu_cores or view.cores
    now = closed_form(before, view.config, cores)
    return bound(max(1.0, closed_form(after, view.config, cores) / now))
