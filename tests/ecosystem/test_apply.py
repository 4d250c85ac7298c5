"""A recommendation set in the framework that makes the loader, with the real package."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader, TensorDataset

from dlprof.errors import TargetError
from dlprof.records import Config, Expected, Recommendation
from dlprof.records.config import Estimate

ROWS = TensorDataset(torch.arange(24.0).reshape(-1, 1), torch.arange(24) % 2)


def _advised(**settings: Any) -> Recommendation:
    config = Config(**settings)
    return Recommendation(
        config=config,
        dataloader_kwargs=config.dataloader_kwargs(),
        expected=Expected(samples_per_s=Estimate(value=1.0)),
        confidence="high",
        confidence_reason="",
    )


FOUR = _advised(num_workers=4, prefetch_factor=3, persistent_workers=True, batch_size=8)
NONE = _advised(num_workers=0)


def _trainer(folder: Path) -> Any:
    transformers = pytest.importorskip("transformers")

    class Model(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = torch.nn.Linear(1, 2)

        def forward(self, x: Any, labels: Any) -> Any:
            scores = self.layer(x)
            return torch.nn.functional.cross_entropy(scores, labels), scores

    def collate(rows: list[Any]) -> dict[str, Any]:
        return {"x": torch.stack([x for x, _ in rows]), "labels": torch.stack([y for _, y in rows])}

    arguments = transformers.TrainingArguments(
        output_dir=str(folder),
        dataloader_num_workers=2,
        dataloader_prefetch_factor=2,
        per_device_train_batch_size=4,
        report_to=[],
        use_cpu=True,
        max_steps=2,
        remove_unused_columns=False,
    )
    return transformers.Trainer(Model(), arguments, train_dataset=ROWS, data_collator=collate)


def test_a_trainer_of_hugging_face_loads_as_advised(tmp_path: Path) -> None:
    trainer = _trainer(tmp_path)
    before = trainer.args
    assert FOUR.apply(trainer) is trainer
    loader = trainer.get_train_dataloader()
    assert (loader.num_workers, loader.prefetch_factor, loader.persistent_workers) == (4, 3, True)
    assert next(iter(loader))["x"].shape == (8, 1)
    assert (before.dataloader_num_workers, before.per_device_train_batch_size) == (2, 4)
    assert NONE.apply(trainer).get_train_dataloader().num_workers == 0
    trainer.train()


def test_training_arguments_are_copied(tmp_path: Path) -> None:
    arguments = _trainer(tmp_path).args
    made = FOUR.apply(arguments)
    assert (made.dataloader_num_workers, made.per_device_train_batch_size) == (4, 8)
    assert (arguments.dataloader_num_workers, arguments.per_device_train_batch_size) == (2, 4)
    with pytest.raises(TargetError, match="has no worker_threads"):
        _advised(num_workers=1, worker_threads=2).apply(arguments)


@pytest.mark.slow
def test_a_data_module_of_lightning_gives_loaders_as_advised(tmp_path: Path) -> None:
    pl: Any = pytest.importorskip("lightning.pytorch")

    class Data(pl.LightningDataModule):
        def setup(self, stage: str) -> None:
            self.rows = ROWS

        def train_dataloader(self) -> Any:
            return DataLoader(self.rows, batch_size=4, num_workers=2)

    seen: list[int] = []

    class Model(pl.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.layer = torch.nn.Linear(1, 2)

        def training_step(self, batch: Any, _index: int) -> Any:
            seen.append(len(batch[0]))
            return torch.nn.functional.cross_entropy(self.layer(batch[0]), batch[1])

        def configure_optimizers(self) -> Any:
            return torch.optim.SGD(self.parameters(), lr=0.01)

    module = Data()
    once = _advised(num_workers=1, batch_size=8).apply(module)
    made = dataclasses.replace(NONE, config=Config(batch_size=12)).apply(once)
    trainer = pl.Trainer(
        default_root_dir=tmp_path,
        accelerator="cpu",
        max_epochs=1,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    trainer.fit(Model(), datamodule=made)
    assert seen == [12, 12]
    assert made.train_dataloader().num_workers == 0
    once.setup("fit")
    assert once.train_dataloader().num_workers == 1
    module.setup("fit")
    assert module.train_dataloader().num_workers == 2
