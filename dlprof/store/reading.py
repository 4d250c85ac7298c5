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


class RunContent(NamedTuple):
    """A run, and where its file can be continued."""

    run: Run
    end: int  # offset of the byte after the last complete record
    ended: bool  # whether that record has its line end


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
            return _collect(_Reader(path, file))
    except FileNotFoundError:
        raise FileError(f"There is no file {path}", hint=_GIVE_RUN_FILE) from None
    except OSError as error:
        raise FileError(
            f"{path} can't be read: {error.strerror}", hint="Check the path and its permissions."
        ) from None


class _Reader:
    """The complete records of a file, and how far they reach.

    Attributes:
        number: The line of the last record, from 1; 0 before there is one. Blank lines may be
            before it.
        end: Offset in the file of the byte after it.
        ended: Whether a line end follows its last byte.
        torn: Whether a torn record follows the complete ones.
    """

    def __init__(self, path: Path, file: BinaryIO) -> None:
        self.path, self._file = path, file
        self.number = self.end = 0
        self.ended = self.torn = False

    def __iter__(self) -> Iterator[dict[str, Any]]:
        number, end = 0, 0
        while raw := self._file.readline(MAX_LINE_BYTES + 1):
            number, end = number + 1, end + len(raw)
            if len(raw) > MAX_LINE_BYTES:
                raise self._damaged(number, f"it is longer than {MAX_LINE_BYTES} bytes")
            if not raw.strip():
                continue
            try:
                data = run_format.decode_line(raw)
            except ValueError:
                self.torn = bool(self.number) and not raw.endswith(b"\n")
                if self.torn:
                    return
                raise self._damaged(number, "it is not JSON") from None
            if not isinstance(data, dict) or not isinstance(data.get(run_format.KIND), str):
                raise self._damaged(number, "it is not a record")
            self.number, self.end, self.ended = number, end, raw.endswith(b"\n")
            yield data

    def _damaged(self, number: int, fault: str) -> FileError:
        if not self.number:
            return self.no_run(f"line {number} is not a run header: {fault}")
        return self.damaged(fault, line=number)

    def damaged(
        self, fault: str, *, line: int = 0, hint: str = "Delete that line to read the rest."
    ) -> FileError:
        """What is wrong with a line; the last record's without one."""
        return FileError(
            f"Line {line or self.number} of {self.path} is damaged: {fault}", hint=hint
        )

    def no_run(self, fault: str) -> FileError:
        """Why this is no run file."""
        return FileError(f"{self.path} is not a run file: {fault}", hint=_GIVE_RUN_FILE)

    def record(self, data: dict[str, Any], record_type: type[_Record], version: int) -> _Record:
        """The record that the last line holds, by a version of the schema."""
        for older in range(version, records.SCHEMA_VERSION):
            data = run_format.MIGRATIONS[older](data)
        try:
            return from_json(record_type, data)
        except MismatchError as error:
            if record_type is RunHeader:
                raise self.no_run(f"in its header, {error}") from None
            raise self.damaged(str(error)) from None


def _collect(reader: _Reader) -> RunContent:
    lines = iter(reader)
    data = next(lines, None)
    if data is None:
        raise reader.no_run("it is empty")
    version = data.get("schema_version")
    if data[run_format.KIND] != "run" or not isinstance(version, int) or version < 1:
        raise reader.no_run("line 1 is not a run header")
    refuse_newer(reader.path, version, records.SCHEMA_VERSION)
    header = reader.record(data, RunHeader, version)
    several: dict[str, list[Any]] = {kind: [] for kind in _SEVERAL}
    newest: dict[str, Any] = {}
    watched: dict[str, WatchedLoader] = {}
    for data in lines:
        kind = data[run_format.KIND]
        if kind == "run":
            # Two files in one, whose trials must not count as one run's.
            raise reader.damaged(
                "it begins a second run",
                hint=f"Two run files were joined; split it: head -n {reader.number - 1} gives the "
                f"first, tail -n +{reader.number} the second.",
            )
        record_type = run_format.RECORD_TYPES.get(kind)
        if record_type is None:  # an addition of a later version
            continue
        record: Any = reader.record(data, record_type, version)
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
    run = Run(path=str(reader.path), header=header, watched=seen, truncated=reader.torn)
    return RunContent(dataclasses.replace(run, **kept, **newest), reader.end, reader.ended)
