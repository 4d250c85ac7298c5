"""What may be said where the budget held a plain trial, but none that follows batches."""

from __future__ import annotations

import dataclasses

from finding_cases import Loader, evidence

from dlprof.advise.findings.diagnosis import find
from dlprof.records import Config, Finding, Usage

CROWD = Usage(  # of 1.7 threads that run or could, 1.5 wait for a core
    own_cpu_cores=0.2,
    available_cpu_cores=0.2,
    other_cpu_cores=1.8,
    run_queue_wait_fraction=0.88,
)


def _crowd(*, followed: bool) -> Finding:
    seen = evidence(Loader(fetch_cpu=0.004, starved=0.03, rate=50), usage=CROWD)
    if not followed:
        plain = tuple(each for each in seen.observations if each.explanation is None)
        seen = dataclasses.replace(seen, observations=plain)
    return next(each for each in find(seen) if each.code == "cpu.neighbours")


def test_others_are_reported_without_a_gain_that_nothing_speaks_for() -> None:
    found = _crowd(followed=False)
    assert found.predicted_gain is None
    assert "run-queue delay was 73% of the loader's time" in found.explanation
    assert "to make a batch" not in found.explanation


def test_others_take_nothing_from_a_loader_that_is_blocked_all_the_time() -> None:
    """What little it runs waits for a core: of 2 workers' time, a tenth."""
    usage = dataclasses.replace(CROWD, own_cpu_cores=0.02)
    seen = evidence(Loader(fetch_io=0.03, rate=60), usage=usage)
    plain = tuple(each for each in seen.observations if each.explanation is None)
    assert not find(dataclasses.replace(seen, observations=plain))


def test_nor_of_a_loader_of_which_only_the_wait_for_its_batches_is_seen() -> None:
    """Its threads may have waited for a core while others slept for longer, as SPDL's do."""
    seen = evidence(Loader(config=Config(), collate_cpu=0.0, rate=50), usage=CROWD)
    found = next(each for each in find(seen) if each.code == "cpu.neighbours")
    assert found.predicted_gain is None
    assert "of the loader's time" in found.explanation


def test_followed_batches_show_what_their_making_waited() -> None:
    found = _crowd(followed=True)
    assert found.predicted_gain is not None
    assert "run-queue delay was 88% of the time to make a batch" in found.explanation


def test_a_loader_that_wants_all_cores_many_times_takes_them_from_itself() -> None:
    """Ten of its threads and one of others want two cores."""
    own = Usage(
        own_cpu_cores=1.3,
        available_cpu_cores=1.35,
        other_cpu_cores=0.65,
        run_queue_wait_fraction=0.87,
    )
    seen = evidence(Loader(fetch_cpu=0.004, starved=0.03, rate=50), usage=own)
    plain = tuple(each for each in seen.observations if each.explanation is None)
    found = find(dataclasses.replace(seen, observations=plain))
    lost = next((each.cost for each in found if each.code == "cpu.neighbours"), 0.0)
    assert lost < 0.4
