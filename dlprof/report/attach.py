"""What ``dlprof attach`` and ``dlprof top`` have to say of trainings that run."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from dlprof.attach import Attached
from dlprof.attach.diagnosis import Waiting
from dlprof.machine.waits import WAITS
from dlprof.records import Finding
from dlprof.records.codec import to_json
from dlprof.records.record import record
from dlprof.report import document as doc
from dlprof.report.findings import answer, cards, more_findings
from dlprof.report.labels import certainty, cores_text, percent_text, used_text
from dlprof.report.text import shortened
from dlprof.units import MISSING, counted, format_duration, format_rate

_STATES = {
    "queue": "queue empty",
    "handover": "tensor hand-over",
    "sleep": "in sleep()",
    "lock": "shared lock",
    "gil": "GIL",
    "threads": "other thread",
    "child": "child process",
}
"""What threads do, as people read it, where that isn't the name of the state."""


@record(frozen=True, slots=True, kw_only=True)
class WorkerFigures:
    """What documents say of a worker."""

    pid: int  # its process
    batches: int  # that it has put into its queue
    waits: Mapping[str, float]  # share of the samples in each state; what was never seen, out


@record(frozen=True, slots=True, kw_only=True)
class TrainingFigures(Waiting):
    """What documents say of a training."""

    pid: int  # of its main process
    user: str | None  # whose it is
    ranks: int  # of its job that share this machine, itself included
    script: str  # what it runs, without the interpreter and options
    findings: tuple[Finding, ...]  # causes, the one to bet on first
    notes: tuple[str, ...]  # what a reader should know of how these were found
    watched_s: float  # how long it was watched
    looks: int  # how often it was sampled, of the last ones
    overhead_cpu_cores: float  # cores that watching it took
    main_waits: Mapping[str, float]  # of its main process, as of a worker
    # Those, alive now, of the loader that main often waited for, or else that gave most batches.
    workers: tuple[WorkerFigures, ...]
    unavailable: Mapping[str, str]  # why something is missing, by field


def figures_of(found: Attached) -> dict[str, Any]:
    """What documents say of a training."""
    seen, missing = found.seen, {}
    if found.wait_fraction is None:
        missing = dict.fromkeys(
            ("wait_fraction", "batches_per_s", "worker_busy_fraction"),
            "without workers loading and computing look alike from outside",
        )
    if found.batches_per_s is None:
        missing.setdefault("batches_per_s", "workers were started, and none was counted yet")
    if found.finished_batches is None:
        missing["finished_batches"] = "the queue's messages can't be counted from outside"
    if not seen.training.user:
        missing["user"] = "the system doesn't show whose it is"
    figures = TrainingFigures(
        **{each.name: getattr(found, each.name) for each in dataclasses.fields(Waiting)},
        pid=seen.training.pid,
        user=seen.training.user or None,
        ranks=seen.training.ranks,
        script=seen.training.script,
        findings=found.diagnosis.findings,
        notes=found.diagnosis.notes,
        watched_s=seen.window_s,
        looks=len(seen.looks),
        overhead_cpu_cores=seen.own_cpu_s / seen.window_s,
        main_waits=_shares(seen.main.waits),
        workers=tuple(
            WorkerFigures(pid=each.pid, batches=each.messages, waits=_shares(each.waits))
            for each in seen.workers
        ),
        unavailable=missing,
    )
    return dict(to_json(figures))


def _shares(waits: Mapping[Any, int]) -> dict[str, float]:
    looks = sum(waits.values())
    return {name: waits.get(name, 0) / looks for name in WAITS if looks and waits.get(name)}


def attach_report(found: Attached) -> doc.Document:
    """Why one training waits."""
    training, findings = found.seen.training, found.diagnosis.findings
    more = more_findings(findings)
    said, again = f"Details{more and f' ({more})'}: -v", training.rerun or "dlprof run SCRIPT"
    return doc.Document(
        title=f"dlprof attach {training.pid}",
        answer=(doc.FactList(tuple(_answer(found))),),
        hints=doc.hint(said, "each batch's stages, in a new run:", again),
        details=lambda: (
            *doc.section("Findings", *cards(findings)),
            *doc.section("Use of the machine", doc.facts(_usage(found))),
            *doc.section("Main threads", _waits(found)),
            *doc.section("Notes", doc.items(found.diagnosis.notes)),
        ),
    )


def _answer(found: Attached) -> Iterator[doc.Row]:
    seen = found.seen
    training = seen.training
    whose = "" if training.is_own else f" of {training.user}"
    about = f"PID {training.pid}, {shortened(training.script, 40)}{whose}, {found.config.text}"
    about += f", one of {training.ranks} ranks" if training.ranks > 1 else ""
    yield "Training", about + (training.launcher and f", started by {training.launcher}")
    if found.finding is None and found.diagnosis.notes:
        yield "Bottleneck", found.diagnosis.notes[0]
    else:
        # What makes it doubtful is a part of the certainty below.
        said = found.finding is not None and found.finding.doubtful[1:-1] in found.confidence_reason
        wait = None if found.wait_fraction is None else found.wait_fraction.value
        workers = found.diagnosis.config.num_workers
        rows = answer(found.diagnosis.findings, wait, workers=workers)
        yield from (row for row in rows if not said or row[0] != "Doubt")
    if (share := found.wait_fraction) is not None:
        sure = ""
        if share.low is not None and share.high is not None:
            sure = f" (95% CI {share.low * 100:.0f}-{share.high * 100:.0f}%)"
        rate = found.batches_per_s
        taken = f", {format_rate(rate)} batches/s" if rate else ", no batch was taken"
        taken = "" if rate is None else taken
        yield "Data wait", f"{percent_text(share.value)} of the time{sure}{taken}"
        busy = f"have a batch to make {percent_text(found.worker_busy_fraction)} of the time"
        shares = _shares({n: sum(w.waits.get(n, 0) for w in seen.workers) for n in WAITS})
        most = sorted(shares.items(), key=lambda share: share[1], reverse=True)
        doing = [(_STATES.get(n, n), s) for n, s in most if n != "queue" and s >= 0.1]
        states = ", ".join(f"{what} {percent_text(s)}" for what, s in doing)
        busy += f" ({states})" if states else ""
        if found.finished_batches is not None:
            busy += f", {found.finished_batches:.1f} finished batches in the queue"
        yield "Workers", busy
    yield certainty(found.confidence, found.confidence_reason)


def _usage(found: Attached) -> Iterator[doc.Row]:
    usage, seen = found.usage, found.seen
    yield "cores", used_text(usage)
    if usage.run_queue_wait_fraction is not None:
        yield "run-queue delay", percent_text(usage.run_queue_wait_fraction)
    if seen.shm_used_fraction is not None:
        yield "shared memory", f"{percent_text(seen.shm_used_fraction)} used at most"
    watched = f"{format_duration(seen.window_s)}, sampled {len(seen.looks)} times"
    yield "watched", f"{watched}, {100 * seen.own_cpu_s / seen.window_s:.2f}% of a core"


def _waits(found: Attached) -> doc.Table | None:
    rows = {"main": found.seen.main, **{str(each.pid): each for each in found.seen.workers}}
    columns = [doc.Column("process", [*rows], left=True)]
    for name in WAITS:
        if any(each.waits.get(name) for each in rows.values()):
            shares = [percent_text(each.share(name)) for each in rows.values()]
            columns.append(doc.Column(_STATES.get(name, name), shares))
    return doc.Table(tuple(columns)) if columns[1:] else None


def top_report(found: Sequence[Attached], *, unseen: int = 0) -> doc.Document:
    """All trainings of the machine, a line each."""
    nobody = doc.Text("No training that loads data with torch was seen on this machine.")
    others = doc.Text(f"{counted(unseen, 'training')} can't be looked at: others', or protected.")
    return doc.Document(
        title="dlprof top",
        answer=doc.known(_lines(found) if found else nobody, others if unseen else None),
        hints=doc.hint("", "why one of them waits:", "dlprof attach PID") if found else ((), ()),
    )


def _lines(found: Sequence[Attached]) -> doc.Table:
    waits = [None if each.wait_fraction is None else each.wait_fraction.value for each in found]
    scripts = [shortened(each.seen.training.script, 24) for each in found]
    users = [each.seen.training.user or MISSING for each in found]
    strange = not all(each.seen.training.is_own for each in found)
    codes = [MISSING if each.finding is None else each.finding.code for each in found]
    notes = ([*each.diagnosis.notes, "none seen"][0].partition(":")[0] for each in found)
    said = [e.finding.title if e.finding else n for e, n in zip(found, notes, strict=True)]
    return doc.Table(
        (
            doc.Column("pid", [str(each.seen.training.pid) for each in found]),
            *([doc.Column("user", users, left=True)] if strange else []),
            doc.Column("script", scripts, left=True),
            doc.Column("workers", [str(each.config.num_workers) for each in found]),
            doc.Column("cores", [cores_text(each.usage.own_cpu_cores) for each in found], 0),
            doc.Column("batches/s", [format_rate(each.batches_per_s) for each in found], 1),
            doc.Column("wait", [percent_text(share) for share in waits]),
            doc.Column("bottleneck so far", said, left=True),
            doc.Column("code", codes, 2, left=True),
        ),
        tuple("" if code in {MISSING, "consumer"} else "warn" for code in codes),
    )
