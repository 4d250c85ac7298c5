"""``dlio``: what the YAML file of a DLIO or MLPerf Storage workload asks for. No torch.

Formats other than npz are read as the plain bytes of a record, which costs the storage the same and
the host less than a decoder: that is said.
"""

from __future__ import annotations

import dataclasses
import importlib
import math
import os
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from dlprof.errors import FileError, UsageError
from dlprof.targets.builtin.files import Progress, make_whole
from dlprof.units import format_bytes, parse_step, quoted

ZIPPED = "npz"
_TAKEN = {
    "dataset": (
        *("data_folder", "format", "num_files_train", "num_samples_per_file"),
        *("record_length_bytes", "record_length_bytes_resize"),
        *("record_length", "record_length_resize"),  # up to DLIO 2.0, and in its workloads
    ),
    "reader": (
        *("data_loader", "batch_size", "read_threads", "prefetch_size", "pin_memory"),
        *("file_shuffle", "sample_shuffle"),
    ),
    "train": ("computation_time", "computation_time_stdev"),
    "metric": ("au",),
}
_NO_MATTER = {"model", "framework", "workflow", "output", "profiling"}


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """A workload, as far as one loader of one host shows it."""

    # Of its training files, so many of the same ``ending`` with so many samples in each.
    folder: Path
    ending: str
    files: int
    samples: int
    record_bytes: int  # of a sample in its file
    # Of a sample that reaches the step: DLIO drops what it has read, and gives the same tensor each
    # time.
    sample_bytes: int
    batch_size: int
    loader: Mapping[str, Any]  # arguments of its DataLoader beside the batch size and ``shuffle``
    shuffle: bool
    step: str  # its computation, as ``--step-time`` takes it; empty for none
    left_out: tuple[str, ...]  # what of the file is not in it, or otherwise, one sentence each

    def notes(self) -> tuple[str, ...]:
        """What is left out, and of its files."""
        there = len(self.paths())
        if there >= self.files:
            return self.left_out
        note = f"{there} of its {self.files} files are there, and are read again for the others"
        return (*self.left_out, note)

    def paths(self) -> list[Path]:
        """The files that are there, in the order of their names."""
        found = self.folder.rglob("*")
        return sorted(each for each in found if each.suffix == f".{self.ending}" and each.is_file())

    def make(self, most_bytes: int, progress: Progress) -> None:
        """Make its first files, within so many bytes, unless there are some.

        How much is made, and where, is said before the first is. Half of what is free stays so.
        """
        if self.paths():
            return
        size = self.samples * self.record_bytes
        count = min(self.files, most_bytes // max(1, size))
        if not count:
            raise FileError(
                f"One file of the workload takes {size:,} bytes, more than most={most_bytes:,}",
                hint="Give a larger --arg most=SIZE, or a folder that has the data.",
            )
        what = f"files of the workload in {self.folder} ({format_bytes(count * size)} in all)"
        hint = "Name another folder with --arg data=FOLDER, or fewer bytes with --arg most=."

        def make(part: Path) -> None:
            for number in range(count):
                name = f"img_{number:0{len(str(self.files))}}_of_{self.files}.{self.ending}"
                self._write(part / name, size)
                progress(what, number + 1, count)

        try:
            above = next(each for each in self.folder.absolute().parents if each.is_dir())
            free = shutil.disk_usage(above).free
            if 2 * count * size > free:
                raise FileError(
                    f"The data of the workload takes {format_bytes(count * size)}, more than half "
                    f"of the {format_bytes(free)} that are free at {above}",
                    hint=hint,
                )
            progress(what, 0, count)
            make_whole(self.folder, make, there=lambda: bool(self.paths()))
        except OSError as error:
            raise FileError(
                f"The data of the workload can't be made in {self.folder}: {error}", hint=hint
            ) from None

    def _write(self, path: Path, size: int) -> None:
        block = os.urandom(1 << 20)
        if self.ending == ZIPPED and (numpy := _installed("numpy")) is not None:
            whole = numpy.resize(numpy.frombuffer(block, dtype="uint8"), size)
            with path.open("wb") as file:
                numpy.savez(file, x=whole, y=numpy.zeros(self.samples))
            return
        with path.open("wb") as file:
            for start in range(0, size, len(block)):
                file.write(block[: size - start])


def _installed(name: str) -> Any:
    try:
        return importlib.import_module(name)
    except ImportError:
        return None


def read_workload(file: str, data: str) -> Workload:
    """Read a workload's YAML file; ``data`` is the folder of its data, where it isn't as named."""
    yaml = _installed("yaml")
    if yaml is None:
        raise UsageError("A workload of DLIO needs PyYAML", hint="Run pip install pyyaml.")
    try:
        found = yaml.safe_load(Path(file).read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise FileError(
            f"The workload {quoted(file)} can't be read: {error}", hint="Name its YAML file."
        ) from None
    except (yaml.YAMLError, RecursionError) as error:
        why = quoted(" ".join(str(error).split()))
        raise UsageError(f"{quoted(file)} is no YAML: {why}", hint="Correct the file.") from None
    found = found.get("workload", found) if isinstance(found, dict) else {}
    given = {name: found.get(name) or {} for name in _TAKEN}
    if not given["reader"]:
        given["reader"] = found.get("data_reader") or {}
    if not all(isinstance(part, dict) for part in given.values()) or not given["dataset"]:
        raise UsageError(
            f"{quoted(file)} is no workload of DLIO: it has no dataset",
            hint="Name a file as in dlio_benchmark/configs/workload.",
        )
    return _workload(file, data, given, tuple(_left_out(found, given)))


def _workload(
    file: str, data: str, given: Mapping[str, Any], left_out: tuple[str, ...]
) -> Workload:
    dataset, reader, train = given["dataset"], given["reader"], given["train"]

    def count(part: Mapping[str, Any], name: str, default: float, least: int = 1) -> int:
        value = part.get(name, default)
        sound = isinstance(value, int | float) and not isinstance(value, bool)
        if not sound or not least <= value < 2**50:
            raise UsageError(
                f"{name} in {quoted(file)} is {quoted(value)}, and not a number of {least} or more",
                hint="Correct the file.",
            )
        whole: int = round(value)
        return whole

    ending = dataset.get("format", "tfrecord")
    if not isinstance(ending, str) or not ending.isidentifier():
        raise UsageError(
            f"format in {quoted(file)} is {quoted(ending)}, and no format", hint="Correct the file."
        )
    names = ("record_length_bytes", "record_length_bytes_resize")
    sizes = [name if name in dataset else name.replace("_bytes", "") for name in names]
    record = count(dataset, sizes[0], 64 * 1024)
    workers, ahead = count(reader, "read_threads", 1, 0), count(reader, "prefetch_size", 0, 0)
    loader: dict[str, Any] = {
        "num_workers": workers,
        "pin_memory": reader.get("pin_memory") is not False,
    }
    if workers:
        depth = math.ceil(ahead / workers) or 2
        loader |= {"prefetch_factor": depth, "persistent_workers": True}
    folder = Path(data or str(dataset.get("data_folder") or ""))
    if not str(data or dataset.get("data_folder") or ""):
        raise UsageError(
            f"{quoted(file)} names no data_folder", hint="Name one with --arg data=FOLDER."
        )
    shuffled = (str(reader.get(name, "off")) for name in ("file_shuffle", "sample_shuffle"))
    return Workload(
        folder=folder / "train",
        ending=ending,
        files=count(dataset, "num_files_train", 8),
        samples=count(dataset, "num_samples_per_file", 1),
        record_bytes=record,
        sample_bytes=count(dataset, sizes[1], record, 0) or record,
        batch_size=count(reader, "batch_size", 1),
        loader=loader,
        shuffle=any(each not in {"off", "False"} for each in shuffled),
        step=_step(file, train.get("computation_time"), train.get("computation_time_stdev")),
        left_out=left_out,
    )


def _step(file: str, given: object, stdev: object) -> str:
    """What DLIO sleeps a batch, as ``--step-time`` takes it."""
    values: dict[str, Any] = {} if given is None else {"mean": given}
    if isinstance(given, dict):
        values = dict(given)
    if stdev is not None:
        values["stdev"] = stdev
    kind = values.get("type", "normal")
    try:
        if kind == "gamma":
            shape, scale = float(values["shape"]), float(values["scale"])
            numbers = [shape * scale, math.sqrt(shape) * scale]
        else:
            names = {"uniform": ("min", "max"), "exponential": ("scale",)}
            names["normal"] = ("mean", "stdev")
            numbers = [float(values.get(name, 0.0)) for name in names[kind]]
        if not any(numbers):
            return ""
        text = f"{kind}:{','.join(f'{1e3 * number:.9f}ms' for number in numbers)}"
        parse_step(text)
    except (KeyError, TypeError, ValueError, OverflowError, UsageError):
        raise UsageError(
            f"computation_time in {quoted(file)} is {quoted(given)}, which no step can be made of",
            hint="Give a step with --step-time, and leave computation_time out.",
        ) from None
    return text


def _left_out(found: Mapping[str, Any], given: Mapping[str, Any]) -> list[str]:
    said = []
    unlike = sorted(str(name) for name in set(found) - set(_TAKEN) - _NO_MATTER - {"data_reader"})
    unlike += [
        f"{part}.{name}" for part, taken in _TAKEN.items() for name in set(given[part]) - set(taken)
    ]
    if unlike:
        said.append(f"of the workload's file these are left out: {', '.join(sorted(unlike))}")
    ending = given["dataset"].get("format", "tfrecord")
    if ending != ZIPPED or _installed("numpy") is None:
        said.append(f"{ending} is read as plain bytes, without what decoding it would cost")
    if given["reader"].get("data_loader", "pytorch") != "pytorch":
        said.append(f"its loader is {given['reader']['data_loader']}: a DataLoader is in its place")
    if isinstance(au := given["metric"].get("au"), float):
        said.append(f"it asks for a utilization of {au:.0%}: dlprof predict RUN --au {au:.0%}")
    return said
