"""``dlprof recommend``: which settings to use, from a saved run."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from dlprof.cli import options
from dlprof.errors import UsageError
from dlprof.report.export.formats import format_for
from dlprof.settings.options import ELSEWHERE_PANEL, LIMITED, PLACE

if TYPE_CHECKING:
    from dlprof.records import Recommendation, Run

FORMATS = ("text", "python", "toml", "json", "lightning", "torchrun", "sbatch", "kubernetes")


@options.command(
    *LIMITED,
    *PLACE,
    options.varied(
        "step_time",
        text="Keep a training step of this length fed, such as 12ms, or none.",
        panel=ELSEWHERE_PANEL,
    ),
    screen=("as_json", "brief", "quiet", "verbose"),
    kind="Ask a saved run",
    short="--machine --cores --assume-background --ranks --step-time --max-workers --max-ram "
    "--save --format --json --verbose",
    examples=(
        "dlprof recommend RUN --save dlprof.toml",
        "dlprof recommend RUN --ranks 8 --format sbatch",
    ),
)
def recommend(
    asked: options.Asked,
    *,
    run: Path = options.argument("A run file of dlprof sweep or profile.", "RUN"),
    machine: Path | None = options.MACHINE,
    written_as: str | None = options.option(
        f"How the answer is written. Default: {FORMATS[0]}.", "|".join(FORMATS), "--format"
    ),
    save: Path | None = options.option(
        "Keep the settings of this machine in FILE, for dlprof.kwargs_for(FILE)."
    ),
) -> None:
    """Recommend settings, for this machine or another.

    Measures nothing: it works on any machine. For other machines, cores, ranks and steps than
    those that were measured, and below a limit on workers that excludes the best, it predicts,
    where the run holds a calibration.
    """
    format_for(written_as, None, prefix="--", formats=FORMATS)
    elsewhere = written_as not in {None, "json"}
    options.refuse_two({"--json": asked.as_json, f"--format {written_as}": elsewhere})
    given = {"machine": machine, **asked.given}
    for key in ("machine", "cores", "speed"):
        if save is not None and given.get(key) is not None:
            raise UsageError(
                f"--save keeps the settings of the machine that was measured, --{key} is another",
                hint="Leave one of the two out.",
            )
    from dlprof import api
    from dlprof.report import snippets
    from dlprof.report.documents import json_document
    from dlprof.report.sweep import recommendation_report
    from dlprof.store import read_run

    measured = read_run(run)
    answer = api.recommend(measured, **given)
    if save is not None:
        saved = _keep(save, measured, answer)
        if not asked.quiet:
            sys.stderr.write(f"{saved}\n")
    if written_as not in {None, "text", "json"}:
        render = getattr(snippets, f"render_{written_as}")
        options.write_result(render(measured, answer))
        return
    again = " ".join(  # the options as they were given, to be put into another command
        f"--{key.replace('_', '-')} {shlex.quote(str(value))}"
        for key, value in given.items()
        # Of this machine's own profile the answer is the same, and kept without it.
        if value is not None and (key != "machine" or answer.constraints.machine)
    )
    asked.show(
        lambda: json_document(answer, run_file=measured.path),
        lambda: recommendation_report(measured, answer, again=again),
    )


def _keep(path: Path, run: Run, answer: Recommendation) -> str:
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
