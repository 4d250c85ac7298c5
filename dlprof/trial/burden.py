"""A loader made slower on purpose: what ``dlprof check --self-test`` has to find."""

from __future__ import annotations

import time
from typing import Any


class BurdenedCollate:
    """A collate function that keeps a core busy for a while after its work.

    It can be pickled wherever the function itself can. Waiting for a core doesn't count, so that
    each batch costs so much more whatever else the machine does.

    Args:
        collate: The loader's own.
        burden_s: CPU time that each batch takes longer.
    """

    def __init__(self, collate: Any, burden_s: float) -> None:
        self._collate = collate
        self._burden_s = burden_s

    def __call__(self, samples: Any) -> Any:
        """Collate a batch, slowly."""
        batch = self._collate(samples)
        ends_s = time.thread_time() + self._burden_s
        while time.thread_time() < ends_s:
            continue
        return batch


def burden(loader: Any, burden_s: float) -> None:
    """Make a loader slower by so much CPU time a batch, in whichever process makes its batches."""
    if burden_s > 0:
        from dlprof.targets.inner import core_of  # noqa: PLC0415 - torch.utils.data with it

        made = core_of(loader)
        made.collate_fn = BurdenedCollate(made.collate_fn, burden_s)
