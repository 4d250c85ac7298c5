"""The program: which commands there are, and the options of ``dlprof`` itself."""

from __future__ import annotations

import functools
import importlib
from collections.abc import Callable
from typing import Any

import click

import dlprof
from dlprof.cli.commands import Group, Option

COMMANDS = (
    *("sweep", "recommend", "predict", "profile", "run", "compare", "check", "baseline"),
    *("report", "transfer", "machine", "doctor", "explain"),
)
"""In the order of the help. Each is what its module in ``dlprof.cli`` calls by the same name."""

COMPLETES = "_DLPROF_COMPLETE"
"""The variable by which a shell's completion asks, as Click names it."""


class _Program(Group):
    """Loads a command when it is meant: to load all takes longer than most of them run."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """The commands' names."""
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
            _acts("Show the version and exit.", _show_version, "-V", "--version"),
            _acts(
                "Install completion for the current shell.",
                _complete,
                "--install-completion",
                panel="Completion",
            ),
            _acts(
                "Show completion for the current shell, to copy it or customize the installation.",
                _complete,
                "--show-completion",
                panel="Completion",
            ),
        ],
    )


def _acts(text: str, callback: Callable[..., None], *flags: str, **more: Any) -> Option:
    """An option that answers by itself."""
    more |= {"is_flag": True, "is_eager": True, "expose_value": False}
    return Option(flags, callback=callback, help=text, **more)


def _dlprof_itself() -> None:
    context = click.get_current_context()
    if context.invoked_subcommand is None:
        click.echo(context.get_help())


def _show_version(ctx: click.Context, _: click.Parameter, wanted: bool) -> None:  # noqa: FBT001 - Click's
    if wanted and not ctx.resilient_parsing:
        click.echo(f"dlprof {dlprof.__version__}")
        ctx.exit()


def _complete(ctx: click.Context, option: click.Parameter, wanted: bool) -> None:  # noqa: FBT001 - Click's
    if wanted and not ctx.resilient_parsing:
        from dlprof.cli import completion  # once in a shell's life

        click.echo(
            completion.install() if option.name == "install_completion" else completion.script()
        )
        ctx.exit()
