"""The section of a report that tells of the loaders of a training script."""

from __future__ import annotations

from collections.abc import Iterator

from dlprof.records import Run, WatchedLoader
from dlprof.report.export.blocks import Bar, Block, Bullets, Chart, Table, Text
from dlprof.report.labels import percent_text, settings_text
from dlprof.report.text import clean
from dlprof.units import MISSING, format_duration, format_rate

_MOST_LOADERS = 50

_HEAD = (
    "loader",
    "settings",
    "batches",
    "epochs",
    "waited",
    "worked",
    "wait",
    "samples/s",
    "start-up",
)


def watched(run: Run) -> Iterator[Block]:
    """How the script went, and each loader's wait against its consumer's work."""
    script = run.script
    if script is not None:
        yield Text(
            text=f"The script ran {format_duration(script.wall_s)} (ending: {script.ending});"
            f" its main thread waited for data {percent_text(script.wait_fraction)} of the time."
        )
    shown = run.watched[:_MOST_LOADERS]
    if shown:
        yield Chart(
            title="seconds that consumers waited for batches, and that they worked",
            bars=tuple(map(_bar, shown)),
        )
        yield Table(head=_HEAD, rows=tuple(map(_cells, shown)), texts=2)
    if len(shown) < len(run.watched):
        yield Text(text=f"{len(run.watched) - len(shown)} more loaders are not shown.")
    if script is not None and script.notes:
        yield Bullets(items=tuple(map(clean, script.notes)))


def _bar(loader: WatchedLoader) -> Bar:
    return Bar(
        label=clean(loader.name),
        pieces=(("wait", max(0.0, loader.waited_s)), ("work", max(0.0, loader.stepped_s))),
        figure=f"{percent_text(loader.wait_fraction)} wait",
    )


def _cells(loader: WatchedLoader) -> tuple[str, ...]:
    return (
        clean(loader.name),
        MISSING if loader.config is None else settings_text(loader.config),
        f"{loader.batches:,}",
        f"{loader.epochs:,}",
        format_duration(loader.waited_s),
        format_duration(loader.stepped_s),
        percent_text(loader.wait_fraction),
        format_rate(loader.samples_per_s),
        format_duration(loader.startup_s),
    )
