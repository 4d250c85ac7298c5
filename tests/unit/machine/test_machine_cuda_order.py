"""CUDA's order of devices against NVML's."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dlprof.machine.nvidia import HIDDEN, SPLIT, UNSURE, cuda_indices
from dlprof.records import GpuInfo


def _cards(*names: str) -> list[GpuInfo]:
    return [
        GpuInfo(index=index, name=name, uuid=f"GPU-{'abcdef'[index]}123-4567")
        for index, name in enumerate(names)
    ]


_ALIKE, _UNLIKE = _cards("X", "X", "X"), _cards("X", "Y", "X")


@pytest.mark.parametrize(
    ("cards", "environ", "expected"),
    [
        (_ALIKE, {}, [0, 1, 2]),
        (_ALIKE, {"CUDA_VISIBLE_DEVICES": "2,0"}, [1, None, 0]),
        (_ALIKE, {"CUDA_VISIBLE_DEVICES": " 1 "}, [None, 0, None]),
        (_ALIKE, {"CUDA_VISIBLE_DEVICES": "0,-1,1"}, [0, None, None]),
        (_ALIKE, {"CUDA_VISIBLE_DEVICES": "0,7,1"}, [0, None, None]),
        (_ALIKE, {"CUDA_VISIBLE_DEVICES": "0,0"}, [0, None, None]),
        (_UNLIKE, {}, [None, None, None]),
        (_UNLIKE, {"CUDA_DEVICE_ORDER": "PCI_BUS_ID"}, [0, 1, 2]),
        (_UNLIKE, {"CUDA_VISIBLE_DEVICES": "GPU-b,GPU-a123-4567"}, [1, 0, None]),
        (_UNLIKE, {"CUDA_VISIBLE_DEVICES": "GPU-b,0"}, [None, None, None]),
        (_UNLIKE, {"CUDA_VISIBLE_DEVICES": "GPU-"}, [None, None, None]),
        (_UNLIKE, {"CUDA_VISIBLE_DEVICES": "MIG-1-2"}, [None, None, None]),
    ],
)
def test_where_each_card_is(
    cards: list[GpuInfo], environ: dict[str, str], expected: list[int | None]
) -> None:
    found, reasons = cuda_indices(cards, environ)
    assert [found.get(card.uuid) for card in cards] == expected
    assert set(reasons) == {card.uuid for card in cards if card.uuid not in found}


def test_the_reasons_set_apart_what_is_hidden_from_what_is_unsure() -> None:
    unsure = cuda_indices(_UNLIKE, {})[1]
    hidden = cuda_indices(_ALIKE, {"CUDA_VISIBLE_DEVICES": "0"})[1]
    split = cuda_indices(_ALIKE, {"CUDA_VISIBLE_DEVICES": "MIG-1"})[1]
    assert set(unsure.values()) == {UNSURE}
    assert set(hidden.values()) == {HIDDEN}
    assert set(split.values()) == {SPLIT}


@given(st.text(alphabet="012,-GPUabcMI ", max_size=20))
def test_any_text_gives_each_card_an_index_or_a_reason(text: str) -> None:
    found, reasons = cuda_indices(_ALIKE, {"CUDA_VISIBLE_DEVICES": text})
    assert set(found) | set(reasons) == {card.uuid for card in _ALIKE}
    assert not set(found) & set(reasons)
    assert sorted(found.values()) == sorted(set(found.values()))
