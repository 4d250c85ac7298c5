"""The writer for terminals: bars, tables and texts of any width and encoding."""

from __future__ import annotations

import ast
import dataclasses
import io
import shlex
from typing import Any

import pytest
from golden import drawn
from rich.console import Console

from dlprof.report.document import (
    Bar,
    Block,
    Card,
    Chart,
    Code,
    Column,
    Document,
    FactList,
    Items,
    Piece,
    Section,
    Styled,
    Table,
    Text,
    hint,
)
from dlprof.report.terminal import Screen, plain_text

HOSTILE = "\x1b[31mred\x1b]0;title\x07[bold]loud[/bold]\u202e"


def shown(*blocks: Block, width: int = 40, encoding: str = "utf-8") -> str:
    return drawn(Document(title="", answer=blocks), width, encoding)


def bars(*lengths: float, **kind: Any) -> Chart:
    made = (Bar(label=str(i), pieces=(Piece(n),), figure=f"{n:g}") for i, n in enumerate(lengths))
    return Chart(bars=tuple(made), **kind)


def test_the_longest_bar_fills_the_room_and_eighths_are_drawn() -> None:
    assert shown(bars(10, 80), width=20).splitlines() == ["  0  10  █▍", "  1  80  ███████████"]


def test_ascii_where_the_encoding_has_no_blocks() -> None:
    text = shown(bars(10, 40), bars(1, -1, kind="signed"), encoding="ascii")
    assert "####" in text
    share = Bar(label="x", pieces=(Piece(1), Piece(3)))
    assert "####" in shown(Chart(bars=(share,), kind="share"), encoding="ascii")


def test_what_slows_leads_to_the_left() -> None:
    left, right = shown(bars(-2, 1, kind="signed")).splitlines()
    assert left.index("█") < left.index("|")
    assert right.index("█") > right.index("|")
    for width in range(20, 60):
        assert max(map(len, shown(bars(-2, 2, kind="signed"), width=width).splitlines())) <= width


def test_of_a_note_that_does_not_fit_what_is_said_last_goes() -> None:
    bars = [
        Bar(label="2", pieces=(Piece(1),), figure="100", note="predicted, 95% CI 50-200"),
        Bar(label="4", pieces=(Piece(2),), figure="200", note="perhaps as fast"),
    ]
    text = shown(Chart(bars=tuple(bars)), width=34)
    assert "predicted" in text
    assert "95% CI" not in text
    assert "perhaps as fast" in text


def test_of_a_long_list_whole_entries_are_left_out() -> None:
    bar = Bar(label="14 prefetch 2, not persistent, pinned", pieces=(Piece(1),), figure="9")
    for width, says in (
        (60, "14 ..., pinned"),
        (76, "14 ..., pinned"),
        (90, "14 ..., not persistent"),
    ):
        assert says in shown(Chart(bars=(bar,)), width=width)


def test_of_a_long_label_its_number_and_its_end_are_shown() -> None:
    labels = ["16 prefetch 8, not persistent", "/a/very/long/way/to/a/place.py:12"]
    made = tuple(Bar(label=each, pieces=(Piece(1),)) for each in labels)
    text = shown(Chart(bars=made), width=60)
    assert "  16 ...not persistent" in text
    assert "  .../to/a/place.py:12" in text


def test_a_note_goes_where_there_is_no_room_for_it() -> None:
    bar = Bar(label="2", pieces=(Piece(1),), figure="100", note="same within noise")
    assert "same within noise" in shown(Chart(bars=(bar,)), width=40)
    assert "same within noise" not in shown(Chart(bars=(bar,)), width=24)


def test_lanes_wrap_between_pieces() -> None:
    pieces = tuple(Piece(n, f"stage{n}", f"{n} ms") for n in range(1, 6))
    lines = shown(Chart(bars=(Bar(label="main", pieces=pieces),), kind="lanes")).splitlines()
    assert len(lines) > 1
    assert all(line.startswith("        stage") for line in lines[1:])
    assert all(f"{n} ms" in "\n".join(lines) for n in range(1, 6))


def test_empty_charts_and_lengths_of_0_are_drawn() -> None:
    assert shown(Chart(bars=())) == ""
    assert shown(bars(0, 0)).splitlines() == ["  0  0", "  1  0"]
    assert "0  0" in shown(bars(0, kind="share"))
    assert shown(Chart(bars=(Bar(label="x", pieces=()),), kind="lanes")) == "  x\n"


def test_a_chart_moves_close_to_its_answer_before_it_becomes_one_line() -> None:
    made = bars(1, 2)
    chart = dataclasses.replace(
        made, bars=(made.bars[0], dataclasses.replace(made.bars[1], spare=1))
    )

    def lines(facts: int) -> list[str]:
        answer = FactList(tuple((f"f{n}", "x") for n in range(facts)))
        return shown(answer, chart, Code("run()")).splitlines()

    for facts, blanks, drawn_bars in ((11, 2, 2), (12, 0, 2), (13, 0, 2), (14, 0, 0)):
        found = lines(facts)
        assert ("  0 1, 1 2" in found) is (drawn_bars == 0)
        assert len(found) <= 16
        assert found.count("") == blanks
        assert sum("█" in line for line in found) == drawn_bars


TABLE = Table(
    (
        Column(title="a", cells=["1" * 10]),
        Column(title="b", cells=["2" * 10], keep=2),
        Column(title="c", cells=["3" * 10], keep=1),
        Column(title="empty", cells=["-"], keep=9),
    )
)


@pytest.mark.parametrize(("width", "left"), [(80, "abc"), (27, "ab"), (7, "a")])
def test_whole_columns_go_the_least_important_first(width: int, left: str) -> None:
    head, row = shown(TABLE, width=width).splitlines()
    assert head.split() == list(left)
    assert [len(cell) for cell in row.split()] == [10] * len(left)


def test_details_have_all_columns_each_time_beside_what_names_the_rows() -> None:
    document = Document(title="", answer=(), details=lambda: (Section("", (TABLE,)),))
    heads = drawn(document, 27, verbose=True).split("\n\n")[:-1]
    assert [head.split()[:2] for head in heads] == [["a", "b"], ["a", "c"]]
    alone = drawn(document, 7, verbose=True)  # no column fits beside the first
    assert alone.split() == ["a", "1" * 10]
    figure = Column(title="rate", cells=["4" * 10])  # gives way to what fits nowhere beside it
    table = Table((TABLE.columns[0], figure, TABLE.columns[2]))
    document = Document(title="", answer=(), details=lambda: (Section("", (table,)),))
    heads = drawn(document, 27, verbose=True).split("\n\n")[:-1]
    assert [head.split()[:2] for head in heads] == [["a", "rate"], ["a", "c"]]
    wide = dataclasses.replace(TABLE.columns[1], cells=["1" * 30])  # which hides no other
    table = Table((TABLE.columns[0], wide, TABLE.columns[2]))
    document = Document(title="", answer=(), details=lambda: (Section("", (table,)),))
    assert drawn(document, 27, verbose=True).split()[:2] == ["a", "c"]


def test_further_lines_begin_below_the_first() -> None:
    words = "many words that do not fit into one line of a narrow terminal"
    for block in (FactList((("label", words), ("l", ""))), Items((words,))):
        first, *further = shown(block).splitlines()
        at = first.index("many")
        assert [line[:at].strip() for line in further if line.strip() != "l"] == [""]


def test_wide_characters_take_two_cells() -> None:
    table = Table(
        (Column(title="x", cells=["データ", "b"], left=True), Column(title="y", cells="12"))
    )
    assert shown(table).splitlines() == ["  x       y", "  データ  1", "  b       2"]


def test_code_is_never_wrapped_where_python_would_not_read_on() -> None:
    line = "loader = DataLoader(dataset)  # as it was, before"
    assert shown(Code(f"a\n    {line}"), width=20) == f"  a\n      {line}\n"
    call = "    loader = DataLoader(dataset, num_workers=8)"
    assert shown(Code(call), width=20).splitlines() == [
        "      loader = DataLoader(dataset,",
        "          num_workers=8)",
    ]


def test_details_come_above_the_answer_and_only_where_they_are_asked_for() -> None:
    document = Document(
        title="",
        answer=(Text("what to do"),),
        details=lambda: (Section("Why", (Text("because"),)),),
    )
    assert drawn(document, 40) == "  what to do\n"
    assert drawn(document, 40, verbose=True) == "Why\n  because\n\n  what to do\n"


def test_who_sees_the_details_is_not_shown_the_way_to_them() -> None:
    alone = Document(title="", answer=(Text("what to do"),), hints=hint("Details: -v"))
    assert drawn(alone, 80) == "  what to do\n  Details: -v\n"
    assert drawn(alone, 80, verbose=True) == "  what to do\n"
    then = dataclasses.replace(alone, hints=hint("Details: -v", "what it waits for:", "dlprof x"))
    assert drawn(then, 80) == "  what to do\n  Details: -v · what it waits for:\n  dlprof x\n"
    assert drawn(then, 80, verbose=True) == "  what to do\n  What it waits for:\n  dlprof x\n"


def test_nothing_in_a_text_acts_on_the_terminal() -> None:
    blocks: tuple[Block, ...] = (
        Text((HOSTILE, Styled(HOSTILE, "bad"))),
        FactList(((HOSTILE, HOSTILE),)),
        Items((HOSTILE,)),
        Code(HOSTILE),
        Table((Column(title=HOSTILE, cells=[HOSTILE]),)),
        Chart(bars=(Bar(label=HOSTILE, pieces=(Piece(1, HOSTILE, HOSTILE),), figure=HOSTILE),)),
        Chart(bars=(Bar(label=HOSTILE, pieces=(Piece(1, HOSTILE, HOSTILE),)),), kind="lanes"),
    )
    text = shown(*blocks, Card(title=HOSTILE, code=HOSTILE, level=HOSTILE, blocks=blocks), width=80)
    assert not any(mark in text for mark in ("\x1b", "\x07", "\u202e"))
    assert text.count("[bold]loud[/bold]") > 2 * len(blocks)


@pytest.mark.parametrize("no_color", [True, False])
def test_colors_are_left_out_where_they_are_not_wanted(*, no_color: bool) -> None:
    stream = io.StringIO()
    console = Console(file=stream, width=80, force_terminal=not no_color, no_color=no_color)
    console.print(Screen(Document(title="", answer=(Text(Styled("red", "bad")),))))
    assert ("\x1b[" in stream.getvalue()) is not no_color


@pytest.mark.parametrize("width", [30, 60, 200])
def test_long_code_goes_on_between_its_arguments(width: int) -> None:
    code = 'loader = DataLoader(data, name="a, b, c, d, e, f, g", num_workers=2, batch_size=8)'
    text = plain_text(Document(title="", answer=(Code(code, "python"),)), width=width)
    assert ast.dump(ast.parse(text.strip())) == ast.dump(ast.parse(code))
    assert max(map(len, text.splitlines())) <= max(width, 46)
    comment = "x = f(1)  # a, b, c, d, e, f, g, h, i, j, k, l, m, n"
    kept = plain_text(Document(title="", answer=(Code(comment, "python"),)), width=30)
    assert comment in kept


def test_a_long_command_goes_on_as_a_shell_reads_it(monkeypatch: pytest.MonkeyPatch) -> None:
    arguments = ["dlprof", "report", f"a folder/{'long-' * 14}name.dlprof.jsonl", "-o", "page.html"]
    command = Code(shlex.join(arguments), "sh")
    text = plain_text(Document(title="", answer=(command,)), width=60)
    with monkeypatch.context() as on_windows:
        on_windows.setattr("sys.platform", "win32")
        assert plain_text(Document(title="", answer=(command,)), width=60).strip() == command.text
    assert len(text.splitlines()) > 1
    assert shlex.split(text.replace("\\\n", "")) == arguments
    short = Code("dlprof report run.jsonl -o page.html", "sh")
    assert plain_text(Document(title="", answer=(short,)), width=60).strip() == short.text


@pytest.mark.parametrize(
    ("lines", "left"), [(9, "0 1 2 3"), (10, "0 1 3"), (11, "0 1"), (12, "0 1"), (13, "")]
)
def test_bars_make_room_for_the_answer_and_become_one_line(lines: int, left: str) -> None:
    made = bars(1, 2, 3, 4)
    spare = [
        dataclasses.replace(bar, spare=n) for bar, n in zip(made.bars, (0, 1, 4, 3), strict=True)
    ]
    facts = FactList(tuple((str(n), "word") for n in range(lines + 1)))
    chart = dataclasses.replace(made, label="bar", bars=tuple(spare))
    text = shown(facts, chart)
    drawn_bars = text.partition("  bar")[2]
    assert " ".join(line.split()[0] for line in drawn_bars.splitlines()[1:]) == left
    assert ("\n  bar: 0 1, 1 2\n" in text) is (not left)
    assert len(text.splitlines()) <= 16


@pytest.mark.parametrize(
    ("lines", "left", "more"),
    [(9, "0 1 2 3", ""), (11, "0 1 3", "  (1 more)"), (12, "0 1", "  (2 more)")],
)
def test_blank_lines_stay_around_a_chart_of_what_the_answer_names_and_what_is_left_out_is_counted(
    lines: int, left: str, more: str
) -> None:
    made = bars(1, 2, 3, 4)
    kept = zip(made.bars, (1, 0, 2, 2), strict=True)
    measured = tuple(dataclasses.replace(bar, spare=n) for bar, n in kept)
    facts = FactList(tuple((str(n), "word") for n in range(lines)))
    chart = dataclasses.replace(made, label="bar", unit="unit", bars=measured)
    head, *drawn_bars = shown(facts, chart).partition("  bar")[2].splitlines()
    assert head.endswith(f"unit{more}")
    assert " ".join(line.split()[0] for line in drawn_bars) == left
