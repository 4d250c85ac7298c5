"""Reading run files: a run or a sentence, whatever happened to the file."""

from __future__ import annotations

import codecs
import errno
import json
import math
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from sample_run import (
    GOLDEN,
    HEADER,
    JSON_VALUES,
    OLDER_GOLDEN,
    OLDER_RUN,
    RUN,
    TRIALS,
    header_line,
    pathless,
    write,
)

from dlprof import store as run_format
from dlprof.errors import FileError
from dlprof.records import Run
from dlprof.store import read_run


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    return write(tmp_path / "a.dlprof.jsonl")


def lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_the_golden_file_still_reads() -> None:
    run = read_run(GOLDEN)
    assert pathless(run) == RUN
    assert run.path == str(GOLDEN)


def test_an_older_file_still_reads() -> None:
    run = read_run(OLDER_GOLDEN)
    assert pathless(run) == OLDER_RUN
    assert run.header.plan is None
    assert run.header.target.batch_cpu_s is None


def test_the_plan_comes_back_from_the_header(saved: Path) -> None:
    plan = read_run(saved).header.plan
    assert plan is not None
    assert plan == HEADER.plan
    assert plan.cost.of(plan.configs[-1], plan.trial_s) == pytest.approx(2.212)


def test_the_golden_file_is_still_written(saved: Path) -> None:
    assert saved.read_bytes() == GOLDEN.read_bytes()


def test_each_line_is_one_record_in_ascii(saved: Path) -> None:
    kinds = [line["record"] for line in lines(saved)]
    assert kinds == ["run", "trial", "trial", "recommendation", "end"]
    assert saved.read_bytes().isascii()


def test_a_byte_order_mark_is_no_fault(saved: Path) -> None:
    before = read_run(saved)
    saved.write_bytes(codecs.BOM_UTF8 + saved.read_bytes())
    assert read_run(saved) == before


def test_unknown_kinds_and_fields_are_ignored(saved: Path) -> None:
    content = lines(saved)
    content[1]["not_yet_known"] = {"deep": [1]}
    content[1]["config"]["not_yet_known"] = 1
    content.insert(2, {"record": "not_yet_known", "anything": 1})
    saved.write_text("".join(json.dumps(line) + "\n" for line in content))
    assert pathless(read_run(saved)) == RUN


@pytest.mark.slow
def test_a_file_cut_at_any_byte_reads_as_far_as_it_goes(saved: Path) -> None:
    whole = saved.read_bytes()
    ends = [index for index, byte in enumerate(whole) if byte == ord("\n")]
    for size in range(len(whole) - 1, -1, -1):
        os.truncate(saved, size)
        if size < ends[0]:
            with pytest.raises(FileError, match="is not a run file"):
                read_run(saved)
            continue
        run = read_run(saved)
        # A record is whole with its last brace; the line end is not missed.
        complete = sum(size >= end for end in ends)
        assert run.header == HEADER
        assert run.trials == TRIALS[: min(complete - 1, 2)]
        assert (run.recommendation is not None) == (complete >= 4)
        assert (run.end is not None) == (complete >= 5)
        assert run.truncated == (size not in ends and size - 1 not in ends)


@given(st.data())
@settings(
    max_examples=300, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
def test_a_flipped_bit_gives_a_run_or_a_sentence(saved: Path, data: st.DataObject) -> None:
    content = bytearray(GOLDEN.read_bytes())
    position = data.draw(st.integers(0, len(content) - 1))
    content[position] ^= 1 << data.draw(st.integers(0, 7))
    saved.write_bytes(content)
    try:
        run = read_run(saved)
    except FileError as error:
        assert str(saved) in error.message  # noqa: PT017 -- both ends are right here
    else:
        assert isinstance(run, Run)


@given(st.binary() | st.text().map(str.encode) | JSON_VALUES.map(lambda v: json.dumps(v).encode()))
@settings(deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_anything_else_is_not_a_run_file(saved: Path, content: bytes) -> None:
    saved.write_bytes(content)
    with pytest.raises(FileError, match="is not a run file") as caught:
        read_run(saved)
    assert "dlprof wrote" in caught.value.hint


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"\n\n",
        b"\n\x80\n",
        b"\n{",
        b"[" * 100_000 + b"\n",
        b'{"record": "trial"}\n',
        b'{"record": "run"}\n',
        b'{"record": "run", "schema_version": "1"}\n',
        b'{"record": "run", "schema_version": 0}\n',
        b'{"record": "run", "schema_version": 1}\n',
        b'{"record": 1}\n',
        b"\x1f\x8b\x08\x00",
        header_line(run_id=1),
        header_line(settings={"x": math.nan}),
        header_line(settings={"x": math.inf}),
        header_line(settings=0).replace(b'"settings": 0', b'"settings": {"x": 1e999}'),
        header_line(settings=0).replace(
            b'"settings": 0', b'"settings": {"x": ' + b"9" * 5000 + b"}"
        ),
    ],
)
def test_a_file_without_a_right_header_is_not_a_run_file(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "x.dlprof.jsonl"
    path.write_bytes(content)
    with pytest.raises(FileError, match="is not a run file"):
        read_run(path)


@pytest.mark.parametrize(
    ("line", "fault"),
    [
        (b"{nonsense}\n", "it is not JSON"),
        (b"[1]\n", "it is not a record"),
        (b'{"id": "t0001"}\n', "it is not a record"),
        (b'{"record": "trial"}\n', "id is missing"),
        (b'{"record": "later", "x": NaN}\n', "it is not JSON"),
    ],
)
def test_a_damaged_line_is_named(saved: Path, line: bytes, fault: str) -> None:
    content = saved.read_bytes().splitlines(keepends=True)
    saved.write_bytes(b"".join([*content[:2], line, *content[2:]]))
    with pytest.raises(FileError) as caught:
        read_run(saved)
    assert caught.value.message == f"Line 3 of {saved} is damaged: {fault}"
    saved.write_bytes(b"".join(content))
    assert pathless(read_run(saved)) == RUN


def test_joined_run_files_are_to_be_split(saved: Path) -> None:
    """Without the header between them, the second one's figures would pass for the first one's."""
    saved.write_bytes(saved.read_bytes() + header_line())
    with pytest.raises(FileError, match=r"Line 6 .* begins a second run") as caught:
        read_run(saved)
    assert "Delete" not in caught.value.hint
    assert "head -n 5 " in caught.value.hint
    assert "tail -n +6 " in caught.value.hint


def test_a_huge_line_is_refused_without_reading_it_all(
    saved: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dlprof.store.MAX_LINE_BYTES", 10_000)
    saved.write_bytes(saved.read_bytes() + b'{"record": "' + b"x" * 20_000)
    with pytest.raises(FileError, match=r"Line 6 .* longer than 10000 bytes"):
        read_run(saved)
    saved.write_bytes(b"{" * 20_000)
    with pytest.raises(FileError, match="is not a run file"):
        read_run(saved)


def test_a_newer_version_is_refused_by_name(tmp_path: Path) -> None:
    path = tmp_path / "x.dlprof.jsonl"
    path.write_bytes(header_line(schema_version=7, machine="of another form"))
    said = r"newer dlprof \(version 7; this one reads up to 1\)"
    with pytest.raises(FileError, match=said) as why:
        read_run(path)
    assert "pip install" not in why.value.hint  # a registry may have another project of that name


def test_an_older_version_is_brought_up_step_by_step(
    saved: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def trial_ids(prefix: str) -> Callable[[dict[str, Any]], dict[str, Any]]:
        def migrate(line: dict[str, Any]) -> dict[str, Any]:
            return line | {"id": prefix + line["id"]} if line["record"] == "trial" else line

        return migrate

    monkeypatch.setattr(run_format, "SCHEMA_VERSION", 3)
    monkeypatch.setattr(run_format, "MIGRATIONS", {1: trial_ids("b"), 2: trial_ids("c")})
    assert [trial.id for trial in read_run(saved).trials] == ["cbt0001", "cbt0002"]


def test_what_is_not_a_plain_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(FileError, match="There is no file"):
        read_run(tmp_path / "missing")
    with pytest.raises(FileError, match="is a folder"):
        read_run(tmp_path)
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(FileError, match="is not a plain file"):
        read_run(str(tmp_path / "pipe"))


def test_an_unreadable_file_is_a_sentence(saved: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise PermissionError(errno.EACCES, "Permission denied")

    monkeypatch.setattr(Path, "open", refuse)
    with pytest.raises(FileError, match="can't be read: Permission denied"):
        read_run(saved)


@pytest.mark.slow
def test_ten_thousand_trials_read(tmp_path: Path) -> None:
    path = tmp_path / "long.dlprof.jsonl"
    path.write_bytes(header_line() + run_format.encode_line(TRIALS[0]) * 10_000)
    assert len(read_run(path).trials) == 10_000
