"""What ``dlprof check --self-test`` found: whether verdicts of this machine can be trusted."""

from __future__ import annotations

from dlprof.records.gate import GateName, TargetCheck
from dlprof.records.machine import Machine
from dlprof.records.record import record

SELF_TEST_SCHEMA_VERSION = 1
"""Of the JSON document of a self-test; fields may be added without a new one."""


@record(frozen=True, slots=True)
class Sight:
    """The smallest slowdown that a look would have called a failure.

    Attributes:
        quads: After how many ABBA blocks.
        slowdown: Of the service time, as a fraction.
    """

    quads: int
    slowdown: float


@record(frozen=True, slots=True, kw_only=True)
class Reach:
    """How much worse a metric would have to be for a check like this one to fail.

    Attributes:
        name: The metric.
        label: The metric for people.
        worse: A fraction, or an amount in ``unit``; ``None`` where it can't fail a check here.
        unit: ``""`` for a fraction, ``s`` or ``bytes``.
        reason: Why it can't fail one here; empty where it can.
    """

    name: GateName
    label: str
    worse: float | None
    unit: str = ""
    reason: str = ""


@record(frozen=True, slots=True, kw_only=True)
class SelfTest:
    """The same code against itself, and against itself made slower.

    Attributes:
        schema_version: Of this document.
        trusted: Whether equal code passed and slower code failed.
        explanation: What came out, in a sentence or two for people.
        injected: How much slower the slower code was, as a fraction of the service time.
        same: The same code on both sides.
        slowed: The same code with the slowdown on the side of the change.
        sights: What each look at the same code would have caught.
        reach: The same for every metric, at the last look.
        started_at: ISO 8601, UTC.
        dlprof_version: Version.
        python_version: Version.
        torch_version: Version.
        machine: What was measured on.
    """

    schema_version: int = SELF_TEST_SCHEMA_VERSION
    trusted: bool
    explanation: str
    injected: float
    same: TargetCheck
    slowed: TargetCheck
    sights: tuple[Sight, ...] = ()
    reach: tuple[Reach, ...] = ()
    started_at: str = ""
    dlprof_version: str = ""
    python_version: str = ""
    torch_version: str = ""
    machine: Machine | None = None
