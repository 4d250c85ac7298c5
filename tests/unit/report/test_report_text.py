from __future__ import annotations

import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dlprof.report.text import clean, clean_lines, shortened


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("plain", "plain"),
        ("\x1b[31mred\x1b[0m", "red"),
        ("\x1b[2J\x1b[H", ""),
        ("in\u00advisible\u180e \U000e0041text", "invisible text"),
        ("\x1b]0;title\x07after", "after"),
        ("\x1b]8;;http://example.org\x1b\\link\x1b]8;;\x1b\\", "link"),
        ("\x9b31mred", "red"),
        ("\x1bPdevice\x1b\\after", "after"),
        ("\x1b(Bcharset", "charset"),
        ("\x1b\x1b[31m[31m", "[31m"),
        ("unfinished \x1b[", "unfinished"),
        ("bell\x07 back\x08space nul\x00", "bell backspace nul"),
        ("\u202egnp.exe", "gnp.exe"),
        ("zero\u200bwidth\ufeff", "zerowidth"),
        ("lone \ud800 surrogate", "lone surrogate"),
        ("two\r\nlines\tand\x0bmore", "two lines andmore"),
        ("[bold]markup[/bold]", "[bold]markup[/bold]"),
        ("naïve 数据 ✓", "naïve 数据 ✓"),
    ],
)
def test_a_hostile_text_becomes_one_harmless_line(text: str, shown: str) -> None:
    assert clean(text) == shown


def test_lines_stay_lines_where_they_are_wanted() -> None:
    assert clean_lines("one\r\n  two\rthree\t4") == "one\n  two\nthree\t4"


_TEXTS = st.text(st.characters()) | st.lists(
    st.sampled_from(["\x1b", "[", "]", "31m", "\x9b", "\x07", "\x9c", "P", "x", "\\", ";"])
).map("".join)


@given(_TEXTS)
def test_nothing_that_acts_on_a_terminal_is_left(text: str) -> None:
    cleaned = clean_lines(text)
    assert not {c for c in cleaned if unicodedata.category(c) in {"Cc", "Cs"}} - {"\n", "\t"}
    assert clean_lines(cleaned) == cleaned
    cleaned.encode("utf-8")


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("a" * 50_000, "...aaaaa"),
        ("a, " * 50_000 + "b", "..., b"),
        ("1 " * 50_000, "1 ... 1 "),
    ],
    ids=["letters", "entries", "numbers"],
)
def test_a_text_of_any_length_is_cut_in_a_few_steps(text: str, shown: str) -> None:
    """A run file from elsewhere may have any names."""
    steps = []

    def size(text: str) -> int:
        steps.append(text)
        return len(text)

    assert shortened(text, 8, size) == shown
    assert len(steps) < 50
