"""How good are dlprof's picks, against a grid measured long and against other ways of choosing?

For each dataset a grid of settings is measured several times over. Whoever measures in order to
choose (an exhaustive grid, DPT, successive halving) is given one of those turns after the other;
rules of thumb need none; ``dlprof sweep`` and loadtune are run as users run them. In the end all
that anybody chose is measured once more, in turns and for long, beside the best of the grid: what
a pick loses against the best of those is its regret. With ``--beside-neighbour`` everybody
chooses while two processes come and go on the cores; who lost what is still judged without them.
Four emulated cores are among the machines, but for the neighbours, whom they don't feel; the sweep
there is dlprof's own, with runs on emulated cores for trials.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import functools
import random
import statistics
import sys
import time
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from common import RESULTS, Report, keep, parser, publish, surroundings
from crowd import neighbours
from peers import PeerError, run_dlprof, run_loadtune
from picks_report import (
    DEFAULT,
    DLPROF,
    GOAL_S,
    LOADTUNE,
    Chosen,
    Outcome,
    at_usual_speed,
    earlier,
    name_of,
    report,
)
from rivals import Block, Pick, measuring, noise, regrets
from worlds import Measure, World, emulated_worlds, real_worlds

from dlprof.errors import DlprofError
from dlprof.machine import inspect_machine
from dlprof.records import Config

WORKERS, PREFETCH = (0, 1, 2, 3, 4, 6, 8, 16, 32), (1, 2, 4)
_BEST_OF_GRID = 3


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Design:
    """What is measured.

    Attributes:
        minutes: In all; no dataset is begun after them.
        turns: Of the grid.
        sweeps: Of dlprof, each.
        least_finals: Turns of the last comparison, at least.
        finals: At most: fewer where dlprof's picks are known by ``_SURE`` before.
        trial_s: Window of a trial of the grid.
        final_s: Window of a trial of the last comparison.
        budget_s: Of a sweep.
        workers: Of the grid.
    """

    minutes: float
    turns: int = 2
    sweeps: int = 2
    least_finals: int = 12
    finals: int = 60
    trial_s: float = 1.0
    final_s: float = 1.5
    budget_s: float = GOAL_S
    workers: tuple[int, ...] = WORKERS


QUICK = Design(
    minutes=2,
    turns=1,
    sweeps=1,
    least_finals=2,
    finals=2,
    trial_s=0.2,
    final_s=0.2,
    budget_s=25,
    workers=(0, 1, 2),
)
FULL_MINUTES = 180.0
_SURE = 0.01
"""Standard error of a regret from which a pick is judged."""

_HOPELESS = 0.25
"""Regret from which longer measuring would not bring a configuration near the best."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """What somebody chose; no ``pick``, but an ``error``, where it failed."""

    who: str
    pick: Pick | None
    error: str = ""

    def noted(self) -> Chosen:
        """As it is kept."""
        if self.pick is None:
            return Chosen(who=self.who, config=None, error=self.error)
        return Chosen(
            who=self.who,
            config=self.pick.config.key,
            cost_s=self.pick.cost_s,
            epsilon=self.pick.epsilon,
            epsilon_measured=self.pick.epsilon_measured,
        )


def grid(workers: Sequence[int]) -> tuple[Config, ...]:
    """The grid's configurations."""
    made = (
        Config(num_workers=count, prefetch_factor=prefetch).canonical()
        for count in workers
        for prefetch in PREFETCH
    )
    return tuple(dict.fromkeys(made))


def blocks(
    measure: Measure, configs: Sequence[Config], turns: int, trial_s: float, rng: random.Random
) -> list[Block]:
    """All configurations, measured so many times over, in another order each time."""
    found: list[Block] = []
    for _ in range(turns):
        shots = {c: measure(c, trial_s) for c in rng.sample(list(configs), len(configs))}
        found.append(shots)
    return found


def replayed(world: World, turns: Sequence[Block]) -> Iterator[Choice]:
    """What those choose who measure the grid or a part of it, once for each turn."""
    for who, rival in measuring(world.cores).items():
        for first in range(len(turns)):
            yield Choice(who=who, pick=rival(turns, first))


def ruled(world: World) -> Iterator[Choice]:
    """What rules of thumb say."""
    for who, config in world.rules.items():
        yield Choice(who=who, pick=Pick(config=config, cost_s=0.0))


def live(world: World, design: Design, site: Path | None) -> Iterator[Choice]:
    """What dlprof's sweep chooses, and others that are run from outside."""
    target = world.target
    for seed in range(design.sweeps):
        if target is None:
            chosen = functools.partial(world.swept, budget_s=design.budget_s, seed=seed)
        else:
            chosen = functools.partial(run_dlprof, target, budget_s=design.budget_s, seed=seed)
        yield _tried(DLPROF, chosen)
    if target is not None and site is not None:
        yield _tried(LOADTUNE, functools.partial(run_loadtune, target, site))


def _tried(who: str, choose: Callable[[], Pick]) -> Choice:
    try:
        return Choice(who=who, pick=choose())
    except (PeerError, DlprofError) as error:
        return Choice(who=who, pick=None, error=str(error))


def steady(config: Config) -> Config:
    """What has the same steady rate: whether workers outlive an epoch doesn't touch it."""
    return dataclasses.replace(config, persistent_workers=False).canonical()


def judge(
    measure: Measure, chosen: Sequence[Choice], turns: Sequence[Block], design: Design
) -> list[Block]:
    """Measure all that was chosen, PyTorch's default and the best of the grid, in turns.

    What has no hope is left out after ``design.least_finals``.
    """
    means = {c: statistics.fmean(block[c].rate for block in turns) for c in turns[0]}
    best = sorted(means, key=means.__getitem__, reverse=True)[:_BEST_OF_GRID]
    picked = [steady(each.pick.config) for each in chosen if each.pick is not None]
    configs = list(dict.fromkeys([DEFAULT, *best, *picked]))
    rng, found = random.Random(11), list[Block]()
    while len(found) < design.finals:
        found += blocks(measure, configs, 2, design.final_s, rng)
        if len(found) < design.least_finals:
            continue
        seen = outcome_of("", chosen, found, None)
        configs = [c for c in configs if seen.regrets[c.key] < _HOPELESS]
        own = [key for key, _ in seen.picks(DLPROF) if seen.regrets[key] < _HOPELESS]
        if all(seen.error(key) <= _SURE for key in own):
            break
    return found


def outcome_of(
    name: str, chosen: Sequence[Choice], finals: Sequence[Block], spread: float | None
) -> Outcome:
    """What was chosen for a dataset and what that lost, by the turns of the last comparison."""
    rates = at_usual_speed(finals)
    usual = [
        {config: dataclasses.replace(shot, rate=made[config]) for config, shot in block.items()}
        for block, made in zip(finals, rates, strict=True)
    ]
    lost = regrets(usual, list(finals[0]))
    keys = {each.pick.config.key: steady(each.pick.config) for each in chosen if each.pick}
    return Outcome(
        world=name,
        chosen=[each.noted() for each in chosen],
        regrets={c.key: loss for c, loss in lost.items()} | {k: lost[c] for k, c in keys.items()},
        finals=[{config.key: rate for config, rate in turn.items()} for turn in rates],
        noise=spread,
    )


def play(world: World, design: Design, site: Path | None, *, beside: bool) -> Outcome:
    """Everybody chooses for one dataset.

    Raises:
        DlprofError: The target can't be built.
    """
    rng, cells = random.Random(world.name), grid(design.workers)
    with world.opened(inspect_machine()) as measure:
        quiet = blocks(measure, cells, design.turns, design.trial_s, rng)
        with neighbours(2, bursts=True) if beside else contextlib.nullcontext():
            turns = quiet
            if beside:
                turns = blocks(measure, cells, design.turns, design.trial_s, rng)
            chosen = [*ruled(world), *replayed(world, turns), *live(world, design, site)]
        finals = judge(measure, chosen, quiet, design)
    return outcome_of(world.name, chosen, finals, noise(turns))


def play_all(
    worlds: Sequence[World], design: Design, site: Path | None, *, beside: bool
) -> Iterator[Outcome]:
    """All datasets, as far as the time goes."""
    began_s = time.monotonic()
    for world in worlds:
        if time.monotonic() - began_s > 60 * design.minutes:
            print(f"{world.name}: no time left", file=sys.stderr, flush=True)
            continue
        try:
            outcome = play(world, design, site, beside=beside)
        except DlprofError as error:
            print(f"{world.name}: left out, {error.message}", file=sys.stderr, flush=True)
            continue
        said = ", ".join(_said(outcome, each) for each in outcome.chosen if each.who == DLPROF)
        print(f"{world.name}: best {outcome.best}; {said}", file=sys.stderr, flush=True)
        yield outcome


def _said(outcome: Outcome, each: Chosen) -> str:
    if each.config is None:
        return each.error
    lost = f"{100 * outcome.regrets[each.config]:+.1f} %, {outcome.verdict(each.config)}"
    return f"{each.config} {lost} in {each.cost_s:.0f} s"


def _notes(design: Design, cells: int) -> list[str]:
    return [
        (
            f"The grid is num_workers {', '.join(map(str, design.workers))} by prefetch_factor "
            f"{', '.join(map(str, PREFETCH))}: {cells} cells, {design.turns} turns of "
            f"{design.trial_s:g} s; the last comparison's turns take {design.final_s:g} s, and "
            f"there are {design.least_finals} to {design.finals}, until the regrets of dlprof's "
            f"picks are known to {_SURE:.0%}. What lost a quarter by then is judged no longer."
        ),
        (
            "Regret: half of the last comparison's turns says which is the best, the other half by "
            "how much; then the other way round. It may come out a little below 0. Rates are those "
            "at the usual speed of the cores, by the slope of each dataset's rates over what the "
            "probe saw. A pick is surely near (far) where it is within (beyond) 3 % of each (one) "
            "of the others by two standard errors. A certificate is over all settings, and in "
            "brackets over those that the sweep measured."
        ),
        (
            "Those that only measure are not charged for starting Python and importing torch; "
            f"{DLPROF} and {LOADTUNE} are, but on emulated cores. 257 cells are predicted by what "
            "those of the exhaustive grid took, their starts and ends included; on emulated cores "
            "each is measured three times as long."
        ),
    ]


def shown_of(
    found: Sequence[Outcome], design: Design, kept: Mapping[str, Any], *, beside: bool
) -> Report:
    """The tables.

    Args:
        found: By dataset.
        design: Whose grid and windows they have.
        kept: The design as it is kept with the figures.
        beside: Whether neighbours were about while all chose.
    """
    cells = len(grid(design.workers))
    return report(found, _notes(design, cells), {"design": kept}, cells=cells, beside=beside)


def _options() -> argparse.ArgumentParser:
    options = parser(__doc__)
    options.add_argument("names", nargs="*", metavar="NAME", help="datasets, or beginnings")
    options.add_argument(
        "--more",
        action="store_true",
        help="add datasets that earlier runs didn't come to; those that are named replace theirs",
    )
    options.add_argument("--minutes", type=float, help=f"in all; {FULL_MINUTES:g} if left out")
    options.add_argument("--beside-neighbour", action="store_true", help="choose beside two")
    options.add_argument(
        "--loadtune",
        type=Path,
        metavar="SITE",
        help="where `pip install --no-deps --target SITE loadtune psutil` put it",
    )
    return options


def main(*, beside: bool = False) -> None:
    """Run it.

    Args:
        beside: Whether all choose beside neighbours even if that isn't asked for.
    """
    options = _options()
    given = options.parse_args()
    beside = beside or given.beside_neighbour
    known = earlier(RESULTS / f"{name_of(beside=beside)}.json") if given.more else []
    worlds = [*real_worlds(), *([] if beside else emulated_worlds())]
    if given.names:
        worlds = [world for world in worlds if world.name.startswith(tuple(given.names))]
    elif given.quick:
        worlds = [worlds[1], worlds[-1]]
    elif given.more:
        had = {outcome.world for outcome in known}
        worlds = [world for world in worlds if world.name not in had]
    if not worlds:
        options.error("there is no such dataset, or none that was not measured yet")
    design = QUICK if given.quick else Design(minutes=given.minutes or FULL_MINUTES)
    warnings.filterwarnings("ignore", category=UserWarning)  # more workers than real cores
    before, found = surroundings(), known
    kept, quick = dataclasses.asdict(design), given.quick or (bool(given.names) and not given.more)
    for outcome in play_all(worlds, design, given.loadtune, beside=beside):
        found = [*(each for each in found if each.world != outcome.world), outcome]
        keep(shown_of(found, design, kept, beside=beside), before, quick=quick)
    publish(shown_of(found, design, kept, beside=beside), before, quick=quick)


if __name__ == "__main__":
    main()
