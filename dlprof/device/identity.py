"""Which card a device is, and what torch holds on it.

By its UUID, because torch and NVML number cards in different orders.
"""

from __future__ import annotations

import torch

from dlprof.device.runtime import AcceleratorRuntime, Runtime


def identity(runtime: Runtime) -> tuple[str, str]:
    """A device's name and NVML's UUID, as far as torch tells; empty texts otherwise."""
    if not isinstance(runtime, AcceleratorRuntime):
        return "", ""
    try:
        module = torch.get_device_module(runtime.device)
        properties = module.get_device_properties(runtime.device)
    except (AttributeError, RuntimeError):  # a kind of device that torch describes in no module
        return "", ""
    uuid = str(getattr(properties, "uuid", "") or "")
    known = uuid if not uuid or uuid.startswith(("GPU-", "MIG-")) else f"GPU-{uuid}"
    return str(getattr(properties, "name", "")), known


def held_bytes(runtime: Runtime) -> int | None:
    """Device memory that torch's allocator holds in this process; ``None`` where it doesn't tell.

    All that is to be had of Apple's GPUs, which tell nothing to other processes.
    """
    if not isinstance(runtime, AcceleratorRuntime):
        return None
    try:
        module = torch.get_device_module(runtime.device)
        if hasattr(module, "driver_allocated_memory"):  # Apple's, of which there is only one
            return int(module.driver_allocated_memory())
        return int(module.memory_reserved(runtime.device))
    except (AttributeError, RuntimeError):
        return None
