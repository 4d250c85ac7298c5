"""Benches for real faults, and the proof that nothing is left of them."""

from __future__ import annotations

import contextlib
import secrets
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest
from fault_bench import BENCH, MARK, FaultBench, living
from shared_memory import shared_memory, shared_memory_left
from waiting import until


@pytest.fixture(scope="session", autouse=True)
def marked(own_surroundings: None) -> Iterator[None]:
    """A mark of this run's own in the environment."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(MARK, secrets.token_hex(8))
        yield


@pytest.fixture(scope="module")
def bench(make_bench: Callable[..., FaultBench]) -> FaultBench:
    """That of the target which can go wrong in most ways."""
    return make_bench()


@pytest.fixture
def clean() -> Iterator[None]:
    """Afterwards no process lives, and no file lies about, that didn't before."""
    before = living()
    folder = Path(tempfile.gettempdir())
    files, shared = set(folder.iterdir()), shared_memory()
    yield
    until(lambda: not living() - before, 5.0)
    said = []
    for process in living() - before:
        with contextlib.suppress(psutil.Error):
            said.append(process.cmdline())
            process.kill()
    assert not said
    # Torch keeps a cache of the user's there, for all programs, whenever it comes to need one.
    kept = (BENCH, "torchinductor_")
    new = set(folder.iterdir()) - files
    assert not [path for path in new if not path.name.startswith(kept)]
    assert not shared_memory_left(shared)


@pytest.fixture(scope="module")
def make_bench() -> Iterator[Callable[..., FaultBench]]:
    """Makes benches that serve all tests of a module, one for each target."""
    # Other modules' tests may have started servers in this process that live as long as it does.
    before = set(psutil.Process().children(recursive=True))
    made: dict[tuple[object, ...], FaultBench] = {}

    def make(attr: str = "loader", **limits: float) -> FaultBench:
        key = (attr, *sorted(limits.items()))
        if key not in made:
            made[key] = FaultBench(attr, **limits)
        return made[key]

    yield make
    for bench in made.values():
        bench.close()
    assert not set(psutil.Process().children(recursive=True)) - before
    assert not list(Path(tempfile.gettempdir()).glob(f"{BENCH}*"))
