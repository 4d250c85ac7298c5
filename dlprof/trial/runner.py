"""Where trials are run: the target's process, the observer and the supervisor, set up together."""

from __future__ import annotations

import contextlib
import dataclasses
import math
import os
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, TypeVar

from dlprof.errors import DlprofError, TargetError
from dlprof.records import BY_COPY, UNEVEN_SIGN, Config, Failure, Target, Trial, Usage
from dlprof.records.codec import from_json
from dlprof.trial.failures import SENT_SOONER, as_failure
from dlprof.trial.launch import BuilderDiedError, Built, ForkLauncher, Launcher
from dlprof.trial.load import made_load
from dlprof.trial.nodes import Link, Ranks
from dlprof.trial.protocol import BuildRequest, Message, TrialRequest, record_of
from dlprof.trial.runtime import Inbox
from dlprof.trial.state import TrialLimits, failed, of_rank, together
from dlprof.trial.supervisor import (
    LauncherDiedError,
    ObserverProcess,
    ProbeKilledError,
    ProbeTimeoutError,
    Supervisor,
)
from dlprof.units import format_duration

_LEAST_PROBE_S = 3.0  # for two batches, however little is left of a budget
_IMPORT_S = 4.0  # of an interpreter that imports torch, on a busy core
_ONE_THREAD = (
    "torch computes in one thread, as torchrun has it for each of several ranks (OMP_NUM_THREADS=1)"
)
_HANGS = "a process forked after building it hangs, or takes very long to load two batches"

_Outcome = TypeVar("_Outcome")


class TrialRunner:
    """Runs trials of one target.

    Starts importing torch at once, in the background. ``build`` comes first.
    """

    def __init__(
        self,
        request: BuildRequest,  # how to build the target
        *,
        directory: Path,  # for logs and temporary files; the caller removes it after ``close``
        # Called a few times a second, with what the machine is doing where a trial shows it.
        pulse: Callable[[Usage | None], object] = lambda _usage: None,
        # Called with what happened that costs no trial.
        say: Callable[[str], object] = lambda _text: None,
        # How long the first probe may take before a fork is taken for broken.
        first_probe_s: float = 15.0,
        clock: Callable[[], float] = time.monotonic,  # monotonic seconds
        # All that load at once; other nodes build, probe and measure with this one.
        together: Ranks | None = None,
    ) -> None:
        self._together = together or Ranks()
        self._nodes = self._together.nodes
        self._numbers = [rank.rank for rank in self._together.local] or [0]
        self.ranks = self._nodes.ranks or len(self._numbers)  # how many load at once, on all nodes
        self.fork_safe = True  # whether trials are forked from the process that built the target
        own = os.environ.get("OMP_NUM_THREADS")
        theirs = {rank.environ.get("OMP_NUM_THREADS", own) for rank in self._together.local}
        # What people should know of the way trials are started.
        self.notes: tuple[str, ...] = (_ONE_THREAD,) if theirs - {own} else ()
        self.versions: dict[str, str] = {}  # ``torch`` and ``python``, once built
        self._request = request
        self._directory = directory
        self._pulse, self._say = pulse, say
        self._first_probe_s = first_probe_s
        self._clock = clock
        self._fallen = False  # whether the process that starts the trials has died
        self._inbox = Inbox(lambda: self._pulse(None))
        self._launchers = self._made()
        self._watcher = ObserverProcess(self._inbox)
        self._limits = TrialLimits(wall_s=math.inf, stall_s=math.inf, usable_cores=1.0)
        self._build_s = 0.0
        self._batch_s, self._begin_s = 0.0, 0.0
        self._start_method: str | None = None  # where a configuration names none

    def build(self, limits: TrialLimits, *, left_s: float = math.inf) -> Target:
        """Build the target on all nodes; once more, from a new process, if the first dies of it.

        Of the limits, which are those of all trials, ``stall_s`` is for trivial batches; slow ones
        get longer. It has ``left_s``, too, which is left of the budget, and at least as long as
        torch and what the target itself needs may take to be imported.
        """
        self._nodes.order("build", self.ranks, request=self._request)
        self._limits = limits
        began_s, least_s = self._clock(), max(left_s, 2 * _IMPORT_S)
        patience_s = min(limits.wall_s, least_s)
        limit = "--timeout" if limits.wall_s <= least_s else "--budget"
        try:
            built = self._build(patience_s, limit)
        except BuilderDiedError as error:
            self._say(f"{error.message} It is started again.")
            self._renew()
            built = self._build(patience_s - (self._clock() - began_s), limit)
        target, self.versions = built.target, built.versions
        self._build_s = target.import_s or 0.0
        own = target.own_config
        self._start_method = None if own is None else own.start_method
        if not isinstance(self._launchers[0], ForkLauncher):
            self.fork_safe = False
        elif built.fork_hazard:
            self._build_in_each_trial(built.fork_hazard)
        for link, theirs in self._nodes.all_answer(patience_s):
            where = f"Install the same on {link.host}."
            _refuse_differing(self.versions, theirs["versions"], link.ranks[0], where)
            target = _alike(target, from_json(Target, theirs["target"]), link.ranks[0])
        return target

    def _build(self, patience_s: float, limit: str = "--timeout") -> Built:
        """Build the target in each rank's own process, all at once; returns the first one's."""
        for rank, launcher in zip(self._numbers, self._launchers, strict=True):
            launcher.build(self._asked(rank))
        ends_s = self._clock() + patience_s
        found = list[Built]()
        for rank, launcher in zip(self._numbers, self._launchers, strict=True):
            try:
                found.append(launcher.built(max(0.0, ends_s - self._clock()), limit))
            except BuilderDiedError as error:
                if self.ranks > 1:
                    error.message = of_rank(as_failure(error), rank, self.ranks).message
                raise
        first, *others = found
        for rank, theirs in zip(self._numbers[1:], others, strict=True):
            where = "Have all ranks find the same packages: see their PYTHONPATH."
            _refuse_differing(first.versions, theirs.versions, rank, where)
            first = dataclasses.replace(
                first,
                target=_alike(first.target, theirs.target, rank),
                fork_hazard=first.fork_hazard or theirs.fork_hazard,
            )
        return first

    def _asked(self, rank: int) -> BuildRequest:
        return dataclasses.replace(self._request, rank=rank, ranks=self.ranks)

    def probe(self, request: TrialRequest, *, left_s: float = math.inf) -> Message:
        """Load two batches in a disposable process; see ``probing.probe``.

        A target whose constructor ran torch operations leaves thread pools that a fork breaks; the
        probe then hangs, and from then on each trial builds the target for itself. Both have
        ``left_s``, which is left of the budget.
        """
        until_s = self._clock() + left_s
        request = dataclasses.replace(request, ranks=self.ranks)
        self._nodes.order("probe", self.ranks, request=request)
        probe = self._persist(lambda _left_s: self._probe(request, until_s), self._limits.wall_s)
        self._batch_s = probe["batch_s"]
        self._begin_s = max(0.0, (probe["first_batch_s"] or 0.0) - self._batch_s)
        self._start_method = self._start_method or probe["start_method"]
        self._nodes.all_answer(self._limits.wall_s)
        return probe

    def _probe(self, request: TrialRequest, until_s: float) -> Message:
        limits = self._limits
        if self.fork_safe:
            half_s = max(_LEAST_PROBE_S, (until_s - self._clock()) / 2)
            wall_s = min(self._first_probe_s, half_s, limits.wall_s)
            with contextlib.suppress(ProbeTimeoutError):
                within = dataclasses.replace(request, limit_s=wall_s)
                return self._supervisor(dataclasses.replace(limits, wall_s=wall_s)).probe(within)
            self._build_in_each_trial(_HANGS)
        # A hang is judged by where it stands, for which its end leaves a moment.
        stall_s = max(_LEAST_PROBE_S, until_s - self._clock() - 1.0)
        limits = dataclasses.replace(limits, stall_s=min(limits.stall_s, stall_s))
        within = dataclasses.replace(request, limit_s=min(limits.stall_s, limits.wall_s))
        return self._supervisor(limits).probe(within)

    def try_workers(self, config: Config, *, left_s: float = math.inf) -> Failure | None:
        """Why workers of a configuration can't start; ``None`` if they can, or that isn't known.

        One that is longer about it than a trial may be without a batch can't, nor one that takes
        half of ``left_s``, which is left of the budget: no trial of it would come to an end.
        """
        request = TrialRequest(config=config)
        stall_s, cut_s = self._stall_s(config), max(_IMPORT_S, left_s / 2)
        more = "."
        if stall_s > cut_s:
            longer = format_duration(math.ceil(2 * stall_s - left_s))
            more = f", or give a larger --budget: {longer} more are enough."
        stall_s = min(stall_s, cut_s)
        try:
            answer = self.look(request, limit_s=self._limits.wall_s, stall_s=stall_s)
        except ProbeTimeoutError as error:
            method = config.start_method or self._start_method
            text = f"A worker that is started by {method} isn't there after {stall_s:.0f} s: "
            return Failure(
                kind="timeout",
                message=f"{text}sending it the dataset, or importing what it needs, takes longer.",
                hint=SENT_SOONER + more,
                stderr_tail=error.traceback,
            )
        except DlprofError:
            return None
        return record_of(Failure, answer["failure"])

    def shared_files(self, config: Config, *, left_s: float) -> tuple[str, ...]:
        """Files whose position several forked workers of a configuration move, in words.

        None where that isn't known, as where a worker dies, or all takes longer than a trial may be
        without a batch or a quarter of ``left_s``, which is left of the budget.
        """
        limit_s = min(self._stall_s(config), max(_LEAST_PROBE_S, left_s / 4))
        return tuple(map(str, self._seen(config, limit_s).get("shared_files", ())))

    def kept(self, *, left_s: float) -> Message:
        """What the probe shows in another process, of a dataset that seems to keep samples.

        What all processes find, as in the page cache, is as fast at once there, and none is
        ``kept``. Empty where that isn't known, as where it takes longer than half of ``left_s``,
        which is left of the budget.
        """
        return self._seen(Config(), min(self._first_probe_s, max(_LEAST_PROBE_S, left_s / 2)))

    def along_epoch(self, *, left_s: float) -> tuple[float, float, str | None] | str | None:
        """How samples that come in an order differ along an epoch; see ``weighing.along_epoch``.

        Also why that isn't known: a sample ends the process, or all takes longer than a quarter of
        ``left_s``, which is left of the budget.
        """
        limit_s = min(self._first_probe_s, max(_LEAST_PROBE_S, left_s / 4))
        unseen = "drawing and trying some of them ended the process, or took too long"
        found = self._seen(Config(), limit_s, along=True).get("along", unseen)
        return found if found is None or isinstance(found, str) else (found[0], found[1], found[2])

    def _seen(self, config: Config, limit_s: float, *, along: bool = False) -> Message:
        """What a look at a configuration's loader shows; nothing where it fails or takes longer."""
        request = TrialRequest(config=config, limit_s=limit_s, along=along)
        try:
            return self.look(request, limit_s=limit_s, stall_s=limit_s)
        except DlprofError:
            return {}

    def weigh(
        self, config: Config, *, limit_s: float, left_s: float, starts: tuple[str, ...] = ()
    ) -> Message:
        """Weigh the dataset in a disposable process; see ``weighing.weigh_dataset``.

        Weighing has ``limit_s``, and ``left_s`` with starting one worker by each method, after
        which the process is ended.
        """
        one = dataclasses.replace(config, num_workers=1).canonical()
        request = TrialRequest(config=one, trial_s=limit_s, weigh=True, starts=starts)
        return self.look(request, limit_s=left_s, stall_s=left_s)

    def look(self, request: TrialRequest, *, limit_s: float, stall_s: float) -> Message:
        """Have rank 0 look at its loader in a disposable process.

        Where each trial builds the target, all ranks build it with it: it may have them meet.
        """
        request = dataclasses.replace(request, ranks=1 if self.fork_safe else self.ranks)
        limits = dataclasses.replace(self._limits, wall_s=limit_s, stall_s=stall_s)
        asked = {"request": request, "limit_s": limit_s, "stall_s": stall_s}
        self._nodes.order("look", request.ranks, **asked)
        try:
            return self._persist(lambda s: self._supervisor(limits, s).probe(request), limit_s)
        finally:
            self._nodes.all_answer(limit_s)

    @contextlib.contextmanager
    def load(
        self,
        asked: Mapping[str, float] | None,
        *,
        folder: Path,
        limit_s: float,
        say: Callable[[str], object],
    ) -> Iterator[None]:
        """Keep a load going on each node as long as the block lasts there; see ``made_load``."""
        if asked:
            self._nodes.order("load", self.ranks, limit_s=limit_s)
        with made_load(asked, folder=folder, limit_s=limit_s, say=say):
            if asked:
                self._nodes.all_answer(60.0)
            yield

    def explain(
        self,
        request: TrialRequest,
        *,
        trial_id: str,
        repetition: int,
        wall_s: float | None = None,
        ranks: int | None = None,
    ) -> tuple[Trial, Message]:
        """Measure one configuration once, and hear what it reports beside; see ``Supervisor.run``.

        A trial during which the process that starts the trials dies is tried once more, in what is
        left of its time. ``wall_s`` is a tighter limit for this trial; all ranks load, or so many.
        """
        limits = dataclasses.replace(self._limits, stall_s=self._stall_s(request.config))
        if wall_s is not None:
            limits = dataclasses.replace(limits, wall_s=min(wall_s, limits.wall_s))
        started_at = datetime.now(UTC).isoformat(timespec="milliseconds")
        began_s = self._clock()
        details: Message = {}
        asked = dataclasses.replace(request, ranks=ranks or self.ranks)
        named: dict[str, Any] = {"repetition": repetition}
        blank = Trial(id=trial_id, config=request.config, outcome="completed", **named)
        named |= {"trial_id": trial_id, "wall_s": wall_s, "ranks": asked.ranks}
        self._nodes.order("explain", asked.ranks, request=asked, **named)
        try:
            trial, details = self._persist(
                lambda left_s: self._supervisor(limits, left_s).run(asked, blank), limits.wall_s
            )
        except DlprofError as error:
            failure = as_failure(error)
            if self._nodes.links:
                if not isinstance(error, LauncherDiedError):  # which names its rank
                    failure = of_rank(failure, self._numbers[0], self.ranks)
                failure = self._nodes.lose(failure)
            trial = failed(blank, failure)
        for link, answer in self._nodes.answers(limits.wall_s):
            trial, details = _with(trial, details, link, answer, blank)
        trial = dataclasses.replace(trial, started_at=started_at, wall_s=self._clock() - began_s)
        return trial, details

    def close(self) -> None:
        """End every process."""
        for launcher in self._launchers:
            launcher.close()
        self._watcher.close()

    def _stall_s(self, config: Config) -> float:
        """How long a trial of a configuration may show no progress."""
        # Batches may take so many times as long as the probe's.
        slow_s = 20.0 * self._batch_s
        # And what comes before the first, as a buffer that fills, so many at once.
        slow_s += max(1, config.num_workers) * self._begin_s
        if not self.fork_safe:
            slow_s += self._build_s
        if (config.start_method or self._start_method) in BY_COPY:
            slow_s += _IMPORT_S * config.num_workers
        return self._limits.stall_s + slow_s

    def _supervisor(self, limits: TrialLimits, left_s: float = math.inf) -> Supervisor:
        return Supervisor(
            launchers=self._launchers,
            watcher=self._watcher,
            inbox=self._inbox,
            directory=self._directory,
            limits=limits,
            left_s=left_s,
            pulse=self._pulse,
            together=self._together,
        )

    def _persist(self, attempt: Callable[[float], _Outcome], limit_s: float) -> _Outcome:
        """Try once more, if the process that starts the trials dies, or a signal ends the probe.

        An attempt is called with the seconds that are left; both together have ``limit_s``.
        """
        deadline_s = self._clock() + limit_s
        for last in (True,) if self._nodes.links else (False, True):  # others would not be there
            self._stand_up(deadline_s - self._clock())
            try:
                return attempt(deadline_s - self._clock())
            except (LauncherDiedError, ProbeKilledError) as error:
                self._fallen = isinstance(error, LauncherDiedError)
                if last or self._clock() >= deadline_s:
                    raise
                what = error.failures[0]["message"] if error.failures else error.message
                self._say(f"{what} What it had started is run again.")
        raise AssertionError("the last attempt returns or raises")

    def _stand_up(self, patience_s: float) -> None:
        """Replace a fork server that has died by one that does the same."""
        if not self._fallen:
            return
        self._renew()
        if self.fork_safe:
            self._build(patience_s)
        else:
            self._preload()
        self._fallen = False

    def _build_in_each_trial(self, reason: str) -> None:
        self.fork_safe = False
        self.notes = (*self.notes, f"each trial builds the target for itself, because {reason}")
        self._renew()
        self._preload()

    def _preload(self) -> None:
        for rank, launcher in zip(self._numbers, self._launchers, strict=True):
            if isinstance(launcher, ForkLauncher):
                launcher.preload(self._asked(rank))

    def _made(self) -> list[Launcher]:
        place, launchers = self._directory, list[Launcher]()
        kind = ForkLauncher if sys.platform == "linux" else Launcher
        with contextlib.ExitStack() as those_before:  # end where the system starts no further one
            for local_rank in self._together.local or (None,):
                launchers.append(kind(self._inbox, place, local_rank))
                those_before.callback(launchers[-1].close)
            those_before.pop_all()
        return launchers

    def _renew(self) -> None:
        """End what there is and begin again; the old inbox still hears how the old one ended."""
        self.close()
        self._inbox = Inbox(lambda: self._pulse(None))
        self._watcher = ObserverProcess(self._inbox)
        self._launchers = self._made()


def _with(
    trial: Trial, details: Message, link: Link, answer: Message | None, blank: Trial
) -> tuple[Trial, Message]:
    """A trial with what another node has measured in it; failed if it failed there."""
    if trial.failure is not None:
        return trial, {}
    if answer is None:
        return failed(blank, link.failure()), {}
    theirs = from_json(Trial, answer["trial"])
    if theirs.failure is not None:
        return failed(blank, theirs.failure), {}
    both, slowest = together([trial, theirs])
    return both, answer["details"] if slowest else details


def _refuse_differing(
    mine: Mapping[str, object], theirs: Mapping[str, object], rank: int, hint: str
) -> None:
    """Refuse a rank that differs in what is to be the same on all."""
    for name, value in mine.items():
        if theirs[name] != value:
            raise TargetError(
                f"Ranks differ: {name} is {value} on rank 0 and {theirs[name]} on rank {rank}.",
                hint=hint,
            )


def _alike(first: Target, other: Target, rank: int) -> Target:
    """The target as all ranks have it, with the notes of all, and one where their shares differ.

    Another one on this rank is refused: no figure would hold for both.
    """
    hint = "Have the target build the same loader on every rank, each for its share."
    names = ("dataset", "kind", "batch_size", "own_config")
    mine, theirs = ({name: getattr(each, name) for name in names} for each in (first, other))
    _refuse_differing(mine, theirs, rank, hint)
    notes = dict.fromkeys((*first.notes, *other.notes))
    if first.batches_per_epoch != other.batches_per_epoch:
        uneven = (
            f"An epoch has {first.batches_per_epoch} batches on rank 0 and "
            f"{other.batches_per_epoch} on rank {rank}: {UNEVEN_SIGN}. Share the data evenly, or "
            "use torch's Join."
        )
        notes[uneven] = None
    return dataclasses.replace(first, notes=tuple(notes))
