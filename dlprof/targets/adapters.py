"""What objects of other packages are loaded through, and how their users set what is swept.

A DataLoader, of whatever class, needs no adapter, nor what holds one. An adapter is for what has to
be asked for its loader first, or is set elsewhere than where a DataLoader is made.

Imports neither torch nor any of those packages: an object says by its classes where it comes from.
"""

from __future__ import annotations

import copy
import dataclasses
import functools
import inspect
import sys
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from importlib import metadata
from types import FrameType
from typing import Any, Final

from dlprof.internals import works_in_threads
from dlprof.records import LoaderCall
from dlprof.targets.faults import one_line, type_name
from dlprof.version import __version__

ENTRY_POINTS = "dlprof.loaders"
"""The group of other packages' adapters; each is named after the package whose objects it knows."""

ITERATED: Final[Mapping[str, tuple[str, str, str, str]]] = {
    "spdl.pipeline._pipeline": ("Pipeline", "PipelineIterator", "__init__", "__next__"),
    "torchdata.nodes.loader": ("Loader", "LoaderIterator", "reset", "next"),
    "ray.data.iterator": ("_IterableFromIterator", "", "__iter__", ""),
}
"""Modules of loaders that have no DataLoader in them: the classes of loaders and their iterators,
and of these the methods that begin an epoch and give a batch. Where iterators have no class of
their own, being generators, the loaders' method that begins an epoch."""

CHANGED_BY_TRAINING: Final[Mapping[str, tuple[str, str]]] = {
    "lhotse.dataset.iterable_dataset.IterableDatasetWrapper": ("set_epoch", "auto_increment_epoch"),
    "litdata.streaming.combined.CombinedStreamingDataset": ("set_epoch", "_iterate_over_all"),
    "litdata.streaming.parallel.ParallelStreamingDataset": ("set_epoch", ""),
    "monai.data.dataset.SmartCacheDataset": ("update_cache", ""),
}
"""Packages' datasets that a training changes between epochs, by which of their methods, where they
don't share that with workers that outlive an epoch, as timm's and Hugging Face's do. And the
attribute, if any, by which they are set to see to it in the workers."""

_TRAINER_SETTINGS = (
    "num_workers", "prefetch_factor", "pin_memory", "persistent_workers", "in_order",
)  # fmt: skip
_ARGUMENTS: Final[Mapping[str, str]] = {
    **{each: f"dataloader_{each}" for each in _TRAINER_SETTINGS},
    "multiprocessing_context": "dataloader_multiprocessing_context",
    "batch_size": "per_device_train_batch_size",
}
"""What Hugging Face's ``TrainingArguments`` call the arguments of DataLoader."""
_GIVES = "get_train_dataloader"
"""What its ``Trainer`` is asked for its loader by."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Adapted:
    """How dlprof takes an object of another package."""

    # Gives the loader as the object has it; ``None`` where the object is the loader.
    load: Callable[[], Any] | None = None
    # Gives a loader with the settings that it names among its parameters, as ``make(num_workers,
    # prefetch_factor=None)``; ``None`` where the DataLoader that ``load`` gives is set instead.
    make: Callable[..., Any] | None = None
    # Settings that the object's users can't set, by the names of DataLoader's arguments, each with
    # the reason in words.
    fixed: Mapping[str, str] = dataclasses.field(default_factory=dict)
    # Where they set the others; ``None`` for where the DataLoader is made.
    call: LoaderCall | None = None
    # Whether what ``load`` gives can be iterated only once, so that each epoch needs a new object
    # from the function that makes them.
    once: bool = False
    note: str = ""  # what to know of its figures, in a sentence


Adapter = Callable[[Any], "Adapted | None"]
"""Gives ``None`` for what it doesn't know. It is asked about objects that nobody loads, too."""


def adapt(found: object) -> tuple[Adapted | None, str]:
    """How to take an object by the adapter of its package; ``None`` where there is none.

    And in a sentence, which adapter knows the package at another version, and what that one lacks.
    """
    for package in (*_packages(found), _maker_of(found)):
        for adapter, whose in _adapters(package):
            try:
                adapted = adapter(found)
            except Exception as error:  # whatever a changed class answers with
                version = getattr(sys.modules.get(package), "__version__", "of an unknown version")
                return None, (
                    f"{type_name(found)} of {package} {version} isn't what the adapter of {whose} "
                    f"expects ({one_line(error)}), so it is taken as any other object."
                )
            if adapted is not None:
                return adapted, ""
    return None, ""


def call_of(loader: object) -> LoaderCall | None:
    """Where the users of a loader's class set it; ``None`` for a plain DataLoader."""
    if type(loader).__module__ in ITERATED:
        return as_it_is(type(loader).__name__)
    return call_by(adapt(loader)[0]) or _call_of_class(type(loader))


def as_it_is(kind: str) -> LoaderCall:
    """What is shown in place of a call of what has nothing to set."""
    return LoaderCall(text=f"# {kind} is measured as it is: nothing of it is set", variable="")


def call_by(adapted: Adapted | None) -> LoaderCall | None:
    """Where an adapter says that users set it, with what can't be set there."""
    if adapted is None or adapted.call is None:
        return None
    return dataclasses.replace(adapted.call, fixed={**adapted.call.fixed, **adapted.fixed})


def call_at(frame: FrameType | None, is_library: Callable[[str], bool]) -> LoaderCall | None:
    """The same of a DataLoader that is being made.

    What the user's own line calls counts: an object that an adapter knows, a class derived from
    DataLoader, or a function that takes ``num_workers``.
    """
    found: LoaderCall | None = None
    for each in _outwards(frame):
        if not is_library(each.f_code.co_filename):
            return _in_method(each, found)
        found = _call_in(each) or found
    return found


def _in_method(frame: FrameType, call: LoaderCall | None) -> LoaderCall | None:
    """The call as users of Lightning and the like make it: in a method that returns the loader."""
    name = frame.f_code.co_name
    if not name.endswith("_dataloader") or frame.f_code.co_varnames[:1] != ("self",):
        return call
    own = _self_of(frame)
    is_theirs = _is_of_lightning(own) or _makes_loader(own)
    return _returned(name, own, call or LoaderCall()) if is_theirs else call


def _returned(name: str, owner: object, call: LoaderCall) -> LoaderCall:
    text = f"def {name}(self):  # of {type(owner).__name__}\n    return {call.text}"
    return dataclasses.replace(call, text=text, variable="")


def _is_of_lightning(found: object) -> bool:
    ours = {"lightning", "pytorch_lightning"}.intersection(_packages(found))
    return bool(ours) and _is_a(found, "LightningDataModule", "LightningModule")


def _packages(found: object) -> dict[str, None]:
    """The packages of a class and of those that it is derived from, each once."""
    return dict.fromkeys(base.__module__.partition(".")[0] for base in type(found).__mro__)


def _maker_of(found: object) -> str:
    """The package whose function a plain DataLoader's workers begin with: it may have made that."""
    if type(found).__name__ != "DataLoader":
        return ""
    begins = getattr(found, "__dict__", {}).get("worker_init_fn")
    module = getattr(getattr(begins, "func", begins), "__module__", None)
    return module.partition(".")[0] if isinstance(module, str) else ""


def _makes_loader(found: object) -> bool:
    """Whether a Trainer's class is the user's own and makes the loader, whatever arguments say."""
    own = next((each for each in type(found).__mro__ if _GIVES in vars(each)), object)
    code = getattr(vars(own).get(_GIVES), "__code__", None)
    if code is None or not _is_a(found, "Trainer") or own.__module__.startswith("transformers"):
        return False
    # By what its parent makes, or in a method beside it, the arguments may count.
    makes = any(name.endswith("DataLoader") for name in code.co_names)
    return makes and not {_GIVES, _ARGUMENTS["num_workers"]} & {*code.co_names}


def ranks_served(frame: FrameType | None) -> int:
    """How many ranks get the batches of an iterator that is being made; 1 where it is one."""
    for each in _outwards(frame):
        if each.f_globals.get("__name__") == "accelerate.data_loader":
            own = _self_of(each)
            if _is_a(own, "DataLoaderDispatcher"):
                return int(own.state.num_processes)
    return 1


def _outwards(frame: FrameType | None) -> Iterator[FrameType]:
    """The frames between a DataLoader and the line of the user's that has it made."""
    for _ in range(30):
        if frame is None:
            return
        yield frame
        frame = frame.f_back


def _self_of(frame: FrameType) -> Any:
    """What a frame has as ``self``.

    Before Python 3.13 it keeps the copy of its locals that it gives: one that runs on, as a
    training's, would keep the batch alive that it has by now.
    """
    held = frame.f_locals
    own = held.get("self")
    is_copy = sys.version_info < (3, 13) and frame.f_code.co_flags & inspect.CO_OPTIMIZED
    # One that is held by nothing but the frame, this one and the call: not what locals() gave.
    if is_copy and sys.getrefcount(held) == 3:
        held.clear()
    return own


def _call_in(frame: FrameType) -> LoaderCall | None:
    code = frame.f_code
    parameters = code.co_varnames[: code.co_argcount + code.co_kwonlyargcount]
    if parameters[:1] == ("self",):
        own = _self_of(frame)
        made = _call_of_class(type(own)) if code.co_name == "__init__" else None
        return call_by(adapt(own)[0]) or made
    if "num_workers" not in parameters:
        return None
    any_other = bool(code.co_flags & inspect.CO_VARKEYWORDS)
    return _call_by(code.co_name, parameters, any_other=any_other)


def _call_of_class(cls: type) -> LoaderCall | None:
    name, origin = cls.__name__, cls.__module__.partition(".")[0]
    if origin == "torch" or not any(base.__name__ == "DataLoader" for base in cls.__mro__[1:]):
        return None
    try:
        taken = inspect.signature(cls).parameters
    except (TypeError, ValueError):
        return _call_by(name, ())
    any_other = any(each.kind is inspect.Parameter.VAR_KEYWORD for each in taken.values())
    return _call_by(name, tuple(taken), any_other=any_other)


def _call_by(name: str, parameters: tuple[str, ...], *, any_other: bool = True) -> LoaderCall:
    """The call of a function or class by its name, with the name of its first parameter.

    ``any_other``: whether it takes arguments that it doesn't name.
    """
    first = next((each for each in parameters if each not in {"args", "kwargs"}), "dataset")
    of_code = (each for each in ("collate_fn", "sampler") if each not in parameters)
    others = {each: f"{name} takes no {each}" for each in of_code}
    fixed = {} if any_other else others | _not_taken(name, parameters)
    return LoaderCall(text=f"{name}({first}, ..., {{settings}})", fixed=fixed)


def _not_taken(name: str, parameters: Collection[str]) -> dict[str, str]:
    settings = (*_TRAINER_SETTINGS, "multiprocessing_context", "worker_init_fn")
    return {each: f"{name} takes no {each}" for each in settings if each not in parameters}


@functools.cache
def _adapters(package: str) -> tuple[tuple[Adapter, str], ...]:
    """Each with whose it is. Other packages' come first: they may know more of their classes."""
    if package in {"torch", "builtins", "typing", "collections", "abc"}:
        return ()
    points = metadata.entry_points(group=ENTRY_POINTS, name=package)
    own = _OWN.get(package)
    found = [(_loaded(each), _whose(each)) for each in points]
    return (*found, *([(own, f"dlprof {__version__}")] if own is not None else []))


def _whose(point: metadata.EntryPoint) -> str:
    return point.value if point.dist is None else f"{point.dist.name} {point.dist.version}"


def _loaded(point: metadata.EntryPoint) -> Adapter:
    """An entry point's adapter; one that can't be imported says so of each object."""

    def adapter(found: Any) -> Adapted | None:
        known: Adapted | None = point.load()(found)
        return known

    return adapter


def _is_a(found: object, *names: str) -> bool:
    return any(base.__name__ in names for base in type(found).__mro__)


def with_settings(
    found: Any, settings: Mapping[str, Any], again: Callable[[Any], Any]
) -> Any | None:
    """What makes its loader by itself, with other settings; ``None`` for anything else.

    That is a ``Trainer`` of Hugging Face's or its arguments, or a data module of Lightning's, each
    of whose DataLoaders is made by ``again``. A Trainer, which no copy can be made of, is changed;
    of all else the answer is a copy.

    Raises:
        AttributeError: A setting has no place in it.
    """
    if "transformers" in _packages(found) and _is_a(found, "Trainer", "TrainingArguments"):
        return _set_arguments(found, settings)
    if _is_of_lightning(found) and _is_a(found, "LightningDataModule"):
        return _set_module(found, again)
    return None


def _set_arguments(found: Any, settings: Mapping[str, Any]) -> Any:
    trains = _is_a(found, "Trainer")
    if trains and _makes_loader(found):
        raise AttributeError(f"{type(found).__name__}.{_GIVES} makes the loader itself")
    arguments = copy.copy(found.args if trains else found)
    # What settings don't name is torch's own, as with a DataLoader that is made again.
    plain: dict[str, Any] = {"prefetch_factor": None, "persistent_workers": False, "in_order": True}
    if not settings["num_workers"]:
        plain["multiprocessing_context"] = None  # which torch refuses without workers
    for name, value in {**plain, **settings}.items():
        own = _ARGUMENTS.get(name, name)
        if hasattr(arguments, own):
            setattr(arguments, own, value)
        elif name in settings:
            raise AttributeError(f"{type(arguments).__name__} has no {own}")
    if not trains:
        return arguments
    found.args = arguments
    found._train_batch_size = arguments.train_batch_size  # noqa: SLF001 - read where loaders are made
    return found


def _set_module(found: Any, again: Callable[[Any], Any]) -> Any:
    made, own = copy.copy(found), found.train_dataloader
    plain = getattr(own, "_dlprof_plain", None) or getattr(own, "__func__", None)

    def set_each(loaders: Any) -> Any:
        if isinstance(loaders, dict):
            return {name: set_each(loader) for name, loader in loaders.items()}
        if isinstance(loaders, list | tuple):
            return [set_each(loader) for loader in loaders]
        return again(loaders)

    def train_dataloader() -> Any:
        return set_each(own() if plain is None else plain(made))

    vars(train_dataloader)["_dlprof_plain"] = plain
    train_dataloader.__module__ = own.__module__  # by which one of from_datasets is known
    made.train_dataloader = train_dataloader
    return made


def _lightning(found: Any) -> Adapted | None:
    """A data module, or a module with a loader of its own."""
    if not _is_of_lightning(found):
        return None
    give = found.train_dataloader

    def load() -> Any:
        found.prepare_data()
        found.setup("fit")
        return give()

    own = getattr(vars(found).get("train_dataloader"), "__module__", None) or ""
    if own.startswith(("lightning.", "pytorch_lightning.")):  # the user gave datasets and settings
        name = f"{type(found).__name__}.from_datasets"
        call = _call_by(name, ("train_dataset", "num_workers"), any_other=False)
        call = dataclasses.replace(call, variable="data")
        return Adapted(load=load, call=call, fixed=_not_taken(name, ("num_workers",)))
    return Adapted(load=load, call=_returned("train_dataloader", found, LoaderCall()))


def _transformers(found: Any) -> Adapted | None:
    """Its Trainer makes the loader by what its arguments say."""
    if not _is_a(found, "Trainer"):
        return None
    if _makes_loader(found):
        call = _returned(_GIVES, found, LoaderCall())
        return Adapted(load=found.get_train_dataloader, call=call)
    arguments, name = found.args, type(found.args).__name__
    fixed = {
        each: f"{name} has no {own}"
        for each, own in _ARGUMENTS.items()
        if not hasattr(arguments, own)
    }
    if "num_workers" in fixed:
        raise AttributeError(fixed["num_workers"])
    fixed["worker_init_fn"] = f"{name} has no worker_init_fn"
    trainer = type(found).__name__
    call = LoaderCall(
        text=f"{name}(..., {{settings}})",
        names=_ARGUMENTS,
        variable="args",
        fixed={"sampler": f"{trainer} takes no sampler: it has a method _get_train_sampler"},
        elsewhere={"collate_fn": f"trainer = {trainer}(..., data_collator={{value}})"},
    )
    return Adapted(load=found.get_train_dataloader, fixed=fixed, call=call)


def _accelerate(found: Any) -> Adapted | None:
    if not _is_a(found, "DataLoaderAdapter"):
        return None
    return Adapted(call=LoaderCall(text=f"accelerator.prepare({LoaderCall().text})"))


def _timm(found: Any) -> Adapted | None:
    """What its functions return, which have less to set than a DataLoader."""
    wraps = _is_a(found, "PrefetchLoader", "NaFlexPrefetchLoader")
    core = found.loader if wraps else found
    # They give workers a function of timm's; a script that makes the loader itself does not.
    seeds = getattr(core, "worker_init_fn", None) if _is_a(core, "DataLoader") else None
    if getattr(getattr(seeds, "func", None), "__module__", "") != "timm.data.loader":
        return None
    naflex = "naflex_" if type(core.dataset).__name__.startswith("NaFlex") else ""
    name = f"create_{naflex}loader"
    taken = inspect.signature(vars(sys.modules[f"timm.data.{naflex}loader"])[name]).parameters
    return Adapted(fixed=_not_taken(f"timm's {name}", taken), call=_call_by(name, ("dataset",)))


def _monai(found: Any) -> Adapted | None:
    """Its DataLoaders, which give workers a function of MONAI's unless they are given another."""
    call, begins = _call_of_class(type(found)), getattr(found, "worker_init_fn", None)
    if call is None or not (getattr(begins, "__module__", None) or "monai.").startswith("monai."):
        return None
    name = type(found).__name__
    seeds = f"{name} has a worker_init_fn of its own, by which random transforms are seeded"
    fixed = {"worker_init_fn": seeds}
    if works_in_threads(found):
        why = f"{name} starts its workers as threads, in each epoch"
        fixed |= dict.fromkeys(("persistent_workers", "multiprocessing_context"), why)
    return Adapted(call=call, fixed=fixed)


def _torch_geometric(found: Any) -> Adapted | None:
    """A loader of PyG's: each collates by itself, and most ignore a ``collate_fn`` in silence."""
    call, name = _call_of_class(type(found)), type(found).__name__
    if call is None and _is_a(found, "CachedLoader"):
        return Adapted(
            note=f"{name} keeps its batches: from its second epoch on they come from memory, and "
            "its rate is of those. Measure its loader for the first epoch."
        )
    if call is None:
        return None
    taken = inspect.signature(type(found)).parameters
    own = "makes each batch"
    if "exclude_keys" in taken:
        own = "joins the attributes of its graphs, but for exclude_keys"
    elif "transform" in taken:
        own = "samples each batch and calls transform"
    fixed = {**call.fixed, "collate_fn": f"{name} takes no collate_fn: its own {own}"}
    whole = f"{name} has torch load one batch of its own at a time"
    sizes = {
        "events_per_batch": whole,
        "sample_coverage": whole,
        "num_parts": f"{name} makes its batch_size of num_parts",
    }
    size = next(({"batch_size": sizes[each]} for each in sizes if hasattr(found, each)), {})
    return Adapted(call=dataclasses.replace(call, fixed=fixed), fixed=size)


def _webdataset(found: Any) -> Adapted | None:
    """A WebLoader, or a pipeline that goes on from one; one of samples is a dataset."""
    stages: Iterable[Any] = getattr(found, "pipeline", ())
    if not any(_is_a(each, "DataLoader", "WebLoader") for each in (found, *stages)):
        return None
    return Adapted(call=_call_by("wds.WebLoader", ("dataset",)))


def _spdl(found: Any) -> Adapted | None:
    """A pipeline, whose threads are started before its only epoch and stopped after it."""
    if not _is_a(found, "Pipeline"):
        return None
    started, batches = found.auto_stop, found.get_iterator

    class Started:
        def __iter__(self) -> Iterator[Any]:
            with started():
                yield from batches()

    Started.__name__ = type(found).__name__
    return Adapted(load=Started, once=True)


_OWN: Mapping[str, Adapter] = {
    "accelerate": _accelerate,
    "lightning": _lightning,
    "monai": _monai,
    "pytorch_lightning": _lightning,
    "spdl": _spdl,
    "timm": _timm,
    "torch_geometric": _torch_geometric,
    "transformers": _transformers,
    "webdataset": _webdataset,
}
