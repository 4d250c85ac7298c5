"""``dlprof recommend``: which settings to use, from a saved run."""
# ruff: noqa: PLC0415 - imported when the command runs, so that --help answers at once

from __future__ import annotations

import dataclasses
import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from dlprof.cli import elsewhere, options, streams
from dlprof.errors import UsageError
from dlprof.settings.options import ELSEWHERE_PANEL
from dlprof.units import quoted

if TYPE_CHECKING:
    from dlprof.records import Recommendation, Run


FORMATS = ("text", "python", "toml", "json", "lightning")


_LIMITS = ("max_workers", "max_ram", "max_shm", "ranks")


@options.takes(
    *_LIMITS,
    *elsewhere.PLACE,
    options.varied(
        "step_time",
        text="Keep a training step of this length fed, such as 12ms.",
        panel=ELSEWHERE_PANEL,
    ),
)
def recommend(  # noqa: PLR0913 - a command has as many parameters as it has options
    given: options.Given,
    run: Annotated[
        Path, typer.Argument(metavar="RUN", help="A run file of dlprof sweep or profile.")
    ],
    *,
    machine: elsewhere.MachineFile = None,
    output_format: Annotated[
        str | None,
        typer.Option(
            "--format",
            metavar="|".join(FORMATS),
            help=f"How the answer is written. Default: {FORMATS[0]}.",
        ),
    ] = None,
    save: Annotated[
        Path | None,
        typer.Option(
            "--save",
            metavar="FILE",
            help="Keep the settings of this machine in FILE, for dlprof.kwargs_for(FILE).",
        ),
    ] = None,
    as_json: options.Json = False,
    brief: options.Brief = False,
    quiet: options.Quiet = False,
    verbose: options.Verbose = False,
) -> None:
    """Say which DataLoader settings to use, and why, from a saved run.

    Measures nothing: it works on any machine. For other machines, cores, ranks and steps than
    those that were measured, and below a limit on workers that excludes the best, it predicts,
    where the run holds a calibration.
    """
    written_as = _format(output_format, as_json=as_json)
    streams.check_brief(brief=brief, as_json=written_as == "json")
    if save is not None:
        named = {"--machine": machine, "--cores": given.get("cores"), "--speed": given.get("speed")}
        _refuse_elsewhere(named)
    from dlprof.advise.candidates import stored_limits
    from dlprof.advise.recommend import recommend as advise
    from dlprof.store import read_run

    measured = read_run(run)
    limits = stored_limits(measured.header.settings)
    asked = {key: given[key] for key in (*_LIMITS, "step_time") if key in given}
    if asked:
        from dlprof.settings.limits import asked_limits  # most calls name no limit

        limits = dataclasses.replace(limits, **asked_limits(asked))
    limits = dataclasses.replace(limits, **elsewhere.place_in(given))
    profile = elsewhere.profile_of(machine)
    answer = advise(
        measured,
        limits,
        machine=None if profile is None else profile.to_machine(),
        ghz=None if profile is None else profile.base_ghz,
    )
    saved = "" if save is None else _keep(save, measured, answer)
    if saved and not quiet:
        typer.echo(saved, err=True)
    again = _as_options({"machine": machine, **given})
    if brief:
        written_as = "brief"
    _show(measured, answer, written_as, again=again, verbose=verbose)


def _as_options(given: Mapping[str, object]) -> str:
    """The options as they were given, to be put into another command."""
    return " ".join(
        f"--{name.replace('_', '-')} {shlex.quote(str(value))}"
        for name, value in given.items()
        if value is not None
    )


def _refuse_elsewhere(asked: Mapping[str, object]) -> None:
    """Refuse to save under the measured machine's name what is meant for another.

    Args:
        asked: Options that describe another machine, and what they were given.
    """
    for option, given in asked.items():
        if given is not None:
            raise UsageError(
                f"--save keeps the settings of the machine that was measured, {option} is another",
                hint="Leave one of the two out.",
            )


def _format(given: str | None, *, as_json: bool) -> str:
    """How the answer is to be written, by ``--format`` and ``--json``."""
    if given is None:
        return "json" if as_json else FORMATS[0]
    if given not in FORMATS:
        raise UsageError(
            f"--format: {quoted(given)} is no format", hint=f"Give one of {', '.join(FORMATS)}."
        )
    if as_json and given != "json":
        raise UsageError(
            f"--json and --format {given} exclude each other", hint="Leave one of the two out."
        )
    return given


def _keep(path: Path, run: Run, answer: Recommendation) -> str:
    """Save the settings, and say how they are used."""
    from dlprof.advise.wrong_data import said_first
    from dlprof.report.text import clean
    from dlprof.saved import save_settings

    header = run.header
    save_settings(
        path,
        header.machine,
        answer,
        header.target.spec,
        when=header.started_at,
        notes=said_first(run),
    )
    place = clean(str(path))
    return (
        f"Saved for {clean(header.machine.fingerprint)} in {place}.\n"
        f"Use them: DataLoader(dataset, **dlprof.kwargs_for({place!r}))"
    )


def _show(
    run: Run, answer: Recommendation, output_format: str, *, again: str, verbose: bool
) -> None:
    from dlprof.report import snippets

    match output_format:
        case "text":
            from dlprof.report.sweep import recommendation_report

            found = recommendation_report(run, answer, again=again)
            streams.print_result(found, verbose=verbose)
        case "python":
            streams.write_result(snippets.render_python(run, answer))
        case "toml":
            streams.write_result(snippets.render_toml(run, answer))
        case "lightning":
            streams.write_result(snippets.render_lightning(run, answer))
        case _:
            from dlprof.report.documents import recommend_document

            streams.write_document(recommend_document(run, answer), brief=output_format == "brief")
