from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from dlprof.cli import entry
from dlprof.cli.entry import run
from dlprof.errors import (
    DlprofError,
    FileError,
    InterruptedSweepError,
    NothingMeasuredError,
    TargetError,
    UsageError,
)

_EXAMPLE = Path(__file__).parents[3] / "examples" / "single-box.dlprof.jsonl"


def sweep_that_raises(monkeypatch: pytest.MonkeyPatch, error: BaseException) -> None:
    """Put a sweep in place that ends with this error."""

    def run_sweep(*args: Any, **kwargs: Any) -> None:
        raise error

    monkeypatch.setattr("dlprof.engine.run_sweep", run_sweep)


@pytest.mark.parametrize(
    ("error", "code", "kind"),
    [
        (UsageError("The value is wrong", hint="Give another."), 2, "usage"),
        (FileError("The file is gone."), 2, "file"),
        (TargetError("No such attribute."), 2, "target"),
        (NothingMeasuredError("Every trial failed."), 6, "nothing_measured"),
        (InterruptedSweepError("Interrupted."), 130, "interrupted"),
        (DlprofError("A fault."), 70, "error"),
        (KeyboardInterrupt(), 130, "interrupted"),
        (ZeroDivisionError("division by zero"), 70, "internal"),
        (MemoryError(), 70, "internal"),
    ],
)
def test_each_fault_has_its_exit_code_and_its_document(
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    error: BaseException,
    code: int,
    kind: str,
) -> None:
    sweep_that_raises(monkeypatch, error)

    assert run(["sweep", "-q"], {}) == code
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("dlprof: ")
    assert "Traceback" not in err

    assert run(["sweep", "--json", "-q"], {}) == code
    out, err = capsys.readouterr()
    document = json.loads(out)
    assert document["schema_version"] == 1
    assert document["error"]["kind"] == kind
    assert set(document["error"]) == {"kind", "message", "hint"}
    assert err == ""


def test_a_fault_reads_as_a_sentence_and_what_to_do(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    sweep_that_raises(monkeypatch, UsageError("The value '7\x1b[31m' is wrong", hint="Give 8."))
    run(["sweep", "-q"], {})
    assert capsys.readouterr().err == "dlprof: The value '7' is wrong.\n  Give 8.\n"


LAUNCHERS = ("torchrun", "mpirun", "horovodrun", "srun")


@pytest.mark.parametrize(
    "command",
    [
        "dlprof sweep my_data.py:make_loader --resume -o loader.dlprof.jsonl",
        *(
            f"{launcher} --rdzv-endpoint=node0:29400 -m dlprof sweep images --resume -o a.jsonl"
            for launcher in LAUNCHERS
        ),
    ],
)
def test_on_a_terminal_no_word_is_cut_and_a_command_has_its_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], command: str
) -> None:
    hint = f"Go on with it, or have dlprof predict: {command}"
    sweep_that_raises(monkeypatch, UsageError("The run holds only traced trials", hint=hint))
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    monkeypatch.setattr(os, "get_terminal_size", lambda _: os.terminal_size((30, 24)))
    run(["sweep", "-q"], {})
    assert capsys.readouterr().err.splitlines() == [
        "dlprof: The run holds only",
        "  traced trials.",
        "  Go on with it, or have",
        "  dlprof predict:",
        f"  {command}",
    ]


@pytest.mark.parametrize(
    ("arguments", "environ"),
    [(["sweep", "-v"], {}), (["sweep", "-q"], {"DLPROF_DEBUG": "1"})],
)
def test_a_fault_of_its_own_shows_its_traceback_on_request(
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    arguments: list[str],
    environ: dict[str, str],
) -> None:
    sweep_that_raises(monkeypatch, ZeroDivisionError("division by zero"))
    assert run(arguments, environ) == 70
    err = capsys.readouterr().err
    assert "Traceback" in err
    assert "report it" in err


def test_the_users_own_traceback_is_always_shown(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    error = TargetError("data.py could not be imported.", traceback="Traceback:\n  line 3")
    sweep_that_raises(monkeypatch, error)
    assert run(["sweep", "-q", "--json"], {}) == 2
    out, err = capsys.readouterr()
    assert json.loads(out)["error"]["kind"] == "target"
    assert "line 3" in err


@pytest.mark.parametrize(
    "arguments",
    [
        ["nonsense"],
        ["--nonsense"],
        ["sweep", "--nonsense"],
        ["sweep", "a", "b"],
        ["sweep", "--budget"],
        ["sweep", "--budget", "soon"],
        ["sweep", "--num-workers", "-3"],
        ["sweep", "--resume"],
        ["recommend"],
        ["recommend", "run.jsonl", "--format", "yaml"],
        ["recommend", "does-not-exist.jsonl"],
        ["recommend", "run.jsonl", "--save", "a.toml", "--machine", "b.toml"],
    ],
)
def test_bad_input_is_a_usage_error(
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    arguments: list[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    assert run(arguments, {}) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert 1 <= len(err.splitlines()) <= 2

    assert run([*arguments, "--json"], {}) == 2
    assert json.loads(capsys.readouterr().out)["error"]["message"]


def test_a_json_after_the_end_of_options_is_no_flag(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["recommend", "--nonsense", "--", "--json"], {}) == 2
    assert capsys.readouterr().out == ""


@pytest.mark.parametrize("words", [["--json", "run.json", "none.py"], ["none.py", "--json"]])
def test_what_run_refuses_is_no_document_on_the_stdout_of_the_script(
    capsys: pytest.CaptureFixture[str], words: list[str]
) -> None:
    """Its --json takes a file, and what stands behind a script is the script's."""
    assert run(["run", *words], {}) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("dlprof: There is no file 'none.py'.")


@pytest.mark.parametrize("words", [["--arg", "--"], ["-o", "--", "--ranks", "--"]])
def test_the_value_of_an_option_does_not_end_the_options(
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    words: list[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    assert run(["sweep", *words, "--json"], {}) == 2
    assert json.loads(capsys.readouterr().out)["error"]["kind"] == "usage"


def test_version_and_bare_call(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["--version"], {}) == 0
    assert capsys.readouterr().out.startswith("dlprof ")
    assert run([], {}) == 0
    assert "sweep" in capsys.readouterr().out


@pytest.mark.parametrize("command", [[], ["sweep"], ["recommend"], ["machine"]])
def test_help_loads_neither_torch_nor_rich_help(command: list[str]) -> None:
    heavy = {"torch", "pydantic", "rich", "pygments", "dlprof.trial", "dlprof.records"}
    assert "Usage: dlprof" in shown_without([*command, "--help"], heavy)


def test_recommend_loads_no_more_than_it_needs() -> None:
    heavy = {"torch", "pydantic", "pygments", "dlprof.trial", "dlprof.model"}
    others = {"dlprof.cli.sweep", "dlprof.records.gate", "dlprof.records.transfer"}
    assert "DataLoader(" in shown_without(["recommend", str(_EXAMPLE)], heavy | others)


def shown_without(arguments: list[str], modules: set[str]) -> str:
    """What the program shows in a process of its own, in which it must not load the modules."""
    program = (
        "import sys; from dlprof.cli.entry import run; "
        f"code = run({arguments!r}, {{}}); "
        f"loaded = {modules!r} & set(sys.modules); "
        "sys.exit(code or (str(loaded) if loaded else 0))"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_a_reader_that_goes_away_is_no_fault() -> None:
    read, write = os.pipe()
    os.close(read)
    try:
        done = subprocess.run(
            [sys.executable, "-m", "dlprof", "sweep", "--help"],
            stdout=write,
            stderr=subprocess.PIPE,
            check=False,
        )
    finally:
        os.close(write)
    assert (done.returncode, done.stderr) == (0, b"")


def test_the_module_is_the_program() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "dlprof", "nonsense"], capture_output=True, text=True, check=False
    )
    assert done.returncode == 2
    assert done.stderr.startswith("dlprof: No such command 'nonsense'.")


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
def test_a_stdout_that_is_full_is_one_sentence(tmp_path: Path) -> None:
    with Path("/dev/full").open("w") as full:
        done = subprocess.run(
            [sys.executable, "-m", "dlprof", "sweep", "--print-config"],
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
            check=False,
            cwd=tmp_path,
        )
    assert done.returncode == 2
    assert done.stderr.startswith("dlprof: The result can't be written to stdout: No space left")
    assert len(done.stderr.splitlines()) == 2


def test_closed_streams_are_no_fault(tmp_path: Path) -> None:
    call = f'"{sys.executable}" -m dlprof sweep --print-config >&- 2>&-'
    done = subprocess.run(["/bin/sh", "-c", call], check=False, cwd=tmp_path)
    assert done.returncode == 0


@pytest.mark.parametrize("option", ["-", "", "."])
def test_a_run_file_needs_a_name(
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
    option: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    assert run(["sweep", "-o", option], {}) == 2
    assert "-o needs the path" in capsys.readouterr().err
    assert not list(tmp_path.iterdir())


def test_what_processes_wrote_is_shown_when_asked_for(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    error = NothingMeasuredError("No batch came.", hint="Look at it.", traceback="line 7 in make")
    sweep_that_raises(monkeypatch, error)
    assert run(["sweep", "-q"], {}) == 6
    assert "line 7" not in capsys.readouterr().err
    assert run(["sweep", "-v"], {}) == 6
    assert "line 7 in make\ndlprof: No batch came.\n  Look at it." in capsys.readouterr().err


@pytest.mark.skipif(sys.platform == "win32", reason="signals of POSIX")
@pytest.mark.parametrize("ignored", [False, True])
def test_ctrl_c_while_the_program_is_loaded(*, ignored: bool) -> None:
    """Nothing has begun: no traceback, and 130; a shell that has it ignored is obeyed."""
    program = (
        "import os, signal, sys, dlprof.cli\n"
        f"ignored = {ignored}\n"
        "to = signal.SIG_IGN if ignored else signal.default_int_handler\n"
        "signal.signal(signal.SIGINT, to)\n"
        "class Interrupts:\n"
        "    def find_spec(self, name, *_):\n"
        "        if name == 'click': os.kill(os.getpid(), signal.SIGINT)\n"
        "sys.meta_path.insert(0, Interrupts())\n"
        "sys.argv = ['dlprof', '--version']\n"
        "dlprof.cli.main()\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=False
    )
    assert "Traceback" not in done.stderr
    if ignored:
        assert (done.returncode, done.stderr) == (0, "")
    else:
        assert (done.returncode, done.stderr) == (130, "dlprof: Interrupted.\n")


def test_a_second_interrupt_does_not_cut_off_what_is_reported(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def say_slowly(*args: Any, **kwargs: Any) -> Any:
        signal.raise_signal(signal.SIGINT)
        return describe(*args, **kwargs)

    describe, before = entry.describe, signal.getsignal(signal.SIGINT)
    sweep_that_raises(monkeypatch, KeyboardInterrupt())
    monkeypatch.setattr(entry, "describe", say_slowly)

    assert run(["sweep", "-q"], {}) == 130
    assert capsys.readouterr().err.startswith("dlprof: ")
    assert signal.getsignal(signal.SIGINT) is before
