"""TOML as it is written reads back as what was meant."""

from __future__ import annotations

import datetime as dt
import math
import tomllib
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dlprof.errors import FileError
from dlprof.tomledit import revised_toml
from dlprof.tomlfile import read_toml, toml_key, toml_value

PLAIN = (
    st.text()
    | st.booleans()
    | st.integers(-(2**63), 2**63 - 1)
    | st.floats(allow_nan=False, allow_infinity=False)
)
VALUES = st.recursive(
    PLAIN,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)


@given(st.text(), VALUES)
def test_keys_and_values_come_back(key: str, value: object) -> None:
    assert tomllib.loads(f"{toml_key(key)} = {toml_value(value)}") == {key: value}


def test_what_utf8_cannot_hold_is_replaced() -> None:
    assert tomllib.loads("a = " + toml_value("x\udce4")) == {"a": "x?"}


def test_nothing_in_a_text_acts_on_a_terminal() -> None:
    text = "a\x1b[31m\x7f\x80\u202e\U000e0041"
    written = toml_value(text)
    assert written.isprintable()
    assert tomllib.loads(f"a = {written}") == {"a": text}


@pytest.mark.parametrize("content", ["a." * 500 + "a = 1", "a = " + "[" * 60 + "]" * 60])
def test_what_is_nested_without_end_is_refused(tmp_path: Path, content: str) -> None:
    path = tmp_path / "a.toml"
    path.write_text(content)
    with pytest.raises(FileError, match="tables within tables"):
        read_toml(path)


@pytest.mark.parametrize("value", [None, math.nan, math.inf, object(), [None], dt.date(2026, 1, 5)])
def test_what_toml_or_this_writer_cannot_hold_is_refused(value: object) -> None:
    with pytest.raises(TypeError):
        toml_value(value)


def test_an_unreadable_file_is_a_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise PermissionError(13, "Permission denied")

    path = tmp_path / "a.toml"
    path.write_text("a = 1")
    assert read_toml(path) == {"a": 1}
    monkeypatch.setattr(Path, "open", refuse)
    with pytest.raises(FileError, match="can't be read: Permission denied"):
        read_toml(path)


OWNED = """\
# mine
b = 1   # why not

# the box
[box]
'x' = 1_000
gone = 2
# dlprof: an older word
# a word of mine
y = 2
[other] # last
"""


def test_what_people_wrote_around_the_values_stays() -> None:
    values = {"b": 2, "box": {"x": 1000, "y": 3, "z": {"n": 1}}, "other": {}}
    assert revised_toml(OWNED, values, {("box",): ["a word", "another"]}) == (
        "# mine\nb = 2   # why not\n\n# the box\n[box]\n"
        "# dlprof: a word\n# dlprof: another\n"
        "'x' = 1_000\n# a word of mine\ny = 3\nz = { n = 1 }\n\n[other] # last\n"
    )


def test_a_comment_can_neither_become_a_value_nor_act_on_a_terminal() -> None:
    revised = revised_toml("", {"a": {"b": "c"}}, {("a",): ["x\ny = 1\x1b[31m\udce4"]})
    assert tomllib.loads(revised) == {"a": {"b": "c"}}
    assert all(line.isprintable() for line in revised.splitlines())


TABLES = st.dictionaries(st.text(max_size=3), VALUES, max_size=4)


@pytest.mark.slow
@settings(deadline=None)
@given(TABLES, TABLES)
def test_a_document_revised_holds_what_it_should(before: dict[str, Any], after: Any) -> None:
    first = revised_toml("", before, {})
    assert tomllib.loads(first) == before
    assert tomllib.loads(revised_toml(first, after, {})) == after
    assert revised_toml(first, before, {}) == first


def test_a_document_that_would_lose_something_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dlprof.tomledit._settle", lambda *_: None)
    with pytest.raises(ValueError, match="would not hold"):
        revised_toml("a = 1", {"a": 2}, {})
