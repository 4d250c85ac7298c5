"""The final table of a sweep: one line per configuration, as many columns as there is room for."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence

from rich.cells import cell_len
from rich.console import Console, ConsoleOptions, RenderResult
from rich.table import Table
from rich.text import Text

from dlprof.report.labels import cores_text, interval_text, percent_text, ratio_text
from dlprof.report.summary import FAILED, PICK, TIE, Row
from dlprof.report.text import clean
from dlprof.units import MISSING, format_bytes, format_duration, format_rate

_GAP = 2  # blanks between columns
_NARROWEST_GAP = 1
_STYLES = {PICK: "bold green", TIE: "green", FAILED: "red"}


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Column:
    """One column of the table.

    Attributes:
        title: Its heading.
        text: What a row shows there.
        keep: How long it stays where columns have to go: the lowest goes first; ``None`` stays
            always.
        left: Whether it is text, aligned left.
    """

    title: str
    text: Callable[[Row], str]
    keep: int | None = None
    left: bool = False


def _switch(value: object) -> str:
    return "yes" if value else "no"


def _optional(value: object | None) -> str:
    return MISSING if value is None else clean(str(value))


def _cores(row: Row) -> str:
    if row.own_cores is None and row.available_cores is None:
        return MISSING
    return f"{cores_text(row.own_cores)}/{cores_text(row.available_cores)}"


_SETTINGS: tuple[tuple[str, Column], ...] = (
    ("num_workers", Column(title="workers", text=lambda row: str(row.config.num_workers))),
    (
        "prefetch_factor",
        Column(title="prefetch", text=lambda row: _optional(row.config.prefetch_factor)),
    ),
    ("pin_memory", Column(title="pin", text=lambda row: _switch(row.config.pin_memory))),
    (
        "persistent_workers",
        Column(title="persist", text=lambda row: _switch(row.config.persistent_workers)),
    ),
    ("batch_size", Column(title="batch", text=lambda row: _optional(row.config.batch_size))),
    ("in_order", Column(title="in order", text=lambda row: _switch(row.config.in_order))),
    ("start_method", Column(title="start", text=lambda row: _optional(row.config.start_method))),
    (
        "sharing_strategy",
        Column(title="sharing", text=lambda row: _optional(row.config.sharing_strategy)),
    ),
    (
        "worker_threads",
        Column(title="threads", text=lambda row: _optional(row.config.worker_threads)),
    ),
)

# In the order of the screen; ``keep`` says in which order they go: cores, shm, trials, turnover,
# memory, start-up, noise, relative, wait, the interval and at last what was predicted.
_FIGURES: tuple[Column, ...] = (
    Column(title="samples/s", text=lambda row: format_rate(row.rate.value if row.rate else None)),
    Column(title="95 %", text=lambda row: interval_text(row.rate), keep=10),
    Column(
        title="predicted",
        text=lambda row: format_rate(row.predicted.value if row.predicted else None),
        keep=11,
    ),
    Column(
        title="relative",
        text=lambda row: ratio_text(row.relative.value if row.relative else None),
        keep=8,
    ),
    Column(title="wait", text=lambda row: percent_text(row.wait_fraction), keep=9),
    Column(title="copy", text=lambda row: format_duration(row.copy_s), keep=9),
    Column(title="start-up", text=lambda row: format_duration(row.startup_s), keep=6),
    Column(title="turnover", text=lambda row: format_duration(row.epoch_turnover_s), keep=4),
    Column(title="memory", text=lambda row: format_bytes(row.pss_bytes), keep=5),
    Column(title="shm", text=lambda row: format_bytes(row.shm_bytes), keep=2),
    Column(
        title="cores used/had",
        text=_cores,
        keep=1,
    ),
    Column(title="trials", text=lambda row: str(row.trials), keep=3),
    Column(title="", text=lambda row: "noisy" if row.noisy else "", keep=7, left=True),
)
_EMPTY = frozenset({"", MISSING})
_ALWAYS = frozenset({"num_workers", "prefetch_factor"})


def columns_for(rows: Sequence[Row], width: int) -> tuple[Column, ...]:
    """The columns that say something about these rows and fit into the width.

    Args:
        rows: What the table shows.
        width: Of the terminal, in cells.

    Returns:
        Settings that differ between the rows, then figures. Numbers are never cut or wrapped:
        whole columns go instead.
    """
    settings = [
        column
        for name, column in _SETTINGS
        if name in _ALWAYS or len({getattr(row.config, name) for row in rows}) > 1
    ]
    figures = [
        column
        for column in _FIGURES
        if column.keep is None or any(column.text(row) not in _EMPTY for row in rows)
    ]
    columns = [Column(title="", text=lambda row: row.role, left=True), *settings, *figures]
    while _width(columns, rows) > width:
        droppable = [column for column in columns if column.keep is not None]
        if not droppable:
            break
        columns.remove(min(droppable, key=lambda column: column.keep or 0))
    return tuple(columns)


def _width(columns: Sequence[Column], rows: Sequence[Row], gap: int = _NARROWEST_GAP) -> int:
    return sum(_column_width(column, rows) for column in columns) + gap * (len(columns) - 1)


def _column_width(column: Column, rows: Sequence[Row]) -> int:
    return max(cell_len(text) for text in (column.title, *map(column.text, rows)))


class RunTable:
    """Rich renderable: the configurations of a run, fastest first."""

    def __init__(self, rows: Sequence[Row]) -> None:
        """Make the table.

        Args:
            rows: From ``summarise``.
        """
        self._rows = rows

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        columns = columns_for(self._rows, options.max_width)
        roomy = _width(columns, self._rows, _GAP) <= options.max_width
        gap = _GAP if roomy else _NARROWEST_GAP
        table = Table(box=None, pad_edge=False, padding=(0, gap, 0, 0), header_style="bold")
        for column in columns:
            table.add_column(
                Text(column.title), justify="left" if column.left else "right", no_wrap=True
            )
        for row in self._rows:
            cells = [Text(column.text(row)) for column in columns]
            table.add_row(*cells, style=_STYLES.get(row.role, ""))
        yield table
