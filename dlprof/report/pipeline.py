"""The way of a batch as a picture in characters, which shows where batches pile up."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence

from rich.console import Console, ConsoleOptions, RenderResult
from rich.text import Text

from dlprof.records import StageName
from dlprof.report.layout import INDENT

_EIGHTHS = " ▏▎▍▌▋▊▉"
_WIDEST_BAR = 40
_NARROWEST_BAR = 6
_PILE = "<- piles up"
_PILE_BATCHES = 1.0
"""Fewer batches than this are on their way, not waiting."""


@dataclasses.dataclass(frozen=True, slots=True)
class Place:
    """One place of a batch's way.

    Attributes:
        stage: Its name in the records.
        text: For people.
        waits: Whether batches lie there, rather than being worked on.
        where: ``main``, ``workers`` or ``step``: who has them.
    """

    stage: StageName
    text: str
    waits: bool
    where: str


_WAY = (
    Place("pick_up", "sent, not taken up", waits=True, where="workers"),
    Place("fetch", "fetch", waits=False, where="workers"),
    Place("collate", "collate", waits=False, where="workers"),
    Place("serialise", "serialise", waits=False, where="workers"),
    Place("queue", "made, not taken up", waits=True, where="main"),
    Place("rebuild", "rebuild", waits=False, where="main"),
    Place("pin", "pin", waits=False, where="main"),
    Place("hold_up", "ready, out of turn", waits=True, where="main"),
    Place("copy", "copy to the device", waits=False, where="step"),
    Place("step", "step", waits=False, where="step"),
)


class Pipeline:
    """Rich renderable: one line for each place, a bar as long as the batches there are many."""

    def __init__(self, waiting_batches: Mapping[str, float]) -> None:
        """Make the picture.

        Args:
            waiting_batches: Mean batches by stage, from an explanation.
        """
        self._rows = [
            (place, waiting_batches[place.stage])
            for place in _WAY
            if place.stage in waiting_batches
        ]

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        if not self._rows:
            return
        names = max(len(place.text) for place, _ in self._rows)
        places = max(len(place.where) for place, _ in self._rows)
        left = len(INDENT) + places + 3 + names + 1
        room = options.max_width - left - len(" 00.0 ") - len(_PILE)
        longest = max(_NARROWEST_BAR, min(_WIDEST_BAR, room))
        most = max(1.0, *(count for _, count in self._rows))
        pile = _pile(self._rows)
        above = ""
        for place, count in self._rows:
            drawn = _bar(longest * count / most, ascii_only=options.ascii_only)
            where = "" if place.where == above else place.where
            line = Text(INDENT, no_wrap=True, overflow="ignore")
            line.append(f"{where:<{places}}", style="bold")
            line.append(" | " if options.ascii_only else " │ ")
            line.append(f"{place.text:<{names}} ")
            line.append(f"{drawn:<{longest}}", style="yellow" if place.waits else "cyan")
            line.append(f" {count:4.1f}{' ' + _PILE if place is pile else ''}")
            line.rstrip()
            above = place.where
            yield line


def _pile(rows: Sequence[tuple[Place, float]]) -> Place | None:
    """Where most batches lie, if they do."""
    lying = [(count, place) for place, count in rows if place.waits]
    if not lying:
        return None
    count, place = max(lying, key=lambda pair: pair[0])
    return place if count >= _PILE_BATCHES else None


def _bar(length: float, *, ascii_only: bool) -> str:
    if ascii_only:
        return "#" * round(length)
    whole, eighths = divmod(round(length * 8), 8)
    return "█" * whole + _EIGHTHS[eighths].strip()
