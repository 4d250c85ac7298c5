"""What a live loader says of itself, and which line of the user's made it.

It is asked so that nothing of the user's is run or changed. Never imports torch: where a loader of
torch's is met, torch is loaded already.
"""

from __future__ import annotations

import functools
import os
import sys
import sysconfig
from pathlib import Path
from types import FrameType
from typing import Any

from dlprof.records import Config, WatchedLoader
from dlprof.targets.faults import OWN, type_name
from dlprof.targets.workers import settings_of


def describe(loader: Any, *, name: str) -> WatchedLoader:
    """A record with what is known of a loader, or anything, before it is iterated."""
    config, dataset = config_of(loader), _part(loader, "dataset")
    return WatchedLoader(
        name=name,
        kind=type_name(loader),
        dataset="" if dataset is None else type_name(dataset),
        sampler=_sampler(loader),
        config=config,
        **_of_dataset(dataset),
        unavailable={} if config else {"config": "it has no settings of a DataLoader's"},
    )


def config_of(loader: Any) -> Config | None:
    """A DataLoader's settings; ``None`` for what has others than torch's own.

    What is passed to torch's iterators without being a DataLoader, as fastai's, has them too.
    ``batch_size`` is the loader's, or that of its batch sampler.
    """
    try:
        settings = settings_of(loader)
        size = getattr(loader, "batch_size", None)
        if size is None:
            size = getattr(getattr(loader, "batch_sampler", None), "batch_size", None)
        settings["num_workers"] = int(loader.num_workers)
        settings["batch_size"] = size if isinstance(size, int) and size > 0 else None
        return Config(**settings).canonical()
    except Exception:  # a class of the user's may answer with anything
        return None


def _sampler(loader: Any) -> str:
    """The class of what orders the samples: the user's batch sampler, or else the sampler."""
    own = _part(loader, "batch_sampler")
    if own is None or _part(loader, "batch_size") is not None:
        own = _part(loader, "sampler")
    return "" if own is None else type(own).__name__


def _of_dataset(dataset: object) -> dict[str, Any]:
    """What a dataset says that bounds what may be advised, by the record's fields."""
    if dataset is None or "torch.utils.data" not in sys.modules:
        return {}
    from dlprof.targets.build import against_persisting  # imports torch
    from dlprof.targets.weighing import split_by  # likewise

    return {"against_persisting": against_persisting(dataset), "shards": split_by(dataset)}


def _part(loader: Any, name: str) -> Any:
    try:
        return getattr(loader, name, None)
    except Exception:  # a property of the user's may raise anything
        return None


_RUNNER = str(Path(__file__).with_name("script.py"))
_STANDARD = os.path.realpath(sysconfig.get_path("stdlib")) + os.sep
_INSTALLED = (f"{os.sep}site-packages{os.sep}", f"{os.sep}dist-packages{os.sep}")


Callers = tuple[tuple[str, int], ...]
"""``(file, line)`` of the user's frames that made something, innermost first, at most eight."""


def line_of(callers: Callers, which: int, folder: str) -> str:
    """``file:line`` of a caller, 0 being the innermost; empty where there is none.

    Files below the folder are named from there on, others in full.
    """
    if which >= len(callers):
        return ""
    path, number = callers[which]
    if not path.startswith("<"):
        place = Path(os.path.normpath(path))  # another drive has no relative path on Windows
        path = str(place.relative_to(folder) if place.is_relative_to(folder) else place)
    return f"{path}:{number}"


def callers_of(frame: FrameType | None) -> Callers:
    """The user's frames from this one outwards.

    Where all are of installed packages, as with ``python -m package``, those outside of torch
    count.
    """
    frames = []
    for _ in range(200):
        if frame is None or frame.f_code.co_filename == _RUNNER:
            break  # further out is what started the script
        if not frame.f_code.co_filename.startswith((OWN, "<frozen ")):
            frames.append((frame.f_code.co_filename, frame.f_lineno))
        frame = frame.f_back
    own = [each for each in frames if not is_library(each[0])]
    return tuple((own or [each for each in frames if not _is_torch(each[0])])[:8])


def is_library(path: str) -> bool:
    """Whether a file is of Python's own or of an installed package."""
    return path.startswith(_STANDARD) or bool(_installed_under(path))


def _is_torch(path: str) -> bool:
    folder = _installed_under(path)
    return path.startswith(_STANDARD) or (bool(folder) and f"{folder}torch{os.sep}" in path)


def _installed_under(path: str) -> str:
    """The folder that a file was installed into, with its separator; empty for the user's own.

    Such a folder has a name that Python gives it, or is one for ``pip install --target``: where
    modules are found beside what pip knows of them. Where the script lies, or is run from, is never
    one.
    """
    named = next((part for part in _INSTALLED if part in path), "")
    if named:
        return named
    entries = [f"{entry}".rstrip(os.sep) + os.sep for entry in sys.path]
    nearest = max((entry for entry in entries if path.startswith(entry)), key=len, default="")
    if not nearest or nearest in (*entries[:1], _here()) or not _has_packages(nearest):
        return ""
    return nearest


def _here() -> str:
    try:
        return f"{Path.cwd()}{os.sep}"
    except OSError:  # it is gone
        return ""


@functools.cache
def _has_packages(folder: str) -> bool:
    try:
        return any(entry.name.endswith(".dist-info") for entry in os.scandir(folder))
    except OSError:
        return False
