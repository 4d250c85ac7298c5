"""What a disposable process finds out about a target before trials are spent on it."""

from __future__ import annotations

import contextlib
import dataclasses
import multiprocessing
import time
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from dlprof.errors import TargetError
from dlprof.internals import iterator_maker, set_iterator_maker
from dlprof.records import Config
from dlprof.trial.consumer import make_consumer, try_consumer
from dlprof.trial.guard import guard_of
from dlprof.trial.measure import EmptyLoaderError
from dlprof.trial.protocol import TrialRequest
from dlprof.trial.sending import Parcel, try_batch, try_start
from dlprof.units import counted

if TYPE_CHECKING:
    from dlprof.targets.build import BuiltTarget
    from dlprof.targets.loader import EpochGate

_NOTHING = object()
_FILES = 8
_clock = time.perf_counter


def probe(built: BuiltTarget, request: TrialRequest) -> dict[str, Any]:
    """Load two batches in this process, try the consumer on one, and say what they are.

    Returns:
        ``batch_bytes``, ``batch_tensors``, ``samples_per_batch``, ``batch_s`` and
        ``batch_cpu_s`` of the second batch; ``counting`` (how its samples were counted, a sentence,
        or nothing where the loader says how many they are); ``sample_bytes`` (mean, as collated);
        ``accelerator`` (torch's name of it, or ``None``); ``least_bytes``, ``shared_bytes`` and
        ``descriptors`` of the smaller of the two; ``batch_failure`` if one can't be sent by a
        worker, else ``None``; ``data_files`` (how many the dataset names, up to a few);
        ``start_method`` and ``sharing_strategy``, as they are where a
        configuration names none (``sharing_strategy`` is ``None`` where the target's own
        ``worker_init_fn`` may change it).
    """
    import torch  # noqa: PLC0415

    from dlprof.targets.counting import count_bytes, count_tensors  # noqa: PLC0415
    from dlprof.targets.loader import EpochGate, make_loader  # noqa: PLC0415

    gate = EpochGate()
    loader = make_loader(built, Config(), gate=gate, any_size=True)
    with _loaders_started() as started:
        iterator = iter(loader)
        try:
            first = next(iterator, _NOTHING)
        except Exception:
            _refuse_a_loader(built, started)  # whose uneven batches can't be batched again
            raise
    if first is _NOTHING:
        raise EmptyLoaderError
    gate.confirm()
    _refuse_a_loader(built, started)
    middle_s, middle_cpu_s, batch = _clock(), time.process_time(), next(iterator, first)
    ended_s, ended_cpu_s = _clock(), time.process_time()
    sent = _sent(first, batch)
    size = count_bytes(batch)
    samples, counting = _samples_per_batch(gate, first, batch, built)
    least_bytes = min(size, count_bytes(first))
    # Last, because the user's step may change the batch.
    there = batch if request.device == "cpu" else _brought(batch, request.device)
    try_consumer(make_consumer(0.0, request.step_callable), there, request.step_callable)
    found = torch.accelerator.current_accelerator() if torch.accelerator.is_available() else None
    return {
        "batch_bytes": size,
        "batch_tensors": count_tensors(batch),
        "samples_per_batch": samples,
        "counting": counting,
        "sample_bytes": size / samples if samples else None,
        "batch_s": ended_s - middle_s,
        "batch_cpu_s": min(ended_cpu_s - middle_cpu_s, ended_s - middle_s),
        "accelerator": None if found is None else found.type,
        "least_bytes": least_bytes,
        "shared_bytes": sent.shared_bytes,
        "descriptors": sent.descriptors,
        "data_files": _data_files(built),
        "batch_failure": None if sent.failure is None else dataclasses.asdict(sent.failure),
        "start_method": multiprocessing.get_start_method(),
        "sharing_strategy": _sharing_strategy(loader),
    }


def _refuse_a_loader(built: BuiltTarget, started: Sequence[object]) -> None:
    """Refuse a dataset that is a loader.

    Raises:
        TargetError: Beside the loader of this dataset another one was iterated.
    """
    if built.parts is not None and len(started) > 1:
        raise TargetError(
            f"{built.target.dataset} makes a DataLoader of its own when it is iterated: it is a "
            "loader, whose batches would be batched again.",
            hint="Name a function that takes num_workers and returns it with so many workers.",
        )


@contextlib.contextmanager
def _loaders_started() -> Iterator[list[Any]]:
    """The DataLoaders that are iterated meanwhile, in this disposable process."""
    from torch.utils.data import DataLoader  # noqa: PLC0415

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
    """Try whether workers of a configuration can be started at all.

    Returns:
        ``failure``, or ``None`` for it.
    """
    from dlprof.targets.inner import core_of  # noqa: PLC0415
    from dlprof.targets.loader import make_loader  # noqa: PLC0415

    config = request.config
    guard = guard_of(config, built.target.own_config)
    failure = try_start(core_of(make_loader(built, config, in_worker=guard)), config)
    return {"failure": None if failure is None else dataclasses.asdict(failure)}


def _samples_per_batch(
    gate: EpochGate, first: object, batch: object, built: BuiltTarget
) -> tuple[float | None, str]:
    """Samples of the second batch, from the indices handed out or else from the batch itself.

    Returns:
        By what they were counted as well, in a sentence, where nobody but the batch says.
    """
    from dlprof.targets.counting import SampleCounter  # noqa: PLC0415

    sizes = gate.sizes if gate.attached else None
    if sizes:
        return float(sizes[-1]), ""
    count = SampleCounter(built.target.batch_size)
    count(first)
    samples = count(batch)
    if samples is None:
        return None, ""
    told = f"The second batch counts as {counted(samples, 'sample')}{count.told}."
    return float(samples), "" if built.target.batch_size is not None else told


def _brought(batch: object, device: str) -> object:
    """The batch where the user's step will find it."""
    from dlprof.trial.copies import bring_for_step  # noqa: PLC0415 - of use with a device only

    return bring_for_step(batch, device)


def _data_files(built: BuiltTarget) -> int:
    """Files that the dataset names, as far as it takes to know that it reads some."""
    from dlprof.targets.files import dataset_files  # noqa: PLC0415

    if built.parts is None:
        return 0
    return sum(1 for _ in dataset_files(built.parts.dataset, limit=_FILES))


def _sent(first: object, second: object) -> Parcel:
    """What is sure of both batches: the smaller figures, or the fault of either."""
    one, two = try_batch(first), try_batch(second)
    if one.failure is not None or two.failure is not None:
        return one if one.failure is not None else two
    if one.shared_bytes is None or two.shared_bytes is None:
        return Parcel()
    return Parcel(
        shared_bytes=min(one.shared_bytes, two.shared_bytes),
        descriptors=min(one.descriptors or 0, two.descriptors or 0),
    )


def _sharing_strategy(loader: Any) -> str | None:
    import torch.multiprocessing  # noqa: PLC0415

    from dlprof.targets.inner import core_of  # noqa: PLC0415

    if getattr(core_of(loader), "worker_init_fn", None) is not None:
        return None
    return str(torch.multiprocessing.get_sharing_strategy())  # type: ignore[no-untyped-call]
