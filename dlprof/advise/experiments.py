"""Which short trials a profile needs, one block after the other, from what came so far. Pure."""

from __future__ import annotations

import dataclasses
import math
import statistics
from collections.abc import Sequence

from dlprof.advise.findings.claims import enough_for_limit, measured_gain
from dlprof.advise.findings.diagnosis import remedies
from dlprof.advise.findings.evidence import Evidence
from dlprof.advise.findings.machine import may_grow
from dlprof.advise.thresholds import ENOUGH_BATCHES
from dlprof.records import BatchCosts, Config, Purpose, TrialCost
from dlprof.stats.belief import NEAR
from dlprof.units import counted

_TRYING = "trying "


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Experiment:
    """One short trial that a profile asks for."""

    name: str  # in words, for the progress shown to people
    config: Config  # what to measure, canonical
    purpose: Purpose = "measure"  # of its trial
    trial_s: float = 1.0  # length of the window
    turnover: bool = False  # whether the end of an epoch is timed as well
    repetition: int = 0  # number of the interleaved block; trials of equal ones are compared


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Allowance:
    """What a profile may cost."""

    budget_s: float = 25.0  # seconds in all
    trial_s: float = 1.0  # length of a window
    # What trials are expected to cost beside it.
    cost: TrialCost = dataclasses.field(default_factory=lambda: TrialCost(overhead_s=0.4))
    workers: int | None = None  # most workers to try; ``None`` for no limit


def propose(evidence: Evidence, allowance: Allowance) -> tuple[Experiment, ...]:
    """The next block of trials; empty where enough is known, or the budget is spent.

    First the present configuration, plain and explained, and the calibration with few workers;
    then the page cache dropped, where files are read; then, interleaved with the present one, the
    configurations that would fix what the findings suspect.
    """
    left_s = allowance.budget_s - sum(trial.wall_s for trial in evidence.trials())
    if not evidence.observations:
        opening = _opening(evidence, allowance)
        if len(_affordable(opening, allowance, left_s)) < 2:
            # A few slow batches that are traced show a cause, which their rate alone doesn't.
            plain, traced, *more = opening
            opening = [dataclasses.replace(traced, trial_s=0.1 * traced.trial_s), plain, *more]
        return _affordable(opening, allowance, left_s, sure=2)
    if not evidence.plain("present"):
        return ()  # it failed, which its failure reports
    longer = _affordable(_longer(evidence, allowance, left_s), allowance, left_s)
    return longer or _causes(evidence, allowance, left_s)


def left_out(evidence: Evidence, allowance: Allowance) -> tuple[str, ...]:
    """What a longer budget would have had tried next, in words."""
    if not evidence.plain("present"):
        return ()
    # Not by ``propose``, of which a longer look at memory would be all that comes next.
    wanted = _causes(evidence, allowance, math.inf)
    tried = {trial.config for trial in evidence.trials("variant")}
    return tuple(
        each.name.removeprefix(_TRYING)
        for each in wanted
        if each.purpose == "cold"
        or (each.purpose == "measure" and each.config not in {evidence.config, *tried})
    )


def _opening(evidence: Evidence, allowance: Allowance) -> list[Experiment]:
    """The present configuration plain, explained, and plain again; calibrations between."""
    now, trial_s, most = evidence.config, allowance.trial_s, allowance.workers
    plain = Experiment(name="as it is", config=now, trial_s=trial_s, turnover=True)
    counts = [n for n in (0, 1, 2) if n != now.num_workers and (most is None or n <= most)]
    few = (dataclasses.replace(now, num_workers=count).canonical() for count in counts)
    calibrations = [
        Experiment(
            name=f"calibration with {counted(config.num_workers, 'worker')}",
            config=config,
            purpose="explain",
            trial_s=0.8 * trial_s,
        )
        for config in few
        if not evidence.why_fixed(config) and evidence.integrity.fault(config) is None
    ]
    traced = dataclasses.replace(plain, name="explained", purpose="explain")
    # So that memory which grows shows.
    longer = dataclasses.replace(plain, repetition=1, turnover=False, trial_s=2.0 * trial_s)
    return [plain, traced, *calibrations, longer]


def _longer(evidence: Evidence, allowance: Allowance, left_s: float) -> list[Experiment]:
    """Once, where memory may grow. What only fills up doesn't go on: it is long enough to show.

    As far as half of the rest of the budget allows it, or eight windows.
    """
    presents = sum(each.purpose != "explain" for each in evidence.trials("present"))
    # Plain trials of the present configuration that a profile begins with.
    if not presents == len(evidence.plain("present")) == 2:
        return []
    rate = evidence.rate or 1.0
    wanted_s = 1.2 * ENOUGH_BATCHES * max(1, evidence.workers) / rate
    most_s = max(8.0 * allowance.trial_s, left_s / 2)
    trial_s = min(most_s, max(4.0 * allowance.trial_s, wanted_s))
    if not may_grow(evidence, rate * trial_s):
        return []
    name, now = "longer, to check for memory growth", evidence.config
    return [Experiment(name=name, config=now, trial_s=trial_s, repetition=2)]


def _causes(evidence: Evidence, allowance: Allowance, left_s: float) -> tuple[Experiment, ...]:
    """What would show a cause, or a fix: loading from a cold cache, then what findings suspect."""
    if evidence.reads_files and not evidence.trials("cold"):
        name, trial_s = "with a cold page cache", allowance.trial_s
        cold = Experiment(name=name, config=evidence.config, purpose="cold", trial_s=trial_s)
        return _affordable([cold], allowance, left_s)
    block = _affordable(_verification(evidence, allowance), allowance, left_s, least=2)
    # Every other block the other way round, so that drift within one favours nobody.
    return block[::-1] if block and block[0].repetition % 2 == 0 else block


def _verification(evidence: Evidence, allowance: Allowance) -> list[Experiment]:
    """One block: what hypotheses propose, or what is still worth repeating, beside the present."""
    most = allowance.workers
    wanted = remedies(evidence)
    if evidence.limit == "consumer" and not wanted:
        return []
    tried = list(dict.fromkeys(trial.config for trial in evidence.trials("variant")))
    new = [each for each in wanted if each not in tried]
    new = [each for each in new if most is None or each.num_workers <= most]
    blocks = 3 if evidence.is_noisy else 2
    gains = ((config, measured_gain(evidence, config)) for config in tried)
    again = [c for c, g in gains if g and g.value >= NEAR and len(g.trials) < blocks]
    # Four variants at most, three of them at once.
    configs = new[: max(0, min(3, 4 - len(tried)))] or again[:3]
    enough = enough_for_limit(evidence)
    if enough is not None and enough not in tried:
        configs = [enough, *configs][:3]
    if not configs:
        return []
    block = 1 + max(trial.repetition for trial in evidence.trials())
    # Slow batches come often enough for 10 % in ``(CV / 0.1)²`` batches.
    costs = evidence.explained.costs if evidence.explained else BatchCosts()
    trial_s = allowance.trial_s
    made_s = [cpu + io for cpu, io in zip(costs.cpu_s, costs.io_s, strict=False)]
    if len(made_s) > 1 and evidence.rate and statistics.fmean(made_s) > 0:
        spread = statistics.stdev(made_s) / statistics.fmean(made_s)
        wanted_s = (spread / 0.1) ** 2 / evidence.rate
        trial_s = min(2.5 * trial_s, max(trial_s, wanted_s))
    now = evidence.config
    found = [Experiment(name="as it is", config=now, trial_s=trial_s)]
    for config in configs:
        changed = now.differing(config)
        if "num_workers" in changed:
            changed = [name for name in changed if name != "prefetch_factor"]
        variant = Experiment(
            name=_TRYING + ", ".join(f"{name}={getattr(config, name)}" for name in changed),
            config=config,
            trial_s=trial_s,
            # What keeps workers between epochs shows at an epoch's end only.
            turnover=not {"persistent_workers", "start_method"}.isdisjoint(changed),
        )
        found.append(variant)
    return [dataclasses.replace(each, repetition=block) for each in found]


def _affordable(
    experiments: Sequence[Experiment],
    allowance: Allowance,
    left_s: float,
    *,
    sure: int = 0,
    least: int = 1,
) -> tuple[Experiment, ...]:
    """As many of the first as the rest of the budget holds.

    So many as ``sure`` are taken whatever they cost; fewer than ``least`` say nothing.
    """
    taken: list[Experiment] = []
    for each in experiments:
        left_s -= allowance.cost.of(each.config, each.trial_s)
        if left_s >= 0 or len(taken) < sure:
            taken.append(each)
    return tuple(taken) if len(taken) >= min(least, len(experiments)) else ()
