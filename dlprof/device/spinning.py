"""Work of a known length for a device."""

from __future__ import annotations

import math
import time

import torch

from dlprof.device.runtime import Runtime

_SCRATCH_BYTES = 64 << 20
_LEAST_S = 1e-6
_ROUNDS = 8
_WARM_UP_S = 0.25
"""A card that rests has low clocks, by up to a factor of ten, and raises them only under load."""


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
        self._each_s = max(_LEAST_S, self._fastest())

    def spin(self, seconds: float) -> None:
        """Order work of about so many seconds, on the current stream."""
        rest, rounds = math.modf(seconds / self._each_s)
        for _ in range(int(rounds)):
            self._scratch.bitwise_not_()
        part = self._scratch[: int(rest * self._scratch.numel())]
        if part.numel():
            part.bitwise_not_()

    def _fastest(self) -> float:
        """Seconds of a round once the card has come up to speed."""
        self._timed(1)  # loads the kernel
        until_s, best_s = time.perf_counter() + _WARM_UP_S, math.inf
        while best_s == math.inf or time.perf_counter() < until_s:
            best_s = min(best_s, self._timed(_ROUNDS) / _ROUNDS)
        return best_s

    def _timed(self, count: int) -> float:
        began, ended = self._runtime.event(), self._runtime.event()
        began.record(self._runtime.current())
        for _ in range(count):
            self._scratch.bitwise_not_()
        ended.record(self._runtime.current())
        ended.synchronize()
        return began.elapsed_time(ended) / 1e3
