"""What happens to a batch after it was loaded: nothing, a step of fixed length, or the user's."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, cast

from dlprof.errors import TargetError
from dlprof.targets.grammar import parse_target
from dlprof.units import parse_step

Consumer = Callable[[Any], object]


def make_consumer(
    step_s: float,
    step_callable: str | None,
    step_spread: str = "",
    directory: Path | None = None,
) -> Consumer:
    """The consumer that the user stated.

    A fixed step sleeps, as a training loop does while the device computes; a step that keeps a
    core busy instead has to be given as ``step_callable``. The kernel wakes a sleeper late, by
    about 0.1 ms, which is taken off each step: one that is shorter lasts as long as that.

    ``step_callable`` is ``module:function`` or ``file.py:function``, and wins over ``step_s``. It
    is looked for in the ``directory``, as the target may have changed to another. ``step_spread``
    is how steps differ, the same in every trial, with ``step_s`` as their mean.
    """
    if step_callable is not None:
        from dlprof.targets.build import import_object  # torch with it, which has the target by now

        found = import_object(parse_target(step_callable), directory=directory)
        if not callable(found):
            raise TargetError(
                f"The step {step_callable!r} is not a function.",
                hint="Give the step as module:function or path/to/file.py:function.",
            )
        return cast(Consumer, found)
    if step_s <= 0:
        return lambda _batch: None  # at no cost: the rate is then the loader's own
    sleep, late_s = time.sleep, lateness_s(min(step_s, 1e-3))
    nap_s = max(1e-9, step_s - late_s)
    if not step_spread:
        return lambda _batch: sleep(nap_s)
    steps = steps_of(step_s, step_spread)
    return lambda _batch: sleep(max(1e-9, next(steps) - late_s))


def steps_of(step_s: float, step_spread: str) -> Iterator[float]:
    """The lengths of one step after the other, without end."""
    step = parse_step(step_spread) if step_spread else step_s
    return itertools.cycle(step_s * of for of in getattr(step, "shape", (1.0,)))


def lateness_s(
    nap_s: float,
    *,
    sleep: Callable[[float], object] = time.sleep,
    clock: Callable[[], float] = time.perf_counter,
) -> float:
    """Seconds by which a sleep of ``nap_s`` lasts longer, where a core is idle; 0 or more.

    Of a few sleeps the second shortest counts, since a crowd makes some later.
    """
    found = []
    for _ in range(5):
        began_s = clock()
        sleep(nap_s)
        found.append(clock() - began_s - nap_s)
    # An idle core's timer slack and waking stay below this; what is more is a crowd's doing.
    return min(max(0.0, sorted(found)[1]), 2.5e-4)
