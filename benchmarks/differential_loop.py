"""A loop by hand over a loader of the user's: ``python differential_loop.py FILE FUNCTION``.

It knows nothing of dlprof. The user's file is imported, and ``FUNCTION(**settings)`` makes the
loader, or ``by_hand_FUNCTION(**settings)`` where the function itself takes no settings; a function
``samples_of_FUNCTION(batch)`` or ``samples_of(batch)`` says how many samples a batch holds, where
that isn't the length of its first field. Each line of standard input is a request such as
``{"settings": {"num_workers": 2, "prefetch_factor": 2}, "seconds": 1.0, "whole": false}``, answered
with the samples per second of steady stretches and of whole epochs, as far as there were any (with
``whole``, it goes on until there were); each runs in a fork of its own.
"""

from __future__ import annotations

import dataclasses
import importlib
import json
import os
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, TextIO

LONGEST = 6.0
"""Times the wanted seconds after which a loop ends whatever it has."""
_EPOCHS = 4
_ROUNDS = 3


@dataclasses.dataclass(slots=True, kw_only=True)
class Epoch:
    """One iteration over the loader.

    Attributes:
        began_s: When ``iter`` was called.
        came_s: When each batch came.
        samples: How many each held.
        ended_s: When the loader said that there is no more; ``None`` where it was left.
    """

    began_s: float
    came_s: list[float] = dataclasses.field(default_factory=list)
    samples: list[int] = dataclasses.field(default_factory=list)
    ended_s: float | None = None


def first_length(batch: Any) -> int:
    """Length of a batch's first field, the fields of a dict by their order."""
    while not hasattr(batch, "shape"):
        if isinstance(batch, Mapping):
            batch = next(iter(batch.values()))
        elif isinstance(batch, list | tuple) and batch and not isinstance(batch[0], str | int):
            batch = batch[0]
        else:
            return len(batch)
    return int(batch.shape[0])


def loop(
    loader: Iterable[Any],
    count: Callable[[Any], int],
    is_enough: Callable[[Sequence[Epoch]], bool],
    clock: Callable[[], float] = time.perf_counter,
) -> list[Epoch]:
    """Take batches, epoch after epoch, until that is enough."""
    epochs: list[Epoch] = []
    while True:
        epoch = Epoch(began_s=clock())
        epochs.append(epoch)
        for batch in loader:
            epoch.came_s.append(clock())
            epoch.samples.append(count(batch))
            if is_enough(epochs):
                return epochs
        if not epoch.came_s:
            raise ValueError("an epoch gave nothing")
        epoch.ended_s = clock()


def stretch(epoch: Epoch, workers: int, in_flight: int) -> tuple[int, float]:
    """Samples and seconds of an epoch's steady part: whole rounds of its workers.

    What was loaded before anybody looked, ``in_flight`` and one of each worker, is left out, and
    what comes when nothing is loaded behind it any more.
    """
    first = in_flight + workers
    last = len(epoch.came_s) - 1 - (in_flight if epoch.ended_s is not None else 0)
    stride = max(workers, 1)
    last = first + (last - first) // stride * stride
    if last <= first:
        return 0, 0.0
    return sum(epoch.samples[first + 1 : last + 1]), epoch.came_s[last] - epoch.came_s[first]


def rates(epochs: Sequence[Epoch], workers: int, in_flight: int) -> dict[str, float | None]:
    """Samples per second of steady stretches, and from one epoch's beginning to the next.

    The first epoch, which also pays what is paid once, counts as no whole one where more follow.
    """
    stretches = [stretch(epoch, workers, in_flight) for epoch in epochs]
    steady_s = sum(seconds for _, seconds in stretches)
    whole = [each for each in epochs if each.ended_s is not None]
    spans = list(zip(whole, [*epochs[1:], None], strict=False))[1:]
    ends = [after.began_s if after else epoch.ended_s or 0.0 for epoch, after in spans]
    whole_s = sum(end - epoch.began_s for end, (epoch, _) in zip(ends, spans, strict=True))
    in_whole = sum(sum(epoch.samples) for epoch, _ in spans)
    return {
        "steady": sum(samples for samples, _ in stretches) / steady_s if steady_s else None,
        "steady_s": steady_s,
        "whole": in_whole / whole_s if whole_s else None,
        "epoch_samples": sum(whole[-1].samples) if whole else None,
        "epoch_batches": len(whole[-1].samples) if whole else None,
        "batches": sum(len(epoch.samples) for epoch in epochs),
        "samples": sum(sum(epoch.samples) for epoch in epochs),
    }


def answer(
    make: Callable[..., Any], count: Callable[[Any], int], request: Mapping[str, Any]
) -> dict[str, float | None]:
    """Run a loop as long as was asked for; ``ends`` is whether an epoch does."""
    settings, seconds = request["settings"], request["seconds"]
    workers = settings.get("num_workers", 0)
    in_flight = workers * (settings.get("prefetch_factor") or 2)
    stride = max(workers, 1)

    def is_enough(epochs: Sequence[Epoch]) -> bool:
        now = epochs[-1]
        if request["whole"]:
            took_s = now.came_s[-1] - epochs[0].came_s[0]
            done = len(now.came_s) == 1 and len(epochs) > 2 and took_s >= seconds
            return bool(done or took_s >= 2 * LONGEST * seconds)
        if now.came_s[-1] - epochs[0].came_s[0] >= LONGEST * seconds:
            return True
        if len(epochs) > 1:  # they end: a few whole ones, and as long as was asked for
            took_s = now.began_s - epochs[1].began_s
            # At an epoch's beginning, as the batches of an unfinished one count for nothing.
            return len(now.came_s) == 1 and len(epochs) > _EPOCHS and took_s >= seconds
        steady = len(now.came_s) - 1 - in_flight - workers
        if steady < _ROUNDS * stride or steady % stride:
            return False
        return bool(now.came_s[-1] - now.came_s[in_flight + workers] >= seconds)

    loader = make(**settings)
    found = rates(loop(loader, count, is_enough), workers, in_flight)
    return {**found, "ends": found["epoch_batches"] is not None or _has_length(loader)}


def _has_length(loader: Any) -> bool:
    try:
        return len(loader) > 0
    except TypeError:
        return False


def _in_a_fork(
    make: Callable[..., Any], count: Callable[[Any], int], request: Mapping[str, Any], out: TextIO
) -> None:
    pid = os.fork()
    if pid == 0:
        status = 1
        try:
            print(json.dumps(answer(make, count, request)), file=out, flush=True)
            status = 0
        except Exception as error:  # the user's code
            said = {"error": f"{type(error).__name__}: {error}"[-300:]}
            print(json.dumps(said), file=out, flush=True)
        finally:
            os._exit(status)
    os.waitpid(pid, 0)


def main() -> None:
    """Serve until standard input ends."""
    path, name = Path(sys.argv[1]), sys.argv[2]
    out = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what packages print, such as litdata, is no answer
    sys.path.insert(0, str(path.parent))
    module = importlib.import_module(path.stem)
    make = getattr(module, f"by_hand_{name}", None) or getattr(module, name)
    own = getattr(module, f"samples_of_{name}", getattr(module, "samples_of", first_length))
    for line in sys.stdin:
        _in_a_fork(make, own, json.loads(line), out)


if __name__ == "__main__":
    main()
