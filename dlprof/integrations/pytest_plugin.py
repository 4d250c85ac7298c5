"""The pytest plugin: ``dlprof_check`` fails a test where data loading got slower.

pytest imports this in every run of every project that has dlprof installed, so it imports nothing
but pytest itself, and does nothing until an option names what to compare with.

Where tests run in several processes, a check is kept alone on the machine: every other test holds a
lock that many may hold, and a check waits until nobody does, and holds it alone. Whoever wants it
first goes through a gate, where a waiting check stops all that come later: else tests that overlap
could keep it waiting for ever.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from dlprof.integrations.checking import Checker


MARK = "dlprof"
SKIP_VARIABLE = "DLPROF_SKIP"

_TURNS_KEY = "dlprof_turns"
_NO_BASE = "dlprof has nothing to compare with: give --dlprof-against REF or --dlprof-baseline FILE"
_APART = (
    "dlprof's checks may run beside other tests here: this process of pytest-xdist is on another "
    "machine than the one that hands out tests. Run the checks by themselves, without --tx."
)
_ASKED = "asked for by --dlprof-skip"


def pytest_addoption(parser: pytest.Parser) -> None:
    """Declare the options; all of them are off by default."""
    group = parser.getgroup("dlprof", "dlprof: did data loading get slower?")
    group.addoption(
        "--dlprof-against",
        metavar="REF",
        help="Compare with this git ref or directory; 'auto' for the merge base of a CI job.",
    )
    group.addoption(
        "--dlprof-baseline",
        metavar="FILE",
        help="Compare with the history in this file; only warns, unless --dlprof-regression fail.",
    )
    group.addoption(
        "--dlprof-budget", metavar="TIME", help="Longest wall time of each check. Default: 60s."
    )
    group.addoption(
        "--dlprof-regression",
        choices=("warn", "fail"),
        help="What a regression does. Default: fail; with --dlprof-baseline: warn.",
    )
    group.addoption(
        "--dlprof-inconclusive",
        choices=("skip", "fail"),
        default="skip",
        help="What an inconclusive check does. Default: skip.",
    )
    group.addoption(
        "--dlprof-save",
        metavar="FOLDER",
        help="Keep the JSON document of each check here, named after its test.",
    )
    group.addoption(
        "--dlprof-skip",
        action="store_true",
        help=f"Skip all checks and tests marked {MARK}; so does the variable {SKIP_VARIABLE}.",
    )


def pytest_configure(config: pytest.Config) -> None:
    """Declare the mark, and let checks take turns with tests of other processes."""
    config.addinivalue_line(
        "markers", f"{MARK}: about the speed of data loading; skipped by --dlprof-skip"
    )
    if config.getoption("dlprof_against") and config.getoption("dlprof_baseline"):
        raise pytest.UsageError(
            "--dlprof-against and --dlprof-baseline exclude each other. Leave one of them out."
        )
    save = config.getoption("dlprof_save")
    if save and Path(config.invocation_params.dir, save).is_file():
        raise pytest.UsageError(f"--dlprof-save {save} is a file. Give a folder.")
    if not _has_base(config) or _is_skipped(config):
        return
    folder = getattr(config, "workerinput", {}).get(_TURNS_KEY)
    if folder is not None and not Path(folder).is_dir():
        config.issue_config_time_warning(pytest.PytestWarning(_APART), stacklevel=2)
    elif folder is not None:
        config.pluginmanager.register(_TurnsOfWorkers(Path(folder)), "dlprof-turns")
    else:  # xdist asks, where it distributes tests; it registers its session after this
        config.pluginmanager.register(_TurnsOfController(), "dlprof-turns")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Skip what is to be skipped, and checks that have nothing to compare with."""
    for item in items:
        checks = _checks(item)
        if _is_skipped(config) and (checks or item.get_closest_marker(MARK)):
            item.add_marker(pytest.mark.skip(reason=_ASKED))
        elif checks and not _has_base(config):
            item.add_marker(pytest.mark.skip(reason=_NO_BASE))


@pytest.fixture
def dlprof_check(request: pytest.FixtureRequest) -> Checker:
    """Checks that loading did not get slower: ``dlprof_check(make_loader, fail_above=0.05)``."""
    from dlprof.integrations.checking import Checker

    # Who asks for it within a test could not be marked before.
    if _is_skipped(request.config):
        pytest.skip(_ASKED)
    if not _has_base(request.config):
        pytest.skip(_NO_BASE)
    return Checker(request)


def _checks(item: pytest.Item) -> bool:
    return "dlprof_check" in getattr(item, "fixturenames", ())


def _has_base(config: pytest.Config) -> bool:
    return bool(config.getoption("dlprof_against") or config.getoption("dlprof_baseline"))


def _is_skipped(config: pytest.Config) -> bool:
    skip: bool = config.getoption("dlprof_skip")
    return skip or bool(os.environ.get(SKIP_VARIABLE))


class _TurnsOfController:
    """In the process that hands out tests: names the folder in which the others take turns."""

    def __init__(self) -> None:
        self._folder = ""  # made for the first worker: there may be none

    @pytest.hookimpl(optionalhook=True)
    def pytest_configure_node(self, node: Any) -> None:
        """Say so to a worker of xdist's, before it starts."""
        self._folder = self._folder or tempfile.mkdtemp(prefix="dlprof-turns-")
        node.workerinput[_TURNS_KEY] = self._folder

    def pytest_unconfigure(self) -> None:
        """Remove it, if there is one."""
        if self._folder:
            shutil.rmtree(self._folder, ignore_errors=True)


class _TurnsOfWorkers:
    """In a worker of xdist's: a check runs while no other test does."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    # Of the old style, as the module is imported by pytest 7 with a pluggy before 1.2, too.
    @pytest.hookimpl(hookwrapper=True, tryfirst=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Iterator[None]:
        """Wait for one's turn before anything of a test begins."""
        with turn(self._folder, alone=_checks(item)):
            yield


@contextlib.contextmanager
def turn(folder: Path, *, alone: bool) -> Iterator[None]:
    """Hold off checks, or everybody, in all processes that name the same folder.

    Where files can't be locked nobody waits.
    """
    with contextlib.ExitStack() as stack:
        with _held(folder / "gate", alone=True):
            stack.enter_context(_held(folder / "room", alone=alone))
        yield


@contextlib.contextmanager
def _held(path: Path, *, alone: bool) -> Iterator[None]:
    """The lock of a file, which is created where it doesn't exist."""
    if sys.platform == "win32":
        yield
        return
    import fcntl

    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        with contextlib.suppress(OSError):  # a file system without locks
            fcntl.flock(descriptor, fcntl.LOCK_EX if alone else fcntl.LOCK_SH)
        yield
    finally:
        # Else workers of a loader that outlives the test, forked in it, would hold it with their
        # copy of the descriptor, and a check wait for them, and all other tests for the check.
        with contextlib.suppress(OSError):
            fcntl.flock(descriptor, fcntl.LOCK_UN)
        os.close(descriptor)
