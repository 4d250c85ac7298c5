"""How ranks meet: in one page of memory, without a process of their own."""

from __future__ import annotations

import json
import sys
import threading
from pathlib import Path

import pytest

from dlprof.trial.rank_group import RankGroup

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="needs pthread's barrier")


def test_all_have_arrived_when_the_last_has(tmp_path: Path) -> None:
    looks = RankGroup.create(tmp_path, 3, 3)
    ranks = [RankGroup(tmp_path, rank, 3) for rank in range(3)]
    for each in ranks[:2]:
        each.arrive()
        assert each.answer() is None
    assert [looks.passed(rank) for rank in range(3)] == [1, 1, 0]
    ranks[2].arrive()
    assert [each.answer() for each in ranks] == [False] * 3


def test_one_that_wants_another_window_has_all_take_it(tmp_path: Path) -> None:
    RankGroup.create(tmp_path, 2, 2)
    one, two = (RankGroup(tmp_path, rank, 2) for rank in range(2))
    one.arrive()
    two.arrive(again=True)
    assert one.answer() is two.answer() is True
    one.arrive()
    assert one.answer() is None  # the next meeting is another
    two.arrive()
    assert one.answer() is two.answer() is False


@pytest.mark.parametrize("on_several_nodes", [False, True])
def test_with_a_barrier_all_see_the_last_come_at_the_same_step(
    tmp_path: Path, *, on_several_nodes: bool
) -> None:
    """Or else one would wait at the barrier for another that has gone."""
    RankGroup.create(tmp_path, 2, 2)
    steps: dict[int, int] = {}
    said, all_have = dict[int, list[int]](), threading.Barrier(2)

    def load(rank: int) -> None:
        def least(mine: list[int]) -> list[int]:
            said[rank] = mine
            all_have.wait(60.0)
            found = [min(each) for each in zip(*said.values(), strict=True)]
            all_have.wait(60.0)
            return found

        company = RankGroup(tmp_path, rank, 2, barrier=True)
        company.begin(lambda _now_s: None, lambda: 0.0)
        assert company.number_of_first(7 - rank) == 7
        company.least = least if on_several_nodes else None
        for _ in range(5 + 20 * rank):  # the other one is ready much later
            company.step()
        taken = 5 + 20 * rank
        for again in (rank == 0, False):
            company.arrive(again=again)
            while (answer := company.answer()) is None:
                company.step()
                taken += 1
            assert answer is again or rank == 1
        steps[rank] = taken

    threads = [threading.Thread(target=load, args=[rank], daemon=True) for rank in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60.0)
    assert steps[0] == steps[1] == 27


def test_who_has_lost_the_other_nodes_waits_to_be_ended(tmp_path: Path) -> None:
    def least(_said: list[int]) -> list[int]:
        raise ConnectionError

    RankGroup.create(tmp_path, 2, 1)
    company = RankGroup(tmp_path, 0, 2, barrier=True)
    company.least = least
    waits = threading.Thread(target=company.step, daemon=True)
    waits.start()
    waits.join(0.1)
    assert waits.is_alive()


def test_marks_are_passed_on_between_nodes(tmp_path: Path) -> None:
    places = tmp_path / "one", tmp_path / "two"
    for place in places:
        place.mkdir()
    one, two = (RankGroup.create(place, 2, 1) for place in places)
    ranks = [RankGroup(place, rank, 2) for rank, place in enumerate(places)]

    ranks[0].arrive()
    assert ranks[0].answer() is None
    two.take(json.loads(json.dumps(one.fresh())))
    assert one.fresh() == []
    assert (two.passed(0), two.passed(1)) == (1, 0)
    ranks[1].arrive(again=True)
    assert ranks[1].answer() is True
    assert ranks[0].answer() is None
    one.take(two.fresh())
    assert ranks[0].answer() is True
    two.take(one.fresh())  # what it has said itself: no news
    assert two.fresh() == []
    two.take(None)
