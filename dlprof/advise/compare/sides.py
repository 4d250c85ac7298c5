"""One side of a comparison: what a run tells of the costs of one configuration."""

from __future__ import annotations

import dataclasses
import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from dlprof.advise.compare.costs import Costs
from dlprof.advise.compare.parts import PartCode
from dlprof.advise.compare.stages import Serial, serial_costs, waiting_s
from dlprof.records import Config, Machine, Run, Trial

_WITH_NEIGHBOURS = 0.2
"""Share of the CPUs that neighbours keep busy from which waiting for a core is put down to them."""

_USED_UP = 0.9
"""Share of the cores to be had that a loader uses which has all that it gets."""

_USAGE = (
    *("own_cpu_cores", "available_cpu_cores", "other_cpu_cores", "run_queue_wait_fraction"),
    *("throttled_fraction", "cache_hit_fraction", "read_bytes_per_s"),
)
_LEAST, _MOST = 1e-12, 1e12
_MOST_WAITING = 0.99
_LEAST_CORES = 1e-3


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Side:
    """One configuration of a run.

    Attributes:
        log_rate: Mean natural logarithm of its trials' samples per second.
        costs: What the closed form takes; ``None`` where the CPU time isn't known.
        figures: What the trials say, by name with unit: the evidence.
        unknown: Parts that the run does not tell, and why.
    """

    log_rate: float
    costs: Costs | None
    figures: Mapping[str, Any]
    unknown: Mapping[PartCode, str]


def side_of(run: Run, config: Config, trials: Sequence[Trial]) -> Side:
    """What a run tells of one configuration.

    Args:
        run: The run.
        config: Which.
        trials: Those with a rate that count, of this configuration and of others.
    """
    own = [trial for trial in trials if trial.config == config]
    log_rate = statistics.fmean(math.log(_rate(trial)) for trial in own)
    serial = serial_costs(run, config, _samples_per_batch(own, run))
    figures = _figures(run.header.machine, own, serial)
    cpu_s = figures["cpu_s_per_sample"]
    if cpu_s is None:
        why = _first_reason(own, "own_cpu_cores")
        return Side(log_rate=log_rate, costs=None, figures=figures, unknown={"cpu": why})
    io_s, source = _io(run, config, trials)
    figures |= {"io_s_per_sample": io_s, "io_from": source if io_s is not None else None}
    unknown: dict[PartCode, str] = dict(serial.unknown)
    if io_s is None:
        unknown["storage"] = source
    if figures["other_cpu_cores"] is None:
        unknown["neighbours"] = _first_reason(own, "other_cpu_cores")
    costs = _costs(run.header.machine, config, figures, serial)
    costs = _with_waiting(costs, figures, run.header.machine)
    return Side(log_rate=log_rate, costs=costs, figures=figures, unknown=unknown)


def _figures(machine: Machine, trials: Sequence[Trial], serial: Serial) -> dict[str, Any]:
    """The means over the trials, and what the machine offers."""
    wait = _mean(trial.wait_fraction for trial in trials)
    per_sample = statistics.fmean(1 / _rate(trial) for trial in trials)
    step_s = None if wait is None else max(0.0, (1 - wait) * per_sample - (serial.copy_s or 0.0))
    return {
        "cpu_s_per_sample": _cpu_s(trials),
        **{name: _mean(getattr(trial.usage, name) for trial in trials) for name in _USAGE},
        "logical_cpus": machine.logical_cpus,
        "affinity_cpus": machine.affinity_cpus,
        "quota_cores": machine.quota_cores,
        "usable_cores": machine.usable_cores,
        "receive_s_per_sample": serial.receive_s,
        "pin_s_per_sample": serial.pin_s,
        "copy_s_per_sample": serial.copy_s,
        "step_s_per_sample": step_s,
        "wait_fraction": wait,
    }


def _cpu_s(trials: Sequence[Trial]) -> float | None:
    """Geometric mean of the CPU seconds per sample, which a busy neighbour changes least."""
    logs = [
        math.log(_bounded(own / _rate(trial)))
        for trial in trials
        if (own := trial.usage.own_cpu_cores) is not None and own > 0
    ]
    return math.exp(statistics.fmean(logs)) if logs else None


def _costs(machine: Machine, config: Config, figures: Mapping[str, Any], serial: Serial) -> Costs:
    affinity = _bounded(machine.affinity_cpus or machine.usable_cores)
    return Costs(
        cpu_s=figures["cpu_s_per_sample"],
        worker_share=serial.worker_share,
        threads=1.0 if config.num_workers else _threads(figures),
        affinity=affinity,
        io_s=figures["io_s_per_sample"] or 0.0,
        receive_s=serial.receive_s or 0.0,
        pin_s=serial.pin_s or 0.0,
        pin_thread=config.pin_memory and config.num_workers > 0,
        copy_s=serial.copy_s or 0.0,
        step_s=min(_MOST, figures["step_s_per_sample"] or 0.0),
        workers=config.num_workers,
    )


def _threads(figures: Mapping[str, Any]) -> float:
    """Threads that run or wait for a core, on average."""
    own: float = figures["own_cpu_cores"]
    share = min(_MOST_WAITING, figures["run_queue_wait_fraction"] or 0.0)
    return max(1.0, min(_MOST, own / (1 - share)))


def _with_waiting(costs: Costs, figures: Mapping[str, Any], machine: Machine) -> Costs:
    """The costs with what waiting for a core adds, and to whom that is put down.

    All waiting is known from the run queue, and what the quota caused, from its throttling. Of what
    too few CPUs don't explain, the rest is the neighbours', if they keep a good part of the CPUs
    busy, and that of own threads that get into each other's way, if nobody else is there.
    """
    waiting = figures["run_queue_wait_fraction"]
    if waiting is None:
        return _without_run_queue(costs, figures, machine)
    whole = 1 / (1 - min(_MOST_WAITING, max(0.0, waiting)))
    quota = 1 + _held_back(figures) / max(_LEAST_CORES, figures["own_cpu_cores"])
    quota = min(whole, quota)
    others = (figures["other_cpu_cores"] or 0.0) / costs.affinity
    theirs = min(1.0, others / _WITH_NEIGHBOURS)
    # How many want to run at once depends on how long computing takes, which waiting is part of.
    wanted = dataclasses.replace(costs, quota_stretch=whole).demand
    excess = max(1.0, whole / quota / max(1.0, wanted / costs.affinity))
    return dataclasses.replace(
        costs,
        quota_stretch=quota,
        neighbour_stretch=excess**theirs,
        own_stretch=excess ** (1 - theirs),
    )


def _held_back(figures: Mapping[str, Any]) -> float:
    """CPU seconds a second that a quota held back.

    The fraction is of the window or, where that is longer, of the time held back and used.
    """
    fraction = min(_MOST_WAITING, figures["throttled_fraction"] or 0.0)
    own: float = figures["own_cpu_cores"]
    return max(fraction, own * fraction / (1 - fraction)) if own > 0 else fraction


def _without_run_queue(costs: Costs, figures: Mapping[str, Any], machine: Machine) -> Costs:
    """What cores that were used up, or a quota that was, say of waiting for them."""
    own: float = figures["own_cpu_cores"]
    quota, others = machine.quota_cores, figures["other_cpu_cores"]
    wanted = min(costs.affinity, costs.demand)
    if quota is not None and own >= _USED_UP * quota:
        return dataclasses.replace(costs, quota_stretch=max(1.0, wanted / _bounded(quota)))
    if others is None or own < _USED_UP * (costs.affinity - others):
        return costs
    left = max(_LEAST_CORES, costs.affinity - others)
    return dataclasses.replace(costs, neighbour_stretch=max(1.0, wanted / left))


def _io(run: Run, config: Config, trials: Sequence[Trial]) -> tuple[float | None, str]:
    """True waiting per sample and where that figure is from; or ``None`` and why there is none.

    Without an explaining pass it is what ``num_workers=0`` leaves: its time per sample less CPU
    time and run-queue wait, as there nothing overlaps.
    """
    told = waiting_s(run, config, _samples_per_batch(trials, run))
    if told is not None:
        return min(_MOST, told), "an explaining pass"
    own = run.header.target.batch_size
    size = config.batch_size or own
    plain = [t for t in trials if not t.config.num_workers and (t.config.batch_size or own) == size]
    found = [io_s for trial in plain if (io_s := _left_waiting(trial)) is not None]
    if not found:
        return None, "run the sweep with --num-workers 0 among the values, or dlprof profile"
    ids = ", ".join(trial.id for trial in plain)
    return min(_MOST, statistics.fmean(found)), f"num_workers=0 ({ids})"


def _left_waiting(trial: Trial) -> float | None:
    usage = trial.usage
    if usage.own_cpu_cores is None or usage.run_queue_wait_fraction is None:
        return None
    waiting = trial.wait_fraction if trial.wait_fraction is not None else 1.0
    share = min(_MOST_WAITING, usage.run_queue_wait_fraction)
    cores = usage.own_cpu_cores * (1 + share / (1 - share)) / max(1.0, usage.own_cpu_cores)
    return max(0.0, waiting - cores) / _rate(trial)


def _samples_per_batch(trials: Sequence[Trial], run: Run) -> float:
    """Mean samples in a batch; 1 where nothing tells."""
    known = [t.samples_per_batch for t in trials if t.samples_per_batch and t.samples_per_batch > 0]
    return statistics.fmean(known) if known else float(run.header.target.batch_size or 1)


def _first_reason(trials: Sequence[Trial], field: str) -> str:
    reasons = (trial.unavailable.get(f"usage.{field}", "") for trial in trials)
    return next((reason for reason in reasons if reason), "its trials hold no such figure")


def _mean(values: Iterable[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return statistics.fmean(known) if known else None


def _rate(trial: Trial) -> float:
    return _bounded(trial.samples_per_s.value) if trial.samples_per_s is not None else _LEAST


def _bounded(value: float) -> float:
    """Within what logarithms and quotients can take, whatever a file says."""
    return min(_MOST, max(_LEAST, value))
