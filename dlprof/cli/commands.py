"""How commands parse and explain themselves: Typer, without what makes it slow to start.

Typer's own help in sections comes with Rich's Markdown, and every option that is given or not is
passed through pydantic; together they take longer than all the rest of ``dlprof recommend``.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from typer.core import TyperCommand, TyperGroup

if TYPE_CHECKING:
    # Types of the signatures that are overridden; the private module is not used at run time.
    from typer._click import Context, HelpFormatter, Parameter


class Group(TyperGroup):
    """The program itself, taking texts as they are."""

    def get_params(self, ctx: Context) -> list[Parameter]:
        """The parameters, conversion made light.

        Args:
            ctx: The parser's context.
        """
        return _lightened(super().get_params(ctx))


class Command(TyperCommand):
    """A command that takes texts as they are and shows its options in sections of plain text."""

    def get_params(self, ctx: Context) -> list[Parameter]:
        """The parameters, conversion made light.

        Args:
            ctx: The parser's context.
        """
        return _lightened(super().get_params(ctx))

    def format_options(self, ctx: Context, formatter: HelpFormatter) -> None:
        """Write the arguments and options, each ``rich_help_panel`` as a section of its own.

        Args:
            ctx: The parser's context.
            formatter: Collects the text.
        """
        sections: dict[str, list[tuple[str, str]]] = {}
        for parameter in self.get_params(ctx):
            row = parameter.get_help_record(ctx)
            if row is not None:
                title = getattr(parameter, "rich_help_panel", None) or "Options"
                if parameter.param_type_name == "argument":
                    title = "Arguments"
                sections.setdefault(title, []).append(row)
        for title, rows in sections.items():
            with formatter.section(title):
                formatter.write_dl(rows)


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
        return self._typers_own().coerce(value, param=param, ctx=ctx)
