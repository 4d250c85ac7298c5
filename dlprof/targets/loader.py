"""A loader for one configuration, with everything else as the target has it.

A gate ends its epochs on demand, so that a real end can be timed on data of any length.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
import math
import time
from array import array
from collections.abc import Callable, Iterable, Iterator, Sequence, Sized
from typing import Any

from torch.utils.data import (
    BatchSampler,
    DataLoader,
    IterableDataset,
    RandomSampler,
    SequentialSampler,
    SubsetRandomSampler,
    WeightedRandomSampler,
)
from torch.utils.data.distributed import DistributedSampler

from dlprof.errors import TargetError, UsageError
from dlprof.internals import index_source
from dlprof.records import Config
from dlprof.targets.adapters import with_settings
from dlprof.targets.build import BuiltTarget
from dlprof.targets.faults import one_line, own_attributes, target_fault, type_name
from dlprof.targets.parts import OWN_LOADER_HINT, LoaderParts, dataloader_of, take_apart
from dlprof.targets.workers import WorkerSetup, start_method_of
from dlprof.units import counted, format_duration

_WHERE_MADE = "Set them where the loader is made: recommendation.dataloader_kwargs has them."


def make_loader(
    built: BuiltTarget,
    config: Config,
    *,
    gate: EpochGate | None = None,
    in_worker: Callable[[], object] | None = None,
    any_size: bool = False,
) -> Iterable[Any]:
    """Make the target's loader for a configuration; ``batch_size=None`` keeps the target's own.

    It is a ``DataLoader`` (of the target's own class), a copy of what the target has made around
    one, or whatever iterable a callable of the target makes.

    The gate ends an epoch on demand; see its ``attached`` and ``reason`` afterwards. ``in_worker``
    is called first in each worker of a ``DataLoader`` that is not forked, as forked ones inherit
    what this process has; it must pickle. With ``any_size`` an epoch without one full batch will
    do, as for a look at a batch.
    """
    config = config.canonical()
    if built.own is not None:
        if gate is not None:
            gate.detach(built.target.fixed["num_workers"])
        return built.own
    # A batch size that only the target's own callable can change.
    by_factory = (
        config.batch_size is not None
        and built.factory is not None
        and built.factory.takes("batch_size")
        and built.parts is not None
        and built.parts.batching.get("batch_size") is None
    )
    if built.parts is not None and not by_factory:
        loader: Any = _rebuild(built.parts, config)
    elif built.factory is not None:
        loader = built.factory.loader(config, built.target.own_config)
    else:
        raise AssertionError("a built target has parts or a factory")
    size, length = getattr(loader, "batch_size", None), built.target.length
    # The length of an iterable dataset may be anybody's guess. Else an epoch without one full
    # batch has no rate to compare: what it takes is time to first batch.
    is_strict = built.target.kind != "iterable" and not any_size
    if is_strict and isinstance(size, int) and length is not None and length < size:
        raise TargetError(
            f"The dataset is smaller than one batch: an epoch of {built.target.spec!r} has "
            f"{counted(length, 'sample')}, batch_size is {size}.",
            hint=f"Set --batch-size to {length} or less, or give a larger dataset.",
        )
    _set_up_workers(loader, config, in_worker)
    if gate is not None:
        gate.attach(loader)
    result: Iterable[Any] = loader
    return result


def apply(config: Config, loader: Any) -> Any:
    """A loader of one's own with a configuration; see :meth:`dlprof.records.Recommendation.apply`.

    The loader, or the one around a DataLoader, is left as it is; what makes one by itself may not
    be (``adapters.with_settings``).

    Raises:
        UsageError: ``loader`` is none of these.
        TargetError: It can't be made again with these settings.
    """
    config = config.canonical()
    inner = dataloader_of(loader)
    if inner is None:
        return _apply_around(config, loader)
    if getattr(inner, "next_iter_state", None) is not None:
        raise TargetError(
            f"{type_name(inner)} goes on from a state that was loaded: a loader of other settings "
            "would begin again.",
            hint="Apply the settings first, and then load the state, which torchdata takes with as "
            "many workers as it was saved with.",
        )
    try:
        parts = take_apart(inner, None if inner is loader else loader)
        own = parts.kept["worker_init_fn"]
        if isinstance(own, WorkerSetup):  # of settings that were applied before
            kept = {**parts.kept, "worker_init_fn": own.user_init}
            parts = dataclasses.replace(parts, kept=kept)
        made = _rebuild(parts, config)
    except TargetError as error:
        raise TargetError(error.message, hint=_WHERE_MADE, traceback=error.traceback) from error
    except Exception as error:  # classes around a DataLoader are copied in their own ways
        said = f"{type_name(loader)} can't be made again with other settings:"
        raise target_fault(said, error, _WHERE_MADE) from error
    _set_up_workers(made, config, None)
    return made


def _apply_around(config: Config, found: Any) -> Any:
    """The same of what makes its loader by itself."""
    of_workers = {name: getattr(config, name) for name in ("sharing_strategy", "worker_threads")}
    asked = {name: value for name, value in of_workers.items() if value is not None}
    try:
        settings = config.dataloader_kwargs() | asked
        made = with_settings(found, settings, functools.partial(apply, config))
    except AttributeError as error:
        raise TargetError(f"{error}.", hint=_WHERE_MADE) from error
    if made is None:
        raise UsageError(
            f"Settings are applied to a DataLoader, and this is {type_name(found)}",
            hint="Pass the DataLoader, a Trainer or TrainingArguments of Hugging Face, or a "
            "LightningDataModule; or make a loader with recommendation.dataloader_kwargs.",
        )
    return made


def _rebuild(parts: LoaderParts, config: Config) -> Iterable[Any]:
    if config.batch_size is not None:
        parts = parts.with_batch_size(config.batch_size)
    settings = config.dataloader_kwargs()
    settings.pop("batch_size", None)
    return parts.build(settings)


def _set_up_workers(loader: Any, config: Config, in_worker: Callable[[], object] | None) -> None:
    asked = config.sharing_strategy is not None or config.worker_threads is not None
    made = dataloader_of(loader)
    in_worker = None if made is None or start_method_of(made) == "fork" else in_worker
    if not asked and in_worker is None:
        return
    if made is None:
        raise TargetError(
            f"sharing_strategy and worker_threads can't be set on {type(loader).__name__}, "
            "which is not a torch.utils.data.DataLoader.",
            hint="Leave them out for this target.",
        )
    # worker_init_fn is read at iter(); the target's own one is called last.
    made.worker_init_fn = WorkerSetup(
        made.worker_init_fn, config.sharing_strategy, config.worker_threads, in_worker
    )


class EpochGate:
    """Passes a loader's index batches through unchanged until it is closed.

    At the limit that :meth:`reopen` sets, the loader runs out of indices: it yields the batches
    that are in flight and then ends its epoch by torch's own path. One gate serves one loader:
    ``attached`` is whether that asks it for its indices, and ``reason`` why not, one sentence, and
    ``batches`` are the index batches handed out in this epoch.

    With ``spread`` the same index batches come in an order whose every part is spread over the
    whole epoch, where that is not in an order of chance already (``in_order``).
    """

    def __init__(self, *, spread: bool = False) -> None:
        self.spread = spread
        self._source: Any = None  # of the epoch that began last
        self.at_once = 1  # batches that are loaded at once
        self.detach("no loader has been made with this gate")
        self.reopen()
        self._inner: EpochGate | None = None
        self._outer_name = ""

    @property
    def sizes(self) -> Sequence[int] | None:
        """Samples in each of this epoch's batches, in the order of their indices.

        With ``in_order=True`` the n-th batch that the loader yields has the n-th size. ``None``
        where the indices don't say: those of an iterable dataset, whose batches may hold fewer
        than were asked for; index batches without a length; and single indices with
        ``batch_size=None``, for which a dataset may give a whole batch.
        """
        known = self.exact and self.batches == len(self.asked)
        return self.asked if known else None

    @property
    def in_order(self) -> bool:
        """Whether the order of the epoch that began last is the dataset's, or the user's own."""
        if self._inner is not None:
            return self._inner.in_order
        # What an iterable dataset yields follows none of these indices.
        return self.exact and self._source is not None and _in_order(self._source)

    @property
    def closed(self) -> bool:
        """Whether no more indices are handed out."""
        return self.batches >= self._limit

    def reopen(self, *, limit: float = math.inf) -> None:
        """Make ready for the next epoch; call it before ``iter(loader)``.

        After ``limit`` index batches no more are handed out: the epoch ends after those in flight.
        """
        self._limit = limit
        self.batches = 0
        self.asked: array[int] = array("q")  # samples of each index batch that shows them

    def attach(self, loader: object) -> None:
        """Put the gate between a loader and its own index source.

        Only this loader's attribute changes; the user's sampler is neither copied nor asked.
        Sets ``attached`` and ``reason``; a loader that can't be gated is left as it was.
        """
        if not isinstance(loader, DataLoader) or dataloader_of(loader) is not loader:
            name, inner = type(loader).__name__, dataloader_of(loader)
            if inner is None:
                self.detach(f"{name} is not a torch.utils.data.DataLoader")
                return
            # What the inner one is asked for is counted, and its epochs are never ended: the outer
            # one may begin the next by itself, or make no batch of so few.
            self._inner, self._outer_name = EpochGate(spread=self.spread), name
            self._inner.attach(inner)
            self.detach(
                f"{name} passes on what a DataLoader loads, and its epochs can't be ended early"
            )
            return
        slot = "sampler" if loader.batch_sampler is None else "batch_sampler"
        own = getattr(loader, slot)
        # A class draws from indices without end, as timm's ``MultiEpochsDataLoader`` does.
        endless = hasattr(type(own), "__iter__") and not hasattr(type(own), "__len__")
        counts_itself = type(loader).__len__ is not DataLoader.__len__
        if endless and counts_itself and not isinstance(loader.dataset, IterableDataset):
            self.detach(
                f"{type(loader).__name__} counts the batches of its epochs itself, and its indices "
                "never end"
            )
            return
        gated = GatedIndices(own, self, list | tuple if loader.batch_sampler is None else Sized)
        try:
            # Past DataLoader.__setattr__, which guards against half-changed loaders of a user.
            object.__setattr__(loader, slot, gated)
        except AttributeError:
            self.detach(f"{type(loader).__name__}.{slot} can't be replaced")
            return
        if index_source(loader) is not gated:
            self.detach(f"{type(loader).__name__} takes its indices from elsewhere")
            return
        self.attached, self.reason = True, ""
        self.at_once = max(1, loader.num_workers)
        self.exact = not isinstance(loader.dataset, IterableDataset)

    def confirm(self) -> bool:
        """Check, once the first batch came, that indices went through the gate.

        A class with an iterator of its own looks attached but draws its indices from before the
        gate; then ``attached``, which is the answer, turns false.
        """
        if self._inner is not None and self._inner.attached and self._inner.batches == 0:
            raise TargetError(
                f"{self._outer_name} holds a DataLoader, but its batches don't come from that one.",
                hint=OWN_LOADER_HINT,
            )
        if self.attached and self.batches == 0:
            self.detach(
                "the loader's class keeps its own iterator over the indices, so an epoch can't be "
                "ended early"
            )
        return self.attached

    def detach(self, reason: str) -> None:
        """Say why there is no gate, in one sentence."""
        self.attached, self.reason = False, reason
        # Whether each has to come back as a batch: an iterable dataset may end before.
        self.exact = False


def _is_torchs(sampler: object) -> bool:
    return type(sampler).__module__.partition(".")[0] in ("torch", "torchdata")


def _unbatched(source: Any) -> Any:
    """The sampler of which torch or torchdata makes plain batches; else what makes them."""
    return source.sampler if isinstance(source, BatchSampler) and _is_torchs(source) else source


def _in_order(source: Any) -> bool:
    """Whether what a loader takes its indices from has an order that is none of chance.

    The dataset's, or one of a sampler of the user's own: unless that is of a class that shuffles,
    or makes batches of such a one, or shares them out; or has no length, and so maybe no end.
    """
    sampler = source
    for _ in range(4):  # no more are wrapped in one another
        own = own_attributes(sampler)
        inner = (own.get(name) for name in ("batch_sampler", "sampler"))
        sampler = next((each for each in inner if each is not None), sampler)
    if isinstance(sampler, DistributedSampler):
        return not sampler.shuffle
    if isinstance(sampler, RandomSampler | SubsetRandomSampler | WeightedRandomSampler):
        return False
    ends = all(hasattr(type(each), "__len__") for each in (source, sampler))
    return isinstance(sampler, SequentialSampler) or (ends and not _is_torchs(sampler))


def order_of(loader: Any, *, limit_s: float, alone: bool) -> tuple[Sequence[Any], int, float] | str:
    """What an epoch asks the dataset for, one by one; how many a batch; seconds to draw that.

    Of a sampler of the user's own an epoch begins. A sentence's end says why that isn't known: it
    raises, or has not ended by the limit; or other ranks than this one may have to draw, too, which
    is not ``alone``.
    """
    source: Any = index_source(loader)
    sampler, plain = _unbatched(source), loader.batch_sampler is None
    if type(sampler) is SequentialSampler:
        return range(len(sampler)), 1 if plain else source.batch_size, 0.0
    if not (alone or _is_torchs(sampler)):
        return "the sampler may have to be asked in all ranks at once"
    began_s, drawn, batches = time.perf_counter(), list[Any](), 0
    try:
        for batch in source:
            batches += 1
            drawn += [batch] if plain else batch
            if time.perf_counter() - began_s > limit_s:
                return f"the sampler yields no epoch in {format_duration(limit_s)}"
    except Exception as error:  # whatever the user's code raises
        return f"the sampler raised {one_line(error)}"
    return drawn, max(1, len(drawn) // max(1, batches)), time.perf_counter() - began_s


def _spread(source: Any, began: Iterator[Any], at_once: int) -> Iterator[Any]:
    """What an epoch that ``began`` would yield, each step further by a golden section of it.

    Steps of that length leave no part of it out for long, and return to none before all have come.
    As many batches as workers load at once follow each other as they did: those that are near each
    other take about as long, and others would have them wait for one another, which none does in
    order.
    """
    sampler, drawn = _unbatched(source), list[Any]()
    if type(sampler) is SequentialSampler:  # which may have more indices than there is memory for
        size, count = 1 if sampler is source else source.batch_size, len(source)
    else:
        drawn, size = [*began], 0
        count = len(drawn)
    groups = count // at_once
    step = max(1, round(0.618 * groups))
    while math.gcd(step, groups) > 1:
        step += 1
    begins = (step * each % groups * at_once for each in range(groups))
    together = (range(begin, begin + at_once) for begin in begins)
    rest = range(groups * at_once, count)  # last, so that groups stay those of one round
    for number in itertools.chain(*together, rest):
        if drawn:
            yield drawn[number]
        elif sampler is source:
            yield number
        else:
            yield [*range(number * size, min((number + 1) * size, len(sampler)))]


class GatedIndices:
    """The user's sampler behind a gate; everything but iterating goes to the sampler itself.

    What it yields asks for as many samples as it has entries, where it is of ``kinds``. A class of
    the user's own may ask for the class of its sampler, and set attributes of it.
    """

    def __init__(self, source: Any, gate: EpochGate, kinds: Any) -> None:
        vars(self).update(_source=source, _gate=gate, _kinds=kinds)

    @property  # type: ignore[misc] # which isinstance() asks
    def __class__(self) -> Any:
        return type(self._source)

    def __iter__(self) -> Iterator[Any]:
        # The user's __iter__ runs here and not at the first index, because torch calls it before
        # it draws the base seed: the order of random draws must stay.
        source, gate = self._source, self._gate
        gate._source = source  # noqa: SLF001 - its other half
        began = iter(source)
        if gate.spread and gate.in_order:
            began = _spread(source, began, gate.at_once)
        return self._passed(began)

    def _passed(self, indices: Iterator[Any]) -> Iterator[Any]:
        gate, kinds = self._gate, self._kinds
        if gate.closed:
            return
        for index in indices:
            gate.batches += 1
            if isinstance(index, kinds):
                gate.asked.append(len(index))
            yield index
            if gate.closed:
                return

    def __len__(self) -> int:
        return len(self._source)

    def __setattr__(self, name: str, value: object) -> None:
        setattr(self._source, name, value)

    def __reduce_ex__(self, _protocol: Any) -> tuple[Any, ...]:
        # By default pickle refuses an object whose __class__ is another. The rest is sent as the
        # object's state, so that a sampler may refer to the loader that refers to it.
        return object.__new__, (GatedIndices,), vars(self)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") or name == "_source":  # copying asks before __init__ ran
            raise AttributeError(name)
        return getattr(self._source, name)
