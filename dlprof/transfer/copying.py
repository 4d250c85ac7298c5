"""Copies of plain buffers to one device, timed: sizes x memories x modes, interleaved."""

from __future__ import annotations

import contextlib
import itertools
import random
import statistics
import time
from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

import torch

from dlprof.device.runtime import EventTimer, Runtime, Spinner, UnavailableError
from dlprof.records.transfer import CopyMode, CopyTime, LinkFit, Memory
from dlprof.stats import median_interval


def line(points: Iterable[tuple[float, float]]) -> tuple[float, float]:
    """``(latency_s, s_per_byte)`` of the line through times of copies.

    Least squares of the *relative* errors, so that the small sizes, which alone show the latency,
    count as much as the large ones. A latency below 0 is none: the line then goes through 0.

    Raises:
        ValueError: There are fewer than two sizes.
    """
    rows = [(1 / seconds, size / seconds) for size, seconds in points]
    aa, bb = sum(a * a for a, _ in rows), sum(b * b for _, b in rows)
    ab, sa, sb = sum(a * b for a, b in rows), sum(a for a, _ in rows), sum(b for _, b in rows)
    determinant = aa * bb - ab * ab
    if determinant <= 1e-12 * aa * bb:
        raise ValueError("a line needs two different sizes")
    latency_s = (sa * bb - sb * ab) / determinant
    if latency_s <= 0:
        return 0.0, sb / bb
    return latency_s, (sb * aa - sa * ab) / determinant


def fit(
    memory: Memory, mode: CopyMode, passes: Sequence[Sequence[tuple[int, float]]]
) -> LinkFit | None:
    """The line of one way to copy, with intervals over passes that each measured all sizes.

    ``None`` with fewer than three sizes, or where no line with a bandwidth fits.
    """
    lines = []
    for points in passes:
        if len({size for size, _ in points}) < 3:
            return None
        latency_s, s_per_byte = line(points)
        if s_per_byte > 0:
            lines.append((latency_s, 1 / s_per_byte))
    if not lines:
        return None
    latency = median_interval([each for each, _ in lines])
    bandwidth = median_interval([each for _, each in lines])
    times: dict[int, list[float]] = {}
    for size, seconds in itertools.chain.from_iterable(passes):
        times.setdefault(size, []).append(seconds)
    errors = [
        (latency.value + size / bandwidth.value) / median_interval(each).value - 1
        for size, each in times.items()
    ]
    return LinkFit(
        memory=memory,
        mode=mode,
        latency_s=latency,
        bytes_per_s=bandwidth,
        worst_error=max(map(abs, errors)),
    )


SIZES = tuple(4096 * 4**power for power in range(9))
"""4 KB to 256 MB."""

MODES: tuple[CopyMode, ...] = ("blocking", "non_blocking", "side_stream")

_Pair = tuple[torch.Tensor, torch.Tensor]


class CopyCell(NamedTuple):
    """What is measured in one go: a size, a memory, a mode."""

    size: int
    memory: Memory
    mode: CopyMode


class Round(NamedTuple):
    """One round of a cell, seconds per copy: on the device, and in the calling thread."""

    device_s: float
    host_s: float


class Buffers:
    """One large buffer per memory, of which smaller copies take one part after another.

    So that small copies, too, find their source in memory and not in a cache.

    Attributes:
        unavailable: Why a memory is missing.
    """

    def __init__(self, runtime: Runtime, size: int) -> None:
        self.unavailable: dict[str, str] = {}
        self._target = torch.empty(size, dtype=torch.uint8, device=runtime.device)
        pageable = torch.ones(size, dtype=torch.uint8)
        self._sources: dict[Memory, torch.Tensor] = {"pageable": pageable}
        try:
            self._sources["pinned"] = runtime.pin(pageable)
        except UnavailableError as reason:
            self.unavailable["pinned"] = str(reason)

    @property
    def memories(self) -> tuple[Memory, ...]:
        """Those that there are."""
        return tuple(self._sources)

    @property
    def size(self) -> int:
        """Bytes of each buffer."""
        return self._target.numel()

    def pairs(self, size: int, memory: Memory, copies: int) -> list[_Pair]:
        """Targets and sources of some copies; they follow each other through the buffers."""
        source, places = self._sources[memory], self.size // size
        starts = [(copy % places) * size for copy in range(copies)]
        return [(self._target[at : at + size], source[at : at + size]) for at in starts]


class Copier:
    """Times rounds of copies to one device."""

    def __init__(self, runtime: Runtime, *, clock: Callable[[], float] = time.perf_counter) -> None:
        self._runtime = runtime
        self._clock = clock
        self._spinner = Spinner(runtime) if runtime.asynchronous else None
        self._side = contextlib.nullcontext()
        self._enqueue_s = 0.0  # what ordering one copy was last seen to take

    def modes(self) -> tuple[tuple[CopyMode, ...], dict[str, str]]:
        """The modes that mean something here, and why others don't."""
        if not self._runtime.asynchronous:
            reason = "copies within the host's memory are done by the calling thread"
            return ("blocking",), {"non_blocking": reason, "side_stream": reason}
        try:
            self._side = self._runtime.stream()
        except UnavailableError as reason:
            return MODES[:2], {"side_stream": str(reason)}
        return MODES, {}

    def round(self, pairs: Sequence[_Pair], memory: Memory, mode: CopyMode) -> Round:
        """Copy all pairs between two events.

        Copies of pinned memory that only are ordered wait behind a spin of the device, so that
        ordering them is not timed. Pageable ones are staged by the calling thread itself, and
        blocking ones are waited for one by one: for those that is part of the time. It always ends
        with an event, because a pageable copy returns when it is staged.
        """
        asynchronous = mode != "blocking"
        with self._side if mode == "side_stream" else contextlib.nullcontext():
            if self._spinner is not None and asynchronous and memory == "pinned":
                wanted_s = 2 * self._enqueue_s * len(pairs)
                self._spinner.spin(min(max(wanted_s, 100e-6), 20e-3))
            with EventTimer(self._runtime) as timer:
                from_s = self._clock()
                for target, source in pairs:
                    target.copy_(source, non_blocking=asynchronous)
                host_s = (self._clock() - from_s) / len(pairs)
            device_s = timer.seconds()
        if asynchronous and memory == "pinned":
            self._enqueue_s = host_s
        # Never 0, however coarse the device's clock is: bandwidths are made of it.
        return Round(max(1e-9, device_s) / len(pairs), host_s)


def copies_per_round(size: int) -> int:
    """Copies between two events: enough to be timed well, and no more than that takes."""
    return min(100, max(1, (32 << 20) // size))


def measure_copies(
    copier: Copier,
    buffers: Buffers,
    *,
    budget_s: float,
    sizes: Iterable[int] = SIZES,
    seed: int = 0,
    clock: Callable[[], float] = time.perf_counter,
) -> tuple[tuple[CopyTime, ...], tuple[LinkFit, ...], dict[str, str]]:
    """Time all cells in random order, pass after pass.

    Returns:
        Each cell's median, a line for each memory and mode, and why some of those are missing.
    """
    modes, missing = copier.modes()
    kept = [size for size in sizes if size <= buffers.size]
    cells = [
        CopyCell(size, memory, mode)
        for size, memory, mode in itertools.product(kept, buffers.memories, modes)
    ]
    passes: list[dict[CopyCell, Round]] = []
    began_s = clock()
    generator = random.Random(seed)
    for number in itertools.count():
        found = {
            cell: copier.round(
                buffers.pairs(cell.size, cell.memory, copies_per_round(cell.size)),
                cell.memory,
                cell.mode,
            )
            for cell in generator.sample(cells, len(cells))
        }
        if number:  # the first only warms up: pages are touched, the driver sets up
            passes.append(found)
        if len(passes) >= 30:
            break
        # The fewest rounds whose median has an interval of 95 %.
        if len(passes) >= 6 and clock() - began_s > budget_s:
            break
    times = []
    for cell in cells:
        rounds = [found[cell] for found in passes]
        time_s = median_interval([each.device_s for each in rounds])
        times.append(
            CopyTime(
                bytes=cell.size,
                memory=cell.memory,
                mode=cell.mode,
                time_s=time_s,
                bytes_per_s=cell.size / time_s.value,
                host_s=statistics.median(each.host_s for each in rounds),
                copies=copies_per_round(cell.size),
                rounds=len(rounds),
            )
        )
    fits = []
    for way in dict.fromkeys((cell.memory, cell.mode) for cell in cells):
        own = [cell for cell in cells if (cell.memory, cell.mode) == way]
        points = [[(cell.size, found[cell].device_s) for cell in own] for found in passes]
        fits.append(fit(*way, points))
    return tuple(times), tuple(filter(None, fits)), {**buffers.unavailable, **missing}
