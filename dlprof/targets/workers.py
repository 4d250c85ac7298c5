"""What workers are started by, and what is set in each: sharing strategy, threads, a delay.

A module of its own, free of torch: a spawned worker imports it before its fetcher is made.
"""

from __future__ import annotations

import dataclasses
import importlib
import multiprocessing
import os
import sys
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from dlprof.errors import TargetError

if TYPE_CHECKING:
    from dlprof.records import Config

_THREAD_VARIABLES = (
    "OMP_NUM_THREADS",
    "MKL_NUM_THREADS",
    "OPENBLAS_NUM_THREADS",
    "NUMEXPR_NUM_THREADS",
    "VECLIB_MAXIMUM_THREADS",
)


def start_method_of(loader: Any = None, config: Config | None = None) -> str:
    """What workers are started by: as a configuration says, or a DataLoader, or else by default.

    It is only asked: a script may still settle on another default.
    """
    if config is not None and config.start_method is not None:
        return config.start_method
    context = getattr(loader, "multiprocessing_context", None) or multiprocessing
    method: str | None = context.get_start_method(allow_none=True)
    return method or multiprocessing.get_all_start_methods()[0]


def settings_of(loader: Any) -> dict[str, Any]:
    """What a DataLoader was built with, by the fields of ``Config``, without its batch size.

    Numbers are as the user gave them, such as numpy's. ``start_method`` is ``None`` where it is
    the platform's own, or none of Python's, as of MONAI's workers that are threads.
    """
    context = loader.multiprocessing_context
    method = None if context is None else context.get_start_method()
    return {
        "num_workers": loader.num_workers,
        "prefetch_factor": loader.prefetch_factor,
        "pin_memory": bool(loader.pin_memory),
        "persistent_workers": bool(loader.persistent_workers),
        "in_order": bool(getattr(loader, "in_order", True)),
        "start_method": method if method in multiprocessing.get_all_start_methods() else None,
    }


@dataclasses.dataclass(frozen=True, slots=True)
class WorkerSetup:
    """A picklable ``worker_init_fn`` that sets a worker up and then calls the user's own."""

    user_init: Callable[[int], Any] | None  # the target's own ``worker_init_fn``
    # ``file_descriptor`` or ``file_system``; ``None`` keeps torch's default.
    sharing_strategy: str | None
    # Compute threads of torch, OpenCV, BLAS and OpenMP; ``None`` leaves them alone.
    threads: int | None
    first: Callable[[], object] | None = None  # called before everything else

    def __call__(self, worker_id: int) -> None:
        """Run in the worker, before its fetcher is made."""
        if self.first is not None:
            self.first()
        if self.sharing_strategy is not None:
            import torch.multiprocessing

            set_strategy: Callable[[str], None] = torch.multiprocessing.set_sharing_strategy
            set_strategy(self.sharing_strategy)
        if self.threads is not None:
            limit_threads(self.threads)
        if self.user_init is not None:
            self.user_init(worker_id)
            if self.threads is not None:  # which the user's own may have set otherwise
                limit_threads(self.threads)


def limit_threads(count: int) -> None:
    """Limit the thread pools of this process: those that exist and those of libraries to come.

    Torch limits only its own pool in workers; those of OpenCV, PyArrow, BLAS and OpenMP do not
    follow it.
    """
    import torch  # a worker of the trial has it; importing this module does not

    torch.set_num_threads(count)
    os.environ.update(dict.fromkeys(_THREAD_VARIABLES, str(count)))
    opencv = sys.modules.get("cv2")
    if opencv is not None:
        opencv.setNumThreads(count)
    arrow = sys.modules.get("pyarrow")
    if arrow is not None:
        arrow.set_cpu_count(count)
    try:
        threadpoolctl = importlib.import_module("threadpoolctl")
    except ImportError:
        return
    threadpoolctl.threadpool_limits(limits=count)


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
