"""Runs trials where a test has narrowed the surroundings, and prints what came of them as JSON.

Arguments: a JSON object with ``attr``, ``trials`` (a fault, a configuration's fields, the window),
and ``limits``. The fault ``room_for_N`` is that the control group, one of ``pids``, has room for N
further processes or threads.
"""

from __future__ import annotations

import contextlib
import json
import os
import resource
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))

from fault_bench import FaultBench, as_json  # the path above comes first

from dlprof.records import Config

_ROOM = "room_for_"


def _narrow(order: dict[str, Any]) -> None:
    """Make this process's surroundings small, before anything is started."""
    if order.get("shm_bytes"):
        subprocess.run(
            ["mount", "-t", "tmpfs", "-o", f"size={order['shm_bytes']}", "tmpfs", "/dev/shm"],
            check=True,
        )
    if order.get("cgroup"):
        (Path(order["cgroup"]) / "cgroup.procs").write_text(str(os.getpid()))
    for name, most in order.get("limits", {}).items():
        resource.setrlimit(getattr(resource, name), (most, most))


@contextlib.contextmanager
def _room(fault: str, group: str | None) -> Iterator[str]:
    """Narrow the control group for a trial, if that is the fault; what is left of the fault."""
    if group is None or not fault.startswith(_ROOM):
        yield fault
        return
    used = int((Path(group) / "pids.current").read_text())
    limit = Path(group) / "pids.max"
    before = limit.read_text()
    limit.write_text(str(used + int(fault.removeprefix(_ROOM))))
    try:
        yield "none"
    finally:
        limit.write_text(before)


def main() -> None:
    order = json.loads(sys.argv[1])
    _narrow(order)
    bench = FaultBench(order["attr"], **order.get("bench", {}))
    trials = []
    try:
        for fault, fields, trial_s in order["trials"]:
            with _room(fault, order.get("cgroup")) as left:
                trials.append(bench.run(left, Config(**fields).canonical(), trial_s=trial_s))
        shm = os.listdir("/dev/shm")
    finally:
        bench.bench.close()
        shutil.rmtree(bench.place)
    sys.stdout.write(json.dumps({"trials": [as_json(trial) for trial in trials], "shm": shm}))


main()
