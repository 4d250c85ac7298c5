"""Which tests are run, slow ones only where ``SLOW_TESTS`` asks; and an end to what they leave."""

from __future__ import annotations

import contextlib
import gc
import multiprocessing
import os
import re
import signal
import tempfile
import zlib
from collections.abc import Generator, Iterator
from multiprocessing import util

import psutil
import pytest

# Not called DLPROF_…: to dlprof that would be an option it doesn't know.
_WANTED = os.environ.get("SLOW_TESTS", "")

_KEPT = {"DLPROF_CACHE_DIR", "DLPROF_UPDATE_GOLDEN"}
"""Of the user's variables: where built-in data is made once for all runs; what tests ask for."""


def _is_wanted(name: str) -> bool:
    """Whether a slow test is run: "all" of them, or with "2/4" the third of four shares."""
    if _WANTED in {"", "all"}:
        return bool(_WANTED)
    if not (named := re.fullmatch(r"(\d+)/([1-9]\d*)", _WANTED)):
        raise pytest.UsageError(f"SLOW_TESTS={_WANTED}: give all, or 2/4 for a quarter")
    share, shares = map(int, named.groups())
    return zlib.crc32(name.encode()) % shares == share % shares


def pytest_report_header() -> str:
    """Say which slow tests are run."""
    return f"slow tests: {_WANTED or 'none (SLOW_TESTS=all runs them)'}"


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out the slow tests that aren't wanted."""
    left_out = [
        item for item in items if item.get_closest_marker("slow") and not _is_wanted(item.nodeid)
    ]
    if left_out:
        config.hook.pytest_deselected(items=left_out)
        items[:] = [item for item in items if item not in set(left_out)]


@pytest.hookimpl(trylast=True)
def pytest_collection_finish() -> None:
    """Leave modules and tests, which stay till the end, out of what each collection looks at."""
    gc.collect()
    gc.freeze()  # by then it is millions of objects, and many a test collects


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    call: pytest.CallInfo[None],
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """End the workers of a test that failed: its traceback keeps their loader, for later tests."""
    if call.excinfo is None:
        return (yield)
    before = signal.signal(signal.SIGCHLD, signal.SIG_DFL)  # torch's would raise, here too
    try:
        report = yield
        for process in multiprocessing.active_children() if report.failed else ():
            process.kill()
            process.join()
    finally:
        signal.signal(signal.SIGCHLD, before)
    return report


@pytest.fixture(scope="session", autouse=True)
def own_surroundings(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Hide settings of the user's and of a CI job; remove what is left in files at the end.

    Such are sockets of workers that were killed, and torchrun's logs.
    """
    tmp_path_factory.getbasetemp()  # which stays, for who looks into what failed
    # Short, because the paths of sockets in it are limited to 107 bytes.
    folder = tempfile.TemporaryDirectory(prefix="tests-", ignore_cleanup_errors=True)
    with folder as name, pytest.MonkeyPatch.context() as patch:
        patch.setenv("TMPDIR", name)
        patch.setattr(tempfile, "tempdir", name)
        for each in os.environ.keys() - _KEPT:
            if each.startswith(("DLPROF_", "GITHUB_", "CI_")):
                patch.delenv(each)
        yield
        util._run_finalizers(-100)  # as at exit, where multiprocessing removes its own folder in it


@pytest.fixture(scope="session", autouse=True)
def nothing_runs_on(own_surroundings: None) -> Iterator[None]:
    """End and name what runs on: Python would wait for it, and CI for what it may yet print."""
    before = {*psutil.Process().children(recursive=True)}  # as of a shell that became this process
    yield
    left = {*psutil.Process().children(recursive=True)} - before
    said = []
    for process in psutil.wait_procs(filter(_is_ours, left), 20.0)[1]:
        with contextlib.suppress(psutil.NoSuchProcess):  # by now
            said.append(f"{process.pid}: {process.as_dict(['cmdline', 'status'])}")
            process.kill()
    assert not said


def _is_ours(process: psutil.Process) -> bool:
    """Whether a process is no server of multiprocessing's own, which ends as this process does."""
    servers = ("from multiprocessing.forkserver ", "from multiprocessing.resource_tracker ")
    with contextlib.suppress(psutil.Error):
        words = " ".join(process.cmdline())
        return process.ppid() != os.getpid() or not any(each in words for each in servers)
    return False
