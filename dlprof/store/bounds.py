"""What the figures and names of a configuration may be in a file that may come from elsewhere.

A recommendation passes them on into code that people copy, so that being of the right type is not
enough.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from dlprof.records import Config

_MOST = 2**31 - 1
_CHOICES: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {
        "start_method": ("fork", "spawn", "forkserver"),
        "sharing_strategy": ("file_descriptor", "file_system"),
    }
)
_LEAST: Mapping[str, int] = MappingProxyType(
    {"num_workers": 0, "prefetch_factor": 1, "batch_size": 1, "worker_threads": 1}
)


def fault_of(record: Any) -> tuple[str, str] | None:
    """The field of a record that is out of bounds, and the end of a sentence about it."""
    if not isinstance(record, Config):
        return None
    for name, least in _LEAST.items():
        number = getattr(record, name)
        if number is not None and not least <= number <= _MOST:
            return name, f"is not from {least} to {_MOST}"
    for name, choices in _CHOICES.items():
        if getattr(record, name) not in {None, *choices}:
            return name, f"is none of {', '.join(choices)}"
    return None
