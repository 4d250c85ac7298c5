"""What all benchmarks share: their options, running commands, tables, and results as JSON."""

from __future__ import annotations

import argparse
import dataclasses
import importlib.metadata
import json
import math
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from dlprof.machine import inspect_machine
from dlprof.units import format_bytes
from dlprof.version import __version__

_TAIL = 0.025

RESULTS = Path(__file__).parent / "results"
DLPROF = (sys.executable, "-m", "dlprof")
TINY = "synthetic:tensors=1,shape=4,length=100000000"
"""Samples that cost next to nothing, in an epoch that doesn't end while it is measured."""

_OUTPUT_TAIL = 4000


@dataclasses.dataclass(frozen=True, slots=True)
class Table:
    """A table of texts."""

    title: str
    columns: Sequence[str]
    rows: Sequence[Sequence[str]]


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """What a benchmark found.

    Attributes:
        name: Of the script.
        title: What was measured.
        goal: What was to be reached.
        passed: Whether it was; ``None`` where nothing is to be reached.
        tables: For people.
        notes: How it was measured, as far as the tables don't say.
        data: The figures behind the tables, JSON values.
    """

    name: str
    title: str
    goal: str
    passed: bool | None
    tables: Sequence[Table]
    notes: Sequence[str] = ()
    data: Mapping[str, Any] = dataclasses.field(default_factory=dict)


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Finished:
    """What a command took.

    Attributes:
        wall_s: From start to end.
        cpu_s: CPU time of it and its children that it waited for.
        peak_rss_bytes: Of the command itself or any one of those children.
        began_at: Wall-clock time of the start, seconds since 1970.
        stdout: What it wrote.
    """

    wall_s: float
    cpu_s: float
    peak_rss_bytes: int
    began_at: float
    stdout: str


class CommandError(Exception):
    """A command that was to be timed failed."""


def parser(description: str | None) -> argparse.ArgumentParser:
    """A parser with the options that all benchmarks have."""
    made = argparse.ArgumentParser(description=description)
    made.add_argument(
        "--quick", action="store_true", help="only show that it works: the figures mean nothing"
    )
    return made


def run_command(
    command: Sequence[str], *, cwd: Path | None = None, environ: Mapping[str, str] | None = None
) -> Finished:
    """Run a command to its end.

    Args:
        command: Program and arguments.
        cwd: Where.
        environ: Added to the environment.

    Raises:
        CommandError: It didn't exit with 0; holds the end of what it wrote.
    """
    with tempfile.TemporaryFile("w+") as stdout, tempfile.TemporaryFile("w+") as stderr:
        began_at, began_s = time.time(), time.perf_counter()
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=stdout,
            stderr=stderr,
            cwd=cwd,
            env={**os.environ, **(environ or {})},
        )
        _, status, usage = os.wait4(process.pid, 0)  # unlike Popen.wait, it says what was used
        wall_s = time.perf_counter() - began_s
        process.returncode = os.waitstatus_to_exitcode(status)
        stdout.seek(0)
        stderr.seek(0)
        if process.returncode != 0:
            tail = (stdout.read() + stderr.read())[-_OUTPUT_TAIL:]
            raise CommandError(f"{' '.join(command)} ended with {process.returncode}:\n{tail}")
        return Finished(
            wall_s=wall_s,
            cpu_s=usage.ru_utime + usage.ru_stime,
            peak_rss_bytes=usage.ru_maxrss * 1024,
            began_at=began_at,
            stdout=stdout.read(),
        )


def surroundings() -> dict[str, Any]:
    """Where and on what a benchmark ran; the load is that before it began."""
    machine = inspect_machine()
    return {
        "taken_at": datetime.now(UTC).isoformat(timespec="seconds"),
        "cpu_model": machine.cpu_model,
        "logical_cpus": machine.logical_cpus,
        "usable_cores": machine.usable_cores,
        "memory_bytes": machine.memory_bytes,
        "memory_limit_bytes": machine.memory_limit_bytes,
        "gpus": [gpu.name for gpu in machine.gpus],
        "platform": machine.platform,
        "python": ".".join(str(part) for part in sys.version_info[:3]),
        "torch": importlib.metadata.version("torch"),
        "dlprof": __version__,
        "load_before": os.getloadavg(),
    }


def document(report: Report, before: Mapping[str, Any], *, quick: bool) -> dict[str, Any]:
    """A report with its surroundings as JSON values."""
    after = {"load_after": os.getloadavg(), "quick": quick}
    plain: dict[str, Any] = json.loads(
        json.dumps({**dataclasses.asdict(report), "where": {**before, **after}})
    )
    return plain


def publish(report: Report, before: Mapping[str, Any], *, quick: bool) -> None:
    """Print a report as Markdown and keep it under ``benchmarks/results``.

    Args:
        report: What was found.
        before: From ``surroundings``, taken before the benchmark began.
        quick: Whether the figures mean nothing; then they are kept apart.
    """
    print(markdown(keep(report, before, quick=quick)))


def keep(report: Report, before: Mapping[str, Any], *, quick: bool) -> dict[str, Any]:
    """Keep a report as ``publish`` does, without a word: so that one cut off can go on."""
    made = document(report, before, quick=quick)
    RESULTS.mkdir(exist_ok=True)
    path = RESULTS / f"{report.name}{'.quick' if quick else ''}.json"
    path.write_text(json.dumps(made, indent=1) + "\n")
    return made


def markdown(made: Mapping[str, Any]) -> str:
    """A document as a section of Markdown."""
    lines = [f"### {made['title']}", "", f"Goal: {made['goal']}. {_verdict(made)}", ""]
    for table in made["tables"]:
        lines += [*([f"{table['title']}:", ""] if table["title"] else [])]
        lines += [markdown_table(table["columns"], table["rows"]), ""]
    lines += [f"- {note}" for note in made["notes"]]
    lines += [f"- {_where(made['where'])}", ""]
    return "\n".join(lines)


def markdown_table(columns: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A Markdown table; all columns but the first are aligned to the right."""
    lines = [columns, ["---", *["---:"] * (len(columns) - 1)], *rows]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in lines)


def _verdict(made: Mapping[str, Any]) -> str:
    if made["where"]["quick"]:
        return "**A quick run: the figures mean nothing.**"
    return {True: "**Reached.**", False: "**Not reached.**", None: ""}[made["passed"]]


def _where(where: Mapping[str, Any]) -> str:
    memory = where["memory_limit_bytes"] or where["memory_bytes"]
    gpus = ", ".join(where["gpus"]) or "no GPU"
    before, after = where["load_before"][0], where["load_after"][0]
    return (
        f"{where['taken_at']}, {where['cpu_model']}, {where['usable_cores']:g} usable of "
        f"{where['logical_cpus']} logical CPUs, {format_bytes(memory)}, {gpus}, "
        f"{where['platform']}, Python {where['python']}, torch {where['torch']}, "
        f"dlprof {where['dlprof']}; one-minute load {before:.2f} before, {after:.2f} after."
    )


def quartiles(values: Sequence[float]) -> tuple[float, float]:
    """The lower and the upper quartile; of a single value, that value."""
    if len(values) == 1:
        return values[0], values[0]
    low, _, high = statistics.quantiles(values, n=4, method="inclusive")
    return low, high


def median_interval(values: Sequence[float]) -> tuple[float, float]:
    """The 95 % interval of a median by order statistics: of few values, from least to most.

    A median lies below the k-th smallest of n values with the probability that a coin falls on one
    side fewer than k times in n throws.
    """
    ordered, count = sorted(values), len(values)
    below, k = 0.0, 0
    while k < count // 2 and below + math.comb(count, k) / 2**count <= _TAIL:
        below += math.comb(count, k) / 2**count
        k += 1
    k = max(k, 1)
    return ordered[k - 1], ordered[-k]


def spread(values: Sequence[float], digits: int = 3) -> str:
    """The quartiles as a text."""
    low, high = quartiles(values)
    return f"{low:.{digits}f}-{high:.{digits}f}"
