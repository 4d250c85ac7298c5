"""Are workers without data named first, and are sound loaders left alone?

Real datasets of Hugging Face's ``datasets`` and of webdataset where they are installed, and
iterable datasets as people write them, in thirty-one loaders whose workers are starved and
thirty whose are not.
"""

from __future__ import annotations

import importlib
import io
import tarfile
import tempfile
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import torch
from common import Report, Table, parser, publish, surroundings
from torch.utils.data import DataLoader, IterableDataset, get_worker_info

from dlprof.advise.findings.diagnosis import find
from dlprof.advise.findings.evidence import Evidence, Observation
from dlprof.machine import inspect_machine
from dlprof.records import Config, Target, Trial
from dlprof.targets.weighing import weigh
from dlprof.tracing.explain import explain
from dlprof.tracing.tracer import Tracer

BATCHES, SAMPLES = 48, 4_000


class Shards(IterableDataset[torch.Tensor]):
    """Shards that are split by worker, in one of the ways that people write."""

    def __init__(self, shards: int, split: str = "strided", each: int = SAMPLES) -> None:
        self.num_shards, self.split, self.each = shards, split, each

    def mine(self, worker: int, workers: int) -> list[int]:
        """Shards of a worker."""
        count = self.num_shards
        if self.split == "floor":  # all but the last get count // workers, which may be none
            each = count // workers
            last = worker == workers - 1
            return list(range(worker * each, count if last else (worker + 1) * each))
        if self.split == "ceil":
            each = -(-count // workers)
            return list(range(min(count, worker * each), min(count, (worker + 1) * each)))
        if self.split == "first":
            return list(range(count)) if worker == 0 else []
        return list(range(worker, count, workers))

    def __iter__(self) -> Iterator[torch.Tensor]:
        info = get_worker_info()
        worker, workers = (info.id, info.num_workers) if info else (0, 1)
        for shard in self.mine(worker, workers):
            for number in range(self.each):
                yield torch.full((3, 16, 16), float(shard * self.each + number))


def hugging_face(shards: int, *, shuffle: bool = False) -> Any:
    """A streaming dataset of Hugging Face's."""
    datasets = importlib.import_module("datasets")

    def numbers(shards: list[int]) -> Iterator[dict[str, int]]:
        for shard in shards:
            for number in range(SAMPLES):
                yield {"number": shard * SAMPLES + number}

    made = datasets.IterableDataset.from_generator(
        numbers, gen_kwargs={"shards": list(range(shards))}
    )
    if shuffle:
        made = made.shuffle(seed=0, buffer_size=64)
    return made.with_format("torch")


def web(shards: int, folder: Path) -> Any:
    """A dataset of webdataset's, of so many tar files."""
    webdataset = importlib.import_module("webdataset")
    urls = []
    for shard in range(shards):
        path = folder / f"{shards}-{shard}.tar"
        urls.append(str(path))
        with tarfile.open(path, "w") as tar:
            for number in range(SAMPLES // 4):
                data = str(number).encode()
                info = tarfile.TarInfo(f"{shard}-{number:06d}.txt")
                info.size = len(data)
                tar.addfile(info, io.BytesIO(data))
    made = webdataset.WebDataset(urls, shardshuffle=False, empty_check=False)
    return made.map(lambda _: torch.zeros(8))


def cases(
    folder: Path,
) -> Iterator[tuple[str, bool, Callable[[], Any], int]]:
    """What it is, whether workers are starved, the dataset, and how many workers."""
    for shards, workers in ((1, 2), (1, 4), (2, 3), (2, 4), (3, 4), (2, 8), (3, 6), (1, 8), (5, 8)):
        yield f"strided {shards}/{workers}", True, partial(Shards, shards), workers
    for shards, workers in ((3, 4), (5, 6), (2, 4), (7, 8), (1, 3)):
        yield f"floor {shards}/{workers}", True, partial(Shards, shards, "floor"), workers
    for shards, workers in ((5, 4), (9, 8), (3, 4), (4, 3)):
        yield f"ceil {shards}/{workers}", True, partial(Shards, shards, "ceil"), workers
    for workers in (2, 4, 6):
        yield f"first of {workers}", True, partial(Shards, 8, "first"), workers
    for shards, workers in ((1, 2), (1, 4), (2, 4), (3, 4), (2, 3)):
        yield f"HF {shards}/{workers}", True, partial(hugging_face, shards), workers
    for shards, workers in ((2, 4), (3, 4)):
        make = partial(hugging_face, shards, shuffle=True)
        yield f"HF shuffled {shards}/{workers}", True, make, workers
    for shards, workers in ((1, 2), (2, 4), (3, 4)):
        yield f"webdataset {shards}/{workers}", True, partial(web, shards, folder), workers
    for shards, workers in ((2, 2), (4, 4), (4, 2), (3, 2), (8, 4), (6, 3), (7, 4), (5, 4), (9, 4)):
        yield f"strided {shards}/{workers}", False, partial(Shards, shards), workers
    for shards, workers in ((4, 2), (6, 4), (8, 8), (9, 4), (3, 2), (2, 2)):
        yield f"floor {shards}/{workers}", False, partial(Shards, shards, "floor"), workers
    for shards, workers in ((4, 2), (8, 4), (6, 3), (2, 2), (8, 3)):
        yield f"ceil {shards}/{workers}", False, partial(Shards, shards, "ceil"), workers
    for shards, workers in ((2, 2), (4, 2), (4, 4), (6, 3), (3, 2)):
        yield f"HF {shards}/{workers}", False, partial(hugging_face, shards), workers
    yield "HF shuffled 40/2", False, partial(hugging_face, 40, shuffle=True), 2
    for shards, workers in ((2, 2), (4, 2), (4, 4), (6, 3)):
        yield f"webdataset {shards}/{workers}", False, partial(web, shards, folder), workers


def first_finding(dataset: Any, workers: int) -> str:
    """The code of what is found first."""
    loader: DataLoader[Any] = DataLoader(dataset, batch_size=8, num_workers=workers)
    config = Config(num_workers=workers, prefetch_factor=2, batch_size=8).canonical()
    with Tracer(loader, stop_after_batches=BATCHES) as tracer:
        for _ in zip(range(BATCHES), tracer, strict=False):
            pass
    explained = explain(tracer.trace(), trial_id="t0001", config=config)
    kind = f"{type(dataset).__module__}.{type(dataset).__qualname__}"
    trial = Trial(id="t0001", config=config, repetition=0, outcome="completed", purpose="explain")
    evidence = Evidence(
        machine=inspect_machine(),
        target=Target(spec="", kind="iterable", dataset=kind, batch_size=8),
        config=config,
        observations=(Observation(trial=trial, explanation=explained),),
        weight=weigh(loader),
    )
    found = find(evidence)
    return found[0].code if found else ""


def main() -> None:
    """Go through all; of a quick run each twelfth."""
    given, before = parser(__doc__).parse_args(), surroundings()
    rows, skipped = [], dict[str, str]()
    with tempfile.TemporaryDirectory() as folder:
        for title, starved, make, workers in list(cases(Path(folder)))[:: 12 if given.quick else 1]:
            try:
                code = first_finding(make(), workers)
            except ImportError as error:
                skipped[title] = str(error)
                continue
            right = (code == "workers.unfed") is starved
            said = ("planted" if starved else "sound", code, "yes" if right else "no")
            rows.append([title, *said])
    counts = {
        kind: [row[3] == "yes" for row in rows if row[1] == kind] for kind in ("planted", "sound")
    }
    named, silent = (f"{sum(right)} of {len(right)}" for right in counts.values())
    report = Report(
        name="shard_faults",
        title="Workers without data",
        goal="all planted faults named first, all sound loaders left alone",
        passed=all(row[3] == "yes" for row in rows),
        tables=[
            Table(
                f"{named} planted named first, {silent} sound ones left alone",
                ("loader (shards/workers)", "is", "first finding", "right"),
                rows,
            )
        ],
        notes=[f"left out: {', '.join(skipped)} ({reason})" for reason in set(skipped.values())],
    )
    publish(report, before, quick=given.quick)


if __name__ == "__main__":
    main()
