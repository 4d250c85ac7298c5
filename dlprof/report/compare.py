"""Two runs compared: how much slower, why, and what each part of the difference costs."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator
from pathlib import PurePath

from dlprof.advise.compare import Comparison
from dlprof.advise.thresholds import SAME_RATE
from dlprof.advise.wording import disturbed_text, factor_text, ratio_digits
from dlprof.report import document as doc
from dlprof.report.index import run_name
from dlprof.report.labels import certainty, gain_text, interval_text, rate_text
from dlprof.report.text import shortened
from dlprof.units import counted


def comparison_report(comparison: Comparison) -> doc.Document:
    """How much slower one of two runs is, and why."""
    parts, sure = comparison.parts, comparison.sure_parts
    # Each part is a factor; the bars are logarithms, which add up. The largest is first, what is
    # unexplained last; what reads as no factor has no bar, however small the others are.
    factors = [factor_text(part.factor) for part in sure]
    bars = [
        doc.Bar.of(part.title, 0.0 if factor == "1.00x" else part.log_ratio, factor)
        for part, factor in zip(sure, factors, strict=True)
    ]
    # Where a screen has no room, the smallest go first: the verdict names the largest.
    sizes = sorted((abs(part.log_ratio.value) for part in sure), reverse=True)
    rank = [sizes.index(abs(part.log_ratio.value)) for part in sure]
    spare = [place + 1 if place > 1 else 0 for place in rank]
    bars = [dataclasses.replace(bar, spare=n) for bar, n in zip(bars, spare, strict=True)]
    chart = doc.chart(bars, "part", "factor", "signed") if bars else None
    whole = factor_text(comparison.ratio)
    product = "" if comparison.ratio.is_wide else f", which multiply to {whole}"
    said = f" (all {len(parts)} parts{product})" if len(parts) > 1 else ""
    return doc.Document(
        title=" and ".join(_names(comparison)),
        answer=(
            doc.Text(doc.Styled(comparison.verdict, "strong")),
            doc.FactList(tuple(_sides(comparison))),
            *doc.known(chart),
        ),
        hints=doc.hint(f"Details: -v{said}"),
        details=lambda: _details(comparison),
    )


def _names(comparison: Comparison) -> list[str]:
    """What distinguishes the sides: their targets and machines, else their files."""
    sides = (comparison.a, comparison.b)
    places = [f"{side.target} on {side.hostname}" for side in sides]
    files = [shortened(run_name(PurePath(side.run_file)), 24) for side in sides]
    return files if places[0] == places[1] else places


def _sides(comparison: Comparison) -> Iterator[doc.Row]:
    sides = (comparison.a, comparison.b)
    alike = sides[0].config == sides[1].config
    yield from _fix(comparison)
    for name, side, about in zip("AB", sides, _names(comparison), strict=True):
        settings = "" if alike else f", {side.config.text}"
        yield name, f"{about}{settings}: {rate_text(side.samples_per_s)}"
    if alike:
        yield "Both", sides[0].config.text
    yield _certainty(comparison)


def _certainty(comparison: Comparison) -> doc.Row:
    """How sure the difference is: what is against it, else what it rests on."""
    sides = {"A": comparison.a, "B": comparison.b}
    counts = {name: len(side.trials) for name, side in sides.items()}
    noisy = {n: disturbed_text(side.noisy, counts[n]) for n, side in sides.items() if side.noisy}
    said = [f"{name}'s trials: {text}" for name, text in noisy.items()]
    said = [f"{', '.join(said)} (by others, a quota or drift)"] if said else []
    said = [*comparison.doubts, *said]
    more = f" (and {len(said) - 1} more)" if len(said) > 1 else ""
    low = comparison.ratio.low is None or comparison.ratio.is_wide
    trials = " and ".join(f"{counted(n, 'trial')} of {name}" for name, n in counts.items())
    why = said[0].rstrip(".") + more if said else trials
    return certainty("low" if low else "medium" if said else "high", why)


def _fix(comparison: Comparison) -> Iterator[doc.Row]:
    first = next((each for each in comparison.findings if each.fix is not None), None)
    if first is None or first.fix is None or first.doubtful:
        return
    unclear = any(part.title == first.title and part.factor.is_wide for part in comparison.parts)
    ratio = comparison.ratio.value
    slow = "B" if ratio < 1 else "A"
    gain = None if unclear else first.predicted_gain
    if gain is not None and abs(math.log(gain.value * min(ratio, 1 / ratio))) < SAME_RATE:
        gain = None  # the difference says it
    worth = "" if gain is None else f" Predicted for {slow}: {gain_text(gain)}."
    yield "Fix", f"{first.fix.text}{worth}"


def _details(comparison: Comparison) -> Iterator[doc.Section]:
    sides = {
        name: f"{side.cpu_model}, {side.config.text}, {PurePath(side.run_file).name}"
        for name, side in (("A", comparison.a), ("B", comparison.b))
    }
    compared = doc.FactList((*sides.items(), ("pairs", comparison.pairing)))
    yield from doc.section("Compared", compared)
    # The factors of the parts multiply to the whole, and their logarithms add up to it.
    parts, whole = comparison.parts, comparison.ratio
    factors = [*(part.factor for part in parts), whole]
    logs = [*(part.log_ratio.value for part in parts), math.log(whole.value)]
    columns = (
        doc.Column("part", [*(part.title for part in parts), "B over A"], left=True),
        doc.Column("factor", [factor_text(each) for each in factors]),
        doc.Column("95% CI", [interval_text(each, ratio_digits) for each in factors], 2),
        doc.Column("log", [f"{log:+.3f}" for log in logs], 1),
    )
    yield from doc.section("Parts of the difference", doc.Table(columns))
    known = (f"{part.title}: {part.explanation}" for part in parts if part.code != "remainder")
    yield from doc.section("What each part rests on", doc.items(known))
    unknown = (f"{title}: {why}" for title, why in comparison.unknown.items())
    title = "Not recorded in these runs (counted as unexplained)"
    yield from doc.section(title, doc.items(unknown))
    yield from doc.section("Doubts", doc.items(comparison.doubts))
