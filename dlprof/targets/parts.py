"""What loaders are made of: a DataLoader taken apart, or a callable that the target names."""

from __future__ import annotations

import contextlib
import copy
import dataclasses
import inspect
from collections.abc import Callable, Iterable, Iterator, Mapping, Sized
from types import MethodType
from typing import Any, SupportsIndex, TypeGuard

import torch
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    Dataset,
    IterableDataset,
    RandomSampler,
    SequentialSampler,
    dataloader,
)
from torch.utils.data.distributed import DistributedSampler

from dlprof.errors import TargetError
from dlprof.internals import LOADER_STATE, iterator_class, kept_iterator
from dlprof.records import Config
from dlprof.targets.arguments import bind_arguments, named_parameters, signature_of, takes_any
from dlprof.targets.faults import NOT_A_SCRIPT, target_fault
from dlprof.targets.workers import settings_of

_KEPT = ("collate_fn", "timeout", "worker_init_fn", "generator")
SWEPT: Mapping[str, Any] = {
    "num_workers": 0,
    "prefetch_factor": None,
    "pin_memory": False,
    "persistent_workers": False,
    "batch_size": 32,
    "in_order": True,
    "multiprocessing_context": None,
}
"""DataLoader arguments that a sweep sets, with values that are legal together at no workers."""

KEYWORDS: Mapping[str, str] = {
    "start_method" if name == "multiprocessing_context" else name: name for name in SWEPT
}
"""Fields of ``Config`` that are arguments of a DataLoader, with the arguments' names."""

_SETTINGS = (
    "num_workers", "prefetch_factor", "pin_memory", "persistent_workers", "in_order", "timeout",
    *LOADER_STATE,
)  # fmt: skip
_BATCHING = ("batch_size", "drop_last", "sampler", "batch_sampler")
"""Attributes of a DataLoader: what a copy of one is given."""

_DEFAULTS: Mapping[str, Any] = {
    name: parameter.default for name, parameter in inspect.signature(DataLoader).parameters.items()
}
OWN_LOADER_HINT = (
    "Name a function instead that takes num_workers, prefetch_factor, pin_memory and "
    "persistent_workers and returns the loader."
)


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class LoaderParts:
    """Everything of a DataLoader, or of a subclass of the user's, that a sweep keeps."""

    loader_class: type[DataLoader[Any]]
    dataset: Any
    # The legal one of three sets of arguments: ``batch_sampler``; ``batch_size``, ``drop_last`` and
    # (for a map-style set) ``sampler``; or ``batch_size=None`` with ``sampler``.
    batching: Mapping[str, Any]
    kept: Mapping[str, Any]  # collate_fn, timeout, worker_init_fn, generator and the like
    multiprocessing_context: Any = None  # the loader's own; illegal without workers
    # An iterable that the batches pass through, and the DataLoader that it holds; ``None`` where
    # the DataLoader itself is the loader.
    around: tuple[Any, DataLoader[Any]] | None = None
    # The loader itself, where its class takes arguments that can't be read from it: it is copied,
    # and the copy gets the settings; ``None`` where its class makes it again.
    copied: DataLoader[Any] | None = None
    notes: tuple[str, ...] = ()

    @property
    def fixed(self) -> Mapping[str, str]:
        """Settings that can't be changed, by their names in ``Config``, each with the reason."""
        known = _parameters(self.loader_class)
        name = self.loader_class.__qualname__
        missing = [] if known is None else [key for key in KEYWORDS if KEYWORDS[key] not in known]
        found = {key: f"{name} takes no {KEYWORDS[key]}" for key in missing if key != "batch_size"}
        try:
            self.with_batch_size(1)
        except TargetError:
            found["batch_size"] = f"the target makes its batches itself ({self.batch_source})"
        return found

    def build(self, settings: Mapping[str, Any]) -> Iterable[Any]:
        """Make a loader with these settings, without ``batch_size``, and all else as it was.

        Raises:
            TargetError: The loader's class refuses them.
        """
        arguments = {**self.kept, **self.batching, **settings}
        if settings["num_workers"] == 0:
            arguments.pop("timeout", None)  # torch refuses it without workers
        elif self.multiprocessing_context is not None:
            arguments.setdefault("multiprocessing_context", self.multiprocessing_context)
        try:
            made = self._made(arguments)
        except (TypeError, ValueError, AssertionError, RuntimeError) as error:
            name = self.loader_class.__qualname__
            shown = ", ".join(f"{key}={value}" for key, value in settings.items())
            hint = "" if self.loader_class is DataLoader else OWN_LOADER_HINT
            said = f"{name} can't be built again with {shown}:"
            raise target_fault(said, error, hint) from error
        if self.around is None:
            return made
        outer, inner = self.around
        rebuilt: Iterable[Any] = with_inner(outer, inner, made)
        return rebuilt

    def _made(self, arguments: Mapping[str, Any]) -> DataLoader[Any]:
        if self.copied is None:
            known = _parameters(self.loader_class)
            # What is DataLoader's default anyway is left out where a subclass doesn't take it.
            accepted = {
                key: value
                for key, value in arguments.items()
                if known is None or key in known or not is_default(key, value)
            }
            return self.loader_class(self.dataset, **accepted)
        # Which also looks whether they are legal.
        plain = vars(DataLoader(self.dataset, **arguments))
        made: DataLoader[Any] = object.__new__(self.loader_class)
        attributes = vars(made)  # past __setattr__, which guards a loader against half a change
        attributes.update(
            # Its methods go with it: to pickle the loader they were of would fail while that has
            # workers, and what starts workers by anything but fork pickles collate_fn.
            (name, MethodType(value.__func__, made) if _is_method_of(self.copied, value) else value)
            for name, value in vars(self.copied).items()
        )
        attributes.update({name: plain[name] for name in _SETTINGS if name in plain})
        if self.batching != _batching(self.copied):
            attributes.update({name: plain[name] for name in _BATCHING})
        return made

    def with_batch_size(self, size: int) -> LoaderParts:
        """The same parts with another number of samples per batch."""
        if self.around is None and self.batching.get("batch_size") is not None:
            return dataclasses.replace(self, batching={**self.batching, "batch_size": size})
        for slot in ("batch_sampler", "sampler"):
            own = self.batching.get(slot)
            if self.around is None and type(own) is BatchSampler:
                resized = BatchSampler(own.sampler, size, own.drop_last)
                return dataclasses.replace(self, batching={**self.batching, slot: resized})
        raise TargetError(
            f"The batch size can't be set to {size}: this target makes its batches itself "
            f"({self.batch_source}).",
            hint="Leave --batch-size out, or name a function that takes batch_size and returns "
            "the loader.",
        )

    @property
    def batch_source(self) -> str:
        """What decides how batches are made, in words."""
        if self.around is not None:
            return type(self.around[0]).__name__
        if "batch_sampler" in self.batching:
            return f"batch_sampler {type(self.batching['batch_sampler']).__name__}"
        size = self.batching["batch_size"]
        return "batch_size=None" if size is None else f"batch_size={size}"

    def with_order(self, *, shuffle: bool, seed: int) -> LoaderParts:
        """The same parts in random order (seeded) or in sequence; a note where neither fits."""
        option = "--shuffle" if shuffle else "--no-shuffle"
        if isinstance(self.dataset, IterableDataset):
            return self.noted(f"{option} is left out: an iterable dataset orders itself.")
        own = self.batching.get("sampler")
        if "batch_sampler" in self.batching or isinstance(own, BatchSampler):
            return self.noted(f"{option} is left out: the target has its own batch_sampler.")
        if not isinstance(self.dataset, Sized):
            raise TargetError(
                f"{option} needs the length of {type(self.dataset).__name__}, which has none.",
                hint=f"Leave {option} out, or add __len__ to the dataset.",
            )
        sampler = order_sampler(self.dataset, shuffle=shuffle, seed=seed)
        parts = dataclasses.replace(self, batching={**self.batching, "sampler": sampler})
        if own is None or type(own) in (RandomSampler, SequentialSampler):
            return parts
        return parts.noted(f"{option} replaces the target's own {type(own).__name__}.")

    def with_share(self, rank: int, ranks: int, *, seed: int) -> LoaderParts:
        """The same parts with one rank's share, by torch's ``DistributedSampler``.

        As Lightning does it: a plain order is shared out, and a sampler of the user's own decides
        by itself what a rank gets. A ``DistributedSampler`` that names another rank, as that of a
        live loader does on all ranks but one, is replaced by this rank's. One of fewer replicas
        than ranks is not: with tensor parallelism, ranks of a group load the same.
        """
        if isinstance(self.dataset, IterableDataset):
            return self.noted(
                "An iterable dataset shares itself out to ranks, or gives all to each."
            )
        own: Any = self.batching.get("sampler")
        plain = type(own) in (RandomSampler, SequentialSampler) and isinstance(self.dataset, Sized)
        if not plain or len(own) != len(self.dataset):
            kind = type(own or self.batching.get("batch_sampler")).__name__
            if not isinstance(own, DistributedSampler) or own.num_replicas < ranks:
                return self.noted(f"The target's own {kind} decides what each rank gets.")
            if own.rank == rank:
                return self
            of_one = f"The target's {kind} is that of rank {own.rank} on other ranks, too: "
            if type(own) is not DistributedSampler:
                return self.noted(f"{of_one}they load the same share.")
            dataset, note = own.dataset, f"{of_one}each loads its own share."
            names = ("num_replicas", "shuffle", "seed", "drop_last")
            asked = {name: getattr(own, name) for name in names}
        else:
            dataset, drops = self.dataset, bool(self.batching.get("drop_last"))
            note = "Each rank loads its share of the dataset, by DistributedSampler."
            asked = {"num_replicas": ranks, "seed": seed, "drop_last": drops}
            asked["shuffle"] = isinstance(own, RandomSampler)
        sampler: Any = DistributedSampler(dataset, rank=rank, **asked)
        parts = dataclasses.replace(self, batching={**self.batching, "sampler": sampler})
        return parts.noted(note)

    def noted(self, note: str) -> LoaderParts:
        """The same parts with one more note for the user."""
        return dataclasses.replace(self, notes=(*self.notes, note))


def order_sampler(dataset: Sized, *, shuffle: bool, seed: int) -> Any:
    """A sampler over a whole map-style set: random with a seed of its own, or sequential."""
    if not shuffle:
        return SequentialSampler(dataset)
    return RandomSampler(dataset, generator=torch.Generator().manual_seed(seed))


def take_apart(loader: DataLoader[Any], outer: Any = None) -> LoaderParts:
    """Find the arguments that build a loader again.

    Raises:
        TargetError: The loader is of a class whose arguments can't be read from the loader.
    """
    extra = _extra_arguments(loader)
    own, kind = kept_iterator(loader), iterator_class(dataloader)
    iterators = (each for each in vars(loader).values() if isinstance(each, kind))
    # A copy of one that keeps another would load by the old settings.
    if extra is None and any(each is not own for each in iterators):
        raise TargetError(
            f"The loader's class {type(loader).__qualname__} can't be built again with other "
            "settings: it keeps an iterator of its own.",
            hint=OWN_LOADER_HINT,
        )
    kept = {name: getattr(loader, name) for name in _KEPT}
    # Deprecated: passing even an empty text would warn in some versions.
    if device := getattr(loader, "pin_memory_device", ""):
        kept["pin_memory_device"] = device
    return LoaderParts(
        loader_class=type(loader),
        dataset=loader.dataset,
        batching=_batching(loader),
        kept={**kept, **(extra or {})},
        multiprocessing_context=loader.multiprocessing_context,
        around=None if outer is None else (outer, loader),
        copied=loader if extra is None else None,
    )


def _batching(loader: DataLoader[Any]) -> dict[str, Any]:
    if loader.batch_size is None and loader.batch_sampler is not None:
        return {"batch_sampler": loader.batch_sampler}
    batching: dict[str, Any] = {"batch_size": loader.batch_size}
    if loader.batch_size is not None:
        batching["drop_last"] = loader.drop_last
    if not isinstance(loader.dataset, IterableDataset):
        batching["sampler"] = loader.sampler
    return batching


def _is_method_of(owner: object, value: object) -> TypeGuard[MethodType]:
    return isinstance(value, MethodType) and value.__self__ is owner


def _extra_arguments(loader: DataLoader[Any]) -> dict[str, Any] | None:
    """Arguments that a subclass adds, by attributes of their names; ``None`` where one has none."""
    cls = type(loader)
    if cls is DataLoader:
        return {}
    known = _parameters(cls)
    if known is not None and "num_workers" not in known:
        raise TargetError(
            f"The loader's class {cls.__qualname__} can't be built again with other settings: "
            "it takes no num_workers.",
            hint=OWN_LOADER_HINT,
        )
    signature = signature_of(cls)
    added = [name for name in named_parameters(signature) if name not in _DEFAULTS]
    # Where another argument comes first, the class makes its dataset of that.
    taken = () if signature is None else signature.parameters.values()
    first = next((each for each in taken if each.kind is not each.KEYWORD_ONLY), None)
    makes = first is not None and first.name != "dataset" and "VAR" not in first.kind.name
    readable = not makes and all(hasattr(loader, name) for name in added)
    kept = known is None or known.issuperset({"dataset", *_KEPT, *_batching(loader)})
    return {name: getattr(loader, name) for name in added} if readable and kept else None


def _parameters(cls: type) -> frozenset[str] | None:
    """The names that a loader's class takes; ``None`` where it takes any."""
    signature = signature_of(cls)
    return None if takes_any(signature) else frozenset(named_parameters(signature))


def is_default(key: str, value: Any) -> bool:
    """Whether a DataLoader does the same without this argument."""
    if key == "prefetch_factor" and value == 2:
        return True  # torch's own, with workers
    if key not in _DEFAULTS or value is None or value is _DEFAULTS[key]:
        return key in _DEFAULTS
    return isinstance(value, int | float) and bool(value == _DEFAULTS[key])


def inner_loaders(found: object) -> tuple[DataLoader[Any], ...]:
    """The DataLoaders that an iterable holds in its attributes, each once.

    Lists, tuples and further ``IterableDataset`` among the attributes are looked into. An iterable
    that holds a DataLoader yields batches: it is a loader and no dataset. A DataLoader itself, a
    map-style dataset and a container hold none. What accelerate prepares is a DataLoader by its
    class alone, and holds one.
    """
    if _is_prepared(found):
        held = (each for each in vars(found).values() if isinstance(each, DataLoader))
        return tuple({id(each): each for each in held}.values())
    if isinstance(found, type | DataLoader | list | tuple | Mapping):
        return ()
    if isinstance(found, Dataset):
        may_hold = isinstance(found, IterableDataset)
    else:
        may_hold = isinstance(found, Iterable) and not hasattr(found, "__getitem__")
    return tuple({id(each): each for each in _held_by(found, 0)}.values()) if may_hold else ()


def dataloader_of(loader: object) -> DataLoader[Any] | None:
    """The DataLoader that makes a loader's batches: itself, or the only one that it holds."""
    if isinstance(loader, DataLoader) and not _is_prepared(loader):
        return loader
    inner = inner_loaders(loader)
    return inner[0] if len(inner) == 1 else None


def own_config(loader: object, replaced: Mapping[str, Any]) -> Config | None:
    """The settings that a loader was built with by the user, as a canonical configuration.

    Of what is no DataLoader they are the defaults of the callable that makes it. ``batch_size``
    stays ``None``: it is the target's own by definition. ``None`` where the user left one of them
    open: a parameter without a default.
    """
    found = dataloader_of(loader)
    settings = {**({} if found is None else settings_of(found)), **replaced}
    is_number = isinstance(settings.get("num_workers"), SupportsIndex)
    is_known = is_number and inspect.Parameter.empty not in settings.values()
    return Config(**settings).canonical() if is_known else None


def core_of(loader: Any) -> Any:
    """The DataLoader that makes a loader's batches, or the loader itself where there is none."""
    found = dataloader_of(loader)
    return loader if found is None else found


def with_inner(outer: Any, old: DataLoader[Any], new: DataLoader[Any], depth: int = 0) -> Any:
    """A copy of an iterable around another DataLoader; what it holds beside that is shared.

    Raises:
        Exception: Whatever the class's own way of copying raises.
    """
    changed = copy.copy(outer)
    attributes = vars(changed)  # past __setattr__, which a class may guard
    for name, value in list(attributes.items()):
        attributes[name] = _exchanged(value, old, new, depth + 1)
    return changed


def _is_prepared(found: object) -> bool:
    """Whether a DataLoader by its class alone, which another one loads for."""
    return isinstance(found, DataLoader) and "dataset" not in vars(found)


def _held_by(holder: object, depth: int) -> Iterator[DataLoader[Any]]:
    for value in getattr(holder, "__dict__", {}).values():
        yield from _in_value(value, depth + 1)


def _in_value(value: Any, depth: int) -> Iterator[DataLoader[Any]]:
    if isinstance(value, DataLoader):
        yield value
    # Stages of a chain that hold each other
    elif depth > 8:
        return
    elif type(value) in (list, tuple):
        # Stages in a list; a longer one holds the data
        for each in value if len(value) <= 64 else ():
            yield from _in_value(each, depth + 1)
    elif isinstance(value, IterableDataset):
        yield from _held_by(value, depth)


def _exchanged(value: Any, old: DataLoader[Any], new: DataLoader[Any], depth: int) -> Any:
    """A value with one DataLoader in it replaced; the value itself where it doesn't hold that."""
    if value is old:
        return new
    if not any(each is old for each in _in_value(value, depth)):
        return value
    if type(value) in (list, tuple):
        return type(value)(_exchanged(each, old, new, depth + 1) for each in value)
    return with_inner(value, old, new, depth)


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Factory:
    """A callable of the target with its ``--arg`` texts, and the name that messages use.

    ``named`` are swept settings that it names among its parameters and the user left open, with
    their defaults (``Parameter.empty`` where there is none); it is ``open`` with ``**kwargs``.
    """

    function: Callable[..., Any]
    name: str
    arguments: Mapping[str, str]
    named: Mapping[str, Any]
    open: bool

    @classmethod
    def of(cls, function: Callable[..., Any], name: str, arguments: Mapping[str, str]) -> Factory:
        """Look at the signature of a callable."""
        signature = signature_of(function)
        named = {
            key: parameter.default
            for key, parameter in named_parameters(signature).items()
            if key in SWEPT and key not in arguments
        }
        is_open = takes_any(signature)
        return cls(function=function, name=name, arguments=arguments, named=named, open=is_open)

    @property
    def replaced(self) -> Mapping[str, Any]:
        """The defaults of its own that :meth:`first_call` puts others in the place of."""
        if "num_workers" not in self.named:
            return {}
        of_workers = ("num_workers", "prefetch_factor", "persistent_workers")
        return {key: self.named[key] for key in of_workers if key in self.named}

    def takes(self, setting: str) -> bool:
        """Whether a swept setting can be passed to it."""
        return setting in self.named or (self.open and setting not in self.arguments)

    @property
    def fixed(self) -> Mapping[str, str]:
        """Settings that can't be passed to it, by their names in ``Config``, with the reason."""
        return {
            field: f"--arg sets {key}" if key in self.arguments else f"{self.name} takes no {key}"
            for field, key in KEYWORDS.items()
            if not self.takes(key)
        }

    def first(self) -> tuple[Any, Config | None]:
        """What it makes, and the user's settings; ``None`` where only what it makes shows these.

        Asked for its own number of workers, or one, a DataLoader shows what it has with workers
        alone, as ``persistent_workers=n > 0``. Another class may start them at once: it is looked
        at, and asked for without any.
        """
        if "num_workers" not in self.named:
            return self.first_call(), None
        own = self.named["num_workers"]
        few = {} if isinstance(own, int) and own > 0 else {"num_workers": 1}
        made: Any = None
        with contextlib.suppress(TargetError):
            made = self._call(self._required | few)
        settings = None if dataloader_of(made) is None else own_config(made, self.replaced)
        if type(made) is DataLoader:
            return made, settings
        del made  # and so its workers, before others start
        return self.first_call(), settings

    def first_call(self) -> Any:
        """Call it as the user would, but without workers where it lets that be chosen.

        As the user would, where it refuses to be without.
        """
        try:
            return self._call(self._required | {key: SWEPT[key] for key in self.replaced})
        except TargetError:
            if not self.replaced.keys() - self._required:
                raise
            with contextlib.suppress(TargetError):
                return self._call(self._required)
            raise

    def loader(self, config: Config, own: Config | None = None) -> Any:
        """Call it for one configuration."""
        settings = config.dataloader_kwargs()
        if config.num_workers == 0:
            # A default of the callable's own would be illegal without workers.
            settings |= {key: SWEPT[key] for key in ("prefetch_factor", "persistent_workers")}
        settings |= {"in_order": config.in_order}
        accepted = {key: value for key, value in settings.items() if self._passes(key, value, own)}
        made = self._call(self._required | accepted)
        self._check(core_of(made), accepted)
        return made

    def _check(self, core: Any, asked: Mapping[str, Any]) -> None:
        """Refuse a loader for which something was left out: its figures would be of other settings.

        Whether it pins may hang on the accelerator, and what a batch is on the ranks.
        """
        names = ["num_workers"]
        if isinstance(core, DataLoader):
            names += ["prefetch_factor", "persistent_workers", "in_order"]
        for name in names:
            wanted = asked.get(name)
            found = getattr(core, name, wanted)
            if wanted is not None and found != wanted:
                raise TargetError(
                    f"{self.name} was asked for {name}={wanted} and returned a loader with "
                    f"{found}.",
                    hint=f"Pass {name} on to the loader.",
                )

    @property
    def _required(self) -> dict[str, Any]:
        empty = inspect.Parameter.empty
        return {key: SWEPT[key] for key, default in self.named.items() if default is empty}

    def _passes(self, key: str, value: Any, own: Config | None) -> bool:
        if key in self.named:
            return True
        # What torch does by itself need not be taken.
        is_torchs = key not in {"num_workers", "batch_size"} and is_default(key, value)
        if is_torchs or value == getattr(own, key, None):
            return False
        if self.takes(key):
            return True
        raise TargetError(
            f"{self.name} takes no {key}, so {key}={value} can't be measured with it.",
            hint=f"Add {key} to its parameters and pass it to the loader, or leave it out.",
        )

    def _call(self, settings: Mapping[str, Any]) -> Any:
        positional, keywords = bind_arguments(
            self.function, self.arguments, settings, name=self.name
        )
        try:
            return self.function(*positional, **keywords)
        except TargetError:
            raise
        except (Exception, SystemExit) as error:
            hint = "Call it in a Python prompt with the same arguments to see the error alone."
            owner = getattr(self.function, "__self__", None)
            if callable(getattr(owner, "setup", None)):  # as Lightning's, which a Trainer calls
                code = f"{self.name.rpartition('.')[0]}.setup('fit'); return {self.name}"
                hint = f"If it needs its setup first, name a function: def train_loader(): {code}"
            if isinstance(error, SystemExit):  # mostly a script's main, whose options it lacks
                hint = NOT_A_SCRIPT
            raise target_fault(f"{self.name} raised", error, hint) from error
