"""What tests leave is ended, named and removed; and no settings of the user's are theirs."""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
from pathlib import Path

import psutil

CONFTEST = Path(__file__).parents[1] / "conftest.py"
LEAVING = """
import multiprocessing
import os
import pathlib
import signal
import subprocess
import tempfile
import time


class Error(Exception):
    @property
    def __cause__(self):  # asked for as it is reported, when a worker may die, too
        signal.raise_signal(signal.SIGCHLD)


def died(*_):
    raise RuntimeError("DataLoader worker is killed")


def test_that_fails():
    signal.signal(signal.SIGCHLD, died)
    multiprocessing.get_context("fork").Process(target=time.sleep, args=(3600,)).start()
    raise Error


def test_that_comes_later():
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    assert not multiprocessing.active_children()


def test_that_leaves_a_process():
    subprocess.Popen(["sleep", "3600"], start_new_session=True)


def test_that_leaves_a_file():
    pathlib.Path("left").write_text(tempfile.mkstemp()[1])


def test_that_has_no_variable_of_the_users():
    assert "DLPROF_BUDGET" not in os.environ
"""


def test_what_tests_leave_is_ended_and_named(tmp_path: Path) -> None:
    text = CONFTEST.read_text()
    assert "20.0" in text  # seconds that what is left may take to end
    (tmp_path / "conftest.py").write_text(text.replace("20.0", "0.1"))
    (tmp_path / "test_leaving.py").write_text(LEAVING)
    pytest = f"exec {shlex.quote(sys.executable)} -m pytest -q -p no:cacheprovider --rootdir ."
    ended = subprocess.run(
        ["sh", "-c", f"sleep 3601 >/dev/null 2>&1 & echo $!; {pytest}"],
        cwd=tmp_path,
        env=os.environ | {"DLPROF_BUDGET": "1s"},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    # What the shell started before it became these tests is none of theirs.
    left = [each for each in psutil.process_iter() if _runs_in(each, tmp_path)]
    for process in left:
        process.kill()
    assert [each.pid for each in left] == [int(ended.stdout.split()[0])]
    assert "1 failed, 4 passed, 1 error" in ended.stdout
    assert "'sleep', '3600'" in ended.stdout
    assert not Path((tmp_path / "left").read_text()).parent.exists()


def _runs_in(process: psutil.Process, folder: Path) -> bool:
    try:
        return process.cwd() == str(folder) and process.status() != psutil.STATUS_ZOMBIE
    except psutil.Error:
        return False
