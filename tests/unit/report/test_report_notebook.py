"""What notebooks show of a run, a recommendation and a comparison."""

from __future__ import annotations

import html
import re
from typing import Any

import pytest
from compare_runs import Costs, made_run
from example_runs import HOSTILE, example_recommendation, example_run, hostile_run
from profiled_runs import profiled_run

import dlprof
from dlprof.records import Run

FRAME = re.compile(r'<iframe srcdoc="(?P<page>[^"]*)" [^<>]*></iframe>')


def page_in(shown: Any) -> str:
    """The page in the frame, which is all there is."""
    found = FRAME.fullmatch(shown._repr_html_())
    assert found is not None
    return html.unescape(found["page"])


@pytest.mark.parametrize("run", [example_run(), profiled_run()])
def test_a_run_shows_its_report(run: Run) -> None:
    assert page_in(run) == dlprof.report(run, format="html")


def test_a_recommendation_shows_what_to_set() -> None:
    advice = example_recommendation()
    page = page_in(advice)
    assert f"num_workers={advice.config.num_workers}" in page
    assert advice.confidence_reason in page


def test_a_comparison_shows_the_difference_and_its_parts() -> None:
    found = dlprof.compare(made_run(Costs()), made_run(Costs(affinity=4)))
    page = html.unescape(page_in(found))
    assert found.verdict in page
    assert all(part.title in page for part in found.parts)


def test_nothing_of_a_run_leaves_its_frame() -> None:
    assert HOSTILE not in page_in(hostile_run())
