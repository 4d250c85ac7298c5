"""What has to be known before any recommendation: wrong data, idle workers, settings that fail.

Apart from the rules of profiles, which load the model: a recommendation from trials does without.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence

from dlprof.records import (
    LENGTH_SIGN,
    ONE_BATCH_SIGN,
    SHARE_OUT,
    WHOLE_EPOCHS,
    Config,
    Failure,
    FailureKind,
    Finding,
    Fix,
    Integrity,
    Reason,
    Run,
    Trial,
)

SHARDED = Fix(
    text=SHARE_OUT,
    code="""def __iter__(self):
    worker = torch.utils.data.get_worker_info()
    first, step = (worker.id, worker.num_workers) if worker else (0, 1)
    for sample in itertools.islice(self.samples(), first, None, step):
        yield sample""",
)
WHOLE = Fix(text=WHOLE_EPOCHS)
DUPLICATED_TITLE = "Workers yield the same samples"
UNSHARED_TITLE = "Workers may yield the same samples"
REPEATED = (
    "The iterable dataset {}: unless it shares its samples out, each worker repeats all of them."
)
ONE_BATCH = (
    "The rates rest on the size of one batch, which an older dlprof took for that of all: sweep "
    "again."
)
TRUNCATED_TITLE = "An epoch is not as long as it should be"


def several_times(workers: int, seen: Iterable[Trial] = ()) -> str:
    """What duplicated data is, with so many workers, and by how much it was too long."""
    told = (
        f"With {workers} workers an epoch holds each sample up to {workers} times: the iterable "
        "dataset does not share them out."
    )
    warnings = itertools.chain.from_iterable(trial.warnings for trial in seen)
    counts = next((text for text in warnings if LENGTH_SIGN in text), "")
    return f"{told} {counts[0].upper()}{counts[1:]}." if counts else told


def unshared_text(seen: Mapping[str, str]) -> str:
    """Why samples may come more than once, by the first trial that shows it."""
    return (
        f"{next(iter(seen.values()))}: unless it draws samples at random, or shares them out by "
        "other means, such as a queue or a counter, each of them comes once per worker."
    )


def duplicated_cost(workers: int) -> float:
    """Share of the loading that yields nothing new."""
    return 1 - 1 / workers if workers > 1 else 0.0


def failed_by(trials: Sequence[Trial], kind: FailureKind) -> list[Trial]:
    """The trials that failed in one way."""
    return [each for each in trials if each.failure is not None and each.failure.kind == kind]


def findings_of(run: Run, *, extrapolated: bool) -> tuple[Finding, ...]:
    """What a recommendation from a run has to say: of its data first, then what a profile found.

    Args:
        run: ``checked``.
        extrapolated: Whether it is for another machine: its data is the same there.
    """
    found = data_findings(run)
    codes = {each.code for each in found}
    others = () if extrapolated else run.findings
    return (*found, *(each for each in others if each.code not in codes))


def data_findings(run: Run) -> tuple[Finding, ...]:
    """What a run shows of wrong data, and of workers without any."""
    return tuple(_data_findings(run, Integrity.of(run), present_of(run)))


def failing_present(run: Run) -> tuple[Reason, ...]:
    """That the settings as they are give wrong data or fail, as the first of all reasons."""
    found = present_failure(run)
    return () if found is None else (Reason(claim=found[0], evidence={"trials": found[1]}),)


def _data_findings(run: Run, found: Integrity, present: Config | None) -> Iterator[Finding]:
    now = present.num_workers if present is not None else 0
    if found.duplicated is not None:
        seen = failed_by(run.trials, "duplicated")
        workers = now if now > 1 else max((t.config.num_workers for t in seen), default=2)
        cost = duplicated_cost(now)
        yield Finding(
            code="data.duplicated",
            severity="high" if cost else "info",
            title=DUPLICATED_TITLE,
            explanation=several_times(workers, seen),
            evidence={"trials": [trial.id for trial in seen]},
            fix=SHARDED,
            cost=cost,
        )
    if found.unshared:
        yield Finding(
            code="data.unshared",
            severity="info",
            title=UNSHARED_TITLE,
            explanation=unshared_text(found.unshared),
            evidence={"trials": list(found.unshared)},
            fix=SHARDED,
        )
    if found.truncated:
        seen = failed_by(run.trials, "truncated")
        counts = ", ".join(map(str, sorted(found.truncated)))
        cost = 1.0 if now in found.truncated else 0.0
        yield Finding(
            code="data.truncated",
            severity="high" if cost else "info",
            title=TRUNCATED_TITLE + (f" with num_workers={counts}" if found.whole is None else ""),
            explanation=found.truncated.get(now, next(iter(found.truncated.values()))).message,
            evidence={"trials": [trial.id for trial in seen]},
            fix=WHOLE,
            cost=cost,
        )
    if found.fed is not None:
        yield Finding(
            code="workers.unfed",
            severity="info",
            title=f"{found.unfed_of - found.fed} of {found.unfed_of} workers get no data",
            explanation=f"num_workers={found.fed} does as well: the dataset has too few shards for "
            "more.",
            evidence={"num_workers": found.unfed_of, "fed_workers": found.fed},
            fix=Fix(
                text=f"Set num_workers={found.fed}, or cut the data into more shards.",
                dataloader_kwargs={"num_workers": found.fed},
            ),
        )


def said_first(run: Run) -> list[str]:
    """What has to be known before any recommendation, one paragraph each.

    That the settings as they are give wrong data, or fail; then what is wrong, with the data and
    with the rates of an earlier version.

    Args:
        run: ``checked``.
    """
    present = present_failure(run)
    told = [] if present is None else [present[0]]
    if any(ONE_BATCH_SIGN in trial.warnings for trial in run.trials):
        told.append(ONE_BATCH)
    for each in data_findings(run):
        fix = f" Fix: {each.fix.text}" if each.fix is not None else ""
        told.append(f"{each.title}. {each.explanation}{fix}")
    return told


def present_failure(run: Run) -> tuple[str, list[str]] | None:
    """That the target's own settings give wrong data, or fail, and the trials that show it.

    Returns:
        ``None`` if they work, or nothing is known of them.
    """
    present = present_of(run)
    if present is None:
        return None
    own = [trial for trial in run.trials if trial.config == present]
    fault = Integrity.of(run).fault(present)
    if fault is None and not any(trial.failure is None for trial in own):
        fault = next((trial.failure for trial in own if trial.failure is not None), None)
    if fault is None:
        return None
    tried = any(trial.outcome != "skipped" for trial in own) or not own
    return f"Your settings ({present.text}) {_verdict(fault, tried=tried)}", [t.id for t in own]


def _verdict(fault: Failure, *, tried: bool) -> str:
    if fault.kind == "duplicated":
        return f"are wrong: {_uncapitalised(DUPLICATED_TITLE)}."
    if fault.kind == "truncated":
        return f"are wrong: {_uncapitalised(fault.message)}"
    return f"fail: {fault.message}" if tried else f"can't work here: {fault.message}"


def _uncapitalised(text: str) -> str:
    return text[:1].lower() + text[1:]


def present_of(run: Run) -> Config | None:
    """What the target's own loader is set to; of a profile, what it looked at."""
    if run.diagnosis is not None:
        return run.diagnosis.config
    header = run.header
    return header.target.present_settings(has_accelerator=header.accelerator is not None)
