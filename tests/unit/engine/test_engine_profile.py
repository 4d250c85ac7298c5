"""What a profile takes of settings that are made for sweeps."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar, NoReturn, cast

import pytest
from builders import config, header, machine, target
from finding_cases import Loader, evidence, stage
from led_sweeps import PretendedBench, Quiet

from dlprof.engine.profile import _Profile, for_one, refuse_spent, run_profile
from dlprof.engine.trials import Deadline, Outlook, SweepListener, look_at, trial_cost
from dlprof.errors import FileError, NothingMeasuredError, UsageError
from dlprof.records import Config, Failure, Run, Target, Trial, TrialCost
from dlprof.records.codec import to_json
from dlprof.settings import SweepSettings
from dlprof.settings.resolve import resolve_settings
from dlprof.store import RunWriter, read_run
from dlprof.trial.protocol import Message
from dlprof.trial.runner import TrialRunner


def resolved(flags: dict[str, str], environ: dict[str, str]) -> SweepSettings:
    return for_one(
        *resolve_settings(flags, environ=environ, config_file=None, cwd=Path("/nowhere"))
    )


def test_several_values_of_a_variable_are_a_sweeps_and_of_a_flag_are_not() -> None:
    several = {"DLPROF_NUM_WORKERS": "0,2", "DLPROF_PREFETCH_FACTOR": "4"}
    found = resolved({}, several)
    assert found.num_workers is None
    assert found.prefetch_factor == (4,)
    assert resolved({"num_workers": "0,2"}, {}).num_workers == (0, 2)


@pytest.mark.parametrize(("key", "value"), [("repeats", 3), ("search", "grid")])
def test_what_no_profile_goes_by_is_refused_where_python_names_it(key: str, value: Any) -> None:
    with pytest.raises(UsageError, match=f"A profile takes no {key}"):
        resolved({key: value}, {})
    for_sweeps = resolved({}, {f"DLPROF_{key.upper()}": str(value)})
    assert getattr(for_sweeps, key) == value


def test_the_budget_is_a_profiles_own_unless_a_flag_names_one() -> None:
    assert resolved({}, {"DLPROF_BUDGET": "5m"}).budget_s == 30.0
    assert resolved({"budget": "45s"}, {}).budget_s == 45.0


def test_a_budget_that_building_the_target_used_up_is_refused_with_one_that_holds() -> None:
    settings, cost = resolved({"budget": "10s"}, {}), TrialCost(overhead_s=0.4)

    def refuse(spent_s: float) -> None:
        deadline = Deadline(budget_s=10.0, began_s=0.0, clock=lambda: spent_s)
        refuse_spent(settings, Config(), cost, deadline)

    with pytest.raises(UsageError) as shown:
        refuse(12.0)
    assert "starting, building and probing the target took 12 s" in str(shown.value)
    assert shown.value.hint == "Give a budget of 20 s or more."
    refuse(8.8)
    with pytest.raises(UsageError, match="can't hold a single trial"):
        refuse(9.8)  # half a second is left, and the first trial takes 1.4


class SlowBuild:
    """A runner whose target takes so long to build, and that must not be probed then."""

    def __init__(self, now_s: list[float]) -> None:
        self.now_s = now_s

    def build(self, _limits: object, *, left_s: float) -> Target:
        """As one that imports for long."""
        self.left_s = left_s
        self.now_s[0] += 9.0
        return target()

    def probe(self, _request: object, *, left_s: float) -> Message:
        """What comes after it, with what is left then."""
        raise NothingMeasuredError(f"{self.left_s:.1f}, {left_s:.1f}")


def test_a_budget_that_is_used_up_is_refused_before_anything_else_is_begun() -> None:
    def look(budget_s: float) -> None:
        now_s = [0.5]
        deadline = Deadline(budget_s=budget_s, began_s=0.0, clock=lambda: now_s[0])
        settings, runner = SweepSettings(budget_s=budget_s), SlowBuild(now_s)
        left_s = functools.partial(deadline.spare_s, settings)
        look_at(cast("Any", runner), settings, machine(2), left_s, one=True)

    with pytest.raises(UsageError, match="10 s at least with all before it") as shown:
        look(3.0)
    assert shown.value.hint == "Give a budget of 16 s or more."
    with pytest.raises(NothingMeasuredError, match=r"20\.5, 11\.5"):  # 5% more, less 9.5 s
        look(20.0)


class DeadForkServer(PretendedBench):
    """One that no trial can be had from after some."""

    def explain(self, *request: Any, **about: Any) -> tuple[Trial, Mapping[str, Any]]:
        """A trial, or the fault."""
        if self.calls == self.stop_after:
            raise NothingMeasuredError("The target's process ended", hint="Look at its output.")
        return super().explain(*request, **about)


def profiled(
    path: Path, bench: PretendedBench, listener: Quiet | None = None, *, batch_s: float = 0.0
) -> Run:
    about = header()
    with RunWriter.create(path, about) as writer:
        return _Profile(
            header=about,
            settings=SweepSettings(budget_s=60.0),
            config=Config(num_workers=1),
            cost=TrialCost(overhead_s=0.1, batch_s=batch_s),
            runner=cast(TrialRunner, bench),
            writer=writer,
            listener=listener or Quiet(),
            deadline=Deadline(budget_s=60.0, began_s=0.0, clock=lambda: bench.now_s),
        ).run(cast(Outlook, SimpleNamespace(faults={})))


def test_a_profile_is_made_beside_the_load_that_is_asked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Which its file says that it was."""
    asked = SweepSettings(target="synthetic", make_load={"cores": 2.0})
    begun = list[object]()

    class Bench(PretendedBench):
        versions: ClassVar = {"torch": "2.13.0", "python": "3.11.0"}

        @contextlib.contextmanager
        def load(self, load: object, **about: Any) -> Iterator[None]:
            begun.append((load, about["folder"], self.calls))
            yield

    outlook = SimpleNamespace(
        target=target(), accelerator=None, space=SimpleNamespace(configs=[config(1)]), faults={}
    )
    opened = contextlib.nullcontext(Bench(explains=False))
    monkeypatch.setattr("dlprof.engine.profile.opened_runner", lambda *_, **__: opened)
    monkeypatch.setattr("dlprof.engine.profile.look_at", lambda *_, **__: outlook)
    path = tmp_path.resolve() / "run"
    run = run_profile(asked, output=path, listener=cast(SweepListener, Quiet()))
    assert run.trials
    assert begun == [({"cores": 2.0}, path.parent, 0)]

    def refused(*_: object, **__: object) -> NoReturn:
        raise NothingMeasuredError("The load of --make-load did not start")

    monkeypatch.setattr(Bench, "load", refused)
    with pytest.raises(NothingMeasuredError, match="did not start"):
        run_profile(asked, output=tmp_path / "refused", listener=cast(SweepListener, Quiet()))
    assert [each.name for each in tmp_path.iterdir()] == ["run"]


def test_a_profile_of_ranks_counts_on_the_share_of_one(tmp_path: Path) -> None:
    about = header(machine=machine(16, quota_cores=8.0), settings={"launch_ranks": [4]})
    with RunWriter.create(tmp_path / "run", about) as writer:
        found = _Profile(
            header=about,
            settings=SweepSettings(),
            config=Config(num_workers=1),
            cost=TrialCost(overhead_s=0.1),
            runner=cast(TrialRunner, PretendedBench()),
            writer=writer,
            listener=Quiet(),
            deadline=Deadline(budget_s=60.0, began_s=0.0),
        )._evidence()
    assert found.ranks == 4
    assert (found.machine.usable_cores, found.machine.quota_cores) == (2.0, 2.0)


@pytest.mark.parametrize(("launched", "cores"), [((), 8.0), ((1, 4), 2.0)])
def test_trials_are_expected_to_take_what_a_rank_takes_on_its_share(
    launched: tuple[int, ...], cores: float
) -> None:
    runner = cast(TrialRunner, SimpleNamespace(fork_safe=True))
    settings = SweepSettings(launch_ranks=launched or None)
    assert trial_cost(settings, machine(8), target(), runner).usable_cores == cores


def test_a_fault_that_ends_a_profile_leaves_the_diagnosis_of_what_was_measured(
    tmp_path: Path,
) -> None:
    run = profiled(tmp_path / "run", DeadForkServer(stop_after=3))
    assert run.end is not None
    assert run.end.reason == "failed"
    assert len(run.trials) == 3
    assert run.diagnosis is not None
    assert run.diagnosis.notes == (
        "Nothing more was measured: The target's process ended. Look at its output.",
    )
    kept = read_run(tmp_path / "run")
    assert (kept.trials, kept.diagnosis, kept.end) == (run.trials, run.diagnosis, run.end)


def test_a_fault_before_the_first_trial_is_the_profiles(tmp_path: Path) -> None:
    with pytest.raises(NothingMeasuredError, match="process ended"):
        profiled(tmp_path / "run", DeadForkServer(stop_after=0))


@pytest.mark.parametrize("records", [2, 3, 4, 1000])
def test_a_disk_that_is_full_costs_a_profile_its_file_and_not_its_diagnosis(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, records: int
) -> None:
    write, calls = RunWriter._write, iter(range(10_000))

    def full(writer: RunWriter, line: bytes) -> None:
        if next(calls) >= records or b'"diagnosis"' in line[:30]:
            raise FileError("The disk is full", hint="Free some space.")
        write(writer, line)

    monkeypatch.setattr(RunWriter, "_write", full)
    listener = Quiet()
    run = profiled(tmp_path / "run", PretendedBench(), listener)
    assert run.diagnosis is not None
    assert run.trials
    shown = [*listener.messages, *run.diagnosis.notes]
    assert sum("The disk is full. Free some space." in text for text in shown) == 1
    kept = read_run(tmp_path / "run").trials
    assert kept == run.trials[: len(kept)]


def test_starts_of_all_workers_that_were_tried_are_calibrated() -> None:
    """A remedy's among them: two workers start as soon as one, and eight may not."""
    seen = evidence(Loader(), variants={config(8): 2.0})
    observations = tuple(
        dataclasses.replace(
            each,
            trial=dataclasses.replace(each.trial, startup_s=0.1 * each.trial.config.num_workers),
        )
        for each in seen.observations
    )
    profile = cast(_Profile, SimpleNamespace(header=header()))
    found = _Profile._calibration(profile, dataclasses.replace(seen, observations=observations))
    assert found is not None
    assert found.startup_s["default"] == pytest.approx((0.1, 0.1))


def test_the_dataset_is_weighed_first_and_its_starts_only_where_it_is_heavy(
    tmp_path: Path,
) -> None:
    light = PretendedBench(weight={"pickle_s": 0.001, "start_method": "fork"})
    run = profiled(tmp_path / "light", light)
    assert light.started == [()]
    assert run.diagnosis is not None
    assert run.diagnosis.weight is not None
    assert run.diagnosis.weight.pickle_s == 0.001
    for heavy in ({"pickle_s": 3.0}, {"start_method": "forkserver"}):
        bench = PretendedBench(weight=heavy)
        kept = profiled(tmp_path / str(heavy), bench)
        assert bench.started == [(), ("own", "fork", "forkserver", "spawn")]
        assert kept.diagnosis is not None
        assert kept.diagnosis.weight is not None
        assert kept.diagnosis.weight.far_sample_s == 0.01
        assert read_run(tmp_path / str(heavy)).diagnosis == kept.diagnosis


class CutShort(PretendedBench):
    """One of which the first trial takes longer than the budget leaves to it."""

    def explain(self, *request: Any, **about: Any) -> tuple[Trial, Mapping[str, Any]]:
        """A trial that was ended."""
        found, said = super().explain(*request, **about)
        known = dataclasses.replace(
            found, outcome="timed_out", failure=Failure(kind="timeout", message="It didn't end.")
        )
        return dataclasses.replace(known, wall_s=about["wall_s"], batches_per_s=None), said


def test_a_first_trial_that_the_budget_ends_says_which_budget_is_enough(tmp_path: Path) -> None:
    run = profiled(tmp_path / "cut", CutShort(weight={"start_method": "spawn"}))
    (trial,) = run.trials
    assert trial.failure is not None
    assert "which is all that a budget of" in trial.failure.message
    hint = trial.failure.hint
    enough_s = float(hint.removeprefix("Give --budget ").partition("s")[0])
    assert enough_s > 4 * trial.wall_s
    assert "started by spawn import torch first" in hint
    assert "--start-method fork" in hint


class OwnTimeout(CutShort):
    """One whose loader has a timeout that runs out long before the budget does."""

    def explain(self, *request: Any, **about: Any) -> tuple[Trial, Mapping[str, Any]]:
        """A trial that failed by itself."""
        found, said = super().explain(*request, **about)
        return dataclasses.replace(found, wall_s=about["wall_s"] / 2), said


def test_a_first_trial_that_failed_sooner_keeps_its_own_reason(tmp_path: Path) -> None:
    """It was said that the budget had ended it, with advice of a smaller one."""
    (trial,) = profiled(tmp_path / "own", OwnTimeout()).trials
    assert trial.failure is not None
    assert trial.failure.message == "It didn't end."
    assert not trial.failure.hint


class OnlyTraced(CutShort):
    """One of which the budget holds the traced trial and none more."""

    def explain(self, *request: Any, **about: Any) -> tuple[Trial, Mapping[str, Any]]:
        """A trial, which was ended unless it is traced: then a batch computes for a second."""
        if not request[0].explain:
            return super().explain(*request, **about)
        found, said = PretendedBench.explain(self, *request, **about)
        shown = {**said["explanation"], "window_s": 2.0, "batches": 2}
        shown["stages"] = [to_json(stage("fetch", 1.0)), to_json(stage("wait", 1.0))]
        shown["workers"] = [{"worker": 0, "batches": 2, "busy_fraction": 1.0}]
        return found, {"explanation": shown}


def test_slow_batches_are_traced_first_and_so_have_a_cause_of_low_certainty(tmp_path: Path) -> None:
    run = profiled(tmp_path / "slow", OnlyTraced(lasts_s=40.0, cost_s=1.0), batch_s=10.0)
    assert [trial.purpose for trial in run.trials] == ["explain"]
    assert run.end is not None
    assert run.end.reason == "budget"
    assert run.findings
    for each in run.findings:
        assert "Certainty is low: it rests on " in each.doubtful
        enough_s = float(each.doubtful.rpartition("--budget ")[2].rstrip("s."))
        assert enough_s > 5 * 40
    # What the run measured is what it keeps; and where both are there, nothing is doubted for it.
    roomy = profiled(tmp_path / "quick", PretendedBench())
    assert roomy.trials[0].purpose == "measure"
    assert not any("Certainty" in each.doubtful for each in roomy.findings)


class LateFirstBatch(PretendedBench):
    """One whose batches come late after each beginning; trials show how often each begins."""

    def __init__(self, begin_s: float) -> None:
        super().__init__()
        self.begin_s, self.asked = begin_s, list[tuple[bool, bool]]()

    def explain(self, *request: Any, **about: Any) -> tuple[Trial, Mapping[str, Any]]:
        """A trial, with the time of a restart where that is asked for."""
        asked = request[0]
        self.asked.append((asked.explain, asked.turnover))
        self.lasts_s = asked.trial_s + self.begin_s * (2 if asked.turnover else 1)
        found, said = super().explain(*request, **about)
        turnover_s = self.begin_s if asked.turnover else None
        return dataclasses.replace(found, epoch_turnover_s=turnover_s), said


@pytest.mark.parametrize(("budget_s", "timed"), [(60.0, 1), (16.0, 0)])
def test_an_iterables_late_beginning_is_timed_once_and_a_batch_traced_first(
    tmp_path: Path, budget_s: float, timed: int
) -> None:
    """Timed with each trial, 5 s before a first batch left a budget of 30 s nothing to trace."""
    bench = LateFirstBatch(5.0)
    about = header(target=dataclasses.replace(target(), kind="iterable", first_batch_s=5.0))
    with RunWriter.create(tmp_path / "run", about) as writer:
        run = _Profile(
            header=about,
            settings=SweepSettings(budget_s=budget_s),
            config=Config(),
            cost=TrialCost(overhead_s=5.4),
            runner=cast(TrialRunner, bench),
            writer=writer,
            listener=Quiet(),
            deadline=Deadline(budget_s=budget_s, began_s=0.0, clock=lambda: bench.now_s),
        ).run(cast(Outlook, SimpleNamespace(faults={})))
    assert "explain" in [trial.purpose for trial in run.trials]
    assert [turnover for _, turnover in bench.asked[:3]].count(True) == timed
