"""Copies to the device that a program makes by itself, noticed between two batches of a loader.

``Tensor.to`` and its like are replaced while somebody looks, and only then. What stands in their
place calls the original with the same arguments, whatever befalls dlprof.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import os
import sys
import time
from collections.abc import Callable, Mapping
from threading import Lock, RLock, get_ident
from typing import Any

import torch
from torch.compiler import is_dynamo_compiling

from dlprof.device.runtime import Event, Runtime, current_index

_unseen = torch._C.DisableTorchFunction  # torch has no public name for it
"""Keeps what is asked of a tensor from its class and from modes: it is no call of the program's."""

_NOTED = (
    ("torch._dynamo.trace_rules", "get_tensor_method"),
    ("torch.overrides", "_get_overridable_functions"),
    ("torch.overrides", "_get_tensor_methods"),
    ("torch.overrides", "get_testing_overrides"),
)
"""Where torch keeps lists of the methods that tensors have."""

CHANGING = RLock()  # held while methods are put in place and taken off


class Patch:
    """What is in the place of tensors' methods while it has holders: loaders whose copies count.

    ``now`` is the one that is in place.
    """

    now: Patch | None = None

    def __init__(self, kind: str) -> None:
        self._kind = kind
        self.holders = 0
        self._put: list[tuple[str, Any, Any]] = []
        for name in ("to", kind):
            method = getattr(torch.Tensor, name, None)
            if callable(method):
                mine = self._around(method, name)
                self._put.append((name, vars(torch.Tensor).get(name), mine))
                # Keep torch.compile from it, which tries all that is called by a
                # loop that it gives up.
                compiler: Any = sys.modules.get("torch._dynamo.eval_frame")
                # It isn't loaded, or this torch has other names for it.
                with contextlib.suppress(AttributeError):
                    skip, default = compiler.FrameAction.SKIP, compiler.FrameAction.DEFAULT
                    for each, within in ((mine, default), (self._begun, skip), (self._ended, skip)):
                        strategy = compiler.FrameExecStrategy(skip, within)
                        compiler.set_code_exec_strategy(each.__code__, strategy)
                setattr(torch.Tensor, name, mine)

    @classmethod
    def held(cls, kind: str) -> Patch:
        """The one that is there, or a new one; ``let_go`` of it."""
        with CHANGING:
            patch = cls.now = cls.now or cls(kind)
            patch.holders += 1
        return patch

    def let_go(self) -> None:
        """The last one takes it off."""
        with CHANGING:
            self.holders -= 1
            if not self.holders:
                self.take_off()

    def take_off(self) -> None:
        """Put back what stood there, but where somebody else has put something over it."""
        if Patch.now is self:
            Patch.now = None
        for name, before, mine in self._put:
            if vars(torch.Tensor).get(name) is not mine:
                continue
            if before is None:
                delattr(torch.Tensor, name)  # a base class has it
            else:
                setattr(torch.Tensor, name, before)
        # Have torch look again at the methods that tensors have, where it has noted them already.
        for module, name in _NOTED:
            clear = getattr(getattr(sys.modules.get(module), name, None), "cache_clear", None)
            if clear is not None:
                clear()

    def _around(self, method: Callable[..., Any], name: str) -> Callable[..., Any]:
        @functools.wraps(method)
        def moved(*args: Any, **kwargs: Any) -> Any:
            if is_dynamo_compiling():  # it knows the method of a tensor, and nothing in its place
                return getattr(args[0], name)(*args[1:], **kwargs)
            moves = seen.by_thread.get(get_ident()) if self.holders else None
            copy = None
            if moves is not None:
                with _unseen():
                    copy = self._begun(moves, name, args, kwargs)
            if copy is None:
                return method(*args, **kwargs)
            copy.moves.busy, began_s = True, time.perf_counter()
            try:
                result = method(*args, **kwargs)
            finally:
                copy.moves.busy = False
            copy.host_s = time.perf_counter() - began_s
            with _unseen():
                self._ended(copy, args, kwargs, result)
            return result

        moved.__module__, moved.__qualname__ = "torch", f"Tensor.{name}"  # as it is pickled
        return moved

    def _begun(
        self, moves: Moves, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Copy | None:
        """A copy of a tensor of the CPU's to the device; ``None`` for any other call."""
        try:
            if moves.failed or moves.busy or not args[0].is_cpu:
                return None
            given = args[1] if len(args) > 1 else kwargs.get("tensor")
            device = _device(kwargs.get("device", given))
            if device is None and name == self._kind:
                device = torch.device(self._kind)
            if device is None or device.type != self._kind:
                return None
            copy = Copy(moves, device)
            moves.pending += 1
            self._mark(copy)
        except Exception:  # whatever a tensor of the user's own, or a device, answers
            moves.failed = True
            return None
        return copy

    def _mark(self, copy: Copy) -> None:
        """Put an event before it, where its device has been reached already."""
        if torch._C._len_torch_dispatch_stack():  # noqa: SLF001 - as of _unseen
            raise RuntimeError  # a mode is shown each operation, and would be shown dlprof's
        if not seen.reached:
            return
        copy.device = self._numbered(copy.device)
        if copy.device not in seen.reached:
            return
        if len(seen.pending) >= 512:  # devices have only so many events
            read_pending()
        # Other events would break off a CUDA graph that is being captured.
        captured = self._kind == "cuda" and torch.cuda.is_current_stream_capturing()
        if len(seen.pending) >= 512 or captured:
            raise RuntimeError
        spare = seen.spare.get(copy.device)
        if spare:
            copy.events = spare.pop()
        else:
            runtime = Runtime(copy.device)
            copy.events = runtime.event(), runtime.event()
        copy.stream = stream = torch.accelerator.current_stream(copy.device)
        copy.exposed = copy.moves.streams.get(copy.device, stream) == stream
        copy.events[0].record(stream)

    def _numbered(self, device: torch.device) -> torch.device:
        """The device by its index; a name without one means the current device."""
        if device.index is not None:
            return device
        return torch.device(self._kind, current_index())

    def _ended(
        self, copy: Copy, args: tuple[Any, ...], kwargs: dict[str, Any], result: torch.Tensor
    ) -> None:
        """Count a copy whose call has returned, once the device has done it."""
        moves = copy.moves
        try:
            if copy.events is not None:
                copy.events[1].record(copy.stream)
            moves.device = copy.device = self._numbered(copy.device)
            # By its place ``non_blocking`` is the first of the flags.
            flags = (each for each in args if isinstance(each, bool))
            goes_on = bool(kwargs.get("non_blocking", next(flags, False)))
            size, pinned = _sent(args[0], result, goes_on=goes_on)
            moves.bytes += size
            moves.pinned_bytes += pinned
            seen.pending.append(copy)
            seen.reached.add(copy.device)
        except Exception:
            moves.failed = True


def _sent(tensor: torch.Tensor, result: torch.Tensor, *, goes_on: bool) -> tuple[int, int]:
    """Bytes that go over, and those of them from page-locked memory.

    What torch converts before a copy that blocks, or gathers because it has gaps, goes over from
    memory of torch's own, which is pageable.
    """
    is_converted = result.dtype != tensor.dtype and not goes_on
    size = result.nbytes if is_converted else tensor.nbytes
    is_gathered = tensor.layout is torch.strided and result.stride() != tensor.stride()
    return size, 0 if is_converted or is_gathered or not tensor.is_pinned() else size


def _device(given: Any) -> torch.device | None:
    """The device that an argument of a method's names; ``None`` for what names none."""
    if isinstance(given, torch.device):
        return given
    if isinstance(given, torch.Tensor):
        return given.device
    is_name = isinstance(given, (str, int)) and not isinstance(given, bool)
    return torch.device(given) if is_name else None


def _leave_child() -> None:
    """Take it off in a process that was forked meanwhile, such as a worker: nobody asks there.

    What another thread held at that moment is held by nobody here, and would be for ever.
    """
    locks: tuple[Any, ...] = (CHANGING, _reading)
    for lock in locks:
        lock._at_fork_reinit()  # noqa: SLF001 - as Python's own modules do it
    seen.by_thread.clear()
    if Patch.now is not None:
        Patch.now.take_off()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_leave_child)


@dataclasses.dataclass(slots=True)
class Moves:
    """What was copied from a batch's coming until the next was asked for."""

    # The last that was copied to; ``None`` where nothing was copied.
    device: torch.device | None = None
    bytes: int = 0
    pinned_bytes: int = 0
    # Seconds on the device; those of the calling thread where there are no events.
    copy_s: float = 0.0
    exposed_s: float = 0.0  # the part on the stream that the loop works on, which waits for it
    # Seconds in which a copy held the calling thread up; its waiting for work that was ordered
    # before isn't the copy's.
    blocked_s: float = 0.0
    pending: int = 0  # copies that the device has not been seen to end
    failed: bool = False
    # Whether a copy is being ordered: what its call does within itself is no copy more.
    busy: bool = False
    # Where the loop's work went when the batch came, by device that it had reached.
    streams: Mapping[torch.device, Any] = dataclasses.field(default_factory=dict)


@dataclasses.dataclass(slots=True, eq=False)
class Copy:
    """A copy on its way to a device, of the batch of ``moves``.

    Without ``events`` before and after it, what the call took (``host_s``) has to do. It is
    ``exposed`` where the loop's own stream waits for it.
    """

    moves: Moves
    device: torch.device
    stream: Any = None
    events: tuple[Event, Event] | None = None
    exposed: bool = True
    host_s: float = 0.0

    def is_over(self) -> bool:
        """Whether the device has come to its end, which is then counted; never waits."""
        moves = self.moves
        try:
            if self.events is not None and not self.events[1].query():
                return False
            took_s = self.host_s
            if self.events is not None:
                took_s = self.events[0].elapsed_time(self.events[1]) / 1e3
                seen.spare.setdefault(self.device, []).append(self.events)
            moves.copy_s += took_s
            moves.exposed_s += took_s if self.exposed else 0.0
            moves.blocked_s += min(took_s, self.host_s)
        except Exception:  # a device that refuses; its batch is left out
            moves.failed = True
        moves.pending -= 1
        return True


@dataclasses.dataclass(slots=True)
class CopyRegistry:
    """What is known of this process's copies.

    ``by_thread`` is the batch that each thread works on, ``spare`` are pairs of events that can be
    used again. No other device than those that the program was seen to reach may dlprof wake.
    """

    by_thread: dict[int, Moves] = dataclasses.field(default_factory=dict)
    pending: list[Copy] = dataclasses.field(default_factory=list)
    spare: dict[torch.device, list[tuple[Event, Event]]] = dataclasses.field(default_factory=dict)
    reached: set[torch.device] = dataclasses.field(default_factory=set)


seen = CopyRegistry()
_reading = Lock()


def read_pending() -> None:
    """Count copies that have ended."""
    if not seen.pending or not _reading.acquire(blocking=False):
        return
    try:
        for each in list(seen.pending):
            if each.is_over():
                seen.pending.remove(each)
    finally:
        _reading.release()


class Noticer:
    """Notices what the consumers of one loader copy, for its first batches or seconds.

    The kind of the device is from ``compiled_for``; the seconds count from the first batch on.
    """

    def __init__(self, kind: str, *, batches: int, seconds: float) -> None:
        self.over = False
        self._kind = kind
        self._left, self._seconds, self._ends_s = batches, seconds, 0.0
        self._open: dict[int, Moves] = {}
        self._done: list[Moves] = []
        self._patch: Patch | None = None

    def asked(self) -> None:
        """This thread asks for a batch: it is done with the one before."""
        moves = self._close(get_ident())
        if moves is None:
            return
        read_pending()
        self._done.append(moves)
        self._left -= 1
        if self._left <= 0 or time.perf_counter() >= self._ends_s:
            self.over = True
            self.pause()

    def came(self) -> None:
        """This thread has its batch, and may copy it from now on."""
        if self.over:
            return
        try:
            self._ends_s = self._ends_s or time.perf_counter() + self._seconds
            with CHANGING:  # once for all threads that share the loader
                if self._patch is None and not self.over:
                    self._patch = Patch.held(self._kind)
            thread = get_ident()
            moves = seen.by_thread.get(thread)
            if moves is None or moves.pending or moves.bytes:
                stream = torch.accelerator.current_stream
                moves = Moves(streams={each: stream(each) for each in list(seen.reached)})
            # Else it is the same batch, on its way through a loader that wraps another.
            seen.by_thread[thread] = self._open[thread] = moves
        except Exception:  # a training must not end by being watched
            self.over = True
            self.pause()

    def pause(self) -> None:
        """Its iterator ended or was let go of: notice nothing before another batch comes."""
        for thread in list(self._open):
            self._close(thread)
        with CHANGING:
            patch, self._patch = self._patch, None
            if patch is not None:
                patch.let_go()

    def moves(self, first: int) -> list[Moves]:
        """Batches whose copies have all ended and were timed; none where nothing was copied.

        The first few are left out; of few batches, only the very first.
        """
        read_pending()
        begin = first if len(self._done) > 2 * first else 1
        timed = [each for each in self._done[begin:] if not each.pending and not each.failed]
        return timed if any(each.bytes for each in timed) else []

    def has_failed(self) -> bool:
        """Whether copies of some batch could not be timed."""
        return any(each.failed for each in self._done)

    def _close(self, thread: int) -> Moves | None:
        moves = self._open.pop(thread, None)
        if moves is not None and seen.by_thread.get(thread) is moves:
            del seen.by_thread[thread]
        return moves


def compiled_for() -> str | None:
    """The kind of accelerator that this torch is made for; ``None`` for none.

    Whether one is there isn't asked: on CUDA that alone keeps processes forked later from it.
    Apple's isn't named: to read an event there is to wait for all that was ordered of the device.
    """
    try:
        found = torch.accelerator.current_accelerator()
    except RuntimeError:  # a torch that is made for two kinds
        return None
    return None if found is None or found.type == "mps" else found.type
