"""The Typer application: which commands there are, and the options of ``dlprof`` itself."""

from __future__ import annotations

import functools
import importlib
from collections.abc import Mapping
from types import MappingProxyType
from typing import Annotated

import typer
from typer.core import TyperGroup

import dlprof
from dlprof.cli.commands import Command, Group, ScriptCommand

COMMANDS: Mapping[str, type[Command | Group]] = MappingProxyType(
    {
        "sweep": Command,
        "recommend": Command,
        "predict": Command,
        "profile": Command,
        "run": ScriptCommand,
        "attach": Command,
        "top": Command,
        "compare": Command,
        "check": Command,
        "baseline": Group,
        "report": Command,
        "transfer": Command,
        "machine": Command,
        "doctor": Command,
        "explain": Command,
    }
)
"""In the order of the help. Each is what its module in ``dlprof.cli`` calls by the same name; a
group is an application of its own, which its module calls ``app``."""


@functools.cache
def program(only: str | None = None) -> TyperGroup:
    """The parser of the command line.

    Args:
        only: The one command to load, where it is known which is meant: to load all takes longer
            than most of them run.
    """
    app = typer.Typer(
        name="dlprof",
        cls=Group,
        add_completion=True,
        rich_markup_mode=None,
        context_settings={"help_option_names": ["-h", "--help"]},
    )
    app.callback(invoke_without_command=True)(_dlprof_itself)
    for name in COMMANDS if only is None else (only,):
        _add(app, name)
    made = typer.main.get_command(app)
    if not isinstance(made, TyperGroup):
        raise TypeError("the program has commands")
    return made


def _add(app: typer.Typer, name: str) -> None:
    module = importlib.import_module(f"dlprof.cli.{name}")
    kind = COMMANDS[name]
    if issubclass(kind, Command):
        app.command(cls=kind)(getattr(module, name))
    else:
        app.add_typer(module.app, name=name)


def _show_version(wanted: bool) -> None:  # noqa: FBT001 - Typer hands an option's value to its callback by position
    if wanted:
        typer.echo(f"dlprof {dlprof.__version__}")
        raise typer.Exit


def _dlprof_itself(
    context: typer.Context,
    *,
    version: Annotated[
        bool,
        typer.Option(
            "-V",
            "--version",
            help="Show the version and exit.",
            is_eager=True,
            callback=_show_version,
        ),
    ] = False,
) -> None:
    """Find out which DataLoader settings are fast on this machine, and why.

    Start with: dlprof sweep
    """
    del version  # its callback has answered before this runs
    if context.invoked_subcommand is None:
        typer.echo(context.get_help())
