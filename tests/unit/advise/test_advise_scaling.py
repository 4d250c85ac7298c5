"""What ranks that loaded at once are said to give, and what is recommended for them."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from typing import Any

import pytest
from builders import WAITING, around, blocks, config, machine, run, trial

from dlprof.advise.candidates import stored_limits
from dlprof.advise.recommend import recommend
from dlprof.advise.scaling import (
    CORES,
    NODE,
    OTHER_JOB,
    SHARD,
    STORAGE,
    WAITS,
    LawShape,
    rank_speeds,
    scales,
    scaling_law,
    slow_for,
)
from dlprof.advise.situation import Situation
from dlprof.records import (
    BatchCosts,
    Calibration,
    Constraints,
    Estimate,
    GpuInfo,
    LeftOut,
    NumaBinding,
    RankFigures,
    Run,
    Trial,
    Usage,
)
from dlprof.report.document import Document
from dlprof.report.ranks import ranks_facts, ranks_sections
from dlprof.report.sweep import recommendation_report
from dlprof.report.terminal import plain_text

SETTINGS = {"launch_ranks": [2], "ranks": 2}
PICK = config(2)


def figures(*rates: float) -> tuple[RankFigures, ...]:
    return tuple(
        RankFigures(
            rank=rank,
            host="box",
            samples_per_s=around(rate),
            batches_per_s=around(rate / 32),
            startup_s=0.1 * (rank + 1),
        )
        for rank, rate in enumerate(rates)
    )


def scaled(count: int, rate: float, **usage: Any) -> Trial:
    """A trial of so many equal ranks for the sake of scaling."""
    return trial(
        PICK,
        rate,
        purpose="scaling",
        ranks=figures(*[rate] * count) if count > 1 else (),
        usage=Usage(**usage),
    )


def test_the_slowest_rank_is_counted_over_the_trials_of_the_pick() -> None:
    trials = [
        trial(PICK, 90.0, ranks=figures(100.0, 90.0)),
        trial(PICK, 80.0, ranks=figures(100.0, 80.0), repetition=1),
        trial(config(0), 10.0, ranks=figures(10.0, 20.0)),
    ]
    one, two = rank_speeds(run(trials, settings=SETTINGS), PICK)
    assert (one.slowest, one.trials, two.slowest, two.startup_s) == (0, 2, 2, 0.2)
    assert one.samples_per_s.value == pytest.approx(100.0, rel=0.001)
    assert two.samples_per_s.value == pytest.approx(math.sqrt(90.0 * 80.0), rel=0.001)


def test_of_ranks_that_step_together_the_one_that_waits_for_none_is_the_slowest() -> None:
    """All have one rate, and which is a hair lower is chance."""
    waits, late = figures(80.0, 80.4)
    waits = dataclasses.replace(waits, barrier_fraction=0.6)
    found = run([trial(PICK, 80.0, ranks=(waits, late))] * 2, settings=SETTINGS)
    assert [each.slowest for each in rank_speeds(found, PICK)] == [0, 2]
    text = dict(ranks_facts(found, PICK, around(80.0)))["Ranks"]
    assert "at the pace of the slowest (rank 1" in str(text)


@pytest.mark.parametrize(
    ("rates", "named"),
    [
        ([(100.0, 50.0), (50.0, 100.0)], True),
        ([(100.0, 50.0), (100.0, 50.0)], False),  # one that is slow in each trial
        ([(50.5, 50.0), (50.0, 50.5)], False),
    ],
)
def test_ranks_that_are_the_slowest_by_chance_are_to_step_together(
    rates: list[tuple[float, float]], named: bool
) -> None:
    trials = [trial(PICK, min(each), ranks=figures(*each)) for each in rates]
    text = dict(ranks_facts(run(trials, settings=SETTINGS), PICK, around(50.0)))["Ranks"]
    assert ("--step-barrier" in str(text)) == named


AS_FAST = RankFigures(
    rank=0,
    host="box",
    samples_per_s=around(80.0),
    own_cpu_cores=0.8,
    other_cpu_cores=0.0,
    run_queue_wait_fraction=0.05,
)


@pytest.mark.parametrize(
    ("rate", "changes", "cause"),
    [
        (75.0, {}, ""),  # about as fast
        (40.0, {"own_cpu_cores": 0.8}, SHARD),
        (20.0, {"own_cpu_cores": 0.8, "run_queue_wait_fraction": 0.05}, SHARD),
        (40.0, {"own_cpu_cores": 0.4, "run_queue_wait_fraction": 0.5}, CORES),
        (
            40.0,
            {"own_cpu_cores": 0.4, "run_queue_wait_fraction": 0.5, "other_cpu_cores": 0.5},
            OTHER_JOB,
        ),
        (40.0, {"own_cpu_cores": 0.4, "read_bytes_per_s": 1e6}, STORAGE),
        (40.0, {"own_cpu_cores": 0.8, "read_bytes_per_s": 1e6}, STORAGE),  # others don't read
        (40.0, {"own_cpu_cores": 0.8, "read_bytes_per_s": 1e3}, SHARD),  # nor does this one
        (40.0, {"own_cpu_cores": 0.4}, ""),  # it waits, and doesn't read
        (40.0, {"own_cpu_cores": None}, ""),
        (80.0, {"own_cpu_cores": 0.8, "barrier_fraction": 0.0}, SHARD),  # the others wait for it
    ],
)
def test_a_slow_rank_says_what_it_is_slow_for(
    rate: float, changes: dict[str, Any], cause: str
) -> None:
    slow = dataclasses.replace(AS_FAST, rank=2, samples_per_s=around(rate), **changes)
    usual = AS_FAST
    if "barrier_fraction" in changes:
        usual = dataclasses.replace(AS_FAST, barrier_fraction=0.5, own_cpu_cores=0.4)
    ranks = (usual, dataclasses.replace(usual, rank=1), slow)
    assert [slow_for(ranks, rank, 1) for rank in range(3)] == ["", "", cause]
    unsure = dataclasses.replace(slow, samples_per_s=Estimate(value=rate))
    assert slow_for((*ranks[:2], unsure), 2, 1) == ""


FOLLOWED = RankFigures(
    rank=0,
    host="box",
    loader="train.py:7",
    held_up_fraction=0.0,
    other_cpu_cores=0.0,
    read_bytes_per_s=0.0,
    samples_per_s=around(40.0),
    fetch_cpu_s=0.01,
    fetch_run_queue_s=0.001,
    fetch_io_s=0.01,
)


@pytest.mark.parametrize(
    ("changes", "cause"),
    [
        ({"fetch_io_s": 0.05}, WAITS),
        ({"fetch_io_s": 0.05, "read_bytes_per_s": 1e6}, STORAGE),
        ({"fetch_io_s": 0.05, "read_bytes_per_s": 1e3}, WAITS),  # pages of libraries
        ({"fetch_cpu_s": 0.05, "fetch_run_queue_s": 0.005}, SHARD),
        ({"fetch_run_queue_s": 0.05}, CORES),
        ({"fetch_run_queue_s": 0.05, "other_cpu_cores": 0.9}, OTHER_JOB),
        ({"fetch_io_s": 0.011}, ""),  # it comes last, and its batches take no longer to make
        ({"fetch_io_s": 0.05, "held_up_fraction": 0.01}, ""),  # which nobody waits for
    ],
)
def test_a_late_rank_of_a_training_says_what_making_its_batches_takes(
    changes: dict[str, Any], cause: str
) -> None:
    """They all go at one pace, so that rates show nothing."""
    late = dataclasses.replace(FOLLOWED, **{"rank": 2, "held_up_fraction": 0.4, **changes})
    ranks = (FOLLOWED, dataclasses.replace(FOLLOWED, rank=1), late)
    assert [slow_for(ranks, rank, 1) for rank in range(3)] == ["", "", cause]


def test_more_cpu_time_on_all_ranks_of_a_numa_node_is_the_nodes() -> None:
    nodes = (0, 0, 1, 1)
    ranks = [
        dataclasses.replace(
            AS_FAST, rank=rank, numa_node=node, samples_per_s=around(40.0 if node else 80.0),
            own_cpu_cores=0.8,
        )
        for rank, node in enumerate(nodes)
    ]  # fmt: skip
    assert [slow_for(ranks, rank, 1) for rank in range(4)] == ["", "", NODE, NODE]
    ranks[2] = dataclasses.replace(ranks[2], samples_per_s=around(80.0))
    assert [slow_for(ranks, rank, 1) for rank in range(4)] == ["", "", "", SHARD]


@pytest.mark.parametrize(("slow", "cause"), [(1, ""), (2, SHARD), (3, SHARD)])
def test_a_rank_that_was_slow_in_few_trials_names_no_cause(slow: int, cause: str) -> None:
    other = dataclasses.replace(AS_FAST, rank=1)
    slower = dataclasses.replace(other, samples_per_s=around(40.0))
    trials = [
        trial(
            config(1), 40.0, ranks=(AS_FAST, slower if number < slow else other), repetition=number
        )
        for number in range(3)
    ]
    speeds = rank_speeds(run(trials, settings=SETTINGS), config(1))
    assert [each.cause for each in speeds] == ["", cause]


@pytest.mark.parametrize(("slow", "cause"), [(1, ""), (2, SHARD), (3, SHARD)])
def test_a_rank_is_slow_for_what_most_trials_show(slow: int, cause: str) -> None:
    usual = dataclasses.replace(AS_FAST, batches_per_s=around(2.0))
    held = dataclasses.replace(usual, samples_per_s=around(40.0), own_cpu_cores=0.8)
    trials = [
        trial(config(1), 80.0, repetition=n, ranks=(usual, usual, held if n < slow else usual))
        for n in range(4)
    ]
    assert [each.cause for each in rank_speeds(run(trials), config(1))] == ["", "", cause]


def test_each_rank_is_as_sure_as_its_own_windows() -> None:
    """The figure of a trial is that of its slowest rank."""
    uneven, slow = figures(100.0, 50.0)
    uneven = dataclasses.replace(uneven, samples_per_s=around(100.0, 0.8))
    trials = [trial(PICK, 50.0, ranks=(uneven, slow), repetition=n) for n in range(3)]
    speeds = rank_speeds(run(trials, settings=SETTINGS), PICK)
    assert [each.samples_per_s.is_wide for each in speeds] == [True, False]


def test_a_window_cut_short_says_nothing_of_ranks() -> None:
    short = dataclasses.replace(scaled(2, 20.0), samples_per_s=Estimate(value=20.0))
    cut = run([scaled(1, 100.0), short], settings=SETTINGS)
    assert rank_speeds(cut, PICK) == ()
    assert [each.ranks for each in scales(cut)] == [1]


def test_one_loader_has_no_ranks() -> None:
    assert rank_speeds(run(blocks({PICK: (100.0,)})), PICK) == ()
    assert scales(run(blocks({PICK: (100.0,)}))) == ()


def test_all_together_are_compared_with_one_by_itself() -> None:
    trials = [scaled(n, rate) for n, rate in ((1, 100.0), (2, 95.0), (4, 90.0))]
    found = scales(run(trials, settings={"launch_ranks": [1, 2, 4]}))
    together = [each.together_samples_per_s.value for each in found]
    assert together == pytest.approx([100.0, 190.0, 360.0], rel=0.001)
    assert [each.over_one and round(each.over_one.value, 2) for each in found] == [1.0, 1.9, 3.6]
    assert [each.limit for each in found] == ["", "", ""]


def test_windows_that_disagree_are_not_sure_of_what_ranks_give() -> None:
    """Each by itself is known to 1 %, and the next one differs by a fifth."""
    pairs = [(0, 1, 100.0), (1, 1, 80.0), (0, 2, 72.0), (1, 2, 90.0)]
    trials = [dataclasses.replace(scaled(n, rate), repetition=at) for at, n, rate in pairs]
    one, two = scales(run(trials, settings=SETTINGS))
    low, high = one.samples_per_s.ends
    assert low < 80.0
    assert high > 100.0
    assert two.over_one is not None
    assert two.over_one.ends[0] < 1.5
    assert two.over_one.ends[1] > 2.1


def test_cores_that_more_ranks_slow_down_are_their_doing() -> None:
    pairs = [(1, 100.0, 1.0), (2, 80.0, 0.8)]
    trials = [scaled(n, rate, own_cpu_cores=1.0, core_speed=speed) for n, rate, speed in pairs]
    _, two = scales(run(trials, settings=SETTINGS))
    assert two.over_one is not None
    assert two.over_one.value == pytest.approx(1.6, rel=0.001)


def test_as_many_workers_in_all_are_held_against_the_same_rank() -> None:
    wide = dataclasses.replace(scaled(1, 150.0), config=config(4))
    found = scales(run([scaled(1, 100.0), scaled(2, 95.0), wide], settings=SETTINGS))
    assert [(each.ranks, each.num_workers) for each in found] == [(1, 2), (2, 2), (1, 4)]
    assert [each.over_one and round(each.over_one.value, 2) for each in found] == [1.0, 1.9, 1.5]


@pytest.mark.parametrize(
    ("more", "limit"),
    [
        ({"own_cpu_cores": 0.98, "available_cpu_cores": 1.0}, "cores"),
        (
            {"run_queue_wait_fraction": 0.5, "own_cpu_cores": 0.5, "available_cpu_cores": 1.0},
            "cores",
        ),
        (
            {"io_pressure_fraction": 0.6, "own_cpu_cores": 0.1, "available_cpu_cores": 1.0},
            "storage",
        ),
        ({"own_cpu_cores": 0.4, "available_cpu_cores": 1.0}, "memory bandwidth"),
        ({"own_cpu_cores": 0.2, "available_cpu_cores": 1.0}, "not seen"),
    ],
)
def test_what_more_ranks_run_out_of(more: dict[str, float], limit: str) -> None:
    one = scaled(1, 100.0, own_cpu_cores=0.4, available_cpu_cores=2.0)
    found = scales(run([one, scaled(2, 50.0, **more)], settings=SETTINGS))
    assert found[0].limit == ""
    assert found[1].limit.startswith(limit)


def interleaved(rates: dict[int, float], **usage: float) -> Run:
    """What so many ranks gave each, by a loader that waits; windows differ by 0.4 %."""
    found = {"own_cpu_cores": 0.05, "available_cpu_cores": 2.0, **usage}
    return run(
        [
            dataclasses.replace(
                scaled(count, rate * (1 + 0.004 * (-1) ** (block + count)), **found),
                repetition=block,
            )
            for block in range(2)
            for count, rate in rates.items()
        ],
        settings=SETTINGS,
    )


def screen(trials: Sequence[Trial], **settings: Any) -> str:
    """What is shown of them beside trials of what is recommended, in one line."""
    made = run([*trials, *measured().trials], settings={**SETTINGS, **settings})
    found = recommendation_report(made, recommend(made, Constraints(ranks=2)))
    return " ".join(plain_text(found, width=140, verbose=True).split())


@pytest.mark.parametrize(
    ("rates", "shape", "bend"),
    [
        ({1: 100.0, 2: 100.0, 4: 50.0}, "sharp", 2.0),
        ({1: 100.0, 2: 100.0, 4: 75.0, 8: 37.5}, "sharp", 3.0),
        ({1: 100.0, 2: 60.0}, "sharp", 1.2),  # two numbers show no shape
        ({1: 100.0, 2: 100 / 1.2, 4: 100 / 1.6}, "gradual", 5.0),
        ({1: 100.0, 2: 100 / 1.05, 4: 100 / 1.15, 8: 100 / 1.35}, "gradual", 20.0),
    ],
)
def test_the_law_finds_the_bend_that_was_planted(
    rates: dict[int, float], shape: LawShape, bend: float
) -> None:
    law = scaling_law(interleaved(rates))
    assert law is not None
    assert law.bend is not None
    assert law.shape == shape
    low, high = law.bend.ends
    assert low < bend < high
    assert law.bend.value == pytest.approx(bend, rel=0.03)
    assert law.straight_to == low
    if len(rates) == 2:
        assert law.misfit is None
    else:
        assert law.misfit is not None
        assert law.misfit < 0.01


@pytest.mark.parametrize("last", [98.0, 85.0])  # by less than is worth saying why
def test_ranks_that_share_nothing_have_no_bend(last: float) -> None:
    law = scaling_law(interleaved({1: 100.0, 2: 100.0, 4: last}))
    assert law is not None
    assert (law.bend, law.cause) == (None, "")
    assert 3.0 < law.straight_to <= 4.0


def test_ranks_that_slow_each_other_a_little_are_straight_no_further_than_they_are() -> None:
    """Each of 8 has 85 % of one: by Amdahl's law it bends at 40 ranks, and from the first on."""
    law = scaling_law(interleaved({n: 100 / (1 + (n - 1) / 40) for n in (1, 2, 4, 8)}))
    assert law is not None
    assert (law.bend, law.shape) == (None, "gradual")
    assert 4.0 < law.straight_to < 7.5


def test_a_bend_that_may_be_chance_is_none() -> None:
    pairs = [(0, 1, 100.0), (1, 1, 60.0), (0, 2, 50.0), (1, 2, 90.0)]
    trials = [dataclasses.replace(scaled(n, rate), repetition=at) for at, n, rate in pairs]
    law = scaling_law(run(trials, settings=SETTINGS))
    assert law is not None
    assert law.bend is None
    assert law.straight_to < 1.5
    assert "Too noisy to say whether it bends up to 2 ranks" in screen(trials)


@pytest.mark.parametrize(
    ("rates", "said"),
    [
        ({1: 100.0, 2: 99.0}, "No bend up to 2 ranks: none before 1.9"),
        (
            {1: 100.0, 2: 100.0, 4: 99.0},
            "No bend up to 4 ranks: none before 3.",
        ),
        ({1: 100.0, 2: 100 / 1.2, 4: 100 / 1.6}, "never give more than 5.0 ranks"),
    ],
)
def test_the_screen_has_the_law_in_words(rates: dict[int, float], said: str) -> None:
    assert said in screen(interleaved(rates).trials)


def test_without_one_rank_by_itself_there_is_no_law() -> None:
    assert scaling_law(interleaved({2: 100.0, 4: 50.0})) is None
    assert scaling_law(interleaved({1: 100.0})) is None
    assert scaling_law(run(blocks({PICK: (100.0,)}))) is None


def test_where_the_law_does_not_fit_the_bend_is_less_sure() -> None:
    widths, misfits = [], []
    for four in (75.0, 55.0):
        law = scaling_law(interleaved({1: 100.0, 2: 100.0, 4: four, 8: 37.5}))
        assert law is not None
        assert law.bend is not None
        assert law.misfit is not None
        low, high = law.bend.ends
        widths.append(math.log(high / low))
        misfits.append(law.misfit)
    assert misfits[0] < 0.01
    assert misfits[1] > 0.05
    assert widths[1] > 2 * widths[0]


def test_a_law_says_what_is_used_up_beyond_its_bend() -> None:
    usage = {"own_cpu_cores": 0.98, "available_cpu_cores": 1.0}
    made = interleaved({1: 100.0, 2: 60.0}, **usage)
    law = scaling_law(made)
    assert law is not None
    assert law.cause == "cores"
    assert [each.limit for each in scales(made)] == ["", "cores"]
    text = screen(made.trials)
    assert "bends at 1.2" in text
    assert "limited by cores" in text
    assert "Bends at 1.2" in text


def test_utilization_is_the_step_over_the_period_of_the_slowest_rank() -> None:
    """Batches of 32 samples: 3.1 and 1.9 steps of 250 ms a second, and no more than all of it."""
    rates = {1: 100.0, 2: 60.0, 4: 129.0}
    made = run(interleaved(rates).trials, settings={**SETTINGS, "step_s": 0.25})
    found = [each.utilization and each.utilization.value for each in scales(made)]
    assert found == pytest.approx([100 / 32 / 4, 60 / 32 / 4, 1.0], rel=0.01)
    assert all(each.utilization is None for each in scales(interleaved(rates)))
    page = screen(made.trials, step_s=0.25)
    assert "78% (" in page
    assert "47% (" in page


RECEIVED = BatchCosts(cpu_s=(0.01,) * 8, receive_cpu_s=(0.3,) * 8)
"""Of batches of 32 samples: at 100 samples a second their main process is busy for 94%."""


@pytest.mark.parametrize(("own", "limit"), [(2.0, "receiving"), (0.98, "cores")])
def test_receiving_is_a_limit_of_ranks_whose_main_processes_do_nothing_else(
    own: float, limit: str
) -> None:
    usage = {"own_cpu_cores": 0.98, "available_cpu_cores": own}
    made = interleaved({1: 100.0, 2: 70.0}, **usage)
    made = dataclasses.replace(made, calibration=Calibration(in_workers=RECEIVED))
    law = scaling_law(made)
    assert law is not None
    assert law.cause.startswith(limit)


@pytest.mark.parametrize(("receive_s", "limit"), [(0.3, "receiving"), (0.03, "")])
def test_many_workers_of_one_rank_may_be_limited_by_its_receiving(
    receive_s: float, limit: str
) -> None:
    """Two ranks have two main processes for as many workers."""
    costs = dataclasses.replace(RECEIVED, receive_cpu_s=(receive_s,) * 8)
    wide = dataclasses.replace(scaled(1, 100.0), config=config(4))
    made = run([scaled(1, 95.0), scaled(2, 95.0), wide], settings=SETTINGS)
    made = dataclasses.replace(made, calibration=Calibration(in_workers=costs))
    assert [each.limit.partition(":")[0] for each in scales(made)] == ["", "", limit]


def test_workers_of_one_rank_are_held_against_as_many_of_its_node() -> None:
    """Four ranks on two nodes: those of the first have four workers in all, not all eight."""
    wide = dataclasses.replace(scaled(1, 118.0), config=config(4))
    trials = [scaled(1, 95.0), scaled(2, 60.0), scaled(4, 60.0), wide]
    made = run(trials, settings={"launch_ranks": [2], "ranks": 2})
    made = dataclasses.replace(made, calibration=Calibration(in_workers=RECEIVED))
    assert [each.limit for each in scales(made) if each.num_workers == 4] == [""]


def test_a_cgroup_that_throttles_reads_is_named() -> None:
    one = scaled(1, 100.0)
    waits = {"io_pressure_fraction": 0.6, "own_cpu_cores": 0.1, "available_cpu_cores": 1.0}
    for read, named in ((4.9e6, True), (2e6, False)):  # of each of two
        two = scaled(2, 50.0, **waits, read_bytes_per_s=read)
        made = run([one, two], machine=machine(read_limit_bytes_per_s=1e7), settings=SETTINGS)
        assert (scales(made)[1].limit == "storage: a cgroup throttles reads") is named


@pytest.mark.parametrize(
    ("nodes", "ranks", "gpus", "named"),
    [(2, 2, 1, True), (1, 2, 1, False), (2, 1, 1, False), (2, 2, 0, False)],
)
def test_what_places_ranks_is_said_where_there_are_nodes(
    nodes: int,
    ranks: int,
    gpus: int,
    named: bool,
) -> None:
    cards = tuple(GpuInfo(index=n, name="X", uuid=str(n)) for n in range(gpus))
    made = run(blocks({PICK: (100.0, 101.0)}), machine=machine(numa_nodes=nodes, gpus=cards))
    claims = [each.claim for each in recommend(made, Constraints(ranks=ranks)).reasons]
    assert any("--numa-binding=node" in claim for claim in claims) is named


def with_binding(*pairs: tuple[float, float], spread: float = 0.005, **about: Any) -> Run:
    """A run of two ranks whose pick was tried unbound and bound, pair by pair."""
    shown: dict[str, Any] = {"ranks": figures(1.0, 1.0), "purpose": "binding", "usage": WAITING}
    tried = [
        trial(PICK, rate, repetition=block, spread=spread, numa_binding=mode, **shown)
        for block, pair in enumerate(pairs)
        for rate, mode in zip(pair, (None, "node"), strict=True)
    ]
    plain = [*blocks({config(0): (50.0, 51.0), PICK: (100.0, 101.0)}), *tried]
    about = {"machine": machine(numa_nodes=2), "settings": SETTINGS, **about}
    return run(plain, **about)


@pytest.mark.parametrize(
    ("pairs", "gain", "pays"),
    [
        ([(100.0, 120.0), (90.0, 108.0), (104.0, 124.8)], 1.2, True),  # whatever drifts
        ([(100.0, 103.0), (90.0, 92.7), (104.0, 107.1)], 1.03, False),  # sure, and not worth it
        ([(100.0, 80.0), (90.0, 72.0), (104.0, 83.2)], 0.8, False),
        ([(100.0, 140.0), (100.0, 95.0), (100.0, 115.0)], 1.15, False),  # it may be chance
    ],
)
def test_binding_is_recommended_where_it_surely_pays(
    pairs: list[tuple[float, float]], gain: float, pays: bool
) -> None:
    made = with_binding(*pairs)
    advice = recommend(made, stored_limits(made.header.settings))
    found = advice.numa_binding
    assert found is not None
    assert found.gain is not None
    assert found.gain.value == pytest.approx(gain, rel=0.02)
    assert found.pays is pays
    assert len(found.trials) == 2 * len(pairs)
    assert advice.config == PICK
    # Nothing else takes bound trials for its own.
    assert rank_speeds(made, PICK) == ()
    assert scales(made) == ()
    screen = " ".join(plain_text(recommendation_report(made, advice), width=100).split())
    assert ("use it" in screen) is pays
    assert ("not worth it" in screen) is not pays
    assert not any("numa-binding" in each.claim for each in advice.reasons)


def test_of_binding_that_was_not_compared_the_reason_is_given() -> None:
    left = LeftOut(setting="--numa-binding=node", reason="there is no GPU")
    late = "the sweep did not come to it: --resume it with a larger --budget"
    for left_out, why in (((left,), left.reason), ((), late)):
        made = with_binding(left_out=left_out)
        advice = recommend(made, stored_limits(made.header.settings))
        assert advice.numa_binding == NumaBinding(unavailable=why)
        screen = " ".join(plain_text(recommendation_report(made, advice), width=100).split())
        assert f"torchrun --numa-binding=node not compared: {why}" in screen


def test_of_other_settings_than_those_that_were_tried_the_gain_is_not_known() -> None:
    made = with_binding((100.0, 120.0), (90.0, 108.0))
    found = recommend(made, Constraints(ranks=2, max_workers=0)).numa_binding
    assert found == NumaBinding(unavailable="it was tried with num_workers=2")


@pytest.mark.parametrize(
    ("asked", "about"),
    [
        (Constraints(ranks=8), {}),  # others than those that loaded
        (Constraints(ranks=2), {"machine": machine()}),
        (Constraints(ranks=1), {"settings": {}}),
    ],
)
def test_of_other_ranks_of_one_node_and_of_one_rank_nothing_is_said_of_binding(
    asked: Constraints, about: dict[str, Any]
) -> None:
    assert recommend(with_binding(**about), asked).numa_binding is None


def measured(**settings: Any) -> Any:
    rates = {config(0): (50.0, 51.0), PICK: (100.0, 101.0)}
    trials = [
        each_with_ranks
        for each in blocks(rates)
        if each.samples_per_s is not None
        for rate in [each.samples_per_s.value]
        for each_with_ranks in [trial(each.config, rate, ranks=figures(rate * 1.1, rate))]
    ]
    return run(trials, settings={**SETTINGS, **settings})


def test_what_was_measured_at_once_is_no_extrapolation() -> None:
    made = measured()
    asked = stored_limits(made.header.settings)
    here = Situation.of(made, asked)
    assert here.as_measured
    assert not here.other_ranks
    assert Situation.of(made, Constraints(ranks=8)).other_ranks
    assert Situation.of(made, Constraints(ranks=1)).other_ranks

    advice = recommend(made, asked)
    assert advice.config == PICK
    assert advice.basis == "measured"
    assert "at once" not in advice.confidence_reason
    assert recommend(made, Constraints(ranks=8)).confidence_reason == (
        "estimated, as 2 ranks were measured, not 8 at once"
    )


def test_each_rank_has_had_its_share_of_the_epoch() -> None:
    """A launched rank counts the batches of its share; others divide all of them."""
    made = measured()
    assert Situation.of(made, Constraints(ranks=2)).epoch_batches(PICK) == 1000
    assert Situation.of(made, Constraints(ranks=4)).epoch_batches(PICK) == 500


def test_tables_of_ranks_fit_a_terminal() -> None:
    """What a cause means stands below, and columns that don't fit under the others."""
    slow = dataclasses.replace(AS_FAST, rank=1, samples_per_s=around(40.0), startup_s=0.2)
    ranks = (dataclasses.replace(AS_FAST, startup_s=0.1, barrier_fraction=0.5), slow)
    usage = {"own_cpu_cores": 0.4, "available_cpu_cores": 2.0}
    trials = [
        each
        for block in range(2)
        for each in (
            trial(config(1), 40.0, ranks=ranks, repetition=block),
            dataclasses.replace(scaled(1, 90.0, **usage), repetition=block),
            dataclasses.replace(scaled(2, 40.0, **usage), repetition=block),
        )
    ]
    made = run(trials, settings={**SETTINGS, "step_s": 0.25})
    document = Document(title="", answer=(), details=lambda: ranks_sections(made, config(1)))
    text = plain_text(document, width=80, verbose=True)
    assert all(len(line) <= 80 for line in text.splitlines())
    said = " ".join(text.split())
    assert "slow for: its shard (a sample takes more CPU time)." in said
    assert "limited by: memory bandwidth, caches or the cores' clock (a sample takes " in said
    assert "step busy" in said


def test_the_screen_says_what_all_give_and_which_is_the_slowest() -> None:
    made = measured()
    found = recommendation_report(made, recommend(made, Constraints(ranks=2)))
    text = plain_text(found, width=100, verbose=True)
    assert "2 at once give 201 samples/s" in " ".join(text.split())
    assert "the slowest (rank 1)" in " ".join(text.split())


def test_ranks_that_did_not_load_at_once_are_not_said_to_give_anything() -> None:
    made = measured()
    found = recommendation_report(made, recommend(made, Constraints(ranks=8)))
    text = " ".join(plain_text(found, width=100).split())
    assert "Estimated for 8 ranks" in text
    assert "at once give" not in text
