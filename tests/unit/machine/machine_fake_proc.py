"""A ``/proc`` in a temporary folder, whose processes start, work and end on command."""

from __future__ import annotations

import dataclasses
import os
import shutil
from pathlib import Path

TICK_NS = 1_000_000_000 // os.sysconf("SC_CLK_TCK")
MS = 1_000_000


@dataclasses.dataclass
class FakeProcess:
    """What the kernel would say of one process; CPU in nanoseconds, per thread."""

    pid: int
    parent: int = 1
    start: int = 100
    threads: dict[int, tuple[int, int]] = dataclasses.field(default_factory=dict)
    hidden_ns: int = 0
    reaped_ns: int = 0
    rchar: int = 0
    read_bytes: int = 0
    pss_kib: int = 1000
    name: str = "python3"
    session: int = 0
    cgroup: str = ""  # what its file of that name says

    @property
    def run_ns(self) -> int:
        return self.hidden_ns + sum(run for run, _ in self.threads.values())


class FakeProc:
    """Writes the files under ``root``; ``write`` brings them up to date."""

    def __init__(self, root: Path, *, schedstat: bool = True, children: bool = True) -> None:
        self.root = root
        self.schedstat = schedstat
        self.children = children
        self.processes: dict[int, FakeProcess] = {}
        self.mounts = ""  # what who looks says of the mounts that it sees

    def start(self, pid: int, parent: int = 1, start: int = 100, run_ns: int = 0) -> FakeProcess:
        process = FakeProcess(pid, parent, start, {pid: (run_ns, 0)})
        self.processes[pid] = process
        return process

    def end(self, pid: int, *, reaped: bool) -> None:
        """The process ends; ``reaped``: its parent has waited for it."""
        process = self.processes.pop(pid)
        if reaped and process.parent in self.processes:
            parent = self.processes[process.parent]
            parent.reaped_ns += process.run_ns + process.reaped_ns
            parent.rchar += process.rchar
            parent.read_bytes += process.read_bytes

    def write(self) -> None:
        proc = self.root / "proc"
        _write(proc / "self/mountinfo", self.mounts)
        if proc.exists():
            for folder in proc.iterdir():
                if folder.name.isdecimal():
                    shutil.rmtree(folder)
        for process in self.processes.values():
            self._write_process(proc / str(process.pid), process)

    def _write_process(self, folder: Path, process: FakeProcess) -> None:
        user, reaped = process.run_ns // TICK_NS, process.reaped_ns // TICK_NS
        columns = [0] * 50
        columns[0], columns[10], columns[12] = process.parent, user, reaped
        columns[2], columns[18] = process.session, process.start
        text = f"{process.pid} ({process.name}) S {' '.join(map(str, columns))}\n"
        _write(folder / "stat", text)
        _write(
            folder / "io",
            f"rchar: {process.rchar}\nwchar: 0\nread_bytes: {process.read_bytes}\n",
        )
        _write(folder / "smaps_rollup", f"0-1 ---p 0 0 0 [rollup]\nPss: {process.pss_kib} kB\n")
        _write(folder / "cgroup", process.cgroup)
        _write(folder / "statm", "900 500 200 1 0 300 0\n")
        _write(folder / "status", "Name:\tpython3\nCpus_allowed_list:\t0-1\n")
        born = [other.pid for other in self.processes.values() if other.parent == process.pid]
        for tid, (run, wait) in process.threads.items():
            if self.schedstat:
                _write(folder / f"task/{tid}/schedstat", f"{run} {wait} 7\n")
            if self.children:
                listed = " ".join(map(str, born)) if tid == process.pid else ""
                _write(folder / f"task/{tid}/children", listed)
            _write(folder / f"task/{tid}/comm", "x\n")


def _write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
