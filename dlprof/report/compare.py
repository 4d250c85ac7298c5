"""Two runs compared: how much slower, why, and what each part of the difference costs."""

from __future__ import annotations

import json
from collections.abc import Iterator

from dlprof.advise.compare import Comparison, Part, SideInfo
from dlprof.records import SCHEMA_VERSION, Estimate
from dlprof.report.document import (
    Bar,
    Chart,
    Column,
    Document,
    Facts,
    Piece,
    Section,
    Span,
    Table,
    Text,
    Words,
    items,
    section,
)
from dlprof.report.labels import end_text, rate_text
from dlprof.store.codec import to_json
from dlprof.units import MISSING


def compare_document(comparison: Comparison) -> str:
    """What ``dlprof compare --json`` prints.

    Args:
        comparison: What was found.
    """
    document = {"schema_version": SCHEMA_VERSION, **to_json(comparison)}
    return json.dumps(document, allow_nan=False, indent=2)


def comparison_report(comparison: Comparison) -> Document:
    """The comparison.

    Args:
        comparison: What was found.
    """
    return Document(
        title=f"{_place(comparison.a)} and {_place(comparison.b)}",
        answer=(
            Text(Span(comparison.verdict, "strong")),
            Facts(tuple(_sides(comparison))),
            *_chart(comparison.parts),
            *_doubts(comparison),
        ),
        hints=(Text(Span("Details: -v", "soft")),),
        details=tuple(_details(comparison)),
    )


def _place(side: SideInfo) -> str:
    return f"{side.target} on {side.hostname}"


def _sides(comparison: Comparison) -> Iterator[tuple[str, Words]]:
    for name, side in (("A", comparison.a), ("B", comparison.b)):
        noisy = f", {side.noisy} of {len(side.trials)} trials noisy" if side.noisy else ""
        yield name, f"{_place(side)}: {rate_text(side.samples_per_s)}{noisy}"


def _chart(parts: tuple[Part, ...]) -> Iterator[Chart]:
    """Each part as a factor; the bars are logarithms, which add up."""
    if parts:
        yield Chart(
            label="part",
            unit="factor",
            kind="signed",
            bars=tuple(
                Bar(
                    label=part.title,
                    pieces=(Piece(part.log_ratio.value),),
                    figure=factor_text(part.factor.value),
                    low=part.log_ratio.low,
                    high=part.log_ratio.high,
                )
                for part in parts
            ),
        )


def _doubts(comparison: Comparison) -> Iterator[Text]:
    for doubt in comparison.doubts[:1]:
        more = f" (and {len(comparison.doubts) - 1} more)"
        yield Text(Span(doubt + (more if len(comparison.doubts) > 1 else ""), "warn"))


def _details(comparison: Comparison) -> Iterator[Section]:
    sides = {"A": comparison.a, "B": comparison.b}
    known = [*((name, _side(side)) for name, side in sides.items()), ("pairs", comparison.pairing)]
    yield from section("Compared", Facts(tuple(known)))
    yield from section("Parts of the difference", _table(comparison.parts))
    yield from section(
        "What each part rests on",
        items(
            f"{part.title}: {part.explanation}"
            for part in comparison.parts
            if part.code != "remainder"
        ),
    )
    unknown = (f"{title}: {why}" for title, why in comparison.unknown.items())
    yield from section("Not recorded in these runs (counted as unexplained)", items(unknown))
    yield from section("Doubts", items(comparison.doubts))


def _side(side: SideInfo) -> str:
    return f"{side.cpu_model}, {side.config.text}, {side.run_file}"


def _table(parts: tuple[Part, ...]) -> Table:
    """The parts, whose factors multiply to the whole and whose logarithms add up to it."""
    product = 1.0
    for part in parts:
        product *= part.factor.value
    whole = sum(part.log_ratio.value for part in parts)
    factors = [*(factor_text(part.factor.value) for part in parts), factor_text(product)]
    logs = [*(f"{part.log_ratio.value:+.3f}" for part in parts), f"{whole:+.3f}"]
    return Table(
        (
            Column(title="part", cells=[*(part.title for part in parts), "B over A"], left=True),
            Column(title="factor", cells=factors),
            Column(title="95% CI", cells=[*(interval(p.factor) for p in parts), ""], keep=2),
            Column(title="log", cells=logs, keep=1),
        )
    )


def factor_text(value: float) -> str:
    """A factor such as ``0.52x``, with more digits where it is very small or large."""
    return f"{value:.2f}x" if 0.095 <= value < 99.5 else f"{value:.2g}x"


def interval(estimate: Estimate) -> str:
    """The interval of a factor; ``-`` where there is none."""
    if estimate.low is None or estimate.high is None:
        return MISSING
    return f"{end_text(estimate.low)}-{end_text(estimate.high)}"
