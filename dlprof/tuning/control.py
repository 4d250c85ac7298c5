"""What to try next, from what batches waited and what steps took; no clock, no I/O.

Whoever holds a loader asks :meth:`Control.begin` what to have and for how long, counts batches,
passes in what it saw, and gets the next answer.
"""

from __future__ import annotations

import dataclasses
import math
import statistics
from collections import deque
from collections.abc import Callable, Generator, Sequence
from typing import NamedTuple

from dlprof.records import Estimate
from dlprof.stats.intervals import mean_interval

WORTH = 0.02
"""A share of the time that waits for data, below which nothing is tried to shorten it."""

DEEPEST = 16
"""``prefetch_factor``, at most: in-order delivery gains little beyond."""

_REST_S = 1.0  # of a window while no setting is tried
_FEWEST = 4  # batches of a window, windows of a stay, turns: what fewer show may be chance
_IN_A_ROW = 3  # windows that calibrate
_ENOUGH = 8  # turns that decide; windows that show whether something has changed
_REMEMBERED = 64  # windows: earlier ones say little of now
_EQUAL = 0.01  # of a batch's time: what is no more is no gain and no loss
_JUMP = 4  # times as many workers, or as deep, at most, in one step
_HEADROOM = 1.1  # workers are never quite even
_SIGMAS = 4.0  # what changed for sure, in standard errors
_CLEAR = 0.6  # a log ratio above that of any core's two speeds: 1.77 apart were measured
_MINUTE_S, _ALLOWED_S = 60.0, 0.6  # what trials may cost in a minute: half of what is promised
_AGAIN_S = _MINUTE_S / 2  # until what brought nothing is tried again; and as long is tried at most
_EDGE_WINDOW_S = 4 * _REST_S  # where a setting stays for an epoch
_EDGE_STAY_S = 40.0  # long enough to judge by, however unsure
_MOVED = 0.05  # of a batch's time: much faster, or much slower
_SEEDED_S = 1e-4  # what a batch of the main process takes besides: its random numbers
_KEEPS_UP = "the loader keeps up; fewer workers may do"
_SPARED = "fetching a batch takes less than having it from a worker"


class Setting(NamedTuple):
    """What is changed: workers that are handed batches, and how many each of them ahead.

    ``pins`` says whether batches are pinned, while that is tried; ``None`` for as before.
    """

    workers: int
    ahead: int
    pins: bool | None = None

    @property
    def in_flight(self) -> int:
        """Batches that are ordered and not yet yielded."""
        return self.workers * self.ahead

    def takes_more_than(self, other: Setting) -> bool:
        """Whether it needs memory, or files, that another doesn't."""
        pins = bool(self.pins and not other.pins)
        return pins or self.workers > other.workers or self.in_flight > other.in_flight

    def __str__(self) -> str:
        pinned = "" if self.pins is None else f", pin_memory={self.pins}"
        if not self.workers:
            return f"num_workers=0{pinned}"
        return f"num_workers={self.workers}, prefetch_factor={self.ahead}{pinned}"


NO_WORKERS = Setting(0, 0)
"""The main process loads by itself."""


class Ask(NamedTuple):
    """What to have, and how long to look."""

    setting: Setting
    skip: int  # batches to let pass first
    batches: int  # at least so many are counted
    seconds: float  # and at least for so long
    within: Setting | None = None  # until the next epoch, where ``setting`` comes with that one


class Window(NamedTuple):
    """What was seen."""

    setting: Setting  # in force all through it
    batches: int
    waited_s: float
    stepped_s: float
    skipped: int = 0
    skipped_s: float = 0.0
    refused: str = ""  # why the setting could not be had; the figures are 0 then
    # What ``next()`` takes of a batch that is ready: no other setting makes it shorter.
    receive_s: float = 0.0
    fetch_s: float = 0.0  # what a worker takes to make a batch; 0 where that isn't known
    cpu_s: float = 0.0  # the CPU time of that; with more threads than one it may be more
    delay_s: float = 0.0  # waiting of that for a core; 0 where that isn't known
    alone_cpu_s: float = 0.0  # CPU time of it in the main process; 0 where that isn't known
    # Batches that were ready and not yet asked for at its end, less those at its beginning.
    stocked: int = 0

    @property
    def made(self) -> int:
        """Batches that workers made: these say at once what a setting is worth, queues hide it."""
        return max(1, self.batches + self.stocked)

    @property
    def idle_s(self) -> float:
        """Of fetching a batch, what is neither CPU time nor run-queue delay: waiting, mostly."""
        return max(0.0, self.fetch_s - self.cpu_s - self.delay_s)

    @property
    def busy_cores(self) -> float:
        """Cores that its workers compute on if they never rest; one each where that isn't known."""
        share = self.cpu_s / self.fetch_s if self.fetch_s else 1.0
        return share * self.setting.workers

    @property
    def wait_share(self) -> float:
        """Of the time, 0 to 1: the wait for batches that were not ready."""
        whole = self.waited_s + self.stepped_s
        exposed_s = max(0.0, self.waited_s - self.batches * self.receive_s)
        return exposed_s / whole if whole > 0 else 0.0

    @property
    def took_s(self) -> float:
        """Seconds in all, with the batches that were let pass."""
        return self.waited_s + self.stepped_s + self.skipped_s

    def lost_s(self, against_s: float) -> float:
        """Seconds over what all that was made would take at so much a batch."""
        return self.took_s - (self.made + self.skipped) * against_s


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """One thing that was tried.

    Attributes:
        at_s: When it was decided, seconds of loading and stepping since the beginning.
        batch: After how many batches.
        before: The setting before.
        after: The one that was tried.
        why: What it was tried for.
        kept: Whether it is in force since.
        speedup: Time a batch before, over that after; ``None`` where that wasn't measured.
        refused: Why it could not be tried; empty where it was.
    """

    at_s: float
    batch: int
    before: Setting
    after: Setting
    why: str
    kept: bool
    speedup: Estimate | None = None
    refused: str = ""


class _RefusedError(Exception):
    """The setting that was asked for can't be had."""


_Plan = Generator[Ask, Window, None]


class Control:
    """The tuning of one loader, from its first batch to its last, beginning with a ``setting``.

    ``live`` says whether a setting takes effect within an epoch, or only with the next;
    ``changes_workers`` and ``spares_workers`` whether another number of them may be tried, and
    none at all. The workers have so many ``cores``. Where it begins with more than the loader's
    own, these are the ``least`` that are left in the end. An ``epoch`` has so many batches: what
    would hold more of them isn't tried.

    Attributes:
        by_wait: Whether the wait alone is judged: beside other ranks, what a rank gains is spent in
            waiting for them, as part of its step.
        idle: Why nothing larger is tried; empty before that is known.
        repins: Whether to pin batches, where that is not so and may be tried now; else ``None``.
        pins: What came of that; ``None`` for as the loader says.
        cores: Of the workers, as they are now: a quota may be set.
    """

    def __init__(
        self,
        setting: Setting,
        most_workers: int,
        *,
        live: bool = True,
        changes_workers: bool = True,
        spares_workers: bool = False,
        cores: int = 1,
        least: int | None = None,
        epoch: float = math.inf,
    ) -> None:
        self.kept = setting
        self._least = setting.workers if least is None else least
        self.changes: list[Change] = []
        self.settled_s: float | None = None
        self.resting = False
        self.idle = ""
        self.repins: bool | None = None
        self.pins: bool | None = None
        self.wait_share = 0.0
        self.total_s = 0.0
        self.batches = 0
        self._most, self.cores, self.live = most_workers, cores, live
        self._epoch = epoch
        self._changes_workers, self.by_wait = changes_workers, False
        self._spares_workers, self._receive_s = spares_workers, 0.0
        self._worked_s = 0.0  # of a worker, for a batch, before all were done without
        self._losses: deque[tuple[float, float]] = deque()
        self._gains: dict[tuple[Setting, Setting], list[float]] = {}
        self._given_back: Setting | None = None  # what was kept before some were parked
        self._floor = 0  # workers that were seen to be too few
        self._last: Window | None = None
        self._again_s, self._rested_from_s, self._until_s = _AGAIN_S, 0.0, math.inf
        self._plan = self._life()

    def begin(self) -> Ask:
        """The first thing to look at."""
        return next(self._plan)

    def look(self, window: Window) -> Ask:
        """Take in what was seen; returns what to have from now on."""
        self.total_s += window.took_s
        self.batches += window.batches + window.skipped
        if not window.setting.workers:  # what having a batch from workers took is spared
            window = window._replace(receive_s=self._receive_s)
        elif self.kept.workers:  # else it is known what that is against
            self._receive_s = window.receive_s or self._receive_s
        return self._plan.send(window)

    def _life(self) -> _Plan:
        while True:
            yield from self._within_epochs() if self.live else self._at_edges()

    def _within_epochs(self) -> _Plan:
        seen = yield from self._windows(self.kept, _IN_A_ROW, skip=2 * self.kept.in_flight)
        self.wait_share = _whole(seen).wait_share
        if self._spares_workers and self.wait_share > WORTH:  # meanwhile a process tries a batch
            seen = yield from self._windows(self.kept, _FEWEST)
        while self.live:
            if (yield from self._spare(_whole(seen))):
                seen = yield from self._windows(self.kept, _IN_A_ROW)
            share = self.wait_share = _whole(seen).wait_share
            if share > WORTH:
                if self.kept.workers:
                    self._given_back = None
                yield from self._improve(_whole(seen))
                if not self.kept.workers:  # from now on that is what it is to wait
                    seen = yield from self._windows(self.kept, _IN_A_ROW)
                    share = self.wait_share = _whole(seen).wait_share
            elif self._changes_workers:
                yield from self._give_back(share)
            self._settle(share)
            self.resting = True
            yield from self._rest(share)
            self.resting = False
            seen = yield from self._windows(self.kept, _IN_A_ROW, skip=self.kept.in_flight)

    def _settle(self, share: float) -> None:
        self.settled_s = self.settled_s or self.total_s
        why = "nothing larger may be tried" if share > WORTH else "nothing to gain"
        self.idle = f"{share:.0%} of the time waits for data, {why}"

    def _may_lose(self, more_s: float = _ALLOWED_S / 2) -> bool:
        """Whether trials have cost so little lately that they may cost so much more."""
        while self._losses and self._losses[0][0] < self.total_s - _MINUTE_S:
            self._losses.popleft()
        return max(0.0, math.fsum(lost_s for _, lost_s in self._losses)) + more_s <= _ALLOWED_S

    # Looking.

    def _windows(
        self, setting: Setting, count: int, *, skip: int = 0
    ) -> Generator[Ask, Window, list[Window]]:
        """So many windows of a setting, from when it is in force."""
        seen: list[Window] = []
        batches = max(_FEWEST, 2 * setting.workers)
        while len(seen) < count:
            window = yield Ask(setting, 0 if seen else skip, batches, 0.25)
            if window.refused:
                raise _RefusedError(window.refused)
            if window.setting == setting:  # else the epoch goes on with another
                seen.append(window)
        self._last = seen[-1]
        return seen

    def _turn(
        self, setting: Setting, count: int, against_s: float | None = None
    ) -> Generator[Ask, Window, Window]:
        """Some windows of a setting in a row; cut short where it costs too much.

        ``against_s`` is what a batch takes under the setting that is kept, while another is tried.
        """
        other = self._last.setting if self._last is not None else setting
        skip = other.in_flight + setting.workers  # what was ordered before
        seen: list[Window] = []
        for _ in range(count):
            seen += yield from self._windows(setting, 1, skip=0 if seen else skip)
            turn = _whole(seen)
            if against_s is not None and not self._may_lose(turn.lost_s(against_s)):
                break
            if self.total_s > self._until_s:
                break
        return turn

    def _cost_s(self, window: Window, step_s: float) -> float:
        """Of a batch: its step, and the wait that is left if what was made is what is taken."""
        stepped_s = window.stepped_s / window.batches
        waited_s = (window.waited_s + window.stepped_s) / window.made - stepped_s
        return max(0.0, waited_s) + (step_s if self.by_wait else stepped_s)

    def _count_loss(self, turn: Window, against_s: float) -> None:
        self._losses.append((self.total_s, turn.lost_s(against_s)))

    # Trying.

    def _improve(self, seen: Window) -> _Plan:
        """Try settings that may be faster, until none of them is, or for some time."""
        tried, self._until_s = {self.kept}, self.total_s + _AGAIN_S
        while seen.wait_share > WORTH:
            step_s = seen.stepped_s / seen.batches + seen.receive_s
            better = unmoved = False
            # What is still open comes after what wasn't tried yet.
            asked = sorted(self._ladder(seen), key=lambda each: len(self._of(each[0])))
            for place, (candidate, why) in enumerate(asked, 1):
                up = candidate.workers > self.kept.workers
                if candidate in tried or (up and unmoved) or not self._may_try(candidate, seen):
                    continue
                if self.total_s > self._until_s:  # what was seen by now counts the next time
                    self._again_s = _AGAIN_S
                    return
                tried.add(candidate)
                better = yield from self._compare(candidate, why, step_s=step_s)
                if better:
                    break
                workers = (self.kept.workers + candidate.workers) // 2
                if self.changes[-1].refused and workers > self.kept.workers:
                    # There may be room for half of what would come.
                    asked.insert(place, (candidate._replace(workers=workers), why))
                if (yield from self._spare(seen)):
                    return
                speedup = self.changes[-1].speedup
                unmoved = up and speedup is not None and abs(speedup.value - 1) < WORTH
            if not better:
                return
            seen = _whole((yield from self._windows(self.kept, 2, skip=self.kept.in_flight)))
            if (yield from self._spare(seen)):
                return

    def _of(self, candidate: Setting) -> list[float]:
        """The log ratios of all turns of a setting against the one that is kept."""
        return self._gains.setdefault((self.kept, candidate), [])

    def _may_try(self, candidate: Setting, seen: Window) -> bool:
        """Whether a first turn is no risk, and it isn't known by now that it brings nothing."""
        batches = self.kept.in_flight + 3 * candidate.workers
        each_s = seen.took_s / (seen.batches + seen.skipped)
        risked_s = self._given_up(candidate.workers, seen) * batches * each_s
        if not self._may_lose(max(_ALLOWED_S / 2, risked_s)):
            return False
        if candidate.workers > self.kept.workers and self._takes_all_cores(seen):
            tried = [
                each
                for (before, each), gains in self._gains.items()
                if before == self.kept and gains
            ]
            if any(each.workers > self.kept.workers for each in tried):
                return False  # a second look would cost more than is to be won
        gains = self._of(candidate)
        known = mean_interval(gains).high if gains else None
        return known is None or known > _EQUAL or candidate.in_flight < self.kept.in_flight

    def _given_up(self, workers: int, seen: Window) -> float:
        """Share of the rate that so many workers may cost, 0 where they are no fewer.

        All that fewer of them would do, but for what cores leave undone: of these, as many threads
        of others as it looks like by now have their share, and only what is then left is lost.
        """
        had = self.kept.workers
        if workers >= had:
            return 0.0
        wanted = (1 - seen.idle_s / seen.fetch_s) * had if seen.fetch_s else 0.0
        if not wanted or not seen.cpu_s:
            return 1 - workers / had
        others = max(0.0, wanted * (self.cores / seen.busy_cores - 1))
        least = wanted * workers / had
        get, keep = (min(each, self.cores * each / (each + others)) for each in (wanted, least))
        return max(0.0, 1 - min(1.0, keep / get))

    def _takes_all_cores(self, seen: Window) -> bool:
        """Whether more workers can have no more of the cores: they add to what is in flight."""
        return seen.fetch_s > 0 and _HEADROOM * seen.busy_cores >= self.cores

    def _shared(self, seen: Window, ratio: float) -> float:
        """Workers that make so many times the batches, beside others who have cores as well."""
        had = seen.setting.workers
        wanted = (1 - seen.idle_s / seen.fetch_s) * had
        busy = min(seen.busy_cores, float(self.cores))
        if not (wanted and busy):
            return ratio * had
        if ratio * busy >= self.cores:
            return math.inf
        others = max(0.0, wanted * (self.cores / busy - 1))
        return had * max(ratio, others / wanted * ratio * busy / (self.cores - ratio * busy))

    def _ladder(self, seen: Window, slope: float = 1.0) -> list[tuple[Setting, str]]:
        """What may shorten the wait, the most promising first.

        Workers bring batches in proportion, or by a power of it, the ``slope``, if that was seen.
        """
        step_s = seen.stepped_s / seen.batches + seen.receive_s
        wait_s = max(0.0, seen.waited_s / seen.batches - seen.receive_s)
        fetch_s = 0.0 if self.live else seen.fetch_s
        workers, ahead, _ = self.kept
        share = f"{wait_s / (wait_s + step_s):.0%} of the time waits for data"
        found: list[tuple[Setting, str]] = []
        ahead = ahead or 2
        if self._changes_workers or not workers:  # the loader's own may always come back
            # While workers never rest, each batch takes one of them as long as all of them.
            worked_s = (wait_s + step_s) * workers if workers else self._worked_s or wait_s
            worked_s = fetch_s or worked_s
            need = worked_s / step_s if step_s > 0 else math.inf
            had = workers or (self._given_back or NO_WORKERS).workers or 1
            most = min(self._most, _JUMP * had) if self.live else self._most
            most = math.ceil(min(most, self._epoch))
            full = bool(fetch_s and workers) and self._takes_all_cores(seen)
            if fetch_s and workers:
                need = 0.0 if full else self._shared(seen, need / workers)
            if 0 < slope < 1 and 0 < workers < need:
                reach = math.log(max(workers, most) / workers)
                need = workers * math.exp(min(math.log(need / workers) / slope, reach))
            least = workers + (not full) if workers else had
            up = min(most, max(least, math.ceil(min(_HEADROOM * need, float(most)))))
            between = round(math.sqrt(max(1, workers) * up))
            found += [(Setting(up, ahead), share)] if up > workers else []
        holds = math.ceil(min(DEEPEST, self._epoch / max(1, workers)))
        deeper = max(ahead, min(holds, _JUMP * ahead))
        if workers and deeper > ahead:
            # Beyond the cores, workers take them from each other, and waits come more in bursts.
            # So many that compute get half of them, beside as many others; what waits needs none.
            crowded = workers >= self.cores and 2 * seen.busy_cores >= self.cores
            enough = self._changes_workers and _HEADROOM * need <= workers
            enough = enough or (self.live and crowded)
            found.insert(
                0 if enough else 1, (Setting(workers, deeper), f"{share}, maybe in bursts")
            )
            if self.live and self._changes_workers and up > workers:
                found.insert(int(enough), (Setting(up, deeper), share))
        if self._changes_workers and least <= between < up:
            found.append((Setting(between, ahead), share))
        if self._changes_workers and workers > 1 and self.live:
            fewer = Setting(min(workers - 1, math.ceil(0.7 * workers)), ahead)
            # Four a core are left, and others get little of these: it costs little to see.
            crowded = fewer.workers >= _JUMP * self.cores
            first = crowded and self._given_up(fewer.workers, seen) < _MOVED
            asked = fewer, f"{share}; fewer workers may do as well"
            found.insert(0 if first else len(found), asked)
        return found

    def _compare(
        self, candidate: Setting, why: str, *, step_s: float
    ) -> Generator[Ask, Window, bool]:
        """Old and new settings take turns; the new one is kept if it is faster, or cheaper."""
        cheaper = candidate.in_flight < self.kept.in_flight
        gains = self._of(candidate)
        try:
            old = yield from self._turn(self.kept, 2)
            old_s = [self._cost_s(old, step_s)]
            verdict = None
            # What is hard to distinguish takes longer turns.
            for count in range(2, 2 + _ENOUGH):
                against_s = statistics.fmean(old_s)
                tried = yield from self._turn(candidate, count, against_s)
                old = yield from self._turn(self.kept, count)
                old_s.append(self._cost_s(old, step_s))
                around_s = statistics.fmean(old_s[-2:])
                self._count_loss(tried, around_s)
                gains.append(math.log(around_s / max(self._cost_s(tried, step_s), 1e-9)))
                last = self.total_s > self._until_s or count == 1 + _ENOUGH
                verdict = judged(gains, cheaper=cheaper, last=last)
                if verdict is not None or not self._may_lose(0.0):
                    break
        except _RefusedError as error:
            self._note(candidate, why, kept=False, refused=str(error))
            return False
        kept = bool(verdict)
        if not (kept or self.kept.workers):  # it goes on without
            self._receive_s = self._handed_s(tried) or self._receive_s
        self._note(candidate, why, kept=kept, speedup=mean_interval(gains).through(math.exp))
        return kept

    # Trying where a setting comes with the next epoch only.

    def _at_edges(self) -> _Plan:
        """Each setting is judged by all of its stay, and a faster one is gone on from.

        Where more workers brought nothing, the next setting follows at once: going back between
        two of them would cost an epoch. Queues may get deeper before: no epoch waits for that.
        """
        stays = _Stays(self.kept, self._gain, self._has_moved)
        asked, why, trial, deeper = self.kept, "", False, None
        while not self.live:
            batches = max(_FEWEST, self.kept.in_flight)
            window = yield Ask(asked, 0, batches, _EDGE_WINDOW_S, deeper)
            if window.refused:
                self._note(window.setting, why, kept=False, refused=window.refused)
                stays.seen[window.setting] = []
                self._spares_workers &= window.setting != NO_WORKERS
            else:
                if stays.add(window):
                    trial = stays.now != self.kept and stays.now in {asked, deeper}
                self.wait_share = stays.lately(stays.now).wait_share
                if trial and not self._is_judged(stays, why):
                    continue
                if stays.now != self.kept and not trial:
                    continue  # it was judged before, and stays for the rest of the epoch
                trial = False
            asked, why, deeper = self._next(stays)
            resting = stays.now == self.kept and stays.are_enough(self.kept)
            resting = resting and (asked == self.kept or why == _KEEPS_UP)
            if resting and not self.resting:
                self._rested_from_s = self.total_s
                self._settle(self.wait_share)
            self.resting = resting
            if resting and (yield from self._repin(stays.lately(self.kept))):
                return

    def _is_judged(self, stays: _Stays, why: str) -> bool:
        """Whether it is known by now if a setting is to be kept; then it is noted."""
        if not stays.are_enough(stays.now):
            return False
        before = self.kept
        if stays.are_enough(before) and _are_faster(stays.lately(before), stays.lately(stays.now)):
            stays.seen[before] = []
        if not stays.are_enough(before):  # all else has changed, too
            self._note(stays.now, why, kept=False)
            return True
        gain, error = stays.gain(self.kept, stays.now)
        seen = _whole(stays.seen[stays.now])
        if stays.now.workers == self.kept.workers:
            # What deeper queues bring is less than what chance does to so few windows. They take
            # memory only where they fill, and what more workers bring is to be seen with them. What
            # is kept by chance is given back once more is seen of it.
            kept = gain > -max(_MOVED, 2 * error)
        elif abs(gain) < 3 * error and seen.took_s < _EDGE_STAY_S:
            return False
        else:
            cheaper = stays.now.in_flight < self.kept.in_flight
            kept = gain > (-_EQUAL if cheaper else _EQUAL)
            if gain < -_EQUAL:
                each_s = seen.took_s / (seen.batches + seen.skipped)
                self._count_loss(seen, each_s * math.exp(gain))
        if NO_WORKERS in {self.kept, stays.now}:
            if kept is (stays.now == NO_WORKERS):  # it goes on without
                with_workers = stays.lately(max(self.kept, stays.now))
                takes_s = self._spared_s if kept else self._handed_s
                self._receive_s = takes_s(with_workers) or self._receive_s
            elif stays.now == NO_WORKERS:
                self._spares_workers = False
        low, high = gain - 2 * error, gain + 2 * error
        speedup = Estimate(value=gain, low=low, high=high).through(math.exp)
        self._note(stays.now, why, kept=kept, speedup=speedup)
        return True

    def _next(self, stays: _Stays) -> tuple[Setting, str, Setting | None]:
        """What to have from the next epoch on, and why; and which deeper queues before."""
        if not stays.are_enough(self.kept) or stays.odd:
            return self.kept, "", None
        seen = stays.lately(self.kept)
        if not self.kept.workers:  # by what is known now
            seen = seen._replace(receive_s=self._receive_s)
        others = stays.now.workers != self.kept.workers
        slower = others and stays.gain(self.kept, stays.now)[0] < -_MOVED
        if self._spares(seen) and stays.promises(self.kept, NO_WORKERS):
            return NO_WORKERS, _SPARED, None
        if slower or seen.wait_share <= WORTH:
            fewer = self.kept if slower else self._enough(seen)
            parks = fewer != self.kept and stays.promises(self.kept, fewer)
            return fewer if parks else self.kept, _KEEPS_UP if parks else "", None
        now: list[tuple[Setting, str]] = []
        later: list[tuple[Setting, str]] = []
        for each in self._ladder(seen, stays.slope(self.kept)):
            if stays.promises(self.kept, each[0]):
                (now if each[0].workers == self.kept.workers else later).append(each)
        faster = stays.faster(self.kept)
        if faster is not None:
            again = now if faster.workers == self.kept.workers else later
            again.insert(0, (faster, "it was faster lately"))
        asked = [*(later if self._may_lose() else ()), *now]
        if asked:
            deeper = now[0][0] if now and stays.now == self.kept else self.kept
            return *asked[0], None if asked[0] in now or not self.kept.workers else deeper
        if self.resting and self.total_s - self._rested_from_s > self._again_s:
            stays.seen = {
                each: windows
                for each, windows in stays.seen.items()
                if each.workers == self.kept.workers and each.ahead <= self.kept.ahead
            }
            self._again_s *= 2
        return self.kept, "", None

    def _enough(self, seen: Window) -> Setting:
        """Fewer workers that do where none is waited for, twice over: steps may come to take less.

        What saves less than half of them isn't worth an epoch to see.
        """
        step_s = seen.stepped_s / seen.batches + seen.receive_s
        if not (self._changes_workers and seen.fetch_s and step_s):
            return self.kept
        workers = max(self._least, math.ceil(2 * seen.fetch_s / step_s))
        return (
            self.kept._replace(workers=workers) if 2 * workers <= self.kept.workers else self.kept
        )

    def _spares(self, seen: Window) -> bool:
        """Whether the main process may load a batch in less time than it has one from a worker."""
        if not (self._spares_workers and self.kept.workers):
            return False
        tried = [gains for (_, each), gains in self._gains.items() if each == NO_WORKERS]
        if any(judged(each, cheaper=True, last=len(each) >= _ENOUGH) is False for each in tried):
            return False  # what was kept then was faster, and nothing has changed since
        alone_s = self._alone_s(seen)  # 0 where nothing was clocked
        return alone_s > 0 and alone_s + _SEEDED_S < self._handed_s(seen)

    def _spared_s(self, seen: Window) -> float:
        """What a batch takes at least because it comes from a worker, however many there are.

        More of them may share what handing over costs, while there are cores; never receiving.
        """
        had, handed_s = seen.setting.workers, self._handed_s(seen)
        want = had * (1 - seen.idle_s / seen.fetch_s) if seen.fetch_s else 0.0
        no_more = max(had / self._most, want / self.cores) >= 1 or any(
            each.before == seen.setting and each.after.workers > had for each in self.changes
        )
        self._worked_s = 0.0 if no_more else (seen.waited_s + seen.stepped_s) / seen.batches * had
        return handed_s if no_more else min(handed_s, max(seen.receive_s, self._shared_out_s(seen)))

    def _shared_out_s(self, seen: Window) -> float:
        """What a batch is waited for at least while workers compute for it on all cores."""
        step_s, waited_s = seen.stepped_s / seen.batches, seen.waited_s / seen.batches
        computed_s = (waited_s + step_s) * seen.setting.workers - seen.idle_s
        slowed = 1 + seen.delay_s / seen.cpu_s if seen.cpu_s else 1.0
        return min(waited_s, (computed_s / slowed + seen.receive_s) / self.cores - step_s)

    def _alone_s(self, seen: Window) -> float:
        """What a batch takes to fetch where no other worker has a core that it waits for."""
        # Each of the others has its share of the cores. From a single core that only fetches, the
        # wait may be all that a batch computes: that would say nothing.
        others = seen.setting.workers - 1 if self.cores > 1 else 0
        theirs_s = min(seen.delay_s, seen.cpu_s * others / self.cores)
        fetch_s, delay_s = seen.fetch_s - theirs_s, seen.delay_s - theirs_s
        # What isn't computed waits for no core either, whoever has it.
        slowed = 1 + delay_s / seen.cpu_s if seen.cpu_s else 1.0
        return min(fetch_s, seen.idle_s + (seen.alone_cpu_s or seen.cpu_s) * slowed)

    def _handed_s(self, seen: Window) -> float:
        """What a batch takes because it comes from a worker: receiving it.

        For workers that only fetch, nobody waits longer than a batch takes to fetch. Where the wait
        is longer, all of it is for handing over: of tiny batches, or huge ones.
        """
        waited_s = seen.waited_s / seen.batches
        return waited_s if 0 < self._alone_s(seen) < waited_s else seen.receive_s

    def _gain(self, before: Sequence[Window], after: Sequence[Window]) -> tuple[float, float]:
        """The log ratio of what a batch costs, and its standard error."""
        step_s = _whole(before).stepped_s / _whole(before).batches
        means: list[float] = []
        squares = 0.0
        for some in (before, after):
            means.append(math.log(max(self._cost_s(_whole(some), step_s), 1e-9)))
            logs = [math.log(max(self._cost_s(each, step_s), 1e-9)) for each in some]
            squares += statistics.pvariance(logs) * len(logs)
        free = max(1, len(before) + len(after) - 2)
        error = math.sqrt(squares / free * (1 / len(before) + 1 / len(after)))
        return means[0] - means[1], error

    def _note(
        self,
        candidate: Setting,
        why: str,
        *,
        kept: bool,
        speedup: Estimate | None = None,
        refused: str = "",
    ) -> None:
        self.changes.append(
            Change(
                at_s=self.total_s,
                batch=self.batches,
                before=self.kept,
                after=candidate,
                why=why,
                kept=kept,
                speedup=speedup,
                refused=refused,
            )
        )
        if kept:
            if not candidate.workers:
                self._given_back = self._given_back or self.kept
            elif not self.kept.workers:  # workers are missed: something has changed
                self._given_back = None
                self._gains.clear()
            if not candidate.workers:  # what that was faster than is no faster than that
                back = self._gains.setdefault((candidate, self.kept), [])
                back += [-gain for gain in self._of(candidate)]
            self.pins = self.pins if candidate.pins is None else candidate.pins
            self.kept = candidate._replace(pins=None)

    # Where nothing is to be gained.

    def _give_back(self, share: float) -> _Plan:
        """Park workers that are not missed; queues that are full hide a trial."""
        while self.kept.workers > self._floor + 1 and self._may_lose():
            fewer = Setting((self.kept.workers + self._floor) // 2, self.kept.ahead)
            why, before = _KEEPS_UP, self.kept
            try:
                enough = yield from self._is_enough(fewer, share)
            except _RefusedError as error:  # the epoch began with fewer still, beside another
                self._note(fewer, why, kept=False, refused=str(error))
                return
            self._note(fewer, why, kept=enough)
            if enough:
                self._given_back = self._given_back or before
            else:
                self._floor = fewer.workers

    def _spare(self, seen: Window) -> Generator[Ask, Window, bool]:
        """Do without workers where that may be as fast, and is."""
        if not (self._spares(seen) and self._may_lose()):
            return False
        takes_s = self._spared_s(seen)
        spared = yield from self._try(NO_WORKERS, _SPARED, seen)
        if spared:
            self._receive_s = takes_s or self._receive_s
        self._spares_workers = not self.changes[-1].refused
        return spared

    def _repin(self, seen: Window) -> Generator[Ask, Window, bool]:
        """Pin batches, or pin them no more, where the wait and the step are then shorter."""
        pins, self.repins = self.repins, None
        if pins is None or self.by_wait or not (self.kept.workers and self._may_lose()):
            return False
        why = "copies of pinned batches may take less of the step"
        why = why if pins else "batches that aren't pinned may come sooner"
        return (yield from self._try(self.kept._replace(pins=pins), why, seen))

    def _try(self, candidate: Setting, why: str, seen: Window) -> Generator[Ask, Window, bool]:
        step_s = seen.stepped_s / seen.batches + seen.receive_s
        until_s, self._until_s = self._until_s, self.total_s + _AGAIN_S
        kept = yield from self._compare(candidate, why, step_s=step_s)
        self._until_s = until_s
        return kept

    def _is_enough(self, fewer: Setting, share: float) -> Generator[Ask, Window, bool]:
        batches, began_s = 0, self.total_s
        before_s = 0.0 if self._last is None else self._cost_s(self._last, 0.0)
        # Full queues hide that workers are too few until they have been emptied several times.
        while (
            batches < self.kept.in_flight + 5 * fewer.in_flight
            or self.total_s - began_s < 4 * _REST_S
        ):
            (window,) = yield from self._windows(fewer, 1)
            batches += window.batches
            if window.wait_share > max(WORTH, share + _EQUAL):
                if before_s > 0 and not self.by_wait:
                    self._count_loss(window, before_s)
                return False
        return True

    def _rest(self, expected: float) -> _Plan:
        """Until batches take longer, or less, than they did, or it is time to try again."""
        lately: deque[Window] = deque(maxlen=_REMEMBERED)
        began_s = self.total_s
        while True:
            # What is compared is seen first.
            enough = len(lately) >= _FEWEST
            if enough:
                seen = _whole([*lately][-_ENOUGH:])
                if (yield from self._spare(seen)) or (yield from self._repin(seen)):
                    return
            window = yield Ask(self.kept, 0, max(_FEWEST, self.kept.workers), _REST_S)
            if window.setting != self.kept:
                continue
            self._last = window
            lately.append(window)
            self.wait_share = window.wait_share
            missed = self.wait_share > max(WORTH, expected + _EQUAL)
            if missed and (yield from self._have_back(lately)):
                return
            if len(lately) < _ENOUGH:
                continue
            before, recent = [*lately][:-_ENOUGH], [*lately][-_ENOUGH:]
            share = _whole(recent).wait_share
            starves = expected <= WORTH < share - _EQUAL  # and it didn't seem to
            moved = len(before) >= _ENOUGH and self._has_moved(before, recent)
            if starves or moved:
                self._again_s = _AGAIN_S
                if moved:
                    self._floor = 0
                    self._gains.clear()
                return
            if share > WORTH and self.total_s - began_s > self._again_s:
                self._again_s *= 2
                return

    def _have_back(self, lately: Sequence[Window]) -> Generator[Ask, Window, bool]:
        """Have workers again that are missed; whether it has to be looked what has changed."""
        had = self._given_back
        if self.kept.workers:
            # They were parked where none was missed, and cost nothing to have again: at once.
            if had is not None:
                self._floor = self.kept.workers
                self._note(had, "workers are missed that were parked", kept=True)
                self._given_back = None
            return had is not None
        *before, slow = lately
        if len(before) < _FEWEST or self._gain(before, [slow])[0] > -_CLEAR:
            return False
        if had is not None:  # else it began without
            if not self._may_lose():
                return False
            (again,) = yield from self._windows(self.kept, 1)
            if self._gain(before, [again])[0] > -_CLEAR:  # a single window is so by chance
                return False
            why = "workers are missed that it did without"
            try:
                (seen,) = yield from self._windows(had, 1, skip=had.workers)
            except _RefusedError as error:
                self._note(had, why, kept=False, refused=str(error))
                return True
            gain, _ = self._gain([slow, again], [seen])
            self._count_loss(seen, self._cost_s(_whole([slow, again]), 0.0))
            speedup = mean_interval([gain]).through(math.exp)
            self._note(had, why, kept=gain > _EQUAL, speedup=speedup)
        return True

    def _has_moved(self, before: Sequence[Window], recent: Sequence[Window]) -> bool:
        """Whether a batch costs more or less than it did: others came, or the step changed."""
        gain, error = self._gain(before, recent)
        return abs(gain) > max(_MOVED, _SIGMAS * error)


class _Stays:
    """What was seen of settings lately, where each stays for an epoch or more.

    ``gain`` gives the log ratio of the costs of windows, and its standard error; ``has_moved``
    whether they differ for sure.
    """

    def __init__(
        self,
        kept: Setting,
        gain: Callable[[Sequence[Window], Sequence[Window]], tuple[float, float]],
        has_moved: Callable[[Sequence[Window], Sequence[Window]], bool],
    ) -> None:
        self.now = kept
        self.seen: dict[Setting, list[Window]] = {kept: []}
        self._gain, self._has_moved = gain, has_moved
        self._earlier: list[Window] = []  # of the setting in force, when it was before
        self.odd: list[Window] = []  # its latest, as far as they are clearly unlike those before
        self._changed: Setting | None = None  # of which few windows say enough

    def add(self, window: Window) -> bool:
        """Take in what was seen; whether the setting has just come into force."""
        fresh = window.setting != self.now
        if fresh:
            self.now = window.setting
            self._earlier, self.seen[self.now] = self.seen.get(self.now, []), []
            self._changed = None if self._changed == self.now else self._changed
        stay = self.seen[self.now]
        known = self._earlier + stay[: len(stay) - (0 if fresh else len(self.odd))]
        stay.append(window)
        del stay[:-_REMEMBERED]
        odd = len(known) >= _FEWEST and abs(self._gain(known, [window])[0]) > _CLEAR
        self.odd = [*(() if fresh else self.odd), window] if odd else []
        # One may be so by chance. To wait for as many as else would take minutes of long epochs.
        if len(self.odd) > 1 and math.fsum(each.took_s for each in self.odd) >= _EDGE_WINDOW_S:
            self._earlier, self.seen = [], {self.now: self.odd}
            self.odd, self._changed = [], self.now
            return fresh
        before, recent = self._earlier + stay[:-_FEWEST], stay[-_FEWEST:]
        if min(len(before), len(recent)) >= _FEWEST and self._has_moved(before, recent):
            self._earlier, self.seen, self._changed = [], {self.now: recent}, None
        return fresh

    def are_enough(self, setting: Setting) -> bool:
        """Whether enough was seen of a setting to judge by."""
        return len(self.seen.get(setting, ())) >= (1 if setting == self._changed else _FEWEST)

    def lately(self, setting: Setting) -> Window:
        """A setting's latest windows as one."""
        return _whole(self.seen[setting][-_ENOUGH:])

    def gain(self, before: Setting, after: Setting) -> tuple[float, float]:
        """The log ratio of what a batch costs under each, and its standard error."""
        return self._gain(self.seen[before], self.seen[after])

    def promises(self, kept: Setting, candidate: Setting) -> bool:
        """Whether a setting may bring what none of those did that were tried."""
        seen = self.seen.get(candidate)
        if seen is not None or candidate.workers <= kept.workers:
            return seen is None or 0 < len(seen) < _FEWEST  # the epoch ended before more was seen
        more = [
            each
            for each in self.seen
            if each.workers > kept.workers and each.ahead == candidate.ahead
        ]
        if not kept.workers:  # more of them share what handing over costs
            return all(candidate.workers > each.workers for each in more)
        return all(
            candidate.workers < 0.8 * each.workers
            and (not self.are_enough(each) or self.gain(kept, each)[0] < -_MOVED)
            for each in more
        )

    def slope(self, kept: Setting) -> float:
        """Log ratio of what batches cost with fewer workers, over that of workers; 1 if unknown."""
        fewer = [each for each in self.seen if 0 < each.workers < kept.workers]
        near = max(filter(self.are_enough, fewer), default=None)
        if near is None:
            return 1.0
        return self.gain(near, kept)[0] / math.log(kept.workers / near.workers)

    def faster(self, kept: Setting) -> Setting | None:
        """One that was faster than the one that is kept; ``None`` if none was."""
        for each in filter(self.are_enough, self.seen):
            gain, error = self.gain(kept, each)
            # Of chance, queues of another depth come out a little faster or slower.
            if gain > max(_MOVED if each.workers == kept.workers else _EQUAL, 2 * error):
                return each
        return None


def opening(
    own: Setting, fetch_s: float, cpu_s: float, *, most_workers: int, cores: int
) -> Setting:
    """What to begin with where the first epoch can't change it: more than keep all cores busy.

    Half as many more, since they are never even. A worker alone takes so long to fetch a batch, and
    so much of CPU time.
    """
    share = min(1.0, cpu_s / fetch_s)
    if own.workers * share >= cores:
        return own
    workers = min(float(most_workers), 1.5 * cores / share if share else math.inf)
    return own._replace(workers=max(own.workers, math.ceil(workers)))


def judged(gains: Sequence[float], *, cheaper: bool, last: bool = False) -> bool | None:
    """Whether a setting is to be kept, by the log ratios of turns; ``None`` for not yet known.

    Args:
        gains: Positive where the new setting is faster.
        cheaper: Whether it takes less: then it is kept where it is as fast for sure.
        last: No more turns come: whether it is faster is decided by the mean.
    """
    if len(gains) < 2:
        return False if last else None
    if min(gains) > _CLEAR:
        return True
    interval = mean_interval(gains)
    mean, low, high = interval.value, interval.low or 0.0, interval.high or 0.0
    if cheaper:
        if low > -_EQUAL:
            return True
        worse = high < 0 or (len(gains) >= _FEWEST and mean < -_EQUAL)
        return False if worse or last else None
    if low > 0 and mean > _EQUAL:
        return True
    hopeless = len(gains) >= _FEWEST and mean < _EQUAL and high < 0.15
    futile = hopeless or high < _EQUAL
    return False if futile else mean > _EQUAL if last else None


def _are_faster(before: Window, after: Window) -> bool:
    """Whether fewer workers would do by now, as fast as they fetch, and didn't before.

    With the first epoch data comes to be cached: that is no merit of more workers in the second.
    """
    need, needs = (
        _HEADROOM * each.fetch_s / max(1e-9, each.stepped_s / each.batches + each.receive_s)
        for each in (before, after)
    )
    return needs <= before.setting.workers < min(need, after.setting.workers)


def _whole(windows: Sequence[Window]) -> Window:
    """Several windows of one setting as one."""
    return Window(
        windows[0].setting,
        sum(each.batches for each in windows),
        math.fsum(each.waited_s for each in windows),
        math.fsum(each.stepped_s for each in windows),
        sum(each.skipped for each in windows),
        math.fsum(each.skipped_s for each in windows),
        stocked=sum(each.stocked for each in windows),
        receive_s=windows[-1].receive_s,
        fetch_s=statistics.fmean([each.fetch_s for each in windows if each.fetch_s] or [0.0]),
        cpu_s=statistics.fmean([each.cpu_s for each in windows if each.fetch_s] or [0.0]),
        delay_s=statistics.fmean([each.delay_s for each in windows if each.fetch_s] or [0.0]),
        alone_cpu_s=windows[-1].alone_cpu_s,
    )
