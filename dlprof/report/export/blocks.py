"""What a report is made of."""

from __future__ import annotations

import dataclasses


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Text:
    """A paragraph."""

    text: str


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Bullets:
    """A list."""

    items: tuple[str, ...]


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Code:
    """Lines to copy."""

    lines: tuple[str, ...]


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Table:
    """A table.

    Attributes:
        head: Titles of the columns; empty for pairs of a name and a value.
        rows: Cells, as many per row as there are columns.
        texts: How many columns from the left are text, the others figures.
    """

    head: tuple[str, ...] = ()
    rows: tuple[tuple[str, ...], ...]
    texts: int = 1


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Bar:
    """One bar of a chart.

    Attributes:
        label: What stands before it.
        pieces: Its lengths one after another, by name; of one length the name is empty.
        low: Lower end of its interval.
        high: Upper end.
        figure: What stands behind it.
        marked: Whether it stands out.
    """

    label: str
    pieces: tuple[tuple[str, float], ...]
    low: float | None = None
    high: float | None = None
    figure: str
    marked: bool = False


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Chart:
    """Horizontal bars; only where pictures can be shown, as a table tells the same.

    Attributes:
        title: What the lengths are, with their unit.
        bars: From top to bottom.
    """

    title: str
    bars: tuple[Bar, ...]


Block = Text | Bullets | Code | Table | Chart


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Section:
    """A heading and what stands under it."""

    title: str
    blocks: tuple[Block, ...]
