"""Run files (``*.dlprof.jsonl``): append-only lines, one record each, the only truth of a run.

Each record is safe on disk before the next trial starts. Whatever a file holds, reading it gives a
run or a ``FileError``.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import re
import sys
from collections.abc import Callable, Iterator, Mapping
from datetime import datetime
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple, Self, TypeVar

from dlprof.errors import FileError, read_fault, refuse_newer
from dlprof.files import check_plain, lock, replace_file, sync_folder, unlock, write_fault
from dlprof.records import (
    SCHEMA_VERSION,
    Calibration,
    Diagnosis,
    Explanation,
    Recommendation,
    Run,
    RunEnd,
    RunHeader,
    SweepPrediction,
    Timeline,
    Trial,
    WatchedLoader,
    WatchedScript,
    checked,
)
from dlprof.records.codec import MismatchError, from_json, to_json

KIND = "record"  # the key that says which kind of record a line holds

RECORD_TYPES: Mapping[str, type] = {
    "run": RunHeader,
    "trial": Trial,
    "explanation": Explanation,
    "timeline": Timeline,
    "calibration": Calibration,
    "prediction": SweepPrediction,
    "diagnosis": Diagnosis,
    "watched": WatchedLoader,
    "script": WatchedScript,
    "recommendation": Recommendation,
    "end": RunEnd,
}
"""Kinds that this version understands; others are additions of later versions and are skipped."""

_KINDS = {record_type: kind for kind, record_type in RECORD_TYPES.items()}

MIGRATIONS: Mapping[int, Callable[[dict[str, Any]], dict[str, Any]]] = {}
"""From an older schema version to the function that brings one line, as parsed, to the next
version. A change that only adds records or fields needs neither an entry nor a new version."""


def encode_line(record: object) -> bytes:
    """One line of a run file: ASCII, so that a file may be cut anywhere without harm to text.

    Raises:
        TypeError: For an object that is no record of a run file.
    """
    if type(record) not in _KINDS:
        raise TypeError(f"a {type(record).__name__} is no record of a run file")
    line = {KIND: _KINDS[type(record)], **to_json(record)}
    return json.dumps(line, allow_nan=False).encode("ascii") + b"\n"


def decode_line(raw: bytes) -> Any:
    """What a line holds; how large its numbers may be is for its record to say."""
    try:
        # Editors may have put a byte order mark in front.
        return _DECODER.decode(raw.decode("utf-8-sig"))
    except RecursionError:
        raise ValueError("nested too deeply") from None


def _refuse(text: str) -> float:
    raise ValueError(f"{text} is not JSON")


_DECODER = json.JSONDecoder(parse_constant=_refuse)


SUFFIX = ".dlprof.jsonl"


def run_file_name(target: str, now: datetime) -> str:
    """A name that has the target and the time: ``images-20260131-142501-7k2q.dlprof.jsonl``.

    The last four characters stand for the microseconds, so that sweeps which are started in the
    same second, as the ranks of a job are, don't take each other's file.

    >>> run_file_name("data/set.py:make", datetime(2026, 1, 31, 14, 25, 1, 123456))
    'set-make-20260131-142501-2n9c.dlprof.jsonl'
    """
    place, _, attribute = target.replace("\\", "/").rpartition("/")[2].partition(":")
    words = [place.removesuffix(".py")]
    if "=" not in attribute:
        words.append(attribute)
    stem = re.sub(r"[^A-Za-z0-9_.]+", "-", "-".join(words)).strip("-.")[:60]
    alphabet, number = "0123456789abcdefghijklmnopqrstuvwxyz", now.microsecond
    digits = "".join(alphabet[number // 36**place % 36] for place in (3, 2, 1, 0))
    return f"{stem or 'run'}-{now:%Y%m%d-%H%M%S}-{digits}{SUFFIX}"


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
        raise read_fault(path, error) from None


class _Reader:
    """The complete records of a file, and how far they reach."""

    def __init__(self, path: Path, file: BinaryIO) -> None:
        self.path, self._file = path, file
        self.number = 0  # the last record's line, from 1, blank ones counted; 0 before there is one
        self.end = 0  # offset in the file of the byte after it
        self.ended = False  # whether a line end follows its last byte
        self.torn = False  # whether a torn record follows the complete ones

    def __iter__(self) -> Iterator[dict[str, Any]]:
        number, end = 0, 0
        while raw := self._file.readline(MAX_LINE_BYTES + 1):
            number, end = number + 1, end + len(raw)
            if len(raw) > MAX_LINE_BYTES:
                raise self._damaged(number, f"it is longer than {MAX_LINE_BYTES} bytes")
            if not raw.strip():
                continue
            try:
                data = decode_line(raw)
            except ValueError:
                self.torn = bool(self.number) and not raw.endswith(b"\n")
                if self.torn:
                    return
                raise self._damaged(number, "it is not JSON") from None
            if not isinstance(data, dict) or not isinstance(data.get(KIND), str):
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
        return FileError(f"{self.path} is not a run file: {fault}", hint=_GIVE_RUN_FILE)

    def record(self, data: dict[str, Any], record_type: type[_Record], version: int) -> _Record:
        """The record that the last line holds, by a version of the schema."""
        for older in range(version, SCHEMA_VERSION):
            data = MIGRATIONS[older](data)
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
    if data[KIND] != "run" or not isinstance(version, int) or version < 1:
        raise reader.no_run("line 1 is not a run header")
    refuse_newer(reader.path, version, SCHEMA_VERSION)
    header = reader.record(data, RunHeader, version)
    several: dict[str, list[Any]] = {kind: [] for kind in _SEVERAL}
    newest: dict[str, Any] = {}
    watched: dict[str, WatchedLoader] = {}
    for data in lines:
        kind = data[KIND]
        if kind == "run":
            # Two files in one, whose trials must not count as one run's.
            raise reader.damaged(
                "it begins a second run",
                hint=f"Two run files were joined; split it: head -n {reader.number - 1} gives the "
                f"first, tail -n +{reader.number} the second.",
            )
        record_type = RECORD_TYPES.get(kind)
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


# O_BINARY exists on Windows only, where line ends would be changed without it.
_APPEND = os.O_WRONLY | os.O_APPEND | getattr(os, "O_BINARY", 0)


def check_output(path: Path, *, force: bool = False) -> None:
    """Refuse early, before anything is imported or measured, a path that can't be created.

    An empty file is as good as none: a sweep that was ended as it began it leaves one.
    """
    try:
        there = path.stat()
    except OSError as error:
        if not isinstance(error, FileNotFoundError) or not path.parent.exists():
            raise write_fault(path, error) from None
    else:
        check_plain(path, there.st_mode, hint="Give another path with -o.")
        if there.st_size and not force:
            raise FileError(
                f"{path} already exists",
                hint="Go on with a sweep by --resume, replace the file with --force, or give "
                "another path with -o.",
            )
    if not os.access(path.parent, os.W_OK | os.X_OK):
        raise FileError(
            f"There is no permission to write into {path.parent.absolute()}",
            hint="Give another path with -o.",
        )


def is_being_written(path: Path) -> bool:
    """Whether a living process has the file open as ``RunWriter``.

    False as well where there is no such file, or where locks can't show it.
    """
    try:
        if not path.stat().st_size:  # whoever begins it is about to take the lock
            return False
        descriptor = os.open(path, os.O_RDONLY)
    except OSError:
        return False
    try:
        return not lock(descriptor, wait=False)
    finally:
        os.close(descriptor)


class RunWriter:
    """An open run file; ``create`` or ``resume`` makes one, and ``with`` closes it."""

    def __init__(self, path: Path, descriptor: int) -> None:
        self.path = path
        self._descriptor = descriptor

    @classmethod
    def create(cls, path: Path, header: RunHeader, *, force: bool = False) -> Self:
        """Begin a run file; its header is on disk when this returns.

        With ``force`` a file that isn't empty is replaced, in one step once the new header is on
        disk, and never while a sweep is writing to it.
        """
        check_output(path, force=force)
        line = encode_line(header)
        # Through a symbolic link to the file that it names.
        path = Path(os.path.realpath(path))
        if path.exists() and (force or not path.stat().st_size):
            with cls(path, _open_locked(path, _APPEND)) as replaced:
                check_output(path, force=force)  # again: it may have been written until now
                if sys.platform == "win32":  # an open file can't be replaced; it has no locks
                    replaced.close()
                replace_file(path, line)
            return cls(path, _open_locked(path, _APPEND))
        writer = cls(path, _open_locked(path, _APPEND | os.O_CREAT | os.O_EXCL))
        try:
            writer._write(line)
        except BaseException:
            writer.close()
            path.unlink(missing_ok=True)
            raise
        sync_folder(path.parent)
        return writer

    @classmethod
    def holding(cls, path: Path) -> Self:
        """Keep other writers off a run file, which stays as it is."""
        return cls(path, _open_locked(path, _APPEND))

    @classmethod
    def resume(cls, path: Path) -> Self:
        """Continue a run file: a torn last record is cut off, and new ones follow the others."""
        read_content(path)
        writer = cls(path, _open_locked(path, _APPEND))
        try:
            # Read again: another sweep may have written until the lock was ours.
            content = read_content(path)
            os.ftruncate(writer._descriptor, content.end)
            if not content.ended:
                writer._write(b"\n")
        except BaseException as error:
            writer.close()
            if isinstance(error, OSError):
                raise write_fault(path, error) from None
            raise
        return writer

    def append(self, record: object) -> None:
        """Write one record; it is on disk when this returns.

        Raises:
            FileError: If it can't be written, as on a full disk; the records before it are kept.
            TypeError: For an object that is no record of a run file.
            ValueError: For a figure that is not finite.
        """
        self._write(encode_line(record))

    def try_append(self, *records: object | None) -> FileError | None:
        """Write records as far as they can be written; returns why the rest isn't in the file.

        Their figures are in memory, so a full disk costs the file its end, and the user no result.
        """
        try:
            for record in records:
                if record is not None:
                    self.append(record)
        except FileError as error:
            return error
        return None

    def _write(self, line: bytes) -> None:
        """One write and one sync; a line that could be written only in part is taken back."""
        before, written = os.fstat(self._descriptor).st_size, 0
        try:
            # The system takes a line whole unless the disk is full, which the next write says.
            while written < len(line):
                written += os.write(self._descriptor, line[written:])
            os.fsync(self._descriptor)
        except OSError as error:
            raise write_fault(self.path, error) from None
        finally:
            if written < len(line):
                with contextlib.suppress(OSError):
                    os.ftruncate(self._descriptor, before)

    def close(self) -> None:
        """Let the file and its lock go; a second call does nothing."""
        if self._descriptor >= 0:
            unlock(self._descriptor)
            os.close(self._descriptor)
            self._descriptor = -1

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_error: object) -> None:
        self.close()


def _open_locked(path: Path, flags: int) -> int:
    """A descriptor of the file with its lock held, so that two sweeps never mix their records."""
    while True:
        try:
            # The user's umask decides
            descriptor = os.open(path, flags, 0o666)
        except OSError as error:
            raise write_fault(path, error) from None
        if not lock(descriptor, wait=False):
            os.close(descriptor)
            hint = "Wait until that sweep has ended, or give another path with -o."
            raise FileError(f"Another sweep is writing {path}", hint=hint)
        if _is_at(path, descriptor):
            return descriptor
        os.close(descriptor)


def _is_at(path: Path, descriptor: int) -> bool:
    """Whether the path still names the open file, which another sweep may have replaced."""
    try:
        return sys.platform == "win32" or os.path.samestat(path.stat(), os.fstat(descriptor))
    except OSError:
        return False
