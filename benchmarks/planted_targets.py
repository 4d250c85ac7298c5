"""Loaders with one thing wrong each, and healthy ones: what ``planted.py`` profiles.

Each function returns a DataLoader as a user would write it; the planted cause stands in its name or
its docstring.
"""
# ruff: noqa: D103, ARG001 - see above; torch calls with arguments that nobody needs

from __future__ import annotations

import fcntl
import hashlib
import io
import itertools
import multiprocessing
import os
import random
import re
import tempfile
import threading
import time
import zipfile
import zlib
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import torch
from PIL import Image
from torch.utils.data import DataLoader, Dataset, IterableDataset, Sampler, get_worker_info

LONG = 10_000_000


def burn(milliseconds: float) -> None:
    """Keep a core busy by pure Python."""
    ends = time.thread_time() + milliseconds / 1000
    while time.thread_time() < ends:
        pass


class Timed(Dataset[torch.Tensor]):
    """Samples that burn CPU, wait, or both."""

    def __init__(
        self,
        cpu_ms: float = 0.0,
        wait_ms: float = 0.0,
        shape: tuple[int, ...] = (3, 32, 32),
        length: int = LONG,
    ) -> None:
        self.cpu_ms, self.wait_ms, self.shape, self.length = cpu_ms, wait_ms, shape, length

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: int) -> torch.Tensor:
        if self.wait_ms:
            time.sleep(self.wait_ms / 1000)
        if self.cpu_ms:
            burn(self.cpu_ms)
        return torch.full(self.shape, float(index % 251))


class Tailed(Timed):
    """A share of the samples waits many times as long."""

    def __init__(self, wait_ms: float, share: float, factor: float) -> None:
        super().__init__(wait_ms=wait_ms)
        self.share, self.factor = share, factor

    def __getitem__(self, index: int) -> torch.Tensor:
        slow = random.Random(index).random() < self.share
        time.sleep(self.wait_ms / 1000 * (self.factor if slow else 1.0))
        return torch.full(self.shape, float(index % 251))


class Phased(Timed):
    """Some batches fast, then some slow, and so on: the opening of a file, a cache that misses."""

    def __init__(self, batch: int, fast: int, slow: int, slow_ms: float) -> None:
        super().__init__()
        self.batch, self.fast, self.slow, self.slow_ms = batch, fast, slow, slow_ms

    def __getitem__(self, index: int) -> torch.Tensor:
        place = index // self.batch % (self.fast + self.slow)
        time.sleep((self.slow_ms if place >= self.fast else 0.5) / 1000 / self.batch)
        return torch.full(self.shape, float(index % 251))


class Jpegs(Dataset[torch.Tensor]):
    """JPEG files in memory, decoded, scaled and turned into tensors."""

    def __init__(self, size: int = 320, count: int = 16) -> None:
        self.files = [self._file(size, number) for number in range(count)]

    @staticmethod
    def _file(size: int, number: int) -> bytes:
        stream = io.BytesIO()
        noise = random.Random(number).randbytes(size * size * 3 // 16)
        small = Image.frombytes("RGB", (size // 4, size // 4), noise[: size * size // 16 * 3])
        small.resize((size, size)).save(stream, "JPEG", quality=90)
        return stream.getvalue()

    def __len__(self) -> int:
        return LONG

    def __getitem__(self, index: int) -> torch.Tensor:
        image = Image.open(io.BytesIO(self.files[index % len(self.files)])).convert("RGB")
        pixels = bytearray(image.resize((224, 224)).tobytes())
        return torch.frombuffer(pixels, dtype=torch.uint8).view(224, 224, 3).permute(2, 0, 1) / 255


class Compressed(Dataset[torch.Tensor]):
    """Blocks compressed by zlib."""

    def __init__(self, kilobytes: int = 512) -> None:
        self.block = zlib.compress(random.Random(0).randbytes(kilobytes << 8) * 4, 6)

    def __len__(self) -> int:
        return LONG

    def __getitem__(self, index: int) -> torch.Tensor:
        data = bytearray(zlib.decompress(self.block))
        return torch.frombuffer(data, dtype=torch.uint8)[:4096].clone()


class Words(Dataset[torch.Tensor]):
    """Text, taken apart by a regular expression."""

    def __init__(self, words: int = 4000) -> None:
        self.text = " ".join(f"word{n % 97}, {n}" for n in range(words))

    def __len__(self) -> int:
        return LONG

    def __getitem__(self, index: int) -> torch.Tensor:
        tokens = re.findall(r"\w+|[^\w\s]", self.text)
        return torch.tensor([hash(token) % 30_000 for token in tokens[:512]])


class Stream(IterableDataset[torch.Tensor]):
    """An iterable that is shared among workers, or is not."""

    def __init__(self, *, cpu_ms: float = 0.0, wait_ms: float = 0.0, shared: bool = True) -> None:
        self.cpu_ms, self.wait_ms, self.shared = cpu_ms, wait_ms, shared

    def __iter__(self) -> Iterator[torch.Tensor]:
        worker = get_worker_info()
        first, step = (worker.id, worker.num_workers) if worker and self.shared else (0, 1)
        for index in itertools.count(first, step):
            time.sleep(self.wait_ms / 1000)
            burn(self.cpu_ms)
            yield torch.full((3, 32, 32), float(index))


# fetch.cpu


def cpu_python() -> DataLoader[Any]:
    return DataLoader(Timed(cpu_ms=3), batch_size=8, num_workers=2)


def cpu_jpeg() -> DataLoader[Any]:
    return DataLoader(Jpegs(), batch_size=16, num_workers=2, shuffle=True)


def cpu_words() -> DataLoader[Any]:
    return DataLoader(Words(), batch_size=8, num_workers=2, prefetch_factor=4)


# fetch.io


def io_map() -> DataLoader[Any]:
    return DataLoader(Timed(wait_ms=4), batch_size=8, num_workers=2)


def io_stream() -> DataLoader[Any]:
    return DataLoader(Stream(wait_ms=6), batch_size=4, num_workers=3)


class Files(Dataset[torch.Tensor]):
    """Files whose pages are dropped after reading, as if there were more of them than memory."""

    def __init__(self, count: int = 24, megabytes: int = 4) -> None:
        folder = Path(tempfile.gettempdir()) / "dlprof-planted-files"
        folder.mkdir(exist_ok=True)
        self.paths = [folder / f"{number}.bin" for number in range(count)]
        for path in self.paths:
            if not path.exists():
                path.write_bytes(os.urandom(megabytes << 20))
                with path.open("rb") as file:
                    os.fsync(file.fileno())

    def __len__(self) -> int:
        return LONG

    def __getitem__(self, index: int) -> torch.Tensor:
        path = self.paths[index % len(self.paths)]
        descriptor = os.open(path, os.O_RDONLY)
        try:
            os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_RANDOM)
            size = os.fstat(descriptor).st_size
            os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
            spread = random.Random(index)
            parts = [os.pread(descriptor, 4096, spread.randrange(size - 4096)) for _ in range(32)]
        finally:
            os.close(descriptor)
        return torch.frombuffer(bytearray(b"".join(parts)), dtype=torch.uint8)


def io_files() -> DataLoader[Any]:
    return DataLoader(Files(), batch_size=8, num_workers=2, shuffle=True)


# collate


def _slow_collate(samples: list[torch.Tensor]) -> torch.Tensor:
    burn(20)
    return torch.stack(samples)


def _pad(samples: list[torch.Tensor]) -> torch.Tensor:
    rows = [
        [float(value) for value in sample.flatten().tolist()] + [0.0] * 64 for sample in samples
    ]
    return torch.tensor(rows)


def collate_loop() -> DataLoader[Any]:
    return DataLoader(Timed(cpu_ms=0.2), batch_size=16, num_workers=2, collate_fn=_slow_collate)


def collate_lists() -> DataLoader[Any]:
    return DataLoader(
        Timed(shape=(3, 64, 64)), batch_size=8, num_workers=1, collate_fn=_pad, prefetch_factor=4
    )


# main.receive


class Many(Dataset[dict[str, torch.Tensor]]):
    """Samples of many small tensors."""

    def __init__(self, tensors: int) -> None:
        self.tensors = tensors

    def __len__(self) -> int:
        return LONG

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        return {f"field{n}": torch.full((4,), float(index)) for n in range(self.tensors)}


def receive_tensors() -> DataLoader[Any]:
    return DataLoader(Many(80), batch_size=2, num_workers=2)


class Objects(Dataset[list[dict[str, object]]]):
    """Samples of Python objects that are there already, and are kept as they are."""

    def __init__(self) -> None:
        self.made: list[list[dict[str, object]]] = [
            [{"box": [n, n + 0.5, m], "name": f"object {n * m}"} for n in range(200)]
            for m in range(64)
        ]

    def __len__(self) -> int:
        return LONG

    def __getitem__(self, index: int) -> list[dict[str, object]]:
        return self.made[index % len(self.made)]


def _as_they_are(samples: list[Any]) -> list[Any]:
    return samples


def receive_objects() -> DataLoader[Any]:
    return DataLoader(Objects(), batch_size=32, num_workers=2, collate_fn=_as_they_are)


# main.sampler


class SlowSampler(Sampler[int]):
    """Works out each index by itself."""

    def __init__(self, milliseconds: float) -> None:
        self.milliseconds = milliseconds

    def __len__(self) -> int:
        return LONG

    def __iter__(self) -> Iterator[int]:
        for index in range(LONG):
            burn(self.milliseconds)
            yield index


class Buckets(Sampler[list[int]]):
    """Sorts a pool of candidates for every batch."""

    def __len__(self) -> int:
        return LONG // 8

    def __iter__(self) -> Iterator[list[int]]:
        for batch in range(LONG // 8):
            pool = list(range(batch * 8, batch * 8 + 30_000))
            random.shuffle(pool)
            yield sorted(pool[:8])


def sampler_index() -> DataLoader[Any]:
    return DataLoader(Timed(cpu_ms=0.3), batch_size=8, sampler=SlowSampler(1.5), num_workers=2)


def sampler_batch() -> DataLoader[Any]:
    return DataLoader(Timed(wait_ms=0.5), batch_sampler=Buckets(), num_workers=2)


# order.blocking


def order_tail() -> DataLoader[Any]:
    return DataLoader(Tailed(8, 0.03, 15), batch_size=1, num_workers=4)


def order_rare() -> DataLoader[Any]:
    return DataLoader(Tailed(4, 0.01, 30), batch_size=4, num_workers=4, prefetch_factor=1)


# prefetch.shallow


def shallow_phases() -> DataLoader[Any]:
    return DataLoader(
        Phased(4, fast=12, slow=4, slow_ms=60), batch_size=4, num_workers=4, prefetch_factor=1
    )


def shallow_consumer() -> DataLoader[Any]:
    """Profile with ``burst_step``."""
    return DataLoader(Timed(wait_ms=2), batch_size=4, num_workers=2, prefetch_factor=1)


_steps = itertools.count()


def burst_step(batch: object) -> None:
    """A step that takes its time at every 16th batch only."""
    if next(_steps) % 16 == 0:
        time.sleep(0.12)


# lock


class Locked(Timed):
    """Only one worker at a time gets past the lock."""

    def __init__(self, cpu_ms: float, wait_ms: float) -> None:
        super().__init__(cpu_ms, wait_ms)
        self.lock = multiprocessing.get_context("fork").Lock()

    def __getitem__(self, index: int) -> torch.Tensor:
        with self.lock:
            return super().__getitem__(index)


class FileLocked(Timed):
    """The same by a lock on a file, as archives and databases use."""

    def __init__(self, cpu_ms: float) -> None:
        super().__init__(cpu_ms)
        self.path = Path(tempfile.gettempdir()) / "dlprof-planted.lock"
        self.path.touch()

    def __getitem__(self, index: int) -> torch.Tensor:
        with self.path.open("rb") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            return super().__getitem__(index)


def lock_process() -> DataLoader[Any]:
    return DataLoader(Locked(0, 3), batch_size=4, num_workers=4)


def lock_file() -> DataLoader[Any]:
    return DataLoader(FileLocked(3), batch_size=4, num_workers=3)


# too_few_workers


class Beside(Timed):
    """Small reads beside a thread of the dataset's own, which computes in Python or sleeps."""

    thread: threading.Thread | None = None

    def __init__(self, *, computes: bool) -> None:
        super().__init__()
        self.computes = computes

    def __getitem__(self, index: int) -> torch.Tensor:
        if self.thread is None:
            self.thread = threading.Thread(target=self.go_on, daemon=True)
            self.thread.start()
        for _ in range(4):
            time.sleep(0.0005)
        return super().__getitem__(index)

    def go_on(self) -> None:
        """Compute or sleep for ever."""
        while True:
            if self.computes:
                burn(50)
            else:
                time.sleep(0.001)


def gil_main() -> DataLoader[Any]:
    return DataLoader(Beside(computes=True), batch_size=4)


def gil_worker() -> DataLoader[Any]:
    return DataLoader(Beside(computes=True), batch_size=4, num_workers=1)


def gil_slept() -> DataLoader[Any]:
    return DataLoader(Beside(computes=False), batch_size=8, num_workers=1)


def few_cpu() -> DataLoader[Any]:
    return DataLoader(Timed(cpu_ms=3), batch_size=8, num_workers=1)


def few_jpeg() -> DataLoader[Any]:
    return DataLoader(Jpegs(), batch_size=16)


def few_waiting() -> DataLoader[Any]:
    return DataLoader(Timed(wait_ms=3), batch_size=4, num_workers=1)


# too_many_workers


def many_tiny() -> DataLoader[Any]:
    return DataLoader(Timed(shape=(4,)), batch_size=8, num_workers=4)


def many_small_batches() -> DataLoader[Any]:
    return DataLoader(Timed(shape=(16,)), batch_size=2, num_workers=6)


class Shards(Stream):
    """As many shards as are stated; further workers have none."""

    def __init__(self, shards: int, cpu_ms: float) -> None:
        super().__init__(cpu_ms=cpu_ms)
        self.shards = shards

    def __iter__(self) -> Iterator[torch.Tensor]:
        worker = get_worker_info()
        if worker is not None and worker.id >= self.shards:
            return
        yield from super().__iter__()


def many_shards() -> DataLoader[Any]:
    return DataLoader(Shards(2, 3), batch_size=8, num_workers=6)


class Divided(Shards):
    """Divides its shards by the workers, so that all but the last get none."""

    def __iter__(self) -> Iterator[torch.Tensor]:
        info = get_worker_info()
        last = info is None or info.id == info.num_workers - 1
        return Stream.__iter__(self) if last else iter(())


def unfed_floor() -> DataLoader[Any]:
    return DataLoader(Divided(3, 3), batch_size=8, num_workers=4)


# cpu.oversubscribed


def oversubscribed_python() -> DataLoader[Any]:
    return DataLoader(Timed(cpu_ms=3), batch_size=8, num_workers=8)


def oversubscribed_zlib() -> DataLoader[Any]:
    return DataLoader(Compressed(4096), batch_size=8, num_workers=6)


# cpu.threads


class Multiplied(Timed):
    """A product of matrices in torch's own threads."""

    def __getitem__(self, index: int) -> torch.Tensor:
        matrix = torch.full((320, 320), 1.0 + index % 7)
        return (matrix @ matrix)[:8, :8].clone()


def _four_threads(worker: int) -> None:
    torch.set_num_threads(4)


def threads_torch() -> DataLoader[Any]:
    return DataLoader(Multiplied(), batch_size=16, num_workers=2, worker_init_fn=_four_threads)


class Hashed(Timed):
    """Hashes in a pool of Python threads; hashing large blocks leaves the GIL."""

    _pool = threading.local()

    def __init__(self, threads: int = 6) -> None:
        super().__init__()
        self.threads = threads

    def __getitem__(self, index: int) -> torch.Tensor:
        if not hasattr(self._pool, "it"):
            self._pool.it = ThreadPoolExecutor(self.threads)
        blocks = [bytes([index % 251]) * (1 << 20)] * 6
        sums = list(self._pool.it.map(lambda block: hashlib.sha256(block).digest()[0], blocks))
        return torch.tensor(sums)


def threads_python() -> DataLoader[Any]:
    return DataLoader(Hashed(), batch_size=2, num_workers=2)


# cpu.affinity


def _first_core(worker: int) -> None:
    os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})


def affinity_workers() -> DataLoader[Any]:
    return DataLoader(Timed(cpu_ms=3), batch_size=8, num_workers=2, worker_init_fn=_first_core)


def affinity_main() -> DataLoader[Any]:
    _first_core(0)
    return DataLoader(Jpegs(), batch_size=16, num_workers=2)


# startup


def startup_short() -> DataLoader[Any]:
    return DataLoader(Timed(cpu_ms=0.2, length=64), batch_size=8, num_workers=4)


def startup_spawn() -> DataLoader[Any]:
    return DataLoader(
        Timed(cpu_ms=1, length=640),
        batch_size=8,
        num_workers=1,
        multiprocessing_context="spawn",
    )


# dataset.heavy


class Listed(Timed):
    """Keeps Python objects for far more samples than it loads."""

    def __init__(self) -> None:
        super().__init__(cpu_ms=1, length=640)
        self.records = [{"path": f"{number}.jpg", "label": number} for number in range(1_000_000)]


def heavy_forkserver() -> DataLoader[Any]:
    return DataLoader(Listed(), batch_size=8, num_workers=2, multiprocessing_context="forkserver")


def heavy_spawn() -> DataLoader[Any]:
    return DataLoader(Listed(), batch_size=8, num_workers=2, multiprocessing_context="spawn")


# memory.growth


class Leaking(Timed):
    """Keeps what it should not."""

    def __init__(self, kilobytes: int, cpu_ms: float, wait_ms: float) -> None:
        super().__init__(cpu_ms, wait_ms)
        self.kilobytes = kilobytes
        self.kept: list[object] = []

    def __getitem__(self, index: int) -> torch.Tensor:
        self.kept.append(bytearray(os.urandom(1024)) * self.kilobytes)
        return super().__getitem__(index)


class Cached(Timed):
    """A cache by index that never forgets."""

    def __init__(self) -> None:
        super().__init__(wait_ms=2, shape=(3, 96, 96))
        self.cache: dict[int, torch.Tensor] = {}

    def __getitem__(self, index: int) -> torch.Tensor:
        if index not in self.cache:
            self.cache[index] = super().__getitem__(index)
        return self.cache[index]


def growth_list() -> DataLoader[Any]:
    return DataLoader(Leaking(64, 1, 0), batch_size=8, num_workers=2)


def growth_cache() -> DataLoader[Any]:
    return DataLoader(Cached(), batch_size=8, num_workers=2, shuffle=False)


# memory.limit


_hoard: list[bytearray] = []


def _fill_memory(worker: int) -> None:
    _hoard.append(bytearray(b"x") * (400 << 20))


def limit_workers() -> DataLoader[Any]:
    """Profile within a small limit."""
    return DataLoader(Timed(cpu_ms=1), batch_size=8, num_workers=4, worker_init_fn=_fill_memory)


def limit_batches() -> DataLoader[Any]:
    """Profile within a small limit."""
    return DataLoader(Timed(shape=(4, 1024, 1024)), batch_size=8, num_workers=4, prefetch_factor=4)


# memory.shm


def shm_default() -> DataLoader[Any]:
    """Profile with a small /dev/shm."""
    return DataLoader(
        Timed(cpu_ms=1, shape=(3, 256, 256)), batch_size=8, num_workers=4, prefetch_factor=4
    )


def shm_custom() -> DataLoader[Any]:
    """Profile with a small /dev/shm."""
    return DataLoader(
        Timed(wait_ms=1, shape=(1024, 1024)), batch_size=2, num_workers=3, collate_fn=_as_they_are
    )


# memory.faults


class Scaled(Dataset[torch.Tensor]):
    """Images as float32: 37 MiB a batch of 64, which malloc gives back each time."""

    def __init__(self) -> None:
        torch.set_num_threads(1)
        self.images = torch.randint(0, 255, (64, 3, 224, 224), dtype=torch.uint8)

    def __len__(self) -> int:
        return LONG

    def __getitem__(self, index: int) -> torch.Tensor:
        return self.images[index % len(self.images)].float().div_(255)


class Volumes(Dataset[torch.Tensor]):
    """Crops of volumes, each step of which makes another copy of 36 MiB."""

    def __init__(self) -> None:
        torch.set_num_threads(1)
        self.volumes = torch.randint(0, 999, (2, 256, 256, 144), dtype=torch.int16)

    def __len__(self) -> int:
        return LONG

    def __getitem__(self, index: int) -> torch.Tensor:
        volume = self.volumes[index % len(self.volumes)].float()
        volume = (volume - 500.0) / 288.0
        return volume.clamp(-1.5, 1.5)[80:176, 80:176, 40:104].clone()


def faults_batch() -> DataLoader[Any]:
    return DataLoader(Scaled(), batch_size=64)


def faults_volume() -> DataLoader[Any]:
    return DataLoader(Volumes(), batch_size=1, num_workers=2)


# data.shared_file


class Records(Dataset[torch.Tensor]):
    """Records of one file, which is open before workers are forked."""

    def __init__(self, *, packed: bool = False) -> None:
        folder = Path(tempfile.gettempdir())
        self.packed = packed
        records = [bytes([number]) * 4096 for number in range(256)]
        if packed:
            path = folder / "dlprof-planted-records.zip"
            with zipfile.ZipFile(path, "w") as archive:
                for number, record in enumerate(records):
                    archive.writestr(str(number), record)
            self.archive = zipfile.ZipFile(path)
        else:
            path = folder / "dlprof-planted-records.bin"
            path.write_bytes(b"".join(records))
            self.file = path.open("rb")

    def __len__(self) -> int:
        return 256

    def __getitem__(self, index: int) -> torch.Tensor:
        burn(0.5)
        if self.packed:
            record = self.archive.read(str(index))
        else:
            self.file.seek(index * 4096)
            record = self.file.read(4096)
        return torch.frombuffer(bytearray(record), dtype=torch.uint8)


def shared_handle() -> DataLoader[Any]:
    return DataLoader(Records(), batch_size=8, num_workers=2)


def shared_zip() -> DataLoader[Any]:
    return DataLoader(Records(packed=True), batch_size=8, num_workers=3)


# data.duplicated


def duplicated_stream() -> DataLoader[Any]:
    return DataLoader(Stream(cpu_ms=1, shared=False), batch_size=8, num_workers=2)


class Lines(IterableDataset[torch.Tensor]):
    """The lines of a file, all of them in every worker."""

    def __init__(self) -> None:
        self.path = Path(tempfile.gettempdir()) / "dlprof-planted-lines.txt"
        self.path.write_text("".join(f"{n} {n * n % 97}\n" for n in range(200_000)))

    def __iter__(self) -> Iterator[torch.Tensor]:
        with self.path.open() as lines:
            for line in lines:
                time.sleep(0.0005)
                yield torch.tensor([float(word) for word in line.split()])


def duplicated_lines() -> DataLoader[Any]:
    return DataLoader(Lines(), batch_size=16, num_workers=3)


# data.truncated


class Stopping(Timed):
    """Its files end before its index does."""

    def __init__(self) -> None:
        super().__init__(cpu_ms=0.5, length=4000)

    def __getitem__(self, index: int) -> torch.Tensor:
        found = [super().__getitem__(index)] if index < 300 else []
        return next(iter(found))


class Short(Stream):
    """Promises more than it has."""

    def __init__(self) -> None:
        super().__init__(cpu_ms=0.5)

    def __len__(self) -> int:
        return 2000

    def __iter__(self) -> Iterator[torch.Tensor]:
        yield from itertools.islice(super().__iter__(), 150)


def truncated_stop() -> DataLoader[Any]:
    return DataLoader(Stopping(), batch_size=8, num_workers=2)


def truncated_stream() -> DataLoader[Any]:
    return DataLoader(Short(), batch_size=4, num_workers=2)


# healthy: fast enough for the steps that planted.py gives them


HEALTHY: dict[str, Callable[[], DataLoader[Any]]] = {
    "tiny_alone": lambda: DataLoader(Timed(shape=(4,)), batch_size=8),
    "tiny_one": lambda: DataLoader(Timed(shape=(4,)), batch_size=8, num_workers=1),
    "cpu_two": lambda: DataLoader(Timed(cpu_ms=1), batch_size=8, num_workers=2),
    "cpu_persistent": lambda: DataLoader(
        Timed(cpu_ms=1), batch_size=8, num_workers=2, persistent_workers=True
    ),
    "cpu_deep": lambda: DataLoader(Timed(cpu_ms=1), batch_size=8, num_workers=2, prefetch_factor=4),
    "jpeg_two": lambda: DataLoader(Jpegs(192), batch_size=4, num_workers=2, shuffle=True),
    "jpeg_one": lambda: DataLoader(Jpegs(192), batch_size=2, num_workers=1),
    "words_two": lambda: DataLoader(Words(1000), batch_size=4, num_workers=2),
    "zlib_two": lambda: DataLoader(Compressed(256), batch_size=4, num_workers=2),
    "io_four": lambda: DataLoader(Timed(wait_ms=2), batch_size=8, num_workers=4),
    "io_eight": lambda: DataLoader(Timed(wait_ms=6), batch_size=8, num_workers=8),
    "io_files": lambda: DataLoader(Files(), batch_size=1, num_workers=4),
    "stream_two": lambda: DataLoader(Stream(cpu_ms=0.5), batch_size=8, num_workers=2),
    "stream_waiting": lambda: DataLoader(Stream(wait_ms=2), batch_size=4, num_workers=2),
    "tail_deep": lambda: DataLoader(
        Tailed(2, 0.02, 8), batch_size=2, num_workers=4, prefetch_factor=4
    ),
    "many_fields": lambda: DataLoader(Many(6), batch_size=4, num_workers=2),
    "large_batches": lambda: DataLoader(
        Timed(shape=(3, 224, 224)), batch_size=8, num_workers=2, pin_memory=False
    ),
    "two_epochs": lambda: DataLoader(Timed(cpu_ms=1, length=8000), batch_size=8, num_workers=2),
    "unordered": lambda: DataLoader(
        Tailed(2, 0.05, 5), batch_size=2, num_workers=3, in_order=False
    ),
    "threads_one": lambda: DataLoader(Multiplied(), batch_size=2, num_workers=2),
}


def healthy(name: str) -> DataLoader[Any]:
    """A healthy loader by its name."""
    return HEALTHY[name]()


# fixed: what a finding's fix asks for, where that is no setting

FIXED: dict[str, Callable[[], DataLoader[Any]]] = {
    "cpu_python": lambda: DataLoader(Timed(cpu_ms=1.5), batch_size=8, num_workers=2),
    "cpu_words": lambda: DataLoader(
        Words(2000), batch_size=8, num_workers=2, prefetch_factor=4
    ),  # half of it, as the finding says
    "collate_loop": lambda: DataLoader(Timed(cpu_ms=0.2), batch_size=16, num_workers=2),
    "collate_lists": lambda: DataLoader(
        Timed(shape=(3, 64, 64)), batch_size=8, num_workers=1, prefetch_factor=4
    ),
    "sampler_index": lambda: DataLoader(Timed(cpu_ms=0.3), batch_size=8, num_workers=2),
    "sampler_batch": lambda: DataLoader(Timed(wait_ms=0.5), batch_size=8, num_workers=2),
    "lock_process": lambda: DataLoader(Timed(wait_ms=3), batch_size=4, num_workers=4),
    "lock_file": lambda: DataLoader(Timed(cpu_ms=3), batch_size=4, num_workers=3),
    "threads_torch": lambda: DataLoader(Multiplied(), batch_size=16, num_workers=2),
    "threads_python": lambda: DataLoader(Hashed(threads=1), batch_size=2, num_workers=2),
    "affinity_workers": lambda: DataLoader(Timed(cpu_ms=3), batch_size=8, num_workers=2),
}


def fixed(name: str) -> DataLoader[Any]:
    """The loader of a case with its fix, by the case's name."""
    return FIXED[name]()
