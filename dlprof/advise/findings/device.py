"""The way to the device: what copying batches takes, on which card, and who else uses it."""

from __future__ import annotations

import dataclasses
from typing import Any

from dlprof.advise.findings.claims import Claim, settings_fix
from dlprof.advise.findings.gains import bound, measured_gain
from dlprof.advise.findings.memory import batch_bytes
from dlprof.advise.findings.view import View
from dlprof.advise.wording import percent
from dlprof.records import Config, Fix, GpuUsage
from dlprof.units import format_bytes, format_duration

_EXPOSED = 0.05
_PINNED_SPEED = 2.0
"""What pinned memory brings at most where copies overlap nothing: 0.458 against 0.367 ms for
4 MB, and with non_blocking the rest as well (FIELD section 6)."""

_PAYS = 1.02
_REACHED = 0.75
"""Share of a link's theory that copies of pinned memory reach: 12.4 of 15.75 GB/s."""

_SLOW_LINK = 0.5
_LEAST_COPY_BYTES = 4 << 20
_PINNED = 0.5
"""Share of a batch's bytes in page-locked memory from which it counts as pinned."""

_OTHERS_BUSY = 0.3
_OTHERS_LINK = 0.25
"""Share of a link's theory that another card receives, from which it is worth a word."""

_PAGEABLE_CODE = """loader = DataLoader(dataset, pin_memory=True, ...)
batch = batch.to(device, non_blocking=True)"""

_UNPINNABLE_CODE = """class Batch:
    def pin_memory(self):
        self.images = self.images.pin_memory()
        return self"""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Copying:
    """Copies of one configuration's batches.

    Attributes:
        exposed_s: Seconds a batch in which the step waits for its copy.
        copy_s: Seconds a batch that the copy takes on the device; ``None`` where not told apart.
        share: Share of the time that is exposed copying.
        bytes: Of a batch; ``None`` where it isn't known.
        pinned_fraction: Share of the bytes in page-locked memory; ``None`` where it isn't known.
    """

    exposed_s: float
    copy_s: float | None
    share: float
    bytes: float | None
    pinned_fraction: float | None

    @property
    def bytes_per_s(self) -> float | None:
        """Rate of the copies themselves."""
        took_s = self.copy_s or self.exposed_s
        return self.bytes / took_s if self.bytes and took_s > 0 else None

    def figures(self) -> dict[str, Any]:
        """As evidence of a finding."""
        return {
            "copy_s": self.exposed_s if self.copy_s is None else self.copy_s,
            "exposed_s": self.exposed_s,
            "share": self.share,
            "batch_bytes": self.bytes,
            "pinned_fraction": self.pinned_fraction,
        }


def copying_of(view: View) -> Copying | None:
    """The copies as plain trials timed them, else as an explained one did; ``None`` without any."""
    copies, rate = view.copies, view.rate
    if copies is not None and copies.exposed_s is not None and rate:
        return Copying(
            exposed_s=copies.exposed_s,
            copy_s=copies.copy_s,
            share=min(0.99, copies.exposed_s * rate),
            bytes=copies.bytes or batch_bytes(view),
            pinned_fraction=copies.pinned_fraction,
        )
    costs = view.costs
    if costs is None or costs.copy_s <= 0 or costs.period_s <= 0:
        return None
    return Copying(
        exposed_s=costs.copy_s,
        copy_s=None,
        share=min(0.99, costs.copy_s / costs.period_s),
        bytes=batch_bytes(view),
        pinned_fraction=None,
    )


def used_gpu(view: View) -> GpuUsage | None:
    """What the card did that batches were copied to; ``None`` where it can't be told which.

    NVML's order is not CUDA's: the UUID that torch told joins them, or else the machine's
    ``cuda_index``.
    """
    copies = view.copies
    if copies is None:
        return None
    if copies.uuid:
        return next((gpu for gpu in view.usage.gpu if gpu.uuid == copies.uuid), None)
    if not copies.device.startswith("cuda"):
        return None
    _, _, number = copies.device.partition(":")
    wanted = int(number) if number.isdigit() else 0
    uuids = [gpu.uuid for gpu in view.evidence.machine.gpus if gpu.cuda_index == wanted]
    return next((gpu for gpu in view.usage.gpu if gpu.uuid in uuids), None)


def pageable(view: View) -> Claim | None:
    """Copies to the device are unpinned and exposed."""
    copying = copying_of(view)
    if copying is None or not _is_worth_pinning(view, copying):
        return None
    pinned = pinned_copies(view)
    if pinned is None:
        return _unpinnable(copying)
    gain = measured_gain(view, pinned)
    if gain is not None and gain.value < _PAYS:
        return None
    fix = settings_fix(view, pinned, "Set pin_memory=True and copy with non_blocking=True.")
    return Claim(
        title="Copies to the device are unpinned",
        explanation=f"Copying a batch of {format_bytes(copying.bytes)} takes "
        f"{format_duration(copying.exposed_s)}, {percent(copying.share)} of the time, and "
        "nothing else happens meanwhile.",
        cost=copying.share,
        figures=copying.figures(),
        fix=dataclasses.replace(fix, code=_PAGEABLE_CODE),
        gain=gain or bound(_without_pageable(copying)),
    )


def _unpinnable(copying: Copying) -> Claim:
    """``pin_memory=True`` that leaves the batches as they are."""
    return Claim(
        title="pin_memory=True doesn't pin what is copied",
        explanation=f"Only {percent(copying.pinned_fraction or 0.0)} of a batch's bytes come "
        f"in pinned memory, and copying takes {percent(copying.share)} of the time: torch pins "
        "tensors, lists, tuples and dicts, and what has a pin_memory method. What is cut out "
        "of a tensor, or converted by the same .to(), is copied from memory that isn't pinned.",
        cost=copying.share,
        figures=copying.figures(),
        fix=Fix(
            text="Give the batch's class a pin_memory method, or let collate_fn return a dict. "
            "Copy whole tensors; cut and convert them on the device.",
            code=_UNPINNABLE_CODE,
        ),
        gain=bound(_without_pageable(copying)),
    )


def _without_pageable(copying: Copying) -> float:
    return 1 / (1 - copying.share * (1 - 1 / _PINNED_SPEED))


def _is_worth_pinning(view: View, copying: Copying) -> bool:
    """Whether copies are exposed and come from pageable memory."""
    if view.evidence.accelerator is None or copying.share < _EXPOSED:
        return False
    if copying.pinned_fraction is None:
        return not view.config.pin_memory
    return copying.pinned_fraction < _PINNED


def pinned_copies(view: View) -> Config | None:
    """The same with pinning, where copies are exposed."""
    copying = copying_of(view)
    if copying is None or view.config.pin_memory or not _is_worth_pinning(view, copying):
        return None
    return dataclasses.replace(view.config, pin_memory=True)


def link(view: View) -> Claim | None:
    """The link to the device is slower than it should be."""
    copying = copying_of(view)
    theory = _theory(view)
    if copying is None or theory is None or copying.bytes_per_s is None:
        return None
    if not _tells_of_the_link(view, copying):
        return None
    speed = copying.bytes_per_s
    if speed >= _SLOW_LINK * _REACHED * theory:
        return None
    left = speed / (_REACHED * theory)
    cost = copying.share * (1 - left)
    seen = used_gpu(view)
    return Claim(
        title="The link to the device is slower than it should be",
        explanation=f"Pinned batches go at {format_bytes(speed)} a second where the card and "
        f"its slot allow {format_bytes(theory)}.{_seen_link(seen)}{_beside(view, seen)}",
        cost=cost,
        figures={
            "copy_bytes_per_s": speed,
            "link_bytes_per_s": theory,
            **copying.figures(),
            "pcie_generation": None if seen is None else seen.pcie_generation,
            "pcie_width": None if seen is None else seen.pcie_width,
        },
        fix=Fix(
            text="Look at the link's generation and width while copies run (`dlprof transfer`), at "
            "the slot, and at which NUMA node the process runs on."
        ),
        gain=bound(1 / max(0.05, 1 - cost)),
    )


def _tells_of_the_link(view: View, copying: Copying) -> bool:
    """Whether copies are large, pinned and exposed; others say nothing of the link."""
    if copying.bytes is None or copying.bytes < _LEAST_COPY_BYTES or copying.share < _EXPOSED:
        return False
    if copying.pinned_fraction is None:
        return view.config.pin_memory
    return copying.pinned_fraction >= _PINNED


def _theory(view: View) -> float | None:
    """Of the card that is used; of the slowest where that isn't known."""
    seen, gpus = used_gpu(view), view.evidence.machine.gpus
    mine = [gpu for gpu in gpus if seen is not None and gpu.uuid == seen.uuid]
    speeds = [gpu.link_bytes_per_s for gpu in mine or gpus]
    return min((speed for speed in speeds if speed is not None), default=None)


def _seen_link(seen: GpuUsage | None) -> str:
    if seen is None or seen.pcie_generation is None or seen.pcie_width is None:
        return ""
    return f" It was seen at generation {seen.pcie_generation} with {seen.pcie_width} lanes."


def _beside(view: View, seen: GpuUsage | None) -> str:
    """Other cards that receive much meanwhile, perhaps by the same switch."""
    theory = {gpu.uuid: gpu.link_bytes_per_s for gpu in view.evidence.machine.gpus}
    busy = [
        gpu
        for gpu in view.usage.gpu
        if (seen is None or gpu.uuid != seen.uuid)
        and (gpu.pcie_rx_bytes_per_s or 0.0) >= _OTHERS_LINK * (theory.get(gpu.uuid) or 1e12)
    ]
    if seen is None or not busy:
        return ""
    rate = sum(gpu.pcie_rx_bytes_per_s or 0.0 for gpu in busy)
    cards = ", ".join(str(gpu.index) for gpu in busy)
    return f" GPU {cards} received {format_bytes(rate)} a second meanwhile."


def neighbours(view: View) -> Claim | None:
    """Other processes use the device."""
    uses_it = view.evidence.accelerator is not None and (
        view.evidence.has_step or copying_of(view) is not None
    )
    if uses_it:
        gpu = used_gpu(view)
        gpu = gpu if gpu is not None and gpu.other_processes else None
    else:  # of the busiest card no kernel can be the trial's
        busy = [each for each in view.usage.gpu if _active(each) >= _OTHERS_BUSY]
        gpu = max(busy, key=_active, default=None)
    if gpu is None:
        return None
    active = gpu.kernel_active_fraction
    kernels = "" if active is None else f", and kernels ran {percent(active)} of the time"
    own = ", the trial's own among them" if uses_it and kernels else ""
    return Claim(
        title="Other processes use the device",
        explanation=f"GPU {gpu.index} ({gpu.name}): {_crowd(gpu)}{kernels}{own}.",
        cost=0.0,
        figures={
            "gpu": gpu.index,
            "kernel_active_fraction": active,
            "other_processes": gpu.other_processes,
            "other_memory_bytes": gpu.other_memory_bytes,
            "memory_used_bytes": gpu.memory_used_bytes,
        },
        fix=Fix(text="See who they are with nvidia-smi, and choose an idle device."),
    )


def _active(gpu: GpuUsage) -> float:
    return gpu.kernel_active_fraction or 0.0


def _crowd(gpu: GpuUsage) -> str:
    """Who was there before the trial, and what they hold."""
    if not gpu.other_processes:
        return f"{format_bytes(gpu.memory_used_bytes)} of its memory are in use by others"
    others = "another process" if gpu.other_processes == 1 else f"{gpu.other_processes} others"
    held = gpu.other_memory_bytes
    return f"{others} had it before" + ("" if held is None else f", with {format_bytes(held)}")
