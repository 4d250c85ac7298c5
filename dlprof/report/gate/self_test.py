"""What ``dlprof check --self-test`` has to say, and its JSON document."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from dlprof.gate.wording import amount, percent
from dlprof.records.codec import to_json
from dlprof.records.gate import TargetCheck
from dlprof.records.self_test import SelfTest, Sight
from dlprof.report import document as doc
from dlprof.report.documents import line_by_line
from dlprof.report.gate.wording import STATE_WORDS, short
from dlprof.units import format_duration

_MOST_BARS = 7
_MOST_TEXT = 1000


def self_test_document(test: SelfTest) -> str:
    """What ``dlprof check --self-test --json`` prints: one key a line, raw blocks included."""
    return line_by_line(to_json(test))


def self_test_report(test: SelfTest) -> doc.Document:
    """Whether verdicts can be trusted here, and how small a slowdown a check detects."""
    slower = percent(test.injected, signed=False)
    runs = {"the same code": test.same, f"{slower} slower": test.slowed}
    reach = {
        each.label: f"nothing: {short(each.reason)}"
        if each.worse is None
        else amount(each.worse, each.unit)
        if each.unit
        else percent(each.worse)
        for each in test.reach
    }
    return doc.Document(
        title="Self-test of dlprof check",
        answer=doc.known(doc.facts(_answer(test)), _chart(test.sights)),
        hints=doc.hint("Details: -v"),
        details=(
            *doc.section(
                "Verdicts", doc.facts((name, _verdict(run)) for name, run in runs.items())
            ),
            *doc.section("What fails a check here", doc.facts(reach.items())),
        ),
    )


def _answer(test: SelfTest) -> Iterator[tuple[str, doc.Words]]:
    word = doc.Span("TRUSTED", "good") if test.trusted else doc.Span("NOT TRUSTED", "warn")
    yield "Verdict", (word, ": checks on this machine")
    yield "Why", short(test.explanation, _MOST_TEXT)
    if test.sights:
        last = test.sights[-1]
        worse = _slowdown(last)
        yield "Detects", f"slowdowns of {worse} or more"


def _verdict(check: TargetCheck) -> str:
    return f"{STATE_WORDS[check.verdict.state]} after {format_duration(check.measured_s)}"


def _chart(sights: Sequence[Sight]) -> doc.Chart | None:
    """The smallest slowdown of the service time that fails, by how long is measured."""
    shown = (*sights[: _MOST_BARS - 1], *sights[_MOST_BARS - 1 :][-1:]) if len(sights) > 1 else ()
    bars = (doc.Bar.of(str(each.quads), each.slowdown, _slowdown(each)) for each in shown)
    return doc.chart(bars, "ABBA blocks", "detectable")


def _slowdown(sight: Sight) -> str:
    return percent(sight.slowdown).removeprefix("+")
