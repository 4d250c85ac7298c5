"""What the first batches of a script's loader show to be wrong with its data.

Of an iterable dataset with several workers: whether the first batch of one is that of another. A
worker's first batch comes at its turn, so the first ``W`` batches are from ``W`` workers. Copies of
at most 64 KiB a batch are kept until the next batch of the first worker has come, outside of shared
memory; each takes well under a millisecond, which counts as the script's step.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from dlprof.integrations.ledger import Reading
from dlprof.records import WatchedLoader
from dlprof.targets.counting import heads, same_content

_BYTES = 1 << 16
_MOST_WORKERS = 8
OF_ITERABLES = "_InfiniteConstantSampler"
"""What torch puts in a sampler's place for an iterable dataset."""


class FirstBatches:
    """The first batches of each worker of one loader, compared.

    Args:
        workers: ``num_workers``.

    Attributes:
        over: Whether no more batches are looked at.
        duplicated: Whether two workers gave the same; ``None`` where that can't be seen.
    """

    def __init__(self, workers: int) -> None:
        self.over = False
        self.duplicated: bool | None = None
        self._workers = workers
        self._came = 0
        self._kept: list[list[Any]] = []

    @classmethod
    def of(cls, known: WatchedLoader) -> FirstBatches | None:
        """For a loader; ``None`` where workers can't duplicate data, or come in any order."""
        config = known.config
        if config is None or known.sampler != OF_ITERABLES:
            return None
        return cls(config.num_workers) if config.num_workers > 1 and config.in_order else None

    def again(self) -> FirstBatches:
        """The same for another epoch."""
        return FirstBatches(self._workers)

    def look(self, batch: Any) -> None:
        """Take notice of the next batch."""
        if self._came < min(self._workers, _MOST_WORKERS):
            self._kept.append(heads(batch, _BYTES))
        elif self._came == self._workers:
            # What gives the same batch all the time is no sign of anything.
            self._end(constant=same_content(self._kept[0], heads(batch, _BYTES)))
        self._came += 1

    def end(self) -> None:
        """The epoch is over."""
        if not self.over:
            self._end(constant=False)

    def _end(self, *, constant: bool) -> None:
        self.over = True
        if len(self._kept) > 1:
            first, *others = self._kept
            self.duplicated = not constant and any(same_content(first, each) for each in others)
        self._kept.clear()


class LookingReading:
    """A reading whose first batches are looked at; it puts the plain one in its place after that.

    Args:
        reading: What it stands for.
        first: Looks at them.
        done: Called when no more are looked at.
    """

    __slots__ = ("_done", "_first", "_reading")

    def __init__(self, reading: Any, first: FirstBatches, done: Callable[[Reading], None]) -> None:
        self._reading, self._first, self._done = reading, first, done

    def take(self, advance: Callable[[Any], Any], iterator: Any) -> Any:
        """As ``Reading.take``."""
        first = self._first
        try:
            batch = self._reading.take(advance, iterator)
        except BaseException as error:
            if isinstance(error, StopIteration):
                self._look(first.end)
            raise
        self._look(lambda: first.look(batch))
        return batch

    def _look(self, look: Callable[[], None]) -> None:
        try:
            look()
        except Exception:  # noqa: BLE001 - batches of the user's own class may refuse
            self._first.over = True
        if self._first.over:
            self._done(self._reading)


def promised_batches(loader: Any) -> int | None:
    """``len(loader)`` as far as the script or torch's own samplers have asked for it.

    Nothing else of the user's is run: of an iterable dataset only what the script was told counts.
    """
    told = getattr(loader, "_IterableDataset_len_called", None)
    if isinstance(told, int):
        size = loader.batch_size
        return told if size is None else _batches(told, size, drop_last=loader.drop_last)
    samplers = [getattr(loader, name, None) for name in ("sampler", "batch_sampler")]
    known = [each for each in samplers if each is not None]
    if not known or any(not _is_torchs(each) for each in known):
        return None
    return None if type(known[0]).__name__ == OF_ITERABLES else len(loader)


def _batches(samples: int, size: int, *, drop_last: bool) -> int:
    return samples // size if drop_last else -(-samples // size)


def _is_torchs(sampler: object) -> bool:
    return type(sampler).__module__.startswith("torch.utils.data")
