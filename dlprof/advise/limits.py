"""Which configurations keep within the user's limits and the machine's."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from dlprof.advise.candidates import Candidate
from dlprof.advise.situation import Situation
from dlprof.errors import UsageError
from dlprof.records import Constraints, Reason
from dlprof.units import format_bytes

_TENSORS_PER_BATCH = 2
"""Where the probe could not count them: images and labels."""

_OTHER_FILES = 64
"""Files and sockets that a training process has open beside its batches."""


class Breach(NamedTuple):
    """A limit that a configuration does not keep.

    Attributes:
        limit: The limit with its value.
        need: What the configuration needs.
    """

    limit: str
    need: str


def breach(candidate: Candidate, situation: Situation) -> Breach | None:
    """The first limit that a configuration breaks, if it breaks one."""
    return next(_breaches(candidate, situation), None)


def _breaches(candidate: Candidate, situation: Situation) -> Iterator[Breach]:
    config, constraints, machine = candidate.config, situation.constraints, situation.machine
    most, workers, name = constraints.max_workers, config.num_workers, machine.hostname
    name = name or "this machine"
    if most is not None and workers > most:
        yield Breach(f"max_workers={most}", f"has {workers}")
    sizes = [size for size in (machine.memory_limit_bytes, machine.memory_bytes) if size]
    memory, shared = candidate.pss_bytes, candidate.shm_bytes if workers else None
    verb = "needs" if candidate.measured or constraints.ranks > 1 else "would need"
    times = f"{constraints.ranks} x " if constraints.ranks > 1 else ""
    for limit, size, used, what in (
        ("max_ram", constraints.max_ram_bytes, memory, ""),
        (f"the memory of {name}", min(sizes, default=None), memory, ""),
        ("max_shm", constraints.max_shm_bytes, shared, " of shared memory"),
        (f"the /dev/shm of {name}", machine.shm_bytes, shared, " of shared memory"),
    ):
        if used is not None and size is not None and used * constraints.ranks > size:
            need = f"{verb} {times}{format_bytes(used)}{what}"
            yield Breach(f"{limit} ({format_bytes(size)})", need)
    # With ``file_descriptor`` sharing the main process holds a descriptor per queued tensor. Not
    # computed where it was measured: there it worked.
    files = machine.open_files_limit
    worked = candidate.measured and not situation.extrapolated
    if files is None or not workers or config.sharing_strategy == "file_system" or worked:
        return
    held = config.open_files(situation.batch_tensors or _TENSORS_PER_BATCH)
    if held + _OTHER_FILES > files:
        need = f"needs {held} beside about {_OTHER_FILES} others"
        yield Breach(f"{files} open files on {name}", need)


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
