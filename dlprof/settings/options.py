"""The table of options, and the kinds of their values; flags, variables and keys follow from it."""

from __future__ import annotations

import dataclasses
import functools
import math
import re
import shlex
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from dlprof.errors import UsageError
from dlprof.units import (
    MAX_VALUES,
    STEP_FORMS,
    StepTime,
    format_bytes,
    format_duration,
    parse_bytes,
    parse_duration_s,
    parse_ints,
    parse_step,
    parse_switches,
    quoted,
)

_NUMBER = re.compile(r"\s*(?:[0-9]{1,9}(?:\.[0-9]{1,9})?|\.[0-9]{1,9})\s*")


@dataclasses.dataclass(frozen=True, slots=True)
class Kind:
    """What an option's value may be."""

    # Makes the value, or raises a ``UsageError`` that quotes what was given.
    read: Callable[[object], Any]
    allowed: str  # ends the sentence "this option takes ..."
    metavar: str  # what stands for the value in the help; empty for a switch, which takes none
    once: Kind | None = None  # of each value, where there may be several
    unit: str = ""  # what the name of the option's field ends with beside its key


def _wrong(raw: object, what: str) -> UsageError:
    return UsageError(f"{quoted(raw)} is not {what}")


def _several(one: Kind, parse: Callable[[str], Sequence[Any]], allowed: str, metavar: str) -> Kind:
    """Values to try: a text of them, one, or a list; without duplicates, in that order."""

    def read(raw: object) -> tuple[Any, ...]:
        values = parse(raw) if isinstance(raw, str) else raw
        checked = [
            one.read(each) for each in (values if isinstance(values, Sequence) else [values])
        ]
        if not checked:
            raise UsageError("an empty list leaves nothing to try")
        if len(checked) > MAX_VALUES:
            raise UsageError(f"{quoted(raw)} names more than {MAX_VALUES} values")
        return tuple(dict.fromkeys(checked))

    return Kind(read, allowed, metavar, one)


def integers(low: int, high: int) -> Kind:
    """Values to try: ``4``, ``0,2,4``, ``0:16:2``, or a list of numbers."""
    allowed = f"whole numbers from {low} to {high}, such as 4, 2,4,8 or 2:16:2"
    return _several(whole(low, high), parse_ints, allowed, "VALUES")


def switches() -> Kind:
    """Values to try: ``on``, ``off``, ``both``, or a boolean, or a list of booleans."""
    one = dataclasses.replace(switch(), metavar="on|off")
    return _several(one, parse_switches, "on, off or both", "SWITCH")


def names(*choices: str) -> Kind:
    """Values to try, out of a few: one, several with commas, or a list."""
    one = dataclasses.replace(name(*choices), metavar="NAME")
    allowed = f"{one.allowed}, or several of them with commas between"
    return _several(one, lambda raw: raw.split(","), allowed, "NAMES")


def name(*choices: str) -> Kind:
    """One out of a few."""

    def read(raw: object) -> str:
        if not isinstance(raw, str) or raw.strip() not in choices:
            raise _wrong(raw, "a choice here")
        return raw.strip()

    *others, last = choices
    return Kind(read, f"{', '.join(others)} or {last}", "|".join(choices))


def _amount(
    parse: Callable[[str], object],
    what: str,
    within: tuple[float, float],
    allowed: str,
    metavar: str,
    *,
    of: type[int | float] = float,
    beyond: str = "is out of range",
    unit: str = "",
) -> Kind:
    """One number within limits; what ``parse`` makes no number of a text is refused.

    Errors say ``what`` it should be, or that a number ``beyond`` the limits is none.
    """

    def read(raw: object) -> Any:
        value = parse(raw) if isinstance(raw, str) else raw
        plain = isinstance(value, int if of is int else int | float)
        if not plain or isinstance(value, bool) or value in {math.inf, -math.inf}:
            raise _wrong(raw, what)
        number: Any = value
        if not within[0] <= number <= within[1]:  # also where it is nan
            raise UsageError(f"{quoted(raw)} {beyond}")
        return of(number)

    return Kind(read, allowed, metavar, unit=unit)


def whole(low: int, high: int) -> Kind:
    """One whole number."""

    def parse(raw: str) -> object:
        return int(raw) if re.fullmatch(r"\s*[0-9]{1,15}\s*", raw) else raw

    allowed = f"a whole number from {low} to {high}"
    return _amount(parse, "a whole number", (low, high), allowed, "N", of=int)


def _number(raw: str) -> object:
    return float(raw) if _NUMBER.fullmatch(raw) else raw


def number(low: float, high: float, example: str) -> Kind:
    """One number, of which a part may count."""
    what = f"a number from {low:g} to {high:g}"
    allowed = f"{what}, such as {example}"
    return _amount(_number, what, (low, high), allowed, "N", beyond=f"is not {what}")


def share() -> Kind:
    """A share of a whole between 0 and 1: ``0.02``, or a text such as ``2%``."""

    def parse(raw: str) -> object:
        value = _number(raw.strip().removesuffix("%"))
        return value / 100 if isinstance(value, float) and raw.strip().endswith("%") else value

    within = math.nextafter(0, 1), math.nextafter(1, 0)
    allowed = "a share above 0 and below 1, such as 2% or 0.02"
    return _amount(parse, "a share", within, allowed, "SHARE", beyond="is not a share")


def percent(low: float, high: float, example: str) -> Kind:
    """A share of a whole that may be above 1: ``5%``, ``0.05``, or as a text also ``5``."""

    def read(raw: object) -> float:
        text = str(raw).strip()
        try:
            number = float(text.removesuffix("%"))
        except ValueError:
            raise _wrong(raw, "a share") from None
        if not isinstance(raw, str) and 1 <= number < math.inf:
            # As a text it is meant in percent; as a number it may be a fraction.
            raise UsageError(f"{quoted(raw)} may mean {number:g}% or {100 * number:g}%")
        value = number / 100 if text.endswith("%") or number >= 1 else number
        if not low <= value <= high:
            raise UsageError(f"{quoted(raw)} is out of range")
        return value

    limits = f"from {100 * low:.3g}% to {100 * high:.6g}%"
    return Kind(read, f"a share {limits}, such as '{example}'", "SHARE")


def rate() -> Kind:
    """Bytes a second, or a text such as ``2GB/s`` or ``2GBps``, whose end may be left out."""

    def parse(raw: str) -> float:
        return float(parse_bytes(raw.strip().removesuffix("/s").removesuffix("ps")))

    what = "a size a second above 0"
    within, allowed = (math.nextafter(0, 1), sys.float_info.max), f"{what}, such as 2GB/s"
    return _amount(parse, what, within, allowed, "SIZE/s", beyond=f"is not {what}")


def duration(low: float, high: float, example: str) -> Kind:
    """Seconds, or a text with a unit."""
    # A lower limit as it may be given: figures for people end at a hundredth of a millisecond.
    least = f"{low * 1e6:g} µs" if low < 1e-5 else format_duration(low)
    allowed = f"a duration from {least} to {format_duration(high)}, such as {example}"
    return _amount(parse_duration_s, "a duration", (low, high), allowed, "TIME", unit="_s")


def step(low: float, high: float, example: str) -> Kind:
    """Seconds, a text with a unit, or steps that differ, such as ``normal:50ms,5ms``."""
    plain = duration(low, high, example)

    def read(raw: object) -> float:
        value: object = raw
        if isinstance(raw, str):
            value = typed = parse_step(raw)
            if typed >= 10.0 and not raw.strip()[-1].isalpha():
                text = f"{quoted(raw)} could be seconds or milliseconds: give it a unit"
                raise UsageError(text)
        if not isinstance(value, StepTime):
            seconds: float = plain.read(value if isinstance(raw, str) and ":" in raw else raw)
            return seconds
        if not low <= value <= value * max(value.shape) <= high:
            raise UsageError(f"{quoted(raw)} is out of range")
        return value

    return Kind(read, f"{plain.allowed}, or steps that differ: {STEP_FORMS}", plain.metavar)


_LOADS = {"cores": number(0.01, 1024, "12"), "memory": rate(), "reads": rate()}


def load() -> Kind:
    """What keeps the machine busy: ``cores=12``, ``memory=10GB/s``, ``reads=500MB/s``."""

    def read(raw: object) -> Mapping[str, float]:
        parts = raw if isinstance(raw, Mapping) else arguments().read(str(raw).replace(",", " "))
        if not parts or not parts.keys() <= _LOADS.keys():
            raise _wrong(raw, "a load")
        return {name: _LOADS[name].read(value) for name, value in parts.items()}

    allowed = (
        "cores=12, memory=10GB/s and reads=500MB/s, those that are wanted, with commas between"
    )
    return Kind(read, allowed, "cores=N,...")


def size(low: int, high: int) -> Kind:
    """Bytes, or a text with a unit."""
    limits = f"from {format_bytes(low)} to {format_bytes(high)}"
    allowed = f"a size {limits}, such as 16GiB or 512MB"
    return _amount(parse_bytes, "a size", (low, high), allowed, "SIZE", of=int, unit="_bytes")


def switch() -> Kind:
    """One switch: ``on``, ``off`` or a boolean."""

    def read(raw: object) -> bool:
        values = parse_switches(raw) if isinstance(raw, str) else (raw,)
        if len(values) != 1 or not isinstance(values[0], bool):
            raise _wrong(raw, "on or off")
        return values[0]

    return Kind(read, "on or off", "")


def text(pattern: str, what: str, allowed: str, metavar: str) -> Kind:
    """A text that follows a pattern, without blanks around it."""

    def read(raw: object) -> str:
        if not isinstance(raw, str) or not re.fullmatch(pattern, raw.strip(), flags=re.DOTALL):
            raise _wrong(raw, what)
        return raw.strip()

    return Kind(read, allowed, metavar)


def arguments() -> Kind:
    """Arguments for the target's callable: ``key=value`` texts, or a table."""

    def read(raw: object) -> Mapping[str, str]:
        if isinstance(raw, Mapping):
            pairs = [(key, _argument(value)) for key, value in raw.items()]
        else:
            try:
                words = shlex.split(raw) if isinstance(raw, str) else raw
            except ValueError:
                raise UsageError(
                    f"{quoted(raw)} has a quotation mark without its partner"
                ) from None
            if not isinstance(words, Sequence):
                raise _wrong(raw, "a list of key=value")
            pairs = []
            for word in words:
                if not isinstance(word, str) or "=" not in word:
                    raise _wrong(word, "key=value")
                key, _, value = word.partition("=")
                pairs.append((key.strip(), value))
        read: dict[str, str] = {}
        for key, value in pairs:
            if not isinstance(key, str) or not key.isidentifier():
                raise _wrong(key, "the name of an argument")
            if key in read:
                raise UsageError(f"{quoted(key)} is given twice")
            read[key] = value
        return read

    return Kind(read, 'key=value, in TOML a table such as { root = "data" }', "KEY=VALUE")


def _argument(raw: object) -> str:
    """The text of a table's value, as it would have been typed after ``--arg key=``."""
    if isinstance(raw, float) and not math.isfinite(raw):
        raise _wrong(raw, "a finite number")
    if not isinstance(raw, str | int | float):
        raise _wrong(raw, "a text, a number or a switch")
    return str(raw)


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
        text(  # whether it is there is found out where it is loaded
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
        arguments(),
        "Pass an argument to the target's callable; may be repeated.",
        field="arguments",
    ),
    _swept("num_workers", integers(0, 4096), "Worker processes."),
    _swept("prefetch_factor", integers(1, 4096), "Batches sent ahead per worker."),
    _swept("pin_memory", switches(), "Copy batches to page-locked memory."),
    _swept("persistent_workers", switches(), "Keep workers between epochs."),
    _swept("batch_size", integers(1, 1_000_000), "Samples per batch.", "the target's own"),
    _swept("in_order", switches(), "Yield batches in the sampler's order.", "the target's own"),
    _swept(
        "start_method",
        names("fork", "spawn", "forkserver"),
        "How workers start: fork, spawn or forkserver.",
        "the target's own",
    ),
    _swept(
        "sharing_strategy",
        names("file_descriptor", "file_system"),
        "How batches are shared: file_descriptor or file_system.",
        "torch's own",
    ),
    _swept("worker_threads", integers(1, 1024), "Compute threads inside each worker.", "torch's 1"),
    _data(
        "shuffle",
        switch(),
        "Shuffle a dataset that brings no sampler.",
        "the target's own",
        unset="auto",
    ),
    _data(
        "step_time",
        step(1e-6, 3600.0, "12ms or 0.5s"),
        "Pretend that each training step takes this long: 12ms, or normal:50ms,5ms.",
        field="step_s",
        unset="none",
    ),
    _data(
        "step",
        text(  # with a letter for the drive, so that C:\\data\\steps.py:run is understood
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
        text(
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
        switch(),
        "Copy a batch to the device while the one before is worked on.",
        "off",
    ),
    _data(
        "step_on",
        name("host", "device"),
        "Where --step-time passes: the host sleeps, or the device computes.",
        "host",
    ),
    _budget(
        "budget",
        duration(1.0, 7 * 86400.0, "60s or 1.5h"),
        "How long the whole sweep may take.",
        "45s",
    ),
    _budget(
        "trial_time",
        duration(0.05, 3600.0, "500ms or 2s"),
        "Measured window of one trial.",
        "from the budget",
        field="trial_s",
        unset="auto",
    ),
    _budget(
        "repeats",
        whole(1, 1000),
        "Measure each configuration N times.",
        "as the budget allows",
        unset="auto",
    ),
    _budget(
        "search",
        name("auto", "model", "grid"),
        "Measure all configurations (grid), or predict all and measure few (model).",
        "auto, the model where it can",
    ),
    _budget("seed", whole(0, 2**32 - 1), "Seed of the order of measuring.", "0"),
    _budget(
        "timeout", duration(1.0, 86400.0, "60s or 5m"), "End a trial that takes longer.", "120s"
    ),
    _limit("max_workers", whole(0, 4096), "At most N workers."),
    _limit("max_ram", size(1024**2, 1024**5), "Memory that loading may take, such as 16GiB."),
    _limit("max_shm", size(0, 1024**5), "Shared memory (/dev/shm) that loading may take."),
    _limit(
        "ranks",
        whole(1, 4096),
        "Training processes assumed to share the machine; sweep --launch-ranks measures them.",
        "1",
        unset=None,
    ),
    _limit(
        "make_load",
        load(),
        "Keep the machine busy in trials: cores=12, memory=10GB/s, reads=500MB/s.",
    ),
    _data(
        "launch_ranks",
        integers(1, 256),
        "Ranks that load at once, each its share: 2, or 1,2,4.",
        "one, or torchrun's",
        unset="none",
    ),
    _data("step_barrier", switch(), "Launched ranks pass each step together, as under DDP.", "off"),
    _data(
        "au",
        share(),
        "How many emulated accelerators keep this utilization, such as 90%?",
        unset="none",
    ),
    _budget("cold_cache", switch(), "Drop the data's files from the page cache before each trial."),
)
"""Of a sweep, in the order in which ``print_config`` writes them."""

_ASKED = (
    _place("cores", number(0.01, 100_000, "8"), "Cores for all ranks together.", "the machine's"),
    _place(
        "assume_background",
        number(0, 100_000, "12"),
        "Cores that other processes want.",
        field="neighbours",
        metavar="CORES",
        aliases=("--neighbours",),
    ),
    _place(
        "speed",
        number(0.01, 100, "0.8"),
        "Speed of a core relative to the measured machine, such as 0.8.",
        "by CPU model and clock",
        metavar="X",
    ),
    _place("nodes", whole(1, 10_000), "Machines like this one, with as many ranks on each.", "1"),
    _place(
        "storage_limit",
        rate(),
        "What the storage gives to all ranks of all nodes together, such as 2GB/s.",
        field="storage_bytes_per_s",
    ),
    _data(
        "max_wait",
        share(),
        "Share of time that a step that is fed may wait.",
        "2%",
        panel="Feeding a step",
    ),
    _verdict("fail_above", percent(0.001, 10.0, "5%"), "How much slower loading may get.", "5%"),
    _verdict(
        "confidence",
        percent(0.5, 0.99999, "99%"),
        "How surely code that is slower by just that doesn't fail.",
        "99",
    ),
    _verdict("inconclusive", name("warn", "fail"), "What an inconclusive check ends with.", "warn"),
    _verdict(
        "regression",
        name("fail", "warn"),
        "What to make of a regression.",
        "fail; with --baseline: warn",
    ),
    _verdict("pin", switch(), "Hold both sides to the same cores, one after another.", "--pin"),
    _verdict(
        "allow_regression",
        text(".+", "a reason", "a text that says why; it is kept", "REASON"),
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
