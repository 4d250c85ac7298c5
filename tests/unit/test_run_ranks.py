"""What ranks get of a training's data: recorded evidence, files of other ranks, frames."""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
import json
import signal
import sys
import types
import weakref
from pathlib import Path
from typing import Any

import builders
import pytest
from golden import check_golden, drawn

from dlprof.advise.compare import compare
from dlprof.advise.scaling import in_step, straggler_of
from dlprof.integrations import running
from dlprof.integrations.ranks import (
    Rank,
    merged,
    of_straggler,
    read_others,
    with_figures,
    with_ranks,
)
from dlprof.integrations.running import new_header
from dlprof.integrations.script import Ending
from dlprof.integrations.wait_statistics import StepLog, WaitStatistics
from dlprof.records import (
    BatchCosts,
    Config,
    Diagnosis,
    Estimate,
    Explanation,
    Finding,
    Fix,
    LoaderCall,
    RankFigures,
    Run,
    RunHeader,
    StepTimes,
    Usage,
    WatchedLoader,
    WatchedScript,
)
from dlprof.records.watched import ScriptEnding
from dlprof.report.index import index_row
from dlprof.report.ranks import training_facts
from dlprof.report.script import script_document, script_report
from dlprof.report.terminal import plain_text
from dlprof.store import RunWriter, read_run
from dlprof.targets.adapters import ranks_served

LOADER = WatchedLoader(
    name="train.py:7",
    kind="torch.utils.data.dataloader.DataLoader",
    dataset="webdataset.compat.WebDataset",
    sampler="_InfiniteConstantSampler",
    config=Config(num_workers=1),
    epochs=1,
    batches=64,
    wait_fraction=0.9,
)


def of(batches: int, epochs: int = 1) -> WatchedLoader:
    return dataclasses.replace(LOADER, batches=batches, epochs=epochs if batches else 0)


def test_a_rank_that_iterates_and_gets_nothing_is_named() -> None:
    found = with_ranks(None, [LOADER], {1: [of(0)], 2: [of(64)]})
    assert found is not None
    (finding,) = found.findings
    assert finding.code == "workers.unfed"
    assert finding.title == "Rank 1 of 3 gets no data"
    assert finding.evidence["batches_by_rank"] == {"0": 64, "1": 0, "2": 64}
    assert finding.fix is not None
    assert "ResampledShards" in finding.fix.text


def test_ranks_with_far_less_are_named_also_rank_0_itself() -> None:
    found = with_ranks(None, [of(20)], {1: [of(64)], 2: [of(30)]})
    assert found is not None
    assert found.findings[0].title == "Ranks 0, 2 of 3 get far less data"


@pytest.mark.parametrize(
    ("own", "others"),
    [
        (of(64), {}),
        (of(64), {1: [of(60)]}),
        (of(64), {1: []}),  # a loader that rank 0 alone iterates, as for validation
        (of(8), {1: [of(0)]}),
        (of(128, epochs=2), {1: [of(64)]}),  # as many an epoch
    ],
)
def test_ranks_that_get_alike_are_no_finding(
    own: WatchedLoader, others: dict[int, list[WatchedLoader]]
) -> None:
    assert with_ranks(None, [own], others) is None


def test_a_rank_that_failed_half_way_is_not_said_to_get_less_data() -> None:
    """Where it is the one that was fed, the other still is not."""
    assert with_ranks(None, [LOADER], {1: [of(20)]}, failed=[1]) is None
    found = with_ranks(None, [of(0)], {1: [of(20)]}, failed=[1])
    assert found is not None
    assert found.findings[0].title == "Rank 0 of 2 gets no data"


def test_dispatch_from_rank_0_is_one_finding_ahead_of_others() -> None:
    own = dataclasses.replace(
        LOADER, dataset="datasets.iterable_dataset.IterableDataset", loads_for=2
    )
    idle = dataclasses.replace(own, batches=0, epochs=0)
    found = with_ranks(Diagnosis(config=Config()), [own], {1: [idle]})
    assert found is not None
    (finding,) = found.findings
    assert finding.title == "Rank 0 loads the batches of all 2 ranks"
    assert finding.predicted_gain is not None
    assert finding.predicted_gain.value == pytest.approx(1 / (0.1 + 0.45))
    assert finding.fix is not None
    assert "dispatch_batches=False" in finding.fix.code
    assert "num_shards" in finding.fix.text

    call = LoaderCall(
        text="TrainingArguments(..., {settings})",
        names={"num_workers": "dataloader_num_workers"},
        variable="args",
    )
    found = with_ranks(None, [dataclasses.replace(own, call=call)], {})
    assert found is not None
    assert found.findings[0].fix is not None
    assert found.findings[0].fix.code == (
        'args = TrainingArguments(..., accelerator_config={"dispatch_batches": False})'
    )


def test_dispatch_from_rank_0_is_said_where_no_batch_was_traced() -> None:
    own = dataclasses.replace(LOADER, loads_for=2, waited_s=9.0, stepped_s=1.0)
    found = Diagnosis(config=Config(), notes=("Not known why train.py:7 is waited for: ...",))
    script = WatchedScript(wall_s=10.0, ending="returned", rank=0, world_size=2, waited_s=9.0)
    run = dataclasses.replace(
        builders.run([]), watched=(own,), script=script, diagnosis=with_ranks(found, [own], {})
    )
    text = " ".join(plain_text(script_report(run), width=100).split())
    assert "Bottleneck Rank 0 loads the batches of all 2 ranks" in text


@pytest.mark.parametrize("names", [None, 7, "train.py:7", {"a": 1}, []])
def test_evidence_that_lists_nothing_is_shown_all_the_same(names: object) -> None:
    """As a file that somebody has changed may have it."""
    wrong = Finding(code="data.duplicated", severity="high", title="Twice", explanation="")
    slow = dataclasses.replace(wrong, code="workers.unfed", title="Slow")
    found = (dataclasses.replace(each, evidence={"seen_in": names}) for each in (wrong, slow))
    script = WatchedScript(wall_s=10.0, ending="returned", waited_s=9.0)
    run = dataclasses.replace(builders.run([]), watched=(LOADER,), script=script)
    run = dataclasses.replace(run, diagnosis=Diagnosis(config=Config(), findings=(*found,)))
    assert "The data of a loader is wrong" in plain_text(script_report(run), width=80)


def test_dispatch_that_nobody_waits_for_is_none() -> None:
    own = dataclasses.replace(LOADER, loads_for=2, wait_fraction=0.01)
    assert with_ranks(None, [own], {}) is None


def test_a_rank_without_data_is_said_before_all_else() -> None:
    run = builders.run([])
    found = with_ranks(None, [LOADER], {1: [of(0)]})
    script = WatchedScript(wall_s=10.0, ending="returned", rank=0, world_size=2)
    run = dataclasses.replace(run, watched=(LOADER,), diagnosis=found, script=script)
    text = plain_text(script_report(run), width=80)
    assert text.index("Rank 1 of 2 gets no data") < text.index("Data wait")


# Which rank the others wait for


def came(*waits_s: float, at_s: float = 0.0) -> StepTimes:
    """Twenty steps of a second in which batches come so late, the waits in turn."""
    return StepTimes(
        got_s=tuple(at_s + n + waits_s[n % len(waits_s)] for n in range(20)),
        wait_s=tuple(waits_s[n % len(waits_s)] for n in range(20)),
        step_s=tuple(1 - waits_s[n % len(waits_s)] for n in range(20)),
    )


def rank_run(rank: int, times: StepTimes, **changes: Any) -> Run:
    """A rank's run that has ended, whose batches came at these times."""
    wait = sum(times.wait_s) / (sum(times.wait_s) + sum(times.step_s))
    loader = dataclasses.replace(
        LOADER,
        startup_s=0.2 + rank,
        samples_per_s=80.0,
        batches_per_s=10.0,
        waited_s=sum(times.wait_s),
        stepped_s=sum(times.step_s),
        wait_fraction=wait,
        step_times=times,
        **changes.pop("loader", {}),
    )
    costs = BatchCosts(cpu_s=(0.01,), run_queue_s=(0.001,), io_s=(changes.pop("io_s", 0.01),))
    traced = Explanation(
        trial_id=LOADER.name, config=Config(num_workers=1), window_s=1.0, batches=1, costs=costs
    )
    place = RankFigures(rank=rank, host="box", cpus=(0, 1))
    script = WatchedScript(
        wall_s=20.0,
        ending="returned",
        rank=rank,
        world_size=3,
        waited_s=sum(times.wait_s),
        wait_fraction=wait,
        usage=Usage(**{"own_cpu_cores": 0.5, "other_cpu_cores": 1.5, **changes.pop("usage", {})}),
        ranks=(place,),
    )
    run = builders.run([], target=builders.target(spec="run:train.py"))
    return dataclasses.replace(
        run, watched=(loader,), explanations=(traced,), script=script, **changes
    )


def shown(runs: dict[int, Run]) -> tuple[Run, str]:
    """The run of the first rank with all of them, and its screen in one line."""
    run = with_figures(runs[min(runs)], *merged(runs))
    run = dataclasses.replace(run, diagnosis=of_straggler(run.diagnosis, {**runs, min(runs): run}))
    return run, " ".join(plain_text(script_report(run), width=100, verbose=True).split())


def slow_reads(gain: Estimate | None = None) -> Diagnosis:
    finding = Finding(
        code="fetch.io",
        severity="high",
        title="Blocking I/O",
        explanation="Making a batch is blocked for 0.40 s.",
        fix=Fix(text="Set num_workers=4.", dataloader_kwargs={"num_workers": 4}),
        predicted_gain=gain,
    )
    return Diagnosis(config=Config(num_workers=1), findings=(finding,), trials=(LOADER.name,))


def test_the_rank_that_the_others_wait_for_is_named_with_its_cause() -> None:
    """Only its own wait is one for data: the others wait for it in their steps."""
    late = rank_run(1, came(0.5), io_s=0.4, diagnosis=slow_reads())
    runs = {0: rank_run(0, came(0.1)), 1: late, 2: rank_run(2, came(0.1))}
    run, text = shown(runs)
    assert run.script is not None
    waits = [each.barrier_fraction for each in run.script.ranks]
    assert waits == pytest.approx([0.4, 0.0, 0.4])
    assert [each.held_up_fraction for each in run.script.ranks] == pytest.approx([0.0, 0.4, 0.0])
    waited = "rank 0 waits for rank 1's data 40% of the time, for its own 10%."
    assert waited in text
    assert waited in index_row(run)[1]  # a table of several runs says no other
    assert (
        "rank 1's batches come last (because of its storage or network): the others wait for "
        "them in their steps 40% of the time on average; first batches took 200 ms to 2.2 s"
    ) in text
    assert "Bottleneck Rank 1: Blocking I/O" in text
    # Not 1.11x, by its own wait of 10%.
    fix = "Fix num_workers=4 on rank 1, or on all ranks (now num_workers=1)"
    assert f"{fix} Speed-up not known; at most" in text
    assert "at most 1.67x in this loop, without any " in text


def test_a_step_is_not_the_limit_of_a_rank_whose_data_others_wait_for() -> None:
    (finding,) = slow_reads().findings
    step = dataclasses.replace(finding, code="consumer", title="The training step", fix=None)
    for rank in (0, 1):
        found = dataclasses.replace(slow_reads(), findings=(step,))
        runs = {n: rank_run(n, came(0.1)) for n in (0, 1)}
        _, text = shown(runs | {rank: rank_run(rank, came(0.5), io_s=0.4, diagnosis=found)})
        assert "Bottleneck none found that is worth fixing" in text


def test_the_screen_of_ranks_is_the_recorded_one() -> None:
    found = slow_reads(gain=Estimate(value=3.0, low=2.0, high=4.0))
    late = rank_run(2, came(0.5), io_s=0.4, diagnosis=found)
    run, _ = shown({0: rank_run(0, came(0.1)), 1: rank_run(1, came(0.12)), 2: late})
    run = dataclasses.replace(run, path="ddp.rank0.dlprof.jsonl")
    for width in (60, 80, 200):
        check_golden(f"run-ranks-{width}.txt", text := drawn(script_report(run), width))
        assert max(map(len, text.splitlines())) <= width
    check_golden("run-ranks-verbose.txt", drawn(script_report(run), 80, verbose=True))
    document = json.loads(script_document(run))
    assert document["straggler"]["rank"] == 2
    assert [each["held_up_fraction"] for each in document["script"]["ranks"]][:2] == [0.0, 0.0]


def test_the_file_of_a_rank_says_where_those_are_that_wait_for_it() -> None:
    late = rank_run(1, came(0.5), diagnosis=slow_reads(gain=Estimate(value=3.0)))
    text = " ".join(plain_text(script_report(late), width=100).split())
    where = "Ranks rank 1 by itself; ranks of one machine are compared in the file of the first"
    assert where in text
    assert "Certainty low: the script ran once; the gain has no interval" in text
    assert "by itself" not in plain_text(script_report(rank_run(0, came(0.5))), width=100)


def test_a_late_rank_0_reports_its_own_wait() -> None:
    found = slow_reads(gain=Estimate(value=3.0, low=2.0, high=4.0))
    late = rank_run(0, came(0.5), io_s=0.4, diagnosis=found)
    _, text = shown({0: late, 1: rank_run(1, came(0.1))})
    assert "The loop over train.py:7 spends 50% of its 20 s waiting for data." in text
    assert "rank 0's batches come last" in text
    assert "Bottleneck Rank 0: Blocking I/O" in text
    # Not 3x, which is its loader's alone: the other one is then the slowest.
    assert "Fix num_workers=4 on rank 0, or on all ranks (now num_workers=1)" in text
    assert "at most 1.67x in all ranks' loops, an" in text


def test_the_fix_of_a_late_rank_brings_what_the_next_one_allows() -> None:
    """Of two that wait 40 and 30 % for it, the second is then the slowest."""
    (finding,) = slow_reads().findings
    gains = (Estimate(value=3.0, low=2.0, high=4.0), Estimate(value=1.2, low=1.0, high=1.4))
    findings = tuple(dataclasses.replace(finding, predicted_gain=gain) for gain in gains)
    late = rank_run(1, came(0.5), diagnosis=dataclasses.replace(slow_reads(), findings=findings))
    run, text = shown({0: rank_run(0, came(0.1)), 1: late, 2: rank_run(2, came(0.2))})
    found = [each.predicted_gain for each in run.findings]
    assert found[0] is not None
    assert found[0].value == pytest.approx(1 / 0.7)
    assert found[1] == gains[1]
    assert "at most 1.43x in all ranks' loops, an estimate" in text


def test_wrong_data_comes_before_who_is_late() -> None:
    found = Diagnosis(
        config=Config(),
        findings=(Finding(code="data.duplicated", severity="high", title="", explanation=""),),
    )
    late = rank_run(1, came(0.5), diagnosis=slow_reads())
    run, _ = shown({0: rank_run(0, came(0.1), diagnosis=found), 1: late})
    assert run.diagnosis == found


def test_what_one_worker_would_share_does_not() -> None:
    limit = Finding(code="data.shared_file", severity="info", title="", explanation="")
    found = Diagnosis(config=Config(), findings=(limit,))
    late = rank_run(1, came(0.5), diagnosis=slow_reads())
    run, _ = shown({0: rank_run(0, came(0.1), diagnosis=found), 1: late})
    assert run.diagnosis != found


def test_stragglers_that_change_name_no_rank() -> None:
    runs = {0: rank_run(0, came(0.5, 0.1)), 1: rank_run(1, came(0.1, 0.5))}
    _, text = shown(runs)
    assert (
        "each waits in its steps for batches of others, 20% of the time; which one comes last "
        "changes"
    ) in text
    assert "waits for other ranks' data 20% of the time, for its own" in text


def test_ranks_that_do_not_go_step_by_step_wait_for_themselves() -> None:
    """The slower one asks later and later: nobody waits for it."""
    fast = came(0.1)
    slow = dataclasses.replace(
        fast, got_s=tuple(1.5 * each for each in fast.got_s), wait_s=(0.6,) * 20, step_s=(0.9,) * 20
    )
    run, text = shown({0: rank_run(0, fast), 1: rank_run(1, slow, io_s=0.4)})
    assert run.script is not None
    assert {each.barrier_fraction for each in run.script.ranks} == {None}
    assert "rank 1 waits longest for data, 40% of the time (because of its storage" in text
    assert "the others wait 10%" in text


def test_ranks_that_wait_alike_are_said_to() -> None:
    _, text = shown({0: rank_run(0, came(0.3)), 1: rank_run(1, came(0.31))})
    assert "both wait 30% to 31% of the time for data" in text
    assert "; 1 of 3 is not compared (elsewhere, or not ended)" in text
    _, text = shown({0: rank_run(0, came(0.3))})
    assert "Ranks" not in text


def test_a_loader_that_one_rank_iterates_makes_no_rank_late() -> None:
    """As for validation: of the others' waits for it nothing is known."""
    alone = {0: rank_run(0, came(0.4)), 1: dataclasses.replace(rank_run(1, came(0.1)), watched=())}
    run, text = shown(alone)
    assert straggler_of(run) is None
    assert "Ranks 1 of 2 iterates train.py:7 and waits 40% of the time for data" in text
    runs = {**alone, 2: rank_run(2, came(0.4))}
    assert "Ranks 2 of 3 iterate train.py:7 and wait 40% of the time for data" in shown(runs)[1]


def test_ranks_of_an_earlier_version_do_not_name_their_loader() -> None:
    run, _ = shown({0: rank_run(0, came(0.3)), 1: rank_run(1, came(0.31))})
    assert run.script is not None
    one, two = (dataclasses.replace(each, loader="") for each in run.script.ranks)
    ranks = (one, dataclasses.replace(two, wait_fraction=None))
    script = dataclasses.replace(run.script, ranks=ranks)
    facts = dict(training_facts(dataclasses.replace(run, script=script)))
    assert str(facts["Ranks"]).startswith("1 of 2 iterates a loader and waits 30% of the time")


def test_a_step_that_is_late_by_itself_holds_nobody_up_for_data() -> None:
    """Its batch comes late because it asked late: that is the step's matter, not the loader's."""
    times = [came(0.01), came(0.01)]
    late = dataclasses.replace(times[1], got_s=tuple(each + 0.4 for each in times[1].got_s))
    found = in_step([times[0], late])
    assert found is not None
    assert found[0][0] == pytest.approx(0.01)


def test_ranks_that_kept_unlike_steps_are_compared_by_those_that_both_kept() -> None:
    log, sparse = came(0.5), came(0.1)
    sparse = StepTimes(
        stride=2, got_s=sparse.got_s[::2], wait_s=sparse.wait_s[::2], step_s=sparse.step_s[::2]
    )
    found = in_step([log, sparse])
    assert found is not None
    assert [*itertools.chain(*found)] == pytest.approx([0.0, 0.4, 0.4, 0.0])
    few = StepTimes(got_s=log.got_s[:9], wait_s=log.wait_s[:9], step_s=log.step_s[:9])
    assert in_step([few, few]) is None


def test_another_job_is_what_no_rank_used() -> None:
    """Each rank sees the other as somebody else, as far as they share CPUs."""
    runs = {0: rank_run(0, came(0.1)), 1: rank_run(1, came(0.1), usage={"own_cpu_cores": 1.0})}
    assert [each.other_cpu_cores for each in merged(runs)] == [0.5, 1.0]
    assert [each.other_cpu_cores for each in merged({0: runs[0]})] == [None]


def test_a_log_of_steps_is_bounded_and_alike_on_all_ranks() -> None:
    """What is kept follows from the count alone, whenever it is worked out."""
    logs = [StepLog(), StepLog()]
    for log, chunk in zip(logs, (7, 250), strict=True):
        log.leave_out()
        times = [each for n in range(5001) for each in (1000 * n, 1000 * n + 900)]
        for start in range(0, len(times) - 1, 2 * chunk):
            log.add(times[start : start + 2 * chunk + 1])
    one, other = (log.record() for log in logs)
    assert one == other
    assert len(one.got_s) <= 1024
    assert one.got_s[:3] == pytest.approx([1e-6 * (1 + one.stride * n) for n in range(3)])
    assert {*one.wait_s} == {0.0}
    assert {*one.step_s} == {1e-6}


def test_the_first_batch_of_an_epoch_is_left_out_of_the_log() -> None:
    now_ns = iter(range(0, 10**9, 10**6))
    log = StepLog()
    statistics = WaitStatistics(clock=lambda: next(now_ns), began_ns=0, log=log)
    for _ in range(2):
        reading, batches = statistics.open(lambda: iter(range(4)))
        with contextlib.suppress(StopIteration):
            while True:
                reading.take(next, batches)
    assert len(log.record().got_s) == 2 * 3


def test_two_ranks_are_compared_by_what_each_does_alone() -> None:
    """They go at one pace: of the difference their rates show nothing."""
    runs = [rank_run(0, came(0.1)), rank_run(1, came(0.5))]
    found = compare(*runs)
    assert found.ratio.value == pytest.approx(0.6)
    assert found.parts[0].code == "wait"
    assert "for the other's batches" in found.pairing
    later = rank_run(1, came(0.5, at_s=1000.0))
    assert compare(runs[0], later).ratio.value == 1.0


# The files of other ranks


def write(
    path: Path,
    rank: int,
    *,
    ending: ScriptEnding = "returned",
    started_at: str = "",
    host: str = "",
) -> RunHeader:
    header = new_header("train.py")
    if started_at:
        header = dataclasses.replace(header, started_at=started_at)
    if host:
        machine = dataclasses.replace(header.machine, hostname=host)
        header = dataclasses.replace(header, machine=machine)
    writer = RunWriter.create(Rank(rank=rank, world_size=3).file(path), header)
    writer.append(of(rank))
    writer.append(WatchedScript(wall_s=1.0, ending=ending, rank=rank, world_size=3))
    writer.close()
    return header


@pytest.fixture
def job(tmp_path: Path) -> tuple[Rank, Path, Path]:
    rank, path = Rank(rank=0, world_size=3, local_size=3), tmp_path / "a.rank0.dlprof.jsonl"
    return rank, rank.file(path), path


def test_others_are_read_once_they_have_ended(job: tuple[Rank, Path, Path]) -> None:
    rank, own, path = job
    header = write(path, 1)
    slept = []

    def ends(pause_s: float) -> None:
        slept.append(pause_s)
        if len(slept) == 3:
            write(path, 2)

    found = read_others(rank, own, header, sleep=ends)
    assert {other: seen.watched[0].batches for other, seen in found.items()} == {1: 1, 2: 2}
    assert len(slept) == 3


def test_the_first_of_a_machine_reads_its_own_where_others_have_more(tmp_path: Path) -> None:
    """Of five ranks, three are on the other machine."""
    path = tmp_path / "a.dlprof.jsonl"
    for other in (0, 4):
        header = write(path, other)
    rank = Rank(rank=3, world_size=5, local_size=2)
    assert [*read_others(rank, rank.file(path), header, sleep=lambda _: None)] == [4]


def test_a_file_of_another_machine_is_left_out(job: tuple[Rank, Path, Path]) -> None:
    """Of a shared folder, where no launcher says how many ranks each machine has."""
    rank, own, path = job
    write(path, 1, host="elsewhere")
    header = write(path, 2)
    slept: list[float] = []
    assert [*read_others(rank, own, header, sleep=slept.append)] == [2]
    assert not slept


def test_a_rank_that_runs_on_or_is_of_an_earlier_job_is_left_out(
    job: tuple[Rank, Path, Path],
) -> None:
    rank, own, path = job
    header = write(path, 1, ending="running")
    write(path, 2, started_at="2020-01-01T00:00:00+00:00")
    slept: list[float] = []
    assert read_others(rank, own, header, sleep=slept.append) == {}
    assert 2.0 < sum(slept) <= 4.0


def begun(path: Path, rank: int) -> RunWriter:
    """The file of a rank that lives, and is in the midst of its training."""
    header = dataclasses.replace(new_header("train.py"), run_id=str(rank))
    writer = RunWriter.create(Rank(rank=rank, world_size=3).file(path), header)
    writer.append(WatchedScript(wall_s=1.0, ending="running", rank=rank, world_size=3))
    return writer


def ended(writer: RunWriter) -> None:
    writer.append(of(7))
    writer.append(WatchedScript(wall_s=9.0, ending="returned", rank=1, world_size=3))
    writer.close()


def test_a_rank_that_is_seen_to_live_is_waited_for(job: tuple[Rank, Path, Path]) -> None:
    rank, own, path = job
    header = write(path, 2)
    late, slept = begun(path, 1), list[float]()

    def passes(pause_s: float) -> None:
        slept.append(pause_s)
        if sum(slept) == 20.0:
            ended(late)

    found = read_others(rank, own, header, sleep=passes)
    assert sorted(found) == [1, 2]
    assert sum(slept) == 20.0


def test_a_rank_that_hangs_is_left_out_after_half_a_minute(job: tuple[Rank, Path, Path]) -> None:
    rank, own, path = job
    header = write(path, 2)
    with contextlib.closing(begun(path, 1)):
        slept: list[float] = []
        assert [*read_others(rank, own, header, sleep=slept.append)] == [2]
        assert sum(slept) == 30.0


def test_a_rank_that_was_killed_is_not_waited_for(job: tuple[Rank, Path, Path]) -> None:
    rank, own, path = job
    header = write(path, 2)
    begun(path, 1).close()  # as the kernel lets its lock go
    with contextlib.closing(RunWriter.create(own, header)):
        slept: list[float] = []
        assert [*read_others(rank, own, header, sleep=slept.append)] == [2]
        assert not slept


def test_ctrl_c_leaves_out_those_that_go_on(job: tuple[Rank, Path, Path]) -> None:
    rank, own, path = job
    header = write(path, 2)

    def interrupted(_: float) -> None:
        raise KeyboardInterrupt

    with contextlib.closing(begun(path, 1)):
        assert [*read_others(rank, own, header, sleep=interrupted)] == [2]


def test_a_first_rank_that_is_ended_as_it_waits_for_others_leaves_what_it_saw(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def ended(*_: object, **__: object) -> dict[int, Run]:
        raise KeyboardInterrupt

    monkeypatch.setattr(running, "read_others", ended)
    rank, header = Rank(rank=0, world_size=2, local_size=2), new_header("train.py")
    watching = running.ScriptRun(header=header, rank=rank, show=lambda _: None, clock=lambda: 0)
    path = tmp_path / "a.rank0.dlprof.jsonl"
    watching._writer = RunWriter.create(path, header)
    watching.ending = Ending(kind="returned", exit_code=0)
    with pytest.raises(KeyboardInterrupt):
        watching._finish()
    script = read_run(path).script
    assert script is not None
    assert script.ending == "returned"


def test_ctrl_c_that_a_launcher_passes_on_costs_no_report(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The terminal sends it to all of a job, and torchrun to its ranks once more."""

    def passes_on(*_: object, patient: bool) -> dict[int, Run]:
        signal.raise_signal(signal.SIGINT)
        assert not patient
        return {}

    monkeypatch.setattr(running, "read_others", passes_on)
    monkeypatch.setattr(running, "_end_as_interrupted", lambda: None)
    rank, header, shown = Rank(rank=0, world_size=2, local_size=2), new_header("a.py"), list[Run]()
    watching = running.ScriptRun(header=header, rank=rank, show=shown.append, clock=lambda: 0)
    watching._writer = RunWriter.create(tmp_path / "a.rank0.dlprof.jsonl", header)
    watching.ending = Ending(kind="interrupted", exit_code=130)
    before = signal.getsignal(signal.SIGINT)
    try:
        watching._finish()
    finally:
        signal.signal(signal.SIGINT, before)
    assert [run.script and run.script.ending for run in shown] == ["interrupted"]


@pytest.mark.parametrize(("kind", "code"), [("returned", 0), ("exception", 1), ("exit", 3)])
def test_a_first_rank_that_failed_is_not_patient_with_others_that_hang(
    kind: ScriptEnding, code: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = list[bool]()

    def noted(*_: object, patient: bool) -> dict[int, Run]:
        asked.append(patient)
        return {}

    monkeypatch.setattr(running, "read_others", noted)
    rank, header = Rank(rank=0, world_size=2, local_size=2), new_header("a.py")
    watching = running.ScriptRun(header=header, rank=rank, show=lambda _: None, clock=lambda: 0)
    watching._writer = RunWriter.create(tmp_path / "a.rank0.dlprof.jsonl", header)
    watching.ending = Ending(kind=kind, exit_code=code)
    watching._finish()
    assert asked == [code == 0]


# Frames


DISPATCHER = """
class DataLoaderDispatcher:
    state = SimpleNamespace(num_processes=4)

    def iterated(self):
        return look()
"""


def test_the_dispatcher_that_iterates_a_loader_is_seen() -> None:
    def look() -> int:
        return ranks_served(sys._getframe())

    at_home = {"SimpleNamespace": types.SimpleNamespace, "look": look}
    for module, ranks in (("accelerate.data_loader", 4), ("elsewhere", 1)):
        there: dict[str, Any] = {"__name__": module, **at_home}
        exec(DISPATCHER, there)  # a module of that name, as frames show it
        assert there["DataLoaderDispatcher"]().iterated() == ranks
    assert look() == 1


def test_what_a_running_frame_lets_go_of_is_not_kept() -> None:
    data: set[int] = set()
    ranks_served(sys._getframe())
    gone = weakref.ref(data)
    del data
    assert gone() is None
