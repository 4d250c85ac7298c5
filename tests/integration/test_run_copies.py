"""``dlprof run`` over a script that copies its batches, on an accelerator torch is made to see."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest
from programs import python

from dlprof.store import read_run

TARGETS = Path(__file__).parent
SCRIPT = f"""
import sys, time
sys.path.insert(0, {str(TARGETS)!r})
import accelerated_target as stand_in
import torch, dlprof
from torch.utils.data import DataLoader

def train():
    for batch in loader:
        batch = batch.to("meta")
        time.sleep(max(0.0, stand_in._streams[0].until_s - time.perf_counter()))
        time.sleep(2e-3)

before = vars(torch.Tensor)["to"]
loader = DataLoader(stand_in.Numbers(), batch_size=256, num_workers=1)
if sys.argv[1:]:
    loader = dlprof.watch(loader)
train()
print(vars(torch.Tensor)["to"] is before)
if sys.argv[1:]:
    print(loader.summary())
"""

pytestmark = pytest.mark.skipif(
    sys.platform != "linux", reason="trials are forked from a patched torch"
)


def _ran(folder: Path, *words: str) -> str:
    (folder / "train.py").write_text(SCRIPT)
    done = python(folder, "-W", "ignore", *words)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("True\n")
    return done.stdout + done.stderr


def _run(folder: Path, *words: str) -> dict[str, Any]:
    files = ("-o", "run.dlprof.jsonl", "--json", "run.json", "--force")
    shown = _ran(folder, "-m", "dlprof", "run", *files, *words)
    document: dict[str, Any] = json.loads((folder / "run.json").read_text())
    return {**document, "shown": " ".join(shown.split())}


@pytest.mark.slow
def test_a_scripts_own_copies_are_distinguished_from_its_step(tmp_path: Path) -> None:
    found = _run(tmp_path, "train.py")
    copies = found["loaders"][0]["copies"]
    assert copies["device"] == "meta:0"
    assert copies["bytes"] == 256 * 64 * 4
    assert copies["pinned_fraction"] == 0.0
    assert copies["exposed_s"] == copies["copy_s"] >= 4e-3
    whole = python(tmp_path, "-m", "dlprof", "report", "-v", found["run_file"])
    assert "copies to meta:0: 4" in " ".join(whole.stdout.split())
    assert "transfer.pageable" in {each["code"] for each in found["findings"]}
    (explanation,) = read_run(tmp_path / "run.dlprof.jsonl").explanations
    copy, step = explanation.stage("copy"), explanation.stage("step")
    assert copy is not None
    assert step is not None
    assert copy.mean_s == pytest.approx(copies["exposed_s"])
    assert step.mean_s >= 2e-3


@pytest.mark.slow
def test_without_following_nothing_of_tensors_is_touched(tmp_path: Path) -> None:
    found = _run(tmp_path, "--no-follow", "train.py")
    assert found["loaders"][0]["copies"] is None
    assert "copies to" not in found["shown"]


@pytest.mark.slow
def test_watch_shows_the_copies_of_its_loop(tmp_path: Path) -> None:
    assert "copies to meta:0: 4" in _ran(tmp_path, "train.py", "watch")
