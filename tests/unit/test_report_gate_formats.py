"""What other programs read is read here as they read it, with texts that try to break out."""

from __future__ import annotations

import dataclasses
import json
import re
from collections.abc import Callable
from typing import Any
from xml.etree import ElementTree as ET

import pytest
from gate_samples import (
    baseline_check,
    block,
    confirmed,
    failing_check,
    hostile_check,
    inconclusive_check,
    load_quads,
    passing_check,
    recomputed,
    start_quads,
)
from hypothesis import given
from hypothesis import strategies as st

from dlprof.errors import ExitCode, FileError
from dlprof.gate.plan import LOOKS, make_plan
from dlprof.gate.verdict import checked_target, exit_code, make_check
from dlprof.gate.views import MOST_BATCHES, grouped
from dlprof.records.gate import CheckReport, Compared, Quad
from dlprof.report.check import (
    MARKER,
    MOST_COMMENT_BYTES,
    MOST_SUMMARY_BYTES,
    check_document,
    read_check,
    render_annotation,
    render_bencher,
    render_benchmark_action,
    render_comment,
    render_junit,
    render_openmetrics,
    render_outputs,
    render_summary,
)

CHECKS: tuple[Callable[[], CheckReport], ...] = (
    failing_check,
    passing_check,
    inconclusive_check,
    baseline_check,
    hostile_check,
)
TEXTS = st.text(st.characters(codec=None), max_size=60)


def with_texts(text: str) -> CheckReport:
    """A failing check into which a text has been put wherever texts can stand."""
    check = failing_check()
    target, verdict = check.target, check.target.verdict
    gates = tuple(dataclasses.replace(gate, explanation=text, label=text) for gate in verdict.gates)
    verdict = dataclasses.replace(verdict, explanation=text, gates=gates, notes=(text,))
    target = dataclasses.replace(target, target=text, verdict=verdict, source_file=text)
    side = Compared(name=text, commit=text, note=text)
    return dataclasses.replace(
        check,
        targets=(target,),
        explanation=text,
        base=side,
        change=side,
        override=text,
        started_at=text,
        dlprof_version=text,
        torch_version=text,
    )


# JSON


@pytest.mark.parametrize("make", CHECKS)
def test_a_document_is_read_back_whole(make: Callable[[], CheckReport]) -> None:
    check = make()
    text = check_document(check)
    assert text.isascii()
    assert read_check(text, "check.json") == check


@pytest.mark.parametrize("make", CHECKS)
def test_the_verdict_follows_from_the_document(make: Callable[[], CheckReport]) -> None:
    target = read_check(check_document(make()), "check.json").target
    assert recomputed(target) == target.verdict


def test_blocks_that_no_json_can_hold_give_the_same_verdict_from_the_document() -> None:
    quads = load_quads(13, noise=0.01)
    spoiled = [
        dataclasses.replace(
            quad, blocks=(block("A", service_s=(float("nan"),) * 8), *quad.blocks[1:])
        )
        for quad in quads[:2]
    ]
    side = Compared(name="x")
    target = checked_target("t", make_plan(), [*spoiled, *quads[2:]])
    read = read_check(check_document(make_check(target, base=side, change=side)), "c")
    assert recomputed(read.target) == target.verdict
    assert target.verdict.gates[0].state == "pass"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "is not JSON"),
        ("[" * 100_000, "nested too deeply"),
        ("[]", "no document of a check"),
        ('{"schema_version": "1"}', "no document of a check"),
        ('{"schema_version": 2}', "newer dlprof"),
        ('{"schema_version": 1}', "is missing"),
        ('{"schema_version": NaN}', "no document of a check"),
    ],
)
def test_other_documents_are_refused(text: str, message: str) -> None:
    with pytest.raises(FileError, match=message):
        read_check(text, "check.json")


@pytest.mark.parametrize("number", ["1e999", "NaN", "-Infinity"])
def test_a_number_that_is_not_finite_is_refused(number: str) -> None:
    text, changed = re.subn(
        r'"base": [0-9.e-]+', f'"base": {number}', check_document(failing_check())
    )
    assert changed
    with pytest.raises(FileError, match="is not a finite number"):
        read_check(text, "check.json")


@pytest.mark.parametrize(
    ("check", "code", "strict"),
    [
        (passing_check, ExitCode.OK, ExitCode.OK),
        (failing_check, ExitCode.REGRESSION, ExitCode.REGRESSION),
        (inconclusive_check, ExitCode.OK, ExitCode.INCONCLUSIVE),
        (lambda: baseline_check(stored=3), ExitCode.NO_BASELINE, ExitCode.NO_BASELINE),
        (hostile_check, ExitCode.OK, ExitCode.OK),
    ],
)
def test_exit_codes(check: Callable[[], CheckReport], code: ExitCode, strict: ExitCode) -> None:
    made = check()
    assert exit_code(made) == code
    assert exit_code(made, fail_inconclusive=True) == strict
    warns = dataclasses.replace(made, warn_only=True)
    assert exit_code(warns) in {ExitCode.OK, ExitCode.NO_BASELINE}
    assert exit_code(warns, fail_inconclusive=True) == (
        ExitCode.OK if strict == ExitCode.REGRESSION else strict
    )


@pytest.mark.parametrize("count", [0, 2])
def test_a_document_of_another_number_of_targets_is_refused(count: int) -> None:
    check = dataclasses.replace(passing_check(), targets=passing_check().targets * count)
    with pytest.raises(FileError, match=f"a check of {count} targets"):
        read_check(check_document(check), "check.json")


@given(st.lists(st.tuples(st.floats(0, 1), st.integers(1, 64)), max_size=2000))
def test_grouped_batches_keep_their_sums(batches: list[tuple[float, int]]) -> None:
    seconds, samples = [each[0] for each in batches], [each[1] for each in batches]
    grouped_s, grouped_samples = grouped(seconds, samples)
    assert len(grouped_s) == len(grouped_samples) <= MOST_BATCHES
    assert sum(grouped_samples) == sum(samples)
    assert sum(grouped_s) == pytest.approx(sum(seconds), abs=1e-6)


def test_a_long_document_stays_bounded() -> None:
    """140 quads of 256 groups, as much as a check ever measures of one target."""
    columns: dict[str, Any] = {
        "service_s": (0.012345678,) * MOST_BATCHES,
        "samples": (16,) * MOST_BATCHES,
    }
    quad = Quad(number=0, series="load", blocks=tuple(block(each, **columns) for each in "ABBA"))
    side = Compared(name="x")
    target = checked_target("t", make_plan(), [quad] * LOOKS[-1])
    assert len(check_document(make_check(target, base=side, change=side))) < 3 << 20


def test_more_memory_is_not_called_slower() -> None:
    quads = load_quads(11, noise=0.01)
    more = [
        dataclasses.replace(
            quad,
            blocks=tuple(
                dataclasses.replace(
                    each, pss_peak_bytes=(2.0 if each.side == "change" else 1.0) * (1 << 30)
                )
                for each in quad.blocks
            ),
        )
        for quad in quads
    ]
    side = Compared(name="x")
    check = make_check(checked_target("t", make_plan(), more), base=side, change=side)
    assert "Data loading takes more memory" in render_summary(check)
    assert "+1.0 GiB" in check.explanation


# GitHub


def unescaped(text: str) -> str:
    """As the runner reads a workflow command's values."""
    for code, character in (("%3A", ":"), ("%2C", ","), ("%0D", "\r"), ("%0A", "\n")):
        text = text.replace(code, character)
    return text.replace("%25", "%")


def parsed_command(line: str) -> tuple[str, dict[str, str], str]:
    """As the runner takes a workflow command apart."""
    match = re.fullmatch(r"::(\w+) ((?:[^:])*)::(.*)", line)
    assert match, line
    pairs = (pair.split("=", 1) for pair in match[2].split(","))
    return match[1], {key: unescaped(value) for key, value in pairs}, unescaped(match[3])


def test_an_annotation_marks_the_line_of_the_target() -> None:
    level, properties, message = parsed_command(render_annotation(failing_check(), fails=True))
    assert level == "error"
    assert properties == {
        "file": "src/data.py",
        "line": "12",
        "title": "dlprof: Data loading got slower",
    }
    assert message == failing_check().explanation


def test_a_check_that_passed_marks_nothing_and_others_warn() -> None:
    assert render_annotation(passing_check(), fails=False) == ""
    assert parsed_command(render_annotation(inconclusive_check(), fails=False))[0] == "warning"
    assert parsed_command(render_annotation(inconclusive_check(), fails=True))[0] == "error"


@given(TEXTS)
def test_no_text_leaves_an_annotation(text: str) -> None:
    line = render_annotation(with_texts(text), fails=True)
    assert len(line.splitlines()) == 1
    _, properties, _ = parsed_command(line)
    assert set(properties) <= {"file", "line", "title"}
    line.encode()


def parsed_outputs(text: str) -> dict[str, str]:
    """As the runner reads the file of outputs."""
    values = {}
    lines = text.split("\n")
    while lines[0]:
        name, _, end = lines.pop(0).partition("<<")
        place = lines.index(end)
        values[name] = "\n".join(lines[:place])
        lines = lines[place + 1 :]
    return values


NAMES = ["verdict", "explanation", "target", "metric", "slower", "slower_low", "slower_high"]


@given(TEXTS)
def test_no_text_leaves_an_output(text: str) -> None:
    values = parsed_outputs(render_outputs(with_texts(text)))
    assert list(values) == NAMES
    assert values["verdict"] == "fail"


def test_the_metric_of_an_undecided_check_is_the_one_that_is_waited_for() -> None:
    check = inconclusive_check()
    target = check.target
    (gate, *_) = target.verdict.gates
    unseen = dataclasses.replace(gate, name="receive", views=(), blocking=False)
    verdict = dataclasses.replace(target.verdict, gates=(unseen, *target.verdict.gates))
    again = dataclasses.replace(check, targets=(dataclasses.replace(target, verdict=verdict),))
    assert render_outputs(again, lambda: "E") == render_outputs(check, lambda: "E")


def test_a_delimiter_that_the_text_holds_is_not_taken() -> None:
    delimiters = iter(["EOF", "fail", *(f"end{each}" for each in range(20))])
    check = dataclasses.replace(failing_check(), explanation="x\nEOF\ny")
    values = parsed_outputs(render_outputs(check, lambda: next(delimiters)))
    assert values["explanation"] == "x\nEOF\ny"
    assert float(values["slower"]) == pytest.approx(0.1, abs=0.02)


# Markdown


@given(TEXTS)
def test_no_text_leaves_its_cell(text: str) -> None:
    lines = render_comment(with_texts(text)).splitlines()
    tables = [line for line in lines if line.startswith("|")]
    cells = {len(re.findall(r"(?<!\\)(?:\\\\)*\|", line)) for line in tables}
    assert cells <= {7, 5}
    assert lines[0] == MARKER


@pytest.mark.parametrize("override", ["", "label slower-loading"])
@pytest.mark.parametrize("check", [passing_check(), failing_check(), inconclusive_check()])
def test_a_comment_says_its_verdict_in_five_lines(check: CheckReport, override: str) -> None:
    unavailable = {"startup": "a start takes 9 s", "wall": "nobody looked"}
    whole = dataclasses.replace(check, unavailable=unavailable, override=override)
    seen, _, folded = render_comment(whole).partition("<details>")
    assert len([line for line in seen.splitlines() if line and line != MARKER]) <= 5
    assert "### Measured on" in folded
    assert "- **Left out**: Time to first batch: a start takes 9 s" in folded
    assert folded.endswith("</details>\n")


@pytest.mark.parametrize(
    ("state", "quads"),
    [
        ("fail", confirmed(load_quads(12, 0.2, noise=0.01))),
        ("inconclusive", load_quads(140, 0.05, noise=0.15)),
    ],
)
def test_a_comment_names_the_stage_that_got_slower(state: str, quads: list[Quad]) -> None:
    collate_s = {"base": 1.4e-3, "change": 2.1e-3}  # a sample
    slower = [
        dataclasses.replace(
            quad,
            blocks=tuple(
                dataclasses.replace(
                    block, stages_s={"collate": collate_s[block.side] * sum(block.samples)}
                )
                for block in quad.blocks
            ),
        )
        for quad in quads
    ]
    target = checked_target("data.py:make", make_plan(gates=()), slower)
    side = Compared(name="x")
    seen, _, _ = render_comment(make_check(target, base=side, change=side)).partition("<details>")
    assert target.verdict.state == state
    assert "Most of it is in collate: +700 µs a sample, from 1.40 ms to 2.10 ms." in seen


def test_nobody_is_called_by_a_comment() -> None:
    text = render_comment(with_texts("@all #12"))
    assert "@all" not in text
    assert "#12" not in text


@pytest.mark.slow
@pytest.mark.parametrize("size", [1, 300, 3000])
@pytest.mark.parametrize("letter", ["x", "\u20ac", "|", "@"])
def test_sizes_are_bounded(size: int, letter: str) -> None:
    check = with_texts(letter * size)
    stages = tuple(
        dataclasses.replace(check.target.verdict.stages[0], stage=f"fetch: {letter * size}{each}")
        for each in range(800)
    )
    verdict = dataclasses.replace(check.target.verdict, stages=stages)
    target = dataclasses.replace(check.target, verdict=verdict)
    many = dataclasses.replace(check, targets=(target,))
    comment, summary = render_comment(many), render_summary(many)
    assert len(comment.encode()) <= MOST_COMMENT_BYTES < 65_536
    assert len(summary.encode()) <= MOST_SUMMARY_BYTES < 1024 * 1024
    if size == 3000:
        assert "The details are in the JSON document." in comment


# JUnit


@given(TEXTS)
def test_junit_is_xml_whatever_the_texts(text: str) -> None:
    root = ET.fromstring(render_junit(with_texts(text)).encode())
    assert [suite.get("tests") for suite in root] == ["7"]


def counts(check: CheckReport) -> tuple[str | None, ...]:
    root = ET.fromstring(render_junit(check).encode())
    found = [len(root.findall(f"*/testcase/{tag}")) for tag in ("failure", "skipped")]
    assert [root.get(key) for key in ("failures", "skipped")] == [str(each) for each in found]
    return tuple(root.get(key) for key in ("tests", "failures", "skipped"))


def test_junit_fails_for_fail_and_skips_what_is_not_known() -> None:
    assert counts(failing_check()) == ("7", "3", "0")
    assert counts(passing_check()) == ("7", "0", "0")
    assert counts(inconclusive_check()) == ("2", "0", "2")
    assert counts(baseline_check(stored=2)) == ("1", "0", "1")
    excuses: tuple[dict[str, Any], ...] = ({"warn_only": True}, {"override": "a new decoder"})
    for excused in excuses:
        assert counts(dataclasses.replace(failing_check(), **excused)) == ("7", "0", "3")
    without = dataclasses.replace(failing_check(), unavailable={"startup": "a start takes 9 s"})
    assert counts(without) == ("8", "3", "1")
    assert "Time to first batch was not judged: a start takes 9 s." in render_junit(without)


# Services that keep figures


@pytest.mark.parametrize("make", CHECKS)
def test_bencher_reads_it(make: Callable[[], CheckReport]) -> None:
    document = json.loads(render_bencher(make()))
    for name, measures in document.items():
        assert 0 < len(name) <= 1024
        for measure, metric in measures.items():
            assert re.fullmatch(r"[a-z0-9-]{1,64}", measure)
            assert set(metric) <= {"value", "lower_value", "upper_value"}
            ends = [metric[key] for key in ("lower_value", "value", "upper_value") if key in metric]
            assert ends == sorted(ends)


def test_bencher_gets_nanoseconds_and_samples_a_second() -> None:
    measures = json.loads(render_bencher(failing_check()))["data.py:make"]
    assert measures["latency"]["value"] == pytest.approx(2.75e6, rel=0.02)
    assert measures["throughput"]["value"] == pytest.approx(1 / 0.0033, rel=0.02)
    assert measures["memory"]["value"] == 500 * (1 << 20)


def test_bencher_gets_no_time_below_zero() -> None:
    quads = [*load_quads(15), *start_quads(8, 0.1), *start_quads(3, 5.0, -4.9)]
    target = checked_target("data.py:make", make_plan(), quads)
    ends = ("value", "lower_value", "upper_value")
    startup = json.loads(render_bencher(dataclasses.replace(failing_check(), targets=(target,))))
    assert all(startup["data.py:make"]["startup"][end] >= 0 for end in ends)


@pytest.mark.parametrize("make", CHECKS)
def test_the_benchmark_action_reads_it(make: Callable[[], CheckReport]) -> None:
    entries = json.loads(render_benchmark_action(make()))
    assert entries
    names = [entry["name"] for entry in entries]
    assert len(set(names)) == len(names)
    for entry in entries:
        assert set(entry) <= {"name", "unit", "value", "range", "extra"}
        assert isinstance(entry["value"], float)


SAMPLE = re.compile(r'(\w+)\{((?:\w+="(?:[^"\\\n]|\\["\\n])*",?)+)\} (\S+)')
LABEL = re.compile(r'(\w+)="((?:[^"\\\n]|\\["\\n])*)"')


def parsed_metrics(text: str) -> dict[tuple[str, tuple[tuple[str, str], ...]], float]:
    """OpenMetrics as its ABNF has it: families in a row, no sample twice, EOF last."""
    *lines, end, last = text.split("\n")
    assert (end, last) == ("# EOF", "")
    found: dict[tuple[str, tuple[tuple[str, str], ...]], float] = {}
    families: list[str] = []
    for line in lines:
        if line.startswith("# TYPE "):
            _, _, family, kind = line.split(" ")
            assert family not in families
            assert kind == "gauge"
            families.append(family)
        elif line.startswith("# UNIT "):
            _, _, family, unit = line.split(" ")
            assert family == families[-1]
            assert family.endswith(f"_{unit}")
        elif line.startswith("# HELP "):
            assert line.split(" ")[2] == families[-1]
        else:
            match = SAMPLE.fullmatch(line)
            assert match, line
            assert match[1] == families[-1]
            key = match[1], tuple(LABEL.findall(match[2]))
            assert key not in found
            found[key] = float(match[3])
    return found


@given(TEXTS)
def test_openmetrics_parse_whatever_the_texts(text: str) -> None:
    found = parsed_metrics(render_openmetrics(with_texts(text)))
    assert sum(found[key] for key in found if key[0] == "dlprof_check_failed") == 3


def test_openmetrics_hold_the_figures() -> None:
    found = parsed_metrics(render_openmetrics(failing_check()))
    target = ("target", "data.py:make")
    startup = target, ("metric", "startup"), ("view", "value")
    assert found["dlprof_check_seconds", startup] == pytest.approx(1.5, abs=0.02)
    mean = target, ("metric", "service"), ("view", "mean")
    assert found["dlprof_check_shift_ratio", mean] == pytest.approx(0.1, abs=0.02)
    assert found["dlprof_check_failed", (target, ("metric", "wall"))] == 1
