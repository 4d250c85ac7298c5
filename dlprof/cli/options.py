"""How commands are declared and asked: options of the table, of their own, the screen; measuring.

An option of its own is declared where the command's function takes it, as the default of that
parameter. Values of the table's options are raw texts: ``dlprof.settings`` gives them meaning and a
sentence for each fault, the same for a flag, an environment variable and a configuration file.
"""

from __future__ import annotations

import contextlib
import dataclasses
import inspect
import io
import os
import signal
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import datetime
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any, TextIO, get_args

import click

from dlprof.cli import BEGAN_S
from dlprof.cli.commands import (
    IN_ASCII,
    OPTIONS_PANEL,
    Argument,
    Command,
    CommandOption,
    silence_stdout,
)
from dlprof.errors import ExitCode, FileError, InterruptedSweepError, UsageError
from dlprof.settings import options as table
from dlprof.settings.options import ELSEWHERE_PANEL, ONE_CONFIGURATION, SEARCH_SPACE, option_named
from dlprof.units import counted

if TYPE_CHECKING:
    from dlprof.records import Run
    from dlprof.report.document import Document
    from dlprof.report.live import QuietListener
    from dlprof.settings import SweepSettings


LOADED = ("target", "arg", "shuffle")
STEP = ("step_time", "step", "device", "copy_ahead", "step_on")

_OUTPUT = "Output"
_READ: Mapping[type, Any] = {
    Path: click.Path(path_type=Path, readable=False),  # what opens it says what is wrong with it
    float: float,
    bool: bool,
    str: str,
}


def option(
    text: str, metavar: str = "", *flags: str, panel: str = OPTIONS_PANEL, **more: Any
) -> Any:
    """An option of a command's own: the default of the parameter that takes its value.

    The parameter's name is its long flag where none is given, and its type says what is read: a
    ``bool`` makes a switch, a path is a FILE.
    """

    def make(name: str, kind: type) -> CommandOption:
        long = any(flag.startswith("--") for flag in flags)
        names = [name, *flags, *([] if long else [f"--{name.replace('_', '-')}"])]
        read = {"is_flag": True, "default": False} if kind is bool else {"type": _READ[kind]}
        value = metavar or ("FILE" if kind is Path else None)
        return CommandOption(names, help=text, panel=panel, metavar=value, **{**read, **more})

    return make


def argument(text: str, metavar: str, **more: Any) -> Any:
    """An argument of a command: the default of the parameter that takes its value."""
    return lambda name, kind: Argument([name], metavar=metavar, text=text, type=_READ[kind], **more)


def refuse_two(given: Mapping[str, object]) -> None:
    """Refuse more than one of several options that exclude each other, by their flags."""
    flags = [flag for flag, value in given.items() if value]
    if len(flags) > 1:
        raise UsageError(
            f"{flags[0]} and {flags[1]} exclude each other", hint="Leave one of the two out."
        )


def varied(key: str, **changes: Any) -> table.Option:
    """An option of the table that reads otherwise with one command."""
    return dataclasses.replace(option_named(key), **changes)


def resolve(
    given: Mapping[str, object], config: Path | None
) -> tuple[SweepSettings, Mapping[str, str]]:
    """The settings by flags, environment and files, and where each came from."""
    from dlprof.settings.resolve import resolve_settings

    return resolve_settings(given, environ=os.environ, config_file=config, cwd=Path.cwd())


def write_result(text: str) -> None:
    """Write a result to stdout as it is, with one line end behind it."""
    try:
        sys.stdout.write(text.rstrip("\n") + "\n")
        sys.stdout.flush()
    except BrokenPipeError:
        silence_stdout()
    except OSError as error:
        silence_stdout()
        raise FileError(
            f"The result can't be written to stdout: {error.strerror}",
            hint="Write it elsewhere. A run file that was written is kept: dlprof report shows it.",
        ) from None


def write_file(path: Path, written: str | bytes, *, quiet: bool, also: str = "") -> None:
    """Write a result to a file, and say so on stderr, and what else was written."""
    from dlprof.files import replace_file  # most results go to stdout

    if isinstance(written, str):
        # Lone surrogates, which a file name may bring, have no bytes of their own.
        written = written.encode("utf-8", errors="replace")
    replace_file(path, written)
    if not quiet:
        sys.stderr.write(f"Written: {path}{also}\n")


def print_result(document: Document, *, verbose: bool = False) -> None:
    """Print a document to stdout, as wide and as colorful as stdout allows."""
    write_result(_rendered(document, sys.stdout, verbose=verbose))


def print_report(document: Document) -> None:
    """Print a document to the process's stderr, wherever ``sys.stderr`` leads by now.

    Raises:
        OSError: It takes no more.
        ValueError: It is closed.
    """
    stream = sys.__stderr__
    if stream is not None:
        encoding = _encoding(stream)
        text = _rendered(document, stream).encode(encoding, IN_ASCII).decode(encoding)
        stream.write(f"\n{text}\n")
        stream.flush()


def _rendered(document: Document, stream: TextIO, *, verbose: bool = False) -> str:
    from rich.console import Console  # --help and --json answer without it

    from dlprof.report.terminal import rendered  # as above

    there = Console(file=stream, markup=False, highlight=False, emoji=False)
    # Rich itself ends the program with 1 where the reader has gone, and fails where a stream is
    # full: it renders for the stream, but not to it.
    console = Console(
        # By whose encoding Rich and dlprof choose blocks or ASCII.
        file=io.TextIOWrapper(io.BytesIO(), encoding=_encoding(stream)),
        width=there.width or 80,  # as where COLUMNS is 0, at which Rich shows nothing
        color_system="auto" if there.color_system else None,
        force_terminal=there.is_terminal,
        no_color=there.no_color,
        legacy_windows=False,
        markup=False,
        highlight=False,
        emoji=False,
    )
    return rendered(document, console, verbose=verbose)


def _encoding(stream: TextIO) -> str:
    return getattr(stream, "encoding", None) or "utf-8"


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """What every command is asked."""

    # Texts of the table's options that it takes, as far as they were given.
    given: Mapping[str, Any]
    as_json: bool
    brief: bool  # whether only the answer of the JSON document is wanted
    quiet: bool
    verbose: bool

    def show(self, document: Callable[[], str], report: Callable[[], Document]) -> None:
        """Show a result as it is wanted."""
        if not self.as_json:
            print_result(report(), verbose=self.verbose)
        elif self.brief:
            from dlprof.report.documents import brief_document  # rarely wanted

            write_result(brief_document(document()))
        else:
            write_result(document())


def command(
    *keys: str | table.Option,
    once: bool = False,
    screen: Sequence[str] = ("as_json", "quiet", "verbose"),
    cls: type[Command] = Command,
    **more: Any,
) -> Callable[[Callable[..., None]], Command]:
    """Make a command of a function: its first parameter is what every command is asked.

    It takes options of the table by their ``keys``, in the order of the help, and of those that a
    sweep tries one value where ``once`` is set; ``more`` is for ``cls``, the kind of command.
    """
    rows = [option_named(key) if isinstance(key, str) else key for key in keys]

    def decorate(function: Callable[..., None]) -> Command:
        _, *own = inspect.signature(function, eval_str=True).parameters.values()
        made = []
        for each in own:  # of ``Path | None`` and ``tuple[Path, ...]``, ``Path`` is read
            kinds = get_args(each.annotation) or (each.annotation,)
            made.append(each.default(each.name, next(kind for kind in _READ if kind in kinds)))
        words = [each for each in made if isinstance(each, Argument)]
        options = [each for each in made if not isinstance(each, Argument)]

        def parsed(**values: Any) -> None:
            texts = {row.key: values.pop(row.key) for row in rows}
            shown = {key: values.pop(key, False) for key in _SCREEN}
            shown["as_json"] |= values.get("written_as") == "json"
            if shown["brief"] and not shown["as_json"]:
                raise UsageError("--brief shortens --json, which is missing", hint="Give both.")
            # Click has an empty tuple where an option that may be repeated was not given.
            given = {key: text for key, text in texts.items() if text not in {None, ()}}
            function(Asked(given=given, **shown), **values)

        return cls(
            function.__name__,
            help=inspect.getdoc(function),
            callback=parsed,
            params=[
                *words,
                *(_of_the_table(row, once=once) for row in rows),
                *options,
                *(_SCREEN[key](key, bool) for key in _SCREEN if key in screen),
            ],
            **more,
        )

    return decorate


def _of_the_table(row: table.Option, *, once: bool) -> click.Parameter:
    once = once and row.panel == SEARCH_SPACE
    kind = (once and row.kind.once) or row.kind
    default = "" if once else row.default
    text = f"{row.text} Default: {default}." if default else row.text
    metavar = row.metavar or kind.metavar
    if row.key == "target":
        return Argument([row.key], metavar=metavar, text=text, required=False)
    panel = ONE_CONFIGURATION if once else row.panel
    shown: dict[str, Any] = {"help": text, "panel": panel, "aliases": row.aliases}
    if not metavar:
        pair = f"{row.flag}/--no-{row.flag.removeprefix('--')}"
        return CommandOption([row.key, pair], default=None, **shown)
    return CommandOption([row.key, row.flag], metavar=metavar, multiple=row.key == "arg", **shown)


OUTPUT = option(
    "The run file. Default: TARGET-DATE-TIME.dlprof.jsonl here.", "", "-o", panel=_OUTPUT
)
RESUME = option("Continue the run file given by -o.", panel=_OUTPUT)
FORCE = option("Replace the run file if it exists.", panel=_OUTPUT)
CONFIG = option(
    "Read options from this TOML file. Flags and DLPROF_* variables go before it.", panel=_OUTPUT
)
PRINT_CONFIG = option("Show the options as resolved, as TOML, and exit.", panel=_OUTPUT)
WRITTEN = option("Where to. Default: stdout.", "", "-o")
REPLACE = option("Replace the output file if it exists.")
MACHINE = option(
    "Answer for a machine of dlprof machine --list, or that a TOML file describes.",
    "NAME|FILE",
    panel=ELSEWHERE_PANEL,
)
_SCREEN: Mapping[str, Callable[[str, type], CommandOption]] = {
    "as_json": option("Print one JSON document on stdout.", "", "--json", panel=_OUTPUT),
    "brief": option("With --json: only the answer, one key a line.", panel=_OUTPUT),
    "quiet": option("No progress, no warnings.", "", "-q", panel=_OUTPUT),
    "verbose": option("Say more, and show where a fault arose.", "", "-v", panel=_OUTPUT),
}


_ENDING = (signal.SIGINT, signal.SIGTERM)


def run_path(output: Path | None, target: str, *, resume: bool = False) -> Path:
    """Where the run is kept: what the user names, or a name with the target and the time."""
    if output is not None:
        if str(output) in {"-", "."}:  # "." is also what an empty path is read as
            raise UsageError(
                "-o needs the path of the run file",
                hint="Results go to stdout by themselves; a run is kept in a file.",
            )
        return output
    if resume:
        raise UsageError(
            "--resume needs to know which run file to continue", hint="Give it with -o FILE."
        )
    from dlprof.store import run_file_name

    return Path(run_file_name(target, datetime.now().astimezone()))


def leave_interrupted(run: Run, path: Path, *, as_json: bool) -> None:
    """End the command where the run was interrupted; a document has said so."""
    if run.end is not None and run.end.reason == "interrupted":
        if as_json:
            raise click.exceptions.Exit(ExitCode.INTERRUPTED)
        kept = f"What it measured is kept: {counted(len(run.trials), 'trial')} in {path}"
        raise InterruptedSweepError(
            kept if run.trials else "Interrupted before its first trial ended"
        )


def measured(asked: Asked, settings: SweepSettings, measure: Callable[..., Run]) -> Run | None:
    """What a measurement gave, by all ranks that a launcher started; ``None`` but in the first."""
    from dlprof.engine.ranks import gather_ranks

    began_s, asked_s = BEGAN_S.get(), time.monotonic()
    with gather_ranks(os.environ, sys.argv[1:], settings) as ranks:
        if ranks is None:
            return None
        if began_s is not None:  # the budget is not for ranks that come late
            began_s += time.monotonic() - asked_s
        with listening(asked) as listener:
            return measure(settings, listener=listener, began_s=began_s, ranks=ranks)


@contextlib.contextmanager
def listening(asked: Asked) -> Iterator[QuietListener]:
    """Show a measurement while it goes on; finish it when asked to end, end at once if asked again.

    A command whose terminal is gone still has its run file to write to, and its budget ends it. Its
    other processes notice its end by themselves.
    """
    from dlprof.report.live import open_listener

    def interrupt(number: int, frame: FrameType | None) -> None:
        _at_next_signal(_end_at_once)
        signal.default_int_handler(number, frame)

    hangup = getattr(signal, "SIGHUP", None)  # not on Windows
    before = {number: signal.signal(number, interrupt) for number in _ENDING}
    if hangup is not None:
        before[hangup] = signal.signal(hangup, signal.SIG_IGN)
    try:
        with open_listener(quiet=asked.quiet, verbose=asked.verbose) as listener:
            yield listener
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _at_next_signal(handler: Callable[[], object]) -> None:
    for number in _ENDING:
        signal.signal(number, lambda *_: handler())


def _end_at_once() -> None:
    """Leave nothing behind that a moment can undo, and not even that if asked once more."""
    from dlprof.engine.workplace import clean_up_now

    _at_next_signal(lambda: os._exit(ExitCode.INTERRUPTED))
    clean_up_now()
    os._exit(ExitCode.INTERRUPTED)
