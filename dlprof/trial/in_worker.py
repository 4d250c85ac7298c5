"""What dlprof adds to a loader's workers: a guard where they inherit none, a delay on purpose."""

from __future__ import annotations

import multiprocessing
import os
import time
from typing import Any

from dlprof.errors import TargetError
from dlprof.trial.processes import die_with_parent
from dlprof.trial.stacks import answer_with_stacks
from dlprof.trial.temporary import mark_processes


def guard_worker() -> None:
    """Tie this worker's life to its parent's, and have it say where it stands when it is asked.

    Its parent is who started it: the loader's process, or multiprocessing's fork server. Where the
    loader's has died while this one was importing torch, nothing would ever end it.
    """
    die_with_parent()
    loads = multiprocessing.parent_process()
    if loads is not None and not loads.is_alive():
        os._exit(1)
    mark_processes()
    answer_with_stacks()


class DelayedCollate:
    """A collate function that keeps a core busy for a while after its work.

    It can be pickled wherever the function itself can. Waiting for a core doesn't count, so that
    each batch costs so much more whatever else the machine does.
    """

    def __init__(self, collate: Any, delay_s: float) -> None:
        self._collate = collate
        self._delay_s = delay_s

    def __call__(self, samples: Any) -> Any:
        """Collate a batch, slowly."""
        batch = self._collate(samples)
        ends_s = time.thread_time() + self._delay_s
        while time.thread_time() < ends_s:
            continue
        return batch


def add_delay(loader: Any, delay_s: float) -> None:
    """Make a loader slower by so much CPU time a batch, in whichever process makes its batches."""
    if delay_s > 0:
        from dlprof.targets.parts import core_of  # torch.utils.data with it

        made = core_of(loader)
        if not hasattr(made, "collate_fn"):
            raise TargetError(
                f"{type(made).__name__} is not a torch.utils.data.DataLoader, so a self-test can't "
                "make it slower.",
                hint="Name a target that loads by a DataLoader, or check without a self-test.",
            )
        made.collate_fn = DelayedCollate(made.collate_fn, delay_s)
