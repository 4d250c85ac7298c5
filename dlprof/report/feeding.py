"""What it takes to feed a training step, as people and programs read it."""

from __future__ import annotations

import json
from collections.abc import Iterator

from rich.console import Group, RenderableType
from rich.text import Text

from dlprof.advise.predict.feed import Feed
from dlprof.advise.wrong_data import data_findings
from dlprof.records import SCHEMA_VERSION, Estimate, Run
from dlprof.report.findings import findings_json, first_lines
from dlprof.report.labels import cores_text, percent_text, rate_text
from dlprof.report.layout import INDENT, Hanging
from dlprof.report.prediction import calibrated_text
from dlprof.report.snippets import loader_call
from dlprof.report.text import clean
from dlprof.store.codec import to_json
from dlprof.units import counted, format_bytes, format_duration


def feed_document(run: Run, feed: Feed) -> str:
    """What ``dlprof predict --feed --json`` prints.

    Args:
        run: What it was predicted from.
        feed: What it takes.
    """
    document = {
        "schema_version": SCHEMA_VERSION,
        "run_file": run.path,
        "target": run.header.target.spec,
        "findings": findings_json(data_findings(run)),
        "answer": answer_text(feed),
        **to_json(feed),
    }
    return json.dumps(document, allow_nan=False, indent=2)


def answer_text(feed: Feed) -> str:
    """The answer in one line."""
    ranks = counted(feed.ranks, "rank")
    step = format_duration(feed.step_s)
    workers = counted(round(feed.workers.value), "worker")
    cores = counted(round(feed.cores.value), "core")
    if feed.ranks > 1:
        workers = f"{workers} a rank"
        cores = f"{cores} in all"
    rate = feed.batch_bytes_per_s
    bytes_ = "" if rate is None else f" and {format_bytes(rate)}/s"
    takes = "takes" if feed.reached else "can't be done; the closest is"
    return f"Feeding {ranks} at a step of {step} {takes} {workers}, {cores}{bytes_}"


def render_feed(run: Run, feed: Feed) -> RenderableType:
    """The answer for a terminal or a pipe.

    Args:
        run: What it was predicted from.
        feed: What it takes.
    """
    rows = list(_rows(feed))
    width = max(len(name) for name, _ in rows)
    return Group(
        *first_lines(run),
        Hanging("", Text(f"{answer_text(feed)}.", style="bold")),
        Text(),
        *(Hanging(f"{INDENT}{name:<{width}}  ", Text(text)) for name, text in rows),
        Text(),
        *(
            Text(INDENT + line, style="green", no_wrap=True, overflow="ignore")
            for line in loader_call(feed.dataloader_kwargs)
        ),
        Text(),
        *(Hanging("", Text(note)) for note in _notes(run, feed)),
    )


def _rows(feed: Feed) -> Iterator[tuple[str, str]]:
    everyone = f", {feed.ranks} ranks together" if feed.ranks > 1 else ""
    yield "workers", f"{_count(feed.workers)}{' for each rank' if feed.ranks > 1 else ''}"
    yield "cores", f"{_count(feed.cores)}; {cores_text(feed.busy_cores)} busy on average{everyone}"
    if feed.batch_bytes_per_s is not None:
        yield "batches", f"{format_bytes(feed.batch_bytes_per_s)}/s{everyone}"
    yield "storage", _storage(feed, everyone)
    yield "data wait", f"{percent_text(feed.prediction.wait_fraction)} of the time"
    rate = feed.prediction.samples_per_s
    if rate is not None:
        yield "throughput", rate_text(rate) + (" for each rank" if feed.ranks > 1 else "")
    if feed.pss_bytes is not None:
        yield "memory", format_bytes(feed.pss_bytes) + everyone
    if feed.shm_bytes is not None:
        yield "shared memory", format_bytes(feed.shm_bytes) + everyone
    yield "confidence", f"{feed.confidence}: {clean(feed.confidence_reason)}"


def _storage(feed: Feed, everyone: str) -> str:
    rate = feed.storage_bytes_per_s
    if rate is None:
        return "not known: what batches read was not measured"
    if rate < 1:
        return "nothing: the calibrated batches came from the page cache, or from no file"
    return f"{format_bytes(rate)}/s{everyone}"


def _count(estimate: Estimate) -> str:
    text = f"{estimate.value:,.0f}"
    if estimate.low is None or estimate.high is None or estimate.low == estimate.high:
        return text
    return f"{text} ({estimate.low:,.0f}-{estimate.high:,.0f})"


def _notes(run: Run, feed: Feed) -> Iterator[str]:
    asked, allowed = percent_text(feed.asked_wait_fraction), percent_text(feed.max_wait_fraction)
    if feed.max_wait_fraction > feed.asked_wait_fraction:
        beyond = feed.least_wait_fraction > feed.asked_wait_fraction
        loaders = "No loader keeps" if beyond else "Hardly any loader keeps"
        yield (
            f"{loaders} the wait below {asked}: with workers and cores in plenty the step still "
            f"waits {percent_text(feed.least_wait_fraction)} of the time, as batches are taken in. "
            f"Reckoned with {allowed}."
        )
    else:
        yield f"Fed: the step waits less than {asked} of the time."
    host = clean(feed.hostname)
    there = f"{feed.machine_cores:g} cores of {host}"
    wait = percent_text(feed.machine_wait_fraction)
    verdict = "are enough" if feed.enough else f"are not enough: the step would wait {wait}"
    yield f"The {there} {verdict}."
    if feed.extrapolated:
        yield f"Nothing was measured on {host}: this is extrapolated."
    for note in feed.notes:
        yield f"Assumed: {clean(note)}."
    yield calibrated_text(feed.calibrated)
    yield f"Run file: {clean(run.path)}"
