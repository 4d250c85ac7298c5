"""How commands parse and explain themselves: Typer, without what makes it slow to start.

Typer's own help in sections comes with Rich's Markdown, and every option that is given or not is
passed through pydantic; together they take longer than all the rest of ``dlprof recommend``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from typer.core import TyperCommand, TyperGroup

from dlprof.cli.topics import EXIT_CODES, TOPICS

if TYPE_CHECKING:
    # Types of the signatures that are overridden; the private module is not used at run time.
    from typer._click import Context, HelpFormatter, Parameter


_WHOLE = "--help-all"


class Group(TyperGroup):
    """The program itself, taking texts as they are."""

    def get_params(self, ctx: Context) -> list[Parameter]:
        """The parameters, conversion made light.

        Args:
            ctx: The parser's context.
        """
        return _lightened(super().get_params(ctx))

    def parse_args(self, ctx: Context, args: list[str]) -> list[str]:
        """Parse, ``--help-all`` among the options.

        Args:
            ctx: The parser's context.
            args: The words behind the program's name.
        """
        return super().parse_args(ctx, _asked_for_all(ctx, args))

    def format_options(self, ctx: Context, formatter: HelpFormatter) -> None:
        """Write the program's own options, those of completion only where all are wanted.

        Args:
            ctx: The parser's context.
            formatter: Collects the text.
        """
        rows = [row for p in self.get_params(ctx) if (row := p.get_help_record(ctx)) is not None]
        whole = bool(ctx.meta.get(_WHOLE))
        with formatter.section("Options"):
            formatter.write_dl([row for row in rows if whole or "completion" not in row[0]])
        self.format_commands(ctx, formatter)

    def format_commands(self, ctx: Context, formatter: HelpFormatter) -> None:
        """Write the commands with their summaries, in groups.

        Args:
            ctx: The parser's context.
            formatter: Collects the text.
        """
        prefix = "" if ctx.parent is None else f"{ctx.info_name} "
        groups: dict[str, list[tuple[str, str]]] = {}
        for name in self.list_commands(ctx):
            topic = TOPICS[f"{prefix}{name}"]
            groups.setdefault("Commands" if prefix else topic.group, []).append(
                (name, topic.summary)
            )
        for title, rows in groups.items():
            with formatter.section(title):
                formatter.write_dl(rows)
        formatter.write(f"\nHelp on one: {ctx.command_path} COMMAND -h. ")
        formatter.write(f"Exit codes, completion: {_WHOLE}.\n" if not prefix else "\n")
        if ctx.meta.get(_WHOLE):
            with formatter.section("Exit codes"):
                formatter.write_dl(EXIT_CODES)


class Command(TyperCommand):
    """A command that takes texts as they are, with a short help and a whole one."""

    def get_params(self, ctx: Context) -> list[Parameter]:
        """The parameters, conversion made light.

        Args:
            ctx: The parser's context.
        """
        return _lightened(super().get_params(ctx))

    def parse_args(self, ctx: Context, args: list[str]) -> list[str]:
        """Parse, ``--help-all`` among the options.

        Args:
            ctx: The parser's context.
            args: The words behind the command's name.
        """
        return super().parse_args(ctx, _asked_for_all(ctx, args))

    def collect_usage_pieces(self, ctx: Context) -> list[str]:
        """The words behind the command's name, as people write them.

        Args:
            ctx: The parser's context.
        """
        named = [p for p in self.get_params(ctx) if p.param_type_name == "argument"]
        words = [_word(p) if p.required else f"[{_word(p)}]" for p in named]
        return ["[OPTIONS]", *words]

    def format_help(self, ctx: Context, formatter: HelpFormatter) -> None:
        """Write what it does, the options that matter and examples; or all options.

        Args:
            ctx: The parser's context.
            formatter: Collects the text.
        """
        name = ctx.command_path.split(maxsplit=1)[-1]
        topic, whole = TOPICS[name], bool(ctx.meta.get(_WHOLE))
        self.format_usage(ctx, formatter)
        formatter.write_paragraph()
        with formatter.indentation():
            formatter.write_text(topic.summary)
            said = (self.help or "").partition("\f")[0].strip().split("\n\n")[1:]
            for paragraph in said if whole else ():
                formatter.write_paragraph()
                formatter.write_text(" ".join(paragraph.split()))
        rows = list(self._rows(ctx))
        if whole:
            self._write_all(formatter, rows)
        else:
            known = {option: row for option, _, row in rows}
            words = [row for _, title, row in rows if title == "Arguments" and row[1]]
            with formatter.section("Options"):
                formatter.write_dl([*words, *(known[each] for each in topic.options)])
        with formatter.section("Examples"):
            formatter.write("".join(f"  {example}\n" for example in topic.examples))
        if not whole:
            formatter.write(f"\nAll options: {ctx.command_path} {_WHOLE}\n")

    def _rows(self, ctx: Context) -> Iterator[tuple[str, str, tuple[str, str]]]:
        """The longest name of each parameter, its section, and its line of the help."""
        for parameter in self.get_params(ctx):
            row = parameter.get_help_record(ctx)
            if row is None:
                continue
            if parameter.param_type_name == "argument":
                word = _word(parameter)
                yield word, "Arguments", (word, row[1].removesuffix("  [required]"))
                continue
            title = getattr(parameter, "rich_help_panel", None) or "Options"
            name, *aliases = [each for each in parameter.opts if each.startswith("--")]
            label = row[0]
            for alias in aliases:  # earlier names work, and are not shown
                label = label.replace(f", {alias}", "")
            yield name, title, (label, row[1])

    def _write_all(
        self, formatter: HelpFormatter, rows: Sequence[tuple[str, str, tuple[str, str]]]
    ) -> None:
        sections: dict[str, list[tuple[str, str]]] = {}
        for _, title, row in rows:
            sections.setdefault(title, []).append(row)
        for title in sorted(sections, key=lambda title: title == "Options"):
            with formatter.section(title):
                formatter.write_dl(sections[title])


def _word(argument: Parameter) -> str:
    """What stands for an argument, as people write it."""
    return str(getattr(argument, "metavar", None) or (argument.name or "").upper())


def _asked_for_all(ctx: Context, args: list[str]) -> list[str]:
    """The words with the whole help asked for by the name that the parser knows."""
    ours = args[: args.index("--")] if "--" in args else args
    if _WHOLE not in ours:
        return args
    ctx.meta[_WHOLE] = True
    place = ours.index(_WHOLE)
    return [*args[:place], "--help", *args[place + 1 :]]


class ScriptCommand(Command):
    """A command that runs a script: what follows the script or ``-m MODULE`` is the script's."""

    def parse_args(self, ctx: Context, args: list[str]) -> list[str]:
        """Parse, options ending where the script's own words begin.

        Args:
            ctx: The parser's context.
            args: The words behind the command's name.
        """
        ctx.allow_interspersed_args = False
        taking_values = {
            name
            for parameter in self.get_params(ctx)
            if not getattr(parameter, "is_flag", False)
            for name in parameter.opts
            if parameter.param_type_name == "option"
        }
        return super().parse_args(ctx, _end_options_at_module(args, taking_values))

    def collect_usage_pieces(self, ctx: Context) -> list[str]:
        """The words behind the command's name, as people write them.

        Args:
            ctx: The parser's context.
        """
        del ctx
        return ["[OPTIONS]", "SCRIPT [ARGS]..."]


def _end_options_at_module(args: list[str], taking_values: set[str]) -> list[str]:
    """The words with ``--`` behind ``-m MODULE``, where that is the first to name a program."""
    place = 0
    while place < len(args) and args[place].startswith("-") and args[place] != "--":
        word = args[place]
        place += 2 if word in taking_values else 1
        if word.startswith(("-m", "--module")):
            named = place <= len(args)  # else the parser says that the module is missing
            return [*args[:place], "--", *args[place:]] if named else args
    return args


def _lightened(parameters: list[Parameter]) -> list[Parameter]:
    for parameter in parameters:
        typers_own = getattr(parameter, "get_runtime_param", None)
        # Before 0.29 Typer has no such method, and no pydantic behind it.
        if typers_own is not None and not isinstance(typers_own, _Conversion):
            parameter.__dict__["get_runtime_param"] = _Conversion(parameter, typers_own)
    return parameters


class _Conversion:
    """Stands in for Typer's conversion of one parameter and needs pydantic only for numbers."""

    def __init__(self, parameter: Any, typers_own: Callable[[], Any]) -> None:
        self._annotation = parameter.type_descriptor.annotation
        self._typers_own = typers_own

    def __call__(self) -> _Conversion:
        return self

    def coerce(self, value: Any, *, param: Any, ctx: Context) -> Any:
        """The value for the command's function."""
        if value is None or self._annotation is str:
            return value
        if self._annotation is Path:
            return Path(value)
        if self._annotation == list[str]:
            return list(value)
        if self._annotation == list[Path]:
            return [Path(each) for each in value]
        return self._typers_own().coerce(value, param=param, ctx=ctx)
