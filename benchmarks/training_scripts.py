"""Whole trainings on the CPU, as people write them: ``python training_scripts.py NAME``.

``LOADER_SETTINGS`` holds arguments of DataLoader for loaders by the class of their dataset, such
as ``{"Train": {"num_workers": 4}}``: the settings that a fix asks for, over those that stand here.
Nothing here knows dlprof.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import os
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset, IterableDataset, get_worker_info

SETTINGS = "LOADER_SETTINGS"
_OF_WORKERS = ("prefetch_factor", "persistent_workers", "multiprocessing_context")
_FEATURES = 64


def burn(seconds: float) -> None:
    """Keep a core busy with plain Python for so much of its time, whatever the core's speed."""
    ends = time.thread_time() + seconds
    while time.thread_time() < ends:
        sum(range(50))


class Samples(Dataset[Any]):
    """Samples that wait, and then compute, for so many seconds each."""

    def __init__(self, length: int, *, wait_s: float = 0.0, cpu_s: float = 0.0) -> None:
        self.length, self.wait_s, self.cpu_s = length, wait_s, cpu_s

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: int) -> Any:
        if index >= self.length:
            raise IndexError(index)
        if self.wait_s:
            time.sleep(self.wait_s)
        if self.cpu_s:
            burn(self.cpu_s)
        return torch.full((_FEATURES,), index / self.length), index % 10


class Train(Samples):
    """What is trained on."""


class Second(Samples):
    """What is trained on beside it."""


class Validation(Samples):
    """What is validated on."""


class Stream(IterableDataset[Any]):
    """Shards that are shared among the workers; each sample waits."""

    def __init__(self, shards: int, *, of_each: int, wait_s: float) -> None:
        self.shards, self.of_each, self.wait_s = shards, of_each, wait_s

    def __iter__(self) -> Any:
        mine = get_worker_info()
        first, stride = (0, 1) if mine is None else (mine.id, mine.num_workers)
        for shard in range(first, self.shards, stride):
            for number in range(self.of_each):
                time.sleep(self.wait_s)
                yield torch.full((_FEATURES,), float(shard)), number % 10


def settings(*data: Any, **own: Any) -> dict[str, Any]:
    """The arguments that stand in the script, those of the environment over them."""
    merged, given = dict(own), json.loads(os.environ.get(SETTINGS, "{}"))
    for each in data:
        merged |= given.get(type(each).__name__, {})
    if not merged.get("num_workers"):
        return {name: value for name, value in merged.items() if name not in _OF_WORKERS}
    return merged


def model(width: int = 32) -> nn.Sequential:
    """A perceptron; a width of 1,500 computes for some milliseconds at 32 samples."""
    return nn.Sequential(
        nn.Linear(_FEATURES, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU(),
        nn.Linear(width, 10),
    )  # fmt: skip


def stepper(width: int, sleep_s: float = 0.0) -> Callable[[Any], None]:
    """A training step: forward, backward and the optimizer, and a device that takes its time."""
    net = model(width)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.01)

    def step(batch: Any) -> None:
        features, labels = batch
        loss = nn.functional.cross_entropy(net(features), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if sleep_s:
            time.sleep(sleep_s)

    return step


def epochs(loader: Any, step: Callable[[Any], None], count: int) -> None:
    """A plain training."""
    for _ in range(count):
        for batch in loader:
            step(batch)


def slow_samples() -> None:
    """Samples that wait for 8 ms, two epochs, a step that sleeps."""
    data = Train(640, wait_s=0.008)
    loader = DataLoader(data, **settings(data, batch_size=16, num_workers=2))
    epochs(loader, stepper(32, 0.005), 2)


def storage() -> None:
    """Samples that wait for 1.5 ms, loaded in the main process beside a device that computes."""
    data = Train(1600, wait_s=0.0015)
    loader = DataLoader(data, **settings(data, batch_size=16, num_workers=0))
    epochs(loader, stepper(32, 0.015), 2)


def plain_python() -> None:
    """Samples that compute beside a device that computes."""
    data = Train(1600, cpu_s=0.001)
    loader = DataLoader(data, **settings(data, batch_size=16, num_workers=0))
    epochs(loader, stepper(32, 0.010), 2)


def shared_cores() -> None:
    """Samples that compute, and a step that computes on the same cores."""
    data = Train(1600, cpu_s=0.001)
    loader = DataLoader(data, **settings(data, batch_size=32, num_workers=0))
    epochs(loader, stepper(1500), 3)


def waiting_cores() -> None:
    """Samples that wait, and a step that computes on all cores."""
    data = Train(1600, wait_s=0.001)
    loader = DataLoader(data, **settings(data, batch_size=32, num_workers=1))
    epochs(loader, stepper(1500), 3)


def spawned() -> None:
    """Workers that are spawned again for each of three short epochs."""
    data = Train(480, wait_s=0.004)
    options = settings(data, batch_size=16, num_workers=2, multiprocessing_context="spawn")
    epochs(DataLoader(data, **options), stepper(32, 0.005), 3)


def spawned_once() -> None:
    """Two spawned workers that persist, and too few of them."""
    data = Train(960, wait_s=0.006)
    options = settings(
        data,
        batch_size=16,
        num_workers=2,
        multiprocessing_context="spawn",
        persistent_workers=True,
    )
    epochs(DataLoader(data, **options), stepper(32, 0.005), 3)


def _open_index(_worker: int) -> None:
    """What some datasets do in each of their workers."""
    time.sleep(0.25)


def short_epochs() -> None:
    """Twelve epochs of ten batches, and workers that open something first."""
    data = Train(160, wait_s=0.001)
    options = settings(data, batch_size=16, num_workers=2)
    loader = DataLoader(data, worker_init_fn=_open_index, **options)
    epochs(loader, stepper(32, 0.005), 12)


def validated() -> None:
    """A training with a validation after each of its three epochs."""
    data, held_out = Train(800, wait_s=0.002), Validation(320, wait_s=0.0005)
    loader = DataLoader(data, shuffle=True, **settings(data, batch_size=16, num_workers=1))
    checks = DataLoader(held_out, **settings(held_out, batch_size=32, num_workers=1))
    net_step, check = stepper(256, 0.004), model(256)
    for _ in range(3):
        for batch in loader:
            net_step(batch)
        with torch.no_grad():
            for features, labels in checks:
                nn.functional.cross_entropy(check(features), labels)
                time.sleep(0.004)


def two_loaders() -> None:
    """Two loaders side by side; the second is the slow one."""
    first, second = Train(1600, wait_s=0.0002), Second(1600, wait_s=0.002)
    one = DataLoader(first, **settings(first, batch_size=16, num_workers=1))
    two = DataLoader(second, **settings(second, batch_size=16, num_workers=1))
    step = stepper(32, 0.004)
    for _ in range(2):
        for batch, (features, _labels) in zip(one, two, strict=True):
            step((batch[0] + features, batch[1]))


def sharded() -> None:
    """An iterable dataset of four shards with one worker."""
    data = Stream(4, of_each=240, wait_s=0.004)
    loader = DataLoader(data, **settings(data, batch_size=16, num_workers=1))
    epochs(loader, stepper(32, 0.005), 2)


def cheap_samples() -> None:
    """Samples that cost nothing, in two workers, and a small step that computes."""
    data = Train(20_000)
    loader = DataLoader(data, **settings(data, batch_size=8, num_workers=2))
    epochs(loader, stepper(32), 2)


def fed() -> None:
    """Nothing is wrong: two workers keep the step fed."""
    data = Train(1600, wait_s=0.001)
    loader = DataLoader(data, **settings(data, batch_size=16, num_workers=2))
    epochs(loader, stepper(32, 0.025), 2)


class _Rows(Dataset[Any]):
    """What Hugging Face's Trainer takes: rows by name."""

    def __init__(self, samples: Samples) -> None:
        self.samples = samples

    def __len__(self) -> int:
        return len(self.samples)

    def __getitem__(self, index: int) -> Any:
        features, label = self.samples[index]
        return {"features": features, "labels": label}


class TrainRows(_Rows):
    """Rows that are trained on."""


class ValidationRows(_Rows):
    """Rows that are validated on."""


class _WithLoss(nn.Module):
    """What Hugging Face's Trainer trains: a module that gives its loss."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.net = model(width)

    def forward(self, features: Any, labels: Any) -> Any:
        """Loss and logits."""
        logits = self.net(features)
        return {"loss": nn.functional.cross_entropy(logits, labels), "logits": logits}


def _hugging_face(data: TrainRows, held_out: ValidationRows, width: int, workers: int) -> None:
    transformers: Any = importlib.import_module("transformers")
    # One set of settings is for both loaders there, as for all users of the Trainer.
    options = settings(held_out, data, num_workers=workers)
    if "multiprocessing_context" in options:
        raise SystemExit("the Trainer takes no multiprocessing_context")
    with tempfile.TemporaryDirectory() as folder:
        arguments = transformers.TrainingArguments(
            output_dir=folder,
            num_train_epochs=2,
            per_device_train_batch_size=16,
            per_device_eval_batch_size=16,
            eval_strategy="epoch",
            save_strategy="no",
            report_to=[],
            disable_tqdm=True,
            use_cpu=True,
            remove_unused_columns=False,
            **{f"dataloader_{name}": value for name, value in options.items()},
        )
        transformers.Trainer(
            model=_WithLoss(width), args=arguments, train_dataset=data, eval_dataset=held_out
        ).train()


def hf_waiting() -> None:
    """Hugging Face's Trainer over samples that wait, with an evaluation after each epoch."""
    held_out = ValidationRows(Validation(160, wait_s=0.003))
    _hugging_face(TrainRows(Train(960, wait_s=0.003)), held_out, 128, workers=0)


def hf_computing() -> None:
    """Hugging Face's Trainer over samples that compute, and a step that does, too."""
    held_out = ValidationRows(Validation(160, cpu_s=0.001))
    _hugging_face(TrainRows(Train(1600, cpu_s=0.001)), held_out, 1024, workers=1)


def _lightning(data: Train, held_out: Validation, width: int, workers: int) -> None:
    lightning: Any = importlib.import_module("lightning.pytorch")

    class Module(lightning.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.net = model(width)

        def training_step(self, batch: Any, _index: int) -> Any:
            return nn.functional.cross_entropy(self.net(batch[0]), batch[1])

        def validation_step(self, batch: Any, _index: int) -> None:
            self.net(batch[0])

        def configure_optimizers(self) -> Any:
            return torch.optim.SGD(self.parameters(), lr=0.01)

    trainer = lightning.Trainer(
        max_epochs=3,
        accelerator="cpu",
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    trainer.fit(
        Module(),
        DataLoader(data, **settings(data, batch_size=16, num_workers=workers)),
        DataLoader(held_out, **settings(held_out, batch_size=16, num_workers=0)),
    )


def lightning_waiting() -> None:
    """Lightning over samples that wait, with a validation after each epoch."""
    _lightning(Train(960, wait_s=0.003), Validation(96, wait_s=0.001), 128, workers=0)


def lightning_computing() -> None:
    """Lightning over samples that compute, and a step that computes on the same cores."""
    _lightning(Train(1600, cpu_s=0.001), Validation(96, cpu_s=0.001), 1024, workers=0)


def accelerated() -> None:
    """Accelerate around a plain loop over samples that wait."""
    accelerate: Any = importlib.import_module("accelerate")
    accelerator = accelerate.Accelerator(cpu=True)
    data, net = Train(1280, wait_s=0.003), model(128)
    loader: Any = DataLoader(data, **settings(data, batch_size=16, num_workers=1))
    optimizer: Any = torch.optim.SGD(net.parameters(), lr=0.01)
    net, optimizer, loader = accelerator.prepare(net, optimizer, loader)
    for _ in range(3):
        for features, labels in loader:
            optimizer.zero_grad()
            accelerator.backward(nn.functional.cross_entropy(net(features), labels))
            optimizer.step()


TRAININGS: Mapping[str, Callable[[], None]] = {
    each.__name__: each
    for each in (
        *(slow_samples, storage, plain_python, shared_cores, waiting_cores, spawned),
        *(spawned_once, short_epochs, validated, two_loaders, sharded, cheap_samples, fed),
        *(hf_waiting, hf_computing, lightning_waiting, lightning_computing, accelerated),
    )
}
PACKAGES = {
    "hf_waiting": "transformers",
    "hf_computing": "transformers",
    "lightning_waiting": "lightning",
    "lightning_computing": "lightning",
    "accelerated": "accelerate",
}
"""What a training needs beside torch."""


def main() -> None:
    """Train."""
    torch.manual_seed(0)
    with contextlib.redirect_stdout(sys.stderr):
        TRAININGS[sys.argv[1]]()


if __name__ == "__main__":
    main()
