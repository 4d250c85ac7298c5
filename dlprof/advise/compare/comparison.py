"""Why one run is faster than another."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from dlprof.advise.compare.findings import findings
from dlprof.advise.compare.pairing import Pair, alike_trials, doubts, refuse_unlike
from dlprof.advise.compare.pairing import pair as choose_pair
from dlprof.advise.compare.parts import TITLES, Comparison, Part, PartCode, SideInfo
from dlprof.advise.compare.sides import Side
from dlprof.advise.compare.split import comparable, exchanging, sides, split
from dlprof.advise.compare.words import WORDS
from dlprof.advise.wording import factor
from dlprof.advise.wrong_data import said_first
from dlprof.records import Config, Estimate, Run, Trial
from dlprof.stats import mean_interval

_LARGEST_LOG = 300.0
_MOSTLY = 0.5
"""Share of the difference from which one part counts as most of it."""

_NOTHING = 1e-9
"""Parts of which rounding is all that is left are not told; the rest adds up without them."""

_SAME = 0.02
"""A difference smaller than this is none, however sure."""


def compare(a: Run, b: Run, *, num_workers: int | None = None, best: bool = False) -> Comparison:
    """Split the difference of two runs' rates into parts that add up.

    The same configuration is compared in both where there is one, else the fastest of each.
    Where the configurations differ, what settings make is told by measured rates if one of the
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
    refuse_unlike(a, b)
    pair = choose_pair(alike_trials(a), alike_trials(b), num_workers=num_workers, best=best)
    side_a, side_b = sides(pair)
    total, shares = split(pair)
    ratio = _exponential(total)
    parts = _told(_parts(pair, side_a, side_b, shares))
    info_a = _info(a, pair.config_a, pair.trials_a)
    info_b = _info(b, pair.config_b, pair.trials_b)
    slow, fast = (info_b, info_a) if ratio.value < 1 else (info_a, info_b)
    alike = _are_alike(ratio, info_a, info_b)
    unclear = alike or abs(math.log(ratio.value)) < _SAME
    wrong = [f"{name}: {text}" for name, run in (("A", a), ("B", b)) for text in said_first(run)]
    return Comparison(
        a=info_a,
        b=info_b,
        pairing=pair.how,
        ratio=ratio,
        verdict=" ".join([*wrong, _verdict(ratio, parts, alike=alike)]),
        parts=parts,
        unknown={  # with the first reason of either side
            TITLES[code]: f"{side} does not tell: {why}."
            for side, found in (("B", side_b), ("A", side_a))
            for code, why in found.unknown.items()
        },
        doubts=doubts(pair),
        findings=() if unclear else findings(parts, slow, fast),
    )


def _info(run: Run, config: Config, trials: Sequence[Trial]) -> SideInfo:
    own = [trial for trial in trials if trial.config == config]
    logs = [math.log(trial.samples_per_s.value) for trial in own if trial.samples_per_s is not None]
    return SideInfo(
        run_file=run.path,
        hostname=run.header.machine.hostname,
        cpu_model=run.header.machine.cpu_model,
        started_at=run.header.started_at,
        target=run.header.target.spec,
        config=config,
        samples_per_s=_exponential(mean_interval(logs)),
        trials=tuple(trial.id for trial in own),
        noisy=sum(trial.noisy for trial in own),
    )


def _parts(pair: Pair, a: Side, b: Side, found: Mapping[PartCode, Estimate]) -> list[Part]:
    figures_a = {**a.figures, "settings": pair.config_a.text}
    figures_b = {**b.figures, "settings": pair.config_b.text}
    measured = {"settings"} if pair.bridges else set()
    parts = []
    for code, log_ratio in found.items():
        if code != "remainder" and abs(log_ratio.value) <= _NOTHING:
            continue
        sentence, names = WORDS[code]
        part = Part(
            code=code,
            title=TITLES[code],
            log_ratio=log_ratio,
            factor=_exponential(log_ratio),
            explanation=sentence(figures_a, figures_b),
            a={name: figures_a.get(name) for name in names},
            b={name: figures_b.get(name) for name in names},
            alone=None if code in measured else _alone(code, a, b),
        )
        parts.append(part)
    return parts


def _alone(code: PartCode, a: Side, b: Side) -> float | None:
    """What the slower side would gain if only this were as on the other."""
    known = comparable(a, b)
    if known is None or code == "remainder":
        return None
    slow, fast = known if a.log_rate < b.log_rate else known[::-1]
    rate = exchanging(slow, fast)
    return math.exp(_within(rate(frozenset({code})) - rate(frozenset())))


def _told(parts: list[Part]) -> tuple[Part, ...]:
    """Largest first, the remainder last."""
    parts.sort(key=lambda part: [*TITLES].index(part.code))
    parts.sort(key=lambda part: (part.code == "remainder", -abs(part.log_ratio.value)))
    return tuple(parts)


def _verdict(ratio: Estimate, parts: Sequence[Part], *, alike: bool) -> str:
    """The difference, and the part that makes most of it."""
    if alike:
        return f"B and A can't be told apart: B gave {factor(ratio)} of A's samples per second."
    text = f"B gave {factor(ratio)} of A's samples per second."
    total = math.log(ratio.value)
    if abs(total) < _SAME:
        return text
    towards = [part for part in parts if part.log_ratio.value * total > 0]
    if not towards:
        return text
    towards.sort(key=lambda part: -abs(part.log_ratio.value))
    biggest = towards[0]
    share = biggest.log_ratio.value / total
    if biggest.code == "remainder":
        return (
            f"{text} Most of it is not explained by what the runs hold: profile both to see more."
        )
    most = "Most of it is" if share >= _MOSTLY else "The biggest part is"
    then = [
        f", then {part.title} ({part.factor.value:.2f}x)"
        for part in towards[1:2]
        if 2 * part.log_ratio.value / biggest.log_ratio.value >= 1 and part.code != "remainder"
    ]
    parts_named = f"{biggest.title} ({biggest.factor.value:.2f}x){''.join(then)}"
    return f"{text} {most} {parts_named}. {biggest.explanation}"


def _are_alike(ratio: Estimate, a: SideInfo, b: SideInfo) -> bool:
    """Whether the rates can't be told apart.

    Of a side that was measured once nothing tells how sure it is: within what the other side's
    trials allow for, it is no difference.
    """
    if ratio.low is not None and ratio.high is not None:
        return ratio.low <= 1 <= ratio.high
    return _allows_for(a, b.samples_per_s.value) or _allows_for(b, a.samples_per_s.value)


def _allows_for(side: SideInfo, rate: float) -> bool:
    """Whether one more trial of a side may have such a rate.

    A single trial lies ``sqrt(n + 1)`` times as far from the mean of ``n`` as their own mean does.
    """
    own = side.samples_per_s
    if own.low is None or own.high is None or own.low <= 0 or rate <= 0:
        return False
    half = math.log(own.high / own.low) / 2 * math.sqrt(len(side.trials) + 1)
    return abs(math.log(rate / own.value)) <= half


def _exponential(log: Estimate) -> Estimate:
    """An estimate of a logarithm as one of the factor."""
    return Estimate(
        value=math.exp(_within(log.value)),
        low=None if log.low is None else math.exp(_within(log.low)),
        high=None if log.high is None else math.exp(_within(log.high)),
    )


def _within(log: float) -> float:
    return max(-_LARGEST_LOG, min(_LARGEST_LOG, log))
