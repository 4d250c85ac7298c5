"""Targets loaded by real workers: start methods, persistent workers, the gate, worker set-up."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch.multiprocessing

DATA = Path(__file__).parent.parent / "data" / "targets"
FORK = pytest.mark.skipif(
    "fork" not in torch.multiprocessing.get_all_start_methods(), reason="no fork here"
)

# Each case runs in a process of its own, as a trial does: it forks, and imports by file name.
PROGRAM = """
import json, math, sys, warnings
warnings.simplefilter("ignore")
from dlprof.records import Config
from dlprof.targets.build import build_target
from dlprof.targets.grammar import parse_target
from dlprof.targets.loader import EpochGate, make_loader

if __name__ == "__main__":
    text, settings, epochs, limit = json.loads(sys.argv[1])
    gate = EpochGate()
    loader = make_loader(build_target(parse_target(text)), Config(**settings), gate=gate)
    epoch_lengths, first = [], None
    for _ in range(epochs):
        gate.reopen(limit=limit or math.inf)
        seen = 0
        for batch in loader:
            first = batch if first is None else first
            seen += 1
        epoch_lengths.append(seen)
    first = [part.tolist() if hasattr(part, "tolist") else part for part in first]
    print(json.dumps([epoch_lengths, first, gate.confirm(), gate.closed]))
"""


def load(
    tmp_path: Path,
    text: str,
    settings: dict[str, object],
    *,
    epochs: int = 1,
    limit: int = 0,
) -> tuple[list[int], list[list[int]], bool, bool]:
    program = tmp_path / "program.py"
    program.write_text(PROGRAM)
    done = subprocess.run(
        [sys.executable, str(program), json.dumps([text, settings, epochs, limit])],
        cwd=DATA,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    lengths, first, attached, closed = json.loads(done.stdout)
    return lengths, first, attached, closed


@pytest.mark.parametrize("method", [pytest.param("fork", marks=FORK), "spawn"])
def test_a_file_target_reaches_its_workers(tmp_path: Path, method: str) -> None:
    lengths, first, attached, closed = load(
        tmp_path, "user_data.py:make_loader", {"num_workers": 1, "start_method": method}
    )
    assert lengths == [4]
    assert first == [[0, 1], [10, 11]]  # the user's own worker_init_fn set the offset of 10
    assert attached
    assert not closed


@FORK
@pytest.mark.parametrize("text", ["user_data.py:Endless", "synthetic:iterable=true", "synthetic"])
@pytest.mark.parametrize("persistent", [True, False])
def test_an_epoch_ends_on_demand(tmp_path: Path, text: str, persistent: bool) -> None:  # noqa: FBT001
    lengths, _, attached, closed = load(
        tmp_path,
        text,
        {"num_workers": 2, "prefetch_factor": 2, "persistent_workers": persistent},
        epochs=2,
        limit=5,
    )
    assert lengths == [5, 5]  # more than the queues were primed with, and all of them came
    assert attached
    assert closed


@FORK
def test_threads_and_sharing_are_set_in_the_worker(tmp_path: Path) -> None:
    _, first, _, _ = load(
        tmp_path,
        "user_data.py:probe_loader",
        {"num_workers": 1, "worker_threads": 3, "sharing_strategy": "file_system"},
    )
    assert first == [3, "file_system"]


def test_no_workers(tmp_path: Path) -> None:
    lengths, first, _, _ = load(tmp_path, "user_data.py:make_loader", {}, epochs=2, limit=2)
    assert lengths == [2, 2]
    assert first == [[0, 1], [0, 1]]
