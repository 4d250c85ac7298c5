"""What the consumer does with its batches: a step that lasts as long as was asked for."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dlprof.trial.measure import lateness_s, make_consumer
from dlprof.units import parse_step, spread_of


class Kernel:
    """Sleeps on a clock of its own, each time so much too long."""

    def __init__(self, late_s: Sequence[float]) -> None:
        self._late: Iterator[float] = iter(late_s)
        self.now_s = 0.0
        self.slept_s: list[float] = []

    def sleep(self, seconds: float) -> None:
        self.slept_s.append(seconds)
        self.now_s += seconds + next(self._late)

    def clock(self) -> float:
        return self.now_s


def test_a_crowd_that_wakes_some_sleeps_late_does_not_count() -> None:
    kernel = Kernel([8e-5, 9e-5, 4e-3, 7e-5, 2e-3])
    found = lateness_s(1e-3, sleep=kernel.sleep, clock=kernel.clock)
    assert found == pytest.approx(8e-5)
    assert kernel.slept_s == [1e-3] * 5


@given(st.lists(st.floats(-1e-3, 1.0), min_size=5, max_size=5))
def test_lateness_is_never_below_0_nor_a_crowds(late_s: list[float]) -> None:
    kernel = Kernel(late_s)
    assert 0.0 <= lateness_s(1e-3, sleep=kernel.sleep, clock=kernel.clock) <= 2.5e-4


@pytest.mark.parametrize(("step_s", "slept_s"), [(5e-3, 4.9e-3), (1e-3, 9e-4), (5e-5, 1e-9)])
def test_a_step_sleeps_less_by_what_the_kernel_adds(
    step_s: float, slept_s: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    kernel = Kernel([1e-4] * 6)
    monkeypatch.setattr("dlprof.trial.measure.time", kernel)
    monkeypatch.setattr("dlprof.trial.measure.lateness_s", lambda _nap_s: 1e-4)
    make_consumer(step_s, None)("batch")
    assert kernel.slept_s == pytest.approx([slept_s])


def test_steps_that_differ_are_the_same_in_every_trial(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dlprof.trial.measure.lateness_s", lambda _nap_s: 1e-4)
    step, slept = parse_step("uniform:40ms,60ms"), []
    for _ in range(2):
        kernel = Kernel([0.0] * 400)
        monkeypatch.setattr("dlprof.trial.measure.time", kernel)
        consume = make_consumer(float(step), None, spread_of(step))
        for _ in range(400):
            consume("batch")
        slept.append(kernel.slept_s)
    assert slept[0] == slept[1]
    assert sum(slept[0]) == pytest.approx(400 * (0.05 - 1e-4))
    assert 0.039 < min(slept[0]) < 0.042
    assert 0.058 < max(slept[0]) < 0.061


def test_without_a_step_nothing_is_slept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dlprof.trial.measure.time", None)
    assert make_consumer(0.0, None)("batch") is None
