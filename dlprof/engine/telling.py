"""What traced trials tell beside their rate, as records that a run file may hold."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeVar

from dlprof.records import Calibration, DatasetWeight, Explanation, Timeline
from dlprof.store.bounds import fault_of
from dlprof.store.codec import MismatchError, from_json

_Told = TypeVar("_Told", DatasetWeight, Explanation, Timeline)


def explanation_of(told: Mapping[str, object], trial_id: str) -> Explanation | None:
    """Where a trial's time went; ``None`` if it told nothing, or nothing that makes sense."""
    return _record(Explanation, told.get("explanation"), trial_id)


def timeline_of(told: Mapping[str, object], trial_id: str) -> Timeline | None:
    """When what happened in a trial; ``None`` as in ``explanation_of``."""
    return _record(Timeline, told.get("timeline"), trial_id)


def weight_of(told: Mapping[str, object]) -> DatasetWeight | None:
    """What a dataset weighs; ``None`` as in ``explanation_of``."""
    return _read(DatasetWeight, told.get("weight"))


def sensible(found: Calibration) -> Calibration | None:
    """A calibration that can be read again; ``None`` for one by a clock that tells no sense."""
    return None if fault_of(found) else found


def _record(kind: type[_Told], data: object, trial_id: str) -> _Told | None:
    return _read(kind, {**data, "trial_id": trial_id} if isinstance(data, dict) else None)


def _read(kind: type[_Told], data: object) -> _Told | None:
    if not isinstance(data, dict):
        return None
    try:
        return from_json(kind, data)
    except MismatchError:  # a clock that the dataset replaced tells times that aren't finite
        return None
