"""The files of each built-in workload. Pillow only: no torch."""

from __future__ import annotations

import contextlib
import errno
import io
import itertools
import os
import random
import re
import shutil
import tarfile
import tempfile
import time
from array import array
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

import platformdirs

from dlprof.errors import FileError

CLASSES = 16  # class directories of ``images``, ``class_00`` onwards

_SEED = 20_240_229

Progress = Callable[[str, int, int], None]
"""Called with what is being made, how many are done, and of how many."""


def silent(what: str, done: int, total: int) -> None:
    """Report to nobody."""


def directory(name: str, *numbers: int, progress: Progress = silent) -> Path:
    """The files of a built-in, made unless they are there.

    ``images``, so many: JPEG files in class directories: ``class_03/00019.jpg``. ``shards``, the
    same packed into so many tar files, with a label beside each. ``text``, so many lines of so many
    words: ``corpus.txt``, ``vocabulary.txt``, and ``offsets.bin`` with each line's first byte.
    ``voc``, so many: ``JPEGImages``, ``Annotations`` and ``ImageSets`` as in Pascal VOC.
    """
    make, _ = FILES[name]
    return make_once(
        "-".join([name, "v1", *map(str, numbers)]), lambda folder: make(folder, progress, *numbers)
    )


def _make_images(folder: Path, progress: Progress, count: int) -> None:
    from dlprof.targets.builtin import pictures  # Pillow, only to make files

    rng = random.Random(_SEED)
    progress("JPEG files", 0, count)
    textures = pictures.make_textures(rng)
    for number in range(CLASSES):
        (folder / f"class_{number:02}").mkdir()
    for number in range(count):
        picture = pictures.cut_picture(rng, textures, pictures.picture_size(rng))
        place = folder / f"class_{number % CLASSES:02}" / f"{number:05}.jpg"
        pictures.save_jpeg(rng, picture, place)
        progress("JPEG files", number + 1, count)


def _make_shards(folder: Path, progress: Progress, count: int, shards: int) -> None:
    images = directory("images", count, progress=progress)
    paths = sorted(images.glob("*/*.jpg"), key=lambda path: path.name)
    for number in range(shards):
        with tarfile.open(folder / f"shard_{number:04}.tar", "w") as tar:
            for path in paths[number::shards]:
                tar.add(path, arcname=path.name)
                label = path.parent.name.rpartition("_")[2].encode("ascii")
                entry = tarfile.TarInfo(f"{path.stem}.cls")
                entry.size = len(label)
                tar.addfile(entry, io.BytesIO(label))
        progress("shards", number + 1, shards)


def _make_text(folder: Path, progress: Progress, lines: int, words: int) -> None:
    rng = random.Random(_SEED)
    vocabulary = make_vocabulary(rng)
    text = "\n".join(vocabulary)
    (folder / "vocabulary.txt").write_text(text, encoding="ascii", newline="\n")
    offsets = array("Q", [0])
    with (folder / "corpus.txt").open("wb") as file:
        for number, line in enumerate(make_lines(rng, vocabulary, lines, words)):
            offsets.append(offsets[-1] + file.write(line.encode("ascii") + b"\n"))
            if number % 500 == 0 or number + 1 == lines:
                progress("lines of text", number + 1, lines)
    with (folder / "offsets.bin").open("wb") as file:
        offsets.tofile(file)


def _make_voc(folder: Path, progress: Progress, count: int) -> None:
    from dlprof.targets.builtin import pictures  # Pillow, only to make files

    pictures.make_voc(random.Random(_SEED), folder, count, progress)


FILES: Mapping[str, tuple[Callable[..., None], tuple[str, ...]]] = {
    "images": (_make_images, ("count",)),
    "shards": (_make_shards, ("count", "shards")),
    "text": (_make_text, ("lines", "words")),
    "voc": (_make_voc, ("count",)),
}
"""What makes the files of built-ins, and by which of their parameters."""

_LEFT = re.compile(rf"\.({'|'.join(FILES)})-v\d+(-\d+)*\.\w{{8}}")
"""Folders of :func:`make_whole` for one of these, as ``tempfile`` names them."""


def cache_root(environ: Mapping[str, str] = os.environ) -> Path:
    """Where generated files lie.

    ``DLPROF_CACHE_DIR`` wins; else it is ``dlprof`` under the platform's cache directory.

    Raises:
        RuntimeError: The user has no home, as one that a container's system doesn't know.
    """
    chosen = environ.get("DLPROF_CACHE_DIR")
    if chosen:
        return Path(chosen).expanduser().absolute()
    return platformdirs.user_cache_path("dlprof", appauthor=False)


def make_once(name: str, make: Callable[[Path], None], *, root: Path | None = None) -> Path:
    """The directory ``name`` of the cache, made by ``make`` unless it is there.

    The name holds a version, so that changed content gets a new one. ``make`` fills the empty
    directory that it is given; ``root`` is that of the cache, by default :func:`cache_root`.
    """
    hint = "Set DLPROF_CACHE_DIR to a directory with about 100 MB to spare."
    try:
        root = root or cache_root()
    except RuntimeError:
        raise FileError("This user has no home, where files are kept", hint=hint) from None
    final = root / name
    try:
        if final.is_dir():  # which may not be seen in the home of another
            return final
        for left in root.glob(".*-v*.*"):  # by runs that were killed; none takes a day
            with contextlib.suppress(OSError):  # another run is removing it too
                is_old = left.is_dir() and left.stat().st_mtime < time.time() - 24 * 3600
                if is_old and _LEFT.fullmatch(left.name):  # the folder may be anybody's
                    shutil.rmtree(left, ignore_errors=True)
        make_whole(final, make, there=final.is_dir)
    except OSError as error:
        what = f"{name!r} can't be made in {str(root)!r}: {error.strerror or error}."
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            what = f"The disk is full: {name!r} could not be made in {str(root)!r}."
        raise FileError(what, hint=hint) from error
    return final


def make_whole(final: Path, make: Callable[[Path], None], *, there: Callable[[], bool]) -> None:
    """Fill a folder that appears under its name when it is complete.

    What is cut off leaves nothing half-made, and of two at once, also on several nodes, one wins:
    ``there`` says whether what another has made is there. A folder that exists is empty.

    Raises:
        OSError: It can't be written.
    """
    final.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(
        prefix=f".{final.name}.", dir=final.parent, ignore_cleanup_errors=True
    ) as temporary:
        part = Path(temporary, final.name)
        part.mkdir()
        make(part)
        try:
            part.replace(final)
        except OSError:
            if not there():
                raise


_ONSETS = ("b", "c", "d", "f", "g", "h", "l", "m", "n", "p", "r", "s", "st", "t", "tr", "v", "w")
_VOWELS = ("a", "e", "i", "o", "u", "ea", "ou")
_CODAS = ("", "", "", "n", "r", "s", "t", "nd", "ng", "l")


def make_vocabulary(rng: random.Random, size: int = 20_000) -> list[str]:
    """Different words, the frequent ones shorter, as in languages."""
    words: dict[str, None] = {}
    while len(words) < size:
        syllables = 1 + (len(words) > 150) + (len(words) > 3000 and rng.random() < 0.6)
        words["".join(_syllable(rng) for _ in range(syllables))] = None
        if len(words) <= 150 and rng.random() < 0.01:
            words[_syllable(rng) + _syllable(rng)] = None
    return list(words)


def make_lines(
    rng: random.Random, vocabulary: Sequence[str], lines: int, words: int
) -> Iterator[str]:
    """Lines of log-normal length with ``words`` as the median; punctuation, capitals, numbers."""
    # Zipf-Mandelbrot: frequency ~ 1 / (rank + 2.7), the usual fit for English.
    weights = list(itertools.accumulate(1 / (rank + 2.7) for rank in range(len(vocabulary))))
    for _ in range(lines):
        # Longest line: a document that a tokeniser would truncate.
        length = min(4000, max(1, int(words * rng.lognormvariate(0, 0.6))))
        chosen = rng.choices(vocabulary, cum_weights=weights, k=length)
        yield " ".join(_sentences(rng, chosen))


def _sentences(rng: random.Random, words: list[str]) -> Iterator[str]:
    start = 0
    while start < len(words):
        sentence = words[start : start + rng.randint(5, 24)]
        start += len(sentence)
        if rng.random() < 0.2:
            sentence.append(str(rng.randrange(2000)))
        yield " ".join(sentence).capitalize() + rng.choice((".", ".", ".", "?", "!", ";"))


def _syllable(rng: random.Random) -> str:
    return rng.choice(_ONSETS) + rng.choice(_VOWELS) + rng.choice(_CODAS)
