"""What copying batches to the device costs, as measured or as explained, and which card that is."""

from __future__ import annotations

import dataclasses
from typing import Any

from dlprof.advise.findings.memory import batch_bytes
from dlprof.advise.findings.view import View
from dlprof.records import GpuUsage


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
