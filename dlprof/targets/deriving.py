"""One loader of another class: that of its own, with some methods more."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from typing import Any

_CLASS: Any = object.__dict__["__class__"]
"""An object's class, also where its own class says another, as accelerate's loaders do."""


def derive_in_place(loader: Any, methods: Mapping[str, Any]) -> Callable[[], None]:
    """Give one object other methods; it stays the same object, and an instance of its class.

    Copies of it, pickled ones too, are of its own class. So is what a framework makes by calling
    the object's class with other arguments. What is returned gives it that class back.

    Raises:
        TypeError: Objects of its class can't be given another, such as a list.
    """
    own: Any = type(loader)

    def reduce(this: Any, protocol: Any) -> Any:
        reduced = own.__reduce_ex__(this, protocol)
        if not isinstance(reduced, tuple):
            return reduced
        make, arguments, *rest = reduced
        if getattr(make, "__name__", "") == "__newobj__":  # which insists on our class
            make = _make
        return (make, tuple(map(underived, arguments)), *rest)

    def underived(argument: Any) -> Any:
        # What was derived once more, too: only their own class is found by its name.
        return own if isinstance(argument, type) and issubclass(argument, derived) else argument

    @functools.wraps(own.__init__)
    def make_own(kind: Any, *arguments: Any, **options: Any) -> Any:
        return own(*arguments, **options) if kind is derived else own.__new__(kind)

    names = {"__module__": own.__module__, "__qualname__": own.__qualname__, "__slots__": ()}
    replaced = {"__new__": make_own, "__reduce_ex__": reduce}
    derived = type(own.__name__, (own,), {**names, **replaced, **methods})
    _CLASS.__set__(loader, derived)

    def undo() -> None:
        if type(loader) is derived:
            _CLASS.__set__(loader, own)

    return undo


def _make(kind: Any, *arguments: Any) -> Any:
    """As pickle makes objects that it restores."""
    return kind.__new__(kind, *arguments)
