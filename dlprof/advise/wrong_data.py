"""What has to be known before any recommendation: wrong data, idle workers, settings that fail.

Apart from the rules of profiles, which load the model: a recommendation from trials does without.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Sequence

from dlprof.advise.wording import inside
from dlprof.records import (
    DATA_FAULTS,
    LENGTH_SIGN,
    ONE_BATCH_SIGN,
    SHARE_OUT,
    WHOLE_EPOCHS,
    Config,
    FailureKind,
    Finding,
    FindingCode,
    Fix,
    Integrity,
    Reason,
    Run,
    Trial,
    is_guessed,
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
    "The iterable dataset {}: unless it splits its samples between workers, each worker repeats "
    "all of them."
)
ONE_BATCH = "An older dlprof computed these rates from the size of a single batch: sweep again."
TRUNCATED_TITLE = "An epoch is not as long as it should be"


def duplicated_title(seen: Sequence[Trial]) -> str:
    """What trials show in which samples come more than once, as far as they prove it."""
    return UNSHARED_TITLE if _is_guessed(seen) else DUPLICATED_TITLE


def several_times(workers: int, seen: Sequence[Trial] = ()) -> str:
    """What duplicated data is, with so many workers, and by how much it was too long."""
    guessed = seen[0].failure if _is_guessed(seen) else None
    if guessed is not None:
        return unshared_text(guessed.message.rstrip("."))
    told = (
        f"With {workers} workers an epoch holds each sample up to {workers} times: the iterable "
        "dataset does not split them between workers."
    )
    warnings = itertools.chain.from_iterable(trial.warnings for trial in seen)
    counts = next((text for text in warnings if LENGTH_SIGN in text), "")
    return f"{told} {counts[0].upper()}{counts[1:]}." if counts else told


def _is_guessed(seen: Sequence[Trial]) -> bool:
    faults = [trial.failure for trial in seen if trial.failure is not None]
    return bool(faults) and all(map(is_guessed, faults))


def unshared_text(sign: str) -> str:
    """Why samples may come more than once, by what shows it."""
    return (
        f"{sign}. Each sample comes several times an epoch, unless the dataset draws at random "
        "or splits them in another way."
    )


def duplicated_cost(workers: int) -> float:
    """Share of the loading that yields nothing new."""
    return 1 - 1 / workers if workers > 1 else 0.0


def failed_by(trials: Sequence[Trial], kind: FailureKind) -> list[Trial]:
    """The trials that failed in one way."""
    return [each for each in trials if each.failure is not None and each.failure.kind == kind]


def data_findings(run: Run) -> tuple[Finding, ...]:
    """What a run shows of wrong data, and of workers without any."""
    present = present_of(run)
    now = 0 if present is None else present.num_workers
    return tuple(found_in(run.trials, Integrity.of(run), now))


def failing_present(run: Run) -> tuple[Reason, ...]:
    """That the settings as they are give wrong data or fail, as the first of all reasons."""
    found = present_failure(run)
    return () if found is None else (Reason(claim=found[0], evidence={"trials": found[1]}),)


def found_in(trials: Sequence[Trial], found: Integrity, now: int) -> Iterator[Finding]:
    """What trials show of wrong data, and of workers without any.

    Args:
        trials: All of a target.
        found: What they say of its data.
        now: ``num_workers`` of the present settings; what is wrong with others costs nothing now.
    """

    def finding(
        code: FindingCode, title: str, text: str, fix: Fix, ids: Iterable[str], cost: float = 0.0
    ) -> Finding:
        return Finding(
            code=code,
            severity="high" if cost else "info",
            title=title,
            explanation=text,
            evidence={"trials": list(ids)},
            fix=fix,
            cost=cost,
        )

    if found.duplicated is not None:
        seen = failed_by(trials, "duplicated")
        tried = {trial.config.num_workers for trial in seen}
        workers = now if now in tried else max(tried, default=max(2, now))
        title, text = duplicated_title(seen), several_times(workers, seen)
        ids = (trial.id for trial in seen)
        cost = duplicated_cost(now) if found.fault(Config(num_workers=now)) is not None else 0.0
        yield finding("data.duplicated", title, text, SHARDED, ids, cost)
    if found.unshared:
        text = unshared_text(next(iter(found.unshared.values())))
        yield finding("data.unshared", UNSHARED_TITLE, text, SHARDED, found.unshared)
    if found.truncated:
        counts = ", ".join(map(str, sorted(found.truncated)))
        title = TRUNCATED_TITLE + (f" with num_workers={counts}" if found.whole is None else "")
        text = found.truncated.get(now, next(iter(found.truncated.values()))).message
        ids = (trial.id for trial in failed_by(trials, "truncated"))
        cost = 1.0 if now in found.truncated else 0.0
        yield finding("data.truncated", title, text, WHOLE, ids, cost)
    if found.fed is not None and found.fault(Config(num_workers=found.fed)) is None:
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
    present, verdict = present_of(run), "are wrong"
    if present is None:
        return None
    own = [trial for trial in run.trials if trial.config == present]
    fault = Integrity.of(run).fault(present)
    if fault is None and not any(trial.failure is None for trial in own):
        fault = next((trial.failure for trial in own if trial.failure is not None), None)
    if fault is None:
        return None
    message = inside(fault.message)
    if is_guessed(fault):
        verdict = "may be wrong"
    elif fault.kind == "duplicated":
        message = f"{inside(DUPLICATED_TITLE)}."
    elif fault.kind not in DATA_FAULTS:
        tried = any(trial.outcome != "skipped" for trial in own) or not own
        verdict, message = "fail" if tried else "can't work here", fault.message
    return f"Your settings ({present.text}) {verdict}: {message}", [trial.id for trial in own]


def present_of(run: Run) -> Config | None:
    """What the target's own loader is set to; of a profile, what it looked at."""
    if run.diagnosis is not None:
        return run.diagnosis.config
    header = run.header
    return header.target.present_settings(has_accelerator=header.accelerator is not None)
