"""A readable key for a kind of machine and job allotment: equal where settings carry over."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Sequence

from dlprof.records import GpuInfo

_GIB = 1 << 30
_NOISE = re.compile(r"\((?:r|tm|c)\)|\bcpu\b|\bprocessor\b|\b\d+-core\b|@", re.IGNORECASE)


def fingerprint(
    *,
    cpu_model: str,
    usable_cores: float,
    logical_cpus: int,
    memory_bytes: int | None,
    gpus: Sequence[GpuInfo],
) -> str:
    """A key such as ``intel-xeon-2.50ghz-2c-24g-0gpu-1a2b3c4d``.

    The same after a reboot, whatever the clock rates and the free memory: it is made of names and
    sizes only, and the memory is rounded to a size that machines are sold with.

    Args:
        cpu_model: As the system names it.
        usable_cores: What the job may use.
        logical_cpus: What the machine has.
        memory_bytes: What the job may use.
        gpus: What NVML lists.
    """
    model = slug(cpu_model)
    memory = "" if memory_bytes is None else f"{installed_gib(memory_bytes):g}g"
    cards = sorted((gpu.name, _gib_or_zero(gpu.memory_bytes)) for gpu in gpus)
    facts = [model, round(usable_cores, 2), logical_cpus, memory, cards]
    digest = hashlib.sha256(json.dumps(facts).encode()).hexdigest()[:8]
    parts = [model, f"{round(usable_cores, 2):g}c", memory, f"{len(gpus)}gpu", digest]
    return "-".join(part for part in parts if part)


def slug(name: str) -> str:
    """A name in lower-case letters, digits, dots and single dashes.

    >>> slug("Intel(R) Core(TM) i9-9900K CPU @ 3.60GHz")
    'intel-core-i9-9900k-3.60ghz'
    """
    words = re.findall(r"[a-z0-9.]+", _NOISE.sub(" ", name).lower())
    return "-".join(words) or "cpu"


def installed_gib(size_bytes: int) -> float:
    """The next size of 1, 1.5, 2, 3, 4, 6 ... GiB: the system shows a little less than is there.

    >>> installed_gib(62 * 2**30), installed_gib(377 * 2**30)
    (64.0, 384.0)
    """
    size = 1.0
    while size * _GIB < size_bytes:
        size = size * 1.5 if _is_power_of_two(size) else size / 1.5 * 2
    return size


def _is_power_of_two(size: float) -> bool:
    return size.is_integer() and int(size) & (int(size) - 1) == 0


def _gib_or_zero(size_bytes: int | None) -> float:
    return 0 if size_bytes is None else installed_gib(size_bytes)
