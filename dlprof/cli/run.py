"""``dlprof run``: an unmodified training script, and how long it waits for its loaders."""
# ruff: noqa: PLC0415 - imported when the command runs, so that --help answers at once

from __future__ import annotations

import contextlib
import dataclasses
import os
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, NoReturn

import typer

from dlprof.cli import options, streams
from dlprof.errors import FileError, UsageError

if TYPE_CHECKING:
    from dlprof.integrations.ranks import Rank
    from dlprof.records import Run, RunHeader
    from dlprof.store import RunWriter


def run(  # noqa: PLR0913 - one for each option
    script: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="SCRIPT [ARGS]...",
            help="The script and its arguments; all that follows it is the script's.",
        ),
    ] = None,
    *,
    module: Annotated[
        str | None,
        typer.Option(
            "-m",
            "--module",
            metavar="MODULE",
            help="Run a module, as python -m does; all that follows it is the module's.",
        ),
    ] = None,
    output: Annotated[
        Path | None,
        typer.Option(
            "-o",
            "--output",
            metavar="FILE",
            help="The run file; under torchrun one for each rank. "
            "Default: SCRIPT-DATE-TIME.dlprof.jsonl here.",
        ),
    ] = None,
    json_file: Annotated[
        Path | None,
        typer.Option(
            "--json", metavar="FILE", help="Write the report into FILE, as one JSON document."
        ),
    ] = None,
    follow: Annotated[
        bool,
        typer.Option(
            "--follow/--no-follow",
            help="Follow the first 200 batches of each loader through its workers, "
            "which shows the cause. Default: on.",
        ),
    ] = True,
    headroom: Annotated[
        bool,
        typer.Option(
            "--headroom",
            help="Measure what a perfect loader would bring. Trains on some batches again: for "
            "measuring, not for a training that you keep.",
        ),
    ] = False,
    force: Annotated[
        bool, typer.Option("--force", help="Replace the run file if it exists.")
    ] = False,
    quiet: options.Quiet = False,
    verbose: options.Verbose = False,
) -> None:
    """Run an unmodified training script, and say how long it waits for its loaders.

    The script runs as python would run it; the report follows on stderr. Options of dlprof stand
    before SCRIPT.
    """
    del verbose  # the program's way out looks for it, where a fault asks for a traceback
    words = list(script or ())
    if module is None and not words:
        raise UsageError(
            "There is no script to run", hint="Give one: dlprof run train.py, or -m and a module."
        )
    # Everything that dlprof needs is imported before the script can put other modules in its way.
    from dlprof.integrations.ranks import job_moment, read_rank
    from dlprof.integrations.running import Plan, new_header, run_program
    from dlprof.integrations.script import load_module, load_script, set_path
    from dlprof.store import check_output
    from dlprof.store.naming import run_file_name

    rank = read_rank(os.environ)
    if headroom and rank is not None and rank.world_size > 1:
        raise UsageError(
            f"--headroom measures a training of one process, and this one has {rank.world_size}",
            hint="Run the script without torchrun: each rank has to make as many steps.",
        )
    if module is None:
        program = load_script(words[0], words[1:])
        name, folder = words[0], program.folder
    else:
        name, folder = module, str(Path.cwd())
    last_words = _LastWords(
        json_file=None if json_file is None else _ranked(json_file, rank),
        on_screen=not quiet and (rank is None or rank.rank == 0),
    )
    header = new_header(name)
    path = _ranked(output or Path(run_file_name(name, job_moment(os.environ, os.getppid()))), rank)
    if output is not None:
        check_output(path, force=force)
    set_path(folder)
    plan = Plan(
        name=name,
        load=(lambda: load_module(module, words)) if module is not None else (lambda: program),
        rank=rank,
        show=last_words,
        follow=follow,
        headroom=headroom,
    )

    def begin() -> RunWriter | None:
        writer = _open(path, header, force=force, named=output is not None)
        last_words.remove_earlier()
        return writer

    ending = run_program(plan, header, begin, clock=time.perf_counter_ns)
    _leave(ending.exit_code)


def _leave(exit_code: int) -> NoReturn:
    """End as the script ended: past dlprof's own way out, which knows its own exit codes only."""
    sys.exit(exit_code)


def _ranked(path: Path, rank: Rank | None) -> Path:
    """The file of this process; by its full path, since the script may change the directory."""
    return (path if rank is None else rank.file(path)).absolute()


def _open(path: Path, header: RunHeader, *, force: bool, named: bool) -> RunWriter | None:
    """The run file; where only the default one can't be written, the script runs without."""
    from dlprof.store import RunWriter

    try:
        return RunWriter.create(path, header, force=force)
    except FileError as error:
        if named:
            raise
        typer.echo(f"dlprof: No run file is written: {error.message}.", err=True)
        return None


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class _LastWords:
    """Shows what was seen, when all is over.

    Attributes:
        json_file: Where the report goes as JSON.
        on_screen: Whether it goes to stderr as well.
    """

    json_file: Path | None
    on_screen: bool

    def __call__(self, run: Run) -> None:
        from dlprof.report.script import script_document, script_report

        if self.json_file is not None:
            document = script_document(run) + "\n"
            try:
                self.json_file.write_text(document, encoding="utf-8")
            except OSError as error:
                self._warn(f"{self.json_file} can't be written: {error.strerror}")
        if self.on_screen:
            with contextlib.suppress(OSError, ValueError):  # the script may have closed it
                streams.print_report(script_report(run))

    def remove_earlier(self) -> None:
        """Remove an earlier run's report, which could be taken for that of a script that dies."""
        file = self.json_file
        if file is not None and file.is_file() and not file.is_symlink():
            with contextlib.suppress(OSError):  # it is told where the report can't be written
                file.unlink()

    def _warn(self, text: str) -> None:
        with contextlib.suppress(OSError, ValueError):
            typer.echo(f"dlprof: {text}.", file=sys.__stderr__)
