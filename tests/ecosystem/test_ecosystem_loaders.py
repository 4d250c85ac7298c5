"""Loaders of real packages: swept, profiled, and set in the words of their own framework.

``.ci/ecosystem`` installs them all; where one is missing, its tests are skipped with the reason.
"""

from __future__ import annotations

import dataclasses
import importlib
import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from dlprof.targets.adapters import CHANGED_BY_TRAINING

LOADERS = Path(__file__).with_name("loaders.py")
TIMEOUT_S = 600
PLAIN = "DataLoader(dataset, ..., {settings})"
UNSET = "# {} is measured as it is: nothing of it is set"
AS_IT_IS = ("num_workers", "prefetch_factor", "persistent_workers")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Case:
    """What is expected of one of the loaders.

    Attributes:
        package: What has to be installed.
        call: Where its users set it.
        fixed: Settings that it can't take.
        more: Further options; Ray takes long to start, and streaming is built in each trial.
    """

    package: str
    call: str = PLAIN
    fixed: tuple[str, ...] = ()
    more: tuple[str, ...] = ()


CASES = {
    "web_dataset": Case(package="webdataset"),
    "web_loader": Case(package="webdataset", call="wds.WebLoader(dataset, ..., {settings})"),
    "web_loader_rebatched": Case(
        package="webdataset", call="wds.WebLoader(dataset, ..., {settings})"
    ),
    "web_pipeline": Case(package="webdataset"),
    "hf_map": Case(package="datasets"),
    "hf_formatted": Case(package="datasets"),
    "hf_iterable": Case(package="datasets"),
    "stateful": Case(package="torchdata", call="StatefulDataLoader(dataset, ..., {settings})"),
    "nodes": Case(
        package="torchdata",
        call="nodes({settings})",
        fixed=("prefetch_factor", "persistent_workers"),
    ),
    "nodes_made": Case(package="torchdata", call=UNSET.format("Loader"), fixed=AS_IT_IS),
    "data_module": Case(
        package="lightning",
        call=f"def train_dataloader(self):  # of Data\n    return {PLAIN}",
    ),
    "data_module_of_datasets": Case(
        package="lightning",
        call="LightningDataModule.from_datasets(train_dataset, ..., {settings})",
        fixed=("prefetch_factor", "persistent_workers"),
    ),
    "trainer": Case(
        package="transformers",
        call="TrainingArguments(..., {settings})",
        fixed=("worker_threads",),
    ),
    "prepared": Case(package="accelerate", call=f"accelerator.prepare({PLAIN})"),
    "monai_loader": Case(
        package="monai", call="DataLoader(dataset, ..., {settings})", fixed=("worker_threads",)
    ),
    "monai_cached": Case(package="monai", call="DataLoader(dataset, ..., {settings})"),
    "monai_threads": Case(package="monai", call="ThreadDataLoader(dataset, ..., {settings})"),
    "graphs": Case(package="torch_geometric", call="DataLoader(dataset, ..., {settings})"),
    "graphs_prefetched": Case(package="torch_geometric"),
    "neighbors": Case(package="torch_geometric", call="NeighborLoader(data, ..., {settings})"),
    "timm_loader": Case(
        package="timm", call="create_loader(dataset, ..., {settings})", fixed=("prefetch_factor",)
    ),
    "timm_plain": Case(
        package="timm", call="create_loader(dataset, ..., {settings})", fixed=("prefetch_factor",)
    ),
    "timm_multi_epochs": Case(
        package="timm", call="create_loader(dataset, ..., {settings})", fixed=("prefetch_factor",)
    ),
    "lit": Case(package="litdata", call="StreamingDataLoader(dataset, ..., {settings})"),
    # Each trial builds it: half of what it keeps is in shared memory.
    "mosaic": Case(package="streaming", more=("--budget", "120s", "--timeout", "60s")),
    "spdl_pipeline": Case(package="spdl", call=UNSET.format("Pipeline"), fixed=AS_IT_IS),
    "spdl_loader": Case(package="spdl", call=UNSET.format("DataLoader"), fixed=AS_IT_IS),
    "speech": Case(package="lhotse"),
    "ray_batches": Case(
        package="ray",
        call=UNSET.format("_IterableFromIterator"),
        fixed=AS_IT_IS,
        more=("--budget", "150s", "--timeout", "480s"),  # on a busy machine it is 40 s in starting
    ),
}


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory for files of the packages', and for run files."""
    return tmp_path_factory.mktemp("ecosystem")


def dlprof(place: Path, *arguments: str) -> Any:
    """What a command prints, read where it is JSON."""
    mine = {"ECOSYSTEM_DATA": str(place), "DLPROF_CACHE_DIR": str(place / "cache")}
    for more in ((), ("--budget", "5m", "--force")):  # where a busy machine starts too slowly
        done = subprocess.run(
            [sys.executable, "-m", "dlprof", *arguments, *more],
            cwd=place,
            env={**os.environ, **mine, "HF_HUB_OFFLINE": "1", "PYTHONWARNINGS": "ignore"},
            capture_output=True,
            text=True,
            timeout=TIMEOUT_S,
            check=False,
        )
        said = done.stdout + done.stderr
        if not any(words in said for words in ("can't hold a single trial", "Raise --budget")):
            break
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    is_json = "--json" in arguments and arguments[0] != "run"  # where it names a file
    return json.loads(done.stdout) if is_json else done.stdout


def needs(package: str) -> None:
    if importlib.util.find_spec(package) is None:
        pytest.skip(f"{package} is not installed; .ci/ecosystem installs it")


@pytest.mark.slow
@pytest.mark.parametrize("name", CASES)
def test_it_is_swept_and_set_in_its_own_framework(name: str, place: Path) -> None:
    case, run = CASES[name], f"{name}.sweep.jsonl"
    needs(case.package)
    workers = () if case.fixed == AS_IT_IS else ("--num-workers", "0,2")
    short = ("--repeats", "1", "--trial-time", "400ms", "--timeout", "120s")
    options = (*workers, *(case.more or short), "--json", "-q", "-o", run)
    document = dlprof(place, "sweep", f"{LOADERS}:{name}", *options)
    assert {each["outcome"] for each in document["trials"]} == {"completed"}
    assert {each["config"]["num_workers"] for each in document["trials"]} == (
        {0} if case.fixed == AS_IT_IS else {0, 2}
    )
    target = document["target"]
    assert target["call"]["text"] == case.call
    assert all(target["fixed"].get(setting) for setting in case.fixed)
    assert ("num_workers" in target["fixed"]) == (case.fixed == AS_IT_IS)
    shown = dlprof(place, "recommend", run, "--format", "python")
    reported = document["recommendation"]["dataloader_kwargs"]
    changed = target["call"]["names"].get("num_workers", "num_workers")
    assert (f"{changed}={reported['num_workers']}" in shown) == (case.fixed != AS_IT_IS)
    said = dlprof(place, "report", run)
    assert ("Recommended  nothing: " in said) == (case.fixed == AS_IT_IS)
    if case.call != PLAIN:
        assert case.call.partition("{settings}")[0] in shown


@pytest.mark.slow
@pytest.mark.parametrize("name", CASES)
def test_it_is_profiled(name: str, place: Path) -> None:
    case = CASES[name]
    needs(case.package)
    options = case.more or ("--budget", "40s")
    document = dlprof(
        place, "profile", f"{LOADERS}:{name}", *options, "--json", "-q", "-o", f"{name}.jsonl"
    )
    own = [each for each in document["trials"] if each["config"] == document["config"]]
    assert own  # others may fail: webdataset refuses more workers than shards
    assert {each["outcome"] for each in own} == {"completed"}
    for finding in document["findings"]:
        settings = (finding["fix"] or {}).get("dataloader_kwargs") or {}
        if settings and case.call != PLAIN:
            assert case.call.partition("{settings}")[0] in finding["fix"]["call"]
        assert not set(settings) & set(case.fixed)


TRAININGS = {
    "transformers": (
        "loaders.trainer().train()",
        "TrainingArguments(..., {settings})",
    ),
    "accelerate": (
        """model = loaders.Model()
    for batch in loaders.prepared():
        model(**batch)["loss"].backward()""",
        f"accelerator.prepare({PLAIN})",
    ),
    "lightning": (
        """from lightning.pytorch import LightningModule, Trainer
    import torch

    class Module(LightningModule):
        def __init__(self):
            super().__init__()
            self.model = loaders.Model()

        def training_step(self, batch, number):
            return self.model(**batch)["loss"]

        def configure_optimizers(self):
            return torch.optim.SGD(self.parameters(), 0.1)

    options = dict(logger=False, enable_checkpointing=False, enable_progress_bar=False)
    trainer = Trainer(max_epochs=1, limit_val_batches=0, accelerator="cpu", **options)
    trainer.fit(Module(), datamodule=loaders.data_module())""",
        f"def train_dataloader(self):  # of Data\n    return {PLAIN}",
    ),
    "torch_geometric": (
        """for batch in loaders.neighbors():
        batch.x.sum()""",
        "NeighborLoader(data, ..., {settings})",
    ),
    "torchdata": (
        """for batch in loaders.stateful():
        batch["x"].sum()""",
        "StatefulDataLoader(dataset, ..., {settings})",
    ),
    "timm": (
        """for images, labels in loaders.timm_loader():
        images.sum()""",
        "create_loader(dataset, ..., {settings})",
    ),
    "webdataset": (
        """for batch in loaders.web_loader():
        len(batch)""",
        "wds.WebLoader(dataset, ..., {settings})",
    ),
    "spdl": (
        """pipeline = loaders.spdl_pipeline()
    with pipeline.auto_stop():
        for batch in pipeline:
            batch.sum()""",
        UNSET.format("Pipeline"),
    ),
    "torchdata.nodes": (
        """for batch in loaders.nodes_made():
        len(batch)""",
        UNSET.format("Loader"),
    ),
    "litdata": (
        """for batch in loaders.lit():
        batch["x"].sum()""",
        "StreamingDataLoader(dataset, ..., {settings})",
    ),
    "streaming": (
        """for batch in loaders.mosaic():
        batch["x"].sum()""",
        PLAIN,
    ),
    "lhotse": (
        """for batch in loaders.speech():
        len(batch)""",
        PLAIN,
    ),
    "ray": (
        """batches = loaders.ray_batches()
    for batch in batches:
        batch["id"].sum()""",
        UNSET.format("_IterableFromIterator"),
    ),
}


def watched(place: Path, name: str, body: str) -> Any:
    """What ``dlprof run`` says of a script that uses the loaders."""
    script = place / f"train_{name}.py"
    head = f"import sys, time\nsys.path.insert(0, {str(LOADERS.parent)!r})\nimport loaders\n\n"
    script.write_text(head + body)
    files = ("-q", "--json", f"{script}.json", "-o", f"{script}.dlprof.jsonl")
    dlprof(place, "run", *files, str(script))
    return json.loads(Path(f"{script}.json").read_text())


@pytest.mark.parametrize(
    "package",
    # Both need no more than .ci/run installs, and take seconds.
    [
        pytest.param(name, marks=() if name in {"accelerate", "webdataset"} else pytest.mark.slow)
        for name in TRAININGS
    ],
)
def test_its_training_is_watched_and_set_in_its_own_framework(package: str, place: Path) -> None:
    needs(package.partition(".")[0])
    body, call = TRAININGS[package]
    document = watched(place, package, f'if __name__ == "__main__":\n    {body}\n')
    (loader,) = document["loaders"]
    assert loader["batches"] >= 8
    assert loader["call"]["text"] == call
    if call.startswith("#"):
        assert loader["config"] is None
        assert "so only the wait in next() is timed" in document["notes"][0]
    else:
        assert loader["config"]["num_workers"] in {1, 2}
    for finding in document["findings"]:
        if finding["fix"] and finding["fix"]["dataloader_kwargs"] and call != PLAIN:
            assert finding["fix"]["call"].startswith(call.partition("{settings}")[0])


@pytest.mark.slow
@pytest.mark.parametrize("name", CHANGED_BY_TRAINING)
def test_what_a_training_changes_for_each_epoch_has_its_name(name: str) -> None:
    module, _, kind = name.rpartition(".")
    needs(module.partition(".")[0])
    found = getattr(importlib.import_module(module), kind)
    assert callable(getattr(found, CHANGED_BY_TRAINING[name][0]))


@pytest.mark.slow
def test_a_thread_that_fetches_is_not_what_the_script_waits_for(place: Path) -> None:
    """MONAI's thread is 32 ms at a batch, while the script computes for longer."""
    needs("monai")
    body = "for batch in loaders.monai_threads():\n    time.sleep(0.1)\n"
    (loader,) = watched(place, "monai", body)["loaders"]
    assert (loader["batches"], loader["epochs_completed"]) == (64, 1)
    assert loader["background_s"] == 0
    assert loader["wait_fraction"] < 0.2


@pytest.mark.slow
def test_workers_of_more_than_the_shards_are_named_first(place: Path) -> None:
    needs("datasets")
    body = "for batch in loaders.hf_unfed():\n    batch['x'].sum()\n"
    ran = watched(place, "unfed", body)
    options = ("--budget", "40s", "--json", "-q", "-o", "unfed.jsonl")
    profiled = dlprof(place, "profile", f"{LOADERS}:hf_unfed", *options)
    for document in (ran, profiled):
        first = document["findings"][0]
        assert first["title"] == "2 of 4 workers get no data"
        assert "2 shards for 4 workers" in first["explanation"]
        assert "num_shards=4" in first["fix"]["code"]


@pytest.mark.slow
def test_all_workers_that_are_tried_have_as_many_shards(place: Path) -> None:
    """Of 8 shards some of 6 workers have two, as each of 4: an epoch lasts as long."""
    needs("datasets")
    options = ("--budget", "30s", "--json", "-q", "-o", "even.jsonl")
    document = dlprof(place, "sweep", f"{LOADERS}:hf_iterable", *options)
    assert document["target"]["shards"] == 8
    assert {each["config"]["num_workers"] for each in document["trials"]} <= {0, 1, 2, 3, 4, 8}
