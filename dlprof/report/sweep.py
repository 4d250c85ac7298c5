"""What a sweep and a recommendation have to say: what to set, what that brings, how sure it is."""

from __future__ import annotations

import dataclasses
import itertools
import math
import re
import shlex
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any, TypeVar

from dlprof.advise.limits import stored_limits
from dlprof.advise.recommend import recommend
from dlprof.advise.thresholds import FED_WAIT_FRACTION, PERHAPS_FED_WAIT_FRACTION, WITHIN
from dlprof.advise.wrong_data import present_of, said_first
from dlprof.errors import DlprofError
from dlprof.records import (
    Alternative,
    Config,
    ConfigRate,
    Constraints,
    Expected,
    Failure,
    Integrity,
    Recommendation,
    Run,
    Trial,
)
from dlprof.report.document import (
    Bar,
    Block,
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
    facts,
    items,
    section,
)
from dlprof.report.labels import (
    END_TEXTS,
    cores_text,
    gain_text,
    interval_text,
    percent_text,
    rate_text,
    ratio_text,
    settings_text,
)
from dlprof.report.snippets import difference
from dlprof.report.summary import FAILED, PICK, TIE, Row, summarize
from dlprof.units import (
    MISSING,
    counted,
    format_bytes,
    format_duration,
    format_rate,
    with_hint,
)

MOST_BARS = 7
"""Bars beside an answer, which has to fit into 16 lines; a page shows more."""

_T = TypeVar("_T")
_MOST_TRIALS = 6
_MOST_FAILURES = 50
CONFIDENCE: Mapping[str, Tone] = {"high": "good", "medium": "warn", "low": "bad"}
_ROLES: Mapping[str, Tone] = {PICK: "good", TIE: "good", FAILED: "bad"}
_CUT_SHORT = {
    "budget": "the budget ran out",
    "interrupted": "the sweep was interrupted",
    "failed": "nothing more could be measured",
    "decided": "the best is clear without them",
    "complete": "the best is clear without them",
    "noise": "noise hides what they might gain",
}
_CALL = re.compile(r'^ *File (".+", line [0-9]+, in .+)$', re.MULTILINE)
"""A call in a traceback."""


def sweep_report(run: Run) -> Document:
    """What a sweep found.

    Args:
        run: The sweep, or what there is of it.
    """
    run = with_recommendation(run)
    advice = run.recommendation
    if advice is None:
        return Document(
            title=title_of(run),
            answer=(*first(run), *_without_answer(run)),
            hints=tuple(_last(run, None)),
            details=tuple(_details(run, None)),
        )
    return recommendation_report(run, advice)


def recommendation_report(run: Run, advice: Recommendation, *, again: str = "") -> Document:
    """A recommendation.

    Args:
        run: What it was drawn from.
        advice: What to show.
        again: Options that it was asked with, for commands that are to give the same answer.
    """
    return Document(
        title=title_of(run),
        answer=(
            *first(run),
            Facts(tuple(_answer(run, advice))),
            *_chart(run, advice, MOST_BARS),
            Code(difference(advice.config, present_of(run), run.header.target.call)),
        ),
        hints=tuple(_last(run, advice)),
        details=tuple(_details(run, advice, again)),
    )


def with_recommendation(run: Run) -> Run:
    """The run with a recommendation, as ``dlprof recommend`` gives it where the sweep keeps none.

    One of an earlier version, without rates, was made by other rules.
    """
    if run.diagnosis is not None:
        return run
    try:
        found = recommend(run, stored_limits(run.header.settings))
        return dataclasses.replace(run, recommendation=found)
    except DlprofError:  # nothing measured, or nothing within the limits: there is none
        return run


def title_of(run: Run) -> str:
    """What a document on a run is called."""
    return f"{run.header.target.spec} on {run.header.machine.hostname}"


def first(run: Run) -> Iterator[Block]:
    """What is said before all else: settings whose data is wrong, or that fail."""
    for text in said_first(run):
        yield Text(Span(text, "bad"))


def _without_answer(run: Run) -> Iterator[Block]:
    """Why nothing is recommended."""
    failed = next((t.failure for t in run.trials if t.failure and t.outcome != "skipped"), None)
    why = "no configuration was measured" if failed is None else _with_hint(failed)
    yield Facts((("Recommended", f"nothing: {why}"), *_shortfall(run)))


def _answer(run: Run, advice: Recommendation) -> Iterator[tuple[str, Words]]:
    present, pick = present_of(run), advice.config
    yours: str | Span = ""
    if present is not None:
        same = present == pick
        yours = Span("  (yours)" if same else f"  (yours: {settings_text(present)})", "soft")
    yield "Recommended", (Span(settings_text(pick), "strong"), yours)
    if advice.basis == "predicted":
        yield "Predicted", _not_measured(run, advice)
    yield "Speed-up", _speed_up(run, advice)
    if advice.expected.wait_fraction is not None:
        yield "Data wait", _wait(advice)
    tone = CONFIDENCE[advice.confidence]
    yield "Certainty", (Span(advice.confidence, tone), f": {advice.confidence_reason}")
    waits = advice.expected.wait_fraction is not None
    asked = [*_limits(advice.constraints), *_circumstances(advice.constraints, step=not waits)]
    if asked:
        yield "Asked for", ", ".join(asked)
    yield from _shortfall(run)


def _not_measured(run: Run, advice: Recommendation) -> str:
    measured, named = run.header.machine.hostname, advice.constraints.machine
    if advice.extrapolated and named is not None:
        return f"for {named} from what was measured on {measured}"
    return f"from the costs of batches on {measured}, not measured"


def _speed_up(run: Run, advice: Recommendation) -> str:
    """Over the present settings and PyTorch's default, as far as they have a rate."""
    rates = {each.config: each for each in advice.rates}
    present, pick = present_of(run), advice.config
    default = Config(batch_size=pick.batch_size)
    compared = [] if present in {None, pick} else [(present, "your settings")]
    if default not in {pick, present}:
        compared.append((default, "PyTorch's default"))
    gains = [
        gain_text(rates[config].ratio.inverse, name)
        for config, name in compared
        if config in rates and config is not None
    ]
    noisy = any("too noisy" in each for each in gains)
    if gains:
        return ", ".join(gains) + (f" (rerun with {_more_time(run)})" if noisy else "")
    others = [each for each in advice.rates if each.config != pick]
    rate = rate_text(advice.expected.samples_per_s)
    if pick not in {present, default} or not others:
        return f"not known; {rate}"
    name = "your settings" if pick == present else "PyTorch's default"
    return f"none to be found: {name} give {rate}".replace("default give", "default gives")


def _more_time(run: Run) -> str:
    """The option that gives a sweep three times the time that it took."""
    took_s = run.end.cost_s.total if run.end is not None else 60.0
    return f"--budget {max(1, math.ceil(3 * took_s / 60))}m"


def _wait(advice: Recommendation) -> str:
    wait, step_s = advice.expected.wait_fraction, advice.constraints.step_s
    text = f"{percent_text(wait)} of the time"
    if step_s:
        text += f" at a step of {format_duration(step_s)}"
    if wait is None or wait <= PERHAPS_FED_WAIT_FRACTION:
        fed = wait is None or wait <= FED_WAIT_FRACTION
        return f"{text}: {'fed' if fed else 'nearly fed'}"
    used = next((r.evidence for r in advice.reasons if "available_cpu_cores" in r.evidence), None)
    return f"{text}: not fully fed" + (", CPU cores are the bottleneck" if used else "")


def _shortfall(run: Run) -> Iterator[tuple[str, Words]]:
    """What failed, or was cut off, in a line."""
    failed = {t.config: t.failure for t in run.trials if t.failure and t.outcome != "skipped"}
    for config, failure in itertools.islice(failed.items(), 1):
        more = f" (and {len(failed) - 1} more)" if len(failed) > 1 else ""
        yield "Failed", f"{settings_text(config)}: {failure.message}{more}"
    if run.truncated:
        yield "Cut off", "the run file ends in the middle of a record; --resume continues it"
    elif run.end is None or run.end.reason == "interrupted":
        how = "did not end" if run.end is None else "was interrupted"
        yield "Cut off", f"the sweep {how}; --resume continues it"


def _last(run: Run, advice: Recommendation | None) -> Iterator[Block]:
    """Where the rest is, and what to run next."""
    if advice is not None and advice.measure_there:
        yield Text(Span(f"{about_file(run)} · check it on the machine in question:", "soft"))
        yield Code(advice.measure_there[0].command, "sh")
    elif run.path:
        yield Text(Span(f"{about_file(run)} · all of it:", "soft"))
        yield Code(f"dlprof report {shlex.quote(run.path)} -o report.html", "sh")


def about_file(run: Run) -> str:
    """Where the run is kept, and how more of it is shown."""
    return f"Run file {run.path} · details: -v" if run.path else "Details: -v"


def _chart(run: Run, advice: Recommendation, most: int) -> Iterator[Chart]:
    """The best rate by ``num_workers``, that of the recommended and the present ones their own."""
    present, pick = present_of(run), advice.config
    shown: dict[int, ConfigRate] = {}
    for each in sorted(advice.rates, key=lambda each: _weight(each, pick, present)):
        shown[each.config.num_workers] = each
    found = [shown[workers] for workers in sorted(shown)]
    best = max(range(len(found)), key=lambda i: found[i].samples_per_s.value, default=0)
    kept = {i for i, each in enumerate(found) if each.config in {pick, present}} | {0, best}
    measured = [i for i, each in enumerate(found) if each.measured]
    pool = measured if len({*measured, *kept}) >= most else range(len(found))
    chosen = thinned(found, kept, pool, most)
    if len(chosen) > 1:
        yield Chart(
            label="workers",
            unit="samples/s",
            bars=tuple(_bar(each, pick, present) for each in chosen),
        )


def _weight(
    each: ConfigRate, pick: Config, present: Config | None
) -> tuple[bool, bool, bool, float]:
    """The last of several with as many workers is shown: the telling one, then the fastest."""
    rate = each.samples_per_s.value
    return (each.config == pick, each.config == present, each.measured, rate)


def _bar(each: ConfigRate, pick: Config, present: Config | None) -> Bar:
    config, rate, ratio = each.config, each.samples_per_s, each.ratio
    marks = [name for name, is_so in (("yours", config == present), ("◀", config == pick)) if is_so]
    if config == Config(batch_size=pick.batch_size) and config != pick:
        marks.insert(0, "default")
    notes = [] if each.measured else ["predicted"]
    if config != pick and ratio.low is not None and ratio.high is not None:
        notes += ["same within noise"] if ratio.low <= 1 <= ratio.high else []
    if rate.is_wide:
        notes.append(f"95% CI {interval_text(rate)}")
    return Bar(
        label=" ".join([str(config.num_workers), *marks]),
        pieces=(Piece(rate.value),),
        figure=format_rate(rate.value),
        low=rate.low,
        high=rate.high,
        note=", ".join(notes),
        tone="good" if config == pick else "",
    )


def thinned(found: Sequence[_T], kept: Collection[int], pool: Sequence[int], most: int) -> list[_T]:
    """At most so many: those that are kept, by their places, and evenly some of a pool."""
    if len(found) <= most:
        return list(found)
    rest, room = [place for place in pool if place not in kept], most - len(kept)
    even = {rest[round(k * (len(rest) - 1) / max(1, room - 1))] for k in range(room) if rest}
    return [found[place] for place in sorted({*kept, *even})]


def _details(run: Run, advice: Recommendation | None, again: str = "") -> Iterator[Section]:
    rows = summarize(run)
    yield from section("Configurations", *_tables(rows), *_legend(run, rows))
    if advice is not None:
        yield from section("Expected", facts(_expected(advice)))
        yield from section("Why", items(_reason(r.claim, r.evidence) for r in advice.reasons))
        yield from section("With and without background load", items(_cases(advice)))
        yield from section("Alternatives", items(_alternatives(advice.alternatives)))
        yield from section("Rules of thumb", items(_rules(advice)))
        yield from section("Measure there to be sure", *_to_measure(advice))
    yield from section("Not measured", items(_missing(run)))
    yield from section("Sweep", items(_cost(run)))
    if advice is not None:
        yield from section("Next", *_next_steps(run, advice.constraints, again))


def _tables(rows: Sequence[Row]) -> Iterator[Block]:
    if rows:
        told = (each for each in _columns(rows) if {*each.cells} - {"", MISSING})
        yield Table(tuple(told), tuple(_ROLES.get(row.role, "") for row in rows))


_SETTINGS = {
    "num_workers": "workers",
    "prefetch_factor": "prefetch",
    "pin_memory": "pin",
    "persistent_workers": "persist",
    "batch_size": "batch",
    "in_order": "in order",
    "start_method": "start",
    "sharing_strategy": "sharing",
    "worker_threads": "threads",
}
_ALWAYS = frozenset({"num_workers", "prefetch_factor"})


def setting_columns(configs: Sequence[Config]) -> Iterator[Column]:
    """The settings in which configurations differ, under short names."""
    for name, title in _SETTINGS.items():
        values = [getattr(config, name) for config in configs]
        if name in _ALWAYS or len(set(values)) > 1:
            yield Column(title=title, cells=[_value(each) for each in values])


def _value(value: object) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    return MISSING if value is None else str(value)


def _columns(rows: Sequence[Row]) -> Iterator[Column]:
    """A table of configurations; which columns go first, where there is no room, ``keep`` says."""

    def column(title: str, cells: Iterable[str], keep: int | None = None) -> Column:
        return Column(title=title, cells=list(cells), keep=keep)

    yield Column(title="", cells=[row.role for row in rows], left=True)
    yield from setting_columns([row.config for row in rows])
    yield column("samples/s", (format_rate(r.rate.value if r.rate else None) for r in rows))
    yield column("95% CI", (interval_text(row.rate) for row in rows), 10)
    predicted = (format_rate(r.predicted.value if r.predicted else None) for r in rows)
    yield column("predicted", predicted, 11)
    yield column(
        "relative", (ratio_text(r.relative.value if r.relative else None) for r in rows), 8
    )
    yield column("wait", (percent_text(row.wait_fraction) for row in rows), 9)
    yield column("copy", (format_duration(row.copy_s) for row in rows), 9)
    yield column("1st batch", (format_duration(row.startup_s) for row in rows), 6)
    yield column("restart", (format_duration(row.epoch_turnover_s) for row in rows), 4)
    yield column("memory", (format_bytes(row.pss_bytes) for row in rows), 5)
    yield column("shm", (format_bytes(row.shm_bytes) for row in rows), 2)
    yield column("cores", (_cores(row) for row in rows), 1)
    yield column("trials", (str(row.trials) if row.trials else MISSING for row in rows), 3)
    noisy = ["noisy" if row.noisy else "" for row in rows]
    yield Column(title="", cells=noisy, keep=7, left=True)


def _cores(row: Row) -> str:
    if row.own_cores is None and row.available_cores is None:
        return MISSING
    return f"{cores_text(row.own_cores)}/{cores_text(row.available_cores)}"


def _legend(run: Run, rows: Sequence[Row]) -> Iterator[Items]:
    """What the columns mean, as far as they occur."""
    if not rows:
        return
    whole = "" if run.header.target.batches_per_epoch is None else ", over whole epochs"
    notes = [
        f"relative: speed against the {'recommended' if _is_advised(rows) else 'fastest'}{whole}."
    ]
    if any(row.role == TIE for row in rows):
        notes.append(f"tie: likely {WITHIN} of the best.")
    if any(row.predicted is not None for row in rows):
        notes.append("predicted: by the model, before the configuration was measured.")
    if any(row.startup_s is not None for row in rows):
        notes.append("1st batch: time to the first batch. restart: from one epoch to the next.")
    if any(row.own_cores is not None for row in rows):
        notes.append("cores: used/available.")
    if any(row.noisy for row in rows):
        notes.append("noisy: other processes, a quota or drift disturbed a trial.")
    yield Items((*notes, *run.header.target.notes))


def _is_advised(rows: Sequence[Row]) -> bool:
    return any(row.role == PICK for row in rows)


def _expected(advice: Recommendation) -> Iterator[tuple[str, Words]]:
    yield "throughput", rate_text(advice.expected.samples_per_s)
    yield from _figures(advice.expected)


def _figures(expected: Expected) -> Iterator[tuple[str, Words]]:
    if expected.wait_fraction is not None:
        yield "data wait", f"{percent_text(expected.wait_fraction)} of the time"
    if expected.pss_bytes is not None:
        yield "memory", format_bytes(expected.pss_bytes)
    if expected.shm_bytes is not None:
        yield "shared memory", format_bytes(expected.shm_bytes)
    if expected.startup_s is not None:
        yield "time to first batch", format_duration(expected.startup_s)
    if expected.epoch_turnover_s is not None:
        yield "epoch restart", format_duration(expected.epoch_turnover_s)


def _limits(constraints: Constraints) -> Iterator[str]:
    """The limits that the settings keep."""
    if constraints.max_workers is not None:
        yield f"at most {counted(constraints.max_workers, 'worker')}"
    if constraints.max_ram_bytes is not None:
        yield f"at most {format_bytes(constraints.max_ram_bytes)} of memory"
    if constraints.max_shm_bytes is not None:
        yield f"at most {format_bytes(constraints.max_shm_bytes)} of shared memory"


def _circumstances(constraints: Constraints, *, step: bool) -> Iterator[str]:
    """Where and for what the settings are wanted."""
    if constraints.machine is not None:
        yield f"machine {constraints.machine}"
    if constraints.cores is not None:
        yield f"{constraints.cores:g} cores"
    if constraints.neighbours is not None:
        yield f"{constraints.neighbours:g} cores busy with other processes"
    if constraints.speed is not None:
        yield f"cores of {constraints.speed:g}x the speed"
    if constraints.ranks > 1:
        yield f"{constraints.ranks} ranks"
    if step and constraints.step_s is not None:
        yield f"a step of {format_duration(constraints.step_s)}"


def _reason(claim: str, evidence: Mapping[str, Any]) -> Words:
    proof = evidence.get("trials")
    trials = [str(trial) for trial in proof] if isinstance(proof, list | tuple) else []
    if not trials:
        return claim
    more = f" and {len(trials) - _MOST_TRIALS} more" if len(trials) > _MOST_TRIALS else ""
    return (claim, Span(f" [{', '.join(trials[:_MOST_TRIALS])}{more}]", "soft"))


def _cases(advice: Recommendation) -> Iterator[Words]:
    """The machine with and without other processes, one line each."""
    for case in advice.cases:
        others = f" ({case.neighbours:.3g} cores busy with other processes)"
        text = f"{case.name}{others if case.neighbours else ''}: "
        text += rate_text(case.expected.samples_per_s)
        if case.expected.wait_fraction is not None:
            text += f", data wait {percent_text(case.expected.wait_fraction)}"
        text += f"; {case.bound}"
        if case.best != advice.config:
            text += f"; best there: {settings_text(case.best)}, "
            text += rate_text(case.best_samples_per_s)
        yield text


def _alternatives(alternatives: Sequence[Alternative]) -> Iterator[Words]:
    """The present settings, the fastest, the default and ties, one line each."""
    names = {"present": "yours", "tie": "as fast"}
    for other in alternatives:
        yield (
            f"{names.get(other.relation, other.relation)}: {settings_text(other.config)}: "
            f"{rate_text(other.expected.samples_per_s)}, {ratio_text(other.speed)}"
        )


def _rules(advice: Recommendation) -> Iterator[Words]:
    best = advice.expected.samples_per_s.value
    for rule in advice.rules_of_thumb:
        rate = rule.expected_samples_per_s
        if rate is None:
            gave = rule.unavailable or "not measured"
        else:
            speed = f", {ratio_text(rate / best)}" if best > 0 else ""
            gave = f"{format_rate(rate)} samples/s{speed}{', predicted' if rule.predicted else ''}"
        yield f"{rule.name}: {settings_text(rule.config)}: {gave}"


def _to_measure(advice: Recommendation) -> Iterator[Block]:
    """What to find out on the machine in question, each with its command below it."""
    for each in advice.measure_there:
        yield Text(each.what)
        yield Code(each.command, "sh")


def _missing(run: Run) -> Iterator[Words]:
    """What failed, was skipped or left out, or was never reached."""
    found = [*failures(run.trials, skipped=False), *failures(run.trials, skipped=True)]
    yield from found[:_MOST_FAILURES]
    if len(found) > _MOST_FAILURES:
        yield f"{len(found) - _MOST_FAILURES} more that failed or were skipped"
    yield from (f"Left out: {each.setting}: {each.reason}" for each in run.header.left_out)
    yield from _unreached(run)


def failures(trials: Sequence[Trial], *, skipped: bool) -> Iterator[str]:
    """Each kind of failure once for each configuration, with what to do about it.

    Args:
        trials: Of a run.
        skipped: Whether those that can't work here and were not tried are wanted, or the others.
            Of those, each reason comes once.
    """
    groups: dict[tuple[str, str], list[tuple[Trial, Failure]]] = {}
    for trial in trials:
        if trial.failure is not None and (trial.outcome == "skipped") == skipped:
            key = ("" if skipped else trial.config.key, trial.failure.kind)
            groups.setdefault(key, []).append((trial, trial.failure))
    for group in groups.values():
        trial, failure = group[0]
        configs = len({each.config for each, _ in group})
        more = f" and {configs - 1} more" if configs > 1 else ""
        how = "skipped: " if skipped else ""
        said = f"{_with_hint(failure)}{_raised_at(failure)}"
        yield f"{settings_text(trial.config)}{more}: {how}{said} [{trial.id}]"


def _with_hint(failure: Failure) -> str:
    return with_hint(failure.message, failure.hint)


def _raised_at(failure: Failure) -> str:
    """Where the user's own code raised what ended a trial, by the end of its traceback."""
    calls = _CALL.findall(failure.stderr_tail) if failure.kind == "worker_exception" else []
    return f" The last call in it: {calls[-1]}." if calls else ""


def _unreached(run: Run) -> Iterator[str]:
    """How many configurations of the plan the sweep never came to, and why."""
    found, plan = Integrity.of(run), run.header.plan
    configs = plan.configs if plan is not None else ()
    planned = {config for config in configs if not found.is_useless(config)}
    missing = planned - {trial.config for trial in run.trials if trial.purpose == "measure"}
    led = plan is not None and plan.search == "model"
    if not missing or run.prediction is not None or (led and not run.completed):
        return  # a model chooses what is measured, and leaves most out on purpose
    why = "the sweep was cut off" if run.end is None else _CUT_SHORT[run.end.reason]
    verb = "was" if len(missing) == 1 else "were"
    yield f"{len(missing)} of {len(planned)} configurations {verb} not measured: {why}."


def _cost(run: Run) -> Iterator[Words]:
    """What was measured, what that took, and why it ended."""
    trials = [t for t in run.trials if t.outcome != "skipped" and t.purpose == "measure"]
    traced = sum(trial.purpose == "explain" for trial in run.trials)
    configs = len({trial.config for trial in trials})
    measured = f"{counted(configs, 'configuration')} measured in {counted(len(trials), 'trial')}"
    if run.prediction is not None:
        measured = f"{counted(len(run.prediction.cells), 'configuration')} predicted, {measured}"
    yield measured + (f"; {counted(traced, 'traced trial')}" if traced else "")
    usable = run.header.machine.usable_cores
    yield f"{title_of(run)} ({usable:g} usable {'core' if usable == 1 else 'cores'})"
    if run.end is not None:
        cost = run.end.cost_s
        outside = cost.overhead / cost.total if cost.total > 0 else None
        yield (
            f"{format_duration(cost.total)}, {percent_text(outside)} of it outside the measured "
            f"windows; ended: {END_TEXTS[run.end.reason]}"
        )


def _next_steps(run: Run, asked: Constraints, again: str) -> Iterator[Block]:
    """The commands that most likely come next, ready to paste."""
    if not run.path:
        return
    command = " ".join(filter(None, ("dlprof recommend", shlex.quote(run.path), again)))
    lines = [f"{command} --format python"]
    elsewhere = any(each is not None for each in (asked.machine, asked.cores, asked.speed))
    if not elsewhere:  # settings are saved for the machine that was measured
        lines.append(f"{command} --save dlprof.toml")
    yield Code("\n".join(lines), "sh")
    if not elsewhere:
        yield Text("and in the training script, on each machine that has saved:")
        yield Code('loader = DataLoader(dataset, **dlprof.kwargs_for("dlprof.toml"))')
