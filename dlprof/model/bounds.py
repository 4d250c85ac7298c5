"""What can limit a loader, each limit by itself.

With mean costs a batch ``cpu`` (fetching and handing over), ``io`` (waiting), ``g`` (taking it into
main), a step ``T``, ``W`` workers, ``C`` cores and ``R`` ranks:

    X <= min(1 / (T + g), W / (cpu + io), C / (R * (cpu + g_cpu)))

Main finds a batch's worker at rest: where main is the limit, workers are soon held back, and where
it isn't, a handshake that waits for a worker costs time that main has.

Without workers ``X <= min(1 / (s * cpu + io + T), C / (R * process CPU))``. There ``s`` is how much
computing slows down while other ranks compute, too: an estimate, for a rank that waits or steps
leaves its cores to the others. Ranks whose batches all cost the same may fall into step and be some
percent faster.

``N`` threads that compute for ``D`` seconds and wait for ``Z`` in turn, on ``C`` cores that all who
compute share evenly, are the machine-repairman model. Its stationary distribution depends on the
lengths only through their means (Kelly 1979, networks of quasi-reversible queues):

    P(n + 1) / P(n) = (N - n) * (D / Z) / min(n + 1, C)

for ``n`` threads that compute; beside ``B`` threads of others that always do, ``n`` of ours get
``C * n / (n + B)`` of the cores.
"""

from __future__ import annotations

import dataclasses
import math
from typing import Literal

from dlprof.model.work import Cell, Conditions, Means, Work, means_of, work_of
from dlprof.records import DRAWING, RECEIVING, Calibration, Config

Bound = Literal["step", "workers", "cores", "main", "pin", "storage", "lock", "order", "barrier"]

_WORDS: dict[Bound, str] = {
    "step": (
        "the training step is the limit: the workers keep up, and it waits only while the main "
        "process takes in a batch"
    ),
    "workers": "the workers are the limit: each is busy with a batch all the time",
    "cores": "the cores are the limit: all available ones are busy",
    "main": "the main process is the limit: {} keeps it busy",
    "pin": "the pin thread is the limit: it copies batches to page-locked memory one by one",
    "storage": "storage is the limit: it delivers no more, however many read from it at once",
    "lock": "a lock is the limit: what workers do while they have it, one does at a time",
    "order": "in-order delivery is the limit: finished batches wait for slower, earlier ones",
    "barrier": "the barrier of each step is the limit: ranks wait there for the last one's batch",
}


def describe(bound: str, work: str) -> str:
    """A bound in words, and ``work`` is the main process's; the bound itself if it is not known."""
    return next((words for name, words in _WORDS.items() if name == bound), bound).format(work)


def main_work(calibration: Calibration) -> str:
    """What of its work for the loader takes the main process longest beside workers.

    What it waits for while it receives is partly a core, of which others take as much as of
    fetching.
    """
    costs = calibration.in_workers or calibration.in_main
    if costs is None:
        return RECEIVING
    draws_s, computes_s, waits_s = (
        math.fsum(column) / max(1, len(column))
        for column in (costs.main_cpu_s, costs.receive_cpu_s, costs.receive_io_s)
    )
    receives_s = computes_s + (1 - (calibration.run_queue_fraction or 0.0)) * waits_s
    return DRAWING if draws_s > receives_s else RECEIVING


def cell_of(
    calibration: Calibration, config: Config, conditions: Conditions, *, work: Work | None = None
) -> Cell:
    """What to predict; its ``work`` from ``work_of``, where it is known already.

    Raises:
        ValueError: The calibration holds no batch, or is for another batch size.
    """
    copy_s = calibration.copy_s
    threads, idle = conditions.ranks * (config.num_workers + 1), 0.0
    if config.num_workers and threads >= conditions.cores + 1:
        idle = calibration.idle_fraction * conditions.cores
    # Others fill what would be idle, before they take any of the rest.
    beside = max(0.0, conditions.neighbours - idle)
    cores = conditions.cores - idle
    if conditions.neighbours and conditions.fair_cores is not None:
        cores, beside = min(cores, conditions.fair_cores), 0.0
    conditions = dataclasses.replace(conditions, cores=cores, neighbours=beside)
    if config.pin_memory and calibration.pinned_copy_s is not None:
        copy_s = calibration.pinned_copy_s
    cell = Cell(
        workers=config.num_workers,
        prefetch=(config.prefetch_factor or 2) if config.num_workers else 0,
        in_order=config.in_order or not config.num_workers,
        work=work or work_of(calibration, config, conditions),
        step_s=conditions.step_s + conditions.copy_scale * copy_s,
        conditions=conditions,
    )
    work = cell.work
    if work.lock_s and work.means.cpu + work.means.io:
        return _beside_others(cell, locked=True)
    return _beside_others(cell) if work.queueing_s and work.means.io else cell


def _beside_others(cell: Cell, *, locked: bool = False) -> Cell:
    """The cell with waits as long as all that is waited for at once makes them.

    A wait is ``L = a + b * N`` (``calibrate``) of ``N`` others. While loading is the limit, each of
    ``n = R * W`` readers waits for ``L`` of a round that takes ``D`` beside, and ``N`` is
    ``(n - 1) * L / (D + L)``; else other limits say the rate ``X``, and it is
    ``R * X * L * (n - 1) / n``. At a lock of the rank's own, it is ``at_lock_s`` at most.
    """
    work, ranks = cell.work, 1 if locked else cell.conditions.ranks
    own_s = work.means.cpu + work.means.io if locked else work.means.io
    first_s = min(work.lock_s, own_s) if locked else own_s
    slope_s = first_s if locked else work.queueing_s
    rest_s = work.means.cpu + work.means.io - first_s
    allowed = math.inf
    if cell.workers:
        if cell.prefetch == 1:  # a worker rests until its batch is taken in
            rest_s += work.means.receive_cpu + work.means.receive_io + work.means.main_cpu
        allowed = min(rate for name, rate in bounds(cell).items() if name != "workers")
    else:
        rest_s += work.main_s + cell.whole_step_s

    def wait_s(readers: int) -> float:
        if locked:
            return at_lock_s(first_s, rest_s, readers)
        half = (first_s + slope_s * (readers - 1) - rest_s) / 2
        return half + math.sqrt(half**2 + first_s * rest_s)

    readers = ranks * max(1, cell.workers)
    io_s, twice_s = wait_s(readers), wait_s(2 * readers)
    saturated = 2 * (rest_s + io_s) < math.sqrt(2) * (rest_s + twice_s)
    if cell.workers > allowed * (rest_s + io_s):
        served = slope_s * ranks * allowed * (readers - 1) / readers
        io_s = min(io_s, first_s / (1 - served)) if served < 1 else io_s
    each_s = (io_s - first_s) / own_s  # longer, a second of what a batch waits, or takes, alone
    rows = tuple(
        (cpu, io + each_s * (cpu + io if locked else io), *others) for cpu, io, *others in work.rows
    )
    work = dataclasses.replace(work, rows=rows, means=means_of(rows), is_saturated=saturated)
    return dataclasses.replace(cell, work=work)


def at_lock_s(held_s: float, rest_s: float, workers: int) -> float:
    """Seconds that one of some workers is at a lock a batch: waits for it, and has it.

    By mean value analysis (Reiser & Lavenberg 1980): one that comes finds there as many as there
    are where it is none of them.
    """
    at_s, others = held_s, 0.0
    for count in range(1, workers + 1):
        at_s = held_s * (1 + others)
        others = count * at_s / (rest_s + at_s)
    return at_s


def bounds(cell: Cell) -> dict[Bound, float]:
    """The rate of one rank that each limit alone would allow, in batches per second.

    Limits that don't exist in this configuration are left out; one that costs nothing is
    ``inf``.
    """
    means, where, step_s = cell.work.means, cell.conditions, cell.whole_step_s
    receive = means.receive_cpu + means.receive_io
    main_s = cell.work.main_s
    if not cell.workers:
        # Main and its helpers compute at once: one thread on as many cores less.
        threads = 1.0 + cell.work.helpers
        slow, _ = slowdown(
            where.ranks,
            compute_s=means.cpu + step_s - cell.step_s,
            wait_s=means.io + cell.step_s,
            cores=where.cores / threads,
            beside=where.neighbours / threads,
        )
        main_s, step_s = slow * means.cpu + means.io, cell.step_s + slow * (step_s - cell.step_s)
    found: dict[Bound, float] = {"step" if step_s > main_s else "main": _over(1.0, main_s + step_s)}
    if cell.workers:
        # With one batch ahead, a worker rests until its is taken in.
        rest = receive + means.main_cpu if cell.prefetch == 1 else 0.0
        found["workers"] = _over(cell.workers, means.cpu + means.io + rest)
    found["cores"] = _over(own_cores(cell) / where.ranks, cpu_per_batch(cell))
    if cell.work.pinned:
        found["pin"] = _over(1.0, receive + means.pin)
    if where.storage_bytes_per_s is not None and cell.work.read_bytes > 0:
        found["storage"] = where.storage_bytes_per_s / cell.work.read_bytes / where.ranks
    return found


def binding(cell: Cell) -> tuple[Bound, float]:
    """The lowest bound; of equal ones, the first as ``bounds`` lists them.

    Workers that queue for storage, or for a lock, are held back by that.
    """
    name, rate = min(bounds(cell).items(), key=lambda each: each[1])
    if name == "workers" and cell.work.is_saturated:
        name = "lock" if cell.work.lock_s else "storage"
    return name, rate


def rate_allowed(
    means: Means,
    *,
    workers: int,
    cores: float,
    step_s: float = 0.0,
    helpers: float = 0.0,
    pinned: bool = False,
) -> float:
    """Batches per second that mean costs allow one rank on cores of its own: the lowest bound."""
    work = Work(rows=(), means=means, helpers=helpers, pinned=pinned)
    conditions = Conditions(cores=cores)
    cell = Cell(
        workers=workers, prefetch=2, in_order=True, work=work, step_s=step_s, conditions=conditions
    )
    return binding(cell)[1]


def own_cores(cell: Cell) -> float:
    """Cores that all ranks can have beside the neighbours.

    Where it is no share for all of them (``Conditions.fair_cores``), the kernel gives every running
    thread the same one: ``a`` threads of ours beside ``n`` of
    others on ``C`` cores get ``C * a / (a + n)``, and never less than what is idle. Where cores are
    the limit, those that have most to do of a batch want one all the time, workers however long
    they wait otherwise; the rest, as main beside them, for as much of it as they have to do.
    """
    means, where = cell.work.means, cell.conditions
    if not where.neighbours:
        return where.cores
    threads = cell.workers or 1.0 + cell.work.helpers
    if cell.workers:
        main_s, pin_s = means.main_cpu + cell.whole_step_s - cell.step_s, 0.0
        if cell.work.pinned:
            pin_s = means.receive_cpu + means.pin
        else:
            main_s += means.receive_cpu
        most_s = max(means.cpu / cell.workers, main_s, pin_s)
        threads = cpu_per_batch(cell) / most_s if most_s > 0 else threads
    threads *= where.ranks
    shared = where.cores * threads / (threads + where.neighbours)
    return max(where.cores - where.neighbours, shared)


def cpu_per_batch(cell: Cell) -> float:
    """CPU seconds a batch of one rank, the consumer's step included."""
    means, where = cell.work.means, cell.conditions
    loading = means.cpu * (1.0 + cell.work.helpers)
    receiving = means.receive_cpu + means.main_cpu + (means.pin if cell.work.pinned else 0.0)
    return loading + receiving + where.step_threads * where.step_cpu_s / where.speed


def _over(limit: float, cost: float) -> float:
    return limit / cost if cost > 0 else math.inf


def slowdown(
    threads: float, *, compute_s: float, wait_s: float, cores: float, beside: float = 0.0
) -> tuple[float, float]:
    """Mean time of computing over that on a core of one's own: of threads, and of others beside.

    Both are 1 or more. The arguments are ``N``, ``D``, ``Z``, ``C`` and ``B`` of the model above.
    Between whole numbers of threads it is interpolated; cores may be a fraction.
    """
    if compute_s <= 0 or threads <= 0:
        return 1.0, max(1.0, beside / cores)
    low = math.floor(threads)
    between = threads - low
    ratio = compute_s / wait_s if wait_s > 0 else math.inf
    own, others = _slowdown(low, ratio, cores, beside)
    if between > 0:
        more = _slowdown(low + 1, ratio, cores, beside)
        own, others = own + between * (more[0] - own), others + between * (more[1] - others)
    return own, others


def _slowdown(threads: int, ratio: float, cores: float, beside: float) -> tuple[float, float]:
    if not threads:  # one that comes sees the others alone
        return _slowdown(1, ratio, cores, beside)[0], max(1.0, beside / cores)
    if math.isinf(ratio) or threads + beside <= cores:
        crowd = max(1.0, (threads + beside) / cores)
        return crowd, crowd
    weight, present, running = 1.0, 0.0, 0.0
    whole, progress = 1.0, min(1.0, cores / beside) if beside else 1.0
    nothing = 1e-12
    for count in range(1, threads + 1):
        pace = cores / (count + beside)
        if pace > 1.0:  # a call of min() would take a fifth of the loop's time
            pace = 1.0
        weight *= (threads - count + 1) * ratio / (count * pace)
        whole += weight
        progress += weight * pace
        present += weight * count
        running += weight * count * pace
        if weight > 1 / nothing:  # only proportions matter
            whole, progress = whole / weight, progress / weight
            present, running, weight = present / weight, running / weight, 1.0
        elif weight < nothing * present and ratio * (threads - count) < count * pace:
            break
    return max(1.0, present / running), max(1.0, whole / progress)
