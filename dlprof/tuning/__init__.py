"""A DataLoader that tunes itself while training runs. Importing this doesn't import torch."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any, Literal, TypeVar

_Loader = TypeVar("_Loader")


def tune(
    loader: _Loader,
    *,
    max_workers: int | None = None,
    max_ram: int | str | None = None,
    reseed: Literal["batch"] | None = None,
    state: Path | str | None = None,
    enabled: bool = True,
) -> _Loader:
    """Have a DataLoader tune its workers while it is iterated; iterate it as before.

    The same object is returned, with ``loader.tuning``: what was tried, when, why, and what it
    brought. The samples and their order stay the same. A loader that can't be tuned loads as
    before, and a warning of the logger ``dlprof.tune`` says why.

    Args:
        loader: A DataLoader, or what holds one.
        max_workers: Never more. With it workers also change where only the user knows that they
            may: from and to 0, and those of an iterable dataset before its first epoch and between
            two, which then come in another order; and so does ``pin_memory``. ``None`` for twice
            the cores, at least 16, and none of these.
        max_ram: What workers and batches in flight may take, as ``"16GiB"``; ``None`` for what is
            free.
        reseed: ``"batch"`` seeds Python's, torch's and numpy's random numbers for each batch by its
            number. Then augmentations are the same at any number of workers.
        state: A file for the answer, from which the next job starts, as ``dlprof.kwargs_for`` does.
        enabled: ``False`` leaves the loader alone. So does ``DLPROF_TUNE=off`` in the environment.

    Returns:
        The loader that was passed.

    Raises:
        UsageError: An argument that can't be used.
    """
    from dlprof.tuning.loader import tune_loader

    return tune_loader(loader, max_workers, max_ram, reseed, state, enabled=enabled)


def tuning_of(loader: Any) -> Any:
    """``loader.tuning`` of one that tunes itself; ``None`` of any other."""
    module = sys.modules.get("dlprof.tuning.loader")  # it needs torch, and is there if any is tuned
    own = None if module is None else getattr(loader, "tuning", None)
    return own if module is not None and isinstance(own, module.Tuning) else None
