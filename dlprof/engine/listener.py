"""Who is told what a sweep does."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from dlprof.records import Config, Run, RunHeader, SweepPrediction, Trial, Usage


class SweepListener(Protocol):
    """Told what a sweep does, as it does it."""

    def preparing(self, what: str, done: int, total: int) -> None:
        """Data of a built-in workload is being made; ``total`` is 0 where it can't be counted."""

    def planned(self, header: RunHeader, configs: Sequence[Config], repeats: int | None) -> None:
        """What will be measured is known."""

    def predicted(self, prediction: SweepPrediction) -> None:
        """What a model says of all configurations is known, and which few will be measured."""

    def trial_started(
        self, config: Config, repetition: int, elapsed_s: float, expected_total_s: float
    ) -> None:
        """A trial begins."""

    def trial_ended(self, trial: Trial) -> None:
        """A trial is in the run file."""

    def pulse(self, usage: Usage) -> None:
        """What the machine did in the last half second."""

    def message(self, text: str) -> None:
        """Something that the user should know."""

    def ended(self, run: Run) -> None:
        """The sweep is over."""
