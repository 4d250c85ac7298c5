"""What happens to a batch after it was loaded: nothing, a step of fixed length, or the user's."""

from __future__ import annotations

import importlib
import time
from collections.abc import Callable
from typing import Any

from dlprof.errors import TargetError

Consumer = Callable[[Any], object]


def _nothing(_batch: object) -> None:
    """Consume at no cost: the rate is then the loader's own."""


def make_consumer(step_s: float, step_callable: str | None) -> Consumer:
    """The consumer that the user stated.

    A fixed step sleeps, as a training loop does while the device computes; a step that keeps a
    core busy instead has to be given as ``step_callable``.

    Args:
        step_s: Length of the step in seconds; 0 for none.
        step_callable: ``module:function``, called with each batch; wins over ``step_s``.

    Raises:
        TargetError: ``step_callable`` can't be imported or called.
    """
    if step_callable is not None:
        return _imported(step_callable)
    if step_s > 0:
        return lambda _batch: time.sleep(step_s)
    return _nothing


def _imported(name: str) -> Consumer:
    module_name, _, attribute = name.partition(":")
    hint = "Give the step as module:function, importable from the working directory."
    try:
        found: Any = importlib.import_module(module_name)
        for part in attribute.split("."):
            found = getattr(found, part)
    except (ImportError, AttributeError, ValueError) as error:
        raise TargetError(f"The step {name!r} can't be imported: {error}.", hint=hint) from error
    if not callable(found):
        raise TargetError(f"The step {name!r} is no function.", hint=hint)
    consumer: Consumer = found
    return consumer
