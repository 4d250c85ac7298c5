"""dlprof: a profiler for the throughput of PyTorch DataLoaders.

Importing it imports no torch, so that ``kwargs_for`` costs a training script next to nothing.
"""

from dlprof.api import SweepOptions, load_run, recommend, sweep
from dlprof.errors import DlprofError
from dlprof.saved import kwargs_for
from dlprof.version import __version__

__all__ = [
    "DlprofError",
    "SweepOptions",
    "__version__",
    "kwargs_for",
    "load_run",
    "recommend",
    "sweep",
]
