"""The files of each built-in workload. Pillow only: no torch."""

from __future__ import annotations

import io
import random
import tarfile
from array import array
from collections.abc import Callable
from pathlib import Path

from dlprof.targets.builtin.cache import make_once

CLASSES = 16
"""Class directories of ``images``, ``class_00`` onwards."""

_VERSION = 1
_SEED = 20_240_229

Progress = Callable[[str, int, int], None]


def silent(what: str, done: int, total: int) -> None:
    """Tell nobody."""


def images_directory(count: int, progress: Progress = silent) -> Path:
    """``count`` JPEG files in class directories: ``class_03/00019.jpg``."""

    def make(directory: Path) -> None:
        from dlprof.targets.builtin import pictures  # noqa: PLC0415 - Pillow, only to make files

        rng = random.Random(_SEED)
        progress("JPEG files", 0, count)
        textures = pictures.make_textures(rng)
        for number in range(CLASSES):
            (directory / f"class_{number:02}").mkdir()
        for number in range(count):
            picture = pictures.cut_picture(rng, textures, pictures.picture_size(rng))
            place = directory / f"class_{number % CLASSES:02}" / f"{number:05}.jpg"
            pictures.save_jpeg(rng, picture, place)
            progress("JPEG files", number + 1, count)

    return make_once(f"images-v{_VERSION}-{count}", make)


def shards_directory(count: int, shards: int, progress: Progress = silent) -> Path:
    """The files of ``images`` packed into ``shards`` tar files, with a label beside each."""
    images = images_directory(count, progress)

    def make(directory: Path) -> None:
        paths = sorted(images.glob("*/*.jpg"), key=lambda path: path.name)
        for number in range(shards):
            with tarfile.open(directory / f"shard_{number:04}.tar", "w") as tar:
                for path in paths[number::shards]:
                    tar.add(path, arcname=path.name)
                    _add_label(tar, path)
            progress("shards", number + 1, shards)

    return make_once(f"shards-v{_VERSION}-{count}-{shards}", make)


def text_directory(lines: int, words: int, progress: Progress = silent) -> Path:
    """``corpus.txt``, ``vocabulary.txt``, and ``offsets.bin`` with each line's first byte."""

    def make(directory: Path) -> None:
        from dlprof.targets.builtin import corpus  # noqa: PLC0415 - only to make files

        rng = random.Random(_SEED)
        vocabulary = corpus.make_vocabulary(rng)
        text = "\n".join(vocabulary)
        (directory / "vocabulary.txt").write_text(text, encoding="ascii", newline="\n")
        offsets = array("Q", [0])
        with (directory / "corpus.txt").open("wb") as file:
            for number, line in enumerate(corpus.make_lines(rng, vocabulary, lines, words)):
                offsets.append(offsets[-1] + file.write(line.encode("ascii") + b"\n"))
                if number % 500 == 0 or number + 1 == lines:
                    progress("lines of text", number + 1, lines)
        with (directory / "offsets.bin").open("wb") as file:
            offsets.tofile(file)

    return make_once(f"text-v{_VERSION}-{lines}-{words}", make)


def voc_directory(count: int, progress: Progress = silent) -> Path:
    """``JPEGImages``, ``Annotations`` and ``ImageSets`` as in Pascal VOC."""

    def make(directory: Path) -> None:
        from dlprof.targets.builtin import annotated  # noqa: PLC0415 - Pillow, only to make files

        annotated.make_voc(random.Random(_SEED), directory, count, progress)

    return make_once(f"voc-v{_VERSION}-{count}", make)


def _add_label(tar: tarfile.TarFile, path: Path) -> None:
    label = path.parent.name.rpartition("_")[2].encode("ascii")
    entry = tarfile.TarInfo(f"{path.stem}.cls")
    entry.size = len(label)
    tar.addfile(entry, io.BytesIO(label))
