"""Why one run is faster than another: the difference of their rates, split into parts that add up.

The closed form is the bounds of the model (``dlprof.model.bounds``): the workers, the cores, and
what follows one after another in the main process. It is simple on purpose: each of its figures is
measured on both sides, and what it does not explain is shown as such. Pure.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
import math
import statistics
from collections.abc import Callable, Container, Hashable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Literal, NamedTuple, TypeVar

from dlprof.advise import thresholds as at
from dlprof.advise.choice import gather, product, speeds_of
from dlprof.advise.scaling import in_step
from dlprof.advise.situation import Situation
from dlprof.advise.wording import end_text, factor_text, percent, ratio_digits, severity_of
from dlprof.advise.wrong_data import said_first
from dlprof.errors import NothingMeasuredError, UsageError
from dlprof.late import Shown
from dlprof.model.bounds import rate_allowed
from dlprof.model.work import Means
from dlprof.records import (
    SPREAD_SIGN,
    WHILE_MEASURED,
    Config,
    Estimate,
    Explanation,
    Finding,
    FindingCode,
    Fix,
    Run,
    StageName,
    Trial,
    WatchedLoader,
    own_s,
)
from dlprof.stats.belief import LARGEST_LOG
from dlprof.stats.intervals import t_quantile
from dlprof.units import format_bytes, format_duration

PartCode = Literal[
    "cpu", "cores", "quota", "neighbours", "storage", "receive", "copy", "wait", "step", "settings",
    "remainder",
]  # fmt: skip
Figures = Mapping[str, Any]


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class SideInfo:
    """One of the two runs, as far as the comparison used it."""

    run_file: str  # its path
    hostname: str  # its machine
    cpu_model: str  # CPU model as the system names it
    started_at: str  # ISO 8601, UTC
    target: str  # TARGET as the user wrote it
    config: Config  # the configuration that was compared
    samples_per_s: Estimate  # its rate, the one that all views of its run have
    trials: tuple[str, ...]  # ids of its trials
    noisy: int  # how many of those are doubtful


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """One part of the difference."""

    code: PartCode  # which
    title: str  # it in words
    log_ratio: Estimate  # what it adds to ``ln(rate of B / rate of A)``; all parts add up to that
    factor: Estimate  # ``exp`` of it: all factors multiply to the ratio of the rates
    explanation: str  # the figures of both sides in one sentence
    a: Figures = dataclasses.field(default_factory=dict)  # figures of A, by name with unit
    b: Figures = dataclasses.field(default_factory=dict)  # figures of B
    # Rate of the slower side if only this were as on the other, over its rate now, by the closed
    # form; ``None`` for the remainder and for settings that were measured.
    alone: float | None = None


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Comparison(Shown):
    """Why one run is faster than another."""

    a: SideInfo  # the first run
    b: SideInfo  # the second run
    pairing: str  # which configurations were compared, and why these; one sentence
    ratio: Estimate  # rate of B over rate of A
    verdict: str  # the difference and its biggest part, in a sentence or two
    parts: tuple[Part, ...]  # largest first, the remainder last
    # Parts that the runs don't show, and what would show them; what they hold is in the remainder.
    unknown: Mapping[str, str] = dataclasses.field(default_factory=dict)
    doubts: tuple[str, ...] = ()  # what is against the comparison, one sentence each
    findings: tuple[Finding, ...] = ()  # what slows the slower side, ordered by cost

    @property
    def sure_parts(self) -> tuple[Part, ...]:
        """The parts without those that noise carries: where no difference is seen, few are left.

        There a part is sure if its own interval, over several trials, doesn't reach 1, and what is
        not sure doesn't undo it: of a whole that stays as it is, that is the closed form's error.
        """
        if not _is_alike(self.ratio):
            return self.parts

        def varies(part: Part) -> bool:
            low, high = part.factor.ends
            return part.code == "remainder" or not low < high or low <= 1 <= high

        rest = math.fsum(part.log_ratio.value for part in self.parts if varies(part))
        return tuple(
            part
            for part in self.parts
            if not varies(part) and (part.log_ratio.value + rest) / part.log_ratio.value > 0.5
        )


class CauseKind(NamedTuple):
    """A kind of part."""

    title: str  # it in words
    costs: tuple[str, ...]  # the fields of ``SideCosts`` that belong to it
    figures: tuple[str, ...]  # names of the figures that show it
    sentence: Callable[[Figures, Figures], str]  # these of both sides in a sentence
    # The code of its finding and the fix, where it slows the slower side.
    cause: tuple[FindingCode, str] | None = None


def _both(
    text: str, name: str, shown: Callable[[Any], str] = format_duration
) -> Callable[[Figures, Figures], str]:
    return lambda a, b: text.format(shown(a[name]), shown(b[name]))


def _cpu(a: Figures, b: Figures) -> str:
    text = _both("A sample takes {} of CPU time in A and {} in B", "cpu_s_per_sample")(a, b)
    one, two = ((side["other_cpu_cores"] or 0.0) / side["usable_cores"] for side in (a, b))
    if abs(one - two) >= at.SHARED:
        text += "; processes on the same cores may be a part of that: they share caches,"
        text += " hyper-threads and clock rate"
    return text + "."


def _quota(side: Figures) -> str:
    quota, held = side["quota_cores"], side["throttled_fraction"]
    if quota is None:
        return "no quota"
    back = "" if held is None else f", which held the trial back {percent(held)} of the time"
    return f"a quota of {quota:g} cores{back}"


def _neighbours(side: Figures, means: str = "") -> str:
    available, waiting = side["available_cpu_cores"], side["run_queue_wait_fraction"]
    known = []
    if available is not None:
        known.append(f"could use {available:.1f} of {side['usable_cores']:g} cores")
    if waiting is not None:
        has = "with" if known else "had"
        known.append(f"{has} {percent(waiting)} run-queue delay{means}")
    return ", ".join(known) or "has no record of the cores"


def _storage(a: Figures, b: Figures) -> str:
    text = _both("A sample is blocked {} on its data in A and {} in B", "io_s_per_sample")(a, b)
    hits = [side["cache_hit_fraction"] for side in (a, b)]
    if None not in hits:
        text += f"; {percent(hits[0])} and {percent(hits[1])} came from the page cache"
    reads = [side["read_bytes_per_s"] for side in (a, b)]
    if all(reads):
        text += ", the rest from storage at {}/s and {}/s".format(*map(format_bytes, reads))
    return text + "."


def _receive(a: Figures, b: Figures) -> str:
    text = "Receiving takes the main process {} a sample in A and {} in B"
    text = _both(text, "receive_s_per_sample")(a, b)
    if a["pin_s_per_sample"] or b["pin_s_per_sample"]:
        text += _both("; pinning, {} and {}", "pin_s_per_sample")(a, b)
    return text + "."


def _waiting(a: Figures, b: Figures) -> str:
    text = _both("The loop waits {} a sample in A and {} in B", "wait_s_per_sample")(a, b)
    if a["settings"] != b["settings"]:
        text += _both(": A has {}, B {}", "settings", str)(a, b)
    if a["fetch_s_per_batch"] and b["fetch_s_per_batch"]:
        text += _both("; fetching a batch takes {} in A and {} in B", "fetch_s_per_batch")(a, b)
    return text + "."


KINDS: Mapping[PartCode, CauseKind] = {
    "cpu": CauseKind(
        "CPU time per sample",
        # Threads of the main process that spin while they wait take CPU time and are more
        # threads: apart from each other, the two would seem to cancel.
        ("cpu_s", "worker_share", "threads"),
        ("cpu_s_per_sample", "own_cpu_cores"),
        _cpu,
        ("fetch.cpu", "Make __getitem__ cheaper, or take a machine with faster cores."),
    ),
    "cores": CauseKind(
        "available cores",
        ("affinity", "own_stretch"),
        ("affinity_cpus", "logical_cpus", "own_cpu_cores"),
        _both("The loader may run on {} CPUs in A and on {} in B.", "affinity_cpus", "{:g}".format),
        ("cpu.affinity", "Let the job run on more CPUs: affinity mask, cpuset, taskset."),
    ),
    "quota": CauseKind(
        "CPU quota",
        ("quota_stretch",),
        ("quota_cores", "usable_cores", "throttled_fraction"),
        lambda a, b: f"A has {_quota(a)}; B has {_quota(b)}.",
        ("cpu.quota", "Raise the CPU quota of the job's cgroup or container."),
    ),
    "neighbours": CauseKind(
        "background load",
        ("neighbour_stretch",),
        ("available_cpu_cores", "usable_cores", "other_cpu_cores", "run_queue_wait_fraction"),
        lambda a, b: f"A {_neighbours(a, ' (ready, but not running)')}. B {_neighbours(b)}.",
        ("cpu.neighbours", "Move the other processes, or reserve cores for this job."),
    ),
    "storage": CauseKind(
        "blocked on storage",
        ("io_s",),
        ("io_s_per_sample", "io_from", "cache_hit_fraction", "read_bytes_per_s"),
        _storage,
        ("fetch.io", "Bring the data to faster storage or into memory, or add workers."),
    ),
    "receive": CauseKind(
        "receiving and pinning",
        ("receive_s", "pin_s"),
        ("receive_s_per_sample", "pin_s_per_sample"),
        _receive,
        ("main.receive", "Send fewer and larger tensors per batch."),
    ),
    "copy": CauseKind(
        "copies to the device",
        ("copy_s",),
        ("copy_s_per_sample",),
        _both("Copying to the device takes {} a sample in A and {} in B.", "copy_s_per_sample"),
        ("transfer.link", "Pin memory, and look at the link with dlprof transfer."),
    ),
    "wait": CauseKind(
        "waiting for data",
        ("wait_s",),
        ("wait_s_per_sample", "settings", "fetch_s_per_batch"),
        _waiting,
    ),
    "step": CauseKind(
        "the training step",
        ("step_s",),
        ("step_s_per_sample", "wait_fraction"),
        _both("The training step takes {} a sample in A and {} in B.", "step_s_per_sample"),
        ("consumer", "The step is the limit; the loader is not what to change."),
    ),
    "settings": CauseKind(
        "the settings",
        ("workers", "pin_thread"),
        ("settings",),
        _both("A ran with {}, B with {}.", "settings", str),
    ),
    "remainder": CauseKind(
        "unexplained", (), (), lambda _a, _b: "What the figures of the runs don't explain."
    ),
}
"""In the order in which they are shown where they are of one size."""


def compare(a: Run, b: Run, *, num_workers: int | None = None, best: bool = False) -> Comparison:
    """Split the difference of two runs' rates into parts that add up.

    The same configuration is compared in both where there is one, else the fastest of each.
    Where the configurations differ, what settings make is shown by measured rates if one of the
    runs measured both, and by the closed form otherwise. Rates are B over A. With ``best`` the
    fastest of each run are compared in any case.
    """
    one, two, how = pair(a, b, num_workers=num_workers, best=best)
    shares = split(one, two)
    # Parts of which rounding is all that is left are not shown; the rest adds up without them.
    parts = [
        _part(code, log_ratio, one, two)
        for code, log_ratio in shares.items()
        if code == "remainder" or abs(log_ratio.value) > 1e-9
    ]
    order = [*KINDS]
    parts.sort(key=lambda p: (p.code == "remainder", -abs(p.log_ratio.value), order.index(p.code)))
    info_a, info_b = _info(one), _info(two)
    ratio = product(info_b.samples_per_s, info_a.samples_per_s.inverse)
    slow, fast = (info_b, info_a) if ratio.value < 1 else (info_a, info_b)
    close = abs(math.log(ratio.value)) < at.SAME_RATE
    alike = _is_alike(ratio)
    unclear = alike or close
    whole = _whole_scripts(one, two) if a.watched and not unclear else ""
    verdict = _verdict(ratio, parts, (info_a, info_b), alike=alike)
    said = ((name, text) for name, run in (("A", a), ("B", b)) for text in said_first(run))
    wrong = [f"{name}: {text}" for name, text in said if SPREAD_SIGN not in text]
    return Comparison(
        a=info_a,
        b=info_b,
        pairing=how,
        ratio=ratio,
        verdict=" ".join(filter(None, [*wrong, whole, verdict])),
        parts=tuple(parts),
        unknown={  # with the first reason of either side
            KINDS[code].title: f"{name} has no record of it: {why}."
            for name, side in (("B", two), ("A", one))
            for code, why in side.unknown.items()
        },
        doubts=tuple(doubts(one, two)),
        findings=() if unclear else _findings(parts, slow, fast, a if slow is info_a else b),
    )


def _is_alike(ratio: Estimate) -> bool:
    """Whether no difference is seen; of scripts, which ran once, whether there is next to none."""
    if ratio.low is None or ratio.high is None:
        return abs(math.log(ratio.value)) < at.SAME_RATE
    return ratio.low <= 1 <= ratio.high


def _info(chosen: Chosen) -> SideInfo:
    header, own = chosen.run.header, chosen.own
    return SideInfo(
        run_file=chosen.run.path,
        hostname=header.machine.hostname,
        cpu_model=header.machine.cpu_model,
        started_at=header.started_at,
        target=header.target.spec,
        config=chosen.config,
        samples_per_s=chosen.rate,
        trials=tuple(trial.id for trial in own),
        noisy=sum(trial.noisy for trial in own),
    )


def _part(code: PartCode, log_ratio: Estimate, a: Chosen, b: Chosen) -> Part:
    kind, known, alone = KINDS[code], comparable(a, b), None
    measured = code == "settings" and bridges(a, b)
    if known is not None and code != "remainder" and not measured:
        slow, fast = known if a.log_rate < b.log_rate else known[::-1]
        rate = exchanging(slow, fast)
        alone = _exp(rate(frozenset({code})) - rate(frozenset()))
    return Part(
        code=code,
        title=kind.title,
        log_ratio=log_ratio,
        factor=log_ratio.through(_exp),
        explanation=kind.sentence(a.figures, b.figures),
        a={name: a.figures.get(name) for name in kind.figures},
        b={name: b.figures.get(name) for name in kind.figures},
        alone=alone,
    )


def _verdict(
    ratio: Estimate, parts: Sequence[Part], sides: tuple[SideInfo, SideInfo], *, alike: bool
) -> str:
    text = _difference(ratio, sides, alike=alike)
    if any(part.code == "wait" for part in parts) and not alike:
        text = f"In the loop, {text}"
    total = math.log(ratio.value)
    towards = [part for part in parts if part.log_ratio.value * total > 0]
    towards.sort(key=lambda part: -abs(part.log_ratio.value))
    if alike or abs(total) < at.SAME_RATE or not towards:
        return text
    biggest, *others = towards
    if biggest.code == "remainder":
        more = "profile both to see more"
        return f"{text} Most of it is not explained by what the runs hold: {more}."
    share = biggest.log_ratio.value / total
    most = "Most of it is" if 2 * share >= 1 else "The biggest part is"
    factor = factor_text(biggest.factor)
    rest = {f"{part.factor.value:.2f}" for part in parts if part is not biggest}
    whole = not biggest.factor.is_wide and f"{biggest.factor.value:.2f}" == f"{ratio.value:.2f}"
    if whole and rest <= {"1.00"}:  # which was said
        return f"{text} All of it is {biggest.title}. {biggest.explanation}"
    named = f"{biggest.title} ({factor})"
    for part in others[:1]:
        if 2 * part.log_ratio.value / biggest.log_ratio.value >= 1 and part.code != "remainder":
            named += f", then {part.title} ({factor_text(part.factor)})"
    return f"{text} {most} {named}. {biggest.explanation}"


def _difference(ratio: Estimate, sides: tuple[SideInfo, SideInfo], *, alike: bool) -> str:
    figures = f"{factor_text(ratio)}, each measured once"
    if ratio.low is not None and ratio.high is not None:
        ends = f"{ratio_digits(ratio.low)}-{ratio_digits(ratio.high)}"
        figures = f"{factor_text(ratio)}, 95% CI {ends}"
    than = "slower" if ratio.value < 1 else "faster"
    if ratio.is_wide:
        text = "No measurable difference between B and A: too noisy to say"
        if not alike:
            ends = " to ".join(f"{end_text(end)}x" for end in ratio.ends)
            text = f"B is {than} than A, {ends} as fast (95%): too noisy for one figure"
        sided = zip("AB", sides, strict=True)
        noisy = " and ".join(n for n, side in sided if 2 * side.noisy > len(side.trials))
        more = f"{noisy} on a quieter machine" if noisy else "both with a longer --budget"
        return f"{text} (measure {more})."
    if alike:
        return f"No measurable difference between B and A ({figures})."
    changed = percent(abs(ratio.value - 1))
    if ratio.value >= 2 or changed == "100%":  # nothing that loads is 100% slower
        return f"B is {factor_text(ratio)} as fast as A ({figures.partition(', ')[2]})."
    return f"B is {changed} {than} than A ({figures})."


def _whole_scripts(a: Chosen, b: Chosen) -> str:
    """How long the scripts took; empty where one didn't end by itself, or loaded other batches."""
    scripts = [each.run.script for each in (a, b)]
    ended = all(s is not None and s.ending == "returned" and not s.exit_code for s in scripts)
    loaded = [sum(each.batches for each in side.run.watched) for side in (a, b)]
    if not ended or loaded[0] != loaded[1]:
        return ""
    one, two = (own_s(s.wall_s, c.run.watched) for s, c in zip(scripts, (a, b), strict=True) if s)
    times = f"{format_duration(two)} in B, {format_duration(one)} in A"
    factor = factor_text(Estimate(value=one / two))
    return f"The whole script takes {times} ({factor} as fast, each measured once)."


def _findings(
    parts: Sequence[Part], slow: SideInfo, fast: SideInfo, run: Run
) -> tuple[Finding, ...]:
    fixes = (each.fix.dataloader_kwargs for each in run.findings if each.fix is not None)
    own = next(filter(None, fixes), dict[str, Any]())
    sign = 1 if sum(part.log_ratio.value for part in parts) > 0 else -1
    found = []
    for part in parts:
        cost = 1 - math.exp(-max(0.0, sign * part.log_ratio.value))
        cause = _cause(part, slow.config, fast.config, own)
        if cost < at.SAME_RATE or cause is None:
            continue
        gain = part.factor if sign > 0 else part.factor.inverse
        unsure = gain.low is not None and gain.low <= 1
        found.append(
            Finding(
                code=cause[0],
                severity=severity_of(cost),
                title=part.title,
                explanation=part.explanation,
                evidence={"a": part.a, "b": part.b, "trials": [*slow.trials]},
                fix=cause[1],
                predicted_gain=gain if part.alone is None else gain.times(part.alone / gain.value),
                cost=cost,
                doubtful="Its interval reaches to no difference." if unsure else "",
            )
        )
    return tuple(sorted(found, key=lambda each: -each.cost))


def _cause(part: Part, slow: Config, fast: Config, own: Figures) -> tuple[FindingCode, Fix] | None:
    """The code and what would fix it; ``None`` for what no code is about.

    ``own`` is what the report of the slower run sets.
    """
    if part.code in {"settings", "wait"}:  # what a script's settings make is in its waiting
        fewer = slow.num_workers < fast.num_workers
        shallow = (slow.prefetch_factor or 0) < (fast.prefetch_factor or 0)
        ordered: FindingCode | None = "order.blocking" if slow.in_order > fast.in_order else None
        code: FindingCode | None = "prefetch.shallow" if shallow else ordered
        if slow.num_workers != fast.num_workers:
            code = "too_few_workers" if fewer else "too_many_workers"
        size = None if slow.batch_size == fast.batch_size else fast.batch_size
        wanted = dataclasses.replace(fast, batch_size=size)
        settings = fast.dataloader_kwargs()
        text = f"Set what the faster run has: {wanted.text}"
        if any(settings.get(name) != value for name, value in own.items()):
            others = ", ".join(f"{name}={value!r}" for name, value in own.items())
            text += f" (measured; the slower run's own report predicts {others})"
        return code and (code, Fix(text=f"{text}.", dataloader_kwargs=settings))
    if part.code == "receive":
        pin, receive = (
            abs((part.b[name] or 0.0) - (part.a[name] or 0.0))
            for name in ("pin_s_per_sample", "receive_s_per_sample")
        )
        if pin > receive:
            return "main.pin", Fix(text="Pin less: smaller batches, or pin_memory=False.")
    if part.code == "copy" and fast.pin_memory and not slow.pin_memory:
        text = "Pin the batches before they are copied."
        return "transfer.pageable", Fix(text=text, dataloader_kwargs={"pin_memory": True})
    found = KINDS[part.code].cause
    return None if found is None else (found[0], Fix(text=found[1]))


def _exp(log: float) -> float:
    return math.exp(max(-LARGEST_LOG, min(LARGEST_LOG, log)))


_Cause = TypeVar("_Cause", bound=Hashable)


def split(a: Chosen, b: Chosen) -> dict[PartCode, Estimate]:
    """Split the difference of two, ``ln(rate of B / rate of A)``: what adds up to it.

    Only parts that can differ are among them, and the remainder.

    The intervals are jackknife ones: each trial of what was compared is left out once, and the
    spread of what then comes out, with Student's t, gives 95 % (Miller, *The jackknife: a review*,
    Biometrika 1974), as sure as the side is that spreads most (Welch, Biometrika 1947). They hold
    what varies between trials of a run, not what its closed form gets wrong: that is in the
    remainder.
    """
    whole = _parts(a, b)
    without = [[_parts(each, b) for each in a.leaving_out()]]
    without.append([_parts(a, each) for each in b.leaving_out()])

    def interval(code: PartCode) -> Estimate:
        value = whole[code]
        if not all(without):
            return Estimate(value=value)
        left_out = [[parts.get(code, 0.0) for parts in some] for some in without]
        free = [len(some) - 1 for some in without]
        squares = [n * statistics.pvariance(some) for n, some in zip(free, left_out, strict=True)]
        variance, half = math.fsum(squares), 0.0
        if variance > 0:
            both = zip(squares, free, strict=True)
            degrees = 1 / math.fsum((square / variance) ** 2 / n for square, n in both)
            half = t_quantile(0.975, degrees) * math.sqrt(variance)
        return Estimate(value=value, low=value - half, high=value + half)

    return {code: interval(code) for code in whole}


def _parts(a: Chosen, b: Chosen) -> dict[PartCode, float]:
    """The parts of two that are compared.

    With different settings, by way of what one of the runs measured of both; of two ways the mean.
    """
    ways = []
    for one, two in bridges(a, b):
        settings = (one.log_rate - a.log_rate) + (b.log_rate - two.log_rate)
        ways.append({**_shared_out(one, two), "settings": settings})
    ways = ways or [_shared_out(a, b)]
    codes = dict.fromkeys(code for way in ways for code in way)
    return {code: statistics.fmean(way.get(code, 0.0) for way in ways) for code in codes}


def _shared_out(a: Chosen, b: Chosen) -> dict[PartCode, float]:
    """The difference of two sides, shared out by the closed form; the remainder is its misfit."""
    total = b.log_rate - a.log_rate
    known = comparable(a, b)
    if known is None:
        return {"remainder": total}
    one, two = known
    differing = [
        code
        for code, kind in KINDS.items()
        if any(getattr(one, field) != getattr(two, field) for field in kind.costs)
    ]
    parts = shares(differing, exchanging(one, two))
    return {**parts, "remainder": total - math.fsum(parts.values())}


def comparable(a: Chosen, b: Chosen) -> tuple[SideCosts, SideCosts] | None:
    """The costs of both sides, what one of them doesn't show left out of both."""
    if a.costs is None or b.costs is None:
        return None
    hidden = [field for code in (*a.unknown, *b.unknown) for field in KINDS[code].costs]
    neutral = {field: getattr(SideCosts(cpu_s=1.0), field) for field in hidden}
    one, two = (dataclasses.replace(side, **neutral) for side in (a.costs, b.costs))
    if one.affinity == two.affinity:
        # Where CPUs are as many, more waiting for them is no matter of how many there are.
        one, two = (
            dataclasses.replace(
                side, neighbour_stretch=side.neighbour_stretch * side.own_stretch, own_stretch=1.0
            )
            for side in (one, two)
        )
    return one, two


def exchanging(a: SideCosts, b: SideCosts) -> Callable[[frozenset[PartCode]], float]:
    """The log rate of A with some parts as in B."""

    def value(codes: frozenset[PartCode]) -> float:
        changed = {field: getattr(b, field) for code in codes for field in KINDS[code].costs}
        return dataclasses.replace(a, **changed).log_rate

    return value


def shares(
    causes: Sequence[_Cause], value: Callable[[frozenset[_Cause]], float]
) -> dict[_Cause, float]:
    """What each cause contributes to ``value(all) - value(none)``, whatever their order.

    The Shapley decomposition (Shapley 1953; Shorrocks, *Decomposition procedures for distributional
    analysis*, Journal of Economic Inequality 2013): a cause's share is the change that it makes
    when it is exchanged, averaged over all orders in which the causes can be exchanged one after
    another. The shares add up to the whole difference, and no order is preferred.

    Args:
        causes: All different; each more doubles the work.
        value: The quantity where the given causes are exchanged and the others are not; called
            once for each subset.
    """
    count = len(causes)
    sizes = (itertools.combinations(causes, size) for size in range(count + 1))
    values = {some: value(some) for some in map(frozenset, itertools.chain.from_iterable(sizes))}
    return {
        cause: math.fsum(
            # In so large a share of all orders exactly these come before it.
            (values[some | {cause}] - values[some]) / count / math.comb(count - 1, len(some))
            for some in values
            if cause not in some
        )
        for cause in causes
    }


_LEAST, _MOST = 1e-12, 1e12


@dataclasses.dataclass(frozen=True, kw_only=True)
class Chosen:
    """A configuration of a run that is compared, and what the run shows of it."""

    run: Run  # the run
    config: Config  # which
    name: str  # it in words
    trials: tuple[Trial, ...]  # those with a rate, of this configuration and of others
    # The one rate of each configuration, as all views of the run have it.
    rates: Mapping[Config, Estimate]
    # Mean natural logarithm of the rates of each one's trials, of all of them.
    means: Mapping[Config, float]

    @property
    def own(self) -> list[Trial]:
        """The trials of this configuration."""
        return [trial for trial in self.trials if trial.config == self.config]

    @property
    def rate(self) -> Estimate:
        """What this configuration is worth."""
        return self.rates[self.config]

    @property
    def log_rate(self) -> float:
        """Natural logarithm of the rate, moved by as much as the trials that are left out do."""
        left = statistics.fmean(map(log_of, self.own))
        return math.log(self.rate.value) + left - self.means[self.config]

    @property
    def settings(self) -> Config:
        """The settings as both runs name them."""
        return _settings(self.run, self.config)

    def having(self, settings: Config) -> Chosen | None:
        """The configuration of such settings, if the run measured it."""
        known = {_settings(self.run, trial.config): trial.config for trial in self.trials}
        found = known.get(settings)
        return None if found is None else dataclasses.replace(self, config=found)

    @functools.cached_property
    def figures(self) -> Mapping[str, Any]:
        """What the trials say, by name with unit: the evidence."""
        own, rates = self.own, list(map(rate_of, self.own))
        header = self.run.header
        machine = {
            **{name: getattr(header.machine, name) for name in _MACHINE},
            "other_cpu_cores": _mean(trial.usage.other_cpu_cores for trial in own),
        }
        if header.launched > 1:  # of one of which the trials' other figures are
            machine = {name: whole and whole / header.launched for name, whole in machine.items()}
        figures = _batch_figures(self) | {
            **{name: _mean(getattr(trial.usage, name) for trial in own) for name in _USAGE},
            **machine,
            "wait_fraction": _mean(trial.wait_fraction for trial in own),
            "settings": self.config.text,
        }
        wait, copy_s = figures["wait_fraction"], figures["copy_s_per_sample"]
        per_sample_s = statistics.fmean(1 / rate for rate in rates)
        step_s = None if wait is None else max(0.0, (1 - wait) * per_sample_s - (copy_s or 0.0))
        # The geometric mean of the CPU time, which a busy neighbour changes least.
        used = zip(rates, (trial.usage.own_cpu_cores for trial in own), strict=True)
        log_cpu_s = _mean(math.log(bounded(cores / rate)) for rate, cores in used if cores)
        cpu_s = None if log_cpu_s is None else math.exp(log_cpu_s)
        figures |= {"step_s_per_sample": step_s, "cpu_s_per_sample": cpu_s}
        if self.run.watched:
            # The clock around ``next()`` shows the loop, and its first batches' stages the rest.
            # By its name: another loader may be set alike.
            period_s, names = math.exp(-self.log_rate), {trial.id for trial in own}
            figures["fetch_s_per_batch"] = _fetch_s(self.run, names)
            figures["wait_s_per_sample"] = None if wait is None else wait * period_s
            if wait is not None:  # copies are part of the step, whose length the clock shows
                figures["step_s_per_sample"] = max(0.0, period_s - wait * period_s)
        return figures

    @functools.cached_property
    def costs(self) -> SideCosts | None:
        """What the closed form takes; ``None`` where CPU time, or a loop's wait, isn't known."""
        figures, config = self.figures, self.config
        if self.run.watched:
            wait_s, step_s = figures["wait_s_per_sample"], figures["step_s_per_sample"]
            return None if wait_s is None else SideCosts(cpu_s=1.0, wait_s=wait_s, step_s=step_s)
        if figures["cpu_s_per_sample"] is None:
            return None
        queued = min(_MOST_WAITING, figures["run_queue_wait_fraction"] or 0.0)
        threads = max(1.0, figures["own_cpu_cores"] / (1 - queued))  # those that wait for a core
        costs = SideCosts(
            **{name: figures[f"{name}_per_sample"] or 0.0 for name in _SECONDS},
            worker_share=figures["worker_share"],
            threads=1.0 if config.num_workers else threads,
            affinity=bounded(figures["affinity_cpus"] or figures["usable_cores"]),
            pin_thread=config.pin_memory and config.num_workers > 0,
            workers=config.num_workers,
        )
        return _with_waiting(costs, figures)

    @property
    def unknown(self) -> Mapping[PartCode, str]:
        """Parts that the run does not show, and why."""

        def unrecorded(field: str) -> str:
            reasons = (trial.unavailable.get(f"usage.{field}", "") for trial in self.own)
            return next(filter(None, reasons), "its trials do not record it")

        if self.run.watched:
            return {} if self.costs is not None else {"wait": "its loop has no time"}
        if self.costs is None:
            return {"cpu": unrecorded("own_cpu_cores")}
        shown, found = self.figures, dict[PartCode, str]()
        if None in (shown["receive_s_per_sample"], shown["pin_s_per_sample"]):
            found["receive"] = "run dlprof profile"
        if shown["copy_s_per_sample"] is None:
            found["copy"] = "run dlprof profile"
        if shown["io_s_per_sample"] is None:
            how = "run the sweep with --num-workers 0 among the values, or dlprof profile"
            found["storage"] = how
        if shown["other_cpu_cores"] is None:
            found["neighbours"] = unrecorded("other_cpu_cores")
        return found

    def leaving_out(self) -> list[Chosen]:
        """Without each of its own trials, or group of them; none if there is but one."""
        own = self.own
        # Trials of one configuration are left out in at most so many groups, however many
        # there are.
        count = min(20, len(own))
        return [
            dataclasses.replace(self, trials=tuple(t for t in self.trials if id(t) not in out))
            for place in range(count if count > 1 else 0)
            for out in [{id(trial) for trial in own[place::count]}]
        ]


_ALIKE = "Give two run files of dlprof run, or two of dlprof sweep or dlprof profile."


def pair(
    a: Run, b: Run, *, num_workers: int | None = None, best: bool = False
) -> tuple[Chosen, Chosen, str]:
    """What to compare: that of either run, and which these are and why, one sentence."""
    scripts = [run for run in (a, b) if run.is_script]
    if len(scripts) == 2:
        return _loops(a, b, num_workers=num_workers, best=best)
    if scripts:
        raise NothingMeasuredError(
            f"{scripts[0].path} is of a training script, which has no trials", hint=_ALIKE
        )
    data, other = a.header.target, b.header.target
    if data.dataset != other.dataset and data.spec != other.spec:
        raise UsageError(
            f"The runs load different data: {data.spec} ({data.dataset}) and {other.spec} "
            f"({other.dataset})",
            hint="Compare runs of one target, or of two versions of it with one name.",
        )
    found_a, found_b = _choices(a, num_workers), _choices(b, num_workers)
    shared = [settings for settings in found_a if settings in found_b]
    if shared and not best:
        pairs = [(found_a[settings], found_b[settings]) for settings in shared]
        one, two = max(pairs, key=lambda both: both[0].rate.value * both[1].rate.value)
        how = f"Compared at the same settings in both runs: {one.name}"
        if len(shared) > 1:
            how += f", the fastest of the {len(shared)} that both measured"
    else:
        one, two = (
            max(found.values(), key=lambda each: each.rate.value) for found in (found_a, found_b)
        )
        why = "" if shared else ", as no settings were measured in both"
        how = f"Compared at the fastest settings of each run{why}: {one.name}, and {two.name}"
    return one, two, f"{how}."


def _loops(a: Run, b: Run, *, num_workers: int | None, best: bool) -> tuple[Chosen, Chosen, str]:
    """The loops of two training scripts: over the loader that is waited for longest in both."""
    found_a, found_b = _watched(a, num_workers), _watched(b, num_workers)
    shared = [name for name in found_a if name in found_b]
    if shared and not best:
        name = max(shared, key=lambda name: found_a[name].waited_s + found_b[name].waited_s)
        one, two, how = found_a[name], found_b[name], f"the loop over {name} in both scripts"
    else:
        one, two = (
            max(found.values(), key=lambda each: each.waited_s) for found in (found_a, found_b)
        )
        how = f"the loops over {one.name} and {two.name}, which are waited for longest"
    times = [each.step_times for each in (one, two) if each.step_times is not None]
    if len(times) == 2 and (waits := in_step(times)):
        (wait_a, _), (wait_b, _) = waits
        one, two = _alone(a, one, wait_a), _alone(b, two, wait_b)
        how += ", as fast as each rank is without the waits in its steps for the other's batches"
        how += ", as far as its workers keep up"
    return _chosen_loop(a, one), _chosen_loop(b, two), f"Compared: {how}."


def _alone(run: Run, loader: WatchedLoader, waits: float) -> WatchedLoader:
    """A loop without the share of its time in which its steps waited for another rank's batches.

    Its workers went on fetching in that time. So it is no faster than they fetch, and waits for
    them.
    """
    rate, workers = loader.batches_per_s, 0 if loader.config is None else loader.config.num_workers
    fetch_s = _fetch_s(run, {loader.name}) if workers else None
    fetching = 0.0 if fetch_s is None or rate is None else min(1.0, fetch_s / workers * rate)
    left = max(1 - waits, fetching, _LEAST)  # of the time of a batch

    def faster(rate: float | None) -> float | None:
        return None if rate is None else rate / left

    wait = loader.wait_fraction
    return dataclasses.replace(
        loader,
        samples_per_s=faster(loader.samples_per_s),
        batches_per_s=faster(rate),
        wait_fraction=None if wait is None else min(1.0, 1 - (1 - wait - waits) / left),
    )


def _fetch_s(run: Run, names: Container[str]) -> float | None:
    """Seconds that fetching a batch takes, of loops by their names, where that was followed."""
    traced = (each for each in run.explanations if each.trial_id in names)
    fetch = next((each.stage("fetch") for each in traced if each.hooked), None)
    return None if fetch is None else fetch.mean_s


def _watched(run: Run, num_workers: int | None) -> dict[str, WatchedLoader]:
    if not run.watched:
        raise NothingMeasuredError(
            f"No DataLoader was iterated in the script of {run.path}",
            hint="Watch a script that loads data: see dlprof run.",
        )
    found = {each.name: each for each in run.watched if (each.samples_per_s or 0.0) > 0}
    if not found:
        raise NothingMeasuredError(
            f"{run.path} has no rate", hint="None of its loaders gave samples that can be counted."
        )
    if num_workers is None:
        return found
    configs = {name: each.config for name, each in found.items()}
    fitting = {n: found[n] for n, c in configs.items() if c and c.num_workers == num_workers}
    if not fitting:
        raise UsageError(f"{run.path} has no loader of num_workers={num_workers}")
    return fitting


def _chosen_loop(run: Run, loader: WatchedLoader) -> Chosen:
    config, rate = loader.config or Config(), Estimate(value=loader.samples_per_s or 0.0)
    batches = loader.batches_per_s
    trial = Trial(
        id=loader.name,
        config=config,
        repetition=0,
        outcome="completed",
        samples_per_s=rate,
        batches_per_s=None if batches is None else Estimate(value=batches),
        samples_per_batch=rate.value / batches if batches else None,
        wait_fraction=loader.wait_fraction,
    )
    return Chosen(
        run=run,
        config=config,
        name=config.text,
        trials=(trial,),
        rates={config: rate},
        means={config: log_of(trial)},
    )


def _choices(run: Run, num_workers: int | None) -> dict[Config, Chosen]:
    """What a run measured and can be compared, by its settings.

    With those trials alone whose rates can be compared with each other: none of traced trials or
    with a cold cache; and no trial without a step beside trials of the same configuration that
    have one.
    """
    plain = [trial for trial in run.trials if trial.purpose == "measure"]
    stepped = {trial.config for trial in plain if trial.wait_fraction is not None}
    alike = (t for t in plain if t.wait_fraction is not None or t.config not in stepped)
    run = dataclasses.replace(run, trials=tuple(alike))
    measured = [each for each in gather(run) if each.trials]
    if not measured:
        raise NothingMeasuredError(f"{run.path} has no rate", hint=_ALIKE)
    tried = sorted({each.config.num_workers for each in measured})
    if num_workers is not None and num_workers not in tried:
        raise UsageError(
            f"{run.path} did not measure num_workers={num_workers}",
            hint=f"It has {', '.join(map(str, tried))}.",
        )
    speeds = speeds_of(Situation.of(run))
    rates = {each.config: speeds.rate(each.key) for each in measured}
    means = {m.config: statistics.fmean(map(log_of, m.trials)) for m in measured}
    return {
        _settings(run, each.config): Chosen(
            run=run,
            config=each.config,
            name=each.name,
            trials=tuple(trial for trial in run.trials if trial.has_rate),
            rates=rates,
            means=means,
        )
        for each in measured
        if num_workers in {None, each.config.num_workers}
    }


def rate_of(trial: Trial) -> float:
    """Samples per second, within what logarithms and quotients can take, whatever a file says."""
    return bounded(trial.samples_per_s.value) if trial.samples_per_s is not None else _LEAST


def log_of(trial: Trial) -> float:
    """Natural logarithm of the samples per second."""
    return math.log(rate_of(trial))


def bounded(value: float) -> float:
    """A figure within what logarithms and quotients can take."""
    return min(_MOST, max(_LEAST, value))


def _settings(run: Run, config: Config) -> Config:
    own = run.header.target.batch_size
    return dataclasses.replace(config, batch_size=config.batch_size or own)


def bridges(a: Chosen, b: Chosen) -> list[tuple[Chosen, Chosen]]:
    """Where the settings differ, the same ones of both runs: as A has them, and as B does.

    They separate settings from the rest, as far as the run of the other one measured them too.
    """
    if a.settings == b.settings:
        return []
    known = [(a.having(settings), b.having(settings)) for settings in (a.settings, b.settings)]
    return [(one, two) for one, two in known if one is not None and two is not None]


def doubts(a: Chosen, b: Chosen) -> Iterator[str]:
    """What is against the comparison, one sentence each."""
    ranks = [each.run.header.launched for each in (a, b)]
    if ranks[0] != ranks[1]:
        yield f"Rates are of one loader each: A loaded {ranks[0]} of them at once, B {ranks[1]}."
    if a.run.watched:
        loops = [side.own[0].id for side in (a, b)]
        if loops[0] != loops[1]:
            names = " and ".join(loops)
            yield f"The loops have different names ({names}): they may do different work."
        for name, script in (("A", a.run.script), ("B", b.run.script)):
            if script is None or script.ending in {"running", "interrupted"}:
                yield f"The script of {name} was cut off: its figures are of a part of it."
            elif script.ending == "exception" or script.exit_code:
                yield f"The script of {name} failed: its figures are of what ran before."
    data, other = a.run.header.target, b.run.header.target
    if data.spec != other.spec:
        yield f"The targets have different names ({data.spec} and {other.spec})."
    if data.dataset != other.dataset:
        yield f"The datasets are of different classes ({data.dataset} and {other.dataset})."
    if data.arguments != other.arguments:
        yield "The targets were given different arguments."
    if data.length != other.length:
        lengths = ("unknown" if n is None else f"{n:,}" for n in (data.length, other.length))
        yield f"The datasets differ in length ({' and '.join(lengths)})."
    if a.settings.batch_size != b.settings.batch_size:
        yield "The batch sizes differ; samples per second are compared."
    if data.keeps_samples or other.keeps_samples:
        yield (
            "A dataset keeps samples: its rate is over 10 epochs, and the parts are those of the "
            "first, so what kept samples bring is in the unexplained rest."
        )
    sides = ("A", data, other), ("B", other, data)
    spread = (name for name, each, rest in sides if each.is_spread > rest.is_spread)
    yield from (f"Only in {name} trials took {SPREAD_SIGN}." for name in spread)
    one, two = a.run.header, b.run.header
    steps = [side.settings.get("step_s") for side in (one, two)]
    step_s = [float(each) if isinstance(each, int | float) else 0.0 for each in steps]
    if abs(step_s[0] - step_s[1]) > at.SAME_STEP * max(step_s):
        lasting = " and ".join(map(format_duration, step_s))
        yield f"The runs were measured with different steps ({lasting})."
    if one.torch_version != two.torch_version:
        differ = f"The versions of torch differ ({one.torch_version} and {two.torch_version})"
        yield f"{differ}: that may explain some of the CPU time per sample."
    if one.python_version != two.python_version:
        yield f"The versions of Python differ ({one.python_version} and {two.python_version})."
    if (one.accelerator is None) != (two.accelerator is None):
        yield "Only one of the runs had an accelerator."
    for name, side in (("A", a), ("B", b)):  # what its own diagnosis doubts of all that it saw
        found = side.run.diagnosis
        if found is not None and {trial.id for trial in side.own} & {*found.trials}:
            said = (text for each in found.findings for text in each.doubtful.split(". "))
            texts = (each.rstrip(".") for each in said if WHILE_MEASURED in each)
            yield from (f"{name}: {text}." for text in dict.fromkeys(texts))
    if a.run.watched:  # the wait holds what the settings make
        yield "Each script ran once: run-to-run variation is unknown."
        return
    if a.settings != b.settings and not bridges(a, b):
        estimate = "Neither run measured both settings, so their part is an estimate."
        yield f"{estimate} More workers may also take a larger share of busy cores."
    for name, own in (("A", a.own), ("B", b.own)):
        if len(own) == 1:
            yield f"{name} was measured only once, so its spread is unknown."
        if any(trial.whole_epochs for trial in own):
            yield f"The epochs of {name} were too short: its rate includes epoch restarts."


_USAGE = (
    *("own_cpu_cores", "available_cpu_cores", "run_queue_wait_fraction"),
    *("throttled_fraction", "cache_hit_fraction", "read_bytes_per_s"),
)
_MACHINE = ("logical_cpus", "affinity_cpus", "quota_cores", "usable_cores")
_SECONDS = ("cpu_s", "io_s", "receive_s", "pin_s", "copy_s", "step_s")
_MOST_WAITING = 0.99
_LEAST_CORES = 1e-3


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class SideCosts:
    """What decides the rate of one configuration on one machine. Seconds are per sample."""

    cpu_s: float  # CPU seconds of all the loader's processes
    worker_share: float = 1.0  # share of that in workers; 1 where it isn't known
    threads: float = 1.0  # threads that run or want to without workers, on average, at least 1
    affinity: float = 1.0  # CPUs that the job may run on
    # What a CPU second takes because own threads get into each other's way, beyond what too few
    # CPUs explain; 1 for no longer.
    own_stretch: float = 1.0
    quota_stretch: float = 1.0  # the same because a quota holds the job back
    neighbour_stretch: float = 1.0  # the same because neighbours take cores
    io_s: float = 0.0  # true waiting in fetching and collating
    receive_s: float = 0.0  # taking, rebuilding and ordering a batch, in the main process
    pin_s: float = 0.0  # copying to page-locked memory
    pin_thread: bool = False  # whether a thread of its own receives and pins
    copy_s: float = 0.0  # copying to the device
    step_s: float = 0.0  # the training step
    # What a loop of a training script waits for data, where that is all that is known of its
    # loading.
    wait_s: float | None = None
    workers: int = 0  # ``num_workers``

    @property
    def computing_s(self) -> float:
        """How long computing takes, were there CPUs enough."""
        return self.cpu_s * self.own_stretch * self.quota_stretch * self.neighbour_stretch

    @property
    def demand(self) -> float:
        """Threads that want to run at once, on average."""
        if self.workers == 0:
            return self.threads
        busy_s = self.worker_share * self.computing_s
        return self.workers * busy_s / (busy_s + self.io_s)

    @property
    def log_rate(self) -> float:
        """Natural logarithm of the samples per second that the model's bounds allow."""
        if self.wait_s is not None:  # the loop's two parts, one after the other
            return -math.log(max(_LEAST, self.wait_s + self.copy_s + self.step_s))
        cpu_s, main_s = self.worker_share * self.computing_s, self.receive_s
        helpers = 1 / self.worker_share - 1  # main computes beside the workers
        io_s, pinned = self.io_s, self.workers > 0 and self.pin_thread
        if not self.workers:
            cpu_s, io_s = self.computing_s / min(self.threads, self.affinity), io_s + self.pin_s
            main_s = helpers = 0.0
        rate = rate_allowed(
            Means(cpu=cpu_s, io=io_s, receive_io=main_s + (self.pin_s if pinned else 0.0)),
            workers=self.workers,
            cores=self.affinity,
            step_s=self.copy_s + self.step_s,
            helpers=helpers,
            pinned=pinned,
        )
        return math.log(min(_MOST, rate))


def _batch_figures(chosen: Chosen) -> dict[str, Any]:
    """What traced trials, or else calibrations, show; ``None`` where neither does."""
    run, config = chosen.run, chosen.config
    explained = _explanation(run, config)
    batch = explained.costs if explained is not None and explained.costs.cpu_s else None
    known = run.calibration
    if batch is None and known is not None and known.batch_size == config.batch_size:
        batch = known.in_workers if config.num_workers else known.in_main
    sizes = [size for t in chosen.own if (size := t.samples_per_batch or 0.0) > 0]
    samples = statistics.fmean(sizes) if sizes else float(run.header.target.batch_size or 1)

    def each(seconds: float | None) -> float | None:
        return None if seconds is None else max(0.0, seconds) / samples

    def mean_s(*columns: str, stages: Sequence[StageName] = ()) -> float | None:
        """Of some columns together or, where all of them are empty, of some stages; per sample."""
        found = [
            statistics.fmean(values) for name in columns if (values := getattr(batch, name, ()))
        ]
        if not found and explained is not None:
            found = [stage.mean_s for n in stages if (stage := explained.stage(n)) is not None]
        return each(sum(found)) if found else None

    in_worker_s, in_main_s = mean_s("cpu_s", "put_cpu_s"), mean_s("receive_cpu_s", "main_cpu_s")
    share = 1.0
    if config.num_workers and in_worker_s and in_main_s is not None:
        share = max(0.01, in_worker_s / (in_worker_s + in_main_s))
    taken = ("receive_cpu_s", "receive_io_s", "main_cpu_s")
    receive_s = mean_s(*taken, stages=["dispatch", "rebuild"])
    pin_s = mean_s("pin_s", stages=["pin"])
    has_device, copy_s = run.header.accelerator is not None, mean_s(stages=["copy"])
    if copy_s is None and known is not None:
        copy_s = each(known.copy_s)
    io_s, source = mean_s("io_s"), "a traced trial"
    if io_s is None and explained is not None and (fetch := explained.stage("fetch")) is not None:
        io_s = each(fetch.io_s)
    if io_s is None:
        io_s, source = _left_waiting(chosen)
    return {
        "worker_share": share,
        # Without workers it is part of the fetching.
        "receive_s_per_sample": receive_s if config.num_workers else 0.0,
        "pin_s_per_sample": pin_s if config.pin_memory and has_device else 0.0,
        "copy_s_per_sample": copy_s if has_device else copy_s or 0.0,
        "io_s_per_sample": io_s,
        "io_from": None if io_s is None else source,
    }


def _explanation(run: Run, config: Config) -> Explanation | None:
    """The last explanation of a configuration, or of one whose samples cost the same.

    That is one that differs in the number, depth and life of its queues alone.
    """

    def sample(each: Config) -> Config:
        some = min(1, each.num_workers)
        alike = dataclasses.replace(each, num_workers=some, persistent_workers=False)
        return dataclasses.replace(alike, prefetch_factor=None, in_order=True)

    hooked = [each for each in run.explanations if each.hooked]
    alike = [each for each in reversed(hooked) if sample(each.config) == sample(config)]
    return max(alike, key=lambda each: each.config == config, default=None)


def _with_waiting(costs: SideCosts, figures: Mapping[str, Any]) -> SideCosts:
    """The costs with what waiting for a core adds, and to whom that is put down.

    All waiting is known from the run queue, and what the quota caused, from its throttling. Of what
    too few CPUs don't explain, the rest is the neighbours', if they keep a good part of the CPUs
    busy, and that of own threads that get into each other's way, if nobody else is there.
    """
    waiting = figures["run_queue_wait_fraction"]
    if waiting is None:
        return _without_run_queue(costs, figures)
    own: float = figures["own_cpu_cores"]
    whole = 1 / (1 - min(_MOST_WAITING, max(0.0, waiting)))
    # The fraction is of the window or, where that is longer, of the time held back and used.
    held = min(_MOST_WAITING, max(0.0, figures["throttled_fraction"] or 0.0))
    held = max(held, own * held / (1 - held)) if own > 0 else held
    quota = min(whole, 1 + held / max(_LEAST_CORES, own))
    others = max(0.0, figures["other_cpu_cores"] or 0.0) / costs.affinity
    theirs = min(1.0, others / 0.2)  # of the CPUs: from there on all of it
    # How many want to run at once depends on how long computing takes, which waiting is part of.
    wanted = dataclasses.replace(costs, quota_stretch=whole).demand
    excess = max(1.0, whole / quota / max(1.0, wanted / costs.affinity))
    return dataclasses.replace(
        costs,
        quota_stretch=quota,
        neighbour_stretch=excess**theirs,
        own_stretch=excess ** (1 - theirs),
    )


def _without_run_queue(costs: SideCosts, figures: Mapping[str, Any]) -> SideCosts:
    """What cores that were used up, or a quota that was, say of waiting for them."""
    own: float = figures["own_cpu_cores"]
    quota, others = figures["quota_cores"], figures["other_cpu_cores"]
    wanted = min(costs.affinity, costs.demand)
    if quota is not None and own >= at.USED_UP * quota:
        return dataclasses.replace(costs, quota_stretch=max(1.0, wanted / bounded(quota)))
    if others is None or own < at.USED_UP * (costs.affinity - others):
        return costs
    left = max(_LEAST_CORES, costs.affinity - others)
    return dataclasses.replace(costs, neighbour_stretch=max(1.0, wanted / left))


def _left_waiting(chosen: Chosen) -> tuple[float | None, str]:
    """True waiting per sample as ``num_workers=0`` leaves it, and the trials that show it.

    It is their time per sample less CPU time and run-queue wait, as there nothing overlaps.
    """
    run, size = chosen.run, chosen.settings.batch_size
    plain = [t for t in chosen.trials if not t.config.num_workers]
    plain = [t for t in plain if _settings(run, t.config).batch_size == size]
    found = []
    for trial in plain:
        cores, queued = trial.usage.own_cpu_cores, trial.usage.run_queue_wait_fraction
        if cores is None or queued is None:
            continue
        waiting = 1.0 if trial.wait_fraction is None else trial.wait_fraction
        busy = min(1.0, cores) / (1 - min(_MOST_WAITING, queued))
        found.append(max(0.0, waiting - busy) / rate_of(trial))
    return _mean(found), f"num_workers=0 ({', '.join(trial.id for trial in plain)})"


def _mean(values: Iterable[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return statistics.fmean(known) if known else None
