"""What is due to the dataset: it weighs much in each worker, or some workers get no data."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from dlprof.advise import thresholds as at
from dlprof.advise.findings import loader
from dlprof.advise.findings.claims import (
    Claim,
    Place,
    bound,
    gain_of,
    measured_gain,
    predicted_gain,
)
from dlprof.advise.findings.evidence import Evidence
from dlprof.advise.findings.loader import STRIDED, made_by_worker, starved_workers
from dlprof.advise.wording import as_fast
from dlprof.model.predict import first_batch_s
from dlprof.records import BY_COPY, AttributeWeight, DatasetWeight
from dlprof.stats.belief import NEAR
from dlprof.units import counted, format_bytes, format_duration

_ARRAYS = ("ndarray", "memmap", "bytes", "bytearray", "array", "Image")

_TENSORS = """# one array instead of an object for each sample; texts are bytes with offsets
encoded = [text.encode() for text in texts]
self.texts = torch.frombuffer(bytearray(b"".join(encoded)), dtype=torch.uint8)
self.ends = torch.tensor([len(text) for text in encoded]).cumsum(0)"""

_MAPPED = """# saved once; each worker maps the same file, and nothing is sent
data = None  # of the class

def __getitem__(self, index):
    if self.data is None:
        self.data = np.load(self.path, mmap_mode="r")
    return torch.as_tensor(self.data[index].copy())"""

_IN_WORKER = """# made in the worker, at its first sample
handle = None  # of the class

def __getitem__(self, index):
    if self.handle is None:
        self.handle = open_it(self.path)
    ..."""


def heavy(view: Evidence) -> Claim | None:
    """Pickling or copying the dataset costs time to first batch or memory."""
    weight, workers = view.weight, view.workers
    if not workers:  # what those cost that are advised
        few = loader.too_few_workers(view)
        workers = few.config.num_workers if few is not None and few.config is not None else 0
    first = None if weight is None else weight.heaviest
    if weight is None or first is None or not workers:
        return None
    sent_s, method = weight.sent_s * workers, view.start_method
    copied, now = workers * weight.object_bytes, method in BY_COPY
    room = view.machine.memory_available_bytes or view.machine.memory_bytes
    # Or where workers come to copy a twentieth of the available memory.
    fills = room is not None and copied >= 0.05 * room
    if sent_s < (at.SENT_S if now else 2.0) and not (fills and not now):
        return None
    turn_s, share = loader.turn(view)  # of which sending the dataset is a part
    started = view.workers and turn_s > 0
    share = share * min(1.0, sent_s / turn_s) if now and started else 0.0
    return Claim(
        f"The dataset is heavy: {first.name}",
        _words(view, weight, first, workers),
        share,
        "num_workers start_method",
        {
            "attribute": first.name,
            "attribute_type": first.type,
            "attribute_pickled_bytes": first.pickled_bytes,
            "attribute_object_bytes": first.object_bytes,
            "pickled_bytes": weight.pickled_bytes,
            "pickle_s": weight.pickle_s,
            "unpickle_s": weight.unpickle_s,
            "object_bytes": weight.object_bytes,
            "flat_bytes": weight.flat_bytes,
            "exactness": weight.how,
            "sending_s": sent_s,
            "first_batch_s": first_batches(view, workers),
            "start_s": {
                each.method: {part.name: part.wall_s for part in each.phases}
                for each in weight.starts
            },
        },
        *_remedy(first),
        gain=bound(1 / max(0.02, 1 - share)) if share else None,
        place=Place.FAULT if loader.sending_leads(view) else Place.BEHIND,
    )


def first_batches(view: Evidence, workers: int) -> Mapping[str, Mapping[str, float]]:
    """Predicted seconds to the first batch, by start method and ``num_workers``.

    ``workers`` are the present or advised ones, beside powers of two.
    """
    weight = view.weight
    starts = () if weight is None else weight.starts
    counts = sorted({1, 2, 4, 8, 16, 32, 64, workers} - {0})
    return {
        each.method: {str(n): round(first_batch_s(each, n, cores=view.cores), 3) for n in counts}
        for each in starts
    }


def _words(view: Evidence, weight: DatasetWeight, first: AttributeWeight, workers: int) -> str:
    sent_s, advised = weight.sent_s * workers, "" if view.workers else "the advised "
    about = {"exact": "", "sampled": "about ", "at_least": "at least "}
    of_first = f"{first.name} ({first.type}) is {about[first.how]}"
    size = first.pickled_bytes or first.object_bytes
    heaviest = f"{of_first}{format_bytes(size)} of it." if size else f"{first.name} takes longest."
    text = (
        f"By spawn or forkserver each worker is sent {about[weight.how]}"
        f"{format_bytes(weight.pickled_bytes)}: {format_duration(weight.pickle_s)} to pickle and "
        f"{format_duration(weight.unpickle_s)} to unpickle, {format_duration(sent_s)} for "
        f"{advised}{counted(workers, 'worker')}. {heaviest}"
    )
    if weight.object_bytes:
        text += f" Its Python objects are {format_bytes(weight.object_bytes)}, which each forked "
        text += "worker comes to copy."
    if predicted := first_batches(view, workers):
        each = (
            f"{format_duration(by_count[str(workers)])} by {method}"
            for method, by_count in predicted.items()
        )
        text += f" Predicted time to first batch: {', '.join(each)}."
    if view.start_method == "fork":
        text += " Python 3.14 starts workers by forkserver by default on Linux."
    return text


def _remedy(first: AttributeWeight) -> tuple[str, str]:
    size: Any = max(first.pickled_bytes, first.object_bytes)
    # Where it takes far longer than its size explains, it computes when it is pickled.
    if first.failure or (first.pickle_s > 1.0 and size < (1 << 20)):
        text = f"Make {first.name} in the worker, at its first sample, instead of sending it."
        return text, _IN_WORKER
    if first.type.startswith("memmap"):
        return (
            f"Map the file of {first.name} in each worker, at its first sample: a memmap that is "
            "pickled is sent as all of its bytes."
        ), _MAPPED
    if first.type.partition(" ")[0] in _ARRAYS:
        return (
            f"Keep {first.name} in a file that workers map (np.load with mmap_mode), or in a torch "
            "tensor, whose memory is shared instead of sent."
        ), _MAPPED
    return (
        f"Keep {first.name} in torch tensors or numpy arrays instead of Python objects: tensors "
        "are shared with workers, not sent, and no reference counts are in them."
    ), _TENSORS


_HUGGING_FACE = """# one shard for each worker, or a multiple of that
dataset = dataset.to_iterable_dataset(num_shards={shards})  # of a map-style dataset
dataset = dataset.reshard()  # of a streaming one: Parquet row groups become shards"""


def unfed(view: Evidence) -> Claim | None:
    """Some workers of an iterable dataset get no data, or almost none, or end before the others."""
    starved, workers = starved_workers(view), view.workers
    if not starved:
        return None
    fed = workers - len(starved)
    shards = view.target.shards  # where it isn't weighed, as in a script
    if view.weight is not None and view.weight.shards is not None:
        shards = view.weight.shards
    wanted = workers * view.ranks  # who share them, unless the dataset counts those of its rank
    few = shards is not None and shards < wanted
    fewer = view.having(num_workers=fed)
    gain, less = gain_of(view, fewer), predicted_gain(view, fewer)
    # What all workers would bring over those that are fed.
    whole = less and dataclasses.replace(less, estimate=less.estimate.inverse)
    pays = whole is not None and whole.value >= at.PAYS
    # Where each gave a batch before the window, those that give none have come to their end. Of
    # fewer workers each has another share: the window doesn't say when these would end.
    own = (trial for trial in view.trials() if trial.config == view.config)
    ended = any(trial.fed_workers == workers for trial in own)
    # Those that are fed, by themselves: as the model counts all that there are, it can't say.
    tried = measured_gain(view, fewer)
    enough = not ended and (tried is None or tried.value >= NEAR)
    does = "does" if tried is not None or _all_fed(view, fed) else "may do"
    instead = f" Or set num_workers={fed}, which {does} as well as {workers} now." if enough else ""
    made, count = made_by_worker(view), 0 if view.explained is None else view.explained.batches
    none = not any(made[each] for each in starved)
    *some, last = [*map(str, starved[:8]), *[f"{len(starved) - 8} more"] * (len(starved) > 8)]
    named = f"Workers {', '.join(some)} and {last}" if some else f"Worker {last}"
    why, more = _unfed_by(view, fed, shards, few=few)
    title = f"{len(starved)} of {workers} workers get {'no' if none else 'almost no'} data"
    if ended:
        ends = "end" if starved[1:] else "ends"
        title = f"{len(starved)} of {workers} workers {ends} before the others"
        why = "their shares are smaller" if starved[1:] else "its share is smaller"
        more = "Split so that all workers get the same amount: samples w, w + n, w + 2n, …"
    code, helps = "", pays and not ended  # else shards w, w + n, … may be what it has
    if helps and view.target.dataset.startswith("datasets."):
        code = _HUGGING_FACE.format(shards=wanted)
    elif helps and not few and not _all_fed(view, fed):
        code = STRIDED
    where = "" if view.ranks == 1 or view.script else f"On the slowest of {view.ranks} ranks: "
    brings = f". Predicted: {as_fast(whole.estimate)}" if whole is not None and pays else ""
    return Claim(
        title,
        f"{where}{named} gave {'none' if none else 'almost none'} of {count:,} batches: {why}.",
        (whole.saved if whole is not None else 0.0) if pays else 0.0,
        "num_workers",
        {
            "fed_workers": fed,
            "starved_workers": list(starved),
            "batches_by_worker": made,
            "shards": shards,
            "more_shards_gain": None if whole is None else whole.value,
        },
        f"{more}{brings}.{instead}",
        code=code,
        config=None if pays or not enough else fewer,
        gain=whole if pays else gain if enough else None,
    )


def _unfed_by(view: Evidence, fed: int, shards: int | None, *, few: bool) -> tuple[str, str]:
    """Why workers get no data, and what to do about it."""
    more = "Cut the data into more shards, a multiple of ranks times workers"
    if few:
        each = f"{view.ranks} ranks of " if view.ranks > 1 else ""
        have = f"the dataset has {counted(shards or 0, 'shard')}"
        return f"{have} for {each}{view.workers} workers", more
    if shards is not None:
        why = f"the dataset has {shards} shards, but its split leaves these workers without"
        return why, "Split by worker so that each gets a share: shards w, w + n, w + 2n, …"
    if _all_fed(view, fed):  # so many pieces, which it splits by worker
        return f"the data seems to be in no more than {counted(fed, 'piece')}", more
    why = "the dataset splits its data so that they get none"
    return why, f"{more}, and give worker w of n shards w, w + n, w + 2n, …"


def _all_fed(view: Evidence, workers: int) -> bool:
    """Whether so many workers were tried, and each of them gave batches."""
    tried = (trial for trial in view.trials() if trial.config.num_workers == workers)
    return any(trial.fed_workers == workers for trial in tried)
