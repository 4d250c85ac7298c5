"""Completion by shells: Click's for bash, zsh and fish, and where each reads it."""

from __future__ import annotations

import os
from pathlib import Path

import psutil
from click import shell_completion

from dlprof.cli.app import COMPLETES, program
from dlprof.errors import ExitCode, UsageError
from dlprof.files import write_fault


def answer(instruction: str) -> ExitCode:
    """Print what a shell asked for."""
    failed = shell_completion.shell_complete(program(), {}, "dlprof", COMPLETES, instruction)
    return ExitCode.USAGE if failed else ExitCode.OK


def script() -> str:
    """What this shell has to read to complete dlprof's commands and options."""
    made = shell_completion.get_completion_class(_shell())
    assert made is not None  # noqa: S101 - Click has it
    return made(program(), {}, "dlprof", COMPLETES).source()


def install() -> str:
    """Put the script where this shell reads it; says where that is."""
    shell, home = _shell(), Path.home()
    reads = home / f".{shell}rc"
    below, line = {
        "bash": (".bash_completions/dlprof.sh", f"source '{home}/.bash_completions/dlprof.sh'"),
        "zsh": (".zfunc/_dlprof", "fpath+=~/.zfunc; autoload -Uz compinit; compinit"),
        "fish": (".config/fish/completions/dlprof.fish", ""),
    }[shell]
    place = home / below
    added = os.fsencode(f"{line}\n")
    try:
        before = reads.read_bytes() if reads.is_file() else b""
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_text(script(), encoding="utf-8")
        if added.strip() not in before:  # which is people's own, in whatever encoding
            with reads.open("ab") as file:
                file.write(added if before.endswith(b"\n") or not before else b"\n" + added)
    except OSError as error:
        raise write_fault(Path(error.filename or place), error) from None
    return (
        f"{shell} completion installed in {place}\n"
        "Completion will take effect once you restart the terminal"
    )


def _shell() -> str:
    names = [process.name() for process in psutil.Process().parents()]
    for name in (*names, Path(os.environ.get("SHELL", "")).name):
        if name.removeprefix("-") in {"bash", "zsh", "fish"}:
            return name.removeprefix("-")
    raise UsageError("No shell is known that could complete", hint="Run it in bash, zsh or fish.")
