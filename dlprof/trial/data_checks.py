"""What a loader shows to be wrong with its data without failing."""

from __future__ import annotations

import itertools
import mmap
from collections.abc import Callable, Iterable
from typing import Any

from dlprof.records import SHARED_SIGN, UNSHARED_SIGN, WHOLE_EPOCHS, Config, Target, doubled
from dlprof.targets.workers import WorkerSetup
from dlprof.trial.measure import Loop, WrongDataError

LENGTH = "an epoch gave {came} batches where __len__ promises {promised}"
_DEEPEST, _LONGEST = 8, 64
"""Stages of a pipeline that hold each other, and in a list; a longer one holds the data."""

_WEIGHED = 2
"""Batches before the window whose bytes are counted."""


class Seen:
    """What the batches before the window show of a loader's data.

    Args:
        target: What is loaded.
        config: What runs.
        count: Samples in a batch.
        loader: What is to be loaded from, before its workers are started; ``None`` for batches
            of unknown origin.
    """

    def __init__(
        self,
        target: Target,
        config: Config,
        count: Callable[[Any], int | None],
        loader: object | None = None,
    ) -> None:
        from dlprof.targets.counting import WorkerSamples  # noqa: PLC0415

        shared = target.kind == "iterable" and config.num_workers > 1
        self._workers = config.num_workers
        self._compared = WorkerSamples(config.num_workers, count) if shared else None
        self._asked = watch_worker_info(loader) if shared and loader is not None else None
        self._count = count
        self._seen = 0
        self._bytes = 0
        self._samples: int | None = 0

    def inspect(self, position: int, batch: Any) -> None:
        """Look at a batch, whose position in its epoch says which worker it came from.

        Raises:
            WrongDataError: The workers give the same samples.
        """
        if self._seen < _WEIGHED:
            self.weigh(batch)
        if self._compared is None:
            return
        self._compared.look(position, batch)
        if self._compared.duplicated:
            fault = doubled(self._workers)
            raise WrongDataError("duplicated", fault.message, hint=fault.hint)

    @property
    def batches(self) -> int:
        """How many batches of an epoch are compared."""
        return 0 if self._compared is None else self._compared.batches

    @property
    def warnings(self) -> list[str]:
        """What was seen that is no proof of anything."""
        overlap = self._compared is not None and self._compared.overlap
        unshared = self._asked is not None and not self._asked()
        return [*([SHARED_SIGN] if overlap else []), *([UNSHARED_SIGN] if unshared else [])]

    def weigh(self, batch: Any) -> None:
        """Count the bytes of a batch."""
        from dlprof.targets.counting import count_bytes  # noqa: PLC0415

        samples = self._count(batch)
        self._seen += 1
        self._bytes += count_bytes(batch)
        self._samples = (
            None if samples is None or self._samples is None else self._samples + samples
        )

    def batch_bytes(self, samples: float | None) -> float:
        """Mean bytes of a batch.

        Args:
            samples: In the mean batch; ``None`` where batches can't be counted.
        """
        if samples is None or not self._samples:
            return self._bytes / max(1, self._seen)
        return self._bytes / self._samples * samples


def watch_worker_info(loader: object) -> Callable[[], bool]:
    """Notice whether a worker of a loader asks which one it is.

    An iterable dataset that never does can't share its samples out by itself.

    Args:
        loader: Before its workers are started.

    Returns:
        Whether one did. Also true where it can't be known: workers that are not forked, a
        ``worker_init_fn``, which is told, and a torch without such a class.
    """
    import torch.multiprocessing as mp  # noqa: PLC0415
    from torch.utils.data._utils import worker  # noqa: PLC0415

    plain = getattr(worker, "WorkerInfo", None)
    setup = getattr(loader, "worker_init_fn", None)
    told = setup.user_init if isinstance(setup, WorkerSetup) else setup
    context = getattr(loader, "multiprocessing_context", None) or mp.get_context()
    if plain is None or told is not None or context.get_start_method() != "fork":
        return lambda: True
    asked = mmap.mmap(-1, 1)  # shared with the workers

    def read(info: object, name: str) -> Any:
        if name in {"id", "num_workers"}:
            asked[0] = 1
            object.__setattr__(info, "__class__", plain)  # costs nothing from here on
        return object.__getattribute__(info, name)

    noticed = {"__slots__": (), "__getattribute__": read}
    worker.WorkerInfo = type(plain.__name__, (plain,), noticed)  # type: ignore[assignment, misc]
    return lambda: asked[0] == 1


def is_resampled(dataset: object, depth: int = 0) -> bool:
    """Whether an iterable draws its shards with replacement, as webdataset's resampled shards do.

    Then an epoch has no samples of its own, and each worker gives as many as one alone would.
    """
    from torch.utils.data import IterableDataset  # noqa: PLC0415

    if "resampl" in type(dataset).__name__.lower():
        return True
    if depth > _DEEPEST:
        return False
    stages: Iterable[Any] = getattr(dataset, "__dict__", {}).values()
    if isinstance(dataset, list | tuple):
        stages = dataset
    held = (each for each in stages if isinstance(each, IterableDataset | list | tuple))
    return any(is_resampled(each, depth + 1) for each in itertools.islice(held, _LONGEST))


def check_length(loop: Loop, target: Target, config: Config) -> list[str]:
    """Whether an iterable's ``__len__`` lies; a map-style one that promises too much raises.

    Returns:
        A warning where more batches came than it promises.

    Raises:
        WrongDataError: An epoch ended with fewer.
    """
    promised = loop.promised() if target.kind == "iterable" else None
    if promised is None:
        return []
    spare = config.num_workers  # each may end with a batch that is not full, or leave it out
    for log in loop.logs:
        came = len(log.yields_s)
        told = LENGTH.format(came=f"{came:,}", promised=f"{promised:,}")
        if log.whole and came < promised - spare:
            raise WrongDataError("truncated", f"{told[0].upper()}{told[1:]}.", hint=WHOLE_EPOCHS)
        if came > promised + spare:
            return [told]
    return []
