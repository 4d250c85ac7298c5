"""What the ranks of a training get of its data: some get none, or rank 0 loads it all. Pure."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Iterator, Mapping, Sequence

from dlprof.records import Config, Diagnosis, Estimate, Finding, Fix, WatchedLoader

_DISPATCH = """config = accelerate.DataLoaderConfiguration(dispatch_batches=False)
accelerator = accelerate.Accelerator(dataloader_config=config)"""


def with_ranks(
    found: Diagnosis | None,
    loaders: Sequence[WatchedLoader],
    others: Mapping[int, Sequence[WatchedLoader]],
) -> Diagnosis | None:
    """A diagnosis of rank 0 with what it can't show by itself.

    Args:
        found: Without that; ``None`` where no loader costs time to speak of.
        loaders: What rank 0 has seen.
        others: What other ranks have seen, by their number, each to its end.
    """
    poor = [*itertools.chain.from_iterable(_unfed(each, others) for each in loaders)]
    slow = [*itertools.chain.from_iterable(map(_dispatched, loaders))]
    if not poor and not slow:
        return found
    if found is None:
        config = next((each.config for each in loaders if each.config is not None), Config())
        found = Diagnosis(config=config)
    # As in a profile, where workers without data come before what would speed up the others.
    return dataclasses.replace(found, findings=(*poor, *slow, *found.findings))


def _unfed(
    loader: WatchedLoader, others: Mapping[int, Sequence[WatchedLoader]]
) -> Iterator[Finding]:
    """Ranks that iterate a loader as others do, and get no data of it, or far less."""
    if loader.loads_for > 1:  # its batches reach other ranks in another way
        return
    made = {0: loader}
    made |= {
        rank: each for rank, seen in others.items() for each in seen if each.name == loader.name
    }
    batches = {rank: each.batches / max(1, each.epochs) for rank, each in sorted(made.items())}
    most = max(batches.values())
    # A rank with at most half of the batches of the one that got most lacks data.
    poor = [rank for rank, count in batches.items() if count <= 0.5 * most]
    # A loader of rank 0 alone has no others, and how a few batches fall between ranks says little.
    if len(made) < 2 or most < 10 or not poor:
        return
    none = all(batches[rank] == 0 for rank in poor)
    named = f"{'Rank' if len(poor) == 1 else 'Ranks'} {', '.join(map(str, poor))}"
    verb = "gets" if len(poor) == 1 else "get"
    counts = ", ".join(f"{rank}: {count:.0f}" for rank, count in batches.items())
    text = (
        "Cut the data into more shards, a multiple of ranks times workers, and split them by "
        "steps: shards[rank::world_size]."
    )
    if loader.dataset.startswith("datasets."):
        text += " split_dataset_by_node does that where the shards are a multiple of the ranks."
    elif "webdataset" in loader.kind + loader.dataset:
        text += " Or draw shards at random: ResampledShards gives each rank as many as it asks for."
    yield Finding(
        code="workers.unfed",
        severity="high",
        title=f"{named} of {len(made)} {verb} {'no' if none else 'far less'} data",
        explanation=f"Batches an epoch of {loader.name} by rank: {counts}. A training that "
        "synchronizes its ranks stops, or hangs, when the first of them runs out.",
        evidence={
            "unfed_ranks": poor,
            "batches_by_rank": {str(rank): count for rank, count in batches.items()},
            "seen_in": [loader.name],
        },
        fix=Fix(text=text),
        cost=1.0,
    )


def _dispatched(loader: WatchedLoader) -> Iterator[Finding]:
    """Rank 0 loads for all ranks, as accelerate does for iterable datasets unless set otherwise."""
    wait, ranks = loader.wait_fraction or 0.0, loader.loads_for
    if ranks < 2 or wait < 0.05:  # what holds nobody up is no fault
        return
    gain = 1 / (1 - wait + wait / ranks)
    text = (
        "Set dispatch_batches=False, so that each rank loads its own batches. The dataset has to "
        "split by rank: otherwise each rank reads all of it and drops what is of the others."
    )
    if loader.dataset.startswith("datasets."):
        text = (
            "Set dispatch_batches=False, so that each rank loads its own shards; the dataset needs "
            f"{ranks} of them or more (num_shards), best a multiple of ranks times workers."
        )
    yield Finding(
        code="workers.unfed",
        severity="high" if wait >= 1 / 4 else "medium",
        title=f"Rank 0 loads the batches of all {ranks} ranks",
        explanation=f"accelerate dispatches batches from rank 0: before each step {loader.name} "
        f"makes {ranks} batches there, and the loaders of the other ranks "
        f"are idle. Rank 0 waits for data in {wait:.0%} of its loop.",
        evidence={
            "ranks": ranks,
            "wait_fraction": wait,
            "gain_from": "bound",
            "gain_at": "at most",
            "seen_in": [loader.name],
        },
        fix=Fix(text=text, code=_DISPATCH),
        predicted_gain=Estimate(value=gain),
        cost=wait * (1 - 1 / ranks),
    )
