"""The three predictors, and predicting many configurations at once."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence

from dlprof.model import maxplus, simulate
from dlprof.model.bounds import Bound, binding, cpu_per_batch, own_cores
from dlprof.model.conditions import Conditions
from dlprof.model.deck import Deck
from dlprof.model.epochs import over_epochs
from dlprof.model.interval import (
    REPLICATES,
    Resampled,
    interval,
    log_error,
    resampled,
    spread_of,
)
from dlprof.model.predictor import Predictor, Steady
from dlprof.model.resources import needs
from dlprof.model.work import Cell, Work, cell_of, work_of
from dlprof.records import Calibration, Config, Prediction

_SEED = 20260101
_FEW = 64
"""Up to this many configurations are simulated long, and their luck by drawing batches anew."""

_LONG, _SHORT = 600, 240
_RECURSION_LONG, _RECURSION_SHORT = 4800, 600
"""The recursion takes a tenth of the time, and the luck of the draw weighs more the fewer there are
for each worker."""

_LONG_REPLICATES = 8
_ALL_UP_TO = 8
_GROWTH = 1.2


def spread_workers(most: int) -> tuple[int, ...]:
    """The ``num_workers`` that are worth predicting: all up to 8, then even ones, ever fewer.

    >>> spread_workers(20)
    (0, 1, 2, 3, 4, 5, 6, 7, 8, 10, 12, 14, 18, 20)
    """
    values = set(range(min(_ALL_UP_TO, most) + 1))
    count = float(_ALL_UP_TO)
    while count < most:
        count = max(count + 2, count * _GROWTH)
        values.add(min(most, 2 * round(count / 2)))
    return tuple(sorted(values))


class _OneByOne:
    """Predicting one configuration, as all predictors do it."""

    __slots__ = ()

    def predict(
        self: Predictor, calibration: Calibration, config: Config, conditions: Conditions
    ) -> Prediction:
        """Everything about one configuration, with intervals.

        Raises:
            ValueError: The calibration holds no batch, or is for another batch size.
        """
        return predict_all(calibration, (config,), conditions, method=self)[0]


@dataclasses.dataclass(frozen=True, slots=True)
class Closed(_OneByOne):
    """The lowest of the bounds: says what limits, not how limits add up."""

    @property
    def method(self) -> str:
        """``closed``."""
        return "closed"

    def steady(self, cell: Cell, _deck: Deck, /) -> Steady:
        """The lowest bound."""
        return Steady(batches_per_s=binding(cell)[1])


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class MaxPlus(_OneByOne):
    """The recursion over batches: a millisecond a configuration.

    Attributes:
        batches: That it goes through.
    """

    batches: int = _RECURSION_SHORT

    @property
    def method(self) -> str:
        """``maxplus``."""
        return "maxplus"

    def steady(self, cell: Cell, deck: Deck, /) -> Steady:
        """The rate by the recursion."""
        return maxplus.steady_rate(cell, deck, batches=self.batches)


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Simulation(_OneByOne):
    """The discrete-event simulation: the reference, some milliseconds a configuration.

    Attributes:
        batches: That it measures over all ranks.
    """

    batches: int = _LONG

    @property
    def method(self) -> str:
        """``simulation``."""
        return "simulation"

    def steady(self, cell: Cell, deck: Deck, /) -> Steady:
        """The rate by simulating."""
        return simulate.steady_rate(cell, deck, batches=self.batches)


def predictor_of(method: str, *, cells: int = 1) -> Predictor:
    """The predictor of that name, as exact as the number of configurations allows.

    Raises:
        ValueError: There is none of that name.
    """
    if method == "closed":
        return Closed()
    if method == "maxplus":
        return MaxPlus(batches=_RECURSION_LONG if cells <= _FEW else _RECURSION_SHORT)
    if method == "simulation":
        return Simulation(batches=_LONG if cells <= _FEW else _SHORT)
    raise ValueError(f"no predictor is called {method!r}: closed, maxplus or simulation")


def predict_all(
    calibration: Calibration,
    configs: Sequence[Config],
    conditions: Conditions,
    *,
    method: str | Predictor = "simulation",
) -> list[Prediction]:
    """Predict many configurations, sharing what they have in common.

    Args:
        calibration: What batches cost.
        configs: Canonical ones.
        conditions: Where they run.
        method: ``closed``, ``maxplus`` or ``simulation``, or a predictor.

    Returns:
        One prediction for each configuration, in their order.

    Raises:
        ValueError: The calibration holds no batch or is for another batch size, or there is no
            such method.
    """
    chosen = predictor_of(method, cells=len(configs)) if isinstance(method, str) else method
    return _Many(calibration, conditions, chosen, few=len(configs) <= _FEW).all(configs)


_Key = tuple[object, ...]


class _Many:
    """Predicting many configurations; what they share is reckoned once."""

    def __init__(
        self, calibration: Calibration, conditions: Conditions, predictor: Predictor, *, few: bool
    ) -> None:
        self._calibration = calibration
        self._conditions = conditions
        self._predictor = predictor
        self._few = few
        self._deck = Deck(_SEED)
        self._works: dict[_Key, Resampled] = {}
        self._known: dict[_Key, tuple[Steady, float]] = {}
        self._errors: dict[_Key, float] = {}

    def all(self, configs: Sequence[Config]) -> list[Prediction]:
        """One prediction each."""
        order = sorted(range(len(configs)), key=lambda place: configs[place].cost_key)
        made = {place: self._one(configs[place]) for place in order}
        return [made[place] for place in range(len(configs))]

    def _work(self, config: Config) -> Resampled:
        fetching = (config.num_workers > 0, config.batch_size)
        key = (*fetching, config.pin_memory, config.sharing_strategy)
        if key not in self._works:
            work = work_of(self._calibration, config, self._conditions)
            self._works[key] = resampled(work, count=REPLICATES, seed=_SEED)
        return self._works[key]

    def _one(self, config: Config) -> Prediction:
        drawn = self._work(config)
        cell = cell_of(self._calibration, config, self._conditions, work=drawn.work)
        steady, sampling = self._steady(cell, drawn)
        return self._prediction(config, cell, steady, sampling)

    def _steady(self, cell: Cell, drawn: Resampled) -> tuple[Steady, float]:
        """The steady rate and its sampling error, found anew only where they can differ.

        Where no worker was ever held back by ``prefetch_factor``, a larger one changes nothing.
        """
        group: _Key = (id(cell.work), cell.workers, cell.in_order)
        key = (*group, cell.prefetch)
        found = self._known.get(key) or self._known.get(group)
        if found is None:
            steady = self._predictor.steady(cell, self._deck)
            found = steady, self._sampling(cell, drawn)
            self._known[key] = found
            if not steady.held_back and self._predictor.method != "closed":
                self._known[group] = found
        return found

    def _sampling(self, cell: Cell, drawn: Resampled) -> float:
        key = (id(cell.work), cell.workers, cell.prefetch == 1)  # all that the closed form knows
        if key not in self._errors:
            self._errors[key] = log_error(cell, drawn)
        by_means = self._errors[key]
        if not self._few or self._predictor.method == "closed":
            return by_means
        again = [_redrawn(cell, work) for work in drawn.replicates[:_LONG_REPLICATES]]
        rates = [maxplus.steady_rate(*each, batches=_SHORT).batches_per_s for each in again]
        return max(by_means, spread_of(rates))

    def _prediction(
        self, config: Config, cell: Cell, steady: Steady, sampling: float
    ) -> Prediction:
        calibration = self._calibration
        needed = needs(calibration, config)
        rate = steady.batches_per_s
        estimate = interval(
            rate,
            sampling=sampling,
            calibration=calibration,
            cell=cell,
            method=self._predictor.method,
        )
        where, samples = self._conditions, calibration.samples_per_batch
        bound = _bound(cell, steady)
        wait = max(0.0, 1.0 - rate * cell.whole_step_s)
        return Prediction(
            batches_per_s=estimate,
            samples_per_s=None if samples is None else estimate.times(samples),
            epoch_batches_per_s=over_epochs(cell, rate, bound, needed.turnover_s),
            wait_fraction=wait if where.step_s or where.step_cpu_s else None,
            bound=bound,
            cores=rate * cpu_per_batch(cell) if math.isfinite(rate) else None,
            pss_bytes=needed.pss_bytes,
            shm_bytes=needed.shm_bytes,
            open_files=needed.open_files,
            startup_s=needed.startup_s,
            turnover_s=needed.turnover_s,
            method=self._predictor.method,
        )


def _redrawn(cell: Cell, work: Work) -> tuple[Cell, Deck]:
    return dataclasses.replace(cell, work=work), Deck(_SEED)


def _bound(cell: Cell, steady: Steady) -> Bound:
    """The lowest bound; where the rate stays far below even that, the reason for it."""
    name, limit = binding(cell)
    if name not in ("workers", "cores") or steady.batches_per_s >= maxplus.FAR_BELOW * limit:
        return name
    if steady.held_by_order:
        return "order"
    return "cores" if cell.conditions.ranks * cell.workers > own_cores(cell) else name
