"""Work of a known length for a device."""

from __future__ import annotations

import math

import torch

from dlprof.device.runtime import Runtime

_SCRATCH_BYTES = 64 << 20
_LEAST_S = 1e-6


class Spinner:
    """Keeps the device busy for a while.

    Rounds of an elementwise operation on a buffer of its own: public torch, on every device.

    Args:
        runtime: The device.
        size: Bytes of the buffer.
    """

    def __init__(self, runtime: Runtime, size: int = _SCRATCH_BYTES) -> None:
        self._runtime = runtime
        self._scratch = torch.zeros(size, dtype=torch.uint8, device=runtime.device)
        self._each_s = max(_LEAST_S, self._timed(8) / 8)

    def spin(self, seconds: float) -> None:
        """Order work of about so many seconds, on the current stream."""
        for _ in range(math.ceil(seconds / self._each_s)):
            self._scratch.bitwise_not_()

    def _timed(self, count: int) -> float:
        self._scratch.bitwise_not_()  # the first loads the kernel
        began, ended = self._runtime.event(), self._runtime.event()
        began.record(self._runtime.current())
        for _ in range(count):
            self._scratch.bitwise_not_()
        ended.record(self._runtime.current())
        ended.synchronize()
        return began.elapsed_time(ended) / 1e3
