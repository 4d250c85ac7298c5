"""What a worker's dataset keeps: how many entries its containers have, now and then.

Only attributes, the globals of the dataset's module and its caches (``functools.lru_cache``) are
looked at, past all properties, and of each container no more than its length and its last entry.
"""

from __future__ import annotations

import collections
import sys
from collections.abc import Iterator
from typing import Any, NamedTuple

from dlprof.tracing.chains import parts_of

_CONTAINERS = (list, dict, set, collections.deque, bytearray)
_SIMPLE = (str, bytes, int, float, complex, bool, type(None))


class Kept(NamedTuple):
    """One container."""

    name: str  # the way to it from the dataset; of globals with the module's name before it
    entries: int  # how many it has
    entry_bytes: int  # size of the last one, and of what that one holds itself


def kept(dataset: object) -> tuple[Kept, ...]:
    """The containers that a dataset keeps, as far as a few hundred looks go."""
    found: list[Kept] = []
    seen: set[int] = set()
    waiting = collections.deque([("", dataset, 0), *_around(dataset)])
    looks = 0
    while waiting and looks < 300 and len(found) < 48:
        name, value, depth = waiting.popleft()
        if isinstance(value, _SIMPLE) or id(value) in seen:
            continue
        seen.add(id(value))
        looks += 1
        if isinstance(value, _CONTAINERS):
            if name:
                found.append(_measured(name, value))
        elif type(value).__name__ == "_lru_cache_wrapper" and depth < 4:
            found.append(Kept(f"{name} (lru_cache)", value.cache_info().currsize, 64))
            continue
        if depth < 4:
            inside = parts_of(value)
            waiting.extend((_joined(name, value, key), each, depth + 1) for key, each in inside)
    return tuple(found)


def _joined(name: str, holder: object, key: Any) -> str:
    if isinstance(holder, dict | list | tuple):
        return name + f"[{key!r}]"[:40]
    return f"{name}.{key}" if name else str(key)


def _around(dataset: object) -> Iterator[tuple[str, Any, int]]:
    """What a dataset's methods may fill beside it: its class's attributes, its module's globals."""
    for base in type(dataset).__mro__:
        module = sys.modules.get(base.__module__)
        if module is None or base.__module__.partition(".")[0] in ("torch", "builtins", "typing"):
            continue
        of_class = ((f"{base.__name__}.{key}", each) for key, each in vars(base).items())
        of_module = ((f"{base.__module__}.{key}", each) for key, each in vars(module).items())
        for name, each in [*of_class, *of_module]:
            cached = type(each).__name__ == "_lru_cache_wrapper"
            if (isinstance(each, _CONTAINERS) or cached) and "__" not in name:
                yield name, each, 3  # one level of what it holds, and no more


def _measured(name: str, value: Any) -> Kept:
    if isinstance(value, bytearray):
        return Kept(name, len(value), 1)
    size = type(value).__len__(value) if type(value) in _CONTAINERS else len(value)
    try:
        return Kept(name, size, _bytes_of(_last(value)))
    except (RuntimeError, IndexError, KeyError, StopIteration):  # it changes at this moment
        return Kept(name, size, 0)


def _last(value: Any) -> Any:
    if isinstance(value, list | collections.deque):
        return value[-1]
    if isinstance(value, dict):
        key = next(reversed(value))
        return key, dict.__getitem__(value, key)
    return next(iter(value))


def _bytes_of(value: Any, depth: int = 2) -> int:
    """Size of an object and of what it holds, as far as that is plain."""
    storage = getattr(type(value), "untyped_storage", None)
    try:
        if storage is not None:
            return int(value.untyped_storage().nbytes()) + 64
        size = sys.getsizeof(value)
    except Exception:  # noqa: BLE001 - whatever a class of the user's makes of its size
        return 64
    inside = parts_of(value) if depth and not isinstance(value, _SIMPLE) else ()
    return size + sum(_bytes_of(each, depth - 1) for _, each in inside)
