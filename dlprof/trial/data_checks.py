"""What a loader shows to be wrong with its data without failing."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

from dlprof.records import (
    DUPLICATED_SIGN,
    SHARED_SIGN,
    UNSHARED_SIGN,
    VARIED_SIGN,
    WHOLE_EPOCHS,
    Config,
    Target,
)
from dlprof.records.integrity import doubled
from dlprof.trial.measure import Loop, WrongDataError

LENGTH = "an epoch gave {came} batches where __len__ promises {promised}"
IN_SAMPLES = "__len__ counts samples, not batches"

_SHARE_FIELDS = frozenset({"id", "num_workers", "dataset", "__dict__"})
"""What of ``WorkerInfo`` is read in order to share samples out."""

_DUPLICATED = f"workers yield the same samples: {DUPLICATED_SIGN}"
"""The warning of a trial whose workers did ask: shares may begin alike, which long epochs show."""


class BatchChecks:
    """What the batches before the window show of a loader's data."""

    def __init__(
        self,
        target: Target,  # what is loaded
        config: Config,  # what runs
        count: Callable[[Any], int | None],  # samples in a batch
        # What is to be loaded from, before its workers are started; ``None`` for batches of unknown
        # origin.
        loader: object | None = None,
    ) -> None:
        from torch.utils.data import DataLoader

        from dlprof.targets.counting import WorkerSamples, is_resampled

        # Whether shards are drawn with replacement, so that an epoch has no samples of its own.
        self.resampled = is_resampled(getattr(loader, "dataset", None))
        shared = target.kind == "iterable" and config.num_workers > 1 and not self.resampled
        shared &= loader is None or isinstance(loader, DataLoader)  # else nobody knows its workers
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
            WrongDataError: The workers give the same samples, and none asked for its share.
        """
        if self._seen < 2:
            self.weigh(batch)
        if self._compared is None:
            return
        self._compared.look(position, batch)
        if self._compared.duplicated and not (self._asked is not None and self._asked()):
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
        duplicated = self._compared is not None and self._compared.duplicated
        signs = {_DUPLICATED: duplicated, SHARED_SIGN: overlap, UNSHARED_SIGN: unshared}
        return [sign for sign, holds in signs.items() if holds]

    def weigh(self, batch: Any) -> None:
        """Count the bytes of a batch."""
        from dlprof.targets.counting import count_bytes

        samples = self._count(batch)
        self._seen += 1
        self._bytes += count_bytes(batch)
        self._samples = (
            None if samples is None or self._samples is None else self._samples + samples
        )

    def batch_bytes(self, samples: float | None) -> float:
        """Mean bytes of a batch, which has so many samples where they can be counted."""
        if samples is None or not self._samples:
            return self._bytes / max(1, self._seen)
        return self._bytes / self._samples * samples


def watch_worker_info(loader: Any) -> Callable[[], bool]:
    """Notice whether a worker of a loader asks which one it is.

    An iterable dataset that never does, nor its ``worker_init_fn``, can't share its samples out by
    itself. To ask for the seed alone says nothing of that.

    Returns:
        Whether one did, of workers that are started from now on. Also true where it can't be known,
        as of a class that starts them by a ``worker_init_fn`` that it has kept elsewhere.
    """
    import torch.multiprocessing as mp

    # For data pipes torch asks before any ``worker_init_fn`` could notice.
    if _can_be_shared(loader.dataset):
        return lambda: True
    context = getattr(loader, "multiprocessing_context", None) or mp.get_context()
    noticed = context.RawArray("b", 2)
    loader.worker_init_fn = Noticing(loader.worker_init_fn, noticed)
    return lambda: noticed[:] != [1, 0]


@dataclasses.dataclass(frozen=True, slots=True)
class Noticing:
    """A picklable ``worker_init_fn`` by which a worker notices that it is asked for its share.

    It runs the loader's own, too; ``noticed`` is shared with the workers: whether one has run it,
    and whether one was asked.
    """

    user_init: Callable[[int], Any] | None
    noticed: Any

    def __call__(self, worker_id: int) -> None:
        """Run in the worker, before the dataset is."""
        from torch.utils.data import get_worker_info

        self.noticed[0] = 1
        found = get_worker_info()
        plain = type(found)

        def read(info: object, name: str) -> Any:
            if name in _SHARE_FIELDS:
                self.noticed[1] = 1
                object.__setattr__(info, "__class__", plain)  # costs nothing from here on
            return object.__getattribute__(info, name)

        if found is None:  # a worker of the loader's own making may ask in any other way
            self.noticed[1] = 1
        else:
            members = {"__slots__": (), "__getattribute__": read}
            object.__setattr__(found, "__class__", type(plain.__name__, (plain,), members))
        if self.user_init is not None:
            self.user_init(worker_id)


def _can_be_shared(dataset: Any) -> bool:
    """Whether it is a data pipe with a part that torch shares out, if this torch has any."""
    from torch.utils import data

    names = ("IterDataPipe", "MapDataPipe")
    kinds: tuple[Any, ...] = tuple(getattr(data, name) for name in names if hasattr(data, name))
    if not isinstance(dataset, kinds):
        return False
    from torch.utils.data.graph import traverse_dps
    from torch.utils.data.graph_settings import get_all_graph_pipes

    pipes = get_all_graph_pipes(traverse_dps(dataset))
    return any(hasattr(each, "apply_sharding") for each in pipes)


def check_length(loop: Loop, target: Target, config: Config) -> list[str]:
    """Whether an iterable's ``__len__`` lies; a map-style one that promises too much raises.

    Warns where more batches came than it promises, it promises samples in place of batches, or no
    two epochs are alike.

    Raises:
        WrongDataError: An epoch ended with fewer.
    """
    if target.kind != "iterable":
        return []
    samples = {log.all_samples for log in loop.logs} - {None}
    found = [VARIED_SIGN] if len(samples) > 1 else []
    promised = loop.promised()
    if promised is None:
        return found
    spare = config.num_workers  # each may end with a batch that is not full, or leave it out
    for log in loop.logs:
        came = len(log.yields_s)
        text = LENGTH.format(came=f"{came:,}", promised=f"{promised:,}")
        if log.whole and came < promised - spare:
            batches = config.batch_size or target.batch_size
            each = (log.all_samples or 0) / came
            if batches is None and abs(each * came - promised) <= spare * each:
                return [*found, IN_SAMPLES]
            raise WrongDataError("truncated", f"{text[0].upper()}{text[1:]}.", hint=WHOLE_EPOCHS)
        if came > promised + spare:
            return [*found, text]
    return found
