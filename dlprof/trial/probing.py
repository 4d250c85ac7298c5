"""What a disposable process finds out about a target before trials are spent on it."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import io
import math
import multiprocessing
import os
import pickle
import time
from collections.abc import Iterator, Mapping, Sequence
from multiprocessing import connection
from multiprocessing.reduction import ForkingPickler
from typing import TYPE_CHECKING, Any, NamedTuple

from dlprof.errors import TargetError
from dlprof.internals import iterator_maker, set_iterator_maker
from dlprof.records import (
    BY_COPY,
    NO_DATA_SIGN,
    Config,
    DatasetWeight,
    Failure,
    FailureKind,
    WorkerStart,
)
from dlprof.targets.faults import one_line, user_traceback
from dlprof.targets.workers import start_method_of
from dlprof.trial import failures
from dlprof.trial.measure import EmptyLoaderError, make_consumer
from dlprof.trial.processes import guard_worker
from dlprof.trial.protocol import TrialRequest
from dlprof.units import counted, format_duration

if TYPE_CHECKING:
    import psutil

    from dlprof.targets.build import BuiltTarget
    from dlprof.targets.loader import EpochGate

_NOTHING = object()
_clock = time.perf_counter


def probe(built: BuiltTarget, request: TrialRequest) -> dict[str, Any]:
    """Load two batches in this process, try the consumer on one, and say what they are.

    Of what raises without workers, as where ``get_worker_info()`` is taken for granted, one worker
    loads them.

    Returns:
        ``batch_bytes``, ``batch_tensors``, ``samples_per_batch``, ``batch_s`` and
        ``batch_cpu_s`` of the second batch; ``first_batch_s`` (from asking for an epoch to its
        first batch, or ``None`` where that took more than one try); ``counting`` (how its samples
        were counted, a sentence, or nothing where the loader says how many they are);
        ``sample_bytes`` (mean, as collated);
        ``accelerator`` (torch's name of it, or ``None``); ``least_bytes``, ``shared_bytes`` and
        ``descriptors`` of the smaller of the two; ``batch_failure`` if one can't be sent by a
        worker, else ``None``; ``main_failure`` if nothing loads without workers, else ``None``;
        ``data_files`` (how many the dataset names, up to a few);
        ``moved_files`` (of how many open files the batches moved the position);
        ``kept`` (seconds of a sample, of the same one asked for again, and its bytes, where the
        dataset seems to keep samples, else ``None``); ``read_bytes`` (that
        came from storage and no page cache for these and the second batch, else ``None``);
        ``in_order`` (whether it keeps none, and goes through the dataset from 0 on, or as a
        sampler of the user's own has it);
        ``start_method`` and ``sharing_strategy``, as they are where a
        configuration names none (``sharing_strategy`` is ``None`` where the target's own
        ``worker_init_fn`` may change it).
    """
    import psutil
    import torch
    import torch.multiprocessing as mp

    from dlprof.targets.counting import count_bytes, count_tensors
    from dlprof.targets.files import dataset_files, moved, open_files, positions
    from dlprof.targets.loader import EpochGate
    from dlprof.targets.parts import core_of
    from dlprof.targets.weighing import is_bounded

    files, began_s = open_files(), _clock()
    places, gate = positions(files), EpochGate()
    loader, gate, iterator, first, alone = _begun(built, gate, request.limit_s or math.inf)
    workers = [] if alone is None else psutil.Process().children()
    fetched = _read_bytes(psutil.Process())
    middle_cpu_s, middle_s = _cpu_s(workers), _clock()
    batch = next(iterator, first)
    ended_s, ended_cpu_s = _clock(), _cpu_s(workers)
    moving = moved(files, places)
    sent = try_batch(first, batch)
    size = count_bytes(batch)
    samples, counting = _samples_per_batch(gate, first, batch, built)
    least_bytes = min(size, count_bytes(first))
    data_files = 0  # as far as it takes to know that the dataset reads some
    kept: tuple[float, float, int | None] | None = None
    begin, each_s = 2 * (samples or 1), (ended_s - middle_s) / (samples or 1)
    if built.parts is not None:
        data_files = sum(1 for _ in dataset_files(built.parts.dataset, limit=8))
        # A loader that loads nothing here has no samples to ask for here, and of an epoch of one
        # batch all have come.
        if alone is None and batch is not first and not is_bounded(built.parts.dataset):
            left_s = (request.limit_s or math.inf) - (_clock() - began_s)
            kept = _kept(built, loader, begin, each_s, left_s)
    now_fetched = _read_bytes(psutil.Process())
    # Last, because the user's step may change the batch.
    there: object = batch
    if request.device != "cpu":
        from dlprof.device.moving import move  # needs a device
        from dlprof.trial.copying import open_device

        runtime = open_device(request.device)
        there = batch if runtime is None else move(batch, runtime.device)
    consume = make_consumer(0.0, request.step_callable, directory=built.directory)
    try:
        consume(there)
    except Exception as error:
        raise TargetError(
            f"The step {request.step_callable!r} raised {one_line(error)} on the first batch.",
            hint="It is called with each batch, as the loader yields it.",
            traceback=user_traceback(error),
        ) from error
    strategy = None
    if getattr(core_of(loader), "worker_init_fn", None) is None:
        strategy = str(mp.get_sharing_strategy())
    found = torch.accelerator.current_accelerator() if torch.accelerator.is_available() else None
    return {
        "batch_bytes": size,
        "batch_tensors": count_tensors(batch),
        "samples_per_batch": samples,
        "counting": counting,
        "sample_bytes": size / samples if samples else None,
        "batch_s": ended_s - middle_s,
        "first_batch_s": None if alone is not None else middle_s - began_s,
        "batch_cpu_s": min(ended_cpu_s - middle_cpu_s, ended_s - middle_s),
        "accelerator": None if found is None else found.type,
        "least_bytes": least_bytes,
        "shared_bytes": sent.shared_bytes,
        "descriptors": sent.descriptors,
        "data_files": data_files,
        "moved_files": len(moving),
        "kept": kept,
        "read_bytes": None if fetched is None or now_fetched is None else now_fetched - fetched,
        "in_order": alone is None and kept is None and gate.in_order,
        "batch_failure": sent.failure,
        "main_failure": None if alone is None else _without_workers(alone),
        "start_method": multiprocessing.get_start_method(),
        "sharing_strategy": strategy,
    }


def _kept(
    built: BuiltTarget, loader: Any, came: float, each_s: float, left_s: float
) -> tuple[float, float, int | None] | None:
    """What ``by_memory`` says of a dataset of which samples came, each in so many seconds."""
    import psutil

    from dlprof.targets.parts import core_of
    from dlprof.targets.weighing import by_memory

    dataset, patience_s = built.parts and built.parts.dataset, min(1.0 + 8 * each_s, left_s / 3)
    collate = getattr(core_of(loader), "collate_fn", None)
    if 7 * each_s >= patience_s:  # fewer samples say nothing
        return None
    own_bytes = functools.partial(_own_bytes, psutil.Process())
    return by_memory(dataset, came=came, limit_s=patience_s, collate=collate, own_bytes=own_bytes)


def _begun(
    built: BuiltTarget, gate: EpochGate, limit_s: float
) -> tuple[Any, EpochGate, Iterator[Any], object, Exception | None]:
    """A loader, its gate, an iterator of it and the first batch.

    With one worker where nothing loads without, and then also what is raised without.
    """
    began_s = _clock()
    loader, iterator, first, alone = _in_main(built, gate)
    if alone is not None:
        raised_s = _clock() - began_s
        one = type(gate)()
        worker, its_first = _by_a_worker(built, one, limit_s - raised_s)
        if its_first is _NOTHING:
            raise alone  # its traceback keeps the iterator, whose end a worker that hangs delays
        again = type(gate)()
        # What a server or a disk refused may work by now: workers have nothing to do with it.
        if _clock() - began_s + raised_s < limit_s - _ENDS_S:
            retried = _in_main(built, again)
            alone = retried[3]
        if alone is None:
            (loader, iterator, first), gate = retried[:3], again
        else:
            iterator, first, gate = worker, its_first, one
    if first is _NOTHING:
        raise EmptyLoaderError
    gate.confirm()
    return loader, gate, iterator, first, alone


def _in_main(
    built: BuiltTarget, gate: EpochGate
) -> tuple[Any, Iterator[Any], object, Exception | None]:
    """A loader without workers, its iterator and first batch, if any, or what is raised for it."""
    from dlprof.targets.loader import make_loader

    loader: Any = None
    iterator: Any = None
    first, raised = _NOTHING, None
    with _loaders_started() as started:
        try:
            loader = make_loader(built, Config(), gate=gate, any_size=True)
            iterator = iter(loader)
            first = next(iterator, _NOTHING)
        except Exception as error:  # raised again unless a worker does better
            raised = error
    # Beside the loader of this dataset another was iterated: the dataset's own, whose batches can't
    # be batched again.
    is_loader = built.parts is not None and len(started) > 1
    if is_loader and (raised is not None or first is not _NOTHING):
        raise TargetError(
            f"{built.target.dataset} makes a DataLoader of its own when it is iterated: it is a "
            "loader, whose batches would be batched again.",
            hint="Name a function that takes num_workers and returns it with so many workers.",
        )
    return loader, iterator, first, raised


_ENDS_S = 1.0  # left of what a probe may take, to say what was raised


def _by_a_worker(built: BuiltTarget, gate: EpochGate, left_s: float) -> tuple[Any, object]:
    """An iterator of the target's loader with one worker, and the first of its batches, if any."""
    from dlprof.targets.loader import make_loader
    from dlprof.targets.parts import core_of

    one = built.target.attainable(Config(num_workers=1).canonical(), has_accelerator=False)
    # A worker may take so long where no batch came without: what hangs is no better.
    patience_s = min(10.0, left_s - _ENDS_S)
    iterator: Any = None
    if not one.num_workers or patience_s <= 0:
        return iterator, _NOTHING
    try:
        loader = make_loader(built, one, gate=gate, in_worker=guard_worker, any_size=True)
        core: Any = core_of(loader)
        # Sooner than the dataset's own limit, too: else the supervisor takes it for a hang.
        core.timeout = min(getattr(core, "timeout", 0) or patience_s, patience_s)
        iterator = iter(loader)
        return iterator, next(iterator, _NOTHING)
    except Exception:  # whatever the user's code raises: it says what it did before
        return iterator, _NOTHING


def _without_workers(error: Exception) -> Failure:
    """Why loading fails in the main process, of what loads with a worker."""
    found = failures.classify(error)
    return dataclasses.replace(
        found,
        message=f"Loading fails without workers, and works with one: {found.message}",
        hint="Use num_workers=1 or more, or have the dataset load in the main process, too, where "
        "get_worker_info() is None.",
    )


def _own_bytes(process: psutil.Process) -> int:
    """Resident memory of a process that belongs to no file."""
    info = process.memory_info()
    return int(info.rss - getattr(info, "shared", 0))


def _read_bytes(process: psutil.Process) -> int | None:
    """What a process had from storage; ``None`` where nobody counts that."""
    import psutil  # workers, which have this module, too, start without it

    try:
        return int(process.io_counters().read_bytes)
    except (AttributeError, psutil.Error, OSError):
        return None


def _cpu_s(workers: Sequence[psutil.Process]) -> float:
    """CPU time of this process, of its workers that run, and of what these have waited for."""
    import psutil  # workers, which have this module, too, start without it

    own = os.times()
    used = [time.process_time(), own.children_user, own.children_system]
    for worker in workers:
        with contextlib.suppress(psutil.Error):
            times = worker.cpu_times()
            ended = (getattr(times, f"children_{kind}", 0.0) for kind in ("user", "system"))
            used += [times.user, times.system, *ended]
    return math.fsum(used)


@contextlib.contextmanager
def _loaders_started() -> Iterator[list[Any]]:
    """The DataLoaders that are iterated meanwhile, in this disposable process."""
    from torch.utils.data import DataLoader

    plain, started = iterator_maker(DataLoader), list[Any]()
    if plain is None:  # then none of them is seen
        yield started
        return

    def noted(loader: Any) -> Any:
        started.append(loader)
        return plain(loader)

    set_iterator_maker(DataLoader, noted)
    try:
        yield started
    finally:
        set_iterator_maker(DataLoader, plain)


def try_workers(built: BuiltTarget, request: TrialRequest) -> dict[str, Any]:
    """What is wrong with workers of a configuration, before any trial of it.

    ``failure`` is why none can be started, or ``None``; ``shared_files`` are those of which several
    forked workers move the position that they share, in words.
    """
    from dlprof.targets.files import moved_by_workers, named, open_files

    loader, files = _loader(built, request.config), open_files()
    failure = try_start(loader, request.config)
    several = request.config.num_workers > 1 and hasattr(loader, "num_workers")
    forked = several and start_method_of(loader) == "fork"
    shared = named(moved_by_workers(loader, files), loader) if forked else ()
    return {"failure": failure, "shared_files": list(shared)}


def look_along(built: BuiltTarget, request: TrialRequest) -> dict[str, Any]:
    """``along``: how samples differ along an epoch; see ``weighing.along_epoch``.

    In a process that nothing else waits for: one of them may end it, or hang past every alarm.
    """
    from dlprof.targets.loader import order_of
    from dlprof.targets.weighing import along_epoch

    loader = _loader(built, request.config)
    dataset, drawn = loader.dataset, order_of(loader, limit_s=0.5, alone=request.ranks < 2)
    if isinstance(drawn, str):
        return {"along": drawn}
    order, batch, drawn_s = drawn
    # As torch asks for those of a batch.
    many = None if loader.batch_sampler is None else getattr(dataset, "__getitems__", None)
    found = along_epoch(
        (lambda index: many([index])) if many else (lambda index: dataset[index]),
        order,
        batch,
        limit_s=min(2.0, (request.limit_s or math.inf) / 2),
    )
    # Each epoch of a trial would be drawn before its first batch.
    if isinstance(found, tuple) and found[2] is None and drawn_s > 0.1:
        why = f"the sampler takes {format_duration(drawn_s)} to draw an epoch"
        return {"along": (*found[:2], why)}
    return {"along": found}


def _samples_per_batch(
    gate: EpochGate, first: object, batch: object, built: BuiltTarget
) -> tuple[float | None, str]:
    """Samples of the second batch, from the indices handed out or else from the batch itself.

    With it comes by what they were counted, in a sentence, where nobody but the batch says; or that
    there is nothing in them.
    """
    from dlprof.targets.counting import SampleCounter

    sizes, lost = gate.sizes, first is None and batch is None
    if sizes or lost:
        said = f"{NO_DATA_SIGN}: does collate_fn return it?" if lost else ""
        return float(sizes[:2][-1]) if sizes else None, said  # workers are ahead of it
    count = SampleCounter(built.target.batch_size)
    count(first)
    samples = count(batch)
    if samples is None:
        return None, ""
    text = f"The second batch counts as {counted(samples, 'sample')}{count.wording}."
    return float(samples), "" if built.target.batch_size is not None else text


_ITS_OWN = ("worker_exception", "not_picklable", "batch_not_picklable")
"""Kinds that lie in the object itself; others, such as a full /dev/shm, may not come again."""


class SentBatch(NamedTuple):
    """A batch as a worker would send it, or the smaller figures of several."""

    # Of tensors that go through shared memory; ``None`` if it can't be sent.
    shared_bytes: int | None = None
    # Pieces of shared memory, of which each takes descriptors on its way where ``file_descriptor``
    # is the sharing strategy; ``None`` likewise.
    descriptors: int | None = None
    failure: Failure | None = None  # why it can't be sent


def try_batch(*batches: object) -> SentBatch:
    """Pickle batches as a worker does, but for the tensors' data, which stay where they are."""
    sent: list[_Counter] = []
    for batch in batches:
        counter = _Counter()
        try:
            counter.dump(batch)
        except Exception as error:  # whatever the user's __reduce__ raises
            message = f"A worker can't send a batch to the main process: {one_line(error)}"
            hint = failures.SENDABLE_BATCH
            if (failure := _failure(error, "batch_not_picklable", message, hint)) is not None:
                return SentBatch(failure=failure)
        else:
            sent.append(counter)
    if len(sent) < len(batches):
        return SentBatch()
    return SentBatch(
        shared_bytes=min(sum(each.sizes.values()) for each in sent),
        descriptors=min(each.descriptors for each in sent),
    )


class _Counter(ForkingPickler):
    """Pickles by torch's own rules and counts what would be shared instead of sharing it."""

    def __init__(self) -> None:
        import torch.multiprocessing  # registers how tensors are pickled

        super().__init__(io.BytesIO(), pickle.HIGHEST_PROTOCOL)
        self.sizes: dict[int, int] = {}
        self.descriptors = 0
        self.dispatch_table[torch.UntypedStorage] = self._count

    def _count(self, storage: Any) -> tuple[type[bytes], tuple[()]]:
        if storage.nbytes() > 0:
            self.sizes[storage._cdata] = storage.nbytes()  # noqa: SLF001 - views share one storage
            self.descriptors += 1
        return bytes, ()


def try_start(loader: Any, config: Config) -> Failure | None:
    """Why no worker can be started for a loader; ``None`` if one can, or that is not known.

    What torch sends to a new worker is sent to a process that is started as one: by the
    configuration's start method, the loader's own, or the platform's.
    """
    method = start_method_of(loader, config)
    if method not in BY_COPY or not hasattr(loader, "dataset"):
        return None
    context: Any = multiprocessing.get_context(method)
    ours, theirs = context.Pipe(duplex=False)
    goods = _Goods(
        {
            "the dataset": loader.dataset,
            "collate_fn": getattr(loader, "collate_fn", None),
            "worker_init_fn": getattr(loader, "worker_init_fn", None),
        }
    )
    process = context.Process(target=_receive, args=(goods, theirs), daemon=True)
    try:
        process.start()
    except _PackingError as packing:
        error = packing.__cause__ or packing
        what = f"A worker that is started by {method} can't be sent {packing}"
        message = f"{what}: {one_line(error)}"
        return _failure(error, "not_picklable", message, failures.PICKLABLE)
    theirs.close()
    try:
        fault: Mapping[str, str] | None = ours.recv()
    except EOFError:  # it ended without a word: that may have any reason
        fault = None
    process.join()
    if fault is None:
        return None
    return Failure(
        kind="not_picklable",
        message=f"A worker that is started by {method} can't unpickle {fault['name']}: "
        f"{fault['error']}",
        hint=failures.PICKLABLE,
        stderr_tail=fault["traceback"],
    )


class _PackingError(Exception):
    """A part of this name can't be pickled; the cause says why."""


class _Goods:
    """Named objects that are pickled while a process is started, and unpickled when it asks."""

    def __init__(self, parts: Mapping[str, object]) -> None:
        self._parts = parts

    def __reduce__(self) -> tuple[type[dict[str, bytes]], tuple[dict[str, bytes]]]:
        """Pickle each by itself, because locks and queues let themselves be sent only now."""
        packed = {}
        for name, part in self._parts.items():
            try:
                packed[name] = bytes(ForkingPickler.dumps(part))
            except Exception as error:
                raise _PackingError(name) from error
        return dict, (packed,)


def _receive(goods: Mapping[str, bytes], answer: connection.Connection) -> None:
    """In the new process: unpickle, and say what can't be; without a fault, say nothing."""
    for name, packed in goods.items():
        try:
            ForkingPickler.loads(packed)
        except Exception as error:  # whatever the user's __setstate__ raises
            fault = {"name": name, "error": one_line(error), "traceback": user_traceback(error)}
            answer.send(fault)
            return
    answer.send(None)


def _failure(error: BaseException, kind: FailureKind, message: str, hint: str) -> Failure | None:
    """The failure, unless its reason lies in the surroundings and not in the object."""
    wanting = isinstance(error, OSError | MemoryError)
    if wanting or failures.classify(error).kind not in _ITS_OWN:
        return None
    return Failure(kind=kind, message=message, hint=hint, stderr_tail=user_traceback(error))


_NUMBERS: Any = [0]  # the lightest dataset that there is


def weigh_dataset(built: BuiltTarget, request: TrialRequest) -> dict[str, Any]:
    """What the dataset weighs, and how one worker starts or what the order of its samples costs.

    In ``weight`` is a ``DatasetWeight`` as plain values.
    """
    from dlprof.targets.weighing import by_order, weigh

    one = dataclasses.replace(request.config, num_workers=1).canonical()
    loader = _loader(built, one)
    if not hasattr(loader, "dataset"):
        why = {"attributes": f"{type(loader).__name__} has no dataset to look into"}
        return {"weight": DatasetWeight(unavailable=why)}
    weight = weigh(loader, limit_s=request.trial_s)
    left_s = min(1.0, request.trial_s - weight.took_s + 0.5)  # of what the process may take
    # What a dataset opens for a sample can't be sent to a worker that is to be started.
    found = by_order(loader.dataset, limit_s=left_s) if left_s > 0 and not request.starts else None
    if found is not None:
        weight = dataclasses.replace(weight, far_sample_s=found[0], next_sample_s=found[1])
    missing = dict(weight.unavailable)
    starts: list[WorkerStart] = []
    for method in request.starts:
        if method == "own":
            method = start_method_of(loader, one)
        if any(each.method == method for each in starts):
            continue
        try:
            start = _start(built, dataclasses.replace(one, start_method=method), weight)
        except Exception as error:  # whatever the user's code raises
            missing[f"starts.{method}"] = f"{type(error).__name__}: {error}"[:200]
            continue
        if start is None:
            missing[f"starts.{method}"] = "its workers don't go by torch's own loop"
        else:
            starts.append(start)
    whole = dataclasses.replace(
        weight, start_method=start_method_of(loader, one), starts=tuple(starts), unavailable=missing
    )
    return {"weight": whole}


def _loader(built: BuiltTarget, config: Config) -> Any:
    from dlprof.targets.loader import make_loader
    from dlprof.targets.parts import core_of

    return core_of(make_loader(built, config, in_worker=guard_worker, any_size=True))


def _start(built: BuiltTarget, config: Config, weight: DatasetWeight) -> WorkerStart | None:
    from dlprof.trial.starting import measure_start

    method, loader = str(config.start_method), _loader(built, config)
    if method not in BY_COPY:
        return measure_start(loader, method)
    packing_s = weight.sent_s
    # What is sent to a worker to see how it starts; of more it is computed what that would take.
    too_much = weight.pickled_bytes > 256 << 20 or packing_s > 5.0
    if weight.how == "at_least" or any(each.failure for each in weight.attributes):
        raise ValueError("the dataset can't be pickled, or takes too long to")
    sent_bytes, more = weight.pickled_bytes, dict[str, float]()
    if too_much:  # another dataset's, with what sending this one would add
        from torch.utils.data import DataLoader

        loader = DataLoader(_NUMBERS, num_workers=1)
        # A pipe between two processes, each of which copies what goes through it.
        more = {"create": weight.pickle_s, "unpickle": weight.unpickle_s + sent_bytes / 1e9}
    start = measure_start(loader, method)
    phases = (
        dataclasses.replace(each, wall_s=each.wall_s + added_s, cpu_s=each.cpu_s + added_s)
        for each in (start.phases if start is not None else ())
        for added_s in [more.get(each.name, 0.0)]
    )
    return start and dataclasses.replace(start, phases=tuple(phases), sent_bytes=sent_bytes)
