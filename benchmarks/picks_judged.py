"""Judge the picks of ``picks.py`` for longer: more turns of the last comparison, added to it.

Measured again is what those chose who measure, and the two that were best so far; but nothing that
lost a quarter or more, which longer measuring would not bring near.
"""

from __future__ import annotations

import dataclasses
import json
import random
import re
import sys
import warnings
from collections.abc import Sequence

from common import RESULTS, parser, publish, surroundings
from picks import Design, blocks, told_of
from picks_told import DLPROF, GRID, Outcome, compared, earlier, name_of
from rivals import Shot, regrets
from worlds import World, emulated_worlds, real_worlds

from dlprof.errors import DlprofError
from dlprof.machine import inspect_machine
from dlprof.records import Config

_HOPELESS = 0.25
_BEST = 2
_MEASURING = (DLPROF, GRID, "successive halving")
_KEY = re.compile(r"w(\d+)(?:-p(\d+))?")
"""Of a configuration that was compared: whether workers persist doesn't touch its steady rate."""


def config_of(key: str) -> Config | None:
    """The configuration of a key; ``None`` of one that sets more than workers and queues."""
    found = _KEY.fullmatch(key)
    if found is None:
        return None
    depth = None if found[2] is None else int(found[2])
    return Config(num_workers=int(found[1]), prefetch_factor=depth).canonical()


def contenders(outcome: Outcome) -> list[Config]:
    """What may be near the best."""
    near = {compared(key): loss for key, loss in outcome.regrets.items() if loss < _HOPELESS}
    best = sorted(near, key=near.__getitem__)[:_BEST]
    picked = (compared(key) for who in _MEASURING for key, _ in outcome.picks(who))
    configs = map(config_of, (*best, *(key for key in picked if key in near)))
    return list(dict.fromkeys(config for config in configs if config is not None))


def judged(outcome: Outcome, world: World, turns: int, final_s: float) -> Outcome:
    """The outcome with so many turns more.

    Raises:
        DlprofError: The target can't be built.
    """
    configs = contenders(outcome)
    rng = random.Random(len(outcome.finals))
    with world.opened(inspect_machine()) as measure:
        more = blocks(measure, configs, turns, final_s, rng)
    keys = {config.key for config in configs}
    whole = [turn for turn in outcome.finals if keys <= turn.keys()]
    kept = [{c: Shot(rate=turn[c.key], cost_s=0.0) for c in configs} for turn in whole]
    lost = {c.key: loss for c, loss in regrets([*kept, *more], configs).items()}
    found = {key: lost.get(compared(key), loss) for key, loss in outcome.regrets.items()}
    finals = [*outcome.finals, *({c.key: shot.rate for c, shot in turn.items()} for turn in more)]
    return dataclasses.replace(outcome, regrets=found, finals=finals)


def judge_all(
    found: Sequence[Outcome], wanted: Sequence[str], turns: int, final_s: float
) -> list[Outcome]:
    """All outcomes, those of the wanted data sets with so many turns more."""
    worlds = {world.name: world for world in (*real_worlds(), *emulated_worlds())}
    made = []
    for outcome in found:
        kept = outcome
        if outcome.world.startswith(tuple(wanted) or ("",)) and len(contenders(outcome)) > 1:
            try:
                kept = judged(outcome, worlds[outcome.world], turns, final_s)
            except DlprofError as error:
                print(f"{outcome.world}: left out, {error.message}", file=sys.stderr, flush=True)
            print(f"{outcome.world}: best {kept.best}", file=sys.stderr, flush=True)
        made.append(kept)
    return made


def main() -> None:
    """Run it."""
    options = parser(__doc__)
    options.add_argument("names", nargs="*", metavar="NAME", help="data sets, or beginnings")
    options.add_argument("--beside", action="store_true", help="those chosen beside neighbours")
    options.add_argument("--turns", type=int, default=24, help="an even number")
    given = options.parse_args()
    path = RESULTS / f"{name_of(beside=given.beside)}.json"
    known = earlier(path)
    if not known:
        options.error("there is nothing to judge: run picks.py first")
    design = Design(minutes=0.0)
    kept = json.loads(path.read_text())["data"]["design"]
    warnings.filterwarnings("ignore", category=UserWarning)  # more workers than real cores
    before = surroundings()
    turns = 2 if given.quick else given.turns
    found = judge_all(known, given.names, turns, design.final_s)
    publish(told_of(found, design, kept, beside=given.beside), before, quick=given.quick)


if __name__ == "__main__":
    main()
