"""All that ``dlprof machine`` tells: what the machine offers, what limits it, who else uses it."""

from __future__ import annotations

import dataclasses
import math
import time
from collections.abc import Callable
from pathlib import Path

from dlprof.errors import UsageError
from dlprof.machine.cgroups import cpu_quota, memory_limit, read_cgroups
from dlprof.machine.core_speed import SpeedProbe
from dlprof.machine.gpus import Gpus
from dlprof.machine.inspection import inspect_machine
from dlprof.machine.neighbours import Neighbours, watch
from dlprof.machine.patience import PatientGpus
from dlprof.records import Machine

MAX_SECONDS = 3600.0
"""Nobody watches for longer; a mistyped figure would."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Overview:
    """A machine and its users at one time.

    Attributes:
        machine: What it offers, the speed of its cores while it was watched included.
        quota_cgroup: The cgroup that sets ``machine.quota_cores``; ``None`` without a quota.
        memory_limit_cgroup: The cgroup that sets ``machine.memory_limit_bytes``.
        neighbours: Who used it while it was watched.
    """

    machine: Machine
    quota_cgroup: str | None
    memory_limit_cgroup: str | None
    neighbours: Neighbours


def survey(
    seconds: float,
    *,
    root: Path = Path("/"),
    gpus: Gpus | None = None,
    speed: SpeedProbe | None = None,
    sleep: Callable[[float], None] = time.sleep,
) -> Overview:
    """Inspect the machine and watch it for a while.

    Args:
        seconds: How long to watch.
        root: Where ``/proc``, ``/sys`` and ``/dev`` are found.
        gpus: Who asks the GPUs' driver; opened and closed here for ``None``.
        speed: Measures how fast the cores are.
        sleep: Waits for so many seconds.

    Raises:
        UsageError: ``seconds`` is no length of time to watch for.
    """
    if not (math.isfinite(seconds) and 0 < seconds <= MAX_SECONDS):
        raise UsageError(
            f"--seconds {seconds:g} is not a time to watch for",
            hint=f"Give more than 0 and at most {MAX_SECONDS:g} seconds",
        )
    reader: Gpus = PatientGpus() if gpus is None else gpus
    probe = speed or SpeedProbe(root)
    try:
        machine = inspect_machine(root, gpus=reader)
        probe.start()
        neighbours = watch(seconds, root=root, sleep=sleep)
        probe.stop()
        neighbours = dataclasses.replace(neighbours, gpus=reader.neighbours())
    finally:
        probe.stop()
        if gpus is None:
            reader.close()
    found, missing = probe.over_all, {**machine.unavailable, "core_speed": probe.unavailable}
    if found is not None:
        del missing["core_speed"]
    machine = dataclasses.replace(machine, core_speed=found, unavailable=missing)
    cgroups = read_cgroups(None, root)
    quota, limit = cpu_quota(cgroups), memory_limit(cgroups)
    return Overview(
        machine=machine,
        quota_cgroup=None if quota is None else quota.cgroup,
        memory_limit_cgroup=None if limit is None else limit.cgroup,
        neighbours=neighbours,
    )
