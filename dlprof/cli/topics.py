"""What the help of each command begins with: a summary, the options that matter, examples."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from types import MappingProxyType

EXIT_CODES = (
    ("0", "Done; the check passed."),
    ("2", "An option, a configuration or the target can't be used."),
    ("3", "The check failed: data loading got slower."),
    ("4", "The check is inconclusive, and --inconclusive fail was given."),
    ("5", "There is no comparable baseline."),
    ("6", "Nothing could be measured."),
    ("70", "A fault of dlprof's own."),
    ("130", "Interrupted; what was measured is kept."),
)


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Topic:
    """A command, as its help introduces it.

    Attributes:
        group: What kind of command it is.
        summary: What it does, in a line beside its name.
        options: Those that most people need, in the order of the short help.
        examples: Commands to try.
    """

    group: str
    summary: str
    options: tuple[str, ...] = ()
    examples: tuple[str, ...] = ()


TOPICS: Mapping[str, Topic] = MappingProxyType(
    {
        "sweep": Topic(
            group="Measure",
            summary="Find the fastest DataLoader settings.",
            options=(
                *("--num-workers", "--prefetch-factor", "--pin-memory", "--batch-size"),
                *("--step-time", "--arg", "--budget", "--ranks", "--max-ram"),
                *("--output", "--json", "--verbose"),
            ),
            examples=(
                "dlprof sweep my_data.py:make_loader --step-time 12ms",
                "dlprof sweep images --num-workers 0,2,4 --budget 30s",
            ),
        ),
        "profile": Topic(
            group="Measure",
            summary="Find the bottleneck of one configuration.",
            options=(
                *("--num-workers", "--batch-size", "--step-time", "--cold-cache", "--arg"),
                *("--budget", "--output", "--json", "--verbose"),
            ),
            examples=(
                "dlprof profile my_data.py:make_loader --step-time 12ms",
                "dlprof profile images --num-workers 4",
            ),
        ),
        "run": Topic(
            group="Measure",
            summary="Profile an unmodified training script.",
            options=("--module", "--output", "--json", "--follow", "--force"),
            examples=(
                "dlprof run train.py --epochs 1",
                "torchrun --nproc-per-node 8 -m dlprof run train.py",
            ),
        ),
        "attach": Topic(
            group="Measure",
            summary="Say why a running training waits.",
            options=("--seconds", "--json", "--verbose"),
            examples=("dlprof attach 12345", "dlprof attach 12345 --seconds 60"),
        ),
        "top": Topic(
            group="Measure",
            summary="List the trainings that load data here.",
            options=("--seconds", "--json"),
            examples=("dlprof top", "dlprof top --json"),
        ),
        "transfer": Topic(
            group="Measure",
            summary="Measure host-to-device copies and what pinning changes.",
            options=("--target", "--batch-size", "--device", "--all-devices", "--budget", "--json"),
            examples=("dlprof transfer", "dlprof transfer --target my_data.py:make_loader"),
        ),
        "recommend": Topic(
            group="Ask a saved run",
            summary="Recommend settings, for this machine or another.",
            options=(
                *("--machine", "--cores", "--ranks", "--step-time", "--max-workers", "--max-ram"),
                *("--save", "--format", "--json", "--verbose"),
            ),
            examples=(
                "dlprof recommend RUN --save dlprof.toml",
                "dlprof recommend RUN --ranks 8 --max-ram 64GiB",
            ),
        ),
        "predict": Topic(
            group="Ask a saved run",
            summary="Predict what was not measured.",
            options=(
                *("--num-workers", "--cores", "--ranks", "--step-time", "--assume-background"),
                *("--machine", "--feed", "--json", "--verbose"),
            ),
            examples=(
                "dlprof predict RUN --cores 16 --ranks 2",
                "dlprof predict RUN --feed --step-time 12ms",
            ),
        ),
        "compare": Topic(
            group="Ask a saved run",
            summary="Explain why one run is faster than another.",
            options=("--num-workers", "--best", "--output", "--json", "--verbose"),
            examples=(
                "dlprof compare laptop.dlprof.jsonl server.dlprof.jsonl",
                "dlprof compare laptop.dlprof.jsonl server.dlprof.jsonl -o compared.html",
            ),
        ),
        "report": Topic(
            group="Ask a saved run",
            summary="Write a run as HTML, Markdown, CSV, JSON or a trace.",
            options=("--output", "--format", "--force", "--json", "--verbose"),
            examples=(
                "dlprof report RUN -o report.html",
                "dlprof report RUN -o trials.csv",
                "dlprof report *.dlprof.jsonl -o index.html",
            ),
        ),
        "check": Topic(
            group="CI",
            summary="Fail CI if data loading got slower.",
            options=(
                *("--against", "--baseline", "--num-workers", "--budget", "--fail-above"),
                *("--inconclusive", "--allow-regression", "--output", "--junit", "--json"),
            ),
            examples=(
                "dlprof check my_data.py:make_loader --against main",
                "dlprof check --self-test",
            ),
        ),
        "baseline": Topic(group="CI", summary="Keep the history that check --baseline reads."),
        "baseline update": Topic(
            group="CI",
            summary="Measure a target and add the run to a baseline.",
            options=("--from", "--num-workers", "--budget", "--arg", "--json"),
            examples=("dlprof baseline update loading.jsonl my_data.py:make_loader",),
        ),
        "baseline show": Topic(
            group="CI",
            summary="Show the runs of a baseline.",
            options=("--json",),
            examples=("dlprof baseline show loading.jsonl",),
        ),
        "machine": Topic(
            group="Machine",
            summary="Show what this machine offers and who uses it.",
            options=("--seconds", "--machine", "--list", "--save", "--json", "--verbose"),
            examples=("dlprof machine", "dlprof machine --save this-machine.toml"),
        ),
        "doctor": Topic(
            group="Machine",
            summary="Check what commonly breaks data loading here.",
            options=("--json",),
            examples=("dlprof doctor",),
        ),
        "explain": Topic(
            group="Machine",
            summary="Explain a finding and its fix.",
            options=("--json",),
            examples=("dlprof explain fetch.io", "dlprof explain"),
        ),
    }
)
