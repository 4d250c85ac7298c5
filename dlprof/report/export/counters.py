"""How many batches are where at a moment of a timeline."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Mapping, Sequence

from dlprof.records import Timeline

# From the column of the beginning to that of the end. What never came to an end is not counted.
_PLACES: Mapping[str, tuple[str, str]] = {
    "loading": ("picked_s", "collated_s"),
    "queued": ("serialised_s", "received_s"),
    "held": ("rebuilt_s", "yielded_s"),
}


class Counts:
    """The batches at each place: ``loading`` in workers, ``queued``, ``held`` in main."""

    def __init__(self, timeline: Timeline) -> None:
        """Sort the columns once.

        Args:
            timeline: Whose batches are counted.
        """
        self._places = {
            place: _sorted_ends(getattr(timeline, begin), getattr(timeline, end))
            for place, (begin, end) in _PLACES.items()
        }

    def at(self, moment_s: float) -> dict[str, int]:
        """How many batches are where, by place; those that have left at that moment are gone.

        Args:
            moment_s: As the timeline's times.
        """
        return {
            place: bisect_right(begins, moment_s) - bisect_right(ends, moment_s)
            for place, (begins, ends) in self._places.items()
        }


def _sorted_ends(
    begins: Sequence[float | None], ends: Sequence[float | None]
) -> tuple[list[float], list[float]]:
    pairs = [
        (begin, end)
        for begin, end in zip(begins, ends, strict=False)
        if begin is not None and end is not None and begin <= end
    ]
    return sorted(begin for begin, _ in pairs), sorted(end for _, end in pairs)
