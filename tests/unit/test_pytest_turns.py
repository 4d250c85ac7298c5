"""A check is alone while tests run in several processes."""

from __future__ import annotations

import multiprocessing
import sys
import threading
import time
from pathlib import Path

import pytest

from dlprof.integrations.pytest_plugin import turn

PATIENCE_S = 30.0


class Runner(threading.Thread):
    """Takes a turn and keeps it until asked to go on."""

    def __init__(self, folder: Path, *, alone: bool) -> None:
        super().__init__(daemon=True)
        self._turn = turn(folder, alone=alone)
        self.inside, self.may_go = threading.Event(), threading.Event()
        self.start()

    def run(self) -> None:
        with self._turn:
            self.inside.set()
            self.may_go.wait(PATIENCE_S)

    def go(self) -> None:
        self.may_go.set()
        self.join(PATIENCE_S)


def waits(runner: Runner) -> bool:
    return not runner.inside.wait(0.05)


def test_tests_run_beside_each_other(tmp_path: Path) -> None:
    runners = [Runner(tmp_path, alone=False) for _ in range(3)]
    assert all(each.inside.wait(PATIENCE_S) for each in runners)
    for each in runners:
        each.go()


def test_a_check_waits_for_tests_and_they_for_it(tmp_path: Path) -> None:
    test = Runner(tmp_path, alone=False)
    assert test.inside.wait(PATIENCE_S)
    check = Runner(tmp_path, alone=True)
    assert waits(check)
    later = Runner(tmp_path, alone=False)
    assert waits(later), "a waiting check stops what comes later"
    test.go()
    assert check.inside.wait(PATIENCE_S)
    assert waits(later)
    check.go()
    assert later.inside.wait(PATIENCE_S)
    later.go()


def test_checks_run_one_after_the_other(tmp_path: Path) -> None:
    first = Runner(tmp_path, alone=True)
    assert first.inside.wait(PATIENCE_S)
    second = Runner(tmp_path, alone=True)
    assert waits(second)
    first.go()
    assert second.inside.wait(PATIENCE_S)
    second.go()


@pytest.mark.skipif(sys.platform == "win32", reason="there are no locks, nor forks")
def test_what_a_test_leaves_running_keeps_no_check_waiting(tmp_path: Path) -> None:
    """Workers of a loader that several tests share have a copy of the lock's descriptor."""
    sleeps = multiprocessing.get_context("fork").Process(target=time.sleep, args=[2 * PATIENCE_S])
    with turn(tmp_path, alone=False):
        sleeps.start()
    try:
        check = Runner(tmp_path, alone=True)
        assert check.inside.wait(PATIENCE_S)
        check.go()
    finally:
        sleeps.kill()
        sleeps.join()
