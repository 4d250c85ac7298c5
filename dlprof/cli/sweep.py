"""``dlprof sweep``: measure which settings are fast here."""

from __future__ import annotations

import dataclasses
import functools
from pathlib import Path

from dlprof.cli import options
from dlprof.errors import UsageError
from dlprof.settings.options import SWEPT


@options.command(
    *options.LOADED,
    *options.STEP,
    *SWEPT,
    *("budget", "trial_time", "repeats", "search", "seed", "timeout", "cold_cache"),
    *("launch_ranks", "step_barrier", "au"),
    *("max_workers", "max_ram", "max_shm"),
    options.varied(
        "ranks",
        text="Training processes assumed to share the machine. One is measured, with torchrun's "
        "OMP_NUM_THREADS=1 where you set none; --launch-ranks measures them all.",
    ),
    "make_load",
    screen=("as_json", "brief", "quiet", "verbose"),
    kind="Measure",
    short="--num-workers --prefetch-factor --pin-memory --batch-size --step-time --arg --budget "
    "--launch-ranks --max-ram --output --json --verbose",
    examples=(
        "dlprof sweep my_data.py:make_loader --step-time 12ms",
        "dlprof sweep images --num-workers 0,2,4 --budget 30s",
    ),
)
def sweep(
    asked: options.Asked,
    *,
    output: Path | None = options.OUTPUT,
    resume: bool = options.RESUME,
    force: bool = options.FORCE,
    config: Path | None = options.CONFIG,
    print_config: bool = options.PRINT_CONFIG,
) -> None:
    """Find the fastest DataLoader settings.

    Writes a run file that dlprof recommend reads later, on any machine.
    """
    if print_config and asked.as_json:
        raise UsageError(
            "--print-config writes TOML, and --json asks for JSON", hint="Leave one of the two out."
        )
    settings, origins = options.resolve(asked.given, config)
    if print_config:
        from dlprof.settings.resolve import print_config as settings_as_toml

        options.write_result(settings_as_toml(settings, origins))
        return
    path = options.run_path(output, settings.target, resume=resume)
    from dlprof.engine import run_sweep
    from dlprof.report.documents import sweep_document
    from dlprof.report.sweep import sweep_report

    sweeping = functools.partial(
        run_sweep, origins=origins, output=path, resume=resume, force=force
    )
    run = options.measured(asked, settings, sweeping)
    if run is None:
        return
    # The file by the name that the user knows it by; the engine has made it absolute.
    named = dataclasses.replace(run, path=str(path))
    asked.show(lambda: sweep_document(run), lambda: sweep_report(named))
    options.leave_interrupted(run, path, as_json=asked.as_json)
