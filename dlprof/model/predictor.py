"""What every predictor offers, and what it finds."""

from __future__ import annotations

import dataclasses
from typing import Protocol

from dlprof.model.conditions import Conditions
from dlprof.model.deck import Deck
from dlprof.model.work import Cell
from dlprof.records import Calibration, Config, Prediction


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Steady:
    """A loader that runs on and on.

    Attributes:
        batches_per_s: Rate of one rank.
        held_back: Whether workers stood idle because ``prefetch_factor`` allowed no more; if
            not, a larger one changes nothing.
        held_by_order: Whether batches wait for slow ones before them, and not for cores alone.
    """

    batches_per_s: float
    held_back: bool = True
    held_by_order: bool = False


class Predictor(Protocol):
    """One way of predicting. Deterministic: equal questions get equal answers."""

    @property
    def method(self) -> str:
        """``closed``, ``maxplus`` or ``simulation``."""

    def steady(self, cell: Cell, deck: Deck, /) -> Steady:
        """The steady rate of one configuration, from batches that the deck deals."""

    def predict(
        self, calibration: Calibration, config: Config, conditions: Conditions
    ) -> Prediction:
        """Everything about one configuration, with intervals.

        Raises:
            ValueError: The calibration holds no batch, or is for another batch size.
        """
