"""What a trial's processes inherit from the one that built the target."""

from __future__ import annotations

import gc
import subprocess
import sys

import pytest

from dlprof.targets.grammar import parse_target
from dlprof.trial.child import build
from dlprof.trial.protocol import BuildRequest

_ASK = """
import gc
from dlprof.targets.grammar import parse_target
from dlprof.trial.child import build
from dlprof.trial.protocol import BuildRequest
build(BuildRequest(target=parse_target("synthetic:length=64")))
print(*gc.get_count()[1:])
"""


@pytest.mark.slow
def test_a_built_target_leaves_no_collection_due() -> None:
    shown = subprocess.run(
        [sys.executable, "-c", _ASK], capture_output=True, text=True, check=True, timeout=60
    )
    assert shown.stdout.split() == ["0", "0"]


def test_who_has_switched_collecting_off_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    collected: list[int] = []
    monkeypatch.setattr(gc, "isenabled", lambda: False)
    monkeypatch.setattr(gc, "collect", lambda: collected.append(1))
    build(BuildRequest(target=parse_target("synthetic:length=64")))
    assert not collected
