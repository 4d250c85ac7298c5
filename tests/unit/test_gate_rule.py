"""One target's verdict from its quads: pass, fail, look again, undecided."""

from __future__ import annotations

import dataclasses
import math
import random
import statistics
from collections.abc import Sequence
from typing import Any, get_args

import pytest
from gate_samples import (
    BATCHES,
    block,
    confirmed,
    gate,
    load_quads,
    lone_plan,
    recomputed,
    service_plan,
    start_quads,
)
from hypothesis import given, settings
from hypothesis import strategies as st

from dlprof.gate.plan import ALL_GATES, LOOKS, SIDES, loader_difference, make_plan, order_of
from dlprof.gate.verdict import checked_target, judge, make_check, next_look, sights
from dlprof.gate.views import block_value
from dlprof.gate.wording import METRICS, UNITS, figures_text, seconds_text
from dlprof.records import Config
from dlprof.records.gate import Block, Compared, GateName, GateUnit, Quad, ReasonCode
from dlprof.report.check import check_document, read_check

CROWDED: dict[str, Any] = {"run_queue_wait_fraction": 0.6}
FIRST = LOOKS[0]


def quads_of(
    count: int, base: dict[str, Any], change: dict[str, Any], series: Any = "load"
) -> list[Quad]:
    """Quads of blocks that are said in full."""
    return [
        Quad(
            number=number,
            series=series,
            blocks=tuple(
                block(letter, **(base if letter == "A" else change))
                for letter in order_of(1, series, number)
            ),
        )
        for number in range(count)
    ]


@pytest.mark.parametrize(("slower", "state"), [(0.0, "pass"), (0.12, "fail"), (-0.2, "pass")])
def test_a_clear_case_is_decided_at_the_first_look(slower: float, state: str) -> None:
    look = next_look(service_plan(), load_quads(FIRST, slower, noise=0.01))
    assert not look.needed
    assert look.verdict.state == state
    assert gate(look.verdict, "service").views[0].quads == FIRST


def test_what_lies_at_the_limit_is_looked_at_again_and_again() -> None:
    plan = service_plan()
    quads = load_quads(LOOKS[-1], 0.05)
    wanted = [next_look(plan, quads[:count]).needed.get("load", 0) for count in (0, *LOOKS)]
    assert wanted == [10, 5, 10, 20, 45, 0]
    verdict = judge(plan, quads)
    assert (verdict.state, gate(verdict, "service").reason) == ("inconclusive", "undecided")
    assert "after 90 ABBA blocks" in verdict.explanation


def test_what_noise_leaves_open_for_long_is_decided_in_the_end() -> None:
    plan, quads = lone_plan(gates=("wall",)), load_quads(LOOKS[-1], noise=0.06)
    early = judge(plan, quads[: LOOKS[1]])
    assert [each.state for each in early.gates] == ["inconclusive", "inconclusive"]
    assert [each.state for each in judge(plan, quads).gates] == ["pass", "pass"]


def test_nothing_is_judged_between_looks() -> None:
    plan = service_plan()
    for count in (1, 9, 12, 14):
        quads = load_quads(count, 0.5 if count < FIRST else 0.05)
        assert next_look(plan, quads).needed
        assert next_look(plan, quads).needed["load"] == LOOKS[count >= FIRST] - count


def test_a_decision_stays_whatever_is_measured_after_it() -> None:
    plan = service_plan()
    passing, slow = load_quads(11, 0.0, noise=0.01), load_quads(26, 0.5, noise=0.01)
    assert judge(plan, [*passing, *slow]).state == "pass"
    assert judge(plan, [*slow[:11], *passing]).state == "fail"


def test_when_time_is_up_the_next_look_is_taken_early() -> None:
    plan = service_plan()
    undecided = load_quads(11, 0.05, noise=0.03)
    quads = [*undecided, *load_quads(3, 0.9, noise=0.01)]
    assert next_look(plan, quads).needed
    verdict = judge(plan, quads)
    assert verdict.quads["load"] == 14
    assert gate(verdict, "service").views[0].quads == 14
    assert "after 14 ABBA blocks" in verdict.explanation


@pytest.mark.parametrize(("count", "slower"), [(FIRST - 1, 0.9), (4, 5.0)])
def test_too_few_quads_show_nothing(count: int, slower: float) -> None:
    """Not as slow as no process is by luck, or too few blocks for anything."""
    verdict = judge(service_plan(), load_quads(count, slower))
    assert (verdict.state, verdict.gates[0].reason) == ("inconclusive", "too_few_quads")
    assert judge(service_plan(), []).state == "inconclusive"
    assert judge(service_plan(), []).gates[0].reason == "not_measured"


def test_too_few_quads_still_say_what_they_have_shown() -> None:
    few = judge(service_plan(), load_quads(4, 11.0, noise=0.0))
    assert few.explanation == (
        "Service time: too little was measured, 4 of 10 ABBA blocks; so far +1,100%."
    )
    starts = [*load_quads(11, noise=0.01), *start_quads(1, 0.5, 1.0)]
    startup = gate(judge(lone_plan(gates=("startup",)), starts), "startup")
    assert "too little was measured, 1 of 10 ABBA blocks; so far +" in startup.explanation


def test_tails_are_seen_by_the_mean_and_not_by_the_quartile() -> None:
    service = [0.010] * BATCHES
    slow = [*service[:-1], 0.020]
    quads = quads_of(11, {"service_s": tuple(service)}, {"service_s": tuple(slow)})
    result = judge(service_plan(), quads).gates[0]
    assert result.state == "fail"
    assert result.views[0].view == "mean"
    assert result.views[1].shift == 0


@pytest.mark.parametrize("uneven", [0, 1, 2])
def test_the_first_look_is_taken_whatever_was_left_out_before_the_end(uneven: int) -> None:
    """Ten quads of which some are left out at first: they count once nothing more comes."""
    quads = load_quads(10, 0.2, noise=0.005)
    for number in range(uneven):
        first, *others = quads[number].blocks
        slow = tuple(1.3 * each for each in first.service_s)
        blocks = (dataclasses.replace(first, service_s=slow), *others)
        quads[number] = dataclasses.replace(quads[number], blocks=blocks)
    result = judge(service_plan(), quads).gates[0]
    assert result.reason != "too_few_quads"
    assert result.views


def test_a_high_confidence_leaves_less_error_and_looks_later() -> None:
    usual, high = make_plan(), make_plan(confidence=0.9975)
    assert high.rules[0].alpha == pytest.approx(usual.rules[0].alpha / 4)
    assert high.error_bound == pytest.approx(usual.error_bound / 4)
    assert next_look(high, []).needed["load"] == 12
    assert any("false alarm" in note for note in judge(high, []).notes)


@pytest.mark.parametrize(
    ("again", "state", "shown"),
    [
        (0.12, "fail", "beyond the limit"),
        (0.0, "inconclusive", "a second pair shows 0.0% ("),
        (None, "inconclusive", "a second pair shows too little"),
    ],
)
def test_a_failure_shows_in_a_second_pair_of_processes_or_decides_nothing(
    again: float | None, state: str, shown: str
) -> None:
    """The same code in two processes may differ for as long as they live."""
    plan, first = make_plan(gates=()), load_quads(FIRST, 0.12, noise=0.005)
    look = next_look(plan, first)
    assert (look.verdict.state, look.processes) == ("inconclusive", 1)
    assert look.needed == {"load": FIRST}
    second = [] if again is None else load_quads(FIRST, again, noise=0.0)
    quads = [*first, *confirmed(second)[len(second) :]]
    verdict = judge(plan, quads)
    assert verdict.state == state
    assert shown in verdict.gates[0].explanation
    assert not second or not next_look(plan, quads).needed


DISTURBED: dict[str, Any] = {"noise": 0.15}
"""Of blocks beside so many processes that they share no cache with themselves."""


def with_odd_blocks(quads: Sequence[Quad], *numbers: int) -> list[Quad]:
    """Quads in some of which the first block took ten times as long."""
    odd = list(quads)
    for number in numbers:
        first, *others = odd[number].blocks
        slow = tuple(10 * each for each in first.service_s)
        blocks = (dataclasses.replace(first, service_s=slow), *others)
        odd[number] = dataclasses.replace(odd[number], blocks=blocks)
    return odd


@pytest.mark.parametrize("count", [5, FIRST - 1, FIRST + 2])
def test_few_blocks_show_what_no_process_is_slower_by(count: int) -> None:
    """Where others take the cores, 60 s are a few quads, and there is no second pair."""
    plan = make_plan(gates=("wall",))
    found = [judge(plan, load_quads(count, 2.0, seed=seed, **DISTURBED)) for seed in range(20)]
    assert sum(each.state == "fail" for each in found) >= 18
    assert all("+" in each.explanation for each in found if each.state == "fail")
    # Nearly as much as one process was slower than another by luck.
    lucky = [judge(plan, load_quads(count, 0.9, seed=seed, **DISTURBED)) for seed in range(20)]
    assert sum(each.state == "fail" for each in lucky) == 0


@pytest.mark.parametrize("odd", [(0,), (0, 5)])
def test_blocks_that_were_disturbed_hide_no_large_change(odd: tuple[int, ...]) -> None:
    """One quad that is far off leaves the signed ranks of ten undecided."""
    plan = service_plan()
    found = [
        judge(plan, with_odd_blocks(load_quads(FIRST, 2.0, seed=seed), *odd)) for seed in range(20)
    ]
    assert sum(each.state == "fail" for each in found) >= 19


@pytest.mark.parametrize(("again", "state"), [(0.12, "fail"), (0.0, "inconclusive")])
def test_a_second_pair_that_time_cut_short_confirms_by_less(again: float, state: str) -> None:
    plan, first = make_plan(gates=()), load_quads(FIRST, 0.12, noise=0.005)
    second = confirmed(load_quads(6, again, noise=0.005))[6:]
    assert next_look(plan, [*first, *second]).needed  # while there is time, it goes on
    assert judge(plan, [*first, *second]).state == state
    assert judge(plan, [*first, *second[:4]]).state == "inconclusive"


@pytest.mark.parametrize(("slower", "state"), [(2.0, "fail"), (0.8, "inconclusive")])
def test_without_a_second_pair_only_what_is_beyond_luck_fails(slower: float, state: str) -> None:
    plan, first = make_plan(gates=()), load_quads(FIRST, slower, noise=0.02)
    look = next_look(plan, first)
    assert (look.verdict.state, look.processes) == ("inconclusive", 1)
    assert judge(plan, first).state == state
    # And nothing fails by luck of the first that the second doesn't have.
    second = confirmed(load_quads(6, 0.0, noise=0.02))[6:]
    assert judge(plan, [*first, *second]).state == "inconclusive"


@pytest.mark.parametrize(
    ("count", "slower", "again", "state"),
    [
        (5, 0.3, 0.3, "fail"),
        (8, 0.3, 0.3, "fail"),
        (5, 0.3, 0.0, "inconclusive"),  # luck of the first pair
        (4, 0.3, 0.3, ""),
        (5, 0.055, 0.3, ""),
    ],
)
def test_in_a_hurry_a_failure_goes_to_the_second_pair_as_soon_as_blocks_show(
    count: int, slower: float, again: float, state: str
) -> None:
    plan, first = make_plan(gates=("wall",)), load_quads(count, slower, noise=0.01)
    assert next_look(plan, first).processes == 0
    assert next_look(plan, first, hurried=True).processes == bool(state)
    assert judge(plan, first).state == "inconclusive"
    second = [dataclasses.replace(quad, processes=1) for quad in load_quads(5, again, noise=0.01)]
    if state:
        assert next_look(plan, [*first, *second]).processes == 1
        assert judge(plan, [*first, *second]).state == state
        assert judge(plan, [*first, *second[:4]]).state == "inconclusive"


def test_two_pairs_of_processes_may_load_more_than_intervals_hold() -> None:
    first, second = load_quads(FIRST, 0.12, noise=0.005), load_quads(195, 0.05, noise=0.1)
    again = [dataclasses.replace(quad, processes=1) for quad in second]
    stages = judge(make_plan(gates=()), [*first, *again]).stages
    assert {"fetch", "collate"} <= {each.stage for each in stages}


def test_what_passes_needs_no_second_pair_of_processes() -> None:
    look = next_look(make_plan(gates=()), load_quads(FIRST, noise=0.01))
    assert (look.verdict.state, look.needed, look.processes) == ("pass", {}, 0)


def test_a_second_pair_that_is_undecided_is_measured_on() -> None:
    plan, first = make_plan(gates=()), load_quads(FIRST, 0.12, noise=0.005)
    second = confirmed(load_quads(FIRST, 0.05, noise=0.03))[FIRST:]
    look = next_look(plan, [*first, *second])
    assert (look.verdict.state, look.processes) == ("inconclusive", 1)
    assert look.needed
    assert look.verdict.gates[0].pending


def test_the_service_time_spends_as_much_on_each_view_and_look() -> None:
    rule = make_plan().rules[0]
    assert (rule.views, rule.looks) == (("mean", "low_quartile"), LOOKS)
    assert rule.alpha == pytest.approx(0.01 / 10)
    assert rule.alpha_pass == pytest.approx(0.01 / 5)
    assert rule.threshold == 0.05
    assert service_plan().error_bound == pytest.approx(0.01)


@pytest.mark.parametrize("bad", [{"confidence": 1.0}, {"confidence": 0.1}])
def test_plans_that_make_no_sense(bad: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="a plan needs"):
        make_plan(**bad)
    with pytest.raises(ValueError, match="a plan needs"):
        make_plan(fail_above=0)


# Wall time


def wall_only(count: int, slower: float, **rest: Any) -> list[Quad]:
    """The same service time, but yields come later."""
    wall_s = block("A").wall_s or 0
    return quads_of(count, {"wall_s": wall_s, **rest}, {"wall_s": wall_s * (1 + slower), **rest})


def test_wall_time_fails_a_check_on_a_quiet_machine() -> None:
    verdict = judge(lone_plan(gates=("wall",)), wall_only(11, 0.3))
    assert verdict.state == "fail"
    assert gate(verdict, "service").state == "pass"


@pytest.mark.parametrize("crowd", [CROWDED, {"run_queue_wait_fraction": None}])
def test_wall_time_never_fails_a_check_beside_neighbours(crowd: dict[str, Any]) -> None:
    plan, quads = lone_plan(gates=("wall",)), wall_only(140, 0.3, **crowd)
    verdict = judge(plan, quads)
    assert verdict.state == "inconclusive"
    assert gate(verdict, "wall").reason == "contended"
    assert next_look(plan, quads[:11]).needed == {"load": 4}


def test_noisy_wall_time_beside_neighbours_does_not_hold_up_a_pass() -> None:
    quads = load_quads(11, 0.0, noise=0.01, **CROWDED)
    noisy = [
        dataclasses.replace(
            quad,
            blocks=tuple(
                dataclasses.replace(each, wall_s=0.9 if place == 1 else 0.1)
                for place, each in enumerate(quad.blocks)
            ),
        )
        for quad in quads
    ]
    look = next_look(lone_plan(gates=("wall",)), noisy)
    assert not look.needed
    assert look.verdict.state == "pass"
    assert gate(look.verdict, "wall").state == "inconclusive"


def test_wall_time_of_loaders_set_otherwise_cannot_fail_and_cannot_pass_unseen() -> None:
    difference = loader_difference(Config(num_workers=4), Config(num_workers=2))
    plan = lone_plan(gates=("wall",), loader_difference=difference)
    verdict = judge(plan, wall_only(11, 0.3))
    assert verdict.state == "inconclusive"
    assert "num_workers 4 -> 2" in verdict.explanation
    assert judge(plan, wall_only(11, 0.0)).state == "pass"


def test_settings_that_cannot_matter_do_not_differ() -> None:
    assert loader_difference(Config(), Config(prefetch_factor=4)) == ""
    assert loader_difference(None, Config()) == ""


# Metrics that are compared by differences


def on_cores(quads: Sequence[Quad], **cores: Sequence[int]) -> list[Quad]:
    """The quads with each side's blocks on its cores in turn."""
    return [
        dataclasses.replace(
            quad,
            blocks=tuple(
                dataclasses.replace(
                    block, cores=(cores[block.side][quad.number % len(cores[block.side])],)
                )
                for block in quad.blocks
            ),
        )
        for quad in quads
    ]


@pytest.mark.parametrize(
    ("base", "change", "state"),
    [
        ([0], [1], "inconclusive"),
        ([0, 1, 0, 0, 0], [1], "inconclusive"),
        ([0, 1], [0, 1], "fail"),
        ([0, 1], [1, 0], "fail"),
        ([0, 0, 1], [0, 1, 1], "fail"),
        ([*range(11)], [*range(11, 22)], "fail"),  # too many for one slow one to matter
    ],
)
def test_sides_that_keep_to_cores_of_their_own_fail_no_time(
    base: list[int], change: list[int], state: str
) -> None:
    quads = on_cores(load_quads(22, 0.2), base=base, change=change)
    verdict = judge(service_plan(), quads)
    assert verdict.state == state
    if state == "inconclusive":
        service = gate(verdict, "service")
        assert service.reason == "cores_differ"
        assert "the base ran on core 0 and the change on core 1, whose" in service.explanation
    faster = on_cores(load_quads(22, -0.2), base=base, change=change)
    assert judge(service_plan(), faster).state == "pass"


def test_receiving_is_judged_beside_neighbours_too() -> None:
    quads = quads_of(
        11,
        {"stages_s": {"receive": 0.040}, **CROWDED},
        {"stages_s": {"receive": 0.052}, **CROWDED},
    )
    verdict = judge(lone_plan(gates=("receive",)), quads)
    assert (verdict.state, gate(verdict, "receive").state) == ("fail", "fail")
    assert "Most of it is in receive" not in verdict.explanation  # which it is about


def test_a_receive_that_nobody_waits_for_may_double() -> None:
    quads = quads_of(11, {"stages_s": {"receive": 0.0005}}, {"stages_s": {"receive": 0.001}})
    assert judge(lone_plan(gates=("receive",)), quads).state == "pass"


@pytest.mark.parametrize(
    ("base_s", "longer_s", "state"),
    [(0.5, 1.0, "fail"), (0.5, 0.1, "pass"), (10.0, 1.0, "pass"), (10.0, 3.0, "fail")],
)
def test_starts_have_limits_of_their_own(base_s: float, longer_s: float, state: str) -> None:
    quads = [*load_quads(11, noise=0.01), *start_quads(11, base_s, longer_s)]
    verdict = judge(lone_plan(gates=("startup", "epoch_turnover")), quads)
    assert gate(verdict, "startup").state == state
    assert gate(verdict, "epoch_turnover").state == "pass"
    assert verdict.state == state


def test_a_check_asks_for_the_series_that_is_undecided() -> None:
    plan = lone_plan(gates=("startup",))
    assert next_look(plan, []).needed == {"load": FIRST, "start": FIRST}
    assert next_look(plan, load_quads(11, noise=0.01)).needed == {"start": FIRST}
    assert next_look(plan, start_quads(11, 0.5)).needed == {"load": FIRST}


def test_a_failure_ends_the_measuring() -> None:
    assert not next_look(lone_plan(), load_quads(11, 0.5, noise=0.01)).needed


def test_shared_memory_that_was_never_used_is_no_error() -> None:
    plan = lone_plan(gates=("shared_memory", "memory"))
    verdict = judge(plan, load_quads(11, noise=0.01))
    assert [result.state for result in verdict.gates] == ["pass"] * 3
    more = quads_of(11, {"shm_peak_bytes": 0.0}, {"shm_peak_bytes": 64.0 * (1 << 20)})
    assert gate(judge(plan, more), "shared_memory").state == "fail"


def test_a_metric_that_nobody_measured_holds_nothing_up() -> None:
    quads = load_quads(11, noise=0.01, pss_peak_bytes=None, stages_s={}, wall_s=None)
    look = next_look(lone_plan(gates=("memory", "receive", "wall")), quads)
    assert not look.needed
    assert look.verdict.state == "pass"
    assert {result.reason for result in look.verdict.gates[1:]} == {"not_measured"}


# What can't be judged


def with_blocks(quads: list[Quad], **changes: Any) -> list[Quad]:
    """The quads with one block of each changed."""
    return [
        dataclasses.replace(
            quad,
            blocks=(dataclasses.replace(quad.blocks[0], **changes), *quad.blocks[1:]),
        )
        for quad in quads
    ]


UNUSABLE: list[tuple[dict[str, Any], ReasonCode]] = [
    ({"failure": "the worker was killed"}, "unusable_blocks"),
    ({"service_s": (math.nan,) * BATCHES}, "unusable_blocks"),
    ({"service_s": (math.inf,) * BATCHES}, "unusable_blocks"),
    ({"service_s": (1e308,) * BATCHES}, "unusable_blocks"),
    ({"service_s": (0.0,) * BATCHES}, "zero_time"),
    ({"service_s": (-0.1,) * BATCHES}, "zero_time"),
    ({"service_s": (), "samples": ()}, "too_few_batches"),
    ({"service_s": (0.01,) * 3, "samples": (4,) * 3}, "too_few_batches"),
    ({"samples": (4,)}, "unusable_blocks"),
    ({"samples": (0,) * BATCHES}, "unusable_blocks"),
    ({"samples": (10**400,) * BATCHES}, "unusable_blocks"),
    ({"samples": (10**12,) * BATCHES}, "unusable_blocks"),
    ({"samples": (5,) * BATCHES}, "different_data"),
    ({"side": "base"}, "unusable_blocks"),
    ({"stages_s": {"fetch": math.nan}}, "unusable_blocks"),
    ({"stages_s": {}}, "unusable_blocks"),  # the wait in next(), beside what workers took
]


@pytest.mark.parametrize(("changes", "reason"), UNUSABLE)
def test_each_kind_of_unusable_block_has_its_own_reason(
    changes: dict[str, Any], reason: ReasonCode
) -> None:
    quads = with_blocks(load_quads(12), **changes)
    if changes == {"side": "base"}:
        quads = [
            dataclasses.replace(
                q, blocks=tuple(dataclasses.replace(b, side="base") for b in q.blocks)
            )
            for q in quads
        ]
    look = next_look(service_plan(), quads)
    assert not look.needed, "more of the same would not help"
    result = look.verdict.gates[0]
    assert (look.verdict.state, result.reason) == ("inconclusive", reason)
    assert len(result.explanation) > 20


def test_the_lower_quartile_lies_between_two_batches() -> None:
    costs = (0.021, 0.008, 0.015, 0.030, 0.011, 0.042, 0.017, 0.025)
    rule = next(each for each in service_plan().rules if each.name == "service")
    quartile = statistics.quantiles([cost / 4 for cost in costs], n=4, method="inclusive")[0]
    found = block_value(block("A", service_s=costs, samples=(4,) * 8), rule, "low_quartile")
    assert found == pytest.approx(quartile)


def test_the_most_frequent_fault_is_named() -> None:
    for few in (3, 9):
        quads = load_quads(12)
        other = with_blocks(quads[:few], samples=(5,) * BATCHES)
        result = judge(service_plan(), [*other, *with_blocks(quads[few:], failure="killed")])
        assert result.gates[0].reason == ("unusable_blocks" if few == 3 else "different_data")


def test_a_few_unusable_quads_are_forgiven_and_replaced() -> None:
    quads = load_quads(FIRST + 2, noise=0.01)
    spoiled = [*with_blocks(quads[:2], failure="killed"), *quads[2:]]
    assert next_look(service_plan(), spoiled[: FIRST + 1]).needed == {"load": 1}
    assert judge(service_plan(), spoiled).state == "pass"


def test_the_first_failure_is_named() -> None:
    verdict = judge(service_plan(), with_blocks(load_quads(2), failure="the worker was killed"))
    assert "the worker was killed" in verdict.explanation


def test_without_correction_limits_are_wider_and_it_is_said() -> None:
    quads = load_quads(11, 0.08, noise=0.005)
    plain = load_quads(11, 0.08, noise=0.005, corrected=False)
    assert judge(service_plan(), quads).state == "fail"
    verdict = judge(service_plan(), plain)
    assert verdict.state == "inconclusive"
    assert any("wall times" in note for note in verdict.notes)
    assert "limit of 10%" in verdict.explanation
    same = judge(service_plan(), load_quads(11, noise=0.005, corrected=False))
    assert "within the limit of 5%" in same.explanation
    assert judge(service_plan(), load_quads(11, 0.2, noise=0.005, corrected=False)).state == "fail"


def test_a_failure_says_which_stage_got_slower() -> None:
    base = {"fetch": 0.064, "collate": 0.016, "receive": 0.008}
    quads = quads_of(11, {"stages_s": base}, {"stages_s": {**base, "collate": 0.032}})
    stages = judge(lone_plan(), quads).stages
    assert stages[0].stage == "collate"
    assert stages[0].shift_s == pytest.approx(0.016 / 32)
    assert [stage.shift_s for stage in stages[1:]] == [0, 0]
    slower = quads_of(
        11,
        {"stages_s": base},
        {"stages_s": {**base, "collate": 0.032}, "service_s": (0.012,) * BATCHES},
    )
    explanation = judge(lone_plan(), slower).explanation
    assert explanation.endswith(
        "Most of it is in collate: +500 µs a sample, from 500 µs to 1.00 ms."
    )


def test_a_failure_says_which_transform_got_slower() -> None:
    base = {"fetch": 0.064, "collate": 0.016, "fetch: Crop": 0.008, "fetch: Resize": 0.032}
    more = {**base, "fetch": 0.080, "fetch: Resize": 0.048}
    quads = quads_of(11, {"stages_s": base}, {"stages_s": more, "service_s": (0.012,) * BATCHES})
    verdict = judge(lone_plan(), quads)
    assert verdict.explanation.endswith(
        "Most of it is in fetch: +500 µs a sample, from 2.00 ms to 2.50 ms, +500 µs of which in "
        "Resize."
    )
    assert {stage.stage for stage in verdict.stages} == set(base)


def test_what_a_look_can_see_is_what_it_catches() -> None:
    plan, same = service_plan(), load_quads(LOOKS[2], noise=0.02)
    seen = sights(plan, same)
    assert [each.quads for each in seen] == [*LOOKS[:3]]
    assert seen[0].slowdown > seen[2].slowdown > 0.05
    for number, each in enumerate(seen):
        slower = load_quads(LOOKS[2], each.slowdown + 0.001, noise=0.02)[: each.quads]
        result = judge(plan, slower).gates[0]
        assert (result.state, result.views[0].quads) == ("fail", LOOKS[number])
    assert sights(plan, same[: FIRST - 1]) == ()


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0.0, "0 s"),
        (9.9949e-6, "9.99 µs"),
        (9.996e-6, "10.0 µs"),
        (0.00123456, "1.23 ms"),
        (0.9996, "1.00 s"),
        (12.34, "12.3 s"),
        (99.96, "1 min 40 s"),
        (-0.0125, "-12.5 ms"),
    ],
)
def test_times_have_three_digits(seconds: float, text: str) -> None:
    assert seconds_text(seconds) == text


@pytest.mark.parametrize(
    ("shift", "low", "high", "unit", "text"),
    [
        (1019 * 1024, -1.1 * 2**20, 2.5 * 2**20, "bytes", "+1.0 MiB (-1.1 to +2.5 MiB)"),
        (990e-6, -1.2e-3, 2.1e-3, "s", "+0.99 ms (-1.20 to +2.10 ms)"),
        (4e-6, 1e-6, 12e-6, "s", "+4.0 µs (+1.0 to +12.0 µs)"),
        (0.0, 0.0, 0.0, "s", "0 s (0 to 0 s)"),
        (0.0, -1e-9, 3e-3, "s", "0 ms (0 to +3.00 ms)"),
        (200.0, 1.0, 3000.0, "s", "+200 s (+1 to +3,000 s)"),
    ],
)
def test_a_difference_and_its_interval_are_in_one_unit(
    shift: float, low: float, high: float, unit: GateUnit, text: str
) -> None:
    assert figures_text(shift, low, high, unit=unit, base=None) == text


def test_every_metric_has_its_words_and_every_unit_its_ways_to_be_written() -> None:
    assert (set(METRICS), set(UNITS)) == (set(get_args(GateName)), set(get_args(GateUnit)))


def test_an_amount_is_beside_the_limit_that_it_is_held_against() -> None:
    """Not the percentage: it "can't be distinguished from the limit of 0.58 µs"."""
    text = figures_text(0.54e-6, -0.25e-6, 1.26e-6, unit="s", base=11.7e-6)
    assert text == "+4.6%, +0.54 µs (-0.25 to +1.26 µs)"


FIGURES = st.one_of(
    st.floats(), st.floats(0.001, 1), st.sampled_from([0.0, math.nan, math.inf, 1e308, -1.0])
)


@st.composite
def any_blocks(draw: st.DrawFn) -> Block:
    count = draw(st.integers(0, 6))
    maybe = st.one_of(st.none(), FIGURES)
    return Block(
        side=draw(st.sampled_from(["base", "change"])),
        service_s=tuple(draw(st.lists(FIGURES, min_size=count, max_size=count))),
        samples=tuple(draw(st.lists(st.integers(-1, 10), min_size=count, max_size=count))),
        wall_s=draw(maybe),
        run_queue_wait_fraction=draw(maybe),
        corrected=draw(st.booleans()),
        stages_s=draw(st.dictionaries(st.sampled_from(["fetch", "receive"]), FIGURES)),
        startup_s=draw(maybe),
        epoch_turnover_s=draw(maybe),
        pss_peak_bytes=draw(maybe),
        shm_peak_bytes=draw(maybe),
    )


@settings(max_examples=60)
@given(
    blocks=st.lists(any_blocks(), min_size=1, max_size=5),
    counts=st.tuples(st.integers(0, 12), st.integers(0, 12)),
)
def test_whatever_was_measured_there_is_a_verdict(
    blocks: list[Block], counts: tuple[int, int]
) -> None:
    good = load_quads(counts[0], noise=0.01)
    odd = Quad(number=99, series="load", blocks=tuple(blocks))
    start = Quad(number=0, series="start", blocks=tuple(blocks[:2]))
    quads = [*good, *[odd] * counts[1], start]
    target = checked_target("t", lone_plan(), quads)
    verdict = target.verdict
    assert verdict == judge(lone_plan(), quads)
    assert [result.name for result in verdict.gates] == list(ALL_GATES)
    side = Compared(name="x")
    document = check_document(make_check(target, base=side, change=side))
    assert recomputed(read_check(document, "check.json").target) == verdict
    if counts[0] < 11 and counts[1] < 11:
        assert verdict.state != "pass"


@pytest.mark.parametrize("name", ALL_GATES)
def test_no_metric_passes_by_what_it_lacks(name: GateName) -> None:
    """Fewer quads than the first look needs, or none, are never a pass."""
    for quads in ([], load_quads(FIRST - 1), start_quads(FIRST - 1, 0.5)):
        assert gate(judge(lone_plan(), quads), name).state == "inconclusive"


# A machine that changes meanwhile


def changed_quads(count: int, slower: float = 0.0, by: float = 0.3) -> list[Quad]:
    """Quads whose cores get faster halfway."""
    quads = []
    for quad in load_quads(count, slower, noise=0.01):
        blocks = [
            dataclasses.replace(each, service_s=tuple(by * cost for cost in each.service_s))
            if place > 1
            else each
            for place, each in enumerate(quad.blocks)
        ]
        quads.append(dataclasses.replace(quad, blocks=tuple(blocks)))
    return quads


def test_quads_in_which_the_machine_changed_are_left_out() -> None:
    quads = [*changed_quads(4), *load_quads(FIRST + 4, noise=0.01)[4:]]
    assert next_look(service_plan(), quads[:FIRST]).needed == {"load": 4}
    verdict = judge(service_plan(), quads)
    assert (verdict.state, verdict.quads["load"]) == ("pass", FIRST)
    assert verdict.notes[0].startswith("Left out: 4 ABBA blocks")


def test_the_side_that_is_slower_decides_nothing_of_what_is_left_out() -> None:
    for slower in (0.0, 0.5):
        assert judge(service_plan(), load_quads(FIRST, slower, noise=0.01)).notes == ()


def test_where_most_would_be_left_out_all_count() -> None:
    quads = changed_quads(LOOKS[-1])
    assert next_look(service_plan(), quads[: 2 * FIRST - 1]).needed == {"load": FIRST}
    assert judge(service_plan(), quads[: 2 * FIRST]).quads["load"] == 2 * FIRST
    slow = judge(service_plan(), changed_quads(LOOKS[2], 0.5))
    assert (slow.state, slow.quads["load"]) == ("fail", LOOKS[2])


def test_too_few_kept_at_the_end_count_with_those_left_out() -> None:
    quads = [*changed_quads(FIRST - 4, 0.5), *load_quads(FIRST + 2, 0.5, noise=0.01)[FIRST - 4 :]]
    assert next_look(service_plan(), quads).needed == {"load": 4}
    verdict = judge(service_plan(), quads)
    assert (verdict.state, verdict.quads["load"]) == ("fail", FIRST + 2)


def stalled_quads(count: int, letter: str, seed: int) -> list[Quad]:
    """Quads of equal code, one side of which stalls in every fourth block for 40% of its time."""
    coin, quads = random.Random(seed), []
    for quad in load_quads(count, noise=0.01, seed=seed):
        blocks = [
            dataclasses.replace(
                each, service_s=(each.service_s[0] + 0.4 * sum(each.service_s), *each.service_s[1:])
            )
            if each.side == SIDES[letter] and coin.random() < 0.25
            else each
            for each in quad.blocks
        ]
        quads.append(dataclasses.replace(quad, blocks=tuple(blocks)))
    return quads


@pytest.mark.slow
def test_a_change_that_stalls_does_not_pass_by_what_is_left_out() -> None:
    plan = service_plan()
    found = [judge(plan, stalled_quads(140, "B", seed)) for seed in range(20)]
    assert sum(each.state == "pass" for each in found) <= 4  # all but one did
    undecided = next(each for each in found if each.state == "inconclusive")
    assert "the change's own blocks differ; with these it is +" in undecided.explanation


def test_a_base_that_stalls_keeps_no_change_from_passing() -> None:
    plan = service_plan()
    found = [judge(plan, stalled_quads(140, "A", seed)) for seed in range(20)]
    assert [each.state for each in found] == ["pass"] * 20


def test_all_that_count_late_are_still_looked_at() -> None:
    """Every second quad is left out up to the last look, and then one more."""
    half = LOOKS[-1] // 2
    pairs = zip(load_quads(half + 1, 0.05), changed_quads(half + 1, 0.05), strict=True)
    quads = [quad for pair in pairs for quad in pair][: LOOKS[-1]]
    verdict = judge(service_plan(), [*quads, *changed_quads(1, 0.05)])
    assert verdict.quads["load"] == LOOKS[-1] + 1
    assert f"after {LOOKS[-1] + 1} ABBA blocks" in verdict.explanation


def test_plans_of_earlier_documents_leave_nothing_out() -> None:
    plan = service_plan()
    old = dataclasses.replace(plan, rules=(dataclasses.replace(plan.rules[0], most_change=None),))
    assert judge(old, changed_quads(FIRST)).quads["load"] == FIRST


def test_without_workers_nothing_waits_for_wall_time() -> None:
    quads = load_quads(FIRST, noise=0.01)
    loud = [
        dataclasses.replace(
            quad,
            blocks=tuple(
                dataclasses.replace(each, wall_s=2 * (each.wall_s or 0.0))
                if each.side == ("base", "change")[quad.number % 2]
                else each
                for each in quad.blocks
            ),
        )
        for quad in quads
    ]
    assert next_look(lone_plan(gates=("wall",)), loud).needed
    alone = lone_plan(gates=("wall",), in_main=True)
    assert next_look(alone, loud).verdict.state == "pass"
    assert gate(judge(alone, wall_only(FIRST, 0.5)), "wall").state == "fail"
