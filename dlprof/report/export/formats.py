"""What a saved run can be written as: the formats' names, their suffixes, and who renders each."""

from __future__ import annotations

import dataclasses
import itertools
import json
import os
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from dlprof.errors import UsageError
from dlprof.units import quoted

if TYPE_CHECKING:  # a command's --help names the formats, and loads no records
    from dlprof.records import Run
    from dlprof.report.document import Document

FORMATS = ("text", "html", "markdown", "csv", "parquet", "json", "perfetto")
READ = ("text", "html", "markdown")  # those that people read: any document can be written so

_SUFFIXES: Mapping[str, tuple[str, ...]] = {
    "perfetto": (".perfetto.json", ".trace.json"),  # before what they end with
    "html": (".html", ".htm"),
    "markdown": (".md", ".markdown"),
    "csv": (".csv",),
    "parquet": (".parquet",),
    "json": (".json",),
}


def format_for(
    asked: str | None, output: Path | None, *, prefix: str = "", formats: Collection[str] = FORMATS
) -> str:
    """How a result is to be written: as asked for, else by the suffix of the file, else as text.

    Options are named with the prefix: ``--`` on the command line.
    """
    if asked is not None and asked not in formats:
        raise UsageError(
            f"{prefix}format: {quoted(asked)} is no format",
            hint=f"Give one of {', '.join(formats)}.",
        )
    found = asked or FORMATS[0]
    if asked is None and output is not None:
        known = {each: ends for each, ends in _SUFFIXES.items() if each in formats}
        fitting = [each for each, ends in known.items() if output.name.lower().endswith(ends)]
        if not fitting:
            either = f"{prefix}format, or " if formats == FORMATS else ""
            raise UsageError(
                f"The suffix of {quoted(output.name)} names no format",
                hint=f"Give {either}one of {', '.join(itertools.chain(*known.values()))}.",
            )
        found = fitting[0]
    if found == "parquet" and output is None:
        raise UsageError(
            "Parquet goes into a file: it is not text",
            hint=f"Give {prefix}output, such as trials.parquet.",
        )
    return found


def refuse_existing(output: Path | None, *runs: Path, force: bool, prefix: str = "") -> None:
    """Refuse before reading what would be refused after it, and never replace a run itself."""
    # These never raise, however long a name is: who reads or writes the file says so.
    if output is None or not os.path.exists(output):
        return
    if any(os.path.exists(run) and output.samefile(run) for run in runs):
        raise UsageError(
            f"{prefix}output names the run file itself, {output}",
            hint="Give another path for the report.",
        )
    if not force:
        force_option = f"{prefix}force" if prefix else "force=True"
        raise UsageError(f"{output} already exists", hint=f"Give another path, or {force_option}.")


def render_as(run: Run, written_as: str) -> bytes:
    """A saved run in one of the formats; text is UTF-8."""
    from dlprof.advise.recommend import with_recommendation

    run = with_recommendation(run)  # all formats have the same answer
    match written_as:
        case "html":
            text = render_html(run)
        case "csv":
            from dlprof.report.export.rows import render_csv

            text = render_csv(run)
        case "parquet":
            from dlprof.report.export.rows import render_parquet

            return render_parquet(run)
        case "json":  # all that the run file holds and the answer; keys as in its reference
            from dlprof.records.codec import to_json

            document = {"schema_version": run.header.schema_version, **to_json(run)}
            text = json.dumps(document, allow_nan=False) + "\n"
        case "perfetto":
            from dlprof.report.export.trace import render_perfetto

            text = render_perfetto(run)
        case _:
            text = written(run_report(run), written_as)
    # Lone surrogates, which a file name or a traceback may bring, have no bytes of their own.
    return text.encode("utf-8", errors="replace")


def run_report(run: Run) -> Document:
    """What the command that wrote the run has to say of it."""
    if run.is_script:
        from dlprof.report.script import script_report

        return script_report(run)
    # A profile that was cut off has no diagnosis yet; what it lacks for good is a sweep's plan.
    explains = run.header.plan is None and any(trial.purpose == "explain" for trial in run.trials)
    if run.diagnosis is not None or explains:
        from dlprof.report.profile import profile_report

        return profile_report(run)
    from dlprof.report.sweep import sweep_report

    return sweep_report(run)


def render_html(run: Run) -> str:
    """A run as one HTML file, with all that can be seen of it."""
    from dlprof.advise.recommend import with_recommendation
    from dlprof.report.pictures import with_pictures

    run = with_recommendation(run)
    return written(with_pictures(run_report(run), run), "html")


def written(document: Document, written_as: str) -> str:
    """Any document as a file: ``html``, ``markdown``, or ``text``, its screen with the details."""
    if written_as == "html":
        from dlprof.report.page import to_html

        return to_html(document)
    if written_as == "markdown":
        from dlprof.report.markdown import to_markdown

        return to_markdown(dataclasses.replace(document, title=f"dlprof: {document.title}"))
    from dlprof.report.terminal import plain_text

    return plain_text(document, width=120, verbose=True) + "\n"
