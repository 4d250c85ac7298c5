"""The settings of one configuration as options, for commands that explain just one."""

from __future__ import annotations

from typing import Annotated

import typer

_CONFIGURATION = "Configuration (default: the target's own, else PyTorch's)"

NumWorkers = Annotated[
    str | None,
    typer.Option(
        "--num-workers", metavar="N", help="Worker processes.", rich_help_panel=_CONFIGURATION
    ),
]
PrefetchFactor = Annotated[
    str | None,
    typer.Option(
        "--prefetch-factor",
        metavar="N",
        help="Batches sent ahead per worker.",
        rich_help_panel=_CONFIGURATION,
    ),
]
PinMemory = Annotated[
    str | None,
    typer.Option(
        "--pin-memory",
        metavar="on|off",
        help="Copy batches to page-locked memory.",
        rich_help_panel=_CONFIGURATION,
    ),
]
PersistentWorkers = Annotated[
    str | None,
    typer.Option(
        "--persistent-workers",
        metavar="on|off",
        help="Keep workers between epochs.",
        rich_help_panel=_CONFIGURATION,
    ),
]
BatchSize = Annotated[
    str | None,
    typer.Option(
        "--batch-size", metavar="N", help="Samples per batch.", rich_help_panel=_CONFIGURATION
    ),
]
InOrder = Annotated[
    str | None,
    typer.Option(
        "--in-order",
        metavar="on|off",
        help="Yield batches in the sampler's order.",
        rich_help_panel=_CONFIGURATION,
    ),
]
StartMethod = Annotated[
    str | None,
    typer.Option(
        "--start-method",
        metavar="NAME",
        help="fork, spawn or forkserver.",
        rich_help_panel=_CONFIGURATION,
    ),
]
SharingStrategy = Annotated[
    str | None,
    typer.Option(
        "--sharing-strategy",
        metavar="NAME",
        help="file_descriptor or file_system.",
        rich_help_panel=_CONFIGURATION,
    ),
]
WorkerThreads = Annotated[
    str | None,
    typer.Option(
        "--worker-threads",
        metavar="N",
        help="Compute threads inside each worker.",
        rich_help_panel=_CONFIGURATION,
    ),
]
Budget = Annotated[
    str | None,
    typer.Option(
        "--budget",
        metavar="TIME",
        help="How long the whole profile may take. Default: 30s.",
        rich_help_panel="Budget",
    ),
]
