"""Copies to the device that a program makes by itself, noticed between two batches of a loader.

``Tensor.to`` and its like are replaced while somebody looks, and only then.
"""

from __future__ import annotations

import time
from threading import get_ident

import torch

from dlprof.device.moves import Moves, read_pending, seen, streams_now
from dlprof.device.patching import CHANGING, Patch


class Noticer:
    """Notices what the consumers of one loader copy, for its first batches.

    Args:
        kind: Of the device, from ``compiled_for``.
        batches: Noticed at most.
        seconds: As well, from the first batch on.
    """

    def __init__(self, kind: str, *, batches: int, seconds: float) -> None:
        self.over = False
        self._kind = kind
        self._left, self._seconds, self._ends_s = batches, seconds, 0.0
        self._open: dict[int, Moves] = {}
        self._done: list[Moves] = []
        self._patch: Patch | None = None

    def asked(self) -> None:
        """This thread asks for a batch: it is done with the one before."""
        moves = self._close(get_ident())
        if moves is None:
            return
        read_pending()
        self._done.append(moves)
        self._left -= 1
        if self._left <= 0 or time.perf_counter() >= self._ends_s:
            self.over = True
            self.pause()

    def came(self) -> None:
        """This thread has its batch, and may copy it from now on."""
        if self.over:
            return
        try:
            self._ends_s = self._ends_s or time.perf_counter() + self._seconds
            self._hold()
            thread = get_ident()
            moves = seen.by_thread.get(thread)
            if moves is None or moves.pending or moves.bytes:
                moves = Moves(streams=streams_now())
            # Else it is the same batch, on its way through a loader that wraps another.
            seen.by_thread[thread] = self._open[thread] = moves
        except Exception:  # noqa: BLE001 - a training must not end by being watched
            self.over = True
            self.pause()

    def pause(self) -> None:
        """Its iterator ended or was let go of: notice nothing before another batch comes."""
        for thread in list(self._open):
            self._close(thread)
        with CHANGING:
            patch, self._patch = self._patch, None
            if patch is not None:
                patch.let_go()

    def told(self, first: int) -> list[Moves]:
        """Batches whose copies have all ended and were timed; none where nothing was copied.

        Args:
            first: Batches that are left out; of few batches, only the very first.
        """
        read_pending()
        begin = first if len(self._done) > 2 * first else 1
        timed = [each for each in self._done[begin:] if not each.pending and not each.failed]
        return timed if any(each.bytes for each in timed) else []

    def has_failed(self) -> bool:
        """Whether copies of some batch could not be timed."""
        return any(each.failed for each in self._done)

    def _hold(self) -> None:
        """Have the methods replaced, once for all threads that share the loader."""
        with CHANGING:
            if self._patch is None and not self.over:
                self._patch = Patch.held(self._kind)

    def _close(self, thread: int) -> Moves | None:
        moves = self._open.pop(thread, None)
        if moves is not None and seen.by_thread.get(thread) is moves:
            del seen.by_thread[thread]
        return moves


def compiled_for() -> str | None:
    """The kind of accelerator that this torch is made for; ``None`` for none.

    Whether one is there isn't asked: on CUDA that alone keeps processes forked later from it.
    Apple's isn't named: to read an event there is to wait for all that was ordered of the device.
    """
    try:
        found = torch.accelerator.current_accelerator()
    except (AttributeError, RuntimeError):  # a torch of before 2.6
        return None
    return None if found is None or found.type == "mps" else found.type
