"""The consumer that copies each batch to the device as a training loop does it, and times that.

It also reports what the thread that pins batches uses.

Only every few batches are timed, by device events: those cost microseconds each. The consuming
thread's own clock is read around every copy.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
import time
from collections import deque
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dlprof.device.moving import move, tensors_of
from dlprof.device.runtime import (
    Event,
    EventTimer,
    Runtime,
    Spinner,
    UnavailableError,
    current_index,
    find_accelerator,
    held_bytes,
    identity,
    open_runtime,
    pinned_memory,
)
from dlprof.errors import TargetError
from dlprof.internals import PIN_THREAD
from dlprof.records import Copies, PinCosts
from dlprof.trial.measure import Consumer, make_consumer, steps_of
from dlprof.trial.protocol import TrialRequest

if TYPE_CHECKING:
    from dlprof.machine.procfs import SchedStat


_EVERY = 4  # every so many batches are timed, and ever fewer in a long window


Window = Callable[[str, float], object]  # called at the window's ends; see ``Measurement.run``


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """What is done with a batch on the device."""

    work: Consumer  # called with the batch
    # Whether it begins when the batch has come, as a pretended step does that sleeps.
    waits: bool = False
    # Whether it returns before its work is done and nobody else holds it up.
    runs_ahead: bool = False


@dataclasses.dataclass(slots=True, kw_only=True)
class _Flight:
    """A batch on its way; sizes and marks are of one that is timed."""

    batch: Any
    timed: bool = False
    bytes: int = 0
    pinned_bytes: int = 0
    timer: EventTimer | None = None
    blocked_s: float = 0.0
    waited_s: float = 0.0  # by the consuming thread, for the copy's end
    exposed_s: float | None = None
    ready: Event | None = None  # on the compute stream: where the step could begin but for the copy
    arrived: Event | None = None
    used: bool = False  # a batch that nobody worked on yet exposed nothing

    def copy_s(self) -> float:
        """On the device."""
        return 0.0 if self.timer is None else self.timer.seconds()

    def is_done(self) -> bool:
        return self.used and self.timer is not None and self.timer.is_over()

    def exposed(self) -> float:
        """As the consuming thread saw it, or else as the device did."""
        if self.exposed_s is not None:
            return self.exposed_s
        if self.ready is None or self.arrived is None:
            return self.copy_s()
        return self.ready.elapsed_time(self.arrived) / 1e3


class DeviceCopier:
    """A consumer that copies each batch to the device first."""

    def __init__(
        self,
        runtime: Runtime,  # the device
        step: Step,  # what is done with the batch there
        *,
        ahead: bool = False,  # copy on a side stream while the batch before is worked on
        # Whether the configuration pins batches; what that costs is then looked at, too.
        pins: bool = False,
        clock: Callable[[], float] = time.perf_counter,  # monotonic seconds
    ) -> None:
        self._runtime = runtime
        self._step = step
        self._clock = clock
        self._side: Any = None
        if ahead:
            try:
                self._side = runtime.stream()
            except UnavailableError as reason:
                raise TargetError(
                    f"--copy-ahead can't be used here: {reason}.", hint="Leave it out."
                ) from None
        self._waiting: _Flight | None = None
        self._under_way: deque[Event] = deque()
        self._count = 0
        self._first = self._last = 0
        self._samples: list[_Flight] = []
        self._every = _EVERY
        self._pins = pins
        self._threads = pin_threads() if pins else None
        self._pin: PinCosts | None = None

    def __call__(self, batch: Any) -> None:
        """Copy a batch, and do the step with it, or with the one before."""
        flight = self._taken(batch)
        # Mark on the compute stream when it could go on with the batch that was sent before.
        # Before the next one is sent: ordering that, or staging it, may delay the step too.
        if self._waiting is not None and self._waiting.timed:
            self._waiting.ready = self._runtime.event()
            self._waiting.ready.record(self._runtime.current())
        from_s = self._clock()
        self._send(flight)
        flight.blocked_s = self._clock() - from_s
        self._count += 1
        if self._side is not None:
            flight, self._waiting = self._waiting or flight, flight
            if flight is self._waiting:
                return  # the very first: there is nothing to work on yet
        self._arrive(flight, from_s)
        flight.used = True
        self._step.work(flight.batch)
        flight.batch = None
        if self._step.runs_ahead:
            # Wait for the work of two batches ago, as a loop does that reads its loss.
            done = self._runtime.event()
            done.record(self._runtime.current())
            self._under_way.append(done)
            if len(self._under_way) > 2:
                self._under_way.popleft().synchronize()

    def window(self, inner: Window) -> Window:
        """Note the window's edges, and look at the thread that pins just within them."""

        def edge(name: str, fill_s: float) -> None:
            if name == "end":
                self._runtime.synchronize()
                self._last = self._count
                if self._pins:
                    memory = pinned_memory(self._runtime)
                    self._pin = pin_costs(self._threads, pin_threads(), self.batches, memory)
            inner(name, fill_s)
            if name == "start":
                self._threads = pin_threads() if self._pins else None
                self._first, self._samples, self._every = self._count, [], _EVERY

        return edge

    def to_record(self) -> Copies:
        """What the copies of the window cost."""
        held = held_bytes(self._runtime)
        reasons = {} if held is not None else {"held_bytes": "torch doesn't report it"}
        record = Copies(
            device=str(self._runtime.device),
            uuid=identity(self._runtime)[1],
            held_bytes=held,
            batches=self.batches,
            prefetched=self._side is not None,
            pin=self._pin,
            unavailable=reasons,
        )
        samples = self._done()
        count = len(samples)
        if not count:
            names = ("bytes", "copy_s", "exposed_s", "hidden_s", "blocked_s", "pinned_fraction")
            untimed = dict.fromkeys(names, "no batch was timed in the window")
            return dataclasses.replace(record, unavailable={**untimed, **reasons})
        size = sum(sample.bytes for sample in samples)
        copy_s = sum(sample.copy_s() for sample in samples) / count
        exposed_s = sum(self.exposed_times()) / count
        if not size:
            why = "no tensor was found in a batch, which may be an object that keeps them to itself"
            reasons |= dict.fromkeys(("bytes", "pinned_fraction"), why)
        return dataclasses.replace(
            record,
            timed=count,
            bytes=size / count if size else None,
            copy_s=copy_s,
            exposed_s=exposed_s,
            hidden_s=max(0.0, copy_s - exposed_s),
            blocked_s=sum(sample.blocked_s for sample in samples) / count,
            pinned_fraction=sum(s.pinned_bytes for s in samples) / size if size else None,
            unavailable=reasons,
        )

    def exposed_times(self) -> list[float]:
        """Seconds in which the step had to wait for the copy, of each timed batch."""
        return [sample.exposed() for sample in self._done()]

    def held_s(self) -> float:
        """Mean seconds in which a copy held the consuming thread up, in the call or after it."""
        samples = self._done()
        held_s = sum(sample.blocked_s + sample.waited_s for sample in samples)
        return held_s / len(samples) if samples else 0.0

    def _done(self) -> list[_Flight]:
        """The timed batches of the window that have come and were worked on."""
        return [sample for sample in self._samples if sample.is_done()]

    @property
    def batches(self) -> int:
        """Batches copied in the window."""
        return max(0, self._last - self._first)

    def _taken(self, batch: Any) -> _Flight:
        """A batch, with its size if it is one of those that are timed."""
        flight = _Flight(batch=batch)
        if self._count % self._every:
            return flight
        # Devices have only so many events.
        if len(self._samples) >= 512:
            self._samples, self._every = self._samples[::2], 2 * self._every
        tensors = [tensor for _, tensor in tensors_of(batch, inside=True)]
        flight.timed, flight.bytes = True, sum(tensor.nbytes for tensor in tensors)
        flight.pinned_bytes = sum(tensor.nbytes for tensor in tensors if tensor.is_pinned())
        self._samples.append(flight)
        return flight

    def _send(self, flight: _Flight) -> None:
        """Order the copy; events only where somebody asks for them."""
        if not flight.timed and not self._step.waits and self._side is None:
            flight.batch = move(flight.batch, self._runtime.device)
            return
        side = contextlib.nullcontext() if self._side is None else self._side
        with side, EventTimer(self._runtime) as flight.timer:
            flight.batch = move(flight.batch, self._runtime.device)

    def _arrive(self, flight: _Flight, from_s: float) -> None:
        """Make the step wait for its batch: the device, or this thread where the step is its own.

        But for the copy the step could have begun at ``from_s``.
        """
        if flight.timer is None:
            return
        if self._side is not None:
            # The compute stream waits for the side stream, and uses its memory.
            stream = self._runtime.current()
            stream.wait_event(flight.timer.ended)
            if flight.timed:
                flight.arrived = self._runtime.event()
                flight.arrived.record(stream)
            for _, tensor in tensors_of(flight.batch, inside=True):
                if tensor.device == self._runtime.device:
                    tensor.record_stream(stream)
        if self._step.waits:
            began_s = self._clock()
            flight.timer.ended.synchronize()
            ended_s = self._clock()
            flight.waited_s, flight.exposed_s = ended_s - began_s, ended_s - from_s


def pin_threads(proc: Path = Path("/proc/self")) -> dict[int, SchedStat] | None:
    """The threads of this process that pin, by their ids; ``None`` where that isn't known."""
    # Where a trial pins only: importing the room takes as long as a trial takes to start.
    from dlprof.machine.procfs import list_names, parse_schedstat, read_text

    found: dict[int, SchedStat] = {}
    for name in list_names(proc / "task"):
        task = proc / "task" / name
        if read_text(task / "comm").strip() != PIN_THREAD:
            continue
        times = parse_schedstat(read_text(task / "schedstat"))
        if times is None:
            return None
        found[int(name)] = times
    return found


def pin_costs(
    before: Mapping[int, SchedStat] | None,
    after: Mapping[int, SchedStat] | None,
    batches: int,
    memory: Mapping[str, Any],
) -> PinCosts:
    """What pinning cost in a window, from its threads before and after it.

    One that began within it counts from its start. ``memory`` is torch's ``host_memory_stats()``,
    and empty where there is none.
    """
    why, cpu_s, wait_s = "", None, None
    if before is None or after is None:
        why = "the kernel reports no CPU and run-queue time of threads here"
    elif before.keys() - after.keys():
        why = "the thread ended with an epoch, and what it had used is not known any more"
    elif not after or not batches:
        why = "no thread of this name runs: without workers the caller pins, in next()"
    else:
        early, late = before.values(), after.values()
        cpu_s = (sum(t.run_ns for t in late) - sum(t.run_ns for t in early)) / 1e9 / batches
        wait_s = (sum(t.wait_ns for t in late) - sum(t.wait_ns for t in early)) / 1e9 / batches
    reasons = dict.fromkeys(("thread_cpu_s", "thread_run_queue_s"), why) if why else {}
    if not memory:
        why = "torch reports page-locked memory on CUDA only"
        reasons |= dict.fromkeys(("pinned_bytes", "alloc_s", "allocations"), why)
    alloc_us = memory.get("host_alloc_time.total")
    return PinCosts(
        thread_cpu_s=cpu_s,
        thread_run_queue_s=wait_s,
        pinned_bytes=_whole(memory.get("allocated_bytes.current")),
        alloc_s=None if alloc_us is None else float(alloc_us) / 1e6,
        allocations=_whole(memory.get("num_host_alloc")),
        unavailable=reasons,
    )


def _whole(value: object) -> int | None:
    return int(value) if isinstance(value, int | float) else None


def open_device(name: str) -> Runtime | None:
    """The device, by torch's name or ``auto``, that batches go to; ``None`` for the CPU.

    Each rank has its own, by ``LOCAL_RANK`` as trainings choose it, where neither the name nor the
    target's code chooses one.
    """
    import torch  # only in a trial's process

    wanted = find_accelerator() if name == "auto" else name
    if wanted is None or wanted.partition(":")[0] == "cpu":
        return None
    rank, count = os.environ.get("LOCAL_RANK", ""), torch.accelerator.device_count()
    if rank.isdecimal() and count > 1 and ":" not in wanted and current_index() == 0:
        wanted = f"{wanted}:{int(rank) % count}"
    try:
        return open_runtime(wanted)
    except UnavailableError as reason:
        raise TargetError(
            f"Batches can't be copied to {name}: {reason}.",
            hint="Leave --device out, or name a device that torch finds.",
        ) from None


def make_copier(request: TrialRequest, directory: Path | None = None) -> DeviceCopier | None:
    """What copies batches and then does the step; ``None`` where batches stay on the CPU.

    ``directory`` is as of ``make_consumer``.
    """
    runtime = open_device(request.device)
    if runtime is None:
        return None
    if request.step_callable is not None:
        # It may only order its work, as a training step does that doesn't read its loss.
        work = make_consumer(0.0, request.step_callable, "", directory)
        step = Step(work=work, runs_ahead=True)
    elif request.step_s > 0 and request.step_on == "device":
        spinner, steps = Spinner(runtime), steps_of(request.step_s, request.step_spread)
        step = Step(work=lambda _batch: spinner.spin(next(steps)), runs_ahead=True)
    else:
        step = Step(
            work=make_consumer(request.step_s, None, request.step_spread),
            waits=request.step_s > 0,
            runs_ahead=request.step_s <= 0,
        )
    return DeviceCopier(runtime, step, ahead=request.copy_ahead, pins=request.config.pin_memory)
