"""Ends a trial before it runs the machine, or its own limit, out of memory."""

from __future__ import annotations

from dlprof.machine.snapshot import Sampler
from dlprof.units import format_bytes

_FURTHER = 1.05


class MemoryGuard:
    """Notices that a trial takes more memory than it may, before the kernel has to.

    Args:
        sampler: Of the trial.
        memory_bytes: Most memory of its own; ``None`` for no limit.
        reserve_bytes: What must be left to others.
    """

    def __init__(self, sampler: Sampler, memory_bytes: int | None, reserve_bytes: int) -> None:
        self._sampler = sampler
        self._memory_bytes = memory_bytes
        self._reserve_bytes = reserve_bytes
        self._asked_at_bytes = 0.0

    def exceeded(self) -> str:
        """Which limit is exceeded, one sentence; empty if none is."""
        now = self._sampler.memory_now()
        available, private = now.available_bytes, now.private_bytes
        # A trial that holds less than it would have to give back is not what fills the machine.
        if available is not None and available < self._reserve_bytes < (private or 0):
            return (
                f"The trial was ended because it left only {format_bytes(available)} of memory; "
                f"it held {format_bytes(private)}"
            )
        if self._memory_bytes is None or private is None:
            return ""
        if private <= max(self._memory_bytes, _FURTHER * self._asked_at_bytes):
            return ""
        # Pages shared since a fork count in every process; what they take in truth costs more
        # to ask, so it is asked again only when there is clearly more.
        self._asked_at_bytes = private
        held = self._sampler.take(memory=True).pss_peak_bytes
        if held is None or held <= self._memory_bytes:
            return ""
        limit = format_bytes(self._memory_bytes)
        return f"The trial held {format_bytes(held)} of memory, more than its limit of {limit}"
