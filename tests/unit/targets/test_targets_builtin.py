"""The built-in workloads: parameters, files made once, samples."""

from __future__ import annotations

import errno
import os
import pickle
import random
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import torch
from PIL import Image
from torch.utils.data import WeightedRandomSampler

from dlprof.errors import FileError, UsageError
from dlprof.records import Config
from dlprof.targets.build import build_target
from dlprof.targets.builtin import files, pictures, shards, synthetic, text, voc
from dlprof.targets.builtin.files import cache_root, make_once
from dlprof.targets.builtin.options import (
    ImagesOptions,
    SyntheticOptions,
    TextOptions,
    options_of,
    prepare,
)
from dlprof.targets.grammar import parse_target
from dlprof.targets.loader import make_loader

SMALL = {
    "images": "images:count=6,size=16,length=40",
    "voc": "voc:count=5,size=32,length=40",
    "shards": "shards:count=6,shards=2,size=16,length=40",
    "text": "text:lines=30,words=10,length=100",
    "synthetic": "synthetic:length=40",
}


@pytest.fixture(scope="module", autouse=True)
def few_textures() -> Any:
    """Two small textures in place of six large ones: the same code in a tenth of the time."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(pictures, "TEXTURE_SIZE", (320, 240))
        yield


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Any:
    directory = tmp_path_factory.mktemp("cache")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("DLPROF_CACHE_DIR", str(directory))
        yield directory


def fill_nothing(directory: Path) -> None: ...


def say_nothing(what: str, done: int, total: int) -> None: ...


def options(target: str, **arguments: str) -> Any:
    return options_of(parse_target(target), arguments)


# Parameters


def test_parameters_and_arguments_are_the_same() -> None:
    found = options("synthetic:cpu_ms=2,tail=0.01x50,iterable=true", wait_ms="5", shape="3x4")
    assert found == SyntheticOptions(
        cpu_ms=2.0, wait_ms=5.0, shape=(3, 4), tail=(0.01, 50.0), iterable=True
    )
    assert options("images") == ImagesOptions()
    assert options("text:words=7") == TextOptions(words=7)


@pytest.mark.parametrize(
    "target",
    [
        "synthetic:cpu_ms=-1",
        "synthetic:cpu_ms=nan",
        "synthetic:cpu_ms=1e9",
        "synthetic:wait_ms=x",
        "synthetic:shape=0x3",
        "synthetic:shape=",
        "synthetic:shape=100000x100000",
        "synthetic:tail=2x3",
        "synthetic:tail=0.1",
        "synthetic:iterable=perhaps",
        "synthetic:dtype=float8",
        "synthetic:length=0",
        "images:count=2.5",
        "images:size=4",
    ],
)
def test_values_out_of_range_say_what_is_wanted(target: str) -> None:
    with pytest.raises(UsageError, match=" is not ") as caught:
        options(target)
    assert caught.value.hint


def test_unknown_parameters_come_with_the_known_ones() -> None:
    with pytest.raises(UsageError, match="no parameter 'cpu'") as caught:
        options("synthetic:cpu=3")
    assert "cpu_ms" in caught.value.hint
    assert "wait_ms" in caught.value.hint


def test_a_parameter_given_in_both_places() -> None:
    with pytest.raises(UsageError, match="by --arg"):
        options("images:count=3", count="4")


# The cache


def test_where_the_cache_is(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    assert cache_root({"DLPROF_CACHE_DIR": str(tmp_path / "x")}) == tmp_path / "x"
    monkeypatch.chdir(tmp_path)
    assert cache_root({"DLPROF_CACHE_DIR": "x"}) == tmp_path / "x"
    if sys.platform == "linux":
        monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
        assert cache_root({}) == tmp_path / "dlprof"
        monkeypatch.setenv("XDG_CACHE_HOME", "relative")  # which its specification has ignored
        monkeypatch.setenv("HOME", str(tmp_path))
        assert cache_root({}) == tmp_path / ".cache" / "dlprof"


def test_a_directory_is_made_once(tmp_path: Path) -> None:
    made = []

    def make(directory: Path) -> None:
        made.append(directory)
        (directory / "x").write_text("1")

    first = make_once("a-v1", make, root=tmp_path)
    assert first == make_once("a-v1", make, root=tmp_path) == tmp_path / "a-v1"
    assert len(made) == 1
    assert [path.name for path in tmp_path.iterdir()] == ["a-v1"]


@pytest.mark.parametrize("fault", [KeyboardInterrupt, RuntimeError])
def test_what_is_cut_off_leaves_nothing(tmp_path: Path, fault: type[BaseException]) -> None:
    def make(directory: Path) -> None:
        (directory / "half").write_text("1")
        raise fault

    with pytest.raises(fault):
        make_once("a-v1", make, root=tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_of_two_runs_at_once_one_wins(tmp_path: Path) -> None:
    def fast(directory: Path) -> None:
        (directory / "x").write_text("fast")

    def slow(directory: Path) -> None:
        (directory / "x").write_text("slow")
        make_once("a-v1", fast, root=tmp_path)

    assert (make_once("a-v1", slow, root=tmp_path) / "x").read_text() == "fast"
    assert [path.name for path in tmp_path.iterdir()] == ["a-v1"]


def test_a_full_disk_and_a_cache_that_cannot_be_written(tmp_path: Path) -> None:
    def full(directory: Path) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    with pytest.raises(FileError, match="disk is full") as caught:
        make_once("a-v1", full, root=tmp_path)
    assert "DLPROF_CACHE_DIR" in caught.value.hint
    (tmp_path / "file").write_text("")
    with pytest.raises(FileError, match="can't be made"):
        make_once("a-v1", fill_nothing, root=tmp_path / "file")


def test_a_cache_that_may_not_be_looked_into_is_a_sentence(tmp_path: Path) -> None:
    with pytest.raises(FileError, match="can't be made in") as caught:
        make_once("a-v1", lambda _folder: None, root=tmp_path / ("x" * 300))
    assert "DLPROF_CACHE_DIR" in caught.value.hint


@pytest.mark.skipif(sys.platform == "win32", reason="there LOCALAPPDATA says it")
def test_a_user_without_a_home_is_a_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    """As one that a container's system doesn't know."""
    monkeypatch.setattr(os.path, "expanduser", str)  # as it leaves what it can't resolve
    for name in ("DLPROF_CACHE_DIR", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    with pytest.raises(FileError, match="has no home") as caught:
        make_once("a-v1", lambda _folder: None)
    assert "DLPROF_CACHE_DIR" in caught.value.hint


def test_left_overs_of_killed_runs_go_after_a_day(tmp_path: Path) -> None:
    """And nothing else: ``DLPROF_CACHE_DIR`` may be a folder that holds more."""
    old, new = tmp_path / ".images-v1-384.k3x_9q0a", tmp_path / ".images-v1-384.tmp_0b1c"
    others = [tmp_path / name for name in (".some-viewer.d", ".nvm-v0.39", ".images-v1-384.backup")]
    for path in (old, new, *others):
        path.mkdir()
    yesterday = time.time() - 2 * 24 * 3600
    for path in (old, *others):
        os.utime(path, (yesterday, yesterday))
    make_once("voc-v1-256", fill_nothing, root=tmp_path)
    assert not old.exists()
    assert new.exists()
    assert all(path.exists() for path in others)


def test_preparing_shows_how_far_it_is_and_makes_no_file_twice(cache: Path) -> None:
    shown: list[tuple[str, int, int]] = []
    spec = parse_target("images:count=3")
    prepare(spec, lambda *step: shown.append(step))
    assert shown == [("JPEG files", n, 3) for n in range(4)]
    shown.clear()
    prepare(spec, lambda *step: shown.append(step))
    prepare(parse_target("synthetic"), lambda *step: shown.append(step))
    assert shown == []


# Loading


@pytest.mark.parametrize("name", SMALL)
def test_every_workload_loads_and_pickles(cache: Path, name: str) -> None:
    built = build_target(parse_target(SMALL[name]), seed=1)
    assert built.parts is not None
    pickle.loads(pickle.dumps((built.parts.dataset, built.parts.kept["collate_fn"])))
    first = next(iter(make_loader(built, Config(batch_size=4))))
    assert first is not None
    pickle.dumps(built.parts.dataset)  # also once files are open


def test_images_are_normalised_tensors_with_labels(cache: Path) -> None:
    built = build_target(parse_target(SMALL["images"]))
    assert (built.target.length, built.target.batches_per_epoch) == (40, 2)
    images, labels = next(iter(make_loader(built, Config(batch_size=5))))
    assert images.shape == (5, 3, 16, 16)
    assert images.dtype == torch.float32
    assert images.abs().max() < 3
    assert labels.shape == (5,)


def test_the_seed_fixes_the_order(cache: Path) -> None:
    def labels(seed: int) -> list[int]:
        built = build_target(parse_target(SMALL["text"]), seed=seed)
        lengths: list[int] = next(iter(make_loader(built, Config())))["lengths"].tolist()
        return lengths

    assert labels(1) == labels(1) != labels(2)


def test_detection_is_ragged_and_balanced(cache: Path) -> None:
    built = build_target(parse_target(SMALL["voc"]))
    assert built.target.sampler == "WeightedRandomSampler"
    images, targets = next(iter(make_loader(built, Config(batch_size=4))))
    assert len(images) == len(targets) == 4
    for image, target in zip(images, targets, strict=True):
        assert max(image.shape[1:]) == 32
        assert target["boxes"].shape == (len(target["labels"]), 4)
        left, top, right, bottom = target["boxes"].unbind(1)
        assert (left < right).all()
        assert (top < bottom).all()
        assert left.min() >= 0
        assert right.max() <= image.shape[2] + 1


def test_weights_come_from_annotations_alone(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    prepare(parse_target(SMALL["voc"]), say_nothing)

    def refuse(*args: object) -> None:
        raise AssertionError("an image was opened")

    monkeypatch.setattr(Image, "open", refuse)
    built = build_target(parse_target(SMALL["voc"]))
    assert built.parts is not None
    assert isinstance(built.parts.batching["sampler"], WeightedRandomSampler)


def test_progress_counts_annotated_images_and_not_what_is_on_them(tmp_path: Path) -> None:
    seen: list[tuple[int, int]] = []
    rng = random.Random(1)
    pictures.make_voc(rng, tmp_path, 4, lambda _what, done, total: seen.append((done, total)))
    assert seen == [(done, 4) for done in range(5)]


def test_rare_classes_are_drawn_as_often_as_frequent_ones() -> None:
    weights = voc.balanced_weights([[1], [1], [1], [2], []])
    assert weights == pytest.approx([1 / 3, 1 / 3, 1 / 3, 1, 0])


def test_an_annotation_reads_back_as_voc_writes_it(tmp_path: Path) -> None:
    xml = pictures.annotation_xml(
        "a.jpg", (60, 40), [("person", (1, 2, 30, 40)), ("bus", (5, 6, 7, 8))]
    )
    (tmp_path / "a.xml").write_text(xml)
    labels, boxes = voc.read_annotation(tmp_path / "a.xml")
    assert labels == [1, pictures.VOC_CLASSES.index("bus") + 1]
    assert boxes == [[0, 1, 29, 39], [4, 5, 6, 7]]


def test_shards_hold_each_image_once(cache: Path) -> None:
    built = build_target(parse_target("shards:count=6,shards=2,size=16,length=6"))
    assert built.parts is not None
    paths = built.parts.dataset.paths
    contents = [jpeg for path in paths for jpeg, _ in shards.read_shard(path)]
    assert len(contents) == len(set(contents)) == 6
    assert sum(len(labels) for _, labels in make_loader(built, Config(batch_size=4))) == 6


def test_text_is_padded_and_known(cache: Path) -> None:
    built = build_target(parse_target(SMALL["text"]))
    batch = next(iter(make_loader(built, Config(batch_size=8))))
    assert batch["tokens"].shape == (8, int(batch["lengths"].max()))
    for row, length in zip(batch["tokens"], batch["lengths"], strict=True):
        assert (row[:length] > text.UNKNOWN).all()
        assert (row[length:] == 0).all()


def test_tokens() -> None:
    vocabulary = {"tea": 2, ".": 3, "1": 4}
    assert text.tokenise("Tea, tea 12.", vocabulary) == [2, 1, 2, 4, 1, 3]
    assert len(text.tokenise("tea " * 1000, vocabulary)) == 512


def test_words_follow_zipf() -> None:
    rng = random.Random(1)
    vocabulary = files.make_vocabulary(rng, 500)
    assert len(set(vocabulary)) == 500
    words = " ".join(files.make_lines(rng, vocabulary, 200, 50)).lower().split()
    assert words.count(vocabulary[0]) > 3 * words.count(vocabulary[20]) > 0


# Synthetic


def test_a_tail_takes_its_share_and_stays_where_it_is() -> None:
    factors = [synthetic.cost_factor(index, 0.1, 50) for index in range(10_000)]
    assert factors == [synthetic.cost_factor(index, 0.1, 50) for index in range(10_000)]
    assert set(factors) == {1.0, 50.0}
    assert 900 < factors.count(50.0) < 1100
    assert synthetic.cost_factor(3, 0, 50) == 1


def test_burning_advances_the_threads_own_clock() -> None:
    before = time.thread_time()
    synthetic.burn(0.003)
    assert time.thread_time() - before >= 0.003
    synthetic.burn(0)


def test_a_sample_waits_as_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    slept: list[float] = []
    monkeypatch.setattr(time, "sleep", slept.append)
    sample = synthetic.make_sample(SyntheticOptions(wait_ms=5, tail=(1, 3), dtype="uint8"), 7)
    assert slept == pytest.approx([0.015])
    assert sample[0].dtype == torch.uint8
    assert sample[1] == 7


def test_indices_beyond_the_end_are_refused() -> None:
    with pytest.raises(IndexError):
        synthetic.SyntheticDataset(SyntheticOptions(length=3))[3]
