"""What a perfect loader would bring to a script's loop: live batches against some given again.

In rounds: some batches as the loader gives them, then, while its workers rest, some that came
before, from memory. The difference is what loading costs the loop, of which waiting is one part,
and the step being slower beside the workers the other. A batch given again is a step more for the
script; the loader's own batches come in their order, and none is left out.

A step after a wait is slower by itself: its core was idle, or worked for others. So half of the
batches from memory are waited for as long as the loader's own were. What the step is slower by
beside the workers is what these leave; what they take longer than those at once is a part of
waiting.

What a round leaves out, and why:

- Batches after a pause come out of full queues, as none do otherwise. A round begins when as few
  are ready as were before the first pause. Those that were ready are no waits of the loader's.
- Workers go on until their queues are full. Batches are given again only then, after a wait.
- The first two steps after that wait find cold caches.
- At the end of an epoch there is nothing left to load: such a round is dropped.
"""

from __future__ import annotations

import contextlib
import functools
import math
import random
import statistics
import sys
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable, Iterator
from threading import get_ident
from typing import Any, Final, Literal

from dlprof.integrations.wait_statistics import Clock, IterationTimer, Take
from dlprof.internals import came_by_signal, ordered_batches, sent_batches
from dlprof.records import Config, Estimate, Headroom
from dlprof.stats.intervals import ratio_interval
from dlprof.targets.counting import count_bytes
from dlprof.units import NS, format_bytes

LEAD: Final = 2  # steps with batches from memory that are left out of each round

_LEAST_ROUNDS = 3
_LEAST_BLOCK, _MOST_BLOCK = 8, 40  # batches given again in a round

_MOST_BYTES = 512 * 2**20
_LEVELS = 8  # looks at the queues from which it is known how many batches are ready as a rule

_LONGEST_FILLED = 20  # fillings of the queues after which they are no fuller than usual

_LONGEST_REST_S = 10.0


class Headrooms:
    """What the loops over all loaders of a script's share, as one is measured at a time.

    ``inside`` has who waits for which reading, by thread.
    """

    def __init__(
        self,
        *,
        clock: Clock,
        inside: dict[int, IterationTimer | None] | None = None,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self.clock, self.sleep = clock, sleep
        self.inside = {} if inside is None else inside
        self.last: LoopHeadroom | None = None  # whose batch was the last that was taken
        self.replaying: LoopHeadroom | None = None  # which gives batches again now

    def opening(self) -> None:
        """An iterator is about to be made, by which a loop that was left is noticed."""
        if self.replaying is not None:
            self.replaying.break_off()


class LoopHeadroom:
    """Measures the loop over one loader, once it is ``ready``: looked at by nobody else."""

    def __init__(
        self, all_loops: Headrooms, config: Config | None, ready: Callable[[], bool]
    ) -> None:
        self.over = False
        self._all, self._ready = all_loops, ready
        self._clock = all_loops.clock
        self._workers = 0 if config is None else config.num_workers
        self._in_flight = 0 if config is None else config.batches_in_flight
        self._figures = Rounds()
        self._refused = ""
        self._busy = False
        # Whether an iteration knew its block; if no round comes, there was no room for one.
        self._no_room = False
        self._random = random.Random(0)
        self._copies: list[tuple[int, Any]] = []  # with their bytes
        self._block = 0  # batches given again in a round; 0 until steps are known
        self._usual: int | None = None
        self._levels: deque[int] = deque(maxlen=_LEVELS)
        self._settling_steps: deque[int] = deque(maxlen=_MOST_BLOCK)
        self._unrested = 0
        self._filled = 0  # batches for which queues may be fuller than usual, since the last pause
        self._hindrance = ""
        self._began_ns = self._extra_ns = 0
        self._extra_steps = 0
        self._fresh = True
        self._came_ns: int | None = None
        self._random_state: Callable[[], None] | None = None
        self._iterator: weakref.ref[Any] | None = None
        self._base: IterationTimer | None = None
        self._settle()
        if config is None:
            self._refuse("it has no settings of a DataLoader's")

    @property
    def why_not(self) -> str:
        """Why there is no answer; empty where there is one."""
        if self._figures.count >= _LEAST_ROUNDS:
            return ""
        if self._refused:
            return self._refused
        if not self._figures.count and self._hindrance:
            return self._hindrance
        block = self._block or _LEAST_BLOCK
        need = max(self._lead, LEAD + block) + block + self._in_flight
        return (
            f"{self._figures.count} of {_LEAST_ROUNDS} rounds fitted in: each takes some {need} "
            "batches of one epoch (train for more epochs, or longer ones)"
        )

    def summary(self) -> Headroom | None:
        """The answer; ``None`` where there is none (yet)."""
        if self._figures.count < _LEAST_ROUNDS:
            return None
        return self._figures.summary(
            extra_steps=self._extra_steps,
            extra_s=self._extra_ns / NS,
            overlaps=self._synchronize is not None,
        )

    def replaying(self, take: Take, base: IterationTimer) -> Take:
        """``IterationTimer.take`` of a new iteration, between whose batches some are given again.

        These count in no step of ``base``. Neither its queues nor its batches are those of the
        last iteration.
        """
        self._fresh = True
        self._filled = 0
        self._copies.clear()
        self._settle()
        if self._no_room and not self._figures.count:
            self._block = min(self._block, max(_LEAST_BLOCK, self._block // 2))
        self._no_room = bool(self._block)
        return functools.partial(self._next, take, base)

    def _next(
        self, take: Take, base: IterationTimer, advance: Callable[[Any], Any], iterator: Any
    ) -> Any:
        """The next batch: the loader's own, or one given again."""
        if self.over or self._busy:  # the next() of a base class runs inside of its own
            self._all.last = self
            batch = take(advance, iterator)
            if self._filled and not self._busy:
                self._leave_out(base, iterator)
            return batch
        self._busy = True
        try:
            return self._take(take, base, advance, iterator)
        finally:
            self._busy = False

    def _take(
        self, take: Take, base: IterationTimer, advance: Callable[[Any], Any], iterator: Any
    ) -> Any:
        self._base = base
        with self._guarded():
            # Batches given again there would mix up what the script does.
            if threading.current_thread() is not threading.main_thread():
                self._refuse("its batches are taken in a background thread")
            elif self._all.inside.get(get_ident()) is not None:
                self._refuse("its batches are taken inside of another loader")
            self._close_step(iterator)
            if self._phase == "replaying":
                # A loop that is left lets go of its iterator: what follows is the script's again.
                with contextlib.suppress(TypeError):  # a class may have no weak references
                    self._iterator = weakref.ref(iterator, lambda _: self.break_off())
                self._wait_as_live()
                _, batch = self._copies.pop()
                self._extra_steps += 1
                self._wait_ns = 0
                self._all.last = self
                self._came_ns = self._clock()
                return batch
        took: list[int] = []

        def timed(within: Any) -> Any:
            asked_ns = self._clock()
            batch = advance(within)
            took.append(self._clock() - asked_ns)
            return batch

        try:
            batch = take(timed, iterator)
        except BaseException:
            self._settle()
            self._filled = 0
            raise
        self._all.last = self
        if self._filled:
            self._leave_out(base, iterator)
        self._wait_ns = took[0] if took else 0
        with self._guarded():
            self._look_at(batch)
        self._came_ns = self._clock()
        return batch

    def _leave_out(self, base: IterationTimer, iterator: Any) -> None:
        """Leave a batch out of the waits that comes from queues which a pause has filled."""
        base.statistics.note_ready(base)
        self._filled -= 1
        left, level = (_LONGEST_FILLED - 1) * self._in_flight, sent_batches(iterator)
        if self._filled <= left and (level is None or level <= (self._usual or 0)):
            self._filled = 0

    def _wait_as_live(self) -> None:
        """Before a batch from memory that is waited for: as long as for one of the loader's own."""
        number = len(self._measured) - LEAD - self._at_once
        if number >= 0:
            wait_s = self._live[number % len(self._live)][0] / NS
            # A step gets no slower by longer waits than a fraction of a second.
            self._all.sleep(min(wait_s, _LONGEST_REST_S / _MOST_BLOCK))

    def break_off(self) -> None:
        """End a round that can't be finished; its batches may serve for the next."""
        if self._phase == "replaying":
            with self._guarded():
                self._leave_replaying(self._clock())
        self._settle()

    # What a step was, and what comes next.

    def _close_step(self, iterator: Any) -> None:
        """The step with the last batch is over; go on to where the next batch comes from."""
        edge = self._phase != "settling" and len(self._measured) + 1 in self._edges
        if edge and self._synchronize is not None:
            self._synchronize()
        now_ns = self._clock()
        alone = self._all.last is self or self._came_ns is None
        if self._came_ns is not None:
            step_ns = now_ns - self._came_ns
            if self._phase == "settling":
                self._note_settling(step_ns, iterator, alone=alone)
            elif not alone:
                self.break_off()
            else:
                self._measured.append((self._wait_ns, step_ns))
        if self._phase == "settling" and self._is_settled(iterator):
            self._begin_live()
        elif self._phase == "live" and len(self._measured) >= self._edges[-1]:
            self._pause(iterator)
        elif self._phase == "replaying" and len(self._measured) >= self._edges[-1]:
            self._leave_replaying(now_ns)
            figures, again = self._figures, [step for _, step in self._measured[LEAD:]]
            figures.add(self._live, again[: self._at_once], again[self._at_once :])
            self._settle()
            if figures.replayed >= 400 or figures.count >= 40 or figures.sure:
                self._refuse()

    def _note_settling(self, step_ns: int, iterator: Any, *, alone: bool) -> None:
        self._since += 1
        self._settling_steps.append(step_ns)
        torch = sys.modules.get("torch")
        if not alone:
            self._hindered += 1
            self._hindrance = "its steps take batches of another loader as well"
        elif torch is not None and not torch.is_grad_enabled():
            self._hindered += 1
            self._hindrance = "its batches are not trained on: gradients are off"
        elif self._hindered <= self._since / 2:
            self._hindrance = ""
        level = sent_batches(iterator)
        if self._workers and level is not None:
            self._levels.append(level)

    @property
    def _at_once(self) -> int:
        """Batches given again in a round that nothing is waited for: the first half.

        All, without workers: the loader computes in its waits, in which this would rest. All, too,
        where steps go on where no clock of the host's sees them.
        """
        waited = self._workers > 0 and self._synchronize is None
        return math.ceil(self._block / 2) if waited else self._block

    @property
    def _lead(self) -> int:
        """Batches of the loader's own that are left out before a round."""
        fill = self._in_flight + self._workers
        return max(LEAD, self._workers, fill if self._fresh else 0)

    def _is_settled(self, iterator: Any) -> bool:
        kept = self._block and len(self._copies) >= self._block + LEAD
        if not kept or self._since < self._lead:
            return False
        # From the answer on, batches given again take at most half of the time of the loader's own.
        own_ns = self._clock() - self._began_ns - self._extra_ns
        if self._figures.count >= _LEAST_ROUNDS and self._extra_ns > 0.5 * own_ns:
            return False
        if self._hindered > self._since / 2:
            return False
        level = sent_batches(iterator) if self._workers else None
        if level is None:
            return True
        # After so many fillings of the queues, a round begins however many batches are ready.
        long = self._since >= _LONGEST_FILLED * max(1, self._in_flight)
        if self._usual is None or long:
            if len(self._levels) < _LEVELS:
                return False
            self._usual = math.ceil(statistics.median(self._levels))
        return level <= self._usual

    def _settle(self) -> None:
        self._phase: Literal["settling", "live", "replaying"] = "settling"
        self._since = self._hindered = 0
        self._came_ns = None
        self._wait_ns = 0
        self._measured: list[tuple[int, int]] = []
        self._edges: tuple[int, ...] = ()

    def _begin_live(self) -> None:
        if self._synchronize is not None:
            self._synchronize()
        self._fresh = False
        cycle = max(1, self._workers)
        batches = cycle * math.ceil(self._block / cycle)
        batches += cycle * self._random.randrange(2)  # so that no other rhythm is met each time
        self._phase, self._measured, self._edges = "live", [], (batches,)

    def _pause(self, iterator: Any) -> None:
        """Behind the loader's own batches: wait for its workers, and give batches again."""
        live, self._left_ns = self._measured, self._clock()
        ordered = ordered_batches(iterator)
        if self._workers and ordered is not None and ordered < self._in_flight:
            self._settle()  # the epoch ends, and with it loading
            return
        self._filled = _LONGEST_FILLED * self._in_flight
        if not self._is_at_rest(iterator, live):
            self._unrested += 1
            if self._unrested >= 3:
                self._refuse(f"its workers did not come to rest in {_LONGEST_REST_S:g} s")
            self._skip(self._clock())
            self._settle()
            return
        self._random_state = _random_state()
        self._live = live
        self._phase, self._measured = "replaying", []
        self._edges = (LEAD, LEAD + self._block)
        self._all.replaying = self

    def _is_at_rest(self, iterator: Any, live: list[tuple[int, int]]) -> bool:
        """Wait until the workers are, but not for ever."""
        if not self._workers:
            return True
        period_s = sum(wait + step for wait, step in live) / NS / len(live)
        expected_s = self._in_flight * period_s
        if sent_batches(iterator) is None:
            self._all.sleep(min(_LONGEST_REST_S, 1.5 * expected_s))
            return True
        longest_s = min(_LONGEST_REST_S, max(1.0, 4 * expected_s))
        began_ns = self._clock()
        while (sent := sent_batches(iterator)) is not None and sent < (
            ordered_batches(iterator) or 0
        ):
            if self._clock() - began_ns > longest_s * NS:
                return False
            self._all.sleep(0.002)
        # What a worker may still take to send what is in its queue already.
        self._all.sleep(0.01)
        return True

    def _leave_replaying(self, now_ns: int) -> None:
        """The loader's own batches come again, and the numbers of its samplers."""
        if self._random_state is not None:
            self._random_state()
        self._random_state = self._all.replaying = self._iterator = None
        self._skip(now_ns)

    def _skip(self, now_ns: int) -> None:
        """What happened since the last of the loader's own steps is none of the script's."""
        self._extra_ns += now_ns - self._left_ns
        if self._base is not None:
            self._base.statistics.note_skip(self._base, now_ns - self._left_ns)

    # Batches that are kept.

    def _look_at(self, batch: Any) -> None:
        """Keep a copy of a batch that may be given again; outside of all clocks."""
        if self._phase != "settling" or not self._ready():
            return
        self._began_ns = self._began_ns or self._clock()
        if self._block and len(self._copies) >= self._block + LEAD:
            return
        if not self._block and len(self._settling_steps) < _LEVELS:
            return
        self._left_ns = self._clock()
        from dlprof.device.moving import copied

        size = count_bytes(batch)
        if not self._block:
            # As many as take 50 ms.
            step_s = statistics.median(self._settling_steps) / NS
            wanted = math.ceil(0.05 / max(step_s, 1e-9))
            fits = _MOST_BYTES // max(1, size) - LEAD
            self._shorten_block(size, min(_MOST_BLOCK, max(_LEAST_BLOCK, wanted), fits))
        elif sum(kept for kept, _ in self._copies) + size > _MOST_BYTES:
            self._shorten_block(size)
        if self._refused or (self._block and len(self._copies) >= self._block + LEAD):
            return
        try:
            self._copies.append((size, copied(batch)))
        except Exception as error:  # the user's own class may refuse
            self._refuse(f"its batches can't be copied ({type(error).__name__}: {error})")
        self._skip(self._clock())

    def _shorten_block(self, size: int, block: int | None = None) -> None:
        """To as many batches as are kept, or to so many."""
        self._block = len(self._copies) - LEAD if block is None else block
        if self._block < 4:
            self._refuse(f"its batches of {format_bytes(size)} are too large to keep some")

    @functools.cached_property
    def _synchronize(self) -> Callable[[], None] | None:
        """Waits for a step, where steps go on where no clock of the host's sees them."""
        from dlprof.device.patching import compiled_for

        torch, kind = sys.modules["torch"], compiled_for()
        used = getattr(getattr(torch, kind or "", None), "is_initialized", lambda: True)
        return torch.accelerator.synchronize if kind is not None and used() else None

    def _refuse(self, why: str = "") -> None:
        self._refused = self._refused or why
        if self._phase == "replaying":
            self.break_off()
        self.over = True
        self._copies.clear()

    @contextlib.contextmanager
    def _guarded(self) -> Iterator[None]:
        """Keep a fault of dlprof's own from the script."""
        try:
            yield
        except Exception as error:  # a training must not end by being watched
            if self._random_state is not None:
                self._random_state()
            self._random_state = self._all.replaying = None
            self._settle()
            if came_by_signal(error):
                raise
            self._refuse(f"dlprof has a fault of its own: {type(error).__name__}: {error}")


def _random_state() -> Callable[[], None]:
    """What brings the random numbers of this process back to where they are now.

    Samplers draw each epoch's order from them, and so does a loader without workers. Where the
    script has set a seed since then, it stays.
    """
    import torch  # loaded with the script's loaders

    from dlprof.tuning.seeding import rewinder

    back, seed, before = rewinder(), _fresh_seed(torch), torch.initial_seed()

    def restore() -> None:
        again = seed is None and _fresh_seed(torch) is not None
        if not again and torch.initial_seed() == before:
            back()

    return restore


def _fresh_seed(torch: Any) -> int | None:
    """The seed that was just set; ``None`` where a number has been drawn since."""
    fresh, seed = torch.Generator(), torch.initial_seed()
    fresh.manual_seed(seed)
    return seed if torch.equal(fresh.get_state(), torch.get_rng_state()) else None


def _by_factor(ratio: Estimate) -> Estimate:
    """A ratio whose interval is as far to either side by factors: it can't fall below 0.

    By the delta method, as the interval itself: the error of a logarithm is the relative one.
    (``Estimate.log_sd`` is for intervals of unknown make, whose ends may be far apart.)
    """
    if ratio.high is None:
        return ratio
    factor = math.exp((ratio.high - ratio.value) / ratio.value)
    return Estimate(value=ratio.value, low=ratio.value / factor, high=ratio.value * factor)


class Rounds:
    """What all rounds say; pure."""

    def __init__(self) -> None:
        self.count = self.replayed = 0
        self._live: list[list[tuple[int, int]]] = []
        self._again: list[tuple[list[int], list[int]]] = []

    def add(self, live: list[tuple[int, int]], at_once: list[int], waited: list[int]) -> None:
        """One more round, in nanoseconds.

        Wait and step of the loader's own batches, and the steps of those from memory: of those that
        came at once, and of those that were waited for, if any were.
        """
        self._live.append(live)
        self._again.append((at_once, waited))
        self.count += 1
        self.replayed += len(at_once) + len(waited)

    @property
    def sure(self) -> bool:
        """Whether no further round is needed."""
        if self.count < 8:
            return False
        periods, _, steps, _ = self._means(usual_only=True)
        share = ratio_interval(steps, periods)
        # A half-width of so much of the period needs no further round.
        return share.high is not None and share.high - share.value <= 0.015

    def summary(self, *, extra_steps: int, extra_s: float, overlaps: bool) -> Headroom:
        """The record.

        ``overlaps``: steps go on where the host's clock doesn't see them. Part of the wait in
        ``next()`` then costs nothing, and no step is left out for its length.
        """
        periods, waits, steps, waited = self._means(usual_only=not overlaps)
        if overlaps:
            most = max(0.0, sum(periods) - sum(steps))
            factor = min(1.0, most / sum(waits)) if sum(waits) > 0 else 0.0
            waits = [each * factor for each in waits]
        slower = [
            period - wait - step for period, wait, step in zip(periods, waits, waited, strict=True)
        ]
        lost = [period - step for period, step in zip(periods, steps, strict=True)]
        waiting = [whole - part for whole, part in zip(lost, slower, strict=True)]
        return Headroom(
            rounds=self.count,
            live_batches=sum(map(len, self._live)),
            replayed_batches=self.replayed,
            extra_steps=extra_steps,
            extra_s=extra_s,
            period_s=statistics.fmean(periods),
            step_s=statistics.fmean(steps),
            speedup=_by_factor(ratio_interval(periods, steps)),
            waiting_fraction=ratio_interval(waiting, periods),
            slowed_fraction=ratio_interval(slower, periods),
        )

    def _means(self, *, usual_only: bool) -> tuple[list[float], ...]:
        """Each round's period, wait, and steps from memory, at once and waited for, in seconds."""
        most_live = most_again = math.inf
        if usual_only:
            # Much longer steps do something else as well, such as to save a model.
            most_live = 5.0 * statistics.median(step for each in self._live for _, step in each)
            most_again = 5.0 * statistics.median(step for each, _ in self._again for step in each)
        found: tuple[list[float], ...] = ([], [], [], [])
        for live, (at_once, waited) in zip(self._live, self._again, strict=True):
            own = [each for each in live if each[1] <= most_live]
            steps = [step for step in at_once if step <= most_again]
            rested = [step for step in waited if step <= most_again] or steps
            if own and steps:
                periods, waits = [*map(sum, own)], [wait for wait, _ in own]
                for each, values in zip(found, (periods, waits, steps, rested), strict=True):
                    each.append(statistics.fmean(values) / NS)
        return found
