"""What a model-led sweep adds to the reasons: what was foretold, and what else was tried."""

from __future__ import annotations

import dataclasses
import math

from dlprof.advise.choice import SAME_SPEED, Choice
from dlprof.advise.effective import Situation
from dlprof.advise.wording import factor, figures
from dlprof.records import (
    Config,
    Constraints,
    Estimate,
    Integrity,
    Reason,
    Run,
    SweepPrediction,
    Trial,
)
from dlprof.stats import Observation, belied, fit_blocks, is_contradicted, observe
from dlprof.units import counted, format_duration, format_rate

_PAYS = 1.05
"""A lever that gains less than this is not worth a sentence."""

_CUT_SHORT = ("budget", "interrupted")

_CAVEATS = {
    "in_order": (
        "but batches then come in another order in every run, so that runs can't be repeated "
        "exactly"
    ),
    "sharing_strategy": (
        'set it with torch.multiprocessing.set_sharing_strategy("file_system"); workers that are '
        "killed may leave files in /dev/shm"
    ),
    "worker_threads": "limit threads in workers, by worker_init_fn or OMP_NUM_THREADS",
}


def believed(run: Run, situation: Situation) -> SweepPrediction | None:
    """What the model foretold for a situation, unless measurements surely say otherwise."""
    if situation.expected is None:
        return None
    return None if is_contradicted(_seen(run), situation.expected) else run.prediction


def _seen(run: Run) -> list[Observation]:
    return [each for trial in run.completed if (each := observe(trial)) is not None]


def better_foretold(run: Run, limits: Constraints) -> frozenset[Config]:
    """What was predicted, where that foretells a faster one than any that was measured.

    Because a limit on workers leaves out the best that was raced, or the sweep was cut short before
    that was measured. Empty where what was measured is as fast as any of it, or the predictions
    are surely wrong. What failed, or asks for as much as what failed, is left out.
    """
    prediction = run.prediction
    if prediction is None or not run.completed:
        return frozenset()
    cut_short = run.end is not None and run.end.reason in _CUT_SHORT
    most = math.inf if limits.max_workers is None else limits.max_workers
    if not cut_short and all(config.num_workers <= most for config in prediction.race):
        return frozenset()
    failed = {trial.config for trial in run.trials if trial.failure is not None}
    found = Integrity.of(run)
    if run.header.target.kind == "iterable":
        most = min(most, found.worked)  # how many its shards feed only a trial shows
    speeds = {
        cell.config: cell.speed
        for cell in prediction.cells
        if cell.config.num_workers <= most
        and not found.is_useless(cell.config)
        and not any(cell.config.asks_as_much_as(each) for each in failed)
    }
    seen = {trial.config for trial in run.completed if trial.samples_per_s is not None}
    measured = max((speeds.get(config, 0.0) for config in seen), default=0.0)
    if measured >= SAME_SPEED * max(speeds.values(), default=0.0):
        return frozenset()
    right = believed(run, Situation.of(run, limits, None)) is not None
    return frozenset(speeds) if right else frozenset()


def foretold(run: Run, choice: Choice, trusted: SweepPrediction | None) -> list[Reason]:
    """What the model foretold of the pick and of all others, and whether it was right.

    Args:
        run: What was measured, and what was foretold.
        choice: What was chosen.
        trusted: What ``believed`` leaves of the forecast.
    """
    prediction = run.prediction
    if prediction is None or choice.situation.expected is None:
        return []
    if trusted is None:
        claim = "What was measured is not what the model foretold, so its predictions are set aside"
        return [Reason(claim=claim, evidence={"predicted_by": prediction.method})]
    cells = {cell.config: cell for cell in prediction.cells}
    measured = {trial.config for trial in run.completed}
    known = cells.get(choice.pick.config)
    explained_s = sum(trial.measured_s for trial in run.trials if trial.purpose == "explain")
    whole = counted(len(cells), "configuration")
    claim = (
        f"{whole} predicted from {format_duration(explained_s)} of explained loading, and "
        f"{len(measured)} measured"
    )
    evidence: dict[str, object] = {"predicted_by": prediction.method, "cells": len(cells)}
    if known is not None and known.samples_per_s.value > 0:
        rate = choice.speeds.steady.rate(choice.pick.key)
        ratio = rate.value / known.samples_per_s.value
        foretelling = format_rate(known.samples_per_s.value)
        claim += f": {foretelling} samples/s foretold for this one, and {ratio:.2f}x of that seen"
        evidence["predicted"] = figures(known.samples_per_s)
    return [Reason(claim=claim, evidence=evidence), *_belied(run, choice)]


def _belied(run: Run, choice: Choice) -> list[Reason]:
    """Of which configurations the prediction does not count, as their own trials deny it."""
    if choice.situation.expected is None:
        return []
    wrong = belied(_seen(run), choice.situation.expected)
    return [
        Reason(
            claim=f"{each.name} was foretold to be as fast as others, or faster, that outran it in "
            "every block: only what was measured of it counts",
            evidence={"trials": each.trial_ids},
        )
        for each in choice.allowed
        if each.key in wrong
    ]


def levers(run: Run, pick: Config) -> list[Reason]:
    """Settings beside the swept ones that were tried with the pick and gained something."""
    tried = [trial for trial in run.trials if trial.purpose == "lever"]
    told = []
    for config in dict.fromkeys(trial.config for trial in tried):
        name = _lever(pick, config)
        ratio = _ratio(tried, config, pick) if name is not None else None
        if name is not None and ratio is not None and _is_gain(ratio):
            claim = f"{name}={getattr(config, name)!r} gave {factor(ratio)} of it; {_CAVEATS[name]}"
            ids = [trial.id for trial in tried if trial.config in {config, pick}]
            told.append(Reason(claim=claim, evidence={"trials": ids, "ratio": figures(ratio)}))
    return told


def _is_gain(ratio: Estimate) -> bool:
    return ratio.value >= _PAYS and ratio.low is not None and ratio.low > 1


def _lever(pick: Config, config: Config) -> str | None:
    """The lever that alone tells a configuration from the pick; another pick has none."""
    names = [field.name for field in dataclasses.fields(Config)]
    changed = [name for name in names if getattr(pick, name) != getattr(config, name)]
    return changed[0] if len(changed) == 1 and changed[0] in _CAVEATS else None


def _ratio(tried: list[Trial], config: Config, pick: Config) -> Estimate | None:
    """Rate with the lever over that without, in blocks; ``None`` unless both have figures."""
    seen = [each for trial in tried if (each := observe(trial)) is not None]
    if not {config.key, pick.key} <= {each.key for each in seen}:
        return None
    return fit_blocks(seen).ratio(config.key, pick.key)
