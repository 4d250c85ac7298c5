"""Batches of any structure brought to a device, as training loops do it."""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Callable, Iterator, Mapping, MutableMapping, MutableSequence
from typing import Any

import torch

_DEEPEST = 16  # a batch that contains itself is left as it is from here on


# What is stored of a sparse tensor; the first as it is, for one that isn't coalesced refuses else.
_SPARSE: dict[torch.layout, tuple[str, ...]] = {
    torch.sparse_coo: ("_indices", "_values"),
    torch.sparse_csr: ("crow_indices", "col_indices", "values"),
    torch.sparse_bsr: ("crow_indices", "col_indices", "values"),
    torch.sparse_csc: ("ccol_indices", "row_indices", "values"),
    torch.sparse_bsc: ("ccol_indices", "row_indices", "values"),
}


def move(batch: Any, device: torch.device) -> Any:
    """The batch with its tensors on the device; what is no tensor stays as it is.

    Containers keep their types. A tensor in page-locked memory is copied with ``non_blocking``; any
    other would make no difference. An object with a ``to`` of its own is asked to go by itself.
    """

    def moved(part: Any) -> Any:
        if isinstance(part, torch.Tensor):
            return part.to(device, non_blocking=part.is_pinned())
        return part.to(device)

    return apply(batch, moved)


def tensors_of(batch: Any, *, inside: bool = False) -> Iterator[tuple[str, torch.Tensor]]:
    """Each tensor of a batch with the path that leads to it, such as ``['image'][0]``.

    Of a sparse tensor its dense parts, because it reports no size and knows no streams itself.
    With ``inside`` also what objects hold that have a ``to`` of their own, as those of PyTorch
    Geometric.
    """
    for path, leaf in _leaves(batch, "", 0, set() if inside else None):
        if isinstance(leaf, torch.Tensor):
            parts = _SPARSE.get(leaf.layout)
            if parts is None:
                yield path, leaf
            else:
                yield from ((f"{path}.{part}()", getattr(leaf, part)()) for part in parts)


def copied(batch: Any) -> Any:
    """A copy of a batch that shares nothing with it that a step could change.

    Tensors in page-locked memory are copied into such memory; ones that need gradients do again.

    Raises:
        Exception: Whatever a class of the user's raises that refuses to be copied.
    """
    made: dict[int, Any] = {}
    for _, tensor in tensors_of(batch):
        if tensor.layout is torch.strided:
            again = tensor.detach().clone()
            again = again.pin_memory() if tensor.is_pinned() else again
            made[id(tensor)] = again.requires_grad_(tensor.requires_grad)
    return copy.deepcopy(batch, made)


def _leaves(batch: Any, path: str, depth: int, seen: set[int] | None) -> Iterator[tuple[str, Any]]:
    """The parts of a batch that are tensors, or not made of parts.

    Objects that go by themselves are looked into where it is noted which were ``seen``.
    """
    whole = depth >= _DEEPEST or isinstance(batch, torch.Tensor | str | bytes)
    parts = [] if whole else list(_named_parts(batch))
    if seen is not None and not (whole or parts) and _has(batch, "to") and id(batch) not in seen:
        seen.add(id(batch))  # such objects may refer to each other
        parts = [(f".{name}", part) for name, part in getattr(batch, "__dict__", {}).items()]
    if not parts:
        yield path, batch
    for name, part in parts:
        yield from _leaves(part, path + name, depth + 1, seen)


def _has(part: Any, method: str) -> bool:
    """Whether something, but a class, has a method."""
    return not isinstance(part, type) and callable(getattr(part, method, None))


def apply(batch: Any, change: Callable[[Any], Any], by: str = "to", depth: int = 0) -> Any:
    """The batch with each part changed that ``change`` returns something other for.

    That is given each tensor, and each object that has the method ``by``.
    """
    # Tensors, packed sequences, tokenisers' batches: whatever has ``to``.
    if isinstance(batch, torch.Tensor) or _has(batch, by):
        return change(batch)
    if depth >= _DEEPEST or isinstance(batch, str | bytes):
        return batch

    def within(part: Any) -> Any:
        return apply(part, change, by, depth + 1)

    if isinstance(batch, Mapping):
        return _mapping(batch, {key: within(part) for key, part in batch.items()})
    if isinstance(batch, tuple | list):
        return _sequence(batch, [within(part) for part in batch])
    if dataclasses.is_dataclass(batch) and not isinstance(batch, type):
        return _dataclass(batch, within)
    return batch


def _mapping(batch: Mapping[Any, Any], parts: dict[Any, Any]) -> Any:
    changed = _copied(batch)  # keeps what a subclass carries besides
    if not isinstance(changed, MutableMapping):
        return _made(dict, batch, parts)
    changed.update(parts)
    return changed


def _sequence(batch: tuple[Any, ...] | list[Any], parts: list[Any]) -> Any:
    if isinstance(batch, tuple):
        return type(batch)(*parts) if hasattr(batch, "_fields") else _made(tuple, batch, parts)
    changed = parts if type(batch) is list else _copied(batch)
    if not isinstance(changed, MutableSequence):
        return parts
    changed[:] = parts
    return changed


def _dataclass(batch: Any, within: Callable[[Any], Any]) -> Any:
    """A copy, not a new one: its constructor may want other things than its fields."""
    changed = _copied(batch)
    if changed is None:
        return batch
    for field in dataclasses.fields(batch):
        if hasattr(batch, field.name):
            object.__setattr__(changed, field.name, within(getattr(batch, field.name)))
    return changed


def _copied(part: Any) -> Any:
    """A shallow copy; ``None`` where the user's type doesn't allow it."""
    try:
        return copy.copy(part)
    except Exception:  # whatever the user's type raises, it says no
        return None


def _made(plain: type, like: Any, parts: Any) -> Any:
    """The parts in a container of the same type, or in a plain one where that can't be made."""
    try:
        return type(like)(parts)
    except Exception:  # as above: the user's constructor
        return plain(parts)


def _named_parts(batch: Any) -> Iterator[tuple[str, Any]]:
    if isinstance(batch, Mapping):
        yield from ((f"[{key!r}]", part) for key, part in batch.items())
    elif hasattr(batch, "_fields") and isinstance(batch, tuple):  # a packed sequence is one too
        names: tuple[str, ...] = getattr(batch, "_fields", ())
        yield from ((f".{name}", part) for name, part in zip(names, batch, strict=False))
    elif isinstance(batch, list | tuple):
        yield from ((f"[{index}]", part) for index, part in enumerate(batch))
    elif dataclasses.is_dataclass(batch) and not isinstance(batch, type):
        for field in dataclasses.fields(batch):
            if hasattr(batch, field.name):
                yield f".{field.name}", getattr(batch, field.name)
