"""What the supervisor makes of several ranks, without processes."""

from __future__ import annotations

import copy
import dataclasses
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest
from builders import config, trial
from fake_processes import (
    MEASURED,
    RESULT,
    TRIAL,
    Clock,
    FakeLauncher,
    FakeWatcher,
    ImpatientInbox,
    exited,
    from_trial,
)

from dlprof.records import Config, RankFigures, Trial
from dlprof.trial.launch import LAUNCHER
from dlprof.trial.protocol import Message, TrialRequest
from dlprof.trial.runtime import Received
from dlprof.trial.state import TrialLimits, together
from dlprof.trial.supervisor import LauncherDiedError, Supervisor

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="ranks share pthread's barrier")

REQUEST = TrialRequest(config=Config(), ranks=2)
BLANK = Trial(id="t0001", config=Config(), repetition=0, outcome="completed")
NUMBERS = ("0", "1")


def result(rate: float, epoch_batches: int = 10) -> Message:
    """What a rank of that many batches a second reports, of four samples each."""
    sent = copy.deepcopy({**RESULT, "measured": {**MEASURED, "barrier_fraction": 0.0}})
    sent["measured"]["rate"]["batches_per_s"] = {"value": rate, "low": rate, "high": rate}
    sent["measured"]["rate"]["samples_per_s"] = {
        "value": 4 * rate,
        "low": 4 * rate,
        "high": 4 * rate,
    }
    sent["measured"]["startup_s"] = 1 / rate
    return {**sent, "epoch_batches": epoch_batches}


def born(number: str) -> Received:
    return from_trial("born", number, pid=99_999_990 + int(number))


def until_filled() -> list[list[Received]]:
    """What ranks say until they hold still for the observer: nothing before all are born."""
    names = ("window_start", "window_end", "filled")
    together = [from_trial(name, number) for name in names for number in NUMBERS]
    return [[born("0")], [born("1"), *together]]


def supervised(
    place: Path, scripts: Sequence[Sequence[Received]], afterwards: Sequence[Received] = ()
) -> tuple[Trial, list[FakeLauncher], FakeWatcher]:
    inbox = ImpatientInbox(Clock())
    launchers = [
        FakeLauncher(inbox, script, on_kill=[exited(-9, number)], number=number)
        for number, script in zip(NUMBERS, scripts, strict=False)
    ]
    watcher = FakeWatcher(inbox, answers=True, afterwards=afterwards)
    supervisor = Supervisor(
        launchers=launchers,
        watcher=watcher,
        inbox=inbox,
        directory=place,
        limits=TrialLimits(wall_s=30.0, stall_s=20.0, usable_cores=2.0),
        clock=inbox.clock,
    )
    trial, _ = supervisor.run(REQUEST, BLANK)
    assert list(place.iterdir()) == []
    return trial, launchers, watcher


def test_the_record_of_all_is_that_of_the_slowest(tmp_path: Path) -> None:
    ends = [
        event
        for number, rate in zip(NUMBERS, (10.0, 8.0), strict=True)
        for event in (Received(TRIAL + number, result(rate)), exited(0, number))
    ]
    trial, _, watcher = supervised(tmp_path, until_filled(), ends)

    assert trial.outcome == "completed"
    assert [each.samples_per_s and each.samples_per_s.value for each in trial.ranks] == [40.0, 32.0]
    assert trial.samples_per_s is not None
    assert trial.together_samples_per_s is not None
    assert (trial.samples_per_s.value, trial.together_samples_per_s.value) == (32.0, 64.0)
    assert trial.startup_s == 0.125
    # Of one rank: half of what was seen of both.
    assert (trial.usage.own_cpu_cores, trial.usage.available_cpu_cores) == (0.75, 1.0)
    assert trial.usage.main_runnable == 0.25
    assert (trial.usage.pss_peak_bytes, trial.usage.other_cpu_cores) == (500, 0.0)
    # One observer, of both, asked once both hold still.
    assert watcher.orders == ["watch 99999990 99999991", "start", "end", "memory", "unwatch"]


def test_of_ranks_that_step_together_the_record_is_of_the_one_that_waits_for_none(
    tmp_path: Path,
) -> None:
    ends = []
    for number, rate, waits in (("0", 10.0, 0.6), ("1", 10.1, 0.0)):
        sent = result(rate)
        sent["measured"]["barrier_fraction"] = waits
        ends += [Received(TRIAL + number, sent), exited(0, number)]
    trial, _, _ = supervised(tmp_path, until_filled(), ends)
    assert trial.batches_per_s is not None
    assert trial.batches_per_s.value == 10.1


def test_one_rank_on_its_node_has_what_the_node_used(tmp_path: Path) -> None:
    ends = [Received(TRIAL + "0", result(10.0)), exited(0, "0")]
    said = [from_trial(name, "0") for name in ("window_start", "window_end", "filled")]
    trial, _, _ = supervised(tmp_path, [[born("0"), *said]], ends)
    (figures,) = trial.ranks
    assert trial.usage.own_cpu_cores is not None
    assert (figures.own_cpu_cores, figures.other_cpu_cores) == (trial.usage.own_cpu_cores, 0.0)


def test_uneven_epochs_are_named(tmp_path: Path) -> None:
    ends = [
        event
        for number, batches in zip(NUMBERS, (10, 9), strict=True)
        for event in (Received(TRIAL + number, result(10.0, batches)), exited(0, number))
    ]
    trial, _, _ = supervised(tmp_path, until_filled(), ends)
    assert any("10 batches on one rank and 9 on another" in each for each in trial.warnings)


@pytest.mark.parametrize(("samples", "named"), [((400, 40), True), ((400, 396), False)])
def test_uneven_epochs_without_a_length_are_named_as_they_were_seen(
    tmp_path: Path,
    samples: tuple[int, int],
    named: bool,
) -> None:
    ends = []
    for number, count in zip(NUMBERS, samples, strict=True):
        sent = {**result(10.0), "epoch_batches": None}
        sent["measured"]["epoch_samples"] = count
        ends += [Received(TRIAL + number, sent), exited(0, number)]
    trial, _, _ = supervised(tmp_path, until_filled(), ends)
    assert any("batches on one rank" in each for each in trial.warnings) is named


def test_a_rank_that_dies_ends_the_trial_and_is_named(tmp_path: Path) -> None:
    trial, launchers, _ = supervised(tmp_path, [[born("0")], [born("1"), exited(-9, "1")]])

    assert trial.failure is not None
    assert trial.failure.message.startswith("Rank 1 of 2 on ")
    assert "SIGKILL" in trial.failure.message
    assert [launcher.kills for launcher in launchers] == [1, 0]


def test_a_fork_server_that_dies_is_named_by_its_rank(tmp_path: Path) -> None:
    with pytest.raises(LauncherDiedError, match=r"Rank 1 of 2 on \S+: The process that starts"):
        supervised(tmp_path, [[born("0")], [Received(f"{LAUNCHER}1", None)]])


def test_what_a_rank_says_of_its_own_end_is_the_trials_failure(tmp_path: Path) -> None:
    failure = {"kind": "worker_exception", "message": "ValueError", "hint": "fix it"}
    sent = [born("1"), from_trial("failed", "1", failure=failure), exited(0, "1")]
    trial, launchers, _ = supervised(tmp_path, [[born("0")], sent])

    assert trial.failure is not None
    assert trial.failure.kind == "worker_exception"
    assert trial.failure.message.endswith(": ValueError")
    assert launchers[0].kills == 1


def test_ranks_that_hang_are_all_ended(tmp_path: Path) -> None:
    trial, launchers, _ = supervised(tmp_path, [[born("0")], [born("1")]])
    assert trial.outcome == "timed_out"
    assert all(launcher.kills == 1 for launcher in launchers)


def test_workers_that_have_data_on_any_rank_are_fed() -> None:
    """The slowest rank has a shard less, and the others would miss its worker."""
    ranks = []
    for number, (rate, fed) in enumerate(((1000.0, 2), (600.0, 1), (990.0, None))):
        alone = trial(config(4), rate, fed_workers=fed)
        own = RankFigures(rank=number, host="vm", batches_per_s=alone.batches_per_s)
        ranks.append(dataclasses.replace(alone, ranks=(own,)))
    found, slowest = together(ranks)
    assert (slowest, found.batches_per_s, found.fed_workers) == (1, ranks[1].batches_per_s, 2)
