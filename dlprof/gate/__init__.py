"""Did it get slower? The rules of ``dlprof check``: what to measure next, and the verdict.

A check goes round in one loop, which measures nothing by itself::

    plan = make_plan(confidence=0.99, seed=seed)
    history = []
    while (look := next_look(plan, history)).needed and there_is_time():
        history += measure(look.needed, order_of)
    check = make_check(checked_target(target, plan, history), base=..., change=...)

Pure: quads of blocks in, verdicts out. The same quads always give the same verdict, and the
document of a check holds them, so that anybody can compute it again.
"""

from __future__ import annotations

from dlprof.gate.baseline import add_entry as add_entry
from dlprof.gate.baseline import baseline_key as baseline_key
from dlprof.gate.baseline import comparable as comparable
from dlprof.gate.baseline import figures_of as figures_of
from dlprof.gate.baseline import parse_baseline as parse_baseline
from dlprof.gate.plan import ALL_GATES as ALL_GATES
from dlprof.gate.plan import SIDES as SIDES
from dlprof.gate.plan import cores_of as cores_of
from dlprof.gate.plan import loader_difference as loader_difference
from dlprof.gate.plan import make_plan as make_plan
from dlprof.gate.plan import order_of as order_of
from dlprof.gate.verdict import NextLook as NextLook
from dlprof.gate.verdict import checked_baseline as checked_baseline
from dlprof.gate.verdict import checked_target as checked_target
from dlprof.gate.verdict import exit_code as exit_code
from dlprof.gate.verdict import make_check as make_check
from dlprof.gate.verdict import make_self_test as make_self_test
from dlprof.gate.verdict import next_look as next_look
from dlprof.gate.views import LEAST_BATCHES as LEAST_BATCHES
from dlprof.gate.views import grouped as grouped
