"""Machine profiles: what a machine that isn't here offers, written down in TOML.

A profile says what is known and leaves out the rest. Those in ``known`` come with dlprof.
"""

from __future__ import annotations

import dataclasses
import datetime as dt
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from dlprof.errors import FileError, did_you_mean
from dlprof.files import is_there, replace_file
from dlprof.late import Shown
from dlprof.machine.inspection import REASONS, fingerprint
from dlprof.records import CoreSpeeds, GpuInfo, Machine
from dlprof.tomlfile import (
    TABLE,
    Rule,
    check_table,
    number_rule,
    read_toml,
    read_toml_text,
    whole_rule,
)
from dlprof.units import quoted

_KNOWN = Path(__file__).with_name("known")


# Bounds far outside of what is built: they catch a wrong unit, infinity and nan.
_TEXT = Rule(
    "a text of 1 to 500 characters", lambda value: isinstance(value, str) and 1 <= len(value) <= 500
)
_COUNT = whole_rule(1, 100_000)
_GIB = number_rule(0, 10_000_000)
_TEXTS = Rule(
    "a list of texts", lambda value: isinstance(value, list) and all(map(_TEXT.holds, value))
)
_TABLES = Rule(
    "a list of tables", lambda value: isinstance(value, list) and all(map(TABLE.holds, value))
)
_SPEEDS: Mapping[str, Rule] = {
    **dict.fromkeys(("median", "low", "high"), number_rule(0, 1e9)),
    "unit": _TEXT,
    "slow_fraction": Rule(
        "a number from 0 to 1", lambda value: number_rule().holds(value) and 0 <= value <= 1
    ),
}


def _key(rule: Rule, default: Any = None) -> Any:
    return dataclasses.field(default=default, metadata={"rule": rule})


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class GpuProfile:
    """The GPUs of a machine, all of one model."""

    model: str = dataclasses.field(metadata={"rule": _TEXT})  # the product's name
    count: int = _key(whole_rule(1, 1000), 1)  # how many
    memory_gib: float | None = _key(_GIB)  # memory of each, GiB
    # PCIe generation of the link to the host; ``None`` if not known.
    pcie_generation: int | None = _key(whole_rule(1, 8))
    pcie_width: int | None = _key(whole_rule(1, 32))  # lanes of that link


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class MachineProfile(Shown):
    """What a machine offers to the jobs on it together. ``None`` is not known."""

    name: str = dataclasses.field(metadata={"rule": _TEXT})  # short, as people call it
    description: str = dataclasses.field(metadata={"rule": _TEXT})  # one sentence
    cpu_model: str | None = _key(_TEXT)  # CPU model as the system names it
    # CPUs, hyper-threads counted; for a cloud instance its vCPUs.
    logical_cpus: int = dataclasses.field(metadata={"rule": _COUNT})
    physical_cores: int | None = _key(_COUNT)  # physical cores
    # Clock rate that all cores hold together; of use where ``core_speed`` is not known.
    base_ghz: float | None = _key(number_rule(0, 100))
    # How fast the cores are.
    core_speed: CoreSpeeds | None = dataclasses.field(default=None, metadata={"rule": TABLE})
    memory_gib: float | None = _key(_GIB)  # memory, GiB
    # What its channels can carry together, GB/s: all jobs' batches, copies and pinning share that.
    memory_gb_per_s: float | None = _key(number_rule(0, 1_000_000))
    shm_gib: float | None = _key(_GIB)  # size of /dev/shm, GiB
    numa_nodes: int | None = _key(_COUNT)  # NUMA nodes with CPUs
    gpus: tuple[GpuProfile, ...] = _key(_TABLES, ())  # GPUs, one entry per model
    source: str | None = _key(_TEXT)  # where the figures are from
    source_url: tuple[str, ...] = _key(_TEXTS, ())  # addresses of the pages that were read
    # When they were read, or the machine was looked at: a date such as 2026-11-23.
    read_on: str | None = _key(_TEXT)
    # Figures that none of these pages states, by key; a GPU's as ``gpus.pcie_width``.
    unsourced: tuple[str, ...] = _key(_TEXTS, ())
    notes: tuple[str, ...] = _key(_TEXTS, ())  # what else one should know of it

    @classmethod
    def of(cls, machine: Machine, read_on: dt.date) -> MachineProfile:
        """What a machine offers to one job, its limits included, on the day that it was seen."""
        cores = max(1, int(machine.usable_cores))
        sizes = machine.memory_size_bytes, machine.shm_bytes
        memory, shm = (None if size is None else size / (1 << 30) for size in sizes)
        cards = Counter(
            GpuProfile(
                model=card.name,
                memory_gib=card.memory_bytes and card.memory_bytes / (1 << 30),
                pcie_generation=card.pcie_generation,
                pcie_width=card.pcie_width,
            )
            for card in machine.gpus
        )
        return cls(
            name=machine.hostname or "unnamed",
            description=f"{machine.hostname or 'A machine'}, as dlprof machine found it",
            cpu_model=machine.cpu_model or None,
            logical_cpus=cores,
            physical_cores=machine.physical_cores and min(machine.physical_cores, cores),
            base_ghz=machine.base_ghz,
            core_speed=machine.core_speed,
            memory_gib=memory,
            shm_gib=shm,
            numa_nodes=machine.numa_nodes,
            gpus=tuple(dataclasses.replace(card, count=count) for card, count in cards.items()),
            source="dlprof machine --save",
            read_on=read_on.isoformat(),
        )

    def to_machine(self) -> Machine:
        """The profile as a ``Machine`` that one job has to itself.

        Its fingerprint is made as a real machine's is, of what the profile says.
        """
        groups = (group for group in self.gpus for _ in range(group.count))
        cards = tuple(
            GpuInfo(
                index=index,
                name=group.model,
                uuid="",
                memory_bytes=_to_bytes(group.memory_gib),
                pcie_generation=group.pcie_generation,
                pcie_width=group.pcie_width,
            )
            for index, group in enumerate(groups)
        )
        memory, shm = _to_bytes(self.memory_gib), _to_bytes(self.shm_gib)
        machine = Machine(
            hostname=self.name,
            platform="profile",
            cpu_model=self.cpu_model or "unknown CPU",
            logical_cpus=self.logical_cpus,
            physical_cores=self.physical_cores,
            base_ghz=self.base_ghz,
            affinity_cpus=self.logical_cpus,
            usable_cores=float(self.logical_cpus),
            memory_bytes=memory,
            memory_available_bytes=memory,
            shm_bytes=shm,
            shm_available_bytes=shm,
            numa_nodes=self.numa_nodes,
            core_speed=self.core_speed,
            gpus=cards,
            fingerprint=fingerprint(
                cpu_model=self.cpu_model or self.name,
                usable_cores=float(self.logical_cpus),
                logical_cpus=self.logical_cpus,
                memory_bytes=memory,
                gpus=cards,
            ),
        )
        missing = (name for name in REASONS if getattr(machine, name) is None)
        return dataclasses.replace(
            machine, unavailable=dict.fromkeys(missing, "the machine profile doesn't say")
        )


def known_profiles() -> Iterator[MachineProfile]:
    """The profiles that come with dlprof, by name."""
    return map(read_profile, sorted(_KNOWN.glob("*.toml")))


def read_profile(named: Path) -> MachineProfile:
    """The profile in a TOML file, or the one of that name that comes with dlprof."""
    name = str(named).replace(".", "-")
    names = {path.stem: path for path in _KNOWN.glob("*.toml")}
    path = named if is_there(named) else names.get(name, named)
    if not is_there(path) and len(named.parts) == 1 and named.suffix != ".toml":
        raise FileError(
            f"{quoted(str(named))} is neither a machine that dlprof knows nor a file",
            hint=f"{did_you_mean(name, names)} dlprof machine --list shows the names.".lstrip(),
        )
    try:
        return parse_profile(read_toml(path), str(path))
    except FileError as error:
        error.hint += " dlprof machine --save FILE writes one on that machine."
        raise


def save_profile(path: Path, profile: MachineProfile) -> None:
    """Write what is known of a profile to a file; comments and order of one that is there stay."""
    from dlprof.tomledit import revised_toml  # few profiles are written

    text = ""
    if is_there(path):
        read_toml(path)
        text = read_toml_text(path)
    try:
        revised = revised_toml(text, _known(dataclasses.asdict(profile)), {})
        replace_file(path, revised.encode())
    except ValueError:
        raise FileError(
            f"{path} can't be changed without losing some of it", hint="Give another path."
        ) from None


def parse_profile(document: Mapping[str, Any], name: str) -> MachineProfile:
    """A profile from a parsed TOML document."""

    def check(table: Mapping[str, Any], kind: type[Any], within: str = "") -> None:
        fields = dataclasses.fields(kind)
        check_table(
            table,
            {field.name: field.metadata["rule"] for field in fields if field.metadata} or _SPEEDS,
            place=name,
            within=within,
            needed=[field.name for field in fields if field.default is dataclasses.MISSING],
            hint="Correct it. Of what is not known, leave the key out.",
        )

    check(document, MachineProfile)
    cards, speed = document.get("gpus", ()), document.get("core_speed")
    for index, card in enumerate(cards):
        check(card, GpuProfile, f"gpus[{index}]")
    if speed is not None:
        check(speed, CoreSpeeds, "core_speed")
    lists = {key: tuple(value) for key, value in document.items() if isinstance(value, list)}
    profile = MachineProfile(
        **{
            **document,
            **lists,
            "gpus": tuple(GpuProfile(**card) for card in cards),
            "core_speed": None if speed is None else CoreSpeeds(**speed),
        }
    )
    if profile.physical_cores is not None and profile.physical_cores > profile.logical_cpus:
        raise FileError(
            f"{name}: physical_cores is {profile.physical_cores}, more than the"
            f" {profile.logical_cpus} of logical_cpus",
            hint="logical_cpus counts hyper-threads, so it is never the smaller of the two",
        )
    measured = profile.core_speed
    if measured is not None and not measured.low <= measured.median <= measured.high:
        raise FileError(
            f"{name}: core_speed.median is {measured.median:g}, and not from low to high",
            hint="dlprof machine --save writes all three",
        )
    return profile


def _known(value: Any) -> Any:
    """A value of a profile without what is not known within it."""
    if isinstance(value, dict):
        return {name: _known(each) for name, each in value.items() if each not in (None, ())}
    return [_known(each) for each in value] if isinstance(value, tuple) else value


def _to_bytes(gib: float | None) -> int | None:
    return None if gib is None else int(gib * (1 << 30))
