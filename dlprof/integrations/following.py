"""The first batches of a loader followed through its workers, and then no more."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

from dlprof.integrations.copies import ConsumerCopies
from dlprof.records import Config, Explanation, Timeline

if TYPE_CHECKING:
    from dlprof.tracing.tracer import Tracer

BATCHES = 200
"""Followed of each loader, or more where so many would hardly fill its queues."""

FEW: Final = 60
"""Where steps are to be measured by themselves as well, which begins behind those that are."""

SECONDS = 10.0
"""Followed at most of each loader, from its first batch."""


class Follower:
    """Follows the first batches of one loader of a script's.

    Made where torch is loaded already.

    Args:
        name: The loader's.
        config: Its settings.
        batches: Followed, or more as above.

    Attributes:
        copies: What its consumers copy to the device meanwhile.
    """

    def __init__(self, name: str, config: Config, batches: int = BATCHES) -> None:
        from dlprof.tracing.tracer import Tracer  # noqa: PLC0415 - it imports torch

        self._name, self._config = name, config
        self._warm_up = config.batches_in_flight + config.num_workers
        batches = min(2000, max(batches, 4 * self._warm_up))
        self._tracer: Tracer = Tracer(
            capacity=batches, stop_after_batches=batches, stop_after_s=SECONDS
        )
        self.copies = ConsumerCopies(batches=batches, first=self._warm_up)
        self._refused = ""

    @property
    def refused(self) -> str:
        """Why batches could not be followed; empty where they could."""
        return self._refused or next(iter(self._tracer.trace().unavailable.values()), "")

    @property
    def over(self) -> bool:
        """Whether it follows no more."""
        return self._tracer.stopped

    def make(self, loader: Any, iterator: Any, make: Callable[[], None]) -> None:
        """Make an iterator, followed where its loader lets that be done.

        Args:
            loader: Whose it is.
            iterator: The object, whose ``__init__`` is about to run.
            make: Runs that; what it raises is the script's own.
        """
        with contextlib.ExitStack() as stack:
            try:
                adopt = stack.enter_context(self._tracer.making(loader))
            except Exception as error:  # noqa: BLE001 - a class of the user's own may refuse
                self._refused = f"{type(loader).__name__} refused the hooks ({error})"
                adopt = None
            make()
        if adopt is not None:
            adopt(iterator)

    def summary(self) -> tuple[Explanation, Timeline] | None:
        """What the batches have shown so far; the first ones, while queues fill, are left out."""
        from dlprof.tracing.explain import explain  # noqa: PLC0415 - used where torch is loaded
        from dlprof.tracing.timeline import timeline  # noqa: PLC0415

        trace = self._tracer.trace()
        rows = trace.rows
        if not rows:
            return None
        config, warm_up = self._config, self._warm_up
        first = rows[warm_up if len(rows) > 2 * warm_up else 0]
        window = first.asked, rows[-1].yielded
        explanation = explain(trace, trial_id=self._name, config=config, window=window)
        return self.copies.in_stages(explanation), timeline(trace, trial_id=self._name)
