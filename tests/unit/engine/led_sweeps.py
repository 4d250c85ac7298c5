"""Model-led sweeps on a pretended bench: no process is started, and no time passes."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, cast

from builders import config, failed, header, machine, plan, target, trial

from dlprof.advise.thresholds import MOST_WORKERS
from dlprof.engine.sweep import Sweep
from dlprof.engine.trials import Deadline
from dlprof.records import (
    BatchCosts,
    Config,
    Explanation,
    Failure,
    Plan,
    Run,
    RunHeader,
    SweepPrediction,
    Trial,
    Usage,
)
from dlprof.records.codec import to_json
from dlprof.search.space import build_cells
from dlprof.settings import SweepSettings
from dlprof.store import RunWriter, read_content
from dlprof.trial.protocol import TrialRequest
from dlprof.trial.runner import TrialRunner

CORES = 4.0
CALIBRATING = (config(0), config(1), config(2))
GRID = tuple(config(workers) for workers in (0, 1, 2, 4, 8))
BATCH = 32
_FIGURES = 40

Traced = tuple[Trial, Mapping[str, Any]]


def rate(chosen: Config, cost_s: float = 0.02) -> float:
    """Samples per second of batches that compute for ``cost_s``."""
    return BATCH * min(max(1, chosen.num_workers), CORES) / cost_s


class Quiet:
    """A listener that keeps what it was given in words."""

    def __init__(self) -> None:
        self.messages: list[str] = []
        self.predictions: list[SweepPrediction] = []

    def message(self, text: str) -> None:
        self.messages.append(text)

    def predicted(self, prediction: SweepPrediction, _calibration: object) -> None:
        self.predictions.append(prediction)

    def __getattr__(self, _name: str) -> Callable[..., None]:
        return lambda *_shown: None


@dataclasses.dataclass
class PretendedBench:
    """Answers at once.

    Attributes:
        rates: Samples per second of a configuration; ``None`` for one that fails.
        fault: What it fails by; that a worker was killed without.
        stop_after: Trials after which the user presses Ctrl-C.
        now_s: The clock.
        lasts_s: What a trial takes.
        cost_s: CPU time of a batch, as traced trials show it.
        explains: Whether they show anything.
        calls: Trials so far.
        fork_safe: As of the bench that it stands for.
        weight: What the dataset weighs, as plain values.
        started: The start methods that were asked for, one tuple for each weighing.
    """

    rates: Callable[[Config], float | None] = rate
    fault: Failure | None = None
    stop_after: int | None = None
    now_s: float = 0.0
    lasts_s: float = 1.3
    cost_s: float = 0.02
    explains: bool = True
    calls: int = 0
    fork_safe: bool = True
    ranks: int = 1
    weight: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    started: list[tuple[str, ...]] = dataclasses.field(default_factory=list)

    def weigh(
        self, _config: Config, *, limit_s: float, left_s: float, starts: tuple[str, ...] = ()
    ) -> Mapping[str, Any]:
        """The weight that was given, in a tenth of a second; what samples take without starts."""
        assert limit_s <= left_s
        self.now_s += 0.1
        self.started.append(starts)
        asked = {} if starts else {"far_sample_s": 0.01, "next_sample_s": 0.01}
        return {"weight": {**asked, **self.weight}}

    def explain(
        self,
        request: TrialRequest,
        *,
        trial_id: str,
        repetition: int,
        wall_s: float,
        ranks: int | None = None,
    ) -> Traced:
        """A trial, and what it reports if it is traced."""
        del ranks  # one loader by itself
        if self.calls == self.stop_after:
            raise KeyboardInterrupt
        self.calls += 1
        self.now_s += min(self.lasts_s, wall_s)
        found = self.rates(request.config)
        about: dict[str, Any] = {
            "trial_id": trial_id,
            "repetition": repetition,
            "measured_s": request.trial_s,
            "wall_s": self.lasts_s,
        }
        if found is None:
            about |= {"failure": self.fault} if self.fault else {}
            return failed(request.config, **about), {}
        usage = Usage(own_cpu_cores=1.0, available_cpu_cores=CORES, other_cpu_cores=0.0)
        done = trial(request.config, found, usage=usage, **about)
        if not request.explain:
            return done, {}
        shown = to_json(
            Explanation(
                trial_id=trial_id,
                config=request.config,
                window_s=0.8,
                batches=_FIGURES,
                costs=BatchCosts(),
            )
        )
        if self.explains:
            shown["costs"]["cpu_s"] = [self.cost_s] * _FIGURES  # not finite by a replaced clock
        return done, {"explanation": shown}


def led_plan(**rest: Any) -> Plan:
    """Of a sweep that predicts what a machine of four cores may do."""
    cells = build_cells(
        SweepSettings(), target(), machine(CORES), has_accelerator=False, most_workers=MOST_WORKERS
    )
    fields: dict[str, Any] = {"search": "model", "cells": cells, "calibration": CALIBRATING}
    return plan(GRID, **(fields | rest))


def led_header(**rest: Any) -> RunHeader:
    """Of such a run."""
    fields: dict[str, Any] = {"machine": machine(CORES), "plan": led_plan()}
    return header(**(fields | rest))


def swept(
    path: Path,
    bench: PretendedBench,
    listener: Quiet | None = None,
    *,
    budget_s: float = 300.0,
    about: RunHeader | None = None,
    ending_s: float = 0.7,
    faults: Mapping[Config, Failure] | None = None,
    **rest: Any,
) -> Run:
    """A sweep into a file, or what is left of it where the file holds some."""
    before = read_content(path).run if path.exists() else None
    about = before.header if before else about or led_header()
    writer = RunWriter.resume(path) if before else RunWriter.create(path, about)
    assert about.plan is not None
    with writer:
        return Sweep(
            header=about,
            settings=SweepSettings(budget_s=budget_s),
            plan=about.plan,
            runner=cast(TrialRunner, bench),
            writer=writer,
            listener=listener or Quiet(),
            deadline=Deadline(
                budget_s=budget_s,
                began_s=bench.now_s,
                ending_s=ending_s,
                clock=lambda: bench.now_s,
            ),
            before=before,
            earlier_s=0.0,
            faults=faults or {},
            **rest,
        ).run()
