from __future__ import annotations

from datetime import datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dlprof.store import run_file_name

NOON = datetime(2026, 1, 31, 12, 0, 5)  # noqa: DTZ001 - a file's name holds local time


@pytest.mark.parametrize(
    ("target", "stem"),
    [
        ("images", "images"),
        ("synthetic:cpu_ms=2,wait_ms=5", "synthetic"),
        ("package.module:make", "package.module-make"),
        ("some/path/data.py:Set.make", "data-Set.make"),
        ("C:\\data\\set.py:make", "set-make"),
        ("../../etc:passwd", "etc-passwd"),
        ("数据.py:集", "run"),
    ],
)
def test_the_name_has_target_and_time(target: str, stem: str) -> None:
    assert run_file_name(target, NOON) == f"{stem}-20260131-120005-0000.dlprof.jsonl"


@given(st.text())
def test_any_target_gives_a_plain_file_name(target: str) -> None:
    name = run_file_name(target, NOON)
    assert not name.startswith((".", "-"))
    assert "/" not in name
    assert name.isascii()
    assert len(name) < 120


@given(st.integers(1, 999_999))
def test_sweeps_of_one_second_have_files_of_their_own(later_us: int) -> None:
    later = NOON + timedelta(microseconds=later_us)
    assert run_file_name("images", later) != run_file_name("images", NOON)
    assert run_file_name("images", later) > run_file_name("images", NOON)  # as a folder lists them
