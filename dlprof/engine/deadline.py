"""When the trials of a sweep or profile must have ended, so that all of it keeps its budget."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable

_OVERRUN = 0.05
"""Share of the budget by which the last trial may exceed it before it is ended."""

_PROMISED = 0.10
"""Share of the budget by which the whole may exceed it."""

_ENDING_S = 0.7
"""What follows the last trial where nobody else is on the machine: it is ended, at worst, what it
told is worked out, all processes go, and the screen is drawn."""

_END_PER_START = 0.5
"""Length of that over the program's start: a machine on which starting is slow ends slowly too."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Deadline:
    """What is left of a budget for trials.

    Attributes:
        budget_s: Seconds in all, the program's start and end included.
        began_s: When the program began, by ``clock``.
        ending_s: What follows the last trial.
        clock: Monotonic seconds.
    """

    budget_s: float
    began_s: float
    ending_s: float = _ENDING_S
    clock: Callable[[], float] = time.monotonic

    @classmethod
    def since(cls, began_s: float | None, budget_s: float) -> Deadline:
        """The deadline of a program that has just read its settings.

        Args:
            began_s: When it began, by ``time.monotonic``; ``None`` for now.
            budget_s: Seconds in all.
        """
        now_s = time.monotonic()
        began_s = now_s if began_s is None else began_s
        ending_s = max(_ENDING_S, _END_PER_START * (now_s - began_s))
        return cls(budget_s=budget_s, began_s=began_s, ending_s=ending_s)

    @property
    def elapsed_s(self) -> float:
        """Seconds since the program began."""
        return self.clock() - self.began_s

    @property
    def left_s(self) -> float:
        """Seconds that trials may be planned for."""
        return self._until_s(overrun=0.0)

    @property
    def cut_s(self) -> float:
        """Seconds after which the trial that runs is ended."""
        return self._until_s(overrun=_OVERRUN)

    def _until_s(self, *, overrun: float) -> float:
        promised_s = (1 + _PROMISED) * self.budget_s - self.ending_s
        return min((1 + overrun) * self.budget_s, promised_s) - self.elapsed_s
