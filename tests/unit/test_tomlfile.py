"""TOML as it is written reads back as what was meant."""

from __future__ import annotations

import datetime as dt
import math
import tomllib
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dlprof.errors import FileError
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
    def refuse(*_: object) -> None:
        raise PermissionError(13, "Permission denied")

    path = tmp_path / "a.toml"
    path.write_text("a = 1")
    assert read_toml(path) == {"a": 1}
    monkeypatch.setattr(Path, "open", refuse)
    with pytest.raises(FileError, match="can't be read: Permission denied"):
        read_toml(path)
