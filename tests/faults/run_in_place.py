"""Runs trials where a test has narrowed the surroundings, and prints what came of them as JSON.

Arguments: a JSON object with ``attr``, ``trials`` (pairs of a fault and a configuration's fields),
and ``limits``.
"""

from __future__ import annotations

import json
import os
import resource
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))

from fault_bench import FaultBench, as_json  # the path above comes first

from dlprof.records import Config


def _narrow(order: dict[str, Any]) -> None:
    """Make this process's surroundings small, before anything is started."""
    if order.get("shm_bytes"):
        subprocess.run(
            ["mount", "-t", "tmpfs", "-o", f"size={order['shm_bytes']}", "tmpfs", "/dev/shm"],  # noqa: S108 - in a mount namespace of this process's own
            check=True,
        )
    if order.get("cgroup"):
        (Path(order["cgroup"]) / "cgroup.procs").write_text(str(os.getpid()))
    for name, most in order.get("limits", {}).items():
        resource.setrlimit(getattr(resource, name), (most, most))


def main() -> None:
    order = json.loads(sys.argv[1])
    _narrow(order)
    bench = FaultBench(order["attr"], **order.get("bench", {}))
    trials = []
    try:
        for fault, fields, trial_s in order["trials"]:
            trials.append(bench.run(fault, Config(**fields).canonical(), trial_s=trial_s))
        shm = os.listdir("/dev/shm")  # noqa: PTH208, S108 - names
    finally:
        bench.bench.close()
        shutil.rmtree(bench.place)
    sys.stdout.write(json.dumps({"trials": [as_json(trial) for trial in trials], "shm": shm}))


main()
