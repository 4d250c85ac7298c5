"""The pages in a real browser: opened, hovered, copied, sorted and printed."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from pathlib import Path

import pytest
from browser import CHROMIUM, Page, browser

from dlprof.advise.compare import compare
from dlprof.records import Failure
from dlprof.report.compare import comparison_report
from dlprof.report.export.formats import render_html, written
from dlprof.store import read_run

EXAMPLES = Path(__file__).parents[2] / "examples"
NAME = f"<script>document.title = 1</script> \u202etxt.exe num_worker|s=2 {'/long' * 60}.py:make"
NAMES = ["sweep", "profile", "comparison", "one trial", "10,000 trials", "hostile"]
pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="needs Chromium or Chrome")


@pytest.fixture(scope="module")
def pages(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("pages")
    sweep, why = (read_run(EXAMPLES / f"{name}.dlprof.jsonl") for name in ("loader", "why"))
    one = dataclasses.replace(sweep, trials=sweep.trials[:1], recommendation=None, end=None)
    many = [
        dataclasses.replace(sweep.trials[n % len(sweep.trials)], id=f"t{n:05}")
        for n in range(10_000)
    ]
    boxes = (
        read_run(EXAMPLES / f"{name}.dlprof.jsonl") for name in ("single-box", "shared-server")
    )
    named = dataclasses.replace(
        sweep.header,
        target=dataclasses.replace(sweep.header.target, spec=NAME),
        machine=dataclasses.replace(sweep.header.machine, hostname=NAME, cpu_model=NAME),
    )
    fault = Failure(kind="worker_exception", message=NAME, hint=NAME, stderr_tail=NAME)
    failed = dataclasses.replace(one.trials[0], id=NAME, outcome="crashed", failure=fault)
    hostile = dataclasses.replace(sweep, path=NAME, header=named, trials=(*sweep.trials, failed))
    texts = {
        "sweep": render_html(sweep),
        "profile": render_html(why),
        "comparison": written(comparison_report(compare(*boxes)), "html"),
        "one trial": render_html(one),
        "10,000 trials": render_html(dataclasses.replace(sweep, trials=tuple(many), end=None)),
        "hostile": render_html(hostile),
    }
    found = {name: folder / f"{name}.html" for name in texts}
    for name, path in found.items():
        path.write_text(texts[name], encoding="utf-8")
    return found


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Page]:
    with browser(tmp_path_factory.mktemp("browser")) as found:
        yield found


@pytest.mark.parametrize("width", [390, 1280])
@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
@pytest.mark.parametrize("name", NAMES)
def test_a_page_opens(
    page: Page, pages: dict[str, Path], name: str, width: int, *, dark: bool
) -> None:
    page.open(pages[name], width, dark=dark)
    assert page.value("document.documentElement.scrollWidth") <= width
    assert page.value(  # what is there to paste is read without scrolling
        "[...document.querySelectorAll('pre')].every(e => e.scrollWidth <= e.clientWidth + 1)"
    )
    paper = page.value("getComputedStyle(document.body).backgroundColor")
    assert (sum(map(int, paper.strip("rgb()").split(","))) < 384) == dark
    assert len(page.value("document.body.innerText")) > 200
    assert page.value("performance.now()") < 60_000  # ms; an idle machine takes a second at most
    assert page.complaints == []


def test_a_page_stays_small(pages: dict[str, Path]) -> None:
    assert all(path.stat().st_size < 300_000 for path in pages.values())


@pytest.mark.parametrize(("name", "rows"), [("one trial", 1), ("10,000 trials", 500)])
def test_a_page_of_a_run_that_was_cut_off_says_so_and_how_many_trials_it_leaves_out(
    page: Page, pages: dict[str, Path], name: str, rows: int
) -> None:
    page.open(pages[name], 390)
    text = page.value("document.body.innerText")
    assert "The sweep did not end. Continue it:" in text
    trials = "[...document.querySelectorAll('table')].at(-1).tBodies[0].rows.length"
    assert page.value(trials) == rows
    assert ("9,500 more rows are in the run file" in text) == (rows == 500)


def test_a_name_is_shown_as_it_is_and_runs_nothing(page: Page, pages: dict[str, Path]) -> None:
    page.open(pages["hostile"], 390)
    shown = NAME.replace("\u202e", "")  # what would turn the direction is left out
    for place in ("h1", ".facts", "table:last-of-type"):
        found = f"[...document.querySelectorAll('{place}')].map(e => e.textContent).join()"
        assert shown in page.value(found)
    assert page.value("document.title").startswith("dlprof: <script>")
    assert page.value("document.scripts.length") == 1
    assert page.complaints == []


def test_no_column_and_no_whisker_is_cut_off(page: Page, pages: dict[str, Path]) -> None:
    page.open(pages["sweep"], 1280)
    assert page.value(
        "[...document.querySelectorAll('.wide')].every(e => e.scrollWidth <= e.clientWidth + 1)"
    )
    assert page.value(
        "[...document.querySelectorAll('svg')].every(svg => {"
        "  const box = svg.viewBox.baseVal;"
        "  return [...svg.querySelectorAll('.whisker')].every(e => { const b = e.getBBox();"
        "    return b.x >= box.x && b.x + b.width <= box.x + box.width; }); })"
    )


def test_what_is_hovered_shows_its_figure(page: Page, pages: dict[str, Path]) -> None:
    page.open(pages["sweep"], 1280)
    x, y, said = page.value(
        "(() => { const e = [...document.querySelectorAll('svg .shape')].pop();"
        "  e.scrollIntoView({block: 'center'}); const b = e.getBoundingClientRect();"
        "  return [b.x + b.width / 2, b.y + b.height / 2, e.querySelector('title')?.textContent"
        "    ?? e.closest('g')?.querySelector('title')?.textContent]; })()"
    )
    page.move_to(x, y)
    assert said is not None
    assert "num_workers=" in said
    assert page.value(f"document.elementFromPoint({x}, {y}).closest('svg') !== null")


def test_settings_are_copied(page: Page, pages: dict[str, Path]) -> None:
    page.open(pages["sweep"], 1280)
    page.value(
        "window.copied = []; document.addEventListener('copy', () =>"
        " window.copied.push(getSelection().toString()));"
        "navigator.clipboard.writeText = async text => { window.copied.push(text); };"
    )
    x, y, code = page.value(
        "(() => { const b = document.querySelector('.block button'); b.scrollIntoView();"
        " const r = b.getBoundingClientRect();"
        " return [r.x + r.width / 2, r.y + r.height / 2,"
        "  b.parentElement.querySelector('code').textContent]; })()"
    )
    page.click(x, y)
    assert page.value("window.copied") == [code]
    assert "num_workers=" in code


def test_tables_are_sorted_by_what_is_clicked(page: Page, pages: dict[str, Path]) -> None:
    page.open(pages["sweep"], 1280)
    column = (
        "[...document.querySelectorAll('table')[0].tBodies[0].rows].map(r => r.cells[1].innerText)"
    )
    page.value("document.querySelectorAll('table')[0].querySelectorAll('th')[1].click()")
    rows = [int(text) for text in page.value(column) if text.isdigit()]
    assert rows == sorted(rows)
    page.value("document.querySelectorAll('table')[0].querySelectorAll('th')[1].click()")
    assert [int(text) for text in page.value(column) if text.isdigit()] == rows[::-1]


def test_a_page_is_printed(page: Page, pages: dict[str, Path]) -> None:
    page.open(pages["sweep"], 1280, dark=False)
    printed = page.print()
    assert printed.startswith(b"%PDF")
    page.ask("Emulation.setEmulatedMedia", media="print")
    assert page.value("getComputedStyle(document.querySelector('.block button')).display") == "none"
    page.ask("Emulation.setEmulatedMedia", media="")
