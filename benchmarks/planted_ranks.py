"""Plants a slow rank and its cause among two to four, and counts how often both are named.

Storage, cores, shards and other jobs are real: files read from the disk while others have them in
memory, a lower priority, samples that take more CPU time, and processes on one rank's core.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

from common import Report, Table, parser, publish, surroundings

from dlprof.advise.scaling import CORES, OTHER_JOB, SHARD, STORAGE, slow_for
from dlprof.engine.ranks import launched
from dlprof.records import Config
from dlprof.targets.grammar import parse_target
from dlprof.trial.nodes import Ranks
from dlprof.trial.protocol import BuildRequest, TrialRequest
from dlprof.trial.runner import TrialRunner
from dlprof.trial.state import TrialLimits

GOAL = 0.95
_LIMITS = TrialLimits(wall_s=120.0, stall_s=60.0, usable_cores=os.cpu_count() or 1)
_BURNERS = 3
_BURN = """
import contextlib, os, sys
os.sched_setaffinity(0, {int(sys.argv[1])})
with contextlib.suppress(OSError), open("/proc/self/autogroup", "w") as file:
    file.write("-10")  # so that they are felt on a machine that is busy anyway
while True: pass
"""

TARGET = """
import os
import time

import torch
from torch.utils.data import DataLoader, Dataset

RANK, SIZE = int(os.environ["RANK"]), 4 << 20

class Planted(Dataset):
    def __init__(self, folder, spin_ms, sleep_ms):
        self.spin_s, self.sleep_s, self.path = float(spin_ms) / 1e3, float(sleep_ms) / 1e3, ""
        self.nice = 0
        if folder:
            self.path = f"{folder}/rank{RANK}"
            with open(self.path, "wb") as file:
                file.write(os.urandom(16 * SIZE))
                os.fsync(file.fileno())

    def __len__(self):
        return 65536

    def __getitem__(self, index):
        if self.nice:  # of the rank's session: the kernel shares cores out among sessions first
            with open("/proc/self/autogroup", "w") as file:
                file.write(str(self.nice))
            os.nice(self.nice)
            self.nice = 0
        if self.path:
            with open(self.path, "rb", buffering=0) as file:
                os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
                file.seek(index % 16 * SIZE)
                file.read(SIZE)
        ends_s = time.thread_time() + self.spin_s
        while time.thread_time() < ends_s:
            pass
        time.sleep(self.sleep_s)
        return torch.full((4,), index)

def planted(slow, cause, disk, memory):
    mine = RANK == int(slow)
    if cause == "storage":
        dataset = Planted(disk if mine else memory, 1, 0)
    elif cause == "cores":
        dataset = Planted("", 2, 0)
        dataset.nice = 10 if mine else 0
    else:
        dataset = Planted("", 8 if mine and cause == "shard" else 2, 2)
    return DataLoader(dataset, batch_size=4)
"""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """A cause, planted in one of several ranks.

    Attributes:
        cause: ``storage``, ``cores``, ``shard``, ``job``; empty for a healthy one.
        ranks: How many there are.
        slow: Which one it is.
    """

    cause: str
    ranks: int
    slow: int

    @property
    def named(self) -> str:
        """What is to be said."""
        names = {"storage": STORAGE, "cores": CORES, "shard": SHARD, "job": OTHER_JOB}
        return names.get(self.cause, "")


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """What was said of each rank."""

    case: Case
    said: tuple[str, ...]
    failure: str = ""

    @property
    def right(self) -> bool:
        """Whether the slow rank has its cause, and no other has any."""
        usual = tuple(
            self.case.named if rank == self.case.slow else "" for rank in range(self.case.ranks)
        )
        return self.said == usual


PLACES = ((2, 0), (2, 1), (3, 1), (3, 2), (4, 3))
CASES = [
    Case(cause=cause, ranks=ranks, slow=slow)
    for cause in ("storage", "cores", "shard", "job")
    for ranks, slow in PLACES
]
HEALTHY = [Case(cause="", ranks=ranks, slow=0) for ranks in (2, 3, 4)]


@contextlib.contextmanager
def another_job(cpu: int, count: int) -> Iterator[None]:
    """Processes of somebody else on one core, each in a session of its own."""
    command = [sys.executable, "-c", _BURN, str(cpu)]
    started = [subprocess.Popen(command, start_new_session=True) for _ in range(count)]
    try:
        yield
    finally:
        for process in started:
            process.kill()
            process.wait()


def measure(case: Case, folder: Path, memory: Path) -> Answer:
    """Plant it, load for a window, and ask."""
    cpus = sorted(os.sched_getaffinity(0))[:2]
    local = launched(case.ranks, os.environ)
    if case.cause in ("cores", "job"):  # all on one core, or the slow one on one of its own
        masks = [cpus[case.cause == "job" and rank == case.slow] for rank in range(case.ranks)]
        local = tuple(
            dataclasses.replace(rank, cpus=frozenset([cpu]))
            for rank, cpu in zip(local, masks, strict=True)
        )
    arguments = {"slow": str(case.slow), "cause": case.cause}
    arguments |= {"disk": str(folder), "memory": str(memory)}
    request = BuildRequest(
        target=parse_target(f"{folder / 'target.py'}:planted"), arguments=arguments
    )
    with (
        tempfile.TemporaryDirectory(prefix="dlprof-benchmark-") as directory,
        contextlib.closing(
            TrialRunner(request, directory=Path(directory), together=Ranks(local=local))
        ) as runner,
    ):
        runner.build(_LIMITS)
        runner.probe(TrialRequest(config=Config(), probe=True))
        config = Config(num_workers=1).canonical()
        with another_job(cpus[-1], _BURNERS if case.cause == "job" else 0):
            trial = runner.explain(
                TrialRequest(config=config, trial_s=2.0, turnover=False),
                trial_id="t0001",
                repetition=0,
            )[0]
    said = tuple(slow_for(trial.ranks, rank, 1) for rank in range(len(trial.ranks)))
    print(case, said, [each.samples_per_s for each in trial.ranks], file=sys.stderr, flush=True)
    for each in trial.ranks:
        print("  ", each, file=sys.stderr, flush=True)
    return Answer(
        case=case, said=said, failure="" if trial.failure is None else trial.failure.message
    )


def report_on(answers: Sequence[Answer]) -> Report:
    """The table of all causes."""
    rows = []
    for cause in dict.fromkeys(each.case.cause for each in answers):
        of = [each for each in answers if each.case.cause == cause]
        wrong = [
            f"{each.case.ranks} ranks, {each.case.slow}: {each.failure or each.said}"
            for each in of
            if not each.right
        ]
        right = f"{sum(each.right for each in of)} of {len(of)}"
        rows.append((cause or "none", right, "; ".join(wrong)))
    planted = [each for each in answers if each.case.cause]
    share = sum(each.right for each in planted) / max(1, len(planted))
    return Report(
        name="planted_ranks",
        title="A slow rank and its cause",
        goal=f"right in {GOAL:.0%} of {len(CASES)} planted cases, nothing said of healthy ranks",
        passed=len(planted) >= len(CASES)
        and share >= GOAL
        and all(each.right for each in answers if not each.case.cause),
        tables=[Table("", ("planted", "right", "otherwise"), rows)],
        notes=["One window of 2 s each, num_workers=1 for each rank."],
        data={"answers": [dataclasses.asdict(each) for each in answers]},
    )


def main() -> None:
    """Measure and publish."""
    arguments = parser(__doc__)
    arguments.add_argument("causes", nargs="*", help="causes to plant (default all)")
    given = arguments.parse_args()
    before = surroundings()
    cases = [*CASES, *HEALTHY]
    if given.quick:
        cases = [case for case in cases if (case.ranks, case.slow) in ((2, 1), (3, 2))]
    cases = [case for case in cases if not given.causes or case.cause in given.causes]
    with (
        tempfile.TemporaryDirectory(dir=Path.home(), prefix=".dlprof-planted-") as folder,
        tempfile.TemporaryDirectory(dir="/dev/shm") as memory,
    ):
        (Path(folder) / "target.py").write_text(TARGET)
        answers = [measure(case, Path(folder), Path(memory)) for case in cases]
    publish(report_on(answers), before, quick=given.quick)


if __name__ == "__main__":
    main()
