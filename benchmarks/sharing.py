"""What do threads of one session get beside others that are busy: a share each, or one together?

Busy processes in sessions of their own, the most urgent of all by ``/proc/self/autogroup``, so that
what else runs here takes next to nothing. Needs root.
"""

from __future__ import annotations

import itertools
import os
import statistics
import time
from collections.abc import Sequence
from pathlib import Path

from common import Report, Table, parser, publish, surroundings

from dlprof.machine.sharing import Entity, Group, fair_share

CORES = len(os.sched_getaffinity(0))
OTHERS = ((1,), (2 * CORES,), (1,) * CORES, (1,) * 2 * CORES, (1,) * 4 * CORES, (4,) * 2 * CORES)
OWN = (1, CORES, 2 * CORES, 4 * CORES)
OFF = 0.15


def _busy(begin_s: float, end_s: float, answer: int) -> None:
    while time.monotonic() < begin_s:
        pass
    before_s = time.process_time()
    while time.monotonic() < end_s:
        pass
    os.write(answer, f"{time.process_time() - before_s}\n".encode())


def _session(threads: int, begin_s: float, end_s: float, answer: int) -> int:
    """Start a session of so many busy processes; returns the process to wait for."""
    if first := os.fork():
        return first
    os.setsid()
    Path("/proc/self/autogroup").write_text("-20")
    children = []
    for _ in range(threads):
        child = os.fork()
        if not child:
            _busy(begin_s, end_s, answer)
            os._exit(0)
        children.append(child)
    for child in children:
        os.waitpid(child, 0)
    os._exit(0)


def cores_of(own: int, others: Sequence[int], seconds: float) -> float:
    """Cores that so many busy processes of one session get beside sessions of others."""
    begin_s = time.monotonic() + 0.5
    (mine, answer), (theirs, beside) = os.pipe(), os.pipe()
    started = [_session(own, begin_s, begin_s + seconds, answer)]
    started += [_session(each, begin_s, begin_s + seconds, beside) for each in others]
    for pid in started:
        os.waitpid(pid, 0)
    for each in (answer, beside, theirs):
        os.close(each)
    with os.fdopen(mine) as answers:
        return sum(map(float, answers)) / seconds


def by_thread(own: int, others: Sequence[int]) -> float:
    """Cores that they would get if each thread had the same share."""
    threads = sum(others)
    return min(own, max(CORES - threads, CORES * own / (own + threads)))


def main() -> None:
    """Measure, and publish the table."""
    given, before = parser(__doc__).parse_args(), surroundings()
    repeats, seconds = (1, 0.3) if given.quick else (5, 2.0)
    rows, off = [], {"session": list[float](), "thread": list[float]()}
    for others, own in itertools.product(OTHERS, OWN):
        got = statistics.median(cores_of(own, others, seconds) for _ in range(repeats))
        used: dict[Group, float] = {
            (Entity(place),): float(min(each, CORES)) for place, each in enumerate(others, 1)
        }
        fair, each = min(own, fair_share((Entity(0),), used, CORES)), by_thread(own, others)
        off["session"].append(abs(got / fair - 1))
        off["thread"].append(abs(got / each - 1))
        sides = (f"{len(others)}", f"{others[0]}", f"{own}")
        rows.append([*sides, f"{got:.2f}", f"{fair:.2f}", f"{each:.2f}"])
    by_session, by_threads = (100 * statistics.median(each) for each in off.values())
    report = Report(
        name="sharing",
        title="Cores are shared between sessions",
        goal=f"what one session gets is within {OFF:.0%} of the rule in the median",
        passed=by_session <= 100 * OFF,
        tables=[
            Table(
                "",
                ("sessions beside", "processes in each", "own processes", "cores", *_RULES),
                rows,
            )
        ],
        notes=[
            f"Off in the median by {by_session:.0f}% by session and {by_threads:.0f}% by thread.",
            f"Medians of {repeats} windows of {seconds:g} s.",
            "All at the nice level -20 of their session: what else is busy takes next to nothing.",
        ],
    )
    publish(report, before, quick=given.quick)


_RULES = ("by session", "by thread")


if __name__ == "__main__":
    main()
