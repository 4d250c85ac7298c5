"""Blocks, quads and checks built by hand; what tests of the gate and of its renderers share."""

from __future__ import annotations

import dataclasses
import functools
import math
import random
from collections.abc import Sequence
from typing import Any

import golden
from builders import machine

from dlprof.gate.baseline import judge_baseline
from dlprof.gate.plan import make_plan, order_of
from dlprof.gate.verdict import checked_baseline, checked_target, judge, make_check
from dlprof.records.gate import (
    BaselineEntry,
    BaselineKey,
    Block,
    CheckPlan,
    CheckReport,
    Compared,
    GateName,
    GateResult,
    Quad,
    TargetCheck,
    Verdict,
)

BATCHES = 8
SAMPLES = 4
SERVICE_S = 0.010
KEY = BaselineKey(
    target="data.py:make",
    cpu_model="Example CPU",
    available_cores=8.0,
    os="Linux 6.1",
    python="3.11",
    torch="2.13.0",
    config="w2-p2",
    data="1a2b3c4d",
)
check_golden = functools.partial(golden.check_golden, folder="gate")


def recomputed(check: TargetCheck) -> Verdict:
    """The verdict that follows from a document's raw figures."""
    if check.entry is not None:
        return judge_baseline(check.entry, check.history, check.baseline_rule)
    assert check.plan is not None
    return judge(check.plan, check.quads)


def block(letter: str, factor: float = 1.0, **rest: Any) -> Block:
    """A block of equal batches, ``factor`` times as slow as usual in everything."""
    service_s = SERVICE_S * factor
    fields: dict[str, Any] = {
        "side": "base" if letter == "A" else "change",
        "service_s": (service_s,) * BATCHES,
        "samples": (SAMPLES,) * BATCHES,
        "wall_s": 1.2 * service_s * BATCHES,
        "run_queue_wait_fraction": 0.02,
        "stages_s": {
            "fetch": 0.8 * service_s * BATCHES,
            "collate": 0.2 * service_s * BATCHES,
            "receive": 0.1 * service_s * BATCHES,
        },
        "pss_peak_bytes": 500.0 * (1 << 20),
        "shm_peak_bytes": 0.0,
    }
    return Block(**(fields | rest))


def load_quads(
    count: int, slower: float = 0.0, *, noise: float = 0.02, seed: int = 0, **rest: Any
) -> list[Quad]:
    """Quads of steady loading, the change slower by a fraction; ``rest`` goes to every block."""
    coin = random.Random(f"load {seed}")
    quads = []
    for number in range(count):
        order = order_of(seed, "load", number)
        blocks = tuple(
            block(
                letter,
                math.exp(coin.gauss(0, noise)) * (1 + slower if letter == "B" else 1),
                **rest,
            )
            for letter in order
        )
        quads.append(Quad(number=number, series="load", blocks=blocks))
    return quads


def start_quads(count: int, base_s: float, longer_s: float = 0.0, seed: int = 0) -> list[Quad]:
    """Pairs of starts."""
    coin = random.Random(f"start {seed}")
    return [
        Quad(
            number=number,
            series="start",
            blocks=tuple(
                Block(
                    side="base" if letter == "A" else "change",
                    startup_s=base_s
                    + (longer_s if letter == "B" else 0)
                    + abs(coin.gauss(0, 0.01)),
                    epoch_turnover_s=0.05,
                )
                for letter in order_of(seed, "start", number)
            ),
        )
        for number in range(count)
    ]


def lone_plan(**rest: Any) -> CheckPlan:
    """A plan by which one pair of processes decides."""
    plan = make_plan(**rest)
    rules = tuple(dataclasses.replace(rule, confirmed=False) for rule in plan.rules)
    return dataclasses.replace(plan, rules=rules)


def service_plan(**rest: Any) -> CheckPlan:
    """The same for the service time alone."""
    return lone_plan(**({"gates": ()} | rest))


def confirmed(quads: Sequence[Quad]) -> list[Quad]:
    """The quads, and the same again by a second pair of processes."""
    again = (
        dataclasses.replace(quad, number=quad.number + len(quads), processes=1) for quad in quads
    )
    return [*quads, *again]


def gate(verdict: Verdict, name: GateName) -> GateResult:
    """One gate's result."""
    return next(each for each in verdict.gates if each.name == name)


def entries(figures: Sequence[float], key: BaselineKey = KEY) -> list[BaselineEntry]:
    """A history, one run a day."""
    return [
        BaselineEntry(
            key=key,
            recorded_at=f"2026-01-{day:02}T00:00:00Z",
            commit=f"{day:040x}",
            figures={"service.mean": figure, "service.low_quartile": figure * 0.9},
        )
        for day, figure in enumerate(figures, 1)
    ]


@functools.cache
def failing_check() -> CheckReport:
    """A regression of 10 % in the transform, with a longer start, on a quiet machine."""
    quads = confirmed(load_quads(15, 0.10, noise=0.01))
    quads += start_quads(11, 0.5, 1.0)
    target = checked_target("data.py:make", make_plan(), quads)
    target = dataclasses.replace(
        target, source_file="src/data.py", source_line=12, measured_s=21.4, length=1281
    )
    return _finished(target)


@functools.cache
def passing_check() -> CheckReport:
    """Code that stayed as fast as it was."""
    quads = [*load_quads(15, 0.002, noise=0.01), *start_quads(12, 0.5)]
    return _finished(checked_target("images", make_plan(), quads))


@functools.cache
def inconclusive_check() -> CheckReport:
    """Too noisy to say within the looks."""
    quads = load_quads(140, 0.05, noise=0.15)
    return _finished(checked_target("data.py:make", make_plan(gates=("wall",)), quads))


def baseline_check(*, stored: int = 10, slower: float = 0.0) -> CheckReport:
    """A comparison with a stored history."""
    now = entries([0.010 * (1 + slower)] * 28)[-1]
    history = entries([0.010 + 0.0001 * (place % 3) for place in range(stored)])
    check = _finished(checked_baseline("data.py:make", now, history))
    base = Compared(name="loading.jsonl", note=f"{stored} comparable runs")
    return dataclasses.replace(check, base=base)


@functools.cache
def hostile_check() -> CheckReport:
    """A check whose every text tries to break out of where it is put."""
    evil = (
        "a|b`c`<script>&\"'\\]]>\r\n::error::x%0A\x1b[31m\x00\ud800 "
        'EOF\n# EOF\n<!-- --> ghadelimiter {}{label="v"} \u202e @all #1 [x](http://y)'
    )
    quads = [*load_quads(2, failure=evil), *confirmed(load_quads(15, 0.3, noise=0.01))]
    target = checked_target(evil, make_plan(), quads)
    target = dataclasses.replace(target, source_file=f"{evil}.py", source_line=3)
    side = Compared(name=evil, commit=evil, note=evil)
    check = _finished(target)
    return dataclasses.replace(check, base=side, change=side, override=evil, explanation=evil)


def _finished(target: TargetCheck) -> CheckReport:
    check = make_check(
        target,
        base=Compared(name="main", commit="1" * 40),
        change=Compared(name="working tree", commit="2" * 40, note="with uncommitted changes"),
    )
    return dataclasses.replace(
        check,
        started_at="2026-01-01T00:00:00Z",
        dlprof_version="0.1.0",
        python_version="3.11.0",
        torch_version="2.13.0",
        machine=machine(),
    )
