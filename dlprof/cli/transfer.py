"""``dlprof transfer``: how fast do batches reach the device?"""
# ruff: noqa: PLC0415 - imported when the command runs, so that --help answers at once

from __future__ import annotations

import sys
from typing import Annotated

import typer

from dlprof.cli import options, streams
from dlprof.errors import ExitCode

_ALL_DEVICES = (
    "dlprof: --all-devices keeps the links of all devices busy; on a shared machine that slows "
    "down others\n"
)


def transfer(  # noqa: PLR0913 - a command has as many parameters as it has options
    *,
    target: Annotated[
        str | None,
        typer.Option(
            "--target",
            metavar="TARGET",
            help="Also copy a batch of this target: package.module:attr, path/to/file.py:attr, or "
            "a built-in dataset.",
        ),
    ] = None,
    arg: options.Arg = None,
    batch_size: Annotated[
        str | None,
        typer.Option(
            "--batch-size", metavar="N", help="Samples per batch. Default: the target's own."
        ),
    ] = None,
    shuffle: options.Shuffle = None,
    device: options.Device = None,
    all_devices: Annotated[
        bool,
        typer.Option(
            "--all-devices",
            help="Copy to all devices, one by one and at once. Slows down others who use them.",
        ),
    ] = False,
    budget: Annotated[
        str | None,
        typer.Option(
            "--budget",
            metavar="TIME",
            help="How long to copy plain buffers, over all devices. Default: 10s.",
        ),
    ] = None,
    timeout: Annotated[
        str | None,
        typer.Option(
            "--timeout",
            metavar="TIME",
            help="How much longer than --budget it may take. Default: 300s.",
        ),
    ] = None,
    seed: options.Seed = None,
    as_json: options.Json = False,
    quiet: options.Quiet = False,
    verbose: options.Verbose = False,
) -> None:
    """Measure how fast batches reach the device, and what pinned memory changes.

    Copies plain buffers of 4 KB to 256 MB, and with --target a batch of one's own. Without an
    accelerator it measures copies within the host's memory, the upper bound.
    """
    from dlprof.cli.measuring import signals_while_measuring
    from dlprof.engine.transfer import TransferOptions, run_transfer
    from dlprof.report.live import open_listener
    from dlprof.report.transfer import transfer_document, transfer_report

    given = {
        "target": target,
        "arg": arg,
        "batch_size": batch_size,
        "shuffle": shuffle,
        "device": device,
        "all_devices": all_devices,
        "budget": budget,
        "timeout": timeout,
        "seed": seed,
    }
    asked = TransferOptions.of(given, lambda key: "--" + key.replace("_", "-"))
    if all_devices and not quiet:
        sys.stderr.write(_ALL_DEVICES)
    with signals_while_measuring(), open_listener(quiet=quiet, verbose=verbose) as listener:
        found = run_transfer(asked, listener)
    if as_json:
        streams.write_result(transfer_document(found))
    else:
        streams.print_result(transfer_report(found), verbose=verbose)
    if target is not None and found.batch is None:
        raise typer.Exit(ExitCode.NOTHING_MEASURED)  # the result says why
