"""NVML asked so that nothing raises: each answer, or the reason that there is none."""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from typing import Any


class Nvml:
    """NVIDIA's management library by its Python bindings, ``nvidia-ml-py``.

    Args:
        bindings: The module; ``pynvml`` for ``None``.
    """

    def __init__(self, bindings: Any = None) -> None:
        self._bindings = bindings
        self._faults: tuple[type[Exception], ...] = ()
        self._open = False

    def open(self) -> str | None:
        """Load the library and start it.

        Returns:
            Why it can't be had; ``None`` where it can.
        """
        if self._bindings is None:
            try:
                self._bindings = importlib.import_module("pynvml")
            except ImportError:
                return "nvidia-ml-py is not installed"
        # A mismatch of library and driver is an exception of its own, outside NVMLError.
        named = (getattr(self._bindings, name, None) for name in _FAULTS)
        self._faults = (OSError, AttributeError, *(fault for fault in named if fault))
        try:
            self._bindings.nvmlInit()
        except self._faults as fault:
            return explain(fault)
        self._open = True
        return None

    def close(self) -> None:
        """Shut the library down, once; nothing may be asked afterwards."""
        if self._open:
            self.ask({}, "close", "nvmlShutdown")
        self._open = False

    def ask(self, reasons: dict[str, str], field: str, function: str, *arguments: Any) -> Any:
        """The answer of one function, or ``None`` and the reason under ``field``."""
        return self.ask_first(reasons, field, (function,), *arguments)

    def ask_first(
        self, reasons: dict[str, str], field: str, functions: Sequence[str], *arguments: Any
    ) -> Any:
        """The answer of the first function that both driver and bindings have.

        Args:
            reasons: Takes the reason of the first where none answers.
            field: Its key there.
            functions: Names for the same thing, the present one first.
            arguments: For whichever it is.
        """
        why = ""
        for function in functions:
            try:
                return getattr(self._bindings, function)(*arguments)
            except self._faults as fault:
                why = why or explain(fault)
        reasons[field] = why
        return None

    def constant(self, name: str) -> Any:
        """A constant or type of the bindings; ``None`` where they are too old to have it."""
        return getattr(self._bindings, name, None)


_FAULTS = ("NVMLError", "NVMLLibraryMismatchError")

# What NVML's own words leave open, by the names of its exceptions.
_EXPLANATIONS = {
    "NVMLError_LibraryNotFound": "no NVIDIA driver is installed (libnvidia-ml.so.1 is missing)",
    "NVMLError_DriverNotLoaded": "the NVIDIA driver is not loaded",
    "NVMLError_NotSupported": "this card or its mode doesn't report it (NVML: not supported)",
    "NVMLError_NoPermission": "this user has no permission (NVML)",
    "NVMLError_FunctionNotFound": "the driver is too old to report it",
    "NVMLError_GpuIsLost": "the card has dropped off the bus (NVML: GPU is lost)",
    "NVMLLibraryMismatchError": "the versions of nvidia-ml-py and of the driver don't match",
}


def explain(fault: Exception) -> str:
    """What a fault of the bindings means, in a few words."""
    kind = type(fault).__name__
    if isinstance(fault, AttributeError):
        return "nvidia-ml-py is too old for this query"
    return _EXPLANATIONS.get(kind) or f"NVML: {str(fault) or kind}"


def text_of(value: str | bytes | None) -> str:
    """Text of NVML's, which versions of the bindings before 11.5 gave as bytes."""
    if value is None:
        return ""
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else value
