"""What ``picks.py`` found: who lost how much, as tables."""

from __future__ import annotations

import dataclasses
import json
import math
import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, TypeVar, get_args

from common import Report, Table
from rivals import Shot

from dlprof.records import Config

NEAR = 0.03
"""A pick that loses no more than this is as good as the best."""

GOAL_FAR, GOAL_FAR_BESIDE, GOAL_S = 0.05, 0.10, 30.0
_SURE = 2.0
"""Standard errors by which a pick is surely near the best, or surely far from it."""

_LEAST_SPEEDS, _MOST_FELT = 8, 1.5
_Compared = TypeVar("_Compared")
Verdict = Literal["surely near", "surely far", "can't tell"]
VERDICTS: tuple[Verdict, ...] = get_args(Verdict)
"""Of a pick: within ``NEAR`` of the best, or not."""

DLPROF, LOADTUNE, GRID = "dlprof sweep", "loadtune", "exhaustive grid"
DEFAULT = Config()
_WHOLE_GRID = 257
"""Cells of a whole machine's grid, of 1 s each, if starting one took no time."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Chosen:
    """What somebody chose.

    Attributes:
        who: Name of the way of choosing.
        config: Key of what it chose; ``None`` where it failed.
        cost_s: Seconds that it took.
        error: Why it failed.
        epsilon: What it may lose, as it says itself with 95 %; ``None`` where it says nothing.
        epsilon_measured: Against what it measured; ``None`` in older results, too.
    """

    who: str
    config: str | None
    cost_s: float = 0.0
    error: str = ""
    epsilon: float | None = None
    epsilon_measured: float | None = None


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """One dataset.

    Attributes:
        world: Its name.
        chosen: By everybody.
        regrets: Of all that was chosen and the best of the grid, by key.
        finals: The last comparison: batches per second by key, at the cores' usual speed.
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
        """Standard error of the logarithm of its rate over the best other one's, turn by turn."""
        others = (key for key in self.regrets if compared(key) != compared(config))
        rival = min(others, key=self.regrets.__getitem__, default=config)
        return self._lead(rival, config)[1]

    def verdict(self, config: str) -> Verdict:
        """Whether it is within ``NEAR`` of the best, for sure; of two standard errors to a side."""
        most = -math.log(1 - NEAR)
        others = {key for turn in self.finals for key in turn} - {compared(config)}
        leads = [self._lead(key, config) for key in others]
        if any(lead - _SURE * error > most for lead, error in leads):
            return "surely far"
        near = all(lead + _SURE * error <= most for lead, error in leads)
        return "surely near" if near else "can't tell"

    def broken(self, config: str, epsilon: float) -> bool:
        """Whether it surely loses more than it said: by two standard errors."""
        leads = [self._lead(key, config) for turn in self.finals[:1] for key in turn]
        most = -math.log(1 - min(epsilon, 1 - 1e-9))
        return any(lead - _SURE * error > most for lead, error in leads)

    def _lead(self, one: str, config: str) -> tuple[float, float]:
        """Mean logarithm of one's rate over another's, turn by turn, and its standard error."""
        mine, other = compared(config), compared(one)
        pairs = [(turn[other], turn[mine]) for turn in self.finals if {mine, other} <= turn.keys()]
        logs = [math.log(a / b) for a, b in pairs if a > 0 and b > 0]
        if len(logs) < 2:
            return 0.0, math.inf
        return statistics.fmean(logs), statistics.stdev(logs) / math.sqrt(len(logs))

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
    data = json.loads(path.read_text())["data"]
    if "least_finals" not in data.get("design", {"least_finals": 0}):  # judged by few turns
        return []
    kept: list[dict[str, Any]] = data["worlds"]
    return [Outcome(**each | {"chosen": [Chosen(**c) for c in each["chosen"]]}) for each in kept]


def at_usual_speed(finals: Sequence[Mapping[_Compared, Shot]]) -> list[dict[_Compared, float]]:
    """The rates of a comparison's turns, as on cores of their usual speed.

    How much of the speed a load feels is the slope over all turns, each of what is compared about
    its own mean: what the probe saw says nothing of a configuration, so that this adds no error but
    its own. Nothing is changed where the probe saw next to nothing.
    """
    about, speeds = list[tuple[float, float]](), list[float]()
    for config in {config for block in finals for config in block}:
        shots = [block[config] for block in finals if config in block]
        pairs = [(math.log(s.speed), math.log(s.rate)) for s in shots if s.speed and s.rate > 0]
        if pairs:
            speed, rate = (statistics.fmean(each) for each in zip(*pairs, strict=True))
            about += [(one - speed, two - rate) for one, two in pairs]
            speeds += [one for one, _ in pairs]
    slope, usual = 0.0, statistics.fmean(speeds) if speeds else 0.0
    if len(about) >= _LEAST_SPEEDS and any(speed for speed, _ in about):
        felt = statistics.linear_regression(*zip(*about, strict=True), proportional=True).slope
        slope = min(_MOST_FELT, max(0.0, felt))
    return [
        {
            config: shot.rate * (math.exp(usual) / shot.speed) ** slope if shot.speed else shot.rate
            for config, shot in block.items()
        }
        for block in finals
    ]


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Score:
    """How one way of choosing fared.

    Attributes:
        regrets: Of its picks.
        costs_s: Seconds that each took.
        shares: Of the seconds that a whole grid would have taken.
        verdicts: Of its picks.
        worse: Picks that are more than 3 % slower than PyTorch's default.
        failed: How often it chose nothing.
    """

    regrets: Sequence[float]
    costs_s: Sequence[float]
    shares: Sequence[float]
    verdicts: Sequence[Verdict]
    worse: int
    failed: int

    def share(self, verdict: Verdict) -> float:
        """Of its picks, those of one verdict."""
        return self.verdicts.count(verdict) / len(self.verdicts) if self.verdicts else math.nan


def score(found: Sequence[Outcome], who: str, cells: int) -> Score:
    """Over all datasets; the exhaustive grid has so many cells."""
    picks = [(outcome, *pick) for outcome in found for pick in outcome.picks(who)]
    tries = sum(each.who == who for outcome in found for each in outcome.chosen)
    return Score(
        regrets=[outcome.regrets[config] for outcome, config, _ in picks],
        costs_s=[cost_s for _, _, cost_s in picks],
        shares=[cost_s / outcome.whole_grid_s(cells) for outcome, _, cost_s in picks],
        verdicts=[outcome.verdict(config) for outcome, config, _ in picks],
        worse=sum(outcome.gain(config) < 1 - NEAR for outcome, config, _ in picks),
        failed=tries - len(picks),
    )


def reached(found: Sequence[Outcome], cells: int, *, beside: bool) -> bool | None:
    """Whether dlprof's picks meet their goals; ``None`` where it chose nothing."""
    own = score(found, DLPROF, cells)
    if not own.regrets:
        return None
    most = GOAL_FAR_BESIDE if beside else GOAL_FAR
    quick = beside or statistics.median(own.costs_s) <= GOAL_S
    return own.share("surely far") <= most and quick and not own.worse


def _scores(found: Sequence[Outcome], cells: int) -> list[list[str]]:
    """A row for each way of choosing, the best first."""
    names = dict.fromkeys(each.who for outcome in found for each in outcome.chosen)
    scores = {who: score(found, who, cells) for who in names}
    order = sorted(scores, key=lambda who: (scores[who].share("surely far"), who))
    return [_score_row(who, scores[who]) for who in order]


def _score_row(who: str, one: Score) -> list[str]:
    if not one.regrets:
        return [who, "0", str(one.failed), *["-"] * 9]
    cost_s = statistics.median(one.costs_s)
    lost = [100 * each for each in one.regrets]
    return [
        who,
        str(len(lost)),
        str(one.failed),
        *(f"{100 * one.share(each):.0f}" for each in VERDICTS),
        f"{statistics.median(lost):.1f}",
        f"{max(lost):.1f}",
        str(one.worse),
        f"{cost_s:.1f}",
        f"{100 * cost_s / _WHOLE_GRID:.1f}",
        f"{100 * statistics.median(one.shares):.1f}",
    ]


def _certified(outcome: Outcome, config: str, all_: float, measured: float | None) -> str:
    """Over all settings and over the measured ones, in percent, and whether the first is broken."""
    known = "" if measured is None else f" ({100 * measured:.0f})"
    return f"{100 * all_:.0f}{known}{' broken' if outcome.broken(config, all_) else ''}"


def _world_row(outcome: Outcome, cells: int) -> list[str]:
    """A row for each dataset."""
    own = outcome.picks(DLPROF)
    return [
        outcome.world,
        outcome.best,
        f"{outcome.gain(outcome.best):.2f}",
        ", ".join(dict.fromkeys(config for config, _ in own)) or "-",
        ", ".join(f"{100 * outcome.regrets[config]:.1f}" for config, _ in own) or "-",
        ", ".join(f"{100 * outcome.error(config):.1f}" for config, _ in own) or "-",
        ", ".join(outcome.verdict(config) for config, _ in own) or "-",
        ", ".join(
            _certified(outcome, each.config, each.epsilon, each.epsilon_measured)
            for each in outcome.chosen
            if each.who == DLPROF and each.config is not None and each.epsilon is not None
        )
        or "-",
        ", ".join(f"{cost_s:.0f}" for _, cost_s in own) or "-",
        f"{outcome.whole_grid_s(cells):.0f}",
        "-" if outcome.noise is None else f"{100 * outcome.noise:.0f}",
        str(len(outcome.finals)),
    ]


_SCORE_COLUMNS = (
    *("", "picks", "failed", *(f"{each}, %" for each in VERDICTS)),
    *("regret: median, %", "worst, %"),
    *("slower than the default", "seconds: median", "% of 257 s", "% of 257 cells here"),
)
_WORLD_COLUMNS = (
    *("", "best", "over the default", "dlprof's picks", "regret, %"),
    *("its standard error, %", "within 3 %", "certificate (of the measured), %"),
    "seconds",
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
        found: By dataset.
        notes: How it was measured.
        data: Of the run, kept with the figures.
        cells: Of the exhaustive grid.
        beside: Whether neighbours were about while all chose.
    """
    most, least = (GOAL_FAR_BESIDE, 9) if beside else (GOAL_FAR, 13)
    goal = f"surely farther than 3 % from the best in at most {most:.0%} of dlprof's picks" + (
        "" if beside else f", which take {GOAL_S:g} s in the median"
    )
    return Report(
        name=name_of(beside=beside),
        title="Picks against a grid measured long, and against other ways of choosing"
        + (", beside neighbours that come and go" if beside else ""),
        goal=f"of {least} datasets {goal}; none slower than PyTorch's default",
        passed=reached(found, cells, beside=beside) if len(found) >= least else None,
        tables=[
            Table("Ways of choosing", _SCORE_COLUMNS, _scores(found, cells)),
            Table("By dataset", _WORLD_COLUMNS, [_world_row(outcome, cells) for outcome in found]),
        ],
        notes=notes,
        data=data | {"worlds": [dataclasses.asdict(each) for each in found]},
    )
