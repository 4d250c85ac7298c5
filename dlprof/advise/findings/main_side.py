"""What the main process does itself for every batch: drawing indices, receiving, pinning."""

from __future__ import annotations

import dataclasses
from typing import Any

from dlprof.advise.findings.claims import Claim
from dlprof.advise.findings.costs import Costs, Work
from dlprof.advise.findings.gains import Gain, gain_of, measured_gain, predicted_gain
from dlprof.advise.findings.view import View
from dlprof.advise.findings.workers import (
    FEW_TENSORS,
    LEAST_RECEIVE_S,
    is_dear_to_receive,
    too_many_workers,
)
from dlprof.advise.thresholds import WORTH_TRYING
from dlprof.advise.wording import percent
from dlprof.records import Config
from dlprof.units import format_duration

_SAMPLER_SHARE = 0.4
"""Share of the wait for data in which indices are drawn, from which the sampler holds main up."""

_BEARABLE = 0.25
_FAR_BETTER = 1.5
"""What sharing by name brings for many small tensors (FIELD section 5); no workers must beat it."""

_ONE_TENSOR = """def collate(samples):
    batch = torch.utils.data.default_collate(samples)
    return torch.cat([each.flatten(1) for each in batch], dim=1)  # one tensor, split after loading

loader = DataLoader(dataset, collate_fn=collate, ...)"""


def receive(view: View) -> Claim | None:
    """Main spends its time rebuilding batches."""
    costs = view.costs
    if costs is None or not _is_receiving(view, costs):
        return None
    if not is_dear_to_receive(view) and too_many_workers(view) is not None:
        return None  # nothing is wrong with the batches: they are just too cheap to hand over
    share = min(1.0, costs.receive.wall_s / max(costs.wait_s, 1e-12))
    cost = min(share * (view.wait or 1.0), costs.receive.wall_s / max(costs.period_s, 1e-12))
    remedy, gain = _best_remedy(view, costs)
    if view.evidence.has_step and remedy is None and cost < _BEARABLE:
        return None  # what any step waits for a batch from a worker, and nothing mends it
    tensors = view.evidence.target.batch_tensors
    what = f" of {tensors} tensors" if tensors else ""
    waits = ""
    if _waits(costs):
        waits = (
            " Most of that is blocked time: the worker, busy with its next batch, sends the "
            "descriptors of the tensors late."
        )
    fix = (
        "Send fewer and larger tensors: let collate_fn join what belongs together, and return "
        "tensors rather than lists, dicts of objects or ndarrays."
    )
    if remedy is not None and remedy.num_workers:
        fix = "Share tensors by name instead of by file descriptor: one handshake less per tensor."
    elif remedy is not None:
        fix = "Set num_workers=0: sending batches between processes costs more than making them."
    return Claim(
        "The main process spends its time deserializing batches",
        f"Receiving a batch{what} from a worker takes the main process "
        f"{format_duration(costs.receive.own_s)}, {percent(share)} of the time that the "
        f"consumer waits.{waits}",
        cost,
        "receive_s receive_cpu_s batch_tensors main_share_of_wait",
        fix=fix,
        code="" if remedy else _ONE_TENSOR,
        config=remedy,
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
    """The configuration that brings most, or the bound of lighter batches."""
    paying = []
    for each in _receive_remedies(view):
        gain = gain_of(view, each)
        if gain is None or gain.value < WORTH_TRYING or (view.is_noisy and not gain.sure):
            continue
        if gain.source != "measured" or not gain.is_chance:
            paying.append((each, gain))
    if paying:
        return max(paying, key=lambda pair: pair[1].value)
    least_s = min(costs.receive.own_s, LEAST_RECEIVE_S)
    return None, predicted_gain(view, costs=dataclasses.replace(costs, receive=Work(least_s)))


def lighter(view: View) -> Config | None:
    """The remedy to try."""
    return next(iter(_receive_remedies(view)), None)


def _receive_remedies(view: View) -> list[Config]:
    """Sharing by name for many tensors, and no workers at all where the batches are cheap.

    The latter comes first where it should be far better.
    """
    costs = view.costs
    if costs is None or not _is_receiving(view, costs):
        return []
    alone, by_name = view.having(num_workers=0), view.having(sharing_strategy="file_system")
    many = (view.evidence.target.batch_tensors or 1) > FEW_TENSORS
    named = view.config.sharing_strategy is None and (many or _waits(costs))
    faster = costs.rate(alone, view.cores) / costs.rate(view.config, view.cores)
    remedies = [by_name] if named else []
    if faster > WORTH_TRYING:
        remedies.insert(0 if faster >= _FAR_BETTER else 1, alone)
    return remedies


def sampler(view: View) -> Claim | None:
    """The sampler holds main up."""
    costs = view.costs
    if costs is None:
        return None
    draw_s, held_s = costs.dispatch.own_s, costs.wait_s if view.workers else costs.period_s
    share = min(1.0, draw_s / max(1e-12, held_s))
    if share < _SAMPLER_SHARE or draw_s < costs.receive.own_s:
        return None
    return Claim(
        "The sampler blocks the main process",
        f"{view.evidence.target.sampler or 'The sampler'} takes {format_duration(draw_s)} to "
        f"draw a batch's indices in the main process: {percent(share)} of the wait for data. "
        "Workers can't help with that.",
        share * (view.wait or 1.0),
        "dispatch_s",
        {"share_of_wait": share},
        "Draw all indices of an epoch at once, as a list or tensor, instead of one by one in "
        "Python.",
        """indices = torch.multinomial(weights, len(dataset), replacement=True).tolist()
# once an epoch, or torch.randperm(len(dataset)).tolist(): a list costs nothing to draw from
loader = DataLoader(dataset, sampler=indices, ...)""",
        gain=predicted_gain(view, costs=dataclasses.replace(costs, dispatch=Work())),
    )


def pin(view: View) -> Claim | None:
    """The pin thread is the limit."""
    costs, plain = view.costs, unpinned(view)
    gain = None if plain is None else measured_gain(view, plain)
    if costs is None or plain is None or (gain is not None and gain.value < WORTH_TRYING):
        return None
    share, starved = min(1.0, costs.pin_s / max(1e-12, costs.period_s)), ""
    figures: dict[str, Any] = {"pin_busy_fraction": share}
    if view.copies is not None and (took := view.copies.pin) is not None:
        figures["pin_thread_cpu_s"] = cpu_s = took.thread_cpu_s
        figures["pin_thread_run_queue_s"] = queued_s = took.thread_run_queue_s
        figures |= {"pinned_bytes": took.pinned_bytes, "pin_alloc_s": took.alloc_s}
        if cpu_s is not None and queued_s is not None and queued_s > cpu_s:
            queued = format_duration(queued_s)
            starved = f" Its run-queue delay is {queued} a batch, as workers keep the cores busy."
    return Claim(
        "The pin thread is the limit",
        f"One thread copies every batch to page-locked memory, {format_duration(costs.pin_s)} "
        f"each, and is busy {percent(share)} of the time.{starved}",
        gain.saved if gain is not None else share * (view.wait or 1.0),
        "pin_s",
        figures,
        "Set pin_memory=False, or make batches smaller (uint8).",
        config=plain,
        gain=gain,
    )


def unpinned(view: View) -> Config | None:
    """The same without pinning, where the pin thread is the limit."""
    limits = view.config.pin_memory and view.limit == "pin"
    return view.having(pin_memory=False) if limits else None
