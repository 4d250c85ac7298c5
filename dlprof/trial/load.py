"""A load beside a sweep: busy cores, memory traffic and reads, in a process of its own, bounded.

A busy server is tried on a quiet machine that way. The process ends with who started it, whatever
ends that: the kernel says so, its standard input ends, and it has a time limit of its own. What it
writes is one file without a name, which is gone with it.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import hashlib
import math
import mmap
import os
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import NoReturn

from dlprof.errors import FileError, NothingMeasuredError
from dlprof.trial.processes import die_with_parent
from dlprof.trial.protocol import Channel, Message, serve
from dlprof.trial.runtime import Inbox, ModuleProcess

_MIB = 1 << 20
_HASHED = bytes(_MIB // 4)
"""Stays in a core's own cache, and is long enough for the hash to let the interpreter lock go."""

_COPIED, _MOST_COPIERS, _COPIER_BYTES_PER_S = 256 * _MIB, 16, 4e9
"""Memory that is copied to and fro, more than caches hold; threads that copy, and what each can."""

_READ, _AT_ONCE = 256 * _MIB, _MIB


@contextlib.contextmanager
def made_load(
    asked: Mapping[str, float] | None, *, folder: Path, limit_s: float, say: Callable[[str], object]
) -> Iterator[None]:
    """Keep a load going as long as the block lasts, and no longer than ``limit_s``.

    ``asked`` has ``cores``, ``memory`` (bytes/s) and ``reads`` (bytes/s, of the folder's storage),
    those that are wanted; ``say`` is called with what the user should know.
    """
    if not asked:
        yield
        return
    command = [sys.executable, "-m", "dlprof.trial.load"]
    process = ModuleProcess(command, what="the load", inbox=Inbox(), source="load")
    try:
        process.order("load", **asked, folder=str(folder), limit_s=limit_s)
        answer = process.answer(60.0)
        heard = None if answer is None else answer.message
        if heard is None:
            raise NothingMeasuredError(
                "The load of --make-load did not start", hint="Ask for less, or leave it out."
            )
        if heard["event"] == "failed":
            raise FileError(
                f"The load of --make-load can't be made: {heard['message']}",
                hint="Leave reads out, or keep the run file where there is room for 256 MiB.",
            )
        yield
        process.order("report")
        answer = process.answer(3.0)
        made = {} if answer is None or answer.message is None else answer.message
        short = [
            f"{name} reached {made.get(name, 0.0) / value:.0%} of what was asked for"
            for name, value in asked.items()
            if made.get(name, 0.0) < 0.9 * value  # from here on the user is warned
        ]
        if short:
            say(f"the load of --make-load was smaller: {', '.join(short)}")
    finally:
        process.end()


class _Load:
    """The threads that make it, and how much they have made."""

    def __init__(self) -> None:
        self._made: dict[str, dict[int, float]] = {"cores": {}, "memory": {}, "reads": {}}
        self._began_s = time.monotonic()

    def load(
        self,
        *,
        folder: str,
        limit_s: float,
        cores: float = 0.0,
        memory: float = 0.0,
        reads: float = 0.0,
    ) -> Message:
        ended = threading.Timer(limit_s, os._exit, (0,))
        ended.daemon = True
        ended.start()
        if reads:
            file = tempfile.TemporaryFile(dir=folder)  # ends with the process
            for _ in range(_READ // _AT_ONCE):  # no holes, which no storage would be asked for
                file.write(os.urandom(_AT_ONCE))
            file.flush()
            os.fsync(file.fileno())
            self._start("reads", 1, lambda made: _read(file.fileno(), reads, made))
        threads = math.ceil(cores)
        self._start("cores", threads, lambda made: _burn(cores / threads, made))
        copiers = min(_MOST_COPIERS, math.ceil(memory / _COPIER_BYTES_PER_S))
        self._start("memory", copiers, lambda made: _copy(memory / copiers, copiers, made))
        self._began_s = time.monotonic()
        return {"event": "loading"}

    def report(self) -> Message:
        gone_s = max(1e-9, time.monotonic() - self._began_s)
        totals = {name: math.fsum(made.values()) for name, made in self._made.items()}
        return {"event": "made", **{name: made / gone_s for name, made in totals.items()}}

    def _start(self, name: str, count: int, run: Callable[[Callable[[float], None]], None]) -> None:
        """Start threads that do the same; each says with its argument how much it has made."""
        for index in range(count):
            made = functools.partial(self._made[name].__setitem__, index)
            threading.Thread(target=run, args=(made,), daemon=True).start()


def _burn(share: float, made: Callable[[float], None]) -> None:
    while True:
        began_s = time.perf_counter()
        hashlib.sha256(_HASHED)
        made(time.thread_time())
        if share < 1:
            time.sleep((time.perf_counter() - began_s) * (1 - share) / share)


def _copy(bytes_per_s: float, copiers: int, made: Callable[[float], None]) -> None:
    # A whole number of the pieces that are copied at once: beyond it is other memory.
    size = max(16, _COPIED // copiers // 2 // _MIB) * _MIB
    blocks = [mmap.mmap(-1, size) for _ in range(2)]
    one, two = (ctypes.addressof(ctypes.c_char.from_buffer(block)) for block in blocks)

    def copy(done: int) -> int:
        offset = done // 2 % size
        ctypes.memmove(one + offset, two + offset, _AT_ONCE)
        return 2 * _AT_ONCE  # read and written

    _paced(bytes_per_s, copy, made)


def _read(file: int, bytes_per_s: float, made: Callable[[float], None]) -> None:
    advise = getattr(os, "posix_fadvise", lambda *_: None)

    def read(done: int) -> int:
        offset = done % _READ
        advise(file, offset, _AT_ONCE, getattr(os, "POSIX_FADV_DONTNEED", 0))
        return len(os.pread(file, _AT_ONCE, offset))

    _paced(bytes_per_s, read, made)


def _paced(
    bytes_per_s: float, work: Callable[[int], int], made: Callable[[float], None]
) -> NoReturn:
    """Work on, each time for so many bytes after those that are done, and no faster."""
    done, began_s = 0, time.perf_counter()
    while True:
        done += work(done)
        made(done)
        time.sleep(max(0.0, done / bytes_per_s - (time.perf_counter() - began_s)))


def _failed(error: BaseException) -> Message:
    return {"event": "failed", "message": str(error)}


def main() -> None:
    """Serve until standard input ends."""
    die_with_parent()
    made = _Load()
    serve(Channel.of_standard_streams(), {"load": made.load, "report": made.report}, _failed)
    os._exit(0)  # threads go on until then


if __name__ == "__main__":
    main()
