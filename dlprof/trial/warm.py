"""A process that holds one target warm and loads blocks of batches when asked: a side of a check.

Both sides of a check load the same samples, by the same code, interleaved. What they are
compared by is stamped in whichever process fetches (``dlprof.tracing``); both bear that alike.

Run as ``python -P -m dlprof.trial.warm``: orders come on standard input, answers go to what was
standard output, and what the target prints goes to standard error.
"""

from __future__ import annotations

import contextlib
import dataclasses
import importlib.util
import itertools
import json
import math
import os
import random
import signal
import site
import sys
import sysconfig
import tempfile
import threading
import time
from collections.abc import Callable, Collection, Sequence
from multiprocessing import connection
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import dlprof.tracing.clocks  # noqa: F401 - which keeps them from targets that patch time
from dlprof.errors import TargetError, UsageError
from dlprof.internals import kept_iterator, shut_down, workers_of
from dlprof.records import Config
from dlprof.records.codec import from_json
from dlprof.targets.workers import add_delay
from dlprof.tracing.explain import Span, spans
from dlprof.tracing.trace import Row
from dlprof.trial import child, failures
from dlprof.trial.measure import EmptyLoaderError, Loop, ended_early
from dlprof.trial.processes import (
    answer_with_stacks,
    die_with_parent,
    guard_worker,
    keep_sockets_in,
    leave_forkserver,
    mark_processes,
    tie_forked,
)
from dlprof.trial.protocol import BlockRequest, BuildRequest, Channel, Message, line_of, serve

if TYPE_CHECKING:
    from dlprof.targets.build import BuiltTarget
    from dlprof.targets.loader import EpochGate

MOST_BATCHES = 4096  # a block has no more, so that all its rows are kept


_clock = time.perf_counter


@dataclasses.dataclass(slots=True)
class _BlockBatches:
    """What the consumer saw of a block's batches, in their order."""

    times_s: list[float] = dataclasses.field(default_factory=list)  # when each came
    samples: list[int] = dataclasses.field(default_factory=list)  # samples in each
    undisturbed: int = 0  # batches that came before the queues were left to fill
    beyond: int = 0  # batches that came after the block's
    # What was held then, as fields of a ``Block``.
    memory: Message = dataclasses.field(default_factory=dict)


class Warm:
    """A target's loader, kept for blocks of loading.

    Workers live on between blocks wherever the loader can be made so: what they do for a batch is
    the same, and starting is measured apart.

    Each batch is to take ``delay_s`` of CPU time longer.
    """

    def __init__(self, built: BuiltTarget, config: Config, delay_s: float = 0.0) -> None:
        from dlprof.machine.tree import open_tree  # torch comes first
        from dlprof.targets.counting import SampleCounter
        from dlprof.targets.loader import EpochGate
        from dlprof.targets.parts import core_of
        from dlprof.tracing.tracer import Tracer

        self._built, self._config = built, config
        self._gate = EpochGate()
        self._counter = SampleCounter(built.target.batch_size)
        # Its workers outlive an epoch, where it takes such a setting.
        lasting = dataclasses.replace(config, persistent_workers=bool(config.num_workers))
        try:
            self._loader: Any = self._made(lasting, self._gate)
        except TargetError:
            self._loader = self._made(config, self._gate)
        add_delay(self._loader, delay_s)
        self._tracer = Tracer(self._loader, capacity=MOST_BATCHES)
        self._core = core_of(self._loader)
        # What is made around a DataLoader is followed through that one, where it has as many rows.
        alone = self._core is self._loader
        within = [] if alone else [Tracer(self._core, capacity=MOST_BATCHES)]
        self._tracers = (*within, self._tracer)
        for tracer in self._tracers:
            tracer.install()
        self._tree = open_tree(os.getpid())
        self.placement = Placement()

    @property
    def runs_on(self) -> bool:
        """Whether the loader may load ahead after a block, as its epochs can't be ended."""
        return not self._gate.attached

    def load(self, request: BlockRequest) -> Message:
        """Load one block, and give its figures as fields of a ``Block``."""
        unpinned = self.placement.hold(self._workers(), self._config, request.cores)
        for tracer in self._tracers:
            tracer.forget()
        before, held = self._tree.read(), _shared_bytes()
        seen = self._take(request, held)
        after = self._tree.read()
        if not request.cores or unpinned:
            self.placement.learn(self._workers())
        elif not self.placement.is_held():
            unpinned = "its cores were changed during a block"
        rows, names = self._rows(len(seen.samples), seen.beyond)
        figures = block_figures(
            rows, samples=seen.samples, times_s=seen.times_s[: seen.undisturbed], transforms=names
        )
        if None not in (before.wait_ns, before.run_ns, after.wait_ns, after.run_ns):
            pairs = ((before.wait_ns, after.wait_ns), (before.run_ns, after.run_ns))
            waited, ran = (max(0, (now or 0) - (then or 0)) for then, now in pairs)
            if waited + ran > 0:
                figures["run_queue_wait_fraction"] = waited / (waited + ran)
        figures |= {"pinned": bool(request.cores) and not unpinned, "unpinned": unpinned}
        return {**figures, "cores": cores_of(self._workers() or [os.getpid()]), **seen.memory}

    def _made(self, config: Config, gate: EpochGate) -> Any:
        from dlprof.targets.loader import make_loader  # torch comes first

        return make_loader(self._built, config, gate=gate, in_worker=guard_worker)

    def _workers(self) -> list[int]:
        return [each.pid for each in workers_of(kept_iterator(self._core))]

    def _rows(self, batches: int, beyond: int) -> tuple[Sequence[Row], Sequence[str]]:
        """The rows of the last block and the transforms' names: one row a batch, if any has it."""
        rows: Sequence[Row] = ()
        for trace in [tracer.trace() for tracer in self._tracers]:
            rows, names = trace.rows[: len(trace.rows) - beyond], trace.names
            if len(rows) - batches in {0, 1}:  # what is made around a loader may ask one ahead
                return rows[:batches], names
        return rows, ()

    def _take(self, request: BlockRequest, held: int | None) -> _BlockBatches:
        """Take the batches of a block, through as many epochs as that needs, or as are asked for.

        Each of those asked for has the same samples in the same order, and from the same workers.
        """
        batches = min(request.batches, MOST_BATCHES)
        _seed_all(self._loader, request.seed)
        left = 0 if self.runs_on else self._config.batches_in_flight
        seen = _BlockBatches(undisturbed=max(1, batches - left))
        # Some workers of an iterable dataset may have no data: each is asked, and what comes
        # beyond the block is loaded, too, so that nothing is under way in the other side's turn.
        least = 0 if self._gate.exact else self._config.num_workers
        while len(seen.times_s) < batches:
            came = len(seen.times_s)
            if came and request.epochs > 1:
                _seed_all(self._loader, request.seed)
            each = math.ceil(batches / request.epochs)
            self._gate.reopen(limit=max(least, min(batches - came, each)))
            for batch in iter(self._tracer):
                if not seen.times_s:
                    self._gate.confirm()
                if len(seen.times_s) == batches:
                    seen.beyond += 1
                    continue
                seen.times_s.append(_clock())
                if self._gate.sizes is None:
                    seen.samples.append(self._counter(batch) or self._built.target.batch_size or 1)
                if len(seen.times_s) == seen.undisturbed:
                    seen.memory = self._hold(seen, held)
                if len(seen.times_s) == batches and not self._gate.attached:
                    break
            self._close_epoch(seen, came)
        return seen

    def _close_epoch(self, seen: _BlockBatches, before: int) -> None:
        """Note what an epoch has brought, which must be as much as was asked of it."""
        came = len(seen.times_s) - before
        if not came:
            raise EmptyLoaderError
        if self._gate.exact and came < self._gate.batches:
            raise ended_early(came, self._gate.batches)
        sizes = self._gate.sizes
        if sizes is not None:
            seen.samples.extend(sizes[:came])

    def _hold(self, seen: _BlockBatches, held: int | None) -> Message:
        """Take nothing until the queues are full, and look what is held then."""
        times = seen.times_s
        if len(times) > 1:
            period_s = (times[-1] - times[0]) / (len(times) - 1)
            fill_s = 1.2 * self._config.batches_in_flight * period_s
            time.sleep(min(1.0, fill_s))
        self._tree.read()
        memory: Message = {"pss_peak_bytes": self._tree.pss_bytes()}
        shared = _shared_bytes()
        if shared is not None and held is not None:
            memory["shm_peak_bytes"] = max(0, shared - held)
        return memory

    def start(self, request: BlockRequest) -> Message:
        """Start the loader again, as it is set, and turn an epoch; fields of a ``Block``.

        None where it can't be made again and keeps its workers: it would not start.
        """
        from dlprof.targets.loader import EpochGate

        self.placement.release(self._workers())
        if self._built.own is not None and self._workers():
            return {}
        gate = EpochGate()
        loader = self._made(self._config, gate)
        _seed_all(loader, request.seed)
        loop = Loop(loader, self._config, clock=_clock, confirm=gate.confirm)
        gate.reopen(limit=max(1, self._config.num_workers))
        loop.begin_epoch()
        startup_s = loop.now.yields_s[0] - loop.now.began_s
        if gate.attached:
            loop.drain()
            gate.reopen(limit=max(1, self._config.num_workers))
            loop.begin_epoch()
        loop.shut_down()
        return {
            "startup_s": startup_s,
            "epoch_turnover_s": loop.turnovers_s[0] if loop.turnovers_s else None,
        }

    def close(self) -> None:
        """End the workers that live on."""
        shut_down(kept_iterator(self._core))


def _seed_all(loader: Any, seed: int) -> None:
    """Seed everything that decides which samples come, and what random numbers they draw."""
    import torch  # imported already, with the target

    random.seed(seed)
    torch.manual_seed(seed)
    if "numpy" in sys.modules:
        sys.modules["numpy"].random.seed(seed % 2**32)
    from dlprof.targets.parts import core_of

    core = core_of(loader)
    batch_sampler = getattr(core, "batch_sampler", None)
    samplers = (getattr(core, "sampler", None), batch_sampler)
    for owner in (core, *samplers, getattr(batch_sampler, "sampler", None)):
        generator = getattr(owner, "generator", None)
        if isinstance(generator, torch.Generator):
            generator.manual_seed(seed)


def _shared_bytes() -> int | None:
    from dlprof.machine.inspection import read_shared_memory  # after the target

    now = read_shared_memory()
    return None if now is None else now.used_bytes


def _keeps(built: BuiltTarget, limit_s: float = 1.0) -> bool:
    """Whether a dataset keeps samples in its process's memory, as a forked one sees it.

    False where that isn't known, as where threads or a device don't survive a fork.
    """
    from dlprof.device.runtime import is_in_use  # torch is imported already, with the target

    alone = hasattr(os, "fork") and threading.active_count() == 1
    if built.parts is None or not alone or is_in_use():
        return False
    dataset = built.parts.dataset

    def asked() -> Message:
        from dlprof.targets.weighing import by_memory

        return {"keeps": by_memory(dataset, limit_s=limit_s) is not None}

    return bool(_forked(asked, 3 * limit_s).get("keeps"))


def _failed(error: BaseException) -> Message:
    return {"event": "failed", "failure": failures.classify(error)}


def _forked(answer: Callable[[], Message], limit_s: float | None = None) -> Message:
    """What a forked process answers within a time, which leaves all here as it is."""
    reading, writing = os.pipe()
    if not (pid := os.fork()):
        with contextlib.suppress(BaseException):
            from dlprof.targets.files import cut_off, have_own_positions, open_files

            # What it reads of a file, or asks a server, is not to be missing here.
            have_own_positions(open_files())
            cut_off(writing)
            leave_forkserver()
            try:
                message = answer()
            except BaseException as error:  # whatever the user's code raises is a result
                message = _failed(error)
            with os.fdopen(writing, "wb") as answers:
                answers.write(line_of(message))
        os._exit(0)
    os.close(writing)
    with os.fdopen(reading, "rb") as answers:
        ready = connection.wait([reading], limit_s)  # select would know no number above 1,023
        text = answers.readline() if ready else b""
    with contextlib.suppress(OSError):  # it has ended by itself where it has not answered
        os.kill(pid, signal.SIGKILL if text or not ready else 0)
    _, status = os.waitpid(pid, 0)
    if not text:
        failure = failures.died(os.waitstatus_to_exitcode(status), "")
        return {"event": "failed", "failure": failure}
    return cast("Message", json.loads(text))


class Server:
    """Answers what the check orders over a channel, until it goes away."""

    def __init__(self, channel: Channel) -> None:
        self._channel = channel
        self._built: BuiltTarget | None = None
        self._warm: Warm | None = None
        self._delay_s = 0.0

    def serve(self) -> None:
        """Answer order after order."""
        serve(
            self._channel,
            {"build": self._build, "open": self._open, "block": self._block},
            failed=_failed,
        )
        if self._warm is not None:
            self._warm.close()

    def _open(self, config: Message) -> Message:
        built = cast("BuiltTarget", self._built)
        keeps = bool(_keeps(built) and _keeps(built))  # by then only its own memory is cold
        self._warm = Warm(built, from_json(Config, config), self._delay_s)
        return {"event": "opened", "keeps": keeps}

    def _block(self, request: Message) -> Message:
        warm, wanted = cast(Warm, self._warm), from_json(BlockRequest, request)

        def loaded() -> Message:
            try:
                block = warm.load(wanted) if wanted.series == "load" else warm.start(wanted)
                runs_on = warm.runs_on and wanted.epochs == 1
                threads = warm.placement.is_threaded
                return {"event": "block", "block": block, "runs_on": runs_on, "threads": threads}
            finally:
                if wanted.epochs > 1:
                    warm.close()

        if wanted.epochs == 1:
            return loaded()
        answer = _forked(loaded)
        warm.placement.is_threaded |= bool(answer.get("threads"))
        return answer

    def _build(self, request: Message, moved: list[list[str]], temporary: str) -> Message:
        keep_sockets_in(temporary)
        mark_processes(temporary)
        sys.path[:] = relocated(sys.path, moved)
        wanted = from_json(BuildRequest, request)
        self._delay_s = wanted.delay_s
        here = Path.cwd()
        sys.path.insert(0, str(here))  # as Python itself puts it there
        if importlib.util.find_spec("torch") is None:
            error = UsageError(
                f"{sys.executable} has no torch", hint="Install it there, or name another Python."
            )
            return child.build_failed(error)
        self._built, answer = child.answer_build(wanted)
        if self._built is not None:
            from dlprof.targets.build import place_of

            file, line = place_of(wanted.target, here) or ("", None)
            answer |= {"file": file, "line": line, "stray": _stray(moved)}
        return answer


def relocated(paths: Sequence[str], moved: Sequence[Sequence[str]]) -> list[str]:
    """Paths with the beginnings replaced that lie elsewhere for this side.

    The interpreter's environment may lie inside of the checkout, and this dlprof, too: both are the
    same for both sides.
    """
    kept = [*map(sysconfig.get_path, ("stdlib", "platstdlib")), *(new for _, new in moved)]
    kept += [*site.getsitepackages(), site.getusersitepackages()]
    kept += map(str, Path(__file__).parents[1:3])  # where it is, and where it is found
    kept = list(map(os.path.realpath, kept))

    def place(path: str) -> str:
        real = Path(os.path.realpath(path))
        if not any(map(real.is_relative_to, kept)):
            for old, new in moved:
                if real.is_relative_to(old):
                    return str(new / real.relative_to(old))
        return path

    return list(map(place, paths))


def _stray(moved: Sequence[Sequence[str]]) -> str:
    """A file of the other side's that was imported in spite of all; empty where there is none.

    An editable install may find modules by code of its own and not by ``sys.path``.
    """
    found = []
    for module in [*sys.modules.values()]:  # alike on both sides, whatever has moved
        with contextlib.suppress(AttributeError):  # past what a lazy module would do
            found.append(object.__getattribute__(module, "__dict__").get("__file__"))
    files = [each for each in found if isinstance(each, str)]
    pairs = zip(files, relocated(files, moved), strict=True)
    return next((file for file, place in pairs if file != place), "")


def main() -> None:
    """Serve the check that started this process."""
    channel = Channel.of_standard_streams()
    # Finding the directory writes a file there: now, and not in a worker that is about to be ended.
    tempfile.gettempdir()
    die_with_parent()
    tie_forked()
    answer_with_stacks()
    Server(channel).serve()
    os._exit(0)  # what the target has started is ended with this process's group


def block_figures(
    rows: Sequence[Row],
    *,
    samples: Sequence[int],
    times_s: Sequence[float],
    transforms: Sequence[str] = (),
) -> dict[str, Any]:
    """The fields of a ``Block`` that stamps show; times are in seconds.

    The service time is that of fetching and collating, less what the process that did it waited
    for a core. Where a loader could not be hooked it is the mean wait in ``next()``.

    Rows and samples are one per batch, in the order of yields; ``times_s`` is when the first of
    them came, as far as nothing but loading happened meanwhile. ``transforms`` are the names of
    those that a chain in the dataset runs, in its order.
    """
    if len(rows) != len(samples):
        return {"failure": "some batches came past the hooks, so not all of them were timed"}
    fetch, collate = spans("fetch", rows), spans("collate", rows)
    receive = spans("rebuild", rows)
    hooked = len(fetch) == len(collate) == len(rows)
    if hooked:
        service = [_own_s(one) + _own_s(two) for one, two in zip(fetch, collate, strict=True)]
    else:  # what is loaded ahead comes at once, so that a single wait says nothing
        waited_s = math.fsum(span.wall_ns * 1e-9 for span in spans("wait", rows))
        service = [waited_s / len(rows)] * len(rows)
    stages = {"fetch": fetch, "collate": collate} if hooked else {}
    stages_s = {name: math.fsum(map(_own_s, found)) for name, found in stages.items()}
    if len(receive) == len(rows):
        # CPU time, where that is known: the wall time holds waiting for a worker that sends, and
        # beside other processes that worker's own run-queue delay.
        stages_s["receive"] = math.fsum(
            _own_s(span) if span.cpu_ns is None else span.cpu_ns * 1e-9 for span in receive
        )
    if hooked:
        stages_s |= _parts_s(rows, transforms)
    wall_s, came = None, sum(samples[1 : len(times_s)])
    if len(times_s) > 1 and came:  # of the whole block at the rate of its undisturbed part
        wall_s = (times_s[-1] - times_s[0]) / came * sum(samples)
    return {
        "service_s": service,
        "samples": list(samples),
        "wall_s": wall_s,
        "corrected": hooked and all(span.run_queue_ns is not None for span in (*fetch, *collate)),
        "stages_s": stages_s,
    }


def _own_s(span: Span) -> float:
    return max(0, span.wall_ns - (span.run_queue_ns or 0)) * 1e-9


def _parts_s(rows: Sequence[Row], names: Sequence[str]) -> dict[str, float]:
    """What each transform took within fetching, waiting for a core taken off in proportion."""
    found: dict[str, float] = {}
    for row, fetch in zip(rows, spans("fetch", rows), strict=True):
        chain = row.made.chain if row.made is not None else ()
        if not names or len(chain) != 2 * len(names) or not fetch.wall_ns:
            continue
        own = _own_s(fetch) / fetch.wall_ns
        for name, took_ns in zip(names, chain[1::2], strict=True):
            key = f"fetch: {name}"
            found[key] = found.get(key, 0.0) + took_ns * own
    return dict(itertools.islice(found.items(), 16))


class Placement:
    """Holds a side's processes to cores, one each, while a block is loaded.

    Not where one of them computes with several threads, which a single core would slow down; nor
    where the code itself has chosen cores, for its workers or for all; nor where workers are
    started for each epoch, as these would all be held to the core of the process that starts them.
    """

    def __init__(self) -> None:
        self._own = _affinity(os.getpid())
        self._ran_ns: dict[int, tuple[int, int]] = {}
        self._free_since_s = 0.0
        self.is_threaded = False
        self._follows = False  # where it was let go, its code had not chosen cores
        self._held: dict[int, frozenset[int]] = {}

    def hold(self, workers: Sequence[int], config: Config, cores: Sequence[int]) -> str:
        """Hold processes to cores for a block; why not, where that can't be done.

        Worker after worker, of those that live on, gets the next of the cores, and the main process
        the one behind. Without cores all are to run free.
        """
        pids = [*workers, os.getpid()]
        obstacle = self._obstacle(pids, config, frozenset(cores)) if cores else ""
        if cores and not obstacle:
            try:
                self._place(pids, cores)
            except OSError:  # not allowed, or the job's cores have changed
                obstacle = "the system refuses it"
        if obstacle or not cores:
            self.release(workers)
            self._free_since_s = _clock()  # from here on, as dlprof's own reads take CPU time, too
            self._ran_ns = {pid: _ran_ns(pid) for pid in pids}
        return obstacle

    def _obstacle(self, pids: Sequence[int], config: Config, cores: frozenset[int]) -> str:
        """Why processes are better left free, in words; empty if they aren't.

        A cpuset may change meanwhile, for these processes as for the check, which asks for all
        the cores that it has. What is found elsewhere was placed there by the code itself.
        """
        if self.is_threaded:
            return "its code computes with several threads"
        if len(pids) - 1 != config.num_workers:
            return "its workers don't live on"
        places = {_affinity(pid) for pid in pids}
        is_let_go = places == {self._own} and (self._follows or cores <= (self._own or cores))
        follows = places == {cores} or is_let_go
        return "" if self._held or follows else "its code chooses cores itself"

    def _place(self, pids: Sequence[int], cores: Sequence[int]) -> None:
        # Also those of which it fails then.
        self._held = {pid: frozenset({cores[place % len(cores)]}) for place, pid in enumerate(pids)}
        for pid, core in self._held.items():
            _hold(pid, core)
        self._own |= set(cores)
        self._follows = True

    def is_held(self) -> bool:
        """Whether processes are still held where they were put."""
        return all(_affinity(pid) == cores for pid, cores in self._held.items())

    def learn(self, workers: Sequence[int]) -> None:
        """See by a block that these loaded free whether they compute with several threads.

        One thread takes no more CPU time than passes while it doesn't wait for a core: beside busy
        neighbors several threads may take less than the wall time.
        """
        for pid in [*workers, os.getpid()]:
            before, now = self._ran_ns.get(pid, (0, 0)), _ran_ns(pid)
            alone_ns = 1e9 * (_clock() - self._free_since_s) - (now[1] - before[1])
            if now[0] - before[0] > 1.15 * alone_ns:
                self.is_threaded = True

    def release(self, workers: Sequence[int]) -> None:
        """Let processes run wherever they might before."""
        if self._held and self._own:
            for pid in [*workers, os.getpid()]:
                try:
                    _hold(pid, self._own)
                except OSError:  # the job's cores have changed: it has those that are left
                    continue
        self._held = {}


def cores_of(pids: Sequence[int]) -> list[int]:
    """The core that each process's first thread was last on; empty where that isn't known."""
    import psutil  # torch comes first

    try:
        return [psutil.Process(pid).cpu_num() for pid in pids]
    except (AttributeError, psutil.Error):  # not on this system, or one has ended
        return []


def _affinity(pid: int) -> frozenset[int]:
    from dlprof.machine.tree import allowed_cpus  # torch comes first

    return allowed_cpus(pid)


def _hold(pid: int, cores: Collection[int]) -> None:
    """Hold all threads of a process, and those that they start, to cores."""
    for task in Path(f"/proc/{pid}/task").iterdir():
        try:
            os.sched_setaffinity(int(task.name), cores)
        except ProcessLookupError:  # a thread that ended meanwhile
            continue


def _ran_ns(pid: int) -> tuple[int, int]:
    """CPU time of a process by all of its threads, and run-queue delay of its first; else 0."""
    from dlprof.machine.tree import member_of  # torch comes first

    seen = member_of(f"/proc/{pid}")
    first = None if seen is None else seen.threads.get(str(pid))
    return (0, 0) if seen is None or first is None else (seen.run_ns, first.wait_ns)


if __name__ == "__main__":
    main()
