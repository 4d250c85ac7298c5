"""Texts with units, both ways."""

from __future__ import annotations

import contextlib
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dlprof import units
from dlprof.errors import UsageError


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("12ms", 0.012),
        ("60s", 60.0),
        ("2m", 120.0),
        ("2 min", 120.0),
        ("1.5h", 5400.0),
        ("1D", 86400.0),
        ("0.5", 0.5),
        (".5", 0.5),
        ("3.", 3.0),
        (" 250us ", 0.00025),
        ("250µs", 0.00025),
        ("250\u03bcs", 0.00025),
        ("0", 0.0),
    ],
)
def test_a_duration_is_read_in_seconds(text: str, seconds: float) -> None:
    assert units.parse_duration_s(text) == pytest.approx(seconds)


@pytest.mark.parametrize(
    ("text", "count"),
    [
        ("1000", 1000),
        ("1000B", 1000),
        ("16GiB", 16 * 1024**3),
        ("16gib", 16 * 1024**3),
        ("16G", 16 * 1024**3),
        ("512MB", 512 * 1000**2),
        ("1.5 KiB", 1536),
        ("2TB", 2 * 1000**4),
        ("0", 0),
    ],
)
def test_a_size_is_read_in_bytes(text: str, count: int) -> None:
    assert units.parse_bytes(text) == count


BAD_NUMBERS = [
    "",
    " ",
    "-1",
    "+1",
    "nan",
    "inf",
    "1e3",
    "s",
    "12 parsecs",
    "1,5",
    "1s1",
    "٣",
    "9" * 16,
]


@pytest.mark.parametrize("text", [*BAD_NUMBERS, "12GiB"])
def test_a_bad_duration_is_named(text: str) -> None:
    with pytest.raises(UsageError, match="is not a duration") as caught:
        units.parse_duration_s(text)
    assert repr(text) in caught.value.message
    assert "60s" in caught.value.hint


@pytest.mark.parametrize("text", [*BAD_NUMBERS, "12ms"])
def test_a_bad_size_is_named(text: str) -> None:
    with pytest.raises(UsageError, match="is not a size") as caught:
        units.parse_bytes(text)
    assert repr(text) in caught.value.message


def test_a_long_value_is_cut_in_the_message() -> None:
    with pytest.raises(UsageError) as caught:
        units.parse_bytes("x" * 100_000)
    assert len(caught.value.message) < 100


@pytest.mark.parametrize(
    ("text", "values"),
    [
        ("4", (4,)),
        ("0,2,4", (0, 2, 4)),
        ("4, 2, 0", (4, 2, 0)),
        ("0:16:2", (0, 2, 4, 6, 8, 10, 12, 14, 16)),
        ("0:5:2", (0, 2, 4)),
        ("1:4", (1, 2, 3, 4)),
        ("3:3", (3,)),
        ("3:3:5", (3,)),
        ("0,2:8:2,8", (0, 2, 4, 6, 8)),
        ("1:1000", tuple(range(1, 1001))),
    ],
)
def test_lists_and_ranges_are_read(text: str, values: tuple[int, ...]) -> None:
    assert units.parse_ints(text) == values


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("", "not a list"),
        (",", "not a list"),
        ("1,,2", "not a list"),
        ("-1", "not a list"),
        ("1.5", "not a list"),
        ("1:2:3:4", "not a list"),
        (":", "not a list"),
        ("1:", "not a list"),
        ("four", "not a list"),
        ("٣", "not a list"),
        ("1:5:0", "step of 0"),
        ("5:1", "runs backwards"),
        ("0:1000", "more than 1000"),
        ("0:999999999999999", "more than 1000"),
        ("0:900,1000:1900", "more than 1000"),
    ],
)
def test_a_bad_list_is_refused(text: str, fault: str) -> None:
    with pytest.raises(UsageError, match=fault):
        units.parse_ints(text)


@pytest.mark.parametrize(
    ("text", "values"),
    [
        ("on", (True,)),
        ("OFF", (False,)),
        ("both", (False, True)),
        ("true", (True,)),
        (" false ", (False,)),
    ],
)
def test_switches_are_read(text: str, values: tuple[bool, ...]) -> None:
    assert units.parse_switches(text) == values


@pytest.mark.parametrize("text", ["", "yes", "1", "on,off"])
def test_a_bad_switch_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match="not a switch"):
        units.parse_switches(text)


@pytest.mark.parametrize(
    ("count", "text"),
    [
        (None, "-"),
        (math.nan, "-"),
        (0, "0 B"),
        (1023, "1023 B"),
        (1024, "1.0 KiB"),
        (1536, "1.5 KiB"),
        (int(1.4 * 1024**3), "1.4 GiB"),
        (142 * 1024**3, "142 GiB"),
        (1024**3 - 1, "1.0 GiB"),
        (-1536, "-1.5 KiB"),
        (1024**6, "1024 PiB"),
    ],
)
def test_sizes_are_written(count: float | None, text: str) -> None:
    assert units.format_bytes(count) == text


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (None, "-"),
        (math.inf, "-"),
        (0.0, "0 s"),
        (1e-7, "< 0.01 ms"),
        (0.00025, "0.25 ms"),
        (0.0085, "8.5 ms"),
        (0.85, "850 ms"),
        (0.9996, "1.0 s"),
        (1.2, "1.2 s"),
        (9.96, "10 s"),
        (59.7, "1 min"),
        (125, "2 min 5 s"),
        (3900, "1 h 5 min"),
        (86400 * 3 + 7300, "3 d 2 h"),
        (-1.2, "-1.2 s"),
    ],
)
def test_durations_are_written(seconds: float | None, text: str) -> None:
    assert units.format_duration(seconds) == text


def test_durations_to_type_are_rounded_up() -> None:
    typed = [units.duration_option(seconds) for seconds in (0.0, 57.0, 61.0, 110.0, 111.0, 301.0)]
    assert typed == ["10s", "60s", "70s", "110s", "2m", "6m"]


@pytest.mark.parametrize(
    ("rate", "text"),
    [
        (None, "-"),
        (math.inf, "-"),
        (0, "0"),
        (1234.4, "1,234"),
        (1_234_567, "1,234,567"),
        (999.6, "1,000"),
        (123.4, "123"),
        (99.96, "100"),
        (12.34, "12.3"),
        (12, "12.0"),
        (0.1234, "0.123"),
    ],
)
def test_rates_are_written(rate: float | None, text: str) -> None:
    assert units.format_rate(rate) == text


@given(st.text())
def test_no_text_makes_a_parser_fail_in_another_way(text: str) -> None:
    for parse in (
        units.parse_duration_s,
        units.parse_bytes,
        units.parse_ints,
        units.parse_switches,
    ):
        with contextlib.suppress(UsageError):
            parse(text)


@given(st.floats(min_value=1e-5, max_value=1e9, allow_nan=False))
def test_what_is_written_is_near_what_was_meant(rate: float) -> None:
    assert float(units.format_rate(rate).replace(",", "")) == pytest.approx(rate, rel=0.0051)
