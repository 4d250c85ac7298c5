"""``dlprof run``: an unmodified training script, and how long it waits for its loaders."""

from __future__ import annotations

import contextlib
import dataclasses
import errno
import os
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

import click

from dlprof.cli import options
from dlprof.cli.commands import Command, taking_values
from dlprof.errors import FileError, UsageError

if TYPE_CHECKING:
    from dlprof.integrations.ranks import Rank
    from dlprof.records import Run


class _ScriptCommand(Command):
    """What follows the script or ``-m MODULE`` is the script's."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Parse, options ending where the script's own words begin."""
        ctx.allow_interspersed_args = False
        return super().parse_args(ctx, end_options_at_module(args, {*taking_values(self.params)}))


def end_options_at_module(args: list[str], taking_values: set[str]) -> list[str]:
    """The words with ``--`` behind ``-m MODULE``, where that is the first to name a program."""
    place = 0
    while place < len(args) and args[place].startswith("-") and args[place] != "--":
        word = args[place]
        place += 2 if word in taking_values else 1
        if word.startswith(("-m", "--module")):
            named = place <= len(args)  # else the parser says that the module is missing
            return [*args[:place], "--", *args[place:]] if named else args
    return args


@options.command(
    cls=_ScriptCommand,
    screen=("quiet", "verbose"),
    kind="Measure",
    short="--module --output --json --follow --headroom --tune --force",
    examples=(
        "dlprof run train.py --epochs 1",
        "dlprof run --tune train.py",
        "torchrun --nproc-per-node 8 -m dlprof run train.py",
    ),
)
def run(  # noqa: PLR0913 - one for each option
    asked: options.Asked,
    *,
    script: tuple[str, ...] = options.argument(
        "The script and its arguments; all that follows it is the script's.",
        "SCRIPT [ARGS]...",
        nargs=-1,
    ),
    module: str | None = options.option(
        "Run a module, as python -m does; all that follows it is the module's.", "MODULE", "-m"
    ),
    output: Path | None = options.option(
        "The run file; under torchrun one for each rank. "
        "Default: SCRIPT-DATE-TIME.dlprof.jsonl here; none where no loader was seen.",
        "",
        "-o",
    ),
    json_file: Path | None = options.option(
        "Write the report into FILE, as one JSON document.", "", "--json"
    ),
    follow: bool = options.option(
        "Follow the first 200 batches of each loader through its workers, "
        "which shows the cause. Default: on.",
        "",
        "--follow/--no-follow",
        default=True,
    ),
    headroom: bool = options.option(
        "Measure what a perfect loader would bring. Trains on some batches again: for "
        "measuring, not for a training that you keep."
    ),
    tune: bool = options.option(
        "Have each DataLoader tune its workers while it is iterated, as dlprof.tune does. "
        "Samples stay in their order. Batches are not followed then."
    ),
    force: bool = options.option("Replace the run file if it exists."),
) -> None:
    """Profile an unmodified training script.

    Says how long it waits for its loaders. The script runs as python would run it; the report
    follows on stderr. Options of dlprof stand before SCRIPT.
    """
    if module is None and not script:
        raise UsageError(
            "There is no script to run", hint="Give one: dlprof run train.py, or -m and a module."
        )
    # Everything that dlprof needs is imported before the script can put other modules in its way.
    from dlprof.files import is_there, write_fault
    from dlprof.integrations.ranks import read_rank
    from dlprof.integrations.running import ScriptRun, new_header
    from dlprof.integrations.script import load_module, load_script, set_path
    from dlprof.machine.launchers import job_moment, launcher_of
    from dlprof.store import RunWriter, check_output, run_file_name

    rank = read_rank(os.environ)
    if headroom and rank is not None and rank.world_size > 1:
        raise UsageError(
            f"--headroom measures a training of one process, and this one has {rank.world_size}",
            hint="Run the script without torchrun: each rank has to make as many steps.",
        )
    if headroom and tune:
        raise UsageError(
            "--headroom measures the loaders as they are, and --tune changes them",
            hint="Give one of them.",
        )
    if module is None:
        program = load_script(script[0], list(script[1:]))
        name, folder = script[0], program.folder
    else:
        name, folder = module, str(Path.cwd())
    began_in, document = Path.cwd(), None if json_file is None else _ranked(json_file, rank)
    on_screen = not asked.quiet and (rank is None or rank.rank == 0)
    header = new_header(name)
    moment = job_moment(os.environ, launcher_of(os.getpid()))
    path = _ranked(output or Path(run_file_name(name, moment)), rank)
    if output is not None:
        check_output(path, force=force)
    if document is not None:  # before hours of training, not after them
        if os.path.isdir(document):
            raise FileError(f"{json_file} is a folder", hint="Give another path with --json.")
        if not is_there(document):
            check_output(document)
        # An earlier one is removed where its folder lets us, and written over else.
        elif not any(os.access(each, os.W_OK) for each in (document, document.parent)):
            raise write_fault(document, PermissionError(errno.EACCES, os.strerror(errno.EACCES)))
    if document == path:
        raise UsageError(
            f"-o and --json name the same file, {output}", hint="Give each a file of its own."
        )
    set_path(folder)

    def show(run: Run) -> None:
        if output is None and rank is None and run.path and not run.watched:
            with contextlib.suppress(OSError):  # as of train.py --help
                Path(run.path).unlink()
                run = dataclasses.replace(run, path="")
        _report(run, document, began_in, on_screen=on_screen)

    watched = ScriptRun(
        header=header,
        rank=rank,
        show=show,
        clock=time.perf_counter_ns,
        follow=follow and not tune,
        headroom=headroom,
        tune=tune,
    )

    def begin() -> RunWriter | None:
        try:
            writer = RunWriter.create(path, header, force=force)
        except FileError as error:
            if output is not None:
                raise
            # Where only the default one can't be written, the script runs without.
            with contextlib.suppress(OSError):  # stderr may be on the same full disk
                click.echo(f"dlprof: No run file is written: {error.message}.", err=True)
            writer = None
        # An earlier document could be taken for that of a script that dies.
        if document is not None and document.is_file() and not document.is_symlink():
            with contextlib.suppress(OSError):  # it is said where the report can't be written
                document.unlink()
        return writer

    load = (lambda: program) if module is None else (lambda: load_module(module, list(script)))
    ending = watched.run(load, begin)
    # As the script ended: past dlprof's own way out, which knows its own exit codes only.
    cause = KeyboardInterrupt() if ending.kind == "interrupted" else None
    raise SystemExit(ending.exit_code) from cause


def _ranked(path: Path, rank: Rank | None) -> Path:
    """The file of this process; by its full path, since the script may change the directory."""
    return (path if rank is None else rank.file(path)).absolute()


def _report(run: Run, json_file: Path | None, began_in: Path, *, on_screen: bool) -> None:
    from dlprof.report.script import script_document, script_report

    if json_file is not None:
        try:
            json_file.write_text(script_document(run) + "\n", encoding="utf-8")
        except OSError as error:
            with contextlib.suppress(OSError, ValueError):  # the script may have closed it
                warning = f"dlprof: {json_file} can't be written: {error.strerror}."
                click.echo(warning, file=sys.__stderr__)
    if on_screen:
        if run.path and Path(run.path).is_relative_to(began_in):  # as the user's shell finds it
            run = dataclasses.replace(run, path=str(Path(run.path).relative_to(began_in)))
        with contextlib.suppress(OSError, ValueError):
            options.print_report(script_report(run))
