"""What is undone even where a command is ended at once, as by a second Ctrl-C."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator

_deeds: list[Callable[[], object]] = []


@contextlib.contextmanager
def undone_at_last(deed: Callable[[], object]) -> Iterator[None]:
    """Have something undone if the process is ended before the block is.

    Args:
        deed: Undoes it, in a moment; the block itself does so where it ends as usual.
    """
    _deeds.append(deed)
    try:
        yield
    finally:
        if deed in _deeds:
            _deeds.remove(deed)


def undo_all() -> None:
    """Undo what is to be undone, the latest first, whatever goes wrong."""
    while _deeds:
        with contextlib.suppress(BaseException):
            _deeds.pop()()
