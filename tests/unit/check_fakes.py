"""Sides of a check that load nothing, and git; what tests of checks share."""

from __future__ import annotations

import contextlib
import dataclasses
import random
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from builders import machine

from dlprof.engine.checking.compared import CheckSettings, SidePlan
from dlprof.engine.checking.sides import Sides
from dlprof.gate.plan import SIDES
from dlprof.gate.verdict import NextLook
from dlprof.records import Config, Failure, Target, Usage
from dlprof.records.gate import Block, Series, Side
from dlprof.settings import SweepSettings
from dlprof.trial.launch import Built

BATCHES, SAMPLES, BATCH_S = 8, 4, 0.03


def run_git(folder: Path, *words: str) -> str:
    """What a command of git prints, in the repository of a folder."""
    who = ("-c", "user.name=n", "-c", "user.email=n@example.org")
    command = ["git", "-C", str(folder), *who, *words]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()


class Listener:
    """Keeps what it is given."""

    def __init__(self) -> None:
        self.messages: list[str] = []
        self.done: list[dict[str, int]] = []

    def preparing(self, what: str, done: int, total: int) -> None:
        """Nothing is made here."""

    def message(self, text: str) -> None:
        self.messages.append(text)

    def pulse(self, usage: Usage | None) -> None:
        """Nothing is drawn here."""

    def quads(
        self, done: Mapping[Series, int], look: NextLook | None, elapsed_s: float, budget_s: float
    ) -> None:
        self.done.append({str(series): count for series, count in done.items()})


class FakeSides(Sides):
    """Stands for both sides or one; each block turns the clock by what it takes."""

    def __init__(
        self, plans: Sequence[SidePlan], asked: CheckSettings, *, noise: float, fails: bool
    ) -> None:
        super().__init__(plans, {}, asked)
        self.now_s = 0.0
        self.plans = {plan.side: plan for plan in plans}
        target = Target(spec="data.py:make", kind="map", dataset="data.D", length=100, batch_size=4)
        built = Built(target=target, versions={"torch": "2.13.0", "python": "3.11.7"})
        self.machine = machine()
        self.built = dict.fromkeys(self.plans, built)
        self.configs = dict.fromkeys(self.plans, Config(num_workers=0))
        self.batches = BATCHES
        self.block_s = BATCH_S * BATCHES
        self.starts_s = dict.fromkeys(self.plans, 0.1)
        self._noise, self._fails = noise, fails
        self._coin = random.Random(1)

    def renew(self) -> None:
        """There are no processes."""

    def blocks(self, order: str, series: Series, cores: tuple[int, ...] = ()) -> tuple[Block, ...]:
        return tuple(self._block(SIDES[letter], series) for letter in order)

    def _block(self, side: Side, series: Series) -> Block:
        self.now_s += self.block_s if series == "load" else self.start_s
        if self._fails:
            self.failures[side].append(
                Failure(kind="worker_exception", message="It broke.", hint="Fix it.")
            )
            return Block(side=side, failure="It broke.")
        if series == "start":
            return Block(side=side, startup_s=self.start_s, epoch_turnover_s=0.01)
        batch_s = BATCH_S + self.plans[side].request.delay_s
        batch_s *= self._coin.lognormvariate(0, self._noise)
        return Block(
            side=side,
            service_s=(batch_s,) * BATCHES,
            samples=(SAMPLES,) * BATCHES,
            wall_s=batch_s * BATCHES,
            run_queue_wait_fraction=0.01,
        )


@dataclasses.dataclass
class Opened:
    """Takes the place of ``open_sides``; ``clock`` is that of the sides."""

    noise: float = 0.005
    fails: bool = False
    sides: list[FakeSides] = dataclasses.field(default_factory=list)

    @contextlib.contextmanager
    def __call__(
        self, plans: Sequence[SidePlan], settings: CheckSettings, listener: object
    ) -> Iterator[FakeSides]:
        made = FakeSides(plans, settings, noise=self.noise, fails=self.fails)
        self.sides.append(made)
        yield made

    def clock(self) -> float:
        return sum(each.now_s for each in self.sides)


def settings(budget_s: float = 60.0, **arguments: str) -> CheckSettings:
    sweep = SweepSettings(target="data.py:make", arguments=arguments, budget_s=budget_s)
    return CheckSettings(sweep=sweep)
