"""Findings as documents show them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from dlprof.advise.thresholds import NOTABLE, PERHAPS_FED_WAIT_FRACTION
from dlprof.advise.wording import NO_LIMIT, end_text
from dlprof.records import Estimate, Finding, Fix, LoaderCall
from dlprof.report.document import Card, Code, FactList, Row, Styled, Text, Tone, known
from dlprof.report.explain import explained
from dlprof.report.labels import cores_text, gain_text, percent_text, ratio_text
from dlprof.units import counted, format_bytes, format_duration, format_rate

_SEVERITIES: Mapping[str, Tone] = {"high": "bad", "medium": "warn", "low": "code", "info": "soft"}
_SOURCES = {"measured": "measured", "model": "predicted", "bound": "an estimate"}

_USED_UP = {
    **dict.fromkeys(("step", "main"), "the main process"),  # which also receives batches
    "pin": "the pin thread",
    "cores": "cores",
    "storage": "storage",
}
"""What limits a loader that more workers don't speed up, by ``gain_limit``, in words."""

_NO_FIGURES = frozenset(
    {
        *("trials", "gain_from", "gain_at", "gain_if", "gain_trials", "seen_in", "tried"),
        *("gain_workers", "gain_wait_fraction", "gain_limit"),  # which a note says, or the fix
    }
)


def cards(findings: Sequence[Finding]) -> Iterator[Card]:
    """All findings, the cause to bet on first."""
    for number, finding in enumerate(findings, 1):
        rows: list[Row] = [("evidence", evidence_text(finding.evidence))]
        rows.append(("fix", "" if finding.fix is None else finding.fix.text))
        rows += [(name.lower(), words) for name, words in _worth(finding, known_gain(finding))]
        rows.append(("more", explained(finding.code)))
        facts = FactList(tuple(row for row in rows if row[1]))
        code = fix_code(finding.fix)
        yield Card(
            title=f"{number}. {finding.title}",
            code=finding.code,
            level=finding.severity + (" severity" if finding.severity != "info" else ""),
            tone=_SEVERITIES[finding.severity],
            blocks=known(Text(finding.explanation), facts, Code(code) if code else None),
        )


def _worth(finding: Finding, gain: str) -> Iterator[Row]:
    if gain:  # what others take is nothing that a change of the loader brings
        yield "If quiet" if finding.code == "cpu.neighbours" else "Speed-up", gain
    if finding.script_gain is not None:
        whole = f"{_worth_of(finding, finding.script_gain)}, from the script's start to its end"
        yield "Overall", ", ".join(filter(None, (whole, _needs(finding))))
    if finding.doubtful:
        yield "Doubt", Styled(finding.doubtful, "warn")


def answer(
    findings: Sequence[Finding],
    wait: float | None = None,
    *,
    workers: int | None = None,
    where: str = "",
) -> Iterator[Row]:
    """The first finding: the bottleneck, the fix and what it brings; and what else pays most.

    ``wait`` is the share of the time that the step waits, ``workers`` how many there are now, where
    they are known; ``where`` is of what, for a loop that is a part of a script.
    """
    finding = next(iter(findings), None)
    if finding is None:
        yield "Bottleneck", "none found that is worth fixing"
        return
    yield "Bottleneck", (Styled(finding.title, "strong"), Styled(f"  {finding.code}", "soft"))
    other, instead = _next_best(findings), False
    if finding.fix is not None:
        change = _change(finding) or finding.fix.text
        change += _where(finding, workers)
        if finding.fix.dataloader_kwargs.get("in_order") is False:
            change += " (changes the order of batches)"
        seen = wait is not None and workers is not None
        more = _more_may_pay(finding, wait or 0.0, workers or 0) if seen else ""
        # Of two values of one setting this line has both: only one can be set.
        instead = other is not None and _sets_the_same(finding, other)
        more = f"or {_offer(finding, other)}" if other is not None and instead else more
        # What a trial could not confirm is no fix to apply.
        measured, worth = finding.evidence.get("gain_from") == "measured", finding.predicted_gain
        unsure = measured and worth is not None and worth.ends[0] <= 1
        yield "Tried" if unsure else "Fix", f"{change} ({more})" if more else change
    elif tried := finding.evidence.get("tried"):
        yield "Tried", str(tried)
    gain = _gain(finding, names_step=False)  # which the line on the wait has
    if not gain and finding.fix is not None:
        if finding.code == "cpu.neighbours" and wait is not None:
            gain = "not known: the step would be faster as well"
        elif wait is None or wait > 0.99:  # of a loop without steps a bound says nothing
            gain = "not known"
        elif wait >= NOTABLE:
            most = f"{ratio_text(1 / (1 - wait))} {where}".strip()
            gain = f"not known; at most {most}, without any wait for data"
    yield from _worth(finding, gain)
    if other is not None and not instead:
        said = f": {_offer(finding, other)}"
        yield "Also", (other.title, Styled(f"  {other.code}", "soft"), said)


def _offer(finding: Finding, other: Finding) -> str:
    """What another finding's fix would change and bring by itself: none knows that of both."""
    at = str(finding.evidence.get("gain_at") or "")  # which the gain of the first has
    gain = _gain(other, names_step=False).replace(f" {at}" if at else "", "", 1)
    alone = "" if finding.fix is None or _sets_the_same(finding, other) else "by itself"
    offer = ", ".join(filter(None, (_change(other), gain, alone)))
    measured = not _change(other) or other.evidence.get("gain_from") == "measured"
    return offer if measured else f"{offer}; dlprof sweep measures it"


def _sets_the_same(finding: Finding, other: Finding) -> bool:
    one, two = ({*each.fix.dataloader_kwargs} if each.fix else set() for each in (finding, other))
    return bool(one & two)


def _where(finding: Finding, workers: int | None) -> str:
    """On which rank its workers are to be set, which the others wait for, and how many it has."""
    rank, asked = finding.evidence.get("rank"), finding.fix and finding.fix.dataloader_kwargs
    if rank is None or workers is None or "num_workers" not in (asked or {}):
        return ""
    return f" on rank {rank}, or on all ranks (now num_workers={workers})"


def _more_may_pay(finding: Finding, wait: float, workers: int) -> str:
    """Where more workers are the fix and leave much of the wait, as is only predicted: why."""
    gain, fix, limit = finding.predicted_gain, finding.fix, str(finding.evidence.get("gain_limit"))
    if gain is None or fix is None or finding.evidence.get("gain_from") == "measured":
        return ""
    left = 1 - gain.value * (1 - wait)
    more = fix.dataloader_kwargs.get("num_workers", 0) > workers
    needs = _needs(finding)
    if not more or needs not in {"", f"if {NO_LIMIT}"}:
        return ""
    if left <= PERHAPS_FED_WAIT_FRACTION:
        return "dlprof sweep measures it" if needs else ""
    if limit in _USED_UP and not gain.is_wide and gain.ends[0] > 1:
        return f"then limited by {_USED_UP[limit]}: {percent_text(left)} wait is left"
    return "more may be faster: dlprof sweep measures them"


def _change(finding: Finding) -> str:
    """The settings of its fix in a line; empty where that changes something else.

    With what must hold for them, where no gain is there that has it beside it.
    """
    if finding.fix is None:
        return ""
    settings = (f"{name}={value!r}" for name, value in finding.fix.dataloader_kwargs.items())
    change = finding.fix.call.rpartition("\n")[2].strip() or ", ".join(settings)
    needs = "" if finding.predicted_gain is not None else _needs(finding)
    return f"{change}, {needs}" if change and needs else change


def _needs(finding: Finding) -> str:
    """What must hold for its gain, whose fix may do without."""
    needs = finding.evidence.get("gain_if")
    return f"if {needs}" if needs else ""


def _next_best(findings: Sequence[Finding]) -> Finding | None:
    """The finding after the first whose fix surely brings most, if any surely brings something.

    One that sets what the first sets has to bring more than that.
    """
    first, *others = findings
    gain = first.predicted_gain
    least = 1.0 if gain is None else max(1.0, gain.value)
    pays = (e for e in others if _least_gain(e) > (least if _sets_the_same(first, e) else 1))
    return max(pays, key=_least_gain, default=None)


def _least_gain(finding: Finding) -> float:
    gain = finding.predicted_gain
    if gain is None:
        return 0.0
    return gain.value if gain.low is None else gain.low


def more_findings(findings: Sequence[Finding]) -> str:
    """How many there are beside those of the answer, and whether they bring anything."""
    more = len(findings) - 1 - (bool(findings) and _next_best(findings) is not None)
    sure = "" if any(_least_gain(each) > 1 for each in findings[1:]) else " without a sure gain"
    return f"{counted(more, 'more finding')}{sure}" if more > 0 else ""


def known_gain(finding: Finding) -> str:
    """What the fix would bring, how that is known, and by which trials."""
    gain = _gain(finding)
    trials = ", ".join(listed(finding.evidence.get("gain_trials")))
    return f"{gain} [{trials}]" if gain and trials else gain


def _gain(finding: Finding, *, names_step: bool = True) -> str:
    gain, evidence = finding.predicted_gain, finding.evidence
    if gain is None:
        return ""
    at = str(evidence.get("gain_at") or "")
    if at.startswith("at a step of") and not names_step:
        quiet = "on a quiet machine"  # which no other line has of what the loader's settings gain
        at = quiet if at.endswith(quiet) and finding.code != "cpu.neighbours" else ""
    source = _SOURCES.get(str(evidence.get("gain_from")), "")
    most, at = "at most " if at.endswith("at most") else "", at.removesuffix("at most")
    said = f"{most}{_worth_of(finding, gain)} {at}".strip(), _needs(finding), source
    return ", ".join(filter(None, said))


def _worth_of(finding: Finding, gain: Estimate) -> str:
    """A gain in words: of one that a limit may take away there is no more than its upper end."""
    if NO_LIMIT in _needs(finding) and gain.high is not None and gain.high > 1:
        return f"up to {end_text(gain.high)}x (95%)"
    return gain_text(gain)


def listed(found: object) -> list[str]:
    """What evidence lists, such as trials; a file may have anything there."""
    return [*map(str, found)] if isinstance(found, list | tuple) else []


def figure_in(evidence: Mapping[str, Any], name: str) -> float | None:
    """A figure of evidence; ``None`` without it, or where a file has something else there."""
    found = evidence.get(name)
    return found if isinstance(found, int | float) else None


def fix_code(fix: Fix | None) -> str:
    """The lines of a fix to paste."""
    if fix is None:
        return ""
    settings = fix.dataloader_kwargs
    call = (fix.call or LoaderCall().written(settings)) if settings else ""
    return "\n".join(filter(None, (call, fix.code)))


def evidence_text(evidence: Mapping[str, Any]) -> str:
    """The figures by name, with the trials that they come from."""
    shown = ((name, value) for name, value in evidence.items() if name not in _NO_FIGURES)
    figures = [_figure(n, v) for n, v in shown if v is not None and not isinstance(v, Mapping)]
    trials = ", ".join(listed(evidence.get("trials")))
    return " ".join(filter(None, (", ".join(figures), trials and f"[{trials}]")))


_UNITS = {
    "_bytes_per_s": lambda value: f"{format_bytes(value)}/s",
    "_bytes_per_batch": format_bytes,
    "_per_s": format_rate,
    "_bytes": format_bytes,
    "_fraction": percent_text,
    "_cores": cores_text,
    "_s": format_duration,
}
_TERMS = {
    "pick up": "index queue",  # words: a key of the records
    "hold up": "reorder wait",  # words: a key of the records
    "rebuild": "deserialize",
    "serialise": "serialize",
    "run queue wait": "run-queue delay",
    "run queue": "run-queue delay",
    "starved": "run-queue delay",
    "idle while waiting fraction": "idle workers during data wait",
    "waiting": "blocked",
    "epoch turnover": "epoch restart",  # words: as above
    "startup": "time to first batch",
}
"""Words of the records that read otherwise."""


def _figure(name: str, value: object) -> str:
    unit = next((unit for unit in _UNITS if name.endswith(unit)), "")
    text = (name.removesuffix(unit) if unit in {"_s", "_bytes"} else name).replace("_", " ")
    for term, better in _TERMS.items():
        text = text.replace(term, better)
    if isinstance(value, bool) or not isinstance(value, int | float):
        return f"{text} {value}"
    if name.startswith("share") or name.endswith("_share") or "share_of" in name:
        return f"{text} {percent_text(value)}"
    if unit:
        return f"{text} {_UNITS[unit](value)}"
    return f"{text} {value:,.2f}" if isinstance(value, float) else f"{text} {value:,}"
