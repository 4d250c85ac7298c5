"""Why this configuration and no other: claims with what proves them, measured or predicted.

Each function looks for one kind of reason and gives ``None`` where it does not apply; ``REASONS``
lists them in the order in which they are shown.
"""

from __future__ import annotations

import dataclasses
import statistics
from collections.abc import Callable, Sequence

from dlprof.advise.candidates import Candidate, evidence_ids
from dlprof.advise.choice import Choice
from dlprof.advise.pinning import gain_words, pin_gains, typical
from dlprof.advise.speeds import cores_share
from dlprof.advise.thresholds import (
    CORES_ARE_THE_LIMIT,
    FED_WAIT_FRACTION,
    LEAST_CORES,
    PAYS,
    SHARED,
    SHOWN,
    SURELY,
    TRANSIENT_S,
    WANTS_CORES,
    WITHIN,
)
from dlprof.advise.wording import factor, figures, percent
from dlprof.records import Config, PredictedCase, Reason, Run, Trial
from dlprof.stats import NEAR, believe, observe
from dlprof.units import counted, format_duration, format_rate

_MOST_FAILURES = 5

CAVEATS = {
    "in_order": (
        "but batches then come in another order in every run, so that runs can't be repeated "
        "exactly"
    ),
    "sharing_strategy": (
        'set it with torch.multiprocessing.set_sharing_strategy("file_system"); workers that are '
        "killed may leave files in /dev/shm"
    ),
    "worker_threads": "limit threads in workers, by worker_init_fn or OMP_NUM_THREADS",
}
"""What settings beside the swept ones cost, and how they are set."""


def explain(choice: Choice) -> list[Reason]:
    """All reasons that apply, the most telling first."""
    found = (reason(choice) for reason in REASONS)
    return [each for each in found if each is not None]


def conditions(choice: Choice) -> list[Reason]:
    """What the figures of the pick rest on, where that is not what they seem to."""
    trials, ids = choice.pick.trials, {"trials": choice.pick.trial_ids}
    found = []
    paid = [trial.transient_s for trial in trials if trial.transient_s is not None]
    once_s = statistics.median(paid) if paid else 0.0
    if once_s >= TRANSIENT_S:
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
    if not known or statistics.median(known) < SHARED * cores:
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


def levers(run: Run, pick: Config) -> list[Reason]:
    """Settings beside the swept ones that were tried with the pick and gained something."""
    tried = [trial for trial in run.trials if trial.purpose == "lever"]
    seen = [each for trial in tried if (each := observe(trial)) is not None]
    found = []
    for config in dict.fromkeys(trial.config for trial in tried):
        changed = _differing(pick, config)
        if len(changed) != 1 or changed[0] not in CAVEATS:
            continue  # tried with another pick, in an earlier session of the sweep
        if not {config.key, pick.key} <= {each.key for each in seen}:
            continue
        name, ratio = changed[0], believe(seen).ratio(config.key, pick.key)
        if ratio.value >= PAYS and ratio.low is not None and ratio.low > 1:
            claim = f"{name}={getattr(config, name)!r} gave {factor(ratio)} of it; {CAVEATS[name]}"
            ids = [trial.id for trial in tried if trial.config in {config, pick}]
            found.append(Reason(claim=claim, evidence={"trials": ids, "ratio": figures(ratio)}))
    return found


def foretold(run: Run, choice: Choice) -> list[Reason]:
    """How much was predicted and how much measured, where a model chose what to measure."""
    prediction = run.prediction
    if prediction is None or not choice.situation.as_measured:
        return []
    measured = {trial.config for trial in run.completed if trial.purpose == "measure"}
    explained_s = sum(trial.measured_s for trial in run.trials if trial.purpose == "explain")
    whole = counted(len(prediction.cells), "configuration")
    from_what = f" from {format_duration(explained_s)} of traced loading" if explained_s else ""
    claim = f"{whole} predicted{from_what}, and {len(measured)} measured"
    return [Reason(claim=claim, evidence={"cells": len(prediction.cells)})]


def assumed(choice: Choice, cases: Sequence[PredictedCase]) -> list[Reason]:
    """What a predicted answer takes for granted, and what background load and ranks make of it.

    Args:
        choice: What was chosen.
        cases: The machine with and without its background load.
    """
    situation, pick = choice.situation, choice.pick
    found, ranks = [], situation.constraints.ranks
    if len(cases) > 1:
        shared, alone = (case.expected.samples_per_s.value for case in cases[:2])
        others, cores = cases[0].neighbours, situation.cores
        busy = f"Others keep {others:.3g} of {cores:g} cores busy"
        if others > cores:
            busy = f"{others:.3g} threads of others want the {cores:g} cores"
        claim = f"{busy}: that leaves {percent(shared / alone)} of what it would give alone"
        if shared / alone > NEAR:
            claim = f"{busy}, which would cost it nothing to speak of"
        evidence = {"shared_samples_per_s": shared, "dedicated_samples_per_s": alone}
        found.append(Reason(claim=claim, evidence=evidence))
    if ranks > 1:
        rate = choice.speeds.rate(pick.key).value
        whole = f"{format_rate(rate * ranks)} samples/s in all"
        claim = f"{ranks} ranks share {situation.cores:g} cores: {whole}"
        found.append(Reason(claim=claim, evidence={"samples_per_s": rate}))
    doubt = [situation.speed.doubt] if situation.speed.doubt else []
    found += [Reason(claim=f"Assumed: {note}") for note in (*situation.notes, *doubt)]
    if situation.constraints.step_s is None and pick.config.num_workers:
        claim = "No step was given, so this is for the highest rate: with --step-time fewer "
        found.append(Reason(claim=f"{claim}workers may be enough"))
    return found


def _differing(one: Config, two: Config) -> list[str]:
    """The settings in which two configurations differ."""
    names = [field.name for field in dataclasses.fields(Config)]
    return [name for name in names if getattr(one, name) != getattr(two, name)]


def _counterpart(choice: Choice, setting: str) -> Candidate | None:
    """The candidate that differs from the pick in one switch only, where it is known."""
    mine = choice.pick.config
    return next((c for c in choice.allowed if _differing(c.config, mine) == [setting]), None)


def _compare(choice: Choice, one: Candidate, two: Candidate, claim: str) -> Reason:
    """A claim about two configurations; in it, ``{gave}`` and the ratio of their rates.

    One that is known to no better than a factor of two is not shown as a figure.
    """
    ratio, measured = choice.speeds.ratio(one.key, two.key), one.measured and two.measured
    evidence: dict[str, object] = {"trials": evidence_ids([one, two]), "ratio": figures(ratio)}
    if not measured:
        evidence = {"configs": [one.key, two.key], "ratio": figures(ratio)}
    if ratio.low is not None and ratio.high is not None and ratio.high > SHOWN * ratio.low:
        is_ = "is" if measured else "would be"
        sure = f"{one.name} {is_} faster than {two.name}" if ratio.low > 1 else ""
        sure = f"{one.name} {is_} slower than {two.name}" if ratio.high < 1 else sure
        lead, colon, _ = claim.partition(": ") if ratio.high < 1 else ("", "", "")
        shown = f"{sure}, but by how much" if sure else f"How {one.name} compares with {two.name}"
        more = "a larger --budget or a quieter machine would tell" if measured else "measure both"
        return Reason(claim=f"{lead}{colon}{shown} is too uncertain: {more}", evidence=evidence)
    gave = f"{'gave' if measured else 'would give'} {factor(ratio)}"
    return Reason(claim=claim.format(gave=gave, ratio=factor(ratio)), evidence=evidence)


def _feeding(choice: Choice) -> Reason | None:
    """Whether the training step is kept fed."""
    pick, speeds = choice.pick, choice.speeds
    wait = speeds.wait_fraction(pick)
    if choice.fed is None or wait is None:
        return None
    step_s = choice.situation.constraints.step_s
    step = "the step" if step_s is None else f"a step of {format_duration(step_s)}"
    keeps, waits = ("keeps", "the step waits") if pick.measured else ("would keep", "it would wait")
    waits = f"with {pick.name} {waits} {percent(wait)} of the time"
    if choice.situation.derived_step_s is not None:
        waits += ", computed from rates that were not measured with that step"
    claim = f"The cheapest configuration that {keeps} {step} fed: {waits}"
    if not choice.fed:
        least = min(speeds.wait_fraction(each) or 0.0 for each in choice.allowed)
        claim = f"No configuration {keeps} {step} fed; {waits}"
        if least <= FED_WAIT_FRACTION:
            claim = f"Keeping {step} fed costs more between epochs than it saves; {waits}"
        elif least < NEAR * wait:
            claim += f", the least is {percent(least)}"
    evidence: dict[str, object] = {"trials": pick.trial_ids} if pick.measured else {}
    return Reason(claim=claim, evidence={**evidence, "wait_fraction": wait})


def _bound(choice: Choice) -> Reason | None:
    """What would limit it, where that is predicted."""
    found = choice.pick.prediction
    if choice.pick.measured or found is None:
        return None
    from dlprof.model import describe  # noqa: PLC0415 - loaded already, where there is a prediction

    claim = f"With {choice.pick.name} {describe(found.bound)}"
    return Reason(claim=claim, evidence={"bound": found.bound, "busy_cores": found.cores})


def _present(choice: Choice) -> Reason | None:
    """The gain over what the target's DataLoader is set to now, or that there is none."""
    pick, present = choice.pick, choice.present
    if present is None:
        return None
    if present not in choice.ties:
        claim = f"{pick.name} {{gave}} of the present settings, {present.name}"
        return _compare(choice, pick, present, claim)
    as_good = f"Your present settings, {present.name}, are as good as any"
    if present is not pick:
        claim = f"{as_good}: {pick.name} is cheaper and {{gave}} of them"
        return _compare(choice, pick, present, claim)
    others = [each for each in choice.allowed if each is not pick]
    if not others:
        return None
    rival = choice.speeds.fastest(others)
    claim = f"{as_good}: the fastest of the others, {rival.name}, {{gave}} of them"
    return _compare(choice, rival, present, claim)


def _default(choice: Choice) -> Reason | None:
    """The gain over PyTorch's default, or that it is enough."""
    pick, default = choice.pick, choice.default
    if default is None or default is choice.present:
        return None  # not known, or shown as the present settings already
    if default is not pick:
        claim = f"{pick.name} {{gave}} of num_workers=0, PyTorch's default"
        return _compare(choice, pick, default, claim)
    others = [each for each in choice.allowed if each.config.num_workers]
    if not others:
        return None
    rival = choice.speeds.fastest(others)
    claim = f"num_workers=0 is enough: the fastest with workers, {rival.name}, {{gave}} of it"
    return _compare(choice, rival, pick, claim)


def _fewer(choice: Choice) -> Reason | None:
    """What saving workers would cost: speed, or that the step is surely fed."""
    pick, rival = choice.pick, choice.fewer
    if rival is None or rival in choice.undecided:
        return None  # it is not known to be slower, which is shown below
    ratio, measured = choice.speeds.ratio(rival.key, pick.key).value, rival.measured
    if not measured and ratio >= NEAR and rival in choice.pool:
        return None
    surely = choice.speeds.chance(pick.key, rival.key) >= SURELY
    cost = "are slower" if surely else "are likely slower"
    if not measured:
        cost = "would be slower" if surely else "would likely be slower"
    if rival not in choice.pool and ratio >= NEAR:
        cost = "would not surely keep the step fed" if measured else "would not keep the step fed"
    return _compare(choice, rival, pick, f"Fewer workers {cost}: {rival.name} {{gave}} of it")


def _more(choice: Choice) -> Reason | None:
    """That more workers, or deeper queues, gain nothing that can be shown."""
    pick, best = choice.pick, choice.best
    if best is not pick and pick.measured:
        claim = (
            f"{best.name} was the fastest, at {{ratio}} of it, and it is likely {WITHIN} of that"
        )
        return _compare(choice, best, pick, claim)
    more = [c for c in choice.pool if c.config.num_workers > pick.config.num_workers]
    if not more or not pick.config.num_workers:
        return None
    rival, pay = choice.speeds.fastest(more), "don't pay" if pick.measured else "would not pay"
    return _compare(choice, rival, pick, f"More workers {pay}: {rival.name} {{gave}} of it")


def _persistent(choice: Choice) -> Reason | None:
    """What keeping workers between epochs earns."""
    pick, other = choice.pick, _counterpart(choice, "persistent_workers")
    batches = choice.situation.epoch_batches(pick.config)
    if other is None or not pick.config.persistent_workers or batches is None:
        return None
    claim = (
        f"persistent_workers=True {{gave}} over epochs of {batches:,.0f} batches, as starting "
        f"workers again takes {format_duration(other.epoch_turnover_s)}"
    )
    return _compare(choice, pick, other, claim)


def _pin(choice: Choice) -> Reason | None:
    """What pinning earns, as measured end to end."""
    other = _counterpart(choice, "pin_memory")
    if other is None or not other.measured:
        return None
    pinned = choice.pick if choice.pick.config.pin_memory else other
    plain = other if pinned is choice.pick else choice.pick
    reason = _compare(choice, pinned, plain, "pin_memory=True {gave} of pin_memory=False")
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
    if rival is choice.default or rival is choice.present:
        return None  # compared already
    claim = f"{rival.name} is cheaper and not ruled out: it {{gave}} of it"
    return _compare(choice, rival, choice.pick, claim)


def _cores(choice: Choice) -> Reason | None:
    """Whether cores are what limits the rate: it used what neighbours left it, and wanted more."""
    trials = choice.pick.trials if choice.pick.measured else ()
    seen = [
        (usage.own_cpu_cores, usage.available_cpu_cores, usage.run_queue_wait_fraction)
        for usage in (trial.usage for trial in trials)
        if usage.own_cpu_cores is not None and usage.available_cpu_cores
    ]
    if not seen:
        return None
    own = statistics.median(row[0] for row in seen)
    available = statistics.median(row[1] for row in seen)
    waits = [row[2] for row in seen if row[2] is not None]
    wanted_more = not waits or statistics.median(waits) > WANTS_CORES
    whole_machine = own >= CORES_ARE_THE_LIMIT * choice.situation.machine.usable_cores
    if own < CORES_ARE_THE_LIMIT * available or not (wanted_more or whole_machine):
        return None
    if own < LEAST_CORES:
        return None  # a loader that waits, on a machine that neighbours fill
    claim = f"Cores are the limit: it used {own:.1f} of the {available:.1f} available"
    evidence = {"trials": choice.pick.trial_ids, "own_cpu_cores": own}
    return Reason(claim=claim, evidence={**evidence, "available_cpu_cores": available})


def _ranks(choice: Choice) -> Reason | None:
    """How far cores are shared by more loaders than were measured."""
    shares = [cores_share(trial, choice.situation) for trial in choice.pick.trials]
    share = statistics.median(shares) if shares else 1.0
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
    _bound,
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
"""One function for each kind of reason, in the order of showing."""
