"""What ``dlprof machine`` shows: the machine, its limits and its users, for people and as JSON."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence

from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from dlprof.machine.gpus import GpuNeighbours
from dlprof.machine.neighbours import Neighbours
from dlprof.machine.overview import Overview
from dlprof.machine.profiles import MachineProfile
from dlprof.records import SCHEMA_VERSION, GpuInfo, Machine
from dlprof.report.labels import cores_text, percent_text
from dlprof.report.text import clean
from dlprof.store.codec import to_json
from dlprof.units import MISSING, format_bytes, format_duration

_Row = tuple[str, str]

# Most users that are listed by name; the others are summed.
_MOST_USERS = 5
# From here on others use so much that measurements and training suffer.
_BUSY_SHARE = 0.1


def machine_document(overview: Overview) -> str:
    """What ``dlprof machine --json`` prints."""
    document = {
        "schema_version": SCHEMA_VERSION,
        "machine": to_json(overview.machine),
        "quota_cgroup": overview.quota_cgroup,
        "memory_limit_cgroup": overview.memory_limit_cgroup,
        "neighbours": to_json(overview.neighbours),
    }
    return json.dumps(document, allow_nan=False, indent=2)


def profile_document(profile: MachineProfile) -> str:
    """What ``dlprof machine --profile NAME --json`` prints."""
    document = {
        "schema_version": SCHEMA_VERSION,
        "profile": to_json(profile),
        "machine": to_json(profile.to_machine()),
    }
    return json.dumps(document, allow_nan=False, indent=2)


def profiles_document(profiles: Sequence[MachineProfile]) -> str:
    """What ``dlprof machine --list --json`` prints."""
    document = {"schema_version": SCHEMA_VERSION, "profiles": to_json(profiles)}
    return json.dumps(document, allow_nan=False, indent=2)


def render_profiles(profiles: Sequence[MachineProfile]) -> RenderableType:
    """The machines that dlprof knows by name."""
    return Group(
        Text("Machines for --machine NAME", style="bold"),
        _pairs((profile.name, profile.description) for profile in profiles),
        Text("What one offers, and where its figures are from: dlprof machine --profile NAME"),
    )


def render_machine(overview: Overview) -> RenderableType:
    """The machine and its users, for a terminal or a pipe."""
    machine, neighbours = overview.machine, overview.neighbours
    watched = format_duration(neighbours.watched_s)
    return Group(
        Text(f"What {clean(machine.hostname) or 'this machine'} offers", style="bold"),
        _pairs(_offer(overview)),
        Text(),
        Text(f"Who uses it (watched for {watched})", style="bold"),
        _pairs(_activity(neighbours)),
        Text(),
        Text(_verdict(machine, neighbours)),
    )


def render_profile(profile: MachineProfile) -> RenderableType:
    """A machine profile, for a terminal or a pipe."""
    machine = profile.to_machine()
    rows = [
        ("machine", profile.description),
        ("CPU", machine.cpu_model),
        ("cores", _cores(machine)),
        ("base clock", MISSING if profile.base_ghz is None else f"{profile.base_ghz:g} GHz"),
        ("core speed", _speed(machine)),
        ("memory", format_bytes(machine.memory_bytes)),
        *_carried(profile),
        ("shared memory", format_bytes(machine.shm_bytes)),
        ("NUMA nodes", _count(machine.numa_nodes)),
        *_cards(machine.gpus, "none"),
        *_links(machine),
        ("source", profile.source or MISSING),
        *(("", url) for url in profile.source_url),
        *([("read on", profile.read_on)] if profile.read_on else []),
        *([("not in a source", ", ".join(profile.unsourced))] if profile.unsourced else []),
        *(("note", note) for note in profile.notes),
    ]
    return Group(Text(f"Machine profile {clean(profile.name)}", style="bold"), _pairs(rows))


def _carried(profile: MachineProfile) -> list[_Row]:
    """What memory can carry, where that is known."""
    if profile.memory_gb_per_s is None:
        return []
    cards = sum(group.count for group in profile.gpus)
    each = f", {profile.memory_gb_per_s / cards:.0f} a GPU" if cards > 1 else ""
    return [("memory rate", f"{profile.memory_gb_per_s:g} GB/s{each}")]


def _links(machine: Machine) -> list[_Row]:
    """What the slowest card's link allows, where that is known."""
    speeds = [gpu.link_bytes_per_s for gpu in machine.gpus]
    known = [speed for speed in speeds if speed is not None]
    return [("link to a GPU", f"{min(known) / 1e9:.1f} GB/s each way")] if known else []


def _offer(overview: Overview) -> list[_Row]:
    machine = overview.machine
    return [
        ("system", machine.platform),
        ("CPU", machine.cpu_model),
        ("cores", _cores(machine)),
        ("usable cores", _usable(overview)),
        ("core speed", _speed(machine)),
        ("memory", _memory(overview)),
        ("shared memory", _shared_memory(machine)),
        ("open files", _count(machine.open_files_limit)),
        ("NUMA nodes", _count(machine.numa_nodes)),
        *_cards(machine.gpus, machine.unavailable.get("gpus", "none")),
        ("fingerprint", machine.fingerprint),
    ]


def _cores(machine: Machine) -> str:
    if machine.physical_cores is None:
        return f"{machine.logical_cpus} CPUs"
    return f"{machine.physical_cores} physical, {machine.logical_cpus} CPUs"


def _speed(machine: Machine) -> str:
    speed = machine.core_speed
    if speed is None:
        return machine.unavailable.get("core_speed", MISSING)
    parts = [f"slowest core {speed.low:,.0f}", f"fastest {speed.high:,.0f}"]
    if speed.slow_fraction is not None:
        parts.append(f"slow for {percent_text(speed.slow_fraction)} of the time")
    return f"{speed.median:,.0f} {speed.unit} ({', '.join(parts)})"


def _usable(overview: Overview) -> str:
    machine = overview.machine
    limits = []
    if machine.affinity_cpus < machine.logical_cpus:
        limits.append(f"affinity allows {machine.affinity_cpus} CPUs")
    if machine.quota_cores is not None:
        limits.append(f"cgroup {overview.quota_cgroup} allows {machine.quota_cores:g}")
    return f"{machine.usable_cores:g}{_in_brackets(limits)}"


def _memory(overview: Overview) -> str:
    machine = overview.machine
    text = format_bytes(machine.memory_bytes)
    if machine.memory_available_bytes is not None:
        text += f", {format_bytes(machine.memory_available_bytes)} to be had now"
    notes = []
    if machine.memory_limit_bytes is not None:
        limit = format_bytes(machine.memory_limit_bytes)
        notes.append(f"cgroup {overview.memory_limit_cgroup} allows {limit}")
    if machine.swap_used_bytes:
        notes.append(f"{format_bytes(machine.swap_used_bytes)} swapped out")
    return text + _in_brackets(notes)


def _shared_memory(machine: Machine) -> str:
    if machine.shm_bytes is None:
        return machine.unavailable.get("shm_bytes", MISSING)
    return f"{format_bytes(machine.shm_bytes)}, {format_bytes(machine.shm_available_bytes)} free"


def _cards(cards: Sequence[GpuInfo], otherwise: str) -> list[_Row]:
    """Equal cards on one line, so that eight of a kind read as such."""
    texts = [_card(card) for card in cards]
    kinds = dict.fromkeys(texts)
    rows = [("GPUs", f"{texts.count(kind)} x {kind}") for kind in kinds]
    return rows or [("GPUs", otherwise)]


def _card(card: GpuInfo) -> str:
    parts = [card.name]
    if card.memory_bytes is not None:
        parts.append(format_bytes(card.memory_bytes))
    if card.pcie_generation is not None and card.pcie_width is not None:
        parts.append(f"PCIe {card.pcie_generation} x{card.pcie_width}")
    return ", ".join(parts)


def _activity(neighbours: Neighbours) -> list[_Row]:
    if neighbours.busy_cores is None:
        rows = [("CPU", neighbours.unavailable.get("busy_cores", MISSING))]
    else:
        rows = [("CPU", _cpu(neighbours)), *_users(neighbours)]
    pressures = [
        f"{name} {percent_text(value)}"
        for name, value in (
            ("CPU", neighbours.cpu_pressure_fraction),
            ("storage", neighbours.io_pressure_fraction),
            ("memory", neighbours.memory_pressure_fraction),
        )
        if value is not None
    ]
    if neighbours.runnable is not None:
        rows.append(("run queue", f"{neighbours.runnable} running or waiting, {_load(neighbours)}"))
    why = neighbours.unavailable.get("cpu_pressure_fraction", MISSING)
    rows.append(("time held up", ", ".join(pressures) or why))
    return rows + [("GPU", _card_activity(card)) for card in neighbours.gpus]


def _cpu(neighbours: Neighbours) -> str:
    busy, idle = cores_text(neighbours.busy_cores), cores_text(neighbours.idle_cores)
    text = f"{busy} cores busy, {idle} idle"
    if neighbours.stolen_cores is not None and neighbours.stolen_cores >= _BUSY_SHARE:
        text += f", {cores_text(neighbours.stolen_cores)} taken by the hypervisor"
    return text


def _users(neighbours: Neighbours) -> list[_Row]:
    shown, rest = neighbours.users[:_MOST_USERS], neighbours.users[_MOST_USERS:]
    rows = [
        (clean(user.user), f"{user.cpu_cores:.2f} cores in {_processes(user.processes)}")
        for user in shown
    ]
    if rest:
        cores = sum(user.cpu_cores for user in rest)
        rows.append((f"{len(rest)} more", f"{cores:.2f} cores"))
    unseen = neighbours.unseen_cores
    if unseen is not None and unseen >= _BUSY_SHARE:
        rows.append(("not visible", f"{unseen:.2f} cores: other containers, hidden processes"))
    return [(f"  {name}", text) for name, text in rows]


def _load(neighbours: Neighbours) -> str:
    return f"load {MISSING if neighbours.load_1m is None else f'{neighbours.load_1m:.2f}'}"


def _card_activity(card: GpuNeighbours) -> str:
    parts = [f"{card.index} {card.name}:"]
    if card.processes is not None:
        parts.append(f"{_processes(card.processes)},")
    if card.memory_used_bytes is not None:
        parts.append(f"{format_bytes(card.memory_used_bytes)} in use,")
    parts.append(f"kernels active {percent_text(card.kernel_active_fraction)}")
    return " ".join(parts)


def _verdict(machine: Machine, neighbours: Neighbours) -> str:
    if neighbours.free_cores is None:
        return "Who else uses the CPU can't be told here."
    free, usable = min(neighbours.free_cores, machine.usable_cores), machine.usable_cores
    if free >= (1 - _BUSY_SHARE) * usable:
        return f"Nearly all of the {usable:g} usable cores were free."
    return (
        f"About {cores_text(free)} of {usable:g} usable cores were free:"
        " others slow down what is measured or trained now."
    )


def _processes(count: int) -> str:
    return "1 process" if count == 1 else f"{count} processes"


def _count(number: int | None) -> str:
    return MISSING if number is None else f"{number:,}"


def _in_brackets(notes: Sequence[str]) -> str:
    return f" ({'; '.join(notes)})" if notes else ""


def _pairs(rows: Iterable[_Row]) -> RenderableType:
    table = Table.grid(padding=(0, 2, 0, 0))
    table.add_column(no_wrap=True, max_width=24, overflow="ellipsis")
    table.add_column(overflow="fold")
    for name, value in rows:
        # The blanks in front of a user's name are the indent that clean() would take away.
        table.add_row(Text(name), Text(clean(value)))
    return Padding(table, (0, 0, 0, 2), expand=False)
