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
    from dlprof.trial.copies import CopyWatch
    from dlprof.trial.measure import Loop

_FILLED = 1.5
"""The queues are taken to be full after so many times the time that loading as many takes."""

_MOST_RESTING_S = 0.5
_ROUNDS = 3


class Explainer:
    """Follows the batches of a loader while it is measured.

    Args:
        loader: From ``make_loader``.
        window: Told of the window's ends; see ``measure``.
        computes: Whether the consumer may compute between batches.
    """

    def __init__(
        self, loader: Any, window: Callable[[str, float], object], *, computes: bool
    ) -> None:
        from dlprof.tracing.tracer import Tracer  # noqa: PLC0415

        self.tracer = Tracer(loader)
        self.tracer.install()
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

    def told(self, config: Config, copies: CopyWatch | None = None) -> dict[str, Any]:
        """The explanation and the timeline as plain values; the trial's id is not known here.

        Args:
            config: What ran.
            copies: What copied the batches to a device.
        """
        from dlprof.tracing.explain import explain, with_copies  # noqa: PLC0415
        from dlprof.tracing.timeline import timeline  # noqa: PLC0415

        self.tracer.remove()
        trace, edges = self.tracer.trace(), (self._began_ns, self._ended_ns)
        explanation = explain(
            trace, trial_id="", config=config, window=edges, computes=self._computes
        )
        if copies is not None:
            explanation = with_copies(explanation, copies.held_s(), copies.exposed_times())
        return {
            "explanation": dataclasses.asdict(explanation),
            "timeline": dataclasses.asdict(timeline(trace, trial_id="", window=edges)),
        }


def take_rested(loop: Loop, config: Config, rate: float) -> None:
    """Take some batches from workers that have nothing to do, so that the trace holds them.

    Receiving takes longer from a worker that computes, and in a window without a step all of
    them do. A pin thread receives batches while others are made, so that it tells nothing.

    Args:
        loop: Whose window is over.
        config: What ran.
        rate: Batches per second, by which the queues fill.
    """
    from dlprof.tracing.explain import LEAST_RESTED  # noqa: PLC0415

    filled_s = _FILLED * config.batches_in_flight / rate if rate > 0 else math.inf
    if not config.num_workers or config.pin_memory or filled_s > _MOST_RESTING_S:
        return
    rounds = min(_ROUNDS, math.floor(_MOST_RESTING_S / filled_s))
    if rounds * config.num_workers < LEAST_RESTED:
        return
    with contextlib.suppress(Exception):  # the window was sound, whatever comes behind it
        for _ in range(rounds):
            time.sleep(filled_s)
            if not loop.take(config.num_workers):
                return
