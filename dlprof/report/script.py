"""What ``dlprof run`` and ``dlprof.watch`` have to say: loaders at work in a training script."""

from __future__ import annotations

import dataclasses
import math
from collections import Counter
from collections.abc import Iterator, Sequence

from dlprof.advise.scaling import straggler_of, waits_for_late
from dlprof.advise.thresholds import NOTABLE
from dlprof.records import (
    SCRIPT_SPEC,
    Finding,
    Headroom,
    Run,
    WatchedLoader,
    WatchedScript,
    own_s,
)
from dlprof.report import document as doc
from dlprof.report.documents import json_document
from dlprof.report.findings import answer, cards, listed, more_findings
from dlprof.report.labels import about_file, certainty, gain_text, percent_text, ratio_text
from dlprof.report.profile import stage_sections
from dlprof.report.ranks import training_facts, training_sections
from dlprof.report.sweep import title_of
from dlprof.units import counted, format_bytes, format_duration, format_rate

_HARDLY = 0.05  # below this share of its loop a loader is not worth a change

_TUNING = "dlprof.tune: "  # what notes begin with that the answer shows

_ENDINGS = {
    "exit": "ended by sys.exit",
    "exception": "ended by an exception",
    "interrupted": "interrupted",
    "os._exit": "ended by os._exit",
}


def script_document(run: Run) -> str:
    """What ``dlprof run --json FILE`` writes; when each batch came stays in the run file."""
    diagnosis = run.diagnosis
    return json_document(
        run_file=run.path or None,
        machine=run.header.machine,
        target=run.header.target,
        script=run.script,
        loaders=[dataclasses.replace(each, step_times=None) for each in run.watched],
        straggler=straggler_of(run),
        findings=diagnosis.findings if diagnosis else (),
        notes=diagnosis.notes if diagnosis else (),
    )


def script_report(run: Run) -> doc.Document:
    """What was seen of a script's loaders, those that were waited for longest first."""
    script = run.script
    rank = "" if script is None or script.rank is None else f", rank {script.rank}"
    # Where a loop that waits is a small part of the script, the answer is the share of the whole.
    whole = _is_rarely_waited_for(run.watched, script)
    bars, tried = [], () if script is None else script.tried
    tuned = {each.dataset for each in tried if each.result == "kept"}  # which had others at first
    for each in () if whole else _by_wait(run)[:4]:
        if each.batches and each.wait_fraction is not None:
            note = "" if each.config is None else each.config.text
            note += " at first" if note and each.dataset.rpartition(".")[2] in tuned else ""
            note = ", ".join(filter(None, (_which(each, run.watched), note)))
            bars.append(_loop(_in_rounds(each), each.name + rank, "wait", note))
    shortfall = list[doc.Block]()
    if script is None or script.ending == "running":
        said = "The script's process ended before it could report more, as by a signal: this is "
        said += "what was seen some time before that."
        said += "" if run.watched else " No loader had been seen by then."
        shortfall.append(doc.Text(said))
    if not run.watched and script is not None:  # why none was seen
        shortfall += doc.known(doc.items(script.notes))
    return doc.Document(
        title=title_of(run).removeprefix(SCRIPT_SPEC),
        answer=(
            # What is wrong with the data, before anything on its speed.
            *(doc.Text(doc.Styled(_wrong(f), "bad")) for f in run.findings if _is_of_data(f)),
            *doc.known(doc.facts(_answer(run)), doc.chart(bars, "loader", kind="share")),
            *shortfall,
        ),
        hints=about_file(run, more_findings(_of_speed(run))) if run.path else ((), ()),
        details=lambda: _details(run),
    )


def _answer(run: Run) -> Iterator[doc.Row]:
    yield "Script", _how_it_went(run)
    if run.watched:
        slowest = _slowest(run.watched)
        yield "Data wait", doc.Styled(_data_wait(run), "strong")
        if (found := slowest.headroom) is not None:
            # A step that loading hardly changes is of the details.
            slower = found.slowed_fraction.ends
            hardly = max(map(abs, slower)) < _HARDLY
            yield "Headroom", headroom_text(found).partition("; " if hardly else "\n")[0]
        elif "headroom" in slowest.unavailable:  # where it was asked for
            yield "Headroom", f"not measured: {slowest.unavailable['headroom']}"
    diagnosis = run.diagnosis
    shown = _of_speed(run)
    if diagnosis is not None and shown and _is_of_the_slowest(run, shown[0]):
        # What the fix can save at most: of a late rank, the wait of others.
        late = straggler_of(run) if "rank" in shown[0].evidence else None
        wait = _slowest(run.watched).wait_fraction if run.watched else None
        wait = wait if late is None else waits_for_late(run, late)
        now = diagnosis.config.num_workers
        yield from answer(shown, wait, workers=now, where="in this loop")
        if shown[0].fix is not None:
            yield _certainty(shown[0])
    elif diagnosis is not None and run.watched:
        # None was found for the loader that is waited for, or none is known: what others show says
        # nothing of that one.
        sign, looked = _slowest(run.watched).unknown_sign, bool(diagnosis.trials)
        unknown = next((each for each in diagnosis.notes if each.startswith(sign)), "")
        if looked and not unknown:
            yield from answer(())
        elif diagnosis.notes:
            yield "Bottleneck", unknown or diagnosis.notes[0]
        if looked:
            yield from _to_gain(run)
    yield from training_facts(run)
    notes = () if run.script is None else run.script.notes
    tuned = [note.removeprefix(_TUNING) for note in notes if note.startswith(_TUNING)]
    few = tuned if len(tuned) < 3 else tuned[:1]  # -v has all
    yield from (("Tuning", said) for said in few)
    if len(tuned) > len(few):
        yield "Tuning", f"{len(tuned) - 1} more results, in the full report"


def _certainty(first: Finding | None = None) -> doc.Row:
    """How sure the gain is: it is predicted from one run, or known by no more than a bound."""
    low, more = False, "run-to-run variation is unknown"
    if first is not None:
        bare = first.predicted_gain is None or first.predicted_gain.low is None
        workers = first.fix is not None and "num_workers" in first.fix.dataloader_kwargs
        shares = "workers may share a limit" if first.code == "fetch.io" and workers else ""
        why = "the gain has no interval" if bare else shares or "the CI leaves out how runs vary"
        low = bare or bool(first.doubtful)
        more = "the cause is in doubt" if first.doubtful else why
    return certainty("low" if low else "medium", f"the script ran once; {more}")


def _data_wait(run: Run) -> str:
    """The wait of this rank's own, and that in its steps for batches of others."""
    script = run.script
    harmless = is_harmless(run.watched, script)
    said = verdict(run.watched if harmless else [*map(_in_rounds, run.watched)], script)
    if script is None:
        return said
    for each in script.ranks:
        waits = each.barrier_fraction or 0.0
        if each.rank == script.rank and waits >= _HARDLY:
            late = straggler_of(run)
            other = late is not None and late.rank not in {None, each.rank}
            whose = f"rank {late.rank}'s" if late is not None and other else "other ranks'"
            said = f"rank {each.rank} waits for {whose} data {percent_text(waits)} of the time, "
            said += f"for its own {percent_text(each.wait_fraction)}."
    return said


def _which(loader: WatchedLoader, others: Sequence[WatchedLoader]) -> str:
    """What distinguishes a loader from those that one line made, as a function for all of them."""
    alike = [each for each in others if each.place and each.place == loader.place]
    callers, samplers = ({getattr(x, of) for x in alike} for of in ("called_from", "sampler"))
    if len(alike) < 2 or len(alike) not in {len(callers), len(samplers)}:
        return ""
    return f"from {loader.called_from}" if len(callers) == len(alike) else loader.sampler


def _in_rounds(loader: WatchedLoader) -> WatchedLoader:
    """With what waiting costs in its rounds, where pauses, which fill queues, hide a part of it."""
    found, wait = loader.headroom, loader.wait_fraction
    if found is None or wait is None or wait >= (found.waiting_fraction.low or 0.0):
        return loader
    return dataclasses.replace(loader, wait_fraction=found.waiting_fraction.value)


def _to_gain(run: Run) -> Iterator[doc.Row]:
    """How sure it is that nothing is to be gained: no loader saves more than the wait for data."""
    script = run.script
    if script is None or len(script.ranks) > 1:
        return  # of several ranks each waits for the others as well
    where, wait = "for the script", script.wait_fraction
    if script.is_cut_short:
        where, wait = "in this loop", _slowest(run.watched).wait_fraction
    if wait is None or wait > 0.99:  # of a loop without steps a bound says nothing
        return
    # Its main thread may wait for another, which waits for data; and headroom says it better.
    if any(each.background_s > 0 or each.headroom is not None for each in run.watched):
        return
    yield "Speed-up", f"at most {ratio_text(1 / (1 - wait))} {where}, without any wait for data"
    yield _certainty()


def headroom_text(found: Headroom) -> str:
    """What a perfect loader would bring, and whether loading slows the step beside the wait."""
    slower, most = found.slowed_fraction, found.slowed_fraction.high or 0.0
    if slower.low is not None and slower.low <= 0:
        step = "loading doesn't slow the step"
        if most >= 0.005:  # what is less is written as <1%
            step = f"loading slows the step by {percent_text(most)} at most"
    else:
        step = f"loading slows the step, by {percent_text(slower.value)} of a batch's time"
    now, then = format_duration(found.period_s), format_duration(found.step_s)
    times = f": {then} a batch, not {now}"
    times = "" if found.speedup.is_wide else times  # whose quotient it is
    return f"{gain_text(found.speedup)} with a perfect loader{times}; {step}"


def _of_speed(run: Run) -> list[Finding]:
    return [each for each in run.findings if not _is_of_data(each)]


def _is_of_data(finding: Finding) -> bool:
    if finding.code == "data.shared_file" and not finding.cost:
        return False  # of one worker, which shares it with none
    return finding.code.startswith("data.") or "unfed_ranks" in finding.evidence


def _wrong(finding: Finding) -> str:
    shown, text = finding.evidence, f"{finding.title} ({finding.code})."
    if "unfed_ranks" in shown:
        return f"{text} {finding.explanation}"
    names = [*listed(shown.get("seen_in")), *listed(shown.get("trials")), "a loader"]
    return f"The data of {names[0]} is wrong: {text}"


def _is_of_the_slowest(run: Run, first: Finding) -> bool:
    """Whether the findings are of the loader that the verdict names, and cost time."""
    if "rank" in first.evidence:  # of the one that the others wait for
        return first.code != "consumer"  # which disagrees with that
    if is_harmless(run.watched, run.script):
        others = first.code == "cpu.neighbours" and any(f.code == "consumer" for f in run.findings)
        return others or first.code.startswith(("transfer.", "step."))
    # What ranks show of a loader needs no traced batches.
    trials = () if run.diagnosis is None else run.diagnosis.trials
    named = (*trials, *listed(first.evidence.get("seen_in")))
    of_it = not run.watched or _slowest(run.watched).name in named
    return of_it and first.code != "consumer"  # likewise


def _how_it_went(run: Run) -> str:
    name = run.header.target.spec.removeprefix(SCRIPT_SPEC)
    script = run.script
    if script is None:
        return f"{name}, cut off"
    parts = [f"{name} ran {format_duration(script.wall_s)}"]
    if run.watched and not _in_background(_slowest(run.watched)):
        # As seconds alone: the share that is said is that of the loop.
        waited, rest = format_duration(script.waited_s), "that"
        # Batches given again are no part of the script as it runs otherwise.
        extra_s = script.wall_s - own_s(script.wall_s, run.watched)
        if extra_s > 0:
            parts = [f"{parts[0]}, {format_duration(extra_s)} of that for --headroom,"]
            rest = "the rest"
        parts = [f"{parts[0]} and waited {waited} of {rest} for data"]
    if script.ending == "running":
        parts.append("cut off")
    if script.ending in _ENDINGS:
        code = "" if script.exit_code is None else f" with exit code {script.exit_code}"
        parts.append(f"{_ENDINGS[script.ending]}{code}")
    if script.rank is not None:
        parts.append(f"rank {script.rank} of {script.world_size}")
    return ", ".join(parts)


def _in_background(loader: WatchedLoader) -> bool:
    """Whether another thread waits for it: how long the main one waits for that is not seen."""
    return loader.background_s > loader.waited_s / 2


def _by_wait(run: Run) -> list[WatchedLoader]:
    return sorted(run.watched, key=lambda each: each.waited_s, reverse=True)


def _loop(loader: WatchedLoader, label: str, waited: str, note: str = "") -> doc.Bar:
    share, found = loader.wait_fraction, loader.headroom
    waited_s, stepped_s = loader.waited_s, loader.stepped_s
    if found is not None and share == found.waiting_fraction.value:  # of a batch, then
        waited_s, stepped_s = share * found.period_s, (1 - share) * found.period_s
    return doc.Bar(
        label=label,
        pieces=(
            doc.Piece(max(0.0, waited_s), "wait", format_duration(waited_s)),
            doc.Piece(max(0.0, stepped_s), "step", format_duration(stepped_s)),
        ),
        figure=f"{percent_text(share)} {waited}",
        note=note,
        tone="bad" if (share or 0.0) >= _HARDLY else "good",
    )


def _details(run: Run) -> Iterator[doc.Section]:
    shown = _by_wait(run)[:50]
    places = Counter(each.place for each in shown)
    yield from doc.section(
        "Loaders", *(_loader(each, names_caller=places[each.place] > 1) for each in shown)
    )
    if more := len(run.watched) - len(shown):
        yield from doc.section("More loaders", doc.Text(f"{counted(more, 'loader')} not shown."))
    yield from training_sections(run)
    tuned = []
    for each in () if run.script is None else run.script.tried:
        gain = "" if each.speedup is None else f", {gain_text(each.speedup)}"
        gain = ", faster, too noisy for a figure" if each.was_faster else gain
        what = f"{each.dataset}, after {format_duration(each.at_s)}: {each.setting}"
        tuned.append(f"{what} {each.outcome}{gain}; {each.why}")
    yield from doc.section("Tuning", doc.items(tuned))
    yield from doc.section("Findings", *cards(run.findings))
    if run.traced is not None:
        several = len(run.explanations) > 1
        yield from stage_sections(run.traced, f", of {run.traced.trial_id}" if several else "")
    notes = () if run.diagnosis is None else run.diagnosis.notes
    said = () if run.script is None else run.script.notes
    yield from doc.section("Notes", doc.items([*notes, *said]))


def verdict(loaders: Sequence[WatchedLoader], script: WatchedScript | None = None) -> str:
    """One sentence on the loader that is waited for longest."""
    slowest = _slowest(loaders)
    share, name = slowest.wait_fraction, slowest.name
    if share is None or not slowest.batches:
        return f"{name} gave no batch."
    if is_harmless(loaders, script):
        who, wait = name, percent_text(share)
        if script is not None and _is_rarely_waited_for(loaders, script):
            who, wait = "the script", percent_text(script.wait_fraction)
        return f"No DataLoader bottleneck: {who} spends {wait} waiting for data."
    whole_s = slowest.waited_s + slowest.stepped_s
    # In seconds, as the wait beside it is of the whole script's; a share in rounds is of these.
    of_loop = math.isclose(share * whole_s, slowest.waited_s, rel_tol=1e-6)
    spent = format_duration(whole_s) if of_loop else "time"
    sentence = f"The loop over {name} spends {percent_text(share)} of its {spent} waiting for data"
    begun_s = (slowest.startup_s or 0.0) + (slowest.turnover.total_s if slowest.turnover else 0.0)
    begun = begun_s / whole_s if whole_s > 0 else 0.0
    if begun >= NOTABLE:
        within, config = max(0, round(100 * share) - round(100 * begun)), slowest.config
        sentence += f": {within}% in epochs, {percent_text(begun)} at epoch starts"
        if slowest.epochs == 1:
            sentence += " (less in longer epochs)"
        elif config and config.num_workers and not config.persistent_workers and slowest.made == 1:
            once = not slowest.against_persisting
            sentence += " (persistent_workers=True starts workers once)" if once else ""
    sentence += "."
    if _in_background(slowest):
        sentence += " That is in a background thread; the main one need not wait for it."
    return sentence


def _slowest(loaders: Sequence[WatchedLoader]) -> WatchedLoader:
    return max(loaders, key=lambda each: each.waited_s - each.nested_s)


def is_harmless(loaders: Sequence[WatchedLoader], script: WatchedScript | None) -> bool:
    """Whether no loader is waited for to speak of."""
    if not loaders:
        return False
    waits = _slowest(loaders).wait_fraction
    return _is_rarely_waited_for(loaders, script) or (waits is not None and waits < _HARDLY)


def _is_rarely_waited_for(loaders: Sequence[WatchedLoader], script: WatchedScript | None) -> bool:
    """Whether a script that came to its end waited for little of it, whatever its loops did."""
    if script is None or script.wait_fraction is None or script.is_cut_short or not loaders:
        return False
    return script.wait_fraction < _HARDLY and not _slowest(loaders).background_s


def summary_text(loader: WatchedLoader) -> str:
    """What was seen of one loader as plain text, 80 columns wide."""
    from dlprof.report.terminal import plain_text  # few loops print it

    return plain_text(loader_report(loader), width=80)


def loader_report(loader: WatchedLoader) -> doc.Document:
    """What was seen of one loader."""
    said = doc.Text(verdict([loader]))
    return doc.Document(title=loader.name, answer=(_loader(loader), said))


def _loader(loader: WatchedLoader, *, names_caller: bool = False) -> doc.Card:
    about = [each for each in (loader.dataset, loader.sampler) if each]
    if names_caller and loader.called_from:
        about.append(f"called from {loader.called_from}")
    blocks: list[doc.Block] = []
    if loader.config is not None:
        blocks.append(doc.Text(loader.config.text))
    if loader.wait_fraction is not None and loader.batches:
        bar = _loop(loader, "loop", f"waiting, {format_duration(loader.waited_s)}")
        blocks.append(doc.Chart(bars=(bar,), kind="share"))
        spent = {"wait": loader.wait, "step": loader.step}
        if known := {name: each for name, each in spent.items() if each is not None}:
            columns = (
                doc.Column("", [*known], left=True),
                doc.Column("median", [format_duration(s.median_s) for s in known.values()]),
                doc.Column("p95", [format_duration(s.p95_s) for s in known.values()]),
                doc.Column("longest", [format_duration(s.max_s) for s in known.values()]),
            )
            blocks.append(doc.Table(columns))
    blocks.append(doc.Items(tuple(_facts(loader))))
    return doc.Card(title=loader.name, code=", ".join(about), blocks=tuple(blocks))


def _facts(loader: WatchedLoader) -> Iterator[str]:
    made = f"{counted(loader.batches, 'batch')} in {counted(loader.epochs, 'epoch')}"
    if (left := loader.epochs - loader.epochs_completed) > 0:
        made += f", {left:,} of them left half way"
    rates = [f"{format_rate(loader.batches_per_s)} batches/s"] if loader.batches_per_s else []
    if loader.duplicated and loader.config is not None:  # what comes again is no sample more
        rates.append(f"the same samples up to {loader.config.num_workers} times")
    elif loader.samples_per_s is not None:
        rates.append(f"{format_rate(loader.samples_per_s)} samples/s")
    yield "; ".join(filter(None, (made, ", ".join(rates))))
    if (copies := loader.copies) is not None:  # the first batches stand for all
        text = (
            f"exposed copies to {copies.device}: {format_duration(copies.exposed_s)} of each step"
        )
        if loader.step is not None and copies.exposed_s is not None:
            rest_s = max(0.0, loader.step.mean_s - copies.exposed_s)
            text += f", the rest takes {format_duration(rest_s)}"
        if copies.hidden_s:
            text += f"; {format_duration(copies.hidden_s)} more overlap with it"
        pinned = percent_text(copies.pinned_fraction)
        yield f"{text}; {format_bytes(copies.bytes)} a batch, {pinned} of it pinned"
    if (found := loader.headroom) is not None:
        yield headroom_text(found)
        live, again = found.live_batches, found.replayed_batches
        waiting = percent_text(max(0.0, found.waiting_fraction.value))
        yield (
            f"{found.rounds} rounds of {live} batches as they came and {again} given again; "
            f"{found.extra_steps} steps more, {format_duration(found.extra_s)}; in these rounds "
            f"waiting costs {waiting} of the time, without the pauses, which fill queues"
        )
    if loader.startup_s is not None:
        begun = f"time to first batch {format_duration(loader.startup_s)}"
        if (turnover := loader.turnover) is not None:
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
        yield f"{counted(loader.failures, 'call')} failed, the last: {loader.failure}"
