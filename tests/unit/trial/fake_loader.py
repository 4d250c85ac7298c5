"""A loader on a clock of its own: batches take virtual seconds, nothing sleeps."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator

from dlprof.targets.loader import EpochGate


class VirtualClock:
    """Seconds that pass only when something says so."""

    def __init__(self) -> None:
        self.now_s = 100.0

    def __call__(self) -> float:
        return self.now_s

    def pass_by(self, seconds: float) -> None:
        self.now_s += seconds


@dataclasses.dataclass
class FakeLoader:
    """Yields ``length`` batches an epoch the way an in-order loader with W workers does.

    Attributes:
        clock: Moved on by starting up and by waiting for batches.
        length: Batches in an epoch.
        workers: W; batches come in bursts of W, every ``batch_s`` seconds.
        startup_s: Start of the workers.
        batch_s: One batch in one worker.
        turnover_s: End of an epoch.
        limit: Batches after which an epoch is ended.
        lost: Batches at the end of an epoch that never come.
        handed_out: Index batches of this epoch.
        epochs: Those that have begun.
        kept_s: One batch in later epochs, if not as in the first.
    """

    clock: VirtualClock
    length: int = 1_000_000
    workers: int = 0
    startup_s: float = 0.5
    batch_s: float = 0.1
    turnover_s: float = 0.25
    limit: float = math.inf
    lost: int = 0
    handed_out: int = 0
    epochs: int = 0
    kept_s: float | None = None

    def __iter__(self) -> Iterator[int]:
        self.epochs += 1
        if self.epochs > 1 and self.kept_s is not None:
            self.batch_s = self.kept_s
        self.clock.pass_by(self.startup_s)
        began_s = self.clock()
        self.handed_out = 0
        for number in range(self.length):
            if number >= self.limit:
                break
            self.handed_out += 1
            if number >= self.length - self.lost:
                break
            rounds = number // self.workers + 1 if self.workers else 1
            if self.workers:
                ready_s = began_s + rounds * self.batch_s
                self.clock.pass_by(max(0.0, ready_s - self.clock()))
            else:
                self.clock.pass_by(self.batch_s)
            yield number
        self.clock.pass_by(self.turnover_s)


class FakeGate(EpochGate):
    """Ends the fake loader's epoch."""

    def __init__(
        self, loader: FakeLoader, *, attached: bool = True, each: int | None = None
    ) -> None:
        self._loader, self._each = loader, each  # samples of a batch, where indices say it
        super().__init__()
        self.attached = self.exact = attached

    @property
    def batches(self) -> int:
        return self._loader.handed_out

    @batches.setter
    def batches(self, _count: int) -> None: ...

    @property
    def sizes(self) -> list[int] | None:
        known = self.attached and self._each is not None
        return [self._each or 0] * self._loader.handed_out if known else None

    def reopen(self, *, limit: float = math.inf) -> None:
        self._loader.limit = limit
