"""How often does ``dlprof check`` err on this machine, with slowdowns that are really there?

Each session is a check with two processes of its own, a base and a change, of which the change is
as fast or slower in one way. Kinds of session take turns, half of them beside a changing neighbour
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
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from common import RESULTS, keep, parser, publish, surroundings
from gate_neighbours import beside
from gate_tables import (
    KINDS,
    NEIGHBOURS,
    OTHERS_BLOCKS,
    Kind,
    Session,
    report_on,
)
from others_rules import RULES

from dlprof.engine.check import measure
from dlprof.engine.checking.compared import CheckSettings, SidePlan
from dlprof.engine.checking.sides import open_sides
from dlprof.errors import UsageError
from dlprof.gate.rule import run_queue_wait
from dlprof.gate.verdict import judge
from dlprof.records.gate import CheckPlan, Compared, Quad, Side
from dlprof.report.live import open_listener
from dlprof.settings import SweepSettings
from dlprof.targets.grammar import parse_target
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
        request=BuildRequest(target=parse_target(TARGET), arguments=arguments),
        directory=HERE,
        root=HERE,
        compared=Compared(name=side),
    )


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Planned:
    """A session to come, on processes of its own.

    Attributes:
        kind: Of the change.
        workers: ``num_workers``.
        crowded: Whether neighbours run beside it.
        seed: Of its sweep and its neighbours.
        budget_s: Of the check.
    """

    kind: Kind
    workers: int
    crowded: bool
    seed: int
    budget_s: float


def measured(session: Planned) -> Session | None:
    """One check, from the start of its processes; ``None`` where the machine is too busy."""
    kind = session.kind
    sides_planned = [
        side_plan("base", kind, 0.0, session.workers),
        side_plan("change", kind, kind.slower, session.workers),
    ]
    settings = CheckSettings(
        sweep=SweepSettings(target=TARGET, budget_s=session.budget_s, seed=session.seed),
        fail_above=kind.limit,
        pin=kind.placement == "rotating",
    )
    with (
        open_listener(quiet=True) as listener,
        beside(NEIGHBOURS if session.crowded else 0, session.seed),
        open_sides(sides_planned, settings, listener) as sides,
    ):
        began_s = time.monotonic()
        with contextlib.suppress(UsageError):  # the machine is too busy to begin
            plan, quads, _ = measure(sides, listener, began_s=began_s)
            return ended_session(session, plan, quads, time.monotonic() - began_s)
    return None


def ended_session(
    planned: Planned, plan: CheckPlan, quads: Sequence[Quad], seconds: float
) -> Session:
    """What one check found, and what others' rules find in its blocks."""
    verdict = judge(plan, quads)
    load = [quad for quad in quads if quad.series == "load"]
    walls = [_walls(load, side)[:OTHERS_BLOCKS] for side in ("base", "change")]
    alarms = [name for name, rule in RULES.items() if min(map(len, walls)) > 1 and rule(*walls)]
    service = next((gate for gate in verdict.gates if gate.name == "service"), None)
    undecided = (g for g in verdict.gates if g.state == "inconclusive" and g.blocking)
    return Session(
        kind=planned.kind.name,
        crowded=planned.crowded,
        workers=planned.workers,
        verdict=verdict.state,
        failed=tuple(gate.name for gate in verdict.gates if gate.state == "fail"),
        undecided=tuple(gate.name for gate in undecided),
        quads=len(load),
        seconds=round(seconds, 2),
        waited=run_queue_wait(load),
        others=tuple(alarms),
        pair=planned.seed,
        shift=service.views[0].shift if service and service.views else None,
    )


def _walls(quads: Sequence[Quad], side: Side) -> list[float]:
    blocks = (block for quad in quads for block in quad.blocks if block.side == side)
    return [block.wall_s for block in blocks if block.wall_s is not None]


def schedule(
    first_seed: int,
    *,
    budget_s: float,
    only: Sequence[str] = ("",),
    crowds: Sequence[bool] = (False, True),
) -> Iterator[Planned]:
    """Sessions without end: in each round every kind has its share, quiet and beside neighbours.

    Args:
        first_seed: Of the first session; also of the order within rounds.
        budget_s: Of each session.
        only: Beginnings of the kinds' names.
        crowds: Whether neighbours run beside them: either, or both in turn.
    """
    seed = first_seed
    kinds = [kind for kind in KINDS if kind.name.startswith(tuple(only))]
    cells = [
        (kind, workers, crowded)
        for kind in kinds
        for workers in kind.workers
        for crowded in crowds
        for _ in range(kind.share)
    ]
    for turn in itertools.count():
        random.Random(first_seed + turn).shuffle(cells)
        for kind, workers, crowded in cells:
            yield Planned(kind=kind, workers=workers, crowded=crowded, seed=seed, budget_s=budget_s)
            seed += 1


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
    planned = schedule(
        1 + max((session.pair for session in found), default=0),
        budget_s=QUICK_BUDGET_S if given.quick else BUDGET_S,
        only=only,
        crowds=(False,) if given.alone else (False, True),
    )
    until_s = time.monotonic() + 60 * minutes
    with contextlib.suppress(KeyboardInterrupt):  # what was measured is kept
        for session in filter(None, map(measured, planned)):
            found.append(session)
            print(f"{session.kind}: {session.verdict} after {session.seconds:g} s", file=sys.stderr)
            keep(report_on(found), before, quick=given.quick)  # one cut off goes on with --more
            if time.monotonic() > until_s:
                break
    publish(report_on(found), before, quick=given.quick)


if __name__ == "__main__":
    main()
