"""Adapters of other packages' loaders, by classes that only look as if they came from there."""

from __future__ import annotations

import dataclasses
import functools
import importlib
import sys
import threading
import weakref
from collections.abc import Iterator
from multiprocessing.context import SpawnContext
from pathlib import Path
from types import FrameType, ModuleType, SimpleNamespace
from typing import Any, ClassVar, cast

import pytest
import torch
from torch.utils.data import DataLoader, Dataset

from dlprof.errors import TargetError
from dlprof.records import Config, LoaderCall
from dlprof.targets.adapters import adapt, call_at, call_of, with_settings
from dlprof.targets.build import BuiltTarget, build_from_object
from dlprof.targets.loader import EpochGate, make_loader


class Numbers(Dataset[int]):
    def __len__(self) -> int:
        return 12

    def __getitem__(self, index: int) -> int:
        return index


def of(package: str, name: str, *bases: type, **members: Any) -> type:
    """A class that says it is of a package."""
    return type(name, bases or (object,), {"__module__": f"{package}.inner", **members})


def batches(built: BuiltTarget, **settings: Any) -> list[list[int]]:
    loader = make_loader(built, Config(**settings))
    return [batch.tolist() for batch in loader]


def arguments(**changes: Any) -> Any:
    names = (
        "dataloader_num_workers",
        "dataloader_prefetch_factor",
        "dataloader_pin_memory",
        "dataloader_persistent_workers",
        "dataloader_in_order",
        "per_device_train_batch_size",
    )
    return type("TrainingArguments", (), {**dict.fromkeys(names), **changes})()


def trainer(package: str = "transformers", **members: Any) -> Any:
    def loader(_self: Any) -> DataLoader[int]:
        return DataLoader(Numbers(), batch_size=4)

    members = {"args": arguments(), "get_train_dataloader": loader, **members}
    return of(package, "Trainer", **members)()


def test_a_trainer_is_asked_for_its_loader_and_set_by_its_arguments() -> None:
    built = build_from_object(trainer)
    assert batches(built, num_workers=1) == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9, 10, 11]]
    call = built.target.call
    assert call.assigned({"num_workers": 8, "batch_size": 16}) == (
        "args = TrainingArguments(..., dataloader_num_workers=8, per_device_train_batch_size=16)"
    )
    assert built.target.fixed["start_method"] == (
        "TrainingArguments has no dataloader_multiprocessing_context"
    )
    assert "worker_threads" in built.target.fixed
    assert "num_workers" not in built.target.fixed
    watched = call_of(trainer())  # as in a script, where nothing else says so
    assert watched is not None
    assert watched.fixed.keys() == {"multiprocessing_context", "worker_init_fn", "sampler"}
    assert watched.given("collate_fn", "collate") == "trainer = Trainer(..., data_collator=collate)"
    assert watched.checked() == watched


def test_arguments_keep_nothing_that_their_loader_would_not_be_made_with() -> None:
    """An order of their own stayed, and a start method that torch refuses without workers."""
    given = {
        "num_workers": 2,
        "prefetch_factor": 4,
        "pin_memory": True,
        "persistent_workers": True,
        "in_order": False,
        "multiprocessing_context": "spawn",
    }
    members = {f"dataloader_{name}": value for name, value in given.items()}
    own: Any = of("transformers", "TrainingArguments", **members)()
    none, two = (
        cast(Any, with_settings(own, Config(num_workers=count).dataloader_kwargs(), pytest.fail))
        for count in (0, 2)
    )
    assert (none.dataloader_in_order, two.dataloader_in_order) == (True, True)
    assert none.dataloader_multiprocessing_context is None
    assert two.dataloader_multiprocessing_context == "spawn"
    assert (own.dataloader_in_order, own.dataloader_num_workers) == (False, 2)


def test_a_trainer_that_makes_its_loader_itself_is_set_there() -> None:
    def own(_self: Any) -> DataLoader[int]:
        return DataLoader(Numbers(), batch_size=4)

    def by_arguments(self: Any) -> DataLoader[int]:
        return DataLoader(Numbers(), num_workers=self.args.dataloader_num_workers)

    def by_parent(self: Any) -> DataLoader[int]:
        return DataLoader(self.parent.get_train_dataloader().dataset, batch_size=4)

    kind = type(trainer())
    mine = type("Mine", (kind,), {"get_train_dataloader": own})()
    target = build_from_object(mine).target
    shown = "def get_train_dataloader(self):  # of Mine\n    return DataLoader(dataset, ..., "
    assert target.call.assigned({"num_workers": 8}) == f"{shown}num_workers=8)"
    assert not target.fixed
    with pytest.raises(AttributeError, match=r"Mine\.get_train_dataloader makes the loader itself"):
        with_settings(mine, {"num_workers": 8}, pytest.fail)
    for gives in (by_arguments, by_parent):
        other: Any = type("Mine", (kind,), {"get_train_dataloader": gives})()
        call = call_of(other)
        assert call is not None
        assert call.text.startswith("TrainingArguments(...")


def test_a_data_module_is_set_up_and_asked() -> None:
    seen: list[str] = []
    module = of(
        "lightning",
        "LightningDataModule",
        prepare_data=lambda _self: seen.append("prepare_data"),
        setup=lambda _self, stage: seen.append(stage),
        train_dataloader=lambda _self: DataLoader(Numbers(), batch_size=6),
    )
    built = build_from_object(type("Data", (module,), {})())
    assert seen == ["prepare_data", "fit"]
    assert batches(built, num_workers=0) == [[0, 1, 2, 3, 4, 5], [6, 7, 8, 9, 10, 11]]
    assert built.target.call.assigned({"num_workers": 3}) == (
        "def train_dataloader(self):  # of Data\n    return DataLoader(dataset, ..., num_workers=3)"
    )


def test_a_data_module_of_datasets_is_set_where_it_is_made() -> None:
    """It has no method of the user's, and its class method takes two of the settings."""

    def train_dataloader() -> DataLoader[int]:
        return DataLoader(Numbers(), batch_size=6)

    train_dataloader.__module__ = "lightning.pytorch.core.datamodule"
    does_nothing = {"prepare_data": lambda _self: None, "setup": lambda _self, _stage: None}
    data: Any = of("lightning", "LightningDataModule", **does_nothing)()
    data.train_dataloader = train_dataloader
    target = build_from_object(data).target
    assert target.call.assigned({"num_workers": 3, "batch_size": 8}) == (
        "data = LightningDataModule.from_datasets(train_dataset, ..., num_workers=3, batch_size=8)"
    )
    assert {"prefetch_factor", "persistent_workers", "pin_memory"} <= target.fixed.keys()
    assert not {"num_workers", "batch_size"} & target.fixed.keys()
    # Also with settings applied, once or twice.
    again: Any = data
    for _ in range(2):
        again = with_settings(again, {"num_workers": 3}, lambda loader: loader)
        assert build_from_object(again).target.call == target.call


class Own(DataLoader[int]):
    """Of a class of the user's own."""


@pytest.mark.parametrize("kind", [DataLoader, Own])
def test_a_data_module_that_takes_workers_makes_a_loader_of_each_setting(
    kind: type[DataLoader[int]],
) -> None:
    """Of a class of its own the module itself was iterated, which can't be."""
    seen: list[int] = []

    def make(self: Any, num_workers: int = 3) -> None:
        self.num_workers = num_workers

    def loader(self: Any) -> DataLoader[int]:
        seen.append(workers := self.num_workers)
        return kind(Numbers(), 6, num_workers=workers, persistent_workers=workers > 0)

    module = of(
        "lightning",
        "LightningDataModule",
        __init__=make,
        prepare_data=lambda _self: None,
        setup=lambda _self, _stage: None,
        train_dataloader=loader,
    )
    built = build_from_object(module)
    present = Config(num_workers=3, prefetch_factor=2, persistent_workers=True)
    assert built.target.own_config == present
    assert seen == ([3] if kind is DataLoader else [3, 0])
    made: Any = make_loader(built, dataclasses.replace(present, num_workers=2))
    assert (type(made), made.num_workers) == (kind, 2)
    assert built.target.call.text.startswith("def train_dataloader(self):")


def test_a_data_module_of_several_loaders_shows_the_function_to_write() -> None:
    loaders = {name: DataLoader(Numbers()) for name in ("one", "other")}
    module = of(
        "lightning",
        "LightningDataModule",
        prepare_data=lambda _self: None,
        setup=lambda _self, _stage: None,
        train_dataloader=lambda _self: loaders,
    )
    with pytest.raises(TargetError, match=r"neither a Dataset nor a DataLoader: dict") as caught:
        build_from_object(module, text="data:Data")
    names: dict[str, Any] = {"Data": module}
    exec(caught.value.hint.partition(": ")[2], names)  # what the user is to paste
    assert build_from_object(names["train_loader"]).target.length == 12


def test_a_module_that_can_be_called_is_asked_for_its_loader_all_the_same() -> None:
    module = of(
        "lightning",
        "LightningModule",
        __call__=lambda _self: pytest.fail("that is its forward pass"),
        prepare_data=lambda _self: None,
        setup=lambda _self, _stage: None,
        train_dataloader=lambda _self: DataLoader(Numbers(), batch_size=6),
    )
    assert batches(build_from_object(module()), num_workers=0)[0] == [0, 1, 2, 3, 4, 5]


def test_what_raises_as_it_is_asked_for_its_loader_is_named() -> None:
    def setup(_self: Any) -> Any:
        raise OSError("no such folder")

    with pytest.raises(TargetError, match=r"Trainer gave no loader: OSError: no such folder"):
        build_from_object(trainer(get_train_dataloader=setup))

    def make(num_workers: int = 0) -> Any:
        return trainer(get_train_dataloader=setup)

    with pytest.raises(TargetError, match=r"Trainer gave no loader: OSError: no such folder"):
        build_from_object(make)


@pytest.mark.parametrize("lost", ["args", "get_train_dataloader"])
def test_a_version_that_has_moved_its_classes_is_named_and_taken_as_anything_else(
    lost: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    module: Any = ModuleType("transformers")
    module.__version__ = "99.1"
    monkeypatch.setitem(sys.modules, "transformers", module)
    rows = {"__iter__": lambda _self: iter(DataLoader(Numbers(), batch_size=6))}
    moved = of("transformers", "Trainer", args=arguments(), **rows)
    if lost == "args":
        moved = of("transformers", "Trainer", args=SimpleNamespace(), **rows)
    built = build_from_object(moved())
    assert [len(batch) for batch in make_loader(built, Config())] == [6, 6]
    (note,) = [each for each in built.target.notes if "99.1" in each]
    assert "transformers.inner.Trainer of transformers 99.1" in note
    assert "adapter of dlprof" in note
    assert "TrainingArguments" not in built.target.call.text


def test_a_version_that_has_moved_its_classes_says_so_where_nothing_can_be_loaded() -> None:
    with pytest.raises(TargetError, match=r"neither a Dataset nor a .*adapter of dlprof"):
        build_from_object(of("transformers", "Trainer", args=SimpleNamespace())())


def test_what_is_prepared_by_accelerate_is_set_where_it_loads() -> None:
    class Prepared(DataLoader[Any]):
        """A DataLoader by its class alone, as accelerate's."""

        def __init__(self, loader: DataLoader[Any]) -> None:
            object.__setattr__(self, "base_dataloader", loader)

        def __getattr__(self, name: str) -> Any:
            if name == "base_dataloader":
                raise AttributeError(name)
            return getattr(self.base_dataloader, name)

        def __iter__(self) -> Any:
            return (batch * 2 for batch in self.base_dataloader)

    adapter = of("accelerate", "DataLoaderAdapter")
    kind: Any = type("DataLoaderShard", (Prepared, adapter), {})
    own = kind(DataLoader(Numbers(), batch_size=6, num_workers=1))
    built = build_from_object(own)
    assert built.target.own_config == Config(num_workers=1, prefetch_factor=2)
    made: Any = make_loader(built, Config(num_workers=2, worker_threads=3))
    assert made.base_dataloader.num_workers == 2
    assert made.base_dataloader.worker_init_fn.threads == 3
    assert [batch.tolist() for batch in made][1] == [12, 14, 16, 18, 20, 22]
    assert own.base_dataloader.num_workers == 1
    assert built.target.call.assigned({"num_workers": 2}) == (
        "loader = accelerator.prepare(DataLoader(dataset, ..., num_workers=2))"
    )


class Sampling(DataLoader[Any]):
    """As PyG's NeighborLoader: what it was made of is kept nowhere."""

    def __init__(self, data: Any, fanout: int, **rest: Any) -> None:
        self.secret = fanout * 2
        rows: Any = range(len(data))
        super().__init__(rows, collate_fn=self.gathered, **rest)

    def gathered(self, indices: list[int]) -> torch.Tensor:
        return torch.tensor(indices) * self.secret


def test_a_class_whose_arguments_are_kept_nowhere_is_copied() -> None:
    own: Any = Sampling([0] * 6, 5, batch_size=3, num_workers=1, persistent_workers=True)
    next(iter(own))  # its workers are its own
    built = build_from_object(own)
    made: Any = make_loader(built, Config(num_workers=2, prefetch_factor=3))
    assert type(made) is Sampling
    assert (made.num_workers, made.prefetch_factor, made.persistent_workers) == (2, 3, False)
    assert made._iterator is None
    assert (
        cast(Any, made.collate_fn).__self__ is made
    )  # the other one can't be sent to workers by now
    assert [batch.tolist() for batch in made] == [[0, 10, 20], [30, 40, 50]]
    assert (own.num_workers, own.prefetch_factor, own.persistent_workers) == (1, 2, True)
    assert batches(built, num_workers=0, batch_size=2) == [[0, 10], [20, 30], [40, 50]]
    assert batches(build_from_object(own, shuffle=True, seed=1)) != [[0, 10, 20], [30, 40, 50]]
    assert built.target.call.text == "Sampling(data, ..., {settings})"
    assert not built.target.notes
    own._iterator._shutdown_workers()


def test_what_is_no_dataset_is_measured_as_it_is() -> None:
    class Batches:
        def __iter__(self) -> Iterator[torch.Tensor]:
            return iter([torch.zeros(2), torch.zeros(2)])

    for found in (Batches(), Batches):
        built = build_from_object(found)
        assert len([*make_loader(built, Config())]) == 2
        assert set(built.target.fixed) >= {"num_workers", "prefetch_factor", "pin_memory"}
        assert built.target.notes[0] == "Batches is measured as it is."
        assert built.target.call.assigned({"num_workers": 0}) == (
            "# Batches is measured as it is: nothing of it is set"
        )


def pipeline() -> Any:
    class Pipeline:
        """As SPDL's: started once, for one epoch."""

        started = False

        def auto_stop(self) -> Any:
            assert not self.started
            self.started = True
            return torch.no_grad()  # any context manager

        def get_iterator(self) -> Iterator[torch.Tensor]:
            return iter([torch.zeros(2)] * 3)

    Pipeline.__module__ = "spdl.pipeline"
    return Pipeline()


def test_what_can_be_iterated_once_is_made_again_for_each_epoch() -> None:
    def make(num_workers: int = 1) -> Any:
        return pipeline()

    for each, config in ((pipeline, Config()), (make, Config(num_workers=2))):
        loader = make_loader(build_from_object(each), config)
        assert [len([*loader]) for _ in range(3)] == [3, 3, 3]
        assert type(loader).__name__ == "Pipeline"
    with pytest.raises(TargetError, match="can be iterated once") as caught:
        build_from_object(pipeline())
    assert "function" in caught.value.hint


def test_a_loader_of_endless_indices_ends_its_epochs_itself() -> None:
    class Endless:
        def __init__(self, source: Any) -> None:
            self.source = source

        def __iter__(self) -> Iterator[Any]:
            while True:
                yield from self.source

    class MultiEpochs(DataLoader[Any]):
        """As timm's."""

        def __init__(self, *args: Any, **rest: Any) -> None:
            super().__init__(*args, **rest)
            object.__setattr__(self, "batch_sampler", Endless(self.batch_sampler))
            self.kept: Any = None

        def __len__(self) -> int:
            return 3

        def __iter__(self) -> Any:
            self.kept = super().__iter__() if self.kept is None else self.kept
            for _ in range(3):
                yield next(self.kept)

    gate = EpochGate()
    loader = MultiEpochs(Numbers(), batch_size=4)
    gate.attach(loader)
    gate.reopen(limit=1)
    assert not gate.attached
    assert "MultiEpochs counts the batches of its epochs itself" in gate.reason
    assert [len([*loader]) for _ in range(2)] == [3, 3]


def test_a_loader_of_timm_is_set_where_the_script_makes_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """By ``create_loader``, whose workers seed themselves, or by the class itself."""

    def create_loader(dataset: Any, num_workers: int = 1, pin_memory: bool = False) -> Any:
        raise NotImplementedError

    def seeded(worker_id: int, worker_seeding: str = "all") -> None:
        raise NotImplementedError

    seeded.__module__ = "timm.data.loader"
    timm = SimpleNamespace(create_loader=create_loader, create_naflex_loader=create_loader)
    for module in ("loader", "naflex_loader"):
        monkeypatch.setitem(sys.modules, f"timm.data.{module}", timm)
    epochs = of("timm.data", "MultiEpochsDataLoader", DataLoader)
    made = epochs(Numbers(), worker_init_fn=functools.partial(seeded, worker_seeding="all"))
    wrapped = of("timm.data", "PrefetchLoader")()
    vars(wrapped)["loader"] = made
    plain = DataLoader(Numbers(), worker_init_fn=made.worker_init_fn)
    sizes = DataLoader(type("NaFlexWrapper", (Numbers,), {})(), worker_init_fn=made.worker_init_fn)
    for name, each in (
        ("create_loader", made),
        ("create_loader", wrapped),
        ("create_loader", plain),
        ("create_naflex_loader", sizes),
    ):
        call = call_of(each)
        assert call is not None
        assert call.text == f"{name}(dataset, ..., {{settings}})"
        assert call.fixed["prefetch_factor"] == f"timm's {name} takes no prefetch_factor"
    assert build_from_object(plain).target.fixed["prefetch_factor"]
    assert call_of(DataLoader(Numbers(), worker_init_fn=print)) is None
    own = call_of(epochs(Numbers()))
    assert own is not None
    assert own.text == "MultiEpochsDataLoader(dataset, ..., {settings})"
    assert "prefetch_factor" not in own.fixed


class Threads(SpawnContext):
    """As MONAI's, by which workers are threads."""

    _name = "processthread"
    Process: ClassVar[Any] = threading.Thread


def test_a_loader_of_monai_s_keeps_the_function_that_seeds_its_workers() -> None:
    """Another in its place left each worker the same random transforms."""

    def seeds(worker_id: int) -> None:
        raise NotImplementedError

    kind: Any = of("monai", "ThreadDataLoader", DataLoader)
    seeds.__module__ = "monai.data.utils"
    for made in (kind(Numbers(), worker_init_fn=seeds), kind.__new__(kind)):  # as it is being made
        call = call_of(made)
        assert call is not None
        assert call.text == "ThreadDataLoader(dataset, ..., {settings})"
        assert call.fixed.keys() == {"worker_init_fn"}
    target = build_from_object(kind(Numbers(), worker_init_fn=seeds)).target
    assert target.fixed.keys() == {"worker_threads"}
    in_threads = {"num_workers": 1, "multiprocessing_context": Threads()}
    target = build_from_object(kind(Numbers(), worker_init_fn=seeds, **in_threads)).target
    assert target.fixed.keys() == {"worker_threads", "persistent_workers", "start_method"}
    seeds.__module__ = "train"
    call = call_of(kind(Numbers(), worker_init_fn=seeds))
    assert call is not None
    assert not call.fixed


def test_a_loader_of_pyg_s_collates_by_itself() -> None:
    """What is given to most of them is left out in silence."""

    def given(self: Any, data: Any, transform: Any = None, **rest: Any) -> None:
        rest.pop("collate_fn", None)
        DataLoader.__init__(self, data, **rest)

    made: Any = of("torch_geometric", "NeighborLoader", DataLoader, __init__=given)
    call = call_of(made(Numbers()))
    assert call is not None
    assert call.text == "NeighborLoader(data, ..., {settings})"
    assert call.collates == "samples each batch and calls transform"
    assert LoaderCall().collates == ""


@pytest.mark.parametrize("own", ["events_per_batch", "sample_coverage", "num_parts"])
def test_a_loader_of_pyg_s_that_gives_torch_a_size_takes_no_other(own: str) -> None:
    """Another of torch's would leave events out, or can't be given to the class."""

    def given(self: Any, data: Any, size: int = 1, **rest: Any) -> None:
        setattr(self, own, size)
        DataLoader.__init__(self, data, 1, **rest)

    made: Any = of("torch_geometric", "Batched", DataLoader, __init__=given)
    adapted, _ = adapt(made(Numbers(), size=50))
    assert adapted is not None
    assert list(adapted.fixed) == ["batch_size"]


def test_of_a_loader_that_keeps_its_batches_it_is_said_which_rate_is_measured() -> None:
    def given(self: Any, loader: Any) -> None:
        self.loader, self.kept = loader, []

    def batches(self: Any) -> Any:
        self.kept = self.kept or [*self.loader]
        return iter(self.kept)

    made: Any = of("torch_geometric", "CachedLoader", object, __init__=given, __iter__=batches)
    built = build_from_object(made(DataLoader(Numbers(), batch_size=2)))
    assert "CachedLoader keeps its batches" in " ".join(built.target.notes)


def test_an_adapter_of_another_package_is_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "feeder.py").write_text("""
from torch.utils.data import DataLoader

class Feeder:
    def __init__(self, rows):
        self.rows = rows

    def loader(self, num_workers=0, prefetch_factor=None, persistent_workers=False):
        return DataLoader(self.rows, batch_size=2, num_workers=num_workers)
""")
    (tmp_path / "feeder_dlprof.py").write_text("""
from dlprof.records import LoaderCall
from dlprof.targets.adapters import Adapted

def adapter(found):
    if type(found).__name__ != "Feeder":
        return None
    call = LoaderCall(text="feeder.loader({settings})", names={"num_workers": "processes"})
    fixed = {"pin_memory": "a Feeder pins nothing", "collate_fn": "a Feeder collates"}
    return Adapted(make=found.loader, fixed=fixed, call=call)
""")
    info = tmp_path / "feeder-2.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: feeder\nVersion: 2.0\n")
    (info / "entry_points.txt").write_text("[dlprof.loaders]\nfeeder = feeder_dlprof:adapter\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    feeder = importlib.import_module("feeder")
    built = build_from_object(feeder.Feeder([1, 2, 3, 4]))
    assert batches(built, num_workers=1) == [[1, 2], [3, 4]]
    assert built.target.call.assigned({"num_workers": 4}) == "loader = feeder.loader(processes=4)"
    assert built.target.fixed["pin_memory"] == "a Feeder pins nothing"
    assert built.target.fixed["in_order"] == "Feeder takes no in_order"
    assert "num_workers" not in built.target.fixed
    assert built.target.call.fixed["collate_fn"] == "a Feeder collates"
    kept = built.target.attainable(Config(num_workers=2, in_order=False), has_accelerator=True)
    assert kept == Config(num_workers=2).canonical()


def test_an_adapter_that_cannot_be_imported_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    info = tmp_path / "broken-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: broken\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[dlprof.loaders]\nbrokenfeed = brokenfeed_x:adapter\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    adapted, misfit = adapt(of("brokenfeed", "Feed")())
    assert adapted is None
    assert "No module named 'brokenfeed_x'" in misfit
    assert "the adapter of broken 1.0 expects" in misfit


def test_the_call_of_a_class_has_its_name_and_that_of_what_it_loads() -> None:
    assert call_of(DataLoader(Numbers())) is None
    found = call_of(Sampling([0], 1))
    assert found is not None
    assert found.written({"num_workers": 2}) == "Sampling(data, ..., num_workers=2)"


def test_the_call_that_makes_a_loader_is_the_outermost_of_a_library() -> None:
    source = """
def create(dataset, num_workers=1):
    return made(dataset)

def made(dataset):
    return look()
"""
    seen: list[LoaderCall | None] = []

    def look() -> None:
        frame: FrameType | None = sys._getframe(1)
        seen.append(call_at(frame, lambda path: path == "library.py"))

    library: dict[str, Any] = {"look": look}
    exec(compile(source, "library.py", "exec"), library)  # frames of a file of its name
    library["create"](Numbers())
    library["made"](Numbers())
    created, none = seen
    assert none is None
    assert created is not None
    assert created.text == "create(dataset, ..., {settings})"
    assert created.fixed["in_order"] == "create takes no in_order"
    assert "num_workers" not in created.fixed


@pytest.mark.parametrize(
    ("package", "begins"),
    [("lightning", "def val_dataloader(self):  # of Data\n    return "), ("other", "")],
)
def test_a_loader_that_a_method_of_lightnings_returns_is_shown_in_it(
    package: str, begins: str
) -> None:
    seen: list[LoaderCall | None] = []

    def val_dataloader(self: Any) -> None:
        seen.append(call_at(sys._getframe(), lambda _path: False))

    kind = of(package, "LightningDataModule", val_dataloader=val_dataloader)
    type("Data", (kind,), {})().val_dataloader()
    (found,) = seen
    assert (found is not None) is bool(begins)
    if found is not None:
        shown = "DataLoader(dataset, ..., collate_fn=collate)"
        assert found.given("collate_fn", "collate") == begins + shown
        assert found.checked() == found


def test_a_frame_that_runs_on_keeps_none_of_the_batches_that_it_had() -> None:
    """Before Python 3.13 a training kept the batch of when a loader for validation was made."""

    class Training:
        def run(self) -> object:
            batch = Numbers()
            seen = weakref.ref(batch)
            call_at(sys._getframe(), lambda path: path == Training.run.__code__.co_filename)
            del batch
            return seen()

    assert Training().run() is None


def test_what_a_method_has_of_its_locals_stays() -> None:
    class Module:
        def train_dataloader(self, size: int = 2) -> dict[str, Any]:
            given = locals()
            call_at(sys._getframe(), lambda _: False)
            return given

    assert Module().train_dataloader()["size"] == 2
