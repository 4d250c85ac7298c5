"""Did it get slower? The rules of ``dlprof check``: what to measure next, and the verdict.

A check goes round in one loop, which measures nothing by itself::

    plan = make_plan(confidence=0.99, seed=seed)
    history = []
    while (look := next_look(plan, history)).needed and there_is_time():
        history += measure(look.needed, order_of)
    check = make_check([checked_target(target, plan, history)], base=..., change=...)

Pure: quads of blocks in, verdicts out. The same quads always give the same verdict, and the
document of a check holds them, so that anybody can compute it again.
"""

from __future__ import annotations

from dlprof.gate.baseline import (
    add_entry,
    baseline_key,
    comparable,
    figures_of,
    judge_baseline,
    key_difference,
    parse_baseline,
    render_entry,
)
from dlprof.gate.document import (
    checked_baseline,
    checked_target,
    exit_code,
    make_check,
    make_self_test,
    reach_of,
    sights,
)
from dlprof.gate.plan import (
    ALL_GATES,
    SIDES,
    cores_of,
    loader_difference,
    make_plan,
    order_of,
)
from dlprof.gate.verdict import NextLook, judge, next_look
from dlprof.gate.views import LEAST_BATCHES, MOST_BATCHES, cleaned, grouped

__all__ = [
    "ALL_GATES",
    "LEAST_BATCHES",
    "MOST_BATCHES",
    "SIDES",
    "NextLook",
    "add_entry",
    "baseline_key",
    "checked_baseline",
    "checked_target",
    "cleaned",
    "comparable",
    "cores_of",
    "exit_code",
    "figures_of",
    "grouped",
    "judge",
    "judge_baseline",
    "key_difference",
    "loader_difference",
    "make_check",
    "make_plan",
    "make_self_test",
    "next_look",
    "order_of",
    "parse_baseline",
    "reach_of",
    "render_entry",
    "sights",
]
