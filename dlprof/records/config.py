"""One setting of the DataLoader arguments that are swept, and figures with their intervals."""

from __future__ import annotations

import dataclasses
import math
import re
from collections.abc import Callable
from typing import Any

from dlprof.records.record import record

BY_COPY = ("spawn", "forkserver")  # by which each worker gets a copy of the dataset, pickled

START_METHODS = ("fork", *BY_COPY)  # how multiprocessing starts workers

_KEYED = re.compile(
    r"w([0-9]{1,9})(?:-p([0-9]{1,9}))?(-pin)?(-persistent)?(?:-b([0-9]{1,9}))?(-unordered)?"
    r"(?:-(fork|spawn|forkserver))?(?:-(file_descriptor|file_system))?(?:-t([0-9]{1,9}))?"
)


def pins_for(accelerator: str | None) -> bool:
    """Whether torch pins memory for its accelerator, by its name: not without one, nor for MPS."""
    return accelerator not in {None, "mps"}


@record(frozen=True, slots=True, kw_only=True)
class Estimate:
    """A figure with its 95% interval."""

    value: float  # the best single figure, in the unit of the field that holds it
    # Lower end; equal to ``high`` only for an exact figure. ``None`` when the measurement was too
    # short to say anything about its own spread.
    low: float | None = None
    high: float | None = None  # upper end; ``None`` as for ``low``

    @property
    def ends(self) -> tuple[float, float]:
        """The ends of its interval; the figure itself for one that isn't known."""
        low, high = self.low, self.high
        return self.value if low is None else low, self.value if high is None else high

    def through(self, rising: Callable[[float], float]) -> Estimate:
        """What a function that rises makes of it, and of its interval."""
        low, high = (None if end is None else rising(end) for end in (self.low, self.high))
        return Estimate(value=rising(self.value), low=low, high=high)

    def times(self, factor: float) -> Estimate:
        """The figure and its interval in another unit."""
        return self.through(lambda each: each * factor)

    @property
    def is_wide(self) -> bool:
        """Whether the interval, where it is known, is too wide for the figure to say much."""
        if self.low is None or self.high is None:
            return False
        # High over low from which an interval leaves too little of its figure to print it.
        return self.high > 2.0 * max(self.low, 0.0)

    @property
    def log_sd(self) -> float | None:
        """Standard deviation of the figure's logarithm, as its interval has it; ``None`` without.

        Half the logarithm of high over low, in normal quantiles. An end that lies beyond a quarter
        or four times the figure, as 0 and infinity do, counts like that, or like the other end if
        that is further: such ends come from subtracting, or dividing by, what may be 0.
        """
        if self.low is None or self.high is None or not self.value > 0:
            return None
        middle = math.log(self.value)
        down = middle - math.log(self.low) if self.low > 0 else math.inf
        up = math.log(self.high) - middle if self.high > 0 else math.inf
        near, far = sorted((max(0.0, down), max(0.0, up)))
        near = min(near, 1500.0)  # no logarithms are further apart
        return (near + min(far, max(near, math.log(4)))) / (2 * 1.96)

    @property
    def inverse(self) -> Estimate:
        """Of B over A, where this is of A over B."""
        value, high, low = (
            None if end is None else 1 / end if end > 0 else math.inf
            for end in (self.value, self.low, self.high)
        )
        return Estimate(value=value or 0.0, low=low, high=high)


@record(frozen=True, slots=True, kw_only=True)
class Config:
    """One setting of every DataLoader argument that a sweep varies, under torch's own names."""

    num_workers: int = 0  # worker processes; 0 loads in the main process
    # Batches sent ahead per worker; ``None`` only at ``num_workers=0``.
    prefetch_factor: int | None = None
    # Whether a thread of the main process copies batches to page-locked memory.
    pin_memory: bool = False
    persistent_workers: bool = False  # whether workers outlive an epoch
    # Samples per batch; ``None`` keeps the target's own (a batch sampler, ``batch_size=None``, or
    # the size that its DataLoader was built with).
    batch_size: int | None = None
    in_order: bool = True  # whether batches are yielded in the sampler's order
    # ``fork``, ``spawn`` or ``forkserver``; ``None`` keeps the target's or the platform's own.
    start_method: str | None = None
    # ``file_descriptor`` or ``file_system``; ``None`` keeps torch's default.
    sharing_strategy: str | None = None
    # Compute threads inside each worker; ``None`` leaves torch's 1 in place.
    worker_threads: int | None = None

    @property
    def batches_in_flight(self) -> int:
        """Batches that can be loading or queued at once: ``num_workers * prefetch_factor``."""
        return self.num_workers * (self.prefetch_factor or 0)

    @property
    def queued_batches(self) -> int:
        """Batches that lie in shared memory when the queues are full; 0 without workers.

        Those in flight, and the one that the main process holds.
        """
        return self.batches_in_flight + 1 if self.num_workers else 0

    def queued_bytes(self, batch_bytes: float | None) -> float | None:
        """What full queues hold of batches of a size; ``None`` where that isn't known."""
        return None if batch_bytes is None else self.queued_batches * batch_bytes

    @property
    def warm_up_batches(self) -> int:
        """Yields to discard after an epoch begins: ``W*P`` primed at once, and one round more."""
        return self.batches_in_flight + self.num_workers

    def open_files(self, tensors: float, *, batches: int | None = None) -> int:
        """Descriptors that the loader takes in the main process.

        By ``file_descriptor``, each tensor of a batch that the main process holds takes one; by
        name, none does. ``batches`` of ``None`` are full queues, which is the most.
        """
        if not self.num_workers:
            return 0
        held = self.queued_batches if batches is None else batches
        # Main has two for the queue of results. Each worker has four: both ends of its index
        # queue, and two pipes that report its end. Counted with torch 2.13.
        return 2 + 4 * self.num_workers + round(held * tensors)

    def asks_as_much_as(self, other: Config) -> bool:
        """Whether it needs at least the workers, and the batches in flight, of one with workers."""
        more = self.num_workers >= other.num_workers > 0
        return self == other or (more and self.batches_in_flight >= other.batches_in_flight)

    @property
    def key(self) -> str:
        """A short text that identifies a configuration, stable between runs and versions."""
        parts = (
            f"w{self.num_workers}",
            "" if self.prefetch_factor is None else f"p{self.prefetch_factor}",
            "pin" if self.pin_memory else "",
            "persistent" if self.persistent_workers else "",
            "" if self.batch_size is None else f"b{self.batch_size}",
            "" if self.in_order else "unordered",
            self.start_method or "",
            self.sharing_strategy or "",
            "" if self.worker_threads is None else f"t{self.worker_threads}",
        )
        return "-".join(filter(None, parts))

    @classmethod
    def text_of(cls, key: str) -> str:
        """``text`` of the configuration that a key identifies; the key itself of one that doesn't.

        >>> Config.text_of("w4-p4-pin"), Config.text_of("other")
        ('num_workers=4, prefetch_factor=4, pin_memory=True', 'other')
        """
        if (found := _KEYED.fullmatch(key)) is None:
            return key
        counts = (None if each is None else int(each) for each in found.group(1, 2, 5, 9))
        workers, depth, size, threads = counts
        return cls(
            num_workers=workers or 0,
            prefetch_factor=depth,
            pin_memory=found[3] is not None,
            persistent_workers=found[4] is not None,
            batch_size=size,
            in_order=found[6] is None,
            start_method=found[7],
            sharing_strategy=found[8],
            worker_threads=threads,
        ).text

    @property
    def cost_key(self) -> tuple[object, ...]:
        """Sorts configurations by what they cost: workers, queued batches, then the rest."""
        return (
            self.num_workers,
            self.prefetch_factor or 0,
            self.pin_memory,
            self.persistent_workers,
            self.batch_size or 0,
            not self.in_order,
            self.start_method or "",
            self.sharing_strategy or "",
            self.worker_threads or 0,
        )

    @property
    def text(self) -> str:
        """The configuration for people, under torch's names, what is at its default left out.

        >>> Config(num_workers=4, prefetch_factor=4, pin_memory=True).text
        'num_workers=4, prefetch_factor=4, pin_memory=True'
        """
        return self.text_naming()

    def text_naming(self, *always: str) -> str:
        """As ``text``, some settings named also at their defaults, where workers give them sense.

        >>> Config(num_workers=4).text_naming("prefetch_factor")
        'num_workers=4, prefetch_factor=2'
        """
        plain = Config(num_workers=self.num_workers).canonical()
        depth = self.prefetch_factor or plain.prefetch_factor  # as torch takes None
        parts = [f"num_workers={self.num_workers}"]
        for field in dataclasses.fields(self)[1:]:
            value = depth if field.name == "prefetch_factor" else getattr(self, field.name)
            named = field.name in always and self.num_workers > 0
            if named or value != getattr(plain, field.name):
                parts.append(f"{field.name}={value}")
        return ", ".join(parts)

    def differing(self, other: Config) -> list[str]:
        """The settings in which another one is not the same."""
        names = [field.name for field in dataclasses.fields(self)]
        return [name for name in names if getattr(self, name) != getattr(other, name)]

    @property
    def turnover_group(self) -> Config:
        """What configurations share whose epochs end alike: how the queues are kept matters not."""
        return dataclasses.replace(self, prefetch_factor=None, pin_memory=False, in_order=True)

    def canonical(self) -> Config:
        """The same configuration with every argument that can't matter here at its default.

        At ``num_workers=0`` torch refuses ``prefetch_factor``, ``persistent_workers`` and
        ``multiprocessing_context`` and ignores ``in_order``; sharing and worker threads belong to
        workers. With workers, a ``prefetch_factor`` of ``None`` means torch's default of 2.
        """
        if self.num_workers == 0:
            return Config(pin_memory=self.pin_memory, batch_size=self.batch_size)
        return dataclasses.replace(self, prefetch_factor=self.prefetch_factor or 2)

    def dataloader_kwargs(self) -> dict[str, Any]:
        """The arguments to pass to ``torch.utils.data.DataLoader`` for this configuration.

        Only arguments that the configuration decides; ``sharing_strategy`` and ``worker_threads``
        are no DataLoader arguments and are left to the caller.
        """
        kwargs: dict[str, Any] = {"num_workers": self.num_workers}
        if self.num_workers > 0:
            kwargs["prefetch_factor"] = self.prefetch_factor or 2
            kwargs["persistent_workers"] = self.persistent_workers
            if self.start_method is not None:
                kwargs["multiprocessing_context"] = self.start_method
            if not self.in_order:
                kwargs["in_order"] = False
        kwargs["pin_memory"] = self.pin_memory
        if self.batch_size is not None:
            kwargs["batch_size"] = self.batch_size
        return kwargs
