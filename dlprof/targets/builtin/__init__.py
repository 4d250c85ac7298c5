"""The built-in workloads: real work on real files, made once under the user's cache directory."""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from dlprof.targets.builtin.files import FILES, Progress, directory
from dlprof.targets.builtin.options import DlioOptions, options_of
from dlprof.targets.grammar import TargetSpec

if TYPE_CHECKING:
    from torch.utils.data import DataLoader


def prepare(
    spec: TargetSpec, progress: Progress, *, arguments: Mapping[str, str] | None = None
) -> None:
    """Make the files that a built-in reads, unless they are there; imports no torch.

    Raises:
        UsageError: A parameter is unknown or out of range.
        FileError: The cache directory can't be written.
    """
    options = options_of(spec, arguments or {}) if spec.kind == "builtin" else None
    if isinstance(options, DlioOptions):
        options.workload().make(options.most, progress)
    elif options is not None and spec.source in FILES:
        numbers = [getattr(options, name) for name in FILES[spec.source]]
        directory(spec.source, *numbers, progress=progress)


def notes_of(spec: TargetSpec, arguments: Mapping[str, str]) -> tuple[str, ...]:
    """What is unlike what the file of a workload asks for, one sentence each."""
    options = options_of(spec, arguments)
    return options.workload().notes() if isinstance(options, DlioOptions) else ()


def make_loader(spec: TargetSpec, arguments: Mapping[str, str], *, seed: int) -> DataLoader[Any]:
    """The loader of a built-in at ``num_workers=0``; imports torch.

    Raises:
        UsageError: A parameter is unknown or out of range.
        FileError: The cache directory can't be written.
    """
    options = options_of(spec, arguments)
    module = importlib.import_module(f"dlprof.targets.builtin.{spec.source}")
    loader: DataLoader[Any] = module.make_loader(options, seed=seed)
    return loader
