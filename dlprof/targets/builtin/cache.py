"""Directories of generated files under the user's cache directory, made whole or not at all."""

from __future__ import annotations

import errno
import os
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from pathlib import Path

from dlprof.errors import FileError

_STALE_S = 24 * 3600.0


def cache_root(environ: Mapping[str, str] = os.environ, platform: str = sys.platform) -> Path:
    """Where generated files lie.

    ``DLPROF_CACHE_DIR`` wins; else ``dlprof`` under the platform's cache directory:
    ``XDG_CACHE_HOME`` or ``~/.cache``, ``~/Library/Caches``, ``%LOCALAPPDATA%``.
    """
    chosen = environ.get("DLPROF_CACHE_DIR")
    if chosen:
        return Path(chosen).expanduser().absolute()
    if platform == "win32":
        local = environ.get("LOCALAPPDATA")
        return (Path(local) if local else Path.home() / "AppData" / "Local") / "dlprof" / "cache"
    if platform == "darwin":
        return Path.home() / "Library" / "Caches" / "dlprof"
    xdg = environ.get("XDG_CACHE_HOME", "")
    # The XDG specification says that a relative path must be ignored.
    return (Path(xdg) if Path(xdg).is_absolute() else Path.home() / ".cache") / "dlprof"


def make_once(name: str, make: Callable[[Path], None], *, root: Path | None = None) -> Path:
    """The directory ``name`` of the cache, made by ``make`` unless it is there.

    It is made under another name and renamed when complete: a run that is cut off leaves nothing
    half-made, and of two runs at once one wins and both use its files.

    Args:
        name: Of the directory; holds a version, so that changed content gets a new name.
        make: Fills the empty directory that it is given.
        root: Of the cache; :func:`cache_root` by default.

    Raises:
        FileError: The cache can't be written, or the disk is full.
    """
    root = root or cache_root()
    final = root / name
    if final.is_dir():
        return final
    try:
        root.mkdir(parents=True, exist_ok=True)
        _remove_stale(root, before=time.time() - _STALE_S)
        temporary = Path(tempfile.mkdtemp(prefix=f".{name}.", dir=root))
        try:
            make(temporary)
            _rename(temporary, final)
        finally:
            shutil.rmtree(temporary, ignore_errors=True)
    except OSError as error:
        raise _not_writable(root, name, error) from error
    return final


def _rename(temporary: Path, final: Path) -> None:
    try:
        temporary.rename(final)
    except OSError:
        if not final.is_dir():  # else another run was first: its files are the same
            raise


def _remove_stale(root: Path, before: float) -> None:
    """Remove what runs that were killed left behind; a running one touches its directory."""
    for entry in root.glob(".*-v*.*"):
        try:
            if entry.is_dir() and entry.stat().st_mtime < before:
                shutil.rmtree(entry, ignore_errors=True)
        except OSError:  # another run is removing it too
            continue


def _not_writable(root: Path, name: str, error: OSError) -> FileError:
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        what = f"The disk is full: {name!r} could not be made in {str(root)!r}."
    else:
        what = f"{name!r} can't be made in {str(root)!r}: {error.strerror or error}."
    return FileError(what, hint="Set DLPROF_CACHE_DIR to a directory with about 100 MB to spare.")
