"""Is accelerator utilization what DLIO itself measures? Its workloads, scaled down, turn by turn.

DLIO runs as its users run it, under ``mpirun``, by a Python of its own, ``--python``: a virtual
environment with dlio-benchmark, mpi4py and an MPI (``benchmarks/README.md`` says how to make one).
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import random
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from common import Report, Table, parser, publish, run_command, spread, surroundings

from dlprof.engine.ranks import launched
from dlprof.machine import inspect_machine
from dlprof.records import Config
from dlprof.targets.grammar import parse_target
from dlprof.trial.nodes import Ranks
from dlprof.trial.protocol import BuildRequest, TrialRequest
from dlprof.trial.runner import TrialRunner
from dlprof.trial.state import TrialLimits

GOAL, GOAL_COMPUTING, GOAL_TIME = 1.0, 3.0, 1 / 20
_TIMEOUT_S = 120.0


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """One of those that DLIO ships, scaled down.

    Attributes:
        name: As DLIO has it.
        record_bytes: Of a sample in its file.
        sample_bytes: Of one that reaches the step.
        batch_size: Samples.
        workers: ``read_threads``.
        step_s: ``computation_time``.
        computes: Whether the host's cores set the rate, and not the step.
    """

    name: str
    record_bytes: int
    sample_bytes: int
    batch_size: int
    workers: int
    step_s: float
    computes: bool = False

    def parts(self, folder: Path, files: int) -> dict[str, dict[str, object]]:
        """Its YAML for both sides; all workloads as npz and loaded by torch."""
        return {
            "dataset": {
                "data_folder": str(folder),
                "format": "npz",
                "num_files_train": files,
                "num_samples_per_file": 1,
                "record_length": self.record_bytes,
                "record_length_stdev": 0,
                "record_length_resize": self.sample_bytes,
            },
            "reader": {
                "data_loader": "pytorch",
                "batch_size": self.batch_size,
                "read_threads": self.workers,
            },
            "train": {"computation_time": self.step_s},
        }


WORKLOADS = (
    Workload(
        name="unet3d_h100", record_bytes=400_000, sample_bytes=65_536, batch_size=7,
        workers=1, step_s=0.1,
    ),
    Workload(
        name="unet3d_a100", record_bytes=4_000_000, sample_bytes=65_536, batch_size=4,
        workers=1, step_s=0.005, computes=True,
    ),
    Workload(
        name="resnet50_h100", record_bytes=10_000, sample_bytes=10_000, batch_size=16,
        workers=2, step_s=0.05,
    ),
    Workload(
        name="cosmoflow_h100", record_bytes=28_000, sample_bytes=28_000, batch_size=1,
        workers=2, step_s=0.0035,
    ),
)  # fmt: skip


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Design:
    """What is measured.

    Attributes:
        ranks: How many load at once.
        pairs: How often both sides take turns.
        steps: Of one rank in an epoch of DLIO.
        epochs: That DLIO runs.
        window_s: Of dlprof.
    """

    ranks: Sequence[int]
    pairs: int
    steps: int
    epochs: int
    window_s: float


FULL = Design(ranks=(1, 2), pairs=5, steps=50, epochs=3, window_s=2.0)
QUICK = Design(ranks=(1,), pairs=1, steps=10, epochs=1, window_s=0.5)


@dataclasses.dataclass(slots=True)
class Cell:
    """One workload by one number of ranks; ``(dlprof, DLIO)`` for each pair.

    Attributes:
        workload: Which.
        ranks: How many.
        percent: Utilization, of 100.
        wall_s: That either side took.
    """

    workload: Workload
    ranks: int
    percent: list[tuple[float, float]] = dataclasses.field(default_factory=list)
    wall_s: list[tuple[float, float]] = dataclasses.field(default_factory=list)

    @property
    def points(self) -> list[float]:
        """By how much dlprof's is above."""
        return [mine - theirs for mine, theirs in self.percent]

    @property
    def reached(self) -> bool:
        """Whether the median of both is alike."""
        goal = GOAL_COMPUTING if self.workload.computes else GOAL
        return abs(statistics.median(self.points)) <= goal


@contextlib.contextmanager
def stand_ins() -> Iterator[str]:
    """A folder with an empty tensorflow, which DLIO imports for a profiler that isn't used."""
    with tempfile.TemporaryDirectory(prefix="dlprof-benchmark-") as folder:
        (Path(folder) / "tensorflow.py").write_text("")
        yield folder


def by_dlio(
    python: Path, cell: Cell, folder: Path, design: Design, *, make: bool = False
) -> tuple[float, float]:
    """Percent of utilization by DLIO's own word, and what it took; or its data, made.

    Raises:
        CommandError: It failed.
    """
    workload, out = cell.workload, folder / "out"
    parts = workload.parts(folder / "data", _files(cell, design))
    parts["train"]["epochs"] = design.epochs
    parts["workflow"] = {"generate_data": make, "train": not make, "checkpoint": False}
    given = [
        f"++workload.{a}.{b}={value}" for a, part in parts.items() for b, value in part.items()
    ]
    launcher = [str(python.parent / "mpirun"), "--oversubscribe", "--bind-to", "none", "-np"]
    launcher += ["1" if make else str(cell.ranks), str(python), "-m", "dlio_benchmark.main"]
    fixed = [f"workload={workload.name}", "++workload.framework=pytorch", f"hydra.run.dir={out}"]
    with stand_ins() as path:
        root = {f"OMPI_ALLOW_RUN_AS_ROOT{end}": "1" for end in ("", "_CONFIRM")}
        environ = {**root, "PYTHONPATH": path, "DFTRACER_ENABLE": "0"}
        done = run_command([*launcher, *fixed, *given], cwd=folder, environ=environ)
    if make:
        return 0.0, done.wall_s
    metric = json.loads((out / "summary.json").read_text())["metric"]
    return float(metric["train_au_mean_percentage"]), done.wall_s


def _files(cell: Cell, design: Design) -> int:
    return cell.ranks * design.steps * cell.workload.batch_size


@contextlib.contextmanager
def open_bench(cell: Cell, folder: Path, design: Design) -> Iterator[TrialRunner]:
    """Ranks with the workload built and probed, as a sweep has it."""
    file = folder / f"{cell.workload.name}.yaml"
    parts = cell.workload.parts(folder / "data", _files(cell, design))
    # JSON is YAML, too.
    file.write_text(json.dumps(parts), encoding="utf-8")
    with contextlib.closing(
        TrialRunner(
            BuildRequest(target=parse_target(f"dlio:{file}"), shuffle=True),
            directory=folder,
            together=Ranks(local=launched(cell.ranks, os.environ)),
        )
    ) as bench:
        cores = inspect_machine().usable_cores
        bench.build(TrialLimits(wall_s=_TIMEOUT_S, stall_s=_TIMEOUT_S, usable_cores=cores))
        bench.probe(TrialRequest(config=Config(), probe=True))
        yield bench


def by_dlprof(
    bench: TrialRunner, cell: Cell, design: Design, repetition: int
) -> tuple[float, float]:
    """Percent of utilization by one trial: the step over the period of the slowest rank.

    Raises:
        RuntimeError: The trial gave no figure.
    """
    workload, began_s = cell.workload, time.monotonic()
    config = Config(num_workers=workload.workers, persistent_workers=True).canonical()
    request = TrialRequest(
        config=config,
        trial_s=design.window_s,
        step_s=workload.step_s,
        step_barrier=cell.ranks > 1,
        turnover=False,
    )
    trial = bench.explain(request, trial_id=f"t{repetition:04}", repetition=repetition)[0]
    if trial.batches_per_s is None:
        raise RuntimeError(f"a trial gave no figure: {trial.failure}")
    utilization = 100 * trial.batches_per_s.value * workload.step_s
    return utilization, time.monotonic() - began_s


def measure(python: Path, workload: Workload, ranks: int, design: Design) -> Cell:
    """All pairs of one cell, which side comes first by chance."""
    cell, order = Cell(workload, ranks), random.Random(f"{workload.name} {ranks}")
    with tempfile.TemporaryDirectory(prefix="dlprof-benchmark-") as place:
        folder = Path(place)
        by_dlio(python, cell, folder, design, make=True)
        with open_bench(cell, folder, design) as bench:
            for repetition in range(design.pairs):
                first = order.random() < 0.5
                other = by_dlio(python, cell, folder, design) if first else None
                mine = by_dlprof(bench, cell, design, repetition)
                theirs = other or by_dlio(python, cell, folder, design)
                cell.percent.append((mine[0], theirs[0]))
                cell.wall_s.append((mine[1], theirs[1]))
                print(workload.name, ranks, mine, theirs, file=sys.stderr, flush=True)
    return cell


def report_on(cells: Sequence[Cell], design: Design) -> Report:
    """The table of all cells."""
    columns = (
        *("workload", "ranks", "utilization, %", "DLIO", "points, median", "quartiles"),
        *("within the goal", "of its wall time"),
    )
    return Report(
        name="dlio",
        title="Accelerator utilization is what DLIO measures",
        goal=(
            f"within {GOAL:g} point, {GOAL_COMPUTING:g} where the host's cores set the rate, in "
            "1/20 of its wall time"
        ),
        passed=all(cell.reached and _share(cell) <= GOAL_TIME for cell in cells),
        tables=[Table("", columns, [_row(cell) for cell in cells])],
        notes=[
            (
                f"{design.pairs} pairs per row, in random order within the pair. DLIO: the mean "
                f"over {design.epochs} epochs of {design.steps} steps, the first of each left out. "
                f"dlprof: one trial of {design.window_s:g} s, with a barrier each step for several "
                "ranks, by the slowest of them."
            ),
            (
                "All as npz, by torch's DataLoader, the files in the page cache: DLIO reads "
                "tfrecord by TensorFlow, which isn't installed."
            ),
        ],
        data={"cells": [dataclasses.asdict(cell) for cell in cells]},
    )


def _share(cell: Cell) -> float:
    return statistics.median(mine / theirs for mine, theirs in cell.wall_s)


def _row(cell: Cell) -> tuple[str, ...]:
    return (
        cell.workload.name,
        str(cell.ranks),
        f"{statistics.median(mine for mine, _ in cell.percent):.1f}",
        f"{statistics.median(theirs for _, theirs in cell.percent):.1f}",
        f"{statistics.median(cell.points):+.1f}",
        spread(cell.points, 1),
        "yes" if cell.reached else "**no**",
        f"1/{1 / _share(cell):.0f}",
    )


def main() -> None:
    """Measure and publish."""
    options = parser(__doc__)
    options.add_argument("names", nargs="*", metavar="NAME", help="workloads; all by default")
    options.add_argument("--python", type=Path, help="one that has dlio-benchmark and mpi4py")
    given = options.parse_args()
    design, before = QUICK if given.quick else FULL, surroundings()
    if given.python is None:
        print("DLIO isn't run: --python names none that has it.", file=sys.stderr)
        return
    run_command([str(given.python), "-c", "import dlio_benchmark; from mpi4py import MPI"])
    asked = [each for each in WORKLOADS if not given.names or each.name in given.names]
    asked = asked[:1] if given.quick and not given.names else asked
    cells = [measure(given.python, each, ranks, design) for each in asked for ranks in design.ranks]
    publish(report_on(cells, design), before, quick=given.quick)


if __name__ == "__main__":
    main()
