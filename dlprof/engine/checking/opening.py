"""Starting the sides of a check, and ending them whatever happens."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from pathlib import Path

from dlprof.engine.checking.compared import SidePlan
from dlprof.engine.checking.settings import CheckListener, CheckSettings, patience
from dlprof.engine.checking.sides import Sides
from dlprof.engine.workplace import work_directory
from dlprof.targets.builtin import prepare
from dlprof.targets.grammar import parse_target
from dlprof.trial.side import SideProcess

_PACKAGE = Path(__file__).resolve().parents[2]


@contextlib.contextmanager
def open_sides(
    plans: Sequence[SidePlan], settings: CheckSettings, listener: CheckListener
) -> Iterator[Sides]:
    """The sides with their targets built and their loaders warm, ended at the end.

    Args:
        plans: One or two.
        settings: What is loaded, and how.
        listener: Told of the progress.

    Raises:
        DlprofError: A side can't be built or loaded from, or they don't fit each other.
    """
    for plan in plans:
        if plan.request.pickled is None:
            spec = parse_target(plan.request.target)
            prepare(spec, listener.preparing, arguments=plan.request.arguments)
    with work_directory() as directory:
        library = _library(directory)
        processes = {
            plan.side: SideProcess(
                plan.side,
                plan.request,
                plan.place(library),
                logs=directory,
                limit=patience(settings)[1],
            )
            for plan in plans
        }
        sides = Sides(plans, processes, settings)
        try:
            listener.message(f"building {settings.sweep.target}")
            sides.build()
            listener.message("warming up")
            sides.warm_up()
            yield sides
        finally:
            for process in processes.values():
                process.close()


def _library(directory: Path) -> Path:
    """A directory that holds this dlprof and nothing else, or else all that lies beside it."""
    library = directory / "library"
    library.mkdir()
    try:
        (library / _PACKAGE.name).symlink_to(_PACKAGE, target_is_directory=True)
    except OSError:  # Windows lets only some users make links
        return _PACKAGE.parent
    return library
