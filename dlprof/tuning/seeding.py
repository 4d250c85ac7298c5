"""What workers do beside fetching: seed each batch, whoever makes it, and clock what it takes."""

from __future__ import annotations

import contextlib
import ctypes
import functools
import importlib
import os
import random
import struct
import sys
import time
import weakref
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, cast

import torch
from torch.utils.data import get_worker_info

from dlprof.internals import batch_seed, set_create_fetcher
from dlprof.targets.files import OpenFile, by_position, have_own_positions, open_files
from dlprof.tracing.clocks import ChildrenClock
from dlprof.units import NS

PLACES = 7
"""Figures of each worker that it shares with the main process."""

SECONDS, CPU_SECONDS, DELAY_SECONDS, BATCHES, READY, ASKED, SELDOM = range(PLACES)
"""What its batches took, and of CPU time, and of run-queue delay, how many they were, 1 as soon as
it can make some, how often the dataset or ``collate_fn`` has asked which worker it is in: the main
process has no answer to that, and 1 once some batches but its first have asked and others haven't:
then one that is made shows little of the next."""


class ClockedInit:
    """A ``worker_init_fn`` that calls the user's, and has the worker clock, or seed, each batch.

    The ``clock`` is shared with the main process: the figures of each worker, one after another.
    ``parent`` is the process that starts workers; 0 where a server does. Of ``files`` each worker
    gets positions of its own.
    """

    def __init__(
        self,
        init: Callable[[int], object] | None,
        clock: Any,
        *,
        seeds: bool,
        parent: int,
        files: Sequence[OpenFile] = (),
    ) -> None:
        self._init, self._clock, self._seeds, self._parent = init, clock, seeds, parent
        self.open_again(files)

    def open_again(self, files: Sequence[OpenFile]) -> None:
        """Have workers that are started from now on share no positions in these."""
        self._files, self._groups = files, by_position(files)

    def __call__(self, worker_id: int) -> None:
        """Called in each worker, before it makes its fetcher."""
        place = PLACES * worker_id
        known = place < len(self._clock)
        if self._files:  # as far as they are still open
            opened = {(each.descriptor, each.identity) for each in open_files()}
            there = [(each.descriptor, each.identity) in opened for each in self._files]
            groups = [[place for place in those if there[place]] for those in self._groups]
            have_own_positions(self._files, [those for those in groups if those])
        try:
            if self._init is not None:
                self._init(worker_id)
        finally:  # what it raises comes with the worker's first batch
            if known:
                self._clock[place + READY] = 1.0

        info = get_worker_info()
        # Not as the user's code would: whether that asks is noticed by whoever watches the class.
        dataset = None if info is None else object.__getattribute__(info, "dataset")

        def create(kind: Any, data: Any, *rest: Any) -> Any:
            if self._parent not in {0, os.getppid()}:
                os._exit(1)  # it was killed, and torch would watch whoever is the parent by now
            fetcher = before(kind, data, *rest)
            if data is not dataset:  # of a loader that the user's dataset runs itself
                return fetcher
            seeded = SeededFetcher(fetcher) if self._seeds else fetcher
            return ClockedFetcher(seeded, self._clock, place) if known else seeded

        before = set_create_fetcher(create)
        if known and info is not None:
            notice_asking(info, self._clock, place + ASKED)


def notice_asking(info: Any, clock: Any, at: int) -> None:
    """Count what is read of what ``get_worker_info()`` gives, in this worker."""
    plain: Any = type(info)
    read = plain.__getattribute__

    def noticed(self: Any, name: str) -> Any:
        if not name.startswith("__"):
            clock[at] += 1
        return read(self, name)

    plain.__getattribute__ = noticed


class SeededFetcher:
    """A fetcher of torch's that is sent, with the indices of each batch, of what its seed is made.

    With ``kept`` the random numbers of this process go on afterwards as if nothing had been drawn:
    in the main process they are the training's. With ``once`` only the first batch is seeded, and
    the next go on from there, as in a worker: seeding takes longer than all else here.

    As long as no batch has drawn any, the training's stay in force while one is made. The
    first that draws has those that the training draws next, and all after it have their own.
    """

    def __init__(
        self, fetcher: Any, kept: RandomNumbers | None = None, *, once: bool = False
    ) -> None:
        self._dlprof_fetcher, self._dlprof_kept = fetcher, kept
        self._dlprof_own = RandomNumbers() if once else None

    def fetch(self, seeded: tuple[tuple[int, int, int], Any]) -> Any:
        """Fetch a batch by a random stream of its own."""
        seed, indices = seeded
        kept, own = self._dlprof_kept, self._dlprof_own
        if kept is None:
            _seed_all(batch_seed(*seed))
            return self._dlprof_fetcher.fetch(indices)
        kept.keep()
        if own is not None and kept.drawn is False and kept.are_bytes:
            try:
                return self._dlprof_fetcher.fetch(indices)
            finally:
                if kept.has_changed():
                    kept.drawn = True
                    kept.back()
        try:
            if own is not None and own.are_bytes:
                own.back()
            else:
                _seed_all(batch_seed(*seed))
                if own is not None:
                    own.keep()
            return self._dlprof_fetcher.fetch(indices)
        finally:
            try:
                if own is not None:
                    kept.drawn = kept.drawn or own.has_changed()
                    own.keep()
            finally:  # where Ctrl-C comes now, too
                kept.back()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._dlprof_fetcher, name)


class UsedClock:
    """CPU time of this process, and of child processes as the thread that made it knows them."""

    def __init__(self) -> None:
        self._children = ChildrenClock()
        weakref.finalize(self, self._children.close).atexit = False

    def read_s(self, *, ends: bool = False) -> float:
        """Seconds so far; where what was clocked ``ends``, before the children are looked at."""
        ended_s = time.process_time() if ends else 0.0
        children_ns = self._children.read()
        return (ended_s if ends else time.process_time()) + children_ns / NS


class ClockedFetcher:
    """A fetcher of torch's that adds up what batches take."""

    def __init__(self, fetcher: Any, clock: Any, place: int) -> None:
        self._dlprof_fetcher, self._dlprof_clock, self._dlprof_place = fetcher, clock, place
        self._dlprof_used = UsedClock()
        self._dlprof_schedstat: Any = None
        with contextlib.suppress(OSError):
            schedstat = Path("/proc/thread-self/schedstat")
            self._dlprof_schedstat = schedstat.open("rb", buffering=0)
            weakref.finalize(self, self._dlprof_schedstat.close).atexit = False
        self._dlprof_made, self._dlprof_asks = 0, False

    def _dlprof_delay_s(self) -> float:
        """How long this thread has waited for a core; 0 where that isn't known."""
        try:
            file = self._dlprof_schedstat.fileno()
            return int(os.pread(file, 64, 0).split()[1]) * 1e-9
        except (AttributeError, OSError, IndexError, ValueError):
            return 0.0

    def fetch(self, indices: Any) -> Any:
        """Fetch a batch."""
        clock, place = self._dlprof_clock, self._dlprof_place
        asked, began_s = clock[place + ASKED], time.perf_counter()
        # Within the time of the batch: a thread is often made to wait where a read of it ends.
        began_delay_s, began_cpu_s = self._dlprof_delay_s(), self._dlprof_used.read_s()
        batch = self._dlprof_fetcher.fetch(indices)
        clock[place + CPU_SECONDS] += self._dlprof_used.read_s(ends=True) - began_cpu_s
        clock[place + DELAY_SECONDS] += max(0.0, self._dlprof_delay_s() - began_delay_s)
        clock[place + SECONDS] += time.perf_counter() - began_s
        clock[place + BATCHES] += 1
        before, self._dlprof_asks = self._dlprof_asks, clock[place + ASKED] > asked
        self._dlprof_made += 1
        if self._dlprof_made > 2 and self._dlprof_asks != before:
            clock[place + SELDOM] = 1.0
        return batch

    def __getattr__(self, name: str) -> Any:
        return getattr(self._dlprof_fetcher, name)


def streams() -> tuple[Any, ...]:
    """The state of this process's random numbers: Python's, torch's, and numpy's if it is there."""
    numpy = _numpy()
    state = () if numpy is None else numpy.random.get_state()
    flat = tuple(part if isinstance(part, (int, float, str)) else part.tobytes() for part in state)
    # Torch has no arrays where numpy is missing, or was made for another torch.
    return random.getstate(), bytes(torch.get_rng_state().tolist()), flat


def _seed_all(seed: int) -> None:
    random.seed(seed)
    torch.default_generator.manual_seed(seed)  # no accelerator's: that is the training's
    numpy = _numpy()
    if numpy is not None:
        numpy.random.seed(seed % 2**32)  # which takes no larger ones


def rewinder(generator: torch.Generator | None = None) -> Callable[[], None]:
    """What has this process's random numbers, and a generator's, go on from where they are now."""
    numpy = _numpy()
    python, of_torch = random.getstate(), torch.get_rng_state()
    of_numpy = None if numpy is None else numpy.random.get_state()
    of_generator = None if generator is None else generator.get_state()

    def back() -> None:
        random.setstate(python)
        torch.set_rng_state(of_torch)
        if numpy is not None:
            numpy.random.set_state(of_numpy)
        if generator is not None and of_generator is not None:
            generator.set_state(of_generator)

    return back


_TWISTER_BYTES = 4 * 625
"""Of a Mersenne Twister, Python's as numpy's: 624 words, and which of them is next."""

_HALF_BYTES = 16
"""Of half of a pair of numpy's normal numbers: whether there is one, and which."""


_Place = tuple[int, int, tuple[tuple[int, int], ...]]
"""Where bytes of a generator are, how many, and of them where, and how many, any draw changes."""


class RandomNumbers:
    """The random numbers of this process, while a batch is made by others.

    Before and after each batch numpy takes 70 µs to copy its state, Python 11 µs, and torch 1 µs,
    where a small batch takes 150. So their bytes are copied, if they are where CPython, numpy and
    torch have them, and where they changed: each draw changes which word is next, or all words.

    Attributes:
        are_bytes: Whether some are kept, and as bytes: only these go on under any generator.
        drawn: Whether batches draw any; ``None`` while that isn't known.
    """

    are_bytes = False
    drawn: bool | None = None

    def __init__(self) -> None:
        self._numpy, self._owners = _numpy(), cast(tuple[Any, ...], ())
        self._marks: tuple[Any, ...] = ()

    def _find(self, python: Any) -> None:
        """Where the bytes of Python's generator, of numpy's, and of torch's are."""
        places = list[_Place]()
        self._known = type(python) is random.Random and _python_is_known()
        if self._known:
            marks = (0, 4), (_TWISTER_BYTES - 4, 4)
            places.append((id(python) + object.__basicsize__, _TWISTER_BYTES, marks))
        bits, of_numpy = _places_of(self._numpy)
        self._slow = self._numpy is not None and bits is None
        places += [*of_numpy, *(of_torch := _place_of_torch())]
        self._torch_is_known = bool(of_torch)
        self._arrays = [_bytes_at(at, size) for at, size, _ in places]
        self._few = [_bytes_at(at + by, size) for at, _, marks in places for by, size in marks]

    def _look(self, *, finds: bool) -> tuple[Any, ...]:
        """What is other than it was as soon as some are drawn, if all are bytes."""
        python: Any = getattr(random.random, "__self__", None)
        owners = python, *_owners_of(self._numpy)
        if owners != self._owners:
            if not finds:
                return ()
            self._find(python)
            self._owners = owners
        rest: Any = python.gauss_next if self._known else None
        return owners, rest, [each.raw for each in self._few]

    def has_changed(self) -> bool:
        """Whether some were drawn since they were kept."""
        return not self.are_bytes or self._look(finds=False) != self._marks

    def keep(self) -> None:
        """Those that are in force are kept."""
        marks = self._look(finds=True)
        if self.are_bytes and marks == self._marks:
            return
        self.are_bytes, self._marks = False, marks  # Ctrl-C may come here
        self._rest: Any = marks[1] if self._known else random.getstate()
        self._state: Any = self._numpy.random.get_state(legacy=False) if self._slow else None
        self._torch = None if self._torch_is_known else torch.default_generator.get_state()
        self._bytes = [array.raw for array in self._arrays]
        self.are_bytes = self._known and not self._slow and self._torch_is_known

    def back(self) -> None:
        """They go on."""
        if self._torch is not None:
            torch.default_generator.set_state(self._torch)
        python, of_numpy, _ = self._marks[0]
        if self._known:
            python.gauss_next = self._rest
        else:
            random.setstate(self._rest)
        if of_numpy is not None and self._numpy.random.get_bit_generator() is not of_numpy:
            self._numpy.random.set_bit_generator(of_numpy)  # the dataset took another
        if self._state is not None:
            self._numpy.random.set_state(self._state)
        for array, kept in zip(self._arrays, self._bytes, strict=True):
            array.raw = kept


def _bytes_at(at: int, size: int) -> Any:
    return (ctypes.c_char * size).from_address(at)


@functools.cache
def _python_is_known() -> bool:
    """Whether Python's generators hold their words behind what each object begins with."""
    one = random.Random(0)
    words = struct.unpack("625I", ctypes.string_at(id(one) + object.__basicsize__, _TWISTER_BYTES))
    return bool(one.getstate()[1] == (*words[1:], words[0]))


def _places_of(numpy: Any) -> tuple[Any, tuple[_Place, ...]]:
    """Numpy's global Mersenne Twister, which has to live on, and its bytes.

    ``None`` where there is none, it is another generator, or a numpy that doesn't say.
    """
    bits, state = _owners_of(numpy)
    if type(bits).__name__ != "MT19937" or type(state) is not numpy.random.RandomState:
        return None, ()
    if not (half := _half_of()):
        return None, ()
    twister = bits.ctypes.state_address, _TWISTER_BYTES, ((_TWISTER_BYTES - 8, 8),)
    return bits, (twister, (id(state) + half, _HALF_BYTES, ((0, _HALF_BYTES),)))


def _owners_of(numpy: Any) -> tuple[Any, Any]:
    """Numpy's global generator, and whose it is; ``None`` where that isn't said."""
    if numpy is None:
        return None, None
    get = getattr(numpy.random, "get_bit_generator", None)  # since 1.24
    return get and get(), getattr(numpy.random.random_sample, "__self__", None)


@functools.cache
def _half_of() -> int:
    """Where in numpy's ``RandomState`` half of a pair of normal numbers is; 0 if that isn't known.

    It is there after one was drawn, and before that is whether it is.
    """
    one = importlib.import_module("numpy").random.RandomState(0)
    size = type(one).__basicsize__
    before = ctypes.string_at(id(one), size)
    one.standard_normal()
    after = ctypes.string_at(id(one), size)
    half = struct.pack("d", one.get_state(legacy=False)["gauss"])
    at = after.find(half) - 8
    found = before[at : at + 8] == bytes(8) and after[at : at + 8] == struct.pack("q", 1)
    return at if at > 0 and found and after.count(half) == 1 else 0


@functools.cache
def _place_of_torch() -> tuple[_Place, ...]:
    """The bytes of torch's default generator; empty where that isn't known.

    They are its seed, how many words are left, the words, and halves of pairs of normal numbers.
    """
    one = torch.Generator().manual_seed(7)
    size = 20 + 4 * 624 + 28
    try:
        with Path("/proc/self/mem").open("rb", buffering=0) as memory:
            # Read by the kernel: a wrong address is an error.
            read = functools.partial(os.pread, memory.fileno())
            at, begun = _engine_of(one, read), one.get_state()
            begun_bytes = read(size, at)
            torch.rand(700, generator=one)
            for kind in (torch.float32, torch.float64):  # a half of each is left
                torch.randn(1, generator=one, dtype=kind)
            drawn, drawn_bytes = one.get_state(), read(size, at)
            place = _engine_of(torch.default_generator, read)
    except Exception:  # another torch has other parts
        return ()
    if drawn_bytes[-16:] == begun_bytes[-16:]:  # the halves are elsewhere
        return ()
    for state, its_bytes in ((begun, begun_bytes), (drawn, drawn_bytes)):
        ctypes.memmove(at, its_bytes, size)
        if not torch.equal(one.get_state(), state):
            return ()
    return ((place, size, ((8, 12), (size - 32, 32))),)


def _engine_of(generator: torch.Generator, read: Callable[[int, int], bytes]) -> int:
    """Where a generator of torch's begins to hold its state.

    Raises:
        ValueError: It isn't where its Python object says.
    """
    packed = bytes(generator.get_state().tolist())
    words = struct.pack("624I", *struct.unpack_from("624Q", packed, 24))
    at = int.from_bytes(read(8, id(generator) + object.__basicsize__), sys.byteorder)
    return at + read(4096, at).index(words) - 20


@functools.cache
def _numpy() -> Any:
    """Numpy's module; ``None`` where it isn't installed. Torch loads it in each worker, too."""
    try:
        return importlib.import_module("numpy")
    except ImportError:
        return None
