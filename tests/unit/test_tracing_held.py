"""What a dataset keeps is found past its properties, and what grows is shown by two looks."""

from __future__ import annotations

import collections
import ctypes
import functools
from typing import Any

import pytest

from dlprof.records.stages import FREED
from dlprof.tracing import trace
from dlprof.tracing.clocks import MISSING
from dlprof.tracing.explain import _growing
from dlprof.tracing.trace import Facts, Made, kept

SEEN: list[bytes] = []


@functools.cache
def squared(number: int) -> int:
    return number * number


class Leaking:
    shared: dict[int, int] = {}  # noqa: RUF012 - as people write it

    def __init__(self) -> None:
        self.cache = {0: b"x" * 1000}
        self.inner = collections.namedtuple("Pair", "queue")(collections.deque([1, 2]))  # noqa: PYI024 - as people write it
        self.other = type("Other", (), {})()
        self.other.rows = [[1, 2], [3, 4]] * 20

    @functools.lru_cache(None)  # noqa: B019 - as people write it
    def __getitem__(self, index: int) -> int:
        return index

    @property
    def lazy(self) -> object:
        raise AssertionError("a property was read")


def _entries(dataset: object) -> dict[str, int]:
    return {each.name: each.entries for each in kept(dataset)}


def test_attributes_globals_and_caches_are_found() -> None:
    dataset = Leaking()
    before = _entries(dataset)
    assert before["cache (dict)"] == 1
    assert before["other.rows"] == 40
    SEEN.append(b"")
    squared(3)
    dataset.shared[1] = 1
    dataset.cache[1] = b""
    assert dataset[1] == 1
    after = _entries(dataset)
    grown = {name for name in after if after[name] > before.get(name, 0)}
    assert {"cache (dict)", "Leaking.shared (dict)"} <= grown
    assert any(name.endswith(".SEEN") for name in grown)
    assert any("squared (lru_cache)" in name for name in grown)
    assert "Leaking.__getitem__ (lru_cache)" in grown


@pytest.mark.skipif(trace._mallinfo() is None, reason="malloc isn't that of glibc 2.33 or newer")
def test_freed_memory_that_malloc_keeps_is_counted() -> None:
    libc = ctypes.CDLL(None)
    libc.malloc.restype, libc.free.argtypes = ctypes.c_void_p, (ctypes.c_void_p,)
    blocks = [libc.malloc(60_000) for _ in range(2000)]  # too small to be given back one by one
    before = _entries(None)[FREED]  # they may lie in what was freed until then
    for block in blocks[::2]:
        libc.free(block)
    assert _entries(None)[FREED] - before > 50e6
    for block in blocks[1::2]:
        libc.free(block)


def test_the_size_of_an_entry_is_that_of_the_last() -> None:
    found = next(each for each in kept(Leaking()) if each.name == "cache (dict)")
    assert found.entry_bytes > 1000


def _made(ordinal: int, dataset: Any) -> Made:
    facts = Facts(MISSING, MISSING, MISSING, kept(dataset))
    return Made(0, ordinal, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, facts=facts)


def test_what_grows_is_reported_in_bytes_a_batch() -> None:
    dataset, made = Leaking(), []
    for ordinal in range(0, 60, 10):
        made.append(_made(ordinal, dataset))
        for number in range(20):
            dataset.cache[1000 * ordinal + number + 1] = bytes(10_000)
    grown = _growing(made)
    assert next(iter(grown)) == "cache (dict)"
    assert 15_000 < grown["cache (dict)"] < 30_000


class _Reader:
    @functools.cache  # noqa: B019 - as people write it
    def load(self, index: int) -> bytes:
        return bytes(index)


class Filling:
    """Keeps samples in a list that has a place for each, and in its reader's cache."""

    def __init__(self) -> None:
        self.places: list[bytes | None] = [None] * 5000
        self.reader = _Reader()


def test_places_that_are_filled_and_caches_of_what_a_dataset_holds_grow_too() -> None:
    dataset, made = Filling(), []
    for ordinal in range(0, 60, 10):
        made.append(_made(ordinal, dataset))
        for number in range(50 * ordinal, 50 * ordinal + 500):
            dataset.places[number] = bytes(2000)
            dataset.reader.load(number)
    grown = _growing(made)
    assert grown["places (list)"] == pytest.approx(50 * 2033, rel=0.1)
    assert grown["_Reader.load (lru_cache)"] == 50 * 64


def test_what_grows_in_short_epochs_is_seen_of_all_of_them_together() -> None:
    """Each has new workers, which make three batches: none of them alone shows enough."""
    made = []
    for _ in range(3):
        dataset = Leaking()
        for ordinal in (0, 2):
            dataset.cache.update({1000 * ordinal + each: bytes(10_000) for each in range(20)})
            made.append(_made(ordinal, dataset))
    assert _growing(made[:2]) == {}
    assert _growing(made)["cache (dict)"] == pytest.approx(10 * 10_033, rel=0.1)


def test_entries_that_are_one_object_take_no_more_than_memory_grew_by() -> None:
    shared, rows, made = bytes(10_000_000), list[bytes](), []
    for ordinal in range(0, 60, 10):
        facts = Facts(100_000_000 + 1000 * ordinal, MISSING, MISSING, kept({"rows": rows}))
        made.append(Made(0, ordinal, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, facts=facts))
        rows.append(shared)
    assert max(_growing(made).values(), default=0.0) <= 1000
