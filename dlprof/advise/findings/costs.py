"""Where a configuration's time goes, from an explanation. Seconds are per batch."""

from __future__ import annotations

import dataclasses
import statistics
from collections.abc import Sequence

from dlprof.model import Means, rate_allowed
from dlprof.records import Config, Explanation, Stage

_FASTEST = 1e9
_LEAST_CORES = 0.05


@dataclasses.dataclass(frozen=True, slots=True)
class Work:
    """What one part of loading takes, seconds per batch.

    Attributes:
        cpu_s: CPU.
        io_s: True waiting.
        run_queue_s: Waiting for a core.
    """

    cpu_s: float = 0.0
    io_s: float = 0.0
    run_queue_s: float = 0.0

    def plus(self, other: Work, times: float = 1.0) -> Work:
        """Both together, the other so many times; no less than nothing."""
        mine, more = dataclasses.astuple(self), dataclasses.astuple(other)
        return Work(*(max(0.0, a + times * b) for a, b in zip(mine, more, strict=True)))

    @property
    def wall_s(self) -> float:
        """All three."""
        return self.cpu_s + self.io_s + self.run_queue_s

    @property
    def own_s(self) -> float:
        """What it would take with a core at hand."""
        return self.cpu_s + self.io_s

    @property
    def starved(self) -> float:
        """Share of its time that was spent waiting for a core."""
        return self.run_queue_s / self.wall_s if self.wall_s > 0 else 0.0


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Costs:
    """Where one configuration's time goes, seconds per batch.

    Attributes:
        fetch: Of the samples.
        collate: Of the batch.
        put_cpu_s: CPU of a worker beside the thread that fetches.
        receive: Of main, taking and rebuilding the batch.
        dispatch: Of main, drawing indices and sending them.
        pin_s: Of the pin thread.
        copy_s: To the device.
        wait_s: Of the consumer, in ``next()``.
        step_s: Of the consumer, working.
        period_s: From one batch to the next.
        usual_io_s: True waiting in making the batch in the middle: a few slow ones don't move it.
    """

    fetch: Work
    collate: Work
    put_cpu_s: float
    receive: Work
    dispatch: Work
    pin_s: float
    copy_s: float
    wait_s: float
    step_s: float
    period_s: float
    usual_io_s: float

    @property
    def making(self) -> Work:
        """Fetch and collate."""
        return self.fetch.plus(self.collate)

    @property
    def main_s(self) -> float:
        """Of main's own work for the loader, waiting for cores left out."""
        return self.receive.own_s + self.dispatch.own_s

    @property
    def cpu_s(self) -> float:
        """CPU of all processes for one batch, the step left out."""
        return self.making.cpu_s + self.put_cpu_s + self.receive.cpu_s + self.dispatch.cpu_s

    def rate(self, config: Config, cores: float) -> float:
        """Batches per second that the model's bounds allow a configuration at these costs."""
        making, main_s = self.making, self.dispatch.own_s
        means = Means(cpu=making.cpu_s + main_s, io=making.io_s)
        if config.num_workers:
            means = Means(
                cpu=making.cpu_s + self.put_cpu_s,
                io=making.io_s,
                receive_cpu=self.receive.cpu_s,
                receive_io=self.receive.io_s,
                main_cpu=main_s,
            )
        cores = max(_LEAST_CORES, cores)
        rate = rate_allowed(means, workers=config.num_workers, cores=cores, step_s=self.step_s)
        return min(_FASTEST, rate)


def costs_of(explained: Explanation) -> Costs:
    """The mean costs of an explanation."""
    rows = explained.costs
    making = Work(*map(_mean, (rows.cpu_s, rows.io_s, rows.run_queue_s)))
    stages = {stage.name: stage for stage in explained.stages}
    seconds = {name: stage.mean_s for name, stage in stages.items()}
    work = {name: _work(stage) for name, stage in stages.items()}
    fetch, collate = _told_apart(making, stages.get("fetch"), stages.get("collate"))
    receive = work.get("rebuild", Work())
    # The worker's part in handing over waits for a core as often as the worker, or its thread that
    # hands over, or main in the same crowd: main sees that as waiting, though it is for a core.
    crowd = Work(receive.cpu_s, 0.0, receive.run_queue_s)
    starved = max(making.starved, work.get("serialise", Work()).starved, crowd.starved)
    if rows.receive_cpu_s:
        taken = _mean(rows.receive_cpu_s), _mean(rows.receive_io_s)
        receive = Work(*taken, receive.run_queue_s)
    return Costs(
        fetch=fetch,
        collate=collate,
        put_cpu_s=_mean(rows.put_cpu_s),
        receive=receive.plus(Work(0.0, -starved * receive.io_s, starved * receive.io_s)),
        dispatch=work.get("dispatch", Work(_mean(rows.main_cpu_s))),
        pin_s=seconds.get("pin") or _mean(rows.pin_s),
        copy_s=seconds.get("copy", 0.0),
        wait_s=seconds.get("wait", 0.0),
        step_s=seconds.get("step", 0.0),
        period_s=explained.window_s / max(1, explained.batches),
        usual_io_s=statistics.median(rows.io_s) if rows.io_s else 0.0,
    )


def _mean(values: Sequence[float]) -> float:
    """The mean; 0 of nothing."""
    return statistics.fmean(values) if values else 0.0


def _told_apart(making: Work, fetch: Stage | None, collate: Stage | None) -> tuple[Work, Work]:
    """Fetch and collate, by their own figures or else by their lengths."""
    own = Work() if fetch is None else _work(fetch)
    known = fetch is not None and fetch.cpu_s is not None
    if fetch is None or collate is None:
        return (own if known else making), Work()
    if making.wall_s <= 0 or (known and collate.cpu_s is not None):
        return own, _work(collate)
    if known:
        return own, making.plus(own, -1.0)
    share = collate.mean_s / max(1e-12, fetch.mean_s + collate.mean_s)
    return making.plus(making, -share), Work().plus(making, share)


def _work(stage: Stage) -> Work:
    """A stage's parts; where they aren't told apart, all of it counts as CPU."""
    if stage.cpu_s is None:
        return Work(stage.mean_s)
    queue_s = stage.run_queue_s or 0.0
    io_s = max(0.0, stage.mean_s - stage.cpu_s - queue_s) if stage.io_s is None else stage.io_s
    return Work(stage.cpu_s, io_s, queue_s)
