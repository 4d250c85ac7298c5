"""The options that commands share, as annotated types: name, help and panel, in one place.

Values are raw texts: ``dlprof.settings`` gives them meaning and a sentence for each fault, the
same for a flag, an environment variable and a configuration file.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

_SWEPT = "Search space (4, or 0,2,4, or 0:16:2; on, off or both; auto)"
_CONSUMER = "Data and consumer"
_EFFORT = "Budget"
_LIMITS = "Limits"
_OUTPUT = "Output"

Target = Annotated[
    str | None,
    typer.Argument(
        metavar="TARGET",
        help="package.module:attr, path/to/file.py:attr, or a built-in dataset: "
        "images (the default), voc, shards, text, synthetic.",
    ),
]
Arg = Annotated[
    list[str] | None,
    typer.Option(
        "--arg",
        metavar="KEY=VALUE",
        help="Pass an argument to the target's callable; may be repeated.",
        rich_help_panel=_CONSUMER,
    ),
]

NumWorkers = Annotated[
    str | None,
    typer.Option(
        "--num-workers",
        metavar="VALUES",
        help="Worker processes to try.",
        rich_help_panel=_SWEPT,
    ),
]
PrefetchFactor = Annotated[
    str | None,
    typer.Option(
        "--prefetch-factor",
        metavar="VALUES",
        help="Batches to send ahead per worker.",
        rich_help_panel=_SWEPT,
    ),
]
PinMemory = Annotated[
    str | None,
    typer.Option(
        "--pin-memory",
        metavar="SWITCH",
        help="Copy batches to page-locked memory.",
        rich_help_panel=_SWEPT,
    ),
]
PersistentWorkers = Annotated[
    str | None,
    typer.Option(
        "--persistent-workers",
        metavar="SWITCH",
        help="Keep workers between epochs.",
        rich_help_panel=_SWEPT,
    ),
]
BatchSize = Annotated[
    str | None,
    typer.Option(
        "--batch-size",
        metavar="VALUES",
        help="Samples per batch. Default: the target's own.",
        rich_help_panel=_SWEPT,
    ),
]
InOrder = Annotated[
    str | None,
    typer.Option(
        "--in-order",
        metavar="SWITCH",
        help="Yield batches in the sampler's order. Default: the target's own.",
        rich_help_panel=_SWEPT,
    ),
]
StartMethod = Annotated[
    str | None,
    typer.Option(
        "--start-method",
        metavar="NAMES",
        help="fork, spawn or forkserver, or several. Default: the target's own.",
        rich_help_panel=_SWEPT,
    ),
]
SharingStrategy = Annotated[
    str | None,
    typer.Option(
        "--sharing-strategy",
        metavar="NAMES",
        help="file_descriptor or file_system, or both with a comma. Default: torch's own.",
        rich_help_panel=_SWEPT,
    ),
]
WorkerThreads = Annotated[
    str | None,
    typer.Option(
        "--worker-threads",
        metavar="VALUES",
        help="Compute threads inside each worker. Default: torch's 1.",
        rich_help_panel=_SWEPT,
    ),
]

Shuffle = Annotated[
    bool | None,
    typer.Option(
        "--shuffle/--no-shuffle",
        help="Shuffle a dataset that brings no sampler. Default: the target's own.",
        rich_help_panel=_CONSUMER,
    ),
]
StepTime = Annotated[
    str | None,
    typer.Option(
        "--step-time",
        metavar="TIME",
        help="Pretend that each training step takes this long, such as 12ms.",
        rich_help_panel=_CONSUMER,
    ),
]
Step = Annotated[
    str | None,
    typer.Option(
        "--step",
        metavar="MODULE:FUNCTION",
        help="Call this function with each batch as the training step.",
        rich_help_panel=_CONSUMER,
    ),
]
Device = Annotated[
    str | None,
    typer.Option(
        "--device",
        metavar="DEVICE",
        help="auto, cpu, or a device such as cuda:0. Default: auto.",
        rich_help_panel=_CONSUMER,
    ),
]

CopyAhead = Annotated[
    bool | None,
    typer.Option(
        "--copy-ahead/--no-copy-ahead",
        help="Copy a batch to the device while the one before is worked on. Default: off.",
        rich_help_panel=_CONSUMER,
    ),
]
StepOn = Annotated[
    str | None,
    typer.Option(
        "--step-on",
        metavar="host|device",
        help="Where --step-time passes: the host sleeps, or the device computes. Default: host.",
        rich_help_panel=_CONSUMER,
    ),
]

Budget = Annotated[
    str | None,
    typer.Option(
        "--budget",
        metavar="TIME",
        help="How long the whole sweep may take. Default: 45s.",
        rich_help_panel=_EFFORT,
    ),
]
TrialTime = Annotated[
    str | None,
    typer.Option(
        "--trial-time",
        metavar="TIME",
        help="Measured window of one trial. Default: from the budget.",
        rich_help_panel=_EFFORT,
    ),
]
Repeats = Annotated[
    str | None,
    typer.Option(
        "--repeats",
        metavar="N",
        help="Measure each configuration N times. Default: as the budget allows.",
        rich_help_panel=_EFFORT,
    ),
]
Search = Annotated[
    str | None,
    typer.Option(
        "--search",
        metavar="auto|model|grid",
        help="Measure all configurations (grid), or predict all and measure few (model). "
        "Default: auto, the model where it can.",
        rich_help_panel=_EFFORT,
    ),
]
Seed = Annotated[
    str | None,
    typer.Option(
        "--seed",
        metavar="N",
        help="Seed of the order of measuring. Default: 0.",
        rich_help_panel=_EFFORT,
    ),
]
Timeout = Annotated[
    str | None,
    typer.Option(
        "--timeout",
        metavar="TIME",
        help="End a trial that takes longer. Default: 120s.",
        rich_help_panel=_EFFORT,
    ),
]
ColdCache = Annotated[
    bool | None,
    typer.Option(
        "--cold-cache/--no-cold-cache",
        help="Drop the data's files from the page cache before each trial.",
        rich_help_panel=_EFFORT,
    ),
]

MaxWorkers = Annotated[
    str | None,
    typer.Option("--max-workers", metavar="N", help="At most N workers.", rich_help_panel=_LIMITS),
]
MaxRam = Annotated[
    str | None,
    typer.Option(
        "--max-ram",
        metavar="SIZE",
        help="Memory that loading may take, such as 16GiB.",
        rich_help_panel=_LIMITS,
    ),
]
MaxShm = Annotated[
    str | None,
    typer.Option(
        "--max-shm",
        metavar="SIZE",
        help="Shared memory (/dev/shm) that loading may take.",
        rich_help_panel=_LIMITS,
    ),
]
Ranks = Annotated[
    str | None,
    typer.Option(
        "--ranks",
        metavar="N",
        help="Training processes that share the machine, one loader each. Default: 1.",
        rich_help_panel=_LIMITS,
    ),
]

Output = Annotated[
    Path | None,
    typer.Option(
        "-o",
        "--output",
        metavar="FILE",
        help="The run file. Default: TARGET-DATE-TIME.dlprof.jsonl here.",
        rich_help_panel=_OUTPUT,
    ),
]
Resume = Annotated[
    bool,
    typer.Option("--resume", help="Continue the run file given by -o.", rich_help_panel=_OUTPUT),
]
Force = Annotated[
    bool,
    typer.Option("--force", help="Replace the run file if it exists.", rich_help_panel=_OUTPUT),
]
ConfigFile = Annotated[
    Path | None,
    typer.Option(
        "--config",
        metavar="FILE",
        help="Read options from this TOML file. Flags and DLPROF_* variables go before it.",
        rich_help_panel=_OUTPUT,
    ),
]
PrintConfig = Annotated[
    bool,
    typer.Option(
        "--print-config",
        help="Show the options as resolved, as TOML, and exit.",
        rich_help_panel=_OUTPUT,
    ),
]
Written = Annotated[
    Path | None,
    typer.Option("-o", "--output", metavar="FILE", help="Where to. Default: stdout."),
]
Replace = Annotated[bool, typer.Option("--force", help="Replace the output file if it exists.")]
Json = Annotated[
    bool,
    typer.Option("--json", help="Print one JSON document on stdout.", rich_help_panel=_OUTPUT),
]
Brief = Annotated[
    bool,
    typer.Option(
        "--brief",
        help="With --json: only the answer, one key a line.",
        rich_help_panel=_OUTPUT,
    ),
]
Quiet = Annotated[
    bool,
    typer.Option("-q", "--quiet", help="No progress, no warnings.", rich_help_panel=_OUTPUT),
]
Verbose = Annotated[
    bool,
    typer.Option(
        "-v",
        "--verbose",
        help="Say more, and show where a fault arose.",
        rich_help_panel=_OUTPUT,
    ),
]
