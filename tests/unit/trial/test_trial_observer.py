"""How often the observer looks at what it watches."""

from __future__ import annotations

import itertools
import os
import time
import types
from typing import Any

import pytest

from dlprof.trial.observer import LOOK_S, RAREST, SHARE, Observer


@pytest.mark.parametrize(
    ("cost_s", "pause_s"),
    [
        (0.0001, LOOK_S),
        (0.002, 0.002 / SHARE),
        (1.0, RAREST * LOOK_S),  # memory has to be watched all the same
    ],
)
def test_looks_that_are_expensive_are_farther_apart(
    monkeypatch: pytest.MonkeyPatch, cost_s: float, pause_s: float
) -> None:
    said: list[object] = []
    gpus: Any = types.SimpleNamespace(begin=lambda: None)
    observer = Observer(said.append, gpus)
    observer.obey({"order": "watch", "pid": os.getpid()})
    spent_s = itertools.count(0.0, cost_s)  # CPU time of the thread, as it is asked for
    monkeypatch.setattr(time, "thread_time", lambda: next(spent_s))
    observer.look()
    assert observer.pause_s == pytest.approx(pause_s)
    assert not said
