"""A run's configurations: columns of their settings, and bars by ``num_workers``."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from dlprof.records import Config, Estimate
from dlprof.report.document import Bar, Chart, Column, Tone, chart
from dlprof.units import MISSING, format_rate

MOST_BARS = 7
"""Bars beside an answer, which has to fit into 16 lines."""

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

    Args:
        rates: Of all configurations.
        pick: The recommended one.
        present: What the loader is set to now.
        unit: Of the rates.
        most: How many bars there may be.
    """
    shown: dict[int, Rated] = {}
    for each in sorted(
        rates, key=lambda r: (r.config == pick, r.config == present, r.first, r.rate.value)
    ):
        shown[each.config.num_workers] = each
    found = [shown[workers] for workers in sorted(shown)]
    if len(found) < 2:
        return None
    best = max(range(len(found)), key=lambda i: found[i].rate.value)
    kept = {i for i, each in enumerate(found) if each.config in {pick, present}} | {0, best}
    first = {i for i, each in enumerate(found) if each.first}
    fits = len(first | kept) <= most
    rest = sorted({*range(len(found))} - kept - first if fits else first - kept)
    sure = first | kept if fits else kept
    if len(rest) > (room := most - len(sure)):  # evenly some of the others
        rest = [rest[round(k * (len(rest) - 1) / max(1, room - 1))] for k in range(room)]
    chosen = sorted({*sure, *rest})
    firm = sure if rest else kept
    bars = [_bar(found[place], pick, present, spare=place not in firm) for place in chosen]
    return chart(bars, "workers", unit)


def _bar(each: Rated, pick: Config | None, present: Config | None, *, spare: bool) -> Bar:
    config = each.config
    default = config == Config(batch_size=config.batch_size) and config != pick
    marks = {"default": default, "yours": config == present, "◀": config == pick}
    label = " ".join([str(config.num_workers), *(mark for mark, is_so in marks.items() if is_so)])
    tone: Tone = "good" if config == pick else ""
    bar = Bar.of(label, each.rate, format_rate(each.rate.value), each.note, tone)
    return dataclasses.replace(bar, spare=spare)
