"""The one configuration that options name, where a command explains just one."""

from __future__ import annotations

import dataclasses

from dlprof.errors import UsageError
from dlprof.records import Config, Target
from dlprof.search.exclusions import cant_be_set
from dlprof.settings import SweepSettings, by_key


def single_config(settings: SweepSettings, target: Target, *, has_accelerator: bool) -> Config:
    """The target's present settings with what the options name changed.

    A target without settings of its own has PyTorch's defaults.

    Args:
        settings: What the user asked for; each swept setting at one value, or ``None``.
        target: What is loaded.
        has_accelerator: Whether there is a device that host memory can be pinned for.

    Returns:
        The configuration, canonical.

    Raises:
        UsageError: A setting is given several values.
    """
    config = target.present_settings(has_accelerator=has_accelerator) or Config()
    changes = {}
    for field in dataclasses.fields(Config):
        values = getattr(settings, field.name)
        if values is None:
            continue
        if len(values) > 1:
            flag = by_key()[field.name].flag
            raise UsageError(
                f"{flag} has {len(values)} values, and this command loads one configuration",
                hint="Give one value, or use dlprof sweep to compare several.",
            )
        changes[field.name] = values[0]
    config = dataclasses.replace(config, **changes).canonical()
    kept = target.attainable(config, has_accelerator=has_accelerator)
    for name, value in changes.items():
        if getattr(kept, name) != getattr(config, name):
            raise cant_be_set(name, [value], target.fixed[name])
    return kept
