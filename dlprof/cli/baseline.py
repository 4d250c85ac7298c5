"""``dlprof baseline``: the stored history that ``dlprof check --baseline`` reads."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dlprof.cli import options
from dlprof.cli.check import BUDGET
from dlprof.cli.commands import Group
from dlprof.errors import FileError, UsageError
from dlprof.settings.options import SWEPT
from dlprof.units import counted

if TYPE_CHECKING:
    from dlprof.records.gate import BaselineEntry

baseline = Group("baseline", kind="CI", help="Keep the history that check --baseline reads.")

_FILE: Any = options.argument("The baseline, JSON lines.", "FILE")


@options.command(
    *options.LOADED,
    *SWEPT,
    BUDGET,
    *("seed", "timeout"),
    once=True,
    short="--from --num-workers --budget --arg --json",
    examples=("dlprof baseline update loading.jsonl my_data.py:make_loader",),
)
def update(
    asked: options.Asked,
    *,
    file: Path = _FILE,
    document: Path | None = options.option(
        "Take the run that this JSON document of dlprof check holds; measure nothing.",
        "DOCUMENT",
        "--from",
    ),
    config: Path | None = options.CONFIG,
) -> None:
    """Measure a target and add the run to a baseline.

    The baseline is created where there is none. A run is compared with others of the same target,
    settings, kind of machine and versions.
    """
    if document is not None and asked.given:
        raise UsageError(
            f"--from measures nothing, so {min(asked.given)} has no use",
            hint="Leave one of them out.",
        )
    from dlprof.engine.checking.history import read_baseline, record_entry
    from dlprof.files import replaceable
    from dlprof.records.gate import BaselineRule
    from dlprof.report.documents import json_document

    replaceable(file)  # before time is spent
    read_baseline(file)
    if document is None:
        from dlprof.engine.checking.compared import for_check
        from dlprof.engine.checking.history import measure_run

        settings = for_check(*options.resolve(asked.given, config))
        with options.listening(asked) as listener:
            entry, _ = measure_run(settings, listener=listener)
    else:
        entry = _taken(document)
    count = record_entry(file, entry)
    if asked.as_json:
        added = [{"entry": entry, "comparable_runs": count}]
        options.write_result(json_document(file=str(file), added=added))
    elif not asked.quiet:
        said = f"{counted(count, 'run')} of {entry.key.target} on this kind of machine"
        least = BaselineRule().least_runs
        missing = f"; check --baseline judges from {least} runs on" if count < least else ""
        options.write_result(f"{file}: {said}{missing}")


@options.command(short="--json", examples=("dlprof baseline show loading.jsonl",))
def show(asked: options.Asked, *, file: Path = _FILE) -> None:
    """Show the runs of a baseline.

    By what they can be compared with. Measures nothing.
    """
    from dlprof.engine.checking.history import read_baseline
    from dlprof.report.check import baseline_document, baseline_report

    history = read_baseline(file)
    if not file.exists():
        raise FileError(
            f"There is no baseline {file}", hint="Record a run with dlprof baseline update."
        )
    asked.show(
        lambda: baseline_document(str(file), history), lambda: baseline_report(str(file), history)
    )


def _taken(document: Path) -> BaselineEntry:
    """The run that the document of a check holds; warns of a doubtful one."""
    from dlprof.files import read_text
    from dlprof.report.check import GIVE_DOCUMENT, read_check

    text = read_text(document, "a document of a check", hint=GIVE_DOCUMENT)
    check = read_check(text, str(document))
    entry = check.target.recordable
    if entry is None:
        raise FileError(
            f"{document} holds no run that a baseline could keep",
            hint="Measure one: dlprof baseline update FILE TARGET.",
        )
    doubts = []
    if check.state == "fail" and not check.override:
        doubts.append(
            "holds a check that failed: its run widens what later ones may take, so that they may "
            "not fail."
        )
    if check.change.note:
        doubts.append(
            f"was measured {check.change.note}, so which code its run was of is not known."
        )
    for doubt in doubts:
        sys.stderr.write(f"dlprof: warning: {document} {doubt}\n")
    return entry


baseline.add_command(update)
baseline.add_command(show)
