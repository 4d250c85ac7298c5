"""What does the observer cost? By its own word in the run file, and by the kernel's."""

from __future__ import annotations

import dataclasses
import statistics
import time
from pathlib import Path

import psutil
from common import Report, Table, parser, publish, surroundings
from truth import open_bench

from dlprof.records import Config
from dlprof.trial.protocol import TrialRequest
from dlprof.trial.runner import TrialRunner

GOAL = 0.02
WORKERS, QUICK_WORKERS = (0, 4, 16), (0, 4)
REPEATS, QUICK_REPEATS = 5, 1
WINDOW_S, QUICK_WINDOW_S = 5.0, 1.0
TARGETS = {"waiting": "synthetic:wait_ms=4", "computing": "synthetic:cpu_ms=1"}
_MODULE = "dlprof.trial.observer"


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Cost:
    """One trial's observer.

    Attributes:
        target: Name of the target.
        num_workers: Processes beside the trial's own.
        stated_cores: ``usage.observer_cpu_cores`` in the run file: within the window.
        kernel_cores: The process's CPU time over the whole trial, by ``/proc``, per second of it.
        kernel_cpu_s: The same in seconds.
    """

    target: str
    num_workers: int
    stated_cores: float | None
    kernel_cores: float
    kernel_cpu_s: float


def observer_cpu_s() -> float:
    """CPU time of the running observer so far, to the microsecond where the kernel reports it."""
    for process in psutil.Process().children(recursive=True):
        if _MODULE in process.cmdline():
            return cpu_s(Path("/proc"), process.pid)
    raise RuntimeError("no observer is running")


def cpu_s(proc: Path, pid: int) -> float:
    """CPU time of all threads that a process has now, from their ``schedstat``.

    Clock ticks, as ``/proc/PID/stat`` gives them, are too coarse: 2 % of a core is two ticks.
    """
    files = proc.joinpath(str(pid), "task").glob("*/schedstat")
    return sum(int(file.read_text().split()[0]) for file in files) / 1e9


def measure(bench: TrialRunner, name: str, workers: int, window_s: float) -> Cost:
    """Run one trial and read what its observer took."""
    config = Config(num_workers=workers).canonical()
    before_s, began_s = observer_cpu_s(), time.perf_counter()
    request = TrialRequest(config=config, trial_s=window_s)
    trial, _ = bench.explain(request, trial_id="t", repetition=0)
    wall_s, taken_s = time.perf_counter() - began_s, observer_cpu_s() - before_s
    return Cost(
        target=name,
        num_workers=workers,
        stated_cores=trial.usage.observer_cpu_cores,
        kernel_cores=taken_s / wall_s,
        kernel_cpu_s=taken_s,
    )


def measure_all(*, quick: bool) -> list[Cost]:
    """All trials of all targets."""
    costs = []
    for name, target in TARGETS.items():
        with open_bench(target) as bench:  # its probe has started the observer
            for _ in range(QUICK_REPEATS if quick else REPEATS):
                for workers in QUICK_WORKERS if quick else WORKERS:
                    window_s = QUICK_WINDOW_S if quick else WINDOW_S
                    costs.append(measure(bench, name, workers, window_s))
    return costs


def report_on(costs: list[Cost], window_s: float) -> Report:
    """The table of all trials."""
    columns = (
        "workers' dataset",
        "num_workers",
        "stated, cores: median",
        "stated: most",
        "/proc over the trial, cores: median",
        "/proc: CPU ms a trial",
    )
    groups: dict[tuple[str, int], list[Cost]] = {}
    for cost in costs:
        groups.setdefault((cost.target, cost.num_workers), []).append(cost)
    stated = [cost.stated_cores for cost in costs]
    return Report(
        name="observer",
        title="The observer costs next to nothing",
        goal=f"at most {GOAL:g} of a core, stated in the run file",
        passed=all(each is not None and each <= GOAL for each in stated),
        tables=[Table("", columns, [_row(*key, group) for key, group in groups.items()])],
        notes=[
            (
                f"Windows of {window_s:g} s, {len(costs) // len(groups)} trials per row; the goal "
                "is held against every single trial."
            ),
            (
                "/proc counts the whole trial: the samples at the window's edges and the reading "
                "of memory behind it too."
            ),
            *(f"{name}: `{target}`." for name, target in TARGETS.items()),
        ],
        data={"trials": [dataclasses.asdict(cost) for cost in costs]},
    )


def _row(name: str, workers: int, group: list[Cost]) -> tuple[str, ...]:
    stated = [cost.stated_cores for cost in group if cost.stated_cores is not None]
    return (
        name,
        str(workers),
        f"{statistics.median(stated):.4f}" if stated else "-",
        f"{max(stated):.4f}" if stated else "-",
        f"{statistics.median(cost.kernel_cores for cost in group):.4f}",
        f"{1e3 * statistics.median(cost.kernel_cpu_s for cost in group):.1f}",
    )


def main() -> None:
    """Measure and publish."""
    given = parser(__doc__).parse_args()
    before = surroundings()
    costs = measure_all(quick=given.quick)
    report = report_on(costs, QUICK_WINDOW_S if given.quick else WINDOW_S)
    publish(report, before, quick=given.quick)


if __name__ == "__main__":
    main()
