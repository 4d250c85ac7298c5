"""The trial's own process: builds the loader for one configuration and runs it under the clock.

It follows the batches through their stages where it is to explain and not to compare.
"""

from __future__ import annotations

import contextlib
import ctypes
import dataclasses
import gc
import importlib.metadata
import math
import os
import random
import signal
import sys
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from datetime import timedelta
from multiprocessing import connection
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dlprof.errors import DlprofError, TargetError
from dlprof.internals import reports_death
from dlprof.records import Config, PageFaults
from dlprof.records.codec import from_json
from dlprof.targets.faults import one_line, refuse_old_torch, user_traceback
from dlprof.targets.files import have_own_positions, open_files
from dlprof.trial import failures
from dlprof.trial.data_checks import BatchChecks, check_length
from dlprof.trial.measure import Loop, Measurement, make_consumer
from dlprof.trial.probing import look_along, probe, try_workers, weigh_dataset
from dlprof.trial.processes import (
    Parting,
    answer_with_stacks,
    dying_with_parent,
    end_tracker,
    guard_worker,
    keep_sockets_in,
    leave_no_names,
    mark_processes,
    tie_forked,
)
from dlprof.trial.protocol import BuildRequest, Channel, Message, TrialRequest, describe_error
from dlprof.trial.rank_group import RankGroup

if TYPE_CHECKING:
    from dlprof.targets.build import BuiltTarget
    from dlprof.tracing.trace import Trace
    from dlprof.trial.copying import DeviceCopier

_clock = time.perf_counter


def build(request: BuildRequest) -> BuiltTarget:
    """Seed the generators and build the target in this process.

    Whatever the user's code raises, ``SystemExit`` and the like too, is an error of the target.

    One of several ranks that asks torch for its rank finds a process group of gloo, as it would in
    training.
    """
    directory = Path.cwd()
    try:
        return _build(request)
    except TargetError as error:
        without = "process group has not been initialized"
        if request.ranks == 1 or without not in f"{error.message}{error.traceback}":
            raise
    import torch.distributed  # only where a target is built

    # A minute for all ranks to come to it.
    torch.distributed.init_process_group("gloo", timeout=timedelta(minutes=1))
    os.chdir(directory)  # the target's code may have changed to another
    return _build(request)


def _build(request: BuildRequest) -> BuiltTarget:
    # Torch says so wherever there is no numpy, and it would be all that a short log has to show.
    warnings.filterwarnings("ignore", message="Failed to initialize NumPy")
    import torch  # only where a target is built

    from dlprof.targets.build import build_target

    refuse_old_torch(torch.__version__)
    # A file that reads its command line, as scripts do, finds no arguments of dlprof's own there.
    sys.argv[:] = [request.target.source]
    share = (request.rank, request.ranks)
    random.seed(request.seed)
    torch.manual_seed(request.seed)
    built = build_target(
        request.target, request.arguments, shuffle=request.shuffle, seed=request.seed, share=share
    )
    # What importing torch leaves behind makes the first full garbage collection due after a few
    # hundred objects more. Each worker would come to it within the measured window, take some 50 ms
    # for it and copy the pages that it touches: 16 workers were a quarter slower for seconds.
    if gc.isenabled():
        gc.collect()
    return built


class Session:
    """What the child reports to the supervisor while it measures."""

    def __init__(self, channel: Channel) -> None:
        self.channel = channel
        self._next_beat_s = 0.0
        self.loop: Loop | None = None  # once there is one

    def fail(self, error: BaseException) -> None:
        """Report what went wrong."""
        # Torch raises a worker's death wherever the main thread is, and one is enough.
        if hasattr(signal, "SIGCHLD"):
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        codes = self._exit_codes() if failures.lost_worker(error) else ()
        failure = failures.classify(error, codes)
        if self.loop is not None and self.loop.logs:
            failure = dataclasses.replace(failure, batches=len(self.loop.now.yields_s))
        self.channel.send({"event": "failed", "failure": failure})

    def _exit_codes(self) -> tuple[int, ...]:
        """How workers have ended, last those that had no more to load.

        One that is about to end is given a moment.
        """
        workers = () if self.loop is None else self.loop.workers
        others = [worker for worker in workers if worker.exitcode != 0]
        ending = connection.wait([each.sentinel for each in others], 2.0) if others else []
        for worker in others:
            if worker.sentinel in ending:  # it closes before the process has quite ended
                worker.join(2.0)
        codes = (worker.exitcode for worker in workers if worker.exitcode is not None)
        return tuple(sorted(codes, key=lambda code: code == 0))

    def beat(self, now_s: float) -> None:
        """Say that batches still come, about once a second."""
        if now_s >= self._next_beat_s:
            self._next_beat_s = now_s + 1.0
            self.channel.send({"event": "beat"})

    def window(self, edge: str, fill_s: float) -> None:
        """Mark an edge of the window; at its end, hold still until memory has been read."""
        self.channel.send({"event": f"window_{edge}"})
        if edge == "end":
            time.sleep(fill_s)
            self.channel.send({"event": "filled"})
            self.await_supervisor()

    def await_supervisor(self) -> None:
        """Wait for the supervisor's word; without a supervisor nobody wants the result."""
        if self.channel.receive() is None:
            os._exit(1)


def run_trial(request: TrialRequest, builder: Callable[[], BuiltTarget], channel: Channel) -> None:
    """Run one trial in this process and report to the supervisor what came of it.

    Never raises for what the target does: that becomes a ``failed`` event.
    """
    keep_sockets_in(request.temporary)
    leave_no_names()
    mark_processes(request.temporary)
    answer_with_stacks()
    tie_forked()
    have_own_positions(open_files())  # else a trial would move those of the trials after it
    session = Session(channel)
    try:
        try:
            _bind(request)  # first, as the observer reads where it may run
            channel.send({"event": "born", "pid": os.getpid()})
            _run(request, builder, session)
        except BaseException as error:  # whatever the user's code raises is a result
            session.fail(error)
    except BaseException as error:  # the death of a second worker, in the midst of that
        session.fail(error)
    session.await_supervisor()


def _bind(request: TrialRequest) -> None:
    """Bind this process to the CPUs of its rank, and so all threads and workers to come."""
    if request.cpus:
        cpus = request.cpus[request.rank]
        try:
            os.sched_setaffinity(0, cpus)
        except OSError as error:
            raise TargetError(
                f"It can't be bound to the CPUs of its NUMA node ({cpus[0]} to {cpus[-1]}): "
                f"{error.strerror}.",
                hint="See which CPUs the job may still use, and sweep again.",
            ) from None


def _run(request: TrialRequest, builder: Callable[[], BuiltTarget], session: Session) -> None:
    built = builder()
    dropped: int | None = 0
    if request.cold_cache:
        from dlprof.targets.files import dataset_files, evict_from_page_cache

        # A look, which is short, is more than that: of what it loads most files come first.
        ends_s = _clock() + (request.limit_s or math.inf) / 3

        def paths(dataset: object) -> Iterator[Path]:
            for path in dataset_files(dataset):
                now_s = _clock()
                session.beat(now_s)  # a million files take a while, in which nothing hangs
                if now_s > ends_s:
                    return
                yield path

        if built.parts is not None:
            dropped = evict_from_page_cache(paths(built.parts.dataset))
    if request.probe:
        look = try_workers if request.config.num_workers else probe
        look = weigh_dataset if request.weigh else look_along if request.along else look
        # Other ranks have only built the target, whose ranks may have to meet for that.
        only_first = request.weigh or request.along or request.config.num_workers
        idle = request.rank > 0 and only_first
        found = {} if idle else look(built, request)
        session.channel.send({"event": "result", "probe": found})
        return
    loop, result = _measure(request, built, session)
    if request.cold_cache and not dropped:
        result["warnings"].append(
            "nothing was dropped from the page cache: the dataset names no file in its attributes, "
            "or this system can't do it"
        )
    session.channel.send({"event": "result", **result})
    loop.shut_down()


def _measure(
    request: TrialRequest, built: BuiltTarget, session: Session
) -> tuple[Loop, dict[str, Any]]:
    from dlprof.targets.counting import SampleCounter
    from dlprof.targets.loader import EpochGate, make_loader
    from dlprof.targets.parts import core_of

    copies: DeviceCopier | None = None
    if request.device != "cpu":
        from dlprof.trial.copying import make_copier  # of use with a device only

        copies = make_copier(request, built.directory)
    consume = copies or make_consumer(
        request.step_s, request.step_callable, request.step_spread, built.directory
    )
    gate, size = EpochGate(spread=request.spread), request.any_size
    count = SampleCounter(request.config.batch_size or built.target.batch_size)
    loader = make_loader(built, request.config, gate=gate, in_worker=guard_worker, any_size=size)
    seen = BatchChecks(built.target, request.config, count, core_of(loader))
    computes = request.step_callable is not None or copies is not None
    ranks: RankGroup | None = None
    if request.ranks > 1:
        place = Path(request.temporary)
        ranks = RankGroup(place, request.rank, request.ranks, barrier=request.step_barrier)
        alone, step = consume, ranks.step

        def consume(batch: object) -> None:  # a step ends together with those of other ranks
            alone(batch)
            step()

        ranks.begin(session.beat, _clock)
        if request.step_barrier and request.ranks > int(os.environ["LOCAL_WORLD_SIZE"]):
            ranks.least = _least_of_all(request.rank, request.ranks, ranks)
    explainer = Explainer(loader, session.window, computes=computes) if request.explain else None
    loop = Loop(
        loader if explainer is None else explainer.tracer,
        request.config,
        consume=consume,
        clock=_clock,
        beat=session.beat,
        confirm=gate.confirm,
        inspect=seen.inspect,
        count=count,
    )
    session.loop = loop
    measurement = Measurement(
        loop=loop,
        gate=gate,
        window_s=request.trial_s,
        turnover=request.turnover,
        one_epoch=request.one_epoch,
        inspected=seen.batches,
        ranks=ranks,
    )
    window: Callable[[str, float], object]
    window = session.window if explainer is None else explainer.window
    if copies is not None:
        window = copies.window(window)
    measured = measurement.run(window)
    lengths: list[str] = []
    if not seen.resampled:
        lengths = check_length(loop, built.target, request.config)
    elif built.target.kind == "iterable":
        measured = dataclasses.replace(measured, epoch_samples=None)
    rate = measured.rate
    if explainer is not None and rate is not None:
        take_rested(loop, request.config, rate.batches_per_s.value)
        if request.keeps_freed and ranks is None and not request.config.num_workers:
            explainer.page_faults = faulted_again(loop, rate.batches_per_s.value)
    seen.weigh(loop.batch)
    each = None if rate is None else rate.samples_per_batch or None
    return loop, {
        "measured": measured,
        "batch_bytes": seen.batch_bytes(each),
        "no_turnover": gate.reason,
        **({} if ranks is None else {"epoch_batches": loop.promised()}),
        "warnings": [*seen.warnings, *lengths],
        **({} if copies is None else {"copies": copies.to_record()}),
        **({} if explainer is None else explainer.summary(request.config, copies)),
    }


def _least_of_all(rank: int, ranks: int, group: RankGroup) -> Callable[[list[int]], list[int]]:
    """What has ranks on several nodes pass a step together, as the exchange of gradients does.

    By gloo and a store of their own: those of the target's are its own, or the fork server's.
    """
    import torch.distributed

    dist: Any = torch.distributed  # which exports what it documents, though not for mypy
    address, soon = os.environ["MASTER_ADDR"], timedelta(seconds=15)  # all of them are there
    try:
        store = None
        if rank == 0:
            store = dist.TCPStore(address, 0, None, True, soon, wait_for_workers=False)
        port = group.number_of_first(0 if store is None else store.port)
        store = store or dist.TCPStore(address, port, None, False, soon)
        gloo = dist.ProcessGroupGloo(store, rank, ranks, soon)
    except RuntimeError as error:
        raise TargetError(
            f"step_barrier needs the ranks to reach each other by gloo: {one_line(error)}",
            hint="Set GLOO_SOCKET_IFNAME to the network interface between the nodes.",
        ) from None
    options = dist.AllreduceOptions()
    options.reduceOp, options.timeout = dist.ReduceOp.MIN, timedelta(days=1)

    def least(said: list[int]) -> list[int]:
        values = torch.tensor(said)
        try:
            gloo.allreduce([values], options).wait()
        except RuntimeError as error:
            if reports_death(error):
                raise
            raise ConnectionError from error
        found: list[int] = values.tolist()
        return found

    return least


def main() -> None:
    """Run one trial in a process of its own, where there is no fork server to fork it.

    Reads a build request and a trial request from standard input, and answers on what was
    standard output; whatever the target prints goes to standard error.
    """
    channel = Channel.of_standard_streams()
    order = channel.receive()
    if order is None:
        return
    parting = Parting()
    with dying_with_parent():
        built, answer = answer_build(from_json(BuildRequest, order["request"]))
        channel.send(answer)
        order = None if built is None else channel.receive()
        if built is not None and order is not None:
            run_trial(from_json(TrialRequest, order["request"]), lambda: built, channel)
    end_tracker()
    parting.take()
    os._exit(0)


def as_target_error(error: BaseException) -> DlprofError:
    """What the user's code raised while the target was built, as an error of the target."""
    if isinstance(error, DlprofError):
        return error
    return TargetError(
        f"Building the target raised {one_line(error)}.",
        hint="The traceback shows where.",
        traceback=user_traceback(error),
    )


def build_failed(error: BaseException) -> Message:
    """The answer to an order to build that failed."""
    return {"event": "build_failed", "error": describe_error(as_target_error(error))}


def answer_build(
    request: BuildRequest, within: AbstractContextManager[None] | None = None
) -> tuple[BuiltTarget | None, Message]:
    """The target, or ``None`` where it can't be built, and the answer to the order to build it."""
    began_s = _clock()
    try:
        with within or contextlib.nullcontext():
            built = build(request)
    except BaseException as error:  # also what would end an ordinary program
        return None, build_failed(error)
    target = dataclasses.replace(built.target, import_s=_clock() - began_s)
    python = ".".join(str(part) for part in sys.version_info[:3])
    versions = {"torch": importlib.metadata.version("torch"), "python": python}
    answer = {"event": "built", "target": target, "versions": versions}
    return built, answer


class Explainer:
    """Follows the batches of a loader while it is measured.

    A loader that is made around a DataLoader is followed through that one, where each batch of the
    one is a batch of the other. ``computes`` says whether the consumer may compute between batches.
    """

    def __init__(
        self, loader: Any, window: Callable[[str, float], object], *, computes: bool
    ) -> None:
        from dlprof.targets.parts import dataloader_of
        from dlprof.tracing.tracer import Tracer

        self.tracer = Tracer(loader)
        self.tracer.install()
        inner = dataloader_of(loader)
        self._outer_name = type(loader).__name__
        self._inner = None if inner is None or inner is loader else Tracer(inner)
        if self._inner is not None:
            self._inner.install()
        self._window = window
        self._computes = computes
        self._began_ns = self._ended_ns = 0
        self.page_faults: PageFaults | None = None

    def window(self, edge: str, fill_s: float) -> None:
        """Note an edge of the window, inside of what the supervisor does there."""
        if edge == "end":
            self._ended_ns = time.perf_counter_ns()
        self._window(edge, fill_s)
        if edge == "start":
            self._began_ns = time.perf_counter_ns()

    def _trace(self, edges: tuple[int, int]) -> Trace:
        from dlprof.tracing.explain import in_window

        self.tracer.remove()
        trace = self.tracer.trace()
        if self._inner is None:
            return trace
        self._inner.remove()
        within = self._inner.trace()
        more = len(in_window(within, edges)) - len(in_window(trace, edges))
        if within.hooked and abs(more) <= 1:  # one may have come at an edge
            return within
        reason = (
            f"{self._outer_name} makes other batches of those of the DataLoader that it holds, "
            "so only the wait in next() is timed"
        )
        return dataclasses.replace(trace, unavailable={"hooks": reason})

    def summary(self, config: Config, copies: DeviceCopier | None = None) -> dict[str, Any]:
        """The explanation and the timeline as plain values; the trial's id is not known here."""
        from dlprof.tracing.explain import explain, timeline, with_copies

        edges = (self._began_ns, self._ended_ns)
        trace = self._trace(edges)
        # What a chain does behind the DataLoader is work between two batches.
        computes = self._computes or self._inner is not None
        explanation = explain(trace, trial_id="", config=config, window=edges, computes=computes)
        explanation = dataclasses.replace(explanation, page_faults=self.page_faults)
        if copies is not None:
            explanation = with_copies(explanation, copies.held_s(), copies.exposed_times())
        return {"explanation": explanation, "timeline": timeline(trace, trial_id="", window=edges)}


def take_rested(loop: Loop, config: Config, rate: float) -> None:
    """Take some batches from workers that have nothing to do, so that the trace holds them.

    Receiving takes longer from a worker that computes, and in a window without a step all of them
    do. A pin thread receives batches while others are made, so that it shows nothing. The queues
    fill by ``rate`` batches a second.
    """
    from dlprof.tracing.explain import LEAST_RESTED

    if not config.num_workers or config.pin_memory or rate <= 0:
        return
    # The queues are taken to be full after so many times the time that loading as many takes.
    filled_s = 1.5 * config.batches_in_flight / rate
    rounds = min(3, math.floor(0.5 / filled_s))  # all of them in half a second
    if rounds * config.num_workers < LEAST_RESTED:
        return
    with contextlib.suppress(Exception):  # the window was sound, whatever comes behind it
        for _ in range(rounds):
            time.sleep(filled_s)
            if not loop.take(config.num_workers):
                return


def faulted_again(loop: Loop, rate: float) -> PageFaults | None:
    """What a batch costs without workers because the memory of earlier ones went back.

    glibc returns blocks of over 32 MiB to the system when they are freed, and the top of its heap
    above a threshold: whether a batch lies there is chance. Each page is then zeroed and mapped
    again for the next batch, by the kernel. This process is set to keep all of it, for good.
    ``rate`` is in batches per second.
    """
    count, few = max(3, min(50, math.floor(0.25 * rate))), 3
    if 2 * (few + count) > 1.5 * rate or not sys.platform.startswith("linux"):
        return None
    import resource  # which Windows has not

    def taken(count: int) -> tuple[float, float, float]:
        before = resource.getrusage(resource.RUSAGE_SELF)
        if not loop.take(count):
            raise StopIteration
        after = resource.getrusage(resource.RUSAGE_SELF)
        kernel_s = after.ru_stime - before.ru_stime
        cpu_s = after.ru_utime - before.ru_utime + kernel_s
        return (after.ru_minflt - before.ru_minflt) / count, cpu_s / count, kernel_s / count

    with contextlib.suppress(Exception):  # the window was sound, whatever comes behind it
        # The first ones make room: more batches are alive at once now than in the window. Fewer
        # faults than that take no time.
        if taken(few)[0] < 64 or (now := taken(count))[0] < 64 or not keep_freed_memory():
            return None
        taken(few)
        kept = taken(count)
        if kept[0] > 0.5 * now[0]:  # others, as of a cache that fills
            return None
        # A core that goes faster by now spares no more than the kernel's part.
        least_s = max(now[1] - now[2], 0.1 * now[1])
        kept_cpu_s = min(now[1], max(kept[1], least_s))
        return PageFaults(spared=now[0] - kept[0], cpu_s=now[1], kept_cpu_s=kept_cpu_s)
    return None


def keep_freed_memory() -> bool:
    """Have malloc keep what is freed, as ``KEEPING`` does; False where that isn't glibc's."""
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (AttributeError, OSError):
        return False
    # M_MMAP_MAX and M_TRIM_THRESHOLD of malloc.h.
    return bool(mallopt(-4, 0)) and bool(mallopt(-1, 1 << 30))


if __name__ == "__main__":
    main()
