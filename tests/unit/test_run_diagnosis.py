"""From what was seen of a script's loaders to the causes of its waits."""

from __future__ import annotations

import dataclasses
import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import builders
import pytest

from dlprof.errors import UsageError
from dlprof.integrations.diagnosis import UNTRACED, diagnose_script
from dlprof.integrations.running import ScriptRun, new_header, usage_from_now
from dlprof.machine import Snapshot
from dlprof.machine.tree import TreeUsage
from dlprof.records import (
    BatchCosts,
    Config,
    Diagnosis,
    Durations,
    Explanation,
    LoaderCall,
    SampleCosts,
    Stage,
    StageName,
    Usage,
    WatchedLoader,
    WatchedScript,
    WorkerCosts,
)
from dlprof.records.stages import FREED
from dlprof.report.findings import answer
from dlprof.store import RunWriter

CONFIG = Config(num_workers=1, prefetch_factor=2, batch_size=8)
BATCHES = 150


def durations(mean_s: float, count: int = BATCHES) -> Durations:
    return Durations(
        count=count,
        total_s=mean_s * count,
        mean_s=mean_s,
        median_s=mean_s,
        p95_s=mean_s,
        p99_s=mean_s,
        max_s=mean_s,
    )


def stage(name: StageName, mean_s: float, cpu_s: float = 0.0) -> Stage:
    return Stage(
        name=name,
        mean_s=mean_s,
        median_s=mean_s,
        p95_s=mean_s,
        max_s=mean_s,
        cpu_s=cpu_s,
        run_queue_s=0.0,
        io_s=mean_s - cpu_s,
    )


LOADER = WatchedLoader(
    name="train.py:3",
    place="train.py:3",
    dataset="train.Data",
    sampler="SequentialSampler",
    config=CONFIG,
    epochs=1,
    batches=BATCHES,
    waited_s=4.5,
    stepped_s=1.5,
    wait_fraction=0.75,
    wait=durations(0.030),
    step=durations(0.010),
)
TRACED = Explanation(
    trial_id="train.py:3",
    config=CONFIG,
    window_s=6.0,
    batches=BATCHES,
    stages=(
        stage("fetch", 0.038, 0.001),
        stage("collate", 0.001, 0.001),
        stage("rebuild", 0.001, 0.001),
        stage("wait", 0.030),
        stage("step", 0.010, 0.010),
    ),
    workers=(WorkerCosts(worker=0, batches=BATCHES, busy_fraction=0.98, cpu_cores=0.05),),
    costs=BatchCosts(
        cpu_s=(0.002,) * BATCHES,
        io_s=(0.037,) * BATCHES,
        run_queue_s=(0.0,) * BATCHES,
        put_cpu_s=(0.0005,) * BATCHES,
        receive_cpu_s=(0.001,) * BATCHES,
        receive_io_s=(0.0,) * BATCHES,
        main_cpu_s=(0.0001,) * BATCHES,
    ),
    age_s=0.04,
    wait_fraction=0.75,
)


def diagnosed(
    loader: WatchedLoader = LOADER,
    traced: Explanation = TRACED,
    wall_s: float = 10.0,
    *,
    cut_short: bool = False,
) -> Diagnosis | None:
    quick = dataclasses.replace(LOADER, name="val.py:9", waited_s=0.1)
    return diagnose_script(
        [quick, loader],
        [traced],
        builders.machine(8),
        builders.target(),
        wall_s=wall_s,
        cut_short=cut_short,
    )


def test_the_costliest_loader_is_explained() -> None:
    found = diagnosed()
    assert found is not None
    assert found.config == CONFIG
    codes = [finding.code for finding in found.findings]
    assert codes[0] in {"fetch.io", "too_few_workers"}
    assert "train.py:3" in found.notes[0]
    assert found.notes[-1].startswith("With num_workers=")
    assert found.notes[-1].endswith("% waiting between batches.")


def test_a_file_that_one_worker_moves_keeps_it_from_more_and_is_no_fault() -> None:
    found = diagnosed(dataclasses.replace(LOADER, shared_files=("file (a.bin)",)))
    assert found is not None
    codes = [finding.code for finding in found.findings]
    assert codes[0] != "data.shared_file"
    (shared,) = (each for each in found.findings if each.code == "data.shared_file")
    assert not shared.cost
    kwargs = [each.fix.dataloader_kwargs for each in found.findings if each.fix is not None]
    assert not any("num_workers" in each for each in kwargs)
    assert not any("by threads" in each.fix.text for each in found.findings if each.fix)


EPOCHS = dataclasses.replace(
    LOADER, epochs=15, epochs_completed=15, startup_s=0.9, turnover=durations(0.8, 14), waited_s=16
)


def test_epochs_too_short_for_their_workers_are_told() -> None:
    found = diagnosed(EPOCHS, wall_s=20.0)
    assert found is not None
    cause = found.findings[0]
    assert cause.code == "startup"
    assert cause.evidence["batches_per_epoch"] == BATCHES / 15
    assert cause.fix is not None
    assert cause.fix.dataloader_kwargs["persistent_workers"] is True
    assert "made" not in cause.fix.text


def test_a_step_that_waits_before_each_epoch_alone_is_not_the_limit() -> None:
    """Within epochs it never waits; starts take 11.2 of 12.8 s."""
    stages = tuple(
        dataclasses.replace(each, mean_s=1e-4) if each.name == "wait" else each
        for each in TRACED.stages
    )
    fed = dataclasses.replace(
        EPOCHS, wait=durations(1e-4, BATCHES - 15), waited_s=12.1, wait_fraction=0.89
    )
    traced = dataclasses.replace(TRACED, stages=stages, wait_fraction=0.01)
    found = diagnosed(fed, traced, wall_s=20.0)
    assert found is not None
    assert found.findings[0].code == "startup"
    assert found.findings[0].fix is not None
    assert found.findings[0].fix.dataloader_kwargs["persistent_workers"] is True
    busy = Usage(
        own_cpu_cores=0.4,
        available_cpu_cores=0.4,
        other_cpu_cores=7.6,
        other_runnable=24,
        run_queue_wait_fraction=0.7,
    )
    traced = dataclasses.replace(traced, step_cpu_s=0.01)
    among = diagnose_script(
        [fed], [traced], builders.machine(8), builders.target(), wall_s=20.0, usage=busy
    )
    assert among is not None
    assert [each.code for each in among.findings][:2] == ["startup", "cpu.neighbours"]
    once = dataclasses.replace(fed, epochs=1, epochs_completed=1, turnover=None)
    found = diagnosed(once, traced, wall_s=20.0)
    assert found is not None
    assert found.findings[0].code == "consumer"


def test_workers_do_not_outlive_an_epoch_where_the_dataset_changes_with_it() -> None:
    why = "Mixed has set_epoch: workers that outlive an epoch don't see what that changes."
    found = diagnosed(dataclasses.replace(EPOCHS, against_persisting=why), wall_s=20.0)
    assert found is not None
    cause = found.findings[0]
    assert cause.code == "startup"
    assert cause.fix is not None
    assert not cause.fix.dataloader_kwargs
    assert "persistent_workers=True is not advised, as Mixed has set_epoch" in cause.fix.text


@pytest.mark.parametrize("persistent", [False, True])
def test_a_loader_that_each_epoch_makes_again_is_made_once(persistent: bool) -> None:
    """Its workers end with it, so that a setting alone would change nothing."""
    config = dataclasses.replace(CONFIG, persistent_workers=persistent)
    again = dataclasses.replace(EPOCHS, made=15, config=config)
    found = diagnosed(again, dataclasses.replace(TRACED, config=config), wall_s=20.0)
    kept = diagnosed(EPOCHS, wall_s=20.0)
    assert found is not None
    assert kept is not None
    cause, same = found.findings[0], kept.findings[0]
    assert cause.code == same.code == "startup"
    assert cause.fix is not None
    assert not cause.fix.dataloader_kwargs
    assert cause.fix.text.startswith("Make the loader once, before the first epoch")
    assert "it was made 15 times" in cause.fix.text
    assert cause.fix.code.startswith("loader = DataLoader(dataset, ..., persistent_workers=True)")
    assert "takes 800 ms at every epoch" in cause.explanation
    assert cause.predicted_gain is not None
    assert cause.predicted_gain.value > 1.5


def test_a_loader_is_made_once_as_the_users_framework_has_it() -> None:
    """As Trainer makes that of its evaluations again and again."""
    names = {"persistent_workers": "dataloader_persistent_workers"}
    call = LoaderCall(text="TrainingArguments(..., {settings})", names=names, variable="args")
    found = diagnosed(dataclasses.replace(EPOCHS, made=15, call=call), wall_s=20.0)
    assert found is not None
    fix = found.findings[0].fix
    assert fix is not None
    given = "args = TrainingArguments(..., dataloader_persistent_workers=True)"
    assert fix.code == f"{given}  # made once, before the first epoch"


def test_a_loader_of_several_epochs_that_was_made_anew_may_keep_its_workers() -> None:
    folds = dataclasses.replace(EPOCHS, made=5)  # as in a cross-validation
    found = diagnosed(folds, wall_s=20.0)
    assert found is not None
    cause = found.findings[0]
    assert cause.code == "startup"
    assert cause.fix is not None
    assert cause.fix.dataloader_kwargs["persistent_workers"] is True


def test_an_epoch_that_is_broken_off_beside_a_whole_one_makes_none_shorter() -> None:
    """One whole epoch of nearly all batches, and a second that was left at its first."""
    once = dataclasses.replace(EPOCHS, epochs=2, epochs_completed=1, turnover=durations(0.5, 1))
    found = diagnosed(once, wall_s=20.0)
    assert found is not None
    assert "startup" not in {finding.code for finding in found.findings}


def test_epochs_that_are_broken_off_begin_with_a_start_as_well() -> None:
    """One whole epoch after many that end with a break, as those of a fixed number of steps do."""
    mostly = dataclasses.replace(EPOCHS, epochs_completed=1)
    found = diagnosed(mostly, wall_s=20.0)
    assert found is not None
    assert found.findings[0].code == "startup"
    assert found.findings[0].evidence["batches_per_epoch"] == BATCHES / 15


def test_an_only_epoch_that_is_broken_off_shows_no_length() -> None:
    broken_off = dataclasses.replace(EPOCHS, epochs=1, epochs_completed=0, turnover=None)
    found = diagnosed(broken_off, wall_s=20.0)
    assert found is not None
    assert "startup" not in {finding.code for finding in found.findings}


def test_a_wait_that_costs_the_script_nothing_is_not_explained() -> None:
    assert diagnosed(wall_s=1000.0) is None


def test_the_loop_of_a_script_that_was_cut_short_is_explained_however_small_a_part_it_was() -> None:
    found = diagnosed(wall_s=1000.0, cut_short=True)
    assert found is not None
    assert found.findings


def test_few_batches_are_said_and_fewer_say_why_they_show_nothing() -> None:
    some = diagnosed(traced=dataclasses.replace(TRACED, batches=20))
    assert some is not None
    assert "So few batches show little of their spread." in some.notes
    fewer = diagnosed(traced=dataclasses.replace(TRACED, batches=5))
    assert fewer is not None
    assert fewer.findings == ()
    only = "only 5 batches could be traced, and 10 are needed"
    assert fewer.notes == (f"Not known why train.py:3 is waited for: {only}.",)


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"hooked": False, "unavailable": {"hooks": "it refused"}}, "it refused"),
        ({"hooked": False}, UNTRACED),
        ({"trial_id": "other.py:1"}, UNTRACED),
    ],
)
def test_what_could_not_be_followed_is_not_explained_but_said(
    change: dict[str, Any], why: str
) -> None:
    found = diagnosed(traced=dataclasses.replace(TRACED, **change))
    assert found is not None
    assert found.findings == ()
    assert found.notes == (f"Not known why train.py:3 is waited for: {why}.",)


@pytest.mark.parametrize(("tune", "option"), [(True, "--tune"), (False, "--no-follow")])
def test_the_option_is_named_that_keeps_batches_from_being_followed(
    tune: bool, option: str
) -> None:
    script = WatchedScript(wall_s=16.0, ending="returned")
    watching = ScriptRun(
        header=new_header("train.py"),
        rank=None,
        show=lambda _: None,
        clock=lambda: 0,
        follow=False,
        tune=tune,
    )
    found = watching._diagnosis([LOADER], script)
    assert found is not None
    assert found.notes[0].endswith(f"its batches were not traced (leave out {option}).")


def test_an_alarm_that_comes_while_the_run_file_is_written_is_the_scripts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A TimeoutError is an OSError, as a full disk is, and must neither end the file nor stay."""

    def late(*_: object) -> None:
        raise TimeoutError("an hour is over")

    header = new_header("train.py")
    watching = ScriptRun(header=header, rank=None, show=lambda _: None, clock=lambda: 0)
    watching._writer = writer = RunWriter.create(tmp_path / "a.dlprof.jsonl", header)
    monkeypatch.setattr(os, "fsync", lambda _: signal.raise_signal(signal.SIGUSR1))
    before = signal.signal(signal.SIGUSR1, late)
    try:
        with writer, pytest.raises(TimeoutError, match="an hour"):
            watching._write(*watching._changed([LOADER]))
    finally:
        signal.signal(signal.SIGUSR1, before)
    assert watching._writer is writer
    assert watching._changed([LOADER]) == [LOADER]


def test_what_has_no_timed_wait_is_not_explained() -> None:
    assert diagnosed(loader=dataclasses.replace(LOADER, wait=None)) is None


def test_a_refusal_is_told_and_the_next_loader_is_explained() -> None:
    foreign = dataclasses.replace(LOADER, name="own.py:1", waited_s=20.0)
    found = diagnose_script(
        [LOADER, foreign],
        [TRACED],
        builders.machine(8),
        builders.target(),
        wall_s=30.0,
        refused={"own.py:1": "Own refused the hooks"},
    )
    assert found is not None
    assert found.findings
    assert found.notes[0] == "Not known why own.py:1 is waited for: Own refused the hooks."
    assert found.notes[1].startswith("Diagnosis of train.py:3 from 150 traced batches")


@pytest.mark.parametrize(
    ("ranks", "logical", "all_may", "told_so"),
    [(1, 8, 8, True), (8, 8, 8, False), (8, 64, 64, True), (8, 64, 8, False)],
    ids=["alone", "one core each", "a mask of its own", "a container's CPUs"],
)
def test_ranks_of_one_machine_share_its_cores(
    ranks: int, logical: int, all_may: int, *, told_so: bool
) -> None:
    """Where batches cost CPU alone, more workers give a rank no more than its own cores."""
    costs = dataclasses.replace(TRACED.costs, cpu_s=(0.039,) * BATCHES, io_s=(0.0,) * BATCHES)
    traced = dataclasses.replace(
        TRACED, costs=costs, stages=(stage("fetch", 0.039, 0.039), *TRACED.stages[1:])
    )
    found = diagnose_script(
        [LOADER],
        [traced],
        builders.machine(8, logical_cpus=logical),
        builders.target(),
        wall_s=10.0,
        local_ranks=ranks,
        local_cpus=all_may,
    )
    assert found is not None
    assert any(each.code == "too_few_workers" for each in found.findings) is told_so


def test_without_a_timed_step_there_is_no_outlook() -> None:
    stages = tuple(each for each in TRACED.stages if each.name != "step")
    found = diagnosed(traced=dataclasses.replace(TRACED, stages=stages))
    assert found is not None
    assert not any("the model predicts" in note for note in found.notes)


def test_others_that_take_the_cores_are_told() -> None:
    busy = Usage(own_cpu_cores=0.4, available_cpu_cores=0.4, other_cpu_cores=1.6)
    fetch = dataclasses.replace(stage("fetch", 0.040, 0.010), run_queue_s=0.029, io_s=0.001)
    costs = dataclasses.replace(
        TRACED.costs,
        cpu_s=(0.011,) * BATCHES,
        io_s=(0.001,) * BATCHES,
        run_queue_s=(0.029,) * BATCHES,
    )
    rest = tuple(each for each in TRACED.stages if each.name != "fetch")
    found = diagnose_script(
        [LOADER],
        [dataclasses.replace(TRACED, stages=(fetch, *rest), costs=costs)],
        builders.machine(2),
        builders.target(),
        wall_s=10.0,
        usage=busy,
    )
    assert found is not None
    assert found.findings[0].code == "cpu.neighbours"
    assert all(each.doubtful for each in found.findings[1:])


def _fed(queued: float, *, waited_s: float, wall_s: float) -> Diagnosis | None:
    """A loop that hardly waits, whose step of 10 ms computes; its threads wait for cores."""
    busy = Usage(
        own_cpu_cores=0.16, available_cpu_cores=0.16, other_cpu_cores=1.84, other_runnable=25.0,
        run_queue_wait_fraction=queued,
    )  # fmt: skip
    loader = dataclasses.replace(
        LOADER, waited_s=waited_s, stepped_s=10.0, wait_fraction=waited_s / (10 + waited_s),
        wait=durations(waited_s / BATCHES), step=durations(10 / BATCHES),
    )  # fmt: skip
    return diagnose_script(
        [loader], [TRACED], builders.machine(2), builders.target(), wall_s=wall_s, usage=busy
    )


@pytest.mark.parametrize("waited_s", [0.8, 0.1])
def test_a_step_that_others_take_the_cores_from_is_not_said_to_be_the_limit_alone(
    waited_s: float,
) -> None:
    found = _fed(0.9, waited_s=waited_s, wall_s=12.0)
    assert found is not None
    first, second = found.findings
    assert (first.code, second.code) == ("cpu.neighbours", "consumer")
    assert first.title == "Other processes take the cores: 0.16 of 2 were left"
    assert "run-queue delay was 90%" in first.explanation
    assert first.predicted_gain is None
    shown = dict(answer(found.findings, 0.07, workers=1))
    assert shown["If quiet"] == "not known: the step would be faster as well"
    # Whose threads hardly waited for a core is slow by itself.
    quiet = _fed(0.04, waited_s=waited_s, wall_s=12.0)
    assert quiet is None or [each.code for each in quiet.findings] == ["consumer"]
    assert (quiet is None) == (waited_s < 0.5)


def test_who_keeps_up_says_nothing_of_a_loader_that_is_waited_for() -> None:
    """As a training beside a validation of which too few batches were traced."""
    busy = Usage(
        own_cpu_cores=0.16, available_cpu_cores=0.16, other_cpu_cores=1.84, other_runnable=25.0,
        run_queue_wait_fraction=0.9,
    )  # fmt: skip
    fed = dataclasses.replace(
        LOADER, waited_s=0.1, stepped_s=10.0, wait_fraction=0.01,
        wait=durations(0.1 / BATCHES), step=durations(10 / BATCHES),
    )  # fmt: skip
    slow = dataclasses.replace(LOADER, name="val.py:1", waited_s=6.0)
    few = dataclasses.replace(TRACED, trial_id="val.py:1", batches=7)
    found = diagnose_script(
        [fed, slow], [TRACED, few], builders.machine(2), builders.target(), wall_s=20.0, usage=busy
    )
    assert found is not None
    assert not found.findings
    assert found.notes[0].startswith("Not known why val.py:1 is waited for: only 7 batches")


@pytest.mark.parametrize(("batches", "share"), [(BATCHES, 0.949), (100 * BATCHES, 0.156)])
def test_a_cache_that_the_first_epoch_fills_is_no_matter_of_a_few_samples(
    batches: int, share: float
) -> None:
    """The longer the script, the less of it: what nobody followed any more doesn't wait."""
    io_s = (0.37,) * 15 + (0.0,) * (BATCHES - 15)
    samples = SampleCosts(
        count=8 * BATCHES, mean_s=0.0047, median_s=0.0001, p95_s=0.04, p99_s=0.05, max_s=0.06,
        slowest={"3": 0.06, "9": 0.05},
    )  # fmt: skip
    traced = dataclasses.replace(
        TRACED, costs=dataclasses.replace(TRACED.costs, io_s=io_s), samples=samples
    )
    loader = dataclasses.replace(
        LOADER, epochs=10, batches=batches, waited_s=0.03 * batches, stepped_s=0.01 * batches,
        wait=durations(0.03, batches), step=durations(0.01, batches),
    )  # fmt: skip
    found = diagnosed(loader, traced, wall_s=0.05 * batches)
    assert found is not None
    (first,) = (each for each in found.findings if each.code == "fetch.io")
    assert first.title == "The first batches wait far longer than the rest"
    assert first.evidence["share"] == pytest.approx(share, rel=0.02)
    assert first.cost <= share
    assert first.predicted_gain is not None
    assert first.predicted_gain.ends[1] <= 1 / (1 - share) + 0.1


@pytest.mark.parametrize(
    ("grown", "changes", "gain"),
    [
        ({"cache": 8 * 4000.0}, {}, 3.0),  # each of three epochs loads all; one will
        ({"Data.__getitem__ (lru_cache)": 8 * 64.0}, {}, 3.0),
        (
            {"cache": 8 * 4000.0},
            {"sampler": "RandomSampler", "workers": 4},
            3 / (1 + 0.75 + 0.75**2),
        ),
        ({"seen": 8 * 28.0}, {}, None),  # numbers of those that came
        ({"shards (lru_cache)": 2.0}, {}, None),  # opened now and then
        ({FREED: 1e6}, {}, None),
        ({"cache": 8 * 4000.0}, {"epochs": 1}, None),
        ({"cache": 8 * 4000.0}, {"persistent": True}, None),
        ({"cache": 8 * 4000.0}, {"persistent": True, "made": 3}, 3.0),  # each epoch its loader
        ({"cache": 8 * 4000.0}, {"made": 3}, 3.0),
    ],
)
def test_caches_that_end_with_their_workers_are_named(
    grown: dict[str, float], changes: dict[str, Any], gain: float | None
) -> None:
    chosen = dataclasses.replace(
        CONFIG,
        num_workers=changes.get("workers", 1),
        persistent_workers=changes.get("persistent", False),
    )
    workers = tuple(dataclasses.replace(each, growing=grown) for each in TRACED.workers)
    found = diagnosed(
        dataclasses.replace(
            LOADER,
            config=chosen,
            epochs=changes.get("epochs", 3),
            made=changes.get("made", 1),
            sampler=changes.get("sampler", LOADER.sampler),
        ),
        dataclasses.replace(TRACED, config=chosen, workers=workers),
    )
    assert found is not None
    losing = [each for each in found.findings if "lose the samples" in each.title]
    assert bool(losing) is (gain is not None)
    for each in losing:
        assert each is found.findings[0]
        assert next(iter(grown)) in each.explanation
        assert each.fix is not None
        if "made" in changes:
            assert not each.fix.dataloader_kwargs
            assert each.fix.text.startswith("Make the loader once, before the first epoch, with")
        else:
            assert each.fix.dataloader_kwargs == {"persistent_workers": True}
        assert each.predicted_gain is not None
        assert gain is not None
        assert each.predicted_gain.value == pytest.approx(min(gain, 4.0), rel=0.1)
        assert each.evidence["gain_if"] == "its caches hold all samples"


class Snapshots:
    """A machine on which so many seconds pass from one look to the next."""

    def __init__(self, *, broken: bool = False) -> None:
        self.looks = 0
        self.broken = broken

    def take(self) -> Snapshot:
        self.looks += 1
        if self.broken and self.looks > 1:
            raise OSError("gone")
        second = 10**9
        tree = TreeUsage(
            processes=1, cpu_ns=self.looks * second // 2,
            run_ns=None, wait_ns=None, read_chars=None, read_bytes=None,
        )  # fmt: skip
        return Snapshot(
            time_ns=self.looks * second, tree=tree, idle_ns=self.looks * second // 4,
            allowed_cpus=2, quota_cores=None, throttled_ns=None,
            pressures_us=dict.fromkeys(("cpu", "io", "memory")), pss_peak_bytes=None,
            shm_peak_bytes=None, observer_cpu_ns=0,
        )  # fmt: skip


def test_the_machine_is_looked_at_from_the_beginning_to_the_end() -> None:
    usage = usage_from_now(begin=lambda: Snapshots().take)()
    assert usage is not None
    assert (usage.own_cpu_cores, usage.available_cpu_cores) == (0.5, 0.75)
    assert usage.other_cpu_cores == 1.25


@pytest.mark.parametrize(("load", "others"), [(9.0, 9.0), (0.3, 1.25)])
def test_the_load_average_says_who_else_wants_cores(
    monkeypatch: pytest.MonkeyPatch, load: float, others: float
) -> None:
    """Those who run want a core, whatever it says; of the script's own it has a second yet."""
    monkeypatch.setattr("os.cpu_count", lambda: 2)
    usage = usage_from_now(begin=lambda: Snapshots().take, load=lambda: load)()
    assert usage is not None
    assert usage.other_runnable == pytest.approx(others, abs=0.02)

    def refuse() -> float:
        raise OSError("none here")

    alone = usage_from_now(begin=lambda: Snapshots().take, load=refuse)()
    assert alone is not None
    assert alone.other_runnable is None


def test_what_cannot_be_read_of_the_machine_is_no_fault_of_the_script() -> None:
    assert usage_from_now(begin=lambda: Snapshots(broken=True).take)() is None

    def refuse() -> Callable[[], Snapshot]:
        raise OSError("none here")

    assert usage_from_now(begin=refuse)() is None


def test_of_a_lock_that_workers_share_no_finding_promises_more_of_them() -> None:
    """Looks at the workers of a script show it as those at a trial's do."""
    four = dataclasses.replace(CONFIG, num_workers=4)
    loader = dataclasses.replace(LOADER, config=four)
    rest = tuple(each for each in TRACED.stages if each.name != "fetch")
    traced = dataclasses.replace(
        TRACED,
        config=four,
        stages=(stage("fetch", 0.15, 0.001), *rest),
        workers=tuple(dataclasses.replace(TRACED.workers[0], worker=each) for each in range(4)),
        costs=dataclasses.replace(TRACED.costs, io_s=(0.149,) * BATCHES),
    )
    free = diagnosed(loader, traced)
    held = diagnosed(
        loader, dataclasses.replace(traced, worker_waits={"lock": 0.72, "sleep": 0.25})
    )
    assert free is not None
    assert held is not None
    assert any("num_workers" in each.fix.dataloader_kwargs for each in free.findings if each.fix)
    assert held.findings[0].code == "lock"
    fixes = [each.fix for each in held.findings if each.fix]
    assert not any("num_workers" in each.dataloader_kwargs for each in fixes)


def test_a_script_is_not_run_with_a_torch_that_is_too_old(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.metadata.version", lambda _: "2.5.1")
    with pytest.raises(UsageError, match=r"needs torch 2\.6 or newer, and .* has 2\.5\.1"):
        new_header("train.py")
