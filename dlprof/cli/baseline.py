"""``dlprof baseline``: the stored history that ``dlprof check --baseline`` reads."""
# ruff: noqa: PLC0415 - imported when the command runs, so that --help answers at once

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from dlprof.cli import check_options, options, streams
from dlprof.cli.commands import Command, Group
from dlprof.cli.measuring import resolve, signals_while_measuring
from dlprof.errors import FileError, UsageError

if TYPE_CHECKING:
    from dlprof.records.gate import BaselineEntry, CheckReport

app = typer.Typer(cls=Group, rich_markup_mode=None)

_GIVE_DOCUMENT = "Give a document that dlprof check --json printed."
File = Annotated[Path, typer.Argument(metavar="FILE", help="The baseline, JSON lines.")]


@app.callback()
def baseline() -> None:
    """Keep the history that dlprof check --baseline reads."""


@app.command(cls=Command)
@options.takes(*options.LOADED, *options.SWEPT, check_options.BUDGET, "seed", "timeout", once=True)
def update(
    given: options.Given,
    file: File,
    *,
    document: Annotated[
        Path | None,
        typer.Option(
            "--from",
            metavar="DOCUMENT",
            help="Take the run that this JSON document of dlprof check holds; measure nothing.",
        ),
    ] = None,
    config: options.ConfigFile = None,
    as_json: options.Json = False,
    quiet: options.Quiet = False,
    verbose: options.Verbose = False,
) -> None:
    """Measure a target and add the run to a baseline, which is created where there is none.

    A run is compared with others of the same target, settings, kind of machine and versions.
    """
    del verbose  # the program's way out looks for it, where a fault asks for a traceback
    if document is not None and given:
        raise UsageError(
            f"--from measures nothing, so {min(given)} has no use",
            hint="Leave one of them out.",
        )
    from dlprof.engine.baselines import read_baseline, record_entry
    from dlprof.files import replaceable

    replaceable(file)  # before time is spent
    read_baseline(file)
    entries = _measured(given, config, quiet=quiet) if document is None else _taken(document)
    counts = [record_entry(file, entry) for entry in entries]
    _tell(file, entries, counts, as_json=as_json, quiet=quiet)


@app.command(cls=Command)
def show(
    file: File,
    *,
    as_json: options.Json = False,
    quiet: options.Quiet = False,
    verbose: options.Verbose = False,
) -> None:
    """Show the runs of a baseline, by what they can be compared with. Measures nothing."""
    del quiet  # taken as by every command; there is no progress to hide
    from dlprof.engine.baselines import read_baseline
    from dlprof.report.gate.baseline import baseline_document, baseline_report

    if not file.exists():
        raise FileError(
            f"There is no baseline {file}", hint="Record a run with dlprof baseline update."
        )
    history = read_baseline(file)
    if as_json:
        streams.write_result(baseline_document(str(file), history))
    else:
        streams.print_result(baseline_report(str(file), history), verbose=verbose)


def _measured(
    given: Mapping[str, object], config: Path | None, *, quiet: bool
) -> list[BaselineEntry]:
    """One run, measured now."""
    from dlprof.engine.checking.history import measure_run
    from dlprof.engine.checking.settings import for_check
    from dlprof.report.gate.live import open_check_listener

    settings = for_check(*resolve(given, config))
    with signals_while_measuring(), open_check_listener(quiet=quiet) as listener:
        return [measure_run(settings, listener=listener).entry]


def _taken(document: Path) -> list[BaselineEntry]:
    """The runs that the document of a check holds, one per target; warns of doubtful ones."""
    check = _read(document)
    entries = [each.recordable for each in check.targets if each.recordable is not None]
    if not entries:
        raise FileError(
            f"{document} holds no run that a baseline could keep",
            hint="Measure one: dlprof baseline update FILE TARGET.",
        )
    for doubt in _doubts(check):
        typer.echo(f"dlprof: warning: {document} {doubt}", err=True)
    return entries


def _doubts(check: CheckReport) -> Iterator[str]:
    """Why a check's run may not be one to measure later ones by."""
    if check.state == "fail" and not check.override:
        yield (
            "holds a check that failed: its run widens what later ones may take, so that they may "
            "not fail."
        )
    if check.change.note:
        yield f"was measured {check.change.note}, so which code its run was of is not known."


def _read(document: Path) -> CheckReport:
    """The check that a document holds."""
    from dlprof.files import check_plain
    from dlprof.report.gate.check import read_check

    try:
        check_plain(document, document.stat().st_mode, hint=_GIVE_DOCUMENT)
        text = document.read_text(encoding="utf-8")
    except UnicodeDecodeError:
        raise FileError(
            f"{document} is no document of a check: it isn't text",
            hint=_GIVE_DOCUMENT,
        ) from None
    except OSError as error:
        raise FileError(
            f"{document} can't be read: {error.strerror}",
            hint=_GIVE_DOCUMENT,
        ) from None
    return read_check(text, str(document))


def _tell(
    file: Path,
    entries: Iterable[BaselineEntry],
    counts: Iterable[int],
    *,
    as_json: bool,
    quiet: bool,
) -> None:
    """What was added."""
    from dlprof.store.codec import to_json

    if as_json:
        runs = [
            {"entry": entry, "comparable_runs": count}
            for entry, count in zip(entries, counts, strict=True)
        ]
        document = {"schema_version": 1, "file": str(file), "added": runs}
        streams.write_result(json.dumps(to_json(document), allow_nan=False, indent=2))
    elif not quiet:
        for entry, count in zip(entries, counts, strict=True):
            kept = f"{count} run{'' if count == 1 else 's'}"
            streams.write_result(f"{file}: {kept} of {entry.key.target} on this kind of machine")
