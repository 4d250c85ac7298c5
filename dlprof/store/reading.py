"""Reading run files: whatever the file holds, the result is a Run or a FileError."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple, TypeVar

from dlprof import records
from dlprof.errors import FileError, refuse_newer
from dlprof.files import check_plain
from dlprof.records import Run, RunHeader, WatchedLoader, checked
from dlprof.records.codec import MismatchError, from_json
from dlprof.store import format as run_format

MAX_LINE_BYTES = 16 * 1024 * 1024
"""No record is longer, so that a file of another kind is not read whole before it is refused."""

_GIVE_RUN_FILE = "Give a run file that dlprof wrote (*.dlprof.jsonl)."

_SEVERAL = {"trial": "trials", "explanation": "explanations", "timeline": "timelines"}
"""Kinds of which a run keeps all, and the field of ``Run`` that holds them; of others the last."""

_Record = TypeVar("_Record")


class _Line(NamedTuple):
    """One complete record, as parsed."""

    number: int
    """From 1."""
    end: int
    """Offset in the file of the byte after it."""
    ended: bool
    """Whether a line end follows its last byte."""
    data: dict[str, Any]


class RunContent(NamedTuple):
    """A run, and where its file can be continued."""

    run: Run
    end: int
    """Offset of the byte after the last complete record."""
    ended: bool
    """Whether that record has its line end."""


def read_run(path: Path | str) -> Run:
    """A saved run, also one that was cut off at any byte after its first line.

    Trials whose data is wrong are failed ones in it, whatever the file says (``checked``).

    Raises:
        FileError: If the file can't be read, is no run file, is damaged in the middle, or was
            written by a newer version of dlprof.
    """
    return checked(read_content(Path(path)).run)


def read_content(path: Path) -> RunContent:
    """The run, and where its file can be continued; raises as ``read_run`` does."""
    try:
        check_plain(path, path.stat().st_mode, hint=_GIVE_RUN_FILE)
        with path.open("rb") as file:
            return _collect(path, _Lines(path, file))
    except FileNotFoundError:
        raise FileError(f"There is no file {path}", hint=_GIVE_RUN_FILE) from None
    except OSError as error:
        raise FileError(
            f"{path} can't be read: {error.strerror}", hint="Check the path and its permissions."
        ) from None


class _Lines:
    """The complete records of a file, and whether a torn one follows them."""

    def __init__(self, path: Path, file: BinaryIO) -> None:
        self._path = path
        self._file = file
        self._headed = False  # a record was read; blank lines may stand before it
        self.torn = False

    def __iter__(self) -> Iterator[_Line]:
        number, end = 0, 0
        while raw := self._file.readline(MAX_LINE_BYTES + 1):
            number, end = number + 1, end + len(raw)
            ended = raw.endswith(b"\n")
            if len(raw) > MAX_LINE_BYTES:
                raise self._damaged(number, f"it is longer than {MAX_LINE_BYTES} bytes")
            if not raw.strip():
                continue
            try:
                data = run_format.decode_line(raw)
            except ValueError:
                if not ended and self._headed:
                    self.torn = True
                    return
                raise self._damaged(number, "it is not JSON") from None
            if not isinstance(data, dict) or not isinstance(data.get(run_format.KIND), str):
                raise self._damaged(number, "it is not a record")
            self._headed = True
            yield _Line(number, end, ended, data)

    def _damaged(self, number: int, fault: str) -> FileError:
        if self._headed:
            return _damaged(self._path, number, fault)
        return _no_run(self._path, f"line {number} is not a run header: {fault}")


def _no_run(path: Path, fault: str) -> FileError:
    return FileError(f"{path} is not a run file: {fault}", hint=_GIVE_RUN_FILE)


def _damaged(
    path: Path, number: int, fault: str, hint: str = "Delete that line to read the rest."
) -> FileError:
    return FileError(f"Line {number} of {path} is damaged: {fault}", hint=hint)


def _collect(path: Path, lines: _Lines) -> RunContent:
    reading = iter(lines)
    last = next(reading, None)
    if last is None:
        raise _no_run(path, "it is empty")
    version = _version(path, last)
    header = _record(path, last, RunHeader, version)
    several: dict[str, list[Any]] = {kind: [] for kind in _SEVERAL}
    newest: dict[str, Any] = {}
    watched: dict[str, WatchedLoader] = {}
    for last in reading:
        kind = last.data[run_format.KIND]
        if kind == "run":
            # Two files in one, whose trials must not count as one run's.
            raise _damaged(
                path,
                last.number,
                "it begins a second run",
                hint=f"Two run files were joined; split it: head -n {last.number - 1} gives the "
                f"first, tail -n +{last.number} the second.",
            )
        record_type = run_format.RECORD_TYPES.get(kind)
        if record_type is None:  # an addition of a later version
            continue
        record: Any = _record(path, last, record_type, version)
        if isinstance(record, WatchedLoader):
            watched[record.name] = record  # written again whenever more was seen
        elif kind in several:
            several[kind].append(record)
        else:
            newest[kind] = record
        if kind == "trial":
            # A run that was resumed after its end has not ended until it says so again, and what
            # it recommended then didn't know of this trial.
            newest.pop("end", None)
            newest.pop("recommendation", None)
    kept: dict[str, Any] = {_SEVERAL[kind]: tuple(found) for kind, found in several.items()}
    seen = tuple(watched.values())
    run = dataclasses.replace(
        Run(path=str(path), header=header, watched=seen, truncated=lines.torn), **kept, **newest
    )
    return RunContent(run, last.end, last.ended)


def _version(path: Path, first: _Line) -> int:
    """The schema version of the file, if it is one that can be read."""
    version = first.data.get("schema_version")
    if first.data[run_format.KIND] != "run" or not isinstance(version, int) or version < 1:
        raise _no_run(path, "line 1 is not a run header")
    refuse_newer(path, version, records.SCHEMA_VERSION)
    return version


def _record(path: Path, line: _Line, record_type: type[_Record], version: int) -> _Record:
    data = line.data
    for older in range(version, records.SCHEMA_VERSION):
        data = run_format.MIGRATIONS[older](data)
    try:
        return from_json(record_type, data)
    except MismatchError as error:
        if line.number == 1:
            raise _no_run(path, f"in its header, {error}") from None
        raise _damaged(path, line.number, str(error)) from None
