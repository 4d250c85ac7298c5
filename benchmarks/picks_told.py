"""What ``picks.py`` found: who lost how much, as tables."""

from __future__ import annotations

import dataclasses
import json
import math
import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from common import Report, Table

from dlprof.records import Config

NEAR = 0.03
"""A pick that loses no more than this is as good as the best."""

GOAL_NEAR, GOAL_S, GOAL_SHARE, GOAL_GAINED = 0.95, 30.0, 0.04, 0.20
DLPROF, LOADTUNE, GRID = "dlprof sweep", "loadtune", "exhaustive grid"
DEFAULT = Config()
_WHOLE_GRID = 257
"""Cells of a whole machine's grid: FIELD section 5. Of 1 s each, if starting one took no time."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Chosen:
    """What somebody chose.

    Attributes:
        who: Name of the way of choosing.
        config: Key of what it chose; ``None`` where it failed.
        cost_s: Seconds that it took.
        error: Why it failed.
    """

    who: str
    config: str | None
    cost_s: float = 0.0
    error: str = ""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """One data set.

    Attributes:
        world: Its name.
        chosen: By everybody.
        regrets: Of all that was chosen and the best of the grid, by key.
        finals: The last comparison: batches per second by key.
        noise: Relative spread of a repeat where all chose; ``None`` where nothing was repeated.
    """

    world: str
    chosen: Sequence[Chosen]
    regrets: dict[str, float]
    finals: Sequence[dict[str, float]]
    noise: float | None

    @property
    def best(self) -> str:
        """What was the fastest in the last comparison."""
        return min(self.regrets, key=self.regrets.__getitem__)

    def error(self, config: str) -> float:
        """Standard error of the logarithm of its rate over the best one's, turn by turn."""
        mine, best = compared(config), compared(self.best)
        pairs = [(turn[best], turn[mine]) for turn in self.finals if {mine, best} <= turn.keys()]
        logs = [math.log(one / two) for one, two in pairs if one > 0 and two > 0]
        return statistics.stdev(logs) / math.sqrt(len(logs)) if len(logs) > 1 else math.nan

    def gain(self, config: str) -> float:
        """Its rate over that of PyTorch's default."""
        return (1 - self.regrets[config]) / (1 - self.regrets[DEFAULT.key])

    def picks(self, who: str) -> list[tuple[str, float]]:
        """What somebody chose, with the seconds it took; without what failed."""
        mine = (each for each in self.chosen if each.who == who)
        return [(each.config, each.cost_s) for each in mine if each.config is not None]

    def whole_grid_s(self, cells: int) -> float:
        """What a whole grid would take here, its trials' starts and ends included.

        Args:
            cells: Of the exhaustive grid that was measured.
        """
        costs_s = [cost_s for _, cost_s in self.picks(GRID)]
        return _WHOLE_GRID * statistics.fmean(costs_s) / cells if costs_s else math.nan


def compared(key: str) -> str:
    """What was measured in the place of a configuration: persisting doesn't touch a steady rate."""
    return key.removesuffix("-persistent")


def name_of(*, beside: bool) -> str:
    """Of the result, beside neighbours or not."""
    return "picks_beside" if beside else "picks"


def earlier(path: Path) -> list[Outcome]:
    """What earlier runs found; nothing where there is no result yet."""
    if not path.exists():
        return []
    kept: list[dict[str, Any]] = json.loads(path.read_text())["data"]["worlds"]
    return [Outcome(**each | {"chosen": [Chosen(**c) for c in each["chosen"]]}) for each in kept]


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Score:
    """How one way of choosing fared.

    Attributes:
        regrets: Of its picks.
        costs_s: Seconds that each took.
        shares: Of the seconds that a whole grid would have taken.
        worse: Picks that are more than 3 % slower than PyTorch's default.
        failed: How often it chose nothing.
    """

    regrets: Sequence[float]
    costs_s: Sequence[float]
    shares: Sequence[float]
    worse: int
    failed: int

    @property
    def near(self) -> float:
        """Share of its picks that are as good as the best; what it failed at counts against it."""
        tries = len(self.regrets) + self.failed
        return sum(lost <= NEAR for lost in self.regrets) / tries if tries else math.nan


def score(found: Sequence[Outcome], who: str, cells: int) -> Score:
    """Over all data sets; the exhaustive grid has so many cells."""
    picks = [(outcome, *pick) for outcome in found for pick in outcome.picks(who)]
    tries = sum(each.who == who for outcome in found for each in outcome.chosen)
    return Score(
        regrets=[outcome.regrets[config] for outcome, config, _ in picks],
        costs_s=[cost_s for _, _, cost_s in picks],
        shares=[cost_s / outcome.whole_grid_s(cells) for outcome, _, cost_s in picks],
        worse=sum(outcome.gain(config) < 1 - NEAR for outcome, config, _ in picks),
        failed=tries - len(picks),
    )


def reached(found: Sequence[Outcome], cells: int, *, beside: bool) -> bool | None:
    """Whether dlprof's picks meet their goals; ``None`` where it chose nothing."""
    own = score(found, DLPROF, cells)
    if not own.regrets:
        return None
    if beside:
        return own.near >= score(found, GRID, cells).near + GOAL_GAINED and not own.worse
    quick = statistics.median(own.costs_s) <= GOAL_S
    cheap = statistics.median(own.shares) <= GOAL_SHARE
    return own.near >= GOAL_NEAR and quick and cheap and not own.worse


def _scores(found: Sequence[Outcome], cells: int) -> list[list[str]]:
    """A row for each way of choosing, the best first."""
    names = dict.fromkeys(each.who for outcome in found for each in outcome.chosen)
    scores = {who: score(found, who, cells) for who in names}
    order = sorted(scores, key=lambda who: (-scores[who].near, who))
    return [_score_row(who, scores[who]) for who in order]


def _score_row(who: str, one: Score) -> list[str]:
    if not one.regrets:
        return [who, "0", str(one.failed), *["-"] * 7]
    cost_s = statistics.median(one.costs_s)
    lost = [100 * each for each in one.regrets]
    return [
        who,
        str(len(lost)),
        str(one.failed),
        f"{100 * one.near:.0f}",
        f"{statistics.median(lost):.1f}",
        f"{max(lost):.1f}",
        str(one.worse),
        f"{cost_s:.1f}",
        f"{100 * cost_s / _WHOLE_GRID:.1f}",
        f"{100 * statistics.median(one.shares):.1f}",
    ]


def _world_row(outcome: Outcome, cells: int) -> list[str]:
    """A row for each data set."""
    own = outcome.picks(DLPROF)
    return [
        outcome.world,
        outcome.best,
        f"{outcome.gain(outcome.best):.2f}",
        ", ".join(dict.fromkeys(config for config, _ in own)) or "-",
        ", ".join(f"{100 * outcome.regrets[config]:.1f}" for config, _ in own) or "-",
        ", ".join(f"{100 * outcome.error(config):.1f}" for config, _ in own) or "-",
        ", ".join(f"{cost_s:.0f}" for _, cost_s in own) or "-",
        f"{outcome.whole_grid_s(cells):.0f}",
        "-" if outcome.noise is None else f"{100 * outcome.noise:.0f}",
        str(len(outcome.finals)),
    ]


_SCORE_COLUMNS = (
    *("", "picks", "failed", "within 3 % of the best, %", "regret: median, %", "worst, %"),
    *("slower than the default", "seconds: median", "% of 257 s", "% of 257 cells here"),
)
_WORLD_COLUMNS = (
    *("", "best", "over the default", "dlprof's picks", "regret, %"),
    *("its standard error, %", "seconds"),
    *("257 cells, s", "spread of a repeat, %", "last comparison, turns"),
)


def report(
    found: Sequence[Outcome],
    notes: Sequence[str],
    data: dict[str, Any],
    *,
    cells: int,
    beside: bool,
) -> Report:
    """The tables.

    Args:
        found: By data set.
        notes: How it was measured.
        data: Of the run, kept with the figures.
        cells: Of the exhaustive grid.
        beside: Whether neighbours were about while all chose.
    """
    goal = (
        "beside neighbours 20 points more of dlprof's picks within 3 % of the best than of the "
        "exhaustive grid's"
        if beside
        else f"{GOAL_NEAR:.0%} of dlprof's picks within 3 % of the best, in {GOAL_S:g} s and "
        f"{GOAL_SHARE:.0%} of what a grid of {_WHOLE_GRID} cells takes"
    )
    return Report(
        name=name_of(beside=beside),
        title="Picks against a grid measured long, and against other ways of choosing"
        + (", beside neighbours that come and go" if beside else ""),
        goal=f"{goal}; none slower than PyTorch's default",
        passed=reached(found, cells, beside=beside),
        tables=[
            Table("Ways of choosing", _SCORE_COLUMNS, _scores(found, cells)),
            Table("By data set", _WORLD_COLUMNS, [_world_row(outcome, cells) for outcome in found]),
        ],
        notes=notes,
        data=data | {"worlds": [dataclasses.asdict(each) for each in found]},
    )
