"""A run's configurations, with what was measured and predicted, and which keep all limits."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

from dlprof.advise.situation import Situation
from dlprof.errors import UsageError
from dlprof.records import Config, Constraints, Prediction, Reason, Run, Trial
from dlprof.stats import turnovers, typical
from dlprof.units import format_bytes


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Candidate:
    """One configuration, and everything that was seen and predicted of it.

    Attributes:
        config: Which.
        name: It in words.
        trials: Those with a rate, in the order of measuring.
        failures: Those that failed.
        epoch_turnover_s: From an epoch's last batch to the next one's first, as the run shows it
            for this configuration or one that shares its turnover, or as it is predicted.
        prediction: What it would give under the conditions that are asked for, by the same belief
            as all rates; ``None`` where only trials are asked.
        measured: Whether its trials show these conditions.
    """

    config: Config
    name: str
    trials: tuple[Trial, ...] = ()
    failures: tuple[Trial, ...] = ()
    epoch_turnover_s: float | None = None
    prediction: Prediction | None = None
    measured: bool = True

    @property
    def key(self) -> str:
        """``Config.key``."""
        return self.config.key

    @property
    def trial_ids(self) -> list[str]:
        """The trials with a rate that show the conditions that are asked for."""
        return [trial.id for trial in self.trials] if self.measured else []

    @property
    def pss_bytes(self) -> int | None:
        """Largest peak of the process tree's memory, with queues as full as they get."""
        seen = []
        for trial in self.trials:
            held, full = trial.usage.shm_peak_bytes, self._queued_bytes(trial)
            if (pss := trial.usage.pss_peak_bytes) is not None:
                # Batches that aren't shared, as those of numpy arrays, wait in the workers' memory.
                seen.append(pss + (max(0, full - held) if full and held else 0))
        return max(seen) if seen else self._predicted("pss_bytes")

    @property
    def shm_bytes(self) -> int | None:
        """Largest peak of shared memory seen, or what full queues hold, whichever is more."""
        peaks = (trial.usage.shm_peak_bytes for trial in self.trials)
        seen = [n for n in (*peaks, *map(self._queued_bytes, self.trials)) if n is not None]
        return max(seen) if seen else self._predicted("shm_bytes")

    def _predicted(self, need: str) -> int | None:
        value = None if self.prediction is None else getattr(self.prediction, need)
        return None if value is None else round(value)

    def _queued_bytes(self, trial: Trial) -> int | None:
        """What full queues hold; ``None`` without workers, or where batches have no known size."""
        if trial.batch_bytes is None or not self.config.num_workers:
            return None
        return round(self.config.queued_batches * trial.batch_bytes)

    @property
    def startup_s(self) -> float | None:
        """Median of ``iter`` plus first ``next``."""
        seen = typical(trial.startup_s for trial in self.trials)
        return self.prediction.startup_s if seen is None and self.prediction else seen

    @property
    def copy_s(self) -> float | None:
        """Median seconds a batch in which the step waited for its copy to the device."""
        return typical(t.copies.exposed_s for t in self.trials if t.copies is not None)

    @property
    def own_cpu_cores(self) -> float | None:
        """Median of busy cores of the trial's own processes."""
        return typical(trial.usage.own_cpu_cores for trial in self.trials)

    @property
    def available_cpu_cores(self) -> float | None:
        """Median of the cores that the trial could have had."""
        return typical(trial.usage.available_cpu_cores for trial in self.trials)

    @property
    def noisy(self) -> int:
        """How many of the trials with a rate are doubtful."""
        return sum(trial.noisy for trial in self.trials)


def gather(run: Run) -> list[Candidate]:
    """One candidate for each configuration of the run, cheapest first."""
    groups: dict[Config, list[Trial]] = {}
    for trial in run.trials:
        if trial.purpose == "measure":
            groups.setdefault(trial.config, []).append(trial)
    turns = turnovers(run.completed)
    depths = {config.prefetch_factor for config in groups if config.num_workers}
    return [
        Candidate(
            config=config,
            name=config.text_naming("prefetch_factor") if len(depths) > 1 else config.text,
            trials=tuple(trial for trial in trials if has_rate(trial)),
            failures=tuple(trial for trial in trials if trial.outcome != "completed"),
            epoch_turnover_s=turns.get(config.turnover_group),
        )
        for config, trials in sorted(groups.items(), key=lambda item: item[0].cost_key)
    ]


def has_rate(trial: Trial) -> bool:
    """Whether a trial can be compared."""
    rate = trial.samples_per_s
    return trial.outcome == "completed" and rate is not None and rate.value > 0


_TENSORS_PER_BATCH = 2
"""Where the probe could not count them: images and labels."""

_OTHER_FILES = 64
"""Files and sockets that a training process has open beside its batches."""


def breach(candidate: Candidate, situation: Situation) -> tuple[str, str] | None:
    """The first limit that a configuration breaks, with its value, and what it needs instead."""
    config, constraints, machine = candidate.config, situation.constraints, situation.machine
    most, workers = constraints.max_workers, config.num_workers
    name = machine.hostname or "this machine"
    if most is not None and workers > most:
        return f"max_workers={most}", f"has {workers}"
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
            return f"{limit} ({format_bytes(size)})", f"{verb} {times}{format_bytes(used)}{what}"
    # With ``file_descriptor`` sharing the main process holds a descriptor per queued tensor. Not
    # computed where it was measured: there it worked.
    files = machine.open_files_limit
    worked = candidate.measured and not situation.extrapolated
    if files is None or not workers or config.sharing_strategy == "file_system" or worked:
        return None
    held = config.open_files(situation.batch_tensors or _TENSORS_PER_BATCH)
    if held + _OTHER_FILES <= files:
        return None
    return f"{files} open files on {name}", f"needs {held} beside about {_OTHER_FILES} others"


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
    broken: dict[str, list[tuple[Candidate, str]]] = {}
    for candidate in candidates:
        found = breach(candidate, situation)
        if found is None:
            kept.append(candidate)
        else:
            broken.setdefault(found[0], []).append((candidate, found[1]))
    if not kept:
        needs = "; ".join(
            f"{limit}, and {rows[0][0].name} {rows[0][1]}" for limit, rows in broken.items()
        )
        raise UsageError(
            f"No configuration of this run keeps within the limits: {needs}",
            hint="Raise the limit, or run a sweep with smaller settings.",
        )
    reasons = []
    for limit, rows in broken.items():
        cheapest, need = rows[0]
        others = f" and {len(rows) - 1} more" if len(rows) > 1 else ""
        claim = f"{limit} leaves out {cheapest.name}{others}: {cheapest.name} {need}"
        evidence = {"trials": cheapest.trial_ids, "configs": [each.key for each, _ in rows]}
        reasons.append(Reason(claim=claim, evidence=evidence))
    return kept, reasons
