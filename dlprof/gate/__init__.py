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
