"""The profile's screen at several widths, its findings as JSON, and texts that try to act."""

from __future__ import annotations

import dataclasses
import io
import json
from typing import Any

import pytest
from builders import config, trial
from finding_cases import Loader, evidence, explanation
from golden import check_golden, drawn
from rich.console import Console, RenderableType

from dlprof.advise.findings import find
from dlprof.records import (
    Diagnosis,
    Estimate,
    Explanation,
    Finding,
    Fix,
    Stalls,
    TransformCost,
    Trial,
    Usage,
)
from dlprof.report.findings import evidence_text, findings_json, gain_text, render_findings
from dlprof.report.fitting import TextColumn, fitting
from dlprof.report.pipeline import Pipeline
from dlprof.report.profile import render_diagnosis

HOSTILE = "\x1b[31mred\x1b]0;title\x07[bold]loud[/bold]\u202e"
PRESENT = config(4)
LOADER = Loader(config=PRESENT, fetch_io=0.04, hold_up=0.02, busy=0.55, rate=60)
USAGE = Usage(
    own_cpu_cores=1.2, available_cpu_cores=1.9, other_cpu_cores=0.1, cache_hit_fraction=0.98
)


def _explanation() -> Explanation:
    return dataclasses.replace(
        explanation(LOADER),
        transforms=(
            TransformCost(name="0 Decode", mean_s=0.004, share=0.7),
            TransformCost(name="1 RandomResizedCrop", mean_s=0.0011, share=0.2),
        ),
        waiting_batches={
            "pick_up": 2.0,
            "fetch": 1.9,
            "collate": 0.2,
            "queue": 0.1,
            "rebuild": 0.02,
            "hold_up": 3.6,
            "step": 0.4,
        },
        unavailable={"copy": "nothing is copied to a device"},
    )


def _diagnosis() -> Diagnosis:
    free, deep = config(4, in_order=False), config(4, prefetch_factor=8)
    found = find(evidence(LOADER, variants={free: 1.5, deep: 1.3}))
    return Diagnosis(
        config=PRESENT,
        findings=found,
        stalls=Stalls(
            resident_s=0.012, warm_s=0.018, cold_s=0.021, prep_fraction=0.28, fetch_fraction=0.14
        ),
        trials=("t0001",),
        notes=("The window was short.",),
    )


def _trial() -> Trial:
    return trial(PRESENT, 1234.0, usage=USAGE, wait_fraction=0.34)


@pytest.mark.parametrize("width", [60, 80, 200])
def test_the_screen_at_a_width(width: int) -> None:
    text = drawn(render_diagnosis(_diagnosis(), _explanation(), _trial()), width)
    check_golden(f"profile_{width}.txt", text)
    pasted = ("DataLoader(", "    def ", "    loader =")
    assert all(
        len(line) <= width for line in text.splitlines() if not any(p in line for p in pasted)
    )


def test_the_screen_in_ascii() -> None:
    text = drawn(Pipeline(_explanation().waiting_batches), 60, encoding="ascii")
    text.encode("ascii")
    assert "####" in text
    assert "<- piles up" in text


def test_a_profile_that_could_not_be_explained() -> None:
    text = drawn(render_diagnosis(Diagnosis(config=PRESENT), None, None), 80)
    assert "no cause can be told" in text
    assert "Nothing stands out" not in text
    assert "Stages" not in text


def test_an_explained_profile_without_findings_says_that_nothing_is_wrong() -> None:
    found = Diagnosis(config=PRESENT)
    text = drawn(render_diagnosis(found, _explanation(), None), 80)
    assert "Nothing stands out" in text
    waited = dataclasses.replace(_explanation(), hooked=False)
    assert "no cause can be told" in drawn(render_diagnosis(found, waited, None), 80)


def test_colours_are_left_out_where_they_are_not_wanted() -> None:
    assert "\x1b[" not in _coloured(render_diagnosis(_diagnosis(), _explanation(), None), "1")
    assert "\x1b[" in _coloured(render_diagnosis(_diagnosis(), _explanation(), None), "")


def _coloured(renderable: RenderableType, no_color: str) -> str:
    stream = io.StringIO()
    console = Console(file=stream, width=80, force_terminal=not no_color, no_color=bool(no_color))
    console.print(renderable)
    return stream.getvalue()


def test_findings_are_the_contract_s() -> None:
    documents = json.loads(json.dumps(findings_json(_diagnosis().findings)))
    keys = {"code", "severity", "title", "explanation", "evidence", "fix", "predicted_gain"}
    assert documents[0]["code"] == "order.blocking"
    for document in documents:
        assert keys <= set(document)
    assert documents[0]["fix"]["dataloader_kwargs"] == {"in_order": False}
    assert set(documents[0]["predicted_gain"]) == {"value", "low", "high"}


def _hostile() -> Finding:
    return Finding(
        code="fetch.cpu",
        severity="high",
        title=HOSTILE,
        explanation=HOSTILE,
        evidence={HOSTILE: HOSTILE, "trials": [HOSTILE]},
        fix=Fix(text=HOSTILE, dataloader_kwargs={HOSTILE: HOSTILE}, code=f"{HOSTILE}\nline"),
        predicted_gain=Estimate(value=1.5),
        doubtful=HOSTILE,
    )


def test_nothing_in_a_text_acts_on_the_terminal() -> None:
    explained = dataclasses.replace(
        _explanation(),
        transforms=(TransformCost(name=HOSTILE, mean_s=0.1, share=0.5),),
        unavailable={HOSTILE: HOSTILE},
    )
    diagnosis = Diagnosis(config=PRESENT, findings=(_hostile(),), notes=(HOSTILE,))
    text = drawn(render_diagnosis(diagnosis, explained, None), 80)
    assert not any(mark in text for mark in ("\x1b", "\x07", "\u202e"))
    assert "[bold]loud[/bold]" in text


def test_a_finding_without_anything_else_still_reads() -> None:
    bare = Finding(code="consumer", severity="info", title="The step", explanation="Fed.")
    assert drawn(render_findings((bare,)), 80) == " 1. The step  consumer  info\n    Fed.\n"


@pytest.mark.parametrize(
    ("evidence", "text"),
    [
        ({"fetch_s": 0.012}, "fetch 12 ms"),
        ({"share_of_wait": 0.5}, "share of wait 50 %"),
        ({"growth_bytes_per_s": 2048.0}, "growth bytes per s 2.0 KiB/s"),
        ({"own_cpu_cores": 1.94, "missing": None}, "own cpu cores 1.9"),
        ({"num_workers": 1000, "trials": ["t1", "t2"]}, "num workers 1,000 [t1, t2]"),
        ({"trials": ["t1"]}, "[t1]"),
        ({"gain_from": "model", "gain_trials": []}, ""),
    ],
)
def test_evidence_reads(evidence: dict[str, Any], text: str) -> None:
    assert evidence_text(evidence) == text


def test_gains_say_how_they_are_known() -> None:
    measured = {"gain_from": "measured", "gain_trials": ["t3"]}
    text = gain_text(Estimate(value=1.5, low=1.4, high=1.6), measured)
    assert text == "1.50x (1.40-1.60) of the throughput now, measured here [t3]"
    assert gain_text(Estimate(value=2.0), {}) == "2.00x of the throughput now"
    assert gain_text(None, {}) == ""


@pytest.mark.parametrize(
    ("low", "high", "sure"), [(0.9, 1.2, False), (1.0, 1.2, True), (0.7, 0.9, True)]
)
def test_a_gain_that_may_be_none_is_not_promised(low: float, high: float, *, sure: bool) -> None:
    text = gain_text(Estimate(value=(low + high) / 2, low=low, high=high), {})
    assert text.startswith("no sure gain, ") is not sure


def test_whole_columns_go_the_least_important_first() -> None:
    columns = [
        TextColumn(title="a", cells=["1" * 10]),
        TextColumn(title="b", cells=["2" * 10], keep=2),
        TextColumn(title="c", cells=["3" * 10], keep=1),
        TextColumn(title="empty", cells=["-"], keep=9),
    ]
    assert [column.title for column in fitting(columns, 80)] == ["a", "b", "c"]
    assert [column.title for column in fitting(columns, 25)] == ["a", "b"]
    assert [column.title for column in fitting(columns, 5)] == ["a"]
