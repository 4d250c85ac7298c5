"""What each part of a difference says: one sentence from the figures of both sides."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any

from dlprof.advise.compare.parts import PartCode
from dlprof.advise.wording import percent
from dlprof.units import format_bytes, format_duration

Figures = Mapping[str, Any]

_SLOWED = 0.1
"""Share of the cores that neighbours take on one side more than on the other from which a sample's
CPU time may be theirs too."""


def _seconds(a: Figures, b: Figures, name: str) -> tuple[str, str]:
    return format_duration(a.get(name)), format_duration(b.get(name))


def _cpu(a: Figures, b: Figures) -> str:
    one, two = _seconds(a, b, "cpu_s_per_sample")
    text = f"A sample takes {one} of CPU time in A and {two} in B"
    if abs(_taken(a) - _taken(b)) >= _SLOWED:
        text += (
            "; of that, neighbours on the same cores may be a part: they share caches,"
            " hyper-threads and clock rate"
        )
    return text + "."


def _taken(side: Figures) -> float:
    """Share of the usable cores that neighbours keep busy."""
    others, usable = side.get("other_cpu_cores"), side.get("usable_cores")
    return others / usable if others is not None and usable else 0.0


def _cores(a: Figures, b: Figures) -> str:
    return f"The job may run on {a['affinity_cpus']} CPUs in A and on {b['affinity_cpus']} in B."


def _quota(a: Figures, b: Figures) -> str:
    return f"{_one_quota(a)} in A, and {_one_quota(b)} in B."


def _one_quota(side: Figures) -> str:
    quota, held = side["quota_cores"], side["throttled_fraction"]
    if quota is None:
        return "no quota"
    text = f"a quota of {quota:g} cores"
    return (
        text if held is None else f"{text}, which held the trial back {percent(held)} of the time"
    )


def _neighbours(a: Figures, b: Figures) -> str:
    return f"In A {_one_share(a)}; in B {_one_share(b)}."


def _one_share(side: Figures) -> str:
    available, waiting = side["available_cpu_cores"], side["run_queue_wait_fraction"]
    waited = (
        "" if waiting is None else f"its threads waited for a core {percent(waiting)} of the time"
    )
    if available is None:
        return waited or "nothing tells of the cores"
    had = f"{available:.1f} of {side['usable_cores']:g} usable cores were its own or idle"
    return f"{waited}, and {had}" if waited else had


def _storage(a: Figures, b: Figures) -> str:
    one, two = _seconds(a, b, "io_s_per_sample")
    text = f"A sample waits {one} for its data in A and {two} in B"
    hits = [side["cache_hit_fraction"] for side in (a, b)]
    if None not in hits:
        text += f"; {percent(hits[0])} and {percent(hits[1])} came from the page cache"
    reads = [side["read_bytes_per_s"] for side in (a, b)]
    if all(reads):
        text += (
            f", the rest from storage at {format_bytes(reads[0])}/s and {format_bytes(reads[1])}/s"
        )
    return text + "."


def _receive(a: Figures, b: Figures) -> str:
    one, two = _seconds(a, b, "receive_s_per_sample")
    text = f"Receiving takes the main process {one} a sample in A and {two} in B"
    if a["pin_s_per_sample"] or b["pin_s_per_sample"]:
        text += "; pinning, {} and {}".format(*_seconds(a, b, "pin_s_per_sample"))
    return text + "."


def _copy(a: Figures, b: Figures) -> str:
    return "Copying to the device takes {} a sample in A and {} in B.".format(
        *_seconds(a, b, "copy_s_per_sample")
    )


def _step(a: Figures, b: Figures) -> str:
    return "The training step takes {} a sample in A and {} in B.".format(
        *_seconds(a, b, "step_s_per_sample")
    )


def _settings(a: Figures, b: Figures) -> str:
    return f"A ran with {a['settings']}, B with {b['settings']}."


WORDS: Mapping[PartCode, tuple[Callable[[Figures, Figures], str], tuple[str, ...]]]
WORDS = MappingProxyType(
    {
        "cpu": (_cpu, ("cpu_s_per_sample", "own_cpu_cores")),
        "cores": (_cores, ("affinity_cpus", "logical_cpus", "own_cpu_cores")),
        "quota": (_quota, ("quota_cores", "usable_cores", "throttled_fraction")),
        "neighbours": (
            _neighbours,
            (
                "available_cpu_cores",
                "usable_cores",
                "other_cpu_cores",
                "run_queue_wait_fraction",
            ),
        ),
        "storage": (
            _storage,
            ("io_s_per_sample", "io_from", "cache_hit_fraction", "read_bytes_per_s"),
        ),
        "receive": (_receive, ("receive_s_per_sample", "pin_s_per_sample")),
        "copy": (_copy, ("copy_s_per_sample",)),
        "step": (_step, ("step_s_per_sample", "wait_fraction")),
        "settings": (_settings, ("settings",)),
        "remainder": (lambda _a, _b: "What the figures of the runs don't explain.", ()),
    }
)
"""By part: its figures of both sides in a sentence, and the names of those that show it."""
