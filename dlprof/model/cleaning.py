"""Costs as they can be reckoned with: figures that make sense, without what was stolen."""

from __future__ import annotations

import dataclasses
import math

from dlprof.records import BatchCosts, Trial, Usage

_CLOCK_ERROR_S = 2e-4
"""Waiting is a difference of clocks; down to this far below 0 it is 0."""

_NEARLY = 0.9


def cleaned(costs: BatchCosts) -> BatchCosts:
    """The batches whose figures all make sense; missing columns stay empty."""
    columns = {f.name: getattr(costs, f.name) for f in dataclasses.fields(costs)}
    length = len(costs.cpu_s)
    present = {name: column for name, column in columns.items() if len(column) == length}
    kept = [row for row in zip(*present.values(), strict=True) if all(map(_makes_sense, row))]
    if not kept:
        return BatchCosts()
    rounded = ([max(0.0, value) for value in column] for column in zip(*kept, strict=True))
    return BatchCosts(**dict(zip(present, map(tuple, rounded), strict=True)))


def _makes_sense(value: float) -> bool:
    return math.isfinite(value) and value >= -_CLOCK_ERROR_S


def unstolen(costs: BatchCosts, trial: Trial | None) -> BatchCosts:
    """Costs without what a hypervisor took from a trial's cores, which looks like waiting.

    To a thread, time in which its core runs other machines is neither CPU time nor time in the
    run queue. It hits each second of computing alike.
    """
    if trial is None or not costs.io_s:
        return costs
    lost = _stolen_per_cpu_s(trial.usage)
    return dataclasses.replace(
        costs,
        io_s=_shortened(costs.io_s, lost * math.fsum(costs.cpu_s)),
        receive_io_s=_shortened(costs.receive_io_s, lost * math.fsum(costs.receive_cpu_s)),
    )


def _stolen_per_cpu_s(usage: Usage) -> float:
    """Seconds stolen for each second of computing on this machine, whoever computed.

    Others' cores hold the stolen ones, unless the kernel counts those as the threads' own CPU time:
    then they look like no waiting.
    """
    stolen, own, other = usage.stolen_cpu_cores, usage.own_cpu_cores, usage.other_cpu_cores
    if not stolen or not own or other is None or other < _NEARLY * stolen:
        return 0.0
    return stolen / (own + max(0.0, other - stolen))


def _shortened(column: tuple[float, ...], seconds: float) -> tuple[float, ...]:
    """Values that are so much less in all, and none of them below 0."""
    whole = math.fsum(column)
    factor = max(0.0, 1.0 - seconds / whole) if whole > 0 else 1.0
    return tuple(value * factor for value in column) if factor < 1.0 else column
