"""The diagnosis of one configuration: all rules, what they find in its order, and the stalls."""

from __future__ import annotations

import dataclasses
import math
import statistics
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

from dlprof.advise import thresholds as at
from dlprof.advise.findings import dataset, loader, machine
from dlprof.advise.findings.claims import (
    Claim,
    Gain,
    Place,
    best_of_measured,
    bound,
    changed,
    competes,
    fix_of,
    gain_of,
    most_by_step,
    mostly_waits,
    predicted_gain,
    script_gain,
    starts_s,
    tried_in_vain,
)
from dlprof.advise.findings.evidence import Costs, Evidence, Observation, StageTime
from dlprof.advise.findings.loader import MORE_PAY
from dlprof.advise.wording import (
    FIRST_EPOCH,
    NO_LIMIT,
    TEN_EPOCHS,
    as_fast,
    between,
    even_shards,
    factor_text,
    inside,
    severity_of,
)
from dlprof.advise.wrong_data import REPEATED, found_in
from dlprof.records import (
    SOME_SHARED,
    WHILE_MEASURED,
    Config,
    Diagnosis,
    Estimate,
    Finding,
    FindingCode,
    Fix,
    Run,
    Stalls,
    WithoutPart,
)
from dlprof.records.findings import LoaderPart
from dlprof.records.integrity import NEVER_ASKED
from dlprof.stats.belief import NEAR
from dlprof.stats.intervals import typical
from dlprof.units import format_duration


@dataclasses.dataclass(frozen=True, slots=True)
class Cause:
    """One cause."""

    code: FindingCode  # which
    place: Place  # where it belongs; within one, the more expensive comes first
    rule: Callable[[Evidence], Claim | None]  # looks for it; ``None`` where it isn't
    # The configuration worth a trial, which fixes it if it is the cause; ``None`` where no setting
    # shows it.
    remedy: Callable[[Evidence], Config | None] | None = None


TABLE: tuple[Cause, ...] = (
    Cause("memory.shm", Place.BROKEN, machine.shared),
    Cause("memory.limit", Place.BROKEN, machine.limit),
    Cause("memory.growth", Place.BROKEN, machine.growth),
    Cause("workers.unfed", Place.BROKEN, dataset.unfed),
    Cause("consumer", Place.CONSUMER, loader.consumer),
    Cause("cpu.threads", Place.FAULT, machine.threads, machine.single_threaded),
    Cause("cpu.affinity", Place.FAULT, machine.affinity),
    Cause("cpu.quota", Place.FAULT, machine.quota),
    Cause("cpu.oversubscribed", Place.FAULT, machine.oversubscribed, machine.enough_workers),
    Cause("cpu.neighbours", Place.BEHIND, machine.neighbours),
    Cause("dataset.heavy", Place.BEHIND, dataset.heavy),
    Cause("memory.faults", Place.FAULT, machine.faults),
    Cause("startup", Place.BEHIND, loader.startup, loader.kept_workers),
    Cause("main.sampler", Place.FAULT, loader.sampler),
    Cause("main.pin", Place.FAULT, loader.pin, loader.unpinned),
    Cause("main.receive", Place.FAULT, loader.receive, loader.lighter),
    Cause("transfer.pageable", Place.FAULT, machine.pageable, machine.pinned_copies),
    Cause("transfer.link", Place.FAULT, machine.link),
    Cause("step.slowed", Place.FAULT, machine.slowed),
    Cause("gpu.neighbours", Place.BEHIND, machine.device_neighbours),
    Cause("order.blocking", Place.FAULT, loader.order, loader.unordered),
    Cause("prefetch.shallow", Place.FAULT, loader.shallow, loader.deeper),
    Cause("lock", Place.FAULT, loader.lock),
    Cause("collate", Place.FAULT, loader.collate),
    Cause("too_few_workers", Place.SETTING, loader.too_few_workers, loader.more_workers),
    Cause("too_many_workers", Place.BEHIND, loader.too_many_workers, loader.fewer_workers),
    Cause("fetch.io", Place.NATURE, loader.fetch_io),
    Cause("fetch.cpu", Place.NATURE, loader.fetch_cpu),
)
"""In the order in which equal causes are listed: the rarer and graver first."""


_IN_STEP: frozenset[FindingCode] = frozenset({"transfer.pageable", "transfer.link", "step.slowed"})
"""What makes the consumer's own part shorter, so that it is not the limit yet. It matters even
where the step is the limit, as does waste."""


def rows(view: Evidence) -> Iterator[Cause]:
    """The causes that come into question."""
    fed, also = view.limit == "consumer", {*_IN_STEP, "too_many_workers", "cpu.neighbours"}
    if loader.starting_leads(view) and (view.script is None or view.script.loader.epochs > 1):
        also.add("startup")  # before each of its epochs the step waits
    for row in TABLE:
        if not fed or row.place <= Place.CONSUMER or row.code in also:
            yield row


def remedies(view: Evidence) -> list[Config]:
    """Configurations worth a trial that the target can have, the gravest cause first, each once."""
    asked = (None if row.remedy is None else row.remedy(view) for row in rows(view))
    return [
        config
        for config in dict.fromkeys(each for each in asked if each is not None)
        if config != view.config and not view.why_fixed(config)
        if view.integrity.fault(config) is None
    ]


class Placed(NamedTuple):
    """A finding where it belongs, with the settings that it asks for, where it asks for any.

    Its fix may name none of them, as where the user's own class doesn't take them.
    """

    place: Place
    finding: Finding
    asked: Config | None = None


WRONG_DATA: frozenset[FindingCode] = frozenset(
    {"data.shared_file", "data.duplicated", "data.truncated"}
)
_CERTAIN: frozenset[FindingCode] = WRONG_DATA | {
    *("cpu.neighbours", "cpu.quota", "cpu.affinity", "workers.unfed"),
    *("memory.growth", "memory.limit", "memory.shm"),
}
"""Causes that a disturbed machine doesn't put in doubt, or that are the disturbance itself."""


def diagnose(evidence: Evidence, notes: Sequence[str] = ()) -> Diagnosis:
    """What the evidence says of one configuration."""
    return Diagnosis(
        config=evidence.config,
        findings=find(evidence),
        stalls=_stalls(evidence),
        without=_without(evidence),
        trials=tuple(trial.id for trial in evidence.trials()),
        notes=tuple(notes),
        weight=evidence.weight,
    )


def _stalls(evidence: Evidence) -> Stalls | None:
    """``None`` without a step: a consumer that takes no time only waits."""
    warm_s, cold_s = (
        typical(1 / trial.batches_per_s.value for trial in trials if trial.batches_per_s)
        for trials in (evidence.plain("present"), evidence.plain("cold"))
    )
    if not evidence.has_step or evidence.mean_wait is None or warm_s is None:
        return None
    # Of the same trials: a traced step may take longer.
    resident_s = (1 - evidence.mean_wait) * warm_s
    longest_s = max(warm_s, cold_s or 0.0)
    return Stalls(
        resident_s=resident_s,
        warm_s=warm_s,
        cold_s=cold_s,
        prep_fraction=max(0.0, warm_s - resident_s) / longest_s,
        fetch_fraction=None if cold_s is None else max(0.0, cold_s - warm_s) / longest_s,
    )


def _without(view: Evidence) -> tuple[WithoutPart, ...]:
    """What each part of loading costs, by the model without it; the most expensive first."""
    costs = view.costs
    if costs is None:
        return ()
    fetch, collate, making_s = costs.fetch, costs.collate, costs.making.wall_s
    held_s = (view.waits_for_gil_s or 0.0) + view.blocked_s("lock")  # by each other
    blocked_s = max(0.0, fetch.io_s - held_s)
    paged_s = min(blocked_s, (view.usage.memory_pressure_fraction or 0.0) * making_s)
    none = StageTime()
    less: dict[LoaderPart, Costs] = {
        "storage": costs.without(blocked_s - paged_s),
        "host_cpu": dataclasses.replace(
            costs,
            fetch=StageTime(0.0, fetch.io_s),
            collate=StageTime(0.0, collate.io_s),
            put_cpu_s=0.0,
        ),
        "main_process": dataclasses.replace(costs, receive=none, dispatch=none),
    }
    if paged_s > 0:
        less["memory"] = costs.without(paged_s)
    gains = {part: predicted_gain(view, costs=each) for part, each in less.items()}
    gains["barrier"] = _without_barrier(view, costs)
    found = [
        WithoutPart(part=part, gain=gain.estimate, source=gain.source)
        for part, gain in gains.items()
        if gain is not None and gain.source != "measured"
    ]
    return tuple(sorted(found, key=lambda each: -each.gain.value))


def _without_barrier(view: Evidence, costs: Costs) -> Gain | None:
    """What all ranks would give if each went at its own pace; ``None`` where none waits there.

    Workers load on while their rank waits at the barrier, so that it is no faster than they.
    """
    ranks = [trial.ranks for trial in view.plain("present") if trial.ranks]
    if not view.rate or not any(each.barrier_fraction for those in ranks for each in those):
        return None
    loader = max(1.0, costs.rate(view.config, view.available) / view.rate)
    gains = (statistics.fmean(min(loader, each.freed) for each in those) for those in ranks)
    return bound(statistics.median(gains)).at_most(most_by_step(view))


def find(view: Evidence) -> tuple[Finding, ...]:
    """All causes that the evidence shows, the one to bet on first.

    Where the consumer is the limit, only what ends the run or is wasted is listed as well; or, in
    its place, that its batches come to the device too slowly, or that its workers start too often.
    Each next finding can't cost more than the one before it leaves, so that ``cost`` falls.
    """
    stated = [
        _stated(view, row, best_of_measured(view, claim))
        for row in rows(view)
        if (claim := row.rule(view)) is not None
    ]
    found = [each for each in stated if view.integrity.allows(each.finding, view.config)]
    wrong = view.integrity.fault(view.config) is not None
    for each in found_in(view.trials(), view.integrity, view.config):
        if each.code != "workers.unfed":  # a rule of its own knows which
            place = Place.FAULT
            if each.code in WRONG_DATA:
                # That more workers would be wrong is what keeps one or none from more, and no cause
                # of anything with several that are right.
                place = Place.BROKEN if wrong or view.workers < 2 else Place.BEHIND
            if each.code == "data.shared_file" and not each.cost:
                place = Place.BEHIND  # with these settings nothing is wrong
            found.append(Placed(place, each))
    codes = {each.finding.code for each in found}
    if "workers.unfed" in codes:  # which is why there are too many
        found = [each for each in found if each.finding.code != "too_many_workers"]
    if wrong and "consumer" not in codes and not codes.isdisjoint(WRONG_DATA):
        # Rates of wrong data are none: what would make it come faster is no advice.
        found = [each for each in found if each.place is Place.BROKEN]
    elif not codes.isdisjoint({*_IN_STEP, "startup"}):
        found = [each for each in found if each.finding.code != "consumer"]
        # Nor do others come first that take cores from the step: what can be fixed does.
        behind = {Place.CONSUMER: Place.BEHIND}
        found = [each._replace(place=behind.get(each.place, each.place)) for each in found]
    ordered = sorted(_agreeing(found, view), key=lambda each: (each.place, -each.finding.cost))
    listed, left = list[Finding](), 1.0
    for placed in _merged(ordered):
        finding = placed.finding
        cost = min(left, finding.cost)  # what those before leave to it
        left = cost or left  # one that costs nothing leaves as much
        own = dataclasses.replace(finding, cost=cost, severity=severity_of(cost))
        if (graded := _graded(placed._replace(finding=own), view)) is not None:
            listed.append(_doubted(graded, view))
    return tuple(listed)


def shown_in(run: Run) -> tuple[Finding, ...]:
    """What trials show of any run.

    That a container grows; without workers page faults, and threads that compete for the cores.
    """
    traced = {each.config: each for each in run.explanations}
    found: dict[FindingCode, Finding] = {}
    for config, shown in sorted(traced.items(), key=lambda each: -each[0].num_workers):
        own = (trial for trial in run.trials if trial.config == config)
        known = ((each, shown if each.id == shown.trial_id else None) for each in own)
        view = Evidence(
            machine=run.header.machine,
            target=run.header.target,
            config=config,
            observations=tuple(Observation(trial=one, explanation=its) for one, its in known),
            ranks=run.header.launched,
        )
        grows = machine.growth_of_containers(view) is not None
        for row in TABLE:
            asked = row.code == "memory.faults" or (row.code == "memory.growth" and grows)
            if asked and row.code not in found and (claim := row.rule(view)):
                found[row.code] = _stated(view, row, claim).finding
    # Of ranks some is of all; a profile has asked it of more than plain trials.
    plain = run.diagnosis is None and run.header.launched == 1
    one_each = run.completed if plain else ()
    alone = [trial.config for trial in one_each if not trial.config.num_workers]
    if alone:
        view = Evidence(
            machine=run.header.machine,
            target=run.header.target,
            config=min(alone, key=lambda config: config.cost_key),
            observations=tuple(Observation(trial=each) for each in one_each),
        )
        row = next(each for each in TABLE if each.code == "cpu.threads")
        if claim := machine.pool_by_trials(view):
            found[row.code] = _stated(view, row, claim).finding
    return tuple(found.values())


def _stated(view: Evidence, row: Cause, claim: Claim) -> Placed:
    """The claim as a finding: without a fix where that was tried in vain, which is said instead."""
    evidence = view.figures(claim.figures, claim.given) | {"trials": [*view.trial_ids]}
    place = row.place if claim.place is None else claim.place
    vain = tried_in_vain(view, claim.config, claim.gain)
    if vain and row.place is not Place.BROKEN:  # a fix of which is for no speed
        text = f"{claim.explanation} {vain}"
        claim = dataclasses.replace(
            claim, explanation=text, fix="", code="", argument=None, config=None, gain=None
        )
        evidence["tried"], place = vain, Place.BEHIND  # what can be fixed comes first
    gain = claim.gain
    if gain is not None:
        where = f"at a step of {format_duration(view.step_s)}" if view.step_s else "with this step"
        where = where if view.has_step else "with no training step"
        where = where if view.script is None else "in this loop"
        where += " on a quiet machine" if gain.is_alone else ""
        evidence |= {"gain_from": gain.source, "gain_trials": [*gain.trials], "gain_at": where}
        # To a whole script starts of epochs are left as well.
        evidence |= {"gain_limit": gain.limit} if gain.limit and view.script is None else {}
    cost, asked = min(1.0, max(0.0, claim.cost)), claim.config
    needs = [
        _kept(view, claim),
        _shared_out(view, claim),
        NO_LIMIT if gain is not None and (gain.may_share or _is_far(view, claim, gain)) else "",
    ]
    if any(needs):
        evidence["gain_if"] = " and ".join(filter(None, needs))
    asked = asked if asked is not None and changed(view.config, asked) else None
    stated = Finding(
        code=row.code,
        severity=severity_of(cost),
        title=claim.title,
        explanation=claim.explanation,
        evidence=evidence,
        fix=fix_of(view, claim),
        predicted_gain=None if gain is None else gain.estimate,
        cost=cost,
    )
    return Placed(place, stated, asked)


def _is_far(view: Evidence, claim: Claim, gain: Gain) -> bool:
    """Whether it predicts over twice the workers that were seen, of batches that mostly wait."""
    seen = max((trial.config.num_workers for trial in view.trials()), default=0)
    workers = 0 if claim.config is None else claim.config.num_workers
    return gain.source != "measured" and 0 < 2 * seen < workers and mostly_waits(view)


def _kept(view: Evidence, claim: Claim) -> str:
    """Of how many epochs a gain is, of a dataset that keeps samples; empty for any other."""
    if not view.target.keeps_samples or (claim.gain or claim.config) is None:
        return ""
    if claim.config is None:  # what code would bring, by what a first epoch's batches cost
        return FIRST_EPOCH
    ten = claim.config == view.having(persistent_workers=True)
    ten = ten or (view.gain is not None and view.gain(claim.config) is not None)
    ten = ten or (claim.gain is not None and claim.gain.is_alone)
    return TEN_EPOCHS if ten else FIRST_EPOCH


def _shared_out(view: Evidence, claim: Claim) -> str:
    """What must hold for the gain of more workers, as a window doesn't show an epoch's end.

    There the last worker may load alone. Empty where whole epochs were compared, or where it is a
    small part of one, which of an iterable nobody knows.
    """
    config, gain, batches = claim.config, claim.gain, view.epoch_batches
    if config is None or config.num_workers <= max(1, view.workers):
        return ""
    tried = (t for t in view.plain("present", "variant") if t.config in (view.config, config))
    if gain is not None and gain.source == "measured" and all(t.whole_epochs for t in tried):
        return ""
    if view.target.kind == "iterable":
        return even_shards(view.target, config, view.ranks, counted=view.script is None)
    if view.script is not None or not batches:  # whose epochs are computed to their end
        return ""
    rounds = math.ceil(batches / config.num_workers)  # of a batch of each worker
    even = rounds * config.num_workers < (1 + at.NOTABLE) * batches
    return "" if even else "all workers get as many batches"


def _agreeing(found: Sequence[Placed], view: Evidence) -> list[Placed]:
    """Without the lesser of two that exclude each other: more workers, and fewer.

    More of them come where a pool of main's threads does: each computes in one, so is without it.
    """
    gains = {
        each.code: each.predicted_gain.value if each.predicted_gain else 1.0 for _, each, _ in found
    }
    pool = [each.place for each in found if each.finding.code == "cpu.threads" and not view.workers]
    found = [
        each._replace(place=min(each.place, *pool))
        if pool and each.finding.code == "too_few_workers"
        else each
        for each in found
    ]
    more, fewer = gains.get("too_few_workers"), gains.get("too_many_workers")
    if more is None or fewer is None:
        return found
    wrong = "too_few_workers" if fewer > at.PAYS * more else "too_many_workers"
    return [each for each in found if each.finding.code != wrong]


def _merged(found: Sequence[Placed]) -> list[Placed]:
    """With each change of settings once: what asks for the same is one finding.

    The first one says what the second says as well: why workers are too few, in its title.
    """
    kept: dict[object, Placed] = {}
    for each in found:
        key = each.asked or id(each.finding)
        if key not in kept:
            kept[key] = each
            continue
        one, two = kept[key].finding, each.finding
        why = f": {inside(two.title)}" if one.code == "too_few_workers" else ""
        both = dataclasses.replace(
            one,
            title=one.title + why,
            explanation=f"{one.explanation} {two.explanation}",
            evidence={**one.evidence, **two.evidence, **one.evidence},
        )
        kept[key] = kept[key]._replace(finding=both)
    return list(kept.values())


def _graded(placed: Placed, view: Evidence) -> Finding | None:
    """The finding with what it brings to the whole script, and as grave as its gain is sure.

    A change by which the script loses time is not advised; fewer workers are no cause then.
    """
    place, finding, asked = placed
    gain, script, doubt, fix = finding.predicted_gain, None, "", finding.fix
    config = None if fix is not None and fix.code else asked  # which asks for more than settings
    watched = view.script is not None
    if watched and config is not None:
        script = script_gain(view, config)
        if script is None:
            gain = None if competes(view, config) else gain
            doubt = _unknown(view, config)
        else:
            gain = script_gain(view, config, loop=True)
    judged = script or gain
    if config is not None and judged is not None and place is not Place.BROKEN:
        least = NEAR if config.num_workers < view.workers else 1.0
        fewer = finding.code == "too_many_workers"
        if judged.value < least and fewer and watched:
            return None
        if (judged.value < least or _pays_later(view, config)) and not fewer:
            title = finding.title.replace(MORE_PAY, f"{MORE_PAY} in a longer script")
            finding = dataclasses.replace(finding, title=title)
            fix, gain, script = _not_paying(view, config, judged), None, None
    unseen = "" if config is None else _sharing_unseen(view, config)
    if unseen and fix is not None and fix.dataloader_kwargs:
        fix = dataclasses.replace(fix, text=f"{fix.text} {REPEATED.format(unseen)}")
    lows = [each.ends[0] for each in (gain, script) if each]
    # Workers crowd a script whose step computes on more than half of the cores, or may do so.
    cores = 0.0 if view.script is None else view.script.step_cores
    crowded = cores is None or cores > max(view.cores / 2, 1) * 1.05
    sure = min(lows, default=0.0) > 1 and not (doubt or unseen or crowded)
    if finding.severity == "high" and place is not Place.BROKEN and not sure:
        finding = dataclasses.replace(finding, severity="medium")
    if watched and config is not None and gain is not None and config.num_workers != view.workers:
        alone = gain_of(view, config)
        if alone is not None and alone.source == "model" and view.mean_wait is not None:
            # What the loop waits with other workers: of a period that is shorter by the gain. How
            # workers start changes none of that.
            left = max(0.0, 1 - (1 - view.mean_wait) * alone.value)
            shown = {"gain_workers": config.num_workers, "gain_wait_fraction": left}
            finding = dataclasses.replace(finding, evidence={**finding.evidence, **shown})
    return dataclasses.replace(
        finding, fix=fix, predicted_gain=gain, script_gain=script, doubtful=doubt
    )


def _pays_later(view: Evidence, config: Config) -> bool:
    """Whether workers would be kept for further epochs, of which the script had none."""
    script = view.script
    once = script is not None and script.loader.epochs <= 1
    return once and config == view.having(persistent_workers=True) != view.config


def _not_paying(view: Evidence, config: Config, gain: Estimate) -> Fix:
    """Instead of a change by which time is lost: that it doesn't pay, why, and what would."""
    script = view.script
    if _pays_later(view, config):
        return Fix(
            text=f"{changed(view.config, config)} pays from the second epoch on, and this script "
            "ran one."
        )
    if script is None:
        shown = as_fast(gain) if gain.is_wide else f"{factor_text(gain)}{between(gain)}"
        return Fix(text=f"{changed(view.config, config)} shows no gain: {shown}.")
    text = f"{changed(view.config, config)} would make the whole script {as_fast(gain)}"
    if config.num_workers <= view.workers:
        return Fix(text=f"{text}: it shows no gain.")
    starts = format_duration(starts_s(view, script, config))
    persist, several = config.persistent_workers, script.loader.epochs > 1
    pays = ["longer epochs" if not persist else "more epochs"]
    kept = several and not persist and view.target.against_persisting is None
    pays += ["persistent_workers=True"] if kept else []
    pays += ["workers by fork"] if view.may_fork else []
    return Fix(
        text=f"More workers don't pay in a script this short: {text}, as starting them takes "
        f"{starts} of it. What would change that: {', '.join(pays)}."
    )


def _unknown(view: Evidence, config: Config) -> str:
    """Why nobody can compute what a change brings to a script, and how to find out."""
    why, also = "Waits for this loader overlap with other work of the script", ""
    alone = "its own wait alone"
    if competes(view, config):
        why = "The step computes in several threads on the cores that workers would take. How much "
        why += "that slows it down can't be predicted"
        alone, also = "loading alone", ", once as it is and once with torch.set_num_threads(1)"
    text = (
        f"{why}: this gain is that of {alone}. Run the script with {changed(view.config, config)}"
    )
    return f"{text}{also}, and compare how long it takes."


def _sharing_unseen(view: Evidence, config: Config) -> str:
    """Why it isn't known whether more workers share samples out; empty where it may be."""
    script = view.script
    if view.target.kind != "iterable" or config.num_workers <= max(1, view.workers):
        return ""
    unshared = view.integrity.unshared
    right = (each for each in view.trials() if each.failure is None and each.id not in unshared)
    asks = None if script is None else script.loader.asks_worker
    if asks or any(trial.config.num_workers > 1 for trial in right):
        return ""
    never, same = (sign in unshared.values() for sign in (NEVER_ASKED, SOME_SHARED))
    if script is not None:
        never = asks is False
    if same and not never:
        return "gave some of the same samples in several workers"
    return "never asks get_worker_info()" if never else "wasn't seen with several workers"


def _doubted(finding: Finding, view: Evidence) -> Finding:
    if finding.code in _CERTAIN:
        return finding
    doubts = [finding.doubtful] if finding.doubtful else []
    if view.is_noisy and view.others >= at.OTHERS * view.cores:
        kept = f"Other processes kept {view.others:.1f} of {view.cores:g} cores busy"
        doubts.append(f"{kept} {WHILE_MEASURED}.")
    elif view.is_noisy and view.disagrees:
        apart = f"Trials of the same settings differ by {view.unsteady:.1f}x"
        doubts.append(f"{apart}: something changed {WHILE_MEASURED}.")
    elif view.is_noisy:
        doubts.append(f"Batches came unevenly {WHILE_MEASURED}.")
    return dataclasses.replace(finding, doubtful=" ".join(doubts)) if doubts else finding
