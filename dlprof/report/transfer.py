"""What ``dlprof transfer`` has to say: what pinned memory brings here, and how fast copies are."""

from __future__ import annotations

import shlex
from collections.abc import Iterator

from dlprof.gate.wording import seconds_text
from dlprof.records import Estimate
from dlprof.records.transfer import (
    BatchTransfer,
    CopyTime,
    DeviceTransfer,
    LinkState,
    Transfers,
    WayTime,
)
from dlprof.report import document as doc
from dlprof.report.labels import evenly, gain_text, interval_text, percent_text, rate_text
from dlprof.units import MISSING, counted, format_bytes

_MODES = {"blocking": "blocking", "non_blocking": "non_blocking", "side_stream": "side stream"}
_WAYS = {
    "pageable": "pageable",
    "pinned_by_caller": "pinned by the caller",
    "pinned_by_loader": "pinned by the loader",
}
_HOST = "the host's memory"


def transfer_report(found: Transfers) -> doc.Document:
    """What copies cost, and what pinned memory changes."""
    hints = doc.hint("Details: -v")
    if found.accelerator is not None:  # what a copy alone can't say, and the command that does
        target = shlex.quote(found.batch.target) if found.batch and found.batch.target else "TARGET"
        said = "how much of it a training loop waits for:"
        hints = doc.hint("Details: -v", said, f"dlprof sweep {target} --pin-memory both")
    return doc.Document(
        title=f"Copies to the device on {found.machine.hostname}",
        answer=(
            *(doc.Text(doc.Styled(warning, "warn")) for warning in found.warnings),
            *doc.known(doc.facts(_answer(found)), *map(_chart, found.devices[:1])),
        ),
        hints=hints,
        details=lambda: _details(found),
    )


def _answer(found: Transfers) -> Iterator[doc.Row]:
    yield from _pinning(found)
    for device in found.devices[:1]:
        yield from _of_device(device, found.batch)
    if len(found.together) > 1:  # what the device that suffers most keeps of its bandwidth
        worst = min(found.together, key=lambda each: each.kept)
        kept = f"{percent_text(worst.kept)} of {_speed(worst.alone_bytes_per_s)}"
        least = f"the least of {counted(len(found.together), 'device')}"
        yield "All at once", f"{kept} is left to {worst.device}, {least}"
    for key, why in found.unavailable.items():
        if key != "accelerator":
            yield "Not measured", f"{key.replace('_', ' ')}: {why}"


def _pinning(found: Transfers) -> Iterator[doc.Row]:
    if found.accelerator is None:
        yield "Recommended", doc.Styled("pin_memory=False", "strong")
        yield "Speed-up", "none from pinning: there is no accelerator to copy to"
        yield "Certainty", "high: pinned memory speeds up copies to an accelerator alone"
        return
    pinning = found.pinning
    if pinning is None:
        missing = found.devices[0].unavailable if found.devices else found.unavailable
        why = missing.get("pinned", "no pinned copy was timed")
        yield "Recommended", f"nothing: what pinning brings is not known, {why}"
        return
    copy = " and .to(device, non_blocking=True)" if pinning.pays else ""
    yield "Recommended", (doc.Styled(f"pin_memory={pinning.pays}", "strong"), copy)
    size = format_bytes(pinning.bytes)
    of = f"your {found.batch.target} ({size})" if found.batch and found.batch.target else size
    what = f"a batch of {of}" if pinning.of_batch else f"{size} at a time"
    time = seconds_text(pinning.pinned_s.value)
    yield "Speed-up", f"{gain_text(pinning.speedup, 'pageable copies')}; {what} in {time}"
    sure = "low" if pinning.speedup.low is None or pinning.speedup.is_wide else "high"
    yield "Certainty", f"{sure} for the copy alone: a sweep measures what training gains"


def _of_device(device: DeviceTransfer, batch: BatchTransfer | None) -> Iterator[doc.Row]:
    cells = device.best_way
    if device.device == "cpu" and batch is not None and batch.together:
        time = seconds_text(batch.together[0].copy_s.value)
        yield "A batch", f"{format_bytes(batch.bytes)} in {time}"
    if not cells:
        yield "Bandwidth", f"not measured: {device.unavailable.get('copies', 'no copy was timed')}"
        return
    most = cells[-1]
    place = f"within {_HOST}: no link to a device is faster"
    place = f", {place}" if device.device == "cpu" else f" to {device.device}"
    size = f"{format_bytes(most.bytes)} {most.memory}"
    yield "Bandwidth", f"{_rate_text(most.time_s.inverse.times(most.bytes))}, {size}{place}"
    other = device.cell("pageable", most.mode, most.bytes)
    if most.memory == "pinned" and other is not None:
        asked = " with non_blocking=True" if most.mode == "non_blocking" else ""
        yield "Host blocked", f"{_blocked(most)} pinned copy{asked}, {_blocked(other)} pageable one"
    if device.link is not None and device.link.theory_bytes_per_s is not None:
        yield "Link", _link(device.link, device.link.theory_bytes_per_s)


def _blocked(cell: CopyTime) -> str:
    return f"{seconds_text(cell.host_s)} of a {seconds_text(cell.time_s.value)}"


def _link(link: LinkState, theory_bytes_per_s: float) -> str:
    now, most = f"PCIe {link.generation} x{link.width}", ""
    if link.max_generation is not None and link.max_width is not None:
        most = f"PCIe {link.max_generation} x{link.max_width}"
    can = f" (can do {most})" if most not in {"", now} else ""
    reached = percent_text(link.reached_fraction)
    return f"{now}{can}, {reached} of {_speed(theory_bytes_per_s)} reached"


def _chart(device: DeviceTransfer) -> doc.Chart | None:
    """Bandwidth of some sizes, the smallest and the largest among them."""
    cells, bars = evenly(device.best_way, 4), []
    for cell in cells:
        pageable = device.cell("pageable", cell.mode, cell.bytes)
        other = pageable if cell.memory == "pinned" else None
        note = f"pageable {_gigabytes(other.bytes_per_s)}" if other else ""
        rate = cell.time_s.inverse.times(cell.bytes / 1e9)
        figure = _gigabytes(cell.bytes_per_s)
        bars.append(doc.Bar.of(format_bytes(cell.bytes), rate, figure, note))
    bars = doc.spare_between(bars)
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
        columns = (
            doc.Column("device", [rate.device for rate in rates], left=True),
            doc.Column("alone", [_gigabytes(rate.alone_bytes_per_s) for rate in rates]),
            doc.Column("together", [_gigabytes(r.together_bytes_per_s.value) for r in rates]),
            doc.Column("kept", [percent_text(rate.kept) for rate in rates]),
        )
        title = "All devices at once, large pinned copies: GB/s"
        yield from doc.section(title, doc.Table(columns))
    if (batch := found.batch) is not None:
        place = f"within {_HOST}" if batch.device == "cpu" else f"to {batch.device}"
        size = f"{counted(batch.tensors_count, 'tensor')}, {format_bytes(batch.bytes)}"
        missing = (f"{_WAYS.get(key, key)}: {why}" for key, why in batch.unavailable.items())
        title = f"A batch of {batch.target} {place}: {size}"
        yield from doc.section(title, _tensors(batch), doc.items(missing))


def _sizes(device: DeviceTransfer) -> Iterator[doc.Table]:
    """One table a memory, so that all modes fit side by side."""
    ways = list(dict.fromkeys((cell.memory, cell.mode) for cell in device.cells))
    for memory in dict.fromkeys(each for each, _ in ways):
        sizes = sorted({cell.bytes for cell in device.cells if cell.memory == memory})
        columns = [doc.Column(f"{memory} copy", [format_bytes(size) for size in sizes])]
        for mode in (each for kind, each in ways if kind == memory):
            rows = [device.cell(memory, mode, size) for size in sizes]
            cells = [MISSING if row is None else _gigabytes(row.bytes_per_s) for row in rows]
            columns.append(doc.Column(_MODES[mode], cells))
        if len(ways) == 1:  # room for the time itself
            times = [cell.time_s for cell in device.best_way]
            ends = [interval_text(time, seconds_text, " - ") for time in times]
            said = [seconds_text(time.value) for time in times]
            columns += (doc.Column("time of a copy", said), doc.Column("95% CI", ends, 1))
        yield doc.Table(tuple(columns))


def _of_copies(device: DeviceTransfer) -> Iterator[doc.Words]:
    for fit in device.fits:
        latency, off = seconds_text(fit.latency_s.value), percent_text(fit.worst_error)
        line = f"{latency} a copy, then {_rate_text(fit.bytes_per_s)}"
        yield f"{fit.memory} {_MODES[fit.mode]}: {line}; the line is off by at most {off}"
    link = device.link
    if link is not None and link.theory_bytes_per_s is not None:
        yield _link(link, link.theory_bytes_per_s)
    elif link is not None:
        why = link.unavailable.get("theory_bytes_per_s", "it is not known")
        yield f"the link's speed during the copies: not known, {why}"
    for rate in device.numa:
        place = "near" if rate.near else "far"
        yield f"from NUMA node {rate.node} ({place}): {_rate_text(rate.bytes_per_s)}"
    for key, why in device.unavailable.items():
        # That the CPU has neither streams nor a link needs no words.
        if device.device != "cpu" or key in {"sizes", "copies"}:
            yield f"{key.replace('_', ' ')}: not measured, {why}"


def _tensors(batch: BatchTransfer) -> doc.Table:
    tensors = batch.tensors
    shapes = [f"{'x'.join(map(str, t.shape)) or 'scalar'} {t.dtype}" for t in tensors]
    sizes = [format_bytes(size) for size in (batch.bytes, *(each.bytes for each in tensors))]
    ways = (batch.together, *(tensor.ways for tensor in tensors))
    times: list[dict[str, str]] = [{way.way: _way_text(way) for way in each} for each in ways]
    columns = [
        doc.Column("tensor", ["together", *(tensor.path for tensor in tensors)], left=True),
        doc.Column("shape and type", ["", *shapes], 2, left=True),
        doc.Column("size", sizes, 3),
    ]
    for way, said in _WAYS.items():
        columns.append(doc.Column(said, [each.get(way, MISSING) for each in times], 9))
    return doc.Table(tuple(columns))


def _way_text(way: WayTime) -> str:
    pin = "" if way.pin_s is None else f"{seconds_text(way.pin_s.value)} + "
    return f"{pin}{seconds_text(way.copy_s.value)}"


def _gigabytes(bytes_per_s: float) -> str:
    speed = bytes_per_s / 1e9
    return f"{speed:.1f}" if speed >= 9.95 else f"{speed:.2f}"


def _speed(bytes_per_s: float) -> str:
    return f"{_gigabytes(bytes_per_s)} GB/s"


def _rate_text(bytes_per_s: Estimate) -> str:
    return rate_text(bytes_per_s, "GB/s", _gigabytes)
