"""A bench for faults: runs the trial that goes wrong, then one that must go right."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import os
import shutil
import subprocess
import tempfile
from pathlib import Path

import psutil

from dlprof.errors import DlprofError
from dlprof.records import Config, Failure, Trial
from dlprof.targets.grammar import parse_target
from dlprof.trial.protocol import BuildRequest, TrialRequest
from dlprof.trial.runner import TrialRunner
from dlprof.trial.state import TrialLimits

MARK = "DLPROF_FAULTS_MARK"
"""An environment variable that every process of these tests inherits, however it detaches."""

BENCH = "bench-"
"""What a bench's own directory begins with."""

TARGETS = Path(__file__).parent / "fault_targets.py"
PATIENT_S = 100.0
"""Without a batch, where a fault shows by itself: however slow the machine is."""

STALL_S = 7.0
"""The same where a fault never does; forked workers are there long before."""

STALL_AGAIN_S = 20.0
"""The same where workers import torch again, beside what the bench adds for that."""

_LONG_S = 10.0
"""Of a trial that is to fail: however slow the machine, it gets there; then it ends at once."""

MOST_BYTES = 700 << 20
MARGIN_S = 60.0
"""What a fault may cost here beyond its own limit, on a machine of any speed: what would hang does
so for an hour. That it is 3 s is measured by ``benchmarks/faults.py``."""


@functools.cache
def can_mount() -> bool:
    """Whether this process may have a mount namespace of its own, and mount there."""
    probe = ["unshare", "-m", "mount", "-t", "tmpfs", "tmpfs", "/mnt"]
    found = shutil.which("unshare") is not None
    return found and subprocess.run(probe, capture_output=True, check=False).returncode == 0


def config(
    workers: int = 1,
    start: str | None = None,
    *,
    persistent: bool = False,
    sharing: str | None = None,
) -> Config:
    return Config(
        num_workers=workers,
        start_method=start,
        persistent_workers=persistent,
        sharing_strategy=sharing,
    ).canonical()


class FaultBench:
    """A bench of one target.

    Args:
        attr: A builder in ``fault_targets``.
        stall_s: See ``TrialLimits``.
        memory_bytes: See ``TrialLimits``.
        first_probe_s: See ``TrialRunner``.
        wall_s: See ``TrialLimits``.
    """

    def __init__(
        self,
        attr: str,
        *,
        stall_s: float = PATIENT_S,
        memory_bytes: float | None = MOST_BYTES,
        first_probe_s: float = 15.0,
        wall_s: float = 300.0,
    ) -> None:
        self.place = Path(tempfile.mkdtemp(prefix=BENCH))
        self.switch = self.place / "fault"
        self.switch.write_text("none")
        self.bench = TrialRunner(
            BuildRequest(
                target=parse_target(f"{TARGETS}:{attr}"), arguments={"switch": str(self.switch)}
            ),
            directory=self.place,
            first_probe_s=first_probe_s,
        )
        try:
            self.target = self.bench.build(
                TrialLimits(
                    wall_s=wall_s,
                    stall_s=stall_s,
                    usable_cores=2.0,
                    memory_bytes=None if memory_bytes is None else int(memory_bytes),
                )
            )
            self.probe = self.bench.probe(TrialRequest(config=Config(), probe=True))
        except DlprofError:
            self.close()
            raise
        self.count = 0

    def run(self, fault: str, tried: Config, *, trial_s: float = 0.1) -> Trial:
        """One trial with a fault switched on."""
        self.count += 1
        self.switch.write_text(fault)
        try:
            return self.bench.explain(
                TrialRequest(config=tried, trial_s=trial_s),
                trial_id=f"t{self.count:04d}",
                repetition=0,
            )[0]
        finally:
            self.switch.write_text("none")

    def fails(self, fault: str, tried: Config, *, limit_s: float) -> Failure:
        """What a trial with a fault is called; checks its cost, and that others are not harmed."""
        trial = self.run(fault, tried, trial_s=_LONG_S)
        assert trial.failure is not None, trial
        assert trial.wall_s < limit_s + MARGIN_S, trial.failure
        self.check_healthy()
        check_wording(trial.failure)
        return trial.failure

    def check_healthy(self, tried: Config | None = None) -> None:
        """The sweep's other trials complete."""
        trial = self.run("none", tried or config(1), trial_s=0.05)
        assert trial.outcome == "completed", trial.failure
        assert trial.batches_per_s is not None
        # What the target itself keeps open lives as long as it does.
        kept = ("fork_server.log", "fault", "listener-")
        assert not [name for name in os.listdir(self.place) if not name.startswith(kept)]

    def close(self) -> None:
        self.bench.close()
        shutil.rmtree(self.place)


def check_wording(failure: Failure) -> None:
    """One sentence of what happened, and something to do about it."""
    assert failure.message.strip()
    assert "\n" not in failure.message
    assert failure.hint.strip()


def living() -> set[psutil.Process]:
    """Every process that bears this run's mark, but this one and those that a bench keeps."""
    mark = f"{MARK}={os.environ[MARK]}".encode()
    found = set()
    for process in psutil.process_iter():
        with contextlib.suppress(OSError, psutil.Error):
            marked = mark in Path(f"/proc/{process.pid}/environ").read_bytes().split(b"\0")
            if marked and process.pid != os.getpid() and not _kept(process):
                found.add(process)
    return found


def _kept(process: psutil.Process) -> bool:
    """Whether this is a bench's own fork server or observer, which ends with the bench."""
    words = process.cmdline()[1:3]
    return process.ppid() == os.getpid() and words in (
        ["-m", "dlprof.trial.fork_server"],
        ["-m", "dlprof.trial.observer"],
    )


def as_json(trial: Trial) -> dict[str, object]:
    """A trial for a process that reads it from a pipe."""
    return dataclasses.asdict(trial)
