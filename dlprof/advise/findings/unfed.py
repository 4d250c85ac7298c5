"""Workers that get no data, or almost none: too few shards, or a split that starves some."""

from __future__ import annotations

from collections.abc import Sequence

from dlprof.advise.findings.claims import Claim, Gain, bound, gain_of
from dlprof.advise.findings.evidence import View
from dlprof.advise.thresholds import PAYS
from dlprof.units import counted

_LISTED = 8

_HUGGING_FACE = """# one shard for each worker, or a multiple of that
dataset = dataset.to_iterable_dataset(num_shards={shards})  # of a map-style dataset
dataset = dataset.reshard()  # of a streaming one: Parquet row groups become shards"""

_STRIDED = """# worker w of n takes shards w, w + n, w + 2n, …: no division that leaves some without
info = torch.utils.data.get_worker_info()
shards = self.shards if info is None else self.shards[info.id :: info.num_workers]"""


def unfed(view: View) -> Claim | None:
    """Some workers of an iterable dataset get no data, or almost none."""
    starved, workers = starved_workers(view), view.workers
    if not starved:
        return None
    fed = workers - len(starved)
    shards = None if view.evidence.weight is None else view.evidence.weight.shards
    few = shards is not None and shards < workers
    whole = _gain_of_all(view, fed)
    fewer = view.having(num_workers=fed)
    gain = gain_of(view, fewer)
    pays = whole is not None and whole.value >= PAYS
    count = 0 if view.explained is None else view.explained.batches
    none = all(_made(view, each) == 0 for each in starved)
    why = "the dataset splits its data so that they get none"
    if few:
        why = f"the dataset has {counted(shards or 0, 'shard')} for {workers} workers"
    elif shards is not None:
        why = f"the dataset has {shards} shards, but its split leaves these workers without"
    more = "Cut the data into more shards, a multiple of ranks times workers"
    if not few:
        more = "Split by worker so that each gets a share: shards w, w + n, w + 2n, …"
    brings = f" (predicted {whole.value:.2f}x)" if whole is not None and pays else ""
    return Claim(
        f"{len(starved)} of {workers} workers get {'no' if none else 'almost no'} data",
        f"{_named(starved)} gave {'none' if none else 'almost none'} of {count:,} batches: {why}.",
        (whole.saved if whole is not None else 0.0) if pays else 0.0,
        "num_workers",
        {
            "fed_workers": fed,
            "starved_workers": list(starved),
            "batches_by_worker": [_made(view, each) for each in range(workers)],
            "shards": shards,
            "more_shards_gain": None if whole is None else whole.value,
        },
        f"{more}{brings}. Or set num_workers={fed}, which does as well as {workers} now.",
        code=_code(view, shards) if pays else "",
        config=None if pays else fewer,
        gain=whole if pays else gain,
    )


def starved_workers(view: View) -> tuple[int, ...]:
    """Workers that made no batch, or almost none, while each other one made several."""
    explained = view.explained
    if explained is None or view.evidence.target.kind != "iterable" or view.workers < 2:
        return ()
    made = [_made(view, each) for each in range(view.workers)]
    # In order, workers are asked in turns: one that gives little has ended. Out of order, it may
    # be slow.
    most = max(made)
    # Batches of a worker over those of the one that gave most, up to which it counts as starved.
    limit = 0.1 * most if view.config.in_order else 0
    starved = tuple(each for each, batches in enumerate(made) if batches <= limit)
    rest = [batches for batches in made if batches > limit]
    # So many of each worker that is fed, before others count as starved.
    clear = bool(rest) and min(rest) >= 3
    return starved if clear else ()


def _made(view: View, worker: int) -> int:
    workers = () if view.explained is None else view.explained.workers
    return next((each.batches for each in workers if each.worker == worker), 0)


def _gain_of_all(view: View, fed: int) -> Gain | None:
    """What all workers would bring over those that are fed."""
    costs = view.costs
    if costs is None:
        return None
    now = costs.rate(view.having(num_workers=fed), view.available)
    return bound(costs.rate(view.config, view.available) / now) if now > 0 else None


def _named(workers: Sequence[int]) -> str:
    names = [str(each) for each in workers[:_LISTED]]
    if len(workers) == 1:
        return f"Worker {names[0]}"
    if len(workers) > _LISTED:
        return f"Workers {', '.join(names)} and {len(workers) - _LISTED} more"
    return f"Workers {', '.join(names[:-1])} and {names[-1]}"


def _code(view: View, shards: int | None) -> str:
    if view.evidence.target.dataset.startswith("datasets."):
        return _HUGGING_FACE.format(shards=view.workers)
    return _STRIDED if shards is None or shards >= view.workers else ""
