"""Workloads of DLIO and MLPerf Storage: what of their files is read, made and left out."""

from __future__ import annotations

import copy
import errno
import shutil
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dlprof.engine.sweep import resumed_settings
from dlprof.engine.trials import as_stated
from dlprof.errors import DlprofError, FileError, UsageError
from dlprof.settings import SweepSettings
from dlprof.targets.build import build_target
from dlprof.targets.builtin.dlio import make_loader
from dlprof.targets.builtin.options import DlioOptions, prepare
from dlprof.targets.builtin.workload import Workload, read_workload
from dlprof.targets.grammar import parse_target
from dlprof.units import spread_of

yaml = pytest.importorskip("yaml")

WORKLOAD: dict[str, Any] = {
    "model": {"name": "unet3d"},
    "framework": "pytorch",
    "workflow": {"generate_data": False, "train": True},
    "dataset": {
        "data_folder": "data/unet3d/",
        "format": "npz",
        "num_files_train": 12,
        "num_samples_per_file": 1,
        "record_length_bytes": 3000,
        "record_length_bytes_stdev": 1000,
        "record_length_bytes_resize": 500,
    },
    "reader": {"batch_size": 2, "read_threads": 3, "prefetch_size": 7, "sample_shuffle": "seed"},
    "train": {"epochs": 5, "computation_time": 0.323},
    "checkpoint": {"checkpoint_folder": "checkpoints"},
    "metric": {"au": 0.9},
}


def _written(folder: Path, **changes: dict[str, Any]) -> str:
    made = copy.deepcopy(WORKLOAD)
    for part, values in changes.items():
        made[part] = {**made[part], **values}
    (folder / "unet3d.yaml").write_text(yaml.safe_dump(made), encoding="utf-8")
    return str(folder / "unet3d.yaml")


def _silent(_what: str, _done: int, _total: int) -> None:
    pass


def _read(folder: Path, **changes: dict[str, Any]) -> Workload:
    return read_workload(_written(folder, **changes), str(folder / "data"))


def test_a_workload_is_read_as_dlio_reads_it(tmp_path: Path) -> None:
    found = _read(tmp_path)
    assert (found.folder, found.ending) == (tmp_path / "data" / "train", "npz")
    assert (found.files, found.samples, found.record_bytes, found.sample_bytes) == (
        12,
        1,
        3000,
        500,
    )
    assert (found.batch_size, found.shuffle) == (2, True)
    assert found.loader == {
        "num_workers": 3,
        "prefetch_factor": 3,  # of 7 batches ahead of three workers
        "persistent_workers": True,
        "pin_memory": True,
    }


def test_sizes_may_have_the_names_of_dlio_2(tmp_path: Path) -> None:
    old = {"record_length": 114660.07, "record_length_resize": 0, "record_length_stdev": 10}
    kept = {k: v for k, v in WORKLOAD["dataset"].items() if not k.startswith("record_length")}
    whole = {**WORKLOAD, "dataset": {**kept, **old}}
    path = tmp_path / "resnet50.yaml"
    path.write_text(yaml.safe_dump(whole), encoding="utf-8")
    found = read_workload(str(path), str(tmp_path / "data"))
    assert (found.record_bytes, found.sample_bytes) == (114660, 114660)
    assert "dataset.record_length_stdev" in found.left_out[0]
    assert "dataset.record_length," not in found.left_out[0]


def test_what_is_left_out_is_said(tmp_path: Path) -> None:
    (others, au) = _read(tmp_path).left_out
    for name in ("checkpoint", "dataset.record_length_bytes_stdev", "train.epochs"):
        assert name in others
    assert "model" not in others
    assert "dlprof predict RUN --au 90%" in au
    more = _read(tmp_path, dataset={"format": "tfrecord"}, reader={"data_loader": "tensorflow"})
    assert any("tfrecord is read as plain bytes" in each for each in more.left_out)
    assert any("its loader is tensorflow" in each for each in more.left_out)


@pytest.mark.parametrize(
    ("train", "step_s", "spread"),
    [
        ({"computation_time": 0.323}, 0.323, ""),
        ({"computation_time": {"mean": 0.3, "stdev": 0.1}}, 0.3, "normal:300ms,100ms"),
        ({"computation_time": 0.3, "computation_time_stdev": 0.1}, 0.3, "normal:300ms,100ms"),
        ({"computation_time": {"type": "uniform", "min": 0.1, "max": 0.3}}, 0.2, "uniform"),
        ({"computation_time": {"type": "gamma", "shape": 4, "scale": 0.1}}, 0.4, "gamma"),
        ({"computation_time": {"type": "exponential", "scale": 0.2}}, 0.2, "exponential"),
        ({"computation_time": 0}, None, ""),
        ({"computation_time": {}}, None, ""),
    ],
)
def test_the_step_is_the_computation_of_the_file(
    tmp_path: Path, train: dict[str, Any], step_s: float | None, spread: str
) -> None:
    target = f"dlio:{_written(tmp_path, train=train)}"
    settings = as_stated(SweepSettings(target=target, arguments={"data": str(tmp_path)}))
    assert settings.step_s == pytest.approx(step_s)
    assert spread_of(settings.step_s).startswith(spread)
    assert bool(spread_of(settings.step_s)) == bool(spread)
    apart = {"file": target.removeprefix("dlio:"), "data": str(tmp_path)}
    assert as_stated(SweepSettings(target="dlio", arguments=apart)).step_s == settings.step_s
    named = SweepSettings(target=target, step_s=0.5)
    assert as_stated(named) == named


@pytest.mark.parametrize(
    "computation", [{"type": "poisson", "lam": 1}, "often", {"mean": -1}, [1], {"mean": "1e400"}]
)
def test_a_computation_that_is_no_step_is_refused(tmp_path: Path, computation: object) -> None:
    with pytest.raises(UsageError, match="computation_time"):
        _read(tmp_path, train={"computation_time": computation})


@pytest.mark.parametrize("ending", ["npz", "hdf5"])
def test_data_is_made_within_its_bound_and_read(tmp_path: Path, ending: str) -> None:
    file = _written(tmp_path, dataset={"format": ending, "num_samples_per_file": 2})
    folder = tmp_path / "made"
    spec = parse_target(f"dlio:{file},data={folder},most=20000")
    said: list[tuple[str, int, int, bool]] = []
    prepare(spec, lambda *how_far: said.append((*how_far, folder.exists())))
    what = f"files of the workload in {folder}/train (17.6 KiB in all)"
    assert said[0] == (what, 0, 3, False)  # before the first of them
    paths = sorted((folder / "train").iterdir())
    assert [path.name for path in paths] == [f"img_{n:02}_of_12.{ending}" for n in range(3)]
    assert all(6000 <= path.stat().st_size <= 7000 for path in paths)
    times = [path.stat().st_mtime_ns for path in paths]
    prepare(spec, _silent)
    assert [path.stat().st_mtime_ns for path in paths] == times  # they are there
    built = build_target(spec)
    assert built.target.length == 24
    assert built.target.own_config is not None
    assert built.target.own_config.num_workers == 3
    assert any("checkpoint" in note for note in built.target.notes)
    assert any("3 of its 12 files are there" in note for note in built.target.notes)


def test_samples_are_as_large_as_what_reaches_dlio_s_step(tmp_path: Path) -> None:
    options = DlioOptions(file=_written(tmp_path, reader={"read_threads": 0}), data=str(tmp_path))
    options.workload().make(options.most, _silent)
    batches = list(make_loader(options, seed=1))
    assert [tuple(batch.shape) for batch in batches] == [(2, 500)] * 6


def test_a_full_disk_leaves_no_part_of_the_data(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = Workload._write

    def full(workload: Workload, path: Path, size: int) -> None:
        if "img_02" in path.name:
            raise OSError(errno.ENOSPC, "No space left on device")
        whole(workload, path, size)

    monkeypatch.setattr(Workload, "_write", full)
    with pytest.raises(FileError, match="No space left on device"):
        prepare(parse_target(f"dlio:{_written(tmp_path)},data={tmp_path}/x"), _silent)
    assert not list((tmp_path / "x").iterdir())


def test_nodes_that_share_the_storage_make_the_data_once(tmp_path: Path) -> None:
    workload = _read(tmp_path)

    def other_node(_what: str, done: int, _count: int) -> None:
        if done == 2:  # of the same process id, as in containers
            workload.make(9_000, _silent)

    workload.make(9_000, other_node)
    assert len(workload.paths()) == 3
    assert [each.name for each in workload.folder.parent.iterdir()] == [workload.folder.name]


def test_a_folder_with_other_files_is_refused_and_kept(tmp_path: Path) -> None:
    other = tmp_path / "x" / "train" / "mine.txt"
    other.parent.mkdir(parents=True)
    other.touch()
    spec = parse_target(f"dlio:{_written(tmp_path)},data={tmp_path}/x")
    with pytest.raises(FileError, match="can't be made"):
        prepare(spec, _silent)
    with pytest.raises(FileError, match="holds no files"):
        build_target(spec)
    assert list(other.parent.iterdir()) == [other]


def test_data_that_does_not_fit_its_bound_is_not_made(tmp_path: Path) -> None:
    spec = parse_target(f"dlio:{_written(tmp_path)},data={tmp_path}/x,most=2000")
    with pytest.raises(FileError, match="more than most=2,000"):
        prepare(spec, _silent)
    assert not (tmp_path / "x").exists()


def test_data_that_would_fill_the_disk_is_not_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    usage = type(shutil.disk_usage(tmp_path))(100_000, 50_000, 50_000)
    monkeypatch.setattr(shutil, "disk_usage", lambda _folder: usage)
    with pytest.raises(FileError, match=r"more than half of the 48.8 KiB that are free"):
        prepare(parse_target(f"dlio:{_written(tmp_path)},data={tmp_path}/x"), _silent)
    assert not (tmp_path / "x").exists()


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("[1, 2]", "no workload"),
        ("{", "no YAML"),
        ("dataset: 3", "no workload"),
        ("dataset: {num_files_train: 0, data_folder: x}", "num_files_train"),
        ("dataset: {record_length_bytes: .nan, data_folder: x}", "record_length_bytes"),
        ("dataset: {num_files_train: 4}", "data_folder"),
        ("!!python/object/apply:os.getcwd []", "no YAML"),
    ],
)
def test_a_file_that_is_no_workload_is_refused(tmp_path: Path, text: str, says: str) -> None:
    path = tmp_path / "x.yaml"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(UsageError, match=says):
        read_workload(str(path), "")


def test_a_file_that_is_not_there_is_refused(tmp_path: Path) -> None:
    with pytest.raises(FileError, match="can't be read"):
        read_workload(str(tmp_path / "none.yaml"), "")
    with pytest.raises(UsageError, match="names no workload"):
        prepare(parse_target("dlio"), _silent)


def test_without_pyyaml_it_says_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dlprof.targets.builtin.workload._installed", lambda _name: None)
    with pytest.raises(UsageError, match="PyYAML"):
        read_workload(_written(tmp_path), "")


def test_a_run_file_does_not_choose_where_data_is_made() -> None:
    with pytest.raises(UsageError, match="TARGET"):
        resumed_settings(SweepSettings(target="dlio:x.yaml"), SweepSettings(), ())


_ANY = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=9),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=9), inner),
)


@pytest.mark.slow
@given(part=st.sampled_from(["dataset", "reader", "train", "metric"]), values=_ANY, name=st.data())
def test_no_file_makes_it_fail_in_another_way(
    tmp_path_factory: pytest.TempPathFactory, part: str, values: object, name: st.DataObject
) -> None:
    made = copy.deepcopy(WORKLOAD)
    key = name.draw(st.sampled_from([None, *made[part]]))
    if key is None:
        made[part] = values
    else:
        made[part][key] = values
    path = tmp_path_factory.mktemp("any") / "x.yaml"
    path.write_text(yaml.safe_dump(made), encoding="utf-8")
    message = ""
    try:
        read_workload(str(path), "data")
    except DlprofError as error:
        message = error.message
    assert len(message) < 400
