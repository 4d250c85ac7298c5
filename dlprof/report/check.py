"""What ``dlprof check`` has to say: on screens, in its documents, in files for CI systems."""

from __future__ import annotations

import dataclasses
import itertools
import json
import math
import re
import secrets
import shlex
import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from xml.etree import ElementTree as ET

from dlprof.errors import DlprofError, FileError, refuse_newer
from dlprof.gate.baseline import comparable
from dlprof.gate.views import readings_of
from dlprof.gate.wording import (
    METRICS,
    UNITS,
    VIEW_NAMES,
    amount,
    figure_text,
    percent,
    seconds_text,
    stage_line,
)
from dlprof.records import Config, Estimate
from dlprof.records.codec import MismatchError, from_json, to_json
from dlprof.records.gate import (
    CHECK_SCHEMA_VERSION,
    BaselineEntry,
    BaselineKey,
    BaselineRule,
    CheckReport,
    Compared,
    GateResult,
    GateState,
    SelfTest,
    Sight,
    TargetCheck,
    ViewFigures,
)
from dlprof.report import document as doc
from dlprof.report.documents import json_document, line_by_line
from dlprof.report.labels import MOST_BARS
from dlprof.report.markdown import to_markdown
from dlprof.report.page import to_html
from dlprof.report.text import clean, clean_lines, shortened
from dlprof.units import MISSING, counted, duration_option, format_duration

_HEADLINES: Mapping[GateState, str] = {
    "fail": UNITS["s"].headline,
    "inconclusive": "It is undecided whether data loading got slower",
    "no_baseline": "The baseline has too few comparable runs",
    "pass": "Data loading did not get slower beyond its limits",
}
"""Verdicts, the worst first."""

STATE_WORDS = {state: state.replace("_", " ").upper() for state in _HEADLINES}  # a verdict in words

_SERVICE = "fetch and collate, without run-queue delay"
_UNDECIDED = frozenset({"undecided", "too_few_quads", "contended", "cores_differ", "spread"})
_NO_CHARACTER = re.compile("[\ufdd0-\ufdef\ufffe\uffff]")
# GitHub's runner obeys lines of a job's output that begin with these, blanks aside.
_COMMAND = re.compile(r"(?<!\S)(:|#)(:|#\[)")


def short(text: str, most: int = 300) -> str:
    """A text from anywhere as one line that is safe to show, cut where it is long."""
    line = _COMMAND.sub(r"\1 \2", _NO_CHARACTER.sub("", clean(text)))
    return line if len(line) <= most else f"{line[: most - 3]}..."


def sentence(text: str) -> str:
    """The same of whole sentences, which are longer."""
    return short(text, 1000)


def target_name(check: CheckReport) -> str:
    """A name for the target, short and not empty."""
    return short(check.target.target) or "target"


def headline(check: CheckReport) -> str:
    """The whole check's verdict as a headline."""
    failed = {gate.unit for gate in check.target.verdict.gates if gate.state == "fail"}
    if check.state == "fail" and len(failed) == 1:
        return UNITS[failed.pop()].headline
    if check.state == "inconclusive" and _slower_undecided(check):
        return "Data loading got slower; whether by more than its limit is undecided"
    return _HEADLINES[check.state]


def _slower_undecided(check: CheckReport) -> list[ViewFigures]:
    """By what the service time is surely above the base's, where its limit is what is undecided."""
    gates = (gate for gate in check.target.verdict.gates if gate.name == "service")
    views = (view for gate in gates if gate.state == "inconclusive" for view in gate.views)
    return [view for view in views if 0 < (view.low or 0.0) <= view.limit]


def state_word(check: CheckReport) -> str:
    """The whole check's verdict, with what takes its force from it."""
    word = STATE_WORDS[check.state]
    if check.state == "fail" and check.override:
        return f"{word}, allowed"
    return f"{word}, warning only" if check.state == "fail" and check.warn_only else word


def side_text(side: Compared, most: int = 300) -> str:
    """One side of the check, ``main (1a2b3c4)``, names that are longer cut."""
    name, note = (shortened(short(text), most) for text in (side.name, side.note))
    inside = ", ".join(part for part in (short(side.commit, 7 + 3)[:7], note) if part)
    return f"{name} ({inside})" if inside else name


def rows(gates: Sequence[GateResult]) -> Iterator[tuple[str, str, str, str, str, str, str]]:
    """The figures of all metrics; a metric without figures has one row of dashes.

    Metric, view, base, change, by how much it is worse, its limit, and the verdict, which only the
    first view of a metric has.
    """
    for gate in gates:
        label = short(gate.label)
        state = STATE_WORDS[gate.state] if gate.reason != "not_measured" else "not measured"
        if not gate.views:
            yield label, "", MISSING, MISSING, MISSING, MISSING, state
        for view in gate.views:
            base, change = (figure_text(each, gate.unit) for each in (view.base, view.change))
            shift, limit = short(view.text), short(view.limit_text)
            yield label, view_text(view), base, change, shift, limit, state
            state = ""


def view_text(view: ViewFigures) -> str:
    """A view as an ending to its metric's label; empty where a metric has but one."""
    name = VIEW_NAMES.get(view.view)
    return f" ({name})" if name else ""


def not_judged(check: CheckReport) -> Mapping[str, str]:
    """What was left out: why, by the metric's label."""
    reasons = check.unavailable
    return {m.label: reasons[name] for name, m in METRICS.items() if name in reasons}


def notes(target: TargetCheck) -> list[str]:
    """What people should know of how a target's verdict was found."""
    part = _part(target)
    return [*([f"Blocks load the same {part}."] if part else []), *target.verdict.notes]


def _part(target: TargetCheck) -> str:
    """Which part of the samples is loaded again and again; empty where it is all of them."""
    blocks = (block for quad in target.quads if quad.series == "load" for block in quad.blocks)
    samples = max((sum(block.samples) for block in blocks), default=0)
    samples //= 1 if target.plan is None else target.plan.epochs
    if target.length is None or not 0 < samples < target.length:
        return ""
    return f"{samples:,} of {target.length:,} samples"


def stage_lines(target: TargetCheck) -> Iterator[tuple[str, str]]:
    """Where the time went: stages by name, with a text for each."""
    for stage in target.verdict.stages:
        each = "" if stage.stage == "startup" else " a sample"
        yield short(stage.stage), f"{amount(stage.shift_s, 's')}{each}, {stage_line(stage)}"


def advice(check: CheckReport) -> str:
    """What to do now, in a sentence; empty where there is nothing to do."""
    if check.state == "fail" and not check.override:
        accept = "" if check.warn_only else "; --allow-regression REASON accepts it"
        return f"dlprof profile {shlex.quote(short(check.target.target))}{accept}"
    reasons, needed_s = {gate.reason for gate in check.target.verdict.gates}, check.target.needed_s
    needed = f" {duration_option(needed_s)}" if needed_s is not None else ""
    if check.state == "inconclusive" and "unusable_blocks" in reasons:
        return "Fix what kept the blocks from being measured, then check again"
    if check.state == "inconclusive" and reasons & _UNDECIDED:
        # Whether more quads could still decide a metric that is undecided.
        gates, plan, quads = check.target.verdict.gates, check.target.plan, check.target.quads
        undecided = {gate.name for gate in gates if gate.reason in _UNDECIDED}
        rules = [] if plan is None else [rule for rule in plan.rules if rule.name in undecided]
        left = any(len(readings_of(each, quads)) < each.looks[-1] for each in rules)
        if left and "cores_differ" not in reasons:
            return f"Give it more time with --budget{needed}, or use a quieter machine"
        highs = [view.high for view in _slower_undecided(check) if view.high is not None]
        enough = f" {math.ceil(100 * max(highs))}%" if highs else ""
        other = f"use a quieter machine, or accept more with --fail-above{enough}"
        if "cores_differ" in reasons:
            other = "leave out --no-pin, or run it on one core with taskset -c 0"
        return f"More time won't help: {other}"
    if check.state == "inconclusive" and "unconfirmed" in reasons:
        larger = f"--budget{needed}" if needed else "a larger --budget"
        return f"Check again with {larger}: two new pairs of processes may agree"
    file, target = (shlex.quote(short(text)) for text in (check.base.name, check.target.target))
    update = f"dlprof baseline update {file} {target}"
    record = f"Record runs on this machine, with the options of this check: {update}"
    return record if check.state == "no_baseline" else ""


GIVE_DOCUMENT = "Give a document that dlprof check --json printed."
"""The hint where a file is no such document."""

_TONES: dict[GateState, doc.Tone] = dict.fromkeys(_HEADLINES, "warn")
_TONES |= {"pass": "good", "fail": "bad"}


def check_report(check: CheckReport) -> doc.Document:
    """The verdict, what to do, and what it rests on; ``-v`` and pages have long names whole."""
    named = METRICS["service"].label in check.target.verdict.explanation
    term = f" · service time: {_SERVICE}" if named else ""
    return doc.Document(
        title=f"{state_word(check)}: {headline(check)}",
        answer=doc.known(doc.facts(_answer(check)), _pictured(check.target)),
        hints=doc.hint(f"Details: -v{term}"),
        details=lambda: _details(check),
    )


def fault_report(fault: DlprofError) -> doc.Document:
    """Why there is no verdict."""
    rows = (("Why", sentence(fault.message)), ("To do", sentence(fault.hint)))
    return doc.Document(
        title="ERROR: Data loading was not checked",
        answer=doc.known(doc.facts(row for row in rows if row[1])),
    )


def _answer(check: CheckReport) -> Iterator[doc.Row]:
    yield "Verdict", (doc.Styled(state_word(check), _TONES[check.state]), f": {headline(check)}")
    if to_do := advice(check):
        yield "To do", to_do
    if check.override and check.state == "fail":
        yield "Allowed", f"by --allow-regression: {short(check.override, 100)}"
    why = sentence(check.target.verdict.explanation).removeprefix(f"{headline(check)}: ")
    yield "Target", (doc.Styled(shortened(target_name(check), 40), "strong"), f": {why}")
    verdict, also = check.target.verdict, []
    for gate in verdict.gates:
        if gate.state == "fail" and not verdict.explanation.startswith(gate.explanation):
            for view in gate.views[:1]:
                limit = f", limit {short(view.limit_text)}" if view.limit_text else ""
                also.append(f"{short(gate.label)} {short(view.text)}{limit}")
    yield "Also fails", "; ".join(also) or MISSING
    left_out: dict[str, list[str]] = {}
    for label, why in not_judged(check).items():
        left_out.setdefault(why, []).append(label)
    yield from (("Left out", f"{', '.join(each)}: {why}") for why, each in left_out.items())
    yield "Compared", f"{side_text(check.change, 24)} vs {side_text(check.base, 24)}"
    if check.target.plan is not None and (differ := check.target.plan.loader_difference):
        yield "Settings", f"differ: {short(differ)}"
    yield from _certainty(check)


def _certainty(check: CheckReport) -> Iterator[doc.Row]:
    """What a pass excludes, or how seldom such a failure is a false alarm; how long it took."""
    bound, took_s = check.target.verdict.error_bound, check.target.measured_s
    took = f"took {format_duration(took_s)}" if took_s else ""
    rule = check.target.plan or check.target.baseline_rule
    # Each end of an interval holds as surely, over all looks.
    level = f" ({100 * rule.confidence:.10g}%)" if rule is not None else ""  # never rounded to all
    gates = check.target.verdict.gates
    sure, views = "", [view for gate in gates if gate.name == "service" for view in gate.views]
    if check.state == "fail" and bound is not None:
        share = percent(bound, signed=False)
        sure = f"false alarms at most {share}, even for code right at its limits"
        if check.target.plan is not None:  # by which each metric is that sure, whatever others are
            fails = sum(gate.state == "fail" for gate in check.target.verdict.gates)
            each = "each " if fails > 1 else ""
            sure = f"{each}beyond its limit{level}; false alarms at most {share}"
    elif check.state == "pass" and views:
        highs = [view.high for view in views if view.high is not None]
        most = percent(max(highs, default=0.0))
        sure = f"a slowdown of more than {most.removeprefix('+')} is excluded{level}"
        if most.startswith("-"):
            sure = f"faster by at least {most.removeprefix('-')}{level}"
        if len(highs) < len(views):
            sure = f"only a slowdown of more than {views[0].limit_text} would be seen"
        part = _part(check.target)
        plan = check.target.plan
        often = f"in {plan.epochs} epochs" if plan and plan.epochs > 1 else "again and again"
        sure += f" in the {part} that blocks load, {often}" if part else ""
        if plan and plan.keeping and plan.epochs == 1:
            loads = f"the {plan.keeping[0]}'s first loads of samples"
            sure += f"; {loads} are not compared (see details)"
    elif check.state == "inconclusive":
        for view in _slower_undecided(check)[:1]:
            least = percent(view.low or 0.0).removeprefix("+")
            sure = f"slower by at least {least}{level}; by more than {view.limit_text}: undecided"
        beyond = (each.low for each in views if each.low is not None and each.low > each.limit)
        for low in itertools.islice(beyond, 1):
            least = percent(low).removeprefix("+")
            sure = f"measured slower by at least {least}{level}; whether by the code: undecided"
    yield "Certainty", "; ".join(filter(None, (sure or "none", took)))


def _pictured(target: TargetCheck) -> doc.Chart | None:
    """The chart of the answer: where the time went, if it is time that fails the check."""
    fails = any(gate.state == "fail" and gate.unit == "s" for gate in target.verdict.gates)
    stages = (stage for stage in target.verdict.stages if stage.stage != "startup")
    slower = any((stage.low_s or 0.0) > 0 for stage in stages)
    return _stages(target, 4) if fails and slower else None


def _stages(target: TargetCheck, most: int | None = None) -> doc.Chart | None:
    """Where the time of a sample went: what got slower leads to the left.

    That a start takes longer is in the table: it is no time of a sample.
    """
    stages = [stage for stage in target.verdict.stages if stage.stage != "startup"]
    bars = []
    for stage in stages[:most]:
        low, high = (None if end is None else -end for end in (stage.high_s, stage.low_s))
        shift = Estimate(value=-stage.shift_s, low=low, high=high)
        figure, note = amount(stage.shift_s, "s"), stage_line(stage)
        bars.append(doc.Bar.of(short(stage.stage), shift, figure, note))
    return doc.chart(bars, "stage", "a sample", "signed")


def _details(check: CheckReport) -> Iterator[doc.Section]:
    """Where it was measured, and all that the verdict rests on but the chart of the answer."""
    machine, versions = check.machine, {"dlprof": check.dlprof_version}
    versions["torch"] = check.torch_version
    known = [f"{name} {short(version)}" for name, version in versions.items() if version]
    cpu = f"{short(machine.cpu_model)}, {machine.usable_cores:g} cores" if machine else MISSING
    place = {
        "Machine": cpu,
        "Versions": ", ".join(known) or "not known",
        "Change": side_text(check.change),
        "Base": side_text(check.base),
        "Allowed": short(check.override) or MISSING,
    }
    yield from doc.section("Measured on", doc.facts(place.items()))
    target, verdict, stages = check.target, check.target.verdict, _stages(check.target)
    open_gates = [gate for gate in verdict.gates if gate.state != "pass"]
    said = [gate.explanation for gate in open_gates if gate.reason != "not_measured"]
    remarks = doc.items(sentence(text) for text in (*said, *notes(target)))
    title = f"{target_name(check)}: {STATE_WORDS[verdict.state]}"
    shown = None if stages == _pictured(target) else stages
    yield from doc.section(title, _metrics(verdict.gates), shown, remarks)


def _metrics(gates: Sequence[GateResult]) -> doc.Table | None:
    """What each metric rests on; the sentences of those that don't pass are beside it."""
    if not gates:
        return None
    metric, view, base, change, shift, limit, state = zip(*rows(gates), strict=True)
    tones = {word: _TONES[state] for state, word in STATE_WORDS.items() if state != "pass"}
    # The label of further views of a metric is the view alone.
    found = zip(metric, view, state, strict=True)
    names = [f"{label}{ending}" if verdict else ending.strip() for label, ending, verdict in found]
    return doc.Table(
        (
            doc.Column("metric", names, left=True, note=f"service time: {_SERVICE}."),
            doc.Column("base", base, 1),
            doc.Column("change", change, 2),
            doc.Column("worse by", shift, 8, left=True),
            doc.Column("limit", limit, 3),
            doc.Column("verdict", state, 9, left=True),
        ),
        tuple(tones.get(verdict, "") for verdict in state),
    )


def check_document(check: CheckReport | SelfTest) -> str:
    """What ``dlprof check --json`` prints: one key a line, so that blocks don't fill the screen."""
    return line_by_line(to_json(check))


def read_check(text: str, name: str) -> CheckReport:
    """The check that a document holds; its verdict is that of whoever wrote it."""
    try:
        data = json.loads(text)
    except (ValueError, RecursionError) as error:
        fault = "nested too deeply" if isinstance(error, RecursionError) else "not JSON"
        raise FileError(f"{name} is {fault}", hint=GIVE_DOCUMENT) from None
    version = data.get("schema_version") if isinstance(data, dict) else None
    if not isinstance(version, int):
        raise FileError(f"{name} is no document of a check", hint=GIVE_DOCUMENT)
    refuse_newer(name, version, CHECK_SCHEMA_VERSION)
    try:
        check = from_json(CheckReport, data)
    except MismatchError as error:
        raise FileError(f"{name}: {error}", hint=GIVE_DOCUMENT) from None
    if len(check.targets) != 1:
        raise FileError(f"{name} is a check of {len(check.targets)} targets", hint=GIVE_DOCUMENT)
    return check


def self_test_report(test: SelfTest) -> doc.Document:
    """Whether verdicts can be trusted here, and how small a slowdown a check detects."""
    slower = percent(test.injected, signed=False)
    verdicts = {
        name: f"{STATE_WORDS[run.verdict.state]} after {format_duration(run.measured_s)}"
        for name, run in (("the same code", test.same), (f"{slower} slower", test.slowed))
    }
    reach = {}
    for each in test.reach:
        reach[each.label] = f"nothing: {short(each.reason)}"
        if each.worse is not None:
            reach[each.label] = amount(each.worse, each.unit) if each.unit else percent(each.worse)
    # The smallest slowdown of the service time that fails, by how long is measured.
    sights = test.sights if len(test.sights) > 1 else ()
    shown = (*sights[: MOST_BARS - 1], *sights[MOST_BARS - 1 :][-1:])
    bars = (doc.Bar.of(str(each.quads), each.slowdown, _slowdown(each)) for each in shown)
    word = doc.Styled("TRUSTED", "good") if test.trusted else doc.Styled("NOT TRUSTED", "warn")
    rows: list[doc.Row] = [("Verdict", (word, ": checks on this machine"))]
    rows.append(("Why", sentence(test.explanation)))
    for last in test.sights[-1:]:
        plan, took = test.same.plan, format_duration(test.same.measured_s)
        limits = [rule.threshold for rule in plan.rules if rule.name == "service"] if plan else []
        of = "".join(f": the limit of {percent(each, signed=False)} and noise" for each in limits)
        after = f"{last.quads} ABBA blocks (base, change, change, base; {took})"
        rows.append(("Detects", f"slowdowns of {_slowdown(last)} or more{of}; after {after}"))
    to_do = "use dlprof check here as it is"
    if not test.trusted:
        to_do = "self-test again with a larger --budget, or on a quieter machine"
    rows.append(("To do", to_do))
    return doc.Document(
        title="Self-test of dlprof check",
        answer=doc.known(doc.facts(rows), doc.chart(bars, "ABBA blocks", "detectable")),
        hints=doc.hint("Details: -v"),
        details=lambda: (
            *doc.section("Verdicts", doc.facts(verdicts.items())),
            *doc.section("What fails a check here", doc.facts(reach.items())),
        ),
    )


def _slowdown(sight: Sight) -> str:
    return percent(sight.slowdown).removeprefix("+")


_METRIC = "service.mean"


def baseline_document(name: str, history: Sequence[BaselineEntry]) -> str:
    """What ``dlprof baseline show --json`` prints of a file and all its entries."""
    keys = [{"key": key, "runs": runs} for key, runs in _by_key(history).items()]
    return json_document(file=name, keys=keys)


def baseline_report(name: str, history: Sequence[BaselineEntry]) -> doc.Document:
    """The latest run beside those it can be compared with; the details have all kinds of runs."""
    kinds = _by_key(history)
    of = f" of {counted(len(kinds), 'kind')}" if len(kinds) > 1 else ""
    said = f"{short(name)}: {counted(len(history), 'run')}{of}"
    rows: list[doc.Row] = [("Baseline", said)]
    chart: tuple[doc.Block, ...] = ()
    for latest in history[-1:]:
        runs = kinds[latest.key]
        rows += [("Latest", _name(latest.key)), *_kind(latest.key, runs)]
        chart = _runs_chart(runs, MOST_BARS)
    return doc.Document(
        title=f"Baseline {short(name)}",
        answer=(doc.FactList(tuple(rows)), *chart),
        hints=doc.hint("Details: -v"),
        details=lambda: (
            doc.Section(_name(key), (doc.FactList(tuple(_kind(key, runs))), *_runs_chart(runs, 50)))
            for key, runs in kinds.items()
        ),
    )


def _by_key(history: Sequence[BaselineEntry]) -> dict[BaselineKey, list[BaselineEntry]]:
    keys = dict.fromkeys(entry.key for entry in history)  # each once: a history may be long
    return {key: comparable(history, key) for key in keys}


def _name(key: BaselineKey) -> str:
    return f"{short(key.target)}, {short(Config.text_of(key.config))}"


def _kind(key: BaselineKey, runs: Sequence[BaselineEntry]) -> Iterator[doc.Row]:
    where = f"{key.cpu_model}, {key.available_cores:g} cores, {key.os}"
    yield "Machine", short(f"{where}, Python {key.python}, torch {key.torch}")
    least = BaselineRule().least_runs
    if len(runs) < least:
        more = counted(least - len(runs), "more run")
        yield "Missing", doc.Styled(f"{more} needed before a run can be judged", "warn")


def _runs_chart(runs: Sequence[BaselineEntry], most: int) -> tuple[doc.Block, ...]:
    """Service time of the last runs, each against the median of all."""
    figures = [each.figures[_METRIC] for each in runs if _METRIC in each.figures]
    middle = statistics.median(figures) if figures else math.nan
    left_out = max(0, len(runs) - most)
    said = f"Service time, against the median of {counted(len(figures), 'run')}"
    said += f"; {counted(left_out, 'earlier run')} not shown" if left_out else ""
    bars = []
    for run in runs[left_out:]:
        # To the minute.
        when, commit = short(run.recorded_at)[:16].replace("T", " "), short(run.commit)[:7]
        value = run.figures.get(_METRIC)
        if value is None:
            note = f"no service time {commit}".rstrip()
            bars.append(doc.Bar(label=when, pieces=(), figure=MISSING, note=note))
        else:
            against = f"{percent(value / middle - 1)} {commit}".strip()
            bars.append(doc.Bar.of(when, value, seconds_text(value), against))
    chart = doc.Chart(label="run", unit="a sample", bars=tuple(bars))
    return doc.Text(doc.Styled(said, "soft")), chart


def _figures(check: CheckReport) -> Iterator[tuple[GateResult, ViewFigures, Estimate]]:
    """The change's figures with their intervals: seconds or bytes."""
    for gate in check.target.verdict.gates:
        for view in gate.views:
            value = _shifted(gate, view, view.shift)
            if value is not None:
                low, high = (_shifted(gate, view, end) for end in (view.low, view.high))
                yield gate, view, Estimate(value=value, low=low, high=high)


def _shifted(gate: GateResult, view: ViewFigures, shift: float | None) -> float | None:
    """The base's figure made worse by a shift, on whichever scale it is; never less than none."""
    if view.base is None or shift is None:
        return None
    value = view.base * (1 + shift) if gate.scale == "ratio" else view.base + shift
    return max(0.0, value) if math.isfinite(value) else None


def render_bencher(check: CheckReport) -> str:
    """Bencher Metric Format: seconds as nanoseconds, bytes as bytes, throughput a second."""
    measures: dict[str, dict[str, float]] = {}
    for gate, shown, figure in _figures(check):
        scale = UNITS[gate.unit].factor
        ends = {"value": figure.value, "lower_value": figure.low, "upper_value": figure.high}
        slug, view = gate.name.replace("_", "-"), shown.view.replace("_", "-")
        if slug == "service":  # Bencher's own slug for the first, of nanoseconds
            slug = "latency" if view == "mean" else f"service-{view}"
        measures[slug] = {key: value * scale for key, value in ends.items() if value is not None}
        if gate.name == "wall" and figure.value > 0:
            measures["throughput"] = {"value": 1 / figure.value}
    found = {target_name(check): measures} if measures else {}
    return json.dumps(found, allow_nan=False, indent=2)


def render_benchmark_action(check: CheckReport) -> str:
    """``customSmallerIsBetter`` of github-action-benchmark."""
    found, name = [], target_name(check)
    for gate, view, figure in _figures(check):
        unit, scale = UNITS[gate.unit].fine, UNITS[gate.unit].factor
        unit += "/sample" if METRICS[gate.name].by_sample else ""
        entry = {
            "name": f"{name}: {short(gate.label)}{view_text(view)}",
            "unit": unit,
            "value": figure.value * scale,
            "extra": short(gate.explanation),
        }
        if figure.low is not None and figure.high is not None:
            # The longer arm of the interval, as the action shows one.
            arm = max(figure.value - figure.low, figure.high - figure.value)
            entry["range"] = f"± {arm * scale:.6g}"
        found.append(entry)
    return json.dumps(found, allow_nan=False, indent=2)


_FAMILIES: tuple[tuple[str, str, str], ...] = (
    *((f"dlprof_check_{each.base}", each.base, each.help) for each in UNITS.values()),
    ("dlprof_check_shift_ratio", "ratio", "How much worse than the base, as a fraction."),
    ("dlprof_check_failed", "", "1 where the metric failed the check."),
)


def render_openmetrics(check: CheckReport) -> str:
    """OpenMetrics text, for ``artifacts:reports:metrics`` of GitLab and for Prometheus."""
    samples: dict[str, list[str]] = {name: [] for name, _, _ in _FAMILIES}
    target = target_name(check)
    escaped = str.maketrans({"\\": r"\\", '"': r"\"", "\n": r"\n"})

    def add(family: str, value: object, **labels: str) -> None:
        known = {"target": target, **labels}
        named = (f'{name}="{short(text).translate(escaped)}"' for name, text in known.items())
        samples[family].append(f"{family}{{{','.join(named)}}} {value!r}")

    for gate, view, figure in _figures(check):
        labels = {"metric": gate.name, "view": view.view}
        add(f"dlprof_check_{UNITS[gate.unit].base}", figure.value, **labels)
        if gate.scale == "ratio":
            add("dlprof_check_shift_ratio", view.shift, **labels)
    for gate in check.target.verdict.gates:
        add("dlprof_check_failed", int(gate.state == "fail"), metric=gate.name)
    lines: list[str] = []
    for name, unit, text in _FAMILIES:
        if samples[name]:
            lines += [f"# TYPE {name} gauge", *([f"# UNIT {name} {unit}"] if unit else [])]
            lines += [f"# HELP {name} {text}", *samples[name]]
    return "\n".join([*lines, "# EOF", ""])


def render_junit(check: CheckReport) -> str:
    """The document. FAIL is a failure, all that is undecided is skipped.

    A failure that was allowed, or that is only a warning, is skipped with the reason.
    """
    suites, name = ET.Element("testsuites", name="dlprof check"), target_name(check)
    suite = ET.SubElement(suites, "testsuite", name=name)

    def case(label: str) -> ET.Element:
        about = {"classname": f"dlprof.check.{name}", "name": short(label), "time": "0"}
        return ET.SubElement(suite, "testcase", about)

    allowed = f"allowed: {short(check.override)}" if check.override else "only a warning"
    for gate in check.target.verdict.gates:
        found, message = case(gate.label), sentence(gate.explanation)
        text = message
        for metric, view, base, change, shift, limit, _ in rows([gate] if gate.views else []):
            text += f"\n{metric}{view}: {base} -> {change}, {shift}; limit {limit}"
        if gate.state == "fail" and not (check.override or check.warn_only):
            ET.SubElement(found, "failure", message=message, type=gate.reason).text = text
        elif gate.state != "pass":
            message += f" ({allowed})" if gate.state == "fail" else ""
            ET.SubElement(found, "skipped", message=message)
        ET.SubElement(found, "system-out").text = text
    for label, why in not_judged(check).items():
        message = sentence(f"{label} was not judged: {why}.")
        ET.SubElement(case(label), "skipped", message=message)
    suite.set("time", f"{check.target.measured_s:.3f}")
    if check.started_at:
        suite.set("timestamp", short(check.started_at).removesuffix("Z"))
    tags = {"tests": "testcase", "failures": "failure", "skipped": "skipped"}
    for each in (suite, suites):
        for key, tag in tags.items():
            each.set(key, str(len(each.findall(f".//{tag}"))))
        each.set("errors", "0")
    ET.indent(suites)
    text = ET.tostring(suites, encoding="unicode")
    return f'<?xml version="1.0" encoding="UTF-8"?>\n{text}\n'


MOST_SUMMARY_BYTES = 1024 * 1024 - 4096
"""GitHub takes 1024 kB for the summary of a step, other tools' lines among them."""

MOST_COMMENT_BYTES = 64_000  # GitHub takes 65,536 characters for a comment

MARKER = "<!-- dlprof check -->"
"""First line of a comment, by which the next run finds it to replace it."""


def render_summary(check: CheckReport | DlprofError) -> str:
    """What goes to ``$GITHUB_STEP_SUMMARY``."""
    whole = fault_report(check) if isinstance(check, DlprofError) else check_report(check)
    head = to_markdown(dataclasses.replace(whole, details=tuple), level=2)
    return head + _within(whole, MOST_SUMMARY_BYTES - len(head.encode()))


def render_comment(check: CheckReport) -> str:
    """A comment on a pull or merge request: five lines, all else folded away."""
    whole = check_report(check)
    facts, *folded = whole.answer
    if isinstance(facts, doc.FactList):  # the title says the verdict, the table the other metrics
        left_out = doc.facts(row for row in facts.rows if row[0] == "Left out")
        folded = [*doc.known(left_out), *folded]
        above = {"Verdict", "Also fails", "Left out"}
        facts = doc.FactList(tuple(row for row in facts.rows if row[0] not in above))
    answer = to_markdown(doc.Document(title=whole.title, answer=(facts,)), level=3)
    drawn = f"\n{to_markdown(doc.Document(title='', answer=tuple(folded)))}" if folded else ""
    head = f"{MARKER}\n{answer}\n<details><summary>Details</summary>\n{drawn}"
    end = "\n</details>\n"
    return head + _within(whole, MOST_COMMENT_BYTES - len((head + end).encode())) + end


def _within(whole: doc.Document, most_bytes: int) -> str:
    """The details, where the place takes them: texts of the user's can be long."""
    parts = (doc.Document(title=each.title, answer=each.blocks) for each in whole.details())
    text = "".join(f"\n{to_markdown(part, level=3)}" for part in parts)
    more = "\nThe details are in the JSON document.\n"
    return text if len(text.encode()) <= most_bytes else more


def render_annotation(check: CheckReport | DlprofError, *, fails: bool) -> str:
    """One workflow command that marks the target's line; empty for a check that passed."""
    level = "error" if fails else "warning"
    if isinstance(check, DlprofError):
        return f"::{level} title=dlprof::{_data(sentence(str(check)))}"
    if check.state == "pass":
        return ""
    target = check.target
    properties = {"title": f"dlprof: {headline(check)}"}
    if target.source_file:
        place = {"file": short(target.source_file)}
        if target.source_line is not None:
            place["line"] = str(target.source_line)
        properties = place | properties
    message = sentence(check.explanation)
    if check.override and check.state == "fail":
        message += f" Allowed: {short(check.override)}"
    values = {key: _data(value) for key, value in properties.items()}  # with more that is escaped
    listed = ",".join(
        f"{key}={value.replace(':', '%3A').replace(',', '%2C')}" for key, value in values.items()
    )
    return f"::{level} {listed}::{_data(message)}"


def _data(text: str) -> str:
    """As the runner unescapes what stands behind the second ``::``."""
    return text.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")


def render_outputs(
    check: CheckReport | DlprofError,
    delimiter: Callable[[], str] = lambda: f"ghadelimiter_{secrets.token_hex(16)}",
) -> str:
    """Lines for ``$GITHUB_OUTPUT``, from which later steps read the verdict."""
    lines = []
    for name, value in _outputs(check).items():
        text = clean_lines(value)[:10_000]
        while (end := delimiter()) in text:
            continue
        lines.append(f"{name}<<{end}\n{text}\n{end}\n")
    return "".join(lines)


_OUTPUTS = ("verdict", "explanation", "target", "metric", "slower", "slower_low", "slower_high")


def _outputs(check: CheckReport | DlprofError) -> Mapping[str, str]:
    if isinstance(check, DlprofError):
        return dict.fromkeys(_OUTPUTS, "") | {"verdict": "error", "explanation": str(check)}
    state = check.state
    fitting = [gate for gate in check.target.verdict.gates if gate.state == state]
    # An undecided metric that nobody waits for decides nothing.
    decisive = next((gate for gate in fitting if gate.blocking or state != "inconclusive"), None)
    view = decisive.views[0] if decisive and decisive.views else None
    ratio = view if decisive and decisive.scale == "ratio" else None
    ends = (ratio.shift, ratio.low, ratio.high) if ratio else (None, None, None)
    shifts = ("" if each is None else f"{each:.6f}" for each in ends)
    metric = decisive.name if decisive else ""
    figures = (state, check.explanation, target_name(check), metric, *shifts)
    return dict(zip(_OUTPUTS, figures, strict=True))


RENDERERS: Mapping[str, Callable[[CheckReport], str]] = {
    "json": lambda check: check_document(check) + "\n",
    "html": lambda check: to_html(check_report(check)),
    "junit": render_junit,
    "markdown": render_comment,
    "bencher": render_bencher,
    "benchmark_action": render_benchmark_action,
    "openmetrics": render_openmetrics,
}
"""What makes the text of each format."""
