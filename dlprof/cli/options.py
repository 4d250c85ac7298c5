"""The options that commands share: those of the table of settings, and those of the screen.

Values are raw texts: ``dlprof.settings`` gives them meaning and a sentence for each fault, the
same for a flag, an environment variable and a configuration file.
"""

from __future__ import annotations

import dataclasses
import functools
import inspect
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Annotated, Any

import typer

from dlprof.settings.options import (
    ONE_CONFIGURATION,
    SEARCH_SPACE,
    Option,
    option_named,
)

Given = Mapping[str, Any]
"""What a user gave of the options that a command takes, as texts by key."""

LOADED = ("target", "arg", "shuffle")
STEP = ("step_time", "step", "device", "copy_ahead", "step_on")
SWEPT = (
    *("num_workers", "prefetch_factor", "pin_memory", "persistent_workers", "batch_size"),
    *("in_order", "start_method", "sharing_strategy", "worker_threads"),
)

_OUTPUT = "Output"


def takes(*options: str | Option, once: bool = False) -> Callable[[Callable[..., None]], Any]:
    """Give a command options of the table.

    Its function gets those that the user gave as its first argument, ``given``, and its own
    parameters besides.

    Args:
        options: Keys in the order of the help, or options that read otherwise here.
        once: Whether it takes one value of those that a sweep tries.
    """
    rows = [option_named(each) if isinstance(each, str) else each for each in options]

    def decorate(command: Callable[..., None]) -> Any:
        own = inspect.signature(command, eval_str=True)
        _, *more = own.parameters.values()
        words = [each for each in more if each.kind is not inspect.Parameter.KEYWORD_ONLY]

        @functools.wraps(command)
        def parsed(**arguments: Any) -> None:
            texts = {row.key: arguments.pop(row.key) for row in rows}
            command({key: text for key, text in texts.items() if text is not None}, **arguments)

        table = [_parameter(row, once=once) for row in rows]
        parameters = [*words, *table, *more[len(words) :]]
        made: Any = parsed
        made.__signature__ = own.replace(
            parameters=[each.replace(kind=inspect.Parameter.KEYWORD_ONLY) for each in parameters]
        )
        made.__annotations__ = {each.name: each.annotation for each in parameters}
        return made

    return decorate


def varied(key: str, **changes: Any) -> Option:
    """An option of the table that reads otherwise with one command."""
    return dataclasses.replace(option_named(key), **changes)


def _parameter(row: Option, *, once: bool) -> inspect.Parameter:
    """An option as a command's parameter."""
    once = once and row.panel == SEARCH_SPACE
    kind, default = row.kind, "" if once else row.default
    text = f"{row.text} Default: {default}." if default else row.text
    metavar = row.metavar or (once and kind.metavar_once) or kind.metavar or None
    value: Any = list[str] if row.key == "arg" else str if kind.metavar else bool
    made: Any
    if row.key == "target":
        made = typer.Argument(help=text, metavar=metavar)
    else:
        flags = [row.flag] if kind.metavar else [f"{row.flag}/--no-{row.flag.removeprefix('--')}"]
        panel = ONE_CONFIGURATION if once else row.panel
        made = typer.Option(*flags, *row.aliases, help=text, metavar=metavar, rich_help_panel=panel)
    return inspect.Parameter(
        row.key,
        inspect.Parameter.KEYWORD_ONLY,
        default=None,
        annotation=Annotated[value | None, made],
    )


Output = Annotated[
    Path | None,
    typer.Option(
        "-o",
        "--output",
        metavar="FILE",
        help="The run file. Default: TARGET-DATE-TIME.dlprof.jsonl here.",
        rich_help_panel=_OUTPUT,
    ),
]
Resume = Annotated[
    bool,
    typer.Option("--resume", help="Continue the run file given by -o.", rich_help_panel=_OUTPUT),
]
Force = Annotated[
    bool,
    typer.Option("--force", help="Replace the run file if it exists.", rich_help_panel=_OUTPUT),
]
ConfigFile = Annotated[
    Path | None,
    typer.Option(
        "--config",
        metavar="FILE",
        help="Read options from this TOML file. Flags and DLPROF_* variables go before it.",
        rich_help_panel=_OUTPUT,
    ),
]
PrintConfig = Annotated[
    bool,
    typer.Option(
        "--print-config",
        help="Show the options as resolved, as TOML, and exit.",
        rich_help_panel=_OUTPUT,
    ),
]
Written = Annotated[
    Path | None,
    typer.Option("-o", "--output", metavar="FILE", help="Where to. Default: stdout."),
]
Replace = Annotated[bool, typer.Option("--force", help="Replace the output file if it exists.")]
Json = Annotated[
    bool,
    typer.Option("--json", help="Print one JSON document on stdout.", rich_help_panel=_OUTPUT),
]
Brief = Annotated[
    bool,
    typer.Option(
        "--brief",
        help="With --json: only the answer, one key a line.",
        rich_help_panel=_OUTPUT,
    ),
]
Quiet = Annotated[
    bool,
    typer.Option("-q", "--quiet", help="No progress, no warnings.", rich_help_panel=_OUTPUT),
]
Verbose = Annotated[
    bool,
    typer.Option(
        "-v",
        "--verbose",
        help="Say more, and show where a fault arose.",
        rich_help_panel=_OUTPUT,
    ),
]
