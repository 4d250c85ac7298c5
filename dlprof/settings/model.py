"""What a sweep is told to do."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class SweepSettings:
    """A sweep's options as resolved.

    Attributes:
        target: TARGET as the user wrote it.
        arguments: Passed to the target's callable, as texts.
        num_workers: Worker counts to try; ``None`` chooses them by the machine's cores.
        prefetch_factor: Values to try; ``None`` chooses.
        pin_memory: Values to try; ``None`` tries both where there is an accelerator.
        persistent_workers: Values to try; ``None`` chooses.
        batch_size: Values to try; ``None`` keeps the target's own.
        in_order: Values to try; ``None`` keeps the target's own.
        start_method: Values to try; ``None`` keeps the target's or the platform's own.
        sharing_strategy: Values to try; ``None`` keeps torch's default.
        worker_threads: Compute threads inside each worker; ``None`` leaves torch's 1 in place.
        shuffle: Whether to shuffle; ``None`` keeps the target's own, and doesn't shuffle a bare
            dataset.
        step_s: Length of the consumer's step, pretended; ``None`` for no step.
        step_callable: Function that is called with each batch as the step; excludes ``step_s``.
        device: Where batches are copied to: ``auto``, ``cpu``, or a device by torch's name.
        copy_ahead: Whether a batch is copied to the device while the one before is worked on.
        step_on: Where a pretended step passes: on the ``host``, which sleeps, or the ``device``.
        budget_s: Wall time of the whole sweep.
        trial_s: Measured time of one trial; ``None`` chooses it by the budget.
        repeats: How often each configuration is measured; ``None`` for as often as the budget
            allows, 2 to 8 times.
        search: ``auto``, ``grid`` or ``model``.
        seed: Makes the order of trials, shuffling and the target's random numbers repeatable.
        timeout_s: Longest wall time of one trial, after which it is ended.
        max_workers: Most workers to try; ``None`` for no limit of the user's.
        max_ram_bytes: Most memory that the loaders of all ranks may take; ``None`` likewise.
        max_shm_bytes: Most shared memory that they may take; ``None`` likewise.
        ranks: Training processes that will share the machine.
        cold_cache: Whether the target's files are dropped from the page cache before each trial.
    """

    target: str = "images"
    arguments: Mapping[str, str] = dataclasses.field(default_factory=dict)
    num_workers: tuple[int, ...] | None = None
    prefetch_factor: tuple[int, ...] | None = None
    pin_memory: tuple[bool, ...] | None = None
    persistent_workers: tuple[bool, ...] | None = None
    batch_size: tuple[int, ...] | None = None
    in_order: tuple[bool, ...] | None = None
    start_method: tuple[str, ...] | None = None
    sharing_strategy: tuple[str, ...] | None = None
    worker_threads: tuple[int, ...] | None = None
    shuffle: bool | None = None
    step_s: float | None = None
    step_callable: str | None = None
    device: str = "auto"
    copy_ahead: bool = False
    step_on: str = "host"
    budget_s: float = 45.0
    trial_s: float | None = None
    repeats: int | None = None
    search: str = "auto"
    seed: int = 0
    timeout_s: float = 120.0
    max_workers: int | None = None
    max_ram_bytes: int | None = None
    max_shm_bytes: int | None = None
    ranks: int = 1
    cold_cache: bool = False
