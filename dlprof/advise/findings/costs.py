"""Where a configuration's time goes, from an explanation. Seconds are per batch."""

from __future__ import annotations

import dataclasses
import statistics
from collections.abc import Sequence

from dlprof.records import BatchCosts, Explanation, Stage

LEAST_RECEIVE_S = 0.0003
"""What main takes to receive one tensor from a worker (FIELD section 1)."""

_LEAST_PUT_S = 0.0001


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
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
        hold_up_s: Ready in main, waiting for an earlier batch.
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
    hold_up_s: float
    wait_s: float
    step_s: float
    period_s: float
    usual_io_s: float

    @property
    def making(self) -> Work:
        """Fetch and collate."""
        return Work(
            cpu_s=self.fetch.cpu_s + self.collate.cpu_s,
            io_s=self.fetch.io_s + self.collate.io_s,
            run_queue_s=self.fetch.run_queue_s + self.collate.run_queue_s,
        )

    @property
    def main_s(self) -> float:
        """Of main's own work for the loader, waiting for cores left out."""
        return self.receive.own_s + self.dispatch.own_s

    @property
    def cpu_s(self) -> float:
        """CPU of all processes for one batch, the step left out."""
        return self.making.cpu_s + self.put_cpu_s + self.receive.cpu_s + self.dispatch.cpu_s

    def handed_over_light(self) -> Costs:
        """The same, with one tensor a batch to hand over."""
        return dataclasses.replace(
            self,
            put_cpu_s=min(self.put_cpu_s, _LEAST_PUT_S),
            receive=Work(cpu_s=min(self.receive.own_s, LEAST_RECEIVE_S)),
        )

    def received_at_rest(self, tensors: float) -> Costs:
        """The same, where the worker's interpreter is free when main asks for its tensors.

        Args:
            tensors: In a batch.
        """
        waits_s = min(self.receive.io_s, LEAST_RECEIVE_S * max(1.0, tensors))
        return dataclasses.replace(self, receive=dataclasses.replace(self.receive, io_s=waits_s))


def costs_of(explained: Explanation) -> Costs:
    """The mean costs of an explanation."""
    rows = explained.costs
    making = Work(cpu_s=mean(rows.cpu_s), io_s=mean(rows.io_s), run_queue_s=mean(rows.run_queue_s))
    fetch, collate = _shared(making, explained.stage("fetch"), explained.stage("collate"))
    dispatch = _stage_work(explained.stage("dispatch"))
    if explained.stage("dispatch") is None:
        dispatch = Work(cpu_s=mean(rows.main_cpu_s))
    wait, step = explained.stage("wait"), explained.stage("step")
    batches = max(1, explained.batches)
    rebuild = _stage_work(explained.stage("rebuild"))
    starved = max(
        making.starved,
        _stage_work(explained.stage("serialise")).starved,
        dataclasses.replace(rebuild, io_s=0.0).starved,  # main meets the same crowd
    )
    return Costs(
        fetch=fetch,
        collate=collate,
        put_cpu_s=mean(rows.put_cpu_s),
        receive=_receive(rows, explained.stage("rebuild"), starved),
        dispatch=dispatch,
        pin_s=_mean_s(explained.stage("pin")) or mean(rows.pin_s),
        copy_s=_mean_s(explained.stage("copy")),
        hold_up_s=_mean_s(explained.stage("hold_up")),
        wait_s=_mean_s(wait),
        step_s=_mean_s(step),
        period_s=explained.window_s / batches,
        usual_io_s=statistics.median(rows.io_s) if rows.io_s else 0.0,
    )


def mean(values: Sequence[float]) -> float:
    """The mean; 0 of nothing."""
    return statistics.fmean(values) if values else 0.0


def _receive(rows: BatchCosts, rebuild: Stage | None, starved: float) -> Work:
    """Taking a batch; the worker's part in the hand-over waits for a core as often as the worker.

    Main sees that as waiting, although it is for want of cores.

    Args:
        rows: What receiving took.
        rebuild: The stage.
        starved: Share of time that the worker, or its thread that hands over, waits for a core.
    """
    work = _stage_work(rebuild)
    if rows.receive_cpu_s:
        work = Work(
            cpu_s=mean(rows.receive_cpu_s),
            io_s=mean(rows.receive_io_s),
            run_queue_s=work.run_queue_s,
        )
    return dataclasses.replace(
        work, io_s=work.io_s * (1 - starved), run_queue_s=work.run_queue_s + work.io_s * starved
    )


def _shared(making: Work, fetch: Stage | None, collate: Stage | None) -> tuple[Work, Work]:
    """Fetch and collate told apart, by their own figures or by their lengths."""
    if fetch is None:
        return making, Work()
    if collate is None:
        return _stage_work(fetch) if fetch.cpu_s is not None else making, Work()
    if fetch.cpu_s is not None and collate.cpu_s is not None:
        return _stage_work(fetch), _stage_work(collate)
    if making.wall_s <= 0:
        return Work(cpu_s=fetch.mean_s), Work(cpu_s=collate.mean_s)
    if fetch.cpu_s is not None:
        own = _stage_work(fetch)
        rest = Work(
            cpu_s=max(0.0, making.cpu_s - own.cpu_s),
            io_s=max(0.0, making.io_s - own.io_s),
            run_queue_s=max(0.0, making.run_queue_s - own.run_queue_s),
        )
        return own, rest
    share = fetch.mean_s / max(1e-12, fetch.mean_s + collate.mean_s)
    return _scaled(making, share), _scaled(making, 1 - share)


def _scaled(work: Work, factor: float) -> Work:
    return Work(
        cpu_s=work.cpu_s * factor,
        io_s=work.io_s * factor,
        run_queue_s=work.run_queue_s * factor,
    )


def _stage_work(stage: Stage | None) -> Work:
    """A stage's parts; where they aren't told apart, all of it counts as CPU."""
    if stage is None:
        return Work()
    if stage.cpu_s is None:
        return Work(cpu_s=stage.mean_s)
    queue_s = stage.run_queue_s or 0.0
    io_s = stage.io_s
    if io_s is None:
        io_s = max(0.0, stage.mean_s - stage.cpu_s - queue_s)
    return Work(cpu_s=stage.cpu_s, io_s=io_s, run_queue_s=queue_s)


def _mean_s(stage: Stage | None) -> float:
    return 0.0 if stage is None else stage.mean_s
