"""Limits out of a run's header, which may hold anything."""

from __future__ import annotations

import pytest

from dlprof.advise.candidates import stored_limits


@pytest.mark.parametrize("ranks", [0, -1, "2", None])
def test_what_is_no_count_of_ranks_is_one_rank(ranks: object) -> None:
    assert stored_limits({"ranks": ranks}).ranks == 1


def test_ranks_and_limits_are_kept() -> None:
    limits = stored_limits({"ranks": 4, "max_workers": 0, "max_ram_bytes": -1})
    assert (limits.ranks, limits.max_workers, limits.max_ram_bytes) == (4, 0, None)
