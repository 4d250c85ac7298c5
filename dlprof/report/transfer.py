"""What ``dlprof transfer`` shows: tables and a plot for people, one document for programs."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence

from rich.cells import cell_len
from rich.console import Console, ConsoleOptions, Group, RenderableType, RenderResult
from rich.text import Text

from dlprof.records import SCHEMA_VERSION, Estimate
from dlprof.records.transfer import (
    BatchTransfer,
    CopyMode,
    CopyTime,
    DeviceTransfer,
    LinkFit,
    LinkState,
    Memory,
    Transfers,
    WayTime,
)
from dlprof.report.fitting import FittingTable, TextColumn
from dlprof.report.labels import percent_text
from dlprof.report.layout import INDENT, Hanging, bullet
from dlprof.report.plot import drawn_bar
from dlprof.report.text import clean
from dlprof.store.codec import to_json
from dlprof.units import MISSING, format_bytes

_WIDEST_BAR = 50
_MODES = {"blocking": "blocking", "non_blocking": "non_blocking", "side_stream": "side stream"}
_WAYS = {
    "pageable": "pageable",
    "pinned_by_caller": "pinned by the caller",
    "pinned_by_loader": "pinned by the loader",
}
_NO_ACCELERATOR = (
    "There is no accelerator here: these are copies within the host's memory, the upper bound of "
    "what any link could bring."
)
_PAYS = 1.05
_TOLD_OF_THE_CPU = {"sizes", "copies"}
"""That the CPU has neither streams nor a link needs no words."""


def transfer_document(found: Transfers) -> str:
    """What ``dlprof transfer --json`` prints."""
    document = {"schema_version": SCHEMA_VERSION, **to_json(found)}
    return json.dumps(document, allow_nan=False, indent=2)


def render_transfers(found: Transfers) -> RenderableType:
    """The figures, for a terminal or a pipe."""
    lines: list[RenderableType] = []
    if found.accelerator is None:
        lines += [Hanging("", Text(_NO_ACCELERATOR)), Text()]
    for device in found.devices:
        lines += [*_device(device), Text()]
    if found.together:
        lines += [*_together(found), Text()]
    if found.batch is not None:
        lines += [*_batch(found.batch), Text()]
    notes = [*found.warnings, *(f"{_words(key)}: {why}" for key, why in _left_out(found))]
    lines += [bullet(Text(clean(note))) for note in notes]
    return Group(*(lines[:-1] if lines and not notes else lines))


def _left_out(found: Transfers) -> Iterator[tuple[str, str]]:
    """What is missing of the whole; what lacks a device stands with the device."""
    yield from ((key, why) for key, why in found.unavailable.items() if key != "accelerator")


def _words(key: str) -> str:
    return key.replace("_", " ")


def _device(device: DeviceTransfer) -> Iterator[RenderableType]:
    name = f" ({clean(device.name)})" if device.name else ""
    title = "Within the host's memory" if device.device == "cpu" else f"To {clean(device.device)}"
    yield Text(f"{title}{name}, GB/s by size, timed by {device.timed_by}", style="bold")
    ways = list(dict.fromkeys((cell.memory, cell.mode) for cell in device.cells))
    yield FittingTable(_columns(device.cells, ways))
    yield Text()
    yield BandwidthPlot(device)
    for line in _fits(device.fits):
        yield bullet(Text(line))
    if device.link is not None:
        yield bullet(Text(_link(device.link)))
    for rate in device.numa:
        place = "near" if rate.near else "far"
        yield bullet(
            Text(f"from NUMA node {rate.node} ({place}): {_speed_interval(rate.bytes_per_s)}")
        )
    for key, why in device.unavailable.items():
        if device.device != "cpu" or key in _TOLD_OF_THE_CPU:
            yield bullet(Text(clean(f"{_words(key)}: not measured, {why}")))


def _columns(
    cells: Sequence[CopyTime], ways: Sequence[tuple[Memory, CopyMode]]
) -> list[TextColumn]:
    sizes = sorted({cell.bytes for cell in cells})
    by_place = {(cell.memory, cell.mode, cell.bytes): cell for cell in cells}
    columns = [TextColumn(title="size", cells=[format_bytes(size) for size in sizes])]
    for number, (memory, mode) in enumerate(ways):
        rows = [by_place.get((memory, mode, size)) for size in sizes]
        texts = [MISSING if row is None else _gigabytes(row.bytes_per_s) for row in rows]
        title = f"{memory} {_MODES[mode]}"
        columns.append(
            TextColumn(title=title, cells=texts, keep=None if not number else 9 - number)
        )
    if len(ways) == 1:  # room for the time itself
        times = [by_place[(*ways[0], size)].time_s for size in sizes]
        columns.append(TextColumn(title="time of a copy", cells=[_time(t.value) for t in times]))
        columns.append(TextColumn(title="95 %", cells=[_time_range(t) for t in times], keep=1))
    return columns


class BandwidthPlot:
    """Rich renderable: a bar for the bandwidth of each size, pinned where something is pinned."""

    def __init__(self, device: DeviceTransfer) -> None:
        """Make the plot.

        Args:
            device: Whose copies are drawn.
        """
        ways = [(cell.memory, cell.mode) for cell in device.cells]
        best = ("pinned", "non_blocking")
        self._way = best if best in ways else (ways[0] if ways else best)
        self._cells = [cell for cell in device.cells if (cell.memory, cell.mode) == self._way]

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        if not self._cells:
            return
        memory, mode = self._way
        yield Text(f"{INDENT}GB/s, {memory} {_MODES[mode]}", style="bold")
        labels = [format_bytes(cell.bytes) for cell in self._cells]
        figures = [_gigabytes(cell.bytes_per_s) for cell in self._cells]
        left, right = max(map(cell_len, labels)), max(map(len, figures))
        room = options.max_width - left - right - len(INDENT) - 2
        longest = max(1, min(_WIDEST_BAR, room))
        peak = max(cell.bytes_per_s for cell in self._cells)
        for cell, label, figure in zip(self._cells, labels, figures, strict=True):
            bar = drawn_bar(longest * cell.bytes_per_s / peak, ascii_only=options.ascii_only)
            line = Text(f"{INDENT}{label:>{left}} ", no_wrap=True)
            line.append(f"{bar:<{longest}} ", style="cyan")
            yield line.append(f"{figure:>{right}}")


def _fits(fits: Sequence[LinkFit]) -> Iterator[str]:
    for fit in fits:
        yield (
            f"{fit.memory} {_MODES[fit.mode]}: {_time(fit.latency_s.value)} a copy and "
            f"{_speed_interval(fit.bytes_per_s)} beyond; "
            f"the line is off by at most {percent_text(fit.worst_error)}"
        )


def _link(link: LinkState) -> str:
    if link.theory_bytes_per_s is None:
        why = link.unavailable.get("theory_bytes_per_s", "it is not known")
        return clean(f"the link's speed during the copies: not known, {why}")
    most = ""
    if link.max_generation is not None and link.max_width is not None:
        most = f" (at most {link.max_generation} x{link.max_width})"
    return (
        f"PCIe {link.generation} x{link.width} during the copies{most}: "
        f"{_gigabytes(link.theory_bytes_per_s)} GB/s in theory, "
        f"{percent_text(link.reached_fraction)} of it reached"
    )


def _together(found: Transfers) -> Iterator[RenderableType]:
    yield Text("All devices at once, large pinned copies, GB/s", style="bold")
    rates = found.together
    yield FittingTable(
        [
            TextColumn(title="device", cells=[clean(rate.device) for rate in rates], left=True),
            TextColumn(title="alone", cells=[_gigabytes(rate.alone_bytes_per_s) for rate in rates]),
            TextColumn(
                title="together",
                cells=[_gigabytes(rate.together_bytes_per_s.value) for rate in rates],
            ),
            TextColumn(
                title="kept",
                cells=[
                    percent_text(rate.together_bytes_per_s.value / rate.alone_bytes_per_s)
                    for rate in rates
                ],
            ),
        ]
    )


def _batch(batch: BatchTransfer) -> Iterator[RenderableType]:
    place = "within the host's memory" if batch.device == "cpu" else f"to {batch.device}"
    tensors = "1 tensor" if batch.tensors_count == 1 else f"{batch.tensors_count} tensors"
    yield Text(
        clean(f"A batch of {batch.target} {place}: {tensors}, {format_bytes(batch.bytes)}"),
        style="bold",
    )
    yield FittingTable(_batch_columns(batch))
    verdict = _verdict(batch)
    if verdict:
        yield bullet(Text(verdict))
    for key, why in batch.unavailable.items():
        yield bullet(Text(clean(f"{_WAYS.get(key, key)}: {why}")))


def _batch_columns(batch: BatchTransfer) -> list[TextColumn]:
    names = ["together", *(clean(tensor.path) for tensor in batch.tensors)]
    ways = [batch.together, *(tensor.ways for tensor in batch.tensors)]
    columns = [
        TextColumn(title="tensor", cells=names, left=True),
        TextColumn(
            title="shape and type",
            cells=["", *(_shape(tensor.shape, tensor.dtype) for tensor in batch.tensors)],
            keep=2,
            left=True,
        ),
        TextColumn(
            title="size",
            cells=[format_bytes(size) for size in (batch.bytes, *(t.bytes for t in batch.tensors))],
            keep=3,
        ),
    ]
    for way, title in _WAYS.items():
        cells = [_way_text(row, way) for row in ways]
        columns.append(TextColumn(title=title, cells=cells, keep=9))
    return columns


def _shape(shape: Sequence[int], dtype: str) -> str:
    return f"{'x'.join(map(str, shape)) or 'scalar'} {clean(dtype)}"


def _way_text(ways: Sequence[WayTime], name: str) -> str:
    way = _way(ways, name)
    if way is None:
        return MISSING
    if way.pin_s is None:
        return _time(way.copy_s.value)
    return f"{_time(way.pin_s.value)} + {_time(way.copy_s.value)}"


def _way(ways: Sequence[WayTime], name: str) -> WayTime | None:
    return next((way for way in ways if way.way == name), None)


def _verdict(batch: BatchTransfer) -> str:
    """What pinning is worth for the copy alone; the whole is known by a sweep only."""
    plain, loader = _way(batch.together, "pageable"), _way(batch.together, "pinned_by_loader")
    if plain is None or loader is None:
        return ""
    factor = plain.total_s / loader.total_s if loader.total_s > 0 else 1.0
    if factor < _PAYS:
        return "Pinning makes this batch's copy no faster."
    return (
        f"Pinned by the loader, this batch's copy takes {_time(loader.total_s)} and not "
        f"{_time(plain.total_s)}; what that is worth to a whole loop, `dlprof sweep` measures."
    )


def _gigabytes(bytes_per_s: float) -> str:
    speed = bytes_per_s / 1e9
    return f"{speed:.1f}" if speed >= 9.95 else f"{speed:.2f}"


def _speed_interval(estimate: Estimate) -> str:
    text = f"{_gigabytes(estimate.value)} GB/s"
    if estimate.low is None or estimate.high is None:
        return text
    return f"{text} ({_gigabytes(estimate.low)}-{_gigabytes(estimate.high)})"


def _time(seconds: float) -> str:
    """A time with microseconds: copies are shorter than what people else look at."""
    if seconds < 999.5e-6:
        microseconds = seconds * 1e6
        return f"{microseconds:.1f} µs" if microseconds < 9.95 else f"{microseconds:.0f} µs"
    milliseconds = seconds * 1e3
    return f"{milliseconds:.2f} ms" if milliseconds < 9.995 else f"{milliseconds:.1f} ms"


def _time_range(estimate: Estimate) -> str:
    if estimate.low is None or estimate.high is None:
        return MISSING
    return f"{_time(estimate.low)} - {_time(estimate.high)}"
