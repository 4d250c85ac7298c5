"""What a run file from elsewhere can make the program do: show it, and write where it is asked."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from fuzz_program import HOSTILE, cuts, flips, program
from rich.cells import cell_len
from test_fuzz_runs import CONTENT, RECORDS, TEXT_PATHS, encoded, replaced

FORMATS = ("text", "html", "markdown", "csv", "json")
_WRITING = os.O_WRONLY | os.O_RDWR | os.O_CREAT
_RUNS_CODE = (
    *("subprocess.Popen", "os.exec", "os.posix_spawn", "os.system", "os.fork", "pty.spawn"),
    *("pickle.find_class", "socket.connect", "marshal.loads", "ctypes.dlopen"),
)
_CHANGES = ("os.mkdir", "os.remove", "os.rename", "os.rmdir", "os.link", "os.symlink", "os.chmod")


class Auditor:
    """Hears from Python itself what the program does, while it is asked to listen."""

    def __init__(self) -> None:
        self.listens = False
        self.ran: list[str] = []
        self.written: set[str] = set()
        sys.addaudithook(self._hear)

    def _hear(self, event: str, arguments: tuple[Any, ...]) -> None:
        if not self.listens:
            return
        if event in _RUNS_CODE:
            self.ran.append(f"{event} {arguments}")
        opens = event == "open" and arguments[2] & _WRITING and not isinstance(arguments[0], int)
        if opens or event in _CHANGES:
            self.written.add(os.path.realpath(os.fsdecode(arguments[0])))


_AUDITOR = Auditor()  # a hook can't be taken away again


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The one in which the program works; afterwards it has run nothing, and written only there."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    program(["report", "absent", "--format", "html"])  # loads what is loaded late
    (tmp_path / "other.dlprof.jsonl").write_bytes(CONTENT)
    for written_as in FORMATS:
        program(["report", "other.dlprof.jsonl", "--format", written_as, "-o", "o", "--force"])
    program(["compare", "other.dlprof.jsonl", "other.dlprof.jsonl"])
    cell_len("\u3042")  # rich loads its table of widths once it needs it
    _AUDITOR.ran.clear()
    _AUDITOR.written.clear()
    _AUDITOR.listens = True
    yield tmp_path
    _AUDITOR.listens = False
    assert not _AUDITOR.ran
    assert not [path for path in _AUDITOR.written if not path.startswith(f"{tmp_path}/")]


def read(folder: Path, content: bytes, written_as: str = "text") -> str:
    (folder / "run.dlprof.jsonl").write_bytes(content)
    words = ("--format", written_as, "-o", "report.out", "--force")
    return (
        ""
        if program(["report", "run.dlprof.jsonl", *words]).code
        else Path("report.out").read_text()
    )


def all_hostile() -> bytes:
    """A run file whose texts, as far as they may be anything, all try to act."""
    records = RECORDS
    for path in TEXT_PATHS:
        changed = replaced(records, path, HOSTILE)
        if not program(["report", _written(changed), "--format", "csv"]).code:
            records = changed
    return encoded(records)


def _written(records: list[Any]) -> str:
    path = Path("tried.dlprof.jsonl")
    path.write_bytes(encoded(records))
    return str(path)


@pytest.mark.parametrize(
    "written_as",
    [
        pytest.param(each, marks=() if each in {"html", "text"} else pytest.mark.slow)
        for each in FORMATS
    ],
)
def test_a_report_of_hostile_texts_only_shows_them(folder: Path, written_as: str) -> None:
    content = all_hostile()
    assert content.count(b"MARK") >= 10
    shown = read(folder, content, written_as)

    assert shown
    assert "\x1b" not in shown
    if written_as == "html":
        assert "<script>x" not in shown
    if written_as == "markdown":
        fences = r"^(`{3,}).*?^\1$"  # of commands, in which nothing acts
        prose = re.sub(fences, "", shown, flags=re.DOTALL | re.MULTILINE)
        assert "<script>x" not in prose
        assert "`" not in prose.replace("\\`", "")


def test_a_comparison_of_hostile_texts_only_shows_them(folder: Path) -> None:
    (folder / "run.dlprof.jsonl").write_bytes(all_hostile())

    assert program(["compare", "run.dlprof.jsonl", "other.dlprof.jsonl"]).code in (0, 2)
    assert program(["compare", "other.dlprof.jsonl", "run.dlprof.jsonl", "--json"]).code in (0, 2)


@pytest.mark.parametrize(
    "command",
    ["report", *(pytest.param(each, marks=pytest.mark.slow) for each in ("compare", "predict"))],
)
def test_a_damaged_file_is_an_answer_or_a_sentence(folder: Path, command: str) -> None:
    others = ("other.dlprof.jsonl",) if command == "compare" else ()
    for content in (*cuts(CONTENT, 701), *flips(CONTENT, 40)):
        (folder / "run.dlprof.jsonl").write_bytes(content)
        program([command, "run.dlprof.jsonl", *others])


def test_only_the_output_is_written(folder: Path) -> None:
    (folder / "run.dlprof.jsonl").write_bytes(all_hostile())
    before = set(folder.iterdir())
    ended = program(["report", "run.dlprof.jsonl", "-o", "page.html"])

    assert ended.code == 0
    assert set(folder.iterdir()) - before == {folder / "page.html"}
