"""Run benchmarks, all of them by default, and bring their tables into ``benchmarks/README.md``.

``python benchmarks`` runs all; ``python benchmarks --quick truth startup`` shows that two of them
work; ``python benchmarks --tables`` runs nothing and only writes the tables again.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from common import RESULTS, markdown

HERE = Path(__file__).parent
README = HERE / "README.md"
NAMES = (
    *("truth", "launched_ranks", "startup", "overhead", "observer", "core_speed", "watching"),
    *(
        "memory",
        "budget",
        "estimator",
        "tracing",
        "faults",
        "kill_campaign",
        "gate_rule",
        "gate_campaign",
    ),
    *(
        "sharing",
        "emulated",
        "emulated_speed",
        "real_data",
        "real_data_beside",
        "picks",
        "picks_beside",
    ),
    *(
        "planted",
        "planted_beside",
        "beside",
        "planted_ranks",
        "strangers",
        "heavy",
        "shard_faults",
        "shared_files",
        "head_to_head",
        "attached",
        "certificate",
        "differential",
        "trainings",
    ),
    *("headroom", "tuning", "dlio", "gpu", "mutation"),
)
"""In the order in which they run and stand in the README."""

BEGIN = "<!-- Written by `python benchmarks`; edit nothing from here on. -->"
END = "<!-- End of what `python benchmarks` writes. -->"


def run(names: Sequence[str], *, quick: bool) -> list[str]:
    """Run benchmarks one after the other; returns the names of those that failed to run."""
    flags = ["--quick"] if quick else []
    failed = []
    for name in names:
        print(f"== {name}", file=sys.stderr, flush=True)
        command = [sys.executable, str(HERE / f"{name}.py"), *flags]
        if subprocess.run(command, check=False).returncode != 0:
            failed.append(name)
    return failed


def collect(results: Path) -> list[dict[str, Any]]:
    """The kept results of full runs, in order, those of ranks and other kinds after the others."""
    ends = ("", "_ranks", "_live", "_ecosystem")
    names = dict.fromkeys(f"{name}{end}" for name in NAMES for end in ends)
    paths = [results / f"{name}.json" for name in names]
    return [json.loads(path.read_text()) for path in paths if path.exists()]


def with_tables(text: str, documents: Sequence[Mapping[str, Any]]) -> str:
    """A README with everything between its two marks replaced by the tables.

    Raises:
        ValueError: A mark is missing.
    """
    before, begin, rest = text.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not (begin and end):
        raise ValueError("the README lacks the marks between which the tables go")
    tables = "\n".join(map(markdown, documents)) or "No full run has been kept.\n"
    return f"{before}{BEGIN}\n\n{tables}\n{END}{after}"


def main() -> None:
    """Run what was asked for."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"of {', '.join(NAMES)}")
    parser.add_argument("--quick", action="store_true", help="only show that they work")
    parser.add_argument("--tables", action="store_true", help="only write the README's tables")
    given = parser.parse_args()
    unknown = sorted(set(given.names) - set(NAMES))
    if unknown:
        parser.error(f"there is no benchmark {unknown[0]!r}")
    failed = [] if given.tables else run(given.names or NAMES, quick=given.quick)
    if not given.quick:
        README.write_text(with_tables(README.read_text(), collect(RESULTS)))
    if failed:
        sys.exit(f"failed to run: {', '.join(failed)}")


if __name__ == "__main__":
    main()
