"""A card's link to the host: what it is right now, which only a running copy shows.

An idle link drops to generation 1 to save power: ask while it is busy.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

from dlprof.machine.nvml import Nvml
from dlprof.records.machine import link_bytes_per_s
from dlprof.records.transfer import LinkState

_OPENING_S = 20.0
"""A driver without its daemon wakes each card of the machine in a second or two."""

_PATIENCE_S = 2.0
_QUESTIONS = {
    "generation": "nvmlDeviceGetCurrPcieLinkGeneration",
    "width": "nvmlDeviceGetCurrPcieLinkWidth",
    "max_generation": "nvmlDeviceGetMaxPcieLinkGeneration",
    "max_width": "nvmlDeviceGetMaxPcieLinkWidth",
}


def read_link(
    uuid: str,
    meanwhile: Callable[[], object] = lambda: None,
    nvml: Any = None,
    *,
    opening_s: float = _OPENING_S,
    patience_s: float = _PATIENCE_S,
) -> LinkState:
    """The link of one card while it does something; whatever can't be had has a reason.

    Args:
        uuid: NVML's of the card.
        meanwhile: Makes the card busy, once NVML has been loaded and knows it: that may take longer
            than the card can be kept busy. Not called where NVML hasn't.
        nvml: The bindings; the module ``pynvml`` of nvidia-ml-py for ``None``.
        opening_s: Loading it is not waited for longer.
        patience_s: A sick driver's call is not waited for longer.
    """
    found: list[LinkState] = []
    ready, busy = threading.Event(), threading.Event()

    def know() -> None:
        ready.set()
        busy.wait()

    def ask() -> None:
        found.append(_ask(uuid, Nvml(nvml), know))
        ready.set()  # also where there was nothing to know

    asking = threading.Thread(target=ask, daemon=True)
    asking.start()
    is_ready = ready.wait(opening_s)
    try:
        if is_ready and not found:
            meanwhile()
    finally:
        busy.set()
    asking.join(patience_s if is_ready else 0.0)
    return found[0] if found else _without("NVML did not answer in time")


def _ask(uuid: str, nvml: Nvml, know: Callable[[], object]) -> LinkState:
    if not uuid:
        return _without("torch doesn't report by which UUID NVML knows this device")
    why = nvml.open()
    if why is not None:
        return _without(why)
    try:
        reasons: dict[str, str] = {}
        handle = nvml.ask(reasons, "card", "nvmlDeviceGetHandleByUUID", uuid)
        if handle is None:
            return _without(reasons["card"])
        know()
        return _read(nvml, handle)
    finally:
        nvml.close()


def _read(nvml: Nvml, handle: Any) -> LinkState:
    reasons: dict[str, str] = {}
    found: dict[str, int | None] = {
        field: nvml.ask(reasons, field, function, handle) for field, function in _QUESTIONS.items()
    }
    theory = link_bytes_per_s(found["generation"], found["width"])
    if theory is None:
        reasons["theory_bytes_per_s"] = "the link's generation or width is not known"
    return LinkState(
        generation=found["generation"],
        width=found["width"],
        max_generation=found["max_generation"],
        max_width=found["max_width"],
        theory_bytes_per_s=theory,
        unavailable=reasons,
    )


def _without(reason: str) -> LinkState:
    fields = (*_QUESTIONS, "theory_bytes_per_s")
    return LinkState(unavailable=dict.fromkeys(fields, reason))
