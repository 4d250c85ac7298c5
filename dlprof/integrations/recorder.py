"""Every loader that a script iterates, known by where it was made, in bounded memory."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import itertools
import mmap
import os
import sys
import threading
import time
import types
import weakref
from collections.abc import Callable, Container, Iterator
from types import FrameType, ModuleType
from typing import Any, Final

from dlprof.integrations.first_batches import (
    Follower,
    SharedFiles,
    compared_workers,
    looked_at,
    promised_batches,
)
from dlprof.integrations.headroom import Headrooms, LoopHeadroom
from dlprof.integrations.loaders import Callers, callers_of, describe, is_library, line_of
from dlprof.integrations.wait_statistics import (
    Clock,
    Front,
    IterationTimer,
    Pace,
    StepLog,
    Take,
    WaitStatistics,
)
from dlprof.internals import (
    LOADING_MODULES,
    OF_ITERABLES,
    came_by_signal,
    holders,
    iterator_class,
    loader_of,
)
from dlprof.records import Explanation, LoaderCall, Timeline, WatchedLoader
from dlprof.targets.adapters import ITERATED, call_at, call_of, ranks_served
from dlprof.targets.counting import SampleCounter, WorkerSamples
from dlprof.targets.workers import start_method_of
from dlprof.tuning import tuning_of
from dlprof.units import NS

DATALOADER_MODULE: Final = "torch.utils.data.dataloader"

_MOST_LOADERS = 64
_TAKE = "_dlprof_take"
_NO_STAGES = "{}'s {} has no stages of a DataLoader's, so only the wait in next() is timed"
_TUNES = "it tunes itself, so only the wait in next() is timed (unless DLPROF_TUNE=off)"


@dataclasses.dataclass(slots=True)
class _Seen:
    """One loader of the report."""

    statistics: WaitStatistics  # what its clock saw
    known: WatchedLoader  # what was known of it when it was first iterated
    # Its dataset, while that lives; ``None`` where that isn't known, as of a list.
    dataset: weakref.ref[Any] | None
    shared: SharedFiles  # looks for files that its workers share
    made: int = 0  # loader objects that count as this one
    follower: Follower | None = None  # follows its first batches; ``None`` where that isn't done
    compared: int = 0  # workers whose first batches are compared; 0 where that isn't done
    first: WorkerSamples | None = None  # compares those of the last epoch
    # Whether anything asked in which worker it runs; ``None`` where that isn't seen.
    asks: Callable[[], bool] | None = None
    # Measures what a perfect loader would bring; ``None`` where nobody asked, or it tunes itself.
    headroom: LoopHeadroom | None = None
    tunes: bool = False  # itself: it has other settings by now than its own

    def is_over(self, dataset: object) -> bool:
        """Whether it is over this dataset, or over one that may have given way to it."""
        return self.dataset is None or self.dataset() is None or self.dataset() is dataset

    def has_other_workers(self, loader: Any) -> bool:
        """Whether another number of them than this: fastai takes a batch without, to look at it.

        One that tunes itself has others all the time.
        """
        known, workers = self.known.config, getattr(loader, "num_workers", None)
        return known is not None and not tuning_of(loader) and workers != known.num_workers

    def looks_at_none(self) -> bool:
        """Whether its first batches have been followed and compared."""
        followed = self.follower is None or self.follower.over
        return followed and (not self.compared or self.duplicated is not None)

    @property
    def duplicated(self) -> bool | None:
        """Whether its workers gave the same samples; ``None`` while that can't be said."""
        return self.first.duplicated if self.first is not None and self.first.over else None


@dataclasses.dataclass(slots=True)
class _Made:
    """A loader object of the script's."""

    loader: weakref.ref[Any]  # the object, while it lives
    place: Callers  # the user's frames that made it
    call: LoaderCall  # where its settings are set there
    seen: _Seen | None = None  # what it counts as, once it has been iterated
    last: IterationTimer | None = None  # its last iteration
    front: Front | None = None  # of the epoch that a generator of its class's begins just now
    # Held while an iterator of it is made that is followed, as the loader is changed meanwhile.
    making: Any = dataclasses.field(default_factory=threading.RLock)

    def follow(self, follower: Follower, iterator: Any, make: Callable[[], None]) -> None:
        """Have ``make`` make an iterator that is followed, no two of threads that begin at once."""
        with self.making:
            follower.make(self.loader(), iterator, make)


def _call_from(frame: FrameType, loader: Any) -> LoaderCall:
    """What a user writes to make a loader that is made from here."""
    return call_at(frame, is_library) or call_of(loader) or LoaderCall()


class LoaderRecorder:
    """Watches all DataLoaders of this process, once it is attached.

    Files below ``folder`` are named from there on. ``due`` is called in a consumer's thread when
    ``pace`` says so. ``follow`` and ``headroom`` are as for ``ScriptRun``; where this is a process
    of several (``ranked``), it is kept when batches came.
    """

    def __init__(
        self,
        *,
        clock: Clock,
        folder: str,
        due: Callable[[], None] | None = None,
        follow: bool = False,
        headroom: bool = False,
        ranked: bool = False,
    ) -> None:
        self.pace = Pace()
        self.began_ns = clock()
        self.faults: list[str] = []
        self.tunings: dict[Any, str] = {}  # of loaders that tune themselves, with their names
        self._clock = clock
        self._folder = folder
        self._due = due
        self._follow, self._ranked = follow, ranked
        self._process = os.getpid()
        # Threads that share a loader make iterators of it at once; forked ones have no use for it.
        self._finding = threading.RLock()
        self._inside: dict[int, IterationTimer | None] = {}
        self._headrooms = Headrooms(clock=clock, inside=self._inside) if headroom else None
        self._made: dict[int, _Made] = {}
        self._groups: dict[object, list[_Seen]] = {}
        self._seen: list[_Seen] = []
        self._others: _Seen | None = None
        self._asks: Callable[[], bool] | None = None
        self._threads: type[threading.Thread] | None = None
        self._fronts = weakref.WeakKeyDictionary[threading.Thread, Front]()

    def __reduce__(self) -> Any:
        """One that watches nothing, for another process.

        Cloudpickle sends there, with a class of the script's, what is around its methods.
        """
        make = functools.partial(LoaderRecorder, clock=time.perf_counter_ns, folder="")
        return make, (), {"_process": 0}

    def attach(self, module: ModuleType, *, threads: type[threading.Thread] | None = None) -> None:
        """Watch what ``torch.utils.data.dataloader`` makes from now on.

        Its iterators may be derived from, and loaders may have iterators of their own, as long as
        those are derived from torch's: their methods are wrapped too. So are those of ``threads``
        that are iterators: whoever asks one waits for the loader of which it takes batches.
        """
        if threads is not None:
            with self.guarded("threads that take batches could not be watched"):
                # Many have next(), too, as generators had, and some scripts call that alone.
                wrap_methods(threads, dict.fromkeys(("__next__", "next"), self._around_asking))
                self._threads = threads
        with self.guarded("torch's DataLoader could not be watched"):
            iterator, loader = iterator_class(module), module.DataLoader
            setattr(iterator, _TAKE, None)
            wrap_methods(
                iterator,
                {
                    "__init__": functools.partial(self._around_making, new=True),
                    "_reset": functools.partial(self._around_making, new=False),
                    "__next__": _around_next,
                },
            )
            wrap_methods(
                loader, {"__init__": self._around_loader, "__iter__": self._around_iterating}
            )
        with self.guarded("who asks for its worker could not be seen"):
            self._asks = _notice_asking(module)
        if self._follow and hasattr(os, "register_at_fork"):
            os.register_at_fork(before=self._rest)

    def attach_iterators(self, module: ModuleType) -> None:
        """Watch what one of ``ITERATED`` iterates from now on: loaders without a DataLoader."""
        with self.guarded(f"{module.__name__} could not be watched"):
            of_loaders, of_iterators, begins, gives = ITERATED[module.__name__]
            names = filter(None, (of_loaders, of_iterators))
            moved = [each for each in names if not hasattr(module, each)]
            if moved:
                package = module.__name__.partition(".")[0]
                version = getattr(sys.modules.get(package), "__version__", "of an unknown version")
                raise AttributeError(f"{package} {version} has no {module.__name__}.{moved[0]}")
            loader = getattr(module, of_loaders)
            wraps: dict[str, Wrap] = {"__init__": self._around_loader}
            if of_iterators:
                iterator = getattr(module, of_iterators)
                setattr(iterator, _TAKE, None)
                wrap_methods(iterator, {begins: self._around_epoch, gives: _around_next})
            else:
                wraps[begins] = self._around_generating
            wrap_methods(loader, wraps)

    def _rest(self) -> None:
        for each in self._followers().values():
            each.rest()

    def records(self) -> tuple[WatchedLoader, ...]:
        """What was seen so far of each loader, in the order in which they were first iterated."""
        return tuple(map(self._record, self._every()))

    def _every(self) -> list[_Seen]:
        return [*self._seen, *([self._others] if self._others else [])]

    def _record(self, seen: _Seen) -> WatchedLoader:
        filled = seen.statistics.fill(seen.known)
        headroom = None if seen.headroom is None else seen.headroom.summary()
        reasons = dict(filled.unavailable)
        if self._headrooms is not None and seen.tunes:
            reasons["headroom"] = _TUNES
        if headroom is None and seen.headroom is not None and seen.headroom.why_not:
            reasons["headroom"] = seen.headroom.why_not
        if seen.duplicated:
            reasons["samples_per_s"] = "its workers yield the same samples"
        asks = None if seen.asks is None else seen.asks()
        # Workers that know their number may have a file each.
        certain = self._asks is not None and not self._asks()
        record = dataclasses.replace(
            filled,
            made=seen.made,
            duplicated=seen.duplicated,
            shared_files=seen.shared.found if certain else (),
            asks_worker=asks,
            headroom=headroom,
            samples_per_s=None if seen.duplicated else filled.samples_per_s,
            unavailable=reasons,
        )
        with self.guarded(f"the copies of {seen.known.name} could not be recorded"):
            return record if seen.follower is None else seen.follower.copies.fill(record)
        return record

    def followed(
        self, *, over: bool, but: Container[str]
    ) -> dict[str, tuple[Explanation, Timeline]]:
        """What the first batches of loaders showed, by the loader's name.

        ``over``: only of those that are followed no more, ``but`` for some: the script's loop waits
        while one is explained.
        """
        summaries = {}
        for name, follower in self._followers().items():
            if name in but or (over and not follower.over):
                continue
            with self.guarded(f"the batches of {name} could not be traced"):
                found = follower.summary()
                if found is not None:
                    summaries[name] = found
        return summaries

    def refusals(self) -> dict[str, str]:
        """Why the batches of loaders could not be followed, by the loader's name."""
        refused = {name: each.refused for name, each in self._followers().items() if each.refused}
        for seen in self._seen:
            each = seen.known
            module, _, kind = each.kind.rpartition(".")
            if module in ITERATED:
                refused[each.name] = _NO_STAGES.format(module.partition(".")[0], kind)
            elif seen.tunes:
                refused[each.name] = _TUNES
        return refused

    def _followers(self) -> dict[str, Follower]:
        return {seen.known.name: seen.follower for seen in self._seen if seen.follower}

    def waited_s(self) -> float:
        """Seconds in which the main thread waited for a loader; inner loaders count as theirs."""
        every = [seen.statistics for seen in self._every()]
        return sum(each.waited_ns - each.nested_ns - each.background_ns for each in every) / NS

    def _around_loader(self, method: Method) -> Method:
        def __init__(loader: Any, *args: Any, **kwargs: Any) -> None:
            made = None
            with self.guarded("a loader's place could not be found"):
                known = self._made.get(id(loader))
                if known is None or known.loader() is not loader:
                    made = self._remember(loader, sys._getframe(1))
            method(loader, *args, **kwargs)
            if made is not None:
                with self.guarded("a loader's call could not be found"):
                    made.call = _call_from(sys._getframe(1), loader)  # by what it was given

        return __init__

    def _around_iterating(self, method: Method) -> Method | None:
        if (getattr(method, "__module__", None) or "").startswith("torch."):
            return None  # whose iterators are watched themselves

        def __iter__(loader: Any) -> Any:
            batches, made = method(loader), self._made.get(id(loader))
            if made is None or made.loader() is not loader or os.getpid() != self._process:
                return batches
            # Not of one that another class's own begins with. Others than generators stay what
            # they are: scripts may ask a thread whether it is alive.
            of_generator = isinstance(batches, types.GeneratorType) and made.front is None
            return self._asked_for(made, batches) if of_generator else batches

        return __iter__

    def _asked_for(self, made: _Made, batches: Iterator[Any]) -> Iterator[Any]:
        """The same batches; the wait for them is timed here where another thread takes them."""
        made.front = front = Front(threading.get_ident())
        try:
            batch = self._first(front, next, batches)
        except StopIteration:
            return
        finally:
            made.front = None
        if (reading := front.reading) is None:
            front.asker = None
        yield batch
        del batch
        if reading is None:
            yield from batches
        with contextlib.suppress(StopIteration):
            while reading is not None:
                yield reading.take(next, batches)

    def _around_asking(self, method: Method) -> Method:
        def asking(thread: Any, *given: Any, **options: Any) -> Any:
            def advance(batches: Any) -> Any:
                return method(batches, *given, **options)

            if os.getpid() != self._process:  # a forked one, where a lock may stay held
                return advance(thread)
            front = self._front_of(thread)
            if front.asker == threading.get_ident():
                return advance(thread)  # the base class's, or next(), inside of another one
            if front.reading is not None:
                return front.reading.take(advance, thread)
            front.asker = threading.get_ident()
            try:
                return self._first(front, advance, thread)
            finally:
                front.asker = 0

        return asking

    def _front_of(self, thread: threading.Thread) -> Front:
        with self._finding:
            return self._fronts.setdefault(thread, Front())

    def _first(self, front: Front, advance: Callable[[Any], Any], batches: Any) -> Any:
        """A first batch: only when it came is it known by whom, and of which loader, it was taken.

        Making the loader's iterator was waited for as well, and is counted by then.
        """
        nested = self._inside.get(threading.get_ident()) is not None
        asked_ns, batch, raised = self._clock(), None, None
        try:
            batch = advance(batches)
        except BaseException as error:
            raised = error
        if (reading := front.reading) is not None:
            asked_ns, statistics = max(asked_ns, front.taken_ns), reading.statistics
            if raised is None:
                statistics.note_batch(reading, asked_ns, self._clock(), nested=nested)
            else:
                statistics.note_end(reading, asked_ns, nested=nested, raised=type(raised))
        try:
            if raised is not None:
                raise raised
            return batch
        finally:
            raised = None  # its traceback has this frame: workers would stay until both are found

    def _is_ahead(self, reading: IterationTimer, asked_ns: int) -> bool:
        """Whether this thread takes a batch for another, which waits for it and is timed."""
        thread, front = threading.current_thread(), reading.front
        if front is None and self._threads is not None:
            is_iterator = isinstance(thread, self._threads) and hasattr(thread, "__next__")
            front = self._front_of(thread) if is_iterator else None
        if front is None or front.asker in {None, threading.get_ident()}:
            return False
        if front.reading is None:
            front.reading, front.taken_ns = reading, asked_ns
        return True

    def _around_making(self, method: Method, *, new: bool) -> Method:
        def make(iterator: Any, *args: Any, **kwargs: Any) -> None:
            loader = loader_of(args[0] if args else kwargs.get("loader"))
            plainly = functools.partial(method, iterator, *args, **kwargs)
            if new:  # the base class's, inside that of a derived one
                is_inner = _TAKE in iterator.__dict__
            else:
                is_inner = getattr(iterator, _TAKE) is None or loader is None
            if is_inner:
                plainly()
            else:
                self._open(iterator, loader, plainly, new=new)

        return make

    def _around_epoch(self, method: Method) -> Method:
        def begin(iterator: Any, *args: Any, **kwargs: Any) -> None:
            loader = getattr(iterator, "loader", None) or next(iter(args), None)
            plainly = functools.partial(method, iterator, *args, **kwargs)
            self._open(iterator, loader, plainly, new=True)

        return begin

    def _around_generating(self, method: Method) -> Method:
        package = f"{method.__module__.partition('.')[0]}."

        def __iter__(loader: Any) -> Any:
            # What the package itself iterates, to show rows or count them, trains nothing.
            if str(sys._getframe(1).f_globals.get("__name__")).startswith(package):
                return method(loader)
            batches = _Generated()
            self._open(batches, loader, functools.partial(batches.begin, method, loader), new=True)
            return batches

        return __iter__

    def _open(self, iterator: Any, loader: Any, make: Callable[[], None], *, new: bool) -> None:
        """Begin a reading of an iterator that is made or reset by ``make``."""
        seen = None
        if os.getpid() == self._process:  # and no worker, whose own loaders are its own affair
            with self.guarded("a loader could not be distinguished from others"):
                seen = self._seen_as(loader, makes=new)
                if (tuning := tuning_of(loader)) is not None:
                    self.tunings[tuning] = seen.known.name
        setattr(iterator, _TAKE, None)
        if seen is None:
            make()
            return
        with self.guarded("how many ranks a loader loads for could not be seen"):
            ranks = ranks_served(sys._getframe(2))
            if ranks != seen.known.loads_for:
                seen.known = dataclasses.replace(seen.known, loads_for=ranks)
        if self._headrooms is not None:
            self._headrooms.opening()
        made, follower = self._made.get(id(loader)), seen.follower
        if new and made is not None and follower is not None and not follower.over:
            make = functools.partial(made.follow, follower, iterator, make)
        looking = seen.shared.looking_at(loader)
        reading, _ = seen.statistics.open(make)
        take: Take = reading.take if follower is None else follower.copies.noticed(reading.take)
        take = looking(take)
        if seen.headroom is not None:
            take = seen.headroom.replaying(take, reading)
        with self.guarded("how many batches a loader promises could not be seen"):
            # Other workers of an iterable dataset make more batches that are not full, or fewer.
            tunes = seen.tunes and seen.known.sampler == OF_ITERABLES
            reading.promised = None if tunes else promised_batches(loader)
        if made is not None:
            reading.front = made.front
            last, made.last = made.last, reading
            reading.again = last is not None and (last.begun or last.ended_ns > 0 or last.again)
        if seen.compared and seen.duplicated is None:
            # Each epoch has its own until one of them shows something.
            seen.first = WorkerSamples(seen.compared, SampleCounter())
            take = looked_at(take, seen.first)
        setattr(iterator, _TAKE, take)

    def _remember(self, loader: Any, frame: FrameType) -> _Made:
        key = id(loader)
        gone = weakref.ref(loader, lambda _: self._made.pop(key, None))
        self._made[key] = made = _Made(gone, callers_of(frame), _call_from(frame, loader))
        return made

    def name_of(self, loader: Any) -> str:
        """What the report calls a loader; empty where that can't be found."""
        with self.guarded("a loader could not be distinguished from others"):
            return self._seen_as(loader).known.name
        return ""

    def _seen_as(self, loader: Any, *, makes: bool = False) -> _Seen:
        """What a loader counts as; one that ``makes`` an iterator may have other workers by now."""
        made = self._made.get(id(loader))
        if made is None or made.loader() is not loader:
            made = self._remember(loader, sys._getframe(1))
        with self._finding:
            found = made.seen
            if found is None or (makes and found.has_other_workers(loader)):
                found = self._find(loader, made.place, made.call)
                if made.seen is None or not found.made:
                    found.made += 1
                made.seen = found
            return found

    def _find(self, loader: Any, place: Callers, call: LoaderCall) -> _Seen:
        known = dataclasses.replace(describe(loader, name=""), call=call)
        alike = place, known.kind, known.config, known.dataset
        group = self._groups.get(alike, [])
        dataset = getattr(loader, "dataset", None)
        for seen in group:
            if seen.is_over(dataset):
                seen.dataset = _reference(dataset)
                return seen
        if len(group) >= 4:  # kept apart among loaders that are alike in all else
            return group[-1]
        if len(self._seen) >= _MOST_LOADERS:
            if self._others is None:
                why = {"config": f"these are several, made after the first {_MOST_LOADERS}"}
                known = WatchedLoader(name="other loaders", unavailable=why)
                self._others = _Seen(self._new_statistics(), known, None, SharedFiles(None))
            return self._others
        first, called = (line_of(place, which, self._folder) for which in range(2))
        name, taken = first or known.kind, {seen.known.name for seen in self._seen}
        if name in taken:
            numbered = (f"{name} #{number}" for number in itertools.count(2))
            name = next(each for each in numbered if each not in taken)
        named = dataclasses.replace(known, name=name, place=first, called_from=called)
        tuning = tuning_of(loader)
        tunes = tuning is not None and not tuning.off
        compared = 0 if tunes else compared_workers(named, dataset)
        statistics = self._new_statistics()
        shared = SharedFiles(None if tunes else named.config)
        seen = _Seen(statistics, named, _reference(dataset), shared, compared=compared, tunes=tunes)
        workers = 0 if named.config is None else named.config.num_workers
        in_sight = not workers or start_method_of(config=named.config) == "fork"
        known_number = getattr(loader, "worker_init_fn", None) is not None  # which it is given
        if named.sampler == OF_ITERABLES and in_sight and not known_number:
            seen.asks = self._asks
        if self._follow and named.config is not None and not tunes:
            # Steps that are to be measured by themselves as well begin behind the followed ones.
            few = 200 if self._headrooms is None else 60
            seen.follower = Follower(named.name, named.config, batches=few)
        if self._headrooms is not None and not tunes:
            seen.headroom = LoopHeadroom(self._headrooms, named.config, seen.looks_at_none)
        self._groups[alike] = [*group, seen]
        self._seen.append(seen)
        return seen

    def _new_statistics(self) -> WaitStatistics:
        return WaitStatistics(
            clock=self._clock,
            began_ns=self.began_ns,
            inside=self._inside,
            pace=self.pace,
            settled=self._settled,
            log=StepLog() if self._ranked else None,
            is_ahead=self._is_ahead,
        )

    def _settled(self) -> None:
        if self._due is not None and self._clock() >= self.pace.due_ns:
            with self.guarded("what was seen could not be kept"):
                self._due()

    @contextlib.contextmanager
    def guarded(self, what: str) -> Iterator[None]:
        """Keep a fault of dlprof's own from the script, and remember it for the report."""
        try:
            yield
        except Exception as error:  # a training must not end by being watched
            if came_by_signal(error):  # the script's own way to end one, or a worker's death
                raise
            fault = f"{what}: {type(error).__name__}: {error}"
            if fault not in self.faults[:_MOST_LOADERS]:
                self.faults.append(fault)


def _notice_asking(module: ModuleType) -> Callable[[], bool] | None:
    """Notice who but torch's loaders and dlprof calls ``get_worker_info``, in forked workers too.

    ``None`` where there is no such function.
    """
    plain = getattr(module, "get_worker_info", None)
    if plain is None:
        return None
    asked = mmap.mmap(-1, 1)  # shared with the workers

    @functools.wraps(plain)
    def get_worker_info() -> Any:
        caller = sys._getframe(1).f_globals.get("__name__", "")
        if not caller.startswith((*LOADING_MODULES, "dlprof.")):
            asked[0] = 1
        return plain()

    for holder in (module, *holders("get_worker_info")):
        if getattr(holder, "get_worker_info", None) is plain:
            setattr(holder, "get_worker_info", get_worker_info)  # noqa: B010 - of any module
    return lambda: asked[0] == 1


def _around_next(method: Method) -> Method:
    def __next__(iterator: Any) -> Any:
        take: Take | None = getattr(iterator, _TAKE)
        return method(iterator) if take is None else take(method, iterator)

    return __next__


class _Generated:
    """The batches of a generator, whose own ``next()`` can't be wrapped."""

    def begin(self, iterate: Callable[[Any], Iterator[Any]], loader: Any) -> None:
        self._batches = iterate(loader)

    def __iter__(self) -> Iterator[Any]:
        return self

    @_around_next
    def __next__(self) -> Any:
        return next(self._batches)

    def __getattr__(self, name: str) -> Any:
        """``close()`` and what else the generator has."""
        if name == "_batches":  # not begun
            raise AttributeError(name)
        return getattr(self._batches, name)


def _reference(dataset: object) -> weakref.ref[Any] | None:
    try:
        return weakref.ref(dataset)
    except TypeError:
        return None


Method = Callable[..., Any]
Wrap = Callable[[Method], Method | None]


def wrap_methods(cls: type[Any], wraps: dict[str, Wrap]) -> None:
    """Wrap methods in a class, in its present subclasses, and in those still to be defined.

    Only where a class defines a method itself; so the wrapped methods of a class and its base may
    run inside one another, and each wrapper has to know whether it is the outermost.
    """
    found = [cls]
    for each in found:
        found += [derived for derived in each.__subclasses__() if derived not in found]
        _wrap_own(each, wraps)
    inherited = cls.__dict__.get("__init_subclass__")

    def __init_subclass__(derived: type[Any], /, **kwargs: Any) -> None:
        if inherited is None:
            super(cls, derived).__init_subclass__(**kwargs)
        else:
            inherited.__func__(derived, **kwargs)
        _wrap_own(derived, wraps)

    setattr(cls, "__init_subclass__", classmethod(__init_subclass__))  # noqa: B010 - mypy refuses to assign a method


def _wrap_own(cls: type[Any], wraps: dict[str, Wrap]) -> None:
    for name, wrap in wraps.items():
        method = cls.__dict__.get(name)
        # A class or a static method is given no ``self``.
        if callable(method) and not isinstance(method, type | staticmethod):
            wrapped = wrap(method)
            if wrapped is not None:
                setattr(cls, name, functools.wraps(method)(wrapped))
