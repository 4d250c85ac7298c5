"""A run held against stored history, and the check of the check, on sides that load nothing."""

from __future__ import annotations

import dataclasses
import multiprocessing
import time
import types
from pathlib import Path

import pytest
from check_fakes import BATCH_S, Listener, Opened, settings

from dlprof.engine.check import run_self_test
from dlprof.engine.checking.history import (
    LOAD_BLOCKS,
    check_baseline,
    data_fingerprint,
    measure_run,
    record_entry,
)
from dlprof.errors import NothingMeasuredError, TargetError
from dlprof.records import Target
from dlprof.records.gate import BaselineEntry
from dlprof.targets.workers import DelayedCollate, add_delay


@pytest.fixture
def opened(monkeypatch: pytest.MonkeyPatch) -> Opened:
    made = Opened()
    monkeypatch.setattr("dlprof.engine.checking.history.open_sides", made)
    monkeypatch.setattr("dlprof.engine.check.open_sides", made)
    return made


@pytest.fixture
def baseline(tmp_path: Path) -> Path:
    return tmp_path / "loading.jsonl"


def recorded(path: Path, opened: Opened, cwd: Path, runs: int, factor: float = 1.0) -> None:
    """So many runs, each measured, a factor of what they took."""
    for number in range(runs):
        run, _ = measure_run(settings(), listener=Listener(), cwd=cwd, clock=opened.clock)
        figures = {name: factor * value for name, value in run.figures.items()}
        entry = dataclasses.replace(
            run, recorded_at=f"2026-01-{number + 1:02}T00:00:00Z", figures=figures
        )
        record_entry(path, entry)


def test_a_run_is_the_median_of_many_blocks(opened: Opened, tmp_path: Path) -> None:
    check = check_baseline(
        settings(), tmp_path / "none", listener=Listener(), cwd=tmp_path, clock=opened.clock
    )
    run = check.target.recordable
    assert run is not None
    assert run.figures["service.mean"] == pytest.approx(BATCH_S / 4, rel=0.02)
    assert run.figures["startup.value"] == pytest.approx(0.1)
    assert check.target.measured_s == pytest.approx(LOAD_BLOCKS * 8 * BATCH_S + 0.3)
    assert run.commit == ""


def test_a_baseline_that_is_not_there_is_reported_before_anything_is_measured(
    opened: Opened, baseline: Path, tmp_path: Path
) -> None:
    listener = Listener()
    check = check_baseline(
        settings(), baseline, listener=listener, cwd=tmp_path, clock=opened.clock
    )
    assert listener.messages[0].startswith(f"there is no baseline {baseline} yet")
    assert check.base.note == "there is no such file"


def test_too_few_comparable_runs_are_reported_before_anything_is_measured(
    opened: Opened, baseline: Path, tmp_path: Path
) -> None:
    recorded(baseline, opened, tmp_path, runs=4)
    heard: list[tuple[str, float]] = []
    listener = Listener()
    listener.message = lambda text: heard.append((text, opened.clock()))  # type: ignore[method-assign] # heard
    began_s = opened.clock()
    check = check_baseline(
        settings(), baseline, listener=listener, cwd=tmp_path, clock=opened.clock
    )
    why = "4 comparable runs stored, 5 are needed"
    assert heard[0] == (f"{why}; this run can't be judged, only recorded", began_s)
    assert why in check.target.verdict.explanation
    recorded(baseline, opened, tmp_path, runs=5)
    check_baseline(settings(), baseline, listener=listener, cwd=tmp_path, clock=opened.clock)
    assert not heard[1:]


def test_a_short_budget_gives_few_blocks_but_some(opened: Opened, tmp_path: Path) -> None:
    began_s = opened.clock()
    run, _ = measure_run(settings(0.5), listener=Listener(), cwd=tmp_path, clock=opened.clock)
    assert opened.clock() - began_s == pytest.approx(5 * 8 * BATCH_S)
    assert "startup.value" not in run.figures


def test_arguments_are_a_part_of_the_key(opened: Opened, tmp_path: Path) -> None:
    run, _ = measure_run(
        settings(b="2", a="1"), listener=Listener(), cwd=tmp_path, clock=opened.clock
    )
    assert run.key.target == "data.py:make a=1 b=2"


def test_a_side_that_fails_again_and_again_ends_the_run(opened: Opened, tmp_path: Path) -> None:
    opened.fails = True
    with pytest.raises(NothingMeasuredError, match="It broke"):
        measure_run(settings(), listener=Listener(), cwd=tmp_path, clock=opened.clock)


@pytest.mark.parametrize(
    ("runs", "factor", "state"),
    [(0, 1.0, "no_baseline"), (4, 1.0, "no_baseline"), (5, 1.0, "pass"), (5, 0.8, "fail")],
)
def test_the_verdict_follows_from_the_last_runs(
    opened: Opened, tmp_path: Path, baseline: Path, runs: int, factor: float, state: str
) -> None:
    recorded(baseline, opened, tmp_path, runs, factor)
    check = check_baseline(
        settings(), baseline, listener=Listener(), cwd=tmp_path, clock=opened.clock
    )
    assert check.state == state
    assert check.base.note == (f"{runs} comparable runs" if runs else "there is no such file")
    entry = check.targets[0].recordable
    assert isinstance(entry, BaselineEntry)
    assert (check.torch_version, check.python_version) == ("2.13.0", "3.11.7")


def test_a_check_can_be_recorded_and_is_then_history(
    opened: Opened, tmp_path: Path, baseline: Path
) -> None:
    check = check_baseline(
        settings(), baseline, listener=Listener(), cwd=tmp_path, clock=opened.clock
    )
    assert check.targets[0].recordable is not None
    assert record_entry(baseline, check.targets[0].recordable) == 1


def test_other_data_has_another_fingerprint() -> None:
    one = Target(spec="a", kind="map", dataset="D", length=10, batch_size=2)
    assert data_fingerprint(one) == data_fingerprint(dataclasses.replace(one, spec="b"))
    assert data_fingerprint(one) != data_fingerprint(dataclasses.replace(one, length=11))
    # Warm blocks are no history of those that load each sample the first time, too.
    assert data_fingerprint(one) != data_fingerprint(one, 10)


def test_a_self_test_slows_one_side_by_twice_the_limit(opened: Opened, tmp_path: Path) -> None:
    listener = Listener()
    test = run_self_test(settings(), listener=listener, cwd=tmp_path, clock=opened.clock)
    assert test.trusted
    assert test.injected == pytest.approx(0.10)
    same, slowed = opened.sides
    assert {plan.request.delay_s for plan in same.plans.values()} == {0.0}
    assert slowed.plans["base"].request.delay_s == 0.0
    assert slowed.plans["change"].request.delay_s == pytest.approx(0.1 * BATCH_S, rel=0.02)
    assert listener.messages[:2] == ["the same code against itself", "the same code, 10% slower"]
    assert listener.messages[2:] == ["slower; confirming it in a second pair of processes"]


def test_a_noisy_machine_is_not_trusted(opened: Opened, tmp_path: Path) -> None:
    opened.noise = 0.5
    test = run_self_test(settings(), listener=Listener(), cwd=tmp_path, clock=opened.clock)
    assert not test.trusted


def test_a_self_test_of_what_fails_says_why(opened: Opened, tmp_path: Path) -> None:
    opened.fails = True
    with pytest.raises(NothingMeasuredError, match="It broke"):
        run_self_test(settings(), listener=Listener(), cwd=tmp_path, clock=opened.clock)


def test_a_delayed_loader_costs_so_much_cpu_time_more() -> None:
    loader = types.SimpleNamespace(collate_fn=sum)
    add_delay(loader, 0.02)
    began_s = time.thread_time()
    assert loader.collate_fn([1, 2]) == 3
    assert time.thread_time() - began_s >= 0.02


def test_no_delay_leaves_the_loader_as_it_is() -> None:
    loader = types.SimpleNamespace(collate_fn=sum)
    add_delay(loader, 0.0)
    assert loader.collate_fn is sum


def test_what_has_no_collate_function_can_not_be_delayed() -> None:
    with pytest.raises(TargetError, match=r"^list is not a torch\.utils\.data\.DataLoader, so"):
        add_delay([1, 2], 0.02)


def test_a_delayed_collate_goes_to_other_processes() -> None:
    context = multiprocessing.get_context("spawn")
    sent, received = context.SimpleQueue(), DelayedCollate(sum, 0.001)
    sent.put(received)
    assert sent.get()([1, 2]) == 3
