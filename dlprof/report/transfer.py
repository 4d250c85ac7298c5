"""What ``dlprof transfer`` has to say: what pinned memory brings here, and how fast copies are."""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterator, Sequence

from dlprof.gate.wording import seconds_text
from dlprof.records import SCHEMA_VERSION, Estimate
from dlprof.records.transfer import (
    BatchTransfer,
    CopyMode,
    CopyTime,
    DeviceTransfer,
    LinkFit,
    LinkState,
    Memory,
    TogetherRate,
    Transfers,
    WayTime,
)
from dlprof.report.document import (
    Bar,
    Block,
    Chart,
    Code,
    Column,
    Document,
    Facts,
    Piece,
    Section,
    Span,
    Table,
    Text,
    Words,
    items,
    section,
)
from dlprof.report.labels import gain_text, percent_text
from dlprof.store.codec import to_json
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
    document = {"schema_version": SCHEMA_VERSION, **to_json(found)}
    return json.dumps(document, allow_nan=False, indent=2)


def transfer_report(found: Transfers) -> Document:
    """What copies cost, and what pinned memory changes.

    Args:
        found: All that was measured.
    """
    return Document(
        title=f"Copies to the device on {found.machine.hostname}",
        answer=tuple(_answer(found)),
        hints=tuple(_last(found)),
        details=tuple(_details(found)),
    )


def _answer(found: Transfers) -> Iterator[Block]:
    for warning in found.warnings:
        yield Text(Span(warning, "warn"))
    rows: list[tuple[str, Words]] = []
    if found.accelerator is None:
        rows.append(("Accelerator", f"none: copies within {_HOST}, which no link exceeds"))
    for device in found.devices[:1]:
        rows += _of_device(device, found.batch)
    if found.together:
        rows.append(("All at once", _kept(found.together)))
    rows += [("Not measured", words) for words in _missing(found)]
    yield Facts(tuple(rows))
    for device in found.devices[:1]:
        yield from _chart(device)


def _of_device(device: DeviceTransfer, batch: BatchTransfer | None) -> Iterator[tuple[str, Words]]:
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
    yield "Bandwidth", f"{_speed_interval(_rate(most))}, {size}{place}"
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


def _kept(rates: Sequence[TogetherRate]) -> str:
    """What the device that suffers most keeps of its bandwidth."""
    worst = min(rates, key=_share)
    kept = f"{percent_text(_share(worst))} of {_speed(worst.alone_bytes_per_s)}"
    return f"{kept} is left to {worst.device}, the least of {counted(len(rates), 'device')}"


def _share(rate: TogetherRate) -> float:
    return rate.together_bytes_per_s.value / rate.alone_bytes_per_s


def _link(link: LinkState) -> str:
    most = ""
    if link.max_generation is not None and link.max_width is not None:
        most = f" of at most {link.max_generation} x{link.max_width}"
    theory = MISSING if link.theory_bytes_per_s is None else _speed(link.theory_bytes_per_s)
    reached = percent_text(link.reached_fraction)
    return f"PCIe {link.generation} x{link.width}{most}, {reached} of {theory} reached"


def _missing(found: Transfers) -> Iterator[str]:
    """What is missing of the whole; what a device lacks is with the device."""
    left_out = found.unavailable.items()
    yield from (f"{_words(key)}: {why}" for key, why in left_out if key != "accelerator")


def _words(key: str) -> str:
    return key.replace("_", " ")


def _to(device: DeviceTransfer) -> str:
    if device.device == "cpu":
        return f"within {_HOST}"
    return f"to {device.device} ({device.name})" if device.name else f"to {device.device}"


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


def _chart(device: DeviceTransfer) -> Iterator[Chart]:
    """Bandwidth of some sizes, the smallest and the largest among them."""
    cells = _best_way(device)
    if len(cells) > _MOST_BARS:
        last = len(cells) - 1
        cells = [cells[round(k * last / (_MOST_BARS - 1))] for k in range(_MOST_BARS)]
    if cells:
        yield Chart(
            label=f"{cells[0].memory} copy",
            unit="GB/s",
            bars=tuple(_bar(device, cell) for cell in cells),
        )


def _bar(device: DeviceTransfer, cell: CopyTime) -> Bar:
    other = None
    if cell.memory == "pinned":
        other = _cell(device, "pageable", cell.mode, cell.bytes)
    rate = _rate(cell)
    return Bar(
        label=format_bytes(cell.bytes),
        pieces=(Piece(rate.value / 1e9),),
        figure=_gigabytes(rate.value),
        low=None if rate.low is None else rate.low / 1e9,
        high=None if rate.high is None else rate.high / 1e9,
        note="" if other is None else f"pageable {_gigabytes(other.bytes_per_s)}",
    )


def _rate(cell: CopyTime) -> Estimate:
    """Bytes per second of a copy, by the interval of its time."""
    low = cell.bytes / cell.time_s.high if cell.time_s.high else None
    high = cell.bytes / cell.time_s.low if cell.time_s.low else None
    return Estimate(value=cell.bytes_per_s, low=low, high=high)


def _last(found: Transfers) -> Iterator[Block]:
    """What a copy alone can't say, and the command that does."""
    if found.accelerator is None:
        yield Text(Span("Details: -v", "soft"))
        return
    target = found.batch.target if found.batch is not None else ""
    yield Text(Span("Details: -v · how much of it a training loop waits for:", "soft"))
    yield Code(
        f"dlprof sweep {shlex.quote(target) if target else 'TARGET'} --pin-memory both", "sh"
    )


def _details(found: Transfers) -> Iterator[Section]:
    for device in found.devices:
        title = _to(device)
        yield from section(
            f"Copies {title}: GB/s by size, timed by {device.timed_by}",
            *_sizes(device),
            items(_of_copies(device)),
        )
    yield from section("All devices at once, large pinned copies: GB/s", *_shares(found.together))
    if found.batch is not None:
        yield from _batch(found.batch)


def _sizes(device: DeviceTransfer) -> Iterator[Table]:
    """One table a memory, so that all modes fit side by side."""
    ways = list(dict.fromkeys((cell.memory, cell.mode) for cell in device.cells))
    for memory in dict.fromkeys(each for each, _ in ways):
        sizes = sorted({cell.bytes for cell in device.cells if cell.memory == memory})
        columns = [Column(title=f"{memory} copy", cells=[format_bytes(size) for size in sizes])]
        for mode in (each for kind, each in ways if kind == memory):
            rows = [_cell(device, memory, mode, size) for size in sizes]
            cells = [MISSING if row is None else _gigabytes(row.bytes_per_s) for row in rows]
            columns.append(Column(title=_MODES[mode], cells=cells))
        if len(ways) == 1:  # room for the time itself
            times = [cell.time_s for cell in _best_way(device)]
            columns += [
                Column(title="time of a copy", cells=[seconds_text(each.value) for each in times]),
                Column(title="95% CI", cells=[_ends(each) for each in times], keep=1),
            ]
        yield Table(tuple(columns))


def _of_copies(device: DeviceTransfer) -> Iterator[Words]:
    """What else is known of a device, and what isn't."""
    yield from map(_fit, device.fits)
    link = device.link
    if link is not None and link.theory_bytes_per_s is not None:
        yield _link(link)
    elif link is not None:
        why = link.unavailable.get("theory_bytes_per_s", "it is not known")
        yield f"the link's speed during the copies: not known, {why}"
    for rate in device.numa:
        place = "near" if rate.near else "far"
        yield f"from NUMA node {rate.node} ({place}): {_speed_interval(rate.bytes_per_s)}"
    for key, why in device.unavailable.items():
        if device.device != "cpu" or key in _SAID_OF_THE_CPU:
            yield f"{_words(key)}: not measured, {why}"


def _fit(fit: LinkFit) -> str:
    return (
        f"{fit.memory} {_MODES[fit.mode]}: {seconds_text(fit.latency_s.value)} a copy, then "
        f"{_speed_interval(fit.bytes_per_s)}; the line is off by at most "
        f"{percent_text(fit.worst_error)}"
    )


def _shares(rates: Sequence[TogetherRate]) -> Iterator[Table]:
    if rates:
        alone = [_gigabytes(rate.alone_bytes_per_s) for rate in rates]
        together = [_gigabytes(rate.together_bytes_per_s.value) for rate in rates]
        yield Table(
            (
                Column(title="device", cells=[rate.device for rate in rates], left=True),
                Column(title="alone", cells=alone),
                Column(title="together", cells=together),
                Column(title="kept", cells=[percent_text(_share(rate)) for rate in rates]),
            )
        )


def _batch(batch: BatchTransfer) -> Iterator[Section]:
    place = f"within {_HOST}" if batch.device == "cpu" else f"to {batch.device}"
    size = f"{counted(batch.tensors_count, 'tensor')}, {format_bytes(batch.bytes)}"
    ways = [batch.together, *(tensor.ways for tensor in batch.tensors)]
    shapes = ["", *(_shape(tensor.shape, tensor.dtype) for tensor in batch.tensors)]
    sizes = [format_bytes(size) for size in (batch.bytes, *(t.bytes for t in batch.tensors))]
    paths = ["together", *(tensor.path for tensor in batch.tensors)]
    columns = [
        Column(title="tensor", cells=paths, left=True),
        Column(title="shape and type", cells=shapes, keep=2, left=True),
        Column(title="size", cells=sizes, keep=3),
    ]
    columns += [
        Column(title=title, cells=[_way_text(each, way) for each in ways], keep=9)
        for way, title in _WAYS.items()
    ]
    yield from section(
        f"A batch of {batch.target} {place}: {size}",
        Table(tuple(columns)),
        items(f"{_WAYS.get(key, key)}: {why}" for key, why in batch.unavailable.items()),
    )


def _shape(shape: Sequence[int], dtype: str) -> str:
    return f"{'x'.join(map(str, shape)) or 'scalar'} {dtype}"


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


def _speed_interval(estimate: Estimate) -> str:
    text = _speed(estimate.value)
    if estimate.low is None or estimate.high is None:
        return text
    return f"{text} (95% CI {_gigabytes(estimate.low)}-{_gigabytes(estimate.high)})"


def _ends(estimate: Estimate) -> str:
    if estimate.low is None or estimate.high is None:
        return MISSING
    return f"{seconds_text(estimate.low)} - {seconds_text(estimate.high)}"
