"""Devices by their UUIDs."""

from __future__ import annotations

import types

import pytest
import torch
from fake_device import FakeDevice

from dlprof.device.runtime import Runtime, held_bytes, identity


@pytest.mark.parametrize(
    ("uuid", "expected"),
    [("1234-5678", "GPU-1234-5678"), ("GPU-1", "GPU-1"), ("MIG-1", "MIG-1"), (None, "")],
)
def test_torch_shows_name_and_uuid(
    monkeypatch: pytest.MonkeyPatch, uuid: str | None, expected: str
) -> None:
    shown = types.SimpleNamespace(name="Card", uuid=uuid)
    module = types.SimpleNamespace(get_device_properties=lambda _device: shown)
    monkeypatch.setattr(torch, "get_device_module", lambda _device: module)
    assert identity(Runtime(torch.device("cuda:0"))) == ("Card", expected)


def test_a_device_that_torch_describes_nowhere_has_neither() -> None:
    assert identity(Runtime(torch.device("meta"))) == ("", "")
    assert identity(FakeDevice()) == ("", "")


def test_what_torch_holds_is_asked_of_each_kind_of_device(monkeypatch: pytest.MonkeyPatch) -> None:
    runtime = Runtime(torch.device("cuda:0"))
    modules = [
        types.SimpleNamespace(memory_reserved=lambda _device: 7),
        types.SimpleNamespace(driver_allocated_memory=lambda: 9),
        types.SimpleNamespace(),
    ]
    found = []
    for module in modules:
        monkeypatch.setattr(torch, "get_device_module", lambda _device, m=module: m)
        found.append(held_bytes(runtime))
    assert found == [7, 9, None]
    assert held_bytes(FakeDevice()) is None
