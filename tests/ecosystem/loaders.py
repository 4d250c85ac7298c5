"""Loaders as users of each package write them: what ``dlprof sweep`` is given.

A sample waits for 4 ms, as for storage, so that workers bring the same on any machine. Files lie
where ``ECOSYSTEM_DATA`` says.
"""

from __future__ import annotations

import contextlib
import inspect
import io
import os
import tarfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch.utils.data import Dataset

WAIT_S = 0.004
SAMPLES, BATCH = 512, 8

_BY_HAND: dict[str, Any] = {}


def set_to(**own: Any) -> dict[str, Any]:
    """What a loader's settings are: its own, or those that ``by_hand_NAME`` was called with."""
    return {**own, **_BY_HAND} if _BY_HAND else own


def __getattr__(name: str) -> Callable[..., Any]:
    """``by_hand_NAME(**settings)``: the loader of NAME with settings as its users set them."""
    if not name.startswith("by_hand_"):
        raise AttributeError(name)

    def made(**settings: Any) -> Any:
        _BY_HAND.update(settings)
        make = globals()[name.removeprefix("by_hand_")]
        found = make(**{each: settings[each] for each in inspect.signature(make).parameters})
        if hasattr(found, "with_format"):  # a dataset of datasets, in a loader as dlprof makes it
            return torch.utils.data.DataLoader(found, batch_size=32, **settings)
        if hasattr(found, "get_train_dataloader"):
            return found.get_train_dataloader()
        if hasattr(found, "train_dataloader"):
            found.setup("fit")
            return found.train_dataloader()
        return found

    return made


def data() -> Path:
    """The folder of this package's files."""
    return Path(os.environ["ECOSYSTEM_DATA"])


def waited(sample: Any, count: int = 1) -> Any:
    time.sleep(count * WAIT_S)
    return sample


class Waiting(Dataset[Any]):
    """Samples that wait."""

    def __len__(self) -> int:
        return SAMPLES

    def __getitem__(self, index: int) -> Any:
        return waited({"x": torch.full((16,), float(index)), "y": index % 2})


# webdataset


def _shards(count: int = 8) -> list[str]:
    paths = [data() / f"shard-{number}.tar" for number in range(count)]
    for number, path in enumerate(paths):
        if path.exists():
            continue
        with tarfile.open(path, "w") as tar:
            for key in range(number, SAMPLES, count):
                content = str(key).encode()
                shown = tarfile.TarInfo(f"{key:05d}.txt")
                shown.size = len(content)
                tar.addfile(shown, io.BytesIO(content))
    return [str(path) for path in paths]


def _stages() -> Any:
    import webdataset as wds

    return wds.WebDataset(_shards(), shardshuffle=False).decode().to_tuple("txt").map(waited)


def web_dataset() -> Any:
    return _stages().batched(BATCH)


def web_loader() -> Any:
    import webdataset as wds

    return wds.WebLoader(_stages().batched(BATCH), batch_size=None, **set_to(num_workers=2))


def web_loader_rebatched() -> Any:
    import webdataset as wds

    loader = wds.WebLoader(_stages().batched(BATCH), batch_size=None, **set_to(num_workers=2))
    return loader.unbatched().shuffle(32).batched(BATCH)


def web_pipeline() -> Any:
    import webdataset as wds

    return wds.DataPipeline(
        wds.SimpleShardList(_shards()),
        wds.split_by_worker,
        wds.tarfile_to_samples(),
        wds.decode(),
        wds.to_tuple("txt"),
        wds.map(waited),
        wds.batched(BATCH),
    )


# datasets


def _table() -> Any:
    import datasets

    return datasets.Dataset.from_dict(
        {"x": [[float(number)] * 16 for number in range(SAMPLES)], "y": [0, 1] * (SAMPLES // 2)}
    )


def hf_map() -> Any:
    return _table().with_transform(lambda rows: waited(rows, len(rows["y"])))


def hf_formatted() -> Any:
    return _table().with_format("torch")


def hf_iterable() -> Any:
    return _table().to_iterable_dataset(num_shards=8).map(waited).with_format("torch")


def hf_unfed() -> Any:
    """Two shards for four workers: datasets gives two of them nothing, with a line in the log."""
    from torch.utils.data import DataLoader

    stream = _table().to_iterable_dataset(num_shards=2).shuffle(seed=0, buffer_size=16)
    return DataLoader(stream.map(waited).with_format("torch"), batch_size=BATCH, num_workers=4)


# torchdata


def stateful() -> Any:
    from torchdata.stateful_dataloader import StatefulDataLoader

    return StatefulDataLoader(Waiting(), batch_size=BATCH, **set_to(num_workers=1))


def nodes(num_workers: int) -> Any:
    import torchdata.nodes as tn

    samples = tn.IterableWrapper(range(SAMPLES))
    mapped = tn.ParallelMapper(samples, waited, num_workers=num_workers, method="process")
    return tn.Loader(tn.Batcher(mapped, BATCH))


def nodes_made() -> Any:
    import torchdata.nodes as tn

    samples = tn.IterableWrapper(range(SAMPLES))
    mapped = tn.ParallelMapper(samples, waited, num_workers=2, method="thread")
    return tn.Loader(tn.Batcher(mapped, BATCH))


# Lightning, transformers, accelerate


def data_module() -> Any:
    from lightning.pytorch import LightningDataModule
    from torch.utils.data import DataLoader

    class Data(LightningDataModule):
        def setup(self, stage: str) -> None:
            self.train = Waiting()

        def train_dataloader(self) -> Any:
            return DataLoader(self.train, batch_size=BATCH, shuffle=True, **set_to(num_workers=1))

        def val_dataloader(self) -> Any:
            return DataLoader(Waiting(), batch_size=BATCH)

    return Data()


def data_module_of_datasets() -> Any:
    from lightning.pytorch import LightningDataModule

    return LightningDataModule.from_datasets(Waiting(), batch_size=BATCH, **set_to(num_workers=1))


class Model(torch.nn.Module):
    """A model that takes what a sample holds."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(16, 2)

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> dict[str, torch.Tensor]:
        return {"loss": torch.nn.functional.cross_entropy(self.layer(x), y)}


def trainer() -> Any:
    from transformers import Trainer, TrainingArguments

    arguments = TrainingArguments(
        output_dir=str(data() / "out"),
        per_device_train_batch_size=BATCH,
        report_to=[],
        use_cpu=True,
        **{f"dataloader_{name}": value for name, value in set_to(num_workers=1).items()},
    )
    return Trainer(model=Model(), args=arguments, train_dataset=Waiting())


def prepared() -> Any:
    from accelerate import Accelerator
    from torch.utils.data import DataLoader

    return Accelerator(cpu=True).prepare(
        DataLoader(Waiting(), batch_size=BATCH, **set_to(num_workers=1))
    )


# MONAI


def monai_loader() -> Any:
    from monai.data import DataLoader
    from monai.data import Dataset as MonaiDataset

    rows = [{"x": float(number)} for number in range(SAMPLES)]
    return DataLoader(
        MonaiDataset(rows, transform=waited), batch_size=BATCH, **set_to(num_workers=1)
    )


def monai_cached() -> Any:
    from monai.data import CacheDataset, DataLoader

    rows = [{"x": float(number)} for number in range(SAMPLES)]
    cached = CacheDataset(rows, transform=None, cache_num=64, progress=False)
    return DataLoader(cached, batch_size=BATCH, **set_to(num_workers=1))


def monai_threads() -> Any:
    from monai.data import Dataset as MonaiDataset
    from monai.data import ThreadDataLoader

    rows = [{"x": float(number)} for number in range(SAMPLES)]
    return ThreadDataLoader(
        MonaiDataset(rows, transform=waited), batch_size=BATCH, **set_to(num_workers=0)
    )


# torch_geometric


def _graph(nodes: int) -> Any:
    from torch_geometric.data import Data

    edges = torch.randint(0, nodes, (2, nodes * 4), generator=torch.Generator().manual_seed(0))
    return Data(x=torch.randn(nodes, 16), edge_index=edges)


class _Graphs(Waiting):
    def __getitem__(self, index: int) -> Any:
        return waited(_graph(20))


def graphs() -> Any:
    from torch_geometric.loader import DataLoader

    return DataLoader(_Graphs(), batch_size=BATCH, **set_to(num_workers=1))


def samples_of_graphs(batch: Any) -> int:
    """A batch of graphs is one big graph."""
    return int(batch.num_graphs)


def graphs_prefetched() -> Any:
    """Of a loader that has no batch size: graphs are counted."""
    from torch_geometric.loader import PrefetchLoader

    return PrefetchLoader(graphs(), device=torch.device("cpu"))


def neighbors() -> Any:
    from torch_geometric import typing
    from torch_geometric.loader import NeighborLoader
    from torch_geometric.sampler import BaseSampler, SamplerOutput

    class Sampler(BaseSampler):
        """Of one hop, where PyG's own lacks what has to be built for torch."""

        def __init__(self, graph: Any) -> None:
            order = graph.edge_index[0].argsort()
            self.start = torch.bincount(graph.edge_index[0], minlength=graph.num_nodes).cumsum(0)
            self.to = graph.edge_index[1][order]

        def sample_from_nodes(self, index: Any, **_: Any) -> Any:
            seeds = index.node
            ends = [self.to[self.start[each] - 2 : self.start[each]] for each in seeds]
            rows = torch.arange(len(seeds)).repeat_interleave(torch.tensor([len(e) for e in ends]))
            node, place = torch.cat([seeds, *ends]).unique(return_inverse=True)
            return SamplerOutput(
                node=node,
                row=place[len(seeds) :],
                col=place[rows],
                edge=None,
                metadata=(index.input_id, index.time),
            )

        def sample_from_edges(self, *_: Any, **__: Any) -> Any:
            raise NotImplementedError

        @property
        def edge_permutation(self) -> None:
            return None

    own = typing.WITH_PYG_LIB or typing.WITH_TORCH_SPARSE
    graph = _graph(200)  # of a size at which torch starts no threads, which a fork does not survive
    return NeighborLoader(
        graph,
        num_neighbors=[2],
        neighbor_sampler=None if own else Sampler(graph),
        batch_size=BATCH,
        transform=lambda batch: waited(batch, BATCH),
        **set_to(num_workers=1),
    )


def samples_of_neighbors(batch: Any) -> int:
    """A batch of seeds is one graph around them."""
    return int(batch.batch_size)


# timm


def _with_torchvision() -> None:
    """Import torchvision where its operators can't be loaded, as of a build for CUDA: none is used.

    It lies beside the environment (``.ci/ecosystem``): others look whether it is there, and fail.
    """
    import importlib.util
    import re
    import sys

    sys.path.append(str(Path(sys.prefix) / "vision"))
    found = importlib.util.find_spec("torchvision")
    if found is None or found.origin is None or "torchvision" in sys.modules:
        return
    registered = Path(found.origin).with_name("_meta_registrations.py").read_text()
    library = torch.library.Library("torchvision", "FRAGMENT")
    for name in set(re.findall(r'register_meta\("(\w+)"\)|"torchvision::(\w+)"', registered)):
        with contextlib.suppress(RuntimeError):  # it is there
            library.define(f"{name[0] or name[1]}(Tensor x) -> Tensor")
    _LIBRARIES.append(library)


_LIBRARIES: list[Any] = []


class _Images(Dataset[Any]):
    def __init__(self) -> None:
        self.transform: Any = None

    def __len__(self) -> int:
        return SAMPLES

    def __getitem__(self, index: int) -> Any:
        from PIL import Image

        waited(None)
        image = Image.new("RGB", (64, 64), (index % 255, 0, 0))
        return self.transform(image), index % 2


def _set_for_timm(**own: Any) -> dict[str, Any]:
    """The same as ``create_loader`` takes them, whose workers persist where nothing is said."""
    settings = set_to(**own)
    settings.pop("prefetch_factor", None)  # which it has not
    return {"persistent_workers": False, **settings} if _BY_HAND else settings


def timm_loader() -> Any:
    _with_torchvision()
    from timm.data import create_loader

    return create_loader(
        _Images(),
        input_size=(3, 32, 32),
        batch_size=BATCH,
        is_training=True,
        device=torch.device("cpu"),
        **_set_for_timm(num_workers=1),
    )


def _without_prefetcher(*, use_multi_epochs_loader: bool) -> Any:
    _with_torchvision()
    from timm.data import create_loader

    return create_loader(
        _Images(),
        input_size=(3, 32, 32),
        batch_size=BATCH,
        is_training=True,
        use_prefetcher=False,
        use_multi_epochs_loader=use_multi_epochs_loader,
        device=torch.device("cpu"),
        **_set_for_timm(num_workers=1, persistent_workers=False),
    )


def timm_plain() -> Any:
    return _without_prefetcher(use_multi_epochs_loader=False)


def timm_multi_epochs() -> Any:
    return _without_prefetcher(use_multi_epochs_loader=True)


# litdata, mosaicml-streaming


def _row(number: int) -> dict[str, Any]:
    return {"x": torch.full((16,), float(number)), "y": number % 2}


def lit() -> Any:
    import litdata

    folder = data() / "lit"
    if not folder.exists():
        litdata.optimize(
            fn=_row,
            inputs=list(range(SAMPLES)),
            output_dir=str(folder),
            chunk_size=64,
            num_workers=1,
            start_method="fork",
        )
    dataset = litdata.StreamingDataset(str(folder), transform=waited)
    return litdata.StreamingDataLoader(dataset, batch_size=BATCH, **set_to(num_workers=1))


def mosaic() -> Any:
    import numpy as np

    _with_torchvision()
    from streaming import MDSWriter, StreamingDataset
    from torch.utils.data import DataLoader

    folder = data() / "mosaic"
    if not folder.exists():
        columns = {"x": "ndarray", "y": "int"}
        with MDSWriter(out=str(folder), columns=columns, size_limit=1 << 14) as out:
            for number in range(SAMPLES):
                out.write({"x": np.full(16, number, np.float32), "y": number % 2})

    class Samples(StreamingDataset):
        def __getitem__(self, index: Any) -> Any:
            return waited(super().__getitem__(index))

    return DataLoader(
        Samples(local=str(folder), batch_size=BATCH), batch_size=BATCH, **set_to(num_workers=1)
    )


# SPDL, lhotse, Ray


def _stacked(numbers: list[int]) -> Any:
    return torch.tensor(numbers).unsqueeze(1)


def spdl_pipeline() -> Any:
    from spdl.pipeline import PipelineBuilder

    return (
        PipelineBuilder()
        .add_source(list(range(SAMPLES)))
        .pipe(waited, concurrency=4)
        .aggregate(BATCH)
        .pipe(_stacked)
        .add_sink(4)
        .build(num_threads=4)
    )


def spdl_loader() -> Any:
    from spdl.dataloader import DataLoader

    return DataLoader(
        list(range(SAMPLES)),
        batch_size=BATCH,
        preprocessor=waited,
        aggregator=_stacked,
        num_threads=4,
    )


def speech() -> Any:
    import wave

    import numpy as np
    from lhotse import CutSet, MonoCut, Recording
    from lhotse.dataset import SimpleCutSampler, UnsupervisedWaveformDataset
    from torch.utils.data import DataLoader

    folder = data() / "speech"
    path = folder / "cuts.jsonl"
    if not path.exists():
        folder.mkdir(parents=True, exist_ok=True)
        cuts = []
        for number in range(SAMPLES):
            name = folder / f"{number}.wav"
            noise = np.random.default_rng(number).normal(0, 3e3, 16_000)
            with wave.open(str(name), "wb") as out:
                out.setparams((1, 2, 16_000, 0, "NONE", ""))
                out.writeframes(noise.astype("<i2").tobytes())
            recording = Recording.from_file(name)
            cuts.append(
                MonoCut(id=str(number), start=0, duration=1.0, channel=0, recording=recording)
            )
        CutSet.from_cuts(cuts).to_file(path)

    class Cuts(UnsupervisedWaveformDataset):
        def __getitem__(self, cuts: Any) -> Any:
            return waited(super().__getitem__(cuts), len(cuts))

    sampler = SimpleCutSampler(CutSet.from_file(path), max_duration=8.0)
    return DataLoader(Cuts(), sampler=sampler, batch_size=None, **set_to(num_workers=1))


def ray_batches() -> Any:
    import ray

    ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False, ignore_reinit_error=True)
    return ray.data.range(SAMPLES * 8).iter_torch_batches(batch_size=BATCH)
