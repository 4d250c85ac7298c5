"""The Typer application: which commands there are, and the options of ``dlprof`` itself."""

from __future__ import annotations

from typing import Annotated

import typer

import dlprof
from dlprof.cli import baseline
from dlprof.cli.check import check
from dlprof.cli.commands import Command, Group, ScriptCommand
from dlprof.cli.compare import compare
from dlprof.cli.machine import machine
from dlprof.cli.predict import predict
from dlprof.cli.profile import profile
from dlprof.cli.recommend import recommend
from dlprof.cli.report import report
from dlprof.cli.run import run
from dlprof.cli.sweep import sweep
from dlprof.cli.transfer import transfer

app = typer.Typer(
    name="dlprof",
    cls=Group,
    add_completion=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _show_version(wanted: bool) -> None:  # noqa: FBT001 - Typer hands an option's value to its callback by position
    if wanted:
        typer.echo(f"dlprof {dlprof.__version__}")
        raise typer.Exit


@app.callback(invoke_without_command=True)
def dlprof_itself(
    context: typer.Context,
    *,
    version: Annotated[
        bool,
        typer.Option(
            "--version", help="Show the version and exit.", is_eager=True, callback=_show_version
        ),
    ] = False,
) -> None:
    """Find out which DataLoader settings are fast on this machine, and why.

    Start with: dlprof sweep
    """
    del version  # its callback has answered before this runs
    if context.invoked_subcommand is None:
        typer.echo(context.get_help())


app.command(cls=Command)(sweep)
app.command(cls=Command)(recommend)
app.command(cls=Command)(predict)
app.command(cls=Command)(profile)
app.command(cls=ScriptCommand)(run)
app.command(cls=Command)(compare)
app.command(cls=Command)(check)
app.add_typer(baseline.app, name="baseline")
app.command(cls=Command)(report)
app.command(cls=Command)(transfer)
app.command(cls=Command)(machine)
