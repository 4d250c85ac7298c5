"""Machine profiles: what a machine that isn't at hand offers, written down in TOML.

A profile says what is known and leaves out the rest. ``configs/machines`` has some.
"""

from __future__ import annotations

import dataclasses
import difflib
import json
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, ClassVar

from annotated_types import Ge, Gt, Le, Len

from dlprof.errors import FileError
from dlprof.machine.fingerprint import fingerprint
from dlprof.records import CoreSpeeds, GpuInfo, Machine
from dlprof.tomlfile import read_toml, toml_value
from dlprof.units import quoted

# Bounds far outside of what is built: they catch a wrong unit, infinity and nan.
_Text = Annotated[str, Len(1, 500)]
_Count = Annotated[int, Ge(1), Le(100_000)]
_Gib = Annotated[float, Gt(0), Le(10_000_000)]
_GbPerS = Annotated[float, Gt(0), Le(1_000_000)]
_Ghz = Annotated[float, Gt(0), Le(100)]
_Speed = Annotated[float, Gt(0), Le(1e9)]

# What pydantic reads when it validates: nothing unknown, and no text or boolean for a number.
_STRICT: Mapping[str, object] = {"extra": "forbid", "strict": True}


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class GpuProfile:
    """The GPUs of a machine, all of one model.

    Attributes:
        model: The product's name.
        count: How many.
        memory_gib: Memory of each, GiB.
        pcie_generation: PCIe generation of the link to the host; ``None`` if not known.
        pcie_width: Lanes of that link.
    """

    __pydantic_config__: ClassVar[Mapping[str, object]] = _STRICT

    model: _Text
    count: Annotated[int, Ge(1), Le(1000)] = 1
    memory_gib: _Gib | None = None
    pcie_generation: Annotated[int, Ge(1), Le(8)] | None = None
    pcie_width: Annotated[int, Ge(1), Le(32)] | None = None


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class CoreSpeedProfile:
    """How fast the cores are, as ``dlprof machine`` measures it there.

    Attributes:
        median: Of the cores, in thousands of steps of a fixed Python loop in a second of CPU time.
        low: The slowest core.
        high: The fastest core.
        unit: As ``dlprof machine`` names it, the version of Python included.
        slow_fraction: Share of time in which cores were slow; ``None`` if not known.
    """

    __pydantic_config__: ClassVar[Mapping[str, object]] = _STRICT

    median: _Speed
    low: _Speed
    high: _Speed
    unit: _Text
    slow_fraction: Annotated[float, Ge(0), Le(1)] | None = None


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class MachineProfile:
    """What a machine offers to the jobs on it together. ``None`` is not known.

    Attributes:
        name: Short, as people call it.
        description: One sentence.
        cpu_model: CPU model as the system names it.
        logical_cpus: CPUs, hyper-threads counted; for a cloud instance its vCPUs.
        physical_cores: Physical cores.
        base_ghz: Clock rate that all cores hold together; of use where ``core_speed`` is not known.
        core_speed: How fast the cores are.
        memory_gib: Memory, GiB.
        memory_gb_per_s: What its channels can carry together, GB/s: all jobs' batches, copies and
            pinning share that.
        shm_gib: Size of /dev/shm, GiB.
        numa_nodes: NUMA nodes with CPUs.
        gpus: GPUs, one entry per model.
        source: Where the figures are from.
        notes: What else one should know of it.
    """

    __pydantic_config__: ClassVar[Mapping[str, object]] = _STRICT

    name: _Text
    description: _Text
    cpu_model: _Text | None = None
    logical_cpus: _Count
    physical_cores: _Count | None = None
    base_ghz: _Ghz | None = None
    core_speed: CoreSpeedProfile | None = None
    memory_gib: _Gib | None = None
    memory_gb_per_s: _GbPerS | None = None
    shm_gib: _Gib | None = None
    numa_nodes: _Count | None = None
    gpus: tuple[GpuProfile, ...] = ()
    source: _Text | None = None
    notes: tuple[_Text, ...] = ()

    @classmethod
    def of(cls, machine: Machine) -> MachineProfile:
        """What a machine offers to one job, its limits included."""
        speed, cores = machine.core_speed, max(1, int(machine.usable_cores))
        sizes = (machine.memory_bytes, machine.memory_limit_bytes)
        cards = Counter(
            GpuProfile(
                model=card.name,
                memory_gib=_to_gib(card.memory_bytes),
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
            core_speed=None if speed is None else CoreSpeedProfile(**dataclasses.asdict(speed)),
            memory_gib=_to_gib(min((size for size in sizes if size), default=None)),
            shm_gib=_to_gib(machine.shm_bytes),
            numa_nodes=machine.numa_nodes,
            gpus=tuple(dataclasses.replace(card, count=count) for card, count in cards.items()),
            source="dlprof machine --save",
        )

    def to_toml(self) -> str:
        """The profile as the file that ``read_profile`` reads; what is not known is left out."""
        known = _known(dataclasses.asdict(self)).items()
        return "".join(f"{name} = {toml_value(value)}\n" for name, value in known)

    def to_machine(self) -> Machine:
        """The profile as a ``Machine`` that one job has to itself.

        Its fingerprint is made as a real machine's is, of what the profile says.
        """
        cards, speed = _cards(self.gpus), self.core_speed
        memory, shm = _to_bytes(self.memory_gib), _to_bytes(self.shm_gib)
        machine = Machine(
            hostname=self.name,
            platform="profile",
            cpu_model=self.cpu_model or "unknown CPU",
            logical_cpus=self.logical_cpus,
            physical_cores=self.physical_cores,
            affinity_cpus=self.logical_cpus,
            usable_cores=float(self.logical_cpus),
            memory_bytes=memory,
            memory_available_bytes=memory,
            shm_bytes=shm,
            shm_available_bytes=shm,
            numa_nodes=self.numa_nodes,
            core_speed=None if speed is None else CoreSpeeds(**dataclasses.asdict(speed)),
            gpus=cards,
            fingerprint=fingerprint(
                cpu_model=self.cpu_model or self.name,
                usable_cores=float(self.logical_cpus),
                logical_cpus=self.logical_cpus,
                memory_bytes=memory,
                gpus=cards,
            ),
        )
        missing = (name for name in _OPTIONAL if getattr(machine, name) is None)
        return dataclasses.replace(
            machine, unavailable=dict.fromkeys(missing, "the machine profile doesn't say")
        )


# Fields of a machine that a profile may leave open.
_OPTIONAL = (
    "physical_cores",
    "memory_bytes",
    "memory_available_bytes",
    "swap_used_bytes",
    "shm_bytes",
    "shm_available_bytes",
    "open_files_limit",
    "numa_nodes",
    "core_speed",
)


def read_profile(path: Path) -> MachineProfile:
    """The profile in a TOML file.

    Raises:
        FileError: The file can't be read, isn't TOML, or has a key or value that no profile has.
    """
    return parse_profile(read_toml(path), str(path))


def parse_profile(document: Mapping[str, Any], name: str) -> MachineProfile:
    """A profile from a parsed TOML document.

    Args:
        document: The document's keys and values.
        name: What to call the document in an error.

    Raises:
        FileError: A key is unknown or missing, or a value is of the wrong type or out of range.
    """
    # pydantic takes longer to load than all of this; most commands read no profile.
    from pydantic import TypeAdapter, ValidationError  # noqa: PLC0415

    # TOML's dates have no place in a profile: as text they are refused like any other text.
    text = json.dumps(document, default=str)
    try:
        profile = TypeAdapter(MachineProfile).validate_json(text)
    except ValidationError as error:
        first = error.errors()[0]
        raise _fault(name, first["loc"], first["type"], first["msg"], first["input"]) from None
    if profile.physical_cores is not None and profile.physical_cores > profile.logical_cpus:
        raise FileError(
            f"{name}: physical_cores is {profile.physical_cores}, more than the"
            f" {profile.logical_cpus} of logical_cpus",
            hint="logical_cpus counts hyper-threads, so it is never the smaller of the two",
        )
    speed = profile.core_speed
    if speed is not None and not speed.low <= speed.median <= speed.high:
        raise FileError(
            f"{name}: core_speed.median is {speed.median:g}, and not from low to high",
            hint="dlprof machine --save writes all three",
        )
    return profile


def _fault(
    name: str, place: Sequence[int | str], kind: str, message: str, value: object
) -> FileError:
    """One sentence of what pydantic found wrong, in a profile's own terms."""
    key = _dotted(place)
    fields = dataclasses.fields(_record_at(place))
    known = [field.name for field in fields]
    hint = f"The keys here are {', '.join(known)}"
    if kind in {"extra_forbidden", "unexpected_keyword_argument"}:
        close = difflib.get_close_matches(str(place[-1]), known, n=1)
        hint = f"Did you mean {close[0]}? {hint}" if close else hint
        return FileError(f"{name}: {key} is not a key of a machine profile", hint=hint)
    if kind in {"missing", "missing_argument"}:
        return FileError(f"{name}: the key {key} is missing", hint=hint)
    rule = message.removeprefix("Input ").removeprefix("String ")
    needed = any(
        field.name == place[-1] and field.default is dataclasses.MISSING for field in fields
    )
    hint = (
        "Correct it: the key can't be left out"
        if needed
        else "Leave the key out if the figure is not known"
    )
    return FileError(f"{name}: {key} {rule}, and {quoted(value)} is not", hint=hint)


def _record_at(
    place: Sequence[int | str],
) -> type[GpuProfile | CoreSpeedProfile | MachineProfile]:
    inner = {"gpus": GpuProfile, "core_speed": CoreSpeedProfile} if len(place) > 1 else {}
    return inner.get(str(place[0]), MachineProfile)


def _dotted(place: Sequence[int | str]) -> str:
    text = ""
    for part in place:
        text += f"[{part}]" if isinstance(part, int) else f".{part}"
    return text.removeprefix(".")


def _known(value: Any) -> Any:
    """A value of a profile without what is not known within it."""
    if isinstance(value, dict):
        return {name: _known(each) for name, each in value.items() if each not in (None, ())}
    return [_known(each) for each in value] if isinstance(value, tuple) else value


def _to_gib(size: int | None) -> float | None:
    return None if size is None else size / (1 << 30)


def _to_bytes(gib: float | None) -> int | None:
    return None if gib is None else int(gib * (1 << 30))


def _cards(groups: Sequence[GpuProfile]) -> tuple[GpuInfo, ...]:
    """One entry per card; a profile knows no UUIDs and no slots."""
    models = [group for group in groups for _ in range(group.count)]
    return tuple(
        GpuInfo(
            index=index,
            name=model.model,
            uuid="",
            memory_bytes=_to_bytes(model.memory_gib),
            pcie_generation=model.pcie_generation,
            pcie_width=model.pcie_width,
        )
        for index, model in enumerate(models)
    )
