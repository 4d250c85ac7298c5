"""Where page-locked memory would do harm: it can't be swapped out."""

from __future__ import annotations

from dlprof.records import Machine
from dlprof.units import format_bytes

_SHORT = 0.1
"""A machine with less than this share of its memory to be had has none to lock."""

_TIGHT = 0.25
_SWAPPED = 0.02
"""Swap in use beyond this share of the memory, while little is to be had, means that it swaps. With
plenty to be had, it is what was swapped out once and nobody needed again."""


def pin_hazard(machine: Machine) -> str | None:
    """Why ``pin_memory=True`` is not tried on a machine as it is now; ``None`` where it can be.

    Args:
        machine: With its memory, swap and limits of this moment.
    """
    sizes = (machine.memory_limit_bytes, machine.memory_bytes)
    size = min((each for each in sizes if each is not None), default=None)
    free = machine.memory_available_bytes
    if size is None or free is None:
        return None
    had = f"{format_bytes(free)} of {format_bytes(size)} memory can be had"
    if free < _SHORT * size:
        return f"only {had}, and pinned memory can't be swapped out"
    swapped = machine.swap_used_bytes or 0
    if swapped > _SWAPPED * size and free < _TIGHT * size:
        used = format_bytes(swapped)
        return f"the machine swaps ({used} swapped out, {had}), and pinned memory can't be"
    return None
