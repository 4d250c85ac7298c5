"""A workload as loadtune takes it, over a target as dlprof takes it; ``peers.py`` fills it in."""

from __future__ import annotations

from typing import Any

import torch
from loadtune import Workload  # only where a user has installed it

TARGET = ""


def get_workload() -> Any:
    """The target's dataset, with a consumer that does nothing."""
    from dlprof.records import Config
    from dlprof.targets.build import build_target
    from dlprof.targets.grammar import parse_target
    from dlprof.targets.loader import make_loader

    loader: Any = make_loader(build_target(parse_target(TARGET)), Config())
    return Workload(
        name=TARGET,
        make_dataset=lambda: loader.dataset,
        make_model=torch.nn.Identity,
        train_step=lambda _model, _optimizer, _batch, _device: 0.0,
        make_optimizer=lambda _model: None,
        default_batch_size=loader.batch_size,
        collate_fn=loader.collate_fn,
    )
