"""Measuring loaders of real datasets for benchmarks: dlprof's own trials, one by one."""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
import os
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path

import real_targets

from dlprof.engine.ranks import launched
from dlprof.records import Config, Explanation, Machine, Target, Trial
from dlprof.records.codec import from_json
from dlprof.targets.builtin.options import prepare
from dlprof.targets.grammar import parse_target
from dlprof.trial.nodes import Ranks
from dlprof.trial.protocol import BuildRequest, TrialRequest
from dlprof.trial.runner import TrialRunner
from dlprof.trial.state import TrialLimits

_FILE = real_targets.__file__
DATA: Mapping[str, str] = {
    "JPEG": "images",
    "Python": f"{_FILE}:computed",
    "remote storage": f"{_FILE}:remote",
    "tiny tensors": f"{_FILE}:tiny",
    "8 MB samples": f"{_FILE}:large",
    "heavy tail": f"{_FILE}:tailed",
    "compressed shards": f"{_FILE}:shards",
    "text": "text",
}
"""Targets of the eight datasets, by name."""

_TRIAL_LIMIT_S, _STALL_LIMIT_S = 120.0, 30.0


@dataclasses.dataclass(slots=True, kw_only=True)
class Loaded:
    """A target, built, whose configurations can be measured.

    Attributes:
        target: As built.
        usable_cores: That all trials may take together.
    """

    target: Target
    usable_cores: float
    _bench: TrialRunner
    _numbers: Iterator[int] = dataclasses.field(default_factory=itertools.count)

    def measure(
        self, config: Config, trial_s: float, step_s: float = 0.0, *, barrier: bool = False
    ) -> Trial:
        """One trial, of ranks with a barrier each step if asked; failed ones have no rate."""
        request = TrialRequest(
            config=config, trial_s=trial_s, step_s=step_s, step_barrier=barrier, turnover=False
        )
        return self._bench.explain(request, trial_id=self._next_id(), repetition=0)[0]

    def explain(self, config: Config, trial_s: float) -> tuple[Trial, Explanation | None]:
        """One instrumented trial, without a step."""
        request = TrialRequest(config=config, trial_s=trial_s, turnover=False, explain=True)
        name = self._next_id()
        trial, shown = self._bench.explain(request, trial_id=name, repetition=0)
        if not shown:
            return trial, None
        return trial, from_json(Explanation, shown["explanation"] | {"trial_id": name})

    def _next_id(self) -> str:
        return f"t{next(self._numbers):04d}"


@contextlib.contextmanager
def loaded(target: str, machine: Machine, ranks: int = 1) -> Iterator[Loaded]:
    """Build a target for so many ranks at once; its processes end with the block.

    Raises:
        DlprofError: It can't be built.
    """
    spec = parse_target(target)
    if spec.kind == "builtin":
        prepare(spec, lambda *_: None)
    limits = TrialLimits(
        wall_s=_TRIAL_LIMIT_S, stall_s=_STALL_LIMIT_S, usable_cores=machine.usable_cores
    )
    with (
        tempfile.TemporaryDirectory(prefix="dlprof-benchmark-") as folder,
        contextlib.closing(
            TrialRunner(
                BuildRequest(target=spec),
                directory=Path(folder),
                together=None if ranks == 1 else Ranks(local=launched(ranks, os.environ)),
            )
        ) as bench,
    ):
        built = bench.build(limits)
        bench.probe(TrialRequest(config=Config()))
        yield Loaded(target=built, usable_cores=machine.usable_cores, _bench=bench)
