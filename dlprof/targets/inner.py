"""Loaders that are made around a DataLoader, as ``webdataset.WebLoader`` and its chains are."""

from __future__ import annotations

import copy
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from torch.utils.data import DataLoader, Dataset, IterableDataset

_DEEPEST = 8  # stages of a chain that hold each other
_LONGEST = 64  # stages in a list; a longer one holds the data


def inner_loaders(found: object) -> tuple[DataLoader[Any], ...]:
    """The DataLoaders that an iterable holds in its attributes, each once.

    Lists, tuples and further ``IterableDataset`` among the attributes are looked into. An iterable
    that holds a DataLoader yields batches: it is a loader and no dataset.

    Args:
        found: Anything. A DataLoader itself, a map-style dataset and a container hold none. What
            accelerate prepares is a DataLoader by its class alone, and holds one.
    """
    if _is_prepared(found):
        held = (each for each in vars(found).values() if isinstance(each, DataLoader))
        return tuple({id(each): each for each in held}.values())
    if not _may_hold(found):
        return ()
    return tuple({id(each): each for each in _held_by(found, 0)}.values())


def dataloader_of(loader: object) -> DataLoader[Any] | None:
    """The DataLoader that makes a loader's batches: itself, or the only one that it holds."""
    if isinstance(loader, DataLoader) and not _is_prepared(loader):
        return loader
    inner = inner_loaders(loader)
    return inner[0] if len(inner) == 1 else None


def core_of(loader: Any) -> Any:
    """The DataLoader that makes a loader's batches, or the loader itself where there is none."""
    found = dataloader_of(loader)
    return loader if found is None else found


def with_inner(outer: Any, old: DataLoader[Any], new: DataLoader[Any]) -> Any:
    """A copy of an iterable around another DataLoader; what it holds beside that is shared.

    Args:
        outer: Holds ``old``; it is left as it is.
        old: From :func:`inner_loaders`.
        new: What the copy holds in its place.

    Raises:
        Exception: Whatever the class's own way of copying raises.
    """
    return _copied(outer, old, new, 0)


def _is_prepared(found: object) -> bool:
    """Whether a DataLoader by its class alone, which another one loads for."""
    return isinstance(found, DataLoader) and "dataset" not in vars(found)


def _may_hold(found: object) -> bool:
    if isinstance(found, type | DataLoader | list | tuple | Mapping):
        return False
    if isinstance(found, Dataset):
        return isinstance(found, IterableDataset)
    return isinstance(found, Iterable) and not hasattr(found, "__getitem__")


def _held_by(holder: object, depth: int) -> Iterator[DataLoader[Any]]:
    for value in getattr(holder, "__dict__", {}).values():
        yield from _in_value(value, depth + 1)


def _in_value(value: Any, depth: int) -> Iterator[DataLoader[Any]]:
    if isinstance(value, DataLoader):
        yield value
    elif depth > _DEEPEST:
        return
    elif type(value) in (list, tuple):
        for each in value if len(value) <= _LONGEST else ():
            yield from _in_value(each, depth + 1)
    elif isinstance(value, IterableDataset):
        yield from _held_by(value, depth)


def _copied(holder: Any, old: DataLoader[Any], new: DataLoader[Any], depth: int) -> Any:
    changed = copy.copy(holder)
    attributes = vars(changed)  # past __setattr__, which a class may guard
    for name, value in list(attributes.items()):
        attributes[name] = _exchanged(value, old, new, depth + 1)
    return changed


def _exchanged(value: Any, old: DataLoader[Any], new: DataLoader[Any], depth: int) -> Any:
    """A value with one DataLoader in it replaced; the value itself where it doesn't hold that."""
    if value is old:
        return new
    if not any(each is old for each in _in_value(value, depth)):
        return value
    if type(value) in (list, tuple):
        return type(value)(_exchanged(each, old, new, depth + 1) for each in value)
    return _copied(value, old, new, depth)
