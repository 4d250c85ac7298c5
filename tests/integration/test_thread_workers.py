"""Loaders whose workers are threads: measured as they are, and nothing is said of their stages."""

from __future__ import annotations

import ast
import json
from pathlib import Path
from typing import Any

import pytest
import thread_workers
from programs import python

import dlprof
from dlprof.tracing.tracer import Tracer

FOLDER = Path(__file__).parent


def _dlprof(tmp_path: Path, *words: str) -> dict[str, Any]:
    words = ("-m", "dlprof", *words, "--json", "-o", str(tmp_path / "a.dlprof.jsonl"))
    ended = python(FOLDER, *words, timeout_s=300, DLPROF_CACHE_DIR=str(tmp_path))
    document: dict[str, Any] = json.loads(ended.stdout)
    return document


@pytest.mark.parametrize("workers", [0, 2])
def test_batches_stay_as_they_are_and_waits_are_timed(workers: int) -> None:
    rows = thread_workers.Rows(40)
    loader = thread_workers.ThreadLoader(rows, batch_size=4, num_workers=workers)
    plain = [batch.flatten().tolist() for batch in loader]
    with Tracer(loader) as tracer:
        traced = [batch.flatten().tolist() for batch in tracer]
    assert traced == plain == [batch.flatten().tolist() for batch in dlprof.watch(loader)]
    trace = tracer.trace()
    assert len(trace.rows) == 10
    if workers:
        assert not trace.hooked
        assert "its workers are threads" in trace.unavailable["hooks"]


@pytest.mark.slow
def test_a_sweep_measures_them(tmp_path: Path) -> None:
    words = "thread_workers.py:loader --num-workers 0,2 --prefetch-factor 2 --repeats 1"
    found = _dlprof(
        tmp_path, "sweep", *words.split(), "--persistent-workers", "off", "--trial-time", "200ms"
    )
    assert {trial["outcome"] for trial in found["trials"]} == {"completed"}
    assert {trial["config"]["num_workers"] for trial in found["trials"]} == {0, 2}


@pytest.mark.slow
def test_an_exception_in_a_worker_thread_is_named_so(tmp_path: Path) -> None:
    words = "thread_workers.py:failing --num-workers 2 --prefetch-factor 2 --repeats 1"
    found = _dlprof(
        tmp_path, "sweep", *words.split(), "--persistent-workers", "off", "--trial-time", "200ms"
    )
    (failure,) = found["error"]["failures"]
    assert failure["message"] == "ValueError in a worker thread: this row is broken"


@pytest.mark.slow
def test_a_profile_says_that_stages_of_threads_cant_be_traced(tmp_path: Path) -> None:
    found = _dlprof(tmp_path, "profile", "thread_workers.py:loader", "--budget", "40s")
    assert "its workers are threads" in json.dumps(found)
    assert {"fetch.io", "fetch.cpu", "lock"}.isdisjoint(f["code"] for f in found["findings"])


@pytest.mark.slow
def test_a_profile_with_a_torch_that_moved_a_part_says_so(tmp_path: Path) -> None:
    target = tmp_path / "moved.py"
    target.write_text(
        "import time, torch.utils.data._utils.worker as worker\n"
        "from torch.utils.data import DataLoader\n"
        "del worker._IterableDatasetStopIteration\n"
        "class Rows:\n"
        "    def __len__(self):\n"
        "        return 2000\n"
        "    def __getitem__(self, index):\n"
        "        time.sleep(0.002)\n"
        "        return index\n"
        "def loader():\n"
        "    return DataLoader(Rows(), batch_size=4, num_workers=2)\n"
    )
    found = _dlprof(tmp_path, "profile", f"{target}:loader", "--budget", "40s")
    said = json.dumps(found)
    assert "has no torch.utils.data._utils.worker._IterableDatasetStopIteration" in said
    assert any(trial["samples_per_s"] for trial in found["trials"])


BUSY = """
import sys, threading, torch
from torch.utils.data import DataLoader
{patch}
from dlprof.records import Config
from dlprof.tracing.explain import explain
from dlprof.tracing.tracer import Tracer

class Rows:
    def __len__(self):
        return 32
    def __getitem__(self, index):
        return sum(range(200_000))  # a fetch takes several of the GIL's turns, of 5 ms each

def compute():
    while not over.is_set():
        sum(range(20_000))

over = threading.Event()
threads = [threading.Thread(target=compute) for _ in range(2)]
[thread.start() for thread in threads]
loader = DataLoader(Rows(), batch_size=4)
with Tracer(loader) as tracer:
    list(tracer)
over.set()
seen = explain(tracer.trace(), trial_id="t", config=Config())
fetch = seen.stage("fetch")
print(repr((seen.fetch_threads_cpu_s, fetch.io_s, fetch.cpu_s, dict(seen.unavailable))))
"""


def _beside_threads(patch: str = "") -> tuple[float | None, float, float, dict[str, str]]:
    ended = python(FOLDER, "-c", BUSY.format(patch=patch), timeout_s=300)
    assert ended.returncode == 0, ended.stderr
    found: tuple[float | None, float, float, dict[str, str]] = ast.literal_eval(ended.stdout)
    return found


@pytest.mark.slow
def test_what_other_threads_compute_while_main_fetches_is_seen() -> None:
    beside_s, blocked_s, cpu_s, _ = _beside_threads()
    assert beside_s is not None
    assert beside_s > cpu_s  # two threads compute while one is to fetch
    assert blocked_s > 0


@pytest.mark.slow
def test_a_python_without_a_gil_has_no_wait_for_it() -> None:
    beside_s, _, _, unavailable = _beside_threads("sys._is_gil_enabled = lambda: False")
    assert beside_s is None
    assert unavailable["fetch_threads_cpu_s"].startswith("this Python runs without a GIL")


@pytest.mark.slow
@pytest.mark.parametrize("command", ["sweep --num-workers 1 --repeats 1", "profile"])
def test_a_default_start_method_other_than_fork_is_named(tmp_path: Path, command: str) -> None:
    target = tmp_path / "forkserver_target.py"
    target.write_text(
        "import multiprocessing\n"
        "from torch.utils.data import DataLoader\n"
        "multiprocessing.set_start_method('forkserver', force=True)\n"  # as Python 3.14 has it
        "class Rows:\n"
        "    def __len__(self):\n"
        "        return 400\n"
        "    def __getitem__(self, index):\n"
        "        return index\n"
        "def loader():\n"
        "    return DataLoader(Rows(), batch_size=4, num_workers=1)\n"
    )
    name, *more = command.split()
    found = _dlprof(
        tmp_path, name, f"{target}:loader", *more, "--budget", "150s", "--timeout", "100s"
    )
    assert "Workers start by forkserver here" in json.dumps(found)
    assert any(trial["outcome"] == "completed" for trial in found["trials"])
