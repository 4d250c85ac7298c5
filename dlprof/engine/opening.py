"""The bench of one target: its data made, a place to work in, processes that end with it."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

from dlprof.engine.listener import SweepListener
from dlprof.engine.workplace import work_directory
from dlprof.settings import SweepSettings
from dlprof.targets.builtin import prepare
from dlprof.targets.grammar import parse_target
from dlprof.trial.bench import Bench
from dlprof.trial.protocol import BuildRequest


@contextlib.contextmanager
def opened_bench(
    settings: SweepSettings, listener: SweepListener, *, pickled: bytes | None = None
) -> Iterator[Bench]:
    """A bench for the target that the settings name, closed at the end.

    Args:
        settings: What to load.
        listener: Told while data of a built-in is made.
        pickled: A live object to load instead (Python API).

    Raises:
        DlprofError: The target's name can't be read, or its data can't be made.
    """
    if pickled is None:
        spec = parse_target(settings.target)
        prepare(spec, listener.preparing, arguments=settings.arguments)
    with work_directory() as directory:
        request = _build_request(settings, pickled, directory)
        bench = Bench(request, directory=directory, pulse=listener.pulse)
        with contextlib.closing(bench):
            listener.message(f"building {settings.target}")
            yield bench


def _build_request(settings: SweepSettings, pickled: bytes | None, directory: Path) -> BuildRequest:
    path = None
    if pickled is not None:
        path = directory / "target.pickle"
        path.write_bytes(pickled)
    return BuildRequest(
        target=settings.target,
        arguments=dict(settings.arguments),
        shuffle=settings.shuffle,
        seed=settings.seed,
        pickled=None if path is None else str(path),
    )
