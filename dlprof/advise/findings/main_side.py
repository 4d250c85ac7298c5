"""What the main process does itself for every batch: drawing indices, receiving, pinning."""

from __future__ import annotations

import dataclasses

from dlprof.advise.findings.claims import Claim, settings_fix
from dlprof.advise.findings.consumer import FEW_TENSORS, is_dear_to_receive, too_many_workers
from dlprof.advise.findings.costs import LEAST_RECEIVE_S, Costs, Work
from dlprof.advise.findings.gains import Gain, bound, closed_form, gain_of, measured_gain
from dlprof.advise.findings.view import View
from dlprof.advise.wording import percent
from dlprof.records import Config, Fix
from dlprof.units import format_duration

_SAMPLER_SHARE = 0.4
_BEARABLE = 0.25
_PAYS = 1.05
_FAR_BETTER = 1.5
"""What sharing by name brings for many small tensors (FIELD section 5); no workers must beat it."""

_HAND_SHAKE = (
    " Most of that is waiting until the worker, busy with its next batch, hands over the "
    "descriptors of its tensors."
)
_RECEIVE_CODE = """def collate(samples):
    batch = torch.utils.data.default_collate(samples)
    return torch.cat([each.flatten(1) for each in batch], dim=1)  # one tensor, split after loading

loader = DataLoader(dataset, collate_fn=collate, ...)"""
_SAMPLER_CODE = """indices = torch.multinomial(weights, len(dataset), replacement=True).tolist()
# once an epoch, or torch.randperm(len(dataset)).tolist(): a list costs nothing to draw from
loader = DataLoader(dataset, sampler=indices, ...)"""


def receive(view: View) -> Claim | None:
    """Main spends its time rebuilding batches."""
    costs = view.costs
    if costs is None or not _is_receiving(view, costs):
        return None
    tensors = view.evidence.target.batch_tensors
    if not is_dear_to_receive(view) and too_many_workers(view) is not None:
        return None  # nothing is wrong with the batches: they are just too cheap to hand over
    share = min(1.0, costs.receive.wall_s / max(costs.wait_s, 1e-12))
    cost = min(share * (view.wait or 1.0), costs.receive.wall_s / max(costs.period_s, 1e-12))
    remedy, gain = _best_remedy(view, costs)
    if view.evidence.has_step and remedy is None and cost < _BEARABLE:
        return None  # what any step waits for a batch from a worker, and nothing mends it
    what = f" of {tensors} tensors" if tensors else ""
    return Claim(
        title="The main process spends its time rebuilding batches",
        explanation=f"Taking a batch{what} from a worker costs the main process "
        f"{format_duration(costs.receive.own_s)}, {percent(share)} of the time that "
        "the consumer waits." + (_HAND_SHAKE if _waits(costs) else ""),
        cost=cost,
        figures={
            "receive_s": costs.receive.own_s,
            "receive_cpu_s": costs.receive.cpu_s,
            "batch_tensors": tensors,
            "main_share_of_wait": view.main_share,
        },
        fix=_receive_fix(view, remedy),
        gain=gain,
    )


def _is_receiving(view: View, costs: Costs) -> bool:
    """Whether receiving is what main does, and main, or what it receives, is the limit."""
    if costs.receive.own_s < costs.dispatch.own_s:
        return False
    return view.limit == "main" or is_dear_to_receive(view)


def _waits(costs: Costs) -> bool:
    """Whether main waits for the worker rather than works."""
    return costs.receive.io_s > costs.receive.cpu_s


def _best_remedy(view: View, costs: Costs) -> tuple[Config | None, Gain | None]:
    """The tried or reckoned configuration that brings most, or the bound of lighter batches."""
    paying = []
    for each in receive_remedies(view):
        gain = gain_of(view, each)
        if gain is None or gain.value < _PAYS or (view.is_noisy and not gain.sure):
            continue
        if gain.source != "measured" or gain.pays(_PAYS):  # else it may as well be chance
            paying.append((each, gain))
    if paying:
        return max(paying, key=lambda pair: pair[1].value)
    lighter = dataclasses.replace(costs, receive=Work(cpu_s=LEAST_RECEIVE_S))
    now = closed_form(costs, view.config, view.cores)
    return None, bound(max(1.0, closed_form(lighter, view.config, view.cores) / now))


def lighter(view: View) -> Config | None:
    """The remedy to try: the one that should bring more."""
    costs, remedies = view.costs, receive_remedies(view)
    if costs is None or not remedies:
        return None
    now = closed_form(costs, view.config, view.cores)
    alone = remedies[-1]
    pays = not alone.num_workers and closed_form(costs, alone, view.cores) >= _FAR_BETTER * now
    return alone if pays else remedies[0]


def receive_remedies(view: View) -> list[Config]:
    """Sharing by name for many tensors, and no workers at all where the batches are cheap."""
    costs = view.costs
    if costs is None or not _is_receiving(view, costs):
        return []
    remedies = []
    tensors = view.evidence.target.batch_tensors or 1
    if view.config.sharing_strategy is None and (tensors > FEW_TENSORS or _waits(costs)):
        remedies.append(dataclasses.replace(view.config, sharing_strategy="file_system"))
    alone = dataclasses.replace(view.config, num_workers=0).canonical()
    now = closed_form(costs, view.config, view.cores)
    if closed_form(costs, alone, view.cores) > _PAYS * now:
        remedies.append(alone)
    return remedies


def _receive_fix(view: View, remedy: Config | None) -> Fix:
    if remedy is None:
        return Fix(
            text="Hand over fewer and larger tensors: let collate_fn put what belongs together "
            "into one, and return tensors rather than lists, dicts of objects or ndarrays.",
            code=_RECEIVE_CODE,
        )
    if not remedy.num_workers:
        return settings_fix(
            view, remedy, "Set num_workers=0: handing batches over costs more than making them."
        )
    text = "Share tensors by name instead of by file descriptor: one hand-shake less for each."
    return settings_fix(view, remedy, text)


def sampler(view: View) -> Claim | None:
    """The sampler holds main up."""
    costs = view.costs
    if costs is None or view.limit == "consumer":
        return None
    held_s = costs.period_s if not view.workers else costs.wait_s
    share = costs.dispatch.own_s / max(1e-12, held_s)
    if share < _SAMPLER_SHARE or costs.dispatch.own_s < costs.receive.own_s:
        return None
    free = dataclasses.replace(costs, dispatch=Work())
    now = closed_form(costs, view.config, view.cores)
    name = view.evidence.target.sampler or "The sampler"
    return Claim(
        title="The sampler holds the main process up",
        explanation=f"{name} takes {format_duration(costs.dispatch.own_s)} to draw the indices "
        f"of a batch, in the main process, while {percent(min(1.0, share))} of the wait for "
        "data goes by; workers can't help with that.",
        cost=min(1.0, share) * (view.wait or 1.0),
        figures={"dispatch_s": costs.dispatch.own_s, "share_of_wait": min(1.0, share)},
        fix=Fix(
            text="Draw all indices of an epoch at once, as a list or tensor, instead of one by "
            "one in Python.",
            code=_SAMPLER_CODE,
        ),
        gain=bound(max(1.0, closed_form(free, view.config, view.cores) / now)),
    )


def pin(view: View) -> Claim | None:
    """The pin thread is the limit."""
    costs, plain = view.costs, unpinned(view)
    if costs is None or plain is None:
        return None
    gain = measured_gain(view, plain)
    if gain is not None and gain.value < _PAYS:
        return None
    share = costs.pin_s / max(1e-12, costs.period_s)
    return Claim(
        title="The pin thread is the limit",
        explanation=f"One thread copies every batch to page-locked memory, "
        f"{format_duration(costs.pin_s)} each, and is busy {percent(min(1.0, share))} of the "
        f"time.{_starved_pin(view)}",
        cost=gain.saved if gain is not None else min(1.0, share) * (view.wait or 1.0),
        figures={
            "pin_s": costs.pin_s,
            "pin_busy_fraction": min(1.0, share),
            **_pin_costs(view),
        },
        fix=settings_fix(view, plain, "Set pin_memory=False, or make batches smaller (uint8)."),
        gain=gain,
    )


def _pin_costs(view: View) -> dict[str, float | None]:
    """What pinning took of the machine, where that was measured."""
    pin = None if view.copies is None else view.copies.pin
    if pin is None:
        return {}
    return {
        "pin_thread_cpu_s": pin.thread_cpu_s,
        "pin_thread_run_queue_s": pin.thread_run_queue_s,
        "pinned_bytes": pin.pinned_bytes,
        "pin_alloc_s": pin.alloc_s,
    }


def _starved_pin(view: View) -> str:
    """Whether the thread waits for a core longer than it works."""
    costs = _pin_costs(view)
    cpu_s, queued_s = costs.get("pin_thread_cpu_s"), costs.get("pin_thread_run_queue_s")
    if cpu_s is None or queued_s is None or queued_s <= cpu_s:
        return ""
    return f" It waits {format_duration(queued_s)} a batch for a core, which workers keep busy."


def unpinned(view: View) -> Config | None:
    """The same without pinning, where the pin thread is the limit."""
    if not view.config.pin_memory or view.limit != "pin":
        return None
    return dataclasses.replace(view.config, pin_memory=False)
