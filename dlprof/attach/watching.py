"""Looks at a training again and again: what its threads wait for, and what they have used.

A look reads a few files of ``/proc`` that are kept open, some 10 µs for each thread, and is taken
at uneven times, so that no rhythm of the training's own hides from it. Nothing of the training is
stopped, changed or injected; of its queues only the number of unread bytes is asked for.
"""

from __future__ import annotations

import collections
import contextlib
import dataclasses
import os
import random
import struct
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from dlprof.attach.trainings import Training
from dlprof.internals import PIN_THREAD, WORKER
from dlprof.machine import Sampler, inspect_machine, usage_between
from dlprof.machine.cgroups import oom_kills, read_cgroups
from dlprof.machine.gpus import Gpus
from dlprof.machine.inspection import cpus_of_job, read_shared_memory
from dlprof.machine.procfs import (
    IoCounters,
    SchedStat,
    list_names,
    parse_allowed_cpus,
    parse_io,
    parse_statm,
    parse_switches,
    read_stat,
    read_text,
)
from dlprof.machine.sharing import GroupShares, Processes
from dlprof.machine.tree import Member, ProcessTree, member_of
from dlprof.machine.waits import ProcFile, Thread, Wait, gil_of
from dlprof.records import Machine, Usage

_UNSEEN = SchedStat(run_ns=0, wait_ns=0)

SHARE = 0.0035
"""Of one core, that looking may take: half a percent less what the figures at both ends take.

With 0.4 % for looking, all of ``attach`` took 0.53 %.
"""

WAITED = 0.15
"""Share of looks in which main waits, from which that counts."""


class Look(NamedTuple):
    """What was seen at one moment."""

    main: Wait  # what the main process's main thread did
    pin: Wait | None  # what the pin thread did; ``None`` where there is none
    # Workers that waited for indices, and that there were; none of other loaders (``Seen``).
    idle: int
    alive: int
    # Unread in the queue of finished batches; ``None`` where that can't be seen.
    finished_bytes: int | None = None
    sent_bytes: int = 0  # unread in the workers' index queues


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class ProcessSeen:
    """What one process did while it was watched."""

    pid: int  # which
    # How many looks found its main thread so: of the main process also those at it alone.
    waits: Mapping[Wait, int]
    run_s: float = 0.0  # CPU seconds of its main thread
    queued_s: float = 0.0  # run-queue delay of that thread
    yielded: int = 0  # times that it let go of its core, and so wanted one again later
    preempted: int = 0  # times that it was made to
    others_cpu_s: float = 0.0  # CPU seconds of its other threads
    # CPU seconds of all processes that come from it; of the main process it isn't looked at.
    children_cpu_s: float = 0.0
    # How many looks found its main thread waiting for a child of this name that computed.
    children: Mapping[str, int] = dataclasses.field(default_factory=dict)
    threads: int = 1  # alive at the end
    cpus: int | None = None  # that it may run on
    messages: int = 0  # that its feeder threads have put into queues
    ended_messages: int = 0  # of these, by feeder threads that have ended
    message_bytes: int = 0  # in all of them
    feeding_cpu_s: float = 0.0  # CPU seconds of these threads, which pickle the messages
    reads: int = 0  # calls of ``read`` by its main thread
    written_bytes: int = 0  # by its main thread
    # By which its private memory has grown steadily: twice what it has in the half of the window in
    # which it has grown less.
    grown_bytes: int = 0

    def share(self, *waits: Wait) -> float:
        """Share of the looks that found its main thread in one of some states."""
        looks = sum(self.waits.values())
        return sum(self.waits.get(each, 0) for each in waits) / looks if looks else 0.0


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Seen:
    """All that was seen of a training."""

    training: Training  # which, as it was at the last look
    window_s: float  # how long it was watched
    looks: Sequence[Look]  # in their order, the last of many
    main: ProcessSeen  # its main process
    # Those, alive now, of the loader that main often waited for, or else that gave most batches.
    workers: tuple[ProcessSeen, ...] = ()
    other_workers: int = 0  # of other loaders
    other_batches: int = 0  # that these made while it was watched
    started_workers: int = 0  # that came while it was watched
    # Workers that had ended when it was first looked at, and for which main has not waited yet.
    ended_before: tuple[int, ...] = ()
    start_method: str = "fork"  # how workers start
    ended: bool = False  # whether the training ended
    oom_kills: int = 0  # processes that the kernel killed for memory
    shm_used_fraction: float | None = None  # of /dev/shm, at most
    # Mean size of the tensors in shared memory that it holds; ``None`` where none was seen.
    shared_tensor_bytes: float | None = None
    own_cpu_s: float = 0.0  # CPU seconds that this process took while it watched
    unreadable: bool = False  # whether the kernel keeps from us which calls threads wait in
    # How many times as long code takes here that comes after a wait: a look does, over one that
    # comes after another. On a virtual machine it was 5 times, for a look and a batch alike.
    cold_factor: float = 1.0

    @property
    def batches(self) -> int:
        """Batches of that loader that main asked for: other loaders have theirs."""
        return max(0, self.main.messages - self.other_batches)

    @property
    def pins(self) -> bool:
        """Whether a pin thread was seen."""
        return any(look.pin is not None for look in self.looks)


class Watcher:
    """Watches one training."""

    def __init__(
        self,
        training: Training,
        *,
        root: Path = Path("/"),
        gpus: Gpus | None = None,
        clock: Callable[[], int] = time.monotonic_ns,
        cpu_clock: Callable[[], int] = time.process_time_ns,
    ) -> None:
        # What it may use with all its ranks.
        self._whole = inspect_machine(root, gpus=gpus, pid=training.pid)
        self._training, self._root, self._clock = training, root, clock
        self._cpu_clock = cpu_clock
        self._proc = f"{root}/proc".replace("//", "/")
        self._machine = os.uname().machine
        self._began_ns, self._began_cpu_ns = clock(), cpu_clock()
        self._sampler = Sampler(training.pid, root=root)
        self._shares = GroupShares(training.pid, root)
        self._cgroups = read_cgroups(training.pid, root)
        self._kills = oom_kills(self._cgroups, root) or 0
        self._first = self._sampler.take()
        self._gil = gil_of(f"{self._proc}/{training.pid}")  # and of workers that are forked
        self._main = _Process(training.pid, root, self._machine, self._gil, is_main=True)
        self._pin: Thread | None = None
        self._not_pins: set[str] = set()
        self._parent = training.parent
        self._children: dict[str, ProcFile] = {}
        self._workers: dict[int, _Process] = {}
        self._find_parents()
        self._listed: str | None = None
        self._started = 0
        self._ended_loaders = set[str]()  # of workers that have ended
        self._pipes = _Pipes(self._proc, training.pid)
        # Each with the workers that were idle, and alive, and the loaders that were awaited: main
        # waited, they made a batch, and none of theirs was finished.
        self._looks: collections.deque[
            tuple[Look, tuple[int, ...], tuple[int, ...], tuple[str, ...]]
        ]
        self._looks = collections.deque(maxlen=4000)
        self._seldom_ns = self._often_ns = self._weighed_ns = 0
        self._shm_used: float | None = None
        self._tensor_bytes: float | None = None
        self._ended = False
        self._look_ns = 0
        self._cold_ns, self._warm_ns = [0, 0], [0, 0]  # CPU time of looks at a thread, and how many
        self._find_workers(first=True)
        self._ended_before = self._ended_workers()
        self._last_cpu_ns = cpu_clock()

    @property
    def has_workers(self) -> bool:
        """Whether any was seen so far."""
        return bool(self._workers or self._started)

    @property
    def machine(self) -> Machine:
        """What the training may use: of several ranks, each its share."""
        ranks = self._training.ranks
        if ranks == 1:
            return self._whole
        return self._whole.shared_by(ranks, cpus_of_job(self._training.pid, self._root))

    def meet(self, ranks: int) -> None:
        """So many ranks of its job are there by now: some may load later than others."""
        ranks = max(ranks, self._training.ranks)
        self._training = dataclasses.replace(self._training, ranks=ranks)

    def look(self) -> bool:
        """Look once; ``False`` where the training has ended."""
        now = self._clock()
        if now >= self._seldom_ns:
            self._seldom_ns = now + 1_000_000_000
            self._look_around()
        elif now >= self._often_ns:
            self._often_ns = now + 200_000_000
            self._sampler.look()
            self._find_pin()
            self._main.count()
        # A /dev/shm that is too small for its first batches ends a training within a second.
        if now >= self._weighed_ns or now < self._began_ns + 2_000_000_000:
            self._weighed_ns = now + 200_000_000
            self._weigh_shared()
        if now < self._began_ns + 2_000_000_000:
            self._weigh_tensors()
        self._find_workers()
        main = self._main.look()
        if main is None:
            self._ended = True
            return False
        began = self._cpu_clock()
        states = {pid: each.look() for pid, each in self._workers.items()}
        self._warm_ns[0] += self._cpu_clock() - began
        self._warm_ns[1] += len(states)
        for pid in [pid for pid, state in states.items() if state is None]:
            self._ended_loaders.add(self._workers.pop(pid).loader)  # its number may come again
        alive = tuple(pid for pid, state in states.items() if state is not None)
        idle = tuple(pid for pid in alive if states[pid] == "queue")
        pin = None if self._pin is None else self._pin.look()
        if pin is None and self._pin is not None:  # each iterator starts its own
            self._pin.close()
            self._pin = None
        finished, sent = self._pipes.unread()
        making = {self._pipes.loader_of(pid) for pid in alive if pid not in idle}
        waits = "queue" in (main, pin)
        awaited = tuple(each for each in making if waits and finished.get(each) == 0)
        look = Look(
            main=main,
            pin=pin,
            idle=len(idle),
            alive=len(alive),
            finished_bytes=sum(finished.values()) if finished else None,
            sent_bytes=sent,
        )
        self._looks.append((look, idle, alive, awaited))
        spent, self._last_cpu_ns = self._cpu_clock() - self._last_cpu_ns, self._cpu_clock()
        self._look_ns = spent if not self._look_ns else (7 * self._look_ns + spent) // 8
        return True

    def pause_s(self, share: float = SHARE) -> float:
        """Seconds until the next look: uneven, and so long that looking stays cheap."""
        mean = min(0.5, max(0.025, self._look_ns / 1e9 / share))
        return mean * random.uniform(0.5, 1.5)

    def rest(self, sleep: Callable[[float], None]) -> None:
        """Pass the time to the next look, and look at the main thread alone half way.

        How long that waits rests on it, and a look at it costs a fraction of one at all.
        """
        sleep(self.pause_s() / 2)
        began = self._cpu_clock()
        self._main.look()
        self._cold_ns[0] += self._cpu_clock() - began
        self._cold_ns[1] += 1
        sleep(self.pause_s() / 2)

    @property
    def _cold_factor(self) -> float:
        (cold_ns, colds), (warm_ns, warms) = self._cold_ns, self._warm_ns
        if not (cold_ns and warm_ns and warms):  # as without workers
            return 1.0
        return min(10.0, max(1.0, cold_ns / colds / (warm_ns / warms)))

    def usage(self, processes: Callable[[], Processes] | None = None) -> Usage:
        """What it and others have used since the start; ``processes`` as of ``GroupShares``."""
        last = self._sampler.take()
        usage, _ = usage_between(self._first, last)
        fair = self._shares.fair_cores(last.allowed_cpus, usage, processes)
        return dataclasses.replace(usage, fair_cpu_cores=fair)

    def seen(self) -> Seen:
        """All that was seen so far."""
        window_ns = max(1, self._clock() - self._began_ns)
        members = [each.seen() for each in self._workers.values()]
        mine = self._by_loader(members)
        others = [each for each in members if each not in mine]
        apart = {each.pid for each in others}

        def own(pids: tuple[int, ...]) -> int:
            return sum(pid not in apart for pid in pids)

        main = self._main.seen()
        ended = self._ended_workers()
        other_batches = sum(each.messages for each in others)
        # Whose the feeders were that have ended is known where only workers of others have.
        own_loaders = {"", *(self._pipes.loader_of(each.pid) for each in mine)}
        only_others = bool(self._ended_loaders) and own_loaders.isdisjoint(self._ended_loaders)
        if mine and only_others and not self._started:
            other_batches += main.ended_messages
        return Seen(
            training=dataclasses.replace(
                self._training,
                workers=tuple(each.pid for each in members),
                ended_workers=len(ended),
            ),
            window_s=window_ns / 1e9,
            looks=tuple(
                look._replace(idle=own(idle), alive=own(alive))
                for look, idle, alive, _ in self._looks
            ),
            main=main,
            workers=mine,
            other_workers=len(others),
            other_batches=other_batches,
            started_workers=self._started,
            ended_before=tuple(each for each in self._ended_before if each in ended),
            start_method=self._start_method(),
            ended=self._ended,
            oom_kills=max(0, (oom_kills(self._cgroups, self._root) or 0) - self._kills),
            shm_used_fraction=self._shm_used,
            shared_tensor_bytes=self._tensor_bytes,
            own_cpu_s=(self._cpu_clock() - self._began_cpu_ns) / 1e9,
            unreadable=self._main.thread.unreadable,
            cold_factor=self._cold_factor,
        )

    def close(self) -> None:
        """Let go of all files."""
        self._pipes.close()
        for kept in self._children.values():
            kept.close()
        for each in (self._main, self._pin, *self._workers.values()):
            if each is not None:
                each.close()

    def _find_workers(self, *, first: bool = False) -> None:
        """Take in workers that came, where the list of children has changed."""
        listed = self._read_children()
        if listed == self._listed:
            return
        unnamed = False
        for word in listed.split():
            pid = int(word)
            if pid in self._workers:
                continue
            stat = read_stat(f"{self._proc}/{pid}")
            if stat is None or stat.state in ("Z", "X"):
                continue
            if stat.name == WORKER:
                self._workers[pid] = _Process(pid, self._root, self._machine, self._gil)
                self._started += not first
            else:
                unnamed = True
        # What has no name yet may get one: look again.
        self._listed = None if unnamed else listed
        self._pipes.open(list(self._workers))
        for pid, each in self._workers.items():
            each.loader = self._pipes.loader_of(pid) or each.loader

    def _ended_workers(self) -> tuple[int, ...]:
        """Those that have ended and that nobody has waited for."""
        pids = map(int, self._read_children().split())
        stats = ((pid, read_stat(f"{self._proc}/{pid}")) for pid in pids)
        return tuple(
            pid for pid, stat in stats if stat and stat.state == "Z" and stat.name == WORKER
        )

    def _find_parents(self) -> None:
        """Which threads have children: any may have started the workers, not main's alone.

        Or a fork server, which main starts with the first of them.
        """
        parents = f"{self._proc}/{self._parent}/task"
        found = set(list_names(parents))
        for name in self._children.keys() - found:
            self._children.pop(name).close()
        for name in found - self._children.keys():
            kept = ProcFile(f"{parents}/{name}/children")
            if name == str(self._parent) or kept.read():
                self._children[name] = kept
            else:
                kept.close()
        if not self._workers and self._parent == self._training.pid:
            server = next(filter(self._serves, self._read_children().split()), None)
            if server is not None:
                self._parent = int(server)
                self._find_parents()

    def _serves(self, pid: str) -> bool:
        """Whether a process is a fork server that has started workers."""
        if "multiprocessing.forkserver" not in read_text(f"{self._proc}/{pid}/cmdline"):
            return False
        started = read_text(f"{self._proc}/{pid}/task/{pid}/children").split()
        stats = (read_stat(f"{self._proc}/{n}") for n in started)
        return any(stat is not None and stat.name == WORKER for stat in stats)

    def _read_children(self) -> str:
        return " ".join(kept.read() for kept in self._children.values())

    def _find_pin(self) -> None:
        """The pin thread, among the threads that came since they were last looked at."""
        if self._pin is not None or not self._workers:
            return
        folder = f"{self._proc}/{self._training.pid}/task"
        for name in set(list_names(folder)) - self._not_pins:
            self._not_pins.add(name)
            if read_text(f"{folder}/{name}/comm").strip() == PIN_THREAD:
                self._pin = Thread(f"{folder}/{name}", self._machine, self._gil)

    def _look_around(self) -> None:
        """What changes slowly: memory, threads of the main process."""
        self._weigh_tensors()
        for each in self._workers.values():
            each.weigh()
        self._find_parents()
        self._not_pins.clear()  # one that had no name yet has got it
        self._find_pin()
        self._main.count(again=True)

    def _weigh_shared(self) -> None:
        shm = read_shared_memory(self._root, self._training.pid)
        if shm is not None and shm.size_bytes:
            used = shm.used_bytes / shm.size_bytes
            self._shm_used = max(used, self._shm_used or 0.0)

    def _weigh_tensors(self) -> None:
        if self._tensor_bytes is None and self._workers:
            held = map(self._held_tensors, (self._training.pid, *self._workers))
            self._tensor_bytes = next(filter(None, held), None)

    def _held_tensors(self, pid: int) -> float | None:
        """Mean size of the shared tensors of which a process has descriptors."""
        sizes, folder = [], f"{self._proc}/{pid}/fd"
        for name in list_names(folder):
            with contextlib.suppress(OSError):
                # A tensor's file has lost its name, and only the descriptor leads to it.
                if "/shm/torch_" in os.readlink(f"{folder}/{name}"):
                    sizes.append(os.stat(f"{folder}/{name}").st_size)
        return sum(sizes) / len(sizes) if sizes else None

    def _by_loader(self, members: Sequence[ProcessSeen]) -> tuple[ProcessSeen, ...]:
        """The workers of the loader that is waited for most, or of the one that gave most.

        Of two that give a batch for each step it is the slow one. A wait for the first batch of a
        validation, in a training that else waits for none, says nothing of what to look at.
        """
        groups: dict[str, list[ProcessSeen]] = collections.defaultdict(list)
        for each in members:
            groups[self._pipes.loader_of(each.pid)].append(each)

        awaited = collections.Counter(each for *_, those in self._looks for each in those)

        def worth(loader: str) -> tuple[int, int]:
            looks = awaited[loader] if awaited[loader] >= WAITED * len(self._looks) else 0
            return looks, sum(each.messages for each in groups[loader])

        return tuple(groups[max(groups, key=worth)]) if groups else ()

    def _start_method(self) -> str:
        if self._parent != self._training.pid:
            return "forkserver"
        own = read_text(f"{self._proc}/{self._training.pid}/cmdline")
        for pid in self._workers:
            words = read_text(f"{self._proc}/{pid}/cmdline")
            # What is forked has its parent's, which may be a rank that was spawned itself.
            return "spawn" if "multiprocessing.spawn" in words and words != own else "fork"
        for word in self._read_children().split():  # that start, and have no name yet
            words = read_text(f"{self._proc}/{word}/cmdline")
            for method in ("spawn", "forkserver"):
                if f"multiprocessing.{method}" in words and words != own:
                    return method
        return "fork"


class _Process:
    """One process: its main thread, and what it had used when it was first seen."""

    def __init__(
        self, pid: int, root: Path, machine: str, gil: Sequence[range], *, is_main: bool = False
    ) -> None:
        self.pid, self._folder = pid, f"{root}/proc/{pid}".replace("//", "/")
        self.thread = Thread(f"{self._folder}/task/{pid}", machine, gil, leave_out=WORKER)
        # Of main it would be all that the training has started.
        self._tree = None if is_main else ProcessTree(pid, root=root)
        self._pages: list[int] = []
        self._fed: dict[str, IoCounters] = {}  # by feeder, also by those that have ended
        self._not_feeders: set[str] = set()
        self.loader = ""  # what a worker's is known by, also when it has ended
        self._first = self._last = self._totals() or (Member(start_ticks=0), {}, 0)
        self._switches = self._read_switches()[1]

    def look(self) -> Wait | None:
        """What its main thread does; ``None`` where the process has ended."""
        state = self.thread.look()
        if state is None:
            self.close()
        return state

    def close(self) -> None:
        self.thread.close()

    def seen(self) -> ProcessSeen:
        """All that it did since it was first seen."""
        self._last = self._totals() or self._last
        (first, first_io, began_ns), (last, last_io, ended_ns) = self._first, self._last
        own_ns, leader = last.cpu_ns - first.cpu_ns, str(self.pid)

        def ran(name: str) -> tuple[float, float]:
            now, then = (each.threads.get(name, _UNSEEN) for each in (last, first))
            return (now.run_ns - then.run_ns) / 1e9, (now.wait_ns - then.wait_ns) / 1e9

        def did(name: str, what: str) -> int:
            return getattr(last_io.get(name), what, 0) - getattr(first_io.get(name), what, 0)

        last_io = self._fed | last_io
        feeders = [n for n, io in last_io.items() if n != leader and _feeds(io)]
        if self._tree is None:  # threads of main may also log to files, as TensorBoard's does
            feeders = [n for n in feeders if not did(n, "write_bytes")]
        fed = {name: (did(name, "writes"), did(name, "written_chars")) for name in feeders}
        put = {name: _messages(*each) for name, each in fed.items() if each[0] > 0}
        run_s, queued_s = ran(leader)
        mask, (yielded, preempted) = self._read_switches()
        return ProcessSeen(
            pid=self.pid,
            waits=dict(self.thread.waits),
            run_s=run_s,
            queued_s=queued_s,
            yielded=max(0, yielded - self._switches[0]),
            preempted=max(0, preempted - self._switches[1]),
            others_cpu_s=max(0.0, own_ns / 1e9 - run_s),
            children_cpu_s=max(0, ended_ns - began_ns - own_ns) / 1e9 if self._tree else 0.0,
            children=dict(self.thread.children),
            threads=max(1, len(last.threads)),
            cpus=len(mask) if mask else None,
            messages=sum(put.values()),
            ended_messages=sum(count for name, count in put.items() if name not in last.threads),
            message_bytes=sum(chars for _, chars in fed.values()),
            feeding_cpu_s=sum(ran(name)[0] for name in feeders if name in last.threads),
            reads=did(leader, "reads"),
            written_bytes=did(leader, "written_chars"),
            grown_bytes=_steady(self._pages) * os.sysconf("SC_PAGE_SIZE"),
        )

    def _read_switches(self) -> tuple[frozenset[int] | None, tuple[int, int]]:
        """The CPUs that it may run on, and how often its main thread has let go of one so far."""
        status = read_text(f"{self._folder}/status")
        return parse_allowed_cpus(status), parse_switches(status)

    def count(self, *, again: bool = False) -> None:
        """Note what its feeders have written, which end with the workers that they feed.

        Other threads are read once, or with ``again`` once more: one may not have written yet.
        """
        if again:
            self._not_feeders.clear()
        for name in set(list_names(f"{self._folder}/task")) - self._not_feeders - {str(self.pid)}:
            io = parse_io(read_text(f"{self._folder}/task/{name}/io"))
            if io is not None and _feeds(io):
                self._fed[name] = io
            else:
                self._not_feeders.add(name)
                if io is not None:  # it reads by now, and so feeds no queue
                    self._fed.pop(name, None)

    def weigh(self) -> None:
        pages = parse_statm(read_text(f"{self._folder}/statm"))
        if pages is not None:
            self._pages.append(pages[0] - pages[1])

    def _totals(self) -> tuple[Member, dict[str, IoCounters], int] | None:
        """What it has used, its threads have read and written, and it has used with its children.

        ``None`` where it has ended.
        """
        # Of two readings of it, what it does between them would count as its children's.
        whole_ns = 0 if self._tree is None else self._tree.read().cpu_ns
        used = member_of(self._folder) if self._tree is None else self._tree.member(self.pid)
        if used is None:
            return None
        tasks = f"{self._folder}/task"
        read = {n: parse_io(read_text(f"{tasks}/{n}/io")) for n in list_names(tasks)}
        return used, {name: io for name, io in read.items() if io is not None}, whole_ns


def _steady(sizes: Sequence[int]) -> int:
    """Twice the growth in the half in which it is less; 0 of a few sizes."""
    if len(sizes) < 5:
        return 0
    middle = sizes[len(sizes) // 2]
    return max(0, 2 * min(middle - sizes[0], sizes[-1] - middle))


def _feeds(io: IoCounters) -> bool:
    """Whether a thread feeds a queue: it writes messages and reads nothing."""
    return io.writes > 0 and not io.reads


def _messages(writes: int, chars: int) -> int:
    # Python writes a message of more than 16 KiB behind its length, in two writes.
    return writes // 2 if chars / writes > 8192 else writes


class _Pipes:
    """The pipes of a training's queues, of which the unread bytes are counted.

    A loader makes one pipe for finished batches, then one for the indices of each worker. The main
    process has both ends of all; a worker has its own, and by ``fork`` those made before. Which of
    two is the older, descriptors' numbers say only of one loader: those of an epoch that is over
    are given out again. Of two loaders it is the one that workers have which were started earlier.
    A worker that is forked for the older one once both run, as by ``dlprof.tune``, has the pipes of
    both and seems to be the newer one's.
    """

    def __init__(self, proc: str, pid: int) -> None:
        self._proc, self._pid = proc, pid
        self._open: dict[str, int] = {}
        self._data: dict[int, str] = {}
        self._known: frozenset[int] = frozenset()

    def open(self, workers: Sequence[int]) -> None:
        """Find the queues of some workers, where they are others than before."""
        if frozenset(workers) == self._known:
            return
        self.close()
        self._known = frozenset(workers)
        ends = self._ends(self._pid)
        both = {pipe: min(numbers) for pipe, numbers in ends.items() if len(numbers) > 1}
        held = {pid: self._ends(pid).keys() & both.keys() for pid in sorted(workers)}
        made: dict[str, tuple[int, int]] = {}  # sorts by age; processes' numbers grow
        for pid, pipes in held.items():
            made |= {pipe: (pid, both[pipe]) for pipe in pipes - made.keys()}
        own = {pid: max(pipes, key=made.__getitem__) for pid, pipes in held.items() if pipes}
        shared = sorted(made.keys() - own.values(), key=made.__getitem__)
        for pid, pipe in own.items():
            before = [each for each in shared if made[each] < made[pipe] and each in held[pid]]
            if before:
                self._data[pid] = before[-1]
        for pipe in {*own.values(), *self._data.values()}:
            with contextlib.suppress(OSError):
                self._open[pipe] = os.open(
                    f"{self._proc}/{self._pid}/fd/{both[pipe]}",
                    os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC,
                )

    def loader_of(self, worker: int) -> str:
        """What a worker's loader is known by; empty where it isn't."""
        return self._data.get(worker, "")

    def unread(self) -> tuple[dict[str, int], int]:
        """Bytes of finished batches, by loader, and of indices, that nobody has read yet."""
        unread = {pipe: _unread(file) for pipe, file in self._open.items()}
        finished = {each: unread[each] for each in {*self._data.values()} & unread.keys()}
        return finished, sum(unread.values()) - sum(finished.values())

    def close(self) -> None:
        for file in self._open.values():
            os.close(file)
        self._open.clear()
        self._data.clear()
        self._known = frozenset()

    def _ends(self, pid: int) -> dict[str, list[int]]:
        """A process's descriptors of each pipe."""
        found: dict[str, list[int]] = collections.defaultdict(list)
        folder = f"{self._proc}/{pid}/fd"
        for name in list_names(folder):
            with contextlib.suppress(OSError, ValueError):
                leads = os.readlink(f"{folder}/{name}")  # /proc's links lead nowhere
                if leads.startswith("pipe:"):
                    found[leads].append(int(name))
        return found


def _unread(file: int) -> int:
    import fcntl  # not on Windows

    try:
        count: int = struct.unpack("i", fcntl.ioctl(file, 0x541B, b"\0\0\0\0"))[0]  # FIONREAD
    except OSError:
        return 0
    return count
