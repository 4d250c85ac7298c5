"""A self-test as people read it on a terminal, and as a JSON document."""

from __future__ import annotations

import json
from collections.abc import Iterator

from rich.console import Group, RenderableType
from rich.text import Text

from dlprof.gate.wording import amount, percent
from dlprof.records.self_test import Reach, SelfTest
from dlprof.report.gate.wording import STATE_WORDS, short
from dlprof.report.layout import INDENT, Hanging
from dlprof.store.codec import to_json
from dlprof.units import format_duration

_MOST_TEXT = 1000


def self_test_document(test: SelfTest) -> str:
    """What ``dlprof check --self-test --json`` prints: one key a line, raw blocks included.

    Raises:
        ValueError: For a number that is not finite.
    """
    fields = to_json(test)
    lines = (f"  {json.dumps(key)}: {json.dumps(fields[key], allow_nan=False)}" for key in fields)
    return "{\n" + ",\n".join(lines) + "\n}"


def render_self_test(test: SelfTest) -> RenderableType:
    """Whether verdicts can be trusted here, and how small a slowdown can be seen."""
    word, style = ("TRUSTED", "green") if test.trusted else ("NOT TRUSTED", "yellow")
    heading = Text(f"{word}: ", style=style).append("checks on this machine", style="bold")
    explained = Hanging("", Text(short(test.explanation, _MOST_TEXT)))
    return Group(heading, explained, *_verdicts(test), *_sights(test), *_reach(test))


def _verdicts(test: SelfTest) -> Iterator[RenderableType]:
    yield Text()
    slower = percent(test.injected, signed=False)
    for label, check in (("the same code", test.same), (f"{slower} slower", test.slowed)):
        took = format_duration(check.measured_s)
        word = STATE_WORDS[check.verdict.state]
        yield Text(f"{INDENT}{label:<16} {word:<12}  after {took}")


def _sights(test: SelfTest) -> Iterator[RenderableType]:
    if not test.sights:
        return
    yield Text()
    yield Text("What would have failed a check of the service time here")
    for sight in test.sights:
        yield Text(f"{INDENT}after {sight.quads:>2} quads  {percent(sight.slowdown)}")


def _reach(test: SelfTest) -> Iterator[RenderableType]:
    if not test.reach:
        return
    yield Text()
    yield Text("What would have failed it in other metrics")
    width = max(len(each.label) for each in test.reach)
    for each in test.reach:
        if each.name != "service":
            yield Hanging(f"{INDENT}{each.label:<{width}}  ", Text(_worse(each)))


def _worse(reach: Reach) -> str:
    if reach.worse is None:
        return f"nothing: {short(reach.reason)}"
    return amount(reach.worse, reach.unit) if reach.unit else percent(reach.worse)
