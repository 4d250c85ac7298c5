"""What a loader shows to be wrong with its data without failing."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from dlprof.trial.measure import Loop

if TYPE_CHECKING:
    from dlprof.targets.build import BuiltTarget

DUPLICATED = (
    "two workers gave the same first batch: an iterable data set must share its samples among "
    "workers by torch.utils.data.get_worker_info(), or each comes once per worker"
)
LENGTH = (
    "an epoch gave {came} batches where __len__ promises {promised}: what counts steps by "
    "len(loader), such as a learning rate schedule, goes wrong"
)


class Seen:
    """What the first batches of a loader show of its data.

    Args:
        kind: ``map`` or ``iterable``.
    """

    def __init__(self, kind: str) -> None:
        self._kind = kind
        self.sizes: list[int] = []
        self.warnings: list[str] = []

    def inspect(self, batches: Sequence[Any]) -> None:
        """Look at them once, outside the window."""
        from dlprof.targets.counting import count_bytes, same_content  # noqa: PLC0415

        self.sizes = [count_bytes(batch) for batch in batches]
        if self._kind == "iterable" and len(batches) > 1 and same_content(batches[0], batches[1]):
            self.warnings.append(DUPLICATED)


def length_warning(loop: Loop, built: BuiltTarget) -> list[str]:
    """Whether an iterable's ``__len__`` lies; a map-style one that promises too much raises."""
    promised = loop.promised() if built.target.kind == "iterable" else None
    if promised is None:
        return []
    spare = len(loop.workers)  # each may end with a batch that is not full
    for log in loop.logs:
        came = len(log.yields_s)
        if came > promised + spare or (log.whole and came < promised - spare):
            return [LENGTH.format(came=came, promised=promised)]
    return []
