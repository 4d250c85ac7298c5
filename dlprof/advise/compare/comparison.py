"""Why one run is faster than another: the difference of their rates, split into parts."""

from __future__ import annotations

import dataclasses
import itertools
import math
import statistics
from collections.abc import Callable, Hashable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, NamedTuple, TypeVar

from dlprof import late
from dlprof.advise import thresholds as at
from dlprof.advise.compare.sides import (
    Chosen,
    PartCode,
    SideCosts,
    bridges,
    doubts,
    pair,
)
from dlprof.advise.speeds import product
from dlprof.advise.wording import percent, severity_of
from dlprof.advise.wrong_data import said_first
from dlprof.records import Config, Estimate, Finding, FindingCode, Fix, Run
from dlprof.stats import LARGEST_LOG, t_quantile
from dlprof.units import format_bytes, format_duration

Figures = Mapping[str, Any]


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class SideInfo:
    """One of the two runs, as far as the comparison used it.

    Attributes:
        run_file: Its path.
        hostname: Its machine.
        cpu_model: CPU model as the system names it.
        started_at: ISO 8601, UTC.
        target: TARGET as the user wrote it.
        config: The configuration that was compared.
        samples_per_s: Its rate, the one that all views of its run have.
        trials: Ids of its trials.
        noisy: How many of those are doubtful.
    """

    run_file: str
    hostname: str
    cpu_model: str
    started_at: str
    target: str
    config: Config
    samples_per_s: Estimate
    trials: tuple[str, ...]
    noisy: int


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """One part of the difference.

    Attributes:
        code: Which.
        title: It in words.
        log_ratio: What it adds to ``ln(rate of B / rate of A)``; all parts add up to that.
        factor: ``exp`` of it: all factors multiply to the ratio of the rates.
        explanation: The figures of both sides in one sentence.
        a: Figures of A, by name with unit.
        b: Figures of B.
        alone: Rate of the slower side if only this were as on the other, over its rate now, by
            the closed form; ``None`` for the remainder and for settings that were measured.
    """

    code: PartCode
    title: str
    log_ratio: Estimate
    factor: Estimate
    explanation: str
    a: Figures = dataclasses.field(default_factory=dict)
    b: Figures = dataclasses.field(default_factory=dict)
    alone: float | None = None


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """Why one run is faster than another.

    Attributes:
        a: The first run.
        b: The second run.
        pairing: Which configurations were compared, and why these; one sentence.
        ratio: Rate of B over rate of A.
        verdict: The difference and its biggest part, in a sentence or two.
        parts: Largest first, the remainder last.
        unknown: Parts that the runs don't show, and what would show them; what they hold is in
            the remainder.
        doubts: What is against the comparison, one sentence each.
        findings: What slows the slower side, ordered by cost.
    """

    a: SideInfo
    b: SideInfo
    pairing: str
    ratio: Estimate
    verdict: str
    parts: tuple[Part, ...]
    unknown: Mapping[str, str] = dataclasses.field(default_factory=dict)
    doubts: tuple[str, ...] = ()
    findings: tuple[Finding, ...] = ()

    def _repr_html_(self) -> str:
        """What a notebook shows."""
        return str(late.call("notebook_html", self))


class CauseKind(NamedTuple):
    """A kind of part.

    Attributes:
        title: It in words.
        costs: The fields of ``SideCosts`` that belong to it.
        figures: Names of the figures that show it.
        sentence: These of both sides in a sentence.
        cause: The code of its finding and the fix, where it slows the slower side.
    """

    title: str
    costs: tuple[str, ...]
    figures: tuple[str, ...]
    sentence: Callable[[Figures, Figures], str]
    cause: tuple[FindingCode, str] | None = None


def _seconds(text: str, name: str) -> Callable[[Figures, Figures], str]:
    """A sentence with the seconds of both sides."""
    return lambda a, b: text.format(format_duration(a[name]), format_duration(b[name]))


def _cpu(a: Figures, b: Figures) -> str:
    text = _seconds("A sample takes {} of CPU time in A and {} in B", "cpu_s_per_sample")(a, b)
    one, two = ((side["other_cpu_cores"] or 0.0) / side["usable_cores"] for side in (a, b))
    if abs(one - two) >= at.SHARED:
        text += (
            "; processes on the same cores may be a part of that: they share caches,"
            " hyper-threads and clock rate"
        )
    return text + "."


def _quota(side: Figures) -> str:
    quota, held = side["quota_cores"], side["throttled_fraction"]
    if quota is None:
        return "no quota"
    back = "" if held is None else f", which held the trial back {percent(held)} of the time"
    return f"a quota of {quota:g} cores{back}"


def _neighbours(side: Figures) -> str:
    available, waiting = side["available_cpu_cores"], side["run_queue_wait_fraction"]
    known = []
    if available is not None:
        known.append(f"had {available:.1f} of {side['usable_cores']:g} cores")
    if waiting is not None:
        known.append(f"{percent(waiting)} of its threads' time was run-queue delay")
    return ", and ".join(known) or "has no record of the cores"


def _storage(a: Figures, b: Figures) -> str:
    text = _seconds("A sample is blocked {} on its data in A and {} in B", "io_s_per_sample")(a, b)
    hits = [side["cache_hit_fraction"] for side in (a, b)]
    if None not in hits:
        text += f"; {percent(hits[0])} and {percent(hits[1])} came from the page cache"
    reads = [side["read_bytes_per_s"] for side in (a, b)]
    if all(reads):
        text += ", the rest from storage at {}/s and {}/s".format(*map(format_bytes, reads))
    return text + "."


def _receive(a: Figures, b: Figures) -> str:
    text = "Receiving takes the main process {} a sample in A and {} in B"
    text = _seconds(text, "receive_s_per_sample")(a, b)
    if a["pin_s_per_sample"] or b["pin_s_per_sample"]:
        text += _seconds("; pinning, {} and {}", "pin_s_per_sample")(a, b)
    return text + "."


def _waiting(a: Figures, b: Figures) -> str:
    text = _seconds("The loop waits {} a sample in A and {} in B", "wait_s_per_sample")(a, b)
    if a["settings"] != b["settings"]:
        text += f": A has {a['settings']}, B {b['settings']}"
    if a["fetch_s_per_batch"] and b["fetch_s_per_batch"]:
        text += _seconds("; fetching a batch takes {} in A and {} in B", "fetch_s_per_batch")(a, b)
    return text + "."


KINDS: Mapping[PartCode, CauseKind] = MappingProxyType(
    {
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
            lambda a, b: (
                f"The job may run on {a['affinity_cpus']} CPUs in A and on {b['affinity_cpus']}"
                " in B."
            ),
            ("cpu.affinity", "Let the job run on more CPUs: affinity mask, cpuset, taskset."),
        ),
        "quota": CauseKind(
            "CPU quota",
            ("quota_stretch",),
            ("quota_cores", "usable_cores", "throttled_fraction"),
            lambda a, b: f"{_quota(a)} in A, and {_quota(b)} in B.",
            ("cpu.quota", "Raise the CPU quota of the job's cgroup or container."),
        ),
        "neighbours": CauseKind(
            "background load",
            ("neighbour_stretch",),
            ("available_cpu_cores", "usable_cores", "other_cpu_cores", "run_queue_wait_fraction"),
            lambda a, b: f"A {_neighbours(a)}. B {_neighbours(b)}.",
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
            _seconds(
                "Copying to the device takes {} a sample in A and {} in B.", "copy_s_per_sample"
            ),
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
            _seconds("The training step takes {} a sample in A and {} in B.", "step_s_per_sample"),
            ("consumer", "The step is the limit; the loader is not what to change."),
        ),
        "settings": CauseKind(
            "the settings",
            ("workers", "pin_thread"),
            ("settings",),
            lambda a, b: f"A ran with {a['settings']}, B with {b['settings']}.",
        ),
        "remainder": CauseKind(
            "unexplained", (), (), lambda _a, _b: "What the figures of the runs don't explain."
        ),
    }
)
"""In the order in which they are shown where they are of one size."""


def compare(a: Run, b: Run, *, num_workers: int | None = None, best: bool = False) -> Comparison:
    """Split the difference of two runs' rates into parts that add up.

    The same configuration is compared in both where there is one, else the fastest of each.
    Where the configurations differ, what settings make is shown by measured rates if one of the
    runs measured both, and by the closed form otherwise. Rates are B over A. With ``best`` the
    fastest of each run are compared in any case.

    Raises:
        NothingMeasuredError: If one of them has no rate.
        UsageError: If they load different data, or ``num_workers`` was not measured in both.
    """
    one, two, how = pair(a, b, num_workers=num_workers, best=best)
    shares = split(one, two)
    # Parts of which rounding is all that is left are not shown; the rest adds up without them.
    parts = [
        _part(code, log_ratio, one, two, by_form=code != "settings" or not bridges(one, two))
        for code, log_ratio in shares.items()
        if code == "remainder" or abs(log_ratio.value) > 1e-9
    ]
    order = [*KINDS]
    parts.sort(key=lambda p: (p.code == "remainder", -abs(p.log_ratio.value), order.index(p.code)))
    info_a, info_b = _info(one), _info(two)
    ratio = product(info_b.samples_per_s, info_a.samples_per_s.inverse)
    slow, fast = (info_b, info_a) if ratio.value < 1 else (info_a, info_b)
    close = abs(math.log(ratio.value)) < at.SAME_RATE
    known = ratio.low is not None and ratio.high is not None  # not of scripts, which ran once
    alike = (ratio.low or 0.0) <= 1 <= (ratio.high or math.inf) if known else close
    unclear = alike or close
    wrong = [f"{name}: {text}" for name, run in (("A", a), ("B", b)) for text in said_first(run)]
    return Comparison(
        a=info_a,
        b=info_b,
        pairing=how,
        ratio=ratio,
        verdict=" ".join([*wrong, _verdict(ratio, parts, alike=alike)]),
        parts=tuple(parts),
        unknown={  # with the first reason of either side
            KINDS[code].title: f"{name} has no record of it: {why}."
            for name, side in (("B", two), ("A", one))
            for code, why in side.unknown.items()
        },
        doubts=tuple(doubts(one, two)),
        findings=() if unclear else _findings(parts, slow, fast),
    )


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


def _part(code: PartCode, log_ratio: Estimate, a: Chosen, b: Chosen, *, by_form: bool) -> Part:
    kind = KINDS[code]
    known = comparable(a, b)
    alone = None
    if by_form and known is not None and code != "remainder":
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


def _verdict(ratio: Estimate, parts: Sequence[Part], *, alike: bool) -> str:
    """The difference, and the part that makes most of it."""
    text = _difference(ratio, alike=alike)
    total = math.log(ratio.value)
    towards = [part for part in parts if part.log_ratio.value * total > 0]
    towards.sort(key=lambda part: -abs(part.log_ratio.value))
    if alike:
        return text
    if abs(total) < at.SAME_RATE or not towards:
        return text
    biggest, *others = towards
    if biggest.code == "remainder":
        return (
            f"{text} Most of it is not explained by what the runs hold: profile both to see more."
        )
    share = biggest.log_ratio.value / total
    most = "Most of it is" if 2 * share >= 1 else "The biggest part is"
    named = f"{biggest.title} ({biggest.factor.value:.2f}x)"
    for part in others[:1]:
        if 2 * part.log_ratio.value / biggest.log_ratio.value >= 1 and part.code != "remainder":
            named += f", then {part.title} ({part.factor.value:.2f}x)"
    return f"{text} {most} {named}. {biggest.explanation}"


def _difference(ratio: Estimate, *, alike: bool) -> str:
    """How much slower or faster B is, in a sentence."""
    figures = f"{ratio.value:.2f}x, each measured once"
    if ratio.low is not None and ratio.high is not None:
        figures = f"{ratio.value:.2f}x, 95% CI {ratio.low:.2f}-{ratio.high:.2f}"
    than = "slower" if ratio.value < 1 else "faster"
    if ratio.is_wide:
        text = "No measurable difference between B and A: too noisy to say"
        if not alike:
            ends = " to ".join(f"{end:.2f}x" for end in ratio.ends)
            text = f"B is {than} than A, {ends} as fast (95%): too noisy for one figure"
        return f"{text} (measure both with a longer --budget)."
    if alike:
        return f"No measurable difference between B and A ({figures})."
    if ratio.value >= 2:
        return f"B is {ratio.value:.2f}x as fast as A ({figures.partition(', ')[2]})."
    return f"B is {percent(abs(ratio.value - 1))} {than} than A ({figures})."


def _findings(parts: Sequence[Part], slow: SideInfo, fast: SideInfo) -> tuple[Finding, ...]:
    """One finding for each part that slows the slower side, by what it costs."""
    sign = 1 if sum(part.log_ratio.value for part in parts) > 0 else -1
    found = []
    for part in parts:
        loss = sign * part.log_ratio.value
        cost = 1 - math.exp(-max(0.0, loss))
        cause = _cause(part, slow.config, fast.config)
        if cost < at.SAME_RATE or cause is None:
            continue
        gain = part.factor if sign > 0 else part.factor.inverse
        unsure = gain.low is not None and gain.low <= 1
        finding = Finding(
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
        found.append(finding)
    return tuple(sorted(found, key=lambda each: -each.cost))


def _cause(part: Part, slow: Config, fast: Config) -> tuple[FindingCode, Fix] | None:
    """The code and what would fix it; ``None`` for what no code is about."""
    if part.code in {"settings", "wait"}:  # what a script's settings make is in its waiting
        fewer = slow.num_workers < fast.num_workers
        shallow = (slow.prefetch_factor or 0) < (fast.prefetch_factor or 0)
        ordered: FindingCode | None = "order.blocking" if slow.in_order > fast.in_order else None
        code: FindingCode | None = "prefetch.shallow" if shallow else ordered
        if slow.num_workers != fast.num_workers:
            code = "too_few_workers" if fewer else "too_many_workers"
        size = None if slow.batch_size == fast.batch_size else fast.batch_size
        wanted = dataclasses.replace(fast, batch_size=size)
        text = f"Set what the faster run has: {wanted.text}."
        return code and (code, Fix(text=text, dataloader_kwargs=fast.dataloader_kwargs()))
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
