"""How often the observer looks at what it watches."""

from __future__ import annotations

import itertools
import os
import sys
import time
import types
from typing import Any

import pytest

from dlprof.trial.observer import LOOK_S, RAREST, SHARE, MemoryGuard, Observer


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


@pytest.mark.parametrize(("platform", "ends"), [("darwin", True), ("linux", False)])
def test_a_limit_holds_where_no_kernel_knows_the_proportional_size(
    monkeypatch: pytest.MonkeyPatch, platform: str, *, ends: bool
) -> None:
    monkeypatch.setattr(sys, "platform", platform)
    sampler: Any = types.SimpleNamespace(
        memory_now=lambda: (3 << 30, None),
        take=lambda **_: types.SimpleNamespace(pss_peak_bytes=None),
    )
    text = "The trial held 3.0 GiB of memory, more than its limit of 2.0 GiB"
    assert MemoryGuard(sampler, 2 << 30, 0).exceeded() == (text if ends else "")
