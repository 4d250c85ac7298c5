"""dlprof: a profiler for the throughput of PyTorch DataLoaders.

Importing it imports next to nothing, least of all torch; each name is loaded when it is used, so
that ``kwargs_for`` costs a training script little and the command line answers at once.
"""

import importlib
from typing import TYPE_CHECKING

from dlprof.version import __version__

if TYPE_CHECKING:
    from dlprof.api import SweepOptions, check, load_run, profile, recommend, sweep
    from dlprof.errors import DlprofError
    from dlprof.integrations.watch import watch
    from dlprof.saved import kwargs_for

_HOMES = {
    "DlprofError": "dlprof.errors",
    "SweepOptions": "dlprof.api",
    "check": "dlprof.api",
    "kwargs_for": "dlprof.saved",
    "load_run": "dlprof.api",
    "profile": "dlprof.api",
    "recommend": "dlprof.api",
    "sweep": "dlprof.api",
    "watch": "dlprof.integrations.watch",
}

__all__ = [
    "DlprofError",
    "SweepOptions",
    "__version__",
    "check",
    "kwargs_for",
    "load_run",
    "profile",
    "recommend",
    "sweep",
    "watch",
]


def __getattr__(name: str) -> object:
    """Load a public name from where it lives."""
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    found: object = getattr(importlib.import_module(_HOMES[name]), name)
    globals()[name] = found
    return found


def __dir__() -> list[str]:
    """Public names, loaded or not."""
    return __all__
