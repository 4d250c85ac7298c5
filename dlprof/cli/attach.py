"""``dlprof attach``: why does this running training wait?"""

from __future__ import annotations

import sys

from dlprof.cli import options
from dlprof.errors import UsageError
from dlprof.units import quoted, watching_s


@options.command(
    kind="Measure",
    short="--seconds --json --verbose",
    examples=("dlprof attach 12345", "dlprof attach 12345 --seconds 60"),
)
def attach(
    asked: options.Asked,
    *,
    pid: str = options.argument(
        "The training's main process, one of its workers, or its launcher.", "PID"
    ),
    seconds: float = options.option("How long to watch it. Default: 10.", "S", default=10.0),
) -> None:
    """Say why a running training waits.

    It is watched from outside: nothing is injected, and it isn't slowed down. Where that can't say
    enough, `dlprof run` follows each batch from the start of a run.
    """
    if not (pid.isascii() and pid.isdigit() and 0 < int(pid[:20]) < 1 << 31):
        raise UsageError(
            f"{quoted(pid)} is not the id of a process",
            hint="`dlprof top` lists the trainings on this machine.",
        )
    number = int(pid)
    watched_s = watching_s(seconds, 0.5)
    from dlprof.attach import attach as watch
    from dlprof.report.attach import attach_report, figures_of
    from dlprof.report.documents import json_document

    if not asked.quiet and sys.stderr.isatty():
        sys.stderr.write(f"Watching process {number} for {watched_s:g} s …\n")
    found = watch(number, watched_s)
    asked.show(lambda: json_document(**figures_of(found)), lambda: attach_report(found))
