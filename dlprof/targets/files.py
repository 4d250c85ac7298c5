"""The files that a dataset names, and how to push them out of the page cache."""

from __future__ import annotations

import contextlib
import functools
import itertools
import os
import tempfile
from collections.abc import Iterable, Iterator
from pathlib import Path

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
