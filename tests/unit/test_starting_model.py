"""The time to first batch of any number of workers, from the start of one."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from dlprof.model.predict import first_batch_s
from dlprof.records import StartPhase, WorkerStart


def _start(sent_bytes: float = 0.0, **cpu_s: float) -> WorkerStart:
    names: Any = cpu_s
    phases = tuple(StartPhase(name=n, wall_s=names[n], cpu_s=names[n]) for n in names)
    return WorkerStart(method="spawn", phases=phases, sent_bytes=sent_bytes)


def test_one_worker_takes_all_phases() -> None:
    start = _start(create=0.1, process=0.2, imports=1.0, unpickle=0.3, init=0.1, fetch=0.5)
    assert first_batch_s(start, 1, cores=2) == pytest.approx(2.2)


def test_what_is_blocked_needs_no_core() -> None:
    waiting = StartPhase(name="fetch", wall_s=2.0, cpu_s=0.0)
    start = WorkerStart(method="fork", phases=(waiting,))
    assert first_batch_s(start, 8, cores=1) == pytest.approx(2.0)


def test_small_starts_share_the_cores() -> None:
    # Eight imports of a second each on two cores, all at once.
    assert first_batch_s(_start(imports=1.0), 8, cores=2) == pytest.approx(4.0)
    assert first_batch_s(_start(imports=1.0), 2, cores=2) == pytest.approx(1.0)


def test_what_does_not_fit_a_pipe_is_read_one_worker_after_the_other() -> None:
    start = _start(create=0.1, imports=1.0, unpickle=0.4, sent_bytes=1e8)
    assert first_batch_s(start, 32, cores=16) == pytest.approx(32 * 1.5)
    light = replace(start, sent_bytes=1000.0)
    assert first_batch_s(light, 32, cores=64) < 32 * 0.1 + 1.5


def test_the_fork_server_starts_once() -> None:
    start = _start(server=0.5, create=0.1)
    assert first_batch_s(start, 4, cores=4) == pytest.approx(0.9)


def test_very_many_workers_are_scaled_up() -> None:
    start = _start(create=0.01)
    assert first_batch_s(start, 2048, cores=4) == pytest.approx(20.48, rel=0.01)
