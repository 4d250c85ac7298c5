"""Completion by shells: Click's for bash, zsh and fish, the like for PowerShell, and its place."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import psutil
from click import shell_completion

from dlprof.cli.app import COMPLETES, program
from dlprof.errors import ExitCode, UsageError

_POWER_SHELLS = ("powershell", "pwsh")


class _PowerShell(shell_completion.ShellComplete):
    """As Click's own, which doesn't know this shell."""

    name = "powershell"
    source_template = """\
Register-ArgumentCompleter -Native -CommandName %(prog_name)s -ScriptBlock {
    param($wordToComplete, $commandAst, $cursorPosition)
    $Env:%(complete_var)s = "powershell_complete"
    $Env:COMP_WORDS = $commandAst.ToString()
    $Env:COMP_WORD = $wordToComplete
    %(prog_name)s | ForEach-Object {
        $value, $help = $_ -Split "`t"
        [System.Management.Automation.CompletionResult]::new(
            $value, $value, 'ParameterValue', $help)
    }
    $Env:%(complete_var)s = ""
    $Env:COMP_WORDS = ""
    $Env:COMP_WORD = ""
}
"""

    def get_completion_args(self) -> tuple[list[str], str]:
        """The words before the one that is typed, and that one."""
        _, *words = shell_completion.split_arg_string(os.environ["COMP_WORDS"])
        typed = os.environ.get("COMP_WORD", "")
        return words[:-1] if typed else words, typed

    def format_completion(self, item: shell_completion.CompletionItem) -> str:
        """One line; PowerShell refuses an empty help."""
        return f"{item.value}\t{item.help or item.value}"


for _name in _POWER_SHELLS:
    shell_completion.add_completion_class(_PowerShell, _name)


def answer(instruction: str) -> ExitCode:
    """Print what a shell asked for."""
    failed = shell_completion.shell_complete(program(), {}, "dlprof", COMPLETES, instruction)
    return ExitCode.USAGE if failed else ExitCode.OK


def script() -> str:
    """What this shell has to read to complete dlprof's commands and options.

    Raises:
        UsageError: The shell isn't known.
    """
    made = shell_completion.get_completion_class(_shell())
    assert made is not None  # noqa: S101 - Click's own, and the one above
    return made(program(), {}, "dlprof", COMPLETES).source()


def install() -> str:
    """Put the script where this shell reads it; says where that is.

    Raises:
        UsageError: The shell isn't known.
    """
    shell, home = _shell(), Path.home()
    if shell in _POWER_SHELLS:
        asked = [shell, "-NoProfile", "-Command", "echo $profile"]
        answer = subprocess.run(asked, check=True, capture_output=True, text=True).stdout
        reads = Path(answer.strip())
        place = reads.with_name("dlprof-completion.ps1")
        line = f". '{place}'"
    else:
        reads = home / f".{shell}rc"
        below, line = {
            "bash": (".bash_completions/dlprof.sh", f"source '{home}/.bash_completions/dlprof.sh'"),
            "zsh": (".zfunc/_dlprof", "fpath+=~/.zfunc; autoload -Uz compinit; compinit"),
            "fish": (".config/fish/completions/dlprof.fish", ""),
        }[shell]
        place = home / below
    place.parent.mkdir(parents=True, exist_ok=True)
    place.write_text(script(), encoding="utf-8")
    before = reads.read_text(encoding="utf-8") if reads.is_file() else ""
    if line not in before:
        reads.write_text(f"{before.rstrip()}\n{line}\n".lstrip(), encoding="utf-8")
    return (
        f"{shell} completion installed in {place}\n"
        "Completion will take effect once you restart the terminal"
    )


def _shell() -> str:
    names = [process.name().removesuffix(".exe") for process in psutil.Process().parents()]
    for name in (*names, Path(os.environ.get("SHELL", "")).name):
        if name.removeprefix("-") in {"bash", "zsh", "fish", *_POWER_SHELLS}:
            return name.removeprefix("-")
    raise UsageError(
        "No shell is known that could complete", hint="Run it in bash, zsh, fish or PowerShell."
    )
