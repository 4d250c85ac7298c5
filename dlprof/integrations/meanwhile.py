"""What a script and everybody else used of the machine, from its first look at torch on."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Protocol

from dlprof.machine import Sampler, Snapshot, usage_between
from dlprof.records import Usage


class Samples(Protocol):
    """What takes snapshots."""

    def take(self) -> Snapshot:
        """Read everything once."""


def _of_this_process() -> Samples:
    return Sampler(os.getpid())


class Meanwhile:
    """Two snapshots of the machine, at the two ends of what is watched.

    What can't be read is no fault of the script's: there are no figures then.

    Args:
        alone: Whether this process is its job's only one. Of several ranks each would take the
            others for neighbours, so that nothing is read.
        sampler: Makes what takes the snapshots.
    """

    def __init__(self, *, alone: bool, sampler: Callable[[], Samples] = _of_this_process) -> None:
        self._alone = alone
        self._new_sampler = sampler
        self._sampler: Samples | None = None
        self._first: Snapshot | None = None

    def begin(self) -> None:
        """Take the first snapshot; once."""
        if not self._alone or self._first is not None:
            return
        try:
            self._sampler = self._new_sampler()
            self._first = self._sampler.take()
        except Exception:  # noqa: BLE001 - a training must not end by being watched
            self._first = None

    def usage(self) -> Usage | None:
        """What was used since; ``None`` where that isn't known."""
        if self._sampler is None or self._first is None:
            return None
        try:
            return usage_between(self._first, self._sampler.take())[0]
        except Exception:  # noqa: BLE001 - as above
            return None
