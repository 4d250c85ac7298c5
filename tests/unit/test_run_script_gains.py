"""What a fix would bring to a whole script, and where nobody can say so."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import builders
import pytest
from test_run_diagnosis import BATCHES, CONFIG, LOADER, TRACED, durations, stage

from dlprof.advise.thresholds import STARTS_CPU_S
from dlprof.advise.wording import NO_LIMIT
from dlprof.integrations.diagnosis import diagnose_script
from dlprof.internals import OF_ITERABLES
from dlprof.records import (
    Config,
    Diagnosis,
    Estimate,
    Explanation,
    Finding,
    Headroom,
    LoaderCall,
    Usage,
    WatchedLoader,
    WatchedScript,
)
from dlprof.report.script import script_report
from dlprof.report.terminal import plain_text

WAITING = dataclasses.replace(TRACED, step_cpu_s=0.001)


def diagnosed(
    loader: WatchedLoader = LOADER,
    shown: Explanation = WAITING,
    *,
    wall_s: float = 16.0,
    **rest: Any,
) -> Diagnosis:
    found = diagnose_script(
        [loader], [shown], builders.machine(2), builders.target(), wall_s=wall_s, **rest
    )
    assert found is not None
    return found


def computing(cpu_s: float, *, step_cpu_s: float | None) -> Explanation:
    """Batches that cost CPU alone, and a step of 10 ms in the consumer's thread."""
    rest = tuple(each for each in TRACED.stages if each.name != "fetch")
    costs = dataclasses.replace(TRACED.costs, cpu_s=(cpu_s,) * BATCHES, io_s=(0.0,) * BATCHES)
    return dataclasses.replace(
        TRACED,
        stages=(stage("fetch", cpu_s, cpu_s), *rest),
        costs=costs,
        step_cpu_s=step_cpu_s,
    )


def test_a_script_gains_less_than_its_loop() -> None:
    """6 of 16 s are the loop: 150 batches of 30 ms of waiting and 10 ms of step."""
    first = diagnosed().findings[0]
    assert first.predicted_gain is not None
    assert first.script_gain is not None
    assert first.predicted_gain.value > 2.5
    after_s = 10.0 + 6.0 / first.predicted_gain.value
    assert first.script_gain.value == pytest.approx(16.0 / after_s, rel=0.03)
    # One number of workers shows no limit that more would share: then more only cost their start.
    assert first.evidence["gain_if"] == NO_LIMIT
    assert 0.95 < first.script_gain.ends[0] <= 1 < first.script_gain.value
    assert "gain_limit" not in first.evidence  # as epochs also start


def test_a_script_gains_no_more_than_the_most_that_its_loop_may() -> None:
    """6 of 60 s are the loop: however many times as fast, the other 54 s stay."""
    first = diagnosed(wall_s=60.0).findings[0]
    assert first.predicted_gain is not None
    assert first.script_gain is not None
    most = 60.0 / (54.0 + 6.0 / first.predicted_gain.ends[1])
    assert first.script_gain.ends[1] == pytest.approx(most)
    assert first.script_gain.ends[0] < 0.95  # two runs differ by more than that brings


def test_no_fix_brings_more_than_a_perfect_loader() -> None:
    """A step of 28 ms behind a wait of 12 ms: 1.43x without it, whatever two runs differ by."""
    loader = dataclasses.replace(
        LOADER,
        waited_s=1.8,
        stepped_s=4.2,
        wait=durations(0.012, BATCHES - 1),
        step=durations(0.028, BATCHES),
        startup_s=0.04,
    )
    stages = (*(s for s in WAITING.stages if s.name != "step"), stage("step", 0.028, 0.001))
    first = diagnosed(loader, dataclasses.replace(WAITING, stages=stages)).findings[0]
    assert first.predicted_gain is not None
    assert first.script_gain is not None
    assert 1.3 < first.predicted_gain.value < first.predicted_gain.ends[1] == pytest.approx(6 / 4.2)
    assert 1.1 < first.script_gain.value < first.script_gain.ends[1] == pytest.approx(16 / 14.2)
    slowed = Headroom(
        rounds=8,
        live_batches=80,
        replayed_batches=80,
        extra_steps=160,
        extra_s=0.0,
        period_s=0.04,
        step_s=0.024,
        speedup=Estimate(value=1.67, low=1.6, high=1.7),
        waiting_fraction=Estimate(value=0.3, low=0.29, high=0.31),
        slowed_fraction=Estimate(value=0.1, low=0.09, high=0.11),
    )
    assert dataclasses.replace(loader, headroom=slowed).cost_s == pytest.approx(1.8 + 0.004 * 150)


def test_batches_that_lay_ready_after_a_pause_of_headroom_make_no_loop_faster() -> None:
    """A third of the batches came without a wait, and is left out of those."""
    paused = Headroom(
        rounds=10,
        live_batches=80,
        replayed_batches=80,
        extra_steps=100,
        extra_s=0.0,
        period_s=0.04,
        step_s=0.01,
        speedup=Estimate(value=4.0, low=3.9, high=4.1),
        waiting_fraction=Estimate(value=0.75, low=0.74, high=0.76),
        slowed_fraction=Estimate(value=0.0, low=-0.01, high=0.01),
    )
    usual = dataclasses.replace(LOADER, wait=durations(0.03, BATCHES - 1))
    found = dataclasses.replace(
        usual, waited_s=3.0, wait=durations(0.03, BATCHES - 1 - 50), headroom=paused
    )
    (one, *_), (two, *_) = diagnosed(usual).findings, diagnosed(found, wall_s=14.5).findings
    assert one.predicted_gain is not None
    assert two.predicted_gain == one.predicted_gain
    assert two.script_gain == one.script_gain


def test_one_change_of_settings_is_one_finding() -> None:
    """Waiting is why more workers pay; the same fix is not given twice."""
    findings = diagnosed().findings
    assert [each.code for each in findings if each.fix and each.fix.dataloader_kwargs] == [
        "too_few_workers"
    ]
    assert findings[0].title == "More workers would pay: blocking I/O in __getitem__"
    assert "num_workers=4" in findings[0].explanation
    assert "are blocked for 37 ms on storage or network" in findings[0].explanation


def test_one_change_is_one_finding_and_graded_where_the_users_class_does_not_take_it() -> None:
    call = LoaderCall(text="My({settings})", fixed={"num_workers": "My takes no num_workers"})
    taken = diagnosed(dataclasses.replace(LOADER, call=call))
    (own, *rest), (free, *others) = taken.findings, diagnosed().findings
    assert own.fix is not None
    assert not own.fix.dataloader_kwargs
    assert "prevents it: My takes no num_workers." in own.fix.text
    assert (own.title, own.predicted_gain, own.script_gain, own.severity) == (
        *(free.title, free.predicted_gain, free.script_gain, free.severity),
    )
    assert own.script_gain is not None
    assert [each.code for each in rest] == [each.code for each in others]
    assert own.evidence["gain_workers"] == 4
    assert 0 < own.evidence["gain_wait_fraction"] < 1
    assert taken.notes[-1] == diagnosed().notes[-1]
    assert taken.notes[-1].startswith("With num_workers=4 the model predicts ")


def test_a_loop_that_gets_faster_waits_for_less_of_its_time() -> None:
    """Beside others, where the loader has had no more of the cores than it used."""
    usage = Usage(own_cpu_cores=0.06, available_cpu_cores=0.06, other_cpu_cores=1.94)
    first = diagnosed(usage=usage).findings[0]
    assert first.predicted_gain is not None
    assert first.predicted_gain.value > 1.3
    assert first.evidence["gain_wait_fraction"] < 1 - 0.25 * 1.3  # of 75% now


SPAWNED = dataclasses.replace(CONFIG, num_workers=2, persistent_workers=True, start_method="spawn")


def spawned(epochs: int, *, made: int = 1) -> Diagnosis:
    """3 s to start two workers by spawn; an epoch takes 2 s."""
    batches = 50 * epochs
    loader = dataclasses.replace(
        LOADER,
        config=SPAWNED,
        epochs=epochs,
        epochs_completed=epochs,
        made=made,
        batches=batches,
        waited_s=3.0 * made + 1.5 * epochs,
        stepped_s=0.5 * epochs,
        startup_s=3.0,
        turnover=durations(3.0 if made > 1 else 0.04, epochs - 1),
        wait=durations(0.03, batches - epochs),
        step=durations(0.01, batches),
    )
    shown = dataclasses.replace(WAITING, config=SPAWNED, workers=TRACED.workers * 2)
    return diagnosed(loader, shown, wall_s=4.0 + 3.0 * made + 2.0 * epochs)


def test_a_start_that_is_paid_once_is_not_counted_for_each_epoch() -> None:
    cause = next(each for each in spawned(5).findings if each.code == "startup")
    assert cause.evidence["share_of_epoch"] == pytest.approx(3 / 13, rel=0.01)
    assert "5 epochs" in cause.explanation
    assert cause.predicted_gain is not None
    assert cause.predicted_gain.value == pytest.approx(13 / 10.05, rel=0.02)
    assert cause.script_gain is not None
    assert cause.script_gain.value == pytest.approx(17 / 14, rel=0.02)
    assert cause.severity != "high"
    # Nobody weighs a script's dataset.
    assert cause.fix is not None
    assert cause.fix.text.endswith("By spawn each is sent the dataset: dlprof profile weighs it.")


@pytest.mark.parametrize("epochs", [1, 3])
def test_workers_that_persist_pay_from_the_second_epoch_on(epochs: int) -> None:
    batches = 40 * epochs
    loader = dataclasses.replace(
        LOADER,
        config=dataclasses.replace(CONFIG, num_workers=2),
        epochs=epochs,
        epochs_completed=epochs,
        batches=batches,
        waited_s=0.9 * epochs,
        stepped_s=0.4 * epochs,
        startup_s=0.6,
        turnover=durations(0.6, epochs - 1) if epochs > 1 else None,
        wait=durations(0.008, batches - epochs),
        step=durations(0.01, batches),
    )
    traced = dataclasses.replace(WAITING, config=loader.config)  # type: ignore[arg-type]  # it has one
    found = diagnosed(loader, traced, wall_s=3.0 * epochs).findings
    cause = next(each for each in found if each.code == "startup")
    assert cause.fix is not None
    assert bool(cause.fix.dataloader_kwargs) is (epochs > 1)
    assert ("pays from the second epoch on" in cause.fix.text) is (epochs == 1)
    assert (cause.script_gain is None) is (epochs == 1)


@pytest.mark.parametrize(("start_s", "leads"), [(0.35, False), (0.8, True)])
def test_an_only_start_hides_no_larger_wait_for_batches(start_s: float, leads: bool) -> None:
    """0.5 s of waiting in an only epoch of 0.66 s: keeping workers would shorten none of it."""
    loader = dataclasses.replace(
        LOADER,
        config=dataclasses.replace(CONFIG, num_workers=2),
        epochs_completed=1,
        batches=40,
        waited_s=start_s + 0.5,
        stepped_s=0.16,
        startup_s=start_s,
        wait=durations(0.0125, 39),
        step=durations(0.004, 40),
    )
    workers = WAITING.workers * 2
    traced = dataclasses.replace(WAITING, config=loader.config, workers=workers)  # type: ignore[arg-type]  # it has one
    found = diagnosed(loader, traced, wall_s=5.0).findings
    assert any(each.code == "startup" for each in found)
    assert (found[0].code == "startup") is leads


def test_a_change_that_costs_the_script_time_is_not_advised() -> None:
    """50 batches of 40 ms beside workers that take 1.5 s each to start: more only cost more."""
    found = spawned(1).findings
    cause = next(each for each in found if each.code in ("fetch.io", "too_few_workers"))
    assert cause.fix is not None
    assert not cause.fix.dataloader_kwargs
    assert "More workers don't pay in a script this short" in cause.fix.text
    assert "more epochs, workers by fork" in cause.fix.text
    assert cause.predicted_gain is cause.script_gain is None
    assert cause.severity != "high"
    gains = [each.script_gain for each in found if each.fix and each.fix.dataloader_kwargs]
    assert all(gain is not None and gain.value >= 1 for gain in gains)


def from_no_workers(
    usage: Usage, batches: int = BATCHES, *, epochs: int = 2, first_s: float = 0.065
) -> Finding:
    """Batches that wait for 63 ms beside steps of 2 ms, in epochs without workers.

    The first batch of all takes ``first_s``.
    """
    config = Config(num_workers=0, batch_size=8)
    loader = dataclasses.replace(
        LOADER,
        config=config,
        epochs=epochs,
        epochs_completed=epochs,
        batches=batches,
        waited_s=0.065 * (batches - 1) + first_s,
        stepped_s=0.002 * batches,
        startup_s=first_s,
        wait=durations(0.065, batches - epochs),
        step=durations(0.002, batches),
    )
    rest = tuple(each for each in WAITING.stages if each.name not in ("fetch", "step", "wait"))
    shown = dataclasses.replace(
        WAITING,
        config=config,
        stages=(stage("fetch", 0.064, 0.001), stage("wait", 0.065), stage("step", 0.002), *rest),
        costs=dataclasses.replace(WAITING.costs, io_s=(0.063,) * BATCHES),
    )
    wall_s = 2.0 + loader.waited_s + loader.stepped_s
    return diagnosed(loader, shown, wall_s=wall_s, usage=usage).findings[0]


def test_cores_that_others_kept_for_a_moment_leave_a_start_its_fair_share() -> None:
    busy = from_no_workers(Usage(available_cpu_cores=0.1, other_cpu_cores=1.9))
    assert busy.fix is not None
    assert busy.script_gain is not None
    assert busy.fix.dataloader_kwargs["num_workers"] > 2
    assert busy.script_gain.value > 2.2


def loop_s(batches: int, workers: int, *, start_s: float, first_s: float) -> float:
    """Seconds of torch's loop over such batches: two asked of each worker, taken in their order.

    All workers start within ``start_s``, and the first batch of each takes ``first_s``.
    """
    taken, came = list[float](), list[float]()
    for batch in range(batches):
        before = batch - workers
        ready_s = came[before] if before >= 0 else start_s
        asked_s = taken[before - workers] if before >= workers else 0.0
        came.append(max(ready_s, asked_s) + (0.065 if before >= 0 else first_s))
        taken.append(max(came[-1], taken[-1] + 0.002 if taken else 0.0))
    return taken[-1] + 0.002


FORK_S = STARTS_CPU_S["fork"]
FREE = Usage(available_cpu_cores=2.0, other_cpu_cores=0.0)


@pytest.mark.parametrize("batches", [20, 61, 100])
@pytest.mark.parametrize("first_s", [0.065, 0.5])
def test_a_short_loop_is_promised_with_its_start_and_its_end(batches: int, first_s: float) -> None:
    """Each of more workers than cores imports by itself what the first batch was slow for."""
    found = from_no_workers(FREE, batches, epochs=1, first_s=first_s)
    assert found.fix is not None
    workers = found.fix.dataloader_kwargs["num_workers"]
    crowded_s = 0.065 + (first_s - 0.065) * workers / 2
    after_s = loop_s(batches, workers, start_s=FORK_S * workers / 2, first_s=crowded_s)
    assert found.predicted_gain is not None
    now_s = 0.067 * (batches - 1) + first_s + 0.002
    assert found.predicted_gain.value == pytest.approx(now_s / after_s, rel=0.15)


FELT = Usage(available_cpu_cores=0.1, other_cpu_cores=1.9, run_queue_wait_fraction=0.9)
ASLEEP = Usage(available_cpu_cores=0.2, other_cpu_cores=1.8, run_queue_wait_fraction=0.4)


@pytest.mark.parametrize(
    ("crowded", "less_so", "busy", "rel", "share"),
    [
        # Two at once beside 19 that want a core as much.
        (FELT, dataclasses.replace(FELT, run_queue_wait_fraction=0.0), 21, 0.1, 0.8),
        # Where main alone was seen to wait, others are between what it felt and what was counted:
        # the middle of 3 and of 8.
        (dataclasses.replace(ASLEEP, other_runnable=8.0), ASLEEP, 2 + math.sqrt(3 * 8), 0.15, 0.9),
    ],
    ids=["felt", "counted"],
)
def test_starting_workers_takes_as_long_as_others_let_each_of_them_wait(
    crowded: Usage, less_so: Usage, busy: float, rel: float, share: float
) -> None:
    """Others keep the two cores busy, and what sleeps waits less for one than what starts."""
    long, short = (from_no_workers(each, 61, epochs=1) for each in (crowded, less_so))
    assert long.fix is not None
    assert long.predicted_gain is not None
    assert short.predicted_gain is not None
    workers = long.fix.dataloader_kwargs["num_workers"]
    after_s = loop_s(61, workers, start_s=FORK_S * workers * busy / 2 / 2, first_s=0.065)
    assert long.predicted_gain.value == pytest.approx(0.067 * 61 / after_s, rel=rel)
    assert long.predicted_gain.value < share * short.predicted_gain.value


def test_a_start_waits_behind_no_more_threads_of_others_than_were_counted() -> None:
    """What workers wait for beside them is each other."""
    felt = Usage(available_cpu_cores=1.5, other_cpu_cores=0.5, run_queue_wait_fraction=0.95)
    alone = dataclasses.replace(felt, run_queue_wait_fraction=0.0)
    counted = dataclasses.replace(felt, other_runnable=0.5)
    gains = [from_no_workers(each, 61, epochs=1).predicted_gain for each in (felt, counted, alone)]
    uncounted, known, quiet = (None if each is None else each.value for each in gains)
    assert known == quiet
    assert uncounted is not None
    assert known is not None
    assert uncounted < known


def test_workers_of_now_are_also_ended_after_the_change() -> None:
    """150 batches in one epoch: 0.1 s to the first batch, and 0.5 s in the last ``next()``."""
    begun = dataclasses.replace(
        LOADER,
        epochs_completed=1,
        startup_s=0.1,
        wait=durations(0.03, BATCHES - 1),
        waited_s=0.1 + 0.03 * (BATCHES - 1),
    )
    ended = dataclasses.replace(begun, waited_s=begun.waited_s + 0.5)
    gains = [diagnosed(each, wall_s=20.0).findings[0].predicted_gain for each in (begun, ended)]
    plain, slow = (each.value for each in gains if each is not None)
    now_s = begun.waited_s + begun.stepped_s
    # More workers end no sooner: it takes as many times as long as there are more.
    assert (now_s + 0.5) / slow - now_s / plain >= 0.5


def test_the_fewer_batches_there_are_the_fewer_workers_are_worth_their_start() -> None:
    """The gain of the loop has the starts in it, and is that by which workers are counted."""
    usage = Usage(available_cpu_cores=1.9, other_cpu_cores=0.1)
    short, long = from_no_workers(usage, 40), from_no_workers(usage, 4000)
    assert short.fix is not None
    assert long.fix is not None
    counts = [each.fix.dataloader_kwargs["num_workers"] for each in (short, long) if each.fix]
    assert counts[0] < counts[1]
    assert short.predicted_gain is not None
    assert long.predicted_gain is not None
    assert short.predicted_gain.value < 0.7 * long.predicted_gain.value


def test_a_start_by_another_method_says_nothing_of_the_wait_between_batches() -> None:
    found = spawned(3)
    assert found.findings[0].fix is not None
    assert found.findings[0].fix.dataloader_kwargs == {"multiprocessing_context": "fork"}
    assert not any("the model" in note for note in found.notes)


def test_a_step_of_several_threads_promises_nothing_to_workers_that_compute() -> None:
    alone = dataclasses.replace(CONFIG, num_workers=0, prefetch_factor=None)
    loader = dataclasses.replace(LOADER, config=alone)
    shown = dataclasses.replace(computing(0.030, step_cpu_s=0.020), config=alone, workers=())
    first = diagnosed(loader, shown).findings[0]
    assert first.code == "too_few_workers"
    assert (first.predicted_gain, first.script_gain) == (None, None)
    assert first.severity != "high"
    assert "this gain is that of loading alone" in first.doubtful
    assert "Run the script with num_workers=2" in first.doubtful
    assert "while no step computes" in first.explanation


def test_a_step_that_sleeps_while_idle_threads_spin_is_not_one_of_many() -> None:
    """Torch's pool spins for a while after collating: 4 ms in all threads of a step of 10 ms."""
    alone = dataclasses.replace(CONFIG, num_workers=0, prefetch_factor=None)
    shown = dataclasses.replace(computing(0.030, step_cpu_s=0.004), config=alone, workers=())
    sleeps = (*(each for each in shown.stages if each.name != "step"), stage("step", 0.010, 0.0003))
    shown = dataclasses.replace(shown, stages=sleeps)
    first = diagnosed(dataclasses.replace(LOADER, config=alone), shown).findings[0]
    assert first.code == "too_few_workers"
    assert first.script_gain is not None


def test_a_step_of_one_thread_shares_the_cores_with_workers() -> None:
    """Two workers at 30 ms a batch and a step of 10 ms on two cores: 20 ms a batch, not 15.

    With all cores busy each computes for a third longer, as measured, or not.
    """
    alone = dataclasses.replace(CONFIG, num_workers=0, prefetch_factor=None)
    loader = dataclasses.replace(LOADER, config=alone)
    shown = dataclasses.replace(computing(0.030, step_cpu_s=0.010), config=alone, workers=())
    first = diagnosed(loader, shown).findings[0]
    assert first.code == "too_few_workers"
    assert first.predicted_gain is not None
    assert first.predicted_gain.value == pytest.approx(40 / 20 / 1.33, rel=0.07)
    assert (first.predicted_gain.high or 0.0) >= 40 / 20
    assert first.script_gain is not None


@pytest.mark.parametrize("step_cpu_s", [None, 0.018])
def test_nothing_is_high_beside_a_step_that_takes_the_cores(step_cpu_s: float | None) -> None:
    shown = dataclasses.replace(TRACED, step_cpu_s=step_cpu_s)
    findings = diagnosed(LOADER, shown).findings
    assert findings
    assert "high" not in {each.severity for each in findings}


def test_waits_beside_the_main_thread_are_no_part_of_the_scripts_time() -> None:
    aside = dataclasses.replace(LOADER, background_s=4.0)
    first = diagnosed(aside).findings[0]
    assert first.script_gain is None
    assert first.severity != "high"
    assert "Run the script with num_workers=" in first.doubtful


ITERABLE = dataclasses.replace(
    LOADER,
    sampler="_InfiniteConstantSampler",
    config=dataclasses.replace(CONFIG, num_workers=2),
    epochs=2,
    epochs_completed=2,
)


def test_duplicated_data_comes_first_and_no_speed_of_it_is_promised() -> None:
    found = diagnosed(dataclasses.replace(ITERABLE, duplicated=True))
    assert [each.code for each in found.findings] == ["data.duplicated"]
    assert found.findings[0].severity == "high"
    assert "train.py:3" in found.findings[0].explanation


@pytest.mark.parametrize(
    ("asks", "start_method", "said"),
    [
        (False, "fork", "never asks get_worker_info()"),
        (None, "spawn", "wasn't seen with several workers"),
        (True, "fork", ""),
    ],
)
def test_more_workers_of_an_iterable_may_repeat_its_samples(
    asks: bool | None,
    start_method: str,
    said: str,
) -> None:
    loader = dataclasses.replace(ITERABLE, config=CONFIG, epochs=1, asks_worker=asks)
    # Mostly they compute: a limit that workers may share is no doubt here.
    shown = computing(0.02, step_cpu_s=0.001)
    costs = dataclasses.replace(shown.costs, io_s=(0.018,) * BATCHES)
    stages = (stage("fetch", 0.038, 0.02), *shown.stages[1:])
    shown = dataclasses.replace(shown, costs=costs, stages=stages)
    cause = diagnosed(loader, shown, start_method=start_method, wall_s=7.0).findings[0]
    assert cause.fix is not None
    assert cause.fix.dataloader_kwargs["num_workers"] > 1
    assert said in cause.fix.text
    assert ("repeats all of them" in cause.fix.text) is bool(said)
    assert cause.severity == ("medium" if said else "high")


def test_more_workers_of_a_scripts_iterable_are_advised_with_what_they_take_for_granted() -> None:
    loader = dataclasses.replace(ITERABLE, config=CONFIG, epochs=1, asks_worker=True)
    run = dataclasses.replace(
        builders.run([]),
        watched=(loader,),
        explanations=(WAITING,),
        diagnosis=diagnosed(loader, wall_s=7.0),
        script=WatchedScript(wall_s=7.0, ending="returned", waited_s=4.5, wait_fraction=4.5 / 7),
    )
    lines = plain_text(script_report(run), width=200).splitlines()
    for row in ("Speed-up", "Overall"):
        (line,) = (each for each in lines if row in each)
        assert "if its shards feed all workers alike" in line


def test_wrong_data_of_a_cheap_loader_comes_before_the_cause_of_another() -> None:
    cheap = dataclasses.replace(ITERABLE, name="val.py:9", waited_s=0.01, duplicated=True)
    found = diagnose_script(
        [LOADER, cheap], [WAITING], builders.machine(2), builders.target(), wall_s=16.0
    )
    assert found is not None
    assert [each.code for each in found.findings][:2] == ["data.duplicated", "too_few_workers"]
    assert "val.py:9" in found.findings[0].explanation


@pytest.mark.parametrize(
    ("promised", "completed", "code"),
    [
        (200, 2, "data.truncated"),
        (150, 2, None),
        (154, 2, None),
        (155, 2, "data.truncated"),
        (146, 2, None),
        (145, 2, "data.duplicated"),
        (80, 2, "data.duplicated"),
        (80, 1, "data.duplicated"),
        (200, 1, None),
        (None, 2, None),
    ],
)
def test_epochs_that_are_not_as_long_as_promised(
    promised: int | None, completed: int, code: str | None
) -> None:
    """75 batches in each of two; each of two workers may end with one that is not full."""
    loader = dataclasses.replace(ITERABLE, promised_batches=promised, epochs_completed=completed)
    found = [each for each in diagnosed(loader).findings if each.code.startswith("data.")]
    assert [each.code for each in found] == ([] if code is None else [code])
    said = f"2 epochs gave 150 batches where __len__ promises {promised}."
    assert all(said in each.explanation for each in found)


def test_a_length_of_a_dataset_that_batches_itself_may_be_that_of_its_samples() -> None:
    config = dataclasses.replace(ITERABLE.config or CONFIG, batch_size=None)
    loader = dataclasses.replace(ITERABLE, config=config, promised_batches=1200)
    found = diagnosed(loader)
    assert not [each for each in found.findings if each.code.startswith("data.")]


def test_epochs_without_a_batch_are_wrong_data() -> None:
    """As a sampler gives that is a generator; without any promise, as it has no length."""
    loader = dataclasses.replace(LOADER, epochs_empty=2)
    first = diagnosed(loader).findings[0]
    assert first.code == "data.truncated"
    assert "2 epochs after the first gave no batch" in first.explanation
    assert "as a generator can" in first.explanation


def test_the_stages_of_a_script_are_those_of_the_loader_that_is_diagnosed() -> None:
    """Whichever was traced last, as one for validation is."""
    stages = tuple(dataclasses.replace(each, mean_s=0.0625) for each in WAITING.stages)
    other = dataclasses.replace(WAITING, trial_id="val.py:9", stages=stages)
    validation = dataclasses.replace(LOADER, name="val.py:9", waited_s=0.2)
    script = WatchedScript(wall_s=16.0, ending="returned", waited_s=4.7)
    run = dataclasses.replace(
        builders.run([]),
        watched=(LOADER, validation),
        explanations=(WAITING, other),
        diagnosis=diagnosed(),
        script=script,
    )
    assert run.traced == WAITING
    text = plain_text(script_report(run), width=100, verbose=True)
    assert "Stages, per batch, of train.py:3" in text
    assert "62 ms" not in text
    untold = dataclasses.replace(run, diagnosis=None)
    assert untold.traced == WAITING  # which is waited for longer


def _refilled(first_s: float | None) -> Diagnosis:
    """An iterable whose two workers take 2.3 s to their first batch, in each of three epochs."""
    loader = dataclasses.replace(
        LOADER,
        sampler=OF_ITERABLES,
        config=dataclasses.replace(CONFIG, num_workers=2),
        asks_worker=True,
        epochs=3,
        epochs_completed=3,
        made=3,
        batches=300,
        waited_s=3 * 2.3 + 297 * 0.03,
        stepped_s=3.0,
        startup_s=2.3,
        turnover=durations(2.3, 2),
        wait=durations(0.03, 297),
        step=durations(0.01, 300),
    )
    assert loader.config is not None
    shown = dataclasses.replace(
        WAITING,
        config=loader.config,
        workers=tuple(dataclasses.replace(TRACED.workers[0], worker=n) for n in range(2)),
        stages=(stage("fetch", 0.078, 0.001), *TRACED.stages[1:]),
        costs=dataclasses.replace(TRACED.costs, io_s=(0.077,) * BATCHES),
        first_fetch_s=first_s,
    )
    return diagnosed(loader, shown, wall_s=20.0)


def test_a_buffer_fills_no_longer_with_more_workers_and_no_sooner_with_those_that_persist() -> None:
    """2.1 s of each start are the dataset's; three workers would else take 1.5 times as long."""
    found, started = _refilled(2.2), _refilled(None)
    more, fewer = (
        next(each for each in those.findings if each.code == "fetch.io").script_gain
        for those in (found, started)
    )
    assert more is not None
    assert fewer is not None
    assert more.value > 1.2 * fewer.value
    (cause,) = (each for each in found.findings if each.code == "startup")
    assert cause.title == "Epochs begin with a wait for the dataset"
    assert cause.predicted_gain is not None
    assert cause.fix is not None
    assert "made 3 times" not in cause.fix.text
    assert any("made 3 times" in each.fix.text for each in started.findings if each.fix)
