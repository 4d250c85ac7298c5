"""What pinning is worth, from trials that differ in nothing else: measured, never by rule."""

from __future__ import annotations

import dataclasses
import statistics
from collections.abc import Iterable, Iterator, Sequence

from dlprof.records import PinCosts, PinGain, Trial
from dlprof.units import format_bytes, format_duration


def pin_gains(trials: Sequence[Trial]) -> tuple[PinGain, ...]:
    """The gain of each pair of trials of one block that differ in ``pin_memory`` alone.

    Args:
        trials: Of one run.
    """
    return tuple(found for off, on in _pairs(trials) if (found := pin_gain(off, on)) is not None)


def pin_gain(off: Trial, on: Trial) -> PinGain | None:
    """What pinning changed, split into the copy's gain and the rest.

    Args:
        off: Without pinning.
        on: With it.

    Returns:
        The gain; ``None`` where a rate or a copy's time is missing.
    """
    if off.batches_per_s is None or on.batches_per_s is None:
        return None
    if min(off.batches_per_s.value, on.batches_per_s.value) <= 0:
        return None
    if off.copies is None or on.copies is None:
        return None
    before_s, after_s = off.copies.exposed_s, on.copies.exposed_s
    if before_s is None or after_s is None:
        return None
    total_s = 1 / off.batches_per_s.value - 1 / on.batches_per_s.value
    copy_s = before_s - after_s
    return PinGain(
        off=off.id,
        on=on.id,
        total_s=total_s,
        copy_s=copy_s,
        receive_s=total_s - copy_s,
        costs=on.copies.pin or PinCosts(),
    )


def typical(gains: Sequence[PinGain]) -> PinGain | None:
    """The median of several gains, figure by figure; ``None`` of none.

    Args:
        gains: Of the same two configurations.
    """
    if not gains:
        return None
    total_s = statistics.median(gain.total_s for gain in gains)
    copy_s = statistics.median(gain.copy_s for gain in gains)
    costs = [gain.costs for gain in gains]
    pinned = _median(each.pinned_bytes for each in costs)
    return PinGain(
        off=gains[0].off,
        on=gains[0].on,
        total_s=total_s,
        copy_s=copy_s,
        receive_s=total_s - copy_s,
        costs=PinCosts(
            thread_cpu_s=_median(each.thread_cpu_s for each in costs),
            thread_run_queue_s=_median(each.thread_run_queue_s for each in costs),
            pinned_bytes=None if pinned is None else round(pinned),
            alloc_s=_median(each.alloc_s for each in costs),
        ),
    )


def gain_words(gain: PinGain) -> str:
    """A gain and its costs as the end of a sentence: where the time went, and what else it took."""
    words = (
        f"{_change(gain.total_s)} a batch, {_change(gain.copy_s)} of it in copies and "
        f"{_change(gain.receive_s)} in receiving"
    )
    costs = gain.costs
    taken = []
    if costs.thread_cpu_s is not None:
        taken.append(f"{format_duration(costs.thread_cpu_s)} of its thread's CPU a batch")
    if costs.pinned_bytes is not None:
        taken.append(f"{format_bytes(costs.pinned_bytes)} of pinned memory")
    return f"{words}; it takes {' and '.join(taken)}" if taken else words


def _change(saved_s: float) -> str:
    return f"{'-' if saved_s >= 0 else '+'}{format_duration(abs(saved_s))}"


def _median(values: Iterable[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return statistics.median(known) if known else None


def _pairs(trials: Sequence[Trial]) -> Iterator[tuple[Trial, Trial]]:
    """Trials of one repetition and purpose, first without and then with pinning."""
    unpinned = {
        (trial.config, trial.repetition, trial.purpose): trial
        for trial in trials
        if not trial.config.pin_memory
    }
    for trial in trials:
        if trial.config.pin_memory:
            config = dataclasses.replace(trial.config, pin_memory=False)
            other = unpinned.get((config, trial.repetition, trial.purpose))
            if other is not None:
                yield other, trial
