from __future__ import annotations

import dataclasses
import json
import math
import re
from pathlib import Path

import pytest
from builders import machine, target
from compare_runs import Costs, made_run
from example_runs import HOSTILE
from golden import check_golden, drawn

from dlprof.advise.compare import Comparison, PartCode, compare
from dlprof.errors import NothingMeasuredError, UsageError
from dlprof.records import Estimate, Run, StepTimes, WatchedScript
from dlprof.report.compare import comparison_report
from dlprof.report.documents import json_document
from dlprof.store import read_run

EXAMPLES = Path(__file__).parents[3] / "examples"
EARLIER = Path(__file__).parents[2] / "data" / "runs"


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
    assert json_document(found).isascii()


def test_what_reads_as_no_factor_has_no_bar() -> None:
    """Not even where it is the largest of all."""
    runs = [made_run(Costs()), made_run(Costs(cpu_s=0.0101))]
    found = compare(*runs)
    none = Estimate(value=0.001)
    part = dataclasses.replace(found.parts[-1], log_ratio=none, factor=Estimate(value=1.001))
    slower = Estimate(value=0.9, low=0.85, high=0.95)
    found = dataclasses.replace(found, ratio=slower, parts=(part,))
    text = drawn(comparison_report(found), 80)
    assert "1.00x" in text
    assert "█" not in text


def test_a_difference_that_is_too_noisy_for_a_figure_shows_both_ends() -> None:
    a, b = (read_run(EARLIER / f"{n}.dlprof.jsonl") for n in ("single-box", "shared-server"))
    found = compare(a, b)
    noisy = "B is slower than A, 0.41x to 0.90x as fast (95%): too noisy for one figure (measure"
    assert found.verdict.startswith(f"{noisy} B on a quieter machine). ")
    few = tuple(dataclasses.replace(trial, noisy=False) for trial in b.trials[:4])
    quiet = compare(a, dataclasses.replace(b, trials=few)).verdict
    assert "too noisy for one figure (measure both with a longer --budget). " in quiet
    one = dataclasses.replace(found, b=dataclasses.replace(found.b, noisy=3))
    assert "Certainty low: B's trials: 3 of 5 disturbed" in " ".join(
        drawn(comparison_report(one), 80).split()
    )


@pytest.mark.parametrize(
    ("slower", "said"),
    [
        (1000, r"B is 0\.001\d*x as fast as A \(95% CI 0\.0\d+-0\.0\d+\)\."),
        (30, r"B is 97% slower than A \(0\.03\dx, 95% CI 0\.0\d\d?-0\.0\d\d?\)\."),
        (1 / 30, r"B is \d\d\.\d\dx as fast as A \(95% CI \d\d\.\d\d-\d\d\.\d\d\)\."),
        (1 / 300, r"B is \d\d\dx as fast as A \(95% CI \d\d\d-\d\d\d\)\."),
    ],
)
def test_a_verdict_of_runs_that_are_far_apart_has_figures(slower: float, said: str) -> None:
    """It read "100% slower (0.00x, 95% CI 0.00-0.00)", and 12.34x had an interval of 12-12."""
    found = compare(made_run(Costs()), made_run(Costs(cpu_s=0.01 * slower)))
    assert re.match(said, found.verdict)
    assert "0.00x" not in found.verdict
    assert "0.00-" not in found.verdict


def test_the_document_says_what_the_screen_says() -> None:
    document = json.loads(json_document(_comparison()))
    assert document["parts"][0]["code"] == "neighbours"
    assert set(document["parts"][0]["log_ratio"]) == {"value", "low", "high"}
    assert document["findings"][0]["code"] == "cpu.neighbours"
    product = 1.0
    for part in document["parts"]:
        product *= part["factor"]["value"]
    assert product == pytest.approx(document["ratio"]["value"])


def _scripts() -> tuple[Run, Run]:
    before, after = (
        read_run(EXAMPLES / f"training-{name}.dlprof.jsonl") for name in ("before", "after")
    )
    return before, after


def test_two_training_scripts_are_compared_by_their_loops() -> None:
    before, after = _scripts()
    found = compare(before, after)
    one, two = (each.watched[0].samples_per_s or 0.0 for each in (before, after))
    assert found.ratio.value == pytest.approx(two / one)
    wait, step, rest = (part.factor.value for part in found.parts)
    assert [part.code for part in found.parts] == ["wait", "step", "remainder"]
    assert wait * step * rest == pytest.approx(two / one)
    assert rest == pytest.approx(1)
    assert wait > 2 > step
    assert found.findings[0].fix is not None
    assert found.findings[0].fix.dataloader_kwargs["num_workers"] == 8
    screen = drawn(comparison_report(found), 80)
    assert f"{one:,.0f} samples/s" in screen
    assert f"{two:,.0f} samples/s" in screen
    assert "A has num_workers=2" in " ".join(screen.split())
    words = " ".join(screen.split())
    own = "measured; the slower run's own report predicts num_workers=6"
    assert f"Set what the faster run has: num_workers=8 ({own}). A training-before" in words
    whole = [each.script.wall_s for each in (before, after) if each.script]
    said = f"({whole[0] / whole[1]:.2f}x as fast, each measured once). In the loop, B"
    assert f"5.8 s in B, 9.8 s in A {said}" in words
    assert "Most of it is waiting for data (2.45x). The loop waits 1.6 ms" in words
    assert "Certainty low: Each script ran once" in words
    shorter = dataclasses.replace(after.watched[0], batches=after.watched[0].batches - 1)
    part = compare(before, dataclasses.replace(after, watched=(shorter,)))
    assert part.verdict.startswith("In the loop, B is")  # the scripts did other work
    agrees = dataclasses.replace(before, diagnosis=None)
    assert "has: num_workers=8.\n" in drawn(comparison_report(compare(agrees, after)), 200)
    assert "each measured once" in words
    assert len(screen.splitlines()) <= 16


def test_what_a_script_s_report_doubts_its_comparison_doubts() -> None:
    before, after = _scripts()
    doubt = "Other processes kept 0.6 of 2 cores busy while this was measured."
    # What is in doubt about a fix alone is no doubt about the figures.
    both = dataclasses.replace(before.findings[0], doubtful=f"Waits may overlap. {doubt}")
    other = dataclasses.replace(both, code="fetch.cpu")
    assert before.diagnosis is not None
    diagnosis = dataclasses.replace(before.diagnosis, findings=(both, other))
    doubtful = dataclasses.replace(before, diagnosis=diagnosis)
    found = compare(doubtful, after)
    assert [each for each in found.doubts if each.startswith("A: ")] == [f"A: {doubt}"]
    said = " ".join(drawn(comparison_report(found), 100).split())
    assert f" Certainty low: A: {doubt[:-1]} (and 1 more)" in said  # the answer, without details
    again = compare(after, doubtful).doubts
    assert [each for each in again if each.startswith("B: ")] == [f"B: {doubt}"]


def test_a_wait_is_explained_by_what_its_own_loader_fetches() -> None:
    """And not by another's that is set alike and was traced later."""
    before, after = _scripts()
    (traced,) = before.explanations
    stages = tuple(dataclasses.replace(each, mean_s=9.0) for each in traced.stages)
    other = dataclasses.replace(traced, trial_id="val.py:1", stages=stages)
    beside = dataclasses.replace(before, explanations=(traced, other))
    found = compare(before, after).parts[0]
    assert compare(beside, after).parts[0] == found
    assert "fetching a batch takes" in found.explanation


def _rank(run: Run, num_workers: int, wait_s: float) -> Run:
    """A rank whose batches of 16 take 50 ms to fetch, beside one whose batches take 40 ms a step.

    Each step ends when both ranks have had their batches and stepped for 10 ms.
    """
    (loader,), (traced,) = run.watched, run.explanations
    assert loader.config is not None
    steps, period_s = 20, 0.05
    times = StepTimes(
        stride=1,
        got_s=tuple(place * period_s + wait_s for place in range(steps)),
        wait_s=(wait_s,) * steps,
        step_s=(period_s - wait_s,) * steps,
    )
    rank = dataclasses.replace(
        loader,
        config=dataclasses.replace(loader.config, num_workers=num_workers),
        samples_per_s=16 / period_s,
        batches_per_s=1 / period_s,
        wait_fraction=wait_s / period_s,
        step_times=times,
    )
    stages = tuple(dataclasses.replace(each, mean_s=0.05) for each in traced.stages)
    shown = dataclasses.replace(traced, trial_id=loader.name, stages=stages)
    return dataclasses.replace(run, watched=(rank,), explanations=(shown,), diagnosis=None)


def test_a_rank_without_its_waits_for_another_is_no_faster_than_its_workers_fetch() -> None:
    """They fetched ahead while it waited, which nothing hides from it alone."""
    run, _ = _scripts()
    found = compare(_rank(run, 2, wait_s=0.005), _rank(run, 1, wait_s=0.04))
    a, b = found.a.samples_per_s.value, found.b.samples_per_s.value
    assert a == pytest.approx(2 * 16 / 0.05)
    assert b == pytest.approx(16 / 0.05)
    assert found.parts[0].code == "wait"  # the steps are alike without their waits
    assert found.parts[0].factor.value == pytest.approx(b / a)
    (finding,) = found.findings
    assert finding.predicted_gain is not None
    assert finding.predicted_gain.value == pytest.approx(2)
    # Of more workers it is the steps that are left.
    many = compare(_rank(run, 8, wait_s=0.005), _rank(run, 1, wait_s=0.04))
    assert many.a.samples_per_s.value == pytest.approx(16 / 0.015)


def test_a_script_and_a_sweep_are_not_compared() -> None:
    before, _ = _scripts()
    sweep = dataclasses.replace(made_run(Costs()), header=before.header)
    with pytest.raises(NothingMeasuredError, match="has no trials") as raised:
        compare(before, sweep)
    assert "two run files of dlprof run" in str(raised.value)


def test_scripts_whose_samples_are_not_known_are_not_compared() -> None:
    before, after = _scripts()
    (loader,) = after.watched
    unknown = dataclasses.replace(after, watched=(dataclasses.replace(loader, samples_per_s=None),))
    with pytest.raises(NothingMeasuredError, match="has no rate"):
        compare(before, unknown)
    with pytest.raises(UsageError, match="no loader of num_workers=2"):
        compare(before, after, num_workers=2)


def test_loops_over_other_loaders_are_compared_by_the_longest_waits() -> None:
    before, after = _scripts()
    (loader,) = after.watched
    other = dataclasses.replace(after, watched=(dataclasses.replace(loader, name="x.py:1"),))
    found = compare(before, other)
    assert "photos.py:18 and x.py:1" in found.pairing
    assert "different names (photos.py:18 and x.py:1)" in found.doubts[0]  # which the screen shows


def test_a_script_without_a_loader_is_not_compared() -> None:
    before, after = _scripts()
    idle = dataclasses.replace(after, watched=())
    for one, two in ((before, idle), (idle, before)):
        with pytest.raises(NothingMeasuredError, match="No DataLoader was iterated"):
            compare(one, two)


@pytest.mark.parametrize(
    ("script", "said"),
    [
        (None, "of B was cut off"),
        (WatchedScript(wall_s=9.0, ending="running"), "of B was cut off"),
        (WatchedScript(wall_s=9.0, ending="exception", exit_code=1), "of B failed"),
        (WatchedScript(wall_s=9.0, ending="exit", exit_code=3), "of B failed"),
    ],
)
def test_a_script_that_came_to_no_good_end_is_doubted(
    script: WatchedScript | None, said: str
) -> None:
    before, after = _scripts()
    found = compare(before, dataclasses.replace(after, script=script))
    assert said in found.doubts[0]
    assert not any("cut off" in doubt for doubt in compare(before, after).doubts)


def test_a_script_does_not_differ_from_itself() -> None:
    before, _ = _scripts()
    verdict = compare(before, before).verdict
    assert verdict == "No measurable difference between B and A (1.00x, each measured once)."


def test_the_answer_names_the_settings_and_the_fix() -> None:
    text = drawn(comparison_report(_comparison()), 80)
    assert "  Both       num_workers=8\n" in text
    assert "  Fix        Move the other processes" in text
    assert "  Certainty  high: 3 trials of A and 3 trials of B\n" in text
    assert "Predicted for B: 2.00x" in " ".join(text.split())
    same = made_run(Costs())
    alike = drawn(comparison_report(compare(same, same)), 80)
    assert "No measurable difference" in alike
    assert "Fix" not in alike


@pytest.mark.parametrize(
    ("rest", "said"),
    [
        (Estimate(value=0.31, low=-0.2, high=0.82), []),  # undone by what is not sure
        (Estimate(value=0.31), []),  # or rests on one trial
        (Estimate(value=0.31, low=0.2, high=0.42), ["0.73x", "1.36x"]),  # a trade
        (Estimate(value=0.02, low=-0.2, high=0.24), ["0.73x"]),
    ],
    ids=["noise", "one trial", "trade", "sure"],
)
def test_factors_of_no_difference_are_shown_where_they_are_no_noise(
    rest: Estimate, said: list[str]
) -> None:
    found = compare(made_run(Costs()), made_run(Costs(cpu_s=0.0101)))
    slower = Estimate(value=-0.31, low=-0.35, high=-0.27)
    logs: dict[PartCode, Estimate] = {
        "neighbours": slower,
        "storage": rest,
        "remainder": Estimate(value=0.0),
    }
    parts = tuple(
        dataclasses.replace(found.parts[0], code=code, log_ratio=log, factor=log.through(math.exp))
        for code, log in logs.items()
    )
    alike = dataclasses.replace(
        found, ratio=Estimate(value=1.0, low=0.9, high=1.1), parts=parts, verdict=""
    )
    text = drawn(comparison_report(alike), 80)
    assert re.findall(r"\d\.\d\dx", text.partition("Details")[0]) == said


@pytest.mark.parametrize(
    ("factor", "said"),
    [(0.0123, "0.012x"), (0.52, "0.52x"), (12.34, "12.34x"), (123.4, "123x"), (1234.5, "1,234x")],
)
def test_a_factor_reads_as_a_number_however_large(factor: float, said: str) -> None:
    found = compare(made_run(Costs()), made_run(Costs(cpu_s=0.02)))
    whole = Estimate(value=factor, low=factor, high=factor)
    shown = drawn(comparison_report(dataclasses.replace(found, ratio=whole)), 80, verbose=True)
    assert re.search(rf"^ *B over A +{re.escape(said)} ", shown, re.MULTILINE)
