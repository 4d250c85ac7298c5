"""A table of short texts that leaves out whole columns where a terminal is narrow."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from rich.cells import cell_len
from rich.console import Console, ConsoleOptions, RenderResult
from rich.table import Table
from rich.text import Text

from dlprof.report.layout import INDENT

_GAP = 2


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class TextColumn:
    """One column.

    Attributes:
        title: Its heading.
        cells: Its texts, one a row.
        keep: How long it stays where columns have to go: the lowest goes first; ``None`` stays.
        left: Whether it is aligned left.
    """

    title: str
    cells: Sequence[str]
    keep: int | None = None
    left: bool = False

    @property
    def width(self) -> int:
        """Cells of the terminal that it takes."""
        return max(cell_len(text) for text in (self.title, *self.cells))


class FittingTable:
    """Rich renderable: as many of the columns as there is room for, none of them cut."""

    def __init__(self, columns: Sequence[TextColumn]) -> None:
        """Make the table.

        Args:
            columns: In their order, all of the same number of rows.
        """
        self._columns = columns

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        columns = fitting(self._columns, options.max_width - len(INDENT))
        table = Table(box=None, pad_edge=False, padding=(0, _GAP, 0, 0), header_style="bold")
        table.add_column(Text(), width=0, no_wrap=True)
        for column in columns:
            table.add_column(
                Text(column.title), justify="left" if column.left else "right", no_wrap=True
            )
        for cells in zip(*(column.cells for column in columns), strict=True):
            table.add_row(Text(), *map(Text, cells))
        yield table


def fitting(columns: Sequence[TextColumn], width: int) -> list[TextColumn]:
    """The columns that say something and fit into a width."""
    shown = [c for c in columns if c.keep is None or any(cell not in {"", "-"} for cell in c.cells)]
    while sum(column.width for column in shown) + _GAP * (len(shown) - 1) > width:
        droppable = [column for column in shown if column.keep is not None]
        if not droppable:
            break
        shown.remove(min(droppable, key=lambda column: column.keep or 0))
    return shown
