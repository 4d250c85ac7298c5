"""What ``dlprof machine`` shows: the machine, its limits and its users, or a profile of one."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from dlprof.advise.thresholds import SHARED
from dlprof.machine.doctor import Check
from dlprof.machine.gpus import GpuNeighbours
from dlprof.machine.neighbours import Neighbours, Overview
from dlprof.machine.profiles import MachineProfile
from dlprof.records import GpuInfo, Machine
from dlprof.report import document as doc
from dlprof.report.labels import cores_text, count_text, percent_text, processes_text
from dlprof.units import MISSING, counted, format_bytes, format_duration


def profiles_report(profiles: Sequence[MachineProfile]) -> doc.Document:
    """The machines that dlprof knows by name."""
    rows: tuple[doc.Row, ...] = tuple((each.name, each.description) for each in profiles)
    hint, _ = doc.hint("What one offers, and its sources:", command="dlprof machine --machine NAME")
    return doc.Document(title="Machines for --machine NAME", answer=(doc.FactList(rows), *hint))


def machine_report(overview: Overview) -> doc.Document:
    """What is free on the machine, what limits a job there, and who uses it."""
    neighbours = overview.neighbours
    watched = format_duration(neighbours.watched_s)
    name = overview.machine.hostname or "this machine"
    # Users who have a bar of their own; the others are summed. The details name more of them.
    users = _users(neighbours, 3)
    bars = doc.spare_between(
        [doc.Bar.of(user, cores, f"{cores:.2f}", note) for user, cores, note in users]
    )
    # Who computes on CPUs that this process may not use has a bar, too.
    machine = overview.machine
    some = machine.affinity_cpus < machine.logical_cpus
    used = f"all {machine.logical_cpus} CPUs" if some else "used by"
    title, use = f"What {name} offers", f"Who uses it, watched for {watched}"
    return doc.Document(
        title=title,
        answer=doc.known(doc.facts(_answer(overview)), doc.chart(bars, used, "cores")),
        hints=doc.hint(f"{name} · details: -v"),
        details=lambda: (
            doc.Section(title, (doc.FactList(tuple(_offer(overview))),)),
            doc.Section(use, (doc.FactList(tuple(_activity(neighbours))),)),
        ),
    )


def profile_report(profile: MachineProfile) -> doc.Document:
    """A machine profile: its figures; under ``-v`` also where they are from, and its notes."""
    title = f"Machine profile {profile.name}"
    rows = doc.facts(_profile(profile, profile.to_machine()))
    source = [("Source", profile.source or MISSING), *(("", url) for url in profile.source_url)]
    read = f", read on {profile.read_on}" if profile.read_on else ""
    return doc.Document(
        title=title,
        answer=doc.known(doc.Text(doc.Styled(title, "strong")), rows),
        hints=doc.hint(f"Where the figures are from{read}: -v"),
        details=lambda: doc.section("Source", doc.facts(source), doc.items(profile.notes)),
    )


_FIGURES = {
    "logical_cpus": "CPUs",
    "physical_cores": "physical cores",
    "cpu_model": "CPU model",
    "base_ghz": "base clock",
    "memory_gib": "memory",
    "memory_gb_per_s": "memory rate",
    "shm_gib": "shared memory",
    "numa_nodes": "NUMA nodes",
    "core_speed": "core speed",
    "gpus.model": "GPU model",
    "gpus.count": "number of GPUs",
    "gpus.memory_gib": "GPU memory",
    "gpus.pcie_generation": "PCIe generation",
    "gpus.pcie_width": "PCIe lanes",
}
"""What of a profile may be assumed, by its key, as people read it."""


def _profile(profile: MachineProfile, machine: Machine) -> Iterator[doc.Row]:
    yield "Machine", profile.description
    yield "CPU", profile.cpu_model or MISSING
    yield "Cores", _cores(machine)
    yield "Base clock", MISSING if profile.base_ghz is None else f"{profile.base_ghz:g} GHz"
    yield "Core speed", MISSING if machine.core_speed is None else _speed(machine)
    yield "Memory", format_bytes(machine.memory_bytes)
    if profile.memory_gb_per_s is not None:
        cards = sum(group.count for group in profile.gpus)
        each = f", {profile.memory_gb_per_s / cards:.0f} for each GPU" if cards > 1 else ""
        yield "Memory rate", f"{profile.memory_gb_per_s:g} GB/s{each}"
    yield "Shared memory", format_bytes(machine.shm_bytes)
    yield "NUMA nodes", count_text(machine.numa_nodes)
    yield from _cards(machine.gpus, "none")
    links = [gpu.link_bytes_per_s for gpu in machine.gpus if gpu.link_bytes_per_s is not None]
    if links:  # the slowest card's
        yield "Link to a GPU", f"{min(links) / 1e9:.1f} GB/s each way"
    unknown = (name for key, name in _FIGURES.items() if getattr(profile, key, "") is None)
    yield "Not known", ", ".join(unknown) or MISSING
    if profile.unsourced:
        names = (_FIGURES.get(key, key) for key in profile.unsourced)
        yield "Assumed", f"{', '.join(names)}: not in the pages that were read"


def _answer(overview: Overview) -> Iterator[doc.Row]:
    machine, neighbours = overview.machine, overview.neighbours
    yield from _free(machine, neighbours)
    yield "Usable", _usable(machine, overview.quota_cgroup)
    text = format_bytes(machine.memory_bytes)
    if machine.memory_available_bytes is not None:
        text += f", {format_bytes(machine.memory_available_bytes)} available"
    limit, swapped = machine.memory_limit_bytes, machine.swap_used_bytes
    notes = [] if limit is None else [f"limit {format_bytes(limit)}"]
    notes += [f"{format_bytes(swapped)} swapped out"] if swapped else []
    yield "Memory", text + (f" ({', '.join(notes)})" if notes else "")
    shared, free = map(format_bytes, (machine.shm_bytes, machine.shm_available_bytes))
    unknown = machine.unavailable.get("shm_bytes", MISSING)
    yield "Shared memory", unknown if machine.shm_bytes is None else f"{shared}, {free} available"
    yield from _cards(machine.gpus, machine.unavailable.get("gpus", "none"))
    if cards := neighbours.gpus:
        sizes = {card.index: card.memory_bytes for card in machine.gpus}
        used = [_is_used(card, sizes.get(card.index)) for card in cards]
        free = "not known" if {*used} == {None} else f"{used.count(False)} of {len(cards)}"
        most = max(cards, key=lambda c: (c.kernel_active_fraction or 0.0, c.memory_used_bytes or 0))
        yield "Free GPUs", f"{free}; busiest: {', '.join(_use(most))}"


def _free(machine: Machine, neighbours: Neighbours) -> Iterator[doc.Row]:
    if neighbours.free_cores is None:
        why = neighbours.unavailable.get("busy_cores", "the system has no figures")
        yield "Free cores", f"not known: {why}"
        return
    usable, allowed = machine.usable_cores, machine.affinity_cpus
    by = "allowed " if allowed < machine.logical_cpus else ""
    free = min(neighbours.free_cores, usable)
    to_do = f"plan for {usable:g} cores: dlprof sweep finds num_workers"
    if free >= (1 - SHARED) * usable:
        yield "Free cores", (doc.Styled("nearly all", "good"), f" of {usable:g} usable")
    else:
        busy = cores_text(max(0.0, allowed - neighbours.free_cores))
        few = doc.Styled(f"{cores_text(free)} of {usable:g} usable", "warn")
        yield "Free cores", (few, f", as {busy} of {allowed} {by}CPUs are busy")
        some = f"plan for {cores_text(free)} cores, or wait" if free >= 1 else "wait"
        to_do = f"{some}: others slow what you measure"
    yield "To do", to_do
    watched = format_duration(neighbours.watched_s)
    yield "Certainty", f"watched for {watched}; longer: dlprof machine --seconds 60"


def _users(neighbours: Neighbours, most: int) -> Iterator[tuple[str, float, str]]:
    for user in neighbours.users[:most]:
        yield user.user, user.cpu_cores, processes_text(user.processes)
    if rest := neighbours.users[most:]:
        yield f"{len(rest)} more", sum(user.cpu_cores for user in rest), ""
    if (unseen := neighbours.unseen_cores or 0.0) >= SHARED:
        yield "not visible", unseen, "other containers, hidden processes"


def _offer(overview: Overview) -> Iterator[doc.Row]:
    machine = overview.machine
    yield "System", machine.platform
    yield "CPU", machine.cpu_model
    yield "Cores", _cores(machine)
    yield "Core speed", _speed(machine)
    if overview.memory_limit_cgroup is not None:
        yield "Memory limit", f"that of cgroup {overview.memory_limit_cgroup}"
    yield "Open files", count_text(machine.open_files_limit)
    if machine.read_limit_bytes_per_s is not None:
        yield "Reads", f"at most {format_bytes(machine.read_limit_bytes_per_s)}/s by a cgroup"
    yield "NUMA nodes", count_text(machine.numa_nodes)
    yield "Fingerprint", machine.fingerprint


def _cores(machine: Machine) -> str:
    if machine.physical_cores is None:
        return f"{machine.logical_cpus} CPUs"
    return f"{machine.physical_cores} physical, {machine.logical_cpus} CPUs"


def _speed(machine: Machine) -> str:
    speed = machine.core_speed
    if speed is None:
        return machine.unavailable.get("core_speed", MISSING)
    slow = speed.slow_fraction
    often = "" if slow is None else f", slow for {percent_text(slow)} of the time"
    ends = f"slowest core {speed.low:,.0f}, fastest {speed.high:,.0f}{often}"
    return f"{speed.median:,.0f} {speed.unit} ({ends})"


def _usable(machine: Machine, cgroup: str | None) -> str:
    """How many cores, and by what: the limit that decides comes first."""
    limits: list[tuple[float, str]] = []
    if machine.affinity_cpus < machine.logical_cpus:
        limits.append((machine.affinity_cpus, "CPU affinity"))
    if machine.quota_cores is not None:
        limits.append((machine.quota_cores, f"CPU quota{f' of cgroup {cgroup}' * bool(cgroup)}"))
    by = ", ".join(f"{name}: {amount:g}" for amount, name in sorted(limits))
    cores = counted(machine.usable_cores, "core")
    return f"{cores} of {counted(machine.logical_cpus, 'CPU')}" + (f" ({by})" if by else "")


def _cards(cards: Sequence[GpuInfo], otherwise: str) -> Iterator[doc.Row]:
    """Equal cards on one line, so that eight of a kind read as such."""
    if not cards:
        yield "GPUs", otherwise
    texts = []
    for card in cards:
        text, lanes = card.name, (card.pcie_generation, card.pcie_width)
        text += "" if card.memory_bytes is None else f", {format_bytes(card.memory_bytes)}"
        texts.append(text + ("" if None in lanes else ", PCIe {} x{}".format(*lanes)))
    yield from (("GPUs", f"{texts.count(kind)} x {kind}") for kind in dict.fromkeys(texts))


def _activity(neighbours: Neighbours) -> Iterator[doc.Row]:
    if neighbours.busy_cores is None:
        yield "CPU", neighbours.unavailable.get("busy_cores", MISSING)
    else:
        busy, idle = map(cores_text, (neighbours.busy_cores, neighbours.idle_cores))
        stolen = neighbours.stolen_cores or 0.0
        others = f", {cores_text(stolen)} stolen by the hypervisor" if stolen >= SHARED else ""
        yield "CPU", f"{busy} cores used, {idle} idle{others}"
        for name, cores, note in _users(neighbours, 20):
            yield name, f"{cores:.2f} cores{f' ({note})' if note else ''}"
    if neighbours.runnable is not None:
        load = MISSING if neighbours.load_1m is None else f"{neighbours.load_1m:.2f}"
        yield "Run queue", f"{neighbours.runnable} running or waiting, load {load}"
    pressures = {
        "CPU": neighbours.cpu_pressure_fraction,
        "storage": neighbours.io_pressure_fraction,
        "memory": neighbours.memory_pressure_fraction,
    }
    known = (f"{name} {percent_text(v)}" for name, v in pressures.items() if v is not None)
    why = neighbours.unavailable.get("cpu_pressure_fraction", MISSING)
    yield "Time delayed", ", ".join(known) or why
    for card in neighbours.gpus:
        yield "GPU", f"{card.index} {card.name}: {', '.join(_use(card))}"


def _is_used(card: GpuNeighbours, memory_bytes: int | None) -> bool | None:
    """Whether anybody uses a GPU; ``None`` where that isn't known.

    Containers don't show others' processes: of these, what they hold of its memory is seen.
    """
    held = (card.memory_used_bytes or 0) / memory_bytes if memory_bytes else 0.0
    known = (card.processes, card.kernel_active_fraction)
    return True if held >= SHARED else None if known == (None, None) else any(known)


def _use(card: GpuNeighbours) -> Iterator[str]:
    if card.processes is not None:
        yield processes_text(card.processes)
    if card.memory_used_bytes is not None:
        yield f"{format_bytes(card.memory_used_bytes)} in use"
    active = card.kernel_active_fraction
    yield "activity not known" if active is None else f"kernels active {percent_text(active)}"


_TONES: Mapping[str, doc.Tone] = {"ok": "good", "warning": "warn", "problem": "bad"}


def doctor_report(checks: Sequence[Check], system: str) -> doc.Document:
    """The checks, one below the other, with what to do about each."""
    rows: list[doc.Row] = []
    for check in checks:
        tone = _TONES[check.state]
        finding = doc.Styled(check.finding, tone if check.state != "ok" else "")
        rows.append((check.name, (doc.Styled(f"{check.state}: ", tone), finding)))
        if check.advice:
            rows.append(("", f"fix: {check.advice}"))
    states = [str(check.state) for check in checks]
    bad = [state for state in ("problem", "warning") if state in states]
    parts = ", ".join(counted(states.count(state), state) for state in bad)
    said = f"{parts} found." if parts else "No problem found."
    return doc.Document(
        title=system,
        answer=(doc.Text(system), doc.FactList(tuple(rows)), doc.Text(doc.Styled(said, "strong"))),
    )
