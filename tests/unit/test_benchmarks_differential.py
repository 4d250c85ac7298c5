"""What the benchmarks of loaders and of whole trainings compute; what they measure is not run."""

from __future__ import annotations

import contextlib
import dataclasses
import importlib
import json
import random
from pathlib import Path
from typing import Any

import pytest

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
TWO = {"num_workers": 2, "prefetch_factor": 2}
NONE = {"num_workers": 0}
COMMANDS = ("sweep", "profile")


@pytest.fixture
def by_hand() -> Any:
    return importlib.import_module("differential_loop")


@pytest.fixture
def differential() -> Any:
    return importlib.import_module("differential")


@pytest.fixture
def trainings() -> Any:
    return importlib.import_module("trainings")


def config(workers: int) -> dict[str, Any]:
    return {
        "num_workers": workers,
        "prefetch_factor": 2 if workers else None,
        "persistent_workers": False,
        "start_method": None,
        "in_order": True,
    }


def test_the_loop_by_hand_imports_nothing_of_dlprof() -> None:
    for name in ("differential_loop", "differential_targets", "drawn_loaders", "training_scripts"):
        text = (BENCHMARKS / f"{name}.py").read_text()
        assert "import dlprof" not in text
        assert "from dlprof" not in text


def test_a_stretch_leaves_out_what_was_loaded_ahead_and_what_nothing_follows(by_hand: Any) -> None:
    epoch = by_hand.Epoch(began_s=0.0, came_s=[float(n) for n in range(20)], samples=[3] * 20)
    assert by_hand.stretch(epoch, 2, 4) == (36, 12.0)  # the batches 7 to 18
    epoch.ended_s = 20.0
    assert by_hand.stretch(epoch, 2, 4) == (24, 8.0)
    assert by_hand.stretch(epoch, 2, 16) == (0, 0.0)


def test_rates_count_each_batch_for_what_it_holds(by_hand: Any) -> None:
    first = by_hand.Epoch(began_s=0.0, came_s=[1.0, 2.0, 3.0], samples=[8, 8, 2], ended_s=3.0)
    second = by_hand.Epoch(began_s=10.0, came_s=[11.0, 12.0, 13.0], samples=[8, 8, 2], ended_s=13.0)
    last = by_hand.Epoch(began_s=14.0, came_s=[15.0], samples=[8])
    found = by_hand.rates([first, second, last], 0, 0)
    assert found["steady"] == 20 / 4
    assert found["whole"] == 18 / 4
    assert (found["epoch_samples"], found["epoch_batches"]) == (18, 3)
    assert by_hand.rates([last], 0, 0)["steady"] is None


def test_the_loop_goes_through_epochs_until_it_is_enough(by_hand: Any) -> None:
    epochs = by_hand.loop([[1, 2], [3]], len, lambda seen: len(seen) == 3)
    assert [each.samples for each in epochs] == [[2, 1], [2, 1], [2]]
    assert epochs[-1].ended_s is None
    with pytest.raises(ValueError, match="nothing"):
        by_hand.loop([], len, lambda _: True)


@pytest.mark.parametrize(
    ("batch", "expected"),
    [([1, 2, 3], 3), ({"text": ["a", "b"]}, 2), (([1, 2, 3, 4], 7), 4), (("a", "b"), 2)],
)
def test_the_length_of_the_first_field(by_hand: Any, batch: Any, expected: int) -> None:
    assert by_hand.first_length(batch) == expected


def test_what_a_package_prints_is_no_answer_of_the_loop(differential: Any, tmp_path: Path) -> None:
    text = "print('a word')\ndef made(**_):\n    print('another')\n    return [[1, 2], [3]] * 9\n"
    (tmp_path / "printing.py").write_text(text)
    loop = differential.ByHand(tmp_path / "printing.py", "made", {})
    with contextlib.closing(loop):
        assert loop.ask(NONE, 0.0, whole=True)["samples"] > 0


@pytest.mark.parametrize("seed", range(30))
def test_drawn_modules_are_python_and_the_same_each_time(seed: int) -> None:
    drawn_loaders = importlib.import_module("drawn_loaders")
    drawn = drawn_loaders.draw(random.Random(seed))
    assert drawn == drawn_loaders.draw(random.Random(seed))
    compile(drawn_loaders.module_text(drawn), "drawn.py", "exec")


def found(claim: str, pick: int) -> dict[str, Any]:
    ratio = {"value": 2.0, "low": 1.8, "high": 2.2}
    return {
        "trials": [{"id": f"t{workers}", "config": config(workers)} for workers in (0, 2)],
        "recommendation": {
            "config": config(pick),
            "reasons": [
                {"claim": "The machine is small", "evidence": {}},
                {"claim": claim, "evidence": {"ratio": ratio, "trials": ["t0", "t2"]}},
            ],
        },
    }


def test_a_promise_says_which_settings_are_so_many_times_as_fast(differential: Any) -> None:
    claim = "num_workers=2, prefetch_factor=2 is 2.00x as fast as num_workers=0, PyTorch's default"
    promise = differential.promise_of(found(claim, 2))
    assert (promise.one, promise.two, promise.value) == (TWO, NONE, 2.0)
    assert promise.narrow
    claim = "num_workers=0 is enough: num_workers=2, the fastest with workers, is 2.00x as fast"
    promise = differential.promise_of(found(claim, 0))
    assert (promise.one, promise.two) == (TWO, NONE)
    assert differential.promise_of(found("More workers don't pay: num_workers=2 is", 0)) is None
    assert differential.promise_of({"recommendation": None}) is None


def profiled(*tried: str) -> dict[str, Any]:
    """A profile whose first finding no setting fixes, and whose second one two workers do."""
    gain = {"value": 2.0, "low": 1.8, "high": 2.2}
    by_settings = {
        "fix": {"dataloader_kwargs": {"num_workers": 2}},
        "predicted_gain": gain,
        "evidence": {"gain_trials": list(tried)},
    }
    trials = [{"id": "t1", "whole_epochs": False}, {"id": "t2", "whole_epochs": True}]
    other = {**by_settings, "fix": None}
    return {"config": config(0), "trials": trials, "findings": [other, by_settings]}


@pytest.mark.parametrize(("tried", "steady"), [((), True), (("t1",), True), (("t2",), False)])
def test_a_profile_promises_what_its_first_settings_bring(
    differential: Any, tried: tuple[str, ...], *, steady: bool
) -> None:
    promise = differential.promise_of_profile(profiled(*tried))
    assert (promise.one, promise.two, promise.steady) == (TWO, NONE, steady)
    assert differential.promise_of_profile({**profiled(), "findings": []}) is None


def test_a_steady_promise_is_held_against_steady_rates_where_there_are_some(
    differential: Any,
) -> None:
    made = outcome(differential, 190.0)
    for cell in made.cells:
        cell.answers = [{**each, "whole": 50.0} for each in cell.answers]
    steady = dataclasses.replace(made.promise, steady=True)
    assert made.true[0] == 1.0
    assert made.true_of(steady)[0] == 1.9
    for cell in made.cells:
        cell.answers = [{**each, "steady": None} for each in cell.answers]
    assert made.true_of(steady)[0] == 1.0


def test_the_report_of_packages_needs_a_true_promise_of_each_that_can_be_set(
    differential: Any,
) -> None:
    good = dataclasses.replace(outcome(differential, 190.0), loader="trainer")
    good.profiled = good.promise
    as_it_is = differential.Outcome(loader="spdl_loader", kind="ecosystem")
    report = differential.report_of_packages([good, as_it_is], {})
    assert report.passed
    rows = [row[:1] + row[2:] for row in report.tables[0].rows]
    advice = "num_workers=2, not num_workers=0"
    assert rows == [
        *(("trainer", by, advice, "2.00 (1.80-2.20)", "1.90", "1.05") for by in COMMANDS),
        ("spdl_loader", "sweep", "nothing can be set", "-", "-", "-"),
    ]
    assert not differential.report_of_packages([good], {"lit": "it is not installed"}).passed
    good.profiled = dataclasses.replace(good.promise, value=2.5)
    assert not differential.report_of_packages([good], {}).passed
    good.profiled = None
    unknown = differential.report_of_packages([good], {})
    assert not unknown.passed
    assert "Not known: trainer (profile)." in unknown.notes


def outcome(differential: Any, two: float) -> Any:
    made = differential.Outcome(loader="a", kind="written")
    for settings, rate in ((NONE, 100.0), (TWO, two)):
        cell = made.cell(settings)
        cell.dlprof += [rate, rate * 1.02, rate]
        cell.answers += [{"steady": rate, "whole": None}] * 3
    made.promise = differential.Promise(one=TWO, two=NONE, value=2.0, low=1.8, high=2.2)
    return made


def test_a_gain_holds_within_its_interval(differential: Any) -> None:
    assert outcome(differential, 190.0).held is True
    assert outcome(differential, 170.0).held is False
    assert outcome(differential, 190.0).ratios == [1.0, 1.0]
    scattered = outcome(differential, 190.0)
    scattered.cells[1].answers[0] = {"steady": 100.0}
    assert scattered.ratios == [1.0]
    assert scattered.held is None


def test_trials_over_whole_epochs_are_held_against_whole_epochs(differential: Any) -> None:
    cell = differential.Cell(settings=TWO, dlprof=[100.0], over_epochs=[50.0, 51.0])
    cell.answers += [{"steady": 100.0, "whole": 50.0}] * 3
    assert cell.ratio == 1.0
    assert not cell.whole
    assert differential.Cell(settings=TWO, over_epochs=[50.0]).whole


@pytest.mark.parametrize(("epsilon", "rate", "holds"), [(0.1, 105.0, True), (0.1, 120.0, False)])
def test_a_certificate_holds_if_no_other_is_faster_by_more(
    differential: Any, epsilon: float, rate: float, *, holds: bool
) -> None:
    made = outcome(differential, rate)
    assert made.certified is None
    made.pick, made.epsilon = NONE, epsilon
    assert made.certified is holds
    made.pick = TWO
    assert made.certified is True


def test_the_report_of_loaders_is_passed_only_where_all_holds(differential: Any) -> None:
    good = [outcome(differential, 190.0) for _ in range(10)]
    assert differential.report(good, {}).passed
    far = outcome(differential, 190.0)
    far.cells[0].dlprof = [130.0]
    assert not differential.report([*good, far], {}).passed
    wrong = outcome(differential, 190.0)
    wrong.wrong, wrong.profiled = True, wrong.promise
    report = differential.report([*good, wrong], {"x": "it is not installed"})
    assert not report.passed
    kept = json.loads(json.dumps(report.data["outcomes"], default=dataclasses.asdict))
    assert [differential.outcome_of(each) for each in kept] == [*good, wrong]


def test_half_of_sixty_loaders_are_drawn(differential: Any) -> None:
    made = differential.loaders(differential.DRAWN)
    assert len({each.name for each in made}) == len(made) >= 60
    assert sum(each.kind == "drawn" for each in made) >= 30


def run_of(**first: Any) -> dict[str, Any]:
    finding = {
        "code": "too_few_workers",
        "severity": "high",
        "fix": {"dataloader_kwargs": {"num_workers": 4}},
        "evidence": {"trials": ["a.py:8"]},
        "predicted_gain": {"value": 3.0, "low": 2.0, "high": 4.0},
        **first,
    }
    loaders = [
        {"name": "a.py:9", "dataset": "__main__.Validation", "waited_s": 9.0},
        {"name": "a.py:8", "dataset": "__main__.Train", "waited_s": 1.0},
    ]
    return {"findings": [finding], "loaders": loaders}


def test_a_training_promises_the_gain_of_its_script_or_else_of_its_loader(trainings: Any) -> None:
    promise = trainings.promise_of(run_of())
    assert (promise.value, promise.of_script, promise.high) == (3.0, False, True)
    assert (promise.data, promise.settings) == ("Train", {"num_workers": 4})
    script = {"value": 1.5, "low": 1.2, "high": 1.9}
    promise = trainings.promise_of(run_of(script_gain=script, severity="low"))
    assert (promise.value, promise.of_script, promise.high) == (1.5, True, False)
    assert trainings.promise_of({"findings": [], "loaders": []}).code == ""


def trained(trainings: Any, value: float, *, of_script: bool = True, high: bool = False) -> Any:
    promise = trainings.Promise(
        code="x", value=value, low=value, high_end=value, of_script=of_script, high=high
    )
    times = {"before_s": (8.0, 8.0), "after_s": (4.0, 4.0)}
    return trainings.Outcome(training="waits", promise=promise, **times)


def test_trainings_pass_with_seven_promises_near_the_truth(trainings: Any) -> None:
    near = [trained(trainings, 2.2)] * 7
    assert trainings.passed(near)
    assert not trainings.passed(near[1:])
    assert not trainings.passed([*near, trained(trainings, 3.1, of_script=False, high=True)])
    assert trainings.passed([*near, trained(trainings, 3.1)])
    report = trainings.report(near, {})
    assert [trainings.outcome_of(each) for each in report.data["outcomes"]] == near
    assert near[0].gain == pytest.approx(2.0)


def test_rounds_are_added_until_they_agree(trainings: Any) -> None:
    assert trainings.is_sure([0.7, 0.71, 0.69])
    assert not trainings.is_sure([0.7, 1.2, 0.4])
    assert not trainings.is_sure([0.7])
