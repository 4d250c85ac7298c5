"""What attach and top print: the answer within 16 lines, and the same figures in JSON."""

from __future__ import annotations

import json
from collections.abc import Callable

import pytest
from rich.console import Console
from test_attach_diagnosis import HERE, QUIET, _consumer, _cpu, _io, _order, _seen

from dlprof.attach import Attached, diagnose_training
from dlprof.attach.watching import Look, Seen
from dlprof.report.attach import attach_report, figures_of, top_report
from dlprof.report.document import Document
from dlprof.report.documents import json_document
from dlprof.report.terminal import Screen

MOST_LINES = 16


def _lines(document: Document, *, verbose: bool = False) -> list[str]:
    console = Console(width=80, color_system=None, force_terminal=False)
    with console.capture() as capture:
        console.print(Screen(document, verbose=verbose))
    return capture.get().splitlines()


def _alone() -> Seen:
    looks = [Look(main="running", pin=None, idle=0, alive=0) for _ in range(200)]
    return _seen(looks, workers=0, batches=0, main={"run_s": 9.8})


MADE: dict[str, Callable[[], Seen]] = {
    "io": _io,
    "cpu": _cpu,
    "consumer": _consumer,
    "order": _order,
    "alone": _alone,
}


def _found(name: str) -> Attached:
    return diagnose_training(MADE[name](), HERE, QUIET)


@pytest.mark.parametrize("name", MADE)
def test_the_answer_is_short_and_complete(name: str) -> None:
    found = _found(name)
    lines = _lines(attach_report(found))
    assert len(lines) <= MOST_LINES
    text = "\n".join(lines)
    assert found.finding is not None
    assert found.finding.code in text
    assert f"Certainty   {found.confidence}" in text
    assert ("  Fix " in text) == ("  Speed-up " in text)
    assert lines[-1].strip() == "dlprof run train.py"
    details = "\n".join(_lines(attach_report(found), verbose=True))
    assert details.endswith(text)
    assert "looks" in details


def test_json_says_what_the_screen_says() -> None:
    found = _found("io")
    document = json.loads(json_document(**figures_of(found)))
    assert document["findings"][0]["code"] == "fetch.io"
    assert document["wait_fraction"]["value"] == pytest.approx(0.953, abs=0.02)
    assert document["main_waits"] == {"running": 0.05, "queue": 0.95}
    assert [each["pid"] for each in document["workers"]] == [2, 3]
    assert document["overhead_cpu_cores"] == 0.0
    assert figures_of(_found("alone"))["unavailable"]["wait_fraction"]


def test_a_line_for_each_training_and_one_sentence_for_none() -> None:
    found = [_found("io"), _found("consumer"), _found("alone")]
    lines = _lines(top_report(found, unseen=2))
    assert sum("train.py" in line for line in lines) == 3
    assert any("fetch.io" in line for line in lines)
    assert any("2 trainings of other users" in line for line in lines)
    document = json.loads(json_document(trainings=list(map(figures_of, found))))
    assert document["trainings"][0]["findings"][0]["code"] == "fetch.io"
    assert "No training" in "\n".join(_lines(top_report([])))
