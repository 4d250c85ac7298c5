"""Files that a dataset names, and eviction from the page cache."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

import pytest
from torch.utils.data import ConcatDataset, Dataset, Subset

from dlprof.targets.files import _not_the_datas, dataset_files, evict_from_page_cache


class Holder(Dataset[int]):
    def __init__(self, **attributes: object) -> None:
        self.__dict__.update(attributes)

    def __len__(self) -> int:
        return 4

    def __getitem__(self, index: int) -> int:
        return index


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for name in ("a.jpg", "b.jpg", "sub/c.jpg"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_bytes(b"x")
    return tmp_path


def names(dataset: object, limit: int = 100) -> list[str]:
    return sorted(path.name for path in dataset_files(dataset, limit))


def test_paths_lists_pairs_and_directories(folder: Path) -> None:
    assert names(Holder(path=folder / "a.jpg")) == ["a.jpg"]
    assert names(Holder(path=str(folder / "a.jpg"))) == ["a.jpg"]
    assert names(Holder(root=str(folder))) == ["a.jpg", "b.jpg", "c.jpg"]
    assert names(Holder(files=[folder / "a.jpg", str(folder / "b.jpg")])) == ["a.jpg", "b.jpg"]
    assert names(Holder(samples=[(str(folder / "a.jpg"), 0), (str(folder / "b.jpg"), 1)])) == [
        "a.jpg",
        "b.jpg",
    ]


def test_a_folder_that_others_use_too_is_not_walked(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As that for temporary files, in which streaming keeps its locks: they may be millions."""
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    monkeypatch.setenv("HOME", str(folder / "sub"))
    _not_the_datas.cache_clear()
    try:
        assert names(Holder(lock_root=str(folder), above=folder.parent, home=folder / "sub")) == []
        assert names(Holder(path=folder / "a.jpg")) == ["a.jpg"]
        monkeypatch.setattr(tempfile, "tempdir", str(folder / "sub"))
        _not_the_datas.cache_clear()
        assert names(Holder(root=folder)) == []  # what lies in it is around it
    finally:
        _not_the_datas.cache_clear()


def test_dictionaries_as_monai_lists_its_images(folder: Path) -> None:
    rows = [{"image": str(folder / f"{name}.jpg"), "label": 1} for name in "ab"]
    assert names(Holder(data=rows)) == ["a.jpg", "b.jpg"]
    assert names(Holder(by_name={"a": folder / "a.jpg", "n": 3})) == ["a.jpg"]


def test_datasets_inside_datasets(folder: Path) -> None:
    first, second = Holder(path=folder / "a.jpg"), Holder(path=folder / "b.jpg")
    both: Dataset[int] = ConcatDataset([Subset(first, [0]), second])
    assert names(both) == ["a.jpg", "b.jpg"]


def test_what_names_no_file(folder: Path) -> None:
    words = ["word"] * 1000
    odd = Holder(
        words=words, empty="", null="a\0b", long="x" * 5000, number=3, none=None, kind=Holder
    )
    assert names(odd) == []
    assert names(object()) == []


class Options:
    """Settings that are read as attributes: another name than a key of theirs raises KeyError."""

    def __init__(self, **keys: object) -> None:
        self.__dict__["keys"] = keys

    def __getattr__(self, name: str) -> object:
        return self.__dict__["keys"][name]


def test_settings_that_raise_for_an_unknown_name_are_no_fault(folder: Path) -> None:
    assert names(Holder(options=Options(root=folder), path=folder / "a.jpg")) == ["a.jpg"]


def test_a_long_list_of_other_things_is_given_up(folder: Path) -> None:
    late = [*["word"] * 50, str(folder / "a.jpg")]
    assert names(Holder(entries=late)) == []


def test_the_limit_holds(folder: Path) -> None:
    assert len(names(Holder(files=[str(folder / "a.jpg")] * 1000), limit=7)) == 7


@pytest.mark.skipif(not hasattr(os, "posix_fadvise"), reason="Linux")
def test_eviction_counts_what_it_could_open(folder: Path) -> None:
    assert evict_from_page_cache([folder / "a.jpg", folder / "gone.jpg"]) == 1


@pytest.mark.skipif(not hasattr(os, "posix_fadvise"), reason="Linux")
def test_eviction_waits_for_no_pipe(folder: Path) -> None:
    """As one beside the files of a folder that is walked; opened plainly it waits for a writer."""
    os.mkfifo(folder / "pipe")
    assert evict_from_page_cache([folder / "pipe", folder / "a.jpg"]) == 1


def test_eviction_without_the_call(monkeypatch: pytest.MonkeyPatch, folder: Path) -> None:
    monkeypatch.delattr(os, "posix_fadvise", raising=False)
    assert evict_from_page_cache([folder / "a.jpg"]) is None
