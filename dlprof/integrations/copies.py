"""What the consumers of a loader copy to the device by themselves, while its first batches come."""

from __future__ import annotations

import contextlib
import dataclasses
import statistics
import sys
import weakref
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from dlprof.integrations.wait_statistics import Take
from dlprof.records import Copies, Explanation, WatchedLoader

if TYPE_CHECKING:
    from dlprof.device.patching import Moves, Noticer

FOLLOWED_S = 10.0
"""Seconds from the first batch for which first batches are looked at: enough for some 400 looks at
what workers wait for, by which a share is known to 5 points (95%)."""


class ConsumerCopies:
    """Notices them, where torch is loaded and made for an accelerator.

    Args:
        batches: Noticed at most, within ``FOLLOWED_S``.
        first: Of them that are left out, while queues fill and the device is set up.
    """

    def __init__(self, *, batches: int = 200, first: int = 1) -> None:
        self._first = max(1, first)
        self._noticer: Noticer | None = None
        if "torch" not in sys.modules:
            return
        with contextlib.suppress(Exception):  # a training must not end by being watched
            from dlprof.device.patching import Noticer, compiled_for  # as it is loaded

            kind = compiled_for()
            if kind is not None:
                self._noticer = Noticer(kind, batches=batches, seconds=FOLLOWED_S)

    def noticed(self, take: Take) -> Take:
        """``IterationTimer.take``; what consumers copy in between is noticed while that is due."""
        noticer = self._noticer
        if noticer is None or noticer.over:
            return take

        def noticing(advance: Callable[[Any], Any], iterator: Any) -> Any:
            if noticer.over:
                return take(advance, iterator)
            noticer.asked()
            try:
                batch = take(advance, iterator)
            except BaseException:
                noticer.pause()
                raise
            noticer.came()
            return batch

        # It goes with its iterator, wherever the loop was left.
        weakref.finalize(noticing, noticer.pause).atexit = False
        return noticing

    def to_record(self) -> Copies | None:
        """What they cost; ``None`` where nothing was copied."""
        timed = self._timed()
        if not timed:
            return None
        from dlprof.device import runtime

        def mean(figure: Callable[[Moves], float]) -> float:
            return statistics.fmean(map(figure, timed))

        size, copy_s = mean(lambda each: each.bytes), mean(lambda each: each.copy_s)
        exposed_s = mean(lambda each: each.exposed_s)
        used = next(each.device for each in reversed(timed) if each.device is not None)
        device = runtime.Runtime(used)
        held = runtime.held_bytes(device)
        return Copies(
            device=str(used),
            uuid=runtime.identity(device)[1],
            held_bytes=held,
            batches=len(timed),
            timed=len(timed),
            bytes=size,
            copy_s=copy_s,
            exposed_s=exposed_s,
            hidden_s=max(0.0, copy_s - exposed_s),
            blocked_s=mean(lambda each: each.blocked_s),
            pinned_fraction=mean(lambda each: each.pinned_bytes) / size,
            prefetched=exposed_s < copy_s,
            unavailable={} if held is not None else {"held_bytes": "torch doesn't report it"},
        )

    def fill(self, known: WatchedLoader) -> WatchedLoader:
        """The record of the loader with what they cost, or why that isn't known."""
        copies = self.to_record()
        if copies is not None or self._noticer is None or not self._noticer.has_failed():
            return dataclasses.replace(known, copies=copies)
        reasons = {**known.unavailable, "copies": "they were seen, and could not be timed"}
        return dataclasses.replace(known, unavailable=reasons)

    def in_stages(self, explanation: Explanation) -> Explanation:
        """An explanation with the copies separated from the rest of the step."""
        from dlprof.tracing.explain import with_copies

        timed = self._timed()
        if not timed:
            return explanation
        exposed = [each.exposed_s for each in timed]
        # Wherever in its step the loop waits for them: it does so somewhere.
        return with_copies(explanation, statistics.fmean(exposed), exposed)

    def _timed(self) -> list[Moves]:
        return [] if self._noticer is None else self._noticer.moves(self._first)
