"""What a model-led sweep does, trial after trial, where things go well and where they don't."""

from __future__ import annotations

import collections
import dataclasses
import math
from pathlib import Path
from typing import Any

import pytest
from builders import config, failed, machine, plan, target, trial
from golden import drawn
from led_sweeps import (
    CALIBRATING,
    CORES,
    GRID,
    PretendedBench,
    Quiet,
    Traced,
    led_header,
    led_plan,
    rate,
    swept,
)

from dlprof.advise.recommend import recommend
from dlprof.advise.thresholds import MOST_WORKERS
from dlprof.errors import FileError, NothingMeasuredError, TargetError
from dlprof.records import Config, Failure, Plan, Run, TrialCost
from dlprof.report.sweep import sweep_report
from dlprof.stats.belief import NEAR
from dlprof.store import RunWriter, read_run
from dlprof.trial.protocol import TrialRequest

FOUR, KEPT = config(4), config(4, persistent_workers=True)
THIRDS = pytest.mark.parametrize(
    "third", [0, *(pytest.param(each, marks=pytest.mark.slow) for each in (1, 2))]
)
"""Of the records after which a sweep is cut off."""


def measured(run: Run) -> set[Config]:
    return {trial.config for trial in run.trials if trial.purpose == "measure"}


def blocks(run: Run) -> list[list[Config]]:
    measuring = [trial for trial in run.trials if trial.purpose == "measure"]
    last = max(trial.repetition for trial in measuring)
    return [
        [trial.config for trial in measuring if trial.repetition == number]
        for number in range(last + 1)
    ]


def test_it_calibrates_predicts_and_measures_few(tmp_path: Path) -> None:
    run = swept(tmp_path / "run", PretendedBench())
    assert [trial.purpose for trial in run.trials][:3] == ["explain"] * 3
    assert run.prediction is not None
    first, *later = blocks(run)
    assert first[0] == run.prediction.pick
    assert set(first) == set(run.prediction.race)
    assert all(len(block) <= 3 for block in later)
    assert all({FOUR, KEPT} & {*block} for block in later)  # which take turns
    assert len(measured(run)) < len(run.prediction.cells) / 2
    assert run.recommendation is not None
    assert run.recommendation.config == run.prediction.pick == FOUR


class _Beginning(PretendedBench):
    """Notes which trials begin twice, to time a restart."""

    def explain(self, request: TrialRequest, **about: Any) -> Traced:
        twice.append(request.turnover)
        return super().explain(request, **about)


twice = list[bool]()


def test_no_trial_is_begun_whose_first_batch_comes_too_late(tmp_path: Path) -> None:
    """Nor one that begins twice where it has time for once."""
    twice.clear()
    bench = _Beginning(lasts_s=25.6)
    slow = target(kind="iterable", first_batch_s=25.0, length=None, batches_per_epoch=None)
    few = plan(GRID, cost=TrialCost(overhead_s=25.3))
    run = swept(tmp_path / "run", bench, budget_s=70.0, about=led_header(target=slow, plan=few))
    assert twice == [True, False]  # the second trial would have ended at 76 s
    assert bench.now_s == pytest.approx(51.2)
    assert run.recommendation is not None
    assert len(run.trials) == 2


@pytest.mark.slow
@THIRDS
def test_a_sweep_cut_off_after_any_record_ends_as_if_it_had_not_been(
    tmp_path: Path, third: int
) -> None:
    whole = swept(tmp_path / "whole", PretendedBench())
    lines = (tmp_path / "whole").read_bytes().splitlines(keepends=True)
    for kept in (len(lines) - 2, *range(1, 11))[third::3]:  # before the end, and to the race
        path = tmp_path / f"cut{kept}"
        path.write_bytes(b"".join(lines[:kept]))
        run = swept(path, PretendedBench())
        assert run.prediction == whole.prediction
        assert measured(run) == measured(whole)
        assert run.recommendation is not None
        assert run.recommendation.config == FOUR
        explained = [trial.config for trial in run.trials if trial.purpose == "explain"]
        assert len(explained) <= 4  # one whose explanation was lost is run again
        again = read_run(path)
        assert again.calibration == run.calibration
        assert again.recommendation == run.recommendation


@pytest.mark.parametrize("trials", [0, 1, 3, 5])
def test_an_interrupted_one_keeps_what_it_has(tmp_path: Path, trials: int) -> None:
    path = tmp_path / "run"
    run = swept(path, PretendedBench(stop_after=trials))
    assert run.end is not None
    assert run.end.reason == "interrupted"
    assert (run.recommendation is None) is (trials < 3)  # three calibrate
    kept = read_run(path)
    assert len(kept.trials) == trials
    assert (kept.calibration is not None) is (trials > 0)  # dlprof predict has what it needs


@pytest.mark.parametrize(
    ("noisy", "took_s", "times"),
    [(False, 0.1, 1), (True, 0.1, 3), (True, 6.0, 1)],  # the last takes longer than any window
)
def test_a_restart_that_others_disturbed_is_timed_again_unless_it_takes_long(
    tmp_path: Path, noisy: bool, took_s: float, times: int
) -> None:
    asked = list[tuple[Config, bool]]()

    class Restarting(PretendedBench):
        """One whose trials time a restart where they are to."""

        def explain(self, request: Any, **about: Any) -> Traced:
            done, message = super().explain(request, **about)
            asked.append((request.config.turnover_group, request.turnover))
            turn_s = took_s if request.turnover else None
            return dataclasses.replace(done, noisy=noisy, epoch_turnover_s=turn_s), message

    swept(tmp_path / "run", Restarting())
    groups = {group: [timed for each, timed in asked if each == group] for group, _ in asked}
    assert max(map(len, groups.values())) > 1
    for turns in groups.values():
        assert turns == [number < times for number in range(len(turns))]


class FullDisk(PretendedBench):
    """One on which nothing can be written after some trials."""

    def explain(self, *request: Any, **about: Any) -> Traced:
        """A trial, or the fault."""
        if self.calls == self.stop_after:
            raise FileError("The disk is full", hint="Free some space.")
        return super().explain(*request, **about)


def test_a_fault_that_ends_it_is_reported_and_what_was_measured_is_kept(tmp_path: Path) -> None:
    listener = Quiet()
    run = swept(tmp_path / "run", FullDisk(stop_after=6), listener)
    assert run.recommendation is not None
    assert "The disk is full. Free some space." in listener.messages
    with pytest.raises(FileError, match="disk is full"):  # not that nothing was compared
        swept(tmp_path / "explained", FullDisk(stop_after=3))
    assert len(read_run(tmp_path / "explained").trials) == 3


@pytest.mark.parametrize(
    "records",
    [pytest.param(each, marks=() if each == 12 else pytest.mark.slow) for each in range(10, 16)],
)
def test_a_full_disk_costs_the_file_its_end_and_is_reported_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, records: int
) -> None:
    write, calls = RunWriter._write, iter(range(1000))

    def full(writer: RunWriter, line: bytes) -> None:
        if next(calls) >= records:
            raise FileError("The disk is full", hint="Free some space.")
        write(writer, line)

    monkeypatch.setattr(RunWriter, "_write", full)
    listener = Quiet()
    run = swept(tmp_path / "run", PretendedBench(), listener)
    assert run.recommendation is not None
    assert listener.messages.count("The disk is full. Free some space.") == 1
    kept = read_run(tmp_path / "run").trials
    assert run.trials[: len(kept)] == kept
    assert len(run.trials) - len(kept) <= 1  # that which could not be written is known all the same


def test_a_budget_that_ends_while_calibrating_leaves_a_prediction(tmp_path: Path) -> None:
    path = tmp_path / "run"
    run = swept(path, PretendedBench(lasts_s=10.0), budget_s=12.0)
    assert not run.completed
    assert run.end is not None
    assert run.end.reason == "budget"
    found, advice = read_run(path), run.recommendation
    assert advice is not None
    assert (advice.basis, advice.confidence) == ("predicted", "low")
    assert "--resume" in advice.confidence_reason
    assert found.prediction is not None
    assert advice.config in {cell.config for cell in found.prediction.cells}
    assert recommend(found, advice.constraints) == advice
    drawn(sweep_report(run), 100)


def test_where_plain_trials_failed_a_prediction_is_no_answer(tmp_path: Path) -> None:
    path = tmp_path / "run"
    run = swept(path, PretendedBench(lasts_s=10.0), budget_s=12.0)
    tried = failed(config(0))
    with pytest.raises(NothingMeasuredError, match="first failed"):
        recommend(dataclasses.replace(run, trials=(*run.trials, tried), recommendation=None))


def test_where_the_pick_fails_the_next_best_is_measured(tmp_path: Path) -> None:
    def rates(chosen: Config) -> float | None:
        return None if chosen.num_workers >= 4 else rate(chosen)

    run = swept(tmp_path / "run", PretendedBench(rates=rates))
    assert run.recommendation is not None
    assert run.recommendation.config.num_workers == 3
    failures = collections.Counter(trial.config for trial in run.trials if trial.failure)
    assert set(failures.values()) == {1}


def test_where_all_workers_fail_none_is_recommended(tmp_path: Path) -> None:
    bench = PretendedBench(rates=lambda chosen: None if chosen.num_workers else rate(chosen))
    run = swept(tmp_path / "run", bench)
    assert run.recommendation is not None
    assert run.recommendation.config == config(0)
    assert len(run.trials) < 15


def test_where_everything_fails_that_is_said(tmp_path: Path) -> None:
    with pytest.raises(NothingMeasuredError, match="first failed"):
        swept(tmp_path / "run", PretendedBench(rates=lambda _chosen: None))


@pytest.mark.slow
def test_what_was_predicted_wrong_is_measured_instead(tmp_path: Path) -> None:
    bench = PretendedBench(rates=lambda chosen: 1000.0 if chosen.num_workers == 8 else 300.0)
    run = swept(tmp_path / "run", bench)
    assert run.prediction is not None
    assert measured(run) > {*run.prediction.race}
    assert run.recommendation is not None
    assert run.recommendation.config == config(8)
    assert run.recommendation.basis == "measured"


@pytest.mark.parametrize(
    "budget_s", [14.0, *(pytest.param(each, marks=pytest.mark.slow) for each in (20.0, 30.0))]
)
def test_a_model_that_proved_wrong_answers_nothing(tmp_path: Path, budget_s: float) -> None:
    """Workers only slow it down: what there was no time to measure is no reason to ask for some."""
    bench = PretendedBench(rates=lambda chosen: 1600.0 / max(1, chosen.num_workers))
    run = swept(tmp_path / "run", bench, budget_s=budget_s)
    assert run.recommendation is not None
    assert run.recommendation.config.num_workers < 2


def test_what_shows_nothing_is_measured_as_a_grid(tmp_path: Path) -> None:
    listener = Quiet()
    run = swept(tmp_path / "run", PretendedBench(explains=False), listener)
    assert run.prediction is None
    assert any("show too little" in text for text in listener.messages)
    assert measured(run) == set(GRID)


def test_what_makes_no_sense_is_explained_once_each_and_measured_as_a_grid(tmp_path: Path) -> None:
    """As where a dataset replaces the clock: its figures can't be kept, only the trial can."""
    listener, path = Quiet(), tmp_path / "run"
    run = swept(path, PretendedBench(cost_s=math.inf), listener)
    explained = [trial.config for trial in run.trials if trial.purpose == "explain"]
    assert explained == list(CALIBRATING)
    assert any("show too little" in text for text in listener.messages)
    assert measured(run) == set(GRID)


@pytest.mark.slow
@THIRDS
def test_where_the_most_workers_outrun_their_forecast_more_are_tried(
    tmp_path: Path, third: int
) -> None:
    """As where what a worker waits for was taken for computing: cores are no limit then."""

    def rates(chosen: Config) -> float:
        return 100.0 * min(max(1, chosen.num_workers), 24)

    path = tmp_path / "run"
    run = swept(path, PretendedBench(rates=rates))
    assert run.recommendation is not None
    assert run.recommendation.config.num_workers >= 16  # four for each core are looked at
    assert run.recommendation.certificate is not None
    promised = (1 - run.recommendation.certificate.epsilon) * rates(config(24))
    assert rates(run.recommendation.config) >= promised
    whole = measured(run)
    lines = path.read_bytes().splitlines(keepends=True)
    for kept in range(5 + third, len(lines) - 1, 3):
        cut = tmp_path / f"cut{kept}"
        cut.write_bytes(b"".join(lines[:kept]))
        assert measured(swept(cut, PretendedBench(rates=rates))) == whole


class Waiting(PretendedBench):
    """Its batches wait for half a second each."""

    def explain(self, *request: Any, **about: Any) -> Traced:
        """A trial, and what it waits for if it explains."""
        trial, shown = super().explain(*request, **about)
        for costs in (each["costs"] for each in shown.values()):
            costs["io_s"] = [0.5] * len(costs["cpu_s"])
        return trial, shown


@pytest.mark.slow
def test_where_batches_wait_as_many_workers_are_tried_as_gain(tmp_path: Path) -> None:
    def rates(chosen: Config) -> float:
        return 64.0 * min(max(1, chosen.num_workers), 96)

    run = swept(tmp_path / "run", Waiting(rates=rates, cost_s=0.005))
    assert run.recommendation is not None
    assert rates(run.recommendation.config) >= NEAR * rates(config(96))
    assert max(chosen.num_workers for chosen in measured(run)) == MOST_WORKERS


@pytest.mark.slow
def test_more_workers_that_fail_are_tried_once(tmp_path: Path) -> None:
    def rates(chosen: Config) -> float | None:
        many = chosen.num_workers > 6
        return None if many else 100.0 * max(1, chosen.num_workers)

    path = tmp_path / "run"
    run = swept(path, PretendedBench(rates=rates))
    assert run.recommendation is not None
    assert run.recommendation.config.num_workers == 6
    failures = collections.Counter(trial.config for trial in run.trials if trial.failure)
    assert {failure.num_workers for failure in failures} == {7, 8}
    assert set(failures.values()) == {1}
    resumed = swept(path, PretendedBench(rates=rates), listener := Quiet())
    assert len(resumed.trials) == len(run.trials)
    assert listener.predictions == [run.prediction]  # which its display's best rests on, too


class Raising(PretendedBench):
    """A dataset that raises."""

    def explain(self, *request: Any, **about: Any) -> Traced:
        """A trial that fails by the target's own fault."""
        self.rates = lambda _chosen: None
        trial, shown = super().explain(*request, **about)
        failure = Failure(kind="worker_exception", message="KeyError: 7")
        return dataclasses.replace(trial, failure=failure), shown


def test_what_raises_whatever_the_settings_is_tried_once_more_where_it_is_resumed(
    tmp_path: Path,
) -> None:
    path, raising = tmp_path / "run", Raising()
    for trials in (3, 4, 5):
        with pytest.raises(NothingMeasuredError, match="first failed"):
            swept(path, raising)
        assert len(read_run(path).trials) == trials


class WrongData(PretendedBench):
    """One on which some trials end as a real one's do."""

    def __init__(self, faults: dict[int, Failure], **rest: Any) -> None:
        super().__init__(**rest)
        self.faults = faults

    def explain(self, *request: Any, **about: Any) -> Traced:
        """A trial with its figures, or the fault of so many workers."""
        done, shown = super().explain(*request, **about)
        fault = self.faults.get(done.config.num_workers)
        if fault is None:
            return done, shown
        fields: dict[str, Any] = {
            "trial_id": done.id,
            "repetition": done.repetition,
            "wall_s": done.wall_s,
        }
        return failed(done.config, failure=fault, **fields), {}


OF_ITERABLE = led_header(target=target(kind="iterable"))
DOUBLED = Failure(kind="duplicated", message="Workers yield the same samples.", hint="Fix.")


def workers_of(run: Run) -> list[int]:
    return [trial.config.num_workers for trial in run.trials]


def test_with_duplicated_data_only_none_and_one_worker_are_measured_further(tmp_path: Path) -> None:
    bench = WrongData(dict.fromkeys((2, 4, 8), DOUBLED))
    run = swept(tmp_path / "run", bench)
    assert workers_of(run)[:3] == [0, 1, 2]
    assert set(workers_of(run)[3:]) == {0, 1}
    assert run.prediction is not None
    assert {cell.config.num_workers for cell in run.prediction.cells} == {0, 1}
    assert run.recommendation is not None
    assert run.recommendation.config.num_workers < 2
    assert run.recommendation.findings[0].code == "data.duplicated"
    assert read_run(tmp_path / "run").recommendation == run.recommendation


@pytest.mark.slow
def test_wrong_data_of_the_choice_has_all_predicted_again(tmp_path: Path) -> None:
    four = {4: dataclasses.replace(DOUBLED, kind="truncated", message="It ended early.")}
    run = swept(tmp_path / "run", WrongData(four), about=OF_ITERABLE)
    assert FOUR in measured(run)
    assert run.prediction is not None
    assert FOUR not in run.prediction.race
    assert run.recommendation is not None
    assert run.recommendation.config not in {FOUR, KEPT}
    assert workers_of(run).count(4) == 1


class _Longer(PretendedBench):
    """Each epoch has more batches than it promises, with any number of workers."""

    warning = "An epoch gave 20 batches where __len__ promises 10"

    def explain(self, request: TrialRequest, **about: Any) -> Traced:
        trial, sent = super().explain(request, **about)
        return dataclasses.replace(trial, warnings=(self.warning,)), sent


def test_what_seemed_wrong_in_an_earlier_session_is_right_once_more_is_known(
    tmp_path: Path,
) -> None:
    path = tmp_path / "run"
    with RunWriter.create(path, OF_ITERABLE) as writer:
        writer.append(trial(FOUR, warnings=(_Longer.warning,)))
    (alone,) = read_run(path).trials
    assert alone.failure is not None
    run = swept(path, _Longer())
    assert run.trials == read_run(path).trials
    assert all(each.failure is None for each in run.trials)
    assert run.recommendation is not None
    assert run.recommendation.config.num_workers == 4


def test_where_all_data_is_wrong_it_ends_soon_and_says_so(tmp_path: Path) -> None:
    short = dataclasses.replace(DOUBLED, kind="truncated", message="It ended early.")
    with pytest.raises(NothingMeasuredError, match=r"the right data.*: It ended early"):
        swept(tmp_path / "run", WrongData(dict.fromkeys(range(64), short)), about=OF_ITERABLE)
    assert workers_of(read_run(tmp_path / "run")) == [0, 1, 2]


def test_a_map_style_dataset_that_ends_early_is_tried_no_further(tmp_path: Path) -> None:
    short = dataclasses.replace(DOUBLED, kind="truncated", message="It ended early.")
    with pytest.raises(NothingMeasuredError, match=r"the right data.*: It ended early"):
        swept(tmp_path / "run", WrongData({1: short}))
    assert workers_of(read_run(tmp_path / "run")) == [0, 1]


def test_more_workers_than_an_iterable_takes_are_not_tried(tmp_path: Path) -> None:
    raised = Failure(kind="worker_exception", message="No samples found.", hint="Fix.")
    present = config(3)
    about = led_header(
        target=target(kind="iterable", own_config=present),
        plan=led_plan(calibration=(*CALIBRATING[:2], present, CALIBRATING[2]), present=present),
        machine=machine(CORES),
    )
    run = swept(tmp_path / "run", WrongData(dict.fromkeys(range(3, 64), raised)), about=about)
    assert workers_of(run)[:4] == [0, 1, 3, 2]
    assert set(workers_of(run)[4:]) <= {0, 1, 2}
    assert run.recommendation is not None
    assert run.recommendation.config.num_workers == 2
    assert run.recommendation.reasons[0].claim.startswith("Your settings (num_workers=3) fail:")


@pytest.mark.parametrize("planned", [led_plan(), plan((config(1), config(2)))], ids=["led", "grid"])
@pytest.mark.parametrize("is_fixed", [False, True])
def test_a_sweep_that_a_broken_sample_ended_is_gone_on_with(
    tmp_path: Path, *, planned: Plan, is_fixed: bool
) -> None:
    fault = Failure(kind="worker_exception", message="ValueError in main: sample 7", batches=43)
    broken = PretendedBench(rates=lambda _chosen: None, fault=fault)
    path, about = tmp_path / "run", led_header(plan=planned)
    with pytest.raises(TargetError, match="sample 7"):
        swept(path, broken, about=about)
    assert broken.calls == 2
    if is_fixed:
        found = swept(path, PretendedBench())
        assert found.recommendation is not None
        assert rate(found.recommendation.config) == max(map(rate, measured(found)))
        return
    with pytest.raises(TargetError, match="sample 7"):
        swept(path, broken)
    assert broken.calls == 3
