"""What ``dlprof attach`` and ``dlprof top`` have to say of trainings that run."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from dlprof.attach import Attached
from dlprof.machine.waits import WAITS
from dlprof.records.codec import to_json
from dlprof.report import document as doc
from dlprof.report.findings import answer, cards, more_findings
from dlprof.report.labels import cores_text, percent_text, used_text
from dlprof.report.text import shortened
from dlprof.units import MISSING, counted, format_duration, format_rate

_STATES = {
    "running": "running",
    "queue": "queue empty",
    "handover": "tensor hand-over",
    "sleep": "sleep",
    "disk": "disk",
    "network": "network",
    "lock": "shared lock",
    "gil": "GIL",
    "threads": "other thread",
    "child": "child process",
    "other": "other",
}
"""What threads do, as people read it."""


_FIGURES = (
    *("config", "wait_fraction", "batches_per_s", "worker_busy_fraction", "finished_batches"),
    *("confidence", "confidence_reason"),
)


def figures_of(found: Attached) -> dict[str, Any]:
    """What documents say of a training."""
    seen, missing = found.seen, {}
    if found.wait_fraction is None:
        missing = dict.fromkeys(
            ("wait_fraction", "batches_per_s", "worker_busy_fraction"),
            "without workers loading and computing look alike from outside",
        )
    if found.finished_batches is None:
        missing["finished_batches"] = "the queue's messages can't be counted from outside"
    if not seen.training.user:
        missing["user"] = "the system doesn't show whose it is"
    return {
        "pid": seen.training.pid,
        "user": seen.training.user or None,
        "ranks": seen.training.ranks,
        "script": seen.training.script,
        **{name: to_json(getattr(found, name)) for name in _FIGURES},
        "findings": [to_json(each) for each in found.diagnosis.findings],
        "notes": list(found.diagnosis.notes),
        "watched_s": seen.window_s,
        "looks": len(seen.looks),
        "overhead_cpu_cores": seen.own_cpu_s / seen.window_s,
        "main_waits": _shares(seen.main.waits),
        "workers": [
            {"pid": each.pid, "batches": each.messages, "waits": _shares(each.waits)}
            for each in seen.workers
        ],
        "usage": to_json(found.usage),
        "unavailable": missing,
    }


def _shares(waits: Mapping[Any, int]) -> dict[str, float]:
    looks = sum(waits.values())
    return {name: waits.get(name, 0) / looks for name in WAITS if looks and waits.get(name)}


def attach_report(found: Attached) -> doc.Document:
    """Why one training waits."""
    return doc.Document(
        title=f"dlprof attach {found.seen.training.pid}",
        answer=(doc.FactList(tuple(_answer(found))),),
        hints=tuple(_last(found)),
        details=tuple(_details(found)),
    )


def _answer(found: Attached) -> Iterator[tuple[str, doc.Words]]:
    seen = found.seen
    training = seen.training
    whose = "" if training.is_own else f" of {training.user}"
    about = f"PID {training.pid}, {shortened(training.script, 40)}{whose}, {found.config.text}"
    yield "Training", about + (f", one of {training.ranks} ranks" if training.ranks > 1 else "")
    if found.finding is None and found.diagnosis.notes:
        yield "Bottleneck", found.diagnosis.notes[0]
    else:
        # What makes it doubtful is a part of the certainty below.
        said = found.finding is not None and found.finding.doubtful[1:-1] in found.confidence_reason
        wait = None if found.wait_fraction is None else found.wait_fraction.value
        workers = found.diagnosis.config.num_workers
        rows = answer(found.diagnosis.findings, wait, workers=workers)
        yield from (row for row in rows if not said or row[0] != "Doubt")
    if found.wait_fraction is not None:
        yield "Data wait", _wait(found)
        yield "Workers", _workers(found)
    yield "Certainty", f"{found.confidence}: {found.confidence_reason}"


def _wait(found: Attached) -> str:
    share = found.wait_fraction
    if share is None:
        return MISSING
    text = f"{percent_text(share.value)} of the time"
    if share.low is not None and share.high is not None:
        text += f" (95% CI {share.low * 100:.0f}-{share.high * 100:.0f}%)"
    rate = found.batches_per_s
    return f"{text}, {format_rate(rate)} batches/s" if rate else f"{text}, no batch was taken"


def _workers(found: Attached) -> str:
    text = f"have a batch to make {percent_text(found.worker_busy_fraction)} of the time"
    states = [each.waits for each in found.seen.workers]
    looks = sum(sum(each.values()) for each in states)
    shares = {name: sum(each.get(name, 0) for each in states) / looks for name in WAITS if looks}
    busy = [name for name in WAITS if name != "queue" and shares.get(name, 0.0) >= 0.1]
    busy.sort(key=lambda name: shares[name], reverse=True)
    if busy:
        text += f" ({', '.join(f'{_STATES[n]} {percent_text(shares[n])}' for n in busy)})"
    if found.finished_batches is not None:
        text += f", {found.finished_batches:.1f} finished batches in the queue"
    return text


def _last(found: Attached) -> Iterator[doc.Block]:
    more = more_findings(found.diagnosis.findings)
    said = f"Details{more and f' ({more})'}: -v · "
    again = found.seen.training.rerun
    yield doc.Text(doc.Styled(f"{said}each batch's stages, in a new run:", "soft"))
    yield doc.Code(again or "dlprof run SCRIPT", "sh")


def _details(found: Attached) -> Iterator[doc.Section]:
    yield from doc.section("Findings", *cards(found.diagnosis.findings))
    yield from doc.section("Use of the machine", doc.facts(_usage(found)))
    yield from doc.section("Main threads", _waits(found))
    yield from doc.section("Notes", doc.items(found.diagnosis.notes))


def _usage(found: Attached) -> Iterator[tuple[str, doc.Words]]:
    usage, seen = found.usage, found.seen
    yield "cores", used_text(usage)
    if usage.run_queue_wait_fraction is not None:
        yield "run-queue delay", percent_text(usage.run_queue_wait_fraction)
    if seen.shm_used_fraction is not None:
        yield "shared memory", f"{percent_text(seen.shm_used_fraction)} used at most"
    watched = f"{format_duration(seen.window_s)}, sampled {len(seen.looks)} times"
    yield "watched", f"{watched}, {100 * seen.own_cpu_s / seen.window_s:.2f}% of a core"


def _waits(found: Attached) -> doc.Table | None:
    rows = [("main", found.seen.main), *((str(w.pid), w) for w in found.seen.workers)]
    shown = [name for name in WAITS if any(each.waits.get(name) for _, each in rows)]
    if not shown:
        return None
    columns = [doc.Column("process", [name for name, _ in rows], left=True)]
    columns += [
        doc.Column(_STATES[name], [percent_text(each.share(name)) for _, each in rows])
        for name in shown
    ]
    return doc.Table(tuple(columns))


def top_report(found: Sequence[Attached], *, unseen: int = 0) -> doc.Document:
    """All trainings of the machine, a line each."""
    nobody = doc.Text("No training that loads data with torch was seen on this machine.")
    others = doc.Text(f"{counted(unseen, 'training')} can't be looked at: others', or protected.")
    return doc.Document(
        title="dlprof top",
        answer=doc.known(_lines(found) if found else nobody, others if unseen else None),
        hints=doc.hint("Why one of them waits:", "dlprof attach PID") if found else (),
    )


def _lines(found: Sequence[Attached]) -> doc.Table:
    waits = [None if each.wait_fraction is None else each.wait_fraction.value for each in found]
    scripts = [shortened(each.seen.training.script, 24) for each in found]
    users = [each.seen.training.user or MISSING for each in found]
    strange = not all(each.seen.training.is_own for each in found)
    codes = [MISSING if each.finding is None else each.finding.code for each in found]
    return doc.Table(
        (
            doc.Column("pid", [str(each.seen.training.pid) for each in found]),
            *([doc.Column("user", users, left=True)] if strange else []),
            doc.Column("script", scripts, left=True),
            doc.Column("workers", [str(each.config.num_workers) for each in found]),
            doc.Column("cores", [cores_text(each.usage.own_cpu_cores) for each in found], 0),
            doc.Column("batches/s", [format_rate(each.batches_per_s) for each in found], 1),
            doc.Column("wait", [percent_text(share) for share in waits]),
            doc.Column("bottleneck so far", [_verdict(each) for each in found], left=True),
            doc.Column("code", codes, 2, left=True),
        ),
        tuple("" if code in {MISSING, "consumer"} else "warn" for code in codes),
    )


def _verdict(found: Attached) -> str:
    first = found.finding
    if first is None and found.diagnosis.notes:
        return found.diagnosis.notes[0].partition(":")[0]
    return "none seen" if first is None else first.title
