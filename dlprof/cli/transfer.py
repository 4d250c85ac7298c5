"""``dlprof transfer``: how fast do batches reach the device?"""
# ruff: noqa: PLC0415 - imported when the command runs, so that --help answers at once

from __future__ import annotations

import sys
from typing import Annotated

import typer

from dlprof.cli import options, streams
from dlprof.errors import ExitCode
from dlprof.settings.options import BUDGET, DATA

_ALL_DEVICES = (
    "dlprof: --all-devices keeps the links of all devices busy; on a shared machine that slows "
    "down others\n"
)


@options.takes(
    "arg",
    options.varied("batch_size", metavar="N", panel=DATA),
    *("shuffle", "device"),
    options.varied(
        "budget", text="How long to copy plain buffers, over all devices.", default="10s"
    ),
    "seed",
)
def transfer(
    given: options.Given,
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
    all_devices: Annotated[
        bool,
        typer.Option(
            "--all-devices",
            help="Copy to all devices, one by one and at once. Slows down others who use them.",
        ),
    ] = False,
    timeout: Annotated[
        str | None,
        typer.Option(
            "--overtime",
            "--timeout",  # its earlier name
            metavar="TIME",
            help="How much longer than --budget it may take. Default: 300s.",
            rich_help_panel=BUDGET,
        ),
    ] = None,
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

    named = {**given, "target": target, "all_devices": all_devices, "timeout": timeout}
    asked = TransferOptions.of(named, _flag)
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


def _flag(key: str) -> str:
    return "--overtime" if key == "timeout" else "--" + key.replace("_", "-")
