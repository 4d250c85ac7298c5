"""Times what torch's fetcher asks of a dataset and of a collate function.

Only the fetcher's own attributes are replaced: they are torch's, made again in each worker and for
each iterator. The user's code sees its own dataset, as ``self`` and in ``get_worker_info()``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, Protocol

from torch.utils.data import Subset

from dlprof.tracing.clocks import now_s


class Stamps(Protocol):
    """Who is called."""

    ends: list[float]
    """When each sample was there, in seconds."""

    def collating(self) -> None:
        """All samples are there."""

    def collated(self) -> None:
        """The batch is there."""


# Closures and no attributes: this runs for every single sample.


def timed_samples(dataset: Any, ends: list[float]) -> Any:
    """A map-style dataset as its fetcher sees it; all else goes to the dataset itself."""
    stamp, clock = ends.append, now_s

    class TimedSamples:
        def __getitem__(self, index: Any) -> Any:
            sample = dataset[index]
            stamp(clock())
            return sample

        def __getattr__(self, name: str) -> Any:
            if name == "__getitems__":
                raise AttributeError(name)
            return getattr(dataset, name)

    return TimedSamples()


def timed_stream(stream: Iterator[Any], ends: list[float]) -> Any:
    """An iterable dataset's iterator as its fetcher sees it."""
    advance, stamp, clock = stream.__next__, ends.append, now_s

    class TimedStream:
        def __iter__(self) -> TimedStream:
            return self

        def __next__(self) -> Any:
            sample = advance()
            stamp(clock())
            return sample

        def __getattr__(self, name: str) -> Any:
            return getattr(stream, name)

    return TimedStream()


def asked_one_by_one(dataset: Any) -> bool:
    """Whether the fetcher of a map-style dataset asks for single samples.

    A ``Subset`` offers whole batches whatever it holds, and asks its dataset for single samples if
    that has no ``__getitems__``: then nothing changes if it is asked for them itself.
    """
    if type(dataset) is Subset:
        inner = dataset.dataset
        return not callable(getattr(inner, "__getitems__", None)) or (
            type(inner) is Subset and asked_one_by_one(inner)
        )
    return not getattr(dataset, "__getitems__", None)


def instrument(fetcher: Any, stamps: Stamps) -> Callable[[], None]:
    """Time one fetcher.

    Returns:
        What makes it as it was before.
    """
    before: dict[str, Any] = {"collate_fn": fetcher.collate_fn}
    if hasattr(fetcher, "dataset_iter"):
        before["dataset_iter"] = fetcher.dataset_iter
        fetcher.dataset_iter = timed_stream(fetcher.dataset_iter, stamps.ends)
    elif not fetcher.auto_collation or asked_one_by_one(fetcher.dataset):
        before["dataset"] = fetcher.dataset
        fetcher.dataset = timed_samples(fetcher.dataset, stamps.ends)
    fetcher.collate_fn = _timed_collate(fetcher.collate_fn, stamps)

    def undo() -> None:
        for name, value in before.items():
            setattr(fetcher, name, value)

    return undo


def _timed_collate(collate: Callable[[Any], Any], stamps: Stamps) -> Callable[[Any], Any]:
    def timed(samples: Any) -> Any:
        stamps.collating()
        batch = collate(samples)
        stamps.collated()
        return batch

    return timed
