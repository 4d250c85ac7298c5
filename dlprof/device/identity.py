"""Which card a device is: by its UUID, because torch and NVML number cards in different orders."""

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
