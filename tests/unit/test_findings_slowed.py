"""A step that loading slows: what is said of it, what would fix it, and where it stands."""

from __future__ import annotations

import dataclasses
from typing import Any

import builders
import pytest
from golden import drawn
from test_run_diagnosis import BATCHES, LOADER, TRACED, durations, stage

from dlprof.integrations.diagnosis import diagnose_script
from dlprof.records import (
    Config,
    Copies,
    Diagnosis,
    Estimate,
    Finding,
    Headroom,
    Run,
    WatchedLoader,
    WatchedScript,
)
from dlprof.report.script import headroom_text, script_report

TWO = Config(num_workers=2, prefetch_factor=2, batch_size=8)


def headroom(waiting: float = 0.02, slowed: float = 0.1, spread: float = 0.02) -> Headroom:
    period_s = 0.050

    def near(value: float) -> Estimate:
        return Estimate(value=value, low=value - spread, high=value + spread)

    share = 1 - waiting - slowed
    return Headroom(
        rounds=8,
        live_batches=80,
        replayed_batches=64,
        extra_steps=80,
        extra_s=5.0,
        period_s=period_s,
        step_s=period_s * share,
        speedup=Estimate(value=1 / share, low=1 / (share + spread), high=1 / (share - spread)),
        waiting_fraction=near(waiting),
        slowed_fraction=near(slowed),
    )


def loop(found: Headroom, wait_s: float = 0.001, **more: Any) -> WatchedLoader:
    step_s = 0.050 - wait_s
    return dataclasses.replace(
        LOADER,
        config=TWO,
        waited_s=wait_s * BATCHES,
        stepped_s=step_s * BATCHES,
        wait_fraction=wait_s / 0.050,
        wait=durations(wait_s),
        step=durations(step_s),
        headroom=found,
        **more,
    )


def diagnosed(
    loader: WatchedLoader,
    *,
    cores: float = 2,
    threads: float = 1.0,
    pin: bool = False,
    **machine: Any,
) -> list[Finding]:
    config = dataclasses.replace(TWO, pin_memory=pin)
    assert loader.step is not None
    assert loader.wait is not None
    step_s, wait_s = loader.step.mean_s, loader.wait.mean_s
    shown = dataclasses.replace(
        TRACED,
        config=config,
        stages=(
            stage("fetch", 0.080, 0.080),
            stage("collate", 0.001, 0.001),
            stage("rebuild", 0.001, 0.001),
            stage("wait", wait_s),
            stage("step", step_s, step_s),
        ),
        workers=tuple(
            dataclasses.replace(TRACED.workers[0], worker=number, cpu_cores=0.9)
            for number in range(2)
        ),
        wait_fraction=wait_s / 0.050,
        step_cpu_s=step_s * threads,
    )
    found = diagnose_script(
        [dataclasses.replace(loader, config=config)],
        [shown],
        builders.machine(cores, **machine),
        builders.target(),
        wall_s=10.0,
    )
    return [] if found is None else list(found.findings)


def test_a_slowed_step_takes_the_place_of_a_loader_that_keeps_up() -> None:
    findings = diagnosed(loop(headroom()))
    assert findings[0].code == "step.slowed"
    assert "consumer" not in {each.code for each in findings}
    first = findings[0]
    assert first.cost == pytest.approx(0.1)
    gain = first.predicted_gain
    assert gain is not None
    assert (gain.value, gain.low, gain.high) == pytest.approx((1 / 0.9, 1 / 0.92, 1 / 0.88))
    assert first.explanation.startswith(
        "Beside the workers the step takes 5.0 ms longer than while they rest, with data from "
        "memory: 10% of the time."
    )
    assert first.evidence["slowed_fraction"] == 0.1
    assert first.fix is not None
    assert "cores of their own" in first.fix.text
    compile(first.fix.code.replace("...", "**{}"), "fix", "exec")


@pytest.mark.parametrize(
    "found", [headroom(slowed=0.015, spread=0.005), headroom(slowed=0.05, spread=0.06)]
)
def test_what_is_small_or_may_be_chance_is_no_finding(found: Headroom) -> None:
    assert "step.slowed" not in {each.code for each in diagnosed(loop(found))}


def test_while_a_loop_waits_a_faster_step_brings_nothing() -> None:
    findings = diagnosed(loop(headroom(waiting=0.4), wait_s=0.020))
    assert findings[0].code != "step.slowed"
    (slowed,) = (each for each in findings if each.code == "step.slowed")
    assert slowed.predicted_gain is None
    assert "data come first" in slowed.explanation


def test_a_step_of_several_threads_leaves_cores_to_the_workers() -> None:
    first = diagnosed(loop(headroom()), cores=4, threads=4.0)[0]
    assert first.fix is not None
    assert first.fix.code == "torch.set_num_threads(2)"


def test_no_code_is_given_that_the_system_does_not_know() -> None:
    """Only on Linux ``os`` has a process choose its cores."""
    first = diagnosed(loop(headroom()), platform="Darwin 24.1.0")[0]
    assert first.fix is not None
    assert not first.fix.code
    assert first.fix.text == "Try fewer workers, and less work in each of them."


@pytest.mark.parametrize(("pin", "said"), [(True, "GIL"), (False, "memory bandwidth")])
def test_where_there_are_cores_for_both(pin: bool, said: str) -> None:
    copies = Copies(device="cuda:0", batches=50, exposed_s=0.0, copy_s=0.0)
    first = diagnosed(loop(headroom(), copies=copies), cores=16, pin=pin)[0]
    assert first.code == "step.slowed"
    assert said in first.explanation
    assert first.fix is not None
    assert ("pin_memory=False" in first.fix.code) is pin


def test_the_screen_has_all_of_it_in_the_fields_words() -> None:
    assert headroom_text(headroom(waiting=0.42, slowed=0.06)) == (
        "1.92x (95% CI 1.85-2.0) with a perfect loader: 26 ms a batch, not 50 ms; "
        "loading slows the step, by 6% of a batch's time"
    )
    assert headroom_text(headroom(waiting=0.42, slowed=0.01)).endswith(
        "; loading slows the step by 3% at most"
    )
    assert headroom_text(headroom(waiting=0.42, slowed=-0.13)).endswith(
        "; loading doesn't slow the step"
    )
    wide = dataclasses.replace(headroom(), speedup=Estimate(value=1.5, low=0.7, high=3.0))
    assert "1.5" not in headroom_text(wide)
    assert " a batch, not" not in headroom_text(wide)


@pytest.mark.parametrize("why", ["", "its epochs are short"])
def test_the_answer_stays_short(why: str) -> None:
    loader = loop(headroom())
    if why:
        loader = dataclasses.replace(loader, headroom=None, unavailable={"headroom": why})
    findings = diagnosed(loader)
    script = WatchedScript(wall_s=10.0, ending="returned", waited_s=0.2, wait_fraction=0.02)
    run = Run(
        path="train.dlprof.jsonl",
        header=builders.header(target=builders.target(spec="run:train.py")),
        watched=(loader,),
        script=script,
        diagnosis=Diagnosis(config=TWO, findings=tuple(findings), trials=("train.py:3",)),
    )
    text = drawn(script_report(run), 80)
    assert len(text.splitlines()) <= 16
    said = " ".join(text.split())
    assert ("not measured: its epochs are short" in said) is bool(why)
    assert ("with a perfect loader" in said) is not bool(why)
    # Of its rounds alone, whose pauses fill the queues: one wait is enough beside the answer.
    assert "is waiting" not in said
    shown = " ".join(drawn(script_report(run), 80, verbose=True).split())
    assert ("; in these rounds waiting costs 2% of the time" in shown) is not bool(why)
