"""Evidence made by hand for the tests of findings: a loader described by a few figures."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from builders import config, machine, target, trial

from dlprof.advise.findings.evidence import Evidence, ModelAtStep, Observation
from dlprof.model.work import Conditions
from dlprof.records import (
    BatchCosts,
    Calibration,
    Config,
    Estimate,
    Explanation,
    Finding,
    PageFaults,
    Prediction,
    SampleCosts,
    Stage,
    StageName,
    Trial,
    Usage,
    WorkerCosts,
)

QUIET = Usage(own_cpu_cores=1.0, available_cpu_cores=2.0, other_cpu_cores=0.05)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Loader:
    """A loader by what a batch costs; seconds per batch.

    ``rate`` is batches per second, ``busy`` the share of time that workers make batches.
    """

    config: Config = dataclasses.field(default_factory=lambda: config(2))
    rate: float = 100.0
    busy: float = 0.95
    fetch_cpu: float = 0.0
    fetch_io: float = 0.0
    starved: float = 0.0
    collate_cpu: float = 0.0002
    collate_io: float = 0.0
    put_cpu: float = 0.0001
    receive: float = 0.0003
    hand_shake: float = 0.0
    dispatch: float = 0.00005
    pin: float = 0.0
    copy: float = 0.0
    hold_up: float = 0.0
    wait: float | None = None
    step: float = 0.0
    threads: int = 2
    affinity: int | None = None
    growth: float | None = None
    page_faults: PageFaults | None = None
    idle_workers: int = 0
    children: float | None = None


def stage(name: StageName, cpu: float, io: float = 0.0, queue: float = 0.0) -> Stage:
    """A stage whose median, p95 and longest follow from its mean."""
    mean = cpu + io + queue
    return Stage(
        name=name,
        mean_s=mean,
        median_s=mean,
        p95_s=1.5 * mean,
        max_s=3 * mean,
        cpu_s=cpu,
        run_queue_s=queue,
        io_s=io,
    )


def explanation(loader: Loader, trial_id: str = "t0002") -> Explanation:
    """What an instrumented trial of the loader would show."""
    period = 1 / loader.rate
    wait = period - loader.step if loader.wait is None else loader.wait
    making = stage("fetch", loader.fetch_cpu, loader.fetch_io, loader.starved)
    stages = [
        stage("dispatch", loader.dispatch),
        making,
        stage("collate", loader.collate_cpu, loader.collate_io),
        stage("rebuild", loader.receive, loader.hand_shake),
        stage("hold_up", 0.0, loader.hold_up),
        stage("wait", 0.0, wait),
        stage("step", loader.step),
    ]
    stages += [stage("pin", loader.pin)] if loader.pin else []
    stages += [stage("copy", loader.copy)] if loader.copy else []
    count = loader.config.num_workers
    return Explanation(
        trial_id=trial_id,
        config=loader.config,
        window_s=1.0,
        batches=round(loader.rate),
        stages=tuple(stages if count else [s for s in stages if s.name != "rebuild"]),
        samples=SampleCosts(
            count=100, mean_s=0.01, median_s=0.01, p95_s=0.02, p99_s=0.03, max_s=0.2,
            slowest={"17": 0.2},
        ),
        workers=tuple(_worker(loader, number) for number in range(count)),
        page_faults=loader.page_faults,
        children_cpu_s=loader.children,
        costs=BatchCosts(
            cpu_s=(loader.fetch_cpu + loader.collate_cpu,) * 4,
            io_s=(loader.fetch_io + loader.collate_io,) * 4,
            run_queue_s=(loader.starved,) * 4,
            put_cpu_s=(loader.put_cpu if count else 0.0,) * 4,
            receive_cpu_s=(loader.receive if count else 0.0,) * 4,
            receive_io_s=(loader.hand_shake,) * 4,
        ),
        waiting_batches={"pick_up": 2.0, "fetch": 1.9, "queue": 0.1},
        wait_fraction=wait / period,
    )  # fmt: skip


def _worker(loader: Loader, number: int) -> WorkerCosts:
    idle = number < loader.idle_workers
    cpu_s = loader.fetch_cpu + loader.collate_cpu + loader.put_cpu
    return WorkerCosts(
        worker=number,
        batches=0 if idle else 50,
        busy_fraction=0.0 if idle else loader.busy,
        cpu_cores=cpu_s * loader.rate / loader.config.num_workers,
        threads=loader.threads,
        affinity_cpus=loader.affinity,
        pss_growth_bytes_per_batch=loader.growth,
    )


def evidence(
    loader: Loader,
    *,
    cores: float = 2,
    usage: Usage = QUIET,
    variants: Mapping[Config, float] | None = None,
    calibrations: Iterable[Loader] = (),
    noisy: bool = False,
    **rest: Any,
) -> Evidence:
    """Two plain trials of the loader, one explained, and what was tried beside it.

    Args:
        loader: The present one.
        cores: Of the machine.
        usage: Of the plain trials.
        variants: Configurations that were tried, with their gains.
        calibrations: Loaders of other numbers of workers, explained.
        noisy: Whether the plain trials were disturbed.
        rest: Further fields of ``Evidence``; ``machine_fields``, ``target_fields`` and
            ``trial_fields`` for those of its records.
    """
    trial_fields: dict[str, Any] = {"usage": usage, "noisy": noisy, "epoch_turnover_s": 0.001}
    has_step = loader.step > 0
    if has_step:
        trial_fields["wait_fraction"] = explanation(loader).wait_fraction
    trial_fields |= rest.pop("trial_fields", {})
    seen = [_observed(loader.config, loader.rate, block, trial_fields) for block in (0, 1)]
    seen.append(_explained(loader))
    seen += [_explained(each) for each in calibrations]
    for tried, gain in (variants or {}).items():
        seen += [_observed(tried, loader.rate * gain, block, trial_fields) for block in (0, 1)]
    fields: dict[str, Any] = {
        "machine": machine(cores, **rest.pop("machine_fields", {})),
        "target": target(**rest.pop("target_fields", {})),
        "config": loader.config,
        "observations": _numbered(seen),
        "step_s": loader.step,
        "has_step": has_step,
    }
    return Evidence(**(fields | rest))


def _observed(chosen: Config, rate: float, block: int, fields: Mapping[str, Any]) -> Observation:
    return Observation(trial=trial(chosen, rate * 32, repetition=block, **fields))


def _explained(loader: Loader) -> Observation:
    return Observation(
        trial=trial(loader.config, loader.rate * 32, purpose="explain"),
        explanation=explanation(loader),
    )


def _numbered(seen: Sequence[Observation]) -> tuple[Observation, ...]:
    return tuple(
        dataclasses.replace(
            each,
            trial=dataclasses.replace(each.trial, id=f"t{place:04}"),
            explanation=None
            if each.explanation is None
            else dataclasses.replace(each.explanation, trial_id=f"t{place:04}"),
        )
        for place, each in enumerate(seen, 1)
    )


def failing(chosen: Config, made: Trial, **fields: Any) -> Evidence:
    """Evidence of one trial that failed."""
    return Evidence(
        machine=machine(2, **fields.pop("machine_fields", {})),
        target=target(**fields.pop("target_fields", {})),
        config=chosen,
        observations=(Observation(trial=made),),
        **fields,
    )


def modeled(rate: Callable[[Config, float], Estimate | None]) -> ModelAtStep:
    """A model by what it predicts of a configuration on so many cores: batches per second."""

    class Modeled(ModelAtStep):
        def __call__(
            self,
            chosen: Config,
            *,
            cores: float,
            beside: float = 0.0,
            costs: object = None,
            traced: object = None,
        ) -> Prediction | None:
            found = rate(chosen, cores)
            return None if found is None else Prediction(batches_per_s=found)

    return Modeled(calibration=Calibration(), conditions=Conditions(cores=2.0))


def with_usage(seen: Evidence, usage: Usage | None = None, **figures: Any) -> Evidence:
    """The same where each trial used this, or so much of that."""

    def used(each: Observation) -> Observation:
        found = dataclasses.replace(usage or each.trial.usage, **figures)
        return dataclasses.replace(each, trial=dataclasses.replace(each.trial, usage=found))

    return dataclasses.replace(seen, observations=tuple(map(used, seen.observations)))


def with_explanation(
    seen: Evidence, waits: Mapping[str, float] | None = None, **fields: Any
) -> Evidence:
    """The same where traced trials show this, and looks at their processes these waits."""

    def shown(each: Observation) -> Observation:
        if each.explanation is None:
            return each
        found = dataclasses.replace(each.explanation, **fields)
        return dataclasses.replace(
            each, explanation=found if waits is None else found.with_waits(waits)
        )

    return dataclasses.replace(seen, observations=tuple(map(shown, seen.observations)))


def codes(findings: Sequence[Finding]) -> list[str]:
    """The codes, in their order."""
    return [finding.code for finding in findings]
