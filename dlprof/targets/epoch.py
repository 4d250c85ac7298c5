"""A gate that ends an epoch on demand, so that its real end can be timed on data of any length.

And what in a dataset changes with the epoch.
"""

from __future__ import annotations

import itertools
import math
import sys
from array import array
from collections.abc import Iterator, Sequence, Sized
from typing import Any

from torch.utils.data import DataLoader, Dataset, IterableDataset

from dlprof.errors import TargetError
from dlprof.internals import index_source
from dlprof.records import EPOCH_SIGN
from dlprof.targets.parts import OWN_LOADER_HINT, dataloader_of
from dlprof.targets.weighing import own_attributes


class EpochGate:
    """Passes a loader's index batches through unchanged until it is closed.

    At the limit that :meth:`reopen` sets, the loader runs out of indices: it yields the batches
    that are in flight and then ends its epoch by torch's own path. One gate serves one loader.

    Attributes:
        attached: Whether the loader asks this gate for its indices.
        reason: Why not, one sentence; empty when attached.
        batches: Index batches handed out in this epoch.
        exact: Whether each of them has to come back as a batch. False for an iterable dataset,
            which may end before.
    """

    def __init__(self) -> None:
        self.exact = False
        self.detach("no loader has been made with this gate")
        self.reopen()
        self._inner: EpochGate | None = None
        self._outer_name = ""

    @property
    def sizes(self) -> Sequence[int] | None:
        """Samples in each of this epoch's batches, in the order of their indices.

        With ``in_order=True`` the n-th batch that the loader yields has the n-th size. ``None``
        where the indices don't say: those of an iterable dataset, whose batches may hold fewer
        than were asked for; index batches without a length; and single indices with
        ``batch_size=None``, for which a dataset may give a whole batch.
        """
        known = self.exact and self.batches == len(self._sizes)
        return self._sizes if known else None

    @property
    def closed(self) -> bool:
        """Whether no more indices are handed out."""
        return self.batches >= self._limit

    def reopen(self, *, limit: float = math.inf) -> None:
        """Make ready for the next epoch; call it before ``iter(loader)``.

        After ``limit`` index batches no more are handed out: the epoch ends after those in flight.
        """
        self._limit = limit
        self.batches = 0
        self._sizes: array[int] = array("q")

    def attach(self, loader: object) -> None:
        """Put the gate between a loader and its own index source.

        Only this loader's attribute changes; the user's sampler is neither copied nor asked.
        Sets ``attached`` and ``reason``; a loader that can't be gated is left as it was.
        """
        if not isinstance(loader, DataLoader) or dataloader_of(loader) is not loader:
            name, inner = type(loader).__name__, dataloader_of(loader)
            if inner is None:
                self.detach(f"{name} is not a torch.utils.data.DataLoader")
                return
            # What the inner one is asked for is counted, and its epochs are never ended: the outer
            # one may begin the next by itself, or make no batch of so few.
            self._inner, self._outer_name = EpochGate(), name
            self._inner.attach(inner)
            self.detach(
                f"{name} passes on what a DataLoader loads, and its epochs can't be ended early"
            )
            return
        slot = "sampler" if loader.batch_sampler is None else "batch_sampler"
        own = getattr(loader, slot)
        # A class draws from indices without end, as timm's ``MultiEpochsDataLoader`` does.
        endless = hasattr(type(own), "__iter__") and not hasattr(type(own), "__len__")
        counts_itself = type(loader).__len__ is not DataLoader.__len__
        if endless and counts_itself and not isinstance(loader.dataset, IterableDataset):
            self.detach(
                f"{type(loader).__name__} counts the batches of its epochs itself, and its indices "
                "never end"
            )
            return
        gated = GatedIndices(own, self, list | tuple if loader.batch_sampler is None else Sized)
        try:
            # Past DataLoader.__setattr__, which guards against half-changed loaders of a user.
            object.__setattr__(loader, slot, gated)
        except AttributeError:
            self.detach(f"{type(loader).__name__}.{slot} can't be replaced")
            return
        if index_source(loader) is not gated:
            self.detach(f"{type(loader).__name__} takes its indices from elsewhere")
            return
        self.attached, self.reason = True, ""
        self.exact = not isinstance(loader.dataset, IterableDataset)

    def confirm(self) -> bool:
        """Check, once the first batch came, that indices went through the gate.

        A class with an iterator of its own looks attached but draws its indices from before the
        gate; then ``attached`` turns false.

        Returns:
            ``attached``.

        Raises:
            TargetError: The loader holds a DataLoader that it does not load from, so that what was
                set on that one has no effect.
        """
        if self._inner is not None and self._inner.attached and self._inner.batches == 0:
            raise TargetError(
                f"{self._outer_name} holds a DataLoader, but its batches don't come from that one.",
                hint=OWN_LOADER_HINT,
            )
        if self.attached and self.batches == 0:
            self.detach(
                "the loader's class keeps its own iterator over the indices, so an epoch can't be "
                "ended early"
            )
        return self.attached

    def handed(self, samples: int) -> None:
        """Note the samples of an index batch that is handed out."""
        self._sizes.append(samples)

    def detach(self, reason: str) -> None:
        """Say why there is no gate, in one sentence."""
        self.attached, self.reason = False, reason


class GatedIndices:
    """The user's sampler behind a gate; everything but iterating goes to the sampler itself.

    What it yields asks for as many samples as it has entries, where it is of ``kinds``. A class of
    the user's own may ask for the class of its sampler, and set attributes of it.
    """

    def __init__(self, source: Any, gate: EpochGate, kinds: Any) -> None:
        vars(self).update(_source=source, _gate=gate, _kinds=kinds)

    @property  # type: ignore[misc] # which isinstance() asks
    def __class__(self) -> Any:
        return type(self._source)

    def __iter__(self) -> Iterator[Any]:
        # The user's __iter__ runs here and not at the first index, because torch calls it before
        # it draws the base seed: the order of random draws must stay.
        return self._passed(iter(self._source))

    def _passed(self, indices: Iterator[Any]) -> Iterator[Any]:
        gate, kinds = self._gate, self._kinds
        if gate.closed:
            return
        for index in indices:
            gate.batches += 1
            if isinstance(index, kinds):
                gate.handed(len(index))
            yield index
            if gate.closed:
                return

    def __len__(self) -> int:
        return len(self._source)

    def __setattr__(self, name: str, value: object) -> None:
        setattr(self._source, name, value)

    def __reduce_ex__(self, _protocol: Any) -> tuple[Any, ...]:
        # By default pickle refuses an object whose __class__ is another. The rest is sent as the
        # object's state, so that a sampler may refer to the loader that refers to it.
        return object.__new__, (GatedIndices,), vars(self)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") or name == "_source":  # copying asks before __init__ ran
            raise AttributeError(name)
        return getattr(self._source, name)


def against_persisting(dataset: object) -> str:
    """Why workers are not to outlive an epoch unasked; empty where nothing is known against it.

    A training may change the dataset for each epoch, as the user's own code has it. That may be a
    dataset within: what any of its attributes is, or its ``datasets`` hold. Installed packages,
    such as timm, share the number of the epoch with workers that persist.
    """
    found, seen = [dataset], {id(dataset)}
    for outer in found:  # which grows
        held = own_attributes(outer)
        owns = callable(own := held.get("set_epoch"))
        kinds = (kind for kind in type(outer).__mro__ if callable(vars(kind).get("set_epoch")))
        for kind in itertools.islice([type(outer)] if owns else kinds, 1):
            module = getattr(own if owns else kind, "__module__", None) or ""
            file = getattr(sys.modules.get(module), "__file__", None) or ""
            if "-packages" not in file:
                return f"{kind.__qualname__} has set_epoch: {EPOCH_SIGN} what that changes."
        several = held.get("datasets")
        within = several if isinstance(several, list | tuple) else ()
        for each in itertools.chain(held.values(), within):
            # By its type alone, as what only stands for another may open that when it is asked.
            if issubclass(type(each), Dataset) and id(each) not in seen:
                seen.add(id(each))
                found.append(each)
    return ""
