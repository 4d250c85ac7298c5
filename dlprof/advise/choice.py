"""The decision: the cheapest configuration that is likely within 3 % of the best, and how sure.

Never one that is estimated slower than what the user has, or than loading without workers; with a
step, of those that keep it fed.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Collection, Iterator, Sequence

from dlprof.advise.candidates import Candidate, breach
from dlprof.advise.situation import Situation, is_calibrated
from dlprof.advise.speeds import Speeds, agreement, candidates_of, cores_share
from dlprof.advise.thresholds import (
    DERIVED_MARGIN,
    EVEN,
    FED_WAIT_FRACTION,
    HIGH,
    MEDIUM,
    PERHAPS_FED_WAIT_FRACTION,
)
from dlprof.advise.wording import disturbed_text, inside, percent, times
from dlprof.errors import UsageError
from dlprof.records import (
    ONE_BATCH_SIGN,
    USELESS,
    Certificate,
    Confidence,
    Config,
    Integrity,
    Run,
)
from dlprof.stats import NEAR, PROBABILITY, RISK, Gap, mean_interval, near_best
from dlprof.units import format_duration


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


def certify(
    choice: Choice, run: Run, among: Collection[Config] | None = None
) -> Certificate | None:
    """How far from the best a choice may be, at most; ``among`` is what it was asked of.

    ``None`` for conditions that nobody measured (another machine, several ranks, what only a model
    answers), and where there is nothing to compare it with.
    """
    situation = choice.situation
    if situation.extrapolated or situation.other_ranks or situation.by_model:
        return None
    return _nearness(choice, unmeasured(situation, run, among))


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


def unmeasured(
    situation: Situation, run: Run, among: Collection[Config] | None = None
) -> list[Config]:
    """What was only predicted and may be used: nothing like it failed, nor are workers too many.

    Of ``among``, or of what a sweep predicted.
    """
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
    if memory == (None, None) or not cells or not is_calibrated(run):
        return cells
    try:
        needy, _ = candidates_of(run, situation, cells)
    except UsageError:  # its batches cost nothing
        return cells
    return [each.config for each in needy if breach(each, situation) is None]


def judge(
    choice: Choice, run: Run, certificate: Certificate | None, *, named: bool = False
) -> tuple[Confidence, str]:
    """The confidence and one sentence: the gravest doubt, else what is certain.

    Of ``named`` settings it says that it is of those: of all it may be less sure.
    """
    which = "asked for" if named else ""
    doubt = next(_doubts(choice, run), None)
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
    return "high" if certificate.epsilon <= HIGH and not crowded else "medium", near + alike


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
    """What no trial shows, keeps the limits, and seems over 3 % faster than a measured pick.

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
    least = NEAR * max(rates.values(), default=0.0)
    if least <= now:
        return None
    kept = dataclasses.replace(pick.config, persistent_workers=True)
    same = [
        each for each in others if each.config == kept and NEAR * rates.get(each.key, 0.0) > now
    ]
    return next(iter(same or (each for each in others if rates.get(each.key, 0.0) >= least)))


def _doubts(choice: Choice, run: Run) -> Iterator[tuple[Confidence, str]]:
    """What no rate shows, the gravest first, and the confidence that it leaves."""
    pick, there, found = choice.pick, choice.situation, Integrity.of(run)
    workers, ranks = pick.config.num_workers, there.constraints.ranks
    size = pick.config.batch_size
    if sign := found.doubt(workers):
        yield "low", f"{inside(sign)}: each worker may repeat what the others give"
    seen = {t.config.num_workers for t in run.trials if t.failure is None and t.epoch_samples}
    if found.truncated and workers not in seen:
        early = f"epochs end early with num_workers={min(found.truncated)}"
        yield "low", f"{early}, and no whole epoch was measured with num_workers={workers}"
    if not pick.measured:
        yield from _doubts_of_prediction(choice, run)
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


def _doubts_of_prediction(choice: Choice, run: Run) -> Iterator[tuple[Confidence, str]]:
    """The same of a choice that was only predicted, which is never sure."""
    there, rate, known = choice.situation, choice.speeds.rate(choice.pick.key), run.calibration
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
    grave = {
        f"{disagrees}: measure before you rely on it": poor,
        there.speed.doubt: bool(there.speed.doubt),
        f"it was calibrated on {mine.hostname}, and nothing was measured on {other.hostname}": (
            there.extrapolated
        ),
        f"its rate may be {percent(lower)} lower: measure for longer": lower > USELESS,
        "no trial has verified the prediction: go on with dlprof sweep --resume": unseen,
    }
    cores = known.available_cores if known is not None else None
    had, free = there.cores if cores is None else cores, there.cores - there.neighbours
    lesser = {
        f"{_loaders(there.launched)} calibrated, not {ranks} at once": there.other_ranks,
        f"{had:.1f} cores were available when it was calibrated, not {free:.3g}": (free > 2 * had),
        disagrees: bool(disagrees),
        "no trial ran under such conditions: only the model predicts them": there.by_model,
        "no trial measured settings like these: only the model predicts them": agreed is None,
        "the model agrees with the trials, but these settings were not measured": True,
    }
    yield from (("low", text) for text in (known.doubts if known is not None else ()))
    yield from (("low", text) for text, holds in grave.items() if holds)
    yield from (("medium", text) for text, holds in lesser.items() if holds)
