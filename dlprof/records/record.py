"""``dataclasses.dataclass`` for records, made in half the time.

Python 3.11 compiles six methods for each dataclass, a millisecond apiece on a slow core, and a run
file has forty: that was half of what ``dlprof recommend`` took to answer. Comparing, hashing and
showing are the same for all of them and need no compiling.
"""

from __future__ import annotations

import dataclasses
import operator
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from dataclasses import dataclass as record
else:

    def record(**options: bool) -> Callable[[type], type]:
        """As ``dataclasses.dataclass``, for frozen ones whose fields all count when compared."""

        def make(plain: type) -> type:
            made = dataclasses.dataclass(plain, eq=False, repr=False, **options)
            made.__eq__, made.__hash__, made.__repr__ = _methods(made)
            return made

        return make


def _methods(made: type) -> tuple[Any, Any, Any]:
    """``__eq__``, ``__hash__`` and ``__repr__``, which give what a dataclass's own would."""
    fields = dataclasses.fields(made)
    # With the first name twice it gives a tuple also where there is only one.
    values = operator.attrgetter(fields[0].name, *(field.name for field in fields))
    hashable = [field.name for field in fields if field.hash is not False]
    hashed_values = operator.attrgetter(hashable[0], *hashable)
    names = [field.name for field in fields if field.repr]

    def equal(self: Any, other: object) -> Any:
        if other.__class__ is not self.__class__:
            return NotImplemented
        return values(self) == values(other)

    def hashed(self: Any) -> int:
        return hash(hashed_values(self))

    def represented(self: Any) -> str:
        shown = ", ".join(f"{name}={getattr(self, name)!r}" for name in names)
        return f"{type(self).__qualname__}({shown})"

    return equal, hashed, represented


def empty() -> Any:
    """A field that is an empty mapping unless it is given."""
    return dataclasses.field(default_factory=dict)


__all__ = ["empty", "record"]
