"""The built-in workloads by their names: parameters, what is made for them, loaders.

No torch, but for a loader.
"""

from __future__ import annotations

import dataclasses
import importlib
import math
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from dlprof.errors import UsageError, did_you_mean
from dlprof.targets.arguments import to_bool
from dlprof.targets.builtin.files import FILES, Progress, directory
from dlprof.targets.builtin.workload import Workload, read_workload
from dlprof.targets.grammar import TargetSpec
from dlprof.units import parse_bytes

if TYPE_CHECKING:
    from torch.utils.data import DataLoader

DTYPES = ("float32", "float16", "float64", "uint8", "int32", "int64")


def _parameter(default: Any, read: Callable[[str], Any], says: str) -> Any:
    """A field whose text is turned into a value by ``read``, which raises for others."""
    return dataclasses.field(default=default, metadata={"read": read, "says": says})


def _number(default: float, low: int, high: int, says: str = "a whole number") -> Any:
    """A whole number, or any where the default isn't one."""

    def read(text: str) -> float:
        value = type(default)(text)
        if not low <= value <= high:
            raise ValueError
        return value

    return _parameter(default, read, f"{says} from {low} to {high}")


def _shape(text: str) -> tuple[int, ...]:
    shape = tuple(int(part) for part in text.lower().split("x"))
    if min(shape) < 1 or math.prod(shape) > 2**28:
        raise ValueError
    return shape


def _tail(text: str) -> tuple[float, float]:
    share, _, factor = text.lower().partition("x")
    tail = float(share), float(factor)
    if not (0 <= tail[0] <= 1 and 1 <= tail[1] <= 10_000):
        raise ValueError
    return tail


def _size(text: str) -> int:
    try:
        return parse_bytes(text)
    except UsageError:
        raise ValueError from None


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class SyntheticOptions:
    """``synthetic``: samples of a stated cost."""

    cpu_ms: float = _number(0.0, 0, 60_000, "milliseconds")  # CPU time that each sample burns
    # Time that each sample waits without using a core, as for storage.
    wait_ms: float = _number(0.0, 0, 60_000, "milliseconds")
    # Of each tensor.
    shape: tuple[int, ...] = _parameter((3, 32, 32), _shape, "sizes such as 3x224x224")
    # Of each tensor.
    dtype: str = _parameter(
        "float32", {name: name for name in DTYPES}.__getitem__, "one of " + ", ".join(DTYPES)
    )
    tensors: int = _number(1, 1, 1000)  # tensors per sample
    # Share of samples that cost more, and how many times as much.
    tail: tuple[float, float] = _parameter(
        (0.0, 1.0), _tail, "SHARExFACTOR such as 0.01x50, share 0 to 1, factor 1 to 10000"
    )
    # Whether the dataset is iterable-style.
    iterable: bool = _parameter(False, to_bool, "true or false")
    length: int = _number(10_000, 1, 1_000_000_000)  # samples per epoch


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class ImagesOptions:
    """``images``: JPEG files, decoded, cropped, flipped, normalized."""

    count: int = _number(384, 1, 20_000)  # files
    # Samples per epoch; files are read again until it is reached, so that an epoch is as long as a
    # real one without gigabytes on disk.
    length: int = _number(20_000, 1, 10_000_000)
    size: int = _number(224, 8, 2048)  # height and width of the crop in pixels


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class VocOptions(ImagesOptions):
    """``voc``: JPEG files with VOC XML annotations, ragged boxes, class-balanced sampling."""

    count: int = _number(256, 1, 20_000)  # annotated images
    size: int = _number(416, 32, 2048)  # longer side in pixels that an image is scaled to


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class ShardsOptions(ImagesOptions):
    """``shards``: an iterable-style set over tar files of JPEGs, sharded by worker."""

    count: int = _number(384, 1, 20_000)  # images in all shards together
    # Samples per epoch, to whole passes over the shards; they are read again until it is reached.
    length: int = _number(20_000, 1, 10_000_000)
    # Tar files; workers beyond this number have nothing to do.
    shards: int = _number(16, 1, 1000)


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class TextOptions:
    """``text``: lines tokenised by a regular expression and a vocabulary, padded by batch."""

    lines: int = _number(20_000, 1, 1_000_000)  # lines of the file
    # Samples per epoch; lines are read again until it is reached.
    length: int = _number(200_000, 1, 10_000_000)
    words: int = _number(120, 1, 10_000)  # median words per line


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class DlioOptions:
    """``dlio``: a workload of DLIO or MLPerf Storage: ``dlio:unet3d_h100.yaml``."""

    file: str = _parameter("", str, "a path")  # its YAML file
    # The folder of its data; by default the ``data_folder`` of the file. Where that holds no
    # training files, they are made.
    data: str = _parameter("", str, "a path")
    # Bytes of data that may be made. Of a larger set only the first files are, and they are read
    # again until an epoch is as long as the whole set's.
    most: int = _parameter(1 << 30, _size, "a size such as 4GiB")

    def workload(self) -> Workload:
        """What its file asks for."""
        if not self.file:
            raise UsageError("dlio names no workload", hint="Write dlio:FILE.yaml.")
        return read_workload(self.file, self.data)


Options = SyntheticOptions | ImagesOptions | VocOptions | ShardsOptions | TextOptions | DlioOptions
_OPTIONS: Mapping[str, type[Options]] = {
    "synthetic": SyntheticOptions,
    "images": ImagesOptions,
    "voc": VocOptions,
    "shards": ShardsOptions,
    "text": TextOptions,
    "dlio": DlioOptions,
}


def options_of(spec: TargetSpec, arguments: Mapping[str, str]) -> Options:
    """Read the parameters of a built-in target."""
    options_class = _OPTIONS[spec.source]
    fields = {field.name: field for field in dataclasses.fields(options_class)}
    for key in arguments:
        if key in spec.parameters:
            raise UsageError(
                f"{key!r} is given in the target {spec.text!r} and by --arg.", hint="Give it once."
            )
    values = {}
    for key, text in {**spec.parameters, **arguments}.items():
        if key not in fields:
            known = f"It takes: {', '.join(fields)}."
            raise UsageError(
                f"{spec.source!r} takes no parameter {key!r}.",
                hint=f"{did_you_mean(key, fields)} {known}".lstrip(),
            )
        try:
            values[key] = fields[key].metadata["read"](text)
        except (KeyError, ValueError, OverflowError):
            raise UsageError(
                f"{spec.source}: {key}={text} is not {fields[key].metadata['says']}.",
                hint=f"Write {spec.source}:{key}=VALUE.",
            ) from None
    return options_class(**values)


def prepare(
    spec: TargetSpec, progress: Progress, *, arguments: Mapping[str, str] | None = None
) -> None:
    """Make the files that a built-in reads, unless they are there; imports no torch."""
    options = options_of(spec, arguments or {})
    if isinstance(options, DlioOptions):
        options.workload().make(options.most, progress)
    elif spec.source in FILES:
        numbers = [getattr(options, name) for name in FILES[spec.source][1]]
        directory(spec.source, *numbers, progress=progress)


def notes_of(spec: TargetSpec, arguments: Mapping[str, str]) -> tuple[str, ...]:
    """What is unlike what the file of a workload asks for, one sentence each."""
    options = options_of(spec, arguments)
    return options.workload().notes() if isinstance(options, DlioOptions) else ()


def make_loader(spec: TargetSpec, arguments: Mapping[str, str], *, seed: int) -> DataLoader[Any]:
    """The loader of a built-in at ``num_workers=0``; imports torch."""
    options = options_of(spec, arguments)
    module = importlib.import_module(f"dlprof.targets.builtin.{spec.source}")
    loader: DataLoader[Any] = module.make_loader(options, seed=seed)
    return loader
