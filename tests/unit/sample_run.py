"""One small run with a trial that failed, as records and as the golden files."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

from hypothesis import strategies as st

from dlprof.records import (
    Alternative,
    Certificate,
    Config,
    ConfigRate,
    Constraints,
    Cost,
    Estimate,
    Expected,
    Failure,
    GpuInfo,
    GpuUsage,
    LeftOut,
    Machine,
    Plan,
    Reason,
    Recommendation,
    RuleOfThumb,
    Run,
    RunEnd,
    RunHeader,
    Target,
    Trial,
    TrialCost,
    Usage,
    UsageSample,
)
from dlprof.records.codec import to_json
from dlprof.store import RunWriter

_FOLDER = Path(__file__).parents[1] / "data" / "runs"
GOLDEN = _FOLDER / "golden.dlprof.jsonl"
OLDER_GOLDEN = _FOLDER / "golden-before-plans.dlprof.jsonl"
"""Written before headers held a plan, targets their CPU time and usage the speed of cores; never to
be changed."""

MACHINE = Machine(
    hostname="box",
    platform="Linux 6.1",
    cpu_model="Intel(R) Core(TM) i9-9900K CPU @ 3.60GHz",
    logical_cpus=16,
    physical_cores=8,
    affinity_cpus=16,
    quota_cores=None,
    usable_cores=16.0,
    memory_bytes=34359738368,
    memory_available_bytes=30064771072,
    shm_bytes=17179869184,
    shm_available_bytes=17179869184,
    open_files_limit=1024,
    numa_nodes=1,
    gpus=(
        GpuInfo(
            index=0,
            name="NVIDIA GeForce RTX 2080 Ti",
            uuid="GPU-5e1f",
            memory_bytes=11811160064,
            pcie_generation=3,
            pcie_width=16,
        ),
    ),
    fingerprint="i9-9900k-16c-32g-2080ti",
    unavailable={"memory_limit_bytes": "no cgroup sets a limit"},
)
PLAIN = Config(num_workers=0)
EIGHT = Config(num_workers=8, prefetch_factor=2, pin_memory=True, persistent_workers=True)
OWN = Config(num_workers=4, prefetch_factor=2, pin_memory=True, start_method="fork")
PRESENT = dataclasses.replace(OWN, start_method=None)
OLDER_HEADER = RunHeader(
    schema_version=1,
    run_id="6f0e1c52",
    started_at="2026-01-05T10:00:00Z",
    dlprof_version="0.1.0",
    torch_version="2.13.0",
    python_version="3.11.7",
    machine=MACHINE,
    target=Target(
        spec="train.py:make_dataset",
        arguments={"root": "/data"},
        kind="map",
        dataset="train.Photographs",
        length=50000,
        batches_per_epoch=1563,
        batch_size=32,
        sampler="RandomSampler",
        import_s=3.2,
        notes=("batch_size taken as 32",),
    ),
    settings={"budget_s": 90.0, "num_workers": [0, 8], "pin_memory": None},
    left_out=(LeftOut(setting="num_workers=64", reason="would need 3 GiB of shared memory"),),
)
HEADER = dataclasses.replace(
    OLDER_HEADER,
    target=dataclasses.replace(
        OLDER_HEADER.target,
        own_config=OWN,
        collate_fn="torch.utils.data._utils.collate.default_collate",
        batch_bytes=19267584,
        batch_tensors=2,
        batch_s=0.103,
        batch_cpu_s=0.098,
    ),
    accelerator="cuda",
    plan=Plan(
        configs=(PLAIN, PRESENT, EIGHT),
        trial_s=1.5,
        min_repeats=2,
        max_repeats=8,
        planned_repeats=3,
        take_turns=True,
        cost=TrialCost(overhead_s=0.3, batch_s=0.103, batch_cpu_s=0.098, usable_cores=16.0),
        present=PRESENT,
    ),
)
OLDER_TRIALS = (
    Trial(
        id="t0001",
        config=PLAIN,
        repetition=0,
        outcome="completed",
        samples_per_s=Estimate(value=310.5, low=301.0, high=320.0),
        batches_per_s=Estimate(value=9.7),
        startup_s=0.04,
        usage=Usage(
            own_cpu_cores=1.0,
            other_cpu_cores=0.25,
            gpu=(
                GpuUsage(
                    index=0,
                    name="NVIDIA GeForce RTX 2080 Ti",
                    uuid="GPU-5e1f",
                    kernel_active_fraction=0.5,
                    unavailable={"pcie_rx_bytes_per_s": "the driver does not tell"},
                ),
            ),
        ),
        unavailable={"wait_fraction": "no step was stated"},
        started_at="2026-01-05T10:00:04Z",
        measured_s=1.5,
        wall_s=1.7,
        window_batches=15,
    ),
    Trial(
        id="t0002",
        config=EIGHT,
        repetition=0,
        outcome="crashed",
        failure=Failure(
            kind="worker_exception",
            message="A worker raised KeyError",
            hint="Correct __getitem__.",
            stderr_tail="\x1b[31mKeyError: 'größe'\x1b[0m \udce4",
        ),
        noisy=True,
        warnings=("Other processes took 3 of 16 cores",),
    ),
)
TRIALS = (
    dataclasses.replace(
        OLDER_TRIALS[0],
        usage=dataclasses.replace(OLDER_TRIALS[0].usage, core_speed=18250.5),
        usage_over_time=(
            UsageSample(at_s=0.5, own_cpu_cores=0.9, other_cpu_cores=0.25),
            UsageSample(at_s=1.0, own_cpu_cores=1.0, gpu_active_fraction=0.5),
        ),
    ),
    *OLDER_TRIALS[1:],
)
EXPECTED = Expected(samples_per_s=Estimate(value=310.5, low=301.0, high=320.0), pss_bytes=900000000)
OLDER_RECOMMENDATION = Recommendation(
    config=PLAIN,
    dataloader_kwargs={"num_workers": 0, "pin_memory": False},
    expected=EXPECTED,
    confidence="low",
    confidence_reason="One repeat only.",
    reasons=(Reason(claim="num_workers=8 failed", evidence={"trials": ["t0002"], "ratio": 2.5}),),
    alternatives=(Alternative(config=PLAIN, expected=EXPECTED, relation="default", speed=1.0),),
    constraints=Constraints(max_workers=8, step_s=0.012),
    rules_of_thumb=(RuleOfThumb(name="num_workers = cores", config=EIGHT, unavailable="failed"),),
)
RECOMMENDATION = dataclasses.replace(
    OLDER_RECOMMENDATION,
    certificate=Certificate(
        epsilon=0.6, epsilon_measured=0.04, probability=0.95, configurations=12, measured=3
    ),
    alternatives=(
        Alternative(config=PRESENT, expected=EXPECTED, relation="present", speed=0.5),
        *OLDER_RECOMMENDATION.alternatives,
    ),
    rates=(
        ConfigRate(
            config=EIGHT,
            samples_per_s=Estimate(value=620.0, low=400.0, high=961.0),
            ratio=Estimate(value=2.0, low=1.25, high=3.2),
            measured=False,
        ),
    ),
)
END = RunEnd(
    ended_at="2026-01-05T10:00:09Z",
    reason="decided",
    cost_s=Cost(measured=1.5, overhead=1.0, total=2.5),
)
RUN = Run(path="", header=HEADER, trials=TRIALS, recommendation=RECOMMENDATION, end=END)
OLDER_RUN = dataclasses.replace(
    RUN, header=OLDER_HEADER, trials=OLDER_TRIALS, recommendation=OLDER_RECOMMENDATION
)


def pathless(run: Run) -> Run:
    return dataclasses.replace(run, path="")


def write(path: Path, run: Run = RUN) -> Path:
    with RunWriter.create(path, run.header) as writer:
        for record in (*run.trials, run.recommendation, run.end):
            if record is not None:
                writer.append(record)
    return path


def header_line(**changes: object) -> bytes:
    return json.dumps({"record": "run", **to_json(HEADER), **changes}).encode() + b"\n"


JSON_VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**64), 2**64)
    | st.just(0.0)
    | st.floats(1e-60, 1e60)
    | st.text(),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.text(), inner, max_size=2),
    max_leaves=4,
)
