"""How often does ``dlprof check`` err on this machine, with slowdowns that are really there?

Each session is a check of its own: two processes, a base and a change, of which the change is as
fast or slower in one way. Kinds of session take turns, half of them beside a changing neighbour
load, so that it can be ended at any time: ``--minutes 600`` gives as many sessions as the goals ask
for, ``--more`` adds to what earlier runs found.
"""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
import json
import os
import random
import sys
import time
from collections.abc import Generator, Iterator, Sequence
from pathlib import Path
from typing import Any

from common import RESULTS, keep, parser, publish, surroundings
from gate_neighbours import beside
from gate_tables import (
    IN_A_ROW,
    KINDS,
    NEIGHBOURS,
    OTHERS_BLOCKS,
    Kind,
    Session,
    report_on,
)
from others_rules import RULES

from dlprof.engine.checking.compared import SidePlan
from dlprof.engine.checking.measuring import MeasuredQuads, measure
from dlprof.engine.checking.settings import CheckSettings
from dlprof.engine.checking.sides import open_sides
from dlprof.errors import UsageError
from dlprof.gate import Limits, judge
from dlprof.gate.rule import run_queue_wait
from dlprof.records.gate import Compared, Quad, Side
from dlprof.report.live import open_listener
from dlprof.settings import SweepSettings
from dlprof.trial.protocol import BuildRequest

HERE = Path(__file__).parent
TARGET = f"{HERE / 'gate_targets.py'}:make"
MINUTES, QUICK_MINUTES = 60.0, 0.5
BUDGET_S, QUICK_BUDGET_S = 60.0, 10.0


def side_plan(side: Side, kind: Kind, slower: float, workers: int) -> SidePlan:
    """One side of a session."""
    arguments = {"kind": kind.argument, "slower": f"{slower:g}", "workers": str(workers)}
    if kind.placement == "apart":
        usable = sorted(os.sched_getaffinity(0))
        arguments["core"] = str(usable[0] if side == "base" else usable[-1])
    return SidePlan(
        side=side,
        request=BuildRequest(target=TARGET, arguments=arguments),
        directory=HERE,
        root=HERE,
        compared=Compared(name=side),
    )


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Batch:
    """Sessions that share one pair of processes.

    Attributes:
        kind: Of all of them.
        workers: ``num_workers``.
        crowded: Whether neighbours run beside them.
        seed: Of the first; the others follow.
        count: How many.
        budget_s: Of each.
    """

    kind: Kind
    workers: int
    crowded: bool
    seed: int
    count: int
    budget_s: float


def sessions_of(batch: Batch) -> Generator[Session, None, None]:
    """Measure the sessions of a batch one after the other."""
    plans = [
        side_plan("base", batch.kind, 0.0, batch.workers),
        side_plan("change", batch.kind, batch.kind.slower, batch.workers),
    ]
    settings = CheckSettings(
        sweep=SweepSettings(target=TARGET, budget_s=batch.budget_s),
        limits=Limits(service=batch.kind.limit),
        pin=batch.kind.placement == "rotating",
    )
    neighbours = NEIGHBOURS if batch.crowded else 0
    with (
        open_listener(quiet=True) as listener,
        beside(neighbours, batch.seed),
        open_sides(plans, settings, listener) as sides,
    ):
        for seed in range(batch.seed, batch.seed + batch.count):
            sweep = dataclasses.replace(settings.sweep, seed=seed)
            seeded = dataclasses.replace(settings, sweep=sweep)
            began_s = time.monotonic()
            with contextlib.suppress(UsageError):  # the machine is too busy to begin
                found = measure(sides, seeded, listener, clock=time.monotonic, began_s=began_s)
                yield ended_session(batch, found, time.monotonic() - began_s)


def ended_session(batch: Batch, found: MeasuredQuads, seconds: float) -> Session:
    """What one check found, and what others' rules find in its blocks."""
    verdict = judge(found.plan, found.quads)
    load = [quad for quad in found.quads if quad.series == "load"]
    walls = [_walls(load, side)[:OTHERS_BLOCKS] for side in ("base", "change")]
    alarms = [name for name, rule in RULES.items() if min(map(len, walls)) > 1 and rule(*walls)]
    undecided = (g for g in verdict.gates if g.state == "inconclusive" and g.blocking)
    return Session(
        kind=batch.kind.name,
        crowded=batch.crowded,
        workers=batch.workers,
        verdict=verdict.state,
        failed=tuple(gate.name for gate in verdict.gates if gate.state == "fail"),
        undecided=tuple(gate.name for gate in undecided),
        quads=len(load),
        seconds=round(seconds, 2),
        waited=run_queue_wait(load),
        others=tuple(alarms),
    )


def _walls(quads: Sequence[Quad], side: Side) -> list[float]:
    blocks = (block for quad in quads for block in quad.blocks if block.side == side)
    return [block.wall_s for block in blocks if block.wall_s is not None]


def schedule(
    first_seed: int,
    *,
    in_a_row: int,
    budget_s: float,
    only: Sequence[str] = ("",),
    crowds: Sequence[bool] = (False, True),
) -> Iterator[Batch]:
    """Batches without end: in each round every kind has its share, quiet and beside neighbours.

    Args:
        first_seed: Of the first batch; also of the order within rounds.
        in_a_row: Sessions of a batch.
        budget_s: Of each session.
        only: Beginnings of the kinds' names.
        crowds: Whether neighbours run beside them: either, or both in turn.
    """
    seed = first_seed
    kinds = [kind for kind in KINDS if kind.name.startswith(tuple(only))]
    cells = [(kind, crowded) for kind in kinds for crowded in crowds for _ in range(kind.share)]
    for turn in itertools.count():
        random.Random(first_seed + turn).shuffle(cells)
        for kind, crowded in cells:
            yield Batch(
                kind=kind,
                workers=kind.workers[seed // in_a_row % len(kind.workers)],
                crowded=crowded,
                seed=seed,
                count=in_a_row,
                budget_s=budget_s,
            )
            seed += in_a_row


def measured(batches: Iterator[Batch], until_s: float) -> Iterator[Session]:
    """Sessions until the time is over; the last one may end later."""
    for batch in batches:
        with contextlib.closing(sessions_of(batch)) as sessions:
            for session in sessions:
                yield session
                if time.monotonic() > until_s:
                    return


def earlier(path: Path) -> list[Session]:
    """The sessions of earlier runs; none where there is no result yet."""
    if not path.exists():
        return []
    kept: list[dict[str, Any]] = json.loads(path.read_text())["data"]["sessions"]
    lists = ("failed", "undecided", "others")
    return [Session(**(each | {name: tuple(each[name]) for name in lists})) for each in kept]


def main() -> None:
    """Measure and publish."""
    options = parser(__doc__)
    options.add_argument("--minutes", type=float, help=f"how long to measure; {MINUTES:g}")
    options.add_argument("--more", action="store_true", help="add to what earlier runs found")
    options.add_argument("--only", nargs="+", metavar="NAME", help="kinds, or their beginnings")
    options.add_argument("--alone", action="store_true", help="no session beside neighbours")
    given = options.parse_args()
    only = tuple(given.only or ("",))
    if not any(kind.name.startswith(only) for kind in KINDS):
        options.error("there is no such kind")
    before = surroundings()
    minutes = given.minutes or (QUICK_MINUTES if given.quick else MINUTES)
    found = earlier(RESULTS / "gate_campaign.json") if given.more and not given.quick else []
    batches = schedule(
        len(found) + 1,
        in_a_row=1 if given.quick else IN_A_ROW,
        budget_s=QUICK_BUDGET_S if given.quick else BUDGET_S,
        only=only,
        crowds=(False,) if given.alone else (False, True),
    )
    until_s = time.monotonic() + 60 * minutes
    with contextlib.suppress(KeyboardInterrupt):  # what was measured is kept
        for session in measured(batches, until_s):
            found.append(session)
            print(f"{session.kind}: {session.verdict} after {session.seconds:g} s", file=sys.stderr)
            keep(report_on(found), before, quick=given.quick)  # one cut off goes on with --more
    publish(report_on(found), before, quick=given.quick)


if __name__ == "__main__":
    main()
