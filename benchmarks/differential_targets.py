"""Loaders of many kinds, as users of many packages make them, for ``differential.py``.

Each function takes the settings of DataLoader and returns the loader. ``by_hand_NAME`` stands
beside a function that takes none. Files lie where ``DIFFERENTIAL_DATA`` says.
"""

# ruff: noqa: D103 - what a loader is stands in its name
from __future__ import annotations

import collections
import importlib
import io
import itertools
import os
import tarfile
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch.nn.utils.rnn import pad_sequence
from torch.utils.data import (
    BatchSampler,
    ChainDataset,
    ConcatDataset,
    DataLoader,
    Dataset,
    IterableDataset,
    Sampler,
    Subset,
    WeightedRandomSampler,
    get_worker_info,
)

FILES = "DIFFERENTIAL_DATA"
_OF_WORKERS = ("prefetch_factor", "persistent_workers", "multiprocessing_context", "in_order")


def of(settings: Mapping[str, Any], **own: Any) -> dict[str, Any]:
    """A loader's own arguments and the settings, without what torch refuses where nobody works."""
    merged = {**own, **settings}
    if not merged.get("num_workers"):
        return {name: value for name, value in merged.items() if name not in _OF_WORKERS}
    return {name: value for name, value in merged.items() if value is not None or name in own}


def share() -> tuple[int, int]:
    """This worker's number and how many there are."""
    info = get_worker_info()
    return (0, 1) if info is None else (info.id, info.num_workers)


def compute(rounds: int) -> int:
    """Plain Python; 1,000 rounds take some 50 us."""
    return sum(number * number % 7 for number in range(rounds))


class Waiting(Dataset[Any]):
    """Samples that wait."""

    def __init__(self, length: int = 20_000, wait_s: float = 0.002, size: int = 16) -> None:
        self.length, self.wait_s, self.size = length, wait_s, size

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: int) -> Any:
        time.sleep(self.wait_s)
        return torch.full((self.size,), float(index))


class Computing(Waiting):
    """Samples that compute in plain Python."""

    def __getitem__(self, index: int) -> Any:
        compute(10_000)
        return torch.full((self.size,), float(index))


class Fields(Waiting):
    """Samples of two fields by name."""

    def __getitem__(self, index: int) -> Any:
        return {"x": super().__getitem__(index), "label": index % 10}


class Shards(IterableDataset[Any]):
    """An iterable dataset that shares its shards among the workers."""

    def __init__(self, of_each: int = 2_000, wait_s: float = 0.002, shards: int = 8) -> None:
        self.of_each, self.wait_s, self.shards = of_each, wait_s, shards

    def __iter__(self) -> Iterator[Any]:
        first, stride = share()
        for shard in range(first, self.shards, stride):
            for number in range(self.of_each):
                time.sleep(self.wait_s)
                yield torch.full((8,), float(shard * self.of_each + number))


def waits(**settings: Any) -> Any:
    return DataLoader(Waiting(), **of(settings, batch_size=16))


def waits_deep(**settings: Any) -> Any:
    return DataLoader(Waiting(wait_s=0.005), **of(settings, batch_size=8, shuffle=True))


def computes(**settings: Any) -> Any:
    return DataLoader(Computing(), **of(settings, batch_size=16))


def tiny(**settings: Any) -> Any:
    return DataLoader(_Nothing(10_000_000), **of(settings, batch_size=32))


class _Nothing(Waiting):
    def __getitem__(self, index: int) -> Any:
        return torch.full((4,), float(index))


class _Tailed(Waiting):
    def __getitem__(self, index: int) -> Any:
        time.sleep(0.03 if index % 61 == 0 else 0.001)
        return torch.full((16,), float(index))


def heavy_tail(**settings: Any) -> Any:
    return DataLoader(_Tailed(), **of(settings, batch_size=8))


class _Large(Waiting):
    def __getitem__(self, index: int) -> Any:
        time.sleep(0.004)
        return torch.full((250_000,), float(index))


def megabytes(**settings: Any) -> Any:
    return DataLoader(_Large(), **of(settings, batch_size=4))


def one_by_one(**settings: Any) -> Any:
    return DataLoader(Waiting(wait_s=0.004), **of(settings, batch_size=1))


def fields(**settings: Any) -> Any:
    return DataLoader(Fields(), **of(settings, batch_size=12))


class _FieldsComputed(Computing):
    def __getitem__(self, index: int) -> Any:
        return {"x": super().__getitem__(index), "label": index % 10}


def fields_computed(**settings: Any) -> Any:
    return DataLoader(_FieldsComputed(), **of(settings, batch_size=24))


def listed(**settings: Any) -> Any:
    return DataLoader(Fields(), **of(settings, batch_size=12, collate_fn=list))


samples_of_listed = len


class Pair(NamedTuple):
    """A sample by names."""

    image: Any
    label: int


class _Pairs(Waiting):
    def __getitem__(self, index: int) -> Any:
        return Pair(super().__getitem__(index), index % 10)


def named(**settings: Any) -> Any:
    return DataLoader(_Pairs(), **of(settings, batch_size=16))


def _arrays(samples: list[Any]) -> Any:
    numpy: Any = importlib.import_module("numpy")
    return numpy.stack([sample.numpy() for sample in samples])


def arrays(**settings: Any) -> Any:
    return DataLoader(Computing(), **of(settings, batch_size=16, collate_fn=_arrays))


class _Ragged(Waiting):
    def __getitem__(self, index: int) -> Any:
        return super().__getitem__(index)[: 1 + index % 13]


def _padded(samples: list[Any]) -> Any:
    lengths = torch.tensor([len(sample) for sample in samples])
    return pad_sequence(samples, batch_first=True), lengths


def padded(**settings: Any) -> Any:
    return DataLoader(_Ragged(), **of(settings, batch_size=16, collate_fn=_padded))


def weighted(**settings: Any) -> Any:
    data = Waiting()
    sampler = WeightedRandomSampler([1.0, 3.0] * (len(data) // 2), len(data))
    return DataLoader(data, **of(settings, batch_size=16, sampler=sampler))


class _Backwards(Sampler[int]):
    def __init__(self, length: int) -> None:
        self.length = length

    def __iter__(self) -> Iterator[int]:
        return iter(range(self.length - 1, -1, -1))

    def __len__(self) -> int:
        return self.length


def own_sampler(**settings: Any) -> Any:
    data = Waiting(length=3_000, wait_s=0.0015)
    sampler = _Backwards(len(data))
    return DataLoader(data, **of(settings, batch_size=16, sampler=sampler, drop_last=True))


class _Buckets(Sampler[list[int]]):
    """Batches of 4 to 20 samples by turns."""

    def __init__(self, length: int) -> None:
        self.length = length

    def __iter__(self) -> Iterator[list[int]]:
        first = 0
        for size in itertools.cycle((4, 12, 20, 8)):
            if first >= self.length:
                return
            yield list(range(first, min(first + size, self.length)))
            first += size


def buckets(**settings: Any) -> Any:
    data = Waiting()
    return DataLoader(data, **of(settings, batch_sampler=_Buckets(len(data))))


def batch_sampler(**settings: Any) -> Any:
    data = Waiting(length=1_000)
    sampler = BatchSampler(_Backwards(len(data)), 24, drop_last=False)
    return DataLoader(data, **of(settings, batch_sampler=sampler))


def short(**settings: Any) -> Any:
    data = Waiting(length=330)
    return DataLoader(data, **of(settings, batch_size=16, drop_last=True))


def shortest(**settings: Any) -> Any:
    return DataLoader(Waiting(length=90), **of(settings, batch_size=16))


def by_hand_persisting(**settings: Any) -> Any:
    return DataLoader(Waiting(length=400), **of(settings, batch_size=16))


def persisting() -> Any:
    return by_hand_persisting(num_workers=2, persistent_workers=True)


def by_hand_spawned(**settings: Any) -> Any:
    own = {"batch_size": 16, "multiprocessing_context": "spawn"}
    return DataLoader(Waiting(wait_s=0.003), **of(settings, **own))


def spawned() -> Any:
    return by_hand_spawned(num_workers=2)


def joined(**settings: Any) -> Any:
    parts = [Waiting(length=900), Subset(Waiting(), range(0, 9_000, 3))]
    return DataLoader(ConcatDataset(parts), **of(settings, batch_size=16, shuffle=True))


class _Together(Waiting):
    def __getitems__(self, indices: list[int]) -> list[Any]:
        time.sleep(0.02)
        return [torch.full((16,), float(index)) for index in indices]


def fetched_together(**settings: Any) -> Any:
    return DataLoader(_Together(), **of(settings, batch_size=32))


def sharded(**settings: Any) -> Any:
    return DataLoader(Shards(), **of(settings, batch_size=16))


class _Endless(Shards):
    def __iter__(self) -> Iterator[Any]:
        while True:
            yield from super().__iter__()


def endless(**settings: Any) -> Any:
    return DataLoader(_Endless(), **of(settings, batch_size=10))


class _Batches(Shards):
    """Batches of 32, the last of a shard smaller."""

    def __iter__(self) -> Iterator[Any]:
        batch: list[Any] = []
        for sample in super().__iter__():
            batch.append(sample)
            if len(batch) == 32:
                yield torch.stack(batch)
                batch = []
        if batch:
            yield torch.stack(batch)


def batches_itself(**settings: Any) -> Any:
    return DataLoader(_Batches(of_each=2_000, wait_s=0.001), **of(settings, batch_size=None))


def partial_batches(**settings: Any) -> Any:
    return DataLoader(_Batches(of_each=45, wait_s=0.001), **of(settings, batch_size=None))


class _Changing(Shards):
    """Batches of 1 to 40 samples."""

    def __iter__(self) -> Iterator[Any]:
        sizes = itertools.cycle((1, 40, 7, 25, 12, 33))
        samples = super().__iter__()
        while batch := list(itertools.islice(samples, next(sizes))):
            yield torch.stack(batch)


def changing_sizes(**settings: Any) -> Any:
    return DataLoader(_Changing(wait_s=0.0005), **of(settings, batch_size=None))


class _WholeBatches(Waiting):
    def __getitem__(self, index: int) -> Any:
        time.sleep(0.02)
        return torch.full((24, 8), float(index))


def batch_a_sample(**settings: Any) -> Any:
    return DataLoader(_WholeBatches(), **of(settings, batch_size=None))


class _ComputingShards(Shards):
    def __iter__(self) -> Iterator[Any]:
        first, stride = share()
        for shard in range(first, self.shards, stride):
            for number in range(self.of_each):
                compute(8_000)
                yield torch.full((8,), float(shard * self.of_each + number))


def shards_computed(**settings: Any) -> Any:
    return DataLoader(_ComputingShards(), **of(settings, batch_size=20))


def chained(**settings: Any) -> Any:
    return DataLoader(ChainDataset([Shards(), Shards()]), **of(settings, batch_size=16))


class _Copied(Shards):
    """A dataset that every worker gives whole: wrong with more than one."""

    def __iter__(self) -> Iterator[Any]:
        for number in range(self.shards * self.of_each):
            time.sleep(self.wait_s)
            yield torch.full((8,), float(number))


def copied(**settings: Any) -> Any:
    return DataLoader(_Copied(), **of(settings, batch_size=16))


def write_shards(folder: Path) -> None:
    """Tar files for webdataset: 8 shards of 600 samples."""
    for shard in range(8):
        with tarfile.open(folder / f"shard-{shard:03d}.tar", "w") as tar:
            for number in range(600):
                _add(tar, f"{shard:03d}{number:04d}.txt", bytes(64))
                _add(tar, f"{shard:03d}{number:04d}.cls", str(number % 10).encode())


def _add(tar: tarfile.TarFile, name: str, content: bytes) -> None:
    info = tarfile.TarInfo(name)
    info.size = len(content)
    tar.addfile(info, io.BytesIO(content))


def _decoded(sample: tuple[bytes, bytes]) -> Any:
    time.sleep(0.001)
    return torch.frombuffer(bytearray(sample[0]), dtype=torch.uint8), int(sample[1])


def _web() -> tuple[Any, Any]:
    wds: Any = importlib.import_module("webdataset")
    shards = sorted(str(path) for path in Path(os.environ[FILES]).glob("shard-*.tar"))
    return wds, wds.WebDataset(shards, shardshuffle=False).to_tuple("txt", "cls").map(_decoded)


def web_batched(**settings: Any) -> Any:
    _, data = _web()
    return DataLoader(data.batched(32), **of(settings, batch_size=None))


def web_single(**settings: Any) -> Any:
    _, data = _web()
    return DataLoader(data, **of(settings, batch_size=16))


def web_loader(**settings: Any) -> Any:
    wds, data = _web()
    return wds.WebLoader(data.batched(32), **of(settings, batch_size=None))


def web_loader_rebatched(**settings: Any) -> Any:
    wds, data = _web()
    made = wds.WebLoader(data.batched(16), **of(settings, batch_size=None))
    return made.unbatched().batched(24)


def stateful(**settings: Any) -> Any:
    torchdata: Any = importlib.import_module("torchdata.stateful_dataloader")
    return torchdata.StatefulDataLoader(Waiting(), **of(settings, batch_size=16))


def stateful_shards(**settings: Any) -> Any:
    torchdata: Any = importlib.import_module("torchdata.stateful_dataloader")
    return torchdata.StatefulDataLoader(Shards(), **of(settings, batch_size=16))


def _monai(transforms: list[str], data_class: str, length: int, settings: Mapping[str, Any]) -> Any:
    monai: Any = importlib.import_module("monai.data")
    made: Any = importlib.import_module("monai.transforms")
    options: dict[str, dict[str, Any]] = {
        "RandGaussianNoised": {"keys": "image", "prob": 1.0},
        "Flipd": {"keys": "image"},
    }
    steps = made.Compose([getattr(made, name)(**options[name]) for name in transforms])
    images = [{"image": torch.full((1, 48, 48), float(number))} for number in range(length)]
    data = getattr(monai, data_class)(images, steps)
    return monai.DataLoader(data, **of(settings, batch_size=8))


def monai_cached(**settings: Any) -> Any:
    return _monai(["Flipd"], "CacheDataset", 200, settings)


def monai_computed(**settings: Any) -> Any:
    return _monai(["Flipd", "RandGaussianNoised"], "Dataset", 4_000, settings)


class _Graphs(Waiting):
    def __getitem__(self, index: int) -> Any:
        data: Any = importlib.import_module("torch_geometric.data")
        nodes = 4 + index % 7
        edges = torch.stack([torch.arange(nodes - 1), torch.arange(1, nodes)])
        time.sleep(self.wait_s)
        return data.Data(x=torch.full((nodes, 4), float(index)), edge_index=edges)


def graphs(**settings: Any) -> Any:
    loader: Any = importlib.import_module("torch_geometric.loader")
    return loader.DataLoader(_Graphs(wait_s=0.001), **of(settings, batch_size=16))


def samples_of_graphs(batch: Any) -> int:
    """A batch of graphs is one big graph."""
    return int(batch.num_graphs)


def hf_rows(**settings: Any) -> Any:
    """A map-style dataset of rows, out of Arrow's memory."""
    datasets: Any = importlib.import_module("datasets")
    arrow: Any = importlib.import_module("pyarrow")
    rows = {"x": [[float(n)] * 16 for n in range(20_000)], "label": [n % 10 for n in range(20_000)]}
    # A fingerprint of our own: datasets can't pickle a table of the newest Arrow to make one.
    made = datasets.Dataset(arrow.table(rows), fingerprint="differential").with_format("torch")
    return DataLoader(made, **of(settings, batch_size=16))


def _rows(shards: list[int]) -> Iterator[Any]:
    for shard in shards:
        for number in range(1_000):
            time.sleep(0.001)
            yield {"x": [float(shard + number)] * 8}


def hf_stream(**settings: Any) -> Any:
    """An iterable dataset of eight shards."""
    datasets: Any = importlib.import_module("datasets")
    made = datasets.IterableDataset.from_generator(_rows, gen_kwargs={"shards": list(range(8))})
    return DataLoader(made.with_format("torch"), **of(settings, batch_size=16))


def hf_collator(**settings: Any) -> Any:
    """Rows that transformers' own function collates."""
    transformers: Any = importlib.import_module("transformers")
    options = of(settings, batch_size=16, collate_fn=transformers.default_data_collator)
    return DataLoader(Fields(wait_s=0.001), **options)


def lightning_module(**settings: Any) -> Any:
    """The loader of a LightningDataModule."""
    lightning: Any = importlib.import_module("lightning.pytorch")

    class Module(lightning.LightningDataModule):
        def train_dataloader(self) -> Any:
            return DataLoader(Waiting(length=6_000), **of(settings, batch_size=16, shuffle=True))

    return Module().train_dataloader()


def accelerated(**settings: Any) -> Any:
    """A loader that accelerate has prepared."""
    accelerate: Any = importlib.import_module("accelerate")
    loader = DataLoader(Waiting(length=4_000), **of(settings, batch_size=16))
    return accelerate.Accelerator(cpu=True).prepare(loader)


class _Counted(Waiting):
    """Samples that a Counter is made of."""

    def __getitem__(self, index: int) -> Any:
        compute(6_000)
        return torch.tensor([len(collections.Counter(str(index) * 200))], dtype=torch.float32)


def counted(**settings: Any) -> Any:
    return DataLoader(_Counted(), **of(settings, batch_size=64, shuffle=True))


_OWN: tuple[Callable[..., Any], ...] = (
    *(waits, waits_deep, computes, tiny, heavy_tail, megabytes, one_by_one, fields),
    *(fields_computed, listed, named, arrays, padded, weighted, own_sampler, buckets),
    *(batch_sampler, short, shortest, persisting, spawned, joined, fetched_together, sharded),
    *(endless, batches_itself, partial_batches, changing_sizes, batch_a_sample),
    *(shards_computed, chained, counted, copied, web_batched, web_single, web_loader),
    *(web_loader_rebatched, stateful, stateful_shards, monai_cached, monai_computed, graphs),
    *(hf_rows, hf_stream, hf_collator, lightning_module, accelerated),
)
LOADERS: Mapping[str, Callable[..., Any]] = {each.__name__: each for each in _OWN}
WRONG_WITH_WORKERS = ("copied",)
"""Loaders whose data is wrong with two workers: they have no rate there."""
PACKAGES = {
    **dict.fromkeys(("web_batched", "web_single", "web_loader"), "webdataset"),
    "web_loader_rebatched": "webdataset",
    "arrays": "numpy",
    **dict.fromkeys(("stateful", "stateful_shards"), "torchdata"),
    **dict.fromkeys(("monai_cached", "monai_computed"), "monai"),
    "graphs": "torch_geometric",
    **dict.fromkeys(("hf_rows", "hf_stream"), "datasets"),
    "hf_collator": "transformers",
    "lightning_module": "lightning",
    "accelerated": "accelerate",
}
"""What a loader needs beside torch."""
