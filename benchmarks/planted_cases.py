"""The planted causes and the healthy loaders, each with its options and its real surroundings."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import planted_targets

TARGETS = Path(planted_targets.__file__)
CGROUPS = Path("/sys/fs/cgroup")
_BURN = "while True: pass"

Prefix = Sequence[str]
Place = Callable[[], contextlib.AbstractContextManager[Prefix]]


@contextlib.contextmanager
def nowhere() -> Iterator[Prefix]:
    """No surroundings of its own."""
    yield ()


class UnavailableError(Exception):
    """The surroundings of a case can't be made here."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """One planted cause.

    Attributes:
        name: Of the function in ``planted_targets``, and what sets it apart from its siblings.
        code: The code that should come first; ``consumer`` or none for a healthy loader.
        also: Codes that are as right.
        file: Where the function is.
        target: The function, with ``--arg`` for it.
        options: Further options of ``dlprof profile``.
        place: What surrounds it; gives what the command begins with.
        place_is_cause: Whether the loader is well without those surroundings.
    """

    name: str
    code: str
    target: str = ""
    options: Sequence[str] = ()
    place: Place = nowhere
    place_is_cause: bool = False
    also: Sequence[str] = ()
    file: Path = TARGETS

    @property
    def spec(self) -> str:
        """TARGET."""
        return f"{self.file}:{self.target or self.name}"

    @property
    def arguments(self) -> dict[str, str]:
        """Of its ``--arg``."""
        given = self.values().get("--arg")
        return dict([given.split("=", 1)]) if given else {}

    def values(self) -> dict[str, str]:
        """Its options by name."""
        return dict(zip(self.options[::2], self.options[1::2], strict=True))


@contextlib.contextmanager
def neighbours(count: int) -> Iterator[Prefix]:
    """Processes that each keep a core busy, as those of several users do.

    Each has a session of its own: the kernel gives a session what it gives one process.
    """
    command = [sys.executable, "-c", _BURN]
    started = [subprocess.Popen(command, start_new_session=True) for _ in range(count)]
    try:
        time.sleep(0.3)
        yield ()
    finally:
        for process in started:
            process.kill()
            process.wait()


@contextlib.contextmanager
def cgroup(controller: str, settings: Mapping[str, str]) -> Iterator[Prefix]:
    """A cgroup (v1) with settings of its own; what runs in it is ended with it."""
    folder = CGROUPS / controller / f"dlprof-planted-{os.getpid()}"
    try:
        folder.mkdir()
        for name, value in settings.items():
            (folder / name).write_text(value)
    except OSError as error:
        with contextlib.suppress(OSError):
            folder.rmdir()
        raise UnavailableError(f"no cgroup for {controller}: {error}") from error
    try:
        yield ("sh", "-c", f'echo $$ > {folder}/tasks && exec "$@"', "sh")
    finally:
        for _ in range(50):
            with contextlib.suppress(OSError):
                folder.rmdir()
                break
            time.sleep(0.1)


@contextlib.contextmanager
def small_shm(megabytes: int) -> Iterator[Prefix]:
    """A mount namespace with a small /dev/shm."""
    mount = f"mount -t tmpfs -o size={megabytes}m tmpfs /dev/shm"
    probe = subprocess.run(["unshare", "-m", "sh", "-c", mount], capture_output=True, check=False)
    if probe.returncode != 0:
        raise UnavailableError("no mount namespace can be made")
    yield ("unshare", "-m", "sh", "-c", f'{mount} && exec "$@"', "sh")


def quota(cores: float) -> contextlib.AbstractContextManager[Prefix]:
    """A CPU quota."""
    period = 100_000
    settings = {"cpu.cfs_period_us": str(period), "cpu.cfs_quota_us": str(round(cores * period))}
    return cgroup("cpu", settings)


def memory(megabytes: int) -> contextlib.AbstractContextManager[Prefix]:
    """A memory limit."""
    return cgroup("memory", {"memory.limit_in_bytes": str(megabytes << 20)})


def _case(name: str, code: str, *options: str, **fields: Any) -> Case:
    return Case(name=name, code=code, options=options, **fields)


def _crowd(name: str, target: str, count: int) -> Case:
    return Case(
        name=name,
        code="cpu.neighbours",
        target=target,
        place=lambda: neighbours(count),
        place_is_cause=True,
    )


CASES: tuple[Case, ...] = (
    _case("consumer_cpu", "consumer", "--step-time", "120ms", target="cpu_jpeg"),
    _case("consumer_io", "consumer", "--step-time", "30ms", target="io_stream"),
    _case("cpu_python", "fetch.cpu"),
    _case("cpu_jpeg", "fetch.cpu"),
    _case("cpu_words", "fetch.cpu"),
    _case("io_map", "fetch.io"),
    _case("io_stream", "fetch.io"),
    _case("io_files", "fetch.io"),
    _case("collate_loop", "collate"),
    _case("collate_lists", "collate"),
    _case("receive_tensors", "main.receive"),
    _case("receive_objects", "main.receive"),
    _case("sampler_index", "main.sampler"),
    _case("sampler_batch", "main.sampler"),
    _case("order_tail", "order.blocking"),
    _case("order_rare", "order.blocking"),
    _case("shallow_phases", "prefetch.shallow", "--step-time", "8ms"),
    _case("shallow_consumer", "prefetch.shallow", "--step", f"{TARGETS}:burst_step"),
    _case("lock_process", "lock"),
    _case("lock_file", "lock"),
    _case("gil_main", "lock"),
    _case("gil_worker", "lock"),
    _case("gil_slept", "fetch.io", also=("too_few_workers",)),
    _case("few_cpu", "too_few_workers"),
    _case("few_jpeg", "too_few_workers"),
    _case("few_waiting", "too_few_workers"),
    _case("many_tiny", "too_many_workers"),
    _case("many_small_batches", "too_many_workers"),
    _case("many_shards", "workers.unfed"),
    _case("unfed_floor", "workers.unfed"),
    _case("oversubscribed_python", "cpu.oversubscribed"),
    _case("oversubscribed_zlib", "cpu.oversubscribed"),
    _case("threads_torch", "cpu.threads"),
    _case("threads_python", "cpu.threads"),
    _case("affinity_workers", "cpu.affinity"),
    _case("affinity_main", "cpu.affinity"),
    _case("quota_python", "cpu.quota", target="cpu_python", place=lambda: quota(0.8)),
    _case("quota_jpeg", "cpu.quota", target="cpu_jpeg", place=lambda: quota(1.0)),
    _crowd("crowd_python", "cpu_python", 6),
    _crowd("crowd_words", "cpu_words", 4),
    _case("startup_short", "startup"),
    _case("startup_spawn", "startup"),
    _case("heavy_forkserver", "dataset.heavy"),
    _case("heavy_spawn", "dataset.heavy"),
    _case("growth_list", "memory.growth"),
    _case("growth_cache", "memory.growth"),
    _case("limit_workers", "memory.limit", place=lambda: memory(1200)),
    _case("limit_flag", "memory.limit", "--max-ram", "900MiB", target="limit_workers"),
    _case("shm_default", "memory.shm", place=lambda: small_shm(48)),
    _case("shm_custom", "memory.shm", place=lambda: small_shm(32)),
    _case("faults_batch", "memory.faults"),
    _case("faults_volume", "memory.faults"),
    _case("shared_handle", "data.shared_file"),
    _case("shared_zip", "data.shared_file"),
    _case("duplicated_stream", "data.duplicated"),
    _case("duplicated_lines", "data.duplicated"),
    _case("truncated_stop", "data.truncated"),
    _case("truncated_stream", "data.truncated"),
)
_STEPS = {
    "io_eight": "20ms",
    "jpeg_two": "30ms",
    "jpeg_one": "30ms",
    "large_batches": "25ms",
    # With 16 ms it isn't healthy: handing its tensors over by name was measured 13 % faster.
    "many_fields": "60ms",
    # Nor this one where cores are slow: no workers were measured 9 % faster than one.
    "tiny_one": "50ms",
}
HEALTHY = tuple(
    Case(
        name=f"healthy_{name}",
        code="consumer",
        target="healthy",
        options=("--arg", f"name={name}", "--step-time", _STEPS.get(name, "16ms")),
    )
    for name in planted_targets.HEALTHY
)
