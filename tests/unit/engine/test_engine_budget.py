"""A sweep ends in time for what follows its last trial."""

from __future__ import annotations

import dataclasses
import types
from pathlib import Path
from typing import Any

import pytest
from builders import config
from led_sweeps import PretendedBench, Traced, led_header, led_plan, swept

from dlprof.engine.trials import Deadline
from dlprof.errors import NothingMeasuredError, UsageError
from dlprof.records import Failure
from dlprof.settings import SweepSettings
from dlprof.store import read_run
from dlprof.trial.protocol import TrialRequest

BUDGET_S = 12.0
PROMISED = 1.1


@pytest.mark.parametrize("ending_s", [0.7, 1.5, 3.0])
@pytest.mark.parametrize(
    "lasts_s",
    [1.0, *(pytest.param(each, marks=pytest.mark.slow) for each in (1.2, 1.9, 2.6)), 3.3],
)
def test_what_follows_the_last_trial_fits_into_what_is_promised(
    tmp_path: Path, ending_s: float, lasts_s: float
) -> None:
    bench = PretendedBench(lasts_s=lasts_s)
    about = led_header(plan=led_plan(search="grid"))
    swept(tmp_path / "run", bench, budget_s=BUDGET_S, about=about, ending_s=ending_s)
    assert bench.now_s + ending_s <= PROMISED * BUDGET_S + 1e-9
    assert bench.now_s > 0.6 * BUDGET_S  # and no less is done than there is time for


@pytest.mark.parametrize(
    ("budget_s", "ending_s", "planned_s", "cut_s"),
    [
        (90.0, 0.7, 90.0, 94.5),
        (12.0, 0.7, 12.0, 12.5),
        (12.0, 3.0, 10.2, 10.2),
        (4.0, 0.7, 3.7, 3.7),
    ],
)
def test_trials_end_when_the_rest_still_fits(
    budget_s: float, ending_s: float, planned_s: float, cut_s: float
) -> None:
    deadline = Deadline(budget_s=budget_s, began_s=100.0, ending_s=ending_s, clock=lambda: 102.0)
    assert deadline.elapsed_s == 2.0
    assert deadline.left_s + 2.0 == pytest.approx(planned_s)
    assert deadline.cut_s + 2.0 == pytest.approx(cut_s)


@pytest.mark.parametrize(("named", "left_s"), [(True, -7.3), (False, 30.0)])
def test_a_budget_that_nobody_named_leaves_two_thirds_to_trials(named: bool, left_s: float) -> None:
    """However long the target took; until then there is as much time again as a trial may take."""
    now_s = [0.0]
    deadline = Deadline(budget_s=45.0, began_s=0.0, named=named, clock=lambda: now_s[0])
    assert deadline.for_trials() == deadline
    now_s[0] = 45.0 + 7.3
    assert deadline.for_trials().left_s == pytest.approx(left_s)
    assert deadline.for_trials().elapsed_s == 45.0 + 7.3  # which the run file and faults say
    settings = SweepSettings(budget_s=45.0, timeout_s=60.0)
    if named:
        with pytest.raises(UsageError, match="can't hold a single trial"):
            deadline.spare_s(settings)
    else:
        assert deadline.spare_s(settings) == pytest.approx(deadline.cut_s + 60.0)


def test_a_slow_start_means_a_slow_end(monkeypatch: pytest.MonkeyPatch) -> None:
    now = types.SimpleNamespace(monotonic=lambda: 106.0)
    monkeypatch.setattr("dlprof.engine.trials.time", now)
    assert Deadline.since(None, 20.0).ending_s < 1.0
    started = Deadline.since(100.0, 20.0)
    assert started.ending_s == 3.0
    assert dataclasses.replace(started, clock=now.monotonic).elapsed_s == 6.0


class _Endless(PretendedBench):
    """Trials that only the budget ends."""

    def explain(self, request: TrialRequest, **about: Any) -> Traced:
        trial, sent = super().explain(request, **about)
        return dataclasses.replace(trial, outcome="timed_out"), sent


def test_the_first_trial_is_kept_however_it_ends_whatever_was_skipped_before(
    tmp_path: Path,
) -> None:
    """Else what was skipped seemed to be why there is no rate."""
    path, endless = tmp_path / "run", Failure(kind="timeout", message="It did not end.")
    bench = _Endless(rates=lambda _: None, fault=endless, lasts_s=2 * BUDGET_S)
    few = Failure(kind="shared_memory", message="64 batches need more.")
    with pytest.raises(NothingMeasuredError, match="it failed: It did not end"):
        swept(path, bench, budget_s=BUDGET_S, faults={config(64): few})
    assert [trial.outcome for trial in read_run(path).trials] == ["skipped", "timed_out"]


class _Slowing(PretendedBench):
    """Of whose trials only the first ends in time."""

    def explain(self, request: TrialRequest, **about: Any) -> Traced:
        limits.append(about["wall_s"])
        self.lasts_s = 2 * BUDGET_S if self.calls else 1.0
        trial, sent = super().explain(request, **about)
        return dataclasses.replace(trial, outcome="timed_out") if self.calls > 1 else trial, sent


limits = list[float]()


def test_nothing_is_begun_once_the_budget_is_spent(tmp_path: Path) -> None:
    """Ranks would be started to be ended at once."""
    limits.clear()
    about = led_header(plan=led_plan(search="grid"))
    run = swept(tmp_path / "run", _Slowing(ranks=2), budget_s=BUDGET_S, about=about)
    assert len(run.trials) == 1
    assert len(limits) == 2
    assert min(limits) > 0
