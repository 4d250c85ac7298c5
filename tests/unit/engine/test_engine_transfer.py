"""What `dlprof transfer` makes of another process's words, of its silence and of its death."""

from __future__ import annotations

import dataclasses
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from waiting import has_ended, until

from dlprof.engine.transfer import TransferSettings, run_transfer
from dlprof.errors import NothingMeasuredError, TargetError, UsageError
from dlprof.records import Usage
from dlprof.records.transfer import DeviceTransfer, TogetherRate
from dlprof.trial.runtime import Inbox

_HOST = dataclasses.asdict(DeviceTransfer(device="cpu", timed_by="host clock"))
_RATE = {
    "device": "cuda:0",
    "alone_bytes_per_s": 1e9,
    "together_bytes_per_s": {"value": 1e9, "low": None, "high": None},
}
_START = """
import json, os, sys, time
def say(**message):
    print(json.dumps(message), flush=True)
request = json.loads(sys.stdin.readline())
"""


class Listener:
    """Keeps what it is given."""

    def __init__(self) -> None:
        self.shown: list[str] = []
        self.pulses = 0

    def message(self, text: str) -> None:
        """Nothing is said beside."""

    def pulse(self, usage: Usage | None) -> None:
        self.pulses += 1

    def preparing(self, what: str, done: int, total: int) -> None:
        """Keep it."""
        self.shown.append(what)


@pytest.fixture
def other(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Any:
    """Makes the process that copies one of the test's own, without torch."""
    started: list[subprocess.Popen[bytes]] = []
    real = subprocess.Popen

    def script(text: str) -> list[subprocess.Popen[bytes]]:
        path = tmp_path / "other.py"
        path.write_text(_START + text)

        def start(_command: list[str], **options: Any) -> subprocess.Popen[bytes]:
            started.append(real([sys.executable, str(path)], **options))
            return started[-1]

        monkeypatch.setattr(subprocess, "Popen", start)
        return started

    return script


def test_what_is_reported_comes_together(other: Any) -> None:
    started = other(
        f"""
say(event="progress", text="copying")
time.sleep(0.3)
say(event="device", device={_HOST!r})
say(event="together", rates=[{_RATE!r}])
say(event="done", torch_version="2.13", accelerator="cuda")
time.sleep(60)
"""
    )
    listener = Listener()
    found = run_transfer(TransferSettings(all_devices=True), listener)
    assert listener.shown == ["copying"]
    assert listener.pulses  # a screen shows that time goes on
    assert [device.device for device in found.devices] == ["cpu"]
    assert [type(rate) for rate in found.together] == [TogetherRate]
    assert found.accelerator == "cuda"
    assert any("slows down" in warning for warning in found.warnings)
    assert not found.unavailable
    assert started[0].returncode is not None


def test_what_was_measured_is_kept_when_the_process_dies(other: Any) -> None:
    other(f'say(event="device", device={_HOST!r}); os._exit(3)')
    found = run_transfer(TransferSettings(target="synthetic"), Listener())
    assert found.devices
    assert "3" in found.unavailable["batch"]
    assert found.unavailable["rest"] == found.unavailable["batch"]


def test_a_part_that_is_missing_has_its_reason(other: Any) -> None:
    other(
        f"""
say(event="device", device={_HOST!r})
say(event="missing", what="batch", reason="it stays")
say(event="done", torch_version="2.13", accelerator=None)
"""
    )
    found = run_transfer(TransferSettings(target="synthetic"), Listener())
    assert found.unavailable["batch"] == "it stays"


def test_a_process_that_dies_before_anything_is_reported_with_its_last_words(other: Any) -> None:
    other('sys.stderr.write("no driver\\n"); sys.stderr.flush(); os._exit(4)')
    with pytest.raises(NothingMeasuredError, match="No copy could be measured") as caught:
        run_transfer(TransferSettings(), Listener())
    assert "no driver" in caught.value.traceback


@pytest.mark.slow
def test_a_process_that_hangs_is_ended_with_all_that_it_started(other: Any, tmp_path: Path) -> None:
    mark = tmp_path / "child"
    started = other(
        f"""
import subprocess
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
open({str(mark)!r}, "w").write(str(child.pid))
say(event="device", device={_HOST!r})
time.sleep(60)
"""
    )
    found = run_transfer(TransferSettings(timeout_s=2.0, budget_s=0.0), Listener())
    assert "longer than 2 s" in found.unavailable["rest"]
    assert started[0].returncode is not None
    child = int(mark.read_text())
    assert until(lambda: has_ended(child), 20.0)


@pytest.mark.parametrize(
    ("kind", "error"), [("target", TargetError), ("usage", UsageError), ("odd", TargetError)]
)
def test_its_errors_are_raised_again(other: Any, kind: str, error: type[Exception]) -> None:
    shown = {"kind": kind, "message": "It is wrong.", "hint": "Fix it.", "traceback": ""}
    other(f'say(event="failed", error={shown!r}); time.sleep(60)')
    with pytest.raises(error, match="It is wrong"):
        run_transfer(TransferSettings(), Listener())


def test_an_interrupt_leaves_nothing_running(other: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    started = other(f'say(event="device", device={_HOST!r}); time.sleep(60)')

    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(Inbox, "get", interrupted)
    with pytest.raises(KeyboardInterrupt):
        run_transfer(TransferSettings(), Listener())
    assert started[0].returncode is not None
