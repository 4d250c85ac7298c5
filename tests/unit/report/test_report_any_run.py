"""Whatever figures a run file holds: a report, a comparison, or one sentence of what is wrong."""

from __future__ import annotations

import copy
import dataclasses
import json
from collections.abc import Iterator
from typing import Any

import pytest
from compare_runs import Costs, made_run
from example_runs import example_recommendation
from golden import drawn
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from profiled_runs import profiled_run

from dlprof.advise.compare import compare
from dlprof.errors import DlprofError
from dlprof.records import Constraints, Run
from dlprof.records.codec import MismatchError, from_json, to_json
from dlprof.report.compare import comparison_report
from dlprof.report.documents import json_document
from dlprof.report.export.formats import render_as, run_report

_EXTREMES: tuple[Any, ...] = (
    0,
    -1,
    1,
    1e-100,
    -1e100,
    1e100,
    2**70,
    None,
    "",
    "\x1b[2J<b>",
    [],
    {},
)


def _places(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Every place in a JSON value."""
    pairs: Any = ()
    if isinstance(value, dict):
        pairs = value.items()
    elif isinstance(value, list):
        pairs = enumerate(value[:3])
    for key, inner in pairs:
        yield (*path, key)
        yield from _places(inner, (*path, key))


_COMPARED = json.loads(json.dumps(to_json(made_run(Costs(), repeats=2))))


def _profiled() -> Run:
    """A run with everything in it, for one rank."""
    advice = example_recommendation()
    alone = dataclasses.replace(advice, constraints=Constraints(step_s=0.012))
    trials = made_run(Costs(), repeats=2).trials
    return dataclasses.replace(profiled_run(), trials=trials, recommendation=alone)


_PROFILED = json.loads(json.dumps(to_json(_profiled())))


def _changed(document: Any, changes: list[tuple[tuple[Any, ...], Any]]) -> Run | None:
    """A run with some values put into some places; ``None`` where no run file could hold that."""
    made = json.loads(json.dumps(document))
    for path, value in changes:
        inner = made
        try:
            for key in path[:-1]:
                inner = inner[key]
            inner[path[-1]] = copy.copy(value)
        except (KeyError, IndexError, TypeError):
            continue
    try:
        return from_json(Run, made)
    except MismatchError:
        return None


def _changes(document: Any) -> st.SearchStrategy[list[tuple[tuple[Any, ...], Any]]]:
    # A machine of no cores and a job of no ranks are for ``advise`` to refuse.
    theirs = {"usable_cores", "ranks"}
    places = [path for path in _places(document) if not theirs & set(path)]
    place = st.sampled_from(places)
    return st.lists(st.tuples(place, st.sampled_from(_EXTREMES)), min_size=1, max_size=4)


_SLOW = settings(
    max_examples=60, deadline=None, suppress_health_check=[HealthCheck.filter_too_much]
)


@_SLOW
@given(_changes(_COMPARED))
def test_any_run_is_compared_or_refused(changes: list[tuple[tuple[Any, ...], Any]]) -> None:
    made = _changed(_COMPARED, changes)
    if made is None:
        return
    plain = made_run(Costs(cpu_s=0.02), repeats=2)
    for pair in ((made, plain), (plain, made)):
        try:
            found = compare(*pair)
        except DlprofError:
            continue
        assert json_document(found).isascii()
        assert "\x1b" not in drawn(comparison_report(found), 80, verbose=True)


@pytest.mark.slow
@_SLOW
@given(_changes(_PROFILED))
@example([(("recommendation", "constraints", "cores"), 0)])
@example([(("recommendation", "constraints", "step_s"), 0)])
def test_any_run_has_its_reports(changes: list[tuple[tuple[Any, ...], Any]]) -> None:
    made = _changed(_PROFILED, changes)
    if made is None:
        return
    for shown in (made, dataclasses.replace(made, diagnosis=None)):
        assert "\x1b" not in drawn(run_report(shown), 80, verbose=True)
    for written_as in ("html", "markdown", "csv", "json", "perfetto"):
        try:
            text = render_as(made, written_as).decode()
        except DlprofError:
            continue
        assert "\x1b" not in text
