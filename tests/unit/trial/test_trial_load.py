"""What a made load touches."""

from __future__ import annotations

import ctypes
import mmap

import pytest

from dlprof.trial import load


class EnoughError(Exception):
    """Ends a loop that goes on for ever."""


@pytest.mark.parametrize("copiers", [1, 3, 7, 16])
def test_memory_is_copied_within_its_blocks(monkeypatch: pytest.MonkeyPatch, copiers: int) -> None:
    blocks: list[tuple[int, int]] = []
    plain = mmap.mmap

    def mapped(number: int, size: int) -> mmap.mmap:
        block = plain(number, size)
        began = ctypes.addressof(ctypes.c_char.from_buffer(block))
        blocks.append((began, began + size))
        return block

    copied: list[tuple[int, int]] = []
    monkeypatch.setattr(mmap, "mmap", mapped)
    monkeypatch.setattr(
        ctypes, "memmove", lambda to, of, size: copied.extend([(to, size), (of, size)])
    )

    def made(much: float) -> None:
        if much > 2 * 256 * 2**20:
            raise EnoughError

    with pytest.raises(EnoughError):
        load._copy(1e15, copiers, made)
    assert all(
        any(began <= at and at + size <= end for began, end in blocks) for at, size in copied
    )
    assert len({at for at, _ in copied}) > len(blocks)
