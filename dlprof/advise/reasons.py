"""Why this configuration and no other: claims with the trials that prove them.

Each function looks for one kind of reason and gives ``None`` where it does not apply; ``REASONS``
lists them in the order in which they are told.
"""

from __future__ import annotations

import dataclasses
import statistics
from collections.abc import Callable, Sequence

from dlprof.advise.candidates import Candidate, evidence_ids, rest_on_one_batch
from dlprof.advise.choice import WITHIN, Choice
from dlprof.advise.effective import cores_share
from dlprof.advise.pinning import gain_words, pin_gains, typical
from dlprof.advise.wording import factor, figures, percent
from dlprof.records import Config, Reason, Run, Trial
from dlprof.stats import NEAR
from dlprof.units import counted, format_duration, format_rate

_CORES_ARE_THE_LIMIT = 0.9
"""Own cores over available ones from which a loader counts as bound by the CPU."""

_WANTS_CORES = 0.1
"""Share of run-queue wait from which a loader counts as wanting more cores than it got."""

_LEAST_CORES = 0.5
"""A loader that uses less is not limited by computing."""

_WORTH_TELLING = 0.1
"""Share of the cores that neighbours keep busy from which it is worth a sentence."""

_SURELY = 0.975

_TOLD = 2.0
"""A ratio whose interval is wider than this, high over low, is not told as a figure."""

_MOST_FAILURES = 5
_TRANSIENT_S = 1.0


def explain(choice: Choice) -> list[Reason]:
    """All reasons that apply, the most telling first."""
    found = (reason(choice) for reason in REASONS)
    return [each for each in found if each is not None]


def conditions(run: Run, choice: Choice) -> list[Reason]:
    """What the figures of the pick rest on, where that is not what they seem to."""
    trials, ids = choice.pick.trials, {"trials": choice.pick.trial_ids}
    found = []
    if rest_on_one_batch(run, trials):
        claim = (
            "The rates rest on the size of one batch, which an older dlprof took for that of all: "
            "sweep again"
        )
        found.append(Reason(claim=claim, evidence=ids))
    paid = [trial.transient_s for trial in trials if trial.transient_s is not None]
    once_s = statistics.median(paid) if paid else 0.0
    if once_s >= _TRANSIENT_S:
        claim = (
            "Its first batches are slower than its steady rate: that costs a training "
            f"{format_duration(once_s)} once"
        )
        found.append(Reason(claim=claim, evidence={**ids, "transient_s": once_s}))
    return found


def neighbours(run: Run) -> list[Reason]:
    """That the machine was not the sweep's alone, where it was not."""
    others = [trial.usage.other_cpu_cores for trial in run.completed]
    known = [cores for cores in others if cores is not None]
    cores = run.header.machine.usable_cores
    if not known or statistics.median(known) < _WORTH_TELLING * cores:
        return []
    busy = statistics.median(known)
    claim = f"Other processes kept {busy:.1f} of {cores:g} cores busy while this was measured"
    return [Reason(claim=claim, evidence={"other_cpu_cores": busy})]


def failures(candidates: Sequence[Candidate]) -> list[Reason]:
    """What failed or was skipped, and why, in the words of the failure itself."""
    skipped: dict[str, list[Candidate]] = {}
    failed: list[Candidate] = []
    for each in candidates:
        first = next(iter(each.failures), None)
        if first is not None and first.outcome == "skipped":
            kind = "" if first.failure is None else first.failure.kind
            skipped.setdefault(kind, []).append(each)
        elif first is not None:
            failed.append(each)
    reasons = [_failure([each]) for each in failed[:_MOST_FAILURES]]
    more = failed[_MOST_FAILURES:]
    if more:
        claim = f"{counted(len(more), 'more configuration')} failed"
        reasons.append(Reason(claim=claim, evidence={"trials": _failed_trials(more)}))
    return reasons + [_failure(group) for group in skipped.values()]


def _failure(alike: Sequence[Candidate]) -> Reason:
    """Why the first of some failed or was skipped, and how many more for the same."""
    first = alike[0].failures[0]
    why = first.outcome if first.failure is None else first.failure.message
    more = f" and {len(alike) - 1} more" if len(alike) > 1 else ""
    claim = f"{alike[0].name}{more} {failed_or_skipped(first, count=len(alike))}: {why}"
    return Reason(claim=claim, evidence={"trials": _failed_trials(alike)})


def _failed_trials(candidates: Sequence[Candidate]) -> list[str]:
    return [trial.id for each in candidates for trial in each.failures]


def failed_or_skipped(trial: Trial, *, count: int = 1) -> str:
    """The verb of a trial without figures: what can't work here was not tried.

    Args:
        trial: The trial.
        count: Of how many configurations it stands.
    """
    if trial.outcome != "skipped":
        return "failed"
    return "was skipped" if count == 1 else "were skipped"


def default_of(candidates: Sequence[Candidate], config: Config) -> Candidate | None:
    """PyTorch's own default, ``num_workers=0``, at the batch size of a configuration."""
    plain = Config(batch_size=config.batch_size)
    return next((each for each in candidates if each.config == plain), None)


def counterpart(candidates: Sequence[Candidate], pick: Candidate, setting: str) -> Candidate | None:
    """The candidate that differs from the pick in one switch only, where it was measured."""
    return next((c for c in candidates if _differing(c.config, pick.config) == [setting]), None)


def _differing(one: Config, two: Config) -> list[str]:
    """The settings in which two configurations differ."""
    names = [field.name for field in dataclasses.fields(Config)]
    return [name for name in names if getattr(one, name) != getattr(two, name)]


def _compare(choice: Choice, one: Candidate, two: Candidate, claim: str) -> Reason:
    """A claim about two configurations; ``{}`` in it is the ratio of their rates.

    One that is known to no better than a factor of two is not told as a figure.
    """
    ratio = choice.speeds.ratio(one.key, two.key)
    evidence: dict[str, object] = {"trials": evidence_ids([one, two]), "ratio": figures(ratio)}
    if ratio.low is not None and ratio.high is not None and ratio.high > _TOLD * ratio.low:
        sure = f"{one.name} is faster than {two.name}" if ratio.low > 1 else ""
        sure = f"{one.name} is slower than {two.name}" if ratio.high < 1 else sure
        told = f"{sure}, but by how much" if sure else f"How {one.name} compares with {two.name}"
        more = "a larger --budget or a quieter machine would tell"
        return Reason(claim=f"{told} is too uncertain: {more}", evidence=evidence)
    return Reason(claim=claim.format(factor(ratio)), evidence=evidence)


def _feeding(choice: Choice) -> Reason | None:
    """Whether the training step is kept fed."""
    wait = choice.speeds.wait_fraction(choice.pick)
    if choice.fed is None or wait is None:
        return None
    step_s = choice.situation.constraints.step_s
    step = "the step" if step_s is None else f"a step of {format_duration(step_s)}"
    waits = f"with {choice.pick.name} the step waits {percent(wait)} of the time"
    if choice.situation.derived_step_s is not None:
        waits += ", reckoned from rates that were not measured with that step"
    claim = f"No configuration keeps {step} fed; {waits}"
    if choice.fed:
        claim = f"The cheapest configuration that keeps {step} fed: {waits}"
    evidence = {"trials": choice.pick.trial_ids, "wait_fraction": wait}
    return Reason(claim=claim, evidence=evidence)


def _present(choice: Choice) -> Reason | None:
    """The gain over what the target's DataLoader is set to now, or that there is none."""
    pick, present = choice.pick, choice.present
    if present is None:
        return None
    if present not in choice.ties:
        claim = f"{pick.name} gave {{}} of the present settings, {present.name}"
        return _compare(choice, pick, present, claim)
    as_good = f"Your present settings, {present.name}, are as good as any"
    if present is not pick:
        claim = f"{as_good}: {pick.name} is cheaper and gave {{}} of them"
        return _compare(choice, pick, present, claim)
    others = [each for each in choice.allowed if each is not pick]
    if not others:
        return None
    rival = choice.speeds.fastest(others)
    claim = f"{as_good}: the fastest of the others, {rival.name}, gave {{}} of them"
    return _compare(choice, rival, present, claim)


def _default(choice: Choice) -> Reason | None:
    """The gain over PyTorch's default, or that it is enough."""
    pick = choice.pick
    default = default_of(choice.allowed, pick.config)
    if default is None or default is choice.present:
        return None  # not measured, or told as the present settings already
    if default.config != pick.config:
        claim = f"{pick.name} gave {{}} of num_workers=0, PyTorch's default"
        return _compare(choice, pick, default, claim)
    others = [each for each in choice.allowed if each.config.num_workers]
    if not others:
        return None
    rival = choice.speeds.fastest(others)
    claim = f"num_workers=0 is enough: the fastest with workers, {rival.name}, gave {{}} of it"
    return _compare(choice, rival, pick, claim)


def _fewer(choice: Choice) -> Reason | None:
    """What saving workers would cost: speed, or that the step is surely fed."""
    fewer = [c for c in choice.allowed if 0 < c.config.num_workers < choice.pick.config.num_workers]
    if not fewer:
        return None
    rival = choice.speeds.fastest(fewer)
    if rival in choice.undecided:
        return None  # it is not known to be slower, which is told below
    surely = choice.speeds.chance(choice.pick.key, rival.key) >= _SURELY
    cost = "are slower" if surely else "are likely slower"
    if rival not in choice.pool and choice.speeds.ratio(rival.key, choice.pick.key).value >= NEAR:
        cost = "would not surely keep the step fed"
    claim = f"Fewer workers {cost}: {rival.name} gave {{}} of it"
    return _compare(choice, rival, choice.pick, claim)


def _more(choice: Choice) -> Reason | None:
    """That more workers, or deeper queues, gain nothing that can be told."""
    pick, best = choice.pick, choice.best
    if best is not pick:
        claim = f"{best.name} was the fastest, at {{}} of it, and it is likely {WITHIN} of that"
        return _compare(choice, best, pick, claim)
    more = [c for c in choice.pool if c.config.num_workers > pick.config.num_workers]
    if not more or not pick.config.num_workers:
        return None
    rival = choice.speeds.fastest(more)
    return _compare(choice, rival, pick, f"More workers don't pay: {rival.name} gave {{}} of it")


def _persistent(choice: Choice) -> Reason | None:
    """What keeping workers between epochs earns."""
    other = counterpart(choice.allowed, choice.pick, "persistent_workers")
    batches = choice.situation.epoch_batches(choice.pick.config)
    if other is None or not choice.pick.config.persistent_workers or batches is None:
        return None
    claim = (
        f"persistent_workers=True gave {{}} over epochs of {batches:,.0f} batches, "
        f"as starting workers anew takes {format_duration(other.epoch_turnover_s)}"
    )
    return _compare(choice, choice.pick, other, claim)


def _pin(choice: Choice) -> Reason | None:
    """What pinning earns, as measured end to end."""
    other = counterpart(choice.allowed, choice.pick, "pin_memory")
    if other is None:
        return None
    pinned = choice.pick if choice.pick.config.pin_memory else other
    plain = other if pinned is choice.pick else choice.pick
    reason = _compare(choice, pinned, plain, "pin_memory=True gave {} of pin_memory=False")
    gain = typical(pin_gains([*plain.trials, *pinned.trials]))
    if gain is None:
        return reason
    saved = {"total_s": gain.total_s, "copy_s": gain.copy_s, "receive_s": gain.receive_s}
    costs = {
        "thread_cpu_s": gain.costs.thread_cpu_s,
        "thread_run_queue_s": gain.costs.thread_run_queue_s,
        "pinned_bytes": gain.costs.pinned_bytes,
        "alloc_s": gain.costs.alloc_s,
    }
    return Reason(
        claim=f"{reason.claim}: {gain_words(gain)}",
        evidence={**reason.evidence, "saved_per_batch": saved, "pin_costs": costs},
    )


def _undecided(choice: Choice) -> Reason | None:
    """A cheaper configuration that more repeats might yet show to be as fast."""
    if not choice.undecided or choice.pick is choice.present:
        return None
    rival = choice.speeds.fastest(choice.undecided)
    claim = f"{rival.name} is cheaper and not ruled out: it gave {{}} of it"
    return _compare(choice, rival, choice.pick, claim)


def _cores(choice: Choice) -> Reason | None:
    """Whether cores are what limits the rate: it used what neighbours left it, and wanted more."""
    seen = [
        (usage.own_cpu_cores, usage.available_cpu_cores, usage.run_queue_wait_fraction)
        for usage in (trial.usage for trial in choice.pick.trials)
        if usage.own_cpu_cores is not None and usage.available_cpu_cores
    ]
    if not seen:
        return None
    own = statistics.median(row[0] for row in seen)
    available = statistics.median(row[1] for row in seen)
    waits = [row[2] for row in seen if row[2] is not None]
    wanted_more = not waits or statistics.median(waits) > _WANTS_CORES
    whole_machine = own >= _CORES_ARE_THE_LIMIT * choice.situation.machine.usable_cores
    if own < _CORES_ARE_THE_LIMIT * available or not (wanted_more or whole_machine):
        return None
    if own < _LEAST_CORES:
        return None  # a loader that waits, on a machine that neighbours fill
    claim = f"Cores are the limit: it used {own:.1f} of the {available:.1f} that could be had"
    evidence = {"trials": choice.pick.trial_ids, "own_cpu_cores": own}
    return Reason(claim=claim, evidence={**evidence, "available_cpu_cores": available})


def _ranks(choice: Choice) -> Reason | None:
    """How far cores are shared by more loaders than were measured."""
    shares = [cores_share(trial, choice.situation) for trial in choice.pick.trials]
    share = statistics.median(shares)
    if share >= 1:
        return None
    ranks, cores = choice.situation.constraints.ranks, choice.situation.machine.usable_cores
    rate = choice.speeds.rate(choice.pick.key).value
    loaders = f"{ranks} loaders" if ranks > 1 else "the loader"
    claim = (
        f"{cores:g} cores hold {loaders} to about {percent(share)} of the measured rate, "
        f"{format_rate(rate)} samples/s for each"
    )
    return Reason(claim=claim, evidence={"trials": choice.pick.trial_ids, "share": share})


REASONS: tuple[Callable[[Choice], Reason | None], ...] = (
    _feeding,
    _present,
    _default,
    _fewer,
    _more,
    _persistent,
    _pin,
    _undecided,
    _cores,
    _ranks,
)
"""One function for each kind of reason, in the order of telling."""
