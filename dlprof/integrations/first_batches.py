"""What the first batches of a script's loader show to be wrong with its data.

Of an iterable dataset with several workers: whether the first four batches of all are the same. No
batch is kept, only two numbers for each sample, from some 1,000 values of it; that takes some
milliseconds a batch, which count as the script's step.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from dlprof.integrations.ledger import Reading
from dlprof.internals import OF_ITERABLES, promised_length
from dlprof.records import WatchedLoader
from dlprof.targets.counting import SampleCounter, WorkerSamples, is_resampled


class FirstBatches:
    """The first batches of each worker of one loader, compared.

    Args:
        workers: ``num_workers``.

    Attributes:
        over: Whether no more batches are looked at.
    """

    def __init__(self, workers: int) -> None:
        self.over = False
        self._workers = workers
        self._came = 0
        self._compared = WorkerSamples(workers, SampleCounter())

    @classmethod
    def of(cls, known: WatchedLoader, dataset: object = None) -> FirstBatches | None:
        """For a loader; ``None`` where workers can't duplicate data, or draw it at random."""
        config = known.config
        if config is None or known.sampler != OF_ITERABLES:
            return None
        if is_resampled(dataset):
            return None
        return cls(config.num_workers) if config.num_workers > 1 else None

    def again(self) -> FirstBatches:
        """The same for another epoch."""
        return FirstBatches(self._workers)

    @property
    def duplicated(self) -> bool | None:
        """Whether the workers gave the same samples; ``None`` while that can't be said."""
        return self._compared.duplicated if self.over else None

    def look(self, batch: Any) -> None:
        """Take notice of the next batch."""
        self._compared.look(self._came, batch)
        self._came += 1
        self.over = self._compared.is_past(self._came)

    def end(self) -> None:
        """The epoch is over."""
        self.over = True


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

    Nothing else of the user's is run: of an iterable dataset only what the script was given counts,
    and nothing where it draws its shards with replacement, for as long as each worker likes.
    """
    if is_resampled(getattr(loader, "dataset", None)):
        return None
    length = promised_length(loader)
    if length is not None:
        size = loader.batch_size
        return length if size is None else _batches(length, size, drop_last=loader.drop_last)
    samplers = [getattr(loader, name, None) for name in ("sampler", "batch_sampler")]
    known = [each for each in samplers if each is not None]
    own = (type(each).__module__.startswith("torch.utils.data") for each in known)
    if not known or not all(own):
        return None
    return None if type(known[0]).__name__ == OF_ITERABLES else len(loader)


def _batches(samples: int, size: int, *, drop_last: bool) -> int:
    return samples // size if drop_last else -(-samples // size)
