"""What the supervisor makes of a trial that says nothing: it asks where its processes stand."""

from __future__ import annotations

import psutil

from dlprof.records import Failure
from dlprof.trial import stacks
from dlprof.trial.descriptors import without_room
from dlprof.trial.hangs import Standstill, all_wait, dropped_batch, judge
from dlprof.trial.log import TrialLog
from dlprof.trial.processes import is_stopped
from dlprof.trial.story import Story

_SILENT_S = 1.0  # without a sign of progress before a trial's log is read
_IDLE_CORES = 0.02


def find_hang(story: Story, log: TrialLog, now_s: float, *, stall_s: float) -> Failure | None:
    """What a trial hangs for, if it does: a dropped batch is known at once, all else in time.

    Args:
        story: Of the trial; remembers when it was asked.
        log: What its processes wrote.
        now_s: By the supervisor's clock.
        stall_s: Silence after which it hangs, whatever the reason.
    """
    silent_s = now_s - story.heard_s
    if silent_s > stall_s:
        return judge(_standstill(story, silent_s, log))
    if silent_s <= max(_SILENT_S, story.asked_s):
        return None
    story.asked_s = silent_s + _SILENT_S
    if dropped_batch(log.text()) is None:
        return None
    story.asked_s = 2 * silent_s  # to be asked where they stand costs them something
    standstill = _standstill(story, silent_s, log)
    return dropped_batch(standstill.log) if all_wait(standstill.stacks, story.workers) else None


def _standstill(story: Story, silent_s: float, log: TrialLog) -> Standstill:
    written = log.text()
    tree = [] if story.pid is None else _tree(story.pid)
    idle = None if story.busy_cores is None else story.busy_cores < _IDLE_CORES
    return Standstill(
        waited_s=silent_s,
        log=written,
        stacks=stacks.collect(tree, log),
        idle=idle,
        stopped=[pid for pid in tree if is_stopped(pid)],
        full=without_room(tree),
    )


def _tree(pid: int) -> list[int]:
    """A process and its descendants."""
    try:
        return [pid, *(child.pid for child in psutil.Process(pid).children(recursive=True))]
    except psutil.Error:
        return [pid]
