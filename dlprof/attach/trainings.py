"""Which processes train: the main process of each, and the workers that load its data."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import re
import shlex
from collections import defaultdict
from collections.abc import Mapping, Sequence
from itertools import pairwise
from pathlib import Path

from dlprof.errors import NothingMeasuredError, UsageError
from dlprof.internals import WORKER
from dlprof.machine.launchers import is_parent, launched_as, read_environ
from dlprof.machine.neighbours import name_of_user
from dlprof.machine.procfs import ProcessStat, parse_owner, read_text
from dlprof.machine.tree import scan_processes

_FORKSERVER = "multiprocessing.forkserver"
_TAKING_VALUES = {"-X", "-W", "--check-hash-based-pycs", "-o", "--output", "--json"}
"""Options before a script, of Python and ``dlprof run``, that take the word behind them."""

_EXECNETS = "import sys;exec(eval(sys.stdin.readline()))"  # what xdist's processes start as

_LOADS_NOTHING = "Give the process that runs the training's loop; `dlprof top` lists those."


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Training:
    """A process that loads data, or may yet."""

    pid: int  # of its main process
    start_ticks: int  # when that started
    parent: int  # whose children the workers are: itself, or a fork server of its own
    command: tuple[str, ...] = ()  # its words
    workers: tuple[int, ...] = ()  # alive now
    ended_workers: int = 0  # that have ended and that nobody has waited for yet
    user: str = ""  # whose it is
    is_own: bool = True  # whether that is who looks
    ranks: int = 1  # of its job that share this machine, itself included
    launcher: str = ""  # by whose id it was found, with its name; empty where by its own

    @property
    def script(self) -> str:
        """What it runs, without the interpreter, its options, and the script's own."""
        program = self._program()
        name = " ".join(program[:2] if program[:1] in (["-m"], ["-c"]) else program[:1])
        return name.split("\n")[0] or " ".join(self.command) or f"process {self.pid}"

    @property
    def rerun(self) -> str:
        """The command that looks into it from its start; empty where there is no script to run."""
        program = self._program()
        return shlex.join(["dlprof", "run", *program]) if program and program[0] != "-c" else ""

    def _program(self) -> list[str]:
        """Its words from the script on, or from ``-m`` or ``-c`` on, without ``dlprof run``."""
        words = _behind_options(self.command[1:])
        if words[:3] == ["-m", "dlprof", "run"]:
            return _behind_options(words[3:])
        if words[1:2] == ["run"] and Path(words[0]).name == "dlprof":
            return _behind_options(words[2:])
        return words


def _behind_options(given: Sequence[str]) -> list[str]:
    """The words behind the options that stand before a script, ``-m`` or ``-c``."""
    words = list(given)
    while words and words[0].startswith("-") and words[0] not in ("-m", "-c"):
        name, _, module = words.pop(0).partition("=")
        if name == "--":
            break
        if name == "--module":
            return ["-m", *([module] if module else []), *words]
        if name.startswith("-m"):
            return ["-m", name.removeprefix("-m"), *words]
        if name in _TAKING_VALUES and not module:
            del words[:1]
    return words


def find_trainings(
    root: Path = Path("/"), known: dict[tuple[int, int], bool] | None = None
) -> tuple[Training, ...]:
    """All processes that have workers, or have torch loaded and may load data by themselves.

    What dlprof has started to measure by itself is none, nor is a process of pytest-xdist before it
    has workers: it runs tests. ``known`` says which have torch loaded, by id and start, as found
    before; new ones are added.
    """
    torch = {} if known is None else known
    processes = dict(scan_processes(f"{root}/proc"))
    pythons = (pid for pid, stat in processes.items() if _is_python(stat))
    own = {pid for pid in pythons if _is_dlprofs(_command(pid, root))}
    own |= {each for pid in own for each in _below(pid, processes)}
    found = {each.pid: each for each in _with_workers(processes, root) if each.pid not in own}
    parents = {each.parent for each in found.values()}
    for pid, stat in processes.items():
        if not _is_python(stat) or found.keys() & {pid, stat.parent} or pid in parents | own:
            continue
        if _EXECNETS in _command(pid, root):
            continue
        # What has no torch yet may still import it.
        key = pid, stat.start_ticks
        torch[key] = torch.get(key, False) or has_torch(pid, root)
        # A forked worker has its training's command, and for a moment its name.
        if not torch[key] or _command(pid, root) == _command(stat.parent, root):
            continue
        if not _launches_ranks(pid, processes, root):
            found[pid] = _training(pid, processes, root)
    return tuple(sorted(found.values(), key=lambda each: each.pid))


def training_of(pid: int, root: Path = Path("/")) -> Training:
    """The training that a process is, is a worker of, or has launched.

    Raises:
        UsageError: There is no such process, it is another user's, or it is none that trains.
    """
    processes = dict(scan_processes(f"{root}/proc"))
    stat = processes.get(pid)
    if stat is None:
        raise UsageError(
            f"There is no process {pid}", hint="`dlprof top` lists the trainings on this machine."
        )
    if stat.state in ("Z", "X"):
        raise UsageError(
            f"Process {pid} has ended, and its parent has not noticed yet", hint=_LOADS_NOTHING
        )
    if stat.name == WORKER and stat.parent in processes:
        pid = _main_of(stat.parent, root, processes)
    _check_access(pid, root)
    found = [each for each in _with_workers(processes, root) if each.pid == pid]
    found = found or _launched(pid, processes, root)
    if len(found) > 1:
        scripts = {each.script for each in found}
        listed = [str(e.pid) + (f" ({e.script})" if len(scripts) > 1 else "") for e in found]
        known = any(each.workers or has_torch(each.pid, root) for each in found)
        what = "trainings" if known else "Python programs"
        raise UsageError(
            f"Process {pid} has started {len(found)} {what}: {', '.join(listed)}",
            hint=f"Give one of them: dlprof attach {found[0].pid}",
        )
    if not found and not _runs_python(pid, root):
        raise UsageError(
            f"Process {pid} ({processes[pid].name}) runs no Python", hint=_LOADS_NOTHING
        )
    training = found[0] if found else _training(pid, processes, root)
    if training.pid == pid:
        return training
    _check_access(training.pid, root)
    return dataclasses.replace(training, launcher=f"{pid} ({processes[pid].name})")


def _launched(pid: int, processes: Mapping[int, ProcessStat], root: Path) -> list[Training]:
    """Trainings that a process has started, and that are in it no part of another's.

    They are known by their workers. What has torch loaded itself, and so may train, has started no
    others, unless it started ranks; of other launchers they may have no workers, and of one that
    runs no Python at first no torch.
    """
    below = _below(pid, processes)
    loading = [each for each in _with_workers(processes, root) if each.pid in below]
    if not has_torch(pid, root) or _launches_ranks(pid, processes, root):
        mains = {each.pid for each in loading}
        inside = set[int]().union(*(_below(each, processes) for each in mains))
        others = [
            each
            for each in sorted(below - mains - inside)
            if processes[each].name != WORKER
            and each != os.getpid()  # of whom a shell wants to know what it runs
            and _runs_python(each, root)
            # What is forked has its parent's, as workers do that have no name yet.
            and _command(each, root) != _command(processes[each].parent, root)
            and not _launches_ranks(each, processes, root)
        ]
        found = [each for each in others if has_torch(each, root)]
        found = found or ([] if mains or _runs_python(pid, root) else others)
        inside = set[int]().union(*(_below(each, processes) for each in found))
        loading += [_training(each, processes, root) for each in found if each not in inside]
    return sorted(loading, key=lambda each: each.pid)


def _launches_ranks(pid: int, processes: Mapping[int, ProcessStat], root: Path) -> bool:
    """Whether a process has started ranks and is none, as torchrun, which has torch loaded, too."""
    started = (child for child, stat in processes.items() if stat.parent == pid)
    ranks = any(is_parent(read_environ(child, root)) for child in started)
    return ranks and not is_parent(read_environ(pid, root))


def _runs_python(pid: int, root: Path) -> bool:
    program = (_command(pid, root) or ("",))[0]
    with contextlib.suppress(OSError):
        program = os.readlink(f"{root}/proc/{pid}/exe")  # /proc's links lead nowhere
    return "python" in Path(program).name or has_torch(pid, root)


def read_training(known: Training, root: Path = Path("/")) -> Training:
    """A training as it is now."""
    processes = dict(scan_processes(f"{root}/proc"))
    stat = processes.get(known.pid)
    if stat is None or stat.start_ticks != known.start_ticks or stat.state in ("Z", "X"):
        raise NothingMeasuredError(f"Process {known.pid} has ended")
    return dataclasses.replace(_training(known.pid, processes, root), launcher=known.launcher)


def _with_workers(processes: Mapping[int, ProcessStat], root: Path) -> list[Training]:
    return [_training(pid, processes, root) for pid in _mains(processes, root)]


def _mains(processes: Mapping[int, ProcessStat], root: Path) -> list[int]:
    parents = dict.fromkeys(s.parent for s in processes.values() if s.name == WORKER)
    mains = dict.fromkeys(
        _main_of(parent, root, processes) for parent in parents if parent in processes
    )
    # A worker's own loader is no training.
    return [pid for pid in mains if pid in processes and processes[pid].name != WORKER]


def _ranks(pid: int, processes: Mapping[int, ProcessStat], root: Path) -> int:
    """How many ranks of a training's job share the machine.

    As its launcher says; a script may start its ranks itself, within one task too: these load data
    by the same command, but for numbers, and one Python process has started all the others of them.
    """
    said = launched_as(read_environ(pid, root))["LOCAL_WORLD_SIZE"] or 1
    own = _without_numbers(pid, root)
    mains = {pid, *_mains(processes, root)}
    alike = {each for each in mains if _without_numbers(each, root) == own}
    parent = processes[pid].parent
    # The first rank starts the others (Lightning), or what loads nothing starts all (mp.spawn).
    has_started = any(processes[each].parent == pid for each in alike)
    first = pid if has_started and parent not in alike else parent
    if first not in processes or not _is_python(processes[first]):
        return max(1, said)
    return max(said, sum(first in (each, processes[each].parent) for each in alike))


def _without_numbers(pid: int, root: Path) -> str:
    return re.sub(r"\d+", "", "\0".join(_command(pid, root)))


def _is_python(stat: ProcessStat) -> bool:
    return stat.name.startswith(("python", "pt_main"))


def _training(pid: int, processes: Mapping[int, ProcessStat], root: Path) -> Training:
    children: dict[int, list[int]] = defaultdict(list)
    for child, stat in processes.items():
        children[stat.parent].append(child)
    parent = pid
    servers = [each for each in children[pid] if _FORKSERVER in " ".join(_command(each, root))]
    for each in servers:
        if any(processes[child].name == WORKER for child in children[each]):
            parent = each
    named = [each for each in children[parent] if processes[each].name == WORKER]
    ended = [each for each in named if processes[each].state in ("Z", "X")]
    owner = _owner(pid, root)
    return Training(
        pid=pid,
        start_ticks=processes[pid].start_ticks,
        parent=parent,
        command=_command(pid, root),
        workers=tuple(sorted(set(named) - set(ended))),
        ended_workers=len(ended),
        user="" if owner is None else name_of_user(owner),
        is_own=owner in (None, os.geteuid()),
        ranks=_ranks(pid, processes, root),
    )


def _main_of(parent: int, root: Path, processes: Mapping[int, ProcessStat]) -> int:
    """The main process of workers: their parent, unless that is a fork server."""
    if _FORKSERVER in " ".join(_command(parent, root)):
        return processes[parent].parent
    return parent


def _below(pid: int, processes: Mapping[int, ProcessStat]) -> set[int]:
    found: set[int] = set()
    grown = {pid}
    while grown:
        grown = {child for child, stat in processes.items() if stat.parent in grown} - found
        found |= grown
    return found


def _command(pid: int, root: Path) -> tuple[str, ...]:
    text = read_text(f"{root}/proc/{pid}/cmdline")
    return tuple(text.rstrip("\0").split("\0")) if text else ()


def _is_dlprofs(command: tuple[str, ...]) -> bool:
    """Whether it runs a part of dlprof: fork server, trial, observer; no script of the user's."""
    return any(one == "-m" and two.startswith("dlprof.") for one, two in pairwise(command))


def _owner(pid: int, root: Path) -> int | None:
    return parse_owner(read_text(f"{root}/proc/{pid}/status"))


def has_torch(pid: int, root: Path) -> bool:
    """Whether a process has torch loaded."""
    return "libtorch" in read_text(f"{root}/proc/{pid}/maps")


def is_readable(pid: int, root: Path) -> bool:
    """Whether the kernel says what a process does; of one that is gone it doesn't."""
    return bool(read_text(f"{root}/proc/{pid}/io"))


def _check_access(pid: int, root: Path) -> None:
    """Refuse a process whose figures the kernel keeps from this user."""
    if is_readable(pid, root):
        return
    owner = _owner(pid, root)
    if owner is None:
        raise UsageError(f"There is no process {pid} any more")
    if owner == os.geteuid():
        raise UsageError(
            f"The kernel keeps the figures of process {pid} even from its own user",
            hint="It is protected. dlprof run looks into a script from its start.",
        )
    name = name_of_user(owner)
    raise UsageError(
        f"Process {pid} belongs to {name}, and only that user and root may look at it",
        hint=f"Run it as that user: sudo -u {name} dlprof attach {pid}",
    )
