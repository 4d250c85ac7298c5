"""The ranks of a sweep: launched here, or by torchrun, srun or mpirun, which dlprof then measures.

Under a launcher the ranks of a machine pass its first one their environment and their cores, by
which it runs their loaders, and wait until it has ended. Of several machines, or nodes, the one of
rank 0 sweeps, and the others' first ranks do what it orders (``dlprof.trial.nodes``).
"""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import importlib.util
import json
import os
import re
import socket
import struct
import sys
import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, cast

from dlprof.engine.trials import as_stated, limits_of, opened_runner
from dlprof.errors import DlprofError, UsageError
from dlprof.machine import inspect_machine
from dlprof.machine.cgroups import read_cgroups
from dlprof.machine.inspection import available_memory, node_cpus
from dlprof.machine.launchers import job_name, launched_as
from dlprof.records import LeftOut, Machine, NumaBinding, Usage
from dlprof.records.codec import from_json, to_json
from dlprof.settings import SweepSettings, settings_to_json
from dlprof.settings.model import check_conflicts
from dlprof.trial.launch import LocalRank
from dlprof.trial.nodes import Door, Link, Nodes, Ranks, knock
from dlprof.trial.protocol import Channel, Message, Orders, TrialRequest
from dlprof.trial.runner import TrialRunner
from dlprof.units import counted, format_bytes
from dlprof.version import __version__

_BUILDER_BYTES = 200 << 20  # what a process with torch and a small dataset takes at least

_PATIENCE_S = 60.0  # for all ranks of a machine to come
_PAUSE_S = 0.1
_PORTS = 16  # tried one after another: torch's own rendezvous has the one before
_ONE_THREAD = {"OMP_NUM_THREADS": "1"}
"""Of each of several ranks, where the user has not set it, as torch.distributed.run has it."""

_ALONE = "For one loader alone, unset WORLD_SIZE; to launch ranks here, use --launch-ranks N."


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class LaunchedRank:
    """Which process of a job this is."""

    rank: int  # over all machines
    world: int  # how many there are on all machines
    local_rank: int  # among those of this machine, from 0
    local_size: int  # how many of them share this machine
    environ: Mapping[str, str]  # what the rank's loader is to find in its environment
    job: str  # what all ranks have in common, and no other job
    # Where the machine of rank 0 is reached, and by which ports; empty for one machine.
    leader: tuple[str, range] | None = None

    @classmethod
    def of(cls, environ: Mapping[str, str]) -> LaunchedRank | None:
        """As the launcher says; ``None`` for a process by itself."""
        said = launched_as(environ)
        world = said["WORLD_SIZE"]
        if world is None or world <= 1:
            return None
        if sys.platform != "linux":
            raise UsageError(f"WORLD_SIZE={world}: ranks are measured on Linux only", hint=_ALONE)
        for name in ("RANK", "LOCAL_WORLD_SIZE"):
            if said[name] is None:  # never guessed: the world's size is not the machine's
                raise UsageError(
                    f"WORLD_SIZE={world} says that this is one of {world} ranks, and no {name}",
                    hint=f"Start it by torchrun, srun or mpirun. {_ALONE}",
                )
        rank, local_size = said["RANK"] or 0, said["LOCAL_WORLD_SIZE"] or 1
        by_torch = "WORLD_SIZE" in environ
        if by_torch and not (environ.get("MASTER_ADDR") and environ.get("MASTER_PORT")):
            raise UsageError(
                f"WORLD_SIZE={world} without MASTER_ADDR and MASTER_PORT: the ranks can't meet",
                hint=f"Start it by torchrun. {_ALONE}",
            )
        job = f"{job_name(environ, os.getppid())}:{os.getuid()}"
        local_rank = rank if said["LOCAL_RANK"] is None else said["LOCAL_RANK"]
        if not (rank < world and local_rank < local_size <= world):
            raise UsageError(
                f"The launcher's numbers don't fit: rank {rank} of {world}, and on this machine "
                f"{local_rank} of {local_size}",
                hint=f"Start it by torchrun, srun or mpirun. {_ALONE}",
            )
        named = {name: str(value) for name, value in said.items()}
        return cls(
            rank=rank,
            world=world,
            local_rank=local_rank,
            local_size=local_size,
            environ={**environ, **named, "LOCAL_RANK": str(local_rank)},
            job=hashlib.sha256(job.encode()).hexdigest()[:24],
            leader=_leader(environ, world) if local_size < world else None,
        )


def _leader(environ: Mapping[str, str], world: int) -> tuple[str, range]:
    """Where the node of rank 0 is reached: at torch's address, beside the port of its rendezvous.

    Of torch's own store only torch knows how to ask, and a second port would have to be sent to
    every node; the next ones to the first are known to all, and free of torch. srun names the
    nodes, and the job's number makes the port.
    """
    address, port = environ.get("MASTER_ADDR", ""), environ.get("MASTER_PORT", "")
    if not address:  # the first of rack[1-2]-n[3-4],login
        listed = environ.get("SLURM_STEP_NODELIST") or environ.get("SLURM_JOB_NODELIST", "")
        first = re.split(r",(?![^\[]*\])", listed)[0]
        address = re.sub(r"\[(\d+)[^\]]*\]", r"\1", first)
    job = environ.get("SLURM_JOB_ID", "")
    if not port.isdecimal() and job.isdecimal():
        port = str(20_000 + int(job) % 10_000)
    if not address or not port.isdecimal():
        raise UsageError(
            f"{world} ranks on several machines without MASTER_ADDR and MASTER_PORT: they can't "
            "meet",
            hint=f"Start them by torchrun or srun, or set both. {_ALONE}",
        )
    low = min(int(port) + 1, 65_536 - _PORTS)
    return address, range(low, low + _PORTS)


@contextlib.contextmanager
def gather_ranks(
    environ: Mapping[str, str],
    words: Sequence[str],
    settings: SweepSettings,
    *,
    pickled: bytes | None = None,
) -> Iterator[Ranks | None]:
    """The ranks that a launcher started; none for a process alone.

    Yields ``None`` in all processes but the first of all, once that one has ended.

    The command's ``words`` and the ``settings`` that follow from them are to be the same for all.
    ``pickled`` is a live object that this node loads instead of ``settings.target`` (Python API).
    """
    me = LaunchedRank.of(environ)
    if me is None:
        yield Ranks()
        return
    alike = {"words": [*words], "dlprof": __version__, **settings_to_json(settings)}
    # Of a machine, whose first runs all.
    here = {"directory": str(Path.cwd()), "python": sys.prefix}
    said = {**here, **json.loads(json.dumps(alike))}
    # Two nodes may be on one machine, where somebody tries it.
    node = environ.get("GROUP_RANK", environ.get("SLURM_NODEID", ""))
    name = f"\0dlprof-{me.job}-{node}"
    if me.local_rank:
        _follow(me, name, said)
        yield None
        return
    with socket.socket(socket.AF_UNIX) as door, contextlib.ExitStack() as links:
        try:
            door.bind(name)
        except OSError:
            raise UsageError(
                "Another sweep of this job runs on this machine",
                hint="Wait for it, or end it: both would disturb each other.",
            ) from None
        door.listen(me.local_size)
        own = _local_rank(me.environ, os.sched_getaffinity(0))
        local_ranks = {0: own, **_others(door, me, said, links)}
        # Only now, too: who came later would look for this one a minute long.
        _refuse_one_core(environ, own.cpus, me.local_size)
        _refuse_many(me.local_size)
        cpus = frozenset[int]().union(*(local_rank.cpus for local_rank in local_ranks.values()))
        links.callback(_run_on, own.cpus)
        links.callback(door.close)  # before they are let go, who may come again at once
        _run_on(cpus)  # what is measured is all that the ranks may use
        local = tuple(local_ranks[rank] for rank in sorted(local_ranks))
        if me.leader is None:
            yield Ranks(local=_with_rendezvous(local))
            return
        said = {name: value for name, value in said.items() if name not in here}
        if me.rank:
            _serve(me, local, said, settings, pickled)
            yield None
            return
        with _leading(me, local, said) as ranks:
            yield ranks


def _run_on(cpus: frozenset[int]) -> None:
    """Keep this process to some CPUs, where that may be asked for."""
    with contextlib.suppress(OSError):
        os.sched_setaffinity(0, cpus)


@contextlib.contextmanager
def _leading(
    me: LaunchedRank, local: tuple[LocalRank, ...], said: Mapping[str, object]
) -> Iterator[Ranks]:
    address, ports = cast(tuple[str, range], me.leader)
    port = _free_port("")
    with contextlib.closing(
        Door(ports, me.job, {"welcome": port}, lambda hello: _refuse(said, hello["said"], hello))
    ) as door:
        others = {*range(me.world)} - {rank.rank for rank in local}
        links = door.gather(others, _PATIENCE_S)
        with contextlib.closing(Nodes(me.world, links)) as nodes:
            yield Ranks(local=_with_rendezvous(local, address, port), nodes=nodes)


def _serve(
    me: LaunchedRank,
    local: tuple[LocalRank, ...],
    said: Mapping[str, object],
    settings: SweepSettings,
    pickled: bytes | None,
) -> None:
    """Do what the node of rank 0 orders with the ranks of this one, until it lets it go."""
    host, numbers = socket.gethostname(), [rank.rank for rank in local]
    hello = {"job": me.job, "host": host, "ranks": numbers, "said": dict(said)}
    connection, channel, answer = _first_reach(me, hello)
    there = connection.getpeername()
    leader = Link(there[0], [0])
    leader.open(connection, channel)

    def reach() -> bool:
        try:
            found = knock(there[0], [there[1]], hello)
        except ConnectionRefusedError:
            return False
        if found is not None:
            leader.open(*found[:2])
        return True

    local = _with_rendezvous(local, cast(tuple[str, range], me.leader)[0], answer["welcome"])
    with contextlib.closing(Nodes(me.world, [leader], leads=False, reach=reach)) as nodes:
        try:
            settings = with_ranks(as_stated(settings), local)
            with (
                opened_runner(
                    settings, _Silent(), pickled=pickled, ranks=Ranks(local=local, nodes=nodes)
                ) as runner,
                contextlib.ExitStack() as beside,
            ):
                nodes.serve(_orders(runner, settings, hello, beside))
        except DlprofError as error:
            nodes.fail(error)
            raise


def _orders(
    runner: TrialRunner, settings: SweepSettings, hello: Message, beside: contextlib.ExitStack
) -> Orders:
    """What a node does when it is ordered to, where its own command says the same.

    What lasts as long as the node serves is entered into ``beside``.
    """

    def build(request: Message) -> Message:
        theirs = {**request, "target": request["target"]["text"]}
        for name in ("target", "arguments", "shuffle", "seed"):
            _refuse({name: theirs[name]}, {name: getattr(settings, name)}, hello)
        target = runner.build(limits_of(settings, inspect_machine()))
        return {"target": to_json(target), "versions": runner.versions}

    def own(request: Message) -> TrialRequest:
        asked = from_json(TrialRequest, request)
        mine, theirs = settings.step_callable, asked.step_callable
        _refuse({"step_callable": theirs}, {"step_callable": mine}, hello)
        return asked

    def probe(request: Message) -> Message:
        runner.probe(own(request))
        return {}

    def look(request: Message, **details: Any) -> Message:
        asked = dataclasses.replace(from_json(TrialRequest, request), step_callable=None)
        runner.look(asked, **details)
        return {}

    def explain(request: Message, **details: Any) -> Message:
        trial, sent = runner.explain(own(request), **details)
        return {"trial": to_json(trial), "details": sent}

    def load(**details: Any) -> Message:
        def say(text: str) -> None:
            sys.stderr.write(f"{hello['host']}: {text}\n")

        made = runner.load(settings.make_load, folder=Path.cwd(), say=say, **details)
        beside.enter_context(made)
        return {}

    return {"build": build, "probe": probe, "look": look, "explain": explain, "load": load}


class _Silent:
    """Nobody hears of what a node does by order."""

    def preparing(self, what: str, done: int, total: int) -> None:
        """Nothing."""

    def pulse(self, usage: Usage | None) -> None:
        """Nothing."""

    def message(self, text: str) -> None:
        """Nothing."""


def _first_reach(me: LaunchedRank, hello: Message) -> tuple[socket.socket, Channel, Message]:
    """Come to the node that leads, which may come later."""
    address, ports = cast(tuple[str, range], me.leader)
    ends_s = time.monotonic() + _PATIENCE_S
    while time.monotonic() < ends_s:
        with contextlib.suppress(ConnectionRefusedError):
            if (found := knock(address, ports, hello)) is not None:
                return found
        time.sleep(_PAUSE_S)
    raise UsageError(
        f"Rank {me.rank} reached no rank 0 at {address}, ports {ports[0]} to {ports[-1]}, within "
        f"{_PATIENCE_S:.0f} s",
        hint="See what rank 0 says, and let the nodes reach each other by these ports.",
    )


def _local_rank(environ: Mapping[str, str], cpus: set[int] | frozenset[int]) -> LocalRank:
    return LocalRank(rank=int(environ["RANK"]), environ=environ, cpus=frozenset(cpus))


def _refuse(mine: Mapping[str, object], theirs: Mapping[str, object], heard: Message) -> None:
    rank = heard.get("rank", heard.get("ranks", [0])[0])
    for what, value in mine.items():
        if theirs.get(what) != value:
            raise UsageError(
                f"Ranks differ: {what} is {value!r} on rank 0 "
                f"and {theirs.get(what)!r} on rank {rank}",
                hint="Start all ranks with the same command, by one launcher.",
            )


def _refuse_one_core(environ: Mapping[str, str], cpus: Collection[int], ranks: int) -> None:
    """Refuse what srun makes of a job that names its cores to sbatch alone."""
    # A rank inherits sbatch's own number, though srun does not go by it.
    by_srun = "SLURM_PROCID" in environ and environ.get("SLURM_CPUS_PER_TASK") != "1"
    if by_srun and len(cpus) == 1 and (os.cpu_count() or 1) > ranks:
        raise UsageError(
            "srun gives each task a single CPU",
            hint="Give --cpus-per-task to srun too, or set SRUN_CPUS_PER_TASK: sbatch's is not "
            "inherited.",
        )


def _follow(me: LaunchedRank, name: str, said: Mapping[str, object]) -> None:
    """Hand this rank over to the first of its machine, and wait until that has ended."""
    with socket.socket(socket.AF_UNIX) as link:
        ends_s = time.monotonic() + _PATIENCE_S
        while link.connect_ex(name):
            if time.monotonic() > ends_s:
                raise UsageError(
                    f"Rank {me.rank} found no first rank of its machine within {_PATIENCE_S:.0f} s",
                    hint="See what the rank with LOCAL_RANK=0 says.",
                )
            time.sleep(_PAUSE_S)
        if not _is_own(link):
            raise UsageError(
                "Another user's process has taken the place where the ranks of this machine meet",
                hint="Launch them as another job, by another --master-port or --rdzv-id.",
            )
        sent = {
            "said": said,
            "rank": me.local_rank,
            "environ": dict(me.environ),
            "cpus": sorted(os.sched_getaffinity(0)),
        }
        with contextlib.suppress(OSError):  # the first one has ended, and says why
            link.sendall(json.dumps(sent).encode() + b"\n")
            while link.recv(4096):
                pass


def _is_own(link: socket.socket) -> bool:
    """Whether this user's process is at the other end: anybody here may use an abstract name."""
    peer = link.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12)
    return bool(struct.unpack("3i", peer)[1] == os.getuid())


def _others(
    door: socket.socket, me: LaunchedRank, said: Mapping[str, object], links: contextlib.ExitStack
) -> dict[int, LocalRank]:
    """The other ranks of this machine, by their numbers; their links stay open."""
    heard: dict[int, Message] = {}
    ends_s = time.monotonic() + _PATIENCE_S
    while len(heard) < me.local_size - 1:
        door.settimeout(max(0.001, ends_s - time.monotonic()))
        try:
            link = links.enter_context(door.accept()[0])
            if not _is_own(link):
                continue
            link.settimeout(max(0.001, ends_s - time.monotonic()))
            hello = json.loads(link.makefile("rb").readline())
        except (OSError, ValueError):
            break
        heard[int(hello["rank"])] = hello
    # Once all are there, who end with this one, or are late: who differs may be why.
    for _, hello in sorted(heard.items()):
        _refuse(said, hello["said"], hello)
    if missing := sorted({*range(1, me.local_size)} - {*heard}):
        raise UsageError(
            f"Rank {missing[0]} of {me.local_size} did not come within {_PATIENCE_S:.0f} s",
            hint="Start all ranks of the machine with the same command, by one launcher; from "
            f"Python, call it on all, after a barrier if some take longer to come. {_ALONE}",
        )
    return {
        rank: _local_rank(hello["environ"], frozenset(hello["cpus"]))
        for rank, hello in heard.items()
    }


def launched(count: int, environ: Mapping[str, str]) -> tuple[LocalRank, ...]:
    """Ranks of this machine, with the environment that torchrun gives."""
    if sys.platform != "linux":
        raise UsageError(
            "launch_ranks needs Linux, where ranks are forked and share a barrier",
            hint="Assume them instead: --ranks N.",
        )
    _refuse_many(count)
    size = str(count)
    threads = _ONE_THREAD if count > 1 else {}
    local_ranks = [
        LocalRank(
            rank=rank,
            environ={
                **threads,
                **environ,
                **dict.fromkeys(("RANK", "LOCAL_RANK"), str(rank)),
                **dict.fromkeys(("WORLD_SIZE", "LOCAL_WORLD_SIZE"), size),
                "GROUP_RANK": "0",
            },
        )
        for rank in range(count)
    ]
    return _with_rendezvous(tuple(local_ranks))


def _refuse_many(count: int) -> None:
    room = available_memory(read_cgroups(os.getpid()))
    if room is not None and count * _BUILDER_BYTES > room:
        raise UsageError(
            f"{counted(count, 'rank')} need {format_bytes(count * _BUILDER_BYTES)} of memory "
            f"before they load anything, and {format_bytes(room)} is free",
            hint=f"Launch {max(1, room // _BUILDER_BYTES)} at most, or assume them: --ranks N.",
        )


def _free_port(host: str) -> int:
    with socket.create_server((host, 0)) as free:
        port: int = free.getsockname()[1]
        return port


def _with_rendezvous(
    local_ranks: tuple[LocalRank, ...], address: str = "127.0.0.1", port: int = 0
) -> tuple[LocalRank, ...]:
    """The same ranks with a port of their own, where they can meet if the target has them do so.

    torchrun's own store serves the processes that it started, which only wait here.
    """
    own = {
        "MASTER_ADDR": address,
        "MASTER_PORT": str(port or _free_port(address)),
        "TORCHELASTIC_USE_AGENT_STORE": "False",
    }
    return tuple(dataclasses.replace(each, environ={**each.environ, **own}) for each in local_ranks)


def resolve_ranks(settings: SweepSettings, ranks: Ranks) -> tuple[SweepSettings, Ranks]:
    """The settings and ranks of what is measured; ranks are launched where that is asked.

    Of ranks that are assumed one is measured, by itself, and computes as any of them would.
    """
    if not ranks.local and settings.launch_ranks:
        count = max(settings.launch_ranks)
        ranks = Ranks(local=launched(count, os.environ))
        _refuse_one_core(os.environ, os.sched_getaffinity(0), count)  # all are in one task
    if ranks.local:
        return with_ranks(settings, ranks.local), ranks
    if settings.step_barrier:
        raise UsageError(
            "step_barrier is between ranks, and none are launched", hint="Give launch_ranks too."
        )
    if settings.ranks > 1:
        alone = LocalRank(rank=0, environ={**_ONE_THREAD, **os.environ})
        ranks = dataclasses.replace(ranks, local=(alone,))
    return settings, ranks


def numa_cpus(ranks: Ranks, machine: Machine) -> tuple[tuple[int, ...], ...] | LeftOut:
    """The CPUs that ``torchrun --numa-binding=node`` binds each rank to, by rank.

    As ``torch.numa.binding`` has them: of the NUMA node of the GPU whose CUDA index is the rank's
    local one, those that it may run on. That module asks CUDA, which would have to be started here;
    the GPU's node is the same in ``/sys``.

    Returns:
        Nothing for a rank by itself, and on a machine of one node. What is left out where torchrun
        could not bind them, or it would change nothing.
    """
    if len(ranks.local) < 2 or len(nodes := node_cpus()) < 2:
        return ()
    free = os.sched_getaffinity(0)
    cards = {gpu.cuda_index: gpu.numa_node for gpu in machine.gpus}
    found, whys, change = list[tuple[int, ...]](), list[str](), False
    for rank in sorted(ranks.local, key=lambda each: each.rank):
        node, allowed = cards.get(int(rank.environ["LOCAL_RANK"])), rank.cpus or free
        near = () if node is None else nodes.get(node, ())
        found.append(tuple(sorted(allowed.intersection(near))))
        change = change or len(found[-1]) < len(allowed)
        if node is None:
            known = f"that of rank {rank.rank} is not known" if machine.gpus else "there is none"
            whys.append(f"torchrun goes by the NUMA node of each rank's GPU, and {known}")
        elif not found[-1]:
            whys.append(f"rank {rank.rank} may use no CPU of node {node}, where its GPU is")
    if not change:
        whys.append("each rank may only use CPUs of its GPU's node as it is")
    if ranks.nodes.links:
        whys.insert(0, "it is tried with ranks of one machine only")
    torch = importlib.util.find_spec("torch")  # which is not loaded for that
    places = [] if torch is None else torch.submodule_search_locations or []
    if not any(Path(place, "numa", "binding.py").exists() for place in places):
        whys.insert(0, "the torchrun that is installed can't: torch 2.9 brought it")
    return LeftOut(setting=NumaBinding().option, reason=whys[0]) if whys else tuple(found)


def with_ranks(settings: SweepSettings, local_ranks: Sequence[LocalRank]) -> SweepSettings:
    """The settings of a sweep over these ranks of a machine, whose limits all of them share."""
    asked = settings.launch_ranks or (len(local_ranks),)
    if max(asked) != len(local_ranks):
        raise UsageError(
            f"launch_ranks = {max(asked)}, and the launcher started "
            f"{counted(len(local_ranks), 'rank')}",
            hint="Leave launch_ranks out, or give the smaller numbers to try beside.",
        )
    settings = dataclasses.replace(settings, launch_ranks=asked)
    check_conflicts(settings)
    return dataclasses.replace(settings, ranks=len(local_ranks))
