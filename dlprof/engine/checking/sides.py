"""Both sides of a check as they run: built, warmed up, and measured in turns."""

from __future__ import annotations

import dataclasses
import math
import os
import time
from collections.abc import Callable, Mapping, Sequence

from dlprof.engine.checking.compared import SidePlan
from dlprof.engine.checking.naming import error_of_side, refuse_unlike, side_name
from dlprof.engine.checking.settings import CheckSettings, patience
from dlprof.errors import BaseNotMeasuredError, DlprofError, NothingMeasuredError
from dlprof.gate import LEAST_BATCHES, SIDES, cores_of, grouped
from dlprof.machine import inspect_machine
from dlprof.records import Config, Failure, Machine
from dlprof.records.gate import Block, Quad, Series, Side
from dlprof.search.space import single_config
from dlprof.trial.protocol import BlockRequest
from dlprof.trial.side import BuiltSide, SideProcess

_MOST_BATCHES = 4096
_NEAR = 1.5
"""A block that is longer or shorter than asked for by no more than this factor will do."""
_SHARE_OF_TRIED = 0.1
"""Of the budget, starting both sides once may take so much."""
_MOST_FAILURES = 3


class Sides:
    """One or two sides of a check.

    Args:
        plans: What they are.
        processes: Their processes, not built.
        settings: What is loaded, and how.
        clock: Monotonic seconds.

    Attributes:
        machine: What they run on.
        built: What each side told of its target.
        configs: The settings of each side's loader.
        batches: Of a block of loading.
        block_s: What a block of loading takes, all included.
        tried_s: What the last block or start that isn't judged took, by series and side.
        starts_s: What a start of each side takes, the turn of an epoch included.
        failures: What went wrong in blocks, by side.
    """

    def __init__(
        self,
        plans: Sequence[SidePlan],
        processes: Mapping[Side, SideProcess],
        settings: CheckSettings,
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.machine: Machine = inspect_machine()
        self.built: dict[Side, BuiltSide] = {}
        self.configs: dict[Side, Config] = {}
        self.batches = 0
        self.block_s = 0.0
        self.tried_s: dict[Series, dict[Side, float]] = {}
        self.starts_s: dict[Side, float] = {}
        self.failures: dict[Side, list[Failure]] = {plan.side: [] for plan in plans}
        self._plans = {plan.side: plan for plan in plans}
        self._processes = processes
        self._settings = settings
        self._clock = clock

    @property
    def _patience_s(self) -> float:
        """How long one answer may take."""
        return patience(self._settings)[0]

    @property
    def start_s(self) -> float:
        """What the longer of the starts takes."""
        return max(self.starts_s.values(), default=0.0)

    def build(self) -> None:
        """Build all sides' targets at the same time.

        Raises:
            DlprofError: One can't be built; says which side's.
        """
        for process in self._processes.values():
            process.begin()
        self._on_all(self._build)
        refuse_unlike(self._plans, self.built)
        for side, built in self.built.items():
            pins = bool(self.machine.gpus)
            config = single_config(self._settings.sweep, built.target, has_accelerator=pins)
            self.configs[side] = config
        self._on_all(self._open)

    def _on_all(self, act: Callable[[Side], None]) -> None:
        """Have all sides do something, whatever fails on one of them."""
        errors: dict[Side, DlprofError] = {}
        for side in self._plans:
            try:
                act(side)
            except DlprofError as error:
                errors[side] = error
        if errors:
            raise self._unbuilt(errors)

    def _build(self, side: Side) -> None:
        self.built[side] = self._processes[side].build(self._patience_s)

    def _open(self, side: Side) -> None:
        self._processes[side].open(self.configs[side], self._patience_s)

    def _unbuilt(self, errors: Mapping[Side, DlprofError]) -> DlprofError:
        """The error of one side by its name; one that both have is the target's."""
        messages = {error.message for error in errors.values()}
        side, error = list(errors.items())[-1]  # the change comes last
        if len(messages) == 1 and len(errors) == len(self._plans):
            return error
        return error_of_side(self._plans[side], error)

    def warm_up(self) -> None:
        """Fill caches, and find how many batches make a block.

        Raises:
            NothingMeasuredError: A side can't load; says which.
        """
        workers = max(config.num_workers for config in self.configs.values()) or 1
        flight = max(config.batches_in_flight for config in self.configs.values())
        self.batches = least = _whole(flight + max(LEAST_BATCHES, 2 * workers), workers)
        cold = self._try_all("load")
        self.block_s = max(cold.values())
        if self.block_s > self._hopeless_s:
            return
        warm = self._try_all("load")
        self._fit_block(warm, least, workers)
        if self.batches != least:  # seldom right at once, as the first batches differ from the rest
            self._fit_block(self._try_all("load"), least, workers)
        self._try_starts({side: cold[side] - warm[side] for side in cold})

    def _try_all(self, series: Series) -> dict[Side, float]:
        took: dict[Side, float] = {}
        failed: NothingMeasuredError | None = None
        for side in self._plans:
            try:
                took[side] = self._try(side, series)
            except NothingMeasuredError as error:
                failed = error  # the change comes last: what both have is its own fault
        if failed is not None:
            raise failed
        self.tried_s[series] = took
        return took

    def _fit_block(self, took: Mapping[Side, float], least: int, workers: int) -> None:
        """Make blocks longer or shorter, where they are far from what is wanted."""
        self.block_s, wanted_s = max(took.values()), self._settings.block_s
        if wanted_s / _NEAR <= self.block_s <= wanted_s * _NEAR:
            return
        wanted = _whole(self.batches * wanted_s / self.block_s, workers)
        fitting = min(_MOST_BATCHES, max(least, wanted))
        self.block_s *= fitting / self.batches
        self.batches = fitting

    @property
    def _hopeless_s(self) -> float:
        """A block that takes so long leaves no room for a verdict."""
        return self._settings.sweep.budget_s / 4

    def _try_starts(self, guesses: Mapping[Side, float]) -> None:
        """Start each side once, unless that has taken so long before that there is no time for it.

        Args:
            guesses: How much longer each side's first block took than a warm one.
        """
        longest_s = self._settings.sweep.budget_s * _SHARE_OF_TRIED
        if sum(guesses.values()) > longest_s:
            self.starts_s = {side: max(0.0, guess) for side, guess in guesses.items()}
        else:
            self.starts_s = self._try_all("start")

    def _try(self, side: Side, series: Series) -> float:
        """Load a block that isn't judged; what it took, in seconds."""
        began_s = self._clock()
        self._processes[side].order(self._request(series))
        _, failure = self._processes[side].collect(self._patience_s)
        if failure is not None:
            raise self._not_measured(side, f"can't be loaded from: {failure.message}", failure)
        return self._clock() - began_s

    def quad(self, order: str, series: Series, number: int) -> Quad:
        """Measure one quad.

        Args:
            order: ``A`` for the base and ``B`` for the change, from ``dlprof.gate.order_of``.
            series: What is measured.
            number: Of the quad within its series.
        """
        cores: tuple[int, ...] = ()
        if self._settings.pin and series == "load" and hasattr(os, "sched_getaffinity"):
            cores = cores_of(sorted(os.sched_getaffinity(0)), number)
        return Quad(number=number, series=series, blocks=self.blocks(order, series, cores))

    def blocks(self, order: str, series: Series, cores: tuple[int, ...] = ()) -> tuple[Block, ...]:
        """Measure blocks in an order of ``A`` and ``B``; failed ones tell why they have no figures.

        Args:
            order: Which side's, in turns.
            series: What is measured.
            cores: What the sides are held to; free where it is empty.
        """
        request = dataclasses.replace(self._request(series), cores=cores)
        return tuple(self._measured(SIDES[letter], request) for letter in order)

    def refuse_failing(self) -> None:
        """Give up on a side that has failed so often that it has a reason to.

        Raises:
            NothingMeasuredError: Says which, and why.
        """
        for side, failures in self.failures.items():
            if len(failures) >= _MOST_FAILURES:
                what = f"failed {len(failures)} times while it was measured"
                raise self._not_measured(side, f"{what}: {failures[-1].message}", failures[-1])

    def _not_measured(self, side: Side, what: str, failure: Failure) -> NothingMeasuredError:
        """The error of a side that can't be measured."""
        kind = BaseNotMeasuredError if side == "base" else NothingMeasuredError
        return kind(
            f"{side_name(self._plans[side])} {what}",
            hint=failure.hint,
            traceback=failure.stderr_tail,
        )

    def _measured(self, side: Side, request: BlockRequest) -> Block:
        self._processes[side].order(request)
        block, failure = self._processes[side].collect(self._patience_s)
        if failure is not None:
            self.failures[side].append(failure)
        if len(block.service_s) != len(block.samples):
            return block
        service, samples = grouped(block.service_s, block.samples)
        return dataclasses.replace(block, service_s=service, samples=samples)

    def _request(self, series: Series) -> BlockRequest:
        return BlockRequest(series=series, batches=self.batches, seed=self._settings.sweep.seed)


def _whole(batches: float, workers: int) -> int:
    """So many batches, or as many more as give each worker the same number of them."""
    return math.ceil(batches / workers) * workers
