"""What people see, apart from how it is shown: one model that a screen, a page and Markdown share.

A document holds an answer and the sections behind it. Whoever fills it has computed all figures
before; whoever writes it (``terminal``, ``page``, ``markdown``) only draws. Texts may come from
anywhere: the writers clean and escape every one of them, so that nothing in it acts.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Literal

from dlprof.records import Estimate
from dlprof.records.record import record
from dlprof.units import MISSING

Tone = Literal["", "strong", "good", "warn", "bad", "soft", "code"]
"""How a text stands out: ``good``, ``warn`` and ``bad`` judge, ``soft`` steps back."""


@record(frozen=True, slots=True)
class Styled:
    """A piece of a line with a tone of its own."""

    text: str
    tone: Tone = ""
    link: str = ""  # where it leads on a page and in Markdown; empty where it leads nowhere


Words = str | Styled | tuple[str | Styled, ...]  # a line of text, or several pieces of one

Row = tuple[str, Words]  # a short label, and the line behind it


def spans(words: Words) -> tuple[Styled, ...]:
    """The pieces of a line."""
    pieces = words if isinstance(words, tuple) else (words,)
    return tuple(each if isinstance(each, Styled) else Styled(each) for each in pieces)


@record(frozen=True, slots=True)
class Text:
    """A paragraph."""

    words: Words


@record(frozen=True, slots=True)
class FactList:
    """Short labels, each with a line behind it."""

    rows: tuple[Row, ...]


@record(frozen=True, slots=True)
class Items:
    """A list."""

    items: tuple[Words, ...]


@record(frozen=True, slots=True)
class Code:
    """Lines to copy, never wrapped; the language is ``python``, ``sh`` or ``toml``."""

    text: str
    language: str = "python"


@record(frozen=True, slots=True)
class Column:
    """One column of a table."""

    title: str
    cells: Sequence[str]  # its texts, one a row
    # How long it stays where columns have to go: the lowest goes first; ``None`` stays.
    keep: int | None = None
    left: bool = False  # whether it is text, aligned left
    # Where its cells lead on a page, one a row; empty where they lead nowhere.
    links: Sequence[str] = ()
    note: str = ""  # what it means, said behind its title below the table as long as it is shown

    @property
    def is_shown(self) -> bool:
        """Whether it says something: no view has a column of nothing."""
        return any(cell not in {"", MISSING} for cell in self.cells)


def notes_on(columns: Iterable[Column]) -> Items | None:
    """What columns mean, as far as that is said."""
    return items(f"{each.title}: {each.note}".lstrip(": ") for each in columns if each.note)


@record(frozen=True, slots=True)
class Table:
    """Rows of short texts, all columns of the same length; a tone for each row, or none at all."""

    columns: tuple[Column, ...]
    tones: tuple[Tone, ...] = ()


@record(frozen=True, slots=True)
class Piece:
    """A length of a bar, below 0 to the left; its name and figure where a bar has several."""

    length: float
    name: str = ""
    figure: str = ""
    begin: float | None = None  # where it is not behind the one before it


@record(frozen=True, slots=True, kw_only=True)
class Bar:
    """One bar of a chart."""

    label: str
    pieces: tuple[Piece, ...]  # its lengths, one after another
    figure: str = ""  # the whole length in words
    low: float | None = None  # lower end of its 95 % interval
    high: float | None = None
    note: str = ""  # what is behind it
    tone: Tone = ""
    # How soon a screen that has no room for all leaves it out, the highest first: 0 never, 1 after
    # blank lines, where all that are left become one line.
    spare: int = 0

    @property
    def length(self) -> float:
        """How far its pieces reach."""
        ends = [each.begin + each.length for each in self.pieces if each.begin is not None]
        return max(ends) if ends else sum(each.length for each in self.pieces)

    @classmethod
    def of(
        cls, label: str, length: Estimate | float, figure: str, note: str = "", tone: Tone = ""
    ) -> Bar:
        """A bar of one piece, with the interval of what it shows."""
        found = length if isinstance(length, Estimate) else Estimate(value=length)
        return cls(
            label=label,
            pieces=(Piece(found.value),),
            figure=figure,
            low=found.low,
            high=found.high,
            note=note,
            tone=tone,
        )


ChartKind = Literal["bars", "signed", "share", "lanes", "timeline"]


@record(frozen=True, slots=True, kw_only=True)
class Chart:
    """Horizontal bars."""

    bars: tuple[Bar, ...]
    label: str = ""  # what the labels are
    unit: str = ""  # what the lengths are
    left_out: int = 0  # how many more bars there are than a screen has room for
    # ``bars`` from a common start; ``signed``, to the left and right of 0; ``share``, the first
    # piece of each as a share of all; ``lanes``, pieces one after another, each with its name and
    # figure; ``timeline``, pieces where they begin, in seconds, which only a page draws.
    kind: ChartKind = "bars"

    def filled(self, bar: Bar) -> float:
        """How much of the room for a bar it fills, -1 to 1: of the longest, or of its own whole."""
        part, whole = bar.length, max(abs(each.length) for each in self.bars)
        if self.kind == "share":
            part, whole = bar.pieces[0].length if bar.pieces else 0.0, bar.length
        return part / whole if whole > 0 else 0.0


@record(frozen=True, slots=True)
class Point:
    """A point of a plot; its label is shown where it is pointed at."""

    x: float
    y: Estimate
    label: str
    tone: Tone = ""


@record(frozen=True, slots=True)
class Series:
    """Points of one kind, under their name in the legend; a line connects them in their order."""

    name: str
    points: tuple[Point, ...]
    line: bool = False


@record(frozen=True, slots=True, kw_only=True)
class Plot:
    """Points over two axes with their units, which only a page draws.

    A diagonal shows where ``x`` and ``y`` are equal.
    """

    title: str
    x: str
    y: str
    series: tuple[Series, ...]
    diagonal: bool = False


@record(frozen=True, slots=True, kw_only=True)
class Card:
    """One thing of several alike, such as a finding: how grave it is, in a word and as a tone."""

    title: str
    code: str = ""
    level: str = ""
    tone: Tone = ""
    blocks: tuple[Block, ...] = ()


Block = Text | FactList | Items | Code | Table | Chart | Card | Plot


Hints = tuple[tuple[Block, ...], tuple[Block, ...]]  # those of an answer alone, and of the details


@record(frozen=True, slots=True)
class Section:
    """A heading and what is below it."""

    title: str
    blocks: tuple[Block, ...]


@record(frozen=True, slots=True, kw_only=True)
class Document:
    """What a command has to say."""

    title: str  # what it is about; a page's heading
    # What to do, how much that brings, how sure it is: complete, and short.
    answer: tuple[Block, ...]
    # What only a terminal shows, below the answer: where the rest is, what to run next.
    hints: Hints = ((), ())
    # Fills all the rest: above the answer on a terminal where it is asked for, below it on a page.
    details: Callable[[], Iterable[Section]] = tuple
    pictures: tuple[Section, ...] = ()  # what only a page shows, between the two
    appendix: tuple[Section, ...] = ()  # what only a page shows, below all


def chart(
    bars: Iterable[Bar], label: str = "", unit: str = "", kind: ChartKind = "bars"
) -> Chart | None:
    """A chart of the bars that there are; ``None`` without any."""
    found = tuple(bars)
    return Chart(bars=found, label=label, unit=unit, kind=kind) if found else None


def spare_between(bars: Sequence[Bar]) -> list[Bar]:
    """Bars of which the first and the last stay where a screen has no room; the later go sooner."""
    found = list(bars)
    found[1:-1] = [dataclasses.replace(bar, spare=n) for n, bar in enumerate(found[1:-1], 3)]
    return found


def hint(details: str, then: str = "", command: str = "") -> Hints:
    """How the details are shown, which say nothing of it, and what a command below it is for."""
    alone = then[:1].upper() + then[1:]
    said = f"{details} · {then}" if details and then else details or alone
    code = (Code(command, "sh"),) if command else ()
    beside = (Text(Styled(alone, "soft")), *code) if then else ()
    return (Text(Styled(said, "soft")), *code), beside


def known(*blocks: Block | None) -> tuple[Block, ...]:
    """The blocks that there are."""
    return tuple(block for block in blocks if block is not None)


def section(title: str, *blocks: Block | None) -> Iterator[Section]:
    """A section of the blocks that there are; none without any."""
    if found := known(*blocks):
        yield Section(title, found)


def items(found: Iterable[Words]) -> Items | None:
    """A list; ``None`` without items."""
    known = tuple(found)
    return Items(known) if known else None


def facts(rows: Iterable[Row]) -> FactList | None:
    """Labels and lines, those without a figure left out; ``None`` without any."""
    known = tuple(row for row in rows if row[1] != MISSING)
    return FactList(known) if known else None
