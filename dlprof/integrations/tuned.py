"""``dlprof run --tune``: every DataLoader that a script iterates tunes itself."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from dlprof.internals import iterator_maker, set_iterator_maker
from dlprof.tuning import tune


def tune_all(kind: Any) -> Sequence[Any]:
    """Have every loader of a class tune itself from its first iterator on.

    Args:
        kind: ``DataLoader``, whose module may just be loading.

    Returns:
        What was tried on each of them, filled as they are met.
    """
    make: Any = iterator_maker(kind)
    met: list[Any] = []

    def get_iterator(loader: Any) -> Any:
        if hasattr(loader, "tuning"):
            return make(loader)
        from dlprof.tuning.loader import Tuning  # noqa: PLC0415 - it needs all of torch's loading

        tune(loader)
        if not isinstance(getattr(loader, "tuning", None), Tuning):
            return make(loader)
        met.append(loader.tuning)
        tuned: Any = iterator_maker(type(loader))
        return tuned(loader)

    set_iterator_maker(kind, get_iterator)
    return met
