"""``dlprof.watch``: how long one's own loop waits for its loader, for two readings of the clock."""

from __future__ import annotations

import contextlib
import copy
import dataclasses
import functools
import sys
import time
import warnings
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping
from types import FrameType, FunctionType
from typing import Any, Generic, TypeVar

from dlprof.errors import UsageError
from dlprof.integrations.copies import ConsumerCopies
from dlprof.integrations.loaders import describe
from dlprof.integrations.wait_statistics import Clock, Histogram, Take, WaitStatistics
from dlprof.internals import ITERATOR_MAKER, came_by_signal
from dlprof.records import WatchedLoader
from dlprof.targets.deriving import derive_in_place
from dlprof.tuning import tuning_of
from dlprof.units import NS

_Batch = TypeVar("_Batch")
Logger = Callable[[dict[str, float]], object]


def watch(
    loader: Iterable[_Batch], *, log: Logger | None = None, every: int = 100, name: str = "loader"
) -> Watched[_Batch]:
    """Iterate over a loader as ever, and know afterwards how long the loop waited for it.

    ``for batch in dlprof.watch(loader):`` gives the same batches, in the same order, and raises
    the same exceptions. What is returned can be kept and iterated again for each epoch; its
    length, its attributes and everything else are the loader's.

    Args:
        loader: A DataLoader, or anything that can be iterated.
        log: Called with a flat dictionary of floats each ``every`` batches, such as ``wandb.log``.
            If it raises, a RuntimeWarning names the error, logging ends, and the loop goes on.
        every: Batches between two calls of ``log``; the figures are those of these batches.
        name: What the summary calls the loader.

    Returns:
        The loader, with its waits timed.

    Raises:
        UsageError: ``loader`` can't be iterated, ``log`` can't be called, or ``every`` is no whole
            number above 0.
    """
    if not hasattr(loader, "__iter__") and not hasattr(loader, "__getitem__"):
        raise UsageError(
            f"watch: {type(loader).__name__} can't be iterated", hint="Pass the DataLoader."
        )
    if log is not None and not callable(log):
        raise UsageError(
            f"watch: log={log!r} is not a function",
            hint="Pass one that takes a dictionary of floats.",
        )
    number: object = every  # whatever an untyped caller has passed
    if isinstance(number, bool) or not isinstance(number, int) or number < 1:
        raise UsageError(f"watch: every={every!r} is not a whole number above 0", hint="Pass 100.")
    return Watched(loader, log=log, every=every, name=name)


class Summary(WatchedLoader):
    """A :class:`~dlprof.records.WatchedLoader` that prints itself as a text for people."""

    __slots__ = ()

    def __str__(self) -> str:
        from dlprof.report.script import summary_text  # few loops print it

        return summary_text(self)


class Watched(Generic[_Batch]):
    """A loader that is being watched; made by :func:`watch`.

    Everything that isn't defined here is the loader's own.
    """

    __slots__ = (
        *("_dlprof_copies", "_dlprof_logged", "_dlprof_statistics"),
        *("_dlprof_loader", "_dlprof_log", "_dlprof_name"),
    )

    def __init__(
        self,
        loader: Iterable[_Batch],
        *,
        log: Logger | None,
        every: int,
        name: str,
        clock: Clock = time.perf_counter_ns,
    ) -> None:
        # Plain assignment would set the loader's attributes.
        logged = None if log is None else _Log(log, every, clock, loader)
        plain = WaitStatistics(clock=clock, began_ns=clock())
        statistics = plain if logged is None else logged.statistics
        object.__setattr__(self, "_dlprof_loader", loader)
        object.__setattr__(self, "_dlprof_logged", logged)
        object.__setattr__(self, "_dlprof_name", name)
        object.__setattr__(self, "_dlprof_log", {"log": log, "every": every})
        object.__setattr__(self, "_dlprof_statistics", statistics)
        object.__setattr__(self, "_dlprof_copies", ConsumerCopies())

    def summary(self) -> Summary:
        """What was seen so far, over all epochs; ``print`` shows it as a text."""
        return self._dlprof_filled(describe(self._dlprof_loader, name=self._dlprof_name))

    def _dlprof_filled(self, known: WatchedLoader) -> Summary:
        filled = self._dlprof_statistics.fill(known)
        filled = self._dlprof_copies.fill(filled)
        return Summary(**{each: getattr(filled, each) for each in WatchedLoader.__slots__})

    def __iter__(self) -> Iterator[_Batch]:
        return self._dlprof_open(lambda: iter(self._dlprof_loader))

    def _dlprof_open(self, make: Callable[[], Iterator[_Batch]]) -> Iterator[_Batch]:
        """The iterator that ``make`` returns, watched."""
        reading, iterator = self._dlprof_statistics.open(make)
        return _WatchedIterator(self._dlprof_copies.noticed(reading.take), iterator)

    def _dlprof_over(self, loader: Iterable[_Batch]) -> None:
        """Another loader is in its place, as a framework makes one for each epoch."""
        object.__setattr__(self, "_dlprof_loader", loader)
        if self._dlprof_logged is not None:
            self._dlprof_logged.loader = loader

    def _dlprof_flush(self) -> None:
        """Log the batches since the last log, between two of them."""
        if self._dlprof_logged is not None:
            self._dlprof_logged.flush()

    def __len__(self) -> int:
        return len(self._dlprof_loader)

    def __bool__(self) -> bool:
        return bool(self._dlprof_loader)

    def __getitem__(self, index: Any) -> Any:
        return self._dlprof_loader[index]

    def __getattr__(self, attribute: str) -> Any:
        if attribute in Watched.__slots__:  # asked for by copy and pickle before they are set
            raise AttributeError(attribute)
        return getattr(self._dlprof_loader, attribute)

    def __setattr__(self, attribute: str, value: object) -> None:
        setattr(self._dlprof_loader, attribute, value)

    def __delattr__(self, attribute: str) -> None:
        delattr(self._dlprof_loader, attribute)

    def __reduce__(self) -> tuple[Any, ...]:
        """A copy starts its figures again, as they are of this process and of its loops."""
        again = functools.partial(watch, name=self._dlprof_name, **self._dlprof_log)
        return again, (self._dlprof_loader,)

    def __deepcopy__(self, memo: dict[int, Any]) -> Watched[_Batch]:
        """The loader is copied; the logger, which may belong to something large, is shared."""
        loader = copy.deepcopy(self._dlprof_loader, memo)
        return watch(loader, name=self._dlprof_name, **self._dlprof_log)

    def __repr__(self) -> str:
        return f"dlprof.watch({self._dlprof_loader!r})"


class _WatchedIterator(Iterator[_Batch]):
    """A loader's iterator that is being watched; no generator, so that threads can share it."""

    __slots__ = ("_dlprof_iterator", "_dlprof_take")

    def __init__(self, take: Take, iterator: Iterator[_Batch]) -> None:
        self._dlprof_take = take
        self._dlprof_iterator = iterator

    def __next__(self) -> _Batch:
        batch: _Batch = self._dlprof_take(next, self._dlprof_iterator)
        return batch

    def __length_hint__(self) -> int:
        hint = getattr(self._dlprof_iterator, "__length_hint__", None)
        return NotImplemented if hint is None else hint()

    def __getattr__(self, attribute: str) -> Any:
        if attribute in _WatchedIterator.__slots__:
            raise AttributeError(attribute)
        return getattr(self._dlprof_iterator, attribute)


def _tuned(loader: Any) -> Mapping[str, float]:
    """The figures of a loader that tunes itself; none of others."""
    tuning = tuning_of(loader)
    return {} if tuning is None else tuning.figures()


def _users_level() -> int:
    """At which level ``warnings.warn`` of the caller names a line that isn't dlprof's."""
    frame: FrameType | None = sys._getframe(1)
    level = 1
    while frame is not None and frame.f_globals.get("__name__", "").startswith("dlprof."):
        frame, level = frame.f_back, level + 1
    return level


class _Log:
    """Calls the user's logger for every so many batches of a loader, or of what takes its place."""

    def __init__(self, log: Logger, every: int, clock: Clock, loader: Any) -> None:
        self._log: Logger | None = log
        self.loader = loader
        self._every = every
        self.statistics = WaitStatistics(clock=clock, began_ns=clock(), settled=self._settled)
        self._batches = self._waited_ns = 0
        self._waits, self._steps = Histogram(), Histogram()
        self._make_room()

    def _make_room(self) -> None:
        """Let the statistics settle when the next call is due, at the latest."""
        self.statistics.allow_pending(self._batches + self._every - self.statistics.batches)

    def flush(self) -> None:
        """Log the batches since the last call, though fewer than ``every``, if there are any.

        Called in the consumer's thread, between two batches.
        """
        every, self._every = self._every, 1
        self.statistics.settle()
        self._every = every
        self._make_room()

    def _settled(self) -> None:
        if self._log is not None and self.statistics.batches >= self._batches + self._every:
            values = self._values()
            try:
                self._log(values)
            except Exception as error:  # a logger must not end a training
                if came_by_signal(error):  # as an alarm may that the script has set
                    raise
                self._log = None
                warnings.warn(
                    f"dlprof.watch: the logger raised {type(error).__name__}: {error}; "
                    "nothing more is logged, and the loop goes on",
                    RuntimeWarning,
                    stacklevel=_users_level(),
                )
            self._batches, self._waited_ns = self.statistics.batches, self.statistics.waited_ns
            self._waits, self._steps = self.statistics.waits.copy(), self.statistics.steps.copy()
        self._make_room()

    def _values(self) -> dict[str, float]:
        """The figures since the last call, by names that a dashboard groups."""
        statistics = self.statistics
        waits, steps = statistics.waits.since(self._waits), statistics.steps.since(self._steps)
        batches, waited_ns = (
            statistics.batches - self._batches,
            statistics.waited_ns - self._waited_ns,
        )
        passed_ns = waited_ns + steps.total_ns
        values: Mapping[str, float] = {
            "batches": statistics.batches,
            "epochs": statistics.epochs,
            "wait_fraction": waited_ns / passed_ns if passed_ns else 0.0,
            "batches_per_s": batches * NS / passed_ns if passed_ns else 0.0,
            "wait_mean_s": waits.total_ns / max(1, waits.count) / NS,
            "wait_p95_s": waits.quantile_s(0.95),
            "wait_max_s": waits.longest_ns / NS,
            "step_mean_s": steps.total_ns / max(1, steps.count) / NS,
            "step_p95_s": steps.quantile_s(0.95),
            "waited_s": statistics.waited_ns / NS,
            "stepped_s": statistics.steps.total_ns / NS,
            "time_to_first_batch_s": (statistics.startup_ns or 0) / NS,
            **_tuned(self.loader),
        }
        return {f"dlprof/{name}": float(value) for name, value in values.items()}


def watch_in_place(loader: Any, watched: Watched[Any]) -> Callable[[], None]:
    """Watch a loader wherever it is iterated, as a framework does with the one that it was given.

    The object stays the same, and an instance of its class: that becomes a class derived from it,
    which differs in ``__iter__`` alone. Copies of it are of its own class.

    Returns:
        What gives the loader its own class back; what was seen is kept.

    Raises:
        TypeError: Objects of its class can't be given another, such as a list.
    """
    own: Any = type(loader)
    if not hasattr(own, "__iter__"):
        raise TypeError(f"a {own.__name__} has no __iter__")

    def iterate(this: Any) -> Iterator[Any]:
        return watched._dlprof_open(lambda: own.__iter__(this))

    return derive_in_place(loader, {"__iter__": iterate})


def load_ipython_extension(shell: Any) -> None:
    """Give a notebook the cell magic ``%%dlprof``; called by ``%load_ext dlprof``.

    IPython is never imported: it passes itself in.
    """

    def dlprof(_line: str, cell: str) -> None:
        """Run the cell, and say how long its loops waited for their DataLoaders."""
        from torch.utils.data import DataLoader  # the cell is about to

        plain, seen = _iterating(DataLoader), list[_InCell]()

        def watching(own: Callable[[Any], Iterator[Any]]) -> Any:
            @functools.wraps(own)
            def iterate(loader: Any) -> Iterator[Any]:
                known = WatchedLoader(name=_IN_CELLS)
                with contextlib.suppress(Exception):  # a training must not end by being watched
                    known = describe(loader, name=_IN_CELLS)
                found = next((each for each in seen if each.loader() is loader), None)
                alike = (each for each in seen if each.loader() is None and each.known == known)
                found = found or next(alike, None)
                if found is None:
                    found = _InCell(known, watch((), name=_IN_CELLS), weakref.ref(loader))
                    seen.append(found)
                elif found.loader() is not loader:
                    found.loader, found.made = weakref.ref(loader), found.made + 1
                return found.watched._dlprof_open(lambda: own(loader))

            return iterate

        for kind, own in plain.items():
            kind.__iter__ = watching(own)
        try:
            shell.run_cell(cell)
        finally:
            for kind, own in plain.items():
                kind.__iter__ = own
        none = "dlprof: no DataLoader was iterated in this cell.\n"
        sys.stdout.write("".join(_after_cell(each, shell.user_ns) for each in seen) or none)

    shell.register_magic_function(dlprof, magic_kind="cell", magic_name="dlprof")


_IN_CELLS = "loader"  # what a cell's summary calls one


def _iterating(base: Any) -> dict[Any, Any]:
    """The methods that begin an epoch of a loader: by its class, that of torch's or one from it.

    One from it counts where it makes its iterators by itself, as torchdata's does: no other method
    is called then.
    """
    found = [base]
    for each in found:
        found += [derived for derived in each.__subclasses__() if derived not in found]

    def is_alone(kind: Any) -> bool:
        method = vars(kind).get("__iter__")
        calls_none = isinstance(method, FunctionType) and "__iter__" not in method.__code__.co_names
        return calls_none and ITERATOR_MAKER in vars(kind)

    return {each: each.__iter__ for each in found if each is base or is_alone(each)}


@dataclasses.dataclass(slots=True)
class _InCell:
    """A loader of a cell, or several alike that it made one after another, as for each epoch.

    None of them is held: their workers may end with them.
    """

    known: WatchedLoader  # what was known of the first
    watched: Watched[Any]  # of nothing: for its figures
    loader: weakref.ref[Any]  # the last, while it lives
    made: int = 1  # how many


def _after_cell(seen: _InCell, variables: dict[str, Any]) -> str:
    """One loader of a cell: its summary, and what finds out why the loop waits."""
    from dlprof.report.script import is_harmless

    loader, known = seen.loader(), dataclasses.replace(seen.known, made=seen.made)
    summary, hint = seen.watched._dlprof_filled(known), ""
    if summary.batches and not is_harmless([summary], None):
        own = (each for each in variables if loader is not None and variables[each] is loader)
        name = next(own, _IN_CELLS)
        hint = f"  What it waits for, and the fix: dlprof.profile({name})\n"
    return f"{summary}\n{hint}"
