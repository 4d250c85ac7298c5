"""Shells complete commands, options and files, by a script that ``--install-completion`` places."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from dlprof.cli import completion
from dlprof.cli.app import COMPLETES
from dlprof.cli.entry import run
from dlprof.errors import UsageError

SHELLS = ("bash", "zsh", "fish")


@pytest.mark.parametrize(
    ("words", "found"),
    [
        ("dlprof pro", "plain,profile"),
        ("dlprof baseline ", "plain,update"),
        ("dlprof sweep --num", "plain,--num-workers"),
        ("dlprof sweep --help", "plain,--help"),
        ("dlprof report x", "file,x"),
    ],
)
def test_bash_is_answered(
    words: str, found: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COMP_WORDS", words)
    monkeypatch.setenv("COMP_CWORD", str(words.count(" ")))
    assert run([], {COMPLETES: "bash_complete"}) == 0
    assert found in capsys.readouterr().out.splitlines()


def test_a_shell_that_is_not_known_is_no_crash(capsys: pytest.CaptureFixture[str]) -> None:
    assert run([], {COMPLETES: "tcsh_complete"}) == 2
    assert capsys.readouterr().out == ""


@pytest.mark.parametrize("shell", SHELLS)
def test_the_script_is_put_where_the_shell_reads_it_once(
    shell: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(completion, "_shell", lambda: shell)
    monkeypatch.setattr(Path, "home", lambda: tmp_path)
    (tmp_path / f".{shell}rc").write_text("mine\n")
    for _ in range(2):
        assert run(["--install-completion"], {}) == 0
    place = Path(capsys.readouterr().out.splitlines()[0].partition(" installed in ")[2])
    assert COMPLETES in place.read_text()
    assert run(["--show-completion"], {}) == 0
    assert capsys.readouterr().out.rstrip() == place.read_text().rstrip()
    read = (tmp_path / f".{shell}rc").read_text().splitlines()
    assert read[0] == "mine"
    assert len(read) == (1 if shell == "fish" else 2)


def test_without_a_shell_it_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    class Alone:
        def parents(self) -> list[Any]:
            return []

    monkeypatch.setattr("psutil.Process", Alone)
    monkeypatch.setenv("SHELL", "/bin/tcsh")
    with pytest.raises(UsageError, match="No shell is known"):
        completion.install()
    monkeypatch.setenv("SHELL", "/usr/bin/zsh")
    assert "#compdef dlprof" in completion.script()


def test_what_the_shell_reads_stays_as_it_is(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(completion, "_shell", lambda: "bash")
    monkeypatch.setattr(Path, "home", lambda: tmp_path)
    own = b"# f\xfcr mich\n\n\nexport A=1"  # no UTF-8, and no line end
    (tmp_path / ".bashrc").write_bytes(own)
    assert run(["--install-completion"], {}) == 0
    assert (tmp_path / ".bashrc").read_bytes().startswith(own + b"\nsource ")

    monkeypatch.setattr(Path, "home", lambda: tmp_path / ".bashrc")
    assert run(["--install-completion"], {}) == 2
    assert ".bashrc is not a folder" in capsys.readouterr().err
