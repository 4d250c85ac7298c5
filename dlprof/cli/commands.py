"""How commands parse and explain themselves: Click's own, with a short help and a whole one.

And stdout, whatever it can show, and whenever its reader stops.
"""

from __future__ import annotations

import codecs
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import click

from dlprof.errors import ExitCode, did_you_mean

OPTIONS_PANEL = "Options"
_WHOLE = "--help-all"
_SETTINGS: dict[str, Any] = {"help_option_names": ["-h", "--help"]}


class CommandOption(click.Option):
    """An option, its heading in the whole help, and earlier names, which work and are not shown."""

    def __init__(
        self,
        names: Sequence[str],
        *,
        panel: str = OPTIONS_PANEL,
        aliases: Sequence[str] = (),
        **rest: Any,
    ) -> None:
        super().__init__([*names, *aliases], **rest)
        self.panel, self.aliases = panel, aliases

    def get_help_record(self, ctx: click.Context) -> tuple[str, str] | None:
        """Its line of the help."""
        record = super().get_help_record(ctx)
        if record is None:
            return None
        label, text = record
        for alias in self.aliases:
            label = label.replace(f", {alias}", "")
        return label, text


class Argument(click.Argument):
    """An argument with a line in the help."""

    panel = "Arguments"

    def __init__(self, names: Sequence[str], *, text: str, **rest: Any) -> None:
        super().__init__(names, **rest)
        self.help = text  # which Click has since 8.5

    def get_help_record(self, ctx: click.Context) -> tuple[str, str]:
        """Its line of the help."""
        del ctx
        return self.human_readable_name, self.help or ""

    def get_usage_pieces(self, ctx: click.Context) -> list[str]:
        """How it is written behind the command's name."""
        del ctx
        word = self.human_readable_name
        return [word if self.required or self.nargs != 1 else f"[{word}]"]


def answers(
    text: str, answer: Callable[[click.Context], str], *flags: str, **more: Any
) -> CommandOption:
    """An option that is answered by a text, which ends the command."""

    def show(ctx: click.Context, _: click.Parameter, wanted: bool) -> None:  # noqa: FBT001 - Click's
        if wanted and not ctx.resilient_parsing:
            click.echo(answer(ctx))
            ctx.exit()

    more |= {"is_flag": True, "is_eager": True, "expose_value": False}
    return CommandOption(flags, callback=show, help=text, **more)


def _help_all() -> CommandOption:
    def whole(ctx: click.Context) -> str:
        ctx.meta[_WHOLE] = True
        return ctx.get_help()

    return answers("Show all options and exit.", whole, _WHOLE, hidden=True)


class Command(click.Command):
    """A command of a kind, its heading in the program's help, with its short help and examples."""

    def __init__(
        self,
        name: str,
        *,
        kind: str = "",
        short: str = "",
        examples: Sequence[str] = (),
        params: Sequence[click.Parameter] = (),
        **rest: Any,
    ) -> None:
        super().__init__(name, params=[*params, _help_all()], context_settings=_SETTINGS, **rest)
        self.kind, self.short, self.examples = kind, short.split(), examples

    def format_help(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write what it does, the options that matter and examples; or all options."""
        whole = ctx.meta.get(_WHOLE)
        self.format_usage(ctx, formatter)
        with formatter.indentation():
            for paragraph in (self.help or "").split("\n\n")[: None if whole else 1]:
                formatter.write_paragraph()
                formatter.write_text(" ".join(paragraph.split()))
        sections: dict[str, dict[str, tuple[str, str]]] = {}
        for parameter in self.get_params(ctx):
            record = parameter.get_help_record(ctx)
            if record is not None:
                panel = getattr(parameter, "panel", OPTIONS_PANEL)  # Click's --help has none
                name = next((each for each in parameter.opts if each.startswith("--")), record[0])
                sections.setdefault(panel, {})[name] = record
        if whole:
            for title in sorted(sections, key=lambda title: title == OPTIONS_PANEL):
                with formatter.section(title):
                    formatter.write_dl([*sections[title].values()])
        else:
            known = {name: row for rows in sections.values() for name, row in rows.items()}
            names = [*sections.get(Argument.panel, ()), *self.short]
            with formatter.section(OPTIONS_PANEL):
                formatter.write_dl([known[name] for name in names])
        with formatter.section("Examples"):
            formatter.write("".join(f"  {example}\n" for example in self.examples))
        if not whole:
            formatter.write(f"\nAll options: {ctx.command_path} {_WHOLE}\n")


def taking_values(params: Sequence[click.Parameter]) -> Iterator[str]:
    """Every option that takes the word behind it, whatever that looks like."""
    for each in params:
        if isinstance(each, click.Option) and not each.is_flag:
            yield from each.opts


class Group(click.Group):
    """A word with commands below it."""

    def __init__(
        self, name: str, *, kind: str = "", params: Sequence[click.Parameter] = (), **rest: Any
    ) -> None:
        super().__init__(
            name,
            params=[*params, _help_all()],
            context_settings=_SETTINGS,
            subcommand_metavar="COMMAND [ARGS]...",
            no_args_is_help=False,
            **rest,
        )
        self.kind = kind

    def list_commands(self, ctx: click.Context) -> list[str]:
        """The commands' names, in the order of the help."""
        del ctx
        return list(self.commands)

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """The command that is meant."""
        names = self.list_commands(ctx)
        if args[0] in names or args[0].startswith("-") or ctx.resilient_parsing:
            return super().resolve_command(ctx, args)
        meant = did_you_mean(args[0], names, most=3)
        raise click.UsageError(f"No such command {args[0]!r}. {meant}".rstrip(), ctx)

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write its own options, and the commands with their summaries by kind."""
        whole = ctx.meta.get(_WHOLE)
        rows = [
            record
            for parameter in self.get_params(ctx)
            if whole or getattr(parameter, "panel", OPTIONS_PANEL) == OPTIONS_PANEL
            if (record := parameter.get_help_record(ctx)) is not None
        ]
        if whole or ctx.parent is not None:  # the commands are what a stranger looks for
            with formatter.section(OPTIONS_PANEL):
                formatter.write_dl(rows)
        kinds: dict[str, list[tuple[str, str]]] = {}
        for name in self.list_commands(ctx):
            below = self.get_command(ctx, name)
            if isinstance(below, Command | Group):
                row = (name, (below.help or "").partition("\n\n")[0])
                kinds.setdefault(below.kind or "Commands", []).append(row)
        for title, commands in kinds.items():
            with formatter.section(title):
                formatter.write_dl(commands)
        more = f"Version, exit codes, completion: {_WHOLE}." if ctx.parent is None else ""
        formatter.write(f"\nHelp on one: {ctx.command_path} COMMAND -h. {more}\n")
        if whole:
            with formatter.section("Exit codes"):
                formatter.write_dl([(str(each.value), each.meaning) for each in ExitCode])


def _in_ascii(error: UnicodeError) -> tuple[str | bytes, int]:
    """An error handler: dlprof's own characters in ASCII, any other as its number."""
    if not isinstance(error, UnicodeEncodeError):
        raise error
    forms = {"µ": "u", "μ": "u", "±": "+/-", "…": "..."}
    text = "".join(forms.get(each, each) for each in error.object[error.start : error.end])
    return text.encode("ascii", "backslashreplace").decode(), error.end


IN_ASCII = "dlprof-in-ascii"
"""Name of the error handler for streams whose encoding lacks a character."""
codecs.register_error(IN_ASCII, _in_ascii)


def silence_stdout() -> None:
    """Drop what is still buffered for a reader that is gone.

    Without it the interpreter flushes once more at its end, fails, and exits with 120.
    """
    try:
        descriptor = sys.stdout.fileno()
    except (OSError, ValueError):
        return
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, descriptor)
    os.close(nowhere)
