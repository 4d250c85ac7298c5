"""Batches of any structure brought to a device; torch's ``meta`` device stands in for one."""

from __future__ import annotations

import collections
import dataclasses
import types
from typing import Any, NamedTuple

import pytest
import torch
from torch.nn.utils.rnn import PackedSequence, pack_sequence

from dlprof.device.moving import apply, move, tensors_of

_THERE = torch.device("meta")


class Pair(NamedTuple):
    """A batch as many datasets give it."""

    image: torch.Tensor
    label: torch.Tensor


@dataclasses.dataclass
class Sample:
    """A batch whose constructor wants something else than its fields."""

    image: torch.Tensor
    name: str = "x"
    seen: int = dataclasses.field(default=0, init=False)


@dataclasses.dataclass(frozen=True)
class Frozen:
    """One that can't be changed."""

    image: torch.Tensor


class Bag(dict[str, Any]):
    """A mapping that carries more than its items."""

    def __init__(self, origin: str) -> None:
        super().__init__()
        self.origin = origin


class Stubborn(collections.UserDict[str, Any]):
    """A mapping that can't be copied."""

    def __copy__(self) -> Stubborn:
        raise TypeError("no")


class Graph:
    """An object that goes by itself, as those of PyTorch Geometric."""

    def __init__(self) -> None:
        self.where = "cpu"

    def to(self, device: torch.device) -> Graph:
        """Go."""
        moved = Graph()
        moved.where = str(device)
        return moved


def _ones() -> torch.Tensor:
    return torch.ones(2, 3)


@pytest.mark.parametrize(
    "batch",
    [
        _ones(),
        [_ones(), _ones()],
        (_ones(), "text", 3, None),
        Pair(_ones(), _ones()),
        {"image": _ones(), "meta": [{"boxes": (_ones(),)}]},
        collections.OrderedDict(image=_ones()),
        types.MappingProxyType({"image": _ones()}),
        Sample(_ones()),
        Frozen(_ones()),
        Stubborn({"image": _ones()}),
    ],
)
def test_all_tensors_go_and_types_stay(batch: Any) -> None:
    moved = move(batch, _THERE)
    assert type(moved) is type(batch) or isinstance(batch, types.MappingProxyType | Stubborn)
    before, after = dict(tensors_of(batch)), dict(tensors_of(moved))
    assert list(before) == list(after)
    assert after
    assert all(tensor.device == _THERE for tensor in after.values())
    assert all(tensor.device.type == "cpu" for tensor in before.values())


def test_what_a_container_carries_besides_stays() -> None:
    bag = Bag("here")
    bag["image"] = _ones()
    moved = move(bag, _THERE)
    assert (moved.origin, moved["image"].device) == ("here", _THERE)
    assert bag["image"].device.type == "cpu"


def test_objects_go_by_themselves() -> None:
    graph, packed = Graph(), pack_sequence([torch.ones(3), torch.ones(2)])
    moved = move({"graph": graph, "words": packed}, _THERE)
    assert moved["graph"].where == "meta"
    assert isinstance(moved["words"], PackedSequence)
    assert moved["words"].data.device == _THERE


def test_other_things_stay_as_they_are() -> None:
    thing = object()
    batch = [thing, "text", b"bytes", 1, None, {1, 2}, Graph]
    assert move(batch, _THERE) == batch


def test_a_batch_that_contains_itself_comes_to_an_end() -> None:
    batch: list[Any] = [_ones()]
    batch.append(batch)
    moved = move(batch, _THERE)
    assert moved[0].device == _THERE
    assert len(list(tensors_of(batch))) <= 17


def test_paths_lead_to_the_tensors() -> None:
    batch = {"image": _ones(), "rest": [Pair(_ones(), _ones()), Sample(_ones())]}
    assert [path for path, _ in tensors_of(batch)] == [
        "['image']",
        "['rest'][0].image",
        "['rest'][0].label",
        "['rest'][1].image",
    ]


def test_pinned_tensors_are_copied_without_blocking(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[bool] = []
    real: Any = torch.Tensor.to

    def to(tensor: torch.Tensor, *arguments: Any, non_blocking: bool = False) -> torch.Tensor:
        asked.append(non_blocking)
        moved: torch.Tensor = real(tensor, *arguments, non_blocking=non_blocking)
        return moved

    monkeypatch.setattr(torch.Tensor, "to", to)
    monkeypatch.setattr(torch.Tensor, "is_pinned", lambda tensor: tensor.numel() > 1)
    move([torch.ones(1), torch.ones(2)], _THERE)
    assert asked == [False, True]


def test_apply_reaches_only_what_goes() -> None:
    assert apply([1, "a", (2,)], lambda _part: pytest.fail("nothing to change")) == [1, "a", (2,)]


@pytest.mark.parametrize(
    ("sparse", "parts"),
    [
        (torch.eye(3).to_sparse(), ["_indices", "_values"]),
        (torch.eye(3).to_sparse_csr(), ["crow_indices", "col_indices", "values"]),
        (torch.eye(3).to_sparse_csc(), ["ccol_indices", "row_indices", "values"]),
    ],
)
def test_a_sparse_tensor_is_known_by_its_dense_parts(
    sparse: torch.Tensor, parts: list[str]
) -> None:
    found = dict(tensors_of({"adjacency": sparse}))
    assert list(found) == [f"['adjacency'].{part}()" for part in parts]
    assert all(tensor.nbytes > 0 and tensor.is_contiguous() for tensor in found.values())
