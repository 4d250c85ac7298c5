"""A dataset's files: those that it names, and open ones whose position forked workers share.

Those that it names can be pushed out of the page cache. Of a file that is open when workers are
forked, each has a descriptor, and all of these have one position (an open file description of the
kernel's): where one worker seeks, another one reads. Who maps a file or reads it by ``pread`` moves
nothing.
"""

from __future__ import annotations

import collections
import contextlib
import functools
import itertools
import os
import stat
import sys
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from multiprocessing import util
from pathlib import Path
from typing import Any, NamedTuple

from dlprof.internals import workers_of
from dlprof.targets.faults import own_attributes


def dataset_files(dataset: object, limit: int = 1_000_000) -> Iterator[Path]:
    """Find the files that a dataset names in its attributes, without loading a sample.

    Looks at texts and paths, at lists, tuples and dictionaries of them or of such, as of
    ``(path, label)``, and into datasets inside the dataset (``Subset``, ``ConcatDataset``);
    directories are walked, but for the one of everybody's temporary files (in which
    mosaicml-streaming keeps its locks), the user's own, and those around them.

    Yields:
        Existing files, each once where the dataset names it once.
    """
    return itertools.islice(_of_attributes(dataset, 0), limit)


def evict_from_page_cache(paths: Iterable[Path]) -> int | None:
    """Ask the system to forget the cached content of files (``posix_fadvise`` DONTNEED).

    Needs no root and changes no file. Files that can't be opened are passed over, as are named
    pipes and the like, and pages stay that are dirty or mapped by a process. Says of how many files
    it forgot; ``None`` where the system can't do that.
    """
    if not hasattr(os, "posix_fadvise"):
        return None
    evicted = 0
    for path in paths:
        with contextlib.suppress(OSError):
            descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK)  # waits for no pipe's writer
            try:
                os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
                evicted += 1
            finally:
                os.close(descriptor)
    return evicted


def _of_attributes(dataset: object, depth: int) -> Iterator[Path]:
    for value in own_attributes(dataset, of_python=True).values():
        yield from _of_value(value, depth)


def _of_value(value: object, depth: int) -> Iterator[Path]:
    if isinstance(value, str | os.PathLike):
        yield from _of_path(value)
    elif depth >= 4 or isinstance(value, type):
        return
    elif isinstance(value, list | tuple):
        yield from _of_entries(value, depth)
    elif isinstance(value, dict):
        yield from _of_entries(value.values(), depth)
    # Past __getattr__, which may raise anything for a name that isn't there.
    elif any({"__getitem__", "__iter__"} & vars(kind).keys() for kind in type(value).__mro__):
        yield from _of_attributes(value, depth + 1)


def _of_entries(entries: Iterable[object], depth: int) -> Iterator[Path]:
    misses = 0
    for entry in entries:
        empty = True
        for path in _of_value(entry, depth + 1):
            empty = False
            yield path
        misses = misses + 1 if empty else 0
        # A list of this many leading entries that are no paths (a vocabulary, labels)
        # holds none.
        if misses == 16:
            return


def _of_path(value: str | os.PathLike[str]) -> Iterator[Path]:
    if value == "":
        return
    try:
        path = Path(value)
        is_directory, is_file = path.is_dir(), path.is_file()
    except (OSError, ValueError, TypeError):  # too long, a null character, a path of bytes
        return
    if is_file:
        yield path
    elif is_directory and path.resolve() not in _not_the_datas():
        for directory, _, names in os.walk(path):
            yield from (Path(directory, name) for name in names)


@functools.cache
def _not_the_datas() -> frozenset[Path]:
    """Folders of which a dataset's files are the smallest part."""
    folders = [Path(tempfile.gettempdir()).resolve()]
    with contextlib.suppress(RuntimeError):  # this user has none
        folders.append(Path.home().resolve())
    return frozenset(each for folder in folders for each in (folder, *folder.parents))


_FOLDER = "/proc/self/fd"

_CONTAINERS = (list, tuple, dict, set, frozenset, collections.deque)
_SIMPLE = (str, bytes, int, float, complex, bool, type(None), type)
_LIBRARIES = sys.stdlib_module_names - {"builtins", "functools", "types"} | {"PIL", "numpy"}
"""Modules whose objects are named as wholes, not by what they hold."""


class OpenFile(NamedTuple):
    """A file that this process may read by a position of its own or of others, too.

    ``identity`` is its device, its number there, and when it was last written.
    """

    descriptor: int
    path: str
    position: int
    identity: tuple[int, int, int]


def open_files() -> tuple[OpenFile, ...]:
    """The regular files that this process has open for reading; none where ``/proc`` is missing.

    Without those that are only added to, and the standard streams.
    """
    with contextlib.suppress(OSError):
        found = (_looked_at(int(name)) for name in os.listdir(_FOLDER))
        return tuple(each for each in found if each is not None)
    return ()


def _looked_at(descriptor: int) -> OpenFile | None:
    import fcntl  # where there is /proc

    if descriptor <= 2:  # the standard streams
        return None
    try:
        about, flags = os.fstat(descriptor), fcntl.fcntl(descriptor, fcntl.F_GETFL)
        reads = flags & os.O_ACCMODE != os.O_WRONLY and not flags & os.O_APPEND
        if not reads or not stat.S_ISREG(about.st_mode):
            return None
        path = str(Path(f"{_FOLDER}/{descriptor}").readlink())
        position = os.lseek(descriptor, 0, os.SEEK_CUR)
    except OSError:  # by which the folder was listed, or one that has no position
        return None
    if path.startswith(("/proc/", "/sys/")):
        return None
    return OpenFile(descriptor, path, position, _identity(about))


def _identity(about: os.stat_result) -> tuple[int, int, int]:
    return about.st_dev, about.st_ino, about.st_mtime_ns


def positions(files: Sequence[OpenFile]) -> list[int]:
    """Where files are now; -1 for one that was closed."""
    return [_position(each.descriptor) for each in files]


def _position(descriptor: int) -> int:
    try:
        return os.lseek(descriptor, 0, os.SEEK_CUR)
    except OSError:
        return -1


def moved(files: Sequence[OpenFile], before: Sequence[int]) -> tuple[OpenFile, ...]:
    """Those that are no longer where they were, without those that were written or closed."""
    places = zip(files, before, positions(files), strict=True)
    found = (each for each, then, now in places if then >= 0 and now not in (then, -1))
    return tuple(each for each in found if _is_same(each))


def _is_same(file: OpenFile) -> bool:
    try:
        return _identity(os.fstat(file.descriptor)) == file.identity
    except OSError:
        return False


def moved_by_workers(loader: Any, files: Sequence[OpenFile]) -> tuple[OpenFile, ...]:
    """The files that several workers of a DataLoader move; in a process that nobody else needs.

    Each worker gets positions of its own as soon as it is forked, so that what it moves shows, and
    nothing of it fails by what others move: who would have shared them is known for certain. A
    worker that opens a file again leaves the one that it was forked with where it is.
    """
    apart = _Apart(files)
    util.register_after_fork(apart, _Apart.separate)
    movers: dict[OpenFile, set[int]] = {each: set() for each in files}
    workers: Sequence[Any] = ()
    with contextlib.suppress(Exception):  # whatever the user's code raises: what moved has moved
        iterator = iter(loader)
        workers = workers_of(iterator)
        # Two of each worker: the first may be of what was read ahead before the fork.
        for _ in itertools.islice(iterator, 2 * len(workers)):
            apart.look(workers, movers)
    apart.look(workers, movers)
    return tuple(each for each, those in movers.items() if len(those) > 1 and _is_same(each))


def have_own_positions(
    files: Sequence[OpenFile], groups: Sequence[Sequence[int]] | None = None, watched_from: int = 0
) -> None:
    """Open files again, so that this process shares their positions with no other.

    Descriptors stay what they are, and those of one position among themselves keep one: the places
    in ``groups``, which processes that do this at once can't find out by themselves. From the
    number ``watched_from`` on each file gets another descriptor, as the user's code may close the
    first, or take its number for another file.
    """
    import fcntl  # where there is /proc

    for those in by_position(files) if groups is None else groups:
        with contextlib.suppress(OSError):  # it may not be opened again: it stays shared
            one = files[those[0]]
            flags = fcntl.fcntl(one.descriptor, fcntl.F_GETFL)
            flags &= ~(os.O_TMPFILE | os.O_NOFOLLOW)  # the link to what is open has to be followed
            own = os.open(f"{_FOLDER}/{one.descriptor}", flags | os.O_CLOEXEC)
            os.lseek(own, one.position, os.SEEK_SET)
            for place in those:
                descriptor = files[place].descriptor
                if watched_from:
                    fcntl.fcntl(own, fcntl.F_DUPFD_CLOEXEC, watched_from + place)
                os.dup2(own, descriptor, os.get_inheritable(descriptor))
            os.close(own)


def cut_off(kept: int) -> None:
    """Have this process reach no other by a pipe or a socket that it was forked with.

    What it took from a queue, or asked of a server, others would miss. Without the standard
    streams, and the descriptor ``kept``.
    """
    with contextlib.suppress(OSError):  # where /proc is missing
        nothing = os.open(os.devnull, os.O_RDWR | os.O_CLOEXEC)
        for descriptor in map(int, os.listdir(_FOLDER)):
            with contextlib.suppress(OSError):  # by which the folder was listed
                mode = os.fstat(descriptor).st_mode
                reaches = stat.S_ISFIFO(mode) or stat.S_ISSOCK(mode)
                if reaches and descriptor > 2 and descriptor != kept:
                    os.dup2(nothing, descriptor, os.get_inheritable(descriptor))


def by_position(files: Sequence[OpenFile]) -> list[list[int]]:
    """Places of files by the position that they have in common, as of a descriptor and its copy."""
    found: list[list[int]] = []
    alike = collections.defaultdict[object, list[list[int]]](list)
    for place, each in enumerate(files):
        groups = alike[each.identity, each.position]
        those = next((those for those in groups if _is_one(files[those[0]], each)), None)
        if those is None:
            groups.append(those := [])
            found.append(those)
        those.append(place)
    return found


def _is_one(one: OpenFile, other: OpenFile) -> bool:
    """Whether two descriptors have one position, by moving it; nobody else may read meanwhile."""
    os.lseek(one.descriptor, one.position + 1, os.SEEK_SET)
    is_one = _position(other.descriptor) == one.position + 1
    os.lseek(one.descriptor, one.position, os.SEEK_SET)
    return is_one


class _Apart:
    """Gives forked workers positions of their own, which can be seen from outside."""

    def __init__(self, files: Sequence[OpenFile]) -> None:
        self._files, self._groups = files, by_position(files)
        self._first = 64 + max((each.descriptor for each in files), default=0)

    def separate(self) -> None:
        """In the worker, before anything of the user's runs there."""
        have_own_positions(self._files, self._groups, self._first)

    def look(self, workers: Sequence[Any], movers: dict[OpenFile, set[int]]) -> None:
        """Note which workers have moved which files by now."""
        for worker in workers:
            for place, each in enumerate(self._files):
                about = Path(f"/proc/{worker.pid}/fdinfo/{self._first + place}")
                with contextlib.suppress(OSError, IndexError, ValueError):
                    if int(about.read_bytes().split()[1]) != each.position:
                        movers[each].add(worker.pid)


def named(files: Sequence[OpenFile], loader: Any) -> tuple[str, ...]:
    """Files in words: by the attribute of a loader's dataset that holds them, or else by path."""
    held = holders(loader)
    return tuple(
        f"{held[each.descriptor]}{Path(each.path).name})"
        if each.descriptor in held
        else f"the open file {each.path}"
        for each in files
    )


def holders(loader: Any) -> dict[int, str]:
    """Descriptors that a loader's dataset and functions hold as files, each with who does."""
    held: dict[int, str] = {}
    with contextlib.suppress(Exception):  # attributes of the user's may be anything
        for descriptor, holder in _held_files(loader):
            held.setdefault(descriptor, holder)
    return held


def _held_files(loader: Any) -> Iterator[tuple[int, str]]:
    """Descriptors that Python objects hold, and what: the beginning of its words.

    Where an object of a library holds the file, as a ``ZipFile`` does, that one is named.
    """
    roots = {"": "dataset", "collate_fn": "collate_fn", "worker_init_fn": "worker_init_fn"}
    waiting: collections.deque[tuple[str, Any, str]] = collections.deque(
        (name, getattr(loader, part, None), "") for name, part in roots.items()
    )
    seen = set[int]()
    while waiting and len(seen) < 5_000:  # objects, of each container 256 entries
        name, value, holder = waiting.popleft()
        kind = type(value)
        if issubclass(kind, _SIMPLE) or id(value) in seen:
            continue
        seen.add(id(value))
        if kind.__module__ == "_io":
            with contextlib.suppress(Exception):  # it is closed, or in memory
                yield value.fileno(), holder or f"{name} ("
            continue
        inside: Iterable[tuple[str, Any]]
        if issubclass(kind, _CONTAINERS):
            pairs = dict.items(value) if issubclass(kind, dict) else enumerate(value)
            some = itertools.islice(pairs, 256)
            inside = [(f"{name}[{key!r}]"[:60], each) for key, each in some]
        else:
            if not holder and kind.__module__.partition(".")[0] in _LIBRARIES:
                holder = f"{name} ({kind.__module__}.{kind.__qualname__} of "
            below = f"{name}." if name else ""
            inside = [(below + key, each) for key, each in own_attributes(value).items()]
        waiting.extend((way, each, holder) for way, each in inside)
