"""What ``dlprof run`` and ``dlprof.watch`` show: loaders at work, for people and as JSON."""

from __future__ import annotations

import io
import json
from collections import Counter
from collections.abc import Iterator, Sequence

from rich.console import Console, ConsoleOptions, Group, RenderableType, RenderResult
from rich.text import Text

from dlprof.records import (
    SCHEMA_VERSION,
    SCRIPT_SPEC,
    Copies,
    Durations,
    Run,
    WatchedLoader,
    WatchedScript,
)
from dlprof.report.findings import render_findings
from dlprof.report.labels import percent_text, settings_text
from dlprof.report.layout import INDENT, Hanging
from dlprof.report.text import clean
from dlprof.store.codec import to_json
from dlprof.units import format_bytes, format_duration, format_rate

_MOST_SHOWN = 12
_WIDEST_BAR = 40
_TEXT_WIDTH = 80
# Below this share of its loop a loader is not worth a change.
_HARDLY = 0.05
_ENDINGS = {
    "exit": "ended by sys.exit",
    "exception": "ended by an exception",
    "interrupted": "interrupted",
    "os._exit": "ended by os._exit",
}

_CUT_OFF = (
    "The script's process ended before it could say more, as by a signal: what is told here is "
    "what had been seen some time before that."
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


def render_script(run: Run) -> RenderableType:
    """What was seen of a script's loaders, those that were waited for longest first."""
    parts: list[RenderableType] = [_headline(run)]
    wrong = " ".join(_wrong_data(run))
    parts += [Hanging("", Text(wrong, style="bold"))] if wrong else []
    shown = sorted(run.watched, key=lambda each: each.waited_s, reverse=True)
    places = Counter(each.place for each in shown)
    for loader in shown[:_MOST_SHOWN]:
        parts += [Text(), render_loader(loader, tell_caller=places[loader.place] > 1)]
    if len(shown) > _MOST_SHOWN:
        parts += [Text(), Text(f"{len(shown) - _MOST_SHOWN} more loaders are in the run file.")]
    parts.append(Text())
    if run.watched:
        told = " ".join([verdict(run.watched, run.script), *_cause(run)])
        parts.append(Hanging("", Text(told, style="bold")))
    if run.diagnosis is not None:
        parts += [Hanging("", Text(clean(note))) for note in run.diagnosis.notes]
        findings = run.diagnosis.findings
        parts += [Text(), render_findings(findings), Text()] if findings else []
    parts += [Hanging("", Text(text)) for text in _last_words(run)]
    return Group(*parts)


def _headline(run: Run) -> RenderableType:
    name = clean(run.header.target.spec.removeprefix(SCRIPT_SPEC))
    script = run.script
    if script is None:
        return Hanging("", Text(f"dlprof run {name}, cut off", style="bold"))
    parts = [f"dlprof run {name}: {format_duration(script.wall_s)}"]
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
    return Hanging("", Text(", ".join(parts), style="bold"))


def _last_words(run: Run) -> Iterator[str]:
    """The notes, and where the rest is."""
    script = run.script
    for note in () if script is None else script.notes:
        yield clean(note)
    if script is None or script.ending == "running":
        yield _CUT_OFF if run.watched else f"{_CUT_OFF} No loader had been seen by then."
    if run.path:
        yield f"Run file: {clean(run.path)}"


def verdict(loaders: Sequence[WatchedLoader], script: WatchedScript | None = None) -> str:
    """One sentence on the loader that is waited for longest.

    Args:
        loaders: At least one.
        script: Which has them; ``None`` for a loop that is all there is.
    """
    worst = _worst(loaders)
    share = worst.wait_fraction
    name = clean(worst.name)
    if share is None or not worst.batches:
        return f"{name} gave no batch."
    if _is_harmless(loaders, script):
        whole = None if script is None else script.wait_fraction
        if whole is None or whole >= _HARDLY:
            return f"No loader holds this up: {name} spends {percent_text(share)} waiting for data."
        return f"No loader holds this script up: it spends {percent_text(whole)} waiting for data."
    sentence = f"{name} spends {percent_text(share)} of its time waiting for data."
    if worst.background_s > worst.waited_s / 2:
        sentence += " That is in a thread beside the main one, which need not wait for it."
    return sentence


def _worst(loaders: Sequence[WatchedLoader]) -> WatchedLoader:
    return max(loaders, key=lambda each: each.waited_s - each.nested_s)


def _is_harmless(loaders: Sequence[WatchedLoader], script: WatchedScript | None) -> bool:
    """Whether no loader is waited for to speak of."""
    worst = _worst(loaders)
    whole = None if script is None else script.wait_fraction
    if whole is not None and whole < _HARDLY and not worst.background_s:
        return True
    return worst.wait_fraction is not None and worst.wait_fraction < _HARDLY


def _wrong_data(run: Run) -> Iterator[str]:
    """What is wrong with the data, before anything on its speed."""
    for finding in run.diagnosis.findings if run.diagnosis is not None else ():
        if finding.code.startswith("data."):
            shown = finding.evidence
            seen = shown.get("seen_in") or shown.get("trials") or ["a loader"]
            what = f"{clean(finding.title)} ({clean(finding.code)})"
            yield f"The data of {clean(str(seen[0]))} is wrong: {what}."


def _cause(run: Run) -> Iterator[str]:
    """The first finding, where it is of the loader that the verdict names."""
    diagnosis = run.diagnosis
    if diagnosis is None or not diagnosis.findings:
        return
    causes = [each for each in diagnosis.findings if not each.code.startswith("data.")]
    if not causes:
        return
    first, worst = causes[0], _worst(run.watched)
    if _is_harmless(run.watched, run.script):
        if first.code.startswith("transfer."):
            yield f"What costs time: {clean(first.title)} ({clean(first.code)})."
        return
    if worst.name in diagnosis.trials and first.code != "consumer":
        yield f"The likeliest cause: {clean(first.title)} ({clean(first.code)})."


def summary_text(loader: WatchedLoader) -> str:
    """What was seen of one loader as plain text, 80 columns wide."""
    console = Console(
        file=io.StringIO(), width=_TEXT_WIDTH, color_system=None, force_terminal=False
    )
    with console.capture() as capture:
        console.print(Group(render_loader(loader), Text(verdict([loader]))), highlight=False)
    return "\n".join(line.rstrip() for line in capture.get().splitlines())


def render_loader(loader: WatchedLoader, *, tell_caller: bool = False) -> RenderableType:
    """One loader: what it is, how its loop's time went, and how its epochs began.

    Args:
        loader: What was seen of it.
        tell_caller: Whether its place needs its caller to be told from others.
    """
    parts: list[RenderableType] = [_title(loader, tell_caller=tell_caller)]
    if loader.config is not None:
        parts.append(_line(settings_text(loader.config)))
    if loader.wait_fraction is not None and loader.batches:
        parts += [_Bar(loader.wait_fraction, loader.waited_s), *_spreads(loader)]
    parts += [_line(text) for text in _facts(loader)]
    return Group(*parts)


def _title(loader: WatchedLoader, *, tell_caller: bool) -> RenderableType:
    title = Text(clean(loader.name), style="bold")
    about = [clean(each) for each in (loader.dataset, loader.sampler) if each]
    if tell_caller and loader.called_from:
        about.append(f"called from {clean(loader.called_from)}")
    return Hanging("", title.append(f"  {', '.join(about)}" if about else "", style="not bold"))


def _line(text: str) -> Hanging:
    return Hanging(INDENT, Text(text))


def _spreads(loader: WatchedLoader) -> Iterator[RenderableType]:
    """Wait and step with their tails, one below the other."""
    rows = [(name, spread) for name, spread in (("wait", loader.wait), ("step", loader.step))]
    if all(spread is None for _, spread in rows):
        return
    yield Text(f"{INDENT}{'':6}{'median':>10}{'95 %':>10}{'longest':>10}", no_wrap=True)
    for name, spread in rows:
        if spread is not None:
            yield Text(f"{INDENT}{name:6}{_figures(spread)}", no_wrap=True)


def _figures(spread: Durations) -> str:
    return "".join(
        f"{format_duration(figure):>10}" for figure in (spread.median_s, spread.p95_s, spread.max_s)
    )


def _facts(loader: WatchedLoader) -> Iterator[str]:
    rates = list(_rates(loader))
    counted = f"{_counted(loader.batches, 'batch', 'batches')} in {_epochs(loader)}"
    yield "; ".join([counted, ", ".join(rates)] if rates else [counted])
    if loader.copies is not None:
        yield _copies(loader, loader.copies)
    if loader.startup_s is not None:
        begun = f"start-up {format_duration(loader.startup_s)}"
        turnover = loader.turnover
        if turnover is not None:
            begun += f"; each further epoch {format_duration(turnover.mean_s)} to begin"
            if turnover.count > 1:
                begun += f", at most {format_duration(turnover.max_s)}"
        yield begun
    if loader.made > 1:
        yield f"{loader.made:,} loaders were made here"
    if loader.consumers > 1:
        yield f"{loader.consumers} threads took batches"
    if loader.nested_s > 0:
        yield f"{format_duration(loader.nested_s)} of its waits lie inside another loader's"
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
    text = f"copies to {clean(copies.device)}: {format_duration(copies.exposed_s)} of each step"
    if loader.step is not None and copies.exposed_s is not None:
        rest_s = max(0.0, loader.step.mean_s - copies.exposed_s)
        text += f", the rest takes {format_duration(rest_s)}"
    if copies.hidden_s:
        text += f"; {format_duration(copies.hidden_s)} more beside it"
    pinned = percent_text(copies.pinned_fraction)
    return f"{text}; {format_bytes(copies.bytes)} a batch, {pinned} of it pinned"


def _epochs(loader: WatchedLoader) -> str:
    text = _counted(loader.epochs, "epoch", "epochs")
    left = loader.epochs - loader.epochs_completed
    return f"{text}, {left:,} of them left half way" if left > 0 else text


def _counted(number: int, one: str, many: str) -> str:
    return f"{number:,} {one if number == 1 else many}"


class _Bar:
    """Rich renderable: the share of a loop's time that went into waiting.

    Args:
        share: 0 to 1.
        waited_s: The same in seconds.
    """

    def __init__(self, share: float, waited_s: float) -> None:
        self._share = share
        self._label = f" {percent_text(share)} waiting, {format_duration(waited_s)}"

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        room = options.max_width - len(INDENT) - len(self._label)
        width = max(1, min(_WIDEST_BAR, room))
        filled = round(self._share * width)
        full, empty = ("#", ".") if options.ascii_only else ("█", "░")
        bar = Text(INDENT, no_wrap=True, overflow="ignore")
        bar.append(full * filled, style="red" if self._share >= _HARDLY else "green")
        bar.append(empty * (width - filled), style="dim")
        yield bar.append(self._label)
