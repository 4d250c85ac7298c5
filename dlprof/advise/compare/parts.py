"""What a comparison says: the types of its result, and the kinds of parts in one table."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any, Literal, NamedTuple

from dlprof import late
from dlprof.advise.wording import percent
from dlprof.records import Config, Estimate, Finding, FindingCode
from dlprof.units import format_bytes, format_duration

PartCode = Literal[
    "cpu",
    "cores",
    "quota",
    "neighbours",
    "storage",
    "receive",
    "copy",
    "step",
    "settings",
    "remainder",
]

Figures = Mapping[str, Any]

_SLOWED = 0.1
"""Share of the cores that neighbours take on one side more than on the other from which a sample's
CPU time may be theirs too."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class SideInfo:
    """One of the two runs, as far as the comparison used it.

    Attributes:
        run_file: Its path.
        hostname: Its machine.
        cpu_model: CPU model as the system names it.
        started_at: ISO 8601, UTC.
        target: TARGET as the user wrote it.
        config: The configuration that was compared.
        samples_per_s: Its rate, the one that all views of its run have.
        trials: Ids of its trials.
        noisy: How many of those are doubtful.
    """

    run_file: str
    hostname: str
    cpu_model: str
    started_at: str
    target: str
    config: Config
    samples_per_s: Estimate
    trials: tuple[str, ...]
    noisy: int


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """One part of the difference.

    Attributes:
        code: Which.
        title: It in words.
        log_ratio: What it adds to ``ln(rate of B / rate of A)``; all parts add up to that.
        factor: ``exp`` of it: all factors multiply to the ratio of the rates.
        explanation: The figures of both sides in one sentence.
        a: Figures of A, by name with unit.
        b: Figures of B.
        alone: Rate of the slower side if only this were as on the other, over its rate now, by
            the closed form; ``None`` for the remainder and for settings that were measured.
    """

    code: PartCode
    title: str
    log_ratio: Estimate
    factor: Estimate
    explanation: str
    a: Figures = dataclasses.field(default_factory=dict)
    b: Figures = dataclasses.field(default_factory=dict)
    alone: float | None = None


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """Why one run is faster than another.

    Attributes:
        a: The first run.
        b: The second run.
        pairing: Which configurations were compared, and why these; one sentence.
        ratio: Rate of B over rate of A.
        verdict: The difference and its biggest part, in a sentence or two.
        parts: Largest first, the remainder last.
        unknown: Parts that the runs don't show, and what would show them; what they hold is in
            the remainder.
        doubts: What is against the comparison, one sentence each.
        findings: What slows the slower side, ordered by cost.
    """

    a: SideInfo
    b: SideInfo
    pairing: str
    ratio: Estimate
    verdict: str
    parts: tuple[Part, ...]
    unknown: Mapping[str, str] = dataclasses.field(default_factory=dict)
    doubts: tuple[str, ...] = ()
    findings: tuple[Finding, ...] = ()

    def _repr_html_(self) -> str:
        """What a notebook shows."""
        return str(late.call("notebook_html", self))


class Kind(NamedTuple):
    """A kind of part.

    Attributes:
        title: It in words.
        costs: The fields of ``Costs`` that belong to it.
        figures: Names of the figures that show it.
        sentence: These of both sides in a sentence.
        cause: The code of its finding and the fix, where it slows the slower side.
    """

    title: str
    costs: tuple[str, ...]
    figures: tuple[str, ...]
    sentence: Callable[[Figures, Figures], str]
    cause: tuple[FindingCode, str] | None = None


def _seconds(text: str, name: str) -> Callable[[Figures, Figures], str]:
    """A sentence with the seconds of both sides."""
    return lambda a, b: text.format(format_duration(a[name]), format_duration(b[name]))


def _cpu(a: Figures, b: Figures) -> str:
    text = _seconds("A sample takes {} of CPU time in A and {} in B", "cpu_s_per_sample")(a, b)
    one, two = ((side["other_cpu_cores"] or 0.0) / side["usable_cores"] for side in (a, b))
    if abs(one - two) >= _SLOWED:
        text += (
            "; processes on the same cores may be a part of that: they share caches,"
            " hyper-threads and clock rate"
        )
    return text + "."


def _quota(side: Figures) -> str:
    quota, held = side["quota_cores"], side["throttled_fraction"]
    if quota is None:
        return "no quota"
    back = "" if held is None else f", which held the trial back {percent(held)} of the time"
    return f"a quota of {quota:g} cores{back}"


def _neighbours(side: Figures) -> str:
    available, waiting = side["available_cpu_cores"], side["run_queue_wait_fraction"]
    known = []
    if waiting is not None:
        known.append(f"run-queue delay was {percent(waiting)} of its threads' time")
    if available is not None:
        known.append(
            f"{available:.1f} of {side['usable_cores']:g} usable cores were its own or idle"
        )
    return ", and ".join(known) or "use of the cores was not recorded"


def _storage(a: Figures, b: Figures) -> str:
    text = _seconds("A sample is blocked {} on its data in A and {} in B", "io_s_per_sample")(a, b)
    hits = [side["cache_hit_fraction"] for side in (a, b)]
    if None not in hits:
        text += f"; {percent(hits[0])} and {percent(hits[1])} came from the page cache"
    reads = [side["read_bytes_per_s"] for side in (a, b)]
    if all(reads):
        text += ", the rest from storage at {}/s and {}/s".format(*map(format_bytes, reads))
    return text + "."


def _receive(a: Figures, b: Figures) -> str:
    text = "Receiving takes the main process {} a sample in A and {} in B"
    text = _seconds(text, "receive_s_per_sample")(a, b)
    if a["pin_s_per_sample"] or b["pin_s_per_sample"]:
        text += _seconds("; pinning, {} and {}", "pin_s_per_sample")(a, b)
    return text + "."


KINDS: Mapping[PartCode, Kind] = MappingProxyType(
    {
        "cpu": Kind(
            "CPU time per sample",
            # Threads of the main process that spin while they wait take CPU time and are more
            # threads: apart from each other, the two would seem to cancel.
            ("cpu_s", "worker_share", "threads"),
            ("cpu_s_per_sample", "own_cpu_cores"),
            _cpu,
            ("fetch.cpu", "Make __getitem__ cheaper, or take a machine with faster cores."),
        ),
        "cores": Kind(
            "available cores",
            ("affinity", "own_stretch"),
            ("affinity_cpus", "logical_cpus", "own_cpu_cores"),
            lambda a, b: (
                f"The job may run on {a['affinity_cpus']} CPUs in A and on {b['affinity_cpus']}"
                " in B."
            ),
            ("cpu.affinity", "Let the job run on more CPUs: affinity mask, cpuset, taskset."),
        ),
        "quota": Kind(
            "CPU quota",
            ("quota_stretch",),
            ("quota_cores", "usable_cores", "throttled_fraction"),
            lambda a, b: f"{_quota(a)} in A, and {_quota(b)} in B.",
            ("cpu.quota", "Raise the CPU quota of the job's cgroup or container."),
        ),
        "neighbours": Kind(
            "background load",
            ("neighbour_stretch",),
            ("available_cpu_cores", "usable_cores", "other_cpu_cores", "run_queue_wait_fraction"),
            lambda a, b: f"In A {_neighbours(a)}; in B {_neighbours(b)}.",
            ("cpu.neighbours", "Move the other processes, or reserve cores for this job."),
        ),
        "storage": Kind(
            "blocked on storage",
            ("io_s",),
            ("io_s_per_sample", "io_from", "cache_hit_fraction", "read_bytes_per_s"),
            _storage,
            ("fetch.io", "Bring the data to faster storage or into memory, or add workers."),
        ),
        "receive": Kind(
            "receiving and pinning",
            ("receive_s", "pin_s"),
            ("receive_s_per_sample", "pin_s_per_sample"),
            _receive,
            ("main.receive", "Send fewer and larger tensors per batch."),
        ),
        "copy": Kind(
            "copies to the device",
            ("copy_s",),
            ("copy_s_per_sample",),
            _seconds(
                "Copying to the device takes {} a sample in A and {} in B.", "copy_s_per_sample"
            ),
            ("transfer.link", "Pin memory, and look at the link with dlprof transfer."),
        ),
        "step": Kind(
            "the training step",
            ("step_s",),
            ("step_s_per_sample", "wait_fraction"),
            _seconds("The training step takes {} a sample in A and {} in B.", "step_s_per_sample"),
            ("consumer", "The step is the limit; the loader is not what to change."),
        ),
        "settings": Kind(
            "the settings",
            ("workers", "pin_thread"),
            ("settings",),
            lambda a, b: f"A ran with {a['settings']}, B with {b['settings']}.",
        ),
        "remainder": Kind(
            "unexplained", (), (), lambda _a, _b: "What the figures of the runs don't explain."
        ),
    }
)
"""In the order in which they are shown where they are of one size."""
