"""What pinning is worth, from trials that differ in nothing else: measured, never by rule."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence

from dlprof.records import Trial
from dlprof.records.transfer import PinCosts, PinGain


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
