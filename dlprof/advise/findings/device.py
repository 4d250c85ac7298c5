"""The way to the device, and who else uses it."""

from __future__ import annotations

import dataclasses

from dlprof.advise.findings.claims import Claim, Place, Words, claim, settings_fix
from dlprof.advise.findings.gains import bound, measured_gain
from dlprof.advise.findings.memory import batch_bytes
from dlprof.advise.findings.view import View
from dlprof.advise.wording import percent
from dlprof.records import Config, Fix, GpuInfo
from dlprof.units import format_bytes, format_duration

_EXPOSED = 0.05
_PINNED_SPEED = 2.0
"""What pinned memory brings at most where copies overlap nothing: 0.458 against 0.367 ms for
4 MB, and with non_blocking the rest as well (FIELD section 6)."""

_GIGATRANSFERS = {1: 2.5, 2: 5.0, 3: 8.0, 4: 16.0, 5: 32.0, 6: 64.0}
_REACHED = 0.75
"""Share of a link's theory that copies of pinned memory reach: 12.4 of 15.75 GB/s."""

_SLOW_LINK = 0.5
_LEAST_COPY_BYTES = 4 << 20
_OTHERS_BUSY = 0.3

_PAGEABLE_CODE = """loader = DataLoader(dataset, pin_memory=True, ...)
batch = batch.to(device, non_blocking=True)"""


def pageable(view: View) -> Claim | None:
    """Copies to the device are unpinned and exposed."""
    costs, pinned = view.costs, pinned_copies(view)
    if costs is None or pinned is None:
        return None
    share = copy_share(view)
    gain = measured_gain(view, pinned)
    if gain is not None and gain.value < 1.02:
        return None
    return claim(
        view,
        "transfer.pageable",
        Words(
            title="Copies to the device are unpinned",
            explanation=f"Copying a batch of {format_bytes(batch_bytes(view))} takes "
            f"{format_duration(costs.copy_s)}, {percent(share)} of the time, and nothing else "
            "happens meanwhile.",
        ),
        place=Place.FAULT,
        cost=share,
        figures={"copy_s": costs.copy_s, "share": share, "batch_bytes": batch_bytes(view)},
        fix=dataclasses.replace(
            settings_fix(view, pinned, "Set pin_memory=True and copy with non_blocking=True."),
            code=_PAGEABLE_CODE,
        ),
        gain=gain or bound(1 / (1 - share * (1 - 1 / _PINNED_SPEED))),
    )


def pinned_copies(view: View) -> Config | None:
    """The same with pinning, where copies are exposed."""
    if view.evidence.accelerator is None or view.config.pin_memory:
        return None
    exposed = copy_share(view) >= _EXPOSED
    return dataclasses.replace(view.config, pin_memory=True) if exposed else None


def copy_share(view: View) -> float:
    """Share of the time that goes to copies to the device."""
    costs = view.costs
    if costs is None or costs.period_s <= 0:
        return 0.0
    return min(0.99, costs.copy_s / costs.period_s)


def link(view: View) -> Claim | None:
    """The link to the device is slower than it should be."""
    costs, size = view.costs, batch_bytes(view)
    theory = link_bytes_per_s(view.evidence.machine.gpus)
    if costs is None or not costs.copy_s or not size or theory is None:
        return None
    if size < _LEAST_COPY_BYTES or not view.config.pin_memory or copy_share(view) < _EXPOSED:
        return None  # small and pageable copies say nothing of the link
    speed = size / costs.copy_s
    if speed >= _SLOW_LINK * _REACHED * theory:
        return None
    left = speed / (_REACHED * theory)
    return claim(
        view,
        "transfer.link",
        Words(
            title="The link to the device is slower than it should be",
            explanation=f"Pinned batches go at {format_bytes(speed)} a second where the card and "
            f"its slot allow {format_bytes(theory)}.",
        ),
        place=Place.FAULT,
        cost=copy_share(view) * (1 - left),
        figures={"copy_bytes_per_s": speed, "link_bytes_per_s": theory, "copy_s": costs.copy_s},
        fix=Fix(
            text="Look at the link's generation and width while copies run (`dlprof transfer`), at "
            "the slot, and at which NUMA node the process runs on."
        ),
        gain=bound(1 / max(0.05, 1 - copy_share(view) * (1 - left))),
    )


def link_bytes_per_s(gpus: tuple[GpuInfo, ...]) -> float | None:
    """The slowest card's theory: GT/s x width x 128/130 / 8 (FIELD section 6)."""
    speeds = [
        _GIGATRANSFERS[gpu.pcie_generation] * gpu.pcie_width * 128 / 130 / 8 * 1e9
        for gpu in gpus
        if gpu.pcie_generation in _GIGATRANSFERS and gpu.pcie_width
    ]
    return min(speeds, default=None)


def neighbours(view: View) -> Claim | None:
    """Other processes use the device."""
    busy = [gpu for gpu in view.usage.gpu if (gpu.kernel_active_fraction or 0) >= _OTHERS_BUSY]
    uses_it = view.evidence.has_step or (view.costs is not None and view.costs.copy_s > 0)
    if not busy or (uses_it and view.evidence.accelerator is not None):
        return None  # what runs there may be the step's own
    gpu = max(busy, key=lambda each: each.kernel_active_fraction or 0)
    active = gpu.kernel_active_fraction or 0.0
    return claim(
        view,
        "gpu.neighbours",
        Words(
            title="Other processes use the device",
            explanation=f"GPU {gpu.index} ({gpu.name}) ran kernels {percent(active)} of the time, "
            f"with {format_bytes(gpu.memory_used_bytes)} in use, none of it for this loader.",
        ),
        place=Place.BEHIND,
        cost=0.0,
        figures={"gpu": gpu.index, "kernel_active_fraction": active},
        fix=Fix(text="See who they are with nvidia-smi, and choose an idle device."),
    )
