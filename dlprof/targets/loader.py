"""A loader for one configuration, with everything else as the target has it."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Iterable
from typing import Any

from dlprof.errors import TargetError, UsageError
from dlprof.records import Config
from dlprof.targets.adapters import with_settings
from dlprof.targets.build import BuiltTarget
from dlprof.targets.epoch import EpochGate
from dlprof.targets.faults import one_line, type_name, user_traceback
from dlprof.targets.parts import LoaderParts, dataloader_of, take_apart
from dlprof.targets.workers import WorkerSetup, start_method_of

__all__ = ["EpochGate", "apply", "make_loader"]

_WHERE_MADE = "Set them where the loader is made: recommendation.dataloader_kwargs has them."


def make_loader(
    built: BuiltTarget,
    config: Config,
    *,
    gate: EpochGate | None = None,
    in_worker: Callable[[], object] | None = None,
    any_size: bool = False,
) -> Iterable[Any]:
    """Make the target's loader for a configuration.

    Args:
        built: The target, built in this process or one that it was forked from.
        config: What to set. ``batch_size=None`` keeps the target's own.
        gate: Ends an epoch on demand; see its ``attached`` and ``reason`` afterwards.
        in_worker: Called first in each worker that is not forked, as forked ones inherit what this
            process has; must pickle. Only a ``DataLoader`` has it.
        any_size: Whether an epoch without one full batch will do, as for a look at a batch.

    Returns:
        A ``DataLoader`` (of the target's own class), a copy of what the target has made around
        one, or whatever iterable a callable of the target makes.

    Raises:
        TargetError: The target can't be loaded with this configuration.
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
    is_less = isinstance(size, int) and length is not None and length < size
    # The length of an iterable dataset may be anybody's guess. Else an epoch without one full
    # batch has no rate: what it takes is time to first batch.
    if is_less and built.target.kind != "iterable" and not any_size:
        raise TargetError(
            f"The dataset is smaller than one batch: an epoch of {built.target.spec!r} has "
            f"{length} samples, batch_size is {size}.",
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
        raise TargetError(
            f"{type_name(loader)} can't be made again with other settings: {one_line(error)}",
            hint=_WHERE_MADE,
            traceback=user_traceback(error),
        ) from error
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
