"""What happens before the first trial: the target is built, probed and planned for."""

from __future__ import annotations

import dataclasses
import secrets
from datetime import UTC, datetime

from dlprof.errors import TargetError, UsageError
from dlprof.records import SCHEMA_VERSION, Config, Machine, RunHeader, Target, TrialCost
from dlprof.search.plan import DEFAULT_OVERHEAD_S, plan_trials
from dlprof.search.space import build_space
from dlprof.settings import SweepSettings, settings_to_json
from dlprof.trial.bench import Bench
from dlprof.trial.protocol import TrialRequest
from dlprof.trial.story import Limits
from dlprof.version import __version__

_STALL_S = 20.0
"""Without a batch for this and twenty times what one takes alone, a trial counts as hanging."""

_MOST_RESERVE_BYTES = 1 << 30
"""Memory left to others: a twentieth of the machine's, at most this."""


def now() -> str:
    """The time as records have it: ISO 8601, UTC."""
    return datetime.now(UTC).isoformat(timespec="milliseconds")


def look_at(bench: Bench, settings: SweepSettings, machine: Machine) -> tuple[Target, str | None]:
    """Build the target and probe it; returns what it is, and torch's name of the accelerator."""
    built = bench.build(_limits(settings, machine))
    _refuse_small(built, settings)
    probe = bench.probe(
        TrialRequest(
            config=Config(), step_callable=settings.step_callable, cold_cache=settings.cold_cache
        )
    )
    target = dataclasses.replace(
        built,
        fork_safe=bench.fork_safe,
        batch_bytes=probe["batch_bytes"],
        batch_tensors=probe["batch_tensors"],
        batch_s=probe["batch_s"],
        batch_cpu_s=probe["batch_cpu_s"],
        notes=(*built.notes, *bench.notes),
    )
    return target, _device(settings.device, probe["accelerator"])


def _device(asked: str, found: str | None) -> str | None:
    """The accelerator that batches go to, by torch's name; ``None`` for the CPU.

    Raises:
        UsageError: The user named a device that isn't there.
    """
    if asked == "auto":
        return found
    kind = asked.partition(":")[0]
    if kind == "cpu":
        return None
    if kind != found:
        has = "no accelerator" if found is None else f"an accelerator of kind {found!r}"
        raise UsageError(
            f"--device {asked} is not there: torch finds {has}",
            hint="Leave --device out, or install a torch that supports the device.",
        )
    return found


def _limits(settings: SweepSettings, machine: Machine) -> Limits:
    """When a trial is ended: before the machine runs out of memory, for one."""
    sizes = (machine.memory_limit_bytes, machine.memory_bytes)
    memory = min((size for size in sizes if size is not None), default=0)
    own = settings.max_ram_bytes
    return Limits(
        wall_s=settings.timeout_s,
        stall_s=min(_STALL_S, settings.timeout_s),
        usable_cores=machine.usable_cores,
        memory_bytes=None if own is None else own // settings.ranks,
        reserve_bytes=min(_MOST_RESERVE_BYTES, memory // 20),
    )


def _refuse_small(target: Target, settings: SweepSettings) -> None:
    """Refuse a data set that doesn't fill one batch of any size that is asked for."""
    if target.kind == "iterable":
        return  # its length need not count samples
    sizes = settings.batch_size or ((target.batch_size,) if target.batch_size else ())
    if target.length is not None and sizes and target.length < min(sizes):
        raise TargetError(
            f"The data set has {target.length} samples, fewer than one batch of {min(sizes)}.",
            hint=f"Give --batch-size {max(1, target.length // 2)} or less, or more data.",
        )


def new_header(
    settings: SweepSettings,
    machine: Machine,
    target: Target,
    accelerator: str | None,
    bench: Bench,
    spent_s: float,
) -> RunHeader:
    """Plan a new run; ``spent_s`` of its budget are gone."""
    space = build_space(settings, target, machine, has_accelerator=accelerator is not None)
    cost = TrialCost(
        overhead_s=DEFAULT_OVERHEAD_S + (0.0 if bench.fork_safe else target.import_s or 0.0),
        batch_s=target.batch_s or 0.0,
        batch_cpu_s=target.batch_cpu_s or 0.0,
        usable_cores=machine.usable_cores,
    )
    present = target.present_settings(has_accelerator=accelerator is not None)
    plan, no_room = plan_trials(space.configs, settings, cost, spent_s=spent_s, present=present)
    return RunHeader(
        schema_version=SCHEMA_VERSION,
        run_id=secrets.token_hex(8),
        started_at=now(),
        dlprof_version=__version__,
        torch_version=bench.versions["torch"],
        python_version=bench.versions["python"],
        machine=machine,
        target=target,
        settings=settings_to_json(settings),
        accelerator=accelerator,
        left_out=(*space.left_out, *no_room),
        plan=plan,
    )
