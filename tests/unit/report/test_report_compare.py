from __future__ import annotations

import dataclasses
import json

import pytest
from builders import machine, target
from compare_runs import Costs, made_run
from example_runs import HOSTILE
from golden import check_golden, drawn

from dlprof.advise.compare import Comparison, compare
from dlprof.report.compare import compare_document, comparison_report


def _comparison() -> Comparison:
    box = made_run(Costs(), machine=machine(16, hostname="box"))
    server = Costs(cpu_s=0.013, taken=12.0)
    shared = made_run(server, machine=machine(16, hostname="server", cpu_model="Slower CPU"))
    return compare(
        dataclasses.replace(box, path="box.dlprof.jsonl"),
        dataclasses.replace(shared, path="server.dlprof.jsonl"),
    )


@pytest.mark.parametrize("width", [50, 80])
def test_the_screen_as_recorded(width: int) -> None:
    check_golden(
        f"compare-{width}.txt", drawn(comparison_report(_comparison()), width, verbose=True)
    )


def test_nothing_on_the_screen_is_wider_than_it() -> None:
    for width in (50, 60, 80, 120):
        lines = drawn(comparison_report(_comparison()), width, verbose=True).splitlines()
        assert max(map(len, lines)) <= width


def test_no_text_of_a_run_acts() -> None:
    hostile = made_run(
        Costs(cpu_s=0.02),
        machine=machine(16, hostname=HOSTILE, cpu_model=HOSTILE),
        target=target(spec=HOSTILE, arguments={"root": HOSTILE}),
        torch_version=HOSTILE,
        python_version=HOSTILE,
    )
    found = compare(made_run(Costs()), dataclasses.replace(hostile, path=HOSTILE))
    screen = drawn(comparison_report(found), 80, verbose=True)
    assert "\x1b" not in screen
    assert "\u202e" not in screen
    assert "[bold]" in screen  # shown, not obeyed
    assert compare_document(found).isascii()


def test_the_document_says_what_the_screen_says() -> None:
    document = json.loads(compare_document(_comparison()))
    assert document["parts"][0]["code"] == "neighbours"
    assert set(document["parts"][0]["log_ratio"]) == {"value", "low", "high"}
    assert document["findings"][0]["code"] == "cpu.neighbours"
    product = 1.0
    for part in document["parts"]:
        product *= part["factor"]["value"]
    assert product == pytest.approx(document["ratio"]["value"])
