"""A machine that has too little: shared memory, memory, descriptors, processes."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from fault_bench import MARGIN_S, STALL_S, can_mount, check_wording, config

from dlprof.records import Config, Failure

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(sys.platform != "linux", reason="trials are forked on Linux only"),
]

_ROOT = os.geteuid() == 0 if hasattr(os, "geteuid") else False
_V1, _V2 = Path("/sys/fs/cgroup/memory"), Path("/sys/fs/cgroup")
_MIB = 1 << 20


def run_narrowed(
    attr: str, *trials: tuple[str, Config, float], prefix: tuple[str, ...] = (), **order: Any
) -> list[dict[str, Any]]:
    """Trials of a target in a process of its own whose surroundings are small."""
    order |= {
        "attr": attr,
        "trials": [[fault, dataclasses.asdict(tried), span] for fault, tried, span in trials],
    }
    script = Path(__file__).parent / "run_in_place.py"
    done = subprocess.run(
        [*prefix, sys.executable, str(script), json.dumps(order)],
        cwd=Path(__file__).parents[2],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    answer = json.loads(done.stdout)
    assert not answer["shm"] or "shm_bytes" not in order
    result: list[dict[str, Any]] = answer["trials"]
    return result


def the_failure(trial: dict[str, Any], *, limit_s: float) -> Failure:
    assert trial["failure"] is not None, trial
    failure = Failure(**trial["failure"])
    assert trial["wall_s"] < limit_s + MARGIN_S, failure
    check_wording(failure)
    return failure


@pytest.mark.root
@pytest.mark.skipif(not (_ROOT and can_mount()), reason="needs root and a mount namespace")
@pytest.mark.parametrize(
    ("attr", "tried"),
    [
        ("large", config(2, "fork")),
        ("large", config(2, "fork", persistent=True)),
        ("large", config(1, "spawn")),
        ("large_own_collate", config(2, "fork")),
        ("large_own_collate", config(2, "fork", persistent=True)),
        ("large_own_collate", config(1, "forkserver")),
    ],
    ids=lambda value: value if isinstance(value, str) else f"{value.start_method}",
)
@pytest.mark.usefixtures("clean")
def test_a_full_dev_shm(attr: str, tried: Config) -> None:
    failed, fine = run_narrowed(
        attr,
        ("none", tried, 0.1),
        ("none", config(0), 0.1),
        prefix=("unshare", "-m", "--propagation", "private"),
        shm_bytes=6 * _MIB,
    )

    failure = the_failure(failed, limit_s=2.0 if tried.start_method == "fork" else 10.0)
    assert failure.kind == "shared_memory", failure
    assert "--shm-size" in failure.hint
    assert fine["outcome"] == "completed"


@contextlib.contextmanager
def group_of(base: Path, limits: Mapping[str, str]) -> Iterator[Path]:
    """A control group of the test's own, by the files of its limits; skips where there is none."""
    group = Path(tempfile.mkdtemp(prefix="dlprof-faults-", dir=base))
    try:
        try:
            for name, limit in limits.items():
                (group / name).write_text(limit)
        except OSError as error:
            pytest.skip(f"no such controller here: {error}")
        yield group
    finally:
        group.rmdir()


@pytest.fixture
def memory_cgroup() -> Iterator[Path]:
    """One that holds 500 MiB and kills what wants more."""
    most = str(500 * _MIB)
    if _V1.is_dir():
        base, limits = _V1, {"memory.limit_in_bytes": most}
    else:
        base, limits = _V2, {"memory.max": most, "memory.swap.max": "0"}
    with group_of(base, limits) as group:
        yield group


@pytest.mark.root
@pytest.mark.skipif(not _ROOT, reason="needs root")
@pytest.mark.usefixtures("clean")
@pytest.mark.parametrize("persistent", [False, True])
def test_the_kernel_kills_a_worker_for_memory(memory_cgroup: Path, *, persistent: bool) -> None:
    failed, fine = run_narrowed(
        "loader",
        ("grow", config(1, "fork", persistent=persistent), 10.0),
        ("none", config(1), 0.1),
        cgroup=str(memory_cgroup),
        bench={"memory_bytes": None},
    )

    failure = the_failure(failed, limit_s=10.0)
    assert failure.kind == "out_of_memory", failure
    assert "kernel" in failure.message
    assert "fewer workers" in failure.hint
    assert failed["outcome"] == "out_of_memory"
    assert fine["outcome"] == "completed"


@pytest.mark.parametrize(
    "tried", [config(1, "fork"), config(1, "fork", persistent=True), config(1, "spawn")], ids=str
)
@pytest.mark.usefixtures("clean")
def test_no_more_descriptors(tried: Config) -> None:
    failed, fine = run_narrowed(
        "many_tensors",
        ("none", tried, 0.3),
        ("none", config(0), 0.1),
        limits={"RLIMIT_NOFILE": 96},
    )

    failure = the_failure(failed, limit_s=STALL_S + 6.0)
    assert failure.kind == "file_descriptors", failure
    assert "ulimit -n" in failure.hint
    assert "file_system" in failure.hint
    assert fine["outcome"] == "completed"


@pytest.mark.parametrize("fault", ["takes_all_files", "leaves_a_file"])
@pytest.mark.parametrize("workers", [1, 2])
@pytest.mark.usefixtures("clean")
def test_no_more_descriptors_while_a_batch_is_handed_over(fault: str, workers: int) -> None:
    """Then the main process waits for ever, or the connection breaks, or the batch is dropped."""
    failed, fine = run_narrowed(
        "loader",
        (fault, config(workers, "fork"), 0.1),
        ("none", config(1, "fork"), 0.1),
        limits={"RLIMIT_NOFILE": 128},
        bench={"stall_s": STALL_S},
    )

    failure = the_failure(failed, limit_s=STALL_S)
    assert failure.kind == "file_descriptors", failure
    assert "ulimit -n" in failure.hint
    assert fine["outcome"] == "completed"


@pytest.fixture
def few_processes() -> Iterator[Path]:
    """One that holds 32 processes and threads, as a container may."""
    base = next((path for path in (_V2 / "pids", _V2) if path.is_dir()), _V2)
    with group_of(base, {"pids.max": "32"}) as group:
        yield group


@pytest.mark.root
@pytest.mark.skipif(not _ROOT, reason="needs root")
@pytest.mark.usefixtures("clean")
def test_no_more_processes(few_processes: Path) -> None:
    failed, fine = run_narrowed(
        "loader",
        ("none", config(24, "fork"), 0.1),
        ("none", config(0), 0.1),
        cgroup=str(few_processes),
    )

    failure = the_failure(failed, limit_s=5.0)
    assert failure.kind == "start_failed", failure
    assert "ulimit -u" in failure.hint
    assert fine["outcome"] == "completed"


@pytest.mark.root
@pytest.mark.skipif(not _ROOT, reason="needs root")
@pytest.mark.parametrize("room", [0, 1])
@pytest.mark.usefixtures("clean")
def test_no_process_for_the_trial_itself(few_processes: Path, room: int) -> None:
    """Nor a thread that listens to it, in the first case."""
    (few_processes / "pids.max").write_text("max")
    before, failed, fine = run_narrowed(
        "loader",
        ("none", config(0), 0.1),
        (f"room_for_{room}", config(0), 0.1),
        ("none", config(1, "fork"), 0.1),
        cgroup=str(few_processes),
    )

    failure = the_failure(failed, limit_s=1.0)
    assert failure.kind == "start_failed", failure
    assert "ulimit -u" in failure.hint
    assert before["outcome"] == fine["outcome"] == "completed"


@pytest.mark.root
@pytest.mark.skipif(not _ROOT, reason="needs root")
@pytest.mark.usefixtures("clean")
def test_no_process_for_the_observer(few_processes: Path) -> None:
    """Its figures are missing, with a reason."""
    (few_processes / "pids.max").write_text("max")
    unseen, seen = run_narrowed(
        "loader",
        ("room_for_2", config(0), 0.1),
        ("none", config(0), 3.0),  # it may take a while to start
        cgroup=str(few_processes),
    )

    assert unseen["outcome"] == seen["outcome"] == "completed"
    assert unseen["usage"]["own_cpu_cores"] is None
    assert unseen["unavailable"]["usage.own_cpu_cores"]
    assert seen["usage"]["own_cpu_cores"] is not None
