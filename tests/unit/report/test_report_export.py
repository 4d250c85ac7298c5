from __future__ import annotations

import base64
import csv
import dataclasses
import hashlib
import io
import itertools
import json
import re
import shutil
import subprocess
import xml.etree.ElementTree as ET
from html.parser import HTMLParser
from pathlib import Path

import pytest
from builders import config, header, trial
from example_runs import HOSTILE, example_run
from golden import check_golden
from hypothesis import given
from hypothesis import strategies as st
from profiled_runs import hostile_profile, made_diagnosis, profiled_run

from dlprof.records import Estimate, Run, Usage, UsageSample, WatchedLoader, WatchedScript
from dlprof.records.codec import from_json
from dlprof.records.trial import NumaMode
from dlprof.report.document import Bar, Chart, Column, Document, Table
from dlprof.report.export.formats import render_as, render_html
from dlprof.report.export.rows import render_csv
from dlprof.report.labels import rate_text
from dlprof.report.live import trial_line
from dlprof.report.markdown import escaped, to_markdown
from dlprof.report.page import MOST_ROWS, to_html
from dlprof.report.terminal import plain_text
from dlprof.store import read_run

_MARKUP = "<script>alert(1)</script><img src=x onerror=alert(1)>\"'&amp; ![a](http://b) |`x`"
_EXAMPLES = Path(__file__).parents[3] / "examples"
_EMPTY = Run(path="", header=header())
_ACTING = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u200b-\u200f\u202a-\u202e]")


class _Tags(HTMLParser):
    """All tags and attributes of a page."""

    def __init__(self) -> None:
        super().__init__()
        self.tags: set[str] = set()
        self.names: set[str] = set()
        self.text = ""

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        self.names |= {name for name, _ in attrs}

    def handle_data(self, data: str) -> None:
        self.text += data


def _parsed(page: str) -> _Tags:
    parser = _Tags()
    parser.feed(page)
    return parser


def test_the_page_shows_everything() -> None:
    page = _parsed(render_html(profiled_run()))
    for shown in (
        "1,512",
        "num_workers=4",
        "fetch.cpu",
        "RandomResizedCrop",
        "SIGBUS",
        "reorder wait",
    ):
        assert shown in page.text


def test_a_page_shows_what_worked_at_which_batch_when() -> None:
    page = render_html(profiled_run())
    assert "40 of 40 batches" in page
    spans = re.findall(r'<rect x="([\d.]+)"[^>]*><title>worker 1 fetch ([^<]*)</title>', page)
    # Each of its ten batches, one behind another, on the page's picture for wide windows.
    assert [said for _, said in spans] == [f"7.0 ms, batch {number}" for number in range(1, 40, 4)]
    assert [float(at) for at, _ in spans] == sorted(float(at) for at, _ in spans)
    assert "feeder serialize 0.80 ms, batch 0" in page


def test_a_column_that_says_nothing_is_in_no_view() -> None:
    columns = (
        Column("pid", ["7"]),
        Column("wait", ["-"], 1, note="share of the time."),
        Column("barrier", [""]),
        Column("cores", ["2.0"], 0),
    )
    document = Document(title="t", answer=(Table(columns),))
    for text in (plain_text(document, width=80), to_markdown(document), to_html(document)):
        body = text.partition("</style>")[2].partition("<script>")[0] or text
        assert "cores" in body
        assert "wait" not in body
        assert "barrier" not in body


def test_a_bar_keeps_its_number_of_workers_on_a_phone() -> None:
    bar = Bar.of("8 not persistent, prefetch 4", 1.0, "1")
    page = to_html(Document(title="", answer=(Chart(bars=(bar,)),)))
    assert re.findall(r">(8 [^<]*)</text>", page) == ["8 ..., prefetch 4", bar.label]


@pytest.mark.parametrize(("more", "said"), [(1, "1 more row is in"), (2, "2 more rows are in")])
def test_a_page_says_how_many_rows_of_a_table_it_leaves_out(more: int, said: str) -> None:
    table = Table((Column("row", [str(place) for place in range(MOST_ROWS + more)]),))
    assert f">{said} the run file" in to_html(Document(title="", answer=(table,)))


def test_the_page_loads_nothing_and_runs_its_own_script_alone() -> None:
    page = render_html(profiled_run())
    found = _parsed(page)
    assert not found.tags & {"link", "img", "iframe", "object", "embed", "form", "a"}
    assert not found.names & {"src", "href", "action", "onclick", "onload", "onerror", "style"}
    assert "url(" not in page
    assert "@import" not in page
    assert "prefers-color-scheme: dark" in page
    assert page.count("<script") == page.count("<style") == 1
    for tag in ("script", "style"):
        text = re.search(f"<{tag}>(.*?)</{tag}>", page, re.DOTALL)
        assert text is not None
        digest = hashlib.sha256(text[1].encode()).digest()
        assert f"{tag}-src 'sha256-{base64.b64encode(digest).decode()}'" in page
    assert len(page) < 300_000


_CLICKED = """
const [cells, kind] = JSON.parse(process.argv[1]);
const body = {rows: cells.map((text) => ({cells: [{textContent: text}]}))};
body.append = (...rows) => { body.rows = rows; };
const head = {dataset: {}, classList: {add() {}, contains: (name) => name === kind}};
head.addEventListener = (_, click) => { head.click = click; };
const table = {tBodies: [body], querySelectorAll: () => [head]};
globalThis.document = {querySelectorAll: (name) => name === "table" ? [table] : []};
SCRIPT
const sorted = () => { head.click(); return body.rows.map((row) => row.cells[0].textContent); };
console.log(JSON.stringify([sorted(), sorted()]));
"""
"""A table of one column, which the page's script sorts at a click, and back at a second."""


@pytest.mark.skipif(shutil.which("node") is None, reason="needs node")
@pytest.mark.parametrize(
    ("kind", "cells"),
    [
        ("figures", ["4.20 \u00b5s", "< 0.01 ms", "850 ms", "1.2 s", "59 s", "2 min 5 s", "1 h"]),
        ("figures", ["512 B", "900.0 KiB", "2.0 MiB", "1.4 GiB"]),
        ("figures", ["512 B/s", "900.0 KiB/s", "2.0 MiB/s", "1.4 GiB/s"]),
        ("figures", ["0.98x", "1.00x", "12.3x"]),
        ("figures", ["342", "1,504", "12,000"]),
        ("", ["no", "yes"]),
        ("left", ["2026-11-29 23:10", "2026-11-30 09:00", "2026-11-30 10:00"]),
        ("left", ["num_workers=2", "num_workers=10", "num_workers=10, pin_memory=True"]),
    ],
)
def test_a_column_is_sorted_by_its_figures_in_whichever_units(kind: str, cells: list[str]) -> None:
    script = re.search("<script>(.*?)</script>", to_html(Document(title="", answer=())), re.DOTALL)
    assert script is not None
    unknown = ["-"] if kind == "figures" else []  # which comes last, either way
    shown = json.dumps([[cells[-1], *unknown, *cells[:-1]], kind])
    command = ["node", "-e", _CLICKED.replace("SCRIPT", script[1]), shown]
    clicked = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60)
    up, down = json.loads(clicked.stdout)
    assert up == [*cells, *unknown]
    assert down == [*cells[::-1], *unknown]


@pytest.mark.parametrize("text", [HOSTILE, _MARKUP])
def test_no_text_of_a_run_becomes_markup(text: str) -> None:
    plain, hostile = _parsed(render_html(profiled_run())), _parsed(render_html(_with(text)))
    assert hostile.tags <= plain.tags
    assert hostile.names <= plain.names
    assert not _ACTING.search(hostile.text)


def _with(text: str) -> Run:
    """A run with a text in every foreign place."""
    made = hostile_profile(text)
    kept = json.loads(render_as(made, "json"))
    changed = json.loads(json.dumps(kept).replace(json.dumps(HOSTILE)[1:-1], _in_json(text)))
    return from_json(Run, changed)


def _in_json(text: str) -> str:
    return json.dumps(text)[1:-1]


def test_markdown_as_recorded() -> None:
    check_golden("report.md", render_as(profiled_run(), "markdown").decode())


def test_the_page_as_recorded() -> None:
    check_golden("report.html", render_html(profiled_run()))


@pytest.mark.parametrize("name", ["why", "training-before", "loader"])
def test_no_text_of_a_picture_is_cut_off_where_all_letters_are_wide(name: str) -> None:
    page = render_html(read_run(_EXAMPLES / f"{name}.dlprof.jsonl"))
    for svg in re.findall(r"<svg.*?</svg>", page, flags=re.DOTALL):
        picture = ET.fromstring(svg)
        width = float(picture.get("viewBox", "").split()[2])
        for text in picture.iter("text"):
            wide = 7.2 * len(text.text or "")  # 12 px of a font such as Liberation Mono
            share = {"end": 1.0, "middle": 0.5}.get(text.get("text-anchor", ""), 0.0)
            begins = float(text.get("x", "0")) - share * wide
            assert begins >= 0, text.text
            assert begins + wide <= width, text.text


@pytest.mark.parametrize("text", [HOSTILE, _MARKUP])
def test_no_text_of_a_run_becomes_markdown(text: str) -> None:
    written = render_as(_with(text), "markdown").decode()
    assert not _ACTING.search(written)
    written = re.sub(r"^(`{3,}).*?^\1$", "", written, flags=re.DOTALL | re.MULTILINE)  # nor code
    assert not re.search(r"(?<!\\)<", written)
    assert not re.search(r"(?<!\\)!?\[", written)
    assert "://" not in written
    tables = [line for line in written.splitlines() if line.startswith("|")]
    for above, below in itertools.pairwise(tables):
        if below.startswith("| ---"):
            assert _columns(above) == _columns(below)


def _columns(line: str) -> int:
    return len(re.findall(r"(?<!\\)\|", line))


@given(st.text())
def test_escaping_leaves_nothing_active(text: str) -> None:
    assert not re.search(r"(?<!\\)(?:\\\\)*[`*_\[\]<>&|~$]", escaped(text))


def test_csv_has_a_row_per_trial_and_the_same_cells_in_each() -> None:
    run = example_run()
    rows = list(csv.DictReader(io.StringIO(render_csv(run))))
    assert [row["id"] for row in rows] == [trial.id for trial in run.trials]
    assert float(rows[0]["samples_per_s"]) == 402.0
    assert rows[0]["usage_throttled_fraction"] == ""
    assert rows[-1]["failure_kind"] == "worker_signal"
    assert rows[0]["pin_memory"] == "false"
    assert None not in rows[0]


def test_csv_of_no_trials_is_the_headings() -> None:
    assert len(render_csv(_EMPTY).splitlines()) == 1


@pytest.mark.parametrize("start", ["=", "+", "-", "@"])
def test_no_text_becomes_a_formula(start: str) -> None:
    formula = f'{start}HYPERLINK("x")\x1b[2J'
    run = dataclasses.replace(example_run(), trials=(trial(config(), warnings=(formula,)),))
    (row,) = csv.DictReader(io.StringIO(render_csv(run)))
    assert row["warnings"] == f'\'{start}HYPERLINK("x")'


def test_json_holds_the_whole_run() -> None:
    run = profiled_run()
    text = render_as(run, "json").decode()
    assert from_json(Run, json.loads(text)) == run
    assert text.isascii()


def test_a_run_without_anything_has_a_report() -> None:
    assert "Machine and run" in render_html(_EMPTY)
    assert "nothing: no configuration was measured" in render_as(_EMPTY, "markdown").decode()


def test_usage_over_time_is_drawn_and_for_older_files_the_mean_of_each_trial() -> None:
    title = "busy cores while trials ran"
    samples = tuple(UsageSample(at_s=n / 2, own_cpu_cores=1.0) for n in range(3))
    made = trial(config(2), 100.0, started_at="2026-01-05T10:00:04Z")
    sampled = dataclasses.replace(made, usage_over_time=samples)
    used = dataclasses.replace(made, usage=Usage(own_cpu_cores=1.0))
    for trials, drawn in (((sampled,), True), ((used, used), True), ((made, made), False)):
        page = render_html(Run(path="run", header=header(), trials=trials))
        assert (title in page) == drawn


def test_charts_are_well_formed() -> None:
    page = render_html(profiled_run())
    drawings = re.findall(r"<svg.*?</svg>", page, flags=re.DOTALL)
    assert len(drawings) >= 3
    for drawing in drawings:
        root = ET.fromstring(drawing)
        assert all(float(each.get("width", "0")) >= 0 for each in root.iter("rect"))


def test_the_loaders_of_a_script_are_reported() -> None:
    loader = WatchedLoader(name=f"train.py:12 {HOSTILE}", batches=90, waited_s=3.0, stepped_s=6.0)
    script = WatchedScript(wall_s=10.0, ending="returned", wait_fraction=0.3)
    run = dataclasses.replace(_EMPTY, watched=(loader,) * 60, script=script)
    page = render_html(run)
    assert "Loaders" in page
    assert "10 loaders not shown." in page
    assert "1 loader not shown." in render_html(dataclasses.replace(run, watched=(loader,) * 51))
    assert not _ACTING.search(page)
    assert "train.py:12" in render_as(run, "markdown").decode()


def test_trials_of_bound_and_of_unbound_ranks_are_marked_in_the_table_of_trials() -> None:
    plain = example_run()
    modes: tuple[NumaMode | None, ...] = (None, "node")
    tried = [
        dataclasses.replace(each, purpose="binding", numa_binding=mode)
        for each, mode in zip(plain.trials, modes, strict=False)
    ]
    page = render_html(dataclasses.replace(plain, trials=(*plain.trials, *tried)))
    assert page.count(">unbound ranks<") == page.count(">--numa-binding=node<") == 1
    assert trial_line(tried[0]).endswith("(unbound ranks)")
    assert trial_line(tried[1]).endswith("(--numa-binding=node)")


def test_a_trial_of_a_rate_that_is_too_noisy_says_so_once() -> None:
    one = dataclasses.replace(example_run().trials[0], noisy=True)
    wide = Estimate(value=53.8, low=23.9, high=215.0)
    assert trial_line(one).endswith("(noisy)")
    line = trial_line(dataclasses.replace(one, samples_per_s=wide))
    assert line.endswith("about 53.8 samples/s (noisy: 95% CI 23.9-215)")


def test_a_trial_whose_samples_cannot_be_counted_has_its_rate_of_batches() -> None:
    one = dataclasses.replace(example_run().trials[0], samples_per_s=None, noisy=False)
    assert one.batches_per_s is not None
    assert trial_line(one).endswith(f": {rate_text(one.batches_per_s, 'batches/s')}")


def test_rates_of_tracing_passes_are_marked_in_the_table_of_trials() -> None:
    plain = example_run()
    traced = [dataclasses.replace(each, purpose="explain") for each in plain.trials]
    run = dataclasses.replace(plain, trials=tuple(traced), recommendation=None)
    page = render_html(dataclasses.replace(run, diagnosis=made_diagnosis()))
    assert page.count(">traced<") == len(traced)
    assert "Configurations" not in page
