"""Why a script's loader is waited for: from what was seen of it to findings. Pure."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Mapping, Sequence

from dlprof.advise.findings.diagnosis import WRONG_DATA, diagnose, find
from dlprof.advise.findings.evidence import Evidence, Script
from dlprof.advise.thresholds import OTHERS
from dlprof.integrations.first_batches import LEAST_BATCHES
from dlprof.internals import OF_ITERABLES
from dlprof.records import (
    LENGTH_SIGN,
    ONCE,
    Config,
    Diagnosis,
    Estimate,
    Explanation,
    Failure,
    FailureKind,
    Finding,
    Machine,
    Target,
    Trial,
    Usage,
    WatchedLoader,
    own_s,
    shared_position,
)
from dlprof.units import counted

UNTRACED = "its batches were not traced"


def diagnose_script(  # noqa: PLR0913 - all that was seen of a script
    loaders: Sequence[WatchedLoader],
    explanations: Sequence[Explanation],
    machine: Machine,
    target: Target,
    *,
    wall_s: float,
    cut_short: bool = False,
    refused: Mapping[str, str] | None = None,
    usage: Usage | None = None,
    local_ranks: int = 1,
    local_cpus: int | None = None,
    start_method: str = "fork",
) -> Diagnosis | None:
    """What is known of the cause, for the loader that costs the script the most with its copies.

    Where that loader's batches show no cause, its note says why, and the next is looked at.

    ``explanations`` are of loaders whose first batches were followed, whose names they have as
    ``trial_id``; ``refused`` has why others could not be, by name. ``target`` is the script, which
    ran for ``wall_s``, and would have gone on where it was ``cut_short``. ``local_ranks`` on this
    machine may run on ``local_cpus`` together, and each counts on its share. ``start_method`` is
    how workers start where a loader doesn't say so.

    Returns:
        ``None`` where no loader costs time to speak of, nor others the step; without findings and
        with notes where none of them shows a cause.
    """
    wrong = {
        each.name: findings for each in loaders if (findings := _wrong_data(each, machine, target))
    }
    machine = machine.shared_by(local_ranks, local_cpus)
    # Batches given again are no part of the script as it runs otherwise.
    wall_s = own_s(wall_s, loaders)
    # Below this share of the script's time the report says that no loader holds the script up; of
    # one that was cut short, of the loop's time, which would have been most of it.
    costly = [
        each
        for each in loaders
        if each.batches
        if each.cost_s >= 0.05 * (each.waited_s + each.stepped_s if cut_short else wall_s)
    ]
    # Others may take cores from the step of a loop that hardly waits: all that is said of it then.
    crowded = usage is not None and usage.is_crowded(machine.usable_cores)
    fed = [each for each in loaders if crowded and each.batches and not costly]
    fed.sort(key=lambda each: each.cost_s, reverse=True)
    costly.sort(key=lambda each: each.cost_s, reverse=True)
    traced = {each.trial_id: each for each in explanations}
    notes: list[str] = []
    for loader in (*costly, *fed):
        if loader.name in wrong:  # what would make wrong data come faster is no advice
            break
        explanation = traced.get(loader.name)
        missing = _missing(explanation, (refused or {}).get(loader.name, ""))
        if explanation is not None and not missing and loader.wait and loader.step:
            evidence = _evidence(loader, explanation, machine, target, usage or Usage())
            script = _script(loader, explanation, wall_s, start_method)
            evidence = dataclasses.replace(evidence, script=script, ranks=local_ranks)
            found = _diagnosed(evidence, loader, notes)
            codes = {each.code for each in found.findings}
            if loader in costly or {"consumer", "cpu.neighbours"} <= codes:
                return _with_wrong(found, wrong)
        if missing and len(notes) < 3 and loader in costly:
            notes.append(f"{loader.unknown_sign}: {missing}.")
    config = next((each.config for each in costly if each.config is not None), Config())
    found = Diagnosis(config=config, findings=(), notes=tuple(notes))
    return _with_wrong(found, wrong) if notes or wrong else None


def _with_wrong(found: Diagnosis, wrong: Mapping[str, Sequence[Finding]]) -> Diagnosis:
    """A diagnosis behind what is wrong with the data of any loader."""
    first = tuple(itertools.chain.from_iterable(wrong.values()))
    trials = tuple(name for name in wrong if name not in found.trials)
    return dataclasses.replace(
        found, findings=(*first, *found.findings), trials=(*found.trials, *trials)
    )


def _wrong_data(loader: WatchedLoader, machine: Machine, target: Target) -> tuple[Finding, ...]:
    """Findings on the data of a loader, which no rate can outweigh."""
    seen = _data_trial(loader)
    if seen is None or loader.config is None:
        return ()
    target = dataclasses.replace(target, shared_files=loader.shared_files)
    found = find(Evidence.of_trial(machine, target, seen))
    message = "" if seen.failure is None else seen.failure.message

    def said(explanation: str) -> str:
        counted_too = LENGTH_SIGN in message and message != explanation
        return f"{loader.name}: {explanation}" + (f" {message}" if counted_too else "")

    return tuple(
        dataclasses.replace(each, explanation=said(each.explanation))
        for each in found
        if each.code in WRONG_DATA
    )


def _data_trial(loader: WatchedLoader) -> Trial | None:
    """What is wrong with a loader's data, as a trial would have it; ``None`` if nothing is."""
    if loader.config is None:
        return None
    iterable = loader.sampler == OF_ITERABLES
    promised, epochs = loader.promised_batches, loader.epochs
    whole = epochs > 0 and loader.epochs_completed == epochs
    spare = loader.config.num_workers * epochs if iterable else 0  # batches that are not full
    # Where a dataset batches itself, its length may be that of its samples.
    exact = not iterable or loader.config.batch_size is not None
    short = promised is not None and whole and exact and loader.batches < promised - spare
    more = promised is not None and loader.batches > promised + spare
    empty = loader.epochs_empty
    # Of one worker, that more would share them is no more than a limit.
    shared = shared_position(loader.shared_files) if loader.config.num_workers > 1 else None
    if not (shared or loader.duplicated or short or more or empty):
        return None
    message = "Workers yield the same samples."
    if empty:
        message = f"{counted(empty, 'epoch')} after the first gave no batch: {ONCE}"
    elif short or more:
        message = f"{counted(epochs, 'epoch')} gave {loader.batches:,} batches {LENGTH_SIGN} "
        message += f"{promised:,}."
    doubled = loader.duplicated or (more and iterable and loader.config.num_workers > 1)
    kind: FailureKind = "duplicated" if doubled else "truncated"
    return Trial(
        id=loader.name,
        config=loader.config,
        repetition=0,
        outcome="crashed",
        failure=shared or Failure(kind=kind, message=message),
    )


def _missing(explanation: Explanation | None, refused: str) -> str:
    """Why batches that were followed, or were not, show no cause; empty where they do."""
    if explanation is None or not explanation.hooked:
        reasons = explanation.unavailable.values() if explanation is not None else ()
        return refused or next(iter(reasons), UNTRACED)
    if explanation.batches < LEAST_BATCHES:
        batches = counted(explanation.batches, "batch")
        return f"only {batches} could be traced, and {LEAST_BATCHES} are needed"
    return ""


def _diagnosed(evidence: Evidence, loader: WatchedLoader, notes: Sequence[str]) -> Diagnosis:
    batches = sum(each.batches for each in evidence.explanations())
    lines = [*notes, f"Diagnosis of {loader.name} from {batches} traced batches."]
    if batches < 30:
        lines.append("So few batches show little of their spread.")
    found = diagnose(evidence, lines)
    more = _outlook(found.findings[0]) if found.findings else ("They show no single cause.",)
    return dataclasses.replace(found, notes=(*found.notes, *more))


def _outlook(first: Finding) -> tuple[str, ...]:
    """What the model says of the wait with the settings that the first cause asks for."""
    workers, wait = (first.evidence.get(name) for name in ("gain_workers", "gain_wait_fraction"))
    if workers is None or wait is None:
        return ()
    waits, needs = f"{wait * 100:.0f}% waiting", first.evidence.get("gain_if")
    waits = f"(if {needs}) {waits}" if needs else waits
    return (f"With num_workers={workers} the model predicts {waits} between batches.",)


def _evidence(
    loader: WatchedLoader, explanation: Explanation, machine: Machine, target: Target, usage: Usage
) -> Evidence:
    config = explanation.config
    # Whether others took cores that making batches waited for.
    waited_s, made_s = sum(explanation.costs.run_queue_s), sum(explanation.costs.cpu_s)
    crowded = usage.taken_cores(machine.usable_cores) > OTHERS * machine.usable_cores
    plain = dataclasses.replace(
        _plain_trial(loader, config),
        usage=usage,
        noisy=crowded and waited_s > 0.05 * (waited_s + made_s),
    )
    # The first batches, which were followed; their rate is compared with no other.
    traced = Trial(
        id=explanation.trial_id,
        config=explanation.config,
        repetition=0,
        outcome="completed",
        purpose="explain",
        wait_fraction=explanation.wait_fraction,
        measured_s=explanation.window_s,
        window_batches=explanation.batches,
    )
    # Each began with a start, also one that was broken off; an only one of these has no length.
    epochs = loader.epochs if loader.epochs > 1 else loader.epochs_completed
    target = dataclasses.replace(
        target,
        dataset=loader.dataset,
        kind="iterable" if loader.sampler == OF_ITERABLES else "map",
        sampler=loader.sampler or None,
        batches_per_epoch=max(1, round(loader.batches / epochs)) if epochs else None,
        batch_size=config.batch_size,
        call=loader.call,
        shared_files=loader.shared_files,
        shards=loader.shards,
        notes=tuple(filter(None, [loader.against_persisting])),
    )
    evidence = Evidence.of_training(
        machine,
        target,
        explanation,
        plain=plain,
        traced=traced,
        whole_cpu_s=explanation.step_cpu_s,
    )
    return dataclasses.replace(
        evidence,
        accelerator=None if loader.copies is None else loader.copies.device.partition(":")[0],
        step_s=loader.step.mean_s if loader.step else 0.0,
    )


def _script(
    loader: WatchedLoader, explanation: Explanation, wall_s: float, start_method: str
) -> Script:
    """The script with what its step computes."""
    step, whole_s = explanation.stage("step"), explanation.step_cpu_s
    cores = threads = None
    if step is not None and whole_s is not None and step.mean_s > 0:
        cores = whole_s / step.mean_s
        # Threads that hand work to a device take turns, whatever they add up to.
        threads = cores if loader.copies is not None else whole_s / max(1e-9, step.cpu_s or whole_s)
        # What keeps less than one core busy in all, as torch's idle pool that spins for a while
        # does beside a step which sleeps, is no work that workers could slow.
        threads = max(cores, threads) if cores >= 1 else 1.0
    return Script(
        wall_s=wall_s + (loader.spared_s or 0.0),
        loader=loader,
        step_cores=cores,
        step_threads=threads,
        start_method=start_method,
    )


def _plain_trial(loader: WatchedLoader, config: Config) -> Trial:
    """The loader as the script ran it; first batches and epoch restarts left out of its rate."""
    wait_s = loader.wait.mean_s if loader.wait else 0.0
    period_s = wait_s + (loader.step.mean_s if loader.step else 0.0)
    return Trial(
        id=f"{loader.name} (whole run)",
        config=config,
        repetition=0,
        outcome="completed",
        batches_per_s=Estimate(value=1 / period_s) if period_s else None,
        startup_s=loader.startup_s,
        epoch_turnover_s=loader.turnover.mean_s if loader.turnover else None,
        wait_fraction=wait_s / period_s if period_s else None,
        measured_s=loader.waited_s + loader.stepped_s,
        window_batches=loader.batches,
        copies=loader.copies,
    )
