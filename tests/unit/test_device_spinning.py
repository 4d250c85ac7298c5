"""Work of a known length, on a card whose clocks rise under load."""

from __future__ import annotations

import pytest
import torch
from fake_device import FakeDevice

from dlprof.device import runtime
from dlprof.device.runtime import Spinner

_SIZE = 1 << 20
_ROUND_S = 50e-6
_RESTING = 200
"""Rounds that take ten times as long."""


@pytest.fixture
def device(monkeypatch: pytest.MonkeyPatch) -> FakeDevice:
    fake, done = FakeDevice(), [0]

    def compute(part: torch.Tensor) -> torch.Tensor:
        done[0] += 1
        slower = 10 if done[0] < _RESTING else 1
        fake.current().order(slower * _ROUND_S * part.numel() / _SIZE)
        return part

    monkeypatch.setattr(torch.Tensor, "bitwise_not_", compute)
    monkeypatch.setattr(runtime, "_WARM_UP_S", 0.05)
    return fake


@pytest.mark.parametrize("seconds", [20e-6, 1.02e-3, 12e-3])
def test_a_spin_is_as_long_as_was_asked_on_a_card_that_rested(
    device: FakeDevice, seconds: float
) -> None:
    spinner = Spinner(device, _SIZE)
    began_s = device.main.until_s
    spinner.spin(seconds)
    assert device.main.until_s - began_s == pytest.approx(seconds, rel=1e-3)
