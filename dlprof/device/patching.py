"""What stands in the place of tensors' methods while copies to the device are noticed.

It calls the original with the same arguments, whatever befalls dlprof.
"""

from __future__ import annotations

import contextlib
import functools
import os
import sys
import time
from collections.abc import Callable
from threading import RLock, get_ident
from typing import Any

import torch
from torch.compiler import is_dynamo_compiling

from dlprof.device.moves import Copy, Moves, read_pending, seen
from dlprof.device.runtime import AcceleratorRuntime, current_index

_MOST_PENDING = 512
"""Copies whose end is looked for: devices have only so many events."""

_unseen = torch._C.DisableTorchFunction  # noqa: SLF001 - torch has no public name for it
"""Keeps what is asked of a tensor from its class and from modes: it is no call of the program's."""

_NOTED = (
    ("torch._dynamo.trace_rules", "get_tensor_method"),
    ("torch.overrides", "_get_overridable_functions"),
    ("torch.overrides", "_get_tensor_methods"),
    ("torch.overrides", "get_testing_overrides"),
)
"""Where torch keeps lists of the methods that tensors have."""

CHANGING = RLock()
"""Held while methods are put in place and taken off."""


class Patch:
    """What stands in the place of tensors' methods while any loader's copies are noticed.

    Args:
        kind: Of device.

    Attributes:
        now: The one that is in place.
        holders: Noticers that want it there.
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
                self._leave_uncompiled(mine)
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
        _forget()

    def _leave_uncompiled(self, moved: Any) -> None:
        """Keep torch.compile from it, which tries all that is called by a loop that it gives up."""
        compiler: Any = sys.modules.get("torch._dynamo.eval_frame")
        with contextlib.suppress(AttributeError):  # not loaded, or a torch with other names for it
            skip, default = compiler.FrameAction.SKIP, compiler.FrameAction.DEFAULT
            for each, within in ((moved, default), (self._begun, skip), (self._ended, skip)):
                strategy = compiler.FrameExecStrategy(skip, within)
                compiler.set_code_exec_strategy(each.__code__, strategy)

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
        except Exception:  # noqa: BLE001 - whatever a tensor of the user's own, or a device, answers
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
        if len(seen.pending) >= _MOST_PENDING:
            read_pending()
        if len(seen.pending) >= _MOST_PENDING or _is_captured(self._kind):
            raise RuntimeError
        spare = seen.spare.get(copy.device)
        if spare:
            copy.events = spare.pop()
        else:
            runtime = AcceleratorRuntime(copy.device)
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
            size, pinned = _sent(args[0], result, goes_on=_goes_on(args, kwargs))
            moves.bytes += size
            moves.pinned_bytes += pinned
            seen.pending.append(copy)
            seen.reached.add(copy.device)
        except Exception:  # noqa: BLE001 - as above
            moves.failed = True


def _goes_on(args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    """Whether ``non_blocking`` is given: by its place it is the first of the flags."""
    flags = (each for each in args if isinstance(each, bool))
    return bool(kwargs.get("non_blocking", next(flags, False)))


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


def _forget() -> None:
    """Have torch look again at the methods that tensors have, where it has noted that already."""
    for module, name in _NOTED:
        clear = getattr(getattr(sys.modules.get(module), name, None), "cache_clear", None)
        if clear is not None:
            clear()


def _is_captured(kind: str) -> bool:
    """Whether a CUDA graph is being captured, which other events would break off."""
    return kind == "cuda" and torch.cuda.is_current_stream_capturing()


def _leave_child() -> None:
    """Take it off in a process that was forked meanwhile, such as a worker: nobody asks there."""
    seen.by_thread.clear()
    if Patch.now is not None:
        Patch.now.take_off()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_leave_child)
