"""What a live loader says of itself, asked so that nothing of the user's is run or changed.

Never imports torch: where a loader of torch's is met, torch is loaded already.
"""

from __future__ import annotations

from typing import Any

from dlprof.records import Config, WatchedLoader

_NO_CONFIG = "it has no settings of a DataLoader's"


def describe(loader: Any, *, name: str) -> WatchedLoader:
    """A record with what is known of a loader before it is iterated.

    Args:
        loader: A DataLoader, or anything that is iterated.
        name: What to call it.
    """
    config = config_of(loader)
    return WatchedLoader(
        name=name,
        kind=_type_name(loader),
        dataset=_type_name(_part(loader, "dataset")),
        sampler=_sampler(loader),
        config=config,
        unavailable={} if config else {"config": _NO_CONFIG},
    )


def config_of(loader: Any) -> Config | None:
    """A DataLoader's settings; ``None`` for what isn't one, or has others than torch's own.

    ``batch_size`` is the loader's, or that of its batch sampler; ``start_method`` is ``None``
    where it is the platform's own.
    """
    try:
        context = loader.multiprocessing_context
        size = loader.batch_size
        if size is None:
            size = getattr(loader.batch_sampler, "batch_size", None)
        config = Config(
            num_workers=int(loader.num_workers),
            prefetch_factor=loader.prefetch_factor,
            pin_memory=bool(loader.pin_memory),
            persistent_workers=bool(loader.persistent_workers),
            batch_size=size if isinstance(size, int) and size > 0 else None,
            in_order=bool(getattr(loader, "in_order", True)),
            start_method=None if context is None else context.get_start_method(),
        )
        return config.canonical()
    except Exception:  # noqa: BLE001 - a class of the user's may answer with anything
        return None


def _sampler(loader: Any) -> str:
    """The class of what orders the samples: the user's batch sampler, or else the sampler."""
    own = _part(loader, "batch_sampler")
    inner = _part(loader, "sampler")
    if own is not None and _part(loader, "batch_size") is None:
        inner = own
    return "" if inner is None else type(inner).__name__


def _part(loader: Any, name: str) -> Any:
    try:
        return getattr(loader, name, None)
    except Exception:  # noqa: BLE001 - a property of the user's may raise anything
        return None


def _type_name(found: object | None) -> str:
    """``module.QualName`` of an object's class; empty for ``None``."""
    if found is None:
        return ""
    kind = type(found)
    builtin = kind.__module__ == "builtins"
    return kind.__qualname__ if builtin else f"{kind.__module__}.{kind.__qualname__}"
