"""Hand-made runs for the tests of what is shown: one of each kind of row, figure and mark."""

from __future__ import annotations

import dataclasses

from builders import around, blocks, config, failed, header, machine, run, target

from dlprof.records import (
    Alternative,
    Certificate,
    Config,
    Constraints,
    Cost,
    Expected,
    Failure,
    LeftOut,
    NumaBinding,
    Reason,
    Recommendation,
    RuleOfThumb,
    Run,
    RunEnd,
    Trial,
    Usage,
)

NONE = config(0)
TWO = config(2)
FOUR = config(4)
FOUR_KEPT = config(4, persistent_workers=True)
FOUR_DEEP = config(4, prefetch_factor=4, persistent_workers=True)
EIGHT = config(8)
SIXTEEN = config(16)

HOSTILE = "\x1b[31mred\x1b]0;title\x07[bold]loud[/bold]\u202egnp.exe\r\nline"


def example_trials() -> list[Trial]:
    """Six configurations in three blocks, one of them noisy, and one that failed."""
    usage = Usage(
        own_cpu_cores=3.87,
        available_cpu_cores=6.1,
        other_cpu_cores=1.9,
        pss_peak_bytes=1_500_000_000,
        shm_peak_bytes=120_000_000,
    )
    trials = blocks(
        {
            NONE: (402.0, 410.0, 399.0),
            TWO: (790.0, 802.0, 771.0),
            FOUR: (1492.0, 1521.0, 1480.0),
            FOUR_KEPT: (1510.0, 1531.0, 1495.0),
            FOUR_DEEP: (1505.0, 1540.0, 1490.0),
            EIGHT: (1320.0, 1105.0, 1290.0),
        },
        usage=usage,
        startup_s=0.131,
        epoch_turnover_s=0.0123,
        wait_fraction=0.034,
    )
    marked = [
        dataclasses.replace(trial, noisy=trial.config == EIGHT and trial.repetition == 1)
        for trial in trials
    ]
    fault = Failure(
        kind="worker_signal",
        message="A worker was killed by signal SIGBUS.",
        hint="Either /dev/shm is full, or a file that is mapped (memmap) was cut off.",
    )
    return [*marked, failed(SIXTEEN, failure=fault)]


def example_recommendation() -> Recommendation:
    """Four persistent workers, with everything that a recommendation can say."""
    certificate = Certificate(
        epsilon=0.027, epsilon_measured=0.027, probability=0.95, configurations=6, measured=6
    )
    return Recommendation(
        config=FOUR_KEPT,
        dataloader_kwargs=FOUR_KEPT.dataloader_kwargs(),
        expected=Expected(
            samples_per_s=around(1512.0, 0.02),
            wait_fraction=0.034,
            pss_bytes=1_500_000_000,
            shm_bytes=173_408_256,
            startup_s=0.131,
            epoch_turnover_s=0.0123,
        ),
        confidence="high",
        confidence_reason=certificate.text,
        certificate=certificate,
        reasons=(
            Reason(
                claim="num_workers=4 is 3.7x as fast as num_workers=0 (95% CI 3.6-3.9).",
                evidence={"trials": ["t0001", "t0004"], "ratio": 3.7},
            ),
            Reason(
                claim="prefetch_factor=4 is no faster than 2.",
                evidence={"trials": [f"t{number:04}" for number in range(1, 10)]},
            ),
        ),
        alternatives=(
            Alternative(config=FOUR_DEEP, expected=_rate(1511), relation="tie", speed=0.999),
            Alternative(config=NONE, expected=_rate(403), relation="default", speed=0.27),
        ),
        constraints=Constraints(max_ram_bytes=4 << 30, ranks=2, step_s=0.012),
        rules_of_thumb=(
            RuleOfThumb(name="num_workers = cores", config=EIGHT, expected_samples_per_s=1238.0),
            RuleOfThumb(name="4 x GPUs", config=NONE, unavailable="this machine has no GPU"),
        ),
    )


def _rate(value: float) -> Expected:
    return Expected(samples_per_s=around(value))


def example_run_without_advice() -> Run:
    """The run as it stands before anything is recommended."""
    made = run(
        example_trials(),
        machine=machine(hostname="box-1"),
        target=target(spec="images"),
        settings={"step_s": 0.012},
        left_out=(
            LeftOut(
                setting="pin_memory=True",
                reason="there is no accelerator, so pinning would pin nothing",
            ),
        ),
    )
    cost = Cost(measured=57.0, overhead=12.5, total=69.5)
    end = RunEnd(ended_at="2026-01-01T00:01:10Z", reason="decided", cost_s=cost)
    return dataclasses.replace(made, path="images.dlprof.jsonl", end=end)


def example_run() -> Run:
    """A finished run with its recommendation."""
    return dataclasses.replace(
        example_run_without_advice(), recommendation=example_recommendation()
    )


def present_run(present: Config) -> Run:
    """The finished run, of a target whose own DataLoader is set so."""
    made, advice = example_run(), example_recommendation()
    other = Alternative(config=present, expected=_rate(790), relation="present", speed=0.52)
    if present != advice.config:
        advice = dataclasses.replace(advice, alternatives=(other, *advice.alternatives))
    owned = dataclasses.replace(made.header, target=target(spec="data.py:make", own_config=present))
    return dataclasses.replace(made, header=owned, recommendation=advice)


def hostile_run() -> Run:
    """A run whose every foreign text tries to act on the terminal."""
    made = example_run()
    advice = example_recommendation()
    return dataclasses.replace(
        made,
        path=HOSTILE,
        header=header(
            machine=machine(hostname=HOSTILE, fingerprint=HOSTILE),
            target=target(spec=HOSTILE, dataset=HOSTILE),
            dlprof_version=HOSTILE,
            started_at=HOSTILE,
            left_out=(LeftOut(setting=HOSTILE, reason=HOSTILE),),
        ),
        trials=(*made.trials, failed(Config(num_workers=32, prefetch_factor=2), HOSTILE)),
        recommendation=dataclasses.replace(
            advice,
            confidence_reason=HOSTILE,
            reasons=(Reason(claim=HOSTILE, evidence={"trials": [HOSTILE]}),),
            rules_of_thumb=(RuleOfThumb(name=HOSTILE, config=NONE, unavailable=HOSTILE),),
            constraints=Constraints(machine=HOSTILE),
            numa_binding=NumaBinding(unavailable=HOSTILE),
        ),
    )
