"""Targets loaded by real workers: start methods, persistent workers, the gate, worker set-up."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch.multiprocessing

DATA = Path(__file__).parent.parent / "data" / "targets"
pytestmark = pytest.mark.skipif(
    "fork" not in torch.multiprocessing.get_all_start_methods(), reason="no fork here"
)

# Each case runs in a process of its own, as a trial does: it forks, and imports by file name.
PROGRAM = """
import json, math, os, sys, warnings
warnings.simplefilter("ignore")
from dlprof.records import Config
from dlprof.targets.build import build_target
from dlprof.targets.grammar import parse_target
from dlprof.targets.loader import EpochGate, make_loader

def run(text, settings, epochs, limit):
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
    print(json.dumps([epoch_lengths, first, gate.confirm(), gate.closed]), flush=True)

if __name__ == "__main__":
    for line in sys.stdin:
        if os.fork() == 0:
            run(*json.loads(line))
            break
        _, status = os.wait()
        if status:
            sys.exit(1)
"""

Loaded = tuple[list[int], list[list[int]], bool, bool]
Load = Callable[..., Loaded]


@pytest.fixture(scope="module")
def load(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Load]:
    """Loads from a target, in a fork of a process that has imported torch."""
    program = tmp_path_factory.mktemp("loading") / "program.py"
    program.write_text(PROGRAM)
    with subprocess.Popen(
        [sys.executable, str(program)],
        cwd=DATA,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        stdin, stdout = process.stdin, process.stdout

        def ask(
            text: str, settings: dict[str, object], *, epochs: int = 1, limit: int = 0
        ) -> Loaded:
            stdin.write(json.dumps([text, settings, epochs, limit]) + "\n")
            stdin.flush()
            lengths, first, attached, closed = json.loads(stdout.readline())
            return lengths, first, attached, closed

        yield ask


@pytest.mark.slow
@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_a_file_target_reaches_its_workers(load: Load, method: str) -> None:
    lengths, first, attached, closed = load(
        "user_data.py:make_loader", {"num_workers": 1, "start_method": method}
    )
    assert lengths == [4]
    assert first == [[0, 1], [10, 11]]  # the user's own worker_init_fn set the offset of 10
    assert attached
    assert not closed


@pytest.mark.slow
def test_a_class_that_collates_by_its_method_reaches_spawned_workers(load: Load) -> None:
    lengths, first, attached, _ = load(
        "user_data.py:make_own_loader", {"num_workers": 1, "start_method": "spawn"}
    )
    assert lengths == [4]
    assert first == [[0, 0], [1, 1]]
    assert attached


@pytest.mark.parametrize(
    ("text", "persistent"),
    [
        ("user_data.py:Endless", True),
        ("synthetic", False),
        *(
            pytest.param(*each, marks=pytest.mark.slow)
            for each in (
                ("user_data.py:Endless", False),
                ("synthetic", True),
                ("synthetic:iterable=true", True),
                ("synthetic:iterable=true", False),
            )
        ),
    ],
)
def test_an_epoch_ends_on_demand(load: Load, text: str, persistent: bool) -> None:
    lengths, _, attached, closed = load(
        text,
        {"num_workers": 2, "prefetch_factor": 2, "persistent_workers": persistent},
        epochs=2,
        limit=5,
    )
    assert lengths == [5, 5]  # more than the queues were primed with, and all of them came
    assert attached
    assert closed


def test_threads_and_sharing_are_set_in_the_worker(load: Load) -> None:
    _, first, _, _ = load(
        "user_data.py:probe_loader",
        {"num_workers": 1, "worker_threads": 3, "sharing_strategy": "file_system"},
    )
    assert first == [3, "file_system"]


def test_no_workers(load: Load) -> None:
    lengths, first, _, _ = load("user_data.py:make_loader", {}, epochs=2, limit=2)
    assert lengths == [2, 2]
    assert first == [[0, 1], [0, 1]]
