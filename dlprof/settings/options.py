"""The table of options, from which flags, environment variables and configuration keys follow."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from dlprof.errors import UsageError
from dlprof.settings import kinds
from dlprof.settings.kinds import Kind

_DAY = 86400.0
_GIB = 1024**3


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Option:
    """One option of a sweep.

    Attributes:
        key: Its name in configuration files; the flag and the environment variable follow.
        field: Its field in ``SweepSettings``.
        kind: What its value may be.
        unset: The word that stands for ``None``, which undoes what a file has set; ``None``
            where the option always has a value.
        text: What it does, one line.
    """

    key: str
    field: str
    kind: Kind
    unset: str | None = None
    text: str

    @property
    def flag(self) -> str:
        """The command line's name for it."""
        return "TARGET" if self.key == "target" else "--" + self.key.replace("_", "-")

    @property
    def environment(self) -> str:
        """The environment's name for it."""
        return ENVIRONMENT_PREFIX + self.key.upper()

    def read(self, raw: object, origin: str) -> Any:
        """The value for the field.

        Args:
            raw: A text, or a natural TOML or Python value.
            origin: Where it was given, for the error: a flag, a variable, a key of a file.

        Raises:
            UsageError: Names the origin and the value, and says what is allowed.
        """
        if self.unset and isinstance(raw, str) and raw.strip().lower() == self.unset:
            return None
        try:
            return self.kind.read(raw)
        except UsageError as error:
            also = f", or {self.unset}" if self.unset else ""
            raise UsageError(
                f"{origin}: {error.message}", hint=f"{self.key} takes {self.kind.allowed}{also}."
            ) from None


ENVIRONMENT_PREFIX = "DLPROF_"


def _swept(key: str, kind: Kind, text: str) -> Option:
    return Option(key=key, field=key, kind=kind, unset="auto", text=text)


OPTIONS = (
    Option(key="target", field="target", kind=kinds.target(), text="What is loaded."),
    Option(
        key="arg",
        field="arguments",
        kind=kinds.arguments(),
        text="Arguments for the target's callable.",
    ),
    _swept("num_workers", kinds.integers(0, 4096), "Worker processes to try."),
    _swept("prefetch_factor", kinds.integers(1, 4096), "Batches to send ahead per worker."),
    _swept("pin_memory", kinds.switches(), "Whether to copy batches to page-locked memory."),
    _swept("persistent_workers", kinds.switches(), "Whether to keep workers between epochs."),
    _swept("batch_size", kinds.integers(1, 1_000_000), "Samples per batch to try."),
    _swept("in_order", kinds.switches(), "Whether to yield batches in the sampler's order."),
    _swept(
        "start_method",
        kinds.names("fork", "spawn", "forkserver"),
        "How worker processes are started.",
    ),
    _swept(
        "sharing_strategy",
        kinds.names("file_descriptor", "file_system"),
        "How batches travel through shared memory.",
    ),
    _swept("worker_threads", kinds.integers(1, 1024), "Compute threads inside each worker."),
    Option(
        key="shuffle",
        field="shuffle",
        kind=kinds.switch(),
        unset="auto",
        text="Whether to shuffle a dataset that brings no sampler.",
    ),
    Option(
        key="step_time",
        field="step_s",
        kind=kinds.duration(1e-6, 3600.0, "12ms or 0.5s"),
        unset="none",
        text="Length of a training step to pretend; bare numbers are seconds.",
    ),
    Option(
        key="step",
        field="step_callable",
        kind=kinds.function(),
        unset="none",
        text="Function to call with each batch as the training step.",
    ),
    Option(key="device", field="device", kind=kinds.device(), text="Where batches are copied to."),
    Option(
        key="copy_ahead",
        field="copy_ahead",
        kind=kinds.switch(),
        text="Whether batches are copied to the device while the one before is worked on.",
    ),
    Option(
        key="step_on",
        field="step_on",
        kind=kinds.name("host", "device"),
        text="Where step_time passes: the host sleeps, or the device computes.",
    ),
    Option(
        key="budget",
        field="budget_s",
        kind=kinds.duration(1.0, 7 * _DAY, "60s or 1.5h"),
        text="Wall time of the whole sweep; bare numbers are seconds.",
    ),
    Option(
        key="trial_time",
        field="trial_s",
        kind=kinds.duration(0.05, 3600.0, "500ms or 2s"),
        unset="auto",
        text="Measured time of one trial; bare numbers are seconds.",
    ),
    Option(
        key="repeats",
        field="repeats",
        kind=kinds.whole(1, 1000),
        unset="auto",
        text="How often each configuration is measured.",
    ),
    Option(
        key="search",
        field="search",
        kind=kinds.name("auto", "model", "grid"),
        text="Whether all configurations are measured, or predicted and few of them measured.",
    ),
    Option(
        key="seed",
        field="seed",
        kind=kinds.whole(0, 2**32 - 1),
        text="Makes the order of trials and the target's random numbers repeatable.",
    ),
    Option(
        key="timeout",
        field="timeout_s",
        kind=kinds.duration(1.0, _DAY, "60s or 5m"),
        text="Longest wall time of one trial; bare numbers are seconds.",
    ),
    Option(
        key="max_workers",
        field="max_workers",
        kind=kinds.whole(0, 4096),
        unset="none",
        text="Most workers to try.",
    ),
    Option(
        key="max_ram",
        field="max_ram_bytes",
        kind=kinds.size(1024**2, 1024 * 1024 * _GIB),
        unset="none",
        text="Most memory that a trial may take; bare numbers are bytes.",
    ),
    Option(
        key="max_shm",
        field="max_shm_bytes",
        kind=kinds.size(0, 1024 * 1024 * _GIB),
        unset="none",
        text="Most shared memory that a trial may take; bare numbers are bytes.",
    ),
    Option(
        key="ranks",
        field="ranks",
        kind=kinds.whole(1, 4096),
        text="Training processes that will share the machine.",
    ),
    Option(
        key="cold_cache",
        field="cold_cache",
        kind=kinds.switch(),
        text="Whether to drop the target's files from the page cache before each trial.",
    ),
)
"""In the order in which ``print_config`` writes them."""

ELSEWHERE = (
    Option(
        key="cores",
        field="cores",
        kind=kinds.number(0.01, 100_000, "8"),
        text="Cores that all ranks may use together.",
    ),
    Option(
        key="assume_background",
        field="neighbours",
        kind=kinds.number(0, 100_000, "12"),
        text="Cores that other processes on the machine keep busy.",
    ),
    Option(
        key="speed",
        field="speed",
        kind=kinds.number(0.01, 100, "0.8"),
        text="Speed of a core relative to the measured machine's.",
    ),
    Option(
        key="storage_limit",
        field="storage_bytes_per_s",
        kind=kinds.rate(),
        text="What the storage gives to all ranks together; bare numbers are bytes a second.",
    ),
    Option(
        key="max_wait",
        field="max_wait",
        kind=kinds.share(),
        text="Share of time that a step which is fed may wait.",
    ),
)
"""Of questions about a place that was not measured; no file and no variable sets them."""


@functools.cache
def by_key() -> Mapping[str, Option]:
    """The options under their configuration keys."""
    return MappingProxyType({option.key: option for option in OPTIONS})


def parse_option(key: str, raw: object, origin: str | None = None) -> Any:
    """The value of one option, for commands that take some of a sweep's options and their own.

    Args:
        key: The option's name, such as ``max_ram`` or ``cores``.
        raw: A text, or a natural TOML or Python value.
        origin: Where it was given; the flag where this is ``None``.

    Raises:
        UsageError: Names the origin and the value, and says what is allowed.
    """
    option = by_key().get(key) or next(each for each in ELSEWHERE if each.key == key)
    return option.read(raw, option.flag if origin is None else origin)
