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


SEARCH_SPACE = "Search space (4, or 0,2,4, or 0:16:2; on, off or both; auto)"
ONE_CONFIGURATION = "Configuration (default: the target's own, else PyTorch's)"
DATA = "Data and consumer"
BUDGET = "Budget"
LIMITS = "Limits"
ELSEWHERE_PANEL = "Elsewhere"


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
        default: What holds where it is not given, in words; empty where ``text`` says it.
        metavar: What stands for its value in the help; empty for that of its kind.
        panel: The heading that it stands under in the help.
        aliases: Earlier flags, which work and are not shown.
    """

    key: str
    field: str
    kind: Kind
    unset: str | None = None
    text: str
    default: str = ""
    metavar: str = ""
    panel: str = DATA
    aliases: tuple[str, ...] = ()

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


def _swept(key: str, kind: Kind, text: str, default: str = "") -> Option:
    return Option(
        key=key,
        field=key,
        kind=kind,
        unset="auto",
        text=text,
        default=default,
        panel=SEARCH_SPACE,
    )


OPTIONS = (
    Option(
        key="target",
        field="target",
        kind=kinds.target(),
        text="package.module:attr, path/to/file.py:attr, or a built-in dataset: images (the "
        "default), voc, shards, text, synthetic.",
    ),
    Option(
        key="arg",
        field="arguments",
        kind=kinds.arguments(),
        text="Pass an argument to the target's callable; may be repeated.",
    ),
    _swept("num_workers", kinds.integers(0, 4096), "Worker processes."),
    _swept("prefetch_factor", kinds.integers(1, 4096), "Batches sent ahead per worker."),
    _swept("pin_memory", kinds.switches(), "Copy batches to page-locked memory."),
    _swept("persistent_workers", kinds.switches(), "Keep workers between epochs."),
    _swept("batch_size", kinds.integers(1, 1_000_000), "Samples per batch.", "the target's own"),
    _swept(
        "in_order",
        kinds.switches(),
        "Yield batches in the sampler's order.",
        "the target's own",
    ),
    _swept(
        "start_method",
        kinds.names("fork", "spawn", "forkserver"),
        "How workers start: fork, spawn or forkserver.",
        "the target's own",
    ),
    _swept(
        "sharing_strategy",
        kinds.names("file_descriptor", "file_system"),
        "How batches are shared: file_descriptor or file_system.",
        "torch's own",
    ),
    _swept(
        "worker_threads",
        kinds.integers(1, 1024),
        "Compute threads inside each worker.",
        "torch's 1",
    ),
    Option(
        key="shuffle",
        field="shuffle",
        kind=kinds.switch(),
        unset="auto",
        text="Shuffle a dataset that brings no sampler.",
        default="the target's own",
    ),
    Option(
        key="step_time",
        field="step_s",
        kind=kinds.duration(1e-6, 3600.0, "12ms or 0.5s"),
        unset="none",
        text="Pretend that each training step takes this long, such as 12ms.",
    ),
    Option(
        key="step",
        field="step_callable",
        kind=kinds.function(),
        unset="none",
        text="Call this function with each batch as the training step.",
    ),
    Option(
        key="device",
        field="device",
        kind=kinds.device(),
        text="auto, cpu, or a device such as cuda:0.",
        default="auto",
    ),
    Option(
        key="copy_ahead",
        field="copy_ahead",
        kind=kinds.switch(),
        text="Copy a batch to the device while the one before is worked on.",
        default="off",
    ),
    Option(
        key="step_on",
        field="step_on",
        kind=kinds.name("host", "device"),
        text="Where --step-time passes: the host sleeps, or the device computes.",
        default="host",
    ),
    Option(
        key="budget",
        field="budget_s",
        kind=kinds.duration(1.0, 7 * _DAY, "60s or 1.5h"),
        text="How long the whole sweep may take.",
        default="45s",
        panel=BUDGET,
    ),
    Option(
        key="trial_time",
        field="trial_s",
        kind=kinds.duration(0.05, 3600.0, "500ms or 2s"),
        unset="auto",
        text="Measured window of one trial.",
        default="from the budget",
        panel=BUDGET,
    ),
    Option(
        key="repeats",
        field="repeats",
        kind=kinds.whole(1, 1000),
        unset="auto",
        text="Measure each configuration N times.",
        default="as the budget allows",
        panel=BUDGET,
    ),
    Option(
        key="search",
        field="search",
        kind=kinds.name("auto", "model", "grid"),
        text="Measure all configurations (grid), or predict all and measure few (model).",
        default="auto, the model where it can",
        panel=BUDGET,
    ),
    Option(
        key="seed",
        field="seed",
        kind=kinds.whole(0, 2**32 - 1),
        text="Seed of the order of measuring.",
        default="0",
        panel=BUDGET,
    ),
    Option(
        key="timeout",
        field="timeout_s",
        kind=kinds.duration(1.0, _DAY, "60s or 5m"),
        text="End a trial that takes longer.",
        default="120s",
        panel=BUDGET,
    ),
    Option(
        key="max_workers",
        field="max_workers",
        kind=kinds.whole(0, 4096),
        unset="none",
        text="At most N workers.",
        panel=LIMITS,
    ),
    Option(
        key="max_ram",
        field="max_ram_bytes",
        kind=kinds.size(1024**2, 1024 * 1024 * _GIB),
        unset="none",
        text="Memory that loading may take, such as 16GiB.",
        panel=LIMITS,
    ),
    Option(
        key="max_shm",
        field="max_shm_bytes",
        kind=kinds.size(0, 1024 * 1024 * _GIB),
        unset="none",
        text="Shared memory (/dev/shm) that loading may take.",
        panel=LIMITS,
    ),
    Option(
        key="ranks",
        field="ranks",
        kind=kinds.whole(1, 4096),
        text="Training processes that share the machine, one loader each.",
        default="1",
        panel=LIMITS,
    ),
    Option(
        key="cold_cache",
        field="cold_cache",
        kind=kinds.switch(),
        text="Drop the data's files from the page cache before each trial.",
        panel=BUDGET,
    ),
)
"""In the order in which ``print_config`` writes them."""

ELSEWHERE = (
    Option(
        key="cores",
        field="cores",
        kind=kinds.number(0.01, 100_000, "8"),
        text="Cores for all ranks together.",
        default="the machine's",
        panel=ELSEWHERE_PANEL,
    ),
    Option(
        key="assume_background",
        field="neighbours",
        kind=kinds.number(0, 100_000, "12"),
        text="Cores that other processes keep busy.",
        metavar="CORES",
        panel=ELSEWHERE_PANEL,
        aliases=("--neighbours",),
    ),
    Option(
        key="speed",
        field="speed",
        kind=kinds.number(0.01, 100, "0.8"),
        text="Speed of a core relative to the measured machine, such as 0.8.",
        default="by CPU model and clock",
        metavar="X",
        panel=ELSEWHERE_PANEL,
    ),
    Option(
        key="storage_limit",
        field="storage_bytes_per_s",
        kind=kinds.rate(),
        text="What the storage gives to all ranks together, such as 2GB/s.",
        panel=ELSEWHERE_PANEL,
    ),
    Option(
        key="max_wait",
        field="max_wait",
        kind=kinds.share(),
        text="Share of time that a step that is fed may wait.",
        default="2%",
        panel="Feeding a step",
    ),
)
"""Of questions about a place that was not measured; no file and no variable sets them."""


@functools.cache
def by_key() -> Mapping[str, Option]:
    """The options under their configuration keys."""
    return MappingProxyType({option.key: option for option in OPTIONS})


def option_named(key: str) -> Option:
    """The option of that key, of a sweep or of a place that was not measured."""
    return by_key().get(key) or next(each for each in ELSEWHERE if each.key == key)


def parse_option(key: str, raw: object, origin: str | None = None) -> Any:
    """The value of one option, for commands that take some of a sweep's options and their own.

    Args:
        key: The option's name, such as ``max_ram`` or ``cores``.
        raw: A text, or a natural TOML or Python value.
        origin: Where it was given; the flag where this is ``None``.

    Raises:
        UsageError: Names the origin and the value, and says what is allowed.
    """
    option = option_named(key)
    return option.read(raw, option.flag if origin is None else origin)
