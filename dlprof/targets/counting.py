"""Samples and bytes of a batch of any structure. Duck-typed: imports no torch, needs no numpy."""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

from dlprof.internals import reports_death
from dlprof.targets.faults import own_attributes

_MOST_CHANNELS = 4  # that two images of one sample have in common
_TEXTS = (str, bytes, bytearray)
_STORED: Mapping[str, tuple[str, ...]] = {
    "torch.sparse_coo": ("_indices", "_values"),
    "torch.sparse_csr": ("crow_indices", "col_indices", "values"),
    "torch.sparse_bsr": ("crow_indices", "col_indices", "values"),
    "torch.sparse_csc": ("ccol_indices", "row_indices", "values"),
    "torch.sparse_bsc": ("ccol_indices", "row_indices", "values"),
}
"""By the layout of a sparse tensor, whose own size is none or that of a dense one, the methods that
give its parts."""


_OWN_COUNTS = ("num_graphs", "num_events", "batch_size")
"""What a batch of graphs says it has, as PyG writes them: several, events of one that changes, or
one around so many nodes."""


_Seen = dict[int, tuple[object, Any]]
"""What was looked at of a batch, which may contain itself, by ``id``: kept, so that no other gets
that, with what was found there."""

Digest = tuple[int, int]
"""Of a sample's content: all of it, and without single numbers; see :func:`sample_digests`."""


@dataclasses.dataclass(frozen=True, slots=True)
class _Values:
    """The values of a tensor, as a number that is the same for the same ones."""

    digest: int


@dataclasses.dataclass(frozen=True, slots=True)
class _Place:
    """Where in a batch its number of samples is read, the same in all batches of a loader.

    Keys, indices and (for dataclasses) names of attributes lead to what ``read`` reads it from.
    """

    path: tuple[tuple[bool, Any], ...]
    read: Callable[[Any], int | None]

    def count(self, batch: Any) -> int | None:
        """The samples of a batch; raises whatever a batch of another structure does."""
        for by_key, key in self.path:
            batch = batch[key] if by_key else getattr(batch, key)
        return self.read(batch)

    def below(self, *step: Any) -> _Place:
        """The same place, seen from the structure that holds it one step of the path up."""
        return _Place((step, *self.path), self.read)


class SampleCounter:
    """Counts the samples of one loader's batches, by shape or length alone.

    Where to read the number is found in the first batch, once: what it costs is a step or two a
    batch, and a last batch of one sample is not taken for something else. Where no batch size is
    known, the first few are compared: what stays the same is not what two others count alike, nor
    what a list of growing length does.

    The loader's own batch size, where it is known, is preferred wherever some part of the batch has
    that length, because a list of images and a list of collated tensors look alike.
    """

    def __init__(self, batch_size: int | None = None) -> None:
        # Samples in each batch that came before the number was found elsewhere, all of one size;
        # ``None`` if it wasn't.
        self.earlier: int | None = None
        self._batch_size = batch_size
        self._place: _Place | None = None
        self._first: list[dict[_Place, int]] = []  # lengths of batches that differ
        # Batches whose lengths are compared, some of them the same one again
        self._looks = 32 if batch_size is None else 0

    @property
    def wording(self) -> str:
        """The length by which batches are counted, in words; empty where there is none."""
        if self._place is None or self._place.read in {_one, _of_image}:
            return ""
        where = (f"[{key!r}]" if by_key else f".{key}" for by_key, key in self._place.path)
        length = "" if self._place.read is _stated else "the length of "
        return f", by {length}batch{''.join(where)}"

    def __call__(self, batch: object) -> int | None:
        """The samples in a batch, as far as its structure says.

        Returns:
            The leading dimension of the first tensor, or the length of the first list of samples;
            1 for a tuple or a dictionary with a single number, text or scalar tensor in it, and for
            a tensor of one dimension, where the loader doesn't batch; for an object of the user's
            own that shows no length its ``num_graphs`` or ``batch_size``, or else the loader's;
            ``None`` where there is neither (a single number, text or scalar tensor).

        Raises:
            RuntimeError: torch says here that a worker died, and says it once.
        """
        if self._looks:
            self._looks -= 1
            self._compare(batch)
        if self._place is not None:
            try:
                return self._place.count(batch)
            except Exception as error:  # a batch of another structure than the first
                if reports_death(error):
                    raise
        with _of_the_users():
            self._place = _locate(batch, self._batch_size)
            return None if self._place is None else self._place.count(batch)
        return None

    def _compare(self, batch: object) -> None:
        """Look elsewhere for the number if it stays the same where it is, and others change."""
        found: dict[_Place, int] = {}
        with _of_the_users():
            found = dict(_lengths(batch, 0))
        if found in self._first:  # the same batch is counted more than once
            return
        self._first.append(found)
        alike: dict[tuple[int, ...], list[_Place]] = {}
        for place in self._first[0]:
            if all(place in sizes for sizes in self._first):
                alike.setdefault(tuple(sizes[place] for sizes in self._first), []).append(place)
        here = self._place
        if here is None:
            return
        # A list has as many fields in every batch: one of changing length has an entry per sample.
        around = _Place(here.path[:-1], len) if here.path else None
        read = dataclasses.replace(here, read=_leading if here.read is _of_image else here.read)
        if not any(len({*sizes}) == 1 and read in places for sizes, places in alike.items()):
            return
        for sizes, places in alike.items():
            if len({*sizes}) == 1:
                continue
            if around in places or (len(places) > 1 and read == here):
                self._place = around if around in places else places[0]
                self.earlier = sizes[0]
                return


@contextlib.contextmanager
def _of_the_users() -> Iterator[None]:
    """Leave what is begun where a class of the user's own won't be looked at.

    Raises:
        RuntimeError: torch says here that a worker died, which is no fault of that class.
    """
    try:
        yield
    except Exception as error:
        if reports_death(error):
            raise


class WorkerSamples:
    """The samples that each worker of an iterable dataset gave first, compared with each other.

    Workers that draw shards at random may begin with the same one. So all of them have to agree
    for two rounds, and in all epochs that are looked at; or each with some other, in two epochs.

    Batches come in the order of their indices; ``count`` says how many samples are in one.
    """

    def __init__(self, workers: int, count: Callable[[Any], int | None]) -> None:
        self.duplicated = False  # whether they gave the same, as far as they were looked at
        self.batches = 4 * workers  # so many of an epoch are compared
        self.over = False  # whether these have been, or no more are to be
        self._workers = workers
        self._count = count
        self._overlapped = False  # in an earlier epoch
        self._streams: list[list[Digest]] = [[] for _ in range(workers)]
        self._agreed: set[tuple[int, int]] | None = None  # in this epoch; None says nothing
        self._before: set[tuple[int, int]] | None = None  # in all epochs before it

    def look(self, position: int, batch: Any) -> None:
        """Take note of a batch, whose position in its epoch says which worker it is from.

        Raises:
            RuntimeError: torch says here that a worker died, and says it once.
        """
        self.over = position + 1 >= self.batches
        if position >= self.batches:
            return
        if position == 0:
            self._overlapped = self.overlap
            self._streams = [[] for _ in range(self._workers)]
            if self._agreed is not None:
                before = self._agreed if self._before is None else self._before
                self._before, self._agreed = self._agreed & before, None
        turn, worker = divmod(position, self._workers)
        try:
            self._streams[worker] += sample_digests(batch, self._count(batch) or 1)
        except Exception as error:  # arrays of objects, or of a class that is like none
            if reports_death(error):
                raise
            self.batches, self.over = 0, True
        # In later rounds torch goes past workers that had nothing in the first.
        last = max((n for n, some in enumerate(self._streams) if some), default=0) if turn else 0
        if worker == self._workers - 1 or 0 < worker == last:
            self._agreed = agreeing(self._streams)
            if turn:
                # Those that agree, now and in the epochs before.
                pairs, workers = self._agreed or set(), sum(map(bool, self._streams))
                if self._before is not None:
                    pairs = pairs & self._before
                everyone = len(pairs) == workers * (workers - 1) // 2
                alike = bool(pairs) and len(set(itertools.chain(*pairs))) == workers
                self.duplicated = alike and (everyone or self._before is not None)

    @property
    def overlap(self) -> bool:
        """Whether in any epoch some samples came from several workers, and none twice from one."""
        sets = [{whole for whole, _ in stream} for stream in self._streams]
        once = not any(map(_repeats, self._streams))
        shared = once and sum(map(len, sets)) > len(set(itertools.chain(*sets)))
        return self._overlapped or shared


def agreeing(streams: Sequence[Sequence[Digest]]) -> set[tuple[int, int]] | None:
    """Which workers gave the same samples, in pairs, by the digests of each worker's samples.

    Returns:
        ``None`` where it can't be said: with too few samples, and where a worker repeats itself.
        Then samples are drawn with replacement or hardly differ, and equal ones say nothing.
    """
    sets = [{whole for whole, _ in stream} for stream in streams]  # some workers may idle
    # Fewer samples have to differ from each other before equal ones say anything.
    if min(len(each) or 3 for each in sets) < 3 or any(map(_repeats, streams)):
        return None
    # Share of a worker's samples that another gave too, from which they are duplicates
    return {
        (one, other)
        for one, other in itertools.combinations([n for n, each in enumerate(sets) if each], 2)
        if len(sets[one] & sets[other]) >= 0.9 * min(len(sets[one]), len(sets[other]))
    }


def _repeats(stream: Sequence[Digest]) -> bool:
    """Whether a worker gave the same twice, single numbers such as an index aside."""
    return len({bulk for _, bulk in stream}) < len(stream)


def is_resampled(dataset: object, depth: int = 0) -> bool:
    """Whether an iterable draws its shards with replacement, as webdataset's resampled shards do.

    Then an epoch has no samples of its own, and each worker gives as many as one alone would.
    """
    for kind in type(dataset).__mro__:
        if "resampl" in kind.__name__.lower() and kind.__module__.partition(".")[0] == "webdataset":
            return True
    if depth > 8:
        return False
    stages: Any = getattr(dataset, "__dict__", {}).values()
    if type(dataset) in (list, tuple):  # no class of the user's, whose code would run
        stages = dataset
    held = (  # of a list the first: a longer one holds the data
        each
        for each in stages
        if type(each) in (list, tuple)
        or any(kind.__name__ == "IterableDataset" for kind in type(each).__mro__)
    )
    return any(is_resampled(each, depth + 1) for each in itertools.islice(held, 64))


def sample_digests(batch: object, samples: int) -> list[Digest]:
    """Two numbers for each sample of a batch, the same for the same content.

    Of a tensor's row some 1,000 values count, taken evenly. What of a batch has no entry for each
    sample counts as part of all of them.

    Returns:
        For each sample, of all of it, and of what is more in it than single numbers, where it has
        that: a label or an index that counts along says nothing of an image that stays the same.
    """
    if samples == 1:
        contents = [_content(batch, {})]
        rest: tuple[object, ...] = ()
    else:
        parts = list(_columns(batch, samples, {}))
        columns = [part for part, by_sample in parts if by_sample]
        contents = [tuple(_content(each[row], {}) for each in columns) for row in range(samples)]
        rest = tuple(_content(part, {}) for part, by_sample in parts if not by_sample)
    return [
        (hash((content, rest)), hash(_bulk(content) or (content, rest))) for content in contents
    ]


def count_bytes(batch: object) -> int:
    """Bytes of data in a batch.

    Tensors and arrays by ``nbytes``, text and bytes by length, Pillow's images by their pixels.
    """
    return sum(map(_bytes_of, _leaves(batch, 0, {})))


def count_tensors(batch: object) -> int:
    """Tensors and arrays in a batch: each costs the receiving process a descriptor or a file."""
    return len(_arrays(batch))


def _columns(batch: object, samples: int, seen: _Seen) -> Iterator[tuple[Any, bool]]:
    """The parts of a batch, each with whether it holds one entry for each sample."""
    if _is_array(batch):
        yield batch, _leading(batch) == samples
        return
    if isinstance(batch, list | tuple) and len(batch) == samples and not _fields_of(batch, samples):
        yield batch, True
        return
    parts = [] if isinstance(batch, str | bytes) else list(_parts(batch))
    for part in parts if _is_new(batch, seen) else ():
        yield from _columns(part, samples, seen)
    if not parts:
        yield batch, False


def _fields_of(batch: Sequence[object], samples: int) -> bool:
    """Whether a list is one of collated fields, of which there are as many as samples."""
    return all(_is_array(entry) and _leading(entry) == samples for entry in batch)


def _content(found: Any, seen: _Seen) -> object:
    """Something to compare the content of one sample by."""
    if _is_array(found):
        flat = found.reshape(-1)
        # Values of a tensor's row by which samples are distinguished
        values = flat[:: max(1, len(flat) // 1024)].tolist()
        known = [None if value != value else value for value in values]  # noqa: PLR0124 - NaN
        return known[0] if len(known) == 1 else _Values(hash(tuple(known)))
    if isinstance(found, str | bytes | int | float):
        return found
    parts: Iterable[object] = ()
    if _is_new(found, seen):
        parts = list(_parts(found)) or own_attributes(found, of_python=True).values()
    return tuple(_content(part, seen) for part in parts)


def _bulk(content: object) -> object:
    """What is left of a content without its single numbers; nothing, where it has no more."""
    if isinstance(content, tuple):
        return tuple(found for part in content if (found := _bulk(part)))
    return content if isinstance(content, _Values | str | bytes) else None


def _bytes_of(leaf: Any) -> int:
    if isinstance(leaf, _TEXTS):
        return len(leaf)
    if _is_picture(leaf):
        return int(leaf.width * leaf.height * len(leaf.getbands()))
    return int(leaf.nbytes)


def _is_picture(found: object) -> bool:
    """Whether it is one of Pillow's images, which hold their pixels out of Python's sight."""
    kind = type(found)
    return hasattr(kind, "getbands") and any(
        base.__module__.partition(".")[0] == "PIL" for base in kind.__mro__
    )


def _leaves(batch: object, depth: int, seen: _Seen) -> Iterator[Any]:
    """Data in a batch as ``count_bytes`` counts it, also in objects of a class of its own."""
    stored = _stored(batch)
    if not stored and (isinstance(batch, _TEXTS) or _is_array(batch) or _is_picture(batch)):
        yield batch
    # What an object of the user's own refers to is followed so far.
    elif depth <= 16 and not isinstance(batch, type) and _is_new(batch, seen):
        for part in stored or list(_parts(batch)) or own_attributes(batch, of_python=True).values():
            yield from _leaves(part, depth + 1, seen)


def _stored(found: object) -> list[object]:
    """What a sparse tensor is made of; nothing of anything else."""
    kept = isinstance(found, dict | list | tuple)  # see _is_array
    names = () if kept else _STORED.get(str(_attribute(found, "layout")), ())
    return [getattr(found, name)() for name in names]


def _arrays(batch: object) -> list[Any]:
    leaves = _leaves(batch, 0, {})
    return [each for each in leaves if not (isinstance(each, _TEXTS) or _is_picture(each))]


def _locate(batch: object, batch_size: int | None) -> _Place | None:
    """Where the samples of batches like this one are counted."""
    if batch_size is not None:
        for place, size in _lengths(batch, 0):
            if size == batch_size:
                return place
    elif _is_one_sample(batch):
        return _Place((), _one)
    found = _samples(batch, {})
    known = (str, bytes, int, float, complex, list, tuple, Mapping)
    opaque = batch is not None and not isinstance(batch, known) and not _is_array(batch)
    if found is None and opaque:  # a collate_fn's own object
        own = (name for name in _OWN_COUNTS if type(_attribute(batch, name)) is int)
        if (stated := next(own, None)) is not None:
            return _Place(((False, stated),), _stated)
        if batch_size is not None:
            return _Place((), lambda _batch: batch_size)
    if batch_size is None and found is not None and found.read is _leading:
        alike = [part for part in _arrays(batch) if _leading(part) == found.count(batch)]
        if all(map(_is_image, alike)):
            return dataclasses.replace(found, read=_of_image)
    return found


def _is_one_sample(batch: object) -> bool:
    """Whether this is a sample as datasets yield them: torch would have made lists and tensors."""
    if _is_array(batch):  # features of one sample; a batch of nothing but numbers is rare
        return len(_attribute(batch, "shape")) == 1
    # Torch makes a list of a tuple that it doesn't batch; one of numbers alone is a batch of them.
    mixed = isinstance(batch, list) and any(_is_array(part) and part.shape for part in batch)
    if not isinstance(batch, tuple | Mapping) and not mixed:
        return False
    sizes = [_leading(part) or 0 for part in _parts(batch) if _is_array(part)]
    if any(size > _MOST_CHANNELS and sizes.count(size) > 1 for size in sizes):
        return False  # fields of a batch, with a figure of the whole beside them
    return any(
        (isinstance(part, str | bytes | int | float) and not isinstance(part, bool))
        or (_is_array(part) and _leading(part) is None)
        for part in _parts(batch)
    )


def _is_image(array: Any) -> bool:
    """Whether a tensor looks like one image, its channels first."""
    channels, *sides = array.shape or (0,)
    return len(sides) == 2 and channels in {1, 3} and min(sides) > _MOST_CHANNELS


def _of_image(array: Any) -> int | None:
    return 1 if _is_image(array) else _leading(array)


def _stated(count: int) -> int:
    return count


def _one(_sample: object) -> int:
    return 1


def _packed(batch: Any) -> int:
    return int(batch.batch_sizes[0])


def _samples(batch: object, seen: _Seen) -> _Place | None:
    if isinstance(batch, str | bytes):
        return None
    # PackedSequence, a tuple with names: samples per time step
    packed = _attribute(batch, "batch_sizes") if isinstance(batch, tuple) else None
    if packed is not None and _leading(packed):
        return _Place((), _packed)
    if _is_array(batch):
        return None if _leading(batch) is None else _Place((), _leading)
    if _is_new(batch, seen):
        parts = ((_samples(part, seen), step) for *step, part in _keyed(batch))
        within = (place.below(*step) for place, step in parts if place is not None)
        whole = _samples_of_list(batch, seen) if isinstance(batch, list) else next(within, None)
        seen[id(batch)] = batch, whole
    known: _Place | None = seen[id(batch)][1]  # none yet within itself
    return known


def _samples_of_list(batch: list[Any], seen: _Seen) -> _Place | None:
    """A list is either one collated tensor per field, or one entry per sample."""
    if not batch:
        return None
    whole = _Place((), len)
    arrays = [number for number, entry in enumerate(batch) if _is_array(entry)]
    kinds = {(len(batch[at].shape), str(_attribute(batch[at], "dtype"))) for at in arrays}
    if arrays and (len(arrays) < len(batch) or len(kinds) > 1):  # fields of different kinds
        first_array = next((number for number in arrays if batch[number].shape), arrays[0])
        found = _samples(batch[first_array], seen)
        return None if found is None else found.below(True, first_array)
    if not arrays:
        # Fields that are structures of collated tensors, or samples such as {"boxes": ...}.
        inner = [_samples(entry, seen) for entry in batch]
        sizes = {None if at is None else at.count(batch[i]) for i, at in enumerate(inner)}
        first = inner[0]
        # A list of structures that are alike would be one of samples, not of fields.
        collated = len(batch) == 1 or len({type(entry) for entry in batch}) > 1
        if len(sizes) == 1 and collated and first is not None and sizes.pop():
            return first.below(True, 0)
        return whole
    leading = {_leading(entry) for entry in batch}
    # Unequal leading dimensions, or scalars: one entry per sample. Equal ones: fields of n samples,
    # or samples of c channels; n is the larger.
    if len(leading) > 1 or len(batch) > (leading.pop() or 0):
        return whole
    return _Place(((True, 0),), _leading)


def _lengths(batch: object, depth: int) -> Iterator[tuple[_Place, int]]:
    """Every place in the batch where its number of samples could be read, and what stands there."""
    # How deep a length is looked for that equals the loader's batch size
    if depth > 3 or isinstance(batch, str | bytes):
        return
    if _is_array(batch):
        size = _leading(batch)
        if size is not None:
            yield _Place((), _leading), size
        return
    whole = [(_Place((), len), len(batch))] if isinstance(batch, list | tuple) else []
    # Where there are as many fields as samples, those come first.
    last = isinstance(batch, list | tuple) and _fields_of(batch, len(batch))
    yield from [] if last else whole
    for by_key, key, part in _keyed(batch):
        for place, size in _lengths(part, depth + 1):
            yield place.below(by_key, key), size
    yield from whole if last else []


def _is_new(found: object, seen: _Seen) -> bool:
    """Whether something is met for the first time; from now on it isn't."""
    if id(found) in seen:
        return False
    seen[id(found)] = found, None
    return True


def _parts(batch: object) -> Iterator[object]:
    return (part for _, _, part in _keyed(batch))


def _keyed(batch: object) -> Iterator[tuple[bool, Any, object]]:
    """The parts of a structure, each with its key or index, or the name of its attribute."""
    if isinstance(batch, Mapping | list | tuple):
        parts = batch.items() if isinstance(batch, Mapping) else enumerate(batch)
        yield from ((True, key, part) for key, part in parts)
    elif dataclasses.is_dataclass(batch) and not isinstance(batch, type):
        for field in dataclasses.fields(batch):
            yield False, field.name, _attribute(batch, field.name)


def _is_array(found: object) -> bool:
    # What gives its keys as attributes may have any, some of them made by asking.
    if isinstance(found, dict | list | tuple):
        return False
    is_shaped = isinstance(_attribute(found, "shape"), tuple)
    return is_shaped and _attribute(found, "nbytes") is not None


def _attribute(found: object, name: str) -> Any:
    """An attribute of the user's own object; ``None`` for one that it has not or won't give."""
    try:
        return getattr(found, name, None)
    except Exception as error:  # whatever its __getattr__ raises, it says no
        if reports_death(error):
            raise
        return None


def _leading(array: Any) -> int | None:
    shape = array.shape
    return int(shape[0]) if len(shape) > 0 else None
