"""The parts that slow the slower side, as findings."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from types import MappingProxyType

from dlprof.advise.compare.parts import Part, PartCode, SideInfo
from dlprof.advise.wording import severity_of
from dlprof.records import Config, Estimate, Finding, FindingCode, Fix

_LEAST_LOSS = 0.02
"""Parts that cost less of the rate are no findings."""


_Cause = tuple[FindingCode, Fix]

_CODES: Mapping[PartCode, tuple[FindingCode, str]] = MappingProxyType(
    {
        "cpu": ("fetch.cpu", "Make __getitem__ cheaper, or take a machine with faster cores."),
        "cores": ("cpu.affinity", "Let the job run on more CPUs: affinity mask, cpuset, taskset."),
        "quota": ("cpu.quota", "Raise the CPU quota of the job's cgroup or container."),
        "neighbours": ("cpu.neighbours", "Move the neighbours, or reserve cores for this job."),
        "storage": ("fetch.io", "Bring the data to faster storage or into memory, or add workers."),
        "receive": ("main.receive", "Send fewer and larger tensors per batch."),
        "copy": ("transfer.link", "Pin memory, and look at the link with dlprof transfer."),
        "step": ("consumer", "The step is the limit; the loader is not what to change."),
    }
)


def findings(parts: Sequence[Part], slow: SideInfo, fast: SideInfo) -> tuple[Finding, ...]:
    """One finding for each part that slows the slower side, by what it costs.

    Args:
        parts: Of the comparison of the slower side with the faster one, or the other way round.
        slow: The slower side.
        fast: The faster one.
    """
    sign = 1 if sum(part.log_ratio.value for part in parts) > 0 else -1
    losses = [(1 - math.exp(-max(0.0, sign * part.log_ratio.value)), part) for part in parts]
    losses.sort(key=lambda row: -row[0])
    return tuple(
        _finding(part, cost, sign, cause, list(slow.trials))
        for cost, part in losses
        if cost >= _LEAST_LOSS and (cause := _cause(part, slow.config, fast.config)) is not None
    )


def _cause(part: Part, slow: Config, fast: Config) -> _Cause | None:
    """The code and what would mend it; ``None`` for what no code is about."""
    if part.code == "settings":
        return _settings_cause(slow, fast)
    if part.code == "receive" and _differs(part, "pin_s_per_sample", "receive_s_per_sample"):
        return "main.pin", Fix(text="Pin less: smaller batches, or pin_memory=False.")
    if part.code == "copy" and fast.pin_memory and not slow.pin_memory:
        kwargs = {"pin_memory": True}
        fix = Fix(text="Pin the batches before they are copied.", dataloader_kwargs=kwargs)
        return "transfer.pageable", fix
    found = _CODES.get(part.code)
    return None if found is None else (found[0], Fix(text=found[1]))


def _settings_cause(slow: Config, fast: Config) -> _Cause | None:
    fix = Fix(
        text=f"Set what the faster run has: {fast.text}.",
        dataloader_kwargs=fast.dataloader_kwargs(),
    )
    if slow.num_workers != fast.num_workers:
        fewer = slow.num_workers < fast.num_workers
        return "too_few_workers" if fewer else "too_many_workers", fix
    if (slow.prefetch_factor or 0) < (fast.prefetch_factor or 0):
        return "prefetch.shallow", fix
    return ("order.blocking", fix) if slow.in_order and not fast.in_order else None


def _differs(part: Part, name: str, other: str) -> bool:
    """Whether the sides differ more in one figure than in another."""
    apart: list[float] = [
        abs((part.b.get(key) or 0.0) - (part.a.get(key) or 0.0)) for key in (name, other)
    ]
    return apart[0] > apart[1]


def _finding(part: Part, cost: float, sign: int, cause: _Cause, trials: list[str]) -> Finding:
    ends = [end for end in (part.log_ratio.low, part.log_ratio.high) if end is not None]
    unsure = bool(ends) and min(sign * end for end in ends) <= 0
    gain = part.alone if part.alone is not None else math.exp(sign * part.log_ratio.value)
    return Finding(
        code=cause[0],
        severity=severity_of(cost),
        title=part.title,
        explanation=part.explanation,
        evidence={"a": part.a, "b": part.b, "trials": trials},
        fix=cause[1],
        predicted_gain=Estimate(value=gain),
        cost=cost,
        doubtful="Its interval reaches to no difference." if unsure else "",
    )
