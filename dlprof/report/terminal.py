"""A document on a terminal, as wide as that is: the answer last, so that it stays on the screen."""

from __future__ import annotations

import dataclasses
import functools
import itertools
import re
import sys
from collections.abc import Generator, Iterable, Iterator, Mapping, Sequence

from rich.cells import cell_len
from rich.console import Console, ConsoleOptions, RenderResult
from rich.text import Text as Line

from dlprof.report import document as doc
from dlprof.report.text import clean, clean_lines, clean_within, shortened

INDENT = "  "
_GAP = 2
_WIDEST_BAR = 40
_NARROWEST_BAR = 4
_MOST_LINES = 16  # of an answer, so that all of it is seen at once

_ARGUMENT = r"""(?:'[^']*'|"[^"]*"|\\.|\S)+"""
_ARGUMENTS = re.compile(rf"(?:-\S+ (?!-){_ARGUMENT}|{_ARGUMENT}) *")
"""A word of a command, quotes and what is in them whole; an option with its value."""

_EIGHTHS = " ▏▎▍▌▋▊▉"
_STYLES: Mapping[doc.Tone, str] = {
    "": "",
    "strong": "bold",
    "good": "green",
    "warn": "yellow",
    "bad": "bold red",
    "soft": "dim",
    "code": "cyan",
}

_line = functools.partial(Line, no_wrap=True, overflow="ignore")  # a line as it is, however wide


class Screen:
    """Rich renderable: a document."""

    def __init__(self, document: doc.Document, *, verbose: bool = False) -> None:
        self._document = document
        self._verbose = verbose

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        writer = _Writer(console, options)
        if self._verbose:
            details = _Writer(console, options, whole=True)
            for section in self._document.details():
                yield writer.line(doc.Styled(section.title, "strong"))
                yield from details.blocks(section.blocks)
                yield Line()
        brief, beside = self._document.hints
        answer = (*self._document.answer, *(beside if self._verbose else brief))
        tight = list[Line]()  # the same close together, with as many bars as there is room for
        while len(lines := list(writer.blocks(answer))) > _MOST_LINES:
            close = [line for line in lines if line.plain.strip()]
            tight = tight or (close if len(close) <= _MOST_LINES else [])
            spare = [bar.spare for block in answer for bar in _spare(block)]
            if not spare or (tight and max(spare) <= 1):  # rather than without what it is about
                break
            answer = tuple(map(_with_fewer_bars, answer))
        yield from lines if len(lines) <= _MOST_LINES else tight or lines


def rendered(document: doc.Document, console: Console, *, verbose: bool = False) -> str:
    """A document as a console's lines, without the blanks that Rich fills them up with.

    Those to be copied may be longer than a terminal is wide, which folds them by itself.
    """
    with console.capture() as capture:
        console.print(Screen(document, verbose=verbose), crop=False)
    return "\n".join(line.rstrip() for line in capture.get().splitlines())


def plain_text(document: doc.Document, *, width: int, verbose: bool = False) -> str:
    """A document as lines without color."""
    console = Console(width=width, color_system=None, markup=False, highlight=False, emoji=False)
    return rendered(document, console, verbose=verbose)


class _Writer:
    def __init__(self, console: Console, options: ConsoleOptions, *, whole: bool = False) -> None:
        self._console = console
        self._whole = whole
        self._width = options.max_width
        self._ascii = options.ascii_only

    def blocks(self, blocks: Iterable[doc.Block], indent: str = INDENT) -> Iterator[Line]:
        """All blocks, pictures and code apart from what is around them."""
        before: doc.Block | None = None
        for block in blocks:
            if before is not None and _is_apart(before, block):
                yield Line()
            yield from self._block(block, indent)
            before = block

    def _block(self, block: doc.Block, indent: str) -> Iterator[Line]:
        match block:
            case doc.Code():
                style = "green" if block.language == "python" else "cyan"
                for line in _fitted(block, self._width - len(indent)):
                    yield _line(indent + line, style)
            case doc.Table():
                yield from self._table(block, indent)
            case doc.Chart():
                yield from self._chart(block, indent)
            case doc.Card():
                title = [doc.Styled(block.title, "strong")]
                title += [doc.Styled(f"  {block.code}", "soft")] if block.code else []
                title += [doc.Styled(f"  {block.level}", block.tone)] if block.level else []
                yield from self._hanging(indent, tuple(title))
                yield from self.blocks(block.blocks, indent + INDENT)
            case doc.Text() | doc.FactList() | doc.Items():
                for lead, words in _leads(block):
                    yield from self._hanging(indent + lead, words)

    def line(self, words: doc.Words) -> Line:
        """A paragraph before it is wrapped."""
        pieces = ((self._drawn(piece.text), piece.tone) for piece in doc.spans(words))
        return Line.assemble(*((clean_within(text), _STYLES[tone]) for text, tone in pieces))

    def _drawn(self, text: str) -> str:
        """A text of our own with the marks that the terminal has."""
        return text.replace("◀", "<").replace("·", "|") if self._ascii else text

    def _hanging(self, lead: str, words: doc.Words) -> Iterator[Line]:
        room = max(20, self._width - cell_len(lead))
        for part in self.line(words).wrap(self._console, room):
            part.rstrip()
            yield _line(lead).append_text(part)
            lead = " " * cell_len(lead)

    def _table(self, table: doc.Table, indent: str) -> Iterator[Line]:
        """The columns that fit; in details the others below, beside those that name the rows."""
        shown = [column for column in table.columns if column.is_shown]
        names = [column for column in shown if column.keep is None]
        hidden = yield from self._parts(table, list(shown), [], indent)
        # What fits beside all of these nowhere does without the last, a figure that is above.
        if hidden and names[1:]:
            lesser = [column for column in shown if column in (*names[:-1], *hidden)]
            yield from self._parts(table, lesser, names, indent)

    def _parts(
        self, table: doc.Table, left: list[doc.Column], known: list[doc.Column], indent: str
    ) -> Generator[Line, None, list[doc.Column]]:
        """What is ``left``, one part below the other but for what is ``known``; what is hidden."""
        hidden: list[doc.Column] = []
        while True:
            columns = self._fitting(left, self._width - len(indent))
            rest = [column for column in left if column.keep is not None]
            if self._whole and rest and all(column.keep is None for column in columns):
                # One that fits beside those that name the rows nowhere is to hide no other.
                hidden.append(max(rest, key=lambda column: column.keep or 0))
                left.remove(hidden[-1])
                continue
            new = [column for column in columns if column not in known]
            if not new:
                return hidden
            if known:
                yield Line()
            yield from self._rows(columns, table.tones, indent)
            if notes := doc.notes_on(new):
                yield Line()
                yield from self._block(notes, indent)
            known += new
            left = [column for column in left if column.keep is None or column not in known]
            if not self._whole:
                return hidden

    def _rows(
        self, columns: Sequence[doc.Column], tones: Sequence[doc.Tone], indent: str
    ) -> Iterator[Line]:
        widths = [_width(column) for column in columns]
        before = len(indent) + sum(widths[:-1]) + _GAP * (len(widths) - 1)
        # A text at the end goes on below where it doesn't fit; a long name leaves it room for that.
        wraps = columns[-1].left and before + widths[-1] > self._width
        least, columns = 20, list(columns)
        missing = before + min(least, widths[-1]) - self._width
        names = [at for at, column in enumerate(columns[:-1]) if column.left]
        if wraps and missing > 0 and names:
            at = max(names, key=widths.__getitem__)
            most = max(cell_len(columns[at].title), widths[at] - missing)
            short = tuple(shortened(clean(cell), most, cell_len) for cell in columns[at].cells)
            columns[at] = dataclasses.replace(columns[at], cells=short)
            before += most - widths[at]
            widths[at] = most
        head = tuple(column.title for column in columns)
        rows = [head, *zip(*(column.cells for column in columns), strict=True)]
        styles = ["bold", *(_STYLES[tone] for tone in tones or [""] * len(rows[1:]))]
        for row, style in zip(rows, styles, strict=True):
            cells = [
                _aligned(clean(cell), width, left=column.left)
                for cell, width, column in zip(row, widths, columns, strict=True)
            ]
            lead, last = indent + "".join(cell + " " * _GAP for cell in cells[:-1]), Line(cells[-1])
            last.rstrip()
            parts = last.wrap(self._console, max(least, self._width - before)) if wraps else [last]
            for part in parts:
                yield _line((lead + part.plain).rstrip(), style)
                lead = " " * before

    def _fitting(self, columns: Sequence[doc.Column], width: int) -> list[doc.Column]:
        """The columns that say something and fit; numbers are never cut, whole columns go."""
        shown = list(columns)
        while sum(map(_width, shown)) + _GAP * (len(shown) - 1) > width:
            droppable = [column for column in shown if column.keep is not None]
            if not droppable:
                break
            shown.remove(min(droppable, key=lambda column: column.keep or 0))
        return shown

    def _chart(self, chart: doc.Chart, indent: str) -> Iterator[Line]:
        if chart.kind == "lanes":
            yield from self._lanes(chart, indent)
            return
        if not chart.bars:
            return
        most = max(12, self._width // 3)
        labels = [shortened(clean(self._drawn(bar.label)), most, cell_len) for bar in chart.bars]
        figures = [clean(bar.figure) for bar in chart.bars]
        notes = [clean(bar.note) for bar in chart.bars]
        left = max(map(cell_len, (chart.label, *labels)))
        middle = max(map(cell_len, (chart.unit, *figures)))
        room = self._width - len(indent) - left - middle - 2 * _GAP
        room -= chart.kind == "signed"  # for the line between both sides
        # What a longer one says last is left out.
        notes = [_fitting_note(note, room - _NARROWEST_BAR - _GAP) for note in notes]
        behind = max(map(cell_len, notes))
        longest = max(_NARROWEST_BAR, min(_WIDEST_BAR, room - (behind + _GAP if behind else 0)))
        if chart.label or chart.unit:
            head = f"{_aligned(chart.label, left, left=True)}{' ' * _GAP}{chart.unit:>{middle}}"
            if chart.left_out and chart.kind == "bars":  # a comparison says it of its parts
                head += f"{' ' * _GAP}({chart.left_out} more)"
            yield _line((indent + head).rstrip(), "dim")
        for bar, label, figure, note in zip(chart.bars, labels, figures, notes, strict=True):
            line = _line(indent)
            line.append(_aligned(label, left, left=True), _STYLES[bar.tone])
            line.append(f"{' ' * _GAP}{_aligned(figure, middle, left=False)}{' ' * _GAP}")
            self._draw(line, bar, chart, longest)
            if note:
                line.append(" " * _GAP + note, "dim")
            line.rstrip()
            yield line

    def _draw(self, line: Line, bar: doc.Bar, chart: doc.Chart, longest: int) -> None:
        style, share = _STYLES[bar.tone] or "cyan", chart.filled(bar)
        if chart.kind == "share":
            filled = round(longest * share)
            full, empty = ("#", ".") if self._ascii else ("█", "░")
            line.append(full * filled, style).append(empty * (longest - filled), "dim")
        elif chart.kind == "signed":
            half = longest // 2
            drawn = self._bar(half * abs(share), whole=True)
            line.append(f"{drawn if bar.length < 0 else '':>{half}}", "red")
            line.append("|").append(drawn if bar.length > 0 else "", "green")
        else:
            line.append(self._bar(longest * share), style)

    def _lanes(self, chart: doc.Chart, indent: str) -> Iterator[Line]:
        """Pieces one after another; those that are long enough have a bar, drawn to one scale."""
        left = max((cell_len(clean(bar.label)) for bar in chart.bars), default=0)
        longest = max((piece.length for bar in chart.bars for piece in bar.pieces), default=0.0)
        widest = min(_WIDEST_BAR, max(_NARROWEST_BAR, self._width // 5))
        scale = widest / longest if longest > 0 else 0
        mark = "|" if self._ascii else "▏"
        if chart.unit:
            yield _line(indent + chart.unit, "dim")
        for bar in chart.bars:
            lead = indent + _aligned(clean(bar.label), left, left=True) + " " * _GAP
            line, room = _line(lead), self._width
            texts = []
            for piece in bar.pieces:
                drawn = self._bar(piece.length * scale, whole=True)
                text = f"{mark}{drawn} {clean(piece.figure)} ".replace("  ", " ")
                texts.append((piece.length, f"{clean(piece.name)} ", text))
            if sum(cell_len(name + text) for _, name, text in texts) > room - len(lead):
                # Of a lane that is longer than a line, the shortest pieces are left out.
                texts = [each for each in texts if each[0] >= 0.02 * bar.length]
            for _, name, text in texts:
                if line.cell_len + cell_len(name + text) > room and line.cell_len > len(lead):
                    line.rstrip()
                    yield line
                    line = _line(" " * cell_len(lead))
                line.append(name).append(text, _STYLES[bar.tone] or "cyan")
            line.rstrip()
            yield line

    def _bar(self, length: float, *, whole: bool = False) -> str:
        """A bar of so many cells, in eighths of a cell where the terminal can show them."""
        if self._ascii:
            return "#" * round(length)
        if whole:
            return "█" * round(length)
        cells, eighths = divmod(round(length * 8), 8)
        return "█" * cells + _EIGHTHS[eighths].strip()


def _fitted(code: doc.Code, width: int) -> Iterator[str]:
    """Lines to copy: one that is too long goes on below, as a shell or Python reads it."""
    end, deeper = (" \\", 2) if code.language == "sh" else ("", 4)
    for line in clean_lines(code.text).splitlines():
        ends = [at for match in _ARGUMENTS.finditer(line) if (at := match.end()) < len(line)]
        if code.language != "sh":  # between the arguments of a call
            commas = (match.end() for match in re.finditer(", (?=.)", line))
            ends = [at for at in commas if code.language == "python" and _is_open(line[:at])]
        elif sys.platform == "win32":  # to whose shells a backslash at the end is an argument
            ends = []
        shown = ""
        for begin, until in itertools.pairwise([0, *ends, len(line)]):
            piece = line[begin:until]
            if shown and cell_len(line) > width < cell_len(shown + piece.rstrip() + end):
                yield shown.rstrip() + end
                shown = " " * (len(line) - len(line.lstrip()) + deeper)
            shown += piece
        yield shown


def _is_open(code: str) -> bool:
    """Whether a line may end behind this: within brackets, and in no text and no comment."""
    opened = sum((each in "([{") - (each in ")]}") for each in code)
    return opened > 0 and not any(("#" in code, code.count('"') % 2, code.count("'") % 2))


def _leads(block: doc.Text | doc.FactList | doc.Items) -> Iterator[doc.Row]:
    match block:
        case doc.Text():
            yield "", block.words
        case doc.Items():
            yield from (("- ", words) for words in block.items)
        case doc.FactList():
            labels = [clean(label) for label, _ in block.rows]
            width = max(map(cell_len, labels)) + _GAP
            for label, (_, words) in zip(labels, block.rows, strict=True):
                yield _aligned(label, width, left=True), words


def _is_apart(before: doc.Block, block: doc.Block) -> bool:
    apart = (doc.Chart, doc.Table, doc.Card)
    if isinstance(before, doc.Text | doc.Code) and isinstance(block, doc.Text | doc.Code):
        return False  # a command and what introduces it
    return isinstance(before, apart) or isinstance(block, (*apart, doc.Code))


def _fitting_note(note: str, most: int) -> str:
    while note and cell_len(note) > most:
        note = note.rpartition(", ")[0]
    return note


def _spare(block: doc.Block) -> list[doc.Bar]:
    return [bar for bar in block.bars if bar.spare] if isinstance(block, doc.Chart) else []


def _with_fewer_bars(block: doc.Block) -> doc.Block:
    """A chart without one of its spare bars, of which nothing is said or which is in the middle.

    What an answer is about becomes one line in the end, and so do two of which one would go: one
    alone compares nothing.
    """
    spare = _spare(block)
    if not spare or not isinstance(block, doc.Chart):
        return block
    soonest = [bar for bar in spare if bar.spare == max(bar.spare for bar in spare)]
    if soonest[0].spare == 1 or len(block.bars) <= 2:
        what = " by ".join(filter(None, (block.unit, block.label)))
        rates = ", ".join(f"{bar.label} {bar.figure}" for bar in block.bars)
        return doc.Text(f"{what}: {rates}" if what else rates)
    dropped = next((bar for bar in soonest if not bar.note), soonest[len(soonest) // 2])
    bars = tuple(bar for bar in block.bars if bar is not dropped)
    return dataclasses.replace(block, bars=bars, left_out=block.left_out + 1)


def _width(column: doc.Column) -> int:
    return max(cell_len(clean(text)) for text in (column.title, *column.cells))


def _aligned(text: str, width: int, *, left: bool) -> str:
    blanks = " " * (width - cell_len(text))
    return text + blanks if left else blanks + text
