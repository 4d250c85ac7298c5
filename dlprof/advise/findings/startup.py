"""What starting workers costs against what an epoch takes."""

from __future__ import annotations

import dataclasses
import statistics

from dlprof.advise.findings.claims import Claim, Place, settings_fix
from dlprof.advise.findings.gains import Gain, bound, measured_gain
from dlprof.advise.findings.view import View
from dlprof.advise.wording import percent
from dlprof.records import Config, Trial
from dlprof.units import format_duration

_SHARE = 0.15
"""Share of an epoch's time that goes to starting workers, from which it is worth a word."""

_LEADS = 0.3
RESET_S = 0.002
"""Turn of an epoch with workers that persist: 0.3 to 2 ms (FIELD section 1)."""

_FORK_S = 0.05
"""Start of a few workers by fork (FIELD section 1)."""

_SLOW_START_S = 2.0
"""A start that takes longer is worth a word even where workers persist."""


def startup(view: View) -> Claim | None:
    """Starting workers costs more than it earns."""
    kept, turn_s, share = kept_workers(view), turn_of(view), turn_share(view)
    if kept is None or turn_s is None or share is None:
        return None
    gain = None if _is_forked(view) else _gain(view, kept, share, turn_s)
    batches = view.epoch_batches
    once = " once" if view.config.persistent_workers else " at every epoch"
    epochs = _epochs(view)
    several = (
        f"{epochs:.0f} epochs" if view.config.persistent_workers and epochs > 1 else "an epoch"
    )
    return Claim(
        title="Starting workers costs more than it earns",
        explanation=f"Starting {view.workers} workers takes {format_duration(turn_s)}{once}, "
        f"{percent(share)} of the time of {several} of {batches or 0:,} batches.",
        place=Place.FAULT if starting_leads(view) else Place.BEHIND,
        cost=share,
        figures={
            "epoch_turnover_s": turn_s,
            "share_of_epoch": share,
            "batches_per_epoch": batches,
            "start_method": view.config.start_method,
        },
        fix=settings_fix(view, kept, _advice(view)),
        gain=gain,
    )


def _advice(view: View) -> str:
    if not view.config.persistent_workers:
        return "Set persistent_workers=True: workers then start once, not at every epoch."
    if _is_forked(view):
        return "Do less in worker_init_fn, and in what the data set opens at its first sample."
    return (
        'Start workers by fork, or by forkserver with set_forkserver_preload(["torch"]), and keep '
        "what the data set pickles small."
    )


def _is_forked(view: View) -> bool:
    """Whether workers that persist are said to start by fork, which no start method beats."""
    return view.config.persistent_workers and view.config.start_method == "fork"


def turn_of(view: View) -> float | None:
    """Seconds from an epoch to the next; with workers that persist, the start itself."""
    trials = view.evidence.plain("present")
    if view.config.persistent_workers:
        starts = [trial.startup_s for trial in trials if trial.startup_s is not None]
        slow = statistics.median(starts) if starts else 0.0
        return slow if slow >= _SLOW_START_S else None
    return _median_turn(trials)


def _median_turn(trials: tuple[Trial, ...]) -> float | None:
    turns = [trial.epoch_turnover_s for trial in trials if trial.epoch_turnover_s is not None]
    if turns:
        return statistics.median(turns)
    starts = [trial.startup_s for trial in trials if trial.startup_s is not None]
    return statistics.median(starts) if starts else None


def turn_share(view: View) -> float | None:
    """Share of the time that turns of epochs take; ``None`` where an epoch's length isn't known.

    Workers that persist start once: of all epochs that a script ran, else of the first.
    """
    epoch_s, turn_s = view.epoch_s(), turn_of(view)
    if epoch_s is None or turn_s is None:
        return None
    if view.config.persistent_workers:  # one start serves all epochs
        epoch_s *= _epochs(view)
    if any(trial.whole_epochs for trial in view.evidence.plain("present")):
        return min(1.0, turn_s / epoch_s)
    return turn_s / (epoch_s + turn_s)


def _epochs(view: View) -> float:
    """Epochs that a start of workers that persist serves; 1 where nobody knows how many."""
    script = view.evidence.script
    return 1.0 if script is None else script.epochs_per_start


def starting_leads(view: View) -> bool:
    """Whether starting workers takes so much of an epoch that it comes before what it explains."""
    return bool(view.workers) and (turn_share(view) or 0.0) >= _LEADS


def kept_workers(view: View) -> Config | None:
    """Workers that persist, or that start by fork where they do; where starting costs enough."""
    share = turn_share(view)
    if not view.workers or share is None or share < _SHARE:
        return None
    if not view.config.persistent_workers:
        return dataclasses.replace(view.config, persistent_workers=True)
    return dataclasses.replace(view.config, start_method="fork")


def _gain(view: View, kept: Config, share: float, turn_s: float) -> Gain:
    """Whole epochs are compared as measured; else the turn is left out of the epoch's time."""
    whole = any(trial.whole_epochs for trial in view.evidence.plain("present", "variant"))
    tried = measured_gain(view, kept) if whole else None
    if tried is not None:
        return tried
    left = share * min(1.0, _left_s(view, kept) / turn_s) if turn_s > 0 else share
    script = view.evidence.script
    if script is not None and not view.config.persistent_workers:
        left += (share - left) / max(1, script.loader.epochs)  # the first start is left
    return bound(1 / max(0.02, 1 - share + left))


def _left_s(view: View, kept: Config) -> float:
    """Seconds of a turn with the remedy: forked workers' start, or a batch of running ones."""
    if view.config.persistent_workers:
        return _FORK_S
    timed = _median_turn(tuple(t for t in view.evidence.plain("variant") if t.config == kept))
    if timed is not None:
        return timed
    return RESET_S + (view.costs.making.own_s if view.costs else 0.0)
