"""Random numbers of the training, while batches are made by others in its process."""

# ruff: noqa: NPY002 - numpy's global random numbers are what this is about

from __future__ import annotations

import gc
import random
import subprocess
import sys
import types
import warnings
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from dlprof.tuning import seeding
from dlprof.tuning.seeding import (
    ASKED,
    BATCHES,
    CPU_SECONDS,
    DELAY_SECONDS,
    PLACES,
    SELDOM,
    ClockedFetcher,
    RandomNumbers,
    SeededFetcher,
    streams,
)

_DRAWS: dict[str, Callable[[], object]] = {
    "python": random.random,
    "half of a pair of Python": lambda: random.gauss(0, 1),
    "torch": lambda: torch.rand(3),
    "half of a pair of torch": lambda: torch.randn(1),
    "half of a pair of torch, in double": lambda: torch.randn(1, dtype=torch.float64),
    "a whole state of torch": lambda: torch.rand(2 * 624),
    "torch's seed": lambda: torch.default_generator.manual_seed(7).initial_seed(),
    "numpy": lambda: np.random.random(5),
    "half of a pair of numpy": np.random.standard_normal,
    "a whole state of numpy": lambda: np.random.random(2 * 624),
    "numpy's seed": lambda: np.random.seed(7),
    "numpy's seed and half": lambda: (np.random.seed(7), np.random.normal()),
    "nothing": lambda: None,
}


class _Drawing:
    """A fetcher whose batches are what some random draws give."""

    def fetch(self, indices: Sequence[str]) -> list[str]:
        return [str(_DRAWS[name]()) for name in indices]


@pytest.mark.parametrize("known", [True, pytest.param(False, marks=pytest.mark.slow)])
def test_the_trainings_random_numbers_go_on_as_if_no_batch_had_drawn_any(
    monkeypatch: pytest.MonkeyPatch, *, known: bool
) -> None:
    if not known:  # a Python and a numpy that have their bytes elsewhere
        monkeypatch.setattr(seeding, "_python_is_known", lambda: False)
        monkeypatch.setattr(seeding, "_half_of", lambda: 0)
    assert bool(seeding._places_of(np)[1]) is known
    _check_any_steps()


@given(steps=st.lists(st.tuples(st.sampled_from([*_DRAWS]), st.lists(st.sampled_from([*_DRAWS])))))
def _check_any_steps(steps: list[tuple[str, list[str]]]) -> None:
    _begin()
    fetcher = SeededFetcher(_Drawing(), kept=RandomNumbers())
    batches = []
    for number, (draw, inside) in enumerate(steps):
        _DRAWS[draw]()
        batches.append(fetcher.fetch(((0, 0, number), inside)))
    after = streams()
    _begin()
    for draw, _ in steps:
        _DRAWS[draw]()
    assert after == streams()
    alone = SeededFetcher(_Drawing())
    assert batches == [
        alone.fetch(((0, 0, number), inside)) for number, (_, inside) in enumerate(steps)
    ]


@pytest.mark.parametrize("known", [True, False])
def test_batches_that_are_seeded_once_go_on_beside_the_trainings_random_numbers(
    monkeypatch: pytest.MonkeyPatch, *, known: bool
) -> None:
    """As in a worker: what they draw is what one stream gives, and the training draws its own."""
    if not known:  # each is seeded then
        monkeypatch.setattr(seeding, "_python_is_known", lambda: False)
    names = [name for name in _DRAWS if "seed" not in name]
    _begin()
    fetcher, batches = SeededFetcher(_Drawing(), kept=RandomNumbers(), once=True), []
    for number in range(4):
        batches += fetcher.fetch(((0, 0, number), names))
        for draw in names:
            _DRAWS[draw]()
    after = streams()
    _begin()
    for draw in 4 * names:
        _DRAWS[draw]()
    assert after == streams()
    one = SeededFetcher(_Drawing()).fetch(((0, 0, 0), 4 * names))
    alone = SeededFetcher(_Drawing())
    each = [drawn for number in range(4) for drawn in alone.fetch(((0, 0, number), names))]
    assert batches == (one if known else each)


def test_until_a_batch_draws_all_have_the_trainings_random_numbers_in_force() -> None:
    """The first that does is given those, which go on as if it hadn't; all after it their own."""
    kept, given, drawn = RandomNumbers(), list[str](), []
    nothing: list[str] = []
    epochs = [3 * [nothing], [nothing, ["python"], *5 * [["python", "torch"]]]]
    _begin()
    for epoch, draws in enumerate(epochs):
        fetcher = SeededFetcher(_Drawing(), kept=kept, once=True)
        for number, names in enumerate(draws):
            before = streams()
            given += fetcher.fetch(((0, epoch, number), names))
            assert streams() == before
            drawn.append(kept.drawn)
            _DRAWS["torch"]()
    assert drawn == 4 * [False] + 6 * [True]
    alone = SeededFetcher(_Drawing())
    own = alone.fetch(((0, 1, 2), 5 * ["python", "torch"]))
    _begin()
    assert given == [str(random.random()), *own]


def test_a_batch_that_draws_nothing_may_take_another_generator_of_numpy() -> None:
    numpy: Any = np.random

    class Taking:
        def fetch(self, takes: bool) -> None:
            if takes:
                numpy.set_bit_generator(np.random.PCG64(3))

    _begin()
    mine, before, kept = numpy.get_bit_generator(), streams(), RandomNumbers()
    fetcher = SeededFetcher(Taking(), kept=kept, once=True)
    for number, takes in enumerate([False, False, True, False]):
        fetcher.fetch(((0, 0, number), takes))
        assert kept.drawn is (number > 1)
        assert numpy.get_bit_generator() is mine
        assert streams() == before


def _begin() -> None:
    random.seed(1)
    torch.manual_seed(1)
    np.random.seed(1)


def test_a_dataset_may_take_another_generator_of_numpy_and_raise() -> None:
    numpy: Any = np.random  # its stubs lack these names

    class Taking:
        def fetch(self, _indices: Sequence[str]) -> None:
            numpy.set_bit_generator(np.random.PCG64(3))
            np.random.normal()
            raise LookupError

    _begin()
    np.random.normal()
    mine, before = numpy.get_bit_generator(), streams()
    with pytest.raises(LookupError):
        SeededFetcher(Taking(), kept=RandomNumbers()).fetch(((0, 0, 1), ["nothing"]))
    assert numpy.get_bit_generator() is mine
    assert streams() == before


def test_batches_that_are_seeded_once_may_take_another_generator_of_numpy() -> None:
    numpy: Any = np.random  # its stubs lack these names

    class Taking:
        def fetch(self, _indices: Sequence[str]) -> float:
            numpy.set_bit_generator(np.random.PCG64(3))
            return float(np.random.normal())

    _begin()
    mine, before = numpy.get_bit_generator(), streams()
    fetcher = SeededFetcher(Taking(), kept=RandomNumbers(), once=True)
    assert len({fetcher.fetch(((0, 0, number), [])) for number in range(3)}) == 1
    assert numpy.get_bit_generator() is mine
    assert streams() == before


def test_the_training_may_take_another_generator_of_numpy_between_batches() -> None:
    numpy: Any = np.random

    class Drawing:
        def fetch(self, _indices: Sequence[str]) -> float:
            return float(np.random.normal())

    _begin()
    first, fetcher = (
        numpy.get_bit_generator(),
        SeededFetcher(Drawing(), kept=RandomNumbers(), once=True),
    )
    try:
        for number, mine in enumerate([first, np.random.PCG64(3), np.random.MT19937(4), first]):
            numpy.set_bit_generator(mine)
            before = repr(np.random.get_state(legacy=False))
            fetcher.fetch(((0, 0, number), []))
            assert numpy.get_bit_generator() is mine
            assert repr(np.random.get_state(legacy=False)) == before
    finally:
        numpy.set_bit_generator(first)


def test_it_is_noticed_where_some_batches_only_ask_for_the_worker() -> None:
    def seldom(asks: Sequence[int]) -> float:
        clock = [0.0] * PLACES

        class Asking:
            def fetch(self, reads: int) -> None:
                clock[ASKED] += reads

        fetcher = ClockedFetcher(Asking(), clock, 0)
        for reads in asks:
            fetcher.fetch(reads)
        return clock[SELDOM]

    assert [seldom(asks) for asks in ([1, 0, 0, 0], [0, 1, 2, 1], [0, 0, 0])] == [0, 0, 0]
    assert [seldom(asks) for asks in ([0, 0, 1], [1, 1, 0])] == [1, 1]


def test_a_function_in_place_of_one_of_pythons_is_no_generator(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(random, "random", lambda: 0.5)
    _begin()
    before = streams()
    SeededFetcher(_Drawing(), kept=RandomNumbers()).fetch(((0, 0, 1), ["half of a pair of Python"]))
    assert streams() == before


def test_another_bit_generator_of_numpy_is_kept_in_its_own_way() -> None:
    numpy: Any = np.random  # its stubs lack these names
    before = numpy.get_bit_generator()
    numpy.set_bit_generator(np.random.PCG64(3))
    try:
        state = str(np.random.get_state(legacy=False))
        assert seeding._places_of(np) == (None, ())
        SeededFetcher(_Drawing(), kept=RandomNumbers()).fetch(((0, 0, 1), ["nothing"]))
        assert str(np.random.get_state(legacy=False)) == state
    finally:
        numpy.set_bit_generator(before)


@pytest.mark.parametrize(("said", "delay_s"), [("7 {} 3", 2.0), ("", 0.0)])
def test_run_queue_delay_is_clocked_where_the_kernel_counts_it(
    monkeypatch: pytest.MonkeyPatch, said: str, delay_s: float
) -> None:
    waited_ns = iter([10**9, 3 * 10**9])
    monkeypatch.setattr("os.pread", lambda *_: said.format(next(waited_ns)).encode(), raising=False)
    clock = [0.0] * 2 * PLACES
    fetcher = ClockedFetcher(_Drawing(), clock, PLACES)
    vars(fetcher)["_dlprof_schedstat"] = types.SimpleNamespace(fileno=lambda: -1)
    assert fetcher.fetch(["nothing"]) == ["None"]
    assert clock[PLACES + DELAY_SECONDS] == pytest.approx(delay_s)
    assert clock[PLACES + BATCHES] == 1.0


def test_a_fetcher_that_is_gone_leaves_no_file_open() -> None:
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always", ResourceWarning)
        ClockedFetcher(_Drawing(), [0.0] * PLACES, 0)
        gc.collect()
    assert not [each for each in warned if "schedstat" in str(each.message)]


def test_what_a_child_process_computes_is_cpu_time_of_its_batch() -> None:
    """Else a batch that a child decodes seems to wait, and more workers to be worth a try."""

    class Decoding:
        def fetch(self, program: str) -> str:
            run = [sys.executable, "-c", program]
            return subprocess.run(run, stdout=subprocess.PIPE, check=True, text=True).stdout

    clock = [0.0] * PLACES
    program = "import time\nwhile time.process_time() < 0.1: pass\nprint(time.process_time())"
    child_s = float(ClockedFetcher(Decoding(), clock, 0).fetch(program))
    assert clock[CPU_SECONDS] >= child_s - 0.02  # the kernel counts it in ticks of 10 ms
