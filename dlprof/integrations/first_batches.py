"""The first batches of a script's loader: whether its data is wrong, and where their time goes.

Of an iterable dataset with several workers: whether the first four batches of all are the same. No
batch is kept, only two numbers for each sample, from some 1,000 values of it; that takes some
milliseconds a batch, which count as the script's step.
They may be followed through its workers as well, and then no more. Meanwhile a thread looks at what
the workers wait for, by which a wait for the GIL is known from I/O: other processes than ancestors
may not be shown that. It rests while processes are forked, which keep no other thread.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import itertools
import random
import threading
import time
import types
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from dlprof.integrations import copies
from dlprof.integrations.wait_statistics import Take
from dlprof.internals import (
    OF_ITERABLES,
    WORKER,
    came_by_signal,
    promised_length,
    workers_of,
)
from dlprof.machine.waits import Glances
from dlprof.records import Config, Explanation, Timeline, WatchedLoader
from dlprof.targets.counting import WorkerSamples, is_resampled
from dlprof.targets.faults import own_attributes
from dlprof.targets.files import OpenFile, holders, moved, named, open_files, positions
from dlprof.targets.workers import start_method_of

if TYPE_CHECKING:
    from dlprof.tracing.tracer import Tracer

LEAST_BATCHES = 10  # followed batches that may show a cause


def compared_workers(known: WatchedLoader, dataset: object) -> int:
    """How many workers may give the same samples; 0 where none can, or they draw them at random."""
    workers = 0 if known.config is None else known.config.num_workers
    if workers < 2 or known.sampler != OF_ITERABLES or is_resampled(dataset):
        return 0
    return workers


def looked_at(take: Take, samples: WorkerSamples) -> Take:
    """``IterationTimer.take`` of one epoch, whose first batches ``samples`` compares."""
    numbers = itertools.count()

    def looking(advance: Callable[[Any], Any], iterator: Any) -> Any:
        if samples.over:
            return take(advance, iterator)
        try:
            batch = take(advance, iterator)
        except StopIteration:
            samples.over = True
            raise
        samples.look(next(numbers), batch)
        return batch

    return looking


class SharedFiles:
    """Notices that the workers of one loader move the position of files that they share.

    In ``next()`` the main process runs torch's own code alone where the samplers are torch's: of
    the files that the loader's own parts hold, what moves meanwhile is moved by its workers. Those
    that a ``worker_init_fn`` gives their number may have a file each.
    """

    def __init__(self, config: Config | None) -> None:
        # Until each worker has made some batches, and none of what was read before the fork.
        self._left = 0 if config is None else 4 * config.batches_in_flight
        # Those that were moved, each in words. Of one worker those that more would share.
        self.found: tuple[str, ...] = ()

    def looking_at(self, loader: Any) -> Callable[[Take], Take]:
        """What makes ``IterationTimer.take`` look, of the workers that are forked from now on."""
        files: tuple[OpenFile, ...] = ()
        with contextlib.suppress(Exception):  # a class of the user's may answer with anything
            numbered = getattr(loader, "worker_init_fn", None) is not None
            forked = start_method_of(loader) == "fork"
            if self._left and not numbered and forked and _samplers_of_torch(loader):
                files = open_files()[:64]  # looking at each takes some 2 µs around a ``next()``
        return functools.partial(self._looked_at, loader, files) if files else lambda take: take

    def _looked_at(self, loader: Any, files: Sequence[OpenFile], take: Take) -> Take:
        # What the iterator holds, too: the loader itself may go before it does.
        names = ("dataset", "collate_fn")
        parts = types.SimpleNamespace(**{name: getattr(loader, name, None) for name in names})
        watched = list(files)

        def looking(advance: Callable[[Any], Any], iterator: Any) -> Any:
            if not self._left:
                return take(advance, iterator)
            before = positions(watched)
            try:
                return take(advance, iterator)
            finally:  # a worker may have raised by what it read
                self._left -= 1
                if moving := moved(watched, before):
                    held = holders(parts)
                    # Any others are of another loader's, or of a thread.
                    watched[:] = [each for each in watched if each.descriptor in held]
                    if mine := [each for each in moving if each in watched]:
                        self.found, self._left = named(mine, parts), 0

        return looking


def _samplers_of_torch(loader: Any) -> list[Any]:
    """What orders a loader's samples, where that is torch's code or a plain range; else empty."""
    batches = getattr(loader, "batch_sampler", None)
    # A batch sampler of torch's may ask one of the user's.
    samplers = [getattr(loader, "sampler", None), batches, getattr(batches, "sampler", None)]
    known = [each for each in samplers if each is not None]
    own = all(
        type(each) in (range, list) or type(each).__module__.startswith("torch.utils.data")
        for each in known
    )
    return known if own else []


def _goes_on(loader: Any) -> bool:
    """Whether an epoch that begins goes on from a state that was loaded, and so may be shorter.

    By what torchdata's and litdata's loaders keep of it, and the dataset of mosaicml-streaming.
    """
    own = own_attributes(loader)
    resumed = own.get("next_iter_state") is not None or own.get("restore") is True
    return resumed or "_resume_shm" in own_attributes(own.get("dataset"))


def promised_batches(loader: Any) -> int | None:
    """``len(loader)`` as far as the script or torch's own samplers have asked for it.

    Nothing else of the user's is run: of an iterable dataset only what the script was given counts,
    and nothing where it draws its shards with replacement, for as long as each worker likes. Nor
    where a state was loaded that says where to begin.
    """
    if is_resampled(getattr(loader, "dataset", None)) or _goes_on(loader):
        return None
    length = promised_length(loader)
    if length is not None:
        size = loader.batch_size or 1
        return length // size if loader.drop_last else -(-length // size)
    known = _samplers_of_torch(loader)
    if not known:
        return None
    return None if type(known[0]).__name__ == OF_ITERABLES else len(loader)


class Follower:
    """Follows the first batches of one loader of a script's, for some 10 seconds.

    They are more than asked for where so many would hardly fill the queues. It takes longer where
    batches are so slow that too few to explain them have come by then. Made where torch is loaded
    already.
    """

    def __init__(self, name: str, config: Config, batches: int = 200) -> None:
        from dlprof.tracing.tracer import Tracer

        self._name, self._config = name, config
        self._warm_up = config.warm_up_batches
        batches = min(2000, max(batches, 4 * self._warm_up))
        self._tracer: Tracer = Tracer(
            capacity=batches,
            stop_after_batches=batches,
            stop_after_s=copies.FOLLOWED_S,
            least_batches=self._warm_up + LEAST_BATCHES,
        )
        # What its consumers copy to the device meanwhile.
        self.copies = copies.ConsumerCopies(batches=batches, first=self._warm_up)
        self._refused = ""
        self._glances, self._enough = Glances(), threading.Event()
        self._looking: threading.Thread | None = None

    @property
    def refused(self) -> str:
        """Why batches could not be followed; empty where they could."""
        return self._refused or next(iter(self._tracer.trace().unavailable.values()), "")

    @property
    def over(self) -> bool:
        """Whether it follows no more."""
        return self._tracer.stopped

    def make(self, loader: Any, iterator: Any, make: Callable[[], None]) -> None:
        """Make an iterator by ``make``, followed where its loader lets that be done."""
        self.rest()
        with contextlib.ExitStack() as stack:
            try:
                adopt = stack.enter_context(self._tracer.making(loader))
            except Exception as error:  # a class of the user's own may refuse
                self._refused = f"{type(loader).__name__} refused the hooks ({error})"
                adopt = None
            make()
        if adopt is not None:
            adopt(iterator)
            if pids := [each.pid for each in workers_of(iterator)]:
                self._enough.clear()
                look = functools.partial(self._look, pids)
                looking = threading.Thread(target=look, daemon=True, name="dlprof")
                try:
                    looking.start()
                except RuntimeError as error:  # there is room for no more threads
                    if came_by_signal(error):
                        raise
                else:
                    self._looking = looking  # another thread may fork, and have it rest, at once

    def rest(self) -> None:
        """Look at no workers until the next iterator has its own."""
        looking, self._looking = self._looking, None
        if looking is not None:
            self._enough.set()
            looking.join(1.0)

    def _look(self, pids: Sequence[int]) -> None:
        draws, pause_s = random.Random(), 0.02
        for _ in range(1000):  # more than fit into the time for which batches are followed
            if self._enough.wait(pause_s * draws.uniform(0.5, 1.5)) or self.over:
                return
            began_s = time.thread_time()
            with contextlib.suppress(Exception):  # what fails here is no matter of the script's
                # One that is spawned gets name and GIL later.
                self._glances.add(*pids, name=WORKER)
                self._glances.look()
            pause_s = max(0.02, 100 * (time.thread_time() - began_s))  # one percent of a core

    def summary(self) -> tuple[Explanation, Timeline] | None:
        """What the batches have shown so far; the first ones, while queues fill, are left out."""
        from dlprof.tracing.explain import explain, timeline  # torch is loaded

        trace = self._tracer.trace()
        rows = trace.rows
        if not rows:
            return None
        # Without workers the very first batch has the imports that one of a worker has: a start's.
        config, warm_up = self._config, self._warm_up or int(len(rows) > LEAST_BATCHES)
        # Of a loop of a few batches an epoch, all of which come as queues fill, all are looked at.
        enough = len(rows) > 2 * warm_up and len(rows) >= warm_up + LEAST_BATCHES
        first = rows[warm_up if enough else 0]
        window = first.asked, rows[-1].yielded
        explanation = explain(trace, trial_id=self._name, config=config, window=window)
        self.rest()
        self._glances.close()
        waits = self._glances.shares(least=50)
        explanation = dataclasses.replace(explanation.with_waits(waits), worker_waits=waits)
        return self.copies.in_stages(explanation), timeline(trace, trial_id=self._name)
