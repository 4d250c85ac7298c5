"""The loop that drives a loader under the clock: the only code that runs inside a measured window.

The figures that are compared come from here, so nothing is hooked and nothing is wrapped but the
clock around ``next()``.
"""

from __future__ import annotations

import array
import dataclasses
import itertools
import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Protocol

from dlprof.records import Config, Estimate
from dlprof.trial.estimate import Epoch, throughput, warm_up_batches

_MIN_ROUNDS = 3
_PATIENCE = 3.0  # a window may last this many times its length to gather _MIN_ROUNDS
_FILL_CAP_S = 0.25
_STRETCH_S = 1.0
_ONE_BATCH = -math.inf
_INSPECTED = 2  # the first batches that are kept to be inspected: one each of two workers


class Gate(Protocol):
    """Ends an epoch on demand; see ``dlprof.targets.loader.EpochGate``."""

    @property
    def attached(self) -> bool:
        """Whether the loader's epochs can be ended."""

    @property
    def exact(self) -> bool:
        """Whether every index batch handed out has to come back as a batch."""

    @property
    def batches(self) -> int:
        """Index batches handed out in this epoch."""

    def reopen(self, *, limit: float = ...) -> None:
        """Make ready for an epoch of at most ``limit`` batches."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """How long a trial looks.

    Attributes:
        config: What runs.
        window_s: Length of the measured window in seconds; longer where a round of W batches
            takes long, up to three times.
        turnover: Whether to time an epoch's end if none comes by itself.
    """

    config: Config
    window_s: float
    turnover: bool = True


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """What the clock saw.

    Attributes:
        startup_s: ``iter(loader)`` plus the first ``next()``.
        batches_per_s: Steady rate; ``None`` if too few batches came.
        spread: How uncertain that rate is, as a share of it; ``None`` if too few blocks came.
        batches: Batches in the window.
        measured_s: Seconds in the window.
        whole_epochs: Whether the rate covers whole epochs.
        wait_fraction: Share of the window spent in ``next()``.
        epoch_turnover_s: Last batch of an epoch to the first of the next; ``None`` if not timed.
        warnings: What people should know of the way it was measured.
    """

    startup_s: float
    batches_per_s: Estimate | None
    spread: float | None
    batches: int
    measured_s: float
    whole_epochs: bool
    wait_fraction: float
    epoch_turnover_s: float | None
    warnings: tuple[str, ...] = ()


class EmptyLoaderError(Exception):
    """The loader ended before its first batch."""


class TruncatedEpochError(Exception):
    """An epoch ended without an error before all its batches had come."""


@dataclasses.dataclass(slots=True)
class _Log:
    """The growing record of one epoch."""

    began_s: float
    warm_up: int
    yields_s: array.array[float] = dataclasses.field(default_factory=lambda: array.array("d"))
    asked_s: float = 0.0  # when the consumer asked for one more batch than the epoch had
    whole: bool = False

    def frozen(self) -> Epoch:
        return Epoch(
            began_s=self.began_s,
            yields_s=self.yields_s,
            warm_up=self.warm_up,
            whole=self.whole,
            last_partial=self.whole,
        )


class Loop:
    """Drives a loader through epochs, writing down when each batch came.

    Args:
        loader: What ``iter`` is called on, once an epoch.
        config: What it was built with.
        consume: Called with each batch.
        clock: Monotonic seconds.
        beat: Called now and then, with the time at which the last batch came.
        confirm: Called once, after the very first batch.
        inspect: Called once, with the first batches of the loader, which are then let go.
    """

    def __init__(
        self,
        loader: Any,
        config: Config,
        *,
        consume: Callable[[Any], object],
        clock: Callable[[], float],
        beat: Callable[[float], object],
        confirm: Callable[[], object] = lambda: None,
        inspect: Callable[[Sequence[Any]], object] = lambda _batches: None,
    ) -> None:
        self._loader = loader
        self._config = config
        self._consume = consume
        self._clock = clock
        self._beat = beat
        self._confirm = confirm
        self._inspect = inspect
        self._iterator: Iterator[Any] = iter(())
        self.batch: Any = None
        self._first_batches: list[Any] = []
        self.wait_s = 0.0
        self.logs: list[_Log] = []
        self.turnovers_s: list[float] = []

    @property
    def now(self) -> _Log:
        """The epoch that is running."""
        return self.logs[-1]

    @property
    def workers(self) -> Sequence[Any]:
        """The running loader's worker processes, as far as it has any."""
        workers: Sequence[Any] = getattr(self._iterator, "_workers", ())
        return workers

    def promised(self) -> int | None:
        """The batches of an epoch, by the loader's own word."""
        try:
            return len(self._loader)
        except Exception:  # noqa: BLE001 - the user's __len__; few iterable data sets have one
            return None

    def begin_epoch(self) -> None:
        """Start an epoch and take its first batch.

        Raises:
            EmptyLoaderError: The epoch has no batch.
        """
        log = _Log(began_s=self._clock(), warm_up=warm_up_batches(self._config))
        self._iterator = iter(self._loader)
        try:
            self.batch = next(self._iterator)
        except StopIteration:
            raise EmptyLoaderError from None
        log.yields_s.append(self._clock())
        if self.logs:
            self.turnovers_s.append(log.yields_s[0] - self.now.asked_s)
            self.wait_s += self.turnovers_s[-1]
        else:
            self._confirm()
            self._first_batches.append(self.batch)
        self.logs.append(log)
        self._consume(self.batch)
        self._beat(log.yields_s[0])

    def run(self, until_s: float) -> bool:
        """Take and consume batches until one comes at ``until_s`` or later; at least one.

        Returns:
            False if the epoch ended before that.
        """
        log, clock, consume = self.logs[-1], self._clock, self._consume
        write, advance = log.yields_s.append, self._iterator.__next__
        wait_s = 0.0
        while True:
            asked_s = clock()
            try:
                self.batch = batch = advance()
            except StopIteration:
                log.whole, log.asked_s = True, asked_s
                break
            came_s = clock()
            wait_s += came_s - asked_s
            write(came_s)
            consume(batch)
            if came_s >= until_s:
                break
        self.wait_s += wait_s
        self._beat(log.yields_s[-1])
        return not log.whole

    def drain(self) -> None:
        """Take the rest of the epoch as fast as it comes."""
        log = self.logs[-1]
        log.asked_s = self._clock()
        for batch in self._iterator:
            if len(self._first_batches) < _INSPECTED:
                self._first_batches.append(batch)
            self.batch = batch
            log.asked_s = self._clock()
            log.yields_s.append(log.asked_s)
            self._beat(log.asked_s)
        log.whole = True

    def take(self, count: int) -> bool:
        """Take some batches of this epoch and let them go; False where it has no more."""
        return sum(1 for _ in itertools.islice(self._iterator, count)) == count

    def let_go(self) -> None:
        """Show the first batches, and hold them no longer: they take shared memory."""
        self._inspect(self._first_batches)
        self._first_batches = []

    def shut_down(self) -> None:
        """End the workers, as torch does when its iterator is collected."""
        shut_down = getattr(self._iterator, "_shutdown_workers", None)
        self._iterator = iter(())
        if shut_down is not None:
            shut_down()


def _warm_up(loop: Loop, plan: Plan, gate: Gate, clock: Callable[[], float]) -> str:
    """Pass the warm-up; returns a warning if it had to be cut short."""
    wanted = warm_up_batches(plan.config)
    least = plan.config.num_workers + 1
    deadline = clock() + plan.window_s / 2
    while len(loop.now.yields_s) <= wanted:
        if clock() > deadline and len(loop.now.yields_s) > least:
            loop.now.warm_up = len(loop.now.yields_s) - 1
            return (
                f"the warm-up was cut short at {loop.now.warm_up} of {wanted} batches, "
                "because they are slow; a longer --trial-time measures better"
            )
        if not loop.run(_ONE_BATCH):
            _next_epoch(loop, gate)
            break
    return ""


def _next_epoch(loop: Loop, gate: Gate) -> None:
    """Go on after an epoch that ended by itself."""
    _check_whole(loop, gate)
    gate.reopen()
    loop.begin_epoch()


def _window_is_over(loop: Loop, plan: Plan, began_s: float) -> bool:
    """Whether the window is long enough, at the end of a round of W batches."""
    log = loop.now
    now = log.yields_s[-1]
    if now - began_s < plan.window_s:
        return False
    if len(loop.logs) > 1:
        steady = log.yields_s[log.warm_up :]
        return bool(steady) and now - steady[0] > plan.window_s / 2
    rounds, rest = divmod(len(log.yields_s) - 1 - log.warm_up, max(plan.config.num_workers, 1))
    late = now - began_s >= _PATIENCE * plan.window_s
    return rest == 0 and (rounds >= _MIN_ROUNDS or (late and rounds >= 1))


def _window(loop: Loop, plan: Plan, gate: Gate) -> None:
    """Run until the window is over, through as many epochs as that takes."""
    began_s = loop.now.yields_s[-1]
    ends_s = began_s + plan.window_s
    while not _window_is_over(loop, plan, began_s):
        # In stretches of a second, between which the supervisor hears that batches still come.
        if loop.run(min(loop.now.yields_s[-1] + _STRETCH_S, ends_s)):
            continue
        if loop.now.yields_s[-1] - began_s >= plan.window_s and len(loop.logs) > 1:
            return
        _next_epoch(loop, gate)


def _begin(loop: Loop, plan: Plan, gate: Gate) -> None:
    """Start the loader; first through an epoch of one batch per worker, to time an epoch's end.

    Its end is the real one, by torch's own path, and with one batch per worker it comes soon
    however slow the batches are.
    """
    limited = plan.turnover and gate.attached
    if limited:
        gate.reopen(limit=max(1, plan.config.num_workers))
    loop.begin_epoch()
    if limited and gate.attached:
        loop.drain()
        _check_whole(loop, gate)
        loop.let_go()
        gate.reopen()
        loop.begin_epoch()
    else:
        loop.let_go()


def _check_whole(loop: Loop, gate: Gate) -> None:
    """Notice an epoch that was cut short: torch takes a ``StopIteration`` for its end."""
    came = len(loop.now.yields_s)
    if gate.attached and gate.exact and came < gate.batches:
        raise TruncatedEpochError(f"{came} of {gate.batches} batches came")


def _middle(values: Sequence[float]) -> float | None:
    """The lower median; ``None`` of nothing."""
    return sorted(values)[(len(values) - 1) // 2] if values else None


def fill_s(rate: float, config: Config) -> float:
    """Seconds to wait for the queues to fill once nothing is consumed any more."""
    if config.num_workers == 0 or rate <= 0:
        return 0.0
    return min(_FILL_CAP_S, 1.2 * config.queued_batches / rate)


def measure(
    loop: Loop,
    plan: Plan,
    gate: Gate,
    *,
    clock: Callable[[], float],
    window: Callable[[str, float], object],
) -> Measured:
    """Measure one configuration.

    Args:
        loop: The loader under the clock, not begun.
        plan: What and how long.
        gate: Ends the first epoch soon, to time the turnover.
        clock: Monotonic seconds, the same as the loop's.
        window: Called with ``"start"`` and ``"end"`` at the window's ends; the second value is
            how long to wait for the queues to fill before memory is read. It may block.

    Raises:
        EmptyLoaderError: The loader gave nothing.
        TruncatedEpochError: An epoch ended early.
    """
    _begin(loop, plan, gate)
    startup_s = loop.logs[0].yields_s[0] - loop.logs[0].began_s
    del loop.logs[:-1]
    warning = _warm_up(loop, plan, gate, clock)
    window("start", 0.0)
    loop.wait_s, began_s = 0.0, clock()
    _window(loop, plan, gate)
    lasted_s = clock() - began_s
    wait_fraction = min(1.0, loop.wait_s / lasted_s) if lasted_s > 0 else 1.0
    epochs = [log.frozen() for log in loop.logs]
    rate = throughput(epochs, plan.config, enough_s=plan.window_s / 2)
    window("end", fill_s(rate.batches_per_s.value if rate else 0.0, plan.config))
    warnings = [warning] if warning else []
    if rate is not None and rate.whole_epochs:
        warnings.append(
            f"an epoch has only {len(epochs[0].yields_s)} batches: the rate is that of whole "
            "epochs, turnover included"
        )
    return Measured(
        startup_s=startup_s,
        batches_per_s=rate.batches_per_s if rate else None,
        spread=rate.spread if rate else None,
        batches=rate.batches if rate else 0,
        measured_s=rate.measured_s if rate else 0.0,
        whole_epochs=rate.whole_epochs if rate else False,
        wait_fraction=wait_fraction,
        epoch_turnover_s=_middle(loop.turnovers_s),
        warnings=tuple(warnings),
    )
