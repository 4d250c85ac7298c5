"""Finding the processes of one sweep, and the part that each of them plays."""

from __future__ import annotations

import contextlib
import random
import signal
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

import psutil

PARTS = (
    "supervisor",
    "fork server",
    "observer",
    "trial",
    "worker",
    "forkserver",
    "resource tracker",
)
HOW = {signal.SIGKILL: "", signal.SIGSTOP: ", stopped", signal.SIGINT: ", interrupted"}
"""What is behind the name of a part that got a signal."""

_PAUSE_S = 0.02
_STOPPED_S = 5.0  # a supervisor, which nobody else can let go on


def members(marker: str, proc: Path = Path("/proc")) -> dict[int, psutil.Process]:
    """Processes that were started with this text in their environment, zombies left out.

    Args:
        marker: ``NAME=value``, inherited by whatever a sweep starts, in whatever session.
        proc: Where the processes are.
    """
    found = {}
    for place in proc.glob("[0-9]*"):
        with contextlib.suppress(OSError, psutil.Error):
            if marker.encode() in (place / "environ").read_bytes().split(b"\0"):
                found[int(place.name)] = psutil.Process(int(place.name))
    return found


def part_of(command_line: str, parents: str, *, depth: int) -> str:
    """The part that a process plays.

    Args:
        command_line: Its own.
        parents: Its parent's.
        depth: 0 for the command itself, 1 for what it started, and so on.
    """
    if depth == 0:
        return "supervisor"
    if "dlprof.trial.observer" in command_line:
        return "observer"
    if "multiprocessing.resource_tracker" in command_line:
        return "resource tracker"
    if "multiprocessing.forkserver" in command_line:
        # Its workers are forked from it, and keep its command line.
        return "worker" if "multiprocessing.forkserver" in parents else "forkserver"
    return {1: "fork server", 2: "trial"}.get(depth, "worker")


def by_part(supervisor: int, found: Mapping[int, psutil.Process]) -> dict[str, list[int]]:
    """The processes under each part's name."""
    parts: dict[str, list[int]] = {}
    for pid, process in sorted(found.items()):
        with contextlib.suppress(psutil.Error):
            depth, above = 0, pid
            while above != supervisor and above in found:
                depth, above = depth + 1, found[above].ppid()
            command_line = " ".join(process.cmdline())
            parents = " ".join(psutil.Process(process.ppid()).cmdline())
            if command_line and above == supervisor:
                parts.setdefault(part_of(command_line, parents, depth=depth), []).append(pid)
    return parts


def kill_one(
    supervisor: int,
    marker: str,
    chance: random.Random,
    signals: Sequence[signal.Signals] = (signal.SIGKILL,),
) -> str | None:
    """A signal to a random process of a random part; its part, or ``None`` if none is left."""
    found = members(marker)
    parts = by_part(supervisor, found)
    while parts:
        part = chance.choice(sorted(parts))
        victim = found[chance.choice(parts.pop(part))]
        with contextlib.suppress(psutil.NoSuchProcess):
            number = chance.choice(signals)
            victim.send_signal(number)  # psutil makes sure that the id has not been used again
            if number == signal.SIGSTOP and part == "supervisor":
                time.sleep(_STOPPED_S)
                victim.resume()
            return part + HOW[number]
    return None


def wait_until_gone(marker: str, patience_s: float) -> tuple[float, int]:
    """Wait for the end of all processes of a sweep.

    Returns:
        Seconds that it took, and how many were left in the end; those are then ended.
    """
    began_s = time.monotonic()
    while left := members(marker):
        if time.monotonic() - began_s > patience_s:
            for process in left.values():
                with contextlib.suppress(psutil.NoSuchProcess):
                    process.kill()
            break
        time.sleep(_PAUSE_S)
    return time.monotonic() - began_s, len(left)
