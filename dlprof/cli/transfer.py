"""``dlprof transfer``: how fast do batches reach the device?"""

from __future__ import annotations

import sys

import click

from dlprof.cli import options
from dlprof.errors import ExitCode
from dlprof.settings.options import BUDGET, DATA


@options.command(
    "arg",
    options.varied("batch_size", metavar="N", panel=DATA),
    *("shuffle", "device"),
    options.varied(
        "budget", text="How long to copy plain buffers, over all devices.", default="10s"
    ),
    "seed",
    kind="Measure",
    short="--target --batch-size --device --all-devices --budget --json",
    examples=("dlprof transfer", "dlprof transfer --target my_data.py:make_loader"),
)
def transfer(
    asked: options.Asked,
    *,
    target: str | None = options.option(
        "Also copy a batch of this target: package.module:attr, path/to/file.py:attr, or "
        "a built-in dataset.",
        "TARGET",
    ),
    all_devices: bool = options.option(
        "Copy to all devices, one by one and at once. Slows down others who use them."
    ),
    timeout: str | None = options.option(
        "How much longer than --budget it may take. Default: 300s.",
        "TIME",
        "--overtime",
        panel=BUDGET,
        aliases=["--timeout"],
    ),
) -> None:
    """Measure host-to-device copies and what pinning changes.

    Copies plain buffers of 4 KB to 256 MB, and with --target a batch of one's own. Without an
    accelerator it measures copies within the host's memory, the upper bound.
    """
    from dlprof.engine.transfer import TransferSettings, run_transfer
    from dlprof.report.documents import json_document
    from dlprof.report.transfer import transfer_report

    copied = TransferSettings.of(
        {**asked.given, "target": target, "all_devices": all_devices, "timeout": timeout},
        lambda key: "--overtime" if key == "timeout" else "--" + key.replace("_", "-"),
    )
    if all_devices and not asked.quiet:
        sys.stderr.write(
            "dlprof: --all-devices keeps the links of all devices busy; on a shared machine that "
            "slows down others\n"
        )
    with options.listening(asked) as listener:
        found = run_transfer(copied, listener)
    asked.show(lambda: json_document(found), lambda: transfer_report(found))
    if target is not None and found.batch is None:
        raise click.exceptions.Exit(ExitCode.NOTHING_MEASURED)  # the result says why
