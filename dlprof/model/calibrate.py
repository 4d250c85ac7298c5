"""From instrumented trials to what batches cost, cleaned, and how much that varies.

With ``file_descriptor`` sharing, main asks the worker for each tensor's descriptor. A thread of
the worker answers, and needs the interpreter's lock for it: while the worker computes in Python,
main waits for up to the switch interval, several times. So the time of receiving grows with the
share of time in which workers compute. Trials with and without a step see different shares, and
batches that were taken behind a window, when the workers rested, see none; a straight line through
all of them separates rest from handshake.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
import statistics
from collections.abc import Iterable, Mapping, Sequence

from dlprof.model.bounds import at_lock_s
from dlprof.model.work import DEFAULT, fetch_s
from dlprof.records import BatchCosts, Calibration, Explanation, Trial, Usage, undisturbed
from dlprof.records.stages import blocked_share

MIN_BATCHES = 10  # fewer batches than this say nothing of their spread


def fit(
    explanations: Sequence[Explanation],
    trials: Sequence[Trial],
    *,
    batch_tensors: float | None = None,
) -> Calibration:
    """Merge what instrumented trials show into one calibration.

    Waiting for a core is left out of the costs: it belongs to the moment, and the predictors
    find what there will be of it.

    Args:
        explanations: Of instrumented trials of one target at one batch size, of one run or
            several: ``num_workers`` 0, 1 and 2 are enough.
        trials: All trials of those runs, the instrumented ones among them: start-up, turnover and
            memory come from these.
        batch_tensors: Tensors in a batch, where the target's probe counted them.

    Returns:
        The calibration. Whatever makes it unreliable is among its ``doubts``; with no usable
        batch at all, both of its costs are ``None``.
    """
    traced = [each for each in explanations if each.hooked and each.costs.cpu_s]
    by_id = {trial.id: trial for trial in trials}
    clean = [_cleaned(each, by_id.get(each.trial_id)) for each in traced]
    parted = [_unlocked(each, by_id.get(each.trial_id)) for each in clean if each.costs.cpu_s]
    usable, queueing_s = _alone([each for each, _ in parted], by_id)
    most = max((each.config.num_workers for each in usable), default=0)
    by_strategy: dict[str, list[Explanation]] = {}
    for each in usable:
        if each.config.num_workers:
            by_strategy.setdefault(each.config.sharing_strategy or DEFAULT, []).append(each)
    split = {name: split_receive(some) for name, some in by_strategy.items()}
    merged = {name: _merged(costs) for name, (_, costs) in split.items()}
    usual = DEFAULT if merged.get(DEFAULT) else next(iter(merged), DEFAULT)
    busy_s = {name: longer_s for name, (longer_s, _) in split.items() if longer_s > 0}
    if usual in busy_s:
        busy_s[DEFAULT] = busy_s[usual]  # which goes with ``in_workers``
    series, cv, run_queue = _series(usable), None, None
    if series:
        cv = statistics.stdev(itertools.chain.from_iterable(costs for _, costs in series))
        whole_s = math.fsum(math.fsum(fetch_s(each.costs)) for each in usable)
        queued_s = math.fsum(math.fsum(each.costs.run_queue_s) for each in usable)
        run_queue = queued_s / (queued_s + whole_s)
    alone, fed = (_error_of(series, fed=each) for each in (False, True))
    error = alone if fed is None else fed
    mine = [by_id[each.trial_id] for each in usable if each.trial_id in by_id]
    rated = ((t.usage.read_bytes_per_s, t.batches_per_s) for t in mine)
    read = (a / b.value for a, b in rated if a is not None and b is not None and b.value > 0)
    main_bytes, worker_bytes = memory_of(trials)
    copied = _copied(usable, pinned=False), _copied(usable, pinned=True)
    return Calibration(
        batch_size=next((each.config.batch_size for each in usable), None),
        samples_per_batch=_mean(t.samples_per_batch for t in (mine or trials)),
        batch_bytes=_mean(t.batch_bytes for t in (mine or trials)),
        batch_tensors=batch_tensors,
        read_bytes_per_batch=_mean(read),
        queueing_s=queueing_s,
        lock_s=_mean(s for each, s in parted if each.config.num_workers == most) or 0.0,
        in_main=_merged([each.costs for each in usable if not each.config.num_workers]),
        in_workers=merged.get(usual),
        receive={name: costs for name, costs in merged.items() if name != DEFAULT and costs},
        receive_busy_s=busy_s,
        helper_cpu_s=_helpers(usable),
        startup_s=startups_of(trials),
        turnover_s=turnovers_of(trials),
        copy_s=next((each for each in copied if each is not None), 0.0),
        pinned_copy_s=copied[1],
        main_bytes=main_bytes,
        worker_bytes=worker_bytes,
        cpu_cv=cv,
        standard_error=error,
        main_standard_error=alone,
        drift=_drift_of(usable),
        run_queue_fraction=run_queue,
        available_cores=_mean(_available(trial.node_usage) for trial in mine),
        idle_fraction=max(0.0, _mean(map(_idle, mine)) or 0.0),
        trials=tuple(each.trial_id for each in usable),
        doubts=tuple(_doubts(traced, usable, error, run_queue)),
    )


def _available(usage: Usage) -> float | None:
    """Cores that a trial could have had: of busy ones its share, which it needn't have used."""
    idle, fair = usage.available_cpu_cores, usage.fair_cpu_cores
    return idle if idle is None or fair is None else max(idle, fair)


def _idle(trial: Trial) -> float | None:
    """Share of the cores that were idle while threads waited for one; ``None`` where none had to.

    Threads that may run by chance, each for the share of time in which it wants a core, leave some
    cores idle, too (Poisson binomial distribution); that is taken off.
    """
    usage, workers, main = trial.node_usage, trial.config.num_workers, trial.usage.main_runnable
    own, cores = usage.own_cpu_cores, usage.available_cpu_cores
    ranks = max(1, len(trial.ranks))
    if own is None or main is None or not cores or not workers or ranks * (workers + 1) < cores + 1:
        return None
    wanting = usage.runnable(own) / ranks
    each = max(0.0, wanting - main) / workers
    chances = [1.0]  # of how many threads want a core
    for share in [min(1.0, each)] * ranks * workers + [min(1.0, main)] * ranks:
        pairs = zip([*chances, 0.0], [0.0, *chances], strict=True)
        chances = [(1 - share) * fewer + share * more for fewer, more in pairs]
    spare = math.fsum(of * max(0.0, cores - count) for count, of in enumerate(chances))
    return (cores - own - spare) / cores


def _unlocked(each: Explanation, trial: Trial | None) -> tuple[Explanation, float]:
    """A trial without what its workers wait for a lock that they share, and how long each has it.

    The lock is what workers were seen to be blocked on (``machine.waits``). How long they have it,
    computing or not, is what makes them wait for so long (``at_lock_s``) in the rounds that they
    take. What has it for a third of its time waits a tenth longer beside one other; of less, looks
    say little.
    """
    costs, workers = each.costs, each.config.num_workers
    waits = {} if trial is None else trial.usage.worker_waits
    blocked = blocked_share(waits)
    rate = None if trial is None else trial.batches_per_s
    if workers < 2 or blocked <= 0 or rate is None or rate.value <= 0 or not costs.io_s:
        return each, 0.0
    cpu_s, io_s = statistics.fmean(costs.cpu_s), statistics.fmean(costs.io_s)
    queued_s = statistics.fmean(costs.run_queue_s or (0.0,))
    # Who has it may wait unseen, as for a queue that all read: the rest is what each has it for.
    most_s = (1 - 1 / workers) * (cpu_s + io_s + queued_s)
    wait_s = min(most_s, io_s * waits.get("lock", 0.0) / blocked)
    own_s = cpu_s + io_s - wait_s
    if wait_s <= 0.1 * own_s:
        return each, 0.0
    round_s = max(own_s, workers / rate.value - wait_s)
    low_s, high_s = 0.0, round_s
    while high_s - low_s > 1e-3 * round_s:
        held_s = (low_s + high_s) / 2
        little = at_lock_s(held_s, round_s - held_s, workers) - held_s < wait_s
        low_s, high_s = (held_s, high_s) if little else (low_s, held_s)
    # It has the lock, too, while it waits for a core, as where others compute.
    stretch = 1 + queued_s / max(1e-12, own_s)
    return _waiting(each, 1 - wait_s / io_s), min(own_s, high_s / stretch)


def _alone(
    some: Sequence[Explanation], by_id: Mapping[str, Trial]
) -> tuple[list[Explanation], float]:
    """Trials with waits as where one batch is waited for at a time, and how these grow.

    ``N`` other batches that are waited for at once make each wait ``L = a + b * N`` where what they
    wait for serves them one after the other, be it storage, a network or a lock, and no more than
    ``1 / b`` a second get through (mean value analysis, Reiser & Lavenberg 1980). Of ``n`` readers
    the others are ``(n - 1) / n`` of rate times wait (Little's law; Schweitzer 1979). The line goes
    through the trials of the fewest readers and those of the most. ``b`` is 0 where waits rise by
    less than half of what they would if nothing else took time: trials differ by chance, too; and
    where most of making a batch isn't waiting: of what computes, waits grow for other reasons.
    """
    groups: dict[int, list[tuple[Explanation, float]]] = {}
    for each in some:
        trial = by_id.get(each.trial_id)
        if each.costs.io_s and trial is not None and trial.batches_per_s is not None:
            ranks = max(1, len(trial.ranks))
            readers = ranks * max(1, each.config.num_workers)
            groups.setdefault(readers, []).append((each, ranks * trial.batches_per_s.value))
    if len(groups) < 2:
        return [*some], 0.0
    waits, at_once = dict[int, list[float]](), dict[int, float]()
    for readers, group in groups.items():
        waits[readers] = [io_s for each, _ in group for io_s in each.costs.io_s]
        mean_s, others = statistics.fmean(waits[readers]), (readers - 1) / readers
        at_once[readers] = others * mean_s * statistics.fmean(rate for _, rate in group)
    few, many = min(groups), max(groups)
    few_s, many_s = (statistics.fmean(waits[readers]) for readers in (few, many))
    cpu_s = statistics.fmean(cpu_s for each, _ in groups[many] for cpu_s in each.costs.cpu_s)
    if not few_s > 0 or many_s < cpu_s or at_once[many] <= at_once[few]:
        return [*some], 0.0
    error = math.hypot(*(math.sqrt(_luck(waits[n])) * s for n, s in ((few, few_s), (many, many_s))))
    least_s = 0.5 * few_s * (many / few - 1)
    if many_s - few_s < max(least_s, 2 * error):
        return [*some], 0.0
    slope_s = (many_s - few_s) / (at_once[many] - at_once[few])
    alone_s = few_s - slope_s * at_once[few]
    if slope_s > alone_s:  # by chance: serving one by one takes each no longer than it takes alone
        slope_s = alone_s = many_s / (1 + at_once[many])
    factors = {
        each.trial_id: alone_s / statistics.fmean(waits[readers])
        for readers, group in groups.items()
        for each, _ in group
    }
    return [_waiting(each, factors.get(each.trial_id, 1.0)) for each in some], slope_s


def _waiting(each: Explanation, factor: float) -> Explanation:
    waits = tuple(factor * io_s for io_s in each.costs.io_s)
    return dataclasses.replace(each, costs=dataclasses.replace(each.costs, io_s=waits))


def _merged(parts: Sequence[BatchCosts]) -> BatchCosts | None:
    """The batches of several trials, one trial after the other.

    A trial that lacks a column (it didn't pin, say) borrows it from the others.
    """
    count = sum(len(part.cpu_s) for part in parts)
    if not count:
        return None
    stride = math.ceil(count / 4000)  # of more, every n-th is kept
    columns: dict[str, tuple[float, ...]] = {}
    for field in dataclasses.fields(BatchCosts):
        own: list[tuple[float, ...]] = [getattr(part, field.name) for part in parts]
        known = list(itertools.chain.from_iterable(own))
        if known:
            filled = (
                column or itertools.islice(itertools.cycle(known), len(part.cpu_s))
                for part, column in zip(parts, own, strict=True)
            )
            columns[field.name] = tuple(itertools.chain.from_iterable(filled))[::stride]
    return BatchCosts(**columns)


def _doubts(
    traced: Sequence[Explanation],
    usable: Sequence[Explanation],
    error: float | None,
    run_queue: float | None,
) -> Iterable[str]:
    whole, batches = (sum(len(each.costs.cpu_s) for each in some) for some in (traced, usable))
    if lost := whole - batches:
        yield f"{lost} of {whole} batches had figures below 0 or none, and were left out"
    if batches < MIN_BATCHES:
        yield f"only {batches} batches were measured: measure for longer"
    elif error is not None and error > 0.1:
        yield f"the mean cost of a batch is known to ±{error:.0%} only: measure for longer"
    # Own CPU time itself grows then, by caches and hyper-threads that others use.
    if run_queue is not None and run_queue > 0.5:
        yield (
            f"run-queue delay was {run_queue:.0%} of fetching: the machine was too "
            "busy to measure what batches cost; measure again when it is quiet"
        )
    # Where a batch costs more CPU with more workers, more of them cost more still.
    means: dict[int, list[float]] = {}
    for each in usable:
        means.setdefault(each.config.num_workers, []).extend(each.costs.cpu_s)
    fed = {w: statistics.fmean(v) for w, v in means.items() if w and len(v) >= MIN_BATCHES}
    if len(fed) > 1 and fed[max(fed)] > 1.25 * fed[min(fed)] > 0:
        times, luck = fed[max(fed)] / fed[min(fed)], _luck(means[max(fed)]) + _luck(means[min(fed)])
        if math.log(times) > 2 * math.sqrt(luck):  # and not by which batches it happened to be
            yield (
                f"a batch costs {times:.2g} times the CPU with num_workers={max(fed)} as with "
                f"{min(fed)}: workers get in each other's way, and more of them may gain less than "
                "predicted"
            )


def _helpers(some: Sequence[Explanation]) -> float:
    """CPU seconds a batch of main's other threads, without workers; those of a step left out.

    A pool's threads spin while they wait for their next piece of work, and CPU time doesn't say
    spinning from work. But a worker, in which torch's pool has a single thread, shows what a batch
    takes in all: helpers did no more than what main's own thread doesn't do of that.
    """
    alone, own, whole = [], [], []
    for each in some:
        costs = each.costs
        if each.config.num_workers:
            beside = costs.put_cpu_s or (0.0,)
            whole.append(statistics.fmean(costs.cpu_s) + statistics.fmean(beside))
            continue
        own.append(statistics.fmean(costs.cpu_s))
        if not each.main_threads_cpu_cores or not each.batches:
            continue
        step, whole_s = each.stage("step"), each.step_cpu_s
        own_s = 0.0 if step is None or whole_s is None else whole_s - (step.cpu_s or 0.0)
        batch_s = each.main_threads_cpu_cores * each.window_s / each.batches
        alone.append(max(0.0, batch_s - max(0.0, own_s)))
    if not alone:
        return 0.0
    most = max(0.0, statistics.fmean(whole) - statistics.fmean(own)) if whole else math.inf
    return min(statistics.fmean(alone), most)


def _copied(some: Sequence[Explanation], *, pinned: bool) -> float | None:
    """What the step waits for a batch to be copied; ``None`` where nothing was copied so."""
    stages = (each.stage("copy") for each in some if each.config.pin_memory is pinned)
    return _mean(stage.mean_s for stage in stages if stage is not None)


def _mean(values: Iterable[float | None]) -> float | None:
    known = [value for value in values if value is not None and math.isfinite(value)]
    return statistics.fmean(known) if known else None


def _series(some: Sequence[Explanation]) -> list[tuple[bool, list[float]]]:
    """What fetching each batch cost: of each trial, and whether workers did it.

    Over the mean of the trials with workers, or of those without: main may fetch at another price
    than workers do, which is the spread of neither. Empty where too few batches say it.
    """
    took = [(each.config.num_workers > 0, fetch_s(each.costs)) for each in some]
    pooled: dict[bool, list[float]] = {}
    for fed, costs in took:
        pooled.setdefault(fed, []).extend(costs)
    if sum(map(len, pooled.values())) < MIN_BATCHES or not any(map(sum, pooled.values())):
        return []
    means = {fed: math.fsum(costs) / max(1, len(costs)) for fed, costs in pooled.items()}
    return [
        (fed, [cost_s / means[fed] if means[fed] > 0 else 1.0 for cost_s in costs])
        for fed, costs in took
    ]


def _error_of(series: Sequence[tuple[bool, list[float]]], *, fed: bool) -> float | None:
    """Relative standard error of what fetching costs on average, with workers or without.

    By blocks of batches. Where these are too few to show their spread, as all blocks have it.
    ``None`` where no batch of that kind was measured, or too few of any.
    """
    blocks = [(kind, mean) for kind, costs in series for mean in _block_means(costs)]
    own = [mean for kind, mean in blocks if kind is fed]
    if not own:
        return None
    spread = own if len(own) >= MIN_BATCHES else [mean for _, mean in blocks]
    return statistics.stdev(spread) / math.sqrt(len(own)) if len(spread) > 1 else 1.0


def _drift_of(some: Sequence[Explanation]) -> float | None:
    """How far apart trials lie whose batches should cost the same CPU time.

    As the standard deviation of the logarithm of what a batch costs, waiting included, which is
    taken to stay as it is. Those with workers are compared with each other, and those without, and
    what their own luck explains is taken off; ``None`` of a single trial of each kind.
    """
    beyond, free = 0.0, 0
    for fed in (True, False):
        group = [each.costs.cpu_s for each in some if (each.config.num_workers > 0) is fed]
        free += max(0, len(group) - 1)
        known = [costs for costs in group if statistics.fmean(costs) > 0]
        if len(known) > 1:
            spread = statistics.variance(math.log(statistics.fmean(costs)) for costs in known)
            beyond += (len(known) - 1) * (spread - statistics.fmean(map(_luck, known)))
    if not free:
        return None
    cpu = math.fsum(itertools.chain.from_iterable(each.costs.cpu_s for each in some))
    whole = cpu + math.fsum(itertools.chain.from_iterable(each.costs.io_s for each in some))
    return (cpu / whole if whole > 0 else 0.0) * math.sqrt(max(0.0, beyond / free))


def _luck(costs: Sequence[float]) -> float:
    """Variance of the logarithm of a mean above 0, by how much blocks of batches differ."""
    mean, blocks = statistics.fmean(costs), _block_means(costs)
    return statistics.variance(blocks) / len(blocks) / mean**2 if len(blocks) > 1 else 0.0


def _block_means(values: Sequence[float]) -> list[float]:
    """Means over some 20 equal blocks of batches that follow each other."""
    size = max(1, len(values) // 20)
    starts = range(0, len(values) - size + 1, size)
    return [math.fsum(values[start : start + size]) / size for start in starts]


def split_receive(some: Sequence[Explanation]) -> tuple[float, list[BatchCosts]]:
    """Split what receiving costs at rest from what it costs beside busy workers, of one strategy.

    Returns:
        Seconds that it takes longer while the worker computes, 0 where trials don't show it; and of
        each trial the costs with the waiting of batches whose worker rests.
    """
    shares: list[float | None] = []  # of time in which a worker computes; where it is known
    for each in some:
        costs = each.costs
        parts = (costs.cpu_s, costs.run_queue_s, costs.put_cpu_s, costs.between_cpu_s)
        computing_s = math.fsum(map(math.fsum, parts)) / max(1, len(costs.cpu_s)) * each.batches
        known = costs.cpu_s and costs.receive_io_s and each.window_s > 0
        share = computing_s / each.window_s / each.config.num_workers if known else None
        shares.append(None if share is None else min(1.0, share))
    points = [
        (share, _waited_s(each.costs))
        for share, each in zip(shares, some, strict=True)
        if share is not None
    ]
    points += [(0.0, each.rested_receive_s) for each in some if each.rested_receive_s is not None]
    spread, busy_s, rest_s = [share for share, _ in points], 0.0, None
    # Shares of time that differ by less show no slope.
    if len(points) > 1 and max(spread) - min(spread) >= 0.3:
        slope, first_s = statistics.linear_regression(*zip(*points, strict=True))
        if math.isfinite(slope) and slope > 0:
            busy_s, rest_s = slope, max(0.0, first_s)
    if rest_s is None:
        return 0.0, [each.costs for each in some]
    # How far a trial is off the line is no matter of rest: the handshake takes a random time.
    return busy_s, [
        each.costs if share is None else _more(each.costs, rest_s - _waited_s(each.costs))
        for share, each in zip(shares, some, strict=True)
    ]


def _waited_s(costs: BatchCosts) -> float:
    return statistics.fmean(costs.receive_io_s)


def _cleaned(each: Explanation, trial: Trial | None) -> Explanation:
    """A trial with costs that make sense, as they are where nobody else uses the machine."""
    # Others, and a hypervisor, take what they take from all ranks together.
    usage = Usage() if trial is None else trial.node_usage
    costs = _unstolen(cleaned(each.costs), usage)
    return dataclasses.replace(each, costs=_with_wakings(each, costs, usage))


def _with_wakings(each: Explanation, costs: BatchCosts, usage: Usage) -> BatchCosts:
    """Costs with what main waits for a core each time that a worker has woken it.

    The one that wakes goes on running for a while, often on the core that the woken one is put
    on: that much waiting for a core belongs to the handshake, however many cores are idle.
    Computing shows how much waiting the crowd of that moment brings, which does not belong to it;
    nor does what is in the way of others' threads, as large a share of it as of the busy cores.
    """
    rebuild = each.stage("rebuild")
    if rebuild is None or not rebuild.run_queue_s or not costs.receive_io_s:
        return costs
    cpu = math.fsum(costs.cpu_s)
    crowd = math.fsum(costs.run_queue_s) / cpu if cpu > 0 else 0.0
    cpu_s = rebuild.cpu_s or 0.0
    own, others = usage.own_cpu_cores or 0.0, usage.other_cpu_cores or 0.0
    ours = own / (own + others) if own > 0 else 1.0
    woken_s = ours * (rebuild.run_queue_s - crowd * cpu_s)
    # It may have begun to wait before the batch was there, which no receiving is to blame for.
    room_s = rebuild.mean_s - cpu_s - statistics.fmean(costs.receive_io_s)
    return _more(costs, max(0.0, min(woken_s, room_s)))


def _more(costs: BatchCosts, seconds: float) -> BatchCosts:
    """Batches whose receiving waits more, or less, by so much on average; none of them below 0."""
    waits = costs.receive_io_s
    if seconds >= 0:
        return dataclasses.replace(costs, receive_io_s=tuple(each + seconds for each in waits))
    return dataclasses.replace(costs, receive_io_s=_shortened(waits, -seconds * len(waits)))


def cleaned(costs: BatchCosts) -> BatchCosts:
    """The batches whose figures all make sense; missing columns stay empty."""
    columns = {f.name: getattr(costs, f.name) for f in dataclasses.fields(costs)}
    length = len(costs.cpu_s)
    present = {name: column for name, column in columns.items() if len(column) == length}
    kept = [
        row
        for row in zip(*present.values(), strict=True)
        # Waiting is a difference of clocks; down to this far below 0 it is 0.
        if all(math.isfinite(each) and each >= -2e-4 for each in row)
    ]
    if not kept:
        return BatchCosts()
    rounded = ([max(0.0, value) for value in column] for column in zip(*kept, strict=True))
    return BatchCosts(**dict(zip(present, map(tuple, rounded), strict=True)))


def _unstolen(costs: BatchCosts, usage: Usage) -> BatchCosts:
    """Costs without what a hypervisor took from a trial's cores, which looks like waiting.

    To a thread, time in which its core runs other machines is neither CPU time nor time in the
    run queue. It hits each second of computing alike.
    """
    stolen, own, other = usage.stolen_cpu_cores, usage.own_cpu_cores, usage.other_cpu_cores
    # Others' cores hold the stolen ones, unless the kernel counts those as the threads' own CPU
    # time: then they look like no waiting.
    if not costs.io_s or not stolen or not own or other is None or other < 0.9 * stolen:
        return costs
    lost = stolen / (own + max(0.0, other - stolen))  # for each second of computing, whoever did
    return dataclasses.replace(
        costs,
        io_s=_shortened(costs.io_s, lost * math.fsum(costs.cpu_s)),
        receive_io_s=_shortened(costs.receive_io_s, lost * math.fsum(costs.receive_cpu_s)),
    )


def _shortened(column: tuple[float, ...], seconds: float) -> tuple[float, ...]:
    """Values that are so much less in all, and none of them below 0."""
    whole = math.fsum(column)
    factor = max(0.0, 1.0 - seconds / whole) if whole > 0 else 1.0
    return tuple(value * factor for value in column) if factor < 1.0 else column


def memory_of(trials: Iterable[Trial]) -> tuple[float | None, float | None]:
    """Bytes of the main process, and of one more worker, queued batches left out.

    The line through the proportional set sizes over ``num_workers``, after full queues of
    ``W * P + 1`` batches have been taken off, or as much of them as was seen in shared memory.
    ``None`` for what trials don't show: a worker's share needs two values of ``num_workers``.
    """
    points = []
    for trial in trials:
        whole = trial.usage.pss_peak_bytes
        if trial.outcome != "completed" or whole is None:
            continue
        workers = trial.config.num_workers
        full = trial.config.queued_bytes(trial.batch_bytes) or 0.0
        queued = min(full, trial.usage.shm_peak_bytes or full)
        points.append((float(workers), whole - (queued if workers else 0.0)))
    if len({workers for workers, _ in points}) > 1:
        first, slope = _rising(points)
        return max(0.0, first), slope
    alone = [bytes_ for workers, bytes_ in points if not workers]
    return (statistics.fmean(alone) if alone else None), None


def startups_of(trials: Iterable[Trial]) -> dict[str, tuple[float, ...]]:
    """Seconds to start, by start method: the first worker, and each further one.

    The line through medians over ``num_workers``, of undisturbed trials where there are such; with
    a single value of it, only the first where that is one worker. ``main`` is without workers.
    """
    groups: dict[str, dict[int, list[Trial]]] = {}
    for trial in trials:
        if trial.outcome == "completed" and trial.startup_s is not None:
            by_workers = groups.setdefault(_method(trial), {})
            by_workers.setdefault(trial.config.num_workers, []).append(trial)
    lines: dict[str, tuple[float, ...]] = {}
    for name, by_workers in groups.items():
        points = [
            (float(workers), statistics.median(t.startup_s or 0.0 for t in undisturbed(some)))
            for workers, some in sorted(by_workers.items())
        ]
        if len(points) > 1 and points[0][0]:
            first, slope = _rising(points)
            lines[name] = (max(0.0, first + slope), slope)
        elif points[0][0] <= 1:
            lines[name] = (points[0][1],)
    return lines


def turnovers_of(trials: Iterable[Trial]) -> dict[str, float]:
    """Seconds from an epoch's last batch to the next one's first: medians, of undisturbed trials.

    By ``persistent`` and by start method; ``main`` is without workers.
    """
    groups: dict[str, list[Trial]] = {}
    for trial in trials:
        if trial.epoch_turnover_s is not None:
            name = "persistent" if trial.config.persistent_workers else _method(trial)
            groups.setdefault(name, []).append(trial)
    return {
        name: statistics.median(trial.epoch_turnover_s or 0.0 for trial in undisturbed(some))
        for name, some in groups.items()
    }


def _method(trial: Trial) -> str:
    if not trial.config.num_workers:
        return "main"
    return trial.config.start_method or DEFAULT


def _rising(points: Sequence[tuple[float, float]]) -> tuple[float, float]:
    """Where a line through points begins, at 0, and how it rises.

    Level at their mean where it would fall: no worker takes less than nothing, and what differs
    is chance.
    """
    slope, first = statistics.linear_regression(*zip(*points, strict=True))
    return (first, slope) if slope >= 0 else (statistics.fmean(y for _, y in points), 0.0)
