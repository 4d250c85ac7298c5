"""What each worker of a trial does first, where it doesn't inherit it by a fork."""

from __future__ import annotations

from dlprof.trial.processes import die_with_parent
from dlprof.trial.stacks import answer_with_stacks


def guard_worker() -> None:
    """Tie this worker's life to its parent's, and have it say where it stands when it is asked."""
    die_with_parent()
    answer_with_stacks()
