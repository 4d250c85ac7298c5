"""What starting workers costs against what an epoch takes."""

from __future__ import annotations

import statistics

from dlprof.advise.findings.claims import Claim, Place
from dlprof.advise.findings.gains import Gain, bound, measured_gain
from dlprof.advise.findings.view import View
from dlprof.advise.wording import percent
from dlprof.records import Config, Trial
from dlprof.units import format_duration

_SHARE, _LEADS = 0.15, 0.3
"""Share of an epoch's time that goes to starting workers, from which it is worth a word; and from
which it comes before what it explains."""

RESET_S = 0.002
"""Turn of an epoch with workers that persist: 0.3 to 2 ms (FIELD section 1)."""

_FORK_S = 0.05
"""Start of a few workers by fork (FIELD section 1)."""

_SLOW_START_S = 2.0
"""A start that takes longer is worth a word even where workers persist."""


def startup(view: View) -> Claim | None:
    """Starting workers costs more than it saves."""
    kept, (turn_s, share) = kept_workers(view), turn(view)
    if kept is None:
        return None
    persist, script = view.config.persistent_workers, view.evidence.script
    forked = persist and view.config.start_method == "fork"  # which no start method beats
    epochs = 1.0 if script is None else script.epochs_per_start
    several = f"{epochs:.0f} epochs" if persist and epochs > 1 else "an epoch"
    advice = "Set persistent_workers=True: workers then start once, not at every epoch."
    if forked:
        advice = "Do less in worker_init_fn and in what the dataset opens for its first sample."
    elif persist:
        advice = (
            'Start workers by fork, or by forkserver with set_forkserver_preload(["torch"]), '
            "and keep what the dataset pickles small."
        )
    return Claim(
        "Starting workers costs more than it saves",
        f"Starting {view.workers} workers takes {format_duration(turn_s)} "
        f"{'once' if persist else 'at every epoch'}, {percent(share)} of the time of {several} of "
        f"{view.epoch_batches or 0:,} batches.",
        share,
        "epoch_turnover_s share_of_epoch batches_per_epoch start_method",
        {"epoch_turnover_s": turn_s, "share_of_epoch": share},
        advice,
        config=kept,
        gain=None if forked else _gain(view, kept, share, turn_s),
        place=Place.FAULT if starting_leads(view) else Place.BEHIND,
    )


def turn(view: View) -> tuple[float, float]:
    """Seconds from an epoch to the next, and their share of the time; 0 where that isn't known.

    Of workers that persist it is the start itself where that is slow: once for all epochs that a
    script ran, else for the first.
    """
    trials, script = view.evidence.plain("present"), view.evidence.script
    if not view.epoch_batches or not view.rate:
        return 0.0, 0.0
    turn_s, epoch_s = _median_turn(trials), view.epoch_batches / view.rate
    if view.config.persistent_workers:
        turn_s = _median_start(trials)
        turn_s = turn_s if (turn_s or 0.0) >= _SLOW_START_S else None
        epoch_s *= 1.0 if script is None else script.epochs_per_start
    if turn_s is None:
        return 0.0, 0.0
    if any(trial.whole_epochs for trial in trials):
        return turn_s, min(1.0, turn_s / epoch_s)
    return turn_s, turn_s / (epoch_s + turn_s)


def _median_turn(trials: tuple[Trial, ...]) -> float | None:
    turns = [trial.epoch_turnover_s for trial in trials if trial.epoch_turnover_s is not None]
    return statistics.median(turns) if turns else _median_start(trials)


def _median_start(trials: tuple[Trial, ...]) -> float | None:
    starts = [trial.startup_s for trial in trials if trial.startup_s is not None]
    return statistics.median(starts) if starts else None


def starting_leads(view: View) -> bool:
    """Whether starting workers takes so much of an epoch that it comes before what it explains."""
    return bool(view.workers) and turn(view)[1] >= _LEADS


def kept_workers(view: View) -> Config | None:
    """Workers that persist, or that start by fork where they do; where starting costs enough."""
    if not view.workers or turn(view)[1] < _SHARE:
        return None
    if not view.config.persistent_workers:
        return view.having(persistent_workers=True)
    return view.having(start_method="fork")


def _gain(view: View, kept: Config, share: float, turn_s: float) -> Gain:
    """Whole epochs are compared as measured; else the turn is left out of the epoch's time.

    What is left of it is the start of forked workers, or a batch of running ones.
    """
    whole = any(trial.whole_epochs for trial in view.evidence.plain("present", "variant"))
    tried = measured_gain(view, kept) if whole else None
    if tried is not None:
        return tried
    persist, script = view.config.persistent_workers, view.evidence.script
    variants = tuple(t for t in view.evidence.plain("variant") if t.config == kept)
    left_s = _FORK_S if persist else _median_turn(variants)
    if left_s is None:
        left_s = RESET_S + (view.costs.making.own_s if view.costs else 0.0)
    left = share * min(1.0, left_s / max(1e-12, turn_s))
    if script is not None and not persist:
        left += (share - left) / max(1, script.loader.epochs)  # the first start is left
    return bound(1 / max(0.02, 1 - share + left))
