"""What each worker of a trial does first, where it doesn't inherit it by a fork."""

from __future__ import annotations

import multiprocessing
from collections.abc import Callable

from dlprof.records import Config
from dlprof.trial.processes import die_with_parent
from dlprof.trial.stacks import answer_with_stacks


def guard_worker() -> None:
    """Tie this worker's life to its parent's, and have it say where it stands when it is asked."""
    die_with_parent()
    answer_with_stacks()


def guard_of(config: Config, own: Config | None) -> Callable[[], None] | None:
    """What workers need that don't inherit it from this process by a fork.

    Args:
        config: What is to run.
        own: The settings of the target's own loader, whose start method counts where ``config``
            names none.
    """
    kept = None if own is None else own.start_method
    method = config.start_method or kept or multiprocessing.get_start_method()
    return None if method == "fork" else guard_worker
