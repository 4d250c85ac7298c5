"""Every output of a check against recorded ones; look at the files under tests/data/gate."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Callable, Mapping
from typing import Any

import pytest
from gate_samples import (
    baseline_check,
    check_golden,
    failing_check,
    hostile_check,
    inconclusive_check,
    load_quads,
    passing_check,
)
from golden import drawn

from dlprof.errors import ExitCode
from dlprof.gate.plan import LOOKS, make_plan
from dlprof.gate.verdict import checked_target, exit_code
from dlprof.records.gate import CheckReport, StageShift
from dlprof.report.check import (
    advice,
    check_document,
    check_report,
    notes,
    render_annotation,
    render_bencher,
    render_benchmark_action,
    render_comment,
    render_junit,
    render_openmetrics,
    render_outputs,
    render_summary,
    stage_lines,
)

CHECKS: Mapping[str, Callable[[], CheckReport]] = {
    "failing": failing_check,
    "passing": passing_check,
    "inconclusive": inconclusive_check,
    "baseline": baseline_check,
    "no-baseline": lambda: baseline_check(stored=3),
    "slower-than-baseline": lambda: baseline_check(slower=0.2),
    "hostile": hostile_check,
}
RENDERERS: Mapping[str, Callable[[CheckReport], str]] = {
    "summary.md": render_summary,
    "comment.md": render_comment,
    "annotation.txt": lambda check: render_annotation(
        check, fails=exit_code(check) is not ExitCode.OK
    ),
    "junit.xml": render_junit,
    "bencher.json": render_bencher,
    "benchmark-action.json": render_benchmark_action,
    "metrics.txt": render_openmetrics,
}


def counted() -> Callable[[], str]:
    """Delimiters that a recorded file can hold."""
    numbers = itertools.count()
    return lambda: f"end{next(numbers)}"


@pytest.mark.parametrize("name", CHECKS)
@pytest.mark.parametrize("width", [60, 80, 200])
def test_the_screen(name: str, width: int) -> None:
    text = drawn(check_report(CHECKS[name]()), width)
    check_golden(f"{name}-{width}.txt", text)
    assert max(map(len, text.splitlines())) <= width
    assert len(text.splitlines()) <= 16 or width < 80


@pytest.mark.parametrize("name", CHECKS)
@pytest.mark.parametrize("width", [60, 80, 200])
def test_all_figures(name: str, width: int) -> None:
    text = drawn(check_report(CHECKS[name]()), width, verbose=True)
    assert max(map(len, text.splitlines())) <= width or name == "hostile"
    if width == 80:
        check_golden(f"{name}-verbose.txt", text)


def test_the_screen_in_ascii() -> None:
    check_golden("failing-80-ascii.txt", drawn(check_report(failing_check()), 80, "ascii"))


@pytest.mark.parametrize("name", ["failing", "inconclusive", "hostile"])
@pytest.mark.parametrize("kind", RENDERERS)
def test_what_other_programs_read(name: str, kind: str) -> None:
    check_golden(f"{name}-{kind}", RENDERERS[kind](CHECKS[name]()))


@pytest.mark.parametrize("name", ["failing", "baseline", "hostile"])
def test_outputs_of_the_step(name: str) -> None:
    check_golden(f"{name}-outputs.txt", render_outputs(CHECKS[name](), counted()))


def test_the_document() -> None:
    check_golden("failing.json", check_document(failing_check()))


@pytest.mark.parametrize("name", CHECKS)
def test_a_screen_says_the_verdict_first_and_never_acts_on_the_terminal(name: str) -> None:
    text = drawn(check_report(CHECKS[name]()), 60)
    verdict = text.removeprefix("  Verdict").split(":")[0].split(",")[0].strip()
    assert verdict in {"PASS", "FAIL", "INCONCLUSIVE", "NO BASELINE"}
    text = drawn(check_report(CHECKS[name]()), 60, verbose=True)
    assert all(each.isprintable() or each == "\n" for each in text)
    assert not [line for line in text.splitlines() if line.lstrip().startswith(("::", "##["))]


def test_a_screen_names_the_confidence_and_the_limits_of_all_that_fails() -> None:
    """Wherever a verdict is sure of something."""
    failing, passing, undecided = (
        " ".join(drawn(check_report(check()), 80).split())
        for check in (failing_check, passing_check, inconclusive_check)
    )
    assert (
        "Wall time +10.1% (+8.0 to +11.4%), limit 5%; Time to first batch +198%, +1.00 s "
        in failing
    )
    assert "(+0.99 to +1.01 s), limit 250 ms Compared" in failing
    assert "Certainty each beyond its limit (99%); false alarms at most 3.6%; took" in failing
    assert "a slowdown of more than 1.4% is excluded (99%)" in passing
    assert "slower by at least 2.2% (99%); by more than 5%: undecided" in undecided


def test_what_got_faster_excludes_no_slowdown_of_nothing() -> None:
    quads = load_quads(LOOKS[0], -0.3, noise=0.01)
    target = checked_target("data.py:make", make_plan(gates=("service",)), quads)
    faster = dataclasses.replace(passing_check(), targets=(target,))
    text = " ".join(drawn(check_report(faster), 80).split())
    assert "Certainty faster by at least 2" in text
    assert "slowdown of more than" not in text


def test_beyond_its_limit_and_unconfirmed_only_the_code_is_in_doubt() -> None:
    quads = load_quads(LOOKS[0], 0.12, noise=0.005)
    target = checked_target("data.py:make", make_plan(gates=()), quads)
    text = drawn(check_report(dataclasses.replace(inconclusive_check(), targets=(target,))), 80)
    text = " ".join(text.split())
    assert "INCONCLUSIVE: It is undecided whether data loading got slower To do" in text
    assert "To do Check again with a larger --budget: two new pairs of processes may" in text
    assert "beyond the limit of 5%, in one pair of processes" in text
    assert "(99%); whether by the code: undecided" in text
    assert "by more than" not in text[text.index("Certainty") :]
    target = dataclasses.replace(target, needed_s=71.0)
    said = advice(dataclasses.replace(inconclusive_check(), targets=(target,)))
    assert said.startswith("Check again with --budget 80s: ")


def test_how_much_more_time_is_needed_is_said() -> None:
    check = inconclusive_check()
    assert check.target.plan is not None
    rules = [dataclasses.replace(each, looks=(500,)) for each in check.target.plan.rules]
    plan = dataclasses.replace(check.target.plan, rules=tuple(rules))
    target = dataclasses.replace(check.target, plan=plan, needed_s=130.0)
    said = advice(dataclasses.replace(check, targets=(target,)))
    assert said == "Give it more time with --budget 3m, or use a quieter machine"


def test_no_confidence_reads_as_certain() -> None:
    check = passing_check()
    plan = check.target.plan
    assert plan is not None
    sure = dataclasses.replace(check.target, plan=dataclasses.replace(plan, confidence=0.9995))
    text = drawn(check_report(dataclasses.replace(check, targets=(sure,))), 80)
    assert "is excluded (99.95%)" in text


def test_a_pass_says_in_how_many_epochs_blocks_load_and_whose_first_loads_are_not_compared() -> (
    None
):
    check = passing_check()
    quads = check.target.quads
    loaded = max(sum(b.samples) for q in quads if q.series == "load" for b in q.blocks)

    def sure(**known: Any) -> str:
        assert check.target.plan is not None
        plan = dataclasses.replace(check.target.plan, **known)
        target = dataclasses.replace(check.target, plan=plan, length=10 * loaded)
        return " ".join(
            drawn(check_report(dataclasses.replace(check, targets=(target,))), 80).split()
        )

    assert (
        f"in the {loaded:,} of {10 * loaded:,} samples that blocks load, again and again" in sure()
    )
    kept = sure(keeping=("base", "change"), epochs=10)
    assert (
        f"in the {loaded // 10:,} of {10 * loaded:,} samples that blocks load, in 10 epochs" in kept
    )
    assert "the change's first loads of samples are not compared" in sure(keeping=("change",))


def test_what_another_metric_leaves_open_is_nothing_of_the_service_time() -> None:
    check = inconclusive_check()
    service, *others = check.target.verdict.gates
    assert (service.name, service.state) == ("service", "inconclusive")
    within = dataclasses.replace(service, state="pass", reason="not_slower", blocking=False)
    verdict = dataclasses.replace(check.target.verdict, gates=(within, *others))
    target = dataclasses.replace(check.target, verdict=verdict)
    text = drawn(check_report(dataclasses.replace(check, targets=(target,))), 80)
    assert "INCONCLUSIVE: It is undecided whether data loading got slower\n" in text
    assert "by more than 5%: undecided" not in text


def test_what_was_not_judged_is_said_with_its_reason() -> None:
    why = {"startup": "a start takes 9 s", "epoch_turnover": "a start takes 9 s", "memory": "no"}
    check = dataclasses.replace(passing_check(), unavailable=why)
    text = drawn(check_report(check), 200)
    assert "Left out   Time to first batch, Epoch restart: a start takes 9 s\n" in text
    assert "Left out   Peak memory: no\n" in text
    assert "- **Left out**: Peak memory: no\n" in render_summary(check)
    assert "Left out" not in render_summary(passing_check())


def test_where_the_time_went_never_contradicts_itself() -> None:
    check = failing_check()
    target = check.target
    stage = StageShift(stage="startup", base_s=0.322, change_s=0.301, shift_s=0.0295)
    verdict = dataclasses.replace(target.verdict, stages=(stage,))
    target = dataclasses.replace(target, verdict=verdict)
    assert [*stage_lines(target)] == [("startup", "+29.5 ms, 322 ms to 352 ms")]


@pytest.mark.parametrize(
    ("length", "shown"), [(512, ["Blocks load the same 32 of 512 samples."]), (32, []), (None, [])]
)
def test_how_much_of_the_data_blocks_load_is_said(length: int | None, shown: list[str]) -> None:
    target = failing_check().target
    target = dataclasses.replace(target, length=length)
    assert notes(target) == [*shown, *target.verdict.notes]


def test_cores_that_differ_are_not_cured_by_time() -> None:
    """Beside a metric that more time could decide, too."""
    check = inconclusive_check()
    first, *others = check.target.verdict.gates
    gates = (dataclasses.replace(first, reason="cores_differ"), *others)
    verdict = dataclasses.replace(check.target.verdict, gates=gates)
    target = dataclasses.replace(check.target, verdict=verdict)
    assert "taskset -c 0" in advice(dataclasses.replace(check, targets=(target,)))


def test_what_only_warns_needs_no_leave() -> None:
    assert "--allow-regression" in advice(failing_check())
    assert "--allow-regression" not in advice(dataclasses.replace(failing_check(), warn_only=True))


def test_a_command_to_copy_is_quoted_where_a_name_has_blanks() -> None:
    target = dataclasses.replace(failing_check().target, target="my data.py:make")
    said = advice(dataclasses.replace(failing_check(), targets=(target,)))
    assert said.startswith("dlprof profile 'my data.py:make'; ")
