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
    """Print what a shell asked for.

    Args:
        instruction: Such as ``bash_complete``.
    """
    failed = shell_completion.shell_complete(program(), {}, "dlprof", COMPLETES, instruction)
    return ExitCode.USAGE if failed else ExitCode.OK


def script(shell: str | None = None) -> str:
    """What a shell has to read to complete dlprof's commands and options.

    Args:
        shell: The shell's name; ``None`` for the one that runs this.

    Raises:
        UsageError: It isn't known.
    """
    made = shell_completion.get_completion_class(shell or _shell())
    if made is None:
        raise UsageError(f"There is no completion for {shell}", hint="Use bash, zsh or fish.")
    return made(program(), {}, "dlprof", COMPLETES).source()


def install() -> str:
    """Put the script where this shell reads it; says where that is.

    Raises:
        UsageError: The shell isn't known.
    """
    shell = _shell()
    text, home = script(shell), Path.home()
    reads: Path | None
    if shell == "bash":
        reads, place = home / ".bashrc", home / ".bash_completions" / "dlprof.sh"
        line = f"source '{place}'"
    elif shell == "zsh":
        reads, place = home / ".zshrc", home / ".zfunc" / "_dlprof"
        line = "fpath+=~/.zfunc; autoload -Uz compinit; compinit"
    elif shell == "fish":
        reads, place = None, home / ".config" / "fish" / "completions" / "dlprof.fish"
        line = ""
    else:
        asked = [shell, "-NoProfile", "-Command", "echo $profile"]
        reads = Path(
            subprocess.run(asked, check=True, capture_output=True, text=True).stdout.strip()
        )
        place = reads.with_name("dlprof-completion.ps1")
        line = f". '{place}'"
    place.parent.mkdir(parents=True, exist_ok=True)
    place.write_text(text, encoding="utf-8")
    if reads is not None:
        before = reads.read_text(encoding="utf-8") if reads.is_file() else ""
        if line not in before:
            reads.write_text(f"{before.rstrip()}\n{line}\n".lstrip(), encoding="utf-8")
    return (
        f"{shell} completion installed in {place}\n"
        "Completion will take effect once you restart the terminal"
    )


def _shell() -> str:
    """The shell that runs this process."""
    known = {"bash", "zsh", "fish", *_POWER_SHELLS}
    for process in psutil.Process().parents():
        name = process.name().removesuffix(".exe").removeprefix("-")
        if name in known:
            return name
    name = Path(os.environ.get("SHELL", "")).name
    if name in known:
        return name
    raise UsageError(
        "No shell is known that could complete", hint="Run it in bash, zsh, fish or PowerShell."
    )
