"""Whether a window was disturbed, so that its figures are to be doubted. Pure."""

from __future__ import annotations

from dlprof.records import Usage

NEIGHBOUR_CORES_FRACTION = 0.15
"""Share of the usable cores that others may take before a window counts as disturbed; dlprof's own
supervisor and observer take a few hundredths of a core of it."""

THROTTLED_FRACTION = 0.05
SPREAD = 0.25
"""Half-width of the interval of the seconds for a batch, over their mean."""

_WAITING = 0.05


def disturbances(usage: Usage, spread: float | None, *, usable_cores: float) -> tuple[str, ...]:
    """What disturbed a window, one sentence each; empty for a quiet one.

    Neighbours count only where the trial felt them: where it waited for cores.

    Args:
        usage: Of the window.
        spread: How uncertain the rate is that was measured in it, as a share of it; ``None``
            where it was too short to say.
        usable_cores: Cores that the trial may use.
    """
    found = []
    other, waited = usage.other_cpu_cores, usage.run_queue_wait_fraction
    felt = waited is None or waited > _WAITING
    if other is not None and felt and other > NEIGHBOUR_CORES_FRACTION * usable_cores:
        found.append(f"other processes kept {other:.1f} of the usable cores busy")
    throttled = usage.throttled_fraction
    if throttled is not None and throttled > THROTTLED_FRACTION:
        found.append(f"a CPU quota throttled the trial for {throttled:.0%} of the window")
    if spread is not None and spread > SPREAD:
        found.append(f"the rate is uncertain by ±{spread:.0%}: batches came unevenly")
    return tuple(found)
