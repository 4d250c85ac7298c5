"""What a run file says of a target, read from a loader of it."""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sized
from inspect import Parameter
from typing import Any

from torch.utils.data import DataLoader, IterableDataset

from dlprof.errors import TargetError
from dlprof.records import Config, Target
from dlprof.targets.faults import type_name
from dlprof.targets.parts import core_of, inner_loaders


def describe_loader(loader: Any, *, text: str, arguments: Mapping[str, str]) -> Target:
    """Describe what a loader loads.

    Raises:
        TargetError: An epoch has no batch at all.
    """
    dataset = getattr(core_of(loader), "dataset", loader)
    batches = length_of(loader)
    # What is made around a DataLoader need not pass on all that the dataset holds.
    length = None if inner_loaders(loader) else _samples(loader, dataset)
    if batches == 0:
        raise TargetError(
            f"An epoch of {text!r} has no batch: {type_name(dataset)} has "
            f"{'no' if length is None else length} samples.",
            hint="Check the path that it reads from; with drop_last=True a dataset must hold at "
            "least one full batch.",
        )
    sampler = getattr(loader, "batch_sampler", None)
    if getattr(loader, "batch_size", None) is not None or sampler is None:
        sampler = getattr(loader, "sampler", None)
    by_index = hasattr(dataset, "__getitem__") and not isinstance(dataset, IterableDataset)
    return Target(
        spec=text,
        arguments=dict(arguments),
        kind="map" if by_index else "iterable",
        dataset=type_name(dataset),
        length=length,
        batches_per_epoch=batches,
        batch_size=getattr(loader, "batch_size", None),
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


def own_config(loader: DataLoader[Any], replaced: Mapping[str, Any]) -> Config | None:
    """The settings that a DataLoader was built with by the user, as a canonical configuration.

    ``batch_size`` stays ``None``: it is the target's own by definition.

    Returns:
        ``None`` where the user left one of them open: a parameter without a default.
    """
    context = loader.multiprocessing_context
    settings = {
        "num_workers": loader.num_workers,
        "prefetch_factor": loader.prefetch_factor,
        "persistent_workers": loader.persistent_workers,
        **replaced,
    }
    if not isinstance(settings["num_workers"], int) or Parameter.empty in settings.values():
        return None
    return Config(
        **settings,
        pin_memory=bool(loader.pin_memory),
        in_order=getattr(loader, "in_order", True),
        start_method=None if context is None else context.get_start_method(),
    ).canonical()


def length_of(found: object) -> int | None:
    """``len()`` where there is one."""
    try:
        return len(found) if isinstance(found, Sized) else None
    except Exception:  # noqa: BLE001 - a __len__ of the user's; Lightning's asks for iter() first
        return None


def _samples(loader: Any, dataset: object) -> int | None:
    """Samples per epoch: what the sampler draws, else what the dataset holds."""
    batched = getattr(loader, "batch_size", None) is not None
    if batched and not isinstance(dataset, IterableDataset):
        drawn = length_of(getattr(loader, "sampler", None))
        if drawn is not None:
            return drawn
    return None if dataset is loader else length_of(dataset)
