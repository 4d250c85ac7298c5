"""Times each step of a chain of transforms, without touching the transforms themselves.

A chain, as torchvision, albumentations and MONAI have it, is a callable with an attribute
``transforms`` that it goes through in a loop. The list (or tuple) is replaced by one that is equal
to it and reads the clock whenever the loop comes for the next step. Steps, their types, what they
are given and what they return stay as they are.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from types import FunctionType
from typing import Any

from dlprof.targets.faults import own_attributes
from dlprof.tracing.clocks import now_ns

_LEAVES = {str, bytes, int, float, complex, bool, type(None), type, FunctionType}


class Tally:
    """Calls and nanoseconds of each step of one chain."""

    def __init__(self, steps: int) -> None:
        self.calls = [0] * steps
        self.ns = [0] * steps

    def timed(self, steps: Iterator[Any], first: int) -> Iterator[Any]:
        """Pass steps on; the time until the next is asked for is that of the step."""
        calls, took_ns = self.calls, self.ns
        for place, step in enumerate(steps, first):
            began_ns = now_ns()
            yield step
            took_ns[place] += now_ns() - began_ns
            calls[place] += 1

    def take(self) -> list[int]:
        """Calls and nanoseconds since the last time, step by step, and start again."""
        taken = [each for pair in zip(self.calls, self.ns, strict=True) for each in pair]
        self.calls[:] = self.ns[:] = [0] * len(self.ns)
        return taken


_Plain: Any = object


class _Timed(_Plain):  # type: ignore[misc] # what each class below has from list or tuple
    """Times what a loop over a list or tuple does; pickles and copies as a plain one."""

    tally: Tally | None = None
    first = 0  # place in the tally
    plain: Any = None  # the user's own, in whose place it stands

    def __iter__(self) -> Iterator[Any]:
        steps, tally = _untimed(self), self.tally
        # Someone may have made it longer since.
        fits = tally is not None and self.first + len(self) <= len(tally.ns)
        return tally.timed(steps, self.first) if tally is not None and fits else steps

    def __getitem__(self, index: Any) -> Any:
        """One step, or a slice, which is a chain too: MONAI goes through one."""
        part, length, tally = super().__getitem__(index), len(self), self.tally
        if not isinstance(index, slice) or tally is None or self.first + length > len(tally.ns):
            return part
        first, _, step = index.indices(length)
        timed = _TimedSlice(part)
        timed.tally, timed.first = tally, self.first + first
        return timed if step == 1 else part

    def __reduce_ex__(self, protocol: Any) -> Any:
        return list if isinstance(self, list) else tuple, (list(_untimed(self)),)


class _TimedList(_Timed, list[Any]):
    pass


class _TimedTuple(_Timed, tuple[Any, ...]):  # noqa: SLOT001 - a tuple's subclass can't hold slots with names
    pass


class _TimedSlice(_Timed, list[Any]):
    pass


_STEPS = (list, tuple, _TimedList, _TimedTuple)


class Chains:
    """The chains of one dataset, timed until they are let go."""

    def __init__(self, dataset: object) -> None:
        self._undo: list[Callable[[], None]] = []
        self._tallies: list[Tally] = []
        names: list[str] = []
        for owner in find_chains(dataset):
            names += self._time(owner)
        self.names = tuple(names)

    def _time(self, owner: Any) -> list[str]:
        plain, timed = _timed(owner.transforms)
        tally = timed.tally = Tally(len(timed))
        try:
            owner.transforms = timed
        except Exception:  # the user's own class may refuse; then it isn't timed
            return []
        self._tallies.append(tally)
        self._undo.append(lambda: _put_back(owner, plain, timed))
        return [f"{place} {_name(step)}" for place, step in enumerate(_untimed(timed))]

    def take(self) -> tuple[int, ...]:
        """Calls and nanoseconds of every step since the last time; empty if none ran."""
        if not self._tallies:
            return ()
        taken = [each for tally in self._tallies for each in tally.take()]
        return tuple(taken) if any(taken) else ()

    def let_go(self) -> None:
        """Give every chain its own list back."""
        for undo in self._undo:
            undo()
        self._undo.clear()


def _timed(steps: Any) -> tuple[Any, Any]:
    """The user's own list or tuple, and one that is timed to stand in its place.

    It may have been timed by an iterator that still lives, since without workers an epoch's
    iterator is made before the last one's is let go: the new one takes over.
    """
    plain = steps.plain if isinstance(steps, _Timed) else steps
    kind: Any = _TimedList if isinstance(steps, list) else _TimedTuple
    timed = kind(_untimed(steps))
    timed.plain = plain
    return plain, timed


def _untimed(steps: Any) -> Iterator[Any]:
    """What a list or tuple holds, whether it is timed or not."""
    return list.__iter__(steps) if isinstance(steps, list) else tuple.__iter__(steps)


def _put_back(owner: Any, plain: Any, timed: Any) -> None:
    if owner.transforms is not timed:
        return
    if isinstance(plain, list):
        plain[:] = _untimed(timed)  # with what the user has changed in it meanwhile
    owner.transforms = plain


def _name(step: Any) -> str:
    return getattr(step, "__name__", None) or type(step).__name__


def find_chains(dataset: object) -> list[Any]:
    """Objects reachable from a dataset's attributes that call a list of transforms in order.

    Looks through wrappers (``Subset``, ``ConcatDataset``, ``dataset.dataset``) and short lists and
    dicts, a few levels deep; runs no property of the user's. Chains within chains belong to the
    outer one's step.
    """
    found, level, seen = [], [dataset], {id(dataset)}
    for _ in range(7):
        below: list[Any] = []
        for each in level:
            if _is_chain(each):
                found.append(each)
            else:
                below += (part for _, part in parts_of(each))
        level = []
        for part in below:
            if id(part) not in seen and type(part) not in _LEAVES:
                seen.add(id(part))
                level.append(part)
        if not level or len(seen) > 300:
            break
    return found


def _is_chain(each: Any) -> bool:
    if not callable(each):
        return False
    steps: Any = attributes_of(each).get("transforms")
    return type(steps) in _STEPS and bool(steps) and all(map(callable, _untimed(steps)))


def attributes_of(each: Any) -> dict[str, Any]:
    """An object's own attributes, past all properties; none of a class, which is nobody's own."""
    return {} if issubclass(type(each), type) else own_attributes(each, of_python=True)


def parts_of(each: Any) -> list[tuple[Any, Any]]:
    """The entries of a short container by key or place, or an object's attributes by name."""
    # Not by isinstance(), which would ask a lazy proxy for its class, and so load it.
    kind: Any = next((kind for kind in (list, tuple, dict) if issubclass(type(each), kind)), None)
    if kind is None:
        return list(attributes_of(each).items())
    if kind.__len__(each) > 16:
        return []
    return list(dict.items(each) if kind is dict else enumerate(kind.__iter__(each)))
