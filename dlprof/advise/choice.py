"""The decision: the cheapest configuration that is likely within 3 % of the best, and how sure.

Of those that keep the limits. Never one that is estimated slower than what the user has, or than
loading without workers; with a step, of those that keep it fed.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Collection, Iterator, Sequence

from dlprof.advise.candidates import candidate_configs, rule_configs
from dlprof.advise.situation import Situation
from dlprof.advise.speeds import (
    Candidate,
    Speeds,
    agreement,
    candidates_of,
    cores_share,
    gather,
    speeds_of,
)
from dlprof.advise.thresholds import (
    DERIVED_MARGIN,
    EVEN,
    FED_WAIT_FRACTION,
    HIGH,
    MEDIUM,
    PERHAPS_FED_WAIT_FRACTION,
)
from dlprof.advise.wording import disturbed_text, failed_or_skipped, inside, percent, times
from dlprof.errors import NothingMeasuredError, UsageError
from dlprof.records import (
    DATA_FAULTS,
    ONE_BATCH_SIGN,
    USELESS,
    Certificate,
    Confidence,
    Config,
    Integrity,
    Reason,
)
from dlprof.stats import NEAR, PROBABILITY, RISK, Gap, mean_interval, near_best
from dlprof.units import format_bytes, format_duration


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """What was chosen, and from what.

    Attributes:
        situation: What the settings are wanted for.
        pick: The recommended configuration.
        best: The fastest of the pool.
        pool: What the choice was between: those that feed the step, where some do.
        allowed: All that keep the limits, cheapest first.
        fed: Whether the pick keeps the step fed; ``None`` without a step.
        speeds: What the choice rests on.
        loss: By which share something else is faster at most, by the certificate; ``None`` where
            that says nothing.
    """

    situation: Situation
    pick: Candidate
    best: Candidate
    pool: tuple[Candidate, ...]
    allowed: tuple[Candidate, ...]
    fed: bool | None
    speeds: Speeds
    loss: float | None = None

    @property
    def ties(self) -> tuple[Candidate, ...]:
        """Those of the pool that are more likely near the best than not, and ``pick``."""
        return tuple(each for each in self.pool if each is self.pick or self.far(each) <= EVEN)

    @property
    def undecided(self) -> tuple[Candidate, ...]:
        """Cheaper than ``pick``, measured, and neither likely nor surely too slow."""
        cheaper = self.pool[: self.pool.index(self.pick)]
        return tuple(each for each in cheaper if each.measured and self.far(each) < 1 - RISK)

    @property
    def present(self) -> Candidate | None:
        """What the target's own DataLoader is set to now, if it keeps the limits."""
        return self.of(self.situation.present)

    @property
    def default(self) -> Candidate | None:
        """PyTorch's own default, ``num_workers=0``, at the batch size of the pick."""
        return self.of(Config(batch_size=self.pick.config.batch_size))

    @property
    def fewer(self) -> Candidate | None:
        """The fastest of fewer workers that are workers."""
        most = self.pick.config.num_workers
        some = [each for each in self.allowed if 0 < each.config.num_workers < most]
        return self.speeds.fastest(some) if some else None

    def of(self, config: Config | None) -> Candidate | None:
        """The candidate of a configuration, if it keeps the limits."""
        return next((each for each in self.allowed if each.config == config), None)

    def far(self, candidate: Candidate) -> float:
        """Probability that a configuration is slower than ``NEAR`` of the best."""
        return self.speeds.chance(self.best.key, candidate.key, 1 / NEAR)


def breach(candidate: Candidate, situation: Situation) -> tuple[str, str] | None:
    """The first limit that a configuration breaks, with its value, and what it needs instead."""
    config, constraints, machine = candidate.config, situation.constraints, situation.machine
    most, workers = constraints.max_workers, config.num_workers
    name = machine.hostname or "this machine"
    if most is not None and workers > most:
        return f"max_workers={most}", f"has {workers}"
    memory, shared = candidate.pss_bytes, candidate.shm_bytes if workers else None
    verb = "needs" if candidate.measured or constraints.ranks > 1 else "would need"
    times = f"{constraints.ranks} x " if constraints.ranks > 1 else ""
    for limit, size, used, what in (
        ("max_ram", constraints.max_ram_bytes, memory, ""),
        (f"the memory of {name}", machine.memory_size_bytes, memory, ""),
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
    # Images and labels, where the probe could not count tensors; files and sockets beside them.
    others = 64
    held = config.open_files(situation.target.batch_tensors or 2)
    if held + others <= files:
        return None
    return f"{files} open files on {name}", f"needs {held} beside about {others} others"


def broken_limit(candidate: Candidate, situation: Situation) -> str:
    """The same in words, ``max_workers=2: it has 8``; empty where it keeps all of them."""
    found = breach(candidate, situation)
    return "" if found is None else "{}: it {}".format(*found)


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
        beyond = {each.key: f"{limit}: it {need}" for each, need in rows}
        evidence = {"trials": cheapest.trial_ids, "beyond": beyond}
        reasons.append(Reason(claim=claim, evidence=evidence))
    return kept, reasons


def decide(
    situation: Situation, *, among: Collection[Config] | None = None
) -> tuple[Choice, list[Reason]]:
    """What to choose in a situation, and what limits left out of it.

    ``among`` names what to choose from, which a calibration has to predict.

    Raises:
        NothingMeasuredError: Nothing was measured, and no calibration answers.
        UsageError: No configuration keeps within the limits.
    """
    run = situation.run
    known = [each for each in gather(run) if among is None or each.config in among]
    measured = [candidate for candidate in known if candidate.trials]
    others = unmeasured(situation, among)
    if situation.by_model or (among is not None and not measured):
        return _among_all(situation, others or among or ())
    if not measured:
        # No time was left for plain trials; where they were tried in vain, that is the answer.
        tried = any(t.purpose == "measure" and t.outcome != "skipped" for t in run.trials)
        cells = [] if tried or not situation.is_calibrated else others
        if not cells and not situation.constraints.asks_for_cores:
            raise _nothing_measured(situation)
        return _among_all(situation, cells)
    # A configuration that failed once may fail again: only where nothing else is left.
    steady = [candidate for candidate in measured if not candidate.failures] or measured
    # Nor more workers than get data, which change nothing but what they take.
    most = Integrity.of(run).fed or 0
    kept = [c for c in steady if c.config == situation.present or c.config.num_workers <= most]
    if any(0 < candidate.config.num_workers <= most for candidate in kept):
        steady = kept
    try:
        allowed, limit_reasons = within_limits(steady, situation)
    except UsageError:  # what was only predicted may keep them
        if not (situation.as_measured and situation.is_calibrated):
            raise
        return _among_all(situation, among or ())
    asked = others if among is not None else ()
    speeds = candidates_of(situation, asked)[1] if asked else speeds_of(situation)
    choice = choose(allowed, situation, speeds)
    better = [each for each in others if is_better(choice, each.key)]
    if not better or not situation.is_calibrated:
        return choice, limit_reasons

    found, speeds = candidates_of(situation, {*better, *asked})
    try:
        within, more_reasons = within_limits([c for c in found if c.config in better], situation)
    except UsageError:  # none of them keeps the limits, as what was measured does
        return choice, limit_reasons
    both = sorted([*allowed, *within], key=lambda each: each.config.cost_key)
    claim = (
        f"{choice.pick.name} is the best measured configuration, and likely slower than one "
        "that was not measured"
    )
    left = Reason(claim=claim, evidence={"trials": choice.pick.trial_ids})
    return choose(both, situation, speeds), [left, *limit_reasons, *more_reasons]


def _among_all(situation: Situation, cells: Collection[Config]) -> tuple[Choice, list[Reason]]:
    """The choice among all that is worth predicting, or among some configurations."""
    wanted = {*(cells or candidate_configs(situation))}
    by_rules = [each for each in rule_configs(situation).values() if each is not None]
    # At once, so that what they have in common is computed once.
    found, speeds = candidates_of(situation, {*wanted, *by_rules})
    allowed, limit_reasons = within_limits([c for c in found if c.config in wanted], situation)
    return choose(allowed, situation, speeds), limit_reasons


def _nothing_measured(situation: Situation) -> NothingMeasuredError:
    run = situation.run
    failed = [(trial, trial.failure) for trial in run.trials if trial.failure is not None]
    wrong = next((failure for _, failure in failed if failure.kind in DATA_FAULTS), None)
    said, hint = "The run holds no trials", f"Go on with it: {run.resume_command}"
    if not run.trials and run.end is not None and run.end.reason == "budget":
        said, hint = "The budget ended before the first trial", "Give more: --budget 1m."
    if run.is_script:
        said = "This is a script's run: it shows why loading is slow, and compares no settings"
        hint = "See it with dlprof report, or sweep the script's dataset with dlprof sweep TARGET."
    if wrong is not None and len(failed) == len(run.trials):
        said = f"No settings give the right data, so there are none to recommend: {wrong.message}"
        return NothingMeasuredError(said, hint=wrong.hint)
    if any(trial.batches_per_s is not None for trial in run.completed):
        said = "The samples in this target's batches can't be counted, so no rates can be compared"
        hint = "Have it yield tensors, or lists with one entry for each sample."
    elif not failed and any(trial.purpose == "explain" for trial in run.trials):
        also = ", or give this run file to dlprof predict" if situation.is_calibrated else ""
        said = "The run holds only traced trials, whose rates are not compared"
        hint = f"Go on with it{also}: {run.resume_command}"
    elif run.trials:
        count = len(run.trials)
        said = "The run's only trial gave no rate"
        if count > 1:
            said = f"None of the run's {count} trials gave a rate"
        if not failed:
            return NothingMeasuredError(said, hint="Give the sweep more time with --budget.")
        first, failure = failed[0]
        one = "the first" if count > 1 else "it"
        return NothingMeasuredError(
            f"{said}; {one} {failed_or_skipped(first)}: {failure.message}",
            hint=failure.hint,
            failures=[(each.kind, each.message) for _, each in failed],
        )
    return NothingMeasuredError(said, hint=hint)


def choose(allowed: Sequence[Candidate], situation: Situation, speeds: Speeds) -> Choice:
    """Choose among those that keep the limits.

    What was measured is left for what was only predicted where that is likely better by over 3 %
    than all of it.
    """
    measured = [each for each in allowed if each.measured]
    found = _choose(measured, allowed, situation, speeds, RISK) if measured else None
    others = [each for each in allowed if not each.measured]
    better = [each for each in others if found is None or is_better(found, each.key)]
    if found is None or better:
        return _choose(better, allowed, situation, speeds, EVEN)
    return found


def is_better(choice: Choice, key: str) -> bool:
    """Whether one that was only predicted is likely better by over 3 % than what was chosen."""
    return not choice.fed and choice.speeds.chance(key, choice.pick.key, 1 / NEAR) >= 1 - RISK


def _choose(
    some: Sequence[Candidate],
    allowed: Sequence[Candidate],
    situation: Situation,
    speeds: Speeds,
    risk: float,
) -> Choice:
    """The cheapest that is near the best; with a step, that keeps it fed, if any does."""

    def gap(one: Config, two: Config) -> Gap:
        return speeds.gap(one.key, two.key)

    logs = {each.config: speeds.log_speed(each.key) for each in some}
    near = near_best(logs, situation.present, gap, risk)
    fed = [each for each in some if _is_fed(each, speeds, situation)]
    # Keeping the step fed may cost more between epochs than it saves.
    pool = fed if any(each.config in near for each in fed) else some
    by_model = situation.by_model and situation.step_s + situation.step_cpu_s > 0
    has_step = situation.step_measured or situation.derived_step_s is not None or by_model
    return Choice(
        situation=situation,
        pick=next(each for each in pool if each.config in near),
        best=speeds.fastest(pool),
        pool=tuple(pool),
        allowed=tuple(allowed),
        fed=pool is fed if has_step else None,
        speeds=speeds,
    )


def _is_fed(candidate: Candidate, speeds: Speeds, situation: Situation) -> bool:
    """Whether the step waits so little for this configuration that it counts as fed."""
    mean = speeds.wait_fraction(candidate)
    if mean is None:
        return False
    step_s = situation.derived_step_s
    if step_s is not None and candidate.config.num_workers:
        # Every trial gave batches faster than the step takes them, by its lower end.
        pairs = [(cores_share(trial, situation), trial.batches_per_s) for trial in candidate.trials]
        return all(
            rate is not None
            and share * step_s * (rate.value if rate.low is None else rate.low) >= DERIVED_MARGIN
            for share, rate in pairs
        )
    if mean <= FED_WAIT_FRACTION:
        return True
    waits = speeds.waits(candidate)
    low = mean_interval(waits).low if waits else None
    return low is not None and low <= FED_WAIT_FRACTION and mean <= PERHAPS_FED_WAIT_FRACTION


def certify(choice: Choice, among: Collection[Config] | None = None) -> Certificate | None:
    """How far from the best a choice may be, at most; ``among`` is what it was asked of.

    ``None`` for conditions that nobody measured (another machine, several ranks, what only a model
    answers), and where there is nothing to compare it with.
    """
    situation = choice.situation
    if situation.extrapolated or situation.other_ranks or situation.by_model:
        return None
    return _nearness(choice, unmeasured(situation, among))


def _nearness(choice: Choice, more: Collection[Config]) -> Certificate | None:
    """How far from the best a choice may be as far as is believed; ``more`` were only predicted."""
    pick = choice.pick.key
    measured = [each.key for each in choice.allowed if each.measured and each is not choice.pick]
    others = {each.key for each in choice.allowed if not each.measured}
    others |= {each.key for each in more}
    predicted = sorted(others - {pick})
    if not measured and not predicted:
        return None
    speeds, configs = choice.speeds, [*(each.config for each in choice.allowed), *more]
    ways = {(c.sharing_strategy, c.worker_threads) for c in configs if c.num_workers}
    alike = len({c.batch_size for c in configs}) == 1 and len(ways) <= 1
    room = speeds.room(choice.pick, choice.situation, choice.allowed if alike else ())
    over_all, over_measured = (
        speeds.belief.shortfall(pick, {key: speeds.gap(key, pick) for key in some}, room)
        for some in ([*measured, *predicted], measured)
    )
    return Certificate(
        epsilon=-math.expm1(-over_all),
        epsilon_measured=-math.expm1(-over_measured),
        probability=PROBABILITY,
        configurations=1 + len(measured) + len(predicted),
        measured=int(choice.pick.measured) + len(measured),
    )


def unmeasured(situation: Situation, among: Collection[Config] | None = None) -> list[Config]:
    """What was only predicted and may be used: nothing like it failed, nor are workers too many.

    Of ``among``, or of what a sweep predicted.
    """
    run = situation.run
    if among is None:
        among = () if run.prediction is None else [cell.config for cell in run.prediction.cells]
    if not situation.as_measured or not among:
        return []
    faults = (t for t in run.trials if t.failure is not None and t.numa_binding is None)
    found, failed = Integrity.of(run), {trial.config for trial in faults}
    limits = situation.constraints
    most = math.inf if limits.max_workers is None else limits.max_workers
    if run.header.target.kind == "iterable":
        most = min(most, found.worked)  # how many its shards feed only a trial shows
    known = {t.config for t in run.completed if t.purpose == "measure"}
    cells = [
        config
        for config in among
        if config not in known
        and config.num_workers <= most
        and not found.is_useless(config)
        and not any(config.asks_as_much_as(each) for each in failed)
    ]
    memory = limits.max_ram_bytes, limits.max_shm_bytes
    if memory == (None, None) or not cells or not situation.is_calibrated:
        return cells
    try:
        needy, _ = candidates_of(situation, cells)
    except UsageError:  # its batches cost nothing
        return cells
    return [each.config for each in needy if breach(each, situation) is None]


def judge(
    choice: Choice,
    certificate: Certificate | None,
    *,
    named: bool = False,
    faster: bool = False,
) -> tuple[Confidence, str]:
    """The confidence and one sentence: the gravest doubt, else what is certain.

    Of ``named`` settings it says that it is of those: of all it may be less sure. ``faster`` is
    whether one seems so that was not measured, as ``perhaps_faster`` has it.
    """
    which = "asked for" if named else ""
    doubt = next(_doubts(choice), None)
    if doubt is not None:
        return doubt[0], doubt[1] + _by_model(choice, certificate, which)
    if certificate is None:
        return "low", "nothing else that may be chosen has a rate to compare with"
    pick = choice.pick
    disturbed = disturbed_text(pick.noisy, len(pick.trials))
    # The certificate holds for the machine as it was, which others may have made another one.
    crowded = 2 * pick.noisy > len(pick.trials)
    near = certificate.text_of(which) + (f"; its trials: {disturbed}" if crowded else "")
    if certificate.shown > MEDIUM:
        return "low", near
    derived_s = choice.situation.derived_step_s
    if derived_s is not None:
        step = format_duration(derived_s)
        return "medium", f"a step of {step} was not measured: sweep with --step-time to be sure"
    # Near the best does not mean that it beats what costs less.
    cheaper = (each for each in choice.allowed[: choice.allowed.index(pick)] if each.measured)
    ends = (choice.speeds.ratio(each.key, pick.key).ends for each in cheaper)
    alike = "; a cheaper one may be as fast" if any(low <= 1 <= high for low, high in ends) else ""
    high = certificate.epsilon <= HIGH and not crowded
    alike += "; one that was not measured may be faster" if high and faster else ""
    return "high" if high and not faster else "medium", near + alike


def _by_model(choice: Choice, certificate: Certificate | None, which: str) -> str:
    """How near the best a choice is that was only predicted; empty for one that was measured."""
    near = None if choice.pick.measured else certificate or _nearness(choice, ())
    if near is None:
        return ""
    if near.epsilon > USELESS:
        return "; how near the best it is, the model can't say"
    said = near.text_of(which)
    return f"; by the model{',' if said.startswith('of ') else ''} {said}"


def perhaps_faster(
    pick: Candidate, others: Sequence[Candidate], speeds: Speeds, situation: Situation
) -> Candidate | None:
    """What no trial shows, keeps the limits, and itself seems over 3 % faster than a measured pick.

    The pick with workers that persist, whose steady rate trials show, if that alone is; else the
    cheapest that is near the best of ``others``, which are in that order. ``None`` where the pick
    keeps the step fed.
    """
    wait = speeds.wait_fraction(pick)
    if not pick.measured or (wait is not None and wait <= FED_WAIT_FRACTION):
        return None
    rates = {
        each.key: speeds.rate(each.key).value
        for each in others
        if not each.measured and breach(each, situation) is None
    }
    now = speeds.rate(pick.key).value
    faster = [each for each in others if NEAR * rates.get(each.key, 0.0) > now]
    kept = dataclasses.replace(pick.config, persistent_workers=True)
    same = (each for each in faster if each.config == kept)
    near = (each for each in faster if rates[each.key] >= NEAR * max(rates.values()))
    return next(itertools.chain(same, near), None)


def _doubts(choice: Choice) -> Iterator[tuple[Confidence, str]]:
    """What no rate shows, the gravest first, and the confidence that it leaves."""
    pick, there, run = choice.pick, choice.situation, choice.situation.run
    found = Integrity.of(run)
    workers, ranks = pick.config.num_workers, there.constraints.ranks
    size = pick.config.batch_size
    if sign := found.doubt(workers):
        yield "low", f"{inside(sign)}: each worker may repeat what the others give"
    seen = {t.config.num_workers for t in run.trials if t.failure is None and t.epoch_samples}
    if found.truncated and workers not in seen:
        early = f"epochs end early with num_workers={min(found.truncated)}"
        yield "low", f"{early}, and no whole epoch was measured with num_workers={workers}"
    if not pick.measured:
        yield from _doubts_of_prediction(choice)
        return
    if there.extrapolated:
        name = there.machine.hostname
        known = f"nothing was measured on {name}: only its cores and memory are known"
        tried = [trial.config for trial in run.completed]
        left = f"more workers than {max(each.num_workers for each in tried)}"
        # That which all trials were given is no choice.
        left += ", other batch sizes" if {e.batch_size for e in tried} == {size} != {None} else ""
        yield "low", f"{known}; not considered: {left}"
    if any(ONE_BATCH_SIGN in trial.warnings for trial in pick.trials):
        yield "low", ONE_BATCH_SIGN
    if there.other_ranks:
        measured = f"{_loaders(there.launched)} measured, not {ranks} at once"
        yield "low", f"estimated, as {measured}"
    if pick.failures:
        yield "low", f"{pick.name} also failed {times(len(pick.failures))}"


def _loaders(launched: int) -> str:
    return "one loader was" if launched == 1 else f"{launched} ranks were"


def _doubts_of_prediction(choice: Choice) -> Iterator[tuple[Confidence, str]]:
    """The same of a choice that was only predicted, which is never sure."""
    there, rate = choice.situation, choice.speeds.rate(choice.pick.key)
    run, known = there.run, there.run.calibration
    mine, other, ranks = run.header.machine, there.machine, there.constraints.ranks
    agreed, disagrees = agreement(run), ""
    if agreed is not None and agreed.outside:
        disagrees = (
            f"the model disagrees with {agreed.outside} of {agreed.configs} measured "
            f"configurations (by up to {agreed.worst:.2g}x)"
        )
    poor = agreed is not None and 2 * agreed.outside >= agreed.configs
    lower = 1.0 if rate.low is None or rate.value <= 0 else 1 - rate.low / rate.value
    unseen = there.as_measured and run.prediction is not None and not run.completed
    usable = mine.usable_cores
    crowd = [each.noisy and each.node_usage.is_crowded(usable) for each in run.completed]
    crowded = 2 * sum(crowd) > len(crowd)
    better = "on a quieter machine" if crowded else "for longer"
    grave = {
        f"{disagrees}: measure before you rely on it": poor,
        there.speed.doubt: bool(there.speed.doubt),
        f"it was measured on {mine.hostname}, and nothing on {other.hostname}": (
            there.extrapolated
        ),
        f"its rate may be {percent(lower)} lower: measure {better}": lower > USELESS,
        "no trial has verified the prediction: go on with dlprof sweep --resume": unseen,
    }
    cores = known.available_cores if known is not None else None
    had, free = there.cores if cores is None else cores, there.cores - there.neighbours
    lesser = {
        f"{_loaders(there.launched)} measured, not {ranks} at once": there.other_ranks,
        f"{had:.1f} cores were available when it was measured, not {free:.3g}": (free > 2 * had),
        disagrees: bool(disagrees),
        "no trial ran under such conditions": there.by_model,
        "no trial measured settings like these": agreed is None,
        "the model agrees with the trials, but these settings were not measured": True,
    }
    yield from (("low", text) for text in (known.doubts if known is not None else ()))
    yield from (("low", text) for text, holds in grave.items() if holds)
    yield from (("medium", text) for text, holds in lesser.items() if holds)
