"""``dlprof.tune``: a DataLoader that tunes itself while training runs."""

from __future__ import annotations

import contextlib
import functools
import html
import logging
import math
import os
import signal
import statistics
import sys
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from multiprocessing import util
from multiprocessing.sharedctypes import RawArray
from pathlib import Path
from typing import Any, TypeVar

import torch
from torch.utils.data import (
    IterableDataset,
    IterDataPipe,
    MapDataPipe,
    dataloader,
    get_worker_info,
)

from dlprof import internals
from dlprof.device.runtime import is_in_use
from dlprof.errors import DlprofError, UsageError
from dlprof.files import is_there
from dlprof.machine import inspect_machine
from dlprof.machine.launchers import launched_as
from dlprof.machine.procfs import parse_pss, read_text
from dlprof.records import Machine, TriedSetting
from dlprof.saved import read_document, save_kwargs, saved_kwargs
from dlprof.targets.counting import count_bytes, count_tensors
from dlprof.targets.deriving import derive_in_place
from dlprof.targets.faults import one_line, own_attributes
from dlprof.targets.files import (
    OpenFile,
    cut_off,
    have_own_positions,
    holders,
    moved,
    named,
    open_files,
    positions,
)
from dlprof.targets.parts import dataloader_of
from dlprof.targets.weighing import undelayed_s
from dlprof.targets.workers import start_method_of
from dlprof.tuning.budget import Budget, Node, count_ranks, usable_cores
from dlprof.tuning.control import (
    NO_WORKERS,
    WORTH,
    Ask,
    Change,
    Control,
    Setting,
    Window,
    opening,
)
from dlprof.tuning.seeding import (
    ASKED,
    BATCHES,
    CPU_SECONDS,
    DELAY_SECONDS,
    PLACES,
    READY,
    SECONDS,
    SELDOM,
    ClockedInit,
    RandomNumbers,
    SeededFetcher,
    UsedClock,
    notice_asking,
    rewinder,
    streams,
)
from dlprof.units import NS, counted, format_duration, parse_bytes

_Loader = TypeVar("_Loader")
_LOG = logging.getLogger("dlprof.tune")
_ATTEMPTS_S = 1.0  # at most
_ATTEMPT_S = 60  # whole ones, until it is given up to make a batch without workers
# Forked workers begin each epoch with what it was at first: this one would go on.
_NO_COPY = "its iterable dataset can't be copied, so each epoch would change it"
# Beside a batch that is made, the main thread would draw what are the batch's random numbers.
_THREAD = "its batches are asked for in a thread, and the random numbers are those of all threads"
_SHORT_EPOCH = 16  # fillings of the queues, below which an epoch as a whole is looked at
OFF = "DLPROF_TUNE"
"""Environment variable: ``off`` has every loader load as without tuning."""


def tune_loader(
    loader: _Loader,
    max_workers: int | None,
    max_ram: int | str | None,
    reseed: str | None,
    state: Path | str | None,
    *,
    enabled: bool,
) -> _Loader:
    """What ``dlprof.tune`` does."""
    ram = parse_bytes(max_ram) if isinstance(max_ram, str) else max_ram
    _check(max_workers, ram, reseed, state)
    core = dataloader_of(loader)
    if core is None:
        _LOG.warning("dlprof.tune: %s is no DataLoader; it loads as before", type(loader).__name__)
        return loader
    own = getattr(core, "tuning", None)
    if isinstance(own, Tuning):
        if not enabled or any(each is not None for each in (max_workers, ram, reseed, state)):
            _LOG.warning("dlprof.tune: the loader is tuned already, as the first call said")
        return loader
    if own is not None:
        _LOG.warning("dlprof.tune: the loader has a `tuning` of its own; it loads as before")
        return loader
    budget = Budget(max_workers, ram)
    # Persistent workers', or that of a class which makes one for all epochs, as timm's and YOLO's.
    made = internals.iterator_class(dataloader)
    running = any(isinstance(each, made) for each in vars(core).values())
    why = internals.untunable(core) or ("its workers run already" if running else "")
    unwanted = _switched_off(enabled=enabled)
    off = why or unwanted or _too_tight(core.num_workers, max_workers)
    place = None
    if state is not None and not off:
        # By its full path: the training may change the directory before the answer is kept.
        place = (Path(state).absolute(), inspect_machine(), _name_of(core))
    seeded = reseed is not None and not why
    tuner = _Tuner(core, budget, place, asked=max_workers is not None, reseed=seeded)
    if off:
        tuner.turn_off(off, level=logging.INFO if off == unwanted else logging.WARNING)
    if reseed is not None and not tuner.reseeds:
        _LOG.warning("dlprof.tune: reseed has no effect on this loader")
    try:
        derive_in_place(core, tuner.methods())
    except Exception as error:  # its class may want no class derived from it
        name = type(core).__name__
        _LOG.warning("dlprof.tune: no class can be derived from %s (%s): not tuned", name, error)
    return loader


def _check(max_workers: object, max_ram: object, reseed: object, state: object) -> None:
    for name, given, hint in (
        ("max_workers", max_workers, "Pass 8, or None."),
        ("max_ram", max_ram, 'Pass "16GiB", a number of bytes, or None.'),
    ):
        if given is not None and (
            isinstance(given, bool) or not isinstance(given, int) or given < 0
        ):
            raise UsageError(f"tune: {name}={given!r} is not a whole number", hint=hint)
    if reseed is not None and reseed != "batch":
        raise UsageError(f"tune: reseed={reseed!r} is not known", hint='Pass "batch", or None.')
    if state is not None and not isinstance(state, (str, os.PathLike)):
        raise UsageError(f"tune: state={state!r} is no path", hint='Pass "dlprof.toml", or None.')


_SEEDING = {"torch", "initial_seed", "manual_seed", "numpy", "np", "random", "seed", "set_seed"}
"""Names of which a function may use some and still do no more than seed random numbers."""


def _only_seeds(init: Any, *, alone: bool) -> bool:
    """Whether a ``worker_init_fn`` does the same for any number of workers: it seeds them.

    As that of torch's documentation, Lightning's, and the Hugging Face Trainer's. That one counts
    on as many workers in each rank, so that no two have the same seed, and must be ``alone``.
    """
    function = getattr(init, "func", init)
    package = str(getattr(function, "__module__", "")).partition(".")[0]
    if package in ("lightning", "lightning_fabric"):
        return True
    code = getattr(function, "__code__", None)
    if code is None or function.__defaults__ or function.__kwdefaults__:
        return False
    names = {*code.co_names, *code.co_freevars}
    # What a user's own does is not in sight; nor is how many a table has seeds for.
    own = "set_seed" in names and package != "transformers"
    table = any(isinstance(each, tuple) for each in code.co_consts)
    return names <= _SEEDING and not (own or table) and (alone or function is init)


def _world() -> int:
    """The processes of this training, as far as torch knows them by now."""
    ranks = torch.distributed
    known = ranks.is_available() and ranks.is_initialized()
    return ranks.get_world_size() if known else 1


def _too_tight(workers: int, max_workers: int | None) -> str:
    """Why the limits allow nothing to be tried; empty where they do."""
    if max_workers is None:
        said = (
            "only you know whether its dataset may be read by workers; if so, set num_workers=1, "
            "or call dlprof.tune(loader, max_workers=8)"
        )
        return "" if workers else said
    few = max_workers < max(1, workers)
    return f"max_workers={max_workers} allows nothing to be tried" if few else ""


def _name_of(loader: Any) -> str:
    """Whose answer it is in a file: that of a dataset's class and length, in such batches."""
    kind = type(loader.dataset)
    parts = [f"tune:{kind.__module__}.{kind.__qualname__}"]
    with contextlib.suppress(Exception):  # whatever a dataset of the user's raises
        parts.append(f"{len(loader.dataset)} samples")
    batches = loader if loader.batch_sampler is None else loader.batch_sampler
    batch_size = getattr(batches, "batch_size", None)
    ranks = launched_as(os.environ)["LOCAL_WORLD_SIZE"] or _world()
    parts += [f"batch_size={batch_size}"] if batch_size else []
    return ", ".join(parts + ([f"{ranks} ranks"] if ranks > 1 else []))


def _last_answer(path: Path, machine: Machine, name: str) -> Mapping[str, Any]:
    """What the last job ended with; empty where the file has nothing for this one."""
    try:
        known = saved_kwargs(path, machine, name)
        machines = read_document(path) if is_there(path) and not known else {}
    except DlprofError as error:
        _LOG.warning("dlprof.tune: no settings are taken from a file: %s", error)
        return {}
    others = [
        spec if key == machine.fingerprint else f"{spec} on {table.get('hostname', key)}"
        for key, table in machines.items()
        for spec in table.get("target", {})
        if spec.startswith("tune:")
    ]
    if others:
        said = "dlprof.tune: %s has settings for %s, and none that fit this loader here: %s"
        _LOG.info(said, path, "; ".join(others), name)
    return known


def _switched_off(*, enabled: bool) -> str:
    """Who wants no tuning; empty where nobody does."""
    said = os.environ.get(OFF, "")
    if said.lower() in {"off", "0", "false"}:
        return f"{OFF}={said}"
    return "" if enabled else "enabled=False"


class Tuning:
    """What was tried on a loader; ``print`` shows it as a table.

    Attributes:
        off: Why nothing is tuned any more; empty while it is.
    """

    def __init__(self, control: Control, dataset: str, fixed: str) -> None:
        self.off = ""
        self._control, self._dataset, self._fixed = control, dataset, fixed

    @property
    def changes(self) -> tuple[Change, ...]:
        """What was tried so far, in order."""
        return tuple(self._control.changes)

    @property
    def kwargs(self) -> dict[str, int]:
        """Arguments for ``DataLoader`` that start where this one is."""
        workers, ahead, pins = self._now
        pinned = {"pin_memory": True} if pins else {}
        return {"num_workers": workers, **({"prefetch_factor": ahead} if workers else {}), **pinned}

    @property
    def _now(self) -> Setting:
        return self._control.kept._replace(pins=self._control.pins)

    def tried(self) -> list[TriedSetting]:
        """What was tried so far, as the report of ``dlprof run`` has it."""
        return [_tried(self._dataset, each) for each in self.changes]

    def figures(self) -> dict[str, float]:
        """What ``dlprof.watch`` logs of it."""
        workers, ahead, _ = self._control.kept
        changes = len(self._control.changes)
        return {"num_workers": workers, "prefetch_factor": ahead, "changes": changes}

    def summary(self) -> str:
        """One sentence."""
        now, off = self._now, f"; off: {self.off}" if self.off else ""
        refused = [
            f"{each.after} not tried: {each.refused}" for each in self.changes if each.refused
        ]
        stays = self._fixed and now.workers and not self.off
        fixed = f"; {self._fixed}" if stays else ""
        tried = len(self.changes) - len(refused)
        if not tried:
            why = self.off or self._control.idle or "it takes more batches to decide"
            return f"dlprof.tune: {now} stays: {refused[-1] if refused else why}{fixed}"
        kept = sum(each.kept for each in self.changes)
        return f"dlprof.tune: {counted(tried, 'change')} tried, {kept} kept; now {now}{off}{fixed}"

    def __str__(self) -> str:
        rows = [_row(each) for each in self.tried()]
        widths = [max(map(len, column)) for column in zip(_HEAD, *rows, strict=True)]
        lines = [
            "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
            for row in (_HEAD, *rows)
        ]
        return "\n".join([self.summary(), *(lines if rows else ())])

    def _repr_html_(self) -> str:
        return f"<pre>{html.escape(str(self))}</pre>"


_HEAD = ("after", "tried", "why", "speed-up (95% CI)", "result")


def _tried(dataset: str, change: Change) -> TriedSetting:
    refused = f"not tried: {change.refused}" if change.refused else "taken back"
    return TriedSetting(
        dataset=dataset,
        at_s=change.at_s,
        setting=str(change.after),
        why=change.why,
        speedup=change.speedup,
        result="kept" if change.kept else refused,
    )


def _row(tried: TriedSetting) -> tuple[str, str, str, str, str]:
    speed = tried.speedup
    if speed is None:
        said = "-"
    elif speed.low is None or speed.high is None:
        said = f"{speed.value:.2f}x"
    elif tried.was_faster:
        said = "faster, too noisy for a figure"
    elif speed.is_wide:
        said = f"at least {speed.low:.2f}x" if speed.low > 1 else "too noisy"
    else:
        said = f"{speed.value:.2f}x ({speed.low:.2f}-{speed.high:.2f})"
    return format_duration(tried.at_s), tried.setting, tried.why, said, tried.outcome


class _Tuner:
    """The tuning of one loader over all of its epochs.

    ``state`` is where the answer is kept, a settings file and a place in it; ``asked`` says whether
    the user said how many workers there may be.
    """

    def __init__(
        self,
        loader: Any,
        budget: Budget,
        state: tuple[Path, Machine, str] | None,
        *,
        asked: bool,
        reseed: bool,
    ) -> None:
        self._kind: Any = type(loader)
        self._loader: Callable[[], Any] = weakref.ref(loader)
        self._budget, self._state = budget, state
        self._is_map = not isinstance(loader.dataset, IterableDataset)
        self.reseeds = reseed and self._is_map  # each batch has random numbers of its own
        self._batch_bytes = self._batch_tensors = 0
        self._pin_alike = True  # all batches that were weighed
        self._timeout_s, self._fetch_s = loader.timeout, 0.0
        self._start_s = 0.0  # what this thread waits until a worker that isn't forked is started
        self._own_workers: int = loader.num_workers
        self._own_pins = bool(loader.pin_memory)
        # What so many workers have from here, and where it was: another reader would share that.
        self._files: tuple[OpenFile, ...] = ()
        self._places: list[int] = []
        self._readers = 0
        # Before the main process fetched: what it opens or moves since, workers would share.
        self._before: frozenset[OpenFile] | None = None
        self._asked = asked
        self._opened: Setting | None = None  # what an iterable dataset begins with
        self._has_answer = False  # of the last job
        self._cores_until_s = 0.0
        # What makes a batch without workers, as soon as there is one; and what came of it.
        self._again: Callable[[], None] | None = None
        self._attempt: _Attempt | None = None
        self._control = Control(NO_WORKERS, 0)  # nothing is kept before it is known where to start
        self._control = self._begun(loader)
        name, fixed = type(loader.dataset).__name__, ""
        if why := self._why_fixed(loader):
            fixed = f"num_workers stays: {why}"
        elif why := self._why_no_more(loader):
            fixed = f"no more workers are tried: {why}"
        self.tuning = Tuning(self._control, name, fixed)
        self._taps: weakref.WeakSet[_Tap] = weakref.WeakSet()
        self._context: Any = torch.multiprocessing
        self._process, self._kept = 0, RandomNumbers()
        self._locks: dict[int, Any] = {}  # by process
        self._clock: Any = ()
        self._clocked = [0.0] * 4
        self._weighed_until_s = 0.0
        self.paused = False  # the last window had a pause, and doesn't count

    def _begun(self, loader: Any, *, alone: bool = True) -> Control:
        """The control at its beginning: with what the last job ended with, or the user's own.

        ``alone`` says whether that may be none.
        """
        mine, asked = Setting(loader.num_workers, loader.prefetch_factor or 0), self._asked
        changes_workers = not self._why_fixed(loader)
        for_workers = loader.worker_init_fn or loader.timeout or loader.persistent_workers
        # Torch would have the training's own pipe give the share of a single reader from then on.
        is_pipe = isinstance(loader.dataset, IterDataPipe)
        spares_workers = asked and not is_pipe and loader.num_workers > 0 and not for_workers
        # A single reader of an iterable dataset may be the main process, though there are no more.
        spares_workers = spares_workers and (changes_workers or not self._is_map)
        # Others than forked ones are sent the dataset, which may have opened what can't be sent.
        spares_workers = spares_workers and start_method_of(loader) == "fork"
        self._spares_workers = spares_workers
        grows = changes_workers and not self._why_no_more(loader)
        most = self._budget.most_workers if grows else mine.workers
        may = {"changes_workers": changes_workers, "spares_workers": spares_workers}
        start = self._start(mine, most, **may)
        if not (start.workers or alone):
            start = mine
        # Other workers have other parts of an iterable dataset: within an epoch they stay.
        self._steers = self._is_map or not (changes_workers or spares_workers)
        # Epochs may be so short that each is looked at as one.
        self.epoch_batches = epoch = _epoch_batches(loader) if self._steers else math.inf
        short = epoch < _SHORT_EPOCH * max(4, start.in_flight)
        self.whole_epochs = short and start.workers > 0
        # Batches that show whether the training's random numbers are drawn from between steps.
        self._draws = 3 if self._is_map else 0
        control = Control(
            start,
            max(most, start.workers),
            live=self._steers and not short and (start.workers > 0 or spares_workers),
            cores=usable_cores(),
            least=mine.workers,
            # An iterable dataset has the more batches the more workers there are.
            epoch=epoch if self._is_map else math.inf,
            **may,
        )
        self._ask = control.begin()
        self._said = self._written = 0
        return control

    def _begin_again(self, loader: Any, *, alone: bool = True) -> None:
        self._control = self._begun(loader, alone=alone)
        self.tuning._control = self._control  # noqa: SLF001 - of this module

    def _start(
        self, mine: Setting, most_workers: int, *, changes_workers: bool, spares_workers: bool
    ) -> Setting:
        """Where to start from: what the last job ended with, or the user's own."""
        if self._opened is not None:
            return self._opened
        known: Mapping[str, Any] = {}
        if self._state is not None and mine.workers:
            known = _last_answer(*self._state)
        self._has_answer = bool(known)
        known_workers = known.get("num_workers", mine.workers)
        if not known_workers:
            return NO_WORKERS if spares_workers else mine
        workers = min(known_workers, most_workers) if changes_workers else mine.workers
        start = Setting(workers, known.get("prefetch_factor", mine.ahead))
        # A fault of the ranks' file: tuning is off before a trial, then.
        with internals.undisturbed(), contextlib.suppress(OSError):
            if start.takes_more_than(mine) and (why := self._refusal(mine, start, pids=())):
                _LOG.warning("dlprof.tune: it doesn't start with %s: %s", start, why)
                return mine
        return start

    def _open(self, loader: Any, mine: Setting) -> None:
        """Have an iterable dataset begin with as many workers as its batches need.

        Its first epoch may be the only one, and within it their number can't change.
        """
        fixed = self._is_map or self._has_answer or bool(self._why_fixed(loader))
        fixed = fixed or _is_shared_by_processes(loader.dataset)  # what is tried would take of it
        if fixed or self.tuning.off or self._context.get_start_method() != "fork":
            return
        attempt = _Attempt(_by_worker(loader), self._context, "", seconds=_ATTEMPTS_S / 8)
        if attempt.error(wait_s=_ATTEMPTS_S / 2) != "" or not attempt.fetch_s:
            return
        self._fetch_s, self._batch_bytes = attempt.fetch_s, attempt.batch_bytes
        self._budget.worker_bytes = attempt.worker_bytes or self._budget.worker_bytes
        costs, cores = (attempt.fetch_s, attempt.cpu_s), usable_cores()
        start = opening(mine, *costs, most_workers=self._budget.most_workers, cores=cores)
        while start.workers > mine.workers and self._refusal(mine, start, pids=()):
            start = start._replace(workers=(start.workers + mine.workers) // 2)
        if start.workers > mine.workers:
            self._opened = start
            self._begin_again(loader)
            why = f"{cores} cores may be busy with its batches"
            change = Change(at_s=0.0, batch=0, before=mine, after=start, why=why, kept=True)
            self._control.changes.append(change)

    def _why_fixed(self, loader: Any) -> str:
        """Why it keeps the workers that it has; empty if it may have others."""
        if self._is_map:
            sharded = isinstance(loader.dataset, MapDataPipe)
            return "torch shares its data out among the workers that it has" if sharded else ""
        if loader.num_workers < 2:
            return "its iterable dataset may be made for a single reader"
        if loader.persistent_workers:
            return "persistent_workers=True keeps the shares that its workers have of its data"
        said = "other workers would yield its iterable dataset in another order; if they may"
        return "" if self._asked else f"{said}, call dlprof.tune(loader, max_workers=8)"

    def _why_no_more(self, loader: Any) -> str:
        """Why it gets no more workers than it has; empty if it may."""
        init = loader.worker_init_fn
        if (
            self._asked
            or not init
            or _only_seeds(init, alone=count_ranks(os.environ, _world()) < 2)
        ):
            return ""
        return (
            "its worker_init_fn may know no others; if it does, call "
            "dlprof.tune(loader, max_workers=8)"
        )

    def methods(self) -> dict[str, Any]:
        """What a tuned loader's class has in place of its own."""
        tuner, own = self, self._kind
        make: Any = internals.iterator_maker(own)  # which a DataLoader has

        def get_iterator(this: Any) -> Any:
            # Another of its class, as frameworks make, is not tuned.
            return tuner.iterator() if tuner._loader() is this else make(this)

        def state_dict(this: Any, *given: Any, **options: Any) -> Any:
            tuner.turn_off("its state was saved", level=logging.INFO)
            return own.state_dict(this, *given, **options)

        found = {"tuning": property(lambda _: tuner.tuning), internals.ITERATOR_MAKER: get_iterator}
        if hasattr(own, "state_dict"):
            found["state_dict"] = state_dict
        return found

    # Iterating.

    def iterator(self) -> Any:
        """What ``iter(loader)`` gives, with workers as they are to be."""
        with self._making():
            return self._iterator()

    def _making(self) -> Any:
        """Held while an iterator is made, as the loader is changed meanwhile.

        Each process has its own: as one is forked, another thread may hold it.
        """
        return self._locks.setdefault(os.getpid(), threading.RLock())

    def _iterator(self) -> Any:
        loader = self._loader()
        mine = Setting(loader.num_workers, loader.prefetch_factor or 0)
        same = self._control.kept == mine and self._control.pins is None
        if self.tuning.off and same and not self.reseeds:
            make: Any = internals.iterator_maker(self._kind)
            return make(loader)
        # The loader may be gone while its iterator goes on.
        self._context = loader.multiprocessing_context or torch.multiprocessing
        self._own_pins = bool(loader.pin_memory)
        try:
            if self._process != os.getpid():
                self._begin_process(loader, mine)
            setting = self._affordable(mine)
        except Exception as error:  # whatever fails here must not end a training
            if internals.came_by_signal(error):
                raise
            self.turn_off(f"a fault of dlprof's own: {type(error).__name__}: {error}")
            self._control.kept = setting = mine
        tap = _Tap(self, setting, watching=self._draws > 0)
        ours = setting != mine or self._control.pins is not None or self._may_repin()
        iterator, back = None, rewinder(loader.generator) if ours else None
        try:
            iterator = self._tapped(loader, setting, tap)
        except Exception as error:
            if back is None or tap.begun or internals.came_by_signal(error):  # as without tuning
                raise
            self._control.pins = None
            self.turn_off(f"{setting} could not be started: {error}")
        if iterator is None and back is not None:  # the workers that were started are gone by now
            back()
            tap = _Tap(self, mine, watching=self._draws > 0)
            iterator = self._tapped(loader, mine, tap)
        tap.over = bool(self.tuning.off)
        if self._spares_workers:
            self._again = internals.made_again(iterator)
        self._taps.add(tap)
        weakref.finalize(tap, self._left).atexit = False
        self.renewed(tap)
        return iterator

    def _begin_process(self, loader: Any, mine: Setting) -> None:
        """Of what belongs to one process, and maybe one rank: it was forked after ``tune``."""
        self._before = self._attempt = None
        self._taps = weakref.WeakSet()
        # Without shared memory nothing is clocked.
        with internals.undisturbed(), contextlib.suppress(OSError):
            most = max(self._budget.most_workers, mine.workers)
            self._clock, self._clocked = RawArray("d", PLACES * most), [0.0] * 4
        node = self._budget.node = Node.of(os.environ, _world())  # ranks may be known by now
        known = None if self.tuning.off else self._state
        if known is not None and (name := _name_of(loader)) != known[2]:
            self._state = *known[:2], name  # another answer is theirs
            self._begin_again(loader)
        if self._spares_workers and self._context.get_start_method() != "fork":  # by now
            self._begin_again(loader)
        alone = known is not None and mine.workers and not self._control.kept.workers
        if alone and (why := self._needs_workers(loader)):
            _LOG.info("dlprof.tune: it doesn't start with %s: %s", NO_WORKERS, why)
            self._begin_again(loader, alone=False)
        if node is None and self._asked and self._control.kept == mine:
            self._open(loader, mine)
        self._control.by_wait = node is not None
        if node is not None:
            # Tuning is off before the first trial, then.
            with internals.undisturbed(), contextlib.suppress(OSError):
                node.end_turn(self._control.kept.workers, 0.0)  # from now on others count them
        self._process = os.getpid()  # last: whoever goes on after Ctrl-C has nothing proven yet

    def _needs_workers(self, loader: Any) -> str:
        """Why the last job's answer, no workers, doesn't hold; empty where it does.

        Its dataset may have been another version, which none of this job's workers has shown.
        """
        if threading.current_thread() is not threading.main_thread():
            return _THREAD
        if not self._is_map and internals.as_forked(loader.dataset) is loader.dataset:
            return _NO_COPY
        self._again = internals.made_first(loader)
        if self._again is None:
            return "only a sampler of its own says which samples there are"
        return self._attempts(None).error(wait_s=_ATTEMPT_S) or ""

    def _left(self) -> None:
        """An iterator is gone, maybe half way: unless the next has begun, nothing is tried."""
        if self._budget.node is not None and not self._others(None):
            self._budget.node.drop_turn()

    def _others(self, tap: _Tap | None) -> list[_Tap]:
        """Iterators that go on beside one: those of a loader are tuned one at a time."""
        return [each for each in self._taps if each is not tap and not each.ended]

    def _affordable(self, mine: Setting) -> Setting:
        """What an epoch begins with: what is asked for, where the budget allows it."""
        setting = self._allowed()
        beside = sum(each.setting.workers for each in self._others(None))
        both = beside + setting.workers <= self._budget.most_workers
        return mine if beside and not both and setting.takes_more_than(mine) else setting

    def _allowed(self) -> Setting:
        if self.tuning.off or not self._has_turn(self._ask.setting):
            return self._control.kept
        while (asked := self._ask.setting) != (kept := self._control.kept):
            if not asked.workers and (self._control.live or not self._is_known(asked)):
                return kept  # it is tried within the epoch, or with the next
            takes_more = asked.takes_more_than(kept) or not asked.workers
            why = self._refusal(kept, asked, pids=()) if takes_more else ""
            if not why:
                break
            self._look(Window(asked, 0, 0.0, 0.0, refused=why))
        return self._ask.setting

    def _refusal(self, before: Setting, after: Setting, *, pids: Sequence[int]) -> str:
        alone = not after.workers
        shares = alone or (self._readers == 1 and before.workers < 2 <= after.workers)
        if shares and (files := moved(self._files, self._places)):
            name, others = named(files, self._loader())[0], "the main process" if alone else "more"
            return f"a worker moves the position of {name}, which {others} would share"
        if alone:
            if threading.current_thread() is not threading.main_thread():
                return _THREAD
            if any(self._clock[SELDOM::PLACES]):
                return "the dataset asks get_worker_info() for more than None now and then"
            attempt, asked = self._attempt, any(self._clock[ASKED::PLACES])
            unknown = attempt is None or (attempt.untried and not asked)
            why = "" if attempt is None or unknown else attempt.error() or ""
            dataset = None if self._is_map else self._loader().dataset
            if dataset is not None and self._own_workers > 1 and not asked:
                why = "each worker gives all of its iterable dataset, as none is asked who it is"
            elif dataset is not None and internals.as_forked(dataset) is dataset:
                why = _NO_COPY
            return why
        # They may all begin, and end, at once, and take turns on the cores, or a disk, until then.
        longest_s = self._fetch_s * after.workers / max(1, before.workers)
        # The user's own workers, and those that were kept, need no leave to come back.
        too_long = 0 < self._timeout_s < 2 * longest_s and after.workers > max(
            before.workers, self._own_workers, self._control.kept.workers
        )
        # The dataset is sent to each, and the next one waits until it has been read: after imports.
        more = after.workers - max(len(pids), self._own_workers, self._control.kept.workers)
        stop_s = more * self._start_s
        why = ""
        if too_long:
            why = f"a batch may take longer then than the loader's timeout, {self._timeout_s:g} s"
        elif after.pins and not self._pin_alike:
            why = "its batches may come out of pinning otherwise"
        elif stop_s > _ATTEMPTS_S:
            why = (
                f"to start them now would stop the training for {format_duration(stop_s)}; "
                f"try num_workers={after.workers} from its beginning"
            )
        return why or self._budget.refusal(
            self._weighed(before),
            self._weighed(after),
            pids=pids,
            batch_bytes=self._batch_bytes,
            batch_tensors=self._batch_tensors,
        )

    def _weighed(self, setting: Setting) -> Setting:
        """What takes as much memory: pinned, batches may take twice as much."""
        more = self._pins(setting) and not self._own_pins
        return setting._replace(ahead=2 * setting.ahead) if more else setting

    def _pins(self, setting: Setting) -> bool:
        """Whether batches are pinned under a setting, where there is a device."""
        known = [each for each in (setting.pins, self._control.pins) if each is not None]
        return known[0] if known else self._own_pins

    def _may_repin(self, *, later: bool = False) -> bool:
        """Whether it is to be tried what pinning brings: once, and where the user allows it.

        ``later`` asks for an iterator that pins, whose epoch has just begun.
        """
        control = self._control
        tried = any(each.after.pins is not None for each in control.changes)
        if tried or control.by_wait or self.tuning.off or not self._asked:
            return False
        settled = control.settled_s is not None and self._pin_alike and is_in_use()
        return settled or (later and self._own_pins)

    def _offer_pins(self, iterator: Any) -> None:
        # Where each epoch is looked at as one, the next has its own way.
        known = iterator is not None and internals.pinning(iterator) is not None
        free = self.whole_epochs if iterator is None else known
        if free and self._may_repin():
            self._control.repins = not self._pins(self._control.kept)

    def _is_known(self, wanted: Setting, iterator: Any = None) -> bool:
        """Whether it is known if a setting can be had.

        To do without workers that are asked who they are takes an attempt.
        """
        kept = self._control.kept
        asked = any(self._clock[ASKED::PLACES]) and not any(self._clock[SELDOM::PLACES])
        if wanted.workers or not (kept.workers and asked and self._again):
            return True
        return self._attempts(iterator).error() is not None

    def _attempts(self, iterator: Any) -> _Attempt:
        """What sees if a batch can be made without workers, and what it takes; begun by now."""
        if self._attempt is None:
            kept = self._control.kept
            pids = [each.pid for each in internals.workers_of(iterator)]
            more = kept._replace(workers=kept.workers + 1)
            why = ""
            # Tuning is off before the first trial, then.
            with internals.undisturbed(), contextlib.suppress(OSError):
                why = self._budget.refusal(kept, more, pids=pids, batch_bytes=self._batch_bytes)
            self._attempt = _Attempt(self._again, self._context, why)
        return self._attempt

    def _tapped(self, loader: Any, setting: Setting, tap: _Tap) -> Any:
        # Where workers are spared, no batch may draw from the training's random numbers.
        own_in_flight = loader.num_workers * (loader.prefetch_factor or 0)
        alone = not setting.workers and own_in_flight > 0
        tap.loader = loader if alone and self._spares_workers and self._is_map else None
        self._note_files(loader, setting)
        if not setting.workers:
            self._fetch_here()
        wrap = self._keeping() if self.reseeds or alone else None
        # What was tried without is the thread that hands batches on: main would take longer to.
        repins = self._control.pins is False or self._may_repin(later=True)
        with self._as_set(loader, setting, threaded=repins):
            # Without CPU time: a sampler's, as it draws an epoch.
            began_s = time.perf_counter() - time.thread_time()
            iterator = internals.tapped_iterator(loader, tap, wrap, own_in_flight)
        if setting.workers and self._context.get_start_method() != "fork":
            waited_s = time.perf_counter() - time.thread_time() - began_s
            self._start_s = waited_s / setting.workers
        if repins:
            internals.may_unpin(iterator, pins=self._pins(setting))
        return iterator

    def _keeping(self) -> Callable[[Any], Any]:
        """What has a fetcher in the main process leave the training's random numbers alone."""
        return functools.partial(SeededFetcher, kept=self._kept, once=not self.reseeds)

    def _note_files(self, loader: Any, setting: Setting) -> None:
        """Note which files the workers that are to be forked have from here, and where."""
        watches = setting.workers == 1 or (setting.workers and self._spares_workers)
        if watches and self._context.get_start_method() == "fork":
            opened, self._readers = open_files(), setting.workers
            held = holders(loader) if opened else {}
            self._files = tuple(each for each in opened if each.descriptor in held)
            self._places = positions(self._files)

    def _fetch_here(self) -> None:
        """From now on the main process fetches: note what is open by now."""
        if self._before is None:
            self._before = frozenset(open_files())
            _keep_freed()

    def _opened_here(self) -> tuple[OpenFile, ...]:
        """Files that the main process opened, or moved, since it first fetched a batch."""
        before = self._before
        return () if before is None else tuple(each for each in open_files() if each not in before)

    @contextlib.contextmanager
    def _as_set(self, loader: Any, setting: Setting, *, threaded: bool = False) -> Iterator[None]:
        """The loader with another number of workers, while it makes an iterator.

        ``threaded`` says whether it gets a thread that pins, or will.
        """
        pins = bool(threaded and setting.workers) or self._pins(setting)
        given: dict[str, Any] = {
            "num_workers": setting.workers,
            "prefetch_factor": setting.ahead or None,
            **({"pin_memory": pins} if pins != self._own_pins else {}),
        }
        if setting.workers:
            method = self._context.get_start_method()
            parent = 0 if method == "forkserver" else os.getpid()
            given["worker_init_fn"] = ClockedInit(
                loader.worker_init_fn,
                self._clock,
                seeds=self.reseeds,
                parent=parent,
                files=self._opened_here() if method == "fork" else (),
            )
        before = {name: getattr(loader, name) for name in given}
        given = {name: value for name, value in given.items() if value is not before[name]}
        try:
            for name, value in given.items():
                setattr(loader, name, value)
            yield
        finally:
            for name in given:
                if getattr(loader, name) is not before[name]:
                    setattr(loader, name, before[name])

    def seen(self, tap: _Tap, iterator: Any, batch: Any) -> None:
        """A window is full, or it is time to begin one: what comes next."""
        try:
            if tap.counting and self.whole_epochs and not tap.ended:
                self._weigh(iterator, batch)
            else:
                self._seen(tap, iterator, batch)
        except Exception as error:  # whatever fails here must not end a training
            if internals.came_by_signal(error):
                raise
            self.turn_off(f"a fault of dlprof's own: {type(error).__name__}: {error}")
            tap.over = True

    def _seen(self, tap: _Tap, iterator: Any, batch: Any) -> None:
        if self.tuning.off:
            kept = self._control.kept
            steers = self._can_steer(iterator, tap, kept)
            tap.over = not steers or self._go_over(iterator, tap, kept) is not None
            return
        if self._others(tap):
            tap.pause(NS)
            return
        if not (tap.ended or self._control.resting):
            self._weigh(iterator, batch)
        self._offer_pins(iterator)
        if tap.counting:
            window = tap.window()
            tap.pause(0)  # counted once, and as what it was, also where Ctrl-C comes from here on
            self._look(window)
        self._is_known(self._ask.setting, iterator)  # if not now, when the epoch ends
        # Some settings come with the next epoch, and others before.
        while self._can_steer(
            iterator,
            tap,
            wanted := (None if tap.ended else self._ask.within) or self._ask.setting,
        ):
            if not (self._is_known(wanted, iterator) and self._has_turn(wanted)):
                tap.pause(NS)
                return
            why = self._go_over(iterator, tap, wanted)
            if why is None:
                return
            if not why:
                break
            if wanted == self._control.kept:  # there was room for it, and is no more
                self._control.kept = tap.setting
                self.turn_off(why)
                tap.over = True
                return
            self._look(Window(wanted, 0, 0.0, 0.0, refused=why))
        kept = self._control.kept
        may_go_over = kept.workers > 0 or self._control.live
        self._control.live = self._steers and may_go_over and not self.whole_epochs
        tap.begin(self._ask)
        self._report()

    def _look(self, window: Window) -> None:
        began_s = time.perf_counter()
        if began_s > self._cores_until_s:  # a quota may be set
            self._control.cores = usable_cores()
            ended_s = time.perf_counter()
            self._cores_until_s = ended_s + 1000 * (ended_s - began_s)
        with internals.undisturbed():  # Ctrl-C in it would leave no plan to go on with
            self._ask = self._control.look(window)

    def _weigh(self, iterator: Any, batch: Any) -> None:
        """What a batch takes, the largest as they may differ, and what workers do."""
        control = self._control
        waits = control.kept.workers > 0 and control.wait_share > WORTH
        shared_out = self._is_map or any(self._clock[ASKED::PLACES])
        if waits and shared_out and self._spares_workers:
            self._attempts(iterator)
        began_s = time.perf_counter()
        if began_s < self._weighed_until_s:
            return
        if self.waits_for_epochs:  # between them there are none that could be looked at
            self._budget.weigh([each.pid for each in internals.workers_of(iterator)])
        self._batch_bytes = max(1, self._batch_bytes, count_bytes(batch))
        self._pin_alike = self._pin_alike and _pins_alike(batch)
        strategy: str = torch.multiprocessing.get_sharing_strategy()
        if strategy == "file_descriptor":
            self._batch_tensors = max(self._batch_tensors, count_tensors(batch))
        # Of thousands of tensors that takes a while: 0.1% of the time at most.
        ended_s = time.perf_counter()
        self._weighed_until_s = ended_s + 1000 * (ended_s - began_s)

    def _can_steer(self, iterator: Any, tap: _Tap, after: Setting) -> bool:
        """Whether to go over to another setting now, and not with the next epoch."""
        before = tap.setting
        if iterator is None or (
            before == after and internals.pinning(iterator) in {None, self._pins(after)}
        ):
            return False
        if not internals.started_workers(iterator) and tap.loader is None:
            return False
        stays = before.pins != after.pins and internals.pinning(iterator) is None
        return not stays and (self._steers or before.workers == after.workers)

    def _has_turn(self, setting: Setting) -> bool:
        node, control = self._budget.node, self._control
        if node is None or setting == control.kept:
            return True
        try:
            return node.take_turn(control.kept.workers, control.wait_share)
        except OSError as error:
            if internals.came_by_signal(error):
                raise
            self.turn_off(f"the ranks' file can't be used: {error}")
            return False

    def _go_over(self, iterator: Any, tap: _Tap, after: Setting) -> str | None:
        """Have another setting within the epoch; why not, where that can't be.

        ``None`` where some of its workers are still on their way, as all but forked ones are for
        seconds: batches that were ordered from them would hold up all others as long.
        """
        started = internals.started_workers(iterator)
        if after.takes_more_than(tap.setting) or not after.workers:
            pids = [each.pid for each in internals.workers_of(iterator)]
            why = self._refusal(tap.setting, after, pids=pids)
            if why:
                return why
        ready = slice(READY + PLACES * started, READY + PLACES * after.workers, PLACES)
        try:
            for place in range(len(self._clock))[ready]:
                self._clock[place] = 0.0
            if 0 < started < after.workers and self._before is not None:
                internals.init_of(iterator).open_again(self._opened_here())
            if not after.workers:
                self._fetch_here()
            with internals.without_kept_iterator(self._loader()):
                if after.workers and not started:
                    self._note_files(tap.loader, after)
                    with self._making(), self._as_set(tap.loader, after._replace(workers=1)):
                        internals.start_first_worker(iterator, tap.loader, seeded=self.reseeds)
                    started = 1
                for _ in range(started, after.workers):
                    internals.start_worker(iterator, self._context)
        except OSError as error:
            if internals.came_by_signal(error):  # as a TimeoutError of the training's own
                raise
            return f"no more workers could be started: {error.strerror}"
        known = self._clock[READY : PLACES * after.workers : PLACES]
        if self._context.get_start_method() != "fork" and not all(known):
            tap.pause(NS // 10)
            return None
        with internals.undisturbed():
            pins = self._pins(after)
            internals.steer(iterator, after.workers, after.ahead, self._keeping(), pins=pins)
            tap.setting = after
        return ""

    def drawn(self, before: tuple[Any, ...], *, workers: int) -> bool:
        """A batch came; whether it is looked at what random numbers the next takes, too."""
        self._draws -= 1
        if before != streams():
            self._draws = 0
            alone = not workers and not self.reseeds
            # Workers and queues change how far ahead of the training's steps that happens.
            self.turn_off(
                "num_workers=0, and its dataset draws from the training's own random numbers; "
                'reseed="batch" would have it use others'
                if alone
                else "its sampler draws from the training's own random numbers as it goes on; "
                "with a generator of its own it could be tuned"
            )
        return self._draws > 0

    def fetch_s(self) -> tuple[float, float, float]:
        """What a worker took to make a batch since this was last asked.

        And what of that was CPU time, and run-queue delay. All are 0 where none was made.
        """
        places = SECONDS, CPU_SECONDS, DELAY_SECONDS, BATCHES
        now = [math.fsum(self._clock[at::PLACES]) for at in places]
        before, self._clocked = self._clocked, now
        *took, made = (each - its for each, its in zip(now, before, strict=True))
        if made <= 0:
            return 0.0, 0.0, 0.0
        self._fetch_s, cpu_s, delay_s = (each / made for each in took)
        return self._fetch_s, cpu_s, delay_s

    def alone_cpu_s(self) -> float:
        """CPU time of a batch that is made without workers, as was tried; 0 where it wasn't."""
        attempt = self._attempt
        return 0.0 if attempt is None or attempt.error() else attempt.cpu_s

    @property
    def waits_for_epochs(self) -> bool:
        """Whether settings change between epochs only."""
        return not self._control.live

    def renewed(self, tap: _Tap) -> None:
        """An epoch begins: its first batches wait for workers and queues."""
        fill = tap.setting.in_flight + tap.setting.workers
        tap.begin(self._ask._replace(skip=max(self._ask.skip, fill)), fresh=True)

    # Reporting.

    def turn_off(self, why: str, *, level: int = logging.WARNING) -> None:
        """Tune nothing any more; the loader goes on with what it has."""
        if not self.tuning.off:
            self.tuning.off = why
            _LOG.log(level, "dlprof.tune: the loader is not tuned: %s", why)
            self.leave_turn()

    def leave_turn(self) -> None:
        """Let the other ranks try."""
        if self._budget.node is not None:
            with internals.undisturbed(), contextlib.suppress(OSError):
                self._budget.node.end_turn(self._control.kept.workers, self._control.wait_share)

    def _report(self) -> None:
        changes = self.tuning.tried()
        for change in changes[self._said :]:
            _LOG.info("dlprof.tune: %s", ", ".join(_row(change)))
        won = any(each.kept for each in self.tuning.changes[self._said :])
        self._said = len(changes)
        settled = self._control.resting and self._written != len(changes) + 1
        if settled:
            self._written = len(changes) + 1
            self.leave_turn()
        if self._state is not None and (won or settled):  # the job may end before it settles
            when = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
            with internals.undisturbed():
                try:
                    save_kwargs(*self._state, self.tuning.kwargs, when=when)
                except (DlprofError, OSError) as error:
                    _LOG.warning("dlprof.tune: %s", error)
                    self._state = None


class _Tap:
    """Counts the batches of one iterator. The iterator keeps it, and it keeps no iterator.

    ``watching`` says whether to see if the first batches draw random numbers.
    """

    def __init__(self, tuner: _Tuner, setting: Setting, *, watching: bool) -> None:
        self._tuner, self.setting, self._draws = tuner, setting, watching
        self.loader: Any = None  # of an iterator without workers, which may get some
        self._aside = watching  # whether the next batch is looked at in some other way
        self._began = False  # whether a sampler has drawn the seed of its epoch
        # Of CPU time; the least of the latest, since some are larger by chance.
        self._receives_ns: deque[int] = deque(maxlen=9)
        self._held: list[Any] = []  # a batch that came before Ctrl-C did, and wasn't given
        self.over = self.ended = self.counting = self.begun = self._fresh = False
        self._last_ns = time.perf_counter_ns()
        self._ready = 0  # batches that wait to be asked for, when the last window ended
        self.begin(Ask(setting, 0, 1, 0.0))

    def _restart(self, batches: int, until_ns: int) -> None:
        self._count = self._left = batches
        self._until_ns = until_ns
        self._waited_ns = self._stepped_ns = self._longest_ns = 0

    def _has_pause(self) -> bool:
        """Whether a step took as long as all else: a validation or a checkpoint, and none.

        Workers loaded on, so nothing of that window counts. But a loop may have such a step every
        so often, and a step that orders what an accelerator is to do waits for those before it.
        """
        rest_ns = self._waited_ns + self._stepped_ns - self._longest_ns
        lasts = self._longest_ns > rest_ns and self._count - self._left > 3 and not _orders_steps()
        self._tuner.paused = lasts and not self._tuner.paused
        return self._tuner.paused

    def begin(self, ask: Ask, *, fresh: bool = False) -> None:
        """Let batches pass, then count."""
        self._ask, self._fresh = ask, fresh
        self._skipped = self._skipped_ns = 0
        if ask.skip and not self._tuner.whole_epochs:
            self.counting = False
            self._restart(ask.skip, 0)
        else:
            self._count_from_here()

    def _count_from_here(self) -> None:
        self.counting, self._ready_before = True, self._ready
        if self._tuner.whole_epochs:
            self._restart(1, 0)  # batch that is weighed, and then the others of an epoch
        else:
            self._restart(self._ask.batches, self._last_ns + int(self._ask.seconds * NS))

    def pause(self, ns: int) -> None:
        """Look again after some time."""
        self.counting = False
        self._restart(1, self._last_ns + ns)

    def window(self) -> Window:
        """What was counted."""
        fetch_s, cpu_s, delay_s = self._tuner.fetch_s()
        return Window(
            self.setting,
            self._count - self._left,
            self._waited_ns / NS,
            self._stepped_ns / NS,
            self._skipped,
            self._skipped_ns / NS,
            receive_s=min(self._receives_ns, default=0) / NS if self.setting.workers else 0.0,
            fetch_s=fetch_s,
            cpu_s=cpu_s,
            delay_s=delay_s,
            alone_cpu_s=self._tuner.alone_cpu_s(),
            stocked=self._ready - self._ready_before,
        )

    def __call__(self, advance: Callable[[Any], Any], iterator: Any) -> Any:
        """Give the next batch, timed."""
        if self.over:
            return advance(iterator)
        clock = time.perf_counter_ns
        asked_ns = clock()
        try:
            if self._aside:
                return self._looked_at(advance, iterator)
            batch = advance(iterator)
        except StopIteration:
            self._ended(iterator)
            raise
        got_ns = clock()
        stepped_ns = asked_ns - self._last_ns
        self._stepped_ns += stepped_ns
        if stepped_ns > self._longest_ns:  # each batch pays for it
            self._longest_ns = stepped_ns
        self._waited_ns += got_ns - asked_ns
        self._last_ns = got_ns
        self._left -= 1
        if self._left <= 0 and got_ns >= self._until_ns:
            try:
                self._full(iterator, batch)
            except BaseException:  # the next call gives it: a loop may go on after Ctrl-C
                self._held.append(batch)
                self._aside, self.over = True, False
                raise
        return batch

    def _looked_at(self, advance: Callable[[Any], Any], iterator: Any) -> Any:
        """Give the next batch: did it draw random numbers; what does one that is ready take?"""
        if self._held:
            return self._held.pop()
        before = streams() if self._draws and self._began else ()
        # A batch counts as sent before it is, and may not be the next one: what waits computes not.
        began_ns = time.thread_time_ns()
        batch = advance(iterator)
        now_ns = time.thread_time_ns()
        if before:
            self._draws = self._tuner.drawn(before, workers=self.setting.workers)
        elif not self._draws:
            self._receives_ns.append(now_ns - began_ns)
        self._aside, self._began = self._draws, True
        self._last_ns = time.perf_counter_ns()
        return batch

    def _full(self, iterator: Any, batch: Any) -> None:
        if self.counting and self._tuner.whole_epochs and self._count == 1:
            self._tuner.seen(self, iterator, batch)
            self._left = max(1, 2 * int(self._tuner.epoch_batches))
            self._count += self._left
            self._last_ns = time.perf_counter_ns()
            return
        if self.counting:  # timm's and YOLO's loaders have one iterator that never ends
            self._tuner.whole_epochs = False
        self._ready = internals.sent_batches(iterator) or 0
        passed = not self.counting and self._until_ns == 0  # enough were let pass
        paused = (passed or self.counting) and self._has_pause()
        if passed and not (paused or self._fresh):
            self._skipped = self._count
            self._skipped_ns = self._waited_ns + self._stepped_ns
        if passed or paused:
            self._count_from_here()
            return
        self._tuner.seen(self, iterator, batch)
        self._aside = bool(self._draws or self._ready)
        self._last_ns = time.perf_counter_ns()

    def _ended(self, iterator: Any) -> None:
        """The epoch is over: where settings wait for that, what isn't full is a window, too."""
        self.ended, self._ready = True, 0
        enough = self._count > self._left if self._tuner.whole_epochs else self._left <= 0
        if self.counting and enough and self._tuner.waits_for_epochs and not self._has_pause():
            kept = internals.persists(iterator)
            self._tuner.seen(self, iterator if kept else None, None)
        self._tuner.leave_turn()
        self.counting = False

    def renew(self) -> None:
        """The iterator begins an epoch, with the workers that it has."""
        self.begun, self.ended = True, False
        self._held.clear()
        self._last_ns = time.perf_counter_ns()
        self._tuner.renewed(self)


class _Attempt:
    """Whether a batch can be made without workers, and what it takes, as a forked process shows.

    Whatever that does to the dataset, and to random numbers, ends with it. ``again`` makes the
    batch; ``untried`` says why it may not be tried, and is empty where it may.

    Attributes:
        cpu_s: CPU time of a batch; 0 where that isn't known, or not yet.
        fetch_s: All of its time but what it waited for a core.
        batch_bytes: What it takes.
        worker_bytes: What the process took.
    """

    def __init__(
        self,
        again: Callable[[], Any] | None,
        context: Any,
        untried: str,
        *,
        seconds: float = _ATTEMPTS_S,
    ) -> None:
        known = f"there is no room to see if its dataset gives a batch without workers: {untried}"
        self._error = known if untried else None
        self.untried, self.cpu_s, self.fetch_s = untried, 0.0, 0.0
        self.batch_bytes = self.worker_bytes = 0
        if untried:
            return
        self._until_s = time.monotonic() + _ATTEMPT_S
        self._results, results = context.Pipe(duplex=False)
        try:
            with internals.undisturbed():
                given = again, results, seconds
                self._process = context.Process(target=_attempt, args=given, daemon=True)
                self._process.start()
                # Nobody may ask what came of it, and at exit a stopped one is not terminated.
                self._ended = util.Finalize(self, _end, (self._process,), exitpriority=0)
        except OSError as error:
            self._results.close()
            if internals.came_by_signal(error):
                raise
            self._error = f"no process could be started: {error.strerror}"
        finally:
            results.close()

    def error(self, *, wait_s: float = 0.0) -> str | None:
        """Why none could; empty where one could, and ``None`` where that isn't known yet."""
        if self._error is None and (self._results.poll(wait_s) or time.monotonic() > self._until_s):
            with internals.undisturbed():  # Ctrl-C in it would leave half of it to the next call
                self._error = self._result()
        return self._error

    def _result(self) -> str:
        raised = "it takes too long"
        try:
            if self._results.poll():
                raised, self.cpu_s, self.fetch_s, *weights = self._results.recv()
                self.batch_bytes, self.worker_bytes = weights
        except (EOFError, OSError):
            raised = "the process that tried ended"
        self._ended()
        self._results.close()
        del self._process  # and its descriptors
        return raised and f"outside of workers its dataset gives no batch: {raised}"


def _end(process: Any) -> None:
    """End a process by a signal that no training has a handler for."""
    process.kill()
    process.join()


def _is_shared_by_processes(dataset: Any) -> bool:
    """Whether a dataset holds what its processes share, as a count of the samples that are taken.

    What a process that only tries one takes of it, no worker gives.
    """
    return any(
        type(each).__module__.startswith(("multiprocessing", "torch.multiprocessing", "ctypes"))
        or (isinstance(each, torch.Tensor) and each.is_shared())
        for each in own_attributes(dataset).values()
    )


def _by_worker(loader: Any) -> Callable[[], Any]:
    """What makes batches of an iterable dataset as the first worker of a loader does.

    It raises where each worker would give all of the dataset: the more there are, the more samples.
    """
    again: Any = internals.made_first(loader)  # which an iterable dataset has
    shared_out = bool(loader.worker_init_fn) or isinstance(loader.dataset, IterDataPipe)
    asked = [0.0]

    def made() -> Any:
        if get_worker_info() is None:
            sys.dont_write_bytecode = True
            sys.addaudithook(_end_before_others_see)
            notice_asking(internals.become_worker(loader), asked, 0)
        batch = again()
        if not (shared_out or asked[0]):
            raise LookupError("none is asked who it is")
        return batch

    return made


_SEEN_BY_OTHERS = (
    *("socket.connect", "socket.sendto", "socket.sendmsg", "sqlite3.connect"),
    *("fcntl.flock", "fcntl.lockf"),
    *("os.rename", "os.remove", "os.rmdir", "os.mkdir", "os.link", "os.symlink", "os.truncate"),
    *("subprocess.Popen", "os.posix_spawn", "os.system"),
)
"""Events of Python's audit table by which a process may take what others then don't find."""


def _end_before_others_see(event: str, given: tuple[Any, ...]) -> None:
    """Ends the process where a dataset is about to take, or change, what others could miss.

    A sample that a queue gives to a process that only tries, no worker gives.
    """
    writes = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC
    opened = event == "open" and isinstance(given[2], int) and given[2] & writes
    if opened or event in _SEEN_BY_OTHERS:
        os._exit(1)


def _keep_freed() -> None:
    """Have this process's malloc keep what a batch took for the next, up to 64 MB.

    Glibc's gives back to the system what is free at the top of its heap, from twice the largest
    block on that it has mapped and freed, of up to 32 MB. A loader frees about as much with each
    batch: what else lies there, of tuning's as well, decides whether all pages are made again for
    the next, at a multiple of what it takes to collate it. So a block of 32 MB is freed here. It
    changes nothing where the user has set that, nor for other mallocs.
    """
    with contextlib.suppress(RuntimeError):  # addresses may be limited
        # The first may come from what is free in the heap. Pages take memory when written to.
        blocks = [torch.UntypedStorage((32 << 20) - (8 << 10)) for _ in range(4)]
        blocks.clear()


def _attempt(again: Callable[[], Any], results: Any, seconds: float) -> None:
    """A forked process: try to make a batch, say what that raised, or took, and end."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGALRM):  # without the training's ways
        signal.signal(number, signal.SIG_DFL)
    signal.alarm(_ATTEMPT_S)  # its parent may be gone
    said, took_s, weights = "", list[tuple[float, float]](), (0, 0)
    try:
        torch.set_num_threads(1)  # others were not forked
        _keep_freed()  # as the training's process will
        files = open_files()  # workers, and the training, would read where this leaves them
        have_own_positions(files, [[place] for place in range(len(files))])
        cut_off(results.fileno())  # they, too, read what comes by pipes and sockets
        used, until_s = UsedClock(), time.monotonic() + seconds
        while not took_s or (len(took_s) < internals.LATEST and time.monotonic() < until_s):
            began_s = used.read_s(), undelayed_s()
            try:
                batch = again()
            except StopIteration:  # there are no more
                if took_s:
                    break
                raise
            ended_s = used.read_s(ends=True), undelayed_s()
            took_s.append((ended_s[0] - began_s[0], ended_s[1] - began_s[1]))
        own = parse_pss(read_text(Path("/proc/self/smaps_rollup")))
        weights = count_bytes(batch), own or 0
    except BaseException as error:  # whatever a dataset of the user's raises
        said = one_line(error)[:200]
    with contextlib.suppress(OSError):
        # Most cost no more. The first pay for what is opened late, and for memory that is had
        # again later; and a cache has some of them.
        later = zip(*took_s[len(took_s) // 2 :], strict=True)
        medians = (0.0, 0.0) if said else map(statistics.median_low, later)
        results.send((said.encode(errors="replace").decode(), *medians, *weights))
    os._exit(0)


def _orders_steps() -> bool:
    """Whether this process uses an accelerator, or may; nothing is begun by asking."""
    return is_in_use() or torch.backends.mps.is_available()


def _pins_alike(batch: Any) -> bool:
    """Whether torch makes the same of a batch that it pins: of other classes it may not."""
    if isinstance(batch, torch.Tensor):
        where = batch.layout, batch.device.type
        plain = type(batch) is torch.Tensor and where == (torch.strided, "cpu")
        return plain and not batch.requires_grad
    if type(batch) in {dict, list} or (type(batch) is tuple and internals.pins_tuples()):
        return all(map(_pins_alike, batch.values() if type(batch) is dict else batch))
    return batch is None or isinstance(batch, str | bytes | int | float)


def _epoch_batches(loader: Any) -> float:
    """How many batches an epoch has; infinity where nobody says so."""
    back, dataset = rewinder(loader.generator), loader.dataset
    try:
        if isinstance(dataset, IterableDataset):  # torch holds a loader to its length
            return math.ceil(len(loader.dataset) / (loader.batch_size or 1))
        return len(loader)
    except Exception:  # whatever a dataset or a sampler of the user's raises
        return math.inf
    finally:
        back()  # some samplers make up their batches to count them
