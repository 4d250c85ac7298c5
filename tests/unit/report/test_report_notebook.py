"""What notebooks show of a run, and of everything else that the functions of dlprof return."""

from __future__ import annotations

import dataclasses
import html
import re
from collections.abc import Callable
from typing import Any

import pytest
from builders import machine
from compare_runs import Costs, made_run
from example_runs import HOSTILE, example_recommendation, example_run, hostile_run
from gate_samples import failing_check, hostile_check
from predicted_runs import calibrated
from profiled_runs import profiled_run

import dlprof
from dlprof.machine.neighbours import Neighbours, Overview
from dlprof.records import Run
from dlprof.records.transfer import Transfers

FRAME = re.compile(r'<iframe srcdoc="(?P<page>[^"]*)" [^<>]*></iframe>')


def page_in(shown: Any) -> str:
    """The page in the frame, which is all there is."""
    found = FRAME.fullmatch(shown._repr_html_())
    assert found is not None
    return html.unescape(found["page"])


@pytest.mark.parametrize("run", [example_run(), profiled_run()])
def test_a_run_shows_its_report(run: Run) -> None:
    assert page_in(run) == dlprof.report(run, format="html")


def test_a_recommendation_shows_what_to_set() -> None:
    advice = example_recommendation()
    page = page_in(advice)
    assert f"num_workers={advice.config.num_workers}" in page
    assert advice.confidence_reason in page


def test_a_comparison_shows_the_difference_and_its_parts() -> None:
    found = dlprof.compare(made_run(Costs()), made_run(Costs(affinity=4)))
    page = html.unescape(page_in(found))
    assert found.verdict in page
    assert all(part.title in page for part in found.parts)


def _overview(hostname: str) -> Overview:
    return Overview(
        machine=machine(hostname=hostname),
        quota_cgroup=None,
        memory_limit_cgroup=None,
        neighbours=Neighbours(watched_s=1.0),
    )


def _named(name: str) -> Run:
    run = calibrated()
    return dataclasses.replace(
        run,
        header=dataclasses.replace(
            run.header,
            target=dataclasses.replace(run.header.target, spec=name),
            machine=dataclasses.replace(run.header.machine, hostname=name),
        ),
    )


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda: dlprof.predict(calibrated(), num_workers=2), ("Best", "num_workers=2")),
        (lambda: dlprof.predict(calibrated()), ("Recommended", "Calibration")),
        (lambda: dlprof.predict(calibrated(), feed=True, step_time="12ms"), ("Data wait", "Needs")),
        (lambda: _overview("gpu-box"), ("What gpu-box offers", "Memory")),
        (lambda: dlprof.machine(machine="dgx-h100"), ("Machine profile dgx-h100", "Source")),
        (lambda: Transfers(machine=machine(), torch_version="", accelerator=None, devices=()),
         ("Copies to the device", "pin_memory=False")),
        (failing_check, ("FAIL", "Certainty")),
        (lambda: dlprof.watch([1, 2], name="mine").summary(), ("mine",)),
    ],
)  # fmt: skip
def test_what_else_is_returned_shows_its_report(make: Callable[[], Any], said: tuple[str]) -> None:
    page = html.unescape(page_in(make()))
    assert [each for each in said if each not in page] == []


def test_a_prediction_shows_itself_without_the_run_that_it_is_drawn_from() -> None:
    found = dlprof.predict(calibrated())
    assert found.run.path == "run.dlprof.jsonl"
    assert "Run(" not in repr(found)


MARKUP = "<script>alert(1)</script>"


@pytest.mark.parametrize(
    "make",
    [
        hostile_run,
        hostile_check,
        lambda: dlprof.predict(_named(MARKUP)),
        lambda: dlprof.predict(_named(MARKUP), feed=True, step_time="12ms"),
        lambda: _overview(MARKUP),
        lambda: dlprof.watch([1], name=MARKUP).summary(),
    ],
)
def test_nothing_of_a_result_leaves_its_frame(make: Callable[[], Any]) -> None:
    page = page_in(make())
    assert HOSTILE not in page
    assert page.count("<script>") == 1  # the page's own, behind all else
