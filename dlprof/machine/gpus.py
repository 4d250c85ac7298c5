"""The machine's GPUs as any driver reports them, and one figure per card from many samples."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from dlprof.records import GpuInfo, GpuUsage


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class GpuNeighbours:
    """Who is on one GPU, the caller's own processes included.

    Attributes:
        index: NVML's index.
        name: The product's name.
        uuid: NVML's UUID.
        processes: Processes that compute on it.
        process_memory_bytes: What these hold, summed.
        memory_used_bytes: Device memory in use by all of them, and by the driver.
        kernel_active_fraction: Share of NVML's last window in which any kernel ran.
        unavailable: Reasons for fields that are ``None``.
    """

    index: int
    name: str
    uuid: str = ""
    processes: int | None = None
    process_memory_bytes: int | None = None
    memory_used_bytes: int | None = None
    kernel_active_fraction: float | None = None
    unavailable: Mapping[str, str] = dataclasses.field(default_factory=dict)


class Gpus:
    """A machine's GPUs, asked of a driver; of this class itself where there are none to ask.

    Args:
        unavailable: Why there are none to read (key ``gpus``), or what of them can't be read.
    """

    def __init__(self, unavailable: Mapping[str, str]) -> None:
        self.unavailable = dict(unavailable)

    def list_gpus(self, root: Path = Path("/")) -> tuple[GpuInfo, ...]:  # noqa: ARG002
        """The cards. What a driver doesn't report of one is ``None``, with its reason above."""
        return ()

    def prime(self) -> None:
        """Begin a window: what is counted from now on is of it."""

    def sample(self, *, pcie: bool = False) -> tuple[GpuUsage, ...]:  # noqa: ARG002
        """What each card is doing.

        Args:
            pcie: Also ask two of NVIDIA's cards in turn for their link's throughput, which blocks
                for 40 ms each, where nothing counts its bytes.
        """
        return ()

    def neighbours(self) -> tuple[GpuNeighbours, ...]:
        """Who is on each card. Milliseconds per card under a lock of the driver's: ask seldom."""
        return ()

    def close(self) -> None:
        """Let go of the driver. Nothing can be read afterwards."""


_MEANS = (
    *("kernel_active_fraction", "pcie_rx_bytes_per_s", "pcie_tx_bytes_per_s"),
    *("sm_active_fraction", "sm_occupancy_fraction", "sm_clock_hz"),
    *("throttled_fraction", "power_w"),
)
_PEAKS = ("memory_used_bytes", "pcie_generation", "pcie_width")


def mean_usage(samples: Sequence[Sequence[GpuUsage]]) -> tuple[GpuUsage, ...]:
    """One entry per card: means, the peak of the memory, and the link at its widest.

    A card that fell silent keeps what it reported before, with the reason under ``samples``.
    """
    by_card: dict[int, list[GpuUsage]] = {}
    for sample in samples:
        for usage in sample:
            by_card.setdefault(usage.index, []).append(usage)
    return tuple(_mean_of(usages) for usages in by_card.values())


def _mean_of(usages: Sequence[GpuUsage]) -> GpuUsage:
    figures: dict[str, Any] = {}  # by field, each of the field's type
    for name in _MEANS:
        known = _known(usages, name)
        figures[name] = sum(known) / len(known) if known else None
    for name in _PEAKS:
        figures[name] = max(_known(usages, name), default=None)
    held = (words for usage in usages for words in usage.throttle_reasons)
    reasons = {name: why for usage in usages for name, why in usage.unavailable.items()}
    missing = {name: why for name, why in reasons.items() if figures.get(name) is None}
    return dataclasses.replace(
        usages[-1],
        throttle_reasons=tuple(dict.fromkeys(held)),
        samples=sum(usage.samples for usage in usages),
        unavailable={**missing, **_silence(usages)},
        **figures,
    )


def _silence(usages: Sequence[GpuUsage]) -> dict[str, str]:
    """Why the last sample of a card that had reported something reported nothing."""
    heard = [usage for usage in usages if _reports(usage)]
    if not heard or _reports(usages[-1]):
        return {}
    why = next(iter(usages[-1].unavailable.values()), "it reported nothing more")
    return {"samples": f"{why}; the figures are of the {len(heard)} samples before"}


def _reports(usage: GpuUsage) -> bool:
    return usage.kernel_active_fraction is not None or usage.memory_used_bytes is not None


def _known(usages: Sequence[GpuUsage], name: str) -> list[Any]:
    values = (getattr(usage, name) for usage in usages)
    return [value for value in values if value is not None]
