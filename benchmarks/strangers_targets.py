"""Loaders with one thing wrong each, as PyTorch users write them: what ``strangers.py`` profiles.

They were written without a look at dlprof's rules, and what each may be called was judged before
any of them was profiled. The fault is in the docstring.
"""

from __future__ import annotations

import collections
import copy
import ctypes
import fcntl
import functools
import gc
import gzip
import http.server
import io
import json
import logging
import multiprocessing
import os
import pickle
import random
import re
import socketserver
import sqlite3
import subprocess
import tempfile
import time
import urllib.request
import zipfile
import zlib
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch
from PIL import Image
from torch.utils.data import DataLoader, Dataset, IterableDataset, Sampler, get_worker_info

MANY = 2_000_000
Loader = DataLoader[Any]


class Mapped(Dataset[Any]):
    """A dataset of a function."""

    def __init__(self, sample: Callable[[int], Any], length: int = MANY) -> None:
        self.sample, self.length = sample, length

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: int) -> Any:
        return self.sample(index)


class Streamed(IterableDataset[Any]):
    """A stream of a function of the worker's number and their count."""

    def __init__(self, stream: Callable[[int, int], Iterator[Any]]) -> None:
        self.stream = stream

    def __iter__(self) -> Iterator[Any]:
        info = get_worker_info()
        return self.stream(info.id if info else 0, info.num_workers if info else 1)


def same(samples: Any) -> Any:
    """Leave a list of samples as it is."""
    return samples


def plain(index: int) -> torch.Tensor:
    """A sample that costs little."""
    return torch.full((3, 32, 32), float(index % 255))


def _file(name: str, write: Callable[[Path], object]) -> Path:
    """A file, written once."""
    folder = Path(tempfile.gettempdir()) / "dlprof-strangers"
    folder.mkdir(exist_ok=True)
    path = folder / name
    if not path.exists():
        part = folder / f"{name}.{os.getpid()}.part"
        write(part)
        part.rename(path)
    return path


def _noise(*shape: int) -> np.ndarray[Any, Any]:
    return np.random.default_rng(0).integers(0, 255, shape, dtype=np.uint8)


# Decoding and reading


def _picture(name: str, size: tuple[int, int], kind: str) -> Path:
    blurred = Image.fromarray(_noise(size[1] // 16, size[0] // 16, 3)).resize(size)
    return _file(name, lambda path: blurred.save(path, kind))


def _resized(path: Path, _index: int) -> torch.Tensor:
    with Image.open(path) as image:
        small = image.convert("RGB").resize((224, 224))
    return torch.from_numpy(np.array(small)).permute(2, 0, 1)


def jpeg_full_size() -> Loader:
    """Photographs are decoded at full size for 224 pixels."""
    path = _picture("photo.jpg", (2048, 1536), "JPEG")
    return DataLoader(Mapped(functools.partial(_resized, path)), batch_size=8, num_workers=2)


def png_in_main() -> Loader:
    """PNG files are decoded in the training's own process."""
    path = _picture("photo.png", (1024, 768), "PNG")
    return DataLoader(Mapped(functools.partial(_resized, path)), batch_size=8)


def pandas_rows() -> Loader:
    """Each sample is a row taken from a DataFrame by iloc, column by column."""
    frame = pd.DataFrame({f"c{n}": np.arange(20_000.0) for n in range(30)})

    def row(index: int) -> torch.Tensor:
        return torch.tensor([float(frame.iloc[index][name]) for name in frame.columns])

    return DataLoader(Mapped(row, 20_000), batch_size=32, shuffle=True, num_workers=2)


def json_lines() -> Loader:
    """A document of some 100 kB is parsed for each sample."""
    text = json.dumps([{"id": n, "words": ["word"] * 20, "at": n / 7} for n in range(500)])

    def parsed(index: int) -> torch.Tensor:
        return torch.tensor([each["at"] for each in json.loads(text)[:16]]) + index

    return DataLoader(Mapped(parsed), batch_size=16, num_workers=2)


def regex_tokens() -> Loader:
    """Text is tokenized by regular expressions in Python."""
    text = "The quick brown fox, aged 7, jumps over the lazy dog's 23 bones. " * 60
    pattern = re.compile(r"[A-Za-z]+(?:'[a-z]+)?|\d+|[^\w\s]")

    def tokens(index: int) -> torch.Tensor:
        found = [hash(each.lower()) % 30_000 for each in pattern.findall(text)]
        return torch.tensor(found[:512]) + index

    return DataLoader(Mapped(tokens), batch_size=32, num_workers=2)


def zip_opened_per_sample() -> Loader:
    """The zip file of all samples is opened, and its list of 8000 members read, for each."""

    def write(path: Path) -> None:
        with zipfile.ZipFile(path, "w") as archive:
            for number in range(8000):
                archive.writestr(f"{number}.bin", bytes(256))

    path = _file("all.zip", write)

    def member(index: int) -> torch.Tensor:
        with zipfile.ZipFile(path) as archive:
            return torch.tensor(list(archive.read(f"{index}.bin")))

    return DataLoader(Mapped(member, 8000), batch_size=8, shuffle=True, num_workers=2)


def sqlite_without_index() -> Loader:
    """Each sample is a query that reads the whole table."""

    def write(path: Path) -> None:
        with sqlite3.connect(path) as base:
            base.execute("create table samples (name text, value real)")
            rows = ((f"sample-{n}", n / 3) for n in range(60_000))
            base.executemany("insert into samples values (?, ?)", rows)

    path = _file("samples.db", write)

    def queried(index: int) -> torch.Tensor:
        base = sqlite3.connect(path)
        question = "select value from samples where name = ?"
        found = base.execute(question, (f"sample-{index}",)).fetchone()
        base.close()
        return torch.tensor(found)

    return DataLoader(Mapped(queried, 60_000), batch_size=8, shuffle=True, num_workers=2)


def deep_copies() -> Loader:
    """The sample's annotations are copied by deepcopy before they are changed."""
    notes = {"boxes": [{"at": [n, n + 1, n + 2, n + 3], "label": str(n)} for n in range(150)]}

    def sample(index: int) -> torch.Tensor:
        mine = copy.deepcopy(notes)
        return torch.tensor([box["at"] for box in mine["boxes"]]) + index

    return DataLoader(Mapped(sample), batch_size=16, num_workers=2)


def logging_with_stack() -> Loader:
    """Every sample is logged many times, with where it was called from."""
    logger = logging.getLogger("strangers")
    logger.propagate = False
    logger.addHandler(logging.FileHandler(os.devnull))
    logger.setLevel(logging.DEBUG)

    def sample(index: int) -> torch.Tensor:
        for step in range(6):
            logger.debug("step %d of sample %d", step, index, stack_info=True)
        return plain(index)

    return DataLoader(Mapped(sample), batch_size=16, num_workers=2)


def garbage_collected_per_sample() -> Loader:
    """gc.collect() after each sample, among many objects."""
    kept = [{"n": n} for n in range(100_000)]

    def sample(index: int) -> torch.Tensor:
        gc.collect()
        return plain(index) + len(kept)

    return DataLoader(Mapped(sample), batch_size=8, num_workers=2)


def whole_array_for_a_row() -> Loader:
    """A file of 12 MB is read by np.load for one of its rows."""
    path = _file("rows.npy", lambda path: np.save(path.open("wb"), _noise(3000, 4096)))

    def row(index: int) -> torch.Tensor:
        return torch.from_numpy(np.load(path)[index].astype(np.float32))

    return DataLoader(Mapped(row, 3000), batch_size=8, shuffle=True, num_workers=2)


def npz_compressed() -> Loader:
    """Compressed NumPy archives are inflated for each sample."""
    array = _noise(64, 64).repeat(20, axis=0)
    path = _file("one.npz", lambda path: np.savez_compressed(path.open("wb"), x=array))

    def sample(index: int) -> torch.Tensor:
        with np.load(path) as archive:
            return torch.from_numpy(archive["x"][:32]) + index % 2

    return DataLoader(Mapped(sample), batch_size=16, num_workers=2)


def gzip_seeks() -> Loader:
    """Records lie in a gzip file, which is read from its beginning for each."""
    path = _file("lines.gz", lambda path: path.write_bytes(gzip.compress(_noise(4 << 20).data)))

    def record(index: int) -> torch.Tensor:
        with gzip.open(path) as lines:
            lines.seek((index % 4000) << 10)
            return torch.tensor(list(lines.read(256)))

    return DataLoader(Mapped(record), batch_size=4, num_workers=2)


def pixels_by_python() -> Loader:
    """An augmentation goes over pixels in Python."""
    picture = _noise(64, 64).tolist()

    def sample(index: int) -> torch.Tensor:
        return torch.tensor([[min(255, p + index % 9) for p in row] for row in picture])

    return DataLoader(Mapped(sample), batch_size=32, num_workers=2)


def memmap_by_elements() -> Loader:
    """A window is taken from a memory map element by element."""
    path = _file("signal.npy", lambda path: np.save(path.open("wb"), _noise(1 << 22)))
    signal = np.load(path, mmap_mode="r")

    def window(index: int) -> torch.Tensor:
        start = index * 37 % (len(signal) - 3000)
        return torch.tensor([float(signal[n]) for n in range(start, start + 3000)])

    return DataLoader(Mapped(window), batch_size=16, num_workers=2)


def pickles() -> Loader:
    """Samples are kept as pickles of Python objects."""
    content = pickle.dumps([{"k": n, "v": str(n) * 3, "w": (n, n)} for n in range(4000)])

    def sample(index: int) -> torch.Tensor:
        return torch.tensor([each["k"] for each in pickle.loads(content)[:32]]) + index

    return DataLoader(Mapped(sample), batch_size=16, num_workers=2)


def stream_skipped() -> Loader:
    """Every worker decodes the whole stream, and keeps each of its n-th samples."""
    content = zlib.compress(_noise(200_000).data)

    def stream(worker: int, workers: int) -> Iterator[torch.Tensor]:
        for number in range(MANY):
            sample = torch.frombuffer(bytearray(zlib.decompress(content)), dtype=torch.uint8)
            if number % workers == worker:
                yield sample[:1024]

    return DataLoader(Streamed(stream), batch_size=16, num_workers=3)


# Waiting


def network_waits() -> Loader:
    """Each sample is a request that takes 20 ms."""

    def sample(index: int) -> torch.Tensor:
        time.sleep(0.02)
        return plain(index)

    return DataLoader(Mapped(sample), batch_size=8, num_workers=2)


class _Slow(http.server.BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        time.sleep(0.015)
        self.send_response(200)
        self.end_headers()
        self.wfile.write(bytes(4096))

    def log_message(self, *_: Any) -> None:
        """Say nothing."""


def _serve(ready: Any) -> None:
    with socketserver.ThreadingTCPServer(("127.0.0.1", 0), _Slow) as server:
        ready.put(server.server_address[1])
        server.serve_forever()


def http_requests() -> Loader:
    """Samples come from a server that answers after 15 ms."""
    fork = multiprocessing.get_context("fork")
    ready = fork.SimpleQueue()
    fork.Process(target=_serve, args=(ready,), daemon=True).start()
    address = f"http://127.0.0.1:{ready.get()}/"

    def sample(index: int) -> torch.Tensor:
        with urllib.request.urlopen(address) as answer:
            return torch.frombuffer(bytearray(answer.read()), dtype=torch.uint8) + index % 2

    return DataLoader(Mapped(sample), batch_size=8, num_workers=2)


def command_per_sample() -> Loader:
    """A command is run for each sample, as people do with ffmpeg."""

    def sample(index: int) -> torch.Tensor:
        command = ["sh", "-c", "sleep 0.02; head -c 4096 /dev/zero"]
        done = subprocess.run(command, capture_output=True, check=True)
        return torch.frombuffer(bytearray(done.stdout), dtype=torch.uint8) + index % 2

    return DataLoader(Mapped(sample), batch_size=4, num_workers=2)


def waits_in_main() -> Loader:
    """Samples wait for 5 ms each, and there are no workers."""

    def sample(index: int) -> torch.Tensor:
        time.sleep(0.005)
        return plain(index)

    return DataLoader(Mapped(sample), batch_size=16)


def _one_in(index: int, count: int, slow_s: float, fast_s: float) -> torch.Tensor:
    time.sleep(slow_s if random.Random(index).random() < 1 / count else fast_s)
    return plain(index)


def stragglers() -> Loader:
    """One request of 100 takes half a second, the others 2 ms; the step would hide the mean."""
    sample = functools.partial(_one_in, count=100, slow_s=0.5, fast_s=0.002)
    return DataLoader(Mapped(sample), batch_size=8, num_workers=4, shuffle=True)


def slow_shard() -> Loader:
    """Worker 0 reads from a slow disk, ten times slower than the others."""

    def stream(worker: int, _workers: int) -> Iterator[torch.Tensor]:
        for number in range(MANY):
            time.sleep(0.02 if worker == 0 else 0.002)
            yield plain(number * 4 + worker)

    return DataLoader(Streamed(stream), batch_size=8, num_workers=4)


def bursts() -> Loader:
    """Each 12th batch takes long, and prefetch_factor=1 keeps too little for it."""

    def sample(index: int) -> torch.Tensor:
        time.sleep(0.03 if index // 8 % 12 == 0 else 0.001)
        return plain(index)

    return DataLoader(Mapped(sample), batch_size=8, num_workers=2, prefetch_factor=1)


# Locks


def one_reader_at_a_time() -> Loader:
    """A lock lets one process read at a time."""
    lock = multiprocessing.get_context("fork").Lock()

    def sample(index: int) -> torch.Tensor:
        with lock:
            time.sleep(0.004)
        return plain(index)

    return DataLoader(Mapped(sample), batch_size=8, num_workers=4)


def file_locked() -> Loader:
    """A cache on disk is locked as a whole while it is read."""
    path = _file("cache.lock", lambda path: path.touch())

    def sample(index: int) -> torch.Tensor:
        with path.open() as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            time.sleep(0.003)
        return plain(index)

    return DataLoader(Mapped(sample), batch_size=8, num_workers=4)


def cache_of_a_manager() -> Loader:
    """All workers share the dict of a multiprocessing.Manager, which one process serves."""
    manager = multiprocessing.get_context("fork").Manager()
    cache = manager.dict({n: _noise(100_000) for n in range(50)})

    def sample(index: int) -> torch.Tensor:
        return torch.from_numpy(cache[index % 50][:4096])

    loader = DataLoader(Mapped(sample), batch_size=8, num_workers=4)
    loader.kept = manager
    return loader


# Batches


def _padded(samples: Sequence[list[int]]) -> torch.Tensor:
    longest = max(map(len, samples))
    return torch.tensor([row + [0] * (longest - len(row)) for row in samples])


def padded_in_python() -> Loader:
    """The collate function pads lists of ints in Python."""
    rows = [list(range(200 + n * 37 % 800)) for n in range(2000)]
    return DataLoader(
        Mapped(rows.__getitem__, 2000),
        batch_size=64,
        shuffle=True,
        num_workers=2,
        collate_fn=_padded,
    )


def _normalized(samples: Sequence[torch.Tensor]) -> torch.Tensor:
    batch = torch.stack(list(samples)).double()
    return ((batch - batch.mean()) / (batch.std() + 1e-6)).pow(1.1).abs().float()


def normalized_in_collate() -> Loader:
    """The collate function normalizes large batches in double precision.

    In glibc's heap, workers that do so also grow by 8 MB a batch, which their planter didn't know.
    """
    ctypes.CDLL(None).mallopt(-3, 1 << 20)  # M_MMAP_THRESHOLD: the only fault is the planted one
    picture = torch.from_numpy(_noise(3, 160, 160))
    return DataLoader(
        Mapped(lambda _: picture), batch_size=32, num_workers=2, collate_fn=_normalized
    )


def lists_of_dicts() -> Loader:
    """Batches are lists of dicts of Python objects, which main unpickles."""

    def sample(index: int) -> list[dict[str, Any]]:
        return [{"box": [n, n, n, n], "name": f"{index}-{n}"} for n in range(100)]

    return DataLoader(Mapped(sample), batch_size=64, num_workers=2, collate_fn=same)


def many_tensors() -> Loader:
    """Each sample is many small tensors, and each of them crosses as a file of its own."""

    def sample(index: int) -> dict[str, torch.Tensor]:
        return {str(n): torch.full((4,), index) for n in range(20)}

    return DataLoader(Mapped(sample), batch_size=16, num_workers=2, collate_fn=same)


def arrays_by_pickle() -> Loader:
    """Batches are large NumPy arrays, which cross the pipe as pickles."""
    picture = _noise(3, 512, 512)
    return DataLoader(Mapped(lambda _: picture), batch_size=32, num_workers=2, collate_fn=np.stack)


class _Weighted(Sampler[int]):
    def __len__(self) -> int:
        return MANY

    def __iter__(self) -> Iterator[int]:
        weights = np.ones(200_000) / 200_000
        generator = np.random.default_rng(0)
        for _ in range(MANY):
            yield int(generator.choice(len(weights), p=weights))


def weighted_one_by_one() -> Loader:
    """The sampler draws each index by numpy.random.choice with weights."""
    return DataLoader(Mapped(plain), batch_size=16, num_workers=2, sampler=_Weighted())


class _Buckets(Sampler[list[int]]):
    def __init__(self) -> None:
        self.lengths = {n: n * 7919 % 1000 for n in range(40_000)}

    def __len__(self) -> int:
        return MANY

    def __iter__(self) -> Iterator[list[int]]:
        for number in range(MANY):
            ordered = sorted(self.lengths, key=self.lengths.__getitem__)
            start = number * 16 % (len(ordered) - 16)
            yield ordered[start : start + 16]


def buckets_sorted_each_time() -> Loader:
    """The batch sampler sorts all lengths for every batch."""
    return DataLoader(Mapped(plain), num_workers=2, batch_sampler=_Buckets())


def single_samples() -> Loader:
    """Batches of one small sample, sent by four workers."""
    return DataLoader(Mapped(plain), batch_size=1, num_workers=4)


# Cores


def _eight_threads(_worker: int) -> None:
    torch.set_num_threads(8)


def torch_threads() -> Loader:
    """Each worker's torch computes on 8 threads."""
    matrix = torch.rand(256, 256)

    def sample(index: int) -> torch.Tensor:
        return (matrix @ matrix @ matrix)[0] + index

    return DataLoader(Mapped(sample), batch_size=16, num_workers=4, worker_init_fn=_eight_threads)


def pools_in_workers() -> Loader:
    """Each worker runs a pool of 8 threads that compress."""
    content = bytes(_noise(60_000).data)
    pools: dict[int, ThreadPoolExecutor] = {}

    def sample(index: int) -> torch.Tensor:
        pool = pools.setdefault(os.getpid(), ThreadPoolExecutor(8))
        sizes = list(pool.map(lambda _: len(zlib.compress(content)), range(16)))
        return torch.tensor(sizes) + index

    return DataLoader(Mapped(sample), batch_size=4, num_workers=4)


def _hashed(index: int, rounds: int) -> torch.Tensor:
    total = index
    for _ in range(rounds):
        total = (total * 1_103_515_245 + 12_345) % 2_147_483_648
    return torch.full((16,), total)


def sixteen_workers() -> Loader:
    """Sixteen workers that compute, on a machine of few cores."""
    sample = functools.partial(_hashed, rounds=30_000)
    return DataLoader(Mapped(sample), batch_size=8, num_workers=16)


def one_worker() -> Loader:
    """One worker that computes, and cores that idle."""
    sample = functools.partial(_hashed, rounds=30_000)
    return DataLoader(Mapped(sample), batch_size=8, num_workers=1)


def _first_core(_worker: int) -> None:
    os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})


def pinned_workers() -> Loader:
    """worker_init_fn pins every worker to the same core."""
    sample = functools.partial(_hashed, rounds=30_000)
    return DataLoader(Mapped(sample), batch_size=8, num_workers=2, worker_init_fn=_first_core)


# Starts, memory, data


def _vocabulary(_worker: int) -> None:
    time.sleep(1.5)


def spawned_each_epoch() -> Loader:
    """Short epochs, and workers that are spawned again for each."""
    dataset = torch.utils.data.TensorDataset(torch.rand(64, 16))
    return DataLoader(dataset, batch_size=8, num_workers=2, multiprocessing_context="spawn")


def vocabulary_each_epoch() -> Loader:
    """Each worker loads a vocabulary for 1.5 s when it starts, for an epoch of 20 batches."""
    return DataLoader(Mapped(plain, 160), batch_size=8, num_workers=2, worker_init_fn=_vocabulary)


class Lazy(Dataset[Any]):
    """Opens its files when the first sample is asked for."""

    def __init__(self) -> None:
        self.opened = False

    def __len__(self) -> int:
        return 240

    def __getitem__(self, index: int) -> torch.Tensor:
        if not self.opened:
            time.sleep(1.0)
            self.opened = True
        return plain(index)


def opened_each_epoch() -> Loader:
    """Files are opened, for a second, by each new worker's first sample; the epochs are short."""
    return DataLoader(Lazy(), batch_size=8, num_workers=2)


class Annotated(Dataset[Any]):
    """Holds its annotations as Python objects."""

    def __init__(self) -> None:
        self.notes = [{"id": n, "box": [n, n + 1], "name": f"image-{n}"} for n in range(400_000)]

    def __len__(self) -> int:
        return len(self.notes)

    def __getitem__(self, index: int) -> torch.Tensor:
        return torch.tensor(self.notes[index]["box"])


def annotations_spawned() -> Loader:
    """A list of 400 000 dicts is pickled for each spawned worker."""
    return DataLoader(Annotated(), batch_size=256, num_workers=2, multiprocessing_context="spawn")


def cached_forever() -> Loader:
    """Decoded samples are kept in a dict without a bound."""
    cache: dict[int, torch.Tensor] = {}

    def sample(index: int) -> torch.Tensor:
        if index not in cache:
            time.sleep(0.002)
            cache[index] = torch.full((40_000,), float(index))
        return cache[index][:64]

    return DataLoader(Mapped(sample), batch_size=16, num_workers=2, shuffle=True)


def history_kept() -> Loader:
    """A transform keeps what it has done to each sample."""
    history: collections.deque[Any] = collections.deque()

    def sample(index: int) -> torch.Tensor:
        time.sleep(0.001)
        history.append([f"{index}-{n}" for n in range(600)])
        return plain(index)

    return DataLoader(Mapped(sample), batch_size=16, num_workers=2)


def one_file_four_workers() -> Loader:
    """Four workers share the files out, and there is one."""

    def stream(worker: int, workers: int) -> Iterator[torch.Tensor]:
        for file in range(1)[worker::workers]:
            for number in range(MANY):
                time.sleep(0.002)
                yield plain(number + file)

    return DataLoader(Streamed(stream), batch_size=8, num_workers=4)


def first_worker_only() -> Loader:
    """The stream is given by worker 0 alone, against samples that come twice."""

    def stream(worker: int, _workers: int) -> Iterator[torch.Tensor]:
        if worker == 0:
            for number in range(MANY):
                yield _hashed(number, 10_000)

    return DataLoader(Streamed(stream), batch_size=8, num_workers=2)


def stream_repeated() -> Loader:
    """Every worker gives the whole stream."""
    content = io.BytesIO(b"".join(n.to_bytes(4, "little") for n in range(100_000))).getvalue()

    def stream(_worker: int, _workers: int) -> Iterator[torch.Tensor]:
        for start in range(0, len(content), 4):
            time.sleep(0.001)
            yield torch.tensor(list(content[start : start + 4]) * 16)

    return DataLoader(Streamed(stream), batch_size=16, num_workers=3)


# The training


def quick_tensors() -> Loader:
    """Nothing is wrong with it: the training takes 40 ms a step."""
    return DataLoader(Mapped(plain), batch_size=16, num_workers=2)


def step_of_products(_batch: Any) -> None:
    """A training step that computes for some 50 ms."""
    ends = time.perf_counter() + 0.05
    matrix = torch.rand(64, 64)
    while time.perf_counter() < ends:
        matrix = torch.tanh(matrix @ matrix)
