"""What ``dlprof transfer`` has to say: what pinned memory brings here, and how fast copies are."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Sequence

from dlprof.gate.wording import seconds_text
from dlprof.records import Estimate
from dlprof.records.transfer import (
    BatchTransfer,
    CopyMode,
    CopyTime,
    DeviceTransfer,
    LinkState,
    Memory,
    TogetherRate,
    Transfers,
    WayTime,
)
from dlprof.report import document as doc
from dlprof.report.documents import json_document
from dlprof.report.labels import gain_text, interval_text, percent_text, rate_text
from dlprof.units import MISSING, counted, format_bytes

_MOST_BARS = 5
_MODES = {"blocking": "blocking", "non_blocking": "non_blocking", "side_stream": "side stream"}
_WAYS = {
    "pageable": "pageable",
    "pinned_by_caller": "pinned by the caller",
    "pinned_by_loader": "pinned by the loader",
}
_HOST = "the host's memory"
_SAID_OF_THE_CPU = {"sizes", "copies"}
"""That the CPU has neither streams nor a link needs no words."""


def transfer_document(found: Transfers) -> str:
    """What ``dlprof transfer --json`` prints."""
    return json_document(found)


def transfer_report(found: Transfers) -> doc.Document:
    """What copies cost, and what pinned memory changes."""
    hints = doc.hint("Details: -v")
    if found.accelerator is not None:  # what a copy alone can't say, and the command that does
        target = shlex.quote(found.batch.target) if found.batch and found.batch.target else "TARGET"
        said = "Details: -v · how much of it a training loop waits for:"
        hints = doc.hint(said, f"dlprof sweep {target} --pin-memory both")
    return doc.Document(
        title=f"Copies to the device on {found.machine.hostname}",
        answer=(
            *(doc.Text(doc.Span(warning, "warn")) for warning in found.warnings),
            *doc.known(doc.facts(_answer(found)), *map(_chart, found.devices[:1])),
        ),
        hints=hints,
        details=tuple(_details(found)),
    )


def _answer(found: Transfers) -> Iterator[tuple[str, doc.Words]]:
    if found.accelerator is None:
        yield "Accelerator", f"none: copies within {_HOST}; no link to a device is faster"
    for device in found.devices[:1]:
        yield from _of_device(device, found.batch)
    if found.together:  # what the device that suffers most keeps of its bandwidth
        worst = min(found.together, key=_share)
        kept = f"{percent_text(_share(worst))} of {_speed(worst.alone_bytes_per_s)}"
        least = f"the least of {counted(len(found.together), 'device')}"
        yield "All at once", f"{kept} is left to {worst.device}, {least}"
    for key, why in found.unavailable.items():
        if key != "accelerator":
            yield "Not measured", f"{key.replace('_', ' ')}: {why}"


def _of_device(
    device: DeviceTransfer, batch: BatchTransfer | None
) -> Iterator[tuple[str, doc.Words]]:
    cells = _best_way(device)
    if device.device != "cpu":
        yield "Pinning", _pinning(device, batch)
    elif batch is not None and batch.together:
        time = seconds_text(batch.together[0].copy_s.value)
        yield "A batch", f"{format_bytes(batch.bytes)} in {time}"
    if not cells:
        yield "Bandwidth", f"not measured: {device.unavailable.get('copies', 'no copy was timed')}"
        return
    most = cells[-1]
    place = "" if device.device == "cpu" else f" to {device.device}"
    size = f"{format_bytes(most.bytes)} {most.memory}"
    yield "Bandwidth", f"{_rate_text(most.time_s.inverse.times(most.bytes))}, {size}{place}"
    other = _cell(device, "pageable", most.mode, most.bytes)
    if most.memory == "pinned" and other is not None:
        yield "Host blocked", f"{_blocked(most)} pinned, {_blocked(other)} pageable"
    if device.link is not None and device.link.theory_bytes_per_s is not None:
        yield "Link", _link(device.link)


def _pinning(device: DeviceTransfer, batch: BatchTransfer | None) -> str:
    """What it changes for a copy of the user's batch, else for the largest buffers."""
    if batch is not None:
        plain, loader = (_way(batch.together, way) for way in ("pageable", "pinned_by_loader"))
        if plain is not None and loader is not None:
            gain = gain_text(_faster(plain.copy_s, loader.copy_s), "pageable")
            return f"{gain}, {seconds_text(loader.copy_s.value)} a batch"
    pinned = next((cell for cell in reversed(_best_way(device)) if cell.memory == "pinned"), None)
    other = pinned and _cell(device, "pageable", pinned.mode, pinned.bytes)
    if pinned is None or other is None:
        return f"not known: {device.unavailable.get('pinned', 'no pinned copy was timed')}"
    gain = gain_text(_faster(other.time_s, pinned.time_s), "pageable")
    return f"{gain}, {_speed(pinned.bytes_per_s)}"


def _faster(slow_s: Estimate, fast_s: Estimate) -> Estimate:
    """How many times as fast; with both intervals at their worst ends, so never too narrow."""
    low = slow_s.low / fast_s.high if slow_s.low is not None and fast_s.high else None
    high = slow_s.high / fast_s.low if slow_s.high is not None and fast_s.low else None
    value = slow_s.value / fast_s.value if fast_s.value > 0 else 1.0
    return Estimate(value=value, low=low, high=high)


def _blocked(cell: CopyTime) -> str:
    return f"{seconds_text(cell.host_s)} of {seconds_text(cell.time_s.value)}"


def _share(rate: TogetherRate) -> float:
    return rate.together_bytes_per_s.value / rate.alone_bytes_per_s


def _link(link: LinkState) -> str:
    most = ""
    if link.max_generation is not None and link.max_width is not None:
        most = f" of at most {link.max_generation} x{link.max_width}"
    theory = MISSING if link.theory_bytes_per_s is None else _speed(link.theory_bytes_per_s)
    reached = percent_text(link.reached_fraction)
    return f"PCIe {link.generation} x{link.width}{most}, {reached} of {theory} reached"


def _best_way(device: DeviceTransfer) -> list[CopyTime]:
    """Copies by size: pinned and not waited for where that is possible, else the first way."""
    ways = [(cell.memory, cell.mode) for cell in device.cells]
    best = ("pinned", "non_blocking")
    way = best if best in ways else next(iter(ways), None)
    found = (cell for cell in device.cells if (cell.memory, cell.mode) == way)
    return sorted(found, key=lambda cell: cell.bytes)


def _cell(device: DeviceTransfer, memory: Memory, mode: CopyMode, size: int) -> CopyTime | None:
    wanted = (memory, mode, size)
    cells = (cell for cell in device.cells if (cell.memory, cell.mode, cell.bytes) == wanted)
    return next(cells, None)


def _chart(device: DeviceTransfer) -> doc.Chart | None:
    """Bandwidth of some sizes, the smallest and the largest among them."""
    cells = _best_way(device)
    if len(cells) > _MOST_BARS:
        last = len(cells) - 1
        cells = [cells[round(k * last / (_MOST_BARS - 1))] for k in range(_MOST_BARS)]
    bars = []
    for cell in cells:
        pageable = _cell(device, "pageable", cell.mode, cell.bytes)
        other = pageable if cell.memory == "pinned" else None
        note = f"pageable {_gigabytes(other.bytes_per_s)}" if other else ""
        rate = cell.time_s.inverse.times(cell.bytes / 1e9)
        figure = _gigabytes(cell.bytes_per_s)
        bars.append(doc.Bar.of(format_bytes(cell.bytes), rate, figure, note))
    return doc.chart(bars, f"{cells[0].memory} copy" if cells else "", "GB/s")


def _details(found: Transfers) -> Iterator[doc.Section]:
    for device in found.devices:
        name = f" ({device.name})" if device.name else ""
        title = f"within {_HOST}" if device.device == "cpu" else f"to {device.device}{name}"
        yield from doc.section(
            f"Copies {title}: GB/s by size, timed by {device.timed_by}",
            *_sizes(device),
            doc.items(_of_copies(device)),
        )
    if rates := found.together:
        table = doc.Table(
            (
                doc.Column("device", [rate.device for rate in rates], left=True),
                doc.Column("alone", [_gigabytes(rate.alone_bytes_per_s) for rate in rates]),
                doc.Column("together", [_gigabytes(r.together_bytes_per_s.value) for r in rates]),
                doc.Column("kept", [percent_text(_share(rate)) for rate in rates]),
            )
        )
        yield from doc.section("All devices at once, large pinned copies: GB/s", table)
    if found.batch is not None:
        yield _batch(found.batch)


def _sizes(device: DeviceTransfer) -> Iterator[doc.Table]:
    """One table a memory, so that all modes fit side by side."""
    ways = list(dict.fromkeys((cell.memory, cell.mode) for cell in device.cells))
    for memory in dict.fromkeys(each for each, _ in ways):
        sizes = sorted({cell.bytes for cell in device.cells if cell.memory == memory})
        columns = [doc.Column(f"{memory} copy", [format_bytes(size) for size in sizes])]
        for mode in (each for kind, each in ways if kind == memory):
            rows = [_cell(device, memory, mode, size) for size in sizes]
            cells = [MISSING if row is None else _gigabytes(row.bytes_per_s) for row in rows]
            columns.append(doc.Column(_MODES[mode], cells))
        if len(ways) == 1:  # room for the time itself
            times = [cell.time_s for cell in _best_way(device)]
            ends = [interval_text(time, seconds_text, " - ") for time in times]
            columns.append(
                doc.Column("time of a copy", [seconds_text(time.value) for time in times])
            )
            columns.append(doc.Column("95% CI", ends, 1))
        yield doc.Table(tuple(columns))


def _of_copies(device: DeviceTransfer) -> Iterator[doc.Words]:
    """What else is known of a device, and what isn't."""
    for fit in device.fits:
        yield (
            f"{fit.memory} {_MODES[fit.mode]}: {seconds_text(fit.latency_s.value)} a copy, then "
            f"{_rate_text(fit.bytes_per_s)}; the line is off by at most "
            f"{percent_text(fit.worst_error)}"
        )
    link = device.link
    if link is not None and link.theory_bytes_per_s is not None:
        yield _link(link)
    elif link is not None:
        why = link.unavailable.get("theory_bytes_per_s", "it is not known")
        yield f"the link's speed during the copies: not known, {why}"
    for rate in device.numa:
        place = "near" if rate.near else "far"
        yield f"from NUMA node {rate.node} ({place}): {_rate_text(rate.bytes_per_s)}"
    for key, why in device.unavailable.items():
        if device.device != "cpu" or key in _SAID_OF_THE_CPU:
            yield f"{key.replace('_', ' ')}: not measured, {why}"


def _batch(batch: BatchTransfer) -> doc.Section:
    place = f"within {_HOST}" if batch.device == "cpu" else f"to {batch.device}"
    size = f"{counted(batch.tensors_count, 'tensor')}, {format_bytes(batch.bytes)}"
    tensors = batch.tensors
    shapes = [f"{'x'.join(map(str, t.shape)) or 'scalar'} {t.dtype}" for t in tensors]
    ways = [batch.together, *(tensor.ways for tensor in tensors)]
    table = doc.Table(
        (
            doc.Column("tensor", ["together", *(tensor.path for tensor in tensors)], left=True),
            doc.Column("shape and type", ["", *shapes], 2, left=True),
            doc.Column(
                "size", [format_bytes(n) for n in (batch.bytes, *(t.bytes for t in tensors))], 3
            ),
            *(
                doc.Column(said, [_way_text(w, way) for w in ways], 9)
                for way, said in _WAYS.items()
            ),
        )
    )
    missing = doc.items(f"{_WAYS.get(key, key)}: {why}" for key, why in batch.unavailable.items())
    title = f"A batch of {batch.target} {place}: {size}"
    return doc.Section(title, (table,) if missing is None else (table, missing))


def _way_text(ways: Sequence[WayTime], name: str) -> str:
    way = _way(ways, name)
    if way is None:
        return MISSING
    pin = "" if way.pin_s is None else f"{seconds_text(way.pin_s.value)} + "
    return f"{pin}{seconds_text(way.copy_s.value)}"


def _way(ways: Sequence[WayTime], name: str) -> WayTime | None:
    return next((way for way in ways if way.way == name), None)


def _gigabytes(bytes_per_s: float) -> str:
    speed = bytes_per_s / 1e9
    return f"{speed:.1f}" if speed >= 9.95 else f"{speed:.2f}"


def _speed(bytes_per_s: float) -> str:
    return f"{_gigabytes(bytes_per_s)} GB/s"


def _rate_text(bytes_per_s: Estimate) -> str:
    return rate_text(bytes_per_s, "GB/s", _gigabytes)
