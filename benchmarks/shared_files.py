"""Are files whose position forked workers share named first, and are sound ones left alone?

Datasets that open a file in ``__init__`` in the ways that people do, of which each worker reads
what another one seeks, and those that look alike and are sound.
"""

from __future__ import annotations

import dataclasses
import gzip
import importlib
import io
import itertools
import logging
import mmap
import multiprocessing
import os
import pickle
import socket
import sqlite3
import tarfile
import tempfile
import zipfile
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from common import Report, Table, parser, publish, surroundings
from PIL import Image
from torch.utils.data import (
    ConcatDataset,
    DataLoader,
    Dataset,
    IterableDataset,
    Sampler,
    Subset,
    get_worker_info,
)

from dlprof.advise.findings.diagnosis import find
from dlprof.advise.findings.evidence import Evidence
from dlprof.machine import inspect_machine
from dlprof.records import Config, Target, Trial, shared_position
from dlprof.targets.files import moved_by_workers, named, open_files

SAMPLES, SIZE = 256, 4096
"""Of a file; together more than is read ahead."""


class Samples(Dataset[torch.Tensor]):
    """Samples of a file that is opened, and read, as a case says.

    Args:
        open_it: Opens the file; its result is kept as ``file``.
        read: Reads sample ``index`` of what was opened.
        lazily: Whether that happens in each process at its first sample, not in ``__init__``.
    """

    def __init__(
        self,
        open_it: Callable[[], Any],
        read: Callable[[Any, int], object],
        *,
        lazily: bool = False,
    ) -> None:
        self.open_it, self.read = open_it, read
        self.file = None if lazily else open_it()
        self.process = os.getpid()

    def __len__(self) -> int:
        return SAMPLES

    def __getitem__(self, index: int) -> torch.Tensor:
        if self.file is None:
            self.file = self.open_it()
        self.read(self.file, index)
        return torch.full((4,), float(index))


class Reopening(Samples):
    """Opens its file again in each process that isn't the one in which it was made."""

    def __getitem__(self, index: int) -> torch.Tensor:
        if self.process != os.getpid():
            self.file, self.process = self.open_it(), os.getpid()
        return super().__getitem__(index)


class Lines(IterableDataset[torch.Tensor]):
    """The lines of one file, of which each worker takes its share."""

    def __init__(self, path: Path) -> None:
        self.file = path.open()

    def __iter__(self) -> Iterator[torch.Tensor]:
        info = get_worker_info()
        first, step = (info.id, info.num_workers) if info else (0, 1)
        for line in itertools.islice(self.file, first, None, step):
            yield torch.full((4,), float(len(line)))


class OneEach(IterableDataset[torch.Tensor]):
    """Files that are all open when workers are forked; each worker reads its own."""

    def __init__(self, paths: list[Path]) -> None:
        self.files = [path.open("rb") for path in paths]

    def __iter__(self) -> Iterator[torch.Tensor]:
        info = get_worker_info()
        first, step = (info.id, info.num_workers) if info else (0, 1)
        for file in self.files[first::step]:
            for chunk in iter(partial(file.read, SIZE), b""):
                yield torch.full((4,), float(len(chunk)))


class ByFile(Sampler[int]):
    """An order that the main process reads from the dataset's own file."""

    def __init__(self, dataset: Samples) -> None:
        self.dataset = dataset

    def __len__(self) -> int:
        return SAMPLES

    def __iter__(self) -> Iterator[int]:
        for index in range(SAMPLES):
            seek_and_read(self.dataset.file, index)
            yield index


class Decoding:
    """A transform that reads what it needs from a file of its own."""

    def __init__(self, path: Path) -> None:
        self.table = path.open("rb")

    def __call__(self, _file: None, index: int) -> object:
        """Read its part of a sample."""
        return seek_and_read(self.table, index)


def seek_and_read(file: Any, index: int) -> object:
    """As most people do."""
    file.seek(index * SIZE)
    return file.read(SIZE)


def _seek_and_read_number(file: int, index: int) -> object:
    os.lseek(file, index * SIZE, os.SEEK_SET)
    return os.read(file, SIZE)


def _pread(file: Any, index: int) -> object:
    return os.pread(file.fileno(), SIZE, index * SIZE)


def _member(archive: Any, index: int) -> object:
    return archive.read(f"{index}.bin")


def _tar_member(archive: tarfile.TarFile, index: int) -> object:
    member = archive.extractfile(f"{index}.bin")
    return member.read() if member is not None else None


def _frame(image: Any, index: int) -> object:
    image.seek(index % image.n_frames)
    return np.asarray(image)


def _slice(mapped: Any, index: int) -> object:
    return bytes(mapped[index * SIZE : (index + 1) * SIZE])


def _unpickled(file: Any, _index: int) -> object:
    file.seek(0)
    return pickle.load(file)  # written below


def _file_again(path: Path, _worker: int) -> None:
    info: Any = get_worker_info()
    info.dataset.file = path.open("rb")


def _logged(log: Any, index: int) -> object:
    return log.write(f"sample {index}\n"), log.flush()


def _scratched(file: Any, _index: int) -> object:
    file.write(b"x" * SIZE)
    return file.flush()


def _selected(connection: sqlite3.Connection, index: int) -> object:
    return connection.execute("SELECT data FROM samples WHERE id = ?", (index,)).fetchone()


def _row(file: Any, index: int) -> object:
    return file["samples"][index]


def _begun(environment: Any, index: int) -> object:
    with environment.begin() as transaction:
        return transaction.get(str(index).encode())


def _with_head(file: Any) -> tuple[Any, bytes]:
    return file, file.read(16)


def _mapped(path: Path) -> tuple[Any, mmap.mmap]:
    file = path.open("rb")
    return file, mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ)


def write_all(folder: Path) -> None:
    """Write the same samples in many formats."""
    blobs = [bytes([index]) * SIZE for index in range(SAMPLES)]
    (folder / "samples.bin").write_bytes(b"".join(blobs))
    (folder / "other.bin").write_bytes(b"".join(blobs))
    lines = "".join(f"{index} {'x' * 500}\n" for index in range(16 * SAMPLES))
    (folder / "lines.txt").write_text(lines)
    with zipfile.ZipFile(folder / "samples.zip", "w") as archive:
        for index, blob in enumerate(blobs):
            archive.writestr(f"{index}.bin", blob)
    with tarfile.open(folder / "samples.tar", "w") as tar:
        for index, blob in enumerate(blobs):
            info = tarfile.TarInfo(f"{index}.bin")
            info.size = SIZE
            tar.addfile(info, io.BytesIO(blob))
    arrays: Any = {str(index): np.frombuffer(blob, np.uint8) for index, blob in enumerate(blobs)}
    np.savez(folder / "samples.npz", **arrays)
    np.save(folder / "samples.npy", np.stack([*arrays.values()]))
    frames = [Image.fromarray(each.reshape(64, 64)) for each in arrays.values()]
    frames[0].save(folder / "samples.tiff", save_all=True, append_images=frames[1:])
    with gzip.open(folder / "samples.gz", "wb", compresslevel=0) as packed:
        packed.write(b"".join(blobs[:32]))
    (folder / "samples.pickle").write_bytes(pickle.dumps(blobs))
    torch.save({"samples": torch.zeros(SAMPLES, SIZE)}, folder / "samples.pt")
    with sqlite3.connect(folder / "samples.sqlite") as database:
        database.execute("CREATE TABLE samples (id INTEGER PRIMARY KEY, data BLOB)")
        database.executemany("INSERT INTO samples VALUES (?, ?)", enumerate(blobs))
    database.close()


Make = Callable[[Path], Any]
"""Makes the dataset, or the loader, from the folder with the files."""


def _eager(open_it: Callable[[Path], Any], read: Callable[[Any, int], object]) -> Make:
    return lambda folder: Samples(lambda: open_it(folder), read)


def _file(folder: Path) -> Any:
    return (folder / "samples.bin").open("rb")


def _temporary(folder: Path) -> Any:
    file = tempfile.TemporaryFile(dir=folder)
    file.write((folder / "samples.bin").read_bytes())
    file.flush()
    return file


def _touched(folder: Path) -> Samples:
    dataset = Samples(partial(_file, folder), seek_and_read, lazily=True)
    dataset[0]
    return dataset


def _with_sampler(folder: Path) -> DataLoader[Any]:
    dataset = Reopening(partial(_file, folder), seek_and_read)
    return loader_of(dataset, sampler=ByFile(dataset))


def _hdf5(folder: Path, **how: Any) -> Any:
    path = folder / f"samples-{len(how)}.h5"  # a process opens one in one way
    library = importlib.import_module("h5py")
    if not path.exists():
        with library.File(path, "w", libver="latest") as file:
            file["samples"] = np.zeros((SAMPLES, SIZE), np.uint8)
    if how.pop("by_python", False):
        return library.File(path.open("rb"), "r")
    return library.File(path, "r", **how)


def _lightning(folder: Path) -> Any:
    library = importlib.import_module("lmdb")
    with (
        library.open(str(folder / "lmdb"), map_size=1 << 26) as made,
        made.begin(write=True) as put,
    ):
        for index in range(SAMPLES):
            put.put(str(index).encode(), bytes(SIZE))
    return library.open(str(folder / "lmdb"), readonly=True, lock=False)


FAULTS: dict[str, Make] = {
    "open, seek and read": _eager(_file, seek_and_read),
    "unbuffered": _eager(lambda f: (f / "samples.bin").open("rb", buffering=0), seek_and_read),
    "a text file": _eager(lambda f: (f / "lines.txt").open(), seek_and_read),
    "for reading and writing": _eager(lambda f: (f / "samples.bin").open("r+b"), seek_and_read),
    "a descriptor": _eager(
        lambda f: os.open(f / "samples.bin", os.O_RDONLY), _seek_and_read_number
    ),
    "zipfile": _eager(lambda f: zipfile.ZipFile(f / "samples.zip"), _member),
    "tarfile": _eager(lambda f: tarfile.open(f / "samples.tar"), _tar_member),
    "gzip": _eager(lambda f: gzip.open(f / "samples.gz"), lambda g, i: seek_and_read(g, i % 32)),
    "npz": _eager(lambda f: np.load(f / "samples.npz"), lambda npz, i: npz[str(i)]),
    "a temporary file": lambda folder: Samples(partial(_temporary, folder), seek_and_read),
    "frames of an image": _eager(lambda f: Image.open(f / "samples.tiff"), _frame),
    "pickle": _eager(lambda f: (f / "samples.pickle").open("rb"), _unpickled),
    "h5py over a Python file": _eager(partial(_hdf5, by_python=True), _row),
    "h5py by stdio": _eager(partial(_hdf5, driver="stdio"), _row),
    "a file of the transform": lambda folder: Samples(
        lambda: None, Decoding(folder / "samples.bin"), lazily=False
    ),
    "one of two files": lambda folder: ConcatDataset(
        [Samples(partial(_file, folder), seek_and_read, lazily=lazily) for lazily in (False, True)]
    ),
    "a part of it": lambda folder: Subset(
        Samples(partial(_file, folder), seek_and_read), range(100)
    ),
    "opened lazily, but before the fork": _touched,
    "lines of an iterable": lambda folder: Lines(folder / "lines.txt"),
}
"""Of which forked workers share the position."""

SOUND: dict[str, Make] = {
    "opened in each worker": lambda folder: Samples(
        partial(_file, folder), seek_and_read, lazily=True
    ),
    "a zipfile in each worker": lambda folder: Samples(
        lambda: zipfile.ZipFile(folder / "samples.zip"), _member, lazily=True
    ),
    "opened again in each process": lambda folder: Reopening(partial(_file, folder), seek_and_read),
    "opened again by worker_init_fn": lambda folder: loader_of(
        Samples(partial(_file, folder), seek_and_read),
        worker_init_fn=partial(_file_again, folder / "samples.bin"),
    ),
    "read by the sampler, in main": _with_sampler,
    "pread": _eager(_file, _pread),
    "mmap": lambda folder: Samples(
        partial(_mapped, folder / "samples.bin"), lambda both, index: _slice(both[1], index)
    ),
    "np.load with mmap_mode": _eager(
        lambda f: np.load(f / "samples.npy", mmap_mode="r"), lambda rows, i: rows[i].copy()
    ),
    "np.memmap": _eager(lambda f: np.memmap(f / "samples.bin", np.uint8, "r"), _slice),
    "torch.load with mmap": _eager(
        lambda f: torch.load(f / "samples.pt", mmap=True), lambda d, i: d["samples"][i].clone()
    ),
    "sqlite3": _eager(lambda f: sqlite3.connect(f / "samples.sqlite"), _selected),
    "h5py": _eager(_hdf5, _row),
    "h5py with swmr": _eager(partial(_hdf5, swmr=True, libver="latest"), _row),
    "lmdb": _eager(_lightning, _begun),
    "a log that is added to": _eager(lambda f: (f / "log.txt").open("a"), _logged),
    "a log that was begun": _eager(lambda f: (f / "new.txt").open("w"), _logged),
    "a log of logging": lambda folder: Samples(
        lambda: logging.FileHandler(folder / "handler.txt").stream, _logged
    ),
    "a file to write to and read": lambda folder: Samples(
        lambda: tempfile.TemporaryFile(dir=folder), _scratched
    ),
    "/dev/urandom": _eager(
        lambda _: Path("/dev/urandom").open("rb"), lambda file, _: file.read(SIZE)
    ),
    "a file of /proc": _eager(
        lambda _: Path("/proc/meminfo").open("rb"), lambda file, _: (file.seek(0), file.read())
    ),
    "sockets": _eager(lambda _: socket.socketpair(), lambda both, _: both[0].fileno()),
    "in memory": _eager(lambda f: io.BytesIO((f / "samples.bin").read_bytes()), seek_and_read),
    "its head alone was read": _eager(lambda f: _with_head(_file(f)), lambda both, _: both[1]),
    "a file for each worker": lambda folder: OneEach(
        [folder / "samples.bin", folder / "other.bin"]
    ),
    "one worker": lambda folder: loader_of(
        Samples(partial(_file, folder), seek_and_read), num_workers=1
    ),
}
"""Of which no two workers move any."""


def loader_of(dataset: Any, **settings: Any) -> DataLoader[Any]:
    """A loader of two forked workers, which stay."""
    context = multiprocessing.get_context("fork")
    own: Any = {"num_workers": 2, "persistent_workers": True, "multiprocessing_context": context}
    return DataLoader(dataset, batch_size=4, **(own | settings))


def loader_for(make: Make, folder: Path) -> DataLoader[Any]:
    """The loader of a case."""
    made = make(folder)
    return made if isinstance(made, DataLoader) else loader_of(made)


def first_finding(loader: DataLoader[Any]) -> tuple[str, str]:
    """The code of what is found first, and the files that it names."""
    config = Config(num_workers=loader.num_workers, batch_size=4).canonical()
    shared = named(moved_by_workers(loader, open_files()), loader)
    target = Target(spec="", kind="map", dataset="", batch_size=4, shared_files=shared)
    trial = Trial(id="t0001", config=config, repetition=0, outcome="completed")
    if (failure := shared_position(shared)) is not None:
        trial = dataclasses.replace(trial, outcome="skipped", failure=failure)
    found = find(Evidence.of_trial(inspect_machine(), target, trial))
    return found[0].code if found else "", ", ".join(shared)


def main() -> None:
    """Go through all; of a quick run each sixth."""
    given, before = parser(__doc__).parse_args(), surroundings()
    rows, skipped = [], dict[str, str]()
    every = [("planted", *each) for each in FAULTS.items()]
    every += [("sound", *each) for each in SOUND.items()]
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        write_all(folder)
        for kind, title, make in every[:: 6 if given.quick else 1]:
            try:
                loader = loader_for(make, folder)
            except ImportError as error:
                skipped[title] = str(error)
                continue
            code, files = first_finding(loader)
            right = (code == "data.shared_file") is (kind == "planted")
            files = files.replace(f"{folder}/", "")
            rows.append([title, kind, code, files, "yes" if right else "no"])
    counts = {
        kind: [row[-1] == "yes" for row in rows if row[1] == kind] for kind in ("planted", "sound")
    }
    faults, sound = (f"{sum(right)} of {len(right)}" for right in counts.values())
    report = Report(
        name="shared_files",
        title="Files whose position forked workers share",
        goal="all planted faults named first, all sound loaders left alone",
        passed=all(row[-1] == "yes" for row in rows),
        tables=[
            Table(
                f"{faults} planted named first, {sound} sound ones left alone",
                ("the file", "is", "first finding", "named as", "right"),
                rows,
            )
        ],
        notes=[f"left out: {', '.join(skipped)} ({reason})" for reason in set(skipped.values())],
    )
    publish(report, before, quick=given.quick)


if __name__ == "__main__":
    main()
