"""dlprof: a profiler for the throughput of PyTorch DataLoaders.

Importing it imports next to nothing, least of all torch; each name is loaded when it is used, so
that ``kwargs_for`` costs a training script little and the command line answers at once.
"""

import importlib
import sys
from types import ModuleType
from typing import TYPE_CHECKING, Any

from dlprof import late
from dlprof.version import __version__

if TYPE_CHECKING:
    from dlprof.api import (
        PredictOptions,
        RecommendOptions,
        SweepOptions,
        TransferOptions,
        check,
        compare,
        load_run,
        machine,
        predict,
        profile,
        recommend,
        report,
        sweep,
        transfer,
    )
    from dlprof.errors import DlprofError
    from dlprof.integrations.watch import watch
    from dlprof.records import LoaderCall
    from dlprof.saved import kwargs_for
    from dlprof.targets.adapters import Adapted
    from dlprof.tuning import tune

_HOMES = {
    "Adapted": "dlprof.targets.adapters",
    "DlprofError": "dlprof.errors",
    "LoaderCall": "dlprof.records",
    "PredictOptions": "dlprof.api",
    "RecommendOptions": "dlprof.api",
    "SweepOptions": "dlprof.api",
    "TransferOptions": "dlprof.api",
    "check": "dlprof.api",
    "compare": "dlprof.api",
    "kwargs_for": "dlprof.saved",
    "load_ipython_extension": "dlprof.integrations.watch",  # asked for by %load_ext dlprof
    "load_run": "dlprof.api",
    "machine": "dlprof.machine",
    "predict": "dlprof.api",
    "profile": "dlprof.api",
    "recommend": "dlprof.api",
    "report": "dlprof.report",
    "sweep": "dlprof.api",
    "transfer": "dlprof.transfer",
    "tune": "dlprof.tuning",
    "watch": "dlprof.integrations.watch",
}

__all__ = [
    "Adapted", "DlprofError", "LoaderCall", "PredictOptions", "RecommendOptions", "SweepOptions",
    "TransferOptions", "__version__", "check", "compare", "kwargs_for", "load_run", "machine",
    "predict", "profile", "recommend", "report", "sweep", "transfer", "tune", "watch",
]  # fmt: skip

late.HOMES.update(
    apply="dlprof.targets.loader",
    notebook_html="dlprof.report.notebook",
    to_dataframe="dlprof.report.export.rows",
)


class _Room(ModuleType):
    """A package of ours that has the name of a function: calling it calls that."""

    def __call__(self, *args: Any, **options: Any) -> Any:
        return self.__wrapped__(*args, **options)

    @property
    def __wrapped__(self) -> Any:
        """The function, which also gives its signature to ``help``."""
        return getattr(importlib.import_module("dlprof.api"), self.__name__.rpartition(".")[2])


class _Package(ModuleType):
    def __setattr__(self, name: str, value: object) -> None:
        # The import system sets each package that it has loaded, whoever asked for it.
        if isinstance(value, ModuleType) and _HOMES.get(name) == value.__name__:
            value.__class__ = _Room
        super().__setattr__(name, value)


sys.modules[__name__].__class__ = _Package


def __getattr__(name: str) -> object:
    """Load a public name from where it lives."""
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    home = importlib.import_module(_HOMES[name])
    found: object = home if home.__name__ == f"{__name__}.{name}" else getattr(home, name)
    globals()[name] = found
    return found


def __dir__() -> list[str]:
    """Public names, loaded or not."""
    return __all__
