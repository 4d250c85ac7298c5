"""What ``dlprof run`` and ``dlprof.watch`` have to say: loaders at work in a training script."""

from __future__ import annotations

import io
import json
import shlex
from collections import Counter
from collections.abc import Iterator, Sequence

from dlprof.records import (
    SCHEMA_VERSION,
    SCRIPT_SPEC,
    Copies,
    Durations,
    Run,
    WatchedLoader,
    WatchedScript,
)
from dlprof.report.document import (
    Bar,
    Block,
    Card,
    Chart,
    Code,
    Column,
    Document,
    Facts,
    Items,
    Piece,
    Section,
    Span,
    Table,
    Text,
    Tone,
    Words,
    items,
    section,
)
from dlprof.report.findings import answer, cards
from dlprof.report.labels import percent_text, settings_text
from dlprof.report.profile import stage_sections
from dlprof.store.codec import to_json
from dlprof.units import counted, format_bytes, format_duration, format_rate

_MOST_BARS = 4
_MOST_LOADERS = 50
_TEXT_WIDTH = 80
_HARDLY = 0.05
"""Below this share of its loop a loader is not worth a change."""

_ENDINGS = {
    "exit": "ended by sys.exit",
    "exception": "ended by an exception",
    "interrupted": "interrupted",
    "os._exit": "ended by os._exit",
}
_CUT_OFF = (
    "The script's process ended before it could report more, as by a signal: this is what was "
    "seen some time before that."
)


def script_document(run: Run) -> str:
    """What ``dlprof run --json FILE`` writes.

    Args:
        run: Of a script that has ended.
    """
    document = {
        "schema_version": SCHEMA_VERSION,
        "run_file": run.path or None,
        "machine": to_json(run.header.machine),
        "target": to_json(run.header.target),
        "script": to_json(run.script),
        "loaders": [to_json(each) for each in run.watched],
        "findings": [to_json(each) for each in run.diagnosis.findings] if run.diagnosis else [],
        "notes": list(run.diagnosis.notes) if run.diagnosis else [],
    }
    return json.dumps(document, allow_nan=False, indent=2)


def script_report(run: Run) -> Document:
    """What was seen of a script's loaders, those that were waited for longest first."""
    return Document(
        title=f"dlprof run {run.header.target.spec.removeprefix(SCRIPT_SPEC)}",
        answer=(
            *_wrong_data(run),
            Facts(tuple(_answer(run))),
            *_chart(run),
            *_shortfall(run),
        ),
        hints=tuple(_last(run)),
        details=tuple(_details(run)),
    )


def _answer(run: Run) -> Iterator[tuple[str, Words]]:
    yield "Script", _how_it_went(run)
    if run.watched:
        yield "Data wait", Span(verdict(run.watched, run.script), "strong")
    diagnosis = run.diagnosis
    shown = [each for each in run.findings if not each.code.startswith("data.")]
    if diagnosis is not None and shown and _is_of_the_slowest(run):
        yield from answer(shown)
    elif diagnosis is not None and diagnosis.notes and run.watched:
        yield "Bottleneck", diagnosis.notes[0]


def _is_of_the_slowest(run: Run) -> bool:
    """Whether the findings are of the loader that the verdict names, and cost time."""
    first = next(each for each in run.findings if not each.code.startswith("data."))
    if is_harmless(run.watched, run.script):
        return first.code.startswith("transfer.")
    trials = () if run.diagnosis is None else run.diagnosis.trials
    of_it = not run.watched or _slowest(run.watched).name in trials
    return of_it and first.code != "consumer"  # else it disagrees with the wait


def _how_it_went(run: Run) -> str:
    name = run.header.target.spec.removeprefix(SCRIPT_SPEC)
    script = run.script
    if script is None:
        return f"{name}, cut off"
    parts = [f"{name} ran {format_duration(script.wall_s)}"]
    if run.watched:
        waited = format_duration(script.waited_s)
        parts.append(f"{waited} of it waiting for data ({percent_text(script.wait_fraction)})")
    if script.ending == "running":
        parts.append("cut off")
    if script.ending in _ENDINGS:
        code = "" if script.exit_code is None else f" with exit code {script.exit_code}"
        parts.append(f"{_ENDINGS[script.ending]}{code}")
    if script.rank is not None:
        parts.append(f"rank {script.rank} of {script.world_size}")
    return ", ".join(parts)


def _by_wait(run: Run) -> list[WatchedLoader]:
    return sorted(run.watched, key=lambda each: each.waited_s, reverse=True)


def _chart(run: Run) -> Iterator[Chart]:
    """How each loader's loop went: waiting, and the step."""
    shown = [each for each in _by_wait(run)[:_MOST_BARS] if each.batches]
    bars = [
        Bar(
            label=each.name,
            pieces=(Piece(max(0.0, each.waited_s)), Piece(max(0.0, each.stepped_s))),
            figure=f"{percent_text(each.wait_fraction)} wait",
            note="" if each.config is None else settings_text(each.config),
            tone="bad" if (each.wait_fraction or 0.0) >= _HARDLY else "good",
        )
        for each in shown
        if each.wait_fraction is not None
    ]
    if bars:
        yield Chart(bars=tuple(bars), label="loader", kind="share")


def _shortfall(run: Run) -> Iterator[Block]:
    """That the process was cut off, or why no loader was seen."""
    script = run.script
    if script is None or script.ending == "running":
        yield Text(_CUT_OFF if run.watched else f"{_CUT_OFF} No loader had been seen by then.")
    if not run.watched and script is not None:
        yield from filter(None, [items(script.notes)])


def _last(run: Run) -> Iterator[Block]:
    if run.path:
        more = len(run.findings) - 1
        found = f" ({counted(more, 'more finding')})" if more > 0 else ""
        yield Text(Span(f"Run file {run.path}{found} · all of it:", "soft"))
        yield Code(f"dlprof report {shlex.quote(run.path)} -v", "sh")


def _details(run: Run) -> Iterator[Section]:
    shown = _by_wait(run)[:_MOST_LOADERS]
    places = Counter(each.place for each in shown)
    yield from section(
        "Loaders", *(_loader(each, names_caller=places[each.place] > 1) for each in shown)
    )
    if len(shown) < len(run.watched):
        yield from section("More loaders", Text(f"{len(run.watched) - len(shown)} are not shown."))
    yield from section("Findings", *cards(run.findings))
    for each in run.explanations[-1:]:
        yield from stage_sections(each)
    notes = () if run.diagnosis is None else run.diagnosis.notes
    said = () if run.script is None else run.script.notes
    yield from section("Notes", items([*notes, *said]))


def verdict(loaders: Sequence[WatchedLoader], script: WatchedScript | None = None) -> str:
    """One sentence on the loader that is waited for longest.

    Args:
        loaders: At least one.
        script: Which has them; ``None`` for a loop that is all there is.
    """
    slowest = _slowest(loaders)
    share = slowest.wait_fraction
    name = slowest.name
    if share is None or not slowest.batches:
        return f"{name} gave no batch."
    if is_harmless(loaders, script):
        whole = None if script is None else script.wait_fraction
        if whole is None or whole >= _HARDLY:
            return (
                f"No DataLoader bottleneck: {name} spends {percent_text(share)} waiting for data."
            )
        return (
            f"No DataLoader bottleneck: the script spends {percent_text(whole)} waiting for data."
        )
    sentence = f"{name} spends {percent_text(share)} of its time waiting for data."
    if slowest.background_s > slowest.waited_s / 2:
        sentence += " That is in a background thread; the main one need not wait for it."
    return sentence


def _slowest(loaders: Sequence[WatchedLoader]) -> WatchedLoader:
    return max(loaders, key=lambda each: each.waited_s - each.nested_s)


def is_harmless(loaders: Sequence[WatchedLoader], script: WatchedScript | None) -> bool:
    """Whether no loader is waited for to speak of."""
    if not loaders:
        return False
    slowest = _slowest(loaders)
    whole = None if script is None else script.wait_fraction
    if whole is not None and whole < _HARDLY and not slowest.background_s:
        return True
    return slowest.wait_fraction is not None and slowest.wait_fraction < _HARDLY


def _wrong_data(run: Run) -> Iterator[Text]:
    """What is wrong with the data, before anything on its speed."""
    for finding in run.findings:
        if finding.code.startswith("data."):
            shown = finding.evidence
            seen = shown.get("seen_in") or shown.get("trials") or ["a loader"]
            what = f"{finding.title} ({finding.code})"
            yield Text(Span(f"The data of {seen[0]} is wrong: {what}.", "bad"))


def summary_text(loader: WatchedLoader) -> str:
    """What was seen of one loader as plain text, 80 columns wide."""
    from rich.console import Console  # noqa: PLC0415 - few loops print it

    from dlprof.report.terminal import Screen  # noqa: PLC0415 - as above

    console = Console(
        file=io.StringIO(), width=_TEXT_WIDTH, color_system=None, force_terminal=False
    )
    document = Document(title=loader.name, answer=(_loader(loader), Text(verdict([loader]))))
    with console.capture() as capture:
        console.print(Screen(document), highlight=False)
    return "\n".join(line.rstrip() for line in capture.get().splitlines())


def _loader(loader: WatchedLoader, *, names_caller: bool = False) -> Card:
    """One loader: what it is, how its loop's time went, and how its epochs began."""
    about = [each for each in (loader.dataset, loader.sampler) if each]
    if names_caller and loader.called_from:
        about.append(f"called from {loader.called_from}")
    blocks: list[Block] = []
    if loader.config is not None:
        blocks.append(Text(settings_text(loader.config)))
    if loader.wait_fraction is not None and loader.batches:
        waited = f"{percent_text(loader.wait_fraction)} waiting, {format_duration(loader.waited_s)}"
        pieces = (Piece(max(0.0, loader.waited_s)), Piece(max(0.0, loader.stepped_s)))
        tone: Tone = "bad" if loader.wait_fraction >= _HARDLY else "good"
        bar = Bar(label="loop", pieces=pieces, figure=waited, tone=tone)
        blocks += [Chart(bars=(bar,), kind="share"), *_spreads(loader)]
    blocks.append(Items(tuple(_facts(loader))))
    return Card(title=loader.name, code=", ".join(about), blocks=tuple(blocks))


def _spreads(loader: WatchedLoader) -> Iterator[Table]:
    """Wait and step with their tails."""
    known: list[tuple[str, Durations]] = []
    known += [("wait", loader.wait)] if loader.wait is not None else []
    known += [("step", loader.step)] if loader.step is not None else []
    if known:
        yield Table(
            (
                Column(title="", cells=[name for name, _ in known], left=True),
                Column(title="median", cells=[format_duration(s.median_s) for _, s in known]),
                Column(title="p95", cells=[format_duration(s.p95_s) for _, s in known]),
                Column(title="longest", cells=[format_duration(s.max_s) for _, s in known]),
            )
        )


def _facts(loader: WatchedLoader) -> Iterator[str]:
    rates = list(_rates(loader))
    made = f"{_counted(loader.batches, 'batch', 'batches')} in {_epochs(loader)}"
    yield "; ".join([made, ", ".join(rates)] if rates else [made])
    if loader.copies is not None:
        yield _copies(loader, loader.copies)
    if loader.startup_s is not None:
        begun = f"time to first batch {format_duration(loader.startup_s)}"
        turnover = loader.turnover
        if turnover is not None:
            begun += f"; epoch restart {format_duration(turnover.mean_s)}"
            if turnover.count > 1:
                begun += f", at most {format_duration(turnover.max_s)}"
        yield begun
    if loader.made > 1:
        yield f"{loader.made:,} loaders were made here"
    if loader.consumers > 1:
        yield f"{loader.consumers} threads took batches"
    if loader.nested_s > 0:
        yield f"{format_duration(loader.nested_s)} of its waits are inside another loader's"
    if loader.failures:
        yield f"{_counted(loader.failures, 'call', 'calls')} failed, the last: {loader.failure}"


def _rates(loader: WatchedLoader) -> Iterator[str]:
    if loader.batches_per_s:
        yield f"{format_rate(loader.batches_per_s)} batches/s"
    if loader.duplicated and loader.config is not None:  # what comes again is no sample more
        yield f"the same samples up to {loader.config.num_workers} times"
    elif loader.samples_per_s is not None:
        yield f"{format_rate(loader.samples_per_s)} samples/s"


def _copies(loader: WatchedLoader, copies: Copies) -> str:
    """Copies to the device apart from the rest of the step; the first batches stand for all."""
    text = f"exposed copies to {copies.device}: {format_duration(copies.exposed_s)} of each step"
    if loader.step is not None and copies.exposed_s is not None:
        rest_s = max(0.0, loader.step.mean_s - copies.exposed_s)
        text += f", the rest takes {format_duration(rest_s)}"
    if copies.hidden_s:
        text += f"; {format_duration(copies.hidden_s)} more overlap with it"
    pinned = percent_text(copies.pinned_fraction)
    return f"{text}; {format_bytes(copies.bytes)} a batch, {pinned} of it pinned"


def _epochs(loader: WatchedLoader) -> str:
    text = _counted(loader.epochs, "epoch", "epochs")
    left = loader.epochs - loader.epochs_completed
    return f"{text}, {left:,} of them left half way" if left > 0 else text


def _counted(number: int, one: str, many: str) -> str:
    return f"{number:,} {one if number == 1 else many}"
