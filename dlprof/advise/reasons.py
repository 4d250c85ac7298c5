"""Why this configuration and no other, and how sure that is.

Reasons are claims with what proves them, measured or predicted: each function looks for one kind
and yields none where it does not apply; ``explain`` has them in the order in which they are shown.
Below are the doubts, and how near the best a choice is.
"""

from __future__ import annotations

import dataclasses
import math
import statistics
from collections.abc import Collection, Iterator, Mapping, Sequence

from dlprof.advise import thresholds as at
from dlprof.advise.candidates import saturating_workers
from dlprof.advise.choice import (
    Candidate,
    Choice,
    against_model,
    candidates_of,
    cores_share,
    differs_along,
    gather,
    mostly_waits,
    predictions,
    unmeasured,
    workers_shown,
)
from dlprof.advise.situation import Situation, measured_step, neighbours_seen
from dlprof.advise.wording import (
    EVEN_SHARDS,
    as_fast,
    background_text,
    between,
    disturbed_text,
    end_text,
    failed_or_skipped,
    inside,
    loss_text,
    percent,
)
from dlprof.records import (
    CUT_SHORT_SIGN,
    USELESS,
    WHILE_MEASURED,
    Certificate,
    Confidence,
    Config,
    Integrity,
    NumaBinding,
    PinCosts,
    PredictedCase,
    Reason,
    Run,
    Trial,
    raised_by_data,
)
from dlprof.records.record import record
from dlprof.stats.belief import NEAR, PROBABILITY, RISK, believe, observe
from dlprof.stats.intervals import typical
from dlprof.units import counted, format_bytes, format_duration, format_rate

_PIN_COSTS = ("thread_cpu_s", "thread_run_queue_s", "pinned_bytes", "alloc_s")

CAVEATS = {
    "in_order": (
        "but batches then come in a different order in each run, so runs can't be repeated exactly"
    ),
    "sharing_strategy": (
        'set it with torch.multiprocessing.set_sharing_strategy("file_system"); workers that are '
        "killed may leave files in /dev/shm"
    ),
    "worker_threads": "limit threads in workers, by worker_init_fn or OMP_NUM_THREADS",
}
"""What settings beside the swept ones cost, and how they are set."""


def explain(
    choice: Choice, limits: Sequence[Reason], cases: Sequence[PredictedCase]
) -> Iterator[Reason]:
    """All reasons that apply, the most important first; ``limits`` are those that left some out."""
    run, pick, measured = choice.situation.run, choice.pick, choice.pick.measured
    yield from _conditions(choice) if measured else ()
    for kind in (_feeding, _bound, _keeping, _present, _default, _fewer, _more, _persistent, _pin):
        yield from kind(choice)
    for kind in (_undecided, _cores, _ranks, _placement):
        yield from kind(choice)
    if measured:
        yield from _levers(run, pick.config)
        yield from _as_predicted(run, choice)
        if run.calibration is None:
            claim = "From its trials alone: the run has no calibration to predict more from"
            yield Reason(claim=claim)
    else:
        yield from _unordered(choice)
        yield from _assumed(choice, cases)
    yield from _unchecked(run, pick.config)
    yield from _neighbours(run) if measured else ()
    yield from limits
    yield from _failures(gather(run)) if measured else ()


def _conditions(choice: Choice) -> Iterator[Reason]:
    """What the figures of the pick rest on, where that is not what they seem to."""
    trials, ids = choice.pick.trials, {"trials": choice.pick.trial_ids}
    once_s = typical(trial.transient_s for trial in trials) or 0.0
    if once_s >= 1.0:
        slower = "Its first batches are slower than its steady rate"
        claim = f"{slower}, which costs a training run {format_duration(once_s)} once"
        yield Reason(claim=claim, evidence={**ids, "transient_s": once_s})
    warnings = (text for trial in trials for text in trial.warnings)
    for cut in [text for text in warnings if text.startswith(CUT_SHORT_SIGN)][:1]:
        yield Reason(claim=f"Its rate may include warm-up: {cut}", evidence=ids)


def _unchecked(run: Run, pick: Config) -> Iterator[Reason]:
    """That nobody saw whether several workers of an iterable share all samples out."""
    found, workers = Integrity.of(run), pick.num_workers
    checked = workers in {0, 1, *found.shared_out} or found.doubt(workers)
    if run.header.target.kind == "iterable" and not checked:
        claim = f"Not verified: that {workers} workers yield each sample once. That takes whole "
        yield Reason(claim=f"{claim}epochs with them, and with one worker or none")


def _neighbours(run: Run) -> Iterator[Reason]:
    """That the machine was not the sweep's alone, where it was not."""
    load = run.header.settings.get("make_load")
    if load and isinstance(load, dict):
        claim = f"Measured beside a load of dlprof's own (--make-load {','.join(load)})"
        if run.calibration is None or set(load) - {"cores"}:  # which costs are not known without
            claim += ": sweep without it for what an idle machine gives"
        yield Reason(claim=claim, evidence={"make_load": dict(load)})
    busy, machine = neighbours_seen(run), run.header.machine
    if busy is not None and busy - machine.spare_cpus >= at.SHARED * machine.usable_cores:
        cores = machine.spare_cpus + machine.usable_cores
        claim = f"Other processes kept {busy:.1f} of {cores:g} cores busy {WHILE_MEASURED}"
        yield Reason(claim=claim, evidence={"other_cpu_cores": busy})


def _failures(candidates: Sequence[Candidate]) -> Iterator[Reason]:
    """What failed or was skipped, and why, in the words of the failure itself."""
    tried, skipped = list[Candidate](), dict[str, list[Candidate]]()
    for each in candidates:
        for first in each.failures[:1]:
            kind = "" if first.failure is None else first.failure.kind
            alike = skipped.setdefault(kind, []) if first.outcome == "skipped" else tried
            alike.append(each)
    single, more = [[each] for each in tried[:5]], tried[5:]
    for some in filter(None, [*single, more, *skipped.values()]):
        first = some[0].failures[0]
        why = first.outcome if first.failure is None else first.failure.message
        name = some[0].name + (f" and {len(some) - 1} more" if len(some) > 1 else "")
        claim = f"{name} {failed_or_skipped(first, count=len(some))}: {why}"
        if some is more:
            claim = f"{counted(len(more), 'more configuration')} failed"
        ids = [trial.id for each in some for trial in each.failures]
        yield Reason(claim=claim, evidence={"trials": ids})


def _levers(run: Run, pick: Config) -> Iterator[Reason]:
    """Settings beside the swept ones that were tried with the pick and gained something."""
    tried = [trial for trial in run.trials if trial.purpose == "lever"]
    usable = run.header.machine.usable_cores
    made = (observe(trial, usable_cores=usable) for trial in tried)
    seen = [each for each in made if each is not None]
    for config in dict.fromkeys(trial.config for trial in tried):
        changed = pick.differing(config)
        if len(changed) != 1 or changed[0] not in CAVEATS:
            continue  # tried with another pick, in an earlier session of the sweep
        if not {config.key, pick.key} <= {each.key for each in seen}:
            continue
        name, ratio = changed[0], believe(seen).ratio(config.key, pick.key)
        if at.is_gain(ratio):
            value = f"{name}={getattr(config, name)!r}"
            claim = f"{value} is {as_fast(ratio)}{between(ratio)}; {CAVEATS[name]}"
            ids = [trial.id for trial in tried if trial.config in {config, pick}]
            yield Reason(claim=claim, evidence={"trials": ids, "ratio": dataclasses.asdict(ratio)})


def _as_predicted(run: Run, choice: Choice) -> Iterator[Reason]:
    """How much was predicted and how much measured, where a model chose what to measure."""
    if run.prediction is None or not choice.situation.as_measured:
        return
    cells, measured = len(run.prediction.cells), len({trial.config for trial in run.completed})
    traced_s = sum(trial.measured_s for trial in run.trials if trial.purpose == "explain")
    from_what = f" from {format_duration(traced_s)} of traced loading" if traced_s else ""
    claim = f"{counted(cells, 'configuration')} predicted{from_what}, and {measured} measured"
    yield Reason(claim=claim, evidence={"cells": cells})


def _assumed(choice: Choice, cases: Sequence[PredictedCase]) -> Iterator[Reason]:
    """What a predicted answer takes for granted, and what background load and ranks make of it."""
    situation, pick = choice.situation, choice.pick
    cores, ranks = situation.cores, situation.constraints.ranks
    if len(cases) > 1:
        shared, alone = (case.expected.samples_per_s.value for case in cases[:2])
        others = cases[0].neighbours
        claim = f"{background_text(others).capitalize()}, and there are {cores:g}"
        left = f": that leaves {percent(shared / alone)} of the rate on an idle machine"
        claim += ", which costs next to nothing" if shared / alone > NEAR else left
        evidence = {"shared_samples_per_s": shared, "dedicated_samples_per_s": alone}
        yield Reason(claim=claim, evidence=evidence)
    if ranks > 1:
        rate = choice.speeds.rate(pick.key).value
        claim = f"{ranks} ranks share {cores:g} cores: {format_rate(rate * ranks)} samples/s in all"
        yield Reason(claim=claim, evidence={"samples_per_s": rate})
    for note in (*situation.notes, situation.speed.doubt):
        if note:
            yield Reason(claim=f"Assumed: {note}")
    if situation.constraints.step_s is None and pick.config.num_workers:
        claim = "No step was given, so this is for the highest rate"
        yield Reason(claim=f"{claim}: with --step-time fewer workers may be enough")


def _unordered(choice: Choice) -> Iterator[Reason]:
    """What yielding batches as they come would earn, and cost, where it is worth a sentence."""
    config = choice.pick.config
    if config.num_workers < 2 or not config.in_order:
        return
    other = dataclasses.replace(config, in_order=False)
    gain = candidates_of(choice.situation, [config, other])[1].ratio(other.key, config.key)
    if gain.value >= at.PAYS and not (gain.is_wide and gain.ends[0] <= 1):
        claim = f"in_order=False would be {as_fast(gain)}{between(gain)}, {CAVEATS['in_order']}"
        evidence = {"gain": gain.value, "ratio": dataclasses.asdict(gain)}
        yield Reason(claim=claim, evidence=evidence)


def _counterpart(choice: Choice, setting: str) -> Candidate | None:
    mine = choice.pick.config
    return next((c for c in choice.allowed if mine.differing(c.config) == [setting]), None)


def _compare(choice: Choice, one: Candidate, two: Candidate, claim: str) -> Reason:
    """A claim about two configurations, and the ratio of their rates.

    One that is known to no better than a factor of two is not shown as a figure. In ``claim``,
    ``{be}`` is the verb, ``{fast}`` the ratio, and ``{ci}`` its interval.
    """
    ratio, measured = choice.speeds.ratio(one.key, two.key), one.measured and two.measured
    trials, configs = sorted({*one.trial_ids, *two.trial_ids}), [one.key, two.key]
    shown_by = {"trials": trials} if measured else {"configs": configs}
    evidence = {**shown_by, "ratio": dataclasses.asdict(ratio)}
    is_ = "is" if measured else "would be"
    fast, slow = (one, two) if ratio.value > 1 else (two, one)
    more = fast.config.num_workers > slow.config.num_workers
    if measured and more and differs_along(choice.situation.run, fast.config):
        claim = f"How {one.name} compares with {two.name} is not known: they saw other samples"
    elif ratio.is_wide:
        low, high, why, bound = ratio.low or 0.0, ratio.high or math.inf, "", ""
        for each in (one, two):
            known = each is choice.pick or not choice.speeds.rate(each.key).is_wide
            if not known and [trial.noisy for trial in each.trials] == [True]:
                low, high = 1.0, 1.0  # one trial that others disturbed shows no bound
                why = f", as {each.name} was measured once, and disturbed"
        unsure = f"How {one.name} compares with {two.name}"
        if low > 1 or high < 1:
            faster = "faster" if low > 1 else "slower"
            unsure = f"{one.name} {is_} {faster} than {two.name}, but by how much"
            least = f"{end_text(low)}x" if low > 1 else percent(1 - high)
            bound = f" (at least {least}, {PROBABILITY:.0%})"  # as the speed-up has it
        elif one is choice.pick and choice.loss is not None and low < 1 - choice.loss:
            # One bound says more than the lower of an interval's two.
            least = f"{one.name} is {loss_text(choice.loss)} than {two.name} ({PROBABILITY:.0%})"
            unsure = f"{least}; how much faster, if at all,"
        head, colon, _ = claim.partition(": ")  # what it shows, unless that has the figure itself
        lead = f"{head}{colon}" if high < 1 and "{" not in head else ""
        rerun = "rerun with a larger --budget or on a quieter machine"
        then = rerun if measured else "measure both"
        claim = f"{lead}{unsure} is too uncertain{why}{bound}: {then}"
    else:
        claim = claim.format(be=is_, fast=as_fast(ratio), ci=between(ratio))
    return Reason(claim=claim, evidence=evidence)


def _feeding(choice: Choice) -> Iterator[Reason]:
    pick, speeds = choice.pick, choice.speeds
    wait = speeds.wait_fraction(pick)
    if choice.fed is None or wait is None:
        return
    step_s = choice.situation.constraints.step_s
    step = "the step" if step_s is None else f"a step of {format_duration(step_s)}"
    keeps, waits = ("keeps", "the step waits") if pick.measured else ("would keep", "it would wait")
    waits = f"with {pick.name} {waits} {percent(wait)} of the time"
    if choice.situation.derived_step_s is not None:
        waits += ", computed from rates that were not measured with that step"
    claim = f"The cheapest configuration that {keeps} {step} fed: {waits}"
    if not choice.fed:
        waits_of = map(speeds.wait_fraction, choice.allowed)
        least = min((each for each in waits_of if each is not None), default=wait)
        claim = f"No configuration {keeps} {step} fed; {waits}"
        if least <= at.FED_WAIT_FRACTION:
            claim = f"Keeping {step} fed costs more between epochs than it saves; {waits}"
        elif least < NEAR * wait:
            claim += f", the least is {percent(least)}"
    evidence: dict[str, object] = {"trials": pick.trial_ids} if pick.measured else {}
    yield Reason(claim=claim, evidence={**evidence, "wait_fraction": wait})


def _bound(choice: Choice) -> Iterator[Reason]:
    found = choice.pick.prediction
    if choice.pick.measured:
        yield from _main_limits(choice)
    elif found is not None:
        from dlprof.model.bounds import describe

        there = choice.situation
        claim = f"With {choice.pick.name} {describe(found.bound, there.main_work)}"
        if found.bound == "cores" and there.fair_cores is not None:
            claim += f": {_shared_cores(there.cores, there.fair_cores)}"
        yield Reason(claim=claim, evidence={"bound": found.bound, "busy_cores": found.cores})


def _main_limits(choice: Choice) -> Iterator[Reason]:
    """That main itself is what a measured loader waits for, by its profile or what batches cost.

    By these where the rate is as high as the model allows it: else it is held up by more.
    """
    situation, config = choice.situation, choice.pick.config
    if not (config.num_workers and situation.is_calibrated):
        return
    held = bool(situation.profiled_main)
    if not held and config.batch_size in {None, situation.calibration.batch_size}:
        found = predictions(situation, [config])[config]
        rate = choice.speeds.steady(choice.pick.key).value
        held = found.bound == "main" and rate >= at.USED_UP * found.steady.value
    if held:
        from dlprof.model.bounds import describe

        claim = f"With {choice.pick.name} {describe('main', situation.main_work)}"
        evidence = {"bound": "main", "main_work": situation.main_work}
        yield Reason(claim=claim, evidence=evidence)


def _present(choice: Choice) -> Iterator[Reason]:
    """The gain over what the target's DataLoader is set to now, or that there is none."""
    pick, present = choice.pick, choice.present
    others = [each for each in choice.allowed if each is not pick]
    if present is None:
        return
    as_good = f"Your present settings, {present.name}, are as good as any"
    if choice.far(present) > at.EVEN:  # what costs more has to be likelier faster than that
        as_good = f"No other settings are likely faster than your present ones, {present.name}"
    if present not in choice.ties:
        claim = f"{pick.name} {{be}} {{fast}} as the present settings, {present.name}{{ci}}"
        yield _compare(choice, pick, present, claim)
    elif present is not pick:
        claim = f"{as_good}: {pick.name} is cheaper and {{be}} {{fast}}{{ci}}"
        yield _compare(choice, pick, present, claim)
    elif others:
        rival = choice.speeds.fastest(others)
        claim = f"{as_good}: {rival.name}, the fastest of the others, {{be}} {{fast}}{{ci}}"
        yield _compare(choice, rival, present, claim)


def _default(choice: Choice) -> Iterator[Reason]:
    """The gain over PyTorch's default, or that it is enough."""
    pick, default = choice.pick, choice.default
    others = [each for each in choice.allowed if each.config.num_workers]
    if default is None or default is choice.present:
        return  # not known, or shown as the present settings already
    if default is not pick:
        claim = f"{pick.name} {{be}} {{fast}} as num_workers=0, PyTorch's default{{ci}}"
        yield _compare(choice, pick, default, claim)
    elif others:
        rival = choice.speeds.fastest(others)
        claim = f"num_workers=0 is enough: {rival.name}, the fastest with workers, "
        claim += "{be} {fast}{ci}"
        yield _compare(choice, rival, pick, claim)


def _fewer(choice: Choice) -> Iterator[Reason]:
    """What saving workers would cost: speed, or that the step is surely fed."""
    pick, rival = choice.pick, choice.fewer
    if rival is None or rival in choice.undecided:
        return  # it is not known to be slower, which is shown below
    near = choice.speeds.ratio(rival.key, pick.key).value >= NEAR
    slower = choice.speeds.chance(pick.key, rival.key)
    surely = slower >= (1 + PROBABILITY) / 2  # one end of a 95 % interval
    likely = slower >= 1 - RISK
    if rival.measured:
        cost = "are slower" if surely else "are likely slower"
    else:
        cost = "would be slower" if surely else "would likely be slower"
    if near and choice.fed and rival not in choice.pool:
        cost = f"would not {'surely ' if rival.measured else ''}keep the step fed"
    elif near and not (likely and rival.measured and rival in choice.pool):
        return
    elif rival is choice.present or rival is choice.default:
        return  # which is said of these already
    both, why = rival.measured and pick.measured, f"Fewer workers {cost}"
    if both and not near and _gave(choice, rival) >= _gave(choice, pick):
        why = "The model has fewer workers slower, and their trials don't show it"
    yield _compare(choice, rival, pick, f"{why}: {rival.name} {{be}} {{fast}}{{ci}}")


def _gave(choice: Choice, candidate: Candidate) -> float:
    """What a configuration's trials gave in the middle, whatever else says of it; 0 without any."""
    rates = (choice.speeds.rates.get(trial.id) for trial in candidate.trials)
    return typical(rate.samples_per_s for rate in rates if rate is not None) or 0.0


def _more(choice: Choice) -> Iterator[Reason]:
    """That more workers, or deeper queues, gain nothing that can be shown."""
    pick, best = choice.pick, choice.best
    more = [c for c in choice.pool if c.config.num_workers > pick.config.num_workers]
    if best is not pick and pick.measured:
        likely = "likely" if choice.far(pick) <= RISK else "more likely than not"
        but = f"and {pick.name} is {likely} {at.WITHIN} of it"
        if choice.far(pick) > at.EVEN:  # it costs more than what the user has
            but = "which is not sure enough to leave the present settings for it"
        yield _compare(choice, best, pick, f"{best.name} {{be}} {{fast}}{{ci}}, {but}")
    elif more and pick.config.num_workers:
        rival, pay = choice.speeds.fastest(more), "don't pay" if pick.measured else "would not pay"
        claim = f"More workers {pay}: {rival.name} {{be}} {{fast}}{{ci}}"
        yield _compare(choice, rival, pick, claim)


def _persistent(choice: Choice) -> Iterator[Reason]:
    """What keeping workers between epochs earns, or would where restarts take long."""
    pick, other = choice.pick, _counterpart(choice, "persistent_workers")
    batches = choice.situation.epoch_batches(pick.config)
    if other is None or batches is None:
        return
    kept, fresh = (pick, other) if pick.config.persistent_workers else (other, pick)
    restarts = -math.expm1(choice.speeds.epochs[fresh.key].value)
    if kept is pick or restarts >= at.NOTABLE:
        claim = (
            f"persistent_workers=True {{be}} {{fast}}{{ci}} over epochs of {batches:,.0f} batches: "
            f"starting workers again takes {format_duration(fresh.epoch_turnover_s)}"
        )
        yield _compare(choice, kept, fresh, claim)


def _pin(choice: Choice) -> Iterator[Reason]:
    """What pinning earns, as measured end to end."""
    other = _counterpart(choice, "pin_memory")
    if other is None or not other.measured:
        return
    plain, pinned = sorted((choice.pick, other), key=lambda each: each.config.pin_memory)
    reason = _compare(choice, pinned, plain, "pin_memory=True {be} {fast} as pin_memory=False{ci}")
    gain = pin_gain([*plain.trials, *pinned.trials])
    if gain is not None:
        saved, taken = gain
        evidence = {**reason.evidence, "saved_per_batch": saved, "pin_costs": taken}
        reason = Reason(claim=f"{reason.claim}: {gain_words(saved, taken)}", evidence=evidence)
    yield reason


def _undecided(choice: Choice) -> Iterator[Reason]:
    """A cheaper configuration that more repeats might yet show to be as fast."""
    if not choice.undecided or choice.pick is choice.present:
        return
    rival = choice.speeds.fastest(choice.undecided)
    if rival is not choice.default and rival is not choice.present:  # compared already
        claim = f"{rival.name} is cheaper and not ruled out: it {{be}} {{fast}}{{ci}}"
        yield _compare(choice, rival, choice.pick, claim)


def _cores(choice: Choice) -> Iterator[Reason]:
    """That cores are what limits the rate, where one thread of it doesn't whatever others left."""
    found = cores_limit(choice.situation.run, choice.pick)
    if found is not None and not any(_main_limits(choice)):
        yield found


def cores_limit(run: Run, candidate: Candidate) -> Reason | None:
    """That its trials used what neighbours left it, and wanted more cores; ``None`` if not."""
    usages = [each.usage for each in candidate.trials if candidate.measured]
    seen = [u for u in usages if u.own_cpu_cores is not None and u.available_cpu_cores]
    own = typical(each.own_cpu_cores for each in seen)
    available = typical(each.available_cpu_cores for each in seen)
    waited = typical(each.run_queue_wait_fraction for each in seen)
    evidence = {"trials": candidate.trial_ids, "own_cpu_cores": own}
    evidence |= {"available_cpu_cores": available}
    if own is None or available is None:
        return None
    share, cores = typical(each.fair_cpu_cores for each in seen), run.header.machine.usable_cores
    shared = share is not None and share <= (1 - at.SHARED) * cores / run.header.launched
    wanted = own / max(0.01, 1 - (waited or 0.0))  # by threads that always got a core at once
    if share and shared and (waited or 0.0) > at.STARVED and at.USED_UP * wanted >= share:
        claim = f"Cores are the limit: {_shared_cores(cores, share)} (it used {own:.1f})"
        return Reason(claim=claim, evidence={**evidence, "fair_cpu_cores": share})
    # Of several ranks one's share is as much of its share of the machine that was measured.
    whole_machine = own * run.header.launched >= at.USED_UP * cores
    wants = waited is None or waited > at.STARVED or whole_machine
    # Below half a core it is a loader that waits, on a machine that neighbours fill.
    if own < max(0.5, at.USED_UP * available) or not wants:
        return None
    claim = f"Cores are the limit: it used {own:.1f} of the {available:.1f} available"
    return Reason(claim=claim, evidence=evidence)


def _shared_cores(cores: float, share: float) -> str:
    return (
        f"sharing {cores:g} with other sessions or containers leaves it {share:.1f}, and more "
        "workers get no more of them"
    )


def _ranks(choice: Choice) -> Iterator[Reason]:
    """How far cores are shared by more loaders than were measured."""
    share = typical(cores_share(trial, choice.situation) for trial in choice.pick.trials)
    if share is None or share >= 1:
        return
    ranks, cores = choice.situation.constraints.ranks, choice.situation.machine.usable_cores
    rate = choice.speeds.rate(choice.pick.key).value
    loaders = f"{ranks} loaders" if ranks > 1 else "the loader"
    claim = (
        f"{cores:g} cores limit {loaders} to about {percent(share)} of the measured rate, "
        f"{format_rate(rate)} samples/s for each"
    )
    yield Reason(claim=claim, evidence={"trials": choice.pick.trial_ids, "share": share})


def _placement(choice: Choice) -> Iterator[Reason]:
    """What places ranks that did not load at once: a sweep that launches them tries that."""
    situation = choice.situation
    machine, ranks = situation.machine, situation.constraints.ranks
    nodes, tried = machine.numa_nodes or 1, situation.as_measured and situation.launched > 1
    if nodes > 1 and ranks > 1 and machine.gpus and not tried:
        binds = f"torchrun {NumaBinding().option} would bind each rank to the cores of its GPU's "
        tries = f"a sweep with --launch-ranks {ranks} there tries whether that pays"
        claim = f"{nodes} NUMA nodes: {binds}node; {tries}"
        yield Reason(claim=claim, evidence={"numa_nodes": nodes})


def pin_gain(trials: Sequence[Trial]) -> tuple[dict[str, float], dict[str, float | None]] | None:
    """Seconds a batch that pinning saved, below 0 where it cost some, and what else it took.

    Medians over pairs of trials of one block and purpose that differ in it alone; ``None`` where
    none has both rates and the time of its copies. The copy's part is what the step waits less for;
    the rest is that a thread of its own receives batches, beside the step.
    """
    unpinned = {(t.config, t.repetition, t.purpose): t for t in trials if not t.config.pin_memory}
    saved, costs = list[tuple[float, float]](), list[PinCosts]()
    for on in (each for each in trials if each.config.pin_memory):
        plain = dataclasses.replace(on.config, pin_memory=False)
        off = unpinned.get((plain, on.repetition, on.purpose))
        if off is None or off.copies is None or on.copies is None:
            continue
        rates = [each.batches_per_s.value if each.batches_per_s else 0.0 for each in (off, on)]
        before_s, after_s = off.copies.exposed_s, on.copies.exposed_s
        if min(rates) > 0 and before_s is not None and after_s is not None:
            saved.append((1 / rates[0] - 1 / rates[1], before_s - after_s))
            costs.append(on.copies.pin or PinCosts())
    if not saved:
        return None
    total_s, copy_s = map(statistics.median, zip(*saved, strict=True))
    taken = {name: typical(getattr(each, name) for each in costs) for name in _PIN_COSTS}
    taken["pinned_bytes"] = taken["pinned_bytes"] and round(taken["pinned_bytes"])
    return {"total_s": total_s, "copy_s": copy_s, "receive_s": total_s - copy_s}, taken


def gain_words(saved: Mapping[str, float], taken: Mapping[str, float | None]) -> str:
    """Both as the end of a sentence: where the time went, and what else it took."""
    total, copies, receiving = (
        f"{'-' if saved_s >= 0 else '+'}{format_duration(abs(saved_s))}"
        for saved_s in saved.values()
    )
    words = f"{total} a batch, {copies} of it in copies and {receiving} in receiving"
    cpu_s, held, costs = taken["thread_cpu_s"], taken["pinned_bytes"], list[str]()
    if cpu_s is not None:
        costs.append(f"{format_duration(cpu_s)} of its thread's CPU a batch")
    if held is not None:
        costs.append(f"{format_bytes(held)} of pinned memory")
    return f"{words}; it takes {' and '.join(costs)}" if costs else words


def certify(choice: Choice, among: Collection[Config] | None = None) -> Certificate | None:
    """How far from the best a choice may be, at most; ``among`` is what it was asked of.

    ``None`` for conditions that nobody measured (another machine, several ranks, what only a model
    answers), and where there is nothing to compare it with.
    """
    situation = choice.situation
    if situation.extrapolated or situation.other_ranks or situation.by_model:
        return None
    # Where nothing that was measured keeps the limits, what a profile advises wasn't looked at.
    known = choice.speeds.belief.log_rates
    return nearness(choice, [c for c in unmeasured(situation, among) if c.key in known])


def nearness(choice: Choice, more: Collection[Config] = ()) -> Certificate | None:
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
    alike &= not choice.situation.target.keeps_samples  # whose later epochs take fewer cores
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


def certainty_of(
    choice: Choice, certificate: Certificate | None, *, named: bool = False, faster: bool = False
) -> tuple[Confidence, str]:
    """The confidence and one sentence: the gravest doubt, else what is certain.

    Of ``named`` settings it says that it is of those: of all it may be less sure. ``faster`` is
    whether one seems so that was not measured, as ``perhaps_faster`` has it.
    """
    which, untried = "asked for" if named else "", "" if named else _untried(choice)
    if choice.situation.target.keeps_samples:
        untried += "; trials show the first of 10 epochs, whose others come from kept samples"
    doubt = next(_doubts(choice), None)
    if doubt is not None:
        return doubt[0], doubt[1] + _by_model(choice, certificate, which) + untried
    if certificate is None:
        return "low", "nothing else that may be chosen has a rate to compare with"
    pick = choice.pick
    disturbed = disturbed_text(pick.noisy, len(pick.trials))
    # The certificate holds for the machine as it was, which others may have made another one.
    crowded = 2 * pick.noisy > len(pick.trials)
    taken = 2 * choice.situation.run.crowded(pick.trials) > pick.noisy
    by = "other processes" if taken else "a CPU quota or drift"
    near = certificate.text_of(which) + (f"; its trials: {disturbed} by {by}" if crowded else "")
    if certificate.shown > at.MEDIUM:
        return "low", near + untried
    derived_s = choice.situation.derived_step_s
    if derived_s is not None:
        step = format_duration(derived_s)
        return "medium", f"a step of {step} was not measured: sweep with --step-time to be sure"
    # Near the best does not mean that it beats what costs less.
    cheaper = (each for each in choice.allowed[: choice.allowed.index(pick)] if each.measured)
    ends = (choice.speeds.ratio(each.key, pick.key).ends for each in cheaper)
    alike = "; a cheaper one may be as fast" if any(low <= 1 <= high for low, high in ends) else ""
    high = certificate.epsilon <= at.HIGH and not crowded
    alike += "; one that was not measured may be faster" if high and faster else ""
    return "high" if high and not faster and not untried else "medium", near + alike + untried


def _keeping(choice: Choice) -> Iterator[Reason]:
    """What becomes of the samples that a dataset keeps in the memory of each process."""
    target, pick, speeds = choice.situation.target, choice.pick, choice.speeds
    if not target.keeps_samples:
        return
    config, loaded = pick.config, choice.situation.epochs_loaded(pick.config)
    several = config.num_workers > 1
    claim = (
        f"The dataset keeps samples in each process's memory "
        f"({format_duration(target.first_sample_s)} the first time, "
        f"{format_duration(target.kept_sample_s)} again), so rates are over 10 epochs, of which "
        "trials show the first. "
    )
    if config.num_workers and not config.persistent_workers:
        claim += "Workers that end with each epoch lose them"
    else:
        whose = "Each worker has a cache of its own" if several else "One process has the cache"
        claim += f"{whose}: as far as it holds them, 10 epochs load as much as {loaded:.1f}"
    if pick.full_caches:
        full = "full caches take" if several else "a full one takes"
        claim += f", and {full} {format_bytes(pick.full_caches)}"
    first = max(choice.allowed, key=lambda each: speeds.steady(each.key).value)
    if NEAR * speeds.steady(first.key).value > speeds.steady(pick.key).value:
        claim += f". A first epoch alone is faster with {first.name}"
    evidence = {
        "first_sample_s": target.first_sample_s,
        "kept_sample_s": target.kept_sample_s,
        "full_caches_bytes": pick.full_caches or None,
    }
    yield Reason(claim=claim, evidence=evidence | {"epochs_loaded": loaded})


def _untried(choice: Choice) -> str:
    """That more workers than were predicted may be faster, in words; empty where they aren't.

    A sweep looks at so many only, unless the user names more, or of an iterable dataset recommends
    no more than gave batches: how many its shards feed nobody knows. A loader of one's own may be
    fixed to its number.
    """
    situation, pick = choice.situation, choice.pick.config
    run, limits = situation.run, situation.constraints
    named = run.header.settings.get("num_workers")
    numbers = [each for each in named if isinstance(each, int)] if isinstance(named, list) else []
    allowed = math.inf if limits.max_workers is None else limits.max_workers
    most_named = max(numbers, default=allowed)
    target, found = run.header.target, Integrity.of(run)
    fixed = "num_workers" in target.fixed
    if fixed or choice.fed or not situation.as_measured or pick.num_workers >= most_named:
        return ""
    caps = [most_named, found.most_workers(pick), target.shards, situation.epoch_batches(pick)]
    if run.prediction is not None and (cells := run.prediction.cells):
        tried = max(cell.config.num_workers for cell in cells)
        looked = pick.num_workers >= tried
        if target.kind == "iterable":
            tried, looked = min(tried, found.worked), True
        if most_named < math.inf or not looked or not situation.is_calibrated:
            return ""
        if pick.batch_size not in {None, situation.calibration.batch_size}:
            return ""
        tried = max(tried, pick.num_workers)
        alone = dataclasses.replace(situation.conditions, neighbours=0.0)
        caps.append(saturating_workers(situation.calibration, pick, alone))
    else:
        measured = (each.config.num_workers for each in choice.allowed if each.measured)
        tried = max(measured, default=0)
        failed = (t.config.num_workers for t in run.trials if t.failure and t.outcome != "skipped")
        if max(failed, default=0) > tried or not (_grows(choice) or _shows_none(choice, tried)):
            return ""
    if NEAR * min(cap for cap in caps if cap is not None) <= tried:
        return ""
    are = "was" if tried == 1 else "were"
    more = f"; more than {counted(tried, 'worker')} {are} not tried, and may be faster"
    shards = target.kind == "iterable" and target.shards is None
    return f"{more}, if {EVEN_SHARDS}" if shards else more


def slow_to_begin(run: Run) -> str:
    """Why a budget held few trials, in words: an epoch's start takes most of them; else empty."""
    seen = [trial for trial in run.trials if trial.startup_s is not None]
    spent_s = math.fsum(trial.wall_s for trial in seen)
    begun_s = math.fsum((t.startup_s or 0.0) + (t.epoch_turnover_s or 0.0) for t in seen)
    if run.end is None or run.end.reason != "budget" or not seen or 2 * begun_s < spent_s:
        return ""
    first_s, held = statistics.median(trial.startup_s or 0.0 for trial in seen), len(run.trials)
    takes = f"as an epoch's first batch takes {format_duration(first_s)}"
    return f"; the budget held {counted(held, 'trial')}, {takes}"


def _grows(choice: Choice) -> bool:
    """Whether each worker that was measured brought more, and there are cores for another."""
    pick = choice.pick
    own, workers = pick.own_cpu_cores, pick.config.num_workers
    measured = {each.key: each.config.num_workers for each in choice.allowed if each.measured}
    fewer = [key for key, number in measured.items() if number < workers]
    if not (pick.measured and fewer) or own is None or workers < max(measured.values()):
        return False
    slower = max(choice.speeds.ratio(key, pick.key).ends[1] for key in fewer)
    usable = choice.situation.run.header.machine.usable_cores
    return slower < 1 / at.PAYS and own * (workers + 1) <= usable * workers


def _shows_none(choice: Choice, most: int) -> bool:
    """Whether a worker was measured, and cores are left for another: one is as fast as none.

    Where the main process only waits, one makes its batches as fast as that would, whatever more
    of them would bring.
    """
    own = choice.pick.own_cpu_cores
    usable = choice.situation.run.header.machine.usable_cores
    return most == 1 and choice.pick.measured and own is not None and 2 * own <= usable


def _by_model(choice: Choice, certificate: Certificate | None, which: str) -> str:
    """How near the best a choice is that was only predicted; empty for one that was measured.

    Of all, or of those that were measured where the others are too uncertain.
    """
    near = None if choice.pick.measured else certificate or nearness(choice)
    if near is None:
        return ""
    if near.loss is None:
        return "; how near the best it is, the model can't say"
    return f"; by the model {near.text_of(which)}"


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
    if raised_by_data(run):
        same = "most configurations fail with the same error, also some that worked in other trials"
        yield "low", f"{same}: it follows from the data, not from the settings"
    if not pick.measured:
        yield from _doubts_of_prediction(choice)
        return
    if times := differs_along(run, pick.config):
        each = f"each of {workers} workers gave at least {end_text(times)}x what fewer gave each"
        yield "low", f"{each}: the first samples of an epoch are slower than the rest, it seems"
    if there.extrapolated:
        name = there.machine.hostname
        known = f"nothing was measured on {name}: only its cores and memory are known"
        tried = [trial.config for trial in run.completed]
        left = f"more workers than {max(each.num_workers for each in tried)}"
        left += "" if run.calibration else " (a run of dlprof profile predicts them)"
        # That which all trials were given is no choice.
        left += ", other batch sizes" if {e.batch_size for e in tried} == {size} != {None} else ""
        yield "low", f"{known}; not considered: {left}"
    if there.other_ranks:
        measured = f"{_loaders(there.launched)} measured, not {ranks} at once"
        yield "low", f"estimated, as {measured}"
    if count := len(pick.failures):
        often = {1: "once", 2: "twice"}.get(count, f"{count} times")
        yield "low", f"{pick.name} also failed {often}"


def _doubts_of_prediction(choice: Choice) -> Iterator[tuple[Confidence, str]]:
    """The same of a choice that was only predicted, which is never sure."""
    there, pick = choice.situation, choice.pick
    rate = choice.speeds.rate(pick.key)
    run, known = there.run, there.run.calibration
    mine, other, ranks = run.header.machine, there.machine, there.constraints.ranks
    agreed, disagrees = agreement(run), ""
    if agreed is not None and agreed.outside:
        disagrees = f"the model disagrees with {agreed.outside} of {agreed.configs} measured "
        disagrees += f"configurations (by up to {agreed.worst:.2g}x)"
    poor = agreed is not None and 2 * agreed.outside >= agreed.configs
    lower = 1.0 if rate.low is None or rate.value <= 0 else 1 - rate.low / rate.value
    unseen = there.as_measured and run.prediction is not None and not run.completed
    crowded = 2 * run.crowded(run.completed) > len(run.completed)
    better = "on a quieter machine" if crowded else "for longer"
    tried, shown = workers_shown(run)
    beyond = tried > 0 and pick.config.num_workers > max(tried, 2 * shown)
    grave = {
        f"{disagrees}: measure before you rely on it": poor,
        there.speed.doubt: bool(there.speed.doubt),
        f"it was measured on {mine.hostname}, and nothing on {other.hostname}": (
            there.extrapolated
        ),
        f"its rate may be {percent(lower)} lower: measure {better}": lower > USELESS,
        "no trial has verified the prediction: go on with dlprof sweep --resume": unseen,
        f"no more than {counted(tried, 'worker')} measured: more may share a limit of what they "
        "wait for": beyond and mostly_waits(run),
    }
    step_s = there.constraints.step_s
    step = f"with a step of {format_duration(step_s)}" if step_s else "without a step"
    alike = there.step_measured or not (step_s or any(measured_step(run)))
    asked = "with these cores, storage and background load" if alike else step
    cores = known.available_cores if known is not None else None
    had, free = there.cores if cores is None else cores, there.cores - there.neighbours
    lesser = {
        f"{_loaders(there.launched)} measured, not {ranks} at once": there.other_ranks,
        f"{had:.1f} cores were available when it was measured, not {free:.3g}": (free > 2 * had),
        disagrees: bool(disagrees),
        f"nothing was measured {asked}": there.by_model,
        "no trial measured settings like these": agreed is None,
        "the model agrees with the trials, but these settings were not measured": True,
    }
    yield from (("low", text) for text in (known.doubts if known is not None else ()))
    yield from (("low", text) for text, holds in grave.items() if holds)
    yield from (("medium", text) for text, holds in lesser.items() if holds)


def _loaders(launched: int) -> str:
    return "one loader was" if launched == 1 else f"{launched} ranks were"


@record(frozen=True, slots=True, kw_only=True)
class Agreement:
    """Predicted against measured rates, predicted for the machine as busy as it was."""

    configs: int  # how many configurations were measured
    outside: int  # how many of them gave a rate outside of the predicted interval
    worst: float  # measured over predicted rate of the one that is furthest off
    neighbours: float  # threads of others that were counted in


def agreement(run: Run) -> Agreement | None:
    """Hold the model against the run's own trials; ``None`` where there are none."""
    outside, ratios = 0, list[float]()
    for _, mine, model in against_model(run):
        ratios.append(mine.value / model.value)
        lows, highs = zip(mine.ends, model.ends, strict=True)
        outside += max(lows) > min(highs)
    if not ratios:
        return None
    return Agreement(
        configs=len(ratios),
        outside=outside,
        worst=max(ratios, key=lambda ratio: max(ratio, 1 / ratio)),
        neighbours=Situation.of(run).neighbours,
    )
