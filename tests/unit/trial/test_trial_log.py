"""The log of a trial: what is shown of it, and that it does not fill the disk."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import IO

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dlprof.trial.runtime import MOST_BYTES, TrialLog, open_log

SHOWN = 1 << 16


@pytest.fixture
def file(tmp_path: Path) -> Iterator[IO[bytes]]:
    with open_log(tmp_path / "output.log") as opened:
        yield opened


def write(file: IO[bytes], text: str) -> None:
    file.write(text.encode())
    file.flush()


def test_a_short_log_is_shown_whole(file: IO[bytes]) -> None:
    log = TrialLog(file)
    write(file, "one\n")
    before = log.size()
    write(file, "two\n")

    assert log.text() == "one\ntwo\n"
    assert log.text(before) == "two\n"
    assert not log.trim()


def test_a_long_log_is_shown_from_both_ends(file: IO[bytes]) -> None:
    log = TrialLog(file)
    write(file, "first\n" + "x" * 200_000 + "\nlast\n")
    text = log.text()

    assert text.startswith("first\n")
    assert text.endswith("\nlast\n")
    assert "134,476 bytes are left out" in text
    assert len(text) < SHOWN + 100


def test_an_endless_log_takes_no_room(file: IO[bytes]) -> None:
    log = TrialLog(file)
    write(file, "first\n")
    for _ in range(20):
        write(file, "x" * (MOST_BYTES + 1))
        assert log.trim()
        assert Path(file.name).stat().st_size == 0
    before = log.size()
    write(file, "last\n")

    assert before == 20 * (MOST_BYTES + 1) + len("first\n")
    assert log.text(before) == "last\n"
    assert log.text().startswith("first\n")
    assert log.text().endswith("xlast\n")
    assert len(log.text()) < SHOWN + 100


def test_what_was_cut_off_a_moment_ago_is_still_shown(file: IO[bytes]) -> None:
    log = TrialLog(file)
    before = log.size()
    write(file, "x" * MOST_BYTES + "\nlast\n")
    log.trim()

    assert log.text().endswith("x\nlast\n")
    assert log.text(before).endswith("x\nlast\n")


def test_a_log_that_has_gone_is_empty(file: IO[bytes]) -> None:
    Path(file.name).unlink()

    assert TrialLog(file).text() == ""


@given(
    sizes=st.lists(st.sampled_from([0, 1, 100, 16_384, 49_152, 65_536, 65_537, MOST_BYTES + 1])),
    since=st.integers(0, 3 << 20),
)
def test_it_is_never_longer_than_it_may_be(
    tmp_path_factory: pytest.TempPathFactory, sizes: list[int], since: int
) -> None:
    with open_log(tmp_path_factory.mktemp("log") / "output.log") as file:
        log = TrialLog(file)
        for size in sizes:
            write(file, "y" * size)
            log.trim()
        text = log.text(since)

    shown = text.count("y") - text.count("bytes are")
    assert shown == min(max(0, sum(sizes) - since), SHOWN)
