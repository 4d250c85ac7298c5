"""The file of a baseline on disk, and how it is shown."""

from __future__ import annotations

import codecs
import dataclasses
import json
import threading
from pathlib import Path

import pytest
from gate_samples import KEY, block, check_golden, entries, service_plan
from golden import drawn

from dlprof.engine.checking.history import read_baseline, record_entry
from dlprof.errors import FileError
from dlprof.gate.baseline import figures_of, render_entry
from dlprof.gate.plan import make_plan
from dlprof.records.gate import BaselineEntry
from dlprof.report.check import baseline_document, baseline_report

FIGURES = (0.0100, 0.0101, 0.0099)


@pytest.fixture
def baseline(tmp_path: Path) -> Path:
    return tmp_path / "loading.jsonl"


def shown(path: Path, width: int = 100, *, verbose: bool = False) -> str:
    return drawn(baseline_report("loading.jsonl", read_baseline(path)), width, verbose=verbose)


def test_a_file_that_is_not_there_yet_holds_nothing(baseline: Path) -> None:
    assert read_baseline(baseline) == []


def test_runs_are_added_one_by_one(baseline: Path) -> None:
    for count, entry in enumerate(entries(FIGURES), 1):
        assert record_entry(baseline, entry) == count
    assert read_baseline(baseline) == entries(FIGURES)


def test_a_byte_order_mark_is_no_fault(baseline: Path) -> None:
    first, second, _ = entries(FIGURES)
    record_entry(baseline, first)
    baseline.write_bytes(codecs.BOM_UTF8 + baseline.read_bytes())
    assert record_entry(baseline, second) == 2
    assert read_baseline(baseline) == [first, second]


def test_runs_recorded_at_the_same_time_are_all_kept(baseline: Path) -> None:
    runs = entries([0.01] * 8)
    threads = [threading.Thread(target=record_entry, args=(baseline, run)) for run in runs]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert read_baseline(baseline) == runs


def test_a_link_stays_one(baseline: Path) -> None:
    link = baseline.with_name("link.jsonl")
    link.symlink_to(baseline)
    record_entry(link, entries(FIGURES)[0])
    assert link.is_symlink()
    assert read_baseline(baseline)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"\xff\xfe", "isn't text"),
        (b"{}\n", "not an entry of a baseline"),
        (b'{"dlprof_baseline": 9}\n', "newer dlprof"),
        (b"<<<<<<< HEAD\n", "merge conflict"),
    ],
)
def test_a_file_of_another_kind_is_refused_and_left_as_it_was(
    baseline: Path, content: bytes, message: str
) -> None:
    baseline.write_bytes(content)
    with pytest.raises(FileError, match=message):
        record_entry(baseline, entries(FIGURES)[0])
    assert baseline.read_bytes() == content


def test_a_folder_is_no_baseline(tmp_path: Path) -> None:
    with pytest.raises(FileError, match="is a folder"):
        read_baseline(tmp_path)


def test_a_folder_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(FileError, match="There is no folder"):
        record_entry(tmp_path / "none" / "loading.jsonl", entries(FIGURES)[0])


def test_blocks_of_one_side_give_the_figures_of_a_run() -> None:
    blocks = [block("B", factor) for factor in (0.9, 1.0, 1.4)]
    figures = figures_of(make_plan(), blocks)
    assert figures["service.mean"] == pytest.approx(0.010 / 4)
    assert "startup.value" not in figures


def test_blocks_that_show_nothing_give_no_figure() -> None:
    blocks = [block("B", failure="it crashed"), block("B", service_s=(0.1,), samples=(4,))]
    assert figures_of(service_plan(), blocks) == {}


def _written(path: Path, history: list[BaselineEntry]) -> None:
    path.write_text("".join(f"{render_entry(each)}\n" for each in history))


@pytest.mark.parametrize("width", [60, 80, 200])
def test_show_as_recorded(baseline: Path, width: int) -> None:
    other = dataclasses.replace(KEY, target="text", cpu_model="Another CPU")
    bare = dataclasses.replace(entries([0.01] * 13)[-1], figures={}, commit="")
    _written(baseline, [*entries([0.02], other), *entries(FIGURES * 4), bare])
    text = shown(baseline, width)
    check_golden(f"history-{width}.txt", text)
    assert len(text.splitlines()) <= 16 or width < 80
    if width == 80:
        check_golden("history-verbose.txt", shown(baseline, width, verbose=True))


def test_show_says_how_many_runs_are_missing(baseline: Path) -> None:
    _written(baseline, entries(FIGURES))
    text = shown(baseline)
    assert "loading.jsonl: 3 runs" in text
    assert KEY.cpu_model in text
    assert "+1.0%" in text
    assert "2 more runs needed" in text


def test_show_leaves_out_the_earliest_of_many(baseline: Path) -> None:
    _written(baseline, entries([0.01] * 13))
    assert "6 earlier runs not shown" in shown(baseline)
    assert "not shown" not in shown(baseline, verbose=True).partition("Baseline")[0]


def test_an_empty_baseline_is_shown_as_such(baseline: Path) -> None:
    assert "loading.jsonl: 0 runs" in shown(baseline)
    assert "a sample" not in shown(baseline, verbose=True)


def test_the_document_holds_every_run_under_its_key(baseline: Path) -> None:
    record_entry(baseline, entries(FIGURES)[0])
    document = json.loads(baseline_document("loading.jsonl", read_baseline(baseline)))
    assert document["schema_version"] == 1
    (group,) = document["keys"]
    assert group["key"]["target"] == KEY.target
    assert group["runs"][0]["figures"]["service.mean"] == 0.01
