"""The pages of the findings: each is of a code, and each can be read in one way or another."""

from __future__ import annotations

import importlib.metadata
import json
import re
import typing
from email.message import Message

import pytest
from profiled_runs import profiled_run

from dlprof.cli.entry import run
from dlprof.errors import UsageError
from dlprof.records import FindingCode
from dlprof.report import explain
from dlprof.report.explain import explained_codes, folded, page_of
from dlprof.report.export.formats import render_html, run_report
from dlprof.report.markdown import to_markdown

CODES = typing.get_args(FindingCode)


def test_each_page_is_of_a_code_and_says_in_one_sentence_what_it_means() -> None:
    summaries = explained_codes()
    assert summaries
    assert set(summaries) == set(CODES)
    for code, summary in summaries.items():
        assert page_of(code).startswith(f"# {code}\n")
        assert "<!--" not in page_of(code)
        assert summary.endswith(".")
        assert len(summary) < 80
        assert "`" not in summary


def test_the_program_shows_a_page_as_it_is_to_other_programs(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert run(["explain", "fetch.io"], {}) == 0
    assert capsys.readouterr().out == page_of("fetch.io")
    assert run(["explain", "fetch.io", "--json"], {}) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["text"] == page_of("fetch.io")
    assert document["summary"] == explained_codes()["fetch.io"]


def test_without_a_code_all_are_listed(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["explain"], {}) == 0
    lines = capsys.readouterr().out.splitlines()[1:]
    listed = [line.split()[0] for line in lines if not line.startswith("   ")]
    assert listed == list(explained_codes())
    assert run(["explain", "--json"], {}) == 0
    codes = json.loads(capsys.readouterr().out)["codes"]
    assert [each["code"] for each in codes] == listed


@pytest.mark.parametrize("width", [60, 80, 200])
@pytest.mark.parametrize("code", explained_codes())
def test_a_terminal_shows_a_page_with_no_word_cut(code: str, width: int) -> None:
    page, shown = page_of(code), folded(page_of(code), width)
    assert shown.split() == page.split()
    fence = re.compile(r"^```.*?^```$|^\|.*?$", re.MULTILINE | re.DOTALL)
    assert fence.findall(shown) == fence.findall(page)
    prose = fence.sub("", shown).splitlines()
    assert all(len(line) <= width or " " not in line.strip() for line in prose)


@pytest.mark.parametrize(
    ("code", "hint"),
    [
        ("fetchio", "Did you mean fetch.io?"),
        ("Fetch.IO", "Did you mean fetch.io?"),
        ("FETCH.IO", "Did you mean fetch.io?"),
        ("FETCH", "Did you mean fetch.cpu or fetch.io?"),
        ("too_few", "Did you mean too_few_workers?"),
        ("fetch", "Did you mean fetch.cpu or fetch.io?"),
        ("bogus", "dlprof explain lists all codes."),
        ("zzz", "dlprof explain lists all codes."),
        ("../explain/fetch.io", "dlprof explain lists all codes."),
    ],
)
def test_a_code_that_is_none_gets_a_suggestion(code: str, hint: str) -> None:
    with pytest.raises(UsageError, match="is not the code of a finding") as caught:
        page_of(code)
    assert caught.value.hint.startswith(hint)


@pytest.mark.parametrize(
    ("urls", "site"),
    [
        ({"Repository": "https://example.org/code"}, ""),
        ({"Repository": "https://example.org/code", "Documentation": "https://example.org/docs/"},
         "https://example.org/docs"),
    ],
    ids=["without", "with"],
)  # fmt: skip
def test_each_finding_says_what_explains_it_and_leads_there_where_there_is_an_address(
    urls: dict[str, str], site: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    package = Message()
    for name, url in urls.items():
        package["Project-URL"] = f"{name}, {url}"
    looks = []

    def look(name: str) -> Message:
        looks.append(name)
        return package

    monkeypatch.setattr(importlib.metadata, "metadata", look)
    run = profiled_run()
    assert run.findings
    explain._site.cache_clear()
    try:
        page, text = render_html(run), to_markdown(run_report(run))
    finally:
        explain._site.cache_clear()
    assert len(looks) == 1  # however many findings there are
    for code in (finding.code for finding in run.findings):
        link = f"{site}/findings/{code}/"
        assert f">dlprof explain {code}</{'a' if site else 'span'}>" in page
        assert (f'href="{link}"' in page) == bool(site)
        command = f"`dlprof explain {code}`"
        assert (f"[{command}]({link})" if site else f" {command}\n") in text
    assert ("<a " in page) == ("](" in text) == bool(site)
