"""Callbacks, loggers and the magic, each with the real package, in small trainings on a CPU."""

from __future__ import annotations

import copy
import gc
import importlib
import itertools
import json
import multiprocessing
import pickle
import struct
import subprocess
import sys
import time
import types
import weakref
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader, Dataset, get_worker_info
from waiting import until

import dlprof
from dlprof.errors import FileError, UsageError
from dlprof.integrations import callbacks, loggers
from dlprof.integrations.watch import load_ipython_extension, watch_in_place
from dlprof.tuning import loader as tuned
from dlprof.tuning.control import Ask, Control, Setting, Window
from dlprof.tuning.loader import Tuning

WAIT_S = 0.01
SAMPLES = 24


class Rows(Dataset[dict[str, torch.Tensor]]):
    """Rows that take a while to load; as Lightning's batches and as the Trainer's."""

    def __len__(self) -> int:
        return SAMPLES

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        time.sleep(WAIT_S)
        return {"x": torch.full((4,), float(index)), "labels": torch.tensor(index % 2)}


def _as_script(monkeypatch: pytest.MonkeyPatch) -> None:
    """As in ``python train.py --lr 0.1``, for what is said at the end."""
    monkeypatch.setattr(sys, "argv", ["train.py", "--lr", "0.1"])
    main = sys.modules["__main__"]
    monkeypatch.setattr(main, "__file__", "train.py", raising=False)
    monkeypatch.setattr(main, "__spec__", None, raising=False)


def _rows_of(batches: list[Any]) -> list[float]:
    return sorted(float(x) for batch in batches for x in batch["x"][:, 0])


def _lightning_training(tmp_path: Path, loader: Any, **options: Any) -> tuple[Any, list[Any]]:
    pl: Any = pytest.importorskip("lightning.pytorch")
    seen: list[Any] = []

    class Model(pl.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.layer = torch.nn.Linear(4, 2)

        def training_step(self, batch: Any, _index: int) -> Any:
            seen.append(batch)
            return torch.nn.functional.cross_entropy(self.layer(batch["x"]), batch["labels"])

        def validation_step(self, batch: Any, _index: int) -> None:
            self.layer(batch["x"])

        def configure_optimizers(self) -> Any:
            return torch.optim.SGD(self.parameters(), lr=0.01)

    trainer = pl.Trainer(
        default_root_dir=tmp_path,
        accelerator="cpu",
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        **options,
    )
    trainer.fit(Model(), loader, DataLoader(Rows(), batch_size=12))
    return trainer, seen


@pytest.mark.parametrize("workers", [pytest.param(0, marks=pytest.mark.slow), 2])
def test_lightning_logs_the_wait_and_says_what_to_run(
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    workers: int,
) -> None:
    loggers_of_lightning = pytest.importorskip("lightning.pytorch.loggers")
    logger = loggers_of_lightning.CSVLogger(tmp_path)
    loader = DataLoader(
        Rows(), batch_size=4, num_workers=workers, persistent_workers=workers > 0, shuffle=True
    )
    plain, callback = type(loader), callbacks.lightning(every=4)
    _as_script(monkeypatch)
    trainer, seen = _lightning_training(
        tmp_path, loader, callbacks=[callback], logger=logger, max_epochs=2, log_every_n_steps=1
    )

    assert _rows_of(seen) == sorted([*map(float, range(SAMPLES))] * 2)
    assert type(loader) is plain
    assert "process_dataloader" not in vars(trainer.strategy)
    rows = (Path(logger.log_dir) / "metrics.csv").read_text().splitlines()
    names = rows[0].split(",")
    batches = [row.split(",")[names.index("dlprof/batches")] for row in rows[1:]]
    assert [float(each) for each in batches if each] == [4.0, 6.0, 10.0, 12.0]
    waits = [row.split(",")[names.index("dlprof/waited_s")] for row in rows[1:]]
    if not workers:  # nothing loads during the step: all of it is waited for
        assert float([each for each in waits if each][-1]) >= 2 * SAMPLES * WAIT_S
    said = capsys.readouterr().err
    assert "dlprof: The loop over train_dataloader spends" in said
    assert "dlprof run train.py ARGS\n" in said


def test_lightning_has_its_training_loader_tune_itself_if_asked(tmp_path: Path) -> None:
    loader = DataLoader(Rows(), batch_size=4, num_workers=2, shuffle=True)
    trainer, seen = _lightning_training(
        tmp_path, loader, callbacks=[callbacks.lightning(tune=True)], logger=False, max_epochs=2
    )
    assert _rows_of(seen) == sorted([*map(float, range(SAMPLES))] * 2)
    assert trainer.train_dataloader is loader
    assert isinstance(loader.tuning, Tuning)
    assert not loader.tuning.off
    assert not hasattr(trainer.val_dataloaders, "tuning")


def test_lightning_with_loaders_that_are_made_each_epoch(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    loggers_of_lightning = pytest.importorskip("lightning.pytorch.loggers")
    logger = loggers_of_lightning.CSVLogger(tmp_path)
    loader = DataLoader(Rows(), batch_size=12)
    _lightning_training(
        tmp_path,
        loader,
        callbacks=[callbacks.lightning()],
        logger=logger,
        max_epochs=3,
        reload_dataloaders_every_n_epochs=1,
        num_sanity_val_steps=1,
    )
    assert type(loader) is DataLoader
    rows = (Path(logger.log_dir) / "metrics.csv").read_text().splitlines()
    at = rows[0].split(",").index("dlprof/batches")
    assert [float(row.split(",")[at]) for row in rows[1:]] == [2.0, 4.0, 6.0]
    assert "dlprof: The loop over train_dataloader spends" in capsys.readouterr().err


def test_two_loaders_of_lightning_are_logged_apart(tmp_path: Path) -> None:
    loggers_of_lightning = pytest.importorskip("lightning.pytorch.loggers")
    logger = loggers_of_lightning.CSVLogger(tmp_path)
    pl: Any = pytest.importorskip("lightning.pytorch")

    class Pairs(pl.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.layer = torch.nn.Linear(4, 2)

        def training_step(self, batch: Any, _index: int) -> Any:
            return self.layer(batch["a"]["x"]).mean() + self.layer(batch["b"]["x"]).mean()

        def configure_optimizers(self) -> Any:
            return torch.optim.SGD(self.parameters(), lr=0.01)

    trainer = pl.Trainer(
        default_root_dir=tmp_path,
        accelerator="cpu",
        max_epochs=1,
        logger=logger,
        enable_checkpointing=False,
        enable_progress_bar=False,
        callbacks=[callbacks.lightning(every=1)],
    )
    loader = DataLoader(Rows(), batch_size=12)
    trainer.fit(Pairs(), {"a": loader, "b": DataLoader(Rows(), batch_size=12)})
    names = (Path(logger.log_dir) / "metrics.csv").read_text().splitlines()[0].split(",")
    assert {"dlprof/wait_fraction", "dlprof/1/wait_fraction"} <= set(names)


def test_lightning_callback_leaves_the_loader_as_it_was_where_training_fails(
    tmp_path: Path,
) -> None:
    pl: Any = pytest.importorskip("lightning.pytorch")

    class Failing(pl.Callback):
        def on_train_batch_end(self, *_given: Any, **_more: Any) -> None:
            raise RuntimeError("the training's own")

    loader = DataLoader(Rows(), batch_size=4)
    with pytest.raises(RuntimeError, match="the training's own"):
        _lightning_training(
            tmp_path, loader, callbacks=[callbacks.lightning(), Failing()], logger=False
        )
    assert type(loader) is DataLoader


def test_lightning_callback_can_be_copied_and_pickled() -> None:
    pytest.importorskip("lightning.pytorch")
    callback = callbacks.lightning(every=7)
    for again in (copy.deepcopy(callback), pickle.loads(pickle.dumps(callback))):
        assert again._every == 7


class _Model(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(4, 2)

    def forward(self, x: torch.Tensor, labels: torch.Tensor) -> dict[str, torch.Tensor]:
        logits = self.layer(x)
        return {"loss": torch.nn.functional.cross_entropy(logits, labels), "logits": logits}


@pytest.mark.parametrize("workers", [0, 2])
def test_the_hugging_face_trainer_logs_the_wait_and_says_what_to_run(
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    workers: int,
) -> None:
    transformers = pytest.importorskip("transformers")
    pytest.importorskip("accelerate")
    pytest.importorskip("tensorboard")
    arguments = transformers.TrainingArguments(
        str(tmp_path / "out"),
        per_device_train_batch_size=4,
        dataloader_num_workers=workers,
        num_train_epochs=2,
        save_strategy="no",
        logging_steps=4,
        report_to=["tensorboard"],
        use_cpu=True,
        disable_tqdm=True,
    )
    trainer = transformers.Trainer(_Model(), arguments, train_dataset=Rows())
    trainer.add_callback(callbacks.transformers(trainer))
    _as_script(monkeypatch)
    trainer.train()

    logged = [each for each in trainer.state.log_history if "dlprof/wait_fraction" in each]
    assert [each["step"] for each in logged] == [4, 6, 10, 12]
    losses = [each["step"] for each in trainer.state.log_history if "loss" in each]
    assert losses == [4, 8, 12]  # as without it
    assert all(0.0 < each["dlprof/wait_fraction"] <= 1.0 for each in logged)
    said = capsys.readouterr().err
    assert "dlprof: The loop over train_dataloader spends" in said
    assert "dlprof run train.py ARGS\n" in said
    assert any("dlprof/wait_fraction" in tag for tag in _board(tmp_path))


def test_the_hugging_face_trainer_logs_the_rest_of_an_epoch_that_it_goes_on_with(
    tmp_path: Path,
) -> None:
    transformers = pytest.importorskip("transformers")
    accelerate = pytest.importorskip("accelerate")

    def trained(*, resume: bool, **more: Any) -> set[int]:
        arguments = transformers.TrainingArguments(
            str(tmp_path / "out"),
            per_device_train_batch_size=4,
            save_steps=2,
            logging_steps=1,
            report_to=[],
            use_cpu=True,
            disable_tqdm=True,
            **more,
        )
        trainer = transformers.Trainer(_Model(), arguments, train_dataset=Rows())
        trainer.add_callback(callbacks.transformers(trainer))
        trainer.train(resume_from_checkpoint=resume)
        history = trainer.state.log_history
        return {each["step"] for each in history if "dlprof/wait_fraction" in each}

    assert trained(resume=False, max_steps=2) == {1, 2}
    assert trained(resume=True, num_train_epochs=2) >= {*range(3, 13)}
    module = sys.modules[transformers.Trainer.__module__]
    assert module.skip_first_batches is accelerate.skip_first_batches


class Restless(Control):
    """Has other workers with every batch or two."""

    def begin(self) -> Ask:
        self._following = itertools.cycle([Setting(4, 2), Setting(1, 1), Setting(3, 3)])
        return Ask(self.kept, 0, 1, 0.0)

    def look(self, window: Window) -> Ask:
        del window
        return Ask(next(self._following), 0, 1, 0.0)


class _ByWorkers(Rows):
    """Rows that say who loaded them."""

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        row, info = super().__getitem__(index), get_worker_info()
        row["x"][1] = -1 if info is None else info.id
        return row


@pytest.mark.parametrize("persistent", [False, True])
def test_the_hugging_face_trainer_has_its_loader_tune_itself_if_asked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, persistent: bool
) -> None:
    """The same rows in the same order, by other workers, of which none is left."""
    transformers = pytest.importorskip("transformers")
    pytest.importorskip("accelerate")
    monkeypatch.setattr(tuned, "Control", Restless)
    monkeypatch.setattr(tuned, "_SHORT_EPOCH", 0)
    tunings: list[Tuning] = []

    def trained(*, tune: bool) -> tuple[list[float], set[float], float]:
        seen: list[Any] = []

        class Model(_Model):
            def forward(self, x: torch.Tensor, labels: torch.Tensor) -> dict[str, torch.Tensor]:
                seen.append(x.clone())
                return super().forward(x[:, [0, 2, 2, 2]] / SAMPLES, labels)

        def kept(_self: Any, *_given: Any, train_dataloader: Any, **_more: Any) -> None:
            tunings.extend([train_dataloader.tuning] if tune else [])

        arguments = transformers.TrainingArguments(
            str(tmp_path / "out"),
            per_device_train_batch_size=2,
            dataloader_num_workers=2,
            dataloader_persistent_workers=persistent,
            num_train_epochs=2,
            save_strategy="no",
            report_to=[],
            use_cpu=True,
            disable_tqdm=True,
            seed=7,
        )
        torch.manual_seed(7)
        trainer = transformers.Trainer(Model(), arguments, train_dataset=_ByWorkers())
        trainer.add_callback(callbacks.transformers(trainer, tune=tune))
        base = transformers.TrainerCallback
        trainer.add_callback(type("Kept", (base,), {"on_epoch_end": kept})())
        loss: float = trainer.train().training_loss
        rows = torch.cat(seen)
        return rows[:, 0].tolist(), set(rows[:, 1].tolist()), loss

    before = set(multiprocessing.active_children())
    order, workers, loss = trained(tune=False)
    assert workers == {0.0, 1.0}
    assert trained(tune=True) == (order, {0.0, 1.0, 2.0, 3.0}, loss)
    assert tunings[-1].off == ""
    gc.collect()
    assert until(lambda: not set(multiprocessing.active_children()) - before, 20.0)


def _board(folder: Path) -> dict[str, list[tuple[int, float]]]:
    """The scalars of TensorBoard's files, by their tags."""
    reader = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    found: dict[str, list[tuple[int, float]]] = {}
    for file in folder.rglob("events.out.*"):
        events = reader.EventAccumulator(str(file)).Reload()
        for tag in events.Tags()["scalars"]:
            found.setdefault(tag, []).extend((e.step, e.value) for e in events.Scalars(tag))
    return found


def test_tensorboard_gets_every_figure_over_the_batches(tmp_path: Path) -> None:
    pytest.importorskip("tensorboard")
    writer = importlib.import_module("torch.utils.tensorboard").SummaryWriter(str(tmp_path))
    loader = DataLoader(Rows(), batch_size=4)
    for _ in dlprof.watch(loader, log=loggers.tensorboard(writer), every=3):
        pass
    writer.close()
    found = _board(tmp_path)
    assert [step for step, _ in found["dlprof/wait_fraction"]] == [3, 6]
    assert found["dlprof/waited_s"][-1][1] >= SAMPLES * WAIT_S


@pytest.mark.parametrize("logs_itself", [False, True])
def test_wandb_offline_keeps_every_figure_and_the_trainings_own_steps(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, logs_itself: bool
) -> None:
    wandb = pytest.importorskip("wandb")
    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.setenv("WANDB_SILENT", "true")
    run = wandb.init(project="dlprof", dir=str(tmp_path))
    loader = DataLoader(Rows(), batch_size=4)
    for number, _ in enumerate(dlprof.watch(loader, log=loggers.wandb(run), every=2)):
        if logs_itself:
            run.log({"loss": 1.0 / (1 + number)})
    steps = run.step
    run.finish()
    wandb.teardown()  # only then all is on disk

    history = _history(tmp_path)
    batches = [row["dlprof/batches"] for row in history if "dlprof/batches" in row]
    assert batches == [2, 4, 6]
    assert all("dlprof/wait_fraction" in row for row in history if "dlprof/batches" in row)
    if logs_itself:
        assert steps == 6
        assert sum("loss" in row for row in history) == 6


def _history(folder: Path) -> list[dict[str, Any]]:
    """What an offline run of W&B has written of its history."""
    messages = importlib.import_module("wandb.proto.wandb_internal_pb2")
    (file,) = folder.rglob("*.wandb")
    rows = []
    for data in _log_records(file.read_bytes()):
        record = messages.Record()
        record.ParseFromString(data)
        if record.HasField("history"):
            names = [(each.key or "/".join(each.nested_key), each) for each in record.history.item]
            rows.append({name: json.loads(each.value_json) for name, each in names})
    return rows


def _log_records(content: bytes) -> Iterator[bytes]:
    """The records of a log of LevelDB's format, behind W&B's own header of seven bytes."""
    at, block, head, last_types, record = 7, 32768, 7, (1, 4), b""
    while at + head <= len(content):
        if block - at % block < head:  # what is left of a block is padding
            at += block - at % block
            continue
        length, kind = struct.unpack("<HB", content[at + 4 : at + head])
        record += content[at + head : at + head + length]
        at += head + length
        if kind in last_types:
            yield record
            record = b""


def _samples(file: Path) -> dict[str, tuple[dict[str, str], float]]:
    parser = pytest.importorskip("prometheus_client.parser")
    return {
        sample.name: (sample.labels, sample.value)
        for family in parser.text_string_to_metric_families(file.read_text())
        for sample in family.samples
    }


def test_prometheus_reads_the_file_that_watch_keeps(tmp_path: Path) -> None:
    file, name = tmp_path / "dlprof.prom", 'a "train"\\loader'
    log = loggers.prometheus(file, loader=name, environ={})
    for _ in dlprof.watch(DataLoader(Rows(), batch_size=4), log=log, every=2):
        pass
    found = _samples(file)
    assert {labels["loader"] for labels, _ in found.values()} == {name}
    assert found["dlprof_batches_total"] == ({"loader": name, "rank": "0"}, 6.0)
    assert found["dlprof_exposed_wait_seconds_total"][1] >= SAMPLES * WAIT_S
    assert 0.0 < found["dlprof_time_to_first_batch_seconds"][1] < 60.0
    assert [path.name for path in tmp_path.iterdir()] == ["dlprof.prom"]  # and no draft of it


def test_prometheus_has_a_file_for_each_rank(tmp_path: Path) -> None:
    for rank in range(2):
        environ = {"RANK": str(rank), "WORLD_SIZE": "2"}
        log = loggers.prometheus(tmp_path / "dlprof.prom", environ=environ)
        for _ in dlprof.watch(DataLoader(Rows(), batch_size=12), log=log, every=1):
            pass
    files = sorted(tmp_path.iterdir())
    assert [file.name for file in files] == ["dlprof.rank0.prom", "dlprof.rank1.prom"]
    assert _samples(files[1])["dlprof_batches_total"][0]["rank"] == "1"


def test_prometheus_refuses_a_name_that_no_collector_reads(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"does not end in \.prom"):
        loggers.prometheus(tmp_path / "dlprof.txt")
    with pytest.raises(FileError):
        loggers.prometheus(tmp_path / "nowhere" / "dlprof.prom")


CELL = """
import time

class Slow:
    def __len__(self):
        return 8
    def __getitem__(self, index):
        time.sleep(0.01)
        return index

my_loader = DataLoader(Slow(), batch_size=2)
for batch in my_loader:
    pass
"""


@pytest.mark.parametrize(
    ("loader", "module"),
    [
        ("torch.utils.data.DataLoader", "torch.utils.data.dataloader"),
        (
            "torchdata.stateful_dataloader.StatefulDataLoader",
            "torchdata.stateful_dataloader.stateful_dataloader",
        ),
    ],
)
def test_the_magic_says_how_long_a_cell_waited(loader: str, module: str) -> None:
    pytest.importorskip("IPython")
    package, _, kind = loader.rpartition(".")
    pytest.importorskip(package)
    code = f"""
from IPython.core.interactiveshell import InteractiveShell
shell = InteractiveShell.instance()
shell.run_cell("%load_ext dlprof")
shell.run_cell("from {package} import {kind} as DataLoader")
shell.run_cell("%%dlprof\\n" + {CELL!r})
shell.run_cell("assert DataLoader.__iter__.__module__ == '{module}'")
shell.run_cell("%%dlprof\\n1 / 0")
shell.run_cell("assert len(list(my_loader)) == 4; print('as ever')")
"""
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    shown = ended.stdout
    assert "4 batches in 1 epoch" in shown
    assert "dlprof.profile(my_loader)" in shown
    assert "ZeroDivisionError" in shown
    assert "no DataLoader was iterated" in shown
    assert "as ever" in shown
    assert "AssertionError" not in shown


def test_the_magic_lets_loaders_go(capsys: pytest.CaptureFixture[str]) -> None:
    """As those that a cell makes for each epoch, whose workers end with them."""
    made: list[weakref.ref[Any]] = []
    magic: dict[str, Any] = {}

    def run_cell(_cell: str) -> None:
        for _ in range(3):
            loader = DataLoader(Rows(), batch_size=12)
            assert not any(each() for each in made)
            made.append(weakref.ref(loader))
            assert len(list(loader)) == len(list(loader)) == 2

    def register(function: Any, *, magic_name: str, **_: object) -> None:
        magic[magic_name] = function

    shell = types.SimpleNamespace(
        run_cell=run_cell, user_ns={"nothing": None}, register_magic_function=register
    )
    load_ipython_extension(shell)
    magic["dlprof"]("", "")
    shown = capsys.readouterr().out
    assert "12 batches in 6 epochs" in shown
    assert "3 loaders were made here" in shown
    assert "dlprof.profile(loader)" in shown


def test_a_loader_that_is_watched_in_place_copies_as_itself() -> None:
    loader = DataLoader(Rows(), batch_size=12, num_workers=0)
    watched = dlprof.watch(loader)
    undo = watch_in_place(loader, watched)
    assert isinstance(loader, DataLoader)
    assert len(list(loader)) == 2
    for again in (copy.copy(loader), pickle.loads(pickle.dumps(loader))):
        assert type(again) is DataLoader
        assert len(list(again)) == 2
    assert watched.summary().batches == 2
    undo()
    assert type(loader) is DataLoader
    assert len(list(loader)) == 2
    assert watched.summary().batches == 2


def test_no_framework_is_loaded_before_it_is_asked_for() -> None:
    code = """
import sys, dlprof
from dlprof.integrations import callbacks, loggers, watch
dlprof.load_ipython_extension
heavy = {"torch", "lightning", "transformers", "tensorboard", "wandb", "IPython"}
assert not heavy & set(sys.modules), heavy & set(sys.modules)
"""
    subprocess.run([sys.executable, "-c", code], check=True)
