"""Which trials a profile asks for, step by step, and when it has enough."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

import pytest
from builders import config, failed, machine, target, trial
from finding_cases import Loader, explanation
from hypothesis import given
from hypothesis import strategies as st

from dlprof.advise.experiments import Allowance, Experiment, left_out, propose
from dlprof.advise.findings.diagnosis import find
from dlprof.advise.findings.evidence import Evidence, Observation
from dlprof.records import Config, Trial, TrialCost

PRESENT = config(4)
BLOCKED = Loader(config=PRESENT, fetch_io=0.04, hold_up=0.02, busy=0.55, rate=60)
FREE = config(4, in_order=False)
DEEP = config(4, prefetch_factor=8)
ROOMY = Allowance(budget_s=60.0)


def _start(present: Config = PRESENT, **fields: Any) -> Evidence:
    made = Evidence(machine=machine(2), target=target(), config=present)
    return dataclasses.replace(made, **fields)


def _play(seen: Evidence, allowance: Allowance, gains: Mapping[Config, float]) -> list[str]:
    """The names of proposed trials, and what they find."""
    names: list[str] = []
    last = _last(seen, allowance, gains, names)
    return [*names, ",".join(finding.code for finding in find(last))]


def _last(
    seen: Evidence,
    allowance: Allowance,
    gains: Mapping[Config, float],
    names: list[str] | None = None,
) -> Evidence:
    """Run proposed trials on an imagined machine until nothing more is asked for."""
    while block := propose(seen, allowance):
        if names is not None:
            names += [each.name for each in block]
        count = len(seen.observations)
        assert count < 100
        done = tuple(_run(each, gains, count + place) for place, each in enumerate(block))
        seen = dataclasses.replace(seen, observations=(*seen.observations, *done))
    return seen


def _run(
    asked: Experiment, gains: Mapping[Config, float], number: int, *, waits: Loader = BLOCKED
) -> Observation:
    rate = waits.rate * gains.get(asked.config, 1.0)
    made = trial(
        asked.config,
        rate * 32,
        repetition=asked.repetition,
        trial_id=f"t{number:04}",
        wall_s=asked.trial_s + 0.4,
        purpose=asked.purpose,
    )
    shown = None
    if asked.purpose == "explain":
        shown = explanation(dataclasses.replace(waits, config=asked.config), made.id)
    return Observation(trial=made, explanation=shown)


def test_it_begins_with_what_is_and_the_calibration() -> None:
    block = propose(_start(), ROOMY)
    assert [(each.purpose, each.config.num_workers) for each in block] == [
        ("measure", 4),
        ("explain", 4),
        ("explain", 0),
        ("explain", 1),
        ("explain", 2),
        ("measure", 4),
    ]
    assert [each.repetition for each in block] == [0, 0, 0, 0, 0, 1]
    assert block[3].name == "calibration with 1 worker"
    assert block[0].turnover
    assert all(each.config == each.config.canonical() for each in block)


def test_what_is_explained_is_not_calibrated_again() -> None:
    workers = [each.config.num_workers for each in propose(_start(config(1)), ROOMY)]
    assert workers == [1, 1, 0, 2, 1]


def test_no_more_workers_than_allowed() -> None:
    block = propose(_start(config(1)), dataclasses.replace(ROOMY, workers=1))
    assert max(each.config.num_workers for each in block) == 1


def test_nothing_is_tried_that_the_target_cannot_be_set_to() -> None:
    fixed = {"in_order": "make() takes no in_order"}
    seen = _start(target=target(fixed=fixed))
    names = _play(seen, ROOMY, {FREE: 1.6, DEEP: 1.2})
    assert "trying prefetch_factor=8" in names
    assert "trying in_order=False" not in names


def test_a_target_that_is_taken_as_it_is_is_not_calibrated_with_fewer_workers() -> None:
    fixed = dict.fromkeys(Config.__dataclass_fields__, "it can't be built again")
    block = propose(_start(target=target(fixed=fixed, own_config=PRESENT)), ROOMY)
    assert {each.config for each in block} == {PRESENT}


def test_remedies_are_tried_beside_the_present_and_repeated_where_they_pay() -> None:
    names = _play(_start(), ROOMY, {FREE: 1.6, DEEP: 1.2})
    tried = [name for name in names if name.startswith("trying")]
    assert tried.count("trying in_order=False") == 2
    assert tried.count("trying prefetch_factor=8") == 2
    assert names[-1].startswith("order.blocking")


def test_what_brought_nothing_is_not_repeated() -> None:
    names = _play(_start(), ROOMY, {FREE: 0.9, DEEP: 1.4})
    assert names.count("trying in_order=False") == 1
    assert names[-1].startswith("prefetch.shallow")


def test_the_page_cache_is_dropped_once_where_files_are_read() -> None:
    assert _play(_start(reads_files=True), ROOMY, {}).count("with a cold page cache") == 1
    assert "with a cold page cache" not in _play(_start(reads_files=False), ROOMY, {})


def test_what_a_budget_leaves_out_is_reported() -> None:
    short = Allowance(budget_s=9.0)
    files = _last(_start(reads_files=True), short, {})
    assert left_out(files, short) == ("with a cold page cache",)
    assert "in_order=False" in left_out(_last(_start(), short, {}), short)
    assert left_out(_last(_start(), ROOMY, {FREE: 1.5}), ROOMY) == ()
    assert left_out(_start(), ROOMY) == ()


def test_a_present_that_fails_is_reported_by_that() -> None:
    lost = Observation(trial=failed(PRESENT))
    assert propose(_start(observations=(lost,)), ROOMY) == ()


def test_blocks_turn_about() -> None:
    seen = _start()
    tried = []
    for _ in range(3):
        block = propose(seen, ROOMY)
        tried.append([each.config == PRESENT for each in block])
        done = tuple(_run(each, {FREE: 1.5, DEEP: 1.4}, n) for n, each in enumerate(block))
        seen = dataclasses.replace(seen, observations=(*seen.observations, *done))
    assert tried[1] == list(reversed(tried[2]))


def test_a_block_that_is_cut_short_keeps_what_is_most_telling() -> None:
    seen = _start()
    done = tuple(_run(each, {}, n) for n, each in enumerate(propose(seen, ROOMY)))
    seen = dataclasses.replace(seen, observations=done)
    whole = propose(seen, ROOMY)
    assert len(whole) > 2
    assert whole[-1].config == PRESENT
    window_s = max(each.trial_s for each in whole)
    room = dataclasses.replace(ROOMY, budget_s=_spent(seen.trials()) + 2.5 * (window_s + 0.4))
    cut = propose(seen, room)
    assert cut == whole[-2:]


def test_a_longer_look_at_memory_that_failed_is_not_taken_again() -> None:
    seen = _start()
    done = [_growing(each, n) for n, each in enumerate(propose(seen, ROOMY))]
    seen = dataclasses.replace(seen, observations=tuple(done))
    longer = propose(seen, ROOMY)
    assert [each.name for each in longer] == ["longer, to check for memory growth"]
    lost = Observation(trial=failed(PRESENT, repetition=2))
    after = dataclasses.replace(seen, observations=(*seen.observations, lost))
    assert longer[0].name not in [each.name for each in propose(after, ROOMY)]


def test_a_longer_look_at_memory_takes_what_it_needs_of_the_budget_or_nothing() -> None:
    """200 batches of each of four workers, at 60 a second; eight windows where that is too long."""
    seen = _start()
    done = [_growing(each, n) for n, each in enumerate(propose(seen, ROOMY))]
    seen = dataclasses.replace(seen, observations=tuple(done))
    spent_s = _spent(seen.trials())

    def asked(left_s: float) -> dict[str, float]:
        block = propose(seen, dataclasses.replace(ROOMY, budget_s=spent_s + left_s))
        return {each.name.partition(",")[0]: each.trial_s for each in block}

    assert asked(40.0) == {"longer": pytest.approx(16.0)}
    assert asked(12.0) == {"longer": 8.0}
    assert "as it is" in asked(6.0)  # what else there is to try
    assert not asked(0.0)
    assert "in_order=False" in left_out(seen, dataclasses.replace(ROOMY, budget_s=spent_s))


def _growing(asked: Experiment, number: int) -> Observation:
    """Of trials whose memory grows with the batches that they load."""
    made = _run(asked, {}, number)
    batches = round(asked.trial_s * BLOCKED.rate)
    usage = dataclasses.replace(made.trial.usage, pss_peak_bytes=batches << 21)
    grown = dataclasses.replace(made.trial, usage=usage, window_batches=batches)
    return dataclasses.replace(made, trial=grown)


def test_slow_batches_leave_out_what_the_budget_does_not_hold() -> None:
    slow = Allowance(budget_s=10.0, cost=TrialCost(overhead_s=0.4, batch_s=1.0))
    block = propose(_start(), slow)
    # The first is all that there may be time for.
    assert [each.purpose for each in block] == ["explain", "measure"]
    assert {each.config for each in block} == {PRESENT}
    assert block[0].trial_s < block[1].trial_s


def _spent(trials: tuple[Trial, ...]) -> float:
    return sum(each.wall_s for each in trials)


@pytest.mark.slow
@given(st.floats(3, 60), st.floats(0.8, 2.0), st.floats(0.8, 2.0))
def test_the_budget_holds(budget_s: float, free: float, deep: float) -> None:
    seen, allowance = _start(), Allowance(budget_s=budget_s)
    blocks = 0
    while block := propose(seen, allowance):
        done = tuple(
            _run(e, {FREE: free, DEEP: deep}, 10 * blocks + n) for n, e in enumerate(block)
        )
        seen = dataclasses.replace(seen, observations=(*seen.observations, *done))
        blocks += 1
        assert blocks < 10
    assert _spent(seen.trials()) <= budget_s + 1e-6


def test_workers_that_share_a_limit_are_tried_as_few_as_reach_it() -> None:
    """Of a store that serves 400 samples a second 16 workers were advised, where four get as much.

    Threads beside them were promised 6.3x, which that store doesn't serve either.
    """
    present, crowd, enough = config(2), config(16), config(4)
    waits = Loader(config=present, fetch_cpu=0.001, fetch_io=0.11, rate=18)
    gains = {crowd: 1.4, enough: 1.4}
    seen, names = _start(present), list[str]()
    while block := propose(seen, ROOMY):
        names += [each.name for each in block]
        number = len(seen.observations)
        done = (_run(each, gains, number + place, waits=waits) for place, each in enumerate(block))
        seen = dataclasses.replace(seen, observations=(*seen.observations, *done))
    assert names.count("trying num_workers=4") == 2
    first = find(seen)[0]
    assert first.code == "fetch.io"
    assert first.fix is not None
    assert first.fix.dataloader_kwargs == {"num_workers": 4}
    assert first.title.endswith(", at a limit of all workers")
    assert "num_workers=16 is 1.40x as fast, not 8.0x" in first.explanation
    assert "threads" not in first.fix.text
    # Nor does one of whole epochs show a limit: in each its workers start.
    whole = (
        dataclasses.replace(each, trial=dataclasses.replace(each.trial, whole_epochs=True))
        if each.trial.config != present
        else each
        for each in seen.observations
    )
    first = find(dataclasses.replace(seen, observations=tuple(whole)))[0]
    assert "limit of all" not in first.title
    # Where nobody can count samples what was tried has no rate, and says nothing of a limit.
    uncounted = (
        dataclasses.replace(each, trial=dataclasses.replace(each.trial, samples_per_s=None))
        for each in seen.observations
    )
    first = find(dataclasses.replace(seen, observations=tuple(uncounted)))[0]
    assert (first.code, "limit of all" in first.title) == ("fetch.io", False)
