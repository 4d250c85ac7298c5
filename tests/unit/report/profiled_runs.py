"""A run with everything that a traced trial adds, for the tests of reports."""

from __future__ import annotations

import dataclasses
from typing import Any

from example_runs import FOUR, HOSTILE, example_run, hostile_run

from dlprof.records import (
    Diagnosis,
    Estimate,
    Explanation,
    Finding,
    Fix,
    Run,
    SampleCosts,
    Stage,
    Stalls,
    Timeline,
    TransformCost,
    WorkerCosts,
)
from dlprof.records.stages import StageName


def made_timeline(count: int = 40, workers: int = 4, **changes: Any) -> Timeline:
    """A loader of steady workers, at whose batches the consumer works 5 ms each."""
    numbers = range(count)
    lanes = max(1, workers)
    picked = [0.010 * (number // lanes) for number in numbers]
    received = [at + 0.011 + 0.0006 * (number % lanes) for number, at in enumerate(picked)]
    yielded = [at + 0.015 + 0.001 * (number % lanes) for number, at in enumerate(picked)]
    made = Timeline(
        trial_id="t0003",
        began_at="2026-01-01T00:00:10Z",
        batch=tuple(numbers),
        epoch=(0,) * count,
        worker=tuple(number % workers if workers else -1 for number in numbers),
        dispatched_s=tuple(at - 0.002 for at in picked),
        picked_s=tuple(picked),
        fetched_s=tuple(at + 0.007 for at in picked),
        collated_s=tuple(at + 0.009 for at in picked),
        serialising_s=tuple(at + 0.0091 for at in picked),
        serialised_s=tuple(at + 0.0099 for at in picked),
        received_s=tuple(received),
        rebuilt_s=tuple(at + 0.0005 for at in received),
        yielded_s=tuple(yielded),
        asked_s=tuple(at - 0.0005 for at in yielded),
    )
    return dataclasses.replace(made, **changes)


def made_explanation(text: str = "RandomResizedCrop") -> Explanation:
    """Stages, samples, transforms and workers."""
    means: dict[StageName, float] = {
        "fetch": 0.041,
        "collate": 0.004,
        "serialise": 0.001,
        "queue": 0.003,
        "rebuild": 0.0006,
        "hold_up": 0.012,
        "wait": 0.009,
    }
    stages = tuple(
        Stage(
            name=name,
            mean_s=mean,
            median_s=mean * 0.9,
            p95_s=mean * 2,
            max_s=mean * 5,
            cpu_s=mean * 0.8 if name == "fetch" else None,
        )
        for name, mean in means.items()
    )
    return Explanation(
        trial_id="t0003",
        config=FOUR,
        window_s=2.0,
        batches=180,
        stages=stages,
        samples=SampleCosts(
            count=5760, mean_s=0.0013, median_s=0.0012, p95_s=0.002, p99_s=0.004, max_s=0.02
        ),
        transforms=(TransformCost(name=f"0 {text}", mean_s=0.0009, share=0.7),),
        workers=(WorkerCosts(worker=0, batches=45, busy_fraction=0.97, cpu_cores=0.9, threads=2),),
        wait_fraction=0.5,
    )


def made_diagnosis(text: str = "Decoding takes most of the time.") -> Diagnosis:
    """One finding with a fix, and stalls."""
    return Diagnosis(
        config=FOUR,
        findings=(
            Finding(
                code="fetch.cpu",
                severity="high",
                title=text,
                explanation=text,
                fix=Fix(text=text),
                predicted_gain=Estimate(value=1.4),
                cost=0.3,
                doubtful=text,
            ),
        ),
        stalls=Stalls(resident_s=0.002, warm_s=0.01, prep_fraction=0.8),
        notes=(text,),
    )


def profiled_run() -> Run:
    """A run with explanations, a timeline and a diagnosis."""
    return dataclasses.replace(
        example_run(),
        explanations=(made_explanation(),),
        timelines=(made_timeline(),),
        diagnosis=made_diagnosis(),
    )


def hostile_profile(text: str = HOSTILE) -> Run:
    """The same of which every foreign text tries to act."""
    return dataclasses.replace(
        hostile_run(),
        explanations=(made_explanation(text),),
        timelines=(made_timeline(trial_id=text, began_at=text),),
        diagnosis=made_diagnosis(text),
    )
