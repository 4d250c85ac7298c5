"""What tests of loaders that tune themselves begin and end with."""

from __future__ import annotations

import gc
import multiprocessing
from collections.abc import Iterator

import pytest
from waiting import until


@pytest.fixture
def scripted(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Have loaders tuned by the script of the test's module: not all here load torch."""
    monkeypatch.setattr("dlprof.tuning.loader.Control", request.module.Scripted)
    monkeypatch.setattr("dlprof.tuning.loader._SHORT_EPOCH", 0)


@pytest.fixture
def no_worker_left() -> Iterator[None]:
    """Afterwards no worker runs that didn't before."""
    before = set(multiprocessing.active_children())
    yield
    gc.collect()
    assert until(lambda: not set(multiprocessing.active_children()) - before, 20.0)
