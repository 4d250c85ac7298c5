"""Durations counted as they come, in bounded memory."""

from __future__ import annotations

import struct
import sys
from array import array
from collections import Counter
from collections.abc import Iterable
from typing import Self

from dlprof.records import Durations

_NS = 1_000_000_000
# Of the four 16-bit words of a double, the one with its exponent and the highest bits below it.
_TOP_WORD = 3 if sys.byteorder == "little" else 0


class Histogram:
    """Counts of nanoseconds in bins that grow with what they hold: 16 for each power of two.

    A bin is the first 16 bits of a duration written as a double: they are there for the taking,
    where working out a bin in Python would cost more than all else that is done for a batch. The
    middle of a bin is within 3.1 % of all that fell into it. There are 1,000 bins up to 292 years.
    """

    __slots__ = ("bins", "count", "longest_ns", "total_ns")

    def __init__(self) -> None:
        self.bins: Counter[int] = Counter()
        self.count = 0
        self.total_ns = 0
        self.longest_ns = 0

    def add(self, durations_ns: Iterable[int]) -> None:
        """Count durations, none of them negative."""
        durations = list(durations_ns)
        if not durations:
            return
        self.count += len(durations)
        self.total_ns += sum(durations)
        self.longest_ns = max(self.longest_ns, *durations)
        words = memoryview(array("d", durations)).cast("B").cast("H")
        self.bins.update(words[_TOP_WORD::4].tolist())

    def copy(self) -> Self:
        """The same counts, which later additions don't change."""
        made = type(self)()
        made.bins = self.bins.copy()
        made.count, made.total_ns = self.count, self.total_ns
        made.longest_ns = self.longest_ns
        return made

    def since(self, earlier: Histogram) -> Self:
        """What was added after ``earlier`` was copied; its longest is the top of a bin."""
        made = type(self)()
        made.bins = self.bins - earlier.bins
        made.count = self.count - earlier.count
        made.total_ns = self.total_ns - earlier.total_ns
        if made.count:
            made.longest_ns = min(self.longest_ns, int(_bottom(max(made.bins) + 1)))
        return made

    def quantile_s(self, share: float) -> float:
        """The duration that this share of all does not exceed, in seconds; 0 without any."""
        wanted, seen = share * self.count, 0
        for word in sorted(self.bins):
            seen += self.bins[word]
            if seen >= wanted:
                middle = (_bottom(word) + _bottom(word + 1)) / 2
                return min(middle, self.longest_ns) / _NS
        return 0.0

    def durations(self) -> Durations | None:
        """The figures for a record; ``None`` where nothing was counted."""
        if not self.count:
            return None
        return Durations(
            count=self.count,
            total_s=self.total_ns / _NS,
            mean_s=self.total_ns / self.count / _NS,
            median_s=self.quantile_s(0.5),
            p95_s=self.quantile_s(0.95),
            p99_s=self.quantile_s(0.99),
            max_s=self.longest_ns / _NS,
        )


def _bottom(word: int) -> float:
    """The shortest duration of a bin, in nanoseconds."""
    (bottom,) = struct.unpack(">d", struct.pack(">Hxxxxxx", word))
    return float(bottom)
