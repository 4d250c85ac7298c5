"""Whole sweeps: what can't work is skipped, and the others complete."""

from __future__ import annotations

import json
import os
import resource
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from fault_bench import TARGETS

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(sys.platform != "linux", reason="trials are forked on Linux only"),
]

_SMALL = ("--trial-time", "0.1s", "--repeats", "1", "--budget", "10m", "--prefetch-factor", "2")
_BOTH = ("--persistent-workers", "both")


def sweep(
    place: Path, attr: str, *arguments: str, prepare: Callable[[], None] | None = None
) -> subprocess.CompletedProcess[str]:
    """One sweep of a target, all of whose faults are switched off."""
    switch = place / "switch"
    switch.write_text("none")
    words = ("sweep", f"{TARGETS}:{attr}", "--arg", f"switch={switch}", *_SMALL, *arguments)
    return subprocess.run(
        [sys.executable, "-m", "dlprof", *words, "-o", "run.dlprof.jsonl", "--json"],
        cwd=place,
        capture_output=True,
        text=True,
        timeout=300,
        preexec_fn=prepare,
        check=False,
    )


def trials_of(done: subprocess.CompletedProcess[str]) -> list[dict[str, Any]]:
    assert done.returncode == 0, done.stderr
    trials: list[dict[str, Any]] = json.loads(done.stdout)["trials"]
    return trials


def skipped(trials: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Those that were; all others completed, one without workers among them."""
    others = [trial for trial in trials if trial["outcome"] != "skipped"]
    assert {trial["outcome"] for trial in others} == {"completed"}
    assert any(trial["config"]["num_workers"] == 0 for trial in others)
    found = [trial for trial in trials if trial["outcome"] == "skipped"]
    assert all(trial["config"]["num_workers"] for trial in found)
    return found


def few_files() -> None:
    """Room for a batch of 32 tensors, and not for one of 256."""
    resource.setrlimit(resource.RLIMIT_NOFILE, (256, 256))


@pytest.mark.parametrize("attr", ["unpicklable", "unpicklable_collate", "cannot_be_unpickled"])
@pytest.mark.parametrize("start", ["spawn", "forkserver"])
@pytest.mark.usefixtures("clean")
def test_what_must_be_pickled_and_can_not_be(tmp_path: Path, attr: str, start: str) -> None:
    both = f"fork,{start}"
    trials = trials_of(
        sweep(tmp_path, attr, "--num-workers", "0,1", "--start-method", both, *_BOTH)
    )

    found = skipped(trials)
    assert {trial["config"]["start_method"] for trial in found} == {start}
    assert {trial["config"]["persistent_workers"] for trial in found} == {False, True}
    assert {trial["failure"]["kind"] for trial in found} == {"not_picklable"}
    assert "--start-method fork" in found[0]["failure"]["hint"]


@pytest.mark.parametrize("start", ["fork", "spawn"])
@pytest.mark.usefixtures("clean")
def test_a_batch_that_no_worker_can_send(tmp_path: Path, start: str) -> None:
    arguments = ("--num-workers", "0,1,2", "--start-method", start, *_BOTH)
    found = skipped(trials_of(sweep(tmp_path, "unsendable", *arguments)))

    assert len(found) == 4
    assert {trial["failure"]["kind"] for trial in found} == {"batch_not_picklable"}
    assert "open file" in found[0]["failure"]["hint"]


@pytest.mark.parametrize(
    ("attr", "arguments", "prepare", "kind", "shown", "remedy"),
    [
        (
            *("large", ("--max-shm", "100MiB"), None),
            *("shared_memory", "16 x 2 + 1 batches of 8.0 MiB need 264 MiB", "--shm-size"),
        ),
        (
            *("large", ("--max-ram", "400MiB"), None),
            *("out_of_memory", "16 workers of at least", "fewer workers"),
        ),
        (
            *("many_tensors", (), few_files),
            *("file_descriptors", "2 batches of 256 tensors", "ulimit -n"),
        ),
    ],
)
@pytest.mark.usefixtures("clean")
def test_what_does_not_fit(
    tmp_path: Path,
    attr: str,
    arguments: tuple[str, ...],
    prepare: Callable[[], None] | None,
    kind: str,
    shown: str,
    remedy: str,
) -> None:
    arguments = ("--num-workers", "0,16", "--persistent-workers", "both", *arguments)
    found = skipped(trials_of(sweep(tmp_path, attr, *arguments, prepare=prepare)))

    assert len(found) == 2
    assert {trial["failure"]["kind"] for trial in found} == {kind}
    assert shown in found[0]["failure"]["message"]
    assert remedy in found[0]["failure"]["hint"]


@pytest.mark.usefixtures("clean")
def test_nothing_that_was_asked_for_can_work(tmp_path: Path) -> None:
    done = sweep(tmp_path, "unsendable", "--num-workers", "1,2")

    assert done.returncode == 6, done.stderr
    error = json.loads(done.stdout)["error"]
    assert error["kind"] == "nothing_measured"
    assert "open file" in error["hint"]
    assert "Traceback" not in error["hint"]
    assert not (tmp_path / "run.dlprof.jsonl").exists()


@pytest.mark.usefixtures("clean")
def test_a_sweep_that_goes_on_skips_no_more(tmp_path: Path) -> None:
    arguments = ("--num-workers", "0,1")
    first = trials_of(sweep(tmp_path, "unsendable", *arguments))
    again = trials_of(sweep(tmp_path, "unsendable", *arguments, "--resume"))

    assert again[: len(first)] == first
    assert len(skipped(again)) == len(skipped(first))
    assert os.listdir(tmp_path)  # the run file is there
