"""A run's configurations: as rows of a table, and as bars by ``num_workers``.

The figures are those that the recommendation rests on, so that one screen never says two.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from dlprof.advise.candidates import Candidate, gather
from dlprof.advise.situation import Situation
from dlprof.advise.speeds import speeds_of
from dlprof.records import Config, Estimate, Run
from dlprof.report.document import Bar, Chart, Column, Tone, chart
from dlprof.units import MISSING, format_rate

PICK = "recommended"
PRESENT = "yours"
TIE = "tie"
FASTEST = "fastest"
DEFAULT = "default"
FAILED = "failed"

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


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One configuration over all its trials.

    Attributes:
        seen: What was seen of it.
        role: ``recommended``, ``yours`` (what the target is set to now), ``tie``, ``fastest``,
            ``default`` (PyTorch's own), ``failed`` or empty.
        rate: The one rate that the run has for it, over whole epochs where their length is known;
            ``None`` without figures.
        predicted: The same as a model predicted it before anything was measured.
        relative: That rate over that of the pick (of the fastest, where nothing is recommended).
        wait_fraction: Mean share of time waiting for data at the stated step.
    """

    seen: Candidate
    role: str
    rate: Estimate | None = None
    predicted: Estimate | None = None
    relative: Estimate | None = None
    wait_fraction: float | None = None

    @property
    def config(self) -> Config:
        """Which."""
        return self.seen.config


def summarize(run: Run) -> tuple[Row, ...]:
    """One row per configuration, fastest first, those without figures last.

    Args:
        run: What was measured, and its recommendation, which says the pick and the ties.
    """
    candidates = gather(run)
    failed = tuple(
        Row(seen=Candidate(config=each.config, name=each.name), role=FAILED)
        for each in candidates
        if not (each.trials or any(trial.outcome == "skipped" for trial in each.failures))
    )
    measured = [each for each in candidates if each.trials]
    if not measured:
        return failed
    advice = run.recommendation
    situation = Situation.of(run, advice.constraints if advice else None)
    # What the trials gave, where the recommendation is for what a model predicts from them.
    situation = Situation.of(run) if situation.by_model else situation
    speeds = speeds_of(run, situation)
    fastest = speeds.fastest(measured)
    pick = next((each for each in measured if advice and each.config == advice.config), None)
    roles = {} if situation.present is None else {situation.present: PRESENT}
    if advice is None:
        roles = {fastest.config: FASTEST} | roles
    else:
        related = {other.config: other.relation for other in advice.alternatives}
        known = {config: role for config, role in related.items() if role != "slower"}
        roles = known | roles | {advice.config: PICK}
    predicted = _predicted(run)
    # What was kept when the run ended counts, whatever would be estimated by now.
    kept_rates = run.kept_rates if pick else {}
    rows = []
    for each in sorted(measured, key=lambda each: speeds.log_speed(each.key), reverse=True):
        kept = kept_rates.get(each.config)
        rows.append(
            Row(
                seen=each,
                role=roles.get(each.config, ""),
                rate=kept.samples_per_s if kept else speeds.rate(each.key),
                predicted=predicted.get(each.config),
                relative=kept.ratio if kept else speeds.ratio(each.key, (pick or fastest).key),
                wait_fraction=speeds.wait_fraction(each),
            )
        )
    return (*rows, *failed)


def _predicted(run: Run) -> dict[Config, Estimate]:
    cells = run.prediction.cells if run.prediction is not None else ()
    return {
        cell.config: cell.samples_per_s
        if cell.epoch_samples_per_s is None
        else cell.samples_per_s.times(cell.epoch_samples_per_s / cell.samples_per_s.value)
        for cell in cells
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
    best = max(range(len(found)), key=lambda i: found[i].rate.value, default=0)
    kept = {i for i, each in enumerate(found) if each.config in {pick, present}} | {0, best}
    first = [i for i, each in enumerate(found) if each.first]
    pool = first if len({*first, *kept}) >= most else range(len(found))
    chosen: Iterable[int] = range(len(found))
    if len(found) > most:  # those that are kept, and evenly some of the others
        rest, room = [place for place in pool if place not in kept], most - len(kept)
        even = {rest[round(k * (len(rest) - 1) / max(1, room - 1))] for k in range(room) if rest}
        chosen = sorted({*kept, *even})
    # The best is as fast as the recommended one: it goes, too, where lines are few.
    spare = {place for place in chosen if place not in kept or place == best}
    spare -= {place for place in spare if found[place].config in {pick, present}} | {0}
    bars = [_bar(found[place], pick, present, spare=place in spare) for place in chosen]
    return chart(bars, "workers", unit) if len(bars) > 1 else None


def _bar(each: Rated, pick: Config | None, present: Config | None, *, spare: bool) -> Bar:
    config = each.config
    default = config == Config(batch_size=config.batch_size) and config != pick
    marks = {"default": default, "yours": config == present, "◀": config == pick}
    label = " ".join([str(config.num_workers), *(mark for mark, is_so in marks.items() if is_so)])
    tone: Tone = "good" if config == pick else ""
    bar = Bar.of(label, each.rate, format_rate(each.rate.value), each.note, tone)
    return dataclasses.replace(bar, spare=spare)
