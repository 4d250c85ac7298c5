"""The program: which commands there are, and the options of ``dlprof`` itself."""

from __future__ import annotations

import functools
import importlib

import click

import dlprof
from dlprof.cli.commands import Group, answers

COMMANDS = (
    *("sweep", "recommend", "predict", "profile", "run", "attach", "top"),
    *("compare", "check", "baseline", "report", "transfer", "machine", "doctor", "explain"),
)
"""In the order of the help. Each is what its module in ``dlprof.cli`` calls by the same name."""

COMPLETES = "_DLPROF_COMPLETE"  # the variable by which a shell's completion asks, as Click names it


class _Program(Group):
    """Loads a command when it is meant: to load all takes longer than most of them run."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        del ctx
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """A command; ``None`` where there is none of that name."""
        if cmd_name in COMMANDS and cmd_name not in self.commands:
            module = importlib.import_module(f"dlprof.cli.{cmd_name}")
            self.add_command(getattr(module, cmd_name))
        return super().get_command(ctx, cmd_name)


@functools.cache
def program() -> click.Group:
    """The parser of the command line."""
    return _Program(
        "dlprof",
        help="Find out which DataLoader settings are fast on this machine, and why.\n\n"
        "Start with: dlprof sweep",
        invoke_without_command=True,
        callback=_dlprof_itself,
        params=[
            answers(
                "Show the version and exit.",
                lambda _: f"dlprof {dlprof.__version__}",
                *("-V", "--version"),
            ),
            answers(
                "Install completion for the current shell.",
                lambda _: importlib.import_module("dlprof.cli.completion").install(),
                "--install-completion",
                panel="Completion",
            ),
            answers(
                "Show completion for the current shell, to copy it or customize the installation.",
                lambda _: importlib.import_module("dlprof.cli.completion").script(),
                "--show-completion",
                panel="Completion",
            ),
        ],
    )


def _dlprof_itself() -> None:
    context = click.get_current_context()
    if context.invoked_subcommand is None:
        click.echo(context.get_help())
