"""The checker of words: what it reads, what it lets pass, and how it names the place."""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import Any

import pytest

TABLE = """Words of prose like told and 12 % are no rows.

| not | but |
| --- | --- |
| told, hold up | reported; too noisy to be told |
| colour* | color |
| 12 % | 12% |
"""


@pytest.fixture
def words() -> Any:
    return importlib.import_module("words")


def check(words: Any, path: Path, text: str) -> list[tuple[int, str]]:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")
    return sorted(words.faults(path, words.rules(TABLE)))


def in_python(words: Any, folder: Path, text: str) -> list[int]:
    return [line for line, _ in check(words, folder / "inner.py", text)]


def test_a_word_is_reported_with_its_line_and_the_better_one(words: Any, tmp_path: Path) -> None:
    found = check(words, tmp_path / "page.md", "Nothing.\nA figure told\nby Colours, held\n")
    assert found == [
        (2, "told: better reported; too noisy to be told"),
        (3, "Colours: better color"),
    ]


@pytest.mark.parametrize(
    ("text", "faults"),
    [
        ("hold\nup", 1),
        ("retold", 0),
        ("told_s told.s --told told= /told told/x `told` [it](told.md) (told)", 1),
        ("too noisy\nto be told", 0),
        ("12.5 % and 3 %", 2),
        ("100% of colors", 0),
    ],
)
def test_phrases_match_and_names_do_not(words: Any, tmp_path: Path, text: str, faults: int) -> None:
    assert len(check(words, tmp_path / "page.md", text)) == faults


def test_of_python_literals_with_a_blank_are_read(words: Any, tmp_path: Path) -> None:
    assert in_python(words, tmp_path, 'told = {"told": 1}  # told by a comment\n') == []
    assert in_python(words, tmp_path, 'x = (\n    "it is "\n    "told"\n)\n') == [2]
    assert in_python(words, tmp_path, "x = f\"{told} {f('a colour')} is {y:.0f} %\"\n") == [1, 1]
    assert in_python(words, tmp_path, 'def f():\n    """A told thing."""\n') == []


def test_docstrings_are_read_where_people_read_them(words: Any, tmp_path: Path) -> None:
    records = tmp_path / "dlprof" / "records"
    text = '''"""Module told."""
class Record:
    """A told thing.

    Attributes:
        told: The ``told`` of it.
        other: One more told.
    """
    def _own(self):
        """Told to nobody."""
'''
    assert in_python(words, records, text) == [1, 3, 7]
    assert in_python(words, tmp_path / "dlprof" / "trial", text) == []


def test_an_exception_is_of_its_line_has_a_reason_and_is_needed(words: Any, tmp_path: Path) -> None:
    assert in_python(words, tmp_path, 'x = "is told"  # words: torch says so\n') == []
    excused = 'x = (\n    "is "\n    "told"  # words: torch says so\n)\n'
    assert in_python(words, tmp_path, excused) == []
    page = "It is told. <!-- words: a quotation -->\nAnd told.\n"
    assert [line for line, _ in check(words, tmp_path / "page.md", page)] == [2]
    empty = check(words, tmp_path / "inner.py", 'x = "is told"  # words:\n')
    assert empty == [(1, "the exception has no reason: say why")]
    unneeded = check(words, tmp_path / "inner.py", 'x = "is said"  # words: torch says so\n')
    assert unneeded == [(1, "the exception excuses nothing: leave it out")]


def test_only_the_unreleased_part_of_the_changelog_is_read(words: Any, tmp_path: Path) -> None:
    text = "# Changelog\n\n## [Unreleased]\n\nTold.\n\n## [0.1.0]\n\nTold.\n"
    assert [line for line, _ in check(words, tmp_path / "CHANGELOG.md", text)] == [5]


def test_screens_and_values_of_documents_are_read(words: Any, tmp_path: Path) -> None:
    assert check(words, tmp_path / "screen.txt", "told\n")
    assert check(words, tmp_path / "a.json", '{"told": "told", "x": "it is told"}')[0][0] == 1
    assert not check(words, tmp_path / "a.json", '{"told": "told"}')
    assert not check(words, tmp_path / "a.html", '<style>told {}</style><p class="told">x</p>')
    assert check(words, tmp_path / "a.html", "<p>told</p>")


def test_files_of_a_folder_are_named_and_the_exit_code_says_so(
    words: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "page.md").write_text("It is reported.\n", encoding="utf-8")
    (tmp_path / "screen-80-ascii.txt").write_text("It took 12 us.\n", encoding="utf-8")
    assert (words.main([str(tmp_path)]), capsys.readouterr().out) == (0, "")
    (tmp_path / "inner.py").write_text('x = "as reckoned"\n', encoding="utf-8")
    assert words.main([str(tmp_path)]) == 1
    assert (
        capsys.readouterr().out
        == f"{tmp_path / 'inner.py'}:1: reckoned: better estimate, compute\n"
    )


def test_what_is_said_of_a_records_fields_is_read(words: Any, tmp_path: Path) -> None:
    text = 'class A:\n    # Its\n    # colour.\n    a: int\n    b: str = ""  # what was told\n'
    assert in_python(words, tmp_path / "records", text) == [3, 5]
    assert in_python(words, tmp_path, text) == []
