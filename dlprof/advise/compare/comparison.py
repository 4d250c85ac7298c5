"""Why one run is faster than another."""

from __future__ import annotations

import math
from collections.abc import Sequence

from dlprof.advise.compare.pairing import Chosen, bridges, doubts, pair
from dlprof.advise.compare.parts import KINDS, Comparison, Part, PartCode, SideInfo
from dlprof.advise.compare.sides import Side, side_of
from dlprof.advise.compare.split import comparable, exchanging, split
from dlprof.advise.speeds import product
from dlprof.advise.wording import percent, severity_of
from dlprof.advise.wrong_data import said_first
from dlprof.records import Config, Estimate, Finding, FindingCode, Fix, Run

_LARGEST_LOG = 50.0
"""Factors beyond ``exp`` of it, either way, are shown as that."""

_TWICE = 2.0
"""Ratio from which a factor reads better than a percentage."""

_MOSTLY = 0.5
"""Share of the difference from which one part counts as most of it."""

_NOTHING = 1e-9
"""Parts of which rounding is all that is left are not shown; the rest adds up without them."""

_SAME = 0.02
"""A difference smaller than this is none, however sure; a part that costs less is no finding."""


def compare(a: Run, b: Run, *, num_workers: int | None = None, best: bool = False) -> Comparison:
    """Split the difference of two runs' rates into parts that add up.

    The same configuration is compared in both where there is one, else the fastest of each.
    Where the configurations differ, what settings make is shown by measured rates if one of the
    runs measured both, and by the closed form otherwise.

    Args:
        a: The run that is compared with.
        b: The other run: rates are B over A.
        num_workers: Compare only configurations of so many workers.
        best: Compare the fastest of each run in any case.

    Raises:
        NothingMeasuredError: If one of them has no rate.
        UsageError: If they load different data, or ``num_workers`` was not measured in both.
    """
    one, two, how = pair(a, b, num_workers=num_workers, best=best)
    side_a, side_b = side_of(one), side_of(two)
    total, shares = split(one, two)
    parts = [
        _part(code, log_ratio, side_a, side_b, by_form=code != "settings" or not bridges(one, two))
        for code, log_ratio in shares.items()
        if code == "remainder" or abs(log_ratio.value) > _NOTHING
    ]
    order = [*KINDS]
    parts.sort(key=lambda p: (p.code == "remainder", -abs(p.log_ratio.value), order.index(p.code)))
    info_a, info_b = _info(one), _info(two)
    ratio = product(info_b.samples_per_s, info_a.samples_per_s.inverse)
    slow, fast = (info_b, info_a) if ratio.value < 1 else (info_a, info_b)
    alike = (ratio.low or 0.0) <= 1 <= (ratio.high or math.inf)
    unclear = alike or abs(total.value) < _SAME
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
            for name, side in (("B", side_b), ("A", side_a))
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


def _part(code: PartCode, log_ratio: Estimate, a: Side, b: Side, *, by_form: bool) -> Part:
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
        factor=_exponential(log_ratio),
        explanation=kind.sentence(a.figures, b.figures),
        a={name: a.figures[name] for name in kind.figures},
        b={name: b.figures[name] for name in kind.figures},
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
    if abs(total) < _SAME or not towards:
        return text
    biggest, *others = towards
    if biggest.code == "remainder":
        return (
            f"{text} Most of it is not explained by what the runs hold: profile both to see more."
        )
    share = biggest.log_ratio.value / total
    most = "Most of it is" if share >= _MOSTLY else "The biggest part is"
    named = f"{biggest.title} ({biggest.factor.value:.2f}x)"
    for part in others[:1]:
        if 2 * part.log_ratio.value / biggest.log_ratio.value >= 1 and part.code != "remainder":
            named += f", then {part.title} ({part.factor.value:.2f}x)"
    return f"{text} {most} {named}. {biggest.explanation}"


def _difference(ratio: Estimate, *, alike: bool) -> str:
    """How much slower or faster B is, in a sentence."""
    figures, low, high = f"{ratio.value:.2f}x", ratio.low or 0.0, ratio.high or math.inf
    figures += f", 95% CI {low:.2f}-{high:.2f}"
    than = "slower" if ratio.value < 1 else "faster"
    if ratio.is_wide:
        text = f"B is {than} than A; too noisy to say by how much"
        text = "No measurable difference between B and A: too noisy to say" if alike else text
        return f"{text} (measure both with a longer --budget)."
    if alike:
        return f"No measurable difference between B and A ({figures})."
    if ratio.value >= _TWICE:
        return f"B is {ratio.value:.1f} times as fast as A ({figures})."
    return f"B is {percent(abs(ratio.value - 1))} {than} than A ({figures})."


def _findings(parts: Sequence[Part], slow: SideInfo, fast: SideInfo) -> tuple[Finding, ...]:
    """One finding for each part that slows the slower side, by what it costs."""
    sign = 1 if sum(part.log_ratio.value for part in parts) > 0 else -1
    found = []
    for part in parts:
        loss = sign * part.log_ratio.value
        cost = 1 - math.exp(-max(0.0, loss))
        cause = _cause(part, slow.config, fast.config)
        if cost < _SAME or cause is None:
            continue
        ends = [end for end in (part.log_ratio.low, part.log_ratio.high) if end is not None]
        unsure = bool(ends) and min(sign * end for end in ends) <= 0
        finding = Finding(
            code=cause[0],
            severity=severity_of(cost),
            title=part.title,
            explanation=part.explanation,
            evidence={"a": part.a, "b": part.b, "trials": [*slow.trials]},
            fix=cause[1],
            predicted_gain=Estimate(value=_exp(loss) if part.alone is None else part.alone),
            cost=cost,
            doubtful="Its interval reaches to no difference." if unsure else "",
        )
        found.append(finding)
    return tuple(sorted(found, key=lambda each: -each.cost))


def _cause(part: Part, slow: Config, fast: Config) -> tuple[FindingCode, Fix] | None:
    """The code and what would fix it; ``None`` for what no code is about."""
    if part.code == "settings":
        return _settings_cause(slow, fast)
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


def _settings_cause(slow: Config, fast: Config) -> tuple[FindingCode, Fix] | None:
    fix = Fix(
        text=f"Set what the faster run has: {fast.text}.",
        dataloader_kwargs=fast.dataloader_kwargs(),
    )
    if slow.num_workers != fast.num_workers:
        fewer = slow.num_workers < fast.num_workers
        return "too_few_workers" if fewer else "too_many_workers", fix
    if (slow.prefetch_factor or 0) < (fast.prefetch_factor or 0):
        return "prefetch.shallow", fix
    return ("order.blocking", fix) if slow.in_order and not fast.in_order else None


def _exponential(log: Estimate) -> Estimate:
    """An estimate of a logarithm as one of the factor."""
    return Estimate(
        value=_exp(log.value),
        low=None if log.low is None else _exp(log.low),
        high=None if log.high is None else _exp(log.high),
    )


def _exp(log: float) -> float:
    return math.exp(max(-_LARGEST_LOG, min(_LARGEST_LOG, log)))
