"""From a TARGET to what loaders are made of. Runs in the process tree of a trial: imports torch."""

from __future__ import annotations

import dataclasses
import functools
import importlib
import inspect
import itertools
import pickle
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Sized
from collections.abc import Set as AbstractSet
from operator import index
from pathlib import Path
from types import ModuleType
from typing import Any, SupportsIndex

from torch.utils.data import BatchSampler, DataLoader, Dataset, IterableDataset

from dlprof.errors import TargetError, did_you_mean
from dlprof.records import EPOCH_SIGN, Config, LoaderCall, Target
from dlprof.targets.adapters import (
    CHANGED_BY_TRAINING,
    Adapted,
    adapt,
    as_it_is,
    call_by,
    call_of,
)
from dlprof.targets.arguments import named_parameters, signature_of
from dlprof.targets.builtin import options as builtin
from dlprof.targets.faults import (
    GUARD,
    NOT_A_SCRIPT,
    one_line,
    own_attributes,
    raised_outside,
    target_fault,
    type_name,
    user_traceback,
)
from dlprof.targets.grammar import TargetSpec, find_file
from dlprof.targets.parts import (
    KEYWORDS,
    Factory,
    LoaderParts,
    core_of,
    dataloader_of,
    inner_loaders,
    order_sampler,
    own_config,
    take_apart,
    with_inner,
)
from dlprof.targets.weighing import repeats_shards, split_by
from dlprof.units import counted

_WANTED = (
    "A target is a Dataset, a DataLoader, or a function that returns one. A function may also "
    "take num_workers and the other settings, and return the loader."
)


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class BuiltTarget:
    """A target, built once in this process; :func:`~dlprof.targets.loader.make_loader` uses it.

    Loaders are rebuilt from ``parts``, made by ``factory``, the target's own callable, or there is
    only the target's ``own``, taken as it is.
    """

    target: Target
    parts: LoaderParts | None
    factory: Factory | None
    own: Iterable[Any] | None = None
    # From which it was built: its code may have changed to another.
    directory: Path | None = None


def build_target(
    spec: TargetSpec,
    arguments: Mapping[str, str] | None = None,
    *,
    shuffle: bool | None = None,
    seed: int = 0,
    share: tuple[int, int] = (0, 1),
) -> BuiltTarget:
    """Import a target and build its dataset or loader, once.

    ``shuffle=None`` keeps the loader's own sampler, and takes a bare dataset in sequence; ``seed``
    is for the order where it is true, and for the built-in workloads. ``share`` is the rank whose
    share is loaded, and of how many, where the target has no sharding.
    """
    directory = Path.cwd()
    passed = arguments = arguments or {}
    if spec.kind == "builtin":
        found: object = builtin.make_loader(spec, arguments, seed=seed)
        passed = {}  # a built-in takes them as parameters
    elif spec.kind == "object":
        # Written a moment ago by the same user's own process, into a directory of its own.
        found = pickle.loads(Path(spec.source).read_bytes())  # of dlprof's own process
    else:
        found = import_object(spec)
    built = build_from_object(
        found, passed, shuffle=shuffle, seed=seed, text=spec.text, share=share
    )
    target = dataclasses.replace(built.target, arguments={**spec.parameters, **arguments})
    if spec.source == "dlio":
        notes = (*target.notes, *builtin.notes_of(spec, arguments))
        target = dataclasses.replace(target, notes=notes)
    elif spec.kind == "builtin":
        target = dataclasses.replace(target, own_config=None)  # nobody chose those settings
    return dataclasses.replace(built, target=target, directory=directory)


def build_from_object(
    found: object,
    arguments: Mapping[str, str] | None = None,
    *,
    shuffle: bool | None = None,
    batch_size: int = 32,
    seed: int = 0,
    text: str = "<object>",
    share: tuple[int, int] = (0, 1),
) -> BuiltTarget:
    """The same for a live object: a Dataset, a DataLoader or a callable."""
    arguments = arguments or {}
    # A live object's text is none of its code.
    factory, called = None, "" if text.startswith("<") else text.rpartition(":")[2]
    of_user: Config | None = None
    if (
        callable(found)
        and not isinstance(found, Dataset | DataLoader)
        and not _is_dataset(found)
        and not inner_loaders(found)
        and adapt(found)[0] is None  # a LightningModule can be called, too
    ):
        name = called or getattr(found, "__qualname__", type(found).__qualname__)
        factory = Factory.of(found, f"{name}()", arguments)
        found, of_user = factory.first()
        source = f"{factory.name} returned"
        called = factory.name.rpartition("<locals>.")[2]
        called = called.replace("()", "(...)") if arguments else called
    elif arguments:
        raise TargetError(
            f"--arg {next(iter(arguments))} is given, but {text!r} is not callable: it is "
            f"{type_name(found)}.",
            hint="Leave --arg out, or name a function that takes the argument.",
        )
    else:
        source = f"{text!r} is"
    adapted, misfit = adapt(whole := found)
    made = adapted is not None and adapted.make is not None
    if adapted is not None and adapted.load and factory and "num_workers" in factory.named:
        factory = dataclasses.replace(factory, function=_loading(factory.function))
        found, of_user = factory.first()
    elif adapted is not None:
        found, factory = _loader_of(adapted, found, factory)
    try:
        parts = None if made else _parts_of(found, factory, source, batch_size)
    except TargetError as error:
        hint = _one_of(found, called, whole) or error.hint
        raise TargetError(
            f"{error.message} {misfit}".strip(), hint=hint, traceback=error.traceback
        ) from error
    if parts is not None and shuffle is not None:
        parts = parts.with_order(shuffle=shuffle, seed=seed)
    if parts is not None and share[1] > 1:
        parts = parts.with_share(*share, seed=seed)
    loader: Any = found if parts is None else parts.build({"num_workers": 0})
    of_user = of_user or own_config(found, {} if factory is None else factory.replaced)
    if factory is not None and not factory.takes("num_workers"):
        factory = None  # it has made what there is
    fixed, call, notes = _settable(found, parts, factory, shuffle=shuffle)
    if adapted is not None:
        # The adapter's reasons are by the names of DataLoader's arguments, others by Config's.
        fields = {argument: field for field, argument in KEYWORDS.items()}
        fields["worker_init_fn"] = "worker_threads"
        own = {fields.get(name, name): reason for name, reason in adapted.fixed.items()}
        # Others, such as collate_fn, are none that a sweep sets: what is advised knows of them.
        swept = {field.name for field in dataclasses.fields(Config)}
        fixed = {**fixed, **{name: own[name] for name in own if name in swept}}
        call = (call_by(adapted) if parts is not None or factory is not None else None) or call
    dataset = getattr(core_of(loader), "dataset", None)
    of_adapter = "" if adapted is None else adapted.note
    known = (misfit, of_adapter, against_persisting(dataset))
    return BuiltTarget(
        target=dataclasses.replace(
            describe_loader(loader, text=text, arguments=arguments),
            own_config=of_user,
            notes=(*notes, *filter(None, known)),
            fixed=fixed,
            call=call,
            shards=split_by(dataset),
            repeats_shards=repeats_shards(dataset),
        ),
        parts=parts,
        factory=factory,
        own=loader if parts is None and factory is None else None,
    )


def _loader_of(
    adapted: Adapted, found: object, factory: Factory | None
) -> tuple[object, Factory | None]:
    """What an object of another package is loaded through, and what makes its loaders."""
    name = type(found).__name__
    if adapted.make is not None and (factory is None or "num_workers" not in factory.named):
        factory = Factory.of(adapted.make, name, {})
        return factory.first_call(), factory
    if adapted.once and factory is None:
        raise TargetError(
            f"{type_name(found)} can be iterated once, and a trial takes several epochs.",
            hint="Name a function that returns it: it is called for each epoch.",
        )
    return _asked(found, None if factory is None else factory.first_call), factory


def _asked(found: Any, make: Callable[[], Any] | None) -> Any:
    """What an object is loaded through: the loader that its code makes when it is asked, or itself.

    One that can be iterated only once is made again for each epoch by the function that made it.
    """
    adapted, _ = adapt(found)
    if adapted is None or adapted.load is None:
        return found
    try:
        first = adapted.load()
    except Exception as error:
        hint = "Ask it for one in a Python prompt to see the error alone."
        raise target_fault(f"{type_name(found)} gave no loader:", error, hint) from error
    if not adapted.once or make is None:
        return first
    ready = [first]

    def epoch(_loader: object) -> Iterator[Any]:
        return iter(ready.pop() if ready else _asked(make(), None))

    kind = type(found)
    names = {"__iter__": epoch, "__module__": kind.__module__, "__qualname__": kind.__qualname__}
    return type(kind.__name__, (), names)()


def _loading(make: Callable[..., Any]) -> Callable[..., Any]:
    """What makes an object that is asked for its loader, as a function that returns the loader."""

    @functools.wraps(make, updated=())  # a class has attributes that no function can have
    def loader(*values: Any, **options: Any) -> Any:
        again = functools.partial(make, *values, **options)
        return _asked(again(), again)

    return loader


def _settable(
    found: object, parts: LoaderParts | None, factory: Factory | None, *, shuffle: bool | None
) -> tuple[Mapping[str, str], LoaderCall, tuple[str, ...]]:
    """What can't be set, each with the reason; where the target's code sets the rest; notes."""
    if parts is not None:
        fixed = dict(parts.fixed)
        if factory is not None and factory.takes("batch_size"):
            fixed.pop("batch_size", None)
        return fixed, call_of(core_of(found)) or LoaderCall(), parts.notes
    kind = type(found).__name__
    name = kind if factory is None else factory.name
    if factory is None:
        reason = (
            f"{kind} can't be built again with other settings; a function that takes num_workers "
            "and the other settings and returns the loader can be swept"
        )
        fixed = {field.name: reason for field in dataclasses.fields(Config)}
        note = f"{kind} is measured as it is."
        call = as_it_is(kind)
    else:
        fixed, note = dict(factory.fixed), f"Every loader is made by {name}."
        if dataloader_of(found) is None:
            reason = f"{kind} is not a torch.utils.data.DataLoader"
            fixed |= dict.fromkeys(("sharing_strategy", "worker_threads"), reason)
        called = name.removesuffix("()").rpartition("<locals>.")[2]
        call = LoaderCall(text=f"{called}({{settings}})")
    if shuffle is None:
        return fixed, call, (note,)
    option = "--shuffle" if shuffle else "--no-shuffle"
    return fixed, call, (note, f"{option} is left out: {name} decides the order.")


def _parts_of(
    found: object, factory: Factory | None, source: str, batch_size: int
) -> LoaderParts | None:
    """The parts to rebuild loaders from; ``None`` where the factory must make each of them."""
    own_way = factory is not None and factory.takes("num_workers")
    names_workers = factory is not None and "num_workers" in factory.named
    held = inner_loaders(found)
    own_class = isinstance(found, DataLoader) and type(found) is not DataLoader
    if names_workers and (held or own_class or isinstance(found, IterableDataset)):
        return None  # what takes the workers of a loader returns one, whatever its class
    if held:
        return _parts_around(found, held, factory, source)
    if isinstance(found, DataLoader):
        try:
            return take_apart(found)
        except TargetError:
            return None
    if _is_dataset(found):
        return _bare_parts(found, source, batch_size)
    is_loader = isinstance(found, Iterable) and (own_way or not isinstance(found, Iterator))
    # By iterating these one gets keys and no batches, as of loaders by their names.
    of_keys = isinstance(found, str | bytes | Mapping | AbstractSet)
    if is_loader and not of_keys and not _is_collection_of_targets(found):
        return None
    what = type_name(found)
    if isinstance(found, list | tuple) and _is_collection_of_targets(found):
        what = f"a {type(found).__name__} of {len(found)}"
    if isinstance(found, Iterator):
        raise TargetError(
            f"{source} an iterator, which gives one epoch only: {what}.",
            hint="Return what every epoch can iterate, such as a class whose __iter__ yields.",
        )
    hint = _WANTED if found is not None else NOT_A_SCRIPT  # as a script's main returns nothing
    if isinstance(found, property | functools.cached_property):
        hint = "Only an instance has its value: make one in the module, and name that one's."
    raise TargetError(f"{source} neither a Dataset nor a DataLoader: {what}.", hint=hint)


def _parts_around(
    found: object, held: Sequence[DataLoader[Any]], factory: Factory | None, source: str
) -> LoaderParts | None:
    """The same of a loader that is made around DataLoaders; ``None`` also to take it as it is."""
    if len(held) == 1:
        try:
            parts = take_apart(held[0], found)
            with_inner(found, held[0], held[0])
        except Exception:  # classes of the user's own refuse in their own ways
            return None
        return parts
    if factory is not None and factory.takes("num_workers"):
        return None
    raise TargetError(
        f"{source} {type_name(found)}, which holds {len(held)} DataLoaders; "
        "the settings of one can be measured.",
        hint=_WANTED,
    )


def _bare_parts(dataset: Any, source: str, batch_size: int) -> LoaderParts:
    kind = type_name(dataset)
    if isinstance(dataset, IterableDataset):
        batching: dict[str, Any] = {"batch_size": None if _is_batched(dataset) else batch_size}
        return LoaderParts(loader_class=DataLoader, dataset=dataset, batching=batching, kept={})
    try:
        length = len(dataset)
    except (TypeError, NotImplementedError) as error:
        has = f"{kind} has no __len__"
        if hasattr(type(dataset), "__len__"):
            has = f"the __len__ of {kind} raised {one_line(error)}"
        raise TargetError(
            f"{source} a map-style dataset without a length: {has}.",
            hint="Add __len__, or derive it from torch.utils.data.IterableDataset.",
        ) from None
    if length == 0:
        raise TargetError(
            f"{source} an empty dataset: len({kind}) is 0.",
            hint="Check the path that it reads from.",
        )
    sampler = order_sampler(dataset, shuffle=False, seed=0)
    return LoaderParts(
        loader_class=DataLoader,
        dataset=dataset,
        batching={"batch_size": batch_size, "sampler": sampler},
        kept={},
    )


def _is_batched(dataset: object) -> bool:
    """Whether a webdataset pipeline makes batches, so that its loader has ``batch_size=None``."""
    stages = getattr(dataset, "pipeline", None)
    if not isinstance(stages, list):
        return False
    names = [getattr(getattr(stage, "f", stage), "__name__", "") for stage in stages]
    last = next((name for name in reversed(names) if "batched" in name), "")
    return bool(last) and "unbatched" not in last


def _is_dataset(found: object) -> bool:
    if isinstance(found, Dataset):
        return isinstance(found, IterableDataset) or hasattr(found, "__getitem__")
    if isinstance(found, type | str | bytes | Mapping) or _is_collection_of_targets(found):
        return False
    return hasattr(found, "__getitem__") and hasattr(found, "__len__")


def _is_collection_of_targets(found: object) -> bool:
    """Whether it holds targets, as in ``return train, val`` or ``return loader, classes``."""
    # A longer one holds the data.
    first = itertools.islice(found, 64) if isinstance(found, list | tuple) else ()
    return any(map(_is_target, first))


def _is_target(found: object) -> bool:
    """Whether it is a dataset or a loader, also one of those that are none of torch's.

    Hugging Face's datasets are known by their class's name, timm's loaders by what they hold.
    """
    named = any(kind.__name__.endswith("Dataset") for kind in type(found).__mro__)
    return named or isinstance(found, DataLoader) or bool(inner_loaders(found))


def _one_of(found: object, called: str, whole: object) -> str:
    """The function to write where a target holds several loaders or makes one when it is asked.

    Empty where it holds none. ``called`` is the code that gives the whole of it.
    """
    if not called or isinstance(found, Dataset | DataLoader | type):
        return ""
    said, code = "Name a function that returns one: def train_loader(): ", f"return {called}"
    if callable(getattr(whole, "train_dataloader", None)):  # as Lightning's have it
        setup = getattr(whole, "setup", None)
        stage = "'fit'" if callable(setup) and named_parameters(signature_of(setup)) else ""
        ready = f" data.setup({stage});" if callable(setup) else ""
        code = f"data = {called};{ready} return data.train_dataloader()"
        if found is whole:
            return said + code
    held: Iterable[tuple[str, object]]
    if isinstance(found, Mapping):
        held = ((f"[{key!r}]", each) for key, each in found.items())
    elif isinstance(found, list | tuple):
        held = ((f"[{place}]", each) for place, each in enumerate(found))
    else:
        held = ((f".{name}", each) for name, each in own_attributes(found).items())
    own = next((place for place, each in held if _is_target(each)), None)
    if own is None:
        return ""
    return f"{said}{code}{own}"


def describe_loader(loader: Any, *, text: str, arguments: Mapping[str, str]) -> Target:
    """Describe what a loader loads."""
    dataset = getattr(core_of(loader), "dataset", loader)
    batches = length_of(loader)
    # What is made around a DataLoader need not pass on all that the dataset holds.
    length = None if inner_loaders(loader) else _samples(loader, dataset)
    if batches == 0:
        raise TargetError(
            f"An epoch of {text!r} has no batch: {type_name(dataset)} has "
            f"{'no samples' if length is None else counted(length, 'sample')}.",
            hint="Check the path that it reads from; with drop_last=True a dataset must hold at "
            "least one full batch.",
        )
    sampler, size = getattr(loader, "batch_sampler", None), getattr(loader, "batch_size", None)
    if size is not None or sampler is None:
        sampler = getattr(loader, "sampler", None)
    by_index = hasattr(dataset, "__getitem__") and not isinstance(dataset, IterableDataset)
    return Target(
        spec=text,
        arguments=dict(arguments),
        kind="map" if by_index else "iterable",
        dataset=type_name(dataset),
        length=length,
        batches_per_epoch=batches,
        # Not a method of that name.
        batch_size=index(size) if isinstance(size, SupportsIndex) else None,
        sampler=type(sampler).__name__ if by_index and sampler is not None else None,
        collate_fn=_collate_fn(loader),
    )


def _collate_fn(loader: Any) -> str | None:
    """The name of the function that makes batches: what a partial calls, or an object's class."""
    found = getattr(core_of(loader), "collate_fn", None)
    while isinstance(found, functools.partial):
        found = found.func
    if found is None or not hasattr(found, "__qualname__"):
        return None if found is None else type_name(found)
    return f"{found.__module__}.{found.__qualname__}"


def length_of(found: object) -> int | None:
    """``len()`` where there is one."""
    try:
        return len(found) if isinstance(found, Sized) else None
    except Exception:  # a __len__ of the user's; Lightning's asks for iter() first
        return None


def _samples(loader: Any, dataset: object) -> int | None:
    """Samples per epoch: what the sampler draws, else what the dataset holds."""
    sampler = getattr(loader, "sampler", None)
    if getattr(loader, "batch_size", None) is None:
        batches = getattr(loader, "batch_sampler", None)
        batches = sampler if batches is None else batches
        sampler = batches.sampler if type(batches) is BatchSampler else None
    drawn = None if isinstance(dataset, IterableDataset) else length_of(sampler)
    if drawn is not None:
        return drawn
    return None if dataset is loader else length_of(dataset)


def against_persisting(dataset: object) -> str:
    """Why workers are not to outlive an epoch unasked; empty where nothing is known against it.

    A training may change the dataset for each epoch, as the user's own code has it. That may be a
    dataset within: what any of its attributes is, or its ``datasets`` hold. Installed packages,
    such as timm, share the number of the epoch with workers that persist, but for those that are
    known not to.
    """
    found, seen = [dataset], {id(dataset)}
    for outer in found:  # which grows
        held = own_attributes(outer)
        owns = callable(own := held.get("set_epoch"))
        kinds = (kind for kind in type(outer).__mro__ if callable(vars(kind).get("set_epoch")))
        for kind in itertools.islice([type(outer)] if owns else kinds, 1):
            module = getattr(own if owns else kind, "__module__", None) or ""
            file = getattr(sys.modules.get(module), "__file__", None) or ""
            if "-packages" not in file:
                return f"{kind.__qualname__} has set_epoch: {EPOCH_SIGN} what that changes."
        for kind in type(outer).__mro__:
            name = f"{kind.__module__}.{kind.__qualname__}"
            method, by_workers = CHANGED_BY_TRAINING.get(name, ("", ""))
            if method and held.get(by_workers) is not True:
                return f"{kind.__qualname__} has {method}: {EPOCH_SIGN} what that changes."
        several = held.get("datasets")
        within = several if isinstance(several, list | tuple) else ()
        for each in itertools.chain(held.values(), within):
            # By its type alone, as what only stands for another may open that when it is asked.
            if issubclass(type(each), Dataset) and id(each) not in seen:
                seen.add(id(each))
                found.append(each)
    return ""


def import_object(spec: TargetSpec, *, directory: Path | None = None) -> object:
    """Import the module of a target and return the attribute that it names, whatever that is."""
    directory = directory or Path.cwd()
    if spec.kind == "file":
        module = _import_file(spec, find_file(spec, directory))
    else:
        _put_first_on_path(directory)
        module = _import(spec, spec.source)
    return _attribute(spec, module)


def module_name(path: Path) -> tuple[Path, str]:
    """The directory that must be on ``sys.path`` for a file, and the module's dotted name there.

    Python's own rule: every directory upwards that holds an ``__init__.py`` is a package.
    """
    root = path.parent
    parts = [] if path.name == "__init__.py" else [path.stem]
    while (root / "__init__.py").is_file() and root != root.parent:
        parts.insert(0, root.name)
        root = root.parent
    return root, ".".join(parts)


def _import_file(spec: TargetSpec, path: Path) -> ModuleType:
    root, name = module_name(path)
    if "." in path.stem:
        raise TargetError(
            f"The file {spec.source!r} can't be imported: its name holds a dot before .py.",
            hint="Rename the file; worker processes must be able to import it by its name.",
        )
    _put_first_on_path(root)
    _refuse_other(spec, path, name, sys.modules.get(name))
    # A file written a moment ago is not in the import system's directory caches.
    importlib.invalidate_caches()
    module = _import(spec, name)
    _refuse_other(spec, path, name, module)
    return module


def _refuse_other(spec: TargetSpec, path: Path, name: str, module: ModuleType | None) -> None:
    """Refuse a file whose module name already stands for another file."""
    if module is None:
        return
    found = getattr(module, "__file__", None)
    if found is None or Path(found).resolve() != path:
        raise TargetError(
            f"The file {spec.source!r} can't be imported: the name {name!r} belongs to "
            f"another module ({found or 'built into Python'}).",
            hint="Rename the file; worker processes must be able to import it by its name.",
        )


def _put_first_on_path(directory: Path) -> None:
    # Worker processes started by spawn or forkserver get a copy of sys.path, so the module can be
    # imported, and objects of its classes unpickled, in them too.
    text = str(directory)
    if not sys.path or sys.path[0] != text:
        sys.path.insert(0, text)


def _import(spec: TargetSpec, name: str) -> ModuleType:
    try:
        return importlib.import_module(name)
    except SystemExit as error:
        raise TargetError(
            f"Importing {spec.source!r} ended the program (SystemExit).",
            hint=f"{GUARD}.",
            traceback=user_traceback(error),
        ) from error
    except Exception as error:
        missing = error.name if isinstance(error, ModuleNotFoundError) else None
        # Where the target's module is missing, and not one that it needs.
        if missing and f"{name}.".startswith(f"{missing}.") and not raised_outside(error):
            hint = "The working directory is searched first; for a file write path/to/file.py:"
            hint += f"{spec.attr}, and install what the module's package needs."
            if folder := _folder_of(missing):  # as of a project with a src layout
                hint = f"It is in {folder}/: write PYTHONPATH={folder} before dlprof, or install "
                hint += "the project: pip install -e ."
            raise TargetError(
                f"There is no module {missing!r} (target {spec.text!r}).", hint=hint
            ) from None
        hint = "Import it in a Python prompt to see the error alone."
        if missing:
            hint = f"Install {missing.partition('.')[0]!r} in this environment, or fix the import."
        elif isinstance(error, ImportError) and "no known parent package" in str(error):
            hint = "Add an __init__.py to its folder, or name it as a module of its package: "
            hint += f"package.module:{spec.attr}."
        said = f"{spec.source!r} was found, but importing it failed:"
        raise target_fault(said, error, hint) from error


def _folder_of(module: str) -> str:
    """The only folder in the working directory that holds a module; empty where none does."""
    for found in (f"*/{module}/__init__.py", f"*/{module}.py", f"*/{module}/*.py"):
        folders = {path.parts[0] for path in Path().glob(found)}
        if folders:
            return folders.pop() if len(folders) == 1 else ""
    return ""


def _attribute(spec: TargetSpec, module: ModuleType) -> object:
    found: object = module
    path = spec.source
    for name in spec.attr.split("."):
        try:
            found = getattr(found, name)
        except AttributeError:
            public = [entry for entry in dir(found) if not entry.startswith("_")]
            has = f"It has: {', '.join(public[:12]) or 'no public names'}."
            hint = did_you_mean(name, public, most=3) or has
            raise TargetError(f"{path!r} has no attribute {name!r}.", hint=hint) from None
        except Exception as error:
            hint = "The attribute is computed by code of the target; fix it there."
            raise target_fault(f"Reading {name!r} of {path!r} failed:", error, hint) from error
        path = f"{path}:{name}" if path == spec.source else f"{path}.{name}"
    return found


def place_of(spec: TargetSpec, directory: Path) -> tuple[str, int | None] | None:
    """File and line of what TARGET names, once it has been built; ``None`` for what lies in none.

    Only functions and classes have a line of their own. ``directory`` is the one from which it was
    built: the target may have changed to another.
    """
    if spec.kind in {"builtin", "object"}:
        return None
    found = import_object(spec, directory=directory)
    if inspect.isfunction(found) or inspect.isclass(found):
        try:
            return inspect.getfile(found), inspect.getsourcelines(found)[1]
        except (TypeError, OSError):
            pass  # made by code that stands in no file
    if spec.kind == "file":
        return str((directory / spec.source).resolve()), None
    file = importlib.import_module(spec.source).__file__
    return None if file is None else (file, None)
