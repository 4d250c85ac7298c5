"""Follows a trial's batches through their stages, where it is to explain and not to compare."""

from __future__ import annotations

import contextlib
import dataclasses
import math
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from dlprof.records import Config

if TYPE_CHECKING:
    from dlprof.tracing.trace import Trace
    from dlprof.trial.copying import DeviceCopier
    from dlprof.trial.measure import Loop


_REBATCHED = (
    "{name} makes other batches of those of the DataLoader that it holds, "
    "so only the wait in next() is timed"
)


class Explainer:
    """Follows the batches of a loader while it is measured.

    A loader that is made around a DataLoader is followed through that one, where each batch of the
    one is a batch of the other. ``computes`` says whether the consumer may compute between batches.
    """

    def __init__(
        self, loader: Any, window: Callable[[str, float], object], *, computes: bool
    ) -> None:
        from dlprof.targets.parts import dataloader_of
        from dlprof.tracing.tracer import Tracer

        self.tracer = Tracer(loader)
        self.tracer.install()
        inner = dataloader_of(loader)
        self._outer_name = type(loader).__name__
        self._inner = None if inner is None or inner is loader else Tracer(inner)
        if self._inner is not None:
            self._inner.install()
        self._window = window
        self._computes = computes
        self._began_ns = self._ended_ns = 0

    def window(self, edge: str, fill_s: float) -> None:
        """Note an edge of the window, inside of what the supervisor does there."""
        if edge == "end":
            self._ended_ns = time.perf_counter_ns()
        self._window(edge, fill_s)
        if edge == "start":
            self._began_ns = time.perf_counter_ns()

    def _trace(self, edges: tuple[int, int]) -> Trace:
        from dlprof.tracing.explain import in_window

        self.tracer.remove()
        trace = self.tracer.trace()
        if self._inner is None:
            return trace
        self._inner.remove()
        within = self._inner.trace()
        more = len(in_window(within, edges)) - len(in_window(trace, edges))
        if within.hooked and abs(more) <= 1:  # one may have come at an edge
            return within
        reason = _REBATCHED.format(name=self._outer_name)
        return dataclasses.replace(trace, unavailable={"hooks": reason})

    def summary(self, config: Config, copies: DeviceCopier | None = None) -> dict[str, Any]:
        """The explanation and the timeline as plain values; the trial's id is not known here."""
        from dlprof.tracing.explain import (
            explain,
            timeline,
            with_copies,
        )

        edges = (self._began_ns, self._ended_ns)
        trace = self._trace(edges)
        # What a chain does behind the DataLoader is work between two batches.
        computes = self._computes or self._inner is not None
        explanation = explain(trace, trial_id="", config=config, window=edges, computes=computes)
        if copies is not None:
            explanation = with_copies(explanation, copies.held_s(), copies.exposed_times())
        return {
            "explanation": dataclasses.asdict(explanation),
            "timeline": dataclasses.asdict(timeline(trace, trial_id="", window=edges)),
        }


def take_rested(loop: Loop, config: Config, rate: float) -> None:
    """Take some batches from workers that have nothing to do, so that the trace holds them.

    Receiving takes longer from a worker that computes, and in a window without a step all of them
    do. A pin thread receives batches while others are made, so that it shows nothing. The queues
    fill by ``rate`` batches a second.
    """
    from dlprof.tracing.explain import LEAST_RESTED

    if not config.num_workers or config.pin_memory or rate <= 0:
        return
    # The queues are taken to be full after so many times the time that loading as many takes.
    filled_s = 1.5 * config.batches_in_flight / rate
    rounds = min(3, math.floor(0.5 / filled_s))  # all of them in half a second
    if rounds * config.num_workers < LEAST_RESTED:
        return
    with contextlib.suppress(Exception):  # the window was sound, whatever comes behind it
        for _ in range(rounds):
            time.sleep(filled_s)
            if not loop.take(config.num_workers):
                return
