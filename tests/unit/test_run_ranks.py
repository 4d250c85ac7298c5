"""What ranks get of a training's data: recorded evidence, files of other ranks, frames."""

from __future__ import annotations

import dataclasses
import sys
import types
import weakref
from pathlib import Path
from typing import Any

import builders
import pytest

from dlprof.integrations.ranks import Rank, read_others, waits_by_rank, with_ranks
from dlprof.integrations.running import new_header
from dlprof.records import Config, Diagnosis, Finding, Run, WatchedLoader, WatchedScript
from dlprof.report.script import script_report
from dlprof.report.terminal import plain_text
from dlprof.store import RunWriter
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


def ended(rank: int, wait: float, *titles: str) -> Run:
    """A rank's run that waited for a share of its time, with findings of these titles."""
    findings = tuple(
        Finding(code="fetch.io", severity="high", title=each, explanation="") for each in titles
    )
    return dataclasses.replace(
        builders.run([]),
        watched=(dataclasses.replace(LOADER, startup_s=0.2 + rank),),
        script=WatchedScript(wall_s=10.0, ending="returned", wait_fraction=wait, rank=rank),
        diagnosis=Diagnosis(config=Config(), findings=findings),
    )


def test_the_rank_that_waits_longest_is_named_with_its_cause() -> None:
    runs = {0: ended(0, 0.03), 1: ended(1, 0.41, "Blocking I/O"), 2: ended(2, 0.04)}
    note = waits_by_rank(runs)
    assert note == (
        "by rank: rank 1 waits longest for data, 41% of the time (Blocking I/O); the others wait "
        "3.0% to 4.0%; first batches took 200 ms to 2.2 s"
    )
    script = WatchedScript(wall_s=10.0, ending="returned", rank=0, world_size=3, notes=(note,))
    text = plain_text(script_report(dataclasses.replace(runs[0], script=script)), width=80)
    assert " ".join(text.split()).count("Ranks rank 1 waits longest for data, 41%") == 1


def test_ranks_that_wait_alike_are_said_to() -> None:
    note = waits_by_rank({0: ended(0, 0.31), 1: ended(1, 0.33)})
    assert note.startswith("by rank: all 2 wait 31% to 33% of the time for data")
    assert waits_by_rank({0: ended(0, 0.31)}) == ""


# The files of other ranks


def write(path: Path, rank: int, *, ending: str = "returned", started_at: str = "") -> str:
    header = new_header("train.py")
    if started_at:
        header = dataclasses.replace(header, started_at=started_at)
    writer = RunWriter.create(Rank(rank=rank, world_size=3).file(path), header)
    writer.append(of(rank))
    writer.append(WatchedScript(wall_s=1.0, ending=ending, rank=rank, world_size=3))  # type: ignore[arg-type]
    writer.close()
    return header.started_at


@pytest.fixture
def job(tmp_path: Path) -> tuple[Rank, Path, Path]:
    rank, path = Rank(rank=0, world_size=3, local_size=3), tmp_path / "a.rank0.dlprof.jsonl"
    return rank, rank.file(path), path


def test_others_are_read_once_they_have_ended(job: tuple[Rank, Path, Path]) -> None:
    rank, own, path = job
    began_at = write(path, 1)
    slept = []

    def ends(pause_s: float) -> None:
        slept.append(pause_s)
        if len(slept) == 3:
            write(path, 2)

    found = read_others(rank, own, began_at, sleep=ends)
    assert {other: seen.watched[0].batches for other, seen in found.items()} == {1: 1, 2: 2}
    assert len(slept) == 3


def test_a_rank_that_runs_on_or_is_of_an_earlier_job_is_left_out(
    job: tuple[Rank, Path, Path],
) -> None:
    rank, own, path = job
    began_at = write(path, 1, ending="running")
    write(path, 2, started_at="2020-01-01T00:00:00+00:00")
    slept: list[float] = []
    assert read_others(rank, own, began_at, sleep=slept.append) == {}
    assert 2.0 < sum(slept) <= 4.0


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
        exec(DISPATCHER, there)  # noqa: S102 - a module of that name, as frames show it
        assert there["DataLoaderDispatcher"]().iterated() == ranks
    assert look() == 1


def test_what_a_running_frame_lets_go_of_is_not_kept() -> None:
    data: set[int] = set()
    ranks_served(sys._getframe())
    gone = weakref.ref(data)
    del data
    assert gone() is None
