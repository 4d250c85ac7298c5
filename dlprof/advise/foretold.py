"""What a model-led sweep adds to the reasons: how much was predicted, and what else was tried."""

from __future__ import annotations

import dataclasses

from dlprof.advise.choice import Choice
from dlprof.advise.wording import factor, figures
from dlprof.records import (
    Config,
    Estimate,
    Reason,
    Run,
    Trial,
)
from dlprof.stats import believe, observe
from dlprof.units import counted, format_duration

_PAYS = 1.05
"""A lever that gains less than this is not worth a sentence."""

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


def foretold(run: Run, choice: Choice) -> list[Reason]:
    """How much was predicted and how much measured, where a model chose what to measure."""
    prediction = run.prediction
    if prediction is None or choice.situation.expected is None:
        return []
    measured = {trial.config for trial in run.completed if trial.purpose == "measure"}
    explained_s = sum(trial.measured_s for trial in run.trials if trial.purpose == "explain")
    whole = counted(len(prediction.cells), "configuration")
    from_what = f" from {format_duration(explained_s)} of traced loading" if explained_s else ""
    claim = f"{whole} predicted{from_what}, and {len(measured)} measured"
    evidence = {"predicted_by": prediction.method, "cells": len(prediction.cells)}
    return [Reason(claim=claim, evidence=evidence)]


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
    return believe(seen).ratio(config.key, pick.key)
