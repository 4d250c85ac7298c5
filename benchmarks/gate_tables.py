"""Kinds of session of ``gate_campaign.py``, what they ended with, and the tables of it."""

from __future__ import annotations

import collections
import dataclasses
import statistics
from collections.abc import Sequence
from typing import Literal

from common import Report, Table
from others_rules import RULES

from dlprof.gate.plan import THRESHOLD

NEIGHBOURS = 3

FALSE_ALARMS = 0.01
CAUGHT_QUIET, CAUGHT = 0.99, 0.95
PASSED_UNSEEN = 0.02
DECIDED = 0.95
MEDIAN_S = 15.0
OTHERS_BLOCKS = 20
"""A side: as many as dlprof's first look has."""

Placement = Literal["rotating", "free", "apart"]
"""Both sides on the same cores in turn, where the scheduler likes, or each on its own core."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Kind:
    """A kind of session.

    Attributes:
        name: For tables.
        argument: ``kind`` of ``gate_targets.make``.
        slower: By how much, as a fraction; seconds of ``startup``.
        workers: Numbers of workers that sessions take in turn.
        share: How many sessions for each of a slowdown's.
        wanted: Sessions that the goals ask for, quiet and beside neighbours.
        placement: Of the two sides.
        limit: ``--fail-above``.
    """

    name: str
    argument: str
    slower: float
    workers: tuple[int, ...] = (0, 2)
    share: int = 1
    wanted: tuple[int, int] = (15, 15)
    placement: Placement = "rotating"
    limit: float = THRESHOLD

    @property
    def is_harmless(self) -> bool:
        """Whether the change must not fail."""
        return self.slower <= 0.03


KINDS = (
    Kind(name="none", argument="cpu", slower=0.0, wanted=(150, 150)),
    Kind(name="none, a Python loop", argument="loop", slower=0.0, wanted=(75, 75)),
    Kind(name="none, sides free", argument="cpu", slower=0.0, wanted=(150, 150), placement="free"),
    Kind(
        name="none, sides apart",
        argument="cpu",
        slower=0.0,
        workers=(0,),
        share=2,
        wanted=(150, 150),
        placement="apart",
    ),
    Kind(name="3 % slower", argument="cpu", slower=0.03),
    Kind(name="uniform CPU 10 %", argument="cpu", slower=0.10, wanted=(300, 100)),
    Kind(name="CPU 5 %, --fail-above 3 %", argument="cpu", slower=0.05, limit=0.03),
    Kind(name="storage wait 10 %", argument="wait", slower=0.10),
    Kind(name="10 % in 5 % of the samples", argument="tail", slower=0.10),
    Kind(name="collate 20 %", argument="collate", slower=0.20),
    Kind(name="receive 20 %", argument="receive", slower=0.20, workers=(2,)),
    Kind(name="start-up +1 s", argument="startup", slower=1.0, workers=(2,)),
)
UNIFORM, FINE = "uniform CPU 10 %", "CPU 5 %, --fail-above 3 %"


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Session:
    """What one check ended with.

    Attributes:
        kind: Name of the kind.
        crowded: Whether neighbours ran beside it.
        workers: ``num_workers``.
        verdict: ``pass``, ``fail`` or ``inconclusive``.
        failed: Metrics that failed.
        undecided: Metrics that kept it from passing.
        quads: Of loading.
        seconds: Wall time of measuring.
        waited: Share of waiting for a core; ``None`` where it isn't known.
        others: Which of others' rules call the change slower.
        pair: Number of its pair of processes, which up to four of the earliest sessions share.
        shift: Of the service time, as a logarithm; ``None`` where it wasn't kept.
    """

    kind: str
    crowded: bool
    workers: int
    verdict: str
    failed: tuple[str, ...]
    undecided: tuple[str, ...]
    quads: int
    seconds: float
    waited: float | None
    others: tuple[str, ...]
    pair: int
    shift: float | None


@dataclasses.dataclass(frozen=True, slots=True)
class Cell:
    """Sessions of one kind on one kind of machine."""

    kind: Kind
    crowded: bool
    sessions: Sequence[Session]

    def share(self, verdict: str) -> float:
        """The share of a verdict."""
        return sum(each.verdict == verdict for each in self.sessions) / len(self.sessions)

    def seconds(self, place: float) -> float:
        """A quantile of the time until the verdict."""
        ordered = sorted(each.seconds for each in self.sessions)
        return ordered[round(place * (len(ordered) - 1))]

    @property
    def machine(self) -> str:
        """For tables."""
        return "beside neighbours" if self.crowded else "quiet"

    @property
    def pairs(self) -> int:
        """Pairs of processes, in which what stays with a process is seen once."""
        return len({each.pair for each in self.sessions})

    @property
    def keeps_goals(self) -> bool:
        """Whether the sessions so far are within the goals."""
        if self.kind.placement != "rotating":
            return self.share("fail") <= FALSE_ALARMS
        in_time = self.seconds(0.5) <= MEDIAN_S
        if self.kind.is_harmless:
            undecided = self.share("inconclusive")
            return in_time and self.share("fail") <= FALSE_ALARMS and undecided <= 1 - DECIDED
        caught = CAUGHT if self.crowded else CAUGHT_QUIET
        if self.kind.name == FINE:
            return self.share("fail") >= CAUGHT
        seen = self.kind.name != UNIFORM or (in_time and self.share("fail") >= caught)
        return seen and self.share("pass") <= PASSED_UNSEEN


def cells_of(sessions: Sequence[Session]) -> list[Cell]:
    """The sessions by kind and machine, in the order of the tables; none is empty."""
    groups: dict[tuple[str, bool], list[Session]] = collections.defaultdict(list)
    for session in sessions:
        groups[session.kind, session.crowded].append(session)
    return [
        Cell(kind, crowded, found)
        for kind in KINDS
        for crowded in (False, True)
        if (found := groups.get((kind.name, crowded)))
    ]


def is_reached(cells: Sequence[Cell]) -> bool | None:
    """Whether the goals are kept; ``None`` while too few sessions keep them."""
    if not all(cell.keeps_goals for cell in cells):
        return False
    enough = [len(cell.sessions) >= cell.kind.wanted[cell.crowded] for cell in cells]
    return True if all(enough) and len(enough) == 2 * len(KINDS) else None


def _percent(share: float) -> str:
    return f"{100 * share:.1f}"


def _row(cell: Cell) -> tuple[str, ...]:
    metrics = collections.Counter(name for each in cell.sessions for name in each.failed)
    waits = [each.waited for each in cell.sessions if each.waited is not None]
    return (
        cell.kind.name,
        cell.machine,
        str(len(cell.sessions)),
        str(cell.pairs),
        *(_percent(cell.share(verdict)) for verdict in ("fail", "pass", "inconclusive")),
        ", ".join(f"{name} {count}" for name, count in metrics.most_common(3)) or "-",
        f"{cell.seconds(0.5):.0f}",
        f"{cell.seconds(0.9):.0f}",
        _percent(statistics.median(waits)) if waits else "-",
    )


def _others_row(cell: Cell) -> tuple[str, ...]:
    alarms = (sum(name in each.others for each in cell.sessions) for name in RULES)
    shares = (_percent(count / len(cell.sessions)) for count in alarms)
    return (cell.kind.name, cell.machine, _percent(cell.share("fail")), *shares)


def report_on(sessions: Sequence[Session]) -> Report:
    """Both tables."""
    cells = cells_of(sessions)
    columns = (
        *(
            "change",
            "machine",
            "sessions",
            "pairs of processes",
            "FAIL, %",
            "PASS, %",
            "INCONCLUSIVE, %",
            "failed on",
        ),
        *("median, s", "90th percentile, s", "waiting for a core, %"),
    )
    reached = is_reached(cells)
    few = (
        " So far the goals are kept; there are too few sessions to say." if reached is None else ""
    )
    return Report(
        name="gate_campaign",
        title="`dlprof check` on real slowdowns",
        goal=(
            f"at most {FALSE_ALARMS:.0%} false alarms; uniform 10 % caught in {CAUGHT_QUIET:.0%} "
            f"(quiet) or {CAUGHT:.0%}, 5 % at --fail-above 3 % in {CAUGHT:.0%}; no other slowdown "
            f"passed in more than {PASSED_UNSEEN:.0%}; median verdict on harmless and uniform ones "
            f"in {MEDIAN_S:g} s; {DECIDED:.0%} of the "
            "harmless decided"
        ),
        passed=reached,
        tables=[
            Table("Verdicts", columns, [_row(cell) for cell in cells]),
            Table(
                "Sessions in which rules say slower, %",
                ("change", "machine", "dlprof check", *RULES),
                [_others_row(cell) for cell in cells],
            ),
        ],
        notes=[
            f"{len(sessions)} checks of real loaders (`gate_targets.py`), made slower.{few}",
            (
                f"Beside neighbours: {NEIGHBOURS} processes that compute and rest in turn "
                f"(`gate_neighbours.py`)."
            ),
            (
                "What one pair of processes had failed before a second had to confirm it is left "
                "out: 680 slowdowns, and five sessions of equal code (four of 121 of the Python "
                "loop, one of 456 with sides apart)."
            ),
            (
                f"The others judge the wall time of the first {OTHERS_BLOCKS} blocks a side of the "
                "same sessions."
            ),
        ],
        data={"sessions": [dataclasses.asdict(each) for each in sessions]},
    )
