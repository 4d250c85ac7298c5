"""The table of options, from which flags, environment variables and configuration keys follow."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Mapping
from typing import Any

from dlprof.errors import UsageError
from dlprof.settings import kinds
from dlprof.settings.kinds import Kind

SEARCH_SPACE = "Search space (4, or 0,2,4, or 0:16:2; on, off or both; auto)"
ONE_CONFIGURATION = "Configuration (default: the target's own, else PyTorch's)"
DATA = "Data and consumer"
BUDGET = "Budget"
LIMITS = "Limits"
ELSEWHERE_PANEL = "Elsewhere"
_VERDICT = "Verdict"


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Option:
    """One option."""

    key: str  # its name in configuration files; the flag and the environment variable follow
    field: str  # its field in ``SweepSettings``
    kind: Kind  # what its value may be
    # The word that stands for ``None``, which undoes what a file has set; ``None`` where the option
    # always has a value.
    unset: str | None = None
    text: str  # what it does, one line
    default: str = ""  # what holds where it is not given, in words; empty where ``text`` says it
    metavar: str = ""  # what stands for its value in the help; empty for that of its kind
    panel: str = DATA  # the heading that it stands under in the help
    aliases: tuple[str, ...] = ()  # earlier flags, which work and are not shown

    @property
    def flag(self) -> str:
        """The command line's name for it."""
        return "TARGET" if self.key == "target" else "--" + self.key.replace("_", "-")

    @property
    def environment(self) -> str:
        """The environment's name for it."""
        return ENVIRONMENT_PREFIX + self.key.upper()

    def read(self, raw: object, origin: str) -> Any:
        """The value for the field."""
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


def _data(key: str, kind: Kind, text: str, default: str = "", **more: Any) -> Option:
    named = {"field": key + kind.unit, "panel": DATA, **more}
    return Option(key=key, kind=kind, text=text, default=default, **named)


_swept = functools.partial(_data, unset="auto", panel=SEARCH_SPACE)
_budget = functools.partial(_data, panel=BUDGET)
_limit = functools.partial(_data, unset="none", panel=LIMITS)
_place = functools.partial(_data, panel=ELSEWHERE_PANEL)
_verdict = functools.partial(_data, panel=_VERDICT)

OPTIONS = (
    _data(
        "target",
        kinds.text(  # whether it is there is found out where it is loaded
            ".+",
            "a target",
            "images, package.module:attr, path/to/file.py:attr or another built-in name",
            "TARGET",
        ),
        "package.module:attr, path/to/file.py:attr, or a built-in dataset: images (the "
        "default), voc, shards, text, synthetic, dlio:FILE.yaml.",
    ),
    _data(
        "arg",
        kinds.arguments(),
        "Pass an argument to the target's callable; may be repeated.",
        field="arguments",
    ),
    _swept("num_workers", kinds.integers(0, 4096), "Worker processes."),
    _swept("prefetch_factor", kinds.integers(1, 4096), "Batches sent ahead per worker."),
    _swept("pin_memory", kinds.switches(), "Copy batches to page-locked memory."),
    _swept("persistent_workers", kinds.switches(), "Keep workers between epochs."),
    _swept("batch_size", kinds.integers(1, 1_000_000), "Samples per batch.", "the target's own"),
    _swept(
        "in_order", kinds.switches(), "Yield batches in the sampler's order.", "the target's own"
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
    _data(
        "shuffle",
        kinds.switch(),
        "Shuffle a dataset that brings no sampler.",
        "the target's own",
        unset="auto",
    ),
    _data(
        "step_time",
        kinds.step(1e-6, 3600.0, "12ms or 0.5s"),
        "Pretend that each training step takes this long: 12ms, or normal:50ms,5ms.",
        field="step_s",
        unset="none",
    ),
    _data(
        "step",
        kinds.text(  # with a letter for the drive, so that C:\\data\\steps.py:run is understood
            r"(?:[A-Za-z]:)?[^:]+:[A-Za-z_][\w.]*",
            "the name of a function",
            "module:function or path/to/file.py:function",
            "MODULE:FUNCTION",
        ),
        "Call this function with each batch as the training step.",
        field="step_callable",
        unset="none",
    ),
    _data(
        "device",
        kinds.text(
            "auto|cpu|(?:cuda|xpu|mps|mtia|hpu|npu)(?::[0-9]{1,4})?",
            "a device",
            "auto, cpu, or an accelerator such as cuda, cuda:0 or mps",
            "DEVICE",
        ),
        "auto, cpu, or a device such as cuda:0.",
        "auto",
    ),
    _data(
        "copy_ahead",
        kinds.switch(),
        "Copy a batch to the device while the one before is worked on.",
        "off",
    ),
    _data(
        "step_on",
        kinds.name("host", "device"),
        "Where --step-time passes: the host sleeps, or the device computes.",
        "host",
    ),
    _budget(
        "budget",
        kinds.duration(1.0, 7 * 86400.0, "60s or 1.5h"),
        "How long the whole sweep may take.",
        "45s",
    ),
    _budget(
        "trial_time",
        kinds.duration(0.05, 3600.0, "500ms or 2s"),
        "Measured window of one trial.",
        "from the budget",
        field="trial_s",
        unset="auto",
    ),
    _budget(
        "repeats",
        kinds.whole(1, 1000),
        "Measure each configuration N times.",
        "as the budget allows",
        unset="auto",
    ),
    _budget(
        "search",
        kinds.name("auto", "model", "grid"),
        "Measure all configurations (grid), or predict all and measure few (model).",
        "auto, the model where it can",
    ),
    _budget("seed", kinds.whole(0, 2**32 - 1), "Seed of the order of measuring.", "0"),
    _budget(
        "timeout",
        kinds.duration(1.0, 86400.0, "60s or 5m"),
        "End a trial that takes longer.",
        "120s",
    ),
    _limit("max_workers", kinds.whole(0, 4096), "At most N workers."),
    _limit("max_ram", kinds.size(1024**2, 1024**5), "Memory that loading may take, such as 16GiB."),
    _limit("max_shm", kinds.size(0, 1024**5), "Shared memory (/dev/shm) that loading may take."),
    _limit(
        "ranks",
        kinds.whole(1, 4096),
        "Training processes assumed to share the machine; sweep --launch-ranks measures them.",
        "1",
        unset=None,
    ),
    _limit(
        "make_load",
        kinds.load(),
        "Keep the machine busy in trials: cores=12, memory=10GB/s, reads=500MB/s.",
    ),
    _data(
        "launch_ranks",
        kinds.integers(1, 256),
        "Ranks that load at once, each its share: 2, or 1,2,4.",
        "one, or torchrun's",
        unset="none",
    ),
    _data(
        "step_barrier",
        kinds.switch(),
        "Launched ranks pass each step together, as under DDP.",
        "off",
    ),
    _data(
        "au",
        kinds.share(),
        "How many emulated accelerators keep this utilization, such as 90%?",
        unset="none",
    ),
    _budget(
        "cold_cache", kinds.switch(), "Drop the data's files from the page cache before each trial."
    ),
)
"""Of a sweep, in the order in which ``print_config`` writes them."""

_ASKED = (
    _place(
        "cores", kinds.number(0.01, 100_000, "8"), "Cores for all ranks together.", "the machine's"
    ),
    _place(
        "assume_background",
        kinds.number(0, 100_000, "12"),
        "Cores that other processes want.",
        field="neighbours",
        metavar="CORES",
        aliases=("--neighbours",),
    ),
    _place(
        "speed",
        kinds.number(0.01, 100, "0.8"),
        "Speed of a core relative to the measured machine, such as 0.8.",
        "by CPU model and clock",
        metavar="X",
    ),
    _place(
        "nodes", kinds.whole(1, 10_000), "Machines like this one, with as many ranks on each.", "1"
    ),
    _place(
        "storage_limit",
        kinds.rate(),
        "What the storage gives to all ranks of all nodes together, such as 2GB/s.",
        field="storage_bytes_per_s",
    ),
    _data(
        "max_wait",
        kinds.share(),
        "Share of time that a step that is fed may wait.",
        "2%",
        panel="Feeding a step",
    ),
    _verdict(
        "fail_above", kinds.percent(0.001, 10.0, "5%"), "How much slower loading may get.", "5%"
    ),
    _verdict(
        "confidence",
        kinds.percent(0.5, 0.99999, "99%"),
        "How surely code that is slower by just that doesn't fail.",
        "99",
    ),
    _verdict(
        "inconclusive", kinds.name("warn", "fail"), "What an inconclusive check ends with.", "warn"
    ),
    _verdict(
        "regression",
        kinds.name("fail", "warn"),
        "What to make of a regression.",
        "fail; with --baseline: warn",
    ),
    _verdict(
        "pin", kinds.switch(), "Hold both sides to the same cores, one after another.", "--pin"
    ),
    _verdict(
        "allow_regression",
        kinds.text(".+", "a reason", "a text that says why; it is kept", "REASON"),
        "Let a failure pass; the reason is recorded.",
    ),
)
"""Of questions about a saved run, and of checks; no file and no variable sets them."""

SWEPT = tuple(option.key for option in OPTIONS if option.panel == SEARCH_SPACE)
PLACE = ("cores", "assume_background", "speed", "nodes")
"""What describes a place that was not measured, beside its machine."""
LIMITED = ("max_workers", "max_ram", "max_shm", "ranks")
"""What a recommendation keeps to, beside the step."""
PREDICTED = ("num_workers", "prefetch_factor", "pin_memory", "in_order", "sharing_strategy")
"""Settings that a prediction may be asked for."""
CHECKED = tuple(option.key for option in _ASKED if option.panel == _VERDICT)
"""What a check's verdict follows from."""


@functools.cache
def by_key() -> Mapping[str, Option]:
    """The options under their configuration keys."""
    return {option.key: option for option in OPTIONS}


def option_named(key: str) -> Option:
    """The option of that key, of whatever command."""
    return by_key().get(key) or next(each for each in _ASKED if each.key == key)


def parse_option(key: str, raw: object, origin: str | None = None) -> Any:
    """The value of one option, for commands that take some of a sweep's options and their own."""
    option = option_named(key)
    return option.read(raw, option.flag if origin is None else origin)


def fields_of(given: Mapping[str, object | None], *keys: str) -> dict[str, Any]:
    """The values of options under the names of their fields, as far as they are given."""
    return {
        option_named(key).field: parse_option(key, given[key])
        for key in keys
        if given.get(key) is not None
    }
