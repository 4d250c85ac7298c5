"""The way to the device: what copying batches takes, on which card, and who else uses it."""

from __future__ import annotations

import dataclasses

from dlprof.advise.findings.claims import Claim
from dlprof.advise.findings.gains import bound, measured_gain
from dlprof.advise.findings.view import View
from dlprof.advise.thresholds import WORTH_TRYING
from dlprof.advise.wording import percent
from dlprof.records import Config, GpuUsage
from dlprof.units import format_bytes, format_duration

_EXPOSED = 0.05
"""Share of the time that is exposed copying, from which copies are worth a word."""

_PINNED_SPEED = 2.0
"""What pinned memory brings at most where copies overlap nothing: 0.458 against 0.367 ms for
4 MB, and with non_blocking the rest as well (FIELD section 6)."""

_REACHED, _SLOW_LINK = 0.75, 0.5
"""Share of a link's theory that copies of pinned memory reach: 12.4 of 15.75 GB/s; and share of
that below which a link is slow."""

_LEAST_COPY_BYTES = 4 << 20
_PINNED = 0.5
"""Share of a batch's bytes in page-locked memory from which it counts as pinned."""

_OTHERS_BUSY = 0.3
"""Share of time with kernels that can't be the trial's, from which others use a card."""

_OTHERS_LINK = 0.25
"""Share of a link's theory that another card receives, from which it is worth a word."""


@dataclasses.dataclass(frozen=True, slots=True)
class Copying:
    """Copies of one configuration's batches, as evidence of a finding.

    Attributes:
        copy_s: Seconds a batch that the copy takes on the device; the next if not told apart.
        exposed_s: Seconds a batch in which the step waits for its copy.
        share: Share of the time that is exposed copying.
        batch_bytes: Of a batch; ``None`` where it isn't known.
        pinned_fraction: Share of them in page-locked memory; ``None`` where it isn't known.
    """

    copy_s: float
    exposed_s: float
    share: float
    batch_bytes: float | None
    pinned_fraction: float | None = None


def copying_of(view: View) -> Copying | None:
    """The copies as plain trials timed them, else as an explained one did; ``None`` without any."""
    copies, costs, rate = view.copies, view.costs, view.rate
    if copies is not None and copies.exposed_s is not None and rate:
        exposed_s, size = copies.exposed_s, copies.bytes or view.batch_bytes
        copy_s = exposed_s if copies.copy_s is None else copies.copy_s
        share = min(0.99, exposed_s * rate)
        return Copying(copy_s, exposed_s, share, size, copies.pinned_fraction)
    if costs is None or costs.copy_s <= 0 or costs.period_s <= 0:
        return None
    share = min(0.99, costs.copy_s / costs.period_s)
    return Copying(costs.copy_s, costs.copy_s, share, view.batch_bytes)


def _is_pinned(view: View, copying: Copying) -> bool:
    pinned = copying.pinned_fraction
    return view.config.pin_memory if pinned is None else pinned >= _PINNED


def used_gpu(view: View) -> GpuUsage | None:
    """What the card did that batches were copied to; ``None`` where it can't be told which.

    NVML's order is not CUDA's: the UUID that torch told joins them, or else the machine's
    ``cuda_index``.
    """
    copies = view.copies
    if copies is None or not (copies.uuid or copies.device.startswith("cuda")):
        return None
    _, _, number = copies.device.partition(":")
    wanted = int(number) if number.isdigit() else 0
    uuids = {gpu.uuid for gpu in view.evidence.machine.gpus if gpu.cuda_index == wanted}
    uuids = {copies.uuid} if copies.uuid else uuids
    return next((gpu for gpu in view.usage.gpu if gpu.uuid in uuids), None)


def pageable(view: View) -> Claim | None:
    """Copies to the device are exposed, and come from pageable memory."""
    copying, pinned = copying_of(view), pinned_copies(view)
    if copying is None or not _is_worth_pinning(view, copying):
        return None
    share, likely = copying.share, bound(1 / (1 - copying.share * (1 - 1 / _PINNED_SPEED)))
    if pinned is None:
        return Claim(
            "pin_memory=True doesn't pin what is copied",
            f"Only {percent(copying.pinned_fraction or 0.0)} of a batch's bytes come in pinned "
            f"memory, and copying takes {percent(share)} of the time. torch pins tensors, "
            "lists, tuples, dicts, and objects with a pin_memory method. A slice of a tensor, "
            "or one that the same .to() converts, is copied from pageable memory.",
            share,
            given=dataclasses.asdict(copying),
            fix="Give the batch's class a pin_memory method, or let collate_fn return a dict. Copy "
            "whole tensors; cut and convert them on the device.",
            code="""class Batch:
    def pin_memory(self):
        self.images = self.images.pin_memory()
        return self""",
            gain=likely,
        )
    gain = measured_gain(view, pinned)
    if gain is not None and gain.value < WORTH_TRYING:
        return None
    return Claim(
        "Copies to the device are unpinned",
        f"Copying a batch of {format_bytes(copying.batch_bytes)} takes "
        f"{format_duration(copying.exposed_s)}, {percent(share)} of the time, and nothing "
        "overlaps with it.",
        share,
        given=dataclasses.asdict(copying),
        fix="Set pin_memory=True and copy with non_blocking=True.",
        code="""loader = DataLoader(dataset, pin_memory=True, ...)
batch = batch.to(device, non_blocking=True)""",
        config=pinned,
        gain=gain or likely,
    )


def _is_worth_pinning(view: View, copying: Copying) -> bool:
    """Whether copies are exposed and come from pageable memory."""
    has_device = view.evidence.accelerator is not None
    return has_device and copying.share >= _EXPOSED and not _is_pinned(view, copying)


def pinned_copies(view: View) -> Config | None:
    """The same with pinning, where copies are exposed."""
    copying = copying_of(view)
    if copying is None or view.config.pin_memory or not _is_worth_pinning(view, copying):
        return None
    return view.having(pin_memory=True)


def link(view: View) -> Claim | None:
    """The link to the device is slower than it should be.

    Only copies that are large, pinned and exposed say something of it.
    """
    copying, seen, gpus = copying_of(view), used_gpu(view), view.evidence.machine.gpus
    mine = [gpu for gpu in gpus if seen is not None and gpu.uuid == seen.uuid]
    links = {gpu.uuid: gpu.link_bytes_per_s for gpu in gpus if gpu.link_bytes_per_s is not None}
    known = [links[gpu.uuid] for gpu in mine or gpus if gpu.uuid in links]
    theory = min(known, default=None)  # of the slowest, where it isn't known which is used
    if (
        copying is None
        or copying.share < _EXPOSED
        or not _is_pinned(view, copying)
        or theory is None
    ):
        return None
    speed = (copying.batch_bytes or 0.0) / max(1e-12, copying.copy_s or copying.exposed_s)
    reached = speed / (_REACHED * theory)
    if (copying.batch_bytes or 0.0) < _LEAST_COPY_BYTES or reached >= _SLOW_LINK:
        return None
    how = ""
    if seen is not None and seen.pcie_generation is not None and seen.pcie_width is not None:
        how = f" It ran at generation {seen.pcie_generation} with {seen.pcie_width} lanes."
    cost = copying.share * (1 - reached)
    return Claim(
        "The link to the device is slower than it should be",
        f"Pinned batches are copied at {format_bytes(speed)} a second where the card and its "
        f"slot allow {format_bytes(theory)}.{how}{_beside(view, seen)}",
        cost,
        given={
            "copy_bytes_per_s": speed,
            "link_bytes_per_s": theory,
            **dataclasses.asdict(copying),
            "pcie_generation": None if seen is None else seen.pcie_generation,
            "pcie_width": None if seen is None else seen.pcie_width,
        },
        fix="Run `dlprof transfer` to see the link's generation and width under load. Then "
        "check the slot, and the NUMA node of the process.",
        gain=bound(1 / max(0.05, 1 - cost)),
    )


def _beside(view: View, seen: GpuUsage | None) -> str:
    """Other cards that receive much meanwhile, perhaps by the same switch."""
    links = {gpu.uuid: gpu.link_bytes_per_s for gpu in view.evidence.machine.gpus}
    rates = {
        gpu.index: gpu.pcie_rx_bytes_per_s
        for gpu in view.usage.gpu
        if gpu.pcie_rx_bytes_per_s is not None and seen is not None and gpu.uuid != seen.uuid
        if gpu.pcie_rx_bytes_per_s >= _OTHERS_LINK * (links.get(gpu.uuid) or 1e12)
    }
    rate = format_bytes(sum(rates.values()))
    cards = ", ".join(map(str, rates))
    return f" GPU {cards} received {rate} a second at the same time." if rates else ""


def neighbours(view: View) -> Claim | None:
    """Other processes use the device."""
    uses_it = view.evidence.accelerator is not None and (
        view.evidence.has_step or copying_of(view) is not None
    )
    gpu = used_gpu(view) if uses_it else max(view.usage.gpu, key=_active, default=None)
    if gpu is None or not (gpu.other_processes if uses_it else _active(gpu) >= _OTHERS_BUSY):
        return None  # of a card that the trial doesn't use no kernel can be its own
    kernels = ""
    if gpu.kernel_active_fraction is not None:
        kernels = f", and kernels ran {percent(gpu.kernel_active_fraction)} of the time"
        kernels += ", the trial's own among them" if uses_it else ""
    crowd = f"other processes use {format_bytes(gpu.memory_used_bytes)} of its memory"
    if gpu.other_processes:
        others = "another process" if gpu.other_processes == 1 else f"{gpu.other_processes} others"
        held = gpu.other_memory_bytes
        crowd = f"{others} used it before" + ("" if held is None else f": {format_bytes(held)}")
    return Claim(
        "Other processes use the device",
        f"GPU {gpu.index} ({gpu.name}): {crowd}{kernels}.",
        0.0,
        given={
            "gpu": gpu.index,
            "kernel_active_fraction": gpu.kernel_active_fraction,
            "other_processes": gpu.other_processes,
            "other_memory_bytes": gpu.other_memory_bytes,
            "memory_used_bytes": gpu.memory_used_bytes,
        },
        fix="Find them with nvidia-smi, and choose an idle device.",
    )


def _active(gpu: GpuUsage) -> float:
    return gpu.kernel_active_fraction or 0.0
