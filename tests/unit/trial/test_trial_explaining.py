"""Batches that are taken from resting workers behind a window."""

from __future__ import annotations

from typing import Any, cast

import pytest

from dlprof.records import Config
from dlprof.trial.child import take_rested


class Taken:
    """A loop; each call of ``take`` is shown beside the sleep before it."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *, lasts: int = 9) -> None:
        self.shown: list[float | int] = []
        self._lasts = lasts
        monkeypatch.setattr("time.sleep", self.shown.append)

    def take(self, count: int) -> bool:
        self.shown.append(count)
        self._lasts -= 1
        return self._lasts > 0


def rested(loop: Taken, config: Config, rate: float) -> list[float | int]:
    take_rested(cast("Any", loop), config, rate)
    return loop.shown


def test_a_batch_of_each_worker_is_taken_once_the_queues_are_full(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    config = Config(num_workers=2, prefetch_factor=2)  # 4 batches, in 40 ms
    assert rested(Taken(monkeypatch), config, 100.0) == pytest.approx([0.06, 2] * 3)


def test_it_ends_with_the_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    config = Config(num_workers=2, prefetch_factor=2)
    assert len(rested(Taken(monkeypatch, lasts=1), config, 100.0)) == 2


@pytest.mark.parametrize(
    ("config", "rate"),
    [
        (Config(), 100.0),
        (Config(num_workers=2, prefetch_factor=2, pin_memory=True), 100.0),
        (Config(num_workers=2, prefetch_factor=2), 0.0),
        (Config(num_workers=2, prefetch_factor=2), 5.0),  # 1.2 s to fill the queues
        (Config(num_workers=1, prefetch_factor=2), 15.0),  # two batches, where three show something
    ],
)
def test_nothing_is_waited_for_where_it_would_show_nothing(
    monkeypatch: pytest.MonkeyPatch, config: Config, rate: float
) -> None:
    assert rested(Taken(monkeypatch), config, rate) == []
