"""Memory of a running command and everything under it, by the part that each process plays."""

from __future__ import annotations

import contextlib
import dataclasses
import subprocess
import tempfile
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path

import psutil
from common import CommandError

PAUSE_S = 0.1
_TAIL = 4000


@dataclasses.dataclass(slots=True)
class Peaks:
    """Highest memory seen, in bytes.

    Attributes:
        total: Memory of the whole tree at one time, without pages of files: libraries that other
            programs have mapped too count for less as long as those run.
        parts: The same of each part: ``supervisor``, ``fork server``, ``observer``, ``trial`` (its
            workers included); shared pages count for each process by its share.
    """

    total: int = 0
    parts: dict[str, int] = dataclasses.field(default_factory=dict)

    def take(self, sample: dict[str, int]) -> None:
        """Keep what is higher than before."""
        self.total = max(self.total, sum(sample.values()))
        for part, size in sample.items():
            self.parts[part] = max(self.parts.get(part, 0), size)


def part_of(command_line: Sequence[str], *, depth: int) -> str:
    """The part that a process plays.

    Args:
        command_line: Its own.
        depth: 0 for the command itself, 1 for what it started, 2 for everything further down.
    """
    if depth == 0:
        return "supervisor"
    for part in ("observer", "fork server"):
        # Trials are forked from the fork server and keep its command line.
        if depth == 1 and f"dlprof.trial.{part.replace(' ', '_')}" in command_line:
            return part
    return "trial"


def pss_bytes(pid: int) -> int:
    """Proportional set size of anonymous and shared memory; 0 of a process that has gone."""
    with contextlib.suppress(OSError):
        lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
        sizes = dict(line.split()[:2] for line in lines[1:])
        return sum(int(sizes[name]) for name in ("Pss_Anon:", "Pss_Shmem:")) * 1024
    return 0


def sample(root: psutil.Process) -> dict[str, int]:
    """Memory of each part now, in bytes."""
    found: dict[str, int] = {}
    with contextlib.suppress(psutil.Error):
        for process in [root, *root.children(recursive=True)]:
            with contextlib.suppress(psutil.Error):
                depth = 0 if process.pid == root.pid else 1 if process.ppid() == root.pid else 2
                part = part_of(process.cmdline(), depth=depth)
                found[part] = found.get(part, 0) + pss_bytes(process.pid)
    return found


@contextlib.contextmanager
def watching(pid: int) -> Iterator[Peaks]:
    """Sample a process and all under it, ten times a second, for as long as the block runs."""
    root, peaks, over = psutil.Process(pid), Peaks(), threading.Event()

    def look() -> None:
        while not over.wait(PAUSE_S):
            peaks.take(sample(root))

    thread = threading.Thread(target=look)
    thread.start()
    try:
        yield peaks
    finally:
        over.set()
        thread.join()


def peaks_of(command: Sequence[str]) -> Peaks:
    """Run a command to its end and return the highest memory of it and all under it.

    Raises:
        CommandError: It didn't exit with 0.
    """
    with tempfile.TemporaryFile("w+") as output:
        process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT
        )
        with watching(process.pid) as peaks:
            status = process.wait()
        if status != 0:
            output.seek(0)
            tail = output.read()[-_TAIL:]
            raise CommandError(f"{' '.join(command)} ended with {status}:\n{tail}")
    return peaks
