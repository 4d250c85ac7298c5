"""Methods of other people's classes, wrapped: in a class and in all that are derived from it."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

Method = Callable[..., Any]
Wrap = Callable[[Method], Method]


def wrap_methods(cls: type[Any], wraps: dict[str, Wrap]) -> None:
    """Wrap methods in a class, in its present subclasses, and in those still to be defined.

    Only where a class defines a method itself; so the wrapped methods of a class and its base may
    run inside one another, and each wrapper has to know whether it is the outermost.

    Args:
        cls: The base class.
        wraps: For each method's name, what makes its replacement.
    """
    for each in _with_subclasses(cls):
        _wrap_own(each, wraps)
    inherited = cls.__dict__.get("__init_subclass__")

    def __init_subclass__(derived: type[Any], /, **kwargs: Any) -> None:  # noqa: N807 - it is that method
        if inherited is None:
            super(cls, derived).__init_subclass__(**kwargs)
        else:
            inherited.__func__(derived, **kwargs)
        _wrap_own(derived, wraps)

    setattr(cls, "__init_subclass__", classmethod(__init_subclass__))  # noqa: B010 - mypy refuses to assign a method


def _wrap_own(cls: type[Any], wraps: dict[str, Wrap]) -> None:
    for name, wrap in wraps.items():
        method = cls.__dict__.get(name)
        if callable(method):
            setattr(cls, name, functools.wraps(method)(wrap(method)))


def _with_subclasses(cls: type[Any]) -> list[type[Any]]:
    found = [cls]
    for each in cls.__subclasses__():
        found += [derived for derived in _with_subclasses(each) if derived not in found]
    return found
