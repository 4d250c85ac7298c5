"""Samples and bytes of a batch of any structure. Duck-typed: imports no torch, needs no numpy."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator, Mapping
from typing import Any

_MOST_HEADS = 4
_DEEPEST = 16  # a batch that contains itself must not hang the count


def count_samples(batch: object, batch_size: int | None = None) -> int | None:
    """How many samples a batch holds, as far as its structure tells.

    Args:
        batch: What the loader yielded.
        batch_size: The loader's own, where it is known: preferred wherever some part of the batch
            has that length, because a list of images and a list of collated tensors look alike.

    Returns:
        The leading dimension of the first tensor, or the length of the first list of samples;
        ``None`` where there is neither (a single number, text or scalar tensor).
    """
    if batch_size is not None and batch_size in _lengths(batch, 0):
        return batch_size
    return _samples(batch, 0)


def count_bytes(batch: object) -> int:
    """Bytes of data in a batch: tensors and arrays by ``nbytes``, text and bytes by length."""
    return _bytes(batch, 0)


def count_tensors(batch: object) -> int:
    """Tensors and arrays in a batch: each costs the receiving process a descriptor or a file."""
    return sum(1 for _ in _arrays(batch, 0))


def same_content(one: object, two: object) -> bool:
    """Whether two batches hold the same tensors; false where every sample is like any other."""
    arrays, others = list(_arrays(one, 0)), list(_arrays(two, 0))
    if not arrays or len(arrays) != len(others):
        return False
    if any(
        a.shape != b.shape or not bool((a == b).all()) for a, b in zip(arrays, others, strict=True)
    ):
        return False
    return any(len(a) > 1 and not bool((a[0] == a[1]).all()) for a in arrays if a.shape)


def _arrays(batch: object, depth: int) -> Iterator[Any]:
    if depth > _DEEPEST or isinstance(batch, str | bytes):
        return
    if _is_array(batch):
        yield batch
        return
    for part in _parts(batch):
        yield from _arrays(part, depth + 1)


def _samples(batch: object, depth: int) -> int | None:
    if depth > _DEEPEST or isinstance(batch, str | bytes):
        return None
    packed = _attribute(batch, "batch_sizes")  # PackedSequence: samples per time step
    if packed is not None and _leading(packed):
        return int(packed[0])
    if _is_array(batch):
        return _leading(batch)
    if isinstance(batch, list):
        return _samples_of_list(batch, depth)
    return next(
        (found for part in _parts(batch) if (found := _samples(part, depth + 1)) is not None), None
    )


def _samples_of_list(batch: list[Any], depth: int) -> int | None:
    """A list is either one collated tensor per field, or one entry per sample."""
    if not batch:
        return None
    if not all(_is_array(entry) for entry in batch):
        if any(_is_array(entry) for entry in batch):
            return _samples(next(entry for entry in batch if _is_array(entry)), depth + 1)
        # Fields that are structures of collated tensors, or samples such as {"boxes": ...}.
        inner = {_samples(entry, depth + 1) for entry in batch}
        return inner.pop() or len(batch) if len(inner) == 1 and _is_collated(batch) else len(batch)
    leading = {_leading(entry) for entry in batch}
    if len(leading) > 1 or None in leading:
        return len(batch)  # ragged, or scalars: one entry per sample
    # Equal leading dimensions: fields of n samples, or samples of c channels; n is the larger.
    return max(len(batch), *(size for size in leading if size is not None), 0)


def _is_collated(batch: list[Any]) -> bool:
    """Whether a list of structures holds fields: the same thing in each would be samples."""
    return len(batch) == 1 or len({type(entry) for entry in batch}) > 1


def _lengths(batch: object, depth: int) -> Iterator[int]:
    """Every length in the batch that could be its number of samples."""
    if depth > 3 or isinstance(batch, str | bytes):
        return
    if _is_array(batch):
        size = _leading(batch)
        if size is not None:
            yield size
        return
    if isinstance(batch, list | tuple):
        yield len(batch)
    for part in _parts(batch):
        yield from _lengths(part, depth + 1)


def _bytes(batch: object, depth: int) -> int:
    if isinstance(batch, str | bytes | bytearray):
        return len(batch)
    if _is_array(batch):
        return int(getattr(batch, "nbytes", 0))
    if depth > _DEEPEST:
        return 0
    return sum(_bytes(part, depth + 1) for part in _parts(batch))


def _parts(batch: object) -> Iterator[object]:
    if isinstance(batch, Mapping):
        yield from batch.values()
    elif isinstance(batch, list | tuple):
        yield from batch
    elif dataclasses.is_dataclass(batch) and not isinstance(batch, type):
        for field in dataclasses.fields(batch):
            yield _attribute(batch, field.name)


def _is_array(found: object) -> bool:
    return _attribute(found, "shape") is not None and _attribute(found, "nbytes") is not None


def _attribute(found: object, name: str) -> Any:
    """An attribute of the user's own object; ``None`` for one that it has not or won't give."""
    try:
        return getattr(found, name, None)
    except Exception:  # noqa: BLE001 - whatever its __getattr__ raises, it says no
        return None


def _leading(array: Any) -> int | None:
    shape = array.shape
    return int(shape[0]) if len(shape) > 0 else None


def heads(batch: object, most_bytes: int) -> list[Any]:
    """Copies of a part of each of a batch's first arrays, for ``same_content``.

    Args:
        batch: What the loader yielded.
        most_bytes: Of all copies together, or two elements of each.
    """
    found = [array for array in _arrays(batch, 0) if array.shape][:_MOST_HEADS]
    kept = []
    for array in found:
        room = max(1, most_bytes // len(found))
        rows = array[: max(2, room // max(1, array.nbytes // max(1, len(array))))]
        if rows.nbytes > room:  # evenly, for borders of images are all alike
            rows = rows.reshape(len(rows), -1)[:, :: math.ceil(rows.nbytes / room)]
        kept.append(rows.clone() if hasattr(rows, "clone") else rows.copy())
    return kept
