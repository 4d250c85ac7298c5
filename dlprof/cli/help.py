"""The help of a command: its options in sections, as plain text.

Typer's own sections come with Rich's Markdown and take 0.2 s to load, more than all the rest of
``dlprof --help``; plain text also stays readable in 60 columns and in a pipe.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from typer.core import TyperCommand

if TYPE_CHECKING:
    # Types of the signature that is overridden; nothing of the private module is used at run time.
    from typer._click import Context, HelpFormatter


class SectionedCommand(TyperCommand):
    """A command whose help shows each ``rich_help_panel`` as a section of its own."""

    def format_options(self, ctx: Context, formatter: HelpFormatter) -> None:
        """Write the arguments and options, grouped, in the order in which they are declared.

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
