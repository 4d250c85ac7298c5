"""Random numbers of the training, while batches are made by others in its process."""

# ruff: noqa: NPY002 - numpy's global random numbers are what this is about

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from dlprof.tuning import seeding
from dlprof.tuning.seeding import SeededFetcher, streams

_DRAWS: dict[str, Callable[[], object]] = {
    "python": random.random,
    "half of a pair of Python": lambda: random.gauss(0, 1),
    "torch": lambda: torch.rand(3),
    "numpy": lambda: np.random.random(5),
    "half of a pair of numpy": np.random.standard_normal,
    "a whole state of numpy": lambda: np.random.random(2 * 624),
    "numpy's seed": lambda: np.random.seed(7),
    "nothing": lambda: None,
}


class _Drawing:
    """A fetcher whose batches are what some random draws give."""

    def fetch(self, indices: Sequence[str]) -> list[str]:
        return [str(_DRAWS[name]()) for name in indices]


@pytest.mark.parametrize("known", [True, False])
@given(steps=st.lists(st.tuples(st.sampled_from([*_DRAWS]), st.lists(st.sampled_from([*_DRAWS])))))
def test_the_trainings_random_numbers_go_on_as_if_no_batch_had_drawn_any(
    known: bool,
    steps: list[tuple[str, list[str]]],
) -> None:
    random.seed(1), torch.manual_seed(1), np.random.seed(1)
    fetcher = SeededFetcher(_Drawing(), keep=True)
    assert fetcher._dlprof_kept is not None
    fetcher._dlprof_kept._known &= known  # else as where CPython keeps its state otherwise
    batches = []
    for number, (draw, inside) in enumerate(steps):
        _DRAWS[draw]()
        batches.append(fetcher.fetch((number, inside)))
    after = streams()

    random.seed(1), torch.manual_seed(1), np.random.seed(1)
    for draw, _ in steps:
        _DRAWS[draw]()
    assert after == streams()
    alone = SeededFetcher(_Drawing())
    assert batches == [alone.fetch((number, inside)) for number, (_, inside) in enumerate(steps)]


def _counted(real: Callable[..., object], copies: list[str]) -> Callable[..., object]:
    def call(*given: object, **named: object) -> object:
        copies.append(real.__name__)
        return real(*given, **named)

    return call


def test_numpy_copies_its_state_only_where_something_was_drawn(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    np.random.seed(1)
    fetcher = SeededFetcher(_Drawing(), keep=True)
    copies: list[str] = []
    for name in ("get_state", "set_state"):
        real = getattr(np.random, name)
        monkeypatch.setattr(np.random, name, _counted(real, copies))
    for number in range(9):
        fetcher.fetch((number, ["python", "torch", "nothing"]))
    assert copies == ["get_state"]
    fetcher.fetch((9, ["numpy"]))
    fetcher.fetch((10, ["nothing"]))
    assert copies == ["get_state", "set_state"]
    np.random.standard_normal()
    fetcher.fetch((11, ["nothing"]))
    assert copies == ["get_state", "set_state", "get_state", "set_state"]


def test_another_bit_generator_of_numpy_is_kept_in_its_own_way() -> None:
    numpy: Any = np.random  # its stubs lack these names
    before = numpy.get_bit_generator()
    numpy.set_bit_generator(np.random.PCG64(3))
    try:
        state = str(np.random.get_state(legacy=False))
        assert not seeding._place_of(np)
        SeededFetcher(_Drawing(), keep=True).fetch((1, ["nothing"]))
        assert str(np.random.get_state(legacy=False)) == state
    finally:
        numpy.set_bit_generator(before)
