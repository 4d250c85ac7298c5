"""Texts with units: what users type to numbers, and numbers to what people read."""

from __future__ import annotations

import functools
import math
import re
import statistics
from collections.abc import Callable, Mapping

from dlprof.errors import UsageError

NS = 1_000_000_000  # nanoseconds in a second

MAX_VALUES = 1000  # most values that one list or range may name; a sweep of more would never end

MISSING = "-"  # what the formatters give for a figure that could not be had

# At most 15 digits, so that float() and int() are exact and never overflow.
_NUMBER = r"[0-9]{1,15}(?:\.[0-9]{0,15})?|\.[0-9]{1,15}"
_WITH_UNIT = re.compile(rf"({_NUMBER})\s*([a-zµμ]*)", re.ASCII | re.IGNORECASE)
_INTEGER = re.compile(r"[0-9]{1,15}")

_SECONDS = {
    "": 1.0,
    "us": 1e-6,
    "µs": 1e-6,  # micro sign
    "μs": 1e-6,  # Greek mu: keyboards give one or the other
    "ms": 1e-3,
    "s": 1.0,
    "m": 60.0,
    "min": 60.0,
    "h": 3600.0,
    "d": 86400.0,
}

# A bare K, M, G or T is binary, as in Docker's and Slurm's memory limits.
_BYTES: dict[str, int] = {
    "": 1,
    "b": 1,
    **{prefix + "b": 1000**power for power, prefix in enumerate("kmgt", start=1)},
    **{
        prefix + end: 1024**power
        for power, prefix in enumerate("kmgt", start=1)
        for end in ("", "ib")
    },
}

_SWITCHES = {
    "on": (True,),
    "off": (False,),
    "both": (False, True),
    "true": (True,),
    "false": (False,),
}


def quoted(value: object) -> str:
    """The value as an error message shows it: quoted, escaped, and cut where it is very long."""
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."


def parse_duration_s(text: str) -> float:
    """Seconds from ``12ms``, ``60s``, ``2m``, ``1.5h`` or a bare number of seconds."""
    match = _WITH_UNIT.fullmatch(text.strip())
    factor = _SECONDS.get(match[2].lower()) if match else None
    if match is None or factor is None:
        raise UsageError(
            f"{quoted(text)} is not a duration",
            hint="Give a number with us, ms, s, m, h or d, such as 12ms, 60s or 1.5h.",
        )
    return float(match[1]) * factor


class StepTime(float):
    """The mean of steps that differ, in seconds."""

    spread: str  # how they differ, as ``parse_step`` reads it
    # Some steps over their mean, in the order in which they come, again and again.
    shape: tuple[float, ...]

    def __eq__(self, other: object) -> bool:
        """One that spreads otherwise is another step."""
        if not isinstance(other, int | float):
            return NotImplemented
        return float(self) == float(other) and getattr(other, "spread", "") == self.spread

    def __ne__(self, other: object) -> bool:
        """As ``__eq__`` has it, and not as for plain numbers."""
        return not self == other

    __hash__ = float.__hash__


def watching_s(seconds: float, least_s: float = 0.01) -> float:
    """The seconds of ``--seconds``, in which something has to be seen."""
    if not least_s <= seconds <= 86_400:
        raise UsageError(
            f"--seconds {seconds:g} is not a time to watch for",
            hint=f"Give {least_s:g} to 86400 seconds.",
        )
    return seconds


def spread_of(step_s: float | None) -> str:
    """How steps differ, as ``parse_step`` reads it; empty where all are alike."""
    return step_s.spread if isinstance(step_s, StepTime) else ""


_SPREADS: Mapping[str, str] = {
    "normal": "MEAN,STDEV",
    "lognormal": "MEAN,STDEV",
    "gamma": "MEAN,STDEV",
    "uniform": "MIN,MAX",
    "exponential": "MEAN",
}
STEP_FORMS = ", ".join(f"{name}:{values}" for name, values in _SPREADS.items())


@functools.lru_cache(maxsize=16)
def parse_step(text: str) -> float:
    """A step from ``12ms``, or steps that differ: ``normal:50ms,5ms``.

    ``normal``, ``lognormal`` and ``gamma`` take mean and standard deviation, ``uniform`` the
    shortest and the longest, ``exponential`` the mean. Of a normal one that is below 0 the size
    counts, as in DLIO.
    """
    name, colon, rest = text.partition(":")
    if not colon:
        return parse_duration_s(text)
    name = name.strip().lower()
    wanted = _SPREADS.get(name)
    parts = rest.split(",")
    if wanted is None or len(parts) != len(wanted.split(",")):
        raise UsageError(f"{quoted(text)} is not a step", hint=f"Give one of {STEP_FORMS}.")
    known = [round(parse_duration_s(part), 12) for part in parts]
    first, second = known[0], known[-1]
    if not first and wanted != "MIN,MAX":
        raise UsageError(f"{quoted(text)} has no mean above 0", hint="Give a longer step.")
    if wanted == "MIN,MAX" and second < first:
        raise UsageError(f"{quoted(text)} ends before it begins", hint="Give uniform:MIN,MAX.")
    if (first == second) if wanted == "MIN,MAX" else not second:
        return first
    if wanted == "MEAN,STDEV" and second > 10 * first:  # so few draws have no mean of their own
        raise UsageError(
            f"{quoted(text)} spreads further than 10 times its mean",
            hint="Give a smaller deviation.",
        )
    sizes = [f"{1e3 * each:.9f}".rstrip("0").rstrip(".") + "ms" for each in known]
    return _spread_step(name, first, second, f"{name}:{','.join(sizes)}")


def _spread_step(name: str, first: float, second: float, spread: str) -> StepTime:
    import random  # slow to import, and few steps are spread

    rng, mean = random.Random(20260101), first
    if name == "uniform":
        mean = (first + second) / 2
    else:
        log_sd = math.sqrt(math.log1p((second / first) ** 2))
    draw: Mapping[str, Callable[[], float]] = {
        "normal": lambda: rng.gauss(first, second),
        "lognormal": lambda: rng.lognormvariate(math.log(first) - log_sd**2 / 2, log_sd),
        "gamma": lambda: rng.gammavariate((first / second) ** 2, second**2 / first),
        "uniform": lambda: rng.uniform(first, second),
        "exponential": lambda: rng.expovariate(1 / first),
    }
    # 200 steps, a multiple of which the model goes through; each is the mean of 100 draws that are
    # next to each other in length.
    draws = sorted(draw[name]() for _ in range(20_000))
    groups = [draws[at : at + 100] for at in range(0, len(draws), 100)]
    by = mean / statistics.fmean(draws)
    steps = [abs(by * statistics.fmean(group)) for group in groups]
    rng.shuffle(steps)
    step = StepTime(mean if draws[0] >= 0 else statistics.fmean(steps))
    step.spread, step.shape = spread, tuple(each / step for each in steps)
    return step


def parse_bytes(text: str) -> int:
    """Bytes from ``16GiB``, ``512MB``, ``16G`` (read as GiB) or a bare number of bytes."""
    match = _WITH_UNIT.fullmatch(text.strip())
    factor = _BYTES.get(match[2].lower()) if match else None
    if match is None or factor is None:
        raise UsageError(
            f"{quoted(text)} is not a size",
            hint="Give a number with B, KB, MB, GB, TB, KiB, MiB, GiB or TiB, such as 16GiB.",
        )
    return round(float(match[1]) * factor)


def parse_ints(text: str) -> tuple[int, ...]:
    """Whole numbers from ``4``, ``0,2,4``, ``0:16:2`` or a mixture such as ``0,2:8:2``.

    A range is ``first:last`` or ``first:last:step`` and includes its last value. The order is
    kept and duplicates are dropped.
    """
    values: dict[int, None] = {}
    for part in text.split(","):
        found = _parse_part(part.strip(), text)
        values.update(dict.fromkeys(found[: MAX_VALUES + 1]))
        if len(values) > MAX_VALUES:
            raise UsageError(
                f"{quoted(text)} names more than {MAX_VALUES} values",
                hint="Give fewer values, or a range with a larger step.",
            )
    return tuple(values)


def _parse_part(part: str, whole: str) -> range:
    """The values of one number or range; raises a ``UsageError`` that names the whole text."""
    fields = part.split(":")
    if len(fields) > 3 or not all(_INTEGER.fullmatch(field) for field in fields):
        raise UsageError(
            f"{quoted(whole)} is not a list of whole numbers",
            hint="Give 4, or 0,2,4, or first:last:step such as 0:16:2.",
        )
    numbers = [int(field) for field in fields]
    first = numbers[0]
    last = numbers[1] if len(numbers) > 1 else first
    step = numbers[2] if len(numbers) > 2 else 1
    if step == 0 or last < first:
        fault = "has a step of 0" if step == 0 else "runs backwards"
        raise UsageError(
            f"The range {quoted(part)} {fault}",
            hint="Give first:last:step with first <= last and a step of at least 1.",
        )
    return range(first, last + 1, step)


def parse_switches(text: str) -> tuple[bool, ...]:
    """The values to try from ``on``, ``off`` or ``both`` (``true`` and ``false`` do as well)."""
    try:
        return _SWITCHES[text.strip().lower()]
    except KeyError:
        raise UsageError(f"{quoted(text)} is not a switch", hint="Give on, off or both.") from None


def format_bytes(count: float | None) -> str:
    """A size for people, such as ``1.4 GiB``; ``-`` for a missing one."""
    if count is None or not math.isfinite(count):
        return MISSING
    each, unit, decimals = scale_bytes(count)
    return f"{count / each:.{decimals}f} {unit}"


def scale_bytes(count: float) -> tuple[int, str, int]:
    """What a size is shown in: the bytes of the unit, its name, and decimals."""
    units = ("B", "KiB", "MiB", "GiB", "TiB", "PiB")
    # 1023.5 and more would be shown as 1024.
    power = next((n for n in range(len(units)) if abs(count) < 1023.5 * 1024**n), len(units) - 1)
    each = 1024**power
    return each, units[power], 1 if power and abs(count) < 99.95 * each else 0


def format_duration(seconds: float | None) -> str:
    """A duration for people: ``850 ms``, ``1.2 s``, ``2 min 5 s``; ``-`` for a missing one."""
    if seconds is None or not math.isfinite(seconds):
        return MISSING
    if seconds <= 0:
        return f"-{format_duration(-seconds)}" if seconds else "0 s"
    if seconds < 0.9995:
        milliseconds = seconds * 1000
        decimals = 0 if milliseconds >= 9.95 else 1 if milliseconds >= 0.995 else 2
        return f"{milliseconds:.{decimals}f} ms" if milliseconds >= 0.01 else "< 0.01 ms"
    if seconds < 9.95:
        return f"{seconds:.1f} s"
    whole = round(seconds)
    # The two largest units that are needed, such as ``1 h 5 min``.
    for size, unit, smaller_size, smaller in (
        (86400, "d", 3600, "h"),
        (3600, "h", 60, "min"),
        (60, "min", 1, "s"),
    ):
        if whole >= size:
            count, rest = divmod(whole, size)
            rest //= smaller_size
            return f"{count} {unit} {rest} {smaller}" if rest else f"{count} {unit}"
    return f"{whole} s"


def duration_option(seconds: float) -> str:
    """A duration to type, rounded up: ``60s``, ``3m``."""
    tens = math.ceil(seconds / 10)
    return f"{10 * max(1, tens)}s" if tens < 12 else f"{math.ceil(seconds / 60)}m"


def format_rate(rate: float | None) -> str:
    """A rate without its unit, three significant digits or whole: ``1,234``, ``12.3``, ``0.123``.

    ``-`` for a missing one.
    """
    if rate is None or not math.isfinite(rate):
        return MISSING
    if rate == 0:
        return "0"
    return f"{rate:,.0f}" if abs(rate) >= 99.95 else f"{rate:#.3g}"


def counted(count: float, noun: str) -> str:
    """A count with its noun, as a plural unless there is one.

    >>> counted(1, "trial"), counted(1200, "trial"), counted(2, "batch"), counted(2, "epoch")
    ('1 trial', '1,200 trials', '2 batches', '2 epochs')
    """
    number = f"{count:,}" if isinstance(count, int) else f"{count:g}"
    plural = "es" if noun.endswith(("tch", "s")) else "s"
    return f"{number} {noun}" if count == 1 else f"{number} {noun}{plural}"


def with_hint(message: str, hint: str) -> str:
    """A fault and what to do about it as two sentences; the message alone where there is no hint.

    >>> with_hint("The disk is full", "Free some space.")
    'The disk is full. Free some space.'
    """
    return str(UsageError(message, hint=hint))
