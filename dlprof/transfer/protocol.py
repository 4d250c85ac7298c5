"""What ``dlprof transfer`` and the process that copies say to each other; free of torch."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

from dlprof.trial.protocol import BuildRequest


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class TransferRequest:
    """What is to be measured.

    Attributes:
        device: Torch's name; ``auto`` for the accelerator that torch finds, else the CPU.
        all_devices: Copy to all accelerators, one by one and at once.
        most_bytes: Largest buffer.
        budget_s: For plain buffers, over all devices.
        nodes: CPUs of the NUMA nodes, by the node's number as text.
        near: Nodes of the cards' slots, by NVML's UUID.
        build: The target whose batch is copied; ``None`` for none.
        batch_size: Of the target's batch; ``None`` keeps the target's own.
        seed: Of the order of measuring, and of the target's own order.
        parent: The process that asks, without which nobody wants the answer; 0 for any.
    """

    device: str = "auto"
    all_devices: bool = False
    most_bytes: int = 1 << 28
    budget_s: float = 10.0
    nodes: Mapping[str, tuple[int, ...]] = dataclasses.field(default_factory=dict)
    near: Mapping[str, int] = dataclasses.field(default_factory=dict)
    build: BuildRequest | None = None
    batch_size: int | None = None
    seed: int = 0
    parent: int = 0
