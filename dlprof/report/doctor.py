"""What ``dlprof doctor`` found, for people, for an issue, and as JSON."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from dlprof.machine.doctor import Check
from dlprof.report.document import Document, Facts, Span, Text, Tone, Words
from dlprof.report.documents import json_document
from dlprof.units import counted

_TONES: Mapping[str, Tone] = {"ok": "good", "warning": "warn", "problem": "bad"}


def doctor_document(checks: Sequence[Check], system: str) -> str:
    """What ``dlprof doctor --json`` prints.

    Args:
        checks: What was looked at.
        system: The operating system and the version of dlprof, in a few words.
    """
    return json_document(system=system, checks=checks)


def doctor_report(checks: Sequence[Check], system: str) -> Document:
    """The checks, one below the other, with what to do about each.

    Args:
        checks: As for ``doctor_document``.
        system: As for ``doctor_document``.
    """
    rows: list[tuple[str, Words]] = []
    for check in checks:
        tone = _TONES[check.state]
        finding = Span(check.finding, tone if check.state != "ok" else "")
        rows.append((check.name, (Span(f"{check.state}: ", tone), finding)))
        if check.advice:
            rows.append(("", f"fix: {check.advice}"))
    states = [str(check.state) for check in checks]
    found = [(states.count(state), state) for state in ("problem", "warning")]
    parts = ", ".join(counted(count, state) for count, state in found if count)
    said = f"{parts} found." if parts else "No problem found."
    return Document(
        title=system,
        answer=(Text(system), Facts(tuple(rows)), Text(Span(said, "strong"))),
    )
