"""What a loader shows to be wrong with its data without failing."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from typing import Any

from dlprof.records import Config, Target
from dlprof.trial.measure import Loop, WrongDataError

LENGTH = (
    "an epoch gave {came} batches where __len__ promises {promised}: what counts steps by "
    "len(loader), such as a learning rate schedule, goes wrong"
)
_DUPLICATED = (
    "Each worker yields the same samples: an epoch with {workers} workers holds each sample "
    "{workers} times."
)
_SHARD = (
    "Let each worker yield its own share of the samples, by torch.utils.data.get_worker_info(), "
    "or use num_workers=0 or 1."
)
_PROMISE = "Make __len__ return the batches that come, and let each worker yield all of its share."
_ROUNDS = 4
"""Batches of each worker that are compared with those of the others."""

_FEWEST = 3
"""Samples that have to differ from each other before equal ones say anything."""

_WEIGHED = 2
"""Batches before the window whose bytes are counted."""

_SAME = 0.9
"""Share of the samples that another worker gave too, from which they are duplicates."""


class Seen:
    """What the batches before the window show of a loader's data.

    Args:
        target: What is loaded.
        config: What runs.
        count: Samples in a batch.
    """

    def __init__(self, target: Target, config: Config, count: Callable[[Any], int | None]) -> None:
        shared = target.kind == "iterable" and config.num_workers > 1 and config.in_order
        self._workers = config.num_workers if shared else 0
        self._count = count
        self._streams: list[list[int]] = []
        self._seen = 0
        self._bytes = 0
        self._samples: int | None = 0

    def inspect(self, position: int, batch: Any) -> None:
        """Look at a batch, whose position in its epoch says which worker it came from.

        Raises:
            WrongDataError: The workers give the same samples.
        """
        from dlprof.targets.counting import sample_digests  # noqa: PLC0415

        if self._seen < _WEIGHED:
            self.weigh(batch)
        if position >= _ROUNDS * self._workers:
            return
        if position == 0:
            self._streams = [[] for _ in range(self._workers)]
        worker = position % self._workers
        self._streams[worker] += sample_digests(batch, self._count(batch) or 0)
        if worker == self._workers - 1 and are_duplicates(self._streams):
            message = _DUPLICATED.format(workers=self._workers)
            raise WrongDataError("duplicated", message, hint=_SHARD)

    def weigh(self, batch: Any) -> None:
        """Count the bytes of a batch."""
        from dlprof.targets.counting import count_bytes  # noqa: PLC0415

        samples = self._count(batch)
        self._seen += 1
        self._bytes += count_bytes(batch)
        self._samples = (
            None if samples is None or self._samples is None else self._samples + samples
        )

    def batch_bytes(self, samples: float | None) -> float:
        """Mean bytes of a batch.

        Args:
            samples: In the mean batch; ``None`` where batches can't be counted.
        """
        if samples is None or not self._samples:
            return self._bytes / max(1, self._seen)
        return self._bytes / self._samples * samples


def are_duplicates(streams: Sequence[Sequence[int]]) -> bool:
    """Whether workers gave the same samples, by a number for each sample of each worker.

    Where a worker repeats itself, samples are drawn with replacement or hardly differ, and equal
    ones say nothing.
    """
    sets = [set(stream) for stream in streams]
    if any(len(one) != len(stream) for one, stream in zip(sets, streams, strict=True)):
        return False
    distinct = set(itertools.chain(*sets))
    again = sum(map(len, sets)) - len(distinct)
    others = sum(map(len, sets)) - max(map(len, sets), default=0)
    return len(distinct) >= _FEWEST and others > 0 and again >= _SAME * others


def check_length(loop: Loop, target: Target) -> list[str]:
    """Whether an iterable's ``__len__`` lies; a map-style one that promises too much raises.

    Returns:
        A warning where more batches came than it promises.

    Raises:
        WrongDataError: An epoch ended with fewer.
    """
    promised = loop.promised() if target.kind == "iterable" else None
    if promised is None:
        return []
    spare = len(loop.workers)  # each may end with a batch that is not full, or leave it out
    for log in loop.logs:
        came = len(log.yields_s)
        told = LENGTH.format(came=f"{came:,}", promised=f"{promised:,}")
        if log.whole and came < promised - spare:
            raise WrongDataError("truncated", f"{told[0].upper()}{told[1:]}.", hint=_PROMISE)
        if came > promised + spare:
            return [told]
    return []
