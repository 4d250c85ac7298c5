"""What a sweep and a recommendation have to say: what to set, what that brings, how sure it is."""

from __future__ import annotations

import dataclasses
import math
import re
import shlex
from collections.abc import Iterator, Mapping, Sequence, Sized
from typing import TYPE_CHECKING

from dlprof.advise.choice import Candidate, differs_along
from dlprof.advise.recommend import (
    FAILED,
    PICK,
    TIE,
    ConfigSummary,
    asked_accelerators,
    summarize,
    with_recommendation,
)
from dlprof.advise.thresholds import FED_WAIT_FRACTION, PERHAPS_FED_WAIT_FRACTION, WITHIN
from dlprof.advise.wording import TEN_EPOCHS, background_text
from dlprof.advise.wrong_data import beginning_alone, noted, present_failure, said_first
from dlprof.records import (
    DATA_FAULTS,
    SPREAD_SIGN,
    STORED_SIGN,
    Alternative,
    Certificate,
    Config,
    ConfigRate,
    Constraints,
    Estimate,
    Failure,
    Integrity,
    LeastLoss,
    Recommendation,
    Run,
    Trial,
)
from dlprof.records.stages import KEEPING
from dlprof.report import document as doc
from dlprof.report.findings import figure_in, listed
from dlprof.report.labels import (
    END_TEXTS,
    IN_TRIALS,
    Rated,
    about_file,
    certainty,
    cores_text,
    default_named,
    gain_text,
    interval_text,
    percent_text,
    rate_text,
    rates_chart,
    ratio_text,
    setting_columns,
    step_text,
    value_text,
    wait_parts,
    wait_text,
)
from dlprof.report.ranks import (
    accelerators_sections,
    accelerators_text,
    binding_text,
    ranks_facts,
    ranks_sections,
)
from dlprof.report.snippets import difference
from dlprof.stats.belief import NEAR, PROBABILITY
from dlprof.units import (
    MISSING,
    counted,
    duration_option,
    format_bytes,
    format_duration,
    format_rate,
    with_hint,
)

if TYPE_CHECKING:  # dlprof recommend answers without predictions
    from dlprof.advise.forecast import Accelerators


_ROLES: Mapping[str, doc.Tone] = {PICK: "good", TIE: "good", FAILED: "bad"}
CUT_OFF = {None: "did not end", "interrupted": "was interrupted", "failed": "ended early"}
_CALL = re.compile(r'^ *File (".+", line [0-9]+, in .+)$', re.MULTILINE)  # a call in a traceback


def sweep_report(run: Run) -> doc.Document:
    """What a sweep found, or what there is of it."""
    run = with_recommendation(run)
    return recommendation_report(run, run.recommendation)


def recommendation_report(
    run: Run, advice: Recommendation | None, *, again: str = ""
) -> doc.Document:
    """A recommendation, or why there is none."""
    chart = code = asked = None
    if advice is None:
        failed = next((t.failure for t in run.trials if t.failure and t.outcome != "skipped"), None)
        why = "no configuration was measured" if failed is None else _with_hint(failed)
        rows = (("Recommended", f"nothing: {why}"), *what_failed(run, said=why))
    else:
        asked = asked_accelerators(run, advice)
        rows, chart = tuple(_answer(run, advice, asked)), _chart(run, advice)
        alone = is_alone(run, advice.config, advice.rates)
        if not alone or _only_works(run, advice.config):
            code = doc.Code(difference(advice.config, run))
    return doc.Document(
        title=title_of(run),
        answer=(*first(run), doc.FactList(rows), *doc.known(chart, code), *_cut_off(run)),
        hints=_last(run, advice),
        details=lambda: _details(run, advice, asked, again),
    )


def is_alone(run: Run, pick: Config, rated: Sized) -> bool:
    """Whether nothing but the recommended settings has a rate, and the user's are others."""
    return len(rated) == 1 and pick != run.present


def nothing_yet(run: Run, pick: Config) -> str:
    """That the only settings which have a rate were compared with none, and what to do."""
    if (fault := _only_works(run, pick)) is not None:  # no budget would change that
        why = fault.hint if any(present_failure(run)) else _with_hint(fault)
        return f"{pick.text}: no other settings can work here. {why}"
    plan, fixed = run.header.plan, run.header.target.fixed
    if plan is not None and plan.configs == (pick,) and "num_workers" in fixed:  # as it is
        return f"nothing: {fixed['num_workers']}"
    if any(what_failed(run)):
        return f"nothing yet: only {pick.text} worked; fix what failed (below), then sweep again"
    return f"nothing yet: only {pick.text} was measured; {_more(run)}"


def _only_works(run: Run, pick: Config) -> Failure | None:
    """What keeps all other settings from being tried here; ``None`` where it doesn't."""
    others = [trial for trial in run.trials if trial.config != pick]
    faults = [t.failure for t in others if t.outcome == "skipped" and t.failure is not None]
    return faults[0] if faults and len(faults) == len(others) else None


def title_of(run: Run) -> str:
    """What a document on a run is called."""
    return f"{run.header.target.spec} on {run.header.machine.hostname}"


def first(run: Run, *, found: bool = True) -> Iterator[doc.Block]:
    """What is said before all else: settings whose data is wrong, or that fail.

    With ``found=False`` only what was known before any trial.
    """
    for text in said_first(run) if found else noted(run):
        mild = any(sign in text for sign in (SPREAD_SIGN, STORED_SIGN))
        yield doc.Text(doc.Styled(text, "warn" if mild else "bad"))


def _answer(
    run: Run, advice: Recommendation, accelerators: Accelerators | str | None
) -> Iterator[doc.Row]:
    present, pick = run.present, advice.config
    yours: str | doc.Styled = ""
    faster = [
        perhaps_faster(
            each.config,
            each.expected.samples_per_s,
            _shown_speed(advice, each),
            each.expected.gain_if,
        )
        for each in advice.alternatives
        if each.relation == "predicted"
    ]
    if is_alone(run, pick, advice.rates):
        yield "Recommended", nothing_yet(run, pick)
        yield from faster
        asked = ", ".join(_asked(advice.constraints, step=True))
        rate = rate_text(advice.expected.samples_per_s)
        yield "Throughput", f"{rate} for {asked}" if asked else rate
        yield from _utilization(accelerators)
        yield from what_failed(run)
        return
    if present is not None:
        same = present == pick
        yours = doc.Styled("  (yours)" if same else f"  (yours: {present.text})", "soft")
    yield "Recommended", (doc.Styled(pick.text, "strong"), yours)
    yield from faster
    predicted, limits = advice.basis == "predicted", advice.constraints
    measured, named = run.header.machine.hostname, limits.machine
    says = ""
    how = "Predicted" if predicted else "" if advice.in_trials else "Estimated"
    # Those that loaded at once had other rates where it is for other conditions.
    ranks = () if how else tuple(ranks_facts(run, pick, advice.expected.samples_per_s))
    if advice.extrapolated and how and named is not None:
        by = "from what was" if predicted else "by the rates"
        says = f"for {named}"
        if predicted and limits.neighbours is None:
            says += ", without background load (--assume-background),"
        says += f" {by} measured on {measured}"
        limits = dataclasses.replace(limits, machine=None)
    if ranks:  # which are named there
        limits = dataclasses.replace(limits, ranks=1)
    # The step is beside what is waited for it.
    asked = ", ".join(_asked(limits, step=advice.expected.wait_fraction is None))
    if how:
        known = filter(None, (says, asked and f"for {asked}"))
        source = "what a batch costs in its traced trials" if predicted else "its trials"
        yield how, "; ".join(known) or f"not measured: this run has it from {source}"
    yield "Speed-up", _speed_up(run, advice)
    yield from ranks
    if advice.numa_binding is not None:
        yield "NUMA binding", binding_text(advice.numa_binding)
    yield from _utilization(accelerators)
    if (wait := advice.expected.wait_fraction) is not None:
        yield "Data wait", _wait(advice, wait)
    if (least := _least_loss(advice)) is not None and least.config != pick:
        yield "Any load", f"take {least.config.text} if the load may change: {_kept_of(least)}"
    yield certainty(advice.confidence, advice.confidence_reason)
    yield from _memory(run, advice)
    if asked and not how:
        yield "Asked for", asked
    yield from what_failed(run, pick=None if advice.extrapolated else pick)


def _memory(run: Run, advice: Recommendation) -> Iterator[doc.Row]:
    """That memory grows, which workers that persist keep; that its page faults take the time."""
    keeps = ", and persistent_workers=True keeps it from epoch to epoch"
    for each in advice.findings:
        # What a profile found is over its own settings, and said there.
        gain = each.predicted_gain if run.diagnosis is None else None
        if each.code == "memory.growth":
            what = each.title.partition(": ")[2] or "what the workers hold"
            grown = format_bytes(figure_in(each.evidence, "growth_bytes_per_batch"))
            said = f"{what} grows by {grown} a batch"
            said += keeps if advice.config.persistent_workers else ""
            yield "Memory", (doc.Styled(said, "warn"), f". {each.fix.text}" if each.fix else ".")
        elif each.code == "cpu.threads" and gain is not None:
            slowed = doc.Styled(
                "num_workers=0 is slowed by threads that compete for the cores", "warn"
            )
            by = f": {gain_text(gain)} with torch.set_num_threads(1), or OMP_NUM_THREADS=1 in the "
            yield "Threads", (slowed, f"{by}environment, only predicted.")
        elif each.code == "memory.faults" and gain is not None:
            share = percent_text(figure_in(each.evidence, "page_fault_fraction"))
            why = f"only predicted (page faults take {share} of its CPU time)"
            there = f"num_workers=0 with {KEEPING} in the environment"
            yield "Faster?", f"{there}: {gain_text(gain)}, {why}"


def perhaps_faster(
    config: Config, rate: Estimate, ratio: float | None, gain_if: str, unit: str = "samples/s"
) -> tuple[str, str]:
    """What seems faster than what is recommended, by so much, and how that is found out.

    ``ratio`` is ``None`` where it is too uncertain to say.
    """
    needs = f", if {gain_if}" if gain_if else ""
    measures = f"dlprof sweep --num-workers {config.num_workers} measures it"
    predicted = f"only predicted{needs} ({measures})"
    by = "" if ratio is None else f"{ratio_text(ratio)}, "
    return "Faster?", f"{config.text}: {by}{rate_text(rate, unit)}, {predicted}"


def _speed_up(run: Run, advice: Recommendation) -> str:
    rates = {each.config: each for each in advice.rates}
    present, pick = run.present, advice.config
    default = Config(batch_size=pick.batch_size)
    own = {present: YOURS, default: default_named(pick)} | {present: YOURS}
    compared = [(rates[each], name) for each, name in own.items() if each in rates and each != pick]
    seen = [trial for trial in run.completed if trial.config == pick]
    crowded = 2 * run.crowded(seen) > len(seen)  # more of what others disturb is no surer
    again = "sweep again on a quieter machine" if crowded else _more(run)
    if compared:
        sure = advice.certificate if advice.basis == "measured" else None
        gains = gains_text(run, pick, compared, sure)
        wide = compared[0][0].ratio.is_wide
        gains += if_needed(advice.expected.gain_if, pick, compared[0][0].config, gains)
        if (
            not wide or advice.measure_there or _OTHER_SAMPLES in gains
        ):  # more of the same says nothing of what is asked
            return gains
        known = "not known" not in gains and "too noisy" not in gains
        return f"{gains}; {f'too noisy for more ({again})' if known else again}"
    others = [each for each in advice.rates if each.config != pick]
    rate = rate_text(advice.expected.samples_per_s)
    if pick not in {present, default} or not others:
        nothing = "" if others else f": nothing else was measured{_why_alone(run)}"
        return f"not known{nothing}; {rate}"
    name = "your settings give" if pick == present else f"{default_named(pick)} gives"
    if any(NEAR * each.ratio.value > 1 for each in others):
        return f"none that is likely: {name} {rate}; others are too noisy to compare ({again})"
    return f"none to be found: {name} {rate}"


def if_needed(gain_if: str, pick: Config, other: Config, gains: str) -> str:
    """What gains over fewer workers take for granted, where there are any."""
    unknown = gains.startswith("not known") and "x over" not in gains  # then nothing is claimed
    more = pick.num_workers > other.num_workers or gain_if == TEN_EPOCHS
    claims = more and not (unknown or gains.startswith("none"))
    return f", if {gain_if}" if gain_if and claims else ""


def _utilization(found: Accelerators | str | None) -> Iterator[doc.Row]:
    if found is not None:
        why = f"not known: {found}" if isinstance(found, str) else accelerators_text(found)
        yield "Utilization", why


YOURS = "your settings"
_OTHER_SAMPLES = "fewer workers got to slower samples only"
_UNCLEAR = "not known over {}: measured once, and disturbed"


def gains_text(
    run: Run,
    pick: Config,
    compared: Sequence[tuple[ConfigRate, str]],
    sure: Certificate | None,
) -> str:
    """What is recommended over others, which are named; ``sure`` says how near the best it is.

    No bound over what is hardly known, from one trial alone that others disturbed.
    """
    loss, said = None if sure is None else sure.loss, dict[str, list[str]]()
    for each, name in compared:
        gain = gain_text(each.ratio.inverse, "{}", loss=loss)
        wide = each.ratio.is_wide and each.samples_per_s.is_wide
        if wide and [t.noisy for t in run.completed if t.config == each.config] == [True]:
            gain = _UNCLEAR
        if pick.num_workers > each.config.num_workers and differs_along(run, pick):
            gain = f"not known over {{}}: {_OTHER_SAMPLES} (compare whole epochs)"
        said.setdefault(gain, []).append(name)
    each_said = [text.format(" and ".join(names)) for text, names in said.items()]
    gains = ("; " if any(": " in text for text in each_said[:-1]) else ", ").join(each_said)
    none = all((each.ratio.low or 0) > 1 for each, _ in compared) and _UNCLEAR not in said
    return f"none: {gains}" if none else gains


def _why_alone(run: Run) -> str:
    """Why one configuration was measured, or how others are; empty where no other was asked for."""
    plan = run.header.plan
    if plan is None or len({*plan.configs, *plan.cells}) > 1:
        return f" ({_more(run)})"
    why = run.header.target.fixed.get("num_workers")
    return f" ({why})" if why else ""


def _more(run: Run) -> str:
    if run.diagnosis is not None:
        return "dlprof sweep measures more"
    # Three times as long as it took.
    took_s = run.end.cost_s.total if run.end is not None else 60.0
    return f"sweep again with --budget {duration_option(3 * took_s)}"


def _wait(advice: Recommendation, wait: float) -> str:
    restarts, limits = advice.expected.turnover_fraction, advice.constraints
    # Where restarts are shown apart, so is the wait within epochs: its figure says it all.
    fed = "" if wait_parts(wait, restarts)[1] else "the loader keeps up"
    if wait > PERHAPS_FED_WAIT_FRACTION:
        used = any("available_cpu_cores" in reason.evidence for reason in advice.reasons)
        cause = "CPU cores are the bottleneck" if used else ""
        works = (reason.evidence.get("main_work") for reason in advice.reasons)
        for work in filter(None, works):
            cause = f"{work} in the main process is the bottleneck"
        fed = ", ".join(filter(None, (fed and "the loader doesn't keep up", cause)))
    elif wait > FED_WAIT_FRACTION:
        fed = fed and "the loader almost keeps up"
    step = step_text(limits.step_s, limits.step_spread) if limits.step_s else ""
    kept = advice.expected.gain_if == TEN_EPOCHS
    text = wait_text(wait, restarts, in_trials=advice.in_trials, step=step, kept=kept)
    return ": ".join(filter(None, (text, fed)))


def what_failed(run: Run, *, said: str = "", pick: Config | None = None) -> Iterator[doc.Row]:
    """What failed and what to do, unless that is said; what gives wrong data is said first.

    Of a profile also why its settings were not tried. Of a sweep why more workers were not, where
    they are no more than the cores, or the recommended settings have the most that were.
    """
    skipped = {t.config: t.failure for t in run.trials if t.outcome == "skipped" and t.failure}
    shown = [c for c, fault in skipped.items() if fault.kind not in DATA_FAULTS]
    more = ""
    if run.diagnosis is None:
        most = max((t.config.num_workers for t in run.trials if t.outcome != "skipped"), default=0)
        beyond = sorted((c for c in shown if c.num_workers > most), key=lambda each: each.cost_key)
        more = f" (and {len(beyond) - 1} more)" if len(beyond) > 1 else ""
        full = pick is not None and pick.num_workers == most
        cores = math.inf if full else run.header.machine.usable_cores
        shown = [c for c in beyond[:1] if pick is not None and c.num_workers <= cores]
    for config in shown:
        yield "Skipped", f"{config.text}{more}: {_with_hint(skipped[config])}"
    faults = ((t.config, t.failure) for t in run.trials if t.failure and t.outcome != "skipped")
    failed = {config: fault for config, fault in faults if fault.kind not in DATA_FAULTS}
    first_said = any(present_failure(run))  # that the user's own settings fail
    for config in sorted(failed, key=lambda each: (each == run.present) == first_said)[:1]:
        more = f" (and {len(failed) - 1} more)" if len(failed) > 1 else ""
        why = _with_hint(failed[config])
        yield "Failed", f"{config.text}{more}: {failed[config].message if why == said else why}"


def _cut_off(run: Run) -> tuple[doc.Block, ...]:
    ended = CUT_OFF.get(None if run.end is None else run.end.reason)
    planned = run.header.plan is not None  # a profile has no plan, and can't be continued
    how = f"The {'sweep' if planned else 'run'} {ended}"
    how = "The run file ends in the middle of a record" if run.truncated else how
    if ended is None and not run.truncated:
        return ()
    if not (planned and run.path):
        return (doc.Text(doc.Styled(f"{how}.", "warn")),)
    lead = doc.Text(doc.Styled(f"{how}. Continue it:", "warn"))
    return lead, doc.Code(run.resume_command, "sh")


def _last(run: Run, advice: Recommendation | None) -> doc.Hints:
    """Where the rest is, and what to run next, unless that is to continue it."""
    if advice is not None and advice.measure_there:
        there = advice.extrapolated or _is_elsewhere(advice.constraints)
        said = f"{'check it on that machine' if there else 'measure it'}:"
        return doc.hint("Details: -v", said, advice.measure_there[0].command)
    goes_on = _cut_off(run)[1:]
    return ((), ()) if goes_on else about_file(run, kind="a page", option="-o report.html")


def _is_elsewhere(asked: Constraints) -> bool:
    return any(each is not None for each in (asked.machine, asked.cores, asked.speed))


def _chart(run: Run, advice: Recommendation) -> doc.Chart | None:
    pick, present = advice.config, run.present
    estimated = advice.basis == "measured" and not advice.in_trials
    unsure = any(each.samples_per_s.is_wide for each in advice.rates)
    shown = []
    for each in advice.rates:
        rate = each.samples_per_s
        known = "" if each.measured or estimated else "predicted"
        notes = bar_notes(each.config, pick, each.ratio, each.beyond, known)
        # Beside one that is too wide for a figure, that of what is recommended is, too.
        about = rate.is_wide or (unsure and each.config == pick and rate.low is not None)
        notes += [f"95% CI {interval_text(rate)}"] if about else []
        shown.append(Rated(each.config, rate, ", ".join(notes), first=each.measured))
    unit = "samples/s a rank" if advice.constraints.ranks > 1 else "samples/s"
    return rates_chart(shown, pick, present, unit=f"{unit}, estimated" if estimated else unit)


def bar_notes(
    config: Config, pick: Config | None, ratio: Estimate | None, beyond: str, known: str
) -> list[str]:
    """What is behind a bar: the limit that it breaks, how it is known, that ``pick`` is no faster.

    ``ratio`` is its rate over that of ``pick``.
    """
    notes = [f"beyond {beyond.partition(': ')[0]}" if beyond else "", known]
    unclear = ratio is not None and ratio.low is not None and ratio.low <= 1 <= ratio.ends[1]
    if unclear and pick is not None and pick != config:
        # Of a cheaper one that it is as fast is not likely enough to recommend it.
        cheaper = config.cost_key < pick.cost_key
        notes.append("perhaps as fast" if cheaper else "same within noise")
    return [*filter(None, notes)]


def _details(
    run: Run,
    advice: Recommendation | None,
    accelerators: Accelerators | str | None,
    again: str = "",
) -> Iterator[doc.Section]:
    rows, title = summarize(run, advice), "Configurations"
    if advice is not None and not advice.in_trials:  # whose own figures may be others
        said = {each.config: format_rate(each.samples_per_s.value) for each in advice.rates}
        given = {row.config: format_rate(row.rate.value) for row in rows if row.rate is not None}
        if any(said.get(config, rate) != rate for config, rate in given.items()):
            title += ", as measured"
    yield from doc.section(title, *_table(run, rows))
    if advice is not None:
        yield from ranks_sections(run, advice.config)
        yield from accelerators_sections(None if isinstance(accelerators, str) else accelerators)
        yield from doc.section("Expected", doc.facts(expected_of(advice)))
        yield from doc.section("Why", doc.items(_reasons(advice)))
        yield from doc.section("With and without background load", doc.items(_cases(advice)))
        yield from doc.section("Alternatives", doc.items(_alternatives(advice)))
        yield from doc.section("Rules of thumb", doc.items(_rules(advice)))
        there: list[doc.Block] = []
        for each in advice.measure_there:
            there += (doc.Text(each.what), doc.Code(each.command, "sh"))
        yield from doc.section("Measure there to be sure", *there)
    failed = [*_failures(run.trials)]
    more = [f"{len(failed) - 50} more that failed or were skipped"] * (len(failed) > 50)
    yield from doc.section("Not measured", doc.items([*failed[:50], *more, *_unreached(run)]))
    yield from doc.section("Sweep", doc.items(_cost(run)))
    if advice is not None:
        yield from doc.section("Next", *_next_steps(run, advice.constraints, again))


def _table(run: Run, rows: Sequence[ConfigSummary]) -> Iterator[doc.Block]:
    if not rows:
        return
    seen, roles = [row.seen for row in rows], [row.role for row in rows]
    relative = [_relative(row) for row in rows]
    against = PICK if PICK in roles else "fastest"
    whole = "" if run.header.target.batches_per_epoch is None else ", over whole epochs"
    over = "over 10 epochs: trials show the first." if run.header.target.keeps_samples else ""
    words = {
        "slower": "slower, faster: surely; by how much is too noisy to say",
        "unclear": "unclear: too noisy, or measured once and disturbed",
    }
    words["faster"] = words["slower"]
    noisy = "".join(f"; {each}" for each in dict.fromkeys(filter(None, map(words.get, relative))))
    tie = f"tie: likely {WITHIN} of the best." if TIE in roles else ""
    predicted = [value_text(row.predicted) for row in rows]
    startup = [format_duration(each.startup_s) for each in seen]
    restart = [format_duration(each.epoch_turnover_s) for each in seen]
    cores = [f"{cores_text(s.own_cpu_cores)}/{cores_text(s.available_cpu_cores)}" for s in seen]
    cores = [each.replace(f"{MISSING}/{MISSING}", MISSING) for each in cores]
    marks = ["noisy" if each.noisy else "" for each in seen]
    disturbed = "noisy: other processes, a quota or drift disturbed a trial."
    before = "by the model, before the configuration was measured."
    epochs = all(trial.whole_epochs for each in seen for trial in each.trials)
    waited = IN_TRIALS if epochs or {*restart} <= {MISSING} else f"in epochs; {IN_TRIALS}"
    columns = (
        doc.Column("", roles, left=True, note=tie),
        *setting_columns([row.config for row in rows]),
        doc.Column("samples/s", [value_text(row.rate) for row in rows], note=over),
        doc.Column("95% CI", [interval_text(row.rate) for row in rows], 10),
        doc.Column("predicted", predicted, 11, note=before),
        doc.Column("relative", relative, 8, note=f"speed against the {against}{whole}{noisy}."),
        doc.Column("wait", [percent_text(row.wait_fraction) for row in rows], 9, note=waited),
        doc.Column("copy", [format_duration(each.copy_s) for each in seen], 9),
        doc.Column("1st batch", startup, 6, note="time to the first batch."),
        doc.Column("restart", restart, 4, note="from one epoch to the next."),
        doc.Column("memory", [format_bytes(each.pss_bytes) for each in seen], 5),
        doc.Column("shm", [format_bytes(each.shm_bytes) for each in seen], 2),
        doc.Column("cores", cores, 1, note="used/available."),
        doc.Column("trials", [*map(_trials_text, seen)], 3, note=_TRIALS),
        doc.Column("", marks, 7, left=True, note=disturbed),
    )
    yield doc.Table(columns, tuple(_ROLES.get(role, "") for role in roles))
    later = beginning_alone(run.header.target, run.trials)
    if notes := (*run.header.target.notes, *filter(None, [later])):
        yield doc.Items(notes)


_TRIALS = "how many, and what they gave, samples/s, beside what others took just then."


def _trials_text(seen: Candidate) -> str:
    given = sorted(each.samples_per_s.value for each in seen.trials if each.samples_per_s)
    ends = dict.fromkeys(map(format_rate, (given[0], given[-1]))) if given else {}
    return f"{len(seen.trials)}: {'-'.join(ends)}" if ends else MISSING


def _relative(row: ConfigSummary) -> str:
    """A speed against another's; one that is known to no better than a factor of two in words."""
    ratio = row.relative
    if ratio is None or not ratio.is_wide:
        return ratio_text(None if ratio is None else ratio.value)
    lone = [trial.noisy for trial in row.seen.trials] == [True]  # as ``gains_text`` has it
    known = row.rate is not None and not row.rate.is_wide
    low, high = (1.0, 1.0) if lone and not known else ratio.ends
    return "slower" if high < 1 else "faster" if low > 1 else "unclear"


def expected_of(advice: Recommendation) -> Iterator[doc.Row]:
    """What the recommended settings give and take."""
    expected = advice.expected
    kept = expected.gain_if == TEN_EPOCHS
    over = ", over 10 epochs" if kept else ""
    yield "throughput", f"{rate_text(expected.samples_per_s)}{over}"
    if expected.wait_fraction is not None:
        wait, restarts = expected.wait_fraction, expected.turnover_fraction
        yield "data wait", wait_text(wait, restarts, in_trials=advice.in_trials, kept=kept)
    yield "memory", format_bytes(expected.pss_bytes)
    yield "shared memory", format_bytes(expected.shm_bytes)
    yield "time to first batch", format_duration(expected.startup_s)
    yield "epoch restart", format_duration(expected.epoch_turnover_s)


def _asked(asked: Constraints, *, step: bool) -> Iterator[str]:
    """The limits that the settings keep, and where and for what they are wanted."""
    several = asked.ranks * asked.nodes > 1
    if asked.max_workers is not None:
        each = " a rank" if several else ""
        yield f"at most {counted(asked.max_workers, 'worker')}{each}"
    for size, what in ((asked.max_ram_bytes, "memory"), (asked.max_shm_bytes, "shared memory")):
        if size is not None:
            yield f"at most {format_bytes(size)} of {what}"
    if asked.machine is not None:
        yield f"machine {asked.machine}"
    if asked.cores is not None:
        yield f"{asked.cores:g} cores"
    if asked.neighbours is not None:
        yield f"a background load of {counted(round(asked.neighbours, 1), 'core')}"
    if asked.speed is not None:
        yield f"cores of {asked.speed:g}x the speed"
    if several:
        nodes = f" on each of {asked.nodes:,} nodes" if asked.nodes > 1 else ""
        divided = (asked.max_ram_bytes, asked.max_shm_bytes, asked.machine, asked.cores)
        shared = "shared by " if any(each is not None for each in divided) else ""
        yield f"{shared}{counted(asked.ranks, 'rank')}{nodes}"
    if step and asked.step_s is not None:
        yield f"a step of {step_text(asked.step_s, asked.step_spread)}"


def _reasons(advice: Recommendation) -> Iterator[doc.Words]:
    """Each with the trials that show it."""
    for reason in advice.reasons:
        trials = listed(reason.evidence.get("trials"))
        more = f" and {len(trials) - 6} more" if len(trials) > 6 else ""
        shown = doc.Styled(f" [{', '.join(trials[:6])}{more}]", "soft")
        yield (reason.claim, shown) if trials else reason.claim


def _cases(advice: Recommendation) -> Iterator[doc.Words]:
    for case in advice.cases:
        others = f" ({background_text(case.neighbours)})"
        text = f"{_case_text(case.name)}{others if case.neighbours else ''}: "
        text += rate_text(case.expected.samples_per_s)
        if (wait := case.expected.wait_fraction) is not None:
            kept = case.expected.gain_if == TEN_EPOCHS
            text += f", data wait {wait_text(wait, case.expected.turnover_fraction, kept=kept)}"
        text += f"; {case.bound}"
        if case.best != advice.config:
            text += f"; best there: {case.best.text}, {rate_text(case.best_samples_per_s)}"
        yield text
    if (least := _least_loss(advice)) is not None:
        yield f"loses least in both: {least.config.text}: {_kept_of(least)}"


def _least_loss(advice: Recommendation) -> LeastLoss | None:
    """What loses least, where it keeps enough; that workers persist is no advice for a load."""
    found = advice.least_loss
    if found is None or not found.is_useful:
        return None
    other = found.config.differing(advice.config)
    return None if other == ["persistent_workers"] else found


def _kept_of(least: LeastLoss) -> str:
    cases = ((math.floor(100 * kept), _case_text(name)) for name, kept in least.at_least.items())
    (kept, where), *rest = cases
    more = (f"{percent}% {other}" for percent, other in rest)
    sure = f"{PROBABILITY:.0%}"
    return ", ".join((f"by the model at least {kept}% of the best {where} ({sure})", *more))


def _case_text(name: str) -> str:
    return "alone on the machine" if name == "dedicated" else name


def _alternatives(advice: Recommendation) -> Iterator[doc.Words]:
    for each in advice.alternatives:
        cheaper = each.config.cost_key < advice.config.cost_key  # in the words of ``bar_notes``
        names = {"present": "yours", "tie": "perhaps as fast" if cheaper else "as fast"}
        rate = rate_text(each.expected.samples_per_s) + _speed(advice, each.config, each.speed)
        yield f"{names.get(each.relation, each.relation)}: {each.config.text}: {rate}"


def _rules(advice: Recommendation) -> Iterator[doc.Words]:
    best = advice.expected.samples_per_s.value
    for rule in advice.rules_of_thumb:
        said = rule.unavailable or f"{rule.config.text}: not measured"
        if (rate := rule.expected_samples_per_s) is not None:
            speed = _speed(advice, rule.config, rate / best) if best > 0 else ""
            how = ", predicted" if rule.predicted else ""
            said = f"{rule.config.text}: {format_rate(rate)} samples/s{speed}{how}"
        yield f"{rule.name}: {said}"


def _speed(advice: Recommendation, config: Config, ratio: float) -> str:
    """A speed over the recommended configuration's, where it is not too noisy to say."""
    unclear = any(each.config == config and each.ratio.is_wide for each in advice.rates)
    return "" if unclear else f", {ratio_text(ratio)}"


def _shown_speed(advice: Recommendation, each: Alternative) -> float | None:
    """A speed likewise, of what need not be among the rates; ``None`` where it is no figure."""
    unclear = each.expected.samples_per_s.is_wide or not _speed(advice, each.config, each.speed)
    return None if unclear else each.speed


def _failures(trials: Sequence[Trial]) -> Iterator[str]:
    """Each kind of failure once for each configuration, with what to do about it.

    What can't work here and was not tried comes last, each reason once.
    """
    groups: dict[tuple[bool, str, str], list[tuple[Trial, Failure]]] = {}
    for trial in trials:
        if trial.failure is not None:
            skipped = trial.outcome == "skipped"
            key = (skipped, "" if skipped else trial.config.key, trial.failure.kind)
            groups.setdefault(key, []).append((trial, trial.failure))
    for (skipped, _, _), group in sorted(groups.items(), key=lambda found: found[0][0]):
        trial, failure = group[0]
        configs = len({each.config for each, _ in group})
        more = f" and {configs - 1} more" if configs > 1 else ""
        how = "skipped: " if skipped else ""
        yield f"{trial.config.text}{more}: {how}{_with_hint(failure)} [{trial.id}]"


def _with_hint(failure: Failure) -> str:
    """What went wrong, what to do, and where code of the user's raised it: no screen has more."""
    raised = failure.kind == "worker_exception"
    calls = _CALL.findall(failure.stderr_tail) if raised else []
    last = f" The last call in it: {calls[-1]}." if calls else ""
    return f"{with_hint(failure.message, failure.hint)}{last}"


def _unreached(run: Run) -> Iterator[str]:
    """What was left out, and how many configurations the sweep never came to."""
    yield from (f"Left out: {each.setting}: {each.reason}" for each in run.header.left_out)
    found, plan = Integrity.of(run), run.header.plan
    configs = plan.configs if plan is not None else ()
    planned = {config for config in configs if not found.is_useless(config)}
    missing = planned - {trial.config for trial in run.trials if trial.purpose == "measure"}
    led = plan is not None and plan.search == "model"
    if not missing or run.prediction is not None or (led and not run.completed):
        return  # a model chooses what is measured, and leaves most out on purpose
    why = "the sweep was cut off" if run.end is None else END_TEXTS[run.end.reason]
    verb = "was" if len(missing) == 1 else "were"
    yield f"{len(missing)} of {len(planned)} configurations {verb} not measured: {why}."


def _cost(run: Run) -> Iterator[doc.Words]:
    trials = [t for t in run.trials if t.outcome != "skipped" and t.purpose == "measure"]
    traced = sum(trial.purpose == "explain" for trial in run.trials)
    configs = len({trial.config for trial in trials})
    measured = f"{counted(configs, 'configuration')} measured in {counted(len(trials), 'trial')}"
    if run.prediction is not None:
        measured = f"{counted(len(run.prediction.cells), 'configuration')} predicted, {measured}"
    yield measured + (f"; {counted(traced, 'traced trial')}" if traced else "")
    yield f"{title_of(run)} ({counted(run.header.machine.usable_cores, 'usable core')})"
    if run.end is not None:
        cost = run.end.cost_s
        outside = percent_text(cost.overhead / cost.total if cost.total > 0 else None)
        took = f"{format_duration(cost.total)}, {outside} of it outside the measured windows"
        yield f"{took}; ended: {END_TEXTS[run.end.reason]}"


def _next_steps(run: Run, asked: Constraints, again: str) -> Iterator[doc.Block]:
    if not run.path:
        return
    command = " ".join(filter(None, ("dlprof recommend", shlex.quote(run.path), again)))
    lines = [f"{command} --format {'python' if asked.ranks == 1 else 'torchrun'}"]
    elsewhere = _is_elsewhere(asked)
    if not elsewhere:  # settings are saved for the machine that was measured
        lines.append(f"{command} --save dlprof.toml")
    yield doc.Code("\n".join(lines), "sh")
    if not elsewhere:
        yield doc.Text("and in the training script, on each machine that has saved:")
        yield doc.Code('loader = DataLoader(dataset, **dlprof.kwargs_for("dlprof.toml"))')
