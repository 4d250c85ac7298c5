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
    NO_DATA_SIGN,
    PARTIAL_SIGN,
    SPREAD_SIGN,
    STORED_SIGN,
    UNEVEN_SIGN,
    WHOLE_EPOCHS,
    Config,
    FailureKind,
    Finding,
    FindingCode,
    Fix,
    Integrity,
    Reason,
    Run,
    Target,
    Trial,
)
from dlprof.records.integrity import OPENED_EACH, SHARE_OUT, is_guessed

_SHARDED = Fix(
    text=SHARE_OUT,
    code="""def __iter__(self):
    worker = torch.utils.data.get_worker_info()
    first, step = (worker.id, worker.num_workers) if worker else (0, 1)
    for sample in itertools.islice(self.samples(), first, None, step):
        yield sample""",
)
_OPENED = Fix(
    text=OPENED_EACH,
    code="""def __getitem__(self, index):
    if self.file is None:  # in each worker once; self.file = None in __init__
        self.file = open(self.path, "rb")
    ...""",
)
_DUPLICATED = "Workers yield the same samples"
_UNSHARED = "Workers may yield the same samples"
_PERHAPS = """{}. Each sample comes several times an epoch, unless the dataset draws at random \
or splits them in another way."""
REPEATED = """The iterable dataset {}: unless it splits its samples between workers, each worker \
repeats all of them."""


def failed_by(trials: Sequence[Trial], kind: FailureKind) -> list[Trial]:
    """The trials that failed in one way."""
    return [each for each in trials if each.failure is not None and each.failure.kind == kind]


def data_findings(run: Run) -> tuple[Finding, ...]:
    """What a run shows of wrong data, and of workers without any."""
    return tuple(found_in(run.trials, Integrity.of(run), run.present or Config()))


def found_in(trials: Sequence[Trial], found: Integrity, present: Config) -> Iterator[Finding]:
    """What all trials of a target show of wrong data, and of workers without any.

    What is wrong with other workers than those of the ``present`` settings costs nothing now.
    """
    now = present.num_workers

    def finding(
        code: FindingCode, title: str, text: str, fix: Fix, cost: float = 0.0, **shown: object
    ) -> Finding:
        return Finding(
            code=code,
            severity="high" if cost else "info",
            title=title,
            explanation=text,
            evidence=shown,
            fix=fix,
            cost=cost,
        )

    def ids(kind: FailureKind) -> list[str]:
        return [trial.id for trial in failed_by(trials, kind)]

    if found.shared is not None:
        files, title = [*found.shared_files], f"Workers share an open file: {found.shared_files[0]}"
        text, cost = found.shared.message, float(found.fault(present) == found.shared)
        shown = ids("shared_file")
        yield finding("data.shared_file", title, text, _OPENED, cost, files=files, trials=shown)
    if found.duplicated is not None:
        seen = failed_by(trials, "duplicated")
        faults = [trial.failure for trial in seen if trial.failure is not None]
        workers = {trial.config.num_workers for trial in seen} or {max(2, now)}
        count = now if now in workers else max(workers)
        own = found.fault(Config(num_workers=now)) if now > 1 else None
        title = _DUPLICATED + (f" with num_workers={count}" if now > 1 and own is None else "")
        text = f"With {count} workers an epoch holds each sample up to {count} times: the iterable "
        some = max(found.right, *found.shared_out, 1) > 1
        text += f"dataset does not split them between {'so many ' if some else ''}workers."
        warnings = itertools.chain.from_iterable(trial.warnings for trial in seen)
        # Trials don't prove it, or not of these workers.
        guesses = faults if faults and all(map(is_guessed, faults)) else filter(None, [own])
        guess = next(filter(is_guessed, guesses), None)
        if guess is not None:
            title, text = _UNSHARED, _PERHAPS.format(guess.message.rstrip("."))
        elif counts := next((text for text in warnings if LENGTH_SIGN in text), ""):
            text += f" {counts[0].upper()}{counts[1:]}."
        cost = 0.0 if own is None else 1 - 1 / now  # what yields nothing new
        shown = ids("duplicated")
        yield finding("data.duplicated", title, text, _SHARDED, cost, trials=shown)
    if found.unshared:
        text = _PERHAPS.format(next(iter(found.unshared.values())))
        yield finding("data.unshared", _UNSHARED, text, _SHARDED, trials=[*found.unshared])
    if found.truncated:
        counts = ", ".join(map(str, sorted(found.truncated)))
        title = "An epoch is not as long as it should be"
        title += f" with num_workers={counts}" if found.whole is None else ""
        text = found.truncated.get(now, next(iter(found.truncated.values()))).message
        cost, fix = 1.0 if now in found.truncated else 0.0, Fix(text=WHOLE_EPOCHS)
        yield finding("data.truncated", title, text, fix, cost, trials=ids("truncated"))
    if found.fed is not None and found.fault(Config(num_workers=found.fed)) is None:
        those = now if now > found.fed else found.unfed_of
        advice = f"Set num_workers={found.fed} at most, or give each worker a shard."
        fix = Fix(text=advice, dataloader_kwargs={"num_workers": found.fed})
        title = f"{those - found.fed} of {those} workers get no data"
        text = f"num_workers={found.fed} does as well: the dataset has too few shards, or its "
        text += "split leaves some without."
        shares = {"num_workers": those, "fed_workers": found.fed}
        yield finding("workers.unfed", title, text, fix, **shares)


def noted(run: Run) -> list[str]:
    """What was known of the target before any trial, and changes what all figures mean."""
    signs = (NO_DATA_SIGN, PARTIAL_SIGN, SPREAD_SIGN, STORED_SIGN)
    notes = run.header.target.notes
    return [note for note in notes if any(sign in note for sign in signs)]


def beginning_alone(target: Target, trials: Iterable[Trial]) -> str:
    """That an iterable's later samples aren't known; empty where a trial came to its end."""
    seen = [each for each in trials if each.outcome == "completed"]
    ended = any(each.epoch_samples or each.whole_epochs for each in seen)
    if target.kind != "iterable" or target.repeats_shards or ended or not seen:
        return ""
    return (
        "Trials load the beginning of an epoch, as an iterable begins there each time. Whether "
        f"{SPREAD_SIGN} take as long isn't known."
    )


def said_first(run: Run) -> list[str]:
    """What has to be known before any recommendation, one paragraph each.

    That the settings as they are give wrong data, or fail; then what is wrong with the data and
    with the shares of ranks.
    """
    said = [each.claim for each in present_failure(run)]
    said += noted(run)
    warnings = itertools.chain.from_iterable(trial.warnings for trial in run.trials)
    if uneven := next((text for text in warnings if UNEVEN_SIGN in text), ""):
        said.append(f"{uneven[0].upper()}{uneven[1:]}.")
    present, advice = run.present, run.recommendation
    chosen = None if advice is None else advice.config
    used = [each.num_workers for each in (present, chosen) if each is not None]
    diagnosed = () if run.diagnosis is None else run.diagnosis.findings
    for each in data_findings(run):
        if not each.cost and any(finding.code == each.code for finding in diagnosed):
            continue  # it is of other settings than those that were profiled
        fix = f" Fix: {each.fix.text}" if each.fix is not None else ""
        if (fed := each.evidence.get("fed_workers")) is not None:
            if used and max(used) <= fed:
                continue  # it limits what is tried, and is wrong with nothing that anyone uses
            if any(finding.code == each.code for finding in diagnosed):
                continue  # which knows why
            fix = ""  # what is recommended keeps to it
        said.append(f"{each.title}. {each.explanation}{fix}")
    return said


def present_failure(run: Run) -> Iterator[Reason]:
    """That the target's own settings give wrong data, or fail; nothing if they work."""
    present, verdict = run.present, "are wrong"
    if present is None:
        return
    own = [trial for trial in run.trials if trial.config == present]
    fault = Integrity.of(run).fault(present)
    if fault is None and not any(trial.failure is None for trial in own):
        fault = next((trial.failure for trial in own if trial.failure is not None), None)
    if fault is None:
        return
    message = inside(fault.message)
    if is_guessed(fault):
        verdict = "may be wrong"
    elif fault.kind == "duplicated":
        message = f"{inside(_DUPLICATED)}."
    elif fault.kind not in DATA_FAULTS:
        tried = any(trial.outcome != "skipped" for trial in own) or not own
        verdict, message = "fail" if tried else "can't work here", fault.message
    claim = f"Your settings ({present.text}) {verdict}: {message}"
    yield Reason(claim=claim, evidence={"trials": [trial.id for trial in own]})
