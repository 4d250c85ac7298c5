"""Which configurations keep within the user's limits and the machine's."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

from dlprof.advise.candidates import Candidate
from dlprof.advise.situation import Situation
from dlprof.errors import UsageError
from dlprof.records import Constraints, Machine, Reason
from dlprof.units import format_bytes

_TENSORS_PER_BATCH = 2
"""Where the probe could not count them: images and labels."""

_OTHER_FILES = 64
"""Files and sockets that a training process has open beside its batches."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Breach:
    """A limit that a configuration does not keep.

    Attributes:
        limit: The limit with its value.
        need: What the configuration needs.
    """

    limit: str
    need: str


def breach(candidate: Candidate, situation: Situation) -> Breach | None:
    """The first limit that a configuration breaks, if it breaks one."""
    checks = (_workers, _memory, _shared_memory, _open_files)
    found = (check(candidate, situation) for check in checks)
    return next((each for each in found if each is not None), None)


def stored_limits(settings: Mapping[str, Any]) -> Constraints:
    """The limits that a sweep was given, from its run's header; what is no limit counts as none.

    Read here and not by ``dlprof.settings``, so that a recommendation needs no more than the run.
    """
    known: dict[str, Any] = {
        name: settings[name]
        for name in ("max_workers", "max_ram_bytes", "max_shm_bytes", "ranks", "step_s")
        if isinstance(settings.get(name), int | float) and settings[name] >= 0
    }
    known["ranks"] = max(1, known.get("ranks", 1))
    return Constraints(**known)


def within_limits(
    candidates: Sequence[Candidate], situation: Situation
) -> tuple[list[Candidate], list[Reason]]:
    """The candidates that keep all limits, and one reason for each limit that leaves some out.

    Raises:
        UsageError: If no candidate is left.
    """
    kept: list[Candidate] = []
    broken: dict[str, list[tuple[Candidate, Breach]]] = {}
    for candidate in candidates:
        found = breach(candidate, situation)
        if found is None:
            kept.append(candidate)
        else:
            broken.setdefault(found.limit, []).append((candidate, found))
    if not kept:
        needs = "; ".join(
            f"{limit}, and {rows[0][0].name} {rows[0][1].need}" for limit, rows in broken.items()
        )
        raise UsageError(
            f"No configuration of this run keeps within the limits: {needs}",
            hint="Raise the limit, or run a sweep with smaller settings.",
        )
    return kept, [_left_out(limit, rows) for limit, rows in broken.items()]


def _left_out(limit: str, rows: Sequence[tuple[Candidate, Breach]]) -> Reason:
    cheapest, found = rows[0]
    others = f" and {len(rows) - 1} more" if len(rows) > 1 else ""
    return Reason(
        claim=f"{limit} leaves out {cheapest.name}{others}: {cheapest.name} {found.need}",
        evidence={"trials": cheapest.trial_ids, "configs": [each.key for each, _ in rows]},
    )


def _workers(candidate: Candidate, situation: Situation) -> Breach | None:
    most = situation.constraints.max_workers
    workers = candidate.config.num_workers
    if most is None or workers <= most:
        return None
    return Breach(limit=f"max_workers={most}", need=f"has {workers}")


def _memory(candidate: Candidate, situation: Situation) -> Breach | None:
    machine, ranks = situation.machine, situation.constraints.ranks
    sizes = (machine.memory_limit_bytes, machine.memory_bytes)
    own = min((size for size in sizes if size), default=None)
    used = candidate.pss_bytes
    limits = {
        "max_ram": situation.constraints.max_ram_bytes,
        f"the memory of {_name(machine)}": own,
    }
    for name, limit in limits.items():
        if used is not None and limit is not None and used * ranks > limit:
            need = _used(candidate, used, ranks)
            return Breach(limit=f"{name} ({format_bytes(limit)})", need=need)
    return None


def _shared_memory(candidate: Candidate, situation: Situation) -> Breach | None:
    ranks = situation.constraints.ranks
    used = candidate.shm_bytes if candidate.config.num_workers else None
    limits = {
        "max_shm": situation.constraints.max_shm_bytes,
        f"the /dev/shm of {_name(situation.machine)}": situation.machine.shm_bytes,
    }
    for name, limit in limits.items():
        if used is not None and limit is not None and used * ranks > limit:
            need = f"{_used(candidate, used, ranks)} of shared memory"
            return Breach(limit=f"{name} ({format_bytes(limit)})", need=need)
    return None


def _open_files(candidate: Candidate, situation: Situation) -> Breach | None:
    """With ``file_descriptor`` sharing the main process holds a descriptor per queued tensor.

    Not computed where it was measured: there it worked.
    """
    config, limit = candidate.config, situation.machine.open_files_limit
    shares_by_name = config.sharing_strategy == "file_system"
    worked = candidate.measured and not situation.extrapolated
    if limit is None or not config.num_workers or shares_by_name or worked:
        return None
    need = config.open_files(situation.batch_tensors or _TENSORS_PER_BATCH)
    if need + _OTHER_FILES <= limit:
        return None
    return Breach(
        limit=f"{limit} open files on {_name(situation.machine)}",
        need=f"needs {need} beside about {_OTHER_FILES} others",
    )


def _name(machine: Machine) -> str:
    return machine.hostname or "this machine"


def _used(candidate: Candidate, used: int, ranks: int) -> str:
    if ranks == 1:
        verb = "needs" if candidate.measured else "would need"
        return f"{verb} {format_bytes(used)}"
    return f"needs {ranks} x {format_bytes(used)}"
