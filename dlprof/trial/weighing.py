"""Weighs a target's dataset and the start of one worker, in a disposable process."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

from dlprof.records import Config, DatasetWeight, WorkerStart
from dlprof.trial.guard import guard_of
from dlprof.trial.protocol import TrialRequest
from dlprof.trial.sending import start_method_of

if TYPE_CHECKING:
    from dlprof.targets.build import BuiltTarget

_BY_COPY = ("forkserver", "spawn")
_MOST_SENT_BYTES, _MOST_SENT_S = 256 << 20, 5.0
"""What is sent to a worker to see how it starts; of more it is computed what that would take."""

_NUMBERS: Any = [0]
"""The lightest dataset that there is."""

_PIPE_BYTES_PER_S = 1e9
"""A pipe between two processes, each of which copies what goes through it."""


def weigh_dataset(built: BuiltTarget, request: TrialRequest) -> dict[str, Any]:
    """What the dataset weighs, and how one worker starts by the methods that are asked for.

    Returns:
        ``weight``, a ``DatasetWeight`` as plain values.
    """
    from dlprof.targets.weighing import weigh  # noqa: PLC0415 - loads torch

    one = dataclasses.replace(request.config, num_workers=1).canonical()
    loader = _loader(built, one)
    if not hasattr(loader, "dataset"):
        why = {"attributes": f"{type(loader).__name__} has no dataset to look into"}
        return {"weight": dataclasses.asdict(DatasetWeight(unavailable=why))}
    weight = weigh(loader, limit_s=request.trial_s)
    missing = dict(weight.unavailable)
    starts: list[WorkerStart] = []
    for method in request.starts:
        if method == "own":
            method = start_method_of(loader, one)  # noqa: PLW2901 - its name
        if any(each.method == method for each in starts):
            continue
        try:
            start = _start(built, dataclasses.replace(one, start_method=method), weight)
        except Exception as error:  # noqa: BLE001 - whatever the user's code raises
            missing[f"starts.{method}"] = f"{type(error).__name__}: {error}"[:200]
            continue
        if start is None:
            missing[f"starts.{method}"] = "its workers don't go by torch's own loop"
        else:
            starts.append(start)
    whole = dataclasses.replace(
        weight,
        start_method=start_method_of(loader, one),
        starts=tuple(starts),
        unavailable=missing,
    )
    return {"weight": dataclasses.asdict(whole)}


def _loader(built: BuiltTarget, config: Config) -> Any:
    from dlprof.targets.inner import core_of  # noqa: PLC0415
    from dlprof.targets.loader import make_loader  # noqa: PLC0415

    guard = guard_of(config, built.target.own_config)
    return core_of(make_loader(built, config, in_worker=guard))


def _start(built: BuiltTarget, config: Config, weight: DatasetWeight) -> WorkerStart | None:
    from dlprof.trial.starting import measure_start  # noqa: PLC0415

    method, loader = str(config.start_method), _loader(built, config)
    if method not in _BY_COPY:
        return measure_start(loader, method)
    packing_s = weight.pickle_s + weight.unpickle_s
    too_much = weight.pickled_bytes > _MOST_SENT_BYTES or packing_s > _MOST_SENT_S
    if weight.how == "at_least" or any(each.failure for each in weight.attributes):
        raise ValueError("the dataset can't be pickled, or takes too long to")
    if not too_much:
        start = measure_start(loader, method)
        return start and dataclasses.replace(start, sent_bytes=weight.pickled_bytes)
    return _without_dataset(method, weight)


def _without_dataset(method: str, weight: DatasetWeight) -> WorkerStart | None:
    """The start of a worker of another dataset, with what sending this one would add."""
    from torch.utils.data import DataLoader  # noqa: PLC0415

    from dlprof.trial.starting import measure_start  # noqa: PLC0415

    start = measure_start(DataLoader(_NUMBERS, num_workers=1), method)
    if start is None:
        return None
    piped_s = weight.pickled_bytes / _PIPE_BYTES_PER_S
    more = {"create": weight.pickle_s, "unpickle": weight.unpickle_s + piped_s}
    phases = tuple(
        dataclasses.replace(
            each,
            wall_s=each.wall_s + more.get(each.name, 0.0),
            cpu_s=each.cpu_s + more.get(each.name, 0.0),
        )
        for each in start.phases
    )
    return WorkerStart(method=method, phases=phases, sent_bytes=weight.pickled_bytes)
