"""How single figures and configurations read: short texts that every document shares."""

from __future__ import annotations

import dataclasses
import shlex
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple, TypeVar

from dlprof.advise.thresholds import NOTABLE
from dlprof.advise.wording import end_text, loss_text
from dlprof.records import USELESS, Confidence, Config, Estimate, GpuUsage, Run, Trial, Usage
from dlprof.report.document import Bar, Chart, Column, Hints, Row, Styled, Tone, chart, hint
from dlprof.report.text import clean
from dlprof.stats.belief import PROBABILITY
from dlprof.units import MISSING, counted, format_bytes, format_duration, format_rate

_Item = TypeVar("_Item")

END_TEXTS = {
    "decided": "the best is clear",
    "complete": "everything was measured as often as asked",
    "budget": "the budget was used up",
    "noise": "what is left to gain is hidden by noise",
    "interrupted": "interrupted; what was measured is kept",
    "failed": "nothing more could be measured",
}
"""Why a sweep ended, by ``RunEnd.reason``."""

_LIMITS = {
    "host_cpu": "host CPU",
    "main_process": "main process",
    "main": "main process",
    "pin": "pin thread",
    "shm": "shared memory",
    "bandwidth": "memory bandwidth",
}
"""Those that are called otherwise than in the records."""


def limit_text(name: str) -> str:
    """What limits a rate or runs out: a bound, a resource or a part of loading by its name."""
    return _LIMITS.get(name, name)


def whole_text(estimate: Estimate) -> str:
    """A count with its interval, where it has one: ``5 (95% CI 4-6)``."""
    interval = interval_text(estimate, "{:,.0f}".format)
    sure = interval == MISSING or estimate.low == estimate.high
    return f"{estimate.value:,.0f}" + ("" if sure else f" (95% CI {interval})")


def value_text(estimate: Estimate | None) -> str:
    """A rate without its unit and interval; ``-`` for a missing one."""
    return format_rate(estimate.value if estimate is not None else None)


def interval_text(
    estimate: Estimate | None, shown: Callable[[float], str] = format_rate, dash: str = "-"
) -> str:
    """The 95 % interval of a figure, such as ``1,190-1,280``; ``-`` where there is none.

    Of one whose ends are ten thousand times apart neither says anything.
    """
    if estimate is None or estimate.low is None or estimate.high is None:
        return MISSING
    if estimate.high > 10_000 * estimate.low > 0:
        return "unknown"
    return f"{shown(estimate.low)}{dash}{shown(estimate.high)}"


def rate_text(
    estimate: Estimate | None,
    unit: str = "samples/s",
    shown: Callable[[float], str] = format_rate,
) -> str:
    """A rate with its unit and interval: ``1,234 samples/s (95% CI 1,190-1,280)``.

    With one that reaches below half of it the rate is no more than about that.
    """
    if estimate is None:
        return MISSING
    interval = interval_text(estimate, shown)
    text = f"{shown(estimate.value)} {unit}"
    if estimate.low is not None and estimate.low < (1 - USELESS) * estimate.value:
        return f"about {text} (noisy{'' if interval == MISSING else f': 95% CI {interval}'})"
    return text if interval == MISSING else f"{text} (95% CI {interval})"


def ratio_text(ratio: float | None) -> str:
    """A speed relative to another: ``0.98x``, ``12.3x``; ``-`` for a missing one."""
    if ratio is None:
        return MISSING
    text = f"{ratio:.2f}x" if ratio < 9.995 else f"{ratio:,.1f}x"
    return "<0.01x" if ratio and text == "0.00x" else text


def gain_text(gain: Estimate, over: str = "", *, loss: float | None = None) -> str:
    """What a change brings, or costs; a bound where that is too noisy, or that there is no gain.

    ``gain`` is the speed of one over that of the other, which is called ``over``; ``loss`` by which
    share it is slower at most, if a certificate has it: one bound says more than the lower of an
    interval's two.
    """
    behind, than = (f" {word} {over}" if over else "" for word in ("over", "than"))
    if gain.low is None or gain.high is None:
        return f"{ratio_text(gain.value)}{behind}"
    interval = f"95% CI {end_text(gain.low)}-{end_text(gain.high)}"
    if gain.high < 1:
        some, about = percent_text(1 - gain.value), f"{ratio_text(gain.value)}, {interval}"
        if gain.is_wide:
            some, about = f"at least {percent_text(1 - gain.high)}", "95%"
        return f"{some} slower{than} ({about})"
    if gain.is_wide and gain.low > 1:
        return f"at least {end_text(gain.low)}x{behind} (95%)"
    if gain.is_wide and loss is not None and 1 - loss > gain.low:
        sure = f"{loss_text(loss)}{than} ({PROBABILITY:.0%})"
        return f"{sure}; how much faster, if at all, is too noisy to say"
    if gain.is_wide:  # it may be several times as fast: no word of no gain
        return f"not known{behind}: too noisy to say ({interval})"
    none = gain.low <= 1
    shown = f"{ratio_text(gain.value)}, {interval}" if none else interval
    return f"{'no measurable gain' if none else ratio_text(gain.value)}{behind} ({shown})"


def certainty(level: Confidence, why: str) -> Row:
    """How sure an answer is, and why no surer."""
    tones: dict[Confidence, Tone] = {"high": "good", "medium": "warn", "low": "bad"}
    return "Certainty", (Styled(level, tones[level]), f": {why}")


def default_named(config: Config) -> str:
    """PyTorch's default, which other settings are compared with at their own batch size."""
    size = "" if config.batch_size is None else f" at batch_size={config.batch_size}"
    return f"PyTorch's default{size}"


def percent_text(fraction: float | None) -> str:
    """A fraction of 0 to 1 as ``12%``; something up to half a percent as ``<1%``."""
    if fraction is None:
        return MISSING
    return "<1%" if 0 < fraction <= 0.005 else f"{fraction * 100:.0f}%"


IN_TRIALS = "in trials, whose rates may differ from the estimate."
"""What a measured wait is beside a rate that is estimated from more than its trials."""


def wait_text(
    wait: float,
    restarts: float | None = None,
    *,
    in_trials: bool = False,
    step: str = "",
    kept: bool = False,
) -> str:
    """A share of the time within epochs that the step waits, and whether trials say so.

    ``restarts`` is what epochs' ends take of all time, ``step`` the step's length; ``kept``
    says that later epochs come from kept samples, for which less is waited.
    """
    about = ", ".join(filter(None, ("measured" if in_trials else "", step and f"step {step}")))
    (within, restarting), said = wait_parts(wait, restarts), f" ({about})" if about else ""
    time = "the first epoch" if kept else "the time"
    if not restarting:
        return f"{percent_text(wait)} of {time}{said}"
    first = f"{within}%" if within or not wait else "<1%"
    whole = f"{within + restarting}% of {time}: {first} in epochs"
    return f"{whole}, {restarting}% at epoch ends{said}"


def wait_parts(wait: float, restarts: float | None) -> tuple[int, int]:
    """What waits within epochs, and epoch restarts, take of all time, in whole percent.

    Restarts that are not worth a word are none.
    """
    between = restarts if restarts is not None and restarts >= NOTABLE else 0.0
    return round(100 * wait * (1 - between)), round(100 * between)


def cores_text(cores: float | None) -> str:
    """A number of cores, such as ``1.9`` or ``12``; ``-`` for a missing one."""
    if cores is None:
        return MISSING
    return f"{cores:.1f}" if cores < 9.95 else f"{cores:.0f}"


def used_text(usage: Usage) -> str:
    """The cores that a loader used, of how many; ``-`` where it is not known."""
    if usage.own_cpu_cores is None:
        return MISSING
    others = usage.other_cpu_cores
    more = f" ({cores_text(others)} used by other processes)" if others else ""
    own, available = map(cores_text, (usage.own_cpu_cores, usage.available_cpu_cores))
    return f"{own} used, {available} available{more}"


def step_text(step_s: float, spread: str | None) -> str:
    """A step, such as ``50 ms``, or ``50 ms (normal:50ms,5ms)`` where steps differ."""
    return format_duration(step_s) + (f" ({spread})" if spread else "")


_PURPOSES = {
    "explain": "traced",
    "cold": "without the page cache",
    "lever": "extra setting",
    "binding": "unbound ranks",
}


def purpose_text(trial: Trial) -> str:
    """What a trial is for, where not for a figure that is compared with all others."""
    if trial.numa_binding:
        return f"--numa-binding={trial.numa_binding}"
    return _PURPOSES.get(trial.purpose, trial.purpose)


def about_file(run: Run, more: str = "", kind: str = "", option: str = "") -> Hints:
    """Where all of it is, how much more, and by which option it is another kind of file."""
    if not run.path:
        return hint("Details: -v")
    command = f"dlprof report {shlex.quote(run.path)}"
    said = "; ".join(filter(None, (more, kind and f"as {kind}: {option}")))
    brief, _ = hint(f"Full report{said and f' ({said})'}:", command=f"{command} -v")
    _, beside = hint("", kind and f"as {kind}:", f"{command} {option}")
    return brief, beside


STAGES = {
    "dispatch": "dispatch",
    "pick_up": "index queue",
    "fetch": "fetch",
    "collate": "collate",
    "serialise": "serialize",
    "queue": "result queue",
    "rebuild": "deserialize",
    "pin": "pin",
    "hold_up": "reorder wait",
    "copy": "copy to device",
    "wait": "wait",
    "step": "step",
}
"""Stages as people read them, by ``StageName``."""


def stages_of(run: Run) -> Mapping[str, str]:
    """The same for a run: where nothing trains, a batch is only freed between two ``next()``."""
    stated = run.header.settings.get
    trains = run.script is not None or stated("step_s") or stated("step_callable")
    return STAGES if trains else {**STAGES, "step": "free batch"}


def gpu_text(usage: GpuUsage) -> str:
    """One card in one trial, as far as anything is known of it; else why not."""
    active, used = percent_text(usage.kernel_active_fraction), format_bytes(usage.memory_used_bytes)
    parts = [f"kernels {active} of the time"] if active != MISSING else []
    parts += [f"{used} in use"] if used != MISSING else []
    if usage.pcie_rx_bytes_per_s is not None:
        parts.append(f"{format_bytes(usage.pcie_rx_bytes_per_s)}/s received")
    if usage.throttled_fraction and usage.throttle_reasons:
        held = percent_text(usage.throttled_fraction)
        parts.append(f"clocks held down {held} by {clean(', '.join(usage.throttle_reasons))}")
    if usage.other_processes:
        held = format_bytes(usage.other_memory_bytes)
        parts.append(f"{processes_text(usage.other_processes)} of others ({held})")
    return ", ".join(parts) or clean(next(iter(usage.unavailable.values()), MISSING))


def count_text(count: int | None) -> str:
    """A number of things; ``-`` where it is not known."""
    return MISSING if count is None else f"{count:,}"


def processes_text(count: int | None) -> str:
    """A number of processes; ``-`` where it is not known."""
    return MISSING if count is None else counted(count, "process")


MOST_BARS = 7  # bars beside an answer, which has to fit into 16 lines

_ALWAYS = frozenset({"num_workers", "prefetch_factor"})
_TITLES = {
    "num_workers": "workers",
    "prefetch_factor": "prefetch",
    "pin_memory": "pin",
    "persistent_workers": "persist",
    "batch_size": "batch",
    "in_order": "in order",
    "start_method": "start",
    "sharing_strategy": "sharing",
    "worker_threads": "threads",
}


def setting_columns(configs: Sequence[Config]) -> Iterator[Column]:
    """The settings in which configurations differ, under short names."""
    words = {True: "yes", False: "no", None: MISSING}
    for name, title in _TITLES.items():
        values = [getattr(config, name) for config in configs]
        if name in _ALWAYS or len(set(values)) > 1:
            found = (words.get(v, "") if v is None or isinstance(v, bool) else v for v in values)
            yield Column(title, [str(value) for value in found])


class Rated(NamedTuple):
    """What a bar shows; one that comes ``first`` counts more than others with as many workers."""

    config: Config
    rate: Estimate
    note: str
    first: bool = False


def rates_chart(
    rates: Iterable[Rated],
    pick: Config | None,
    present: Config | None = None,
    *,
    unit: str = "samples/s",
    most: int = MOST_BARS,
) -> Chart | None:
    """The best rate by ``num_workers``, that of the recommended and the present one their own.

    These two have a bar each where they differ in another setting: the speed-up is their quotient.
    """
    shown: dict[tuple[int, bool], Rated] = {}
    alike = pick is not None and present is not None and pick.num_workers == present.num_workers
    for each in sorted(
        rates, key=lambda r: (r.config == pick, r.config == present, r.first, r.rate.value)
    ):
        shown[each.config.num_workers, alike and each.config == pick != present] = each
    found = [shown[place] for place in sorted(shown)]
    if len(found) < 2:
        return None
    best = max(range(len(found)), key=lambda i: found[i].rate.value)
    own = {i for i, each in enumerate(found) if each.config in {pick, present}}
    kept = own | {0, best}
    first = {i for i, each in enumerate(found) if each.first}
    fits = len(first | kept) <= most
    sure = first | kept if fits else kept
    rest = sorted(({*range(len(found))} if fits else first) - sure)
    bars = []
    for place in sorted({*sure, *evenly(rest, most - len(sure))}):
        # What is only predicted goes first, be that the best, then what was measured. The present
        # and the default settings stay wherever an answer fits at all.
        named = place in own or not found[place].config.num_workers
        spare = 1 if named else 2 if place in (first or sure) else 3
        bars.append(_bar(found[place], pick, present, spare=spare))
    return chart(bars, "workers", unit)


def evenly(found: Sequence[_Item], most: int) -> list[_Item]:
    """So many of them at most, from the first to the last."""
    last = len(found) - 1
    if last < most:
        return list(found)
    return [found[round(k * last / max(1, most - 1))] for k in range(most)]


_IN_LABELS = _TITLES | {"persistent_workers": "persistent", "pin_memory": "pinned"}


def _bar(each: Rated, pick: Config | None, present: Config | None, *, spare: int) -> Bar:
    config = each.config
    default = config == Config(batch_size=config.batch_size) and config != pick
    marks = {"default": default, "yours": config == present, "◀": config == pick}
    label = " ".join([str(config.num_workers), *(mark for mark, is_so in marks.items() if is_so)])
    tone: Tone = "good" if config == pick else ""
    if not any(marks.values()):  # the answer says what these three are; of others, what differs
        like = dataclasses.replace(pick or Config(), num_workers=config.num_workers).canonical()
        unlike = []
        for name, title in _IN_LABELS.items():
            value = getattr(config, name)
            if value is not None and value != getattr(like, name):
                on = title if value else f"not {title}"
                unlike.append(on if isinstance(value, bool) else f"{title} {value}")
        label = " ".join([label, ", ".join(unlike)]).rstrip()
    bar = Bar.of(label, each.rate, format_rate(each.rate.value), each.note, tone)
    return dataclasses.replace(bar, spare=0 if config == pick else spare)
