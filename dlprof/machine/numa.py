"""NUMA nodes and their CPUs."""

from __future__ import annotations

from pathlib import Path

from dlprof.machine.files import list_names, read_text
from dlprof.machine.procfs import parse_cpu_list


def node_cpus(root: Path = Path("/")) -> dict[int, tuple[int, ...]]:
    """The CPUs of each node that has any, by node; empty where the kernel doesn't tell."""
    nodes = root / "sys/devices/system/node"
    found = {}
    for name in list_names(nodes):
        if name[:4] == "node" and name[4:].isdecimal():
            cpus = parse_cpu_list(read_text(nodes / name / "cpulist") or "")
            if cpus:
                found[int(name[4:])] = tuple(sorted(cpus))
    return dict(sorted(found.items()))
