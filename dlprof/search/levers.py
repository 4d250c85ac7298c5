"""What beside the swept settings may pay for a loader, from what its calibration shows."""

from __future__ import annotations

import dataclasses
import statistics
from collections.abc import Sequence

from dlprof.model import Conditions, predict_all
from dlprof.records import Calibration, Config, Plan, Trial
from dlprof.search.grid import Proposal

_RECEIVING = 0.2
"""Share of a batch's period that main spends on receiving from which another way of sharing is."""

_MANY_TENSORS = 8
"""With ``file_descriptor`` each tensor of a batch takes a handshake of its own."""

_THREADS = 1.3
"""Cores that a loader of one worker keeps busy from which its worker computes with threads."""

_REPEATS = 2


def levers(
    calibration: Calibration,
    pick: Config,
    conditions: Conditions,
    explained: Sequence[Trial],
    *,
    unordered_pays: float,
    swept: Sequence[str] = (),
) -> tuple[Config, ...]:
    """The pick with one setting more changed, where the calibration says that it may pay.

    Args:
        calibration: What batches cost.
        pick: What is chosen so far.
        conditions: Where it runs.
        explained: The trials of the calibration.
        unordered_pays: From this predicted factor ``in_order=False`` is worth trying.
        swept: Settings that the user named, which are compared anyway.

    Returns:
        The one that may gain most first.

    Raises:
        ValueError: The calibration tells nothing of such batches.
    """
    if not pick.num_workers:
        return ()
    both = [pick, dataclasses.replace(pick, in_order=False)]
    ordered, unordered = (
        each.batches_per_s.value for each in predict_all(calibration, both, conditions)
    )
    own = (each.usage.own_cpu_cores or 0.0 for each in explained if each.config.num_workers == 1)
    found: dict[str, object] = {}
    if pick.num_workers > 1 and unordered >= unordered_pays * ordered:
        found["in_order"] = False
    many = (calibration.batch_tensors or 0) >= _MANY_TENSORS
    if many and _receiving_s(calibration) * ordered >= _RECEIVING:
        found["sharing_strategy"] = "file_system"
    if max(own, default=0.0) > _THREADS:
        found["worker_threads"] = 1
    return tuple(
        dataclasses.replace(pick, **{name: value})  # type: ignore[arg-type] # fields by name
        for name, value in found.items()
        if name not in swept and getattr(pick, name) != value
    )


def _receiving_s(calibration: Calibration) -> float:
    """Seconds that main takes to receive a batch from a busy worker."""
    costs = calibration.in_workers
    if costs is None or not costs.receive_cpu_s:
        return 0.0
    columns = (costs.receive_cpu_s, costs.receive_io_s)
    whole_s = sum(statistics.fmean(column) for column in columns if column)
    return whole_s + calibration.receive_busy_s.get("default", 0.0)


def next_lever(
    plan: Plan, trials: Sequence[Trial], tried: Sequence[Config], pick: Config
) -> Proposal | None:
    """The trial to run next: a lever and the pick in turns, so that drift hits both.

    Args:
        plan: How long trials are, and what they cost.
        trials: All so far.
        tried: The levers.
        pick: What they are compared with.
    """
    done = [trial for trial in trials if trial.purpose == "lever"]
    for repetition in range(_REPEATS):
        for config in tried:
            own = [each for each in done if each.config == config]
            if any(each.failure is not None for each in own) or len(own) > repetition:
                continue
            beside = sum(each.purpose == "lever" and each.config == pick for each in trials)
            expected_s = plan.cost.of(pick, plan.trial_s)
            return Proposal(
                config=pick if beside <= repetition else config,
                repetition=repetition,
                trial_s=plan.trial_s,
                expected_s=expected_s,
                expected_rest_s=expected_s * 2 * len(tried) * (_REPEATS - repetition),
            )
    return None
