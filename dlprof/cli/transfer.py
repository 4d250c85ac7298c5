"""``dlprof transfer``: how fast do batches reach the device?"""
# ruff: noqa: PLC0415 - imported when the command runs, so that --help answers at once

from __future__ import annotations

import sys
from typing import Annotated, Any

import typer

from dlprof.cli import options, streams
from dlprof.errors import ExitCode, UsageError

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
    of_target = {"--arg": arg, "--batch-size": batch_size, "--shuffle": shuffle}
    for name, value in of_target.items():
        if target is None and value is not None:
            raise UsageError(
                f"{name} belongs to --target", hint="Give --target too, or leave it out."
            )
    flags = {
        "target": target,
        "arg": arg,
        "batch_size": batch_size,
        "shuffle": shuffle,
        "device": device,
        "budget": budget,
        "timeout": timeout,
        "seed": seed,
    }
    given = _given({name: value for name, value in flags.items() if value is not None})
    if all_devices:
        if "device" in given:
            raise UsageError(
                "--device and --all-devices don't go together", hint="Leave one of them out."
            )
        if not quiet:
            sys.stderr.write(_ALL_DEVICES)
    _run(given | {"all_devices": all_devices}, as_json=as_json, quiet=quiet, verbose=verbose)


def _given(flags: dict[str, object]) -> dict[str, Any]:
    """The options as read by the rules that all commands share, by the settings' own names."""
    from dlprof.settings import by_key

    table = by_key()
    read = {
        table[name].field: table[name].read(value, table[name].flag)
        for name, value in flags.items()
    }
    sizes = read.pop("batch_size", None)
    if sizes is not None and len(sizes) > 1:
        raise UsageError("--batch-size takes one value here", hint="Give one of them.")
    return read if sizes is None else read | {"batch_size": sizes[0]}


def _run(asked: dict[str, Any], *, as_json: bool, quiet: bool, verbose: bool) -> None:
    from dlprof.cli.measuring import signals_while_measuring
    from dlprof.engine.transfer import TransferOptions, run_transfer
    from dlprof.report.live import open_listener
    from dlprof.report.transfer import transfer_document, transfer_report

    with signals_while_measuring(), open_listener(quiet=quiet, verbose=verbose) as listener:
        found = run_transfer(TransferOptions(**asked), listener)
    if as_json:
        streams.write_result(transfer_document(found))
    else:
        streams.print_result(transfer_report(found), verbose=verbose)
    if asked.get("target") is not None and found.batch is None:
        raise typer.Exit(ExitCode.NOTHING_MEASURED)  # the result says why
