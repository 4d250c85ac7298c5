"""Trainings under torchrun, one rank of which is late with its data for a known cause."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest
from programs import python

from dlprof.advise.compare import compare
from dlprof.advise.scaling import CORES, OTHER_JOB, SHARD, STORAGE, WAITS, straggler_of
from dlprof.records import Run
from dlprof.store import read_run

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="plants by affinity and priority")

SCRIPT = Path(__file__).parent / "ranks_script.py"


def trained(place: Path, cause: str, *, ranks: int = 2, slow: int = 1, steps: int = 25) -> Run:
    """The run of rank 0 of such a training; those of the others are beside it."""
    launcher = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(ranks))
    words = ("-m", "dlprof", "run", "--json", "run.json", "-o", "run.dlprof.jsonl")
    script = (str(SCRIPT), cause, str(slow), str(steps))
    done = python(place, *launcher, *words, *script, timeout_s=170)
    assert done.returncode == 0, done.stderr[-3000:]
    (place / "screen.txt").write_text(" ".join(done.stderr.split()))
    return read_run(place / "run.rank0.dlprof.jsonl")


def late(run: Run) -> tuple[int | None, str]:
    """Which rank the others wait for, and what it is slow for, in a word or two."""
    found = straggler_of(run)
    assert found is not None
    assert found.in_step
    return found.rank, word(found.cause)


def word(cause: str) -> str:
    """A cause without its particulars: pages of torch that are read meanwhile count as reads."""
    return STORAGE if cause == WAITS else cause


@pytest.mark.slow
def test_the_others_wait_in_their_steps_for_a_rank_of_slow_storage(tmp_path: Path) -> None:
    run = trained(tmp_path, "storage")
    assert run.script is not None
    first, second = run.script.ranks
    assert late(run) == (1, STORAGE)
    assert (first.barrier_fraction or 0.0) > 0.3 > (second.barrier_fraction or 0.0)
    # Its own wait is as long as theirs in the steps: they have none to speak of for their data.
    assert (second.wait_fraction or 0.0) > (first.wait_fraction or 0.0)
    assert (first.ready_fraction or 0.0) > (second.ready_fraction or 0.0)
    assert None not in {first.startup_s, second.startup_s, first.own_cpu_cores}

    screen = (tmp_path / "screen.txt").read_text()
    assert "rank 0 waits for rank 1's data " in screen
    assert "rank 1's batches come last (because of its storage" in screen
    assert "Bottleneck Rank 1: " in screen

    document: dict[str, Any] = json.loads((tmp_path / "run.rank0.json").read_text())
    assert [each["rank"] for each in document["script"]["ranks"]] == [0, 1]
    assert {each["step_times"] for each in document["loaders"]} == {None}

    other = read_run(tmp_path / "run.rank1.dlprof.jsonl")
    found = compare(run, other)
    assert found.ratio.value < 0.8  # though both made as many steps in the same time
    assert found.parts[0].code == "wait"


@pytest.mark.slow
def test_stragglers_that_change_by_epoch_name_no_rank(tmp_path: Path) -> None:
    assert late(trained(tmp_path, "turns")) == (None, "")


@pytest.mark.slow
def test_ranks_without_a_common_step_wait_for_nobody(tmp_path: Path) -> None:
    run = trained(tmp_path, "free-storage")
    found = straggler_of(run)
    assert found is not None
    assert (found.rank, found.in_step, word(found.cause)) == (1, False, STORAGE)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("cause", "ranks", "slow", "said"),
    [
        ("storage", 4, 3, STORAGE),
        ("storage", 2, 0, STORAGE),
        ("shard", 3, 2, SHARD),
        ("cores", 2, 1, CORES),
        ("job", 2, 1, OTHER_JOB),
    ],
)
def test_a_late_rank_and_its_cause_are_named(
    tmp_path: Path, cause: str, ranks: int, slow: int, said: str
) -> None:
    run = trained(tmp_path, cause, ranks=ranks, slow=slow)
    found = late(run)
    elsewhere = run.script.ranks[0].other_cpu_cores if run.script is not None else None
    if said == OTHER_JOB and (elsewhere or 0.0) > 0.2:
        pytest.skip("processes that are not the test's take the other core, too")
    assert found == (slow, said)
